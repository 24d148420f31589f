"""Trace records, byte for byte as RocketMQ's TraceDataDecoder expects them; and what is kept until they are sent."""

from __future__ import annotations

import asyncio
import logging

import pytest

from mqspark.client.delivery.delivery import ConsumeStatus, make_delivery
from mqspark.client.delivery.results import SendResult, SendStatus, TransactionState
from mqspark.client.hooks.hooks import (
    ConsumeContext,
    ConsumeKind,
    EndTransactionContext,
    Intercepted,
    Interceptor,
    RecallContext,
    SendContext,
    let_through,
    saw_consumed,
)
from mqspark.client.hooks.trace import (
    BATCH_RECORDS,
    BUFFERED_RECORDS,
    Tracer,
    end_transaction_record,
    pub_record,
    recall_record,
    sub_after_records,
    sub_before_records,
    trace_group,
)
from mqspark.errors import RequestTimeout
from mqspark.message import DELAY, TRACE_TOPIC, Message, MessageExt, MessageQueue, QueueOffset
from tests.unit.client.test_decisions import message as message_at

QUEUE = MessageQueue("T", "b", 0)
RESULT = SendResult(SendStatus.SEND_OK, "ID1", "OFFSETID", QUEUE, QueueOffset(3))


def sent(*messages: Message, **fields: object) -> SendContext:
    context = SendContext("PG", list(messages), result=RESULT, broker_address="1.2.3.4:10911", elapsed_ms=7)
    context.region = "R"
    for name, value in fields.items():
        setattr(context, name, value)
    return context


def received(**properties: str) -> MessageExt:
    message = message_at(4)
    message.properties.update(properties)
    return message


def test_a_send_is_one_record_of_fourteen_fields() -> None:
    record = pub_record(sent(Message.of("T", b"body", tags="A", keys=["k1", "k2"])), 1_000)
    assert record is not None
    assert record.text == (
        "Pub\x01993\x01R\x01PG\x01T\x01ID1\x01A\x01k1 k2\x011.2.3.4:10911\x014\x017\x010\x01OFFSETID\x01true\x02"
    )
    assert record.keys == ("ID1", "k1", "k2")
    bare = pub_record(sent(Message(topic="T", body=b"x", properties={DELAY: "3"})), 1_000)
    assert bare is not None
    assert bare.text.split("\x01")[6:8] == ["null", "null"]
    assert bare.text.split("\x01")[11] == "3"


def test_a_batch_is_recorded_under_all_its_ids() -> None:
    context = sent(Message.of("T", b"12", keys="k"), Message.of("T", b"345"))
    context.result = SendResult(SendStatus.FLUSH_DISK_TIMEOUT, "ID1,ID2", "O", QUEUE, QueueOffset(0))
    record = pub_record(context, 1_000)
    assert record is not None
    assert record.keys == ("ID1", "ID2")
    fields = record.text.rstrip("\x02").split("\x01")
    assert (fields[5], fields[7], fields[9], fields[13]) == ("ID1,ID2", "null", "5", "false")


def test_what_is_not_recorded() -> None:
    message = Message.of("T", b"x")
    assert pub_record(sent(message, result=None), 0) is None
    assert pub_record(sent(message, trace_on=False), 0) is None
    assert pub_record(sent(message, region=None), 0) is None


def test_a_call_of_the_listener_is_two_records_a_message() -> None:
    messages = [received(UNIQ_KEY="ID1", KEYS="k1", MSG_REGION="R"), received(UNIQ_KEY="I\x01D2")]
    messages[1].reconsume_times = 2
    before = sub_before_records("CG", "REQ", messages, 1_000)
    assert [record.text for record in before] == [
        "SubBefore\x011000\x01R\x01CG\x01REQ\x01ID1\x010\x01k1\x02",
        "SubBefore\x011000\x01null\x01CG\x01REQ\x01I D2\x012\x01null\x02",
    ]
    assert before[0].keys == ("ID1", "k1")
    context = ConsumeContext("CG", messages, ConsumeKind.FAILED, ConsumeStatus.RECONSUME_LATER, 9)
    after = sub_after_records(context, "REQ", messages, 1_009)
    assert after[0].text == "SubAfter\x01REQ\x01ID1\x014\x01false\x01k1\x014\x011009\x01CG\x02"


def test_groups_of_tracers_are_their_own_and_short_enough() -> None:
    first, second = trace_group("g" * 120, "PRODUCE"), trace_group("g" * 120, "PRODUCE")
    assert first != second
    assert len(first) <= 120
    assert first.startswith("_INNER_TRACE_PRODUCER-ggg")


class Sent:
    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.failing = False

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def send(self, message: Message) -> None:
        if self.failing:
            raise RequestTimeout("b", 1)
        self.messages.append(message)


async def test_records_go_out_ten_at_a_time_and_the_rest_at_the_end() -> None:
    sender = Sent()
    tracer = Tracer(sender)
    await tracer.start()
    for _ in range(23):
        tracer.after_send(sent(Message.of("T", b"x", keys="k")))
    tracer.after_send(sent(Message.of(TRACE_TOPIC, b"x")))
    await asyncio.sleep(0)
    await tracer.stop()
    assert [message.body.count(b"\x02") for message in sender.messages] == [10, 10, 3]
    assert {message.topic for message in sender.messages} == {TRACE_TOPIC}
    assert sender.messages[0].keys == "ID1 k"
    assert tracer.dropped == 0


