"""What was promised in a run, and the checks of it: while it runs, and at its end."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

import msgspec

from mqspark.controller.statefile import StateFile
from mqspark.message import decode_offset_id
from mqspark.protocol.connection import Connection
from tests.crash.disk import File, Tree
from tests.simulation.machines import BrokerMachine, ControllerMachine, Machine
from tests.simulation.network import Transport
from tests.simulation.scheduler import World
from tests.support.store_tools import drain

__all__ = ["Broken", "CLIENTS", "History", "QUEUES", "SEGMENT_BYTES", "TOPIC"]

TOPIC = "Orders"
QUEUES = (0, 1)
CLIENTS = "10.0.1."
SEGMENT_BYTES = 64 << 10

LAST_BYTES = 100
"""As many bytes of the end of a log tell whether it is the right one."""

Place = tuple[int, int]
"""A queue id and an offset in it."""


class Broken(AssertionError):
    """A promise was not kept."""


@dataclass
class Sent:
    producer: str
    queue_id: int
    body: bytes


@dataclass
class History:
    world: World
    controller: ControllerMachine
    brokers: list[BrokerMachine]
    copied_s: float
    """What is committed until then is copied to slaves before the first fault."""
    power_cuts: bool = True
    """Whether acknowledged means synced."""
    acked: dict[Place, Sent] = field(default_factory=dict)
    seen: dict[Place, tuple[bytes, str]] = field(default_factory=dict)
    places: dict[bytes, Place] = field(default_factory=dict)
    sent: int = 0
    reads: int = 0
    committed: dict[int, int] = field(default_factory=dict)
    """The largest group offset that was sent, by queue."""
    kept: dict[int, int] = field(default_factory=dict)
    """What a master acknowledged of that long before the first fault."""
    lost: frozenset[int] = frozenset()
    """The broker ids of a machine that lost its disk. It comes back as another broker."""
    broken: list[str] = field(default_factory=list)
    """What was found in the middle of an answer or a client."""
    _last: dict[tuple[str, int], int] = field(default_factory=dict)
    _parsers: dict[int, Connection] = field(default_factory=dict)
    _truth: bytearray = field(default_factory=bytearray)
    """The log as far as any broker has shown it."""
    _last_members: frozenset[int] = frozenset()
    _compared: dict[object, int] = field(default_factory=dict)

    # --- what clients see ---

    def observed(self, place: Place, body: bytes, where: str) -> None:
        """Somebody was told that this message is at this place."""
        known, first = self.seen.setdefault(place, (body, where))
        if known != body:
            raise Broken(f"{where}: {short(body)} is at {place}, where {short(known)} was before ({first})")
        before = self.places.setdefault(body, place)
        if before != place:
            raise Broken(f"{where}: {short(body)} is at {before} and at {place}")

    def was_acked(self, sent: Sent, place: Place) -> None:
        self.world.note("ack", sent.body, place)
        self.observed(place, sent.body, f"acknowledged at {self.world.now_s:.3f} s")
        key = sent.producer, sent.queue_id
        if self._last.get(key, -1) >= place[1]:
            raise Broken(f"{short(sent.body)} at {place} is not behind what {sent.producer} sent before")
        self._last[key] = place[1]
        self.acked[place] = sent

    def was_committed(self, address: str, queue_id: int, offset: int) -> None:
        (machine,) = (each for each in self.brokers if address.startswith(f"{each.host}:"))
        term = machine.app.term
        if self.world.now_s < self.copied_s and term is not None and term.holds:
            self.kept[queue_id] = max(offset, self.kept.get(queue_id, 0))

    # --- at the moment of an acknowledgement ---

    def tap(self, transport: Transport, data: bytes) -> None:
        try:
            if transport.peer_host.startswith(CLIENTS):
                self._tapped(transport, data)
            elif transport.host == self.controller.host and self.members()[0] != self._last_members:
                self._check_members()
        except Broken as error:
            self.broken.append(str(error))

    def _tapped(self, transport: Transport, data: bytes) -> None:
        parser = self._parsers.setdefault(transport.number, Connection())
        machine = next(each for each in self.brokers if each.host == transport.host)
        for command in parser.receive_data(data):
            if command.code == 0 and "msgId" in command.ext:
                self._acknowledged(machine, decode_offset_id(command.ext["msgId"])[2])

    def _acknowledged(self, machine: BrokerMachine, position: int) -> None:
        """A broker acknowledges the record at this position: every replica that may become the master has it."""
        (size,) = struct.unpack(">i", log_of(machine, position, 4) or b"\0\0\0\0")
        record = log_of(machine, position, size)
        if size <= 0 or len(record) != size:
            raise Broken(f"{machine.name} acknowledges {position}, where it has no record")
        members, by_id = self.members()
        having = 0
        for broker_id, each in by_id.items():
            has_it = broker_id in self.lost  # it did
            has_it = has_it or log_of(each, position, size, durable=self.power_cuts) == record
            having += has_it
            if broker_id in members and not has_it:
                raise Broken(
                    f"{machine.name} acknowledges {position}, which {each.name} of the SyncStateSet"
                    f" {sorted(members)} does not have"
                )
        if having < 2:
            raise Broken(f"{machine.name} acknowledges {position}, which only {having} replica has")

    def members(self) -> tuple[frozenset[int], dict[int, BrokerMachine]]:
        """The SyncStateSet as the controller has saved it, and the brokers by id."""
        data = content_of(self.controller, ("controller.state",), durable=True)
        if data is None:
            return frozenset(), {}
        saved = msgspec.json.decode(StateFile(self.controller.root)._checked(data))
        if "orders" not in saved:
            return frozenset(), {}
        hosts = {each.host: each for each in self.brokers}
        by_id = {
            int(number): hosts[replica["address"].partition(":")[0]]
            for number, replica in saved["orders"]["replicas"].items()
        }
        return frozenset(saved["orders"]["inSync"]), by_id

    # --- lost disks ---

    def may_lose(self, machine: BrokerMachine) -> bool:
        """Whether the cluster promises to survive that. From now on the machine's ids mean nothing."""
        members, by_id = self.members()
        ids = frozenset(broker_id for broker_id, each in by_id.items() if each is machine)
        if len(members - ids) < 1 or len(members) < 2:
            return False
        self.lost |= ids
        return True

    def only_lost_may_lead(self) -> bool:
        members, _ = self.members()
        return bool(members) and members <= self.lost

    # --- now and then ---

    def look(self) -> None:
        """What brokers show is the same everywhere, and stays so."""
        if self.broken:
            raise Broken(self.broken[0])
        if self.world.errors:
            raise Broken(self.world.errors[0])
        for machine in self.brokers:
            core = core_of(machine)
            if core is None or not core.replicas.is_sure:
                continue
            shown = core.store.shown_offset
            if core.store.min_physical_offset:
                continue
            self._compare(machine, core.store, shown)
        self._check_members()

    def _check_members(self) -> None:
        """Who may be elected has everything that was shown to anybody, synced."""
        end = len(self._truth)
        begin = max(0, end - LAST_BYTES)
        members, by_id = self.members()
        self._last_members = members
        for broker_id in members - self.lost:
            machine = by_id[broker_id]
            if end and log_of(machine, begin, end - begin, durable=True) != self._truth[begin:end]:
                raise Broken(
                    f"{machine.name}, which is in the SyncStateSet {sorted(members)}, has not all of the {end} bytes"
                    " of the log that were shown"
                )

    def _compare(self, machine: BrokerMachine, store: object, shown: int) -> None:
        begin = min(self._compared.get(store, 0), len(self._truth))
        if shown <= begin:
            return
        part = log_of(machine, begin, shown - begin)
        known = bytes(self._truth[begin:shown])
        if part[: len(known)] != known:
            at = next(i for i, (a, b) in enumerate(zip(part, known, strict=False)) if a != b)
            raise Broken(
                f"{machine.name} shows something else at {begin + at} of the log than was shown before"
            )
        self._truth += part[len(known) :]
        self._compared[store] = begin + len(part)

    # --- at the end ---

    def is_settled(self) -> bool:
        """Whether there is a master, and all are in sync: with the same log, its topics and offsets of groups."""
        cores = [core_of(machine) for machine in self.brokers]
        if any(core is None for core in cores):
            return False
        terms = [machine.app.term for machine in self.brokers]
        masters = [term for term in terms if term.holds]
        if len(masters) != 1 or len(masters[0].sync_set) != len(self.brokers):
            return False
        ends = {core.store.max_physical_offset for core in cores if core is not None}
        shown = {core.store.shown_offset for core in cores if core is not None}
        return len(ends) == 1 and shown == ends and all(self._has_copies(core) for core in cores)

    def _has_copies(self, core: Any) -> bool:
        query = core.state.offsets.query
        has_topic = core.state.topics.get(TOPIC) is not None
        return has_topic and all(
            query(GROUP, TOPIC, queue_id) >= least for queue_id, least in self.kept.items()
        )

    def finish(self) -> None:
        self.look()
        logs = {log_of(machine, 0, len(self._truth) + (1 << 20)) for machine in self.brokers}
        if len(logs) != 1:
            raise Broken("the logs of the replicas are not the same at the end")
        for machine in self.brokers:
            core = core_of(machine)
            assert core is not None
            found: dict[Place, bytes] = {}
            for queue_id in QUEUES:
                messages = drain(core.store, TOPIC, queue_id)
                if [message.queue_offset for message in messages] != list(range(len(messages))):
                    raise Broken(f"{machine.name}: the offsets of queue {queue_id} are not dense")
                found.update({(queue_id, m.queue_offset): m.body for m in messages})
            for place, body in found.items():
                self.observed(place, body, f"{machine.name} at the end")
            for place, (body, _) in self.seen.items():
                if place not in found:
                    kind = "acknowledged" if place in self.acked else "read"
                    raise Broken(f"{machine.name}: {short(body)} at {place} was {kind}, and is lost")
            self._check_offsets(machine, core)
            if core.state.topics.get(TOPIC) is None:
                raise Broken(f"{machine.name} does not have the topic")

    def _check_offsets(self, machine: BrokerMachine, core: Any) -> None:
        for queue_id in QUEUES:
            offset = core.state.offsets.query(GROUP, TOPIC, queue_id)
            least = self.kept.get(queue_id, 0)
            if least and (offset is None or offset < least):
                raise Broken(
                    f"{machine.name}: the group is at {offset} of queue {queue_id}, but {least} was committed"
                )
            if offset is not None and offset > self.committed.get(queue_id, 0):
                raise Broken(
                    f"{machine.name}: the group is at {offset} of queue {queue_id}, where it never was"
                )


