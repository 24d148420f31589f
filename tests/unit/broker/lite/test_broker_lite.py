"""Lite topics in the broker's core: subscriptions, events, pops in order, expiry, and what tools ask."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mqspark.broker.lite import litelife
from mqspark.protocol.bodies.topic_bodies import SubscriptionGroupConfig, TopicConfig
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command
from mqspark.record.record import decode_records
from mqspark_server.web.families import Families
from mqspark_server.web.trafficmetrics import consumer_metrics
from tests.support.invariants import validate
from tests.unit.broker_kit import Bench, Peer, send_ext

PARENT, GROUP = "Parent", "LG"


def started(directory: Path, **settings: int) -> Bench:
    with_queues = {"enable_lmq": True, "enable_multi_dispatch": True}
    bench = Bench(directory, store_settings=with_queues, **settings)
    topics = bench.broker.state.topics
    topics.put(TopicConfig(topic_name=PARENT, perm=6, attributes={"message.type": "LITE"}))
    group(bench, GROUP)
    return bench


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = started(tmp_path)
    yield bench
    validate(bench.broker)


def group(bench: Bench, name: str, **attributes: str) -> None:
    given = {"lite.bind.topic": PARENT, **{key.replace("_", "."): value for key, value in attributes.items()}}
    bench.broker.state.subscriptions.put(SubscriptionGroupConfig(group_name=name, attributes=given))


def send(peer: Peer, lite_topic: str, body: bytes = b"m") -> Command:
    ext = send_ext(PARENT, properties=f"__LITE_TOPIC\x01{lite_topic}\x02WAIT\x01true\x02")
    return peer.ask(RequestCode.SEND_MESSAGE_V2, ext, body)


def subscribe(
    peer: Peer, action: str, *names: str, client: str = "c1", of: str = GROUP, **more: Any
) -> Command:
    entry = {
        "action": action, "clientId": client, "group": of, "topic": PARENT, "liteTopicSet": list(names), **more,
    }  # fmt: skip
    return peer.ask(RequestCode.LITE_SUBSCRIPTION_CTL, {}, json.dumps({"subscriptionSet": [entry]}).encode())


def pop_ext(
    bench: Bench, client: str = "c1", poll_ms: int = 0, of: str = GROUP, most: int = 32
) -> dict[str, str]:
    return {
        "clientId": client, "consumerGroup": of, "topic": PARENT, "maxMsgNum": str(most), "invisibleTime": "30000",
        "pollTime": str(poll_ms), "bornTime": str(bench.clock.now_ms()),
    }  # fmt: skip


def pop(bench: Bench, peer: Peer, client: str = "c1", **more: Any) -> Command:
    return peer.ask(RequestCode.POP_LITE_MESSAGE, pop_ext(bench, client, **more))


def bodies(answer: Command) -> list[bytes]:
    return [bytes(record.body) for record in decode_records(bytes(answer.body))]


def ack(bench: Bench, peer: Peer, popped: Command, lite_topic: str, offset: int, of: str = GROUP) -> Command:
    name = bench.broker.config.broker_name
    given = [popped.ext[key] for key in ("popTime", "invisibleTime", "reviveQid")]
    extra = " ".join([str(offset), *given, "0", name, "0", str(offset)])
    ext = {
        "consumerGroup": of, "topic": PARENT, "queueId": "0", "extraInfo": extra, "offset": str(offset),
        "liteTopic": lite_topic,
    }  # fmt: skip
    return peer.ask(RequestCode.ACK_MESSAGE, ext)


def test_a_client_gets_what_it_subscribes_to_in_order(bench: Bench, peer: Peer) -> None:
    assert subscribe(peer, "PARTIAL_ADD", "a", "b").code == ResponseCode.SUCCESS
    for number in range(3):
        assert send(peer, "a", b"a%d" % number).code == ResponseCode.SUCCESS
    send(peer, "b", b"b0")
    send(peer, "other", b"nobody's")
    first = pop(bench, peer)
    assert (first.code, sorted(bodies(first))) == (ResponseCode.SUCCESS, [b"a0", b"a1", b"a2", b"b0"])
    assert first.ext["orderCountInfo"] == "0;0;0;0"
    assert first.ext["reviveQid"] == "999"
    assert pop(bench, peer).code == ResponseCode.POLLING_TIMEOUT  # nothing more until it is acknowledged
    send(peer, "a", b"a3")
    assert pop(bench, peer).code == ResponseCode.POLLING_TIMEOUT
    for offset in range(3):
        assert ack(bench, peer, first, "a", offset).code == ResponseCode.SUCCESS
    assert bodies(pop(bench, peer)) == [b"a3"]


def test_what_is_not_acknowledged_comes_again_with_its_count(bench: Bench, peer: Peer) -> None:
    subscribe(peer, "PARTIAL_ADD", "a")
    send(peer, "a", b"a0")
    assert bodies(pop(bench, peer)) == [b"a0"]
    bench.run_for(31_000)
    again = pop(bench, peer)
    assert (bodies(again), again.ext["orderCountInfo"]) == ([b"a0"], "1")


def test_what_is_handed_out_comes_to_nobody_else_before_its_time_is_up(bench: Bench, peer: Peer) -> None:
    """Also when the state of ordered pops is cleaned meanwhile, every five minutes."""
    subscribe(peer, "PARTIAL_ADD", "a")
    send(peer, "a", b"a0")
    bench.run_for(290_000, 10_000)
    subscribe(peer, "COMPLETE_ADD", "a")
    assert bodies(pop(bench, peer)) == [b"a0"]
    bench.run_for(20_000, 5_000)
    bench.broker.services.lite.clients.dispatch(f"%LMQ%${PARENT}$a")
    assert pop(bench, peer).code == ResponseCode.POLLING_TIMEOUT
    bench.run_for(15_000, 1_000)
    assert bodies(pop(bench, peer)) == [b"a0"]


@pytest.mark.parametrize("invisible_ms", [-1, 1 << 60])
def test_an_invisible_time_is_not_changed_to_an_impossible_one(bench: Bench, invisible_ms: int) -> None:
    peer = bench.peer()
    subscribe(peer, "PARTIAL_ADD", "a")
    send(peer, "a", b"a0")
    popped = pop(bench, peer)
    extra = " ".join(
        ["0", *(popped.ext[key] for key in ("popTime", "invisibleTime", "reviveQid")), "0", "b-a", "0", "0"]
    )
    ext = {
        "consumerGroup": GROUP, "topic": PARENT, "queueId": "0", "extraInfo": extra, "offset": "0", "liteTopic": "a",
        "invisibleTime": str(invisible_ms),
    }  # fmt: skip
    assert peer.ask(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, ext).code == ResponseCode.INVALID_PARAMETER
    bench.run_for(31_000, 1_000)
    assert bodies(pop(bench, peer)) == [b"a0"]


def test_a_parked_pop_is_woken_by_its_message_alone(bench: Bench) -> None:
    peer, sender = bench.peer(), bench.peer()
    subscribe(peer, "COMPLETE_ADD", "a")
    peer.give(RequestCode.POP_LITE_MESSAGE, pop_ext(bench, poll_ms=15_000))
    send(sender, "b", b"b0")
    assert not peer.heard()
    send(sender, "a", b"a0")
    bench.run_for(200)
    (answer,) = peer.heard()
    assert bodies(answer) == [b"a0"]
    peer.give(RequestCode.POP_LITE_MESSAGE, pop_ext(bench, poll_ms=1_000))
    bench.run_for(1_500)
    (answer,) = peer.heard()
    assert (answer.code, answer.remark) == (ResponseCode.POLLING_TIMEOUT, "NO_MESSAGE_IN_QUEUE")


def test_an_exclusive_lite_topic_has_one_client(bench: Bench) -> None:
    group(bench, "EX", lite_sub_model="Exclusive")
    one, two = bench.peer(), bench.peer()
    subscribe(one, "PARTIAL_ADD", "a", client="c1", of="EX")
    subscribe(two, "PARTIAL_ADD", "a", client="c2", of="EX")
    (told,) = one.heard()
    assert told.code == RequestCode.NOTIFY_UNSUBSCRIBE_LITE
    assert told.ext == {"liteTopic": "a", "consumerGroup": "EX", "clientId": "c1"}
    send(one, "a", b"a0")
    assert pop(bench, one, "c1", of="EX").code == ResponseCode.POLLING_TIMEOUT
    assert bodies(pop(bench, two, "c2", of="EX")) == [b"a0"]


def test_events_of_a_client_that_left_go_to_another(bench: Bench, peer: Peer) -> None:
    subscribe(peer, "PARTIAL_ADD", "a", client="c1")
    send(peer, "a", b"a0")
    subscribe(peer, "PARTIAL_ADD", "a", client="c2")
    subscribe(peer, "COMPLETE_REMOVE", client="c1")
    assert bodies(pop(bench, peer, "c2")) == [b"a0"]
    send(peer, "a", b"a1")
    bench.run_for(400_000, 5_000)
    assert bench.broker.services.lite.clients.find("c2") is None  # it did not repeat its subscriptions
    assert bench.broker.services.lite.clients.ledger.bytes == 0


def test_events_of_a_silent_client_go_to_another(bench: Bench, peer: Peer) -> None:
    for client in ("c1", "c2"):
        subscribe(peer, "PARTIAL_ADD", "a", client=client)
    send(peer, "a", b"a0")
    clients = bench.broker.services.lite.clients
    (silent,) = [client for client in ("c1", "c2") if clients.find(client).events]  # type: ignore[union-attr]
    other = {"c1": "c2", "c2": "c1"}[silent]
    for _ in range(25):
        bench.run_for(1_000)
        popped = pop(bench, peer, other)
        if popped.code == ResponseCode.SUCCESS:
            break
    assert bodies(popped) == [b"a0"]


def test_a_client_with_more_news_than_may_wait_gets_all_in_time(bench: Bench, peer: Peer) -> None:
    group(bench, "FEW", lite_sub_client_max_event_cnt="10")
    names = [f"t{number}" for number in range(30)]
    subscribe(peer, "PARTIAL_ADD", *names, of="FEW")
    for name in names:
        send(peer, name, name.encode())
    received: list[bytes] = []
    for _ in range(60):
        popped = pop(bench, peer, of="FEW")
        for body in bodies(popped) if popped.code == ResponseCode.SUCCESS else []:
            received.append(body)
            ack(bench, peer, popped, body.decode(), 0, of="FEW")
        bench.run_for(1_000)
        if len(received) == len(names):
            break
    assert sorted(received) == sorted(name.encode() for name in names)


def test_a_wildcard_group_reads_every_lite_topic(bench: Bench, peer: Peer) -> None:
    group(bench, "ALL", lite_sub_wildcard="true")
    refused = subscribe(peer, "PARTIAL_ADD", "a", of="ALL")
    assert (refused.code, "not supported for this group" in (refused.remark or "")) == (
        ResponseCode.ILLEGAL_OPERATION,
        True,
    )
    subscribe(peer, "COMPLETE_ADD", of="ALL")
    send(peer, "x", b"x0")
    send(peer, "y", b"y0")
    assert sorted(bodies(pop(bench, peer, of="ALL"))) == [b"x0", b"y0"]


@pytest.mark.parametrize("wildcard", [False, True])
def test_news_beyond_the_limit_of_a_client_come_after_a_delay(bench: Bench, wildcard: bool) -> None:
    more = {"lite_sub_wildcard": "true"} if wildcard else {}
    group(bench, "FEW", lite_sub_client_max_event_cnt="1", **more)
    bench.config.lite_event_full_dispatch_delay_time_for_wildcard_group = 3_000
    peer = bench.peer()
    subscribe(peer, "COMPLETE_ADD", *([] if wildcard else ["x", "y"]), of="FEW")
    bench.run_for(6_000)  # a subscription has a full dispatch of its own
    send(peer, "x", b"x0")
    send(peer, "y", b"y0")
    popped = pop(bench, peer, of="FEW")
    assert bodies(popped) == [b"x0"]
    ack(bench, peer, popped, "x", 0, of="FEW")
    bench.run_for(3_500)
    early = bodies(pop(bench, peer, of="FEW"))
    bench.run_for(8_000)
    late = bodies(pop(bench, peer, of="FEW"))
    assert (early, late) == (([b"y0"], []) if wildcard else ([], [b"y0"]))


def test_how_soon_news_beyond_the_limit_come_is_a_setting(bench: Bench, peer: Peer) -> None:
    """maxClientEventCount, liteEventFullDispatchDelayTime."""
    bench.config.max_client_event_count, bench.config.lite_event_full_dispatch_delay_time = 1, 3_000
    subscribe(peer, "COMPLETE_ADD", "x", "y")
    bench.run_for(6_000)  # a subscription has a full dispatch of its own
    send(peer, "x", b"x0")
    send(peer, "y", b"y0")
    popped = pop(bench, peer)
    assert bodies(popped) == [b"x0"]
    ack(bench, peer, popped, "x", 0)
    bench.run_for(3_500)
    assert bodies(pop(bench, peer)) == [b"y0"]


@pytest.mark.parametrize(("interval_ms", "timeout_ms"), [(60_000, 10_000), (5_000, 60_000), (5_000, 10_000)])
def test_subscriptions_that_are_not_repeated_are_forgotten(
    tmp_path: Path, interval_ms: int, timeout_ms: int
) -> None:
    """liteSubscriptionCheckInterval, liteSubscriptionCheckTimeoutMills."""
    bench = started(
        tmp_path,
        lite_subscription_check_interval=interval_ms,
        lite_subscription_check_timeout_mills=timeout_ms,
    )
    subscribe(bench.peer(), "PARTIAL_ADD", "a")
    bench.run_for(9_000, 1_000)
    assert bench.broker.services.lite.clients.find("c1") is not None
    bench.run_for(8_000, 1_000)
    assert (bench.broker.services.lite.clients.find("c1") is None) is (interval_ms + timeout_ms == 15_000)


@pytest.mark.parametrize("step_ms", [3_600_000, -3_600_000])
def test_a_wall_clock_that_is_set_makes_no_client_silent_and_no_silent_one_stay(
    tmp_path: Path, step_ms: int
) -> None:
    bench = started(
        tmp_path, lite_subscription_check_interval=5_000, lite_subscription_check_timeout_mills=60_000
    )
    subscribe(bench.peer(), "PARTIAL_ADD", "a")
    bench.clock.wall_ms += step_ms
    bench.run_for(20_000, 1_000)
    clients = bench.broker.services.lite.clients
    assert clients.find("c1") is not None
    bench.run_for(60_000, 1_000)
    assert clients.find("c1") is None


@pytest.mark.parametrize(
    ("interval_ms", "least_ms", "gone_after_s"),
    [(10_000, 1_000, 75), (90_000, 1_000, 95), (10_000, 120_000, 125)],
)
def test_when_a_lite_topic_that_has_expired_goes(
    tmp_path: Path, interval_ms: int, least_ms: int, gone_after_s: int
) -> None:
    """liteTtlCheckInterval, minLiteTTl."""
    bench = started(tmp_path, lite_ttl_check_interval=interval_ms, min_lite_ttl=least_ms)
    attributes = {"message.type": "LITE", "lite.topic.expiration": "1"}
    bench.broker.state.topics.put(TopicConfig(topic_name=PARENT, perm=6, attributes=attributes))
    send(bench.peer(), "old")
    bench.run_for((gone_after_s - 20) * 1_000, 1_000)
    assert bench.broker.state.store.table.light
    bench.run_for(25_000, 1_000)
    assert not bench.broker.state.store.table.light


def test_where_a_subscription_begins(bench: Bench, peer: Peer) -> None:
    for number in range(3):
        send(peer, "a", b"a%d" % number)
    for of, kind, value, expected in (
        ("G1", "POLICY", 1, [b"a0", b"a1", b"a2"]),
        ("G2", "POLICY", 2, []),
        ("G3", "OFFSET", 2, [b"a2"]),
    ):
        group(bench, of)
        subscribe(peer, "PARTIAL_ADD", "a", client=of, of=of, offsetOption={"type": kind, "value": value})
        popped = pop(bench, peer, of, of=of)
        assert (bodies(popped) if popped.code == 0 else []) == expected, of


def test_limits_and_bad_input(bench: Bench) -> None:
    peer, state = bench.peer(), bench.broker.state
    assert peer.ask(RequestCode.LITE_SUBSCRIPTION_CTL, {}).remark == "Request body is null."
    assert (
        peer.ask(RequestCode.LITE_SUBSCRIPTION_CTL, {}, b"{}").remark
        == "LiteSubscriptionCtlRequestBody is empty."
    )
    state.config.auto_create_subscription_group = False
    assert subscribe(peer, "PARTIAL_ADD", "a", of="nobody").code == ResponseCode.ILLEGAL_OPERATION
    assert subscribe(peer, "PARTIAL_ADD", "../a").code != ResponseCode.SUCCESS
    state.config.max_lite_subscription_count = 2
    assert subscribe(peer, "PARTIAL_ADD", "a", "b").code == ResponseCode.SUCCESS
    full = subscribe(peer, "PARTIAL_ADD", "c")
    assert (full.code, full.remark) == (
        ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED,
        "org.apache.rocketmq.broker.lite.LiteQuotaException: lite subscription quota exceeded 2",
    )
    state.store_config.enable_lmq_quota, state.store_config.max_lmq_consume_queue_num = True, 1
    assert send(peer, "a").code == ResponseCode.SUCCESS
    assert send(peer, "a").code == ResponseCode.SUCCESS
    refused = send(peer, "b")
    assert (refused.code, refused.remark) == (
        ResponseCode.LMQ_QUOTA_EXCEEDED,
        "[LMQ_CONSUME_QUEUE_NUM_EXCEEDED]lmq consume queue num exceeded.",
    )
    state.topics.put(TopicConfig(topic_name="Plain", perm=6))
    ext = {**pop_ext(bench), "topic": "Plain"}
    assert peer.ask(RequestCode.POP_LITE_MESSAGE, ext).code == ResponseCode.INVALID_PARAMETER
    assert pop(bench, peer, of="nobody").code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert pop(bench, peer, most=33).code == ResponseCode.INVALID_PARAMETER


def test_lite_topics_expire_and_go_with_their_parent(bench: Bench) -> None:
    state, peer = bench.broker.state, bench.peer()
    state.topics.put(
        TopicConfig(
            topic_name=PARENT, perm=6, attributes={"message.type": "LITE", "lite.topic.expiration": "20"}
        )
    )
    subscribe(peer, "PARTIAL_ADD", "old")
    send(peer, "old", b"1")
    popped = pop(bench, peer)
    ack(bench, peer, popped, "old", 0)
    bench.run_for(15 * 60_000, 30_000)
    send(peer, "young")
    assert set(state.store.table.light) == {"%LMQ%$Parent$old", "%LMQ%$Parent$young"}
    bench.run_for(10 * 60_000, 30_000)
    assert set(state.store.table.light) == {"%LMQ%$Parent$young"}
    assert state.offsets.query(GROUP, "%LMQ%$Parent$old", 0) < 0
    peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": PARENT})
    bench.housekeeping()
    assert not state.store.table.light


def test_the_deletion_of_another_topic_looks_at_no_group_and_no_lite_topic(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer, state = bench.peer(), bench.broker.state
    send(peer, "x")
    peer.ask(RequestCode.SEND_MESSAGE_V2, send_ext(f"{PARENT}2"), b"m")
    looked = []
    monkeypatch.setattr(litelife, "bound_topic", lambda config: looked.append(config))
    monkeypatch.setattr(litelife, "parent_and_lite", lambda queue: looked.append(queue))
    assert peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": f"{PARENT}2"}).code == 0
    assert not looked
    assert len(state.store.table.light) == 1


def test_groups_and_topics_are_looked_through_in_slices(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(litelife, "SEEN_AT_ONCE", 1)
    life, state = bench.broker.services.lite.life, bench.broker.state
    for work, count in ((life.groups(), len(state.subscriptions)), (life.minutes(), len(state.topics))):
        assert sum(1 for _ in work) == count


def test_what_tools_are_told(bench: Bench, peer: Peer) -> None:
    subscribe(peer, "PARTIAL_ADD", "a", "b")
    for _ in range(3):
        send(peer, "a")
    popped = pop(bench, peer)
    ack(bench, peer, popped, "a", 0)

    def ask(code: RequestCode, **ext: str) -> dict[str, Any]:
        answer = peer.ask(code, ext)
        assert answer.code == ResponseCode.SUCCESS, answer
        found: dict[str, Any] = json.loads(bytes(answer.body)) if answer.body else {}
        return found

    broker = ask(RequestCode.GET_BROKER_LITE_INFO)
    assert (broker["currentLmqNum"], broker["liteSubscriptionCount"], broker["topicMeta"]) == (
        1,
        2,
        {PARENT: -1},
    )
    assert broker["groupMeta"] == {PARENT: [GROUP]}
    parent = ask(RequestCode.GET_PARENT_TOPIC_INFO, topic=PARENT)
    assert (parent["liteTopicCount"], parent["ttl"], parent["groups"]) == (1, -1, [GROUP])
    topic = ask(RequestCode.GET_LITE_TOPIC_INFO, parentTopic=PARENT, liteTopic="a")
    assert (topic["topicOffset"]["maxOffset"], topic["subscriber"]) == (
        3,
        [{"clientId": "c1", "group": GROUP}],
    )
    client = ask(
        RequestCode.GET_LITE_CLIENT_INFO, parentTopic=PARENT, group=GROUP, clientId="c1", maxCount="10"
    )
    assert (client["liteTopicCount"], len(client["liteTopicSet"])) == (2, 2)
    assert client["lastAccessTime"] == bench.clock.wall_ms
    lag = ask(RequestCode.GET_LITE_GROUP_INFO, group=GROUP, topK="5")
    assert (lag["totalLagCount"], lag["lagCountTopK"][0]["liteTopic"]) == (2, "a")
    one = ask(RequestCode.GET_LITE_GROUP_INFO, group=GROUP, liteTopic="a", topK="5")
    assert one["liteTopicOffsetWrapper"]["consumerOffset"] == 1
    ask(RequestCode.TRIGGER_LITE_DISPATCH, group=GROUP)
    for code, ext in (
        (RequestCode.GET_PARENT_TOPIC_INFO, {"topic": "none"}),
        (RequestCode.GET_LITE_TOPIC_INFO, {"parentTopic": "none", "liteTopic": "a"}),
    ):
        assert peer.ask(code, ext).code == ResponseCode.TOPIC_NOT_EXIST


def test_a_restart_keeps_lite_topics_and_offsets(bench: Bench, peer: Peer) -> None:
    subscribe(peer, "PARTIAL_ADD", "a")
    for number in range(3):
        send(peer, "a", b"a%d" % number)
    popped = pop(bench, peer, most=1)
    ack(bench, peer, popped, "a", 0)
    bench.housekeeping()
    bench.reopen()
    peer = bench.peer()
    subscribe(peer, "PARTIAL_ADD", "a")
    assert bodies(pop(bench, peer)) == [b"a1", b"a2"]


def test_a_kill_keeps_lite_topics_and_offsets(bench: Bench, peer: Peer) -> None:
    """Also one whose queue the checkpoint has never seen, and what was acknowledged before the table was saved."""
    subscribe(peer, "PARTIAL_ADD", "a", "b")
    for number in range(3):
        send(peer, "a", b"a%d" % number)
    popped = pop(bench, peer, most=2)
    for offset in range(2):
        ack(bench, peer, popped, "a", offset)
    bench.run_for(10_000)
    bench.run_jobs()
    send(peer, "a", b"a3")
    send(peer, "b", b"b0")
    for round_ in range(2):
        bench.crash()
        peer = bench.peer()
        subscribe(peer, "PARTIAL_ADD", "a", "b")
        assert sorted(bodies(pop(bench, peer))) == [b"a2", b"a3", b"b0"], round_
        offsets = [bench.store.offsets.max_offset(f"%LMQ%${PARENT}${name}", 0) for name in "ab"]
        assert offsets == [4, 1]
    assert bench.broker.state.topics.get(PARENT) is not None


def test_lags_of_lite_topics_are_those_of_their_parent_for_metrics_that_are_asked_for(bench: Bench) -> None:
    peer = bench.peer()
    subscribe(peer, "COMPLETE_ADD", "a", "b")
    for name in "aab":
        send(peer, name)
    pop(bench, peer)
    bench.broker.state.offsets.commit(GROUP, f"%LMQ%${PARENT}$a", 0, 1)
    bench.broker.state.offsets.commit(GROUP, f"%LMQ%${PARENT}$b", 0, 0)
    bench.clock.advance(2_000)

    def shown(family: str) -> dict[tuple[str, str], float]:
        found: dict[tuple[str, str], float] = {}
        for metric in consumer_metrics(
            bench.broker.state, Families(("C", "broker", "b-a")), bench.clock.now_ms()
        ):
            if metric is not None and metric.name == f"rocketmq_consumer_{family}":
                for each in metric.samples:
                    found[each.labels["topic"], each.labels["consumer_group"]] = each.value
        return found

    families = ("lag_messages", "ready_messages", "lag_latency_milliseconds", "inflight_messages")
    assert all(shown(family) == {} for family in families)
    bench.config.lite_lag_count_metrics_enable = True
    pair = PARENT, GROUP
    assert [shown(family) for family in families] == [{pair: 2.0}, {pair: 2.0}, {}, {}]
    bench.config.lite_lag_latency_metrics_enable = True
    assert [shown(family) for family in families] == [{pair: 2.0}, {pair: 2.0}, {pair: 2_000.0}, {}]
