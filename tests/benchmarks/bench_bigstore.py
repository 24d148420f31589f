"""A broker process that has much: many topics, a log of 4 GiB to start on, a backlog of 4 GiB to hand out.

    python -m tests.benchmarks bigstore --only topics      sends over 10,000 topics beside sends to one
    python -m tests.benchmarks bigstore --only restart     ready again after SIGKILL, beside RocketMQ on the same files
    python -m tests.benchmarks bigstore --only drain       sends while a backlog is drained, beside sends alone
    python -m tests.benchmarks bigstore --only rebuild     ``mqspark store rebuild`` of that log

Generators (raw_load.py) are other processes on the same cores. What is compared alternates; every message is checked or
counted by its queue's offset. Needs 10 GB of disk; ``restart`` needs Java and RocketMQ's jars (Maven, once).
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from mqspark.base.clock import SystemClock
from mqspark.store import StoreConfig
from mqspark.store.tools.offlinestore import OfflineStore
from mqspark.store.tools.remake import remake
from mqspark.store.tools.storestats import store_stats
from tests.benchmarks.bench_broker import DevProcess, broker, load
from tests.benchmarks.bench_store import make, message
from tests.benchmarks.raw_load import BASE
from tests.benchmarks.report import OURS, figure, peer, ratio
from tests.interop import jars as jar_cache
from tests.interop.rocketmq import rocketmq_broker, rocketmq_namesrv
from tests.support.clusters import Cluster, mqspark_broker, mqspark_namesrv
from tests.support.maven import ToolMissing
from tests.support.remoting import GET_MAX_OFFSET, RawConnection
from tests.support.store_tools import complete, flush
from tests.support.storefiles import segments_of

TOPIC, QUEUES = "BenchmarkTest", 4  # which every broker has
BODY_BYTES = 1000
RECORD_BYTES = 1150  # of log, with properties
SINCE_CHECKPOINT = 20_000  # messages


def filled(root: Path, gib: float) -> int:
    """A store as SIGKILL leaves it, about a second after its last checkpoint; how many messages it has."""
    store = make(root)
    store.open()
    filler = (b"mqspark." * (BODY_BYTES // 8))[: BODY_BYTES - 8]
    count = int(gib * (1 << 30)) // RECORD_BYTES // 256 * 256
    for number in range(count):
        store.appender.put(message(TOPIC, number % QUEUES, b"%d" % (BASE + number) + filler))
        if number % 64 == 63:
            store.pipeline.commit()
        if number % (1 << 18) == 0 or number == count - SINCE_CHECKPOINT:
            _flush_and_checkpoint(store)
    flush(store)
    store.abandon()
    return count


def _flush_and_checkpoint(store: Any) -> None:
    flush(store)
    store.upkeep.checkpoints.wanted = True
    complete(store.maintenance())


# --- topics ---------------------------------------------------------------------------------------------------


def many_topics(parent: Path, topics: int, count: int, rounds: int) -> None:
    """A broker with one topic and one with many, both up all the time and loaded in turn."""
    results: dict[int, list[dict[str, Any]]] = {1: [], topics: []}
    # A turn that makes many topics is long: no flow control because of it.
    settings = ("flushDiskType=ASYNC_FLUSH", "waitTimeMillsInSendQueue=60000")
    with broker(parent, *settings) as one, broker(parent, *settings) as many:
        brokers = {1: one, topics: many}
        sent = {number: max(number, 20_000) for number in brokers}
        for number, process in brokers.items():
            load("send", process, count=sent[number], topics=number)  # topics are made, files too
        for turn in range(rounds):
            for number in (1, topics) if turn % 2 else (topics, 1):
                results[number].append(load("send", brokers[number], count=count, topics=number))
                sent[number] += count
        for number, process in brokers.items():
            root = Path(process.ready["store"])
            disk = sum(path.stat().st_blocks for path in (root / "consumequeue").rglob("*")) * 512
            figures = results[number]
            print(
                f"{f'send, {number:,} topics':<28}{_middle(figures, 'per_second'):>10,.0f} /s"
                f"{_middle(figures, 'broker_cpu_us'):>8.2f} µs of broker CPU a message,"
                f" {len(os.listdir(f'/proc/{process.process.pid}/fd')):,} descriptors, {process.rss_mb():,.0f} MB,"
                f" queue files {disk >> 20} MiB on the disk"
            )
            stored = store_stats(OfflineStore(StoreConfig(store_path_root_dir=str(root))))
            if stored.messages != sent[number] or len(stored.topics) < number:
                raise SystemExit(f"{stored.messages} of {sent[number]} messages: the figures are void")
    for number, figures in results.items():
        side = f"mqspark, {number:,} topics"
        figure("send by topics", "/s", [each["per_second"] for each in figures], side=side)
        cpu_us = [each["broker_cpu_us"] for each in figures]
        figure("send by topics, broker CPU a message", "µs", cpu_us, side=side, less_is_better=True)
    clock = [b["per_second"] / a["per_second"] for a, b in zip(results[1], results[topics], strict=True)]
    cpu = [a["broker_cpu_us"] / b["broker_cpu_us"] for a, b in zip(results[1], results[topics], strict=True)]
    print(
        f"rate of many to one: {ratio(statistics.median(clock))} by the clock,"
        f" {ratio(statistics.median(cpu))} by broker CPU"
    )


# --- restart --------------------------------------------------------------------------------------------------


def copied(source: Path, target: Path) -> None:
    """Full segments are links: nobody writes into them. The rest is copied, holes kept."""
    (target / "commitlog").mkdir(parents=True)
    segments = segments_of(source)
    for path in segments[:-2]:
        os.link(path, target / "commitlog" / path.name)
    for path in segments[-2:]:
        subprocess.run(["cp", "--sparse=always", path, target / "commitlog"], check=True)
    for path in source.iterdir():
        if path.name not in ("commitlog", "lock"):
            subprocess.run(["cp", "-a", "--sparse=always", path, target], check=True)


def restarts(parent: Path, gib: float, rounds: int) -> None:
    """From the start of the process until every queue's max offset is answered, and right."""
    try:
        jars = jar_cache.fetch()
    except ToolMissing as missing:
        raise SystemExit(f"skipped, {missing}") from None
    source = parent / "source"
    count = filled(source, gib)
    sizes = {"mappedFileSizeCommitLog": 1 << 30, "mappedFileSizeConsumeQueue": 6_000_000,
             "maxHashSlotNum": 5_000_000, "maxIndexNum": 20_000_000}  # fmt: skip
    taken: dict[str, list[float]] = {"mqspark": [], "rocketmq": []}
    with mqspark_namesrv(parent / "names") as ours, rocketmq_namesrv(jars, parent / "jnames") as theirs:

        def start_ours(folder: Path) -> AbstractContextManager[Cluster]:
            return mqspark_broker(folder, ours, {"brokerName": "a", "brokerClusterName": "C", **sizes})

        def start_theirs(folder: Path) -> AbstractContextManager[Cluster]:
            return rocketmq_broker(jars, folder, theirs, settings=sizes, heap_mib=2048, registered=False)

        starts: dict[str, Callable[[Path], AbstractContextManager[Cluster]]] = {
            "mqspark": start_ours,
            "rocketmq": start_theirs,
        }
        for turn in range(rounds):
            for kind in ("mqspark", "rocketmq") if turn % 2 else ("rocketmq", "mqspark"):
                folder = parent / kind
                copied(source, folder / "store")
                began = time.perf_counter()
                with starts[kind](folder) as cluster:
                    while stored(cluster.broker) != count:
                        if time.perf_counter() - began > 300:
                            raise SystemExit(f"{kind}: {stored(cluster.broker)} of {count} messages")
                        time.sleep(0.01)
                    taken[kind].append(time.perf_counter() - began)
                    cpu_s = cluster.cpu_seconds()
                print(f"  {kind:<10}{taken[kind][-1]:8.2f} s, {cpu_s:.2f} s of CPU", flush=True)
                shutil.rmtree(folder)
    peer("RocketMQ 5.5.0", heap="2 GiB", **sizes)
    for kind, side in (("mqspark", OURS), ("rocketmq", "RocketMQ 5.5.0")):
        figure(f"ready after SIGKILL, {gib:g} GiB", "s", taken[kind], side=side, less_is_better=True)
    print(
        f"ready after SIGKILL, {gib:g} GiB, {count:,} messages: mqspark {statistics.median(taken['mqspark']):.2f} s,"
        f" RocketMQ {statistics.median(taken['rocketmq']):.2f} s"
    )


