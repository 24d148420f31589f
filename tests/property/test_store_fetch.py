"""Few records are taken in a loop and many as columns: nobody can tell which."""

from __future__ import annotations

from collections.abc import Iterator
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqspark.store import MessageStore
from mqspark.store.messages import fetch
from tests.support.draws import draws
from tests.support.store_tools import checkpoint, flush, opened, put
from tests.support.storefiles import segments_of

TAGS = ("a", "b")
LONG_QUEUES = {"mapped_file_size_consume_queue": 20_000}  # a read ends with its queue file


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MessageStore]:
    """Two queues over several segments, a part from the disk and a part new, both damaged in places."""
    root = tmp_path_factory.mktemp("fetch")
    before = opened(root, **LONG_QUEUES)
    fill(before, 0, 60)
    before.close()
    for number, path in enumerate(segments_of(root)):
        with path.open("r+b") as file:
            data = file.read()
            for text in (b"body 7", b"body 25"):
                if (at := data.find(text)) >= 0:
                    file.seek(at)
                    file.write(b"B")
            if number == 1:
                file.seek(data.find(b"body") - 88)
                file.write(b"\0\0\1\0")
    store = opened(root, **LONG_QUEUES)
    fill(store, 60, 100)
    for path in segments_of(root):
        if (at := path.read_bytes().find(b"body 70 ")) >= 88:
            with path.open("r+b") as file:
                file.seek(at - 88)
                file.write(b"\0\0\1\0")
    yield store
    store.close()


def fill(store: MessageStore, begin: int, end: int) -> None:
    for number in range(begin, end):
        for queue_id in range(number % 3 + 1):
            body = b"body %d " % number * (1 + number % 7)
            put(store, "T", queue_id % 2, body, f"TAGS\x01{TAGS[number % 2]}\x02".encode())
        if number % 4 == 3:
            flush(store)
    flush(store)
    checkpoint(store)


@given(st.data())
@settings(max_examples=draws(400))
def test_both_ways_agree(store: MessageStore, data: st.DataObject) -> None:
    queue_id = data.draw(st.integers(0, 1))
    offset = data.draw(st.integers(0, store.offsets.max_offset("T", queue_id)))
    limits = data.draw(st.integers(1, 40)), data.draw(st.sampled_from([1, 150, 1000, 1 << 20]))
    codes = frozenset({ord("a")}) if data.draw(st.booleans()) else None
    bulk = data.draw(st.booleans())
    fetcher = store.reads.fetcher
    memory = data.draw(st.sampled_from([0, 10_000, 1 << 40]))

    def got(least: int) -> tuple[object, ...]:
        damaged = fetcher.damaged_reads
        with (
            mock.patch.object(fetch, "_MIN_COLUMN_ENTRIES", least),
            mock.patch.object(fetcher, "_memory_bytes", memory),
        ):
            found = store.reads.get("T", queue_id, offset, *limits, codes, bulk=bulk)
        pieces = [bytes(each) for each in found.buffers]
        return found.status, found.next_offset, found.count, pieces, fetcher.damaged_reads - damaged

    assert got(0) == got(1000)


def test_the_store_has_what_may_differ(store: MessageStore) -> None:
    result = store.reads.get("T", 0, 0, 1000, 1 << 20)
    assert store.offsets.max_offset("T", 0) > result.count
    assert len(result.buffers) > 3
    assert len(store.log.segments) > 3
