"""A peer that makes a table or a cache grow: with groups, topics, tags, keys, offsets that nobody needs. Every one has
a bound in bytes; what has no room is refused with a code and a remark that names the setting, and what leaves frees its
room.

The bounds are made small here, so that they are reached soon; the first test shows that the ones by default hold what a
large broker needs.
"""

from __future__ import annotations

import gc
import json
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from mqspark.base.bounded import (
    FORGOTTEN_AT_ONCE,
    MEMOS,
    Bounded,
    Ledger,
    Memo,
    TableBudget,
    Tables,
    text_bytes,
    weigh,
)
from mqspark.broker.config import BrokerConfig
from mqspark.broker.state.groups import ClientGroups
from mqspark.broker.state.locks import QueueLocks
from mqspark.broker.stats.stats import Stats
from mqspark.broker.tables.consumer_filters import ConsumerFilters
from mqspark.broker.tables.consumer_offsets import ConsumerOffsets
from mqspark.broker.tables.subscriptions import SubscriptionGroups
from mqspark.broker.tables.topics import Topics
from mqspark.errors import TableFull
from mqspark.message import MessageQueue
from mqspark.namesrv.config import NamesrvConfig
from mqspark.protocol import headertemplates
from mqspark.protocol.bodies.client_bodies import ConsumerData, SubscriptionData
from mqspark.protocol.bodies.topic_bodies import TopicConfig
from mqspark.protocol.codes import RequestCode as Code
from mqspark.protocol.codes import ResponseCode
from mqspark.protocol.headers.client_headers import AckMessageRequestHeader
from mqspark.protocol.session import Session
from mqspark.protocol.slices import finished
from mqspark_server.proxy import messaging_pb2 as pb
from tests.support.clocks import ManualClock
from tests.support.remoting import heartbeat_body, subscription, topic_fields
from tests.unit.broker_kit import Bench, Peer, namesrv_peer, pull_ext, send_ext

MIB = 1 << 20
BOUND = MIB // 4


