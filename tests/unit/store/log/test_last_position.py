"""Positions of a log end at 2^63: a store that gets there refuses messages with a sentence, and a start refuses files
that claim to be there."""

from __future__ import annotations

from pathlib import Path

import pytest

from mqspark.errors import StoreCorrupt, StoreReadOnly
from mqspark.store.disk.layout import file_name
from mqspark.store.tools.fsck import fsck
from mqspark.store.tools.offlinestore import OfflineStore
from tests.support.store_tools import crash, drain, make_store, opened, put, put_synced

SEGMENT_BYTES = 4096
END = 1 << 63


def renamed(root: Path, name: str) -> None:
    """A store whose only segment, an empty one, has this name."""
    (root / "commitlog").mkdir(parents=True)
    (root / "commitlog" / name).write_bytes(bytes(SEGMENT_BYTES))


@pytest.mark.parametrize("sync", [False, True])
def test_a_log_that_gets_there_takes_no_more_messages(tmp_path: Path, sync: bool) -> None:
    renamed(tmp_path, file_name(END - 2 * SEGMENT_BYTES))
    store = opened(tmp_path, sync=sync)
    taken = 0
    while store.log.position + 400 < END - SEGMENT_BYTES:
        put_synced(store, "T", 0, b"x" * 300)
        taken += 1
    assert taken > 5
    with pytest.raises(StoreReadOnly, match=r"2\^63"):
        put(store, "T", 0, b"x" * 400)
    assert "2^63" in str(store.condition.why_refusing)
    assert len(drain(store, "T", 0)) == taken
    crash(store)
    store = opened(tmp_path, sync=sync)
    assert len(drain(store, "T", 0)) == taken
    crash(store)


@pytest.mark.parametrize("is_alone", [True, False])
def test_a_segment_behind_the_last_position_is_refused(tmp_path: Path, is_alone: bool) -> None:
    name = file_name(END - SEGMENT_BYTES)
    if is_alone:
        renamed(tmp_path, name)
    else:
        store = opened(tmp_path)
        put_synced(store, "T", 0, b"x")
        store.close()
        (tmp_path / "commitlog" / name).write_bytes(bytes(SEGMENT_BYTES))
    store = make_store(tmp_path)
    with pytest.raises(StoreCorrupt, match=r"reaches position 2\^63"):
        store.open()
    report = fsck(OfflineStore(store.config))
    assert report.counts["log.misplaced-file"] == 1
    assert any("2^63" in finding.text for finding in report.findings)
