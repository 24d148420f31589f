"""Work that takes long is done in slices, between which others are served.

A handler whose work grows with a table, or with what its peer chooses, is a generator: it yields after every
millisecond or two of work and returns its frame. What fits in one slice is answered at once, as by any other handler.
The shell calls ``step`` for as long as it has time, and gives a session no further command to the core while an answer
of its own is under way: nobody has more than one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from typing import TypeVar

from mqspark.protocol.session import Session

__all__ = ["LongWork", "Slices", "Work", "finished"]

T = TypeVar("T")

Work = Generator[None, None, T]
"""Yields between its slices and returns its result."""

Slices = Work[bytes | None]
"""A handler's work; the frame of its answer."""

MAX_RUNNING = 8
"""So many are in memory in part at once; the others wait for their first slice."""


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
        self._running: deque[tuple[Session | None, Work[None]]] = deque()
        self._waiting: deque[tuple[Session | None, Work[None]]] = deque()

    def __len__(self) -> int:
        return len(self._running) + len(self._waiting)

    def begin(self, session: Session | None, work: Work[None]) -> None:
        """Do the first slice, unless others wait. ``session``: whom it is done for; None for the core itself."""
        if len(self._running) >= MAX_RUNNING:
            self._waiting.append((session, work))
        elif _is_over(work):
            return
        else:
            self._running.append((session, work))
        if session is not None:
            session.long_answers += 1

    def step(self) -> bool:
        """One slice of the work whose turn it is; whether any is left."""
        if not self._running:
            return False
        session, work = self._running.popleft()
        if (session is None or session.open) and not _is_over(work):
            self._running.append((session, work))
        else:
            work.close()
            if session is not None:
                session.long_answers -= 1
            if self._waiting:
                self._running.append(self._waiting.popleft())
        return bool(self._running)


def _is_over(work: Work[None]) -> bool:
    try:
        next(work)
    except StopIteration:
        return True
    return False
