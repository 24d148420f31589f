"""The metrics of a broker, compared by name, type and labels with those of a RocketMQ 5.5.0 whose Prometheus exporter
is on, after the same traffic; and what Prometheus's own tool says of ours."""

import re
import shutil
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from mqspark import (
    AdminClient,
    Message,
    MessageExt,
    PopConsumer,
    Producer,
    PushConsumer,
    TransactionProducer,
    TransactionState,
)
from tests.interop.jars import Jars
from tests.interop.rocketmq import rocketmq_cluster
from tests.interop.topics import create_group, create_topic
from tests.support.clusters import Cluster, mqspark_cluster
from tests.support.processes import HOST, free_port

SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
EXPORTER_LABELS = {"otel_scope_name", "otel_scope_version"}
"""The OpenTelemetry exporter adds them, not RocketMQ."""

ROCKETMQS_NAME = re.compile(r'^rocketmq_\w+ use base unit "seconds" instead of "milliseconds"$')
"""What promtool says of names that are RocketMQ's."""

Series = dict[str, tuple[str, dict[str, set[str]]]]
"""Family → its type, and the values of each label."""


def families(text: str) -> Series:
    types: dict[str, str] = {}
    found: Series = {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            types[name] = kind
        elif line and not line.startswith("#"):
            match = SAMPLE.match(line)
            assert match is not None, line
            name, labels = match[1], dict(LABEL.findall(match[2] or ""))
            if types.get(base := re.sub(r"_(bucket|sum|count)$", "", name)) == "histogram":
                name = base
                labels.pop("le", None)
            kind = types.get(name) or types[name.removesuffix("_total")]
            of_family = found.setdefault(name, (kind, {}))[1]
            for label, value in labels.items():
                if label not in EXPORTER_LABELS:
                    of_family.setdefault(label, set()).add(value)
    return found


def fetch(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310 - our own loopback address
        return str(answer.read().decode())


def scraped_after_traffic(cluster: Cluster, url: str) -> str:
    """The metrics after at least one event for each that counts any, while the clients are connected."""
    plain, failing = create_topic(cluster, "Plain"), create_topic(cluster, "Failing", 1)
    popped = create_topic(cluster, "Popped", 2)
    decided = create_topic(cluster, "Decided", 2, attributes="+message.type=TRANSACTION")
    with Producer(cluster.namesrv, group="metrics-senders") as producer:
        for number in range(8):
            producer.send(Message.of(plain, f"plain {number}"))
            producer.send(Message.of(popped, f"popped {number}"))
        producer.send(Message.of(plain, "ordered", properties={"__SHARDINGKEY": "k"}))
        producer.send(Message.of(plain, "later", delay_level=1))
        producer.send(Message.of(plain, "timed", delay_ms=1_500))
        producer.send(Message.of(plain, b"x" * 5_000))
        producer.send(Message.of(failing, "fails"))
    states = {"commit": TransactionState.COMMIT, "rollback": TransactionState.ROLLBACK}
    with TransactionProducer(
        cluster.namesrv,
        group="metrics-deciders",
        check=lambda message: TransactionState.UNKNOWN,
        execute=lambda message: states.get(message.body.decode(), TransactionState.UNKNOWN),
        topics=[decided],
    ) as transactions:
        for what in ("commit", "rollback", "open"):
            transactions.send_in_transaction(Message.of(decided, what))

    lock, received = threading.Lock(), [0]

    def take(message: MessageExt) -> None:
        with lock:
            received[0] += 1

    def fail(message: MessageExt) -> None:
        raise RuntimeError(message.topic)

    create_group(cluster, "metrics-readers")
    create_group(cluster, "metrics-failers", retryMaxTimes=0)
    create_group(cluster, "metrics-poppers")
    with AdminClient(cluster.namesrv) as admin:
        admin.set_consume_mode(popped, "metrics-poppers", "POP")
    reader = PushConsumer(cluster.namesrv, group="metrics-readers", listener=take)
    failer = PushConsumer(cluster.namesrv, group="metrics-failers", listener=fail, max_reconsume_times=0)
    popper = PopConsumer(cluster.namesrv, group="metrics-poppers", listener=take)
    reader.subscribe(plain)
    failer.subscribe(failing)
    popper.subscribe(popped)
    with reader, failer, popper:
        deadline = time.monotonic() + 60
        while received[0] < 20 and time.monotonic() < deadline:
            time.sleep(0.2)
        assert received[0] >= 20
        time.sleep(3)  # until acknowledgements and dead letters are stored and gauges follow
        return fetch(url)


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with mqspark_cluster(tmp_path_factory.mktemp("metrics")) as cluster:
        yield scraped_after_traffic(cluster, f"{cluster.http}/metrics")


@pytest.mark.slow("a real RocketMQ starts first")
def test_every_metric_of_rocketmq_is_here_with_its_labels(
    ours: str, newest_jars: Jars, tmp_path: Path
) -> None:
    port = free_port()
    exporter = {
        "metricsExporterType": "PROM",
        "metricsPromExporterPort": port,
        "metricsPromExporterHost": HOST,
    }
    with rocketmq_cluster(newest_jars, tmp_path, settings=exporter) as cluster:
        theirs = families(scraped_after_traffic(cluster, f"http://{HOST}:{port}/metrics"))
    found = families(ours)
    theirs.pop("target_info")  # of the exporter
    assert len(theirs) > 35
    missing = {name: kind for name, (kind, _) in theirs.items() if found.get(name, ("", {}))[0] != kind}
    assert missing == {}
    unlabelled = {
        name: sorted(labels.keys() - found[name][1].keys())
        for name, (_, labels) in theirs.items()
        if labels.keys() - found[name][1].keys()
    }
    assert unlabelled == {}
    for name, label in CHOSEN:
        assert theirs[name][1][label] - found[name][1][label] == set(), (name, label)


CHOSEN = [
    ("rocketmq_messages_in_total", "message_type"),
    ("rocketmq_message_size", "message_type"),
    ("rocketmq_processor_watermark", "processor"),
    ("rocketmq_timer_message_snapshot", "timer_bound_s"),
    ("rocketmq_consumer_connections", "version"),
    ("rocketmq_consumer_connections", "consume_mode"),
    ("rocketmq_consumer_lag_messages", "topic"),
    ("rocketmq_send_to_dlq_messages_total", "consumer_group"),
    ("rocketmq_commit_messages_total", "topic"),
    ("rocketmq_rollback_messages_total", "topic"),
    ("rocketmq_half_messages", "topic"),
    ("rocketmq_rpc_latency_milliseconds", "request_code"),
    ("rocketmq_rpc_latency_milliseconds", "response_code"),
    ("rocketmq_rpc_latency_milliseconds", "result"),
]
"""Labels that have the same values after the same traffic, or more here."""


@pytest.mark.slow("traffic of its own before; tests/integration/web reads the same text")
def test_prometheus_finds_nothing_wrong(ours: str) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed: it comes with Debian's package prometheus")
    command = [promtool, "check", "metrics"]
    checked = subprocess.run(command, input=ours, capture_output=True, text=True, timeout=60, check=False)
    complaints = [
        line for line in (checked.stdout + checked.stderr).splitlines() if not ROCKETMQS_NAME.match(line)
    ]
    assert complaints == []
    assert checked.returncode in (0, 3)
