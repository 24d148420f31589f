"""The broker as a core: commands of sessions in, frames and blocking jobs out.

    received   passes each command to its handler; sends go into the store's pending buffer
    work       runs a slice of a long answer
    turn       writes everything appended since the last turn at once, and sends the answers that this completes
    progress   after a sync: sends the answers that waited for it and serves parked pulls
    tick       handles timeouts (clients, locks, parked requests) and rates

The shell calls these from one thread, runs ``jobs`` in another, and asks for ``registration`` when
``registration_due``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from mqspark.bounded import Ledger, TableBudget, Tables
from mqspark.broker.admin.processors import admin_handlers
from mqspark.broker.admin.relays import RelayProcessor
from mqspark.broker.admin.runtime import runtime_table
from mqspark.broker.admin.views import groups_view, topics_view
from mqspark.broker.config import BrokerConfig, BrokerRole
from mqspark.broker.group.membership import ClientProcessor, notify_members
from mqspark.broker.pop.assignment import AssignmentProcessor, RequestModes
from mqspark.broker.pop.cluster_routes import ClusterRoutes
from mqspark.broker.pop.pop_service import PopService
from mqspark.broker.pull.lookups import LookupProcessor
from mqspark.broker.pull.pull import PullProcessor
from mqspark.broker.registration import Registration, registrations
from mqspark.broker.replication.follower import Follower
from mqspark.broker.replication.metadata import Metadata
from mqspark.broker.replication.replicas import Replicas
from mqspark.broker.replication.slave import refusals
from mqspark.broker.send.fastfail import FastFail
from mqspark.broker.send.replies import ReplyProcessor
from mqspark.broker.send.retry import SendBackProcessor
from mqspark.broker.send.send import SendProcessor
from mqspark.broker.service import Service
from mqspark.broker.state.acks import Acks, Receiver
from mqspark.broker.state.calls import Calls
from mqspark.broker.state.consumer_offsets import ConsumerOffsets
from mqspark.broker.state.groups import ClientGroups, ConsumerGroup
from mqspark.broker.state.locks import QueueLocks
from mqspark.broker.state.ranges import heal_groups, heal_offsets, heal_topics
from mqspark.broker.state.state import BrokerState, Random
from mqspark.broker.state.stats import SAMPLE_INTERVAL_MS, Stats
from mqspark.broker.state.subscriptions import SubscriptionGroups
from mqspark.broker.state.topics import Topics
from mqspark.broker.state.writer import Writer
from mqspark.broker.timer.delays import DelayService
from mqspark.broker.timer.recall import RecallProcessor
from mqspark.broker.timer.timermetrics import TimerMetrics
from mqspark.broker.timer.timers import TimerService
from mqspark.broker.transaction.transactions import TransactionService
from mqspark.clock import Clock
from mqspark.config import ForeignKeys, no_foreign_keys
from mqspark.errors import MQError
from mqspark.message import new_unique_id
from mqspark.protocol.bodies import (
    KVTable,
    decode_body,
    encode_body,
)
from mqspark.protocol.codes import ResponseCode
from mqspark.protocol.command import Command, encode_response
from mqspark.protocol.dispatch import Handler, dispatch, merged
from mqspark.protocol.headers import (
    QueryDataVersionRequestHeader,
    UnRegisterBrokerRequestHeader,
)
from mqspark.protocol.session import Session
from mqspark.store.config import StoreConfig
from mqspark.store.disk.configfile import ConfigFile
from mqspark.store.disk.files import physical_memory_bytes
from mqspark.store.disk.flush import Job
from mqspark.store.disk.saved import SavedTable
from mqspark.store.recovery.deletions import Deletions
from mqspark.store.store import MessageStore, StoreProgress
from mqspark.store.timer.timerfiles import TimerFiles

__all__ = ["BrokerCore", "Registration"]

CLIENT_SCAN_INTERVAL_MS = 10_000
TICK_MS = 200
"""The longest time between two ticks, and so the resolution of parked pulls' timeouts."""

ANNOUNCEMENT_TIMEOUT_MS = 2_000
"""The longest time that the first send to a topic waits for a name server; less than a client's own timeout."""

CHANGE_TIMEOUT_MS = 3_000
"""The longest time that the answer to an operator's change waits for disk and name server."""


class _Change(NamedTuple):
    """An unanswered change, by an operator or by the first send to a topic."""

    session: Session
    done: bytes
    unsaved: bytes
    """The answer if saving takes too long."""
    saved: SavedTable | None
    """None: the answer does not wait for the disk."""
    generation: int
    published: bool
    """Whether a name server must know the change, too."""
    deadline_ms: int

    @property
    def size_bytes(self) -> int:
        return 1_000 + len(self.done) + len(self.unsaved)


