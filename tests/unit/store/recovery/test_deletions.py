"""Deleted topics stay deleted, whatever happens, and a topic that is made again has a life of its own."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest

from mqspark.errors import DiskFull, StoreCorrupt, StoreReadOnly, TableFull
from mqspark.store import ConfigFile, MessageStore, OsFiles
from mqspark.store.compaction.compactedqueues import Current, GenerationWriter, publish
from mqspark.store.disk.diskjobs import run_here
from mqspark.store.recovery import deletions as deletions_module
from mqspark.store.recovery.deletions import STEPS_PER_ROUND, Deletions, load_deletions
from mqspark.store.tools.fsck import fsck
from mqspark.store.tools.offlinestore import OfflineStore
from mqspark.store.tools.remake import remake
from mqspark.store.topicdeletion import REMOVED_AT_ONCE
from tests.support.clocks import ManualClock
from tests.support.store_tools import (
    FaultyFiles,
    RoomyFiles,
    checkpoint,
    complete,
    crash,
    drain,
    finish_deletions,
    flush,
    make_store,
    opened,
    pending,
    put,
    put_synced,
)


def bodies(store: MessageStore, topic: str = "T", queue_id: int = 0) -> list[bytes]:
    return [message.body for message in drain(store, topic, queue_id)]


def fill(store: MessageStore, count: int, topic: str = "T", what: bytes = b"old") -> list[bytes]:
    for _ in range(count):
        put(store, topic, 0, what)
    flush(store)
    return [what] * count


def listed(root: Path) -> dict[str, int]:
    return load_deletions(ConfigFile(root / "mqspark.deletions"))


@pytest.mark.parametrize("sync", [False, True])
@pytest.mark.parametrize("noted", [False, True])
def test_a_kill_leaves_a_topic_whole_or_nothing_of_it(tmp_path: Path, sync: bool, noted: bool) -> None:
    """Messages were put before and behind the last checkpoint."""
    store = opened(tmp_path, sync=sync)
    fill(store, 7)
    checkpoint(store)
    fill(store, 1)
    store.delete_topic("T")
    assert store.offsets.queues() == {}
    assert store.offsets.max_offset("T", 0) == 0
    if noted:
        finish_deletions(store)
        assert not (tmp_path / "consumequeue/T").exists()
    fill(store, 3, "Another")
    crash(store)
    store = make_store(tmp_path, sync=sync)
    report = store.open()
    assert (report.lost_entries, report.ignored_records) == (0, 0)
    assert bodies(store) == ([] if noted else [b"old"] * 8)
    assert store.offsets.max_offset("T", 0) == (0 if noted else 8)
    assert len(bodies(store, "Another")) == 3


def test_no_checkpoint_comes_before_a_deletion_is_on_disk(tmp_path: Path, store: MessageStore) -> None:
    """It would speak of entries that were cut from the queue, and a kill would then bring back the others."""
    fill(store, 3)
    store.delete_topic("T")
    mark = tmp_path / "mqspark.checkpoint"
    complete(store.maintenance())
    assert not mark.exists()
    checkpoint(store)
    assert mark.exists()


def test_closing_carries_deletions_out(tmp_path: Path, store: MessageStore) -> None:
    fill(store, 3)
    store.delete_topic("T")
    store.close()
    assert not (tmp_path / "consumequeue/T").exists()
    store = opened(tmp_path)
    assert store.offsets.queues() == {}


@pytest.mark.parametrize("settings", [{}, {"enable_consume_queue_ext": True}])
def test_what_a_kill_left_of_the_files_goes_at_the_start(tmp_path: Path, settings: dict[str, bool]) -> None:
    store = opened(tmp_path, **settings)
    store.appender.use_batch_queues("B")
    fill(store, 35)
    fill(store, 12, "B")
    put_synced(store, "T", 1, b"old")
    checkpoint(store)
    for topic in ("T", "B"):
        store.delete_topic(topic)
    store.deletions.job().run()
    crash(store)
    assert len(list((tmp_path / "consumequeue/T/0").iterdir())) > 1
    store = opened(tmp_path, **settings)
    assert store.offsets.queues() == {}
    for name in ("consumequeue/T", "consumequeue_ext/T", "batchconsumequeue/B"):
        assert not (tmp_path / name).exists()
    fill(store, 2, "B", b"simple now")
    assert bodies(store, "B") == [b"simple now"] * 2


@pytest.mark.parametrize("how", ["kill", "queues lost", "rebuilt"])
@pytest.mark.parametrize("before", [1, 3, 40])
def test_a_topic_made_again_begins_at_0(tmp_path: Path, store: MessageStore, before: int, how: str) -> None:
    """Also where the log has but one message of the new life, or records of both side by side."""
    fill(store, before)
    store.delete_topic("T")
    assert put(store, "T", 0, b"new")[0] == 0
    assert not store.deletions.behind, "what is there of the old life goes first"
    flush(store)
    crash(store)
    if how == "queues lost":
        shutil.rmtree(tmp_path / "consumequeue")
    elif how == "rebuilt":
        assert remake(store.config, ManualClock()).lost_entries == 0
    report = fsck(OfflineStore(store.config))
    assert how == "queues lost" or not report.errors + report.lost, report.findings
    store = make_store(tmp_path)
    found = store.open()
    assert (found.lost_entries, found.ignored_records) == (0, 0)
    assert bodies(store) == [b"new"]
    assert put(store, "T", 0, b"next")[0] == 1


@pytest.mark.parametrize("deleted", ["T", "%LMQ%a"])
@pytest.mark.parametrize("count", [3, 100])
def test_messages_that_are_in_light_queues_too(tmp_path: Path, deleted: str, count: int) -> None:
    """Each of their queues is deleted by itself."""
    settings = {"enable_lmq": True, "enable_multi_dispatch": True}
    store = opened(tmp_path, **settings)
    names = ["%LMQ%a", "%LMQ%b"]
    properties = b"INNER_MULTI_DISPATCH\x01%LMQ%a,%LMQ%b\x02"
    for _ in range(count):
        store.appender.put_dispatched(
            names,
            pending("T", 0, b"x", properties),
        )
    flush(store)
    store.delete_topic(deleted)
    finish_deletions(store)
    crash(store)
    shutil.rmtree(tmp_path / "consumequeue")
    store = opened(tmp_path, **settings)
    for name in ("T", *names):
        assert store.offsets.max_offset(name, 0) == (0 if name == deleted else count), name


def test_a_rebuild_leaves_deleted_topics_out(tmp_path: Path, store: MessageStore) -> None:
    fill(store, 5)
    fill(store, 2, "Stays")
    store.delete_topic("T")
    store.close()
    assert not fsck(OfflineStore(store.config)).counts
    assert remake(store.config, ManualClock()).queues == 1
    store = opened(tmp_path)
    assert store.offsets.queues() == {"Stays": [0]}


def test_files_whose_removal_a_power_cut_took_back(tmp_path: Path, store: MessageStore) -> None:
    """Old ones and new ones side by side in the queue's directory."""
    fill(store, 35)
    directory = tmp_path / "consumequeue/T/0"
    shutil.copytree(directory, tmp_path / "copy")
    store.delete_topic("T")
    new = fill(store, 12, "T", b"new")
    crash(store)
    for path in sorted((tmp_path / "copy").iterdir())[2:]:
        shutil.copy(path, directory / path.name)
    store = make_store(tmp_path)
    report = store.open()
    assert (report.lost_entries, report.ignored_records) == (0, 0)
    assert bodies(store) == new


