"""Every mark in the table of features names a test that exists."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MARK = re.compile(r'\[✓\]\((?P<path>[^ )]+) "(?P<test>\w+)(?P<parameters>\[[^\]"]*\])?"\)')
PAGE = ROOT / "docs" / "compatibility.md"
TABLE = PAGE.read_text().split("## Features")[1].split("\n## ")[0]
ROWS = [line for line in TABLE.splitlines() if line.startswith("| ") and "✓" in line]


def test_there_are_rows() -> None:
    assert len(ROWS) >= 30


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split(" | ")[0].strip("| "))
def test_every_mark_names_a_test(row: str) -> None:
    cells = [cell.strip() for cell in row.strip("| ").split(" | ")]
    assert len(cells) == 4
    for cell in cells[1:]:
        if cell == "-":
            continue
        found = MARK.fullmatch(cell)
        assert found is not None, cell
        tree = ast.parse((PAGE.parent / found["path"]).read_text())
        names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
        assert found["test"] in names, cell
