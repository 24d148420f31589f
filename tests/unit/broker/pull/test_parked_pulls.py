"""Long polls in great number: their time is up without a look at the others, and a turn serves few of them."""

from __future__ import annotations

import pytest

from mqspark.broker.pull import parked_pulls
from mqspark.broker.pull import pull as pulling
from mqspark.broker.pull.parked_pulls import ParkedPulls, Pull
from mqspark.broker.state.slots import LOOK_MS, SLOT_MS
from mqspark.protocol.codes import ResponseCode
from mqspark.protocol.session import Session
from tests.support.clocks import ManualClock
from tests.support.invariants import validate
from tests.unit.broker_kit import PULL, SEND, Bench, Peer, pull_ext, send_ext


def parked_until(parked: ParkedPulls, session: Session, deadline_ms: int, queue_id: int = 0) -> Pull:
    pull = Pull(session, 1, "G", "T", queue_id, 5, 32, None, 0, 0)
    pull.deadline_ms = deadline_ms
    parked.park(pull)
    return pull


def test_only_those_whose_time_is_up_are_examined(clock: ManualClock) -> None:
    parked, session = ParkedPulls(clock), Session(1, "127.0.0.1", 1, [])
    now_ms = clock.monotonic_ms()
    for number in range(1_000):
        parked_until(parked, session, now_ms + 15_000 + number, number % 7)
    first = parked_until(parked, session, now_ms + 100)
    assert parked.expired(1) == []
    clock.advance(100)
    assert parked.expired(1) == [first], "of all, one is examined"
    assert parked.count == 1_000
    validate(parked)
    clock.advance(15_000 + 1_000 + SLOT_MS)
    taken = []
    while due := parked.expired(64):
        assert len(due) <= 64
        taken += due
        validate(parked)
    slots = [-(-pull.deadline_ms // SLOT_MS) for pull in taken]
    assert slots == sorted(slots), "within a slot in any order"
    assert (len(taken), parked.count) == (1_000, 0)


@pytest.mark.parametrize("wait_ms", [1, SLOT_MS, 4_321, LOOK_MS, 3 * LOOK_MS + 7])
def test_nobody_waits_longer_than_a_slot_more(clock: ManualClock, wait_ms: int) -> None:
    clock.advance(3)
    parked, session = ParkedPulls(clock), Session(1, "127.0.0.1", 1, [])
    began_ms = clock.monotonic_ms()
    pull = parked_until(parked, session, began_ms + wait_ms)
    while not parked.expired():
        validate(parked)
        clock.advance(1 if wait_ms < 10_000 else 5)
        assert clock.monotonic_ms() - began_ms <= wait_ms + SLOT_MS + 5
    assert clock.monotonic_ms() >= pull.deadline_ms


def test_pulls_of_closed_connections_are_dropped_however_long_they_would_wait(clock: ManualClock) -> None:
    parked, gone = ParkedPulls(clock), Session(1, "127.0.0.1", 1, [])
    here = Session(2, "127.0.0.1", 2, [])
    for session in (gone, here):
        for _ in range(10):
            parked_until(parked, session, clock.monotonic_ms() + 1_000_000_000)
    gone.open = False
    clock.advance(LOOK_MS + SLOT_MS)
    assert [pull.session for pull in parked.expired()] == [gone] * 10
    assert parked.count == 10
    validate(parked)


def test_behind_many_of_closed_connections_nobody_waits_for_another_tick(bench: Bench) -> None:
    here, gone = bench.peer(), bench.peer()
    here.ask(SEND, send_ext(), b"a")
    for peer in (here, *[gone] * (3 * pulling.EXAMINED_AT_ONCE)):
        peer.give_pull(offset=1, sysFlag="6")
    bench.broker.turn()
    gone.disconnect()
    bench.later(30_000)
    while bench.broker.work_waits:
        bench.broker.work()
    assert bench.broker.pulls.parked.count == 0
    assert [each.code for each in here.heard()] == [ResponseCode.PULL_NOT_FOUND]


def test_many_whose_time_is_up_at_once_are_answered_in_many_turns(bench: Bench, peer: Peer) -> None:
    peer.ask(SEND, send_ext(), b"a")
    count = 3 * pulling.EXAMINED_AT_ONCE
    for _ in range(count):
        peer.give_pull(offset=1, sysFlag="6")
    bench.broker.turn()
    assert bench.broker.pulls.parked.count == count
    bench.later(15_000)
    answered, turns = len(peer.heard()), 0
    assert answered <= pulling.WOKEN_AT_ONCE + pulling.SERVED_AT_ONCE
    while bench.broker.work_waits:
        bench.broker.work()
        bench.broker.turn()
        heard = len(peer.heard())
        assert heard <= 2 * pulling.SERVED_AT_ONCE, "the step, and the one that begins what follows"
        answered += heard
        turns += 1
    assert answered == count
    assert bench.broker.pulls.parked.count == 0
    assert turns >= count // pulling.SERVED_AT_ONCE - pulling.WOKEN_AT_ONCE


def test_of_many_that_wait_for_one_queue_few_leave_it_at_once(bench: Bench, peer: Peer) -> None:
    """Those that a message does not concern wait on: they are not looked at again because of it."""
    peer.ask(SEND, send_ext(), b"a")
    count = 2 * pulling.LEFT_AT_ONCE + 10
    for number in range(count):
        peer.give_pull(offset=1, sysFlag="6", subscription="TagA" if number % 5 == 0 else "*")
    bench.broker.turn()
    parked = bench.broker.pulls.parked
    peer.give(SEND, send_ext(), b"b")
    bench.broker.turn()
    assert parked.count >= count - pulling.LEFT_AT_ONCE
    while bench.broker.work_waits:
        before = parked.count
        bench.broker.work()
        bench.broker.turn()
        assert before - parked.count <= pulling.LEFT_AT_ONCE
    answers = [each for each in peer.heard() if each.code == ResponseCode.SUCCESS]
    assert len(answers) == 1 + count - parked.count
    assert parked.count == -(-count // 5)
    validate(parked)


def test_a_topics_pulls_leave_without_a_look_at_others(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    parked, session = ParkedPulls(clock), Session(1, "127.0.0.1", 1, [])
    for number in range(30):
        for topic, group in (("T", f"G{number % 3}"), ("U", "G0")):
            pull = Pull(session, 1, group, topic, number % 4, 5, 32, None, 0, 0)
            pull.deadline_ms = clock.monotonic_ms() + 1_000
            parked.park(pull)
    monkeypatch.setattr(parked_pulls, "LOOKED_AT_ONCE", 8)
    leaving = parked.leaving("G1", "T")
    slices = [next(leaving)]
    late = Pull(session, 1, "G1", "T", 0, 5, 32, None, 0, 0)
    late.deadline_ms = clock.monotonic_ms() + 1_000
    parked.park(late)
    slices += leaving
    validate(parked)
    assert [len(each) <= 8 for each in slices] == [True] * 4
    assert sum(map(len, slices)) == 10
    assert {(pull.topic, pull.group) for each in slices for pull in each} == {("T", "G1")}
    assert late in parked.requests
    assert sum(map(len, parked.leaving(None, "T"))) == 21
    validate(parked)
    assert parked.count == 30


def test_many_pulls_of_a_deleted_topic_are_answered_in_slices(bench: Bench, peer: Peer) -> None:
    peer.ask(SEND, send_ext(), b"a")
    for _ in range(3 * parked_pulls.LOOKED_AT_ONCE):
        peer.give(PULL, pull_ext("T", offset=1, sysFlag="6"))
    assert bench.broker.pulls.parked.count == 3 * parked_pulls.LOOKED_AT_ONCE
    bench.broker.pulls.topic_gone("T")
    assert bench.broker.pulls.parked.count == 2 * parked_pulls.LOOKED_AT_ONCE
    answered, most = 0, 0
    while True:
        codes = [answer.code for answer in peer.heard()]
        assert set(codes) <= {ResponseCode.TOPIC_NOT_EXIST}
        answered, most = answered + len(codes), max(most, len(codes))
        if not bench.broker.work_waits:
            break
        bench.broker.work()
    assert (answered, bench.broker.pulls.parked.count) == (3 * parked_pulls.LOOKED_AT_ONCE, 0)
    assert most <= pulling.SERVED_AT_ONCE
