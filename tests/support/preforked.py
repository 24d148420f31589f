"""Workers of pytest-xdist as forks of one process that has collected the tests: a pytest plugin for ``-n``.

Each of xdist's workers collects by itself: 14 s of processor time for thousands of tests, most of it imports. With
``-p tests.support.preforked`` a process collects once, and each worker is a fork of it. xdist starts ``launcher.py``
as the worker's Python; it hands its standard streams to the fork, or becomes an ordinary worker when it gets none.
Linux only; elsewhere, and without ``-n``, the plugin does nothing. It uses insides of pytest and xdist: with versions
that it was not tried with, the workers collect as usual, and the report's header says so.
"""

from __future__ import annotations

import atexit
import os
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import types
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn

import _pytest.config
import pytest
from execnet import XSpec

from tests.support.forkserver import IS_SUPPORTED
from tests.support.launched import LAUNCHER, Request, accepted, listener_at

__all__: list[str] = []

KNOWN = {"pytest": (9, 2), "pytest-xdist": (3, 8)}
"""Versions whose insides are as this module expects."""
SHORT_S = 0.005
"""``--durations`` hides what is shorter."""


def _unknown() -> str:
    """The versions that are not known, as a text. No plugin may be imported for it: see ``main``."""
    found = {name: version(name) for name in KNOWN}
    return ", ".join(
        f"{name} {each}"
        for name, each in found.items()
        if tuple(map(int, each.split(".")[:2])) != KNOWN[name]
    )


def pytest_report_header() -> list[str]:
    unknown = _unknown()
    return (
        [f"each worker collects the tests by itself: {unknown} is not known to {__name__}"] if unknown else []
    )


def pytest_xdist_setupnodes(config: pytest.Config, specs: list[XSpec]) -> None:
    if not IS_SUPPORTED or _unknown() or config.pluginmanager.has_plugin("collector"):
        return
    collector = Collector(list(map(str, config.invocation_params.args)))
    config.pluginmanager.register(collector, "collector")
    for spec in specs:
        spec.python = shlex.join([sys.executable, "-I", "-S", str(LAUNCHER), collector.path])


class Collector:
    """The process that collects, as the one that runs xdist sees it."""

    def __init__(self, arguments: list[str]) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="pytest-"))
        self.path = str(self._folder / "collector")
        with listener_at(Path(self.path)) as listener:
            command = [sys.executable, "-m", __name__, str(listener.fileno()), *arguments]
            # It ends when its standard input does.
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, pass_fds=[listener.fileno()], stdout=subprocess.DEVNULL
            )

    def pytest_unconfigure(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        shutil.rmtree(self._folder)


# --- the process that collects, and its forks -----------------------------------------------------------------------


class Forks:
    """The plugin of the process that collects: instead of running tests it forks the workers that do."""

    def __init__(self, listener: socket.socket, parent: int) -> None:
        self._listener = listener
        self._parent = parent
        self._sys_path: list[str] = []
        self._missed: list[tuple[str, dict[str, Any]]] = []
        """Hooks called before there was a worker that would have told the process that runs xdist."""

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if not report.passed:
            self._missed.append(("pytest_collectreport", {"report": report}))

    def pytest_warning_recorded(
        self, warning_message: Any, when: str, nodeid: str, location: tuple[str, int, str] | None
    ) -> None:
        told = {"warning_message": warning_message, "when": when, "nodeid": nodeid, "location": location}
        self._missed.append(("pytest_warning_recorded", told))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> NoReturn:
        self._sys_path = list(sys.path)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the forks
        while True:
            ready, _, _ = select.select([self._listener, self._parent], [], [])
            if self._parent in ready:
                os._exit(0)
            request = accepted(self._listener)
            if request is None:
                continue
            if os.fork() == 0:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                self._listener.close()
                os.close(self._parent)
                try:
                    self._become(session, request)
                    atexit._run_exitfuncs()
                finally:
                    os._exit(0)
            request.close()

    def _become(self, session: pytest.Session, request: Request) -> None:
        """A worker of xdist: what ``python -c`` would be told on standard input, with a session that is there."""
        capture = session.config.pluginmanager.get_plugin("capturemanager")
        capture.stop_global_capturing()  # its files are the other workers', too
        request.take_streams()

        def prepared(*_: Any) -> pytest.Config:
            sys.path[:] = self._sys_path
            capture.start_global_capturing()
            capture.suspend_global_capture()
            session.config.pluginmanager.register(Collected(session, self._missed))
            return session.config

        _pytest.config._prepareconfig = prepared
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
        exec(eval(sys.stdin.readline()), main.__dict__)  # noqa: S102, S307


class Collected:
    """The plugin of a worker: pytest's main, but for what is done already."""

    def __init__(self, session: pytest.Session, missed: list[tuple[str, dict[str, Any]]]) -> None:
        self._session = session
        self._missed = missed

    @pytest.hookimpl(tryfirst=True)
    def pytest_cmdline_main(self, config: pytest.Config) -> int:
        session, plugins = self._session, config.pluginmanager
        plugins.get_plugin("tmpdir").pytest_configure(config)  # the worker's own folder is known now
        (worker,) = (each for each in plugins.get_plugins() if type(each).__name__ == "WorkerInteractor")
        tell = worker.sendevent
        worker.sendevent = lambda name, **told: None if is_dull(name, told) else tell(name, **told)
        worker.pytest_sessionstart(session)
        worker.pytest_collection()
        for name, told in self._missed:
            getattr(worker, name)(**told)
        worker.pytest_collection_finish(session)
        worker.pytest_runtestloop(session)
        code = pytest.ExitCode.TESTS_FAILED if session.testsfailed else pytest.ExitCode.OK
        session.exitstatus = code
        config.hook.pytest_sessionfinish(session=session, exitstatus=code)
        config._ensure_unconfigure()
        return code


def is_dull(name: str, told: dict[str, Any]) -> bool:
    """Whether nothing is shown of it: two of three reports are of fixtures that were set up or taken down at once."""
    if name != "testreport":
        return False
    report = told["data"]
    is_all_well = report["outcome"] == "passed" and not report["sections"]
    return report["when"] != "call" and is_all_well and report["duration"] < SHORT_S


def main(listener: socket.socket, arguments: list[str]) -> None:
    """Collect the tests as a worker of xdist does, then fork. pytest takes the standard input away."""
    os.environ["PYTEST_XDIST_WORKER"] = "gw0"
    config = _pytest.config._prepareconfig(arguments, [Forks(listener, os.dup(0))])
    # Not before: pytest rewrites the asserts of plugins while it imports them.
    from xdist.remote import setup_config

    setup_config(config, None)
    config.workerinput = {"workerid": "gw0", "workercount": 1, "testrunuid": "", "mainargv": sys.argv}
    config.workeroutput = {}
    config.hook.pytest_cmdline_main(config=config)


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:])
