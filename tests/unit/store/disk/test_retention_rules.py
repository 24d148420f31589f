"""Retention: the decision, which is a function, and the settings that it goes by."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqspark.errors import ConfigError
from mqspark.store import StoreConfig
from mqspark.store.disk.retention import Decision, DiskUsage, OldSegment, RetentionRules, decide, delete_hours

HOUR_MS = 3_600_000
NOW_MS = 1_700_000_000_000
RULES = RetentionRules()


def disk(percent: float) -> DiskUsage:
    return DiskUsage(round(percent * 1000), 100_000 - round(percent * 1000))


def decision(
    ages_h: list[float],
    percent: float = 10,
    *,
    size: int = 1000,
    others: tuple[float, ...] = (),
    rules: RetentionRules = RULES,
    hour: int = 12,
    asked: bool = False,
    refusing: bool = False,
    returning: int = 0,
) -> Decision:
    """``size``: of a segment, in thousandths of a percent of the disk."""
    old = [OldSegment(NOW_MS - round(age * HOUR_MS), size) for age in ages_h]
    return decide(
        old,
        disk(percent),
        [disk(other) for other in others],
        rules,
        now_ms=NOW_MS,
        hour=hour,
        asked=asked,
        refusing=refusing,
        returning_bytes=returning,
    )


def test_expired_segments_go_at_their_hour() -> None:
    ages = [100, 73, 72, 71.99, 1]
    assert decision(ages, hour=12).delete == 0
    assert decision(ages, hour=4).delete == 3, "exactly at the limit counts as expired"
    assert decision(ages, hour=4, rules=RetentionRules(file_reserved_time_h=1)).delete == 5
    assert decision(ages, hour=16, rules=RetentionRules(delete_hours=frozenset({4, 16}))).delete == 3
    assert decision([], hour=4).delete == 0


def test_an_operator_may_ask_at_any_hour() -> None:
    assert decision([100, 1], asked=True).delete == 1


def test_a_segment_behind_a_young_one_waits() -> None:
    """Somebody touched the file, or the clock jumped: the log is deleted from its beginning on all the same."""
    assert decision([100, 1, 100], hour=4).delete == 1


def test_no_more_than_a_batch_goes_at_once() -> None:
    assert decision([100] * 30, hour=4).delete == 10
    assert decision([100] * 30, hour=4, rules=RetentionRules(batch_max=3)).delete == 3
    assert decision([1] * 30, 99, size=1).delete == 10


@pytest.mark.parametrize(
    ("percent", "expired", "young", "immediately", "refuse"),
    [
        (75, 0, 0, False, False),
        (75.1, 2, 0, False, False),
        (85, 2, 0, False, False),
        (85.1, 2, 1, True, False),
        (90, 2, 5, True, False),
        (90.1, 2, 6, True, True),
        (100, 2, 10, True, True),
    ],
)
def test_water_marks(percent: float, expired: int, young: int, immediately: bool, refuse: bool) -> None:
    """A segment is one percent of the disk."""
    assert decision([100, 100], percent) == Decision(expired, immediately, refuse)
    assert decision([1] * 30, percent) == Decision(young, immediately, refuse)


def test_what_is_not_expired_goes_only_until_the_mark() -> None:
    assert decision([100, 1, 1, 1], 86.5, size=1000).delete == 2, "the expired one frees a percent, too"
    assert decision([100, 100, 100, 1], 85.5, size=1000).delete == 3, "expired ones go in any case"


def test_what_is_about_to_return_is_not_deleted_for_again() -> None:
    assert decision([1] * 8, 88, returning=2500).delete == 1
    assert decision([1] * 8, 88, returning=3000).delete == 0
    assert decision([100] + [1] * 8, 88, returning=3000).delete == 1, "what is expired goes anyway"
    assert decision([1] * 8, 95, returning=20_000).refuse_writes, "the disk is full until it does"


def test_refusing_ends_at_the_lower_mark() -> None:
    assert decision([], 88, refusing=False).refuse_writes is False
    assert decision([], 88, refusing=True).refuse_writes is True
    assert decision([], 85, refusing=True).refuse_writes is False


def test_another_full_disk_counts_but_is_not_relieved_by_bytes_of_the_log() -> None:
    assert decision([1] * 30, 10, others=(86,), size=50_000) == Decision(10, True, False)
    assert decision([1] * 30, 10, others=(91,)).refuse_writes
    assert decision([100, 1], 10, others=(76,)).delete == 1


def test_without_forcible_cleaning_only_the_expired_go() -> None:
    rules = RetentionRules(clean_forcibly=False)
    assert decision([100, 1, 1], 95, rules=rules) == Decision(1, True, True)


@given(
    ages=st.lists(st.floats(-10, 1000), max_size=30),
    percent=st.floats(0, 100),
    others=st.lists(st.floats(0, 100), max_size=2),
    size=st.integers(0, 20_000),
    marks=st.tuples(*[st.integers(0, 100)] * 3),
    reserved_h=st.integers(0, 500),
    batch=st.integers(0, 12),
    hour=st.integers(0, 23),
    flags=st.tuples(*[st.booleans()] * 3),
)
def test_whatever_the_numbers(
    ages: list[float],
    percent: float,
    others: list[float],
    size: int,
    marks: tuple[int, int, int],
    reserved_h: int,
    batch: int,
    hour: int,
    flags: tuple[bool, bool, bool],
) -> None:
    asked, refusing, force = flags
    rules = RetentionRules(reserved_h, frozenset({4}), *marks, force, batch)
    fullest = max(percent, *others) if others else percent
    made = decision(
        ages, percent, others=tuple(others), size=size, rules=rules, hour=hour, asked=asked, refusing=refusing
    )
    assert 0 <= made.delete <= min(len(ages), batch)
    may_force = made.immediately and force
    deleted = ages[: made.delete]
    if not may_force:
        assert all(age >= reserved_h - 1e-6 for age in deleted), "only force takes what is not expired"
        if not asked and hour != 4 and fullest <= marks[0] - 0.01:
            assert not deleted
    if asked or hour == 4:
        expired = 0
        while expired < len(ages) and ages[expired] >= reserved_h + 1e-6:
            expired += 1
        assert made.delete >= min(expired, batch), "whatever is expired goes when it is time"
    if fullest > marks[2] + 0.01:
        assert made.refuse_writes
    if fullest < min(marks[1:]) - 0.01:
        assert not made.refuse_writes
        assert not made.immediately
    if made.refuse_writes and not refusing:
        assert made.immediately
    fewer = decision(
        ages[:-1],
        percent,
        others=tuple(others),
        size=size,
        rules=rules,
        hour=hour,
        asked=asked,
        refusing=refusing,
    )
    assert fewer.delete == min(made.delete, max(len(ages) - 1, 0)), (
        "later segments decide nothing of earlier ones"
    )


def test_hours_to_delete_at() -> None:
    assert delete_hours("04") == {4}
    assert delete_hours("04; 16;23") == {4, 16, 23}
    assert delete_hours("") == set()
    for text in ("24", "4am", "-1", "04,16"):
        with pytest.raises(ConfigError, match="deleteWhen"):
            delete_hours(text)


@pytest.mark.parametrize(
    ("name", "value", "key"),
    [
        ("delete_when", "25", "deleteWhen"),
        ("disk_space_warning_level_ratio", 101, "diskSpaceWarningLevelRatio"),
        ("disk_max_used_space_ratio", 0, "diskMaxUsedSpaceRatio"),
        ("file_reserved_time", -1, "fileReservedTime"),
        ("delete_file_batch_max", 0, "deleteFileBatchMax"),
    ],
)
def test_settings_that_make_no_sense(name: str, value: object, key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        StoreConfig(**{name: value})  # type: ignore[arg-type]