def test_a_queue_that_rocketmq_has_taken_up_again(tmp_path: Path, store: MessageStore) -> None:
    """It does not read the list: after a kill of ours it goes on with the files that were left. What it has put behind
    is there."""
    fill(store, 12)
    checkpoint(store)
    store.delete_topic("T")
    store.deletions.job().run()
    crash(store)
    (tmp_path / "mqspark.deletions").rename(tmp_path / "hidden")
    store = opened(tmp_path)
    assert put(store, "T", 0, b"theirs")[0] == 12
    flush(store)
    store.close()
    (tmp_path / "hidden").rename(tmp_path / "mqspark.deletions")
    store = opened(tmp_path)
    assert store.offsets.max_offset("T", 0) == 13
    assert bodies(store)[-1] == b"theirs"


def test_a_power_cut_that_takes_the_end_of_the_log(tmp_path: Path, store: MessageStore) -> None:
    """What is put where the lost records were is no part of the deleted topic."""
    fill(store, 3)
    segment = tmp_path / "commitlog" / ("0" * 20)
    end, content = store.log.position, segment.read_bytes()
    fill(store, 5)
    store.delete_topic("T")
    finish_deletions(store)
    crash(store)
    segment.write_bytes(content)
    (tmp_path / "abort").write_text("1")
    store = opened(tmp_path)
    assert store.log.position == end
    assert listed(tmp_path) == {"T": end}
    assert put(store, "T", 0, b"new")[0] == 0
    flush(store)
    for _ in range(2):
        crash(store)
        shutil.rmtree(tmp_path / "consumequeue")
        store = opened(tmp_path)
        assert bodies(store) == [b"new"]


