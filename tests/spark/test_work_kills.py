"""Drivers and workers of a work queue are killed at any moment; every message has one result or is one dead letter."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from pyspark_pymq.reading.stream import ADMISSION_CONTROL
from tests.support.dev import DevCluster
from tests.support.jvm import spark_options
from tests.support.processes import start, stop
from tests.support.waiting import eventually

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not ADMISSION_CONTROL, reason="needs Spark 4.2"),
]

ROWS_A_KILL = 400
WAIT_S = 300
ONCE = pytest.mark.slow(
    "a driver starts three times; the batch that runs again in test_work_queue is the fast twin"
)
THREE = pytest.mark.slow("kills three times")


class Work:
    """The query's process and everything that it started."""

    def __init__(self, root: Path, cluster: DevCluster, topic: str, master: str) -> None:
        self.root = root
        self._cluster = cluster
        self._topic = topic
        self.results = cluster.create_topic(f"{topic}-results", 2)
        self._settings = root / "settings.json"
        settings = {
            "master": master,
            "nameserver": cluster.nameserver,
            "topic": topic,
            "group": f"g-{topic}",
            "results": self.results,
            "checkpoint": str(root / "checkpoint"),
            "stop": str(root / "stop"),
            "java_options": spark_options(),
        }
        self._settings.write_text(json.dumps(settings))
        self._process: subprocess.Popen[str] | None = None

    @property
    def log(self) -> str:
        return self._output()[-3000:]

    def start(self) -> None:
        command = [sys.executable, str(Path(__file__).with_name("work_driver.py")), str(self._settings)]
        log = self.root / "driver.log"
        log.unlink(missing_ok=True)
        self.close()
        self._process = start(command, log, new_session=True)
        eventually(lambda: "STARTED" in self._output() or not self.is_running, lambda: self.log, WAIT_S)
        assert self.is_running, self.log

    def _output(self) -> str:
        return (self.root / "driver.log").read_text()

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def close(self) -> None:
        if self._process is not None:
            stop(self._process)

    def kill(self) -> None:
        """Python, JVM and workers at once, as when the machine goes."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGKILL)
        stop(self._process)

    def kill_below(self, mark: str) -> bool:
        """Kill one process below the driver whose command line holds ``mark``."""
        assert self._process is not None
        found = []
        for each in Path("/proc").iterdir():
            if not each.name.isdigit():
                continue
            try:
                fields = (each / "stat").read_text().rpartition(")")[2].split()
                line = (each / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(fields[3]) == self._process.pid and mark in line:
                found.append(int(each.name))
        for pid in random.sample(found, min(1, len(found))):
            os.kill(pid, signal.SIGKILL)
        return bool(found)

    def until(self, sent: int) -> None:
        """Let it run, started again when it fails, until every message has a result or is dead."""
        deadline = time.monotonic() + WAIT_S
        while self._ended() < sent:
            assert time.monotonic() < deadline, (self._ended(), sent, self.log)
            if not self.is_running:
                self.start()
            time.sleep(0.2)
        (self.root / "stop").touch()
        if self._process is not None:
            self._process.wait(WAIT_S)
            self.close()

    def _ended(self) -> int:
        return sum(
            sum(self._cluster.max_offsets(topic).values())
            for topic in (self.results, f"%DLQ%g-{self._topic}")
            if topic in self._cluster.client.topics()
        )


def bodies(cluster: DevCluster, topic: str) -> Counter[int]:
    return Counter(int(body) for values in cluster.queue_bodies(topic).values() for body in values)


def check(cluster: DevCluster, topic: str, sent: int) -> None:
    always = {n for n in range(sent) if n % 50 == 11}
    assert bodies(cluster, f"%DLQ%g-{topic}") == Counter(always)
    assert bodies(cluster, f"{topic}-results") == Counter(set(range(sent)) - always)


@pytest.mark.parametrize("kills", [pytest.param(1, marks=ONCE), pytest.param(3, marks=THREE)])
def test_killed_workers_and_drivers(cluster: DevCluster, topic: str, tmp_path: Path, kills: int) -> None:
    # A task whose worker is killed runs again, as in a cluster.
    work = Work(tmp_path, cluster, topic, "local[2, 4]")
    sent = 0
    for _ in range(kills):
        for kill in ("a worker", "the driver"):
            cluster.send_numbers(topic, range(sent, sent + ROWS_A_KILL))
            sent += ROWS_A_KILL
            if not work.is_running:
                work.start()
            time.sleep(random.uniform(1, 4) if kills == 1 else random.uniform(2, 9))
            if kill == "the driver":
                work.kill()
            else:
                eventually(lambda: work.kill_below("pyspark.daemon") or not work.is_running, lambda: work.log)
    work.until(sent)
    check(cluster, topic, sent)


@pytest.mark.slow("starts a Spark cluster with an executor of its own; the fast twin kills a worker")
def test_killed_executors(cluster: DevCluster, topic: str, tmp_path: Path) -> None:
    work = Work(tmp_path, cluster, topic, "local-cluster[1,2,1024]")
    sent = 0
    for _ in range(3):
        cluster.send_numbers(topic, range(sent, sent + ROWS_A_KILL))
        sent += ROWS_A_KILL
        if not work.is_running:
            work.start()
        time.sleep(random.uniform(2, 9))
        eventually(
            lambda: work.kill_below("CoarseGrainedExecutorBackend") or not work.is_running, lambda: work.log
        )
    work.until(sent)
    check(cluster, topic, sent)
