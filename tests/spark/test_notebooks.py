"""The tutorial runs from top to bottom, and is kept with small outputs and a plot in each notebook."""

from __future__ import annotations

import base64
import json
import re
import runpy
from pathlib import Path

import nbformat
import pytest

from tests.spark.delta_jars import needed_delta_jars

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))
MARKED = [
    pytest.param(path, marks=[pytest.mark.delta] if "delta_settings" in path.read_text() else [])
    for path in NOTEBOOKS
]
MAX_BYTES = 100_000
"""The size of a notebook with its outputs."""


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_small_and_of_one_clean_run(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert notebook.cells[0].source.startswith("# "), "it has a title"
    assert path.stat().st_size < MAX_BYTES
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1)), (
        "python notebooks/execute.py"
    )
    outputs = [output for cell in code for output in cell.outputs]
    assert {output.output_type for output in outputs} <= {"stream", "display_data", "execute_result"}
    assert not [output for output in outputs if output.get("name") == "stderr"]
    plots = [output.data["image/png"] for output in outputs if "image/png" in output.get("data", {})]
    assert plots, "it has a plot"
    assert all(base64.b64decode(plot).startswith(b"\x89PNG") for plot in plots)
    texts = json.dumps([output for output in outputs if "image/png" not in output.get("data", {})])
    assert not re.search(r"/(home|root|work|tmp|Users)/|127\.0\.0\.1", texts), "nothing of a machine"


def test_pandas_is_one_that_spark_takes() -> None:
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert '"pandas>=2.2,<3"' in text
    for path in NOTEBOOKS:
        assert "'pandas<3'" in path.read_text(), path.name


@pytest.mark.slow("runs whole notebooks")
@pytest.mark.timeout(900)
@pytest.mark.spark
@pytest.mark.parametrize("path", MARKED, ids=lambda path: path.stem)
@pytest.mark.filterwarnings("ignore:.*zmq.*:RuntimeWarning")
def test_a_notebook_runs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if "delta_settings" in path.read_text():
        monkeypatch.setenv("MQSPARK_DELTA_JARS", needed_delta_jars())
    execute = runpy.run_path(str(path.parent / "execute.py"))["executed"]
    ran = execute(path)
    kept = nbformat.read(path, as_version=4)
    assert [cell.source for cell in ran.cells] == [cell.source for cell in kept.cells]
    assert [len(cell.get("outputs", [])) for cell in ran.cells] == [
        len(cell.get("outputs", [])) for cell in kept.cells
    ], "the outputs that are kept are of other cells: python notebooks/execute.py"
