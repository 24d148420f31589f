"""The end of lite topics: by age, or with their parent topic (LiteLifecycleManager).

A lite topic exists from its first message on. It is removed when it got no message for lite.topic.expiration minutes
of its parent, whether its messages were consumed or not; and when retention has taken its last message, however long
it may live. Its records stay in the log as long as others.
"""

from __future__ import annotations

from collections.abc import Set

from mqspark.base.clock import MINUTE_MS
from mqspark.base.logs import sparing
from mqspark.broker.lite.liteclients import QUEUES_AT_ONCE, LiteClients
from mqspark.broker.pop.poporder import PopOrder
from mqspark.broker.state.litenames import (
    bound_topic,
    expiry_minutes,
    is_lite_type,
    lite_queue,
    parent_and_lite,
)
from mqspark.broker.state.state import BrokerState
from mqspark.errors import NotNow, TableFull
from mqspark.protocol.slices import ESSENTIAL, Work
from mqspark.store.queue.multidispatch import LMQ_QUEUE_ID

REMOVED_AT_ONCE = 32
SEEN_AT_ONCE = 2_048
"""Topics or groups whose attributes are looked at in one slice."""

_log = sparing(__name__)


class LiteLife:
    def __init__(self, state: BrokerState, clients: LiteClients, order: PopOrder) -> None:
        self._state = state
        self._clients = clients
        self._order = order
        self._started_ms = state.clock.monotonic_ms()
        self._next_ms = self._started_ms
        self._is_looking = False

    def minutes(self) -> Work[dict[str, int]]:
        """Parent topic → minutes after which its lite topics expire."""
        found: dict[str, int] = {}
        for number, topic in enumerate(self._state.topics, 1):
            if is_lite_type(topic.config):
                found[topic.name] = expiry_minutes(topic.config)
            if number % SEEN_AT_ONCE == 0:
                yield ESSENTIAL
        return found

    def groups(self) -> Work[dict[str, list[str]]]:
        """Parent topic → the groups that are bound to it."""
        found: dict[str, list[str]] = {}
        for number, config in enumerate(self._state.subscriptions, 1):
            topic = bound_topic(config)
            if topic is not None:
                found.setdefault(topic, []).append(config.group_name)
            if number % SEEN_AT_ONCE == 0:
                yield ESSENTIAL
        return found

    def tick(self) -> None:
        """Look for what has expired, every liteTtlCheckInterval; not before minLiteTTl has passed since the start."""
        config, now_ms = self._state.config, self._state.clock.monotonic_ms()
        if now_ms < self._next_ms or self._is_looking or now_ms - self._started_ms < config.min_lite_ttl:
            return
        self._next_ms = now_ms + config.lite_ttl_check_interval
        if self._state.store.table.light and self._state.store.upkeep.wall_time.is_trusted:
            self._is_looking = True
            self._state.long_work.begin(None, self._remove_expired())

    def _remove_expired(self) -> Work[None]:
        state, removed = self._state, 0
        try:
            minutes, groups = (yield from self.minutes()), (yield from self.groups())
            now_ms, least_ms = state.clock.now_ms(), state.config.min_lite_ttl
            for number, queue in enumerate(state.store.table.light_names(), 1):
                if number % QUEUES_AT_ONCE == 0:
                    yield ESSENTIAL
                parts = parent_and_lite(queue)
                end = state.store.offsets.max_offset(queue, LMQ_QUEUE_ID)
                if parts is None or end <= 0:
                    continue
                limit = minutes.get(parts[0], 0)
                stored_ms = state.store.offsets.store_timestamp_at(queue, LMQ_QUEUE_ID, end - 1)
                silent_ms = now_ms - stored_ms
                is_old = limit > 0 and silent_ms >= least_ms and silent_ms > limit * MINUTE_MS
                if is_old if stored_ms > 0 else self._is_empty(queue):
                    yield from self._remove([queue], groups.get(parts[0], []))
                    removed += 1
        except TableFull as error:
            _log.warning("lite topics have expired and cannot be removed now: %s", error)
        finally:
            self._is_looking = False
        if removed:
            _log.info("%d lite topics have expired and were removed", removed)

    def _is_empty(self, queue: str) -> bool:
        """Whether neither the log nor the archive has a message of it any more."""
        offsets = self._state.store.offsets
        try:
            return offsets.sure_min_offset(queue, LMQ_QUEUE_ID) >= offsets.max_offset(queue, LMQ_QUEUE_ID)
        except (NotNow, OSError):  # what the archive has is not known now
            return False

    def remove_all_of(self, parents: Set[str]) -> Work[None]:
        """These parent topics are deleted. Raises TableFull."""
        doomed: dict[str, list[str]] = {}
        seen = 0
        for parent in parents if self._state.store.table.light else ():
            for queue in self._state.store.table.light_names(lite_queue(parent, "")):
                if parent_and_lite(queue) is not None:
                    doomed.setdefault(parent, []).append(queue)
                seen += 1
                if seen % QUEUES_AT_ONCE == 0:
                    yield ESSENTIAL
            seen += 1
            if seen % QUEUES_AT_ONCE == 0:
                yield ESSENTIAL
        if not doomed:
            return
        groups = yield from self.groups()
        for parent, queues in doomed.items():
            for first in range(0, len(queues), REMOVED_AT_ONCE):
                yield from self._remove(queues[first : first + REMOVED_AT_ONCE], groups.get(parent, []))

    def _remove(self, queues: list[str], groups: list[str]) -> Work[None]:
        state = self._state
        for queue in queues:
            state.store.deletions.admit(queue)
        state.store.delete_topics(queues)
        for queue in queues:
            for group in groups:
                state.offsets.remove_pair(group, queue)
                self._order.clear(queue, group, LMQ_QUEUE_ID)
            yield from self._clients.forget_queue(queue)
        yield ESSENTIAL
