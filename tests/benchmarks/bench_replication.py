"""Replication: what a second copy costs, how fast a new slave catches up, how long sends stand still without a master.

    python -m tests.benchmarks replication [--parts rate,catchup,heal,failover] [--rounds R] [--count N] [--rocketmq]

rate        1 KB sends (raw_load.py): a single broker with SYNC_FLUSH, and a SYNC_MASTER with ASYNC_FLUSH and one slave,
            in turn; with --rocketmq also RocketMQ's SYNC_MASTER and its slave
catchup     a slave without a log copies one of N messages of 1 KB
heal        the middle half of a slave's copy of that log is zeros when it starts: until it has those messages again
failover    three replicas and a controller (mqspark dev), minInSyncReplicas=2: from SIGKILL, or SIGSTOP, of the master
            to the first SEND_OK of a producer that sends one message after the other; all that was acknowledged is read
            at the end; the median, the range and p99. With --rocketmq also three of RocketMQ's brokers under its
            controller, in turn, some rounds at a time
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import httpx

from mqspark import LitePullConsumer, Message, Producer, SendStatus
from mqspark.errors import MQError
from mqspark.protocol.codes import RequestCode
from tests.benchmarks.bench_broker import DevProcess, broker, load, raw_load
from tests.benchmarks.report import OURS, Figure, figure, peer, ratio, ratio_line, spelled
from tests.benchmarks.rocketmq_replicas import HEAP_MIB, rocketmq_pair, rocketmq_replicas
from tests.interop import jars as jar_cache
from tests.interop.jars import Jars
from tests.support.maven import ToolMissing
from tests.support.remoting import ask

PARTS = ("rate", "catchup", "heal", "failover")
WAIT_S = 120.0
TOPIC = "Failover"
ROCKETMQ = "RocketMQ 5.5.0"
BLOCK = 5
"""Failovers of one side before it is the other's turn: RocketMQ's replicas take most of a minute to start."""
FAULTS = {"killed": signal.SIGKILL, "silent": signal.SIGSTOP}


def until(condition: Callable[[], bool], what: str | Callable[[], str]) -> None:
    end = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > end:
            raise RuntimeError(f"not within {WAIT_S:.0f} s: {what if isinstance(what, str) else what()}")
        time.sleep(0.02)


def log_end(address: str) -> int:
    with contextlib.suppress(OSError):
        table = json.loads(ask(address, RequestCode.GET_BROKER_RUNTIME_INFO).body)["table"]
        return int(table["commitLogMaxOffset"])
    return -1


@contextlib.contextmanager
def slave(parent: Path, master: DevProcess, store: Path | None = None) -> Iterator[dict[str, str]]:
    """A slave of this broker, in ``store`` if it is to be kept; what its line says: its addresses."""
    root = store or Path(tempfile.mkdtemp(dir=parent, prefix="bench-slave-"))
    settings = {
        "brokerName": "dev", "brokerId": 1, "brokerRole": "SLAVE", "namesrvAddr": master.ready["namesrv"],
        "bindAddress": "127.0.0.1", "brokerIP1": "127.0.0.1", "listenPort": 0, "haListenPort": 0, "httpPort": 0,
        "flushDiskType": "ASYNC_FLUSH", "storePathRootDir": root, "logLevel": "WARNING",
    }  # fmt: skip
    command = [sys.executable, "-m", "mqspark_server.cli", "broker", "run"]
    for key, value in settings.items():
        command += ["--set", f"{key}={value}"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        yield dict(part.split("=", 1) for part in line.split()[1:])
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        process.stdout.close()
        if store is None:
            shutil.rmtree(root)


def rate(count: int, rounds: int, parent: Path, jars: Jars | None) -> None:
    single, pair, theirs = [], [], []
    for _ in range(rounds):
        with broker(parent, "flushDiskType=SYNC_FLUSH") as alone:
            single.append(load("send", alone, count=count)["per_second"])
        settings = ("brokerRole=SYNC_MASTER", "inSyncReplicas=2", "flushDiskType=ASYNC_FLUSH")
        with broker(parent, *settings) as master, slave(parent, master) as copy:
            _await_slave(master)
            result = load("send", master, count=count)
            until(
                lambda: log_end(copy["broker"]) == log_end(master.ready["broker"]), "the slave has everything"
            )
            pair.append(result["per_second"])
        if jars is not None:
            with rocketmq_pair(jars, parent) as (their_master, their_slave):
                port = int(their_master.rpartition(":")[2])
                raw_load("send", port, count=count)  # its JVMs compile
                result = raw_load("send", port, count=count)
                until(
                    lambda: log_end(their_slave) == log_end(their_master), "RocketMQ's slave has everything"
                )
                theirs.append(result["per_second"])
    ours = figure("send, single broker, SYNC_FLUSH", "/s", single)
    both = figure("send, SYNC_MASTER and a slave, ASYNC_FLUSH", "/s", pair)
    print(f"{ours.name:44} {spelled(ours)}")
    print(f"{both.name:44} {spelled(both)}, {ratio(both.median / ours.median)} x the single broker")
    if theirs:
        rocketmqs = figure("send, SYNC_MASTER and a slave, ASYNC_FLUSH", "/s", theirs, side=ROCKETMQ)
        print(f"{'the same, RocketMQ':44} {spelled(rocketmqs)}")
        print(ratio_line("SYNC_MASTER and a slave, beside RocketMQ's", both, rocketmqs))


def _await_slave(master: DevProcess) -> None:
    def is_stored() -> bool:
        try:
            return producer.send(Message("Probe", b"x")).status is SendStatus.SEND_OK
        except MQError:
            return False

    producer = Producer(master.ready["namesrv"], group="probe")
    producer.start()
    until(is_stored, "the slave is in sync")
    producer.stop()


def catchup(count: int, rounds: int, parent: Path) -> None:
    rates, seconds = [], []
    with broker(parent, "flushDiskType=ASYNC_FLUSH", "brokerRole=ASYNC_MASTER") as master:
        load("send", master, count=count)
        end = log_end(master.ready["broker"])
        for _ in range(rounds):
            with slave(parent, master) as copy:
                began = time.perf_counter()
                until(lambda: log_end(copy["broker"]) == end, "the slave has everything")
                seconds.append(time.perf_counter() - began)
                rates.append(end / seconds[-1] / 1e6)
    made = figure("catch-up of a new slave", "MB/s", rates, round_s=min(seconds))
    print(f"{made.name:44} {spelled(made)}")


def heal(count: int, rounds: int, parent: Path) -> None:
    rates, seconds = [], []
    with broker(parent, "flushDiskType=ASYNC_FLUSH", "brokerRole=ASYNC_MASTER") as master:
        load("send", master, count=count)
        end = log_end(master.ready["broker"])
        store = Path(tempfile.mkdtemp(dir=parent, prefix="bench-slave-"))
        try:
            with slave(parent, master, store) as copy:
                until(lambda: log_end(copy["broker"]) == end, "the slave has everything")
            (segment,) = (store / "commitlog").glob("0*")
            sound = segment.read_bytes()[:end]
            for _ in range(rounds):
                with segment.open("r+b") as file:
                    file.seek(end // 4)
                    file.write(bytes(end // 2))
                began = time.perf_counter()
                with slave(parent, master, store) as copy:
                    until(lambda: _is_whole(copy["http"]), "the slave is healed")
                    seconds.append(time.perf_counter() - began)
                rates.append(end / 2 / seconds[-1] / 1e6)
                if segment.read_bytes()[:end] != sound:
                    raise RuntimeError("the healed log is not the master's")
        finally:
            shutil.rmtree(store)
    healed = figure("healing of a slave, with its start", "MB/s", rates, round_s=min(seconds))
    print(f"{healed.name:44} {spelled(healed)}")


def _is_whole(http: str) -> bool:
    answer = httpx.get(f"{http}/health/ready", timeout=10, trust_env=False)
    if answer.status_code != httpx.codes.OK:
        return False
    found = answer.json()["following"]["damage"]
    return bool(found["isWhole"]) and found["healedBytes"] > 0


class ReplicatedDev:
    """``mqspark dev --brokers 3 --replication controller``, and what it says of its master."""

    def __init__(self, store: Path) -> None:
        command = [sys.executable, "-m", "mqspark_server.cli", "dev", "--store", str(store), "--brokers", "3"]
        command += [
            "--replication",
            "controller",
            "--namesrv-port",
            "0",
            "--broker-port",
            "0",
            "--http-port",
            "0",
        ]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line.startswith("READY "):
            raise RuntimeError(f"mqspark dev did not start: {line!r}")
        self.ready = dict(part.split("=", 1) for part in line.split()[1:])
        self._pids: dict[str, int] = {}
        """By address."""
        self._names: dict[str, str] = {}
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if found := re.search(r"the master is (\S+) at (\S+) \(pid (\d+)\)", line):
                self._names[found[1]], self._pids[found[2]] = found[2], int(found[3])
            elif found := re.match(r"(dev-\d): pid (\d+)", line):
                self._pids[found[1]] = int(found[2])
            elif found := re.search(r"mqspark\.dev: (dev-\d) serves again \(pid (\d+)\)", line):
                self._pids[found[1]] = int(found[2])
                if found[1] in self._names:
                    self._pids[self._names[found[1]]] = int(found[2])

    def replicas(self) -> tuple[str, int]:
        """The master's address, and how many are in sync."""
        with contextlib.suppress(OSError):
            answer = ask(self.ready["controller"], RequestCode.CONTROLLER_GET_REPLICA_INFO, brokerName="dev")
            in_sync = json.loads(answer.body or b"{}").get("syncStateSet") or []
            return answer.ext.get("masterAddress") or "", len(in_sync)
        return "", 0

    def pid_of(self, address: str) -> int:
        until(lambda: address in self._pids, f"the process id of {address} is said")
        return self._pids[address]

    def revive(self, address: str) -> None:
        """A killed broker starts again by itself."""

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)
        self._reader.join(10)
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()


