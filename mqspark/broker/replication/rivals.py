"""Controllers that do not share one state: two with files of their own in controllerAddr, each of which takes itself
for the leader. Each would make a master. A broker that hears both obeys neither.

Must not know connections.
"""

from __future__ import annotations

from mqspark.base.clock import Clock


class Rivals:
    """``forget_ms``: a controller that has not said for so long that it leads does so no more."""

    def __init__(self, clock: Clock, forget_ms: int) -> None:
        self._clock = clock
        self._forget_ms = forget_ms
        self._leading: dict[str, tuple[str, int]] = {}
        """State and time, by address."""

    def claims(self, address: str, state_id: str | None) -> None:
        """A controller says that it leads. RocketMQ's have no ``state_id``: they share one state."""
        self._leading[address] = state_id or "", self._clock.monotonic_ms()

    def yields(self, address: str) -> None:
        """A controller says that it does not lead."""
        self._leading.pop(address, None)

    @property
    def conflict(self) -> str:
        """Why no controller may be obeyed, or ''."""
        now_ms = self._clock.monotonic_ms()
        for address in [
            each for each, (_, at_ms) in self._leading.items() if now_ms - at_ms > self._forget_ms
        ]:
            del self._leading[address]
        if len({state_id for state_id, _ in self._leading.values()}) < 2:
            return ""
        named = ", ".join(
            f"{each} ({state_id or 'of RocketMQ'})" for each, (state_id, _) in self._leading.items()
        )
        return (
            f"the controllers {named} have states of their own, and each would make a master: give controllerAddr only"
            " one of them, or controllers that share a state (controllerStore=etcd)"
        )
