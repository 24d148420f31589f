"""Python's garbage collector, kept from long pauses.

A full collection visits every object, so its pause grows with the tables: 100 ms for some 100,000 groups with their
members, and peers decide how often it is due. Nearly everything here is freed by its reference count, and what
survives a collection mostly stays. So only the youngest objects are collected: survivors go to an older generation,
which is not. Those that become cyclic garbage later are found by a visit of all objects. It is due when as many objects
as it saw the last time have survived, and it waits until the process is quiet. The program itself, its modules with
their functions and classes, is most of what there is, and is not visited even then. Tables of very many entries are
made of objects that are never visited.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from typing import Any

CHECK_S = 10.0

YOUNG_OBJECTS = 2_500
"""New objects before a collection, which visits them: 0.1 ms, and up to a millisecond where they are tables of many
entries. Sends make hundreds for a moment that are no garbage; with Python's own 700, each read of many sends
would end in a collection."""
NEVER = 0x7FFFFFFF
"""Threshold of the older generations."""

LOADED_OBJECTS = 10_000
"""Objects that may have survived since the start for a visit of them to take less than two milliseconds."""

MORE_OBJECTS = 250_000
"""Objects that may always survive before all are visited again, however few were visited the last time."""
MORE_BLOCKS = 1_000_000
"""Blocks of memory, some 60 MB, that the process may always have more than at the last visit of all objects."""

QUIET_SHARE = 0.05
"""A thread that takes less of a processor serves so few that a visit of all keeps hardly anybody waiting."""


class Collector:
    """Belongs to one process; ``start`` when it is ready to serve."""

    def __init__(self) -> None:
        self.due_objects = self.due_blocks = 0
        """A visit of all is due with more objects that survived since the last one, and more blocks of memory in
        all."""
        self._survived = self._young = 0
        self._is_loaded = False
        self._looked_s = self._cpu_s = 0.0
        self._handle: asyncio.TimerHandle | None = None
        self._usual = gc.get_threshold()

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        gc.callbacks.append(self._collected)
        gc.set_threshold(YOUNG_OBJECTS, NEVER, NEVER)
        gc.collect()
        gc.freeze()
        self.visit_all()
        self._busy_share()
        self._handle = loop.call_later(CHECK_S, self._check, loop)

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            gc.callbacks.remove(self._collected)
            gc.set_threshold(*self._usual)
            gc.unfreeze()

    def visit_all(self) -> None:
        """Collect the garbage among all objects."""
        gc.collect()
        self.due_objects = len(gc.get_objects()) + MORE_OBJECTS
        self.due_blocks = 2 * sys.getallocatedblocks() + MORE_BLOCKS
        self._survived = 0

    def must_visit_all(self, busy_share: float) -> bool:
        """Whether a visit is due, and this thread is quiet, or garbage could take too much memory if it waited on.
        Memory that grew by objects that are never visited is no reason, nor are objects that have come and gone."""
        times = 1 if busy_share < QUIET_SHARE else 2
        return (
            self._survived > times * self.due_objects and sys.getallocatedblocks() > times * self.due_blocks
        )

    def _collected(self, phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            self._young = gc.get_count()[0]
        else:
            self._survived += max(0, self._young - info["collected"])

    def _busy_share(self) -> float:
        """The share of a processor that this thread took since the last call."""
        now_s, cpu_s = time.monotonic(), time.thread_time()
        share = (cpu_s - self._cpu_s) / max(now_s - self._looked_s, 1e-3)
        self._looked_s, self._cpu_s = now_s, cpu_s
        return share

    def _check(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._is_loaded:
            # What came right after the start, such as the console's pages, is part of the program, too. Garbage among
            # it would stay for ever, so it is collected before. More objects than these are of many clients: they
            # are no part of the program, and would take too long.
            self._is_loaded = True
            if self._survived <= LOADED_OBJECTS:
                gc.collect()
                gc.freeze()
        if self.must_visit_all(self._busy_share()):
            self.visit_all()
        self._handle = loop.call_later(CHECK_S, self._check, loop)
