"""Stored messages for HTTP: what large records cost the loop."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mqspark.message import MessageExt
from mqspark.record.batchitems import encode_items
from mqspark_server.web.v1 import storedmessages
from mqspark_server.web.v1.storedmessages import MAX_FOUND, SMALL_BYTES, Chosen, read_records, read_some
from tests.unit.broker.test_queues import batch_topic
from tests.unit.broker_kit import SEND, Bench, send_ext

MEMBERS = 2 * MAX_FOUND


@pytest.fixture
def record(tmp_path: Path) -> Any:
    """An inner batch, of which one message has a key; and who asks for it."""
    bench = Bench(tmp_path)
    items = [(0, b"%040d" % number, b"KEYS\x01k\x02" if number == 7 else b"") for number in range(MEMBERS)]
    batch_topic(bench.peer())
    assert bench.peer().ask(SEND, send_ext("B", m="true"), encode_items(items)).code == 0
    bench.flush()
    config = SimpleNamespace(broker_name="b-a")
    return SimpleNamespace(app=SimpleNamespace(config=config), state=bench.broker.state)


class Decoder:
    """Where and how much was decoded."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        self.sizes: list[int] = []
        decode = getattr(storedmessages, name)

        def watched(data: bytes, **more: Any) -> Any:
            assert len(data) <= SMALL_BYTES or threading.current_thread() is not threading.main_thread()
            self.sizes.append(len(data))
            return decode(data, **more)

        monkeypatch.setattr(storedmessages, name, watched)


def test_large_records_are_decoded_one_at_a_time_beside_the_loop(
    record: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (buffer,) = record.state.store.reads.get("B", 0, 0, 1, 1).buffers
    assert len(buffer) > SMALL_BYTES
    decoder = Decoder(monkeypatch, "decode_records")

    def found(count: int, key: str | None) -> list[MessageExt]:
        return asyncio.run(read_records(record, [buffer] * count, lambda message: message.keys == key))

    assert [each.body for each in found(3, "k")] == [b"%040d" % 7] * 3
    assert decoder.sizes == [len(buffer)] * 3
    assert len(found(64, None)) == MEMBERS - 1
    assert len(decoder.sizes) == 4, "a page is full"


def test_a_large_inner_batch_of_a_page_is_decoded_beside_the_loop(
    record: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = Decoder(monkeypatch, "decode_pull")
    page = asyncio.run(read_some(record, "B", [(0, 5, MEMBERS)], 2, Chosen()))
    assert [each.queue_offset for each in page.messages] == [5, 6]
    assert page.next is not None
    assert page.next.offset == 7
    assert len(decoder.sizes) == 1
