"""The controller's core: takes commands of sessions, and returns frames, notices for brokers, and blocking jobs that
save its state (ControllerRequestProcessor, ControllerManager).

Decisions change the table at once. Every answer and notice waits until the table on which it depends is on disk, so
nobody learns of a master or a SyncStateSet that a crash of this process could revert. Changes during a save go into the
next one. When saving fails, it is repeated, and waiting requests get an error after a few seconds; such a change may
still take effect, as after any lost answer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, NamedTuple, Protocol, TypeAlias

from mqspark.base.bounded import Tables
from mqspark.base.clock import Clock
from mqspark.base.config import INT64_MAX, ForeignKeys, no_foreign_keys
from mqspark.base.logs import sparing
from mqspark.base.names import is_address
from mqspark.controller.config import ControllerConfig
from mqspark.controller.doubts import Claim, Doubts, is_newer, read_claim
from mqspark.controller.liveness import Liveness
from mqspark.controller.remote_settings import settings_handlers
from mqspark.controller.replicasets import FIRST_ID, ReplicaSet, ReplicaTable
from mqspark.controller.severed import Severance
from mqspark.controller.succession import Choice
from mqspark.errors import StoreCorrupt
from mqspark.protocol.bodies.body import decode_body, encode_body
from mqspark.protocol.bodies.replica_bodies import (
    BrokerReplicasInfo,
    ElectMasterResponseBody,
    ReplicaIdentity,
    ReplicasInfo,
    SyncStateSet,
)
from mqspark.protocol.bodies.topic_bodies import BrokerMemberGroup
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import ONEWAY_FLAG, Command, encode_response
from mqspark.protocol.dispatch import Handler, Refusal, dispatch, merged, ok
from mqspark.protocol.headers.cluster_headers import (
    AlterSyncStateSetRequestHeader,
    AlterSyncStateSetResponseHeader,
    ApplyBrokerIdRequestHeader,
    ApplyBrokerIdResponseHeader,
    BrokerHeartbeatRequestHeader,
    BrokerHeartbeatResponseHeader,
    CleanControllerBrokerDataRequestHeader,
    ElectMasterRequestHeader,
    ElectMasterResponseHeader,
    GetMetaDataResponseHeader,
    GetNextBrokerIdRequestHeader,
    GetNextBrokerIdResponseHeader,
    GetReplicaInfoRequestHeader,
    GetReplicaInfoResponseHeader,
    NotifyBrokerRoleChangedRequestHeader,
    RegisterBrokerToControllerRequestHeader,
    RegisterBrokerToControllerResponseHeader,
)
from mqspark.protocol.servers.byid import encode_by_id
from mqspark.protocol.session import Session
from mqspark.protocol.slices import LongWork
from mqspark.store.disk.diskjobs import Job

_log = sparing(__name__, lines=20)

TICK_MS = 500
SAVE_ENDS_MS = 5_000
"""Interval at which confirmed ends are saved when nothing else changes."""
MAX_WAITING = 4_096
"""Limit of answers that wait for the disk. Further requests are refused before they change anything."""
MAX_WAIT_MS = 5_000
"""The longest time that an answer waits for the disk; the same as RocketMQ's for its log."""
MAX_CONTROLLER_BODY_BYTES = 256 * 1024
"""Limit of a body: that of the names of some thousand brokers, or of all settings."""
_NO_BROKER = -1
"""In an election request: no particular broker is to be elected."""


Guard: TypeAlias = Callable[[dict[int, Handler]], dict[int, Handler]]


def unguarded(handlers: dict[int, Handler]) -> dict[int, Handler]:
    return handlers


class DurableState(Protocol):
    """Where the table is durable."""

    def load(self) -> bytes | None:
        """The saved content; None before the first save."""

    def save(self, content: bytes) -> None:
        """Save the content; it is durable when this returns. Blocks. May be called in any thread, but not concurrently.
        Raises OSError, or NotNow when another controller has taken over."""

    def corrupt(self, why: str) -> StoreCorrupt:
        """The error for a state that cannot be read."""


class Notice(NamedTuple):
    """NOTIFY_BROKER_ROLE_CHANGED for one broker, sent one-way. A newer notice for the same address replaces it."""

    address: str
    header: NotifyBrokerRoleChangedRequestHeader
    body: bytes


