"""A broker of ours and one of RocketMQ in one broker set, under our controller and under RocketMQ's."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest

from mqspark import LitePullConsumer, Message, Producer, SendStatus
from mqspark.errors import MQError
from tests.interop.jars import Jars
from tests.interop.rocketmq import rocketmq_broker, rocketmq_controller
from tests.support.clusters import Cluster, mqspark_broker, mqspark_controller, mqspark_namesrv
from tests.support.remoting import ask
from tests.support.replicaset import state_of
from tests.support.waiting import eventually

ELECT_MASTER = 1002
NAME, TOPIC = "mixed", "Mixed"
THEIRS, OURS = 1, 2
"""Controller ids: RocketMQ's broker starts first."""
BOTH = {THEIRS, OURS}
SETTINGS = {
    "brokerClusterName": "Mixed",
    "brokerName": NAME,
    "enableControllerMode": True,
    "allAckInSyncStateSet": True,
    "flushDiskType": "SYNC_FLUSH",
    "mappedFileSizeCommitLog": 1 << 22,
    "mappedFileSizeConsumeQueue": 6000 * 20,
    "maxHashSlotNum": 1000,
    "maxIndexNum": 4000,
}


@contextmanager
def our_controller(jars: Jars, folder: Path) -> Iterator[str]:
    with mqspark_controller(folder, scanNotActiveBrokerInterval=1_000) as (address, _):
        yield address


@contextmanager
def their_controller(jars: Jars, folder: Path) -> Iterator[str]:
    with rocketmq_controller(jars, folder, {"scanNotActiveBrokerInterval": 1_000}) as address:
        yield address


state = partial(state_of, name=NAME)


def elect(controller: str, broker_id: int) -> None:
    """An operator's choice. (mqadmin 5.5.0 cannot read the answer of RocketMQ's controller: its fastjson2 takes no
    numbers as names.)"""
    answer = ask(
        controller,
        ELECT_MASTER,
        clusterName="Mixed",
        brokerName=NAME,
        brokerId=broker_id,
        designateElect=True,
        invokeTime=int(time.time() * 1000),
    )
    assert answer.code == 0, answer


def in_sync(controller: str) -> set[int]:
    return {each["brokerId"] for each in state(controller).get("inSyncReplicas", ())}


@pytest.mark.slow("Java brokers start; tests/integration/replicas/test_replica_set.py has our side of it")
@pytest.mark.parametrize("start_controller", [our_controller, their_controller], ids=["ours", "rocketmqs"])
def test_each_is_the_master_of_the_other(
    newest_jars: Jars, tmp_path: Path, start_controller: Callable[[Jars, Path], AbstractContextManager[str]]
) -> None:
    with ExitStack() as stack:
        namesrv = stack.enter_context(mqspark_namesrv(tmp_path / "namesrv"))
        controller = stack.enter_context(start_controller(newest_jars, tmp_path / "controllers"))
        settings = {**SETTINGS, "controllerAddr": controller}

        def start_theirs() -> Cluster:
            folder = tmp_path / "theirs"
            return stack.enter_context(
                rocketmq_broker(newest_jars, folder, namesrv, settings=settings, registered=False)
            )

        def start_ours() -> Cluster:
            return stack.enter_context(
                mqspark_broker(tmp_path / "ours", namesrv, settings, stop_signal=signal.SIGKILL)
            )

        def until(master: int, members: set[int]) -> None:
            eventually(
                lambda: state(controller).get("masterBrokerId") == master and in_sync(controller) == members,
                lambda: (master, members, state(controller)),
                120,
            )

        theirs = start_theirs()
        until(THEIRS, {THEIRS})
        ours = start_ours()
        until(THEIRS, BOTH)
        producer = stack.enter_context(Producer(namesrv, group="P", send_timeout_ms=5_000, retries=0))
        acknowledged: set[bytes] = set()
        tried = 0

        def send() -> bool:
            nonlocal tried
            tried += 1
            body = b"%d" % tried
            try:
                result = producer.send(Message(TOPIC, body))
            except MQError:
                return False
            if result.status is SendStatus.SEND_OK:
                acknowledged.add(body)
            return result.status is SendStatus.SEND_OK

        def send_some() -> None:
            eventually(send, "a message to be taken", 120)
            for _ in range(50):
                send()

        send_some()
        elect(controller, OURS)
        until(OURS, BOTH)
        send_some()
        elect(controller, THEIRS)
        until(THEIRS, BOTH)
        send_some()
        os.kill(theirs.broker_pid, signal.SIGKILL)
        until(OURS, {OURS})
        send_some()
        theirs = start_theirs()
        until(OURS, BOTH)
        send_some()
        os.kill(ours.broker_pid, signal.SIGKILL)
        until(THEIRS, {THEIRS})
        send_some()
        start_ours()
        until(THEIRS, BOTH)
        send_some()

        stored: Counter[bytes] = Counter()
        with LitePullConsumer(namesrv, group="all") as consumer:
            queues = consumer.fetch_message_queues(TOPIC)
            consumer.assign(queues)
            for queue in queues:
                consumer.seek_to_begin(queue)
            idle_s = time.monotonic() + 10
            while time.monotonic() < idle_s:
                for each in consumer.poll(1_000):
                    stored[each.body] += 1
                    idle_s = time.monotonic() + 5
        assert len(acknowledged) > 300
        assert acknowledged <= stored.keys(), f"lost: {sorted(acknowledged - stored.keys())}"
        assert max(stored.values()) == 1, {body: count for body, count in stored.items() if count > 1}
