"""What brokers of RocketMQ do since 5.5.1, request by request, on our broker and (slow) on a real one: notifications
for lite consumers that pop by themselves, clients that lost an exclusive lite topic, resets of lite topics whose
messages are out, lists of topics and groups to delete."""

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from mqspark.record.record import decode_records
from tests.interop.rocketmq import EITHER, either_cluster
from tests.interop.topics import create_group, create_topic
from tests.support.clusters import Cluster
from tests.support.remoting import RESPONSE, SEND_MESSAGE_V2, RawConnection, Reply, request_frame, send_fields

Name = Callable[[str], str]

SETTINGS = {"enableLmq": True, "enableMultiDispatch": True}
NOTIFICATION, POP_LITE_MESSAGE, LITE_SUBSCRIPTION_CTL, NOTIFY_UNSUBSCRIBE_LITE = (
    200054,
    200070,
    200071,
    200073,
)
RESET_OFFSET, DELETE_TOPICS, DELETE_GROUPS, GET_TOPIC_CONFIG = 222, 5002, 5003, 351
INVALID_PARAMETER = 29
LONG_MS = 20_000


@pytest.fixture(params=EITHER, scope="module")
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with either_cluster(request, tmp_path_factory.mktemp("watch"), SETTINGS) as running:
        yield running


class LiteConsumer:
    """One client on a connection of its own."""

    def __init__(self, cluster: Cluster, client: str, group: str, topic: str) -> None:
        self.connection = RawConnection(cluster.broker)
        self.client, self.group, self.topic = client, group, topic
        self.lost: list[str] = []
        """Lite topics of which the broker says that they are no longer the client's."""
        self._opaque = 0

    def ask(self, code: int, body: bytes = b"", **ext: object) -> Reply:
        self._opaque += 1
        self.connection.write(request_frame(code, self._opaque, ext, body))
        while True:
            reply = self.connection.read()
            if reply.flag & RESPONSE:
                assert reply.opaque == self._opaque
                return reply
            assert reply.code == NOTIFY_UNSUBSCRIBE_LITE
            self.lost.append(reply.ext["liteTopic"])

    def subscribe(self, action: str, *names: str) -> None:
        entry = {
            "action": action, "clientId": self.client, "group": self.group, "topic": self.topic,
            "liteTopicSet": list(names), "version": 1,
        }  # fmt: skip
        assert self.ask(LITE_SUBSCRIPTION_CTL, json.dumps({"subscriptionSet": [entry]}).encode()).code == 0

    def has_message(self, poll_ms: int) -> bool:
        reply = self.ask(
            NOTIFICATION, consumerGroup=self.group, topic=self.topic, queueId=-1, pollTime=poll_ms,
            bornTime=int(time.time() * 1000), isLiteConsumer="true", clientId=self.client,
        )  # fmt: skip
        assert reply.code == 0, reply
        return reply.ext["hasMsg"] == "true"

    def pop(self, poll_ms: int = 0) -> list[bytes]:
        reply = self.ask(
            POP_LITE_MESSAGE, clientId=self.client, consumerGroup=self.group, topic=self.topic, maxMsgNum=32,
            invisibleTime=60_000, pollTime=poll_ms, bornTime=int(time.time() * 1000),
        )  # fmt: skip
        return [bytes(message.body) for message in decode_records(reply.body)] if reply.code == 0 else []

    def send(self, lite_topic: str, body: bytes) -> None:
        fields = send_fields(self.topic, 0, f"__LITE_TOPIC\x01{lite_topic}\x02", g=int(time.time() * 1000))
        reply = self.ask(SEND_MESSAGE_V2, body, **fields)
        assert reply.code == 0, reply


@pytest.fixture
def consumer(cluster: Cluster, name: Name) -> Iterator[Callable[..., LiteConsumer]]:
    """Makes a client of a new group, with these attributes; with the same name again, another one of the group."""
    topic = create_topic(cluster, name("LiteWatched"), 4, attributes="+message.type=LITE")
    groups: set[str] = set()
    made: list[LiteConsumer] = []

    def make(client: str, stem: str, **attributes: Any) -> LiteConsumer:
        group = name(stem)
        if group not in groups:
            given = {f"+{key}": value for key, value in attributes.items()}
            create_group(cluster, group, attributes={"+lite.bind.topic": topic, **given})
            groups.add(group)
        made.append(LiteConsumer(cluster, name(client), group, topic))
        return made[-1]

    yield make
    for each in made:
        each.connection.close()