class SteadySender:
    """Sends one numbered message after the other, and notes when each was acknowledged."""

    def __init__(self, namesrv: str) -> None:
        self._producer = Producer(namesrv, group="failover", send_timeout_ms=1_000, retries=2)
        self._producer.start()
        self.acknowledged: list[tuple[float, float, int]] = []
        """(when the send began, when it was acknowledged, number)."""
        self.failures = 0
        self.failure = ""
        """The last one."""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._ended.is_set():
            number += 1
            began = time.perf_counter()
            try:
                result = self._producer.send(Message(TOPIC, b"%d" % number))
            except MQError as error:
                self.failures += 1
                self.failure = str(error)
                time.sleep(0.01)
                continue
            if result.status is SendStatus.SEND_OK:
                self.acknowledged.append((began, time.perf_counter(), number))

    def first_after(self, moment: float) -> float | None:
        """When the first message that was sent after this moment was acknowledged."""
        if self.acknowledged and self.acknowledged[-1][0] > moment:
            return next(acknowledged for began, acknowledged, _ in self.acknowledged if began > moment)
        return None

    def stop(self) -> set[int]:
        self._ended.set()
        self._thread.join(30)
        self._producer.stop()
        return {number for _, _, number in self.acknowledged}


class Replicas(Protocol):
    """Three replicas and their controller."""

    ready: dict[str, str]

    def replicas(self) -> tuple[str, int]: ...

    def pid_of(self, address: str) -> int: ...

    def revive(self, address: str) -> None: ...


