"""Metrics of messages, requests, transactions, consumers and clients, under the names of RocketMQ 5
(BrokerMetricsManager, RemotingMetricsManager)."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import Metric

from mqspark.broker.admin.progress import all_progress
from mqspark.broker.admin.views import language_name
from mqspark.message import DLQ_PREFIX, RETRY_PREFIX
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.versions import version_name
from mqspark_server.shown.nouns import MODES
from mqspark_server.web.families import OTHER, SERIES_AT_ONCE, Families

if TYPE_CHECKING:
    from mqspark.broker.broker import BrokerCore
    from mqspark.broker.state.groups import ClientGroups, ConsumerGroup
    from mqspark.broker.state.state import BrokerState

_REMOTING = "remoting"
_RETRIES = (RETRY_PREFIX, DLQ_PREFIX)
_SYSTEM_GROUP = "cid_rmq_sys_"
"""The groups of the broker itself, in lower case (BrokerMetricsManager.SYSTEM_GROUP_PREFIX_LIST)."""


def traffic(core: BrokerCore, families: Families) -> Iterator[Metric | None]:
    state, node = core.state, families.node
    of_messages = "topic", "message_type", "is_system"
    messages = families.counter("messages_in", "messages stored since start", *of_messages)
    size = families.counter("throughput_in", "bytes of records stored since start", *of_messages)
    sizes = families.histogram("message_size", "bytes of records", *of_messages)
    for number, topic in enumerate(state.topics):
        if number % SERIES_AT_ONCE == 0:
            yield None
        if not topic.put_count or topic.name.startswith(_RETRIES):
            continue
        is_system = _boolean(state.topics.is_system(topic.name))
        for kind, part in topic.of_kinds():
            labels = (*node, topic.name, kind, is_system)
            messages.add_metric(labels, part.messages)
            size.add_metric(labels, part.bytes)
            sizes.add_metric(labels, part.sizes.buckets(), part.sizes.total)
    yield from (messages, size, sizes)
    of_reads = "topic", "consumer_group", "is_system", "is_retry"
    messages = families.counter("messages_out", "messages sent to consumers since start", *of_reads)
    size = families.counter("throughput_out", "bytes sent to consumers since start", *of_reads)
    traffic = yield from state.stats.traffic()
    for number, ((name, group), read) in enumerate(traffic.items()):
        if number % SERIES_AT_ONCE == 0:
            yield None
        given = (*node, name, group, _is_system(state, name, group), _is_retry(name))
        messages.add_metric(given, read.messages)
        size.add_metric(given, read.bytes)
    yield from (messages, size)
    dead = families.counter(
        "send_to_dlq_messages",
        "messages that became dead letters since start",
        "topic",
        "consumer_group",
        "is_system",
    )
    for number, ((name, group), count) in enumerate(list(state.stats.dead.items())):
        if number % SERIES_AT_ONCE == 0:
            yield None
        dead.add_metric((*node, name, group, _is_system(state, name, group)), count)
    yield dead
    text = "messages that did not fit the schemas of their topic since start"
    yield families.counts("unfit_messages", text, "topic", state.stats.unfit_messages)
    yield families.count("send_failures", "sends that were refused since start", state.stats.put_failures)
    text = "invalid records found in the broker's own topics"
    yield families.counts("broker_junk_records", text, "kind", state.stats.junk)
    yield families.level("broker_permission", "bits: 4 read, 2 write", core.config.broker_permission)
    yield families.level("topic_number", "topics, including system topics", len(state.topics))
    text = "groups that are configured"
    yield families.level("consumer_group_number", text, len(state.subscriptions))
    if state.store_config.enable_lmq:
        text = "light queues, also those of lite topics"
        yield families.level("lmq_number", text, len(state.store.table.light))


def request_metrics(core: BrokerCore, families: Families) -> Iterator[Metric | None]:
    """How long requests took, and how many of a kind wait. One loop serves all kinds, so most never wait."""
    node, stats = families.node, core.state.stats
    times = families.histogram(
        "rpc_latency_milliseconds",
        "time from a request to its answer",
        "protocol_type",
        "request_code",
        "response_code",
        "is_long_polling",
        "result",
    )
    for rpc, found in stats.rpc:
        if not found.count:
            continue
        result = "oneway" if rpc.one_way else "success"
        names = _request_name(rpc.request), _response_name(rpc.response)
        labels = (*node, _REMOTING, *names, _boolean(rpc.waited), result)
        times.add_metric(labels, found.buckets(), found.total)
    yield times
    waiting = {
        "send": len(core.acks),
        "pull": core.pulls.parked.count,
        "admin": len(core.state.long_work),
        "ack": 0,
        "async_put": 0,
        "client_manager": 0,
        "consumer_manager": 0,
        "heartbeat": 0,
        "lite_pull": 0,
        "query_message": 0,
        "reply": 0,
        "transaction": 0,
    }
    text = "requests of a kind that wait in the broker"
    yield families.levels("processor_watermark", text, "processor", waiting)
    created = {
        True: families.histogram(
            "topic_create_execution_time_milliseconds",
            "time to create or change a topic",
            "invocation_status",
            "is_system",
        ),
        False: families.histogram(
            "consumer_group_create_execution_time_milliseconds",
            "time to create or change a group",
            "invocation_status",
        ),
    }
    for (of_topic, succeeded, system), found in list(stats.creations.items()):
        status = [*node, "success" if succeeded else "failure"]
        if of_topic:
            status.append(_boolean(system))
        created[of_topic].add_metric(status, found.buckets(), found.total)
    yield from created.values()


def transaction_metrics(core: BrokerCore, families: Families) -> Iterator[Metric | None]:
    node, stats = families.node, core.state.stats
    halves = families.gauge("half_messages", "undecided transactions", "topic")
    commits = families.counter("commit_messages", "transactions that were committed since start", "topic")
    rollbacks = families.counter(
        "rollback_messages", "transactions that were rolled back since start", "topic"
    )
    finishes = families.histogram(
        "finish_message_latency_milliseconds",
        "seconds, in spite of the name, from the birth of a message to its commit",
        "topic",
    )
    rest = core.transactions.open_count
    for number, (topic, events) in enumerate(list(stats.of_topics.items())):
        if number % SERIES_AT_ONCE == 0:
            yield None
        labels = (*node, topic)
        if events.commits:
            commits.add_metric(labels, events.commits)
            finishes.add_metric(labels, events.finishes_s.buckets(), events.finishes_s.total)
        if events.rollbacks:
            rollbacks.add_metric(labels, events.rollbacks)
        if events.halves:
            halves.add_metric(labels, events.halves)
            rest -= events.halves
    if rest > 0:  # from before the start
        halves.add_metric((*node, OTHER), rest)
    yield from (halves, commits, rollbacks, finishes)


def consumer_metrics(state: BrokerState, families: Families, now_ms: int) -> Iterator[Metric | None]:
    node = families.node
    labels = "topic", "consumer_group", "is_retry", "is_system"
    lag = families.gauge("consumer_lag_messages", "messages that are not consumed", *labels)
    lag_ms = families.gauge(
        "consumer_lag_latency_milliseconds", "age of the oldest message that is not consumed", *labels
    )
    in_flight = families.gauge(
        "consumer_inflight_messages", "messages that clients have received and not finished", *labels
    )
    queueing_ms = families.gauge(
        "consumer_queueing_latency_milliseconds",
        "age of the oldest message that no client has received",
        *labels,
    )
    ready = families.gauge("consumer_ready_messages", "messages that no client has received", *labels)
    for number, found in enumerate(all_progress(state), 1):
        if found is not None:
            system = _is_system(state, found.topic, found.group)
            given = (*node, found.topic, found.group, _is_retry(found.topic), system)
            config = state.config
            if config.lite_lag_count_metrics_enable or not found.is_lite:
                lag.add_metric(given, found.lag)
                ready.add_metric(given, found.ready)
            if config.lite_lag_latency_metrics_enable or not found.is_lite:
                lag_ms.add_metric(given, found.lag_ms(now_ms))
        if found is not None and not found.is_lite:
            in_flight.add_metric(given, found.in_flight)
            queueing_ms.add_metric(given, found.queueing_ms(now_ms))
        if found is None or number % SERIES_AT_ONCE == 0:
            yield None
    yield from (lag, lag_ms, in_flight, queueing_ms, ready)


def client_metrics(groups: ClientGroups, families: Families) -> Iterator[Metric | None]:
    node = families.node
    consumers = families.gauge(
        "consumer_connections",
        "consumers by their heartbeats",
        "consumer_group",
        "language",
        "version",
        "consume_mode",
        "message_model",
        "protocol_type",
        "is_system",
    )
    for number, group in enumerate(groups.consumers()):
        if number % SERIES_AT_ONCE == 0:
            yield None
        model = str(group.message_model or "").lower()
        tally = Tally((member.language, member.version) for member in group.members.values())
        for (language, version), count in tally.items():
            labels = (*node, group.name, *_client(language, version), _mode(group), model)
            consumers.add_metric((*labels, _REMOTING, _boolean(_is_system_group(group.name))), count)
    yield consumers
    producers = families.gauge(
        "producer_connections", "producers by their heartbeats", "language", "version", "protocol_type"
    )
    everyone = {
        member.client_id: (member.language, member.version)
        for members in groups.producers().values()
        for member in members
    }
    for (language, version), count in Tally(everyone.values()).items():
        producers.add_metric((*node, *_client(language, version), _REMOTING), count)
    yield producers


def _client(language: int, version: int) -> tuple[str, str]:
    return language_name(language).lower(), version_name(version).lower()


def _mode(group: ConsumerGroup) -> str:
    return MODES.get(group.consume_type or "", "pull")


def _request_name(code: int) -> str:
    return RequestCode(code).name.lower() if code >= 0 else "unknown"


def _response_name(code: int) -> str:
    return ResponseCode(code).name.lower() if code >= 0 else "unknown"


def _is_system(state: BrokerState, topic: str, group: str) -> str:
    return _boolean(state.topics.is_system(topic) or _is_system_group(group))


def _is_system_group(group: str) -> bool:
    return group.lower().startswith(_SYSTEM_GROUP)


def _is_retry(topic: str) -> str:
    return _boolean(topic.startswith(_RETRIES))


def _boolean(value: bool) -> str:
    return "true" if value else "false"
