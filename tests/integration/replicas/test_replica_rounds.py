"""Rounds of faults for three replicas, a controller and a name server, each a process with an address of its own:
kills, frozen processes, cut links, failing and lost disks, two at once. The checks are made from outside.

    MQSPARK_ROUNDS=200 MQSPARK_ROUNDS_SEED=7 python -m pytest -s tests/integration/replicas/test_replica_rounds.py
"""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from mqspark import Message, Producer, SendStatus
from mqspark.errors import MQError
from mqspark.record.record import decode_records
from mqspark.testing import Clients
from tests.support.clusters import Cluster, mqspark_broker, mqspark_controller, mqspark_namesrv
from tests.support.partitions import OUTSIDE, Partitions
from tests.support.processes import free_port
from tests.support.remoting import RawConnection
from tests.support.replicaset import SETTINGS, log_of, state_of
from tests.support.waiting import eventually

BROKERS = ("broker-1", "broker-2", "broker-3")
NODES = (*BROKERS, "controller", "namesrv")
QUEUES = 2
ROUNDS = int(os.environ.get("MQSPARK_ROUNDS", "20"))
SEED = int(os.environ.get("MQSPARK_ROUNDS_SEED", "1"))
LONGEST_S = 4.0
PAUSE_S = 0.004
FILE_LIMIT_BYTES = 64 << 10
"""The limit of a process whose disk is full. Its log is longer then, and the file with what it says is not."""
Place = tuple[int, int]
"""A queue id and an offset in it."""


class Nodes:
    """All processes. Each listens at ``127.77.N.1``, and is known to the others as ``127.77.N.2``."""

    def __init__(self, folder: Path, net: Partitions, **settings: object) -> None:
        """``settings``: of brokers."""
        self._settings = settings
        self.folder, self.net = folder, net
        self.ports = {node: free_port(neighbours=2) for node in NODES}
        self._running: dict[str, ExitStack] = {}
        self.brokers: dict[str, Cluster] = {}
        self.pids: dict[str, int] = {}
        for node in NODES:
            self._link(node)

    def _link(self, node: str) -> None:
        port = self.ports[node]
        self.net.listen(node, self.host(node, 2), self.host(node, 1), port)
        if node in BROKERS:
            self.net.listen(node, self.host(node, 2), self.host(node, 1), port + 1)

    def move(self, node: str) -> None:
        """From its next start on, it is at another port."""
        self.ports[node] = free_port(neighbours=2)
        self._link(node)

    @staticmethod
    def host(node: str, last: int) -> str:
        return f"127.77.{NODES.index(node) + 1}.{last}"

    def address(self, node: str) -> str:
        """As the others know it."""
        return f"{self.host(node, 2)}:{self.ports[node]}"

    def direct(self, node: str) -> str:
        """Where it listens."""
        return f"{self.host(node, 1)}:{self.ports[node]}"

    def start(self, node: str) -> None:
        if node in self._running:
            return
        stack, place = ExitStack(), self.folder / node
        own = {"bindAddress": self.host(node, 1), "listenPort": self.ports[node]}
        if node == "namesrv":
            stack.enter_context(mqspark_namesrv(place, own))
        elif node == "controller":
            more = {"scanNotActiveBrokerInterval": 200, "controllerDLegerPeers": f"n0-{self.address(node)}"}
            _, self.pids[node] = stack.enter_context(
                mqspark_controller(place, self.ports[node], bindAddress=own["bindAddress"], **more)
            )
        else:
            settings = {
                **SETTINGS,
                **own,
                "brokerIP1": self.host(node, 2),
                "controllerAddr": self.address("controller"),
                "flushDiskType": "SYNC_FLUSH",
                "slaveReadEnable": True,
                "mappedFileSizeCommitLog": 1 << 20,
                "haMaxTimeSlaveNotCatchup": 3_000,
                "haHousekeepingInterval": 4_000,
                "haSendHeartbeatInterval": 1_000,
                **self._settings,
            }
            broker = stack.enter_context(mqspark_broker(place, self.address("namesrv"), settings))
            self.brokers[node], self.pids[node] = broker, broker.broker_pid
        self._running[node] = stack

    def kill(self, node: str) -> None:
        if node in self._running:
            if node in self.pids:
                os.kill(self.pids[node], signal.SIGKILL)
            self._running.pop(node).close()

    def freeze(self, node: str) -> None:
        if node in self.pids and node in self._running:
            os.kill(self.pids[node], signal.SIGSTOP)

    def thaw(self) -> None:
        for node in self._running.keys() & self.pids.keys():
            os.kill(self.pids[node], signal.SIGCONT)

    def fill_disk(self, node: str) -> None:
        """Writes behind a part of each file fail."""
        if node in self._running:
            _, hard = resource.prlimit(self.pids[node], resource.RLIMIT_FSIZE)
            resource.prlimit(self.pids[node], resource.RLIMIT_FSIZE, (FILE_LIMIT_BYTES, hard))

    def close(self) -> None:
        self.thaw()
        for stack in self._running.values():
            stack.close()

    # --- what the controller says ---

    def in_sync(self) -> list[str]:
        """Addresses."""
        try:
            return [
                each["brokerAddress"]
                for each in state_of(self.direct("controller")).get("inSyncReplicas", ())
            ]
        except OSError:
            return []


