"""One run of a job: its process, from the start to the recorded outcome.

The process inherits the descriptor of the job's lock, so a job whose server was killed keeps its lock until it ends.
Its output goes to files, which outlive the server as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence

from mqspark.base.clock import Clock
from mqspark.base.logs import printable, without_secrets
from mqspark_server.scheduler.jobrecords import (
    MAX_ERROR,
    MAX_SUMMARY_BYTES,
    JobDirectory,
    JobState,
    RunRecord,
)
from mqspark_server.scheduler.jobsfile import ScheduledJob
from mqspark_server.scheduler.schedule import Start, retry_at_ms

CommandOf = Callable[[ScheduledJob], Sequence[str]]

log = logging.getLogger("mqspark.jobs")

WATCH_S = 1.0
_WRONG_OPTIONS = 2
_MAX_FIGURES = 200


def job_command(job: ScheduledJob) -> Sequence[str]:
    """The command line of a run."""
    return (sys.executable, "-m", "mqspark", "job", "run", job.run, *job.arguments)


class JobRun:
    """``lock``: the descriptor of the job's lock. It is closed at the end."""

    def __init__(
        self,
        job: ScheduledJob,
        start: Start,
        directory: JobDirectory,
        lock: int,
        clock: Clock,
        command: CommandOf = job_command,
        *,
        by_hand: bool = False,
    ) -> None:
        self.job = job
        self._start = start
        self._directory = directory
        self._lock = lock
        self._clock = clock
        self._command = command
        self._by_hand = by_hand
        self._process: asyncio.subprocess.Process | None = None

    async def run(self, *, log_max_bytes: int, grace_s: float) -> RunRecord:
        """Start the process, wait for its end, and record the outcome in the state and the history. Cancelling stops
        the process. Raises OSError when the state cannot be written or no process can be started."""
        try:
            return await self._run(log_max_bytes, grace_s)
        finally:
            os.close(self._lock)

    async def _run(self, log_max_bytes: int, grace_s: float) -> RunRecord:
        directory, name = self._directory, self.job.name
        state = directory.load(name)
        state.running_since_ms = self._clock.now_ms()
        if not self._by_hand:
            state.taken_ms, state.attempt, state.retry_ms = self._start.due_ms, self._start.attempt, 0
        directory.save(name, state)
        process = self._process = await self._spawn()
        state.pid = process.pid
        directory.save(name, state)
        log.info("job %s: attempt %d began, process %d", name, self._start.attempt, process.pid)
        outcome: str | None = "interrupted"
        try:
            outcome = None if await self._watch(log_max_bytes) else "timeout"
        finally:
            # A job may be killed at any point and run again.
            await self._end(grace_s)
            now_ms = self._clock.now_ms()
            code = process.returncode
            record = finished(self.job, state, directory, now_ms, code, outcome, by_hand=self._by_hand)
        return record

    async def _spawn(self) -> asyncio.subprocess.Process:
        directory, name = self._directory, self.job.name
        with directory.output(name).open("wb") as output, directory.errors(name).open("wb") as errors:
            # In append mode, writes after the truncation start at the new end.
            for file in (output, errors):
                _append_only(file.fileno())
            return await asyncio.create_subprocess_exec(
                *self._command(self.job),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                pass_fds=(self._lock,),
                start_new_session=True,
            )

    async def _watch(self, log_max_bytes: int) -> bool:
        """Whether the process ended in time."""
        if self._process is None:
            raise RuntimeError("the job was not started")
        waiting = asyncio.ensure_future(self._process.wait())
        until_ms = self._clock.monotonic_ms() + self.job.timeout_seconds * 1000
        try:
            while not waiting.done():
                await asyncio.wait((waiting,), timeout=WATCH_S)
                for path in (self._directory.output(self.job.name), self._directory.errors(self.job.name)):
                    if path.stat().st_size > log_max_bytes:
                        os.truncate(path, 0)
                if self._clock.monotonic_ms() >= until_ms and not waiting.done():
                    log.warning("job %s: stopped after %d s", self.job.name, self.job.timeout_seconds)
                    return False
        finally:
            waiting.cancel()
        return True

    async def _end(self, grace_s: float) -> None:
        """SIGTERM to the process and its children, SIGKILL after ``grace_s``."""
        process = self._process
        if process is None:
            return
        if process.returncode is None:
            _signal(process.pid, signal.SIGTERM)
            try:
                async with asyncio.timeout(grace_s):
                    await process.wait()
            except TimeoutError:
                log.warning("job %s: killed", self.job.name)
        _signal(process.pid, signal.SIGKILL)  # its JVM, for example
        await process.wait()


def finished(
    job: ScheduledJob,
    state: JobState,
    directory: JobDirectory,
    now_ms: int,
    exit_code: int | None,
    outcome: str | None = None,
    *,
    by_hand: bool = False,
) -> RunRecord:
    """Record the end of a run in its state and the history. Without ``exit_code``, its output decides the outcome."""
    summary = directory.summary(job.name)
    if outcome is None:
        if exit_code is None:
            outcome = {True: "ok", False: "failed"}.get(summary.get("ok", ""), "interrupted")
        elif exit_code == 0:
            outcome = "ok"
        else:
            outcome = {_WRONG_OPTIONS: "refused"}.get(exit_code, "failed" if exit_code > 0 else "interrupted")
    record = RunRecord(
        job=job.name,
        run=job.run,
        outcome=outcome,
        due_ms=state.taken_ms,
        attempt=state.attempt,
        started_ms=state.running_since_ms,
        finished_ms=now_ms,
        exit_code=exit_code,
        error="" if outcome == "ok" else _failure_text(job, directory, summary, outcome),
        summary=_figures(summary),
        by_hand=by_hand,
    )
    state.running_since_ms = state.pid = 0
    state.last = record
    state.runs[outcome] = state.runs.get(outcome, 0) + 1
    if record.is_good:
        state.failures, state.last_good_ms = 0, now_ms
    else:
        state.failures += 1
    if not by_hand:
        again = outcome in ("failed", "timeout", "interrupted")
        state.retry_ms = retry_at_ms(job, state.attempt, now_ms) if again else 0
    # The history first: a state with a running job is checked at the next start.
    directory.add_to_history(record)
    directory.save(job.name, state)
    level = logging.INFO if record.is_good else logging.WARNING
    took_s = (now_ms - record.started_ms) / 1000
    log.log(
        level,
        "job %s: %s after %.1f s%s",
        job.name,
        outcome,
        took_s,
        f": {record.error}" if record.error else "",
    )
    return record


def _failure_text(
    job: ScheduledJob, directory: JobDirectory, summary: dict[str, object], outcome: str
) -> str:
    if outcome == "timeout":
        return f"it ran for longer than timeoutSeconds={job.timeout_seconds}"
    reported = summary.get("error")
    found = reported if isinstance(reported, str) else directory.last_error(job.name)
    return printable(without_secrets(found), MAX_ERROR)


def _figures(summary: dict[str, object]) -> dict[str, object]:
    """A bounded number of the summary's numbers and short texts."""
    found: dict[str, object] = {
        printable(name, 80): printable(without_secrets(value), MAX_ERROR) if isinstance(value, str) else value
        for name, value in list(summary.items())[:_MAX_FIGURES]
        if isinstance(value, int | float) or (isinstance(value, str) and len(value) <= MAX_ERROR)
    }
    return found if len(str(found)) <= MAX_SUMMARY_BYTES else {}


def _append_only(fd: int) -> None:
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_APPEND)


def _signal(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
