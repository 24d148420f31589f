"""The rounds of a broker: what it cleans, counts and prints at fixed intervals.

Must not know requests.
"""

from __future__ import annotations

from mqspark.base.clock import Standstill
from mqspark.broker.prints import BrokerPrints
from mqspark.broker.service import TICK_MS
from mqspark.broker.state.acks import Acks
from mqspark.broker.state.state import BrokerState
from mqspark.broker.statictopic.partcleaning import PartCleaner
from mqspark.broker.stats.meters import SAMPLE_INTERVAL_MS

CLIENT_SCAN_INTERVAL_MS = 10_000


class Rounds:
    """``is_slave``: such a broker cleans nothing that its master cleans."""

    def __init__(self, state: BrokerState, acks: Acks, prints: BrokerPrints, *, is_slave: bool) -> None:
        self._state = state
        self._acks = acks
        self._prints = prints
        self._is_slave = is_slave
        self._part_cleaner = PartCleaner(state.mappings, state.peers, state.clock, state.store)
        self._standstill = Standstill(state.clock, TICK_MS)
        now_ms = state.clock.monotonic_ms()
        self._next_scan_ms = now_ms + CLIENT_SCAN_INTERVAL_MS
        self._next_sample_ms = now_ms

    def tick(self) -> None:
        state = self._state
        now_ms = state.clock.monotonic_ms()
        missed_ms = self._standstill.missed_ms(now_ms)
        if missed_ms:
            state.clients.pardon(missed_ms)
        if now_ms >= self._next_scan_ms:
            self._next_scan_ms = now_ms + CLIENT_SCAN_INTERVAL_MS
            state.long_work.begin(None, state.clients.expire(state.config.channel_expired_timeout))
            state.long_work.begin(None, state.locks.expire())
            if state.store.upkeep.wall_time.is_trusted:
                state.long_work.begin(None, state.filters.clean())
        if now_ms >= self._next_sample_ms:
            self._next_sample_ms = now_ms + SAMPLE_INTERVAL_MS
            state.long_work.begin(None, state.stats.sample(state.topics, state.topics.is_stored))
            if state.stats.is_full_minute:
                self._acks.times.end_period()
        if not self._is_slave:
            state.slow_readers.tick()
            self._part_cleaner.tick()
        state.cold_reads.tick()
        self._prints.tick()
