"""Interceptors: a program's own code around each send and each call of a listener. Facts: RocketMQ's
SendMessageHook, EndTransactionHook, ConsumeMessageHook and FilterMessageHook.

An exception in an interceptor is logged and has no other effect.
"""

from __future__ import annotations

import enum
import inspect
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from mqspark.base.logs import escaping
from mqspark.client.delivery.delivery import Outcome, failure_of
from mqspark.client.delivery.results import SendResult, TransactionState
from mqspark.message import Message, MessageExt

log = escaping(__name__)


@dataclass(slots=True)
class SendContext:
    """One send: of one message, or of a batch."""

    group: str
    messages: list[Message]
    """Copies: ``before_send`` may add properties."""
    result: SendResult | None = None
    error: BaseException | None = None
    broker_address: str | None = None
    region: str | None = None
    """From the broker's answer."""
    trace_on: bool = True
    elapsed_ms: int = 0
    notes: dict[str, Any] = field(default_factory=dict)
    """For the interceptors' own use, between before and after."""


@dataclass(slots=True)
class EndTransactionContext:
    """The outcome of a transaction, as sent to a broker (RocketMQ's EndTransactionContext)."""

    group: str
    message: Message
    message_id: str
    transaction_id: str | None
    state: TransactionState
    broker_address: str
    from_check: bool
    """The broker had sent a check."""


@dataclass(slots=True)
class RecallContext:
    """An attempt to recall a timed message."""

    group: str
    topic: str
    message_id: str
    success: bool
    region: str | None = None


class ConsumeKind(enum.Enum):
    """How a call of the listener ended (ConsumeReturnType; the values are its ordinals)."""

    SUCCESS = 0
    TIME_OUT = 1
    EXCEPTION = 2
    FAILED = 4


@dataclass(slots=True)
class ConsumeContext:
    """One call of the listener."""

    group: str
    messages: Sequence[MessageExt]
    kind: ConsumeKind | None = None
    """None before the call."""
    outcome: Outcome = None
    elapsed_ms: int = 0
    notes: dict[str, Any] = field(default_factory=dict)

    @property
    def success(self) -> bool:
        """Whether the listener consumed the messages."""
        return failure_of(self.outcome) is None


class Interceptor:
    """Override the methods you need. Methods for sends run on the client's loop, those for listeners where the
    listener runs; none may block for long."""

    def before_send(self, context: SendContext) -> None:
        """Before the first attempt."""

    def after_send(self, context: SendContext) -> None:
        """The final result of a send: ``result`` or ``error`` is set. One-way sends have neither."""

    def after_end_transaction(self, context: EndTransactionContext) -> None:
        """A transaction's outcome is on its way to the broker."""

    def after_recall(self, context: RecallContext) -> None:
        """The broker has answered a recall, or did not."""

    def wanted(self, message: MessageExt) -> bool:
        """Whether a pulled message is passed to the listener; others count as consumed."""
        return True

    def before_consume(self, context: ConsumeContext) -> None:
        """Before the listener is called; ``context.notes`` is kept for ``after_consume``."""

    def after_consume(self, context: ConsumeContext) -> None:
        """The listener has returned or raised; ``outcome``, ``kind`` and ``elapsed_ms`` are set."""


def call(
    hooks: Sequence[Callable[[Any], None]],
    context: SendContext | ConsumeContext | EndTransactionContext | RecallContext,
) -> None:
    for hook in hooks:
        try:
            _check_answer(hook, hook(context), type(None), "nothing")
        except Exception:
            log.exception("an interceptor failed")


def _check_answer(hook: Callable[..., object], answer: object, kind: type, what: str) -> None:
    """Raises TypeError for an answer of another kind, such as the coroutine of a hook that is a coroutine function."""
    if not isinstance(answer, kind):
        if inspect.iscoroutine(answer):
            answer.close()  # nobody awaits it
        raise TypeError(
            f"{getattr(hook, '__qualname__', hook)} is a plain function that returns {what}, not {answer!r:.80}"
        )


def let_through(interceptors: Sequence[Interceptor], messages: list[MessageExt]) -> list[MessageExt]:
    """The wanted messages. If an interceptor fails or answers neither True nor False, the message passes: otherwise it
    would count as consumed."""

    def is_wanted(message: MessageExt) -> bool:
        for interceptor in interceptors:
            try:
                answer = interceptor.wanted(message)
                _check_answer(interceptor.wanted, answer, bool, "True or False")
                if not answer:
                    return False
            except Exception:
                log.exception("an interceptor failed")
        return True

    return [message for message in messages if is_wanted(message)]


class Intercepted:
    """The interceptors around a listener (``delivery.Around``)."""

    def __init__(self, interceptors: Sequence[Interceptor], group: str, consume_timeout_ms: int) -> None:
        self._before = [interceptor.before_consume for interceptor in interceptors]
        self._after = [interceptor.after_consume for interceptor in reversed(interceptors)]
        self._group = group
        self._consume_timeout_ms = consume_timeout_ms

    def begin(self, argument: MessageExt | list[MessageExt]) -> tuple[ConsumeContext, float]:
        """As in ``Around``."""
        context = ConsumeContext(self._group, argument if isinstance(argument, list) else [argument])
        call(self._before, context)
        return context, time.monotonic()

    def end(self, note: tuple[ConsumeContext, float], outcome: Outcome) -> None:
        """As in ``Around``."""
        context, since = note
        context.outcome = outcome
        context.elapsed_ms = int((time.monotonic() - since) * 1000)
        if isinstance(outcome, BaseException):
            context.kind = ConsumeKind.EXCEPTION
        elif context.elapsed_ms >= self._consume_timeout_ms:
            context.kind = ConsumeKind.TIME_OUT
        else:
            context.kind = ConsumeKind.SUCCESS if context.success else ConsumeKind.FAILED
        call(self._after, context)


def saw_consumed(interceptors: Sequence[Interceptor], group: str, messages: Sequence[MessageExt]) -> None:
    """Report messages handed to a program without a listener (DefaultLitePullConsumerImpl.poll)."""
    context = ConsumeContext(group, messages)
    call([interceptor.before_consume for interceptor in interceptors], context)
    context.kind = ConsumeKind.SUCCESS
    call([interceptor.after_consume for interceptor in reversed(interceptors)], context)
