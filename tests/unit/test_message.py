"""The vocabulary against RocketMQ's own answers: properties, ids, hashes, names."""

from __future__ import annotations

import datetime
import gzip
import itertools
import json
import pathlib
from typing import Any

import pytest

from mqspark import message
from mqspark.errors import InvalidMessage
from mqspark.message import (
    Message,
    MessageQueue,
    UniqueIdGenerator,
    check_group,
    check_topic,
    crc32,
    decode_host,
    decode_offset_id,
    decode_properties,
    dlq_topic,
    encode_host,
    encode_offset_id,
    encode_properties,
    encode_stored_properties,
    format_host,
    is_system_topic,
    java_hash,
    parse_number,
    retry_topic,
)
from mqspark.record.compression import LZ4, ZLIB, ZSTD, compress, decompress
from tests.support.processes import run_python

VECTORS = pathlib.Path(__file__).parents[1] / "golden" / "vectors"


def vectors(name: str, *operations: str) -> list[dict[str, Any]]:
    lines = (json.loads(line) for line in (VECTORS / name).read_text().splitlines() if line.strip())
    return [vector for vector in lines if not operations or vector["op"] in operations]


@pytest.mark.parametrize("vector", vectors("properties.jsonl"))
def test_property_vectors(vector: dict[str, Any]) -> None:
    if vector["op"] == "encode":
        properties = {name: value for name, value in vector["map"].items() if value is not None}
        assert encode_properties(properties).decode() == vector["text"]
    else:
        assert decode_properties(vector["text"]) == vector["map"]
        assert decode_properties(vector["text"].encode()) == vector["map"]
        assert decode_properties(memoryview(vector["text"].encode())) == vector["map"]


@pytest.mark.parametrize("properties", [{"a\x01": "b"}, {"a": "b\x02"}, {"a\x02b": "c"}, {"a": "x\x01"}])
def test_separators_in_properties_are_refused(properties: dict[str, str]) -> None:
    with pytest.raises(InvalidMessage) as caught:
        encode_properties(properties)
    assert caught.value.field == "properties"


def test_a_value_of_another_client_may_hold_the_mark_of_values() -> None:
    properties = decode_properties("a\x01b\x01\x01c\x02d\x01\x01e\x02")
    assert properties == {"a": "b\x01\x01c", "d": "\x01e"}
    assert decode_properties(encode_stored_properties(properties)) == properties


@pytest.mark.parametrize("properties", [{"a\x01": "b"}, {"a": "b\x02"}, {"a\x02b": "c"}])
def test_what_would_become_another_property_is_never_stored(properties: dict[str, str]) -> None:
    with pytest.raises(InvalidMessage) as caught:
        encode_stored_properties(properties)
    assert caught.value.field == "properties"


@pytest.mark.parametrize("vector", vectors("ids.jsonl", "offsetMsgId"))
def test_offset_id_vectors(vector: dict[str, Any]) -> None:
    host = encode_host(vector["host"], vector["port"])
    assert encode_offset_id(host, vector["offset"]) == vector["msgId"]
    address, port, offset = decode_offset_id(vector["msgId"])
    assert encode_host(address, port) == host
    assert offset == vector["offset"] == vector["decodedOffset"]
    assert decode_host(host) == (address, port)


@pytest.mark.parametrize("text", ["", "zz", "7F", "7F00000100002A9F00000000000000", "0" * 40])
def test_what_is_no_offset_id_raises(text: str) -> None:
    with pytest.raises(InvalidMessage):
        decode_offset_id(text)


def test_hosts() -> None:
    assert format_host(encode_host("10.0.0.9", 5000)) == "10.0.0.9:5000"
    assert format_host(encode_host("fd00::2%eth0", 1)) == "[fd00::2]:1"


