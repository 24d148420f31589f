"""Peek, notification, polling info."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mqspark.broker.pop.watch import PopWatchProcessor
from mqspark.protocol.bodies.topic_bodies import TopicConfig
from mqspark.protocol.codes import RequestCode
from mqspark.record.record import decode_records
from tests.support.invariants import validate
from tests.unit.broker_kit import Bench, Peer
from tests.unit.pop_kit import INVISIBLE_MS, POP, pass_time, pop, pop_ext, put, settle

PEEK, NOTIFICATION, POLLING_INFO = (
    RequestCode.PEEK_MESSAGE,
    RequestCode.NOTIFICATION,
    RequestCode.POLLING_INFO,
)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    bench = Bench(tmp_path)
    put(bench, "a", "b")
    return bench


def watch_ext(bench: Bench, **more: str) -> dict[str, str]:
    return {
        "consumerGroup": "CG",
        "topic": "T",
        "queueId": "-1",
        "pollTime": "0",
        "bornTime": str(bench.clock.now_ms()),
        "maxMsgNums": "32",
        **more,
    }


@pytest.mark.parametrize("is_over", [True, False])
def test_many_parked_notifications_look_at_a_bounded_number_of_queues_in_a_turn(
    tmp_path: Path, is_over: bool
) -> None:
    """Each of a topic with many queues; their messages are behind the groups' offsets already."""
    bench, count, queues = Bench(tmp_path), 30, 48
    state, peer = bench.broker.state, bench.peer()
    state.topics.put(TopicConfig(topic_name="T", read_queue_nums=queues, write_queue_nums=queues, perm=6))
    for number in range(count):
        for queue_id in range(queues):
            state.offsets.commit(f"G{number}", "T", queue_id, 1_000)
        more = {"consumerGroup": f"G{number}", "pollTime": "1000"}
        peer.give(NOTIFICATION, watch_ext(bench, **more))
    answered: list[int] = []
    looks, look = 0, PopWatchProcessor._look

    def counted(watch: PopWatchProcessor, waiter: Any) -> tuple[bool, int]:
        nonlocal looks
        looks += 1
        return look(watch, waiter)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PopWatchProcessor, "_look", counted)
        if is_over:
            bench.later(2_000)
        else:
            put(bench, "new")
        while True:
            answered.append(looks)
            looks = 0
            if not bench.broker.work():
                break
        answered.append(looks)
    assert max(answered) <= 2
    assert sum(answered) == count
    assert len(peer.heard()) == (count if is_over else 0)
    validate(bench.broker)


def test_peek_takes_nothing(bench: Bench, peer: Peer) -> None:
    for _ in range(2):
        answer = peer.ask(PEEK, watch_ext(bench))
        assert [message.body for message in decode_records(bytes(answer.body))] == [b"a", b"b"]
        assert answer.ext["restNum"] == "2"
    assert len(pop(bench, peer)) == 2
    nothing = peer.ask(PEEK, watch_ext(bench))
    assert (nothing.code, nothing.ext["restNum"]) == (19, "0")


def test_peek_sees_retries(bench: Bench, peer: Peer) -> None:
    pop(bench, peer)
    pass_time(bench, INVISIBLE_MS + 8_000)
    answer = peer.ask(PEEK, watch_ext(bench))
    assert sorted(message.body for message in decode_records(bytes(answer.body))) == [b"a", b"b"]


def test_notification(bench: Bench, peer: Peer) -> None:
    assert peer.ask(NOTIFICATION, watch_ext(bench)).ext["hasMsg"] == "true"
    pop(bench, peer)
    assert peer.ask(NOTIFICATION, watch_ext(bench)).ext["hasMsg"] == "false"


def test_one_of_those_who_wait_is_told(bench: Bench) -> None:
    one, two = bench.peer(), bench.peer()
    pop(bench, one)
    for peer in (one, two):
        peer.give(NOTIFICATION, watch_ext(bench, pollTime="15000"))
    settle(bench)
    assert [*one.heard(), *two.heard()] == []
    put(bench, "c")
    settle(bench)
    (told,) = [*one.heard(), *two.heard()]
    assert told.ext == {"hasMsg": "true", "pollingFull": "false"}
    pop(bench, bench.peer())
    pass_time(bench, 15_500)
    (late,) = [*one.heard(), *two.heard()]
    assert late.ext["hasMsg"] == "false"


def test_a_pop_goes_before_a_notification(bench: Bench) -> None:
    popper, watcher = bench.peer(), bench.peer()
    pop(bench, popper)
    watcher.give(NOTIFICATION, watch_ext(bench, pollTime="15000"))
    popper.give(POP, pop_ext(bench, pollTime="15000"))
    settle(bench)
    put(bench, "c")
    settle(bench)
    assert len(popper.heard()) == 1
    assert watcher.heard() == []  # nothing is left to be told of


def test_too_many_waiting(bench: Bench, peer: Peer) -> None:
    bench.broker.state.config.pop_polling_size = 1
    pop(bench, peer)
    bench.peer().give(NOTIFICATION, watch_ext(bench, pollTime="15000"))
    assert peer.ask(NOTIFICATION, watch_ext(bench, pollTime="15000")).ext["pollingFull"] == "true"


def test_polling_info(bench: Bench, peer: Peer) -> None:
    pop(bench, peer)
    for _ in range(3):
        bench.peer().give(POP, pop_ext(bench, pollTime="15000"))
    bench.peer().give(POP, pop_ext(bench, pollTime="15000", queueId="1"))
    assert peer.ask(POLLING_INFO, watch_ext(bench)).ext["pollingNum"] == "3"
    assert peer.ask(POLLING_INFO, watch_ext(bench, queueId="1")).ext["pollingNum"] == "1"


@pytest.mark.parametrize("code", [PEEK, NOTIFICATION, POLLING_INFO])
def test_refusals(bench: Bench, peer: Peer, code: int) -> None:
    assert peer.ask(code, watch_ext(bench, topic="Nowhere")).code == 17
    assert peer.ask(code, watch_ext(bench, queueId="99")).code == 29
    assert peer.ask(code, watch_ext(bench, consumerGroup="not a group")).code == 26
    assert bench.peer(fast=True).ask(code, watch_ext(bench)).code == 3
