"""Arrow decode of raw records: no Spark session here, but numpy and pyarrow of the ``spark`` extra."""

from __future__ import annotations

import base64
import datetime
import gzip
import hashlib
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqspark.arrow.messagecolumns import COLUMNS, arrow_schema
from mqspark.arrow.records.decode import Decoder
from mqspark.arrow.records.records import Records, record_positions, unwrap_inner_batches
from mqspark.errors import InvalidMessage
from mqspark.message import Message, decode_properties, encode_host
from mqspark.record.batchitems import encode_batch
from mqspark.record.compression import LZ4, ZLIB, ZSTD, compress
from mqspark.record.record import decode_record, decode_records, encode_record

GOLDEN = Path(__file__).parent.parent / "golden"
ALL = tuple(COLUMNS)


def decode(raw: bytes, columns: tuple[str, ...] = ALL, **options: Any) -> list[dict[str, Any]]:
    options = {"topic": "T", "broker": "b", "queue_id": 3} | options
    batch = Decoder(columns, **options)(Records(raw), record_positions(Records(raw)))
    batch.validate(full=True)
    assert batch.schema == arrow_schema(columns)
    rows: list[dict[str, Any]] = batch.to_pylist(maps_as_pydicts="strict")
    return rows


def milliseconds(moment: datetime.datetime) -> int:
    return round(moment.timestamp() * 1000)


def vectors() -> list[dict[str, Any]]:
    lines = (GOLDEN / "vectors/messages.jsonl").read_text("utf-8").splitlines()
    return [
        vector
        for vector in map(json.loads, lines)
        if "broker encoder" in vector["kind"] and vector.get("record_hex")
    ]


@pytest.mark.parametrize("vector", vectors(), ids=lambda vector: vector["name"])
def test_a_vector_gives_the_fields_it_was_made_from(vector: dict[str, Any]) -> None:
    raw = bytes.fromhex(vector["record_hex"])
    (row,) = decode(raw)
    properties = decode_properties(vector["propertiesString"])
    decoded = decode_record(raw)
    assert row["value"] == decoded.body
    if not vector["sysFlag"] & 1:
        assert row["value"] == bytes.fromhex(vector["body_hex"])
    assert row["offset"] == vector["queueOffset"]
    assert milliseconds(row["timestamp"]) == vector["storeTimestamp"]
    assert milliseconds(row["bornTimestamp"]) == vector["bornTimestamp"]
    assert row["key"] == properties.get("KEYS")
    assert row["tags"] == properties.get("TAGS")
    assert {name: row["properties"][name] for name in properties} == properties
    assert row["msgId"] == decoded.message_id


@pytest.fixture(scope="module", params=["clean", "kill9", "variant"])
def golden_store(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[Any]]:
    target = tmp_path_factory.mktemp(request.param)
    with tarfile.open(GOLDEN / f"store/{request.param}.tar.gz") as archive:
        members = [m for m in archive.getmembers() if "/commitlog/" in m.name or "/consumequeue/" in m.name]
        archive.extractall(target, members=members, filter="data")
    with gzip.open(GOLDEN / f"store/{request.param}.manifest.jsonl.gz", "rt", encoding="utf-8") as lines:
        manifest = [json.loads(line) for line in lines]
    return target, manifest


