"""How much a test tries: few examples and cases in `make test`, all of them in `make test-all`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from _pytest.mark import ParameterSet
from hypothesis import settings

ALL = 100
"""Hypothesis's default number. The profiles in tests/conftest.py are fractions of it."""


def draws(count: int) -> int:
    """``count`` examples, scaled by the profile."""
    return max(count * settings.default.max_examples // ALL, 1)


def some(cases: Iterable[Any], most: int, *, several: bool = False) -> list[Any]:
    """Parameters of a test or fixture: ``most`` of them, spread evenly, as they are, and the others slow. ``several``:
    each is a tuple of values."""
    listed = list(cases)
    kept = {place * len(listed) // most for place in range(most)}
    return [case if place in kept else _slow(case, several) for place, case in enumerate(listed)]


def _slow(case: Any, several: bool) -> Any:
    mark = pytest.mark.slow("more cases; a sample of them is the fast twin")
    if isinstance(case, ParameterSet):
        return pytest.param(*case.values, marks=(*case.marks, mark), id=case.id)
    return pytest.param(*(case if several else [case]), marks=mark)
