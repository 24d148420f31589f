"""Where a ConsumeQueue ends, when some of its entries are fillers."""

from __future__ import annotations

import errno
import random
from pathlib import Path

import pytest

from mqspark.store import MessageStore
from mqspark.store.queue.consumequeue import ENTRY, ENTRY_BYTES, FILLER, LAST_FILLER, ConsumeQueue
from mqspark.store.queue.queuetable import QueueTable
from mqspark.store.tools.fsck import fsck
from mqspark.store.tools.offlinestore import OfflineStore
from tests.support.store_tools import QuickFiles, flush, opened, put

FILE_ENTRIES = 8
RECORD_BYTES = 100
FILLED = -1
"""A filler, among the positions of records."""


def packed(position: int) -> bytes:
    return FILLER if position == FILLED else ENTRY.pack(position, RECORD_BYTES, 0)


def queue_of(root: Path, positions: list[int], first: int = 0) -> ConsumeQueue:
    """A queue whose entries from ``first`` on have these positions, as a start finds it."""
    table = QueueTable(root, QuickFiles(), file_bytes=FILE_ENTRIES * ENTRY_BYTES, max_mapped=4)
    table.load()
    queue = table.create("T", 0)
    queue.set_end(first)
    for position in positions:
        queue.reserve(1)
        queue.settle(packed(position))
    queue.mark_last_fillers()
    table.maps.clear()
    found = QueueTable(root, QuickFiles(), file_bytes=FILE_ENTRIES * ENTRY_BYTES, max_mapped=4)
    found.load()
    return found.queues["T", 0]


def expected(positions: list[int], first: int, limit: int | None) -> tuple[int, int]:
    """By looking at each of them."""
    end, last = first, 0
    for position in positions:
        if position != FILLED and limit is not None and position >= limit:
            break
        end, last = end + 1, 0 if position == FILLED else position + RECORD_BYTES
    return end, last


def drawn(chance: random.Random) -> list[int]:
    """Runs of fillers among records, some of them longer than a file."""
    positions: list[int] = []
    position = 0
    while len(positions) < chance.choice((1, 7, 20, 40)):
        if chance.random() < 0.3:
            positions += [FILLED] * chance.choice(
                (1, 2, FILE_ENTRIES - 1, FILE_ENTRIES, 2 * FILE_ENTRIES + 3)
            )
        positions.append(position)
        position += RECORD_BYTES * chance.randint(1, 3)
    return positions + [FILLED] * chance.choice((0, 0, 1, FILE_ENTRIES))