class _Waiting(NamedTuple):
    """An answer or a notice that may be sent once ``generation`` is durable."""

    generation: int
    since_ms: int
    session: Session | None
    opaque: int
    frame: bytes
    notice: Notice | None


class Controller:
    """The core. Raises StoreCorrupt when the state cannot be read. ``address`` is given to brokers. The caller ensures
    that nobody else changes ``state``. ``liveness``: the heartbeats received before this controller became leader."""

    def __init__(
        self,
        config: ControllerConfig,
        clock: Clock,
        state: DurableState,
        address: str,
        *,
        liveness: Liveness | None = None,
        outbox: list[Session] | None = None,
        foreign_keys: ForeignKeys = no_foreign_keys,
        guard: Guard = unguarded,
    ) -> None:
        """``guard`` puts the handlers behind a gate if there are users."""
        self.config = config
        self.outbox: list[Session] = outbox if outbox is not None else []
        self._clock = clock
        self._state = state
        self._address = address
        self.replicas = ReplicaTable(lambda: config.replica_table_bytes)
        saved = state.load()
        if saved is not None:
            try:
                self.replicas.load(saved)
            except ValueError as error:
                raise state.corrupt(str(error)) from None
        self._durable = self.replicas.generation
        self._state_id = self.replicas.state_id
        """Empty until it is durable."""
        if not self._state_id:
            self.replicas.name(f"{address};{clock.now_ms()}")
        self._liveness = liveness if liveness is not None else Liveness(clock, TICK_MS)
        self._liveness.know(self.replicas)
        self._severance = Severance(clock, self._liveness.standing)
        self._doubts = Doubts(clock, self._liveness.is_alive, self.replicas.sets)
        self._waiting: deque[_Waiting] = deque()
        self._notices: dict[str, Notice] = {}
        self._long_work = LongWork()
        self.tables = Tables(self.replicas.ledger)
        now_ms = clock.monotonic_ms()
        self._next_expiry_ms = now_ms + config.scan_not_active_broker_interval
        # A controller that received heartbeats before it became leader checks for dead masters at once.
        self._next_ends_ms = now_ms + SAVE_ENDS_MS
        self._next_scan_ms = now_ms + (0 if liveness is not None else config.scan_inactive_master_interval)
        durable = {code: self._durably(partial(handle, self)) for code, handle in self.OF_A_LEADER.items()}
        others: dict[int, Handler] = {
            RequestCode.BROKER_HEARTBEAT: self._broker_heartbeat,
            RequestCode.CONTROLLER_GET_METADATA_INFO: self._metadata,
        }
        self.handlers = guard(merged(durable, others, settings_handlers(config, foreign_keys)))

    # --- Core ---

    def connected(self, session: Session) -> None:
        """Nothing to do: every request names its broker."""

    def received(self, session: Session, commands: Iterable[Command]) -> None:
        dispatch(self.handlers, session, commands, self._long_work)

    def disconnected(self, session: Session) -> None:
        for name, broker_id in self._liveness.lost(session):
            _log.info("broker %s %d has closed its connection", name, broker_id)
            self._replace_dead_master(name)

    def turn(self) -> None:
        """Nothing waits for the end of a turn."""

    @property
    def work_waits(self) -> bool:
        return bool(self._long_work.running)

    def work(self) -> bool:
        return self._long_work.step()

    def tick(self) -> int:
        now_ms = self._liveness.now_ms()
        if now_ms >= self._next_expiry_ms:
            for name, broker_id in self._liveness.expired():
                _log.warning("broker %s %d is silent", name, broker_id)
                self._replace_dead_master(name)
            self._next_expiry_ms = self._liveness.next_expiry_ms(self.config.scan_not_active_broker_interval)
        if now_ms >= self._next_scan_ms:
            self._next_scan_ms = now_ms + self.config.scan_inactive_master_interval
            for name in list(self.replicas.sets):
                self._replace_dead_master(name)
        for name in list(self.replicas.sets):
            self._replace_cut_off_master(name)
        if self.replicas.has_unsaved_ends and now_ms >= self._next_ends_ms:
            self._next_ends_ms = now_ms + SAVE_ENDS_MS
            self.replicas.save_ends()
        self._give_up(now_ms)
        return min(
            TICK_MS, self.config.scan_not_active_broker_interval, max(1, self._next_expiry_ms - now_ms)
        )

    @property
    def jobs_due(self) -> bool:
        """Whether ``jobs`` should run at once, because an answer waits for the disk."""
        return self.replicas.generation != self._durable

    def jobs(self) -> list[Job]:
        """The jobs that are due, for a worker thread, not called again before they are done."""
        if not self.jobs_due:
            return []
        return [_SaveStateJob(self._state, self.replicas.snapshot(), self.replicas.generation, self._saved)]

    def take_notices(self) -> list[Notice]:
        """Notices for brokers that may be sent now. Each is returned once."""
        taken, self._notices = list(self._notices.values()), {}
        return taken

    # --- durability ---

    def _durably(self, handle: Callable[[Command], bytes]) -> Handler:
        """A handler whose answer, also a refusal, waits until the table that it depends on is on the disk."""

        def handler(session: Session, command: Command) -> bytes | None:
            if len(self._waiting) >= MAX_WAITING:
                raise Refusal(ResponseCode.SYSTEM_BUSY, "too many changes wait for the disk; retry later")
            if len(command.body) > MAX_CONTROLLER_BODY_BYTES:
                raise Refusal(
                    ResponseCode.CONTROLLER_INVALID_REQUEST,
                    f"a body of {len(command.body)} bytes, at most {MAX_CONTROLLER_BODY_BYTES} are read",
                )
            try:
                frame = handle(command)
            except Refusal as refusal:
                frame = encode_response(command.opaque, refusal.code, refusal.header, remark=refusal.remark)
            generation = self.replicas.generation
            if generation == self._durable:
                return frame
            if not command.flag & ONEWAY_FLAG:
                now_ms = self._clock.monotonic_ms()
                self._waiting.append(_Waiting(generation, now_ms, session, command.opaque, frame, None))
            return None

        return handler

    def _saved(self, generation: int) -> None:
        self._durable = generation
        self._state_id = self.replicas.state_id
        while self._waiting and self._waiting[0].generation <= generation:
            one = self._waiting.popleft()
            if one.session is not None:
                one.session.send(one.frame)
            elif one.notice is not None:
                self._notices[one.notice.address] = one.notice

    def _give_up(self, now_ms: int) -> None:
        """Answer requests that have waited too long with an error: the state cannot be saved."""
        keep: list[_Waiting] = []
        for one in self._waiting:
            if one.session is None or now_ms - one.since_ms <= MAX_WAIT_MS:
                keep.append(one)
            else:
                remark = "the state of the controller cannot be saved: the change may or may not take effect"
                one.session.send(encode_response(one.opaque, ResponseCode.SYSTEM_ERROR, remark=remark))
        if len(keep) < len(self._waiting):
            self._waiting = deque(keep)

    def depose(self) -> None:
        """Another controller is the leader from now on. Waiting requests get an error: their changes may or may not
        have become durable."""
        for one in self._waiting:
            if one.session is not None:
                remark = (
                    "this controller is no longer the leader: the change may or may not have taken effect"
                )
                one.session.send(
                    encode_response(one.opaque, ResponseCode.CONTROLLER_NOT_LEADER, remark=remark)
                )
        self._waiting.clear()
        self._notices.clear()

    # --- brokers and their ids ---

    def _next_broker_id(self, command: Command) -> bytes:
        header = command.header(GetNextBrokerIdRequestHeader)
        cluster, name = _names(header.cluster_name, header.broker_name)
        found = self.replicas.get(name)
        next_id = FIRST_ID if found is None else found.next_id
        return ok(
            command,
            GetNextBrokerIdResponseHeader(cluster_name=cluster, broker_name=name, next_broker_id=next_id),
        )

    def _apply_broker_id(self, command: Command) -> bytes:
        header = command.header(ApplyBrokerIdRequestHeader)
        cluster, name = _names(header.cluster_name, header.broker_name)
        broker_id = header.applied_broker_id
        if broker_id is None:
            raise Refusal(ResponseCode.CONTROLLER_BROKER_ID_INVALID, "appliedBrokerId is missing")
        self.replicas.apply_id(cluster, name, broker_id, header.register_check_code or "")
        return ok(command, ApplyBrokerIdResponseHeader(cluster_name=cluster, broker_name=name))

    def _register_broker(self, command: Command) -> bytes:
        header = command.header(RegisterBrokerToControllerRequestHeader)
        cluster, name = _names(header.cluster_name, header.broker_name)
        unknown = ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED
        found = self.replicas.get(name)
        if found is None or found.cluster != cluster:
            raise Refusal(unknown, f"Broker-set: {name} hasn't been registered in controller")
        broker_id, address = header.broker_id, header.broker_address or ""
        if broker_id is None or broker_id not in found.replicas:
            raise Refusal(unknown, f"BrokerId: {broker_id} hasn't been registered in broker-set: {name}")
        if not is_address(address):
            raise Refusal(
                ResponseCode.CONTROLLER_INVALID_REQUEST, f"brokerAddress is not host:port: {address[:80]!r}"
            )
        is_moved_master = broker_id == found.master and address != found.address(broker_id)
        self.replicas.move(found, broker_id, address, self._liveness.is_alive(name, broker_id))
        if is_moved_master:  # RocketMQ's slaves learn where it is with its next epoch only
            self.replicas.set_master(found, None)
        self._hear(found, broker_id, read_claim(header.known_epoch), header.damage)
        if (header.incarnation or "") != found.replicas[broker_id].incarnation:
            self._liveness.forget(name, broker_id)
        self._report(found, broker_id, header.incarnation, header.damage)
        answer = RegisterBrokerToControllerResponseHeader(cluster_name=cluster, broker_name=name)
        if self._liveness.may_be_alive(name, found.master):
            answer.master_broker_id = found.master
            answer.master_address = found.address(found.master)
            answer.master_epoch = found.master_epoch
            answer.sync_state_set_epoch = found.in_sync_epoch
            answer.min_in_sync_replicas = found.least or None
            answer.unclean_epoch = found.unclean_epoch or None
        return ok(command, answer, _sync_state_set(found))

    def _broker_heartbeat(self, session: Session, command: Command) -> bytes:
        header = command.header(BrokerHeartbeatRequestHeader)
        if header.broker_id is None:
            raise Refusal(ResponseCode.CONTROLLER_INVALID_REQUEST, "Heart beat with empty brokerId")
        found = self.replicas.get(header.broker_name)
        if found is not None and found.cluster == header.cluster_name:
            claim = read_claim(
                header.epoch, header.known_epoch, set_epoch=header.known_set_epoch, members=header.known_set
            )
            self._hear(found, header.broker_id, claim, header.damage)
        if found is None or found.cluster != header.cluster_name or header.broker_id not in found.replicas:
            raise Refusal(
                ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED,
                f"BrokerId: {header.broker_id} hasn't been registered in broker-set: {header.broker_name}",
            )
        if header.broker_addr != found.address(header.broker_id):
            # Says nothing about the registered broker: the sender has a copy of its files, or the broker has moved.
            raise Refusal(
                ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED,
                f"BrokerId: {header.broker_id} of broker-set: {header.broker_name} is registered at"
                f" {found.address(header.broker_id)}",
            )
        expires_ms = self._liveness.heard(session, header.broker_id, header)
        self._next_expiry_ms = min(self._next_expiry_ms, expires_ms)
        self._doubts.heard(found, header.broker_id)
        leads = header.broker_id == found.master and header.epoch == found.master_epoch
        if leads or (found.to_hear and not header.damage):
            self._confirm(found, header.confirm_offset, header.confirm_epoch)
        self._report(found, header.broker_id, header.incarnation, header.damage)
        why = self._doubts.waits_for(found) or self._elect(found, None).why if found.to_hear else ""
        self._replace_cut_off_master(found.name)
        answer = BrokerHeartbeatResponseHeader(
            master_epoch=found.master_epoch,
            state_id=self._state_id or None,
            tries=encode_by_id(self._severance.asks(found, header.broker_id)) or None,
        )
        if found.to_hear:
            raise Refusal(ResponseCode.CONTROLLER_MASTER_NOT_AVAILABLE, f"No master: {why}", answer)
        return ok(command, answer, remark="Heart beat success")

    def _hear(
        self, found: ReplicaSet, broker_id: int | None, claim: Claim | None, damage: str | None = None
    ) -> None:
        """A broker says what it knows. A damaged one may know nothing."""
        if claim is None or damage or not is_newer(claim, found):
            return
        _log.error(
            "broker %s: the log of %s is in epoch %d, and the last one that this controller knows is %d; it knows"
            " SyncStateSet %s of epoch %d, this controller %s of epoch %d. Its state is older. It names no"
            " master before all replicas were heard; mqadmin electMaster elects one without waiting",
            found.name,
            "somebody" if broker_id is None else broker_id,
            claim.epoch,
            found.master_epoch,
            sorted(claim.members) or "unknown",
            claim.set_epoch,
            sorted(found.in_sync),
            found.in_sync_epoch,
        )
        self.replicas.doubt(found, *claim)

    def _report(self, found: ReplicaSet, broker_id: int, incarnation: str | None, damage: str | None) -> None:
        """What a replica says of itself may cost it its place in the SyncStateSet, or as the master."""
        before = found.replicas[broker_id].incarnation, found.replicas[broker_id].damage
        self.replicas.report(found, broker_id, incarnation or "", damage or "")
        replica = found.replicas[broker_id]
        if (replica.incarnation, replica.damage) != before and replica.damage:
            _log.error("broker %s: %d has reported damage: %s", found.name, broker_id, replica.damage)
        has_restarted = found.has_restarted(broker_id)
        if broker_id == found.master:
            if has_restarted and found.master_epoch:
                _log.warning("broker %s: the master %d was started again", found.name, broker_id)
                self.replicas.set_master(found, None)
            if has_restarted or replica.damage:
                self._elect(found, None)
        elif (
            broker_id in found.in_sync
            and (has_restarted or replica.damage)
            and self._liveness.may_be_alive(found.name, found.master)
        ):
            self.replicas.leave(found, broker_id)
            _log.info("broker %s: the SyncStateSet is %s", found.name, sorted(found.in_sync))
            self._notify(found)

    def _confirm(self, found: ReplicaSet, end: int | None, epoch: int | None) -> None:
        """The master says up to where all members have the log. RocketMQ's masters say no epoch: what they mean may be
        more than the members have."""
        if end is not None and epoch is not None and 0 <= epoch <= found.master_epoch:
            self.replicas.confirm(found, end, epoch)

    # --- masters ---

    def _alter_sync_state_set(self, command: Command) -> bytes:
        header = command.header(AlterSyncStateSetRequestHeader)
        asked = decode_body(SyncStateSet, command.body)
        found = self.replicas.get(header.broker_name)
        if found is None:
            raise Refusal(
                ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED, "Broker metadata is not existed"
            )
        try:
            self.replicas.alter(
                found,
                header.master_broker_id,
                header.master_epoch,
                asked.sync_state_set,
                asked.sync_state_set_epoch,
                self._liveness.is_alive,
                confirms=bool(header.confirms),
                least=max(0, header.min_in_sync_replicas or 0),
            )
        finally:
            self._hear(found, header.master_broker_id, read_claim(header.known_epoch))
        self._confirm(found, header.confirm_offset, header.confirm_epoch)
        _log.info("broker %s: the SyncStateSet is %s", found.name, sorted(found.in_sync))
        answer = AlterSyncStateSetResponseHeader(new_sync_state_set_epoch=found.in_sync_epoch)
        return ok(command, answer, _sync_state_set(found))

    def _elect_master(self, command: Command) -> bytes:
        header = command.header(ElectMasterRequestHeader)
        found = self.replicas.get(header.broker_name)
        unknown = ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED
        if found is None:
            raise Refusal(unknown, "Broker hasn't been registered")
        asked = None if header.broker_id == _NO_BROKER else header.broker_id
        if asked is not None and asked not in found.replicas:
            raise Refusal(unknown, f"BrokerId: {asked} hasn't been registered in broker-set: {found.name}")
        old = found.master
        if found.master_epoch == 0 and asked is not None and not self._doubts.waits_for(found):
            self._elected(
                found, asked
            )  # it sent this itself, or an operator chose it; no other replica has more
        else:
            choice = self._elect(found, asked if header.designate_elect else None)
            if choice.master is None and asked is None:
                raise Refusal(
                    ResponseCode.CONTROLLER_MASTER_NOT_AVAILABLE,
                    f"Old master has down and failed to elect a new broker master: {choice.why}",
                )
            if choice.master is None:
                raise Refusal(
                    ResponseCode.CONTROLLER_ELECT_MASTER_FAILED, f"Failed to elect a new master: {choice.why}"
                )
        answer = ElectMasterResponseHeader(
            master_broker_id=found.master,
            master_address=found.address(found.master),
            master_epoch=found.master_epoch,
            sync_state_set_epoch=found.in_sync_epoch,
            min_in_sync_replicas=found.least or None,
            unclean_epoch=found.unclean_epoch or None,
        )
        if found.master != old:
            group = BrokerMemberGroup(
                cluster=found.cluster,
                broker_name=found.name,
                broker_addrs={key: each.address for key, each in sorted(found.replicas.items())},
            )
            body = ElectMasterResponseBody(broker_member_group=group, sync_state_set=sorted(found.in_sync))
            return ok(command, answer, encode_body(body))
        return encode_response(
            command.opaque,
            ResponseCode.CONTROLLER_MASTER_STILL_EXIST,
            answer,
            encode_body(ElectMasterResponseBody(sync_state_set=sorted(found.in_sync))),
            f"The old master {old} is still alive, not need to elect new master for broker {found.name}",
        )

    def _replace_dead_master(self, name: str) -> None:
        found = self.replicas.get(name)
        if found is not None and found.master_epoch and not self._liveness.may_be_alive(name, found.master):
            self._elect(found, None)

    def _replace_cut_off_master(self, name: str) -> None:
        found = self.replicas.get(name)
        successor = None if found is None else self._severance.successor(found)
        if found is not None and successor is not None:
            _log.warning(
                "broker %s: the master %s is cut off from all of %s, who reach each other: %d replaces it",
                name,
                found.master,
                sorted(found.heirs - {found.master}),
                successor,
            )
            self._elected(found, successor)

    def _elect(self, found: ReplicaSet, preferred: int | None) -> Choice:
        """Elect the best master. A dead master without a successor is deposed."""
        if preferred is None and found.master is None and (why := self._doubts.waits_for(found)):
            return Choice(None, why)
        choice = self._liveness.choose(found, preferred, unclean=self.config.enable_elect_unclean_master)
        if choice.master is not None and choice.master != found.master:
            self._elected(found, choice.master)
        elif choice.master is None and preferred is None and found.master is not None:
            _log.warning(
                "broker %s: no replica can replace the master %d: %s", found.name, found.master, choice.why
            )
            self.replicas.set_master(found, None)
        return choice

    def _elected(self, found: ReplicaSet, master: int) -> None:
        standing = self._liveness.standing(found.name, master)
        lost = 0 if standing is None else found.confirmed - max(0, standing.max_offset)
        is_unclean = False
        if found.heirs and (master not in found.heirs or (found.has_restarted(master) and lost > 0)):
            _log.error(
                "broker %s: %d becomes master, although %s have all messages: acknowledged messages may be lost,"
                " %d bytes at least",
                found.name,
                master,
                sorted(found.heirs),
                max(0, lost),
            )
            is_unclean = True
        # A state restored from a copy does not know its last epochs. No two masters may have the same.
        self.replicas.set_master(found, master, above=self._liveness.newest_epoch(found.name))
        if is_unclean:
            self.replicas.give_up(found, *((0, -1) if standing is None else standing.log_end))
        _log.info("broker %s: %d is master in epoch %d", found.name, master, found.master_epoch)
        self._notify(found)

    def _notify(self, found: ReplicaSet) -> None:
        """Tell the replicas who is the master, and who has all messages."""
        if not self.config.notify_broker_role_changed:
            return
        header = NotifyBrokerRoleChangedRequestHeader(
            master_address=found.address(found.master),
            master_epoch=found.master_epoch,
            sync_state_set_epoch=found.in_sync_epoch,
            master_broker_id=found.master,
        )
        body = _sync_state_set(found)
        now_ms = self._clock.monotonic_ms()
        for broker_id, replica in found.replicas.items():
            # Brokers that miss the notice poll within a few seconds.
            if self._liveness.is_alive(found.name, broker_id) and len(self._waiting) < MAX_WAITING:
                notice = Notice(replica.address, header, body)
                self._waiting.append(_Waiting(self.replicas.generation, now_ms, None, 0, b"", notice))

    def _clean_broker_data(self, command: Command) -> bytes:
        header = command.header(CleanControllerBrokerDataRequestHeader)
        broker_ids: set[int] = set()
        for text in (header.broker_controller_ids_to_clean or "").split(";"):
            if not text.strip():
                continue
            if not text.strip().isdecimal() or len(text) > 19 or int(text) > INT64_MAX:
                raise Refusal(
                    ResponseCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA,
                    "Please set the option <brokerControllerIdsToClean> according to the format, exception:"
                    f" {text[:40]!r} is not a number",
                )
            broker_ids.add(int(text))
        self.replicas.clean(
            header.broker_name,
            frozenset(broker_ids),
            living=header.is_clean_living_broker,
            is_alive=self._liveness.may_be_alive,
        )
        self._liveness.keep_only(self.replicas)
        if self.replicas.get(header.broker_name) is None:
            self._severance.forget(header.broker_name)
        return ok(command)

    # --- queries ---

    def _replica_info(self, command: Command) -> bytes:
        header = command.header(GetReplicaInfoRequestHeader)
        found = self.replicas.get(header.broker_name)
        if found is None:
            raise Refusal(ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST, "Broker metadata is not existed")
        self._hear(found, None, read_claim(header.known_epoch))
        answer = GetReplicaInfoResponseHeader(
            master_broker_id=found.master,
            master_address=found.address(found.master),
            master_epoch=found.master_epoch,
            min_in_sync_replicas=found.least or None,
            unclean_epoch=found.unclean_epoch or None,
        )
        return ok(command, answer, _sync_state_set(found))

    def _sync_state_data(self, command: Command) -> bytes:
        names = decode_body(list[str], command.body) if command.body else []
        if not names:
            raise Refusal(ResponseCode.SYSTEM_ERROR, "not set any response code")
        found = (self.replicas.get(name) for name in dict.fromkeys(names))
        table = {each.name: self._replicas_info(each) for each in found if each is not None}
        return ok(command, None, encode_body(BrokerReplicasInfo(replicas_info_table=table)))

    def _replicas_info(self, found: ReplicaSet) -> ReplicasInfo:
        identities = {
            broker_id: ReplicaIdentity(
                broker_name=found.name,
                broker_id=broker_id,
                broker_address=replica.address,
                alive=self._liveness.is_alive(found.name, broker_id),
            )
            for broker_id, replica in sorted(found.replicas.items())
        }
        return ReplicasInfo(
            master_broker_id=found.master,
            master_address=found.address(found.master),
            master_epoch=found.master_epoch,
            sync_state_set_epoch=found.in_sync_epoch,
            in_sync_replicas=[each for key, each in identities.items() if key in found.in_sync],
            not_in_sync_replicas=[each for key, each in identities.items() if key not in found.in_sync],
        )

    def _metadata(self, session: Session, command: Command) -> bytes:
        own_id = self.config.controller_d_leger_self_id
        answer = GetMetaDataResponseHeader(
            group=self.config.controller_d_leger_group,
            controller_leader_id=own_id,
            controller_leader_address=self._address,
            is_leader=True,
            peers=self.config.peers(self._address),
            state_id=self._state_id or None,
        )
        return ok(command, answer)

    OF_A_LEADER: ClassVar[dict[int, Callable[[Controller, Command], bytes]]] = {
        RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET: _alter_sync_state_set,
        RequestCode.CONTROLLER_ELECT_MASTER: _elect_master,
        RequestCode.CONTROLLER_REGISTER_BROKER: _register_broker,
        RequestCode.CONTROLLER_GET_REPLICA_INFO: _replica_info,
        RequestCode.CONTROLLER_GET_SYNC_STATE_DATA: _sync_state_data,
        RequestCode.CONTROLLER_GET_NEXT_BROKER_ID: _next_broker_id,
        RequestCode.CONTROLLER_APPLY_BROKER_ID: _apply_broker_id,
        RequestCode.CLEAN_BROKER_DATA: _clean_broker_data,
    }
    """Requests that only the leader answers, each once the table that it depends on is durable."""


@dataclass(eq=False)
class _SaveStateJob:
    state: DurableState
    content: bytes
    generation: int
    saved: Callable[[int], None]

    def run(self) -> None:
        self.state.save(self.content)

    def done(self, error: BaseException | None = None) -> None:
        if error is None:  # otherwise the table stays newer than the file, and the next job saves it
            self.saved(self.generation)


def _names(cluster: str | None, name: str | None) -> tuple[str, str]:
    """Both are required."""
    if not cluster or not name:
        raise Refusal(ResponseCode.CONTROLLER_INVALID_REQUEST, "clusterName or brokerName is missing")
    return cluster, name


def _sync_state_set(found: ReplicaSet) -> bytes:
    body = SyncStateSet(sync_state_set=sorted(found.in_sync), sync_state_set_epoch=found.in_sync_epoch)
    return encode_body(body)