@pytest.fixture
def benches(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(**settings: Any) -> Bench:
        made.append(Bench(tmp_path, **settings))
        return made[-1]

    yield make
    for bench in made:
        bench.close()


def table(tables: Tables, name: str) -> Bounded:
    (found,) = [one for one in tables if one.name == name]
    return found


def make_topic(peer: Peer, name: str = "T", queues: int = 8) -> None:
    assert peer.ask(Code.UPDATE_AND_CREATE_TOPIC, topic_fields(name, queues, attributes="")).code == 0


def lock_body(number: int) -> bytes:
    queues = [
        {"topic": f"{number:06d}{queue:04d}{'t' * 80}", "brokerName": "b" * 80, "queueId": queue}
        for queue in range(64)
    ]
    return json.dumps({"consumerGroup": f"g{number}", "clientId": f"c{number}", "mqSet": queues}).encode()


# --- what large brokers need --------------------------------------------------------------------------------


def session(number: int) -> Session:
    return Session(number, "127.0.0.1", 40_000, [])


def test_the_bounds_by_default_have_room_for_a_large_broker() -> None:
    """100,000 clients, 60,000 topics and groups with eight queues each. A hundredth is made and weighed."""
    config, clock, part = BrokerConfig(), ManualClock(), 100
    clients = ClientGroups(config, clock, ConsumerFilters(config, clock), lambda group: None)
    for number in range(100_000 // part):
        client_id = f"10.123.{number // 256}.{number % 256}@{number}#123456789012345"
        subscription = SubscriptionData(topic=f"topic-name-{number % 600}", sub_string="TagA || TagB || TagC")
        data = ConsumerData(group_name=f"consumer-group-{number % 600}", subscription_data_set=[subscription])
        clients.consume(data, client_id, session(number), 0, 479, notify=False)
        clients.produce(f"producer-group-{number % 600}", client_id, session(number), 0, 479)
    topics, groups = Topics(config, clock), SubscriptionGroups(config, clock)
    offsets, locks, stats = ConsumerOffsets(clock, version_step=500), QueueLocks(config, clock), Stats(clock)
    for number in range(60_000 // part):
        topic = topics.put(TopicConfig(topic_name=f"the-name-of-a-topic-{number}"))
        topic.counted = 1
        group = f"the-name-of-a-group-{number}"
        assert groups.find(group, session(number)) is not None
        for queue_id in range(8):
            offsets.commit(group, topic.name, queue_id, 10**9)
            offsets.pulled(session(number), group, topic.name, queue_id, 10**9)
        stats.got(topic.name, group, 1, 1000)
        queues = [MessageQueue(topic.name, "broker-a", queue_id) for queue_id in range(8)]
        if number % 4 == 0:
            locks.lock(group, "10.123.123.123@12345#123456789012345", queues)
    finished(stats.sample(topics, topics.is_stored))
    for ledger in (one.ledger for one in (clients, topics, groups, offsets, locks, stats)):
        assert 0 < ledger.bytes * part < ledger.bound, ledger.name
        assert ledger.refused == 0
    sizes = [one.ledger.bytes * part for one in (clients, topics, groups, offsets, locks, stats)]
    assert sum(sizes) + max(sizes) < config.tables_bound(8 << 30), "on a machine of 8 GiB"


# --- tables that refuse -------------------------------------------------------------------------------------


class Attack(NamedTuple):
    setting: str
    table: str
    request: Callable[[int], tuple[int, Mapping[str, str] | None, bytes]]
    """The number of the request to its code, header and body."""


def produce(client: str, *groups: str) -> tuple[int, None, bytes]:
    return Code.HEART_BEAT, None, heartbeat_body(client, producers=groups)


def subscribe(number: int, words: str, **more: object) -> tuple[int, None, bytes]:
    wanted = subscription("T", words, **more)
    return Code.HEART_BEAT, None, heartbeat_body(f"c{number}", {f"G{number}": [wanted]})


def expression(number: int) -> str:
    return "||".join(f"tag{number}x{each}" for each in range(2_000))


def settings_of_a_group(number: int) -> bytes:
    subscriptions = [{"topic": "t" * 100, "expression": "x" * 10_000, "version": 1}]
    return json.dumps({"groupName": f"g{number}", "subscriptionDataSet": subscriptions}).encode()


def request_mode(number: int) -> bytes:
    mode = {"topic": "T", "consumerGroup": f"G{number}", "mode": "POP", "popShareQueueNum": 1}
    return json.dumps(mode).encode()


GROUPS, CLIENTS = ("max_group_table_bytes", "groups"), ("max_client_table_bytes", "clients")
ATTACKS = {
    "locks of queues": Attack(
        "max_lock_table_bytes", "queueLocks", lambda n: (Code.LOCK_BATCH_MQ, None, lock_body(n))
    ),
    "groups made by pulls": Attack(
        *GROUPS, lambda n: (Code.PULL_MESSAGE, pull_ext(consumerGroup=f"{n:06d}" + "g" * 100), b"")
    ),
    "forbidden topics": Attack(
        *GROUPS,
        lambda n: (
            Code.UPDATE_AND_GET_GROUP_FORBIDDEN,
            {"group": "CG", "topic": f"{n:06d}" + "t" * 100, "readable": "false"},
            b"",
        ),
    ),
    "settings of groups": Attack(
        *GROUPS, lambda n: (Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, settings_of_a_group(n))
    ),
    "offsets of groups": Attack(
        "max_offset_table_bytes",
        "offsets",
        lambda n: (
            Code.UPDATE_CONSUMER_OFFSET,
            {"consumerGroup": f"G{n // 8}", "topic": "T", "queueId": str(n % 8), "commitOffset": "1"},
            b"",
        ),
    ),
    "producer groups of one connection": Attack(
        *CLIENTS, lambda n: produce("c", *(f"{n:06d}{group:06d}" for group in range(100)))
    ),
    "client ids": Attack(*CLIENTS, lambda n: produce(f"{n:06d}" + "c" * 200, "P")),
    "subscriptions with long expressions": Attack(*CLIENTS, lambda n: subscribe(n, expression(n))),
    "subscriptions with codes": Attack(
        *CLIENTS, lambda n: subscribe(n, "a", codeSet=list(range(n, n + 500)))
    ),
    "parked pulls with many tags": Attack(
        "max_parked_bytes",
        "parkedPulls",
        lambda n: (Code.PULL_MESSAGE, pull_ext(sysFlag="6", subscription=expression(n)), b""),
    ),
    "topics": Attack(
        "max_topic_table_bytes",
        "topics",
        lambda n: (Code.SEND_MESSAGE_V2, send_ext(f"{n:06d}" + "t" * 100), b"x"),
    ),
    "request modes": Attack(
        "max_group_table_bytes",
        "requestModes",
        lambda n: (Code.SET_MESSAGE_REQUEST_MODE, None, request_mode(n)),
    ),
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow("a table of one group; that of groups is the fast twin"))
        if name == "forbidden topics"
        else name
        for name in ATTACKS
    ],
)
def test_a_full_table_refuses_what_is_new_and_keeps_what_it_has(
    name: str, benches: Callable[..., Bench]
) -> None:
    attack = ATTACKS[name]
    bench = benches(**{attack.setting: 16 * MIB})
    peer = bench.peer()
    make_topic(peer)
    assert peer.ask(Code.PULL_MESSAGE, pull_ext()).code == ResponseCode.PULL_NOT_FOUND
    if attack.table in ("offsets", "requestModes"):
        for number in range(800):
            assert bench.broker.state.subscriptions.find(f"G{number}", peer.session) is not None
    ledger = table(bench.broker.tables, attack.table)
    setattr(bench.config, attack.setting, ledger.bytes + BOUND)
    first_request = attack.request(0)

    tracemalloc.start()
    try:
        before, answer, count = tracemalloc.get_traced_memory()[0], None, 0
        while answer is None or answer.code != ResponseCode.SYSTEM_BUSY:
            peer.give(*attack.request(count))
            while bench.broker.work():
                pass
            bench.broker.turn()
            answer = next(iter(peer.heard()), None)
            count += 1
            assert count < 3_000
        gc.collect()  # what circles hold is not kept
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()

    assert answer.remark is not None
    assert f"the table {attack.table} is full" in answer.remark
    assert ledger.refused > 0
    assert BOUND // 2 < ledger.bytes <= ledger.bound
    # A memo or two may have grown, too, and the store has what was sent.
    assert grown < 2 * BOUND + 2 * MIB
    # What is there is served as ever.
    peer.give(*first_request)
    bench.broker.turn()
    again = next(iter(peer.heard()), None)
    if again is not None:  # neither parked nor waiting for its file
        assert again.code in (0, ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_OFFSET_MOVED)


def test_a_lost_connection_frees_what_its_heartbeats_took(benches: Callable[..., Bench]) -> None:
    bench = benches()
    ledger = bench.broker.state.clients.ledger
    for _ in range(3):
        peer = bench.peer()
        tags = [
            {"topic": f"T{n}", "subString": "a||b", "codeSet": [1, 2], "subVersion": n} for n in range(50)
        ]
        body = heartbeat_body("c", {"G": tags, "G2": tags[:1]}, producers=["P1", "P2"])
        assert peer.ask(Code.HEART_BEAT, None, body).code == 0
        body = heartbeat_body("c", {"G": tags[10:]}, producers=["P3"])
        assert peer.ask(Code.HEART_BEAT, None, body).code == 0
        unregister = {"clientID": "c", "producerGroup": "P1", "consumerGroup": "G2"}
        assert peer.ask(Code.UNREGISTER_CLIENT, unregister).code == 0
        assert ledger.bytes > 10_000
        peer.disconnect()
        assert (ledger.bytes, ledger.entries) == (0, 0)


def test_dead_locks_and_unlocked_queues_free_their_room(benches: Callable[..., Bench]) -> None:
    bench = benches()
    ledger = bench.broker.state.locks.ledger
    peer = bench.peer()
    for number in range(3):
        assert peer.ask(Code.LOCK_BATCH_MQ, None, lock_body(number)).code == 0
    assert peer.ask(Code.UNLOCK_BATCH_MQ, None, lock_body(1)).code == 0
    assert ledger.entries == 2 * 65
    bench.run_for(90_000, step_ms=1_000)
    assert (ledger.bytes, ledger.entries) == (0, 0)


def test_deleted_topics_and_groups_free_their_room(benches: Callable[..., Bench]) -> None:
    bench = benches()
    peer = bench.peer()
    state = bench.broker.state
    ledgers = (state.topics.ledger, state.subscriptions.ledger, state.offsets.ledger)
    before = [(one.bytes, one.entries) for one in ledgers]
    make_topic(peer)
    assert peer.ask(Code.PULL_MESSAGE, pull_ext(sysFlag="5", commitOffset="3")).code != 0
    assert peer.ask(Code.PULL_MESSAGE, pull_ext(sysFlag="5", commitOffset="3", queueId="7")).code != 0
    forbidden = {"group": "CG", "topic": "T", "readable": "false"}
    assert peer.ask(Code.UPDATE_AND_GET_GROUP_FORBIDDEN, forbidden).code == 0
    assert all(one.bytes > size for one, (size, _) in zip(ledgers, before, strict=True))
    assert peer.ask(Code.DELETE_TOPIC_IN_BROKER, {"topic": "T"}).code == 0
    assert peer.ask(Code.DELETE_SUBSCRIPTIONGROUP, {"groupName": "CG", "cleanOffset": "true"}).code == 0
    assert [(one.bytes, one.entries) for one in ledgers] == before


def test_pulls_that_leave_free_the_filters_that_they_kept(benches: Callable[..., Bench]) -> None:
    bench = benches()
    make_topic(peer := bench.peer())
    ledger = bench.broker.pulls.parked.ledger
    expression = "||".join(f"x{i}" for i in range(1_000))
    for _ in range(2):
        for words in (expression, expression, "other", "*"):
            peer.give(Code.PULL_MESSAGE, pull_ext(sysFlag="6", subscription=words))
        bench.broker.turn()
        assert ledger.entries == 4 + 2  # a filter is weighed once, and everything is none
        bench.run_for(20_000)
        assert len(peer.heard()) == 4
        assert (ledger.bytes, ledger.entries) == (0, 0)


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"topic": "unknown"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"consumerGroup": "unknown"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
        ({"queueId": "8"}, ResponseCode.INVALID_PARAMETER),
        ({"queueId": "2147483647"}, ResponseCode.INVALID_PARAMETER),
        ({"queueId": "-1"}, ResponseCode.INVALID_PARAMETER),
    ],
    ids=str,
)
def test_offsets_of_what_is_not_there_are_refused(
    wrong: dict[str, str], code: int, benches: Callable[..., Bench]
) -> None:
    bench = benches()
    make_topic(peer := bench.peer())
    peer.ask(Code.PULL_MESSAGE, pull_ext())
    header = {"consumerGroup": "CG", "topic": "T", "queueId": "7", "commitOffset": "1"}
    assert peer.ask(Code.UPDATE_CONSUMER_OFFSET, header).code == 0
    before = bench.broker.state.offsets.ledger.bytes
    assert peer.ask(Code.UPDATE_CONSUMER_OFFSET, {**header, **wrong}).code == code
    assert bench.broker.state.offsets.ledger.bytes == before


