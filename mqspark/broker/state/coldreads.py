"""Flow control of reads of cold data: how much of it each group reads, and which groups have to wait
(ColdDataCgCtrService, SimpleColdCtrStrategy, PIDAdaptiveColdCtrStrategy).

Cold data lies far behind the end of the log (accessMessageInMemoryHotRatio), so it is probably not in memory. With
coldDataFlowControlEnable, a group may read as many bytes of it in five seconds as its threshold allows, and all groups
together as many as globalColdReadThreshold allows. With coldCtrStrategyEnable the thresholds of groups without one of
their own follow the load of the disk.

Facts: docs/rocketmq/broker.md#cold-reads.
"""

from __future__ import annotations

from mqspark.base.bounded import BoundedMap, Ledger
from mqspark.base.clock import Clock
from mqspark.base.config import Limit
from mqspark.broker.config import BrokerConfig
from mqspark.message import is_system_group
from mqspark.protocol.bodies.admin_bodies import ColdDataFlowInfo, ColdRead
from mqspark.store.config import StoreConfig

PERIOD_MS = 5_000
"""The period in which reads are counted."""
FORGET_MS = 60_000
"""A group without cold reads for this time is forgotten."""

_ADAPTIVE = "||adaptive"
_MOST_SLOWED = 3
"""Thresholds that one period may lower."""
_FASTER, _SLOWER = 1.5, 0.8
_MAX_THRESHOLD = (1 << 63) - 1
_TARGET = 0.8
"""Share of the global threshold that the PID strategy aims at."""
_HISTORY = 10
_PROPORTIONAL, _INTEGRAL, _DERIVATIVE = 0.5, 0.3, 0.2
_ROW_BYTES = 200

_UNLIMITED = frozenset({"DEFAULT_CONSUMER", "SCHEDULE_CONSUMER", "__MONITOR_CONSUMER"})
"""Groups of tools that no broker has from its start (MixAll.isSysConsumerGroupPullMessage)."""


class _ColdReader:
    """What one group reads."""

    __slots__ = ("bytes", "first_ms", "last_ms")

    def __init__(self, now_ms: int) -> None:
        self.bytes = 0
        """In this period."""
        self.first_ms = self.last_ms = now_ms


class ColdReads:
    def __init__(self, config: BrokerConfig, store_config: StoreConfig, clock: Clock) -> None:
        self.ledger = Ledger("cold reads", Limit(config, "max_statistics_bytes"))
        self._config = config
        self._store_config = store_config
        self._clock = clock
        self._readers: BoundedMap[str, _ColdReader] = self.ledger.map(_ROW_BYTES)
        self._thresholds: BoundedMap[str, int] = self.ledger.map(_ROW_BYTES)
        """Set by operators; until the end of the process, as in RocketMQ."""
        self._moved: BoundedMap[str, int] = self.ledger.map(_ROW_BYTES)
        """The thresholds of groups without one of their own, as the strategy has moved it."""
        self._all_bytes = 0
        self._errors: list[float] = []
        """How far each of the last periods was below the target, oldest first."""
        self._next_ms = clock.monotonic_ms() + PERIOD_MS

    # --- reads ---

    def served(self, group: str, cold_bytes: int) -> None:
        """Count cold bytes that a group has read."""
        if cold_bytes <= 0 or is_unlimited(group):
            return
        now_ms = self._clock.now_ms()
        self._all_bytes += cold_bytes
        reader = self._readers.get_or_make(group, lambda: _ColdReader(now_ms))
        if reader is not None:
            reader.bytes += cold_bytes
            reader.last_ms = now_ms

    def must_wait(self, group: str) -> bool:
        """Whether the group may read nothing cold until the period is over."""
        if not self._store_config.cold_data_flow_control_enable:
            return False
        reader = self._readers.get(group)
        if reader is None:
            return False
        return (
            reader.bytes >= self._threshold(group)
            or self._all_bytes >= self._config.global_cold_read_threshold
        )

    def _threshold(self, group: str) -> int:
        own = self._thresholds.get(group)
        if own is None and self._config.cold_ctr_strategy_enable:
            own = self._moved.get(group)
        return self._config.cg_cold_read_threshold if own is None else own

    # --- periods ---

    def tick(self) -> None:
        now_ms = self._clock.monotonic_ms()
        if now_ms < self._next_ms:
            return
        self._next_ms = now_ms + PERIOD_MS
        adapts = self._config.cold_ctr_strategy_enable
        if adapts:
            target = int(self._config.global_cold_read_threshold * _TARGET)
            self._errors = [*self._errors, float(target - self._all_bytes)][-_HISTORY:]
        wall_ms = self._clock.now_ms()
        for group, reader in list(self._readers.items()):
            if wall_ms >= reader.last_ms + FORGET_MS:
                self._forget(group)
            elif adapts and reader.bytes >= self._threshold(group) and not self._is_too_much:
                self._speed_up(group)
            reader.bytes = 0
        if adapts:
            self._slow_down()
        else:
            for group in list(self._moved):
                self._move(group, None)
        self._all_bytes = 0

    def _forget(self, group: str) -> None:
        del self._readers[group]
        self._move(group, None)

    @property
    def _is_too_much(self) -> bool:
        return self._all_bytes > self._config.global_cold_read_threshold

    def _speed_up(self, group: str) -> None:
        if group not in self._thresholds and (
            not self._config.use_pid_cold_ctr_strategy or self._tendency() > 0
        ):
            self._move(group, min(int(self._threshold(group) * _FASTER), _MAX_THRESHOLD))

    def _slow_down(self) -> None:
        """Lower the highest of the thresholds that were moved, but not below that of all groups."""
        if self._tendency() >= 0 if self._config.use_pid_cold_ctr_strategy else not self._is_too_much:
            return
        least = self._config.cg_cold_read_threshold
        highest = sorted(self._moved, key=lambda group: -self._moved[group])
        for group in [group for group in highest if group not in self._thresholds][:_MOST_SLOWED]:
            self._move(group, max(int(self._moved[group] * _SLOWER), least))

    def _tendency(self) -> float:
        """The correction: above 0 more may be read than was, below 0 less; 0 until there are enough periods."""
        errors = self._errors
        if len(errors) < _HISTORY:
            return 0.0
        return _PROPORTIONAL * errors[-1] + _INTEGRAL * sum(errors) + _DERIVATIVE * (errors[-1] - errors[-2])

    def _move(self, group: str, threshold: int | None) -> None:
        if threshold is None:
            self._moved.pop(group, None)
        else:
            self._moved.offer(group, threshold)

    # --- operators ---

    def set_threshold(self, group: str, bytes_: int) -> None:
        """Raises TableFull."""
        self._thresholds[group] = bytes_

    def remove_threshold(self, group: str) -> None:
        self._thresholds.pop(group, None)

    def info(self) -> ColdDataFlowInfo:
        config = self._config
        return ColdDataFlowInfo(
            runtime_table={
                group: ColdRead(
                    cold_acc=reader.bytes,
                    create_time_mills=reader.first_ms,
                    last_cold_read_time_mills=reader.last_ms,
                )
                for group, reader in self._readers.items()
            },
            config_table={
                **self._thresholds,
                **{f"{group}{_ADAPTIVE}": threshold for group, threshold in self._moved.items()},
            },
            cg_cold_read_threshold=config.cg_cold_read_threshold,
            global_cold_read_threshold=config.global_cold_read_threshold,
            global_acc=self._all_bytes,
        )


def is_unlimited(group: str) -> bool:
    return group in _UNLIMITED or is_system_group(group)
