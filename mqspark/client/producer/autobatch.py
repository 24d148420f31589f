"""Combines single sends: messages of one topic that arrive within some milliseconds are sent and stored as a
batch, and each sender gets its own result. Facts: RocketMQ's ProduceAccumulator."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

from mqspark.base.valuetypes import InRange, PositiveInt, check_fields
from mqspark.client.delivery.results import SendResult, SettleFuture
from mqspark.message import (
    CORRELATION_ID,
    DELAY,
    MESSAGE_TYPE,
    PRIORITY,
    RETRY_PREFIX,
    TAGS,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    WAIT,
    Message,
    MessageQueue,
    QueueOffset,
)

_ALONE = frozenset(
    {
        DELAY,
        TIMER_DELAY_MS,
        TIMER_DELAY_SEC,
        TIMER_DELIVER_MS,
        "PGROUP",
        MESSAGE_TYPE,
        CORRELATION_ID,
        PRIORITY,
    }
)
"""A message with one of these properties is sent alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoBatch:
    """A batch is sent when it exceeds ``max_bytes`` or is ``max_delay_ms`` old. While ``max_total_bytes`` wait,
    messages are sent alone."""

    max_delay_ms: Annotated[int, InRange(1, 30_000)] = 10
    max_bytes: Annotated[int, InRange(1, 2 * 1024 * 1024)] = 32 * 1024
    max_total_bytes: PositiveInt = 32 * 1024 * 1024

    def __post_init__(self) -> None:
        check_fields(self)


def can_batch(message: Message) -> bool:
    return _ALONE.isdisjoint(message.properties) and not message.topic.startswith(RETRY_PREFIX)


class _Key(NamedTuple):
    topic: str
    queue: MessageQueue | None
    wait: str
    tags: str | None
    timeout_ms: int | None


class _PendingBatch:
    __slots__ = ("futures", "messages", "size_bytes", "timer")

    def __init__(self, timer: asyncio.TimerHandle) -> None:
        self.messages: list[Message] = []
        self.futures: list[SettleFuture] = []
        self.size_bytes = 0
        self.timer = timer


class Accumulator:
    """Belongs to the running loop. ``send`` starts one send of several messages (or of one) and must not raise."""

    def __init__(
        self,
        settings: AutoBatch,
        send: Callable[[list[Message], asyncio.Future[Any], MessageQueue | None, int | None], None],
    ) -> None:
        self._settings = settings
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._batches: dict[_Key, _PendingBatch] = {}
        self._held_bytes = 0

    def add(
        self, message: Message, future: SettleFuture, queue: MessageQueue | None, timeout_ms: int | None
    ) -> bool:
        """False if too much waits already; the caller then sends the message itself. The message must be valid."""
        size_bytes = len(message.body)
        if self._held_bytes + size_bytes > self._settings.max_total_bytes:
            return False
        properties = message.properties
        key = _Key(message.topic, queue, properties.get(WAIT, "true"), properties.get(TAGS), timeout_ms)
        batch = self._batches.get(key)
        if batch is None:
            timer = self._loop.call_later(self._settings.max_delay_ms / 1000, self._flush, key)
            batch = self._batches[key] = _PendingBatch(timer)
        batch.messages.append(message)
        batch.futures.append(future)
        batch.size_bytes += size_bytes
        self._held_bytes += size_bytes
        if batch.size_bytes > self._settings.max_bytes:
            self._flush(key)
        return True

    @property
    def waiting(self) -> int:
        """The number of messages that wait."""
        return sum(len(batch.messages) for batch in self._batches.values())

    def flush(self) -> None:
        """Send everything that waits."""
        for key in list(self._batches):
            self._flush(key)

    def _flush(self, key: _Key) -> None:
        batch = self._batches.pop(key)
        batch.timer.cancel()
        self._held_bytes -= batch.size_bytes
        together: asyncio.Future[SendResult] = self._loop.create_future()
        together.add_done_callback(lambda done: _share(done, batch.futures))
        self._send(batch.messages, together, key.queue, key.timeout_ms)


def _share(together: asyncio.Future[SendResult], futures: list[SettleFuture]) -> None:
    """Give each sender its part of the result; the offsets of a batch are consecutive."""
    error = together.exception()
    if error is not None:
        for future in futures:
            if not future.done():
                future.set_exception(error)
        return
    result = together.result()
    ids, offset_ids = result.message_id.split(","), result.offset_message_id.split(",")
    count = len(futures)
    for number, future in enumerate(futures):
        if not future.done():
            future.set_result(
                type(result)(
                    result.status,
                    ids[number] if len(ids) == count else result.message_id,
                    offset_ids[number] if len(offset_ids) == count else result.offset_message_id,
                    result.queue,
                    QueueOffset(result.queue_offset + number),
                )
            )
