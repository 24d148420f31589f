"""Keeps child servers running: starts them, starts again what has ended, and ends them all.

Must not know what a server does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mqspark_server.hosting.childserver import ChildServer, PartFailed
from mqspark_server.process.tasks import end_all

log = logging.getLogger("mqspark.host")


@dataclass(frozen=True, slots=True)
class Pauses:
    """How long an ended server stays down: ``first_s``, then twice as long each time, at most ``most_s``, until it has
    served for ``calm_s``."""

    first_s: float
    most_s: float
    calm_s: float = 60.0

    def next_s(self, before_s: float, served_s: float) -> float:
        """``before_s``: the pause before, 0 if there was none; ``served_s``: how long the server has served since."""
        if not before_s or served_s >= self.calm_s:
            return self.first_s
        return min(2 * before_s, self.most_s)


class Supervisor:
    """``start_s``: how long a server may take to serve; None: as long as its recovery takes. ``stop_s``: how long it
    may take to end."""

    def __init__(
        self, pauses: Pauses, environment: Mapping[str, str], *, start_s: float | None, stop_s: float
    ) -> None:
        self._pauses = pauses
        self._environment = environment
        self._start_s = start_s
        self._stop_s = stop_s
        self._keepers: list[asyncio.Task[None]] = []

    async def start(self, *children: ChildServer) -> None:
        """Start servers beside each other. Raises PartFailed or OSError; what runs then is for ``stop``."""
        for child in children:  # before the first wait: ``stop`` has to find every process
            await child.spawn(self._environment)
        loop = asyncio.get_running_loop()
        waits = [loop.create_task(child.until_ready(self._start_s)) for child in children]
        try:
            await asyncio.gather(*waits)
        finally:
            await end_all(*waits)

    def keep(self, *children: ChildServer) -> None:
        """From now on, start these again whenever they have ended."""
        loop = asyncio.get_running_loop()
        self._keepers += [
            loop.create_task(self._keep(child), name=f"keep {child.name}") for child in children
        ]

    async def _keep(self, child: ChildServer) -> None:
        loop = asyncio.get_running_loop()
        pause_s, since_s = 0.0, loop.time()
        while True:
            how = await child.until_ended()
            pause_s = self._pauses.next_s(pause_s, loop.time() - since_s)
            child.problem = f"it ended by {how} and starts again"
            log.warning(
                "%s (pid %d) ended by %s; it starts again in %.0f s", child.name, child.pid, how, pause_s
            )
            while not await self._is_back(child, pause_s):
                pause_s = self._pauses.next_s(pause_s, 0.0)
            since_s = loop.time()

    async def _is_back(self, child: ChildServer, pause_s: float) -> bool:
        await asyncio.sleep(pause_s)
        child.restarts += 1
        child.problem = "it starts again"
        try:
            await child.spawn(self._environment)
            await child.until_ready(self._start_s)
        except (PartFailed, OSError) as error:
            child.problem = str(error)
            log.error("%s", error)
            await child.end(self._stop_s)
            child.problem = str(error)
            return False
        log.info("%s serves again (pid %d) at %s", child.name, child.pid, child.address)
        return True

    async def stop(self, *groups: Sequence[ChildServer]) -> None:
        """End the servers, one group after the other. Raises PartFailed if one did not end cleanly."""
        await end_all(*self._keepers)
        self._keepers.clear()
        faults: list[str] = []
        for group in groups:
            ends = await asyncio.gather(*(child.end(self._stop_s) for child in group))
            faults += [fault for fault in ends if fault is not None]
        if faults:
            raise PartFailed(f"did not stop cleanly: {'; '.join(faults)}")
