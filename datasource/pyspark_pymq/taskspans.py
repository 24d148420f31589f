"""Spans of OpenTelemetry for what tasks read, write and call (option ``openTelemetry``), by its conventions for
messaging.

A task that reads messages is one span ``receive TOPIC``, one that writes rows a span ``send TOPIC``, in the process of
the worker. A work queue has a span ``process TOPIC`` for each call of its function. Each has links to the traces of
messages that came with one, as far as the column ``properties`` is there, in which the trace travels; a span about one
message goes on with its trace. Rows that are written without a trace get that of their task. Only the API is used: the
SDK that the workers are started with processes the spans. Must not import pyspark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from mqspark.arrow.messagecolumns import PROPERTIES
from mqspark.client.hooks.spans import message_attributes
from mqspark.errors import ConfigError
from mqspark.message import KEYS, TAGS, UNIQ_KEY

if TYPE_CHECKING:
    from opentelemetry.trace import Link, Span, TracerProvider

MAX_LINKS = 128
"""Links of one span (OTEL_SPAN_LINK_COUNT_LIMIT); further messages are counted."""
_PARENT = "traceparent"


class HasFailures(Protocol):
    """The outcomes of the messages of one call."""

    @property
    def failures(self) -> Mapping[int, Any]:
        """By row."""


Called = TypeVar("Called", bound=HasFailures)


class TaskSpans:
    """``provider``: None for the process's own. Raises ConfigError without the package opentelemetry-api."""

    def __init__(self, provider: TracerProvider | None = None) -> None:
        try:
            from opentelemetry import context, propagate, trace
        except ImportError:
            raise ConfigError.of(
                "openTelemetry",
                "needs opentelemetry-api on the driver and the workers: pip install 'mqspark[otel]'",
            ) from None
        self._context, self._trace, self._propagate = context, trace, propagate
        self._tracer = trace.get_tracer("mqspark.spark", tracer_provider=provider)

    def received(
        self, batches: Iterator[pa.RecordBatch], topics: Sequence[str], group: str
    ) -> Iterator[pa.RecordBatch]:
        """The same batches; the span is open from the first request until the task has read all, or ends early."""
        destination = ",".join(topics)[:1_000]
        with self._span("receive", topics[0], destination, group, self._trace.SpanKind.CONSUMER) as span:
            yield from self._counted(span, batches)

    @contextmanager
    def sending(
        self, topic: str, group: str
    ) -> Iterator[Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]]:
        """A span until the end of the ``with``, where all rows are stored. Gives a function for the task's batches,
        whose rows then have a trace."""
        with self._span("send", topic, topic, group, self._trace.SpanKind.PRODUCER) as span:
            carrier: dict[str, str] = {}
            self._propagate.inject(carrier, context=self._trace.set_span_in_context(span))

            def traced(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
                for batch in self._counted(span, batches):
                    # Nothing is carried without an SDK.
                    yield with_properties(batch, carrier, unless=_PARENT) if carrier else batch

            yield traced

    def called(
        self, call: Callable[[pa.RecordBatch], Called], group: str
    ) -> Callable[[pa.RecordBatch], Called]:
        """``call`` of messages with a span around each call, which is current meanwhile."""

        def traced(batch: pa.RecordBatch) -> Called:
            topics = pc.unique(batch.column("topic")).to_pylist() or [""]
            links = list(self._links(batch, set()))
            # One message goes on with the trace of its sender; a batch has many.
            sender = self._of(links[0]) if links and batch.num_rows == 1 else None
            kind = self._trace.SpanKind.CONSUMER
            destination = ",".join(topics)[:1_000]
            with self._span("process", topics[0], destination, group, kind, sender) as span:
                for link in links:
                    span.add_link(link.context, link.attributes)
                span.set_attribute("messaging.batch.message_count", batch.num_rows)
                token = self._context.attach(self._trace.set_span_in_context(span))
                try:
                    done = call(batch)
                finally:
                    self._context.detach(token)
                if done.failures:
                    failure = next(iter(done.failures.values()))
                    span.set_attribute("error.type", str(failure.type)[:200])
                    text = f"{len(done.failures)} of {batch.num_rows} messages failed: {failure.text}"
                    span.set_status(self._trace.StatusCode.ERROR, text[:200])
                return done

        return traced

    @contextmanager
    def _span(
        self, operation: str, topic: str, destination: str, group: str, kind: Any, parent: Any = None
    ) -> Iterator[Span]:
        attributes = {
            "messaging.system": "rocketmq",
            "messaging.operation.name": operation,
            "messaging.operation.type": operation,
            "messaging.destination.name": destination,
        }
        if kind is self._trace.SpanKind.CONSUMER:
            attributes["messaging.consumer.group.name"] = group
        span = self._tracer.start_span(
            f"{operation} {topic}".rstrip(), context=parent, kind=kind, attributes=attributes
        )
        try:
            yield span
        except Exception as error:
            span.set_attribute("error.type", type(error).__qualname__)
            span.set_status(self._trace.StatusCode.ERROR, str(error)[:200])
            raise
        finally:
            span.end()

    def _counted(self, span: Span, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The same batches; the span gets their links, and in the end their number of rows."""
        count, linked = 0, set[str]()
        try:
            for batch in batches:
                count += batch.num_rows
                if span.is_recording():
                    for link in self._links(batch, linked):
                        span.add_link(link.context, link.attributes)
                yield batch
        finally:
            span.set_attribute("messaging.batch.message_count", count)

    def _of(self, link: Link) -> Any:
        return self._trace.set_span_in_context(self._trace.NonRecordingSpan(link.context))

    def _links(self, batch: pa.RecordBatch, linked: set[str]) -> Iterator[Link]:
        """Links to traces that have none yet; adds them to ``linked``."""
        if len(linked) >= MAX_LINKS or PROPERTIES not in batch.schema.names:
            return
        import numpy as np  # not before: reads have no other use for it here

        column = batch.column(PROPERTIES)
        keys, items = _entries(column)
        is_parent = pc.equal(keys, _PARENT)
        # One value a message: names are unique in a map.
        parents = items.filter(is_parent).dictionary_encode()
        owners = np.repeat(np.arange(batch.num_rows), np.diff(column.offsets.to_numpy()))
        rows = owners[is_parent.to_numpy(zero_copy_only=False)]
        _, firsts = np.unique(parents.indices.to_numpy(zero_copy_only=False), return_index=True)
        for first in np.sort(firsts).tolist():
            if len(linked) >= MAX_LINKS:
                return
            parent = parents[first].as_py()
            if parent is None or parent in linked:
                continue
            carrier: Mapping[str, str] = {_PARENT: parent}
            context = self._trace.get_current_span(self._propagate.extract(carrier)).get_span_context()
            if context.is_valid:
                linked.add(parent)
                yield self._trace.Link(context, _of_row(batch, int(rows[first])))


def _of_row(batch: pa.RecordBatch, row: int) -> dict[str, Any]:
    """What the conventions ask of a message, as far as the columns tell it."""
    properties = dict(batch.column(PROPERTIES)[row].as_py())
    names = batch.schema.names
    body = batch.column("value")[row].as_py() if "value" in names else None
    return message_attributes(
        None if body is None else len(body),
        properties.get(TAGS),
        properties.get(KEYS),
        properties.get(UNIQ_KEY),
        batch.column("partition")[row].as_py() if "partition" in names else None,
    )


def _entries(column: Any) -> tuple[pa.Array, pa.Array]:
    """Keys and values of all rows of a map, without those before and behind a slice."""
    first, last = column.offsets[0].as_py(), column.offsets[-1].as_py()
    return column.keys.slice(first, last - first), column.items.slice(first, last - first)


def with_properties(batch: pa.RecordBatch, more: Mapping[str, str], *, unless: str) -> pa.RecordBatch:
    """``batch`` with the entries ``more`` in the column properties of each row whose map has no key ``unless``."""
    import numpy as np  # not before: reads have no other use for it here

    rows = batch.num_rows
    names = batch.schema.names
    if PROPERTIES in names:
        column = batch.column(PROPERTIES)
        keys, items = (each.cast(pa.string()) for each in _entries(column))
        counts = np.diff(column.offsets.to_numpy())
        is_there = column.is_valid().to_numpy(zero_copy_only=False)
        kept = pa.array(np.repeat(is_there, counts))  # a row without a map may have entries
        keys, items = keys.filter(kept), items.filter(kept)
        owners = np.repeat(np.arange(rows), np.where(is_there, counts, 0))
        has_one = np.zeros(rows, bool)
        has_one[owners[pc.equal(keys, unless).to_numpy(zero_copy_only=False)]] = True
    else:
        keys = items = pa.array([], pa.string())
        owners, has_one = np.zeros(0, np.int64), np.zeros(rows, bool)
    bare = np.flatnonzero(~has_one)
    places = pa.array(np.tile(np.arange(len(more)), len(bare)))
    owners = np.concatenate([owners, np.repeat(bare, len(more))])
    order = pa.array(np.argsort(owners, kind="stable"))
    ends = np.cumsum(np.bincount(owners, minlength=rows))
    column = pa.MapArray.from_arrays(
        pa.array(np.concatenate([[0], ends]), pa.int32()),
        pa.concat_arrays([keys, pa.array(list(more)).take(places)]).take(order),
        pa.concat_arrays([items, pa.array(list(more.values())).take(places)]).take(order),
    )
    if PROPERTIES in names:
        return batch.set_column(names.index(PROPERTIES), PROPERTIES, column)
    return batch.append_column(PROPERTIES, column)
