"""The log: several directories, a thousand segments, what is mapped, cold reads, and the CRC of whole records."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from pathlib import Path

import pytest

from mqspark.errors import DiskFull, StoreCorrupt
from mqspark.record.record import decode_record, encode_record, is_seal_broken
from mqspark.store import FlushDiskType, Job, MessageStore, StoreReader
from mqspark.store.disk.diskjobs import ReadAheadJob
from mqspark.store.disk.files import OsFiles
from mqspark.store.disk.layout import file_name
from mqspark.store.disk.logpaths import LogPaths
from mqspark.store.disk.retention import DiskUsage
from mqspark.store.log import commitlog, zeroahead
from mqspark.store.log.nextsegment import NextSegmentJob
from mqspark.store.log.zeroahead import ZeroAheadJob
from mqspark.store.maintenance import IDLE_MAP_MS
from mqspark.store.messages import fetch
from tests.support.clocks import ManualClock
from tests.support.store_tools import (
    BORN_HOST,
    STORE_HOST,
    FaultyFiles,
    QuickFiles,
    RoomyFiles,
    checkpoint,
    complete,
    crash,
    drain,
    flush,
    leave,
    make_store,
    opened,
    put,
    put_synced,
)


def fill(store: MessageStore, count: int, first: int = 0) -> list[bytes]:
    bodies = [b"%04d" % number * 100 for number in range(first, first + count)]
    for body in bodies:
        put_synced(store, "T", 0, body)
    return bodies


def bodies(store: MessageStore) -> list[bytes]:
    return [message.body for message in drain(store, "T", 0)]


# --- several directories --------------------------------------------------------------------------------------


def test_segments_take_turns(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("c", "a", "b")]
    setting = ", ".join(map(str, paths))
    store = opened(tmp_path / "root", store_path_commit_log=setting)
    sent = fill(store, 60)
    names = {path.name: sorted(os.listdir(path)) for path in paths}
    assert names["a"] == [file_name(4096 * number) for number in (0, 3, 6)]
    assert names["b"] == [file_name(4096 * number) for number in (1, 4, 7)]
    assert not (tmp_path / "root/commitlog").exists()
    assert bodies(store) == sent
    crash(store)

    more = {"read_only_commit_log_store_paths": str(tmp_path / "b")}
    store = opened(tmp_path / "root", store_path_commit_log=setting, **more)
    assert bodies(store) == sent
    sent += fill(store, 40, 60)
    assert sorted(os.listdir(tmp_path / "b")) == names["b"]
    assert bodies(store) == sent
    reader = StoreReader(tmp_path / "root", setting)
    for position in reader.entries("T", 0, 0, len(sent))["position"].tolist():
        size = int.from_bytes(reader.record(position, 4), "big")
        assert decode_record(reader.record(position, size), 0).physical_offset == position


def test_a_full_disk_gets_no_new_segment(tmp_path: Path, clock: ManualClock) -> None:
    class Disks(RoomyFiles):
        def disk(self, path: str | Path) -> tuple[int, DiskUsage]:
            full = Path(path).name == "a"
            return 1 + full, DiskUsage(95 if full else 10, 5 if full else 90)

    store = make_store(
        tmp_path / "root",
        clock,
        Disks(clock),
        store_path_commit_log=f"{tmp_path / 'a'},{tmp_path / 'b'}",
        clean_resource_interval=1,
        disk_space_clean_forcibly_ratio=85,
        disk_space_warning_level_ratio=90,
    )
    store.open()
    sent = fill(store, 10)
    checkpoint(store)
    clock.advance(10)
    checkpoint(store)
    before = sorted(os.listdir(tmp_path / "a"))
    sent += fill(store, 30, 10)
    assert store.status.disk_full is None, "one directory has room"
    assert sorted(os.listdir(tmp_path / "a")) == before
    assert bodies(store) == sent


def test_one_segment_twice_is_no_log(tmp_path: Path) -> None:
    setting = f"{tmp_path / 'a'},{tmp_path / 'b'}"
    store = opened(tmp_path / "root", store_path_commit_log=setting)
    fill(store, 3)
    store.close()
    (tmp_path / "b" / file_name(0)).write_bytes((tmp_path / "a" / file_name(0)).read_bytes())
    with pytest.raises(StoreCorrupt, match="same part"):
        opened(tmp_path / "root", store_path_commit_log=setting)


def test_directories() -> None:
    a, b, c = Path("/a"), Path("/b"), Path("/c")
    paths = LogPaths.parse("/b,/a,/c", "/c,/d", Path("/x"))
    assert (paths.writable, paths.all) == ((a, b), (a, b, c, Path("/d")))
    assert [paths.for_segment(number) for number in range(3)] == [a, b, a]
    paths.full = frozenset({a})
    assert [paths.for_segment(number) for number in range(3)] == [b, b, b]
    paths.full = frozenset({a, b})
    assert [paths.for_segment(number) for number in range(3)] == [a, b, a]
    assert LogPaths.parse(None, None, Path("/x")).all == (Path("/x"),)
    assert LogPaths.parse("/a", "/a", Path("/x")).writable == (a,)


# --- maps -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kill", [False, True])
def test_a_thousand_segments_of_a_gigabyte(tmp_path: Path, kill: bool) -> None:
    size = 1 << 30
    settings = {
        "mapped_file_size_commit_log": size,
        "allocation_step_commit_log": 4096,
        "message_index_enable": False,
    }
    log = tmp_path / "commitlog"
    log.mkdir()

    def sparse(number: int) -> None:
        with (log / file_name(number * size)).open("wb") as file:
            file.truncate(size)

    sparse(1000)
    store = opened(tmp_path, None, QuickFiles(), **settings)
    sent = fill(store, 5)
    checkpoint(store)
    sent += fill(store, 5, 5)
    leave(store, killed=kill)
    for number in range(1000):
        sparse(number)
    before = address_space_bytes()
    store = opened(tmp_path, None, QuickFiles(), **settings)
    assert store.log.mapped_segments <= 1
    assert address_space_bytes() - before < 4 * size
    assert len(store.log.segments) == 1001
    assert bodies(store) == sent
    store.close()


def address_space_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")


def test_idle_files_are_unmapped(clock: ManualClock, store: MessageStore) -> None:
    sent = fill(store, 60)
    assert bodies(store) == sent
    checkpoint(store)
    assert store.log.mapped_segments > 5
    assert len(store.table.maps) > 5
    held = store.reads.get("T", 0, 0, 1, 1).buffers[0]
    clock.advance(IDLE_MAP_MS)
    checkpoint(store)
    assert store.log.mapped_segments > 5, "in use until now"
    assert store.reads.get("T", 0, 59, 1, 1).count == 1
    clock.advance(IDLE_MAP_MS)
    checkpoint(store)
    assert store.log.mapped_segments == 1
    assert len(store.table.maps) <= 2, "the one that was read, and the one that is appended to"
    assert decode_record(held).body == sent[0]
    assert bodies(store) == sent


# --- cold reads -----------------------------------------------------------------------------------------------


def test_less_is_read_of_what_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"mapped_file_size_commit_log": 1 << 20, "mapped_file_size_consume_queue": 20_000}
    store = opened(tmp_path, **settings, access_message_in_memory_max_ratio=0)
    fill(store, 50)
    large = 1 << 20
    assert store.reads.get("T", 0, 0, 32, large).count == 8
    assert store.reads.get("T", 0, 0, 5, large).count == 5
    store.config.max_transfer_bytes_on_message_in_disk = 1200
    assert store.reads.get("T", 0, 0, 32, large).count == 2
    store.config.max_transfer_bytes_on_message_in_disk = 1
    assert store.reads.get("T", 0, 0, 32, large).count == 1, "the first comes whatever its size"

    store.config.max_transfer_bytes_on_message_in_memory = 3000
    assert store.reads.get("T", 0, 0, 50, large, bulk=True).count == 6, (
        "as many bytes as others get from memory"
    )
    # Memory for the last 20 records.
    record = store.reads.get("T", 0, 0, 1, large).size_bytes
    store.close()
    monkeypatch.setattr(fetch, "usable_memory_bytes", lambda: 100 * 20 * record)
    store = opened(tmp_path, **settings, access_message_in_memory_max_ratio=1)
    assert store.reads.get("T", 0, 10, 32, large).next_offset == 18
    assert store.reads.get("T", 0, 25, 32, large).count == 25, "a few cold ones, then warm ones"
    assert store.reads.get("T", 0, 30, 32, large).count == 20


# --- the CRC of whole records ---------------------------------------------------------------------------------


CRC = {"enabled_append_prop_crc": True}


@pytest.mark.parametrize("properties", [b"", b"KEYS\x01k", b"KEYS\x01k\x02"])
def test_records_are_sealed(tmp_path: Path, clock: ManualClock, properties: bytes) -> None:
    store = opened(tmp_path, clock, **CRC)
    for number in range(2):
        _, position, _ = put(store, "T", 0, b"body", properties)
        flush(store)
        record = bytes(store.reads.get("T", 0, number, 1, 1).buffers[0])
        assert record == encode_record(
            topic="T",
            body=b"body",
            properties=properties,
            queue_offset=number,
            physical_offset=position,
            born_timestamp_ms=1,
            born_host=BORN_HOST,
            store_timestamp_ms=clock.wall_ms,
            store_host=STORE_HOST,
            property_crc=True,
        )
        assert not is_seal_broken(record)
        # Put again with the seal of its first life.
        properties = record[-record[::-1].index(b"T\x01") :][2:]


@pytest.mark.parametrize("sealed", [False, True])
def test_recovery_notices_a_changed_property(tmp_path: Path, sealed: bool) -> None:
    settings = {"enabled_append_prop_crc": sealed}
    store = opened(tmp_path, **settings)
    for number in range(60):
        put(store, "T", 0, b"%d" % number, b"KEYS\x01original\x02" if number == 40 else b"")
    flush(store)
    position = store.table.queues["T", 0].entry(40)[0]  # type: ignore[index]
    crash(store)
    segment = tmp_path / "commitlog" / file_name(position - position % 4096)
    data = bytearray(segment.read_bytes())
    data[data.index(b"original")] ^= 1
    segment.write_bytes(data)
    store = make_store(tmp_path, **settings)
    report = store.open()
    assert len(report.damaged) == sealed
    assert len(bodies(store)) == 60 - sealed
    assert store.offsets.max_offset("T", 0) == 60


# --- room ahead -----------------------------------------------------------------------------------------------

SEGMENT, STEP = 64 << 10, 8 << 10


class Steps:
    """A store that reserves in small steps."""

    def __init__(self, root: Path, flush_disk_type: FlushDiskType = FlushDiskType.ASYNC_FLUSH) -> None:
        self.files = FaultyFiles()
        self.store = opened(
            root,
            files=self.files,
            flush_disk_type=flush_disk_type,
            mapped_file_size_commit_log=SEGMENT,
            allocation_step_commit_log=STEP,
            mapped_file_size_consume_queue=20_000,
        )
        self.sent: list[bytes] = []

    def put(self, count: int) -> int:
        """Gives back how often a put had to reserve something itself."""
        before = self.files.calls.count("allocate")
        self.sent += fill(self.store, count, len(self.sent))
        return self.files.calls.count("allocate") - before

    def extend(self) -> int:
        """Gives back how many jobs of the maintenance prepared the next step."""
        jobs = self.jobs()
        complete(jobs)
        return sum(isinstance(job, ReadAheadJob | ZeroAheadJob) for job in jobs)

    def jobs(self) -> list[Job]:
        """Those that make room."""
        kinds = ReadAheadJob | ZeroAheadJob | NextSegmentJob
        jobs = [job for job in self.store.maintenance() if isinstance(job, kinds)]
        assert not self.store.room_due, "once a step"
        return jobs

    def next_job(self) -> NextSegmentJob:
        """The job that makes the next segment, which was not run."""
        for _ in range(200):
            if self.store.room_due:
                for job in self.jobs():
                    if isinstance(job, NextSegmentJob):
                        return job
                    job.run()
            self.put(1)
        raise AssertionError("the next segment was not due")

    @property
    def log_files(self) -> list[str]:
        return sorted(path.name for path in self.store.paths.commit_logs.first.iterdir())

    def check(self) -> None:
        assert bodies(self.store) == self.sent
        assert self.store.condition.read_only is None
        self.store.close()


def test_room_is_made_ahead_of_what_is_appended(tmp_path: Path) -> None:
    steps = Steps(tmp_path)
    assert not steps.store.room_due, "nothing was appended"
    by_puts = by_jobs = 0
    for _ in range(200):  # 100 KB: 13 steps, and one roll
        by_puts += steps.put(1)
        if steps.store.room_due:
            by_jobs += steps.extend()
    assert by_jobs >= 10
    assert by_puts <= 3, "the first step of the log, and the file of the queue"
    steps.check()


def test_the_next_segment_is_made_by_a_job_before_it_is_needed(tmp_path: Path) -> None:
    steps = Steps(tmp_path)
    steps.next_job().run()
    assert steps.log_files == [f"{0:020d}", f"{SEGMENT:020d}"]
    assert (steps.store.log.position, len(steps.store.log.segments)) < (SEGMENT, 2)
    made = steps.files.calls.count("set_length")
    while len(steps.store.log.segments) == 1:
        before = len(steps.files.calls)
        steps.put(1)
    assert steps.files.calls.count("set_length") == made, "no put has made a file of the log"
    assert "allocate" not in steps.files.calls[before:]
    steps.put(30)
    steps.check()


@pytest.mark.parametrize("when", ["never", "afterwards", "it failed"])
def test_a_put_that_comes_before_the_next_segment_makes_it(tmp_path: Path, when: str) -> None:
    steps = Steps(tmp_path)
    job = steps.next_job()
    if when == "it failed":
        steps.files.fail("allocate", errno.ENOSPC, for_ever=False)
        job.run()
        assert steps.log_files == [f"{0:020d}"], "nothing is left of it"
    steps.put(70)
    assert len(steps.store.log.segments) == 2
    if when == "afterwards":
        calls = len(steps.files.calls)
        job.run()
        assert steps.files.calls[calls:] == [], "two threads reserve no blocks of one file"
    job.done()
    steps.put(40)
    steps.check()


def test_a_put_waits_for_the_next_segment_while_it_is_made(tmp_path: Path) -> None:
    steps = Steps(tmp_path)
    job, begun, go_on = steps.next_job(), threading.Event(), threading.Event()
    plain = steps.files.set_length

    def slow(fd: int, length: int) -> None:
        begun.set()
        assert go_on.wait(30)
        plain(fd, length)

    steps.files.set_length = slow  # type: ignore[method-assign]
    maker = threading.Thread(target=job.run)
    maker.start()
    assert begun.wait(30)
    helper = threading.Timer(0.05, go_on.set)
    helper.start()
    steps.put(70)
    maker.join()
    helper.join()
    assert go_on.is_set(), "the put took the file of the job"
    assert len(steps.store.log.segments) == 2
    steps.check()


@pytest.mark.parametrize("end", ["close", "crash"])
def test_an_unused_next_segment_is_gone_after_a_stop_and_a_start(tmp_path: Path, end: str) -> None:
    steps = Steps(tmp_path)
    steps.next_job().run()
    flush(steps.store)
    if end == "close":
        steps.store.close()
        assert steps.log_files == [f"{0:020d}"]
    else:
        shutil.copytree(tmp_path, tmp_path.with_name("image"))
        tmp_path = tmp_path.with_name("image")
        steps.store.abandon()
    store = opened(
        tmp_path, mapped_file_size_commit_log=SEGMENT, allocation_step_commit_log=STEP,
        mapped_file_size_consume_queue=20_000,
    )  # fmt: skip
    assert len(store.log.segments) == 1
    assert bodies(store) == steps.sent
    assert [path.name for path in store.paths.commit_logs.first.iterdir()] == [f"{0:020d}"]
    assert store.damages.found == []


def test_a_log_that_is_taken_back_makes_its_next_segment_anew(tmp_path: Path) -> None:
    steps = Steps(tmp_path)
    steps.next_job().run()
    flush(steps.store)
    steps.store.log.cut_back(0)
    assert steps.log_files == [f"{0:020d}"]
    assert not steps.store.room_due or steps.store.log.position == 0
    steps.store.abandon()


def test_room_that_cannot_be_had_is_missed_by_the_put_alone(tmp_path: Path) -> None:
    steps = Steps(tmp_path)
    steps.put(1)
    steps.files.fail("allocate", errno.ENOSPC)
    assert steps.extend() == 0
    with pytest.raises(DiskFull):
        steps.put(40)
    assert steps.store.condition.read_only is None
    steps.files.heal()
    steps.sent = bodies(steps.store)
    steps.put(40)
    assert steps.store.room_due
    steps.check()


def test_all_of_a_range_is_read_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, preadv, seen = tmp_path / "file", os.preadv, [0]

    def read(fd: int, buffers: list[bytearray], offset: int) -> int:
        assert offset == seen[-1]
        count = preadv(fd, buffers, offset)
        seen.append(offset + count)
        return count

    monkeypatch.setattr(os, "preadv", read)
    files, length = OsFiles(), (20 << 20) + 5
    fd = files.open(path, create=True)
    files.set_length(fd, length)
    files.read_ahead(fd, 0, length - 100_000)
    assert length - 100_000 <= seen[-1] < length
    assert len(seen) == 3
    seen[:] = [0]
    files.read_ahead(fd, 0, length + (1 << 20))
    assert seen[-2:] == [length, length], "the file's end"
    files.close(fd)


def test_a_read_ahead_that_fails_harms_nothing(tmp_path: Path) -> None:
    steps = Steps(tmp_path)
    steps.put(1)
    (job,) = (job for job in steps.store.maintenance() if isinstance(job, ReadAheadJob))
    steps.files.fail("open", errno.EIO, for_ever=False)
    job.run()
    assert steps.files.calls[-1] == "open"
    steps.put(40)
    steps.check()


# --- zeros ahead ----------------------------------------------------------------------------------------------


def zeros_job(steps: Steps) -> ZeroAheadJob:
    (job,) = (job for job in steps.store.maintenance() if isinstance(job, ZeroAheadJob))
    return job


def test_a_log_that_syncs_often_has_zeros_ahead(tmp_path: Path) -> None:
    steps = Steps(tmp_path, FlushDiskType.SYNC_FLUSH)
    assert steps.store.room_due, "before the first message"
    written, plain = list[tuple[int, int]](), steps.files.write

    def write(fd: int, data: bytes, offset: int) -> None:
        if not any(data):
            written.append((offset, len(data)))
        plain(fd, data, offset)

    steps.files.write = write  # type: ignore[method-assign]
    by_puts = 0
    for _ in range(200):  # 100 KB: 13 steps, and one roll
        if steps.store.room_due:
            assert steps.extend() <= 1
        by_puts += steps.put(1)
    assert set(written) == {(offset, STEP) for offset in range(0, SEGMENT, STEP)}
    assert len(written) == steps.store.log.position // STEP + 1, "once each"
    assert by_puts <= 2, "the files of the queue"
    steps.check()


def test_syncs_decide_whether_there_are_zeros(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Syncs of many messages each gain nothing."""
    monkeypatch.setattr(commitlog, "_SMALL_SYNC_BYTES", 1000)
    steps = Steps(tmp_path)
    kinds = list[str]()
    for number in range(120):
        steps.sent.append(b"%04d" % number * 100)
        put(steps.store, "T", 0, steps.sent[-1])
        if number < 60 or number % 4 == 0:
            flush(steps.store)
        if steps.store.room_due:
            kinds += [type(job).__name__ for job in steps.jobs() if not isinstance(job, NextSegmentJob)]
            steps.store.log.make_room(100)
    flush(steps.store)
    changes = [kind for kind, before in zip(kinds, ["", *kinds], strict=False) if kind != before]
    assert changes == ["ReadAheadJob", "ZeroAheadJob", "ReadAheadJob"]
    steps.check()


