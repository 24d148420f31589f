"""The connection of tests that need no limits of their own."""

from __future__ import annotations

import pytest

from tests.unit.http2_kit import Bench


@pytest.fixture
def bench() -> Bench:
    return Bench()
