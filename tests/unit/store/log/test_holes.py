"""Holes that a power cut leaves in what was written and not synced, in a log that slaves are to copy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.store_tools import complete, crash, drain, flush, make_store, opened, put


def written(root: Path) -> list[tuple[int, int, int]]:
    """A log of four messages; where they are."""
    store = opened(root, sync=True)
    places = [put(store, "T", 0, b"%d" % number + b"x" * 600) for number in range(4)]
    flush(store)
    crash(store)
    return places


def tear(root: Path, places: list[tuple[int, int, int]], number: int) -> None:
    segment = min((root / "commitlog").iterdir())
    data = bytearray(segment.read_bytes())
    _, begin, end = places[number]
    data[begin:end] = bytes(end - begin)
    segment.write_bytes(data)


def test_a_log_is_taken_back_to_its_first_hole(tmp_path: Path) -> None:
    places = written(tmp_path)
    tear(tmp_path, places, 2)
    store = make_store(tmp_path, sync=True)
    report = store.open()
    assert report.damaged == [places[2][1:]]
    store.copy.cut_at_hole(replace(report, sure_position=places[0][2]))
    assert store.log.position == places[2][1]
    assert [message.queue_offset for message in drain(store, "T", 0)] == [0, 1]
    (saved,) = (tmp_path / "mqspark.diverged").iterdir()
    assert len(saved.read_bytes()) == places[3][2] - places[2][1]
    assert put(store, "T", 0, b"next")[0] == 2
    flush(store)
    store.close()
    store = make_store(tmp_path, sync=True)
    assert store.open().damaged == []
    assert [message.queue_offset for message in drain(store, "T", 0)] == [0, 1, 2]


def test_what_was_synced_is_not_taken_back(tmp_path: Path) -> None:
    """A hole there is damage of the disk, and what is behind it may be acknowledged."""
    places = written(tmp_path)
    tear(tmp_path, places, 2)
    store = make_store(tmp_path, sync=True)
    report = store.open()
    assert report.sure_position == places[3][2]
    store.copy.cut_at_hole(report)
    assert store.log.position == places[3][2]
    assert not store.copy.is_cutting


@pytest.mark.parametrize("torn", [5, 10, 15])
def test_all_entries_of_what_is_taken_back_go(tmp_path: Path, torn: int) -> None:
    """Also where a filler among them stands for what a power cut took: it has no position."""
    store = opened(tmp_path, sync=True)
    places = [put(store, "T", 0, b"%d" % number) for number in range(20)]
    flush(store)
    crash(store)
    tear(tmp_path, places, torn)
    store = make_store(tmp_path, sync=True)
    assert store.open().damaged == [places[torn][1:]]
    store.copy.cut_back(places[3][2])
    job = store.copy.job()
    assert job is not None
    complete([job])
    assert store.log.position == places[3][2]
    assert store.offsets.max_offset("T", 0) == 4
    assert put(store, "T", 0, b"next")[0] == 4
    flush(store)
    assert [message.queue_offset for message in drain(store, "T", 0)] == [0, 1, 2, 3, 4]
