"""Long work in slices, between which other requests are served.

A handler whose work grows with a table, or with a value chosen by its peer, is a generator: it yields after
every millisecond or two of work and returns its frame. Work that fits into one slice is answered at once, as
by any other handler. The server calls ``step`` while it has time. It passes no further command of a session
while one of its answers is in progress, so no peer has more than one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from typing import Any, TypeVar

from mqspark.protocol.session import Session

T = TypeVar("T")

Work = Generator[Any, None, T]
"""Yields between its slices and returns its result. After ``yield ESSENTIAL`` it is completed even when the
requesting peer has gone, because it changes state."""

ESSENTIAL = True

Slices = Work[bytes | list[bytes] | None]
"""A handler's work; returns the frame of its answer, perhaps in pieces."""

MAX_RUNNING = 8
"""Limit of works that have begun, which take memory. Others wait for their first slice."""

MAX_WAITING = 1_000
"""Limit of waiting works; above it, requests are refused."""


def finished(work: Work[T]) -> T:
    """The result of work done in one go, in a separate thread or in a test."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: T = end.value
            return result


class LongWork:
    """The long work of one core, which takes turns slice by slice. Work passed to ``begin`` delivers its own
    result and raises nothing."""

    def __init__(self) -> None:
        self.running: deque[_Part] = deque()
        """Empty when there is nothing to do."""
        self._waiting: deque[_Part] = deque()

    def __len__(self) -> int:
        return len(self.running) + len(self._waiting)

    @property
    def is_full(self) -> bool:
        return len(self._waiting) >= MAX_WAITING

    def begin(self, session: Session | None, work: Work[None]) -> None:
        """Do the first slice, unless other work waits. ``session``: the requester; None for the core itself."""
        part = _Part(session, work)
        if session is not None and len(self.running) >= MAX_RUNNING:
            self._waiting.append(part)
        elif part.is_over():
            return
        else:
            self.running.append(part)
        if session is not None:
            session.long_answers += 1

    def step(self) -> bool:
        """Do one slice of the next work. Returns whether any is left."""
        if not self.running:
            return False
        part = self.running.popleft()
        session = part.session
        if (session is None or session.open or part.is_essential) and not part.is_over():
            self.running.append(part)
        else:
            part.work.close()
            if session is not None:
                session.long_answers -= 1
            if self._waiting and len(self.running) < MAX_RUNNING:
                self.running.append(self._waiting.popleft())
        return bool(self.running)


class _Part:
    __slots__ = ("is_essential", "session", "work")

    def __init__(self, session: Session | None, work: Work[None]) -> None:
        self.session = session
        self.work = work
        self.is_essential = False

    def is_over(self) -> bool:
        """Do one slice. Returns whether the work is finished."""
        try:
            if next(self.work):
                self.is_essential = True
        except StopIteration:
            return True
        return False
