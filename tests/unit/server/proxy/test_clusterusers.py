"""The users of a cluster before which a proxy stands."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from mqspark.auth.config import AuthConfig
from mqspark.auth.failures import FAILURES
from mqspark.errors import ConfigError
from mqspark.protocol.bodies.body import encode_body
from mqspark.protocol.bodies.client_bodies import HeartbeatData
from mqspark.protocol.codes import CURRENT_VERSION, Language, RequestCode, ResponseCode
from mqspark.protocol.command import Command
from mqspark.protocol.headers.client_headers import AckMessageRequestHeader
from mqspark.protocol.headers.header import Header
from mqspark.protocol.session import Session
from mqspark.protocol.signature import ON_BEHALF_OF, Signer, content_of
from mqspark_server.net.outbound import Dialing
from mqspark_server.proxy import messaging_pb2 as pb
from mqspark_server.proxy.backend import GrpcCaller, Proof
from mqspark_server.proxy.backends import clusterusers
from mqspark_server.proxy.backends.clusterbackend import ClusterLink
from mqspark_server.proxy.backends.clusterroutes import ClusterRoutes
from mqspark_server.proxy.backends.clusterusers import ClusterUsers, check_auth_of_proxy
from mqspark_server.proxy.grpcstatus import GrpcRefusal
from tests.support.scripted import Scripted

INNER = json.dumps({"accessKey": "inner", "secretKey": "inner-secret"})
CONFIG = AuthConfig(
    authentication_enabled=True,
    authorization_enabled=True,
    inner_client_authentication_credentials=INNER,
)


def user(name: str, kind: str = "Normal", status: str = "enable") -> dict[str, str]:
    return {"username": name, "password": f"{name}-secret", "userType": kind, "userStatus": status}


BROKER = "broker-a"


class JavaBroker:
    """What a broker of RocketMQ answers: it lists its users with their secrets, and knows no copies."""

    def __init__(self) -> None:
        self.users = [user("inner", "Super"), user("reader"), user("gone", status="disable")]
        entry = {"resource": "Topic:open", "actions": ["Sub"], "sourceIps": None, "decision": "Allow"}
        group = {"resource": "Group:readers", "actions": ["Sub"], "decision": "Allow"}
        policies = [{"policyType": "Custom", "entries": [entry, group]}]
        self.acls: list[dict[str, object]] = [{"subject": "User:reader", "policies": policies}]
        self.groups = {(BROKER, "readers_all")}
        self.code = ResponseCode.SUCCESS

    async def ask(self, code: int, fields: Mapping[str, str]) -> Command:
        if self.code != ResponseCode.SUCCESS:
            return Command(self.code, remark="no")
        if "filter" in fields:
            return Command(self.code)  # nobody has such a name
        if code == RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG:
            self.groups.add((BROKER, fields["group"]))  # autoCreateSubscriptionGroup
            return Command(self.code)
        listed = self.users if code == RequestCode.AUTH_LIST_USER else self.acls
        return Command(self.code, body=json.dumps(listed).encode())

    async def ask_broker(self, broker: str, code: int, fields: Mapping[str, str]) -> Command:
        if self.code != ResponseCode.SUCCESS or code != RequestCode.QUERY_TOPICS_BY_CONSUMER:
            return await self.ask(code, fields)
        consumed = ["all"] if (broker, fields["group"]) in self.groups else []
        return Command(self.code, body=json.dumps({"topicList": consumed, "brokerAddr": "b:1"}).encode())


def proof(name: str, secret: str | None = None) -> Proof:
    signer = Signer(name, secret or f"{name}-secret")
    return Proof(name, b"now", base64.b64decode(signer.signature(b"now")))


async def no_place(code: int, header: Header) -> Command:
    raise AssertionError("the request names no place")


def ack(topic: str) -> AckMessageRequestHeader:
    return AckMessageRequestHeader(
        consumer_group="readers", topic=topic, queue_id=0, extra_info="x", offset=0
    )


HERE, ELSEWHERE = "10.0.0.7", "203.0.113.7"


@pytest.fixture
def broker() -> JavaBroker:
    return JavaBroker()


@pytest.fixture
def users(broker: JavaBroker) -> ClusterUsers:
    return ClusterUsers(CONFIG, broker.ask, broker.ask_broker)


def session_of_caller() -> Session:
    return Session(0, HERE, 4000, [])


def refused(error: pytest.ExceptionInfo[GrpcRefusal]) -> int:
    return int(error.value.code)


async def test_users_are_copied_again_whatever_went_wrong(
    broker: JavaBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without that a user who was removed would stay one."""
    monkeypatch.setattr(clusterusers, "USERS_RETRY_S", 0.0)
    wrong: list[Exception] = [RuntimeError("nobody expects it"), KeyError("nor this")]

    async def ask(code: int, fields: Mapping[str, str]) -> Command:
        if wrong:
            raise wrong.pop()
        return await broker.ask(code, fields)

    users = ClusterUsers(CONFIG, ask, broker.ask_broker)
    await users.start()
    try:
        for _ in range(200):
            await asyncio.sleep(0)
        users.rights(session_of_caller()).sign_in(proof("reader"), HERE)
    finally:
        users.close()
    assert "the users of the cluster cannot be copied" in caplog.text


