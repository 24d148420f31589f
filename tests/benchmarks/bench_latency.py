"""From send to listener at steady rates, and what stands still in the broker meanwhile.

    python -m tests.benchmarks latency [--rate N ...] [--seconds S] [--flush ASYNC_FLUSH] [--side NAME] [--store DIR]
        [--rocketmq]

A producer and a listener (client_sides/) work on a broker whose event loop times each callback (watched.py). The load
is open: a message is late from when it was due. Every message must arrive. Then come the longest callbacks of the
broker: the clock, the processor time, garbage collection in it, and where it was. What took long by the clock only
has waited for the disk, for a thread that held the interpreter or, on a busy machine, for a processor. ``--rocketmq``:
the same client at RocketMQ's broker, too, without a look into it.
"""

from __future__ import annotations

import argparse
import json
import signal
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.benchmarks.bench_broker import DevProcess
from tests.benchmarks.bench_client import Bench, Case, run, sides
from tests.benchmarks.bench_java import BROKER_HEAP_MIB
from tests.benchmarks.report import OURS, figure, peer
from tests.interop import jars as jar_cache
from tests.interop.rocketmq import rocketmq_cluster
from tests.support.clusters import Cluster

RATES = (200, 1_000, 5_000)
SIZE = 1024
SHOWN = 8
ROCKETMQ = "RocketMQ 5.5.0"
WARM_UP_RATE = 2_000
WARM_UP_S = 8.0
SETTLED_S = 8.0
"""The broker's console has loaded its client then."""


@dataclass(frozen=True, slots=True)
class Rocketmq:
    """RocketMQ's broker, as a benchmark of clients knows brokers."""

    cluster: Cluster

    @property
    def ready(self) -> dict[str, str]:
        return {"namesrv": self.cluster.namesrv}

    @property
    def port(self) -> int:
        return int(self.cluster.broker.rpartition(":")[2])

    def cpu_s(self) -> float:
        return self.cluster.cpu_seconds()


def case_of(flush: str, rate: int, seconds: float) -> Case:
    return Case(f"{rate:,} a second, {flush}", "rate", SIZE, int(rate * seconds), rate=rate)


def measure(parent: Path, flush: str, rate: int, seconds: float, side: str, settings: list[str]) -> None:
    ((_, (command, env)),) = sides([side]).items()
    with tempfile.TemporaryDirectory(dir=parent, prefix="bench-latency-") as name:
        folder = Path(name)
        result = folder / "turns.json"
        (folder / "home").mkdir()
        process = DevProcess(
            folder / "store",
            f"flushDiskType={flush}",
            *settings,
            program=("-m", "tests.benchmarks.watched", str(result)),
        )
        try:
            bench = Bench(process, folder / "home")
            time.sleep(SETTLED_S)
            process.process.send_signal(signal.SIGUSR1)
            case = case_of(flush, rate, seconds)
            said = run(bench, case, "", command, env)
        finally:
            process.stop()
        show(case, said, OURS)
        show_turns(case, json.loads(result.read_text()))


def measure_rocketmq(parent: Path, flush: str, rates: Sequence[int], seconds: float, side: str) -> None:
    ((_, (command, env)),) = sides([side]).items()
    with tempfile.TemporaryDirectory(dir=parent, prefix="bench-latency-") as name:
        folder = Path(name)
        (folder / "home").mkdir()
        peer(ROCKETMQ, heap=f"{BROKER_HEAP_MIB} MiB", flushDiskType=flush)
        settings = {"flushDiskType": flush, "mappedFileSizeCommitLog": 1 << 30}
        with rocketmq_cluster(
            jar_cache.fetch(), folder / "rocketmq", heap_mib=BROKER_HEAP_MIB, settings=settings
        ) as cluster:
            bench = Bench(Rocketmq(cluster), folder / "home")
            run(bench, case_of(flush, WARM_UP_RATE, WARM_UP_S), "", command, env)  # its code is compiled then
            for rate in rates:
                case = case_of(flush, rate, seconds)
                show(case, run(bench, case, "", command, env), ROCKETMQ)


def show(case: Case, said: dict[str, Any], broker: str) -> None:
    arrived = said["arrived"]
    print(f"{case.name}, {broker}: " + ", ".join(f"{name} {value:.2f} ms" for name, value in arrived.items()))
    for name in ("p50", "p99", "p99.9"):
        figure(
            f"send to listener, {case.name}, {name}", "ms", [arrived[name]], side=broker, less_is_better=True
        )


def show_turns(case: Case, turns: dict[str, Any]) -> None:
    print(
        f"   the loop: {turns['turns']:,} callbacks, p99 {turns['p99_ms']:.2f} ms, p99.9 {turns['p99.9_ms']:.2f} ms;"
        f" over 2 ms: {sum(turns['long'].values())} by the clock, {sum(turns['long_cpu'].values())} on a processor"
    )
    for by, measure in (("by_clock", "ms"), ("by_processor", "cpu_ms")):
        print(f"   the longest {by.replace('_', ' ')}")
        for each in turns[by][:SHOWN]:
            print(
                f"   {each['ms']:6.2f} ms, {each['cpu_ms']:.2f} on a processor, {each['gc_ms']:.2f} of collections,"
                f" at {each['at_s']:.1f} s: {each['what']}" + (f"; {each['where']}" if each["where"] else "")
            )
        name = f"longest callback {by.replace('_', ' ')}, {case.name}"
        figure(name, "ms", [each[measure] for each in turns[by][:1]], less_is_better=True)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks latency")
    parser.add_argument("--rate", type=int, action="append")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--flush", action="append", choices=["ASYNC_FLUSH", "SYNC_FLUSH"])
    parser.add_argument("--side", default="ours aio", choices=["ours", "ours aio", "cpp", "java"])
    parser.add_argument("--set", action="append", default=[], help="a setting of the broker, KEY=VALUE")
    parser.add_argument("--store", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--rocketmq", action="store_true", help="beside RocketMQ's broker")
    options = parser.parse_args(arguments)
    for flush in options.flush or ["ASYNC_FLUSH", "SYNC_FLUSH"]:
        if options.rocketmq:
            measure_rocketmq(options.store, flush, options.rate or RATES, options.seconds, options.side)
        for rate in options.rate or RATES:
            measure(options.store, flush, rate, options.seconds, options.side, options.set)


if __name__ == "__main__":
    main()
