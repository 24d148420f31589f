"""Notifications of lite consumers that pop by themselves, and the evicted clients of exclusive lite topics: what
RocketMQ does since 5.5.1."""

import gc
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mqspark.broker.lite.liteparked import FEW_DEADLINES, LiteWaiter
from mqspark.protocol.bodies.topic_bodies import TopicConfig
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command
from mqspark_server.web.families import Families
from mqspark_server.web.trafficmetrics import traffic
from tests.support.invariants import validate
from tests.unit.broker.lite.test_broker_lite import (
    GROUP,
    PARENT,
    ack,
    bodies,
    group,
    pop,
    pop_ext,
    send,
    started,
    subscribe,
)
from tests.unit.broker_kit import Bench, Peer, expire_segments


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = started(tmp_path)
    yield bench
    validate(bench.broker)


def watch_ext(
    bench: Bench, client: str | None = "c1", poll_ms: int = 15_000, of: str = GROUP
) -> dict[str, str]:
    named = {} if client is None else {"clientId": client}
    return {
        "consumerGroup": of, "topic": PARENT, "queueId": "-1", "pollTime": str(poll_ms),
        "bornTime": str(bench.clock.now_ms()), "isLiteConsumer": "true", **named,
    }  # fmt: skip


def watch(bench: Bench, peer: Peer, **more: Any) -> None:
    peer.give(RequestCode.NOTIFICATION, watch_ext(bench, **more))


def told(peer: Peer) -> list[str]:
    return [answer.ext["hasMsg"] for answer in peer.heard()]


# --- notifications ---


def test_a_notification_says_that_there_is_something_and_takes_nothing(bench: Bench, peer: Peer) -> None:
    subscribe(peer, "COMPLETE_ADD", "a")
    assert peer.ask(RequestCode.NOTIFICATION, watch_ext(bench, poll_ms=0)).ext["hasMsg"] == "false"
    send(peer, "a", b"a0")
    for _ in range(2):
        assert peer.ask(RequestCode.NOTIFICATION, watch_ext(bench)).ext["hasMsg"] == "true"
    assert bodies(pop(bench, peer)) == [b"a0"]
    assert peer.ask(RequestCode.NOTIFICATION, watch_ext(bench, poll_ms=0)).ext["hasMsg"] == "false"


def test_a_parked_notification_is_woken_by_a_message_of_its_client_alone(bench: Bench) -> None:
    peer, sender = bench.peer(), bench.peer()
    subscribe(peer, "COMPLETE_ADD", "a")
    watch(bench, peer)
    send(sender, "b")
    bench.run_for(1_000)
    assert told(peer) == []
    send(sender, "a", b"a0")
    assert told(peer) == ["true"]
    assert bodies(pop(bench, peer)) == [b"a0"]


def test_a_notification_ends_with_its_time(bench: Bench, peer: Peer) -> None:
    subscribe(peer, "COMPLETE_ADD", "a")
    watch(bench, peer, poll_ms=1_000)
    bench.run_for(900)
    assert told(peer) == []
    bench.run_for(300)
    assert told(peer) == ["false"]


def test_one_notification_of_a_client_is_woken_by_each_message(bench: Bench) -> None:
    peer, sender = bench.peer(), bench.peer()
    subscribe(peer, "COMPLETE_ADD", "a", "b")
    for _ in range(3):
        watch(bench, peer)
    send(sender, "a")
    assert told(peer) == ["true"]
    send(sender, "b")
    assert told(peer) == ["true"]
    bench.run_for(16_000)
    assert told(peer) == ["true"], "its time is up, and both messages are there"


def test_a_message_that_becomes_visible_again_wakes_it(bench: Bench, peer: Peer) -> None:
    subscribe(peer, "COMPLETE_ADD", "a")
    send(peer, "a")
    assert bodies(pop(bench, peer)) == [b"m"]
    watch(bench, peer, poll_ms=60_000)
    bench.run_for(29_000, 1_000)
    assert told(peer) == []
    bench.run_for(2_000)
    assert told(peer) == ["true"]


