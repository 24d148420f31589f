"""What both ends of a replication know of their connection: when something was heard and said, and how fast it goes."""

from __future__ import annotations

from mqspark.base.clock import Clock
from mqspark.broker.config import BrokerConfig

HA_RATE_MS = 1_000
"""How often the bytes a second of a copy are reckoned anew."""


class HaLink:
    def __init__(self, config: BrokerConfig, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self.heard_ms = self._said_ms = 0
        """When the other end last connected or sent anything, and this one (monotonic); 0 before the first."""
        self._copied_bytes = self._counted_bytes = 0
        self._rate_ms = clock.monotonic_ms()
        self.bytes_per_s = 0

    @property
    def _beat_ms(self) -> int:
        """The longest time in which nothing is said."""
        return self._config.ha_send_heartbeat_interval

    @property
    def is_silent(self) -> bool:
        """Nothing was received for haHousekeepingInterval."""
        return self._clock.monotonic_ms() - self.heard_ms > self._config.ha_housekeeping_interval

    def measure(self) -> None:
        """Called about once a second: the bytes that went over since the last call."""
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._rate_ms >= HA_RATE_MS:
            copied = self._copied_bytes - self._counted_bytes
            self.bytes_per_s = copied * 1000 // (now_ms - self._rate_ms)
            self._rate_ms, self._counted_bytes = now_ms, self._copied_bytes
