"""Requests that wait, and where they are found by the time at which each is examined.

Those of one slot are found together, and no others are looked at: what waits for later costs nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from mqspark.protocol.codes import ResponseCode
from mqspark.protocol.command import encode_response
from mqspark.protocol.session import Session

if TYPE_CHECKING:  # imported where users have to log in
    from mqspark.auth.gate import Grant

SLOT_MS = 10
"""A wait ends at most this much late."""
LOOK_MS = 30_000
"""A request that waits longer is examined in between: its connection may be gone."""


class LongPoll:
    """A validated request that may wait."""

    __slots__ = ("deadline_ms", "grant", "group", "opaque", "session", "size_bytes", "topic")

    def __init__(
        self, session: Session, opaque: int, topic: str, group: str, deadline_ms: int, size_bytes: int
    ) -> None:
        """``deadline_ms``: monotonic. ``size_bytes``: without its filter."""
        self.session = session
        self.opaque = opaque
        self.topic = topic
        self.group = group
        self.deadline_ms = deadline_ms
        self.size_bytes = size_bytes
        self.grant: Grant | None = None
        """Set when it begins to wait."""

    @property
    def lapsed(self) -> str:
        """Why it may no longer be answered, or ''."""
        return "" if self.grant is None else self.grant.problem(self.topic, self.group)

    def is_refused(self) -> bool:
        """Refuse it if its user has lost their rights."""
        lapsed = self.lapsed
        if lapsed:
            self.session.send(encode_response(self.opaque, ResponseCode.NO_PERMISSION, remark=lapsed))
        return bool(lapsed)


class TimedWait(Protocol):
    deadline_ms: int
    """Monotonic."""
    slot: int
    """Where it is."""

    @property
    def session(self) -> Session: ...


W = TypeVar("W", bound=TimedWait)


class Slots(Generic[W]):
    def __init__(self) -> None:
        self._slots: dict[int, dict[W, None]] = {}

    def enter(self, request: W, now_ms: int) -> None:
        request.slot = -(-min(request.deadline_ms, now_ms + LOOK_MS) // SLOT_MS)
        self._slots.setdefault(request.slot, {})[request] = None

    def leave(self, request: W) -> None:
        slot = self._slots[request.slot]
        del slot[request]
        if not slot:
            del self._slots[request.slot]

    def clear(self) -> None:
        self._slots.clear()

    def over(self, now_ms: int, most: int = sys.maxsize) -> Iterator[W]:
        """Remove and return those whose time is up or whose connection is closed; at most so many are examined."""
        while most > 0 and (number := min(self._slots, default=sys.maxsize)) * SLOT_MS <= now_ms:
            slot = self._slots[number]
            while slot and most > 0:
                # From the end: to find the first one, a dict passes the places of all that were removed before.
                request, _ = slot.popitem()
                most -= 1
                if request.session.open and request.deadline_ms > now_ms:
                    self.enter(request, now_ms)
                else:
                    yield request
            if not slot:
                self._slots.pop(number, None)
