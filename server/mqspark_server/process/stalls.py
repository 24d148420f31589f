"""Logs what the event loop was doing when it stood still: a thread watches it, and a line of the log names the place.

While one turn of the loop takes longer than STALL_S, no peer is served. The line says where the loop was, for how long,
and what of that was garbage collection, time on a processor, and pages that were read from the disk; the rest is
waiting: for a disk, a lock or a processor. A thread wakes ten times a second, the loop four times.
"""

from __future__ import annotations

import asyncio
import gc
import resource
import sys
import threading
import time
from types import FrameType
from typing import Any

from mqspark.base.logs import sparing

log = sparing("mqspark.stall", lines=5)

STALL_S = 0.5
_LOOK_S = 0.1
MAX_FRAMES = 4
_OURS = ("/mqspark/", "/mqspark_server/")


class StallWatch:
    """Belongs to one loop; ``start`` on it."""

    def __init__(self, stall_s: float = STALL_S) -> None:
        self._stall_s = stall_s
        self._loop: asyncio.AbstractEventLoop | None = None
        self._handle: asyncio.TimerHandle | None = None
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._loop_thread = 0
        self._ticked_s = 0.0
        self._cpu_s = self._gc_s = self._gc_began_s = 0.0
        self._faults = 0
        self._seen = ""
        """Where the loop was in the present stall."""
        self.stalls = 0

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self._loop_thread = loop, threading.get_ident()
        gc.callbacks.append(self._collected)
        self._note()
        self._handle = loop.call_later(self._stall_s / 2, self._tick)
        thread = threading.Thread(target=self._watch, name="mqspark-stalls", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            # No memory for another thread: stalls are still counted, without their place.
            log.warning("no thread watches the event loop: %s", error)
        else:
            self._thread = thread

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            gc.callbacks.remove(self._collected)
        if self._thread is not None:
            self._over.set()
            self._thread.join()

    def _note(self) -> None:
        self._ticked_s, self._cpu_s = time.monotonic(), time.thread_time()
        self._faults = resource.getrusage(resource.RUSAGE_THREAD).ru_majflt
        self._gc_s, self._seen = 0.0, ""

    def _tick(self) -> None:
        if self._loop is None:
            return
        late_s = time.monotonic() - self._ticked_s - self._stall_s / 2
        if late_s >= self._stall_s:
            self.stalls += 1
            faults = resource.getrusage(resource.RUSAGE_THREAD).ru_majflt - self._faults
            cpu_s = time.thread_time() - self._cpu_s
            log.warning(
                "the event loop stood still for %d ms%s: %d ms of garbage collection, %d ms on a processor, %d pages"
                " read from the disk; mostly %s",
                late_s * 1000,
                f" in {self._seen}" if self._seen else "",
                self._gc_s * 1000,
                cpu_s * 1000,
                faults,
                self._likely_cause(late_s, cpu_s, faults),
            )
        self._note()
        self._handle = self._loop.call_later(self._stall_s / 2, self._tick)

    def _likely_cause(self, late_s: float, cpu_s: float, faults: int) -> str:
        if self._gc_s > late_s / 2:
            return "garbage collection"
        if cpu_s > late_s / 2:
            return "work in one turn"
        if "sync" in self._seen:
            return "a sync of the disk"
        if faults:
            return "page faults: the log is read from the disk"
        return "waiting for a disk, a lock or a processor"

    def _collected(self, phase: str, info: dict[str, Any]) -> None:
        if threading.get_ident() != self._loop_thread:
            return
        if phase == "start":
            self._gc_began_s = time.monotonic()
        else:
            self._gc_s += time.monotonic() - self._gc_began_s

    def _watch(self) -> None:
        while not self._over.wait(_LOOK_S):
            if not self._seen and time.monotonic() - self._ticked_s > 1.2 * self._stall_s:
                # Reading the frames of another thread is safe: this thread holds the interpreter's lock meanwhile.
                self._seen = _describe_frames(sys._current_frames().get(self._loop_thread))


def _describe_frames(frame: FrameType | None) -> str:
    """The innermost frames of this project, and what they call."""
    names: list[str] = []
    while frame is not None and len(names) < MAX_FRAMES:
        path = frame.f_code.co_filename
        ours = any(part in path for part in _OURS)
        if ours or not names:
            short = "/".join(path.split("/")[-2:])
            names.append(f"{frame.f_code.co_name} ({short}:{frame.f_lineno})")
        frame = frame.f_back
    return ", called by ".join(names)
