"""How many examples a property test draws: few in `make test`, all in `make test-all`."""

from __future__ import annotations

from hypothesis import settings

ALL = 100
"""Hypothesis's default number. The profiles in tests/conftest.py are fractions of it."""


def draws(count: int) -> int:
    """``count`` examples, scaled by the profile."""
    return max(count * settings.default.max_examples // ALL, 1)