def test_every_record_of_a_real_store(golden_store: tuple[Path, list[Any]]) -> None:
    root, manifest = golden_store
    segments = {int(path.name): Records(path.read_bytes()) for path in root.glob("**/commitlog/*")}
    segment_bytes = segments[0].size_bytes
    queues: dict[tuple[str, int, int], list[Any]] = {}
    for entry in sorted(manifest, key=lambda entry: int(entry["commitLogOffset"])):
        start = entry["commitLogOffset"] // segment_bytes * segment_bytes
        queues.setdefault((entry["queueTopic"], entry["pulledQueueId"], start), []).append(entry)
    for (topic, queue_id, start), entries in queues.items():
        positions = np.array([entry["commitLogOffset"] - start for entry in entries], dtype=np.int64)
        records, positions = next(unwrap_inner_batches(segments[start], positions))
        batch = Decoder(ALL, topic=topic, broker="broker-g", queue_id=queue_id)(records, positions)
        batch.validate(full=True)
        rows = iter(batch.to_pylist(maps_as_pydicts="strict"))
        for entry in entries:
            inner = int(entry["properties"].get("INNER_NUM", 0))
            for index in range(inner or 1):
                row = next(rows)
                # A light message queue has offsets of its own, which the record's field does not tell.
                assert row["offset"] == entry["queueOffset"] + index or topic.startswith("%LMQ%")
                assert milliseconds(row["timestamp"]) == entry["storeTimestamp"]
                assert milliseconds(row["bornTimestamp"]) == entry["bornTimestamp"]
                if inner:
                    assert b"item %d" % index in row["value"]
                else:
                    check_content(row, entry)
        assert next(rows, None) is None


def check_content(row: dict[str, Any], expected: dict[str, Any]) -> None:
    if "bodyBase64" in expected:
        assert row["value"] == base64.b64decode(expected["bodyBase64"])
    else:
        assert hashlib.sha256(row["value"]).hexdigest() == expected["bodySha256"]
    assert row["msgId"] == (expected["msgId"] or expected["offsetMsgId"])
    assert row["key"] == (expected["keys"] or None)
    assert row["tags"] == (expected["tags"] or None)
    # The recording client added some properties of its own and took others out.
    assert {
        name: expected["properties"].get(name, value) for name, value in row["properties"].items()
    } == row["properties"]


names = st.text(
    st.characters(blacklist_characters="\x01\x02", blacklist_categories=["Cs"]), min_size=1, max_size=9
)
property_maps = st.dictionaries(
    st.one_of(st.sampled_from(["KEYS", "TAGS", "UNIQ_KEY", "XKEYS", "KEYSX", "TAG", "S"]), names),
    names,
    max_size=5,
)


@given(
    st.lists(
        st.tuples(st.binary(max_size=40), property_maps, st.booleans(), st.booleans(), st.booleans()),
        max_size=12,
    )
)
def test_same_rows_as_the_record_decoder(items: list[tuple[bytes, dict[str, str], bool, bool, bool]]) -> None:
    v4, v6 = encode_host("10.1.2.3", 10911), encode_host("fd00::7", 9)
    raw = b"".join(
        encode_record(
            topic="x" * 200 if long_topic else "T",
            body=body,
            properties=properties,
            queue_offset=offset,
            physical_offset=1000 + offset,
            born_host=v6 if born_v6 else v4,
            store_host=v6 if store_v6 else v4,
            born_timestamp_ms=1_700_000_000_001 + offset,
            store_timestamp_ms=1_700_000_000_900 + offset,
            reconsume_times=offset * 3,
        )
        for offset, (body, properties, born_v6, store_v6, long_topic) in enumerate(items)
    )
    rows = decode(raw)
    messages = decode_records(raw)
    assert len(rows) == len(messages)
    for row, message in zip(rows, messages, strict=True):
        assert row["value"] == message.body
        assert row["key"] == message.keys
        assert row["tags"] == message.tags
        assert row["msgId"] == message.message_id
        assert row["offset"] == message.queue_offset
        assert row["reconsumeTimes"] == message.reconsume_times
        assert row["properties"] == message.properties
        assert milliseconds(row["timestamp"]) == message.store_timestamp_ms
        assert milliseconds(row["bornTimestamp"]) == message.born_timestamp_ms
        assert (row["topic"], row["partition"], row["broker"]) == ("T", 3, "b")


