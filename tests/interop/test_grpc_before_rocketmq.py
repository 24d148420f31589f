"""``mqspark proxy run`` before a real broker of RocketMQ 5.5 with users."""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from collections.abc import Iterator

import pytest

from mqspark import aio
from mqspark.client.remoting.credentials import Credentials
from mqspark.client.sync import AdminClient
from mqspark.protocol.bodies.topic_bodies import SubscriptionGroupConfig
from mqspark_server.accounts import Accounts
from mqspark_server.proxy import messaging_pb2 as pb
from tests.interop.jars import Jars
from tests.interop.rocketmq import PATIENT, SOON, rocketmq_cluster
from tests.interop.test_credentials import with_users
from tests.support.clusters import Cluster
from tests.support.grpcclients import BareCaller, bare_caller, message, receive_request, resource, signed
from tests.support.processes import mqspark_command, process, ready_line, set_options
from tests.support.waiting import eventually

ROOT, ALICE = ("root", "root-secret"), ("alice", "alice-secret")
INNER = json.dumps({"accessKey": ROOT[0], "secretKey": ROOT[1]})
USERS = {
    "authenticationEnabled": True,
    "authorizationEnabled": True,
    "innerClientAuthenticationCredentials": INNER,
}
TYPES = {
    "normal": "NORMAL",
    "ordered": "FIFO",
    "delayed": "DELAY",
    "decided": "TRANSACTION",
    "closed": "NORMAL",
}
WAIT_S = 40.0

pytestmark = pytest.mark.slow("a real RocketMQ starts first")


async def let_alice_in(cluster: Cluster) -> None:
    async with aio.AdminClient(cluster.namesrv, credentials=Credentials(*ROOT)) as admin:
        accounts = await Accounts.of(admin)
        await accounts.put(ALICE[0], password=ALICE[1])
        for topic in TYPES.keys() - {"closed"}:
            await accounts.put_rule(ALICE[0], f"Topic:{topic}", ["Pub", "Sub"], [], allows=True)
            await accounts.put_rule(ALICE[0], f"Group:of-{topic}", ["Sub"], [], allows=True)


