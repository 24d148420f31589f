"""A store before its damage."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.security.store.damaged_store import make_store


@pytest.fixture(scope="module")
def sound_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sound") / "store"
    make_store(root)
    return root
