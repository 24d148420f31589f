"""The store of tests that need no settings of their own, and a disk that can fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from mqspark.store import MessageStore
from tests.support.clocks import ManualClock
from tests.support.store_tools import FaultyFiles, opened


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> MessageStore:
    return opened(tmp_path, clock)


@pytest.fixture
def files() -> FaultyFiles:
    return FaultyFiles()
