"""Brokers that answer with what was not asked for: scripted servers over real sockets, one process."""

from __future__ import annotations

import asyncio
import functools
import itertools
import time

import pytest

from mqspark.aio import (
    AdminClient,
    LitePullConsumer,
    Message,
    MessageExt,
    MessageQueue,
    PopConsumer,
    TransactionProducer,
    TransactionState,
)
from mqspark.client.pop.pop import NO_PROGRESS_PAUSE_S
from mqspark.client.pop.popped import popped_of
from mqspark.client.push.answers import answer
from mqspark.client.remoting.namespaces import Namespace
from mqspark.errors import ProtocolError
from mqspark.message import encode_host, encode_offset_id
from mqspark.protocol.bodies.admin_bodies import ConsumerRunningInfo, ResetOffsetBody
from mqspark.protocol.bodies.body import Queue, encode_body, queue_key
from mqspark.protocol.bodies.client_bodies import MessageQueueAssignment, QueryAssignmentResponseBody
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command, encode_request, encode_response
from mqspark.protocol.connection import Connection
from mqspark.protocol.receipts import Receipt
from mqspark.record.record import decode_record, encode_record
from tests.support.scripted import Answer, Scripted, broker, cluster
from tests.support.waiting import eventually_async


async def test_a_look_up_returns_what_was_asked_for_of_all_that_have_the_hash() -> None:
    """RocketMQ's index does not compare."""
    found = [
        ("BBTopic", b"KEYS\x01Aa\x02TAGS\x01Aa\x02"),
        ("BBTopic", b"KEYS\x01BB\x02TAGS\x01BB\x02UNIQ_KEY\x01BB\x02"),
        ("AaTopic", b"KEYS\x01Aa\x02TAGS\x01Aa\x02UNIQ_KEY\x01BBBB\x02"),
        ("AaTopic", b"KEYS\x01one BB\x02TAGS\x01BB\x02UNIQ_KEY\x01BB\x02"),
    ]
    body = b"".join(
        encode_record(topic=topic, body=b"%d" % number, properties=properties, store_timestamp_ms=number)
        for number, (topic, properties) in enumerate(found)
    )

    def script(command: Command) -> Answer:
        return 0, {}, body if command.code == RequestCode.QUERY_MESSAGE else b""

    async with cluster(a=Scripted(script)) as address, AdminClient(address) as admin:
        assert [each.body for each in await admin.messages_by_key("AaTopic", "BB")] == [b"3"]
        assert [each.body for each in await admin.messages_by_key("AaTopic", "BB", unique=True)] == [b"3"]
        assert [each.body for each in await admin.messages_by_tag("AaTopic", "Aa")] == [b"2"]
        assert await admin.messages_by_key("AaTopic", "AaBB") == []


# --- pulls ---

QUEUE = MessageQueue("T", "a", 0)
GOOD = {"suggestWhichBrokerId": "0", "minOffset": "0", "maxOffset": "10"}


def pulls(*answers: Answer) -> Scripted:
    """Answers pulls with these, over and over, and offsets with 3."""
    asked = itertools.cycle(answers)

    def script(command: Command) -> Answer:
        if command.code in (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE):
            return next(asked)
        return 0, {"offset": "3"}, b""

    return Scripted(script)


def found(*records: bytes, following: int) -> Answer:
    return 0, {**GOOD, "nextBeginOffset": str(following)}, b"".join(records)


def stored(offset: int, topic: str = "T", queue_id: int = 0, properties: bytes = b"") -> bytes:
    return encode_record(
        topic=topic, body=b"%d" % offset, queue_id=queue_id, queue_offset=offset, properties=properties
    )


