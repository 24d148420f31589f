"""Groups and topics without end: two heartbeats of 60,000 new groups made a broker's registration longer than any
frame, and nobody found the broker again, not even after a restart. What may be made is bounded for a request, a
connection and a broker; and what is there, however much, is registered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mqspark.broker import registration as broker_registration
from mqspark.broker.config import BrokerConfig
from mqspark.broker.registration import MAX_PIECE_BYTES, Registration, registrations
from mqspark.broker.statictopic.mappings import Mappings
from mqspark.broker.tables.topics import Topics
from mqspark.client.blocking import BlockingClient
from mqspark.message import PERM_WRITE
from mqspark.protocol.bodies.body import encode_body
from mqspark.protocol.bodies.client_bodies import ConsumerData, HeartbeatData, ProducerData
from mqspark.protocol.bodies.topic_bodies import (
    CreateTopicListRequestBody,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    TopicConfig,
)
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.connection import MAX_FRAME_BYTES
from mqspark.testing import Broker
from tests.support.clocks import ManualClock
from tests.support.frames import decode_register_body
from tests.unit.broker_kit import SEND, Bench, Peer, last_registration, namesrv_peer, send_ext


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(**settings: object) -> Bench:
        made.append(Bench(tmp_path / str(len(made)), **settings))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for each in made:
        each.close()


def heartbeat(*groups: str, producers: tuple[str, ...] = (), client: str = "c@1") -> bytes:
    return encode_body(
        HeartbeatData(
            client_id=client,
            consumer_data_set=[ConsumerData(group_name=group) for group in groups],
            producer_data_set=[ProducerData(group) for group in producers],
        )
    )


def names(prefix: str, count: int) -> tuple[str, ...]:
    return tuple(f"{prefix}{number}" for number in range(count))


def groups_of(bench: Bench) -> int:
    return len(bench.broker.state.subscriptions.names())


# --- what may be made ---


def test_two_heartbeats_of_60000_groups_leave_the_broker_registered(bench: Callable[..., Bench]) -> None:
    one = bench()
    before = groups_of(one)
    peer = one.peer()
    for prefix in ("a", "b"):
        answer = peer.ask(RequestCode.HEART_BEAT, {}, heartbeat(*names(prefix, 60_000)))
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark
    assert groups_of(one) == before
    assert len(last_registration(one.broker).body) < 100_000


def test_a_heartbeat_makes_a_thousand_groups_and_the_next_one_more(bench: Callable[..., Bench]) -> None:
    one = bench()
    before = groups_of(one)
    peer = one.peer()
    body = heartbeat(*names("g", 2_500))
    for made in (1_000, 2_000):
        answer = peer.ask(RequestCode.HEART_BEAT, {}, body)
        assert answer.code == ResponseCode.SYSTEM_BUSY
        assert "maxNewGroupsPerHeartbeat" in (answer.remark or "")
        assert groups_of(one) == before + made
    assert peer.ask(RequestCode.HEART_BEAT, {}, body).code == 0
    assert groups_of(one) == before + 2_500
    assert one.broker.state.subscriptions.ledger.refused > 0


def test_what_is_refused_does_not_cost_the_other_groups_of_a_heartbeat(bench: Callable[..., Bench]) -> None:
    one = bench(max_new_groups_per_heartbeat=1)
    peer = one.peer()
    assert peer.ask(RequestCode.HEART_BEAT, {}, heartbeat("old")).code == 0
    body = heartbeat("new-1", "new-2", "old", producers=("p",), client="c@2")
    assert peer.ask(RequestCode.HEART_BEAT, {}, body).code == ResponseCode.SYSTEM_BUSY
    clients = one.broker.state.clients
    assert clients.is_member("old", "c@2")
    assert clients.is_member("new-1", "c@2")
    assert not clients.is_member("new-2", "c@2")
    assert clients.producer_members("p")


def test_one_connection_makes_so_many_groups_whatever_it_asks(bench: Callable[..., Bench]) -> None:
    one = bench(max_new_groups_per_connection=20)
    before = groups_of(one)
    peer = one.peer()
    assert peer.ask(SEND, send_ext(), b"x").code == 0
    assert peer.ask(RequestCode.HEART_BEAT, {}, heartbeat(*names("h", 15))).code == 0
    answers = [peer.pull(consumerGroup=f"p{n}") for n in range(20)]
    assert [answer.code for answer in answers[5:]] == [ResponseCode.SYSTEM_BUSY] * 15
    assert "maxNewGroupsPerConnection" in (answers[-1].remark or "")
    assert groups_of(one) == before + 20
    other = one.peer()
    assert other.pull(consumerGroup="h1").code != ResponseCode.SYSTEM_BUSY
    assert other.pull(consumerGroup="q").code != ResponseCode.SYSTEM_BUSY


def test_groups_of_a_broker_have_an_end(bench: Callable[..., Bench]) -> None:
    one = bench(max_subscription_groups=30)
    peer = one.peer()
    answer = peer.ask(RequestCode.HEART_BEAT, {}, heartbeat(*names("h", 100)))
    assert answer.code == ResponseCode.SYSTEM_BUSY
    assert "maxSubscriptionGroups" in (answer.remark or "")
    assert groups_of(one) == 30
    group = SubscriptionGroupConfig(group_name="by-an-operator")
    code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
    refused = peer.ask(code, {}, encode_body(group))
    assert (refused.code, "maxSubscriptionGroups" in (refused.remark or "")) == (
        ResponseCode.SYSTEM_BUSY,
        True,
    )
    several = SubscriptionGroupList([group])
    refused = peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, {}, encode_body(several))
    assert refused.code == ResponseCode.SYSTEM_BUSY
    known = SubscriptionGroupConfig(group_name="h1", retry_max_times=3)
    peer.give(code, {}, encode_body(known))
    assert one.broker.state.subscriptions.configured("h1") == known
    assert groups_of(one) == 30


def test_topics_of_a_broker_have_an_end(bench: Callable[..., Bench]) -> None:
    one = bench(max_topics=60)
    peer = one.peer()
    codes = [peer.ask(SEND, send_ext(topic=f"t{n}"), b"x").code for n in range(100)]
    made = codes.count(0)
    assert codes == [0] * made + [ResponseCode.SYSTEM_BUSY] * (100 - made)
    topics = one.broker.state.topics
    assert len(topics) == 60
    body = encode_body(CreateTopicListRequestBody([TopicConfig(topic_name="by-an-operator")]))
    answer = peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, {}, body)
    assert (answer.code, "maxTopics" in (answer.remark or "")) == (ResponseCode.SYSTEM_BUSY, True)
    assert peer.ask(SEND, send_ext(topic="%RETRY%any"), b"x").code == ResponseCode.SYSTEM_BUSY
    assert peer.ask(SEND, send_ext(topic="t1"), b"x").code == 0
    # Groups work on: their retry topics and dead letters are as many as groups.
    assert peer.ask(RequestCode.HEART_BEAT, {}, heartbeat("g")).code == 0
    assert "%RETRY%g" in topics


# --- what is there is registered ---


def many(count: int) -> tuple[BrokerConfig, Topics]:
    config = BrokerConfig()
    topics = Topics(config, ManualClock())
    for number in range(count):
        topics.put(TopicConfig(topic_name=f"{number:06d}" + "x" * 120))
    return config, topics


def complete(pieces: Iterator[Registration | None]) -> list[Registration]:
    return [piece for piece in pieces if piece is not None]


def test_a_table_longer_than_a_frame_is_registered_in_pieces() -> None:
    config, topics = many(60_000)
    pieces = complete(registrations(config, topics, Mappings(config, ManualClock())))
    assert len(pieces) >= 3
    assert all(len(piece.body) < MAX_PIECE_BYTES + 1_000 < MAX_FRAME_BYTES for piece in pieces)
    assert [piece.is_last for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    wrappers = [decode_register_body(piece.body, 479).topic_config_serialize_wrapper for piece in pieces]
    assert sum(len(wrapper.topic_config_table) for wrapper in wrappers) == len(topics)
    versions = [wrapper.data_version for wrapper in wrappers]
    assert versions[-1] == topics.data_version
    assert len(set(versions)) == len(pieces)


def test_registrations_are_made_in_slices() -> None:
    config, topics = many(5_000)
    pieces = list(registrations(config, topics, Mappings(config, ManualClock())))
    assert len(pieces) > 20
    assert [piece for piece in pieces if piece is not None] == pieces[-1:]


def test_split_registration_as_rocketmq_does_it() -> None:
    config, topics = many(100)
    config.enable_split_registration, config.split_registration_size = True, 30
    config.broker_permission &= ~PERM_WRITE
    sizes = []
    for piece in complete(registrations(config, topics, Mappings(config, ManualClock()))):
        table = decode_register_body(piece.body, 479).topic_config_serialize_wrapper.topic_config_table
        assert all(topic.perm & PERM_WRITE == 0 for topic in table.values())
        sizes.append(len(table))
    assert set(sizes[:-1]) == {30}
    assert sum(sizes) == len(topics)


def test_a_name_server_has_all_topics_of_all_pieces_and_their_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(broker_registration, "MAX_PIECE_BYTES", 10_000)
    config, topics = many(300)
    core, _, peer = namesrv_peer()

    def register() -> None:
        pieces = complete(registrations(config, topics, Mappings(config, ManualClock())))
        assert len(pieces) > 5
        for piece in pieces:
            tell(peer, piece)

    def tell(peer: Peer, piece: Registration) -> None:
        peer.give(RequestCode.REGISTER_BROKER, piece.header, piece.body)
        while core.work_waits:
            core.work()
        (answer,) = peer.heard()
        assert answer.code == 0

    register()
    assert sorted(core.routes.topic_names()) == sorted(topics.names())
    for number in (0, 150, 299):
        for _ in range(3):
            name = f"{number:06d}" + "x" * 120
            queues = topics.put(TopicConfig(topic_name=name, read_queue_nums=_ + 20)).read_queue_nums
            register()
            found = core.routes.route(name)
            assert found is not None
            assert found.queue_datas[0].read_queue_nums == queues
    assert core.routes.data_version(config.broker_cluster_name, config.address) == topics.data_version


# --- with sockets ---


def test_a_broker_whose_table_is_too_long_is_found_after_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a store that was filled before there were bounds."""
    monkeypatch.setattr(broker_registration, "MAX_PIECE_BYTES", 100_000)

    def fill() -> None:
        topics = broker.apps[0].parts.core.state.topics
        for number in range(1_500):
            topics.put(TopicConfig(topic_name=f"old-topic-number-{number}"))

    with Broker() as broker:
        broker.call(fill)
        broker.shut_down()
        broker.restart()
        app = broker.apps[0]
        assert app.parts.registrar.known_to == app.parts.registrar.addresses == [broker.namesrv]
        problem = broker.call(lambda: app.parts.core.publication.problem)
        assert "deleteTopicWithBrokerRegistration" in problem
        client = BlockingClient(broker.namesrv)
        assert len(client.route("old-topic-number-1499").publish_queues) == 16
        client.close()
