"""The users of open half messages: each counts for its sender, until its transaction is decided or given up.

Half messages themselves are in the log, and ``mqspark.broker.transaction`` knows which are decided. Half messages found
at a start belong to no user: they end after transactionCheckMax checks, as all others do.
"""

from __future__ import annotations

from collections.abc import Callable

from mqspark.bounded import ENTRY_BYTES, Ledger, require, text_bytes
from mqspark.clock import Clock
from mqspark.protocol.session import Session

__all__ = ["HeldHalves"]

Key = tuple[str, int, bytes]
"""An ``Identity``: unique id, ms of birth, host of birth."""

SLACK_MS = 3_600_000


class _OpenHalf:
    __slots__ = ("began_ms", "count", "user")

    def __init__(self, user: str, began_ms: int) -> None:
        self.user = user
        self.began_ms = began_ms
        self.count = 0
        """Half messages of this identity: a producer may use one twice."""


class HeldHalves:
    def __init__(self, clock: Clock, max_bytes: Callable[[], int], longest_ms: Callable[[], int]) -> None:
        """``longest_ms``: after this time every transaction is given up."""
        self.ledger = Ledger("halfMessages", max_bytes, "HeldHalves._open", setting="maxHalfTableBytes")
        self._clock = clock
        self._longest_ms = longest_ms
        self._open: dict[Key, _OpenHalf] = {}
        """Oldest first."""

    def admit(self, session: Session, unique_id: str) -> str:
        """The user to whom one more half message belongs. Raises TableFull."""
        size_bytes = _size_bytes(unique_id)
        user = self.ledger.shares.admit(session, size_bytes)
        if user:
            self._forget_lost()
            self.ledger.admit(size_bytes)
        return user

    def began(self, user: str, key: Key) -> None:
        """A half message is stored."""
        if not user:
            return
        found = self._open.get(key)
        if found is None:
            found = self._open[key] = _OpenHalf(user, self._clock.monotonic_ms())
        found.count += 1
        size_bytes = _size_bytes(key[0])
        self.ledger.note(size_bytes)
        self.ledger.shares.hold(found.user, size_bytes)

    def ended(self, key: Key) -> None:
        """A half message is decided, or given up."""
        found = self._open.get(key) if self._open else None
        if found is not None:
            self._end(key, found)

    def _end(self, key: Key, found: _OpenHalf) -> None:
        found.count -= 1
        if not found.count:
            del self._open[key]
        size_bytes = _size_bytes(key[0])
        self.ledger.free(size_bytes)
        self.ledger.shares.release(found.user, size_bytes)

    def _forget_lost(self) -> None:
        """Half messages that retention or damage took are never decided."""
        oldest_ms = self._clock.monotonic_ms() - self._longest_ms() - SLACK_MS
        while self._open:
            key, found = next(iter(self._open.items()))
            if found.began_ms >= oldest_ms:
                return
            self._end(key, found)

    def validate(self) -> None:
        """Check that each is counted, and that the ledger agrees."""
        require(all(found.count > 0 for found in self._open.values()), "a half message is open no times")
        self.ledger.validate(
            _size_bytes(key[0]) for key, found in self._open.items() for _ in range(found.count)
        )


def _size_bytes(unique_id: str) -> int:
    return ENTRY_BYTES + 350 + text_bytes(unique_id)
