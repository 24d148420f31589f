"""``mqspark.arrow.read``: the messages of a topic as a ``pyarrow.RecordBatchReader``.

The bounds are resolved when it is called, so a read ends. Rows come in batches of limited rows and bytes, each queue's
in order. A reader that is used up or dropped closes its connections and files. Must not know Spark or an event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import InitVar, dataclass, field, replace
from datetime import datetime
from typing import Any, TypedDict, Unpack

import pyarrow as pa

from mqspark.arrow.cluster.archives import plan_archive, read_archive
from mqspark.arrow.cluster.batchplan import bounded_ranges, read_tasks
from mqspark.arrow.cluster.cluster_queues import ClusterQueues
from mqspark.arrow.cluster.queuechoice import (
    EARLIEST_OFFSET,
    RETRY_TIMEOUT_MS,
    OffsetSpec,
    Position,
    QueueChoice,
    QueueTexts,
    TopicSelection,
)
from mqspark.arrow.cluster.queueranges import LogicPlace, QueueRange
from mqspark.arrow.cluster.readtasks import BATCH_BYTES, BATCH_ROWS, ReadTask
from mqspark.arrow.messagecolumns import arrow_schema, default_columns, named_columns
from mqspark.arrow.reading.keyfetch import plan_lookups, read_lookup
from mqspark.arrow.reading.openplaces import OpenPlaces
from mqspark.arrow.reading.range_fetch import read_task
from mqspark.arrow.reading.typedread import VALUE, TypedRead
from mqspark.arrow.signing import SigningOptions
from mqspark.base.config import INT64_MAX, told_of
from mqspark.client.remoting.credentials import Credentials
from mqspark.errors import ConfigError, InvalidFilter
from mqspark.filter.sql import compile_sql
from mqspark.message import MessageQueue, check_group, check_topic, split_tags
from mqspark.record.compression import LIMITS

GROUP = "mqspark-arrow-reader"
"""The group of pulls when the user named none; its offsets are never committed."""
LEAST_BATCH_BYTES = 1024

Bound = str | datetime | Mapping[Any, Any]
"""``"earliest"``, ``"latest"`` or ``"now"``, ``"group"``; a store time with its zone; or the offset of each queue."""


Narrowing = Callable[[Sequence[QueueRange], Mapping[MessageQueue, LogicPlace]], list[QueueRange]]
"""Ranges, and what their queues are parts of, to the parts that are needed."""


class ReadChoices(TypedDict, total=False):
    """The keywords of ``read`` and ``scan``."""

    columns: Sequence[str] | None
    """Names of the Spark source's columns; ``*`` is the first seven, which come by default."""
    start: Bound
    """``"earliest"`` by default. ``"group"``: the committed offsets of ``group``."""
    end: Bound
    """``"now"`` by default; exclusive."""
    key: str | Sequence[str] | None
    """Only the messages with one of these keys, found with the brokers' index."""
    tags: str | Sequence[str] | None
    """``"A || B"``, or the tags one by one."""
    sql_filter: str | None
    """SQL92, evaluated by the brokers, which send such messages over TCP."""
    group: str | None
    archive: str | None
    """The URL of an archive, from which messages are read that the brokers no longer have."""
    local: bool
    """False: over TCP, also on the broker's host."""
    local_directories: Sequence[str] | None
    """The only directories in which stores are read in place, regardless of their owner."""
    fail_on_data_loss: bool
    batch_rows: int
    batch_bytes: int
    """The limits of a batch; a larger row is alone."""
    retry_timeout_s: float
    """How long brokers and name servers may be away."""
    credentials: Credentials | None
    """By default those of the environment."""
    schema: object
    """The fields of bodies are columns instead of ``value``: a pyarrow.Schema for JSON, a schema of Avro
    (``mqspark.schemas.parsing.parse``) for bodies without a prefix, or ``FromRegistry(url)``. The columns of the
    message then are named by ``columns``."""
    reason_column: str | None
    """With ``schema``: a column that says why a body does not fit it; the others of its row are null. Without it such a
    body raises InvalidMessage."""


