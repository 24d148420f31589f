"""One Structured Streaming query that keeps several live tables.

Its checkpoint lies on this host and goes with it: how far a table is, the table says (``tablerecord``). A query
begins where the least of its tables ends, and each table leaves out what it has. A table that fails, or that takes
too long, leaves the query; the others go on.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mqspark.arrow.files.locations import read_bytes
from mqspark.errors import MQError
from mqspark_jobs.tables.tabledefs import TRIGGERS, TableDefinition, stream_options
from mqspark_jobs.tables.tablerows import ROW_COLUMNS, TOPIC, TableWriter
from mqspark_jobs.tables.topicqueues import TopicSpan
from pyspark_pymq.reading.stream_offsets import Positions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_BATCH_BYTES = "256m"
"""Size of a batch, unless the definition has a limit: a table that begins far back does not read everything at once."""
_WRITERS = 4
"""Tables that are written at a time."""
_PATIENCE_S = 30.0
"""How long the tables of a query wait for the slowest one."""


@dataclass(frozen=True, slots=True)
class PlannedTable:
    writer: TableWriter
    starts: dict[str, int]
    """Where the table goes on in each queue that there is."""
    backlog: int
    """Messages that it does not have."""

    @property
    def definition(self) -> TableDefinition:
        return self.writer.definition


def planned(writer: TableWriter, bounds: TopicSpan) -> PlannedTable:
    starts = {queue: writer.ends.get(queue, first) for queue, first in bounds.firsts.items()}
    return PlannedTable(writer, starts, sum(max(0, bounds.ends[queue] - starts[queue]) for queue in starts))


def read(spark: SparkSession, tables: Sequence[PlannedTable]) -> DataFrame:
    """The messages of their topics as a stream, bodies as they are."""
    options = stream_options(tables[0].definition)
    if not any(TRIGGERS.match(name) for name in options):
        options["maxBytesPerTrigger"] = _BATCH_BYTES
    starts: dict[str, dict[str, int]] = {}
    for each in tables:
        of_topic = starts.setdefault(each.definition.topic, {})
        for queue, offset in each.starts.items():
            of_topic[queue] = min(offset, of_topic.get(queue, offset))
    reader = spark.readStream.format("pymq").options(**options)
    reader = reader.option("subscribe", ",".join(sorted(starts))).option(
        "startingOffsets", json.dumps(starts)
    )
    return reader.option("columns", ",".join((TOPIC, *ROW_COLUMNS))).load()


class TableQuery:
    def __init__(
        self, spark: SparkSession, tables: Sequence[PlannedTable], *, once: bool, interval_ms: int
    ) -> None:
        """Starts it. Raises MQError, and what Spark raises."""
        self._members = {each.definition.name: each.writer for each in tables}
        self._gone: dict[str, BaseException] = {}
        self._late: dict[str, Future[None]] = {}
        self._ends: dict[str, dict[str, int]] = {}
        self._mutex = threading.Lock()
        self._patience_s = None if once else _PATIENCE_S
        self._pool = ThreadPoolExecutor(_WRITERS, thread_name_prefix="mqspark-table")
        self._folder = tempfile.mkdtemp(prefix="mqspark-tables-")
        try:
            frame = read(spark, tables)
            for each in tables:
                each.writer.make(frame.drop(TOPIC))
            stream = frame.writeStream.foreachBatch(self._batch)
            stream = stream.option("checkpointLocation", Path(self._folder).as_uri())
            stream = stream.queryName(f"mqspark-tables-{Path(self._folder).name}")
            if once:
                stream = stream.trigger(availableNow=True)
            else:
                stream = stream.trigger(processingTime=f"{interval_ms} milliseconds")
            self.query: Any = stream.start()
        except BaseException:
            self._cleared()
            raise

    @property
    def names(self) -> list[str]:
        """The names of the tables that it keeps."""
        with self._mutex:
            return list(self._members)

    def taken_failures(self) -> dict[str, BaseException]:
        """Tables that left the query since the last call, and why."""
        with self._mutex:
            done = [name for name, future in self._late.items() if future.done()]
            for name in done:
                future = self._late.pop(name)
                self._gone[name] = future.exception() or MQError(
                    f"a batch took more than {_PATIENCE_S:.0f} s"
                )
            gone, self._gone = self._gone, {}
            return gone

    def leave(self, name: str) -> None:
        """The table is kept no longer; returns when nothing is written into it any more."""
        with self._mutex:
            writer = self._members.pop(name, None)
        if writer is not None:
            writer.close()

    def stop(self) -> None:
        """Returns when nothing is written any more."""
        self.query.stop()
        for name in self.names:
            self.leave(name)
        self._cleared()

    def _cleared(self) -> None:
        self._pool.shutdown()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _batch(self, rows: DataFrame, number: int) -> None:
        position = _position(self._folder, number)
        ends, begun = _by_topic(position.offsets), _by_topic(position.begun)
        starts = {
            topic: {
                queue: begun.get(topic, {}).get(queue, self._ends.get(topic, {}).get(queue, end))
                for queue, end in queues.items()
            }
            for topic, queues in ends.items()
        }
        self._ends = ends
        with self._mutex:
            writers = [
                writer
                for writer in self._members.values()
                if writer.has_news(starts[writer.definition.topic], ends[writer.definition.topic])
            ]
        if len(writers) == 1:
            self._write(writers[0], rows, starts, ends)
        elif writers:
            self._write_all(writers, rows, starts, ends)

    def _write_all(
        self,
        writers: Sequence[TableWriter],
        rows: DataFrame,
        starts: Mapping[str, dict[str, int]],
        ends: Mapping[str, dict[str, int]],
    ) -> None:
        rows = rows.persist()
        try:
            futures = {
                self._pool.submit(self._write, writer, rows, starts, ends): writer.definition.name
                for writer in writers
            }
            for future in wait(futures, self._patience_s).not_done:
                with self._mutex:
                    if self._members.pop(futures[future], None) is not None:
                        self._late[futures[future]] = future
        finally:
            rows.unpersist()

    def _write(
        self,
        writer: TableWriter,
        rows: DataFrame,
        starts: Mapping[str, dict[str, int]],
        ends: Mapping[str, dict[str, int]],
    ) -> None:
        topic = writer.definition.topic
        try:
            own = rows.where(rows[TOPIC] == topic) if len(ends) > 1 else rows
            writer.write(own.drop(TOPIC), starts[topic], ends[topic])
        except Exception as error:
            # The table's place or its rows are wrong: the table leaves, and its keeper says why.
            with self._mutex:
                if self._members.pop(writer.definition.name, None) is not None:
                    self._gone[writer.definition.name] = error
            writer.close()


def _position(checkpoint: str, number: int) -> Positions:
    """Where a batch ends, of a query over one source. Raises MQError."""
    text = read_bytes(str(Path(checkpoint, "offsets", str(number)))).decode()
    # A version, the batch's settings, and one line a source.
    return Positions.from_json(json.loads(text.splitlines()[2]))


def _by_topic(offsets: Mapping[Any, int]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for queue, offset in offsets.items():
        found.setdefault(queue.topic, {})[f"{queue.broker_name}:{queue.queue_id}"] = offset
    return found