@pytest.mark.parametrize("seed", range(25))
def test_the_end_is_before_the_first_record_behind_the_limit(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    positions, first = drawn(chance), chance.choice((0, 3, FILE_ENTRIES, 2 * FILE_ENTRIES + 5))
    queue = queue_of(tmp_path, positions, first)
    last = max(positions)
    for limit in (None, *{chance.randint(1, last + RECORD_BYTES) for _ in range(12)}):
        found = queue.locate_end(limit)
        assert found == expected(positions, first, limit), f"limit {limit} of {positions}, from {first} on"


def test_fillers_at_the_begin_of_a_file_do_not_hide_what_is_behind_in_the_file_before(tmp_path: Path) -> None:
    positions = [0, 100, 200, 300, 400, 500, 600, 700, FILLED, FILLED, FILLED, 1100, 1200]
    queue = queue_of(tmp_path, positions)
    assert queue.locate_end(500) == (5, 500)
    assert queue.locate_end(800) == (11, 0), "fillers count as the entry before them"


def test_no_entry_behind_the_limit_stays_among_fillers(tmp_path: Path) -> None:
    positions = [0, 100, 200, FILLED, 400, FILLED, 600, FILLED]
    queue = queue_of(tmp_path, positions)
    assert [queue.locate_end(limit)[0] for limit in (100, 200, 300, 500, 700)] == [1, 2, 4, 6, 8]


def test_what_a_broker_without_this_file_has_put_is_no_damage(tmp_path: Path) -> None:
    """One of an older version had the store open in between, and the next one put nothing into that queue."""
    for topic, is_older in (("T", False), ("T", True), ("U", False)):
        ends = (tmp_path / "mqspark.ends").read_bytes() if is_older else b""
        store = opened(tmp_path)
        for _ in range(5):
            put(store, topic, 0, b"x")
        flush(store)
        store.close()
        if is_older:
            (tmp_path / "mqspark.ends").write_bytes(ends)
    report = fsck(OfflineStore(store.config))
    assert (report.counts, report.entries) == ({}, 15)
    store = opened(tmp_path)
    assert store.damages.found == []
    assert store.offsets.max_offset("T", 0) == 10


def all_entries(root: Path, first: int, end: int) -> list[bytes]:
    low = first - first % FILE_ENTRIES
    files = sorted((root / "T" / "0").iterdir())
    data = b"".join(path.read_bytes() for path in files)[(first - low) * ENTRY_BYTES :]
    return [data[at : at + ENTRY_BYTES] for at in range(0, (end - first) * ENTRY_BYTES, ENTRY_BYTES)]


@pytest.mark.parametrize("seed", range(25))
def test_only_fillers_that_nothing_follows_lead_beyond_every_log(tmp_path: Path, seed: int) -> None:
    """RocketMQ takes these back, and would never add to the queue behind others."""
    chance = random.Random(seed)
    positions, first = drawn(chance), chance.choice((0, 3, FILE_ENTRIES, 2 * FILE_ENTRIES + 5))
    queue = queue_of(tmp_path, positions, first)
    while True:
        wanted = [packed(position) for position in positions]
        for number in range(len(positions) - 1, 0, -1):
            if positions[number] != FILLED:
                break
            wanted[number] = LAST_FILLER
        end = first + len(positions)
        assert all_entries(tmp_path, first, end) == wanted
        if len(positions) > 60:
            break
        queue.set_end(queue.locate_end(None)[0])
        assert queue.max_offset == end
        more = drawn(chance)
        for position in more:
            queue.reserve(1)
            queue.settle(packed(position))
        positions += more
        queue.mark_last_fillers()


def test_a_filler_that_is_healed_makes_those_before_it_plain(tmp_path: Path) -> None:
    queue = queue_of(tmp_path, [0, FILLED, FILLED, FILLED])
    queue.set_end(queue.locate_end(None)[0])
    queue.replace(2, packed(700))
    assert all_entries(tmp_path, 0, 4) == [packed(0), FILLER, packed(700), FILLER]
    queue.mark_last_fillers()
    queue.reserve(1)
    queue.settle(packed(900))
    assert all_entries(tmp_path, 0, 5) == [packed(0), FILLER, packed(700), FILLER, packed(900)]


def test_fillers_that_end_a_queue_again_are_marked(tmp_path: Path) -> None:
    """A record behind them was in doubt, or cut back; or one before them was healed."""
    queue = queue_of(tmp_path, [0, FILLED, FILLED, 300])
    queue.set_end(queue.locate_end(None)[0])
    queue.set_end(3)
    queue.mark_last_fillers()
    assert all_entries(tmp_path, 0, 3) == [packed(0), LAST_FILLER, LAST_FILLER]
    queue.replace(1, packed(100))
    queue.mark_last_fillers()
    assert all_entries(tmp_path, 0, 3) == [packed(0), packed(100), LAST_FILLER]


def test_a_clean_stop_marks_what_was_healed_meanwhile(tmp_path: Path) -> None:
    store = opened(tmp_path)
    positions = [put(store, "T", 0, b"x")[1] for _ in range(3)]
    flush(store)
    queue = store.table.queues["T", 0]
    right = queue.packed_entry(1)
    for offset in (1, 2):
        queue.replace(offset, FILLER)
    assert right is not None
    queue.replace(1, right)
    store.close()
    data = (store.data.paths.consume_queue / "T" / "0" / f"{0:020d}").read_bytes()[: 3 * ENTRY_BYTES]
    assert data[ENTRY_BYTES:] == right + LAST_FILLER
    assert ENTRY.unpack_from(data)[0] == positions[0]


def test_a_queue_of_fillers_alone_keeps_them(tmp_path: Path) -> None:
    """They say where it begins."""
    queue_of(tmp_path, [FILLED, FILLED], first=3)
    assert all_entries(tmp_path, 0, 5) == [FILLER] * 5


def test_fillers_become_plain_ones_after_a_shortage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = queue_of(tmp_path, [0, FILLED, FILLED])
    queue.set_end(queue.locate_end(None)[0])
    queue.reserve(1)
    with monkeypatch.context() as patch:
        patch.setattr(QuickFiles, "write", lambda *_: _short())
        with pytest.raises(OSError, match="too many files"):
            queue.append(packed(900))
    assert all_entries(tmp_path, 0, 3) == [packed(0), LAST_FILLER, LAST_FILLER]
    queue.append(packed(900))
    assert all_entries(tmp_path, 0, 4) == [packed(0), FILLER, FILLER, packed(900)]


def _short() -> None:
    raise OSError(errno.EMFILE, "too many files")


def test_fillers_become_plain_ones_when_no_entry_is_left_before_them(tmp_path: Path) -> None:
    """RocketMQ would drop all of them, and give their offsets again."""
    queue = queue_of(tmp_path, [*range(0, FILE_ENTRIES * 100, 100), FILLED, FILLED, FILLED])
    queue.set_end(queue.locate_end(None)[0])
    queue.remove_oldest_file()
    assert all_entries(tmp_path, FILE_ENTRIES, FILE_ENTRIES + 3) == [LAST_FILLER] * 3
    queue.mark_last_fillers()
    assert all_entries(tmp_path, FILE_ENTRIES, FILE_ENTRIES + 3) == [FILLER] * 3


def test_fillers_are_no_newer_than_the_records_before_them(store: MessageStore) -> None:
    """A new master asks which queues have records that its topics may not know."""
    _, position, _ = put(store, "T", 0, b"x")
    flush(store)
    queue = store.table.queues["T", 0]
    queue.reserve(1)
    queue.settle(FILLER)
    queue.mark_last_fillers()
    assert store.offsets.queues_since(position) == {"T": [0]}
    assert store.offsets.queues_since(position + 1) == {}
