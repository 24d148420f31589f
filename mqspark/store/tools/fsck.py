"""Checks a store directory completely: every record, every queue entry, every index entry.

The log is authoritative. It is read from beginning to end. Each record determines its queue entry and its
index entries, which are compared. A flipped bit is found where something covers it: the body by its CRC, the
lengths, topic, queue id, queue offset and position by the queue entry, tags and keys by the hashes in queue
and index. A flip in another field (flag, times, hosts, other properties) is found only when the record has a
CRC of its properties (enabledAppendPropCRC).

Findings are kept up to a limit and counted beyond it, so memory does not grow with the store.
"""

from __future__ import annotations

import bisect
import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from mqspark.base.clock import wall_ms
from mqspark.record.record import check_record, tags_code
from mqspark.record.recordlayout import BLANK_BYTES, MIN_RECORD_BYTES
from mqspark.store.compaction.compactedqueues import Generation, generations, sound_record
from mqspark.store.disk.damage import Outcome
from mqspark.store.disk.layout import BEYOND
from mqspark.store.disk.notes.beginnote import BeginNote
from mqspark.store.disk.notes.checkpoint import Checkpoint
from mqspark.store.index.indexfile import IndexFile, link
from mqspark.store.index.keys import KeyColumns, run_keys
from mqspark.store.log.commitlog import Segment, missing_begin, missing_parts
from mqspark.store.log.scan import Run
from mqspark.store.messages.fetch import heads_agree
from mqspark.store.queue.batchqueue import BatchEntry
from mqspark.store.queue.consumequeue import ENTRY_DTYPE, FILLER_SIZE, ConsumeQueue
from mqspark.store.queue.mapped import Entries
from mqspark.store.queue.multidispatch import is_lmq
from mqspark.store.queue.queueext import resolve_tags_codes
from mqspark.store.recovery.recoveryreport import lost_offsets
from mqspark.store.tools.offlinestore import RELEASE_BYTES, LogScan, OfflineStore, entries_of, release
from mqspark.store.tools.remake import Remade

MAX_FINDINGS = 1000
_BLOCK_ENTRIES = 1 << 16

Progress = Callable[[int, int], None]
"""Called with the bytes done and the total."""


@dataclass(slots=True)
class Finding:
    severity: str
    """``lost``: a message is permanently lost. ``error``: a reference to a message is missing or wrong.
    ``note``: the next start of the broker handles it, or it is by design."""
    kind: str
    text: str
    offset: int | None = None
    """Physical offset, for findings in the log."""
    length: int | None = None
    topic: str | None = None
    queue_id: int | None = None
    queue_offset: int | None = None
    repair: str = ""
    """Advice."""


@dataclass(slots=True)
class FsckReport:
    path: str
    in_use: bool
    clean: bool
    segments: int = 0
    min_offset: int = 0
    end_offset: int = 0
    """End of the last valid record."""
    records: int = 0
    queues: int = 0
    entries: int = 0
    fillers: int = 0
    index_files: int = 0
    index_entries: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    """Findings by kind, including those beyond the limit."""
    findings: list[Finding] = field(default_factory=list)
    """The first thousand."""
    errors: int = 0
    lost: int = 0
    repaired: bool = False

    def add(self, finding: Finding) -> None:
        self.counts[finding.kind] = self.counts.get(finding.kind, 0) + 1
        self.errors += finding.severity == "error"
        self.lost += finding.severity == "lost"
        if len(self.findings) < MAX_FINDINGS:
            self.findings.append(finding)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


REBUILD = "mqspark store fsck --repair rebuilds the queues and the index from the log"
LOST = "the record cannot be restored; consumers skip it"
LOST_FOR_GOOD = "the records cannot be restored; their offsets are not assigned again"
MOVE = "move it out of the directory"
REPLACE = "restore the whole file if there is a copy; otherwise the missing part is lost"
SET_ASIDE = "--repair renames it to *.damaged; its content is lost"
START = "the next start of the broker repairs it"


