"""Ordered pops: blocked queues, repeated attempts, counts, the file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mqspark.protocol import fastjson
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command
from tests.unit.broker_kit import Bench, Peer
from tests.unit.pop_kit import (
    ACK,
    BATCH_ACK,
    CHANGE,
    INVISIBLE_MS,
    POP,
    Popped,
    ack_ext,
    batch_body,
    handed_out,
    pass_time,
    pop_ext,
    put,
    settle,
)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    bench = Bench(tmp_path)
    put(bench, *"abcd")
    return bench


def ask(bench: Bench, peer: Peer, **more: str) -> Command:
    return peer.ask(POP, pop_ext(bench, order="true", **more))


def pop(bench: Bench, peer: Peer, **more: str) -> list[Popped]:
    return handed_out(ask(bench, peer, **more))


def bodies(popped: list[Popped]) -> str:
    return "".join(one.body.decode() for one in popped)


def test_a_queue_is_blocked_until_all_is_acknowledged(bench: Bench, peer: Peer) -> None:
    first = pop(bench, peer, maxMsgNums="2")
    assert bodies(first) == "ab"
    assert {one.receipt.revive_queue for one in first} == {999}
    assert pop(bench, peer) == []
    assert peer.ask(ACK, ack_ext(first[1])).code == 0
    assert pop(bench, peer) == []
    assert bench.broker.state.offsets.query("CG", "T", 0) == 0
    assert peer.ask(ACK, ack_ext(first[0])).code == 0
    assert bench.broker.state.offsets.query("CG", "T", 0) == 2
    assert bodies(pop(bench, peer)) == "cd"


def test_queues_do_not_block_each_other(bench: Bench, peer: Peer) -> None:
    put(bench, *"xy", queue_id=1)
    assert bodies(pop(bench, peer, queueId="0")) == "abcd"
    assert bodies(pop(bench, peer)) == "xy"


def test_what_is_not_acknowledged_comes_again_in_its_place(bench: Bench, peer: Peer) -> None:
    first = pop(bench, peer, maxMsgNums="3")
    peer.ask(ACK, ack_ext(first[0]))
    pass_time(bench, INVISIBLE_MS + 500)
    answer = ask(bench, peer)
    assert bodies(handed_out(answer)) == "bcd"
    assert answer.ext["orderCountInfo"] == "0 qo0%1 1;0 qo0%2 1;0 0 0"
    pass_time(bench, INVISIBLE_MS + 500)
    assert ask(bench, peer).ext["orderCountInfo"] == "0 qo0%1 2;0 qo0%2 2;0 qo0%3 1;0 0 1"


def test_an_attempt_is_repeated(bench: Bench, peer: Peer) -> None:
    assert bodies(pop(bench, peer, attemptId="one", maxMsgNums="2")) == "ab"
    assert pop(bench, peer, attemptId="two") == []
    answer = ask(bench, peer, attemptId="one", maxMsgNums="2")
    assert bodies(handed_out(answer)) == "ab"
    assert answer.ext["orderCountInfo"] == "0 0 0"


def test_attempts_that_come_together_are_all_served(bench: Bench) -> None:
    """A client that asks again while its first request is served; RocketMQ before 5.5.1 answers the second one with
    nothing, and no later one with this id gets the messages."""
    peer, others = bench.peer(), bench.peer()
    for _ in range(2):
        peer.give(POP, pop_ext(bench, order="true", attemptId="one", maxMsgNums="2"))
        others.give(POP, pop_ext(bench, order="true", attemptId="two", maxMsgNums="2"))
    settle(bench)
    assert [bodies(handed_out(answer)) for answer in peer.heard()] == ["ab", "ab"]
    assert {answer.code for answer in others.heard()} == {ResponseCode.POLLING_TIMEOUT}


def test_a_stale_receipt_acknowledges_nothing(bench: Bench, peer: Peer) -> None:
    (old,) = pop(bench, peer, maxMsgNums="1")
    pass_time(bench, INVISIBLE_MS + 500)
    pop(bench, peer, maxMsgNums="1")
    assert peer.ask(ACK, ack_ext(old)).code == 0
    assert bench.broker.state.offsets.query("CG", "T", 0) == 0
    assert peer.ask(CHANGE, ack_ext(old, invisibleTime="1000")).code == 208


def test_a_message_that_was_not_handed_out(bench: Bench, peer: Peer) -> None:
    (one,) = pop(bench, peer, maxMsgNums="1")
    assert peer.ask(ACK, ack_ext(one, offset="3")).code == 13


def test_the_invisible_time_is_changed(bench: Bench, peer: Peer) -> None:
    (one,) = pop(bench, peer, maxMsgNums="1")
    answer = peer.ask(CHANGE, ack_ext(one, invisibleTime="2000"))
    assert answer.ext == {
        "popTime": str(one.receipt.pop_time_ms),
        "invisibleTime": "2000",
        "reviveQid": "999",
    }
    pass_time(bench, 1_500)
    assert pop(bench, peer) == []
    pass_time(bench, 1_000)
    assert bodies(pop(bench, peer)) == "abcd"


def test_a_waiting_pop_is_served_when_the_queue_is_free(bench: Bench) -> None:
    peer, waiting = bench.peer(), bench.peer()
    first = pop(bench, peer, maxMsgNums="2")
    waiting.give(POP, pop_ext(bench, order="true", pollTime="90000"))
    settle(bench)
    peer.ask(ACK, ack_ext(first[0]))
    assert waiting.heard() == []
    peer.ask(ACK, ack_ext(first[1]))
    (answer,) = waiting.heard()
    assert bodies(handed_out(answer)) == "cd"
    waiting.give(POP, pop_ext(bench, order="true", pollTime="90000"))
    settle(bench)
    pass_time(bench, INVISIBLE_MS + 500)
    (answer,) = waiting.heard()
    assert bodies(handed_out(answer)) == "cd"


def test_batches_of_acknowledgements(bench: Bench, peer: Peer) -> None:
    first = pop(bench, peer, maxMsgNums="3")
    entry = {
        "c": "CG",
        "t": "T",
        "r": "0",
        "so": 0,
        "q": 0,
        "rq": 999,
        "pt": first[0].receipt.pop_time_ms,
        "it": INVISIBLE_MS,
        "b": "Bw==",
    }
    body = json.dumps({"brokerName": "b-a", "acks": [entry]}).encode()
    assert peer.ask(BATCH_ACK, {}, body).code == 0
    assert bodies(pop(bench, peer)) == "d"


def test_a_batch_of_acknowledgements_is_heard_out_before_a_waiting_pop(bench: Bench) -> None:
    """The second message is free again, and the first one was what kept the next pop waiting."""
    peer, waiting = bench.peer(), bench.peer()
    first = pop(bench, peer, maxMsgNums="2", invisibleTime="5000")
    pass_time(bench, 4_900)
    peer.ask(CHANGE, ack_ext(first[0], invisibleTime="60000"))
    pass_time(bench, 1_000)
    waiting.give(POP, pop_ext(bench, order="true", pollTime="60000", maxMsgNums="1"))
    settle(bench)
    assert peer.ask(BATCH_ACK, {}, batch_body(first)).code == 0
    (answer,) = waiting.heard()
    assert bodies(handed_out(answer)) == "c"


def test_a_notification_knows_of_blocked_queues(bench: Bench, peer: Peer) -> None:
    ext = {
        "consumerGroup": "CG",
        "topic": "T",
        "queueId": "-1",
        "pollTime": "0",
        "bornTime": "0",
        "order": "true",
    }
    assert peer.ask(RequestCode.NOTIFICATION, ext).ext["hasMsg"] == "true"
    pop(bench, peer)
    assert peer.ask(RequestCode.NOTIFICATION, ext).ext["hasMsg"] == "false"


def test_the_block_outlives_a_restart(bench: Bench, peer: Peer) -> None:
    first = pop(bench, peer, maxMsgNums="2", attemptId="one")
    peer.ask(ACK, ack_ext(first[1]))
    bench.reopen()
    text = (bench.directory / "config" / "consumerOrderInfo.json").read_text()
    assert "{0:{" in text  # as fastjson writes integer keys
    popped_ms = first[0].receipt.pop_time_ms
    assert fastjson.loads(text.encode()) == {
        "table": {
            "T@CG": {
                "0": {
                    "a": "one",
                    "cm": 2,
                    "i": INVISIBLE_MS,
                    "l": popped_ms,
                    "o": [0, 1],
                    "oc": {},
                    "popTime": popped_ms,
                }
            }
        }
    }
    peer = bench.peer()
    assert pop(bench, peer) == []
    assert peer.ask(ACK, ack_ext(first[0])).code == 0
    assert bodies(pop(bench, peer)) == "cd"


def test_an_acknowledgement_after_a_kill_passes_nothing_over(bench: Bench, peer: Peer) -> None:
    first = pop(bench, peer, maxMsgNums="3")
    bench.crash()
    peer = bench.peer()
    for one in (first[0], first[2]):
        assert peer.ask(ACK, ack_ext(one)).code == 0
    assert bodies(pop(bench, peer)) == "bcd"


def test_a_reset_frees_the_queue(bench: Bench, peer: Peer) -> None:
    pop(bench, peer)
    bench.broker.state.offsets.reset(peer.session, "CG", "T", 0, 2)
    assert bodies(pop(bench, peer)) == "cd"


def test_what_is_not_wanted_is_passed_over(bench: Bench, peer: Peer) -> None:
    assert pop(bench, peer, exp="red") == []
    put(bench, "e", tag="red")
    assert bodies(pop(bench, peer, exp="red")) == "e"
