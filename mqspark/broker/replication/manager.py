"""A broker's requests to its controllers (ReplicasManager): its number, registration, elections, and changes of the
SyncStateSet. Answers in, requests out.

    take_id      once in a broker's life: asks for the next free number and notes it on disk before and after
    register     at every start: this number now has this address
    elect        there is no master
    poll         what the controller knows; also pushed (NOTIFY_BROKER_ROLE_CHANGED)
    alter        the SyncStateSet that the master wants
    settle       the SyncStateSet gets a newer epoch, so that a change of unknown outcome can no longer come into force
    heartbeat    every brokerHeartbeatInterval, to all controllers; the leader's answer renews the master's lease

Only a newer epoch changes the role; the same master may get another address in its epoch. What is older than this
broker's log or its newest appointment comes from a controller whose state is older: it changes nothing, and renews no
lease. Every request says which epoch this broker knows, so that such a controller notices it.

Must not know connections.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from typing import NamedTuple, TypeVar

from mqspark.base.clock import Clock
from mqspark.base.names import is_address
from mqspark.broker.config import BrokerConfig
from mqspark.broker.replication.term import Term
from mqspark.errors import NotNow, ProtocolError
from mqspark.protocol.bodies.body import decode_body, encode_body
from mqspark.protocol.bodies.replica_bodies import ElectMasterResponseBody, SyncStateSet
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command
from mqspark.protocol.dispatch import Handler, ok
from mqspark.protocol.headers.cluster_headers import (
    AlterSyncStateSetRequestHeader,
    ApplyBrokerIdRequestHeader,
    BrokerHeartbeatRequestHeader,
    BrokerHeartbeatResponseHeader,
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
from mqspark.protocol.headers.header import Header
from mqspark.protocol.servers.byid import decode_by_id, encode_by_id, encode_ids
from mqspark.protocol.session import Session
from mqspark.store.disk.notes.brokeridentity import IdentityFiles

MAX_MEMBERS = 1_000
"""Replicas in one SyncStateSet."""

REFUSED = frozenset(
    {
        ResponseCode.CONTROLLER_INVALID_REPLICAS,
        ResponseCode.CONTROLLER_BROKER_NOT_ALIVE,
        ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED,
    }
)
"""What a leader answers that has looked at a change of the SyncStateSet and not made it. After any other answer the
change may be in force: a leader that is deposed meanwhile, or whose disk hangs, does not know."""

R = TypeVar("R")


class ControllerRequest(NamedTuple):
    code: int
    header: Header | None
    body: bytes = b""


Talk = Generator[ControllerRequest, Command, R]


class Appointment(NamedTuple):
    """Who is the master, from a controller."""

    epoch: int
    master_id: int
    master_address: str
    set_epoch: int
    members: frozenset[int]
    least: int = 0
    """The minInSyncReplicas that the controller counts on; 0 if it says nothing of it."""
    given_up: int = 0
    """As of ``Term``."""


class LogState(NamedTuple):
    """What elections depend on."""

    epoch: int
    end: int
    confirmed: int
    confirmed_epoch: int = -1
    damage: str = ""
    """Why the log cannot be trusted, or ''."""
    damaged_bytes: int = 0
    """Below ``end``, to be healed."""


class Leadership(NamedTuple):
    """What a controller says of who leads."""

    address: str
    """The leader's address; empty if there is none."""
    is_own: bool = False
    """Whether the leader says it itself."""
    state_id: str | None = None


class LinkState(NamedTuple):
    """What the controller hears of this broker's connections to other replicas."""

    silences_ms: Mapping[int, int] = {}
    """For how long they were not heard: a slave's master, a master's slaves."""
    reached: frozenset[int] = frozenset()
    """Who has answered, of those that the controller asked to try."""


NO_LINKS = LinkState()


def leader_of(answer: Command) -> Leadership:
    """From the answer to CONTROLLER_GET_METADATA_INFO."""
    if answer.code != ResponseCode.SUCCESS:
        return Leadership("")
    found = answer.header(GetMetaDataResponseHeader)
    address = found.controller_leader_address or ""
    return Leadership(address, bool(address) and bool(found.is_leader), found.state_id)


class NotRegistered(NotNow):
    """The controllers do not know this broker, or have forgotten it."""