def test_the_name_server_refuses_keys_that_have_no_room() -> None:
    config = NamesrvConfig(max_kv_table_bytes=BOUND)
    core, _, peer = namesrv_peer(config)
    value = "v" * 30_000
    answers = [
        peer.ask(Code.PUT_KV_CONFIG, {"namespace": f"n{n % 3}", "key": f"k{n}", "value": value})
        for n in range(100)
    ]
    codes = [answer.code for answer in answers]
    assert codes == [0] * codes.count(0) + [ResponseCode.SYSTEM_BUSY] * (100 - codes.count(0))
    assert BOUND // 2 < codes.count(0) * 30_000 < BOUND
    assert "maxKvTableBytes" in (answers[-1].remark or "")
    assert peer.ask(Code.PUT_KV_CONFIG, {"namespace": "n0", "key": "k0", "value": "short"}).code == 0
    for n in range(100):
        peer.ask(Code.DELETE_KV_CONFIG, {"namespace": f"n{n % 3}", "key": f"k{n}"})
    assert table(core.tables, "kv").bytes < 2_000


def test_an_operator_finds_the_tables_in_the_runtime_info(benches: Callable[..., Bench]) -> None:
    bench = benches()
    rows = json.loads(bench.peer().ask(Code.GET_BROKER_RUNTIME_INFO).body)["table"]
    assert {f"mqsparkTable_{one.name}" for one in bench.broker.tables} <= rows.keys()


