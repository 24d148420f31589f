"""JSON bodies to typed columns: each body's row is its own, or has a reason."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqspark.arrow.payload.bodyrows import slices
from mqspark.arrow.payload.jsonbodies import JsonBodies
from mqspark.errors import ConfigError
from tests.unit.arrow.bodies_kit import read

UTC = pa.timestamp("us", tz="UTC")
INNER = pa.struct([("x", pa.int32()), ("y", pa.string())])
NESTED = pa.schema(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("ok", pa.bool_()),
        ("price", pa.float64()),
        ("items", pa.list_(pa.field("element", INNER))),
        ("tags", pa.map_(pa.string(), pa.list_(pa.int64()))),
        ("inner", INNER),
    ]
)


def one(kind: pa.DataType, value: str) -> Any:
    found = read(JsonBodies(pa.schema([("a", kind)])), [b'{"a":%s}' % value.encode()])[0]
    return found["a"] if isinstance(found, dict) else found


def nullable(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | inner


X = st.fixed_dictionaries(
    {},
    optional={
        "x": nullable(st.integers(-(1 << 31), (1 << 31) - 1)),
        "y": nullable(st.text()),
        "more": st.text(),
    },
)
GOOD = st.fixed_dictionaries(
    {},
    optional={
        "id": nullable(st.integers(-(1 << 63), (1 << 63) - 1)),
        "name": nullable(st.text()),
        "ok": nullable(st.booleans()),
        "price": nullable(st.floats(allow_nan=False, allow_infinity=False)),
        "items": nullable(st.lists(nullable(X), max_size=3)),
        "tags": nullable(
            st.dictionaries(st.text(), nullable(st.lists(st.integers(-9, 9), max_size=2)), max_size=2)
        ),
        "inner": nullable(X),
        "unknown": st.recursive(st.none() | st.text() | st.integers(), st.lists, max_leaves=4),
    },
)
BAD = st.sampled_from(
    [
        b"",
        b"null",
        b"[]",
        b"7",
        b"{",
        b'{"id":"7"}',
        b'{"id":1.5}',
        b'{"id":1}{"id":2}',
        b"\xff",
        b'{"items":[7]}',
        None,
    ]
)


def as_read(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {each.name: as_read(value.get(each.name), each.type) for each in kind}
    if pa.types.is_list(kind):
        return [as_read(each, kind.value_type) for each in value]
    return list(value.items()) if pa.types.is_map(kind) else value


@given(st.lists(GOOD | BAD, max_size=12), st.booleans())
def test_each_row_is_what_json_loads_makes_of_its_own_body(rows: list[Any], pretty: bool) -> None:
    bodies = [
        json.dumps(row, indent=1 if pretty else None).encode() if isinstance(row, dict) else row
        for row in rows
    ]
    for row, found in zip(rows, read(JsonBodies(NESTED), bodies), strict=True):
        if isinstance(row, dict):
            assert found == {each.name: as_read(row.get(each.name), each.type) for each in NESTED}
        else:
            assert isinstance(found, str)


def test_a_line_break_or_a_second_object_moves_no_other_row() -> None:
    bodies = [b'{"id":1}\n', b'{"id":\n2}', b'{"id":3}\n{"id":4}', b"", b'{"id":5}']
    found = read(JsonBodies(pa.schema([("id", pa.int64())])), list(bodies))
    assert [each if isinstance(each, str) else each["id"] for each in found] == [
        1,
        2,
        "JSON is malformed: trailing characters (byte 10)",
        "the body is empty",
        5,
    ]


@pytest.mark.parametrize(
    "bodies",
    [
        [b"", b'{"id":1}{"id":2}', b'{"id":3}'],
        [b'{"id":', b"1}", b'{"id":2}{"id":3}', b'{"id":4}'],
        [b'{"id":1,"x":{}', b',"y":{}}', b'{"id":2}{"id":3}'],
        [b'{"id":1,"x":"}', b'{"}', b'{"id":2}{"id":3}'],
        [b'{"id":1}', None, b'{"id":2}\n{"id":3}'],
    ],
)
def test_as_many_values_as_bodies_are_not_one_in_each(bodies: list[bytes | None]) -> None:
    decoder = JsonBodies(pa.schema([("id", pa.int64())]))
    assert read(decoder, bodies) == [read(decoder, [each])[0] for each in bodies]


@pytest.mark.parametrize(
    ("kind", "value", "means"),
    [
        (pa.int64(), "-9223372036854775808", -(1 << 63)),
        (pa.int8(), "127", 127),
        (pa.float32(), "0.5", 0.5),
        (pa.float64(), "3", 3.0),
        (pa.decimal128(10, 2), "1.25", Decimal("1.25")),
        (pa.decimal128(10, 2), '"1.25"', Decimal("1.25")),
        (pa.decimal128(38, 0), "9" * 38, Decimal("9" * 38)),
        (pa.binary(), '"AAEC"', b"\0\1\2"),
        (pa.date32(), '"2024-12-31"', datetime.date(2024, 12, 31)),
        (UTC, '"2024-12-31T23:30:00+01:00"', datetime.datetime(2024, 12, 31, 22, 30, tzinfo=datetime.UTC)),
        (
            pa.timestamp("us"),
            '"2024-12-31T23:30:00.000001"',
            datetime.datetime.fromisoformat("2024-12-31T23:30:00.000001"),
        ),
        (pa.map_(pa.int64(), pa.bool_()), '{"7":true}', [(7, True)]),
        (pa.map_(pa.date32(), pa.bool_()), '{"2024-01-02":null}', [(datetime.date(2024, 1, 2), None)]),
        (pa.int64(), '1,"a":2', 2),
        (pa.string(), '"\\u0000\\ud83d\\ude00"', "\0😀"),
    ],
)
def test_values(kind: pa.DataType, value: str, means: Any) -> None:
    assert one(kind, value) == means


@pytest.mark.parametrize(
    ("kind", "value", "says"),
    [
        (pa.int64(), "9223372036854775808", "$.a"),
        (pa.int8(), "128", "Expected `int` <= 127 - at `$.a`"),
        (pa.int64(), "1.5", "Expected `int | null`, got `float` - at `$.a`"),
        (pa.int64(), '"1"', "got `str` - at `$.a`"),
        (pa.string(), "1", "got `int` - at `$.a`"),
        (pa.float32(), "1e39", "$.a"),
        (pa.float64(), "1e400", ""),
        (pa.float64(), "NaN", "malformed"),
        (pa.decimal128(10, 2), "1.255", "$.a"),
        (pa.decimal128(4, 2), "123.45", "$.a"),
        (pa.decimal128(10, 2), "1e999999999", "$.a"),
        (pa.binary(), '"*"', "base64"),
        (UTC, '"2024-12-31T23:30:00"', "with a timezone component - at `$.a`"),
        (pa.timestamp("us"), '"2024-12-31T23:30:00Z"', "with no timezone component - at `$.a`"),
        (pa.date32(), '"2024-12-31T00:00:00"', "$.a"),
        (pa.list_(INNER), '[{"x":1},{"x":"1"}]', "at `$.a[1].x`"),
        (pa.map_(pa.int64(), pa.bool_()), '{"x":true}', "$.a"),
        (pa.string(), '"\\ud800"', ""),
        (INNER, "[" * 100_000, ""),
    ],
)
def test_a_value_of_another_type_is_named(kind: pa.DataType, value: str, says: str) -> None:
    found = one(kind, value)
    assert isinstance(found, str)
    assert says in found


def test_bytes_that_are_no_text() -> None:
    assert isinstance(read(JsonBodies(pa.schema([("a", pa.string())])), [b'{"a":"\xff"}'])[0], str)


def test_only_the_row_with_too_many_digits_is_lost_of_many() -> None:
    schema = pa.schema([("d", pa.list_(pa.field("element", pa.decimal128(6, 2))))])
    bodies = [b'{"d":["1.25"]}'] * 700
    bodies[123] = b'{"d":["1.25","1.255"]}'
    found = read(JsonBodies(schema), list(bodies))
    assert [at for at, each in enumerate(found) if isinstance(each, str)] == [123]
    assert found[124] == {"d": [Decimal("1.25")]}


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (pa.map_(pa.float64(), pa.int64()), "cannot have keys of double"),
        (pa.duration("us"), r"a.b\[\] cannot be duration"),
    ],
)
def test_a_type_that_json_has_not_is_refused_by_the_schema(kind: pa.DataType, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        JsonBodies(pa.schema([("a", pa.struct([("b", pa.list_(kind))]))]))


def test_slices_are_bounded_in_rows_cells_and_bytes() -> None:
    bodies = pa.array([b"x" * 100] * 100_000, pa.binary())
    assert sum(count for _, count in slices(bodies, 5)) == 100_000
    assert max(count for _, count in slices(bodies, 5)) == 1 << 15
    assert max(count for _, count in slices(bodies, 1 << 12)) == 256
    large = pa.array([b"y" * (3 << 20)] * 3 + [b"z" * (9 << 20), None, b""], pa.binary())
    assert list(slices(large.slice(1), 1)) == [(0, 1), (1, 1), (2, 1), (3, 2)]
