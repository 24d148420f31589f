"""JSON that is made to be costly: bodies and headers of an anonymous peer hold the loop, or claim memory, far beyond
what their bytes are worth.

Costs are CPU seconds of this thread, on a usual machine: what is bounded here took 5 to 20 s, or for ever.
"""

from __future__ import annotations

import contextlib
import json
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from mqspark.errors import ProtocolError
from mqspark.message import MessageQueue
from mqspark.protocol import fastjson
from mqspark.protocol.bodies.admin_bodies import ConsumerOffsetSerializeWrapper, TopicOffset, TopicStatsTable
from mqspark.protocol.bodies.body import decode_body, encode_body, queue_key
from mqspark.protocol.bodies.client_bodies import ConsumerData, HeartbeatData, SubscriptionData
from mqspark.protocol.bodies.topic_bodies import KVTable
from mqspark.protocol.codes import RequestCode
from mqspark.protocol.command import BINARY, JSON, decode_header
from mqspark.protocol.connection import MAX_FRAME_BYTES, MAX_HEADER_BYTES
from mqspark.protocol.dispatch import Refusal, parse_properties
from tests.support.draws import some
from tests.support.pace import ProcessorTime
from tests.unit.broker_kit import Bench, namesrv_peer

BODY = MAX_FRAME_BYTES - 1_000
ODD = fastjson.PEER.odd_bytes - 100


def cost_s(work: Callable[[], object]) -> float:
    with ProcessorTime() as cost, contextlib.suppress(ProtocolError):  # refusing is as good as reading
        work()
    return cost.seconds


def costs_at_most(limit_s: float, work: Callable[[], object]) -> bool:
    """In one of three tries: the garbage of other tests and the other half of a core only add."""
    return any(cost_s(work) < limit_s for _ in range(3))


