"""Every mark in the tables of features and of smaller promises names a test that exists."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
MARK = re.compile(r'\[✓\]\((?P<path>[^ )]+) "(?P<test>\w+)(?P<parameters>\[[^\]"]*\])?"\)')
PAGE = ROOT / "docs" / "compatibility.md"


def rows_of(section: str) -> list[str]:
    table = PAGE.read_text().split(f"## {section}\n")[1].split("\n## ")[0]
    return [line for line in table.splitlines() if line.startswith("| ") and "✓" in line]


ROWS, PROMISES = rows_of("Features"), rows_of("Smaller promises")


def test_there_are_rows() -> None:
    assert len(ROWS) >= 30
    assert len(PROMISES) >= 10


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split(" | ")[0].strip("| "))
def test_every_mark_names_a_test(row: str) -> None:
    cells = [cell.strip() for cell in row.strip("| ").split(" | ")]
    assert len(cells) == 4
    for cell in cells[1:]:
        if cell == "-":
            continue
        found = MARK.fullmatch(cell)
        assert found is not None, cell
        assert is_there(found), cell


@pytest.mark.parametrize("row", PROMISES, ids=lambda row: row.split(" | ")[0].strip("| "))
def test_every_promise_names_its_tests(row: str) -> None:
    marks = row.rsplit(" | ", 1)[1].strip("| ").split("[✓]")[1:]
    assert marks
    for mark in marks:
        found = MARK.fullmatch(f"[✓]{mark.strip()}")
        assert found is not None, mark
        assert is_there(found), mark


def is_there(mark: re.Match[str]) -> bool:
    tree = ast.parse((PAGE.parent / mark["path"]).read_text())
    return mark["test"] in {
        node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
