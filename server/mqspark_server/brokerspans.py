"""Spans of OpenTelemetry for the messages that a broker stores (openTelemetryEnable).

A message with a trace in its property ``traceparent`` gets a span ``store TOPIC``. It lasts from the request to the
acknowledgement, which waits for the disk and the slaves according to the settings. Batches and messages without a trace
get none. Only the API is used; the SDK of the process (opentelemetry-instrument) processes the spans.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING

from mqspark.base.propertystring import NAME_END
from mqspark.errors import ConfigError
from mqspark.message import decode_properties
from mqspark.protocol.codes import RequestCode
from mqspark.protocol.command import Command
from mqspark.protocol.dispatch import Handler
from mqspark.protocol.session import Session
from mqspark.protocol.slices import Slices

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from mqspark.broker.broker import BrokerCore

MAX_OPEN = 10_000
"""Limit of spans that wait for an acknowledgement. Further ones end with their request."""
_FIELDS = {
    int(RequestCode.SEND_MESSAGE): ("topic", "properties"),
    int(RequestCode.SEND_MESSAGE_V2): ("b", "i"),
}


class BrokerSpans:
    """The spans of one broker. Raises ConfigError without the package opentelemetry-api."""

    def __init__(self, core: BrokerCore) -> None:
        try:
            from opentelemetry import propagate, trace
        except ImportError:
            raise ConfigError(
                "openTelemetryEnable needs opentelemetry-api: pip install 'mqspark[otel]'",
                key="openTelemetryEnable",
            ) from None
        self._core = core
        self._replicas = core.role.replicas
        self._trace, self._propagate = trace, propagate
        self._tracer = trace.get_tracer("mqspark.broker")
        self._open: deque[tuple[int, Span]] = deque()
        """(log position that has to be acknowledged, span)."""

    def wrap(self, handlers: Mapping[int, Handler]) -> dict[int, Handler]:
        return {
            code: self._traced(handler) if code in _FIELDS else handler for code, handler in handlers.items()
        }

    def progress(self) -> None:
        """End the spans whose messages are acknowledged now."""
        opened = self._open
        if opened:
            acked = min(self._core.store.pipeline.stored_end, self._replicas.confirmed)
            while opened and opened[0][0] <= acked:
                opened.popleft()[1].end()

    def _traced(self, handler: Handler) -> Handler:
        def handle(session: Session, command: Command) -> bytes | Slices | None:
            span = self._begin(command)
            if span is None:
                return handler(session, command)
            store = self._core.store
            before = store.log.position
            try:
                answer = handler(session, command)
            except Exception as error:
                span.set_status(self._trace.StatusCode.ERROR, str(error)[:200])
                span.set_attribute("error.type", type(error).__qualname__)
                span.end()
                raise
            end = store.log.position
            if answer is None and end > before and len(self._open) < MAX_OPEN:
                span.set_attribute("messaging.rocketmq.message.physical_offset", before)
                self._open.append((end, span))
            else:
                span.end()
            return answer

        return handle

    def _begin(self, command: Command) -> Span | None:
        topic_field, properties_field = _FIELDS[command.code]
        text = command.ext.get(properties_field, "")
        if f"traceparent{NAME_END}" not in text:
            return None
        topic = command.ext.get(topic_field, "")[:255]
        return self._tracer.start_span(
            f"store {topic}",
            context=self._propagate.extract(decode_properties(text)),
            kind=self._trace.SpanKind.SERVER,
            attributes={
                "messaging.system": "rocketmq",
                "messaging.operation.name": "store",
                "messaging.destination.name": topic,
                "messaging.message.body.size": len(command.body),
                "server.address": self._core.config.broker_ip1,
                "server.port": self._core.config.listen_port,
            },
        )