class Sender:
    """Sends one message after the other through the client, which tries again by itself."""

    def __init__(self, producer: Producer, topic: str) -> None:
        self._producer, self._topic = producer, topic
        self.acked: dict[Place, bytes] = {}

    def __call__(self, number: int) -> None:
        body = b"%d" % number
        try:
            result = self._producer.send(Message(self._topic, body), timeout_ms=3_000)
        except MQError:
            return  # it may be there or not
        if result.status is SendStatus.SEND_OK:
            place = result.queue.queue_id, result.queue_offset
            assert place not in self.acked, f"two messages were acknowledged at {place}"
            self.acked[place] = body
        time.sleep(PAUSE_S)


class Reader:
    """Pulls from every broker, whether it is the master or cut off from the others."""

    def __init__(self, nodes: Nodes, topic: str) -> None:
        self._nodes, self._topic = nodes, topic
        self.seen: dict[Place, tuple[bytes, str]] = {}
        self._next: dict[tuple[str, int], int] = {}
        self._lock = threading.Lock()

    def __call__(self, number: int) -> None:
        for node in BROKERS:
            for queue_id in range(QUEUES):
                try:
                    self.read(node, queue_id)
                except (OSError, ConnectionError):
                    break  # it is not there, frozen or starting
        time.sleep(0.05)

    def read(self, node: str, queue_id: int, timeout_s: float = 0.5) -> bool:
        """One pull; whether there was something."""
        with self._lock:
            return self._read(node, queue_id, timeout_s)

    def _read(self, node: str, queue_id: int, timeout_s: float) -> bool:
        offset = self._next.get((node, queue_id), 0)
        with RawConnection(self._nodes.direct(node), timeout_s) as connection:
            reply = connection.pull(self._topic, queue_id, offset, group="checks", count=512)
        if reply.code != 0:
            return False
        for message in decode_records(reply.body):
            place = queue_id, message.queue_offset
            assert place[1] == offset, f"{node}: {place} follows {offset - 1}"
            body, where = self.seen.setdefault(place, (message.body, node))
            assert body == message.body, f"{node} has {message.body!r} at {place}, where {where} had {body!r}"
            offset += 1
        self._next[node, queue_id] = offset
        return True

    def read_all(self, node: str, *, again: bool = False) -> None:
        """Up to the end, ``again`` from the beginning."""
        for queue_id in range(QUEUES):
            if again:
                self._next.pop((node, queue_id), None)
            while self.read(node, queue_id, timeout_s=30):
                pass

    def lacks(self, node: str, acked: dict[Place, bytes]) -> list[Place]:
        return [place for place in acked if self._next.get((node, place[0]), 0) <= place[1]]


@contextmanager
def running(*works: Callable[[int], None]) -> Iterator[None]:
    """Each again and again, in a thread; what one raises is raised at the end."""
    ending, errors = threading.Event(), list[BaseException]()

    def run(work: Callable[[int], None]) -> None:
        number = 0
        try:
            while not ending.is_set():
                number += 1
                work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ending.set()
        for thread in threads:
            thread.join()
    if errors:
        raise errors[0]


