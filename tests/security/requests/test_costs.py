"""No request holds the loop: whatever its peer chooses, and however large the tables are, between two chances for
others lies a bounded amount of work. Every request code of the broker and of the name server is asked; those whose cost
grows with a table or with the request are asked for the worst of it.

What is measured is the processor time of this thread between two such chances, on tables as large as a peer can make
them, in seconds of a usual machine. The bound is generous: it is broken by work that is not sliced.
"""

from __future__ import annotations

import base64
import gc
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mqspark.broker.group.membership import NOTIFIED_AT_ONCE
from mqspark.broker.pop.parked_pops import EXAMINED_AT_ONCE
from mqspark.broker.savedstate import MAX_REST_MS, SHORT_SAVE_MS
from mqspark.broker.state import groups
from mqspark.broker.state.changes import ANSWERED_AT_ONCE
from mqspark.broker.state.groups import MEMBERS_AT_ONCE
from mqspark.broker.stats.meters import SAMPLE_INTERVAL_MS, Meter
from mqspark.broker.stats.stats import ROWS_AT_ONCE
from mqspark.broker.tables.consumer_offsets import DROPPED_AT_ONCE
from mqspark.filter.tags import Tags
from mqspark.message import MessageQueue
from mqspark.namesrv.namesrv import NameServer
from mqspark.protocol.bodies.body import BODY_SLICE_BYTES, encode_in_slices
from mqspark.protocol.bodies.topic_bodies import (
    RegisterBrokerBody,
    SubscriptionGroupConfig,
    SubscriptionGroupWrapper,
    TopicConfig,
    TopicConfigAndMappingSerializeWrapper,
)
from mqspark.protocol.codes import RequestCode
from mqspark.protocol.command import Command
from mqspark.protocol.headers.cluster_headers import RegisterBrokerRequestHeader
from mqspark.store.offsets import QueueOffsets
from tests.support.frames import encode_register_body
from tests.support.invariants import validate
from tests.support.pace import ProcessorTime
from tests.support.remoting import heartbeat_body, subscription
from tests.support.store_tools import complete
from tests.unit.broker_kit import SEND, Bench, Peer, namesrv_peer, pull_ext, send_ext
from tests.unit.controller_kit import CLUSTER, NAME, ControllerBench
from tests.unit.pop_kit import pop_ext

BOUND_S = 0.25

QUEUES = 32_768
"""Queues of one topic, as a file of RocketMQ may bring it."""
NAMES = 10_000
"""Topics, and groups with an offset of one of them each."""
KEYED = 5_000
"""Messages of one key."""
CROWD = 3_000
"""Groups of one connection, as producer and as consumer."""
CHANGES = 2_000
"""Topics that one connection creates before any is saved."""


def longest_stretch(
    peer: Peer, code: int, ext: dict[str, str] | None, body: bytes
) -> tuple[float, list[Command]]:
    """Processor seconds, and the answers."""
    core, longest = peer.core, 0.0

    def timed(call: Any) -> Any:
        nonlocal longest
        with ProcessorTime() as cost:
            result = call()
        longest = max(longest, cost.seconds)
        return result

    timed(lambda: peer.give(code, ext, body))
    while timed(core.work):
        pass
    timed(core.turn)
    return longest, [command for command in peer.heard() if command.is_response]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    bench = Bench(tmp_path_factory.mktemp("store"), enable_property_filter=True, max_tables_bytes=2 << 30)
    state, peer = bench.broker.state, bench.peer()
    for number in range(NAMES):
        topic, group = f"topic-{number:05}", f"group-{number:05}"
        state.topics.put(TopicConfig(topic_name=topic, read_queue_nums=4, write_queue_nums=4, perm=6))
        state.subscriptions.put(SubscriptionGroupConfig(group_name=group))
        state.offsets.commit(group, topic, 0, 0)
        state.offsets.commit(group, "Wide", 0, 0)
    state.topics.put(TopicConfig(topic_name="Wide", read_queue_nums=QUEUES, write_queue_nums=QUEUES, perm=6))
    state.subscriptions.put(SubscriptionGroupConfig(group_name="CG"))
    for queue_id in range(QUEUES):
        if queue_id % 128 == 0:
            peer.give(SEND, send_ext("Wide", queue_id), b"x")
        state.offsets.commit("CG", "Wide", queue_id, 1)
    for number in range(KEYED):
        peer.give(SEND, send_ext("T", 0, f"KEYS\x01key\x02a\x01{number}\x02"), b"x" * 100)
    bench.broker.turn()
    peer.heard()
    gc.freeze()
    yield bench
    bench.close()


