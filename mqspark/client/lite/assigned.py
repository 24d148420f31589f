"""One queue of a lite pull consumer: fetched, delivered and consumed messages. Facts: RocketMQ's
AssignedMessageQueue. No sockets."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import NamedTuple

from mqspark.message import MASTER_ID, MessageExt, MessageQueue
from mqspark.protocol.bodies.admin_bodies import ProcessQueueInfo


class PulledBatch(NamedTuple):
    """The result of one pull of one queue."""

    assigned: Assigned
    generation: int
    messages: list[MessageExt]
    next_offset: int


class Assigned:
    """One assigned queue: fetched, delivered and consumed messages."""

    __slots__ = (
        "batches",
        "broker_id",
        "cached",
        "cached_bytes",
        "consumed",
        "delivered",
        "generation",
        "last_pull_ms",
        "next_offset",
        "queue",
        "task",
        "written",
    )

    def __init__(self, queue: MessageQueue, offset: int) -> None:
        self.queue = queue
        self.task: asyncio.Task[None]
        self.written: int | None = None
        """The offset of the last commit."""
        self.broker_id = MASTER_ID
        self.generation = 0
        """Incremented by each seek, which invalidates earlier fetches."""
        self.batches: deque[PulledBatch] = deque()
        self.last_pull_ms = 0
        self.restart(offset)

    def restart(self, offset: int) -> None:
        self.generation += 1
        self.batches.clear()
        self.cached = self.cached_bytes = 0
        self.next_offset = self.delivered = self.consumed = offset

    def put(self, messages: list[MessageExt], next_offset: int) -> None:
        self.cached += len(messages)
        self.cached_bytes += sum(message.stored_body_bytes for message in messages)
        self.batches.append(PulledBatch(self, self.generation, messages, next_offset))

    def pop(self) -> PulledBatch:
        batch = self.batches.popleft()
        self.cached -= len(batch.messages)
        self.cached_bytes -= sum(message.stored_body_bytes for message in batch.messages)
        return batch

    @property
    def span(self) -> int:
        """The distance between the first and the last cached offset."""
        if not self.batches:
            return 0
        return self.batches[-1].messages[-1].queue_offset - self.batches[0].messages[0].queue_offset

    def info(self) -> ProcessQueueInfo:
        batches = self.batches
        return ProcessQueueInfo(
            commit_offset=self.consumed,
            cached_msg_min_offset=batches[0].messages[0].queue_offset if batches else 0,
            cached_msg_max_offset=batches[-1].messages[-1].queue_offset if batches else 0,
            cached_msg_count=self.cached,
            cached_msg_size_in_mib=self.cached_bytes >> 20,
            last_pull_timestamp=self.last_pull_ms,
        )
