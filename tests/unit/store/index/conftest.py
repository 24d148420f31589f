"""The directories of RocketMQ that tests of the index read."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from tests.unit.store.index.index_kit import GOLDEN


@pytest.fixture(scope="session")
def golden_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("golden")
    for name in ("clean", "kill9", "variant"):
        with tarfile.open(GOLDEN / f"store/{name}.tar.gz") as archive:
            archive.extractall(root / name, filter="data")
    return root