@pytest.mark.parametrize(
    "properties",
    [
        b"KEYS\x01a\x02KEYS\x01b\x02",  # the last duplicate wins
        b"KEYS\x01a",  # the last separator is optional
        b"KEYS\x01\x02TAGS\x01t",  # an empty value is no value
        b"\x01v\x02KEYS\x02TAGS\x01t\x02",  # no name; no separator
        b"TAGS\x01t\x01KEYS\x01k\x02",  # the first 0x01 splits
        b"\x02\x02KEYS\x01k\x02\x02",
        b"KEYS\x01\xff\xfe\x02TAGS\x01ok\x02",  # not UTF-8
    ],
)
def test_odd_property_strings(properties: bytes) -> None:
    raw = encode_record(topic="T", body=b"x", properties=properties)
    (row, after) = decode(raw + encode_record(topic="T", body=b"y", properties={"KEYS": "z"}))
    expected = decode_properties(properties)
    assert row["properties"] == expected
    assert (row["key"], row["tags"]) == (expected.get("KEYS"), expected.get("TAGS"))
    assert after["key"] == "z"


@pytest.mark.parametrize("kind", [ZLIB, LZ4, ZSTD, 0])
def test_compressed_rows_between_plain_ones(kind: int) -> None:
    packed = encode_record(topic="T", body=compress(b"long " * 99, kind or ZLIB), sys_flag=1 | kind << 8)
    plain = encode_record(topic="T", body=b"plain")
    rows = decode(plain + packed + plain, ("value",))
    assert [row["value"] for row in rows] == [b"plain", b"long " * 99, b"plain"]


def test_a_body_that_does_not_decompress() -> None:
    raw = encode_record(topic="T", body=b"not zlib", sys_flag=1, queue_id=3, queue_offset=41)
    with pytest.raises(InvalidMessage, match="offset 41 of queue 3"):
        decode(raw, ("value",))
    assert decode(raw, ("value",), strict=False) == [{"value": None}]


def test_tags_are_compared_literally() -> None:
    # "Aa" and "BB" have the same Java hash: the broker's filter lets both through.
    raw = b"".join(
        encode_record(topic="T", body=tag.encode(), properties={"TAGS": tag}) for tag in ("Aa", "BB", "Aa")
    )
    raw += encode_record(topic="T", body=b"untagged")
    assert [row["value"] for row in decode(raw, ("value",), tags=frozenset({"Aa"}))] == [b"Aa", b"Aa"]
    assert decode(raw, ("value",), tags=frozenset({"C"})) == []


def test_inner_batches_become_plain_rows() -> None:
    host = encode_host("fd00::7", 9)
    inner = encode_batch([Message.of("T", f"m{i}", keys=f"k{i}") for i in range(3)])
    raw = encode_record(topic="T", body=b"before", queue_offset=9)
    raw += encode_record(
        topic="T",
        body=inner,
        sys_flag=0xC0,
        queue_offset=10,
        physical_offset=77,
        store_host=host,
        store_timestamp_ms=5,
    )
    ((records, positions),) = unwrap_inner_batches(Records(raw), record_positions(Records(raw)))
    rows = Decoder(ALL, topic="T", broker="b", queue_id=0)(records, positions).to_pylist()
    assert [(row["offset"], row["value"], row["key"]) for row in rows] == [
        (9, b"before", None),
        (10, b"m0", "k0"),
        (11, b"m1", "k1"),
        (12, b"m2", "k2"),
    ]
    assert rows[3]["msgId"] == (host + (77).to_bytes(8, "big")).hex().upper()
    assert milliseconds(rows[1]["timestamp"]) == 5


def test_nothing_is_decoded_that_was_not_selected() -> None:
    # The body would not decompress; it is not asked for.
    raw = encode_record(topic="T", body=b"garbage", sys_flag=1, queue_offset=5)
    assert decode(raw, ("offset",)) == [{"offset": 5}]


