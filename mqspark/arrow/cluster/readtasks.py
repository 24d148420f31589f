"""Assigns ranges of queues to input partitions. Pure functions.

A task has a fixed cost of 10 to 35 ms, so a small batch runs as one task, a larger one as about one task per
core, and only very large ones as more. A queue's rows stay in one task, in order, unless minPartitions asks for
more tasks than there are queues.

Must not import pyarrow or the store: the driver's processes plan, and the imports would slow down the start of
each.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mqspark.arrow.cluster.queuechoice import RETRY_TIMEOUT_MS
from mqspark.arrow.cluster.queueranges import LogicPlace, QueueRange
from mqspark.arrow.signing import ENVIRONMENT, SigningOptions
from mqspark.message import MessageQueue
from mqspark.record.compression import LIMITS, InflateLimits

if TYPE_CHECKING:
    from mqspark.arrow.cluster.cluster_queues import BrokerPlace

SMALL_TASK_ROWS = 10_000
"""Below this number of rows another task costs more than it saves."""

LARGE_TASK_ROWS = 2_000_000
"""Above this number of rows there are more tasks than cores: a failed task has less to repeat, and a cluster has
more cores than its driver."""

BATCH_ROWS = 65_536
BATCH_BYTES = 1 << 20
"""The target size of a RecordBatch. Sizes from 256 KiB to 4 MiB are all near the optimum."""

LOG_BYTES = 2 * BATCH_BYTES
"""Bytes of log for one batch: about half of a small record is header and properties."""


@dataclass(frozen=True, slots=True)
class ReadTask:
    """Everything a worker needs; pickled into the input partition."""

    ranges: tuple[QueueRange, ...]
    places: dict[str, BrokerPlace]
    """Broker name to its place."""
    columns: tuple[str, ...]
    tags: tuple[str, ...]
    group: str
    fail_on_data_loss: bool
    sql_filter: str | None = None
    """Evaluated by the broker, so such a read is never in place."""
    limits: InflateLimits = LIMITS
    retry_timeout_ms: int = RETRY_TIMEOUT_MS
    """How long a broker may be away."""
    signing: SigningOptions = ENVIRONMENT
    logic: Mapping[MessageQueue, LogicPlace] = field(default_factory=dict)
    """The static topics, whose ranges are those of physical queues: what the rows show instead."""
    has_spans: bool = False
    """Whether the task is a span of OpenTelemetry."""
    nameserver: str = ""
    """Finds the present master of a broker; without it a task pulls from ``places`` alone."""


def plan_tasks(
    ranges: Sequence[QueueRange],
    *,
    cores: int,
    min_partitions: int | None = None,
    max_partitions: int | None = None,
    max_rows: int | None = None,
) -> list[list[QueueRange]]:
    """Puts every range into exactly one task; without ranges there is no task. ``max_rows``: the limit of rows
    per task (maxRecordsPerPartition)."""
    work = [each for each in ranges if each.rows > 0]
    if not work:
        return []
    total = sum(each.rows for each in work)
    wanted = min(_ceil(total, SMALL_TASK_ROWS), max(cores, _ceil(total, LARGE_TASK_ROWS)))
    if max_rows is not None:
        work = [piece for each in work for piece in _pieces(each, _ceil(each.rows, max_rows))]
    if min_partitions is not None:
        wanted = max(wanted, min_partitions)
        if wanted > len(work):
            work = _split(work, wanted, total)
    if max_partitions is not None:
        wanted = min(wanted, max_partitions)
    tasks = _pack(work, min(wanted, len(work)))
    if max_rows is not None:
        tasks = [part for task in tasks for part in _bounded(task, max_rows)]
    return tasks


def _bounded(task: Sequence[QueueRange], max_rows: int) -> list[list[QueueRange]]:
    """The task, split into several if it has too many rows. No single range exceeds the limit."""
    parts: list[list[QueueRange]] = []
    room = 0
    for each in task:
        if each.rows > room:
            parts.append([])
            room = max_rows
        parts[-1].append(each)
        room -= each.rows
    return parts


def _pieces(each: QueueRange, count: int) -> list[QueueRange]:
    cuts = [each.start + each.rows * index // count for index in range(count + 1)]
    return [QueueRange(each.queue, a, b) for a, b in itertools.pairwise(cuts)]


def _split(work: Sequence[QueueRange], wanted: int, total: int) -> list[QueueRange]:
    """Cuts large ranges so that about ``wanted`` pieces of similar size result."""
    pieces = []
    for each in work:
        count = max(1, min(each.rows, round(wanted * each.rows / total)))
        pieces += _pieces(each, count)
    while len(pieces) < wanted:
        largest = max(pieces, key=lambda piece: piece.rows)
        if largest.rows < 2:
            break
        middle = largest.start + largest.rows // 2
        pieces.remove(largest)
        pieces += [
            QueueRange(largest.queue, largest.start, middle),
            QueueRange(largest.queue, middle, largest.end),
        ]
    return sorted(pieces)


def _pack(work: Sequence[QueueRange], count: int) -> list[list[QueueRange]]:
    """``count`` tasks of similar size: the largest range goes to the emptiest task; ties are resolved by order."""
    tasks: list[list[QueueRange]] = [[] for _ in range(count)]
    emptiest = [(0, index) for index in range(count)]
    for each in sorted(work, key=lambda each: (-each.rows, each.queue, each.start)):
        rows, index = heapq.heappop(emptiest)
        tasks[index].append(each)
        heapq.heappush(emptiest, (rows + each.rows, index))
    return [sorted(task) for task in tasks if task]


def _ceil(value: int, unit: int) -> int:
    return -(-value // unit)