class Round:
    """One or two faults at once, and what ends them."""

    def __init__(self, nodes: Nodes, draws: random.Random) -> None:
        self.nodes, self.draws = nodes, draws
        self.failed: set[str] = set()
        """Brokers that take nothing more until they are started again."""

    def play(self) -> str:
        struck = self.draws.sample(NODES, self.draws.choice((1, 2)))
        kinds = [self._strike(node) for node in struck]
        for_s = self.draws.uniform(0.2, LONGEST_S)
        time.sleep(for_s)
        return f"{' and '.join(kinds)} for {for_s:.1f} s"

    def _strike(self, node: str) -> str:
        nodes, net = self.nodes, self.nodes.net
        kinds = ["kill", "freeze", "isolate", "cut", "one-way"]
        if node in BROKERS:
            kinds += ["kill", "freeze", "isolate", "disk", "lose"]
        kind = self.draws.choice(kinds)
        others = [each for each in NODES if each != node]
        other = self.draws.choice(others)
        match kind:
            case "kill":
                nodes.kill(node)
            case "lose":
                if len(set(nodes.in_sync()) - {nodes.address(node)}) < 2:
                    return f"no fault of {node}"
                nodes.kill(node)
                shutil.rmtree(nodes.brokers[node].store)
            case "freeze":
                nodes.freeze(node)
            case "disk":
                nodes.fill_disk(node)
                self.failed.add(node)
            case "isolate":
                if self.draws.random() < 0.5:
                    others.append(OUTSIDE)
                net.cut([pair for each in others for pair in ((node, each), (each, node))])
            case "cut":
                net.cut([(node, other), (other, node)])
                return f"cut {node} - {other}"
            case "one-way":
                net.cut([(node, other)])
                return f"cut {node} -> {other}"
        return f"{kind} {node}"

    def heal(self) -> None:
        self.nodes.net.mend()
        self.nodes.thaw()
        for node in self.failed:
            self.nodes.kill(node)
        self.failed.clear()
        for node in reversed(NODES):  # brokers need the others
            self.nodes.start(node)


def check(nodes: Nodes, sender: Sender, reader: Reader) -> None:
    """After faults have ended: everything that was acknowledged is on every replica, and their logs are equal."""
    acked = dict(sender.acked)

    def all_have_it() -> bool:
        for node in BROKERS:
            reader.read_all(node)
        return not any(reader.lacks(node, acked) for node in BROKERS)

    eventually(all_have_it, lambda: {node: reader.lacks(node, acked)[:5] for node in BROKERS})
    for place, body in acked.items():
        assert reader.seen[place][0] == body, f"{body!r} was acknowledged at {place}"


@contextmanager
def begun(
    folder: Path, patience: Mapping[str, int] | None = None, **settings: object
) -> Iterator[tuple[Nodes, Sender, Reader]]:
    """All nodes in sync, who sends to them and who reads from them. ``patience``: of the producer, else it has none."""
    with Partitions({node: folder / node for node in NODES}) as net:
        nodes = Nodes(folder, net, **settings)
        try:
            for node in reversed(NODES):
                nodes.start(node)
            eventually(lambda: len(nodes.in_sync()) == len(BROKERS), nodes.in_sync)
            with Clients(nodes.address("namesrv")) as clients:
                topic = clients.topic(queues=QUEUES)
                producer = clients.producer(**(patience or {"retries": 0}))
                yield nodes, Sender(producer, topic), Reader(nodes, topic)
        finally:
            nodes.close()


