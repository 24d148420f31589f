"""A name server, or a broker, that passes on what it was asked: nothing of it holds at a broker, not even unchanged."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from mqspark import AdminClient, ClientOptions, Credentials, Message, Producer
from mqspark.client.remoting.blockingconnection import BlockingConnection
from mqspark.errors import BrokerError
from mqspark.protocol.codes import RequestCode as R
from mqspark.protocol.command import Command
from mqspark.protocol.signature import Signer
from mqspark.testing import Cluster
from mqspark_server.net.outbound import Dialing
from tests.support import users
from tests.support.remoting import RawConnection, Reply, ask
from tests.support.scripted import Answer, Scripted, route_of, served

ROOT = Credentials(*users.ROOT)
SIGNER = Signer(*users.ROOT)
DENIED = 16


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    settings = users.with_users(inner=("inner", "i-secret"))
    with Cluster(store=tmp_path_factory.mktemp("guarded"), settings=settings) as cluster:
        with AdminClient(cluster.namesrv, credentials=ROOT) as admin:
            for topic in ("Kept", "Lost"):
                admin.create_topic(topic, queues=1)
        yield cluster


class Evil:
    """Passes all requests on to a broker: routes as deletions of the topic, everything else as it is. For every topic
    it says that it is the broker itself."""

    def __init__(self, broker: str) -> None:
        self.broker = broker
        self.passed_on: list[tuple[int, Reply]] = []
        self.server = Scripted(self._answer)

    def _answer(self, command: Command) -> Answer:
        is_route = command.code == R.GET_ROUTEINFO_BY_TOPIC
        code = R.DELETE_TOPIC_IN_BROKER if is_route else command.code
        with RawConnection(self.broker) as connection:
            reply = connection.request(code, bytes(command.body), **command.ext)
        self.passed_on.append((command.code, reply))
        if is_route:
            return 0, None, route_of({"dev": self.server.address})
        return reply.code, reply.ext, reply.body

    def heard(self, code: int) -> set[tuple[int, bool]]:
        """What the broker said to requests of this code, and whether it is because of the signature."""
        return {
            (reply.code, "does not hold for this request" in str(reply.remark))
            for asked, reply in self.passed_on
            if asked == code
        }


@pytest.fixture
def evil(guarded: Cluster) -> Iterator[Evil]:
    one = Evil(guarded.apps[0].address)
    with served(one.server):
        yield one


def topics(cluster: Cluster) -> set[str]:
    """Those of the two that the broker has."""
    fields = ({"topic": topic} for topic in ("Kept", "Lost"))
    replies = {
        each["topic"]: ask(cluster.apps[0].address, R.GET_TOPIC_CONFIG, **SIGNER.signed(each))
        for each in fields
    }
    return {topic for topic, reply in replies.items() if reply.code == 0}


def test_a_producers_requests_hold_nowhere_else(guarded: Cluster, evil: Evil) -> None:
    with Producer(evil.server.address, group="p", options=ClientOptions(credentials=ROOT)) as producer:
        with pytest.raises(BrokerError):
            producer.send(Message("Kept", b"x"))
    remark = next(str(reply.remark) for asked, reply in evil.passed_on if asked == R.SEND_MESSAGE_V2)
    assert f"signed for {evil.server.address} " in remark
    assert f"this server is {evil.broker}: signatureBindingAddresses" in remark
    assert evil.heard(R.GET_ROUTEINFO_BY_TOPIC) == {(DENIED, True)}
    assert evil.heard(R.SEND_MESSAGE_V2) == {(DENIED, True)}
    assert "Kept" in topics(guarded)


@pytest.mark.parametrize("body", [b"", b"x" * 100_000])
def test_nor_do_those_of_a_worker(guarded: Cluster, evil: Evil, body: bytes) -> None:
    """Spark's workers and blocking clients have a connection of their own."""
    connection = BlockingConnection(evil.server.address, credentials=ROOT)
    for code in (R.GET_ROUTEINFO_BY_TOPIC, R.GET_TOPIC_CONFIG):
        connection.wait(connection.send(code, {"topic": "Kept"}, body))
        assert evil.heard(code) == {(DENIED, True)}
    (opaque,) = connection.send_all([(R.GET_MAX_OFFSET, {"topic": "Kept", "queueId": "0"})])
    assert connection.wait(opaque).code == DENIED
    connection.close()
    assert "Kept" in topics(guarded)


def test_nor_do_those_of_servers(guarded: Cluster, evil: Evil) -> None:
    async def request() -> None:
        peer = await Dialing(signer=SIGNER).connect(evil.server.address)
        for code in (R.GET_ROUTEINFO_BY_TOPIC, R.GET_TOPIC_CONFIG):
            await peer.request(code, {"topic": "Kept"}, timeout_s=60)
        peer.close()

    asyncio.run(request())
    for code in (R.GET_ROUTEINFO_BY_TOPIC, R.GET_TOPIC_CONFIG):
        assert evil.heard(code) == {(DENIED, True)}
    assert "Kept" in topics(guarded)


def test_those_of_rocketmqs_clients_do(guarded: Cluster, evil: Evil) -> None:
    """A client that does not bind its signatures is not protected: so it is in RocketMQ."""
    with RawConnection(evil.server.address) as client:
        client.request(R.GET_ROUTEINFO_BY_TOPIC, **SIGNER.signed({"topic": "Lost"}))
    assert evil.heard(R.GET_ROUTEINFO_BY_TOPIC) == {(0, False)}
    assert topics(guarded) == {"Kept"}


def test_a_broker_behind_a_port_of_another_address_names_it(tmp_path: Path) -> None:
    """As in a container: what clients reach is in signatureBindingAddresses."""
    evil = Evil("")
    with served(evil.server):
        settings = users.with_users(inner=None, signatureBindingAddresses=evil.server.address)
        with Cluster(store=tmp_path, settings=settings) as cluster:
            evil.broker = cluster.apps[0].address
            connection = BlockingConnection(evil.server.address, credentials=ROOT)
            assert connection.wait(connection.send(R.GET_ALL_TOPIC_CONFIG)).code == 0
            connection.close()
