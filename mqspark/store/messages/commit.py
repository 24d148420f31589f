"""Brings what was put to the disk and to its readers: the second step of storing.

Records and queue entries that were put are written together, synced, and shown once other brokers have them too. The
entries of records that are not visible yet wait here in *groups*: one for each write.

Must not know how messages are encoded, and who waits for them.
"""

from __future__ import annotations

from mqspark.base.config import INT64_MAX
from mqspark.errors import is_shortage
from mqspark.store.config import FlushDiskType
from mqspark.store.disk.diskjobs import FlushJob, StoreProgress
from mqspark.store.disk.notes.durable import DurableNote
from mqspark.store.messages.append import Appender
from mqspark.store.messages.condition import Condition
from mqspark.store.messages.unsettled import Group, Queue, Unsettled
from mqspark.store.storedata import StoreData

MAX_UNWRITTEN_BYTES = 4 * 1024 * 1024
"""Limit of the bytes that wait in memory while a sync runs. One-way sends wait for no answer, so only this
bounds them."""

MAX_UNDISPATCHED = 1_000
"""Limit of the runs of entries that wait for the files of their queues. Above it, messages are refused."""

SHORTAGE_PAUSE_MS = 50
"""Pause before work that lacked a descriptor or memory is retried."""

Arrival = tuple[str, int, int]
"""Topic, queue id and new max offset of a queue with newly visible messages."""