def fsck(store: OfflineStore, progress: Progress = lambda done, total: None) -> FsckReport:
    """Check everything. Raises OSError when something cannot be read."""
    report = FsckReport(str(store.paths.root), store.in_use, store.clean)
    if store.in_use:
        report.add(
            Finding(
                "note", "store.in-use", "a broker is running on it: what it writes meanwhile may appear wrong"
            )
        )
    elif not store.clean:
        report.add(Finding("note", "store.unclean", "the broker did not stop cleanly", repair=START))
    _check_files(store, report)
    check = _LogCheck(store, report, progress)
    report.end_offset = check.scan(store.log.min_offset)
    cut = store.checkpoint.position - report.end_offset
    if cut >= MIN_RECORD_BYTES and not store.in_use:
        text = f"the log was cut: {cut} bytes known from its checkpoint are missing"
        report.add(Finding("lost", "log.cut", text, report.end_offset, cut, repair=LOST))
    check.finish()
    if not store.in_use:  # a job may be replacing one
        for topic, queue_id, found in generations(store.paths.root, store.files):
            wrong = found if isinstance(found, str) else _damage_of(found, topic, queue_id)
            if wrong is not None:
                report.add(
                    Finding(
                        "error", "compaction.damaged", wrong, topic=topic, queue_id=queue_id, repair=REPLACE
                    )
                )
    report.records = check.report.records
    return report


def _damage_of(generation: Generation, topic: str, queue_id: int) -> str | None:
    """What is wrong with entries and records of a generation, or None."""
    entries, view = generation.entries, generation.view
    damaged: list[int] = []
    end = (-1, 0)
    released = 0
    for first in range(0, len(entries), _BLOCK_ENTRIES):
        for offset, position, size, code in entries[first : first + _BLOCK_ENTRIES].tolist():
            is_next = end[0] < offset and position == end[1] and size > 0
            record = view[position : position + size] if is_next else view[:0]
            checked = sound_record(record, topic, queue_id, offset)
            if checked is None or tags_code(checked.properties) != code:
                damaged.append(offset)
            end = offset, position + size
            if position - released > RELEASE_BYTES:
                release(view, released, position)
                released = position
    if not damaged:
        return None
    return f"{len(damaged)} of its records or their entries are damaged, the first at offset {damaged[0]}"


def cut_log(made: Remade) -> Finding | None:
    """The finding for a log whose end a rebuild found missing. Once rebuilt, nothing in the store shows it."""
    if not made.lost_bytes:
        return None
    text = (
        f"the log was cut: {made.lost_bytes} bytes known from its checkpoint and queues are missing, with them"
        f" {made.lost_queue_entries} entries of queues"
    )
    return Finding(
        "lost", "log.cut", text, offset=made.end_offset, length=made.lost_bytes, repair=LOST_FOR_GOOD
    )


def _check_files(store: OfflineStore, report: FsckReport) -> None:
    log = store.log
    report.segments, report.min_offset = len(log.segments), log.min_offset
    for part in store.in_rocksdb:
        report.add(Finding("error", part.kind, part.text, repair=part.advice))
    for path in store.misplaced:
        text = f"{path} does not belong to a log of {store.log.segment_bytes}-byte segments"
        report.add(Finding("error", "log.misplaced-file", text, repair="move it elsewhere"))
    for path in store.beyond:
        text = f"{path} reaches position 2^63, {BEYOND}"
        report.add(Finding("error", "log.misplaced-file", text, repair="move it elsewhere"))
    if store.older_deletions:
        report.add(Finding("note", "deletions.older", store.older_deletions, repair=START))
    if store.unreadable_deletions is not None:
        report.add(Finding("error", "deletions.unreadable", store.unreadable_deletions, repair=SET_ASIDE))
    for path in store.blocking:
        report.add(
            Finding(
                "error", "log.misplaced-file", f"{path} is not a regular file", repair="move it elsewhere"
            )
        )
    for path in store.strange:
        report.add(Finding("note", "log.strange-file", f"{path} is not a segment of the log"))
    _check_missing(store, report)
    _check_notes(store, report)
    _check_queue_files(store, report)
    _check_index_files(store, report)