class Tally:
    """What the failovers of one side took, and what became of its messages."""

    def __init__(self, side: str) -> None:
        self.side = side
        self.times: dict[str, list[float]] = {name: [] for name in FAULTS}
        self.acknowledged = self.failures = self.lost = self.twice = self.unmeasured = 0

    def figures(self) -> list[Figure]:
        made = []
        for name, times in self.times.items():
            if not times:
                continue
            made.append(
                figure(f"sends stand still, {name} master", "s", times, side=self.side, less_is_better=True)
            )
            p99 = sorted(times)[min(len(times) - 1, int(len(times) * 0.99))]
            label = f"{made[-1].name}, {self.side}"
            print(f"{label:44} {spelled(made[-1])}, p99 {p99:.2f} s, {len(times)} rounds", flush=True)
        print(
            f"{self.side}: {self.acknowledged:,} acknowledged, {self.failures:,} sends failed, {self.lost} lost,"
            f" {self.twice} stored twice"
            + (f"; {self.unmeasured} rounds without all replicas in sync" if self.unmeasured else "")
        )
        return made


def failover(rounds: int, parent: Path, jars: Jars | None) -> None:
    """Both sides in turn, ``BLOCK`` rounds at a time: only one of them runs."""
    store = Path(tempfile.mkdtemp(dir=parent, prefix="bench-failover-"))
    ours, theirs = Tally(OURS), Tally(ROCKETMQ)
    block = rounds if jars is None else BLOCK
    try:
        for first in range(0, rounds, block):
            count = min(block, rounds - first)
            dev = ReplicatedDev(store / f"mqspark-{first}")
            try:
                _failovers(dev, count, ours)
            finally:
                dev.stop()
            if jars is not None:
                with rocketmq_replicas(jars, store / f"rocketmq-{first}", TOPIC) as system:
                    _failovers(system, count, theirs)
        made = ours.figures()
        if jars is not None:
            beside = {each.name: each for each in theirs.figures()}
            for each in made:
                if each.name in beside:
                    print(ratio_line(f"{each.name}, beside RocketMQ's", each, beside[each.name]))
    finally:
        shutil.rmtree(store)
    if ours.lost:
        raise RuntimeError(f"{ours.lost} acknowledged messages are lost")


