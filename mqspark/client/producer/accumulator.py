"""Combines single sends: messages of one topic that arrive within some milliseconds are sent and stored as a
batch, and each sender gets its own result. Facts: RocketMQ's ProduceAccumulator."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

from mqspark.base.valuetypes import InRange, PositiveInt, check_fields
from mqspark.client.delivery.results import SendResult, SettleFuture
from mqspark.client.producer.outgoing import (
    PLAIN_ITEM_BYTES,
    as_it_is,
    check_batch_topic,
    check_head,
    check_way,
    member_of,
)
from mqspark.message import (
    CORRELATION_ID,
    DELAYS,
    MESSAGE_TYPE,
    PRIORITY,
    PRODUCER_GROUP,
    RETRY_PREFIX,
    TAGS,
    WAIT,
    Message,
    MessageQueue,
    QueueOffset,
)

_ALONE = DELAYS | {PRODUCER_GROUP, MESSAGE_TYPE, CORRELATION_ID, PRIORITY}
"""A message with one of these properties is sent alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoBatch:
    """A batch is sent when its bodies exceed ``max_bytes``, when one more message would make it larger than a message
    may be, or when it is ``max_delay_ms`` old. While ``max_total_bytes`` wait,
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


_NONE: dict[str, str] = {}


class Together:
    """Messages that wait to be sent together, and the future of that send: it gives each sender its part of the
    result."""

    __slots__ = ("first", "futures", "items_bytes", "members", "queue", "size_bytes", "timeout_ms", "timer")

    timer: asyncio.TimerHandle

    def __init__(self, first: Message, queue: MessageQueue | None, timeout_ms: int | None) -> None:
        self.first = first
        self.queue = queue
        self.timeout_ms = timeout_ms
        self.members: list[Any] = []
        """As ``Accumulator`` was asked to keep them."""
        self.futures: list[SettleFuture] = []
        self.size_bytes = 0
        """The size of the bodies."""
        self.items_bytes = 0
        """The size of the bodies with all that is sent with them."""

    def done(self) -> bool:
        return False  # its send settles it once

    def set_exception(self, error: BaseException, /) -> None:
        for future in self.futures:
            if not future.done():
                future.set_exception(error)

    def set_result(self, result: SendResult, /) -> None:
        """The offsets of a batch are consecutive."""
        status, queue, offset = result.status, result.queue, result.queue_offset
        ids, offset_ids = self._each(result.message_id), self._each(result.offset_message_id)
        for future, unique_id, offset_id in zip(self.futures, ids, offset_ids, strict=True):
            if not future.done():
                future.set_result(SendResult(status, unique_id, offset_id, queue, offset))
            offset = QueueOffset(offset + 1)

    def _each(self, joined: str) -> list[str]:
        ids, count = joined.split(","), len(self.futures)
        return ids if len(ids) == count else [joined] * count


class Accumulator:
    """Belongs to the running loop. ``send`` starts one send of several messages (or of one) and must not raise."""

    def __init__(
        self,
        settings: AutoBatch,
        send: Callable[[Together], None],
        *,
        alone_from_bytes: int,
        most_bytes: int,
        keeps_messages: bool,
    ) -> None:
        """A message with a body of ``alone_from_bytes`` is sent alone. ``most_bytes``: of a batch as it is sent.
        ``keeps_messages``: the members of a batch are messages; else what ``outgoing.packed`` takes."""
        self._settings = settings
        self._send = send
        self._alone_from_bytes = alone_from_bytes
        self._most_bytes = most_bytes
        self._keeps_messages = keeps_messages
        self._loop = asyncio.get_running_loop()
        self._batches: dict[_Key | str, Together] = {}
        """By topic alone where nothing else is said of a batch."""
        self._held_bytes = 0

    def add(
        self, message: Message, future: SettleFuture, queue: MessageQueue | None, timeout_ms: int | None
    ) -> bool:
        """False if the message must be sent alone, or too much waits already. Raises InvalidMessage for one that would
        make its batch invalid, and for the other arguments."""
        batch = None
        if (
            message.__class__ is Message
            and queue is None
            and timeout_ms is None
            and message.properties == _NONE
            and message.flag == 0
            and message.topic.__class__ is str
        ):
            batch = self._batches.get(message.topic)
        if batch is None:
            check_head(message)
            check_way(queue, None, None, timeout_ms)
        body = message.body
        size_bytes = len(body)
        if (
            body.__class__ is not bytes
            or not 0 < size_bytes < self._alone_from_bytes
            or self._held_bytes + size_bytes > self._settings.max_total_bytes
        ):
            return False
        if batch is not None:
            member: Any = as_it_is(message) if self._keeps_messages else (0, body, b"", None)
            item_bytes = size_bytes + PLAIN_ITEM_BYTES
        elif can_batch(message):
            check_batch_topic(message.topic)
            checked = member_of(message, size_bytes)
            member = as_it_is(message) if self._keeps_messages else checked
            item_bytes = size_bytes + PLAIN_ITEM_BYTES + len(checked[2])
            batch = self._batch_for(message, queue, timeout_ms)
        else:
            return False
        if batch.members and batch.items_bytes + item_bytes > self._most_bytes:
            self._flush(self._key(message, queue, timeout_ms))
            batch = self._batch_for(message, queue, timeout_ms)
        batch.members.append(member)
        batch.futures.append(future)
        batch.size_bytes += size_bytes
        batch.items_bytes += item_bytes
        self._held_bytes += size_bytes
        if batch.size_bytes > self._settings.max_bytes:
            self._flush(self._key(message, queue, timeout_ms))
        return True

    @staticmethod
    def _key(message: Message, queue: MessageQueue | None, timeout_ms: int | None) -> _Key | str:
        topic, properties = message.topic, message.properties
        wait, tags = properties.get(WAIT, "true"), properties.get(TAGS)
        if queue is None and timeout_ms is None and tags is None and wait == "true":
            return topic
        return _Key(topic, queue, wait, tags, timeout_ms)

    def _batch_for(self, message: Message, queue: MessageQueue | None, timeout_ms: int | None) -> Together:
        key = self._key(message, queue, timeout_ms)
        batch = self._batches.get(key)
        if batch is None:
            batch = self._batches[key] = Together(as_it_is(message), queue, timeout_ms)
            batch.timer = self._loop.call_later(self._settings.max_delay_ms / 1000, self._flush, key)
        return batch

    @property
    def waiting(self) -> int:
        """The number of messages that wait."""
        return sum(len(batch.futures) for batch in self._batches.values())

    def flush(self) -> None:
        """Send everything that waits."""
        for key in list(self._batches):
            self._flush(key)

    def _flush(self, key: _Key | str) -> None:
        batch = self._batches.pop(key)
        batch.timer.cancel()
        self._held_bytes -= batch.size_bytes
        self._send(batch)
