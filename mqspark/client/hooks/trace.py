"""Message trace: who sent a message and who consumed it, as messages of their own in a trace topic, in the format
that RocketMQ's tools read. Facts: AsyncTraceDispatcher, TraceDataEncoder, SendMessageTraceHookImpl,
EndTransactionTraceHookImpl, ConsumeMessageTraceHookImpl.

Tracing must never delay the traced operation: records wait in a bounded buffer; records that do not fit or cannot
be sent are dropped and counted.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections import deque
from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

from mqspark.base.clock import wall_ms
from mqspark.base.logs import Outages, escaping
from mqspark.client.delivery.results import TransactionState
from mqspark.client.hooks.hooks import (
    ConsumeContext,
    ConsumeKind,
    EndTransactionContext,
    Interceptor,
    RecallContext,
    SendContext,
)
from mqspark.errors import MQError
from mqspark.message import (
    DELAY,
    MSG_REGION,
    TRACE_ON,
    TRACE_TOPIC,
    TRANSACTION_PREPARED,
    Message,
    MessageExt,
    new_unique_id,
)

log = escaping(__name__)

BUFFERED_RECORDS = 2_048
BATCH_RECORDS = 10
FLUSH_INTERVAL_MS = 5_000
MAX_TRACE_BYTES = 128_000
_MAX_KEYS_CHARACTERS = 16_000
"""Per trace message, well below the limit of properties."""
_STOP_TIMEOUT_S = 5.0
_NORMAL, _HALF, _COMMIT, _DELAYED = 0, 1, 2, 3
"""Ordinals of MessageType."""
DEFAULT_REGION = "DefaultRegion"
_STATE_NAMES = {
    TransactionState.COMMIT: "COMMIT_MESSAGE",
    TransactionState.ROLLBACK: "ROLLBACK_MESSAGE",
    TransactionState.UNKNOWN: "UNKNOW",
}
"""LocalTransactionState."""

_numbers = itertools.count(1)


class Record(NamedTuple):
    text: str
    keys: tuple[str, ...]
    """Keys for look-ups: the message's id and keys."""


class TraceSender(Protocol):
    """The producer of the trace messages."""

    async def start(self) -> None: ...

    async def send(self, message: Message) -> Any: ...

    async def stop(self) -> None: ...


def trace_group(group: str, kind: str) -> str:
    """The group of the inner producer; ``kind`` is PRODUCE or CONSUME."""
    return f"_INNER_TRACE_PRODUCER-{group[:70]}-{kind}-{os.getpid()}-{next(_numbers)}"


# --- records --------------------------------------------------------------------------------------------


def pub_record(context: SendContext, now_ms: int) -> Record | None:
    """None for a failed send, or if the broker wants no trace. ``now_ms``: the end of the send."""
    result, message = context.result, context.messages[0]
    if result is None or context.region is None or not context.trace_on:
        return None
    kind = _NORMAL
    if TRANSACTION_PREPARED in message.properties:
        kind = _HALF
    elif DELAY in message.properties:
        kind = _DELAYED
    keys = message.keys if len(context.messages) == 1 else None
    return Record(
        _joined(
            "Pub",
            now_ms - context.elapsed_ms,
            context.region,
            context.group,
            message.topic,
            result.message_id,
            message.tags if len(context.messages) == 1 else None,
            keys,
            context.broker_address,
            sum(len(each.body) for each in context.messages),
            context.elapsed_ms,
            kind,
            result.offset_message_id,
            result.status.name == "SEND_OK",
        ),
        (*result.message_ids, *(keys or "").split()),
    )


def end_transaction_record(context: EndTransactionContext, now_ms: int) -> Record:
    message = context.message
    return Record(
        _joined(
            "EndTransaction",
            now_ms,
            message.properties.get(MSG_REGION) or DEFAULT_REGION,
            context.group,
            message.topic,
            context.message_id,
            message.tags,
            message.keys,
            context.broker_address,
            _COMMIT,
            context.transaction_id,
            _STATE_NAMES[context.state],
            context.from_check,
        ),
        (context.message_id, *(message.keys or "").split()),
    )


def recall_record(context: RecallContext, now_ms: int) -> Record:
    return Record(
        _joined(
            "Recall",
            now_ms,
            context.region or DEFAULT_REGION,
            context.group,
            context.topic,
            context.message_id,
            context.success,
        ),
        (context.message_id,),
    )


def sub_before_records(
    group: str, request_id: str, messages: Iterable[MessageExt], now_ms: int
) -> list[Record]:
    return [
        Record(
            _joined(
                "SubBefore",
                now_ms,
                message.properties.get(MSG_REGION),
                group,
                request_id,
                message.message_id,
                message.reconsume_times,
                message.keys,
            ),
            _keys_of(message),
        )
        for message in messages
    ]


