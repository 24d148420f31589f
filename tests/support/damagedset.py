"""Three replicas in controller mode as processes, one of which comes back damaged: prepared directories, which each
case copies, and what is checked from outside."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from mqspark.record.record import decode_records
from tests.support.clusters import Cluster, mqspark_broker, mqspark_controller
from tests.support.damages import KINDS, Around
from tests.support.processes import free_port, tail
from tests.support.remoting import SEND_MESSAGE_V2, UPDATE_AND_CREATE_TOPIC, RawConnection, ask, log_end
from tests.support.replicaset import ELECT_MASTER, LEASE_MS, SETTINGS, state_of
from tests.support.store_tools import copy_store
from tests.support.storefiles import log_bytes, records
from tests.support.waiting import eventually

IDS = (1, 2, 3)
TOPIC, QUEUES = "Kept", 2
FEW, MANY, MORE = 24, 56, 8
"""Messages before the older copy, after it, and after the damage."""
BODY_BYTES = 44 << 10
"""So that the log has four segments, and what a slave compares when it connects is less than the log."""
SEGMENT_BYTES = 1 << 20
SERVE_S, WHOLE_S = 30.0, 60.0
"""How soon the set takes messages, and has all three replicas in sync."""
SHOWN_S = 10.0
"""How soon everything is shown."""
ALONE_S = LEASE_MS / 1000 + 1.0
"""How long a replica is alone with the controller: longer than the lease, and than several rounds of heartbeats."""
SAID_S = 10.0
"""How soon it is said why nobody leads."""
REASONS = (
    "not heard",
    "has reported damage",
    "sound, but too few",
    "ends at",
    "is registered at",
    "is alive at",
)
REFUSED = "the controller does not "
"""Begins what a broker says of each refusal of the controller."""
HOST = "127.88.{worker}.{node}"
SEND = {"a": "P", "b": TOPIC, "c": "TBW102", "d": QUEUES, "f": 0, "g": 1, "h": 0, "i": "", "j": 0}
NOTHING = (19, 20)
"""Answers to a pull that finds no message: at a master, and at a slave."""
Place = tuple[int, int]
"""A queue id and an offset in it."""


def body_of(number: int) -> bytes:
    return b"%d:" % number + random.Random(number).randbytes(BODY_BYTES)


class Broken(AssertionError):
    """A promise was not kept."""


class Replicas:
    """The processes, in the directories below ``folder``. A replica is known by the number of its directory, which is
    the id that the controller gave it at first."""

    def __init__(self, folder: Path, ports: dict[int, int]) -> None:
        self.folder, self._ports = folder, ports
        self.brokers: dict[int, Cluster] = {}
        self._stacks: dict[int, ExitStack] = {}
        self._controller = ExitStack()
        self._connections: dict[str, RawConnection] = {}
        self.acked: dict[Place, bytes] = {}
        self.sent = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill(*self.brokers)
        self._controller.close()

    # --- processes ---

    @staticmethod
    def host(node: int) -> str:
        worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
        return HOST.format(worker=worker + 1, node=node + 1)

    @property
    def controller(self) -> str:
        return f"{self.host(0)}:{self._ports[0]}"

    def address(self, node: int) -> str:
        return f"{self.host(node)}:{self._ports[node]}"

    def store(self, node: int) -> Path:
        return self.folder / f"broker-{node}" / "store"

    def said(self, node: int) -> Path:
        """What its process has logged."""
        return self.folder / f"broker-{node}" / "broker.err"

    def start_controller(self) -> None:
        self._controller.enter_context(
            mqspark_controller(
                self.folder,
                self._ports[0],
                bindAddress=self.host(0),
                controllerDLegerPeers=f"n0-{self.controller}",
                scanNotActiveBrokerInterval=200,
            )
        )

    def stop_controller(self) -> None:
        self._controller.close()

    def start(self, *nodes: int) -> None:
        """All at once. Returns when each serves, or has waited for a master for some seconds."""
        with self.starting(*nodes):
            pass

    @contextmanager
    def starting(self, *nodes: int) -> Iterator[None]:
        """The block runs meanwhile."""
        with ThreadPoolExecutor(len(nodes)) as pool:
            started = [pool.submit(self._start, node) for node in nodes]
            yield
        for each in started:
            each.result()

    def _start(self, node: int) -> None:
        settings = {
            **SETTINGS,
            "bindAddress": self.host(node),
            "brokerIP1": self.host(node),
            "listenPort": self._ports[node],
            "controllerAddr": self.controller,
            "flushDiskType": "SYNC_FLUSH",
            "slaveReadEnable": True,
            "mappedFileSizeCommitLog": SEGMENT_BYTES,
            "haMaxTimeSlaveNotCatchup": 3_000,
            "haHousekeepingInterval": 4_000,
            "haSendHeartbeatInterval": 1_000,
            "timerWheelEnable": False,
            "maxHashSlotNum": 1_000,
            "maxIndexNum": 4_000,
            "mappedFileSizeConsumeQueue": 20 * 500,
        }
        stack = ExitStack()
        self.brokers[node] = stack.enter_context(
            mqspark_broker(self.folder / f"broker-{node}", "", settings, stop_signal=signal.SIGKILL)
        )
        self._stacks[node] = stack

    def kill(self, *nodes: int) -> None:
        for node in nodes:
            os.kill(self.brokers.pop(node).broker_pid, signal.SIGKILL)
        for node in nodes:
            self._stacks.pop(node).close()
        self._connections.clear()

    # --- what the controller says ---

    def state(self) -> dict[str, Any]:
        return state_of(self.controller)

    def master(self) -> int | None:
        """The number of the replica that leads."""
        address = self.state().get("masterAddress")
        return next((node for node in IDS if address == self.address(node)), None)

    def in_sync(self) -> set[str]:
        """Addresses."""
        return {each["brokerAddress"] for each in self.state().get("inSyncReplicas", ())}

    def until_in_sync(self, nodes: Iterable[int], timeout_s: float = WHOLE_S) -> None:
        wanted = {self.address(node) for node in nodes}
        eventually(lambda: wanted <= self.in_sync(), lambda: f"{wanted} in sync: {self.state()}", timeout_s)

    def until_any_in_sync(self, count: int) -> list[int]:
        """So many replicas, whichever they are."""
        eventually(lambda: len(self.in_sync()) >= count, lambda: f"{count} in sync: {self.state()}", WHOLE_S)
        addresses = self.in_sync()
        return [node for node in IDS if self.address(node) in addresses]

    def elect(self, node: int) -> None:
        words = {"clusterName": SETTINGS["brokerClusterName"], "brokerName": SETTINGS["brokerName"]}

        def leads() -> bool:
            if self.master() != node:
                ask(self.controller, ELECT_MASTER, brokerId=node, designateElect=True, **words)
            return self.master() == node

        eventually(leads, self.state)

    def silent(self, nodes: Iterable[int]) -> str:
        """Who does not say why nobody leads: the controller to an operator, and each of these replicas in its log."""
        words = {"clusterName": SETTINGS["brokerClusterName"], "brokerName": SETTINGS["brokerName"]}
        answer = ask(self.controller, ELECT_MASTER, **words)
        if not any(reason in (answer.remark or "") for reason in REASONS):
            return f"the controller answers {answer.code} {answer.remark}"
        for node in nodes:
            refused = [line for line in self.said(node).read_text().splitlines() if REFUSED in line]
            if not any(reason in line for line in refused for reason in REASONS):
                return f"broker-{node}: {refused[-1:]}"
        return ""

    # --- messages ---

    def send(self, timeout_s: float = SERVE_S) -> None:
        """Until one is acknowledged; a new one for each try."""
        why: list[object] = []
        deadline = time.monotonic() + timeout_s
        while not self._try(why):
            if time.monotonic() > deadline:
                raise Broken(f"no message was taken within {timeout_s:.0f} s: {why[-1:]}, {self.state()}")
            time.sleep(0.05)

    def _try(self, why: list[object]) -> bool:
        node = self.master()
        if node is None:
            return False
        self.sent += 1
        body = body_of(self.sent)
        address = self.address(node)
        try:
            with RawConnection(address, 5.0) as connection:
                reply = connection.request(SEND_MESSAGE_V2, body, e=self.sent % QUEUES, **SEND)
        except OSError as error:
            why.append(repr(error))
            return False
        if reply.code != 0:
            why.append((reply.code, reply.remark))
            return False
        place = int(reply.ext["queueId"]), int(reply.ext["queueOffset"])
        before = self.acked.setdefault(place, body)
        if before is not body:
            raise Broken(f"{_short(body)} was acknowledged at {place}, where {_short(before)} is")
        return True

    def read(self, node: int) -> dict[Place, bytes]:
        """All messages that a replica shows."""
        found: dict[Place, bytes] = {}
        with RawConnection(self.address(node), 20.0) as connection:
            for queue_id in range(QUEUES):
                offset = 0
                while True:
                    reply = connection.pull(TOPIC, queue_id, offset, group="checks", count=64)
                    if reply.code == 0:
                        for message in decode_records(reply.body):
                            found[queue_id, message.queue_offset] = message.body
                    elif reply.code not in NOTHING:
                        raise Broken(
                            f"broker-{node}, queue {queue_id}: {reply.code} {reply.remark} at {offset}"
                        )
                    elif int(reply.ext["nextBeginOffset"]) <= offset:
                        break
                    offset = int(reply.ext["nextBeginOffset"])
        return found

    def check_messages(self, node: int) -> None:
        """That a replica shows everything acknowledged, each at its place."""
        found = self.read(node)
        lost = [place for place in self.acked if place not in found]
        if lost:
            raise Broken(
                f"broker-{node} has not {len(lost)} of {len(self.acked)} acknowledged: {sorted(lost)[:9]}"
            )
        other = [place for place, body in self.acked.items() if found[place] != body]
        if other:
            raise Broken(f"broker-{node} has other messages at {sorted(other)[:9]}")

    def until_equal(self, nodes: Iterable[int], timeout_s: float = SERVE_S) -> bytes:
        """The log, once these replicas have the same."""
        chosen = list(nodes)

        def logs() -> set[bytes]:
            return {log_bytes(self.store(node), log_end(self.address(node))) for node in chosen}

        def what() -> str:
            found = [log_bytes(self.store(node), log_end(self.address(node))) for node in chosen]
            return "equal logs: " + ", ".join(
                f"broker-{node} ends at {len(log)} and differs at {_first_difference(log, found[0])}"
                for node, log in zip(chosen, found, strict=True)
            )

        (log,) = eventually(lambda: len(found := logs()) == 1 and found, what, timeout_s)
        return log


def _short(body: bytes) -> str:
    return body.partition(b":")[0].decode()


def _first_difference(one: bytes, other: bytes) -> int | None:
    if one == other:
        return None
    size = min(len(one), len(other))
    return next((at for at in range(size) if one[at] != other[at]), size)


# --- prepared directories -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Image:
    """Directories of three replicas, whose power failed when all had all of ``acked``."""

    folder: Path
    ports: dict[int, int]
    master: int
    acked: dict[Place, bytes]
    sent: int
    end: int

    def copied(self, folder: Path) -> Replicas:
        for name in ("controller", *(f"broker-{node}" for node in IDS)):
            copy_store(self.folder / name, folder / name)
        replicas = Replicas(folder, self.ports)
        replicas.acked, replicas.sent = dict(self.acked), self.sent
        return replicas

    def older(self, node: int) -> Path:
        """An earlier copy of a replica's directory."""
        return self.folder / f"older-{node}"


