"""The cached, unconsumed messages of one queue: the offsets between the last commit and the last pull.

The offset to commit is the smallest unfinished one, not the last finished one, so a crash loses nothing. Facts:
RocketMQ's ProcessQueue. Knows no sockets and no threads: the caller owns it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from mqspark.message import MessageExt

_LARGEST_PULL_BYTES = 2 * 1024 * 1024
"""What mqspark's brokers return at most, to a pull of many messages."""


@dataclass(frozen=True, slots=True)
class FlowLimits:
    """When a queue pauses pulling: DefaultMQPushConsumer's pullThreshold* and MaxSpan."""

    max_messages: int = 1000
    max_bytes: int = 100 * 1024 * 1024
    max_span: int = 2000
    """Between the first and the last cached offset; limits what is delivered again after a crash because of one
    slow message."""


class ProcessQueue:
    """Offsets go in by ``put`` in ascending order and out by ``complete`` in any order."""

    __slots__ = (
        "_pending",
        "_sizes",
        "dropped",
        "last_consume_ms",
        "last_pull_ms",
        "next_offset",
        "size_bytes",
    )

    def __init__(self, start_offset: int) -> None:
        self.next_offset = start_offset
        """The offset to pull next."""
        self.size_bytes = 0
        self.dropped = False
        """The queue is no longer assigned: results of its listeners change no offset."""
        self.last_pull_ms = 0
        self.last_consume_ms = 0
        self._pending: deque[int] = deque()
        """Ascending; the head is never done."""
        self._sizes: dict[int, int] = {}
        """The size of each that is not done: listeners may change their messages."""

    def put(self, messages: Iterable[MessageExt], next_offset: int) -> list[MessageExt]:
        """Cache the messages of a pull, up to ``next_offset``. Returns the new ones.

        A record with several messages is served whole, so it may begin before the requested offset.
        """
        floor = self.next_offset
        fresh = [message for message in messages if message.queue_offset >= floor]
        offsets = [message.queue_offset for message in fresh]
        # The compressed size: a body is decompressed only for its listener.
        sizes = [len(each.body) if each.__class__ is MessageExt else each.stored_body_bytes for each in fresh]
        self._pending.extend(offsets)
        self._sizes.update(zip(offsets, sizes, strict=True))
        self.size_bytes += sum(sizes)
        self.advance(next_offset)
        return fresh

    def advance(self, next_offset: int) -> None:
        """No matching messages exist before ``next_offset``."""
        self.next_offset = max(self.next_offset, next_offset)

    def holds(self, message: MessageExt) -> bool:
        """Whether this cached message still needs a delivery."""
        return message.queue_offset in self._sizes

    def complete(self, *messages: MessageExt) -> None:
        """These messages need no further delivery."""
        pending, sizes = self._pending, self._sizes
        for message in messages:
            self.size_bytes -= sizes.pop(message.queue_offset, 0)
        while pending and pending[0] not in sizes:
            pending.popleft()

    @property
    def message_count(self) -> int:
        return len(self._sizes)

    @property
    def commit_offset(self) -> int:
        """All earlier messages are consumed."""
        return self._pending[0] if self._pending else self.next_offset

    @property
    def min_offset(self) -> int:
        """The first cached offset, 0 if there is none (as in ProcessQueueInfo)."""
        return self._pending[0] if self._pending else 0

    @property
    def max_offset(self) -> int:
        return self._pending[-1] if self._pending else 0

    @property
    def span(self) -> int:
        return self._pending[-1] - self._pending[0] if self._pending else 0

    def is_full(self, limits: FlowLimits) -> bool:
        return (
            self.message_count > limits.max_messages
            or self.size_bytes > limits.max_bytes
            or self.span > limits.max_span
        )

    def room(self, limits: FlowLimits) -> int:
        """How many messages may come within the limits, if none is large."""
        if limits.max_bytes - self.size_bytes < _LARGEST_PULL_BYTES:
            return 0
        return min(limits.max_messages - self.message_count, limits.max_span - self.span)

    def drop(self) -> None:
        """Drop the cached messages; the offset to commit does not change."""
        self.dropped = True
        self.next_offset = self.commit_offset
        self._pending.clear()
        self._sizes.clear()
        self.size_bytes = 0