# --- statistics: what has no room is only counted in the totals ---------------------------------------------


def test_rows_without_room_are_counted_in_the_totals() -> None:
    stats = Stats(ManualClock(), max_bytes=lambda: 10_000)
    for number in range(1_000):
        stats.got("T", f"G{number}", 1, 10)
        stats.was_sent_back("T", f"G{number}")
    assert stats.get_messages == 1_000
    assert len(stats.gets) + len(stats.sent_back) < 40
    assert stats.ledger.bytes <= 10_000
    for number in range(1_000):
        finished(stats.forget_group(f"G{number}"))
    assert stats.ledger.bytes == 0


# --- caches -------------------------------------------------------------------------------------------------


def test_pulls_with_25000_tags_leave_little_behind(benches: Callable[..., Bench]) -> None:
    bench = benches()
    make_topic(peer := bench.peer())
    peer.ask(Code.PULL_MESSAGE, pull_ext())
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(4):
            expression = "||".join(f"{number}x{i}" for i in range(25_000))
            assert peer.ask(Code.PULL_MESSAGE, pull_ext(subscription=expression)).code != 0
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown < 4 * MIB  # as it was: 3 MiB each


def test_a_memo_stays_within_its_bound_whatever_it_is_asked() -> None:
    memo: Memo[str, str] = Memo("test", lambda key: key * 2, max_bytes=100_000, holds=())
    for number in range(2_000):
        key = f"{number}" + "x" * (number % 700)
        assert memo[key] == memo[key] == key * 2
        assert memo.bytes <= 100_000
    assert memo.bytes == sum(memo.size_of(key, value) for key, value in memo.items())
    large = "y" * 20_000
    assert memo[large] == large * 2
    assert large not in memo
    assert memo not in MEMOS