async def test_a_broker_of_rocketmq_lists_its_users_and_policies(
    broker: JavaBroker, users: ClusterUsers
) -> None:
    session = session_of_caller()
    with pytest.raises(GrpcRefusal, match="not known yet"):
        users.rights(session).sign_in(proof("reader"), HERE)
    await users.refresh()
    users.rights(session).sign_in(proof("reader"), HERE)
    users.rights(session).see("open")
    await users.check(session, RequestCode.ACK_MESSAGE, ack("open"), b"", no_place)
    with pytest.raises(GrpcRefusal) as error:
        await users.check(session, RequestCode.ACK_MESSAGE, ack("closed"), b"", no_place)
    assert refused(error) == pb.FORBIDDEN
    with pytest.raises(GrpcRefusal) as error:
        users.rights(session).see("closed")
    assert refused(error) == pb.FORBIDDEN


@pytest.mark.parametrize("sources", [None, ["10.0.0.0/8"]])
async def test_a_client_id_lends_nobody_an_address(
    broker: JavaBroker, users: ClusterUsers, sources: list[str] | None
) -> None:
    """The calls of a client id and its user are judged as those of one client, wherever they come from."""
    broker.acls[0]["policies"][0]["entries"][0]["sourceIps"] = sources  # type: ignore[index]
    await users.refresh()
    session = session_of_caller()
    users.rights(session).sign_in(proof("reader"), HERE)
    if sources is None:
        users.rights(session).sign_in(proof("reader"), ELSEWHERE)  # balancers spread the calls of a client
    else:
        with pytest.raises(GrpcRefusal, match="has policies for addresses"):
            users.rights(session).sign_in(proof("reader"), ELSEWHERE)
    for _ in range(FAILURES):
        with pytest.raises(GrpcRefusal):
            users.rights(session).sign_in(proof("reader", "guessed"), ELSEWHERE)
    with pytest.raises(GrpcRefusal, match="too many wrong signatures"):
        users.rights(session).sign_in(proof("reader"), ELSEWHERE)
    users.rights(session).sign_in(proof("reader"), HERE)
    users.rights(session_of_caller()).sign_in(proof("reader"), HERE)


async def test_retries_of_another_group_are_not_those_of_ones_own_and_a_topic(
    broker: JavaBroker, users: ClusterUsers
) -> None:
    """``%RETRY%readers_all``: of the group readers_all, or of readers and the topic all."""
    entry = {"resource": "Topic:*", "actions": ["Sub"], "sourceIps": None, "decision": "Allow"}
    broker.acls[0]["policies"][0]["entries"][0] = entry  # type: ignore[index]
    await users.refresh()
    session = session_of_caller()
    users.rights(session).sign_in(proof("reader"), HERE)

    async def acknowledge(topic: str, at: str = BROKER) -> None:
        await users.check(session, RequestCode.ACK_MESSAGE, ack(topic), b"", no_place, at)

    for _ in range(2):
        await acknowledge("%RETRY%readers_open")
        with pytest.raises(GrpcRefusal, match="Group:readers_all"):
            await acknowledge("%RETRY%readers_all")
    await acknowledge("%RETRY%readers_all", "broker-b")
    assert broker.groups == {(BROKER, "readers_all")}, "to ask makes no group"
    broker.code = ResponseCode.SYSTEM_BUSY
    with pytest.raises(GrpcRefusal):
        await acknowledge("%RETRY%readers_late")


