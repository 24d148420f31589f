"""A consumer's pull and consume rates by topic over the last minute, for ``mqadmin consumerStatus``. Facts:
RocketMQ's ConsumerStatsManager."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from mqspark.base.clock import Clock
from mqspark.protocol.bodies.admin_bodies import ConsumeRates

WINDOW_MS = 60_000
_SAMPLES = 12


class _Totals(NamedTuple):
    pulls: int = 0
    pulled: int = 0
    pull_ms: float = 0.0
    calls: int = 0
    consumed: int = 0
    failed: int = 0
    listener_ms: float = 0.0


class _Topic:
    __slots__ = ("calls", "consumed", "failed", "listener_ms", "pull_ms", "pulled", "pulls", "samples")

    def __init__(self) -> None:
        self.pulls = self.pulled = self.calls = self.consumed = self.failed = 0
        self.pull_ms = self.listener_ms = 0.0
        self.samples: deque[tuple[int, _Totals]] = deque(maxlen=_SAMPLES + 1)
        """(monotonic ms, totals); the oldest entry is the start of the window."""

    def totals(self) -> _Totals:
        return _Totals(
            self.pulls,
            self.pulled,
            self.pull_ms,
            self.calls,
            self.consumed,
            self.failed,
            self.listener_ms,
        )


_MAX_TOPICS, _MAX_TOPIC_LENGTH = 10_000, 255


class ConsumeStatistics:
    """``sample`` must be called several times a minute; rates are computed since the oldest sample."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began_ms = clock.monotonic_ms()
        self._sampled_ms = self._began_ms
        self._topics: dict[str, _Topic] = {}

    def pulled(self, topic: str, messages: int, elapsed_ms: float) -> None:
        """One answered pull."""
        each = self._topic(topic)
        each.pulls += 1
        each.pulled += messages
        each.pull_ms += elapsed_ms

    def consumed(self, topic: str, consumed: int, failed: int, elapsed_ms: float, *, calls: int = 1) -> None:
        """Messages that the listener got in ``calls`` calls."""
        each = self._topic(topic)
        each.calls += calls
        each.consumed += consumed
        each.failed += failed
        each.listener_ms += elapsed_ms

    def sample(self) -> None:
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._sampled_ms >= WINDOW_MS // _SAMPLES:
            self._sampled_ms = now_ms
            for each in self._topics.values():
                each.samples.append((now_ms, each.totals()))

    def status(self, topic: str) -> ConsumeRates:
        """Rates per second, times in ms, and the total number of failed messages."""
        each = self._topics.get(topic)
        if each is None:
            return ConsumeRates()
        since_ms, before = each.samples[0] if each.samples else (self._began_ms, _Totals())
        now = each.totals()
        seconds = max(1.0, (self._clock.monotonic_ms() - since_ms) / 1000)
        return ConsumeRates(
            pull_rt=(now.pull_ms - before.pull_ms) / max(1, now.pulls - before.pulls),
            pull_tps=(now.pulled - before.pulled) / seconds,
            consume_rt=(now.listener_ms - before.listener_ms) / max(1, now.calls - before.calls),
            consume_ok_tps=(now.consumed - before.consumed) / seconds,
            consume_failed_tps=(now.failed - before.failed) / seconds,
            consume_failed_msgs=now.failed,
        )

    def _topic(self, topic: str) -> _Topic:
        """Topics beyond the limit are not recorded; only a faulty broker returns messages of that many topics."""
        each = self._topics.get(topic)
        if each is None:
            each = _Topic()
            if len(self._topics) < _MAX_TOPICS and len(topic) <= _MAX_TOPIC_LENGTH:
                self._topics[topic] = each
        return each
