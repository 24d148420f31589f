"""Range checks of the tables in ``config/`` against the store when a broker starts.

A file can be valid JSON with values that no broker has written: 2,147,483,647 queues, an offset of -5. Such a
value is replaced from the file's ``.bak``, if that has a possible value, or from the store's queues, and is
reported (``damage``). An offset just past the end of its queue was right before the end of the log was lost,
so it becomes the queue's end: the ``.bak`` is older and would repeat what was consumed.

Topics of stored messages that the table of topics lacks are created from their queues, because what is acknowledged
must be readable: the table may be an older file beside a newer log. Topics that were deleted have no queues
(``mqspark.store.recovery.deletions``), and those that an older table still has are left out.

Where the progress of a group or a delay level cannot be recovered, it restarts at the beginning of its queue:
a message is delivered twice rather than never. ``fsck`` applies the same checks to an offline directory
(``found_in_tables``).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

from mqspark.base.clock import Clock
from mqspark.base.config import INT64_MAX
from mqspark.base.logs import sparing
from mqspark.broker.config import BrokerConfig
from mqspark.broker.statictopic.mappings import Mappings
from mqspark.broker.tables.consumer_offsets import ConsumerOffsets
from mqspark.broker.tables.subscriptions import SubscriptionGroups
from mqspark.broker.tables.topics import Topics, copy_config, is_kept
from mqspark.errors import ProtocolError, StoreCorrupt
from mqspark.message import NEW_TOPIC_QUEUES, SCHEDULE_TOPIC
from mqspark.protocol.bodies.admin_bodies import DelayOffsetSerializeWrapper
from mqspark.protocol.bodies.body import Body, decode_table
from mqspark.protocol.bodies.topic_bodies import MAX_QUEUES, DataVersion, TopicConfig
from mqspark.store.compaction.compactedqueues import COMPACTED
from mqspark.store.disk.configfile import ConfigFile
from mqspark.store.disk.damage import Damage, Note, Outcome
from mqspark.store.disk.notes.tablenotes import TableNotes
from mqspark.store.disk.savedtables import SavedTable, Table
from mqspark.store.queue.batchqueue import BatchQueue
from mqspark.store.queue.consumequeue import ConsumeQueue
from mqspark.store.queue.multidispatch import is_lmq

if TYPE_CHECKING:
    from mqspark.store.tools.offlinestore import OfflineStore

log = sparing(__name__, lines=20)

_CUT_MESSAGES = 1 << 20
"""An offset at most this far past the end of its queue may have been valid before the log was cut; one farther
never was."""
_ANY = 1 << 62
"""The end of a queue of which nothing is known."""
_MAX_NAMED = 20
_TOPICS = "topics.json"
_DELAYS = "delayOffset.json"


class Bounds(Protocol):
    """What a store knows of its queues."""

    def min_offset(self, topic: str, queue_id: int) -> int:
        """-1 for an unknown queue."""

    def max_offset(self, topic: str, queue_id: int) -> int: ...

    def queues(self) -> dict[str, list[int]]: ...


@dataclass(slots=True, frozen=True)
class _Said:
    """An impossible value and its replacement."""

    what: str
    value: object
    taken: object
    source: str

    def damage(self, outcome: Outcome) -> Damage:
        return Damage(
            "config.range",
            outcome,
            f"{self.what} is {self.value}, which is impossible: {self.taken} {self.source}",
        )


def heal_topics(topics: Topics, bounds: Bounds, note: Note) -> None:
    """Queue counts and permissions of ``topics.json``."""
    queues: dict[str, list[int]] | None = None
    for topic in topics:
        config = topic.config
        if (
            0 <= config.read_queue_nums <= MAX_QUEUES
            and 0 <= config.write_queue_nums <= MAX_QUEUES
            and 0 <= config.perm < 16
        ):
            continue
        queues = bounds.queues() if queues is None else queues
        count = max(max(queues.get(topic.name, [-1])) + 1, NEW_TOPIC_QUEUES)
        healed = copy_config(config)
        for name in ("read_queue_nums", "write_queue_nums"):
            value = getattr(config, name)
            if not 0 <= value <= MAX_QUEUES:
                setattr(healed, name, count)
                said = _Said(
                    f"topics.json: {name} of {topic.name}", value, count, "is used, the number of its queues"
                )
                note(said.damage(Outcome.HEALED))
        if not 0 <= config.perm < 16:
            healed.perm = 6
            said = _Said(f"topics.json: perm of {topic.name}", config.perm, 6, "is used")
            note(said.damage(Outcome.LOST))
        topics.put(healed)


def adopt_topics(
    topics: Topics,
    bounds: Bounds,
    note: Note,
    *,
    batches: Container[str],
    compacted: Container[str],
    is_latest: bool,
) -> bool:
    """Topics of stored messages that ``topics.json`` does not have. Returns whether it told of some.

    Unless it ``is_latest``, read queues, too, which an operator may have taken away. ``batches``, ``compacted``: the
    topics whose files tell these attributes."""
    made: list[str] = []
    for name, queue_ids in sorted(bounds.queues().items()):
        topic, count = topics.get(name), max(queue_ids) + 1
        if is_lmq(name) or topics.is_system(name) or count > MAX_QUEUES or not is_kept(name):
            continue
        if topic is None:
            attributes = {"queue.type": "BatchCQ"} if name in batches else {}
            if name in compacted:
                attributes["cleanup.policy"] = "COMPACTION"
            config = TopicConfig(
                topic_name=name, read_queue_nums=count, write_queue_nums=count, attributes=attributes
            )
        elif topic.read_queue_nums < count and not is_latest:
            config = copy_config(topic.config)
            config.read_queue_nums = count
        else:
            continue
        topics.put(config, needed=True)
        made.append(f"{name} ({count} queues)")
    if made:
        lost = (
            "it lacks topics of stored messages, as an older one does"
            if is_latest
            else "the last save is lost"
        )
        text = f"topics.json: {lost}; made from stored messages, without other settings: {_named(made)}"
        note(Damage("config.topics", Outcome.LOST, text))
    return bool(made)


def forget_deleted(topics: Topics, bounds: Bounds, deleted: Mapping[str, int], position: int) -> None:
    """Topics of an older ``topics.json`` that were deleted after it was saved, when the log ended at ``position``.
    ``deleted``: where the log ended at their deletions."""
    queues = bounds.queues() if deleted else {}
    gone = sorted(name for name, end in deleted.items() if end > position and name not in queues)
    gone = [name for name in gone if topics.is_stored(name) and not topics.is_system(name)]
    for name in gone:
        topics.remove(name)
    if gone:
        log.warning("topics.json has topics that were deleted later; they stay deleted: %s", _named(gone))


def _named(names: list[str]) -> str:
    return ", ".join(names[:_MAX_NAMED]) + (", ..." if len(names) > _MAX_NAMED else "")


def heal_groups(groups: SubscriptionGroups, note: Note) -> None:
    """The retryQueueNums of ``subscriptionGroup.json``."""
    for name in groups.names():
        config = groups.configured(name)
        if config is not None and not 0 <= config.retry_queue_nums <= MAX_QUEUES:
            said = _Said(
                f"subscriptionGroup.json: retryQueueNums of {name}", config.retry_queue_nums, 1, "is used"
            )
            note(said.damage(Outcome.LOST))
            config.retry_queue_nums = 1
            groups.touch()


def _end(bounds: Bounds, topic: str, queue_id: int) -> int:
    """A queue without messages says nothing: its topic may have been deleted."""
    return bounds.max_offset(topic, queue_id) if bounds.min_offset(topic, queue_id) >= 0 else _ANY


def _ends(bounds: Bounds, known: dict[str, list[int]], topic: str, count: int) -> list[int]:
    """The ends of the first ``count`` queues or more of a topic, asked once however many groups read it."""
    ends = known.setdefault(topic, [])
    ends += (_end(bounds, topic, queue_id) for queue_id in range(len(ends), count))
    return ends


def heal_offsets(
    offsets: ConsumerOffsets,
    backup: Callable[[], ConsumerOffsets | None],
    bounds: Bounds,
    note: Note,
    *,
    lmq: bool,
) -> None:
    """Offsets of ``consumerOffset.json`` that are negative or past the end of their queue."""
    known: ConsumerOffsets | None = None
    is_loaded = False
    ends: dict[str, list[int]] = {}
    for topic, group in offsets.pairs():
        light = lmq and is_lmq(group)
        if not light and offsets.are_below(group, topic, partial(_ends, bounds, ends, topic)):
            continue
        for queue_id, value in offsets.queues(group, topic).items():
            low = bounds.min_offset(topic, queue_id)
            end = _ANY if light else _end(bounds, topic, queue_id)
            if 0 <= value <= end:
                continue
            if not is_loaded:
                known, is_loaded = backup(), True
            before = known.queues(group, topic).get(queue_id, -1) if known is not None else -1
            what = f"consumerOffset.json: the offset of {group} in {topic}/{queue_id}"
            if end < value <= end + _CUT_MESSAGES:
                note(_Said(what, value, end, "is used, the end of the queue").damage(Outcome.HEALED))
                taken = end
            elif 0 <= before <= end:
                note(_Said(what, value, before, "is used, from the .bak").damage(Outcome.HEALED))
                taken = before
            else:
                taken = max(low, 0)
                note(_Said(what, value, taken, "is used, the start of the queue").damage(Outcome.LOST))
            offsets.commit(group, topic, queue_id, taken)


def heal_delays(
    table: dict[int, int], backup: Mapping[int, int], bounds: Bounds, note: Note
) -> dict[int, int]:
    """Replacements for impossible offsets of delay levels in ``delayOffset.json``."""
    healed: dict[int, int] = {}
    for level, value in table.items():
        end = bounds.max_offset(SCHEDULE_TOPIC, level - 1)
        if 0 <= value <= end or level <= 0:
            continue
        before = backup.get(level, -1)
        what = f"delayOffset.json: the offset of level {level}"
        if end < value <= end + _CUT_MESSAGES:
            healed[level] = end
            note(_Said(what, value, end, "is used, the end of the queue").damage(Outcome.HEALED))
        elif 0 <= before <= end:
            healed[level] = before
            note(_Said(what, value, before, "is used, from the .bak").damage(Outcome.HEALED))
        else:
            healed[level] = max(bounds.min_offset(SCHEDULE_TOPIC, level - 1), 0)
            text = "is used, the start of its queue: messages may be delivered again"
            note(_Said(what, value, healed[level], text).damage(Outcome.LOST))
    return healed


class _Offline:
    """The bounds of a directory that is not in use by a broker."""

    def __init__(self, store: OfflineStore) -> None:
        self._queues: dict[tuple[str, int], ConsumeQueue | BatchQueue] = {
            **store.table.queues,
            **store.batch_table.batch_queues,
        }

    def min_offset(self, topic: str, queue_id: int) -> int:
        queue = self._queues.get((topic, queue_id))
        return queue.min_offset if queue is not None else -1

    def max_offset(self, topic: str, queue_id: int) -> int:
        queue = self._queues.get((topic, queue_id))
        return queue.max_offset if queue is not None else 0

    def queues(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for topic, queue_id in self._queues:
            found.setdefault(topic, []).append(queue_id)
        return found


_B = TypeVar("_B", bound=Body)


def _read(store: OfflineStore, name: str, form: type[_B], note: Note) -> _B:
    """A table of this form; an empty one if there is none, or none that can be read."""
    problem: list[str] = []
    found: list[_B] = []

    def is_readable(data: bytes) -> bool:
        try:
            found.append(decode_table(form, data))
        except ProtocolError as error:
            problem.append(str(error))
        return bool(found)

    file = ConfigFile(store.paths.config / name, store.files, note=note)
    if file.load(is_readable) is None and problem:
        note(Damage("config.unreadable", Outcome.WRONG, f"{name} cannot be read: {problem[0]}"))
    return found[0] if found else form()


def found_in_tables(store: OfflineStore, clock: Clock, log_end: int = INT64_MAX) -> list[Damage]:
    """What a start would report about the tables of ``config/``. ``log_end``: no table was saved when the log was
    longer. Read-only."""
    found: list[Damage] = []
    note = found.append
    config, bounds = BrokerConfig(), _Offline(store)
    topics, groups = Topics(config, clock), SubscriptionGroups(config, clock)
    offsets = ConsumerOffsets(clock, version_step=1)
    tables: dict[str, Table] = {
        _TOPICS: topics,
        "topicQueueMapping.json": Mappings(config, clock),
        "subscriptionGroup.json": groups,
        "consumerOffset.json": offsets,
    }
    notes = TableNotes(ConfigFile(store.paths.tables, store.files), store.paths.config)
    older = dict(notes.compared(store.files, _version_of))
    older_topics = older.pop(_TOPICS, None)
    found.extend(each.damage for each in older.values())
    if older_topics is not None and not older_topics.is_missing:
        note(older_topics.damage)
    # The log of a replica may be taken back.
    beyond = None if store.files.read(store.paths.member) else notes.beyond(log_end)
    if beyond is not None:
        note(beyond)
    saved_topics: SavedTable | None = None
    """None if they cannot be read."""
    for name, table in tables.items():
        try:
            saved = SavedTable(table, ConfigFile(store.paths.config / name, store.files, note=note))
            saved.load()
            if table is topics:
                saved_topics = saved
        except StoreCorrupt as error:
            note(Damage("config.unreadable", Outcome.WRONG, str(error)))
    heal_topics(topics, bounds, note)
    if saved_topics is not None and older_topics is not None:
        forget_deleted(topics, bounds, store.deleted, older_topics.position)
    if saved_topics is not None and store.files.names(store.paths.config):  # else no broker was ever here
        compacted = store.files.names(store.paths.root / COMPACTED)
        is_told = adopt_topics(
            topics,
            bounds,
            note,
            batches=store.table.batch_topics,
            compacted=compacted,
            is_latest=saved_topics.is_latest and older_topics is None,
        )
        if older_topics is not None and older_topics.is_missing and not is_told:
            note(older_topics.damage)
    heal_groups(groups, note)
    heal_offsets(offsets, lambda: None, bounds, note, lmq=store.config.enable_lmq)
    delays = _read(store, _DELAYS, DelayOffsetSerializeWrapper, note)
    heal_delays(delays.offset_table, {}, bounds, note)
    for name in notes.names:
        if "/" not in name and name not in (*tables, _DELAYS):
            _read(store, name, _Versioned, note)
    return found


class _Versioned(Body):
    data_version: DataVersion | None = None


def _version_of(data: bytes) -> tuple[int, int] | None:
    """Time and counter of the data version of any table, if it has one."""
    try:
        version = decode_table(_Versioned, data).data_version
    except ProtocolError:
        return None
    return None if version is None else (version.timestamp, version.counter)