class CommitPipeline:
    """The way from ``Appender.put`` to the readers (see ``mqspark.store.store`` for the four positions)."""

    def __init__(
        self,
        data: StoreData,
        appender: Appender,
        condition: Condition,
        unsettled: Unsettled,
        note: DurableNote,
    ) -> None:
        self._clock = data.clock
        self._files = data.files
        self._log = data.log
        self._appender = appender
        self._condition = condition
        self._unsettled = unsettled
        self._note = note
        self._sync = data.config.flush_disk_type is FlushDiskType.SYNC_FLUSH
        self._written_store_ms = 0
        self._durable_store_ms = 0
        self._groups: list[tuple[int, Group]] = []
        self._unreported_arrivals: list[Arrival] = []
        """Arrivals that the next progress reports as well."""
        self._flush_retry_ms: int | None = None
        """Set while the flush waits after a shortage: the monotonic time at which it runs again."""
        self._confirmed = INT64_MAX
        """Consumers see nothing at or after this position (``confirm``)."""

    def begin(self, store_timestamp_ms: int) -> None:
        """``store_timestamp_ms``: store time of the last record that recovery has found."""
        self._written_store_ms = self._durable_store_ms = store_timestamp_ms

    # --- positions ------------------------------------------------------------------------------------------

    @property
    def stored_end(self) -> int:
        """End of the last record that is stored as safely as flushDiskType says: this broker alone would acknowledge
        it. Consumers see it once it is confirmed."""
        return self._log.durable if self._sync else self._log.written

    @property
    def visible_end(self) -> int:
        """End of the last record that consumers may see."""
        end, confirmed = self.stored_end, self._confirmed
        return end if end < confirmed else confirmed

    @property
    def synced_end(self) -> int:
        """End of the last record that consumers may see and a power cut leaves."""
        return min(self.visible_end, self._log.durable)

    @property
    def complete_end(self) -> int:
        """The same, without the segment that is being written."""
        return min(self._log.newest_segment_start, self.synced_end)

    @property
    def unconfirmed_bytes(self) -> int:
        """Bytes that are stored and not shown to consumers, because too few brokers have them (``confirm``)."""
        return self.stored_end - self.visible_end

    @property
    def durable_store_ms(self) -> int:
        """Store time of the last durable record."""
        return self._durable_store_ms

    @property
    def is_gated(self) -> bool:
        """Whether ``confirm`` decides what consumers see."""
        return self._confirmed != INT64_MAX

    @property
    def is_quiet(self) -> bool:
        """Whether everything that was put is synced and dispatched."""
        log = self._log
        return (
            log.durable == log.written == log.position
            and self._unsettled.flush is None
            and not self._groups
            and not self._unsettled.undispatched
            and not self._unsettled.dirty
        )

    @property
    def may_checkpoint(self) -> bool:
        """Whether the queues have the entries of everything durable: none waits for its file or to be confirmed."""
        return not self._unsettled.undispatched and not (
            self._groups and self._groups[0][0] <= self._log.durable
        )

    # --- writing --------------------------------------------------------------------------------------------

    def commit(self) -> StoreProgress:
        """Write everything that was put. Under ASYNC_FLUSH it becomes visible here. Never raises and never
        syncs.

        Under SYNC_FLUSH the next flush job writes it, because nothing can be acked earlier. While a slow disk
        syncs, this method writes once MAX_UNWRITTEN_BYTES are waiting.
        """
        if self._condition.failed_save is not None:
            self._condition.notice_failed_save()
        if self._unsettled.undispatched:
            self._unreported_arrivals += self._dispatch([])
        if self._condition.shortage is not None and not self._is_short:
            self._condition.relieve()
        if self._sync and (self._unsettled.flush is None or self.gathers):
            return self._progress([])
        return self._write()

    @property
    def gathers(self) -> bool:
        """Whether what is put waits for the end of the sync that runs: until then ``commit`` has nothing to do."""
        log = self._log
        return (
            self._sync
            and self._unsettled.flush is not None
            and log.position - log.written < MAX_UNWRITTEN_BYTES
        )

    def write_now(self) -> bool:
        """Write everything that was put, also under SYNC_FLUSH, so that it survives this process. Returns whether it is
        written. Call it after ``commit``."""
        if self._sync:
            self._write()
        return not self._log.pending and self._condition.read_only is None

    @property
    def _is_short(self) -> bool:
        """Whether work that lacked resources is still waiting."""
        waits = bool(self._log.pending) or self._flush_retry_ms is not None
        return waits or len(self._unsettled.undispatched) > MAX_UNDISPATCHED

    def _write(self) -> StoreProgress:
        condition = self._condition
        if condition.read_only is None and (self._log.pending or self._unsettled.dirty):
            try:
                if self._unsettled.flush is not None:
                    self._unsettled.write_in_flight()
                self._log.write_pending()
            except OSError as error:
                if is_shortage(error):  # everything is still pending
                    condition.lack("writing the CommitLog", error)
                else:
                    condition.poison("writing the CommitLog failed", error)
                return self._progress([])
            if condition.shortage is not None:
                condition.relieve()
            self._written_store_ms = self._appender.now_ms
            if not self._sync and self._confirmed == INT64_MAX:
                return self._progress(self._dispatch_dirty())
            self._groups.append((self._log.written, self._appender.take_group()))
        return self._progress(self._show() if self._groups and not self._sync else [])

    # --- flushing -------------------------------------------------------------------------------------------

    def begin_flush(self) -> FlushJob | None:
        """A job that makes the log durable, or None when there is nothing to do or a job is running.

        Under SYNC_FLUSH the job also writes; call this after every commit and every finished job. Under
        ASYNC_FLUSH call it every flush_interval_commit_log.
        """
        log = self._log
        if self._condition.read_only is not None:
            return None
        if self._unsettled.flush is not None:
            if self._flush_retry_ms is None or self._clock.monotonic_ms() < self._flush_retry_ms:
                return None
            self._flush_retry_ms = None
            return self._unsettled.flush
        offset, unwritten_bytes = 0, log.unwritten_bytes
        buffers: list[bytes | memoryview] = []
        if self._sync and (log.pending or self._unsettled.dirty):
            offset, buffers = log.take_pending()
            self._written_store_ms = self._appender.now_ms
            self._groups.append((log.written, self._appender.take_group()))
        if log.written <= log.durable:
            return None
        left, active, directories = log.take_unsynced()
        self._unsettled.flush = FlushJob(
            self._files,
            left,
            active,
            directories,
            log.written,
            self._written_store_ms,
            self._note,
            offset,
            buffers,
            unwritten_bytes if buffers else 0,
        )
        return self._unsettled.flush

    def end_flush(self, job: FlushJob) -> StoreProgress:
        """Finish a flush after ``job.run``. Under SYNC_FLUSH the flushed messages become visible here."""
        condition = self._condition
        condition.notice_failed_save()
        if job.error is not None and is_shortage(job.error) and condition.read_only is None:
            condition.lack(f"{job.step} the CommitLog", job.error)
            job.error = None
            self._flush_retry_ms = self._clock.monotonic_ms() + SHORTAGE_PAUSE_MS
            return self._progress([])
        self._unsettled.flush = None
        arrivals: list[Arrival] = []
        if job.error is not None:
            condition.poison(f"{job.step} the CommitLog failed", job.error)
            self._log.synced(job.left, self._log.durable)
        else:
            self._log.synced(job.left, job.end)
            condition.relieve()
            self._durable_store_ms = job.store_timestamp_ms
            arrivals = self._show()
        return self._progress(arrivals)

    def finish(self) -> None:
        """Write and flush everything on this thread, and show it: every start shows everything. ``remainder`` says what
        is left after an error."""
        if self._flush_retry_ms is not None:
            self._flush_retry_ms = 0
        self.commit()
        while self._flush_retry_ms in (None, 0) and (job := self.begin_flush()) is not None:
            job.run()
            self.end_flush(job)
        if self._condition.read_only is None:
            self.show_all()

    @property
    def remainder(self) -> str | None:
        """Why something that was put is not durable or not in its queue, or None when nothing is left."""
        if self._log.durable < self._log.written or self._unsettled.undispatched:
            return str(self._condition.shortage or "a flush is under way")
        return None

    def abandon(self) -> None:
        """Close the descriptors of a flush that will not be run again."""
        if self._unsettled.flush is not None and self._flush_retry_ms is not None:
            self._log.synced(self._unsettled.flush.left, self._log.durable)

    # --- showing --------------------------------------------------------------------------------------------

    def confirm(self, position: int) -> list[Arrival]:
        """Show consumers only what lies before ``position``, which other brokers have, too; INT64_MAX: everything.
        What was visible stays so. Returns the queues with newly visible messages."""
        self._confirmed = max(position, self.visible_end)
        return self._show() if self._groups and self._condition.read_only is None else []

    def show_all(self) -> None:
        """Show everything that is stored. The next progress reports the arrivals."""
        self._unreported_arrivals += self.confirm(INT64_MAX)

    def gate_at(self, position: int) -> None:
        """Show nothing at or after ``position`` until more is confirmed: the log was taken back to it."""
        self._confirmed = position

    def _show(self) -> list[Arrival]:
        """Dispatch what has become visible."""
        end, groups = self.visible_end, self._groups
        if len(groups) == 1 and groups[0][0] <= end:  # almost always, and the fastest
            return self._dispatch(groups.pop()[1])
        merged: dict[Queue, bytearray] = {}
        while groups and groups[0][0] <= end:
            for queue, entries in groups.pop(0)[1]:
                if queue in merged:
                    merged[queue] += entries
                else:
                    merged[queue] = entries
        return self._dispatch(list(merged.items()))

    def _dispatch_dirty(self) -> list[Arrival]:
        """``_dispatch`` of all that leaves ``pending``, without a group of it."""
        if self._unsettled.undispatched:
            return self._dispatch(self._appender.take_group())
        arrivals: list[Arrival] = []
        dirty = self._unsettled.dirty
        try:
            for queue in dirty:
                arrivals.append(queue.show())  # noqa: PERF401 - after an error this has those that are shown
            dirty.clear()
        except OSError as error:
            self._stopped(self._appender.take_group()[len(arrivals) :], error)
        return arrivals

    def _dispatch(self, group: Group) -> list[Arrival]:
        arrivals: list[Arrival] = []
        if self._unsettled.undispatched:
            group, self._unsettled.undispatched = self._unsettled.undispatched + group, []
        try:
            for queue, entries in group:
                arrivals.append(queue.append(entries))
        except OSError as error:
            self._stopped(group[len(arrivals) :], error)
        return arrivals

    def _stopped(self, rest: Group, error: OSError) -> None:
        """The first of these could not be dispatched."""
        if is_shortage(error):
            self._unsettled.undispatched = rest
            if len(rest) > MAX_UNDISPATCHED:
                self._condition.lack("writing a ConsumeQueue", error)
        else:
            self._condition.poison("writing a ConsumeQueue failed", error)

    def _progress(self, arrivals: list[Arrival]) -> StoreProgress:
        log = self._log
        if self._unreported_arrivals:
            arrivals, self._unreported_arrivals = self._unreported_arrivals + arrivals, []
        return StoreProgress(
            log.written,
            log.durable,
            log.durable if self._sync else log.written,
            arrivals,
            self._condition.read_only,
        )

    # --- forgetting -----------------------------------------------------------------------------------------

    def forget_entries(self, queue: Queue) -> None:
        """Drop entries of a queue that are not visible yet."""
        queue.take_entries()
        if queue in self._unsettled.dirty:
            self._unsettled.dirty.remove(queue)
        self._groups = [
            (end, [each for each in group if each[0] is not queue]) for end, group in self._groups
        ]
        self._unsettled.undispatched = [each for each in self._unsettled.undispatched if each[0] is not queue]

    def forget_topics(self, topics: frozenset[str]) -> None:
        """Write what was put, and drop the entries of these topics that are not visible yet."""
        arrivals = self._write().arrivals
        self._unreported_arrivals = [arrival for arrival in arrivals if arrival[0] not in topics]
        self._groups = [
            (end, [(queue, entries) for queue, entries in group if queue.topic not in topics])
            for end, group in self._groups
        ]
        self._unsettled.undispatched = [
            each for each in self._unsettled.undispatched if each[0].topic not in topics
        ]
