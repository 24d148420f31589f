"""A name server and anybody who registers: bodies that inflate, tables without end, brokers that are somebody else's,
routes with numbers that take clients down.
"""

from __future__ import annotations

import json
import re
import tracemalloc
import zlib
from pathlib import Path
from typing import TypeVar

import pytest

from mqspark.base.names import is_address
from mqspark.errors import ProtocolError
from mqspark.namesrv.config import NamesrvConfig
from mqspark.namesrv.kvconfig import MAX_NAMESPACE_BYTES, ORDER_TOPICS
from mqspark.namesrv.namesrv import NameServer
from mqspark.protocol.bodies.body import decode_body, encode_body
from mqspark.protocol.bodies.longtables import PART_BYTES
from mqspark.protocol.bodies.topic_bodies import (
    DataVersion,
    KVTable,
    QueueData,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigAndMappingSerializeWrapper,
    TopicQueueMappingInfo,
    TopicRouteData,
)
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command
from mqspark.protocol.servers import registration
from mqspark.protocol.servers.registration import MAX_REGISTER_BYTES, read_registration
from mqspark.protocol.session import Session
from mqspark.protocol.slices import finished
from tests.support.clocks import ManualClock
from tests.support.frames import encode_register_body
from tests.support.invariants import validate
from tests.support.pace import ProcessorTime
from tests.unit.broker_kit import Peer, namesrv_peer

T = TypeVar("T")


def wrapped(topics: list[TopicConfig], counter: int = 1) -> RegisterBrokerBody:
    return RegisterBrokerBody(
        TopicConfigAndMappingSerializeWrapper(
            topic_config_table={topic.topic_name: topic for topic in topics},
            data_version=DataVersion(0, 1, counter),
        )
    )


def plain(*names: str, **fields: int) -> list[TopicConfig]:
    return [TopicConfig(topic_name=name, **fields) for name in names]


def peer_from(core: NameServer, host: str, number: int) -> Peer:
    return Peer(core, Session(number, host, 40_000 + number, core.outbox))


def ask(peer: Peer, code: int, header: dict[str, str], body: bytes = b"") -> Command:
    peer.give(code, header, body)
    while peer.core.work_waits:
        peer.core.work()
    (answer,) = peer.heard()
    return answer


def identity(name: str, address: str, broker_id: int = 0, cluster: str = "c1") -> dict[str, str]:
    return {
        "brokerName": name,
        "brokerAddr": address,
        "clusterName": cluster,
        "haServerAddr": "",
        "brokerId": str(broker_id),
    }


def register(
    peer: Peer,
    topics: list[TopicConfig],
    *,
    name: str = "b-a",
    address: str = "10.0.0.1:10911",
    broker_id: int = 0,
    cluster: str = "c1",
    counter: int = 1,
    compress: bool = False,
    body: bytes | None = None,
    **ext: str,
) -> Command:
    if body is None:
        body = encode_register_body(wrapped(topics, counter), compress=compress)
    header = {**identity(name, address, broker_id, cluster), **ext}
    return ask(peer, RequestCode.REGISTER_BROKER, header, body)


