"""Records, queue entries and index entries of a store directory as plain values, in order.

Results are generated lazily, so a caller may stop at any time. Bodies are returned as stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mqspark.errors import InvalidMessage
from mqspark.record.record import Verdict, check_record, decode_record
from mqspark.record.recordlayout import BLANK_BYTES, BLANK_MAGIC, SIZE_MAGIC
from mqspark.store.index.keys import index_hash
from mqspark.store.log.commitlog import Segment
from mqspark.store.queue.consumequeue import FILLER_SIZE
from mqspark.store.queue.queueext import resolve_tags_codes
from mqspark.store.tools.offlinestore import RELEASE_BYTES, LogScan, OfflineStore, entries_of, release

Row = dict[str, Any]

_BLOCK_ENTRIES = 1 << 12


def dump_records(store: OfflineStore, offset: int = 0, *, topic: str | None = None) -> Iterator[Row]:
    """Records from a physical offset on, or from the next record after it. A damaged range is also a row:
    ``damaged`` is its length. ``body`` is bytes."""
    for segment in store.log.segments:
        if segment.end > offset:
            yield from _records_of(store, segment, max(offset - segment.start, 0), topic)


def _records_of(store: OfflineStore, segment: Segment, low: int, topic: str | None) -> Iterator[Row]:
    view, scan, begun = store.log.view(segment), LogScan(store), low == 0
    ranges = store.log.data_ranges(segment, segment.start + low)
    end = max((high for _, high in ranges), default=segment.start) - segment.start
    released = low
    while low + BLANK_BYTES <= end:
        if SIZE_MAGIC.unpack_from(view, low)[1] == BLANK_MAGIC:
            return
        record = check_record(view, low, end, verify_crc=True)
        if record.verdict is Verdict.VALID and record.physical_offset == segment.start + low:
            if topic is None or record.topic == topic:
                yield _record_row(view, low)
            low += record.size_bytes
        else:
            following = scan.next_valid(segment, segment.start + low, segment.start + end)
            if following is None:
                return
            length = following - segment.start - low
            if begun:  # otherwise the requested offset is inside a record
                yield {"physicalOffset": segment.start + low, "damaged": length}
            low += length
        begun = True
        if low - released > RELEASE_BYTES:
            release(view, released, low)
            released = low


def record_row(store: OfflineStore, offset: int) -> Row | None:
    """The record that begins at a physical offset, or None."""
    segment = store.log.segment_of(offset)
    if segment is None:
        return None
    view = store.log.view(segment)
    record = check_record(view, offset - segment.start, segment.length, verify_crc=True)
    if record.verdict is not Verdict.VALID or record.physical_offset != offset:
        return None
    return _record_row(view, offset - segment.start)


def _record_row(view: memoryview, low: int) -> Row:
    message = decode_record(view, low, decompress=False)
    return {
        "physicalOffset": message.physical_offset,
        "size": message.store_size_bytes,
        "topic": message.topic,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "sysFlag": message.sys_flag,
        "flag": message.flag,
        "bornTimestamp": message.born_timestamp_ms,
        "bornHost": message.born_host,
        "storeTimestamp": message.store_timestamp_ms,
        "storeHost": message.store_host,
        "reconsumeTimes": message.reconsume_times,
        "preparedTransactionOffset": message.prepared_transaction_offset,
        "bodyCrc": message.body_crc,
        "properties": message.properties,
        "body": message.body,
    }


def dump_queue(store: OfflineStore, topic: str, queue_id: int, offset: int = 0) -> Iterator[Row]:
    """Entries of one queue from a queue offset on; for a BatchConsumeQueue one row per record. Raises
    InvalidMessage when the queue does not exist."""
    key = (topic, queue_id)
    batch = store.batch_table.batch_queues.get(key)
    if batch is not None:
        number = batch.number_of(offset) if offset else batch.array.min_offset
        while number < batch.array.max_offset and (entry := batch.entry(number)) is not None:
            yield {
                "queueOffset": entry.base,
                "messages": entry.messages,
                "physicalOffset": entry.position,
                "size": entry.size,
                "tagsCode": entry.tags_code,
                "storeTimestamp": entry.store_ms,
            }
            number += 1
        return
    queue = store.table.queues.get(key)
    if queue is None:
        raise InvalidMessage(
            f"{store.paths.root} has no queue {queue_id} of topic {topic!r}", field="queueId"
        )
    offset = max(offset, queue.min_offset)
    while offset < queue.max_offset:
        entries = queue.read(offset, _BLOCK_ENTRIES)
        if not len(entries):
            offset = queue.next_existing_offset(offset + 1)
            continue
        codes = resolve_tags_codes(queue.ext, entries["tags_code"].astype("i8")).tolist()
        rows = zip(entries["position"].tolist(), entries["size"].tolist(), codes, strict=True)
        for number, (position, size, code) in enumerate(rows):
            if size == FILLER_SIZE:
                yield {"queueOffset": offset + number, "filler": True}
            else:
                yield {
                    "queueOffset": offset + number,
                    "physicalOffset": position,
                    "size": size,
                    "tagsCode": code,
                }
        offset += len(entries)


def dump_index(
    store: OfflineStore, offset: int = 0, *, topic: str | None = None, key: str | None = None
) -> Iterator[Row]:
    """Entries of all index files, oldest first, of records from a physical offset on. With ``topic`` and
    ``key``, those with the hash of that key."""
    wanted = index_hash(topic, key) if topic is not None and key is not None else None
    for file in store.index_files:
        begin_ms = file.header.begin_timestamp_ms
        for low, entries in entries_of(store, file):
            rows = zip(
                *(entries[name].tolist() for name in ("hash", "position", "seconds", "previous")), strict=True
            )
            for number, (key_hash, position, seconds, previous) in enumerate(rows):
                if position >= offset and wanted in (None, key_hash):
                    yield {
                        "file": file.name,
                        "number": low + number,
                        "keyHash": key_hash,
                        "physicalOffset": position,
                        "storeTimestamp": begin_ms + seconds * 1000,
                        "previous": previous,
                    }
