"""fastjson's dialect: what it writes is read, what is neither raises, and nothing grows without bound."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqspark.errors import ProtocolError
from mqspark.protocol import fastjson
from mqspark.protocol.fastjson import MAX_JSON_DEPTH, canonical, dumps_pretty, loads


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a":[1,2.5,true,false,null,"x"]}', {"a": [1, 2.5, True, False, None, "x"]}),
        ("{0:1,1:2}", {"0": 1, "1": 2}),
        ("{-1:1}", {"-1": 1}),
        ("{bare_key:1, $x.y : 2}", {"bare_key": 1, "$x.y": 2}),
        ("{'a':'it''s'}", None),
        ("{'a':'it\\'s'}", {"a": "it's"}),
        ('{"a":1,}', {"a": 1}),
        ("[1,,2,]", [1, 2]),
        (" \n{ 'a' :\t1 } ", {"a": 1}),
        ("{'u':'\\u4e2d\\x41\\n\\/\\0'}", {"u": "中A\n/\0"}),
        ("{'u':'\\ud83d\\ude80 \\ud83d'}", {"u": "🚀 \ufffd"}),
        ("{'a':undefined}", {"a": None}),
        ("{'n':-1.5e3,'b':9223372036854775807}", {"n": -1500.0, "b": 9223372036854775807}),
        ('{{"queueId":0,"topic":"T"}:{1:2}}', {'{"queueId":0,"topic":"T"}': {"1": 2}}),
        ('{{"b":1,"a":2}:3}', {'{"a":2,"b":1}': 3}),
        ("'x'", "x"),
        ("12", 12),
        ('\ufeff{"a":1}', {"a": 1}),
        ("\ufeff{'a':1}", {"a": 1}),
        ('{"a":1}\ufeff', None),
    ],
)
def test_dialect(text: str, value: Any) -> None:
    if value is None:
        with pytest.raises(ProtocolError):
            loads(text.encode())
    else:
        assert loads(text.encode()) == value


def test_references() -> None:
    assert loads(b'{"a":{"x":[1]},"b":{"$ref":"$.a"},"c":{"$ref":"$.a.x[0]"}}') == {
        "a": {"x": [1]},
        "b": {"x": [1]},
        "c": 1,
    }
    assert loads(b'{"t":{"a.b":[5]},"c":[{"$ref":"$.t.a\\\\.b"},{"$ref":"$.t[\'a.b\']"}]}')["c"] == [[5], [5]]
    assert loads(b"{0:{'x':1},'r':{'$ref':'$.0'}}") == {"0": {"x": 1}, "r": {"x": 1}}
    for path in ("$", "$.r", "$.none", "$.a[7]", "$.a.x", "..", "@", "nonsense", "$x", 5):
        document = {"a": [1], "r": {"$ref": path}}
        assert loads(canonical(document).encode()) == {"a": [1], "r": None}
    assert loads(b'{"$ref":"$"}') is None
    assert loads(b'{"x":"$ref"}') == {"x": "$ref"}


def test_references_cannot_grow_without_bound() -> None:
    levels = ['"l0":[0,0]']
    for n in range(1, 40):
        reference = f'{{"$ref":"$.l{n - 1}"}}'
        levels.append(f'"l{n}":[{reference},{reference}]')
    document = loads(f"{{{','.join(levels)}}}".encode())
    assert document["l1"] == [[0, 0], [0, 0]]
    assert document["l2"] == [None, None]
    wide = b'{"b":[' + b"1," * 20_000 + b'1],"c":[' + b",".join([b'{"$ref":"$.b"}'] * 100) + b"]}"
    with pytest.raises(ProtocolError, match="references cost"):
        loads(wide)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[",
        "}",
        "{]",
        "[}",
        '{"a"}',
        '{"a":}',
        '{"a":1 "b":2}',
        "{[1]:2}",
        "{a:b}",
        "nope",
        "{} {}",
        '{"a":"x',
        '{"a":"\\',
        '{"a":"\\u12',
        "{'a':'\\u12g4'}",
        "{'a':1-2}",
        "{a:" + "1" * 5000 + "}",
        "[" * (MAX_JSON_DEPTH + 2),
        "{" * (MAX_JSON_DEPTH + 2),
        "{a:" * (MAX_JSON_DEPTH + 2),
        "[" * 100_000,
    ],
)
def test_what_is_neither_json_nor_fastjson_raises(text: str) -> None:
    with pytest.raises(ProtocolError, match="not JSON"):
        loads(text.encode())


def test_bytes_that_are_no_text_raise() -> None:
    for data in (b'{"a":"\xff"}', b"\xfe\xff", b'{a:"\xc3"}'):
        with pytest.raises(ProtocolError):
            loads(data)
    assert loads(memoryview(b"{1:2}")) == loads(bytearray(b"{1:2}")) == {"1": 2}


def test_numbers_too_large_are_not_integers() -> None:
    assert math.isinf(loads(b"{a:1e999}")["a"])


def test_depth_bound_leaves_room_for_real_bodies() -> None:
    depth = MAX_JSON_DEPTH - 1
    assert loads(b"[" * depth + b"{1:2}" + b"]" * depth)


def test_pretty() -> None:
    document = {"b": {1: 5, 10: {}, 2: []}, "a": [1, {"x": None}], "ü": 'q"\n'}
    assert dumps_pretty(document) == (
        '{\n\t"a":[\n\t\t1,\n\t\t{\n\t\t\t"x":null\n\t\t}\n\t],\n\t"b":{1:5,2:[],10:{}\n\t},'
        '\n\t"ü":"q\\"\\n"\n}'
    )
    assert loads(dumps_pretty(document).encode())["b"] == {"1": 5, "10": {}, "2": []}
    assert dumps_pretty({}) == "{}"


def test_well_formed_json_does_not_reach_the_tolerant_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fastjson, "JsonParser", None)
    assert loads(b'{"a":[{"b":1}]}') == {"a": [{"b": 1}]}


def test_bare_keys_are_read_without_the_slow_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fastjson, "JsonParser", None)
    assert loads(b'{"a":{0:"x,1:y", -1 : {\n\t2:3},"k\\",5:":6}}') == {
        "a": {"0": "x,1:y", "-1": {"2": 3}, 'k",5:': 6}
    }
    text = b'{{"topic":"T{,","queueId":0}:1 , {"queueId":1,"topic":"\\"}:"}:{0:{{"a":1}:2}}}'
    assert loads(text) == {
        '{"queueId":0,"topic":"T{,"}': 1,
        '{"queueId":1,"topic":"\\"}:"}': {"0": {'{"a":1}': 2}},
    }
    assert loads(b'{"x":{"y":1},0:{"$ref":"$.x"}}') == {"x": {"y": 1}, "0": {"y": 1}}


@pytest.mark.parametrize(
    "text",
    [
        b'"' + b'\\"' * 500_000,
        b'{,{"' * 300_000,
        b"{,{" * 300_000,
        b"," + b" " * 1_000_000,
        b", " * 500_000,
        b'{"a":1},' * 150_000,
        b",-" * 500_000,
        b",{" + b'"a",' * 300_000,
        b"[" + b"{a:1}," * 200_000,
    ],
)
@pytest.mark.timeout(20)
def test_a_megabyte_of_anything_is_refused_at_once(text: bytes) -> None:
    with pytest.raises(ProtocolError, match=r"too many|at most|the limit is"):
        loads(text)


def test_pieces_are_the_pretty_text() -> None:
    table = {f"topic-{number:03}": {"perm": number, "attributes": {}} for number in range(150)}
    document: dict[str, Any] = {"version": {"counter": 1}, "table": table, "light": {}, "empty": {}}
    members = {"table": iter(table.items()), "light": iter(())}
    pieces = list(fastjson.pretty_pieces(document | members))
    assert b"".join(pieces).decode() == dumps_pretty(document)
    assert len(pieces) == 3, "64 entries in each"
    assert b"".join(fastjson.pretty_pieces({})) == b"{}"
    assert b"".join(fastjson.pretty_pieces({"a": 1})).decode() == dumps_pretty({"a": 1})


def test_a_piece_is_short_however_much_an_entry_has() -> None:
    table = {f"T@group-{number:03}": {queue: 10**9 + queue for queue in range(1_000)} for number in range(60)}
    pieces = list(fastjson.pretty_pieces({"offsetTable": iter(table.items())}))
    assert b"".join(pieces).decode() == dumps_pretty({"offsetTable": table})
    entry = len(dumps_pretty(table["T@group-000"]))
    assert max(map(len, pieces)) <= fastjson.PIECE_CHARACTERS + 2 * entry


@given(st.dictionaries(st.integers(0, 1 << 40), st.integers(-(1 << 63), (1 << 63) - 1)))
def test_integers_by_integers_are_written_as_before(value: dict[int, int]) -> None:
    members = ",".join(f"{key}:{value[key]}" for key in sorted(value))
    assert dumps_pretty(value) == (f"{{{members}\n}}" if value else "{}")
    assert {int(key): each for key, each in fastjson.loads(dumps_pretty(value).encode()).items()} == value


def test_flags_are_no_integers() -> None:
    assert dumps_pretty({0: True, 1: 2}) == "{0:true,1:2\n}"
    assert dumps_pretty({0: 1, "a": 2}) == '{0:1,\n\t"a":2\n}'


@pytest.mark.parametrize("count", [0, 1, 100, 2_048, 7_000])
def test_many_names_are_sorted_a_few_at_a_time(count: int) -> None:
    names = [f"name-{number * 7_919 % 100_003}" for number in range(count)]
    found = list(fastjson.members_in_order(names, len))
    assert [each for each in found if each is not None] == [(name, len(name)) for name in sorted(names)]
    assert found.count(None) == -(-count // fastjson.SORTED_AT_ONCE)
