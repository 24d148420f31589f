"""RocketMQ's side of the replication benchmark: a master with a slave, and three replicas under a controller.

The brokers compile fully, and have the settings that they are shipped with where the benchmark does not say otherwise.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from mqspark.protocol.codes import RequestCode
from tests.interop.jars import Jars
from tests.interop.rocketmq import rocketmq_broker, rocketmq_controller, rocketmq_namesrv
from tests.interop.topics import create_topic
from tests.support.clusters import Cluster, brokers_known_to
from tests.support.remoting import ask
from tests.support.waiting import eventually

HEAP_MIB = 1024
_COMPILE = ("-XX:TieredStopAtLevel=4",)  # although the heap is small
_SHIPPED = {
    "mappedFileSizeCommitLog": 1 << 30,
    "mappedFileSizeConsumeQueue": 300_000 * 20,
    "maxHashSlotNum": 5_000_000,
    "maxIndexNum": 20_000_000,
    "mappedFileSizeTimerLog": 100 << 20,
    "timerFlushIntervalMs": 1_000,
    "transactionMetricFlushInterval": 10_000,
}
_REPLICA = {
    **_SHIPPED,
    "brokerName": "dev",
    "brokerClusterName": "Replicas",
    "enableControllerMode": True,
    "allAckInSyncStateSet": True,
    "inSyncReplicas": 2,
    "minInSyncReplicas": 2,
    "mappedFileSizeCommitLog": 64 << 20,
}


@contextmanager
def rocketmq_pair(jars: Jars, parent: Path) -> Iterator[tuple[str, str]]:
    """A SYNC_MASTER and its slave, with ASYNC_FLUSH; their addresses."""
    with tempfile.TemporaryDirectory(dir=parent, prefix="bench-rocketmq-") as name, ExitStack() as ends:
        folder = Path(name)
        namesrv = ends.enter_context(rocketmq_namesrv(jars, folder / "namesrv"))
        settings = {
            **_SHIPPED,
            "brokerName": "dev",
            "brokerClusterName": "Pair",
            "flushDiskType": "ASYNC_FLUSH",
            "inSyncReplicas": 2,
            "brokerRole": "SYNC_MASTER",
            # The load is a window that is always full: nothing of it may be refused as late.
            "waitTimeMillsInSendQueue": 60_000,
            "slaveTimeout": 60_000,
        }
        as_slave = {**settings, "brokerRole": "SLAVE", "brokerId": 1}
        master, slave = (
            ends.enter_context(
                rocketmq_broker(jars, folder / place, namesrv, heap_mib=HEAP_MIB, settings=values)
            )
            for place, values in (("0", settings), ("1", as_slave))
        )
        eventually(lambda: brokers_known_to(namesrv)["dev"] == {"0": master.broker, "1": slave.broker})
        eventually(lambda: _slaves_in_sync(master.broker) == 1, "the slave is in sync")
        yield master.broker, slave.broker


def _slaves_in_sync(master: str) -> int:
    answer = ask(master, RequestCode.GET_BROKER_HA_STATUS)
    return int(json.loads(answer.body)["inSyncSlaveNums"])


class RocketMQReplicas:
    """Three brokers of RocketMQ in controller mode."""

    def __init__(self, jars: Jars, folder: Path, namesrv: str, controller: str) -> None:
        self._jars = jars
        self._folder = folder
        self.ready = {"namesrv": namesrv, "controller": controller}
        self._brokers: dict[str, tuple[Path, ExitStack, Cluster]] = {}
        """By address."""

    def start(self, folder: Path, **settings: object) -> None:
        stack = ExitStack()
        values = {**_REPLICA, "controllerAddr": self.ready["controller"], **settings}
        running = stack.enter_context(
            rocketmq_broker(
                self._jars,
                folder,
                self.ready["namesrv"],
                heap_mib=HEAP_MIB // 2,
                settings=values,
                options=_COMPILE,
                registered=False,
            )
        )
        self._brokers[running.broker] = folder, stack, running

    def replicas(self) -> tuple[str, int]:
        """The master's address, and how many are in sync."""
        with contextlib.suppress(OSError):
            answer = ask(self.ready["controller"], RequestCode.CONTROLLER_GET_REPLICA_INFO, brokerName="dev")
            in_sync = json.loads(answer.body or b"{}").get("syncStateSet") or []
            return answer.ext.get("masterAddress") or "", len(in_sync)
        return "", 0

    def pid_of(self, address: str) -> int:
        return self._brokers[address][2].broker_pid

    def revive(self, address: str) -> None:
        """As long after the kill as ``mqspark dev`` waits."""
        time.sleep(10)
        folder, stack, _ = self._brokers.pop(address)
        stack.close()
        self.start(folder, listenPort=int(address.rpartition(":")[2]))

    def create(self, topic: str) -> None:
        """On all of them: a new master would not know a topic that it has not copied yet."""
        brokers = [running for _, _, running in self._brokers.values()]
        create_topic(next(each for each in brokers if each.broker == self.replicas()[0]), topic)
        for each in brokers:
            eventually(
                lambda each=each: (
                    topic.encode() in bytes(ask(each.broker, RequestCode.GET_ALL_TOPIC_CONFIG).body)
                ),
                "the topic is copied",
            )

    def stop(self) -> None:
        for _, stack, _ in self._brokers.values():
            stack.close()


@contextmanager
def rocketmq_replicas(jars: Jars, folder: Path, topic: str) -> Iterator[RocketMQReplicas]:
    with ExitStack() as ends:
        namesrv = ends.enter_context(rocketmq_namesrv(jars, folder / "namesrv"))
        controller = ends.enter_context(rocketmq_controller(jars, folder / "controller"))
        system = RocketMQReplicas(jars, folder, namesrv, controller)
        ends.callback(system.stop)
        for number in range(3):
            system.start(folder / f"broker-{number}")
        eventually(lambda: system.replicas()[1] == 3, system.replicas, 180)
        system.create(topic)
        yield system
