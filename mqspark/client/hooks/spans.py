"""Spans of OpenTelemetry for sends and listeners, by its semantic conventions for messaging.

``OpenTelemetry()`` is an interceptor of producers and consumers. It uses the API alone: without an SDK in the program,
its spans cost next to nothing and go nowhere. The context of a span travels with the message, as the properties
``traceparent`` and ``tracestate`` (W3C Trace Context); Spark shows them in the column ``properties``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mqspark.client.hooks.hooks import ConsumeContext, Interceptor, SendContext
from mqspark.errors import ConfigError
from mqspark.message import Message, MessageExt

if TYPE_CHECKING:
    from opentelemetry.trace import Span, TracerProvider

SYSTEM = "rocketmq"
_NOTE = "opentelemetry"


class OpenTelemetry(Interceptor):
    """``Producer(..., interceptors=[OpenTelemetry()])``: a span ``send TOPIC`` for each send, and ``process TOPIC`` for
    each call of a listener, which is current while the listener runs.

    ``tracer_provider``: None for the program's own. Raises ConfigError without the package opentelemetry-api.
    """

    def __init__(self, tracer_provider: TracerProvider | None = None) -> None:
        try:
            from opentelemetry import context, propagate, trace
        except ImportError:
            raise ConfigError(
                "OpenTelemetry needs its API: pip install 'mqspark[otel]'", key="interceptors"
            ) from None
        self._trace, self._context, self._propagate = trace, context, propagate
        self._tracer = trace.get_tracer("mqspark", tracer_provider=tracer_provider)

    def before_send(self, context: SendContext) -> None:
        topic = context.messages[0].topic
        span = self._tracer.start_span(
            f"send {topic}",
            kind=self._trace.SpanKind.PRODUCER,
            attributes=_attributes("send", topic, context.group, context.messages),
        )
        context.notes[_NOTE] = span
        within = self._trace.set_span_in_context(span)
        for message in context.messages:
            self._propagate.inject(message.properties, context=within)

    def after_send(self, context: SendContext) -> None:
        span: Span = context.notes[_NOTE]
        if context.result is not None:
            span.set_attribute("messaging.message.id", context.result.message_id)
            span.set_attribute("messaging.destination.partition.id", str(context.result.queue.queue_id))
        if context.broker_address is not None:
            host, _, port = context.broker_address.rpartition(":")
            span.set_attribute("server.address", host)
            span.set_attribute("server.port", int(port))
        self._end(span, context.error)

    def before_consume(self, context: ConsumeContext) -> None:
        messages = context.messages
        senders = [self._propagate.extract(message.properties) for message in messages]
        spans = [self._trace.get_current_span(sender).get_span_context() for sender in senders]
        span = self._tracer.start_span(
            f"process {messages[0].topic}",
            # One message goes on with the trace of its sender; a batch has many.
            context=senders[0] if len(senders) == 1 else None,
            kind=self._trace.SpanKind.CONSUMER,
            links=[
                self._trace.Link(each, _of_message(message))
                for each, message in zip(spans, messages, strict=True)
                if each.is_valid
            ],
            attributes=_attributes("process", messages[0].topic, context.group, messages),
        )
        token = self._context.attach(self._trace.set_span_in_context(span))
        context.notes[_NOTE] = (span, token)

    def after_consume(self, context: ConsumeContext) -> None:
        span, token = context.notes[_NOTE]
        self._context.detach(token)
        failed = None if context.success else context.outcome
        self._end(
            span, failed if failed is None or isinstance(failed, BaseException) else _NotConsumed(str(failed))
        )

    def _end(self, span: Span, error: BaseException | None) -> None:
        if error is not None:
            span.set_attribute("error.type", type(error).__qualname__)
            span.set_status(self._trace.StatusCode.ERROR, str(error)[:200])
        span.end()


class _NotConsumed(Exception):
    """Whether the listener asked for redelivery."""


def _attributes(
    operation: str, topic: str, group: str, messages: Sequence[Message | MessageExt]
) -> dict[str, Any]:
    first = messages[0]
    found: dict[str, Any] = {
        "messaging.system": SYSTEM,
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": topic,
    }
    if operation == "process":
        found["messaging.consumer.group.name"] = group
    if len(messages) > 1:
        found["messaging.batch.message_count"] = len(messages)
        return found
    return found | _of_message(first)


def _of_message(message: Message | MessageExt) -> dict[str, Any]:
    """What the conventions ask of one message: of a span that has one, and of the link to each of a batch."""
    if not isinstance(message, MessageExt):
        return message_attributes(len(message.body), message.tags, message.keys)
    return message_attributes(
        len(message.body), message.tags, message.keys, message.message_id, message.queue_id
    )


def message_attributes(
    body_bytes: int | None,
    tag: str | None,
    keys: str | None,
    message_id: str | None = None,
    queue_id: int | None = None,
) -> dict[str, Any]:
    """The attributes of one message, without those that are not known."""
    found = {
        "messaging.message.body.size": body_bytes,
        "messaging.rocketmq.message.tag": tag or None,
        "messaging.rocketmq.message.keys": keys.split(" ") if keys else None,
        "messaging.message.id": message_id,
        "messaging.destination.partition.id": None if queue_id is None else str(queue_id),
    }
    return {name: value for name, value in found.items() if value is not None}
