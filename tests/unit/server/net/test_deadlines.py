"""Deadlines of calls, by a loop whose time is set."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

from mqspark_server.net.deadlines import STEP_S, Deadlines


class Timer:
    def __init__(self, at: float, due: Callable[[], None]) -> None:
        self.at, self.due, self.is_cancelled = at, due, False

    def cancel(self) -> None:
        self.is_cancelled = True


class Loop:
    def __init__(self) -> None:
        self.timers: list[Timer] = []

    def call_at(self, at: float, due: Callable[[], None]) -> Timer:
        self.timers.append(Timer(at, due))
        return self.timers[-1]

    def pass_to(self, now: float) -> None:
        while due := [each for each in self.timers if not each.is_cancelled and each.at <= now]:
            self.timers.remove(due[0])
            due[0].due()


class Call:
    slot = -1


def made() -> tuple[Loop, Deadlines[Any], list[Call]]:
    loop, over = Loop(), list[Call]()
    return loop, Deadlines(cast(asyncio.AbstractEventLoop, loop), over.append), over


def test_calls_end_in_the_order_of_their_deadlines_and_not_before() -> None:
    loop, deadlines, over = made()
    late, soon, same = Call(), Call(), Call()
    deadlines.add(late, 9.0)
    deadlines.add(soon, 2.0)
    deadlines.add(same, 2.0)
    loop.pass_to(1.99)
    assert over == []
    loop.pass_to(2.0 + 2 * STEP_S)
    assert over == [soon, same]
    loop.pass_to(10.0)
    assert over == [soon, same, late]


def test_a_call_that_has_ended_is_forgotten() -> None:
    loop, deadlines, over = made()
    first, second = Call(), Call()
    for call in (first, second):
        deadlines.add(call, 1.0)
    deadlines.discard(first)
    deadlines.discard(Call())
    loop.pass_to(2.0)
    assert over == [second]
    deadlines.discard(second)
    assert [each for each in loop.timers if not each.is_cancelled] == []


def test_nothing_is_due_after_the_end() -> None:
    loop, deadlines, over = made()
    deadlines.add(Call(), 1.0)
    deadlines.close()
    loop.pass_to(5.0)
    assert over == []
