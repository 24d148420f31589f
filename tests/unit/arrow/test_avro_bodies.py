"""Avro bodies to typed columns, beside fastavro, and beside the same decoder body by body."""

from __future__ import annotations

import datetime
import io
import random
from decimal import Context, Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqspark.arrow.payload.avrobodies import AvroBodies
from mqspark.errors import InvalidSchema
from tests.unit.arrow.bodies_kit import avro, avro_body, read, record

ALONE, TOGETHER = 1 << 30, 0
"""Values of few_rows."""
POINT = {
    "type": "record",
    "name": "Point",
    "fields": [{"name": "x", "type": "int"}, {"name": "y", "type": "float"}],
}
WIDE = record(
    id="long",
    name="string",
    raw="bytes",
    ok="boolean",
    note=["null", "string"],
    point=["null", POINT],
    points={"type": "array", "items": ["null", "Point"]},
    words={"type": "map", "values": {"type": "array", "items": "string"}},
    wide=["int", "null", "long"],
    kind={"type": "enum", "name": "Kind", "symbols": ["A", "B", "C"]},
    hash={"type": "fixed", "name": "Hash", "size": 3},
    either=["string", "boolean", "Point"],
    price={"type": "bytes", "logicalType": "decimal", "precision": 30, "scale": 3},
    small={
        "type": "fixed",
        "name": "Small",
        "size": 9,
        "logicalType": "decimal",
        "precision": 20,
        "scale": 0,
    },
    at={"type": "long", "logicalType": "timestamp-millis"},
    local=["null", {"type": "long", "logicalType": "local-timestamp-micros"}],
    day={"type": "int", "logicalType": "date"},
)
INT, LONG = st.integers(-(1 << 31), (1 << 31) - 1), st.integers(-(1 << 63), (1 << 63) - 1)
POINTS = st.fixed_dictionaries({"x": INT, "y": st.floats(width=32, allow_nan=False)})
DIGITS = Context(prec=60)
DAYS = st.dates(datetime.date(1, 1, 1), datetime.date(9999, 12, 31))
TIMES = st.builds(datetime.datetime.combine, DAYS, st.times())
ROW = st.fixed_dictionaries(
    {
        "id": LONG,
        "name": st.text(),
        "raw": st.binary(),
        "ok": st.booleans(),
        "note": st.none() | st.text(),
        "point": st.none() | POINTS,
        "points": st.lists(st.none() | POINTS, max_size=4),
        "words": st.dictionaries(st.text(), st.lists(st.text(max_size=3), max_size=3), max_size=3),
        "wide": st.none() | LONG,
        "kind": st.sampled_from("ABC"),
        "hash": st.binary(min_size=3, max_size=3),
        "either": st.text() | st.booleans() | POINTS,
        "price": st.integers(-(10**30) + 1, 10**30 - 1).map(lambda value: Decimal(value).scaleb(-3, DIGITS)),
        "small": st.integers(-(10**20) + 1, 10**20 - 1).map(Decimal),
        "at": TIMES.map(
            lambda at: at.replace(microsecond=at.microsecond // 1000 * 1000, tzinfo=datetime.UTC)
        ),
        "local": st.none() | TIMES,
        "day": DAYS,
    }
)


def as_columns(row: dict[str, Any]) -> dict[str, Any]:
    either = row["either"]
    place = 0 if isinstance(either, str) else 1 if isinstance(either, bool) else 2
    return row | {
        "words": list(row["words"].items()),
        "either": {f"member{at}": either if at == place else None for at in range(3)},
    }


@settings(deadline=None, max_examples=15)
@given(st.lists(ROW, max_size=4), st.sampled_from([TOGETHER, ALONE, 2]))
def test_columns_are_what_fastavro_wrote(rows: list[dict[str, Any]], few_rows: int) -> None:
    decoder = AvroBodies(avro(WIDE), few_rows=few_rows)
    assert read(decoder, [avro_body(WIDE, row) for row in rows]) == [as_columns(row) for row in rows]


def test_a_damaged_body_affects_no_other_row() -> None:
    chance = random.Random(7)
    day = datetime.date(2024, 2, 29)
    at = datetime.datetime.combine(day, datetime.time(1, 2, 3, 4000))
    row: dict[str, Any] = {
        "id": 1 << 40,
        "name": "é",
        "raw": b"\xff",
        "ok": True,
        "note": "n",
        "point": {"x": 1, "y": 0.5},
        "points": [None, {"x": 2, "y": 1.5}],
        "words": {"a": ["b", "c"], "": []},
        "wide": 5,
        "kind": "C",
        "hash": b"abc",
        "either": {"x": -1, "y": 2.5},
        "price": Decimal("1234567.891"),
        "small": Decimal(-5),
        "at": at.replace(tzinfo=datetime.UTC),
        "local": at,
        "day": day,
    }
    body = avro_body(WIDE, row)
    bodies = []
    for number in range(600):
        damaged = bytearray(body)
        if number % 3 == 0:
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        if number % 3 == 1:
            del damaged[chance.randrange(len(damaged)) :]
        bodies.append(bytes(damaged))
    together = read(AvroBodies(avro(WIDE), few_rows=TOGETHER), list(bodies))
    alone = AvroBodies(avro(WIDE), few_rows=ALONE)
    assert list(map(repr, together)) == list(map(repr, read(alone, list(bodies))))  # NaN is among the floats
    assert [repr(read(alone, [each])[0]) for each in bodies[:30]] == list(map(repr, together[:30]))
    assert together[2::3] == [as_columns(row)] * 200


def test_many_items_in_few_bodies_end_soon() -> None:
    schema = record(a={"type": "array", "items": "string"}, b="int")
    bodies = [avro_body(schema, {"a": ["x"] * (60_000 if at == 7 else at % 3), "b": at}) for at in range(200)]
    found = read(AvroBodies(avro(schema)), list(bodies))
    assert [(len(each["a"]), each["b"]) for each in found if isinstance(each, dict)] == [
        (60_000 if at == 7 else at % 3, at) for at in range(200)
    ]


@pytest.mark.parametrize("few_rows", [ALONE, TOGETHER])
def test_bodies_that_lie(few_rows: int) -> None:
    decoder = AvroBodies(avro(record(a={"type": "array", "items": "int"}, b="long")), few_rows=few_rows)
    good = b"\x02\x0e\x00\x04"
    bodies = {
        good: {"a": [7], "b": 2},
        b"\x01\x02\x0e\x00\x04": {"a": [7], "b": 2},  # a block with its size
        b"": "a: a number that is cut short or too long",
        good[:-1]: "b: a number that is cut short or too long",
        good + b"\0": "the body goes on behind its last field",
        b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01\x02": "a: a block of more items than the body has bytes",
        b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x00\x02": "a: a block of more items than the body has bytes",
        b"\xff" * 11: "a: a number that is cut short or too long",
        b"\x02\xfe\xff\xff\xff\x1f\x00\x04": "a[]: out of the range of int32",
    }
    assert dict(zip(bodies, read(decoder, list(bodies)), strict=True)) == bodies
    assert read(decoder, [None, good]) == ["the message has no body", {"a": [7], "b": 2}]


@pytest.mark.parametrize("few_rows", [ALONE, TOGETHER])
def test_values_that_a_column_cannot_hold(few_rows: int) -> None:
    decimal = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
    at = {"type": "long", "logicalType": "timestamp-millis"}
    schema = record(d=decimal, t=at, s="string", k=["null", "boolean"])
    plain = record(d="bytes", t="long", s="bytes", k=["null", "int"])
    decoder = AvroBodies(avro(schema), few_rows=few_rows)

    def body(**values: Any) -> bytes:
        return avro_body(plain, {"d": b"\x01", "t": 0, "s": b"", "k": None} | values)

    found = read(
        decoder,
        [
            body(),
            body(d=(9999).to_bytes(2, "big")),
            body(d=(-9999).to_bytes(20, "big", signed=True)),
            body(d=(10_000).to_bytes(2, "big")),
            body(d=(1 << 130).to_bytes(20, "big")),
            body(d=b""),
            body(t=1 << 60),
            body(s=b"\xff"),
            body(k=7),
        ],
    )
    epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    base = {"d": Decimal("0.01"), "t": epoch, "s": "", "k": None}
    digits = "d: more than the 4 digits of the decimal"
    assert found == [
        base,
        base | {"d": Decimal("99.99")},
        base | {"d": Decimal("-99.99")},
        digits,
        digits,
        base | {"d": Decimal("0.00")},
        "t: out of the range of timestamp[us, tz=UTC]",
        "s: the text is no UTF-8",
        "k: a boolean is 0 or 1",
    ]


KIND = {"type": "enum", "name": "K", "symbols": ["A", "B"]}
KIND_LESS = {"type": "enum", "name": "K", "symbols": ["B"]}
RESOLVED: list[tuple[str, Any, Any, Any]] = [
    ("wider numbers", "int", "double", 7),
    ("long to float", "long", "float", 7),
    ("float to double", "float", "double", 0.5),
    ("text to bytes", "string", "bytes", "é"),
    ("bytes to text", "bytes", "string", b"x"),
    ("to a union", "int", ["null", "long"], 5),
    ("from a union", ["null", "int"], "long", 5),
    ("union in another order", ["string", "null"], ["null", "string"], "x"),
    ("enum", KIND, KIND, "A"),
    ("enum with a default", KIND, KIND_LESS | {"default": "B"}, "A"),
    ("items", {"type": "array", "items": "int"}, {"type": "array", "items": ["null", "long"]}, [1, 2]),
    ("values", {"type": "map", "values": "int"}, {"type": "map", "values": "double"}, {"k": 1}),
]


@pytest.mark.parametrize(
    ("_name", "written", "wanted", "value"), RESOLVED, ids=[each[0] for each in RESOLVED]
)
@pytest.mark.parametrize("few_rows", [ALONE, TOGETHER])
def test_a_readers_schema_meets_a_writers_as_in_fastavro(
    _name: str, written: Any, wanted: Any, value: Any, few_rows: int
) -> None:
    writer = record(gone="string", a=written, gone_too={"type": "array", "items": "bytes"}, b="int")
    reader = record(b="long", new=("string", "new"), a=wanted, nothing=(["null", "int"], None))
    body = avro_body(writer, {"gone": "x", "a": value, "gone_too": [b"y"], "b": 3})
    says = fastavro.schemaless_reader(
        io.BytesIO(body), fastavro.parse_schema(writer), fastavro.parse_schema(reader)
    )
    assert isinstance(says, dict)
    if isinstance(says["a"], dict):
        says["a"] = list(says["a"].items())
    assert read(AvroBodies(avro(writer), avro(reader), few_rows=few_rows), [body, body]) == [says, says]


def test_defaults_of_every_type() -> None:
    reader = record(
        a=("int", 1),
        p=({"type": "array", "items": POINT}, [{"x": 1, "y": 0.5}]),
        m=({"type": "map", "values": ["long", "null"]}, {"k": 5}),
        d=({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}, "\u0001"),
        t=({"type": "long", "logicalType": "timestamp-millis"}, 1000),
        f=({"type": "fixed", "name": "F", "size": 1}, "\u00ff"),
        u=(["string", "int"], "x"),
    )
    for few_rows in (ALONE, TOGETHER):
        assert read(AvroBodies(avro(record()), avro(reader), few_rows=few_rows), [b""]) == [
            {
                "a": 1,
                "p": [{"x": 1, "y": 0.5}],
                "m": [("k", 5)],
                "d": Decimal("0.01"),
                "t": datetime.datetime(1970, 1, 1, 0, 0, 1, tzinfo=datetime.UTC),
                "f": b"\xff",
                "u": {"member0": "x", "member1": None},
            }
        ]


@pytest.mark.parametrize("few_rows", [ALONE, TOGETHER])
def test_only_bodies_that_use_what_the_reader_lost_are_refused(few_rows: int) -> None:
    writer = record(k=KIND, u=["null", "int", "string"])
    reader = record(k=KIND_LESS, u=["null", "long"])
    rows: list[dict[str, Any]] = [{"k": "B", "u": 1}, {"k": "A", "u": 1}, {"k": "B", "u": "x"}]
    found = read(
        AvroBodies(avro(writer), avro(reader), few_rows=few_rows), [avro_body(writer, row) for row in rows]
    )
    assert found == [
        {"k": "B", "u": 1},
        "k: the schema has no symbol 'A', and no default",
        "u is string where it was written, not union",
    ]


@pytest.mark.parametrize(
    ("writer", "reader", "says"),
    [
        (record(), record(a="int"), "a is not in what was written, and has no default"),
        (record(a="string"), record(a="int"), "a is string where it was written, not int"),
        (record(a="double"), record(a="float"), "a is double"),
        (record(a=POINT), record(a=POINT | {"name": "Other"}), "a is Point where it was written, not Other"),
        (record(a={"type": "array", "items": "null"}), None, "items without bytes"),
        (record(a={"type": "bytes", "logicalType": "decimal", "precision": 39}), None, "39 digits"),
        (record(a=["null", "Row"]), None, "Row contains itself"),
        ("int", None, "columns come from a record"),
    ],
)
def test_schemas_that_give_no_columns_are_refused(writer: Any, reader: Any, says: str) -> None:
    with pytest.raises(InvalidSchema, match=says):
        AvroBodies(avro(writer), avro(reader) if reader is not None else None)


def test_types_that_double_at_each_level_are_refused_soon() -> None:
    inner: Any = {"type": "record", "name": "R0", "fields": [{"name": "a", "type": "int"}]}
    for level in range(1, 40):
        fields = [{"name": "a", "type": inner}, {"name": "b", "type": f"R{level - 1}"}]
        inner = {"type": "record", "name": f"R{level}", "fields": fields}
    with pytest.raises(InvalidSchema, match="more than 10000 columns"):
        AvroBodies(avro(inner))


def test_columns_of_a_schema() -> None:
    assert AvroBodies(avro(WIDE)).schema.field("either").type == pa.struct(
        [
            ("member0", pa.string()),
            ("member1", pa.bool_()),
            ("member2", pa.struct([("x", pa.int32()), ("y", pa.float32())])),
        ]
    )
