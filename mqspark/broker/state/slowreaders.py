"""Protection of the broker from consumers that read far behind the end of the log (BrokerController.protectBroker).

With disableConsumeIfConsumerReadSlowly, a group whose last read of a queue was more than consumerFallbehindThreshold
bytes behind may not consume any longer, until an operator allows it again.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import msgspec

from mqspark.base.bounded import BoundedMap, Ledger
from mqspark.base.clock import Clock
from mqspark.base.config import Limit
from mqspark.broker.config import BrokerConfig
from mqspark.broker.tables.subscriptions import SubscriptionGroups
from mqspark.errors import TableFull
from mqspark.record.recordlayout import record_position
from mqspark.store.store import MessageStore

CHECK_INTERVAL_MS = 180_000

_log = logging.getLogger("mqspark.broker")
_ROW_BYTES = 200


class SlowReaders:
    def __init__(
        self, config: BrokerConfig, clock: Clock, store: MessageStore, groups: SubscriptionGroups
    ) -> None:
        self.ledger = Ledger("slow readers", Limit(config, "max_statistics_bytes"))
        self._config = config
        self._clock = clock
        self._store = store
        self._groups = groups
        self._behind: BoundedMap[tuple[str, str, int], int] = self.ledger.map(_ROW_BYTES)
        """(group, topic, queue id) → bytes behind, of those beyond the threshold."""
        self._next_ms = clock.monotonic_ms() + CHECK_INTERVAL_MS

    def served(self, topic: str, group: str, queue_id: int, buffers: Sequence[memoryview]) -> None:
        """A group got these records."""
        config = self._config
        if not config.disable_consume_if_consumer_read_slowly or not buffers:
            return
        key = (group, topic, queue_id)
        last = buffers[-1]
        behind = self._store.log.position - record_position(last) - len(last)
        if behind <= config.consumer_fallbehind_threshold:
            self._behind.pop(key, None)
        else:
            self._behind.offer(key, behind)

    def tick(self) -> None:
        """For masters: a slave's groups are its master's."""
        now_ms = self._clock.monotonic_ms()
        if now_ms < self._next_ms:
            return
        self._next_ms = now_ms + CHECK_INTERVAL_MS
        behind = self._behind.copy()
        self._behind.clear()
        if self._config.disable_consume_if_consumer_read_slowly:
            for (group, topic, queue_id), behind_bytes in behind.items():
                self._disable(group, f"{behind_bytes} bytes behind in queue {queue_id} of {topic}")

    def _disable(self, group: str, reason: str) -> None:
        groups = self._groups
        config = groups.configured(group)
        if config is None or not config.consume_enable:
            return
        try:
            groups.put(msgspec.structs.replace(config, consume_enable=False))
        except TableFull as error:
            _log.warning("group %s reads too slowly and could not be disabled: %s", group, error)
        else:
            _log.warning("group %s may not consume any longer: it is %s", group, reason)