def test_few_entries_leave_a_full_memo_at_once() -> None:
    memo: Memo[int, str] = Memo("test", lambda key: f"{key:09d}", max_bytes=1_000_000, holds=())
    most, kept = 0, 0
    for number in range(20_000):
        memo[number]
        most, kept = max(most, kept + 1 - len(memo)), len(memo)
    assert 0 < most <= FORGOTTEN_AT_ONCE
    assert 900_000 < memo.bytes == sum(memo.size_of(key, value) for key, value in memo.items())
    assert 19_999 in memo


def key_of(memo: Memo[Any, Any], text: str) -> object:
    """One with this text in it."""
    if memo.name == "protocol.headerTemplates":
        header = AckMessageRequestHeader(consumer_group=text, topic="T", queue_id=0, extra_info="x", offset=0)
        same, _ = headertemplates.places_of(type(header))
        return Code.ACK_MESSAGE, 0, "PYTHON", 1, type(header), same(msgspec.structs.astuple(header))
    if memo.name == "proxy.handles":
        return f"0 1 2 3 0 {text} 0"
    if memo.name in ("grpc.topics", "grpc.groups"):
        return text.replace("é", "e")  # other names are refused
    if memo.name == "grpc.ackResources":
        return pb.AckMessageRequest(topic=pb.Resource(name=text)).SerializeToString()
    if memo.name == "grpc.acks":
        return ACK_RESOURCES, f"0 1 2 3 0 {text.replace('é', 'e')} 0".encode()
    if memo.name == "proxy.forms":
        return f"UNIQ_KEY\x01\x02TAGS\x01{text}\x02color\x01{text}\x02".encode()
    return text.encode() if memo.name.startswith(("record", "delays")) else text


ACK_RESOURCES = pb.AckMessageRequest(
    topic=pb.Resource(name="T"), group=pb.Resource(name="G")
).SerializeToString()

NO_TEXTS = (
    "message.hosts", "record.hosts", "filter.sql", "grpc.identities", "send.forms", "proxy.instants", "proxy.bornHosts",
    "proxy.storeHosts",
)  # fmt: skip


def test_the_memos_of_the_process_are_bounded_by_what_they_weigh() -> None:
    """Their weights are what tracemalloc finds, or more."""
    for memo in MEMOS:
        if memo.name in NO_TEXTS:
            continue  # theirs are no free texts
        kept = dict(memo)
        memo.clear()
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            for number in range(3_000):
                text = f"{number:06d}" + "é" * (number % 100)
                assert memo[key_of(memo, text)] is not ...
            grown = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()
        assert grown < 1.1 * memo.bytes, memo.name
        memo.clear()
        memo.update(kept)
        memo.bytes = sum(memo.size_of(key, value) for key, value in kept.items())


# --- the ledger ---------------------------------------------------------------------------------------------


