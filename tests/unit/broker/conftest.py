"""The broker of tests that need no settings of their own, and a client of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.broker_kit import Bench, Peer


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture
def peer(bench: Bench) -> Peer:
    return bench.peer()
