"""Spans of OpenTelemetry for what tasks read (option ``openTelemetry``), by its conventions for messaging.

A task that reads messages is one span ``receive TOPIC``, in the process of the worker. It has a link to the trace of
each message that came with one, as far as the column ``properties`` is read, in which the trace travels. Uses the API
alone: what becomes of spans is up to the SDK that the workers are started with. Must not import pyspark.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from mqspark.errors import ConfigError
from pyspark_pymq.schema import PROPERTIES

if TYPE_CHECKING:
    from opentelemetry.trace import Link, TracerProvider

__all__ = ["ReceiveSpans", "traced"]

MAX_LINKS = 128
"""Of one span (OTEL_SPAN_LINK_COUNT_LIMIT); further messages are counted."""
_PARENT = "traceparent"


class ReceiveSpans:
    """``provider``: None for the process's own. Raises ConfigError without the package opentelemetry-api."""

    def __init__(self, provider: TracerProvider | None = None) -> None:
        try:
            from opentelemetry import propagate, trace
        except ImportError:
            raise ConfigError(
                "openTelemetry: needs opentelemetry-api on the driver and the workers: pip install 'mqspark[otel]'",
                key="openTelemetry",
            ) from None
        self._trace, self._propagate = trace, propagate
        self._tracer = trace.get_tracer("mqspark.spark", tracer_provider=provider)

    def of_task(
        self, batches: Iterator[pa.RecordBatch], topics: Sequence[str], group: str
    ) -> Iterator[pa.RecordBatch]:
        """The same batches; the span is open from the first question until the task has read all, or ends early."""
        span = self._tracer.start_span(
            f"receive {topics[0]}",
            kind=self._trace.SpanKind.CONSUMER,
            attributes={
                "messaging.system": "rocketmq",
                "messaging.operation.name": "receive",
                "messaging.operation.type": "receive",
                "messaging.destination.name": ",".join(topics)[:1_000],
                "messaging.consumer.group.name": group,
            },
        )
        count, linked = 0, set[str]()
        try:
            for batch in batches:
                count += batch.num_rows
                if span.is_recording():
                    for link in self._links(batch, linked):
                        span.add_link(link.context)
                yield batch
        except Exception as error:
            span.set_attribute("error.type", type(error).__qualname__)
            span.set_status(self._trace.StatusCode.ERROR, str(error)[:200])
            raise
        finally:
            span.set_attribute("messaging.batch.message_count", count)
            span.end()

    def _links(self, batch: pa.RecordBatch, linked: set[str]) -> Iterator[Link]:
        """To traces that have none yet; ``linked`` grows."""
        if len(linked) >= MAX_LINKS or PROPERTIES not in batch.schema.names:
            return
        column: Any = batch.column(PROPERTIES)
        # One value a message: names are unique in a map.
        for parent in pc.unique(column.items.filter(pc.equal(column.keys, _PARENT))).to_pylist():
            if len(linked) >= MAX_LINKS:
                return
            if parent is None or parent in linked:
                continue
            carrier: Mapping[str, str] = {_PARENT: parent}
            context = self._trace.get_current_span(self._propagate.extract(carrier)).get_span_context()
            if context.is_valid:
                linked.add(parent)
                yield self._trace.Link(context)


def traced(batches: Iterator[pa.RecordBatch], topics: Sequence[str], group: str) -> Iterator[pa.RecordBatch]:
    """With the spans of this process."""
    return ReceiveSpans().of_task(batches, topics, group)
