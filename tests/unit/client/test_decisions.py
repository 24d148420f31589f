"""The client's decisions, without sockets: allocation, rebalance, process queue, faults."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqspark.client.consumer.allocate import (
    Allocation,
    Averagely,
    AveragelyByCircle,
    ConsistentHash,
    Fixed,
    MachineRoom,
    MachineRoomNearby,
    sort_clients,
    sort_queues,
)
from mqspark.client.consumer.commits import commit_waves
from mqspark.client.consumer.rebalance import RebalanceTimer, plan
from mqspark.client.delivery.process_queue import FlowLimits, ProcessQueue
from mqspark.client.producer.faults import FaultTable, QueueChooser
from mqspark.errors import ConfigError
from mqspark.message import MessageExt, MessageQueue
from tests.support.clocks import ManualClock
from tests.support.receivedmessages import received

VECTORS = Path(__file__).parents[2] / "golden" / "vectors" / "allocate.jsonl"


def message(offset: int, body: bytes = b"x") -> MessageExt:
    return received(offset, body=body)


# --- allocation ------------------------------------------------------------------------------------------


def queue(text: str) -> MessageQueue:
    broker, _, number = text.rpartition(":")
    return MessageQueue("T", broker, int(number))


STRATEGIES: dict[str, Allocation] = {
    "AVG": Averagely(),
    "AVG_BY_CIRCLE": AveragelyByCircle(),
    "CONFIG": Fixed([queue("b-a:1")]),
    "CONSISTENT_HASH": ConsistentHash(),
    "CONSISTENT_HASH (3 virtual nodes)": ConsistentHash(3),
    "MACHINE_ROOM": MachineRoom({"room1"}),
}


def vectors() -> Iterator[dict[str, object]]:
    for line in VECTORS.read_text().splitlines():
        vector = json.loads(line)
        if vector["strategy"] in STRATEGIES:
            yield vector


@pytest.mark.parametrize("vector", list(vectors()), ids=lambda vector: str(vector["strategy"]))
def test_allocation_equals_java(vector: dict[str, object]) -> None:
    allocation = STRATEGIES[str(vector["strategy"])]
    queues = [queue(text) for text in vector["queues"]]  # type: ignore[attr-defined]
    clients: list[str] = vector["consumers"]  # type: ignore[assignment]
    for client, expected in vector["result"].items():  # type: ignore[attr-defined]
        if isinstance(expected, str):
            with pytest.raises(ConfigError):
                allocation(client, queues, clients)
        else:
            assert allocation(client, queues, clients) == [queue(text) for text in expected]


def test_strategies_carry_their_wire_names() -> None:
    nearby = MachineRoomNearby(
        Averagely(), broker_room=lambda q: q.broker_name[0], client_room=lambda c: c[0]
    )
    assert [
        s.name for s in (Averagely(), AveragelyByCircle(), ConsistentHash(), MachineRoom([]), nearby)
    ] == [
        "AVG",
        "AVG_BY_CIRCLE",
        "CONSISTENT_HASH",
        "MACHINE_ROOM",
        "MACHINE_ROOM_NEARBY-AVG",
    ]


def test_nearby_rooms_keep_their_queues_and_share_the_orphaned() -> None:
    nearby = MachineRoomNearby(
        Averagely(), broker_room=lambda q: q.broker_name[0], client_room=lambda c: c[0]
    )
    queues = sort_queues(MessageQueue("T", f"{room}-broker", n) for room in "xyz" for n in range(4))
    clients = ["x1", "x2", "y1"]
    shares = {client: nearby(client, queues, clients) for client in clients}
    assert sorted(q for share in shares.values() for q in share) == queues
    assert {q.broker_name[0] for q in shares["y1"]} == {"y", "z"}
    assert [q for q in shares["x1"] if q.broker_name[0] == "x"] == queues[:2]


@given(
    st.integers(1, 40),
    st.integers(1, 12),
    st.sampled_from([Averagely(), AveragelyByCircle(), ConsistentHash()]),
)
def test_every_queue_has_exactly_one_owner(
    queue_count: int, member_count: int, allocation: Allocation
) -> None:
    queues = [MessageQueue("T", "b", n) for n in range(queue_count)]
    clients = sort_clients(f"10.0.0.{n}@{n}" for n in range(member_count))
    owned = [q for client in clients for q in allocation(client, queues, clients)]
    assert sorted(owned) == queues


def test_sort_order_is_javas() -> None:
    # U+1F680 is above U+FF5E as a code point and below it as UTF-16.
    assert sort_clients(["\uff5e", "\U0001f680", "a"]) == ["a", "\U0001f680", "\uff5e"]
    assert sort_queues(
        [MessageQueue("T", "b", 10), MessageQueue("T", "b", 2), MessageQueue("T", "a", 3)]
    ) == [
        MessageQueue("T", "a", 3),
        MessageQueue("T", "b", 2),
        MessageQueue("T", "b", 10),
    ]


# --- rebalance -------------------------------------------------------------------------------------------

QUEUES = [MessageQueue("T", "b", n) for n in range(4)]


def test_plan_takes_and_drops() -> None:
    change = plan(QUEUES[:3], QUEUES, client_id="b", members=["b", "a"], allocation=Averagely())
    assert change.drop == QUEUES[:2]
    assert change.add == [QUEUES[3]]


def test_plan_counts_a_member_that_is_listed_twice_once() -> None:
    change = plan([], QUEUES, client_id="b", members=["a", "b", "b"], allocation=Averagely())
    assert change.add == QUEUES[2:]


def test_plan_broadcasting_takes_everything() -> None:
    assert plan([], QUEUES, client_id="b", members=None, allocation=Averagely()).add == QUEUES


@pytest.mark.parametrize(("queues", "members"), [([], ["b"]), (QUEUES, [])])
def test_plan_without_knowledge_changes_nothing(queues: list[MessageQueue], members: list[str]) -> None:
    assert plan(QUEUES[:2], queues, client_id="b", members=members, allocation=Averagely()) == ([], [])


def test_plan_leaves_a_group_that_no_longer_lists_us() -> None:
    assert plan(QUEUES[:2], QUEUES, client_id="b", members=["a"], allocation=Averagely()).drop == QUEUES[:2]


@given(st.sets(st.integers(0, 20)), st.integers(1, 20), st.integers(1, 8), st.data())
def test_plans_of_all_members_settle_on_one_owner_each(
    owned: set[int], queue_count: int, member_count: int, data: st.DataObject
) -> None:
    queues = [MessageQueue("T", "b", n) for n in range(queue_count)]
    members = [f"c{n}" for n in range(member_count)]
    final: list[MessageQueue] = []
    for member in members:
        mine = {MessageQueue("T", "b", n) for n in owned} if data.draw(st.booleans()) else set()
        change = plan(mine, queues, client_id=member, members=members, allocation=Averagely())
        final += (mine - set(change.drop)) | set(change.add)
    assert sorted(final) == queues


def test_rebalance_timer(clock: ManualClock) -> None:
    timer = RebalanceTimer(clock, 20_000)
    assert timer.wait_ms() == 0
    timer.ran(balanced=True)
    assert timer.wait_ms() == 20_000
    timer.wake()
    assert timer.wait_ms() == 100
    clock.advance(150)
    assert timer.wait_ms() == 0
    timer.begin()
    timer.ran(balanced=False)
    assert timer.wait_ms() == 1_000


def test_a_change_during_a_round_is_not_forgotten() -> None:
    timer = RebalanceTimer(ManualClock(), 20_000)
    timer.begin()
    timer.wake()
    timer.ran(balanced=True)
    assert timer.wait_ms() == 100
    timer.begin()
    timer.ran(balanced=True)
    assert timer.wait_ms() == 20_000


# --- process queue ---------------------------------------------------------------------------------------


def test_commit_waits_for_the_slowest() -> None:
    process = ProcessQueue(10)
    first, second, third = process.put([message(10), message(11), message(13)], 15)
    assert (process.commit_offset, process.next_offset, process.span) == (10, 15, 3)
    process.complete(third)
    process.complete(second)
    assert (process.commit_offset, process.message_count) == (10, 1)
    process.complete(first)
    assert (process.commit_offset, process.message_count, process.size_bytes) == (15, 0, 0)


def test_a_message_completes_once() -> None:
    process = ProcessQueue(0)
    messages = process.put([message(0), message(1), message(2)], 3)
    for _ in range(2):
        process.complete(messages[1])
        process.complete(messages[0])
    assert (process.commit_offset, process.message_count, process.size_bytes) == (2, 1, 1)


def test_put_ignores_what_came_before_the_offset_asked_for() -> None:
    process = ProcessQueue(5)
    assert [m.queue_offset for m in process.put([message(n) for n in range(3, 8)], 8)] == [5, 6, 7]
    assert process.put([message(6)], 7) == []
    assert (process.message_count, process.next_offset) == (3, 8)


def test_flow_limits() -> None:
    limits = FlowLimits(max_messages=3, max_bytes=100, max_span=50)
    process = ProcessQueue(0)
    process.put([message(n) for n in range(3)], 3)
    assert not process.is_full(limits)
    process.put([message(3)], 4)
    assert process.is_full(limits)
    heavy = ProcessQueue(0)
    heavy.put([message(0, b"x" * 101)], 1)
    assert heavy.is_full(limits)
    wide = ProcessQueue(0)
    wide.put([message(0), message(51)], 52)
    assert wide.is_full(limits)


def test_a_pull_has_the_room_that_is_left() -> None:
    limits = FlowLimits(max_messages=100, max_bytes=3 << 20, max_span=50)
    process = ProcessQueue(0)
    assert process.room(limits) == 50
    process.put([message(0)], 1)
    process.put([message(n) for n in range(10, 40)], 40)
    assert process.room(limits) == 50 - 39
    assert process.room(FlowLimits(100, 3 << 20, 1_000)) == 100 - 31
    heavy = ProcessQueue(0)
    heavy.put([message(0, bytes((1 << 20) + 1))], 1)
    assert heavy.room(limits) == 0


def test_a_dropped_queue_is_empty() -> None:
    process = ProcessQueue(0)
    (only,) = process.put([message(0)], 1)
    process.drop()
    process.complete(only)
    assert (process.dropped, process.message_count, process.size_bytes) == (True, 0, 0)


@given(st.data())
def test_commit_never_passes_an_unconsumed_message(data: st.DataObject) -> None:
    process = ProcessQueue(data.draw(st.integers(0, 5)))
    working: dict[int, MessageExt] = {}
    consumed: set[int] = set()
    last_commit = process.commit_offset
    for _ in range(data.draw(st.integers(1, 30))):
        if working and data.draw(st.booleans()):
            offset = data.draw(st.sampled_from(sorted(working)))
            process.complete(working.pop(offset))
            consumed.add(offset)
        else:
            steps = data.draw(st.lists(st.integers(1, 3), max_size=6))
            offsets = [process.next_offset + sum(steps[: n + 1]) - 1 for n in range(len(steps))]
            end = process.next_offset + sum(steps) + data.draw(st.integers(0, 2))
            working |= {m.queue_offset: m for m in process.put([message(o) for o in offsets], end)}
        commit = process.commit_offset
        assert commit >= last_commit
        assert all(offset >= commit for offset in working)
        assert commit == (min(working) if working else process.next_offset)
        assert process.message_count == len(working)
        assert process.size_bytes == len(working)
        last_commit = commit
    for offset in list(working):
        process.complete(working.pop(offset))
    assert process.commit_offset == process.next_offset


# --- faults and queue choice -----------------------------------------------------------------------------

TWO_BROKERS = [MessageQueue("T", broker, n) for broker in ("a", "b") for n in range(2)]


def test_round_robin() -> None:
    chooser = QueueChooser(FaultTable(ManualClock()))
    chosen = [chooser.choose(TWO_BROKERS) for _ in range(8)]
    assert sorted(chosen) == sorted(TWO_BROKERS * 2)


def test_a_retry_goes_to_another_broker() -> None:
    chooser = QueueChooser(FaultTable(ManualClock()))
    assert {chooser.choose(TWO_BROKERS, "a").broker_name for _ in range(8)} == {"b"}
    assert chooser.choose(TWO_BROKERS[:2], "a").broker_name == "a"


def test_an_unreachable_broker_is_left_alone_for_ten_seconds(clock: ManualClock) -> None:
    faults = FaultTable(clock)
    chooser = QueueChooser(faults)
    faults.record("a", 0, isolate=True)
    assert {chooser.choose(TWO_BROKERS).broker_name for _ in range(8)} == {"b"}
    clock.advance(9_999)
    assert not faults.available("a")
    clock.advance(1)
    assert {chooser.choose(TWO_BROKERS).broker_name for _ in range(8)} == {"a", "b"}
    assert faults.empty


def test_with_all_brokers_at_fault_sending_goes_on() -> None:
    faults = FaultTable(ManualClock())
    chooser = QueueChooser(faults)
    for broker in "ab":
        faults.record(broker, 0, isolate=True)
    assert chooser.choose(TWO_BROKERS) in TWO_BROKERS
    assert chooser.choose(TWO_BROKERS, "a").broker_name == "b"


@pytest.mark.parametrize(
    ("latency_ms", "penalty_ms"),
    [(549, 0), (550, 2_000), (1_800, 5_000), (3_000, 6_000), (5_000, 10_000), (15_000, 30_000)],
)
def test_penalties(clock: ManualClock, latency_ms: int, penalty_ms: int) -> None:
    faults = FaultTable(clock)
    faults.record("a", latency_ms)
    clock.advance(max(0, penalty_ms - 1))
    assert faults.available("a") == (penalty_ms == 0)
    clock.advance(1)
    assert faults.available("a")


def test_a_penalty_is_only_extended(clock: ManualClock) -> None:
    faults = FaultTable(clock)
    faults.record("a", 20_000)
    faults.record("a", 600)
    clock.advance(29_000)
    assert not faults.available("a")


def test_one_commit_a_topic_goes_ahead_of_the_rest() -> None:
    first, rest = commit_waves(
        [MessageQueue(topic, broker, queue) for topic in "TU" for broker in ("a", "b") for queue in range(3)]
    )
    assert first == [MessageQueue(topic, broker, 0) for topic in "TU" for broker in ("a", "b")]
    assert len(rest) == 8
    assert not set(rest) & set(first)
