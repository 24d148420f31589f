"""Requests of the broker to its clients (Broker2Client): who was asked, until when, and who waits for the answer.

Their number is bounded, and one user has no more than a share of them. Late and unrequested answers are dropped.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping

from mqspark.base.clock import Clock
from mqspark.base.shares import NOBODY, Shares
from mqspark.protocol.codes import ResponseCode
from mqspark.protocol.command import Command, encode_request
from mqspark.protocol.dispatch import Refusal
from mqspark.protocol.headers.header import Header
from mqspark.protocol.session import Session

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
        self._waiting: dict[tuple[int, int], tuple[Done, int, str]] = {}
        """(session id, opaque) → who waits, until when (monotonic ms), and the user whose call it is."""
        self.shares = Shares("clientCalls", most=MAX_CALLS)

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
        asker: Session | None = None,
    ) -> None:
        """``asker``: who wants the call; None: the broker. Raises Refusal (SYSTEM_BUSY) when too many calls are
        unanswered, TableFull when too many of the asker's user are."""
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
        owner = NOBODY if asker is None else self.shares.admit(asker)
        opaque = session.next_opaque()
        self._waiting[session.id, opaque] = (done, self._clock.monotonic_ms() + timeout_ms, owner)
        self.shares.hold(owner)
        session.send(encode_request(code, opaque, header, bytes(body)))

    def answered(self, session: Session, answer: Command) -> None:
        self._end((session.id, answer.opaque), answer)

    def disconnected(self, session: Session) -> None:
        self._fail([key for key in self._waiting if key[0] == session.id], CallFailed.LOST)

    def expire(self) -> None:
        now_ms = self._clock.monotonic_ms()
        late = [key for key, (_, deadline_ms, _) in self._waiting.items() if deadline_ms <= now_ms]
        self._fail(late, CallFailed.TIMEOUT)

    def _fail(self, keys: list[tuple[int, int]], reason: CallFailed) -> None:
        for key in keys:
            self._end(key, reason)

    def _end(self, key: tuple[int, int], outcome: Command | CallFailed) -> None:
        waiting = self._waiting.pop(key, None)
        if waiting is not None:
            done, _, owner = waiting
            self.shares.release(owner)
            done(outcome)
