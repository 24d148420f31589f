"""Bodies as pages show them: every format recognized and decoded, and none that keeps a page from being made."""

from __future__ import annotations

import bz2
import json
import random
import struct
import zlib
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from mqspark.schemas.parsedschema import Reference
from mqspark_server.shown.bodies import avrobody, bodyviews
from mqspark_server.shown.bodies.avrobody import MAGIC
from mqspark_server.shown.bodies.bodyviews import OUTLINE_LENGTH, VIEWS, KnownSchema, body_view
from tests.support.oldarrow import compressed_as_by_arrow_0_17
from tests.support.pace import ProcessorTime
from tests.unit.server.shown.body_kit import avro, field, long, order, sized, varint

FIRST_ORDER = {
    "id": 7,
    "tags": ["a"],
    "before": None,
    "prices": {"eur": 1.5},
    "state": "PAID",
    "mark": "0x616263",
}
PROTOBUF = b"".join(
    [
        field(1, 0, varint(150)),
        field(2, 2, b"testing"),
        field(3, 2, field(1, 0, varint(5)) + field(2, 2, "\u4e16\u754c".encode())),
        field(4, 5, struct.pack("<f", 1.0)),
        field(5, 1, struct.pack("<d", 2.5)),
        field(6, 2, b"\xff\xfe\x00"),
        field(7, 3, b"") + field(1, 0, varint(9)) + field(7, 4, b""),
        field(8, 0, varint((1 << 64) - 1)),
    ]
)


