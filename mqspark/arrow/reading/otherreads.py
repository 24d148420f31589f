"""Tables beside topics: the records of a store, the dead letters and the lag of a group. Must not know Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Unpack

import pyarrow as pa

from mqspark.arrow.cluster.cluster_queues import ClusterQueues
from mqspark.arrow.cluster.queuechoice import StoreChoice
from mqspark.arrow.cluster.readtasks import BATCH_BYTES, BATCH_ROWS
from mqspark.arrow.messagecolumns import STORE_COLUMNS, arrow_schema, default_columns, named_columns
from mqspark.arrow.reading.segmentread import read_segment, segments_of
from mqspark.arrow.reading.topicread import (
    LEAST_BATCH_BYTES,
    ReadChoices,
    TopicRead,
    check_number,
    within_limits,
)
from mqspark.errors import ConfigError
from mqspark.message import dlq_topic
from mqspark.record.compression import LIMITS


def store(
    directory: str,
    *,
    columns: Sequence[str] | None = None,
    topics: Sequence[str] = (),
    broker: str = "",
    commit_log: str | None = None,
    start: int = 0,
    end: int | None = None,
    fail_on_data_loss: bool = True,
    batch_rows: int = BATCH_ROWS,
    batch_bytes: int = BATCH_BYTES,
) -> pa.RecordBatchReader:
    """The records of a CommitLog, without a broker: one row each, in the log's order.

    ``directory``: storePathRootDir, or any fsspec URL of a copy of it. ``start``, ``end``: physical offsets at which
    records begin. ``broker``: the value of that column.

    >>> mqspark.arrow.store("/var/lib/mqspark/store", columns=["topic", "physicalOffset"]).read_all()

    Raises ConfigError; while rows are read also StoreCorrupt for damage, which ``fail_on_data_loss=False`` steps over.
    """
    if isinstance(topics, str) or not all(isinstance(topic, str) for topic in topics):
        raise ConfigError.of("topics", "a list of names")
    for name, position in (("start", start), ("end", 0 if end is None else end)):
        if isinstance(position, bool) or not isinstance(position, int) or position < 0:
            raise ConfigError.of(name, f"a physical offset, not {position!r}")
    check_number("batch_rows", batch_rows, 1)
    check_number("batch_bytes", batch_bytes, LEAST_BATCH_BYTES)
    default = default_columns(*STORE_COLUMNS)
    chosen = default if columns is None else named_columns(columns, default)
    choice = StoreChoice(
        log=commit_log or f"{directory.rstrip('/')}/commitlog",
        topics=tuple(topics),
        broker=broker,
        starting_position=start,
        ending_position=end,
        fail_on_data_loss=fail_on_data_loss,
        limits=LIMITS,
    )
    segments = segments_of(choice)
    batches: Iterator[pa.RecordBatch] = (
        batch for each in segments for batch in read_segment(each, choice, chosen)
    )
    return pa.RecordBatchReader.from_batches(
        arrow_schema(chosen), within_limits(batches, batch_rows, batch_bytes)
    )


def dead_letters(nameserver: str, of_group: str, /, **choices: Unpack[ReadChoices]) -> pa.RecordBatchReader:
    """The messages that a group has given up, with their properties, which tell topic and message id of the original.
    The keywords are those of ``read``. Raises NoSuchTopic for a group that has none."""
    choices.setdefault("columns", ("*", "properties", "reconsumeTimes"))
    return TopicRead(nameserver, dlq_topic(of_group), **choices).reader()


def lag(nameserver: str, group: str, topic: str | Sequence[str]) -> pa.Table:
    """For each queue of the topics where the group is, where the queue ends, and how many messages are between. A queue
    that the group has never read has no ``offset``, and ``lag`` counts from its first message."""
    cluster = ClusterQueues(TopicRead(nameserver, topic, group=group).choice)
    with closing(cluster.client):
        queues = cluster.queues()
        first, end, committed = cluster.earliest(queues), cluster.latest(queues), cluster.committed(queues)
    rows = [
        {
            "topic": queue.topic,
            "broker": queue.broker_name,
            "partition": queue.queue_id,
            "offset": committed.get(queue),
            "end": end[queue],
            "lag": max(0, end[queue] - max(first[queue], committed.get(queue, first[queue]))),
        }
        for queue in queues
    ]
    return pa.Table.from_pylist(rows, schema=_LAG)


_LAG = pa.schema(
    {
        "topic": pa.string(),
        "broker": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "end": pa.int64(),
        "lag": pa.int64(),
    }
)
