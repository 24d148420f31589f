"""The broker of tests that need no settings of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.broker_kit import Bench


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)
