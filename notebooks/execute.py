"""Run the notebooks and keep their outputs, small and free of warnings: ``python notebooks/execute.py [NAME ...]``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parent
TIMEOUT_S = 900
"""Of one cell, on a busy machine."""


def executed(path: Path) -> nbformat.NotebookNode:
    """The notebook with the outputs of a new run. Raises CellExecutionError when a cell fails."""
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook, timeout=TIMEOUT_S, kernel_name="python3", resources={"metadata": {"path": str(path.parent)}}
    )
    client.execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # times of the run
        if "outputs" in cell:
            cell.outputs = [each for each in cell.outputs if each.get("name") != "stderr"]
    notebook.metadata.pop("language_info", None)  # of the interpreter that ran it
    notebook.metadata["language_info"] = {"name": "python"}
    return notebook


if __name__ == "__main__":
    for name in sys.argv[1:] or sorted(path.stem for path in FOLDER.glob("*.ipynb")):
        target = FOLDER / f"{name}.ipynb"
        nbformat.write(executed(target), target)
        sys.stdout.write(f"{target.name}: {target.stat().st_size / 1024:.0f} KiB\n")
