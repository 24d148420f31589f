"""Controllers with users: brokers sign to them, they sign to brokers, and nobody else is heard."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from mqspark import AdminClient, Credentials, Message, Producer, SendStatus
from mqspark.auth.access import TABLE, NoFacts
from mqspark.controller.controller import Controller
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.signature import Signer
from mqspark.testing import Cluster
from mqspark_server.controller_app import ControllerApp
from mqspark_server.namesrv_app import NameServerApp
from mqspark_server.settings.settings import Layer, controller_settings, namesrv_settings
from tests.support.processes import HOST, free_port
from tests.support.remoting import RawConnection, Reply
from tests.support.users import with_users
from tests.support.waiting import eventually
from tests.unit.auth_kit import SignedPeer, allow, authority
from tests.unit.controller_kit import NAME, ControllerBench

ROOT = Credentials("root", "root-secret")
INNER = Signer("inner", "inner-secret")
STRANGER = Signer("nobody", "guessed")
SETTINGS = with_users(inner=("inner", "inner-secret"))
NEW_USER = {"username": "late", "password": "late-secret", "userType": "Normal"}
_ONE_BROKER = {"brokerName": "dev", "clusterName": "DefaultCluster", "brokerClusterName": "DefaultCluster"}


def reply_to(
    address: str, code: int, signer: Signer | None, fields: dict[str, str], body: bytes = b""
) -> Reply:
    with RawConnection(address, timeout_s=60) as connection:
        ext = fields if signer is None else signer.signed(fields, body)
        return connection.request(code, body, **ext)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two replicas and their controller."""
    store = tmp_path_factory.mktemp("guarded")
    with Cluster(brokers=2, replication="controller", store=store, settings=SETTINGS) as cluster:
        yield cluster


def controller_of(cluster: Cluster) -> ControllerApp:
    controller = cluster.processes.controller
    assert controller is not None
    return controller


@pytest.mark.parametrize("signer", [None, STRANGER], ids=["unsigned", "guessed"])
def test_nobody_else_is_heard(guarded: Cluster, signer: Signer | None) -> None:
    controller = controller_of(guarded)
    core = controller.core
    assert isinstance(core, Controller)
    before = guarded.call(lambda: core.replicas.generation)
    assert RequestCode.CONTROLLER_ELECT_MASTER in core.handlers
    for code in core.handlers:
        reply = reply_to(controller.address, code, signer, dict(_ONE_BROKER))
        assert reply.code == ResponseCode.NO_PERMISSION, RequestCode(code).name
    assert guarded.call(lambda: core.replicas.generation) == before


def test_brokers_and_operators_are_heard(guarded: Cluster) -> None:
    address = controller_of(guarded).address
    for signer in (INNER, Signer(ROOT.access_key, ROOT.secret_key)):
        reply = reply_to(address, RequestCode.CONTROLLER_GET_REPLICA_INFO, signer, {"brokerName": "dev"})
        assert (reply.code, reply.ext["masterBrokerId"]) == (0, "1")


def test_a_broker_believes_news_only_from_its_controllers(guarded: Cluster) -> None:
    app = guarded.apps[0]
    fields = {
        "masterAddress": "127.0.0.1:1",
        "masterEpoch": "999",
        "syncStateSetEpoch": "999",
        "masterBrokerId": "7",
    }
    code = RequestCode.NOTIFY_BROKER_ROLE_CHANGED
    assert code in TABLE
    assert reply_to(app.address, code, None, fields).code == ResponseCode.NO_PERMISSION
    assert reply_to(app.address, code, STRANGER, fields).code == ResponseCode.NO_PERMISSION
    assert reply_to(app.address, code, INNER, fields).code == ResponseCode.SUCCESS


