"""Requests of the broker to its clients (Broker2Client): who was asked, until when, and who waits for the answer.

Their number is bounded. Late and unrequested answers are dropped.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping

from mqspark.clock import Clock
from mqspark.protocol.codes import ResponseCode
from mqspark.protocol.command import Command, encode_request
from mqspark.protocol.dispatch import Refusal
from mqspark.protocol.headers.header import Header
from mqspark.protocol.session import Session

__all__ = ["MAX_CALLS", "CallFailed", "Calls", "Done"]

MAX_CALLS = 1_000
"""Requests to clients that may be unanswered at the same time."""


class CallFailed(enum.Enum):
    """Why a call has no answer."""

    TIMEOUT = "no answer in time"
    LOST = "the client's connection is gone"
    UNREAD = "the client does not read what it is sent"


Done = Callable[[Command | CallFailed], None]
"""Called exactly once for each call; must not raise."""


class Calls:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: dict[tuple[int, int], tuple[Done, int]] = {}
        """(session id, opaque) → who waits, and until when (monotonic ms)."""

    def __len__(self) -> int:
        return len(self._waiting)

    def ask(
        self,
        session: Session,
        code: int,
        header: Header | Mapping[str, str] | None,
        body: bytes | memoryview,
        timeout_ms: int,
        done: Done,
    ) -> None:
        """Raises Refusal (SYSTEM_BUSY) when too many calls are unanswered."""
        if len(self._waiting) >= MAX_CALLS:
            raise Refusal(
                ResponseCode.SYSTEM_BUSY,
                f"[OVERLOAD] {MAX_CALLS} requests to clients are unanswered; try again later",
            )
        if not session.open:
            done(CallFailed.LOST)
            return
        if session.room <= 0:
            done(CallFailed.UNREAD)
            return
        opaque = session.next_opaque()
        self._waiting[session.id, opaque] = (done, self._clock.monotonic_ms() + timeout_ms)
        session.send(encode_request(code, opaque, header, bytes(body)))

    def answered(self, session: Session, answer: Command) -> None:
        waiting = self._waiting.pop((session.id, answer.opaque), None)
        if waiting is not None:
            waiting[0](answer)

    def disconnected(self, session: Session) -> None:
        self._fail([key for key in self._waiting if key[0] == session.id], CallFailed.LOST)

    def expire(self) -> None:
        now_ms = self._clock.monotonic_ms()
        late = [key for key, (_, deadline_ms) in self._waiting.items() if deadline_ms <= now_ms]
        self._fail(late, CallFailed.TIMEOUT)

    def _fail(self, keys: list[tuple[int, int]], reason: CallFailed) -> None:
        for key in keys:
            waiting = self._waiting.pop(key, None)
            if waiting is not None:
                waiting[0](reason)
