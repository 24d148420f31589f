"""``validate`` of a store: silent while all is well, an AssertionError for state that contradicts itself. Property
tests call it after every step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mqspark.store import MessageStore
from mqspark.store.disk.files import OsFiles
from mqspark.store.log.commitlog import CommitLog
from mqspark.store.queue.consumequeue import ENTRY_BYTES
from mqspark.store.queue.queuetable import QueueTable
from tests.support.invariants import validate
from tests.support.store_tools import flush, put


@pytest.fixture
def log(tmp_path: Path) -> Iterator[CommitLog]:
    """Two segments, and 100 bytes that are not written."""
    log = CommitLog(tmp_path, OsFiles(), segment_bytes=4096, allocation_step=4096, max_mapped=0)
    log.start_at(4000)
    log.make_room(100)
    log.append((b"x" * 100,), 100)
    yield log
    log.close()


@pytest.fixture
def table(tmp_path: Path) -> QueueTable:
    """One queue with an entry that is visible and one that is not."""
    table = QueueTable(tmp_path, OsFiles(), file_bytes=40, max_mapped=0)
    queue = table.create("T", 0)
    queue.reserve(3)
    queue.settle(bytes(ENTRY_BYTES))
    queue.advance(bytes(ENTRY_BYTES))
    return table


def moved(name: str, by: int) -> Callable[[CommitLog], None]:
    return lambda log: setattr(log, name, getattr(log, name) + by)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (moved("durable", 5000), "more is durable"),
        (moved("written", 1), "100 bytes wait, positions say 99"),
        (moved("position", 5000), "behind the active segment"),
        (moved("room_end", 1 << 20), "nothing is allocated"),
        (lambda log: log.pending.pop(), "0 bytes wait, positions say 100"),
        (lambda log: log.segments.reverse(), "out of order"),
        (lambda log: setattr(log.segments[0], "end", 1), "ends at 1"),
        (lambda log: setattr(log.segments[0], "start", 1), "starts at 1"),
    ],
)
def test_a_log(log: CommitLog, damage: Callable[[CommitLog], object], says: str) -> None:
    validate(log)
    assert len(log.segments) == 2
    damage(log)
    with pytest.raises(AssertionError, match=says):
        validate(log)


def a_wrong_key(table: QueueTable) -> None:
    table.queues["T", 1] = table.queues.pop(("T", 0))


def hidden_and_visible(table: QueueTable) -> None:
    table.hidden["T"] = [table.queues["T", 0]]


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda table: setattr(table.queues["T", 0], "min_offset", 2), "offsets are out of order"),
        (lambda table: setattr(table.queues["T", 0], "next_offset", 1), "entries without offsets"),
        (lambda table: table.queues["T", 0].entries.pop(), "part of an entry"),
        (lambda table: table.queues["T", 0].file_starts.append(0), "files of .* out of order"),
        (lambda table: table.queues["T", 0].file_starts.append(41), "starts inside one"),
        (a_wrong_key, "as \\('T', 1\\)"),
        (hidden_and_visible, "deleted queue is visible"),
    ],
)
def test_a_table(table: QueueTable, damage: Callable[[QueueTable], object], says: str) -> None:
    validate(table)
    damage(table)
    with pytest.raises(AssertionError, match=says):
        validate(table)


def test_a_store_asks_its_parts(store: MessageStore) -> None:
    put(store, "T", 0, b"1")
    validate(store)
    flush(store)
    validate(store)
    store.close()
    validate(store)


def test_queues_of_a_topic_and_light_queues_are_found_without_a_walk_over_all(tmp_path: Path) -> None:
    table = QueueTable(tmp_path, OsFiles(), file_bytes=40, max_mapped=0)
    for number in range(1_500):
        table.create(f"T{number:04d}", number % 3)
    for queue_id in (2, 0, 10):
        table.create("Orders", queue_id)
    for name in ("%LMQ%b", "%LMQ%a"):
        table.create(name, 0)
    table.create("%Z", 0)
    validate(table)
    assert table.keys_of("Orders") == [("Orders", 0), ("Orders", 2), ("Orders", 10)]
    assert table.keys_of("Order") == []
    seen = table.light_names()
    assert next(seen) == "%LMQ%a"
    table.hide_topics({"Orders", "%LMQ%b", "T0001", "Missing"})
    assert [*seen] == ["%LMQ%b"]  # as it was when the walk began
    assert [*table.light_names()] == ["%LMQ%a"]
    assert len(table.queues) == 1_501
    assert sorted(table.hidden) == ["%LMQ%b", "Orders", "T0001"]
    validate(table)
