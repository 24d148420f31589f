"""Two brokers and then three, three consumers, each a process of its own or as good as one; they are killed, stopped,
started again and added while messages are sent. What was acknowledged is consumed, in the order of its queue if that is
asked for; no committed offset is ever ahead of what is consumed."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
import subprocess
import sys
from collections import defaultdict
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Protocol

import pytest

from mqspark.aio import AdminClient, ClientOptions, Message, MessageQueue, Producer
from mqspark.errors import MQError
from mqspark.testing import Cluster
from tests.support.clusters import Cluster as ProcessCluster
from tests.support.clusters import mqspark_broker, mqspark_namesrv
from tests.support.draws import some
from tests.support.processes import START_TIMEOUT_S, free_port, ready_line, start, stop, tail
from tests.support.waiting import eventually_async

ROOT = Path(__file__).parents[3]
TOPIC, GROUP = "Chaos", "chaos"
QUEUES = 4
MEMBERS = 3
OPTIONS = ClientOptions(route_interval_ms=1_000, heartbeat_interval_ms=1_000)
LOCK_LIFE_MS = 8_000
"""A killed consumer in order keeps its queues for so long. Members renew twice a second."""


# --- who is killed -----------------------------------------------------------------------------------------


class Brokers(Protocol):
    """Known by numbers. Blocking."""

    namesrv: str

    def kill(self, number: int) -> None: ...

    def restart(self, number: int) -> None: ...

    def add_broker(self) -> int: ...


class Processes:
    """Brokers as processes; ``kill`` is SIGKILL."""

    def __init__(self, folder: Path, namesrv: str) -> None:
        self.namesrv = namesrv
        self._folder = folder
        self._ports: list[int] = []
        self._running: dict[int, tuple[ExitStack, ProcessCluster]] = {}

    def add_broker(self) -> int:
        self._ports.append(free_port(neighbours=2))
        self.restart(len(self._ports) - 1)
        return len(self._ports) - 1

    def restart(self, number: int) -> None:
        stack = ExitStack()
        settings = {
            "brokerName": f"dev-{number}",
            "brokerClusterName": "ChaosCluster",
            "listenPort": self._ports[number],
            "flushDiskType": "SYNC_FLUSH",
            "rebalanceLockMaxLiveTime": LOCK_LIFE_MS,
        }
        folder = self._folder / f"broker-{number}"
        self._running[number] = (stack, stack.enter_context(mqspark_broker(folder, self.namesrv, settings)))

    def kill(self, number: int) -> None:
        stack, cluster = self._running.pop(number)
        os.kill(cluster.broker_pid, signal.SIGKILL)
        stack.close()

    def close(self) -> None:
        for stack, _ in self._running.values():
            stack.close()


class Members:
    """Consumers as processes; what they consumed is in one file."""

    def __init__(self, folder: Path, namesrv: str, *, ordered: bool) -> None:
        self._file = folder / "consumed"
        self._file.touch()
        arguments = [namesrv, GROUP, TOPIC, str(self._file), *(["ordered"] if ordered else [])]
        self._command = [sys.executable, "-m", "tests.integration.consumers.chaos_member", *arguments]
        self._log = folder / "members.err"
        self._running: list[subprocess.Popen[str]] = []

    def add(self) -> None:
        child = start(self._command, self._log, stdout=subprocess.PIPE, cwd=ROOT)
        self._running.append(child)
        ready_line(child, self._log)

    def kill(self, number: int) -> None:
        stop(self._running.pop(number), signal.SIGKILL)

    def stop(self, number: int) -> None:
        """Closes its standard input, at which it ends."""
        child = self._running.pop(number)
        child.communicate(timeout=START_TIMEOUT_S)
        assert child.returncode == 0, tail(self._log)

    def close(self) -> None:
        while self._running:
            self.kill(0)

    def __len__(self) -> int:
        return len(self._running)

    def consumed(self) -> dict[MessageQueue, list[int]]:
        """In the order of consumption."""
        found: defaultdict[MessageQueue, list[int]] = defaultdict(list)
        for line in self._file.read_text().splitlines():
            name, queue_id, offset = line.split()
            found[MessageQueue(TOPIC, name, int(queue_id))].append(int(offset))
        return found


# --- the test ----------------------------------------------------------------------------------------------


class Sender:
    """Sends on and on, and knows what was acknowledged."""

    def __init__(self, producer: Producer) -> None:
        self.acked: defaultdict[MessageQueue, set[int]] = defaultdict(set)
        self._producer = producer
        self._task = asyncio.create_task(self._send())
        self._is_ending = False

    @property
    def count(self) -> int:
        return sum(map(len, self.acked.values()))

    async def _send(self) -> None:
        number = 0
        while not self._is_ending:
            number += 1
            try:
                result = await self._producer.send(Message.of(TOPIC, b"%d" % number))
            except MQError:
                await asyncio.sleep(0.05)
            else:
                self.acked[result.queue].add(result.queue_offset)
                await asyncio.sleep(0.002)

    async def end(self) -> None:
        self._is_ending = True
        await self._task


async def nothing_is_ahead(admin: AdminClient, sender: Sender, members: Members) -> None:
    """Asked first, compared afterwards: what is committed is consumed already."""
    offsets = await admin.group_offsets(GROUP, TOPIC)
    consumed = members.consumed()
    for queue, offset in offsets.items():
        missing = (sender.acked[queue] & set(range(offset.committed))) - set(consumed.get(queue, ()))
        assert not missing, f"{queue} is committed up to {offset.committed}, without {sorted(missing)}"


async def live_through(brokers: Brokers, folder: Path, *, ordered: bool, rounds: int, seed: int) -> None:
    """In each round a broker is killed and started again, and a consumer is killed or stopped and another one
    started. In the middle there is a broker more."""
    print("seed", seed)
    dice = random.Random(seed)
    async with AsyncExitStack() as stack:
        members = Members(folder, brokers.namesrv, ordered=ordered)
        stack.callback(members.close)
        admin = await stack.enter_async_context(AdminClient(brokers.namesrv, options=OPTIONS))
        await admin.create_topic(TOPIC, queues=QUEUES)
        producer = await stack.enter_async_context(Producer(brokers.namesrv, group="pg", options=OPTIONS))
        await asyncio.gather(*(asyncio.to_thread(members.add) for _ in range(MEMBERS)))
        sender = Sender(producer)
        count = 2
        for number in range(rounds):
            sent = sender.count
            await eventually_async(lambda sent=sent: sender.count > sent + 100, "messages are sent", 120)
            victim = dice.randrange(count)
            await asyncio.to_thread(brokers.kill, victim)
            leave = members.kill if number % 2 == 0 else members.stop
            await asyncio.to_thread(leave, dice.randrange(len(members)))
            joining = asyncio.create_task(asyncio.to_thread(members.add))
            await asyncio.to_thread(brokers.restart, victim)
            if number == rounds // 2:
                count = await asyncio.to_thread(brokers.add_broker) + 1
                await admin.create_topic(TOPIC, queues=QUEUES)
            await joining
            await nothing_is_ahead(admin, sender, members)
        await eventually_async(
            lambda: len(sender.acked) == count * QUEUES, "the new broker has messages, too", 120
        )
        await sender.end()

        def missing() -> dict[MessageQueue, set[int]]:
            consumed = members.consumed()
            return {
                q: left for q, offsets in sender.acked.items() if (left := offsets - set(consumed.get(q, ())))
            }

        await eventually_async(lambda: not missing(), lambda: f"not consumed: {missing()}", 120)
        for _ in range(MEMBERS):
            await asyncio.to_thread(members.stop, 0)
        await nothing_is_ahead(admin, sender, members)
        assert sender.count > 100 * rounds
        if ordered:
            for queue, offsets in members.consumed().items():
                # Back, because an owner ended before it committed; but on to the next one only: whoever goes further
                # on has another owner beside it.
                leaps = [(a, b) for a, b in itertools.pairwise([-1, *offsets]) if b > a + 1]
                assert not leaps, f"{queue}: {leaps}"


@pytest.mark.slow(
    "minutes of faults; fast: members that come and go, and restarts, in test_client_consume.py"
)
@pytest.mark.parametrize("ordered", some([False, True], 1), ids=["concurrent", "ordered"])
async def test_brokers_and_consumers_are_killed_and_added(tmp_path: Path, ordered: bool) -> None:
    with Cluster(brokers=2, settings={"rebalanceLockMaxLiveTime": LOCK_LIFE_MS}) as cluster:
        await live_through(cluster, tmp_path, ordered=ordered, rounds=1 if ordered else 2, seed=7)


@pytest.mark.slow("kills processes; threads are the fast twin")
@pytest.mark.parametrize("ordered", [False, True], ids=["concurrent", "ordered"])
async def test_processes_are_killed_and_added_for_longer(tmp_path: Path, ordered: bool) -> None:
    with ExitStack() as stack:
        namesrv = stack.enter_context(mqspark_namesrv(tmp_path / "namesrv"))
        brokers = Processes(tmp_path, namesrv)
        stack.callback(brokers.close)
        for _ in range(2):
            await asyncio.to_thread(brokers.add_broker)
        await live_through(brokers, tmp_path, ordered=ordered, rounds=7, seed=random.randrange(1 << 30))
