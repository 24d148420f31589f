"""What a supervisor does with servers that end or do not start. The servers are scripted, not processes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

import pytest

from mqspark_server.hosting.childserver import ChildServer, PartFailed, marked
from mqspark_server.hosting.supervisor import Pauses, Supervisor
from tests.support.waiting import eventually_async

AT_ONCE = Pauses(0.0, 0.0)


class Scripted(ChildServer):
    """``fails``: how many of the starts after the first one fail. It serves until ``over`` is set."""

    def __init__(self, name: str, *, fails: int = 0, broken: bool = False, end: str | None = None) -> None:
        super().__init__(name, ("broker", "run"), {})
        self.fields = {"broker": "127.0.0.1:1"}
        self.fails, self.broken, self.fault = fails, broken, end
        self.over = asyncio.Event()
        self.served = asyncio.Event()
        self.events: list[str] = []

    @property
    def pid(self) -> int:
        return 7

    async def spawn(self, environment: Mapping[str, str]) -> None:
        self.events.append("spawn")
        self.over.clear()

    async def until_ready(self, timeout_s: float | None) -> None:
        if self.broken:
            raise PartFailed(f"{self.name} is broken")
        if self.events.count("spawn") in range(2, 2 + self.fails):
            raise PartFailed(f"{self.name} cannot start")
        self.serves, self.problem = True, ""
        self.served.set()

    async def until_ended(self) -> str:
        await self.over.wait()
        self.serves = False
        self.served.clear()
        return "SIGKILL"

    async def end(self, timeout_s: float) -> str | None:
        self.events.append("end")
        return self.fault


def supervisor(pauses: Pauses = AT_ONCE) -> Supervisor:
    return Supervisor(pauses, {}, start_s=None, stop_s=1.0)


def test_pauses_grow_up_to_a_bound_and_begin_anew_after_a_calm_time() -> None:
    pauses = Pauses(1.0, 30.0, calm_s=60.0)
    found, pause_s = [], 0.0
    for _ in range(8):
        pause_s = pauses.next_s(pause_s, served_s=2.0)
        found.append(pause_s)
    assert found == [1, 2, 4, 8, 16, 30, 30, 30]
    assert pauses.next_s(30.0, served_s=60.0) == 1.0


async def test_a_server_that_ends_starts_again_and_the_log_says_so(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "mqspark.host")
    child, other, keeper = Scripted("a-0", fails=1), Scripted("a-1"), supervisor()
    await keeper.start(child, other)
    keeper.keep(child, other)
    child.served.clear()
    child.over.set()
    await asyncio.wait_for(child.served.wait(), 10)
    assert caplog.messages == [
        "a-0 (pid 7) ended by SIGKILL; it starts again in 0 s",
        "a-0 cannot start",
        "a-0 serves again (pid 7) at 127.0.0.1:1",
    ]
    assert (child.restarts, child.problem) == (2, "")
    assert other.events == ["spawn"]
    await keeper.stop([child, other])


async def test_a_failing_start_cancels_the_others_and_all_can_be_ended() -> None:
    class Slow(Scripted):
        async def until_ready(self, timeout_s: float | None) -> None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.events.append("cancelled")
                raise

    slow, broken, keeper = Slow("a-0"), Scripted("a-1", broken=True), supervisor()
    with pytest.raises(PartFailed, match="a-1 is broken"):
        await keeper.start(slow, broken)
    assert slow.events == ["spawn", "cancelled"]
    await keeper.stop([slow, broken])
    assert slow.events[-1] == broken.events[-1] == "end"


async def test_nothing_starts_again_while_all_are_stopped() -> None:
    """The pause before the next start has begun."""
    child, keeper = Scripted("a-0"), supervisor(Pauses(1000.0, 1000.0))
    await keeper.start(child)
    keeper.keep(child)
    child.over.set()
    await eventually_async(lambda: child.problem == "it ended by SIGKILL and starts again")
    await keeper.stop([child])
    assert child.events == ["spawn", "end"]


async def test_a_stop_goes_group_by_group_and_names_what_was_not_clean() -> None:
    order: list[str] = []

    class Noted(Scripted):
        async def end(self, timeout_s: float) -> str | None:
            order.append(self.name)
            return await super().end(timeout_s)

    first, second, third = (
        Noted("a", end="a (killed after 1 s)"),
        Noted("b"),
        Noted("c", end="c (exit code 1)"),
    )
    with pytest.raises(PartFailed, match=r"did not stop cleanly: a \(killed after 1 s\); c \(exit code 1\)"):
        await supervisor().stop([first, second], [third])
    assert order == ["a", "b", "c"]


def test_log_lines_say_whose_they_are() -> None:
    assert marked("a-0", "INFO x\n") == "a-0 | INFO x\n"
    assert marked('a"0', '{"level": "INFO"}\n') == '{"server": "a\\"0", "level": "INFO"}\n'
    assert marked("a-0", "{} is no line of a log\n") == "a-0 | {} is no line of a log\n"