@pytest.fixture(scope="module")
def guarded(jars: Jars, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """RocketMQ with users. ALICE may use all topics but ``closed``."""
    folder = tmp_path_factory.mktemp("rocketmq")
    settings = {**with_users(folder / "auth", ROOT), **SOON, **PATIENT}
    with rocketmq_cluster(jars, folder, settings=settings) as cluster:
        with AdminClient(cluster.namesrv, credentials=Credentials(*ROOT)) as admin:
            for topic, kind in TYPES.items():
                admin.create_topic(topic, queues=2, attributes={"message.type": kind})
            for topic in TYPES:
                ordered = SubscriptionGroupConfig(consume_message_orderly=topic == "ordered")
                admin.create_group(f"of-{topic}", config=ordered)
        asyncio.run(let_alice_in(cluster))
        yield cluster


@pytest.fixture(scope="module")
def proxy(guarded: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    log = tmp_path_factory.mktemp("proxy") / "log"
    command = [*mqspark_command(), "proxy", "run", "-n", guarded.namesrv]
    settings = {"listenPort": 0, "bindAddress": "127.0.0.1", **USERS}
    with process([*command, *set_options(settings)], log, stdout=subprocess.PIPE) as child:
        yield ready_line(child, log)["grpc"]


@pytest.fixture
def alice(proxy: str) -> Iterator[BareCaller]:
    with bare_caller(proxy, **signed(*ALICE)) as caller:
        yield caller


def send(caller: BareCaller, topic: str, body: bytes, **system: object) -> pb.SendResultEntry:
    response = caller.SendMessage(pb.SendMessageRequest(messages=[message(topic, body, **system)]))
    assert response.status.code == pb.OK, response
    return response.entries[0]


def receive(caller: BareCaller, topic: str, count: int) -> list[pb.Message]:
    """Each is acknowledged."""
    received: list[pb.Message] = []
    group, give_up = f"of-{topic}", time.monotonic() + WAIT_S
    while len(received) < count and time.monotonic() < give_up:
        answers = list(caller.ReceiveMessage(receive_request(topic, group), timeout=30))
        got = [each.message for each in answers if each.HasField("message")]
        for each in got:
            entry = pb.AckMessageEntry(receipt_handle=each.system_properties.receipt_handle)
            acked = caller.AckMessage(
                pb.AckMessageRequest(topic=resource(topic), group=resource(group), entries=[entry])
            )
            assert acked.status.code == pb.OK, acked
        received += got
    return received


def test_messages_are_sent_received_and_acknowledged(alice: BareCaller) -> None:
    sent = {b"%d" % number for number in range(6)}
    for body in sent:
        send(alice, "normal", body, tag="blue", keys=["k"])
    received = receive(alice, "normal", len(sent))
    assert {each.body for each in received} == sent
    assert {each.system_properties.tag for each in received} == {"blue"}
    answers = list(alice.ReceiveMessage(receive_request("normal", "of-normal"), timeout=30))
    assert [each.status.code for each in answers if each.HasField("status")] == [pb.MESSAGE_NOT_FOUND]


def test_a_group_of_messages_is_in_order(alice: BareCaller) -> None:
    sent = [b"%d" % number for number in range(6)]
    for body in sent:
        send(alice, "ordered", body, message_type=pb.FIFO, message_group="one")
    assert [each.body for each in receive(alice, "ordered", len(sent))] == sent


def test_a_delayed_message_comes_at_its_time(alice: BareCaller) -> None:
    due_ms = int(time.time() * 1000) + 3000
    given = message("delayed", b"late", message_type=pb.DELAY)
    given.system_properties.delivery_timestamp.FromMilliseconds(due_ms)
    assert alice.SendMessage(pb.SendMessageRequest(messages=[given])).status.code == pb.OK
    (received,) = receive(alice, "delayed", 1)
    assert (received.body, time.time() * 1000 >= due_ms) == (b"late", True)


@pytest.mark.parametrize("resolution", [pb.COMMIT, pb.ROLLBACK])
def test_transactions_are_decided(alice: BareCaller, resolution: int) -> None:
    half = send(alice, "decided", b"%d" % resolution, message_type=pb.TRANSACTION)
    end = pb.EndTransactionRequest(
        topic=resource("decided"),
        message_id=half.message_id,
        transaction_id=half.transaction_id,
        resolution=resolution,
    )
    assert alice.EndTransaction(end).status.code == pb.OK
    if resolution == pb.COMMIT:
        assert [each.body for each in receive(alice, "decided", 1)] == [b"%d" % pb.COMMIT]


def test_who_may_not_is_refused(proxy: str, alice: BareCaller) -> None:
    refused = alice.SendMessage(pb.SendMessageRequest(messages=[message("closed")]))
    assert refused.status.code == pb.FORBIDDEN
    (answer, *_) = alice.ReceiveMessage(receive_request("normal", "of-closed"), timeout=30)
    assert answer.status.code == pb.FORBIDDEN
    for wrong in (signed(ALICE[0], "guessed"), {}):
        with bare_caller(proxy, **wrong) as stranger:
            given = stranger.SendMessage(pb.SendMessageRequest(messages=[message("normal")]))
            assert given.status.code == pb.UNAUTHORIZED


def test_the_users_of_the_proxy_are_those_of_the_broker_now(guarded: Cluster, proxy: str) -> None:
    async def remove() -> None:
        async with aio.AdminClient(guarded.namesrv, credentials=Credentials(*ROOT)) as admin:
            accounts = await Accounts.of(admin)
            await accounts.remove(ALICE[0])

    asyncio.run(remove())
    with bare_caller(proxy, **signed(*ALICE)) as caller:
        request = pb.SendMessageRequest(messages=[message("normal")])
        eventually(lambda: caller.SendMessage(request).status.code == pb.UNAUTHORIZED)