def test_a_ledger_that_refuses_changes_nothing() -> None:
    ledger = Ledger("t", lambda: 100, setting="maxT")
    ledger.charge(60)
    with pytest.raises(TableFull, match=r"t is full: 60 of 100 bytes; maxT sets that"):
        ledger.charge(41)
    with pytest.raises(TableFull):
        ledger.resize(60, 101)
    assert (ledger.bytes, ledger.entries, ledger.refused) == (60, 1, 2)
    ledger.resize(60, 10)
    ledger.note(500)
    ledger.free(500)
    assert (ledger.bytes, ledger.entries) == (10, 1)


@pytest.mark.parametrize("text", ["", "a" * 1000, "é" * 1000, "€" * 1000, "😀" * 1000])
def test_texts_are_not_taken_for_lighter_than_they_are(text: str) -> None:
    import sys

    assert text_bytes(text) >= sys.getsizeof(text) - 24
    data = SubscriptionData(topic=text, tags_set=[text, text], code_set=[10**6] * 3)
    assert weigh(data) > 3 * len(text)


# --- all tables together ------------------------------------------------------------------------------------


def sharing(bound: int, *names: str) -> tuple[TableBudget, list[Ledger]]:
    budget = TableBudget(lambda: bound, "maxTablesBytes")
    ledgers = [Ledger(name, lambda: 1 << 40) for name in names]
    Tables(*ledgers, budget=budget)
    return budget, ledgers


def test_a_table_that_takes_its_share_leaves_room_for_others() -> None:
    budget, (first, second, third) = sharing(48 * MIB, "first", "second", "third")
    for ledger in (first, second):
        while ledger.has_room(MIB):
            ledger.note(MIB)
    assert (first.bytes, second.bytes) == (24 * MIB, 12 * MIB)
    third.charge(12 * MIB)
    with pytest.raises(
        TableFull,
        match=rf"third may not grow: it has {12 * MIB} bytes, and all tables together {48 * MIB} of {48 * MIB};"
        r" maxTablesBytes sets that",
    ):
        third.charge(1)
    assert (budget.bytes, budget.refused) == (48 * MIB, 3)
    first.free(24 * MIB, first.entries)
    third.resize(12 * MIB, 13 * MIB)
    assert budget.bytes == 25 * MIB
    second.clear()
    assert budget.bytes == 13 * MIB


def test_every_table_may_have_a_little_whatever_the_others_have() -> None:
    """So that topics can be deleted, for example, when they have filled everything."""
    _, (full, small) = sharing(8 * MIB, "full", "small")
    full.note(100 * MIB)
    small.charge(MIB)
    with pytest.raises(TableFull):
        small.charge(1)


def test_what_was_there_before_counts() -> None:
    ledger = Ledger("t", lambda: 1 << 40)
    ledger.note(5 * MIB)
    budget = TableBudget(lambda: 8 * MIB, "maxTablesBytes")
    Tables(ledger, budget=budget)
    assert budget.bytes == 5 * MIB
    with pytest.raises(TableFull):
        ledger.charge(1)


def test_the_bound_of_all_tables_is_a_part_of_the_memory() -> None:
    config = BrokerConfig()
    assert config.tables_bound(16 << 30) == 4 << 30
    assert config.tables_bound(512 * MIB) == 128 * MIB
    assert config.tables_bound(100 * MIB) == 64 * MIB
    assert BrokerConfig(max_tables_bytes=1000).tables_bound(16 << 30) == 1000


def test_a_broker_refuses_what_has_no_room_beside_its_other_tables(benches: Callable[..., Bench]) -> None:
    bench = benches(max_tables_bytes=4 * MIB)
    peer, core = bench.peer(), bench.broker
    make_topic(peer)
    for number in range(10_000):
        answer = peer.ask(*produce(f"{number:06d}" + "c" * 1_000, "P"))
        if answer.code:
            break
    assert answer.code == ResponseCode.SYSTEM_BUSY
    assert "all tables together" in answer.remark
    assert answer.remark.endswith("maxTablesBytes sets that")
    assert core.bounds.budget.refused == 1
    assert core.bounds.budget.bytes == sum(one.bytes for one in core.tables if isinstance(one, Ledger))
    assert core.runtime_info()["mqsparkTables"].endswith("1 refused")
    make_topic(peer, "Other")
    assert peer.ask(Code.DELETE_TOPIC_IN_BROKER, {"topic": "T"}).code == 0
    bench.broker.config.max_tables_bytes = 64 * MIB
    assert peer.ask(*produce("c" * 1_000, "P")).code == 0
