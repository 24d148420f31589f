"""Threads that look after a process of Spark's, also while it waits.

Spark keeps workers between tasks, blocked in a read of their socket, and learns that its driver is gone only when it
reads or writes there. Must not know what is watched.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType

from mqspark.logs import escaping

__all__ = ["Watch", "end_with_parent", "end_with_spark"]

log = escaping("pyspark_pymq")


class Watch:
    """Calls ``look`` every ``period_s`` seconds, in the process that has last called ``begin``."""

    def __init__(self, look: Callable[[], None], period_s: float = 1.0) -> None:
        self._look = look
        self._period_s = period_s
        self._pid = 0

    def begin(self) -> None:
        """Start, if this process has not started yet: a fork has none of the threads. Call in one thread."""
        if self._pid != os.getpid():
            self._pid = os.getpid()
            threading.Thread(target=self._run, name="pymq-watch", daemon=True).start()

    def _run(self) -> None:
        while True:
            time.sleep(self._period_s)
            try:
                self._look()
            except OSError as error:
                log.warning("%s", error)


_END_S = 1.0

_parents: dict[int, int] = {}
"""The process → its parent when ``end_with_parent`` was called first."""


def end_with_parent() -> None:
    """End this process within two seconds of the one that started it. What it waits for, such as a cluster that is
    away, would otherwise keep it beside the next run of the same query."""
    _parents.setdefault(os.getpid(), os.getppid())
    _orphan_watch.begin()
    if hasattr(signal, "SIGPIPE") and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGPIPE, _await_end)


def end_with_spark() -> None:
    """The same if Spark has started this process for itself: a worker, a planner, the runner of a stream. A program
    that uses Spark may outlive who started it."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if str(getattr(spec, "name", "")).startswith("pyspark."):
        end_with_parent()


def _end_orphan() -> None:
    if os.getppid() != _parents.get(os.getpid()):
        os._exit(1)  # nobody is left to answer, or to clean up for


def _await_end(number: int, frame: FrameType | None) -> None:
    """Somebody does not listen any more. When it is Spark that ends, or is done with this worker, its signal is under
    way: wait for it, instead of filling the log of the program's end with a traceback."""
    until = time.monotonic() + _END_S
    while time.monotonic() < until:
        _end_orphan()
        time.sleep(0.05)


_orphan_watch = Watch(_end_orphan)