async def test_what_does_not_fit_is_dropped_and_counted() -> None:
    sender = Sent()
    sender.failing = True
    tracer = Tracer(sender, "Mine")
    await tracer.start()
    for _ in range(BUFFERED_RECORDS + 5):
        tracer.after_send(sent(Message.of("T", b"x")))
    assert tracer.dropped == 5
    sender.failing = False
    for _ in range(3):
        tracer.after_send(sent(Message.of("T", b"x", keys="k" * 20_000)))
    await tracer.stop()
    assert tracer.dropped == 8
    assert {message.topic for message in sender.messages} == {"Mine"}


async def test_an_outage_costs_two_lines(caplog: pytest.LogCaptureFixture) -> None:
    sender = Sent()
    tracer = Tracer(sender)
    await tracer.start()
    for sender.failing in (True, False):
        before = tracer.dropped // BATCH_RECORDS + len(sender.messages)
        for _ in range(BATCH_RECORDS * 5):
            tracer.after_send(sent(Message.of("T", b"x")))
        while tracer.dropped // BATCH_RECORDS + len(sender.messages) < before + 5:  # noqa: ASYNC110
            await asyncio.sleep(0)
    await tracer.stop()
    lost, over = (record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING)
    assert lost.startswith(f"{BATCH_RECORDS} trace records are lost: ")
    assert over == f"trace records are sent again; {5 * BATCH_RECORDS} are lost in all"


class Notes(Interceptor):
    def __init__(self) -> None:
        self.seen: list[object] = []

    def wanted(self, message: MessageExt) -> bool:
        if not message.body:
            raise ValueError("no body")
        return message.body != b"no"

    def before_consume(self, context: ConsumeContext) -> None:
        self.seen.append(len(context.messages))
        raise ValueError("is logged only")

    def after_consume(self, context: ConsumeContext) -> None:
        self.seen.append((context.kind, context.success))


@pytest.mark.parametrize("is_coroutine", [False, True])
async def test_interceptors_see_how_each_call_ends(is_coroutine: bool) -> None:
    notes = Notes()

    def judge(argument: object) -> object:
        if argument == "raise":
            raise KeyError(argument)
        return ConsumeStatus.RECONSUME_LATER if argument == "later" else None

    async def judge_later(argument: object) -> object:
        return judge(argument)

    async def call(argument: object, timeout_ms: int = 10_000) -> object:
        delivery = make_delivery(
            judge_later if is_coroutine else judge,
            concurrency=1,
            finished=lambda ended: None,
            around=[Intercepted([notes], "G", timeout_ms)],
        )
        return await delivery.run_now(argument)

    assert await call("fine") is None
    assert await call(["two", "messages"]) is None
    assert await call("later") is ConsumeStatus.RECONSUME_LATER
    assert await call("slow", 0) is None
    with pytest.raises(KeyError):
        await call("raise")
    assert notes.seen == [
        1, (ConsumeKind.SUCCESS, True), 2, (ConsumeKind.SUCCESS, True), 1, (ConsumeKind.FAILED, False),
        1, (ConsumeKind.TIME_OUT, True), 1, (ConsumeKind.EXCEPTION, False),
    ]  # fmt: skip


def test_interceptors_choose_what_is_wanted() -> None:
    messages = [message_at(0, b"yes"), message_at(1, b"no"), message_at(2, b"")]
    assert [got.queue_offset for got in let_through([Notes()], messages)] == [0, 2]


@pytest.mark.parametrize(
    ("state", "name"),
    [
        (TransactionState.COMMIT, "COMMIT_MESSAGE"),
        (TransactionState.ROLLBACK, "ROLLBACK_MESSAGE"),
        (TransactionState.UNKNOWN, "UNKNOW"),
    ],
)
def test_the_end_of_a_transaction_is_one_record_of_thirteen_fields(
    state: TransactionState, name: str
) -> None:
    message = Message.of("T", b"x", tags="A", keys="k")
    record = end_transaction_record(
        EndTransactionContext("PG", message, "ID1", "TX1", state, "1.2.3.4:10911", from_check=True), 1_000
    )
    assert record.text == (
        f"EndTransaction\x011000\x01DefaultRegion\x01PG\x01T\x01ID1\x01A\x01k\x011.2.3.4:10911\x012\x01TX1\x01{name}\x01true\x02"
    )
    assert record.keys == ("ID1", "k")


def test_a_recall_is_one_record_of_seven_fields() -> None:
    record = recall_record(RecallContext("PG", "T", "ID1", success=False, region="R"), 1_000)
    assert record.text == "Recall\x011000\x01R\x01PG\x01T\x01ID1\x01false\x02"


def test_what_a_program_pulls_is_shown_as_consumed() -> None:
    shown: list[tuple[str, object, int]] = []

    class Watching(Interceptor):
        def before_consume(self, context: ConsumeContext) -> None:
            shown.append(("before", context.kind, len(context.messages)))

        def after_consume(self, context: ConsumeContext) -> None:
            shown.append(("after", context.kind, len(context.messages)))
            raise RuntimeError("which changes nothing")

    saw_consumed([Watching()], "CG", [message_at(1), message_at(2)])
    assert shown == [("before", None, 2), ("after", ConsumeKind.SUCCESS, 2)]
