"""Decides which query keeps which live table.

Tables with the same options of the source share a query. A table that is far behind, that failed, or that is new
while the others run, has a query of its own until it has caught up; then it joins them.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from mqspark.client.blocking import BlockingClient
from mqspark.errors import MQError
from mqspark_jobs.job import ProgressLine, relevant_text
from mqspark_jobs.tables.tabledefs import (
    TableDefinition,
    TableDirectory,
    TableState,
    raw_options,
    stream_options,
)
from mqspark_jobs.tables.tablequery import PlannedTable, TableQuery, planned
from mqspark_jobs.tables.tablerows import TableWriter, WrittenBatch
from mqspark_jobs.tables.topicqueues import TableTopic
from pyspark_pymq.lineage import ABORT, COMPLETE, FAIL, START, LineageRun, table_dataset, topic_dataset
from pyspark_pymq.reading.source_progress import source_progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0
_LONGEST_LOOK_S = 8.0
"""Between looks whether another process still keeps a table."""
_KEPT_ELSEWHERE = "another process keeps this table"
_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",  # the days of a table
    "spark.sql.maxConcurrentOutputFileWriters": "8",  # a task has rows of a day or two: without it they are sorted
    "spark.sql.inMemoryColumnarStorage.compressed": "false",  # rows of a batch are kept for a second
}
_CAUGHT_UP = 50_000
"""Messages: a table that is further behind would make the others of its query wait."""
_JOINS_AFTER_S = 10.0
"""A join starts the shared query again, so it happens no more often."""
_MOST_ALONE = 4
"""Queries of one table, beside the shared ones."""


@dataclass(frozen=True, slots=True)
class TablesOptions:
    directory: TableDirectory
    names: tuple[str, ...] = ()
    """Only these; empty: all."""
    once: bool = False
    """Take what is there, and end."""
    interval_ms: int = 1_000
    """Between the starts of two batches."""
    metrics: Path | None = None
    """Where figures of the tables are written, for a text-file collector."""


@dataclass(slots=True)
class _KeptTable:
    """A table that this process keeps."""

    definition: TableDefinition
    lock: int
    queues: TableTopic
    writer: TableWriter
    shown: WrittenBatch | None = None
    """What the table's state says."""
    lineage: LineageRun | None = None
    """From the start of its query on."""


@dataclass(slots=True)
class _RunningQuery:
    query: TableQuery
    key: Hashable
    is_shared: bool
    started_s: float
    is_proven: bool = False
    """It has finished a batch, or has seen that there is none."""


@dataclass(slots=True)
class _TablePause:
    """After a table failed."""

    until_s: float
    length_s: float