MOVED = ResponseCode.PULL_OFFSET_MOVED
NOTHING = ResponseCode.PULL_NOT_FOUND
LIES = {
    "another topic": found(stored(3, topic="U"), following=4),
    "another queue": found(stored(3, queue_id=1), following=4),
    "one of another topic": found(stored(3), stored(4, topic="U"), following=5),
    "before what was asked": found(stored(2), stored(3), following=4),
    "out of order": found(stored(4), stored(3), following=5),
    "twice": found(stored(3), stored(3), following=4),
    "behind the next": found(stored(3), stored(7), following=5),
    "no progress": found(stored(3), following=3),
    "back": found(stored(3), following=1),
    "nothing and success": found(following=3),
    "far": found(stored(3), following=1 << 40),
    "negative": (NOTHING, {**GOOD, "nextBeginOffset": "-5"}, b""),
    "the largest": (MOVED, {**GOOD, "nextBeginOffset": str((1 << 63) - 1)}, b""),
    "the largest end": (MOVED, {**GOOD, "nextBeginOffset": "5", "maxOffset": str((1 << 63) - 1)}, b""),
    "moved to a negative": (MOVED, {**GOOD, "nextBeginOffset": "-1"}, b""),
    "moved beyond the end": (MOVED, {**GOOD, "nextBeginOffset": str(1 << 40)}, b""),
    "a negative begin": (NOTHING, {**GOOD, "nextBeginOffset": "3", "minOffset": "-2"}, b""),
}


@pytest.mark.parametrize("lie", LIES)
async def test_no_answer_is_taken_that_cannot_be(lie: str) -> None:
    async with cluster(a=pulls(LIES[lie])) as address:
        async with AdminClient(address) as admin:
            with pytest.raises(ProtocolError):
                await admin.read(QUEUE, 3)
        async with LitePullConsumer(address, group="g") as consumer:
            await consumer.assign([QUEUE])
            assert await consumer.poll(200) == []


@pytest.mark.parametrize("offset", ["-2", str((1 << 63) - 1)])
async def test_no_end_of_a_queue_is_taken_that_cannot_be(offset: str) -> None:
    async with (
        cluster(a=Scripted(lambda command: (0, {"offset": offset}, b""))) as address,
        AdminClient(address) as admin,
    ):
        with pytest.raises(ProtocolError):
            await admin.queue_bounds(QUEUE)


async def test_a_broker_that_moves_the_reader_to_and_fro_is_asked_less_and_less() -> None:
    to, fro = ((MOVED, {**GOOD, "nextBeginOffset": str(each)}, b"") for each in (2, 7))
    liar = pulls(to, fro)
    async with cluster(a=liar) as address, LitePullConsumer(address, group="g") as consumer:
        await consumer.assign([QUEUE])
        assert await consumer.poll(1_500) == []
    assert 2 <= liar.codes().count(RequestCode.LITE_PULL_MESSAGE) <= 8


async def test_a_broker_that_answers_nothing_at_once_is_not_asked_without_end() -> None:
    liar = pulls((NOTHING, {**GOOD, "nextBeginOffset": "3"}, b""))
    async with cluster(a=liar) as address, LitePullConsumer(address, group="g") as consumer:
        await consumer.assign([QUEUE])
        assert await consumer.poll(500) == []
    assert liar.codes().count(RequestCode.LITE_PULL_MESSAGE) <= 60


# --- pops ---


@pytest.mark.parametrize(
    ("record", "is_right"),
    [
        (stored(3), True),
        (stored(3, topic="%RETRY%g_T"), True),
        (stored(3, topic="%RETRY%g+T"), True),
        (stored(3, topic="U"), False),
        (stored(3, topic="%RETRY%g_U"), False),
        (stored(3, topic="%RETRY%h_T"), False),
        (stored(3, queue_id=1), False),
    ],
)
def test_a_pop_brings_what_is_of_its_queue(record: bytes, *, is_right: bool) -> None:
    receipt = Receipt(3, 1, 60_000, 0, "0", "a", 0, 3).encode()
    message = decode_record(record)
    message.properties["POP_CK"] = receipt
    record = encode_record(
        topic=message.topic,
        body=b"x",
        queue_id=message.queue_id,
        queue_offset=3,
        properties=message.properties,
    )
    header = {"popTime": "1", "invisibleTime": "60000", "reviveQid": "0", "restNum": "0"}
    (answer,) = Connection().receive_data(encode_response(1, 0, header, record))
    taken = functools.partial(popped_of, answer, QUEUE, "g", Namespace(""), arrived_s=0.0)
    if is_right:
        assert [each.message.topic for each in taken()] == ["T"]
    else:
        with pytest.raises(ProtocolError):
            taken()