def test_who_may_only_read_deposes_no_master(tmp_path: Path) -> None:
    """A broker says in its question which epoch it knows: a newer one shows that the state is older."""
    bench = ControllerBench(tmp_path / "state")
    bench.join(1)
    assert bench.elect(1).code == 0
    one = authority(tmp_path / "auth")
    allow(one, "reader", "Cluster:* Get")
    allow(one, "broker", "Cluster:* Get,Update")
    bench.core.handlers = one.guard(bench.core.handlers, NoFacts())
    found = bench.core.replicas.get(NAME)
    assert found is not None
    asked, claim = {"brokerName": NAME}, {"brokerName": NAME, "knownEpoch": "7"}
    reader, broker = (SignedPeer(bench.connect(), name) for name in ("reader", "broker"))
    code = RequestCode.CONTROLLER_GET_REPLICA_INFO
    assert [reader.ask(code, each).code for each in (asked, claim)] == [0, ResponseCode.NO_PERMISSION]
    assert (found.master, found.master_epoch) == (1, 1)
    assert broker.ask(code, claim).code == 0
    assert (found.master, found.master_epoch) == (None, 7)


def test_a_new_master_is_told_and_goes_on(tmp_path: Path) -> None:
    """The brokers do not ask by themselves for ten minutes: the other one is told, and believes it."""
    settings = {**SETTINGS, "syncBrokerMetadataPeriod": 600_000, "minInSyncReplicas": 1}
    with Cluster(brokers=2, replication="controller", store=tmp_path, settings=settings) as cluster:
        with AdminClient(cluster.namesrv, credentials=ROOT) as admin:
            admin.create_topic("Kept", queues=1)
        first = cluster.master
        assert first is not None
        with Producer(cluster.namesrv, group="p", credentials=ROOT, send_timeout_ms=60_000) as producer:
            assert producer.send(Message("Kept", b"0")).status is SendStatus.SEND_OK
            eventually(lambda: cluster.sync_state_set == {0, 1})  # before, nobody may take its place
            cluster.kill(first)
            assert producer.send(Message("Kept", b"1")).status is SendStatus.SEND_OK
        assert cluster.master == 1 - first


def new_user(address: str) -> int:
    body = json.dumps(NEW_USER).encode()
    return reply_to(address, RequestCode.AUTH_CREATE_USER, INNER, {"username": "late"}, body).code


def has_user(address: str) -> bool:
    reply = reply_to(address, RequestCode.AUTH_GET_USER, INNER, {"username": "late"})
    return reply.code == 0 and b"late" in reply.body


def test_a_controller_keeps_its_users(tmp_path: Path) -> None:
    values = {**SETTINGS, "bindAddress": HOST, "listenPort": 0, "controllerStorePath": str(tmp_path)}

    async def run() -> None:
        for is_known in (False, True):
            app = ControllerApp(controller_settings({}, Layer("test", values)))
            await app.start()
            try:
                assert await asyncio.to_thread(has_user, app.address) == is_known
                if not is_known:
                    assert await asyncio.to_thread(new_user, app.address) == 0
            finally:
                await app.stop()

    asyncio.run(run())
    assert (tmp_path / "config" / "auth" / "audit.log").exists()


def test_a_controller_in_a_name_server_has_its_users(tmp_path: Path) -> None:
    values = {
        **SETTINGS,
        "bindAddress": HOST,
        "listenPort": 0,
        "authConfigPath": str(tmp_path / "users"),
        "enableControllerInNamesrv": True,
        "controllerDLegerPeers": f"n0-{HOST}:{free_port()}",
        "controllerStorePath": str(tmp_path / "controller"),
    }

    async def run() -> None:
        app = NameServerApp(namesrv_settings({}, Layer("test", values)))
        await app.start()
        controller = app.controller
        assert controller is not None
        try:
            code = RequestCode.CONTROLLER_GET_METADATA_INFO
            for signer, answer in ((None, ResponseCode.NO_PERMISSION), (INNER, ResponseCode.SUCCESS)):
                reply = await asyncio.to_thread(reply_to, controller.address, code, signer, {})
                assert reply.code == answer
        finally:
            await app.stop()

    asyncio.run(run())
