"""The blocking classes are the asyncio classes, called from a thread."""

from __future__ import annotations

import inspect

import pytest

import mqspark
from mqspark import aio
from tests.unit.client.blocking_classes import CLASSES, FOR_ALL, INNER, MADE, made

NAMES = [each.name for each in CLASSES if not each.name.startswith("_")]


def test_they_are_made_of_the_asyncio_classes() -> None:
    assert MADE.read_text(encoding="utf-8") == made(), "python -m tests.unit.client.blocking_classes"


@pytest.mark.parametrize("name", NAMES)
def test_each_has_every_method_with_its_parameters_and_a_text(name: str) -> None:
    kind, other = getattr(mqspark, name), getattr(aio, name)
    inner = FOR_ALL.union(*(INNER.get(each.__name__, ()) for each in other.__mro__))
    public = {each for each in dir(other) if not each.startswith("_") and each not in inner}
    assert public
    for each in {"__init__", "stop", *public}:
        mine, its = inspect.getattr_static(kind, each), inspect.getattr_static(other, each)
        assert type(mine) is type(its), each
        if inspect.isfunction(mine):
            assert inspect.signature(mine).parameters == inspect.signature(its).parameters, each
        if each != "stop":  # what all of them have of ``Facade`` is said there
            assert inspect.getdoc(mine), each
