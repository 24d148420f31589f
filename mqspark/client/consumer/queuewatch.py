"""Polls the queues of topics, for programs that assign queues themselves. Facts: RocketMQ's
TopicMessageQueueChangeListener."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable

from mqspark.base.logs import escaping
from mqspark.client.life.lifecycle import Tasks
from mqspark.client.remoting.remoting import level_of
from mqspark.errors import MQError, NoRoute
from mqspark.message import MessageQueue, check_topic

log = escaping(__name__)

QueuesListener = Callable[[str, list[MessageQueue]], Awaitable[None] | None]
"""Called with a topic and all its readable queues; a function or a coroutine function."""


class QueueWatch:
    """Calls one listener per topic when the topic's queues change. ``fetch`` returns the queues of a topic."""

    def __init__(
        self, fetch: Callable[[str], Awaitable[list[MessageQueue]]], tasks: Tasks, interval_ms: int
    ) -> None:
        self._fetch = fetch
        self._tasks = tasks
        self._interval_ms = interval_ms
        self._listeners: dict[str, QueuesListener] = {}
        self._running = False

    def start(self) -> None:
        self._running = True
        for topic in self._listeners:
            self._tasks.spawn(self._watch(topic))

    def stop(self) -> None:
        """The tasks end with those of their owner."""
        self._running = False

    def listen(self, topic: str, listener: QueuesListener | None) -> None:
        """Report changes from the present queues on; None stops that."""
        check_topic(topic)
        watched = topic in self._listeners
        if listener is None:
            self._listeners.pop(topic, None)
            return
        self._listeners[topic] = listener
        if self._running and not watched:
            self._tasks.spawn(self._watch(topic))

    async def _watch(self, topic: str) -> None:
        known: list[MessageQueue] | None = None
        while topic in self._listeners:
            try:
                queues = await self._fetch(topic)
            except NoRoute:
                queues = []  # it does not exist, or no longer
            except MQError as error:
                log.log(level_of(error), "cannot fetch the queues of %s: %s", topic, error)
                queues = known or []
            listener = self._listeners.get(topic)
            if known is not None and queues != known and listener is not None:
                try:
                    answer = listener(topic, queues)
                    if inspect.isawaitable(answer):
                        await answer
                except Exception:
                    log.exception("the listener for the queues of %s failed", topic)
            known = queues
            await asyncio.sleep(self._interval_ms / 1000)