def test_the_list_ends_with_the_records(tmp_path: Path, clock: ManualClock) -> None:
    files = RoomyFiles(clock)
    store = opened(tmp_path, clock, files)
    fill(store, 5)
    store.delete_topic("T")
    fill(store, 200, "Other")
    checkpoint(store)
    assert list(listed(tmp_path)) == ["T"]
    files.expired = {path.name for path in (tmp_path / "commitlog").iterdir()}
    store.clean_expired()
    for _ in range(3):
        clock.advance(10_000)
        checkpoint(store)
    assert store.log.min_offset > 0
    for _ in store.deletions.forget_before(store.log.min_offset):
        continue
    store.delete_topic("Other")
    finish_deletions(store)
    assert list(listed(tmp_path)) == ["Other"]
    store.close()
    store = opened(tmp_path, clock, files)
    assert list(store.deletions.positions) == ["Other"]


def test_a_full_disk_keeps_a_topic_from_being_made_again(tmp_path: Path, files: FaultyFiles) -> None:
    store = opened(tmp_path, None, files)
    fill(store, 3)
    store.delete_topic("T")
    files.fail("write", errno.ENOSPC)
    with pytest.raises(DiskFull, match="deleted topics"):
        put(store, "T", 0, b"new")
    assert store.deletions.behind
    files.heal()
    assert put(store, "T", 0, b"new")[0] == 0
    store.close()


def test_a_topic_is_deleted_to_get_room(tmp_path: Path, files: FaultyFiles) -> None:
    """What was kept for the list goes when nothing else is left."""
    store = opened(tmp_path, None, files)
    room = tmp_path / "mqspark.deletions.room"
    assert room.stat().st_blocks * 512 == 4096
    fill(store, 3)
    store.delete_topic("T")
    there: list[bool] = []

    def full() -> None:
        there.append(room.exists())
        if there[-1]:
            raise OSError(errno.ENOSPC, "full")

    files.faults["write"] = full
    finish_deletions(store)
    assert there[:2] == [True, False]
    files.heal()
    assert listed(tmp_path) == {"T": store.log.position}
    assert not (tmp_path / "consumequeue/T").exists()
    checkpoint(store)
    assert room.stat().st_blocks * 512 == 4096
    store.close()


@pytest.mark.parametrize("again", [False, True])
def test_a_failing_disk(tmp_path: Path, files: FaultyFiles, again: bool) -> None:
    store = opened(tmp_path, None, files)
    fill(store, 3)
    store.delete_topic("T")
    files.fail("rename", errno.EIO)
    if again:
        with pytest.raises(StoreReadOnly, match="T failed"):
            put(store, "T", 0, b"new")
    with pytest.raises(StoreReadOnly):
        store.close()
    files.heal()
    store = opened(tmp_path)
    assert bodies(store) == [b"old"] * 3, "nobody was told"


