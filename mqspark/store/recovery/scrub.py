"""Compares the whole log with the queues while the broker serves, again and again.

A start cannot do that in reasonable time.

The log, with all that is visible when a round begins, is read in slices in the housekeeping thread, at
``scrubBytesPerSecond``; the CRC of each record is checked. A queue entry that does not point to its record, although
the log has one for its offset, or that has another tags code, is corrected. Bytes of the log without a valid record
are reported. An entry that points to a record of its queue and offset is left alone whatever else the log holds,
because a topic may have been created again under its name.

A reader that finds no record where one belongs asks for a look at that place (``look_at``), which comes before
everything else: only a walk from the end of a valid record on tells damage of the log from a wrong entry.

Light message queues and BatchConsumeQueues are not compared here; ``fsck`` does that. A start checks the order of
the latter.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mqspark.base.config import INT64_MAX
from mqspark.base.names import path_below
from mqspark.errors import MQError
from mqspark.message import SCHEDULE_TOPIC
from mqspark.record.record import Verdict, check_record
from mqspark.store.disk.damage import Damage, Outcome
from mqspark.store.disk.files import FileLayer
from mqspark.store.disk.layout import file_name
from mqspark.store.disk.notes.checkpoint import Checkpoint
from mqspark.store.log.commitlog import CommitLog, Segment
from mqspark.store.messages.commit import CommitPipeline
from mqspark.store.queue.consumequeue import ENTRY, ENTRY_BYTES, ENTRY_DTYPE, FILLER_SIZE, ConsumeQueue
from mqspark.store.queue.delaylevels import DelayLevels
from mqspark.store.queue.multidispatch import is_lmq
from mqspark.store.queue.queueext import EXT_ADDRESS_BELOW
from mqspark.store.queue.queuetable import QueueTable
from mqspark.store.recovery.recovery import Recovery
from mqspark.store.recovery.recoveryreport import lost_offsets
from mqspark.store.storedata import StoreData

_MAX_CHECKED = 4096
"""Limit of the differing entries per slice whose own records are read."""
ROUND_MS = 10_000
"""The pause between two rounds: a small log is not read all the time."""
_LOOK_BYTES = 1 << 20
"""Bytes behind a place that is looked at for the next valid record; more, if there is none."""
_MAX_LOOKS = 100


class _Wrong(NamedTuple):
    topic: str
    queue_id: int
    offset: int
    theirs: bytes
    ours: bytes


class _ScrubSlice(Recovery):
    """Reads a slice of one segment and collects the entries that contradict the log."""

    def __init__(
        self,
        log: CommitLog,
        table: QueueTable,
        levels: DelayLevels,
        files: FileLayer,
        deleted: Mapping[str, int],
    ) -> None:
        private = QueueTable(table.directory, files, file_bytes=table.file_bytes, max_mapped=1)
        super().__init__(log, private, Checkpoint(), levels, clean=True, verify_crc=True, deleted=deleted)
        private.batch_topics = set(table.batch_topics)
        self._file_bytes = table.file_bytes
        self._files = files
        self._limit = 0
        self._checked = 0
        self.wrong: list[_Wrong] = []

    def read(self, start: int, limit: int) -> int:
        self._limit = limit
        end = self._scan(start)
        self._settle()
        return end

    def _data_end(self, segment: Segment, position: int) -> int:
        return min(super()._data_end(segment, position), self._limit)

    def _convert_to_batches(self, topic: str) -> None:
        self._table.batch_topics.add(topic)

    def _settle(self) -> None:
        chunk, self._chunk, self._chunk_records = self._chunk, {}, 0
        self._batch_chunk = {}
        for (topic, queue_id), (offsets, packed) in chunk.items():
            if not is_lmq(topic):
                self._compare(topic, queue_id, np.frombuffer(offsets, np.int64), bytes(packed))

    def _compare(self, topic: str, queue_id: int, offsets: npt.NDArray[np.int64], packed: bytes) -> None:
        step = self._file_bytes // ENTRY_BYTES
        ours = np.frombuffer(packed, ENTRY_DTYPE)
        for number in np.unique(offsets // step).tolist():
            path = str(
                path_below(self._table.directory, topic, queue_id, file_name(number * self._file_bytes))
            )
            at = np.flatnonzero(offsets // step == number)
            low, high = int(offsets[at].min()), int(offsets[at].max()) + 1
            try:
                fd = self._files.open_read(path)
            except FileNotFoundError:
                continue  # the topic was deleted, or retention has removed the file
            try:
                data = self._files.read_at(
                    fd, (high - low) * ENTRY_BYTES, (low - number * step) * ENTRY_BYTES
                )
            finally:
                self._files.close(fd)
            theirs = np.frombuffer(data, ENTRY_DTYPE, len(data) // ENTRY_BYTES)
            at = at[offsets[at] - low < len(theirs)]
            found = theirs[offsets[at] - low]
            differs = (found["position"] != ours["position"][at]) | (found["size"] != ours["size"][at])
            differs &= ours["size"][at] != FILLER_SIZE
            tags = (
                ~differs & (found["tags_code"] != ours["tags_code"][at]) & (ours["size"][at] != FILLER_SIZE)
            )
            # An address of an ext unit stands for the code, and a delayed message has its time there, which the
            # levels of another broker may have given it.
            tags &= (found["tags_code"] >= EXT_ADDRESS_BELOW) & (topic != SCHEDULE_TOPIC)
            is_tags = dict.fromkeys(at[tags].tolist())
            for index in at[differs | tags].tolist():
                offset = int(offsets[index])
                entry = theirs[offset - low].tobytes()
                if index in is_tags or (
                    self._checked < _MAX_CHECKED
                    and not self._refers_to_record(entry, topic, queue_id, offset)
                ):
                    self.wrong.append(
                        _Wrong(
                            topic,
                            queue_id,
                            offset,
                            entry,
                            packed[index * ENTRY_BYTES : (index + 1) * ENTRY_BYTES],
                        )
                    )

    def _refers_to_record(self, entry: bytes, topic: str, queue_id: int, offset: int) -> bool:
        """Whether the entry points to a record of this queue and offset."""
        self._checked += 1
        position, size, _ = ENTRY.unpack(entry)
        segment = self._all_segment_of(position)
        if (
            segment is None
            or size <= 0
            or size == FILLER_SIZE
            or position + size > segment.start + segment.length
        ):
            return False
        low = position - segment.start
        record = check_record(self._log.copied(segment, [(low, low + size)]), 0, size, verify_crc=False)
        return record.verdict is Verdict.VALID and (record.topic, record.queue_id, record.queue_offset) == (
            topic,
            queue_id,
            offset,
        )

    def _all_segment_of(self, position: int) -> Segment | None:
        return next((each for each in self.every if each.start <= position < each.end), None)

    every: list[Segment] = []  # noqa: RUF012 - set by who makes it


class Scrub:
    """The scrub of one open store. Belongs to the store's thread, except ``run`` of its jobs."""

    def __init__(self, data: StoreData, pipeline: CommitPipeline) -> None:
        self._config = data.config
        self._data = data
        self._log = data.log
        self._private = self._private_log()
        self._table = data.table
        self._levels = data.levels
        self._files = data.files
        self._note = data.note
        self._clock = data.clock
        self._rate = data.config.scrub_bytes_per_second
        self._pipeline = pipeline
        self._damage = data.damage
        self._deleted = data.deleted
        self._next_ms = self._next_round_ms = self._reach = 0
        self._running = False
        self._looks: dict[int, int] = {}
        """Places to look at, and how far behind them a valid record is searched."""
        self._marks: list[int] = []
        """Ends of valid records, in order: where slices of the present round and the one before began."""
        self.begin = self.position = self.end = 0
        self.rounds = 0
        """Rounds that have ended."""
        self.healed = 0
        self.problem: str | None = None

    def open(self) -> None:
        """Start after recovery, with the settings of now."""
        self._private = self._private_log()
        self._rate = self._reach = self._config.scrub_bytes_per_second
        self._next_ms = 0
        self._next_round_ms = self._clock.monotonic_ms() + ROUND_MS
        self._running = False
        self._looks.clear()
        self._marks.clear()
        self.begin = self.position = self._log.min_offset
        self.end = self._pipeline.synced_end
        self.rounds = self.healed = 0
        self.problem = None

    def _private_log(self) -> CommitLog:
        """For the other thread; it maps nothing."""
        data = self._data
        return CommitLog(
            data.paths.commit_logs,
            data.files,
            segment_bytes=self._log.segment_bytes,
            allocation_step=0,
            max_mapped=0,
        )

    @property
    def done(self) -> bool:
        """Whether the present round has ended."""
        return self.position >= self.end or self._rate <= 0

    def as_dict(self) -> dict[str, object]:
        """The state for the health report."""
        return {
            "begin": self.begin, "position": self.position, "end": self.end, "done": self.done,
            "rounds": self.rounds, "bytesPerSecond": self._rate, "healedEntries": self.healed,
            "problem": self.problem,
        }  # fmt: skip

    def look_at(self, position: int) -> None:
        """Somebody finds no record at this place. The next job looks what is there, also when the rate is 0."""
        if len(self._looks) < _MAX_LOOKS and not self._damage.covers(position, position + 1):
            self._looks.setdefault(position, _LOOK_BYTES)

    def cut(self, end: int) -> None:
        """The log was taken back to ``end``."""
        self.end = min(self.end, end)
        del self._marks[bisect.bisect_right(self._marks, end) :]
        self._looks = {place: reach for place, reach in self._looks.items() if place < end}
        self._damage.remove(end, INT64_MAX)

    def job(self) -> ScrubJob | None:
        """The next slice, when it is due."""
        if self._running:
            return None
        self._damage.remove(0, self._log.min_offset)
        for place in self._damage.take_suspects():
            self.look_at(place)
        asked = self._job_of_look()
        if asked is not None:
            return asked
        now_ms = self._clock.monotonic_ms()
        if self.done and self._rate > 0 and now_ms >= self._next_round_ms:
            self._begin_round()
        if self.done or now_ms < self._next_ms:
            return None
        self.position = max(self.position, self._log.min_offset)
        segment = self._log.segment_of(self.position)
        if segment is None:
            starts = [each.start for each in self._log.segments if each.start > self.position]
            self.position = min(starts, default=self.end)
            segment = self._log.segment_of(self.position)
        if segment is None or self.done:
            return None
        limit = min(self.position + self._reach, segment.end, self.end)
        self._next_ms = now_ms + (limit - self.position) * 1000 // max(self._rate, 1)
        return self._new_job(segment, self.position, limit)

    def _begin_round(self) -> None:
        self.begin = self.position = self._log.min_offset
        self.end = self._pipeline.synced_end
        del self._marks[: bisect.bisect_left(self._marks, self.begin)]

    def _new_job(self, segment: Segment, start: int, limit: int, look: int | None = None) -> ScrubJob:
        self._running = True
        self._damage.watch()
        self._private.segments = [Segment(segment.path, segment.start, segment.length, segment.end)]
        reader = _ScrubSlice(self._private, self._table, self._levels, self._files, self._deleted.copy())
        reader.every = list(self._log.segments)
        return ScrubJob(self, reader, segment, start, limit, look)

    def _job_of_look(self) -> ScrubJob | None:
        for place, reach in list(self._looks.items()):
            segment = self._log.segment_of(place)
            end = self._pipeline.synced_end
            if segment is None or place >= end or self._damage.covers(place, place + 1):
                del self._looks[place]
                continue
            index = bisect.bisect_right(self._marks, place) - 1
            start = max(self._marks[index] if index >= 0 else segment.start, segment.start)
            return self._new_job(segment, start, min(place + reach, segment.end, end), place)
        return None

    def finish(self, job: ScrubJob) -> None:
        self._running = False
        if job.look is not None:
            self._looked(job, job.look)
            return
        if job.error is not None:
            # Retention has removed the file. Any other error is reported and the segment is skipped.
            if not isinstance(job.error, FileNotFoundError):
                self.problem = f"reading the log at {job.start} failed: {str(job.error) or repr(job.error)}"
            self._pass(job.segment.end)
            return
        end = job.end
        is_last = job.limit in (job.segment.end, self.end)
        if end < job.limit and not is_last and end == job.start:
            self._reach *= 2  # a record or a damaged range is longer than a slice
            return
        self._reach = max(self._rate, 1)
        self._mark(job.start)
        if is_last and end < job.limit:
            self._note_damage(end, job.limit)
            end = job.limit
        for low, high in job.reader.damaged:
            self._note_damage(low, high)
        self._pass(end)
        self._heal(job.reader.wrong)

    def _pass(self, end: int) -> None:
        self.position = end
        if self.position >= self.end:
            self.rounds += 1
            self._next_round_ms = self._clock.monotonic_ms() + ROUND_MS

    def _looked(self, job: ScrubJob, place: int) -> None:
        reach = self._looks.get(place, 0)
        is_last = job.limit >= min(job.segment.end, self._pipeline.synced_end)
        if job.error is None and job.end <= place and not is_last:
            self._looks[place] = reach * 8  # no valid record follows so near
            return
        self._looks.pop(place, None)
        if job.error is not None:
            self.problem = f"reading the log at {place} failed: {str(job.error) or repr(job.error)}"
            return
        if job.end <= place:
            self._note_damage(job.end, job.limit)
        for low, high in job.reader.damaged:
            self._note_damage(low, high)
        self._heal(job.reader.wrong)

    def _mark(self, position: int) -> None:
        at = bisect.bisect_left(self._marks, position)
        if self._marks[at : at + 1] != [position]:
            self._marks.insert(at, position)

    def _note_damage(self, low: int, high: int) -> None:
        if self._damage.covers(low, high):
            return
        if self._damage.was_healed(low, high):
            self.look_at(low)
            return
        lost = lost_offsets(self._table.queues.values(), low, high)
        self._damage.add(low, high, is_led_into=bool(lost))
        text = f"{high - low} bytes of the log hold no valid record"
        self._note(Damage("log.damaged", Outcome.LOST, text, low, high - low, lost))

    def _heal(self, wrong: list[_Wrong]) -> None:
        healed: dict[ConsumeQueue, list[int]] = {}
        for each in wrong:
            queue = self._table.queues.get((each.topic, each.queue_id))
            if queue is None or not queue.min_offset <= each.offset < queue.max_offset:
                continue
            if queue.packed_entry(each.offset) == each.theirs:
                queue.replace(each.offset, each.ours)
                healed.setdefault(queue, []).append(each.offset)
        for queue, offsets in healed.items():
            self.healed += len(offsets)
            name = f"{queue.topic}/{queue.queue_id}"
            text = (
                f"{len(offsets)} entries of queue {name} from {min(offsets)} on did not lead to their records"
            )
            self._note(Damage("queue.differs", Outcome.HEALED, text))


class ScrubJob:
    """Reads a slice. Blocking, in any thread."""

    def __init__(
        self, owner: Scrub, reader: _ScrubSlice, segment: Segment, start: int, limit: int, look: int | None
    ) -> None:
        """``look``: the place that somebody asked about."""
        self._owner = owner
        self.look = look
        self.reader = reader
        self.segment = segment
        self.start = start
        self.limit = limit
        self.end = start
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.end = self.reader.read(self.start, self.limit)
        except (OSError, MQError) as error:
            self.error = error

    def done(self, error: BaseException | None = None) -> None:
        self.error = error or self.error
        self._owner.finish(self)
