"""The record format against what RocketMQ's own encoder wrote (tests/golden/vectors/messages.jsonl)."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import json
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqspark.base.propertystring import find_property
from mqspark.errors import InvalidMessage
from mqspark.message import Message, crc32, decode_properties, encode_host, encode_offset_id, java_hash
from mqspark.record.batchitems import encode_batch, split_batch
from mqspark.record.record import (
    Verdict,
    check_record,
    decode_record,
    decode_records,
    encode_record,
    peek_properties,
    tags_code,
)
from mqspark.record.recordlayout import BLANK_MAGIC, MAGIC_V1, MAGIC_V2

VECTORS = [
    json.loads(line)
    for line in (Path(__file__).parents[2] / "golden/vectors/messages.jsonl").read_text().splitlines()
]
ENCODER = [v for v in VECTORS if v["kind"].startswith("broker encoder") and v["record_hex"]]
DECODER = [v for v in VECTORS if v["kind"].startswith("MessageDecoder.encode(") and "hex" in v]


def host(text: str) -> bytes:
    address, _, port = text.partition("|")
    return encode_host(address, int(port))


def encode_vector(vector: dict[str, Any], **changes: Any) -> bytes:
    return encode_record(
        **{
            "topic": vector["topic"],
            "body": bytes.fromhex(vector["body_hex"]),
            "properties": vector["propertiesString"].encode(),
            "queue_id": vector["queueId"],
            "queue_offset": vector["queueOffset"],
            "flag": vector["flag"],
            "sys_flag": vector["sysFlag"],
            "born_timestamp_ms": vector["bornTimestamp"],
            "born_host": host(vector["bornHost"]),
            "store_timestamp_ms": vector["storeTimestamp"],
            "store_host": host(vector["storeHost"]),
            "reconsume_times": vector["reconsumeTimes"],
            "prepared_transaction_offset": vector["preparedTransactionOffset"],
            **changes,
        }
    )


@pytest.mark.parametrize("vector", ENCODER, ids=lambda v: v["name"] + (" crc" if "CRC" in v["kind"] else ""))
def test_encoder_writes_the_bytes_of_rocketmq(vector: dict[str, Any]) -> None:
    with_crc = "enabledAppendPropCRC" in vector["kind"]
    record = encode_vector(vector, property_crc=with_crc)
    expected = bytes.fromhex(vector["record_hex"])
    if with_crc:
        assert record[:-20] == expected[:-20]
        name, digits = record[-20:].split(b"\x01")
        assert (name, int(digits[:10][::-1]), digits[10:]) == (b"__CRC32#", crc32(record[:-20]), b"\x02")
    else:
        assert record == expected
    assert tags_code(vector["propertiesString"].encode()) == vector["tagsCode"]
    assert check_record(record, 0, len(record), verify_crc=True).verdict is Verdict.VALID


@pytest.mark.parametrize("vector", ENCODER, ids=lambda v: v["name"])
def test_decoder_gives_back_what_was_encoded(vector: dict[str, Any]) -> None:
    message = decode_record(encode_vector(vector, physical_offset=4096), decompress=False)
    assert (message.topic, message.body.hex()) == (vector["topic"], vector["body_hex"])
    assert message.properties == decode_properties(vector["propertiesString"])
    assert (message.queue_id, message.queue_offset, message.physical_offset) == (3, 7, 4096)
    assert (
        message.born_host.replace("[", "").replace("]", "").rpartition(":")[0]
        == vector["bornHost"].split("|")[0]
    )
    assert message.body_crc == vector["bodyCRC"]
    assert message.prepared_transaction_offset == vector["preparedTransactionOffset"]
    assert message.offset_message_id == (host(vector["storeHost"]).hex() + f"{4096:016x}").upper()


@pytest.mark.parametrize("vector", DECODER, ids=lambda v: v["name"])
def test_records_of_the_java_client_encoder_decode(vector: dict[str, Any]) -> None:
    message = decode_record(bytes.fromhex(vector["hex"]), decompress=False)
    assert message.message_id == vector["decoded_msgId"]
    assert message.properties == vector["decoded_properties"]


@pytest.mark.parametrize(
    "vector", [v for v in VECTORS if v["kind"] == "compressed body"], ids=lambda v: v["name"]
)
def test_compressed_bodies_come_out_plain(vector: dict[str, Any]) -> None:
    record = encode_record(topic="T", body=bytes.fromhex(vector["hex"]), sys_flag=vector["sysFlagBits"] | 1)
    assert decode_record(record).body.hex() == vector["plain_hex"]


def test_batch_body_is_that_of_rocketmq() -> None:
    (vector,) = [v for v in VECTORS if v["kind"].startswith("MessageDecoder.encodeMessages")]
    body = bytes.fromhex(vector["hex"])
    items = split_batch(body)
    assert len(items) == vector["count"]
    again = encode_batch(
        Message(topic="T", body=item, properties=decode_properties(properties), flag=flag)
        for flag, item, properties in items
    )
    assert again == body


@pytest.mark.parametrize("vector", [v for v in VECTORS if "batch item" in v["kind"]], ids=lambda v: v["name"])
def test_batch_items_split(vector: dict[str, Any]) -> None:
    ((_, _, properties),) = split_batch(bytes.fromhex(vector["hex"]))
    assert properties.decode() == vector["propertiesString"]


def test_inner_batch_unwraps_into_its_items() -> None:
    inner = encode_batch([Message.of("T", "hi", tags="A"), Message.of("T", "yo", keys=["k", "l"])])
    body = encode_record(topic="T", body=b"one") + encode_record(
        topic="T",
        body=inner,
        sys_flag=0xC0,
        queue_offset=40,
        physical_offset=99,
        properties={"INNER_NUM": "2"},
    )
    messages = decode_records(body, broker_name="b")
    assert [(m.body, m.queue_offset) for m in messages] == [(b"one", 0), (b"hi", 40), (b"yo", 41)]
    assert (messages[1].tags, messages[2].keys, messages[2].physical_offset) == ("A", "k l", 99)
    assert {m.broker_name for m in messages} == {"b"}


@pytest.mark.parametrize("topic_length", [1, 127, 128, 255])
def test_version_follows_the_topic_length(topic_length: int) -> None:
    topic = "t" * topic_length
    record = encode_record(topic=topic, body=b"x")
    assert struct.unpack_from(">i", record, 4)[0] == (MAGIC_V1 if topic_length <= 127 else MAGIC_V2)
    assert decode_record(record).topic == topic


@given(
    body=st.binary(max_size=300),
    topic=st.text(min_size=1, max_size=40),
    properties=st.dictionaries(
        st.text(
            st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1, max_size=9
        ),
        st.text(
            st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1, max_size=9
        ),
        max_size=5,
    ),
    born=st.sampled_from([bytes(8), bytes(range(20))]),
    store=st.sampled_from([bytes(8), bytes(range(20))]),
)
def test_encode_decode_round_trip(
    body: bytes, topic: str, properties: dict[str, str], born: bytes, store: bytes
) -> None:
    topic = topic.encode("utf-8", "replace").decode()
    record = encode_record(topic=topic, body=body, properties=properties, born_host=born, store_host=store)
    message = decode_record(b"junk" + record, 4)
    assert (message.topic, message.body, message.properties) == (topic, body, properties)
    checked = check_record(record, 0, len(record), verify_crc=True)
    assert (checked.verdict, checked.topic, checked.size_bytes) == (Verdict.VALID, topic, len(record))
    for name, value in properties.items():
        assert find_property(checked.properties, name.encode()) == value.encode()


def test_no_cut_and_no_flipped_byte_raises_anything_but_invalid_message() -> None:
    record = encode_record(topic="Orders", body=b"body" * 5, properties={"TAGS": "A", "KEYS": "k"})
    for end in range(len(record)):
        assert check_record(record, 0, end, verify_crc=True).verdict is Verdict.DAMAGED
        with pytest.raises(InvalidMessage):
            decode_record(record[:end])
    for position in range(len(record)):
        for bit in range(8):
            damaged = bytearray(record)
            damaged[position] ^= 1 << bit
            check_record(damaged, 0, len(damaged), verify_crc=True)
            with contextlib.suppress(InvalidMessage):
                decode_record(damaged)


def test_blank_and_zeros_are_told_apart() -> None:
    blank = struct.pack(">ii", 100, BLANK_MAGIC) + bytes(92)
    assert check_record(blank, 0, 100, verify_crc=True).verdict is Verdict.BLANK
    assert check_record(bytes(100), 0, 100, verify_crc=True).verdict is Verdict.DAMAGED


@pytest.mark.parametrize("damage", [b"\0\0\0\x10", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\0\0\0\x17"])
def test_lying_batch_lengths_are_refused(damage: bytes) -> None:
    body = encode_batch([Message.of("T", "hi")])
    with pytest.raises(InvalidMessage):
        split_batch(damage + body[4:])


def test_properties_are_found_without_a_map() -> None:
    text = b"KEYS\x01a b\x02XTAGS\x01no\x02TAGS\x01A\x02TAGS\x01B\x02E\x01"
    assert find_property(text, b"TAGS") == b"B"
    assert find_property(text, b"KEYS") == b"a b"
    assert find_property(text, b"E") is None
    assert find_property(text, b"AGS") is None
    assert tags_code(text) == java_hash("B")
    assert tags_code(b"") == 0


@pytest.mark.parametrize("topic", ["T", "t" * 200], ids=["v1", "v2"])
@pytest.mark.parametrize("born", ["127.0.0.1", "::1"])
@pytest.mark.parametrize("stored", ["127.0.0.1", "::1"])
def test_properties_are_peeked_at(topic: str, born: str, stored: str) -> None:
    hosts = {"born_host": host(f"{born}|1"), "store_host": host(f"{stored}|2")}
    properties = b"a\x015\x02TAGS\x01A\x02"
    record = encode_record(topic=topic, body=b"body", properties=properties, **hosts)
    empty = encode_record(topic=topic, body=b"", **hosts)
    both = memoryview(record + empty)
    assert peek_properties(both, 0) == (len(record), properties)
    assert peek_properties(both, len(record)) == (len(empty), b"")
    for position in range(4, len(record)):
        for bit in range(8):
            damaged = bytearray(record)
            damaged[position] ^= 1 << bit
            with contextlib.suppress(InvalidMessage):
                size, found = peek_properties(damaged, 0)
                assert size == len(record)
                assert len(found) < size


def test_what_is_decoded_late_is_a_field_like_the_others() -> None:
    record = encode_record(
        topic="T",
        body=b"b",
        properties={"KEYS": "k", "UNIQ_KEY": "u"},
        physical_offset=7,
        store_host=encode_host("::1", 10911),
    )
    message = decode_record(record)
    assert dataclasses.replace(message, topic="U").properties == {"KEYS": "k", "UNIQ_KEY": "u"}
    assert copy.copy(decode_record(record)) == message
    assert copy.deepcopy(decode_record(record)).keys == "k"
    assert decode_record(record).offset_message_id == encode_offset_id(encode_host("::1", 10911), 7)
    message.properties["KEYS"] = "other"
    assert message.keys == "other"
    message.properties = {}
    assert message.tags is None
    with pytest.raises(AttributeError, match="no attribute"):
        _ = decode_record(record).colour
