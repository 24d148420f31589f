"""A wall clock that steps deletes nothing: not by itself, not after a restart, and not when it is set right again."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from mqspark.store import MessageStore
from mqspark.store.disk.retention import OldSegment
from mqspark.store.upkeep.walltime import STEP_MS, WAIT_MS, WallTime
from tests.support.clocks import ManualClock
from tests.support.store_tools import QuickFiles, RoomyFiles, checkpoint, crash, make_store, put_synced

HOUR_MS, DAY_MS = 3_600_000, 86_400_000
YEARS_MS = 70 * 365 * DAY_MS
ALL_DAY = ";".join(f"{hour:02d}" for hour in range(24))


class DatedFiles(RoomyFiles):
    """Every segment was written when the test began."""

    written_ms = ManualClock().wall_ms

    def age(self, path: object) -> OldSegment:
        return OldSegment(self.written_ms, 0)


def opened(root: Path, clock: ManualClock) -> MessageStore:
    store = make_store(root, clock, DatedFiles(clock), delete_when=ALL_DAY, file_reserved_time=72)
    store.open()
    return store


def filled(root: Path, clock: ManualClock) -> MessageStore:
    store = opened(root, clock)
    for _ in range(60):
        put_synced(store, "T", 0, b"x" * 300)
    return store


def rounds(store: MessageStore, clock: ManualClock) -> int:
    """Retention's next runs; the number of segments that are left."""
    for _ in range(4):
        checkpoint(store)
        clock.advance(10_000)
    return len(store.log.segments)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.mark.parametrize("step_ms", [200 * HOUR_MS, YEARS_MS])
@pytest.mark.parametrize("restart", ["no", "close", "kill"])
def test_a_step_forward_deletes_nothing_for_a_day(
    tmp_path: Path, clock: ManualClock, step_ms: int, restart: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = filled(tmp_path, clock)
    count = rounds(store, clock)
    if restart == "close":
        store.close()
    elif restart == "kill":
        crash(store)
    clock.wall_ms += step_ms
    if restart != "no":
        store = opened(tmp_path, clock)
    caplog.set_level(logging.INFO)
    assert rounds(store, clock) == count
    assert "set forward by" in str(store.status.retention_problem)
    assert restart != "no" or "set forward by" in caplog.text
    clock.advance(DAY_MS - HOUR_MS)
    assert rounds(store, clock) == count
    clock.advance(HOUR_MS)
    assert rounds(store, clock) < count
    assert store.status.retention_problem is None
    assert "steady for a day" in caplog.text


def test_an_operator_may_say_that_the_time_is_right(tmp_path: Path, clock: ManualClock) -> None:
    store = filled(tmp_path, clock)
    count = rounds(store, clock)
    clock.wall_ms += YEARS_MS
    assert rounds(store, clock) == count
    store.clean_expired()
    assert store.status.retention_problem is None
    assert rounds(store, clock) < count


def test_a_full_disk_is_cleaned_all_the_same(tmp_path: Path, clock: ManualClock) -> None:
    store = filled(tmp_path, clock)
    count = rounds(store, clock)
    clock.wall_ms += YEARS_MS
    assert rounds(store, clock) == count
    assert isinstance(store.files, RoomyFiles)
    store.config.disk_space_clean_forcibly_ratio = 80
    store.files.used_percent = 88
    assert rounds(store, clock) < count


def test_a_clock_that_is_set_right_again_is_trusted_at_once(tmp_path: Path, clock: ManualClock) -> None:
    store = filled(tmp_path, clock)
    count = rounds(store, clock)
    for wrong_ms in (YEARS_MS, -YEARS_MS // 2):
        clock.wall_ms += wrong_ms
        assert rounds(store, clock) == count
        assert store.status.retention_problem is not None
        clock.wall_ms -= wrong_ms
        assert rounds(store, clock) == count, "nothing is old"
        assert store.status.retention_problem is None
    clock.advance(73 * HOUR_MS)
    assert rounds(store, clock) < count, "time that really passed counts"


def test_a_clock_that_was_wrong_from_the_start_on(tmp_path: Path, clock: ManualClock) -> None:
    """What was written before 1990 by a clock without a battery is not old when the right time comes."""
    store = filled(tmp_path, clock)
    count = rounds(store, clock)
    store.close()
    clock.wall_ms -= 20 * 365 * DAY_MS
    store = opened(tmp_path, clock)
    assert rounds(store, clock) == count
    assert "set back by" in str(store.status.retention_problem)
    clock.wall_ms += 20 * 365 * DAY_MS + HOUR_MS  # of the stop, which is no step
    assert rounds(store, clock) == count
    assert store.status.retention_problem is None


# --- the rule alone ---


def watch(root: Path, clock: ManualClock) -> WallTime:
    watch = WallTime(clock, root / "mqspark.clock", QuickFiles())
    watch.open()
    return watch


def test_small_differences_are_no_step(tmp_path: Path, clock: ManualClock) -> None:
    one = watch(tmp_path, clock)
    for _ in range(48):  # a minute a day
        clock.advance(HOUR_MS)
        clock.wall_ms += 2_500
        assert one.is_trusted
    clock.wall_ms += STEP_MS - 5_000
    assert one.is_trusted
    clock.wall_ms += STEP_MS
    assert not one.is_trusted


def test_many_small_steps_are_one(tmp_path: Path, clock: ManualClock) -> None:
    one = watch(tmp_path, clock)
    clock.advance(1_000)
    trusted = []
    for _ in range(4):
        clock.wall_ms += STEP_MS // 3
        clock.advance(1_000)
        trusted.append(one.is_trusted)
    assert trusted == [True, True, False, False]


def test_another_step_begins_another_day(tmp_path: Path, clock: ManualClock) -> None:
    one = watch(tmp_path, clock)
    clock.wall_ms += DAY_MS
    assert not one.is_trusted
    clock.advance(WAIT_MS - 1)
    assert not one.is_trusted
    clock.wall_ms += 2 * DAY_MS
    assert not one.is_trusted
    clock.advance(WAIT_MS - 1)
    assert not one.is_trusted
    clock.advance(1)
    assert one.is_trusted


def test_restarts_do_not_make_a_wrong_time_right(tmp_path: Path, clock: ManualClock) -> None:
    watch(tmp_path, clock).close()
    clock.wall_ms += YEARS_MS
    for _ in range(3):
        clock.advance(HOUR_MS)
        one = watch(tmp_path, clock)
        assert not one.is_trusted
        one.close()
    one.trust()
    assert watch(tmp_path, clock).is_trusted


@pytest.mark.parametrize("note", [b"", b"mqspark-clock-1 99999999999999999 00000000\n", b"\xff" * 41])
def test_a_note_that_is_lost_or_damaged_compares_nothing(
    tmp_path: Path, clock: ManualClock, note: bytes
) -> None:
    (tmp_path / "mqspark.clock").write_bytes(note)
    assert watch(tmp_path, clock).is_trusted
    assert b"%d" % clock.wall_ms in (tmp_path / "mqspark.clock").read_bytes()
