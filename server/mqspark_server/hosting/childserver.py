"""A server as a child process: its command line, its READY line, its log lines, its end.

Must not know which servers there are, nor when one starts again.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TextIO

from mqspark.errors import MQError

_PR_SET_PDEATHSIG = 1
_ERROR = "mqspark: error: "
"""How the last line of a command that failed begins (``mqspark_server.cli``)."""
_RELAY_END_S = 1.0
"""How long the last log lines of an ended child are waited for; its own children may keep the pipe open."""
_MAX_LINE_BYTES = 1 << 20

_PRCTL = getattr(ctypes.CDLL(None), "prctl", None)
"""Found before a fork: the loader's lock may be held by another thread at that moment."""


class PartFailed(MQError):
    """A part of the cluster ended before it served; its own log lines say why."""


@dataclass(slots=True, eq=False)
class ChildServer:
    """``mqspark COMMAND`` with settings: ``defaults``, then the file ``config``, then ``assignments``, then
    ``settings``."""

    name: str
    command: tuple[str, str]
    settings: dict[str, Any]
    """Settings that override all others."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    config: str | None = None
    assignments: Sequence[str] = ()
    process: asyncio.subprocess.Process | None = None
    fields: dict[str, str] = field(default_factory=dict)
    """The fields of its READY line."""
    serves: bool = False
    """Whether it has said READY, and has not ended since."""
    problem: str = "it starts"
    """Why it does not serve."""
    restarts: int = 0
    _error: str = ""
    """The text of its last line of error."""
    _relays: list[asyncio.Task[None]] = field(default_factory=list)

    @property
    def arguments(self) -> list[str]:
        words = [*self.command, *(["-c", self.config] if self.config else [])]
        for assignment in (*_assignments(self.defaults), *self.assignments, *_assignments(self.settings)):
            words += ["--set", assignment]
        return words

    @property
    def pid(self) -> int:
        if self.process is None:
            raise RuntimeError(f"{self.name} is not started")
        return self.process.pid

    @property
    def address(self) -> str:
        """Where it serves, from its READY line."""
        return self.fields[self.command[0]]

    async def spawn(self, environment: Mapping[str, str]) -> None:
        """Raises OSError. The child ends when this process ends, however that happens (on Linux)."""
        self._error = ""
        self.process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "mqspark",
            *self.arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=_MAX_LINE_BYTES,
            env=environment,
            start_new_session=True,  # a terminal's Ctrl-C reaches only this process, which stops the parts in order
            preexec_fn=_EndsWithParent(os.getpid()),
        )
        self._relay(self.process.stderr)

    async def until_ready(self, timeout_s: float | None) -> None:
        """Wait for the READY line. Ports that the system chose are kept for the next start. Raises PartFailed."""
        process = self.process
        if process is None or process.stdout is None:
            raise RuntimeError(f"{self.name} is not started")
        try:
            async with asyncio.timeout(timeout_s):
                line = (await process.stdout.readline()).decode(errors="replace")
        except TimeoutError:
            raise PartFailed(f"{self.name} does not serve after {timeout_s:.0f} s") from None
        if not line.startswith("READY "):
            code = await process.wait()
            await self._end_relays()
            why = f": {self._error}" if self._error else ""
            raise PartFailed(f"{self.name} ended with exit code {code} before it served{why}")
        self._relay(process.stdout)
        self.fields = dict(word.split("=", 1) for word in line.split()[1:] if "=" in word)
        self.settings["listenPort"] = self.address.rpartition(":")[2]
        if self.fields.get("http", "-") != "-":
            self.settings["httpPort"] = self.fields["http"].rpartition(":")[2]
        if "grpc" in self.fields:
            self.settings["grpcServerPort"] = self.fields["grpc"].rpartition(":")[2]
        self.serves, self.problem = True, ""

    async def until_ended(self) -> str:
        """How it ended: "SIGKILL", "exit code 1"."""
        if self.process is None:
            raise RuntimeError(f"{self.name} is not started")
        code = await self.process.wait()
        self.serves = False
        await self._end_relays()
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"

    async def end(self, timeout_s: float) -> str | None:
        """Send SIGTERM, then SIGKILL if that does not help in time. Returns what was not clean about the end."""
        process, self.serves, self.problem = self.process, False, "it stops"
        if process is None:
            return None
        fault = None
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            try:
                async with asyncio.timeout(timeout_s):
                    code = await process.wait()
                if code not in (0, -signal.SIGTERM):  # SIGTERM: it had not begun yet
                    fault = f"exit code {code}"
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
                fault = f"killed after {timeout_s:.0f} s"
        await self._end_relays()
        return None if fault is None else f"{self.name} ({self._error or fault})"

    def _relay(self, lines: asyncio.StreamReader | None) -> None:
        if lines is None:
            raise RuntimeError("a child was started without its pipes")
        self._relays.append(asyncio.get_running_loop().create_task(self._copy(lines, sys.stderr)))

    async def _copy(self, lines: asyncio.StreamReader, out: TextIO) -> None:
        """Copy its lines, each marked with its name. A line of error is kept for who reports the failure."""
        while True:
            try:
                line = (await lines.readline()).decode(errors="replace")
            except ValueError:  # the line is longer than the reader's limit: its rest follows
                continue
            if not line:
                return
            if line.startswith(_ERROR):
                self._error = line.removeprefix(_ERROR).strip()
                continue
            with contextlib.suppress(OSError):  # nobody reads our own lines; the child must not wait for that
                out.write(marked(self.name, line))
                out.flush()

    async def _end_relays(self) -> None:
        if self._relays:
            _, late = await asyncio.wait(self._relays, timeout=_RELAY_END_S)
            for relay in late:
                relay.cancel()
            await asyncio.gather(*self._relays, return_exceptions=True)
            self._relays.clear()


def marked(name: str, line: str) -> str:
    """A log line with the name of who wrote it: a field of a JSON object (logFormat=json), or else a prefix."""
    if line.startswith('{"'):
        return f'{{"server": {json.dumps(name)}, {line[1:]}'
    return f"{name} | {line}"


def _assignments(settings: Mapping[str, Any]) -> list[str]:
    return [
        f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in settings.items()
    ]


class _EndsWithParent:
    """Called in the child before it becomes another program: the kernel sends it SIGTERM when its parent dies. Linux
    only."""

    def __init__(self, parent: int) -> None:
        self._parent = parent

    def __call__(self) -> None:
        if _PRCTL is not None:
            _PRCTL(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
            if os.getppid() != self._parent:  # it died before that
                os._exit(1)
