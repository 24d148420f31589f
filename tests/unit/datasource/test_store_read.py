"""``option("store", ...)``: planned from the names and lengths of segments."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mqspark.errors import StoreCorrupt
from pyspark_pymq.options import StoreOptions
from pyspark_pymq.reading.storeread import StoreBatchReader


def starts(store: Path, **options: str) -> list[int]:
    parsed = StoreOptions.parse({"store": str(store), **options}, streaming=False)
    return [each.segment.low for each in StoreBatchReader(parsed, ("value",)).partitions()]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    directory = tmp_path / "commitlog"
    directory.mkdir()
    for start in range(0, 500, 100):
        (directory / f"{start:020d}").write_bytes(bytes(100))
    return directory


def test_a_log_without_a_segment_in_the_middle_is_damaged(log: Path) -> None:
    assert starts(log.parent) == [0, 100, 200, 300, 400]
    (log / f"{200:020d}").unlink()
    with pytest.raises(StoreCorrupt, match="nothing from 200 to 300; failOnDataLoss=false"):
        starts(log.parent)
    assert starts(log.parent, failOnDataLoss="false") == [0, 100, 300, 400]
    assert starts(log.parent, startingPosition="300") == [300, 400]
    assert starts(log.parent, endingPosition="200") == [0, 100]


def test_a_segment_in_the_middle_that_was_cut_is_damage(log: Path) -> None:
    os.truncate(log / f"{400:020d}", 60)
    assert starts(log.parent) == [0, 100, 200, 300, 400]
    os.truncate(log / f"{100:020d}", 60)
    with pytest.raises(StoreCorrupt, match="nothing from 160 to 200"):
        starts(log.parent)


def test_a_log_whose_begin_has_expired_is_whole(log: Path) -> None:
    (log / f"{0:020d}").unlink()
    assert starts(log.parent) == [100, 200, 300, 400]