@pytest.mark.parametrize("of", ["another group", "a stranger", "one that has closed"])
def test_a_notification_of_others_is_not_woken(bench: Bench, of: str) -> None:
    group(bench, "OTHER")
    mine, other, sender = bench.peer(), bench.peer(), bench.peer()
    subscribe(mine, "COMPLETE_ADD", "a")
    if of == "another group":
        watch(bench, other, of="OTHER")
    elif of == "a stranger":
        watch(bench, other, client="nobody")
    else:
        watch(bench, other)
        other.disconnect()
    watch(bench, mine)
    send(sender, "a")
    assert told(mine) == ["true"]
    if of != "one that has closed":
        assert told(other) == []
        bench.run_for(16_000)
        assert told(other) == ["false"]


def test_a_notification_of_a_lite_consumer_names_its_client(bench: Bench) -> None:
    answer = bench.peer().ask(RequestCode.NOTIFICATION, watch_ext(bench, client=None))
    assert answer.code == ResponseCode.INVALID_PARAMETER


def test_answered_notifications_are_forgotten_however_long_they_would_have_waited(bench: Bench) -> None:
    peer, parked = bench.peer(), bench.broker.services.lite.watch.parked
    subscribe(peer, "COMPLETE_ADD", "a")
    gc.collect()
    before = remembered()
    for _ in range(5 * FEW_DEADLINES):
        watch(bench, peer, poll_ms=1_000_000_000)
        if (waiter := parked.first("c1")) is not None:
            parked.remove(waiter)
        validate(parked)
    watch(bench, peer)
    assert len(parked) == 1
    assert remembered() - before <= 2 * len(parked) + FEW_DEADLINES + 1
    peer.heard()
    bench.run_for(16_000)
    assert told(peer) == ["false"]


def remembered() -> int:
    return sum(isinstance(each, LiteWaiter) for each in gc.get_objects())


def test_too_many_notifications_are_told_so(bench: Bench, peer: Peer) -> None:
    bench.config.max_pop_polling_size = 2
    subscribe(peer, "COMPLETE_ADD", "a")
    for _ in range(2):
        watch(bench, peer)
    answer: Command = bench.peer().ask(RequestCode.NOTIFICATION, watch_ext(bench))
    assert (answer.ext["hasMsg"], answer.ext["pollingFull"]) == ("false", "true")
    assert bench.broker.services.lite.watch.parked.ledger.bytes > 0
    bench.run_for(16_000)
    assert bench.broker.services.lite.watch.parked.ledger.bytes == 0


def test_a_notification_of_other_consumers_does_not_see_lite_topics(bench: Bench, peer: Peer) -> None:
    subscribe(peer, "COMPLETE_ADD", "a")
    ext = {**watch_ext(bench, poll_ms=0), "isLiteConsumer": "false"}
    before = peer.ask(RequestCode.NOTIFICATION, ext).ext["hasMsg"]
    send(peer, "a")
    after = peer.ask(RequestCode.NOTIFICATION, {**ext, "isLiteConsumer": "true"}).ext["hasMsg"]
    assert (before, after) == ("false", "true")


# --- exclusive lite topics ---


@pytest.fixture
def one(bench: Bench) -> Peer:
    """A client of a group whose lite topics have one client."""
    group(bench, "EX", lite_sub_model="Exclusive")
    one = bench.peer()
    subscribe(one, "PARTIAL_ADD", "a", "b", client="c1", of="EX")
    return one


@pytest.fixture
def two(bench: Bench, one: Peer) -> Peer:
    """Another one, for which the first was evicted from ``a`` and has not heard it yet."""
    two = bench.peer()
    subscribe(two, "PARTIAL_ADD", "a", client="c2", of="EX")
    one.heard()
    return two


def repeat(bench: Bench, peer: Peer, client: str, *names: str) -> list[str]:
    """A client says what it subscribes to. The lite topics of which it is told that they are not its."""
    entry = {
        "action": "COMPLETE_ADD",
        "clientId": client,
        "group": "EX",
        "topic": PARENT,
        "liteTopicSet": list(names),
    }
    peer.give(RequestCode.LITE_SUBSCRIPTION_CTL, {}, json.dumps({"subscriptionSet": [entry]}).encode())
    return notified(peer)


def notified(peer: Peer) -> list[str]:
    return [
        each.ext["liteTopic"] for each in peer.heard() if each.code == RequestCode.NOTIFY_UNSUBSCRIBE_LITE
    ]


