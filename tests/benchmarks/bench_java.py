"""RocketMQ's own Java benchmarks against our broker, RocketMQ 5.5.0 and rocketmq-rust 1.0.0, side by side.

    python -m tests.benchmarks java [--rounds 2] [--seconds 8] [--flush ASYNC_FLUSH ...] [--only NAME]
                                    [--beside rocketmq rocketmq-rust] [--rocketmq-rust FOLDER]

Without the programs of rocketmq-rust (``rocketmq_rust.py`` says where they come from) it is left out.

The clients are org.apache.rocketmq.example.benchmark's Producer (64 threads), BatchProducer (batches of 32)
and Consumer, unmodified. (Producer's asynchronous mode has no back-pressure and only overflows its own
permits on a small machine, so it is not here.) ``raw`` is the load of ``bench_broker``: 4 connections with 64 sends in
flight each. The brokers are loaded in turn, A B A B, so that all see the
same machine, and the processes of those that wait are stopped (SIGSTOP). Rates are taken from the brokers'
own queue offsets, never from what a client says of itself, and every run is checked: hardly a send failed (at
most one in a thousand, and it is said), what is stored is whole and in place, all that was stored was
consumed. A run that fails a check has no figure.

Prints the medians, the ratios of ours to theirs (rate; CPU time), and each broker's CPU time per message.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import struct
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks import rocketmq_rust
from tests.benchmarks.bench_broker import raw_load
from tests.benchmarks.report import OURS, figure, peer, ratio
from tests.interop import jars as jar_cache
from tests.interop.jars import Jars
from tests.interop.rocketmq import java_command, rocketmq_cluster
from tests.interop.topics import create_group, create_topic
from tests.support.clusters import Cluster, mqspark_cluster
from tests.support.maven import ToolMissing
from tests.support.processes import process, tail
from tests.support.remoting import (
    GET_MAX_OFFSET,
    QUERY_CONSUMER_OFFSET,
    SEND_MESSAGE_V2,
    RawConnection,
    request_frame,
    send_fields,
)

QUEUES = 8
BODY_BYTES = 1024
BATCH = 32
PRODUCER_THREADS = 64
BATCH_THREADS = 16
CONSUMER_THREADS = 20
CLIENT_HEAP_MIB = 512
BROKER_HEAP_MIB = 2048
START_TIMEOUT_S = 60.0
"""For the JVM and its first message, on a busy machine."""
WARM_UP_S = 5.0
BACKLOG = 400_000
DRAIN_TIMEOUT_S = 120.0
SETTLE_S = 10.0
"""Other brokers fill their consume queues a little after the acknowledgement."""
POLL_S = 0.05
FAILED_SHARE = 0.001  # a send times out after 3 s, which a busy machine may take to start the client
FILL_IN_FLIGHT = 16
SYSTEM_BUSY = 2
RAW_COUNT = 200_000
RAW_WARM_UP = 20_000
SIDES = {
    "mqspark": OURS,
    "rocketmq": "RocketMQ 5.5.0",
    "rocketmq-rust": f"rocketmq-rust {rocketmq_rust.VERSION}",
}
"""Kind of cluster → as reports call it."""
SAMPLE = 512  # messages of each queue that are read back and compared


class VoidRun(Exception):
    """The run lost, doubled or altered something: it has no figure."""


@dataclass(frozen=True, slots=True)
class Figure:
    """Messages a second, and broker CPU microseconds a message."""

    rate: float
    cpu_us: float


def offsets(connection: RawConnection, topic: str, code: int = GET_MAX_OFFSET, group: str = "") -> int:
    """The sum of the queues' ends, or of the group's offsets."""
    total = 0
    for queue_id in range(QUEUES):
        if group:
            reply = connection.request(code, consumerGroup=group, topic=topic, queueId=queue_id)
        else:
            reply = connection.request(code, topic=topic, queueId=queue_id)
        total += int(reply.ext.get("offset", 0)) if reply.code == 0 else 0
    return total


@contextmanager
def benchmark(
    jars: Jars, folder: Path, main: str, *arguments: str, options: Sequence[str] = ()
) -> Iterator[Path]:
    """One of the benchmark's main classes as a process, with options of its JVM; its output file."""
    log = folder / f"{main}-{time.monotonic_ns()}.out"
    name = f"org.apache.rocketmq.example.benchmark.{main}"
    command = java_command(jars, name, folder, *arguments, heap_mib=CLIENT_HEAP_MIB, options=list(options))
    with process(command, log) as child:
        yield log
        if child.poll() is not None:
            raise VoidRun(f"{main} ended by itself with {child.returncode}:\n{tail(log)}")


