"""Selection of the queue for the next message, and avoidance of slow or failed brokers. No sockets.

Facts: docs/rocketmq/client.md#sending (MQFaultStrategy, LatencyFaultToleranceImpl, TopicPublishInfo).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from mqspark.base.clock import Clock

_PENALTIES = ((15_000, 30_000), (5_000, 10_000), (3_000, 6_000), (1_800, 5_000), (550, 2_000))
"""(response time is at least, broker is avoided for), in ms: MQFaultStrategy's two tables without their zeros."""
SLOW_MS = _PENALTIES[-1][0]
"""Faster responses have no penalty."""
_ISOLATED_LATENCY_MS = 10_000
"""The response time that a connection error counts as."""


class OfBroker(Protocol):
    @property
    def broker_name(self) -> str: ...


Q = TypeVar("Q", bound=OfBroker)


_MAX_BROKERS = 1_000


class FaultTable:
    """Slow or unreachable brokers, and until when they are avoided."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until_ms: dict[str, int] = {}

    def record(self, broker_name: str, latency_ms: float, *, isolate: bool = False) -> None:
        """``isolate``: no answer, or a refusal. A penalty can only be extended."""
        if isolate:
            latency_ms = _ISOLATED_LATENCY_MS
        for threshold_ms, penalty_ms in _PENALTIES:
            if latency_ms >= threshold_ms:
                until_ms = self._clock.monotonic_ms() + penalty_ms
                self._until_ms[broker_name] = max(self._until_ms.get(broker_name, 0), until_ms)
                if len(self._until_ms) > _MAX_BROKERS:
                    self._forget()
                return

    def forgive(self, broker_name: str) -> None:
        """It may be used at once."""
        self._until_ms.pop(broker_name, None)

    def _forget(self) -> None:
        """Remove brokers that may be used again; if there are none, the one avoided longest."""
        now_ms = self._clock.monotonic_ms()
        kept = {name: until_ms for name, until_ms in self._until_ms.items() if until_ms > now_ms}
        if len(kept) > _MAX_BROKERS:
            del kept[next(iter(kept))]
        self._until_ms = kept

    def available(self, broker_name: str) -> bool:
        until_ms = self._until_ms.get(broker_name)
        if until_ms is None:
            return True
        if until_ms > self._clock.monotonic_ms():
            return False
        del self._until_ms[broker_name]
        return True

    @property
    def empty(self) -> bool:
        return not self._until_ms


class QueueChooser:
    """Round robin over a topic's queues. A retry goes to another broker, and to a healthy one if there is one."""

    __slots__ = ("_counter", "_faults")

    def __init__(self, faults: FaultTable, start: int = 0) -> None:
        self._faults = faults
        self._counter = start

    def choose(self, queues: Sequence[Q], last_broker: str | None = None) -> Q:
        count = len(queues)
        self._counter += 1
        first = queues[self._counter % count]
        faults = self._faults
        if last_broker is None and (faults.empty or faults.available(first.broker_name)):
            return first
        elsewhere: Q | None = None
        for step in range(count):
            queue = queues[(self._counter + step) % count]
            if queue.broker_name == last_broker:
                continue
            if faults.available(queue.broker_name):
                self._counter += step
                return queue
            elsewhere = elsewhere or queue
        return elsewhere or first
