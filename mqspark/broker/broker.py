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

import contextlib
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from mqspark.bounded import Ledger, TableBudget, Tables
from mqspark.broker.admin.processors import admin_handlers
from mqspark.broker.admin.relays import RelayProcessor
from mqspark.broker.admin.runtime import runtime_table
from mqspark.broker.admin.views import groups_view, topics_view
from mqspark.broker.changeanswers import ChangeAnswers
from mqspark.broker.config import BrokerConfig, BrokerRole
from mqspark.broker.group.membership import ClientProcessor, MemberNotices
from mqspark.broker.hooked import BrokerHooks
from mqspark.broker.lite.lite_service import LiteService
from mqspark.broker.pop.assignment import AssignmentProcessor, RequestModes
from mqspark.broker.pop.cluster_routes import ClusterRoutes
from mqspark.broker.pop.foreignchecks import ForeignChecks
from mqspark.broker.pop.pop_service import PopService
from mqspark.broker.prints import BrokerPrints
from mqspark.broker.pull.lookups import LookupProcessor
from mqspark.broker.pull.pull import PullProcessor
from mqspark.broker.pull.waiting_reads import WaitingReads
from mqspark.broker.registration import Publication
from mqspark.broker.replication.acting import ActingMaster, others_answers
from mqspark.broker.replication.epochlink import (
    UNSURE,
    ControlledReplicas,
    EpochFollower,
    HaViews,
    reads_once_sure,
)
from mqspark.broker.replication.follower import Follower
from mqspark.broker.replication.metadata import Metadata, adopt_queues
from mqspark.broker.replication.preonline import PreOnline
from mqspark.broker.replication.replicas import Replicas
from mqspark.broker.replication.slave import refusals, refusals_before
from mqspark.broker.replication.tablenotices import TableNotices
from mqspark.broker.replication.term import Term
from mqspark.broker.savedstate import SavedState
from mqspark.broker.send.fastfail import FastFail
from mqspark.broker.send.replies import ReplyProcessor
from mqspark.broker.send.retry import SendBackProcessor
from mqspark.broker.send.send import SendProcessor
from mqspark.broker.service import Service
from mqspark.broker.state.acks import Acks
from mqspark.broker.state.calls import Calls
from mqspark.broker.state.changes import PendingChanges
from mqspark.broker.state.coldreads import ColdReads
from mqspark.broker.state.groups import ClientGroups
from mqspark.broker.state.heldhalves import HeldHalves
from mqspark.broker.state.locks import QueueLocks
from mqspark.broker.state.slowreaders import SlowReaders
from mqspark.broker.state.state import BrokerState, Random
from mqspark.broker.state.writer import Writer
from mqspark.broker.statictopic.mappings import Mappings
from mqspark.broker.statictopic.partcleaning import PartCleaner
from mqspark.broker.statictopic.peers import Peers
from mqspark.broker.stats.meters import SAMPLE_INTERVAL_MS
from mqspark.broker.stats.stats import Stats
from mqspark.broker.tables.consumer_filters import ConsumerFilters
from mqspark.broker.tables.consumer_offsets import ConsumerOffsets
from mqspark.broker.tables.subscriptions import SubscriptionGroups
from mqspark.broker.tables.topics import Topics
from mqspark.broker.timer.delays import DelayService
from mqspark.broker.timer.recall import RecallProcessor
from mqspark.broker.timer.timers import TimerService
from mqspark.broker.touched import Touched
from mqspark.broker.transaction.transactions import TransactionService
from mqspark.clock import Clock
from mqspark.config import ForeignKeys, no_foreign_keys
from mqspark.message import new_unique_id
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command
from mqspark.protocol.dispatch import Handler, dispatch, merged
from mqspark.protocol.extending import Extensions, TappedSession
from mqspark.protocol.session import Session
from mqspark.shares import Holders, Shares, TimedShares
from mqspark.store.config import StoreConfig
from mqspark.store.disk.configfile import ConfigFile
from mqspark.store.disk.files import usable_memory_bytes
from mqspark.store.disk.flush import Job
from mqspark.store.log.epochs import EpochFile, begin_term
from mqspark.store.store import MessageStore, StoreProgress
from mqspark.store.timer.timerfiles import TimerFiles

if TYPE_CHECKING:  # imported where users have to log in
    from mqspark.auth.authority import Authority
    from mqspark.auth.gate import Gate