@pytest.mark.parametrize("given", [None, proof("reader", "wrong"), proof("nobody"), proof("gone")])
async def test_a_proof_that_does_not_hold_is_refused(users: ClusterUsers, given: Proof | None) -> None:
    await users.refresh()
    with pytest.raises(GrpcRefusal) as error:
        users.rights(session_of_caller()).sign_in(given, HERE)
    assert refused(error) == pb.UNAUTHORIZED


async def test_a_user_that_is_removed_is_refused_and_a_broker_that_fails_changes_nothing(
    broker: JavaBroker, users: ClusterUsers
) -> None:
    session = session_of_caller()
    await users.refresh()
    users.rights(session).sign_in(proof("reader"), HERE)
    broker.code = ResponseCode.NO_PERMISSION
    with pytest.raises(Exception, match="refuses to send its users"):
        await users.refresh()
    await users.check(session, RequestCode.ACK_MESSAGE, ack("open"), b"", no_place)
    broker.code = ResponseCode.SUCCESS
    broker.users, broker.acls = broker.users[:1], []
    await users.refresh()
    with pytest.raises(GrpcRefusal):
        await users.check(session, RequestCode.ACK_MESSAGE, ack("open"), b"", no_place)
    with pytest.raises(GrpcRefusal):
        users.rights(session).sign_in(proof("reader"), HERE)


@pytest.mark.parametrize(
    "config",
    [
        AuthConfig(authentication_enabled=True),
        AuthConfig(inner_client_authentication_credentials=INNER),
        AuthConfig(
            authentication_enabled=True,
            inner_client_authentication_credentials=INNER,
            init_authentication_user='{"username":"a","password":"b"}',
        ),
    ],
)
async def test_settings_that_a_proxy_does_not_keep_are_refused(config: AuthConfig) -> None:
    with pytest.raises(ConfigError):
        check_auth_of_proxy(config)
    check_auth_of_proxy(CONFIG)


async def test_a_user_has_so_many_clients_at_a_proxy(broker: JavaBroker) -> None:
    """Others find a place."""
    broker.users.append(user("writer"))
    users = ClusterUsers(replace(CONFIG, max_connections_per_user=2), broker.ask, broker.ask_broker)
    await users.refresh()
    caller = GrpcCaller("client", "reader", (HERE, 4000), Language.JAVA, CURRENT_VERSION)
    cluster: Any = SimpleNamespace(routes=None, users=users, ready_topic=lambda name: None)
    first, second = (ClusterLink(cluster, caller, lambda broker, command: None) for _ in range(2))
    for link in (first, second, first):
        link.rights.sign_in(proof("reader"), HERE)
    with pytest.raises(GrpcRefusal, match="has 2 connections, which is maxConnectionsPerUser"):
        users.rights(session_of_caller()).sign_in(proof("reader"), HERE)
    users.rights(session_of_caller()).sign_in(proof("writer"), HERE)
    first.close()
    users.rights(session_of_caller()).sign_in(proof("reader"), HERE)


class OneBroker(ClusterRoutes):
    """A cluster of one."""

    def __init__(self, address: str, signer: Signer) -> None:
        super().__init__([], Dialing(signer=signer))
        self.address = address

    def master_of(self, broker: str) -> str:
        return self.address


@pytest.mark.parametrize("has_users", [True, False])
async def test_brokers_are_told_for_which_user_a_proxy_asks(users: ClusterUsers, has_users: bool) -> None:
    """If the caller has proved to be that user."""
    await users.refresh()
    signer = Signer("inner", "inner-secret")
    async with Scripted(lambda command: (0, None, b"")).serving() as broker:
        cluster: Any = SimpleNamespace(
            routes=OneBroker(broker.address, signer),
            users=users if has_users else None,
            ready_topic=lambda name: None,
        )
        caller = GrpcCaller("client", "reader", (HERE, 4000), Language.JAVA, CURRENT_VERSION)
        link = ClusterLink(cluster, caller, lambda broker, command: None)
        link.rights.sign_in(proof("reader"), HERE)
        heartbeat = encode_body(HeartbeatData(client_id="client"))
        await link.request(BROKER, RequestCode.HEART_BEAT, None, heartbeat, timeout_s=60)
        link.close()
        (asked,) = broker.asked
    assert asked.ext.get(ON_BEHALF_OF) == ("reader" if has_users else None)
    assert asked.ext["Signature"] == signer.signature(content_of(asked.ext), asked.body)
