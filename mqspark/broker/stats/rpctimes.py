"""How long requests took, by request code, response code and whether they waited (RemotingMetricsManager).

The hot paths count many answers in one step, or only that one more took less than a millisecond.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from mqspark.base.clock import Clock
from mqspark.base.histogram import Histogram
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command
from mqspark.protocol.dispatch import Handler
from mqspark.protocol.session import Session
from mqspark.protocol.slices import Slices

RPC_BOUNDS_MS = (1, 3, 5, 7, 10, 100, 1_000, 2_000, 3_000)
"""The buckets of rocketmq_rpc_latency (RemotingMetricsManager.getMetricsView)."""
UNKNOWN = -1
"""Stands for every code that is not in the protocol, because peers choose codes."""

_REQUESTS = frozenset(map(int, RequestCode))
_RESPONSES = frozenset(map(int, ResponseCode))
_CODE_MARK = b'{"code":'


class Rpc(NamedTuple):
    request: int
    response: int
    waited: bool
    """Whether the request was parked before it was answered."""
    one_way: bool = False


class RpcTimes:
    """There is a row for each combination of known codes that occurred: some hundreds at most."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._rows: dict[Rpc, Histogram] = {}

    def row(self, rpc: Rpc) -> Histogram:
        found = self._rows.get(rpc)
        if found is None:
            known = rpc._replace(
                request=rpc.request if rpc.request in _REQUESTS else UNKNOWN,
                response=rpc.response if rpc.response in _RESPONSES else UNKNOWN,
            )
            found = self._rows.setdefault(known, Histogram(RPC_BOUNDS_MS))
        return found

    def record(
        self, request: int, response: int, took_ms: int, count: int = 1, *, waited: bool = False
    ) -> None:
        self.row(Rpc(request, response, waited)).record(took_ms, count)

    def refused(self, command: Command, frame: bytes) -> None:
        """A request was refused at once with this frame."""
        code = response_code(frame)
        self.row(Rpc(command.code, UNKNOWN if code is None else code, False, command.is_oneway)).quick += 1

    def __iter__(self) -> Iterator[tuple[Rpc, Histogram]]:
        return iter(list(self._rows.items()))

    def timed(self, handlers: Mapping[int, Handler], untimed: frozenset[int]) -> dict[int, Handler]:
        """The handlers, those that answer at once with a clock around them. ``untimed`` are counted elsewhere."""
        return {
            code: handler if code in untimed else self._timed(handler) for code, handler in handlers.items()
        }

    def _timed(self, handler: Handler) -> Handler:
        clock = self._clock.monotonic_ms

        def timed(session: Session, command: Command) -> bytes | Slices | None:
            began_ms = clock()
            frame = handler(session, command)
            if isinstance(frame, bytes):
                self._answered(command, frame, clock() - began_ms)
            elif frame is not None:
                return in_slices(command, frame, began_ms)
            return frame

        def in_slices(command: Command, slices: Slices, began_ms: int) -> Slices:
            frame = yield from slices
            if frame is not None:
                head = frame if isinstance(frame, bytes) else frame[0]
                self._answered(command, head, clock() - began_ms)
            return frame

        return timed

    def _answered(self, command: Command, frame: bytes, took_ms: int) -> None:
        code = response_code(frame)
        if code is not None:
            self.row(Rpc(command.code, code, False, command.is_oneway)).record(took_ms)


def response_code(frame: bytes) -> int | None:
    """The code in a response frame of this server, whose JSON header begins with it."""
    if frame[8:16] != _CODE_MARK:
        return None
    end = 16
    while frame[end : end + 1].isdigit():
        end += 1
    return int(frame[16:end]) if end > 16 else None
