"""Rules of the tests themselves: one way to wait, one way to start a process, no file that is too long."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
SHARED = TESTS / "support"
FILES = [
    path for path in sorted(TESTS.rglob("*.py")) if SHARED not in path.parents and path != Path(__file__)
]
MOST_LINES = 800
WAITING = re.compile(r"eventually|until|wait_until|wait_for|poll_until")


def beside_the_shared_ones(source: str) -> Iterator[str]:
    """What ``tests/support`` has already."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.FunctionDef(name=name, args=args) | ast.AsyncFunctionDef(name=name, args=args) if (
                WAITING.fullmatch(name) and "Callable[[], bool]" in ast.unparse(args)
            ):
                yield f"{node.lineno}: {name}: waiting is tests.support.waiting.eventually"
            case ast.Attribute(value=ast.Name(id="subprocess"), attr="Popen") if is_called(source, node):
                yield f"{node.lineno}: subprocess.Popen: processes are started by tests.support.processes"
            case ast.Constant(value=str() as text) if "dependency:copy-dependencies" in text:
                yield f"{node.lineno}: mvn: jars are fetched by tests.support.maven"


def is_called(source: str, found: ast.Attribute) -> bool:
    """Annotations name the type."""
    return ast.get_source_segment(source, found) is not None and any(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and (node.func.lineno, node.func.col_offset) == (found.lineno, found.col_offset)
        for node in ast.walk(ast.parse(source))
    )


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(TESTS)))
def test_a_file_of_tests_is_short_and_uses_the_shared_helpers(path: Path) -> None:
    source = path.read_text()
    assert source.count("\n") <= MOST_LINES, f"split it: {MOST_LINES} lines at most"
    if "benchmarks" not in path.parts:  # they start other systems, and measure how long a start takes
        assert list(beside_the_shared_ones(source)) == []


@pytest.mark.parametrize(
    "line",
    [
        "def until(condition: Callable[[], bool], what: str) -> None: ...",
        "async def wait_until(condition: Callable[[], bool]) -> None: ...",
        "child = subprocess.Popen(command)",
        "run(['mvn', 'dependency:copy-dependencies'])",
    ],
)
def test_second_helpers_are_seen(line: str) -> None:
    assert list(beside_the_shared_ones(line))


@pytest.mark.parametrize(
    "line", ["child: subprocess.Popen[str]", "def until(self, wall_ms: int) -> None: ..."]
)
def test_what_is_no_second_helper_is_not(line: str) -> None:
    assert list(beside_the_shared_ones(line)) == []
