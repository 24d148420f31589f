"""A master and a slave of tests that need no settings of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.broker.replication.test_follower import make_master, make_slave
from tests.unit.broker_kit import Bench


@pytest.fixture
def master(tmp_path: Path) -> Bench:
    return make_master(tmp_path / "m")


@pytest.fixture
def slave(tmp_path: Path) -> Bench:
    return make_slave(tmp_path / "s")
