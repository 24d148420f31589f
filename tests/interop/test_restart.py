"""A Java producer and consumer live through crashes and restarts of our broker: nothing acknowledged is missing."""

import os
import signal
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.interop.driver import JavaDriver, JavaError, body_of, message
from tests.interop.topics import create_topic
from tests.support.clusters import Cluster, mqspark_broker, mqspark_namesrv
from tests.support.processes import free_port

TOPIC = "Restart"
ACKS_PER_LIFE = 50


class Sending(threading.Thread):
    """One Java producer that never gives up; what it was told is stored is in ``acknowledged``."""

    def __init__(self, java: JavaDriver, producer: int) -> None:
        super().__init__(daemon=True)
        self.acknowledged: list[bytes] = []
        self.refused = 0
        self.over = threading.Event()
        self._java, self._producer = java, producer

    def run(self) -> None:
        number = 0
        while not self.over.is_set():
            number += 1
            body = b"restart-%d" % number
            try:
                self._java.call(
                    "producer.send", handle=self._producer, mode="sync", message=message(TOPIC, body)
                )
                self.acknowledged.append(body)
            except JavaError:
                self.refused += 1

    def await_more(self, count: int, timeout_s: float = 40.0) -> None:
        target, deadline = len(self.acknowledged) + count, time.monotonic() + timeout_s
        while len(self.acknowledged) < target:
            assert time.monotonic() < deadline, (
                f"{target - len(self.acknowledged)} acknowledgements are missing"
            )
            assert self.is_alive()
            time.sleep(0.05)


@pytest.mark.slow(
    "a broker that dies under a JVM; tests/integration/consumers/test_client_consume.py is the fast twin"
)
@pytest.mark.parametrize("java", ["JSON"], ids=["json"], indirect=True)
def test_clients_outlive_the_broker(java: JavaDriver, tmp_path: Path) -> None:
    settings = {
        "brokerClusterName": "RestartCluster",
        "brokerName": "broker-r",
        "listenPort": free_port(neighbours=2),
        "flushDiskType": "SYNC_FLUSH",
        "mappedFileSizeCommitLog": 1 << 20,
    }
    with ExitStack() as running:
        namesrv = running.enter_context(mqspark_namesrv(tmp_path / "namesrv"))

        def start() -> Cluster:
            return running.enter_context(mqspark_broker(tmp_path / "broker", namesrv, settings))

        broker = start()
        create_topic(broker, TOPIC)
        producer = java.call("producer.start", namesrv=namesrv, group="restart-producer", timeout_ms=3000)[
            "handle"
        ]
        sending = Sending(java, producer)
        java.mqadmin("updateSubGroup", "-b", broker.broker, "-g", "restart-readers", "-n", namesrv)
        consumer = java.push(namesrv, TOPIC, "restart-readers")
        sending.start()
        for blow in (signal.SIGKILL, signal.SIGTERM, signal.SIGKILL):
            sending.await_more(ACKS_PER_LIFE)
            os.kill(broker.broker_pid, blow)
            wait_for_end(broker.broker_pid)
            broker = start()
        sending.await_more(ACKS_PER_LIFE)
        sending.over.set()
        sending.join(30)
        assert not sending.is_alive()

        expected, deadline = set(sending.acknowledged), time.monotonic() + 60
        seen: set[bytes] = set()
        while expected - seen and time.monotonic() < deadline:
            received = java.take(consumer, 1, timeout_ms=2000)
            seen |= {body_of(one) for one in received}
        assert not expected - seen, (
            f"{len(expected - seen)} of {len(expected)} acknowledged messages never came"
        )
        java.call("push.stop", handle=consumer)
        java.call("producer.stop", handle=producer)


def wait_for_end(pid: int) -> None:
    """Until all threads of the child have ended, and with them its sockets; the child stays to be waited for."""
    deadline = time.monotonic() + 30
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
        assert time.monotonic() < deadline, "the broker does not end"
        time.sleep(0.02)
