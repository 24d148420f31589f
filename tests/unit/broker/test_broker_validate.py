"""``validate`` of a broker: silent while all is well, an AssertionError when a table and its account
differ. Property tests call it after every step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mqspark.base.bounded import Ledger
from mqspark.broker.broker import BrokerCore
from mqspark.message import MessageQueue
from mqspark.protocol.bodies.client_bodies import ConsumerData, SubscriptionData
from mqspark.store.timer.timerlog import RECORD_BYTES
from mqspark.store.timer.timerwheel import Slot, TimerWheel
from tests.support.invariants import validate
from tests.unit.broker_kit import SEND, Bench, send_ext
from tests.unit.pop_kit import POP, pop, pop_ext, put


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """A consumer with a lock and a parked pull, a parked pop, and an ordered pop that blocks its queue."""
    bench = Bench(tmp_path)
    put(bench, "a", "b")
    peer = bench.peer()
    state = bench.broker.state
    subscriptions = [SubscriptionData(topic="T", sub_string="red", sub_version=1)]
    data = ConsumerData(group_name="G", subscription_data_set=subscriptions)
    state.clients.consume(data, "c", peer.session, 0, 479, notify=False)
    state.locks.lock("G", "c", [MessageQueue("T", "b-a", 0)])
    peer.give_pull(offset=2, sysFlag="6", suspendTimeoutMillis="60000")
    assert pop(bench, bench.peer(), order="true")
    waiting = bench.peer()
    waiting.give(POP, pop_ext(bench, topic="T", queueId="1", pollTime="60000"))
    bench.broker.turn()
    return bench


def test_a_broker_agrees_with_itself(bench: Bench) -> None:
    validate(bench.broker)
    assert bench.broker.pulls.parked.count == 1
    assert all(
        ledger.entries
        for ledger in bench.broker.tables
        if isinstance(ledger, Ledger) and ledger.name in ("clients", "queueLocks", "parkedPops", "popOrder")
    )


def a_member_over_a_forgotten_connection(broker: BrokerCore) -> None:
    group = broker.state.clients.consumer("G")
    assert group is not None
    group.members["c"].session.id += 1


def a_group_without_members(broker: BrokerCore) -> None:
    group = broker.state.clients.consumer("G")
    assert group is not None
    group.members.clear()


def a_pull_too_many(broker: BrokerCore) -> None:
    broker.pulls.parked.ledger.note(1_000)


MISTAKES: list[tuple[Callable[[BrokerCore], None], str]] = [
    (a_member_over_a_forgotten_connection, "of c is not one of G"),
    (a_group_without_members, "group G has no members"),
    (a_pull_too_many, "parkedPulls: 2 entries of .* bytes, there are 1 of"),
]


@pytest.mark.parametrize(("mistake", "text"), MISTAKES, ids=lambda each: getattr(each, "__name__", ""))
def test_a_mistake_is_found(bench: Bench, mistake: Callable[[BrokerCore], None], text: str) -> None:
    mistake(bench.broker)
    with pytest.raises(AssertionError, match=text):
        validate(bench.broker)


def a_slot_too_many(wheel: TimerWheel, slot: Slot) -> None:
    wheel.used_count += 1


def a_chain_that_ends_nowhere(wheel: TimerWheel, slot: Slot) -> None:
    wheel.put(slot.tick, slot.first, slot.last + 10 * RECORD_BYTES, 1)


def a_chain_the_wrong_way_round(wheel: TimerWheel, slot: Slot) -> None:
    wheel.put(slot.tick, slot.last + RECORD_BYTES, slot.last, 1)


def a_chain_between_records(wheel: TimerWheel, slot: Slot) -> None:
    wheel.put(slot.tick, 0, slot.last - 1, 1)


TIMER_MISTAKES: list[tuple[Callable[[TimerWheel, Slot], None], str]] = [
    (a_slot_too_many, "2 slots are counted, 1 are used"),
    (a_chain_that_ends_nowhere, "a chain ends after the timer log"),
    (a_chain_the_wrong_way_round, "a chain begins after its end"),
    (a_chain_between_records, r"tick \d+ has no record at"),
]


@pytest.mark.parametrize(("mistake", "text"), TIMER_MISTAKES, ids=lambda each: getattr(each, "__name__", ""))
def test_a_mistake_in_the_wheel_is_found(
    bench: Bench, mistake: Callable[[TimerWheel, Slot], None], text: str
) -> None:
    for _ in range(2):
        assert bench.peer().ask(SEND, send_ext("T", 0, "TIMER_DELAY_MS\x0130000\x02"), b"later").code == 0
    bench.run_for(0)
    validate(bench.broker)
    wheel = bench.broker.timers.files.wheel
    (row,) = wheel.used(1)
    slot = wheel.get(int(row["tick"]))
    assert slot is not None
    assert slot.messages == 2
    mistake(wheel, slot)
    with pytest.raises(AssertionError, match=text):
        validate(bench.broker)


@pytest.mark.parametrize(
    "name", ["clients", "queueLocks", "parkedPulls", "parkedPops", "popOrder", "revivals"]
)
def test_an_account_that_differs_is_found(bench: Bench, name: str) -> None:
    (ledger,) = [one for one in bench.broker.tables if one.name == name]
    assert isinstance(ledger, Ledger)
    ledger.note(100)
    with pytest.raises(AssertionError, match=f"{name}: {ledger.entries} entries of {ledger.bytes} bytes"):
        validate(bench.broker)
