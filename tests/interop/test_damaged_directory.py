"""A directory with damage in its log, or after a power cut: what a real broker and ours make of it, in turn.

Both cut a torn end behind the last whole record. Where whole records follow the damage, RocketMQ cuts them off, and
ours keeps them (docs/decisions.md).
"""

import os
import random
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from shutil import copy

import pytest

from tests.interop.directories import BATCH, PLAIN, QUEUES, SETTINGS, Mover, make_directory, records_of
from tests.interop.jars import Jars
from tests.interop.rocketmq import rocketmq_broker
from tests.interop.topics import dispatched
from tests.support import storefiles
from tests.support.clusters import Cluster, mqspark_broker
from tests.support.processes import free_port, mqspark_command, run_to_end, set_options
from tests.support.remoting import GET_MAX_OFFSET, GET_MIN_OFFSET, RawConnection, log_end
from tests.support.store_tools import copy_store

pytestmark = pytest.mark.slow("real brokers start at every stop; tests/crash has our side of it")

QUEUE = (PLAIN, 0)
FOUND, ELSEWHERE = 0, (19, 20, 21)
PAGE_BYTES = 4096

Run = Callable[..., AbstractContextManager[Cluster]]


@pytest.fixture
def ours() -> Run:
    return lambda folder, stop=signal.SIGTERM: mqspark_broker(
        folder, f"127.0.0.1:{free_port()}", SETTINGS, stop_signal=stop
    )


@pytest.fixture
def theirs(jars: Jars) -> Run:
    return lambda folder, stop=signal.SIGKILL: rocketmq_broker(
        jars, folder, f"127.0.0.1:{free_port()}", settings=SETTINGS, stop_signal=stop, registered=False
    )


def send(broker: Cluster, body: bytes) -> None:
    with RawConnection(broker.broker) as connection:
        connection.send(PLAIN, body, QUEUE[1])


class Contents:
    """What a broker serves: the records of each queue in their order, and the ends of the queues."""

    def __init__(self, broker: Cluster) -> None:
        self.records: dict[tuple[str, int], list[bytes]] = {}
        self.ends: dict[tuple[str, int], int] = {}
        dispatched(broker)
        with RawConnection(broker.broker) as connection:
            for topic, queue_id in QUEUES:
                where = {"topic": topic, "queueId": queue_id}
                at = max(int(connection.request(GET_MIN_OFFSET, **where).ext["offset"]), 0)
                end = int(connection.request(GET_MAX_OFFSET, **where).ext["offset"])
                records = self.records[topic, queue_id] = []
                self.ends[topic, queue_id] = end
                while at < end:
                    reply = connection.pull(topic, queue_id, at, count=1 if topic == BATCH else 32)
                    assert reply.code == FOUND or reply.code in ELSEWHERE, (topic, queue_id, at, reply)
                    records += records_of(reply.body) if reply.code == FOUND else []
                    following = int(reply.ext["nextBeginOffset"])
                    assert following > at, (topic, queue_id, at, reply)
                    at = following

    @property
    def count(self) -> int:
        return sum(map(len, self.records.values()))

    def is_part_of(self, other: "Contents") -> bool:
        return all(set(records) <= set(other.records[queue]) for queue, records in self.records.items())


def last_record(store: Path) -> tuple[Path, int, int]:
    """The segment with the log's end, and where in it the last record begins and ends."""
    *_, path = (path for path in storefiles.segments_of(store) if any(path.read_bytes()[:8]))
    *_, (at, size) = storefiles.records(path.read_bytes())
    return path, at, at + size


