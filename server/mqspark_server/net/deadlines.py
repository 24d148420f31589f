"""When calls, and requests to the core, end that take too long. Most end long before, so a deadline is noted in a slot
of time, without a timer of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

STEP_S = 0.05
NO_SLOT = -1
"""The slot of what has no deadline."""


class WithSlot(Protocol):
    slot: int


C = TypeVar("C", bound=WithSlot)


class Deadlines(Generic[C]):
    """``expire`` is called with each whose time is over, up to STEP_S later."""

    def __init__(self, loop: asyncio.AbstractEventLoop, expire: Callable[[C], None]) -> None:
        self._loop = loop
        self._expire = expire
        self._slots: dict[int, dict[C, None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_slot = 0

    def move(self, call: C, at_s: float | None) -> None:
        """Give it another deadline, or none."""
        if at_s is not None and call.slot == int(at_s / STEP_S) + 1:
            return
        self.discard(call)
        if at_s is not None:
            self.add(call, at_s)

    def add(self, call: C, at_s: float) -> None:
        """``at_s``: in the loop's time."""
        call.slot = slot = int(at_s / STEP_S) + 1
        self._slots.setdefault(slot, {})[call] = None
        if self._timer is None or slot < self._timer_slot:
            self._wait_for(slot)

    def discard(self, call: C) -> None:
        """It has ended, or has no deadline."""
        calls = self._slots.get(call.slot)
        if calls is not None:
            calls.pop(call, None)
            if not calls:
                del self._slots[call.slot]

    def _wait_for(self, slot: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_slot = slot
        self._timer = self._loop.call_at(slot * STEP_S, self._due)

    def _due(self) -> None:
        self._timer = None
        now = self._timer_slot
        for slot in sorted(slot for slot in self._slots if slot <= now):
            for call in self._slots.pop(slot):
                self._expire(call)
        if self._slots:
            self._wait_for(min(self._slots))

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
