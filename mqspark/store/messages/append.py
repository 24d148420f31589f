"""Turns messages into records and queue entries, both in memory: the first step of storing.

Offsets are assigned here and never taken back. What was appended since the last write is in
``CommitLog.pending`` and in the ``entries`` of the queues in ``dirty``; the store writes both. Disk space is
reserved before anything is changed, so a refused message leaves no trace.

Must not know what is written, durable or visible.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from mqspark.clock import Clock
from mqspark.crc import crc32
from mqspark.errors import InvalidMessage, MessageTooLarge, StoreError
from mqspark.message import (
    BORN_HOST_V6,
    INNER_BATCH,
    MAX_PROPERTIES_BYTES,
    NEED_UNWRAP,
    STORE_HOST_V6,
    TRANSACTION_PREPARED_TYPE,
)
from mqspark.record import (
    BLANK_BYTES,
    CRC_PROPERTY_BYTES,
    HEADS,
    room_for_crc,
    sealed,
    tags_code,
)
from mqspark.store.config import StoreConfig
from mqspark.store.log.commitlog import CommitLog
from mqspark.store.messages.members import Head, queue_entries
from mqspark.store.messages.membertable import BatchMembers
from mqspark.store.queue.batchqueue import MAX_BATCH, BatchEntry, BatchQueue, BatchTable
from mqspark.store.queue.consumequeue import ENTRY, ConsumeQueue
from mqspark.store.queue.delay import DelayLevels
from mqspark.store.queue.multidispatch import LMQ_QUEUE_ID, offsets_property
from mqspark.store.queue.queuetable import QueueTable

__all__ = ["Appender", "Group", "Item", "Queue"]

_PROPERTIES_LENGTH = struct.Struct(">h")
_pack_properties_length = _PROPERTIES_LENGTH.pack
_pack_entry = ENTRY.pack

Item = tuple[int, bytes, bytes]
"""Flag, body and properties of a message of a batch (``mqspark.record.split_batch``)."""

Ints = npt.NDArray[np.int64]
Queue = ConsumeQueue | BatchQueue
Group = list[tuple[Queue, bytearray]]
"""Queue entries of records that leave ``pending`` together."""


class Appender:
    """All kinds of put. ``check_writable`` raises when nothing may be stored. ``poison`` makes the store
    read-only and returns the error to raise; for a shortage of descriptors or memory it only returns the
    error. ``before_roll`` is called before the end of a segment is written. ``expect_no_keys`` is called with
    ranges of the log in which no record has properties."""

    __slots__ = (
        "_batch_queues",
        "_batch_table",
        "_before_roll",
        "_check_writable",
        "_clock",
        "_expect_no_keys",
        "_head",
        "_head_v6",
        "_levels",
        "_log",
        "_poison",
        "_property_crc",
        "_queues",
        "_store_flag",
        "_store_host",
        "_table",
        "dirty",
        "max_body_bytes",
        "now_ms",
        "put_count",
    )

    def __init__(
        self,
        config: StoreConfig,
        clock: Clock,
        log: CommitLog,
        table: QueueTable,
        batch_table: BatchTable,
        levels: DelayLevels,
        store_host: bytes,
        check_writable: Callable[[], None],
        before_roll: Callable[[], None],
        poison: Callable[[str, Exception], StoreError],
        expect_no_keys: Callable[[int, int], None],
    ) -> None:
        self._clock = clock
        self._log = log
        self._table = table
        self._queues = table.queues
        self._batch_table = batch_table
        self._batch_queues = batch_table.batch_queues
        self._levels = levels
        self._property_crc = config.enabled_append_prop_crc
        self._store_host = store_host
        self._store_flag = STORE_HOST_V6 if len(store_host) == 20 else 0
        self._head = HEADS[self._store_flag >> 4]
        self._head_v6 = HEADS[(self._store_flag | BORN_HOST_V6) >> 4]
        self._check_writable = check_writable
        self._before_roll = before_roll
        self._poison = poison
        self._expect_no_keys = expect_no_keys
        self.max_body_bytes = config.max_message_size
        self.now_ms = 0
        """Store time of everything pending: that of the first put after a commit."""
        self.dirty: list[Queue] = []
        """Queues with unwritten entries."""
        self.put_count = 0

    def take_group(self) -> Group:
        """Take the queue entries of everything that leaves ``pending``."""
        group: Group = []
        for queue in self.dirty:
            group.append((queue, queue.entries))
            queue.entries = bytearray()
        self.dirty.clear()
        return group

    def put(
        self,
        topic: str,
        queue_id: int,
        body: bytes | memoryview,
        properties: bytes,
        tags_code: int,
        born_timestamp_ms: int,
        born_host: bytes,
        sys_flag: int = 0,
        flag: int = 0,
        reconsume_times: int = 0,
        prepared_offset: int = 0,
    ) -> tuple[int, int, int]:
        """Append one message; ``commit`` writes it. Returns queue offset, physical offset and end offset.

        All messages put between two commits have the store time of the first. Prepared and rolled back
        messages (system flag) get queue offset 0 and no queue entry. Raises MessageTooLarge, InvalidMessage,
        StoreReadOnly or DiskFull with nothing changed.
        """
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            if topic in self._table.batch_topics:
                return self._put_batched(
                    topic,
                    queue_id,
                    body,
                    0,
                    properties,
                    tags_code,
                    born_timestamp_ms,
                    born_host,
                    sys_flag,
                    flag,
                    reconsume_times,
                )
            queue = self._create_queue(topic, queue_id)
        body_length = len(body)
        if self._property_crc:
            properties = room_for_crc(properties)
        properties_length = len(properties)
        if body_length > self.max_body_bytes or properties_length > MAX_PROPERTIES_BYTES:
            raise self._too_large(body_length, properties_length)
        if len(born_host) == 8:
            head = self._head
            sys_flag |= self._store_flag
        else:
            head = self._head_v6
            sys_flag |= self._store_flag | BORN_HOST_V6
        size = head.size + queue.overhead_bytes + body_length + properties_length
        log = self._log
        queue_offset = queue.next_offset
        if queue_offset >= queue.reserved_end:
            self._reserve(queue, 1)
        position = log.position
        if position + size > log.room_end:
            position = self._make_room(size)
        pending = log.pending
        if not pending:
            self.now_ms = self._clock.now_ms()
        if sys_flag & TRANSACTION_PREPARED_TYPE:
            queue_offset = 0
        else:
            if queue.is_schedule:
                tags_code = self._levels.schedule_tags_code(properties, tags_code, self.now_ms)
            if queue.ext_out is not None:
                tags_code = queue.ext_out.put(tags_code, self.now_ms)
            if not queue.entries:
                self.dirty.append(queue)
            queue.entries += _pack_entry(position, size, tags_code)
            queue.next_offset = queue_offset + 1
        pending += (
            head.pack(
                size,
                queue.record_magic,
                crc32(body) & 0x7FFFFFFF,
                queue_id,
                flag,
                queue_offset,
                position,
                sys_flag,
                born_timestamp_ms,
                born_host,
                self.now_ms,
                self._store_host,
                reconsume_times,
                prepared_offset,
                body_length,
            ),
            body,
            queue.topic_field,
            _pack_properties_length(properties_length),
            properties,
        )
        if self._property_crc:
            pending[-5:] = (sealed(b"".join(pending[-5:])),)
        end = position + size
        log.position = end
        self.put_count += 1
        return queue_offset, position, end

    def put_batch(
        self,
        topic: str,
        queue_id: int,
        items: Sequence[Item],
        born_timestamp_ms: int,
        born_host: bytes,
        sys_flag: int = 0,
        reconsume_times: int = 0,
        prepared_offset: int = 0,
    ) -> tuple[int, list[int], int]:
        """Append several messages of one queue to one segment, all or none. The tags codes are computed here.

        Returns the first queue offset, the physical offsets and the end offset. Raises as ``put``.
        """
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            queue = self._create_queue(topic, queue_id)
        head = self._head if len(born_host) == 8 else self._head_v6
        overhead = head.size + queue.overhead_bytes
        crc_room = CRC_PROPERTY_BYTES + 1 if self._property_crc else 0
        sizes = []
        for _, body, properties in items:
            body_length, properties_length = len(body), len(properties)
            if body_length > self.max_body_bytes or properties_length + crc_room > MAX_PROPERTIES_BYTES:
                raise self._too_large(body_length, properties_length)
            sizes.append(overhead + body_length + properties_length)
        total = sum(sizes) + crc_room * len(items)
        log = self._log
        if queue.next_offset + len(items) > queue.reserved_end:
            self._reserve(queue, len(items))
        if log.position + total > log.room_end:
            self._make_room(total)
        first_offset, position = queue.next_offset, log.position
        positions = []
        if crc_room or queue.is_schedule or queue.ext_out is not None or sys_flag & TRANSACTION_PREPARED_TYPE:
            for flag, body, properties in items:
                code = tags_code(properties)
                _, at, position = self.put(
                    topic,
                    queue_id,
                    body,
                    properties,
                    code,
                    born_timestamp_ms,
                    born_host,
                    sys_flag,
                    flag,
                    reconsume_times,
                    prepared_offset,
                )
                positions.append(at)
            return first_offset, positions, position
        # The steps of ``put`` in one loop, which takes half the time.
        pending, entries, topic_field = log.pending, queue.entries, queue.topic_field
        pack, magic, host = head.pack, queue.record_magic, self._store_host
        if not pending:
            self.now_ms = self._clock.now_ms()
        now_ms = self.now_ms
        if not entries:
            self.dirty.append(queue)
        sys_flag |= self._store_flag | (BORN_HOST_V6 if len(born_host) == 20 else 0)
        queue_offset = first_offset
        for size, (flag, body, properties) in zip(sizes, items, strict=True):
            entries += _pack_entry(position, size, tags_code(properties) if b"TAGS" in properties else 0)
            pending += (
                pack(
                    size,
                    magic,
                    crc32(body) & 0x7FFFFFFF,
                    queue_id,
                    flag,
                    queue_offset,
                    position,
                    sys_flag,
                    born_timestamp_ms,
                    born_host,
                    now_ms,
                    host,
                    reconsume_times,
                    prepared_offset,
                    len(body),
                ),
                body,
                topic_field,
                _pack_properties_length(len(properties)),
                properties,
            )
            positions.append(position)
            position += size
            queue_offset += 1
        queue.next_offset = queue_offset
        log.position = position
        self.put_count += len(items)
        return first_offset, positions, position

    def put_members(
        self,
        topic: str,
        queue_id: int,
        members: BatchMembers,
        born_timestamp_ms: int,
        born_host: bytes,
        sys_flag: int = 0,
        reconsume_times: int = 0,
        prepared_offset: int = 0,
    ) -> tuple[int, Ints, int]:
        """``put_batch`` of many batch members at once."""
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            queue = self._create_queue(topic, queue_id)
        if (
            self._property_crc
            or queue.is_schedule
            or queue.ext_out is not None
            or sys_flag & TRANSACTION_PREPARED_TYPE
        ):
            first_offset, places, end = self.put_batch(
                topic,
                queue_id,
                members.items(),
                born_timestamp_ms,
                born_host,
                sys_flag,
                reconsume_times,
                prepared_offset,
            )
            return first_offset, np.array(places, np.int64), end
        body_length, properties_length = members.largest
        if body_length > self.max_body_bytes or properties_length > MAX_PROPERTIES_BYTES:
            raise self._too_large(body_length, properties_length)
        sys_flag |= self._store_flag | (BORN_HOST_V6 if len(born_host) == 20 else 0)
        sizes = members.sizes(HEADS[(sys_flag >> 4) & 3].size + queue.overhead_bytes)
        count, total = len(members), sizes.total
        log = self._log
        if queue.next_offset + count > queue.reserved_end:
            self._reserve(queue, count)
        if log.position + total > log.room_end:
            self._make_room(total)
        if not log.pending:
            self.now_ms = self._clock.now_ms()
        if not queue.entries:
            self.dirty.append(queue)
        first_offset, position = queue.next_offset, log.position
        positions = sizes.positions(position)
        head = Head(
            queue.record_magic,
            queue_id,
            sys_flag,
            born_timestamp_ms,
            born_host,
            self.now_ms,
            self._store_host,
            reconsume_times,
            prepared_offset,
            queue.topic_field,
        )
        log.pending.append(members.records(head, sizes.each, positions, first_offset))
        if not properties_length:
            self._expect_no_keys(position, position + total)
        queue.entries += queue_entries(positions, sizes.each, members.tags_codes())
        queue.next_offset = first_offset + count
        log.position = position + total
        self.put_count += count
        return first_offset, positions, position + total

    def put_inner_batch(
        self,
        topic: str,
        queue_id: int,
        body: bytes | memoryview,
        count: int,
        properties: bytes,
        tags_code: int,
        born_timestamp_ms: int,
        born_host: bytes,
        sys_flag: int = 0,
        reconsume_times: int = 0,
    ) -> tuple[int, int, int]:
        """Append ``count`` messages as one record of a BatchCQ queue. ``body`` has the format of a batch
        send.

        Returns the queue offset of the first message, the physical offset and the end offset. Raises as
        ``put``.
        """
        if not 0 < count <= MAX_BATCH:
            raise InvalidMessage(f"an inner batch holds 1 to {MAX_BATCH} messages, not {count}", field="body")
        return self._put_batched(
            topic,
            queue_id,
            body,
            count,
            properties,
            tags_code,
            born_timestamp_ms,
            born_host,
            sys_flag | INNER_BATCH | NEED_UNWRAP,
            0,
            reconsume_times,
        )

    def _put_batched(
        self,
        topic: str,
        queue_id: int,
        body: bytes | memoryview,
        count: int,
        properties: bytes,
        tags_code: int,
        born_timestamp_ms: int,
        born_host: bytes,
        sys_flag: int,
        flag: int,
        reconsume_times: int,
    ) -> tuple[int, int, int]:
        """``put`` into a BatchCQ queue. ``count`` 0 stands for one ordinary message."""
        queue = self._batch_queues.get((topic, queue_id)) or self._create_batch_queue(topic, queue_id)
        self._check_writable()
        base = queue.next_offset
        if count:
            joint = b"" if not properties or properties[-1] == 2 else b"\x02"
            properties += joint + b"INNER_NUM\x01%d\x02INNER_BASE\x01%d\x02" % (count, base)
        if self._property_crc:
            properties = room_for_crc(properties)
        if len(body) > self.max_body_bytes or len(properties) > MAX_PROPERTIES_BYTES:
            raise self._too_large(len(body), len(properties))
        try:
            queue.reserve()
        except OSError as error:
            raise self._poison(f"preparing {queue!r} failed", error) from error
        array, log = queue.array, self._log
        sys_flag |= self._store_flag | (BORN_HOST_V6 if len(born_host) == 20 else 0)
        head = HEADS[(sys_flag >> 4) & 3]
        size = head.size + array.overhead_bytes + len(body) + len(properties)
        position = log.position
        if position + size > log.room_end:
            position = self._make_room(size)
        if not log.pending:
            self.now_ms = self._clock.now_ms()
        if not queue.entries:
            self.dirty.append(queue)
        queue.add(BatchEntry(position, size, tags_code, self.now_ms, base, count or 1))
        record = b"".join(
            (
                head.pack(
                    size,
                    array.record_magic,
                    crc32(body) & 0x7FFFFFFF,
                    queue_id,
                    flag,
                    base,
                    position,
                    sys_flag,
                    born_timestamp_ms,
                    born_host,
                    self.now_ms,
                    self._store_host,
                    reconsume_times,
                    0,
                    len(body),
                ),
                body,
                array.topic_field,
                _pack_properties_length(len(properties)),
                properties,
            )
        )
        log.pending.append(sealed(record) if self._property_crc else record)
        log.position = position + size
        self.put_count += count or 1
        return base, position, position + size

    def put_dispatched(
        self,
        queues: Sequence[str],
        topic: str,
        queue_id: int,
        body: bytes | memoryview,
        properties: bytes,
        tags_code: int,
        born_timestamp_ms: int,
        born_host: bytes,
        sys_flag: int = 0,
        flag: int = 0,
        reconsume_times: int = 0,
        prepared_offset: int = 0,
    ) -> tuple[int, int, int]:
        """``put`` of one message into its own queue and into these LMQ queues (``dispatch.wanted_queues``)."""
        others = []
        for name in queues:
            other = self._queues.get((name, LMQ_QUEUE_ID)) or self._create_queue(name, LMQ_QUEUE_ID)
            if other.next_offset >= other.reserved_end:
                self._reserve(other, 1)
            others.append(other)
        joint = b"" if not properties or properties[-1] == 2 else b"\x02"
        offsets = offsets_property([other.next_offset for other in others])
        queue_offset, position, end = self.put(
            topic,
            queue_id,
            body,
            properties + joint + offsets,
            tags_code,
            born_timestamp_ms,
            born_host,
            sys_flag,
            flag,
            reconsume_times,
            prepared_offset,
        )
        entry = _pack_entry(position, end - position, tags_code)
        for other in others:
            if not other.entries:
                self.dirty.append(other)
            other.entries += entry
            other.next_offset += 1
        return queue_offset, position, end

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
        self._check_writable()
        self._batch_table.admit(topic)
        self.use_batch_queues(topic)
        self._batch_table.create(topic, queue_id)
        return self._batch_queues[topic, queue_id]

    def _create_queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        self._check_writable()
        self._table.admit(topic)
        return self._table.create(topic, queue_id)

    def _too_large(self, body_length: int, properties_length: int) -> MessageTooLarge:
        if body_length > self.max_body_bytes:
            return MessageTooLarge("body", body_length, self.max_body_bytes)
        return MessageTooLarge("properties", properties_length, MAX_PROPERTIES_BYTES)

    def _reserve(self, queue: ConsumeQueue, count: int) -> None:
        self._check_writable()
        try:
            queue.reserve(count)
        except OSError as error:
            raise self._poison(f"preparing {queue!r} failed", error) from error

    def _make_room(self, size: int) -> int:
        self._check_writable()
        log = self._log
        try:
            if log.position + size + BLANK_BYTES > log.segments[-1].end:
                self._before_roll()
            return log.make_room(size)
        except OSError as error:
            raise self._poison("extending the CommitLog failed", error) from error