def _check_missing(store: OfflineStore, report: FsckReport) -> None:
    """The begin of the log and its parts that should be there."""
    log = store.log
    begin = None
    if store.checkpoint.position >= 0:  # else a RocketMQ broker may have deleted segments
        begin = BeginNote(store.paths.begin, store.files).load()
    lost_begin = missing_begin(log.segments, begin)
    if lost_begin is not None:
        report.add(
            Finding(
                "lost", lost_begin.kind, lost_begin.text, lost_begin.offset, lost_begin.length, repair=REPLACE
            )
        )
    for damage in missing_parts(log.segments, store.lengths):
        severity = "lost" if damage.outcome is Outcome.LOST else "error"
        repair = LOST if damage.kind == "log.gap" else REPLACE
        finding = Finding(severity, damage.kind, damage.text, damage.offset, damage.length, repair=repair)
        low = damage.offset or 0
        lost = lost_offsets(
            (*store.table.queues.values(), *store.batch_table.queues.values()),
            low,
            low + (damage.length or 0),
        )
        finding.text += "".join(
            f"; {each.topic}/{each.queue_id} {each.low}..{each.high - 1}" for each in lost
        )
        report.add(finding)


def _check_notes(store: OfflineStore, report: FsckReport) -> None:
    """What the checkpoint and the notes beside it say, against what is there."""
    log = store.log
    report.queues = store.table.used_queues + store.batch_table.used_queues
    if report.queues < store.checkpoint.queue_count:
        text = f"{store.checkpoint.queue_count - report.queues} of {store.checkpoint.queue_count} queues are gone"
        report.add(Finding("error", "queue.lost", text, repair=REBUILD))
    mark = store.checkpoint.position
    if log.segments and mark > log.segments[-1].end:
        text = f"mqspark.checkpoint is at {mark}, but the log ends before {log.segments[-1].end}"
        report.add(Finding("error", "checkpoint.ahead", text, offset=mark, repair=REBUILD))
    now_ms = wall_ms()
    problem = Checkpoint.problem(store.paths.checkpoint, store.paths.mark, store.files, now_ms)
    if problem is not None:
        report.add(Finding("note", "checkpoint.damaged", problem, repair=START))
    elif mark < 0 and log.segments:
        text = "mqspark.checkpoint does not belong to the checkpoint beside it"
        report.add(Finding("note", "checkpoint.unknown", text, repair=START))
    if store.ends_problem is not None and not store.in_use:
        report.add(Finding("note", "checkpoint.damaged", store.ends_problem, repair=START))


def _check_queue_files(store: OfflineStore, report: FsckReport) -> None:
    for table in (store.table, store.batch_table):
        for queue in table.queues.values():
            for start, following in itertools.pairwise(queue.file_starts):
                if following != start + table.file_bytes:
                    first = (start + table.file_bytes) // table.entry_bytes
                    count = following // table.entry_bytes - first
                    text = f"{count} entries from {first} on are missing: their file is gone"
                    report.add(_of_queue(queue, "error", "queue.file-gone", text, first))
        for queue, doubt in table.doubted.items():
            if doubt.kind != "queue.file-gone" or not doubt.sure_end:
                severity = "error" if store.clean and not store.in_use else "note"
                report.add(_of_queue(queue, severity, doubt.kind, doubt.text, doubt.sure_end))


def _check_index_files(store: OfflineStore, report: FsckReport) -> None:
    report.index_files = len(store.index_files)
    for name in store.strange_index_files:
        is_ours = name.isascii() and name.isdigit() and len(name) == 17
        if is_ours and (store.paths.index / name).is_file():
            text = f"index/{name} is truncated or damaged"
            report.add(Finding("error", "index.damaged", text, repair=REBUILD))
        else:
            report.add(
                Finding("note", "index.strange-file", f"index/{name} is not an index file", repair=MOVE)
            )