@pytest.mark.parametrize("pieces", range(9))
def test_zeros_end_where_the_log_takes_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pieces: int
) -> None:
    """Messages come after so many pieces of zeros, more than the range holds, and a roll."""
    monkeypatch.setattr(zeroahead, "_PIECE", bytes(1024))
    steps = Steps(tmp_path, FlushDiskType.SYNC_FLUSH)
    job, synced, sync = zeros_job(steps), 0, steps.files.sync

    def hooked(fd: int) -> None:
        nonlocal synced
        sync(fd)
        synced += 1
        if synced == pieces:
            steps.files.sync = sync  # type: ignore[method-assign]
            steps.put(150)

    steps.files.sync = hooked  # type: ignore[method-assign]
    if pieces:
        job.run()
    else:
        steps.put(150)
        job.run()
    job.done()
    assert len(steps.store.log.segments) == 2
    steps.put(10)
    steps.check()


def test_zeros_and_messages_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zeroahead, "_PIECE", bytes(256))
    steps = Steps(tmp_path, FlushDiskType.SYNC_FLUSH)
    threads = list[tuple[threading.Thread, Job]]()
    for number in range(300):
        if steps.store.room_due:
            for job in steps.jobs():
                threads.append((threading.Thread(target=job.run), job))
                threads[-1][0].start()
        steps.put(1)
        if number % 7 == 0 and threads and not threads[0][0].is_alive():
            threads.pop(0)[1].done()
    for thread, job in threads:
        thread.join()
        job.done()
    steps.check()