class _Announcement:
    """A session's frame that is held until a name server knows the topics of ``generation``."""

    __slots__ = ("_broker", "_generation", "_session")

    def __init__(self, broker: BrokerCore, session: Session, generation: int) -> None:
        self._broker = broker
        self._session = session
        self._generation = generation

    def send(self, *buffers: bytes | memoryview) -> None:
        self._broker.announce(self._session, b"".join(buffers), self._generation)


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
    ) -> None:
        self.config = config
        self.store = store
        self.outbox: list[Session] = outbox if outbox is not None else []
        self._clock = clock
        topics = Topics(config, clock, lmq=store_config.enable_lmq)
        stats = Stats(
            clock,
            store.max_physical_offset,
            cluster=config.broker_cluster_name,
            max_bytes=lambda: config.max_statistics_bytes,
        )
        self.state = state = BrokerState(
            config=config,
            store_config=store_config,
            store=store,
            clock=clock,
            random=random,
            new_unique_id=new_unique_id,
            topics=topics,
            subscriptions=SubscriptionGroups(config, clock),
            offsets=ConsumerOffsets(
                clock,
                version_step=config.consumer_offset_update_version_step,
                lmq=store_config.enable_lmq,
                max_bytes=lambda: config.max_offset_table_bytes,
            ),
            clients=ClientGroups(config, clock, self._members_changed),
            locks=QueueLocks(config, clock),
            stats=stats,
            writer=Writer(store, topics, stats),
            calls=Calls(clock),
        )
        if config_file is None:
            config_file = store.config_file
        self._published_generation = -1
        self._changes: list[_Change] = []
        self._waiting = Ledger(
            "changes", lambda: config.max_waiting_bytes, "BrokerCore._changes", setting="maxWaitingBytes"
        )
        store.deletions.on_removed = self._answer_changes
        self._saved_topics = SavedTable(state.topics, config_file("topics.json"), self._answer_changes)
        self._saved_groups = SavedTable(
            state.subscriptions, config_file("subscriptionGroup.json"), self._answer_changes
        )
        state.subscriptions.lmq = store_config.enable_lmq
        offsets_file = config_file("consumerOffset.json")
        if store_config.enable_lmq:
            # RocketMQ then keeps all offsets in the other file; offsets saved here before are kept.
            SavedTable(state.offsets, offsets_file).load()
            offsets_file = config_file("lmqConsumerOffset.json")
        self._saved_offsets = SavedTable(state.offsets, offsets_file)
        modes = RequestModes(lambda: config.max_group_table_bytes)
        self._saved_modes = SavedTable(modes, config_file("messageRequestMode.json"), self._answer_changes)
        for table in (self._saved_topics, self._saved_groups, self._saved_offsets, self._saved_modes):
            table.load()
        self._heal_ranges()
        store_host = store.store_host
        self.acks = Acks(clock)
        self._delays = DelayService(state, config_file("delayOffset.json"))
        self._transactions = TransactionService(state, self.acks, store_host)
        timer_files = TimerFiles(
            Path(store_config.store_path_root_dir),
            store.files,
            precision_ms=store_config.timer_precision_ms,
            log_file_bytes=store_config.mapped_file_size_timer_log,
            on_failure=store.distrust,
            note=store.damages.note,
        )
        self._timers = TimerService(state, timer_files, config_file("timermetrics"))
        state.writer.diversions += [
            self._delays.divert,
            self._timers.divert,
            self._transactions.check_draft,
        ]
        machine_bytes = memory_bytes or physical_memory_bytes()
        lookups = LookupProcessor(state, machine_bytes)
        self._pop = PopService(
            state,
            self.acks,
            starts_in_memory=lookups.starts_in_memory,
            order_file=config_file("consumerOrderInfo.json"),
            timer_is_idle=self._timers.is_idle,
        )
        self.follower: Follower | None = None
        """Set on a slave, which runs no services: its master's messages and progress are all it has."""
        self.metadata: Metadata | None = None
        """Set on a slave."""
        self._services: list[Service] = []
        if config.broker_role is BrokerRole.SLAVE:
            self.follower = Follower(config, store, clock)
            self.metadata = Metadata(state, modes, self._delays, self._timers)
            store.follow()
            self._timers.begin_following()
            self._service_tables = [*self._delays.saved_tables(), *self._timers.saved_tables()]
            for table in self._service_tables:
                table.load()
        else:
            self._services += [self._delays, self._timers, self._transactions, self._pop]
            for service in self._services:
                service.load()
            self._service_tables = [table for service in self._services for table in service.saved_tables()]

        self.replicas = Replicas(config, store, clock, self.follower)
        store.refuse_puts(self.replicas.shortage)
        self._acked = 0
        """The log position up to which this broker alone would answer."""
        follower = self.follower
        self.pulls = PullProcessor(
            state,
            machine_bytes,
            None if follower is None else lambda: follower.address is not None,
        )
        self._sends = SendProcessor(state, self.acks, store_host, self._once_known)
        self.routes = ClusterRoutes(state)
        admin = admin_handlers(state, self.runtime_info, self._settings_changed, self._change, foreign_keys)
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
            self._transactions.handlers,
            ReplyProcessor(state, self._sends, store_host).handlers,
            self._pop.handlers,
            self._delays.handlers,
            self._timers.handlers,
            self.replicas.handlers,
            AssignmentProcessor(state, modes, self.routes, self._mode_changed).handlers,
        )
        if self.follower is not None:
            self.handlers.update(refusals())
        self.table_budget = TableBudget(lambda: config.tables_bound(machine_bytes), "maxTablesBytes")
        self.tables = Tables(
            state.clients.ledger,
            state.topics.ledger,
            state.subscriptions.ledger,
            state.offsets.ledger,
            state.locks.ledger,
            state.stats.ledger,
            modes.ledger,
            self.pulls.parked.ledger,
            self.routes.ledger,
            self._waiting,
            self._transactions.ledger,
            self._timers.metrics.ledger,
            *self._pop.ledgers,
            *store.ledgers,
            budget=self.table_budget,
        )
        self._changed_groups: dict[str, ConsumerGroup] = {}
        """Groups whose members are notified at the end of the turn, once however many members joined or left."""
        self._is_quiet = False
        self.registration_due = True
        self._registration_pieces = 1
        self._announced_generation = state.topics.generation
        now_ms = clock.monotonic_ms()
        self._next_scan_ms = now_ms + CLIENT_SCAN_INTERVAL_MS
        self._next_sample_ms = now_ms
        self._next_offsets_ms = now_ms + config.flush_consumer_offset_interval

    def _heal_ranges(self) -> None:
        """Replace impossible values that were read from the config files."""
        state, store = self.state, self.store
        note = store.damages.note
        heal_topics(state.topics, store, note)
        heal_groups(state.subscriptions, note)
        lmq = state.store_config.enable_lmq

        def backup() -> ConsumerOffsets | None:
            data = self._saved_offsets.backup()
            before = ConsumerOffsets(self._clock, version_step=1, lmq=lmq)
            try:
                before.load(data or b"")
            except MQError:
                return None
            return before

        heal_offsets(state.offsets, backup, store, note, lmq=lmq)

    # --- Core ---

    def connected(self, session: Session) -> None:
        """Does nothing: a client is unknown until its first heartbeat."""

    def received(self, session: Session, commands: Iterable[Command]) -> None:
        dispatch(self.handlers, session, commands, self.state.long_work, self.state.calls.answered)

    @property
    def work_waits(self) -> bool:
        return bool(self.state.long_work.running)

    def work(self) -> bool:
        return self.state.long_work.step()

    def disconnected(self, session: Session) -> None:
        self.state.clients.disconnected(session)
        self.state.calls.disconnected(session)

    def turn(self) -> None:
        """Write what this turn appended, and send the answers that this completes."""
        if self._changed_groups:
            changed, self._changed_groups = self._changed_groups, {}
            for group in changed.values():
                notify_members(group)
        self._pop.before_commit()
        self.acks.end_turn()
        self.progress(self.store.commit())
        self.pulls.end_turn()
        self._pop.end_turn()
        generation = self.state.topics.generation
        if generation != self._announced_generation:
            self._announced_generation = generation
            self.registration_due = True

    def progress(self, progress: StoreProgress) -> None:
        """The store has written or synced more: notify those who wait for it."""
        self._acked = progress.acked
        self.replicated()
        self._pop.progress(progress)
        if progress.failed is not None:
            self.acks.fail(f"the store failed: {progress.failed}")
        if progress.arrivals:
            puts = self.store.put_count
            self.pulls.arrived(progress.arrivals)
            for service in self._services:
                service.arrived(progress.arrivals)
            if self.store.put_count != puts:  # for example a check point that a pop's answer waits for
                self.progress(self.store.commit())

    def replicated(self) -> None:
        """A slave may have more of the log, or have left: notify those who wait for it."""
        self.acks.release(min(self._acked, self.replicas.confirmed))
        if self.store.refusal is not None or self.config.min_in_sync_replicas > 1:
            self.store.refuse_puts(self.replicas.shortage)

    def tick(self) -> int:
        state = self.state
        now_ms = self._clock.monotonic_ms()
        if now_ms >= self._next_scan_ms:
            self._next_scan_ms = now_ms + CLIENT_SCAN_INTERVAL_MS
            state.clients.expire(self.config.channel_expired_timeout)
            state.locks.expire()
        if now_ms >= self._next_sample_ms:
            self._next_sample_ms = now_ms + SAMPLE_INTERVAL_MS
            state.stats.sample(state.topics)
            if state.stats.is_full_minute:
                self.acks.times.end_period()
        self.pulls.expire()
        self.routes.expire()
        state.calls.expire()
        if self.acks:
            self._expire_sends()
        self._answer_changes()
        wait_ms = TICK_MS
        for service in self._services if not self._is_quiet else ():
            wait_ms = min(wait_ms, service.tick())
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

    def _members_changed(self, group: ConsumerGroup) -> None:
        if self.config.notify_consumer_ids_changed_enable:
            self._changed_groups[group.name] = group

    # --- name servers ---

    def registrations(self) -> Iterator[Registration | None]:
        """All topics, in as many registrations as needed. The shell sends each to every name server, in order,
        and reports success with ``registered``. None marks a point where other work may run."""
        for registration in registrations(self.config, self.state.topics):
            if registration is not None and registration.is_last:
                self._registration_pieces = registration.piece + 1
            yield registration

    def registered(self, registration: Registration, answer: bytes | memoryview = b"") -> None:
        """A name server accepted the registration. ``answer`` is its body: the table of ordered topics, if any.

        Raises ProtocolError if the body is malformed; the registration still counts.
        """
        self._published_generation = max(self._published_generation, registration.generation)
        self._answer_changes()
        if answer:
            self.state.topics.set_order(frozenset(decode_body(KVTable, answer).table))

    @property
    def registration_problem(self) -> str | None:
        """What an operator should do about the size of the registration; None if nothing."""
        if self._registration_pieces < 2 or self.config.enable_split_registration:
            return None
        return (
            f"{len(self.state.topics)} topics take {self._registration_pieces} registrations: no name server may have"
            " deleteTopicWithBrokerRegistration, and unused topics and groups should be deleted"
        )

    def version_query(self) -> tuple[QueryDataVersionRequestHeader, bytes]:
        """The request that asks a name server whether it lacks the current registration (322)."""
        config = self.config
        header = QueryDataVersionRequestHeader(
            broker_name=config.broker_name,
            broker_addr=config.address,
            cluster_name=config.broker_cluster_name,
            broker_id=config.broker_id,
        )
        return header, encode_body(self.state.topics.data_version)

    def unregistration(self) -> UnRegisterBrokerRequestHeader:
        config = self.config
        return UnRegisterBrokerRequestHeader(
            broker_name=config.broker_name,
            broker_addr=config.address,
            cluster_name=config.broker_cluster_name,
            broker_id=config.broker_id,
        )

    # --- changes whose answers wait ---

    def _change(self, session: Session, command: Command, *, topics: bool) -> None:
        """Answer a change of the topics (or else of the groups) once it is on disk and, if a topic, known to a
        name server, so that the requester can rely on it."""
        saved = self._saved_topics if topics else self._saved_groups
        self._answer_when_saved(session, command, saved, published=topics and bool(self.config.namesrv_addr))

    def _mode_changed(self, session: Session, command: Command) -> None:
        self._answer_when_saved(session, command, self._saved_modes, published=False)

    def _answer_when_saved(
        self, session: Session, command: Command, saved: SavedTable, *, published: bool
    ) -> None:
        if command.is_oneway:
            return
        deadline_ms = self._clock.monotonic_ms() + CHANGE_TIMEOUT_MS
        done = encode_response(command.opaque, ResponseCode.SUCCESS)
        remark = "the change is in force, but could not be saved yet"
        unsaved = encode_response(command.opaque, ResponseCode.SYSTEM_ERROR, remark=remark)
        change = _Change(session, done, unsaved, saved, saved.generation, published, deadline_ms)
        if not self._wait_for(change):
            session.send(unsaved)

    def _wait_for(self, change: _Change) -> bool:
        """False if too many answers wait already."""
        if self._answer_change(change):
            return True
        has_room = self._waiting.has_room(change.size_bytes)
        if has_room:
            self._waiting.note(change.size_bytes)
            self._changes.append(change)
        return has_room

    def _once_known(self, session: Session) -> Receiver:
        """Hold an answer back until a name server knows the topics as they are now."""
        if not self.config.namesrv_addr:
            return session
        return _Announcement(self, session, self.state.topics.generation)

    def announce(self, session: Session, frame: bytes, generation: int) -> None:
        """Send ``frame`` once a name server knows the topics of ``generation``, or after ANNOUNCEMENT_TIMEOUT_MS."""
        if self._published_generation >= generation:
            session.send(frame)
            return
        deadline_ms = self._clock.monotonic_ms() + ANNOUNCEMENT_TIMEOUT_MS
        if not self._wait_for(_Change(session, frame, frame, None, generation, True, deadline_ms)):
            session.send(frame)

    def _answer_changes(self) -> None:
        if not self._changes:
            return
        waiting = []
        for change in self._changes:
            if self._answer_change(change):
                self._waiting.free(change.size_bytes)
            else:
                waiting.append(change)
        self._changes = waiting

    def _answer_change(self, change: _Change) -> bool:
        """False if it has to wait."""
        is_late = change.deadline_ms <= self._clock.monotonic_ms()
        is_saved = change.saved is None or (
            change.saved.saved_generation >= change.generation and not self.store.deletions.behind
        )
        is_published = not change.published or self._published_generation >= change.generation
        if is_saved and (is_published or is_late):
            change.session.send(change.done)
        elif is_late:
            change.session.send(change.unsaved)
        else:
            return False
        return True

    # --- blocking work ---

    def jobs(self) -> list[Job]:
        """Due work for a worker thread. Called about once a second, and not again before the previous jobs are
        done."""
        urgent = (self.store.deletions, self._saved_topics, self._saved_groups, self._saved_modes)
        jobs: list[Job] = [table.job() for table in urgent if table.behind]
        now_ms = self._clock.monotonic_ms()
        if now_ms >= self._next_offsets_ms:
            self._next_offsets_ms = now_ms + self.config.flush_consumer_offset_interval
            tables = (self._saved_offsets, *self._service_tables)
            jobs.extend(table.job() for table in tables if table.behind)
        jobs.extend(self._timers.jobs())
        jobs.extend(self.store.maintenance())
        return jobs

    @property
    def jobs_due(self) -> bool:
        """Whether ``jobs`` should be called at once: an operator changed something, or the log needs space."""
        return (
            self.store.deletions.behind
            or self._saved_topics.behind
            or self._saved_groups.behind
            or self._saved_modes.behind
            or self.store.room_due
        )

    def quiesce(self) -> None:
        """Stop the services. Anything they did after the last sync would be repeated after the next start."""
        self._is_quiet = True

    def shutdown(self) -> list[Job]:
        """The last saves, run before the store is closed. The broker must get no command after this."""
        self._transactions.stop()
        tables: tuple[Deletions | SavedTable, ...] = (
            self.store.deletions,
            self._saved_topics,
            self._saved_groups,
            self._saved_modes,
            self._saved_offsets,
            *self._service_tables,
        )
        jobs: list[Job] = [table.job() for table in tables if table.behind]
        return jobs + self._timers.jobs(final=True)

    # --- views ---

    def runtime_info(self) -> dict[str, str]:
        """The table of code 28."""
        table = runtime_table(self.state, self.acks)
        table |= self._delays.runtime_info() | self._timers.runtime_info()
        budget = self.table_budget
        table["mqsparkTables"] = f"{budget.bytes} of {budget.bound} bytes, {budget.refused} refused"
        for bounded in self.tables:
            table[f"mqsparkTable_{bounded.name}"] = (
                f"{bounded.bytes} of {bounded.bound} bytes, {bounded.entries} entries, {bounded.refused} refused"
            )
        return table

    @property
    def open_transactions(self) -> int:
        """Half messages that are neither committed nor rolled back."""
        return self._transactions.open_count

    @property
    def timer_counts(self) -> TimerMetrics:
        """Counts of timer messages that wait, were enqueued and were dequeued."""
        return self._timers.metrics

    def revive_behind(self) -> list[tuple[int, int]]:
        """For each queue of POP's revive log: the number of unprocessed records, and for how many ms the oldest
        has been due."""
        return self._pop.revive_behind()

    @property
    def delay_problem(self) -> str | None:
        """Why due delayed or timed messages are not delivered; None if they are."""
        return self._delays.problem or self._timers.problem

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
