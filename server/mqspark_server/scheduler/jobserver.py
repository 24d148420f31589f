"""The job server as a process: starts jobs when they are due, and answers over HTTP.

Several servers may run with one state directory: the lock of a job decides which of them starts it, and the state
written under that lock what is due.
"""

from __future__ import annotations

import asyncio
import logging
import os

from mqspark.base.clock import Clock, SystemClock
from mqspark.base.logs import printable
from mqspark_server.process.diskwork import Worker
from mqspark_server.process.phases import Phase
from mqspark_server.process.processapp import ProcessApp
from mqspark_server.process.tasks import end_all
from mqspark_server.scheduler.jobprocess import CommandOf, JobRun, finished, job_command
from mqspark_server.scheduler.jobrecords import JobDirectory, JobState, RunRecord
from mqspark_server.scheduler.jobsfile import JobsFile, ScheduledJob
from mqspark_server.scheduler.schedule import Start, next_start
from mqspark_server.web.http import HttpServer

log = logging.getLogger("mqspark.jobs")

POLL_S = 1.0
"""Interval of the checks for due jobs: cron's finest unit is a minute."""


class JobServerApp(ProcessApp):
    def __init__(
        self,
        file: JobsFile,
        *,
        clock: Clock | None = None,
        poll_s: float = POLL_S,
        command: CommandOf = job_command,
    ) -> None:
        super().__init__(clock or SystemClock(), ())
        self.file = file
        self.directory = JobDirectory(file.server.state_path, file.server.history_max_bytes)
        self.http: HttpServer | None = None
        self.problem: str | None = None
        """Why no job can be started at the moment."""
        self._poll_s = poll_s
        self._command = command
        self._since_ms = self.clock.now_ms()
        self._running: dict[str, asyncio.Task[None]] = {}

    @property
    def jobs(self) -> list[ScheduledJob]:
        return list(self.file.jobs.values())

    @property
    def url(self) -> str | None:
        return None if self.http is None else self.http.url

    def is_running_here(self, name: str) -> bool:
        return name in self._running

    async def _start(self) -> None:
        self.lifecycle.advance(Phase.BINDING)
        self.directory.make()
        server = self.file.server
        if server.http_enable:
            from mqspark_server.scheduler.jobhttp import create_job_api

            worker = Worker("mqspark-http")
            self._ends.always(worker.close)
            at, most = (server.http_bind_address, server.http_port), server.http_max_connections
            self.http = HttpServer(self._ends, "HTTP", *at, lambda: create_job_api(self), worker, most)
        looking = asyncio.get_running_loop().create_task(
            self._start_due_jobs_repeatedly(), name="mqspark-jobs"
        )
        self._ends.always(lambda: self._stop_all(looking))
        self.lifecycle.advance(Phase.READY)
        enabled = sum(job.enabled for job in self.jobs)
        log.info("%d of %d jobs are enabled, state in %s", enabled, len(self.jobs), self.directory.path)

    async def _stop_all(self, looking: asyncio.Task[None]) -> None:
        await end_all(looking, *self._running.values())

    async def _start_due_jobs_repeatedly(self) -> None:
        while True:
            try:
                self._start_what_is_due()
                self.problem = None
            except OSError as error:
                self._record_problem(
                    f"{error.filename or self.directory.path}: {error.strerror or error}", None
                )
            except Exception as error:  # a bug: a server that gave up would never start a job again
                self._record_problem(f"{type(error).__name__}: {printable(str(error))}", error)
            await asyncio.sleep(self._poll_s)

    def _record_problem(self, problem: str, error: Exception | None) -> None:
        if problem != self.problem:
            log.error("no job can be started: %s", problem, exc_info=error)
        self.problem = problem

    def next_run(self, job: ScheduledJob, state: JobState) -> Start:
        return next_start(
            job,
            self.clock.now_ms(),
            since_ms=self._since_ms,
            taken_ms=state.taken_ms,
            attempt=state.attempt,
            retry_ms=state.retry_ms,
        )

    def _start_what_is_due(self) -> None:
        """Start due jobs in the order of their due times, up to the limit of concurrent jobs."""
        now_ms = self.clock.now_ms()
        waiting = []
        for job in self.jobs:
            if not job.enabled or job.name in self._running:
                continue
            state = self.directory.load(job.name)
            start = self.next_run(job, state)
            if state.running_since_ms or start.at_ms <= now_ms:
                waiting.append((start.at_ms, job))
        for _, job in sorted(waiting, key=lambda each: each[0]):
            if len(self._running) >= self.file.server.max_running:
                break
            lock = self.directory.lock(job.name)
            if lock is not None:
                self._start_under_lock(job, lock)

    def _start_under_lock(self, job: ScheduledJob, lock: int) -> None:
        """The state may have changed since it was read without the lock."""
        try:
            state = self.directory.load(job.name)
            if state.running_since_ms:  # its process ended without its server
                finished(job, state, self.directory, self.clock.now_ms(), None)
            start = self.next_run(job, state)
            is_due = start.at_ms <= self.clock.now_ms()
        except BaseException:
            os.close(lock)
            raise
        if not is_due:
            os.close(lock)
            return
        run = JobRun(job, start, self.directory, lock, self.clock, self._command)
        self._running[job.name] = asyncio.get_running_loop().create_task(
            self._run(run), name=f"job {job.name}"
        )

    async def _run(self, run: JobRun) -> None:
        server = self.file.server
        try:
            await run.run(log_max_bytes=server.log_max_bytes, grace_s=server.stop_timeout_seconds)
        except Exception as error:
            self.problem = f"job {run.job.name}: {printable(str(error))}"
            log.error("%s", self.problem, exc_info=None if isinstance(error, OSError) else error)
        finally:
            del self._running[run.job.name]


async def run_now(file: JobsFile, job: ScheduledJob) -> RunRecord | None:
    """Run a job of the file now, whatever its schedule is; None if it is already running."""
    directory = JobDirectory(file.server.state_path, file.server.history_max_bytes)
    directory.make()
    lock = directory.lock(job.name)
    if lock is None:
        return None
    clock = SystemClock()
    run = JobRun(job, Start(clock.now_ms(), clock.now_ms(), 1), directory, lock, clock, by_hand=True)
    return await run.run(log_max_bytes=file.server.log_max_bytes, grace_s=file.server.stop_timeout_seconds)
