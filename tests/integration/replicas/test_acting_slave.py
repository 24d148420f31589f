"""A slave of ours that acts as master, in processes of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mqspark.broker.broker import BrokerCore
from mqspark.protocol.codes import RequestCode
from mqspark.protocol.headers.cluster_headers import RegisterBrokerRequestHeader
from mqspark.testing import Cluster
from mqspark_server.namesrv_app import NameServerApp
from mqspark_server.net.outbound import PLAIN
from mqspark_server.settings.settings import Layer, namesrv_settings
from tests.interop.topics import create_topic
from tests.support.acting import ACTING, MASTER, OTHER, QUICK_CHECKS, SLAVE, deliver_once
from tests.support.clusters import mqspark_broker, mqspark_namesrv
from tests.support.scripted import SILENCE, Scripted
from tests.support.users import with_users
from tests.support.waiting import eventually, eventually_async


async def test_a_name_server_tells_brokers_which_id_is_the_smallest() -> None:
    """One-way, to the addresses that they registered; not when it stops itself."""
    settings = {"listenPort": "0", "bindAddress": "127.0.0.1", "kvConfigPath": ""}
    layer = Layer("test", {**settings, "supportActingMaster": "true", "notifyMinBrokerIdChanged": "true"})
    app = NameServerApp(namesrv_settings({}, layer))
    async with Scripted(lambda _: SILENCE).serving() as slave:
        await app.start()
        try:
            connections = []
            for broker_id, address in ((0, "127.0.0.1:9"), (1, slave.address)):
                connections.append(await PLAIN.connect(app.address))
                header = RegisterBrokerRequestHeader(
                    broker_name=ACTING["brokerName"],
                    broker_addr=address,
                    cluster_name="C",
                    ha_server_addr=address,
                    broker_id=broker_id,
                    enable_acting_master=True,
                )
                answer = await connections[-1].request(RequestCode.REGISTER_BROKER, header, timeout_s=30)
                assert answer.code == 0
            connections[0].close()
            await eventually_async(lambda: slave.asked, "the slave is told")
        finally:
            await app.stop()
            for connection in connections:
                connection.close()
    assert [(command.code, command.is_oneway) for command in slave.asked] == [
        (RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, True)
    ]
    assert slave.asked[0].ext == {
        "minBrokerId": "1",
        "minBrokerAddr": slave.address,
        "offlineBrokerAddr": "127.0.0.1:9",
    }


def core_of(cluster: Cluster, number: int) -> BrokerCore:
    parts = cluster.apps[number].parts
    assert parts is not None
    return parts.core


def slave_state(cluster: Cluster) -> tuple[bool, bool, bool]:
    """Whether the slave is the master of consumers, delivers what waits, and has a master."""
    acting = core_of(cluster, 1).role.acting
    assert acting is not None
    return cluster.call(lambda: (acting.is_acting, acting.is_delivering, acting.has_master))


@pytest.mark.parametrize("more", [{}, with_users(authorizationEnabled=False)], ids=["open", "users"])
def test_a_slave_acts_until_its_master_is_back(tmp_path: Path, more: dict[str, Any]) -> None:
    """With users, brokers sign what they ask each other."""
    settings = {"enableSlaveActingMaster": True, "enableRemoteEscape": True, **more}
    with Cluster(slaves=1, store=tmp_path, settings=settings) as cluster:
        eventually(lambda: slave_state(cluster) == (False, False, True), lambda: slave_state(cluster))
        for _ in range(2):
            cluster.kill(0)
            eventually(lambda: slave_state(cluster) == (True, True, False), lambda: slave_state(cluster))
            cluster.restart(0)
            assert core_of(cluster, 0).role.pre_online is None
            followers = cluster.call(lambda: core_of(cluster, 0).role.replicas.following)
            assert followers == 1, "before it is online"
            assert slave_state(cluster) == (False, False, True)


@pytest.mark.slow(
    "messages wait for ten seconds; tests/unit/broker/replication/test_acting.py is the fast twin"
)
def test_what_waits_is_delivered_once_while_a_slave_acts_as_master(tmp_path: Path) -> None:
    assert ACTING["enableSlaveActingMaster"]
    with (
        mqspark_namesrv(tmp_path / "namesrv", {"supportActingMaster": True}) as namesrv,
        mqspark_broker(tmp_path / "1", namesrv, SLAVE) as slave,
        mqspark_broker(tmp_path / "other", namesrv, {**OTHER, **QUICK_CHECKS}) as other,
    ):
        deliver_once(
            namesrv,
            lambda: mqspark_broker(tmp_path / "0", namesrv, {**MASTER, **QUICK_CHECKS}),
            slave,
            other,
            create_topic,
            10.0,
        )
