"""Our Python client beside RocketMQ's C++ client (in its Python binding) and its Java client, on one broker of ours.

    python -m tests.benchmarks client [--case NAME ...] [--side NAME ...] [--rounds R] [--scale F]

Each side is a process of its own (client_sides/) that measures its own time and processor time, warm-up apart. Sides
take turns, A B C C B A ..., medians are printed. What is sent is pulled back and compared by number; a consumer marks
every number that it gets; a run that lost one, or one that doubled a send, has no figure.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from mqspark.record.record import decode_records
from tests.benchmarks.bench_broker import DevProcess
from tests.benchmarks.client_sides.side import DIGITS
from tests.benchmarks.report import figure, ratio
from tests.interop import jars as jar_cache
from tests.interop.other_clients import CPP
from tests.interop.rocketmq import java_command
from tests.support.maven import ToolMissing
from tests.support.remoting import GET_MAX_OFFSET, UPDATE_AND_CREATE_TOPIC, RawConnection, topic_fields

SIDES = Path(__file__).parent / "client_sides"
QUEUES = 8
JAVA_HEAP_MIB = 512
RUN_TIMEOUT_S = 120
SETTLE_S = 30.0


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    what: str
    """As the sides know it."""
    size: int
    count: int
    width: int = 1
    """Threads or coroutines that wait, or what may be in flight."""
    rate: float = 0.0
    without: tuple[str, ...] = ()
    """Sides that have no such thing."""


CASES = [
    Case("send, 16 threads wait, 1 KB", "sync", 1024, 40_000, 16),
    Case("send, 64 threads wait, 1 KB", "sync", 1024, 100_000, 64),
    Case("send async, 256 in flight, 100 B", "async", 100, 100_000, 256),
    Case("send async, 256 in flight, 1 KB", "async", 1024, 100_000, 256),
    Case("batches of 32, 4 threads, 100 B", "batch", 100, 400_000, 4),
    Case("batches of 32, 4 threads, 1 KB", "batch", 1024, 200_000, 4),
    Case("oneway, 100 B", "oneway", 100, 100_000),
    Case("auto-batch, 4,096 in flight, 100 B", "autobatch", 100, 200_000, 4096, without=("cpp",)),
    Case("push drain, 100 B", "push", 100, 1_000_000),
    Case("push drain, 1 KB", "push", 1024, 300_000),
    Case("lite pull drain, 100 B", "lite", 100, 1_000_000),
    Case("lite pull drain, 1 KB", "lite", 1024, 300_000),
    Case("1,000 a second, 100 B", "rate", 100, 10_000, rate=1_000.0),
]
DRAINS = ("push", "lite")
SIDE_NAMES = {"ours": "ours, blocking", "ours aio": "ours, asyncio", "cpp": "C++ from Python", "java": "Java"}


class VoidRun(Exception):
    """The run lost, doubled or altered something: it has no figure."""


@dataclass(slots=True)
class Figures:
    """Figures of one side and case, a value a run."""

    rates: list[float] = field(default_factory=list)
    cpu_us: list[float] = field(default_factory=list)
    latencies: list[dict[str, dict[str, float]]] = field(default_factory=list)


# --- the sides ----------------------------------------------------------------------------------------------

Command = Callable[[Path], list[str]]
"""The command by a folder that the side may write to."""


def ours(*options: str) -> Command:
    return lambda folder: [sys.executable, "-m", "tests.benchmarks.client_sides.ours", *options]


def cpp() -> tuple[Command, dict[str, str]]:
    # It writes its log below HOME.
    return lambda home: [sys.executable, str(SIDES / "cpp.py")], {"PYTHONPATH": str(CPP.build())}


def java() -> Command:
    jars = jar_cache.fetch()
    program = jar_cache.compiled(SIDES / "Side.java", jars)
    return lambda folder: java_command(
        jar_cache.Jars(jars.jar_folder, program), "Side", folder, heap_mib=JAVA_HEAP_MIB, options=[]
    )


def sides(wanted: Sequence[str]) -> dict[str, tuple[Command, dict[str, str]]]:
    makers: dict[str, Callable[[], tuple[Command, dict[str, str]]]] = {
        "ours": lambda: (ours(), {}),
        "ours aio": lambda: (ours("--aio"), {}),
        "cpp": cpp,
        "java": lambda: (java(), {}),
    }
    made = {}
    for name in wanted:
        try:
            made[name] = makers[name]()
        except ToolMissing as error:
            print(f"  without {name}: {error}", flush=True)
    return made


# --- the broker ---------------------------------------------------------------------------------------------


class Served(Protocol):
    """A name server and a broker that run."""

    @property
    def ready(self) -> Mapping[str, str]: ...

    @property
    def port(self) -> int: ...

    def cpu_s(self) -> float: ...


class Bench:
    def __init__(self, process: Served, folder: Path) -> None:
        self.process = process
        self.folder = folder
        self.namesrv = process.ready["namesrv"]
        self.connection = RawConnection(f"127.0.0.1:{process.port}")
        self.broker_cpu_us: dict[str, list[float]] = {}

    def topic(self, name: str) -> str:
        reply = self.connection.request(UPDATE_AND_CREATE_TOPIC, **topic_fields(name, QUEUES))
        if reply.code:
            raise VoidRun(f"topic {name}: {reply}")
        return name

    def stored(self, topic: str) -> list[int]:
        return [
            int(self.connection.request(GET_MAX_OFFSET, topic=topic, queueId=queue).ext["offset"])
            for queue in range(QUEUES)
        ]

    def check(self, topic: str, count: int, size: int) -> None:
        """That the topic holds each number once, whatever else a side sent to get to know it."""
        deadline = time.monotonic() + SETTLE_S
        while sum(self.stored(topic)) < count and time.monotonic() < deadline:
            time.sleep(0.05)
        times = bytearray(count + 1)
        for queue, end in enumerate(self.stored(topic)):
            offset = 0
            while offset < end:
                reply = self.connection.pull(topic, queue, offset, group="bench-check", count=1000)
                if reply.code:
                    raise VoidRun(f"{topic} {queue} at {offset} of {end}: {reply}")
                for record in decode_records(reply.body):
                    if len(record.body) != size:
                        raise VoidRun(f"a body of {len(record.body)} bytes in {topic}")
                    times[min(count, int(record.body[:DIGITS]))] += 1
                offset = int(reply.ext["nextBeginOffset"])
        times.pop()
        if set(times) != {1}:
            lost = times.count(0)
            raise VoidRun(f"{topic}: {lost} of {count} lost, {sum(times) - count + lost} too many")

    def run(self, command: list[str], env: dict[str, str], case: Case, topic: str) -> dict[str, Any]:
        """What a side says. It lives until all is stored: oneway messages may still be in its buffers."""
        words = [case.what, self.namesrv, topic, case.count, case.size, case.width, case.rate]
        before = self.process.cpu_s()
        with subprocess.Popen(
            [*command, *map(str, words)],
            env={**os.environ, "HOME": str(self.folder), **env},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as child:
            stop = threading.Timer(RUN_TIMEOUT_S, child.kill)
            stop.start()
            try:
                assert child.stdout is not None
                assert child.stdin is not None
                line = next((line for line in child.stdout if line.startswith("{")), "")
                if line and case.what not in (*DRAINS, "rate"):
                    self.check(topic, case.count, case.size)
                child.stdin.close()
                child.wait()
            finally:
                stop.cancel()
        if not line:
            raise VoidRun(f"{' '.join(command[-2:])} ended with {child.returncode} and no figure")
        self.broker_cpu_us.setdefault(case.name, []).append(
            (self.process.cpu_s() - before) / case.count * 1e6
        )
        said: dict[str, Any] = json.loads(line)
        return said


def run(bench: Bench, case: Case, filled: str, command: Command, env: dict[str, str]) -> dict[str, Any]:
    if case.what in DRAINS:
        return bench.run(command(bench.folder), env, case, filled)
    name = bench.topic(f"client-{time.monotonic_ns()}")
    if case.what != "rate":
        bench.topic(f"{name}-warm")
    return bench.run(command(bench.folder), env, case, name)


def compare(
    bench: Bench, case: Case, commands: dict[str, tuple[Command, dict[str, str]]], rounds: int
) -> dict[str, Figures]:
    names = [name for name in commands if name not in case.without]
    filled = ""
    if case.what in DRAINS:
        filled = bench.topic(f"client-{time.monotonic_ns()}")
        bench.topic(f"{filled}-warm")
        fill = Case("", "batch", case.size, case.count, 4)
        bench.run(ours("--aio")(bench.folder), {}, fill, filled)
    figures = {name: Figures() for name in names}
    for number in range(rounds):
        for name in names if number % 2 == 0 else reversed(names):
            try:
                said = run(bench, case, filled, *commands[name])
            except VoidRun as error:
                print(f"  {name}: a run without a figure: {error}", flush=True)
                continue
            figures[name].rates.append(case.count / said["seconds"])
            figures[name].cpu_us.append(said["cpu_s"] / case.count * 1e6)
            if said.get("doubled"):
                print(f"  {name}: {said['doubled']} messages came twice")
            if "sent" in said:
                figures[name].latencies.append({key: said[key] for key in ("sent", "arrived")})
    return {name: figure for name, figure in figures.items() if figure.rates}


def record(case: Case, figures: dict[str, Figures]) -> None:
    for name, runs in figures.items():
        side = SIDE_NAMES[name]
        if runs.latencies:
            for what, quantile in itertools.product(("sent", "arrived"), ("p50", "p99")):
                values = [latency[what][quantile] for latency in runs.latencies]
                figure(f"{case.name}, {what}, {quantile}", "ms", values, side=side, less_is_better=True)
        else:
            seconds = case.count / statistics.median(runs.rates)
            figure(case.name, "/s", runs.rates, side=side, round_s=seconds)
        cpu_name = f"{case.name}, client CPU a message"
        figure(cpu_name, "µs", runs.cpu_us, side=side, less_is_better=True)


def show(bench: Bench, case: Case, figures: dict[str, Figures]) -> None:
    rates = {name: statistics.median(figure.rates) for name, figure in figures.items()}
    broker_us = statistics.median(bench.broker_cpu_us.get(case.name, [0.0]))
    print(f"{case.name} ({case.count:,} messages; broker {broker_us:.1f} us CPU a message)")
    for name, runs in figures.items():
        if runs.latencies:
            said = "; ".join(
                f"{what} p50 {statistics.median(each[what]['p50'] for each in runs.latencies):.2f} ms,"
                f" p99 {statistics.median(each[what]['p99'] for each in runs.latencies):.2f} ms"
                for what in ("sent", "arrived")
            )
        else:
            said = f"{rates[name]:>10,.0f} /s"
            said += "".join(
                f", {ratio(rates[name] / rates[other])} x {other}"
                for other in ("cpp", "java")
                if other in rates and name.startswith("ours")
            )
        print(
            f"  {name:<10} {said}; {statistics.median(runs.cpu_us):6.1f} us CPU a message"
            f" [{', '.join(f'{rate:,.0f}' for rate in runs.rates)}]",
            flush=True,
        )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks client")
    parser.add_argument("--case", action="append", help="only cases with this in their names")
    parser.add_argument("--side", action="append", choices=["ours", "ours aio", "cpp", "java"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of messages")
    parser.add_argument("--store", type=Path, default=Path(tempfile.gettempdir()))
    options = parser.parse_args(arguments)
    commands = sides(options.side or ["ours", "ours aio", "cpp", "java"])
    folder = Path(tempfile.mkdtemp(prefix="bench-client-", dir=options.store))
    (folder / "home").mkdir()
    process = DevProcess(
        folder / "store",
        "flushDiskType=ASYNC_FLUSH",
        "maxTransferCountOnMessageInMemory=1000",
        "serverChannelMaxIdleTimeSeconds=3600",  # a side that hangs is waited for
        "waitTimeMillsInSendQueue=60000",  # what is measured is not whom a busy machine sends away
    )
    try:
        bench = Bench(process, folder / "home")
        for case in CASES:
            if options.case and not any(word in case.name for word in options.case):
                continue
            if options.scale != 1.0:
                case = Case(
                    case.name, case.what, case.size, int(case.count * options.scale), case.width, case.rate,
                    case.without,
                )  # fmt: skip
            try:
                figures = compare(bench, case, commands, options.rounds)
                record(case, figures)
                show(bench, case, figures)
            except VoidRun as error:
                print(f"{case.name}: no figure: {error}", flush=True)
    finally:
        process.stop()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
