"""The clock of tests that move it themselves."""

from __future__ import annotations

import pytest

from tests.support.clocks import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()
