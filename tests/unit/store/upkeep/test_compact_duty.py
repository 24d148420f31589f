"""When a broker compacts by itself, and which segments retention leaves until then."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from mqspark.store.config import StoreConfig
from mqspark.store.upkeep.compactduty import BUSY_MS, COMPACT_RETRY_MS, CompactDuty
from tests.support.clocks import ManualClock
from tests.support.store_tools import RoomyFiles, checkpoint, clean, opened, put_synced

INTERVAL_MS = 15 * 60_000


class Bench:
    def __init__(self, **settings: bool) -> None:
        self.clock = ManualClock()
        self.config = StoreConfig(**settings)
        self.end = 4096
        self.duty = CompactDuty(self.config, self.clock)
        self.duty.topics = lambda: ["C"]
        self.duty.begin()

    def due(self) -> int | None:
        return self.duty.due(self.end)

    def run(self, position: int | None = None, problem: str | None = None) -> None:
        end = self.due()
        assert end is not None
        self.duty.finished(end, end if position is None else position, 1, 100, problem)


def test_a_run_is_due_every_interval_if_there_is_more() -> None:
    bench = Bench()
    duty, clock = bench.duty, bench.clock
    assert bench.due() is None
    clock.advance(INTERVAL_MS)
    assert bench.due() == 4096
    assert bench.due() is None  # one at a time
    duty.finished(4096, 4096, 2, 300, None)
    assert (duty.runs, duty.queues, duty.bytes_written, duty.failures) == (1, 2, 300, 0)
    assert duty.last_success_ms == clock.wall_ms
    clock.advance(INTERVAL_MS)
    assert bench.due() is None  # nothing new
    bench.end = 8192
    assert bench.due() is None
    bench.config.compaction_schedule_internal = 1000  # changed at run time
    clock.advance(1000)
    assert bench.due() == 8192


def test_nothing_is_due_without_topics_or_when_it_is_off() -> None:
    bench = Bench()
    bench.duty.topics = list
    bench.clock.advance(INTERVAL_MS)
    assert bench.due() is None
    assert bench.duty.position is None
    bench = Bench(enable_compaction=False)
    bench.clock.advance(INTERVAL_MS)
    assert bench.due() is None
    # But what a job has compacted has to be found out before a segment may go.
    bench.duty.hold(1, is_full=False)
    assert bench.due() == 4096
    assert bench.duty.measures_only


def test_retention_asks_for_a_run_at_once_and_again_after_a_while() -> None:
    bench = Bench()
    duty, clock = bench.duty, bench.clock
    assert duty.position == 0
    duty.hold(3, is_full=False)
    assert not duty.is_sure
    bench.run(position=0)  # another process was at it
    assert duty.is_sure
    assert duty.held_segments == 3
    assert bench.due() is None
    clock.advance(BUSY_MS)
    bench.run(position=1000, problem="queue C/0: EIO")
    assert (duty.position, duty.failures, duty.problem) == (1000, 1, "queue C/0: EIO")
    assert not duty.is_sure
    clock.advance(BUSY_MS)
    assert bench.due() is None
    clock.advance(COMPACT_RETRY_MS)
    assert bench.due() == 4096
    duty.is_sure = True
    duty.failed("killed")
    assert not duty.is_sure
    assert (duty.position, duty.failures, duty.problem) == (1000, 2, "killed")
    clock.advance(COMPACT_RETRY_MS)
    bench.run(position=2000)
    duty.go_on()
    bench.run()
    assert (duty.position, duty.held_segments, duty.problem) == (4096, 0, None)
    assert bench.due() is None


def test_a_new_topic_is_looked_at_before_anything_goes() -> None:
    """A slave may have its messages before it knows the topic."""
    bench = Bench()
    duty = bench.duty
    duty.hold(1, is_full=False)
    bench.run()
    assert duty.position == bench.end
    duty.topics = lambda: ["C", "D"]
    assert duty.position == 0
    duty.hold(1, is_full=False)
    bench.run()
    assert duty.position == bench.end


def test_who_gives_the_guard_up_has_none() -> None:
    bench = Bench(delete_compacted_only=False)
    assert bench.duty.position is None


def test_what_is_held_at_a_full_disk_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(enable_compaction=False)
    with caplog.at_level(logging.INFO):
        bench.duty.hold(2, is_full=False)
        bench.duty.hold(2, is_full=False)
        bench.duty.hold(3, is_full=True)
        bench.duty.hold(3, is_full=True)
    first, line = [record.getMessage() for record in caplog.records]
    assert first.startswith("2 segments of the log stay")
    assert "full" not in first
    assert line.startswith("3 segments of the log stay")
    assert "the disk is full" in line
    assert "run the job compact" in line


def test_no_segment_goes_before_it_is_compacted(tmp_path: Path, clock: ManualClock) -> None:
    files = RoomyFiles(clock)
    store = opened(tmp_path, clock, files, delete_when="", file_reserved_time=1)
    store.upkeep.compact_duty.topics = lambda: ["C"]
    for _ in range(100):
        put_synced(store, "C", 0, b"x" * 300, b"KEYS\x01k\x02")
    files.expired = {segment.path.name for segment in store.log.segments}

    def cleaned() -> int:
        return clean(store, clock)

    assert cleaned() == 0
    assert store.upkeep.compact_duty.held_segments > 0
    end = store.upkeep.compact_duty.due(store.pipeline.complete_end)
    assert end == store.log.newest_segment_start
    store.upkeep.compact_duty.finished(end, 2 * 4096 + 100, 1, 1, None)
    assert cleaned() == 2 * 4096
    store.upkeep.compact_duty.topics = list  # its topic was deleted
    assert cleaned() > 2 * 4096
    assert store.upkeep.compact_duty.held_segments == 0


def test_at_the_hard_mark_messages_are_refused_and_the_reason_names_what_is_held(tmp_path: Path) -> None:
    clock = ManualClock()
    files = RoomyFiles(clock)
    store = opened(
        tmp_path, clock, files, disk_space_clean_forcibly_ratio=85, disk_space_warning_level_ratio=90
    )
    store.upkeep.compact_duty.topics = lambda: ["C"]
    for _ in range(100):
        put_synced(store, "C", 0, b"x" * 300, b"KEYS\x01k\x02")
    files.used_percent = 95.0

    def cleaned() -> int:
        for _ in range(3):
            clock.advance(10_000)
            checkpoint(store)
        return store.log.min_offset

    assert cleaned() == 0
    assert "segments wait for their compaction (deleteCompactedOnly)" in (store.status.disk_full or "")
    end = store.upkeep.compact_duty.due(store.pipeline.complete_end)
    assert end is not None
    store.upkeep.compact_duty.finished(end, end, 1, 1, None)
    assert cleaned() > 0
    assert "deleteCompactedOnly" not in (store.status.disk_full or "")
    store.config.delete_compacted_only = False  # the way out, without a restart
    store.upkeep.compact_duty.topics = lambda: ["C", "New"]
    begin = store.log.min_offset
    for _ in range(30):
        files.used_percent = 10.0
        store.condition.disk_full = None
        put_synced(store, "New", 0, b"x" * 300, b"KEYS\x01k\x02")
    files.used_percent = 95.0
    assert cleaned() > begin


def test_nothing_is_compacted_of_what_comes_after_a_cut() -> None:
    """The log of a slave is taken back, and its master sends other messages in that place."""
    bench = Bench()
    duty, clock = bench.duty, bench.clock
    duty.hold(1, is_full=False)
    bench.run()
    assert duty.position == 4096
    duty.forget()
    assert duty.position == 0
    # The same before a run has ended.
    duty.hold(1, is_full=False)
    end = bench.due()
    assert end == 4096
    duty.forget()
    duty.finished(end, end, 1, 100, None)
    assert duty.position == 0
    clock.advance(INTERVAL_MS)
    bench.run()
    assert duty.position == 4096
