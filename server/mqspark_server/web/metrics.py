"""Prometheus metrics under the names of RocketMQ 5 (BrokerMetricsConstant, DefaultStoreMetricsConstant,
PopMetricsConstant).

Values are read from the broker on request; hot paths do not know about metrics. Labels as in RocketMQ's exporter:
cluster, node_type, node_id, and topic, consumer_group, is_system, is_retry, language ... where they apply.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import Metric
from prometheus_client.samples import Sample

from mqspark.protocol.slices import Work
from mqspark_server.web.families import (
    NODE,
    OTHER,
    SERIES_AT_ONCE,
    Families,
    exposition,
    exposition_in_slices,
    extension_calls,
)
from mqspark_server.web.trafficmetrics import (
    client_metrics,
    consumer_metrics,
    request_metrics,
    traffic,
    transaction_metrics,
)

if TYPE_CHECKING:
    from mqspark.broker.broker import BrokerCore
    from mqspark.store.store import MessageStore
    from mqspark.store.upkeep.compactduty import CompactDuty
    from mqspark_server.net.grpc.grpccounts import GrpcCounts
    from mqspark_server.node import BrokerNode, BrokerParts
    from mqspark_server.tiered.archivetier import ArchivedMessages

COMPARED_AT_ONCE = 1_024
"""Series that are compared or summed up in one slice."""

_STORAGE = {"storage_type": "local", "storage_medium": "disk"}
"""Labels that RocketMQ gives the metrics of its store (DefaultStoreMetricsManager)."""


def render(app: BrokerNode) -> Work[bytes]:
    """The exposition text; its families are sampled at slightly different times. Must run on the broker's loop.

    Of a family with more than ``metricsMaxSeries`` series the largest are kept, and one more has the sum of the
    others, because peers choose names and must not make the text or its reader's memory grow.
    """
    parts: list[bytes] = []
    limit, over = app.settings.server.metrics_max_series, 0
    collector = _BrokerMetrics(app)
    for metric in collector.collect():
        if metric is not None:
            over += yield from _limit(metric, limit)
            parts.append((yield from exposition_in_slices(metric)))
            yield from _let_go(metric.samples)
        yield
    parts.append(exposition(collector.limits(limit, over)))
    return b"".join(parts)


def _limit(metric: Metric, limit: int) -> Work[int]:
    """The number of series that were summed up."""
    samples = metric.samples
    if len(samples) <= limit:
        return 0
    if metric.type == "histogram":
        return (yield from _limit_histogram(metric, limit))
    kept = yield from _largest((sample.value for sample in samples), limit)
    left_out = 0.0
    for number, sample in enumerate(samples, 1):
        left_out += sample.value
        if number % COMPARED_AT_ONCE == 0:
            yield
    rest = left_out - sum(samples[number].value for number in kept)
    first = samples[0]
    labels = {name: value if name in NODE else OTHER for name, value in first.labels.items()}
    count = len(samples)
    metric.samples = [*(samples[number] for number in kept), Sample(first.name, labels, max(0.0, rest))]
    yield from _let_go(samples)
    return count - limit


def _let_go(samples: list[Sample]) -> Work[None]:
    """Free what nobody needs any more. Very many at once take milliseconds."""
    while samples:
        del samples[-COMPARED_AT_ONCE:]
        yield


def _largest(values: Iterable[float], limit: int) -> Work[list[int]]:
    """The numbers of the largest values, the largest first."""
    heap: list[tuple[float, int]] = []
    for number, value in enumerate(values):
        if len(heap) < limit:
            heapq.heappush(heap, (value, -number))
        elif value > heap[0][0]:
            heapq.heapreplace(heap, (value, -number))
        if number % COMPARED_AT_ONCE == COMPARED_AT_ONCE - 1:
            yield
    return [-number for _, number in sorted(heap, reverse=True)]


def _limit_histogram(metric: Metric, limit: int) -> Work[int]:
    """As ``_limit``: of the histograms of a family those with most values are kept."""
    of_labels: dict[tuple[tuple[str, str], ...], list[Sample]] = {}
    for number, sample in enumerate(metric.samples, 1):
        key = tuple(item for item in sample.labels.items() if item[0] != "le")
        of_labels.setdefault(key, []).append(sample)
        if number % COMPARED_AT_ONCE == 0:
            yield
    series = list(of_labels.values())
    each = len(series[0])
    kept = yield from _largest((samples[-2].value for samples in series), max(1, limit // each))
    are_kept = set(kept)
    rest = [samples for number, samples in enumerate(series) if number not in are_kept]
    if not rest:
        return 0
    summed: list[Sample] = []
    for number, first in enumerate(rest[0]):
        labels = {name: value if name in (*NODE, "le") else OTHER for name, value in first.labels.items()}
        summed.append(Sample(first.name, labels, sum(samples[number].value for samples in rest)))
        yield
    metric.samples = [*(sample for number in kept for sample in series[number]), *summed]
    return len(rest) * each


class _BrokerMetrics:
    def __init__(self, app: BrokerNode) -> None:
        self._app = app
        node = (app.config.broker_cluster_name, "broker", app.config.broker_name)
        self._rocketmq, self._own = Families(node), Families(node, prefix="mqspark_")

    def collect(self) -> Iterator[Metric | None]:
        """None where other work may run before the next."""
        yield self._rocketmq.level("broker_ready", "1 if the broker is serving", self._app.lifecycle.ready)
        parts = self._app.parts
        if parts is None:
            return
        yield from self._remoting(parts)
        if self._app.grpc_counts is not None:
            yield from self._grpc(self._app.grpc_counts())
        if self._app.lifecycle.ready:
            core = parts.core
            yield from self._tables(core)
            families = self._rocketmq
            yield from traffic(core, families)
            yield from request_metrics(core, families)
            yield from transaction_metrics(core, families)
            yield from consumer_metrics(core.state, families, self._app.clock.now_ms())
            yield from client_metrics(core.state.clients, families)
            yield from self._storage(core)
            yield from self._waiting(core)
            yield from self._timers(core)
            yield from self._pop(core)
            yield from self._compaction(core.store.upkeep.compact_duty)
            if parts.archived is not None:
                yield from self._archived(parts.archived)

    def limits(self, limit: int, over: int) -> list[Metric]:
        return [
            self._rocketmq.level(
                "metrics_max_series", "limit of series per family (metricsMaxSeries)", limit
            ),
            self._rocketmq.level(
                "metrics_series_put_together", f"series summed up in those of {OTHER}", over
            ),
        ]

    def _remoting(self, parts: BrokerParts) -> Iterator[Metric]:
        server = parts.server
        counts = server.counts
        yield self._rocketmq.level("remoting_connections", "open connections", server.connections)
        text = "connections refused because of a limit"
        yield self._rocketmq.count("remoting_connections_refused", text, counts.refused)
        refused = parts.slaves.refused_connections
        text = "connections to haListenPort that were refused, or closed before they reported a position"
        yield self._rocketmq.count("replication_connections_refused", text, refused)
        text = "connections closed for unread answers or incomplete frames"
        yield self._rocketmq.count("remoting_connections_dropped", text, counts.dropped)
        text = "bytes of answers that peers have not read yet"
        yield self._rocketmq.level("remoting_unsent_bytes", text, server.unread.budget.total)
        text = "from the write of a group of messages to the end of its sync"
        yield self._own.spread("fsync_duration_seconds", text, parts.flusher.sync_times)
        text = "how much later than due the event loop runs its timers"
        yield self._own.spread("loop_lag_seconds", text, server.lags)
        text = "connections closed for malformed frames"
        yield self._rocketmq.count("remoting_protocol_errors", text, counts.malformed)
        text = "requests refused because they waited too long"
        yield self._rocketmq.count(
            "remoting_requests_refused", text, parts.core.requests.overload.refused_count
        )

    def _grpc(self, counts: GrpcCounts) -> Iterator[Metric]:
        yield self._rocketmq.level("grpc_connections", "open connections of gRPC", counts.connections)
        text = "calls of gRPC that are served now; those that wait for messages count"
        yield self._rocketmq.level("grpc_calls_open", text, counts.calls)
        yield self._rocketmq.level("grpc_clients", "clients of gRPC that are known", counts.clients)
        yield self._rocketmq.count("grpc_calls", "calls of gRPC that have begun", counts.begun_calls)
        text = "connections of gRPC refused because of a limit"
        yield self._rocketmq.count("grpc_connections_refused", text, counts.refused)
        text = "connections of gRPC closed for what they hold"
        yield self._rocketmq.count("grpc_connections_dropped", text, counts.dropped)
        text = "connections of gRPC closed for what they sent"
        yield self._rocketmq.count("grpc_protocol_errors", text, counts.malformed)

    def _tables(self, core: BrokerCore) -> Iterator[Metric]:
        """Tables that peers can make grow."""
        own = self._own
        size = own.gauge("table_bytes", "estimated bytes of a table or cache", "table")
        bound = own.gauge("table_bound_bytes", "limit of these bytes", "table")
        entries = own.gauge("table_entries", "entries of a table or cache", "table")
        refused = own.counter("table_refused", "entries refused because the table was full", "table")
        for table in core.tables:
            of_table = (*own.node, table.name)
            size.add_metric(of_table, table.bytes)
            bound.add_metric(of_table, table.bound)
            entries.add_metric(of_table, table.entries)
            refused.add_metric(of_table, table.refused)
        yield from (size, bound, entries, refused)
        budget = core.bounds.budget
        yield self._own.level("tables_bytes", "estimated bytes of all tables", budget.bytes)
        yield self._own.level("tables_bound_bytes", "limit of these bytes", budget.bound)
        text = "entries refused because all tables together were too large"
        yield self._own.count("tables_refused", text, budget.refused)
        if core.decisions is not None:
            decisions = dict(sorted(core.decisions.items()))
            yield own.counts("auth_decisions", "requests by decision", "decision", decisions)
            text = "entries refused because their user has used up its share"
            refusals = {share.kind: share.refused for share in core.shares}
            yield own.counts("user_share_refused", text, "kind", refusals)
        yield from extension_calls(core.extensions, own)

    def _storage(self, core: BrokerCore) -> Iterator[Metric]:
        """The log, the index, disks and damage."""
        store, log, status, level = core.store, core.store.log, core.store.status, self._rocketmq.level
        text = "bytes between the start and the end of the log"
        yield self._stored("storage_size_bytes", text, log.position - log.min_offset)
        text = "bytes that are not synced yet"
        yield self._stored("storage_flush_behind_bytes", text, log.position - log.durable)
        yield self._stored("storage_dispatch_behind_bytes", "bytes not yet in a queue", 0)
        text = "ms since the oldest message was stored"
        yield self._stored("storage_message_reserve_time_milliseconds", text, self._reserve_time_ms(store))
        text = "1 when the store accepts no writes"
        yield level("storage_read_only", text, store.condition.read_only is not None)
        text = "1 while a part of the store cannot be read"
        yield level("storage_unreadable", text, status.read_problem is not None)
        text = "1 while new messages cannot be found by key"
        yield level("storage_index_problem", text, status.index_problem is not None)
        text = "bytes of the log whose messages cannot be found by key yet"
        yield level("storage_index_behind_bytes", text, status.index_behind_bytes)
        text = "of the fullest disk that the store is on, when last measured"
        yield level("storage_disk_used_percent", text, status.disk_used_percent)
        text = "1 while messages are refused because the disk is full"
        yield level("storage_disk_full", text, status.disk_full is not None)
        text = "segments of the log deleted since the start"
        yield level("storage_deleted_segments", text, status.deleted_segments)
        text = "records skipped because they do not match their queue entry"
        yield level("storage_damaged_reads", text, status.damaged_reads)
        text = "damaged places of the log that are not healed; /health/ready lists them"
        yield level("storage_damaged_places", text, len(status.damaged_offsets))
        text = "bytes of the log that hold no valid record now"
        yield level("storage_damaged_bytes", text, store.log_damage.damaged_bytes)
        damage = self._rocketmq.gauge(
            "storage_damage", "damage found since the start; /health/ready lists it", "kind", "outcome"
        )
        for (kind, outcome), count in sorted(store.damages.counts.items()):
            damage.add_metric((*self._rocketmq.node, kind, outcome), count)
        yield damage

    def _waiting(self, core: BrokerCore) -> Iterator[Metric]:
        """Requests that wait, and replicas."""
        follower, level = core.role.follower, self._rocketmq.level
        text = "1 while sends are refused; /health/ready says why"
        yield level("sends_refused", text, core.sends_refused is not None)
        yield level("send_waiting", "sends that wait for their flush", len(core.acks))
        yield level("pull_waiting", "pulls that wait for messages", core.pulls.parked.count)
        yield level("slaves_in_sync", "slaves that are in sync", core.role.replicas.in_sync - 1)
        text = "bytes of its master's log that a slave lacks; 0 on a master"
        yield level("slave_behind_bytes", text, 0 if follower is None else follower.behind_bytes)
        text = "1 while a slave follows no master, because the logs of both differ where neither may be cut"
        refuses = follower is not None and follower.refused_since_ms is not None
        yield level("replica_refuses_cut", text, refuses)
        text = "1 while this replica is no member of its set, because its log cannot be trusted"
        yield level("replica_damaged", text, bool(core.store.member.damage))

    def _compaction(self, duty: CompactDuty) -> Iterator[Metric]:
        yield self._own.count("compaction_runs", "runs of the broker's own compaction", duty.runs)
        text = "runs that left a queue because of an error, or did not end"
        yield self._own.count("compaction_failures", text, duty.failures)
        text = "queues for which runs published a new generation"
        yield self._own.count("compaction_queues", text, duty.queues)
        text = "bytes of records in these generations"
        yield self._own.count("compaction_written_bytes", text, duty.bytes_written)
        text = "expired segments that wait for their compaction"
        yield self._own.level("compaction_held_segments", text, duty.held_segments)
        text = "end of the last run without an error"
        yield self._own.level("compaction_last_success_timestamp_seconds", text, duty.last_success_ms / 1000)

    def _archived(self, archived: ArchivedMessages) -> Iterator[Metric | None]:
        text = "bytes of fetched messages on disk"
        yield self._own.level("archive_cache_bytes", text, archived.cached_bytes)
        text = "1 if the last check of the archive succeeded"
        yield self._own.level("archive_readable", text, archived.problem is None)
        text = "messages served from the archive"
        yield self._own.count("archive_messages_out", text, archived.messages_out)
        text = "requests to the process that reads the archive"
        yield self._own.count("archive_fetches", text, archived.fetches)
        yield self._own.count("archive_failures", "requests that failed", archived.failures)

    def _timers(self, core: BrokerCore) -> Iterator[Metric | None]:
        table, counts = core.runtime_info(), core.timers.metrics
        node = (*self._rocketmq.node, *_STORAGE.values())
        text = "timer messages not yet in the wheel"
        yield self._stored("timer_enqueue_lag", text, int(table["timerOffsetBehind"]))
        yield self._stored("timer_dequeue_lag", "messages in the wheel", int(table["timerCongestNum"]))
        text = "ms that the oldest message outside the wheel has waited"
        yield self._stored("timer_enqueue_latency_milliseconds", text, core.timers.enqueue_latency_ms())
        text = "ms that delivery is behind, in whole seconds"
        yield self._stored("timer_dequeue_latency_milliseconds", text, int(table["timerReadBehind"]) * 1000)
        snapshot = self._rocketmq.gauge(
            "timer_message_snapshot",
            "messages in the wheel by remaining delay",
            *_STORAGE,
            "timer_bound_s",
        )
        for bound_s, count in core.timers.snapshot().items():
            snapshot.add_metric((*node, str(bound_s)), count)
        yield snapshot
        yield None
        delays = self._rocketmq.histogram(
            "delay_message_latency_seconds", "delays that timer messages ask for", *_STORAGE, "topic"
        )
        for topic, events in list(core.state.stats.of_topics.items()):
            if events.delays_s.count:
                delays.add_metric((*node, topic), events.delays_s.buckets(), events.delays_s.total)
        yield delays
        waiting = self._rocketmq.gauge(
            "timing_messages", "timer messages that wait, by target", *_STORAGE, "topic"
        )
        for topic, count in counts.counts().items():
            waiting.add_metric((*node, topic), count)
        yield waiting
        for name, text, totals in (
            ("timer_enqueue", "messages and recalls that entered the wheel since start", counts.enqueued),
            ("timer_dequeue", "messages and recalls that left the wheel since start", counts.dequeued),
        ):
            counter = self._rocketmq.counter(name, text, *_STORAGE, "topic")
            for topic, count in totals.items():
                counter.add_metric((*node, topic), count)
            yield counter

    def _pop(self, core: BrokerCore) -> Iterator[Metric | None]:
        node = self._rocketmq.node
        lag = self._rocketmq.gauge(
            "pop_revive_lag_milliseconds", "unprocessed records of the revive log", "queue_id"
        )
        latency = self._rocketmq.gauge(
            "pop_revive_latency_milliseconds", "ms since the oldest unprocessed record was due", "queue_id"
        )
        for queue_id, (records, late_ms) in enumerate(core.pop.revive_behind()):
            lag.add_metric((*node, str(queue_id)), records)
            latency.add_metric((*node, str(queue_id)), late_ms)
        yield lag
        yield latency
        text = "offsets of popped queues that are not on disk yet"
        yield self._rocketmq.level("pop_offset_buffer_size", text, core.pop.unsettled)
        text = "check points whose answers wait for the disk"
        yield self._rocketmq.level("pop_checkpoint_buffer_size", text, core.pop.unanswered)
        text = "duration of a scan of the revive log"
        yield self._rocketmq.spread("pop_buffer_scan_time_consume_milliseconds", text, core.pop.scans_ms)
        who = "consumer_group", "topic"
        put = self._rocketmq.counter(
            "pop_revive_in_message", "put into the revive log", *who, "revive_message_type", "put_status"
        )
        read = self._rocketmq.counter(
            "pop_revive_out_message", "read from the revive log", *who, "queue_id", "revive_message_type"
        )
        revived = self._rocketmq.counter(
            "pop_revive_retry_messages",
            "not acknowledged in time, put into a retry topic",
            *who,
            "put_status",
        )
        for number, ((topic, group), revival) in enumerate(list(core.state.stats.revivals.items())):
            if number % SERIES_AT_ONCE == 0:
                yield None
            labels = (*node, group, topic)
            for kind, count in revival.put.items():
                put.add_metric((*labels, kind.upper(), "PUT_OK"), count)
            for (queue_id, kind), count in revival.read.items():
                read.add_metric((*labels, str(queue_id), kind.upper()), count)
            if revival.revived:
                revived.add_metric((*labels, "PUT_OK"), revival.revived)
        yield put
        yield read
        yield revived

    def _stored(self, name: str, text: str, value: float) -> Metric:
        """A gauge of one series, with the labels of the store."""
        gauge = self._rocketmq.gauge(name, text, *_STORAGE)
        gauge.add_metric((*self._rocketmq.node, *_STORAGE.values()), float(value))
        return gauge

    def _reserve_time_ms(self, store: MessageStore) -> int:
        oldest = store.reads.earliest_store_timestamp()
        return max(0, self._app.clock.now_ms() - oldest) if oldest > 0 else 0
