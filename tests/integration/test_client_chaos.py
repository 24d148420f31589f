"""Two brokers as processes, three consumers; brokers are killed and started again, consumers come and go, while
messages are sent. What was acknowledged is consumed, in the order of its queue; no committed offset is ever ahead."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

import pytest

from mqspark.aio import (
    AdminClient,
    ClientOptions,
    ConsumeFromWhere,
    Message,
    MessageExt,
    MessageQueue,
    Producer,
    PushConsumer,
)
from mqspark.errors import MQError
from tests.interop.clusters import Cluster, free_port, mqspark_broker, mqspark_namesrv

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

QUEUES = 4
ROUNDS = 6
OPTIONS = ClientOptions(route_interval_ms=1_000, heartbeat_interval_ms=1_000)


async def until(condition: Callable[[], bool], what: Callable[[], str], timeout_s: float = 120) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what()}"
        await asyncio.sleep(0.05)


class Brokers:
    """Two brokers that can be killed and started again on their files."""

    def __init__(self, folder: Path, namesrv: str) -> None:
        self._folder = folder
        self._namesrv = namesrv
        self._ports = {name: free_port(neighbours=2) for name in ("a", "b")}
        self._running: dict[str, tuple[ExitStack, Cluster]] = {}

    def start(self, name: str) -> None:
        stack = ExitStack()
        settings = {
            "brokerName": name,
            "brokerClusterName": "ChaosCluster",
            "listenPort": self._ports[name],
            "flushDiskType": "SYNC_FLUSH",
        }
        cluster = stack.enter_context(mqspark_broker(self._folder / name, self._namesrv, settings))
        self._running[name] = (stack, cluster)

    def kill(self, name: str) -> None:
        stack, cluster = self._running.pop(name)
        os.kill(cluster.broker_pid, signal.SIGKILL)
        stack.close()

    def stop(self) -> None:
        for stack, _ in self._running.values():
            stack.close()


@pytest.mark.parametrize("ordered", [False, True], ids=["concurrent", "ordered"])
async def test_brokers_and_consumers_come_and_go(tmp_path: Path, ordered: bool) -> None:
    dice = random.Random(7)
    consumed: defaultdict[MessageQueue, list[int]] = defaultdict(list)
    acked: defaultdict[MessageQueue, set[int]] = defaultdict(set)
    sending = True

    async def listen(message: MessageExt) -> None:
        await asyncio.sleep(0.001)
        consumed[message.queue].append(message.queue_offset)

    def member() -> PushConsumer:
        consumer = PushConsumer(
            namesrv,
            group="chaos",
            listener=listen,
            ordered=ordered,
            consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
            persist_interval_ms=200,
            rebalance_interval_ms=1_000,
            options=OPTIONS,
        )
        consumer.subscribe("Chaos")
        return consumer

    async def send_forever(producer: Producer) -> None:
        number = 0
        while sending:
            number += 1
            try:
                result = await producer.send(Message.of("Chaos", b"%d" % number))
            except MQError:
                await asyncio.sleep(0.05)
            else:
                acked[result.queue].add(result.queue_offset)
                await asyncio.sleep(0.002)

    async def nothing_is_ahead(admin: AdminClient) -> None:
        """Asked first, compared afterwards: what is committed is consumed already."""
        for queue, offset in (await admin.group_offsets("chaos", "Chaos")).items():
            missing = (acked[queue] & set(range(offset.committed))) - set(consumed[queue])
            assert not missing, f"{queue} is committed up to {offset.committed}, without {sorted(missing)}"

    with ExitStack() as outer:
        namesrv = outer.enter_context(mqspark_namesrv(tmp_path / "namesrv"))
        brokers = Brokers(tmp_path, namesrv)
        outer.callback(brokers.stop)
        for name in ("a", "b"):
            await asyncio.to_thread(brokers.start, name)
        async with AsyncExitStack() as stack:
            admin = await stack.enter_async_context(AdminClient(namesrv))
            await admin.create_topic("Chaos", queues=QUEUES)
            producer = await stack.enter_async_context(Producer(namesrv, group="chaos-pg", options=OPTIONS))
            members = [member() for _ in range(3)]
            for each in members:
                await each.start()
            sender = asyncio.create_task(send_forever(producer))
            for _ in range(ROUNDS):
                await asyncio.sleep(1)
                name = dice.choice("ab")
                await asyncio.to_thread(brokers.kill, name)
                leaver = members.pop(dice.randrange(len(members)))
                await leaver.stop()
                await asyncio.to_thread(brokers.start, name)
                members.append(member())
                await members[-1].start()
                await nothing_is_ahead(admin)
            sending = False
            await sender

            def missing() -> dict[MessageQueue, set[int]]:
                return {q: left for q, offsets in acked.items() if (left := offsets - set(consumed[q]))}

            await until(lambda: not missing(), lambda: f"not consumed: {missing()}")
            for each in members:
                await each.stop()
            await nothing_is_ahead(admin)
    assert sum(map(len, acked.values())) > 100 * ROUNDS
    if ordered:
        for queue, offsets in consumed.items():
            first_time = list(dict.fromkeys(offsets))
            assert first_time == sorted(first_time), queue
