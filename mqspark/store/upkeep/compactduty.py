"""When a broker compacts by itself, and what retention has to leave until then.

A run compacts complete segments of the log, as far as consumers see them (``CommitPipeline.complete_end``). A run
is due every ``compactionScheduleInternal`` ms if there is more than the last time, and sooner when retention wants to
delete a segment that is not compacted. Its report says up to which position everything is compacted; with
``deleteCompactedOnly`` nothing behind that is deleted, however full the disk is. After a start the position is not
known before the first run, which reads no more than the queues' entries if there is nothing to do.

Must not know who compacts, nor how.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from mqspark.base.clock import Clock
from mqspark.base.logs import sparing
from mqspark.store.config import StoreConfig

_log = sparing(__name__, lines=5)

COMPACT_RETRY_MS = 60_000
"""Between a run that failed and one that retention asks for."""
BUSY_MS = 10_000
"""The same, while another process compacts."""


class CompactDuty:
    """Belongs to the store's thread."""

    def __init__(self, config: StoreConfig, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self.topics: Callable[[], list[str]] = list
        """The topics that are to be compacted. Set by who knows topics."""
        self.stop: Callable[[], None] = lambda: None
        """Ends a run at once. Set by who compacts."""
        self._since_ms = 0
        """When the store was opened, or the last run ended."""
        self._goes_on = False
        self._not_before_ms = 0
        self._done_end = -1
        """``end`` of the last run that left nothing."""
        self._position = 0
        """What is stored of ``_known`` before this is compacted; 0: nobody knows."""
        self._known: frozenset[str] = frozenset()
        self._taken: frozenset[str] = frozenset()
        """The topics of the run that is running. A slave may get messages before it knows what their topic is, so
        the position says nothing of a topic that is new."""
        self.is_running = False
        self.is_sure = False
        """Whether the last run ended as it should, so that what it published is on disk."""
        self.held_segments = 0
        """Segments that retention would delete if they were compacted."""
        self._said_full = False
        self.runs = self.failures = self.queues = self.bytes_written = 0
        self.last_success_ms = 0
        self.problem: str | None = None
        """Why the last run failed or left something, or None."""

    def begin(self) -> None:
        """The store was opened."""
        self._since_ms = self._clock.monotonic_ms()
        self._not_before_ms = self._position = self.held_segments = 0
        self._done_end = -1
        self._known = frozenset()
        self.is_sure = False

    @property
    def position(self) -> int | None:
        """Retention may delete what lies before this; None: everything."""
        topics = self.topics()
        if not self._config.delete_compacted_only or not topics:
            return None
        return self._position if self._known.issuperset(topics) else 0

    @property
    def measures_only(self) -> bool:
        """Whether the next run only finds out what is compacted already, by a Spark job."""
        return not self._config.enable_compaction

    def hold(self, segments: int, *, is_full: bool) -> None:
        """Retention has left so many segments. ``is_full``: it wanted to delete them whatever their age."""
        if segments and (not self.held_segments or (is_full and not self._said_full)):
            _log.log(
                logging.WARNING if is_full or self._position or self.measures_only else logging.INFO,
                "%d segments of the log stay until their compaction topics are compacted (deleteCompactedOnly)%s%s",
                segments,
                "; the disk is full, messages are refused from diskSpaceWarningLevelRatio on"
                if is_full
                else "",
                "; enableCompaction=false: run the job compact" if self.measures_only else "",
            )
        self.held_segments = segments
        self._said_full = is_full and segments > 0

    def due(self, end: int) -> int | None:
        """The end of the run that is due, or None. ``end``: the position up to which a run may compact now."""
        now_ms = self._clock.monotonic_ms()
        is_time = now_ms >= self._since_ms + self._config.compaction_schedule_internal or self._goes_on
        is_time = is_time and self._config.enable_compaction
        is_asked = self.held_segments > 0 and now_ms >= self._not_before_ms
        if self.is_running or not (is_time or is_asked):
            return None
        topics = self.topics()
        if not topics or (end <= self._done_end and self._known.issuperset(topics)):  # there is nothing new
            self._since_ms = now_ms
            return None
        self.is_running, self._goes_on, self._taken = True, False, frozenset(topics)
        return end

    def finished(self, end: int, position: int, queues: int, bytes_written: int, problem: str | None) -> None:
        """A run has done what it could. ``problem``: why it left something."""
        self.is_running = False
        self.is_sure = problem is None
        self._since_ms = now_ms = self._clock.monotonic_ms()
        self._not_before_ms = now_ms
        if position < end:
            self._not_before_ms += BUSY_MS if problem is None else COMPACT_RETRY_MS
        self._position, self._known = position, self._taken
        self.runs += 1
        self.queues += queues
        self.bytes_written += bytes_written
        self._note(problem)
        if problem is None:
            self.last_success_ms = self._clock.now_ms()
            if position >= end:
                self._done_end = end
                self.held_segments = 0

    def go_on(self) -> None:
        """The next run is due now: what kept the last one from going on was dealt with."""
        self._goes_on = True
        self._not_before_ms = 0
        self._done_end = -1

    def forget(self) -> None:
        """What is compacted has changed, or the log was taken back: nothing is known of it, whatever a run says that
        began before."""
        self._known = self._taken = frozenset()
        self._position = 0
        self._done_end = -1

    def failed(self, problem: str) -> None:
        """A run has ended without a report. What was known stays true."""
        self.is_running = self.is_sure = False
        self._since_ms = now_ms = self._clock.monotonic_ms()
        self._not_before_ms = now_ms + COMPACT_RETRY_MS
        self.runs += 1
        self._note(problem)

    def _note(self, problem: str | None) -> None:
        if problem is not None:
            self.failures += 1
            _log.error("compaction: %s", problem)
        elif self.problem is not None:
            _log.warning("compaction works again")
        self.problem = problem
