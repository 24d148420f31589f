"""Calls extensions (``mqspark.extensions``), counts, times and logs the calls, and tells extensions how requests are
answered.

A server without extensions has no ``Extensions``: its handlers and sessions are not wrapped.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Generic, NamedTuple, ParamSpec, TypeVar

from mqspark.base.bounded import ENTRY_BYTES, Ledger, text_bytes
from mqspark.base.clock import Clock
from mqspark.base.config import INT32_MAX
from mqspark.base.logs import printable, sparing
from mqspark.extensions import (
    AuthenticationProvider,
    ConsumeHook,
    RefusedByExtension,
    RpcHook,
    RpcRequest,
    RpcResponse,
    SendHook,
    StoreObserver,
    TransactionListener,
)
from mqspark.protocol.codes import ResponseCode
from mqspark.protocol.command import PREFIX, PREFIX_BYTES, Command, decode_header
from mqspark.protocol.dispatch import Handler, Refusal
from mqspark.protocol.session import Session
from mqspark.protocol.slices import Slices

SLOW_MS = 100
"""A call that takes longer is counted as slow and logged."""
MAX_AWAITED_BYTES = 64 << 20
"""Limit of the bytes held for requests whose answers extensions wait for."""

_log = sparing(__name__)

R = TypeVar("R")
P = ParamSpec("P")
T = TypeVar("T")


@dataclass(slots=True)
class ExtensionCalls:
    """Counts and times of the calls of one extension."""

    name: str
    calls: int = 0
    errors: int = 0
    refusals: int = 0
    slow: int = 0
    slowest_ms: int = 0


class Loaded(Generic[R]):
    """One extension in one of its roles."""

    __slots__ = ("_clock", "_log", "counts", "hooks")

    def __init__(self, hooks: R, counts: ExtensionCalls, clock: Clock) -> None:
        self.hooks = hooks
        self.counts = counts
        self._clock = clock.monotonic_ms
        self._log = sparing(f"mqspark.extension.{counts.name}", lines=5)

    def ask(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call the extension. Raises Refusal when it refuses; other errors are logged and passed on."""
        counts = self.counts
        counts.calls += 1
        began_ms = self._clock()
        try:
            return function(*args, **kwargs)
        except RefusedByExtension as refusal:
            counts.refusals += 1
            raise Refusal(_code_of(refusal), printable(str(refusal.remark))) from None
        except Exception:
            counts.errors += 1
            self._log.exception("extension %s failed in %s", counts.name, _name(function))
            raise
        finally:
            took_ms = self._clock() - began_ms
            if took_ms > counts.slowest_ms:
                counts.slowest_ms = took_ms
            if took_ms >= SLOW_MS:
                counts.slow += 1
                self._log.warning(
                    "extension %s took %d ms in %s and blocked all requests meanwhile",
                    counts.name,
                    took_ms,
                    _name(function),
                )

    def ask_leniently(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T | None:
        """Call the extension. Raises Refusal when it refuses; returns None after an error."""
        try:
            return self.ask(function, *args, **kwargs)
        except Refusal:
            raise
        except Exception:
            return None  # counted and logged

    def tell(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T | None:
        """Call the extension where there is nothing to refuse: a refusal is an error. Returns None after an error."""
        try:
            return self.ask(function, *args, **kwargs)
        except Exception:
            return None  # counted and logged


def _code_of(refusal: RefusedByExtension) -> int:
    """The response code of a refusal: that of the extension, unless it means success."""
    code = refusal.code
    is_code = isinstance(code, int) and 0 < code <= INT32_MAX
    return int(code) if is_code else ResponseCode.NO_PERMISSION


def _name(function: Callable[..., object]) -> str:
    return str(getattr(function, "__name__", "a call"))


EVERY_ROLE: Collection[type] = (SendHook, ConsumeHook, TransactionListener, StoreObserver, RpcHook)
"""All roles except AuthenticationProvider: there is only one provider, with a setting of its own."""


class Answer(NamedTuple):
    """An answer on its way to a client."""

    command: Command
    """The answer without its body."""
    body_bytes: int
    body: Sequence[memoryview]


class _Awaited(NamedTuple):
    answered: Callable[[Answer], None]
    size_bytes: int


class TappedSession(Session):
    """A session that reports the answers of requests to those who wait for them."""

    __slots__ = ("_awaited", "_ledger")

    def __init__(
        self,
        session_id: int,
        peer_address: str,
        peer_port: int,
        outbox: list[Session],
        *,
        fast: bool = False,
    ) -> None:
        super().__init__(session_id, peer_address, peer_port, outbox, fast=fast)
        self._awaited: dict[int, list[_Awaited]] = {}
        """Opaque of the request → those who wait for its answer."""
        self._ledger: Ledger | None = None

    def expect(
        self, opaque: int, answered: Callable[[Answer], None], size_bytes: int, ledger: Ledger
    ) -> None:
        """Call ``answered`` with the answer to this request, for which ``size_bytes`` are held. It is not called if
        ``ledger`` is full, or if the client disconnects before. ``ledger`` must be the same in every call."""
        size_bytes += ENTRY_BYTES
        if self.open and ledger.has_room(size_bytes):
            ledger.note(size_bytes)
            self._ledger = ledger
            self._awaited.setdefault(opaque, []).append(_Awaited(answered, size_bytes))

    def send(self, buffer: bytes | memoryview, /, *more: bytes | memoryview) -> None:
        super().send(buffer, *more)
        if self._awaited and self.open:
            self._report_answers((buffer, *more))

    def send_sized(
        self, buffer: bytes | memoryview, more: Sequence[bytes | memoryview], more_bytes: int
    ) -> None:
        super().send_sized(buffer, more, more_bytes)
        if self._awaited and self.open:
            self._report_answers((buffer, *more))

    def forget(self) -> None:
        """The client has disconnected."""
        for opaque in list(self._awaited):
            self._take(opaque)

    def _take(self, opaque: int) -> list[_Awaited]:
        waiting = self._awaited.pop(opaque, [])
        if self._ledger is not None:
            for each in waiting:
                self._ledger.free(each.size_bytes)
        return waiting

    def _report_answers(self, buffers: Iterable[bytes | memoryview]) -> None:
        try:
            for answer in _answers(buffers):
                for each in self._take(answer.command.opaque):
                    each.answered(answer)
        except Exception:  # the sender must continue, for example with answers to other clients
            _log.exception("extensions could not be told about an answer to %s", self.peer)


def _answers(buffers: Iterable[bytes | memoryview]) -> Iterator[Answer]:
    """The answers in a sequence of whole frames. Each frame's header is within one buffer."""
    waiting: Answer | None = None
    body: list[memoryview] = []
    rest = 0
    for buffer in buffers:
        view = memoryview(buffer)
        while view:
            if waiting is None:
                length, kind = PREFIX.unpack_from(view)
                end = PREFIX_BYTES + (kind & 0xFFFFFF)
                rest = length + 4 - end
                command = decode_header(kind >> 24, bytes(view[PREFIX_BYTES:end]), b"")
                waiting, body, view = Answer(command, rest, body), [], view[end:]
            taken = view[:rest]
            if taken:
                body.append(taken)
                rest -= len(taken)
                view = view[len(taken) :]
            if not rest:
                if waiting.command.is_response:
                    yield waiting._replace(body=body)
                waiting = None


def fields_bytes(fields: Mapping[str, str]) -> int:
    """The memory that the fields of a header take, in bytes."""
    return sum(ENTRY_BYTES + text_bytes(name) + text_bytes(value) for name, value in fields.items())


UserOf = Callable[[Session], str]
"""Returns the user name of a connection's current request; empty without authentication."""


@dataclass(slots=True)
class Extensions:
    """The extensions of one server, each list in the order in which the settings name them."""

    clock: Clock
    sends: list[Loaded[SendHook]] = field(default_factory=list)
    consumes: list[Loaded[ConsumeHook]] = field(default_factory=list)
    transactions: list[Loaded[TransactionListener]] = field(default_factory=list)
    observers: list[Loaded[StoreObserver]] = field(default_factory=list)
    rpc: list[Loaded[RpcHook]] = field(default_factory=list)
    provider: Loaded[AuthenticationProvider] | None = None
    counts: dict[str, ExtensionCalls] = field(default_factory=dict)
    """By name."""
    ledger: Ledger = field(
        default_factory=lambda: Ledger("hookedRequests", MAX_AWAITED_BYTES, "TappedSession._awaited")
    )

    def add(self, name: str, extension: object, roles: Collection[type] = EVERY_ROLE) -> bool:
        """Register the extension for each of these roles that it implements. Returns whether it implements any."""
        counts = self.counts.setdefault(name, ExtensionCalls(name))
        before = self._count()
        if SendHook in roles and isinstance(extension, SendHook):
            self.sends.append(Loaded(extension, counts, self.clock))
        if ConsumeHook in roles and isinstance(extension, ConsumeHook):
            self.consumes.append(Loaded(extension, counts, self.clock))
        if TransactionListener in roles and isinstance(extension, TransactionListener):
            self.transactions.append(Loaded(extension, counts, self.clock))
        if StoreObserver in roles and isinstance(extension, StoreObserver):
            self.observers.append(Loaded(extension, counts, self.clock))
        if RpcHook in roles and isinstance(extension, RpcHook):
            self.rpc.append(Loaded(extension, counts, self.clock))
        if AuthenticationProvider in roles and isinstance(extension, AuthenticationProvider):
            self.provider = Loaded(extension, counts, self.clock)
        return self._count() > before

    def _count(self) -> int:
        hooks = len(self.sends) + len(self.consumes) + len(self.transactions) + len(self.observers)
        return hooks + len(self.rpc) + (0 if self.provider is None else 1)

    def around(self, handlers: Mapping[int, Handler], user_of: UserOf) -> dict[int, Handler]:
        """The handlers with the RPC hooks around them."""
        if not self.rpc:
            return dict(handlers)
        return {code: self._hooked(handler, user_of) for code, handler in handlers.items()}

    def _hooked(self, handler: Handler, user_of: UserOf) -> Handler:
        def hooked(session: Session, command: Command) -> bytes | Slices | None:
            request = RpcRequest(
                command.code,
                MappingProxyType(command.ext),
                len(command.body),
                command.is_oneway,
                session.peer,
                user_of(session),
            )
            for each in self.rpc:
                try:
                    each.ask(each.hooks.before_request, request, command.body)
                except Refusal:
                    raise
                except Exception:  # counted and logged
                    raise Refusal(
                        ResponseCode.SYSTEM_ERROR, f"the extension {each.counts.name} failed"
                    ) from None
            self.expect(session, command, partial(self._answered, request), fields_bytes(request.fields))
            return handler(session, command)

        return hooked

    def _answered(self, request: RpcRequest, answer: Answer) -> None:
        command = answer.command
        fields = MappingProxyType(command.ext)
        response = RpcResponse(command.code, command.remark or "", fields, answer.body_bytes)
        for each in self.rpc:
            each.tell(each.hooks.after_response, request, response)

    def expect(
        self, session: Session, command: Command, answered: Callable[[Answer], None], size_bytes: int
    ) -> None:
        """See ``TappedSession.expect``; does nothing for a one-way request."""
        if isinstance(session, TappedSession) and not command.is_oneway:
            session.expect(command.opaque, answered, size_bytes, self.ledger)