ANYTHING = {
    "topic": "Wide", "group": "CG", "consumerGroup": "CG", "producerGroup": "PG", "groupName": "CG2",
    "clientId": "c", "clientID": "c", "queueId": "0", "offset": "0", "timestamp": "1", "commitOffset": "0",
    "queueOffset": "0", "maxMsgNums": "32", "sysFlag": "4", "subscription": "*", "subVersion": "0",
    "suspendTimeoutMillis": "0", "index": "0", "count": "1000000", "key": "key", "maxNum": "2147483647",
    "beginTimestamp": "0", "endTimestamp": "9223372036854775807", "srcGroup": "CG", "destGroup": "CG3",
    "isForce": "true", "isOrder": "false", "statsName": "TOPIC_PUT_NUMS", "statsKey": "Wide",
    "compareGroup": "CG", "filterGroups": "", "cluster": "C", "clusterName": "C", "brokerName": "b-a",
    "brokerAddr": "127.0.0.1:1", "brokerId": "0", "namespace": "N", "value": "v", "offline": "true",
    "initMode": "0", "invisibleTime": "60000", "pollTime": "0", "bornTime": "0", "order": "false",
}  # fmt: skip
"""Fields of headers for whichever request wants them."""

DEEP = " OR ".join(f"a = '-{number}'" for number in range(200))

WORST: dict[int, Callable[[], list[tuple[dict[str, str], Any]]]] = {
    RequestCode.PULL_MESSAGE: lambda: [
        (pull_ext("T", subscription="a = '-1'", expressionType="SQL92"), None),
        (pull_ext("T", subscription=DEEP, expressionType="SQL92"), None),
        (pull_ext("T", subscription=f"a LIKE '%{'a%' * 500}b'", expressionType="SQL92"), None),
        (pull_ext("T", subscription="(" * 60 + "a = '-1'" + ")" * 60, expressionType="SQL92"), None),
        (pull_ext("T", subscription="||".join(f"t{number}" for number in range(5_000))), None),
    ],
    RequestCode.LOCK_BATCH_MQ: lambda: [
        ({}, {"consumerGroup": "CG", "clientId": "c", "mqSet": [
            {"topic": "Wide", "brokerName": "b", "queueId": number} for number in range(count)]})
        for count in (16_000, 300_000)
    ],
    RequestCode.UNLOCK_BATCH_MQ: lambda: [
        ({}, {"consumerGroup": "CG", "clientId": "c", "mqSet": [
            {"topic": "Wide", "brokerName": "b", "queueId": number} for number in range(16_000)]})
    ],
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: lambda: [
        ({}, {"topicConfigList": [{"topicName": f"n{number}", "perm": 6} for number in range(count)]})
        for count in (9_000, 200_000)
    ],
    RequestCode.DELETE_TOPIC_IN_BROKER_LIST: lambda: [
        ({}, {"topicList": [f"n{number}" for number in range(count)]}) for count in (9_000, 500_000)
    ],
    RequestCode.DELETE_SUBSCRIPTION_GROUP_LIST: lambda: [
        ({}, {"groupNameList": [f"n{number}" for number in range(count)], "cleanOffset": True})
        for count in (9_000, 500_000)
    ],
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: lambda: [
        ({}, {"groupConfigList": [{"groupName": f"n{number}"} for number in range(count)]})
        for count in (9_000, 200_000)
    ],
    RequestCode.HEART_BEAT: lambda: [
        ({}, {"clientID": "c", "producerDataSet": [None] * 3_000_000}),
        ({}, {"clientID": "c", "producerDataSet": [{"groupName": f"p{number}"} for number in range(16_000)]}),
        ({}, {"clientID": "c", "consumerDataSet": [
            {"groupName": f"c{number}", "subscriptionDataSet": []} for number in range(5_000)]}),
        ({}, {"clientID": "c", "consumerDataSet": [{"groupName": "c", "subscriptionDataSet": [
            {"topic": f"t{number}", "subString": "*"} for number in range(16_000)]}]}),
    ],
    RequestCode.BATCH_ACK_MESSAGE: lambda: [
        ({}, {"brokerName": "b-a", "acks": [
            {"c": "CG", "t": "T", "r": "0", "so": 0, "q": 0, "rq": 0, "pt": 1, "it": 60000, "b": "/////w=="}
        ] * 20_000}),
        ({}, {"brokerName": "b-a", "acks": [
            {"c": "CG", "t": "T", "r": "0", "so": 0, "q": 0, "rq": 0, "pt": number, "it": 60000,
             "b": base64.b64encode(b"\xff" * 8_192).decode()} for number in range(1_000)]}),
        ({}, {"brokerName": "b-a", "acks": [
            {"c": "CG", "t": "T", "r": "0", "so": 0, "q": 0, "rq": 0, "pt": number, "it": 60000,
             "b": base64.b64encode(b"\xff\xff" + b"\0" * 8_189 + b"\1").decode()} for number in range(900)]}),
    ],
    RequestCode.LITE_SUBSCRIPTION_CTL: lambda: [
        ({}, {"subscriptionSet": [{"action": action, "clientId": "c", "group": "CG", "topic": "Wide",
            "liteTopicSet": [f"l{number}" for number in range(count)]}]})
        for action, count in (("COMPLETE_ADD", 60_000), ("COMPLETE_REMOVE", 0))
    ],
}  # fmt: skip
"""By code: header and body of requests that are worse than ANYTHING; made when they are sent, since they are large."""


