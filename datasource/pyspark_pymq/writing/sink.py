"""The sink: batch and streaming writes of a DataFrame to topics, at least once by default.

A row is written when a broker has acknowledged it. A failed task may have sent rows already, and Spark runs it
again, as does a query restarted within a batch: readers must tolerate duplicates. The rows of one task keep their
order within a queue: one batch per queue is in flight at a time, batches of different queues concurrently. With
``deliveryGuarantee=exactly-once`` rows are transactions of the broker (``pyspark_pymq.writing.exactlyonce``).

Rows with a key go to the queue that RocketMQ's selector by hash chooses (as for Java producers with that
selector); rows without one are distributed in turn. Columns: ``value`` (binary or string) is required; ``key``,
``tags``, ``topic``, ``properties``, ``partition`` (or ``queueId``), ``shardingKey``, ``delayLevel`` and
``deliverAt`` (a timestamp, or milliseconds) are optional; those a ``pymq`` source adds are ignored.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter

from mqspark.client.blocking import BlockingClient, meet
from mqspark.errors import BrokerError, ConfigError, ConnectionLost, MQError, RequestTimeout
from mqspark.message import DEFAULT_TOPIC, MessageQueue
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.headers import SendMessageRequestHeaderV2
from pyspark_pymq.options import WriteOptions
from pyspark_pymq.worker_tuning import PickledToTask, begin_task
from pyspark_pymq.writing.reports import Sent

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from pyspark_pymq.records.encode import Rows

__all__ = ["BatchWriter", "StreamWriter"]

log = logging.getLogger("pyspark_pymq")

_COLUMN_TYPES = {
    "value": ("binary", "string"),
    "key": ("string", "binary"),
    "tags": ("string",),
    "topic": ("string",),
    "properties": ("map<string,string>",),
    "partition": ("int", "bigint"),
    "queueId": ("int", "bigint"),
    "shardingKey": ("string",),
    "delayLevel": ("int",),
    "deliverAt": ("timestamp", "bigint"),
}
_IGNORED = frozenset(
    {
        "offset",
        "timestamp",
        "broker",
        "bornTimestamp",
        "msgId",
        "headers",
        "physicalOffset",
        "sysFlag",
        "reconsumeTimes",
    }
)

_DEFAULT_QUEUES = 4
_MAX_WAITING_BYTES = 8 << 20
_ACCEPTED = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
    }
)
"""Stored; the last three with a weaker guarantee than requested, which RocketMQ's clients also count as sent."""
_RETRIED = frozenset(
    {ResponseCode.SYSTEM_ERROR, ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE}
)


class _SinkWriter(PickledToTask):
    """The common part of batch and streaming writes. Pickled to the tasks: options and names only."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise ConfigError(
                'mode: a topic is only appended to; use mode("append"), or outputMode("append") for a stream',
                key="mode",
            )
        self._options = options
        self._names = self._checked(options, schema)

    @staticmethod
    def _checked(options: WriteOptions, schema: StructType) -> list[str]:
        """The columns to send. Raises ConfigError."""
        if options.payload_is_arrow:
            if options.topic is None:
                raise ConfigError("topic: required with payloadFormat=arrow, as an option", key="topic")
            from pyspark_pymq.cluster.payload import arrow_schema_of

            arrow_schema_of(schema.toNullable())  # as readers have it: what nobody could read is not written
            return [field.name for field in schema.fields]
        names = []
        for field in schema.fields:
            allowed = _COLUMN_TYPES.get(field.name)
            if allowed is None:
                if field.name in _IGNORED:
                    continue
                raise ConfigError(
                    f"{field.name}: not a column of the pymq sink; it takes {', '.join(_COLUMN_TYPES)}",
                    key=field.name,
                )
            found = field.dataType.simpleString()
            if found not in allowed:
                raise ConfigError(
                    f"{field.name}: must be {' or '.join(allowed)}, not {found}", key=field.name
                )
            names.append(field.name)
        if "value" not in names:
            raise ConfigError("value: the column is required; it becomes the message body", key="value")
        if "topic" not in names and options.topic is None:
            raise ConfigError("topic: required, as an option or as a column", key="topic")
        if "partition" in names and "queueId" in names:
            raise ConfigError(
                "queueId: means the same as the column partition; give one of them", key="queueId"
            )
        if options.exactly_once and (late := {"delayLevel", "deliverAt"} & set(names)):
            raise ConfigError(
                f"{min(late)}: a transaction is not delayed; write such rows at-least-once", key=min(late)
            )
        return names

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        from pyspark import TaskContext

        begin_task()
        context = TaskContext.get()
        if context is not None and context.getLocalProperty("streaming.sql.batchId") == "0":
            meet(self._options.nameserver)  # a new query: later batches have more patience
        # Each task starts at another queue.
        turn = context.taskAttemptId() if context is not None else 0
        batches: Iterator[pa.RecordBatch] = (batch.select(self._names) for batch in iterator)
        if self._options.payload_is_arrow:
            from pyspark_pymq.cluster.payload import pack

            batches = pack(batches, self._options.batch_bytes)
        if self._options.exactly_once:
            from pyspark_pymq.writing.exactlyonce import prepare

            identity, number = self._batch_of(context)
            return prepare(self._options, identity, number, batches, first_turn=turn)
        sender = _Sender(self._options, first_turn=turn)
        try:
            for batch in batches:
                sender.add(batch)
            sender.finish()
        finally:
            sender.close()
        return Sent(sender.acknowledged)

    def _batch_of(self, context: Any) -> tuple[str, int]:
        """The batch of this task's rows: numbered by Spark for a query, by the options for a batch write."""
        query = context.getLocalProperty("sql.streaming.queryId") if context is not None else None
        identity = self._options.transaction_id or str(query)
        if self._options.transaction_batch is not None or query is None:
            return identity, self._options.transaction_batch or 0
        return identity, int(context.getLocalProperty("streaming.sql.batchId"))

    def _commit(self, messages: list[Sent | None]) -> None:
        begin_task()
        if self._options.exactly_once:
            from pyspark_pymq.writing.exactlyonce import commit

            commit(self._options, [message for message in messages if message is not None])

    def _abort(self, messages: list[Sent | None]) -> None:
        if self._options.exactly_once:
            from pyspark_pymq.writing.exactlyonce import abort

            abort(self._options, [message for message in messages if message is not None])


