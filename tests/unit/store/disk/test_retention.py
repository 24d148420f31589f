"""Retention: what a store does with the decision."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from mqspark.errors import DiskFull
from mqspark.record.record import decode_records
from mqspark.store import GetResult, GetStatus, MessageStore, OsFiles, storedata
from mqspark.store.disk.diskjobs import UnmapJob
from mqspark.store.disk.layout import file_name
from mqspark.store.disk.retention import DiskUsage
from mqspark.store.maintenance import IDLE_MAP_MS
from mqspark.store.queue import mapped
from mqspark.store.upkeep import cleaning
from tests.support.clocks import ManualClock
from tests.support.store_tools import (
    RoomyFiles,
    checkpoint,
    complete,
    crash,
    drain,
    flush,
    leave,
    make_store,
    opened,
    pending,
    put,
    put_synced,
    query,
)

HOUR_MS = 3_600_000
MARKS = {
    "disk_max_used_space_ratio": 75,
    "disk_space_clean_forcibly_ratio": 85,
    "disk_space_warning_level_ratio": 90,
}
QUEUES = [("T", 0), ("T", 1), ("Old", 0)]


def run(store: MessageStore, files: RoomyFiles, rounds: int = 3) -> None:
    """Retention's next run, with the checkpoint before it and the rounds after it."""
    flush(store)
    checkpoint(store)
    files.clock.advance(10_000)
    for _ in range(rounds):
        checkpoint(store)


def filled(
    root: Path, kind: type[RoomyFiles] = RoomyFiles, **settings: object
) -> tuple[MessageStore, dict[tuple[str, int], list[bytes]], Any]:
    """About fifteen segments of nine messages; nothing in queue Old after the first. The disk is a ``kind``."""
    files = kind(ManualClock())
    store = opened(root, files.clock, files, **{**MARKS, "delete_when": "", **settings})
    written: dict[tuple[str, int], list[bytes]] = {queue: [] for queue in QUEUES}
    for number in range(130):
        queue = QUEUES[number % 2] if number > 6 else QUEUES[2]
        body = b"%d:" % number + b"x" * 300
        put(store, *queue, body, b"KEYS\x01k%d\x02" % number)
        written[queue].append(body)
        flush(store)
    return store, written, files


def names(store: MessageStore) -> list[str]:
    return [segment.path.name for segment in store.log.segments]


def expire(store: MessageStore, files: RoomyFiles, count: int) -> None:
    """The oldest segments have outlived their time, and the next run is now."""
    files.expired = set(names(store)[:count])
    store.clean_expired()


def assert_serves_the_rest(store: MessageStore, written: dict[tuple[str, int], list[bytes]]) -> None:
    """From the first record of the log on, and offsets mean what they did."""
    for (topic, queue_id), bodies in written.items():
        low = store.offsets.min_offset(topic, queue_id)
        assert store.offsets.max_offset(topic, queue_id) == len(bodies)
        served = drain(store, topic, queue_id)
        assert [message.body for message in served] == bodies[low:]
        assert [message.queue_offset for message in served] == list(range(low, len(bodies)))
        assert all(message.physical_offset >= store.log.min_offset for message in served)
        if low:
            result = store.reads.get(topic, queue_id, 0, 32, 1 << 20)
            assert (result.status, result.next_offset) == (GetStatus.OFFSET_TOO_SMALL, low)
        queue = store.table.queues[topic, queue_id]
        before = queue.entry(low - 1) if low else None
        assert before is None or before[0] < store.log.min_offset, "the min offset is the first that is left"


