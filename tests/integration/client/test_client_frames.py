"""Every request that our client makes, beside those that Java clients and mqadmin were recorded to make: the same
header fields, the same members in JSON bodies."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import hashlib
import hmac
import json
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import mqspark.broker.broker
import mqspark.namesrv.namesrv
from mqspark.aio import (
    AdminClient,
    ClientOptions,
    ConsumeFromWhere,
    Credentials,
    LitePullConsumer,
    Message,
    MessageExt,
    MessageModel,
    MessageQueue,
    PopConsumer,
    Producer,
    PushConsumer,
    TransactionProducer,
    TransactionState,
)
from mqspark.client.blocking import BlockingClient
from mqspark.protocol.binding import BINDING
from mqspark.protocol.codes import Language, RequestCode
from mqspark.protocol.command import Command
from mqspark.protocol.connection import Connection
from mqspark.protocol.fastjson import loads
from mqspark.protocol.session import Session
from mqspark.testing import Broker
from tests.support.waiting import eventually_async

FRAMES = Path(__file__).parents[2] / "golden" / "frames"
WAIT_S = 60.0
FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET

Request = tuple[frozenset[str], frozenset[str]]
"""Names of header fields; of members of the body."""


OF_BROKERS = {RequestCode.REGISTER_BROKER, RequestCode.UNREGISTER_BROKER}

DIFFERENT = {
    RequestCode.QUERY_CONSUMER_OFFSET: {
        "setZeroIfNotFound"
    },  # administration wants to know whether there is one
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: {"suspend"},  # new in 5.4; these recordings are of 5.3.3
    RequestCode.CONSUMER_SEND_MSG_BACK: {
        "maxReconsumeTimes"
    },  # unless it is given, the group's settings decide
    RequestCode.HEART_BEAT: {".producerDataSet[].groupName"},  # every Java client has a producer inside
}
"""Fields and members that may be there or not."""

ASKED = {
    11, 14, 15, 17, 25, 26, 28, 29, 30, 31, 34, 35, 36, 37, 38, 41, 42, 46, 105, 106, 200, 202, 203, 206, 207, 215, 216,
    310, 320, 325, 351, 361, 370, 400, 401, 200050, 200051, 200053,
}  # fmt: skip
"""What is compared here at least."""


def shape_of(command: Command) -> Request:
    different = DIFFERENT.get(RequestCode(command.code), set())
    signing = {"AccessKey", "SecurityToken", "Signature", BINDING}
    return frozenset(command.ext) - different - signing, frozenset(members(command)) - different


def check_signature(command: Command) -> None:
    """As the server of AclUtils does: over all fields that came, in their order, and the body."""
    ext = dict(command.ext)
    theirs = ext.pop("Signature", None)
    assert (ext.get("AccessKey"), ext.get("SecurityToken")) == ("canary-access", "canary-token"), command.code
    content = "".join(value for _, value in sorted(ext.items())).encode() + bytes(command.body)
    digest = hmac.new(CANARY.encode(), content, hashlib.sha1).digest()
    assert theirs == base64.b64encode(digest).decode(), command.code


def members(command: Command) -> Iterator[str]:
    body = bytes(command.body)
    if not body.startswith((b"{", b"[")):
        return

    def walk(value: Any, path: str) -> Iterator[str]:
        if isinstance(value, dict):
            for name, inner in value.items():
                here = f"{path}.{name}" if path.count("Table") == 0 else f"{path}.*"
                yield here
                yield from walk(inner, here)
        elif isinstance(value, list):
            for inner in value:
                yield from walk(inner, f"{path}[]")

    yield from walk(loads(body), "")


def recorded(name: str) -> Iterator[Command]:
    """Requests of the side that opened the connection."""
    for line in (FRAMES / f"{name}.jsonl").read_text().splitlines():
        frame = json.loads(line)
        if frame["dir"] == "c2s" and not frame["flag"] & 1:
            yield Connection().receive_data(bytes.fromhex(frame["frame_hex"]))[0]


@cache
def java() -> dict[int, set[Request]]:
    found: dict[int, set[Request]] = defaultdict(set)
    for path in FRAMES.glob("*.jsonl"):
        if (
            path.stem.endswith("_bin")
            or path.stem in ("errors", "send_acl")
            or path.stem.startswith("broker_")
        ):
            continue
        for command in recorded(path.stem):
            if command.code in set(RequestCode):
                found[command.code].add(shape_of(command))
    return found


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[Command]:
    """What brokers and name servers of this process are asked."""
    heard: list[Command] = []
    for core in (mqspark.broker.broker.BrokerCore, mqspark.namesrv.namesrv.NameServer):
        received = core.received

        def listen(
            self: Any, session: Session, commands: Iterable[Command], received: Callable[..., None] = received
        ) -> None:
            commands = list(commands)
            heard.extend(command for command in commands if not command.is_response)
            received(self, session, commands)

        monkeypatch.setattr(core, "received", listen)
    return heard


CANARY = "canary-sécret"
KEYS = {
    "MQSPARK_ACCESS_KEY": "canary-access",
    "MQSPARK_SECRET_KEY": CANARY,
    "MQSPARK_SECURITY_TOKEN": "canary-token",
}


@pytest.mark.parametrize("keys", [{}, KEYS], ids=["plain", "signed"])
async def test_requests(
    requests: list[Command],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    keys: dict[str, str],
) -> None:
    """Every kind of request; and with keys, that every single one is signed and that no log line shows them."""
    for variable, value in keys.items():
        monkeypatch.setenv(variable, value)
    caplog.set_level(logging.DEBUG)
    options = ClientOptions(heartbeat_interval_ms=300, route_interval_ms=300)
    with Broker(settings={"recallMessageEnable": "true", "enablePropertyFilter": "true"}) as broker:
        namesrv = broker.namesrv
        got: list[bytes] = []

        async def listen(message: MessageExt) -> None:
            got.append(message.body)
            if message.body == b"fails" and not message.reconsume_times:
                raise ValueError

        async with AdminClient(namesrv) as admin:
            for topic in ("T", "Popped"):
                await admin.create_topic(topic, queues=2)
            await admin.create_group("push")
            async with Producer(namesrv, group="p", options=options) as producer:
                for body in ("one", "fails"):
                    await producer.send(Message.of("T", body, tags="A", keys="schlüssel"))
                await producer.send_oneway(Message.of("T", "oneway"))
                await producer.send_batch([Message.of("T", "b1"), Message.of("T", "b2")])
                timed = await producer.send(Message.of("T", "timed", delay_ms=60_000))
                assert timed.recall_handle is not None
                await producer.recall("T", timed.recall_handle)
                await consuming(namesrv, options, listen, got, tmp_path)
                await asking(namesrv, options, producer)
            await pulling(namesrv, options)
            await administering(admin, broker)
    if keys:
        of_clients = [command for command in requests if command.language == Language.PYTHON]
        for command in of_clients:
            check_signature(command)
        assert {command.code for command in of_clients} >= ASKED
        assert "canary" not in caplog.text
    asked = {command.code for command in requests} - OF_BROKERS
    unlike = {
        (RequestCode(command.code).name, *map(tuple, map(sorted, shape_of(command))))
        for command in requests
        if command.code in asked and shape_of(command) not in java()[command.code]
    }
    assert unlike == set()
    assert asked >= ASKED, ASKED - asked


def test_the_blocking_client_signs(requests: list[Command]) -> None:
    keys = Credentials("canary-access", CANARY, "canary-token")
    with Broker() as broker:
        client = BlockingClient(broker.namesrv, credentials=keys)
        queue = MessageQueue("T", broker.apps[0].config.broker_name, 0)
        client.publish_route("T")
        client.max_offsets(broker.address, [queue, queue])
        connection = client.connection(broker.address)
        connection.wait(connection.send(RequestCode.GET_BROKER_CONFIG, None, memoryview(b"x" * 100_000)))
        client.close()
    ours = [command for command in requests if command.language == Language.PYTHON]
    assert [command.code for command in ours] == [105, 105, 30, 26]
    for command in ours:
        check_signature(command)


async def test_a_lite_pull_consumer_says_what_javas_says(requests: list[Command]) -> None:
    """Its client id, its heartbeat, the values in its requests."""
    theirs = [command for command in recorded("lite_pull") if "ReqT" in command.ext]
    options = ClientOptions(instance_name="I_lite", client_ip="127.0.0.1")
    with Broker() as broker:
        async with Producer(broker.namesrv, group="p") as producer:
            await producer.send(Message.of("FrTopic", "one"))
        for group, name in (("CG_lite", "I_lite"), ("CG_lite2", "I_lite2")):
            lite = LitePullConsumer(
                broker.namesrv,
                group=group,
                options=dataclasses.replace(options, instance_name=name),
                pull_batch_size=10,
            )
            if group == "CG_lite":
                lite.subscribe("FrTopic")
            async with lite:
                queues = await lite.fetch_message_queues("FrTopic")
                if group == "CG_lite2":
                    await lite.assign(queues)
                    await lite.offset_for_timestamp(queues[0], 0)
                await lite.poll(300)
                assert lite.client_id == f"127.0.0.1@{name}@STREAM"
    ours = [command for command in requests if "ReqT" in command.ext]
    assert {command.code for command in ours} >= {105, 14, 29, 34, 35, 38, 361}

    def said(commands: list[Command], code: int, names: set[str]) -> set[tuple[tuple[str, str], ...]]:
        return {
            tuple(sorted((name, text) for name, text in command.ext.items() if name in names))
            for command in commands
            if command.code == code
        }

    fixed = {
        "ReqT",
        "sysFlag",
        "subscription",
        "expressionType",
        "subVersion",
        "maxMsgNums",
        "suspendTimeoutMillis",
    }
    fixed |= {"boundaryType", "clientID"}
    for code in (105, 14, 29, 35, 361):
        assert said(ours, code, fixed) == said(theirs, code, fixed), code

    def beats(commands: list[Command]) -> set[str]:
        found = set()
        for command in commands:
            if command.code == RequestCode.HEART_BEAT:
                body = json.loads(bytes(command.body))
                body["producerDataSet"] = []
                for consumer in body["consumerDataSet"]:
                    for subscription in consumer["subscriptionDataSet"]:
                        subscription["subVersion"] = 0
                found.add(json.dumps(body, sort_keys=True))
        return found

    assert beats(ours) == beats(theirs)


async def consuming(
    namesrv: str, options: ClientOptions, listen: Any, got: list[bytes], folder: Path
) -> None:
    more: list[dict[str, Any]] = [
        {"group": "push"},
        {"group": "ordered", "ordered": True},
        {
            "group": "broadcast",
            "message_model": MessageModel.BROADCASTING,
            "local_offsets_directory": folder,
        },
    ]
    for settings in more:
        got.clear()
        push = PushConsumer(
            namesrv, listener=listen, consume_from=FIRST, options=options, persist_interval_ms=100,
            lock_interval_ms=200, suspend_queue_ms=10, rebalance_interval_ms=300, **settings,
        )  # fmt: skip
        push.subscribe("T", "A || B")
        async with push:
            await eventually_async(lambda: {b"one", b"fails"} <= set(got), "messages")
            await asyncio.sleep(0.5)
    sql = PushConsumer(namesrv, group="sql", listener=listen, consume_from=FIRST, options=options)
    sql.subscribe("T", sql="TAGS IS NOT NULL")
    got.clear()
    async with sql:
        await eventually_async(lambda: b"one" in got, "a message by SQL")


async def asking(namesrv: str, options: ClientOptions, producer: Producer) -> None:
    async def answer(message: MessageExt) -> None:
        if message.body == b"what":
            await producer.reply(message, b"yes")

    replier = PushConsumer(namesrv, group="replier", listener=answer, consume_from=FIRST, options=options)
    replier.subscribe("Asked")
    await producer.send(Message.of("Asked", "first"))  # makes the topic
    async with replier:
        reply = await producer.request(Message.of("Asked", "what"), 30_000)
        assert reply.body == b"yes"
    transactions = TransactionProducer(
        namesrv,
        group="tx",
        execute=lambda message: TransactionState[message.body.decode()],
        check=lambda message: TransactionState.UNKNOWN,
        options=options,
    )
    async with transactions:
        for decision in ("COMMIT", "ROLLBACK"):
            await transactions.send_in_transaction(Message.of("T", decision))


async def pulling(namesrv: str, options: ClientOptions) -> None:
    async with LitePullConsumer(namesrv, group="lite", consume_from=FIRST, options=options) as lite:
        queues = await lite.fetch_message_queues("T")
        await lite.assign(queues)
        await until_polled(lite)
        await lite.seek_to_begin(queues[0])
        await lite.seek_to_end(queues[0])
        await lite.offset_for_timestamp(queues[0], 0)
        await lite.commit()
        await lite.committed(queues[0])
    subscribed = LitePullConsumer(namesrv, group="lite2", consume_from=FIRST, options=options)
    subscribed.subscribe("T", "A")
    async with subscribed:
        await until_polled(subscribed)


async def until_polled(lite: LitePullConsumer) -> None:
    async with asyncio.timeout(WAIT_S):
        while not await lite.poll(500):
            pass


async def administering(admin: AdminClient, broker: Broker) -> None:
    address = broker.address
    queue = MessageQueue("T", broker.apps[0].config.broker_name, 0)
    await admin.cluster_info()
    await admin.broker_runtime_info(address)
    await admin.broker_config(address)
    await admin.update_broker_config(address, {"longPollingEnable": "true"})
    await admin.topic_list()
    await admin.topic_config("T", address)
    await admin.topic_stats("T")
    await admin.set_consume_mode("Popped", "popping", "POP")
    got: list[bytes] = []

    async def listen(message: MessageExt) -> object:
        got.append(message.body)
        if message.body == b"later":
            raise ValueError
        return None

    pop = PopConsumer(broker.namesrv, group="popping", listener=listen, consume_from=FIRST)
    pop.subscribe("Popped")
    async with Producer(broker.namesrv, group="p") as producer:
        for body in ("a", "later"):
            await producer.send(Message.of("Popped", body))
    async with pop:
        await eventually_async(lambda: len(got) == 2, "popped")
        (member,) = (await admin.group_members("popping")).connection_set
        await admin.running_info("popping", member.client_id)
    await admin.group_offsets("push", "T")
    await admin.query_offset("push", queue)
    await admin.update_offset("push", queue, 1)
    await admin.delete_group("push")
    await admin.delete_topic("T")
