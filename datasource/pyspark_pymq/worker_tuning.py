"""The Python process that Spark lends to a task, and takes back to lend it again.

Spark's daemon runs a full ``gc.collect()`` when a worker comes back from a task. With Spark, Arrow, NumPy and pandas
imported that goes over some 80,000 objects that all stay: 10 to 50 ms of processor time, which a micro-batch of a
hundredth of that work pays while Spark writes its checkpoint, and once more in the next batch when that begins before.

With Spark's own settings the process talks to the JVM over TCP, where Spark leaves Nagle's algorithm on and writes a
task's command, its input and the end of it one by one: each waits for the acknowledgement of the one before, which
Linux holds back for 40 ms. Whoever unpickles the command can have it sent at once.

Must not know what the tasks are.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import socket
import stat
from typing import Any

__all__ = ["Lent", "settle"]

_tasks = itertools.count()


def settle() -> None:
    """Call when a task begins. With the process's second one everything that is there leaves the garbage collector's
    sight: a collection has just gone over it, so it is modules, classes and caches, and will stay.
    """
    if next(_tasks) == 1:
        gc.freeze()


class Lent:
    """What is unpickled from a task's command: the rest of the task then comes without a stall."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        _acknowledge_at_once()


def _acknowledge_at_once() -> None:
    """On every TCP socket of the process: Spark does not say which is its own, and the others are none the worse. Linux
    forgets it after a while, so it is said again in each task."""
    if not hasattr(socket, "TCP_QUICKACK"):
        return  # not Linux: no such option, and no /proc
    for name in os.listdir("/proc/self/fd"):
        # That of the listing is closed by now.
        with contextlib.suppress(OSError):
            _quicken(int(name))


def _quicken(descriptor: int) -> None:
    if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
        return
    found = socket.socket(fileno=descriptor)
    try:
        if found.family in (socket.AF_INET, socket.AF_INET6) and found.type == socket.SOCK_STREAM:
            found.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
            found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    finally:
        found.detach()