def route(peer: Peer, topic: str) -> TopicRouteData | None:
    answer = ask(peer, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
    return None if answer.code == ResponseCode.TOPIC_NOT_EXIST else decode_body(TopicRouteData, answer.body)


# --- what a registration costs ---


def bomb(megabytes: int) -> bytes:
    """One topic whose attributes are blanks, compressed."""
    version = b"{}"
    line = b"T 8 8 6 SINGLE_TAG {" + b" " * (megabytes << 20) + b"}"
    parts = (
        len(version).to_bytes(4, "big"),
        version,
        (1).to_bytes(4, "big"),
        len(line).to_bytes(4, "big"),
        line,
        (2).to_bytes(4, "big"),
        b"[]",
    )
    return zlib.compress(b"".join(parts), 9)


def test_a_registration_of_64_kilobytes_does_not_inflate_to_64_megabytes() -> None:
    _, _, peer = namesrv_peer()
    body = bomb(64)
    assert len(body) < 70_000
    tracemalloc.start()
    try:
        answer = register(peer, [], body=body)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert f"inflates past {MAX_REGISTER_BYTES}" in (answer.remark or "")
    assert peak < 40 << 20


def test_one_line_of_a_registration_is_not_megabytes() -> None:
    _, _, peer = namesrv_peer()
    answer = register(peer, [], body=bomb(15))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "at most 65536 are read" in (answer.remark or "")


@pytest.mark.parametrize("compress", [False, True], ids=["json", "compressed"])
def test_a_large_registration_is_read_in_slices(compress: bool) -> None:
    core, _, peer = namesrv_peer()
    topics = plain(*(f"a-topic-with-a-name-{n}" for n in range(40_000)))
    body = encode_register_body(wrapped(topics), compress=compress)
    peer.give(RequestCode.REGISTER_BROKER, identity("b-a", "10.0.0.1:10911"), body)
    longest, slices = 0.0, 0
    while core.work_waits:
        with ProcessorTime() as cost:
            core.work()
        longest, slices = max(longest, cost.seconds), slices + 1
    assert slices > 100
    assert longest < 0.5
    (answer,) = peer.heard()
    assert answer.code == 0
    assert route(peer, "a-topic-with-a-name-39999") is not None


def test_large_registrations_wait_for_each_other() -> None:
    core, _, peer = namesrv_peer()
    body = encode_register_body(wrapped(plain(*(f"topic-{n}" for n in range(3_000)))), compress=False)
    peers = [peer, *(peer_from(core, "127.0.0.1", number) for number in range(2, 12))]
    for number, each in enumerate(peers):
        each.give(RequestCode.REGISTER_BROKER, identity(f"b-{number}", f"10.0.0.{number}:10911"), body)
    while core.work_waits:
        core.work()
    assert [each.heard()[0].code for each in peers] == [0] * len(peers)
    found = route(peer, "topic-2999")
    assert found is not None
    assert len(found.queue_datas) == len(peers)


def test_slices_read_what_one_go_reads() -> None:
    body = wrapped(plain(*(f"T{n}" for n in range(2_000)), read_queue_nums=3))
    text = encode_register_body(body)
    assert len(text) > 64 * 1024
    assert finished(read_registration(text, 479)) == body
    with pytest.raises(ProtocolError, match="at most"):
        next(read_registration(text, 479, 100_000))


def test_the_dialect_of_one_mapping_does_not_decode_all_topics_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """RocketMQ writes the queues of a static topic as bare numbers."""
    decoded: list[int] = []

    def watched(body_type: type[T], text: bytes) -> T:
        decoded.append(len(text))
        return decode_body(body_type, text)

    for name in ("decode_body", "decode_nameless"):
        monkeypatch.setattr(registration, name, watched)
    body = wrapped(plain(*(f"a-topic-with-a-name-{n}" for n in range(5_000))))
    wrapper = body.topic_config_serialize_wrapper
    for number in range(300):
        queues = {queue: queue + number for queue in range(20)}
        mapping = TopicQueueMappingInfo(topic=f"S{number}", total_queues=20, bname="b", curr_id_map=queues)
        wrapper.topic_queue_mapping_info_map[f"S{number}"] = mapping
    text = re.sub(rb'"(\d+)":', rb"\1:", encode_register_body(body))
    assert b"{0:" in text
    assert finished(read_registration(text, 479)) == body
    assert len(decoded) > 300 + len(text) // (2 * PART_BYTES)
    assert max(decoded) < 2 * PART_BYTES


def test_a_registration_with_much_beside_its_tables_is_refused() -> None:
    _, _, peer = namesrv_peer()
    body = b'{"filterServerList":["%b"],"topicConfigSerializeWrapper":{}}' % (b"x" * 70_000)
    answer = register(peer, [], body=body)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "beside its tables" in (answer.remark or "")


# --- tables ---


def test_topics_of_one_broker_and_routes_of_all_have_an_end() -> None:
    config = NamesrvConfig(max_topics_per_broker=100, max_routes=250)
    core, _, peer = namesrv_peer(config)
    for number in range(4):
        topics = plain(*(f"t{number}-{n}" for n in range(150)))
        assert register(peer, topics, name=f"b-{number}", address=f"10.0.0.{number}:10911").code == 0
    assert len(core.routes.topic_names()) == 250
    peer.disconnect()
    assert list(core.routes.topic_names()) == []
    again = peer_from(core, "127.0.0.1", 2)
    assert register(again, plain("a", "b")).code == 0
    assert len(core.routes.topic_names()) == 2


def test_what_is_deleted_makes_room() -> None:
    core, _, peer = namesrv_peer(NamesrvConfig(max_routes=10))
    assert register(peer, plain(*(f"t{n}" for n in range(10)))).code == 0
    for n in range(10):
        header = {"topic": f"t{n}", **({"clusterName": "c1"} if n % 2 else {})}
        assert ask(peer, RequestCode.DELETE_TOPIC_IN_NAMESRV, header).code == 0
    assert register(peer, plain(*(f"u{n}" for n in range(12))), counter=2).code == 0
    assert len(core.routes.topic_names()) == 10


def test_brokers_of_one_connection_and_of_all_have_an_end() -> None:
    core, _, peer = namesrv_peer(NamesrvConfig(max_brokers=100))
    codes = [
        register(peer, plain("a", "b"), name=f"b-{n}", address=f"10.0.0.{n}:10911").code for n in range(80)
    ]
    assert codes == [0] * 64 + [ResponseCode.SYSTEM_ERROR] * 16
    other = peer_from(core, "10.9.9.9", 2)
    answers = [
        register(other, plain("a", "b"), name=f"c-{n}", address=f"10.0.1.{n}:10911") for n in range(40)
    ]
    assert [answer.code for answer in answers] == [0] * 36 + [ResponseCode.SYSTEM_ERROR] * 4
    assert "maxBrokers" in (answers[-1].remark or "")
    assert len(core.routes.live_brokers()) == 100


def test_one_broker_is_in_one_cluster_and_its_patience_has_an_end() -> None:
    core, clock, peer = namesrv_peer()
    for n in range(50):
        header = {
            **identity("b-a", "10.0.0.1:10911", cluster=f"c{n}"),
            "heartbeatTimeoutMillis": str(1 << 60),
        }
        ask(peer, RequestCode.REGISTER_BROKER, header, encode_register_body(wrapped(plain("a", "b"))))
    info = core.routes.cluster_info()
    assert list(info.cluster_addr_table) == ["c0"]
    assert len(core.routes.live_brokers()) == 1
    for _ in range(3_600):
        clock.advance(1_000)
        core.tick()
    assert core.routes.live_brokers() == []


def test_replicas_of_a_name_have_an_end() -> None:
    core, _, peer = namesrv_peer(NamesrvConfig(max_brokers_per_connection=1_000))
    for n in range(100):
        register(peer, plain("a", "b"), address=f"10.0.0.{n}:10911", broker_id=n)
    data = core.routes.broker_data("b-a")
    assert data is not None
    assert len(data.broker_addrs) == 64


@pytest.mark.parametrize("letter", ["v", "\x01", "\u4e16"], ids=["plain", "escaped", "wide"])
def test_a_namespace_fits_into_an_answer(letter: str) -> None:
    """Each broker gets that of ordered topics when it registers: with an answer that is longer than a frame its
    connection would end, and every route with it."""
    core, _, peer = namesrv_peer(NamesrvConfig(max_kv_table_bytes=256 << 20))
    flood = {"namespace": ORDER_TOPICS, "value": letter * 40_000}
    answers = [ask(peer, RequestCode.PUT_KV_CONFIG, {**flood, "key": f"k{n}"}) for n in range(120)]
    assert {answer.code for answer in answers} == {0, ResponseCode.SYSTEM_BUSY}
    assert "namespace ORDER_TOPIC_CONFIG is full" in (answers[-1].remark or "")
    size = len(register(peer, plain("orders", "bills")).body)
    assert MAX_NAMESPACE_BYTES - 7 * 40_000 < size < MAX_NAMESPACE_BYTES + 100
    assert ask(peer, RequestCode.PUT_KV_CONFIG, {**flood, "key": "k0", "value": "short"}).code == 0
    assert ask(peer, RequestCode.PUT_KV_CONFIG, {**flood, "namespace": "other", "key": "k"}).code == 0
    for n in range(1, 120):
        assert ask(peer, RequestCode.DELETE_KV_CONFIG, {"namespace": ORDER_TOPICS, "key": f"k{n}"}).code == 0
    body = register(peer, plain("orders", "bills")).body
    assert decode_body(KVTable, body).table == {"k0": "short"}
    validate(core.kv.ledger)


def test_a_key_value_file_longer_than_a_frame_ends_no_connection(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Another name server has written it: here a namespace has a limit."""
    path = tmp_path / "kv.json"
    long = {f"k{n}": "v" * (1 << 20) for n in range(16)} | {"orders": "b-a:4"}
    path.write_text(
        json.dumps({"configTable": {ORDER_TOPICS: long, "other": {"k": "w" * (16 << 20), "s": "x"}}})
    )
    core, _, peer = namesrv_peer(NamesrvConfig(kv_config_path=str(path), order_message_enable=True))
    assert caplog.text.count("bytes as JSON, and an answer has room for 15728640: delete keys of it") == 2
    assert register(peer, plain("orders", "bills")).body == b""
    found = route(peer, "orders")
    assert found is not None
    assert found.order_topic_conf == "b-a:4"
    get = RequestCode.GET_KV_CONFIG
    refused = [
        ask(peer, RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": ORDER_TOPICS}),
        ask(peer, get, {"namespace": "other", "key": "k"}),
    ]
    for answer in refused:
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "delete keys of it" in (answer.remark or "")
    assert ask(peer, get, {"namespace": "other", "key": "s"}).ext == {"value": "x"}
    for number in range(2):
        core.kv.delete(ORDER_TOPICS, f"k{number}")
    assert ask(peer, RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": ORDER_TOPICS}).code == 0


def test_cached_routes_have_a_bound_in_bytes() -> None:
    core, _, peer = namesrv_peer(NamesrvConfig(max_route_cache_bytes=20_000))
    register(peer, plain(*(f"topic-{n}" for n in range(500))))
    for n in range(500):
        assert route(peer, f"topic-{n}") is not None
    (cache,) = [table for table in core.tables if "NameServer._route_cache" in table.holds]
    assert 0 < cache.entries < 500
    assert cache.bytes <= 20_000


# --- numbers and addresses ---


@pytest.mark.parametrize(
    "fields",
    [
        {"read_queue_nums": 2**31 - 1},
        {"write_queue_nums": 2**31 - 1},
        {"read_queue_nums": 65_537},
        {"read_queue_nums": -1},
        {"write_queue_nums": -(2**31)},
        {"perm": -1},
        {"perm": 1 << 20},
    ],
    ids=str,
)
@pytest.mark.parametrize("compress", [False, True], ids=["json", "compressed"])
def test_a_topic_with_impossible_numbers_is_left_out(fields: dict[str, int], compress: bool) -> None:
    _, _, peer = namesrv_peer()
    topics = [*plain("good", read_queue_nums=65_536, write_queue_nums=65_536), *plain("bad", **fields)]
    assert register(peer, topics, compress=compress).code == 0
    assert route(peer, "bad") is None
    found = route(peer, "good")
    assert found is not None
    assert found.queue_datas[0].read_queue_nums == 65_536


def test_a_route_told_by_an_operator_is_checked_too() -> None:
    _, _, peer = namesrv_peer()
    register(peer, plain("a", "b"))
    for name, count in (("bad", 2**31 - 1), ("good", 8)):
        queues = [QueueData("b-a", count, count, 6)]
        body = encode_body(TopicRouteData(queue_datas=queues))
        assert ask(peer, RequestCode.REGISTER_TOPIC_IN_NAMESRV, {"topic": name}, body).code == 0
    assert route(peer, "bad") is None
    assert route(peer, "good") is not None


@pytest.mark.parametrize(
    "address",
    [
        "",
        "nonsense",
        "host:",
        ":1",
        "host:0",
        "host:65536",
        "host:99999999999",
        "a b:1",
        "h:1;h:2",
        "h\n:1",
        "x" * 300 + ":1",
    ],
)
def test_a_malformed_address_is_refused(address: str) -> None:
    core, _, peer = namesrv_peer()
    answer = register(peer, plain("a", "b"), address=address)
    assert answer.code != 0
    assert answer.remark
    assert core.routes.live_brokers() == []


def test_addresses_of_real_brokers_are_addresses() -> None:
    for address in (
        "10.0.0.1:10911",
        "broker-a.example:10911",
        "[::1]:10911",
        "fe80::1%eth0:10911",
        "my_host:1",
    ):
        assert is_address(address), address


# --- brokers that are somebody else's ---


def owner(clock: ManualClock | None = None) -> tuple[NameServer, ManualClock, Peer]:
    core, clock, _ = namesrv_peer(clock=clock)
    honest = peer_from(core, "10.0.0.1", 2)
    assert register(honest, plain("orders", "bills")).code == 0
    return core, clock, honest


def test_another_address_does_not_take_the_place_of_a_live_broker() -> None:
    core, clock, honest = owner()
    forger = peer_from(core, "10.6.6.6", 3)
    answer = register(forger, plain("orders", "bills"), address="10.6.6.6:10911")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "is registered from 10.0.0.1:10911" in (answer.remark or "")
    body = wrapped(plain("orders", "bills"))
    body.topic_config_serialize_wrapper.data_version = DataVersion(1 << 60, 1, 1)
    assert register(forger, [], address="10.6.6.6:10911", body=encode_register_body(body)).code != 0
    found = route(honest, "orders")
    assert found is not None
    assert found.broker_datas[0].broker_addrs == {0: "10.0.0.1:10911"}
    clock.advance(30_000)
    assert register(forger, plain("orders", "bills"), address="10.6.6.6:10911").code != 0
    clock.advance(15_000)  # a machine that died has left its connection behind
    assert register(forger, plain("orders", "bills"), address="10.6.6.6:10911").code == 0


def test_a_broker_whose_heartbeats_come_from_a_second_address_stays_in_routes() -> None:
    """It has a connection for its heartbeats, which NAT gives another address, and asks for a timeout of 10 s."""
    core, clock, honest = owner()
    assert register(honest, plain("orders", "bills"), counter=2, heartbeatTimeoutMillis="10000").code == 0
    beats = peer_from(core, "10.0.0.77", 3)
    for second in range(1, 200):
        clock.advance(1_000)
        code = (RequestCode.BROKER_HEARTBEAT, RequestCode.QUERY_DATA_VERSION)[second % 2]
        assert ask(beats, code, identity("b-a", "10.0.0.1:10911")).code == 0
        if second % 30 == 0:
            registered = register(honest, plain("orders", "bills"), counter=2, heartbeatTimeoutMillis="10000")
            assert registered.code == 0
        core.tick()
        assert route(honest, "orders") is not None, f"after {second} s"


def test_a_broker_that_reconnects_from_a_second_address_stays_in_routes() -> None:
    """Nobody has told the name server that the first connection is dead."""
    core, clock, honest = owner()
    assert register(honest, plain("orders", "bills"), counter=2, heartbeatTimeoutMillis="10000").code == 0
    moved = peer_from(core, "10.0.0.77", 3)
    for second in range(1, 200):
        clock.advance(1_000)
        assert ask(moved, RequestCode.BROKER_HEARTBEAT, identity("b-a", "10.0.0.1:10911")).code == 0
        if second % 30 == 0:
            answer = register(moved, plain("orders", "bills"), counter=2, heartbeatTimeoutMillis="10000")
            assert answer.code == (0 if second >= 45 else ResponseCode.SYSTEM_ERROR)
        core.tick()
        assert route(moved, "orders") is not None, f"after {second} s"


def test_two_brokers_that_share_an_address_are_named(caplog: pytest.LogCaptureFixture) -> None:
    core, _, honest = owner()
    assert register(honest, plain("logs", "bills"), name="b-b").code == 0
    assert (
        "broker b-b has registered from 10.0.0.1:40002 at 10.0.0.1:10911, the address of broker b-a"
        in caplog.text
    )
    assert core.routes.data_version("c1", "10.0.0.1:10911") is not None


def test_nobody_on_another_host_keeps_a_broker_alive() -> None:
    core, clock, honest = owner()
    assert register(honest, plain("orders", "bills"), counter=2, heartbeatTimeoutMillis="10000").code == 0
    forger = peer_from(core, "10.6.6.6", 3)

    def forge(seconds: int) -> None:
        for _ in range(seconds):
            clock.advance(1_000)
            for code in (RequestCode.BROKER_HEARTBEAT, RequestCode.QUERY_DATA_VERSION):
                assert ask(forger, code, identity("b-a", "10.0.0.1:10911")).code == 0
            core.tick()

    forge(45)
    successor = peer_from(core, "10.0.0.2", 4)
    assert register(successor, plain("orders", "bills"), address="10.0.0.2:10911").code == 0
    core, clock, honest = owner()
    assert register(honest, plain("orders", "bills"), counter=2, heartbeatTimeoutMillis="10000").code == 0
    forger = peer_from(core, "10.6.6.6", 3)
    forge(120)
    assert route(forger, "orders") is None, "nor in routes"


def test_a_broker_that_has_gone_may_come_back_from_elsewhere() -> None:
    core, _, honest = owner()
    honest.disconnect()
    moved = peer_from(core, "10.0.0.2", 3)
    assert register(moved, plain("orders", "bills"), address="10.0.0.2:10911").code == 0


def test_another_host_does_not_register_or_unregister_a_live_broker() -> None:
    core, _, honest = owner()
    forger = peer_from(core, "10.6.6.6", 3)
    assert register(forger, plain("orders", "evil"), counter=9).code == ResponseCode.SYSTEM_ERROR
    header = identity("b-a", "10.0.0.1:10911")
    assert ask(forger, RequestCode.UNREGISTER_BROKER, header).code == ResponseCode.SYSTEM_ERROR
    elsewhere = {**header, "clusterName": "another"}
    answer = ask(forger, RequestCode.UNREGISTER_BROKER, elsewhere)
    assert (answer.code, "belongs to cluster c1, not to another" in (answer.remark or "")) == (
        ResponseCode.SYSTEM_ERROR,
        True,
    )
    forger.disconnect()
    assert route(honest, "orders") is not None
    assert route(honest, "evil") is None
    again = peer_from(core, "10.0.0.1", 4)  # reconnected: the old connection may not have ended yet
    assert register(again, plain("orders", "bills"), counter=2).code == 0
    assert ask(again, RequestCode.UNREGISTER_BROKER, header).code == 0
    assert route(again, "orders") is None


def test_an_address_is_one_broker_however_many_names_it_gives() -> None:
    core, _, peer = namesrv_peer()
    for n in range(200):
        topics = plain(*(f"t{n}-{k}" for k in range(300 if n == 0 else 2)))
        assert register(peer, topics, name=f"b-{n}", cluster="c1").code == 0
    info = core.routes.cluster_info()
    assert list(info.broker_addr_table) == ["b-199"]
    assert info.cluster_addr_table == {"c1": ["b-199"]}
    assert sorted(core.routes.topic_names()) == ["t199-0", "t199-1"]
    assert core.routes.route_count == 2
    peer.disconnect()
    assert core.routes.cluster_info().broker_addr_table == {}


def test_a_broker_that_was_renamed_leaves_nothing_behind() -> None:
    core, clock, honest = owner()
    again = peer_from(core, "10.0.0.1", 4)  # its old connection has not ended yet
    assert register(again, plain("orders", "bills"), name="b-new").code == 0
    found = route(again, "orders")
    assert found is not None
    assert [broker.broker_name for broker in found.broker_datas] == ["b-new"]
    honest.disconnect()
    clock.advance(100_000)
    assert register(again, plain("orders", "bills"), name="b-new").code == 0
    clock.advance(100_000)
    core.tick()
    assert list(core.routes.cluster_info().broker_addr_table) == ["b-new"]


def test_a_claim_of_an_old_epoch_says_nothing_of_somebody_elses_broker() -> None:
    core, _, honest = owner()
    body = wrapped(plain("logs", "bills"))
    body.topic_config_serialize_wrapper.data_version = DataVersion(5, 1, 1)
    other = peer_from(core, "10.0.0.2", 3)
    text = encode_register_body(body)
    assert register(other, [], name="b-b", address="10.0.0.2:10911", body=text).code == 0
    forger = peer_from(core, "10.6.6.6", 4)
    answer = register(forger, plain("logs", "bills"), name="b-b", address="10.0.0.1:10911")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert core.routes.data_version("c1", "10.0.0.1:10911") is not None
    honest.disconnect()
    assert route(other, "orders") is None


def test_a_controller_may_name_another_master() -> None:
    core, _, peer = namesrv_peer()
    for number, epoch in ((1, 3), (2, 4)):
        body = wrapped(plain("orders", "bills"))
        body.topic_config_serialize_wrapper.data_version = DataVersion(epoch, 1, 1)
        master = peer_from(core, f"10.0.0.{number}", number + 1)
        answer = register(master, [], address=f"10.0.0.{number}:10911", body=encode_register_body(body))
        assert answer.code == 0
    data = core.routes.broker_data("b-a")
    assert data is not None
    assert data.broker_addrs == {0: "10.0.0.2:10911"}
    assert peer is not None


def test_a_broker_with_many_topics_leaves_in_slices() -> None:
    core, _, peer = namesrv_peer()
    several = peer_from(core, "10.0.0.2", 2)
    assert register(several, plain("a-1", "b-1"), name="b-b", address="10.0.0.2:10911").code == 0
    assert register(peer, plain(*(f"a-{n}" for n in range(20_000)))).code == 0
    peer.disconnect()
    assert core.work_waits
    found = core.routes.route("a-1")
    assert found is not None
    assert [queues.broker_name for queues in found.queue_datas] == ["b-b"]
    core.routes.delete_topic("a-7")
    again = peer_from(core, "127.0.0.1", 3)
    # Back before the routes of its former self are all gone.
    again.give(
        RequestCode.REGISTER_BROKER,
        identity("b-a", "10.0.0.1:10911"),
        encode_register_body(wrapped(plain("a-1", "a-19999", "new"), 2)),
    )
    slices = 0
    while core.work_waits:
        core.work()
        slices += 1
    assert slices >= 15
    assert again.heard()[0].code == 0
    assert sorted(core.routes.topic_names()) == ["a-1", "a-19999", "b-1", "new"]
    assert core.routes.route_count == 5
    again.disconnect()
    several.disconnect()
    assert list(core.routes.topic_names()) == []
    assert core.routes.route_count == 0
