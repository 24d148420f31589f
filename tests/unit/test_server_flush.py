from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from mqspark.store.saved import Job
from mqspark_server import flush
from mqspark_server.flush import Housekeeper, Worker
from tests.waiting import until

pytestmark = pytest.mark.anyio


class Once:
    def __init__(self, run: Callable[[], None], done: Callable[[], None] = lambda: None) -> None:
        self._run, self._done = run, done

    def run(self) -> None:
        self._run()

    def done(self) -> None:
        self._done()


class Faulty:
    """Rounds: no jobs can be found; a job fails, and one's end; all is well."""

    jobs_due = False

    def __init__(self) -> None:
        self.rounds = 0
        self.ran: list[str] = []

    def jobs(self) -> list[Job]:
        self.rounds += 1
        if self.rounds == 1:
            raise RuntimeError("no jobs")
        if self.rounds == 2:
            return [Once(self._fail), Once(lambda: None, self._fail), Once(lambda: self.ran.append("other"))]
        return [Once(lambda: self.ran.append("well"))]

    def _fail(self) -> None:
        raise RuntimeError("a fault in a job")


async def test_housekeeping_goes_on_after_a_fault(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(flush, "HOUSEKEEPING_S", 0.001)
    core, worker, errors = Faulty(), Worker("housekeeping-test"), []
    housekeeper = Housekeeper(core, worker, lambda: errors.append(housekeeper.error))
    housekeeper.start()
    await until(lambda: "well" in core.ran, "a round without a fault")
    await housekeeper.stop()
    worker.close()
    assert core.ran[:2] == ["other", "well"]
    assert errors[0] == "RuntimeError('a fault in a job')"
    assert errors[1] is None
    faults = [
        record.getMessage()
        for record in caplog.records
        if record.exc_info and record.levelno == logging.ERROR
    ]
    assert faults == ["housekeeping found a fault", *["a job of housekeeping found a fault"] * 2]
