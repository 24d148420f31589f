"""Turns messages into records and queue entries, both in memory: the first step of storing.

Offsets are assigned here and never taken back. What was appended since the last write is in
``CommitLog.pending`` and in the ``entries`` of the dirty queues (``Unsettled``); the store writes both. Disk
space is reserved before anything is changed, so a refused message leaves no trace.

Must not know what is written, durable or visible.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from mqspark.base.crc import crc32 as full_crc32
from mqspark.base.propertystring import item, joined
from mqspark.errors import DiskFull, InvalidMessage, MessageTooLarge
from mqspark.message import (
    BORN_HOST_V6,
    HOST_FLAGS,
    INNER_BASE,
    INNER_BATCH,
    INNER_NUM,
    MAX_PROPERTIES_BYTES,
    NEED_UNWRAP,
    SCHEDULE_TOPIC,
    STORE_HOST_V6,
    TRANSACTION_PREPARED_TYPE,
)
from mqspark.record.record import (
    BODY_CRC_MASK,
    CRC_PROPERTY_BYTES,
    PendingRecord,
    pack_head,
    pack_head_of,
    room_for_crc,
    sealed,
    tags_code,
    topic_field,
)
from mqspark.record.recordlayout import BLANK_BYTES, HEADS, HEADS_OF_RUNS, HOST_BYTES
from mqspark.store.index.aheadkeys import KeyForm
from mqspark.store.messages.condition import Condition
from mqspark.store.messages.members import Common, queue_entries
from mqspark.store.messages.membertable import BatchMembers
from mqspark.store.messages.unsettled import Group, Unsettled
from mqspark.store.queue.batchqueue import MAX_BATCH, BatchEntry, BatchQueue
from mqspark.store.queue.consumequeue import ENTRY, ConsumeQueue
from mqspark.store.queue.multidispatch import LMQ_QUEUE_ID, offsets_property
from mqspark.store.storedata import StoreData

_pack_entry = ENTRY.pack
_pack_length = struct.Struct(">h").pack
"""Length of the properties."""
_OF_BATCHES = INNER_BATCH | NEED_UNWRAP

Item = tuple[int, bytes, bytes]
"""Flag, body and properties of a message of a batch (``mqspark.record.batchitems.split_batch``)."""

Parts = tuple[bytes | memoryview, ...]
"""A record, in pieces."""
Place = tuple[int, int, int]
"""Queue offset, physical offset and end offset of a record in the log."""

Ints = npt.NDArray[np.int64]


class PlainForm(NamedTuple):
    """What messages have in common that differ in queue, born time, unique id and body only, the unique ids being
    of one length."""

    topic: str
    magic: int
    before: bytes
    """What a record has between its body and the unique id."""
    between: bytes | None
    """What is between the unique id and the born time, for those that have that among their properties."""
    after: bytes
    overhead_bytes: int
    """Size of a record without its head and its body."""
    tags_code: int
    sys_flag: int
    """Without the bits of the hosts."""
    flag: int
    reconsume_times: int
    keys: KeyForm | None = None
    """None: the index has to look for their keys."""

    @staticmethod
    def around(
        topic: str, properties_bytes: int, suffix: bytes, *, tags_code: int, sys_flag: int
    ) -> PlainForm:
        """That of messages all of whose properties stand for the unique id: ``properties_bytes`` of them, and
        ``suffix``."""
        magic, field = topic_field(topic)
        size = properties_bytes + len(suffix)
        before = field + _pack_length(size)
        return PlainForm(topic, magic, before, None, suffix, len(field) + 2 + size, tags_code, sys_flag, 0, 0)

    @staticmethod
    def of(
        record: PendingRecord, before_id: bytes, after_id: bytes, between: bytes | None = None
    ) -> PlainForm:
        """That of a message which was put. ``before_id`` and ``after_id``: its properties around the unique id; or,
        when the born time comes as well, before the one and after the other, with ``between``."""
        magic, field = topic_field(record.topic)
        before = b"%b%b%b" % (field, _pack_length(len(record.properties)), before_id)
        return PlainForm(
            record.topic,
            magic,
            before,
            between,
            after_id,
            len(field) + 2 + len(record.properties),
            record.tags_code,
            record.sys_flag,
            record.flag,
            record.reconsume_times,
            KeyForm.of(record.topic, record.properties, record.sys_flag),
        )


PlainMessage = tuple[PlainForm, int, int, bytes, bytes | memoryview, Any]
"""Form, queue id, born time, unique id, body, and what its sender knows it by."""
PlainPlace = tuple[int, int, int, bytes, Any]
"""Physical offset, queue id, queue offset, unique id and what the sender knows it by."""
PlainRun = tuple[list[PlainPlace], list[int]]
"""The places of records, and their sizes."""
_id_of: Callable[[PlainPlace], bytes] = itemgetter(3)


class Appender:
    """All kinds of put."""

    def __init__(
        self,
        data: StoreData,
        store_host: bytes,
        condition: Condition,
        unsettled: Unsettled,
    ) -> None:
        self._clock = data.clock
        self._log = data.log
        self._table = data.table
        self._queues = data.table.queues
        self._batch_table = data.batch_table
        self._batch_queues = data.batch_table.batch_queues
        self._levels = data.levels
        self._ahead = data.indexer.ahead if data.indexer is not None else None
        self._property_crc = data.config.enabled_append_prop_crc
        self._store_host = store_host
        self._flags = STORE_HOST_V6 if len(store_host) == 20 else 0
        self._flags_v6 = self._flags | BORN_HOST_V6
        self._heads = {
            HOST_BYTES[flags][0]: (flags, HEADS[flags].size, *HEADS_OF_RUNS[flags])
            for flags in (self._flags, self._flags_v6)
        }
        """Flags, size and packers of heads of runs, by the length of the born host."""
        self._condition = condition
        self._unsettled = unsettled
        self.max_body_bytes = data.config.max_message_size
        self.now_ms = 0
        """Store time of everything pending: that of the first put after a commit."""
        self._dirty = unsettled.dirty
        self.put_count = 0
        """Number of messages put."""

    @property
    def next_store_time_ms(self) -> int:
        """Store time of the next put: while records are pending, that of the newest (``put``)."""
        return self.now_ms if self._log.pending else self._clock.now_ms()

    def take_group(self) -> Group:
        """Take the queue entries of everything that leaves ``pending``."""
        group: Group = [(queue, queue.take_entries()) for queue in self._dirty]
        self._dirty.clear()
        return group

    def put(self, record: PendingRecord) -> Place:
        """Append one message; ``commit`` writes it. Returns queue offset, physical offset and end offset.

        All messages put between two commits have the store time of the first, or of the last one with a delay level
        before them: its delay begins when it comes, however long the disk takes. Prepared and rolled back messages
        (system flag) get queue offset 0 and no queue entry. Raises MessageTooLarge, InvalidMessage (also for an
        inner batch, for which a start would take the topic for a BatchCQ), StoreReadOnly or DiskFull with nothing
        changed.
        """
        topic = record.topic
        queue = self._queues.get((topic, record.queue_id))
        if queue is None:
            if topic in self._table.batch_topics:
                return self._put_batched(record, 0)
            queue = self._create_queue(topic, record.queue_id)
        body, properties = record.body, record.properties
        if self._property_crc:
            properties = room_for_crc(properties)
        body_length, properties_length = len(body), len(properties)
        if body_length > self.max_body_bytes or properties_length > MAX_PROPERTIES_BYTES:
            raise self._too_large(body_length, properties_length)
        sys_flag = record.sys_flag | (self._flags if len(record.born_host) == 8 else self._flags_v6)
        if sys_flag & _OF_BATCHES:
            raise _not_alone(record)
        size = HEADS[sys_flag & HOST_FLAGS].size + queue.overhead_bytes + body_length + properties_length
        queue_offset = queue.next_offset
        if queue_offset >= queue.reserved_end:
            self._reserve(queue, 1)
        log = self._log
        position = log.position
        if position + size > log.room_end:
            position = self._make_room(size)
        if not log.pending or queue.is_schedule:
            self.now_ms = self._clock.now_ms()
        if sys_flag & TRANSACTION_PREPARED_TYPE:
            queue_offset = 0
        now_ms = self.now_ms
        parts: Parts = (
            pack_head(
                record.queue_id,
                record.born_timestamp_ms,
                record.born_host,
                record.reconsume_times,
                record.prepared_offset,
                record.flag,
                body,
                size,
                queue.record_magic,
                sys_flag,
                queue_offset,
                position,
                now_ms,
                self._store_host,
            ),
            body,
            queue.topic_field,
            _pack_length(properties_length),
            properties,
        )
        if self._property_crc:
            parts = (sealed(b"".join(parts)),)
        if not sys_flag & TRANSACTION_PREPARED_TYPE:
            tags_code = record.tags_code
            if queue.is_schedule:
                tags_code = self._levels.schedule_tags_code(properties, tags_code, now_ms)
            if queue.ext_out is not None:
                tags_code = queue.ext_out.put(tags_code, now_ms)
            if not queue.entries:
                self._dirty.append(queue)
            queue.advance(_pack_entry(position, size, tags_code))
        self.put_count += 1
        return queue_offset, position, log.append(parts, size)

    def put_run(self, born_host: bytes, messages: Sequence[PlainMessage]) -> PlainRun:
        """``put`` of messages of one sender. Returns what was put: from the first one on that is too large, or needs
        room besides what is reserved, the others are left. So one at least is put, unless the first needs a step that
        only ``put`` has. Raises as ``put`` when there is no room for the first."""
        run = self._put_ready(born_host, messages)
        if not run[0] and self._make_ready(born_host, messages[0]):
            run = self._put_ready(born_host, messages)
        return run

    def _make_ready(self, born_host: bytes, message: PlainMessage) -> bool:
        """Make room for a message. Returns whether the run may begin with it."""
        form, queue_id, _, _, body, _ = message
        if self._property_crc or len(body) > self.max_body_bytes or form.topic in self._table.batch_topics:
            return False
        queue = self._queues.get((form.topic, queue_id)) or self._create_queue(form.topic, queue_id)
        if queue.next_offset >= queue.reserved_end:
            self._reserve(queue, 1)
        hosts = self._flags if len(born_host) == 8 else self._flags_v6
        size = HEADS[hosts].size + form.overhead_bytes + len(body)
        if self._log.position + size > self._log.room_end:
            self._make_room(size)
        return True

    def _put_ready(self, born_host: bytes, messages: Sequence[PlainMessage]) -> PlainRun:
        places: list[PlainPlace] = []
        sizes: list[int] = []
        if self._property_crc or self._table.ext_enabled:
            return places, sizes
        log, queues, most = self._log, self._queues, self.max_body_bytes
        if not log.pending:
            self.now_ms = self._clock.now_ms()
        position, room_end = log.position, log.room_end
        hosts, head_bytes, pack_run_head, pack_alike = self._heads[len(born_host)]
        parts: list[bytes | memoryview] = []
        dirty, pack_entry = self._dirty, _pack_entry
        form: PlainForm | None = None
        keys = messages[0][0].keys
        for message_form, queue_id, born_ms, key, body, number in messages:
            if message_form is not form:
                form = message_form
                topic, magic, before, between, after, overhead, tags_code, sys_flag, flag, times, its_keys = (
                    form
                )
                if topic == SCHEDULE_TOPIC:
                    break
                overhead += head_bytes
                sys_flag |= hosts
                if keys is not its_keys:
                    keys = None
                alike = pack_alike(born_host, self.now_ms, self._store_host, times, 0)
            queue = queues.get((topic, queue_id))
            if queue is None:
                break
            body_bytes, queue_offset = len(body), queue.next_offset
            size = overhead + body_bytes
            end = position + size
            if end > room_end or queue_offset >= queue.reserved_end or body_bytes > most:
                break
            parts += (
                pack_run_head(
                    size,
                    magic,
                    full_crc32(body) & BODY_CRC_MASK,
                    queue_id,
                    flag,
                    queue_offset,
                    position,
                    sys_flag,
                    born_ms,
                    alike,
                    body_bytes,
                ),
                body,
                before,
                key,
                after if between is None else b"%b%d%b" % (between, born_ms, after),
            )
            if not queue.entries:
                dirty.append(queue)
            queue.advance(pack_entry(position, size, tags_code))
            places.append((position, queue_id, queue_offset, key, number))
            sizes.append(size)
            position = end
        count = len(sizes)
        self.put_count += count
        ahead = self._ahead
        # To tell of one costs what to read it costs, so it begins no row.
        if (
            keys is not None
            and ahead is not None
            and (count > 1 or (count and ahead.last.end == log.position))
        ):
            ids = b"".join(map(_id_of, places))
            ahead.expect(log.position, position, keys, self.now_ms, ids, sizes)
        log.append(parts, position - log.position)
        return places, sizes

    def put_batch(self, record: PendingRecord, items: Sequence[Item]) -> tuple[int, list[int], int]:
        """Append several messages of one queue to one segment, all or none. ``record`` says what they have in
        common; the tags codes are computed here.

        Returns the first queue offset, the physical offsets and the end offset. Raises as ``put``.
        """
        queue = self._queues.get((record.topic, record.queue_id)) or self._create_queue(
            record.topic, record.queue_id
        )
        sys_flag = self._with_hosts(record)
        overhead = HEADS[sys_flag & HOST_FLAGS].size + queue.overhead_bytes
        crc_room = CRC_PROPERTY_BYTES + 1 if self._property_crc else 0
        sizes = []
        for _, body, properties in items:
            body_length, properties_length = len(body), len(properties)
            if body_length > self.max_body_bytes or properties_length + crc_room > MAX_PROPERTIES_BYTES:
                raise self._too_large(body_length, properties_length)
            sizes.append(overhead + body_length + properties_length)
        total = sum(sizes) + crc_room * len(items)
        self._prepare(queue, len(items), total)
        first_offset, position = queue.next_offset, self._log.position
        positions = []
        if self._is_special(record, queue):
            for flag, body, properties in items:
                code = tags_code(properties)
                member = replace(record, flag=flag, body=body, properties=properties, tags_code=code)
                _, at, position = self.put(member)
                positions.append(at)
            return first_offset, positions, position
        # The steps of ``put`` in one loop, which takes half the time.
        entries, parts = bytearray(), list[bytes | memoryview]()
        topic_field, magic, host, now_ms = (
            queue.topic_field,
            queue.record_magic,
            self._store_host,
            self.now_ms,
        )
        queue_offset = first_offset
        for size, (flag, body, properties) in zip(sizes, items, strict=True):
            entries += _pack_entry(position, size, tags_code(properties) if b"TAGS" in properties else 0)
            parts += (
                pack_head_of(record, flag, body, size, magic, sys_flag, queue_offset, position, now_ms, host),
                body,
                topic_field,
                _pack_length(len(properties)),
                properties,
            )
            positions.append(position)
            position += size
            queue_offset += 1
        return first_offset, positions, self._append(queue, entries, parts, len(items), total)

    def put_members(self, record: PendingRecord, members: BatchMembers) -> tuple[int, Ints, int]:
        """``put_batch`` of many batch members at once."""
        queue = self._queues.get((record.topic, record.queue_id)) or self._create_queue(
            record.topic, record.queue_id
        )
        if self._is_special(record, queue):
            first_offset, places, end = self.put_batch(record, members.items())
            return first_offset, np.array(places, np.int64), end
        body_length, properties_length = members.largest
        if body_length > self.max_body_bytes or properties_length > MAX_PROPERTIES_BYTES:
            raise self._too_large(body_length, properties_length)
        sys_flag = self._with_hosts(record)
        sizes = members.sizes(HEADS[sys_flag & HOST_FLAGS].size + queue.overhead_bytes)
        count, total = len(members), sizes.total
        self._prepare(queue, count, total)
        first_offset, position = queue.next_offset, self._log.position
        positions = sizes.positions(position)
        head = pack_head_of(
            record,
            0,
            b"",
            0,
            queue.record_magic,
            sys_flag,
            first_offset,
            position,
            self.now_ms,
            self._store_host,
        )
        common = Common(head, sys_flag, first_offset, queue.topic_field)
        records = members.records(common, sizes.each, positions)
        if not properties_length and self._ahead is not None:
            self._ahead.expect_none(position, position + total)
        entries = queue_entries(positions, sizes.each, members.tags_codes())
        return first_offset, positions, self._append(queue, entries, (records,), count, total)

    def put_inner_batch(self, record: PendingRecord, count: int) -> Place:
        """Append ``count`` messages as one record of a BatchCQ queue. The body has the format of a batch
        send.

        Returns the queue offset of the first message, the physical offset and the end offset. Raises as
        ``put``.
        """
        if not 0 < count <= MAX_BATCH:
            raise InvalidMessage(f"an inner batch holds 1 to {MAX_BATCH} messages, not {count}", field="body")
        return self._put_batched(record, count)

    def _put_batched(self, record: PendingRecord, count: int) -> Place:
        """``put`` into a BatchCQ queue. ``count`` 0 stands for one ordinary message."""
        key = record.topic, record.queue_id
        queue = self._batch_queues.get(key) or self._create_batch_queue(*key)
        self._condition.check_writable()
        base, array, log = queue.next_offset, queue.array, self._log
        sys_flag, body, properties = self._with_hosts(record), record.body, record.properties
        if sys_flag & _OF_BATCHES:
            raise _not_alone(record)
        if count:
            sys_flag |= _OF_BATCHES
            counts = item(INNER_NUM, str(count)) + item(INNER_BASE, str(base))
            properties = joined(properties, counts.encode())
        if self._property_crc:
            properties = room_for_crc(properties)
        if len(body) > self.max_body_bytes or len(properties) > MAX_PROPERTIES_BYTES:
            raise self._too_large(len(body), len(properties))
        try:
            queue.reserve()
        except DiskFull as error:
            self._condition.lack_space(error)
            raise
        except OSError as error:
            raise self._condition.poison(f"preparing {queue!r} failed", error) from error
        size = HEADS[sys_flag & HOST_FLAGS].size + array.overhead_bytes + len(body) + len(properties)
        position = log.position
        if position + size > log.room_end:
            position = self._make_room(size)
        if not log.pending:
            self.now_ms = self._clock.now_ms()
        head = pack_head_of(
            record,
            record.flag,
            body,
            size,
            array.record_magic,
            sys_flag,
            base,
            position,
            self.now_ms,
            self._store_host,
        )
        data = b"".join((head, body, array.topic_field, _pack_length(len(properties)), properties))
        if not queue.entries:
            self._dirty.append(queue)
        queue.advance(BatchEntry(position, size, record.tags_code, self.now_ms, base, count or 1))
        self.put_count += count or 1
        return base, position, log.append((sealed(data) if self._property_crc else data,), size)

    def put_dispatched(self, queues: Sequence[str], record: PendingRecord) -> Place:
        """``put`` of one message into its own queue and into these LMQ queues (``dispatch.wanted_queues``)."""
        others = []
        for name in queues:
            other = self._queues.get((name, LMQ_QUEUE_ID)) or self._create_queue(name, LMQ_QUEUE_ID)
            if other.next_offset >= other.reserved_end:
                self._reserve(other, 1)
            others.append(other)
        offsets = offsets_property([other.next_offset for other in others])
        properties = joined(record.properties, offsets)
        queue_offset, position, end = self.put(replace(record, properties=properties))
        entry = _pack_entry(position, end - position, record.tags_code)
        for other in others:
            if not other.entries:
                self._dirty.append(other)
            other.advance(entry)
        return queue_offset, position, end

    def _with_hosts(self, record: PendingRecord) -> int:
        """The system flag, with the bits of the hosts."""
        return record.sys_flag | (self._flags if len(record.born_host) == 8 else self._flags_v6)

    def _is_special(self, record: PendingRecord, queue: ConsumeQueue) -> bool:
        """Whether each record of a batch takes the steps that only ``put`` has."""
        return bool(
            self._property_crc
            or queue.is_schedule
            or queue.ext_out is not None
            or record.sys_flag & TRANSACTION_PREPARED_TYPE
        )

    def _prepare(self, queue: ConsumeQueue, count: int, size_bytes: int) -> None:
        """Reserve the room of a batch, and look at the clock if it is the first after a commit."""
        if queue.next_offset + count > queue.reserved_end:
            self._reserve(queue, count)
        if self._log.position + size_bytes > self._log.room_end:
            self._make_room(size_bytes)
        if not self._log.pending:
            self.now_ms = self._clock.now_ms()

    def _append(
        self,
        queue: ConsumeQueue,
        entries: bytes | bytearray,
        parts: Sequence[bytes | memoryview],
        count: int,
        size_bytes: int,
    ) -> int:
        """Append a batch whose room is reserved. Returns its end."""
        if not queue.entries:
            self._dirty.append(queue)
        queue.advance(entries, count)
        self.put_count += count
        return self._log.append(parts, size_bytes)

    def use_batch_queues(self, topic: str) -> None:
        """Use BatchCQ queues for this topic from now on. Raises InvalidMessage when it has queues of the
        other type."""
        if topic not in self._table.batch_topics:
            if any(name == topic for name, _ in self._queues):
                raise InvalidMessage(
                    f"topic {topic!r} has SimpleCQ queues, so its queue.type cannot be BatchCQ", field="topic"
                )
            self._table.batch_topics.add(topic)

    def _create_batch_queue(self, topic: str, queue_id: int) -> BatchQueue:
        self._condition.check_writable()
        self._batch_table.admit(topic)
        self.use_batch_queues(topic)
        self._batch_table.create(topic, queue_id)
        return self._batch_queues[topic, queue_id]

    def _create_queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        self._condition.check_writable()
        self._table.admit(topic)
        return self._table.create(topic, queue_id)

    def _too_large(self, body_length: int, properties_length: int) -> MessageTooLarge:
        if body_length > self.max_body_bytes:
            return MessageTooLarge("body", body_length, self.max_body_bytes)
        return MessageTooLarge("properties", properties_length, MAX_PROPERTIES_BYTES)

    def _reserve(self, queue: ConsumeQueue, count: int) -> None:
        self._condition.check_writable()
        try:
            queue.reserve(count)
        except DiskFull as error:
            self._condition.lack_space(error)
            raise
        except OSError as error:
            raise self._condition.poison(f"preparing {queue!r} failed", error) from error

    def _make_room(self, size: int) -> int:
        self._condition.check_writable()
        log = self._log
        try:
            if log.position + size + BLANK_BYTES > log.segments[-1].end:
                self._unsettled.write_in_flight()
            position = log.make_room(size)
        except DiskFull as error:
            self._condition.lack_space(error)
            raise
        except OSError as error:
            raise self._condition.poison("extending the CommitLog failed", error) from error
        self._condition.lack_space(None)
        return position


def _not_alone(record: PendingRecord) -> InvalidMessage:
    return InvalidMessage(f"an inner batch is not stored as a message of {record.topic}", field="sysFlag")
