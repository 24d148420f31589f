"""Long tables of bodies: read part by part, they have what one go reads."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mqspark.errors import IllegalName, ProtocolError
from mqspark.protocol.bodies.admin_bodies import ConsumeStats
from mqspark.protocol.bodies.body import decode_body
from mqspark.protocol.bodies.client_bodies import HeartbeatData
from mqspark.protocol.bodies.longtables import (
    COPIED_BYTES,
    MAX_ENTRY_BYTES,
    PART_BYTES,
    Parts,
    copied,
    count_in,
    decode_long,
    parts_of_list,
    parts_of_names,
    parts_of_table,
    read_parts,
)
from mqspark.protocol.slices import finished
from tests.support.slices import sliced

ODD: dict[str, Any] = {
    "T{": {"a": "}}", "b": {"c": '\\"},{'}, "d": [1, {"e": "{{"}]},
    "empty": {},
    "quote\\": {"}": '"', "\\\\": "\\"},
    "T": {"attributes": {}, "queues": 8},
}


def read(parts: Parts) -> tuple[list[Any], bytes]:
    found: list[Any] = []
    rest = finished(read_parts(parts, lambda part: found.append(json.loads(part))))
    return found, rest


@pytest.mark.parametrize("part_bytes", [0, 1, 40, 100_000])
@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("separators", [(",", ":"), (" , ", " : ")])
def test_parts_have_all_entries_and_the_rest_everything_else(
    part_bytes: int, indent: int | None, separators: tuple[str, str]
) -> None:
    body = {"before": {"x": 1}, "table": ODD, "after": {"table": 3}}
    text = json.dumps(body, indent=indent, separators=separators).encode()
    parts, rest = read(parts_of_table(text, "table", part_bytes))
    assert len(parts) == {0: 4, 1: 4, 40: 3, 100_000: 1}.get(part_bytes)
    assert {name: entry for part in parts for name, entry in part["table"].items()} == ODD
    assert json.loads(rest) == {**body, "table": {}}


def test_a_body_without_the_table_is_all_rest() -> None:
    for text in (b"{}", b'{"table":null}', b'{"other":{"a":{}}}', b""):
        assert read(parts_of_table(text, "table")) == ([], text)
        assert read(parts_of_names(text, "table")) == ([], text)
    assert read(parts_of_table(b'{"table":{}}', "table")) == ([{"table": {}}], b'{"table":{}}')


def test_an_entry_of_another_table_is_not_the_table() -> None:
    """Whoever may make a group of that name would hide all others."""
    body = {"forbidden": {"table": {"T": 4}, "x": {"table": {}}}, "table": ODD}
    parts, rest = read(parts_of_table(json.dumps(body).encode(), "table", 0))
    assert {name: entry for part in parts for name, entry in part["table"].items()} == ODD
    assert json.loads(rest) == {**body, "table": {}}
    within = json.dumps({"table": {"T": 4}, "wrapper": body}).encode()
    assert len(read(parts_of_table(within, "table", 0, 2))[0]) == len(ODD)


def test_a_part_ends_with_the_entry_that_reaches_its_size() -> None:
    table = {f"T{number:03d}": {"n": number} for number in range(100)}
    entry = len(b'"T000":{"n":10},')
    parts, _ = read(parts_of_table(json.dumps({"t": table}, separators=(",", ":")).encode(), "t", 5 * entry))
    assert {len(part["t"]) for part in parts[1:-1]} <= {5, 6}
    assert len(parts) > 15


@pytest.mark.parametrize(
    ("entries", "problem"),
    [
        (b'"a":{"b":"' + b"x" * (MAX_ENTRY_BYTES + 100_000) + b'"}}}', "an entry is longer"),
        (b'"a":{' + b"{}" * 90_000 + b"}}}", "objects in"),
        (b'"a":{},' * 90_000 + b'"a":{}}}', "objects in"),
        (b'"a":{}', "has no end"),
        (b'"a":{"b":"}}}', "has no end"),
    ],
)
def test_what_is_no_table_of_its_length_is_refused(entries: bytes, problem: str) -> None:
    with pytest.raises(ProtocolError, match=problem):
        read(parts_of_table(b'{"table":{' + entries, "table"))


def test_an_endless_entry_is_looked_at_in_slices() -> None:
    text = b'{"table":{"a":{"b":"' + b"x" * MAX_ENTRY_BYTES
    parts = parts_of_table(text, "table")
    pauses: list[bytes] = []
    with pytest.raises(ProtocolError):
        pauses.extend(parts)
    assert set(pauses) == {b""}
    assert len(pauses) > 5


@pytest.mark.parametrize("part_bytes", [0, 20, 100_000])
def test_lists_of_names_come_in_parts(part_bytes: int) -> None:
    names = [f"T-{number}" for number in range(50)]
    text = json.dumps({"a": 1, "names": names, "b": None}, separators=(",", ":")).encode()
    parts, rest = read(parts_of_names(text, "names", part_bytes))
    assert len(parts) == {0: 50, 20: 13, 100_000: 1}[part_bytes]
    assert [name for part in parts for name in part["names"]] == names
    assert json.loads(rest) == {"a": 1, "names": [], "b": None}
    assert read(parts_of_names(b'{"names":[]}', "names"))[0] == [{"names": []}]


@pytest.mark.parametrize("part_bytes", [0, 1, 40, 100_000])
@pytest.mark.parametrize("indent", [None, 1])
def test_lists_of_objects_come_in_parts(part_bytes: int, indent: int | None) -> None:
    items = [*ODD.values(), {"list": [{"list": [{}]}, "]"]}]
    body = {"before": {"list": [1]}, "list": items, "after": {"list": [3]}}
    parts, rest = read(parts_of_list(json.dumps(body, indent=indent).encode(), "list", part_bytes))
    assert len(parts) == {0: 5, 1: 5, 100_000: 1}.get(part_bytes, len(parts))
    assert len(parts) < 5 or part_bytes <= 1
    assert [item for part in parts for item in part["list"]] == items
    assert json.loads(rest) == {**body, "list": []}
    for text in (b"{}", b'{"list":null}', b'{"list":[ ]}', b'{"other":{"list":[{}]}}', b""):
        assert read(parts_of_list(text, "list")) == ([], text)


@pytest.mark.parametrize(
    "body",
    [
        {"clientID": "c", "consumerDataSet": [{"groupName": f"G{number}"} for number in range(1_000)]},
        {
            "clientID": "c",
            "consumerDataSet": [
                {"groupName": "G", "subscriptionDataSet": [{"topic": "T", "subString": "a" * 20_000}]}
            ],
        },
        {"clientID": "c", "more": "c" * 20_000, "consumerDataSet": []},
        {"consumerDataSet": [{"groupName": "G"}] * 1_000 + [None]},
        {"consumerDataSet": [None, {"groupName": "G", "more": "c" * 20_000}, None, None], "clientID": "c"},
        {"consumerDataSet": [None, {"groupName": "G"}] * 1_000 + [None] * 4_000, "clientID": "c"},
        {"consumerDataSet": [None] * 5_000, "clientID": "c"},
        {"clientID": "c", "more": "c" * 20_000},
        {
            "clientID": "c",
            "consumerDataSet": [{"consumeType": 1, "groupName": f"G{n}"} for n in range(1_000)],
        },
    ],
)
def test_a_long_request_is_what_one_go_makes_of_it(body: dict[str, Any]) -> None:
    text = json.dumps(body).encode()
    assert len(text) > PART_BYTES
    found, slices = sliced(decode_long(HeartbeatData, text, "consumerDataSet"))
    assert found == decode_body(HeartbeatData, text)
    assert slices >= min(len(body.get("consumerDataSet", ())), len(text) // (2 * PART_BYTES))


@pytest.mark.parametrize("wrong", [b"]", b"", b"}", b',{"groupName":"a\nb"}]}', b",7]}", b"]}]"])
def test_a_long_request_with_a_mistake_is_refused(wrong: bytes) -> None:
    text = b'{"consumerDataSet":[%b%b' % (b",".join([b'{"groupName":"G"}'] * 2_000), wrong)
    with pytest.raises((ProtocolError, IllegalName)):
        finished(decode_long(HeartbeatData, text, "consumerDataSet"))


def test_a_request_whose_parts_refer_to_others_is_read_at_once() -> None:
    first = {"groupName": "G", "subscriptionDataSet": [{"topic": "T"}]}
    again = {"groupName": "H", "subscriptionDataSet": {"$ref": "$.consumerDataSet[0].subscriptionDataSet"}}
    items = [first, again, *({"groupName": f"G{number}"} for number in range(1_000))]
    text = json.dumps({"consumerDataSet": items}).encode()
    found, slices = sliced(decode_long(HeartbeatData, text, "consumerDataSet"))
    assert slices == 0
    assert found == decode_body(HeartbeatData, text)


def test_entries_by_queue() -> None:
    """As RocketMQ writes them: objects as keys."""
    keys = [f'{{"brokerName":"b","queueId":{number},"topic":"T"}}' for number in range(30)]
    table = ",".join(f'{key}:{{"brokerOffset":{number}}}' for number, key in enumerate(keys))
    found: dict[str, int] = {}

    def add(part: bytes) -> None:
        stats = decode_body(ConsumeStats, part).offset_table
        assert len(stats) <= 4
        found.update((key, entry.broker_offset) for key, entry in stats.items())

    finished(read_parts(parts_of_table(b'{"offsetTable":{%b}}' % table.encode(), "offsetTable", 200), add))
    assert found == {key: number for number, key in enumerate(keys)}


def test_a_part_in_the_dialect_of_fastjson() -> None:
    text = b'{"table":{"a":{0:1,1:2},"b":{7:8}}}'
    found: dict[str, dict[int, int]] = {}
    finished(
        read_parts(
            parts_of_table(text, "table", 0),
            lambda part: found.update(decode_body(dict[str, dict[str, dict[int, int]]], part)["table"]),
        )
    )
    assert found == {"a": {0: 1, 1: 2}, "b": {7: 8}}


def test_a_long_body_is_copied_in_slices() -> None:
    frame = b"head" + bytes(range(256)) * 4096
    text, pauses = sliced(copied(memoryview(frame)[4:]))
    assert (text, pauses) == (frame[4:], -(-len(text) // COPIED_BYTES))
    assert sliced(copied(frame)) == (frame, 0)
    assert [count_in(each, b"\x07") for each in (frame, memoryview(frame)[4:-249], b"")] == [4096, 4095, 0]
