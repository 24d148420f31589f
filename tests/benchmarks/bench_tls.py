"""What TLS costs: RocketMQ's own Java producer and consumer, plain and over TLS, on our broker and on RocketMQ 5.5.0.

    python -m tests.benchmarks tls [--rounds 2] [--seconds 6] [--backlog N]

Four sides take turns: each broker speaks both on one port (``tls.server.mode=permissive``), and the client chooses. The
same certificate on both, TLS 1.3 if both ends have it. The checks are those of ``bench_java``. Prints the medians, the
share of the plain rate that is left over TLS, and the ratio of ours to theirs over TLS.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from tests.benchmarks.bench_java import (
    BATCH,
    BATCH_THREADS,
    BROKER_HEAP_MIB,
    PRODUCER_THREADS,
    Figure,
    VoidRun,
    alone,
    consume,
    fill,
    produce,
)
from tests.benchmarks.report import OURS, figure, peer, ratio
from tests.interop import jars as jar_cache
from tests.interop.jars import Jars
from tests.interop.rocketmq import rocketmq_broker, rocketmq_namesrv
from tests.interop.test_tls import certified, java_options
from tests.support.clusters import Cluster, mqspark_cluster
from tests.support.maven import ToolMissing

SETTINGS = {
    "flushDiskType": "ASYNC_FLUSH",
    "mappedFileSizeCommitLog": 1 << 30,
    "mappedFileSizeConsumeQueue": 300000 * 20,
}
SIDES = {"mqspark": OURS, "rocketmq": "RocketMQ 5.5.0"}

Run = Callable[[Cluster, Sequence[str]], Figure]


def client_options(folder: Path) -> list[str]:
    path = folder / "bench-client.properties"
    path.write_text(
        f"tls.test.mode.enable=false\ntls.client.authServer=true\ntls.client.trustCertPath={folder / 'ca.pem'}\n"
    )
    return ["-Dtls.enable=true", f"-Dtls.config.file={path}"]


def compare(name: str, clusters: list[Cluster], tls: Sequence[str], rounds: int, run: Run) -> None:
    """Plain and TLS on one broker, then on the other, in turn."""
    found: dict[tuple[str, str], list[Figure]] = {}
    for _ in range(rounds):
        for cluster in clusters:
            for wire, options in (("plain", ()), ("TLS", tls)):
                with alone(cluster, clusters):
                    found.setdefault((cluster.kind, wire), []).append(run(cluster, options))
    rates = {key: statistics.median(each.rate for each in figures) for key, figures in found.items()}
    for (kind, wire), figures in found.items():
        figure(f"{name}, {wire}", "/s", [each.rate for each in figures], side=SIDES[kind])
        cpu_us = [each.cpu_us for each in figures]
        figure(f"{name}, {wire}, broker CPU a message", "µs", cpu_us, side=SIDES[kind], less_is_better=True)
    for kind, side in SIDES.items():
        plain, secured = rates[kind, "plain"], rates[kind, "TLS"]
        print(
            f"{name:10} {side:15} plain {plain:9,.0f}/s  TLS {secured:9,.0f}/s  left {secured / plain:5.0%}",
            flush=True,
        )
    print(f"{name:10} ours to theirs over TLS {ratio(rates['mqspark', 'TLS'] / rates['rocketmq', 'TLS'])}")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=6.0, help="measured time of one producer run")
    parser.add_argument("--backlog", type=int, default=200_000, help="messages a consumer run drains")
    parser.add_argument("--only", nargs="+", default=["producer", "batch", "consumer"])
    options = parser.parse_args(arguments)
    try:
        jars = jar_cache.fetch()
    except ToolMissing as missing:
        print(f"bench_tls: skipped, {missing}")
        return 0
    try:
        with tempfile.TemporaryDirectory(prefix="bench-tls-") as folder, ExitStack() as stack:
            _measure(jars, Path(folder), options, stack)
    except VoidRun as void:
        print(f"VOID: {void}", file=sys.stderr)
        return 1
    return 0


def _measure(jars: Jars, folder: Path, options: argparse.Namespace, stack: ExitStack) -> None:
    clients = folder / "clients"
    clients.mkdir()
    certified(folder)
    theirs_options = java_options(folder, "permissive")
    peer("RocketMQ 5.5.0", heap=f"{BROKER_HEAP_MIB} MiB", **SETTINGS)
    ours = stack.enter_context(
        mqspark_cluster(
            folder / "mqspark",
            "--set",
            "flushDiskType=ASYNC_FLUSH",
            "--set",
            f"tls.server.certPath={folder / 'server.pem'}",
            "--set",
            f"tls.server.keyPath={folder / 'server.key'}",
        )
    )
    namesrv = stack.enter_context(rocketmq_namesrv(jars, folder / "namesrv", theirs_options))
    theirs = stack.enter_context(
        rocketmq_broker(
            jars,
            folder / "rocketmq",
            namesrv,
            heap_mib=BROKER_HEAP_MIB,
            settings=SETTINGS,
            options=theirs_options,
        )
    )

    def producer(cluster: Cluster, more: Sequence[str]) -> Figure:
        words = ["-w", str(PRODUCER_THREADS)]
        return produce(jars, cluster, clients, options.seconds, "Producer", *words, options=more)

    def batch(cluster: Cluster, more: Sequence[str]) -> Figure:
        words = ["-w", str(BATCH_THREADS), "-b", str(BATCH)]
        return produce(jars, cluster, clients, options.seconds, "BatchProducer", *words, options=more)

    def consumer(cluster: Cluster, more: Sequence[str]) -> Figure:
        return consume(jars, cluster, clients, "bench-backlog", options=more)

    clusters, tls = [ours, theirs], client_options(folder)
    for run in (producer, batch, consumer):
        if run.__name__ in options.only:
            if run is consumer:
                for cluster in clusters:
                    fill(cluster, "bench-backlog", options.backlog)
            compare(run.__name__, clusters, tls, options.rounds, run)


if __name__ == "__main__":
    sys.exit(main())