def test_a_notification_waits_for_the_clients_messages_and_takes_none(
    consumer: Callable[..., LiteConsumer],
) -> None:
    reader, sender = consumer("reader", "watchers"), consumer("sender", "watchers")
    reader.subscribe("COMPLETE_ADD", "a")
    assert not reader.has_message(0)
    sender.send("a", b"a0")
    assert reader.has_message(LONG_MS)
    assert reader.has_message(LONG_MS)
    assert reader.pop(LONG_MS) == [b"a0"]
    sender.send("b", b"of nobody")
    began = time.monotonic()
    assert not reader.has_message(1_500)
    assert time.monotonic() - began >= 1


def test_a_client_that_lost_its_lite_topic_does_not_get_it_back_by_repeating_itself(
    consumer: Callable[..., LiteConsumer],
) -> None:
    exclusive = {"lite.sub.model": "Exclusive"}
    first, second = consumer("first", "exclusive", **exclusive), consumer("second", "exclusive", **exclusive)
    first.subscribe("PARTIAL_ADD", "a", "b")
    second.subscribe("PARTIAL_ADD", "a")
    for _ in range(2):
        first.subscribe("COMPLETE_ADD", "a", "b")
        assert not first.has_message(500)
    assert first.lost == ["a", "a", "a"]
    first.send("b", b"b0")
    assert first.pop(LONG_MS) == [b"b0"]
    first.subscribe("PARTIAL_ADD", "a")
    first.send("a", b"a0")
    assert first.pop(LONG_MS) == [b"a0"]
    assert not second.has_message(500)
    assert second.lost == ["a"]


def test_a_lite_topic_that_is_reset_does_not_wait_for_what_is_out(
    consumer: Callable[..., LiteConsumer],
) -> None:
    reader, sender = consumer("reader", "moved"), consumer("sender", "moved")
    reader.subscribe("COMPLETE_ADD", "a")
    for body in (b"a0", b"a1", b"a2"):
        sender.send("a", body)
    assert b"a0" in reader.pop(LONG_MS)
    moved = sender.ask(
        RESET_OFFSET, topic=f"%LMQ%${reader.topic}$a", group=reader.group, timestamp=-1, isForce="true",
        queueId=0, offset=1,
    )  # fmt: skip
    assert moved.code == 0, moved
    sender.send("a", b"a3")
    assert reader.pop(LONG_MS) == [b"a1", b"a2", b"a3"]


def test_topics_and_groups_are_deleted_by_lists(cluster: Cluster, name: Name) -> None:
    topics = [create_topic(cluster, name(f"Listed{number}"), 1) for number in range(3)]
    groups = [create_group(cluster, name(f"listed-{number}")) for number in range(2)]
    with RawConnection(cluster.broker) as connection:
        opaque = 0

        def code(number: int, value: object = None, **ext: object) -> int:
            nonlocal opaque
            opaque += 1
            body = b"" if value is None else json.dumps(value).encode()
            connection.write(request_frame(number, opaque, ext, body))
            return connection.read().code

        for bad in ([], [topics[0], " "], [topics[0], "SCHEDULE_TOPIC_XXXX"]):
            assert code(DELETE_TOPICS, {"topicList": bad}) == INVALID_PARAMETER, bad
        assert code(DELETE_GROUPS, {"groupNameList": [], "cleanOffset": True}) == INVALID_PARAMETER
        assert [code(GET_TOPIC_CONFIG, topic=topic) for topic in topics] == [0, 0, 0]
        assert code(DELETE_TOPICS, {"topicList": [topics[0], topics[1], topics[0], name("Never")]}) == 0
        assert [code(GET_TOPIC_CONFIG, topic=topic) == 0 for topic in topics] == [False, False, True]
        assert code(DELETE_GROUPS, {"groupNameList": groups, "cleanOffset": True}) == 0