def test_large_tables_are_answered_whole(bench: Bench) -> None:
    """In slices, but as if they were not: nothing is missing, and it is one document."""

    def ask(code: int, ext: dict[str, str] | None = None) -> Command:
        (answer,) = longest_stretch(bench.peer(), code, ext, b"")[1]
        return answer

    stats = ask(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "Wide"})
    assert bytes(stats.body).count(b'"queueId":') == QUEUES
    lags = ask(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "CG", "topic": "Wide"})
    assert bytes(lags.body).count(b'"queueId":') == QUEUES
    configs = json.loads(bytes(ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG).body))
    assert {f"group-{number:05}" for number in range(NAMES)} <= configs["subscriptionGroupTable"].keys()
    assert "dataVersion" in configs
    offsets = json.loads(bytes(ask(RequestCode.GET_ALL_CONSUMER_OFFSET).body))["offsetTable"]
    assert len(offsets["Wide@CG"]) == QUEUES


def test_entries_of_a_queue_are_told_without_a_look_at_all_queues(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = MessageQueue("Wide", "b-a", 128)
    ext = {"topic": queue.topic, "queueId": str(queue.queue_id), "index": "0", "count": "10"}
    assert bench.broker.store.offsets.has_queue(queue.topic, queue.queue_id)
    assert not bench.broker.store.offsets.has_queue(queue.topic, 1)
    monkeypatch.setattr(QueueOffsets, "queues", None)
    assert bench.peer().ask(RequestCode.QUERY_CONSUME_QUEUE, ext).code in (0, 1)


def test_an_answer_too_large_for_a_frame_is_refused_before_it_is_made(bench: Bench) -> None:
    for number in range(40):
        bench.broker.state.offsets.clone(bench.peer().session, "CG", f"group-{number:05}", "Wide")
    answer = bench.peer().ask(RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "false"})
    assert answer.code == 1
    assert "exceeds" in (answer.remark or "")


