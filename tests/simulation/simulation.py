"""One run: a cluster of three brokers and a controller, clients, faults, and the checks.

Everything follows from the seed. ``python -m tests.simulation --seed N`` plays a run again.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import random
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from unittest.mock import patch

from tests.simulation.faults import (
    NODES,
    ROLES,
    SMALL_STEPS_MS,
    SPOILS,
    STEPS_MS,
    Fault,
    draw_faults,
    draw_spoil,
    draw_story,
)
from tests.simulation.history import CLIENTS, DECIDED, LATER, ORDERS, Broken, History, content_of
from tests.simulation.machines import (
    BrokerMachine,
    ControllerMachine,
    Machine,
    NameServerMachine,
    replaced_host,
)
from tests.simulation.network import Network
from tests.simulation.routed import PROGRAMS, Program
from tests.simulation.scheduler import Process, Stuck, World
from tests.simulation.shape import Shape, draw_shape
from tests.simulation.traffic import Client, Consumer, Producer, Reader, RouteWatcher

CLIENTS_S = 1.5
KNOWN_S = 8.0
"""A slave that is silent is in the SyncStateSet for haMaxTimeSlaveNotCatchup and haHousekeepingInterval at most."""
COPIED_S = 2.6
"""When the older copies of disks are made that a fault restores."""
WARM_S = 3.2
LENGTHS_S = (3.0, 5.0, 8.0, 14.0)
"""How long there are faults in a run."""
CALM_S = 1.5
SETTLE_S = 30.0
LOOK_S = 0.5
ROUND_REQUESTS = 30
"""Ways of bytes in a round in which a slave copies tables."""
HA_PORT = 10_912
MOMENT_S = {"asks": 0.004}
"""How soon a fault begins that waits for a moment: before the request that it asks by is answered."""
SOON_S = 0.05
"""The same for other moments."""
GC_PASSES = 5
"""At most: what is left would be frozen by the next run, and stay for ever."""
SMALL_RANGE_MS = range(min(SMALL_STEPS_MS), max(SMALL_STEPS_MS) + 1)
PIECE_BYTES, LOOKS = 2_000, 400
CONTROLLER, NAMESRV = "10.0.0.9", "10.0.0.8"
Bug = Callable[[], AbstractContextManager[object]]


@dataclass
class Result:
    seed: int
    faults: list[Fault]
    broken: str | None
    digest: str
    acked: int
    sent: int
    reads: int
    steps: int
    gap_s: float
    """The longest time without an acknowledgement."""
    shape: Shape
    settled_s: float
    """How long it took after the last fault until all were in sync."""

    def __str__(self) -> str:
        lines = [f"seed {self.seed}: {self.broken or 'kept every promise'}", f"  {self.shape}"]
        lines += [f"  {fault}" for fault in self.faults]
        lines.append(
            f"  {self.acked} of {self.sent} acknowledged, {self.gap_s:.1f} s without, {self.reads} reads,"
            f" {self.steps} steps, settled after {self.settled_s:.1f} s, digest {self.digest}"
        )
        return "\n".join(lines)


class Simulation:
    def __init__(
        self, seed: int, faults: Sequence[Fault] | None = None, users: Collection[str] | None = None
    ) -> None:
        """``faults`` and ``users``: other ones than those of the seed."""
        self.world = World(seed)
        self.network = network = Network(self.world)
        self.end_s = WARM_S + random.Random(f"length {seed}").choice(LENGTHS_S)
        shape = draw_shape(seed)
        if users is not None:
            shape = replace(shape, users=frozenset(users))
        self.shape = shape
        network.lag_s = shape.lag_s
        network.piece_bytes = PIECE_BYTES if shape.story == "torn copy" else 0
        network.lag_port = HA_PORT if shape.story == "tables" else None
        if faults is None and shape.story:
            faults = draw_story(seed, shape.story, WARM_S)
        if shape.story:
            last_s = max((each.at_s + each.for_s for each in faults or ()), default=0.0)
            self.end_s = max(self.end_s, last_s + 0.5)
        if faults is None:
            faults = draw_faults(
                seed,
                WARM_S,
                self.end_s,
                power=shape.flush == "SYNC_FLUSH",
                lost_disks=shape.min_in_sync > 1,
                nodes=(*NODES, "namesrv") if shape.has_routes else NODES,
                steps_ms=SMALL_STEPS_MS if shape.has_timers else STEPS_MS,
            )
            if shape.may_be_spoilt:
                faults = sorted([*faults, *draw_spoil(seed, WARM_S, self.end_s)], key=lambda each: each.at_s)
        self.faults = list(faults)
        self.controller = ControllerMachine(self.world, network, "controller", CONTROLLER)
        settings = shape.broker_settings
        if shape.has_routes:
            settings |= {"namesrvAddr": f"{NAMESRV}:9876", "registerNameServerPeriod": 10_000}
        self.brokers = [
            BrokerMachine(
                self.world, network, f"broker-{n}", f"10.0.0.{n + 1}", f"{CONTROLLER}:9878", **settings
            )
            for n in range(3)
        ]
        self.machines: dict[str, Machine] = {each.name: each for each in (self.controller, *self.brokers)}
        if shape.has_routes:
            self.machines["namesrv"] = NameServerMachine(self.world, network, "namesrv", NAMESRV)
        self.history = History(
            self.world,
            self.controller,
            self.brokers,
            KNOWN_S + shape.tables_s + ROUND_REQUESTS * network.lag_s,
            power_cuts=shape.flush == "SYNC_FLUSH",
            replicas=shape.min_in_sync,
            fault_times_s=sorted(
                time_s for each in self.faults for time_s in (each.at_s, each.at_s + each.for_s)
            ),
            right_time=all(fault.kind != "clock" for fault in self.faults),
            most_route_s=shape.most_route_s,
            topics=(
                ORDERS,
                *([LATER] if "delays" in shape.users else []),
                *([DECIDED] if "transactions" in shape.users else []),
            ),
            consumed={f"{user}pers": set() for user in ("pop",) if user in shape.users}
            | {f"{user}ers": set() for user in ("push",) if user in shape.users},
        )
        network.tap = self.history.tap
        self.history.when = self._moment
        self._armed: list[Fault] = []
        self._addresses = self._broker_addresses()
        self._backups: dict[Fault, bytes] = {}
        """States of the controller that are restored later."""
        self.clients: list[Client | Program] = []
        self.settled_s = 0.0
        steps_ms = sum(abs(fault.value) for fault in self.faults if fault.kind == "clock")
        self.settle_s = SETTLE_S + (steps_ms / 1000 if shape.has_timers else 0.0)

    def run(self) -> None:
        world, history = self.world, self.history
        for machine in self.machines.values():
            machine.start()
        world.run_until(CLIENTS_S)
        for client in self._make_clients():
            client.process.start(self._live(client))
            self.clients.append(client)
        for machine in self.brokers:
            world.at(COPIED_S, machine.keep_copy)
        for fault in self.faults:
            if fault.kind == "restore":
                world.at(fault.at_s - fault.value / 1000, partial(self._back_up, fault))
            act = self._armed.append if fault.when else self.begin
            world.at(fault.at_s, partial(act, fault))
        self._go_on(self.end_s)
        self._heal()
        end_s = world.now_s
        while world.now_s < end_s + CALM_S or not self.history.is_settled():
            for client in self.clients:
                last_s = history.last_acks_s.get(client.process.name, 0.0) if client.sends else world.now_s
                client.is_ending = client.is_ending or last_s > end_s + CALM_S / 2
            if world.now_s > end_s + self.settle_s and self.history.is_operator_needed:
                history.look()
                return  # it waits for an operator, as it should
            if world.now_s > end_s + self.settle_s:
                raise Broken(
                    f"{self.settle_s:.0f} s after the last fault {history.why_not()}: {self.state()}"
                )
            self._go_on(world.now_s + LOOK_S)
            self._heal()
        self.settled_s = world.now_s - end_s
        most_s = self.shape.most_gap_s
        if most_s is not None and history.gap_s > most_s:
            raise Broken(f"nothing was acknowledged for {history.gap_s:.1f} s")
        history.finish()
        if not history.acked:
            raise Broken("nothing was acknowledged in the whole run")

    def _make_clients(self) -> Iterator[Client | Program]:
        addresses = self._addresses
        hosts = (f"{CLIENTS}{number}" for number in itertools.count(1))
        kinds = (Producer, Consumer) if self.shape.users else (Producer, Producer, Consumer)
        for number, kind in enumerate(kinds):
            client = kind(
                Process(self.world, f"{kind.__name__.lower()}-{number}", next(hosts)), self.history, addresses
            )
            if isinstance(client, Producer):
                client.window = self.shape.window
            yield client
        if self.shape.is_reread:
            yield Reader(Process(self.world, "reader", next(hosts)), self.history, addresses)
        if self.shape.has_routes:
            process = Process(self.world, "route-watcher", next(hosts))
            yield RouteWatcher(process, self.history, [f"{NAMESRV}:9876"])
        for user in sorted(self.shape.users):
            process = Process(self.world, f"routed-{user}", next(hosts))
            yield PROGRAMS[user](process, self.history, f"{NAMESRV}:9876")

    async def _live(self, client: Client | Program) -> None:
        try:
            await client.run()
        except Broken as error:
            self.history.broken.append(str(error))

    def _go_on(self, end_s: float) -> None:
        while self.world.now_s < end_s:
            self.world.run_until(min(end_s, self.world.now_s + LOOK_S))
            self.history.look()

    def state(self) -> str:
        return "; ".join(f"{each.name} {_part(each)} {each.failures[-1:]}" for each in self.brokers)

    # --- faults ---

    def _moment(self, moment: str) -> None:
        """What waits for it, and was armed at the same time, begins within some milliseconds."""
        first = next((each for each in self._armed if each.when == moment), None)
        if first is None or self.world.now_s >= self.end_s:
            return
        for fault in [each for each in self._armed if (each.when, each.at_s) == (moment, first.at_s)]:
            self._armed.remove(fault)
            soon_s = self.world.chance.uniform(0.0, MOMENT_S.get(moment, SOON_S))
            self.world.at(self.world.now_s + soon_s, partial(self.begin, fault))

    def _at_nodes(self, fault: Fault) -> Fault:
        """With the names of machines, where it has roles."""
        names = [fault.node, fault.other]
        for index, name in enumerate(names):
            if name in ROLES and (machine := self.history.machine_as(name)) is not None:
                names[index] = machine.name
        return replace(fault, node=names[0], other=names[1])

    def begin(self, fault: Fault) -> None:
        fault = self._at_nodes(fault)
        self.world.note(fault)
        if not {fault.node, fault.other} <= self.machines.keys():
            return  # a name server, and nobody goes by routes
        machine, network, world = self.machines[fault.node], self.network, self.world
        after = world.now_s + fault.for_s
        host, other = machine.host, self.machines[fault.other].host
        match fault.kind:
            case "kill" | "power":
                if fault.kind == "power" and self.shape.story == "torn copy":
                    self.history.torn |= {machine.name}
                    for number in range(LOOKS):  # while it compares its log with the master's
                        world.at(after + number * 0.001, self.history.look)
                machine.kill(power=fault.kind == "power")
                world.at(after, machine.start)
            case "lose":
                if isinstance(machine, BrokerMachine) and self.history.may_lose(machine):
                    machine.kill(power=True)
                    machine.lose_disk()
                    world.at(after, machine.start)
            case "copy":
                machine.keep_copy()
            case "spoil" | "rot":
                if isinstance(machine, BrokerMachine) and self.history.may_spoil(
                    machine, SPOILS[fault.value]
                ):
                    machine.kill(power=fault.kind == "spoil")
                    machine.spoil(SPOILS[fault.value], world.chance)
                    world.at(after, machine.start)
            case "pause":
                machine.pause()
                process = machine.process
                if process is not None:
                    world.at(after, process.resume)
            case "cut":
                self._cut([(host, other), (other, host)][: 1 + fault.value], after)
            case "isolate":
                rest = [each.host for each in self.machines.values() if each is not machine]
                self._cut([pair for each in rest for pair in ((host, each), (each, host))], after)
            case "apart":
                others = [each.host for each in self.brokers if each is not machine]
                ways = [[(host, each), (each, host)] for each in others]
                self._cut(
                    [pair for both in ways for pair in both[fault.value == 1 : 1 + (fault.value > 0)]], after
                )
            case "restore":
                backup = self._backups.get(fault)
                if backup is not None and isinstance(machine, ControllerMachine):
                    machine.kill(power=False)
                    if backup != content_of(machine, ("controller.state",), durable=True):
                        self.history.state_was_restored()
                    machine.restore(backup)
                    world.at(after, machine.start)
            case "move":
                for each in self.brokers:
                    each.kill(power=False)
                    each.move()
                    world.at(after, each.start)
                self._addresses[:] = self._broker_addresses()
            case "reset":
                network.reset(host, other)
            case "clock":
                if not self.shape.has_timers or machine.stepped_ms + fault.value in SMALL_RANGE_MS:
                    machine.step_clock(fault.value)
            case "slow":
                network.slow[host] = 0.3
                world.at(after, lambda: network.slow.pop(host, None) and None)
            case "disk":
                if machine.process is not None:
                    files = machine.files
                    files.fault = fault.value
                    world.at(after, lambda: setattr(files, "fault", 0))
            case "stall":
                if machine.process is not None:
                    files = machine.files
                    files.stall_s = fault.value / 1000
                    world.at(after, lambda: setattr(files, "stall_s", 0.0))
            case _:
                raise ValueError(fault.kind)

    def _broker_addresses(self) -> list[str]:
        return [f"{each.host}:{each.port}" for each in self.brokers]

    def _back_up(self, fault: Fault) -> None:
        state = content_of(self.controller, ("controller.state",), durable=True)
        if state is not None:
            self._backups[fault] = state

    def _cut(self, pairs: list[tuple[str, str]], end_s: float) -> None:
        for pair in pairs:
            self.network.cut(*pair)
            self.world.at(end_s, lambda pair=pair: self.network.mend(*pair))  # type: ignore[misc]

    def _heal(self) -> None:
        """Faults have ended. A broker whose disk failed takes nothing more until it is started again."""
        for machine in self.machines.values():
            if machine.process is not None and machine.process.paused:
                machine.resume()
            if machine.process is not None and self._has_failed(machine):
                machine.kill(power=False)
            machine.start()

    def _has_failed(self, machine: Machine) -> bool:
        store = machine.app.store if isinstance(machine, BrokerMachine) and machine.app is not None else None
        return store is not None and store.condition.read_only is not None


def _part(machine: BrokerMachine) -> str:
    term = None if machine.app is None else machine.app.term
    if term is None:
        return "without a part"
    return f"id {term.broker_id}, epoch {term.epoch} of {term.master_id}, in sync {sorted(term.sync_set)}"


def simulate(
    seed: int,
    faults: Sequence[Fault] | None = None,
    bug: Bug = nullcontext,
    *,
    users: Collection[str] | None = None,
) -> Result:
    was_enabled = gc.isenabled()
    had_frozen = gc.get_freeze_count() > 0  # all tests, which nobody has to visit: see tests/conftest.py
    gc.disable()
    gc.freeze()
    # Killed coroutines end outside any loop: what they await then must fail, not make a loop that nobody closes.
    asyncio.set_event_loop(None)
    try:
        with patch("sys.unraisablehook", lambda _: None):  # killed coroutines do not end well
            result = _run(Simulation(seed, faults, users), bug)
            # The first pass ends killed coroutines, the next one frees what they, and their processes, had.
            for _ in range(GC_PASSES):
                if not gc.collect():
                    break
    finally:
        if not had_frozen:
            gc.unfreeze()
        if was_enabled:
            gc.enable()
    return result


def _run(simulation: Simulation, bug: Bug) -> Result:
    broken: str | None = None
    with replaced_host(simulation.network, simulation.shape), bug():
        try:
            simulation.run()
        except (Broken, Stuck) as error:
            broken = str(error) or repr(error)
    history, world = simulation.history, simulation.world
    return Result(
        world.seed,
        simulation.faults,
        broken,
        world.digest,
        len(history.acked),
        history.sent,
        history.reads,
        world.steps,
        history.gap_s,
        simulation.shape,
        simulation.settled_s,
    )


def shrink(result: Result, bug: Bug = nullcontext) -> Result:
    """The same failure, or another, with fewer programs and fewer faults: each one that is not needed is left out."""
    best = result
    for user in sorted(result.shape.users):
        found = simulate(result.seed, best.faults, bug, users=best.shape.users - {user})
        if found.broken is not None:
            best = found
    step = max(1, len(best.faults) // 2)
    while step:
        at = 0
        while at < len(best.faults):
            fewer = best.faults[:at] + best.faults[at + step :]
            found = simulate(result.seed, fewer, bug, users=best.shape.users)
            if found.broken is not None:
                best = found
            else:
                at += step
        step //= 2
    return best