class Images:
    """Made once for each process of pytest: the same addresses are used in all of its cases, one after the other."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._found: dict[int, Image] = {}

    def led_by(self, master: int) -> Image:
        if not self._found:
            self._make()
        return self._found[master]

    def _make(self) -> None:
        ports = {node: free_port(neighbours=2) for node in (0, *IDS)}
        place = self._folder / "made"
        with Replicas(place, ports) as replicas:
            replicas.start_controller()
            for node in IDS:
                replicas.start(node)
            replicas.until_in_sync(IDS)
            self._load(replicas, 1, FEW)
            self._stop(replicas)
            for node in IDS:
                copy_store(replicas.store(node), self._folder / f"older-{node}")
            for master in (IDS[0], IDS[-1]):
                replicas.start(*IDS)
                replicas.until_in_sync(IDS)
                self._load(replicas, master, MANY if master == IDS[0] else 1)
                end = self._stop(replicas)
                folder = self._folder / f"led-by-{master}"
                copy_store(place, folder)
                for node in IDS:
                    copy_store(self._folder / f"older-{node}", folder / f"older-{node}")
                self._found[master] = Image(folder, ports, master, dict(replicas.acked), replicas.sent, end)

    def _load(self, replicas: Replicas, master: int, count: int) -> None:
        replicas.elect(master)
        replicas.until_in_sync(IDS)
        if not replicas.acked:
            address = replicas.address(master)
            words = {"topic": TOPIC, "defaultTopic": "TBW102", "readQueueNums": QUEUES, "perm": 6}
            ask(
                address,
                UPDATE_AND_CREATE_TOPIC,
                writeQueueNums=QUEUES,
                topicFilterType="SINGLE_TAG",
                topicSysFlag=0,
                order=False,
                **words,
            )
        for _ in range(count):
            replicas.send()
        eventually(lambda: all(self._knows(replicas, node) for node in IDS), "the topic on all")

    def _knows(self, replicas: Replicas, node: int) -> bool:
        path = replicas.store(node) / "config" / "topics.json"
        return path.exists() and TOPIC in path.read_text()

    def _stop(self, replicas: Replicas) -> int:
        """All three lose their power with the same log. Returns its end."""
        end = len(replicas.until_equal(IDS))
        replicas.kill(*IDS)
        return end


# --- cases --------------------------------------------------------------------------------------------------------

LEFT_OUT = ("clone of another", "store of another set")
"""Whoever comes first has the number of both clones, and a log without anything in common is copied over by nobody."""
SCHEDULES = ("only it is down", "it comes back first", "it comes back with one", "all come back together")
ROLES = ((1, 1), (3, 3), (1, 3), (3, 1))
"""The damaged replica and the master of before: lowest or highest id, former master or slave."""


@dataclass
class Case:
    kind: str
    schedule: str
    node: int
    master: int
    served_s: float = -1.0
    """From the moment at which a majority of intact replicas is there."""
    whole_s: float = -1.0
    """When the damaged one is in sync, too."""

    @property
    def title(self) -> str:
        role = "the master" if self.node == self.master else "a slave"
        return f"{self.kind}, {self.schedule}, {role}, id {self.node}"


def play(case: Case, images: Images, folder: Path) -> None:
    """Raises Broken. What was measured is in the case."""
    image = images.led_by(case.master)
    intact = [node for node in IDS if node != case.node]
    with image.copied(folder) as replicas:
        try:
            _come_back(case, image, replicas, intact)
            _check(case, image, replicas, intact)
        except BaseException as error:
            for node in IDS:
                error.add_note(f"--- broker-{node} ---\n{tail(replicas.said(node))}")
            error.add_note(f"--- controller ---\n{tail(folder / 'controller.err')}")
            raise


def _come_back(case: Case, image: Image, replicas: Replicas, intact: list[int]) -> None:
    def damage() -> None:
        KINDS[case.kind](
            replicas.store(case.node),
            Around(image.older(case.node), image.folder / f"broker-{intact[0]}" / "store", image.end),
        )

    replicas.start_controller()
    replicas.start(*IDS)
    replicas.until_in_sync(IDS)
    schedule = SCHEDULES.index(case.schedule)
    replicas.kill(*([case.node] if schedule == 0 else IDS))
    damage()
    began_s = time.monotonic()
    match schedule:
        case 0:
            replicas.start(case.node)
        case 1:
            with replicas.starting(case.node):
                _wait_alone(replicas, case.node)
                began_s = time.monotonic()
                replicas.start(*intact)
        case 2:
            with replicas.starting(case.node, intact[0]):
                _wait_alone(replicas, case.node, intact[0])
                began_s = time.monotonic()
                replicas.start(intact[1])
        case _:
            replicas.stop_controller()
            replicas.start_controller()
            replicas.start(*IDS)
    replicas.send(SERVE_S - (time.monotonic() - began_s))
    case.served_s = time.monotonic() - began_s


def _wait_alone(replicas: Replicas, *nodes: int) -> None:
    """Until somebody leads whom the controller should not have elected so soon, or long enough: then it is said why
    nobody does."""
    deadline = time.monotonic() + ALONE_S
    while time.monotonic() < deadline and replicas.master() is None:
        time.sleep(0.05)
    while replicas.master() is None and (silent := replicas.silent(nodes)):
        if time.monotonic() > deadline + SAID_S:
            raise Broken(f"nobody leads, and nobody says why: {silent}")
        time.sleep(0.2)


def _check(case: Case, image: Image, replicas: Replicas, intact: list[int]) -> None:
    began_s = time.monotonic() - case.served_s
    for _ in range(MORE):
        replicas.send()
    master = replicas.master()
    assert master is not None, replicas.state()
    _until_shown(replicas, master)
    for node in intact:
        _check_untouched(image, replicas, node)
    back = [*IDS]
    if case.kind in LEFT_OUT:
        back = replicas.until_any_in_sync(len(intact))
    replicas.until_in_sync(back)
    case.whole_s = time.monotonic() - began_s
    log = replicas.until_equal(back)
    _check_log(log, replicas.acked)
    for node in back:
        _until_shown(replicas, node)
    for node in intact:
        _check_untouched(image, replicas, node)


def _until_shown(replicas: Replicas, node: int) -> None:
    """A slave knows a moment later than its master how much is acknowledged; a flip that no checksum covers is healed
    once all three replicas have been compared."""
    deadline = time.monotonic() + SHOWN_S
    while True:
        try:
            return replicas.check_messages(node)
        except Broken:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def _check_untouched(image: Image, replicas: Replicas, node: int) -> None:
    before = log_bytes(image.folder / f"broker-{node}" / "store", image.end)
    after = log_bytes(replicas.store(node), image.end)
    if before != after:
        raise Broken(f"the intact log of broker-{node} was changed at {_first_difference(before, after)}")
    aside = replicas.store(node) / "mqspark.diverged"
    if aside.exists() and any(aside.iterdir()):
        raise Broken(f"a part of the intact log of broker-{node} was taken back: {sorted(aside.iterdir())}")


def _check_log(log: bytes, acked: dict[Place, bytes]) -> None:
    """No place in the log has two messages."""
    found: dict[Place, int] = {}
    for begin, size in records(log):
        (message,) = decode_records(log[begin : begin + size])
        if message.topic != TOPIC:
            continue
        place = message.queue_id, message.queue_offset
        if place in found:
            raise Broken(f"the log has two messages at {place}: at {found[place]} and {begin}")
        found[place] = begin
        if place in acked and acked[place] != message.body:
            raise Broken(f"the log has {_short(message.body)} at {place}, where {_short(acked[place])} is")