def arrow(table: Any, *, file: bool = False, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    begin = pa.ipc.new_file if file else pa.ipc.new_stream
    with begin(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table)
    written: bytes = sink.getvalue().to_pybytes()
    return written


TABLE = pa.table(
    {
        "n": [1, None],
        "list": [["x"], []],
        "row": [{"k": 1}, None],
        "at": pa.array([1, 2], pa.timestamp("ms", tz="Mars/Olympus")),
        "word": pa.array(["q", "q"]).dictionary_encode(),
        "bytes": [b"\x00\x01", b""],
        "map": pa.array([[("a", 1)], []], pa.map_(pa.string(), pa.int8())),
    }
)
ROWS = [
    {
        "n": 1,
        "list": ["x"],
        "row": {"k": 1},
        "at": "1970-01-01 00:00:00.001Z",
        "word": "q",
        "bytes": "0x0001",
        "map": [{"key": "a", "value": 1}],
    },
    {
        "n": None,
        "list": [],
        "row": None,
        "at": "1970-01-01 00:00:00.002Z",
        "word": "q",
        "bytes": "0x",
        "map": [],
    },
]


@pytest.mark.parametrize(
    ("body", "kind", "value"),
    [
        (b'{"a": [1, {}], "b": []}', "JSON", {"a": [1, {}], "b": []}),
        ('{"a": "\u4e16"}'.encode("utf-16"), "JSON", {"a": "\u4e16"}),
        (' {"a": "\u4f60\u597d"}'.encode("gbk"), "JSON", {"a": "\u4f60\u597d"}),
        (avro(order(7)), "Avro, shop.Order", [FIRST_ORDER]),
        (avro(order(7), codec="deflate"), "Avro, shop.Order", [FIRST_ORDER]),
        (avro(order(1, order(7))), "Avro, shop.Order", [{**FIRST_ORDER, "id": 1, "before": FIRST_ORDER}]),
        (avro(order(7) * 3, count=3), "Avro, shop.Order", [FIRST_ORDER] * 3),
        (arrow(TABLE), "Arrow, 7 columns", ROWS),
        (arrow(TABLE, file=True, compression="lz4"), "Arrow, 7 columns", ROWS),
        (
            msgspec.msgpack.encode({"a": [1, -5, 2.5, None, True, b"\x01", 'q"'], 3: {}}),
            "MessagePack",
            {"a": [1, -5, 2.5, None, True, "0x01", 'q"'], "3": {}},
        ),
        (
            PROTOBUF,
            "Protobuf without its schema",
            {
                "1": 150,
                "2": "testing",
                "3": {"1": 5, "2": "\u4e16\u754c"},
                "4": "1065353216, or 1.0",
                "5": "4612811918334230528, or 2.5",
                "6": "0xfffe00",
                "7": {"1": 9},
                "8": "18446744073709551615, or -1",
            },
        ),
        (b'\x00\x00\x00\x00\x07{"a": 1}', "JSON, schema 7", {"a": 1}),
    ],
)
def test_a_format_is_recognized_and_decoded(body: bytes, kind: str, value: Any) -> None:
    shown = body_view(body, "auto")
    assert (shown.kind, json.loads(shown.text), shown.problem) == (kind, value, "")


@pytest.mark.parametrize(
    ("text", "codec", "kind"),
    [
        ("h\u00e9llo \u4e16\u754c\n", "utf-8", "UTF-8"),
        ("h\u00e9llo", "utf-8-sig", "UTF-8"),
        ("hello", "utf-16", "UTF-16"),
        ("hello", "utf-16-le", "UTF-16-LE"),
        ("hello", "utf-16-be", "UTF-16-BE"),
        ("\u4f60\u597d\uff0c\u4e16\u754c", "gbk", "GB18030"),
        ("id=7 \u5317\u4eac\u5e02", "gb18030", "GB18030"),
        ("Stra\u00dfe n\u00e9e caf\u00e9 5 \u20ac", "cp1252", "windows-1252"),
        ("", "utf-8", "UTF-8"),
    ],
)
def test_the_charset_of_a_text(text: str, codec: str, kind: str) -> None:
    for view in ("auto", "text"):
        shown = body_view(text.encode(codec), view)
        assert (shown.text, shown.kind) == (text, f"text in {kind}")


def test_a_text_that_is_cut_in_a_character_is_still_one() -> None:
    shown = body_view("\u4e16".encode() * 10_000, "auto")
    assert (shown.kind, shown.shown, shown.is_cut) == ("text in UTF-8", bodyviews.SHOWN_BYTES, True)
    assert set(shown.text) == {"\u4e16"}


def test_numbers_stay_as_they_are_written() -> None:
    text = '{\n  "a": 1.10,\n  "b": 1e400,\n  "c": 123456789012345678901234567890\n}'
    assert body_view("".join(text.split()).encode(), "auto").text == text


@pytest.mark.parametrize(
    ("body", "kind", "problem"),
    [
        (b"\xff\x00\x01bin", "bytes", ""),
        (b"\x00\x00\x00\x00\x07\x02\x03", "bytes that the schema 7 of a registry describes", ""),
        (b"\xc3\x01" + bytes(range(8)) + b"x", "bytes", "the schema with the fingerprint 0706050403020100"),
        (avro(order(7), codec="snappy"), "bytes", "compressed with snappy; null, deflate, bzip2 are read"),
        (avro(order(7), schema=b"["), "bytes", "its schema is not JSON"),
        (avro(b"", schema="nothing"), "bytes", "a type that is none"),
        (avro(order(7)[:-2]), "bytes", "It says 3 bytes at"),
    ],
)
def test_what_is_not_decoded_is_shown_as_bytes_and_says_why(body: bytes, kind: str, problem: str) -> None:
    shown = body_view(body, "auto")
    assert (shown.kind, shown.text[:6]) == (kind, "000000")
    assert problem.lower() in shown.problem.lower()


@pytest.mark.parametrize("view", [each for each in VIEWS if each not in ("auto", "text", "hex")])
def test_what_has_not_the_format_that_is_asked_for_is_text(view: str) -> None:
    shown = body_view(b"\x02", view) if view == "json" else body_view(b"hello\xff", view)
    if view != "messagepack":  # nearly all bytes are values of it
        assert shown.problem.startswith("The body is not ")
    assert shown.kind


def test_a_view_reads_behind_the_frame_of_a_registry() -> None:
    shown = body_view(b"\x00\x00\x00\x00\x09\x00" + PROTOBUF, "protobuf")
    assert shown.kind == "Protobuf without its schema, schema 9"
    assert json.loads(shown.text)["2"] == "testing"
    assert "It names the schema 9 of a registry." in body_view(b"\x00\x00\x00\x00\x09\x02", "avro").problem


def test_without_pyarrow_arrow_is_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    shown = body_view(arrow(TABLE), "auto")
    assert (shown.kind, "not installed" in shown.problem) == ("bytes", True)


# --- hostile bodies ---


def nested(levels: int) -> bytes:
    body = field(1, 0, varint(1))
    for _ in range(levels):
        body = field(1, 2, body)
    return body


def blocks(content: bytes, count: int, codec: str) -> bytes:
    """A container file of so many blocks without records."""
    return avro(b"", 0, "null", codec) + (long(0) + sized(content) + b"S" * 16) * count


def batches(count: int) -> bytes:
    """A stream of record batches without rows."""
    sink, schema = pa.BufferOutputStream(), pa.schema([("n", pa.int8())])
    with pa.ipc.new_stream(sink, schema) as writer:
        for _ in range(count):
            writer.write_batch(pa.record_batch([pa.array([], pa.int8())], schema))
    written: bytes = sink.getvalue().to_pybytes()
    return written


MEGABYTE = bytes(1 << 20)
WIDE = {"type": "record", "name": "W", "fields": [0] * 80_000}
NULLS = pa.ListArray.from_arrays(pa.array([0, 2_000_000_000], pa.int32()), pa.nulls(2_000_000_000))
ITSELF = {"type": "record", "name": "R", "fields": [{"name": "r", "type": "R"}]}
HOSTILE = {
    "JSON that nests": b"[" * 200_000,
    "JSON that indents": b"[" * 60 + b"1," * 100_000 + b"1" + b"]" * 60,
    "a long number": b"1" * 200_000,
    "MessagePack that nests": b"\x91" * 200_000,
    "maps as keys": b"\x81" * 200_000,
    "a list of 4 billion": b"\xdd\xff\xff\xff\xff" + b"\xc0" * 10,
    "many small lists": b"\xdd\x00\x03\xff\xff" + b"\x90" * 200_000,
    "Protobuf that nests": nested(3_000),
    "many small messages": (b"\x0a\x02\x08\x01") * 60_000,
    "groups that do not end": b"\x0b" * 100_000,
    "Avro of nothing": avro(b"", count=1 << 60, schema="null"),
    "an array of nothing": avro(long(1 << 60), schema={"type": "array", "items": "null"}),
    "records without fields": avro(b"", count=1 << 60, schema={"type": "record", "name": "E", "fields": []}),
    "a record in itself": avro(b"", schema=ITSELF),
    "a schema that nests": avro(b"", schema=b'{"type":' * 900 + b'"null"' + b"}" * 900),
    "a negative size": avro(long(-5), schema="bytes"),
    "an inflating block": avro(bytes(50_000_000), count=1 << 40, schema="int", codec="deflate"),
    "many inflating blocks": blocks(zlib.compress(MEGABYTE)[2:-4], 3_800, "deflate"),
    "many blocks of bzip2": blocks(bz2.compress(MEGABYTE), 60_000, "bzip2"),
    "many empty blocks": blocks(b"", 200_000, "null"),
    "a header of many fields": MAGIC + long(1_900_000) + bytes(3_800_000),
    "records of fields that are none": avro(long(1 << 60), schema={"type": "array", "items": WIDE}),
    "texts that are none at their ends": field(1, 2, b"a" * 65_535 + b"\x01") * 60,
    "Arrow of empty batches": batches(20_000),
    "Arrow compressed as by 0.17": compressed_as_by_arrow_0_17(200 << 20),
    "Arrow of nulls": arrow(pa.table({"n": NULLS})),
    "inflating Arrow": arrow(pa.table({"s": ["a" * 20_000_000]}), compression="zstd"),
    "Arrow of many columns": arrow(pa.table({str(each): [1] for each in range(3_000)})),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_body_is_shown_in_a_bounded_time_and_size(name: str) -> None:
    for view in VIEWS:
        with ProcessorTime() as spent:
            shown = body_view(HOSTILE[name], view)
        assert len(shown.text) <= max(OUTLINE_LENGTH, 5 * bodyviews.SHOWN_BYTES)
        assert len(shown.problem) < 600
        assert spent.seconds < 2, view


def test_a_block_inflates_to_a_bound() -> None:
    shown = body_view(HOSTILE["inflating Arrow"], "auto")
    assert "inflates to more than 16 MiB" in shown.problem
    before = pa.total_allocated_bytes()
    assert "as by Arrow 0.17" in body_view(HOSTILE["Arrow compressed as by 0.17"], "auto").problem
    assert pa.total_allocated_bytes() == before
    packed = avro(
        bytes(avrobody.MAX_INFLATED_BYTES + 5), 1, {"type": "fixed", "size": 5, "name": "F"}, "deflate"
    )
    assert json.loads(body_view(packed, "avro").text) == ["0x0000000000"]


def test_no_change_of_a_body_is_a_fault_of_the_page() -> None:
    chance = random.Random(44)
    whole = [avro(order(7)), avro(order(7), codec="deflate"), arrow(TABLE), arrow(TABLE, compression="zstd")]
    whole += [PROTOBUF, msgspec.msgpack.encode({"a": [1, {"b": "c"}]}), b'{"a": [1]}', sized(b"x")]
    for _ in range(400):
        body = bytearray(chance.choice(whole))
        for _ in range(chance.randint(1, 6)):
            body[chance.randrange(len(body))] = chance.choice((0, 1, 127, 128, 255, chance.randrange(256)))
        for view in VIEWS:
            body_view(bytes(body[: chance.randrange(len(body)) or None]), view)


ORDER = (
    '{"type":"record","name":"Order","fields":[{"name":"id","type":"string"},{"name":"to","type":"Address"}]}'
)
ADDRESS = '{"type":"record","name":"Address","fields":[{"name":"city","type":"string"}]}'
NEEDED = ((Reference("Address", "Address", 1), KnownSchema("AVRO", ADDRESS)),)
LETTER = (
    'syntax = "proto3"; package post; message Stamp { int32 cents = 1; } message Letter { string id = 1; }'
)
KNOWN = {
    7: KnownSchema("AVRO", ORDER, NEEDED),
    8: KnownSchema("JSON", "{}"),
    10: KnownSchema("PROTOBUF", LETTER),
}


@pytest.mark.parametrize("view", ["auto", "avro"])
def test_a_body_is_read_by_the_schema_that_it_names(view: str) -> None:
    shown = body_view(b"\0\0\0\0\x07\x06o-1\x08Kiel", view, KNOWN)
    assert json.loads(shown.text) == {"id": "o-1", "to": {"city": "Kiel"}}
    assert (shown.kind, shown.problem) == ("Avro, Order, schema 7", "")


@pytest.mark.parametrize("view", ["auto", "protobuf"])
def test_a_protobuf_body_says_which_message_it_is(view: str) -> None:
    letter = b"\0\0\0\0\x0a\x02\x02" + b"\x0a\x03l-1"
    assert json.loads(body_view(letter, view, KNOWN).text) == {"id": "l-1"}
    stamp = body_view(b"\0\0\0\0\x0a\0" + b"\x08\x50", view, KNOWN)
    assert (json.loads(stamp.text), stamp.kind) == ({"cents": 80}, "Protobuf, post.Stamp, schema 10")
    for damaged in (b"\0\0\0\0\x0a\x02\x08\x08\x50", b"\0\0\0\0\x0a\0\x0a\xff", b"\0\0\0\0\x0a\x81"):
        assert "the schema 10" in body_view(damaged, view, KNOWN).problem


@pytest.mark.parametrize("content", [b"\x06o", b"\x06o-1\x08Kiel\0", b"\xff" * 30])
def test_a_body_that_does_not_fit_its_schema_says_so(content: bytes) -> None:
    shown = body_view(b"\0\0\0\0\x07" + content, "auto", KNOWN)
    assert (shown.kind, "the schema 7" in shown.problem) == ("bytes", True)


def test_a_body_of_another_schema_is_shown_as_before() -> None:
    for schema_id in (8, 9):
        body = b"\0\0\0\0" + bytes([schema_id]) + b'{"a": 1}'
        assert body_view(body, "auto", KNOWN) == body_view(body, "auto")
