"""Whether a store takes messages, as health and metrics say it: the reason is there while puts are refused, and goes
away by itself."""

from __future__ import annotations

import errno
from contextlib import nullcontext
from pathlib import Path

import pytest

from mqspark.errors import DiskFull, NoResources, NotNow, StoreReadOnly, TooFewReplicas
from mqspark.store import MessageStore
from mqspark.store.disk.files import StrPath
from mqspark.store.disk.retention import DiskUsage
from tests.support.store_tools import FaultyFiles, crash, flush, opened, put, put_synced


class MeasuredFiles(FaultyFiles):
    """Files on a disk whose free space the test sets."""

    free_bytes = 1 << 40

    def disk(self, path: StrPath) -> tuple[int, DiskUsage]:
        return 1, DiskUsage(0, self.free_bytes)

    def fill(self) -> None:
        self.free_bytes = 4096
        for verb in ("allocate", "create", "set_length"):
            self.fail(verb, errno.ENOSPC)

    def heal(self) -> None:
        super().heal()
        self.free_bytes = 1 << 40


def filled(store: MessageStore, files: MeasuredFiles, topic: str = "T") -> DiskFull:
    """The disk gets full, and the store finds out."""
    files.fill()
    for _ in range(1000):
        try:
            put(store, topic, 0, b"x" * 500)
        except DiskFull as error:
            return error
        flush(store)
    raise AssertionError("nothing was refused")


@pytest.mark.parametrize("sync", [False, True])
@pytest.mark.parametrize("topic", ["T", "New"])
def test_a_disk_that_fills_up_is_told_until_the_next_put_fits(tmp_path: Path, sync: bool, topic: str) -> None:
    """``New`` lacks room for its queue, ``T`` for the log."""
    files = MeasuredFiles()
    store = opened(tmp_path, None, files, sync=sync, allocation_step_commit_log=4096)
    put_synced(store, "T", 0, b"x")
    assert store.condition.why_refusing is None
    error = filled(store, files, topic)
    assert store.condition.why_refusing == store.status.disk_full == str(error)
    files.heal()
    put(store, topic, 0, b"x" * 500)
    assert (store.condition.why_refusing, store.status.disk_full) == (None, None)
    crash(store)


def test_a_disk_with_room_again_is_noticed_although_nobody_sends(tmp_path: Path) -> None:
    files = MeasuredFiles()
    store = opened(tmp_path, None, files, allocation_step_commit_log=4096)
    put_synced(store, "T", 0, b"x")
    filled(store, files)
    store.maintenance()
    assert store.condition.why_refusing is not None, "there is no room yet"
    files.heal()
    store.maintenance()
    assert store.condition.why_refusing is None
    put(store, "T", 0, b"x" * 500)
    crash(store)


@pytest.mark.parametrize("reason", [TooFewReplicas(1, 2), None])
def test_a_refusal_of_the_owner(store: MessageStore, reason: TooFewReplicas | None) -> None:
    store.condition.refuse(reason)
    assert store.condition.why_refusing == (reason and str(reason))
    store.condition.refuse(None)
    assert store.condition.why_refusing is None


def test_a_shortage_is_told_until_it_is_over(tmp_path: Path, files: FaultyFiles) -> None:
    store = opened(tmp_path, None, files)
    put(store, "T", 0, b"x")
    files.fail("write", errno.ENOMEM)
    store.pipeline.commit()
    with pytest.raises(NoResources):
        store.condition.check_writable()
    assert "writing the CommitLog" in str(store.condition.why_refusing)
    files.heal()
    store.pipeline.commit()
    assert store.condition.why_refusing is None
    store.close()


def test_a_poisoned_store_says_why_for_good(tmp_path: Path, files: FaultyFiles) -> None:
    store = opened(tmp_path, None, files)
    put(store, "T", 0, b"x")
    files.fail("write", errno.EIO)
    store.pipeline.commit()
    files.heal()
    store.pipeline.commit()
    assert "writing the CommitLog failed" in str(store.condition.why_refusing)
    with pytest.raises(StoreReadOnly):
        store.close()


def test_the_reason_is_there_whenever_a_put_is_refused(store: MessageStore) -> None:
    """In every condition, alone and together."""
    condition = store.condition
    for read_only in (None, "broken"):
        for refusal in (None, TooFewReplicas(1, 2)):
            for no_space in (None, DiskFull("no space left")):
                for is_copy in (False, True):
                    condition.read_only, condition.is_copy = read_only, is_copy
                    condition.refuse(refusal)
                    condition.lack_space(no_space)
                    told = condition.why_refusing
                    refused = read_only is not None or is_copy or refusal is not None
                    with pytest.raises((StoreReadOnly, NotNow)) if refused else nullcontext():
                        condition.check_writable()
                    if not is_copy:
                        assert (told is not None) == (refused or no_space is not None)
                    if is_copy:
                        assert told == read_only, "a slave is healthy"
    condition.read_only = None
    crash(store)
