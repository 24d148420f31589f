"""The broker as a core: commands of sessions in, frames and blocking jobs out.

    received   passes each command to its handler; sends go into the store's pending buffer
    work       runs a slice of a long answer
    turn       writes everything appended since the last turn at once, and sends the answers that this completes
    progress   after a sync: sends the answers that waited for it and serves parked pulls
    tick       handles timeouts (clients, locks, parked requests) and rates

The shell calls these from one thread, runs ``jobs`` in another, and sends the requests of ``publication`` to name
servers when they are due.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from msgspec import Struct

from mqspark.base.bounded import Bounded
from mqspark.base.clock import Clock
from mqspark.base.config import ForeignKeys, no_foreign_keys
from mqspark.base.shares import Shares
from mqspark.broker.admin.runtime import runtime_table
from mqspark.broker.brokerbounds import BrokerBounds
from mqspark.broker.brokerrequests import ACK, BrokerRequests
from mqspark.broker.brokerservices import BrokerServices
from mqspark.broker.brokertables import BrokerTables
from mqspark.broker.config import BrokerConfig
from mqspark.broker.group.membership import MemberNotices
from mqspark.broker.pop.ackrun import AckRun
from mqspark.broker.pop.pop_service import PopService
from mqspark.broker.prints import BrokerPrints
from mqspark.broker.pull.lookups import LookupProcessor
from mqspark.broker.pull.pull import PullProcessor
from mqspark.broker.replication.acting import ActingMaster
from mqspark.broker.replication.replicas import Replicas
from mqspark.broker.replication.role import Role
from mqspark.broker.replication.term import Term
from mqspark.broker.rounds import Rounds
from mqspark.broker.schemaregistry.schemaregistry import Compute
from mqspark.broker.send.directsends import DirectSends
from mqspark.broker.service import TICK_MS
from mqspark.broker.state.acks import Acks, Deferred
from mqspark.broker.state.state import BrokerState, Random
from mqspark.message import new_unique_id
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command
from mqspark.protocol.dispatch import Handler, dispatch
from mqspark.protocol.extending import Extensions, TappedSession
from mqspark.protocol.session import Session, Take
from mqspark.store.disk.configfile import ConfigFile
from mqspark.store.disk.diskjobs import Job, StoreProgress
from mqspark.store.disk.files import usable_memory_bytes
from mqspark.store.store import MessageStore

if TYPE_CHECKING:  # imported where users have to log in
    from mqspark.auth.authority import Authority
    from mqspark.auth.gate import Gate

_SEND, _SEND_OLD = int(RequestCode.SEND_MESSAGE_V2), int(RequestCode.SEND_MESSAGE)


def _leave(session: Session, data: bytes, at: int) -> int:
    """``BrokerCore.take`` where every request goes the long way."""
    return at


class _AtHand(Struct, frozen=True, gc=False):
    """What every turn looks at. Most find nothing in the tables, and to look costs less than to call."""

    replicas: Replicas
    acting: ActingMaster | None
    changed_groups: Collection[object]
    acknowledged: Collection[object]
    pulled: Collection[object]
    popped: Collection[object]
    pops_to_answer: Deferred
    pops_to_settle: Deferred
    parked_pulls: Collection[object]

    @staticmethod
    def of(role: Role, shared: BrokerTables, pop: PopService, pulls: PullProcessor) -> _AtHand:
        return _AtHand(
            role.replicas,
            role.acting,
            shared.member_notices.changed,
            pop.acknowledged,
            pulls.given,
            pop.given,
            *pop.awaited,
            pulls.parked.requests,
        )


GRPC_PORT = "grpcServerPort"
"""In the table of code 28: where clients of gRPC reach the broker."""


class BrokerCore:
    """``store`` must be open. Raises StoreCorrupt when a file of ``config/`` cannot be read."""

    grpc_port = 0
    """The port of the shell for clients of gRPC; 0: there is none. Set by the shell."""

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        clock: Clock,
        *,
        random: Random,
        outbox: list[Session] | None = None,
        config_file: Callable[[str], ConfigFile] | None = None,
        new_unique_id: Callable[[], str] = new_unique_id,
        memory_bytes: int | None = None,
        foreign_keys: ForeignKeys = no_foreign_keys,
        shell_settings: Mapping[str, str] | None = None,
        authority: Authority | None = None,
        term: Term | None = None,
        settings_file: ConfigFile | None = None,
        more_handlers: Mapping[int, Handler] = MappingProxyType({}),
        extensions: Extensions | None = None,
        utc_offset_ms: Callable[[int], int] = lambda now_ms: 0,
        compute: Compute | None = None,
    ) -> None:
        """``authority``: None lets everybody do everything. ``shell_settings``: what GET_BROKER_CONFIG shows beside the
        settings of the core. ``settings_file`` merges changed settings into its content; None: they last until the end.
        ``term``: in controller mode, this broker's part; a changed part needs a new core. ``more_handlers``: the
        handlers of the shell. ``extensions``: None if there are none. ``utc_offset_ms``: the offset of local time,
        whose midnights divide the day counters. ``compute``: as of ``SchemaRegistry``."""
        self.config = config
        self.store = store
        self.authority = authority
        self.extensions = extensions
        self.outbox: list[Session] = outbox if outbox is not None else []
        member_notices = MemberNotices(config)
        self.state = state = BrokerState(
            config,
            store,
            clock,
            machine_bytes=memory_bytes or usable_memory_bytes(),
            random=random,
            new_unique_id=new_unique_id,
            utc_offset_ms=utc_offset_ms,
            members_changed=member_notices.note,
        )
        self.shared = shared = BrokerTables(
            state, member_notices, config_file or store.config_file, settings_file, authority
        )
        self.publication = shared.publication
        self._saved = shared.saved

        # What it does by itself, and its part in its set.
        self.acks = acks = Acks(clock, state.stats.rpc)
        lookups = LookupProcessor(state)
        self.services = services = BrokerServices(shared, acks, compute)
        self.transactions, self.timers, self.pop = services.transactions, services.timers, services.pop
        self.role = role = Role(
            state, term, authority, shared.modes, services.delays, self.timers, shared.table_notices
        )
        self._acked = 0
        """The log position up to which this broker alone would answer."""

        # What it answers.
        self.requests = requests = BrokerRequests(
            shared, acks, role, services, lookups,
            all_wait=term is not None,  # a master that has been replaced must not acknowledge anything
        )  # fmt: skip
        self.pulls = requests.pulls
        self._at_hand = _AtHand.of(role, shared, self.pop, self.pulls)
        requests.serve(
            self.runtime_info, foreign_keys, shell_settings or {}, more_handlers, extensions, authority
        )
        self.serve(requests.handlers)

        # What limits and watches it.
        prints = BrokerPrints(clock, store, role.replicas, acks, self.pulls.parked, state.long_work)
        self._rounds = Rounds(state, acks, prints, is_slave=role.is_slave)
        self.bounds = BrokerBounds(state, authority, self._bounded())
        self.tables = self.bounds.tables
        self._is_quiet = False

    def _bounded(self) -> Iterator[Bounded]:
        """All that peers can grow."""
        state, authority, requests = self.state, self.authority, self.requests
        parts = (
            state.clients, state.filters, state.topics, state.mappings, state.peers, state.subscriptions,
            state.offsets, state.locks, state.stats, state.slow_readers, state.cold_reads, state.halves,
            self.pulls.held, self.pulls.parked, self.shared.modes, self.shared.changes, requests.waiting_reads,
            requests.routes, self.transactions, self.timers.metrics, self.extensions, authority,
            None if authority is None else authority.users,
        )  # fmt: skip
        yield from (part.ledger for part in parts if part is not None)
        for service in (self.pop, self.services.lite, self.services.schemas, self.store, self.role.acting):
            if service is not None:
                yield from service.ledgers

    def go_online(self) -> None:
        """Start the services of a master that has come back. Raises StoreCorrupt."""
        self.role.pre_online = None
        self.services.begin()

    # --- Core ---

    def connected(self, session: Session) -> None:
        """A client is unknown until its first heartbeat."""
        self.state.stats.connected += 1

    def received(self, session: Session, commands: Iterable[Command]) -> None:
        state = self.state
        dispatch(
            self.handlers, session, commands, state.long_work, state.calls.answered, state.stats.rpc.refused
        )

    def acknowledge(self, session: Session, run: AckRun) -> bool:
        """Take acknowledgements without requests; a turn follows. False: something stands around such requests, so they
        have to be made."""
        if self.requests.plain_ack is None or self.handlers.get(ACK) is not self.requests.plain_ack:
            return False
        self.pop.acknowledge(session, run)
        return True

    @property
    def direct(self) -> DirectSends:
        """For plain sends of clients in this process."""
        return self.requests.sends.direct

    def serve(self, handlers: dict[int, Handler]) -> None:
        """Answer by these handlers from now on."""
        self.handlers = handlers
        sends = self.requests.sends
        # Otherwise users, extensions or traces stand around sends, or these must not be served.
        is_bare = all(handlers.get(code) is sends.handlers[code] for code in (_SEND, _SEND_OLD))
        self.take: Take = sends.runs.take if is_bare else _leave
        sends.direct.is_open = is_bare

    @property
    def work_waits(self) -> bool:
        return bool(self.state.long_work.running)

    def work(self) -> bool:
        return self.state.long_work.step()

    def disconnected(self, session: Session) -> None:
        self.state.stats.closed += 1
        if isinstance(session, TappedSession):
            session.forget()
        if self.authority is not None:
            self.authority.left(session)
        self.state.long_work.begin(None, self.state.clients.disconnected(session))
        self.state.calls.disconnected(session)

    def turn(self) -> None:
        """Write what this turn appended, and send the answers that this completes."""
        at_hand = self._at_hand
        if at_hand.changed_groups:
            self.shared.member_notices.end_turn(self.state.long_work)
        if at_hand.acknowledged:
            self.pop.before_commit()
        if at_hand.acting is not None:
            at_hand.acting.before_commit()
        self.acks.end_turn()
        self.progress(self.store.pipeline.commit())
        if self.acks.unsafe:
            self.acks.release_unsafe(written=self.store.pipeline.write_now())
        if at_hand.pulled:
            self.pulls.end_turn()
        if at_hand.popped:
            self.pop.end_turn()

    def turn_taken(self) -> None:
        """``turn`` when there was nothing since the last one but what ``take`` has taken."""
        if self.acks.unsafe or not self.store.pipeline.gathers:
            self.turn()
        else:
            self.acks.end_turn()

    def progress(self, progress: StoreProgress) -> None:
        """The store has written or synced more: notify those who wait for it."""
        at_hand = self._at_hand
        self._acked = progress.acked
        self.replicated()
        if at_hand.pops_to_answer.waiting or at_hand.pops_to_settle.waiting or progress.failed is not None:
            self.pop.progress(progress)
            if progress.failed is not None:
                self.acks.fail(f"the store failed: {progress.failed}")
        if progress.arrivals:
            if self.acks.took_ms:
                self.state.stats.puts_took(progress.arrivals, self.acks.took_ms)
            self._arrived(progress.arrivals)

    def _arrived(self, arrivals: Sequence[tuple[str, int, int]]) -> None:
        puts = self.store.appender.put_count
        if self._at_hand.parked_pulls:
            self.pulls.arrived(arrivals)
        if (hooks := self.requests.hooks) is not None:
            hooks.arrived(arrivals)
        self.services.arrived(arrivals)
        if self.store.appender.put_count != puts:  # for example a check point that a pop's answer waits for
            self.progress(self.store.pipeline.commit())

    def older_fetched(self, key: Hashable, queues: Sequence[tuple[str, int]]) -> None:
        """The data that ``NotAtHand`` named ``key`` was fetched, or cannot be read: handle the requests that wait for
        it. ``queues``: their topics and queue ids."""
        self.requests.waiting_reads.fetched(key)
        self._arrived(
            [(topic, queue_id, self.store.offsets.max_offset(topic, queue_id)) for topic, queue_id in queues]
        )

    def replicated(self) -> None:
        """A slave may have more of the log, or have left: notify those who wait for it."""
        replicas = self._at_hand.replicas
        if not replicas.may_lack:
            self.acks.release(self._acked)
            return
        confirmed = replicas.confirmed
        self.acks.release(min(self._acked, confirmed))
        gates_readers = replicas.gates_readers
        if gates_readers and (arrivals := self.store.confirm(confirmed)):
            self._arrived(arrivals)
        if self.store.condition.refusal is not None or self.config.min_in_sync_replicas > 1 or gates_readers:
            self.store.condition.refuse(replicas.shortage)

    def tick(self) -> int:
        state = self.state
        self._rounds.tick()
        self.pulls.expire()
        self.requests.waiting_reads.expire()
        self.requests.routes.expire()
        state.peers.expire()
        state.calls.expire()
        if self.acks:
            self._expire_sends()
        self.shared.changes.answer_due()
        wait_ms = TICK_MS
        if not self._is_quiet:
            wait_ms = self.services.tick(wait_ms)
            if self.role.acting is not None:
                wait_ms = min(wait_ms, self.role.acting.tick())
        self.turn()
        return wait_ms

    def _expire_sends(self) -> None:
        self.acks.expire(
            self.config.slave_timeout,
            ResponseCode.FLUSH_SLAVE_TIMEOUT,
            "the replication did not finish in time",
            up_to=self._acked,
        )
        if len(self.acks) and self.acks.waiting[0][0] > self._acked:
            self.acks.expire(
                self.config.sync_flush_timeout,
                ResponseCode.FLUSH_DISK_TIMEOUT,
                "the flush did not finish in time",
            )

    # --- blocking work ---

    def jobs(self) -> list[Job]:
        """Due work for a worker thread. Called about once a second, and not again before the previous jobs are
        done."""
        self.role.forget_epochs()
        deletions = self.store.deletions
        jobs: list[Job] = []
        if deletions.unsaved:
            # Its first files go at once: on a full disk the tables need their space.
            jobs += [deletions.save_job(), deletions.removal_job(1)]
        jobs.extend(self._auth_jobs())
        jobs.extend(self._saved.jobs())
        jobs.extend(self.timers.jobs())
        jobs.extend(self.store.maintenance())
        self.state.long_work.begin(None, self.store.follow_with_index())
        self.state.long_work.begin(None, deletions.forget_before(self.store.log.min_offset))
        if deletions.behind:  # last: nobody waits for it
            jobs.append(deletions.removal_job())
        return jobs

    @property
    def jobs_due(self) -> bool:
        """Whether ``jobs`` should be called at once: an operator changed something, or the log needs space."""
        store, authority = self.store, self.authority
        return (
            store.room_due
            or self._saved.is_due
            or store.deletions.behind
            or (authority is not None and authority.jobs_due)
        )

    def _auth_jobs(self) -> list[Job]:
        return [] if self.authority is None else self.authority.jobs()

    def quiesce(self) -> None:
        """Stop the services. Anything they did after the last sync would be repeated after the next start."""
        self._is_quiet = True

    def shutdown(self) -> list[Job]:
        """The last saves, run before the store is closed. The broker must get no command after this."""
        self.transactions.stop()
        if self.role.acting is not None:
            self.role.acting.stop()
        jobs: list[Job] = [self.store.deletions.job()] if self.store.deletions.behind else []
        jobs.extend(self._auth_jobs())
        jobs.extend(self._saved.last_jobs())
        return jobs + self.timers.jobs(final=True)

    # --- views ---

    def runtime_info(self) -> dict[str, str]:
        """The table of code 28."""
        table = runtime_table(self.state, self.acks)
        table |= self.services.delays.runtime_info() | self.timers.runtime_info()
        table |= self.bounds.as_text()
        if self.grpc_port:
            table[GRPC_PORT] = str(self.grpc_port)
        return table

    @property
    def gate(self) -> Gate | None:
        """None: everybody may do everything."""
        return None if self.authority is None else self.authority.gate

    @property
    def decisions(self) -> dict[str, int] | None:
        """How many requests were allowed and refused; None without users."""
        gate = self.gate
        return None if gate is None else dict(gate.decisions)

    @property
    def shares(self) -> list[Shares]:
        """What users hold, by kind; empty without users."""
        return self.bounds.shares

    @property
    def sends_refused(self) -> str | None:
        """Why this broker refuses sends that it should take; None if it takes them, or its master does."""
        refusing = self.store.condition.why_refusing
        return (
            refusing
            if refusing is not None or self.role.follower is not None
            else self.requests.sends.why_refusing
        )

    @property
    def delay_problem(self) -> str | None:
        """Why due delayed or timed messages are not delivered; None if they are."""
        return self.services.delays.problem or self.timers.problem
