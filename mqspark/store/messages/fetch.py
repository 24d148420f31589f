"""Reads messages by queue offset and by log position, as slices of the mapped log.

Queue offset -> entries (a numpy view of the mapped queue file; tag hashes are compared for the whole range)
-> contiguous runs of the log. Records far behind the end of the log probably come from the disk, so one read
returns fewer of them.

Must not write, and must not know who asks.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from mqspark.record.record import Parts, Verdict, check_record, parts_at
from mqspark.record.recordlayout import MAGIC_V1, MIN_RECORD_BYTES, SIZE, columns, fields, record_size
from mqspark.store.disk.files import usable_memory_bytes
from mqspark.store.log.commitlog import MAX_COPY_BYTES, Segment
from mqspark.store.messages.coldness import Coldness
from mqspark.store.messages.commit import CommitPipeline
from mqspark.store.messages.healing import EntryHealer
from mqspark.store.messages.soundness import are_surely_sound, surely_sound
from mqspark.store.queue.batchqueue import BATCH_DTYPE, BatchQueue
from mqspark.store.queue.consumequeue import ENTRY_BYTES, FILLER_SIZE, ConsumeQueue
from mqspark.store.queue.mapped import Entries
from mqspark.store.queue.multidispatch import is_lmq
from mqspark.store.queue.queueext import EXT_ADDRESS_BELOW, QueueExt, resolve_tags_codes
from mqspark.store.storedata import StoreData

Int64s = npt.NDArray[np.int64]

_MAGIC_MASK = ~0x0C
"""V1 and V2 differ in two bits."""
_MAGIC = MAGIC_V1 & _MAGIC_MASK
_PLACED = fields("size", "magic", "position")
_PLACED_DTYPE: np.dtype[np.void] = np.dtype(columns("size", "magic", "position") | {"itemsize": _PLACED.size})
_MIN_COLUMN_ENTRIES = 64
"""Below this number, the column operations cost more than a loop."""
VOUCHED_MS = 5_000
"""A record is checked when it is read at the latest twice this time after it was written. The kernel writes pages back
after 30 s, and keeps those that it has written only while it wants to."""
_MAX_MISSED = 100
_MAX_DAMAGED = 1000
_NO_RECORD_BYTES = 256
"""Zeros, longer than the head of a record."""
_LARGE_BYTES = 1 << 20
"""From this size on, the record's own size is checked before the bytes are copied."""


