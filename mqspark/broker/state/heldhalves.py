"""The users of open half messages: each counts for its sender, until its transaction is decided or given up.

Half messages themselves are in the log, and ``mqspark.broker.transaction`` knows which are decided. Half messages found
at a start belong to no user: they end after transactionCheckMax checks, as all others do.
"""

from __future__ import annotations

from typing import NamedTuple

from mqspark.base.bounded import BoundedMap, Ledger
from mqspark.base.clock import HOUR_MS, Clock
from mqspark.base.config import Bound
from mqspark.base.shares import NOBODY
from mqspark.protocol.session import Session
from mqspark.store.config import StoreConfig

Key = tuple[str, int, bytes]
"""An ``Identity``: unique id, ms of birth, host of birth."""

SLACK_MS = 3_600_000


_HALF_BYTES = 520


class _OpenHalf(NamedTuple):
    began_ms: int
    times: int = 1
    """Half messages of this identity: a producer may use one twice."""


class HeldHalves:
    def __init__(self, clock: Clock, max_bytes: Bound, config: StoreConfig) -> None:
        """``config``: once its messages are removed every transaction is given up."""
        self.ledger = Ledger("halfMessages", max_bytes)
        self._clock = clock
        self._config = config
        self._open: BoundedMap[Key, _OpenHalf] = self.ledger.map(0, lambda half: _HALF_BYTES * half.times)
        """Oldest first."""

    def admit(self, session: Session, unique_id: str) -> str:
        """The user to whom one more half message belongs. Raises TableFull."""
        if not self.ledger.shares.user_of(session):
            return NOBODY
        self._forget_lost()
        return self._open.admit((unique_id, 0, b""), _OpenHalf(0), session)

    def began(self, user: str, key: Key) -> None:
        """A half message is stored."""
        found = self._open.get(key)
        if found is not None:
            self._open.keep(key, found._replace(times=found.times + 1))
        elif user:
            self._open.keep(key, _OpenHalf(self._clock.monotonic_ms()), user)

    def ended(self, key: Key) -> None:
        """A half message is decided, or given up."""
        found = self._open.get(key) if self._open else None
        if found is not None:
            self._end(key, found)

    def _end(self, key: Key, found: _OpenHalf) -> None:
        if found.times > 1:
            self._open.keep(key, found._replace(times=found.times - 1))
        else:
            del self._open[key]

    def _forget_lost(self) -> None:
        """Half messages that retention or damage took are never decided."""
        longest_ms = self._config.file_reserved_time * HOUR_MS
        oldest_ms = self._clock.monotonic_ms() - longest_ms - SLACK_MS
        while self._open:
            key, found = next(iter(self._open.items()))
            if found.began_ms >= oldest_ms:
                return
            self._end(key, found)
