"""What was promised in a run, and the checks of it: while it runs, and at its end."""

from __future__ import annotations

import bisect
import itertools
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from mqspark.controller.statefile import StateFile
from mqspark.message import MessageExt, decode_offset_id
from mqspark.protocol.bodies.body import decode_body
from mqspark.protocol.bodies.replica_bodies import SyncStateSet
from mqspark.protocol.codes import RequestCode
from mqspark.protocol.connection import Connection
from tests.crash.disk import Tree
from tests.simulation.faults import UNSEEN
from tests.simulation.machines import QUEUES, BrokerMachine, ControllerMachine, Machine
from tests.simulation.network import Transport
from tests.simulation.scheduler import World
from tests.support.store_tools import drain

__all__ = [
    "CLIENTS",
    "DECIDED",
    "GROUP",
    "LATER",
    "ORDERS",
    "QUEUES",
    "SEGMENT_BYTES",
    "Broken",
    "History",
    "Sent",
    "content_of",
]

ORDERS, LATER, DECIDED = "Orders", "Later", "Decided"
"""Topics: of messages, of delayed ones, and of transactions."""
CLIENTS = "10.0.1."
SEGMENT_BYTES = 64 << 10

BEFORE_S, AFTER_S = 0.4, 1.2
"""How long it matters that something happens."""
TABLES_END = b"commitLogMaxOffset"
"""In the last answer of a round in which a slave copies tables."""
SET_NAME = b"syncStateSet"
"""In a request to change the SyncStateSet."""
FEW_BYTES = 1024
"""Most records are shorter."""
LAST_BYTES = 100
"""As many bytes of the end of a log tell whether it is the right one."""

Place = tuple[str, int, int]
"""A topic, a queue id and an offset in it."""


class Broken(AssertionError):
    """A promise was not kept."""


@dataclass
class Sent:
    producer: str
    body: bytes
    may_repeat: bool = False
    """Whether its producer sends it again when it gets no answer."""
    behind: Mapping[tuple[str, int], int] = field(default_factory=dict)
    """The last offset of each queue that its producer knew when it sent this. What is sent at once has no order."""


@dataclass
class Delayed:
    due_s: float
    due_ms: int
    """By the clock on the wall of whoever has the right time."""
    acked: bool = False


@dataclass
class Transaction:
    commits: bool
    prepared: bool = False
    """Whether a broker has acknowledged the half message."""