@pytest.mark.slow("rounds of processes; the simulator is the fast twin")
@pytest.mark.skipif(sys.platform != "linux", reason="needs all of 127.0.0.0/8, /proc and prlimit")
@pytest.mark.parametrize(
    "rounds",
    [2, pytest.param(ROUNDS, marks=pytest.mark.slow("some minutes; the two rounds are the quick twin"))],
)
@pytest.mark.timeout(60 + 60 * ROUNDS)
def test_replicas_keep_their_promises_in_rounds_of_faults(tmp_path: Path, rounds: int) -> None:
    draws, patience = random.Random(SEED + rounds), {"retries": 3, "attempt_timeout_ms": 1_000}
    with begun(tmp_path, patience) as (nodes, sender, reader):
        with running(sender, reader):
            for number in range(1, rounds + 1):
                before = len(sender.acked)
                eventually(lambda: len(sender.acked) > before + 20, "messages before the faults")  # noqa: B023
                played = Round(nodes, draws)
                what = played.play()
                played.heal()
                began_s = time.monotonic()
                eventually(lambda: len(nodes.in_sync()) == len(BROKERS), lambda: (what, nodes.in_sync()))  # noqa: B023
                check(nodes, sender, reader)
                took_s = time.monotonic() - began_s
                print(
                    f"round {number}: {what}; all in sync {took_s:.1f} s later, {len(sender.acked)} acknowledged"
                )
        check(nodes, sender, reader)
        for node in BROKERS:
            reader.read_all(node, again=True)
        logs = eventually(
            lambda: (
                (logs := [log_of(nodes.direct(node), nodes.brokers[node].store) for node in BROKERS]).count(
                    logs[0]
                )
                == len(BROKERS)
                and logs
            ),
            "equal logs",
        )
        assert len(logs[0]) > 100 * len(sender.acked)


@pytest.mark.skipif(sys.platform != "linux", reason="needs all of 127.0.0.0/8 and /proc")
@pytest.mark.slow(
    "a quarter of a minute each; the simulator's runs with a broker that is apart are the quick twin"
)
@pytest.mark.parametrize("way", ["both", "from", "to"])
def test_a_master_that_is_cut_off_from_its_slaves_only_is_replaced(tmp_path: Path, way: str) -> None:
    """All reach the controller and the clients. The network heals once a message was acknowledged by another one."""
    with begun(tmp_path, controllerHeartBeatTimeoutMills=4_000) as (nodes, sender, reader):
        with running(sender, reader):
            eventually(lambda: len(sender.acked) > 20)
            address = state_of(nodes.direct("controller"))["masterAddress"]
            master = next(node for node in BROKERS if nodes.address(node) == address)
            slaves = [node for node in BROKERS if node != master]
            away = [(master, each) for each in slaves] if way != "to" else []
            away += [(each, master) for each in slaves] if way != "from" else []
            nodes.net.cut(away)
            eventually(lambda: state_of(nodes.direct("controller")).get("masterAddress") != address)
            before = len(sender.acked)
            eventually(lambda: len(sender.acked) > before + 20, "messages that the new master acknowledges")
            nodes.net.mend()
            eventually(lambda: len(nodes.in_sync()) == len(BROKERS), nodes.in_sync)
            assert state_of(nodes.direct("controller"))["masterAddress"] != address, "it moved back by itself"
        check(nodes, sender, reader)


@pytest.mark.skipif(sys.platform != "linux", reason="needs all of 127.0.0.0/8 and /proc")
@pytest.mark.slow("half a minute; the simulator's runs in which the cluster changes are the quick twin")
def test_an_older_state_of_the_controller_and_other_ports_of_all_brokers(tmp_path: Path) -> None:
    with begun(tmp_path) as (nodes, sender, reader):
        (state,) = (tmp_path / "controller").rglob("controller.state")
        older = state.read_bytes()

        def goes_on() -> None:
            eventually(lambda: len(nodes.in_sync()) == len(BROKERS), nodes.in_sync)
            before = len(sender.acked)
            eventually(lambda: len(sender.acked) > before + 20, "more messages")
            check(nodes, sender, reader)

        with running(sender, reader):
            goes_on()
            for _ in range(2):
                address = state_of(nodes.direct("controller"))["masterAddress"]
                master = next(node for node in BROKERS if nodes.address(node) == address)
                nodes.kill(master)
                nodes.start(master)
                goes_on()
            epoch = state_of(nodes.direct("controller"))["masterEpoch"]
            nodes.kill("controller")
            state.write_bytes(older)
            nodes.start("controller")
            goes_on()
            assert state_of(nodes.direct("controller"))["masterEpoch"] > epoch
            for node in BROKERS:
                nodes.kill(node)
                nodes.move(node)
            for node in BROKERS:
                nodes.start(node)
            goes_on()