def test_the_queues_of_a_topic_are_bounded(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    ext = {"topic": "New", "defaultTopic": "TBW102", "writeQueueNums": "4", "perm": "6",
           "topicFilterType": "SINGLE_TAG"}  # fmt: skip
    refused = bench.peer().ask(RequestCode.UPDATE_AND_CREATE_TOPIC, {**ext, "readQueueNums": "8193"})
    assert refused.code == 29
    assert "maxTopicQueueNums" in (refused.remark or "")
    assert bench.peer().ask(RequestCode.UPDATE_AND_CREATE_TOPIC, {**ext, "readQueueNums": "8192"}).code == 0


LAST = (
    RequestCode.DELETE_SUBSCRIPTIONGROUP,
    RequestCode.CLEAN_UNUSED_TOPIC,
    RequestCode.DELETE_TOPIC_IN_BROKER,
    RequestCode.DELETE_SUBSCRIPTION_GROUP_LIST,
    RequestCode.DELETE_TOPIC_IN_BROKER_LIST,
)
"""What they take away the others need."""


def codes() -> list[int]:
    """The codes of the broker, in an order in which they can be asked."""
    names = [*RequestCode]
    return [*sorted(code for code in names if code not in LAST), *LAST]


LONG = (RequestCode.DELETE_SUBSCRIPTION_GROUP_LIST, RequestCode.GET_BROKER_CONSUME_STATS)
"""Half a million groups to delete, and the figures of all groups."""


@pytest.mark.parametrize(
    "code",
    [
        code
        if (code in WORST or place % 3 == 0) and code not in LONG
        else pytest.param(
            code, marks=pytest.mark.slow("all requests; a third, and the worst, are the fast twins")
        )
        for place, code in enumerate(codes())
    ],
    ids=lambda code: RequestCode(code).name,
)
def test_no_request_holds_a_broker(bench: Bench, code: int) -> None:
    for ext, document in [(ANYTHING, None), *WORST.get(code, list)()]:
        body = b"" if document is None else json.dumps(document, separators=(",", ":")).encode()
        longest, _ = longest_stretch(bench.peer(), code, ext, body)
        assert longest < BOUND_S, f"{longest * 1000:.0f} ms"


def registered(name_server: NameServer, peer: Peer) -> None:
    table = {
        f"topic-{number:05}": TopicConfig(
            topic_name=f"topic-{number:05}", read_queue_nums=4, write_queue_nums=4
        )
        for number in range(NAMES)
    }
    wrapper = TopicConfigAndMappingSerializeWrapper(topic_config_table=table)
    header = RegisterBrokerRequestHeader(
        broker_name="b-a",
        broker_addr="127.0.0.1:1",
        cluster_name="C",
        broker_id=0,
        ha_server_addr="127.0.0.1:2",
    )
    body = encode_register_body(RegisterBrokerBody(topic_config_serialize_wrapper=wrapper))
    assert peer.ask(RequestCode.REGISTER_BROKER, header, body).code == 0


BODIES: tuple[Callable[[], bytes], ...] = (
    lambda: b"",
    lambda: b'{"queueDatas":[' + b",".join([b'{"brokerName":"b-a","perm":6}'] * 400_000) + b"]}",
    lambda: b'{"syncStateSet":[' + b",".join(b"%d" % number for number in range(1_500_000)) + b"]}",
    lambda: json.dumps([f"b-{number}" for number in range(1_000_000)]).encode(),
    lambda: b"{" + b'"a":' * 3_000_000 + b"1}",
)
"""Bytes of the largest frames, for requests that read a few names or numbers."""


def slow_requests(peer: Peer, handlers: Iterable[int], ext: dict[str, str]) -> dict[str, float]:
    slow = {}
    for make in BODIES:
        body = make()
        for code in sorted(handlers):
            longest, _ = longest_stretch(peer, code, ext, body)
            if longest >= BOUND_S:
                slow[f"{RequestCode(code).name} {bytes(body[:20])!r}"] = longest
    return slow


def test_no_request_holds_a_name_server() -> None:
    name_server, _, peer = namesrv_peer()
    registered(name_server, peer)
    assert not slow_requests(peer, name_server.handlers, {**ANYTHING, "topic": "topic-00001"})


def test_no_request_holds_a_controller(tmp_path: Path) -> None:
    bench = ControllerBench(tmp_path)
    bench.join(1)
    bench.elect(1)
    ext = {**ANYTHING, "brokerName": NAME, "clusterName": CLUSTER, "brokerId": "1", "masterBrokerId": "1"}
    ext |= {"masterEpoch": "1", "knownSet": ";".join("1" * 90_000)}
    assert not slow_requests(bench.operator, bench.core.handlers, ext)


PARKED = 2_000


def parked(bench: Bench, **more: str) -> Peer:
    """A peer whose pulls wait for the first message of T."""
    bench.broker.state.topics.put(TopicConfig(topic_name="T", read_queue_nums=1, write_queue_nums=1, perm=6))
    peer = bench.peer()
    for _ in range(PARKED):
        peer.give_pull("T", **{"sysFlag": "6", **more})
    assert bench.broker.pulls.parked.count == PARKED
    return peer


@pytest.mark.parametrize(
    ("more", "most"), [({}, 64 + 16), ({"subscription": "a = '1'", "expressionType": "SQL92"}, 1)]
)
def test_parked_pulls_that_one_message_wakes_are_served_between_turns(
    tmp_path: Path, more: dict[str, str], most: int
) -> None:
    bench = Bench(tmp_path, enable_property_filter=True)
    peer = parked(bench, **more)
    bench.peer().give(SEND, send_ext("T", 0, "a\x011\x02"), b"x")
    bench.broker.turn()
    answered = len(peer.heard())
    assert 0 < answered <= most
    while bench.broker.work():
        more_answers = len(peer.heard())
        assert more_answers <= 16
        answered += more_answers
    assert answered + len(peer.heard()) == PARKED
    assert bench.broker.pulls.parked.count == 0


def test_parked_pulls_whose_time_is_up_at_once_are_answered_between_turns(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    peer = parked(bench)
    bench.clock.advance(20_000)
    bench.broker.tick()
    answered = len(peer.heard())
    assert 0 < answered <= 64 + 16
    while bench.broker.work():
        pass
    assert answered + len(peer.heard()) == PARKED


def test_woken_pulls_of_a_peer_that_left_cost_nothing_and_those_that_find_nothing_wait_on(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path, enable_property_filter=True)
    gone = parked(bench, subscription="a = '1'", expressionType="SQL92")
    patient = bench.peer()
    patient.give_pull("T", sysFlag="6", subscription="a = '2'", expressionType="SQL92")
    gone.disconnect()
    for number in ("1", "2"):
        bench.peer().give(SEND, send_ext("T", 0, f"a\x01{number}\x02"), b"x")
        bench.broker.turn()
        while bench.broker.work():
            pass
        assert len(patient.heard()) == (number == "2")
    assert bench.broker.pulls.parked.count == 0


def test_members_that_join_over_one_connection_are_told_once_a_turn(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    peer = bench.peer()
    for number in range(200):
        body = heartbeat_body(f"c{number}", {"CG": [subscription("T")]})
        peer.give(RequestCode.HEART_BEAT, {}, body)
    bench.broker.turn()
    heard = peer.heard()
    assert len([command for command in heard if command.is_response]) == 200
    assert len([command for command in heard if not command.is_response]) == 1


def parked_pops(bench: Bench, groups: int, **more: str) -> list[Peer]:
    """One of each group, by a connection of its own."""
    bench.broker.state.topics.put(TopicConfig(topic_name="T", read_queue_nums=1, write_queue_nums=1, perm=6))
    peers = [bench.peer() for _ in range(groups)]
    for number, peer in enumerate(peers):
        peer.give(
            RequestCode.POP_MESSAGE,
            pop_ext(bench, topic="T", consumerGroup=f"CG{number}", pollTime="15000", **more),
        )
    return peers


def heard(peers: list[Peer]) -> int:
    return sum(len(peer.heard()) for peer in peers)


def test_parked_pops_that_one_message_wakes_are_served_between_turns(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    peers = parked_pops(bench, 100)
    bench.peer().give(SEND, send_ext("T", 0), b"x")
    bench.broker.turn()
    answered = heard(peers)
    assert answered <= 8
    while bench.broker.work():
        bench.broker.turn()
        more_answers = heard(peers)
        assert more_answers <= 8
        answered += more_answers
    bench.broker.turn()
    assert answered + heard(peers) == len(peers)


def test_parked_pops_whose_time_is_up_at_once_are_answered_between_turns(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    peers = parked_pops(bench, 100)
    peers[50].disconnect()
    bench.clock.advance(20_000)
    bench.broker.tick()
    answered = heard(peers)
    assert 0 < answered <= 8
    while bench.broker.work():
        pass
    assert answered + heard(peers) == len(peers) - 1


def test_of_parked_pops_a_tick_looks_at_few(tmp_path: Path) -> None:
    """Whether many are over or none: those that wait longer are not looked at."""
    bench = Bench(tmp_path)
    count = 3 * EXAMINED_AT_ONCE
    peers = parked_pops(bench, count)
    parked = bench.broker.pop.pops.parked
    bench.clock.advance(15_000)
    bench.broker.tick()
    assert parked.count >= count - EXAMINED_AT_ONCE - 1
    while bench.broker.work_waits:
        before = parked.count
        bench.broker.work()
        assert before - parked.count <= EXAMINED_AT_ONCE
    bench.broker.turn()
    assert (heard(peers), parked.count) == (count, 0)
    validate(parked)
    bench.close()


def test_behind_many_pops_of_closed_connections_nobody_waits_for_another_tick(tmp_path: Path) -> None:
    """However many they are, no turn forgets more than some."""
    bench = Bench(tmp_path)
    first, *others = parked_pops(bench, 3 * EXAMINED_AT_ONCE)
    parked = bench.broker.pop.pops.parked
    for peer in others:
        peer.disconnect()
    bench.clock.advance(20_000)
    bench.broker.tick()
    steps = 0
    while bench.broker.work_waits:
        before, steps = parked.count, steps + 1
        bench.broker.work()
        assert before - parked.count <= EXAMINED_AT_ONCE
    bench.broker.turn()
    assert (heard([first]), parked.count) == (1, 0)
    assert steps > len(others) // EXAMINED_AT_ONCE
    bench.close()


def crowded(tmp_path: Path) -> tuple[Bench, Peer]:
    """A connection in thousands of groups of both kinds."""
    bench = Bench(tmp_path)
    peer = bench.peer()
    for first in range(0, CROWD, 1_000):
        names = [f"group-{number}" for number in range(first, first + 1_000)]
        heartbeat = {
            "clientID": "c",
            "producerDataSet": [{"groupName": name} for name in names],
            "consumerDataSet": [{"groupName": name, "subscriptionDataSet": []} for name in names],
        }
        assert peer.ask(RequestCode.HEART_BEAT, {}, json.dumps(heartbeat).encode()).code == 0
    return bench, peer


def left(bench: Bench) -> int:
    validate(bench.broker)
    clients = bench.broker.state.clients
    return len(clients.producers()) + len(list(clients.consumers()))


def emptied_between_turns(bench: Bench, before: int) -> None:
    is_more = True
    while is_more:
        after = left(bench)
        assert before - after <= MEMBERS_AT_ONCE
        before, is_more = after, bench.broker.work()
    assert before - left(bench) <= MEMBERS_AT_ONCE
    assert left(bench) == 0


@pytest.mark.slow("thousands of groups; members of a large group are the fast twin")
def test_the_groups_of_a_lost_connection_are_left_between_turns(tmp_path: Path) -> None:
    bench, peer = crowded(tmp_path)
    before = left(bench)
    assert before == 2 * CROWD
    peer.disconnect()
    emptied_between_turns(bench, before)
    bench.close()


@pytest.mark.slow("thousands of members; members of a large group are the fast twin")
def test_the_members_whose_time_is_over_are_removed_between_turns(tmp_path: Path) -> None:
    bench, _ = crowded(tmp_path)
    before = left(bench)
    bench.clock.advance(600_000)
    bench.broker.tick()
    emptied_between_turns(bench, before)
    bench.close()


def test_a_client_that_comes_back_at_once_stays_in_the_groups_that_its_lost_connection_leaves(
    tmp_path: Path,
) -> None:
    bench, peer = crowded(tmp_path)
    peer.disconnect()
    again = bench.peer()
    names = [{"groupName": f"group-{number}"} for number in range(CROWD)]
    body = json.dumps({"clientID": "c", "producerDataSet": names}).encode()
    assert again.ask(RequestCode.HEART_BEAT, {}, body).code == 0
    while bench.broker.work():
        pass
    assert left(bench) == CROWD
    bench.close()


def test_answers_of_one_save_are_sent_between_turns_and_waiting_ones_cost_nothing(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    peer = bench.peer()
    create = {"defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6",
              "topicFilterType": "SINGLE_TAG"}  # fmt: skip
    for number in range(CHANGES):
        peer.give(RequestCode.UPDATE_AND_CREATE_TOPIC, {**create, "topic": f"topic-{number}"})
    looked = 0
    with pytest.MonkeyPatch.context() as patch:
        now_ms = bench.clock.monotonic_ms

        def monotonic_ms() -> int:
            nonlocal looked
            looked += 1
            return now_ms()

        patch.setattr(bench.clock, "monotonic_ms", monotonic_ms)
        bench.broker.tick()
    assert looked < 100
    assert not peer.heard()
    complete(bench.broker.jobs())
    answered = len(peer.heard())
    assert 0 < answered <= ANSWERED_AT_ONCE
    while bench.broker.work():
        more = len(peer.heard())
        assert more <= ANSWERED_AT_ONCE
        answered += more
    assert answered + len(peer.heard()) == CHANGES


@pytest.mark.parametrize(("took_ms", "rest_ms"), [(SHORT_SAVE_MS, 0), (100, 300), (5_000, MAX_REST_MS)])
def test_changes_during_the_rest_after_a_long_save_are_saved_together(
    tmp_path: Path, took_ms: int, rest_ms: int
) -> None:
    bench = Bench(tmp_path)

    def change(number: int) -> None:
        bench.broker.state.topics.put(TopicConfig(topic_name=f"T{number}", perm=6))

    def save() -> int:
        jobs = bench.broker.jobs()
        bench.clock.advance(took_ms)
        complete(jobs)
        return len(jobs)

    save()
    bench.clock.advance(MAX_REST_MS)
    assert not bench.broker.jobs_due
    change(0)
    assert bench.broker.jobs_due
    assert save()
    assert not bench.broker.jobs_due
    if rest_ms:
        for number in range(1, 100):
            change(number)
            assert not bench.broker.jobs_due
        bench.clock.advance(rest_ms - 1)
        assert not bench.broker.jobs_due
        bench.clock.advance(1)
    else:
        change(1)
    assert bench.broker.jobs_due
    save()
    assert not bench.broker.jobs_due


@pytest.mark.parametrize(
    "code", [RequestCode.GET_ALL_TOPIC_CONFIG, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG]
)
def test_a_whole_table_is_encoded_between_turns(bench: Bench, code: int) -> None:
    peer = bench.peer()
    peer.give(code)
    slices = 0
    while bench.broker.work():
        slices += 1
    assert slices >= NAMES // 512
    assert max(map(len, peer.session.out)) < 3 * BODY_SLICE_BYTES  # ten megabytes are never copied at once
    assert len(peer.heard()) == 1


def test_encoding_a_whole_table_makes_no_object_for_each_row_at_once(bench: Bench) -> None:
    """So many at once would set off the garbage collector in the middle of a slice."""
    table = {f"topic-{number}": number for number in range(100_000)}
    body = SubscriptionGroupWrapper(forbidden_table={}, subscription_group_table=table)  # type: ignore[arg-type]
    collections = [0]

    def collected(phase: str, info: dict[str, int]) -> None:
        collections[-1] += phase == "start"

    gc.callbacks.append(collected)
    try:
        collections.extend(0 for _ in encode_in_slices(body))
    finally:
        gc.callbacks.remove(collected)
    assert len(collections) > 100
    assert max(collections) <= 3


def test_statistics_are_sampled_between_turns(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    state = bench.broker.state
    for number in range(CROWD):
        topic = state.topics.put(TopicConfig(topic_name=f"T{number}", perm=6))
        topic.counted = 1
        state.stats.got(topic.name, "CG", 1, 10)
    noted: list[int] = [0]
    with pytest.MonkeyPatch.context() as patch:
        note = Meter.note

        def count(meter: Meter, now_ms: int, total: int, tick: int) -> None:
            noted[-1] += 1
            note(meter, now_ms, total, tick)

        patch.setattr(Meter, "note", count)
        bench.clock.advance(SAMPLE_INTERVAL_MS)
        bench.broker.tick()
        noted.append(0)
        while bench.broker.work():
            noted.append(0)
    assert max(noted) <= 4 * ROWS_AT_ONCE
    assert sum(noted) >= 4 * CROWD
    assert state.stats.meter("GROUP_GET_NUMS", f"T{CROWD - 1}@CG") is not None
    for number in range(CROWD):
        state.topics.remove(f"T{number}")
    bench.clock.advance(SAMPLE_INTERVAL_MS)
    bench.broker.tick()
    slices = 1
    while bench.broker.work():
        slices += 1
    assert slices >= 4 * CROWD // ROWS_AT_ONCE
    assert not state.stats.gets
    assert state.stats.meter("GROUP_GET_NUMS", f"T{CROWD - 1}@CG") is None


def test_subscriptions_of_one_heartbeat_are_read_between_turns(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    peer = bench.peer()
    tags = "||".join(f"tag-{number}" for number in range(100))
    subscriptions = [{"topic": f"T{number}", "subString": tags} for number in range(1_000)]
    consumer = {"groupName": "CG", "subscriptionDataSet": subscriptions}
    body = json.dumps({"clientID": "c", "consumerDataSet": [consumer]}).encode()
    made: list[int] = [0]
    with pytest.MonkeyPatch.context() as patch:
        parse = groups.parse_tags

        def count(expression: str) -> Tags:
            made[-1] += 1
            return parse(expression)

        patch.setattr(groups, "parse_tags", count)
        peer.give(RequestCode.HEART_BEAT, {}, body)
        while bench.broker.work():
            made.append(0)
    assert peer.heard()[0].code == 0
    assert sum(made) == len(subscriptions)
    assert max(made) <= 50
    group = bench.broker.state.clients.consumer("CG")
    assert group is not None
    assert len(group.subscriptions) == len(subscriptions)
    validate(bench.broker)


@pytest.mark.parametrize(
    "subscription",
    [
        {"subString": "x" * (128 * 1024 + 1)},
        {"subString": "a", "codeSet": [1] * 20_000},
        {"subString": "a", "tagsSet": ["t"] * 20_000},
    ],
)
def test_a_subscription_that_takes_long_to_read_is_refused(
    tmp_path: Path, subscription: dict[str, Any]
) -> None:
    bench = Bench(tmp_path)
    consumer = {"groupName": "CG", "subscriptionDataSet": [{"topic": "T", **subscription}]}
    body = json.dumps({"clientID": "c", "consumerDataSet": [consumer]}).encode()
    answer = bench.peer().ask(RequestCode.HEART_BEAT, {}, body)
    assert answer.code == 1
    assert "the limits are" in (answer.remark or "")


@pytest.mark.parametrize("is_topic", [True, False])
def test_offsets_of_a_topic_or_group_are_removed_between_turns(tmp_path: Path, is_topic: bool) -> None:
    bench = Bench(tmp_path)
    state = bench.broker.state
    if is_topic:
        state.topics.put(TopicConfig(topic_name="Gone", read_queue_nums=4, write_queue_nums=4, perm=6))
    pairs = [
        ("Gone" if is_topic else f"T{number}", f"G{number}" if is_topic else "Gone")
        for number in range(CROWD)
    ]
    for topic, group in (*pairs, ("Kept", "CG")):
        state.offsets.commit(group, topic, 0, 1)
    peer = bench.peer()
    if is_topic:
        peer.give(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "Gone"})
    else:
        peer.give(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "Gone", "cleanOffset": "true"})
    before, is_more = CROWD + 1, True
    while is_more:
        # What has begun is completed although its peer has gone.
        peer.session.open = state.topics.get("Gone") is not None
        after = len(state.offsets.pairs())
        assert before - after <= DROPPED_AT_ONCE
        before, is_more = after, bench.broker.work()
    assert list(state.offsets.pairs()) == [("Kept", "CG")]


def test_members_of_a_large_group_are_told_between_turns(tmp_path: Path) -> None:
    bench = Bench(tmp_path)

    def join(number: int) -> Peer:
        peer = bench.peer()
        body = heartbeat_body(f"c{number}", {"CG": [subscription("T")]})
        peer.give(RequestCode.HEART_BEAT, {}, body)
        return peer

    peers = [join(number) for number in range(2 * NOTIFIED_AT_ONCE + 100)]
    bench.broker.turn()
    while bench.broker.work():
        pass
    heard(peers)
    peers.append(join(len(peers)))
    peers[-1].heard()
    bench.broker.turn()
    told = heard(peers)
    assert 0 < told <= NOTIFIED_AT_ONCE
    while bench.broker.work():
        more = heard(peers)
        assert more <= NOTIFIED_AT_ONCE
        told += more
    assert told + heard(peers) == len(peers)
