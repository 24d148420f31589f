"""Rows to queues, at least once. Must not know who asks for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, closing

import pyarrow as pa

from mqspark.arrow.records.encode import Rows, Waits
from mqspark.arrow.writing.pipeline import AT_LEAST_ONCE, Pipeline, Send, send_header
from mqspark.arrow.writing.routing import Router
from mqspark.arrow.writing.sendchoice import SendChoice
from mqspark.client.blocking import BlockingClient
from mqspark.message import MessageQueue
from mqspark.protocol.codes import RequestCode


def new_client(options: SendChoice) -> BlockingClient:
    return BlockingClient(
        options.nameserver,
        timeout_ms=options.send_timeout_ms,
        retry_ms=options.retry_timeout_ms,
        credentials=options.signing.credentials(),
    )


def closed_client(options: SendChoice) -> AbstractContextManager[BlockingClient]:
    """A client for one write."""
    return closing(new_client(options))


def send_rows(
    options: SendChoice,
    batches: Iterable[pa.RecordBatch],
    *,
    first_turn: int,
    has_written: bool = False,
    client_for: Callable[[SendChoice], AbstractContextManager[BlockingClient]] = closed_client,
) -> int:
    """Returns how many messages were sent when all are stored."""
    with client_for(options) as client:
        router = Router(options, client, first_turn=first_turn, has_written=has_written)
        pipeline = Pipeline(options, client, router, AT_LEAST_ONCE)
        for batch in batches:
            if batch.num_rows == 0:
                continue
            rows, waits = Rows(batch, options.keep_broker_properties), Waits(batch)
            for queues, chosen, targets in router.placed(batch, rows):
                waiting = waits.any_of(chosen)
                if options.as_dead_letters:  # a broker stores a batch as it is
                    waiting[:] = True
                if waiting.any():
                    for row, index in zip(chosen[waiting].tolist(), targets[waiting].tolist(), strict=True):
                        pipeline.add(_delayed(options, queues[index], rows, row, waits.properties(row)))
                    chosen, targets = chosen[~waiting], targets[~waiting]
                for index, each in rows.sends(chosen, targets, options.batch_bytes, options.compression):
                    header = send_header(options, queues[index], batch=True, sys_flag=each.sys_flag)
                    pipeline.add(
                        Send(queues[index], RequestCode.SEND_BATCH_MESSAGE, header, each.body, each.count)
                    )
            pipeline.throttle()
        pipeline.finish()
        return pipeline.messages


def _delayed(options: SendChoice, queue: MessageQueue, rows: Rows, row: int, more: str) -> Send:
    """A delayed message or a dead letter cannot be a batch member: it is sent alone."""
    properties = rows.properties[row].as_py().decode() + more
    values, sys_flag = rows.values.slice(row, 1), 0
    compression = options.compression
    if compression is not None and compression.applies(values):
        values, sys_flag = compression.compressed(values), compression.sys_flag
    header = send_header(options, queue, properties=properties, sys_flag=sys_flag)
    return Send(queue, RequestCode.SEND_MESSAGE_V2, header, values[0].as_py(), 1)