def stored(address: str) -> int:
    with RawConnection(address, timeout_s=60) as connection:
        replies = [
            connection.request(GET_MAX_OFFSET, topic=TOPIC, queueId=number) for number in range(QUEUES)
        ]
    return sum(int(reply.ext["offset"]) for reply in replies if reply.code == 0)


# --- drain ----------------------------------------------------------------------------------------------------


def drains(parent: Path, gib: float, count: int, rounds: int) -> None:
    """Sends alone, then the same while other connections read a backlog from its beginning; again with a new store."""
    alone, beside, drained = [], [], []
    for number in range(rounds):
        root = parent / f"backlog{number}"
        backlog = filled(root, gib)
        process = DevProcess(root, "flushDiskType=ASYNC_FLUSH")
        try:
            load("send", process, count=20_000, topics=2)
            alone += [load("send", process, count=count, topics=2) for _ in range(3)]
            command = [sys.executable, "-m", "tests.benchmarks.raw_load", "pull", "--port", str(process.port)]
            command += ["--count", str(backlog), "--batch", "32", "--rounds", "0"]
            before = time.perf_counter()
            puller = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            sends = []
            while puller.poll() is None:
                sends.append(load("send", process, count=count, topics=2))
            drained.append(backlog / (time.perf_counter() - before))
            if puller.returncode or puller.stdout is None:
                raise SystemExit("the drain failed: the figures are void")
            if len(sends) < 2:
                raise SystemExit("the drain ended within one run of sends: drain more, or send less a run")
            beside += sends[:-1]  # the drain ended in the last one
            alone += [load("send", process, count=count, topics=2) for _ in range(3)]
        finally:
            process.stop()
            shutil.rmtree(root)
        print(
            f"  alone {_middle(alone[-6:], 'per_second'):,.0f} /s, beside a drain of {drained[-1]:,.0f} /s"
            f" {_middle(sends[:-1], 'per_second'):,.0f} /s",
            flush=True,
        )
    for what, figures in (("alone", alone), ("beside a drain", beside)):
        figure("send", "/s", [each["per_second"] for each in figures], side=f"mqspark, {what}")
    figure("drain beside sends", "/s", drained)
    share = _middle(beside, "per_second") / _middle(alone, "per_second")
    print(f"send rate while {gib:g} GiB ({backlog:,} messages) are drained, to that alone: {ratio(share)}")


