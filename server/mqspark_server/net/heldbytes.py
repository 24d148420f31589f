"""What connections hold in memory: answers that their peers do not read, and frames that are not complete.

Must not know sockets, and what the bytes mean. Who exceeds a bound is dropped by the server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Generic, Protocol, TypeVar

from mqspark_server.net.memory_budget import MemoryBudget, Pace

MIN_BYTES_PER_S = 1024
"""A peer that reads or sends at this rate is slow; a slower one counts as stalled."""

NOTE_BYTES = 16 * 1024
"""Unread answers of a connection are tracked from this size on: smaller amounts are usually sent before a check."""

SHARE = 8
"""A connection may hold unread an eighth of the room that is left for all, so that one that fills its share
leaves room for others (the dynamic thresholds of shared-memory switches)."""

BLOCKED_S = 0.02
"""Interval after which blocked connections are checked for room again; longer when many are blocked."""

BLOCKED_AT_ONCE = 256


class AnswerReader(Protocol):
    """A connection, as the one that reads answers."""

    dropped: bool

    pace: Pace
    """The rate at which the peer reads."""
    read_bytes: int
    """How many bytes the peer had read at the last check."""

    def measure(self, now: float) -> None: ...
    def does_not_read(self, now: float) -> bool: ...
    def unblock(self) -> None: ...


class FrameSource(Protocol):
    """A connection, as the one that sends frames."""

    dropped: bool
    is_unidentified: bool

    @property
    def waits(self) -> bool: ...


R = TypeVar("R", bound=AnswerReader)
S = TypeVar("S", bound=FrameSource)


class UnreadAnswers(Generic[R]):
    """The answers that the peers of one server have not read. ``drop`` drops a connection, for a reason that is one of
    a few texts."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        drop: Callable[[R, str], None],
        *,
        most_bytes: int,
        high_water_bytes: int,
        unread_s: float,
    ) -> None:
        self._loop = loop
        self._drop = drop
        self.budget: MemoryBudget[R] = MemoryBudget(most_bytes)
        self.high_water_bytes = high_water_bytes
        self.unread_s = unread_s
        self.floor = 0
        """The commands of a connection wait while its ``room`` is at most this."""
        self.noted_below = high_water_bytes - min(NOTE_BYTES, high_water_bytes // 2)
        """A connection with less room is in ``budget``."""
        self._measure_above = 0
        self._shares_shrink_above = most_bytes - SHARE * high_water_bytes
        """Up to this total every connection may fill its high-water mark."""
        self._blocked: dict[R, None] = {}
        """Connections whose commands wait until unread answers have been read."""
        self._unblock_handle: asyncio.TimerHandle | None = None
        self._unblock_s = BLOCKED_S

    def note(self, connection: R, count: int) -> None:
        """``count`` bytes of answers are unread by the peer."""
        if connection.dropped:
            return
        budget = self.budget
        budget.keep(connection, count, monotonic())
        if budget.total > self._measure_above:
            self._measure_all()
        if self.floor or budget.total > self._shares_shrink_above:
            self._set_floor()

    def _set_floor(self) -> None:
        share = max((self.budget.most - self.budget.total) // SHARE, NOTE_BYTES)
        self.floor = max(0, self.high_water_bytes - share)

    def _measure_all(self) -> None:
        """Measure all unread answers again, and drop connections while they exceed the limit."""
        budget, now = self.budget, monotonic()
        for connection in budget:
            connection.measure(now)
        for connection in budget.surplus(now):
            self._drop(connection, f"the answers that peers do not read exceed {budget.most} bytes")
        # A measurement costs time per connection, so the next one waits for a considerable increase.
        self._measure_above = max(
            budget.total + budget.most // SHARE, budget.most - SHARE * self.high_water_bytes
        )
        self._measure_above = min(self._measure_above, budget.most)

    def watch(self, now: float) -> None:
        """Drop the connections whose peers have not read for too long."""
        for connection in self.budget:
            if connection.does_not_read(now):
                self._drop(connection, f"its answers were not read for {self.unread_s:.0f} s")
        self._set_floor()

    def is_stalled(self, connection: R, read_bytes: int, now: float) -> bool:
        """Whether the peer has read nothing, or almost nothing, for too long. ``read_bytes``: so far."""
        count, _ = self.budget.held(connection)
        if not count:
            connection.pace.rest()
            return False
        if read_bytes - connection.read_bytes >= count // 8:  # it makes progress
            self.budget.keep(connection, count, now, afresh=True)
        connection.read_bytes = read_bytes
        return connection.pace.is_too_slow(read_bytes, now)

    def block(self, connection: R) -> None:
        """Check the connection for room again after BLOCKED_S."""
        self._blocked[connection] = None
        if self._unblock_handle is None:
            self._unblock_handle = self._loop.call_later(self._unblock_s, self._unblock)

    def _unblock(self) -> None:
        self._unblock_handle = None
        blocked, self._blocked = self._blocked, {}
        self._unblock_s = BLOCKED_S * (1 + len(blocked) // BLOCKED_AT_ONCE)
        for connection in blocked:
            connection.unblock()

    def unblock_never(self, connection: R) -> None:
        """The connection has ended."""
        self._blocked.pop(connection, None)

    def close(self) -> None:
        if self._unblock_handle is not None:
            self._unblock_handle.cancel()


class PartialFrames(Generic[S]):
    """The incomplete frames and the waiting commands of one server's connections. ``drop`` as for UnreadAnswers.
    ``most_stranger_bytes``: the lower bound for connections without a complete frame so far, since any peer can begin
    one."""

    def __init__(
        self,
        drop: Callable[[S, str], None],
        *,
        most_bytes: int,
        most_stranger_bytes: int,
        frame_s: float,
    ) -> None:
        self._drop = drop
        self._frame_s = frame_s
        self.budget: MemoryBudget[S] = MemoryBudget(most_bytes)
        self.strangers: MemoryBudget[S] = MemoryBudget(most_stranger_bytes)
        """What connections without a complete frame so far hold of ``budget``."""

    def note(self, connection: S, count: int, *, afresh: bool) -> None:
        """The connection holds ``count`` bytes. ``afresh``: since now."""
        if connection.dropped:
            return
        budget, now = self.budget, monotonic()
        budget.keep(connection, count, now, afresh=afresh)
        if budget.total > budget.most:
            for each in budget.surplus(now):
                self._drop(each, f"incomplete frames of all connections exceed {budget.most} bytes")
        strangers = self.strangers
        if connection.is_unidentified and not connection.dropped:
            strangers.keep(connection, count, now, afresh=afresh)
            for each in strangers.surplus(now) if strangers.total > strangers.most else ():
                self._drop(each, f"first frames that are incomplete exceed {strangers.most} bytes")

    def know(self, connection: S) -> None:
        """The first frame of the connection is complete, or the connection has ended."""
        self.strangers.keep(connection, 0, 0.0)

    def watch(self, now: float) -> None:
        """Drop the connections whose frames take too long."""
        for connection in self.budget:
            count, since = self.budget.held(connection)
            age = now - since
            if age > self._frame_s and count < MIN_BYTES_PER_S * age and not connection.waits:
                self._drop(connection, f"a frame of it is not complete after {self._frame_s:.0f} s")
