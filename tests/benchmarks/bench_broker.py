"""The broker alone, raw frames over loopback: send under both flush types, pull, start, memory.

The load generator (raw_load.py) is another process on the same cores; every message is checked. SYNC and
ASYNC alternate A B A B on fresh stores; medians are reported.

    python -m tests.benchmarks broker [--count N] [--rounds R] [--store DIR]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BATCH = 160


class DevProcess:
    """``mqspark dev`` and what its READY line says."""

    def __init__(self, store: Path, *settings: str) -> None:
        command = [sys.executable, "-m", "mqspark_server.cli", "dev", "--store", str(store)]
        command += ["--namesrv-port", "0", "--broker-port", "0", "--set", "logLevel=WARNING"]
        for setting in settings:
            command += ["--set", setting]
        began = time.perf_counter()
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
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
def broker(parent: Path, *settings: str) -> Iterator[DevProcess]:
    store = Path(tempfile.mkdtemp(dir=parent, prefix="bench-"))
    process = DevProcess(store, *settings)
    try:
        yield process
    finally:
        process.stop()
        shutil.rmtree(store)


def load(what: str, process: DevProcess, **options: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.benchmarks.raw_load", what, "--port", str(process.port)]
    for name, value in options.items():
        command += [f"--{name.replace('_', '-')}", str(value)]
    before = process.cpu_s()
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout)
    result["broker_cpu_us"] = (process.cpu_s() - before) * 1e6 / result["messages"]
    return result


def run(count: int, rounds: int, parent: Path) -> dict[str, Any]:
    results: dict[str, list[dict[str, Any]]] = {"ASYNC_FLUSH": [], "SYNC_FLUSH": [], "pull": []}
    starts: list[float] = []
    idle: list[float] = []
    for _ in range(rounds):
        for flush in ("ASYNC_FLUSH", "SYNC_FLUSH"):
            settings = (f"flushDiskType={flush}", f"maxTransferCountOnMessageInMemory={BATCH}")
            with broker(parent, *settings) as process:
                starts.append(process.start_s)
                time.sleep(1)  # idle is idle, not just started
                idle.append(process.rss_mb())
                sent = load("send", process, count=count)
                results[flush].append(sent)
                if flush == "ASYNC_FLUSH":
                    results["pull"].append(load("pull", process, count=count, batch=BATCH, rounds=3))
    return {
        "send_async_per_s": _median(results["ASYNC_FLUSH"], "per_second"),
        "send_async_broker_cpu_us": _median(results["ASYNC_FLUSH"], "broker_cpu_us"),
        "send_sync_per_s": _median(results["SYNC_FLUSH"], "per_second"),
        "send_sync_broker_cpu_us": _median(results["SYNC_FLUSH"], "broker_cpu_us"),
        "sync_to_async": _median(results["SYNC_FLUSH"], "per_second")
        / _median(results["ASYNC_FLUSH"], "per_second"),
        "pull_per_s": _median(results["pull"], "per_second"),
        "pull_broker_cpu_us": _median(results["pull"], "broker_cpu_us"),
        "start_s": statistics.median(starts),
        "idle_rss_mb": statistics.median(idle),
    }


def _median(results: list[dict[str, Any]], key: str) -> float:
    return statistics.median(result[key] for result in results)


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks broker")
    parser.add_argument("--count", type=int, default=300_000, help="messages of 1 KB a run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--store", type=Path, default=Path(tempfile.gettempdir()))
    asked = parser.parse_args(arguments)
    for name, value in run(asked.count, asked.rounds, asked.store).items():
        print(f"{name:28} {value:>14,.2f}")


if __name__ == "__main__":
    main(sys.argv[1:])