# --- rebuild --------------------------------------------------------------------------------------------------


def rebuilds(parent: Path, gib: float, rounds: int) -> None:
    root = parent / "rebuild"
    count = filled(root, gib)
    rates = []
    for _ in range(rounds):
        before, began = _cpu(), time.perf_counter()
        made = remake(StoreConfig(store_path_root_dir=str(root)), SystemClock())
        seconds, cpu = time.perf_counter() - began, _cpu() - before
        if (made.records, made.entries, made.index_entries) != (
            count,
            count,
            2 * count,
        ):  # an id and a tag each
            raise SystemExit(f"{made}: the figures are void")
        rates.append(count / seconds)
        print(
            f"  {rates[-1]:,.0f} records/s, {cpu / count * 1e6:.2f} µs of CPU each, both processes",
            flush=True,
        )
    figure(f"queues and index of {gib:g} GiB rebuilt", "records/s", rates)
    print(f"queues and index of {gib:g} GiB rebuilt: {statistics.median(rates):,.0f} records/s")


def _cpu() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def _middle(figures: list[dict[str, Any]], name: str) -> float:
    return statistics.median(figure[name] for figure in figures)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=["topics", "restart", "drain", "rebuild"], help="one part")
    parser.add_argument("--gib", type=float, default=4)
    parser.add_argument("--topics", type=int, default=10_000)
    parser.add_argument("--count", type=int, default=200_000, help="messages of 1 KB a measured send")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--store", type=Path, default=Path(tempfile.gettempdir()))
    asked = parser.parse_args()
    print("load average", " ".join(f"{load:.1f}" for load in os.getloadavg()), flush=True)
    parts: dict[str, Callable[[Path], None]] = {
        "topics": lambda parent: many_topics(parent, asked.topics, asked.count, asked.rounds),
        "restart": lambda parent: restarts(parent, asked.gib, asked.rounds),
        "drain": lambda parent: drains(parent, asked.gib, asked.count, asked.rounds),
        "rebuild": lambda parent: rebuilds(parent, asked.gib, asked.rounds),
    }
    for name in [asked.only] if asked.only else parts:
        with tempfile.TemporaryDirectory(dir=asked.store, prefix="bench-") as folder:
            parts[name](Path(folder))
    print("load average", " ".join(f"{load:.1f}" for load in os.getloadavg()))


if __name__ == "__main__":
    main()