@pytest.mark.parametrize(
    "lie", [("U", "a", 0), ("T", "a", 1), ("T", "a", -2), ("T", "b", 0), ("T", "b", -1), ("T", "a", 1 << 30)]
)
async def test_a_pop_consumer_reads_only_queues_that_its_topic_has(
    lie: tuple[str, str, int], caplog: pytest.LogCaptureFixture
) -> None:
    """Also after the route was looked up again: a broker may know more of the topic than the client."""
    queues = [Queue(*lie), Queue("T", "a", 0)]
    body = encode_body(
        QueryAssignmentResponseBody([MessageQueueAssignment(queue, mode="POP") for queue in queues])
    )

    def script(command: Command) -> Answer:
        return 0, {}, body if command.code == RequestCode.QUERY_ASSIGNMENT else b""

    liar = Scripted(script)
    async with cluster(a=liar) as address:
        consumer = PopConsumer(address, group="g", listener=print)
        consumer.subscribe("T")
        async with consumer:
            await eventually_async(lambda: "cannot rebalance T of g: a broker of T assigns" in caplog.text)
    assert RequestCode.POP_MESSAGE not in liar.codes()


async def test_a_broker_that_answers_pops_with_nothing_at_once_is_not_asked_without_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As RocketMQ's whose clock is ahead."""
    body = encode_body(QueryAssignmentResponseBody([MessageQueueAssignment(Queue("T", "a", 0), mode="POP")]))
    late = ResponseCode.POLLING_TIMEOUT

    def script(command: Command) -> Answer:
        if command.code == RequestCode.POP_MESSAGE:
            return late, {}, b""
        return 0, {}, body if command.code == RequestCode.QUERY_ASSIGNMENT else b""

    liar = Scripted(script)
    async with cluster(a=liar) as address:
        consumer = PopConsumer(address, group="g", listener=print)
        consumer.subscribe("T")
        async with consumer:
            await eventually_async(lambda: liar.codes().count(RequestCode.POP_MESSAGE) >= 5)
            began_s, count = time.monotonic(), liar.codes().count(RequestCode.POP_MESSAGE)
            await asyncio.sleep(0.5)
            took_s = time.monotonic() - began_s
            assert liar.codes().count(RequestCode.POP_MESSAGE) - count <= took_s / NO_PROGRESS_PAUSE_S + 2
    assert caplog.text.count("are the clocks right?") == 1


# --- other answers, and what brokers ask ---


async def test_no_local_transaction_runs_for_a_message_that_has_no_place() -> None:
    """Its outcome could not be reported."""
    ran: list[Message] = []
    unknown = TransactionState.UNKNOWN
    async with (
        cluster(a=broker((0, {"msgId": "M", "queueId": "0", "queueOffset": "7"}, b""))) as address,
        TransactionProducer(
            address, group="g", check=lambda message: unknown, execute=ran.append
        ) as producer,
    ):
        with pytest.raises(ProtocolError, match="no place"):
            await producer.send_in_transaction(Message.of("T", b"x"))
    assert ran == []


