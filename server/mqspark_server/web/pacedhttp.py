"""What a peer of HTTP may make the event loop do in one turn: a read may have tens of thousands of chunks, or lines.

A chunk of one byte costs as much as a large one, and the protocol below takes all chunks of a read at once; so the
parser stops after EVENTS of them. The connection is not read from meanwhile, and waits in the ``Backlog``, of which
each turn serves one. The lines of a head, or behind the last chunk, are parsed all at once: these are few, or refused.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

import h11
from h11._receivebuffer import ReceiveBuffer
from uvicorn.protocols.http.flow_control import FlowControl

EVENTS = 100
"""Chunks and such that are parsed in a turn: half a millisecond."""
MAX_LINES = 200
"""Lines of one head."""


class _FewLines(ReceiveBuffer):
    def maybe_extract_lines(self) -> list[bytearray] | None:
        """Raises LocalProtocolError."""
        lines = super().maybe_extract_lines()
        if lines is not None and len(lines) > MAX_LINES:
            raise h11.LocalProtocolError(f"more than {MAX_LINES} lines")
        return lines


class PacedParser(h11.Connection):
    """A server's, which seems to need data when it has parsed EVENTS of a turn."""

    def __init__(self, max_incomplete_bytes: int) -> None:
        super().__init__(h11.SERVER, max_incomplete_bytes)
        self._receive_buffer = _FewLines()
        self._left = EVENTS
        self.has_stopped = False

    def begin_turn(self) -> None:
        self._left = EVENTS
        self.has_stopped = False

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """As that of h11."""
        if not self._left:
            self.has_stopped = True
            return h11.NEED_DATA
        self._left -= 1
        return super().next_event()


class PacedFlow(FlowControl):
    """``hold`` keeps what has not been parsed from growing, whatever the application asks for meanwhile."""

    _is_held = False

    def pause_reading(self) -> None:
        self.read_paused = True
        self._set_reading()

    def resume_reading(self) -> None:
        self.read_paused = False
        self._set_reading()

    def hold(self) -> None:
        self._is_held = True
        self._set_reading()

    def release(self) -> None:
        if self._is_held:
            self._is_held = False
            self._set_reading()

    def _set_reading(self) -> None:
        if self._transport.is_closing():
            return
        if self.read_paused or self._is_held:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()


class Paced(Protocol):
    def go_on(self) -> None: ...


class Backlog:
    """The connections of one server that have stopped amid a read."""

    def __init__(self) -> None:
        self._waiting: deque[Paced] = deque()

    def add(self, connection: Paced, loop: asyncio.AbstractEventLoop) -> None:
        self._waiting.append(connection)
        if len(self._waiting) == 1:
            loop.call_soon(self._serve, loop)

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            self._waiting[0].go_on()
        finally:  # the others have their turns whatever became of this one
            del self._waiting[0]
            if self._waiting:
                loop.call_soon(self._serve, loop)
