"""Work that takes long is done in slices, between which others are served.

A handler whose work grows with a table, or with what its peer chooses, is a generator: it yields after every
millisecond or two of work and returns its frame. What fits in one slice is answered at once, as by any other handler.
The shell calls ``step`` for as long as it has time, and gives a session no further command to the core while an answer
of its own is under way: nobody has more than one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from typing import Any, TypeVar

from mqspark.protocol.session import Session

__all__ = ["ESSENTIAL", "LongWork", "Slices", "Work", "finished"]

T = TypeVar("T")

Work = Generator[Any, None, T]
"""Yields between its slices and returns its result. From a ``yield ESSENTIAL`` on it is brought to its end even
when the peer that asked for it is gone: it changes something."""

ESSENTIAL = True

Slices = Work[bytes | None]
"""A handler's work; the frame of its answer."""

MAX_RUNNING = 8
"""So many are in memory in part at once; the others wait for their first slice."""

MAX_WAITING = 1_000
"""Then requests for more are refused."""


def finished(work: Work[T]) -> T:
    """The result of work that is done in one go: by a thread of its own, or in a test."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: T = end.value
            return result


class LongWork:
    """That of one core, a slice each in turns. What is given to ``begin`` tells its result itself, and raises
    nothing."""

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
        """Do the first slice, unless others wait. ``session``: whom it is done for; None for the core itself."""
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
        """One slice of the work whose turn it is; whether any is left."""
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
        """Do one slice."""
        try:
            if next(self.work):
                self.is_essential = True
        except StopIteration:
            return True
        return False
