"""A broker as a process in controller mode: a broker whose role a controller decides (ReplicasManager).

It starts as a slave without a master. Whenever the controller gives it another role, its parts end and start again on
the same files and ports: a change of role is a clean restart inside the process. A master stops acknowledging at once
when it is replaced, or when no controller has answered it for too long.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import random
from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

from mqspark.base.clock import Clock
from mqspark.base.config import parse_addresses
from mqspark.base.logs import Outages, sparing
from mqspark.broker.config import BrokerRole
from mqspark.broker.replication.epochreplicas import EpochFollower, EpochReplicas
from mqspark.broker.replication.manager import (
    ControllerRequest,
    LinkState,
    LogState,
    NotRegistered,
    ReplicasManager,
    Talk,
    leader_of,
)
from mqspark.broker.replication.rivals import Rivals
from mqspark.broker.replication.term import Term
from mqspark.errors import MQError, NotNow, StoreError
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command
from mqspark.protocol.headers.cluster_headers import BrokerHeartbeatResponseHeader
from mqspark.store.config import FlushDiskType
from mqspark.store.disk.files import OsFiles
from mqspark.store.disk.notes.brokeridentity import IdentityFiles
from mqspark.store.log.epochs import begin_term
from mqspark.store.recovery.recoveryreport import RecoveryReport
from mqspark.store.recovery.trustedlog import judge_member
from mqspark.store.store import MessageStore
from mqspark_server.broker_app import BrokerApp
from mqspark_server.net.addresses import BrokerSockets
from mqspark_server.net.outbound import REQUEST_ERRORS, REQUEST_TIMEOUT_S, Outbound
from mqspark_server.peers.registrar import UNREGISTER_TIMEOUT_S
from mqspark_server.process.phases import Phase, ProcessLifecycle
from mqspark_server.process.processapp import Ends, dialing
from mqspark_server.process.tasks import end_all
from mqspark_server.settings.settings import BrokerSettings

log = logging.getLogger("mqspark.app")
_troubles = sparing("mqspark.controlled", lines=10)

ROLE_WAIT_S = 5.0
"""How long a start waits for a master to be known. Then it continues without one, and answers as a slave."""

NAMESRV_WAIT_S = 0.3
"""How long a change of role waits for name servers: a silent one must not delay a failover."""

LEADER_WAIT_S = 0.5
"""How long the other controllers are waited for once a leader is known: one that was named by another controller may be
down, and soon be replaced; one that names itself may have a rival."""
TRY_S = 1.0
"""Timeout for a replica that a controller has asked this broker to reach."""
CONTROLLER_RETRY_S = 0.5
STEP_S = 0.1
"""Interval of the checks for due work."""

R = TypeVar("R")


def controlled_or_plain(settings: BrokerSettings) -> BrokerApp:
    """A broker, in controller mode if enableControllerMode is set."""
    kind = ControlledApp if settings.broker.enable_controller_mode else BrokerApp
    return kind(settings)


class ControlledApp(BrokerApp):
    def __init__(
        self, settings: BrokerSettings, *, clock: Clock | None = None, chance: random.Random | None = None
    ) -> None:
        super().__init__(settings, clock=clock, chance=chance)
        config = settings.broker
        self._addresses = parse_addresses(config.controller_addr or "", key="controllerAddr")
        files = OsFiles()
        files.make_directory(self.store_path, durable=True)
        identity = IdentityFiles(self.store_path, files, config.broker_cluster_name, config.broker_name)
        incarnation = f"{self._chance.getrandbits(64):016x}"
        self._manager = ReplicasManager(self.config, self.clock, identity, incarnation)
        self.more_handlers = self._manager.handlers
        self._connections: dict[str, Outbound] = {}
        self._outages = Outages(_troubles)
        self._leader = ""
        self._rivals = Rivals(self.clock, config.controller_heart_beat_timeout_mills)
        self._is_registered = False
        self._follows_since_ms = 0
        """When the master of this slave was named (monotonic)."""
        self._tries: dict[int, asyncio.Task[None]] = {}
        """Attempts to reach other replicas."""
        self._reached: set[int] = set()
        """Who has answered them."""
        self._changing = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []
        self._is_ending = False
        self._placed = asyncio.Event()
        """Set once a master is known and this broker has its role."""

    # --- life ---

    async def _start(self) -> None:
        async with self._changing:
            self._choose_ports()
            broker_id = await self._take_id()
            self.term = Term(self.clock, broker_id, self.settings.broker.controller_heart_beat_timeout_mills)
            await self._start_parts()
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._keep_heartbeats(), name="mqspark-controller-heartbeats"),
            loop.create_task(self._keep_part(), name="mqspark-controller-part"),
        ]
        self.register_s = self.unregister_s = NAMESRV_WAIT_S
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ROLE_WAIT_S):
                await self._placed.wait()

    def _choose_ports(self) -> None:
        """Register the address with a controller before there are sockets."""
        broker = self.settings.broker
        if broker.listen_port:
            return
        sockets = BrokerSockets.bind(self.settings.server.bind_address, 0, 0, with_fast=False)
        broker = dataclasses.replace(broker, listen_port=sockets.port, ha_listen_port=sockets.slave_port)
        sockets.close()
        server = self.settings.server
        if server.http_port is None:
            server = dataclasses.replace(server, http_port=0)
        if server.grpc_server_port is None:
            server = dataclasses.replace(server, grpc_server_port=0)
        self.settings = dataclasses.replace(self.settings, broker=broker, server=server)

    async def _take_id(self) -> int:
        code = f"{self.settings.broker.address};{self.clock.now_ms()}"
        while True:
            try:
                broker_id = await self._ask_leader(self._manager.take_id(code))
                self._outages.over("id", "this broker has its id")
                return broker_id
            except NotNow as error:
                self._outages.failed("id", None, "no broker id yet: %s", error)
            except StoreError:
                raise  # the error is about local files: waiting does not help
            except REQUEST_ERRORS as error:
                self._outages.failed("id", None, "no broker id yet: %s", error)
            await asyncio.sleep(CONTROLLER_RETRY_S)

    async def _start_parts(self) -> None:
        """Start all parts for the role in ``term``."""
        term = self.term
        if term is None:
            raise RuntimeError("the broker id is not known")
        role = BrokerRole.SYNC_MASTER if term.is_master else BrokerRole.SLAVE
        self.config = dataclasses.replace(
            self.settings.broker,
            broker_role=role,
            broker_id=0 if term.is_master else term.broker_id,
        )
        self.store_config = dataclasses.replace(self.settings.store)
        await super()._start()
        # The next parts use the same ports.
        server = self.settings.server
        if self.http_url is not None:
            server = dataclasses.replace(server, http_port=int(self.http_url.rpartition(":")[2]))
        if self.grpc_address is not None:
            server = dataclasses.replace(server, grpc_server_port=int(self.grpc_address.rpartition(":")[2]))
        broker = dataclasses.replace(
            self.settings.broker,
            listen_port=self.config.listen_port,
            ha_listen_port=self.config.ha_listen_port,
        )
        self.settings = dataclasses.replace(self.settings, server=server, broker=broker)

    def _handle_recovery(self, store: MessageStore, report: RecoveryReport) -> None:
        store.member.open()
        store.member.expect_segments(store.log.segment_bytes)
        judge_member(
            store.member,
            report.end_position,
            store.damages.found,
            store.root_file(store.paths.epochs),
            store.files,
        )
        if self.settings.store.flush_disk_type is FlushDiskType.SYNC_FLUSH:  # else it may be acknowledged
            store.copy.cut_at_hole(report)

    async def _change_part(self, change: Term) -> None:
        """End all parts, and start them again."""
        if self.lifecycle.phase < Phase.STOPPING:
            self.lifecycle.advance(Phase.STOPPING)
        try:
            await self._ends.stop()
        except StoreError as error:  # the next start recovers
            log.error("the store was not closed cleanly: %s", error)
        self.lifecycle.advance(Phase.STOPPED)
        self.term = change
        while not self._is_ending:
            self._ends = Ends()
            self.parts = self.store = None
            self.lifecycle = ProcessLifecycle(self.clock)
            try:
                await self._start_parts()
                self._outages.over("role", "this broker has taken its role")
                return
            except (OSError, MQError) as error:
                self._outages.failed(
                    "role",
                    error,
                    "this broker cannot take its role: %s; trying again",
                    error,
                    level=logging.ERROR,
                )
                with contextlib.suppress(MQError):
                    await self._ends.stop()
            await asyncio.sleep(CONTROLLER_RETRY_S)

    async def stop(self) -> None:
        await self._end_tasks()
        self.unregister_s = UNREGISTER_TIMEOUT_S
        await super().stop()

    async def kill(self) -> None:
        await self._end_tasks()
        await super().kill()

    async def _end_tasks(self) -> None:
        self._is_ending = True
        if self._tasks:
            async with self._changing:  # an interrupted change would leave parts running
                for task in self._tasks:
                    task.cancel()
        await end_all(*self._tasks, *self._tries.values())
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    # --- controllers ---

    async def _connect(self, address: str, timeout_s: float = REQUEST_TIMEOUT_S) -> Outbound:
        dialed = dialing(self.settings.server, self.settings.auth)
        return await dialed.connect(address, timeout_s=timeout_s)

    async def _connected(self, address: str) -> Outbound:
        connection = self._connections.get(address)
        if connection is None or not connection.alive:
            connection = await self._connect(address)
            known = self._connections.get(address)
            if known is not None and known.alive:  # a concurrent call has connected meanwhile
                connection.close()
                return known
            self._connections[address] = connection
        return connection

    async def _ask(self, address: str, request: ControllerRequest, timeout_s: float) -> Command:
        connection = await self._connected(address)
        return await connection.request(request.code, request.header, request.body, timeout_s=timeout_s)

    async def _find_leader(self) -> str:
        """Ask all controllers concurrently, so that a silent one does not use up the time of a lease. The leader's own
        answer counts most; otherwise the leader that others name. Raises NotNow, also when two of them lead that do not
        share a state."""
        failure, named, found = "no controller knows a leader", "", ""
        request = ControllerRequest(RequestCode.CONTROLLER_GET_METADATA_INFO, None)
        loop = asyncio.get_running_loop()
        waiting = {
            loop.create_task(self._ask(address, request, REQUEST_TIMEOUT_S)): address
            for address in self._addresses
        }
        until_s: float | None = None
        try:
            while waiting:
                done, _ = await asyncio.wait(
                    waiting,
                    timeout=None if until_s is None else max(0.0, until_s - loop.time()),
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if not done:
                    break
                for answered in done:
                    address = waiting.pop(answered)
                    try:
                        leader = leader_of(await answered)
                    except REQUEST_ERRORS as error:
                        failure = str(error)
                        continue
                    if leader.is_own:
                        self._rivals.claims(address, leader.state_id)
                    else:
                        self._rivals.yields(address)
                    named = leader.address or named
                    found = leader.address if leader.is_own else found
                if named and until_s is None:
                    until_s = loop.time() + LEADER_WAIT_S
        finally:
            await end_all(*waiting)
        if conflict := self._rivals.conflict:
            raise NotNow(conflict)
        if found or named:
            return found or named
        raise NotNow(f"no leader of the controllers {';'.join(self._addresses)}: {failure}")

    async def _ask_leader(self, talk: Talk[R]) -> R:
        """Send the requests of ``talk`` to the leader. Raises the errors of ``talk``, and NotNow without a leader."""
        try:
            request = next(talk)
            while True:
                if not self._leader:
                    self._leader = await self._find_leader()
                try:
                    answer = await self._ask(self._leader, request, REQUEST_TIMEOUT_S)
                except REQUEST_ERRORS:
                    self._leader = ""
                    raise
                if answer.code == ResponseCode.CONTROLLER_NOT_LEADER:
                    self._leader = ""
                request = talk.send(answer)
        except StopIteration as end:
            result: R = end.value
            return result

    async def _keep_heartbeats(self) -> None:
        """Send heartbeats to all controllers, because each may become the leader, and to the address that the leader
        gives."""
        async with asyncio.TaskGroup() as group:
            for address in self._addresses:
                group.create_task(self._keep_heartbeat(partial(str, address)))
            group.create_task(
                self._keep_heartbeat(lambda: "" if self._leader in self._addresses else self._leader)
            )

    async def _keep_heartbeat(self, receiver: Callable[[], str]) -> None:
        config = self.settings.broker
        while True:
            address = receiver()
            if address:
                await self._send_heartbeat(address)
            await asyncio.sleep(config.broker_heartbeat_interval / 1000)

    async def _send_heartbeat(self, address: str) -> None:
        timeout_s = self.settings.broker.send_heartbeat_timeout_millis / 1000
        sent_ms = self.clock.monotonic_ms()
        try:
            request = self._manager.heartbeat(self.address, self._log(), self.term, self._links())
            answer = await self._ask(address, request, timeout_s)
            self._outages.over(address, "controller %s answers heartbeats again", address)
            self._note_rival(address, answer)
            if address == self._leader:
                if answer.code == ResponseCode.CONTROLLER_NOT_LEADER or self._rivals.conflict:
                    self._leader = ""
                elif self.term is not None:
                    if answer.code == ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED:
                        self._is_registered = False
                    self._try_to_reach(self._manager.heartbeat_answered(answer, self.term, sent_ms))
        except REQUEST_ERRORS as error:
            if address == self._leader:
                self._leader = ""
            self._outages.failed(address, None, "the heartbeat to controller %s failed: %s", address, error)

    def _links(self) -> LinkState:
        parts, term = self.parts, self.term
        if parts is None or term is None or term.master_id is None:
            return LinkState(reached=frozenset(self._reached))
        replicas, follower = parts.core.role.replicas, parts.core.role.follower
        silences_ms: dict[int, int] = {}
        if isinstance(follower, EpochFollower):
            since_ms = max(follower.received_ms, self._follows_since_ms)
            if follower.refused_since_ms is not None:  # a master that nobody can follow is as good as none
                since_ms = min(since_ms, follower.refused_since_ms)
            silences_ms[term.master_id] = self.clock.monotonic_ms() - since_ms
        elif isinstance(replicas, EpochReplicas):
            silences_ms = replicas.silences_ms()
        return LinkState(silences_ms, frozenset(self._reached))

    def _try_to_reach(self, others: Mapping[int, str]) -> None:
        """Find out which of these replicas answer; the next heartbeat says it."""
        self._reached &= others.keys()
        for broker_id, address in others.items():
            if broker_id not in self._tries:
                task = asyncio.get_running_loop().create_task(
                    self._reach(broker_id, address), name=f"mqspark-reach-{broker_id}"
                )
                self._tries[broker_id] = task
                task.add_done_callback(lambda _, broker_id=broker_id: self._tries.pop(broker_id, None))  # type: ignore[misc]

    async def _reach(self, broker_id: int, address: str) -> None:
        try:
            connection = await self._connect(address, TRY_S)
            try:
                await connection.request(RequestCode.EXCHANGE_BROKER_HA_INFO, None, timeout_s=TRY_S)
            finally:
                connection.close()
        except REQUEST_ERRORS as error:
            self._reached.discard(broker_id)
            what = "replica %d at %s cannot be reached: %s"
            self._outages.failed(broker_id, None, what, broker_id, address, error)
            return
        self._outages.over(broker_id, "replica %d at %s is reached again", broker_id, address)
        self._reached.add(broker_id)

    def _note_rival(self, address: str, answer: Command) -> None:
        """Only a leader says by which state it decides."""
        state_id = answer.header(BrokerHeartbeatResponseHeader).state_id
        if state_id is not None:
            self._rivals.claims(address, state_id)
        elif answer.code == ResponseCode.CONTROLLER_NOT_LEADER:
            self._rivals.yields(address)

    def _log(self) -> LogState:
        core = self.parts.core if self.parts is not None else None
        if core is None or core.role.epochs is None:
            return self._last_log
        store, replicas = core.store, core.role.replicas
        epoch = replicas.confirmed_epoch if isinstance(replicas, EpochReplicas) else -1
        self._last_log = LogState(
            core.role.epochs.last_number,
            store.log.position,
            max(0, replicas.confirmed),
            epoch,
            store.member.damage,
            store.log_damage.damaged_bytes,
        )
        return self._last_log

    _last_log = LogState(-1, 0, 0)

    # --- the part ---

    async def _keep_part(self) -> None:
        polled_s = led_s = checked_s = -1e9
        loop, config = asyncio.get_running_loop(), self.settings.broker
        while not self._is_ending:
            try:
                if not self._is_registered:
                    await self._ask_leader(self._manager.register(self.address, self._log()))
                    self._is_registered = True
                    if self._leader:  # an election counts who was heard
                        await self._send_heartbeat(self._leader)
                now_s = loop.time()
                if not self._leader or now_s - led_s >= config.sync_controller_metadata_period / 1000:
                    led_s = now_s
                    self._leader = await self._find_leader()
                if (
                    self._manager.is_told
                    or now_s - polled_s >= config.sync_broker_metadata_period / 1000
                    or self.term is None
                    or self.term.master_id is None
                    or self.term.is_over
                    or self.term.is_unsure
                    or (self.term.is_master and not self.term.holds)
                ):
                    polled_s = now_s
                    self._manager.is_told = False
                    if not await self._ask_leader(self._manager.poll(self.term)) and not config.async_learner:
                        await self._ask_leader(self._manager.elect())
                    self._outages.over("part", "controllers answer again")
                await self._follow_decision()
                if now_s - checked_s >= config.check_sync_state_set_period / 1000 or self._set_is_wrong():
                    checked_s = now_s
                    await self._alter()
            except NotNow as error:
                if isinstance(error, NotRegistered):
                    self._is_registered = False
                self._outages.failed("part", str(error), "%s; trying again", error)
                await asyncio.sleep(CONTROLLER_RETRY_S)
            except REQUEST_ERRORS as error:
                self._outages.failed("part", error, "controllers: %s; trying again", error)
                await asyncio.sleep(CONTROLLER_RETRY_S)
            await asyncio.sleep(STEP_S)

    async def _follow_decision(self) -> None:
        decision, term = self._manager.decision, self.term
        if decision is None or term is None or decision.epoch < term.epoch:
            return
        if decision.epoch == term.epoch:
            self._follow_address(term, decision.master_id, decision.master_address)
            return
        change = Term(self.clock, term.broker_id, self.settings.broker.controller_heart_beat_timeout_mills)
        change.begin(decision.epoch, decision.master_id, decision.master_address)
        change.decided(decision.members, decision.set_epoch)
        change.least, change.given_up = decision.least, decision.given_up
        self._follows_since_ms = self.clock.monotonic_ms()
        metadata = self.parts.core.role.metadata if self.parts is not None else None
        change.topics_known_at = None if metadata is None else metadata.topics_known_at
        if term.is_master and change.is_master and self.parts is not None:
            self._continue_in_epoch(term, change)
            return
        if term.is_master:
            term.is_over = True
        if not term.is_master and not change.is_master:
            term.begin(decision.epoch, decision.master_id, decision.master_address)
            term.decided(decision.members, decision.set_epoch)
            term.given_up = decision.given_up
            if self.parts is not None and self.parts.following is not None:
                self.parts.following.master_changed()
            self._placed.set()
            log.info("follows %s in epoch %d", decision.master_address, decision.epoch)
            return
        log.info("becomes %s in epoch %d", "the master" if change.is_master else "a slave", decision.epoch)
        async with self._changing:
            sent_ms = self.clock.monotonic_ms()
            await self._change_part(change)
        change.renewed(sent_ms)
        self._replicated()
        self._placed.set()

    def _follow_address(self, term: Term, master_id: int, address: str) -> None:
        """The master of this epoch may have been started again at another address."""
        if master_id != term.master_id or address == term.master_address:
            return
        log.info("the master of epoch %d is at %s now", term.epoch, address)
        term.master_address = address
        if not term.is_master and self.parts is not None and self.parts.following is not None:
            self.parts.following.master_changed()

    def _continue_in_epoch(self, term: Term, change: Term) -> None:
        """This broker was elected again: only the epoch is new."""
        parts = self.parts
        if parts is None or parts.core.role.epochs is None:
            return
        begin_term(parts.core.role.epochs, change.epoch, parts.core.store.log.position)
        term.begin(change.epoch, term.broker_id, change.master_address)
        term.decided(change.sync_set, change.set_epoch)
        term.least = change.least
        log.info("stays the master in epoch %d", change.epoch)

    def _set_is_wrong(self) -> bool:
        replicas = self.parts.core.role.replicas if self.parts is not None else None
        if not isinstance(replicas, EpochReplicas):
            return False
        is_unsettled = replicas.must_settle or (self.term is not None and self.term.is_unsure)
        return is_unsettled or replicas.wanted_set() is not None

    async def _alter(self) -> None:
        parts, term = self.parts, self.term
        replicas = None if parts is None else parts.core.role.replicas
        if term is None or not isinstance(replicas, EpochReplicas):
            return
        wanted = replicas.wanted_set()
        if wanted is None and not (term.holds and (term.is_unsure or replicas.must_settle)):
            return
        try:
            await self._ask_leader(
                self._manager.settle(term, self._log())
                if wanted is None
                else self._manager.alter(term, self._log(), wanted)
            )
            log.info("the SyncStateSet is %s", sorted(term.sync_set))
        finally:
            self._replicated()  # also after a refusal: requested members may no longer count