def test_files_that_cannot_be_removed_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next round tries again; until then the topic is not made."""
    store = opened(tmp_path)
    fill(store, 25)
    store.delete_topic("T")
    remove, calls = store.files.remove, list[str]()

    def fail_once(path: Path | str) -> None:
        calls.append(str(path))
        if len(calls) == 2:
            raise OSError(errno.EACCES, "no")
        remove(path)

    monkeypatch.setattr(store.files, "remove", fail_once)
    with pytest.raises(OSError, match="no"):
        finish_deletions(store)
    assert store.deletions.behind
    finish_deletions(store)
    assert not store.deletions.behind
    assert not (tmp_path / "consumequeue/T").exists()


def test_an_older_list_never_follows_a_newer_one(tmp_path: Path) -> None:
    """A job may have waited for its thread while a topic that was made again had its own."""
    removed: list[str] = []
    file = ConfigFile(tmp_path / "list")
    deletions = Deletions(file, OsFiles(), removed.append)
    deletions.add("A", 100)
    waiting = deletions.job()
    deletions.add("B", 200)
    deletions.finish("B")
    complete([waiting])
    assert load_deletions(file) == {"A": 100, "B": 200}
    assert removed == ["B", "A"]
    assert not deletions.behind


def deleted_topics(directory: Path, count: int, monkeypatch: pytest.MonkeyPatch) -> Deletions:
    """Looked at by tens."""
    monkeypatch.setattr(deletions_module, "LOOKED_AT_ONCE", 10)
    deletions = Deletions(ConfigFile(directory / "list"), OsFiles(), lambda topic: None)
    for number in range(count):
        deletions.add(f"T{number}", 100 + number)
    return deletions


def test_many_are_forgotten_slice_by_slice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deletions = deleted_topics(tmp_path, 45, monkeypatch)
    assert sum(1 for _ in deletions.forget_before(90)) == 5
    for _ in deletions.forget_before(120):
        continue
    assert deletions.ledger.entries == 45, "their files are still there"
    run_here(deletions.job())
    forgetting = deletions.forget_before(100 + 29)
    left = []
    for _ in forgetting:
        left.append(len(deletions.positions))
        if len(left) == 1:
            deletions.add("T25", 5_000)
    assert left == [35, 25, 16, 16, 16], "what was deleted once more stays"
    assert deletions.ledger.entries == 16
    assert list(deletions.forget_before(100)) == [], "the log begins at no earlier place"


def test_a_long_list_is_copied_slice_by_slice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deletions = deleted_topics(tmp_path, 45, monkeypatch)
    job = deletions.save_job()
    assert sum(1 for _ in job.prepare()) == 5
    run_here(job)
    assert not deletions.unsaved
    deletions.add("U", 7)
    job = deletions.save_job()
    next(job.prepare())
    deletions.add("V", 8)
    run_here(job)
    assert deletions.unsaved
    run_here(deletions.save_job())
    expected = {f"T{number}": 100 + number for number in range(45)} | {"U": 7, "V": 8}
    assert load_deletions(ConfigFile(tmp_path / "list")) == expected


def test_room_for_the_next_list_is_made_by_a_job(tmp_path: Path) -> None:
    deletions = Deletions(ConfigFile(tmp_path / "list"), OsFiles(), lambda topic: None)
    room = tmp_path / "list.room"
    job = deletions.room_job()
    assert job is not None
    assert not room.exists()
    run_here(job)
    assert room.stat().st_size == 4_096
    assert deletions.room_job() is None
    deletions.add("T", 1)
    assert deletions.room_job() is None, "what is not saved yet needs no copy"
    run_here(deletions.save_job())
    job = deletions.room_job()
    assert job is not None
    run_here(job)
    assert room.read_bytes().rstrip(b"\0") == (tmp_path / "list").read_bytes()


def test_a_full_list_has_room_again_when_the_log_begins_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deletions_module, "MAX_DELETIONS_BYTES", 2_000)
    deletions = deleted_topics(tmp_path, 10, monkeypatch)
    run_here(deletions.job())
    with pytest.raises(TableFull):
        deletions.admit("another")
    for _ in deletions.forget_before(200):
        continue
    deletions.admit("another")


def test_a_list_that_is_damaged(tmp_path: Path) -> None:
    file = ConfigFile(tmp_path / "list")
    deletions = Deletions(file, OsFiles(), lambda topic: None)
    assert load_deletions(file) == {}
    deletions.add("%RETRY%group|1", 4711)
    deletions.finish("%RETRY%group|1")
    assert file.path.read_bytes().splitlines()[1] == b"00000000000000004711 %RETRY%group|1"
    deletions.add("B", 5000)
    deletions.finish("B")
    content = file.path.read_bytes()
    for at in range(len(content)):
        file.path.write_bytes(content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :])
        assert load_deletions(file) == {"%RETRY%group|1": 4711}, at
    (tmp_path / "list.bak").write_bytes(b"")
    with pytest.raises(StoreCorrupt, match="deleted topics"):
        load_deletions(file)


@pytest.mark.parametrize("is_old", [False, True])
def test_what_a_kill_left_of_compacted_queues(tmp_path: Path, store: MessageStore, is_old: bool) -> None:
    if not is_old:
        fill(store, 1)
        store.delete_topic("T")
    _, position, end = put(store, "T", 0, b"kept")
    flush(store)
    directory = tmp_path / "mqspark.compacted/T/0"
    writer = GenerationWriter(directory, "1")
    writer.append(bytes(store.log.slice(position, end - position) or b""), 0, 0)
    writer.finish()
    for path in (writer.log_path, writer.queue_path):
        path.rename(path.with_suffix(""))
    publish(directory, Current(1, 1, 1, end - position))
    if is_old:
        store.delete_topic("T")
        store.deletions.job().run()
    crash(store)
    store = opened(tmp_path)
    assert directory.exists() is not is_old
    assert bodies(store) == ([] if is_old else [b"kept"])


def test_a_topic_of_many_queues_is_removed_in_steps(tmp_path: Path, store: MessageStore) -> None:
    """Between two of them others are served, who may make the topic again."""
    queues = 3 * REMOVED_AT_ONCE
    for topic in ("T", "U"):
        for queue_id in range(queues):
            put(store, topic, queue_id, b"x")
    store.pipeline.commit()
    store.delete_topic("T")
    store.delete_topic("U")
    store.deletions.save_job().run()
    steps = store.deletions.removal_job().steps()
    left = []
    for _ in range(2):
        next(steps)
        left.append(len(list((tmp_path / "consumequeue/T").iterdir())))
    assert left == [queues - REMOVED_AT_ONCE, queues - 2 * REMOVED_AT_ONCE]
    put(store, "T", 0, b"x")
    store.pipeline.commit()
    assert store.deletions.behind, "U waits"
    assert len(list((tmp_path / "consumequeue/U").iterdir())) == queues
    for _ in steps:
        continue
    assert not store.deletions.behind
    assert not (tmp_path / "consumequeue/U").exists()
    assert [path.name for path in (tmp_path / "consumequeue/T").iterdir()] == ["0"]
    assert store.offsets.max_offset("T", 0) == 1


def test_one_round_of_jobs_removes_a_part(tmp_path: Path, store: MessageStore) -> None:
    """Saves of other changes come between two rounds. A kill in between leaves the rest to the next start."""
    queues = (STEPS_PER_ROUND + 1) * REMOVED_AT_ONCE
    for queue_id in range(queues):
        put(store, "T", queue_id, b"x")
    store.pipeline.commit()
    store.delete_topic("T")
    assert store.deletions.unsaved
    run_here(store.deletions.save_job())
    assert (store.deletions.unsaved, store.deletions.behind) == (False, True)
    run_here(store.deletions.removal_job())
    assert store.deletions.behind
    assert len(list((tmp_path / "consumequeue/T").iterdir())) == REMOVED_AT_ONCE
    crash(store)
    store = opened(tmp_path)
    assert store.offsets.queues() == {}
    assert not (tmp_path / "consumequeue/T").exists()
    assert put(store, "T", 0, b"new")[0] == 0
