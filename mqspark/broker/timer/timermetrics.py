"""How many timer messages wait, by topic: ``config/timermetrics`` (TimerMetrics)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from mqspark.base.bounded import BoundedMap, Ledger
from mqspark.base.clock import Clock
from mqspark.base.config import Bound
from mqspark.base.names import sound_only
from mqspark.broker.tables.topics import Topics
from mqspark.protocol.bodies.admin_bodies import TimerMetric, TimerMetricsSerializeWrapper
from mqspark.protocol.bodies.body import Body, decode_table, encode_body
from mqspark.protocol.bodies.topic_bodies import DataVersion

MAX_METRICS_BYTES = 64 << 20


class TimerMetrics:
    """Counts of deleted topics are removed when the table is saved. Topics beyond the size limit are not counted."""

    def __init__(self, clock: Clock, topics: Topics, max_bytes: Bound = MAX_METRICS_BYTES) -> None:
        self.ledger = Ledger(
            "timerMetrics",
            max_bytes,
            "TimerMetrics.enqueued",
            "TimerMetrics.dequeued",
        )
        self._clock = clock
        self._topics = topics
        self._table: BoundedMap[str, tuple[int, int]] = self.ledger.map(400)
        """topic → messages, ms of the last change."""
        self.enqueued: dict[str, int] = {}
        """topic → messages added since the start."""
        self.dequeued: dict[str, int] = {}
        """topic → messages removed since the start."""
        self.data_version = DataVersion(state_version=0, timestamp=clock.now_ms(), counter=0)
        self.generation = 0

    def add(self, topic: str, count: int, now_ms: int) -> None:
        known = self._table.get(topic)
        if known is not None:
            self._table.replace(topic, (max(0, known[0] + count), now_ms))
        elif not self._table.offer(topic, (max(0, count), now_ms)):
            return
        totals = self.enqueued if count > 0 else self.dequeued
        totals[topic] = totals.get(topic, 0) + abs(count)
        self.generation += 1

    def counts(self) -> dict[str, int]:
        """topic → waiting messages."""
        return {topic: count for topic, (count, _) in self._table.items()}

    def follow(self, data: bytes) -> None:
        """Become a copy of a master's table. Raises ProtocolError."""
        before = self._table.copy()
        self.load(data)
        if self._table != before:
            self.generation += 1

    def begin_anew(self) -> None:
        """Count from 0, and replace the file soon."""
        self._table.clear()
        self.generation += 1

    def load(self, data: bytes) -> None:
        """Raises ProtocolError for a malformed file."""
        found = decode_table(TimerMetricsSerializeWrapper, data)
        self._table.refill(
            {
                topic: (metric.count, metric.time_stamp)
                for topic, metric in sound_only("timer metrics", found.timing_count).items()
            }
        )
        if found.data_version is not None:
            self.data_version = found.data_version

    def snapshot(self) -> Callable[[], Iterable[bytes]]:
        for totals in (self._table, self.enqueued, self.dequeued):
            for topic in [topic for topic in totals if topic not in self._topics]:
                del totals[topic]
        self.data_version = self.data_version.next(self._clock.now_ms())
        found = self.wrapper()
        return lambda: [encode_body(found)]

    def wrapper(self) -> Body:
        """A copy of the table, in the form used by the file and by slaves."""
        return TimerMetricsSerializeWrapper(
            timing_count={topic: TimerMetric(*entry) for topic, entry in self._table.items()},
            data_version=self.data_version,
        )