def overwrite(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


TORN: dict[str, Callable[[Path, int, int], None]] = {
    "the second half is missing": lambda path, low, high: overwrite(
        path, (low + high) // 2, bytes(high - (low + high) // 2)
    ),
    "the head is missing": lambda path, low, high: overwrite(path, low, bytes(60)),
    "a bit is flipped": lambda path, low, high: overwrite(path, low + 200, b"?"),
    "garbage follows": lambda path, low, high: overwrite(path, high, random.Random(1).randbytes(3000)),
}
"""Damage to the last record, by its begin and end."""


@pytest.mark.parametrize(
    ("writer", "kill", "damage"),
    [
        ("ours", False, "the second half is missing"),
        ("ours", False, "a bit is flipped"),
        ("ours", True, "the head is missing"),
        ("ours", True, "garbage follows"),
        ("theirs", True, "the second half is missing"),
        ("theirs", True, "a bit is flipped"),
    ],
)
def test_a_torn_end_is_cut_at_the_same_place(
    ours: Run, theirs: Run, tmp_path: Path, writer: str, kill: bool, damage: str
) -> None:
    """And what follows in that queue is seen, by whoever has the directory later."""
    first, other = tmp_path / "first", tmp_path / "other"
    store = make_directory(first)
    stop = signal.SIGKILL if kill else signal.SIGTERM
    with (ours if writer == "ours" else theirs)(first, stop) as broker:
        Mover().write(broker, 6, commit=False)
        send(broker, b"." * 1000)
        before = Contents(broker)
    TORN[damage](*last_record(store))
    is_lost = damage != "garbage follows"
    other.mkdir()
    copy_store(store, other / "store")

    with theirs(first) as broker:
        end, there = log_end(broker.broker), Contents(broker)
    with ours(other) as broker:
        here = Contents(broker)
        assert log_end(broker.broker) == end
    assert here.records == there.records
    before.records[QUEUE] = before.records[QUEUE][: len(before.records[QUEUE]) - is_lost]
    assert there.records == before.records
    # RocketMQ gives the offset to another message; ours does not when it is known that it had one.
    before.ends[QUEUE] -= is_lost
    assert there.ends == before.ends
    assert here.ends in (before.ends, before.ends | {QUEUE: before.ends[QUEUE] + is_lost})
    assert kill or here.ends != there.ends or not is_lost

    for run, folder in ((theirs, other), (ours, first)):
        with run(folder) as broker:
            assert Contents(broker).records == before.records
            send(broker, b"afterwards")
            now = Contents(broker).records
            assert [len(records) for records in now.values()] == [
                len(records) + (queue == QUEUE) for queue, records in before.records.items()
            ]
            assert b"afterwards" in now[QUEUE][-1]


@pytest.mark.parametrize("kill", [False, True], ids=["clean stop", "kill"])
def test_rocketmq_cuts_at_damage_that_ours_steps_over(
    ours: Run, theirs: Run, tmp_path: Path, kill: bool
) -> None:
    first, other = tmp_path / "first", tmp_path / "other"
    store = make_directory(first)
    mover = Mover()
    with ours(first, signal.SIGKILL if kill else signal.SIGTERM) as broker:
        mover.write(broker, 4, commit=False)
        send(broker, b"." * 1000)
        end = log_end(broker.broker)
        ahead = Contents(broker)
        mover.write(broker, 4, commit=False)
        before = Contents(broker)
    path = storefiles.segments_of(store)[0]
    overwrite(path, end - 500, b"?")
    other.mkdir()
    copy_store(store, other / "store")

    lost = ahead.records[QUEUE].pop()
    with ours(first) as broker:
        here = Contents(broker)
    before.records[QUEUE].remove(lost)
    assert here.records == before.records
    assert here.ends == before.ends
    with theirs(other) as broker:
        there = Contents(broker)
    assert there.records == ahead.records, "RocketMQ has what is before the damage"
    with theirs(first) as broker:
        assert Contents(broker).records == ahead.records, "also after ours"


def _after_a_power_cut(base: Path, last: Path, image: Path, rng: random.Random) -> None:
    """Copy ``last`` so that each page of a file that is written in place is there or as it was in ``base``. Our own
    files are as they were then: they say what was synced."""
    copy_store(last, image)
    for path in sorted(path for path in image.rglob("*") if path.is_file()):
        name = path.relative_to(image)
        if name.parts[0].startswith("mqspark."):
            path.unlink()
            if (base / name).exists():
                copy(base / name, path)
        if name.parts[0] not in ("commitlog", "consumequeue", "batchconsumequeue", "index", "checkpoint"):
            continue
        old = base / name
        content = path.read_bytes()
        before = old.read_bytes() if old.exists() else b""
        before = before.ljust(len(content), b"\0")
        for at in range(0, len(content), PAGE_BYTES):
            page, was = content[at : at + PAGE_BYTES], before[at : at + PAGE_BYTES]
            if page != was and rng.random() < 0.4:
                overwrite(path, at, was)


@pytest.mark.parametrize("writer", ["ours", "theirs"])
def test_after_a_power_cut_ours_serves_all_that_rocketmq_does(
    ours: Run, theirs: Run, tmp_path: Path, writer: str
) -> None:
    """Pages of log, queues and index that were written since the last sync are lost at random. After other losses
    RocketMQ may answer no pulls."""
    folder, base = tmp_path / "first", tmp_path / "base"
    images = tmp_path / "here", tmp_path / "there"
    store = make_directory(folder)
    mover = Mover()
    run = ours if writer == "ours" else theirs
    with run(folder, signal.SIGKILL) as broker:
        mover.write(broker, 6, commit=False)
        synced = Contents(broker)
        copy_store(store, base)
        mover.write(broker, 20, commit=False)
        before = Contents(broker)
    for image in images:
        image.mkdir()
        _after_a_power_cut(base, store, image / "store", random.Random(2))
    with ours(images[0]) as broker:
        here = Contents(broker)
    with theirs(images[1]) as broker:
        there = Contents(broker)
    assert here.count < before.count, "something was lost"
    assert here.is_part_of(before)
    assert synced.is_part_of(there)
    assert there.is_part_of(here)
    assert all(here.ends[queue] >= there.ends[queue] for queue in QUEUES), (here.ends, there.ends)


CUTS: dict[str, Callable[[Path], object]] = {
    "halved": lambda path: os.truncate(path, path.stat().st_size // 2),
    "missing": lambda path: path.unlink(),
}


@pytest.mark.parametrize("cut", CUTS)
def test_rocketmq_serves_a_log_with_a_short_file_once_it_is_completed(
    ours: Run, theirs: Run, tmp_path: Path, cut: str
) -> None:
    """And keeps what follows it, which it would remove at other damage. (A consumer of its that meets a lost batch of a
    BatchConsumeQueue gets the one before it again and again.)"""
    store = make_directory(tmp_path)
    with ours(tmp_path) as broker:
        Mover().write(broker, 2, commit=False)
        for _ in range(4):
            send(broker, b"small")
            send(broker, b"." * (700 << 10))
        before = Contents(broker)
    CUTS[cut](storefiles.segments_of(store)[-3])
    if cut == "halved":
        with pytest.raises(AssertionError, match="exited with"), theirs(tmp_path):
            pass
    run_to_end([*mqspark_command(), "store", "to-rocketmq", store, *set_options(SETTINGS)], check=True)
    with theirs(tmp_path) as broker:
        there = Contents(broker)
        send(broker, b"afterwards")
    assert there.ends == before.ends
    assert there.count < before.count
    assert there.is_part_of(before), "no other bytes for what is lost"
    with ours(tmp_path) as broker:
        again = Contents(broker)
    assert b"afterwards" in again.records[QUEUE].pop()
    assert (again.count, again.is_part_of(there)) == (there.count, True)