GROUP = "readers"


def short(body: bytes) -> str:
    return body.rstrip(b".").decode()


def core_of(machine: Machine) -> Any:
    """The core of a broker that serves, or None."""
    app = machine.app
    if machine.process is None or app is None or app.parts is None or not app.lifecycle.ready:
        return None
    return app.parts.core


def content_of(machine: Machine, names: tuple[str, ...], *, durable: bool) -> bytes | None:
    """A file of a machine, whether its process runs or not."""
    if machine.process is not None:
        file = machine.files.file(machine.root.joinpath(*names))
        if file is None:
            return None
        return machine.files.durable(file) if durable else file.content()
    tree: Tree | bytes | None = machine._tree
    for name in names:
        tree = tree.get(name) if isinstance(tree, dict) else None
    return tree if isinstance(tree, bytes) else None


def log_of(machine: Machine, position: int, size: int, *, durable: bool = False) -> bytes:
    """Bytes of a broker's log, as far as it has files for them."""
    parts: list[bytes] = []
    while size > 0:
        start = position - position % SEGMENT_BYTES
        part = content_of_segment(machine, start, durable=durable, begin=position - start, size=size)
        if not part:
            break
        parts.append(part)
        position += len(part)
        size -= len(part)
    return b"".join(parts)


def content_of_segment(machine: Machine, start: int, *, durable: bool, begin: int, size: int) -> bytes:
    name = f"{start:020d}"
    if machine.process is not None and not durable:
        file: File | None = machine.files.file(machine.root / "commitlog" / name)
        if file is None:
            return b""
        return bytes(file.data[begin : min(begin + size, file.length)])
    data = content_of(machine, ("commitlog", name), durable=durable) or b""
    return data[begin : begin + size]
