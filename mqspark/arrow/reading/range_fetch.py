"""Ranges of queues to RecordBatches, in a Spark worker: in place from the broker's files, or over TCP.

A store is read locally only if the worker's operator allows its directory and the broker has proved to the driver that
it knows the secret in it (``openplaces``). Otherwise, and where data is missing (another host, an expired or truncated
segment), messages are pulled over TCP from the same offset on. Must not import pyspark.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa

from mqspark.arrow.cluster.queueranges import LogicPlace, QueueRange
from mqspark.arrow.cluster.readtasks import BATCH_BYTES, ReadTask
from mqspark.arrow.reading.openplaces import KEPT, OpenPlaces
from mqspark.arrow.reading.rangepulls import pulled_batches
from mqspark.arrow.records.decode import Decoder
from mqspark.message import LMQ_PREFIX, MessageQueue

_TOGETHER_ROWS = 50_000
"""A task with fewer rows decodes its queues together."""


def read_task(
    task: ReadTask, opened: OpenPlaces | None = None, batch_bytes: int = BATCH_BYTES
) -> Iterator[pa.RecordBatch]:
    """The rows of every range, each queue's in order, as batches of about ``batch_bytes``. ``opened``: by default what
    the process keeps."""
    opened = KEPT if opened is None else opened
    together = _read_together(task, opened)
    if together is None:
        together = (batch for each in task.ranges for batch in _read_range(task, each, opened))
    yield from _coalesced(together, batch_bytes)


def _read_together(task: ReadTask, opened: OpenPlaces) -> Iterator[pa.RecordBatch] | None:
    """Decodes the queues of a small task together, in log order, because decoding a few rows costs as much as
    decoding a thousand. None if the ranges have to be read one by one."""
    topics = {(each.queue.topic, each.queue.broker_name) for each in task.ranges}
    rows = sum(each.rows for each in task.ranges)
    if len(task.ranges) < 2 or len(topics) > 1 or rows > _TOGETHER_ROWS or task.sql_filter is not None:
        return None
    if task.logic:
        return None  # records know their physical queues
    ((topic, broker),) = topics
    if topic.startswith(LMQ_PREFIX):
        return None  # the queue has to be read from each record
    store = opened.store(task.places[broker])
    if store is None:
        return None
    decoder = Decoder(
        task.columns,
        topic=topic,
        broker=broker,
        queue_id=None,
        only=MessageQueue(topic, broker, -1),
        tags=frozenset(task.tags),
        strict=task.fail_on_data_loss,
        limits=task.limits,
    )
    found = store.read_together(task.ranges, decoder, task.tags)
    return _with_the_rest(task, found, opened) if found is not None else None


def _with_the_rest(
    task: ReadTask, found: Iterator[pa.RecordBatch | list[int]], opened: OpenPlaces
) -> Iterator[pa.RecordBatch]:
    for each in found:
        if not isinstance(each, list):
            yield each
            continue
        for wanted, position in zip(task.ranges, each, strict=True):
            if position < wanted.end:
                yield from _read_range(task, replace(wanted, start=position), opened)


def _read_range(task: ReadTask, wanted: QueueRange, opened: OpenPlaces) -> Iterator[pa.RecordBatch]:
    queue = wanted.queue
    place = task.places[queue.broker_name]
    shown = task.logic.get(queue, LogicPlace(queue, 0))
    decoder = Decoder(
        task.columns,
        topic=queue.topic,
        broker=shown.queue.broker_name,
        queue_id=shown.queue.queue_id,
        offset_delta=shown.delta,
        only=queue,
        tags=frozenset(task.tags),
        strict=task.fail_on_data_loss,
        limits=task.limits,
    )
    position = wanted.start
    store = opened.store(place) if task.sql_filter is None else None
    if store is not None:
        for found in store.read(wanted, decoder, task.tags):
            if isinstance(found, int):
                position = found
            else:
                yield found
    if position < wanted.end:
        yield from pulled_batches(
            task, place.address, QueueRange(queue, position, wanted.end), decoder, opened
        )


def _coalesced(batches: Iterator[pa.RecordBatch], batch_bytes: int) -> Iterator[pa.RecordBatch]:
    """Merges small neighbouring batches and drops empty ones."""
    waiting: list[pa.RecordBatch] = []
    waiting_bytes = 0
    for batch in batches:
        if batch.num_rows == 0:
            continue
        size = batch.nbytes
        if waiting and waiting_bytes + size > batch_bytes:
            yield _combined(waiting)
            waiting, waiting_bytes = [], 0
        waiting.append(batch)
        waiting_bytes += size
    if waiting:
        yield _combined(waiting)


def _combined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    (combined,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return combined
