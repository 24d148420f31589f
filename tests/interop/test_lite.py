"""Lite topics: the unmodified gRPC LitePushConsumer and mqadmin's commands, on our broker without a proxy, and through
the unmodified proxy on our broker and (slow) on a real RocketMQ."""

import base64
import json
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from mqspark.broker.state.litenames import lite_queue
from mqspark.protocol import fastjson
from mqspark.record.record import decode_records
from tests.interop.directories import log_bytes
from tests.interop.driver import Driver, JavaDriver
from tests.interop.jars import Jars
from tests.interop.proxy import Proxy, served
from tests.interop.rocketmq import EITHER, rocketmq_broker
from tests.interop.test_pop import MOVING
from tests.interop.topics import create_group, create_topic
from tests.support.clusters import Cluster, mqspark_broker
from tests.support.processes import free_port
from tests.support.remoting import GET_MAX_OFFSET, RawConnection
from tests.support.waiting import eventually

Name = Callable[[str], str]

SETTINGS = {"enableLmq": True, "enableMultiDispatch": True, "liteEventCheckInterval": 1000}


pytestmark = pytest.mark.slow(
    "a proxy and a JVM of its client start; fast: lite topics in tests/integration/grpc/test_grpc_receiving.py"
)


@pytest.fixture(params=["without", *EITHER], scope="module")
def proxy(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    """Before our broker and a real one; ``without``: our broker, which needs none."""
    with served(request, tmp_path_factory.mktemp("lite"), SETTINGS) as running:
        yield running


class LiteClients:
    """Producers and lite push consumers by the driver's handles."""

    def __init__(self, grpc: Driver, proxy: Proxy, topic: str) -> None:
        self.grpc, self.proxy, self.topic = grpc, proxy, topic
        self.producer = self._start("producer.start", topics=[topic])

    def _start(self, verb: str, **options: Any) -> int:
        return int(self.grpc.call(verb, endpoints=self.proxy.grpc, **options)["handle"])

    def consumer(self, group: str, *lite_topics: str) -> int:
        handle = self._start("lite.start", topic=self.topic, group=group)
        for name in lite_topics:
            self.grpc.call("lite.subscribe", handle=handle, topic=name)
        return handle

    def send(self, lite_topic: str, *texts: str) -> None:
        messages = [
            {"topic": self.topic, "lite_topic": lite_topic, "body": base64.b64encode(text.encode()).decode()}
            for text in texts
        ]
        self.grpc.call("producer.send", handle=self.producer, messages=messages)

    def take(self, handle: int, count: int, timeout_ms: int = 30_000) -> list[str]:
        views = self.grpc.call("push.take", handle=handle, count=count, timeout_ms=timeout_ms)
        return [base64.b64decode(view["body"]).decode() for view in views]


@pytest.fixture
def lite(grpc: Driver, proxy: Proxy, name: Name) -> LiteClients:
    topic = create_topic(proxy.cluster, name("LiteParent"), 4, attributes="+message.type=LITE")
    time.sleep(1.5)  # until the proxy knows it
    return LiteClients(grpc, proxy, topic)


def lite_group(lite: LiteClients, group: str, **attributes: str) -> str:
    given = {"+lite.bind.topic": lite.topic, **{f"+{key}": value for key, value in attributes.items()}}
    create_group(lite.proxy.cluster, group, attributes=given)
    time.sleep(1.5)
    return group


def test_a_consumer_gets_its_lite_topics_alone(lite: LiteClients, name: Name) -> None:
    consumer = lite.consumer(lite_group(lite, name("lite-readers")), "chat-1", "chat-2")
    assert sorted(lite.grpc.call("lite.topics", handle=consumer)) == ["chat-1", "chat-2"]
    lite.send("chat-1", *(f"one {number}" for number in range(5)))
    lite.send("chat-2", "two 0")
    lite.send("chat-3", "nobody's")
    received = lite.take(consumer, 6)
    assert sorted(received) == [*(f"one {number}" for number in range(5)), "two 0"]
    lite.grpc.call("lite.unsubscribe", handle=consumer, topic="chat-2")
    lite.send("chat-2", "no longer")
    assert lite.take(consumer, 1, 3_000) == []
    lite.grpc.call("stop", handle=consumer)


def test_an_exclusive_lite_topic_moves_to_the_newcomer(lite: LiteClients, name: Name) -> None:
    group = lite_group(lite, name("lite-exclusive"), **{"lite.sub.model": "Exclusive"})
    first = lite.consumer(group, "session")
    lite.send("session", "for the first")
    assert lite.take(first, 1) == ["for the first"]
    second = lite.consumer(group, "session")
    deadline = time.monotonic() + 20
    while lite.grpc.call("lite.topics", handle=first) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert lite.grpc.call("lite.topics", handle=first) == []
    lite.send("session", "for the second")
    assert lite.take(second, 1) == ["for the second"]
    for handle in (first, second):
        lite.grpc.call("stop", handle=handle)


@pytest.mark.parametrize("java", ["JSON"], indirect=True)
def test_mqadmin_sees_lite_topics(lite: LiteClients, java: JavaDriver, name: Name) -> None:
    group = lite_group(lite, name("lite-seen"))
    consumer = lite.consumer(group, "seen")
    lite.send("seen", "one", "two")
    assert sorted(lite.take(consumer, 2)) == ["one", "two"]
    cluster = lite.proxy.cluster

    def mqadmin(command: str, *arguments: str) -> str:
        return str(java.mqadmin(command, "-n", cluster.namesrv, *arguments))

    assert lite.topic in mqadmin("getBrokerLiteInfo", "-b", cluster.broker, "-d")
    parent = mqadmin("getParentTopicInfo", "-p", lite.topic)
    assert group in parent
    topic = mqadmin("getLiteTopicInfo", "-p", lite.topic, "-l", "seen")
    assert cluster.broker_name in topic
    of_group = mqadmin("getLiteGroupInfo", "-p", lite.topic, "-g", group, "-l", "seen")
    assert cluster.broker_name in of_group
    assert "error" not in mqadmin(
        "triggerLiteDispatch", "-p", lite.topic, "-g", group, "-b", cluster.broker_name
    )
    lite.grpc.call("stop", handle=consumer)


# ---- one directory, both brokers

PARENT, READERS, LITE_TOPICS = "LiteMoves", "lite-movers", ("chat", "news", "log_1")
LITE_MOVING = {**MOVING, **SETTINGS}
ACK_MESSAGE, POP_LITE_MESSAGE, LITE_SUBSCRIPTION_CTL = 200051, 200070, 200071
SENT_A_ROUND = 3
INVISIBLE_MS = 3_000


class LiteReader:
    """A client of a broker that reads lite topics; it keeps how far it is over all brokers."""

    def __init__(self) -> None:
        self.sent: dict[str, list[bytes]] = {name: [] for name in LITE_TOPICS}
        self.acked = dict.fromkeys(LITE_TOPICS, 0)

    def send(self, connection: RawConnection, turn: int) -> None:
        for number in range(SENT_A_ROUND):
            for name in LITE_TOPICS:
                body = f"{turn}-{name}-{number}".encode()
                text = f"__LITE_TOPIC\x01{name}\x02"
                connection.send(PARENT, body, 0, text, g=int(time.time() * 1000))
                self.sent[name].append(body)

    def subscribe(self, connection: RawConnection) -> None:
        entry = {
            "action": "COMPLETE_ADD",
            "clientId": "mover",
            "group": READERS,
            "topic": PARENT,
            "liteTopicSet": list(LITE_TOPICS),
            "version": 1,
        }
        reply = connection.request(LITE_SUBSCRIPTION_CTL, json.dumps({"subscriptionSet": [entry]}).encode())
        assert reply.code == 0, reply

    def take(self, connection: RawConnection) -> None:
        """Everything that is not acknowledged yet, in the order of each lite topic; all but the last of each is
        acknowledged."""
        wanted = {name: bodies[self.acked[name] :] for name, bodies in self.sent.items()}
        got: dict[str, dict[int, bytes]] = {name: {} for name in LITE_TOPICS}
        receipts: dict[tuple[str, int], str] = {}
        deadline = time.monotonic() + 90
        while any(len(got[name]) < len(wanted[name]) for name in LITE_TOPICS):
            assert time.monotonic() < deadline, (wanted, got)
            reply = connection.request(
                POP_LITE_MESSAGE, clientId="mover", consumerGroup=READERS, topic=PARENT, maxMsgNum=32,
                invisibleTime=INVISIBLE_MS, pollTime=0, bornTime=int(time.time() * 1000), attemptId="a",
            )  # fmt: skip
            if reply.code:
                time.sleep(0.2)
                continue
            for message in decode_records(reply.body):
                name = message.properties["__LITE_TOPIC"]
                offset = int(message.properties["INNER_MULTI_QUEUE_OFFSET"])
                got[name].setdefault(offset, message.body)
                times = [reply.ext[key] for key in ("popTime", "invisibleTime", "reviveQid")]
                receipts[name, offset] = " ".join([str(offset), *times, "0", "moving", "0", str(offset)])
        for name in LITE_TOPICS:
            first = self.acked[name]
            assert got[name] == dict(enumerate(wanted[name], first)), "each at its offset"
            assert list(got[name]) == sorted(got[name]), "in order"
        for name, bodies in self.sent.items():
            for offset in range(self.acked[name], len(bodies) - 1):
                reply = connection.request(
                    ACK_MESSAGE, consumerGroup=READERS, topic=PARENT, queueId=0, offset=offset, liteTopic=name,
                    extraInfo=receipts[name, offset],
                )  # fmt: skip
                assert reply.code == 0, reply
            self.acked[name] = len(bodies) - 1

    def is_settled(self, cluster: Cluster) -> bool:
        """Whether the progress is on disk, as a killed broker will remember it."""
        path = cluster.store / "config/lmqConsumerOffset.json"  # with enableLmq
        table: dict[str, Any] = fastjson.loads(path.read_bytes())["offsetTable"] if path.exists() else {}
        known = {
            name: table.get(f"{lite_queue(PARENT, name)}@{READERS}", {}).get("0", -1) for name in LITE_TOPICS
        }
        return known == self.acked

    def check_ends(self, connection: RawConnection) -> None:
        for name, bodies in self.sent.items():
            reply = connection.request(GET_MAX_OFFSET, topic=lite_queue(PARENT, name), queueId=0)
            assert int(reply.ext["offset"]) == len(bodies)


def lite_topics_live(folder: Path, brokers: Sequence[Callable[[], AbstractContextManager[Cluster]]]) -> None:
    reader, log = LiteReader(), b""
    for turn, start in enumerate(brokers):
        with start() as cluster:
            if turn == 0:
                create_topic(cluster, PARENT, 4, attributes="+message.type=LITE")
                create_group(cluster, READERS, attributes={"+lite.bind.topic": PARENT})
            with RawConnection(cluster.broker) as connection:
                reader.check_ends(connection)
                reader.send(connection, turn)
                reader.subscribe(connection)
                reader.take(connection)
                eventually(lambda cluster=cluster: reader.is_settled(cluster), "offsets are on disk")
                reader.check_ends(connection)
        assert log_bytes(folder / "store").startswith(log), "nothing that was there is cut or changed"
        log = log_bytes(folder / "store")


@pytest.mark.slow("a RocketMQ broker starts twice; fast: test_a_kill_keeps_lite_topics_and_offsets")
@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGKILL], ids=["stopped", "killed"])
def test_lite_topics_move_with_their_directory(
    newest_jars: Jars, tmp_path: Path, stop: signal.Signals
) -> None:
    folder, namesrv = tmp_path / "broker", f"127.0.0.1:{free_port()}"  # nobody needs to find these brokers
    options: dict[str, Any] = {"settings": LITE_MOVING, "stop_signal": stop}

    def ours() -> AbstractContextManager[Cluster]:
        return mqspark_broker(folder, namesrv, **options)

    def theirs() -> AbstractContextManager[Cluster]:
        return rocketmq_broker(newest_jars, folder, namesrv, registered=False, **options)

    lite_topics_live(folder, [ours, theirs, ours, theirs, ours, ours])