class GetStatus(enum.Enum):
    """Names as in RocketMQ (GetMessageStatus)."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    NO_MATCHED_LOGIC_QUEUE = "NO_MATCHED_LOGIC_QUEUE"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"


@dataclass(slots=True)
class GetResult:
    status: GetStatus
    next_offset: int
    """Offset at which the reader continues."""
    min_offset: int
    max_offset: int
    buffers: list[memoryview] = field(default_factory=list)
    """Contiguous records; those adjacent in the log share a buffer. Valid as long as they are held."""
    count: int = 0
    size_bytes: int = 0
    cold_bytes: int = 0
    """Bytes of records that were on the disk alone, whether or not they are returned; counted with
    coldDataFlowControlEnable."""
    missed: Mapping[int, int] = field(default_factory=dict)
    """Places of the log where a record should be and is none, the first hundred, and since when reads miss them
    (monotonic)."""


class Fetcher:
    """Reads one open store, as far as consumers may see it. ``healer`` corrects entries that do not lead to their
    records; the places at which no record is found after all become suspect (``OpenDamage.suspect``)."""

    def __init__(self, data: StoreData, pipeline: CommitPipeline, healer: EntryHealer) -> None:
        self._config = data.config
        self._clock = data.clock
        self._deleted = data.deleted
        self._healer = healer
        self._damage = data.damage
        self._log = data.log
        self._queues = data.table.queues
        self._batch_queues = data.batch_table.batch_queues
        self._pipeline = pipeline
        self._memory_bytes = usable_memory_bytes()
        self._coldness = Coldness(data.config, data.log, self._memory_bytes)
        self.damaged_reads = 0
        """Number of records skipped because they do not match their queue entry or their CRC."""
        self.damaged: dict[int, int] = {}
        """Places of the log at which a read found no record, the first thousand, and when one first did
        (monotonic)."""
        self._missed: dict[int, int] = {}
        """Those of the present read."""
        self._written_from = self._young_from = 0
        """Records before the first may come from the disk, and are checked when they are read. Those before the second
        are next."""
        self._next_old_ms = 0

    def begin(self, end: int) -> None:
        """Start after recovery of a log that ends at ``end``."""
        self._written_from = self._young_from = end
        self.damaged.clear()

    def healed(self, low: int, high: int) -> None:
        """There are valid records in [low, high) of the log again."""
        for position in [each for each in self.damaged if low <= each < high]:
            del self.damaged[position]

    def grow_old(self, now_ms: int) -> None:
        """What was written some seconds ago is synced, and so may have left the page cache and come back from the disk.
        Call it about once a second."""
        if now_ms >= self._next_old_ms:
            self._next_old_ms = now_ms + VOUCHED_MS
            self._written_from, self._young_from = self._young_from, self._log.written

    def _note(self, positions: list[int]) -> None:
        damaged, now_ms = self.damaged, self._clock.monotonic_ms()
        for position in positions:
            since_ms = damaged.get(position)
            if since_ms is None and len(damaged) < _MAX_DAMAGED:
                since_ms = damaged[position] = now_ms
            elif since_ms is None:  # as long as the youngest of those that are known
                since_ms = next(reversed(damaged.values()))
            if len(self._missed) < _MAX_MISSED:
                self._missed[position] = since_ms

    def _outside(self, topic: str, offset: int, low: int, high: int) -> GetResult:
        """The answer for an offset outside the queue."""
        if high == 0:
            return GetResult(GetStatus.NO_MESSAGE_IN_QUEUE, 0, low, high)
        if offset < low:
            return GetResult(GetStatus.OFFSET_TOO_SMALL, low, low, high)
        if offset == high:
            return GetResult(GetStatus.OFFSET_OVERFLOW_ONE, offset, low, high)
        # The topic was deleted before, so the reader may come from an older one of its name.
        is_young = low == 0 and self._config.young_queue_from_start and topic in self._deleted
        return GetResult(GetStatus.OFFSET_OVERFLOW_BADLY, low if is_young else high, low, high)

    def get(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_messages: int,
        max_bytes: int,
        tag_codes: frozenset[int] | None = None,
        *,
        bulk: bool = False,
    ) -> GetResult:
        """Visible messages from ``offset`` on: at least one, if any matches, then up to both limits. The
        limits are lower for what is probably not in memory (``bulk`` raises its byte limit to that of
        memory).

        ``tag_codes``: hashes to accept; none or empty accepts all. Only hashes are compared, so the reader
        compares the text. An inner batch counts as its messages and is returned whole, even when ``offset``
        lies inside it. Follows DefaultMessageStore.getMessage.
        """
        max_messages = max(max_messages, 1)
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            batch_queue = self._batch_queues.get((topic, queue_id))
            if batch_queue is None:
                return GetResult(GetStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0)
            return self._get_batches(batch_queue, offset, max_messages, max_bytes, tag_codes)
        low, high = queue.min_offset, queue.max_offset
        if not low <= offset < high or not high:
            return self._outside(topic, offset, low, high)
        window = max_messages
        if tag_codes:
            window = max(window, self._config.max_filter_message_size // ENTRY_BYTES)
        entries = queue.read(offset, window)
        if not len(entries):
            return GetResult(GetStatus.OFFSET_FOUND_NULL, queue.next_existing_offset(offset), low, high)
        matched = _matching(entries, queue.ext, tag_codes) if tag_codes else None
        if matched is not None:
            if not len(matched):
                return GetResult(GetStatus.NO_MATCHED_MESSAGE, offset + len(entries), low, high)
            chosen = entries[matched[:max_messages]]
        else:
            chosen = entries
        # A record of a light queue has the topic that it was sent to.
        of = None if is_lmq(topic) else queue
        places = range(offset, offset + len(chosen)) if matched is None else matched[:max_messages] + offset
        cold = self._coldness.sizes(chosen)
        buffers, found, count = self._take(chosen, max_bytes, of, places, bulk=bulk)
        if found != count and of is not None:
            last = offset + count if matched is None else int(places[count - 1]) + 1
            if self._healer.heal(queue, offset, last):
                self._missed.clear()
                return self.get(topic, queue_id, offset, max_messages, max_bytes, tag_codes, bulk=bulk)
        missed = self._tell_missed()
        if matched is None:
            next_offset = offset + count
        else:
            next_offset = offset + (int(matched[count]) if count < len(matched) else len(entries))
        status = GetStatus.FOUND if found else GetStatus.MESSAGE_WAS_REMOVING
        result = GetResult(status, next_offset, low, high, buffers, found, sum(map(len, buffers)))
        result.missed = missed
        if cold is not None:
            result.cold_bytes = int(cold[:count].sum())
        return result

    def _tell_missed(self) -> Mapping[int, int]:
        missed = self._missed
        if missed:
            self._missed = {}
            for position in missed:
                self._damage.suspect(position)
        return missed

    def follow_log(self, topic: str, queue_id: int, offset: int) -> None:
        """Let the queue begin where the log does, if the record at ``offset`` has left the log. Retention looks for the
        beginnings of queues a moment after it has removed segments; readers of an archive must not be led past what
        they find there. Raises OSError."""
        queue = self._queues.get((topic, queue_id))
        place = offset
        if queue is None:
            batches = self._batch_queues.get((topic, queue_id))
            if batches is None or not batches.min_offset <= offset < batches.max_offset:
                return
            queue, place = batches.array, batches.number_of(offset)
        if queue.min_offset <= place < queue.max_offset:
            entry = queue.entry(place)
            if entry is not None and entry[0] < self._log.min_offset and entry[1] != FILLER_SIZE:
                queue.correct_min_offset(self._log.min_offset)

    def is_in_cold_area(self, topic: str, queue_id: int, offset: int) -> bool:
        """Whether a message lies so far behind the end of the log that it is probably not in memory."""
        queue = self._queues.get((topic, queue_id))
        if queue is not None:
            entries = queue.read(offset, 1) if queue.min_offset <= offset < queue.max_offset else None
        else:
            batches = self._batch_queues.get((topic, queue_id))
            if batches is None or not batches.min_offset <= offset < batches.max_offset:
                return False
            entries = batches.read(batches.number_of(offset), 1)
        return entries is not None and self._coldness.has(entries)

    def _take(
        self,
        entries: Entries,
        max_bytes: int,
        queue: ConsumeQueue | None,
        places: range | Int64s,
        *,
        bulk: bool = False,
    ) -> tuple[list[memoryview], int, int]:
        """The records of as many entries as one read may return, as few slices of the log, their number, and
        the number of entries examined. ``queue`` and ``places``, its offsets, are the values expected in
        records from the disk; without a queue they are unknown.

        A record whose head contradicts its entry is left out: one wrong size would make a client drop every
        record after it. A record whose body was damaged on the disk is left out, too.
        """
        if len(entries) < _MIN_COLUMN_ENTRIES:
            return self._take_few(entries, max_bytes, queue, places, bulk)
        return self._take_columns(entries, max_bytes, queue, places, bulk)

    def _take_columns(
        self,
        entries: Entries,
        max_bytes: int,
        queue: ConsumeQueue | None,
        places: range | Int64s,
        bulk: bool,
    ) -> tuple[list[memoryview], int, int]:
        positions, sizes = self._limit_entries(entries, max_bytes, bulk)
        count = len(sizes)
        offsets = None
        if queue is not None and count and positions[0] < self._written_from:
            offsets = np.arange(places.start, places.stop) if isinstance(places, range) else places
            offsets = offsets[:count]
        buffers, found = self._runs(positions, sizes, queue, offsets)
        return buffers, found, count

    def _take_few(
        self,
        entries: Entries,
        max_bytes: int,
        queue: ConsumeQueue | None,
        places: range | Int64s,
        bulk: bool,
    ) -> tuple[list[memoryview], int, int]:
        """``_take`` for few entries: the work of ``_limit_entries`` and ``_runs`` in one loop."""
        log = self._log
        check_from = self._written_from if self._config.check_crc_on_read else 0
        surely: Callable[[memoryview, int, int, int, int], bool] | None = None
        oldest = log.min_offset
        cold_before, cold_bytes, cold_count = self._cold_limits(bulk)
        runs: list[memoryview] = []
        run_view = view = memoryview(b"")
        run_start, run_end = 0, -1
        base = segment_end = view_end = 0
        found = total = 0
        unpack_placed = _PLACED.unpack_from
        looked_at = 0
        offsets = places if isinstance(places, range) else places.tolist()
        positions, all_sizes = entries["position"].tolist(), entries["size"].tolist()
        for position, size, offset in zip(positions, all_sizes, offsets, strict=True):
            if position < oldest or size == FILLER_SIZE:
                size = 0  # does not count towards the limits
            elif total:
                if total + size > max_bytes:
                    break
                if position < cold_before and (total + size > cold_bytes or looked_at >= cold_count):
                    break
            looked_at += 1
            if not size:
                continue
            if size > 0:  # a damaged entry may have any size
                total += size
            if not base <= position < segment_end:
                segment = log.segment_of(position)
                if segment is None:
                    self.damaged_reads += 1
                    self._note([position])
                    continue
                mapped = log.mapped(segment)
                if mapped is None:
                    return self._take_columns(entries, max_bytes, queue, places, bulk)
                base, segment_end, view_end = segment.start, segment.end, segment.length
                view = mapped
            start = position - base
            end = start + size
            good = end <= view_end and size >= MIN_RECORD_BYTES
            if good and position >= check_from:
                said, magic, place = unpack_placed(view, start)
                good = said == size and magic & _MAGIC_MASK == _MAGIC and place == position
            elif good:
                if surely is None:
                    is_known = queue is not None and not self._config.verify_property_crc
                    surely = surely_sound(queue if is_known else None)
                good = surely(view, start, end, position, offset)
                good = good or self._is_sound(view[start:end], position, queue, offset)
            if not good:
                self.damaged_reads += 1
                self._note([position])
                continue
            found += 1
            if start != run_end or view is not run_view:
                if run_end > 0:
                    runs.append(run_view[run_start:run_end])
                run_view, run_start = view, start
            run_end = end
        if run_end > 0:
            runs.append(run_view[run_start:run_end])
        return runs, found, looked_at

    def _cold_limits(self, bulk: bool) -> tuple[int, int, int]:
        """The log position before which records are probably not in memory, and the limits of bytes and
        messages for them."""
        config = self._config
        before = self._log.position - self._memory_bytes * config.access_message_in_memory_max_ratio // 100
        if bulk:
            return before, config.max_transfer_bytes_on_message_in_memory, 1 << 62
        return (
            before,
            config.max_transfer_bytes_on_message_in_disk,
            config.max_transfer_count_on_message_in_disk,
        )

    def _limit_entries(self, entries: Entries, max_bytes: int, bulk: bool) -> tuple[Int64s, Int64s]:
        """Positions and sizes of as many entries as one read may return. Size 0: the record no longer
        exists."""
        log = self._log
        sizes: Int64s = entries["size"].astype(np.int64)
        positions: Int64s = entries["position"].astype(np.int64)
        if int(positions[0]) < log.min_offset or int(sizes.max()) == FILLER_SIZE:
            # Fillers and deleted records do not count towards the limits.
            sizes[(positions < log.min_offset) | (sizes == FILLER_SIZE)] = 0
        count = len(sizes)
        cold_before, cold_bytes, cold_count = self._cold_limits(bulk)
        if int(positions[0]) < cold_before:
            cold = int(positions.searchsorted(cold_before))
            allowed = min(int(sizes[:cold].cumsum().searchsorted(cold_bytes, "right")), cold_count)
            if allowed < cold:
                count = allowed
        if int(sizes[:count].sum()) > max_bytes:
            count = int(sizes.cumsum().searchsorted(max_bytes, "right"))
        if count < len(sizes):
            # The first record is returned whatever its size, even after fillers.
            count = max(count, int(np.argmax(sizes > 0)) + 1)
            return positions[:count], sizes[:count]
        return positions, sizes

    def _get_batches(
        self,
        queue: BatchQueue,
        offset: int,
        max_messages: int,
        max_bytes: int,
        tag_codes: frozenset[int] | None,
    ) -> GetResult:
        low, high = queue.min_offset, queue.max_offset
        if not low <= offset < high or not high:
            return self._outside(queue.topic, offset, low, high)
        window = max_messages
        if tag_codes:
            window = max(window, self._config.max_filter_message_size // BATCH_DTYPE.itemsize)
        entries = queue.read(queue.number_of(offset), window)
        if not len(entries):
            return GetResult(GetStatus.OFFSET_FOUND_NULL, high, low, high)
        ends = entries["base"].astype(np.int64) + entries["count"]
        chosen, chosen_ends = entries, ends
        if tag_codes:
            # A batch without tags of its own may contain any tag.
            matched = _matching(entries, None, tag_codes | {0})
            if not len(matched):
                return GetResult(GetStatus.NO_MATCHED_MESSAGE, int(ends[-1]), low, high)
            chosen, chosen_ends = entries[matched], ends[matched]
        counts = chosen["count"].astype(np.int64)
        taken = chosen[: max(1, int(counts.cumsum().searchsorted(max_messages, "right")))]
        cold = self._coldness.sizes(taken)
        buffers, found, count = self._take(taken, max_bytes, None, range(len(taken)))
        missed = self._tell_missed()
        next_offset = int(chosen_ends[count - 1]) if count < len(chosen) else int(ends[-1])
        there = (taken["position"] >= self._log.min_offset) & (taken["size"] != FILLER_SIZE)
        messages = int(counts[:count][there[:count]].sum()) if found else 0
        status = GetStatus.FOUND if found else GetStatus.MESSAGE_WAS_REMOVING
        result = GetResult(status, next_offset, low, high, buffers, messages, sum(map(len, buffers)))
        result.missed = missed
        if cold is not None:
            result.cold_bytes = int(cold[:count].sum())
        return result

    def _runs(
        self,
        positions: Int64s,
        sizes: Int64s,
        queue: ConsumeQueue | None,
        offsets: Int64s | None,
    ) -> tuple[list[memoryview], int]:
        """The records as few slices of the log, and their number. Size 0 means no record."""
        log = self._log
        buffers: list[memoryview] = []
        found = 0
        if not _all(sizes):
            offsets = offsets[sizes > 0] if offsets is not None else None
            positions, sizes = positions[sizes > 0], sizes[sizes > 0]
        while len(positions):  # once per segment; a range rarely spans two
            segment = log.segment_of(int(positions[0]))
            if segment is None:
                self._note([int(positions[0])])
                positions, sizes = positions[1:], sizes[1:]
                offsets = offsets[1:] if offsets is not None else None
                self.damaged_reads += 1
                continue
            inside = len(positions)
            if positions[-1] >= segment.end:
                inside = max(1, int(positions.searchsorted(segment.end)))
            here, lengths = positions[:inside], sizes[:inside]
            starts = here - segment.start
            ends = starts + lengths
            good = (starts >= 0) & (ends <= segment.length) & (lengths >= MIN_RECORD_BYTES)
            base: int | Int64s = segment.start
            view = log.mapped(segment)
            if view is None:
                view, starts, ends, good = self._copied(segment, starts, ends, good)
                base = here - starts
            at = slice(None) if _all(good) else good
            if positions[0] < self._written_from and self._config.check_crc_on_read:
                places = offsets[:inside][at] if offsets is not None else None
                bases = base if isinstance(base, int) else base[at]
                good[at] = self._whole(view, starts[at], ends[at], bases, queue, places)
            else:
                good[at] = heads_agree(view, starts[at], lengths[at], here[at])
            if not _all(good):
                self.damaged_reads += int((~good).sum())
                self._note(here[~good].tolist())
                starts, ends = starts[good], ends[good]
            if len(starts):
                found += len(starts)
                (breaks,) = (starts[1:] != ends[:-1]).nonzero()
                if len(breaks):
                    lows = [int(starts[0]), *starts[breaks + 1].tolist()]
                    highs = [*ends[breaks].tolist(), int(ends[-1])]
                    buffers += [view[low:high] for low, high in zip(lows, highs, strict=True)]
                else:
                    buffers.append(view[int(starts[0]) : int(ends[-1])])
            positions, sizes = positions[inside:], sizes[inside:]
            offsets = offsets[inside:] if offsets is not None else None
        return buffers, found

    def _copied(
        self, segment: Segment, starts: Int64s, ends: Int64s, good: npt.NDArray[np.bool_]
    ) -> tuple[memoryview, Int64s, Int64s, npt.NDArray[np.bool_]]:
        """Copies of the valid records, their bounds in the copy, and a mask of the valid ones. A very long
        record must confirm its size before it is copied."""
        log = self._log
        good &= ends <= log.length_now(segment)
        for index in np.flatnonzero(good & (ends - starts > _LARGE_BYTES)).tolist():
            low = int(starts[index])
            head = log.copied(segment, [(low, low + SIZE.size)])
            said = record_size(head) if len(head) == SIZE.size else 0
            good[index] = said == ends[index] - low and said <= MAX_COPY_BYTES
        sizes = np.where(good, ends - starts, 0)
        if not good.any():
            return memoryview(bytes(_NO_RECORD_BYTES)), sizes, sizes, good
        first, last = starts[good], ends[good]
        breaks = np.flatnonzero(first[1:] != last[:-1])
        lows = [*first[:1].tolist(), *first[breaks + 1].tolist()]
        highs = [*last[breaks].tolist(), *last[-1:].tolist()]
        copied_ends = np.cumsum(sizes)
        copy = log.copied(segment, list(zip(lows, highs, strict=True)))
        return copy, copied_ends - sizes, copied_ends, good

    def _whole(
        self,
        view: memoryview,
        starts: Int64s,
        ends: Int64s,
        base: int | Int64s,
        queue: ConsumeQueue | None,
        offsets: Int64s | None,
    ) -> npt.NDArray[np.bool_]:
        """Mask of the intact records among those from the disk."""
        if queue is None or offsets is None or self._config.verify_property_crc:
            whole = np.zeros(len(starts), np.bool_)
        else:
            whole = are_surely_sound(view, starts, ends, base, queue, offsets)
        if not _all(whole):
            places = starts + base
            for index in np.flatnonzero(~whole).tolist():
                whole[index] = self._is_sound(
                    view[int(starts[index]) : int(ends[index])],
                    int(places[index]),
                    queue,
                    int(offsets[index]) if offsets is not None else -1,
                )
        return whole

    def _is_sound(self, view: memoryview, position: int, queue: ConsumeQueue | None, offset: int) -> bool:
        """Whether a record from the disk is intact and is the one of its queue entry."""
        record = check_record(
            view, 0, len(view), verify_crc=True, verify_property_crc=self._config.verify_property_crc
        )
        if record.verdict is not Verdict.VALID:
            return False
        if (record.size_bytes, record.physical_offset) != (len(view), position):
            return False
        return queue is None or (record.topic, record.queue_id, record.queue_offset) == (*queue.key, offset)

    def record_at(self, physical_offset: int) -> memoryview | None:
        """The visible record that begins at this offset, or None. Any number is allowed."""
        log = self._log
        segment = log.segment_of(physical_offset)
        limit = min(self._pipeline.visible_end, segment.start + segment.length if segment else 0)
        if segment is None or physical_offset >= limit:
            return None
        view, low, high = log.around(segment, physical_offset, limit)
        from_disk = physical_offset < self._written_from and self._config.check_crc_on_read
        record = check_record(view, low, high, verify_crc=from_disk)
        if record.verdict is not Verdict.VALID or record.physical_offset != physical_offset:
            return None
        return view[low : low + record.size_bytes]

    def parts_at(self, physical_offset: int) -> Parts | None:
        """As ``record_at``, split into parts."""
        log = self._log
        segment = log.segment_of(physical_offset)
        if segment is None:
            return None
        limit = min(self._pipeline.visible_end, segment.start + segment.length)
        if physical_offset >= limit:
            return None
        view, low, high = log.around(segment, physical_offset, limit)
        parts = parts_at(view, low, high)
        return parts if parts is not None and parts.physical_offset == physical_offset else None


def _all(values: npt.NDArray[np.bool_] | Int64s) -> bool:
    """``values.all()`` in a fifth of its time."""
    return bool(np.count_nonzero(values) == len(values))


def heads_agree(view: memoryview, starts: Int64s, sizes: Int64s, positions: Int64s) -> npt.NDArray[np.bool_]:
    """Whether at every start there is the head of a record of that size and place in the log."""
    # A place at every byte: one copy of the first fields of a record.
    width = _PLACED_DTYPE.itemsize
    places = np.ndarray((max(len(view) - width + 1, 0),), f"V{width}", buffer=view, strides=(1,))
    heads = places[starts].view(_PLACED_DTYPE)
    agree: npt.NDArray[np.bool_] = heads["size"] == sizes
    agree &= (heads["position"] == positions) & ((heads["magic"] & _MAGIC_MASK) == _MAGIC)
    return agree


def _matching(entries: Entries, ext: QueueExt | None, tag_codes: frozenset[int]) -> npt.NDArray[np.intp]:
    """Indexes of the entries with a wanted tags code. Dangling ext addresses pass: their hash is lost, and
    the reader compares the text anyway."""
    codes = resolve_tags_codes(ext, entries["tags_code"].astype(np.int64))
    mask = codes < EXT_ADDRESS_BELOW
    for code in tag_codes:
        mask |= codes == code
    return np.flatnonzero(mask)
