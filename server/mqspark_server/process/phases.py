"""The life cycle of a process from start to end. The state only moves forward; /health shows it."""

from __future__ import annotations

import enum
import logging

from mqspark.base.clock import Clock

log = logging.getLogger("mqspark.lifecycle")


class Phase(enum.IntEnum):
    """In order of occurrence; phases may be skipped (a failed start goes to STOPPING)."""

    CREATED = 0
    BINDING = 1
    RECOVERING = 2
    STARTING = 3
    REGISTERING = 4
    READY = 5
    STOPPING = 6
    STOPPED = 7


class ProcessLifecycle:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began_ms = clock.monotonic_ms()
        self.phase = Phase.CREATED
        self.reached_ms: dict[Phase, int] = {Phase.CREATED: 0}
        """Phase to milliseconds after creation."""

    def advance(self, phase: Phase) -> None:
        """Raises ValueError for a step that is not forward, which is a bug in the caller."""
        if phase <= self.phase:
            raise ValueError(f"cannot go from {self.phase.name} to {phase.name}")
        self.phase = phase
        self.reached_ms[phase] = self._clock.monotonic_ms() - self._began_ms
        log.debug("%s after %d ms", phase.name, self.reached_ms[phase])

    @property
    def ready(self) -> bool:
        return self.phase is Phase.READY

    def describe(self) -> dict[str, object]:
        return {
            "state": self.phase.name.lower(),
            "reachedMs": {phase.name.lower(): at for phase, at in self.reached_ms.items()},
        }