@dataclass
class History:
    world: World
    controller: ControllerMachine
    brokers: list[BrokerMachine]
    known_s: float
    """After so long, offsets of groups that a master has acknowledged are known to all who may be elected."""
    power_cuts: bool = True
    """Whether acknowledged means synced."""
    replicas: int = 2
    """As many have what is acknowledged."""
    right_time: bool = True
    """Whether no clock was stepped."""
    most_route_s: float | None = None
    """How long a name server may name another master than the controller."""
    topics: tuple[str, ...] = (ORDERS,)
    acked: dict[Place, Sent] = field(default_factory=dict)
    seen: dict[Place, tuple[bytes, str]] = field(default_factory=dict)
    places: dict[bytes, Place] = field(default_factory=dict)
    """Places of messages that may be at one place only."""
    repeated: set[bytes] = field(default_factory=set)
    """Messages that may be at several."""
    delayed: dict[bytes, Delayed] = field(default_factory=dict)
    transactions: dict[bytes, Transaction] = field(default_factory=dict)
    consumed: dict[str, set[bytes]] = field(default_factory=dict)
    """By group: what programs have got that are to get all of ORDERS."""
    sent: int = 0
    reads: int = 0
    committed: dict[int, int] = field(default_factory=dict)
    """The largest group offset that was sent, by queue."""
    kept: dict[int, int] = field(default_factory=dict)
    """What a master has acknowledged of that, and outlived long enough."""
    last_acks_s: dict[str, float] = field(default_factory=dict)
    """When each program that sends got its last acknowledgement."""
    gap_s: float = 0.0
    """The longest time without any."""
    route: tuple[float, str] | None = None
    """When a name server was asked last who the master is, and what it said."""
    when: Callable[[str], None] = lambda moment: None
    """Called at moments that faults wait for."""
    torn: frozenset[str] = frozenset()
    """Names of machines that lose what they had and may not have synced (ASYNC_FLUSH), and never lead."""
    spoilt: dict[str, int] = field(default_factory=dict)
    """Names of machines that came back damaged and were not counted in again, and where their logs ended before."""
    lost: frozenset[int] = frozenset()
    """The broker ids of a machine that lost its disk. It comes back as another broker."""
    fault_times_s: list[float] = field(default_factory=list)
    """When each fault begins and ends."""
    stirred_s: float = 0.0
    """When the controller has decided something last."""
    broken: list[str] = field(default_factory=list)
    """What was found in the middle of an answer or a client."""
    _last: dict[str, dict[tuple[str, int], int]] = field(default_factory=dict)
    """By producer: the last acknowledged offset of each queue."""
    _saved: tuple[bytes | None, frozenset[int], dict[int, BrokerMachine]] = (None, frozenset(), {})
    """The controller's state, and what it says."""
    _heirs: frozenset[int] = frozenset()
    """Who may lead: the last SyncStateSet in which anything could be acknowledged, and who came later."""
    _confirmed: int = 0
    """The confirmed end that it has saved."""
    _unseen: set[str] = field(default_factory=set)
    """Those of ``spoilt`` whose damage no checksum shows."""
    _out: set[str] = field(default_factory=set)
    """Those of ``spoilt`` who have left the SyncStateSet since."""
    _led: int | None = None
    """The master's broker id."""
    _led_since_s: float = 0.0
    _epoch: int = 0
    """The master's, as the controller has saved it last."""
    _not_before: int = -1
    """The controller's state is older than what brokers know until it has elected somebody in a newer epoch than this
    one; -1 if it is not."""
    _truth: bytearray = field(default_factory=bytearray)
    """The log as far as any broker has shown it."""
    _last_members: frozenset[int] = frozenset()
    _commits: deque[tuple[float, tuple[str, int, int], int, int]] = field(default_factory=deque)
    """Time, who led, queue id, offset."""
    _masters: set[tuple[str, int, int]] = field(default_factory=set)
    """All that were seen to lead."""
    _acked_end: int = 0
    """The end of the log that is acknowledged."""
    _compared: dict[object, int] = field(default_factory=dict)

    # --- what clients see ---

    def observed(self, place: Place, body: bytes, where: str) -> None:
        """Somebody was told that this message is at this place."""
        if body in self.transactions and place[0] == DECIDED and not self.transactions[body].commits:
            raise Broken(f"{where}: {short(body)} is at {place}, and was rolled back")
        if body in self.delayed:
            self._check_due(body, place, where)
        known, first = self.seen.setdefault(place, (body, where))
        if known != body:
            raise Broken(f"{where}: {short(body)} is at {place}, where {short(known)} was before ({first})")
        if place[0] == LATER or body in self.repeated or (place[0] == DECIDED and self._unseen):
            return  # who does not see its own damage may decide anew what is decided
        before = self.places.setdefault(body, place)
        if before != place:
            raise Broken(f"{where}: {short(body)} is at {before} and at {place}")

    def _check_due(self, body: bytes, place: Place, where: str) -> None:
        delayed = self.delayed[body]
        if place[0] == LATER and self.right_time and self.world.now_s < delayed.due_s:
            raise Broken(
                f"{where}: {short(body)} is at {place} at {self.world.now_s:.3f} s, and was due {delayed.due_s:.3f} s"
            )

    def last_offsets(self, producer: str) -> dict[tuple[str, int], int]:
        """The last acknowledged offset of each queue."""
        return dict(self._last.get(producer, {}))

    def was_acked(self, sent: Sent, place: Place) -> None:
        self.world.note("ack", sent.body, place)
        if sent.may_repeat:
            self.repeated.add(sent.body)
        self.observed(place, sent.body, f"acknowledged at {self.world.now_s:.3f} s")
        if sent.behind.get(place[:2], -1) >= place[2]:
            raise Broken(f"{short(sent.body)} at {place} is not behind what {sent.producer} sent before")
        last = self._last.setdefault(sent.producer, {})
        last[place[:2]] = max(place[2], last.get(place[:2], -1))
        self.acked[place] = sent
        self.progressed(sent.producer)

    def progressed(self, program: str) -> None:
        now_s = self.world.now_s
        self.gap_s = max(self.gap_s, now_s - max(self.last_acks_s.values(), default=now_s))
        self.last_acks_s[program] = now_s

    @property
    def is_stirred(self) -> bool:
        """Whether something has just happened, or is about to."""
        now_s, times_s = self.world.now_s, self.fault_times_s
        at = bisect.bisect_right(times_s, now_s - AFTER_S)
        return now_s < self.stirred_s + AFTER_S or (at < len(times_s) and times_s[at] < now_s + BEFORE_S)

    def was_committed(self, address: str, queue_id: int, offset: int) -> None:
        (machine,) = (each for each in self.brokers if address.startswith(f"{each.host}:"))
        if (led := leads(machine)) is not None:
            self._commits.append((self.world.now_s, led, queue_id, offset))

    # --- at the moment of an acknowledgement ---

    def tap(self, transport: Transport, data: bytes) -> None:
        try:
            if transport.peer_host.startswith(CLIENTS):
                if b"msgId" in data:
                    self._tapped(transport, data)
            elif transport.host == self.controller.host:
                if self.members()[0] != self._last_members:
                    self._check_members()
            elif transport.peer_host == self.controller.host and SET_NAME in data:
                if self._asked(data) - self.members()[0]:
                    self.when("asks")
            elif TABLES_END in data and self._lacks_something(transport):
                self.when("tables")
        except Broken as error:
            self.broken.append(str(error))

    def _lacks_something(self, transport: Transport) -> bool:
        """Whether a member of the SyncStateSet has copied tables that are ahead of its log."""
        members = self.members()[0]
        ends = {
            each.host: (each.app.store.log.position, each.app.term.broker_id in members)
            for each in self.brokers
            if each.app is not None and each.app.store is not None and each.app.term is not None
        }
        end, _ = ends.get(transport.host, (0, False))
        slave_end, is_member = ends.get(transport.peer_host, (end, False))
        return is_member and slave_end < end

    def _asked(self, data: bytes) -> frozenset[int]:
        """The members of the SyncStateSets that requests are for."""
        return frozenset(
            member
            for command in Connection().receive_data(data)
            if command.code == RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET
            for member in decode_body(SyncStateSet, bytes(command.body)).sync_state_set
        )

    def _tapped(self, transport: Transport, data: bytes) -> None:
        machine = next(each for each in self.brokers if each.host == transport.host)
        for command in Connection().receive_data(data):  # a broker writes whole frames
            if command.code == 0 and "msgId" in command.ext:
                self._acknowledged(machine, decode_offset_id(command.ext["msgId"])[2])

    def _acknowledged(self, machine: BrokerMachine, position: int) -> None:
        """A broker acknowledges the record at this position: every replica that may become the master has it."""
        head = log_of(machine, position, FEW_BYTES)
        size = int.from_bytes(head[:4], "big", signed=True)
        record = head[:size] if size <= FEW_BYTES else log_of(machine, position, size)
        if size <= 0 or len(record) != size:
            raise Broken(f"{machine.name} acknowledges {position}, where it has no record")
        members, by_id = self.members()
        having = 0
        for broker_id, each in by_id.items():
            has_it = broker_id in self.lost or each.name in self.torn  # it did
            has_it = has_it or position < self.spoilt.get(each.name, 0)
            has_it = has_it or log_of(each, position, size, durable=self.power_cuts) == record
            having += has_it
            if broker_id in members and not has_it and self._not_before < 0:
                raise Broken(
                    f"{machine.name} acknowledges {position}, which {each.name} of the SyncStateSet"
                    f" {sorted(members)} does not have"
                )
        self._acked_end = max(self._acked_end, position + size)
        if having < self.replicas:
            raise Broken(f"{machine.name} acknowledges {position}, which only {having} replica has")

    def members(self) -> tuple[frozenset[int], dict[int, BrokerMachine]]:
        """The SyncStateSet as the controller has saved it, and the brokers by id."""
        data = content_of(self.controller, ("controller.state",), durable=True)
        if data is None:
            return frozenset(), {}
        if data is self._saved[0] or data == self._saved[0]:
            return self._saved[1:]
        saved = msgspec.json.decode(StateFile(self.controller.root)._checked(data))["sets"]
        if "orders" not in saved:
            return frozenset(), {}
        hosts = {each.host: each for each in self.brokers}
        by_id = {
            int(number): hosts[replica["address"].partition(":")[0]]
            for number, replica in saved["orders"]["replicas"].items()
        }
        self._epoch = saved["orders"]["masterEpoch"]
        if saved["orders"]["master"] is not None and self._epoch > self._not_before:
            self._not_before = -1
        if saved["orders"]["master"] != self._led:
            self._led, self._led_since_s = saved["orders"]["master"], self.world.now_s
            if saved["orders"]["inSync"] == [self._led]:
                self.when("led")
        self._saved = data, frozenset(saved["orders"]["inSync"]), by_id
        members = self._saved[1]
        self._heirs = members if len(members) >= self.replicas else members | self._heirs
        self._check_confirmed(saved["orders"]["confirmed"])
        self._see_spoilt(*self._saved[1:])
        self.stirred_s = self.world.now_s
        return self._saved[1:]

    def _check_confirmed(self, confirmed: int) -> None:
        """Nothing of what all members had is given up, whatever the controller has forgotten."""
        if confirmed < self._confirmed:
            raise Broken(f"the confirmed end of the set fell from {self._confirmed} to {confirmed}")
        self._confirmed = confirmed

    def _see_spoilt(self, members: frozenset[int], by_id: dict[int, BrokerMachine]) -> None:
        """Who was damaged, left the set and is in it again has everything."""
        names = {by_id[each].name for each in members}
        self._out |= self.spoilt.keys() - names
        for name in self._out & names:
            self._out.discard(name)
            if name == (by_id[self._led].name if self._led in by_id else ""):
                continue  # it was elected, because nothing shows its damage yet
            (machine,) = (each for each in self.brokers if each.name == name)
            at = self._differs_at(machine)
            if at is not None:
                raise Broken(f"{name} was damaged, is counted in again, and is not healed at {at}")
            if self._is_shown(name):
                del self.spoilt[name]

    def _forget_healed(self) -> None:
        for machine in self.brokers:
            if machine.name in self.spoilt and machine.name not in self._out:
                members, by_id = self.members()
                is_member = any(by_id[each] is machine for each in members) and self._is_shown(machine.name)
                if is_member and core_of(machine) is not None and self._differs_at(machine) is None:
                    del self.spoilt[machine.name]

    def _is_shown(self, name: str) -> bool:
        """Whether all that a damaged machine had, and was acknowledged, was shown."""
        return len(self._truth) >= min(self.spoilt[name], self._acked_end)

    def _differs_at(self, machine: BrokerMachine) -> int | None:
        """Where its log is not what was shown."""
        known = bytes(self._truth)
        own = log_of(machine, 0, len(known), durable=self.power_cuts)
        pairs = enumerate(zip(own, known, strict=False))
        return None if own == known else next((i for i, (a, b) in pairs if a != b), len(own))

    def machine_as(self, role: str) -> BrokerMachine | None:
        """Who is "master" now, or "slave-a" or "slave-b"."""
        _, by_id = self.members()
        master = by_id.get(-1 if self._led is None else self._led)
        if role == "master":
            return master
        slaves = [each for each in self.brokers if each is not master]
        return slaves[role == "slave-b"]

    # --- older states of the controller ---

    def state_was_restored(self) -> None:
        """Until the controller has elected a master in a newer epoch, its SyncStateSet means nothing."""
        self.members()
        self._not_before = max(self._not_before, self._epoch)
        self._confirmed = 0  # it knows an older end

    # --- lost disks ---

    def may_lose(self, machine: BrokerMachine) -> bool:
        """Whether the cluster promises to survive that. From now on the machine's ids mean nothing."""
        members, by_id = self.members()
        ids = frozenset(broker_id for broker_id, each in by_id.items() if each is machine)
        if len(members - ids) < 1 or len(members) < 2 or self.spoilt:
            return False
        self.lost |= ids
        return True

    def may_spoil(self, machine: BrokerMachine, kind: str) -> bool:
        """Whether the cluster promises to survive that. The machine counts again once it was counted in anew."""
        _, by_id = self.members()
        others = {by_id[each].name for each in self._heirs & by_id.keys()} - {machine.name, *self.spoilt}
        is_alone = not others and self.replicas > 1
        if self.lost or self.spoilt or self.torn or is_alone or machine.process is None:
            return False
        store = None if machine.app is None else machine.app.store
        self.spoilt[machine.name] = 0 if store is None else store.log.position
        self._out.discard(machine.name)
        if kind in UNSEEN:
            self._unseen.add(machine.name)
        else:
            self._unseen.discard(machine.name)
        return True

    def may_err(self, address: str) -> bool:
        """Whether a broker may show something wrong, because nobody can see its damage before it is compared."""
        (machine,) = (each for each in self.brokers if address.startswith(f"{each.host}:"))
        return machine.name in self._unseen & self.spoilt.keys()

    @property
    def is_operator_needed(self) -> bool:
        """Whether only those may lead that have lost something."""
        members, by_id = self.members()
        spoilt = {broker_id for broker_id in self._heirs if by_id[broker_id].name in self.spoilt}
        nobody_else = bool(spoilt) and self._led is None and self._heirs <= self.lost | spoilt
        return nobody_else or (bool(members) and members <= self.lost)

    # --- now and then ---

    def look(self) -> None:
        """What brokers show is the same everywhere, and stays so."""
        if self.broken:
            raise Broken(self.broken[0])
        if self.world.errors:
            raise Broken(self.world.errors[0])
        for machine in self.brokers:
            core = core_of(machine)
            if core is None or not core.role.replicas.is_sure:
                continue
            shown = core.store.pipeline.visible_end
            if core.store.log.min_offset or machine.name in self.spoilt:
                continue
            self._compare(machine, core.store, shown)
        self._check_members()
        self._forget_healed()
        self._check_commits()
        self._check_route()

    def _check_route(self) -> None:
        """A name server that is always there learns soon who leads."""
        if self.most_route_s is None or self.route is None:
            return
        asked_s, address = self.route
        master = self.machine_as("master")
        is_late = asked_s > self._led_since_s + self.most_route_s
        if master is not None and is_late and not address.startswith(f"{master.host}:"):
            raise Broken(
                f"{master.name} leads since {self._led_since_s:.3f} s, and the route at {asked_s:.3f} s names"
                f" {address or 'nobody'}"
            )

    def _check_commits(self) -> None:
        """A master that leads for so long after it has acknowledged an offset has saved it, and told all others."""
        leading = {led: machine for machine in self.brokers if (led := leads(machine)) is not None}
        while self._commits and self._commits[0][0] < self.world.now_s - self.known_s:
            _, led, queue_id, offset = self._commits.popleft()
            if led in leading:
                self.kept[queue_id] = max(offset, self.kept.get(queue_id, 0))
        for led, machine in leading.items():
            core = core_of(machine)
            if core is not None and led not in self._masters:
                self._masters.add(led)
                self._check_offsets(machine, core)

    def _check_members(self) -> None:
        """Who may be elected has everything that was shown to anybody, synced."""
        end = len(self._truth)
        begin = max(0, end - LAST_BYTES)
        members, by_id = self.members()
        grown, self._last_members = members - self._last_members, members
        if grown:
            self.when("grown")
        for broker_id in members - self.lost if self._not_before < 0 else ():
            machine = by_id[broker_id]
            if machine.name in self.torn or machine.name in self.spoilt:
                continue
            if end and log_of(machine, begin, end - begin, durable=self.power_cuts) != self._truth[begin:end]:
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
        leading = [term for term in terms if term.holds]
        if len(leading) != 1 or len(leading[0].sync_set) != len(self.brokers):
            return False
        masters = [core for core, term in zip(cores, terms, strict=True) if term.holds]
        ends = {core.store.log.position for core in cores if core is not None}
        shown = {core.store.pipeline.visible_end for core in cores if core is not None}
        if self.route is not None and self.route[1] != leading[0].master_address:
            return False
        return (
            len(ends) == 1
            and shown == ends
            and all(self._has_copies(core, masters[0]) for core in cores)
            and self._are_served(cores[0])
        )

    def _are_served(self, core: Any) -> bool:
        """Whether all have got what they were promised. Only a look: a message that is missing may be late."""
        return not self._missing(core)

    def _missing(self, core: Any) -> str | None:
        bodies = {sent.body for place, sent in self.acked.items() if place[0] == ORDERS}
        for group, consumed in self.consumed.items():
            if rest := bodies - consumed:
                return f"{group} has not got {len(rest)} acknowledged messages, as {short(min(rest))}"
        for topic, promised in (
            (LATER, [body for body, each in self.delayed.items() if each.acked]),
            (DECIDED, [body for body, each in self.transactions.items() if each.prepared and each.commits]),
        ):
            if topic in self.topics:
                shown = {
                    message.body for queue_id in QUEUES for message in drain(core.store, topic, queue_id)
                }
                if rest := set(promised) - shown:
                    return f"{len(rest)} messages are not in {topic}, as {short(min(rest))}"
        return None

    def _has_copies(self, core: Any, master: Any) -> bool:
        """A slave has the topics, and offsets of the group that are not behind those of the master."""
        known, led = core.state.offsets.query, master.state.offsets.query
        return all(core.state.topics.get(topic) is not None for topic in self.topics) and all(
            known(GROUP, ORDERS, queue_id) >= led(GROUP, ORDERS, queue_id) for queue_id in QUEUES
        )

    def why_not(self) -> str:
        """What ``is_settled`` waits for, if it is a message."""
        cores = [core for core in map(core_of, self.brokers) if core is not None]
        missing = self._missing(cores[0]) if cores else None
        return missing or f"not all replicas are in sync, or their route ({self.route}) is another one"

    def finish(self) -> None:
        self.look()
        logs = {log_of(machine, 0, len(self._truth) + (1 << 20)) for machine in self.brokers}
        if len(logs) != 1:
            raise Broken("the logs of the replicas are not the same at the end")
        for machine in self.brokers:
            core = core_of(machine)
            assert core is not None
            found: dict[Place, bytes] = {}
            for topic, queue_id in itertools.product(self.topics, QUEUES):
                messages = drain(core.store, topic, queue_id)
                if [message.queue_offset for message in messages] != list(range(len(messages))):
                    raise Broken(f"{machine.name}: the offsets of queue {queue_id} of {topic} are not dense")
                found.update({(topic, queue_id, m.queue_offset): m.body for m in messages})
                if topic == LATER and self.right_time:
                    self._check_times(machine, messages)
            for place, body in found.items():
                self.observed(place, body, f"{machine.name} at the end")
            for place, (body, _) in self.seen.items():
                if place not in found:
                    kind = "acknowledged" if place in self.acked else "read"
                    raise Broken(f"{machine.name}: {short(body)} at {place} was {kind}, and is lost")
            self._check_offsets(machine, core)
            if core.state.topics.get(ORDERS) is None:
                raise Broken(f"{machine.name} does not have the topic")

    def _check_times(self, machine: BrokerMachine, messages: list[MessageExt]) -> None:
        for message in messages:
            early_ms = self.delayed[message.body].due_ms - message.store_timestamp_ms
            if early_ms > 0:
                raise Broken(f"{machine.name}: {short(message.body)} was delivered {early_ms} ms early")

    def _check_offsets(self, machine: BrokerMachine, core: Any) -> None:
        for queue_id in QUEUES:
            offset = core.state.offsets.query(GROUP, ORDERS, queue_id)
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


def leads(machine: BrokerMachine) -> tuple[str, int, int] | None:
    """Its name, how often it was started, and the epoch, while it is certainly the master."""
    term = None if machine.process is None or machine.app is None else machine.app.term
    return (machine.name, machine.starts, term.epoch) if term is not None and term.holds else None


def core_of(machine: Machine) -> Any:
    """The core of a broker that serves, or None."""
    app = machine.app
    if machine.process is None or app is None or app.parts is None or not app.lifecycle.ready:
        return None
    return app.parts.core


def content_of(machine: Machine, names: tuple[str, ...], *, durable: bool) -> bytes | None:
    """A file of a machine, whether its process runs or not."""
    process = machine.process
    if process is not None:
        file = process.files.at(*names)
        if file is None:
            return None
        content: bytes = process.files.durable(file) if durable else file.content()
        return content
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
        file = machine.files.at("commitlog", name)
        if file is None:
            return b""
        return bytes(file.data[begin : min(begin + size, file.length)])
    data = content_of(machine, ("commitlog", name), durable=durable) or b""
    return data[begin : begin + size]