def read(nameserver: str, topic: str | Sequence[str], **choices: Unpack[ReadChoices]) -> pa.RecordBatchReader:
    """The messages of a topic, or of several, from ``start`` to ``end``.

    >>> mqspark.arrow.read("127.0.0.1:9876", "Orders", columns=["key", "value"]).read_all()

    Raises ConfigError for what is malformed or contradicts, NoSuchTopic, DataLoss, and ClientError for a cluster that
    is away; while rows are read also InvalidMessage.
    """
    return TopicRead(nameserver, topic, **choices).reader()


@dataclass
class TopicRead:
    """A read that is checked, and contacts no cluster yet."""

    nameserver: str
    topic: str | Sequence[str]
    columns: Sequence[str] | None = None
    start: Bound = "earliest"
    end: Bound = "now"
    key: str | Sequence[str] | None = None
    tags: str | Sequence[str] | None = None
    sql_filter: str | None = None
    group: str | None = None
    archive: str | None = None
    local: bool = True
    local_directories: Sequence[str] | None = None
    fail_on_data_loss: bool = True
    batch_rows: int = BATCH_ROWS
    batch_bytes: int = BATCH_BYTES
    retry_timeout_s: float = RETRY_TIMEOUT_MS / 1000
    credentials: Credentials | None = None
    schema: object = None
    reason_column: str | None = None
    only: InitVar[Sequence[str] | None] = None
    """The columns to keep of those that the others ask for."""
    row_schema: pa.Schema = field(init=False)
    chosen: tuple[str, ...] = field(init=False)
    """The columns that are read of messages."""
    choice: QueueChoice = field(init=False)
    _own: tuple[str, ...] = field(init=False, repr=False)
    """The message's own columns that ``columns`` names."""
    _typed: TypedRead | None = field(init=False, repr=False)

    def __post_init__(self, only: Sequence[str] | None) -> None:
        self._choose_columns()
        own = self._own
        if only is not None:
            # A name that is no column of this read may be another one of the message.
            others = [name for name in only if name not in self.row_schema.names]
            own = (*own, *named_columns(others, ()))
            known = {each.name: each for each in (*self.row_schema, *arrow_schema(own))}
            self.row_schema = pa.schema([known[name] for name in only])
        self.chosen = tuple(name for name in self.row_schema.names if name in own)
        if self._typed is not None:
            if len(self.chosen) == len(self.row_schema):
                self._typed = None  # nothing of the bodies is asked for
            else:
                self.chosen = tuple(dict.fromkeys((*self.chosen, *self._typed.needs)))
        check_number("batch_rows", self.batch_rows, 1)
        check_number("batch_bytes", self.batch_bytes, LEAST_BATCH_BYTES)
        if not isinstance(self.retry_timeout_s, int | float) or self.retry_timeout_s < 0:
            raise ConfigError.of("retry_timeout_s", f"seconds, not {self.retry_timeout_s!r}")
        topics = _topics(self.topic)
        tags, keys = _tags(self.tags), _texts("key", self.key)
        self._check_combination(tags, keys)
        self.choice = QueueChoice(
            nameserver=self.nameserver,
            topics=TopicSelection(names=topics),
            group=self.group,
            starting=_spec("start", self.start, topics),
            ending=_spec("end", self.end, topics),
            unmatched_timestamp_is_latest=True,
            fail_on_data_loss=self.fail_on_data_loss,
            limits=LIMITS,
            tags=tags,
            sql_filter=self.sql_filter,
            keys=keys,
            archive=self.archive,
            local_read=self.local,
            local_directories=None if self.local_directories is None else tuple(self.local_directories),
            retry_timeout_ms=int(self.retry_timeout_s * 1000),
            signing=SigningOptions(self.credentials),
        )

    def _choose_columns(self) -> None:
        if isinstance(self.columns, str):
            raise ConfigError.of("columns", "a list of names, not a text")
        default = default_columns()
        self._typed = None
        if self.schema is not None:
            self._typed = TypedRead(self.schema, _topics(self.topic), self.reason_column)
            default = tuple(name for name in default if name != VALUE)
        elif self.reason_column is not None:
            raise ConfigError.of("reason_column", "needs a schema")
        self._own = default if self.columns is None else named_columns(self.columns, default)
        fields = [*arrow_schema(self._own), *([] if self._typed is None else self._typed.fields)]
        if not fields:
            raise ConfigError.of("columns", "select at least one column")
        names = [each.name for each in fields]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError.of(
                    "schema", f"a column {name!r} is there twice; name those of the message by columns"
                )
        self.row_schema = pa.schema(fields)

    def _check_combination(self, tags: tuple[str, ...], keys: tuple[str, ...]) -> None:
        if self.group is not None:
            with told_of("group"):
                check_group(self.group)
        elif self.start == "group":
            raise ConfigError.of("start", "'group' needs a group")
        if self.sql_filter is not None:
            try:
                compile_sql(self.sql_filter)
            except InvalidFilter as error:
                raise ConfigError.of("sql_filter", f"{error}") from None
        if self.sql_filter is not None and tags:
            raise ConfigError.of("sql_filter", "contradicts tags; write TAGS IN ('A', 'B')")
        if self.archive is not None and (self.sql_filter is not None or tags):
            raise ConfigError.of("archive", "filters are evaluated by brokers; filter the rows")
        if keys:
            ranged = self.start != "earliest" or self.end not in ("now", "latest")
            if ranged or tags or self.sql_filter is not None or self.archive is not None:
                raise ConfigError.of(
                    "key", "does not go together with start, end, tags, sql_filter or archive"
                )

    def of(self, columns: Sequence[str]) -> TopicRead:
        """The same read of some of its columns."""
        return replace(self, only=tuple(columns))

    def reader(self, narrow: Narrowing | None = None) -> pa.RecordBatchReader:
        """Resolves the bounds now. ``narrow``: leaves out parts of ranges of which no row is needed."""
        cluster = ClusterQueues(self.choice)
        with closing(cluster.client):
            batches = self._found(cluster) if self.choice.keys else self._ranged(cluster, narrow)
        if self._typed is not None:
            batches = self._typed.rows(batches, self.row_schema)
        limited = within_limits(batches, self.batch_rows, self.batch_bytes)
        return pa.RecordBatchReader.from_batches(self.row_schema, limited)

    def _found(self, cluster: ClusterQueues) -> Iterator[pa.RecordBatch]:
        lookups = plan_lookups(cluster, self.choice)
        return (batch for each in lookups for batch in read_lookup(each, self.choice, self.chosen))

    def _ranged(self, cluster: ClusterQueues, narrow: Narrowing | None) -> Iterator[pa.RecordBatch]:
        ranges = bounded_ranges(cluster, self.choice)
        if narrow is not None and ranges:
            ranges = narrow(ranges, cluster.logic_places(each.queue for each in ranges))
        archived = []
        if cluster.archive is not None:
            old, ranges = cluster.archive.split(ranges)
            archived = plan_archive(cluster.archive, old, self.chosen)
        parts = [ranges] if ranges else []
        tasks = read_tasks(cluster, parts, self.choice, self.chosen, group=GROUP)
        history = (batch for each in archived for batch in read_archive(each))
        return _chained(history, self._live(tasks))

    def _live(self, tasks: Iterable[ReadTask]) -> Iterator[pa.RecordBatch]:
        opened = OpenPlaces()
        try:
            for task in tasks:
                yield from read_task(task, opened, self.batch_bytes)
        finally:
            opened.close()


