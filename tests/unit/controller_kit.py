"""A controller without sockets: its state in a directory, a clock that stands still, brokers that are connections."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

from mqspark.controller.config import ControllerConfig
from mqspark.controller.controller import Controller
from mqspark.controller.statefile import StateFile
from mqspark.protocol.codes import RequestCode
from mqspark.protocol.command import Command
from mqspark.protocol.session import Session
from mqspark.store.disk.diskjobs import run_here
from mqspark.store.disk.files import FileLayer
from tests.support.clocks import ManualClock
from tests.support.store_tools import QuickFiles
from tests.unit.broker_kit import Peer

CLUSTER, NAME, ADDRESS = "c1", "b-a", "10.0.0.9:19876"
NOT_ALIVE_MS = 16_000
"""The timeout of a heartbeat and the interval between two looks for silent brokers."""


class ControllerBench:
    """``reopen`` ends it as a kill does and starts another on the same file."""

    def __init__(self, directory: Path, files: FileLayer | None = None, **settings: Any) -> None:
        self.directory = directory
        self.files = files if files is not None else QuickFiles()
        self.settings = settings
        self.clock = ManualClock()
        self._sessions = itertools.count(1)
        self.brokers: dict[int, Peer] = {}
        self.incarnations: dict[int, str] = {}
        """Those of brokers that say it. RocketMQ's do not."""
        self.core = self._open()
        self.operator = self.connect()

    def _open(self) -> Controller:
        self.files.make_directory(self.directory)
        self.config = ControllerConfig(**self.settings)
        return Controller(self.config, self.clock, StateFile(self.directory, self.files), ADDRESS)

    def reopen(self) -> None:
        self.core = self._open()
        self.operator = self.connect()
        self.brokers = {broker_id: self.connect() for broker_id in self.brokers}

    def connect(self) -> Peer:
        session_id = next(self._sessions)
        return Peer(self.core, Session(session_id, "127.0.0.1", 40_000 + session_id, []), self.save)

    def save(self) -> None:
        for job in self.core.jobs():
            run_here(job)

    def advance(self, ms: int, *hearts: int) -> None:
        """Time passes in ticks; these brokers send heartbeats all the time."""
        for _ in range(0, ms, 500):
            self.clock.advance(500)
            for broker_id in hearts:
                self.heartbeat(broker_id)
            self.core.tick()
            self.save()

    # --- brokers ---

    def join(self, broker_id: int) -> None:
        """A broker gets its id, registers and sends a heartbeat."""
        peer = self.brokers[broker_id] = self.connect()
        names = {"clusterName": CLUSTER, "brokerName": NAME}
        answer = peer.ask(RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, names)
        assert (answer.code, answer.ext["nextBrokerId"]) == (0, str(broker_id))
        code = {"appliedBrokerId": str(broker_id), "registerCheckCode": f"{address(broker_id)};1"}
        assert peer.ask(RequestCode.CONTROLLER_APPLY_BROKER_ID, names | code).code == 0
        assert self.register(broker_id).code == 0
        self.heartbeat(broker_id)

    def restart(self, broker_id: int, **ext: object) -> None:
        """Its process is another one: a connection, a registration and a heartbeat that say so. ``ext``: of the
        heartbeat; damage also of the registration."""
        if broker_id in self.brokers and self.brokers[broker_id].session.open:
            self.die(broker_id)
        self.incarnations[broker_id] = f"i{next(self._sessions)}"
        self.brokers[broker_id] = self.connect()
        damage = {key: str(value) for key, value in ext.items() if key == "damage"}
        assert self.register(broker_id, **damage).code == 0
        self.heartbeat(broker_id, **ext)
        self.save()

    def register(self, broker_id: int, at: str = "", **ext: str) -> Command:
        header = named(
            broker_id, brokerAddress=at or address(broker_id), **self._incarnation(broker_id), **ext
        )
        return self.brokers[broker_id].ask(RequestCode.CONTROLLER_REGISTER_BROKER, header)

    def heartbeat(self, broker_id: int, **ext: object) -> None:
        said = {"brokerAddr": address(broker_id), **self._incarnation(broker_id), **ext}
        self.brokers[broker_id].give(RequestCode.BROKER_HEARTBEAT, named(broker_id, **said), oneway=True)

    def _incarnation(self, broker_id: int) -> dict[str, str]:
        found = self.incarnations.get(broker_id)
        return {} if found is None else {"incarnation": found}

    def die(self, broker_id: int) -> None:
        """Its connection closes."""
        self.brokers[broker_id].disconnect()
        self.save()

    def elect(self, broker_id: int, *, designate: bool = False) -> Command:
        header = named(broker_id, designateElect=str(designate).lower())
        return self.operator.ask(RequestCode.CONTROLLER_ELECT_MASTER, header)

    def alter(
        self,
        master: int,
        epoch: int,
        members: set[int],
        set_epoch: int,
        *,
        confirms: bool = False,
        **ext: object,
    ) -> Command:
        header = {"brokerName": NAME, "masterBrokerId": str(master), "masterEpoch": str(epoch)}
        header |= {key: str(value) for key, value in ext.items()}
        header |= {"confirms": "true"} if confirms else {}
        body = json.dumps({"syncStateSet": sorted(members), "syncStateSetEpoch": set_epoch}).encode()
        return self.operator.ask(RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET, header, body)

    def clean(self, ids: str = "", *, living: bool = False) -> Command:
        header = {
            "clusterName": CLUSTER,
            "brokerName": NAME,
            "brokerControllerIdsToClean": ids,
            "isCleanLivingBroker": "true" if living else "false",
        }
        return self.operator.ask(RequestCode.CLEAN_BROKER_DATA, header)

    def info(self) -> tuple[int | None, int, set[int], int]:
        """Master, its epoch, the SyncStateSet and its epoch, as a broker asks for them."""
        answer = self.operator.ask(RequestCode.CONTROLLER_GET_REPLICA_INFO, {"brokerName": NAME})
        assert answer.code == 0
        body = json.loads(answer.body)
        master = answer.ext.get("masterBrokerId")
        return (
            None if master is None else int(master),
            int(answer.ext["masterEpoch"]),
            set(body["syncStateSet"]),
            body["syncStateSetEpoch"],
        )

    def trio(self) -> None:
        """Three replicas; 1 is master, all have everything."""
        for broker_id in (1, 2, 3):
            self.join(broker_id)
        assert self.elect(1).code == 0
        assert self.alter(1, 1, {1, 2, 3}, 1).code == 0
        assert self.info() == (1, 1, {1, 2, 3}, 2)
        self.core.take_notices()


def named(broker_id: int, **more: object) -> dict[str, str]:
    """A header that says which broker it is about."""
    fields = {"clusterName": CLUSTER, "brokerName": NAME, "brokerId": broker_id, **more}
    return {key: str(value) for key, value in fields.items()}


def address(broker_id: int) -> str:
    return f"10.0.0.{broker_id}:10911"
