"""The sink: batch and streaming writes of a DataFrame to topics, at least once by default.

A row is written when a broker has acknowledged it. A failed task may have sent rows already, and Spark runs it
again, as does a query restarted within a batch: readers must tolerate duplicates. The rows of one task keep their
order within a queue: one batch per queue is in flight at a time, batches of different queues concurrently. With
``deliveryGuarantee=exactly-once`` rows are transactions of the broker (``pyspark_pymq.writing.exactlyonce``).

Rows with a key go to the queue that RocketMQ's selector by hash chooses (as for Java producers with that
selector); rows without one are distributed in turn. Columns: ``value`` (binary or string) is required; ``key``,
``tags``, ``topic``, ``properties``, ``headers``, ``partition`` (or ``queueId``), ``shardingKey``, ``priority``,
``delayLevel`` and ``deliverAt`` (a timestamp, or milliseconds) are optional; those a ``pymq`` source adds are ignored.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter

from mqspark.arrow.writing.rowcolumns import COLUMN_TYPES, sent_columns
from mqspark.client.blocking import meet
from mqspark.errors import ClientError, ConfigError, MQError
from pyspark_pymq.options import WriteOptions
from pyspark_pymq.worker_tuning import PickledToTask, begin_task
from pyspark_pymq.writing.reports import Sent
from pyspark_pymq.writing.written import has_written, note_written

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType, StructType

    from pyspark_pymq.typed.typedbodies import TypedBodies


class NotPlanned(ClientError, pickle.PicklingError):
    """What a write needs is not there. Spark passes on an error of pickling, and puts any other into one of its own."""


class _SinkWriter(PickledToTask):
    """The common part of batch and streaming writes, made on the driver for every batch: once when it is planned, and
    for a stream again when it is committed. Pickled to the tasks: plain values only. Raises ConfigError."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise ConfigError.of(
                "mode",
                'a topic is only appended to; use mode("append"), or outputMode("append") for a stream',
            )
        begin_task()
        self._options = options
        self._typed: TypedBodies | None = None
        if options.payload is not None:
            from pyspark_pymq.typed.typedbodies import TypedBodies

            self._typed, schema = TypedBodies.planned(options.payload, schema, COLUMN_TYPES, options.topic)
        self._names = self._checked(options, schema)
        self._has_written = has_written(options)

    def __getstate__(self) -> dict[str, Any]:
        """Makes the first contact: only a write that is planned is pickled, before its tasks run. Raises
        NotPlanned."""
        try:
            self._begin()
        except MQError as error:
            raise NotPlanned(str(error)) from None
        return self.__dict__

    def _begin(self) -> None:
        """Raises ConnectionLost, NotANameServer, ConfigError."""
        if self._options.has_spans:
            from pyspark_pymq.taskspans import TaskSpans

            TaskSpans()  # without the API the driver says so, not each task
        if self._options.lineage_job is not None and self._options.topic is not None:
            from pyspark_pymq.lineage import tell_of_task

            tell_of_task(self._options.lineage_job, self._options.nameserver, writes=[self._options.topic])
        if not self._has_written:
            meet(self._options.nameserver, self._options.signing.credentials())
        if self._options.exactly_once:
            from pyspark_pymq.writing.exactlyonce import check

            check(self._options)

    @staticmethod
    def _checked(options: WriteOptions, schema: StructType) -> list[str]:
        """The columns to send. Raises ConfigError."""
        if options.payload_is_arrow:
            if options.topic is None:
                raise ConfigError.of("topic", "required with payloadFormat=arrow, as an option")
            from pyspark_pymq.typed.arrowrows import arrow_schema_of

            arrow_schema_of(schema.toNullable())  # as readers have it: what nobody could read is not written
            return [field.name for field in schema.fields]
        return sent_columns([(field.name, _type_name(field.dataType)) for field in schema.fields], options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        from pyspark import TaskContext

        begin_task()
        context = TaskContext.get()
        # Each task starts at another queue.
        turn = context.taskAttemptId() if context is not None else 0
        if self._typed is not None:
            iterator = self._typed.rows(iterator)
        batches: Iterator[pa.RecordBatch] = (batch.select(self._names) for batch in iterator)
        if self._options.payload_is_arrow:
            from pyspark_pymq.typed.arrowrows import pack

            batches = pack(batches, self._options.batch_bytes)
        if not self._options.has_spans:
            return self._sent(batches, context, turn)
        from pyspark_pymq.taskspans import TaskSpans

        # Without the option topic each row names its own.
        with TaskSpans().sending(self._options.topic or "", self._options.group) as traced:
            return self._sent(traced(batches), context, turn)

    def _sent(self, batches: Iterator[pa.RecordBatch], context: Any, turn: int) -> Sent:
        if self._options.exactly_once:
            from pyspark_pymq.writing.exactlyonce import prepare

            identity, number = self.batch_of(context)
            return prepare(
                self._options, identity, number, batches, first_turn=turn, has_written=self._has_written
            )
        from mqspark.arrow.writing.sendrows import send_rows
        from pyspark_pymq.writing.keptclient import KEPT

        sent = send_rows(
            self._options, batches, first_turn=turn, has_written=self._has_written, client_for=KEPT.lent
        )
        return Sent(sent)

    def batch_of(self, context: Any) -> tuple[str, int]:
        """The batch of this task's rows: numbered by Spark for a query, by the options for a batch write."""
        query = context.getLocalProperty("sql.streaming.queryId") if context is not None else None
        identity = self._options.transaction_id or str(query)
        if self._options.transaction_batch is not None or query is None:
            return identity, self._options.transaction_batch or 0
        return identity, int(context.getLocalProperty("streaming.sql.batchId"))

    def _commit(self, messages: list[Sent | None]) -> None:
        sent = [message for message in messages if message is not None]
        if self._options.exactly_once:
            from pyspark_pymq.writing.exactlyonce import commit

            commit(self._options, sent)
        if any(message.messages for message in sent):
            note_written(self._options)

    def _abort(self, messages: list[Sent | None]) -> None:
        if self._options.exactly_once:
            from pyspark_pymq.writing.exactlyonce import abort

            abort(self._options, [message for message in messages if message is not None])


class BatchWriter(_SinkWriter, DataSourceArrowWriter):  # type: ignore[misc]
    """``df.write.format("pymq").mode("append")``."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        # In foreachBatch the query's id would be enough for one write, but not for two.
        if options.exactly_once and options.transaction_id is None:
            raise ConfigError.of(
                "transactionId",
                "an exactly-once batch write needs a name and a transactionBatch of its own, so that "
                "running it again is recognised",
            )
        super().__init__(options, schema, overwrite)

    def commit(self, messages: list[Sent | None]) -> None:
        """At least once: everything is sent already. Exactly once: makes it visible."""
        begin_task()  # a stream's writer is made again for it
        self._commit(messages)

    def abort(self, messages: list[Sent | None]) -> None:
        """At least once: sent rows stay. Exactly once: rolls them back."""
        self._abort(messages)


class StreamWriter(_SinkWriter, DataSourceStreamArrowWriter):  # type: ignore[misc]
    """``df.writeStream.format("pymq")``."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        if options.transaction_batch is not None:
            raise ConfigError.of(
                "transactionBatch", "a stream numbers its batches itself; it is an option of batch writes"
            )
        super().__init__(options, schema, overwrite)

    def commit(self, messages: list[Sent | None], batchId: int) -> None:
        """Like ``BatchWriter.commit``."""
        self._commit(messages)

    def abort(self, messages: list[Sent | None], batchId: int) -> None:
        """Like ``BatchWriter.abort``. Also called after a commit whose answer was lost."""
        self._abort(messages)


def _type_name(kind: DataType) -> str:
    """CHAR, VARCHAR and collations are texts: spark.sql.preserveCharVarcharTypeInfo shows the first two."""
    from pyspark.sql.types import CharType, StringType, VarcharType

    is_text = isinstance(kind, StringType | CharType | VarcharType)
    return "string" if is_text else str(kind.simpleString())
