"""Periodic log lines of a broker about itself, at RocketMQ's intervals (BrokerController.printWaterMark,
"Dispatch task fall behind commit log", printMasterAndSlaveDiff).

Every minute, unless nothing has happened, a line at INFO says how far syncs, queues and slaves are behind the log.
Every second, a line at DEBUG says which requests wait. RocketMQ writes the latter to a file of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from mqspark.base.clock import Clock
from mqspark.broker.pull.parked_pulls import ParkedPulls
from mqspark.broker.replication.replicas import Replicas
from mqspark.broker.state.acks import Acks
from mqspark.protocol.slices import LongWork
from mqspark.store.store import MessageStore

FIRST_MS = 10_000
"""Delay of the first line."""
WATERMARK_MS = 1_000
POSITIONS_MS = 60_000

_log = logging.getLogger(__name__)
"""Not rate-limited: its lines contain only numbers and come at fixed times."""
_watermark = logging.getLogger("mqspark.watermark")


class BrokerPrints:
    def __init__(
        self,
        clock: Clock,
        store: MessageStore,
        replicas: Replicas,
        acks: Acks,
        parked: ParkedPulls,
        long_work: LongWork,
    ) -> None:
        self._clock = clock
        self._store = store
        self._replicas = replicas
        self._acks = acks
        self._parked = parked
        self._long_work = long_work
        self._watermark_ms = self._positions_ms = clock.monotonic_ms() + FIRST_MS
        self._printed = -1
        """The end of the log that the last line named."""

    def tick(self) -> None:
        now_ms = self._clock.monotonic_ms()
        if now_ms >= self._watermark_ms:
            self._watermark_ms = now_ms + WATERMARK_MS
            if _watermark.isEnabledFor(logging.DEBUG):
                for name, (count, slow_ms) in self._waiting().items():
                    _watermark.debug("[WATERMARK] %s: %d wait, the first one for %d ms", name, count, slow_ms)
        if now_ms >= self._positions_ms:
            self._positions_ms = now_ms + POSITIONS_MS
            self._print_positions()

    def _waiting(self) -> Mapping[str, tuple[int, int]]:
        """The number of waiting requests, and the wait of the first one in ms where that is known."""
        return {
            "sends": (len(self._acks), self._acks.waited_ms),
            "parked pulls": (self._parked.count, 0),
            "long work": (len(self._long_work), 0),
        }

    def _print_positions(self) -> None:
        store, replicas = self._store, self._replicas
        end = store.log.position
        unsynced, undispatched = end - store.log.durable, end - store.pipeline.stored_end
        behind = replicas.behind_bytes
        if end == self._printed and not undispatched and not behind:
            return
        self._printed = end
        _log.info(
            "the log ends at %d: %d bytes are not synced, the queues are %d bytes behind it",
            end,
            unsynced,
            undispatched,
        )
        if replicas.following:
            _log.info("the slave that is farthest behind lacks %d bytes of the log", behind)
