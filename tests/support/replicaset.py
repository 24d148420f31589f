"""A replica set in controller mode, started as a user does: a name server, a controller and brokers, each a process."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Self

from mqspark.controller.statefile import StateFile
from tests.support.clusters import Cluster, mqspark_broker, mqspark_controller, mqspark_namesrv
from tests.support.remoting import ask, log_end
from tests.support.storefiles import log_bytes
from tests.support.waiting import eventually

ELECT_MASTER, GET_SYNC_STATE_DATA, CLEAN_BROKER_DATA = 1002, 1006, 1011
NAME, CLUSTER = "set", "Set"
LEASE_MS = 2_000
SETTINGS: Mapping[str, object] = {
    "brokerName": NAME,
    "brokerClusterName": CLUSTER,
    "enableControllerMode": True,
    "minInSyncReplicas": 2,
    "controllerHeartBeatTimeoutMills": LEASE_MS,
    "brokerHeartbeatInterval": 200,
    "mappedFileSizeCommitLog": 1 << 22,
    "httpEnable": False,
}


class ReplicaSet:
    """A context manager. Brokers are identified by the ids that the controller gave them."""

    def __init__(self, folder: Path, size: int, **settings: object) -> None:
        self._folder, self._size = folder, size
        self._settings = settings
        self._ends = ExitStack()
        self._brokers: dict[int, tuple[ExitStack, Cluster]] = {}
        self.namesrv = self.controller = ""

    def __enter__(self) -> Self:
        with ExitStack() as ends:
            self.namesrv = ends.enter_context(mqspark_namesrv(self._folder / "namesrv"))
            self.controller, _ = ends.enter_context(
                mqspark_controller(self._folder, scanNotActiveBrokerInterval=200)
            )
            ends.callback(self._close)
            for _ in range(self._size):
                self.add()
            self.until_in_sync()
            self._ends = ends.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.close()

    def _close(self) -> None:
        for stack, _ in self._brokers.values():
            stack.close()

    @property
    def ids(self) -> set[int]:
        """The ids of the brokers that run or are frozen."""
        return set(self._brokers)

    def state(self) -> dict[str, Any]:
        """What the controller says of the set; empty before it knows it."""
        return state_of(self.controller)

    def known(self) -> set[int]:
        """The ids of all replicas that the controller knows, in sync or not."""
        state = self.state()
        return {
            each["brokerId"] for key in ("inSyncReplicas", "notInSyncReplicas") for each in state.get(key, ())
        }

    def in_sync(self) -> set[int]:
        return {each["brokerId"] for each in self.state().get("inSyncReplicas", ())}

    def master(self) -> int | None:
        found: int | None = self.state().get("masterBrokerId")
        return found

    def until_in_sync(self) -> None:
        eventually(lambda: self.in_sync() == self.ids, lambda: (self.ids, self.state()))

    def until_confirmed(self) -> None:
        """Until the controller has saved how far all members have the log, which it hears in heartbeats."""
        end = max(map(len, self.logs()))
        eventually(lambda: self._saved()["confirmed"] >= end, lambda: (end, self._saved()))

    def _saved(self) -> dict[str, Any]:
        content = StateFile(self._folder / "controller").load()
        assert content is not None
        found: dict[str, Any] = json.loads(content)["sets"][NAME]
        return found

    def until_another_leads(self, old: int) -> int:
        return eventually(lambda: (found := self.master()) not in (None, old) and found, lambda: self.state())

    def add(self) -> int:
        """Start a broker with an empty directory; returns its id."""
        before = self.known()
        place = self._folder / f"broker-{len(list(self._folder.glob('broker-*')))}"
        stack, broker = self._start(place)
        try:
            new = eventually(lambda: self.known() - before, "the controller to know the new broker")
            (number,) = new
        except BaseException:
            stack.close()
            raise
        self._brokers[number] = stack, broker
        return number

    def _start(self, folder: Path) -> tuple[ExitStack, Cluster]:
        stack = ExitStack()
        settings = {**SETTINGS, **self._settings, "controllerAddr": self.controller}
        return stack, stack.enter_context(mqspark_broker(folder, self.namesrv, settings))

    def drain(self, number: int) -> None:
        """Hand the master's role to another broker if necessary, stop the broker, and remove it from the controller."""
        if self.master() == number:
            other = min(self.in_sync() - {number})
            words = {"clusterName": CLUSTER, "brokerName": NAME}
            reply = ask(self.controller, ELECT_MASTER, brokerId=other, designateElect=True, **words)
            assert reply.code == 0, reply
            eventually(lambda: self.master() == other, lambda: self.state())
        self._brokers.pop(number)[0].close()
        eventually(lambda: number not in self.in_sync(), lambda: self.state())
        eventually(lambda: self._is_forgotten(number), lambda: self.state())

    def _is_forgotten(self, number: int) -> bool:
        """Whether the controller has removed the broker; it refuses while it considers the broker alive."""
        words = {"clusterName": CLUSTER, "brokerName": NAME}
        return ask(self.controller, CLEAN_BROKER_DATA, brokerControllerIdsToClean=number, **words).code == 0

    def kill(self, number: int) -> Path:
        """Send SIGKILL. Returns the folder for ``restart``."""
        stack, broker = self._brokers.pop(number)
        os.kill(broker.broker_pid, signal.SIGKILL)
        stack.close()
        return broker.store.parent

    def store(self, number: int) -> Path:
        return self._brokers[number][1].store

    def restart(self, number: int, folder: Path) -> None:
        self._brokers[number] = self._start(folder)

    def freeze(self, number: int) -> None:
        os.kill(self._brokers[number][1].broker_pid, signal.SIGSTOP)

    def thaw(self, number: int) -> None:
        os.kill(self._brokers[number][1].broker_pid, signal.SIGCONT)

    def until_all_say(self, code: int, name: str) -> None:
        """Wait until all brokers answer this request with a table that has ``name``: slaves copy tables every 3 s."""
        for _, broker in self._brokers.values():
            eventually(partial(_answer_contains, broker, code, name.encode()), f"{name} at {broker.broker}")

    def logs(self) -> list[bytes]:
        """The log of each broker, up to the end that the broker reports."""
        return [log_of(broker.broker, broker.store) for _, broker in self._brokers.values()]


def state_of(controller: str, name: str = NAME) -> dict[str, Any]:
    """What a controller says of a set; empty before it knows it."""
    body = ask(controller, GET_SYNC_STATE_DATA, json.dumps([name]).encode()).body
    found: dict[str, Any] = json.loads(body)["replicasInfoTable"].get(name, {})
    return found


def _answer_contains(broker: Cluster, code: int, name: bytes) -> bool:
    return name in ask(broker.broker, code).body


def log_of(address: str, store: Path) -> bytes:
    """The log of a broker, up to the end that the broker reports."""
    return log_bytes(store, log_end(address))