__all__ = ["BrokerCore"]

_UNTIMED = frozenset(
    {
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.PULL_MESSAGE,
        RequestCode.LITE_PULL_MESSAGE,
    }
)
"""Requests whose answers are counted where they are sent."""
CLIENT_SCAN_INTERVAL_MS = 10_000
TICK_MS = 200
"""The longest time between two ticks, and so the resolution of parked pulls' timeouts."""


class BrokerCore:
    """``store`` must be open. Raises StoreCorrupt when a file of ``config/`` cannot be read."""

    def __init__(
        self,
        config: BrokerConfig,
        store_config: StoreConfig,
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
    ) -> None:
        """``authority``: None lets everybody do everything. ``shell_settings``: what GET_BROKER_CONFIG shows beside the
        settings of the core. ``settings_file`` merges changed settings into its content; None: they last until the end.
        ``term``: in controller mode, this broker's part; a changed part needs a new core. ``more_handlers``: the
        handlers of the shell. ``extensions``: None if there are none. ``utc_offset_ms``: the offset of local time,
        whose midnights divide the day counters."""
        self.config = config
        self.term = term
        self.store = store
        self.authority = authority
        self.outbox: list[Session] = outbox if outbox is not None else []
        self._clock = clock
        topics = Topics(config, clock, lmq=store_config.enable_lmq)
        stats = Stats(
            clock,
            store.log.position,
            cluster=config.broker_cluster_name,
            max_bytes=lambda: config.max_statistics_bytes,
            utc_offset_ms=utc_offset_ms,
        )
        mappings = Mappings(config, clock)
        groups, filters = SubscriptionGroups(config, clock), ConsumerFilters(config, clock)
        self._member_notices = MemberNotices(config)
        self.state = state = BrokerState(
            config=config,
            store_config=store_config,
            store=store,
            clock=clock,
            random=random,
            new_unique_id=new_unique_id,
            topics=topics,
            mappings=mappings,
            peers=Peers(config, clock),
            subscriptions=groups,
            offsets=ConsumerOffsets(
                clock,
                version_step=config.consumer_offset_update_version_step,
                lmq=store_config.enable_lmq,
                max_bytes=lambda: config.max_offset_table_bytes,
            ),
            filters=filters,
            clients=ClientGroups(config, clock, filters, self._member_notices.note),
            locks=QueueLocks(config, clock),
            stats=stats,
            writer=Writer(store, topics, mappings, stats),
            calls=Calls(clock),
            slow_readers=SlowReaders(config, clock, store, groups),
            cold_reads=ColdReads(config, store_config, clock),
            halves=HeldHalves(
                clock,
                lambda: config.max_half_table_bytes,
                lambda: store_config.file_reserved_time * 3_600_000,
            ),
            delayed=TimedShares(
                "delayedMessages",
                lambda: config.max_delayed_messages_per_user,
                "maxDelayedMessagesPerUser",
                clock.now_ms,
            ),
            check_points=TimedShares(
                "checkPoints",
                lambda: config.max_check_points_per_user,
                "maxCheckPointsPerUser",
                clock.now_ms,
            ),
            acknowledgements=TimedShares(
                "acknowledgements",
                lambda: config.max_acknowledgements_per_user,
                "maxAcknowledgementsPerUser",
                clock.now_ms,
            ),
        )
        if config_file is None:
            config_file = store.config_file
        self.publication = Publication(config, topics, mappings, lambda: self._changes.answer_due())
        self._changes = PendingChanges(
            config,
            clock,
            published_generation=lambda: self.publication.known_generation,
            is_deleted=lambda: not store.deletions.behind,
            long_work=state.long_work,
            rpc=stats.rpc,
            changed=lambda: self._notices.changed(),
        )
        self._notices = TableNotices()
        store.deletions.on_removed = self._changes.answer_due
        store.compact_duty.topics = topics.compacted
        modes = RequestModes(lambda: config.max_group_table_bytes)
        self._saved = SavedState(state, modes, config_file, self._changes.answer_due, settings_file)
        store_host = store.store_host
        self.acks = Acks(clock, stats.rpc)
        self.delays = DelayService(state, config_file("delayOffset.json"))
        self.transactions = TransactionService(state, self.acks, store_host)
        timer_files = TimerFiles(
            Path(store_config.store_path_root_dir),
            store.files,
            precision_ms=store_config.timer_precision_ms,
            log_file_bytes=store_config.mapped_file_size_timer_log,
            on_failure=store.condition.distrust,
            note=store.damages.note,
        )
        self.timers = TimerService(state, timer_files, config_file("timermetrics"))
        state.writer.diversions += [
            self.delays.divert,
            self.timers.divert,
            self.transactions.check_draft,
        ]
        machine_bytes = memory_bytes or usable_memory_bytes()
        lookups = LookupProcessor(state, machine_bytes)
        self.pop = PopService(
            state,
            self.acks,
            starts_in_memory=lookups.starts_in_memory,
            order_file=config_file("consumerOrderInfo.json"),
            timer_is_idle=self.timers.is_idle,
        )
        self.lite = LiteService(state, lookups.starts_in_memory)
        state.remove_lite_topics = self.lite.life.remove_all_of
        self.pop.serve_lite(self.lite.pops)
        self.follower: Follower | None = None
        """Set on a slave, which runs no services: its master's messages and progress are all it has."""
        self.metadata: Metadata | None = None
        """Set on a slave."""
        self.epochs: EpochFile | None = None
        """Set in controller mode."""
        self.pre_online: PreOnline | None = None
        """Set on a master with enableSlaveActingMaster, until ``go_online``: its services do not run, because a slave
        may have acted in its place."""
        if term is not None:
            self.epochs = EpochFile(store.root_file(store.paths.epochs), store.log.position)
            if term.is_master:
                begin_term(self.epochs, term.epoch, store.log.position)
        self._services: list[Service] = []
        if config.broker_role is BrokerRole.SLAVE:
            users = None if authority is None else authority.follow()
            metadata = self.metadata = Metadata(state, modes, self.delays, self.timers, users)
            self.follower = Follower(config, store, clock)
            if term is not None and self.epochs is not None:
                self.follower = EpochFollower(
                    config, store, clock, term, self.epochs, lambda: metadata.is_fresh
                )
            store.copy.follow()
            self.timers.begin_following()
            for table in (*self.delays.saved_tables(), *self.timers.saved_tables()):
                table.load()
                self._saved.add([table])
        else:
            self._services += [self.delays, self.timers]
            if config.enable_slave_acting_master and not config.skip_pre_online:
                self.pre_online = PreOnline(config, state, self.delays, self.timers)
            for service in self._services:
                service.load()
                self._saved.add(service.saved_tables())
            if self.pre_online is None:
                self.go_online()
        self.acting: ActingMaster | None = None
        """Set with enableSlaveActingMaster."""
        if config.enable_slave_acting_master:
            self.acting = acting = ActingMaster(
                config, state, self.follower, self.delays, self.timers, lookups.starts_in_memory
            )
            if self.metadata is not None:
                self.metadata.may_copy_progress = lambda: acting.may_copy_progress

        self.replicas = Replicas(config, store, clock, self.follower)
        if term is not None and self.epochs is not None:
            following = self.follower if isinstance(self.follower, EpochFollower) else None
            self.replicas = ControlledReplicas(config, store, clock, term, self.epochs, following)
        store.condition.refuse(self.replicas.shortage)
        if self.replicas.gates_readers:
            store.confirm(self.replicas.confirmed)
        self._acked = 0
        """The log position up to which this broker alone would answer."""
        follower = self.follower
        self.pulls = PullProcessor(
            state,
            machine_bytes,
            None if follower is None else lambda: follower.address is not None,
            lambda: "" if self.replicas.is_sure else UNSURE,
            lambda: self.acting is not None and self.acting.is_acting,
        )
        changes = ChangeAnswers(state, self._changes, self._saved, self.acks, self.pulls.remapped)
        self._sends = SendProcessor(
            state,
            self.acks,
            store_host,
            changes.once_known,
            # A master that has been replaced must not acknowledge anything.
            all_wait=term is not None,
        )
        if config.enable_slave_acting_master:
            self._sends.foreign = ForeignChecks(state)
        self._part_cleaner = PartCleaner(
            mappings,
            state.peers,
            clock,
            store.offsets.bounds,
            lambda: store.cleaner.is_hour,
        )
        self.routes = ClusterRoutes(state)
        self._prints = BrokerPrints(clock, store, self.replicas, self._waiting)
        admin = admin_handlers(
            state,
            self.runtime_info,
            self._settings_changed,
            changes.changed,
            changes.remapped,
            changes.keep_settings,
            foreign_keys,
            shell_settings or {},
        )
        self.overload = FastFail(config, admin)
        self.handlers: dict[int, Handler] = merged(
            admin,
            lookups.handlers,
            ClientProcessor(state).handlers,
            self.pulls.handlers,
            RelayProcessor(state, state.calls, self.pulls.answer_resets).handlers,
            self._sends.handlers,
            SendBackProcessor(state, self.acks).handlers,
            RecallProcessor(state, self.acks).handlers,
            self.transactions.handlers,
            ReplyProcessor(state, self._sends, store_host).handlers,
            self.pop.handlers,
            self.lite.handlers,
            self.delays.handlers,
            self.timers.handlers,
            self.replicas.handlers,
            AssignmentProcessor(state, modes, self.routes, changes.mode_changed).handlers,
            others_answers(config, state),
        )
        self.handlers.update(self._notices.watching(self.handlers))
        if term is not None and self.epochs is not None:
            if term.is_master:
                if term.topics_known_at is not None:
                    adopt_queues(topics, store, term.topics_known_at)
                topics.begin_epoch(term.epoch)
            shown = HaViews(config, store, term, self.epochs)
            self.handlers.update(shown.handlers)
        if isinstance(self.replicas, ControlledReplicas):
            self.handlers.update(reads_once_sure(self.handlers, self.replicas))
        if self.acting is not None:
            self.handlers.update(self.acting.handlers)
        if self.follower is not None:
            self.handlers.update(refusals())
            if self.acting is not None:
                self.handlers.update(self.acting.pop_handlers)
        elif self.pre_online is not None:
            self.handlers.update(refusals_before(self.handlers, lambda: self.pre_online is None))
        self.handlers = merged(self.handlers, more_handlers)
        self.waiting_reads = WaitingReads(
            clock, state.long_work, lambda: config.max_parked_bytes, lambda: config.archive_read_timeout
        )
        if store.reads.older is not None:
            self.handlers = self.waiting_reads.wrap(self.handlers)
        self.extensions = extensions
        self._hooks: BrokerHooks | None = None
        if extensions is not None:
            self.transactions.listeners = extensions.transactions
            hooks = self._hooks = BrokerHooks(extensions, store, config.broker_name, self._user_name)
            self.handlers = hooks.around(self.handlers)
        self.handlers = stats.rpc.timed(self.handlers, _UNTIMED)
        if authority is not None:
            self.handlers = authority.guard(self.handlers, Touched(state))
            authority.bound_connections()
            state.permits = authority.may
            state.clients.may_replace = authority.is_same_user
            state.subscriptions.limited_user = authority.limited_user
        self.table_budget = budget = TableBudget(lambda: config.tables_bound(machine_bytes), "maxTablesBytes")
        holders: Holders | None = None
        if authority is not None:
            holders = Holders(
                authority.limited_user,
                authority.limited,
                lambda: config.max_table_share_per_user,
                lambda: budget.bound,
            )
        for shares in (state.delayed, state.check_points, state.acknowledgements, state.calls.shares):
            shares.holders = holders
        self.tables = Tables(
            state.clients.ledger,
            state.filters.ledger,
            state.topics.ledger,
            state.mappings.ledger,
            state.peers.ledger,
            state.subscriptions.ledger,
            state.offsets.ledger,
            state.locks.ledger,
            state.stats.ledger,
            state.slow_readers.ledger,
            state.cold_reads.ledger,
            self.pulls.held.ledger,
            modes.ledger,
            self.pulls.parked.ledger,
            self.waiting_reads.ledger,
            self.routes.ledger,
            self._changes.ledger,
            self.transactions.ledger,
            state.halves.ledger,
            self.timers.metrics.ledger,
            *self.pop.ledgers,
            *self.lite.ledgers,
            *store.ledgers,
            *(() if extensions is None else (extensions.ledger,)),
            *(() if self.acting is None else self.acting.ledgers),
            *(() if authority is None else (authority.users.ledger, authority.ledger)),
            budget=budget,
            holders=holders,
        )
        self._is_quiet = False
        now_ms = clock.monotonic_ms()
        self._next_scan_ms = now_ms + CLIENT_SCAN_INTERVAL_MS
        self._next_sample_ms = now_ms

    def _user_name(self, session: Session) -> str:
        return "" if self.authority is None else self.authority.user_name(session)

    def go_online(self) -> None:
        """Start the services of a master. Raises StoreCorrupt."""
        self.pre_online = None
        for service in (self.transactions, self.pop, self.lite):
            service.load()
            self._saved.add(service.saved_tables())
            self._services.append(service)

    # --- Core ---

    def connected(self, session: Session) -> None:
        """A client is unknown until its first heartbeat."""
        self.state.stats.connected += 1

    def received(self, session: Session, commands: Iterable[Command]) -> None:
        state = self.state
        dispatch(
            self.handlers, session, commands, state.long_work, state.calls.answered, state.stats.rpc.refused
        )

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
        self._member_notices.end_turn(self.state.long_work)
        self.pop.before_commit()
        if self.acting is not None:
            self.acting.before_commit()
        self.acks.end_turn()
        self.progress(self.store.pipeline.commit())
        if self.acks.unsafe:
            self.acks.release_unsafe(written=self.store.pipeline.write_now())
        self.pulls.end_turn()
        self.pop.end_turn()
        self.publication.follow_topics()

    def progress(self, progress: StoreProgress) -> None:
        """The store has written or synced more: notify those who wait for it."""
        self._acked = progress.acked
        self.replicated()
        self.pop.progress(progress)
        if progress.failed is not None:
            self.acks.fail(f"the store failed: {progress.failed}")
        if progress.arrivals:
            if self.acks.took_ms:
                self.state.stats.puts_took(progress.arrivals, self.acks.took_ms)
            self._arrived(progress.arrivals)

    def _arrived(self, arrivals: Sequence[tuple[str, int, int]]) -> None:
        puts = self.store.appender.put_count
        self.pulls.arrived(arrivals)
        if self._hooks is not None:
            self._hooks.arrived(arrivals)
        for service in self._services if self.pre_online is None else ():
            service.arrived(arrivals)
        if self.store.appender.put_count != puts:  # for example a check point that a pop's answer waits for
            self.progress(self.store.pipeline.commit())

    def older_fetched(self, key: Hashable, queues: Sequence[tuple[str, int]]) -> None:
        """The data that ``NotAtHand`` named ``key`` was fetched, or cannot be read: handle the requests that wait for
        it. ``queues``: their topics and queue ids."""
        self.waiting_reads.fetched(key)
        self._arrived(
            [(topic, queue_id, self.store.offsets.max_offset(topic, queue_id)) for topic, queue_id in queues]
        )

    def replicated(self) -> None:
        """A slave may have more of the log, or have left: notify those who wait for it."""
        confirmed = self.replicas.confirmed
        self.acks.release(min(self._acked, confirmed))
        gates_readers = self.replicas.gates_readers
        if gates_readers and (arrivals := self.store.confirm(confirmed)):
            self._arrived(arrivals)
        if self.store.condition.refusal is not None or self.config.min_in_sync_replicas > 1 or gates_readers:
            self.store.condition.refuse(self.replicas.shortage)

    def tick(self) -> int:
        state = self.state
        now_ms = self._clock.monotonic_ms()
        if now_ms >= self._next_scan_ms:
            self._next_scan_ms = now_ms + CLIENT_SCAN_INTERVAL_MS
            state.long_work.begin(None, state.clients.expire(self.config.channel_expired_timeout))
            state.long_work.begin(None, state.locks.expire())
            state.long_work.begin(None, state.filters.clean())
        if now_ms >= self._next_sample_ms:
            self._next_sample_ms = now_ms + SAMPLE_INTERVAL_MS
            state.long_work.begin(None, state.stats.sample(state.topics, state.topics.is_stored))
            if state.stats.is_full_minute:
                self.acks.times.end_period()
        if self.follower is None:
            state.slow_readers.tick()
            self._part_cleaner.tick()
        state.cold_reads.tick()
        self._prints.tick()
        self.pulls.expire()
        self.waiting_reads.expire()
        self.routes.expire()
        state.peers.expire()
        state.calls.expire()
        if self.acks:
            self._expire_sends()
        self._changes.answer_due()
        wait_ms = TICK_MS
        if not self._is_quiet:
            for service in self._services if self.pre_online is None else ():
                wait_ms = min(wait_ms, service.tick())
            if self.acting is not None:
                wait_ms = min(wait_ms, self.acting.tick())
        self.turn()
        return wait_ms

    def _waiting(self) -> dict[str, tuple[int, int]]:
        """The number of waiting requests, and the wait of the first one in ms where that is known."""
        return {
            "sends": (len(self.acks), self.acks.waited_ms),
            "parked pulls": (self.pulls.parked.count, 0),
            "long work": (len(self.state.long_work), 0),
        }

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

    def validate(self) -> None:
        """Check the invariants of clients, locks, parked requests, POP and timers. For tests: it visits everything."""
        state = self.state
        pulls = self.pulls
        for part in (state.clients, state.filters, state.locks, state.cold_reads, pulls.parked, pulls.held):
            part.validate()
        self.pop.validate()
        self.lite.validate()
        self.timers.validate()
        if self.acting is not None:
            self.acting.validate()

    # --- blocking work ---

    def jobs(self) -> list[Job]:
        """Due work for a worker thread. Called about once a second, and not again before the previous jobs are
        done."""
        self._forget_epochs()
        jobs: list[Job] = [self.store.deletions.job()] if self.store.deletions.behind else []
        jobs.extend(self._auth_jobs())
        jobs.extend(self._saved.jobs())
        jobs.extend(self.timers.jobs())
        jobs.extend(self.store.maintenance())
        return jobs

    def _forget_epochs(self) -> None:
        """Writes when a whole epoch is gone. A disk that is full then has to be cleaned all the same, and a failed save
        is noticed by the store's maintenance: the next round tries again."""
        if self.epochs is not None:
            with contextlib.suppress(OSError):
                self.epochs.forget_before(self.store.log.min_offset)

    @property
    def jobs_due(self) -> bool:
        """Whether ``jobs`` should be called at once: an operator changed something, or the log needs space."""
        is_auth_due = self.authority is not None and self.authority.jobs_due
        return self.store.deletions.behind or self._saved.is_due or self.store.room_due or is_auth_due

    def _auth_jobs(self) -> list[Job]:
        return [] if self.authority is None else self.authority.jobs()

    def quiesce(self) -> None:
        """Stop the services. Anything they did after the last sync would be repeated after the next start."""
        self._is_quiet = True

    def shutdown(self) -> list[Job]:
        """The last saves, run before the store is closed. The broker must get no command after this."""
        self.transactions.stop()
        if self.acting is not None:
            self.acting.stop()
        jobs: list[Job] = [self.store.deletions.job()] if self.store.deletions.behind else []
        jobs.extend(self._auth_jobs())
        jobs.extend(self._saved.last_jobs())
        return jobs + self.timers.jobs(final=True)

    # --- views ---

    def runtime_info(self) -> dict[str, str]:
        """The table of code 28."""
        table = runtime_table(self.state, self.acks)
        table |= self.delays.runtime_info() | self.timers.runtime_info()
        budget = self.table_budget
        table["mqsparkTables"] = f"{budget.bytes} of {budget.bound} bytes, {budget.refused} refused"
        for bounded in self.tables:
            table[f"mqsparkTable_{bounded.name}"] = (
                f"{bounded.bytes} of {bounded.bound} bytes, {bounded.entries} entries, {bounded.refused} refused"
            )
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
        if self.authority is None:
            return []
        ledgers = [table for table in self.tables if isinstance(table, Ledger)]
        state = self.state
        others = state.delayed, state.check_points, state.acknowledgements, state.calls.shares
        return [*(each.shares for each in ledgers), *others]

    @property
    def delay_problem(self) -> str | None:
        """Why due delayed or timed messages are not delivered; None if they are."""
        return self.delays.problem or self.timers.problem

    def topics_view(self) -> list[dict[str, Any]]:
        return [topic for topic in topics_view(self.state) if topic is not None]

    def groups_view(self) -> list[dict[str, Any]]:
        return [group for group in groups_view(self.state) if group is not None]

    def _settings_changed(self) -> None:
        """UPDATE_BROKER_CONFIG has changed the settings objects."""
        self._sends.refresh_settings()
        self.overload.refresh_settings()
        self.store.refresh_settings()
        self.state.topics.follow_auto_create_setting()
