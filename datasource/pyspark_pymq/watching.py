"""Threads that look after a process of Spark's, also while it waits.

Spark keeps workers between tasks, blocked in a read of their socket, and learns that its driver is gone only when it
reads or writes there. Must not know what is watched.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Mapping
from types import FrameType
from typing import Any

from mqspark.arrow.reading.lookout import Watch

_CARRIERS = ("pyarrow", "socket")
"""They write for others, which a traceback names before them."""
_parents: dict[int, int] = {}
"""The process → its parent when ``end_with_parent`` was called first."""


def end_with_parent() -> None:
    """End this process within two seconds of the one that started it. What it waits for, such as a cluster that is
    away, would otherwise keep it beside the next run of the same query."""
    _parents.setdefault(os.getpid(), os.getppid())
    _orphan_watch.begin()
    if hasattr(signal, "SIGPIPE") and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGPIPE, _end_unheard)


def end_with_spark() -> None:
    """The same if Spark has started this process for itself: a worker, a planner, the runner of a stream. A program
    that uses Spark may outlive who started it."""
    if is_of_spark():
        end_with_parent()


def is_of_spark() -> bool:
    """Whether Spark has started this process for itself."""
    main = sys.modules.get("__main__")
    return main is not None and _is_of_spark(vars(main))


def _is_of_spark(module: Mapping[str, Any]) -> bool:
    return _name_of(module).startswith("pyspark.")


def _name_of(module: Mapping[str, Any]) -> str:
    """Also of the module that Python runs as ``__main__``."""
    return str(getattr(module.get("__spec__"), "name", ""))


def _end_orphan() -> None:
    if os.getppid() != _parents.get(os.getpid()):
        os._exit(1)  # nobody is left to answer, or to clean up for


def _end_unheard(number: int, frame: FrameType | None) -> None:
    """End without a traceback when it is Spark that does not listen any more: it has ended, or closes the socket of a
    worker that it needs no longer. Of others, such as brokers, whoever writes to them hears by the exception."""
    error = sys.exc_info()[1]  # of this thread: another one's may have caused the signal
    while error is not None and not isinstance(error, BrokenPipeError):
        error = error.__context__
    writing: Mapping[str, Any] = {}
    trace = error.__traceback__ if error is not None else None
    while trace is not None:
        if _name_of(trace.tb_frame.f_globals).partition(".")[0] not in _CARRIERS:
            writing = trace.tb_frame.f_globals
        trace = trace.tb_next
    if _is_of_spark(writing):
        os._exit(1)


_orphan_watch = Watch(_end_orphan)
