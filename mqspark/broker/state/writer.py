"""Storing messages that need more than the fast path: messages with parsed properties, and the broker's own.

Ordinary sends have a shorter path (``mqspark.broker.send.send``). Everything else (delayed, timed and
transactional messages, retries, dead letters, deliveries) is a ``Draft`` passed to ``Writer.put``. *Diversions*
see each draft first and may redirect it: a delayed message to the schedule topic, a prepared one to the half
topic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from msgspec.structs import replace

from mqspark.base.propertystring import ITEM_END, find_property, item
from mqspark.broker.statictopic.mappings import Mappings
from mqspark.broker.stats.stats import Stats
from mqspark.broker.tables.topics import Topic, Topics
from mqspark.errors import InvalidMessage
from mqspark.message import (
    CRC32,
    DELAYS,
    HOST_FLAGS,
    MULTI_DISPATCH,
    MULTI_TAGS,
    REAL_QUEUE_ID,
    REAL_TOPIC,
    SCHEDULE_TOPIC,
    SHARDING_KEY,
    TAGS,
    TIMER_DELIVER_MS,
    TIMER_OUT_MS,
    TIMER_TOPIC,
    TRANSACTION_PREPARED,
    UNIQ_KEY,
    decode_properties,
    encode_stored_properties,
    java_hashes,
)
from mqspark.protocol.session import Session
from mqspark.record.record import Parts, PendingRecord, tags_code
from mqspark.store.messages.membertable import BatchMembers
from mqspark.store.queue.multidispatch import allows_dispatch, wanted_queues
from mqspark.store.store import MessageStore

_DELAYS = DELAYS | {"__STARTDELIVERTIME"}
_CRC_NAME = CRC32.encode()
_TIMED = item(TAGS, "%s") + item(UNIQ_KEY, "%s") + item(TIMER_DELIVER_MS, "%d")
_WAITING = item(TIMER_OUT_MS, "%d") + item(REAL_TOPIC, "%s") + item(REAL_QUEUE_ID, "%d")


@dataclass(slots=True)
class Draft:
    """A message about to be stored. The topic must be in the broker's table."""

    topic: str
    queue_id: int
    body: bytes | memoryview
    properties: dict[str, str]
    born_timestamp_ms: int
    born_host: bytes
    sys_flag: int = 0
    flag: int = 0
    reconsume_times: int = 0
    prepared_offset: int = 0
    tags_code: int | None = None
    """None: the hash of the tags, which is the usual case."""
    is_commit: bool = False
    """It was a half message that its producer group committed."""
    session: Session | None = None
    """The session to whose user it belongs while it waits; None: to no user."""


class StoredPosition(NamedTuple):
    queue_offset: int
    physical_offset: int
    end_offset: int
    """The log position that must be acked before anyone may learn of the message (``Acks``)."""

    @property
    def size_bytes(self) -> int:
        """The size of the record, or of all records of a batch."""
        return self.end_offset - self.physical_offset


Diversion = Callable[[Draft], None]
"""May redirect a draft. Raises Refusal if the message cannot be accepted."""


class Outlet(Protocol):
    """Where services put messages whose wait is over: the log here, or brokers of other names."""

    @property
    def end(self) -> int:
        """The position behind everything that was put."""

    @property
    def durable(self) -> int:
        """The position before which no crash can take back what was put."""

    def relay(self, record: Parts, topic: str, queue_id: int, properties: bytes) -> StoredPosition:
        """Put a stored message into another queue. Raises StoreReadOnly, NotNow, InvalidMessage, MessageTooLarge."""


