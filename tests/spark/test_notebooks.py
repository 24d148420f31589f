"""The tutorial runs from top to bottom, and is kept without outputs."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import nbformat
import pytest

from tests.spark.delta_jars import delta_jars

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_stripped(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert notebook.cells[0].source.startswith("# "), "it has a title"
    for cell in notebook.cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


@pytest.mark.slow("runs whole notebooks")
@pytest.mark.spark
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
@pytest.mark.filterwarnings("ignore:.*zmq.*:RuntimeWarning")
def test_a_notebook_runs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from nbclient import NotebookClient

    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    notebook = nbformat.read(path, as_version=4)
    if any("delta_settings" in cell.source for cell in notebook.cells):
        jars = delta_jars()
        if jars is None:
            pytest.skip("Delta's jars are not here, and there is no mvn that could fetch them")
        monkeypatch.setenv("MQSPARK_DELTA_JARS", ",".join(map(str, jars)))
    NotebookClient(
        notebook, timeout=280, kernel_name="python3", resources={"metadata": {"path": str(path.parent)}}
    ).execute()
