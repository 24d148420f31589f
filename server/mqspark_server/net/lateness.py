"""How long the requests read in a turn of the loop have waited.

What a turn reads was ready when the turn began, so the last request has waited for the whole turn. One long turn
may be an exception; if the next turn starts at once and takes as long, the load is too high. The time that bytes
spent in a socket before the turn is unknown; RocketMQ does not count it, either.
"""

from __future__ import annotations

import math
from time import monotonic
from typing import Protocol

from mqspark.protocol.command import Command
from mqspark.protocol.session import Session


class Overload(Protocol):
    """Handles requests that waited too long (``mqspark.broker.send.fastfail``)."""

    patience_ms: int

    def sift(self, session: Session, commands: list[Command], age_ms: int) -> list[Command]: ...


class Lateness:
    """Without an ``overload`` no request counts as late."""

    def __init__(self, overload: Overload | None) -> None:
        self._overload = overload
        self._turn_began = 0.0
        self._patience_s = math.inf
        self._behind_until = 0.0
        self.late_at = math.inf
        """Requests read in this turn after this time have waited too long (monotonic seconds)."""

    def turn_begins(self) -> None:
        if self._overload is not None:
            began = self._turn_began = monotonic()
            self.late_at = began + self._patience_s if began < self._behind_until else math.inf

    def turn_is_read(self) -> None:
        """All ready input has been read."""
        if self._overload is not None:
            now = monotonic()
            patience_s = self._patience_s = self._overload.patience_ms / 1000
            self._behind_until = now + patience_s if now - self._turn_began > patience_s else 0.0

    def sift(self, session: Session, commands: list[Command]) -> list[Command]:
        """Returns ``commands`` without those that have waited too long, which are answered here."""
        if self._overload is None:
            return commands
        return self._overload.sift(session, commands, int((monotonic() - self._turn_began) * 1000))
