"""RocketMQ's Java client beside servers of ours that freeze: nothing acknowledged is lost, and all clients go on."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.interop.driver import JavaDriver, JavaError, body_of, message
from tests.interop.topics import create_topic
from tests.support.clusters import mqspark_cluster

FROZEN_S = 5.0


@pytest.mark.slow("a broker is frozen for 5 s, and Java's client waits for a name server that never answers")
@pytest.mark.parametrize("java", ["JSON"], indirect=True)
def test_java_clients_survive_frozen_servers(
    java: JavaDriver, tmp_path: Path, name: Callable[[str], str]
) -> None:
    with mqspark_cluster(tmp_path) as cluster, socket.create_server(("127.0.0.1", 0)) as silent:
        namesrv = f"127.0.0.1:{silent.getsockname()[1]};{cluster.namesrv}"
        topic = create_topic(cluster, name("Frozen"))
        producer = java.call("producer.start", namesrv=namesrv, group=name("p"))["handle"]
        consumer = java.push(namesrv, topic, name("c"))
        acknowledged: list[bytes] = []
        refused: list[str] = []

        def send(is_over: Callable[[], bool]) -> None:
            while not is_over():
                body = b"%d-%d" % (len(acknowledged), len(refused))
                try:
                    java.call("producer.send", handle=producer, mode="sync", message=message(topic, body))
                    acknowledged.append(body)
                except JavaError as error:
                    refused.append(str(error)[:200])
                    assert len(refused) < 100, refused

        send(
            lambda: len(acknowledged) >= 100
        )  # Java's client waits for the silent name server, and then asks the other
        os.kill(cluster.broker_pid, signal.SIGSTOP)
        end_s = time.monotonic() + FROZEN_S
        try:
            send(lambda: time.monotonic() > end_s)
        finally:
            os.kill(cluster.broker_pid, signal.SIGCONT)
        after = len(acknowledged) + 100
        send(lambda: len(acknowledged) >= after)
        got: set[bytes] = set()
        deadline_s = time.monotonic() + 60
        while not got.issuperset(acknowledged) and time.monotonic() < deadline_s:
            got |= {body_of(each) for each in java.take(consumer, 100, timeout_ms=1_000)}
        assert set(acknowledged) <= got
        java.call("producer.stop", handle=producer)
        java.call("push.stop", handle=consumer)