async def test_a_message_by_its_place_is_the_one_at_that_place() -> None:
    liar = Scripted(lambda command: (0, {}, encode_record(topic="T", body=b"x", physical_offset=7)))
    async with cluster(a=liar) as address, AdminClient(address) as admin:
        host, port = liar.address.split(":")
        assert (
            await admin.message_by_offset_id(encode_offset_id(encode_host(host, int(port)), 7))
        ).body == b"x"
        with pytest.raises(ProtocolError, match="at 7 of its log for the one at 8"):
            await admin.message_by_offset_id(encode_offset_id(encode_host(host, int(port)), 8))


async def test_minus_one_is_no_offset_that_a_group_has() -> None:
    answers = {RequestCode.QUERY_CONSUMER_OFFSET: "-1", RequestCode.GET_MAX_OFFSET: "-1"}

    def script(command: Command) -> Answer:
        if command.code == RequestCode.LITE_PULL_MESSAGE:
            return NOTHING, {**GOOD, "nextBeginOffset": "0"}, b""
        return 0, {"offset": answers.get(RequestCode(command.code), "0")}, b""

    liar = Scripted(script)
    async with cluster(a=liar) as address:
        async with AdminClient(address) as admin:
            assert await admin.query_offset("g", QUEUE) is None
            assert await admin.queue_bounds(QUEUE) == (0, 0)
        async with LitePullConsumer(address, group="g") as consumer:
            await consumer.assign([QUEUE])
            assert await consumer.committed(QUEUE) is None
            assert await consumer.poll(200) == []
    asked = [each.ext["queueOffset"] for each in liar.asked if each.code == RequestCode.LITE_PULL_MESSAGE]
    assert asked
    assert set(asked) == {"0"}


class Consumer:
    """A consumer of group g and topic T, as requests of brokers see it."""

    is_ordered = False
    auto_commit = True

    def __init__(self) -> None:
        self.consumed: list[str] = []
        self.moved: list[int] = []

    def consumes(self, topic: str) -> bool:
        return topic in ("T", "%RETRY%g", "%DLQ%g")

    async def consume_now(self, message: MessageExt) -> None:
        self.consumed.append(message.topic)

    async def reset(self, queue: MessageQueue, offset: int) -> None:
        self.moved.append(offset)

    def running_info(self) -> ConsumerRunningInfo:
        return ConsumerRunningInfo()

    def consumed_offsets(self) -> dict[MessageQueue, int]:
        return {}


def request(code: int, fields: dict[str, str], body: bytes) -> Command:
    (command,) = Connection().receive_data(encode_request(code, 1, fields, body))
    return command


@pytest.mark.parametrize(
    ("topic", "is_right"), [("T", True), ("%RETRY%g", True), ("%DLQ%g", True), ("U", False)]
)
async def test_a_broker_hands_in_only_what_the_group_consumes(topic: str, *, is_right: bool) -> None:
    consumer = Consumer()
    asked = request(RequestCode.CONSUME_MESSAGE_DIRECTLY, {"consumerGroup": "g"}, stored(3, topic=topic))
    if is_right:
        assert (await answer(consumer, asked))[0] == 0
    else:
        with pytest.raises(ProtocolError, match="topic U, which group g does not consume"):
            await answer(consumer, asked)
    assert consumer.consumed == [topic] * is_right


@pytest.mark.parametrize("offset", [0, 7, -1, -5, (1 << 63) - 1, 1 << 80])
async def test_a_broker_moves_a_reader_only_to_what_can_be(offset: int) -> None:
    consumer = Consumer()
    fields = {"topic": "T", "group": "g", "timestamp": "0", "isForce": "true"}
    body = encode_body(ResetOffsetBody({queue_key(QUEUE): offset, queue_key(QUEUE._replace(topic="U")): 1}))
    asked = request(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, fields, body)
    if 0 <= offset < 1 << 40:
        assert (await answer(consumer, asked))[0] == 0
        assert consumer.moved == [offset]
    else:
        with pytest.raises(ProtocolError):
            await answer(consumer, asked)
        assert consumer.moved == []
