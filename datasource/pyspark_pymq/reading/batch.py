"""The batch reader: offsets are resolved when Spark plans, and fixed for the life of the DataFrame.

Since Spark 4.1 a ``load()`` is planned once, at its first action: to see newer messages, load again.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from pyspark.sql.datasource import DataSourceReader, InputPartition

from mqspark.arrow.cluster.batchplan import bounded_ranges, read_tasks
from mqspark.arrow.cluster.cluster_queues import ClusterQueues
from mqspark.arrow.cluster.queueranges import QueueRange
from mqspark.arrow.cluster.readtasks import ReadTask, plan_tasks
from pyspark_pymq.options import ReadOptions
from pyspark_pymq.worker_tuning import PickledToTask, begin_task

if TYPE_CHECKING:
    import pyarrow as pa

    from mqspark.arrow.cluster.archives import ArchiveTask

DEFAULT_GROUP = "mqspark-spark-source"
"""The group of pulls when the user named none; its offsets are never committed."""


class Payload(Protocol):
    """Makes the rows of a read of the messages that its partitions have. It is pickled."""

    def rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]: ...


@dataclass
class RangePartition(InputPartition):  # type: ignore[misc]
    task: ReadTask


@dataclass
class ArchivePartition(InputPartition):  # type: ignore[misc]
    task: ArchiveTask


def partitions_of(
    cluster: ClusterQueues, ranges: Sequence[QueueRange], options: ReadOptions, columns: tuple[str, ...]
) -> list[InputPartition]:
    """The ranges as Spark tasks, each with the data that its worker needs; archived ranges come before live ones."""
    partitions: list[InputPartition] = []
    if options.has_spans:
        from pyspark_pymq.taskspans import TaskSpans

        TaskSpans()  # without the API the driver says so, not each task
    if options.lineage_job is not None:
        from pyspark_pymq.lineage import tell_of_task

        tell_of_task(
            options.lineage_job, options.nameserver, reads=sorted({each.queue.topic for each in ranges})
        )
    if cluster.archive is not None:
        from mqspark.arrow.cluster.archives import plan_archive

        archived, ranges = cluster.archive.split(ranges)
        partitions += [ArchivePartition(task) for task in plan_archive(cluster.archive, archived, columns)]
    tasks = plan_tasks(
        ranges,
        cores=os.cpu_count() or 1,
        min_partitions=options.min_partitions,
        max_partitions=options.max_partitions,
        max_rows=options.max_records_per_partition,
    )
    read = read_tasks(cluster, tasks, options, columns, group=DEFAULT_GROUP, has_spans=options.has_spans)
    return partitions + [RangePartition(task) for task in read]


def read_partition(
    partition: InputPartition | None, payload: Payload | None = None
) -> Iterator[pa.RecordBatch]:
    """Runs in a worker. Spark creates a partition of its own if nothing was planned."""
    begin_task()
    return _rows(partition) if payload is None else payload.rows(_rows(partition))


def _rows(partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
    from mqspark.arrow.reading.range_fetch import read_task

    if isinstance(partition, ArchivePartition):
        from mqspark.arrow.cluster.archives import read_archive

        return read_archive(partition.task)

    if not isinstance(partition, RangePartition):
        return iter(())
    task = partition.task
    if not task.has_spans:
        return read_task(task)
    from pyspark_pymq.taskspans import TaskSpans

    return TaskSpans().received(
        read_task(task), sorted({each.queue.topic for each in task.ranges}), task.group
    )


class BatchReader(PickledToTask, DataSourceReader):  # type: ignore[misc]
    def __init__(
        self, options: ReadOptions, columns: tuple[str, ...], payload: Payload | None = None
    ) -> None:
        """``payload``: what makes rows of messages with ``columns`` (payloadFormat)."""
        self._options = options
        self._columns = columns
        self._payload = payload

    def partitions(self) -> list[InputPartition]:
        cluster = ClusterQueues(self._options)
        try:
            ranges = bounded_ranges(cluster, self._options)
            return partitions_of(cluster, ranges, self._options, self._columns)
        finally:
            cluster.client.close()

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        return read_partition(partition, self._payload)
