from __future__ import annotations

import asyncio

import pytest

from mqspark.client.life import lifecycle
from mqspark.client.life.lifecycle import Tasks


async def test_work_that_is_kept_begins_again_after_a_fault(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lifecycle, "RESTART_PAUSE_S", 0)
    tasks, begun = Tasks("group G"), 0

    async def work() -> None:
        nonlocal begun
        begun += 1
        if begun < 3:
            raise ValueError(f"fault {begun}")

    async with asyncio.timeout(30):
        await tasks.keep(work)
    assert begun == 3
    assert [
        record.exc_info[1].args for record in caplog.records if record.exc_info and record.exc_info[1]
    ] == [
        ("fault 1",),
        ("fault 2",),
    ]
    assert "group G" in caplog.text


async def test_work_that_is_kept_can_be_cancelled() -> None:
    tasks = Tasks("group G")
    task = tasks.keep(asyncio.Event().wait)
    await asyncio.sleep(0)
    await tasks.cancel()
    assert task.cancelled()
