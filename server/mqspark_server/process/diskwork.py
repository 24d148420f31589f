"""Blocking disk work away from the event loop: group commit and housekeeping.

While one group is synced, by the kernel or in a thread, the loop continues to append; when it is durable,
everything appended meanwhile is the next group. One group is in flight at a time, so the number of syncs depends
on the disk's speed and not on the load. Housekeeping (queue files, config files, checkpoint) has a thread of its
own: it must not delay an acknowledgement. Must not know what a job does.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import queue
import threading
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

from mqspark.base.histogram import TIME_BOUNDS_S, Histogram
from mqspark.base.logs import sparing
from mqspark.broker.broker import BrokerCore
from mqspark.errors import NotNow
from mqspark.store.config import FlushDiskType
from mqspark.store.disk.diskjobs import FlushJob, Job, PreparedJob
from mqspark.store.disk.kernelsync import KernelSync
from mqspark.store.disk.savedtables import SteppedJob
from mqspark.store.store import MessageStore

log = sparing("mqspark.flush", lines=5)

R = TypeVar("R")

HOUSEKEEPING_S = 1.0
LONG_JOB_S = 1.0
"""A housekeeping job that takes longer is named in the log: checkpoints, saves and a change of role wait for it."""

LOOP_WRITE_BYTES = 1024 * 1024
"""Larger groups are written in the thread, too, while the loop continues; up to this size a write takes about 0.2
ms."""


class _HasJobs(Protocol):
    @property
    def jobs_due(self) -> bool: ...

    def jobs(self) -> list[Job]: ...


class Worker:
    """One thread that runs jobs in order and reports each to the loop. Cheaper per job than an executor."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._jobs: queue.SimpleQueue[
            tuple[Callable[[], object], Callable[[BaseException | None], None]] | None
        ]
        self._jobs = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[], object], done: Callable[[BaseException | None], None]) -> None:
        """``done(error)`` is called on the loop."""
        self._jobs.put((work, done))

    async def run(self, work: Callable[[], R]) -> R:
        """Run and wait; raises what ``work`` raises."""
        finished: asyncio.Future[R] = self._loop.create_future()
        results: list[R] = []

        def done(error: BaseException | None) -> None:
            if finished.done():
                return
            if error is None:
                finished.set_result(results[0])
            else:
                finished.set_exception(error)

        self.submit(lambda: results.append(work()), done)
        return await finished

    def close(self) -> None:
        """Finish the submitted jobs and end the thread."""
        self._jobs.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (item := self._jobs.get()) is not None:
            work, done = item
            error: BaseException | None = None
            try:
                work()
            except BaseException as caught:
                error = caught
            self._loop.call_soon_threadsafe(done, error)
            del item, work, done, error


def open_kernel_sync() -> KernelSync | None:
    """None where the kernel cannot sync asynchronously; then a thread syncs."""
    try:
        return KernelSync()
    except OSError as error:
        log.info("the kernel does not support asynchronous sync (%s): a thread is used", error)
        return None