@pytest.mark.parametrize("end", ["cut back", "restart", "close"])
def test_zeros_do_not_come_after_the_log_has_gone_elsewhere(tmp_path: Path, end: str) -> None:
    steps = Steps(tmp_path, FlushDiskType.SYNC_FLUSH)
    steps.put(1)
    job = zeros_job(steps)
    log = steps.store.log
    if end == "cut back":
        log.cut_back(0)
    elif end == "restart":
        log.restart_at(SEGMENT)
    else:
        steps.store.close()
    calls = len(steps.files.calls)
    complete([job])
    assert "write" not in steps.files.calls[calls:]
    if end == "close":
        return
    assert log.room_end < log.position + STEP
    steps.store.abandon()


def test_zeros_that_cannot_be_written_harm_nothing(tmp_path: Path) -> None:
    steps = Steps(tmp_path, FlushDiskType.SYNC_FLUSH)
    job = zeros_job(steps)
    steps.files.fail("write", errno.EIO, for_ever=False)
    complete([job])
    steps.put(40)
    steps.check()


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(
    "left", [b"y\n", bytes(40), None], ids=["two bytes", "two entries", "cut in the middle"]
)
@pytest.mark.parametrize("queue", [0, 1])
def test_a_queue_file_that_was_cut_short_is_made_again(
    tmp_path: Path, queue: int, left: bytes | None, clean: bool
) -> None:
    store = opened(tmp_path, None, QuickFiles())
    for number in range(20):
        put(store, "t", number % 2, b"message %d" % number)
    flush(store)
    store.close()
    if not clean:
        (tmp_path / "abort").write_bytes(b"")
    path = tmp_path / "consumequeue" / "t" / str(queue) / f"{0:020d}"
    whole = path.read_bytes()
    path.write_bytes(whole[:60] if left is None else left)
    store = opened(tmp_path, None, QuickFiles())
    assert path.read_bytes() == whole
    assert put(store, "t", queue, b"next")[0] == 10
    flush(store)
    store.close()
