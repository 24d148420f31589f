# Everything runs in .venv, which these targets make. PYTHON picks the interpreter (3.11 or newer).
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
FETCHED := $(VENV)/.fetched
# More than cores: many tests wait.
WORKERS ?= 6

.PHONY: demo notebooks test test-all test-night bench lint fmt setup install clean

setup: $(READY) $(FETCHED)

$(READY): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "mqspark needs Python 3.11 or newer; set PYTHON=/path/to/python3.11")'
	@echo 'Setting up $(VENV): about one minute, longer when packages have to be downloaded.'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check --editable '.[dev]'
	@# An environment with Spark 4.2 had it.
	$(BIN)/python -m pip uninstall --disable-pip-version-check -qq --yes delta-spark
	$(BIN)/python -m pyspark_pymq.precompile
	touch $(READY)

# What interop tests run, in ~/.cache/mqspark: jars and clients of other languages.
$(FETCHED): $(READY) $(wildcard tests/interop/*.xml tests/interop/*/*)
	$(BIN)/python -m tests.interop.fetch
	touch $(FETCHED)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

fmt: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Lint and pytest side by side, then a second try of what failed: see tests/support/run.py.
RUN = $(BIN)/python -m tests.support.run -n $(WORKERS)

test: $(READY) $(FETCHED)
	$(RUN) -m 'not slow'

# Slow tests start Java, Spark and clusters of their own: six at once wait for processors until they time out.
test-all: WORKERS = 4
test-all: $(READY) $(FETCHED)
	$(RUN) -m 'not night' --hypothesis-profile=thorough

# Hours of more of the same: every bit, every subset, a thousand kills, thousands of simulated worlds.
test-night: $(READY) $(FETCHED)
	$(RUN) -m night --hypothesis-profile=thorough

# Runs the notebooks anew and keeps their outputs.
notebooks: $(READY)
	$(BIN)/python notebooks/execute.py

# /opt/mqspark and the files of its services: docs/operations.md.
install:
	conf/install.sh --python $(PYTHON)

demo: $(READY)
	$(BIN)/python notebooks/flights_demo.py

bench: $(READY)
	$(BIN)/python -m tests.benchmarks

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache build dist
