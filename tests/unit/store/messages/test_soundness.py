"""Whole records told from damaged ones, many at once: never more generous than looking at each."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqspark.message import encode_host
from mqspark.record.record import Verdict, check_record
from mqspark.store import MessageStore
from mqspark.store.messages.soundness import are_surely_sound, surely_sound
from tests.support.clocks import ManualClock
from tests.support.draws import draws
from tests.support.store_tools import BORN_HOST, opened, put
from tests.support.storefiles import segments_of

SIZES = {"mapped_file_size_commit_log": 1 << 16, "mapped_file_size_consume_queue": 20_000}


def filled(root: Path, topic: str = "T", host: bytes = BORN_HOST) -> MessageStore:
    """Twenty records of a queue, others between them, opened anew: all of them come from the disk."""
    store = opened(root, ManualClock(), **SIZES)
    for number in range(20):
        for name in (topic, "Other"):
            properties = b"KEYS\x01%d\x02" % number if number % 3 else b""
            put(store, name, 2, b"body %d " % number * (number % 5), properties, born_host=host)
    store.pipeline.commit()
    store.close()
    return opened(root, ManualClock(), **SIZES)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> MessageStore:
    return filled(tmp_path_factory.mktemp("sound"))


def places(store: MessageStore, topic: str = "T") -> tuple[np.ndarray, np.ndarray]:
    entries = store.table.queues[topic, 2].read(0, 99)
    starts = entries["position"].astype(np.int64)
    return starts, starts + entries["size"]


def sound(store: MessageStore, data: bytearray, topic: str = "T") -> list[bool]:
    starts, ends = places(store, topic)
    queue = store.table.queues[topic, 2]
    view, offsets = memoryview(data), np.arange(len(starts))
    found = are_surely_sound(view, starts, ends, 0, queue, offsets).tolist()
    each = zip(starts.tolist(), ends.tolist(), offsets.tolist(), strict=True)
    assert found == [surely_sound(queue)(view, start, end, start, offset) for start, end, offset in each]
    return found


def image(store: MessageStore) -> bytearray:
    return bytearray(store.log.view(store.log.segments[0]))


@pytest.mark.parametrize("topic", ["T", "T" * 200])
def test_what_is_whole_is_sound(tmp_path: Path, topic: str) -> None:
    store = filled(tmp_path, topic)
    assert sound(store, image(store), topic) == [True] * 20


def test_long_hosts_are_left_to_others(tmp_path: Path) -> None:
    store = filled(tmp_path, host=encode_host("fd00::1", 50000))
    assert not any(sound(store, image(store)))
    assert store.reads.get("T", 2, 0, 99, 1 << 20).count == 20


@given(st.data())
@settings(max_examples=draws(300))
def test_damage_is_never_sound(stored: MessageStore, data: st.DataObject) -> None:
    octets = image(stored)
    end = stored.log.position
    for _ in range(data.draw(st.integers(1, 3))):
        octets[data.draw(st.integers(0, end - 1))] ^= 1 << data.draw(st.integers(0, 7))
    for start, stop, offset, is_sound in zip(
        *map(np.ndarray.tolist, places(stored)), range(20), sound(stored, octets), strict=True
    ):
        record = check_record(memoryview(octets)[start:stop], 0, stop - start, verify_crc=True)
        expected = (record.topic, record.queue_id, record.queue_offset, record.physical_offset)
        whole = record.verdict is Verdict.VALID and expected == ("T", 2, offset, start)
        magic_and_size = bytes(octets[start : start + 8]) == bytes(image(stored)[start : start + 8])
        assert is_sound <= whole or not magic_and_size


def test_a_reader_gets_all_but_the_damaged_one(tmp_path: Path) -> None:
    filled(tmp_path).close()
    path = tmp_path / "commitlog" / ("0" * 20)
    with path.open("r+b") as file:
        data = file.read()
        file.seek(data.index(b"body 7 "))
        file.write(b"Body 7 ")
    store = opened(tmp_path, ManualClock(), **SIZES)
    result = store.reads.get("Other", 2, 0, 99, 1 << 20)
    assert store.reads.get("T", 2, 0, 99, 1 << 20).count == 19
    assert (result.count, store.status.damaged_reads) == (20, 1)


def test_a_segment_that_somebody_cut_to_nothing_is_no_fault_of_the_reader(tmp_path: Path) -> None:
    sizes = {"mapped_file_size_commit_log": 4096, "mapped_file_size_consume_queue": 20_000}
    store = opened(tmp_path, ManualClock(), **sizes)
    for number in range(120):
        put(store, "T", 0, b"%d" % number)
    store.pipeline.commit()
    store.close()
    first, *others = segments_of(tmp_path)
    with first.open("r+b") as file:
        file.truncate(50)
    assert others
    store = opened(tmp_path, ManualClock(), **sizes)
    result = store.reads.get("T", 0, 0, 20, 1 << 20)
    assert (result.count, store.status.damaged_reads) == (0, 20)
