from __future__ import annotations

import asyncio
import errno
import logging
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mqspark.protocol.codes import ResponseCode
from mqspark.store.disk.diskjobs import Job, PreparedJob
from mqspark.store.disk.kernelsync import KernelSync
from mqspark_server.process import diskwork as flush
from mqspark_server.process.diskwork import Flusher, Housekeeper, Worker
from tests.support.store_tools import QuickFiles, kernel_sync
from tests.support.waiting import eventually_async
from tests.unit.broker_kit import SEND, Bench, Peer, send_ext


class Once:
    def __init__(self, run: Callable[[], None], done: Callable[[], None] = lambda: None) -> None:
        self._run, self._done = run, done

    def run(self) -> None:
        self._run()

    def done(self, error: BaseException | None = None) -> None:
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
    await eventually_async(lambda: "well" in core.ran, "a round without a fault")
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
    assert faults == ["housekeeping failed unexpectedly", *["a housekeeping job failed unexpectedly"] * 2]


class Sliced(PreparedJob):
    def __init__(self, events: list[object], error: Exception | None = None) -> None:
        self._events, self._error = events, error

    def prepare(self) -> Iterator[None]:
        for number in range(3):
            self._events.append(number)
            yield
        if self._error is not None:
            raise self._error

    def run(self) -> None:
        self._events.append("run")

    def done(self, error: BaseException | None = None) -> None:
        self._events.append(error)


async def test_the_loop_serves_others_between_the_slices_of_a_job() -> None:
    events: list[object] = []
    error = OSError("a slice failed")
    worker = Worker("housekeeping-test")
    housekeeper = Housekeeper(Faulty(), worker)

    async def other() -> None:
        while "run" not in events:
            events.append("other")
            await asyncio.sleep(0)

    task = asyncio.get_running_loop().create_task(other())
    await housekeeper.run([Sliced(events)])
    await task
    assert events[:6] == [0, "other", 1, "other", 2, "other"]
    assert events[-1] is None
    assert housekeeper.error is None
    events.clear()
    await housekeeper.run([Sliced(events, error)])
    worker.close()
    assert events == [0, 1, 2, error], "it did not run"
    assert housekeeper.error == "a slice failed"


