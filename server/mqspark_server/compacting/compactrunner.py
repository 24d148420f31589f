"""Starts the process that compacts when a run is due, reads its report, and ends it with the broker.

Lives on the broker's loop. A thread writes and reads the pipes of the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from subprocess import PIPE, Popen

import msgspec

from mqspark.base.clock import Clock
from mqspark.base.logs import sparing
from mqspark.errors import StoreUnreadable
from mqspark.store.store import MessageStore
from mqspark.store.tools.compactor import CompactReport, CompactTask, DamagedEntries, TopicToCompact

log = sparing("mqspark.compaction", lines=20)

COMPACT_LOOK_S = 1.0
EXAMINE_S = 0.01
HANGS_S = 600
"""A process without a sign of life for this time is ended, because its disk hangs."""


class CompactRunner:
    """The compactions of one store."""

    def __init__(self, store: MessageStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._examination: asyncio.TimerHandle | None = None
        self._process: Popen[bytes] | None = None
        self._thread: threading.Thread | None = None
        self._end = 0
        self._heard_s = 0.0
        self._examined: dict[str, dict[int, int]] = {}
        """Compacted topic and queue id → the offset before which damage was handled as far as possible."""
        self._topics: list[TopicToCompact] = []
        """The topics of the last run."""
        store.upkeep.compact_duty.stop = self._interrupt

    def start(self) -> None:
        self._timer = self._loop.call_later(COMPACT_LOOK_S, self._tick)

    def stop(self) -> None:
        for timer in (self._timer, self._examination):
            if timer is not None:
                timer.cancel()
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
        if self._thread is not None:
            self._thread.join()

    def _interrupt(self) -> None:
        """End the run: the log that it reads is about to be truncated."""
        process = self._process
        if process is not None:
            process.kill()
            process.wait()  # once it has ended, it holds no lock

    @property
    def process_id(self) -> int | None:
        """The id of the process that compacts now."""
        return None if self._process is None else self._process.pid

    def _tick(self) -> None:
        self._timer = self._loop.call_later(COMPACT_LOOK_S, self._tick)
        if self._examination is not None:
            return
        if self._process is not None:
            if time.monotonic() - self._heard_s > HANGS_S:
                self._process.kill()
            return
        if self._store.condition.read_only is not None:
            # The next start recovers; nothing is deleted until then.
            return
        end = self._store.upkeep.compact_duty.due(self._store.pipeline.complete_end)
        if end is not None:
            self._begin(end)

    def _begin(self, end: int) -> None:
        store, config = self._store, self._store.config
        deleted, topics = store.deletions.positions, store.upkeep.compact_duty.topics()
        self._examined = {name: found for name in topics if (found := self._examined.get(name))}
        self._topics = [
            TopicToCompact(name, deleted.get(name, 0), self._examined.get(name, {})) for name in topics
        ]
        task = CompactTask(
            root=config.store_path_root_dir,
            commit_log=",".join(map(str, store.paths.commit_logs.all)),
            end=end,
            topics=self._topics,
            map_bytes=config.max_offset_map_size,
            # A clock that was set forward makes no tombstone old enough to go.
            now_ms=self._clock.now_ms() if store.upkeep.wall_time.is_trusted else 0,
            measure_only=store.upkeep.compact_duty.measures_only,
            sync_found=not store.upkeep.compact_duty.is_sure,
        )
        self._end, self._heard_s = end, time.monotonic()
        try:
            process = self._process = Popen(
                [sys.executable, "-m", "mqspark_server.compacting.compactchild"],
                stdin=PIPE,
                stdout=PIPE,
                start_new_session=True,
            )
        except OSError as error:
            store.upkeep.compact_duty.failed(f"the compaction process cannot be started: {error}")
            return
        line = msgspec.json.encode(task) + b"\n"
        self._thread = threading.Thread(
            target=self._exchange, args=(process, line), name="mqspark-compaction", daemon=True
        )
        self._thread.start()

    def _exchange(self, process: Popen[bytes], task: bytes) -> None:
        """In a thread: write the task, read the signs of life and the report, and wait for the end of the process."""
        report = b""
        with contextlib.suppress(RuntimeError):  # the loop is closed: the broker has stopped
            if process.stdin is not None and process.stdout is not None:
                with contextlib.suppress(OSError):  # the exit code says why a process has ended
                    process.stdin.write(task)
                    process.stdin.flush()
                for line in process.stdout:
                    report = line
                    self._loop.call_soon_threadsafe(self._note_sign_of_life)
                process.stdout.close()
                with contextlib.suppress(OSError):
                    process.stdin.close()
            code = process.wait()
            self._loop.call_soon_threadsafe(self._process_ended, process, code, report)

    def _note_sign_of_life(self) -> None:
        self._heard_s = time.monotonic()

    def _process_ended(self, process: Popen[bytes], code: int, line: bytes) -> None:
        if process is not self._process:
            return
        self._process = None
        duty = self._store.upkeep.compact_duty
        try:
            self._remove_late()
            if code:
                raise ValueError(f"it ended with code {code}")
            report = msgspec.json.decode(line, type=CompactReport)
        except (ValueError, msgspec.MsgspecError) as error:
            duty.failed(f"the compaction process wrote no report: {error}")
            return
        except OSError as error:
            duty.failed(f"compacted files of deleted topics cannot be removed: {error}")
            return
        problem = None
        if report.failed:
            problem = f"{report.failed} queues were not compacted: {'; '.join(report.problems)}"
        self._store.reads.compacted.look_again()  # before retention deletes what only the new generations have
        duty.finished(self._end, report.compacted_to, report.queues, report.bytes_written, problem)
        self._log_report(report)
        if report.damaged:
            self._examine(report.damaged)

    def _remove_late(self) -> None:
        """Remove what the run has published for topics that were deleted meanwhile. Raises OSError."""
        deleted = self._store.deletions.positions
        late = {
            topic.name: deleted[topic.name]
            for topic in self._topics
            if deleted.get(topic.name, 0) > topic.floor
        }
        if late:
            self._store.reads.compacted.leave_out(late)

    def _log_report(self, report: CompactReport) -> None:
        log.info(
            "compacted %d queues in %d passes: %d records read, %d kept, %d bytes written, %d damaged ones stepped"
            " over; the log is compacted to %d of %d%s",
            report.queues,
            report.passes,
            report.records_read,
            report.records_kept,
            report.bytes_written,
            report.stepped_over,
            report.compacted_to,
            self._end,
            f"; left to another process: {report.busy}" if report.busy else "",
        )

    def _examine(self, damaged: list[DamagedEntries]) -> None:
        """Read the entries that a run could not read, as a consumer does: such a read corrects wrong entries of a
        queue. Each read may search some megabytes of the log, so the loop does other work in between."""
        for each in damaged:
            log.warning(
                "compaction of queue %s/%d stopped before offset %d, whose entry does not lead to its record",
                each.topic,
                each.queue_id,
                each.offsets[0],
            )
        reads = iter([(each, offset) for each in damaged for offset in each.offsets])
        self._examination = self._loop.call_later(EXAMINE_S, self._examine_next, reads)

    def _examine_next(self, reads: Iterator[tuple[DamagedEntries, int]]) -> None:
        self._examination = None
        read = next(reads, None)
        if read is None:
            self._store.upkeep.compact_duty.go_on()
            return
        each, offset = read
        try:
            self._store.reads.get(each.topic, each.queue_id, offset, 1, 1)
        except StoreUnreadable as error:
            log.warning("entries that compaction could not read still cannot be read: %s", error)
            return  # the next run tries again
        self._examined.setdefault(each.topic, {})[each.queue_id] = offset + 1
        self._examination = self._loop.call_later(EXAMINE_S, self._examine_next, reads)
