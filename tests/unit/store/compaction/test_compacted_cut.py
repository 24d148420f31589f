"""A log that has lost its end after it was compacted: what comes in its place is read, and what was kept stays."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from mqspark.errors import StoreLocked
from mqspark.store import MessageStore
from mqspark.store.compaction.compactedqueues import COMPACT_LOCK, COMPACTED, read_current
from mqspark.store.disk.files import OsFiles
from mqspark.store.tools.compactor import Compactor, CompactTask, TopicToCompact
from tests.support.clocks import ManualClock
from tests.support.store_tools import QuickFiles, complete, drain, flush, opened, put
from tests.support.storefiles import segments_of

QUEUE = Path(COMPACTED) / "C" / "0"


def send(store: MessageStore, key: str, number: int) -> int:
    """Returns where the log ends then."""
    body = f"{key} {number}".encode().ljust(300, b".")
    end: int = put(store, "C", 0, body, f"KEYS\x01{key}\x02".encode())[2]
    flush(store)
    return end


def compact(root: Path) -> None:
    task = CompactTask(str(root), None, 1 << 40, [TopicToCompact("C")], 1 << 20, 1)
    report = Compactor(task, QuickFiles()).run()
    assert (report.failed, report.busy, report.damaged) == (0, "", [])


def values(store: MessageStore) -> dict[str, str]:
    """Key → its last value; checks that offsets go up."""
    messages = drain(store, "C", 0)
    offsets = [message.queue_offset for message in messages]
    assert offsets == sorted(set(offsets))
    return {message.keys or "": message.body.decode().rstrip(".") for message in messages}


def written(root: Path) -> tuple[list[int], dict[str, str]]:
    """A store of sixty messages, compacted as a whole, whose log has the last forty or so. Returns the ends of the
    messages, and the values of the first fifty that are left when the others are taken back."""
    store = opened(root)
    keys = [f"old{number}" for number in range(9)] + ["again"]
    keys += [f"k{number % 4}" for number in range(45)] + ["again"] + ["k0", "k1", "k2", "k3"]
    ends = [send(store, key, number) for number, key in enumerate(keys)]
    compact(root)
    store.close()
    for segment in segments_of(root)[:2]:
        segment.unlink()
    (root / "mqspark.begin").unlink()
    left = {key: f"{key} {number}" for number, key in enumerate(keys[:50])}
    del left["again"]  # its older value was compacted away, and the log has it no longer
    return ends, left


def cut_back(store: MessageStore, position: int) -> bool:
    """Whether it was done."""
    store.copy.cut_back(position)
    complete(store.maintenance())
    return not store.copy.is_cutting


def test_what_comes_after_a_cut_is_read_and_old_values_stay(tmp_path: Path) -> None:
    ends, left = written(tmp_path)
    store = opened(tmp_path)
    before = values(store)
    assert before["again"] == "again 55"
    assert left.items() - before.items() == {(f"k{n}", left[f"k{n}"]) for n in range(4)}
    assert cut_back(store, ends[49])
    assert values(store) == left
    for number in range(5):
        send(store, "new", number)
    assert store.offsets.max_offset("C", 0) == 55
    left["new"] = "new 4"
    assert values(store) == left
    (damage,) = [each for each in store.damages.found if each.kind == "compaction.cut"]
    assert "C/0" in damage.text
    compact(tmp_path)
    current = read_current(tmp_path / QUEUE)
    assert current is not None
    assert (current.end, current.is_partial) == (55, True)
    store.close()
    store = opened(tmp_path)
    assert values(store) == left
    assert store.damages.found == []


def test_nothing_is_taken_back_while_another_process_compacts(tmp_path: Path) -> None:
    ends, left = written(tmp_path)
    store = opened(tmp_path)
    lock = OsFiles().lock(tmp_path / COMPACT_LOCK, alone=False)
    assert not cut_back(store, ends[49])
    assert store.offsets.max_offset("C", 0) == 60
    OsFiles().unlock(tmp_path / COMPACT_LOCK, lock)
    assert cut_back(store, ends[49])
    assert values(store) == left


def test_a_start_finds_a_log_that_is_shorter_than_what_was_compacted(tmp_path: Path) -> None:
    """A job has compacted what was not synced, and a power cut has taken it."""
    early, late = tmp_path / "early", tmp_path / "late"
    store = opened(early)
    ends = [send(store, f"k{number % 7}", number) for number in range(30)]
    store.close()
    shutil.copytree(early, late)
    store = opened(late)
    for number in range(30, 50):
        send(store, f"k{number % 7}", number)
    compact(late)
    store.close()
    shutil.copytree(late / COMPACTED, early / COMPACTED)
    lock = OsFiles().lock(early / COMPACT_LOCK, alone=False)
    with pytest.raises(StoreLocked):
        opened(early)
    OsFiles().unlock(early / COMPACT_LOCK, lock)

    store = opened(early)
    assert store.log.position == ends[-1]
    expected = {f"k{number % 7}": f"k{number % 7} {number}" for number in range(30)}
    assert values(store) == expected
    for number in range(30, 35):
        send(store, "k1", number)
    expected["k1"] = "k1 34"
    assert values(store) == expected
    assert store.damages.found == []  # the log has all of it
    current = read_current(early / QUEUE)
    assert current is not None
    assert (current.end, current.messages, current.is_partial) == (0, 0, False)


def test_what_is_older_than_the_log_is_never_taken_back(tmp_path: Path) -> None:
    """A queue that was made anew from a log that has nothing of it begins at 0: it says nothing of what was kept."""
    written(tmp_path)
    store = opened(tmp_path)
    assert store.reads.compacted.cut(lambda topic, queue_id: (0, 0), store.log.min_offset) == ["C/0"]
    current = read_current(tmp_path / QUEUE)
    assert current is not None
    assert (current.end, current.messages) == (9, 9)


def test_a_queue_that_is_first_compacted_after_its_log_has_begun_to_expire_is_partial(tmp_path: Path) -> None:
    store = opened(tmp_path, ManualClock())
    for number in range(40):
        send(store, f"k{number % 7}", number)
    store.close()
    min((tmp_path / "commitlog").iterdir()).unlink()
    store = opened(tmp_path)
    compact(tmp_path)
    current = read_current(tmp_path / QUEUE)
    assert current is not None
    assert (current.end, current.is_partial) == (40, True)
