"""Rules of the tests themselves: one way to wait, one way to start a process, short files in folders named for what
they test, reasons for what is slow, and public doors."""

from __future__ import annotations

import ast
import functools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]
MOST_LINES = 800
MOST_PRIVATE = 19
"""Uses of private attributes of the project, all tests together. Lower it with each that goes."""
OWN_PRIVATE = ("support/", "benchmarks/", "simulation/", "interop/cpp/", "spark/conftest.py")
"""Where private attributes are used with a reason: invariants, planted bugs, and insides of asyncio, Spark and the C++
client."""
TABLES = ("security/tables/test_client_tables.py", "security/tables/test_table_registry.py")
"""They measure every table, and most tables are private."""
UNIT = TESTS / "unit"
MOST_FILES = 25
PACKAGES = {
    "server": "server/mqspark_server",
    "datasource": "datasource/pyspark_pymq",
    "jobs": "jobs/mqspark_jobs",
}
"""Where the packages are that are not below ``mqspark``, by the folder with their unit tests."""
WAITING = re.compile(r"eventually|until|wait_until|wait_for|poll_until")


def faults_of_a_test(nodes: Sequence[ast.AST]) -> Iterator[str]:
    """Second helpers beside those in ``tests/support``, and slow tests without a reason."""
    called = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
    for node in nodes:
        match node:
            case ast.FunctionDef(name=name, args=args) | ast.AsyncFunctionDef(name=name, args=args) if (
                WAITING.fullmatch(name) and "Callable[[], bool]" in ast.unparse(args)
            ):
                yield f"{node.lineno}: {name}: waiting is tests.support.waiting.eventually"
            case ast.Attribute(value=ast.Name(id="subprocess"), attr="Popen") if id(node) in called:
                yield f"{node.lineno}: subprocess.Popen: processes are started by tests.support.processes"
            case ast.Constant(value=str() as text) if "dependency-plugin" in text:
                yield f"{node.lineno}: mvn: jars are fetched by tests.support.maven"
            case ast.Attribute(value=ast.Attribute(attr="mark"), attr="slow" | "night" as mark) if (
                id(node) not in called
            ):
                yield f"{node.lineno}: pytest.mark.{mark} takes the reason why it is"


def nodes_of(source: str) -> list[ast.AST]:
    return list(ast.walk(ast.parse(source)))


@functools.cache
def found_in_tests() -> tuple[list[str], list[str]]:
    """Faults of all tests, and their uses of private attributes: each file is parsed once."""
    faults, private = [], []
    for path in sorted(TESTS.rglob("*.py")):
        source, name = path.read_text(), str(path.relative_to(TESTS))
        nodes = nodes_of(source)
        if source.count("\n") > MOST_LINES:
            faults.append(f"{name} has more than {MOST_LINES} lines")
        if not name.startswith(("support/", "benchmarks/", "unit/project/test_rules")):
            faults += [f"{name}:{fault}" for fault in faults_of_a_test(nodes)]
        if not name.startswith(OWN_PRIVATE + TABLES):
            private += [f"{name}:{use}" for use in private_uses(nodes)]
    return faults, private


def test_tests_are_in_short_files_and_use_the_shared_helpers() -> None:
    faults, _ = found_in_tests()
    assert faults == []


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
    assert list(faults_of_a_test(nodes_of(line)))


@pytest.mark.parametrize(
    "line",
    [
        "child: subprocess.Popen[str]",
        "def until(self, wall_ms: int) -> None: ...",
        "@pytest.mark.slow('it sleeps')\ndef test(): ...",
    ],
)
def test_what_is_no_fault_of_a_test_is_not(line: str) -> None:
    assert list(faults_of_a_test(nodes_of(line))) == []


def test_unit_tests_are_in_folders_named_for_the_packages() -> None:
    files = Counter(path.parent.relative_to(UNIT) for path in UNIT.rglob("*.py"))
    for folder, number in files.items():
        assert number <= MOST_FILES, f"{folder} has {number} files"
        top, *below = folder.parts or [""]
        if top != "project":  # the tree itself: its rules, pages, packaging
            package = TESTS.parent / PACKAGES.get(top, f"mqspark/{top}")
            assert package.joinpath(*below).is_dir(), f"{folder} is named for no package"


def private_uses(nodes: Sequence[ast.AST]) -> Iterator[str]:
    """Attributes with a leading underscore of anything but ``self``, ``cls`` and ``super()``."""
    for node in nodes:
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls" | "os" | "sys")):
                continue
            case ast.Attribute(value=ast.Call(func=ast.Name(id="super"))):
                continue
            case ast.Attribute(attr="_replace" | "_asdict" | "_fields"):  # of named tuples, and public
                continue
            case ast.Attribute(attr=name) if name.startswith("_") and not name.startswith("__"):
                yield f"{node.lineno}: {ast.unparse(node)}"


def test_tests_use_public_doors() -> None:
    _, found = found_in_tests()
    assert len(found) <= MOST_PRIVATE, found


def test_private_uses_are_seen() -> None:
    assert list(private_uses(nodes_of("store._log.position\nself.store._log")))
    assert not list(
        private_uses(nodes_of("self._log\nitem._replace(a=1)\nsuper()._begin()\nstore.__class__"))
    )
