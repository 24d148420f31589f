"""The processes of a cluster: the servers of this project, unchanged, on simulated machines.

What they would take from their host is replaced for as long as a world runs: sockets, threads, files, and what
``host`` says. A machine keeps its disk when its process is killed; the cut of its power may lose what was not synced.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import mqspark.client.life.ending as ending_module
import mqspark.client.remoting.instance as instance_module
import mqspark_server.broker_app as broker_module
import mqspark_server.controlled_app as controlled_module
import mqspark_server.controller_app as controller_module
import mqspark_server.namesrv_app as namesrv_module
from mqspark.controller.statefile import StateFile
from mqspark.store.store import MessageStore
from mqspark_server.controlled_app import ControlledApp
from mqspark_server.controller_app import ControllerApp
from mqspark_server.namesrv_app import NameServerApp
from mqspark_server.net.descriptors import Descriptors
from mqspark_server.process.diskwork import Worker
from mqspark_server.settings.settings import (
    BrokerSettings,
    broker_settings,
    controller_settings,
    namesrv_settings,
)
from tests.crash.disk import Tree
from tests.simulation.disk import SimulatedFiles
from tests.simulation.host import PID, replaced_time_and_chance
from tests.simulation.network import Network
from tests.simulation.scheduler import Process, ProcessLoop, World, here
from tests.simulation.shape import DELAYS_S, TIMER_SLOTS, Shape
from tests.simulation.spoils import spoilt

QUEUES = (0, 1)
"""The queues of each topic."""

SLOT_BYTES = 32
WITH_WHEEL = ("store.timer.timerwheel", "store.timer.timerfiles", "broker.timer.timerservice")

DISK_S = (0.0002, 0.004)
"""What a job of the disk takes."""


class SimulatedWorker(Worker):
    """Without a thread: a job runs at one moment, a while after it was submitted."""

    def __init__(self, name: str) -> None:
        process = here()
        self._loop = process.loop
        self._chance = random.Random(f"{name} {process.chance.random()}")
        self._jobs: deque[tuple[Callable[[], object], Callable[[BaseException | None], None]]] = deque()
        self._busy = False

    def submit(self, work: Callable[[], object], done: Callable[[BaseException | None], None]) -> None:
        self._jobs.append((work, done))
        if not self._busy:
            self._next()

    def _next(self) -> None:
        self._busy = True
        stall_s = here().files.stall_s
        self._loop.call_later(self._chance.uniform(*DISK_S) + stall_s, self._work)

    def _work(self) -> None:
        self._busy = False
        if not self._jobs:
            return
        work, done = self._jobs.popleft()
        error: BaseException | None = None
        try:
            work()
        except Exception as caught:
            error = caught
        self._loop.call_later(self._chance.uniform(*DISK_S), done, error)
        if self._jobs:
            self._next()

    def close(self) -> None:
        while self._jobs:
            self._work()


class Machine:
    """``start`` and the faults; ``process`` is None while it does not run."""

    def __init__(self, world: World, network: Network, name: str, host: str) -> None:
        self.world, self.network = world, network
        self.name, self.host = name, host
        self.process: Process | None = None
        self.root = Path("/simulated") / name
        self._tree: Tree = {}
        self._older: Tree = {}
        self.app: Any = None
        self.starts = 0
        self.failures: list[str] = []
        self._chance = random.Random(f"machine {name} {world.seed}")

    @property
    def files(self) -> SimulatedFiles:
        assert self.process is not None
        files: SimulatedFiles = self.process.files
        return files

    def start(self) -> None:
        if self.process is not None:
            return
        self.starts += 1
        self.network.without_power.discard(self.host)
        process = self.process = Process(self.world, self.name, self.host)
        process.files = SimulatedFiles(self.root, self._tree, process.clock.now_ms)
        process.start(self._run(process))

    async def _run(self, process: Process) -> None:
        try:
            self.app = self.make()
            await self.app.start()
        except Exception as error:
            self.failures.append(f"{self.world.now_s:.3f} s: {error!r}")
            self.kill(power=False)
            self.world.at(self.world.now_s + 1.0, self.start)

    def make(self) -> Any:
        raise NotImplementedError

    def kill(self, *, power: bool) -> None:
        process = self.process
        if process is None:
            return
        self.process = None
        process.die()
        files = process.files
        self._tree = files.after_power_cut(self._chance) if power else files.tree()
        if power:
            self.network.without_power.add(self.host)
        self.network.killed(process, power=power)

    def lose_disk(self) -> None:
        """Its process has ended."""
        self._tree = {}

    def spoil(self, kind: str, chance: random.Random) -> None:
        """Its process has ended, and its disk comes back damaged."""
        self._tree = spoilt(self._tree, self._older, kind, chance)

    def keep_copy(self) -> None:
        """Copy its disk as it is now, for a restore later."""
        if self.process is not None:
            self._older = self.process.files.tree()

    def pause(self) -> None:
        if self.process is not None:
            self.process.pause()

    def resume(self) -> None:
        if self.process is not None:
            self.process.resume()

    @property
    def stepped_ms(self) -> int:
        """By how much its clock on the wall is wrong."""
        return 0 if self.process is None else self.process.wall_step_ms

    def step_clock(self, ms: int) -> None:
        if self.process is not None:
            self.process.wall_step_ms += ms


class ControllerMachine(Machine):
    def restore(self, state: bytes) -> None:
        """Its process has ended. Its state is this one, from a backup."""
        self._tree["controller.state"] = state

    def make(self) -> ControllerApp:
        settings = controller_settings(
            {
                "listenPort": 9878,
                "bindAddress": self.host,
                "controllerStorePath": str(self.root),
                "scanNotActiveBrokerInterval": 300,
                "scanInactiveMasterInterval": 300,
            }
        )
        return ControllerApp(settings, clock=here().clock)


class NameServerMachine(Machine):
    def make(self) -> NameServerApp:
        settings = namesrv_settings(
            {"listenPort": 9876, "bindAddress": self.host, "scanNotActiveBrokerInterval": 500}
        )
        return NameServerApp(settings, clock=here().clock)


class SimulatedBroker(ControlledApp):
    def _note_recovery(self, report: Any) -> None:
        self.recovery = {"report": report}


class BrokerMachine(Machine):
    def __init__(
        self, world: World, network: Network, name: str, host: str, controllers: str, **settings: Any
    ) -> None:
        super().__init__(world, network, name, host)
        values: dict[str, Any] = {
            "brokerName": "orders",
            "listenPort": 10911,
            "bindAddress": host,
            "brokerIP1": host,
            "storePathRootDir": str(self.root),
            "enableControllerMode": True,
            "controllerAddr": controllers,
            "minInSyncReplicas": 2,
            "slaveReadEnable": True,
            "flushDiskType": "SYNC_FLUSH",
            "autoCreateTopicEnable": True,
            "httpEnable": False,
            "registerBrokerTimeoutMills": 1_000,
            "fastPortEnable": False,
            "timerWheelEnable": False,
            "messageIndexEnable": False,
            "reviveQueueNum": 1,
            "defaultTopicQueueNums": len(QUEUES),
            "defaultMessageRequestMode": "POP",
            "messageDelayLevel": " ".join(f"{delay_s}s" for delay_s in DELAYS_S),
            "transactionTimeOut": 800,
            "transactionCheckInterval": 600,
            "transactionCheckMax": 10_000,
            "transactionOpBatchInterval": 700,
            "flushConsumerOffsetInterval": 500,
            "mappedFileSizeCommitLog": 64 << 10,
            "mappedFileSizeConsumeQueue": 20 * 500,
            "maxMessageSize": 16 << 10,
            "fileReservedTime": 9_999,
            "controllerHeartBeatTimeoutMills": 2_000,
            "brokerHeartbeatInterval": 500,
            "syncBrokerMetadataPeriod": 1_000,
            "checkSyncStateSetPeriod": 600,
            "haMaxTimeSlaveNotCatchup": 2_000,
            "haHousekeepingInterval": 3_000,
            "haSendHeartbeatInterval": 1_000,
            **settings,
        }
        self._values = values
        self.move(0)

    def move(self, by: int = 20) -> None:
        """From its next start on, it listens on other ports."""
        self._values["listenPort"] += by
        self.port: int = self._values["listenPort"]
        self.settings = _settings(tuple(self._values.items()))

    def make(self) -> ControlledApp:
        return SimulatedBroker(self.settings, clock=here().clock, chance=here().chance)


@cache
def _settings(values: tuple[tuple[str, Any], ...]) -> BrokerSettings:
    """A process copies what it changes, so that the next one may have the same."""
    return broker_settings(dict(values), use_environment=False)


@contextmanager
def replaced_host(network: Network, shape: Shape) -> Iterator[None]:
    """For as long as this lasts, servers of this process get their host's services from the world."""

    def store(*args: Any, **kwargs: Any) -> MessageStore:
        return MessageStore(*args, files=here().files, **kwargs)

    def state_file(directory: Path) -> StateFile:
        return StateFile(directory, here().files)

    with ExitStack() as stack:
        stack.enter_context(replaced_time_and_chance(network.world))
        for target, replacement in (
            ("mqspark_server.net.addresses.bind_socket", network.bind),
            ("mqspark_server.peers.following.METADATA_S", shape.tables_s),
            ("mqspark.broker.replication.metadata.FRESH_MS", int(2_000 * shape.tables_s)),
            ("mqspark.broker.replication.follower.CHECK_BYTES", shape.check_bytes),
            *((f"mqspark.{module}.SLOTS", TIMER_SLOTS) for module in WITH_WHEEL),
            ("mqspark.store.timer.timerwheel.WHEEL_BYTES", TIMER_SLOTS * SLOT_BYTES),
        ):
            stack.enter_context(patch(target, replacement))
        for part in ("net.opensockets", "net.replicationserver", "broker_app"):
            stack.enter_context(patch(f"mqspark_server.{part}.PROCESS", Descriptors()))
        for module in (broker_module, controller_module, namesrv_module):
            stack.enter_context(patch.object(module, "Worker", SimulatedWorker))
        stack.enter_context(patch.object(instance_module, "_instances", {}))
        stack.enter_context(patch.object(ending_module, "_open", {}))
        stack.enter_context(patch.object(ending_module, "_registered_in", PID))  # nobody waits for their end
        stack.enter_context(patch.object(broker_module, "open_kernel_sync", lambda: None))
        stack.enter_context(patch.object(broker_module, "MessageStore", store))
        stack.enter_context(patch.object(controller_module, "StateFile", state_file))
        stack.enter_context(patch.object(controlled_module, "OsFiles", lambda: here().files))
        stack.enter_context(patch.object(ProcessLoop, "network", network))
        yield