def _refuse(answer: Command, what: str, kind: type[NotNow] = NotNow) -> NotNow:
    return kind(f"the controller does not {what}: code {answer.code}, {(answer.remark or '')[:200]}")


class ReplicasManager:
    def __init__(self, config: BrokerConfig, clock: Clock, identity: IdentityFiles, incarnation: str) -> None:
        """``incarnation``: of this process; another one after each start."""
        self._incarnation = incarnation
        self._config = config
        self._clock = clock
        self._identity = identity
        self.decision: Appointment | None = None
        """The newest appointment."""
        self._log_epoch = -1
        """The newest epoch of the log here, as it was told last."""
        self.broker_id: int | None = None
        self.handlers: dict[int, Handler] = {
            RequestCode.NOTIFY_BROKER_ROLE_CHANGED: self.role_changed,
        }

    # --- identity ---

    def take_id(self, code: str) -> Talk[int]:
        """This broker's number. ``code`` is unique: whoever knows it may take the number. Raises NotNow if the
        controller gives none now; StoreCorrupt, OSError."""
        found = self._identity.load()
        if found is None:
            found = self._identity.load_wanted()
            if found is None:
                answer = yield self._next_id()
                broker_id = answer.header(GetNextBrokerIdResponseHeader).next_broker_id
                if answer.code != ResponseCode.SUCCESS or broker_id is None or broker_id <= 0:
                    raise _refuse(answer, "offer a broker id")
                found = self._identity.want(broker_id, code)
            answer = yield self._apply(found.broker_id, found.code)
            if answer.code == ResponseCode.CONTROLLER_BROKER_ID_INVALID:  # somebody else has it
                self._identity.forget_wanted()
            if answer.code != ResponseCode.SUCCESS:
                raise _refuse(answer, f"grant broker id {found.broker_id}")
            self._identity.save(found.broker_id)
        self.broker_id = found.broker_id
        return found.broker_id

    def _next_id(self) -> ControllerRequest:
        config = self._config
        header = GetNextBrokerIdRequestHeader(
            cluster_name=config.broker_cluster_name, broker_name=config.broker_name
        )
        return ControllerRequest(RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, header)

    def _apply(self, broker_id: int | None, code: str) -> ControllerRequest:
        header = ApplyBrokerIdRequestHeader(
            cluster_name=self._config.broker_cluster_name,
            broker_name=self._config.broker_name,
            applied_broker_id=broker_id,
            register_check_code=code,
        )
        return ControllerRequest(RequestCode.CONTROLLER_APPLY_BROKER_ID, header)

    # --- the master ---

    def register(self, address: str, log: LogState) -> Talk[None]:
        """Raises NotNow."""
        self._look_at(log)
        header = RegisterBrokerToControllerRequestHeader(
            cluster_name=self._config.broker_cluster_name,
            broker_name=self._config.broker_name,
            broker_id=self.broker_id,
            broker_address=address,
            invoke_time=self._clock.now_ms(),
            incarnation=self._incarnation,
            damage=log.damage or None,
            known_epoch=self._known_epoch,
        )
        answer = yield ControllerRequest(RequestCode.CONTROLLER_REGISTER_BROKER, header)
        if answer.code == ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED:
            # Its state is older than this broker's number, which nobody else can have taken without the refusal below.
            applied = yield self._apply(self.broker_id, f"{address};{self._clock.now_ms()}")
            if applied.code != ResponseCode.SUCCESS:
                raise _refuse(applied, f"grant broker id {self.broker_id} again")
            answer = yield ControllerRequest(RequestCode.CONTROLLER_REGISTER_BROKER, header)
        if answer.code != ResponseCode.SUCCESS:
            raise _refuse(answer, "register this broker")
        found = answer.header(RegisterBrokerToControllerResponseHeader)
        members = _members(answer)
        self._decide(found, found.sync_state_set_epoch, members)

    def elect(self) -> Talk[None]:
        """Raises NotNow."""
        header = ElectMasterRequestHeader(
            cluster_name=self._config.broker_cluster_name,
            broker_name=self._config.broker_name,
            broker_id=-1 if self.broker_id is None else self.broker_id,
            invoke_time=self._clock.now_ms(),
        )
        answer = yield ControllerRequest(RequestCode.CONTROLLER_ELECT_MASTER, header)
        if answer.code not in (ResponseCode.SUCCESS, ResponseCode.CONTROLLER_MASTER_STILL_EXIST):
            raise _refuse(answer, "elect a master")
        found = answer.header(ElectMasterResponseHeader)
        body = bytes(answer.body)
        members = decode_body(ElectMasterResponseBody, body).sync_state_set if body else []
        self._decide(found, found.sync_state_set_epoch, members)

    def poll(self, term: Term | None) -> Talk[bool]:
        """Whether there is a master. Raises NotNow, NotRegistered."""
        header = GetReplicaInfoRequestHeader(
            broker_name=self._config.broker_name, known_epoch=self._known_epoch
        )
        sent_ms = self._clock.monotonic_ms()
        answer = yield ControllerRequest(RequestCode.CONTROLLER_GET_REPLICA_INFO, header)
        if answer.code != ResponseCode.SUCCESS:
            raise _refuse(answer, "know this broker", NotRegistered)
        found = answer.header(GetReplicaInfoResponseHeader)
        now = decode_body(SyncStateSet, bytes(answer.body)) if answer.body else SyncStateSet()
        self._decide(found, now.sync_state_set_epoch, now.sync_state_set)
        if term is not None and found.master_epoch is not None:
            if found.master_epoch > term.epoch:
                term.is_over = True  # also when there is no master now
            elif found.master_epoch == term.epoch:
                term.decided(_checked(now.sync_state_set), now.sync_state_set_epoch)
                if found.master_broker_id == term.broker_id:
                    term.renewed(sent_ms)
        return bool(found.master_address) and found.master_broker_id is not None

    def role_changed(self, session: Session, command: Command) -> bytes:
        """A controller tells who is the master (one-way). Anybody could send this, so it only makes the broker ask its
        controllers."""
        command.header(NotifyBrokerRoleChangedRequestHeader)
        self.is_told = True
        return ok(command)

    is_told = False
    """Whether a controller has said that something changed."""

    def _decide(
        self,
        found: RegisterBrokerToControllerResponseHeader
        | ElectMasterResponseHeader
        | GetReplicaInfoResponseHeader,
        set_epoch: int | None,
        members: Iterable[int],
    ) -> None:
        epoch, master_id, address = found.master_epoch, found.master_broker_id, found.master_address
        if epoch is None or master_id is None or not address:
            return
        if epoch < 0 or master_id < 0:
            raise ProtocolError(f"a controller names master {master_id} of epoch {epoch}")
        known = self._known_epoch
        if known is not None and epoch < known:
            raise NotNow(
                f"the controller names {master_id} as the master of epoch {epoch}, and this broker knows epoch {known}:"
                " the state of the controller is older"
            )
        if self.decision is None or epoch > self.decision.epoch:
            self.decision = Appointment(
                epoch,
                master_id,
                address,
                set_epoch or 0,
                _checked(members),
                max(0, found.min_in_sync_replicas or 0),
                max(0, found.unclean_epoch or 0),
            )
        elif master_id == self.decision.master_id and address != self.decision.master_address:
            self.decision = self.decision._replace(master_address=address)

    def _look_at(self, log: LogState) -> None:
        if not log.damage:  # else its epochs may be forged
            self._log_epoch = max(self._log_epoch, log.epoch)

    @property
    def _known_epoch(self) -> int | None:
        """The newest epoch that this broker knows, or None."""
        known = max(self._log_epoch, -1 if self.decision is None else self.decision.epoch)
        return known if known >= 0 else None

    # --- the SyncStateSet ---

    def alter(self, term: Term, log: LogState, wanted: frozenset[int]) -> Talk[None]:
        """Raises NotNow."""
        is_first = not term.is_unsure
        term.ask(wanted)
        answer = yield from self._change(term, log, wanted)
        if answer.code in REFUSED:
            if is_first:
                term.refused()
            else:
                yield from self.settle(term, log)
        if answer.code != ResponseCode.SUCCESS:
            raise _refuse(answer, f"accept the SyncStateSet {sorted(wanted)}")

    def settle(self, term: Term, log: LogState) -> Talk[None]:
        """Get a newer epoch for the set that is in force: earlier requests, whose outcome is not known, cannot be
        granted any more, and their members are waited for no longer. That a controller answers with the old set is not
        enough: such a request may still be on its way. Raises NotNow."""
        members = term.sync_set
        answer = yield from self._change(term, log, members, confirms=True)
        slaves = members - {term.broker_id}
        if answer.code == ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED and slaves:
            # RocketMQ's controllers refuse a set that is no change. This is one, and the slave is asked back in next.
            fewer = members - {max(slaves)}
            term.ask(fewer)
            answer = yield from self._change(term, log, fewer)
        if answer.code != ResponseCode.SUCCESS:
            raise _refuse(answer, f"confirm the SyncStateSet {sorted(members)}")

    def _change(
        self, term: Term, log: LogState, wanted: frozenset[int], *, confirms: bool = False
    ) -> Talk[Command]:
        """One request, and what its answer says about the term."""
        least = self._config.min_in_sync_replicas
        header = AlterSyncStateSetRequestHeader(
            broker_name=self._config.broker_name,
            master_broker_id=term.broker_id,
            master_epoch=term.epoch,
            invoke_time=self._clock.now_ms(),
            confirms=confirms or None,
            min_in_sync_replicas=least,
            confirm_offset=log.confirmed,
            confirm_epoch=log.confirmed_epoch,
            known_epoch=term.epoch,
        )
        body = encode_body(SyncStateSet(sync_state_set=sorted(wanted), sync_state_set_epoch=term.set_epoch))
        answer = yield ControllerRequest(RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET, header, body)
        if answer.code == ResponseCode.SUCCESS:
            now = decode_body(SyncStateSet, bytes(answer.body))
            term.least = least
            term.decided(_checked(now.sync_state_set), now.sync_state_set_epoch, was_asked=True)
        elif answer.code in (
            ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH,
            ResponseCode.CONTROLLER_INVALID_MASTER,
        ):
            term.is_over = True
        return answer

    # --- life ---

    def heartbeat(
        self, address: str, log: LogState, term: Term | None = None, links: LinkState = NO_LINKS
    ) -> ControllerRequest:
        """``term``: with the SyncStateSet that this broker knows."""
        config = self._config
        self._look_at(log)
        is_set_known = term is not None and term.epoch == self._known_epoch and bool(term.sync_set)
        header = BrokerHeartbeatRequestHeader(
            cluster_name=config.broker_cluster_name,
            broker_addr=address,
            broker_name=config.broker_name,
            broker_id=self.broker_id,
            epoch=log.epoch,
            max_offset=log.end,
            confirm_offset=log.confirmed,
            heartbeat_timeout_mills=config.controller_heart_beat_timeout_mills,
            election_priority=config.broker_election_priority,
            incarnation=self._incarnation,
            damage=log.damage or None,
            confirm_epoch=log.confirmed_epoch,
            known_epoch=self._known_epoch,
            silences=encode_by_id(links.silences_ms) or None,
            reaches=encode_ids(links.reached) or None,
            damaged_bytes=log.damaged_bytes or None,
        )
        if term is not None and is_set_known:
            header.known_set_epoch = term.set_epoch
            header.known_set = encode_ids(term.sync_set)
        return ControllerRequest(RequestCode.BROKER_HEARTBEAT, header)

    def heartbeat_answered(self, answer: Command, term: Term, sent_ms: int) -> dict[int, str]:
        """The leader has answered a heartbeat that was sent at this monotonic time. Returns the replicas that it wants
        this broker to try, with their addresses. Raises ProtocolError."""
        found = answer.header(BrokerHeartbeatResponseHeader)
        known = found.master_epoch
        if answer.code != ResponseCode.SUCCESS:
            self.is_told = True  # it does not count this broker, or names no master: ask what it knows
        elif known is None or known >= term.epoch:
            term.answered(sent_ms)
        tries = decode_by_id(found.tries)
        return {each: address for each, address in tries.items() if is_address(address)}


def _members(answer: Command) -> list[int]:
    body = bytes(answer.body)
    return decode_body(SyncStateSet, body).sync_state_set if body else []


def _checked(members: Iterable[int]) -> frozenset[int]:
    """Raises ProtocolError."""
    found = frozenset(members)
    if len(found) > MAX_MEMBERS or any(member < 0 for member in found):
        raise ProtocolError(f"a controller sent a SyncStateSet of {len(found)} members")
    return found