def produce(
    jars: Jars,
    cluster: Cluster,
    folder: Path,
    seconds: float,
    main: str,
    *arguments: str,
    options: Sequence[str] = (),
) -> Figure:
    """Let a producer run; the rate between the end of its warm-up and the end of the time."""
    topic = create_topic(cluster, f"bench-{main}-{time.monotonic_ns()}", QUEUES)
    with RawConnection(cluster.broker) as connection:
        words = ["-n", cluster.namesrv, "-t", topic, "-s", str(BODY_BYTES), "-ri", "1000", *arguments]
        with benchmark(jars, folder, main, *words, options=options) as log:
            deadline = time.monotonic() + START_TIMEOUT_S
            while not offsets(connection, topic) and time.monotonic() < deadline:
                time.sleep(POLL_S)
            time.sleep(WARM_UP_S)
            count, cpu, began = offsets(connection, topic), cluster.cpu_seconds(), time.monotonic()
            time.sleep(seconds)
            count = offsets(connection, topic) - count
            cpu, elapsed = cluster.cpu_seconds() - cpu, time.monotonic() - began
        said = log.read_text()
        failed = max((int(number) for number in _numbers_after("Send Failed: ", said)), default=0)
        if failed:
            print(f"  {main} on {cluster.kind}: {failed} sends failed beside {count} measured", flush=True)
        if not count or failed > count * FAILED_SHARE:
            raise VoidRun(f"{main} on {cluster.kind}: {failed} failed, {count} stored:\n{said[-1000:]}")
        sample(connection, topic)
    return Figure(count / elapsed, cpu / count * 1e6)


def _numbers_after(word: str, text: str) -> list[str]:
    return [part.split()[0] for part in text.split(word)[1:]]


def sample(connection: RawConnection, topic: str) -> None:
    """The first messages of each queue: dense offsets, whole records, bodies of the right size and CRC."""
    create = (
        b'{"groupName":"bench-sample","consumeEnable":true,"consumeFromMinEnable":true,"retryQueueNums":1}'
    )
    if connection.request(200, create).code != 0:
        raise VoidRun("the broker refuses a consumer group")
    for queue_id in range(QUEUES):
        end = int(connection.request(GET_MAX_OFFSET, topic=topic, queueId=queue_id).ext["offset"])
        offset = 0
        while offset < min(end, SAMPLE):
            reply = connection.pull(topic, queue_id, offset, group="bench-sample")
            if reply.code != 0:
                raise VoidRun(f"queue {queue_id} offset {offset} of {end}: {reply.code} {reply.remark}")
            position = 0
            while position < len(reply.body):
                size, _, crc, stored_queue, _, stored = struct.unpack_from(">iiIiiq", reply.body, position)
                at = position + 84
                (length,) = struct.unpack_from(">i", reply.body, at)
                body = reply.body[at + 4 : at + 4 + length]
                if (stored_queue, stored, length) != (queue_id, offset, BODY_BYTES):
                    raise VoidRun(
                        f"expected {(queue_id, offset, BODY_BYTES)}, got {(stored_queue, stored, length)}"
                    )
                if zlib.crc32(body) & 0x7FFFFFFF != crc:
                    raise VoidRun(f"the body at {(queue_id, offset)} is damaged")
                offset += 1
                position += size


