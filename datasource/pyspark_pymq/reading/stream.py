"""The streaming reader. Spark's checkpoint is authoritative; the group's offset at the broker is a copy of it.

Spark creates one instance in a runner process for the life of a query, and pickles another into the tasks: data
from the runner reaches a task only through its partition. No state here may be needed after a restart (``stop``
is never called).

A batch is finished when ``latestOffset`` gets its end as ``start``; that offset is published as the group's.
``commit`` is called one batch later, and never for the last batch.
"""

from __future__ import annotations

import select
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from mqspark.arrow.cluster.cluster_queues import ClusterQueues
from mqspark.arrow.cluster.queueranges import Offsets
from mqspark.base.logs import escaping
from mqspark.client.remoting.blockingconnection import BlockingConnection
from mqspark.errors import ConfigError, ConnectionLost, NoRoute
from mqspark.message import MessageQueue
from mqspark.protocol.codes import RequestCode
from pyspark_pymq.options import ReadOptions
from pyspark_pymq.reading.batch import Payload, partitions_of, read_partition
from pyspark_pymq.reading.stream_offsets import Positions, batch_ranges, limit_rows
from pyspark_pymq.worker_tuning import PickledToTask

if TYPE_CHECKING:
    import pyarrow as pa

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )
except ImportError:  # Spark 4.1: no admission control, one batch takes everything
    ADMISSION_CONTROL = False
else:
    ADMISSION_CONTROL = True

log = escaping("pyspark_pymq")

_PARKED_PULL_MS = 15_000
_MAX_PARKED_PULLS = 512
"""With more queues than this an idle query sleeps instead of parking a pull for each."""


