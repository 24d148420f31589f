"""What of one queue is cached and not yet consumed: the offsets between the last commit and the last pull.

The offset to commit is the smallest that is still being worked on, never the last one that finished, so a crash
loses nothing. Facts: RocketMQ's ProcessQueue. Knows no sockets and no threads: whoever calls it owns it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from mqspark.message import MessageExt

__all__ = ["FlowLimits", "ProcessQueue"]


@dataclass(frozen=True, slots=True)
class FlowLimits:
    """When a queue stops pulling for a moment: DefaultMQPushConsumer's pullThreshold* and MaxSpan."""

    max_messages: int = 1000
    max_bytes: int = 100 * 1024 * 1024
    max_span: int = 2000
    """Between the first and the last cached offset: bounds what one slow message makes others repeat."""


class ProcessQueue:
    """Offsets go in by ``put`` in ascending order and out by ``complete`` in any order."""

    __slots__ = (
        "_done",
        "_pending",
        "dropped",
        "last_consume_ms",
        "last_pull_ms",
        "message_count",
        "next_offset",
        "paused",
        "size_bytes",
    )

    def __init__(self, start_offset: int) -> None:
        self.next_offset = start_offset
        """What to pull next."""
        self.message_count = 0
        self.size_bytes = 0
        self.dropped = False
        """The queue is no longer ours: what its listeners still do changes no offset."""
        self.paused = False
        self.last_pull_ms = 0
        self.last_consume_ms = 0
        self._pending: deque[int] = deque()
        """Ascending; the head is never done."""
        self._done: set[int] = set()
        """Consumed, but an earlier one is not."""

    def put(self, messages: Iterable[MessageExt], next_offset: int) -> list[MessageExt]:
        """Cache what a pull found, up to ``next_offset``; gives back what is new.

        A record that holds several messages is served whole, so it may begin before the offset asked for.
        """
        floor = self.next_offset
        fresh = [message for message in messages if message.queue_offset >= floor]
        self._pending.extend([message.queue_offset for message in fresh])
        self.message_count += len(fresh)
        # Not what a compressed body would become: it is inflated for its listener.
        self.size_bytes += sum(
            [len(each.body) if each.__class__ is MessageExt else each.stored_body_bytes for each in fresh]
        )
        self.advance(next_offset)
        return fresh

    def advance(self, next_offset: int) -> None:
        """Nothing for us before ``next_offset``."""
        self.next_offset = max(self.next_offset, next_offset)

    def holds(self, message: MessageExt) -> bool:
        """Whether this cached message still needs a delivery. Only for messages that ``put`` gave back."""
        offset = message.queue_offset
        pending = self._pending
        return bool(pending) and pending[0] <= offset <= pending[-1] and offset not in self._done

    def complete(self, message: MessageExt) -> None:
        """This message needs no further delivery."""
        offset = message.queue_offset
        pending = self._pending
        if pending and pending[0] == offset:
            pending.popleft()
            done = self._done
            while pending and pending[0] in done:
                done.remove(pending.popleft())
        elif offset in self._done or not pending or not pending[0] < offset < self.next_offset:
            return
        else:
            self._done.add(offset)
        self.message_count -= 1
        is_plain = message.__class__ is MessageExt
        self.size_bytes -= len(message.body) if is_plain else message.stored_body_bytes

    @property
    def commit_offset(self) -> int:
        """Everything below is consumed."""
        return self._pending[0] if self._pending else self.next_offset

    @property
    def min_offset(self) -> int:
        """The first cached offset, 0 without one (as ProcessQueueInfo shows it)."""
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

    def drop(self) -> None:
        """Forget what is cached; the offset to commit stays as it is."""
        self.dropped = True
        self.next_offset = self.commit_offset
        self._pending.clear()
        self._done.clear()
        self.message_count = self.size_bytes = 0
