"""The state directory of the job server: running jobs, due times, and the history.

    locks/NAME.lock     held (flock) by the server and by the process of the job, as long as one of them lives
    jobs/NAME.json      the job's state; written under its lock
    jobs/NAME.out, .err the output of its newest run
    history.jsonl       one line for each finished run; the oldest are removed

Several servers may share a directory. A name has been checked by ``jobsfile``.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from mqspark.base.wholefile import replace_file
from mqspark.protocol.headers.header import I64

MAX_STATE_BYTES = 1 << 20
MAX_SUMMARY_BYTES = 64 << 10
MAX_ERROR = 2_000
MAX_LINE_BYTES = 1 << 20
"""Limit of one run in the history; a longer line is damaged, and is skipped."""
BLOCK_BYTES = 64 << 10
"""Bytes of the history that are read at a time, from its end."""
PAGE_BYTES = 4 << 20
"""Limit of the runs of one page."""


class RunRecord(msgspec.Struct, omit_defaults=True):
    """One finished run."""

    job: str
    run: str
    outcome: str
    """ok, failed, refused (invalid options), timeout, or interrupted (the process ended without a result)."""
    due_ms: I64
    attempt: I64
    started_ms: I64
    finished_ms: I64
    exit_code: I64 | None = None
    error: str = ""
    summary: dict[str, Any] = {}
    by_hand: bool = False

    @property
    def is_good(self) -> bool:
        return self.outcome == "ok"

    @property
    def took_s(self) -> float:
        return max(0, self.finished_ms - self.started_ms) / 1000

    @property
    def place(self) -> str:
        """Identifies the run, also after lines before it have left the history: a job runs once at a time."""
        return f"{self.finished_ms}-{self.started_ms}-{self.job}"


class RunPage(msgspec.Struct):
    """Finished runs, the newest first. ``next``: pass it as ``after`` for the next page; None on the last page."""

    items: list[RunRecord] = []
    next: str | None = None


class JobState(msgspec.Struct, omit_defaults=True):
    """The state of one job."""

    taken_ms: I64 = 0
    """The latest scheduled time for which a run was started."""
    attempt: I64 = 0
    retry_ms: I64 = 0
    """When that run is retried; 0: it is not."""
    running_since_ms: I64 = 0
    """Start of the current run; 0: none. The job runs only if its lock is held, too."""
    pid: I64 = 0
    last: RunRecord | None = None
    last_good_ms: I64 = 0
    runs: dict[str, I64] = {}
    """Finished runs by their outcome."""
    failures: I64 = 0
    """Finished runs since the last successful one."""


class JobRow(msgspec.Struct):
    """One job as the server shows it. Times are ms since the epoch, 0: none."""

    name: str
    run: str
    schedule: str
    timezone: str = "UTC"
    enabled: bool = True
    running: bool = False
    """Here or in another process: then its lock is held."""
    running_here: bool = False
    running_since_ms: I64 = 0
    """When the run that goes on has begun. If the job does not run, that run ended without its server."""
    pid: I64 = 0
    next_ms: I64 | None = None
    """None: the job is not enabled."""
    attempt: I64 = 0
    """The attempt at the newest time of the schedule."""
    retry_ms: I64 = 0
    failures: I64 = 0
    last_good_ms: I64 = 0
    outcomes: dict[str, I64] = {}
    """Finished runs by their outcome."""
    last: RunRecord | None = None


class JobOverview(msgspec.Struct):
    """What a job server shows of itself in one answer."""

    ready: bool
    problem: str | None = None
    """Why no job can be started; None if jobs can be started."""
    jobs: list[JobRow] = []
    runs: list[RunRecord] = []
    """Finished runs of all jobs, the newest first, without their figures."""


class JobDirectory:
    """Methods raise OSError when the disk fails."""

    def __init__(self, path: Path, history_max_bytes: int) -> None:
        self.path = path
        self._history = path / "history.jsonl"
        self._history_max_bytes = history_max_bytes

    def make(self) -> None:
        for directory in (self.path, self.path / "locks", self.path / "jobs"):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def output(self, name: str) -> Path:
        return self.path / "jobs" / f"{name}.out"

    def errors(self, name: str) -> Path:
        return self.path / "jobs" / f"{name}.err"

    def lock(self, name: str) -> int | None:
        """An open descriptor that holds the job's lock, to be inherited by its process; None if it is held."""
        fd = os.open(self.path / "locks" / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        except BaseException:
            os.close(fd)
            raise
        return fd

    def is_locked(self, name: str) -> bool:
        """Whether the job runs somewhere on this host."""
        try:
            fd = os.open(self.path / "locks" / f"{name}.lock", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            # Held only for a moment: a server that finds it held checks again a second later.
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(fd)
        return False

    def load(self, name: str) -> JobState:
        """The state of a job; a new one if it is missing or unreadable."""
        try:
            with (self.path / "jobs" / f"{name}.json").open("rb") as file:
                return msgspec.json.decode(file.read(MAX_STATE_BYTES), type=JobState)
        except (FileNotFoundError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return JobState()

    def save(self, name: str, state: JobState) -> None:
        replace_file(self.path / "jobs" / f"{name}.json", msgspec.json.encode(state))

    def add_to_history(self, record: RunRecord) -> None:
        with self._history_lock():
            with self._history.open("a+b") as file:
                end = file.seek(0, os.SEEK_END)
                file.seek(max(0, end - 1))
                # A full disk, or a kill, may have left the beginning of a line: it is lost without this one.
                begin = b"" if file.read(1) in (b"", b"\n") else b"\n"
                file.write(begin + msgspec.json.encode(record) + b"\n")
                file.flush()
                os.fsync(file.fileno())
                size_bytes = file.tell()
            if size_bytes > self._history_max_bytes:
                with self._history.open("rb") as file:
                    file.seek(size_bytes - self._history_max_bytes // 2)
                    file.readline()
                    replace_file(self._history, file.read())

    def history(self, name: str | None = None, limit: int = 100) -> list[RunRecord]:
        """Finished runs, the newest first: ``limit``, however many pages they are. An unreadable line is skipped."""
        page = self.runs(name, limit)
        found = page.items
        while page.next is not None and len(found) < limit:
            page = self.runs(name, limit - len(found), page.next)
            found += page.items
        return found

    def runs(
        self,
        name: str | None = None,
        limit: int = 100,
        after: str | None = None,
        most_bytes: int = PAGE_BYTES,
    ) -> RunPage:
        """A page of the history, read from its end. ``after``: the ``next`` of a page; empty if that run has left the
        history. A page has at most ``most_bytes`` of lines, but one run at least."""
        found: list[RunRecord] = []
        is_after, size_bytes = after is None, 0
        for line in self._lines_from_end():
            try:
                record = msgspec.json.decode(line, type=RunRecord)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                continue
            if name is not None and record.job != name:
                continue
            if not is_after:
                is_after = record.place == after
                continue
            size_bytes += len(line)
            if len(found) == limit or (found and size_bytes > most_bytes):
                return RunPage(found, found[-1].place)
            found.append(record)
        return RunPage(found)

    def _lines_from_end(self) -> Iterator[bytes]:
        """The lines of the history, the newest first, in blocks. A line that is too long is left out."""
        try:
            file = self._history.open("rb")
        except FileNotFoundError:
            return
        with file:
            end = file.seek(0, os.SEEK_END)
            first = max(0, end - 2 * self._history_max_bytes)
            rest, is_too_long = b"", False
            while end > first:
                begin = max(first, end - BLOCK_BYTES)
                file.seek(begin)
                head, *lines = (file.read(end - begin) + rest).split(b"\n")
                end = begin
                if lines and is_too_long:
                    lines.pop()
                    is_too_long = False
                yield from (line for line in reversed(lines) if line)
                rest = head
                if len(rest) > MAX_LINE_BYTES:
                    rest, is_too_long = b"", True
            if rest and not is_too_long and first == 0:
                yield rest

    def summary(self, name: str) -> dict[str, Any]:
        """The line of JSON that the newest run has printed last; empty if there is none."""
        try:
            with self.output(name).open("rb") as file:
                size_bytes = file.seek(0, os.SEEK_END)
                file.seek(max(0, size_bytes - MAX_SUMMARY_BYTES))
                lines = file.read().splitlines()
        except FileNotFoundError:
            return {}
        try:
            found = json.loads(lines[-1]) if lines else {}
        except (ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    def last_error(self, name: str) -> str:
        """The last line on the newest run's standard error."""
        try:
            with self.errors(name).open("rb") as file:
                size_bytes = file.seek(0, os.SEEK_END)
                file.seek(max(0, size_bytes - MAX_ERROR))
                lines = file.read().decode(errors="replace").split("\n")
        except FileNotFoundError:
            return ""
        return next((line for line in reversed(lines) if line.strip()), "")

    @contextlib.contextmanager
    def _history_lock(self) -> Iterator[None]:
        fd = os.open(self.path / "locks" / ".history", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)  # held for one line
            yield
        finally:
            os.close(fd)