@pytest.mark.parametrize("vector", vectors("ids.jsonl", "uniqId"))
def test_unique_id_layout(vector: dict[str, Any]) -> None:
    generate = UniqueIdGenerator(vector["ip"])
    ids = [
        *(generate() for _ in range(500)),
        *generate.several(499),
        *generate.several(1),
        *generate.several(0),
    ]
    assert len(set(ids)) == 1000
    assert {len(text) for text in ids} == {vector["len"]}
    address = vector["id"][:32]
    assert ids[0].startswith(address)
    assert ids[0] == ids[0].upper()
    # address, pid (2), salt (4), ms since the start of the month (4), counter (2)
    elapsed_ms = int(ids[0][44:52], 16)
    now = datetime.datetime.now(datetime.UTC).astimezone()
    start = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    assert abs((now - start).total_seconds() * 1000 - elapsed_ms) < 60_000
    counters = [int(text[52:], 16) for text in ids]
    assert all((b - a) % 65536 == 1 for a, b in itertools.pairwise(counters))


def test_numbers() -> None:
    for text, number in (("0", 0), ("007", 7), ("9" * 18, 10**18 - 1)):
        assert parse_number(text) == parse_number(text.encode()) == number
    for no_number in (None, "", "-1", "+1", " 1", "1_0", "1.0", "\u00b2", "\u0663", "9" * 19, "9" * 5_000):
        assert parse_number(no_number) is None


def test_many_unique_ids_at_once_differ() -> None:
    generate = UniqueIdGenerator()
    for count in (0, 1, 1_000, 150_000):
        ids = generate.several(count)
        assert (len(ids), len(set(ids))) == (count, count)


def test_unique_ids_of_ipv4_have_32_characters() -> None:
    text = UniqueIdGenerator("192.168.1.1")()
    assert len(text) == 32
    assert text.startswith("C0A80101")


@pytest.mark.parametrize("vector", vectors("hashes.jsonl", "tagsCode", "indexHash", "bodyCrc"))
def test_hash_vectors(vector: dict[str, Any]) -> None:
    if vector["op"] == "tagsCode":
        assert java_hash(vector["tags"] or "") == vector["code"]
    elif vector["op"] == "indexHash":
        assert max(abs(java_hash(vector["key"])) & 0x7FFFFFFF, 0) == vector["hash"]
    else:
        assert crc32(vector["body"].encode()) == vector["crc"]


@pytest.mark.parametrize("vector", vectors("misc.jsonl", "validate"), ids=lambda v: v["name"][:20])
def test_name_vectors(vector: dict[str, Any]) -> None:
    name = vector["name"]
    if vector["topicValid"]:
        check_topic(name)
    else:
        with pytest.raises(InvalidMessage) as caught:
            check_topic(name)
        assert caught.value.field == "topic"
        assert str(caught.value).startswith(vector["topicRemark"].rstrip("."))
    assert is_system_topic(name) == vector["isSystemTopic"]
    assert (name in message.SEND_FORBIDDEN_TOPICS) == vector["notAllowedSend"]


@pytest.mark.parametrize("name", ["", "  ", "a b", "g" * 121, "组"])
def test_bad_groups(name: str) -> None:
    with pytest.raises(InvalidMessage) as caught:
        check_group(name)
    assert caught.value.field == "group"
    check_group("g" * 120)


def test_topic_lengths() -> None:
    check_topic("t" * 127)
    check_topic("%RETRY%" + "g" * 248)
    for name in ("t" * 128, "%RETRY%" + "g" * 249):
        with pytest.raises(InvalidMessage):
            check_topic(name)


def test_derived_names() -> None:
    (names,) = vectors("misc.jsonl", "names")
    assert retry_topic("G") == names["retry"]
    assert dlq_topic("G") == names["dlq"]
    (system,) = vectors("misc.jsonl", "systemTopics")
    assert set(system["system"]) == message.SYSTEM_TOPICS


