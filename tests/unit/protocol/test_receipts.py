"""Receipt handles and offset strings against the Java classes' own; records under another topic's name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mqspark.errors import ProtocolError
from mqspark.message import encode_host
from mqspark.protocol.receipts import (
    Receipt,
    normal_topic,
    parse_message_offsets,
    parse_receipt,
    parse_start_offsets,
    real_topic,
    retry_flag,
)
from mqspark.record.record import decode_record, encode_record, readdressed
from mqspark.record.recordlayout import queue_offsets

VECTORS = Path(__file__).parents[2] / "golden" / "vectors" / "ids.jsonl"


def vector(op: str) -> dict[str, Any]:
    lines = map(json.loads, VECTORS.read_text().splitlines())
    return next(line for line in lines if line.get("op") == op)


def test_receipts_are_javas() -> None:
    known = vector("popExtraInfo")
    receipt = Receipt(100, 1_700_000_000_000, 60_000, 2, "0", "broker-a", 3, 101)
    assert receipt.encode() == known["with offset"]
    assert receipt._replace(offset=-1).encode() == known["text"]
    assert receipt._replace(retry="1").encode() == known["retry"]
    assert receipt._replace(retry="2").encode() == known["retryV2"]
    for text in (known["with offset"], known["text"], known["retry"], known["retryV2"]):
        assert parse_receipt(text).encode() == text
    assert receipt.visible_again_ms == 1_700_000_060_000
    assert parse_receipt(f"{receipt.encode()} 5600") == receipt  # as the proxy hands it out


def test_offset_strings_are_javas() -> None:
    known = vector("popInfo")
    starts = parse_start_offsets(known["startOffsetInfo"])
    assert {f"{retry}@{queue}": offset for (retry, queue), offset in starts.items()} == known["parsedStart"]
    offsets = parse_message_offsets(known["msgOffsetInfo"])
    assert {f"{retry}@{queue}": found for (retry, queue), found in offsets.items()} == known[
        "parsedMsgOffset"
    ]
    assert parse_start_offsets("") == parse_message_offsets(None) == {}


@pytest.mark.parametrize("text", ["", "1 2 3", "a 2 3 4 0 b 6", "1 2 3 4 0 b 6 x 8", "1 " * 5000])
def test_what_is_no_receipt(text: str) -> None:
    with pytest.raises(ProtocolError):
        parse_receipt(text)


@pytest.mark.parametrize("text", ["0 1", "0 x 1", "0 1 2,x"])
def test_what_are_no_offsets(text: str) -> None:
    with pytest.raises(ProtocolError):
        parse_message_offsets(text)
    with pytest.raises(ProtocolError):
        parse_start_offsets(text)


@pytest.mark.parametrize("flag", ["0", "1", "2"])
@pytest.mark.parametrize("topic", ["T", "a_b", "G_T"])
def test_retry_topics_and_back(flag: str, topic: str) -> None:
    stored = real_topic(topic, "G", flag)
    assert retry_flag(stored, "G") == flag
    assert normal_topic(stored, "G") == topic


@pytest.mark.parametrize("host", ["127.0.0.1", "fd00::1"])
@pytest.mark.parametrize("stored", ["%RETRY%G_T", "%RETRY%" + "G" * 100 + "_" + "T" * 60])
@pytest.mark.parametrize("shown", ["T", "T" * 127])
def test_a_record_under_another_name(host: str, stored: str, shown: str) -> None:
    record = encode_record(
        topic=stored,
        body=b"body",
        properties={"KEYS": "k", "a": "ü"},
        queue_offset=77,
        physical_offset=1234,
        born_host=encode_host(host, 5),
        store_host=encode_host("127.0.0.1", 6),
        reconsume_times=2,
    )
    buffer = memoryview(b"before" + record)
    assert queue_offsets([memoryview(record + record)]) == [77, 77]
    renamed = readdressed(buffer, 6, shown, b"POP_CK\x01x\x02")
    old, new = decode_record(record), decode_record(renamed)
    assert (new.topic, new.properties) == (shown, {**old.properties, "POP_CK": "x"})
    for name in ("body", "queue_offset", "physical_offset", "born_host", "store_host", "reconsume_times"):
        assert getattr(new, name) == getattr(old, name)
    full = readdressed(buffer, 6, shown, b"POP_CK\x01" + b"x" * 40_000 + b"\x02")
    assert decode_record(full).properties == old.properties