def files_in(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


@pytest.mark.parametrize("end", ["close", "crash"])
def test_what_is_expired_goes_from_log_queues_and_index(tmp_path: Path, end: str) -> None:
    store, written, files = filled(tmp_path)
    all_names = names(store)
    files.expired = set(all_names[:8])
    run(store, files)
    assert names(store) == all_names, "it is not the hour"
    index_files = files_in(tmp_path / "index")
    store.clean_expired()
    run(store, files)
    assert names(store) == all_names[8:] == files_in(tmp_path / "commitlog")
    assert store.status.deleted_segments == 8
    assert store.log.min_offset == 8 * 4096
    assert_serves_the_rest(store, written)
    queue = store.table.queues["T", 0]
    assert queue.min_offset >= queue.file_starts[0] // 20 > queue.min_offset - 10, "no file before it is left"
    assert files_in(tmp_path / "consumequeue" / "T" / "0") == [f"{start:020d}" for start in queue.file_starts]
    assert store.offsets.min_offset("Old", 0) == store.offsets.max_offset("Old", 0) == 7
    assert len(files_in(tmp_path / "consumequeue" / "Old" / "0")) == 1, "the last file keeps the max offset"
    assert 0 < len(files_in(tmp_path / "index")) < len(index_files)
    assert query(store, "T", "k20", 10, 0, 1 << 60) == []
    assert len(query(store, "T", "k129", 10, 0, 1 << 60)) == 1
    assert store.reads.earliest_store_timestamp() > 0
    leave(store, killed=end != "close")
    store = make_store(tmp_path, files.clock, files)
    report = store.open()
    assert (report.min_position, report.damaged, report.lost_entries) == (8 * 4096, [], 0)
    assert report.start_position > 8 * 4096
    assert_serves_the_rest(store, written)
    offset, _, _ = put(store, "Old", 0, b"goes on")
    assert offset == 7
    flush(store)
    assert [message.body for message in drain(store, "Old", 0)] == [b"goes on"]


def test_the_hour_is_that_of_the_day_here(tmp_path: Path) -> None:
    hour = time.localtime(ManualClock().now_ms() / 1000).tm_hour
    store, _, files = filled(tmp_path, delete_when=f"{(hour + 2) % 24:02d}")
    files.expired = set(names(store)[:3])
    run(store, files)
    assert store.status.deleted_segments == 0
    files.clock.advance(2 * HOUR_MS)
    run(store, files)
    assert store.status.deleted_segments == 3


def test_the_segment_that_is_written_stays(tmp_path: Path) -> None:
    store, written, files = filled(tmp_path)
    files.expired = set(names(store))
    last = names(store)[-1]
    store.clean_expired()
    for _ in range(5):
        run(store, files)
    assert names(store) == [last]
    assert_serves_the_rest(store, written)


def test_nothing_goes_before_a_checkpoint_is_behind_it(tmp_path: Path) -> None:
    store, _, files = filled(tmp_path)
    files.expired = set(names(store))
    store.clean_expired()
    jobs = store.maintenance()
    assert store.status.deleted_segments == 0
    complete(jobs)
    files.clock.advance(10_000)
    store.maintenance()
    assert store.status.deleted_segments == 10, "one batch"
    crash(store)


def test_an_idle_store_makes_the_checkpoint_that_it_needs(tmp_path: Path) -> None:
    store, _, files = filled(tmp_path)
    store.close()
    store = opened(tmp_path, files.clock, files, **MARKS)
    expire(store, files, 2)
    for _ in range(2):
        checkpoint(store)
        files.clock.advance(10_000)
    assert store.status.deleted_segments == 2
    crash(store)


def test_readers_keep_what_they_hold(tmp_path: Path) -> None:
    store, written, files = filled(tmp_path)
    held = store.reads.get("T", 1, 0, 10, 1 << 20)
    entries = store.table.queues["T", 1].read(0, 10).copy()
    expire(store, files, 8)
    run(store, files)
    assert [message.body for message in decode_records(b"".join(held.buffers))] == written["T", 1][:10]
    assert len(entries) == 10


def test_the_order_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint first; then each segment, on disk before the next; queue files last."""
    store, _, files = filled(tmp_path)
    everything = names(store)
    files.expired = set(everything[:3])
    done: list[tuple[str, str]] = []
    remove, sync_directory = files.remove, files.sync_directory
    monkeypatch.setattr(
        files, "remove", lambda path: (done.append((Path(path).parent.name, Path(path).name)), remove(path))
    )
    monkeypatch.setattr(
        files, "sync_directory", lambda path: (done.append((Path(path).name, "sync")), sync_directory(path))
    )
    settled = store.upkeep.checkpoints.settled
    store.clean_expired()
    run(store, files)
    assert settled < 3 * 4096 < store.upkeep.checkpoints.settled
    of_the_log = [entry for entry in done if entry[0] == "commitlog"]
    assert of_the_log == [
        step for name in everything[:3] for step in (("commitlog", name), ("commitlog", "sync"))
    ]
    of_queues = [
        index for index, (folder, what) in enumerate(done) if folder in ("0", "1") and what != "sync"
    ]
    assert of_queues
    assert min(of_queues) > max(index for index, entry in enumerate(done) if entry[0] == "commitlog")


@pytest.mark.parametrize("unlinks", range(4))
def test_a_crash_between_two_unlinks(tmp_path: Path, unlinks: int) -> None:
    store, written, files = filled(tmp_path)
    everything = names(store)
    files.expired = set(everything[:4])
    files.unlinks_left = unlinks
    store.clean_expired()
    run(store, files, 1)
    assert names(store) == everything[4:]
    assert files_in(tmp_path / "commitlog") == everything[unlinks:], "the oldest first"
    assert "Permission denied" in (store.status.retention_problem or "")
    crash(store)
    files.unlinks_left = -1
    store = opened(tmp_path, files.clock, files, **MARKS)
    assert names(store) == everything[unlinks:]
    assert_serves_the_rest(store, written)


def test_what_could_not_be_deleted_is_tried_again(tmp_path: Path) -> None:
    store, written, files = filled(tmp_path)
    everything = names(store)
    files.expired = set(everything[:4])
    files.unlinks_left = 1
    store.clean_expired()
    run(store, files, 1)
    assert_serves_the_rest(store, written)
    files.unlinks_left = -1
    run(store, files)
    assert files_in(tmp_path / "commitlog") == everything[4:]
    assert store.status.retention_problem is None
    assert store.condition.read_only is None


def test_a_disk_that_cannot_be_measured_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, written, files = filled(tmp_path)

    def fail(path: object) -> tuple[int, DiskUsage]:
        raise OSError("statvfs failed")

    monkeypatch.setattr(files, "disk", fail)
    run(store, files)
    assert "statvfs failed" in (store.status.retention_problem or "")
    put(store, "T", 0, b"goes on")
    written["T", 0].append(b"goes on")
    flush(store)
    assert_serves_the_rest(store, written)


def test_a_segment_that_somebody_deleted_is_left_out(tmp_path: Path) -> None:
    files = RoomyFiles(ManualClock())
    store = opened(tmp_path, files.clock, **MARKS, delete_when="")
    for number in range(40):
        put_synced(store, "T", 0, b"%d" % number + b"x" * 400)
    first = store.log.segments[0].path
    first.unlink()
    store.clean_expired()
    run(store, files)
    assert store.status.deleted_segments == 1
    assert 0 < store.offsets.min_offset("T", 0) < 12


def test_a_disk_over_the_mark_refuses_messages_until_there_is_room(tmp_path: Path) -> None:
    store, written, files = filled(tmp_path, clean_file_forcibly_enable=False)
    put(store, "T", 0, b"put before")
    written["T", 0].append(b"put before")
    files.used_percent = 90.5
    files.clock.advance(10_000)
    checkpoint(store)
    assert "90.5% full" in (store.status.disk_full or "")
    for topic in ("T", "New"):
        with pytest.raises(DiskFull, match="diskSpaceWarningLevelRatio"):
            put(store, topic, 0, b"never")
    with pytest.raises(DiskFull):
        store.appender.put_batch(pending(), [(0, b"never", b"")])
    assert store.condition.read_only is None
    assert ("New", 0) not in store.table.queues
    run(store, files)
    assert_serves_the_rest(store, written)
    assert store.status.deleted_segments == 0, "nothing is expired"
    store.delete_topic("Old")
    del written["Old", 0]
    files.used_percent = 86
    run(store, files)
    with pytest.raises(DiskFull):
        put(store, "T", 0, b"not yet")
    files.used_percent = 84
    run(store, files)
    assert store.status.disk_full is None
    for topic in ("T", "New"):
        put(store, topic, 0, b"again")
        written.setdefault((topic, 0), []).append(b"again")
    flush(store)
    assert_serves_the_rest(store, written)


def test_a_full_disk_takes_the_oldest_segments_whatever_their_age(tmp_path: Path) -> None:
    store, written, files = filled(tmp_path)
    everything = names(store)
    files.used_percent, files.segment_bytes = 88, 100
    run(store, files)
    assert names(store) == everything[3:], "each gives back one percent"
    assert store.status.disk_full is None
    assert_serves_the_rest(store, written)


def test_space_that_somebody_holds_is_waited_for_before_more_is_deleted(tmp_path: Path) -> None:
    """A deleted file takes its space until the last process lets go of it."""
    store, written, files = filled(tmp_path)
    everything = names(store)
    files.used_percent, files.segment_bytes = 88, 400
    run(store, files)
    assert names(store) == everything[1:], "one is enough"
    run(store, files)
    assert names(store) == everything[1:], "it has not come back yet"
    files.used_percent = 87
    run(store, files)
    assert names(store) == everything[2:], "but it is not waited for without end"
    assert_serves_the_rest(store, written)


def test_settings_changed_while_it_runs_count_from_the_next_run_on(tmp_path: Path) -> None:
    store, _, files = filled(tmp_path)
    store.config.file_reserved_time = 0
    store.config.delete_file_batch_max = 2
    store.clean_expired()
    run(store, files)
    assert store.status.deleted_segments == 2


def test_queue_files_wait_for_the_name_of_the_last_one(tmp_path: Path) -> None:
    """A power cut must not leave a queue without a file: then its offsets would begin again."""
    store, _, files = filled(tmp_path)
    expire(store, files, 8)
    run(store, files, 1)
    queue = store.table.queues["T", 0]
    directory = f"{tmp_path}/consumequeue/T/0"
    assert queue.dead_files
    store.table.new_directories.add(directory)
    files.clock.advance(100)
    store.upkeep.cleaner.round(store.upkeep.checkpoints.settled, checkpoint_running=False)
    assert queue.dead_files, "not before the checkpoint"
    store.upkeep.checkpoints.wanted = True
    checkpoint(store)
    checkpoint(store)
    assert not queue.dead_files


def test_queue_files_that_could_not_be_removed_go_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, _, files = filled(tmp_path)
    expire(store, files, 8)
    run(store, files, 1)
    assert len([queue for queue in store.table.queues.values() if queue.dead_files]) > 1

    def refused(path: Path) -> None:
        raise PermissionError(errno.EACCES, "no", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(files, "remove", refused)
        files.clock.advance(100)
        store.upkeep.cleaner.round(store.upkeep.checkpoints.settled, checkpoint_running=False)
        assert "no" in str(store.status.retention_problem)
    store.upkeep.checkpoints.wanted = True
    checkpoint(store)
    run(store, files)
    assert not any(queue.dead_files for queue in store.table.queues.values())


def test_many_queues_are_looked_at_in_slices_and_nothing_is_unlinked_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cleaning, "SLICE_QUEUES", 4)
    store, _, files = filled(tmp_path)
    for queue_id in range(20):
        put(store, "Many", queue_id, b"x")
    flush(store)
    run(store, files)
    unlinked: list[str] = []
    remove = files.remove
    monkeypatch.setattr(files, "remove", lambda path: (unlinked.append(str(path)), remove(path)))
    expire(store, files, 8)
    files.clock.advance(10_000)
    (job,) = [job for job in store.maintenance() if isinstance(job, cleaning.CleaningJob)]
    assert len(list(job.prepare())) >= 23 // 4, "a turn of each four queues"
    assert unlinked == []
    job.run()
    assert sum("/commitlog/" in path for path in unlinked) == 8
    assert any("/index/" in path for path in unlinked)
    assert store.offsets.min_offset("T", 0) == 0
    assert len(list(job.steps())) == 1, "three of them begin elsewhere"
    assert store.offsets.min_offset("T", 0) > 0


def test_idle_maps_are_set_aside_in_slices_and_freed_by_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mapped, "DROPPED_AT_ONCE", 2)
    given: list[list[object]] = []
    """The lists of the newest job: of the log, and of queues and index."""

    class NotedJob(UnmapJob):
        def __init__(self, unmapped: list[list[object]], slices: Iterable[None]) -> None:
            given[:] = unmapped
            super().__init__(unmapped, slices)

    monkeypatch.setattr(storedata, "UnmapJob", NotedJob)
    store, _, files = filled(tmp_path)
    run(store, files)
    drain(store, "T", 0)
    slices, held = [], []
    for _ in range(3):
        files.clock.advance(IDLE_MAP_MS)
        (job,) = [job for job in store.maintenance() if isinstance(job, UnmapJob)]
        slices.append(len(list(job.prepare())))
        held.append([len(each) > 0 for each in given])
        complete([job])
        assert given == [[], []]
    assert max(slices) >= 2
    assert [True, True] in held


def test_asking_for_queues_alone(tmp_path: Path) -> None:
    store, written, _ = filled(tmp_path)
    store.log.forget_oldest(5)
    assert store.offsets.min_offset("Old", 0) == 0
    store.clean_expired_queues()
    checkpoint(store)
    assert_serves_the_rest(store, written)
    assert store.offsets.min_offset("Old", 0) == 7


class Archive:
    """Has everything, and notes what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []
        """Offset, and where the log begins."""

    def begin(self, topic: str, queue_id: int, log_begin: int) -> int:
        return 0

    def get(self, topic: str, queue_id: int, offset: int, log_begin: int, *rest: object) -> GetResult:
        self.asked.append((offset, log_begin))
        return GetResult(GetStatus.FOUND, log_begin, 0, 0)


def test_what_has_just_left_the_log_is_read_from_the_archive(tmp_path: Path) -> None:
    """Before retention has found where the queues begin now."""
    store, _, _ = filled(tmp_path)
    archive: Any = Archive()
    store.serve_older(archive)
    store.log.forget_oldest(5)
    queue = store.table.queues["T", 0]
    assert queue.min_offset == 0
    store.reads.get("T", 0, 3, 32, 1 << 20)
    ((offset, begin),) = archive.asked
    entry, before = queue.entry(begin), queue.entry(begin - 1)
    assert entry is not None
    assert before is not None
    assert (offset, before[0] < store.log.min_offset <= entry[0]) == (3, True)
    assert store.reads.get("T", 0, begin, 32, 1 << 20).status is GetStatus.FOUND
    assert len(archive.asked) == 1


def test_a_topic_deleted_meanwhile(tmp_path: Path) -> None:
    store, written, files = filled(tmp_path)
    flush(store)
    checkpoint(store)
    expire(store, files, 8)
    jobs = store.maintenance()
    store.delete_topic("T")
    put_synced(store, "T", 0, b"new life")
    complete(jobs)
    checkpoint(store)
    assert_serves_the_rest(store, {("T", 0): [b"new life"], ("Old", 0): written["Old", 0]})


def test_where_a_queue_begins_among_fillers(tmp_path: Path) -> None:
    """By bisection over several files, for every position, as by looking at every entry."""
    store, _, _ = filled(tmp_path, mapped_file_size_consume_queue=400)
    queue = store.table.queues["T", 0]
    for offset in (0, 3, 4, 5, 19, 20, 21, 60):
        with (tmp_path / "consumequeue/T/0" / file_name(offset * 20 // 400 * 400)).open("r+b") as file:
            file.seek(offset * 20 % 400)
            file.write(b"\0" * 8 + b"\x7f\xff\xff\xff" + b"\0" * 8)
    entries = [queue.entry(offset) for offset in range(queue.max_offset)]
    for position in range(0, store.log.position, 400):
        wanted = next(
            (
                offset
                for offset, entry in enumerate(entries)
                if entry is not None and entry[1] != 0x7FFFFFFF and entry[0] >= position
            ),
            queue.max_offset,
        )
        assert queue.first_kept(position, queue.file_starts, 0, queue.max_offset) == wanted


def test_the_real_disk_and_the_age_of_a_real_file(tmp_path: Path) -> None:
    files = OsFiles()
    device, usage = files.disk(tmp_path)
    assert device == os.stat(tmp_path).st_dev
    assert usage.free_bytes >= 0
    assert 0 < usage.used_percent <= 100
    path = tmp_path / "file"
    path.write_bytes(b"x" * 10_000)
    os.utime(path, (5, 7))
    assert files.age(path).modified_ms == 7000
    assert files.age(path).size_bytes >= 8192 or files.age(path).size_bytes == 0, (
        "0 where blocks are allocated late"
    )
