"""Blocking disk work away from the event loop: group commit and housekeeping.

While one fdatasync runs in its thread the loop goes on appending; when it returns, everything written
meanwhile is the next group. One group is in flight at a time, so the number of syncs follows from the
disk's speed and not from the load. Housekeeping (queue files, config files, checkpoint) has a thread of its
own: it must not delay an acknowledgement. Must not know what a job does.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable
from typing import Protocol

from mqspark.broker.broker import Broker
from mqspark.store.config import FlushDiskType
from mqspark.store.store import MessageStore

__all__ = ["Flusher", "Housekeeper", "Worker"]

log = logging.getLogger("mqspark.flush")

HOUSEKEEPING_S = 1.0


class _Runnable(Protocol):
    def run(self) -> None: ...


class Worker:
    """One thread that runs jobs in order and reports each to the loop. Cheaper a job than an executor."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._jobs: queue.SimpleQueue[tuple[_Runnable, Callable[[BaseException | None], None]] | None]
        self._jobs = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: _Runnable, done: Callable[[BaseException | None], None]) -> None:
        """``done(error)`` is called on the loop."""
        self._jobs.put((job, done))

    async def run(self, job: _Runnable) -> None:
        """Run and wait; raises what the job raises."""
        finished: asyncio.Future[None] = self._loop.create_future()

        def done(error: BaseException | None) -> None:
            if finished.done():
                return
            if error is None:
                finished.set_result(None)
            else:
                finished.set_exception(error)

        self.submit(job, done)
        await finished

    def close(self) -> None:
        """Finish what was submitted and end the thread."""
        self._jobs.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (item := self._jobs.get()) is not None:
            job, done = item
            error: BaseException | None = None
            try:
                job.run()
            except BaseException as caught:
                error = caught
            self._loop.call_soon_threadsafe(done, error)
            del item, job, done, error


class Flusher:
    """Group commit of one store. ``progressed`` is called after each group, on the loop."""

    def __init__(
        self, broker: Broker, store: MessageStore, worker: Worker, progressed: Callable[[], None]
    ) -> None:
        self._broker = broker
        self._store = store
        self._worker = worker
        self._progressed = progressed
        self._loop = asyncio.get_running_loop()
        self._in_flight = False
        self._stopped = False
        self._idle: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.syncs = 0

    def start(self) -> None:
        if self._store.config.flush_disk_type is FlushDiskType.ASYNC_FLUSH:
            self._on_timer()

    def after_turn(self) -> None:
        """SYNC_FLUSH: begin a group as soon as there is one and none is in flight."""
        if not self._in_flight and self._store.config.flush_disk_type is FlushDiskType.SYNC_FLUSH:
            self._begin()

    def _on_timer(self) -> None:
        if not self._in_flight:
            self._begin()
        self._timer = self._loop.call_later(
            self._store.config.flush_interval_commit_log / 1000, self._on_timer
        )

    def _begin(self) -> None:
        job = None if self._stopped else self._store.begin_flush()
        if job is None:
            return
        self._in_flight = True

        def done(error: BaseException | None) -> None:
            self._in_flight = False
            if error is not None:  # a FlushJob keeps its error: this one is a fault in the job itself
                log.critical("a flush job broke", exc_info=error)
            progress = self._store.end_flush(job)
            self.syncs += 1
            if progress.failed is not None:
                log.critical("the store accepts no more writes: %s", progress.failed)
            self._broker.progress(progress)
            self._progressed()
            if self._idle is not None and not self._idle.done():
                self._idle.set_result(None)
            self.after_turn()

        self._worker.submit(job, done)

    async def stop(self) -> None:
        """Wait for the group in flight; begin no other."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        if self._in_flight:
            self._idle = self._loop.create_future()
            await self._idle


class Housekeeper:
    """Once a second: the broker's blocking jobs, one after the other, none twice at a time."""

    def __init__(self, broker: Broker, worker: Worker) -> None:
        self._broker = broker
        self._worker = worker
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._work(), name="mqspark-housekeeping")

    async def _work(self) -> None:
        while True:
            await asyncio.sleep(HOUSEKEEPING_S)
            await self.run_once()

    async def run_once(self) -> None:
        for job in self._broker.jobs():
            try:
                await self._worker.run(job)
            except OSError as error:
                log.error("housekeeping failed: %s", error)
                continue
            job.done()

    async def stop(self) -> None:
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._task = None