def _of_queue(
    queue: ConsumeQueue, severity: str, kind: str, text: str, offset: int, position: int | None = None
) -> Finding:
    return Finding(
        severity,
        kind,
        text,
        offset=position,
        topic=queue.topic,
        queue_id=queue.queue_id,
        queue_offset=offset,
        repair=REBUILD if severity == "error" else START,
    )


class _LogCheck(LogScan):
    """Compares queues and index with the log while reading it."""

    def __init__(self, store: OfflineStore, found: FsckReport, progress: Progress) -> None:
        super().__init__(store)
        self._store = store
        self._found = found
        self._progress = progress
        self._matched: Counter[tuple[str, int]] = Counter()
        self._without_queue: Counter[str] = Counter()
        self._index = _IndexCursor(store, found, self.is_damaged)
        self._last_ms = 0
        log = store.log
        self._total = sum(segment.length for segment in log.segments)

    # --- the log ------------------------------------------------------------------------------------------------

    def note_records(self, segment: Segment, run: Run) -> None:
        end = run.end_position
        store_timestamps_ms = run.store_timestamps_ms.tolist()
        self._index.compare(run)
        self._progress(end - self._log.min_offset, self._total)
        if min(store_timestamps_ms) < self._last_ms - 1000:
            text = f"a record before {end} has an earlier store time than its predecessor: the clock was set back"
            self._found.add(Finding("note", "log.time", text, offset=end))
        self._last_ms = max(self._last_ms, store_timestamps_ms[-1])

    def _step_over(self, end: int, position: int) -> None:
        known = len(self.report.damaged)
        super()._step_over(end, position)
        for low, high in self.report.damaged[known:]:
            segment = self._log.segment_of(low)
            if segment is not None and segment.end == high and high - low < BLANK_BYTES:
                continue
            text = f"{high - low} bytes hold no valid record ({self._store.where(low)})"
            self._found.add(Finding("lost", "log.damaged", text, offset=low, length=high - low, repair=LOST))

    def is_damaged(self, position: int) -> bool:
        """Whether the position lies in a range without a valid record."""
        damaged = self.report.damaged
        index = bisect.bisect_right(damaged, (position, 1 << 63)) - 1
        return index >= 0 and damaged[index][0] <= position < damaged[index][1]

    def finish(self) -> None:
        end = self._found.end_offset
        for segment in self._log.segments:
            data_end = self._data_end(segment, max(end, segment.start)) if segment.end > end else 0
            if data_end > end:
                low = max(end, segment.start) - segment.start
                view = self._log.view(segment)
                used = len(bytes(view[low : min(data_end - segment.start, low + (1 << 20))]).rstrip(b"\0"))
                if used:
                    text = f"bytes after the last record are not a record ({self._store.where(end)})"
                    severity = "note" if not self._store.clean else "error"
                    self._found.add(
                        Finding(severity, "log.torn", text, offset=end, length=used, repair=START)
                    )
                    break
        for topic, count in sorted(self._without_queue.items()):
            text = f"{count} records are in no queue: the topic was deleted, or its queues are gone"
            self._found.add(Finding("note", "queue.none", text, topic=topic))
        for queue in (*self._store.table.queues.values(), *self._store.batch_table.queues.values()):
            self._check_unmatched(queue)
        self._index.finish(end)

    # --- queues -------------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        chunk, self._chunk, self._chunk_records = self._chunk, {}, 0
        for key, (offsets, packed) in chunk.items():
            queue = self._store.table.queues.get(key)
            if queue is None or not queue.file_starts:
                self._without_queue[key[0]] += len(offsets)
                continue
            ours = np.frombuffer(packed, ENTRY_DTYPE)
            kept = ours["size"] != FILLER_SIZE  # the head of a damaged record gives the place of its entry
            self._compare(queue, np.array(offsets, np.int64)[kept], ours[kept])
        batches, self._batch_chunk = self._batch_chunk, {}
        for key, entries in batches.items():
            self._compare_batches(key, entries)

    def _compare(self, queue: ConsumeQueue, offsets: npt.NDArray[np.int64], ours: Entries) -> None:
        """``ours``: the entries that the queue must have at ``offsets`` according to the log."""
        theirs = np.zeros(len(offsets), ENTRY_DTYPE)
        breaks = np.flatnonzero(np.diff(offsets) != 1) + 1
        for low, high in zip([0, *breaks.tolist()], [*breaks.tolist(), len(offsets)], strict=True):
            at = low
            while at < high:
                known = queue.min_offset <= offsets[at] < queue.max_offset
                got = queue.read(int(offsets[at]), high - at) if known else theirs[:0]
                if len(got):
                    theirs[at : at + len(got)] = got
                at += max(len(got), 1)
        codes = resolve_tags_codes(queue.ext, theirs["tags_code"].astype(np.int64))
        same = (theirs["position"] == ours["position"]) & (theirs["size"] == ours["size"])
        good = same & (codes == ours["tags_code"])
        self._matched[queue.key] += int(np.count_nonzero(same))
        for index in np.flatnonzero(~good).tolist()[:MAX_FINDINGS]:
            self._differs(queue, int(offsets[index]), ours[index], theirs[index])

    def _differs(self, queue: ConsumeQueue, offset: int, ours: Any, theirs: Any) -> None:
        position, size = int(ours["position"]), int(ours["size"])
        if theirs["size"] == 0:
            if offset < queue.min_offset:
                return  # the queue begins later: the record is of an earlier topic of the same name
            severity = "error" if self._store.clean and not self._store.in_use else "note"
            text = f"the record at {position} has no entry yet"
            self._found.add(_of_queue(queue, severity, "queue.behind", text, offset, position))
            return
        if theirs["size"] == FILLER_SIZE:
            text = f"the entry is a filler, but its record is at {position}"
        elif (theirs["position"], theirs["size"]) != (position, size):
            text = (
                f"the entry points to {int(theirs['position'])} ({int(theirs['size'])} bytes), but the record with this"
                f" offset is at {position} ({size} bytes)"
            )
        else:
            text = f"the tags of the record at {position} are not those of its entry"
        self._found.add(_of_queue(queue, "error", "queue.differs", text, offset, position))

    def _compare_batches(self, key: tuple[str, int], entries: list[BatchEntry]) -> None:
        queue = self._store.batch_table.batch_queues.get(key)
        if queue is None or not queue.array.file_starts:
            self._without_queue[key[0]] += len(entries)
            return
        for entry in entries:
            number = queue.number_of(entry.base) if entry.base < queue.max_offset else queue.array.max_offset
            found = queue.entry(number) if number < queue.array.max_offset else None
            if found is None or found.base != entry.base:
                severity = "error" if self._store.clean and not self._store.in_use else "note"
                text = f"the batch at {entry.position} has no entry yet"
                self._found.add(
                    _of_queue(queue.array, severity, "queue.behind", text, entry.base, entry.position)
                )
            elif (found.position, found.size, found.messages) != (entry.position, entry.size, entry.messages):
                text = f"the entry points to {found.position}, but the batch is at {entry.position}"
                self._found.add(
                    _of_queue(queue.array, "error", "queue.differs", text, entry.base, entry.position)
                )
            else:
                self._matched[key] += 1

    def _check_unmatched(self, queue: ConsumeQueue) -> None:
        """Check the entries to which no record of the log refers."""
        count = queue.max_offset - queue.min_offset
        self._found.entries += count
        if count == self._matched[queue.key]:
            return
        for offset, entries in self._blocks(queue):
            sizes, positions = entries["size"], entries["position"]
            fillers = sizes == FILLER_SIZE
            self._found.fillers += int(np.count_nonzero(fillers))
            looked = np.flatnonzero(~fillers & (positions >= self._log.min_offset))
            good = self._are_heads(positions[looked].astype(np.int64), sizes[looked].astype(np.int64))
            bad = looked[~good]
            self._check_names(queue, offset, entries, looked[good])
            for index in bad.tolist()[:MAX_FINDINGS]:
                position = int(positions[index])
                text = f"there is no record at {position}"
                if self.is_damaged(position):
                    text = f"its record at {position} is damaged"
                    finding = _of_queue(queue, "lost", "queue.lost-record", text, offset + index, position)
                    finding.repair = LOST
                    self._found.add(finding)
                    continue
                elif position >= self._found.end_offset:
                    text = f"its record would be at {position}, after the end of the log"
                self._found.add(_of_queue(queue, "error", "queue.no-record", text, offset + index, position))

    def _check_names(
        self, queue: ConsumeQueue, offset: int, entries: Entries, indexes: npt.NDArray[np.intp]
    ) -> None:
        """Check that the records are of this queue and have these offsets."""
        if is_lmq(queue.topic) or queue.key in self._store.batch_table.queues:
            return  # their records are of other queues, or have several offsets
        for index in indexes.tolist():
            position = int(entries["position"][index])
            segment = self._log.segment_of(position)
            if segment is None:
                continue
            record = check_record(
                self._log.view(segment), position - segment.start, segment.length, verify_crc=False
            )
            if (record.topic, record.queue_id, record.queue_offset) != (*queue.key, offset + index):
                text = (
                    f"the record at {position} has offset {record.queue_offset} of"
                    f" {record.topic}/{record.queue_id}"
                )
                self._found.add(_of_queue(queue, "error", "queue.differs", text, offset + index, position))

    def _blocks(self, queue: ConsumeQueue) -> Iterator[tuple[int, Entries]]:
        offset = queue.min_offset
        while offset < queue.max_offset:
            entries = queue.read(offset, _BLOCK_ENTRIES)
            if len(entries):
                yield offset, entries
            offset = offset + len(entries) if len(entries) else queue.next_existing_offset(offset + 1)

    def _are_heads(
        self, positions: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.bool_]:
        """Mask of the positions where a record of that size begins, outside ranges found damaged."""
        good = np.zeros(len(positions), np.bool_)
        for segment in self._log.segments:
            inside = (positions >= segment.start) & (positions + sizes <= segment.start + segment.length)
            inside &= sizes >= MIN_RECORD_BYTES
            if inside.any():
                starts = positions[inside] - segment.start
                good[inside] = heads_agree(self._log.view(segment), starts, sizes[inside], positions[inside])
                release(self._log.view(segment), 0, segment.length)
        good &= positions < self._found.end_offset
        for low, high in self.report.damaged:
            good &= (positions < low) | (positions >= high)
        return good


