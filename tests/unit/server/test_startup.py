"""How what was started ends: ``mqspark_server.process.processapp``."""

from __future__ import annotations

import asyncio

import pytest

from mqspark_server.process.processapp import Ends


def three(ends: Ends, log: list[str]) -> None:
    """A thread that always ends, a part that is saved or dropped, and a port."""

    async def save() -> None:
        await asyncio.sleep(0)
        log.append("saved")

    ends.always(lambda: log.append("thread ended"))
    ends.on_stop(save)
    ends.on_kill(lambda: log.append("dropped"))
    ends.always(lambda: log.append("port closed"))


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (Ends.stop, ["port closed", "saved", "thread ended"]),
        (Ends.kill, ["port closed", "dropped", "thread ended"]),
    ],
)
async def test_the_last_one_started_ends_first(end: object, expected: list[str]) -> None:
    ends, log = Ends(), list[str]()
    three(ends, log)
    await end(ends)  # type: ignore[operator]
    assert log == expected
    await ends.stop()
    await ends.kill()
    assert log == expected, "once"


async def test_a_failing_end_keeps_no_other_from_its_own() -> None:
    ends, log = Ends(), list[str]()
    ends.always(lambda: log.append("thread ended"))
    ends.on_stop(lambda: 1 // 0)
    ends.always(lambda: log.append("port closed"))
    with pytest.raises(ZeroDivisionError):
        await ends.stop()
    assert log == ["port closed", "thread ended"]
