"""Pulls of cold data that wait because their group has read its share (ColdDataPullRequestHoldService).

A consumer that decides itself when to pull would ask again at once, so the broker holds its pull for some seconds and
then answers with one message. A push consumer is refused instead, because it waits by itself.
"""

from __future__ import annotations

from collections import deque

from mqspark.base.bounded import Ledger
from mqspark.base.clock import Clock
from mqspark.broker.pull.parked_pulls import MAX_PARKED_BYTES, Pull
from mqspark.broker.state.heldrequests import HeldRequests
from mqspark.errors import TableFull

HOLD_MS = 3_000
MAX_HELD = 10_000


class HeldPulls:
    def __init__(self, clock: Clock) -> None:
        self.ledger = Ledger(
            "heldPulls",
            MAX_PARKED_BYTES,
            "HeldPulls._held",
            setting="maxParkedBytes",
            most=MAX_HELD,
        )
        self._requests: HeldRequests[Pull] = HeldRequests(self.ledger)
        self._clock = clock
        self._held: deque[Pull] = deque()

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, pull: Pull) -> bool:
        """False if too many are held."""
        if len(self._held) >= MAX_HELD or not self._requests.has_room_for(pull):
            return False
        try:
            pull.owner = self._requests.admit(pull)
        except TableFull:
            return False
        self._requests.hold(pull)
        pull.deadline_ms = self._clock.monotonic_ms() + HOLD_MS
        self._held.append(pull)
        return True

    def due(self) -> list[Pull]:
        """Remove and return those whose time is over."""
        now_ms = self._clock.monotonic_ms()
        found = []
        while self._held and self._held[0].deadline_ms <= now_ms:
            pull = self._held.popleft()
            self._requests.release(pull)
            found.append(pull)
        return found
