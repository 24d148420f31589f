"""Structs, offsets and walks agree with the records that the encoder makes."""

from __future__ import annotations

import numpy as np
import pytest

from mqspark.errors import InvalidMessage
from mqspark.message import BORN_HOST_V6, HOST_FLAGS, STORE_HOST_V6
from mqspark.record.record import encode_record
from mqspark.record.recordlayout import (
    AT,
    BODY_AT,
    HEAD,
    HEADS,
    MIN_RECORD_BYTES,
    V6_EXTRA_BYTES,
    columns,
    fields,
    queue_offset_of,
    queue_offsets,
    record_position,
    record_size,
    spans,
    store_time_ms,
)

HOSTS = [(bytes(born), bytes(store)) for store in (8, 20) for born in (8, 20)]


def record(number: int, born_host: bytes = bytes(8), store_host: bytes = bytes(8)) -> bytes:
    return encode_record(
        topic="T",
        body=b"b" * number,
        queue_offset=number,
        physical_offset=1000 + number,
        born_host=born_host,
        store_host=store_host,
        store_timestamp_ms=77 + number,
    )


@pytest.mark.parametrize(("born_host", "store_host"), HOSTS)
def test_fields_are_read_whatever_the_hosts_are(born_host: bytes, store_host: bytes) -> None:
    data = b"before" + record(3, born_host, store_host)
    assert record_size(data, 6) == len(data) - 6
    assert (queue_offset_of(data, 6), record_position(data, 6), store_time_ms(data, 6)) == (3, 1003, 80)
    flags = (len(store_host) > 8) * STORE_HOST_V6 | (len(born_host) > 8) * BORN_HOST_V6
    head = np.dtype(columns(*HEAD, born_bytes=len(born_host), store_bytes=len(store_host)))
    assert head.itemsize == HEADS[flags].size
    assert int(np.frombuffer(data[6:], head, 1)["store_ms"][0]) == 80
    assert int(np.frombuffer(data[6:], head, 1)["body_bytes"][0]) == 3


def test_fields_of_a_struct_are_where_the_table_says() -> None:
    assert (BODY_AT, AT["queue_offset"], AT["position"], AT["sys_flag"], AT["store_ms"]) == (
        88,
        20,
        28,
        36,
        56,
    )
    assert HEADS[HOST_FLAGS].size == BODY_AT + 2 * V6_EXTRA_BYTES
    head = HEADS[0].unpack(record(5)[:BODY_AT])
    named = dict(zip(HEAD, head, strict=True))
    names = ("magic", "queue_offset", "born_host", "body_bytes")
    assert fields(*names).unpack_from(record(5)) == tuple(named[name] for name in names)


def test_a_walk_gives_each_record_its_bounds() -> None:
    parts = [record(number) for number in range(4)]
    bounds = list(spans(memoryview(b"".join(parts))))
    assert [high - low for low, high in bounds] == [len(part) for part in parts]
    assert [low for low, _ in bounds[1:]] == [high for _, high in bounds[:-1]]
    assert queue_offsets([b"".join(parts[:1]), b"".join(parts[1:])]) == [0, 1, 2, 3]
    assert list(spans(b"")) == []


@pytest.mark.parametrize("size", [0, -1, MIN_RECORD_BYTES - 1, 10_000, (1 << 31) - 1])
def test_a_walk_does_not_pass_a_size_that_is_none(size: int) -> None:
    wrong = size.to_bytes(4, "big", signed=True) + record(9)[4:]
    walk = spans(record(1) + wrong)
    assert next(walk) == (0, len(record(1)))
    with pytest.raises(InvalidMessage, match=f"record of {size} bytes"):
        next(walk)


def test_a_walk_does_not_pass_a_part_of_a_record() -> None:
    with pytest.raises(InvalidMessage, match="90 bytes after the last record"):
        list(spans(record(0) + bytes(90)))
