"""Writes and syncs that fail: nothing is acked afterwards, reads go on, the reason is kept, the next start
recovers."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from mqspark.errors import DiskFull, StoreReadOnly
from mqspark.store import MessageStore
from tests.support.clocks import ManualClock
from tests.support.store_tools import (
    FaultyFiles,
    checkpoint,
    crash,
    drain,
    flush,
    make_store,
    opened,
    put,
    put_synced,
)


def bodies(store: MessageStore) -> list[bytes]:
    return [message.body for message in drain(store, "T", 0)]


def assert_poisoned(store: MessageStore, files: FaultyFiles, reason: str, readable: list[bytes]) -> None:
    acked = store.pipeline.commit().acked
    assert store.condition.read_only is not None
    assert reason in store.condition.read_only
    files.heal()
    for _ in range(3):
        with pytest.raises(StoreReadOnly, match=reason):
            put(store, "T", 0, b"never")
        with pytest.raises(StoreReadOnly):
            put(store, "New", 0, b"never")
        progress = store.pipeline.commit()
        assert (progress.acked, progress.arrivals) == (acked, [])
        assert progress.failed == store.condition.read_only
        assert store.pipeline.begin_flush() is None, "a failed range is not synced a second time"
        assert store.maintenance() == []
    assert bodies(store) == readable
    with pytest.raises(StoreReadOnly):
        store.close()
    root = store.paths.root
    assert (root / "abort").exists()
    again = make_store(root)
    assert not again.open().clean
    assert bodies(again)[: len(readable)] == readable
    offset, _, _ = put(again, "T", 0, b"new")
    again.pipeline.commit()
    assert bodies(again)[offset] == b"new"
    again.close()


@pytest.mark.parametrize("sync", [False, True])
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_failed_write_of_the_log(tmp_path: Path, files: FaultyFiles, sync: bool, error: int) -> None:
    store = opened(tmp_path, None, files, sync=sync)
    put_synced(store, "T", 0, b"good")
    files.fail("write", error, for_ever=False)
    _, _, end = put(store, "T", 0, b"bad")
    flush(store)
    progress = store.pipeline.commit()
    assert progress.failed is not None
    assert progress.acked < end
    assert_poisoned(store, files, "writing the CommitLog failed", [b"good"])


def test_failed_sync_is_never_acked_nor_shown(tmp_path: Path, files: FaultyFiles) -> None:
    store = opened(tmp_path, None, files, sync=True)
    put_synced(store, "T", 0, b"good")
    _, _, end = put(store, "T", 0, b"not durable")
    store.pipeline.commit()
    files.fail("sync", errno.EIO, for_ever=False)
    job = store.pipeline.begin_flush()
    assert job is not None
    job.run()
    _, _, end_later = put(store, "T", 0, b"put while it was syncing")
    store.pipeline.commit()
    progress = store.pipeline.end_flush(job)
    assert progress.failed is not None
    assert progress.arrivals == []
    assert progress.acked < end < end_later
    assert_poisoned(store, files, "syncing the CommitLog failed", [b"good"])


def test_failed_sync_under_async_flush_stops_the_store_too(tmp_path: Path, files: FaultyFiles) -> None:
    store = opened(tmp_path, None, files)
    put(store, "T", 0, b"seen")
    store.pipeline.commit()
    files.fail("sync", errno.EIO)
    flush(store)
    assert_poisoned(store, files, "syncing the CommitLog failed", [b"seen"])


@pytest.mark.parametrize("verb", ["write", "sync", "set_length"])
def test_failed_checkpoint(tmp_path: Path, files: FaultyFiles, verb: str) -> None:
    store = opened(tmp_path, None, files)
    put_synced(store, "T", 0, b"seen")
    files.fail(verb, errno.EIO)
    checkpoint(store)
    assert_poisoned(store, files, "writing a checkpoint failed", [b"seen"])


def calls_of_a_save(root: Path) -> list[str]:
    """The calls of the second one, which has an old file to keep."""
    files = FaultyFiles()
    store = opened(root, None, files)
    file = store.config_file("topics.json")
    file.save(b"1")
    files.calls.clear()
    file.save(b"2")
    calls = list(files.calls)
    store.close()
    return calls


@pytest.mark.parametrize("sync", [False, True])
def test_a_failed_save_of_a_config_file_at_every_place(tmp_path: Path, sync: bool) -> None:
    calls = calls_of_a_save(tmp_path / "sound")
    assert {"create", "set_length", "write", "sync", "rename", "sync_directory"} <= set(calls)
    assert calls.count("rename") == 2
    for place, verb in enumerate(calls):
        files = FaultyFiles()
        store = opened(tmp_path / str(place), None, files, sync=sync)
        put_synced(store, "T", 0, b"good")
        file = store.config_file("topics.json")
        file.save(b"1")
        acked = store.pipeline.commit().acked
        files.fail(verb, errno.EIO, calls[:place].count(verb), for_ever=False)
        put(store, "T", 0, b"taken before it failed")
        with pytest.raises(OSError, match="Input/output error"):
            file.save(b"2")
        progress = store.pipeline.commit()
        assert progress.acked == acked
        assert progress.failed == "saving config/topics.json failed: [Errno 5] Input/output error"
        assert file.load() in (b"1", b"2")
        assert_poisoned(store, files, "saving config/topics.json failed", [b"good"])


@pytest.mark.parametrize("sync", [False, True])
def test_no_space_for_a_config_file_at_every_place(tmp_path: Path, files: FaultyFiles, sync: bool) -> None:
    """The store goes on, and so does the file when there is room again."""
    calls = calls_of_a_save(tmp_path / "sound")
    store = opened(tmp_path, None, files, sync=sync)
    file = store.config_file("topics.json")
    file.save(b"0")
    for place, verb in enumerate(calls):
        files.fail(verb, errno.ENOSPC, calls[:place].count(verb), for_ever=False)
        with pytest.raises(OSError, match="No space left"):
            file.save(b"%d" % place)
        files.heal()
        put_synced(store, "T", 0, b"%d" % place)
        file.save(b"%d" % place)
        assert (store.condition.read_only, file.load()) == (None, b"%d" % place)
    assert bodies(store) == [b"%d" % place for place in range(len(calls))]
    store.close()


def test_a_config_file_that_fails_while_a_group_is_synced(tmp_path: Path, files: FaultyFiles) -> None:
    store = opened(tmp_path, None, files, sync=True)
    _, _, end = put(store, "T", 0, b"under way")
    job = store.pipeline.begin_flush()
    assert job is not None
    files.fail("rename", errno.EIO, for_ever=False)
    with pytest.raises(OSError, match="Input/output error"):
        store.config_file("topics.json").save(b"1")
    job.run()
    put(store, "T", 0, b"too late")
    progress = store.pipeline.end_flush(job)
    assert progress.failed is not None
    assert progress.durable == end, "it is on the disk and may be read"
    assert_poisoned(store, files, "saving config/topics.json failed", [b"under way"])


def test_failed_dispatch(tmp_path: Path, files: FaultyFiles) -> None:
    store = opened(tmp_path, None, files)
    put(store, "T", 0, b"not shown")
    files.fail("map_write", errno.EIO)
    assert store.pipeline.commit().arrivals == []
    assert_poisoned(store, files, "writing a ConsumeQueue failed", [])


@pytest.mark.parametrize("verb", ["allocate", "set_length", "create"])
@pytest.mark.parametrize("sync", [False, True])
def test_a_full_disk_refuses_messages_and_breaks_none(tmp_path: Path, verb: str, sync: bool) -> None:
    files = FaultyFiles()
    store = opened(tmp_path, None, files, sync=sync, allocation_step_commit_log=4096)
    accepted: list[bytes] = []
    files.fail(verb, errno.ENOSPC)
    refused = 0
    texts: list[str] = []
    for number in range(200):
        body = b"%03d" % number * 30
        try:
            offset, _, _ = put(store, "T", 0, body)
            assert offset == len(accepted)
            accepted.append(body)
        except DiskFull as error:
            refused += 1
            texts.append(str(error))
            if refused % 2 == 0:
                files.heal()
        else:
            if number % 9 == 0:
                files.fail(verb, errno.ENOSPC)
        if number % 5 == 0:
            flush(store)
            assert bodies(store) == accepted
    assert refused > 3
    assert all("no space left" in text for text in texts)
    assert store.condition.read_only is None
    files.heal()
    flush(store)
    assert bodies(store) == accepted
    crash(store)
    again = make_store(tmp_path)
    report = again.open()
    assert (report.damaged, report.torn_bytes, report.lost_entries) == ([], 0, 0)
    assert bodies(again) == accepted


def test_a_roll_that_fails_poisons(tmp_path: Path, files: FaultyFiles) -> None:
    store = opened(tmp_path, None, files)
    put(store, "T", 0, b"x" * 3000)
    store.pipeline.commit()
    put(store, "T", 0, b"pending")
    files.fail("write", errno.EIO, for_ever=False)
    with pytest.raises(StoreReadOnly, match="extending the CommitLog failed"):
        put(store, "T", 0, b"y" * 3000)
    assert_poisoned(store, files, "extending the CommitLog failed", [b"x" * 3000])


def test_the_order_of_a_synced_message(tmp_path: Path, files: FaultyFiles) -> None:
    """Write, sync, and only then the ack; the directory of a new segment is synced with it."""
    store = opened(tmp_path, None, files, sync=True)
    flush(store)
    files.calls.clear()
    _, _, end = put(store, "T", 0, b"one")
    assert store.pipeline.commit().acked < end
    job = store.pipeline.begin_flush()
    assert job is not None
    assert [call for call in files.calls if call in ("write", "sync")] == [], "the job writes, too"
    assert store.pipeline.begin_flush() is None, "one at a time"
    job.run()
    assert [call for call in files.calls if call in ("write", "sync")] == [
        "write",
        "sync",
        "write",
    ]  # and the note
    assert store.offsets.max_offset("T", 0) == 0
    assert store.reads.record_at(end - 94 - 1) is None
    progress = store.pipeline.end_flush(job)
    assert (progress.acked, progress.arrivals) == (end, [("T", 0, 1)])
    # The segment was made when the store was opened: its name is synced with its first record.
    assert [call for call in files.calls if "sync" in call] == ["sync", "sync_directory"]
    files.calls.clear()
    while len(store.log.segments) == 1:
        put_synced(store, "T", 0, b"fill" * 100)
    assert "sync_directory" in files.calls
    store.close()


def test_what_a_kill_leaves_is_all_that_was_written(tmp_path: Path) -> None:
    store = opened(tmp_path, ManualClock(), sync=True)
    put(store, "T", 0, b"written, not synced")
    job = store.pipeline.begin_flush()
    assert job is not None
    job.run()
    put(store, "T", 0, b"not written")
    store.pipeline.commit()
    assert bodies(store) == []
    crash(store)
    store = opened(tmp_path, ManualClock(), sync=True)
    assert bodies(store) == [b"written, not synced"]


def test_closing_finishes_a_checkpoint_that_nobody_ran(tmp_path: Path, files: FaultyFiles) -> None:
    store = opened(tmp_path, None, files, message_index_enable=False)
    for queue_id in range(3):
        put(store, "T", queue_id, b"x")
    flush(store)
    assert len(store.maintenance()) == 1
    files.calls.clear()
    store.close()
    assert files.calls.count("sync") == 3 + 2 + 1, "three queue files, two checkpoint files, the ends"
    assert not (tmp_path / "abort").exists()


def test_closing_under_a_flush_is_not_clean(tmp_path: Path, store: MessageStore) -> None:
    put(store, "T", 0, b"x")
    store.pipeline.commit()
    assert store.pipeline.begin_flush() is not None
    with pytest.raises(StoreReadOnly, match="under way"):
        store.close()
    assert (tmp_path / "abort").exists()
    store = make_store(tmp_path)
    assert not store.open().clean
    assert bodies(store) == [b"x"]


@pytest.mark.parametrize("why", ["roll", "too much"])
def test_a_kill_leaves_no_hole_before_what_a_turn_had_to_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """The flush thread has not begun when a segment ends, or when too much waits for it."""
    if why == "too much":
        monkeypatch.setattr("mqspark.store.messages.commit.MAX_UNWRITTEN_BYTES", 1000)
    store = opened(tmp_path, sync=True)
    put_synced(store, "T", 0, b"acknowledged")
    put(store, "T", 0, b"in flight" * 20)
    job = store.pipeline.begin_flush()
    assert job is not None
    number = 0
    while len(store.log.segments) == 1 if why == "roll" else store.log.written == job.end:
        put(store, "T", 0, b"%d" % number * 300)
        store.pipeline.commit()
        number += 1
    crash(store)
    again = make_store(tmp_path, sync=True)
    report = again.open()
    assert (report.damaged, report.lost_entries) == ([], 0)
    assert bodies(again)[:2] == [b"acknowledged", b"in flight" * 20]
    assert [m.queue_offset for m in drain(again, "T", 0)] == list(range(again.offsets.max_offset("T", 0)))