class CheckpointedStreamReader(PickledToTask, DataSourceStreamReader):  # type: ignore[misc]
    """Everything except ``latestOffset``, which differs by Spark version."""

    def __init__(
        self, options: ReadOptions, columns: tuple[str, ...], payload: Payload | None = None
    ) -> None:
        """``payload``: what makes rows of messages with ``columns`` (payloadFormat)."""
        self._options = options
        self._columns = columns
        self._payload = payload
        self.connected: ClusterQueues | None = None
        self._arrivals: _Arrivals | None = None
        self._initial: Positions | None = None
        self._target: Offsets | None = None
        """The end of an AvailableNow run."""
        self._late_target = False
        self._asked = False
        self._begun_at = time.monotonic()
        """The start of the last batch; minOffsetsPerTrigger waits from then on."""
        self._seen: Offsets = {}
        self._published: Offsets = {}

    @property
    def _cluster(self) -> ClusterQueues:
        if self.connected is None:
            self.connected = ClusterQueues(self._options)
            self._arrivals = _Arrivals(self.connected)
        return self.connected

    def initialOffset(self) -> dict[str, Any]:
        """Called twice for a new query and again after a crash in batch 0. The answer of this process never
        changes, and the authoritative one is stored in the end of batch 0 (``pyspark_pymq.reading.stream_offsets``)."""
        if self._initial is None:
            start = self._cluster.starting(self._cluster.queues())
            self._initial = Positions(start, begun=start)
        return self._initial.to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        start_of, end_of = Positions.from_json(start), Positions.from_json(end)
        ranges = batch_ranges(start_of, end_of)
        self._cluster.has_begun((*start_of.offsets, *end_of.offsets))
        return partitions_of(
            self._cluster, self._cluster.check_not_expired(ranges), self._options, self._columns
        )

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        return read_partition(partition, self._payload)

    def commit(self, end: dict[str, Any]) -> None:
        self._cluster.publish(Positions.from_json(end).offsets, self._published)

    def stop(self) -> None:
        if self.connected is not None:
            self.connected.client.close()

    def _next(self, start: dict[str, Any], max_rows: int | None, *, limited: bool = True) -> dict[str, Any]:
        """The end of the next batch; if there is none, ``start`` itself, with identical text.

        ``limited``: applies the limits by bytes and the minimum number of rows, which Trigger.Once ignores.
        """
        position = Positions.from_json(start)
        self._cluster.has_begun(position.offsets)
        if not self._asked:
            self._check_selected(position)
        if self._late_target:
            self._target, self._late_target = self._cluster.ends(), False
        self._cluster.publish(position.offsets, self._published)
        following = self._wanted(position, max_rows, limited=limited)
        # The first batch is recorded at once, even if empty, so that its start survives a crash.
        is_first, self._asked = not self._asked, True
        if following is None and not is_first and self._target is None and self._arrivals is not None:
            queues = self._cluster.queues()
            waiting_s = self._options.poll_timeout_ms / 1000
            if self._backlog(position):
                time.sleep(min(waiting_s, self._patience_s()))
            else:
                # A slave that has not copied what was read would answer at once.
                there = {
                    queue: address
                    for queue, address in queues.items()
                    if self._seen.get(queue, 0) >= position.offsets.get(queue, 0)
                }
                self._arrivals.wait(there, position.offsets, waiting_s)
            following = self._wanted(position, max_rows, limited=limited)
        if following is None:
            return start
        self._begun_at = time.monotonic()
        return following.to_json()

    def _check_selected(self, position: Positions) -> None:
        """Raises DataLoss for a checkpoint with topics that the options do not select: another query's, as a rule."""
        selected = self._options.topics.selects
        for topic in sorted({queue.topic for queue in position.offsets}):
            if not selected(topic):
                self._cluster.lost(
                    f"the checkpoint has the progress of topic {topic!r}, which this query does not read; each query "
                    "needs a checkpointLocation of its own"
                )

    def _wanted(self, start: Positions, max_rows: int | None, *, limited: bool) -> Positions | None:
        """``_advanced``, unless there are fewer rows than minOffsetsPerTrigger and they may wait."""
        options = self._options
        if limited and options.max_bytes_per_trigger is not None:
            bytes_rows = self._rows_in(start, options.max_bytes_per_trigger)
            max_rows = bytes_rows if max_rows is None else min(max_rows, bytes_rows)
        following = self._advanced(start, max_rows)
        least = options.min_offsets_per_trigger
        if following is None or not limited or least is None or self._target is not None or not self._asked:
            return following
        return following if self._backlog(start) >= least or self._patience_s() <= 0 else None

    def _patience_s(self) -> float:
        return self._begun_at + self._options.max_trigger_delay_ms / 1000 - time.monotonic()

    def _backlog(self, start: Positions) -> int:
        """The number of messages after ``start``, as far as ``_advanced`` saw."""
        begin = {queue: start.offsets.get(queue, end) for queue, end in self._seen.items()}
        seen = self._cluster.without_gaps(begin, self._seen)
        return sum(max(0, end - begin[queue]) for queue, end in seen.items())

    def _rows_in(self, start: Positions, max_bytes: int) -> int:
        """About how many of the next messages amount to this many bytes, estimated from the next few of each
        queue."""
        queues = self._cluster.queues()
        waiting = {q: offset for q, offset in start.offsets.items() if q in queues}
        mean = self._cluster.mean_record_bytes(self._readable(waiting))
        return max(1, int(max_bytes // mean)) if mean else max_bytes

    def _advanced(self, start: Positions, max_rows: int | None) -> Positions | None:
        """``start``, advanced as far as there are messages and the limit allows; None if there are none."""
        cluster = self._cluster
        latest = dict(self._target) if self._target is not None else cluster.ends()
        queues = cluster.queues()
        self._seen = latest
        begun = dict(start.begun) if start.begun == start.offsets else {}
        offsets = dict(start.offsets)
        fresh = {queue: queues[queue] for queue in latest if queue not in offsets and queue in queues}
        restarted = self._made_anew(offsets, latest, queues)
        if fresh or restarted:
            first = cluster.earliest(fresh | restarted)
            offsets |= first
            begun |= first
        # A queue that is not listed (its broker is down) keeps its offset and is read when it is back.
        ends = offsets | {
            queue: max(offset, offsets[queue]) for queue, offset in latest.items() if queue in offsets
        }
        if max_rows is not None and sum(ends.values()) - sum(offsets.values()) > max_rows:
            readable = self._readable(offsets)
            begin = {queue: min(readable[queue], end) for queue, end in ends.items()}
            dense = limit_rows(begin, cluster.without_gaps(begin, ends), max_rows)
            ends = cluster.with_gaps(begin, dense, ends)
        if ends == start.offsets:
            return None
        return Positions(ends, begun)

    def _readable(self, offsets: Offsets) -> Offsets:
        """``offsets``, advanced to the first message of each queue where expired ones are passed over: a limit
        counts what is read."""
        if self._options.fail_on_data_loss:
            return offsets
        queues = self._cluster.queues()
        first = self._cluster.earliest({queue: queues[queue] for queue in offsets if queue in queues})
        return {queue: max(offset, first.get(queue, offset)) for queue, offset in offsets.items()}

    def _made_anew(
        self, offsets: Offsets, latest: Offsets, queues: Mapping[MessageQueue, str]
    ) -> dict[MessageQueue, str]:
        """Queues that end before what the query has read. A recreated topic that has grown past that is not
        detected, because the protocol does not distinguish it from the old one. Raises DataLoss under
        failOnDataLoss."""
        # The target of an AvailableNow run may be older than a start at "latest".
        behind = {q: queues[q] for q in queues if q in offsets and latest.get(q, offsets[q]) < offsets[q]}
        ends = self._cluster.ends_at_masters(behind) if behind else {}
        restarted = {queue: behind[queue] for queue, end in ends.items() if end < offsets[queue]}
        for queue in restarted:
            self._cluster.lost(
                f"queue {queue.queue_id} of topic {queue.topic} on {queue.broker_name} ends at {ends[queue]}, "
                f"before offset {offsets[queue]} that the query has read: the topic was deleted and created again"
            )
        return restarted


class _Arrivals:
    """Waits for new messages with pulls parked at the brokers instead of polling."""

    def __init__(self, cluster: ClusterQueues) -> None:
        self._cluster = cluster
        self._parked: dict[MessageQueue, tuple[BlockingConnection, int]] = {}

    def wait(self, queues: Mapping[MessageQueue, str], offsets: Offsets, timeout_s: float) -> None:
        """Returns when a queue has a message at its offset, or when the time is over."""
        if timeout_s <= 0:
            return
        if not queues or len(queues) > _MAX_PARKED_PULLS:
            time.sleep(timeout_s)
            return
        try:
            self._park(queues, offsets)
            self._wait(timeout_s)
        except ConnectionLost:
            # The next request of the query reconnects, or reports that it cannot.
            self._parked.clear()
            time.sleep(min(timeout_s, 0.2))

    def _park(self, queues: Mapping[MessageQueue, str], offsets: Offsets) -> None:
        for queue in queues:
            if queue not in offsets:
                continue
            address, header = self._cluster.pull_of(
                queue, offsets[queue], max_messages=1, suspend_ms=_PARKED_PULL_MS
            )
            connection = self._cluster.client.connection(address)
            parked = self._parked.get(queue)
            if parked is None or parked[0] is not connection:
                self._parked[queue] = connection, connection.send(RequestCode.PULL_MESSAGE, header)

    def _wait(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while True:
            connections = {parked[0] for parked in self._parked.values()}
            answered = False
            for connection in connections:
                connection.receive_ready()
                opaques = [opaque for other, opaque in self._parked.values() if other is connection]
                done = connection.poll(opaques, 0)
                if done:
                    answered = True
                    self._parked = {
                        queue: parked
                        for queue, parked in self._parked.items()
                        if parked[0] is not connection or parked[1] not in done
                    }
            left = deadline - time.monotonic()
            if answered or left <= 0 or not connections:
                return
            select.select(list(connections), [], [], left)


if ADMISSION_CONTROL:

    class StreamReader(CheckpointedStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
        """For Spark 4.2 and later."""

        def getDefaultReadLimit(self) -> ReadLimit:
            options = self._options
            if options.max_offsets_per_trigger is not None:
                return ReadMaxRows(options.max_offsets_per_trigger)
            if options.max_bytes_per_trigger is not None:
                return ReadMaxBytes(options.max_bytes_per_trigger)
            if options.min_offsets_per_trigger is not None:
                return ReadMinRows(options.min_offsets_per_trigger)
            return ReadAllAvailable()

        def prepareForTriggerAvailableNow(self) -> None:
            try:
                self._target = self._cluster.ends()
            except (NoRoute, ConfigError):
                # Whether a queue is misspelled, was deleted or is away becomes known when Spark passes the query's
                # offset.
                self._late_target = True

        def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
            # Trigger.Once takes everything in one batch whatever the options say, and passes ReadAllAvailable.
            if isinstance(limit, ReadAllAvailable):
                return self._next(start, None, limited=False)
            return self._next(start, limit.max_rows if isinstance(limit, ReadMaxRows) else None)

        def reportLatestOffset(self) -> dict[str, Any] | None:
            """The brokers' latest offsets; in the progress, ``latestOffset`` minus ``endOffset`` is the backlog."""
            return Positions(self._seen).to_json() if self._seen else None


class LegacyStreamReader(CheckpointedStreamReader):
    """For Spark 4.1, whose ``latestOffset`` does not get the query's offset."""

    def __init__(
        self, options: ReadOptions, columns: tuple[str, ...], payload: Payload | None = None
    ) -> None:
        super().__init__(options, columns, payload)
        limits = {
            "maxOffsetsPerTrigger": options.max_offsets_per_trigger,
            "minOffsetsPerTrigger": options.min_offsets_per_trigger,
            "maxBytesPerTrigger": options.max_bytes_per_trigger,
        }
        given = ", ".join(name for name, value in limits.items() if value is not None)
        if given:
            log.warning(
                "%s: Spark 4.1 does not ask for limits: the first batch of a run, and each run of AvailableNow, takes "
                "everything; Spark 4.2 applies them",
                given,
            )
        self._last: Positions | None = None
        self._begins = False
        """Spark has called initialOffset: no batch of this query is finished."""

    def initialOffset(self) -> dict[str, Any]:
        self._begins = True
        return super().initialOffset()

    def latestOffset(self) -> dict[str, Any]:
        cluster = self._cluster
        if self._last is not None:
            return self._next(self._last.to_json(), self._options.max_offsets_per_trigger)
        # Either a new query, whose start must be in the end of its first batch, or one that resumes from its
        # checkpoint and ignores this start; ``partitions`` knows which.
        start = Positions.from_json(super().initialOffset()).offsets
        latest = cluster.latest(cluster.queues())
        offsets = {queue: max(end, start.get(queue, end)) for queue, end in latest.items()}
        return Positions(offsets, {queue: start.get(queue, end) for queue, end in offsets.items()}).to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begin, until = Positions.from_json(start), Positions.from_json(end)
        begun = until.begun
        if begun.keys() == until.offsets.keys() and not (self._begins and begin == self._initial):
            begun = {}  # it resumes from a checkpoint
        queues = self._cluster.queues()
        fresh = {
            queue: queues[queue]
            for queue in until.offsets
            if queue not in begin.offsets and queue not in begun and queue in queues
        }
        until = Positions(until.offsets, self._cluster.earliest(fresh) | begun if fresh else begun)
        self._last = Positions.from_json(end)
        return super().partitions(start, until.to_json())


class RefusedStreamReader(DataSourceStreamReader):  # type: ignore[misc]
    """The reader of a stream that cannot start: Spark's first call raises the reason.

    When ``streamReader`` itself raises, Spark's runner fails on its own unset variable, and that is the last error
    that the user sees.
    """

    def __init__(self, reason: Exception) -> None:
        self._reason = reason

    def _refuse(self, *_: object) -> NoReturn:
        raise self._reason

    initialOffset = latestOffset = getDefaultReadLimit = partitions = read = _refuse

    def stop(self) -> None:
        """Does nothing: nothing was opened."""


def stream_reader(
    options: ReadOptions, columns: tuple[str, ...], payload: Payload | None = None
) -> CheckpointedStreamReader:
    """The reader for the installed Spark."""
    kind = StreamReader if ADMISSION_CONTROL else LegacyStreamReader
    return kind(options, columns, payload)
