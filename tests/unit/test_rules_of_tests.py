"""Rules of the tests themselves: one way to wait, one way to start a process, short files, reasons for what is slow."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
MOST_LINES = 800
WAITING = re.compile(r"eventually|until|wait_until|wait_for|poll_until")


def faults_of_a_test(source: str) -> Iterator[str]:
    """Second helpers beside those in ``tests/support``, and slow tests without a reason."""
    tree = ast.parse(source)
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name, args=args) | ast.AsyncFunctionDef(name=name, args=args) if (
                WAITING.fullmatch(name) and "Callable[[], bool]" in ast.unparse(args)
            ):
                yield f"{node.lineno}: {name}: waiting is tests.support.waiting.eventually"
            case ast.Attribute(value=ast.Name(id="subprocess"), attr="Popen") if id(node) in called:
                yield f"{node.lineno}: subprocess.Popen: processes are started by tests.support.processes"
            case ast.Constant(value=str() as text) if "dependency-plugin" in text:
                yield f"{node.lineno}: mvn: jars are fetched by tests.support.maven"
            case ast.Attribute(value=ast.Attribute(attr="mark"), attr="slow") if id(node) not in called:
                yield f"{node.lineno}: pytest.mark.slow takes the reason why it is"


def test_tests_are_in_short_files_and_use_the_shared_helpers() -> None:
    found = []
    for path in sorted(TESTS.rglob("*.py")):
        source, name = path.read_text(), str(path.relative_to(TESTS))
        if source.count("\n") > MOST_LINES:
            found.append(f"{name} has more than {MOST_LINES} lines")
        if not name.startswith(("support/", "benchmarks/", "unit/test_rules")):
            found += [f"{name}:{fault}" for fault in faults_of_a_test(source)]
    assert found == []


@pytest.mark.parametrize(
    "line",
    [
        "def until(condition: Callable[[], bool], what: str) -> None: ...",
        "async def wait_until(condition: Callable[[], bool]) -> None: ...",
        "child = subprocess.Popen(command)",
        "run(['mvn', 'org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies'])",
        "@pytest.mark.slow\ndef test(): ...",
    ],
)
def test_faults_of_a_test_are_seen(line: str) -> None:
    assert list(faults_of_a_test(line))


@pytest.mark.parametrize(
    "line",
    [
        "child: subprocess.Popen[str]",
        "def until(self, wall_ms: int) -> None: ...",
        "@pytest.mark.slow('it sleeps')\ndef test(): ...",
    ],
)
def test_what_is_no_fault_of_a_test_is_not(line: str) -> None:
    assert list(faults_of_a_test(line)) == []