def sub_after_records(
    context: ConsumeContext, request_id: str, messages: Iterable[MessageExt], now_ms: int
) -> list[Record]:
    kind = context.kind or ConsumeKind.SUCCESS
    return [
        Record(
            _joined(
                "SubAfter",
                request_id,
                message.message_id,
                context.elapsed_ms // len(context.messages),
                context.success,
                message.keys,
                kind.value,
                now_ms,
                context.group,
            ),
            _keys_of(message),
        )
        for message in messages
    ]


def _keys_of(message: MessageExt) -> tuple[str, ...]:
    return (message.message_id, *(message.keys or "").split())


def _joined(*fields: object) -> str:
    """In Java's format; separators within a field would break the record."""
    return "\x01".join(_text(each).replace("\x01", " ").replace("\x02", " ") for each in fields) + "\x02"


def _text(value: object) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


# --- the interceptor ------------------------------------------------------------------------------------


class Tracer(Interceptor):
    """Collects trace records and sends them in batches through ``sender``. ``start`` and ``stop`` belong to the
    loop; the rest may be called from any thread."""

    def __init__(self, sender: TraceSender, topic: str | None = None) -> None:
        self.topic = topic or TRACE_TOPIC
        self.dropped = 0
        self._outages = Outages(log)
        self._sender = sender
        self._records: deque[Record] = deque()
        self._wake = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        await self._sender.start()
        self._task = self._loop.create_task(self._flush_forever())

    async def stop(self) -> None:
        """Send the remaining records, for a bounded time."""
        task, self._task = self._task, None
        if task is None:
            return
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        try:
            async with asyncio.timeout(_STOP_TIMEOUT_S):
                await self._flush()
        except TimeoutError:
            log.warning("%d trace records are lost: no time to send them", len(self._records))
        await self._sender.stop()

    # --- traced events ---

    def after_send(self, context: SendContext) -> None:
        if context.messages[0].topic != self.topic:
            record = pub_record(context, wall_ms())
            if record is not None:
                self._append([record])

    def after_end_transaction(self, context: EndTransactionContext) -> None:
        self._append([end_transaction_record(context, wall_ms())])

    def after_recall(self, context: RecallContext) -> None:
        self._append([recall_record(context, wall_ms())])

    def before_consume(self, context: ConsumeContext) -> None:
        traced = [message for message in context.messages if message.properties.get(TRACE_ON) != "false"]
        request_id = new_unique_id()
        context.notes["trace"] = (request_id, traced)
        self._append(sub_before_records(context.group, request_id, traced, wall_ms()))

    def after_consume(self, context: ConsumeContext) -> None:
        request_id, traced = context.notes["trace"]
        self._append(sub_after_records(context, request_id, traced, wall_ms()))

    # --- sending ---

    def _append(self, records: list[Record]) -> None:
        waiting = self._records
        for record in records:
            if len(waiting) >= BUFFERED_RECORDS:
                self.dropped += 1
            else:
                waiting.append(record)
        if len(waiting) >= BATCH_RECORDS and not self._wake.is_set():
            self._loop.call_soon_threadsafe(self._wake.set)

    async def _flush_forever(self) -> None:
        while True:
            try:
                async with asyncio.timeout(FLUSH_INTERVAL_MS / 1000):
                    await self._wake.wait()
            except TimeoutError:
                log.debug("sending trace records")
            self._wake.clear()
            await self._flush()

    async def _flush(self) -> None:
        while self._records:
            text, keys, count = self._next_batch()
            try:
                await self._sender.send(Message.of(self.topic, text, keys=list(dict.fromkeys(keys))))
                self._outages.over("", "trace records are sent again; %d are lost in all", self.dropped)
            except MQError as error:
                self.dropped += count
                self._outages.failed("", error, "%d trace records are lost: %s", count, error)

    def _next_batch(self) -> tuple[str, list[str], int]:
        """At least one record; as many as one message takes."""
        texts: list[str] = []
        keys: list[str] = []
        size = key_size = 0
        while self._records and len(texts) < BATCH_RECORDS:
            record = self._records[0]
            size += len(record.text)
            key_size += sum(len(key) + 1 for key in record.keys)
            if texts and (size > MAX_TRACE_BYTES // 4 or key_size > _MAX_KEYS_CHARACTERS):
                break
            self._records.popleft()
            texts.append(record.text)
            keys += record.keys
        return "".join(texts), keys, len(texts)
