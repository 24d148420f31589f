"""Requests that wait for messages of an archive.

A handler that raises NotAtHand has no effects that must not be repeated: its request waits, and is handled again when
the messages are there. A request that has waited for too long is refused; the messages are still fetched.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING

from mqspark.base.bounded import BoundedSet, Ledger, text_bytes
from mqspark.base.config import Limit
from mqspark.broker.state.state import BrokerState
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import ONEWAY_FLAG, Command, encode_response
from mqspark.protocol.dispatch import Handler, dispatch
from mqspark.protocol.session import Session
from mqspark.protocol.slices import Slices, Work
from mqspark.store.oldermessages import NotAtHand

if TYPE_CHECKING:  # imported where users have to log in
    from mqspark.auth.gate import Grant

WAITING_CODES = frozenset(
    {
        RequestCode.PULL_MESSAGE,
        RequestCode.LITE_PULL_MESSAGE,
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        RequestCode.GET_MIN_OFFSET,
        RequestCode.GET_EARLIEST_MSG_STORETIME,
    }
)
"""Reads that can be repeated from their beginning. Others are refused with the advice to try again."""
_READ_BYTES = 1_000
SERVED_AT_ONCE = 4
MAX_SHARED = 1_024
"""Requests of which one user has a share. Few fetches are under way at a time, and other users need some."""


class _WaitingRead:
    __slots__ = ("command", "deadline_ms", "grant", "handler", "session", "size_bytes")

    def __init__(self, handler: Handler, session: Session, command: Command, deadline_ms: int) -> None:
        self.handler = handler
        self.session = session
        self.command = command
        self.deadline_ms = deadline_ms
        fields_bytes = sum(text_bytes(name) + text_bytes(value) for name, value in command.ext.items())
        self.size_bytes = _READ_BYTES + fields_bytes + len(command.body)
        self.grant: Grant | None = None


class WaitingReads:
    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self.ledger = Ledger(
            "waitingReads",
            Limit(state.config, "max_parked_bytes"),
            "WaitingReads._waiting",
            most=MAX_SHARED,
        )
        self._all: BoundedSet[_WaitingRead] = self.ledger.set(0, attrgetter("size_bytes"))
        self._waiting: dict[Hashable, list[_WaitingRead]] = {}

    def wrap(self, handlers: Mapping[int, Handler]) -> dict[int, Handler]:
        """The handlers, of which those of WAITING_CODES may raise NotAtHand."""
        return {
            code: self._waits(handler) if code in WAITING_CODES else handler
            for code, handler in handlers.items()
        }

    def _waits(self, handler: Handler) -> Handler:
        def handle(session: Session, command: Command) -> bytes | Slices | None:
            try:
                return handler(session, command)
            except NotAtHand as error:
                self._add(error.key, handler, session, command)
                return None

        return handle

    def _add(self, key: Hashable, handler: Handler, session: Session, command: Command) -> None:
        """Raises TableFull."""
        if command.flag & ONEWAY_FLAG:
            return
        state = self._state
        deadline_ms = state.clock.monotonic_ms() + state.config.archive_read_timeout
        waiting = _WaitingRead(handler, session, command, deadline_ms)
        waiting.grant = state.grant(session, command.code)
        self._all.add(waiting, session)
        self._waiting.setdefault(key, []).append(waiting)

    def fetched(self, key: Hashable) -> None:
        """Handle the requests that wait for ``key`` again. If it could not be fetched, the handler reports the
        reason."""
        waiting = self._waiting.pop(key, None)
        if waiting:
            self._left(waiting)
            self._state.long_work.begin(None, self._handle(waiting))

    def _left(self, waiting: list[_WaitingRead]) -> None:
        for each in waiting:
            del self._all[each]

    def _handle(self, waiting: list[_WaitingRead]) -> Work[None]:
        for number, each in enumerate(waiting):
            if number and number % SERVED_AT_ONCE == 0:
                yield
            if not each.session.open:
                continue
            lapsed = "" if each.grant is None else each.grant.problem_of(each.command)
            if lapsed:
                each.session.send(
                    encode_response(each.command.opaque, ResponseCode.NO_PERMISSION, remark=lapsed)
                )
            else:
                handlers = {each.command.code: self._waits(each.handler)}
                dispatch(handlers, each.session, [each.command], self._state.long_work)

    def expire(self) -> None:
        """Refuse what has waited for too long."""
        now_ms, timeout_ms = self._state.clock.monotonic_ms(), self._state.config.archive_read_timeout
        for key, waiting in list(self._waiting.items()):
            kept = [each for each in waiting if each.deadline_ms > now_ms and each.session.open]
            if len(kept) == len(waiting):
                continue
            over = [each for each in waiting if each.deadline_ms <= now_ms or not each.session.open]
            self._left(over)
            if kept:
                self._waiting[key] = kept
            else:
                del self._waiting[key]
            for each in over:
                each.session.send(
                    encode_response(
                        each.command.opaque,
                        ResponseCode.SYSTEM_BUSY,
                        remark=f"the archive has not answered for {timeout_ms} ms; the messages are still being"
                        " fetched: try again later",
                    )
                )
