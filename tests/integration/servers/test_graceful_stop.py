"""A broker that is told to stop while producers send and consumers wait ends soon, and has what it acknowledged."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

from mqspark import AdminClient, ConsumeFromWhere, LitePullConsumer, Message, Producer, PushConsumer
from mqspark.errors import MQError
from tests.support.clusters import Cluster, mqspark_broker, mqspark_namesrv
from tests.support.remoting import (
    PULL_MESSAGE,
    SUBSCRIPTION,
    SUSPEND,
    RawConnection,
    pull_fields,
    request_frame,
)
from tests.support.waiting import eventually

PARKED = 50
"""Pulls that wait."""
ENDED = os.WEXITED | os.WNOWAIT | os.WNOHANG
"""The child stays to be waited for."""


def parked_pull(cluster: Cluster, number: int) -> RawConnection:
    """A connection on which a pull waits for a message, for longer than the test takes."""
    connection = RawConnection(cluster.broker, 60)
    waits = {"sysFlag": SUSPEND | SUBSCRIPTION, "suspendTimeoutMillis": 600_000}
    fields = pull_fields("Quiet", number % 4, 0, group="waiting", **waits)
    connection.write(request_frame(PULL_MESSAGE, 1, fields))
    return connection


class Sending:
    """A thread that sends one message after the other, without a second try."""

    def __init__(self, namesrv: str, number: int) -> None:
        self.acknowledged: list[str] = []
        self._producer = Producer(namesrv, group=f"sending-{number}", retries=0)
        self._number = number
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def start(self) -> None:
        self._producer.start()
        self._thread.start()

    def _run(self) -> None:
        count = 0
        while not self._ended.is_set():
            body = f"{self._number}-{count}"
            count += 1
            try:
                self._producer.send(Message.of("Busy", body), timeout_ms=2_000)
            except MQError:
                time.sleep(0.01)
            else:
                self.acknowledged.append(body)

    def end(self) -> None:
        self._ended.set()
        self._thread.join(60)
        self._producer.stop()


@pytest.mark.slow("starts a broker twice, and lets producers work")
@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_a_broker_under_load_stops_soon_and_loses_nothing(tmp_path: Path, flush: str) -> None:
    settings = {
        "brokerName": "b",
        "brokerClusterName": "C",
        "flushDiskType": flush,
        "autoCreateTopicEnable": True,
    }
    with ExitStack() as stack:
        namesrv = stack.enter_context(mqspark_namesrv(tmp_path))
        senders = [Sending(namesrv, number) for number in range(2)]
        with mqspark_broker(tmp_path, namesrv, settings) as cluster:
            with AdminClient(namesrv) as admin:
                for topic in ("Quiet", "Busy"):
                    admin.create_topic(topic, queues=4)
            parked = [stack.enter_context(parked_pull(cluster, number)) for number in range(PARKED)]
            consumer = PushConsumer(namesrv, group="push", listener=lambda message: None)
            consumer.subscribe("Busy")
            consumer.start()
            try:
                for sender in senders:
                    sender.start()
                eventually(lambda: all(len(each.acknowledged) > 100 for each in senders), "both send")
                os.kill(cluster.broker_pid, signal.SIGTERM)
                ended = eventually(
                    lambda: os.waitid(os.P_PID, cluster.broker_pid, ENDED),
                    "the broker to end before what waits for it",
                )
            finally:
                for sender in senders:
                    sender.end()
                consumer.stop()
        assert ended is not None
        assert (ended.si_code, ended.si_status) == (os.CLD_EXITED, 0)
        for connection in parked:  # each is answered, or sees the end
            try:
                connection.read()
            except ConnectionError:
                continue
        expected = {body for sender in senders for body in sender.acknowledged}
        with mqspark_broker(tmp_path, namesrv, settings):
            found: Counter[bytes] = Counter()
            with LitePullConsumer(
                namesrv, group="audit", consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
            ) as audit:
                audit.subscribe("Busy")
                end_s = time.monotonic() + 60
                while expected - {each.decode() for each in found} and time.monotonic() < end_s:
                    found.update(message.body for message in audit.poll(1_000))
        lost = expected - {each.decode() for each in found}
        assert not lost, f"{len(lost)} of {len(expected)} acknowledged messages are gone"
