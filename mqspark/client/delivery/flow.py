"""When a push consumer stops pulling a queue for a moment. Facts: RocketMQ's
DefaultMQPushConsumerImpl.pullMessage, RebalancePushImpl.messageQueueChanged."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable

from mqspark.client.delivery.process_queue import FlowLimits, ProcessQueue
from mqspark.message import MessageQueue

_FULL_PAUSE_S = 0.05


class Flow:
    """``limits`` apply to each queue; limits of a topic are divided among its assigned queues."""

    def __init__(
        self, limits: FlowLimits, max_messages_per_topic: int | None, max_bytes_per_topic: int | None
    ) -> None:
        self._limits = limits
        self._max_messages = max_messages_per_topic
        self._max_bytes = max_bytes_per_topic
        self._of_topic: dict[str, FlowLimits] = {}
        self._full: dict[ProcessQueue, tuple[asyncio.Future[None], FlowLimits]] = {}

    def limits(self, topic: str) -> FlowLimits:
        """The limits of each queue of ``topic``."""
        return self._of_topic.get(topic, self._limits)

    def share(self, queues: Iterable[MessageQueue]) -> None:
        """Set the assigned queues."""
        max_messages, max_bytes = self._max_messages, self._max_bytes
        if max_messages is None and max_bytes is None:
            return
        limits = self._limits
        self._of_topic = {
            topic: FlowLimits(
                limits.max_messages if max_messages is None else max(1, max_messages // count),
                limits.max_bytes if max_bytes is None else max(1, max_bytes // count),
                limits.max_span,
            )
            for topic, count in Counter(queue.topic for queue in queues).items()
        }

    async def space(self, process: ProcessQueue, limits: FlowLimits) -> None:
        """Wait until the listener has caught up a little."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._full[process] = (waiter, limits)
        try:
            async with asyncio.timeout(_FULL_PAUSE_S):
                await waiter
        except TimeoutError:
            return
        finally:
            del self._full[process]

    def consumed(self, process: ProcessQueue) -> None:
        """Called when the cache has shrunk."""
        waiting = self._full.get(process)
        if waiting is not None:
            waiter, limits = waiting
            if not waiter.done() and not process.is_full(limits):
                waiter.set_result(None)
