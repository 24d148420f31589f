"""The strings by which POP refers to messages: receipt handles and the offset fields of an answer
(ExtraInfoUtil, KeyBuilder).

    receipt handle    start offset, pop time, invisible time, revive queue, retry flag, broker, queue[, offset[, ...]]
    startOffsetInfo   "retry flag, queue, start offset" of each queue, joined by ";"
    msgOffsetInfo     "retry flag, queue, offset[,offset ...]" of each queue, joined by ";"
    orderCountInfo    "retry flag, queue, count" or "retry flag, qo<queue>%<offset>, count", joined by ";"

with spaces between the parts. A receipt is valid for one delivery of one message.

Facts: docs/rocketmq/pop.md#receipts.
"""

from __future__ import annotations

from typing import NamedTuple

from mqspark.errors import ProtocolError
from mqspark.message import MAX_DIGITS, RETRY_PREFIX

ORDER_REVIVE_QUEUE = 999
"""The revive queue in receipts of ordered pops, which have no check point in the log."""

NORMAL, RETRY_V1, RETRY_V2 = "0", "1", "2"

MAX_RECEIPT_LENGTH = 4096
_MAX_DIGITS = 20


class Receipt(NamedTuple):
    """The message at ``offset`` (-1: unknown) was delivered at ``pop_time_ms`` for ``invisible_time_ms``."""

    start_offset: int
    """The first queue offset of the pop. With the pop time it identifies the check point."""
    pop_time_ms: int
    invisible_time_ms: int
    revive_queue: int
    retry: str
    broker_name: str
    queue_id: int
    offset: int = -1

    @property
    def is_order(self) -> bool:
        return self.revive_queue == ORDER_REVIVE_QUEUE

    @property
    def visible_again_ms(self) -> int:
        return self.pop_time_ms + self.invisible_time_ms

    def encode(self) -> str:
        text = (
            f"{self.start_offset} {self.pop_time_ms} {self.invisible_time_ms} {self.revive_queue}"
            f" {self.retry} {self.broker_name} {self.queue_id}"
        )
        return text if self.offset < 0 else f"{text} {self.offset}"


def parse_receipt(text: str) -> Receipt:
    """Parse a receipt handle. Text after the offset is ignored: RocketMQ's Proxy adds the physical offset
    there.

    Raises ProtocolError.
    """
    parts = text.split(" ") if len(text) <= MAX_RECEIPT_LENGTH else []
    if len(parts) >= 7:
        try:
            return Receipt(
                _i64(parts[0]),
                _i64(parts[1]),
                _i64(parts[2]),
                _i64(parts[3]),
                parts[4],
                parts[5],
                _i64(parts[6]),
                _i64(parts[7]) if len(parts) > 7 else -1,
            )
        except ValueError:
            pass
    raise ProtocolError(f"{text[:80]!r} is not a receipt handle of 7 or more parts")


def retry_topic_v1(topic: str, group: str) -> str:
    return f"{RETRY_PREFIX}{group}_{topic}"


def retry_topic_v2(topic: str, group: str) -> str:
    return f"{RETRY_PREFIX}{group}+{topic}"


def retry_flag(topic: str, group: str) -> str:
    """The retry flag of ``topic`` for ``group``."""
    if not topic.startswith(RETRY_PREFIX):
        return NORMAL
    return RETRY_V2 if topic.startswith(f"{RETRY_PREFIX}{group}+") else RETRY_V1


def normal_topic(topic: str, group: str) -> str:
    """The topic whose retries ``topic`` holds for ``group``; ``topic`` itself when it is not a retry topic of
    POP."""
    for separator in "+_":
        prefix = f"{RETRY_PREFIX}{group}{separator}"
        if topic.startswith(prefix):
            return topic[len(prefix) :]
    return topic


def real_topic(topic: str, group: str, retry: str) -> str:
    """The topic in which a message popped as ``topic`` is stored."""
    if retry == RETRY_V1:
        return retry_topic_v1(topic, group)
    if retry == RETRY_V2:
        return retry_topic_v2(topic, group)
    return topic


def parse_start_offsets(text: str | None) -> dict[tuple[str, int], int]:
    """``startOffsetInfo``: (retry flag, queue id) → start offset. Raises ProtocolError."""
    try:
        return {
            (retry, _i64(queue_id)): _i64(offset)
            for retry, queue_id, offset in map(str.split, _entries(text))
        }
    except ValueError:
        raise ProtocolError(f"startOffsetInfo {(text or '')[:80]!r} cannot be read") from None


def parse_message_offsets(text: str | None) -> dict[tuple[str, int], list[int]]:
    """``msgOffsetInfo``: (retry flag, queue id) → queue offsets. Raises ProtocolError."""
    try:
        return {
            (retry, _i64(queue_id)): [_i64(offset) for offset in offsets.split(",")]
            for retry, queue_id, offsets in map(str.split, _entries(text))
        }
    except ValueError:
        raise ProtocolError(f"msgOffsetInfo {(text or '')[:80]!r} cannot be read") from None


class OrderCounts(NamedTuple):
    """How often the messages of an ordered pop were delivered before."""

    by_offset: dict[tuple[int, int], int]
    """(queue id, queue offset) → count"""
    by_queue: dict[int, int]
    """Queue id → count of all its messages that have no count of their own."""

    def of(self, queue_id: int, offset: int) -> int:
        return self.by_offset.get((queue_id, offset), self.by_queue.get(queue_id, 0))


def parse_order_counts(text: str | None) -> OrderCounts:
    """``orderCountInfo``. Raises ProtocolError."""
    by_offset: dict[tuple[int, int], int] = {}
    by_queue: dict[int, int] = {}
    try:
        for _, place, count in map(str.split, _entries(text)):
            if place.startswith("qo"):
                queue_id, offset = place[2:].split("%")
                by_offset[_i64(queue_id), _i64(offset)] = _i64(count)
            else:
                by_queue[_i64(place)] = _i64(count)
    except ValueError:
        raise ProtocolError(f"orderCountInfo {(text or '')[:80]!r} cannot be read") from None
    return OrderCounts(by_offset, by_queue)


def _entries(text: str | None) -> list[str]:
    return [entry for entry in (text or "").split(";") if entry]


def _i64(text: str) -> int:
    """As Java's Long.parseLong. Raises ValueError, also for values too large for an offset or time."""
    if len(text) <= MAX_DIGITS and text.isdecimal():
        return int(text)
    if len(text) > _MAX_DIGITS or not text.lstrip("+-").isdecimal():
        raise ValueError(text[:80])
    number = int(text)
    if not -(1 << 63) <= number < 1 << 63:
        raise ValueError(text)
    return number