class Writer:
    """An ``Outlet``: the log here."""

    def __init__(self, store: MessageStore, topics: Topics, mappings: Mappings, stats: Stats) -> None:
        self._store = store
        self._topics = topics
        self._static_topics = mappings.table
        self._stats = stats
        self._multi_dispatch = store.config.multi_dispatch
        self.diversions: list[Diversion] = []
        """Called in this order; each sees the draft as the previous one left it."""
        self.own_out_ms: Callable[[int, int], int | None] = lambda deliver_ms, now_ms: None
        """Where a message of the broker's own, to be delivered then, waits for it (``timergate``)."""

    @property
    def end(self) -> int:
        return self._store.log.position

    @property
    def durable(self) -> int:
        return self._store.log.durable

    def put(self, draft: Draft) -> StoredPosition:
        """Append; written at the end of the turn. Raises Refusal, and what ``Appender.put`` raises
        (InvalidMessage also for a topic that accepts committed transactions only)."""
        for divert in self.diversions:
            divert(draft)
        if self._static_topics and (static := self._static_topics.get(draft.topic)) is not None:
            draft.queue_id = static.written_queue(draft.queue_id)
        topic = self._topics.get(draft.topic)
        if topic is not None and topic.commits_only and not draft.is_commit:
            raise InvalidMessage(f"{draft.topic} takes committed transactions only", field="topic")
        sys_flag = draft.sys_flag
        if topic is not None and topic.multi_tag:
            sys_flag |= MULTI_TAGS
        code = draft.tags_code
        if code is None:
            tags = draft.properties.get(TAGS)
            code = java_hashes[tags] if tags else 0
        if topic is not None and topic.inner_batch:
            self._store.appender.use_batch_queues(topic.name)
        draft.properties.pop(CRC32, None)  # belongs to the record that it was read from
        stored = self._append(
            PendingRecord(
                topic=draft.topic,
                queue_id=draft.queue_id,
                born_timestamp_ms=draft.born_timestamp_ms,
                born_host=draft.born_host,
                body=draft.body,
                properties=encode_stored_properties(draft.properties),
                tags_code=code,
                sys_flag=sys_flag,
                flag=draft.flag,
                reconsume_times=draft.reconsume_times,
                prepared_offset=draft.prepared_offset,
            )
        )
        self._count(topic, stored, draft.queue_id, _kind(draft.properties))
        return stored

    def put_timed(
        self,
        topic: str,
        queue_id: int,
        body: bytes,
        tag: str,
        unique_id: str,
        deliver_ms: int,
        now_ms: int,
        born_host: bytes,
    ) -> StoredPosition:
        """``put`` of a draft of the broker's own with these three properties, in less time. Raises the same."""
        out_ms = self.own_out_ms(deliver_ms, now_ms)
        stored_in, its_queue = (topic, queue_id) if out_ms is None else (TIMER_TOPIC, 0)
        target = self._topics.get(stored_in)
        is_plain = target is not None and not (target.commits_only or target.multi_tag or target.inner_batch)
        if not is_plain or self._static_topics or not unique_id.isascii() or ITEM_END in unique_id:
            properties = {TAGS: tag, UNIQ_KEY: unique_id, TIMER_DELIVER_MS: str(deliver_ms)}
            return self.put(Draft(topic, queue_id, body, properties, now_ms, born_host))
        text = _TIMED % (tag, unique_id, deliver_ms)
        if out_ms is not None:
            text += _WAITING % (out_ms, topic, queue_id)
        stored = StoredPosition(
            *self._store.appender.put(
                PendingRecord(
                    topic=stored_in,
                    queue_id=its_queue,
                    born_timestamp_ms=now_ms,
                    born_host=born_host,
                    body=body,
                    properties=text.encode(),
                    tags_code=java_hashes[tag],
                )
            )
        )
        self._count(target, stored, its_queue, "delay")
        return stored

    def put_batch(
        self, record: PendingRecord, items: Sequence[tuple[int, bytes, bytes]] | BatchMembers
    ) -> StoredPosition:
        """Append messages (flag, body, properties) to one queue, all or none, bypassing the diversions;
        ``record`` says what they have in common. Returns where the first one starts. Raises what
        ``Appender.put`` raises."""
        target = self._topics.get(record.topic)
        if target is not None and target.commits_only:
            raise InvalidMessage(f"{record.topic} takes no batches", field="topic")
        if target is not None and target.multi_tag:
            record = replace(record, sys_flag=record.sys_flag | MULTI_TAGS)
        if isinstance(items, BatchMembers):
            first_offset, array, end = self._store.appender.put_members(record, items)
            position = int(array[0])
        else:
            first_offset, positions, end = self._store.appender.put_batch(record, items)
            position = positions[0]
        stored = StoredPosition(first_offset, position, end)
        self._stats.put_messages += len(items)
        if target is not None:
            target.count(stored.size_bytes, messages=len(items))
        return stored

    def relay(
        self, record: Parts, topic: str, queue_id: int, properties: bytes, kind: str = "delay"
    ) -> StoredPosition:
        """Store a record again elsewhere, bypassing the diversions; for messages whose wait is over.

        Raises what ``Appender.put`` raises.
        """
        if _CRC_NAME in properties:  # belongs to the record that it was read from
            found = decode_properties(properties)
            found.pop(CRC32, None)
            properties = encode_stored_properties(found)
        if self._static_topics and (static := self._static_topics.get(topic)) is not None:
            queue_id = static.written_queue(queue_id)
        target = self._topics.get(topic)
        if target is not None and target.commits_only:
            raise InvalidMessage(f"{topic} takes committed transactions only", field="topic")
        if target is not None and target.inner_batch:
            self._store.appender.use_batch_queues(topic)
        stored = self._append(
            PendingRecord(
                topic=topic,
                queue_id=queue_id,
                born_timestamp_ms=record.born_timestamp_ms,
                born_host=record.born_host,
                body=record.body,
                properties=properties,
                tags_code=tags_code(properties),
                sys_flag=record.sys_flag & ~HOST_FLAGS,
                flag=record.flag,
                reconsume_times=record.reconsume_times,
            )
        )
        self._count(target, stored, queue_id, kind)
        return stored

    def _append(self, record: PendingRecord) -> StoredPosition:
        """Append to the queue, and to the light message queues that the message names."""
        if self._multi_dispatch and allows_dispatch(record.topic):
            names = find_property(record.properties, MULTI_DISPATCH.encode())
            if names is not None:
                return StoredPosition(
                    *self._store.appender.put_dispatched(wanted_queues(names.decode()), record)
                )
        return StoredPosition(*self._store.appender.put(record))

    def _count(self, topic: Topic | None, stored: StoredPosition, queue_id: int, kind: str) -> None:
        self._stats.put_messages += 1
        if topic is not None:
            topic.count(stored.size_bytes, kind)
            if topic.name == SCHEDULE_TOPIC:
                self._stats.put_into_queue(topic.name, queue_id, stored.size_bytes)


def _kind(properties: dict[str, str]) -> str:
    """The message type (BrokerMetricsManager.getMessageType)."""
    if properties.get(TRANSACTION_PREPARED, "").lower() == "true":
        return "transaction"
    if SHARDING_KEY in properties:
        return "fifo"
    return "normal" if _DELAYS.isdisjoint(properties) else "delay"