@given(st.binary(min_size=0, max_size=300), st.integers(0, 299))
def test_damage_raises_and_nothing_else(noise: bytes, at: int) -> None:
    good = encode_record(topic="T", body=b"b" * 50, properties={"KEYS": "k"})
    raw = bytearray(good + good)
    start = at % len(raw)
    raw[start : start + len(noise)] = noise
    try:
        batch = Decoder(ALL, topic="T", broker="b", queue_id=0)(
            Records(bytes(raw)), record_positions(Records(bytes(raw)))
        )
    except InvalidMessage:
        return
    batch.validate(full=True)


def test_a_body_that_looks_like_a_record() -> None:
    inner = encode_record(topic="T", body=b"x" * 60)
    raw = encode_record(topic="T", body=inner + inner) + encode_record(
        topic="T", body=b"\xda\xa3\x20\xa7" * 9
    )
    assert [len(row["value"]) for row in decode(raw, ("value",))] == [2 * len(inner), 36]


def test_positions_outside_of_the_buffer() -> None:
    raw = encode_record(topic="T", body=b"b")
    decoder = Decoder(("value",), topic="T", broker="b", queue_id=0)
    for position in (-1, 1, len(raw), 1 << 40):
        with pytest.raises(InvalidMessage):
            decoder(Records(raw), np.array([position], dtype=np.int64))


def test_an_empty_selection_of_rows() -> None:
    batch = Decoder(ALL, topic="T", broker="b", queue_id=0)(Records(b""), np.array([], dtype=np.int64))
    assert (batch.num_rows, batch.schema) == (0, arrow_schema(ALL))
    assert isinstance(batch, pa.RecordBatch)


@pytest.mark.parametrize("hosts", ["v4", "v6", "mixed"])
@pytest.mark.parametrize("far", [0, 5 << 32, (7 << 32) - 1000])
def test_offset_ids_of_hosts_and_places(hosts: str, far: int) -> None:
    """Also where the upper half of the place changes between two rows, and where hosts differ."""
    known = {"v4": [("10.1.2.3", 10911)], "v6": [("fe80::17", 9)], "mixed": [("10.1.2.3", 1), ("::1", 2)]}
    used = [encode_host(*host) for host in [*known[hosts], ("127.0.0.1", 65535)]]
    raw = b"".join(
        encode_record(
            topic="T",
            body=b"b",
            store_host=used[n % len(used)],
            physical_offset=far + 300 * n,
            queue_offset=n,
        )
        for n in range(12)
    )
    ids = [row["msgId"] for row in decode(raw, ("msgId", "offset"))]
    assert ids == [message.message_id for message in decode_records(raw)]


@pytest.mark.parametrize("odd", [None, 0, 5, 9])
def test_texts_of_one_length_and_one_that_differs(odd: int | None) -> None:
    def item(n: int) -> bytes:
        properties = {"KEYS": f"key{n}", "TAGS": "a"} if n != odd else {"TAGS": "longer"}
        return encode_record(
            topic="T", body=b"" if odd is None else b"%03d" % n, properties=properties, queue_offset=n
        )

    raw = b"".join(map(item, range(10)))
    rows = decode(raw, topic=None, queue_id=None)
    assert [row["offset"] for row in rows] == list(range(10))
    assert {row["topic"] for row in rows} == {"T"}
    for row, message in zip(rows, decode_records(raw), strict=True):
        assert (row["value"], row["key"], row["tags"]) == (message.body, message.keys, message.tags)


def test_equal_sizes_are_no_proof_of_records() -> None:
    raw = bytearray(encode_record(topic="T", body=b"x" * 50) * 8)
    size = len(raw) // 8
    assert record_positions(Records(bytes(raw))).tolist() == list(range(0, 8 * size, size))
    raw[3 * size + 4] = 0
    with pytest.raises(InvalidMessage):
        decode(bytes(raw))
    with pytest.raises(InvalidMessage):
        decode(bytes(raw[:-1]))
