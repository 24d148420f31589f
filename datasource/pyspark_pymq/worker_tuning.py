"""Tuning of the Python process that Spark reuses for tasks.

Spark's daemon runs a full ``gc.collect()`` when a worker returns from a task. With Spark, Arrow, NumPy and pandas
imported that scans some 80,000 permanent objects: 10 to 50 ms of CPU time, which can be a hundred times the work
of a micro-batch. The worker pays for it while Spark writes its checkpoint, or in the next batch if that starts
earlier.

With Spark's default settings the process talks to the JVM over TCP. Spark leaves Nagle's algorithm on and writes
a task's command, its input and the end marker separately, so each waits for the acknowledgement of the one
before, which Linux delays for 40 ms. Code that runs while the command is unpickled can have it acknowledged at
once.

Must not know the tasks.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import socket
import stat
from typing import Any

from pyspark_pymq.watching import end_with_spark

_tasks = itertools.count()


def begin_task() -> None:
    """Call when a task begins, or a plan or commit, for which Spark keeps processes as well. Such a process then ends
    with its parent. With its second task all present objects are frozen: a collection has just run, so they are
    modules, classes and caches, and permanent."""
    end_with_spark()
    if next(_tasks) == 1:
        gc.freeze()


class PickledToTask:
    """Unpickled from a task's command: the rest of the task then arrives without a stall."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        end_with_spark()
        _acknowledge_at_once()


def _acknowledge_at_once() -> None:
    """Sets TCP_QUICKACK on every TCP socket of the process, because Spark does not say which one is its own, and
    it does not harm the others. Linux resets the option after a while, so each task sets it again."""
    if not hasattr(socket, "TCP_QUICKACK"):
        return  # not Linux: no such option, and no /proc
    for name in os.listdir("/proc/self/fd"):
        # The descriptor of the listing itself, which is closed by now.
        with contextlib.suppress(OSError):
            _set_quick_ack(int(name))


def _set_quick_ack(descriptor: int) -> None:
    if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
        return
    found = socket.socket(fileno=descriptor)
    try:
        if found.family in (socket.AF_INET, socket.AF_INET6) and found.type == socket.SOCK_STREAM:
            found.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
            found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    finally:
        found.detach()
