"""Queue entries that do not lead to their records, met by a consumer before the scrub."""

from __future__ import annotations

from pathlib import Path

import pytest

from mqspark.store import MessageStore
from mqspark.store.log.commitlog import CommitLog
from mqspark.store.queue.consumequeue import ENTRY, ENTRY_BYTES, FILLER
from tests.support.store_tools import drain, flush, opened, put

LARGE = {"mapped_file_size_commit_log": 1 << 16, "mapped_file_size_consume_queue": 100 * ENTRY_BYTES}


def filled(root: Path, **settings: object) -> MessageStore:
    store = opened(root, scrub_bytes_per_second=0, **{**LARGE, **settings})
    for number in range(90):
        put(store, "T", number % 2, b"%d" % number, b"TAGS\x01t%d\x02" % (number % 3))
        put(store, "Other", number % 2, b"other")
    flush(store)
    return store


def bodies(store: MessageStore, **limits: int) -> list[int]:
    return [int(message.body) for message in drain(store, "T", 0, **limits)]


ALL = list(range(0, 90, 2))
WRONG = {
    "nowhere": ENTRY.pack(1 << 40, 100, 7),
    "negative": ENTRY.pack(-5, 100, 7),
    "zero": bytes(ENTRY_BYTES),
    "inside another record": ENTRY.pack(3, 100, 7),
    "no size": ENTRY.pack(200, -1, 7),
    "random": bytes(range(130, 150)),
}


@pytest.mark.parametrize("entry", WRONG.values(), ids=list(WRONG))
@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("at_once", [4, 80])
def test_a_consumer_gets_the_message_of_a_wrong_entry(
    tmp_path: Path, entry: bytes, restarted: bool, at_once: int
) -> None:
    store = filled(tmp_path)
    queue = store.table.queues["T", 0]
    right = [queue.packed_entry(offset) for offset in (0, 20, 21, 44)]
    if restarted:
        store.close()
        store = opened(tmp_path, scrub_bytes_per_second=0, **LARGE)
        queue = store.table.queues["T", 0]
    for offset in (20, 21):
        queue.replace(offset, entry)
    assert bodies(store, max_messages=at_once) == ALL
    assert [queue.packed_entry(offset) for offset in (0, 20, 21, 44)] == right
    healed = [each for each in store.damages.as_dicts(10) if each["kind"] == "queue.differs"]
    assert [each["outcome"] for each in healed] == ["healed"]


def test_the_entry_of_another_record_is_corrected_after_a_restart(tmp_path: Path) -> None:
    store = filled(tmp_path)
    store.close()
    store = opened(tmp_path, scrub_bytes_per_second=0, **LARGE)
    queue = store.table.queues["T", 0]
    other = queue.packed_entry(30)
    assert other is not None
    queue.replace(20, other)
    assert bodies(store) == ALL


def test_what_the_log_has_lost_is_searched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = filled(tmp_path)
    queue = store.table.queues["T", 0]
    looks: list[int] = []
    look = CommitLog.slice

    def counted(log: CommitLog, position: int, size: int) -> memoryview | None:
        looks.append(position)
        return look(log, position, size)

    monkeypatch.setattr(CommitLog, "slice", counted)
    position = (queue.entry(20) or (0,))[0]
    segment = store.log.segments[0]
    data = bytearray(segment.path.read_bytes())
    data[position : position + 8] = b"\xff" * 8
    segment.path.write_bytes(data)
    counts = []
    for _ in range(3):
        looks.clear()
        assert bodies(store) == [number for number in ALL if number != 40]
        counts.append(len(looks))
    first, again, later = counts
    assert first > again == later
    queue.replace(30, FILLER)
    looks.clear()
    assert bodies(store) == [number for number in ALL if number not in (40, 60)]
    assert len(looks) <= later, "a filler stands for a record that is known to be lost"


def test_a_read_only_store_is_left_as_it_is(tmp_path: Path) -> None:
    store = filled(tmp_path)
    queue = store.table.queues["T", 0]
    queue.replace(20, WRONG["nowhere"])
    store.condition.distrust(store.paths.lock, OSError("a test"))
    store.pipeline.commit()
    assert bodies(store) == [number for number in ALL if number != 40]
    assert queue.packed_entry(20) == WRONG["nowhere"]
    store.abandon()