def fill(cluster: Cluster, topic: str, count: int) -> None:
    """Put count messages of BODY_BYTES into the topic: batches, one connection, a few in flight."""
    create_topic(cluster, topic, QUEUES)
    body = (b"0123456789abcdef" * (BODY_BYTES // 16))[:BODY_BYTES]
    item = struct.pack(">iiiii", 22 + len(body), 0, 0, 0, len(body)) + body + b"\0\0"
    batch = item * BATCH
    now = int(time.time() * 1000)
    requests = count // BATCH
    with RawConnection(cluster.broker, timeout_s=60) as connection:

        def send(number: int) -> None:
            header = send_fields(topic, number % QUEUES, d=QUEUES, g=now, m=True)
            connection.write(request_frame(SEND_MESSAGE_V2, number, header, batch))

        sent = answered = 0
        while answered < requests:
            while sent < requests and sent - answered < FILL_IN_FLIGHT:
                send(sent)
                sent += 1
            reply = connection.read()
            if (
                reply.code == SYSTEM_BUSY
            ):  # stored nothing: a busy machine keeps requests waiting for too long
                send(reply.opaque)
            elif reply.code != 0:
                raise VoidRun(f"a batch was answered {reply.code}: {reply.remark}")
            else:
                answered += 1
        deadline = time.monotonic() + SETTLE_S
        while (stored := offsets(connection, topic)) < requests * BATCH and time.monotonic() < deadline:
            time.sleep(POLL_S)
    if stored != requests * BATCH:
        raise VoidRun(f"filled with {requests * BATCH}, stored {stored}")


def consume(jars: Jars, cluster: Cluster, folder: Path, topic: str, *, options: Sequence[str] = ()) -> Figure:
    """Drain the topic with a new group. The rate between 10 and 90 %, by the offsets its pulls commit."""
    group = create_group(cluster, f"bench-group-{time.monotonic_ns()}")
    with RawConnection(cluster.broker) as connection:
        total = offsets(connection, topic)
        marks: list[tuple[int, float, float]] = []
        arguments = ["-n", cluster.namesrv, "-t", topic, "-g", group, "-w", str(CONSUMER_THREADS)]
        with benchmark(jars, folder, "Consumer", *arguments, options=options):
            deadline = time.monotonic() + DRAIN_TIMEOUT_S
            while not marks or marks[-1][0] < total:
                if time.monotonic() > deadline:
                    raise VoidRun(f"consumed {marks[-1][0]} of {total} in {DRAIN_TIMEOUT_S} s")
                time.sleep(POLL_S)
                progress = offsets(connection, topic, QUERY_CONSUMER_OFFSET, group)
                marks.append((progress, time.monotonic(), cluster.cpu_seconds()))
    first = next(mark for mark in marks if mark[0] >= total * 0.1)
    last = next(mark for mark in marks if mark[0] >= total * 0.9)
    count = last[0] - first[0]
    if not count:
        raise VoidRun(f"{total} messages are too few to measure")
    return Figure(count / (last[1] - first[1]), (last[2] - first[2]) / count * 1e6)


@contextmanager
def alone(cluster: Cluster, clusters: list[Cluster]) -> Iterator[None]:
    """The other brokers' processes stand still meanwhile: one that idles takes processor time from the one measured."""
    others = [other.broker_pid for other in clusters if other is not cluster]
    for pid in others:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in others:
            os.kill(pid, signal.SIGCONT)


def raw(cluster: Cluster, count: int) -> Figure:
    """Plain sends of bare frames, after a warm-up of the same kind."""
    port = int(cluster.broker.rpartition(":")[2])
    topic = create_topic(cluster, f"bench-raw-{time.monotonic_ns()}", QUEUES)
    raw_load("send", port, topic=topic, count=RAW_WARM_UP)
    cpu = cluster.cpu_seconds()
    said = raw_load("send", port, topic=topic, count=count)
    cpu = cluster.cpu_seconds() - cpu
    with RawConnection(cluster.broker) as connection:
        deadline = time.monotonic() + SETTLE_S
        while (stored := offsets(connection, topic)) < RAW_WARM_UP + count and time.monotonic() < deadline:
            time.sleep(POLL_S)
    if stored != RAW_WARM_UP + count:
        raise VoidRun(f"raw on {cluster.kind}: {RAW_WARM_UP + count} sent, {stored} stored")
    return Figure(said["per_second"], cpu / count * 1e6)


def compare(name: str, clusters: list[Cluster], rounds: int, run: Callable[[Cluster], Figure]) -> None:
    """A B A B; the medians and the ratios of ours to theirs. A void run stops the program."""
    figures: dict[str, list[Figure]] = {cluster.kind: [] for cluster in clusters}
    for _ in range(rounds):
        for cluster in clusters:
            with alone(cluster, clusters):
                figures[cluster.kind].append(run(cluster))
    rate = {kind: statistics.median(each.rate for each in runs) for kind, runs in figures.items()}
    cpu = {kind: statistics.median(each.cpu_us for each in runs) for kind, runs in figures.items()}
    for kind in rate:
        runs = figures[kind]
        figure(name, "/s", [run.rate for run in runs], side=SIDES[kind])
        cpu_us = [run.cpu_us for run in runs]
        figure(f"{name}, broker CPU a message", "µs", cpu_us, side=SIDES[kind], less_is_better=True)
        compared = (
            ""
            if kind == "mqspark"
            else f"   ours: rate {ratio(rate['mqspark'] / rate[kind])}, CPU {ratio(cpu['mqspark'] / cpu[kind])}"
        )
        spread = ", ".join(f"{run.rate:,.0f}" for run in runs)
        print(
            f"{name:24} {kind:14} {rate[kind]:9,.0f}/s {cpu[kind]:6.1f} us{compared}   [{spread}]", flush=True
        )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=8.0, help="measured time of one producer run")
    parser.add_argument("--flush", nargs="+", default=["ASYNC_FLUSH", "SYNC_FLUSH"])
    parser.add_argument("--only", nargs="+", default=["producer", "batch", "consumer", "raw"])
    peers = [kind for kind in SIDES if kind != "mqspark"]
    parser.add_argument("--beside", nargs="+", default=peers, choices=peers)
    parser.add_argument(
        "--rocketmq-rust", metavar="FOLDER", help=f"its programs; default: {rocketmq_rust.FOLDER}"
    )
    parser.add_argument("--raw-count", type=int, default=RAW_COUNT)
    parser.add_argument("--backlog", type=int, default=BACKLOG, help="messages a consumer run drains")
    options = parser.parse_args(arguments)
    try:
        jars = jar_cache.fetch()
    except ToolMissing as missing:
        print(f"bench_java: skipped, {missing}")
        return 0
    rust = None
    if "rocketmq-rust" in options.beside:
        try:
            rust = rocketmq_rust.programs(options.rocketmq_rust)
        except ToolMissing as missing:
            print(f"bench_java: without rocketmq-rust, {missing}")
    print(
        f"rocketmq-example 5.5.0 on all; {BODY_BYTES} B bodies, {QUEUES} queues, {options.rounds} rounds of "
        f"{options.seconds:g} s; us: broker CPU a message"
    )
    try:
        for flush in options.flush:
            with tempfile.TemporaryDirectory(prefix="bench-java-") as folder:
                _flush_mode(jars, rust, Path(folder), flush, options)
    except VoidRun as void:
        print(f"VOID: {void}", file=sys.stderr)
        return 1
    return 0


def _flush_mode(jars: Jars, rust: Path | None, folder: Path, flush: str, options: argparse.Namespace) -> None:
    clients = folder / "clients"
    clients.mkdir()
    settings = {
        "flushDiskType": flush,
        "mappedFileSizeCommitLog": 1 << 30,
        "mappedFileSizeConsumeQueue": 300000 * 20,
    }
    if "rocketmq" in options.beside:
        peer(SIDES["rocketmq"], heap=f"{BROKER_HEAP_MIB} MiB", **settings)
    if rust is not None:
        peer(SIDES["rocketmq-rust"], **settings)

    def producer(cluster: Cluster) -> Figure:
        return produce(jars, cluster, clients, options.seconds, "Producer", "-w", str(PRODUCER_THREADS))

    def batch(cluster: Cluster) -> Figure:
        threads = ["-w", str(BATCH_THREADS), "-b", str(BATCH)]
        return produce(jars, cluster, clients, options.seconds, "BatchProducer", *threads)

    def consumer(cluster: Cluster) -> Figure:
        return consume(jars, cluster, clients, "bench-backlog")

    scenarios = {
        "producer": producer, "batch": batch, "consumer": consumer,
        "raw": lambda cluster: raw(cluster, options.raw_count),
    }  # fmt: skip
    with ExitStack() as ends:
        clusters = [
            ends.enter_context(mqspark_cluster(folder / "mqspark", "--set", f"flushDiskType={flush}"))
        ]
        if "rocketmq" in options.beside:
            theirs = rocketmq_cluster(jars, folder / "rocketmq", heap_mib=BROKER_HEAP_MIB, settings=settings)
            clusters.append(ends.enter_context(theirs))
        if rust is not None:
            started = rocketmq_rust.rocketmq_rust_cluster(rust, folder / "rocketmq-rust", settings)
            clusters.append(ends.enter_context(started))
        for what, scenario in scenarios.items():
            if what in options.only:
                if what == "consumer":
                    for cluster in clusters:
                        fill(cluster, "bench-backlog", options.backlog)
                compare(f"{flush} {what}", clusters, options.rounds, scenario)


if __name__ == "__main__":
    sys.exit(main())
