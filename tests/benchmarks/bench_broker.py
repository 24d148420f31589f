"""The broker alone, raw frames over loopback: send under both flush types, pull, start, memory.

The load generator (raw_load.py) is another process on the same cores; every message is checked. SYNC and
ASYNC alternate A B A B on fresh stores; medians are reported.

    python -m tests.benchmarks broker [--count N] [--rounds R] [--store DIR]
    python -m tests.benchmarks broker --against CLONE     this tree (A) and another (B) in turn, and A/B
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.benchmarks.report import OURS, Figure, figure, ratio, spelled

BATCH = 160


class DevProcess:
    """``mqspark dev`` and what its READY line says."""

    def __init__(
        self,
        store: Path,
        *settings: str,
        tree: Path | None = None,
        program: Sequence[str] = ("-m", "mqspark_server.cli"),
    ) -> None:
        """``program``: what runs as ``mqspark``, for Python."""
        command = [sys.executable, *program, "dev", "--store", str(store)]
        command += ["--namesrv-port", "0", "--broker-port", "0", "--set", "logLevel=WARNING"]
        for setting in settings:
            command += ["--set", setting]
        began = time.perf_counter()
        env = dict(os.environ)
        if tree is not None:
            env["PYTHONPATH"] = os.pathsep.join(
                str(tree / part) for part in ("", "server", "datasource", "jobs")
            )
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env, cwd=tree)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        self.start_s = time.perf_counter() - began
        if not line.startswith("READY "):
            raise RuntimeError(f"mqspark dev did not start: {line!r}")
        self.ready = dict(part.split("=", 1) for part in line.split()[1:])
        self.port = int(self.ready["broker"].rpartition(":")[2])

    def rss_mb(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) / 1024

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(30)
        assert self.process.stdout is not None
        self.process.stdout.close()
        if code:
            raise RuntimeError(f"mqspark dev ended with {code}")


@contextlib.contextmanager
def broker(parent: Path, *settings: str, tree: Path | None = None) -> Iterator[DevProcess]:
    store = Path(tempfile.mkdtemp(dir=parent, prefix="bench-"))
    process = DevProcess(store, *settings, tree=tree)
    try:
        yield process
    finally:
        process.stop()
        shutil.rmtree(store)


def raw_load(what: str, port: int, **options: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.benchmarks.raw_load", what, "--port", str(port)]
    for name, value in options.items():
        command += [f"--{name.replace('_', '-')}", str(value)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def load(what: str, process: DevProcess, **options: int) -> dict[str, Any]:
    before = process.cpu_s()
    result = raw_load(what, process.port, **options)
    result["broker_cpu_us"] = (process.cpu_s() - before) * 1e6 / result["messages"]
    return result


class Results:
    """What one tree's brokers gave, round by round."""

    def __init__(self, tree: Path | None) -> None:
        self.tree = tree
        self.results: dict[str, list[dict[str, Any]]] = {"ASYNC_FLUSH": [], "SYNC_FLUSH": [], "pull": []}
        self.starts: list[float] = []
        self.idle: list[float] = []

    def measure(self, flush: str, count: int, parent: Path) -> None:
        settings = (f"flushDiskType={flush}", f"maxTransferCountOnMessageInMemory={BATCH}")
        with broker(parent, *settings, tree=self.tree) as process:
            self.starts.append(process.start_s)
            time.sleep(1)  # idle is idle, not just started
            self.idle.append(process.rss_mb())
            self.results[flush].append(load("send", process, count=count))
            if flush == "ASYNC_FLUSH":
                self.results["pull"].append(load("pull", process, count=count, batch=BATCH, rounds=3))

    def record(self, side: str) -> list[Figure]:
        """Report every round of every quantity."""
        results = self.results
        made = [
            figure(f"send, {flush}", "/s", [each["per_second"] for each in results[flush]], side=side)
            for flush in ("ASYNC_FLUSH", "SYNC_FLUSH")
        ]
        made.append(figure("pull", "/s", [each["per_second"] for each in results["pull"]], side=side))
        for what, rounds in results.items():
            name = what if what == "pull" else f"send, {what}"
            cpu_us = [each["broker_cpu_us"] for each in rounds]
            made.append(figure(f"{name}, broker CPU a message", "µs", cpu_us, side=side, less_is_better=True))
        for flush in ("ASYNC_FLUSH", "SYNC_FLUSH"):
            own_us = [each["own_cpu_us"] for each in results[flush]]
            name = f"send, {flush}, the load's own CPU a message"
            made.append(figure(name, "µs", own_us, side=side, less_is_better=True))
        made.append(figure("start to READY", "s", self.starts, side=side, less_is_better=True))
        made.append(figure("idle memory", "MB", self.idle, side=side, less_is_better=True))
        return made


def run(count: int, rounds: int, parent: Path, *trees: Path | None) -> list[list[Figure]]:
    """The figures of each tree; the trees take turns, and so does which is first: on a virtual machine the first to
    touch a page of memory pays for it."""
    results = [Results(tree) for tree in trees]
    for number in range(rounds):
        for flush in ("ASYNC_FLUSH", "SYNC_FLUSH"):
            for each in results[:: -1 if number % 2 else 1]:
                each.measure(flush, count, parent)
    return [each.record(OURS if each.tree is None else f"B: {each.tree.name}") for each in results]


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks broker")
    parser.add_argument("--count", type=int, default=300_000, help="messages of 1 KB a run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--store", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--against", type=Path, help="another clone of the repository: B")
    asked = parser.parse_args(arguments)
    trees = [None] if asked.against is None else [None, asked.against.resolve()]
    ours, *others = run(asked.count, asked.rounds, asked.store, *trees)
    for n, mine in enumerate(ours):
        print(f"{mine.name:50} {spelled(mine)}")
        for theirs in (each[n] for each in others):
            value = theirs.median / mine.median if mine.less_is_better else mine.median / theirs.median
            print(f"{theirs.side:>50} {spelled(theirs)}, A/B {ratio(value)}")


if __name__ == "__main__":
    main(sys.argv[1:])
