"""Lone reads, by times and sizes that are given."""

from __future__ import annotations

import pytest

from mqspark_server.net.lonereads import IN_A_ROW, LATELY_S, SHARE, LoneReads

MUCH = SHARE * 1000


def gone(*reads: tuple[int, float]) -> list[int]:
    """After which of these reads others went first."""
    found, noted = list[int](), list[int]()
    lone = LoneReads(lambda: found.append(len(noted)))
    for size, at in reads:
        lone.note(size, at)
        noted.append(size)
    return found


def test_others_go_first_when_lone_reads_follow_one_that_brought_much() -> None:
    assert gone((MUCH, 1.0), *[(1000, 1.001)] * (2 * IN_A_ROW)) == [IN_A_ROW, 2 * IN_A_ROW]


@pytest.mark.parametrize("size", [1, 1000, MUCH])
def test_who_sends_alone_lets_nobody_go_first(size: int) -> None:
    assert gone(*[(size, 1 + n / 1000) for n in range(200)]) == []


def test_what_came_long_ago_does_not_count() -> None:
    assert gone((MUCH, 1.0), *[(1000, 1 + LATELY_S)] * 20) == []


def test_a_read_that_is_not_lone_ends_the_row() -> None:
    row = [(1000, 1.001)] * (IN_A_ROW - 1)
    assert gone((MUCH, 1.0), *row, (1001, 1.001), *row, (MUCH, 1.001), *row) == []
