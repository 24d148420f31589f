"""How long what a turn of the loop reads has waited, and what becomes of it.

What a turn reads lay ready when the turn began, so the last of it has waited as long as the turn takes. That may be a
hiccup, once; when the next turn begins at once and takes as long, more comes than can be handled. How long bytes lay in
a socket before the turn is not known, and not counted in RocketMQ either.
"""

from __future__ import annotations

import math
from time import monotonic
from typing import Protocol

from mqspark.protocol.command import Command
from mqspark.protocol.session import Session

__all__ = ["Lateness", "Overload"]


class Overload(Protocol):
    """Decides about requests that waited (``mqspark.broker.send.fastfail``)."""

    patience_ms: int

    def sift(self, session: Session, commands: list[Command], age_ms: int) -> list[Command]: ...


class Lateness:
    """Without an ``overload`` nothing is ever late."""

    __slots__ = ("_behind_until", "_overload", "_patience_s", "_turn_began", "late_at")

    def __init__(self, overload: Overload | None) -> None:
        self._overload = overload
        self._turn_began = 0.0
        self._patience_s = math.inf
        self._behind_until = 0.0
        self.late_at = math.inf
        """What this turn reads from then on has waited too long (monotonic seconds)."""

    def turn_begins(self) -> None:
        if self._overload is not None:
            began = self._turn_began = monotonic()
            self.late_at = began + self._patience_s if began < self._behind_until else math.inf

    def turn_is_read(self) -> None:
        """Everything that lay ready has been handed over."""
        if self._overload is not None:
            now = monotonic()
            patience_s = self._patience_s = self._overload.patience_ms / 1000
            self._behind_until = now + patience_s if now - self._turn_began > patience_s else 0.0

    def sift(self, session: Session, commands: list[Command]) -> list[Command]:
        """Without what has waited too long, which is answered here."""
        if self._overload is None:
            return commands
        return self._overload.sift(session, commands, int((monotonic() - self._turn_began) * 1000))
