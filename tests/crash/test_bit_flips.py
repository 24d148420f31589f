"""Damage to a log of three segments: it costs the record it hits and no other, and it is told where it is.

Which flips can be seen is what ``fsck.py`` says: body by CRC; lengths, place, topic, queue, offset by the queue entry;
tags and keys by their hashes; with enabledAppendPropCRC everything but the times and counts in the head.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from mqspark.message import MessageExt
from mqspark.store import MessageStore
from tests.crash.disk import MemoryFiles, Tree
from tests.support.clocks import ManualClock
from tests.support.draws import some
from tests.support.store_tools import checkpoint, crash, drain, make_store, put, query

ROOT = Path("/disk")
QUEUES = [("Orders", 0), ("Orders", 1), ("Other", 0)]


@dataclass(frozen=True, slots=True)
class Stored:
    queue: tuple[str, int]
    offset: int
    position: int
    end: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Log:
    tree: Tree
    messages: list[Stored]
    clean: bool

    def damaged(self, position: int, change: Callable[[int], int], count: int = 1) -> Tree:
        """The bytes from a position of the log on changed."""
        name = f"{position - position % 4096:020d}"
        content = bytearray(self.tree["commitlog"][name])
        low = position % 4096
        for at in range(low, min(low + count, len(content))):
            content[at] = change(content[at])
        return {**self.tree, "commitlog": {**self.tree["commitlog"], name: bytes(content)}}


def make_log(*, clean: bool, count: int = 60) -> Log:
    chance = random.Random(1)
    files = MemoryFiles(ROOT)
    store = make_store(ROOT, ManualClock(), files)
    store.open()
    messages = []
    for number in range(count):
        queue = chance.choice(QUEUES)
        body = b"message %d " % number * chance.randrange(1, 12)
        offset, position, end = put(store, *queue, body, b"TAGS\x01T\x02KEYS\x01k%d\x02" % number)
        messages.append(Stored(queue, offset, position, end, body))
        store.pipeline.commit()
        job = store.pipeline.begin_flush()
        assert job is not None
        job.run()
        store.pipeline.end_flush(job)
    assert count < 40 or len(store.log.segments) >= 3
    if clean:
        store.close()
    else:
        checkpoint(store)
        crash(store)
    return Log(files.tree(), messages, clean)


def reopened(tree: Tree) -> tuple[MessageStore, dict[tuple[tuple[str, int], int], MessageExt]]:
    store = make_store(ROOT, ManualClock(), MemoryFiles(ROOT, tree))
    store.open()
    return store, {(queue, m.queue_offset): m for queue in QUEUES for m in drain(store, *queue)}


def assert_all_but(log: Log, tree: Tree, lost: set[int]) -> MessageStore:
    """Every message but these is served, equal, at its place; a lost one is not served at all, or as it was."""
    store, served = reopened(tree)
    for number, message in enumerate(log.messages):
        found = served.pop((message.queue, message.offset), None)
        if number not in lost:
            assert found is not None, f"{message} is gone"
        if found is not None:
            assert (found.body, found.physical_offset) == (message.body, message.position)
    assert not served, "nothing else"
    return store


def flips(length: int, *, sample: int) -> Iterator[tuple[int, int]]:
    everything = [(at, bit) for at in range(length) for bit in range(8)]
    yield from everything if sample >= len(everything) else random.Random(length).sample(everything, sample)


def check_flips(log: Log, numbers: list[int], sample: int) -> int:
    count = 0
    for number in numbers:
        message = log.messages[number]
        body_at = 88
        for at, bit in flips(message.end - message.position, sample=sample):
            tree = log.damaged(message.position + at, lambda byte, bit=bit: byte ^ 1 << bit)  # type: ignore[misc]
            store = assert_all_but(log, tree, {number})
            in_body = body_at <= at < body_at + len(message.body)
            if at < 8 or in_body:
                assert store.status.damaged_offsets == [message.position], (at, bit)
            crash(store)
            count += 1
    return count


@pytest.mark.parametrize("clean", some([True, False], 1), ids=["stopped", "killed"])
@pytest.mark.parametrize(
    "each", [15, pytest.param(40, marks=pytest.mark.slow("more bits; 15 is the fast twin"))]
)
def test_a_flipped_bit_anywhere(clean: bool, each: int) -> None:
    log = make_log(clean=clean)
    numbers = list(range(0, 60, 3))
    assert check_flips(log, numbers, each) == 20 * each


@pytest.mark.night("every bit; a sample is the fast twin")
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
def test_every_flipped_bit(clean: bool) -> None:
    check_flips(make_log(clean=clean), list(range(0, 60, 3)), 1 << 30)


def test_a_flip_is_reported_once_and_by_queries_passed_over() -> None:
    log = make_log(clean=True)
    message = log.messages[20]
    store, _ = reopened(log.damaged(message.position + 90, lambda byte: byte ^ 4))
    for _ in range(3):
        drain(store, *message.queue)
    assert store.status.damaged_offsets == [message.position]
    assert store.status.damaged_reads == 4
    assert store.reads.record_at(message.position) is None
    assert query(store, message.queue[0], "k20", 9, 0, 1 << 62) == []
    assert query(store, log.messages[21].queue[0], "k21", 9, 0, 1 << 62) != []


def test_without_the_check_the_reader_has_to_compare() -> None:
    log = make_log(clean=True)
    message = log.messages[20]
    tree = log.damaged(message.position + 90, lambda byte: byte ^ 4)
    store = make_store(ROOT, ManualClock(), MemoryFiles(ROOT, tree), check_crc_on_read=False)
    store.open()
    (found,) = [m for m in drain(store, *message.queue) if m.queue_offset == message.offset]
    assert found.body != message.body
    assert store.status.damaged_offsets == []


# --- the last three records -------------------------------------------------------------------------------------


DAMAGES: dict[str, Callable[[int], int]] = {
    "zeroed": lambda byte: 0,
    "garbage": lambda byte: byte ^ 0x5A,
    **{f"bit {bit}": lambda byte, bit=bit: byte ^ 1 << bit for bit in range(8)},  # type: ignore[misc]
}


def last_three_changed(step: int) -> int:
    """One byte changed, and everything from it on changed, at every ``step``-th byte of the last three records."""
    log = make_log(clean=False, count=24)
    store, _ = reopened(log.tree)
    first = log.messages[-3].position
    end = log.messages[-1].end
    crash(store)
    count = 0
    for position in range(first, end, step):
        hit = {number for number, m in enumerate(log.messages) if m.position <= position < m.end}
        behind = {number for number, m in enumerate(log.messages) if m.end > position}
        for name, change in DAMAGES.items():
            crash(assert_all_or_new_place(log, log.damaged(position, change), hit))
            count += 1
            if not name.startswith("bit"):
                crash(assert_all_or_new_place(log, log.damaged(position, change, 4096), behind))
                count += 1
    return count


def assert_all_or_new_place(log: Log, tree: Tree, lost: set[int]) -> MessageStore:
    """As ``assert_all_but`` for a log whose queues are made again from what it says: what no CRC covers (topic, queue,
    offset) may then put a damaged record elsewhere, never another one."""
    store, served = reopened(strip(tree))
    for number, message in enumerate(log.messages):
        found = served.get((message.queue, message.offset))
        if number not in lost:
            assert found is not None, f"{message} is gone"
            assert (found.body, found.physical_offset) == (message.body, message.position)
    known = {(m.queue, m.offset) for m in log.messages}
    bodies = {log.messages[number].body for number in lost}
    for place, message in served.items():
        assert place in known or message.body in bodies, f"{place} was never sent"
    return store


def strip(tree: Tree) -> Tree:
    """Without checkpoint: recovery has to read everything again."""
    return {
        name: content for name, content in tree.items() if name not in ("checkpoint", "mqspark.checkpoint")
    }


@pytest.mark.slow("hundreds of starts; test_a_flipped_bit_anywhere is the fast twin")
def test_the_last_three_records_sampled() -> None:
    assert last_three_changed(11) > 200


@pytest.mark.slow("every byte; a sample is the fast twin")
@pytest.mark.timeout(3600)
def test_every_byte_of_the_last_three_records() -> None:
    last_three_changed(1)