class Flusher:
    """Group commit of one store. ``progressed`` is called after each group, on the loop.

    With ``kernel`` the loop writes a group and the kernel syncs it. The worker handles groups that are large or
    complete a segment, and all groups if there is no ``kernel``.
    """

    def __init__(
        self,
        broker: BrokerCore,
        store: MessageStore,
        worker: Worker,
        progressed: Callable[[], None],
        kernel: KernelSync | None = None,
    ) -> None:
        self._broker = broker
        self._store = store
        self._worker = worker
        self._progressed = progressed
        self._kernel = kernel
        self._is_sync = store.config.flush_disk_type is FlushDiskType.SYNC_FLUSH
        self._with_kernel: FlushJob | None = None
        self._loop = asyncio.get_running_loop()
        self._in_flight = False
        self._stopped = False
        self._idle: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._began_s = 0.0
        self.sync_times = Histogram(TIME_BOUNDS_S)
        """From the write of a group to the end of its sync."""

    def start(self) -> None:
        if self._kernel is not None:
            self._loop.add_reader(self._kernel.event_fd, self._kernel_has_news)
        if not self._is_sync:
            self._on_timer()

    def after_turn(self) -> None:
        """SYNC_FLUSH: start a group when there is data and no group is in flight. Data without a waiting answer comes
        last."""
        if self._is_sync:
            if self._with_kernel is not None:
                self._ask_kernel()
            self._begin_sync()
        self._store.catch_up()

    def _begin_sync(self) -> None:
        if self._is_sync and not self._in_flight:
            self._begin()

    def _on_timer(self) -> None:
        # First, so that an exception does not stop all flushes.
        self._timer = self._loop.call_later(
            self._store.config.flush_interval_commit_log / 1000, self._on_timer
        )
        if not self._in_flight:
            self._begin()

    def _begin(self) -> None:
        job = None if self._stopped else self._store.pipeline.begin_flush()
        if job is None:
            return
        self._in_flight = True
        self._began_s = time.perf_counter()
        kernel = self._kernel
        if kernel is None or not job.syncs_only_active or job.unwritten_bytes > LOOP_WRITE_BYTES:
            self._begin_in_thread(job)
            return
        try:
            job.write()
        except Exception as error:
            job.error = error
            self._loop.call_soon(self._finish_group, job)
            return
        try:
            kernel.submit(job.active)
        except OSError as error:
            log.warning(
                "the kernel accepts no more asynchronous syncs; a thread is used from now on: %s", error
            )
            self._close_kernel()
            self._begin_in_thread(job)
        else:
            self._with_kernel = job

    def _begin_in_thread(self, job: FlushJob) -> None:
        def done(error: BaseException | None) -> None:
            if error is not None:  # a FlushJob stores its own error: this one comes from the thread
                log.critical("a flush job failed unexpectedly", exc_info=error)
                job.error = job.error or RuntimeError(f"the flush did not run: {error!r}")
            self._finish_group(job)

        self._worker.submit(job.run, done)

    def _kernel_has_news(self) -> None:
        if self._ask_kernel():
            return
        kernel = self._kernel
        if kernel is not None:  # a turn was told of a sync before its event was set
            kernel.clear_event()
            self._ask_kernel()  # the event of another one may have been among what was cleared

    def _ask_kernel(self) -> bool:
        """Returns whether a sync has ended."""
        job, kernel = self._with_kernel, self._kernel
        if job is None or kernel is None:
            return False
        try:
            error_number = kernel.poll()
        except OSError as error:
            error_number = error.errno or errno.EIO  # assume that it was not synced
        if error_number is None:
            return False
        kernel.clear_event()  # else the loop would ask again after a turn that was told
        self._with_kernel = None
        job.synced(error_number)
        self._finish_group(job)
        return True

    def _finish_group(self, job: FlushJob) -> None:
        self._in_flight = False
        self.sync_times.record(time.perf_counter() - self._began_s)
        progress = self._store.pipeline.end_flush(job)
        if progress.failed is not None:
            log.critical("the store accepts no more writes: %s", progress.failed)
        # Start the next group first: its sync runs while the answers of this one are built and written.
        self._begin_sync()
        self._broker.progress(progress)
        self._begin_sync()  # what the broker wrote in response
        self._progressed()
        self._store.catch_up()
        if self._idle is not None and not self._in_flight and not self._idle.done():
            self._idle.set_result(None)

    def _close_kernel(self) -> None:
        if self._kernel is not None:
            self._loop.remove_reader(self._kernel.event_fd)
            self._kernel.close()
            self._kernel = None

    async def stop(self) -> None:
        """Wait for the group in flight, sync the rest, and start no other group."""
        if self._timer is not None:
            self._timer.cancel()
        self._stopped = True
        await self._finish()
        self._stopped = False
        self._begin()
        self._stopped = True
        await self._finish()
        self._close_kernel()

    async def sync(self) -> None:
        """Wait until everything written so far is synced."""
        await self._finish()
        self._begin()
        await self._finish()

    async def abandon(self) -> None:
        """Wait for the group in flight, which cannot be cancelled, and start no other."""
        if self._timer is not None:
            self._timer.cancel()
        self._stopped = True
        await self._finish()
        self._close_kernel()

    async def _finish(self) -> None:
        if self._in_flight:
            if self._idle is None or self._idle.done():
                self._idle = self._loop.create_future()
            await asyncio.shield(self._idle)


def _reported(error: Exception) -> str:
    if isinstance(error, OSError | NotNow):
        return str(error)
    log.error("a housekeeping job failed unexpectedly", exc_info=error)
    return repr(error)


class Housekeeper:
    """A core's blocking jobs, once a second and when the core says that they are due; one round at a time."""

    def __init__(self, core: _HasJobs, worker: Worker, progressed: Callable[[], None] = lambda: None) -> None:
        """``progressed`` is called after each round: the core may have answers to write."""
        self._progressed = progressed
        self._core = core
        self._worker = worker
        self._due = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._is_stopping = False
        self.error: str | None = None
        """Why the last round failed, if it did; shown by /health."""

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._work(), name="mqspark-housekeeping")

    def after_turn(self) -> None:
        # After a failure only the timer retries, so that a full disk is not tried after every turn.
        if self.error is None and self._core.jobs_due:
            self._due.set()

    async def _work(self) -> None:
        while True:
            # Not wait_for: before Python 3.12 it can swallow a cancellation.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HOUSEKEEPING_S):
                    await self._due.wait()
            self._due.clear()
            if self._is_stopping:
                return
            try:
                jobs = self._core.jobs()
            except Exception as error:
                log.exception("housekeeping failed unexpectedly")
                self.error = repr(error)
            else:
                await self.run(jobs)

    async def run(self, jobs: list[Job]) -> None:
        """Run all of them, even if some fail; ``error`` holds one failure."""
        failure: str | None = None
        for job in jobs:
            raised: BaseException | None = None
            began_s = time.monotonic()
            try:
                for _ in job.prepare() if isinstance(job, PreparedJob) else ():
                    await asyncio.sleep(0)
                await self._worker.run(job.run)
            except Exception as error:
                raised, failure = error, _reported(error)
            if (taken_s := time.monotonic() - began_s) > LONG_JOB_S:
                log.warning("housekeeping: %s took %.1f s", type(job).__name__.lstrip("_"), taken_s)
            try:
                if isinstance(job, SteppedJob):
                    for _ in job.steps(raised):
                        await asyncio.sleep(0)
                else:
                    job.done(raised)
            except Exception as error:
                failure = _reported(error)
        if failure is not None and self.error is None:
            log.error("housekeeping failed: %s", failure)
        self.error = failure
        if jobs:
            self._progressed()

    async def stop(self) -> None:
        """Stop after the present round: the owner of a running job is told its result."""
        if self._task is None:
            return
        self._is_stopping = True
        self._due.set()
        await asyncio.gather(self._task, return_exceptions=True)
        self._task = None

    async def finish(self) -> None:
        """Stop, and run what is due then."""
        await self.stop()
        await self.run(self._core.jobs())
