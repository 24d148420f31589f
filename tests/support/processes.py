"""Child processes: one way to start them, a stop at the end of a block, output in a file that failures show."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from tests.support.forkserver import IS_SUPPORTED, Forked
from tests.support.waiting import eventually

HOST = "127.0.0.1"
START_TIMEOUT_S = 150.0
STOP_TIMEOUT_S = 60.0
RUN_TIMEOUT_S = 300.0


def start(
    command: Sequence[str],
    log: Path,
    *,
    env: Mapping[str, str] | None = None,
    stdin: int = subprocess.PIPE,
    stdout: int | None = None,
    cwd: Path | None = None,
    new_session: bool = False,
) -> subprocess.Popen[str]:
    """Start a child. Its output is appended to ``log``; its standard output may go to a pipe instead.

    ``env`` is added to this process's environment. ``cwd`` is by default the log's folder. ``new_session``: the child
    gets its own process group, so that its children can be killed with it. The caller ends it: see ``process``. The
    ``mqspark`` command is forked where possible.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    inherited = {key: value for key, value in os.environ.items() if key != "NAMESRV_ADDR"}
    is_forked = IS_SUPPORTED and list(command[:1]) == mqspark_command()
    with log.open("a") as sink, _taking_ctrl_c():
        return (Forked if is_forked else subprocess.Popen)(
            command,
            env=inherited | dict(env or {}),
            stdin=stdin,
            stdout=sink if stdout is None else stdout,
            stderr=sink,
            text=True,
            cwd=cwd or log.parent,
            start_new_session=new_session,
        )


@contextmanager
def _taking_ctrl_c() -> Iterator[None]:
    """A shell has what it runs in the background ignore SIGINT, and children would inherit that."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextmanager
def process(
    command: Sequence[str],
    log: Path,
    *,
    env: Mapping[str, str] | None = None,
    stdout: int | None = None,
    stop_signal: signal.Signals = signal.SIGTERM,
) -> Iterator[subprocess.Popen[str]]:
    """Start a child, and stop it at the end of the block."""
    child = start(command, log, env=env, stdout=stdout)
    try:
        yield child
    finally:
        stop(child, stop_signal)


def stop(child: subprocess.Popen[str], stop_signal: signal.Signals = signal.SIGTERM) -> int:
    """Send the signal, then SIGKILL if the child does not end in time. Returns the exit code, negative for a signal."""
    if child.poll() is None:
        child.send_signal(stop_signal)
        try:
            child.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
    for stream in (child.stdin, child.stdout):
        if stream is not None:
            stream.close()
    return child.returncode


def run_to_end(
    command: Sequence[str | Path], *, timeout_s: float = RUN_TIMEOUT_S, check: bool = False, **more: Any
) -> subprocess.CompletedProcess[str]:
    """Run a program and return what it printed. ``more``: other arguments of ``subprocess.run``."""
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=check, **more)


def run_python(program: str, *arguments: str, **more: Any) -> subprocess.CompletedProcess[str]:
    """The same for the text of a Python program, run by this interpreter."""
    return run_to_end([sys.executable, "-c", program, *arguments], **more)


def is_gone(pid: int) -> bool:
    """Also one that has ended and that nobody has waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def resident_bytes(pid: int | str = "self") -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def mqspark_command() -> list[str]:
    """The installed console script of the interpreter that runs the tests."""
    script = Path(sys.executable).with_name("mqspark")
    found = str(script) if script.exists() else shutil.which("mqspark")
    if found is None:
        raise RuntimeError("the mqspark command is not installed beside this interpreter")
    return [found]


def set_options(settings: Mapping[str, object]) -> list[str]:
    """Settings as options of the command line."""
    return [word for key, value in settings.items() for word in ("--set", f"{key}={text_of(value)}")]


def text_of(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def ready_line(child: subprocess.Popen[str], log: Path) -> dict[str, str]:
    """The fields of the line `READY name=value ...` that every mqspark process prints once it serves."""
    stdout: IO[str] | None = child.stdout
    assert stdout is not None
    too_late = threading.Timer(START_TIMEOUT_S, child.kill)
    too_late.start()
    try:
        for line in stdout:
            word, *fields = line.split()
            if word == "READY":
                return dict(field.split("=", 1) for field in fields)
    finally:
        too_late.cancel()
    raise RuntimeError(f"the process ended without a READY line, exit code {child.wait()}\n{tail(log)}")


def wait_for_start(condition: Callable[[], bool], what: str, child: subprocess.Popen[str], log: Path) -> None:
    """For processes without a READY line. Fails with the tail of the log when the child dies or after the timeout."""

    def holds() -> bool:
        assert child.poll() is None, f"{what}: the process exited with {child.returncode}\n{tail(log)}"
        return condition()

    eventually(holds, lambda: f"{what}; the process still runs\n{tail(log)}", START_TIMEOUT_S)


def tail(log: Path, characters: int = 4000) -> str:
    return log.read_text(errors="replace")[-characters:] if log.exists() else "(no log)"


def listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
    except OSError:
        return False
    return True


def free_port(*, neighbours: int = 0) -> int:
    """A port that is free, together with its ``neighbours`` on either side (a broker uses listenPort - 2 and + 1).

    It is below the range from which the kernel takes ports for outgoing connections, and outside the ranges of pytest's
    other workers: nobody else may take it before its process starts, or while that process restarts.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    lowest = 12_000 + worker % 6 * 3_000
    for _ in range(100):
        port = random.randrange(lowest + neighbours, lowest + 3_000 - neighbours)
        held: list[socket.socket] = []
        try:
            held.extend(
                socket.create_server((HOST, number))
                for number in range(port - neighbours, port + neighbours + 1)
            )
            return port
        except OSError:
            continue
        finally:
            for listener in held:
                listener.close()
    raise RuntimeError(f"no {2 * neighbours + 1} adjacent free ports found")