def within_limits(
    batches: Iterator[pa.RecordBatch], batch_rows: int, batch_bytes: int
) -> Iterator[pa.RecordBatch]:
    """The same rows in batches within these limits; a larger row is alone."""
    for batch in batches:
        rows = batch_rows
        if batch.nbytes > 2 * batch_bytes:
            rows = min(rows, max(1, batch.num_rows * batch_bytes // batch.nbytes))
        for first in range(0, batch.num_rows, rows):
            yield batch.slice(first, rows)


def _chained(*parts: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for part in parts:
        yield from part


def check_number(name: str, value: object, lowest: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < lowest:
        raise ConfigError.of(name, f"a whole number from {lowest} on, not {value!r}")


def _texts(name: str, given: str | Sequence[str] | None) -> tuple[str, ...]:
    """Raises ConfigError."""
    if given is None:
        return ()
    values = (given,) if isinstance(given, str) or not isinstance(given, Iterable) else tuple(given)
    if not values or not all(isinstance(value, str) and value for value in values):
        raise ConfigError.of(name, f"a text, or several, none of them empty, not {given!r}")
    return tuple(dict.fromkeys(values))


def _topics(given: str | Sequence[str]) -> tuple[str, ...]:
    names = _texts("topic", given)
    for name in names:
        with told_of("topic", f"topic: {name!r}"):
            check_topic(name)
    return names


def _tags(given: str | Sequence[str] | None) -> tuple[str, ...]:
    if given is None or given in ("", "*"):
        return ()
    with told_of("tags"):
        given = split_tags(given) if isinstance(given, str) else given
    names = _texts("tags", given)
    if "*" in names:
        raise ConfigError.of("tags", "'*' is alone")
    return names


def _spec(option: str, bound: Bound, topics: tuple[str, ...]) -> OffsetSpec:
    """Raises ConfigError."""
    match bound:
        case "earliest" | "group" if option == "start":
            return OffsetSpec(option, Position(bound))
        case "latest" | "now":
            return OffsetSpec(option, Position.LATEST)
        case datetime():
            if bound.tzinfo is None:
                raise ConfigError.of(
                    option, f"{bound.isoformat()} has no time zone; write datetime(..., tzinfo=UTC)"
                )
            return OffsetSpec(option, Position.LATEST, timestamp_ms=max(0, int(bound.timestamp() * 1000)))
        case Mapping():
            return OffsetSpec(option, Position.LATEST, offsets=_offsets(option, bound, topics))
    words = "'earliest', 'now', 'group'" if option == "start" else "'now'"
    raise ConfigError.of(
        option, f"{words}, a datetime, or the offset of each queue as {{0: 17, ...}}, not {bound!r}"
    )


def _offsets(option: str, given: Mapping[Any, Any], topics: tuple[str, ...]) -> QueueTexts:
    """``{0: 17}`` or ``{"broker-a:0": 17}`` for one topic, ``{topic: {...}}`` for several. Raises ConfigError."""
    nested = given if any(isinstance(each, Mapping) for each in given.values()) else {topics[0]: given}
    if set(nested) != set(topics):
        raise ConfigError.of(option, f"give the offsets of {', '.join(topics)}")
    found: QueueTexts = {}
    for topic, queues in nested.items():
        if not isinstance(queues, Mapping):
            raise ConfigError.of(option, f"topic {topic!r} needs the offset of each queue")
        found[topic] = {}
        for queue, offset in queues.items():
            if not str(queue).rpartition(":")[2].isdecimal():
                raise ConfigError.of(option, f"{queue!r} is not a queue id, nor 'broker:queue id'")
            is_number = isinstance(offset, int) and not isinstance(offset, bool)
            if not is_number or not EARLIEST_OFFSET <= offset <= INT64_MAX:
                raise ConfigError.of(option, f"queue {queue!r}: a whole number is needed, not {offset!r}")
            found[topic][str(queue)] = offset
    return found
