"""One of several controllers with a shared state: the leader has a ``Controller``, the others answer with the leader's
address.

The leader is elected elsewhere; ``lead``, ``renew`` and ``follow`` report the result. A leader trusts its lease only
until the given time. After that it refuses everything, even if this process was paused meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable

from mqspark.base.bounded import Tables
from mqspark.base.clock import Clock
from mqspark.base.config import ForeignKeys, no_foreign_keys
from mqspark.base.logs import sparing
from mqspark.base.names import is_sound
from mqspark.controller.config import ControllerConfig
from mqspark.controller.controller import TICK_MS, Controller, DurableState, Guard, Notice, unguarded
from mqspark.controller.liveness import Liveness
from mqspark.controller.remote_settings import settings_handlers
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command
from mqspark.protocol.dispatch import Handler, Refusal, dispatch, merged, ok
from mqspark.protocol.headers.cluster_headers import BrokerHeartbeatRequestHeader, GetMetaDataResponseHeader
from mqspark.protocol.session import Session
from mqspark.protocol.slices import LongWork
from mqspark.store.disk.diskjobs import Job

_log = sparing(__name__, lines=20)

MAX_HEARD = 4_096
"""Limit of brokers whose heartbeats a follower remembers, some 500 bytes each. A new leader hears the others later."""


class ElectedController:
    """The core of one of several controllers. ``address`` is given to brokers."""

    def __init__(
        self,
        config: ControllerConfig,
        clock: Clock,
        address: str,
        *,
        outbox: list[Session] | None = None,
        foreign_keys: ForeignKeys = no_foreign_keys,
        guard: Guard = unguarded,
    ) -> None:
        """``guard``: the same as for ``Controller``."""
        self.config = config
        self.outbox: list[Session] = outbox if outbox is not None else []
        self.tables = Tables()
        self._clock = clock
        self._address = address
        self._foreign_keys = foreign_keys
        self._leading: Controller | None = None
        self._until_ms = 0
        self._leader_address = ""
        self._long_work = LongWork()
        self._liveness = Liveness(clock, TICK_MS)
        self._next_expiry_ms = 0
        refused: dict[int, Handler] = dict.fromkeys(Controller.OF_A_LEADER, self._refuse)
        heard: dict[int, Handler] = {
            RequestCode.BROKER_HEARTBEAT: self._record_heartbeat,
            RequestCode.CONTROLLER_GET_METADATA_INFO: self._metadata,
        }
        self._guard = guard
        self._standby = guard(merged(refused, heard, settings_handlers(config, foreign_keys)))

    # --- who leads ---

    @property
    def leads(self) -> bool:
        return self._leading is not None and self._clock.monotonic_ms() < self._until_ms

    def lead(self, state: DurableState, until_ms: int) -> None:
        """This controller is the leader, with the state in etcd, until ``until_ms`` of the monotonic clock. Raises
        StoreCorrupt."""
        self._leading = Controller(
            self.config,
            self._clock,
            state,
            self._address,
            liveness=self._liveness,
            outbox=self.outbox,
            foreign_keys=self._foreign_keys,
            guard=self._guard,
        )
        self._until_ms = until_ms
        self._leader_address = self._address
        _log.info("this controller is the leader")

    def renew(self, until_ms: int) -> None:
        self._until_ms = until_ms

    def follow(self, leader_address: str) -> None:
        """Another controller is the leader; empty: it is not known which one."""
        self._leader_address = leader_address
        if self._leading is not None:
            _log.warning("this controller is no longer the leader")
            self._leading.depose()
            self._leading = None

    # --- Core ---

    def connected(self, session: Session) -> None:
        """Nothing to do: every request names its broker."""

    def received(self, session: Session, commands: Iterable[Command]) -> None:
        leading = self._leading
        if leading is not None and self.leads:
            leading.received(session, commands)
        else:
            dispatch(self._standby, session, commands, self._long_work)

    def disconnected(self, session: Session) -> None:
        if self._leading is not None:
            self._leading.disconnected(session)
        else:
            self._liveness.lost(session)

    def turn(self) -> None:
        """Nothing waits for the end of a turn."""

    @property
    def work_waits(self) -> bool:
        return self._leading is not None and self._leading.work_waits

    def work(self) -> bool:
        return self._leading is not None and self._leading.work()

    def tick(self) -> int:
        if self._leading is not None and self.leads:
            return self._leading.tick()
        if self._leading is not None:
            self.follow("")
        now_ms = self._liveness.now_ms()
        if now_ms >= self._next_expiry_ms:
            self._next_expiry_ms = now_ms + self.config.scan_not_active_broker_interval
            self._liveness.expired()
        return TICK_MS

    @property
    def jobs_due(self) -> bool:
        return self._leading is not None and self._leading.jobs_due

    def jobs(self) -> list[Job]:
        return [] if self._leading is None else self._leading.jobs()

    def take_notices(self) -> list[Notice]:
        """See ``Controller.take_notices``. A deposed leader sends no notices."""
        return self._leading.take_notices() if self._leading is not None and self.leads else []

    # --- not the leader ---

    @property
    def _other_leader(self) -> str:
        """The address of the leader; empty if it is unknown, or if this controller's own lease has expired."""
        return "" if self._leader_address == self._address else self._leader_address

    def _record_heartbeat(self, session: Session, command: Command) -> bytes:
        """Record a heartbeat, in case this controller becomes leader next. Only the leader's answer means that the
        cluster has received the heartbeat."""
        header = command.header(BrokerHeartbeatRequestHeader)
        name, broker_id = header.broker_name or "", header.broker_id
        if broker_id is not None and is_sound(name):
            is_full = len(self._liveness) >= MAX_HEARD and not self._liveness.knows(name, broker_id)
            if not is_full:
                self._liveness.heard(session, broker_id, header)
        return self._refuse(session, command)

    def _metadata(self, session: Session, command: Command) -> bytes:
        answer = GetMetaDataResponseHeader(
            group=self.config.controller_d_leger_group,
            controller_leader_id="",
            controller_leader_address=self._other_leader,
            is_leader=False,
            peers=self.config.peers(self._address),
        )
        return ok(command, answer)

    def _refuse(self, session: Session, command: Command) -> bytes:
        where = f"the leader is {self._other_leader}" if self._other_leader else "there is none now"
        raise Refusal(ResponseCode.CONTROLLER_NOT_LEADER, f"This controller is not the leader; {where}")
