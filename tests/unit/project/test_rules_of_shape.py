"""Rules of the shape of functions and classes: what is longer, or has more, is split by what it does."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterable, Iterator

import pytest

from tests.support.sources import modules

MAX_LINES = 80
MAX_ATTRIBUTES = 25
WITH_MORE = {
    "BrokerConfig": "one field a setting",
    "StoreConfig": "one field a setting",
    "ServerConfig": "one field a setting",
    "Stats": "one field a figure",
    "BrokerState": "one field a table that processors share",
    "Healing": "one field a step of the way from damage to healed bytes",
    "ConsumeQueue": "one field a fact that each append reads",
    "TimerService": "the wheel, its log and its clock move together",
    "ArchivedMessages": "one field a kind of fetch that is under way",
    "ControlledApp": "one field a part of a broker that a controller starts and stops",
}
"""Classes with more attributes, and why."""


def long_functions(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > MAX_LINES:
                yield f"{node.name}: {lines} lines"


def is_self(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def attributes(node: ast.ClassDef) -> set[str]:
    """The fields of a dataclass, and what methods set on ``self``."""
    fields = {
        each.target.id
        for each in node.body
        if isinstance(each, ast.AnnAssign)
        and isinstance(each.target, ast.Name)
        and "ClassVar" not in ast.unparse(each.annotation)
    }
    return fields | {
        each.attr
        for each in ast.walk(node)
        if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store) and is_self(each.value)
    }


def large_classes(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.ClassDef) and len(attributes(node)) > MAX_ATTRIBUTES:
            yield node.name


def names_of_later_parts(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Lambdas of constructors that read an attribute which the constructor sets only afterwards."""
    for node in nodes:
        if not isinstance(node, ast.FunctionDef) or node.name != "__init__":
            continue
        first: dict[str, int] = {}
        for each in ast.walk(node):
            if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store) and is_self(each.value):
                first[each.attr] = min(first.get(each.attr, each.lineno), each.lineno)
        for function in ast.walk(node):
            if not isinstance(function, ast.Lambda):
                continue
            for each in ast.walk(function.body):
                if not isinstance(each, ast.Attribute) or not is_self(each.value):
                    continue
                if first.get(each.attr, 0) > function.lineno:
                    yield f"line {function.lineno}: self.{each.attr}"


def texts_of_nothing(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Texts that stand behind no name which they could describe, as when it has moved away."""
    for node in nodes:
        body = getattr(node, "body", None)
        for before, each in itertools.pairwise(body if isinstance(body, list) else ()):
            value = each.value if isinstance(each, ast.Expr) else None
            is_text = isinstance(value, ast.Constant) and isinstance(value.value, str)
            if is_text and not isinstance(before, ast.Assign | ast.AnnAssign | ast.AugAssign):
                yield f"line {each.lineno}"


def test_no_function_is_longer_than_a_page() -> None:
    found = {each.name: list(long_functions(each.nodes)) for each in modules()}
    assert {path: names for path, names in found.items() if names} == {}


def test_a_class_has_few_attributes_or_a_reason() -> None:
    assert {name for each in modules() for name in large_classes(each.nodes)} == set(WITH_MORE)


def test_no_constructor_names_a_part_that_does_not_exist_yet() -> None:
    found = {each.name: list(names_of_later_parts(each.nodes)) for each in modules()}
    assert {path: names for path, names in found.items() if names} == {}


def test_each_text_stands_behind_the_name_that_it_describes() -> None:
    found = {each.name: list(texts_of_nothing(each.nodes)) for each in modules()}
    assert {path: lines for path, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("'of all'\nA = 1\n'of A'", []),
        ("class C:\n 'of C'\n a: int\n 'of a'", []),
        ("import os\n'of what?'", ["line 2"]),
        ("A = 1\n'of A'\n'of what?'", ["line 3"]),
    ],
)
def test_a_text_of_nothing_is_seen(source: str, found: list[str]) -> None:
    assert list(texts_of_nothing(ast.walk(ast.parse(source)))) == found


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("self.a = lambda: self.b\n  self.b = 1", ["line 3: self.b"]),
        ("self.b = 1\n  self.a = lambda: self.b", []),
        ("self.a = Part(1, lambda n: self.b.find(n))\n  self.b = self.a", ["line 3: self.b"]),
        ("self.a = lambda: self.method()", []),
    ],
)
def test_what_names_a_later_part_is_seen(source: str, found: list[str]) -> None:
    tree = ast.parse(f"class C:\n def __init__(self):\n  {source}")
    assert list(names_of_later_parts(ast.walk(tree))) == found


def test_what_is_long_or_large_is_seen() -> None:
    body = "\n".join(f"  self.a{number} = {number}" for number in range(MAX_LINES))
    tree = ast.parse(f"class Large:\n def __init__(self):\n{body}")
    assert list(long_functions(ast.walk(tree))) == [f"__init__: {MAX_LINES + 1} lines"]
    assert list(large_classes(ast.walk(tree))) == ["Large"]
    small = ast.parse("class Small:\n  a: int\n  b: ClassVar[int]\n  def f(self): self.c = self.d")
    assert [attributes(node) for node in ast.walk(small) if isinstance(node, ast.ClassDef)] == [{"a", "c"}]
