"""Power cuts while fillers at the end of a queue become plain ones.

RocketMQ would cut the queue at one that leads beyond every log, so none of these may be before another entry, once a
start has finished.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mqspark.store.queue.consumequeue import ENTRY, ENTRY_BYTES, FILLER, LAST_FILLER, ConsumeQueue
from mqspark.store.queue.queuetable import QueueTable
from tests.crash.disk import MemoryFiles, Noted, Power, RecordedFiles, Tree

ROOT = Path("/queues")
FILE_ENTRIES = 150
"""3,000 bytes: several sectors."""
RECORD_BYTES = 100
FILLERS = 200
"""They begin in one file and end in the next one."""
MARK = 10_000
"""The checkpoint: what lies before it in the log is not read again."""
NEW = MARK + 500


def entry(position: int) -> bytes:
    return ENTRY.pack(position, RECORD_BYTES, 0)


def table_of(files: MemoryFiles) -> tuple[QueueTable, ConsumeQueue]:
    table = QueueTable(ROOT, files, file_bytes=FILE_ENTRIES * ENTRY_BYTES, max_mapped=4)
    table.load()
    queue = table.queues.get(("T", 0)) or table.create("T", 0)
    return table, queue


def prepared() -> tuple[QueueTable, ConsumeQueue, RecordedFiles]:
    """A queue of a record and fillers, as a start has left it: all of it is on disk."""
    files = RecordedFiles(ROOT)
    table, queue = table_of(files)
    queue.reserve(FILLERS + 1)
    queue.settle(entry(0) + FILLER * FILLERS)
    queue.mark_last_fillers()
    sync(files, table)
    files.note("begin")
    return table, queue, files


def sync(files: MemoryFiles, table: QueueTable) -> None:
    for path in table.dirty_files:
        fd = files.open(path)
        files.sync(fd)
        files.close(fd)
    table.dirty_files.clear()
    for directory in sorted(map(str, table.new_directories)):
        files.sync_directory(directory)
    table.new_directories.clear()


def add(queue: ConsumeQueue) -> None:
    """What a put and its commit do."""
    queue.reserve(1)
    queue.settle(entry(NEW))


def heal(queue: ConsumeQueue) -> None:
    """Another replica has given the record of a filler in the middle."""
    queue.replace(FILLERS - 20, entry(5_000))


def heal_behind(queue: ConsumeQueue) -> None:
    """It has given one that the queue had no filler for."""
    queue.settle_last_fillers()
    queue.reserve(1)
    queue.settle(entry(5_000))


def cuts(files: RecordedFiles, chance: random.Random) -> Iterator[tuple[int, Tree]]:
    power, has_begun = Power(files), False
    for number, event in enumerate([*files.events, None]):
        for choice in power.choices(40, chance) if has_begun else ():
            yield number, power.image(choice)
        if event is None:
            return
        power.follow(event)
        has_begun = has_begun or (isinstance(event, Noted) and event.what == "begin")


def started_again(tree: Tree, *, is_new_there: bool) -> list[bytes]:
    """The entries after a start that reads the log from the checkpoint on."""
    table, queue = table_of(MemoryFiles(ROOT, tree))
    queue.set_end(queue.locate_end(MARK)[0])
    if is_new_there:
        add(queue)
    queue.clear_tail()
    queue.mark_last_fillers()
    data = queue.rows(0, queue.max_offset)
    table.maps.clear()
    return [data[at : at + ENTRY_BYTES] for at in range(0, len(data), ENTRY_BYTES)]


@pytest.mark.parametrize(
    "acts",
    [(add,), (heal,), (heal_behind,), (add, heal), (heal, add), (heal_behind, add)],
    ids=lambda acts: "-".join(act.__name__ for act in acts),
)
def test_no_cut_leaves_a_last_filler_before_another_entry(
    acts: tuple[Callable[[ConsumeQueue], None], ...],
) -> None:
    table, queue, files = prepared()
    for act in acts:
        act(queue)
    sync(files, table)
    count = 0
    for number, tree in cuts(files, random.Random(1)):
        for is_new_there in (False, True) if add in acts else (False,):
            entries = started_again(tree, is_new_there=is_new_there)
            ends = [at for at, packed in enumerate(entries) if packed not in (FILLER, LAST_FILLER)]
            assert LAST_FILLER not in entries[: ends[-1]], f"event {number}, with {is_new_there=}"
            assert FILLER not in entries[ends[-1] :], f"event {number}, with {is_new_there=}"
            count += 1
    assert count > 100
