"""Python's garbage collector, kept from long pauses.

A full collection visits every object, so its pause grows with the tables: 100 ms for some 100,000 groups with their
members, and peers decide how often it is due. Nearly everything here is freed by its reference count, and what
survives a full collection mostly stays. So the survivors are set aside, and the next collection visits only what came
later. Survivors that become cyclic garbage later are found when the process has twice as many objects as at the last
visit of all.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from typing import Any

CHECK_S = 10.0

YOUNG_OBJECTS = 5_000
"""New objects before a collection, which visits them: some 0.2 ms. Sends make hundreds for a moment that are no
garbage; with Python's own 700, each read of many sends would end in a collection. Every second collection is a full
one, so that none visits more than twice as many. (A full one sets its survivors aside; young and middle ones leave them
to be visited again: four times as many in one, and half as much work again in all.)"""

MORE_BLOCKS = 1_000_000
"""Blocks of memory, some 60 MB, that the process may always have more than at the last visit of all objects."""


class Collector:
    """Belongs to one process; ``start`` when it is ready to serve."""

    def __init__(self) -> None:
        self._due_blocks = 0
        self._handle: asyncio.TimerHandle | None = None
        self._usual = gc.get_threshold()

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        gc.callbacks.append(self._collected)
        gc.set_threshold(YOUNG_OBJECTS, -1, -1)  # -1: no collection is a young one alone
        self.visit_all()
        self._handle = loop.call_later(CHECK_S, self._check, loop)

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            gc.callbacks.remove(self._collected)
            gc.set_threshold(*self._usual)
            gc.unfreeze()

    def visit_all(self) -> None:
        """Collect the garbage among all objects."""
        gc.unfreeze()
        gc.collect()
        # Python delays a full collection until new objects are a quarter of its last survivors: let those be none.
        gc.collect()
        self._due_blocks = 2 * sys.getallocatedblocks() + MORE_BLOCKS

    def _collected(self, phase: str, info: dict[str, Any]) -> None:
        if phase == "stop" and info["generation"] == 2:
            gc.freeze()

    def _check(self, loop: asyncio.AbstractEventLoop) -> None:
        if sys.getallocatedblocks() > self._due_blocks:
            self.visit_all()
        self._handle = loop.call_later(CHECK_S, self._check, loop)
