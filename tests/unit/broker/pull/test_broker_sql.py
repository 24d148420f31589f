"""Filtering by SQL92 on the broker: subscribe, pull, park; what is refused; what one pull may cost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mqspark.broker.state import heldrequests
from mqspark.filter.sql import compile_sql
from mqspark.message import encode_properties
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command
from mqspark.record.record import decode_records
from mqspark.store.messages.fetch import GetStatus
from tests.support.remoting import heartbeat_body, subscription
from tests.unit.broker_kit import SEND, Bench, Peer, send_ext

FILTER = "a > 2 AND TAGS IS NOT NULL"
SUSPEND = {"sysFlag": "2", "subVersion": "5"}


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path, enable_property_filter=True)


def put(bench: Bench, *values: int, topic: str = "T", queue_id: int = 0, **more: str) -> None:
    """Messages whose body and property ``a`` are the value."""
    peer = bench.peer()
    for value in values:
        properties = encode_properties({"TAGS": "x", "a": str(value), **more}).decode()
        assert peer.ask(SEND, send_ext(topic, queue_id, properties), str(value).encode()).code == 0


def subscribe(peer: Peer, expression: str = FILTER, *, kind: str = "SQL92", version: int = 5) -> None:
    wanted = subscription("T", expression, version, expressionType=kind)
    assert peer.ask(RequestCode.HEART_BEAT, {}, heartbeat_body("c1", {"CG": [wanted]})).code == 0


def check(peer: Peer, expression: str | None, kind: str = "SQL92") -> Command:
    data = {"topic": "T", "subString": expression, "expressionType": kind}
    body = {"clientId": "c", "group": "CG", "subscriptionData": data}
    return peer.ask(RequestCode.CHECK_CLIENT_CONFIG, None, json.dumps(body).encode())


def pull(peer: Peer, expression: str, **more: str) -> Command:
    return peer.pull(subscription=expression, expressionType="SQL92", **more)


def values(answer: Command) -> list[int]:
    return [int(message.body) for message in decode_records(answer.body)]


def test_a_consumer_s_conversation(bench: Bench, peer: Peer) -> None:
    put(bench, 1, 3, 2, 5, 4)
    assert check(peer, FILTER).code == 0
    subscribe(peer)
    answer = peer.pull(**SUSPEND)
    assert (answer.code, answer.remark, values(answer)) == (0, "FOUND", [3, 5, 4])
    assert answer.ext["nextBeginOffset"] == "5"
    opaque = peer.give_pull(offset=5, **SUSPEND)
    bench.broker.turn()
    assert peer.heard() == []
    put(bench, 1, 2)  # not wanted: the pull goes on waiting
    assert peer.heard() == []
    put(bench, 9)
    (answer,) = peer.heard()
    assert (answer.opaque, values(answer), answer.ext["nextBeginOffset"]) == (opaque, [9], "8")


def test_a_parked_pull_ends_where_it_looked(bench: Bench, peer: Peer) -> None:
    put(bench, 1)
    subscribe(peer)
    peer.give_pull(offset=1, **SUSPEND)
    put(bench, 1, 1)
    bench.later(15_000)
    (answer,) = peer.heard()
    assert (answer.code, answer.remark) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "NO_MATCHED_MESSAGE")
    assert answer.ext["nextBeginOffset"] == "3"


def test_an_expression_in_the_request(bench: Bench, peer: Peer) -> None:
    put(bench, 1, 3, 2, 5)
    assert values(pull(peer, "a BETWEEN 2 AND 3")) == [3, 2]
    assert values(pull(peer, "a BETWEEN 2 AND 3", maxMsgNums="1")) == [3]
    nothing = pull(peer, "a > 100")
    assert (nothing.code, nothing.remark) == (20, "NO_MATCHED_MESSAGE")
    assert nothing.ext["nextBeginOffset"] == "4"
    beyond = pull(peer, "a > 1", queueOffset="9")
    assert (beyond.code, beyond.remark) == (21, "OFFSET_OVERFLOW_BADLY")
    assert pull(peer, "a > 1", queueId="3").code == 19


def test_a_new_subscription_replaces_the_filter(bench: Bench, peer: Peer) -> None:
    put(bench, 1, 3)
    subscribe(peer, "a = 1")
    assert values(peer.pull(sysFlag="0")) == [1]
    subscribe(peer, "a = 3", version=6)
    assert values(peer.pull(sysFlag="0")) == [3]
    assert peer.pull(sysFlag="0", subVersion="7").code == 25
    subscribe(peer, "*", kind="TAG", version=8)
    assert values(peer.pull(sysFlag="0")) == [1, 3]


def test_what_fails_to_evaluate_does_not_match(bench: Bench) -> None:
    put(bench, 1)
    bench.peer().ask(SEND, send_ext("T", 0, "a\x01many\x02"), b"0")
    bench.peer().ask(SEND, send_ext("T", 0, ""), b"0")
    put(bench, 2)
    assert values(pull(bench.peer(), "a > 0")) == [1, 2]


@pytest.mark.parametrize("expression", ["a !", "", None])
def test_what_does_not_compile(bench: Bench, peer: Peer, expression: str | None) -> None:
    put(bench, 1)
    answer = check(peer, expression)
    assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert "Invalid MessageSelector" in (answer.remark or "")
    answer = pull(peer, expression or "")
    assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert "Invalid MessageSelector" in (answer.remark or "")
    subscribe(peer, expression or "")
    answer = peer.pull(sysFlag="0")
    assert answer.code == ResponseCode.FILTER_DATA_NOT_EXIST
    assert "Invalid MessageSelector" in (answer.remark or "")


def test_other_types_of_expressions(bench: Bench, peer: Peer) -> None:
    put(bench, 1)
    for answer in (
        check(peer, "x", kind="CLASS"),
        peer.pull(subscription="x", expressionType="CLASS"),
    ):
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "filter message by CLASS" in (answer.remark or "")


def test_filters_are_off_by_default(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    put(bench, 3)
    peer = bench.peer()
    subscribe(peer)
    for answer in (check(peer, FILTER), pull(peer, FILTER), peer.pull(sysFlag="0")):
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "filter message by SQL92" in (answer.remark or "")
        assert "enablePropertyFilter" in (answer.remark or "")
    properties = b"enablePropertyFilter=true"
    assert peer.ask(RequestCode.UPDATE_BROKER_CONFIG, None, properties).code == 0
    assert values(peer.pull(sysFlag="0")) == [3]


# --- what one get looks at ---


def test_one_pull_looks_at_a_bounded_number(bench: Bench, peer: Peer) -> None:
    bench.store_config.max_filter_message_size = 20 * 20
    put(bench, *range(50))
    answers = []
    offset = 0
    while offset < 50:
        answer = pull(peer, "a > 44", queueOffset=str(offset))
        offset = int(answer.ext["nextBeginOffset"])
        answers.append((answer.code, offset, values(answer)))
    # 20 entries, but never fewer than the messages wanted
    assert answers == [(20, 32, []), (0, 50, [45, 46, 47, 48, 49])]
    assert pull(peer, "a > 44", maxMsgNums="1").ext["nextBeginOffset"] == "20"


def test_a_woken_pull_does_not_sleep_on_what_it_has_not_seen(bench: Bench, peer: Peer) -> None:
    bench.store_config.max_filter_message_size = 20
    put(bench, 0)
    subscribe(peer)
    peer.give_pull(offset=1, maxMsgNums="2", **SUSPEND)
    sender = bench.peer()
    for value in (0, 0, 0, 7):  # in one turn
        sender.give(SEND, send_ext("T", 0, encode_properties({"TAGS": "x", "a": str(value)}).decode()), b"7")
    bench.broker.turn()
    (answer,) = peer.heard()
    assert (answer.code, answer.ext["nextBeginOffset"]) == (20, "3")


def test_costly_filters_look_at_fewer(bench: Bench, peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    put(bench, *range(20))
    costly = " OR ".join(f"a = {number}" for number in range(30, 63))
    assert compile_sql(costly).cost == 100
    monkeypatch.setattr(heldrequests, "MAX_WORK", 500)
    answer = pull(peer, costly)
    assert (answer.code, answer.ext["nextBeginOffset"]) == (20, "5")
    assert pull(peer, "a = 99").ext["nextBeginOffset"] == "20"
    put(bench, 1, topic="Long", padding="x" * 2_000)
    put(bench, 1, topic="Long", padding="x" * 2_000)
    monkeypatch.setattr(heldrequests, "MAX_WORK", 100)
    assert pull(peer, costly, topic="Long").ext["nextBeginOffset"] == "1"


def test_the_same_as_one_by_one(bench: Bench) -> None:
    """Whatever the windows, limits and gaps: nothing twice, nothing left out, neighbours in one buffer."""
    store = bench.store
    put(bench, *(number * 7 % 10 for number in range(300)))
    put(bench, *range(10), queue_id=1)  # so that queue 0 is not all of the log
    put(bench, *(number * 3 % 10 for number in range(100)))
    sql = compile_sql("a < 4")
    expected = [
        int(message.body)
        for offset in range(400)
        for message in decode_records(store.reads.get("T", 0, offset, 1, 1 << 20).buffers[0])
        if int(message.body) < 4
    ]
    for max_messages, max_bytes, max_examined in (
        (32, 1 << 18, 800),
        (1, 1, 10),
        (1000, 1000, 3),
        (7, 900, 65),
    ):
        taken: list[int] = []
        offset = 0
        while offset < 400:
            found = heldrequests.get_selected(
                store, "T", 0, offset, max_messages, max_bytes, sql, max_examined
            )
            assert offset < found.next_offset <= offset + max_examined
            assert found.count <= max_messages
            assert found.count == 1 or found.size_bytes <= max_bytes
            assert sum(map(len, found.buffers)) == found.size_bytes
            messages = [message for buffer in found.buffers for message in decode_records(buffer)]
            assert len(messages) == found.count
            assert (found.status is GetStatus.FOUND) is bool(messages)
            assert all(offset <= message.queue_offset < found.next_offset for message in messages)
            taken += [int(message.body) for message in messages]
            offset = found.next_offset
        assert taken == expected
    everything = heldrequests.get_selected(store, "T", 0, 0, 300, 1 << 20, compile_sql("TRUE"), 300)
    assert (len(everything.buffers), everything.count) == (3, 300)  # windows of 64, 128 and the rest


def test_damaged_records_are_passed_over(bench: Bench) -> None:
    put(bench, *range(100))
    positions = [
        decode_records(bench.store.reads.get("T", 0, offset, 1, 1 << 20).buffers[0])[0].physical_offset
        for offset in range(100)
    ]
    (segment,) = (bench.directory / "commitlog").iterdir()
    with segment.open("r+b") as log:
        log.seek(positions[40] + 4)
        log.write(b"\0\0\0\0")  # its magic: the store gives it no more
        log.seek(positions[50] + 84)
        log.write(b"\x7f")  # its body length: the store gives it, but it has no properties to look at
    found = heldrequests.get_selected(bench.store, "T", 0, 0, 75, 1 << 20, compile_sql("a >= 0"), 800)
    messages = [message for buffer in found.buffers for message in decode_records(buffer)]
    assert [int(message.body) for message in messages] == [
        number for number in range(77) if number not in (40, 50)
    ]
    assert found.next_offset == 77
    at_the_gap = heldrequests.get_selected(bench.store, "T", 0, 40, 1, 1 << 20, compile_sql("a >= 0"), 800)
    assert ([record[-1:] for record in at_the_gap.buffers], at_the_gap.next_offset) != ([], 40)
    assert at_the_gap.next_offset == 42