class BatchWriter(_SinkWriter, DataSourceArrowWriter):  # type: ignore[misc]
    """``df.write.format("pymq").mode("append")``."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        super().__init__(options, schema, overwrite)
        # In foreachBatch the query's id would be enough for one write, but not for two.
        if options.exactly_once and options.transaction_id is None:
            raise ConfigError(
                "transactionId: an exactly-once batch write needs a name and a transactionBatch of its own, so that "
                "running it again is recognised",
                key="transactionId",
            )

    def commit(self, messages: list[Sent | None]) -> None:
        """At least once: everything is sent already. Exactly once: makes it visible."""
        self._commit(messages)

    def abort(self, messages: list[Sent | None]) -> None:
        """At least once: sent rows stay. Exactly once: rolls them back."""
        self._abort(messages)


class StreamWriter(_SinkWriter, DataSourceStreamArrowWriter):  # type: ignore[misc]
    """``df.writeStream.format("pymq")``."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        super().__init__(options, schema, overwrite)
        if options.transaction_batch is not None:
            raise ConfigError(
                "transactionBatch: a stream numbers its batches itself; it is an option of batch writes",
                key="transactionBatch",
            )

    def commit(self, messages: list[Sent | None], batchId: int) -> None:
        """Like ``BatchWriter.commit``."""
        self._commit(messages)

    def abort(self, messages: list[Sent | None], batchId: int) -> None:
        """Like ``BatchWriter.abort``. Also called after a commit whose answer was lost."""
        self._abort(messages)


@dataclass(slots=True)
class _Send:
    """One request in flight, with everything needed to send it again."""

    code: int
    header: SendMessageRequestHeaderV2
    body: bytes | memoryview
    count: int
    attempts: int = 0


