"""A broker with 20,000 connections as real sockets on loopback: heartbeats of all, and sends of 1 % of them.

    python -m tests.benchmarks connections [--count N] [--active SHARE] [--seconds S] [--rocketmq]

Each row is measured without and then with the idle connections: sends a second and processor time of the broker for a
send, by the active ones; how long small questions take meanwhile (the loop's lag), beside the sends and without; and
the memory of the broker. A process may have only so many files open: the count is reduced to what the limit allows,
and that is said. ``--rocketmq``: the same with RocketMQ's broker.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.benchmarks.bench_large import live_heap_mb
from tests.benchmarks.bench_scale import cpu_s, resident_bytes, shown
from tests.interop import jars as jar_cache
from tests.interop.rocketmq import rocketmq_broker, rocketmq_namesrv
from tests.support.clusters import Cluster, mqspark_broker, mqspark_namesrv
from tests.support.pace import slowness

SPARE_FILES = 1_000
"""What else a broker has open: its store, libraries and the active connections."""
IDLE_PROCESSES = 2
HEAP_MIB = 2_048


def loader(what: str, port: str, **more: object) -> subprocess.Popen[str]:
    options = [part for name, value in more.items() for part in (f"--{name}", str(value))]
    command = [sys.executable, "-m", "tests.benchmarks.connection_load", what, "--port", port, *options]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def said(child: subprocess.Popen[str]) -> dict[str, Any]:
    assert child.stdout is not None
    line = child.stdout.readline()
    assert line, "a load generator failed"
    result: dict[str, Any] = json.loads(line)
    return result


def measure(what: str, broker: Cluster, active: int, seconds: float) -> None:
    port = broker.broker.rpartition(":")[2]
    began_s, began = cpu_s(broker.broker_pid), time.perf_counter()
    quiet = said(loader("probe", port, seconds=seconds / 2))
    share = (cpu_s(broker.broker_pid) - began_s) / (time.perf_counter() - began) / slowness()
    shown(f"{what}, processor time of the broker without sends", "ms/s", [share * 1e3])
    shown(f"{what}, a question without sends, p50", "ms", [quiet["p50"]])
    shown(f"{what}, a question without sends, p99", "ms", [quiet["p99"]])
    before_s = cpu_s(broker.broker_pid)
    children = [loader("active", port, count=active, seconds=seconds), loader("probe", port, seconds=seconds)]
    sends, probes = map(said, children)
    spent_s = cpu_s(broker.broker_pid) - before_s
    shown(f"{what}, {active} connections send", "/s", [sends["per_second"]])
    shown(f"{what}, broker CPU a send", "µs", [spent_s / sends["per_second"] / seconds / slowness() * 1e6])
    shown(f"{what}, a send, p99", "ms", [sends["p99"]])
    shown(f"{what}, a question beside the sends, p99", "ms", [probes["p99"]])
    shown(f"{what}, memory of the broker", "MB", [resident_bytes(broker.broker_pid) / 1e6])


def kept_bytes(broker: Cluster) -> float:
    """Memory that is in use: of Java the live heap, because a heap is as large as it may be."""
    pid = broker.broker_pid
    return live_heap_mb(pid) * 1e6 if broker.kind == "rocketmq" else resident_bytes(pid)


def run(kind: str, broker: Cluster, idle: int, active: int, seconds: float) -> None:
    port = broker.broker.rpartition(":")[2]
    said(loader("active", port, count=4, seconds=2))  # makes the topic
    measure(f"{kind}, alone", broker, active, seconds)
    before = kept_bytes(broker)
    began_s = cpu_s(broker.broker_pid)
    each = idle // IDLE_PROCESSES
    children = [
        loader("idle", port, count=each, source=f"127.0.0.{number + 2}") for number in range(IDLE_PROCESSES)
    ]
    try:
        for child in children:
            said(child)
        joined_s = (cpu_s(broker.broker_pid) - began_s) / slowness()
        what = f"{kind}, beside {each * IDLE_PROCESSES:,} idle ones"
        grown = kept_bytes(broker) - before
        shown(f"{what}, memory of one", "KB", [grown / each / IDLE_PROCESSES / 1e3])
        shown(f"{what}, one connects and joins in", "µs", [joined_s / each / IDLE_PROCESSES * 1e6])
        measure(what, broker, active, seconds)
        for child in children:
            assert child.stdin is not None
            child.stdin.close()
            end = said(child)
            assert end["heartbeats"] - end["answers"] < 100, f"lost heartbeats: {end}"
    finally:
        for child in children:
            child.kill()
            child.wait()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--active", type=float, default=0.01)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rocketmq", action="store_true")
    asked = parser.parse_args()
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    active = max(1, int(asked.count * asked.active))
    idle = min(asked.count - active, limit - active - SPARE_FILES) // IDLE_PROCESSES * IDLE_PROCESSES
    if idle + active < asked.count - 1:
        print(f"   {idle + active:,} connections: a process may have {limit:,} files open here")
    settings: dict[str, object] = {"autoCreateTopicEnable": True, "brokerClusterName": "c", "brokerName": "b"}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-connections-")))
        if asked.rocketmq:
            settings["waitTimeMillsInSendQueue"] = (
                10_000  # it would refuse sends when others use the processors
            )
            jars = jar_cache.fetch()
            namesrv = stack.enter_context(rocketmq_namesrv(jars, folder / "namesrv"))
            broker = stack.enter_context(
                rocketmq_broker(jars, folder / "broker", namesrv, heap_mib=HEAP_MIB, settings=settings)
            )
        else:
            namesrv = stack.enter_context(mqspark_namesrv(folder))
            more = {
                "maxConnections": 2 * asked.count,
                "mappedFileSizeCommitLog": 64 << 20,
                "maxMappedFiles": 64,
            }
            broker = stack.enter_context(mqspark_broker(folder, namesrv, settings | more))
        run(broker.kind, broker, idle, active, asked.seconds)


if __name__ == "__main__":
    main()
