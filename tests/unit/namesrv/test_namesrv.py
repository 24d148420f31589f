"""The name server: registration, liveness, routes, the key-value table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mqspark.base.keyorder import BLOCK_KEYS
from mqspark.errors import StoreCorrupt
from mqspark.message import crc32
from mqspark.namesrv.config import NamesrvConfig
from mqspark.namesrv.namesrv import TICK_MS, NameServer
from mqspark.namesrv.routes import PAGES_A_SLICE, TOPICS_A_SLICE, BrokerIdentity, RouteTable
from mqspark.protocol import fastjson
from mqspark.protocol.bodies.body import BODY_SLICE_BYTES
from mqspark.protocol.bodies.topic_bodies import (
    DataVersion,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigAndMappingSerializeWrapper,
)
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command
from mqspark.protocol.session import Session
from mqspark.protocol.slices import finished
from mqspark_server.settings.settingsfile import SettingsFile
from tests.support.clocks import ManualClock
from tests.support.frames import encode_register_body
from tests.support.store_tools import complete
from tests.unit.broker_kit import Peer, namesrv_peer


@pytest.fixture
def peer() -> Peer:
    return namesrv_peer()[2]


def another(peer: Peer) -> Peer:
    session_id = peer.session.id + 1
    return Peer(peer.core, Session(session_id, "127.0.0.1", 40_000 + session_id, []))


def register(
    peer: Peer,
    *topics: str | TopicConfig,
    name: str = "b-a",
    broker_id: int = 0,
    address: str = "10.0.0.1:10911",
    cluster: str = "c1",
    counter: int = 1,
    state_version: int = 0,
    compress: bool = False,
    **ext: str,
) -> Command:
    configs = [topic if isinstance(topic, TopicConfig) else TopicConfig(topic_name=topic) for topic in topics]
    body = encode_register_body(
        RegisterBrokerBody(
            topic_config_serialize_wrapper=TopicConfigAndMappingSerializeWrapper(
                topic_config_table={config.topic_name: config for config in configs},
                data_version=DataVersion(state_version=state_version, timestamp=1, counter=counter),
            )
        ),
        compress=compress,
    )
    header = {
        "brokerName": name,
        "brokerAddr": address,
        "clusterName": cluster,
        "haServerAddr": address.replace("10911", "10912"),
        "brokerId": str(broker_id),
        "bodyCrc32": str(crc32(body)),
        **ext,
    }
    return peer.ask(RequestCode.REGISTER_BROKER, header, body)


def unregister(peer: Peer, *, name: str = "b-a", broker_id: int = 0, address: str = "10.0.0.1:10911") -> None:
    ext = {"brokerName": name, "brokerAddr": address, "clusterName": "c1", "brokerId": str(broker_id)}
    assert peer.ask(RequestCode.UNREGISTER_BROKER, ext).code == 0


def route(peer: Peer, topic: str) -> Any:
    answer = peer.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
    if answer.code == ResponseCode.TOPIC_NOT_EXIST:
        return None
    assert answer.code == 0
    return json.loads(answer.body)  # strict JSON


def cluster(peer: Peer) -> Any:
    return json.loads(peer.ask(RequestCode.GET_BROKER_CLUSTER_INFO).body)


def test_a_registered_broker_is_in_routes_and_cluster(peer: Peer) -> None:
    assert route(peer, "T") is None
    answer = register(peer, TopicConfig(topic_name="T", read_queue_nums=4, write_queue_nums=2), "U")
    assert (answer.code, answer.ext, bytes(answer.body)) == (0, {}, b"")
    assert route(peer, "T") == {
        "brokerDatas": [
            {
                "brokerAddrs": {"0": "10.0.0.1:10911"},
                "brokerName": "b-a",
                "cluster": "c1",
                "enableActingMaster": False,
            }
        ],
        "filterServerTable": {},
        "queueDatas": [
            {"brokerName": "b-a", "perm": 6, "readQueueNums": 4, "topicSysFlag": 0, "writeQueueNums": 2}
        ],
    }
    assert cluster(peer)["clusterAddrTable"] == {"c1": ["b-a"]}


def test_a_compressed_registration(peer: Peer) -> None:
    assert register(peer, "T", "U", compress=True).code == 0
    assert route(peer, "U") is not None


def test_registrations_that_are_refused(peer: Peer) -> None:
    assert register(peer, "T", "U", bodyCrc32="7").code == ResponseCode.SYSTEM_ERROR
    lonely = register(peer, "T")
    assert (lonely.code, lonely.remark) == (ResponseCode.SYSTEM_ERROR, "register broker failed")
    assert cluster(peer) == {"brokerAddrTable": {}, "clusterAddrTable": {}}
    assert peer.ask(RequestCode.REGISTER_BROKER, {"brokerName": "x"}).code == ResponseCode.SYSTEM_ERROR
    assert register(peer).code == 0  # no topics at all is fine
    assert register(peer, "T", counter=2).code == 0  # and one is, once registered


def test_topics_follow_the_data_version(peer: Peer) -> None:
    register(peer, "T", "U")
    changed = TopicConfig(topic_name="T", write_queue_nums=1)
    register(peer, changed, "U")  # the same version: nothing new
    assert route(peer, "T")["queueDatas"][0]["writeQueueNums"] == 16
    register(peer, changed, "U", counter=2)
    assert route(peer, "T")["queueDatas"][0]["writeQueueNums"] == 1
    register(peer, "U", "V", counter=3)
    assert route(peer, "T") is not None  # absent topics stay

    _, _, strict = namesrv_peer(NamesrvConfig(delete_topic_with_broker_registration=True))
    register(strict, "T", "U")
    register(strict, "U", "V", counter=2)
    assert route(strict, "T") is None


def test_masters_and_slaves(peer: Peer) -> None:
    slave = another(peer)
    alone = register(slave, "T", "U", broker_id=1, address="10.0.0.2:10911")
    assert alone.ext == {}
    assert route(peer, "T") is None  # a slave of the old kind writes no topics
    register(peer, "T", "U")
    told = register(slave, "T", "X", broker_id=1, address="10.0.0.2:10911")
    assert told.ext == {"haServerAddr": "10.0.0.1:10912", "masterAddr": "10.0.0.1:10911"}
    assert route(peer, "T")["brokerDatas"][0]["brokerAddrs"] == {"0": "10.0.0.1:10911", "1": "10.0.0.2:10911"}
    assert route(peer, "X") is None
    unregister(peer)
    assert route(peer, "T")["brokerDatas"][0]["brokerAddrs"] == {"1": "10.0.0.2:10911"}
    unregister(peer, broker_id=1, address="10.0.0.2:10911")
    assert route(peer, "T") is None
    assert cluster(peer) == {"brokerAddrTable": {}, "clusterAddrTable": {}}


def test_a_slave_that_becomes_master_changes_its_id(peer: Peer) -> None:
    register(peer, "T", "U", broker_id=1)
    register(peer, "T", "U", broker_id=0, counter=2)
    assert route(peer, "T")["brokerDatas"][0]["brokerAddrs"] == {"0": "10.0.0.1:10911"}


def test_an_acting_master_is_read_only(peer: Peer) -> None:
    register(peer, "T", "U", broker_id=2, enableActingMaster="true")
    assert route(peer, "T")["queueDatas"][0]["perm"] == 4


def test_a_route_names_the_acting_master_as_master_while_there_is_none() -> None:
    acting = {"enableActingMaster": "true"}
    _, _, peer = namesrv_peer(NamesrvConfig(support_acting_master=True))
    member_group = "rmq_sys_SYNC_BROKER_MEMBER_b-a"
    places = {number: f"10.0.0.{number + 1}:10911" for number in range(3)}
    slaves = [another(peer), another(peer)]

    def shown(topic: str = "T") -> dict[str, str]:
        found: dict[str, str] = route(slaves[0], topic)["brokerDatas"][0]["brokerAddrs"]
        return found

    register(peer, "T", member_group, **acting)
    for number, slave in enumerate(slaves, start=1):
        register(slave, "T", member_group, broker_id=number, address=places[number], **acting)
    complete = {str(number): address for number, address in places.items()}
    assert shown() == complete

    unregister(peer)
    assert shown() == {"0": places[1], "2": places[2]}
    assert route(peer, "T")["queueDatas"][0]["perm"] == 4
    assert shown(member_group) == {"1": places[1], "2": places[2]}, "brokers ask who is really there"
    group = peer.ask(RequestCode.GET_BROKER_MEMBER_GROUP, {"clusterName": "c1", "brokerName": "b-a"})
    assert json.loads(group.body)["brokerMemberGroup"]["brokerAddrs"] == {"1": places[1], "2": places[2]}
    unregister(slaves[0], broker_id=1, address=places[1])
    assert route(peer, "T")["brokerDatas"][0]["brokerAddrs"] == {"0": places[2]}

    register(peer, "T", member_group, counter=2, **acting)
    assert shown() == {"0": places[0], "2": places[2]}
    assert route(peer, "T")["queueDatas"][0]["perm"] == 6


@pytest.mark.parametrize(("settings", "acting"), [({}, "true"), ({"support_acting_master": True}, "false")])
def test_no_slave_is_shown_as_master_unless_both_want_it(settings: dict[str, bool], acting: str) -> None:
    _, _, peer = namesrv_peer(NamesrvConfig(**settings))
    slave = another(peer)
    register(peer, "T", "U", enableActingMaster=acting)
    register(slave, "T", "U", broker_id=1, address="10.0.0.2:10911", enableActingMaster=acting)
    unregister(peer)
    assert route(slave, "T")["brokerDatas"][0]["brokerAddrs"] == {"1": "10.0.0.2:10911"}


NOTIFYING = NamesrvConfig(notify_min_broker_id_changed=True)
PLACES = {number: f"10.0.0.{number + 1}:10911" for number in range(4)}


def notices(core: NameServer) -> dict[str, tuple[int | None, str | None, str | None, str | None]]:
    """Address told -> (smallest id, its address, who went away, HA address of who appeared)."""
    found = {}
    for address, header in core.routes.take_notices():
        assert header.broker_name is None, "RocketMQ's name server does not say it"
        assert address not in found
        found[address] = (
            header.min_broker_id,
            header.min_broker_addr,
            header.offline_broker_addr,
            header.ha_broker_addr,
        )
    return found


def register_replica(peer: Peer, number: int, acting: str = "true", **more: Any) -> None:
    register(peer, "T", "U", broker_id=number, address=PLACES[number], enableActingMaster=acting, **more)


def test_the_others_are_told_of_a_smaller_broker_id_that_appears() -> None:
    core, _, peer = namesrv_peer(NOTIFYING)
    register_replica(peer, 2)
    assert notices(core) == {}, "the first one is news to nobody"
    register_replica(another(peer), 3)
    assert notices(core) == {}, "not the smallest"
    register_replica(another(another(peer)), 1)
    told = (1, PLACES[1], None, "10.0.0.2:10912")
    assert notices(core) == {PLACES[2]: told, PLACES[3]: told}
    register_replica(another(another(peer)), 1, counter=2)
    assert notices(core) == {}, "it was there already"


def test_a_broker_that_becomes_master_alone_is_told_so() -> None:
    core, _, peer = namesrv_peer(NOTIFYING)
    register(peer, "T", "U", broker_id=1, enableActingMaster="true")
    register(peer, "T", "U", broker_id=0, enableActingMaster="true", counter=2)
    assert notices(core) == {"10.0.0.1:10911": (0, "10.0.0.1:10911", None, "10.0.0.1:10912")}


@pytest.mark.parametrize("way", ["leaves", "disconnects", "is silent"])
def test_all_that_are_left_are_told_when_the_smallest_broker_id_goes_away(way: str) -> None:
    core, clock, peer = namesrv_peer(NOTIFYING)
    peers = [another(peer), another(another(peer)), another(another(another(peer)))]
    for number, each in enumerate(peers):
        register_replica(each, number, heartbeatTimeoutMillis="10000" if number == 0 else "60000")
    peers[2].disconnect()
    assert notices(core) == {}, "not the smallest"
    register_replica(another(peers[2]), 2)
    if way == "leaves":
        unregister(peers[0])
    elif way == "disconnects":
        peers[0].disconnect()
    else:
        wait(core, clock, 16_000)
    told = (1, PLACES[1], PLACES[0], None)
    assert notices(core) == {PLACES[1]: told, PLACES[2]: told}


def test_nobody_is_told_by_default_or_without_acting_masters() -> None:
    for config, acting in ((NamesrvConfig(), "true"), (NOTIFYING, "false")):
        core, _, peer = namesrv_peer(config)
        slave = another(peer)
        register_replica(peer, 0, acting)
        register_replica(slave, 1, acting)
        peer.disconnect()
        assert notices(core) == {}


def test_registrations_that_are_refused_tell_nobody() -> None:
    core, _, peer = namesrv_peer(NOTIFYING)
    register_replica(peer, 2)
    register(another(peer), "T", broker_id=1, address=PLACES[1])  # one topic without a base
    assert notices(core) == {}


def test_notices_are_bounded() -> None:
    core, _, peer = namesrv_peer(NamesrvConfig(notify_min_broker_id_changed=True, max_brokers=3))
    for name in "xyzw":
        for number in (2, 1):
            one = another(peer)
            register(one, "T", "U", name=name, broker_id=number, address=f"10.0.{ord(name)}.{number}:10911")
        unregister(one, name=name, broker_id=1, address=f"10.0.{ord(name)}.1:10911")
        unregister(one, name=name, broker_id=2, address=f"10.0.{ord(name)}.2:10911")
    assert len(notices(core)) == 3


def test_an_older_state_version_does_not_take_the_id(peer: Peer) -> None:
    register(peer, "T", "U", state_version=5)
    answer = register(peer, "T", "U", address="10.0.0.9:10911", state_version=4)
    assert (answer.code, answer.ext) == (0, {})
    assert route(peer, "T")["brokerDatas"][0]["brokerAddrs"] == {"0": "10.0.0.1:10911"}
    register(peer, "T", "U", address="10.0.0.9:10911", state_version=6)
    assert route(peer, "T")["brokerDatas"][0]["brokerAddrs"] == {"0": "10.0.0.9:10911"}


# --- liveness ---


def wait(core: NameServer, clock: ManualClock, time_ms: int) -> None:
    for step_ms in [TICK_MS] * (time_ms // TICK_MS) + [time_ms % TICK_MS]:
        clock.advance(step_ms)
        core.tick()


def test_time_in_which_the_name_server_was_paused_is_no_silence_of_brokers() -> None:
    core, clock, peer = namesrv_peer()
    broker = another(peer)
    register(broker, "T", "U")
    wait(core, clock, 100_000)
    clock.advance(600_000)
    core.tick()
    assert route(peer, "T") is not None
    assert broker.session.open
    wait(core, clock, 30_000)
    assert route(peer, "T") is None, "what was silent before counts"


def test_a_silent_broker_is_forgotten_and_its_connection_closed() -> None:
    core, clock, peer = namesrv_peer()
    broker = another(peer)
    register(broker, "T", "U")
    clock.advance(100_000)
    heartbeat = {"clusterName": "c1", "brokerAddr": "10.0.0.1:10911", "brokerName": "b-a"}
    broker.give(RequestCode.BROKER_HEARTBEAT, heartbeat, oneway=True)
    assert broker.heard() == []
    wait(core, clock, 119_000)
    assert route(peer, "T") is not None
    wait(core, clock, 11_000)
    assert route(peer, "T") is None
    assert not broker.session.open
    unknown = {**heartbeat, "brokerAddr": "10.9.9.9:1"}
    assert peer.ask(RequestCode.BROKER_HEARTBEAT, unknown).code == 0
    assert cluster(peer)["clusterAddrTable"] == {}


def test_a_broker_may_ask_for_a_shorter_expiry() -> None:
    core, clock, peer = namesrv_peer()
    register(peer, "T", "U", heartbeatTimeoutMillis="10000")
    wait(core, clock, 16_000)
    assert route(another(peer), "T") is None


def test_the_end_of_the_connection_unregisters_at_once(peer: Peer) -> None:
    old, new = another(peer), another(another(peer))
    register(old, "T", "U")
    register(new, "T", "U")  # reconnected before the old connection ended
    old.disconnect()
    assert route(peer, "T") is not None
    new.disconnect()
    assert route(peer, "T") is None


def test_data_versions() -> None:
    _, clock, peer = namesrv_peer()
    ext = {"brokerName": "b-a", "brokerAddr": "10.0.0.1:10911", "clusterName": "c1", "brokerId": "0"}
    same = b'{"counter":1,"stateVersion":0,"timestamp":1}'
    unknown = peer.ask(RequestCode.QUERY_DATA_VERSION, ext, same)
    assert (unknown.ext, bytes(unknown.body)) == ({"changed": "true"}, b"")
    register(peer, "T", "U")
    clock.advance(100_000)
    answer = peer.ask(RequestCode.QUERY_DATA_VERSION, ext, same)
    assert answer.ext == {"changed": "false"}
    assert json.loads(answer.body) == {"counter": 1, "stateVersion": 0, "timestamp": 1}
    older = peer.ask(RequestCode.QUERY_DATA_VERSION, ext, same.replace(b'"counter":1', b'"counter":2'))
    assert older.ext == {"changed": "true"}
    wait(peer.core, clock, 100_000)  # the query was a sign of life
    assert route(peer, "T") is not None


# --- topics ---


def test_write_permission(peer: Peer) -> None:
    register(peer, "T", "U", TopicConfig(topic_name="V", perm=4))
    wiped = peer.ask(RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "b-a"})
    assert wiped.ext == {"wipeTopicCount": "3"}
    assert route(peer, "T")["queueDatas"][0]["perm"] == 4
    added = peer.ask(RequestCode.ADD_WRITE_PERM_OF_BROKER, {"brokerName": "b-a"})
    assert added.ext == {"addTopicCount": "3"}
    assert route(peer, "V")["queueDatas"][0]["perm"] == 6
    assert peer.ask(RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "no"}).ext == {
        "wipeTopicCount": "0"
    }


def topics_of(peer: Peer, code: int, ext: dict[str, str] | None = None) -> list[str]:
    return sorted(json.loads(peer.ask(code, ext).body)["topicList"])


def test_topic_lists(peer: Peer) -> None:
    register(
        peer,
        "T",
        TopicConfig(topic_name="Unit", topic_sys_flag=1),
        TopicConfig(topic_name="Sub", topic_sys_flag=2),
    )
    register(peer, "T", "Else", name="b-b", address="10.0.0.2:10911", cluster="c2")
    assert topics_of(peer, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER) == ["Else", "Sub", "T", "Unit"]
    assert topics_of(peer, RequestCode.GET_TOPICS_BY_CLUSTER, {"cluster": "c2"}) == ["Else", "T"]
    assert topics_of(peer, RequestCode.GET_UNIT_TOPIC_LIST) == ["Unit"]
    assert topics_of(peer, RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST) == ["Sub"]
    assert topics_of(peer, RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST) == ["Sub"]
    system = json.loads(peer.ask(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS).body)
    assert sorted(system["topicList"]) == ["b-a", "b-b", "c1", "c2"]
    assert system["brokerAddr"] == "10.0.0.1:10911"
    settings = b"enableAllTopicList=false\nenableTopicList=false\n"
    assert peer.ask(RequestCode.UPDATE_NAMESRV_CONFIG, None, settings).code == 0
    assert peer.ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER).code == ResponseCode.SYSTEM_ERROR
    assert peer.ask(RequestCode.GET_UNIT_TOPIC_LIST).code == ResponseCode.SYSTEM_ERROR


def test_a_long_list_of_topics_leaves_in_pieces() -> None:
    core, _, peer = namesrv_peer()
    names = [f"Topic-{number:06d}" for number in range(20_000)]
    register(peer, *names)
    peer.give(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
    while core.work():
        pass
    assert max(map(len, peer.session.out)) < 3 * BODY_SLICE_BYTES
    (answer,) = peer.heard()
    assert sorted(json.loads(bytes(answer.body))["topicList"]) == names


@pytest.mark.parametrize(
    ("code", "ext"),
    [
        (RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, {}),
        (RequestCode.GET_TOPICS_BY_CLUSTER, {"cluster": "c1"}),
        (RequestCode.GET_UNIT_TOPIC_LIST, {}),
    ],
)
def test_a_list_of_very_many_topics_comes_in_slices(code: int, ext: dict[str, str]) -> None:
    core, _, peer = namesrv_peer()
    count = 2 * PAGES_A_SLICE * BLOCK_KEYS
    names = [f"T{number:05d}" for number in range(count)]
    register(peer, *(TopicConfig(topic_name=name, topic_sys_flag=1) for name in names))
    asker = another(peer)
    asker.give(code, ext)
    assert asker.heard() == []
    for gone in ("T00000", names[-1]):  # between two slices
        core.routes.delete_topic(gone)
    slices = 1
    while not (answers := asker.heard()):
        core.work()
        slices += 1
    assert slices > count // (PAGES_A_SLICE * BLOCK_KEYS) + count // 1_024
    listed = json.loads(answers[0].body)["topicList"]
    assert [name for name in listed if name not in ("T00000", names[-1])] == names[1:-1]
    assert list(core.routes.topic_names()) == names[1:-1]


def test_delete_and_register_a_topic(peer: Peer) -> None:
    register(peer, "T", "U")
    register(peer, "T", "U", name="b-b", address="10.0.0.2:10911", cluster="c2")
    assert peer.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "T", "clusterName": "c1"}).code == 0
    assert [queue["brokerName"] for queue in route(peer, "T")["queueDatas"]] == ["b-b"]
    assert peer.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "T"}).code == 0
    assert route(peer, "T") is None
    queue = {"readQueueNums": 1, "writeQueueNums": 1, "perm": 6, "topicSysFlag": 0}
    body = {"queueDatas": [{"brokerName": "b-a", **queue}, {"brokerName": "stranger", **queue}]}
    assert (
        peer.ask(RequestCode.REGISTER_TOPIC_IN_NAMESRV, {"topic": "T"}, json.dumps(body).encode()).code == 0
    )
    assert [queue["brokerName"] for queue in route(peer, "T")["queueDatas"]] == ["b-a"]
    assert peer.ask(RequestCode.REGISTER_TOPIC_IN_NAMESRV, {"topic": "T"}).code == 0


def test_member_group(peer: Peer) -> None:
    register(peer, "T", "U")
    ext = {"clusterName": "c1", "brokerName": "b-a"}
    group = json.loads(peer.ask(RequestCode.GET_BROKER_MEMBER_GROUP, ext).body)["brokerMemberGroup"]
    assert group == {"brokerAddrs": {"0": "10.0.0.1:10911"}, "brokerName": "b-a", "cluster": "c1"}
    unknown = peer.ask(RequestCode.GET_BROKER_MEMBER_GROUP, {"clusterName": "c1", "brokerName": "x"})
    assert json.loads(unknown.body)["brokerMemberGroup"]["brokerAddrs"] == {}


# --- key-value table ---


def test_key_values(peer: Peer) -> None:
    entry = {"namespace": "ns", "key": "k"}
    missing = peer.ask(RequestCode.GET_KV_CONFIG, entry)
    assert missing.code == ResponseCode.QUERY_NOT_FOUND
    assert (
        peer.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": "ns"}).code
        == ResponseCode.QUERY_NOT_FOUND
    )
    assert peer.ask(RequestCode.PUT_KV_CONFIG, {**entry, "value": "v"}).code == 0
    assert peer.ask(RequestCode.GET_KV_CONFIG, entry).ext == {"value": "v"}
    listed = json.loads(peer.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": "ns"}).body)
    assert listed == {"table": {"k": "v"}}
    assert peer.ask(RequestCode.DELETE_KV_CONFIG, entry).code == 0
    assert peer.ask(RequestCode.DELETE_KV_CONFIG, entry).code == 0
    assert peer.ask(RequestCode.GET_KV_CONFIG, entry).code == ResponseCode.QUERY_NOT_FOUND
    assert peer.ask(RequestCode.PUT_KV_CONFIG, {"key": "k"}).code == ResponseCode.SYSTEM_ERROR


def test_ordered_topics(peer: Peer) -> None:
    order = {"namespace": "ORDER_TOPIC_CONFIG", "key": "T", "value": "b-a:4"}
    peer.ask(RequestCode.PUT_KV_CONFIG, order)
    assert json.loads(register(peer, "T", "U").body) == {"table": {"T": "b-a:4"}}
    assert "orderTopicConf" not in route(peer, "T")
    assert peer.ask(RequestCode.UPDATE_NAMESRV_CONFIG, None, b"orderMessageEnable=true").code == 0
    assert route(peer, "T")["orderTopicConf"] == "b-a:4"
    peer.ask(RequestCode.DELETE_KV_CONFIG, order)
    assert "orderTopicConf" not in route(peer, "T")


def test_key_values_survive_in_their_file(tmp_path: Path) -> None:
    config = NamesrvConfig(kv_config_path=str(tmp_path / "kvConfig.json"))
    core, _, peer = namesrv_peer(config)
    assert not core.jobs_due
    opaque = peer.give(RequestCode.PUT_KV_CONFIG, {"namespace": "ns", "key": "k", "value": "v"})
    core.turn()
    assert core.jobs_due
    assert not peer.heard()
    complete(core.shutdown())
    assert not core.jobs_due
    assert [(each.opaque, each.code) for each in peer.heard()] == [(opaque, 0)]
    assert fastjson.loads((tmp_path / "kvConfig.json").read_bytes()) == {"configTable": {"ns": {"k": "v"}}}
    _, _, again = namesrv_peer(config)
    assert again.ask(RequestCode.GET_KV_CONFIG, {"namespace": "ns", "key": "k"}).ext == {"value": "v"}
    (tmp_path / "kvConfig.json").write_text("{")
    with pytest.raises(StoreCorrupt):
        namesrv_peer(config)


def test_a_change_that_cannot_be_saved_is_said_to_be_unsaved(tmp_path: Path) -> None:
    core, clock, peer = namesrv_peer(NamesrvConfig(kv_config_path=str(tmp_path / "kvConfig.json")))
    for _ in range(3):
        peer.give(RequestCode.PUT_KV_CONFIG, {"namespace": "ns", "key": "k", "value": "v"})
    core.turn()
    for job in core.jobs():
        job.done(OSError("the disk is gone"))
    core.tick()
    assert not peer.heard()
    clock.advance(3_000)
    core.tick()
    assert [each.code for each in peer.heard()] == [1, 1, 1]
    assert core.jobs_due


def test_changed_settings_go_into_the_file(tmp_path: Path) -> None:
    path = tmp_path / "namesrv.conf"
    path.write_text("# mine\norderMessageEnable=false\n")
    core, _, peer = namesrv_peer(settings_file=SettingsFile(path))
    for change in (b"orderMessageEnable=true", b"scanNotActiveBrokerInterval=9000"):
        peer.give(RequestCode.UPDATE_NAMESRV_CONFIG, None, change)
    core.turn()
    assert not peer.heard()
    complete(core.jobs())
    assert [each.code for each in peer.heard()] == [0, 0]
    assert path.read_text() == "# mine\norderMessageEnable=true\nscanNotActiveBrokerInterval=9000\n"
    assert not core.jobs_due


# --- settings and the rest ---


def test_settings(peer: Peer) -> None:
    text = bytes(peer.ask(RequestCode.GET_NAMESRV_CONFIG).body).decode()
    assert "orderMessageEnable=false\n" in text
    for change, code in (
        (b"kvConfigPath=/x", 16),
        (b"rocketmqHome=/x", 16),
        (b"configBlackList=x", 16),
        (b"scanNotActiveBrokerInterval=soon", 1),
        (b"scanNotActiveBrokerInterval=0", 1),
        (b"noSuch=1", 1),
    ):
        answer = peer.ask(RequestCode.UPDATE_NAMESRV_CONFIG, None, b"orderMessageEnable=true\n" + change)
        assert (answer.code, bool(answer.remark)) == (code, True)
    assert "orderMessageEnable=false\n" in bytes(peer.ask(RequestCode.GET_NAMESRV_CONFIG).body).decode()


def test_unknown_codes(peer: Peer) -> None:
    answer = peer.ask(9999)
    assert (answer.code, answer.remark) == (3, " request type 9999 not supported")


# --- zones -------------------------------------------------------------------------------------------------------


def names_in(answer: Command) -> tuple[list[str], list[str]]:
    """The brokers of a route, and those of its queues."""
    found = json.loads(answer.body)
    brokers = [each["brokerName"] for each in found["brokerDatas"]]
    return sorted(brokers), sorted(each["brokerName"] for each in found["queueDatas"])


def test_a_client_in_zone_mode_gets_the_brokers_of_its_zone(peer: Peer) -> None:
    for number, zone in enumerate(("East", "west", "")):
        register(peer, "T", "T2", name=f"b-{number}", address=f"10.0.0.{number}:10911", __ZONE_NAME=zone)

    def ask(**ext: str) -> tuple[list[str], list[str]]:
        answer = peer.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T", **ext})
        assert answer.code == 0
        return names_in(answer)

    everywhere = ["b-0", "b-1", "b-2"]
    assert ask() == (everywhere, everywhere)
    assert ask(__ZONE_MODE="true", __ZONE_NAME="east") == (["b-0"], ["b-0"])
    assert ask(__ZONE_MODE="TRUE", __ZONE_NAME="WEST") == (["b-1"], ["b-1"])
    assert ask(__ZONE_MODE="true", __ZONE_NAME="north") == ([], [])
    for more in (
        {"__ZONE_NAME": "east"},
        {"__ZONE_MODE": "true"},
        {"__ZONE_MODE": "1", "__ZONE_NAME": "east"},
    ):
        assert ask(**more) == (everywhere, everywhere)
    unregister(peer, name="b-0", address="10.0.0.0:10911")
    assert ask(__ZONE_MODE="true", __ZONE_NAME="east") == ([], [])  # not what was remembered


def test_a_broker_without_a_master_is_in_the_routes_of_all_zones(peer: Peer) -> None:
    register(peer, "T", "T2", name="b-w", address="10.0.0.1:10911", __ZONE_NAME="west")
    register(peer, "T", "T2", name="b-w", broker_id=1, address="10.0.0.2:10911", __ZONE_NAME="west")
    ext = {"topic": "T", "__ZONE_MODE": "true", "__ZONE_NAME": "east"}
    assert names_in(peer.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext)) == ([], [])
    unregister(peer, name="b-w", address="10.0.0.1:10911")
    assert names_in(peer.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext)) == (["b-w"], ["b-w"])


def test_zones_of_clients_are_bounded_and_checked() -> None:
    core, _, peer = namesrv_peer(NamesrvConfig(max_route_cache_bytes=20_000))
    register(peer, "T", "T2")
    for number in range(300):
        peer.ask(
            RequestCode.GET_ROUTEINFO_BY_TOPIC,
            {"topic": "T", "__ZONE_MODE": "true", "__ZONE_NAME": f"z{number}"},
        )
    assert all(table.bytes <= 20_000 for table in core.tables if table.name == "zoneRoutes")
    ext = {"topic": "T", "__ZONE_MODE": "true", "__ZONE_NAME": "a\nb"}
    assert peer.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext).code == ResponseCode.INVALID_PARAMETER


# --- the log -----------------------------------------------------------------------------------------------------


def test_the_key_value_table_is_printed_after_a_minute_and_every_ten(
    caplog: pytest.LogCaptureFixture,
) -> None:
    core, clock, peer = namesrv_peer()
    peer.ask(RequestCode.PUT_KV_CONFIG, {"namespace": "N", "key": "k", "value": "v\nforged"})
    caplog.set_level("INFO", "mqspark.namesrv")

    def printed() -> list[str]:
        core.tick()
        lines = [record.getMessage() for record in caplog.records]
        caplog.clear()
        return lines

    assert printed() == []
    clock.advance(60_000)
    assert printed() == ["key-value table: N k = v\\nforged"]
    clock.advance(599_000)
    assert printed() == []
    for number in range(200):
        peer.ask(RequestCode.PUT_KV_CONFIG, {"namespace": "M", "key": f"k{number}", "value": "v"})
    clock.advance(1_000)
    lines = printed()
    assert len(lines) == 101
    assert lines[-1] == "key-value table: and 101 more entries"


@pytest.mark.parametrize("returns", [False, True], ids=["stays away", "comes back"])
def test_a_master_of_many_topics_goes_away_in_slices(returns: bool) -> None:
    """All topics in one go held the name server, as often as somebody registered a master and left."""
    routes = RouteTable(NamesrvConfig(), ManualClock())
    topics = {f"T{number}": TopicConfig(topic_name=f"T{number}", perm=6) for number in range(5_000)}
    master, slave = BrokerIdentity("C", "b", 0, "10.0.0.1:1"), BrokerIdentity("C", "b", 1, "10.0.0.2:1")

    def register(broker: BrokerIdentity) -> None:
        given = routes.register(
            broker, topics, DataVersion(), ha_address="", session=None, acting_master=True
        )
        finished(given)

    def writable() -> int:
        found = [routes.route(topic) for topic in topics]
        return sum(route is not None and bool(route.queue_datas[0].perm & 2) for route in found)

    register(master)
    register(slave)
    routes.unregister(master)
    assert routes.sweep_waits
    assert writable() == 5_000
    sweep = routes.sweep()
    next(sweep)
    assert writable() == 5_000 - TOPICS_A_SLICE + 1
    if returns:
        register(master)
    finished(sweep)
    assert not routes.sweep_waits
    assert writable() == (5_000 if returns else 0)
