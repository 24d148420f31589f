"""The broker's own compaction of a store: last values, passes, tombstones, damage, and whose turn it is."""

from __future__ import annotations

import asyncio
import errno
import io
import random
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from mqspark.message import MessageExt
from mqspark.record.record import decode_record
from mqspark.store import MessageStore
from mqspark.store.compaction.compactedqueues import (
    COMPACT_LOCK,
    DELETE_RETENTION_MS,
    Generation,
    read_current,
)
from mqspark.store.disk.files import OsFiles
from mqspark.store.tools import compactor
from mqspark.store.tools.compactor import Compactor, CompactReport, CompactTask, TopicToCompact
from mqspark_server.compacting import compactrunner
from mqspark_server.compacting.compactrunner import CompactRunner
from tests.support.clocks import ManualClock
from tests.support.store_tools import QuickFiles, finish_deletions, flush, opened, put, put_synced
from tests.support.storefiles import segments_of


def fill(
    store: MessageStore, count: int, keys: int, *, first: int = 0, topic: str = "C"
) -> dict[str, tuple[int, bytes]]:
    """Messages by key: the offset and body of the newest of each."""
    newest: dict[str, tuple[int, bytes]] = {}
    for number in range(first, first + count):
        key, body = f"k{number % keys}", b"%d" % number
        offset, _, _ = put(store, topic, 0, body, f"KEYS\x01{key}\x02TAGS\x01t\x02".encode())
        newest[key] = offset, body
    flush(store)
    return newest


def compact(
    root: Path, clock: ManualClock, *, end: int = 1 << 40, map_bytes: int = 1 << 20, **topic: object
) -> CompactReport:
    task = CompactTask(
        root=str(root),
        commit_log=None,
        end=end,
        topics=[TopicToCompact("C", **topic)],  # type: ignore[arg-type]
        map_bytes=map_bytes,
        now_ms=clock.wall_ms,
    )
    return Compactor(task, QuickFiles()).run()


def kept(root: Path, queue_id: int = 0) -> list[MessageExt]:
    directory = root / "mqspark.compacted/C" / str(queue_id)
    current = read_current(directory)
    assert current is not None
    generation = Generation(directory, current)
    offsets = generation.entries["offset"].tolist()
    messages = [decode_record(generation.record(offset)) for offset in offsets]
    assert [message.queue_offset for message in messages] == offsets
    return messages


def values(messages: list[MessageExt]) -> dict[str, tuple[int, bytes]]:
    found = {message.keys or "": (message.queue_offset, message.body) for message in messages}
    assert len(found) == len(messages)
    return found


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> MessageStore:
    own = opened(tmp_path, clock)
    return own


def test_the_last_value_of_each_key_stays(store: MessageStore, tmp_path: Path, clock: ManualClock) -> None:
    newest = fill(store, 200, 30)
    report = compact(tmp_path, clock)
    assert values(kept(tmp_path)) == newest
    assert (report.queues, report.passes, report.records_read, report.records_kept) == (1, 1, 200, 30)
    assert (report.compacted_to, report.failed, report.damaged) == (1 << 40, 0, [])
    # A second run finds nothing new; a third merges.
    assert compact(tmp_path, clock).queues == 0
    newest |= fill(store, 40, 10, first=1000)
    assert compact(tmp_path, clock).records_read == 40
    assert values(kept(tmp_path)) == newest
    got = store.reads.get("C", 0, 0, 1, 1 << 20)
    assert got.next_offset == min(offset for offset, _ in newest.values()) + 1


def test_only_what_lies_before_the_end_is_taken(
    store: MessageStore, tmp_path: Path, clock: ManualClock
) -> None:
    fill(store, 100, 100)
    queue = store.table.queues["C", 0]
    entry = queue.entry(60)
    assert entry is not None
    report = compact(tmp_path, clock, end=entry[0])
    assert report.compacted_to == entry[0]
    assert [message.queue_offset for message in kept(tmp_path)] == list(range(60))


