"""Threads that look after a process, also while it waits. Must not know what is watched."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from mqspark.base.logs import escaping

log = escaping("mqspark.arrow")


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
