"""The index of a whole log: the same bytes from this process, from one of its own, and from a broker."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from mqspark.store.tools.indexbuild import BuiltIndex, IndexBuild, IndexTask
from tests.support.store_tools import QuickFiles, make_store, put

SHAPE = (1000, 200)


def store_with(root: Path, count: int) -> int:
    """Where its log ends."""
    store = make_store(root, None, QuickFiles(), max_hash_slot_num=SHAPE[0], max_index_num=SHAPE[1])
    store.open()
    for number in range(count):
        put(store, "Orders", number % 3, b"x" * (number % 90), b"KEYS\x01k%d both\x02" % number)
        store.pipeline.commit()
    end = store.log.position
    store.close()
    return end


def built(root: Path, target: Path, end: int, *, in_process: bool, tail_bytes: int = 64 << 20) -> BuiltIndex:
    target.mkdir()
    task = IndexTask(
        (str(root / "commitlog"),), 4096, str(target), *SHAPE, now_ms=1_700_000_000_000, tail_bytes=tail_bytes
    )
    build = IndexBuild(task, in_process=in_process)
    try:
        return build.finish(end, lambda position: None)
    finally:
        build.abandon()


def index_files(root: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted((root / "index").iterdir())]


@pytest.mark.parametrize("tail_bytes", [0, 1 << 30])
def test_a_process_of_its_own_builds_what_a_broker_does(tmp_path: Path, tail_bytes: int) -> None:
    end = store_with(tmp_path / "store", 300)
    made = built(tmp_path / "store", tmp_path / "there", end, in_process=True, tail_bytes=tail_bytes)
    assert made == built(tmp_path / "store", tmp_path / "here", end, in_process=False)
    assert made.entries == 600
    assert made.files == 4
    assert (
        index_files(tmp_path / "there") == index_files(tmp_path / "here") == index_files(tmp_path / "store")
    )


def test_what_is_indexed_behind_the_end_of_the_log_is_taken_back(tmp_path: Path) -> None:
    """The process is ahead of the recovery, and then part of the log's tail is no part of it."""
    store_with(tmp_path / "store", 300)
    shorter = store_with(tmp_path / "shorter", 200)
    made = built(tmp_path / "store", tmp_path / "there", shorter, in_process=True, tail_bytes=0)
    assert made.entries == 400
    for data, expected in zip(
        index_files(tmp_path / "there"), index_files(tmp_path / "shorter"), strict=True
    ):
        # The end timestamp may be up to a second late, and entries behind the last one are not cleared.
        (next_number,) = struct.unpack_from(">i", expected, 36)
        used = 40 + SHAPE[0] * 4 + next_number * 20
        assert (data[:8], data[16:used]) == (expected[:8], expected[16:used])


def test_a_process_that_ends_or_finds_no_log_is_an_error(tmp_path: Path) -> None:
    end = store_with(tmp_path / "store", 10)
    task = IndexTask((str(tmp_path / "store" / "commitlog"),), 4096, str(tmp_path / "none"), *SHAPE, now_ms=1)
    build = IndexBuild(task, in_process=True)
    assert build.child is not None
    os.kill(build.child.pid, 9)
    build.child.wait()
    with pytest.raises(OSError, match=r"ended before|Broken pipe"):
        build.finish(end, lambda position: None)
    build.abandon()
    (tmp_path / "a file").write_bytes(b"")
    task = IndexTask(
        (str(tmp_path / "store" / "commitlog"),), 4096, str(tmp_path / "a file"), *SHAPE, now_ms=1
    )
    build = IndexBuild(task, in_process=True)
    with pytest.raises(OSError, match="a file"):
        build.finish(end, lambda position: None)
    build.abandon()