def test_more_keys_than_fit_take_more_passes(store: MessageStore, tmp_path: Path, clock: ManualClock) -> None:
    """The map has room for a hundred; each pass publishes what it has done."""
    newest = fill(store, 350, 250)
    report = compact(tmp_path, clock, map_bytes=1)
    assert report.passes > 2
    assert report.queues == 1
    assert values(kept(tmp_path)) == newest


def test_a_key_of_the_map_takes_no_more_than_is_counted() -> None:
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        newest = {random.randbytes(16): number + (1 << 40) for number in range(20_000)}
        _, peak = tracemalloc.get_traced_memory()
        assert peak - before < len(newest) * compactor.KEY_BYTES
    finally:
        tracemalloc.stop()


def test_a_deleted_key_goes_when_its_tombstone_is_old(
    store: MessageStore, tmp_path: Path, clock: ManualClock
) -> None:
    fill(store, 10, 5)
    put_synced(store, "C", 0, b"", b"KEYS\x01k1\x02")
    compact(tmp_path, clock)
    assert values(kept(tmp_path))["k1"] == (10, b"")
    clock.advance(DELETE_RETENTION_MS + 1)
    put_synced(store, "C", 0, b"new", b"KEYS\x01k0\x02")
    compact(tmp_path, clock)
    assert sorted(values(kept(tmp_path))) == ["k0", "k2", "k3", "k4"]


def damage(root: Path, position: int) -> None:
    (path,) = [
        path for path in (root / "commitlog").iterdir() if int(path.name) <= position < int(path.name) + 4096
    ]
    with path.open("r+b") as file:
        file.seek(position - int(path.name))
        file.write(b"\xff")


def test_a_damaged_record_ends_the_pass_until_the_broker_has_looked(
    store: MessageStore, tmp_path: Path, clock: ManualClock
) -> None:
    fill(store, 50, 50)
    entry = store.table.queues["C", 0].entry(20)
    assert entry is not None
    damage(tmp_path, entry[0] + 90)  # of its body
    report = compact(tmp_path, clock)
    assert [(each.queue_id, each.offsets) for each in report.damaged] == [(0, [20])]
    assert report.compacted_to == 0, "nothing may be deleted meanwhile"
    assert [message.queue_offset for message in kept(tmp_path)] == list(range(20))
    report = compact(tmp_path, clock, examined={0: 21})
    assert (report.compacted_to, report.stepped_over, report.damaged) == (1 << 40, 1, [])
    assert [message.queue_offset for message in kept(tmp_path)] == [*range(20), *range(21, 50)]


@pytest.mark.parametrize("entry", [bytes(20), b"\x00" * 7 + b"\x05" + b"\x7f" * 12])
def test_a_wrong_entry_hides_no_record(
    store: MessageStore, tmp_path: Path, clock: ManualClock, entry: bytes
) -> None:
    """The broker corrects it when it is told, and the next run takes the record."""
    newest = fill(store, 50, 50)
    queue = store.table.queues["C", 0]
    right = queue.packed_entry(20)
    assert right is not None
    queue.replace(20, entry)
    report = compact(tmp_path, clock)
    assert [each.offsets for each in report.damaged] == [[20]]
    assert report.compacted_to == 0
    store.reads.get("C", 0, 20, 1, 1)
    assert queue.packed_entry(20) == right
    report = compact(tmp_path, clock, examined={0: 21})
    assert (report.compacted_to, report.stepped_over) == (1 << 40, 0)
    assert values(kept(tmp_path)) == newest


def test_an_empty_entry_where_the_log_begins_is_not_taken_for_expired(
    store: MessageStore, tmp_path: Path, clock: ManualClock
) -> None:
    fill(store, 50, 50)
    queue = store.table.queues["C", 0]
    oldest, *_ = segments_of(tmp_path)
    places = [entry[0] for number in range(50) if (entry := queue.entry(number)) is not None]
    first = next(number for number, position in enumerate(places) if position >= 4096)
    right = queue.packed_entry(first)
    assert right is not None
    queue.replace(first, bytes(20))
    queue.replace(first - 2, bytes(20))
    hidden = oldest.rename(tmp_path / "expired")
    try:
        report = compact(tmp_path, clock)
        assert [each.offsets for each in report.damaged] == [[first]]
        assert report.compacted_to == 0
        queue.replace(first, right)
        report = compact(tmp_path, clock, examined={0: first + 1})
    finally:
        hidden.rename(oldest)
    assert (report.compacted_to, report.damaged) == (1 << 40, [])
    assert [message.queue_offset for message in kept(tmp_path)] == list(range(first, 50))


