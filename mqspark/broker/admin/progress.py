"""The lag of consumer groups, for metrics (ConsumerLagCalculator, LiteConsumerLagCalculator).

Lite topics count for their parent topic, and only on request, because there may be very many.
"""

from __future__ import annotations

from collections.abc import Iterator

from mqspark.broker.admin.inspection import QUEUES_AT_ONCE
from mqspark.broker.state.litenames import parent_and_lite
from mqspark.broker.state.state import BrokerState
from mqspark.store.queue.multidispatch import LMQ_QUEUE_ID


class Progress:
    """The lag of one group in one topic, over its queues."""

    __slots__ = ("_oldest_ms", "_waiting_ms", "group", "in_flight", "is_lite", "lag", "ready", "topic")

    def __init__(self, topic: str, group: str, *, is_lite: bool = False) -> None:
        self.is_lite = is_lite
        """Whether it covers the lite topics of ``topic``. The messages that clients hold of these are not known."""
        self.topic = topic
        self.group = group
        self.lag = 0
        """Messages that are not consumed."""
        self.in_flight = 0
        """Messages that clients have and have not finished."""
        self.ready = 0
        """Messages that no client has yet."""
        self._oldest_ms = self._waiting_ms = 0

    def lag_ms(self, now_ms: int) -> int:
        """Age of the oldest message that is not consumed."""
        return max(0, now_ms - self._oldest_ms) if self._oldest_ms else 0

    def queueing_ms(self, now_ms: int) -> int:
        """Age of the oldest message that no client has yet."""
        return max(0, now_ms - self._waiting_ms) if self._waiting_ms else 0

    def add_queue(self, state: BrokerState, queue_id: int, committed: int, *, popped: bool) -> None:
        store = state.store
        end = max(0, store.offsets.max_offset(self.topic, queue_id))
        pulled = committed if popped else state.offsets.pull_offset(self.group, self.topic, queue_id)
        self.lag += max(0, end - committed)
        self._oldest_ms = _earlier(self._oldest_ms, self._stored_ms(state, queue_id, committed, end))
        if pulled >= 0:
            self.ready += max(0, end - pulled)
            self.in_flight += max(0, pulled - committed)
            self._waiting_ms = _earlier(self._waiting_ms, self._stored_ms(state, queue_id, pulled, end))

    def add_lite(self, state: BrokerState, queue: str, *, is_timed: bool) -> None:
        """The lite topic of this queue. ``is_timed``: look for its oldest message, too."""
        committed = state.offsets.query(self.group, queue, LMQ_QUEUE_ID)
        behind = state.store.offsets.max_offset(queue, LMQ_QUEUE_ID) - committed
        if committed >= 0 and behind > 0:
            self.lag += behind
            self.ready += behind
            if is_timed:
                oldest_ms = max(0, state.store.offsets.store_timestamp_at(queue, LMQ_QUEUE_ID, committed))
                self._oldest_ms = _earlier(self._oldest_ms, oldest_ms)

    def _stored_ms(self, state: BrokerState, queue_id: int, offset: int, end: int) -> int:
        """0: there is no such message."""
        if offset >= end:
            return 0
        return max(0, state.store.offsets.store_timestamp_at(self.topic, queue_id, offset))


def all_progress(state: BrokerState) -> Iterator[Progress | None]:
    """The progress of every group and topic with offsets, and of the subscriptions of connected groups. None marks a
    point where other work may run."""
    traffic = yield from state.stats.traffic()
    pairs: dict[tuple[str, str], None] = {}
    for page in state.offsets.pairs().pages():
        pairs.update(dict.fromkeys(page))
        yield None
    for group in list(state.clients.consumers()):
        pairs.update(
            dict.fromkeys((topic, group.name) for topic in group.subscriptions if topic in state.topics)
        )
    config = state.config
    is_counted, is_timed = config.lite_lag_count_metrics_enable, config.lite_lag_latency_metrics_enable
    lite: dict[tuple[str, str], Progress] = {}
    done = 0
    for number, (topic, name) in enumerate(pairs, 1):
        if (parts := parent_and_lite(topic)) is not None:
            if is_counted or is_timed:
                parent = parts[0]
                whole = lite.setdefault((parent, name), Progress(parent, name, is_lite=True))
                whole.add_lite(state, topic, is_timed=is_timed)
            if number % QUEUES_AT_ONCE == 0:
                yield None
            continue
        progress = Progress(topic, name)
        read = traffic.get((topic, name))
        popped = 0 if read is None else read.popped
        for queue_id, committed in list(state.offsets.queues(name, topic).items()):
            progress.add_queue(state, queue_id, committed, popped=popped > 0)
            done += 1
            if done % QUEUES_AT_ONCE == 0:
                yield None
        if popped:
            progress.in_flight = state.stats.in_flight(topic, name, popped)
            progress.lag += progress.in_flight
        yield progress
    yield from lite.values()


def _earlier(one_ms: int, other_ms: int) -> int:
    """The smaller of the two; 0 stands for no time."""
    return min(one_ms, other_ms) if one_ms and other_ms else one_ms or other_ms
