"""Rows to sends: every row once, in order, in pieces of like size, and bytes that a broker reads back."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqspark.arrow.records.encode import Compression, Rows
from mqspark.errors import InvalidMessage
from mqspark.message import decode_properties
from mqspark.record.batchitems import split_batch

VALUES = st.one_of(
    st.lists(st.binary(min_size=3, max_size=3), min_size=1, max_size=300),  # a table
    st.lists(st.binary(max_size=40), min_size=1, max_size=300),
)


@given(VALUES, st.booleans(), st.integers(1, 5), st.integers(1, 90), st.integers(30, 2000), st.data())
def test_every_row_is_sent_once_and_in_order(
    values: list[bytes], keyed: bool, targets: int, run: int, batch_bytes: int, data: st.DataObject
) -> None:
    offset = data.draw(st.integers(0, len(values) - 1))
    columns = {"value": pa.array(values, pa.binary())}
    if keyed:
        columns["key"] = pa.array([f"k{n % 10}" for n in range(len(values))])
    rows = Rows(pa.record_batch(columns).slice(offset))
    chosen = np.arange(rows.count)
    found: dict[int, list[tuple[bytes, str]]] = {}
    for target, batch in rows.sends(chosen, chosen // run % targets, batch_bytes):
        members = split_batch(batch.body)
        assert batch.count == len(members)
        assert len(batch.body) <= batch_bytes or batch.count == 1
        for flag, body, properties in members:
            assert flag == 0
            found.setdefault(target, []).append((bytes(body), bytes(properties).decode()))
    for target in range(targets):
        expected = [
            (values[offset + n], f"KEYS\x01k{(offset + n) % 10}\x02" if keyed else "")
            for n in range(rows.count)
            if n // run % targets == target
        ]
        assert found.get(target, []) == expected


def test_pieces_are_of_like_size() -> None:
    rows = Rows(pa.record_batch({"value": pa.array([b"x" * 100] * 10_000, pa.binary())}))
    none = np.zeros(10_000, np.int64)
    sizes = [len(batch.body) for _, batch in rows.sends(np.arange(10_000), none, 1 << 20)]
    assert len(sizes) == 2
    assert max(sizes) - min(sizes) <= 2 * 122


def test_properties_have_one_order() -> None:
    rows = Rows(
        pa.record_batch(
            {
                "tags": pa.array(["t"] * 4),
                "value": pa.array(["v"] * 4),
                "properties": pa.array([[("b", "1"), ("a", "2")]] * 4, pa.map_(pa.string(), pa.string())),
                "key": pa.array(["k"] * 4),
            }
        )
    )
    ((_, batch),) = rows.sends(np.arange(4), np.zeros(4, np.int64), 1 << 20)
    texts = {bytes(properties) for _, _, properties in split_batch(batch.body)}
    assert len(texts) == 1
    assert list(decode_properties(texts.pop())) == ["b", "a", "KEYS", "TAGS"]


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (("p", ""), "the value of 'p' is empty"),
        (("", "v"), "the name of '' is empty"),
        (("p", "a\x02b"), "holds the separator 0x02"),
        (("a\x01b", "v"), "holds the separator 0x01"),
    ],
)
def test_a_property_that_cannot_be_stored_is_named_with_its_row(
    wrong: tuple[str, str], words: str, offset: int
) -> None:
    maps: list[list[tuple[str, str | None]] | None] = [[("a", "1")], None, [], [("b", None), ("c", "2")]]
    kept = [[("a", "1")], None, [], [("c", "2")]]
    column = pa.array(maps, pa.map_(pa.string(), pa.string())).slice(offset)
    rows = Rows(pa.record_batch({"value": pa.array(["v"] * len(column)), "properties": column}))
    texts = [decode_properties(text.as_py()) for text in rows.properties]
    assert texts == [dict(each or []) for each in kept[offset:]]
    column = pa.array([*maps, [("a", "1"), wrong]], pa.map_(pa.string(), pa.string())).slice(offset)
    with pytest.raises(InvalidMessage) as caught:
        Rows(pa.record_batch({"value": pa.array(["v"] * len(column)), "properties": column}))
    assert f"properties: row {4 - offset} of the batch" in str(caught.value)
    assert words in str(caught.value)


OF_A_DELIVERY = {
    "TRAN_MSG": "true",
    "PGROUP": "g",
    "DELAY": "3",
    "TIMER_DELIVER_MS": "1",
    "RETRY_TOPIC": "T",
    "DLQ_ORIGIN_TOPIC": "T",
    "UNIQ_KEY": "id",
    "MQSPARK_BATCH": "1:0",
    "TRANSACTION_CHECK_TIMES": "2",
    "INNER_MULTI_QUEUE_OFFSET": "1",
}
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def written(keep: bool = False, **columns: pa.Array) -> list[dict[str, str]]:
    count = len(next(iter(columns.values())))
    batch = pa.record_batch({"value": pa.array(["v"] * count), **columns})
    return [decode_properties(text.as_py()) for text in Rows(batch, keep).properties]


def headers_of(*rows: dict[str, str | None] | None) -> pa.Array:
    return pa.array(
        [
            None if row is None else [{"key": k, "value": v and v.encode()} for k, v in row.items()]
            for row in rows
        ],
        HEADERS,
    )


@pytest.mark.parametrize("column", ["properties", "headers"])
def test_what_brokers_set_is_left_out_of_copies_unless_it_is_kept(column: str) -> None:
    rows = ({**OF_A_DELIVERY, "a": "1"}, None, {"b": "2", **OF_A_DELIVERY}, OF_A_DELIVERY)
    maps = pa.array(
        [None if row is None else list(row.items()) for row in rows], pa.map_(pa.string(), pa.string())
    )
    columns = {column: maps if column == "properties" else headers_of(*rows)}
    assert written(**columns) == [{"a": "1"}, {}, {"b": "2"}, {}]
    assert written(keep=True, **columns) == [dict(row or {}) for row in rows]


def test_headers_are_properties_and_the_same_ones_are_not_doubled() -> None:
    maps = pa.array([[("a", "1")], [("a", "1")], None], pa.map_(pa.string(), pa.string()))
    more = headers_of({"a": "1"}, {"b": "é", "c": None}, {"d": "4"})
    batch = pa.record_batch({"value": pa.array(["v"] * 3), "properties": maps, "headers": more})
    assert [text.as_py().decode() for text in Rows(batch).properties] == [
        "a\x011\x02",
        "a\x011\x02b\x01é\x02",
        "d\x014\x02",
    ]
    assert written(headers=more.slice(1)) == [{"b": "é"}, {"d": "4"}]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ([{"key": "a", "value": b"\xff"}], "not UTF-8"),
        ([{"key": "a", "value": b"1"}, {"key": "a", "value": b"2"}], "two headers 'a'"),
        ([{"key": None, "value": b"1"}], "without a key"),
        ([{"key": "", "value": b"1"}], "the name of '' is empty"),
        ([{"key": "a", "value": b""}], "the value of 'a' is empty"),
        ([{"key": "a", "value": b"\x01"}], "separator 0x01"),
    ],
)
def test_a_header_that_cannot_be_stored_is_named_with_its_row(wrong: list[object], words: str) -> None:
    with pytest.raises(InvalidMessage, match=rf"headers: row 2 of the batch.*{words}") as caught:
        written(headers=pa.array([[{"key": "a", "value": b"1"}], None, wrong], HEADERS))
    assert caught.value.field == "headers"


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
def test_a_key_that_is_no_text_is_refused_by_row_and_column(kind: pa.DataType) -> None:
    assert written(key=pa.array([b"k", None, "é".encode(), b""], kind)) == [
        {"KEYS": "k"},
        {},
        {"KEYS": "é"},
        {},
    ]
    for bad in (b"\xff", b"\xc3", b"a\xed\xa0\x80"):
        with pytest.raises(
            InvalidMessage, match=r"key: row 2 of the batch holds bytes that are not UTF-8.*hex\(key\)"
        ):
            written(key=pa.array([b"k", None, bad], kind))


@pytest.mark.parametrize("same", [False, True])
def test_compressed_rows(same: bool) -> None:
    values = [b"x" * (5000 if same else 5000 + n) for n in range(8)]
    rows = Rows(pa.record_batch({"value": pa.array(values, pa.binary())}))
    found = list(rows.sends(np.arange(8), np.arange(8) % 2, 1 << 20, Compression(3, 4096)))
    assert [(target, batch.count) for target, batch in found] == [(0, 4), (1, 4)]
    assert {batch.sys_flag & 1 for _, batch in found} == {1}


def test_no_rows() -> None:
    rows = Rows(pa.record_batch({"value": pa.array([b"x"], pa.binary())}))
    none = np.zeros(0, np.int64)
    assert list(rows.sends(none, none, 1024)) == []