class _Sender:
    """Queues of sends: one in flight for each message queue, the rest waiting in order."""

    def __init__(self, options: WriteOptions, *, first_turn: int) -> None:
        self.acknowledged = 0
        self._options = options
        from pyspark_pymq.writing.routing import Router

        self._client = BlockingClient(options.nameserver, timeout_ms=options.send_timeout_ms)
        self._router = Router(options, self._client, first_turn=first_turn)
        self._waiting: dict[MessageQueue, deque[_Send]] = {}
        self._waiting_bytes = 0
        self._under_way: dict[MessageQueue, tuple[str, int, float]] = {}
        """Queue to (address, opaque, deadline) of the first of its waiting sends."""
        self._resting: dict[MessageQueue, float] = {}
        """When the first of a queue's waiting sends, which was refused, is sent again."""

    def close(self) -> None:
        self._client.close()

    def add(self, batch: pa.RecordBatch) -> None:
        """Accept the rows and send; returns when few enough are waiting."""
        from pyspark_pymq.records.encode import Rows, Waits

        if batch.num_rows == 0:
            return
        rows = Rows(batch)
        waits = Waits(batch)
        for queues, chosen, targets in self._router.placed(batch, rows):
            waiting = waits.any_of(chosen)
            if waiting.any():
                for row, index in zip(chosen[waiting].tolist(), targets[waiting].tolist(), strict=True):
                    self._put(queues[index], self._alone(queues[index], rows, row, waits.properties(row)))
                chosen, targets = chosen[~waiting], targets[~waiting]
            for index, each in rows.sends(
                chosen, targets, self._options.batch_bytes, self._options.compression
            ):
                header = self._header(queues[index], batch=True, sys_flag=each.sys_flag)
                self._put(queues[index], _Send(RequestCode.SEND_BATCH_MESSAGE, header, each.body, each.count))
        self._pump(_MAX_WAITING_BYTES)

    def finish(self) -> None:
        """Returns when everything is acknowledged. Raises the error that prevented it."""
        self._pump(0)

    # --- rows to sends ----------------------------------------------------------------------------------------

    def _alone(self, queue: MessageQueue, rows: Rows, row: int, more: str) -> _Send:
        """A delayed message cannot be a batch member: it is sent alone."""
        properties = rows.properties[row].as_py().decode() + more
        values, sys_flag = rows.values.slice(row, 1), 0
        compression = self._options.compression
        if compression is not None and compression.applies(values):
            values, sys_flag = compression.compressed(values), compression.sys_flag
        header = self._header(queue, batch=False, properties=properties, sys_flag=sys_flag)
        return _Send(RequestCode.SEND_MESSAGE_V2, header, values[0].as_py(), 1)

    def _header(
        self, queue: MessageQueue, *, batch: bool, properties: str = "", sys_flag: int = 0
    ) -> SendMessageRequestHeaderV2:
        return SendMessageRequestHeaderV2(
            producer_group=self._options.group,
            topic=queue.topic,
            default_topic=DEFAULT_TOPIC,
            default_topic_queue_nums=_DEFAULT_QUEUES,
            queue_id=queue.queue_id,
            sys_flag=sys_flag,
            born_timestamp=time.time_ns() // 1_000_000,
            flag=0,
            properties=properties,
            reconsume_times=0,
            unit_mode=False,
            batch=batch,
            bname=queue.broker_name,
        )

    # --- sends to acknowledgements ----------------------------------------------------------------------------

    def _put(self, queue: MessageQueue, send: _Send) -> None:
        self._waiting.setdefault(queue, deque()).append(send)
        self._waiting_bytes += len(send.body)

    def _pump(self, until_bytes: int) -> None:
        """Send, and receive answers, until at most ``until_bytes`` are unacknowledged."""
        self._start()
        while (self._under_way or self._resting) and self._waiting_bytes > until_bytes - 1:
            rested_at = min(self._resting.values(), default=math.inf)
            if not self._under_way:
                time.sleep(max(0.0, rested_at - time.monotonic()))
                self._start()
                continue
            address, _, _ = next(iter(self._under_way.values()))
            here = {queue: item for queue, item in self._under_way.items() if item[0] == address}
            deadline = min(item[2] for item in here.values())
            try:
                connection = self._client.connection(address)
                timeout_s = max(0.0, min(deadline, rested_at) - time.monotonic())
                answers = connection.poll((item[1] for item in here.values()), timeout_s)
                if not answers and time.monotonic() >= deadline:
                    raise RequestTimeout(address, self._options.send_timeout_ms)
            except (ConnectionLost, RequestTimeout) as error:
                self._send_again(list(here), address, error)
                continue
            for queue, item in here.items():
                answer = answers.get(item[1])
                if answer is not None:
                    self._answered(queue, address, answer)
            self._start()

    def _start(self) -> None:
        now = time.monotonic()
        for queue, sends in self._waiting.items():
            if sends and queue not in self._under_way and self._resting.get(queue, now) <= now:
                self._resting.pop(queue, None)
                self._send(queue, sends[0])

    def _send(self, queue: MessageQueue, send: _Send) -> None:
        while True:
            address = self._router.address(queue)
            try:
                connection = self._client.connection(address)
                opaque = connection.send(
                    send.code, send.header, send.body, timeout_ms=self._options.send_timeout_ms
                )
            except ConnectionLost as error:
                # Everything in flight there is lost with the connection.
                others = [other for other, item in self._under_way.items() if item[0] == address]
                self._count(send, error)
                for other in others:
                    del self._under_way[other]
                self._client.forget(address)
                self._router.refresh(queue.topic)
                continue
            deadline = time.monotonic() + self._options.send_timeout_ms / 1000
            self._under_way[queue] = address, opaque, deadline
            return

    def _answered(self, queue: MessageQueue, address: str, answer: Any) -> None:
        send = self._waiting[queue][0]
        del self._under_way[queue]
        if answer.code in _ACCEPTED:
            if answer.code != ResponseCode.SUCCESS:
                log.warning(
                    "%s stored messages of %s with a weaker guarantee: %s",
                    address,
                    queue.topic,
                    answer.remark,
                )
            self._waiting[queue].popleft()
            self._waiting_bytes -= len(send.body)
            self.acknowledged += send.count
            return
        error = BrokerError(answer.code, answer.remark, address=address)
        if answer.code not in _RETRIED:
            raise error
        self._resting[queue] = time.monotonic() + self._failed(send, error)

    def _send_again(self, queues: list[MessageQueue], address: str, error: MQError) -> None:
        """The connection is lost or does not answer: everything in flight on it is sent again."""
        self._client.forget(address)
        for queue in queues:
            del self._under_way[queue]
        self._count(self._waiting[queues[0]][0], error)
        self._router.refresh(queues[0].topic)
        self._start()

    def _count(self, send: _Send, error: MQError) -> None:
        """One more failed attempt: wait a little, or give up."""
        time.sleep(self._failed(send, error))

    def _failed(self, send: _Send, error: MQError) -> float:
        """One more failed attempt: returns the seconds to wait before the next. Raises ``error`` if it was the
        last."""
        if send.attempts >= self._options.retries:
            raise error
        send.attempts += 1
        return min(0.05 * 2.0**send.attempts, 2.0)
