# Everything runs in .venv, which these targets make. PYTHON picks the interpreter (3.11 or newer).
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
WORKERS ?= 2

.PHONY: demo test test-all bench lint fmt setup clean

setup: $(READY)

$(READY): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "mqspark needs Python 3.11 or newer; set PYTHON=/path/to/python3.11")'
	@echo 'Setting up $(VENV): about one minute, longer when packages have to be downloaded.'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check --editable '.[dev]'
	touch $(READY)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

fmt: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Real processes on a shared machine: a test that failed is run once more, alone and visibly, and has to pass then.
AGAIN := $(BIN)/python -m pytest --last-failed --last-failed-no-failures none

test: lint
	$(BIN)/python -m pytest -m 'not slow and not spark and not interop' -n $(WORKERS) --dist loadfile || $(AGAIN) -m 'not slow and not spark and not interop'
	$(BIN)/python -m pytest -m 'not slow and (spark or interop)' || $(AGAIN) -m 'not slow and (spark or interop)'

test-all: lint
	$(BIN)/python -m pytest --hypothesis-profile=default -m 'not spark and not interop' -n $(WORKERS) --dist loadfile
	$(BIN)/python -m pytest --hypothesis-profile=default -m 'spark or interop'

demo: $(READY)
	$(BIN)/python notebooks/flights_demo.py

bench: $(READY)
	$(BIN)/python -m tests.benchmarks

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache build dist