def references(bytes_: int) -> bytes:
    """A document whose every reference misses late: each path leads to a tree with a reference at its end."""
    tree = b'{"a":[' + b"0," * 20_000 + b'{"$ref":"$.x"}],"r":['
    return tree + b'{"$ref":"$.a"},' * ((bytes_ - len(tree)) // 15) + b"0]}"


def test_references_cost_what_their_bytes_cost_in_a_body() -> None:
    assert costs_at_most(1.0, lambda: decode_body(HeartbeatData, references(2_000_000)))


def test_references_to_every_level_of_a_deep_tree() -> None:
    paths = b",".join(b'{"$ref":"$.a%b"}' % (b"[0]" * level) for level in range(58)) * 1
    body = b'{"a":' + b"[" * 58 + (paths + b",") * 600 + b"0" + b"]" * 58 + b"}"
    assert len(body) > 2_000_000
    assert costs_at_most(1.0, lambda: decode_body(HeartbeatData, body))


def test_references_of_a_broker_are_still_resolved() -> None:
    body = b'{"a":{"x":[1]},"r":[' + b'{"$ref":"$.a"},' * 5_000 + b"{}]}"
    assert fastjson.loads(body)["r"][4_999] == {"x": [1]}


def test_references_in_a_header() -> None:
    header = b'{"code":"x","extFields":' + references(58_000) + b"}"
    assert costs_at_most(0.1, lambda: decode_header(JSON, header, b"").ext)
    header = b"{'code':1,'extFields':" + references(58_000) + b"}"
    assert costs_at_most(0.1, lambda: decode_header(JSON, header, b"").ext)


def test_a_heartbeat_of_references_is_answered_and_the_broker_goes_on(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    peer = bench.peer()
    with ProcessorTime() as cost:
        answer = peer.ask(RequestCode.HEART_BEAT, {}, references(200_000))
    assert cost.seconds < 1.0
    assert answer.code != 0
    assert "references" in (answer.remark or "")
    assert peer.ask(RequestCode.HEART_BEAT, {}, b'{"clientID":"c@1"}').code == 0


@pytest.mark.parametrize(
    "unit",
    [b"{}", b"[]", b'{"groupName":"g"}', b'{"a":{}}', b"[[]]", b'{"subscriptionDataSet":[{}]}'],
    ids=bytes.decode,
)
def test_empty_objects_do_not_turn_a_frame_into_gigabytes(unit: bytes) -> None:
    body = b'{"clientID":"c","consumerDataSet":[' + (unit + b",") * (BODY // (len(unit) + 1) - 20) + b"null]}"
    tracemalloc.start()
    try:
        seconds = cost_s(lambda: decode_body(HeartbeatData, body))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 128 << 20
    assert seconds < 8.0, "tracing included"


def test_real_tables_are_not_too_crowded() -> None:
    """The most crowded body of RocketMQ's: offsets of many groups with one queue each, and short names."""
    table = b",".join(b'"Orders%d@Group%d":{0:%d}' % (n, n, n) for n in range(60_000))
    body = b'{"offsetTable":{' + table + b"}}"
    assert len(decode_body(ConsumerOffsetSerializeWrapper, body).offset_table) == 60_000


@pytest.mark.parametrize(
    ("begin", "unit", "end"),
    some(
        [
            (b"[", b"1e308,", b"null]"),
            (b"[", b"1,", b"null]"),
            (b'{"consumerDataSet":[{"subscriptionDataSet":[{"codeSet":[', b"1,", b"null]}]}]}"),
            (b"", b",", b""),
            (b"", b"1", b""),
            (b"1.", b"1", b""),
            (b'"', b"\\", b""),
            (b"[", b"1,", b"x"),
            (b"[", b"-,", b"x"),
            (b"{", b"1:1,", b"x"),
            (b"{{", b"a", b""),
            (b"{{", b'"a"', b""),
            (b"{", b" ", b""),
            (b"", b"," + b" " * 1_000, b""),
            (b"", b'{"a":{', b""),
            (b"[", b"1" * 4_300 + b",", b"x"),
        ],
        5,
        several=True,
    ),
    ids=lambda part: bytes(part[:12]).decode(),
)
@pytest.mark.parametrize(
    "share", [4, pytest.param(1, marks=pytest.mark.slow("a whole frame; a quarter is the fast twin"))]
)
def test_a_frame_costs_some_seconds_at_most_whatever_is_in_it(
    begin: bytes, unit: bytes, end: bytes, share: int
) -> None:
    body = begin + unit * ((BODY // share - len(begin) - len(end)) // len(unit)) + end
    # A whole one costs about 1 s on an idle core; each of the slow ones took 5 s and more.
    assert costs_at_most(3.0 / share, lambda: decode_body(HeartbeatData, body))


@pytest.mark.parametrize(
    "text",
    [
        b"['" + b"\\a" * (ODD // 2) + b"']",
        b"['" + b"\\u0041" * (ODD // 6) + b"']",
        b"[''," + b"1," * (ODD // 2) + b"]",
        b"[''," + b"[]," * (ODD // 3) + b"]",
        b"[''," + b"{a:1}," * (ODD // 6) + b"]",
        b"[" + b"''," * (ODD // 3) + b"]",
        b"{'a':1," + b"{a:1}:1," * (ODD // 8) + b"}",
        b"[''," + b"1.," * (ODD // 3) + b"]",
        b"[''," + b"1" * ODD + b"]",
        b"[" + (b"[" * 60 + b"''" + b"]" * 60 + b",") * (ODD // 123) + b"]",
    ],
    ids=lambda text: bytes(text[:12]).decode(),
)
def test_odd_text_costs_milliseconds(text: bytes) -> None:
    assert len(text) < fastjson.PEER.odd_bytes
    assert costs_at_most(0.25, lambda: fastjson.loads(text))


def test_objects_as_keys_of_objects_as_keys_do_not_double_with_each_level() -> None:
    text = b"{" * 40 + b'"a":1' + b"}:1" * 39 + b"}"
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError, match="a key within a key"):
            fastjson.loads(text)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert fastjson.loads(b"{{'a':{'b':1}}:2,{'c':[1]}:{{'d':1}:3}}") == {
        '{"a":{"b":1}}': 2,
        '{"c":[1]}': {'{"d":1}': 3},
    }


@pytest.mark.parametrize("levels", [70, 900, 100_000])
def test_deep_nesting_is_refused_as_such(levels: int) -> None:
    for before, after in ((b"[", b"]"), (b'{"a":', b"}")):
        with pytest.raises(ProtocolError, match="not JSON"):
            fastjson.loads(before * levels + b"1" + after * levels)
        header = b'{"code":1,"extFields":{"a":' + before * levels + b"1" + after * levels + b"}}"
        with pytest.raises(ProtocolError, match="not JSON"):
            decode_header(JSON, header, b"").ext  # noqa: B018
    nested = b'{"clientID":null,"consumerDataSet":' + b"[" * levels + b"]" * levels + b"}"
    with pytest.raises(ProtocolError):
        decode_body(HeartbeatData, nested)


@pytest.mark.parametrize(
    "ext",
    [
        b'{"a":[' + b"1," * 120_000 + b"1]}",
        b"{" + b",".join(b'"%d":1' % n for n in range(24_000)) + b"}",
        b"{" + b",".join(b'"%d":[]' % n for n in range(20_000)) + b"}",
        b'{"queueId":' + b"1" * 250_000 + b"}",
        b'{"a":"' + b"\\u0041" * 40_000 + b'"}',
    ],
    ids=lambda ext: bytes(ext[:12]).decode(),
)
def test_a_header_as_long_as_may_be(ext: bytes) -> None:
    header = b'{"code":1,"extFields":' + ext + b"}"
    assert len(header) < MAX_HEADER_BYTES
    assert costs_at_most(0.25, lambda: decode_header(JSON, header, b"").ext)
    odd = b"{'code':1,'extFields':" + ext + b"}"
    assert costs_at_most(0.25, lambda: decode_header(JSON, odd, b"").ext)


def test_a_binary_header_of_many_fields_is_read_once_and_not_remembered() -> None:
    def header(fields: int, value: bytes = b"") -> bytes:
        ext = b"".join(struct.pack(">h4si", 4, b"%04d" % n, len(value)) + value for n in range(fields))
        return struct.pack(">hbhiiii", 10, 0, 0, 1, 0, 0, len(ext)) + ext

    longest = header(9_999)
    assert costs_at_most(0.5, lambda: decode_header(BINARY, longest, b""))
    tracemalloc.start()
    try:
        for length in range(300):
            decode_header(BINARY, header(40, b"x" * length), b"")
        remembered, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert remembered < 10 << 20


def test_settings_of_a_whole_frame_are_not_taken_apart() -> None:
    with pytest.raises(Refusal, match="settings of"):
        parse_properties(b"\n" * BODY)


# --- what is written ---


@pytest.mark.parametrize("unit", ['"{', '"{"brokerName":', "{", '"', '":', '\\"{'])
def test_text_of_peers_that_looks_like_keys_costs_what_it_weighs_when_it_is_written(unit: str) -> None:
    text = unit * (60_000 // len(unit))
    body = KVTable(table={"k": text, "{" + text[:1_000]: "v"})
    assert costs_at_most(0.5, lambda: encode_body(body))
    assert decode_body(KVTable, encode_body(body)) == body


def test_a_text_as_key_stays_a_text_unless_it_is_a_queue() -> None:
    queue = MessageQueue("T", "b", 3)
    for key in ("{a}", '{"x":1}', '{"brokerName":', '{"brokerName":"b"', '{"brokerName":"b","queueId":"x"}'):
        assert json.loads(encode_body(KVTable(table={key: "v"}))) == {"table": {key: "v"}}
    stats = TopicStatsTable(offset_table={queue_key(queue): TopicOffset(1, 2, 3)})
    assert encode_body(stats).startswith(b'{"offsetTable":{{"brokerName":"b","queueId":3,"topic":"T"}:{')


def test_values_in_the_name_server_do_not_make_its_answers_costly() -> None:
    _, _, peer = namesrv_peer()
    header = {"namespace": "n", "key": "k", "value": '"{' * 15_000}
    assert peer.ask(RequestCode.PUT_KV_CONFIG, header).code == 0
    with ProcessorTime() as cost:
        assert peer.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": "n"}).code == 0
    assert cost.seconds < 0.5


def test_subscriptions_of_a_group_do_not_make_what_tools_ask_costly(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    peer = bench.peer()
    subscription = SubscriptionData(topic="T", sub_string='"{' * 15_000, expression_type="SQL92")
    data = HeartbeatData(
        client_id="c", consumer_data_set=[ConsumerData("g", subscription_data_set=[subscription])]
    )
    with ProcessorTime() as cost:
        assert peer.ask(RequestCode.HEART_BEAT, {}, encode_body(data)).code == 0
        assert peer.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "g"}).code == 0
    assert cost.seconds < 1.0