async def test_a_long_job_is_named(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    worker = Worker("housekeeping-test")
    housekeeper = Housekeeper(Faulty(), worker)
    monkeypatch.setattr(flush, "LONG_JOB_S", 3_600.0)
    await housekeeper.run([Once(lambda: None)])
    assert [record for record in caplog.records if record.name == "mqspark.flush"] == []
    monkeypatch.setattr(flush, "LONG_JOB_S", -1.0)
    await housekeeper.run([Once(lambda: None)])
    worker.close()
    (line,) = [record.getMessage() for record in caplog.records if record.name == "mqspark.flush"]
    assert re.fullmatch(r"housekeeping: Once took \d+\.\d s", line)


# --- group commit ---


class Kernel(KernelSync):
    """Syncs nothing: what became of it is said by ``end``."""

    def __init__(self, *, refused: bool = False) -> None:
        self.event_fd = os.eventfd(0, os.EFD_NONBLOCK)
        self.refused = refused
        self.begun: list[int] = []
        self._ended: int | OSError | None = None

    def submit(self, fd: int) -> None:
        if self.refused:
            raise OSError(errno.EAGAIN, "no room")
        self.begun.append(fd)

    def end(self, outcome: int | OSError = 0, *, tell: bool = True) -> None:
        self._ended = outcome
        if tell:
            os.eventfd_write(self.event_fd, 1)

    def poll(self) -> int | None:
        outcome, self._ended = self._ended, None
        if isinstance(outcome, OSError):
            raise outcome
        return outcome

    def close(self) -> None:
        os.close(self.event_fd)


class Commits:
    """A broker with SYNC_FLUSH, one producer, and the flusher between them."""

    def __init__(self, directory: Path, kernel: KernelSync | None) -> None:
        self.bench = Bench(directory, sync=True)
        self.peer: Peer = self.bench.peer()
        self.worker = Worker("flush-test")
        self.flusher = Flusher(self.bench.broker, self.bench.store, self.worker, lambda: None, kernel)
        self.flusher.start()
        self._codes: list[int] = []

    def send(self, body: bytes = b"x") -> None:
        self.peer.give(SEND, send_ext(), body)
        self.bench.broker.turn()
        self.flusher.after_turn()

    async def begun(self) -> Commits:
        """After the first group, which makes a segment."""
        self.send()
        await self.answered(0)
        self._codes.clear()
        return self

    @property
    def codes(self) -> list[int]:
        """The codes of all answers so far."""
        self._codes += [answer.code for answer in self.peer.heard()]
        return self._codes

    async def answered(self, *codes: int) -> None:
        await eventually_async(lambda: len(self.codes) >= len(codes), f"{len(codes)} answers")
        assert self.codes == list(codes)

    async def stop(self) -> None:
        await self.flusher.stop()
        self.worker.close()


@pytest.fixture
def commits(tmp_path: Path) -> Iterator[Callable[[Kernel | None], Commits]]:
    made: list[Commits] = []

    def make(kernel: Kernel | None) -> Commits:
        made.append(Commits(tmp_path / str(len(made)), kernel))
        return made[-1]

    yield make
    for one in made:
        one.bench.store.abandon()


async def test_while_the_kernel_syncs_a_group_the_next_one_gathers(
    commits: Callable[[Kernel | None], Commits],
) -> None:
    kernel = Kernel()
    group = await commits(kernel).begun()
    for _ in range(5):
        group.send()
    assert len(kernel.begun) == 1
    assert group.codes == []
    kernel.end()
    await group.answered(0)
    assert len(kernel.begun) == 2, "the next group began with the answers to the first"
    kernel.end(tell=False)
    group.flusher.after_turn()  # a turn looks for itself
    assert group.codes == [0] * 5
    await group.stop()


class EndsWhenCleared(Kernel):
    """A sync that ends between the question for it and the clearing of an older event."""

    def clear_event(self) -> None:
        if len(self.begun) == 1:
            self.end()
        super().clear_event()


async def test_a_sync_that_ends_while_an_older_event_is_cleared_answers(
    commits: Callable[[Kernel | None], Commits],
) -> None:
    kernel = EndsWhenCleared()
    group = await commits(kernel).begun()
    group.send()
    os.eventfd_write(kernel.event_fd, 1)  # of a sync that a turn has asked about
    await group.answered(0)
    await group.stop()


async def test_a_sync_that_failed_is_never_begun_again(
    commits: Callable[[Kernel | None], Commits], caplog: pytest.LogCaptureFixture
) -> None:
    for outcome in (errno.EIO, OSError(errno.EINVAL, "no such context")):
        kernel = Kernel()
        group = await commits(kernel).begun()
        group.send()
        kernel.end(outcome)
        await group.answered(ResponseCode.SERVICE_NOT_AVAILABLE)
        group.send()
        await group.answered(*[ResponseCode.SERVICE_NOT_AVAILABLE] * 2)
        assert len(kernel.begun) == 1
        assert "syncing the CommitLog failed" in (group.bench.store.condition.read_only or "")
        await group.stop()
    assert "the store accepts no more writes" in caplog.text


async def test_a_write_that_failed_is_not_synced(
    commits: Callable[[Kernel | None], Commits], monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = Kernel()
    group = await commits(kernel).begun()

    def write(fd: int, data: object, offset: int) -> None:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(group.bench.store.files, "write", write)
    group.send()
    await group.answered(ResponseCode.SERVICE_NOT_AVAILABLE)
    assert kernel.begun == []
    assert "writing the CommitLog failed" in (group.bench.store.condition.read_only or "")
    await group.stop()


async def test_a_thread_takes_over_from_a_kernel_that_refuses(
    commits: Callable[[Kernel | None], Commits], caplog: pytest.LogCaptureFixture
) -> None:
    kernel = Kernel()
    group = await commits(kernel).begun()
    group.send()
    kernel.end()
    await group.answered(0)
    kernel.refused = True
    for _ in range(3):
        group.send()
    await group.answered(0, 0, 0, 0)
    assert len(kernel.begun) == 1
    assert caplog.text.count("a thread is used from now on") == 1
    await group.stop()


async def test_the_thread_writes_and_syncs_what_is_large_or_new(
    commits: Callable[[Kernel | None], Commits], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flush, "LOOP_WRITE_BYTES", 2000)
    kernel = Kernel()
    group = await commits(kernel).begun()
    group.send(b"x" * 3000)
    await group.answered(0)
    assert kernel.begun == []
    for _ in range(6):  # segments of 4 MiB
        group.send(b"x" * 1_000_000)
    await group.answered(*[0] * 7)
    await eventually_async(lambda: group.bench.store.log.durable > 1 << 22, "the second segment is synced")
    assert kernel.begun == []
    group.send()
    assert len(kernel.begun) == 1
    kernel.end()
    await group.answered(*[0] * 8)
    await group.stop()


async def test_stopping_waits_for_the_kernel_and_syncs_the_rest(
    commits: Callable[[Kernel | None], Commits],
) -> None:
    kernel = Kernel()
    group = await commits(kernel).begun()
    group.send()
    group.send()
    stopping = asyncio.ensure_future(group.stop())
    for expected in (1, 2):
        await eventually_async(lambda count=expected: len(kernel.begun) == count, "a sync")
        assert not stopping.done()
        kernel.end()
    await stopping
    assert group.codes == [0, 0]


@pytest.mark.parametrize("kernel", [True, False])
async def test_a_real_sync_answers(tmp_path: Path, kernel: bool) -> None:
    group = await Commits(tmp_path, kernel_sync() if kernel else None).begun()
    for _ in range(20):
        group.send()
    await group.answered(*[0] * 20)
    assert group.bench.store.log.durable == group.bench.store.log.position
    await group.stop()
    group.bench.store.close()


@pytest.mark.parametrize("step", ["write", "sync"])
async def test_no_error_of_a_flush_counts_as_synced(
    commits: Callable[[Kernel | None], Commits], monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    one = await commits(None).begun()

    def fail(*_: object) -> None:
        raise ValueError("unforeseen")

    monkeypatch.setattr(QuickFiles, step, fail)
    one.send()
    await one.answered(ResponseCode.SERVICE_NOT_AVAILABLE)
    assert one.bench.store.condition.read_only is not None
    await one.stop()


async def test_a_flush_without_memory_is_tried_again(
    commits: Callable[[Kernel | None], Commits], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await commits(None).begun()
    failed: list[int] = []

    def fail_once(_: QuickFiles, fd: int) -> None:
        if not failed:
            failed.append(fd)
            raise MemoryError

    monkeypatch.setattr(QuickFiles, "sync", fail_once)
    one.send()
    await eventually_async(lambda: bool(failed), "a failed sync")
    assert one.codes == []
    one.bench.clock.advance(60_000)
    one.flusher.after_turn()
    await one.answered(0)
    assert one.bench.store.condition.read_only is None
    await one.stop()