def _failovers(system: Replicas, rounds: int, tally: Tally) -> None:
    sender = SteadySender(system.ready["namesrv"])
    try:
        for name, number in FAULTS.items():
            for _ in range(rounds):
                taken_s = _one_failover(system, sender, number, tally)
                if taken_s is not None:
                    tally.times[name].append(taken_s)
                    print(f"{tally.side}, {name} master: {taken_s:.2f} s", flush=True)
        acknowledged = sender.stop()
        found = _read(system.ready["namesrv"], acknowledged)
    finally:
        sender.stop()
    tally.acknowledged += len(acknowledged)
    tally.failures += sender.failures
    tally.lost += len(acknowledged - found.keys())
    tally.twice += sum(each > 1 for each in found.values())


def _one_failover(
    system: Replicas, sender: SteadySender, number: signal.Signals, tally: Tally
) -> float | None:
    """Seconds. RocketMQ's brokers may stand still for longer than is waited: then it is WAIT_S, and said; or not all
    be in sync again by then: None."""
    try:
        until(lambda: system.replicas()[1] == 3, "all three replicas are in sync")
    except RuntimeError as error:
        if tally.side == OURS:
            raise
        print(f"{tally.side}: {error}", flush=True)
        tally.unmeasured += 1
        return None
    time.sleep(1)
    master, _ = system.replicas()
    pid = system.pid_of(master)
    moment = time.perf_counter()
    os.kill(pid, number)
    try:
        # The old master may have acknowledged a send that began before the signal.
        until(lambda: system.replicas()[0] not in ("", master), "another master is elected")
        until(lambda: sender.first_after(moment) is not None, lambda: f"acknowledged: {sender.failure}")
        first = sender.first_after(moment)
        assert first is not None
        return first - moment
    except RuntimeError as error:
        if tally.side == OURS:
            raise
        print(f"{tally.side}: {error}", flush=True)
        return WAIT_S
    finally:
        if number is signal.SIGSTOP:
            os.kill(pid, signal.SIGCONT)
        else:
            system.revive(master)


def _read(namesrv: str, wanted: set[int]) -> dict[int, int]:
    """How often each number is stored."""
    found: dict[int, int] = {}
    consumer = LitePullConsumer(namesrv, group="reader", consume_from="CONSUME_FROM_FIRST_OFFSET")
    consumer.subscribe(TOPIC)
    consumer.start()
    idle = 0
    while idle < 10 or (not wanted <= found.keys() and idle < 100):
        messages = consumer.poll(timeout_ms=200)
        idle = 0 if messages else idle + 1
        for message in messages:
            found[int(message.body)] = found.get(int(message.body), 0) + 1
    consumer.stop()
    return found


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks replication")
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", type=int, default=300_000, help="messages of 1 KB a run")
    parser.add_argument("--store", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--rocketmq", action="store_true", help="measure RocketMQ 5.5.0, too: needs Java")
    asked = parser.parse_args(arguments)
    jars = None
    if asked.rocketmq:
        try:
            jars = jar_cache.fetch()
        except ToolMissing as missing:
            parser.error(str(missing))
        peer("RocketMQ 5.5.0", heap=f"{HEAP_MIB} MiB", allAckInSyncStateSet=True, minInSyncReplicas=2)
    parts = asked.parts.split(",")
    if unknown := set(parts) - set(PARTS):
        parser.error(f"no part {', '.join(sorted(unknown))}; there are: {', '.join(PARTS)}")
    if "rate" in parts:
        rate(asked.count, asked.rounds, asked.store, jars)
    if "catchup" in parts:
        catchup(asked.count, asked.rounds, asked.store)
    if "heal" in parts:
        heal(asked.count, asked.rounds, asked.store)
    if "failover" in parts:
        failover(asked.rounds, asked.store, jars)


if __name__ == "__main__":
    main(sys.argv[1:])
