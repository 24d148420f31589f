"""Commands that carry out a list of changes."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from mqspark.errors import InvalidMessage
from mqspark_server.actions.operating import Act, Done, Operated, Preview
from mqspark_server.commands.clustercommand import ClusterShell
from mqspark_server.commands.output import Output

pytestmark = pytest.mark.anyio


class Deletion:
    """With a barrier it is done when as many have begun."""

    title = "Delete {0.number}?"

    def __init__(self, number: int, barrier: asyncio.Barrier | None, begun: list[int]) -> None:
        self.number, self._barrier, self._begun = number, barrier, begun

    async def preview(self, at: Operated) -> Preview:
        return Preview(f"Delete {self.number}?", "Delete", is_dangerous=True)

    async def apply(self, at: Operated) -> Done:
        self._begun.append(self.number)
        if self._barrier is not None:
            async with asyncio.timeout(60):
                await self._barrier.wait()
        elif self.number in (3, 5):
            raise InvalidMessage(f"no {self.number}")
        return Done(f"{self.number} was deleted", {"number": self.number})


async def carried_out(begun: list[int], barrier: asyncio.Barrier | None, count: int, at_once: int) -> None:
    nothing: Any = None
    shell = ClusterShell(nothing, Output(), "n:1", nothing, None, 1)
    acts = [Deletion(number, barrier, begun) for number in range(count)]
    await shell.carry_out_all(cast("list[Act]", acts), yes=True, at_once=at_once)


async def test_changes_of_a_list_begin_together(capsys: pytest.CaptureFixture[str]) -> None:
    await carried_out([], asyncio.Barrier(8), 16, 8)
    assert capsys.readouterr().out.splitlines() == [f"{number} was deleted" for number in range(16)]


async def test_without_a_number_each_begins_when_the_last_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    begun: list[int] = []
    with pytest.raises(InvalidMessage, match="no 3"):
        await carried_out(begun, None, 6, 1)
    assert begun == [0, 1, 2, 3]
    assert capsys.readouterr().out.splitlines() == [f"{number} was deleted" for number in range(3)]


async def test_an_error_ends_a_list_after_what_has_begun(capsys: pytest.CaptureFixture[str]) -> None:
    begun: list[int] = []
    with pytest.raises(InvalidMessage, match="no 3"):
        await carried_out(begun, None, 16, 8)
    assert begun == list(range(8))
    told = capsys.readouterr()
    assert told.out.splitlines() == [f"{n} was deleted" for n in range(8) if n not in (3, 5)]
    assert told.err == "Delete 5? no 5\n", "whoever runs the command tells the first"
