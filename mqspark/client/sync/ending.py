"""The end of a program that has not stopped its blocking clients. What waits is sent, for a bounded time, and the log
says what is lost.

Python calls ``stop_all`` when the main thread and all threads that are no daemons have ended: after the last line, an
exception or ``sys.exit``. The loop's thread still runs then. A process that a signal kills runs nothing more.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
from typing import Protocol

from mqspark.client.sync.loop import Call
from mqspark.logs import escaping

__all__ = ["EXIT_TIMEOUT_MS", "Ending", "begun", "over"]

log = escaping(__name__)

EXIT_TIMEOUT_MS = 10_000
"""How long the end of a program waits for its clients."""


class Ending(Protocol):
    """A client, as the end of the program sees it."""

    def end_with_program(self, timeout_ms: int) -> Call[None] | None:
        """Begin the end; None if there is nothing to wait for."""

    def left_behind(self) -> str | None:
        """What is lost if the program ends now; None: nothing."""


_open: dict[int, Ending] = {}
"""The clients that are started, and those whose end is not over, by ``id``."""


def begun(client: Ending) -> None:
    """It is started."""
    if not _open:
        _register()
    _open[id(client)] = client


def over(client: Ending) -> None:
    """Its end is over."""
    _open.pop(id(client), None)


def stop_all(timeout_ms: int = EXIT_TIMEOUT_MS) -> None:
    """Stop all clients that are open, for at most about this time."""
    clients = list(_open.values())
    _open.clear()
    calls = [(client, client.end_with_program(timeout_ms)) for client in clients]
    deadline = time.monotonic() + timeout_ms / 1000
    for client, call in calls:
        try:
            if call is not None:
                call.wait(max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            lost = client.left_behind()
            if lost is not None:
                log.error("the program ends, and %s after %d ms", lost, timeout_ms)
        except Exception:
            log.exception("a client could not be stopped at the end of the program")


_registered_in = 0
"""The process whose end is waited for."""


def _register() -> None:
    global _registered_in
    if _registered_in == os.getpid():
        return
    _registered_in = os.getpid()
    atexit.register(stop_all)
    children = sys.modules.get("multiprocessing.util")
    if children is not None:
        # A child of multiprocessing ends without atexit.
        children.Finalize(None, stop_all, exitpriority=100)


def _forget_parent() -> None:
    _open.clear()


os.register_at_fork(after_in_child=_forget_parent)
