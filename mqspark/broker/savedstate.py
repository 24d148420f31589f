"""The tables that a broker keeps in ``config/``: loaded and healed at the start, saved when they have changed.

Must not know what is in a table, nor the thread that saves it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from mqspark.broker.config import BrokerRole
from mqspark.broker.pop.assignment import RequestModes
from mqspark.broker.state.state import BrokerState
from mqspark.broker.tables.consumer_offsets import ConsumerOffsets
from mqspark.broker.tables.ranges import (
    adopt_topics,
    forget_deleted,
    heal_groups,
    heal_offsets,
    heal_topics,
)
from mqspark.errors import MQError
from mqspark.store.compaction.compactedqueues import COMPACTED
from mqspark.store.disk.configfile import ConfigFile
from mqspark.store.disk.diskjobs import Job
from mqspark.store.disk.notes.tablenotes import OlderTable, TableNotes, Watched
from mqspark.store.disk.savedtables import ChangedSettings, SavedTable

SHORT_SAVE_MS = 20
"""After a longer save, the next changes wait to be saved together."""
REST_FACTOR = 3
"""The wait, in multiples of the duration of the save: saves take at most a quarter of the time, however often peers
change a large table."""
MAX_REST_MS = 1_000
TIMED_REST_FACTOR = 9
"""The same for offsets and the tables of services: their saves take at most a tenth of the time."""
MAX_TIMED_REST_MS = 60_000
"""After a crash the commits of so long may be repeated."""


class SavedState:
    """What operators change is saved at once; offsets, and the tables of services, every flushConsumerOffsetInterval.
    Raises StoreCorrupt when a file cannot be read."""

    def __init__(
        self,
        state: BrokerState,
        modes: RequestModes,
        config_file: Callable[[str], ConfigFile],
        on_saved: Callable[[], None],
        settings_file: ConfigFile | None,
    ) -> None:
        """``on_saved`` is called after a save of what operators change. ``settings_file`` merges changed settings
        into what it contains; None: they are not saved."""
        self._state = state
        self._lmq = state.store_config.enable_lmq
        self._on_saved = on_saved
        self._began_ms = self._rest_until_ms = 0
        """When the last saves began, and when the next ones may."""
        self.topics = SavedTable(state.topics, config_file("topics.json"), self._saved)
        self._mappings = SavedTable(state.mappings, config_file("topicQueueMapping.json"), self._saved)
        self.groups = SavedTable(state.subscriptions, config_file("subscriptionGroup.json"), self._saved)
        self.modes = SavedTable(modes, config_file("messageRequestMode.json"), self._saved)
        self._changed_settings = ChangedSettings()
        self.settings: SavedTable | None = None
        if settings_file is not None:
            self.settings = SavedTable(self._changed_settings, settings_file, on_saved)
        state.subscriptions.lmq = self._lmq
        offsets_file = config_file("consumerOffset.json")
        if self._lmq:
            # RocketMQ then keeps all offsets in the other file; offsets saved here before are kept.
            SavedTable(state.offsets, offsets_file).load()
            offsets_file = config_file("lmqConsumerOffset.json")
        self._offsets = SavedTable(state.offsets, offsets_file, self._timed_saved)
        self._timed = [self._offsets, SavedTable(state.filters, config_file("consumerFilter.json"))]
        for table in self._tables:
            table.load()
        self._by_operators = (
            (state.mappings, self._mappings), (state.topics, self.topics),
            (state.subscriptions, self.groups), (modes, self.modes),
        )  # fmt: skip
        """What is saved at once, and its saves. Every turn looks at them, so it calls nothing."""
        store = state.store
        self._notes = TableNotes(store.root_file(store.paths.tables), store.paths.config, store.log)
        # The log of a replica may be taken back, and a log that was cut is reported already.
        is_cut = "log.cut" in {kind for kind, _ in store.damages.counts}
        beyond = None if self._is_replica or is_cut else self._notes.beyond(store.log.position)
        if beyond is not None:
            store.damages.note(beyond)
        self.watch(store.deletions)
        for table in sorted(self._tables, key=lambda each: each.path.name):
            if table is not self.topics:
                self.watch(table)
        self._heal(self._notes.watch(self.topics))
        if not store.status.was_clean:
            # A save writes each row as it is then, under the version of its beginning. So a slave may have other rows
            # of the version that was read.
            state.topics.touch()
            state.subscriptions.touch()
        self._next_ms = state.clock.monotonic_ms() + state.config.flush_consumer_offset_interval

    @property
    def _is_replica(self) -> bool:
        config = self._state.config
        return config.broker_role is BrokerRole.SLAVE or config.enable_controller_mode

    def watch(self, table: Watched) -> None:
        """Report an older file of a table that was loaded, and note its saves."""
        older = self._notes.watch(table)
        if older is not None:
            self._state.store.damages.note(older.damage)

    def add(self, tables: Iterable[SavedTable]) -> None:
        """Tables of a service, which has loaded them."""
        for table in tables:
            self.watch(table)
            self._timed.append(table)

    @property
    def _tables(self) -> tuple[SavedTable, ...]:
        """All of ``config/``."""
        return self._mappings, self.topics, self.groups, self.modes, *self._timed

    @property
    def _urgent(self) -> tuple[SavedTable, ...]:
        settings = () if self.settings is None else (self.settings,)
        return self._mappings, self.topics, self.groups, self.modes, *settings

    def note_settings(self, values: Mapping[str, Any]) -> None:
        """Settings have been changed."""
        self._changed_settings.note(values)

    def _heal(self, older: OlderTable | None) -> None:
        """Replace impossible values that were read from the files. ``older``: of the topics."""
        state, store = self._state, self._state.store
        note = store.damages.note
        heal_topics(state.topics, store.offsets, note)
        if older is not None and not older.is_missing:
            note(older.damage)
            if not self._is_replica:
                forget_deleted(state.topics, store.offsets, store.deletions.positions, older.position)
        # A replica has queues of topics that were deleted on its master.
        is_latest = self.topics.is_latest and older is None
        is_told = False
        if not self._is_replica or not is_latest:
            compacted = store.files.names(store.paths.root / COMPACTED)
            is_told = adopt_topics(
                state.topics,
                store.offsets,
                note,
                batches=store.table.batch_topics,
                compacted=compacted,
                is_latest=is_latest,
            )
        if older is not None and older.is_missing and not is_told:
            note(older.damage)
        heal_groups(state.subscriptions, note)

        def backup() -> ConsumerOffsets | None:
            before = ConsumerOffsets(state.clock, version_step=1, lmq=self._lmq)
            try:
                before.load(self._offsets.backup() or b"")
            except MQError:
                return None
            return before

        heal_offsets(state.offsets, backup, store.offsets, note, lmq=self._lmq)

    @property
    def is_due(self) -> bool:
        """Whether an operator changed something."""
        if self.settings is not None and self.settings.behind:
            return True
        for table, saves in self._by_operators:
            if table.generation != saves.saved_generation:
                return self._state.clock.monotonic_ms() >= self._rest_until_ms
        return False

    def _saved(self) -> None:
        now_ms = self._state.clock.monotonic_ms()
        took_ms = now_ms - self._began_ms
        if took_ms > SHORT_SAVE_MS:
            self._rest_until_ms = now_ms + min(MAX_REST_MS, REST_FACTOR * took_ms)
        self._on_saved()

    def _timed_saved(self) -> None:
        now_ms = self._state.clock.monotonic_ms()
        rest_ms = min(MAX_TIMED_REST_MS, TIMED_REST_FACTOR * (now_ms - self._began_ms))
        self._next_ms = max(self._next_ms, now_ms + rest_ms)

    def jobs(self) -> Iterator[Job]:
        """Saves of what has changed, in order."""
        now_ms = self._began_ms = self._state.clock.monotonic_ms()
        # Without its mapping a static topic would be served as an ordinary one: the mapping is saved first.
        late = self.topics if self._mappings.behind else None
        wanted = [table for table in self._urgent if table.behind and table is not late]
        if now_ms >= self._next_ms:
            self._next_ms = now_ms + self._state.config.flush_consumer_offset_interval
            wanted += [table for table in self._timed if table.behind]
        yield from self._jobs(wanted)

    def last_jobs(self) -> Iterator[Job]:
        """Saves of everything that has changed."""
        yield from (table.job() for table in (*self._urgent, *self._timed) if table.behind)
        yield self._notes.job()

    def _jobs(self, wanted: list[SavedTable]) -> Iterator[Job]:
        yield from (table.job() for table in wanted)
        if wanted or self._notes.is_behind:
            yield self._notes.job()