def test_an_evicted_client_that_repeats_its_subscriptions_stays_evicted(
    bench: Bench, one: Peer, two: Peer
) -> None:
    """It is told again: it may not have heard it."""
    for _ in range(2):
        assert repeat(bench, one, "c1", "a", "b") == ["a"]
    for number in range(4):
        send(one, "a", b"a%d" % number)
    send(one, "b", b"b0")
    assert bodies(pop(bench, one, "c1", of="EX")) == [b"b0"]
    assert bodies(pop(bench, two, "c2", of="EX")) == [b"a0", b"a1", b"a2", b"a3"]


def test_an_evicted_client_gets_the_topic_back_by_its_name(bench: Bench, one: Peer, two: Peer) -> None:
    subscribe(one, "PARTIAL_ADD", "a", client="c1", of="EX")
    assert notified(two) == ["a"]
    assert repeat(bench, one, "c1", "a", "b") == []
    assert repeat(bench, two, "c2", "a") == ["a"]
    send(one, "a", b"a0")
    assert bodies(pop(bench, one, "c1", of="EX")) == [b"a0"]


def test_an_eviction_is_over_when_the_client_no_longer_names_the_topic(
    bench: Bench, one: Peer, two: Peer
) -> None:
    subscribe(one, "COMPLETE_ADD", "b", client="c1", of="EX")
    subscribe(two, "COMPLETE_REMOVE", client="c2", of="EX")
    assert repeat(bench, one, "c1", "a", "b") == []
    send(one, "a", b"a0")
    assert bodies(pop(bench, one, "c1", of="EX")) == [b"a0"]


def test_an_eviction_is_over_with_the_client(bench: Bench, one: Peer, two: Peer) -> None:
    subscribe(one, "COMPLETE_REMOVE", client="c1", of="EX")
    assert repeat(bench, one, "c1", "a") == []
    for client in ("c1", "c2"):
        subscribe(one, "COMPLETE_REMOVE", client=client, of="EX")
    assert bench.broker.services.lite.clients.ledger.bytes == 0


def test_evictions_of_a_group_that_shares_its_topics_from_now_on_mean_nothing(
    bench: Bench, one: Peer, two: Peer
) -> None:
    group(bench, "EX", lite_sub_model="Shared")
    assert repeat(bench, one, "c1", "a", "b") == []
    subscribe(two, "COMPLETE_REMOVE", client="c2", of="EX")
    send(one, "a", b"a0")
    assert bodies(pop(bench, one, "c1", of="EX")) == [b"a0"]


def test_a_parked_pop_of_an_evicted_client_gets_nothing_of_the_topic(
    bench: Bench, one: Peer, two: Peer
) -> None:
    subscribe(one, "COMPLETE_ADD", "a", client="c1", of="EX")
    one.heard()
    one.give(RequestCode.POP_LITE_MESSAGE, pop_ext(bench, "c1", 2_000, of="EX"))
    send(two, "a", b"a0")
    bench.run_for(2_500)
    assert [answer.code for answer in one.heard()] == [ResponseCode.POLLING_TIMEOUT]
    assert bodies(pop(bench, two, "c2", of="EX")) == [b"a0"]


# --- offsets that tools reset ---


def reset_to(peer: Peer, offset: int) -> Command:
    ext = {
        "topic": f"%LMQ%${PARENT}$a",
        "group": GROUP,
        "timestamp": "-1",
        "queueId": "0",
        "offset": str(offset),
    }
    return peer.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, {**ext, "isForce": "true"})


@pytest.mark.parametrize("parked", [False, True])
def test_a_reset_of_a_lite_topic_does_not_wait_for_what_is_handed_out(bench: Bench, parked: bool) -> None:
    """RocketMQ before 5.5.1 keeps the lite topic blocked until the invisible time is over."""
    peer, tool = bench.peer(), bench.peer()
    subscribe(peer, "PARTIAL_ADD", "a")
    for number in range(3):
        send(peer, "a", b"a%d" % number)
    before = pop(bench, peer)
    assert bodies(before) == [b"a0", b"a1", b"a2"]
    if parked:
        peer.give(RequestCode.POP_LITE_MESSAGE, pop_ext(bench, poll_ms=15_000))
    assert reset_to(tool, 1).code == ResponseCode.SUCCESS
    after = next(iter(peer.heard())) if parked else pop(bench, peer)
    assert bodies(after) == [b"a1", b"a2"]
    # What was handed out before moves nobody, and what is acknowledged now does.
    ack(bench, peer, before, "a", 0)
    assert bench.broker.state.offsets.query(GROUP, f"%LMQ%${PARENT}$a", 0) == 1
    for offset in (1, 2):
        assert ack(bench, peer, after, "a", offset).code == ResponseCode.SUCCESS
    assert bench.broker.state.offsets.query(GROUP, f"%LMQ%${PARENT}$a", 0) == 3


