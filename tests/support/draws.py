"""How many examples a property is tried with: few in `make test`, all in `make test-all`."""

from __future__ import annotations

from hypothesis import settings

__all__ = ["draws"]

ALL = 100
"""hypothesis's own number, to which the profiles in tests/conftest.py are proportions."""


def draws(count: int) -> int:
    """As many of ``count`` examples as the profile has of hypothesis's hundred."""
    return max(count * settings.default.max_examples // ALL, 1)