def test_permissions_and_constants() -> None:
    for vector in vectors("misc.jsonl", "perm"):
        assert bool(vector["perm"] & message.PERM_READ) == vector["readable"]
        assert bool(vector["perm"] & message.PERM_WRITE) == vector["writeable"]
    constants = json.loads((VECTORS / "codes.json").read_text())
    flags = constants["MessageSysFlag"]
    assert flags["COMPRESSED_FLAG"] == message.COMPRESSED
    assert flags["MULTI_TAGS_FLAG"] == message.MULTI_TAGS
    assert flags["TRANSACTION_PREPARED_TYPE"] == message.TRANSACTION_PREPARED_TYPE
    assert flags["TRANSACTION_COMMIT_TYPE"] == message.TRANSACTION_COMMIT_TYPE
    assert flags["TRANSACTION_ROLLBACK_TYPE"] == message.TRANSACTION_ROLLBACK_TYPE
    assert flags["BORNHOST_V6_FLAG"] == message.BORN_HOST_V6
    assert flags["STOREHOSTADDRESS_V6_FLAG"] == message.STORE_HOST_V6
    assert flags["NEED_UNWRAP_FLAG"] == message.NEED_UNWRAP
    assert flags["INNER_BATCH_FLAG"] == message.INNER_BATCH
    assert flags["COMPRESSION_TYPE_COMPARATOR"] == message.COMPRESSION_MASK
    for kind, name in ((LZ4, "LZ4"), (ZSTD, "ZSTD"), (ZLIB, "ZLIB")):
        assert kind << message.COMPRESSION_SHIFT == flags[f"COMPRESSION_{name}_TYPE"]
    names = set(constants["MessageConst"].values())
    for text in (
        *(message.KEYS, message.TAGS, message.WAIT, message.DELAY, message.RETRY_TOPIC, message.REAL_TOPIC),
        *(message.REAL_QUEUE_ID, message.TRANSACTION_PREPARED, message.PRODUCER_GROUP, message.UNIQ_KEY),
        *(message.MSG_REGION, message.TRACE_ON, message.CLUSTER, message.INNER_NUM, message.INNER_BASE),
        *(message.RECONSUME_TIME, message.MAX_RECONSUME_TIMES, message.ORIGIN_MESSAGE_ID, message.POP_CK),
        *(message.MULTI_DISPATCH, message.MULTI_QUEUE_OFFSET, message.SHARDING_KEY, message.CRC32),
        *(message.TIMER_DELAY_SEC, message.TIMER_DELAY_MS, message.TIMER_DELIVER_MS),
        *(message.MIN_OFFSET, message.MAX_OFFSET),
    ):
        assert text in names


def test_messages() -> None:
    made = Message.of("T", "text", tags="A", keys=["k1", "k2"], properties={"p": "v"}, flag=3)
    assert (made.body, made.tags, made.keys, made.flag) == (b"text", "A", "k1 k2", 3)
    assert made.unique_id is None
    queues = [MessageQueue("T", "b", 1), MessageQueue("T", "a", 2), MessageQueue("S", "z", 9)]
    assert sorted(queues) == [queues[2], queues[1], queues[0]]


# --- compression ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [LZ4, ZSTD, ZLIB])
@pytest.mark.parametrize("body", [b"", b"x", b"abc" * 10_000])
def test_compression_round_trip(kind: int, body: bytes) -> None:
    packed = compress(body, kind)
    assert decompress(packed, kind) == body
    assert decompress(memoryview(packed), kind) == body


def test_gzip_is_read_where_zlib_is_said() -> None:
    """So clients of gRPC say it, by the one flag that they have."""
    packed = gzip.compress(bytes(1_000_000))
    for kind in (0, ZLIB):
        assert decompress(packed, kind) == bytes(1_000_000)
        for damaged, limit in ((packed, 999_999), (packed[:-1], 2_000_000)):
            with pytest.raises(InvalidMessage):
                decompress(damaged, kind, limit_bytes=limit)


@pytest.mark.parametrize("kind", [LZ4, ZSTD, ZLIB])
def test_bodies_that_inflate_too_far_or_are_damaged(kind: int) -> None:
    packed = compress(bytes(1_000_000), kind)
    with pytest.raises(InvalidMessage):
        decompress(packed, kind, limit_bytes=999_999)
    assert len(decompress(packed, kind, limit_bytes=1_000_000)) == 1_000_000
    for damaged in (packed[: len(packed) // 2], b"\x00garbage", b""):
        with pytest.raises(InvalidMessage):
            decompress(damaged, kind)
    with pytest.raises(InvalidMessage):
        decompress(packed, 5)
    with pytest.raises(InvalidMessage):
        compress(b"", 5)


def test_a_fork_makes_ids_of_its_own() -> None:
    program = (
        "import os; from mqspark.message import new_unique_id as make; make(); os.fork();"
        "os.write(1, ''.join(make()[8:20] + ' ' for _ in range(2)).encode())"
    )
    done = run_python(program, check=True)
    said = done.stdout.split()
    assert len(said) == 4
    assert len(set(said)) == 2