def test_a_reset_is_taken_once_and_leaves_nothing(bench: Bench, peer: Peer) -> None:
    """RocketMQ before 5.5.1 keeps an empty table for each group and lite topic that was ever reset."""
    subscribe(peer, "PARTIAL_ADD", "a")
    send(peer, "a", b"a0")
    assert bodies(pop(bench, peer)) == [b"a0"]
    offsets = bench.broker.state.offsets
    held = offsets.ledger.bytes
    assert reset_to(peer, 0).code == ResponseCode.SUCCESS
    assert offsets.ledger.bytes > held
    assert bodies(pop(bench, peer)) == [b"a0"]
    assert (offsets.pending_reset(GROUP, f"%LMQ%${PARENT}$a", 0), offsets.ledger.bytes) == (None, held)


# --- lite topics without messages ---


@pytest.mark.parametrize("forever", [True, False])
def test_a_lite_topic_goes_with_its_last_message(tmp_path: Path, forever: bool) -> None:
    """Retention takes the messages; the queue, the offsets and resets of groups go after it, however long lite topics
    live. One that still has a message stays."""
    bench = started(tmp_path, lite_ttl_check_interval=5_000, min_lite_ttl=1_000)
    if not forever:
        attributes = {"message.type": "LITE", "lite.topic.expiration": "600000"}
        bench.broker.state.topics.put(TopicConfig(topic_name=PARENT, perm=6, attributes=attributes))
    peer, state = bench.peer(), bench.broker.state
    send(peer, "old")
    queue = f"%LMQ%${PARENT}$old"
    state.offsets.reset(peer.session, GROUP, queue, 0, 1)
    for _ in range(4):
        send(peer, "new", b"x" * (3 << 20))
    bench.run_for(10_000, 1_000)
    assert queue in state.store.table.light
    expire_segments(bench)
    bench.run_for(10_000, 1_000)
    assert list(state.store.table.light) == [f"%LMQ%${PARENT}$new"]
    assert state.offsets.pending_reset(GROUP, queue, 0) is None
    assert state.offsets.query(GROUP, queue, 0) == -1
    validate(bench.broker)


# --- what tools ask ---


@pytest.mark.parametrize("enabled", [True, False])
def test_the_number_of_light_queues_is_shown_where_there_may_be_some(tmp_path: Path, enabled: bool) -> None:
    """rocketmq_lmq_number."""
    bench = started(tmp_path) if enabled else Bench(tmp_path)
    if enabled:
        for name in ("a", "b", "a"):
            send(bench.peer(), name)
    shown = [
        sample.value
        for metric in traffic(bench.broker, Families(("C", "broker", "b-a")))
        if metric is not None and metric.name == "rocketmq_lmq_number"
        for sample in metric.samples
    ]
    assert shown == ([2.0] if enabled else [])


def test_a_client_is_shown_and_served_with_its_own_group_alone(bench: Bench, peer: Peer) -> None:
    group(bench, "OTHER")
    subscribe(peer, "COMPLETE_ADD", "a")

    def names(of: str) -> object:
        ext = {"parentTopic": PARENT, "group": of, "clientId": "c1"}
        return json.loads(bytes(peer.ask(RequestCode.GET_LITE_CLIENT_INFO, ext).body)).get("liteTopicSet")

    assert (names(GROUP), names("OTHER")) == ([f"%LMQ%${PARENT}$a"], None)
    send(peer, "a", b"a0")
    assert bodies(pop(bench, peer)) == [b"a0"]
    bench.run_for(31_000)
    assert bodies(pop(bench, peer)) == [b"a0"]
    for of in ("OTHER", GROUP):
        answer = peer.ask(RequestCode.TRIGGER_LITE_DISPATCH, {"group": of, "clientId": "c1"})
        assert answer.code == ResponseCode.SUCCESS
        has_event = bench.broker.services.lite.clients.has_event("c1", GROUP, PARENT)
        assert has_event is (of == GROUP)