@dataclass(slots=True)
class TableKeeper:
    options: TablesOptions
    spark: SparkSession
    progress: ProgressLine
    errors: dict[str, str] = field(default_factory=dict)
    """The errors of tables that are not kept because of one."""
    tables: int = 0
    rows: int = 0
    batches: int = 0
    failures: int = 0
    _kept: dict[str, _KeptTable] = field(default_factory=dict)
    _queries: list[_RunningQuery] = field(default_factory=list)
    _pauses: dict[str, _TablePause] = field(default_factory=dict)
    _suspects: set[str] = field(default_factory=set)
    """Tables that failed: they run alone until they have caught up."""
    _clients: dict[Hashable, BlockingClient] = field(default_factory=dict)
    _has_begun: bool = False

    @property
    def names(self) -> list[str]:
        return sorted(self._kept)

    @property
    def shared(self) -> list[list[str]]:
        """The tables of each query."""
        return sorted(sorted(each.query.names) for each in self._queries)

    def step(self, now_s: float) -> None:
        """Look at queries and definitions, at a time of a monotonic clock."""
        self._look(now_s)
        if self.options.once and self._has_begun:
            return
        self._has_begun = True
        wanted = self._wanted()
        for name, each in list(self._kept.items()):
            if wanted.get(name) != each.definition:
                self._release(name)
        due = []
        for name, definition in wanted.items():
            pause = self._pauses.get(name)
            if name not in self._kept and (pause is None or pause.until_s <= now_s):
                due.append(definition)
        self._place([each for each in (self._opened(one, now_s) for one in due) if each], now_s)
        if not self.options.once:
            self._join(now_s)

    def stop(self) -> None:
        for each in self._queries:
            each.query.stop()
        self._queries.clear()
        for name in self.names:
            self._show(self._kept[name])
            self._release(name)
        for client in self._clients.values():
            client.close()

    # --- tables -----------------------------------------------------------------------------------------------

    def _wanted(self) -> dict[str, TableDefinition]:
        found = {}
        for name in self.options.names or self.options.directory.names():
            try:
                definition = self.options.directory.load(name)
            except MQError as error:
                if name not in self.errors:
                    self.progress.show(f"{name}: {error}", 0, 0, "rows")
                self.errors[name] = str(error)
                continue
            if not definition.is_paused:
                found[name] = definition
        return found

    def _opened(self, definition: TableDefinition, now_s: float) -> PlannedTable | None:
        """The table, which this process keeps from now on; None if it cannot be kept."""
        name = definition.name
        lock = self.options.directory.lock(name)
        if lock is None:
            # Said once, however often it is tried.
            if self.errors.get(name) != _KEPT_ELSEWHERE:
                self.progress.show(f"{name}: {_KEPT_ELSEWHERE}", self.rows, self.rows, "rows")
            self.errors[name] = _KEPT_ELSEWHERE
            self._pause(name, now_s, _LONGEST_LOOK_S)
            return None
        try:
            queues = self._topic_queues(definition)
            writer = TableWriter(self._session(), definition)
            table = planned(writer, queues.bounds())
        except Exception as error:
            # Spark, the cluster or the table's place fails: it is told, and tried again.
            os.close(lock)
            self._failed(definition, error, now_s)
            return None
        self.errors.pop(name, None)
        self._kept[name] = _KeptTable(definition, lock, queues, writer)
        self.tables += 1
        return table

    def _topic_queues(self, definition: TableDefinition) -> TableTopic:
        options = raw_options(definition) | {"group": definition.group}
        own = {name: value for name, value in options.items() if name not in ("topic", "group")}
        place = tuple(sorted(own.items()))
        found = TableTopic(options, client=self._clients.get(place))
        self._clients[place] = found.client
        return found

    def _release(self, name: str, event: str = ABORT, reason: str = "") -> None:
        """The table is kept no longer. Nothing is written into it any more. ``event``: what lineage says of it."""
        for each in self._queries:
            each.query.leave(name)
        kept = self._kept.pop(name)
        kept.writer.close()
        if kept.lineage is not None:
            kept.lineage.tell(event, reason)
        os.close(kept.lock)

    def _pause(self, name: str, now_s: float, longest_s: float) -> float:
        """Twice as long as the pause before; returns the seconds."""
        before = self._pauses.get(name)
        length_s = _FIRST_PAUSE_S if before is None else min(2 * before.length_s, longest_s)
        self._pauses[name] = _TablePause(now_s + length_s, length_s)
        return length_s

    def _failed(self, definition: TableDefinition, error: BaseException, now_s: float) -> None:
        text, name = relevant_text(error), definition.name
        length_s = self._pause(name, now_s, _LONGEST_PAUSE_S)
        self.errors[name] = text
        self.failures += 1
        state = self.options.directory.state(name)
        self.options.directory.save_state(name, msgspec.structs.replace(state, error=text[:2_000]))
        self.progress.show(f"{name}: {text[:500]}; again in {length_s:.0f} s", self.rows, self.rows, "rows")

    # --- queries ----------------------------------------------------------------------------------------------

    def _look(self, now_s: float) -> None:
        for each in list(self._queries):
            is_active = each.query.query.isActive
            each.is_proven = each.is_proven or each.query.query.lastProgress is not None
            for name in each.query.names:
                if name in self._kept:
                    self._show(self._kept[name])
            self._take_failures(each, now_s)
            if is_active and each.query.names:
                continue
            error = each.query.query.exception()
            names = each.query.names
            each.query.stop()
            self._take_failures(each, now_s)  # of tables that were still written
            self._queries.remove(each)
            for name in names:
                if error is not None:
                    # One of the topics may be the reason, unless all were read before.
                    self._leaves(name, error, now_s, is_suspect=each.is_shared and not each.is_proven)
                elif name in self._kept:
                    self._show(self._kept[name])
                    self._release(name, COMPLETE)

    def _take_failures(self, each: _RunningQuery, now_s: float) -> None:
        for name, error in each.query.taken_failures().items():
            self._leaves(name, error, now_s, is_suspect=True)

    def _leaves(self, name: str, error: BaseException, now_s: float, *, is_suspect: bool) -> None:
        if name not in self._kept:
            return
        if is_suspect:
            self._suspects.add(name)
        kept = self._kept[name]
        self._show(kept)
        self._release(name, FAIL, relevant_text(error))
        self._failed(kept.definition, error, now_s)

    def _show(self, kept: _KeptTable) -> None:
        """What the table's last batch was: in its state, its consumer group and the progress."""
        last = kept.writer.last
        if last is None or last is kept.shown:
            return
        name = kept.definition.name
        self.batches += last.number - (kept.shown.number if kept.shown else last.number - 1)
        kept.shown = last
        self.rows += last.rows
        self._pauses.pop(name, None)
        state = TableState(last.number, last.rows, last.at_ms, last.delay_ms, rejected=last.rejected)
        self.options.directory.save_state(name, state)
        kept.queues.publish(kept.writer.ends)
        self.progress.show(f"{name}: batch {last.number}", self.rows, self.rows, "rows")

    def _place(self, tables: Sequence[PlannedTable], now_s: float) -> None:
        """Start queries for tables that have none."""
        together: dict[Hashable, list[PlannedTable]] = defaultdict(list)
        alone = []
        shared = {each.key for each in self._queries if each.is_shared}
        for table in tables:
            key = _key(table.definition)
            is_late = table.backlog > _CAUGHT_UP or table.definition.name in self._suspects
            if not self.options.once and (key in shared or is_late):
                alone.append((key, table))
            else:
                together[key].append(table)
        for key, members in together.items():
            self._start(key, members, now_s, is_shared=True)
        room = _MOST_ALONE - sum(not each.is_shared for each in self._queries)
        for number, (key, table) in enumerate(alone):
            if number < room:
                self._start(key, [table], now_s, is_shared=False)
            else:
                self._release(table.definition.name)
                self._pauses.setdefault(table.definition.name, _TablePause(now_s, _FIRST_PAUSE_S / 2))

    def _start(self, key: Hashable, tables: Sequence[PlannedTable], now_s: float, *, is_shared: bool) -> None:
        try:
            query = TableQuery(
                self._session(), tables, once=self.options.once, interval_ms=self.options.interval_ms
            )
        except Exception as error:
            for each in tables:
                self._leaves(each.definition.name, error, now_s, is_suspect=is_shared and len(tables) > 1)
            return
        self._queries.append(_RunningQuery(query, key, is_shared, now_s))
        for each in tables:
            kept = self._kept[each.definition.name]
            kept.lineage = _lineage(each.definition, each.writer.columns)
            kept.lineage.tell(START)

    def _session(self) -> Any:
        session = self.spark.newSession()
        for name, value in _SETTINGS.items():
            session.conf.set(name, value)
        return session

    def _join(self, now_s: float) -> None:
        """Tables that have caught up share one query."""
        by_key: dict[Hashable, list[_RunningQuery]] = defaultdict(list)
        for each in self._queries:
            if each.is_shared or _has_caught_up(each):
                by_key[each.key].append(each)
        for key, queries in by_key.items():
            if all(each.is_shared for each in queries):
                continue
            if len(queries) == 1:
                queries[0].is_shared = True
                self._suspects -= set(queries[0].query.names)
            elif all(now_s - each.started_s >= _JOINS_AFTER_S for each in queries):
                self._merge(key, queries, now_s)

    def _merge(self, key: Hashable, queries: Sequence[_RunningQuery], now_s: float) -> None:
        names = [name for each in queries for name in each.query.names]
        for each in queries:
            each.query.stop()
            self._take_failures(each, now_s)
            self._queries.remove(each)
        tables = []
        for name in (each for each in names if each in self._kept):
            definition = self._kept[name].definition
            self._show(self._kept[name])
            self._release(name)
            self._suspects.discard(name)
            self.tables -= 1
            tables.append(self._opened(definition, now_s))
        self._start(key, [each for each in tables if each], now_s, is_shared=True)


def _has_caught_up(each: _RunningQuery) -> bool:
    if not each.is_proven:
        return False
    return all(
        (source.lag_messages or 0) <= _CAUGHT_UP for source in source_progress(each.query.query.lastProgress)
    )


def _lineage(definition: TableDefinition, columns: Any) -> LineageRun:
    return LineageRun(
        f"table.{definition.name}",
        [topic_dataset(definition.nameserver, definition.topic)],
        [table_dataset(definition.url, columns), table_dataset(definition.rejected_url)],
    )


def _key(definition: TableDefinition) -> Hashable:
    return tuple(stream_options(definition).items())
