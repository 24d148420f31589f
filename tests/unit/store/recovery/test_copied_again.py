"""A copy that has lost records: when they come again, they get their places in the queues again."""

from __future__ import annotations

from pathlib import Path

import pytest

from mqspark.message import Message
from mqspark.record.batchitems import encode_batch
from mqspark.store import MessageStore
from tests.support.store_tools import drain, flush, opened, pending, put, put_synced

TOPIC, QUEUE = "Kept", 0
RECORDS = 6
AT_FIRST = 4
"""The copy has so many of them before it loses some."""


def add(store: MessageStore, number: int, *, batch: bool) -> None:
    bodies = [b"%d-%d" % (number, each) * 20 for each in range(3)]
    if batch:
        store.appender.use_batch_queues(TOPIC)
        content = encode_batch([Message(topic=TOPIC, body=body) for body in bodies])
        record = pending(TOPIC, QUEUE, content, b"UNIQ_KEY\x01u\x02")  # fmt: skip
        store.appender.put_inner_batch(record, len(bodies))
    else:
        put(store, TOPIC, QUEUE, bodies[0])
    flush(store)


@pytest.mark.parametrize("batch", [False, True], ids=["messages", "batches"])
@pytest.mark.parametrize("lost", [1, 2, 3])
def test_what_a_start_has_lost_comes_again(tmp_path: Path, lost: int, batch: bool) -> None:
    master = opened(tmp_path / "master")
    ends = [0]
    for number in range(RECORDS):
        add(master, number, batch=batch)
        ends.append(master.log.position)
    log = master.copy.log_bytes(0, ends[-1])
    copy = opened(tmp_path / "copy")
    copy.copy.follow()
    copy.copy.append(log[: ends[AT_FIRST]])
    flush(copy)
    next_offset = copy.offsets.max_offset(TOPIC, QUEUE)
    copy.close()
    first = ends[AT_FIRST - lost]
    (path,) = (tmp_path / "copy" / "commitlog").iterdir()
    with path.open("r+b") as file:
        file.seek(first)
        file.write(bytes(path.stat().st_size - first))
    (tmp_path / "copy" / "abort").touch()

    copy = opened(tmp_path / "copy")
    assert copy.log.position == first
    assert batch or copy.offsets.max_offset(TOPIC, QUEUE) == next_offset, "their offsets are not given again"
    copy.copy.follow()
    copy.copy.append(log[first:])
    flush(copy)
    expected = [(each.queue_offset, each.body) for each in drain(master, TOPIC, QUEUE)]
    assert [(each.queue_offset, each.body) for each in drain(copy, TOPIC, QUEUE)] == expected


def test_a_gap_becomes_no_batch(tmp_path: Path) -> None:
    """The first batch of a topic says that its queues are of batches, also the entries that are there."""
    master, copy = opened(tmp_path / "master"), opened(tmp_path / "copy")
    master.appender.use_batch_queues(TOPIC)
    put_synced(master, TOPIC, QUEUE, b"first")
    master.batch_table.batch_queues[TOPIC, QUEUE].skip_to(2)
    put_synced(master, TOPIC, QUEUE, b"after a gap")
    ordinary = master.log.position
    add(master, 3, batch=True)
    log = master.copy.log_bytes(0, master.log.position)
    copy.copy.follow()
    for part in (log[:ordinary], log[ordinary:]):
        copy.copy.append(part)
        flush(copy)
    found = [copy.batch_table.batch_queues[TOPIC, QUEUE].entry(number) for number in range(3)]
    assert [entry and entry.base for entry in found] == [0, 2, 3]
    expected = [(each.queue_offset, each.body) for each in drain(master, TOPIC, QUEUE)]
    assert [(each.queue_offset, each.body) for each in drain(copy, TOPIC, QUEUE)] == expected