class _IndexCursor:
    """Reads all index files in parallel with the log."""

    def __init__(self, store: OfflineStore, found: FsckReport, is_damaged: Callable[[int], bool]) -> None:
        self._found = found
        self._is_damaged = is_damaged
        self._min = store.log.min_offset
        self._blocks = self._all_entries(store)
        self._block: npt.NDArray[np.int64] = np.empty((0, 2), np.int64)
        self._behind = 0
        self._tags = 0
        """Tags that the index does not have: RocketMQ before 5.5 wrote it."""
        self._end = max((file.header.end_position for file in store.index_files), default=-1)
        self._first: int | None = None

    def _all_entries(self, store: OfflineStore) -> Iterator[npt.NDArray[np.int64]]:
        for file in store.index_files:
            newest = np.zeros(file.shape.slots, np.int32)
            for low, entries in entries_of(store, file):
                previous, _ = link(entries["hash"].astype(np.int64) % file.shape.slots, low, newest)
                wrong = np.flatnonzero(entries["previous"] != previous)
                if len(wrong):
                    text = f"index/{file.name}: entry {low + int(wrong[0])} does not lead to the one before in its slot"
                    self._found.add(Finding("error", "index.chain", text, repair=REBUILD))
                self._found.index_entries += len(entries)
                columns = np.empty((len(entries), 2), np.int64)
                columns[:, 0], columns[:, 1] = entries["position"], entries["hash"]
                yield columns
            self._check_slots(store, file, newest)

    def _check_slots(self, store: OfflineStore, file: IndexFile, newest: npt.NDArray[np.int32]) -> None:
        """``newest``: the number of the newest entry of each slot."""
        wrong = np.flatnonzero(store._index_maps.slots(file) != newest)
        if len(wrong):
            text = f"index/{file.name}: slot {int(wrong[0])} does not lead to its newest entry"
            self._found.add(Finding("error", "index.slot", text, repair=REBUILD))

    def _until(self, end: int) -> npt.NDArray[np.int64]:
        """The entries of records before ``end`` that were not returned yet."""
        while not len(self._block) or self._block[-1, 0] < end:
            following = next(self._blocks, None)
            if following is None:
                break
            self._block = np.concatenate((self._block, following)) if len(self._block) else following
        # Up to the last one before ``end``: one wrong entry must not hold up those after it.
        before = np.flatnonzero(self._block[:, 0] < end)
        count = int(before[-1]) + 1 if len(before) else 0
        taken, self._block = self._block[:count], self._block[count:]
        return taken

    def compare(self, run: Run) -> None:
        end, keys = run.end_position, run_keys(run)
        theirs = self._until(end)
        theirs = theirs[theirs[:, 0] >= self._min]
        if self._first is None and len(theirs):
            # RocketMQ may have started, or restarted, the index later than the log.
            self._first = int(theirs[0, 0])
        ours = self._expected(keys, end)
        self._behind += int(np.count_nonzero(keys.positions > self._end))
        if ours.shape == theirs.shape and bool((ours == theirs).all()):
            return
        have, want = Counter(map(tuple, theirs.tolist())), Counter(map(tuple, ours.tolist()))
        untagged = Counter(map(tuple, self._expected(run_keys(run, tags=False), end).tolist()))
        missing, foreign = untagged - have, have - want
        wrong = {position for position, _ in foreign}
        self._tags += sum(position not in wrong for position, _ in (want - have - missing).elements())
        for position, _ in list(missing.elements())[:MAX_FINDINGS]:
            text = f"a key of the record at {position} is not in the index"
            self._found.add(
                Finding("error", "index.missing", text, offset=cast(int, position), repair=REBUILD)
            )
        for position, _ in list(foreign.elements())[:MAX_FINDINGS]:
            if not self._is_damaged(cast(int, position)):  # a query skips these
                text = f"the index has a key for {position} that no record there has"
                self._found.add(
                    Finding("error", "index.no-record", text, offset=cast(int, position), repair=REBUILD)
                )

    def _expected(self, keys: KeyColumns, end: int) -> npt.NDArray[np.int64]:
        """What the index, where there is one, has for these keys: position and hash of each."""
        ours = np.stack((keys.positions, keys.hashes), axis=1)
        first = self._first if self._first is not None else end
        return ours[(ours[:, 0] >= first) & (ours[:, 0] <= self._end)]

    def finish(self, end: int) -> None:
        while next(self._blocks, None) is not None:
            continue
        if self._end >= end:
            text = f"the index refers to a record at {self._end}, after the end of the log"
            self._found.add(Finding("error", "index.ahead", text, offset=self._end, repair=REBUILD))
        if self._tags:
            text = f"{self._tags} tags are not in the index, which RocketMQ before 5.5 wrote; queries by tag miss them"
            self._found.add(Finding("note", "index.untagged", text, repair=REBUILD))
        if self._behind:
            text = f"{self._behind} keys of the newest records are not in the index yet"
            self._found.add(Finding("note", "index.behind", text, offset=self._end, repair=START))
