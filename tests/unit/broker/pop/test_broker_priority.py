"""Priority topics: the queue is the priority, and POP begins with the highest one."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from mqspark.errors import InvalidMessage
from mqspark.message import DELAY, PRIORITY, SHARDING_KEY, TRANSACTION_PREPARED, Message, parse_priority
from mqspark.protocol.codes import RequestCode
from tests.unit.broker.admin.admin_kit import body_of, create
from tests.unit.broker_kit import SEND, Bench, Peer, send_ext
from tests.unit.pop_kit import (
    ACK,
    INVISIBLE_MS,
    POP,
    Popped,
    ack_ext,
    handed_out,
    pass_time,
    pop,
    pop_ext,
    settle,
)
from tests.unit.static_kit import Pair, mapping, part

QUEUES = 8
REVIVAL_MS = 8_000


def started(root: Path, **settings: Any) -> Bench:
    """A broker with a priority topic ``P`` of eight queues."""
    bench = Bench(root, **settings)
    resize(bench, QUEUES)
    return bench


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return started(tmp_path)


def resize(bench: Bench, queues: int) -> None:
    numbers = {"readQueueNums": str(queues), "writeQueueNums": str(queues)}
    assert create(bench.peer(), "P", **numbers, attributes="+message.type=PRIORITY") == 0


def send(peer: Peer, priority: object, body: str = "m", queue_id: int = 0, properties: str = "") -> int:
    """The queue that the answer names."""
    answer = peer.ask(
        SEND, send_ext("P", queue_id, f"{PRIORITY}\x01{priority}\x02{properties}"), body.encode()
    )
    assert answer.code == 0, answer.remark
    return int(answer.ext["queueId"])


def pops(bench: Bench, peer: Peer, **more: str) -> list[Popped]:
    return pop(bench, peer, topic="P", **more)


def factor(peer: Peer, value: str | None, group: str = "CG") -> Any:
    change = {"-priority.factor": ""} if value is None else {"+priority.factor": value}
    body = json.dumps({"groupName": group, "attributes": change}).encode()
    return peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, body)


def test_the_queue_is_the_priority(bench: Bench, peer: Peer) -> None:
    for priority in (0, 3, 7):
        assert send(peer, priority, queue_id=5) == priority
    assert [send(peer, beyond) for beyond in (8, 2_147_483_647)] == [7, 7]
    (message,) = bench.records("P", 3)
    assert message.priority == 3


def test_a_priority_counts_in_any_topic(peer: Peer) -> None:
    """RocketMQ asks the message, not the topic."""
    assert create(peer, "T") == 0
    answer = peer.ask(SEND, send_ext("T", 0, f"{PRIORITY}\x012\x02"), b"m")
    assert answer.ext["queueId"] == "2"


def test_the_logic_queue_of_a_static_topic_counts_before_the_priority(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    assert pair.put("b-a", mapping("b-a", {0: [part("b-a", 0)]}), queues=4).code == 0
    answers = [pair.send("b-a", b"m", properties=text) for text in ("", f"{PRIORITY}\x013\x02")]
    assert [(answer.ext["queueId"], answer.ext["queueOffset"]) for answer in answers] == [
        ("0", "0"),
        ("0", "1"),
    ]


@pytest.mark.parametrize("bad", ["-1", "high", "1.5", "2147483648", "9" * 5000, "1" + "\u0660" * 3, " 1"])
def test_what_is_no_priority_is_sent_where_the_sender_wants(bench: Bench, bad: str) -> None:
    assert send(bench.peer(), bad, queue_id=5) == 5
    (message,) = bench.records("P", 5)
    assert message.priority is None
    assert message.properties[PRIORITY] == bad


@pytest.mark.parametrize("value", ["+7", "007", "0" * 6000 + "7"])
def test_numbers_as_java_reads_them(value: str) -> None:
    assert parse_priority(value) == 7
    assert parse_priority("-0") == 0
    assert parse_priority("") is parse_priority("+") is parse_priority(None) is None


@pytest.mark.parametrize("other", [f"{SHARDING_KEY}\x01k\x02", f"{DELAY}\x013\x02"])
def test_a_message_of_another_type_loses_its_priority(bench: Bench, peer: Peer, other: str) -> None:
    assert send(peer, 7, queue_id=2, properties=other) == 2
    pass_time(bench, 15_000)
    (message,) = bench.records("P", 2)
    assert PRIORITY not in message.properties


def test_a_half_message_has_no_priority(bench: Bench, peer: Peer) -> None:
    text = f"{PRIORITY}\x017\x02{TRANSACTION_PREPARED}\x01true\x02PGROUP\x01PG\x02"
    answer = peer.ask(SEND, send_ext("P", 2, text, f="4"), b"m")
    assert (answer.code, answer.ext["queueId"]) == (0, "2")
    (half,) = bench.records("RMQ_SYS_TRANS_HALF_TOPIC")
    assert PRIORITY not in half.properties


@pytest.mark.parametrize("ascending", [True, False])
def test_pop_takes_the_highest_first(tmp_path: Path, ascending: bool) -> None:
    bench = started(tmp_path, priority_order_asc=ascending)
    peer = bench.peer()
    for priority in range(QUEUES):
        for number in range(20):
            send(peer, priority, f"{priority}-{number}")
    highest = QUEUES - 1 if ascending else 0
    for number in range(20):
        (one,) = pops(bench, peer, maxMsgNums="1")
        assert one.body.decode() == f"{highest}-{number}"
    order = [one.message.priority for one in pops(bench, peer, maxMsgNums="32")]
    assert order == sorted(order, reverse=ascending)  # type: ignore[type-var]
    assert len(set(order)) == 2


def test_a_waiting_pop_takes_the_highest_of_what_came(bench: Bench) -> None:
    waiting, sender = bench.peer(), bench.peer()
    waiting.give(POP, pop_ext(bench, "P", pollTime="15000", maxMsgNums="1"))
    bench.broker.turn()
    assert waiting.heard() == []
    for priority in range(QUEUES):
        sender.give(SEND, send_ext("P", 0, f"{PRIORITY}\x01{priority}\x02"), str(priority).encode())
    settle(bench)
    (answer,) = waiting.heard()
    assert [one.body for one in handed_out(answer, "P")] == [b"7"]


def test_an_ordinary_topic_begins_anywhere(bench: Bench, peer: Peer) -> None:
    assert create(peer, "T", readQueueNums="8", writeQueueNums="8") == 0
    for queue_id in range(QUEUES):
        for _ in range(20):
            peer.ask(SEND, send_ext("T", queue_id), b"m")
    first = {pop(bench, peer, maxMsgNums="1")[0].message.queue_id for _ in range(40)}
    assert len(first) > 4


def test_a_group_may_leave_the_priority_aside(bench: Bench, peer: Peer) -> None:
    assert factor(peer, "0").code == 0
    for priority in range(QUEUES):
        for _ in range(100):
            send(peer, priority)
    taken = Counter(pops(bench, peer, maxMsgNums="1")[0].message.queue_id for _ in range(400))
    assert min(taken.values()) > 20
    assert factor(peer, "50").code == 0
    taken = Counter(pops(bench, peer, maxMsgNums="1")[0].message.queue_id for _ in range(60))
    assert max(taken, key=lambda queue_id: taken[queue_id]) == 7
    assert len(taken) > 3
    assert factor(peer, None).code == 0
    assert {pops(bench, peer, maxMsgNums="1")[0].message.queue_id for _ in range(10)} == {7}


@pytest.mark.parametrize(
    ("value", "remark"),
    [
        ("101", "value is not in range(0, 100)"),
        ("-1", "value is not in range(0, 100)"),
        ("0" * 5000 + "101", "value is not in range(0, 100)"),
        ("half", 'For input string: "half"'),
        ("", 'For input string: ""'),
    ],
)
def test_a_factor_is_a_percentage(peer: Peer, value: str, remark: str) -> None:
    answer = factor(peer, value)
    assert answer.code == 1
    assert remark in (answer.remark or "")
    assert factor(peer, "0" * 5000 + "100").code == 0


def test_the_factor_outlives_a_restart(bench: Bench) -> None:
    assert factor(bench.peer(), "0").code == 0
    bench.reopen()
    peer = bench.peer()
    config = body_of(peer, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "CG"})
    assert config["attributes"] == {"priority.factor": "0"}
    for priority in range(QUEUES):
        for _ in range(20):
            send(peer, priority)
    assert len({pops(bench, peer, maxMsgNums="1")[0].message.queue_id for _ in range(20)}) > 3


@pytest.mark.parametrize(("percent", "place"), [(0, 29), (100, 0)])
def test_retries_come_last_or_first(tmp_path: Path, percent: int, place: int) -> None:
    bench = started(tmp_path, pop_from_retry_probability_for_priority=percent)
    peer = bench.peer()
    for number in range(30):
        send(peer, number % QUEUES, str(number))
    (held,) = pops(bench, peer, maxMsgNums="1")
    pass_time(bench, INVISIBLE_MS + REVIVAL_MS)
    rest = pops(bench, peer)
    assert [one.message.reconsume_times for one in rest] == [int(number == place) for number in range(30)]
    assert rest[place].body == held.body


@pytest.mark.parametrize("ascending", [True, False])
@pytest.mark.parametrize("crashes", [True, False])
def test_retries_keep_their_priority_in_queues_of_their_own(
    tmp_path: Path, ascending: bool, crashes: bool
) -> None:
    bench = started(
        tmp_path,
        use_separate_retry_queue=True,
        pop_from_retry_probability_for_priority=100,
        priority_order_asc=ascending,
        sync=True,
    )
    peer = bench.peer()
    for priority in range(QUEUES):
        send(peer, priority, str(priority))
    assert len(pops(bench, peer)) == QUEUES
    bench.clock.advance(bench.config.flush_consumer_offset_interval)
    bench.run_jobs()  # the offsets of the group are saved
    bench.crash() if crashes else bench.reopen()
    peer = bench.peer()
    pass_time(bench, INVISIBLE_MS + REVIVAL_MS)
    expected = sorted(range(QUEUES), reverse=ascending)
    for times in (1, 2):
        back = pops(bench, peer)
        assert [one.message.priority for one in back] == expected
        assert [one.message.queue_id for one in back] == expected
        assert {one.message.reconsume_times for one in back} == {times}
        assert {int(one.message.queue_offset) for one in back} == {times - 1}
        pass_time(bench, INVISIBLE_MS + REVIVAL_MS)
    for one in pops(bench, peer):
        assert peer.ask(ACK, ack_ext(one)).code == 0
    pass_time(bench, INVISIBLE_MS + REVIVAL_MS)
    assert pops(bench, peer) == []


def test_the_queues_of_retries_grow_with_the_topic(tmp_path: Path) -> None:
    bench = started(tmp_path, use_separate_retry_queue=True)
    peer = bench.peer()
    for priority in range(QUEUES):
        send(peer, priority)
    assert len(pops(bench, peer)) == QUEUES
    pass_time(bench, INVISIBLE_MS + REVIVAL_MS)
    resize(bench, 2 * QUEUES)
    for priority in range(QUEUES, 2 * QUEUES):
        send(peer, priority)
    everything = pops(bench, peer)
    assert [one.message.priority for one in everything] == [*range(15, 7, -1), *range(7, -1, -1)]
    pass_time(bench, INVISIBLE_MS + REVIVAL_MS)
    assert [one.message.queue_id for one in pops(bench, peer)] == [*range(15, -1, -1)]


def test_a_topic_that_became_smaller_keeps_its_retries(tmp_path: Path) -> None:
    bench = started(tmp_path, use_separate_retry_queue=True)
    peer = bench.peer()
    send(peer, 7, "held")
    assert len(pops(bench, peer)) == 1
    resize(bench, 2)
    pass_time(bench, INVISIBLE_MS + REVIVAL_MS)
    (one,) = pops(bench, peer)
    assert (one.body, one.message.queue_id) == (b"held", 0)


def test_messages_of_our_client() -> None:
    message = Message.of("P", "m", priority=7)
    assert message.properties == {PRIORITY: "7"}
    assert message.priority == 7
    assert Message.of("P", "m").priority is None
    for bad in (-1, 1 << 31, True, "7", 1.0):
        with pytest.raises(InvalidMessage, match="priority"):
            Message.of("P", "m", priority=bad)  # type: ignore[arg-type]
    with pytest.raises(InvalidMessage, match="delay"):
        Message.of("P", "m", priority=1, delay_ms=1)
