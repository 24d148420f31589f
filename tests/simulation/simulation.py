"""One run: a cluster of three brokers and a controller, clients, faults, and the checks.

Everything follows from the seed. ``python -m tests.simulation --seed N`` plays a run again.
"""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from unittest.mock import patch

from tests.simulation.faults import Fault, draw_faults
from tests.simulation.history import CLIENTS, Broken, History
from tests.simulation.machines import BrokerMachine, ControllerMachine, Machine, replaced_host
from tests.simulation.network import Network
from tests.simulation.scheduler import Process, Stuck, World
from tests.simulation.traffic import Client, Consumer, Producer

__all__ = ["Result", "shrink", "simulate"]

CLIENTS_S = 1.5
COPIED_S = 2.6
WARM_S = 4.2
LENGTHS_S = (3.0, 5.0, 8.0, 16.0)
"""How long there are faults in a run."""
CALM_S = 3.0
SETTLE_S = 30.0
LOOK_S = 0.5
CONTROLLER = "10.0.0.9"
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
    settled_s: float
    """How long it took after the last fault until all were in sync."""

    def __str__(self) -> str:
        lines = [f"seed {self.seed}: {self.broken or 'kept every promise'}"]
        lines += [f"  {fault}" for fault in self.faults]
        lines.append(
            f"  {self.acked} of {self.sent} acknowledged, {self.reads} reads, {self.steps} steps, settled after"
            f" {self.settled_s:.1f} s, digest {self.digest}"
        )
        return "\n".join(lines)


class Simulation:
    def __init__(self, seed: int, faults: Sequence[Fault] | None = None) -> None:
        self.world = World(seed)
        self.network = network = Network(self.world)
        self.end_s = WARM_S + random.Random(f"length {seed}").choice(LENGTHS_S)
        drawn = draw_faults(seed, WARM_S, self.end_s) if faults is None else list(faults)
        self.faults = drawn
        self.controller = ControllerMachine(self.world, network, "controller", CONTROLLER)
        self.brokers = [
            BrokerMachine(self.world, network, f"broker-{n}", f"10.0.0.{n + 1}", f"{CONTROLLER}:9878")
            for n in range(3)
        ]
        self.machines: dict[str, Machine] = {each.name: each for each in (self.controller, *self.brokers)}
        self.history = History(self.world, self.controller, self.brokers, COPIED_S)
        network.tap = self.history.tap
        self.clients: list[Client] = []
        self.settled_s = 0.0

    def run(self) -> None:
        world, history = self.world, self.history
        for machine in self.machines.values():
            machine.start()
        world.run_until(CLIENTS_S)
        addresses = [f"{each.host}:10911" for each in self.brokers]
        for number, kind in enumerate((Producer, Producer, Consumer)):
            name = f"{kind.__name__.lower()}-{number}"
            client = kind(Process(world, name, f"{CLIENTS}{number + 1}"), history, addresses)
            client.process.start(self._live(client))
            self.clients.append(client)
        for fault in self.faults:
            world.at(fault.at_s, lambda fault=fault: self.begin(fault))  # type: ignore[misc]
        self._go_on(self.end_s)
        self._heal()
        end_s = world.now_s
        while world.now_s < end_s + CALM_S or not self.history.is_settled():
            if world.now_s > end_s + CALM_S / 2:
                for client in self.clients:
                    client.is_ending = True
            if world.now_s > end_s + SETTLE_S and self.history.only_lost_may_lead():
                history.look()
                return  # it waits for an operator, as it should
            if world.now_s > end_s + SETTLE_S:
                raise Broken(
                    f"{SETTLE_S:.0f} s after the last fault not all replicas are in sync: {self.state()}"
                )
            self._go_on(world.now_s + LOOK_S)
            self._heal()
        self.settled_s = world.now_s - end_s
        history.finish()
        if not history.acked:
            raise Broken("nothing was acknowledged in the whole run")

    async def _live(self, client: Client) -> None:
        try:
            await client.run()
        except Broken as error:
            self.history.broken.append(str(error))

    def _go_on(self, end_s: float) -> None:
        while self.world.now_s < end_s:
            self.world.run_until(min(end_s, self.world.now_s + LOOK_S))
            self.history.look()

    def state(self) -> str:
        return "; ".join(
            f"{each.name} {each.app.term.__dict__ if each.app and each.app.term else None} {each.failures[-1:]}"
            for each in self.brokers
        )

    # --- faults ---

    def begin(self, fault: Fault) -> None:
        self.world.note(fault)
        machine, network, world = self.machines[fault.node], self.network, self.world
        after = world.now_s + fault.for_s
        host, other = machine.host, self.machines[fault.other].host
        match fault.kind:
            case "kill" | "power":
                machine.kill(power=fault.kind == "power")
                world.at(after, machine.start)
            case "lose":
                if isinstance(machine, BrokerMachine) and self.history.may_lose(machine):
                    machine.kill(power=True)
                    machine.lose_disk()
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
            case "reset":
                network.reset(host, other)
            case "clock":
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
        return store is not None and store.read_only is not None


def simulate(seed: int, faults: Sequence[Fault] | None = None, bug: Bug = nullcontext) -> Result:
    was_enabled = gc.isenabled()
    gc.disable()
    gc.freeze()
    # Killed coroutines end outside any loop: what they await then must fail, not make a loop that nobody closes.
    asyncio.set_event_loop(None)
    try:
        with patch("sys.unraisablehook", lambda _: None):  # killed coroutines do not end well
            result = _run(seed, faults, bug)
            gc.collect()  # frees what killed processes had mapped
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()
    return result


def _run(seed: int, faults: Sequence[Fault] | None, bug: Bug) -> Result:
    simulation = Simulation(seed, faults)
    broken: str | None = None
    with replaced_host(simulation.network), bug():
        try:
            simulation.run()
        except (Broken, Stuck) as error:
            broken = str(error) or repr(error)
    history, world = simulation.history, simulation.world
    return Result(
        seed,
        simulation.faults,
        broken,
        world.digest,
        len(history.acked),
        history.sent,
        history.reads,
        world.steps,
        simulation.settled_s,
    )


def shrink(result: Result, bug: Bug = nullcontext) -> Result:
    """The same failure, or another, with fewer faults: each one that is not needed is left out."""
    best = result
    step = max(1, len(best.faults) // 2)
    while step:
        at = 0
        while at < len(best.faults):
            fewer = best.faults[:at] + best.faults[at + step :]
            found = simulate(result.seed, fewer, bug)
            if found.broken is not None:
                best = found
            else:
                at += step
        step //= 2
    return best