def test_one_compacts_at_a_time(store: MessageStore, tmp_path: Path, clock: ManualClock) -> None:
    fill(store, 10, 10)
    files = OsFiles()
    lock = files.lock(tmp_path / COMPACT_LOCK, alone=False)
    try:
        report = compact(tmp_path, clock)
    finally:
        files.unlock(tmp_path / COMPACT_LOCK, lock)
    assert "in use" in report.busy
    assert (report.queues, report.compacted_to, report.failed) == (0, 0, 0)
    assert not (tmp_path / "mqspark.compacted").exists()
    assert compact(tmp_path, clock).queues == 1


def test_what_a_job_has_compacted_counts(store: MessageStore, tmp_path: Path, clock: ManualClock) -> None:
    fill(store, 10, 10)
    first = store.table.queues["C", 0].entry(0)
    assert first is not None
    task = CompactTask(
        str(tmp_path), None, 1 << 40, [TopicToCompact("C")], 1, clock.wall_ms, measure_only=True
    )
    assert Compactor(task, QuickFiles()).run().compacted_to == first[0]
    compact(tmp_path, clock)
    assert Compactor(task, QuickFiles()).run().compacted_to == 1 << 40


def test_what_somebody_may_have_published_without_a_sync_is_synced_before_it_counts(
    store: MessageStore, tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise its log goes, and a power cut brings the generation before it back."""
    fill(store, 10, 10)
    compact(tmp_path, clock)
    files, synced = QuickFiles(), []
    monkeypatch.setattr(files, "sync_directory", lambda path: synced.append(Path(path)))
    task = CompactTask(str(tmp_path), None, 1 << 40, [TopicToCompact("C")], 1, clock.wall_ms)
    Compactor(task, files).run()
    assert synced == []
    task = msgspec.structs.replace(task, sync_found=True)
    assert Compactor(task, files).run().compacted_to == 1 << 40
    assert synced == [tmp_path / "mqspark.compacted/C/0"]

    def fails(path: object) -> None:
        raise OSError(errno.EIO, "failed")

    monkeypatch.setattr(files, "sync_directory", fails)
    report = Compactor(task, files).run()
    assert (report.compacted_to, report.failed) == (0, 1)


def test_what_is_left_of_a_deleted_topic_is_not_of_the_new_one(
    store: MessageStore, tmp_path: Path, clock: ManualClock
) -> None:
    """A generation that was published late, when its topic was gone."""
    fill(store, 30, 30)
    compact(tmp_path, clock)
    late = (tmp_path / "mqspark.compacted/C").rename(tmp_path / "late")
    store.delete_topic("C")
    finish_deletions(store)
    newest = fill(store, 5, 5, first=500)
    late.rename(tmp_path / "mqspark.compacted/C")
    clock.advance(10_000)
    assert store.reads.get("C", 0, 0, 10, 1 << 20).count == 5
    assert not (tmp_path / "mqspark.compacted/C/0").exists()
    late = tmp_path / "mqspark.compacted/C"
    report = compact(tmp_path, clock, floor=store.deletions.positions["C"])
    assert report.compacted_to == 1 << 40
    assert values(kept(tmp_path)) == newest


class HeldProcess:
    """Compacts nothing, and reports when it is allowed to."""

    pid = 1

    def __init__(self, *_: object, **__: object) -> None:
        self.allowed = threading.Event()
        self.stdin = io.BytesIO()
        self.stdout = self

    def __iter__(self) -> Iterator[bytes]:
        assert self.allowed.wait(60)
        yield msgspec.json.encode(CompactReport(compacted_to=1 << 40))

    def close(self) -> None:
        """As a pipe."""

    def kill(self) -> None:
        self.allowed.set()

    def wait(self) -> int:
        return 0


class Told(io.BytesIO):
    """A pipe whose content stays."""

    def close(self) -> None:
        pass


def run_held(
    process: HeldProcess,
    store: MessageStore,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    meanwhile: Callable[[], None] = lambda: None,
) -> None:
    """A run of topic C in this process; ``meanwhile`` is called once it has begun."""
    monkeypatch.setattr(compactrunner, "Popen", lambda *_, **__: process)
    monkeypatch.setattr(compactrunner, "COMPACT_LOOK_S", 0.001)
    store.upkeep.compact_duty.topics = lambda: ["C"]
    store.upkeep.compact_duty.hold(1, is_full=False)

    async def run() -> None:
        runner = CompactRunner(store, clock)
        runner.start()
        try:
            async with asyncio.timeout(60):
                while not runner.process_id and not store.upkeep.compact_duty.runs:  # noqa: ASYNC110 - nothing tells
                    await asyncio.sleep(0.001)
                meanwhile()
                while not store.upkeep.compact_duty.runs:  # noqa: ASYNC110 - nothing tells
                    await asyncio.sleep(0.001)
        finally:
            runner.stop()

    asyncio.run(run())


def task_told(store: MessageStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> CompactTask:
    """What the process of a run is told."""
    process = HeldProcess()
    process.stdin = Told()
    process.allowed.set()
    run_held(process, store, clock, monkeypatch)
    return msgspec.json.decode(process.stdin.getvalue(), type=CompactTask)


def test_how_much_memory_a_run_takes_is_a_setting(
    store: MessageStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """maxOffsetMapSize."""
    store.config.max_offset_map_size = 12_345
    assert task_told(store, clock, monkeypatch).map_bytes == 12_345


@pytest.mark.parametrize("step_ms", [0, 365 * DELETE_RETENTION_MS])
def test_a_clock_that_was_set_forward_makes_no_tombstone_old(
    store: MessageStore, tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, step_ms: int
) -> None:
    put(store, "C", 0, b"", b"KEYS\x01gone\x02")
    fill(store, 3, 3)
    clock.wall_ms += step_ms
    task = task_told(store, clock, monkeypatch)
    assert task.now_ms == (0 if step_ms else clock.wall_ms)
    clock.wall_ms = task.now_ms
    compact(tmp_path, clock)
    assert "gone" in values(kept(tmp_path))


def test_what_a_run_has_published_of_a_topic_deleted_meanwhile_goes_with_the_run(
    store: MessageStore, tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once the deletion is forgotten, nothing could tell it from the queue of a new topic."""
    fill(store, 30, 30)
    compact(tmp_path, clock)
    process = HeldProcess()

    def delete_and_make_again() -> None:
        late = (tmp_path / "mqspark.compacted/C").rename(tmp_path / "late")
        store.delete_topic("C")
        finish_deletions(store)
        late.rename(tmp_path / "mqspark.compacted/C")
        process.allowed.set()

    run_held(process, store, clock, monkeypatch, delete_and_make_again)
    assert store.upkeep.compact_duty.problem is None
    assert not (tmp_path / "mqspark.compacted/C").exists()


def test_a_queue_that_fails_is_said_and_holds_the_log(
    store: MessageStore, tmp_path: Path, clock: ManualClock
) -> None:
    fill(store, 10, 10)
    compact(tmp_path, clock)
    (tmp_path / "mqspark.compacted/C/0/current").write_text("{}")
    put_synced(store, "C", 1, b"x", b"KEYS\x01k\x02")
    report = compact(tmp_path, clock)
    assert (report.failed, report.queues, report.compacted_to) == (1, 1, 0)
    assert "queue C/0" in report.problems[0]
    assert "describes no generation" in report.problems[0]
    assert len(kept(tmp_path, 1)) == 1
