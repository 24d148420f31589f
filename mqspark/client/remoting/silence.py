"""Brokers that members wait for and that say nothing: whether another one has their place by now.

A broker whose machine has died, or that is frozen or cut off, ends no connection. A send to it, or a pull that waits
there for messages, would wait until its time is over, and so would the next ones. So the route is looked up whenever a
broker owes an answer for a while; once no route names its address any more, its connection is given up, and whoever
waits asks again elsewhere. A broker that only holds pulls back owes nothing yet: after a longer while it is sent a
heartbeat, which it has to answer. (RocketMQ's clients go on until routes are refreshed, every 30 s, and its consumers
until their pulls have timed out.) Must not know what is sent or asked.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from mqspark.client.remoting.lifecycle import Tasks
from mqspark.client.remoting.remoting import Remoting
from mqspark.client.remoting.topic_routes import TopicRoute
from mqspark.errors import ClientError

__all__ = ["Routes", "SilenceWatch"]

log = logging.getLogger(__name__)

LOOK_S = 0.5
"""How often it is looked for silent brokers while answers are awaited."""
SILENT_S = 0.5
"""A broker that says nothing for so long although something is due is silent. That may also be a slow disk, or a
replica that is waited for: then the route still names it, and nothing happens."""
QUIET_S = 5.0
"""A broker that says nothing for so long, and may because it waits for messages itself, is sent a heartbeat."""
KNOCK_TIMEOUT_MS = 30_000
"""Of that heartbeat: longer than a broker stalls, because its connection ends with it."""
SPARING = 8
"""The next look at a route comes after this part of the silence, if that is later: many clients ask the same name
servers about one broker."""


class Routes(Protocol):
    """What brokers are where, as the ``ClientInstance`` knows it."""

    def names(self, address: str) -> bool: ...

    def topic_at(self, address: str) -> str | None: ...

    async def route(self, topic: str, *, refresh: bool = False) -> TopicRoute: ...

    async def knock(self, address: str, timeout_ms: int) -> None: ...


class SilenceWatch:
    """Of one client identity. It looks only while an answer is awaited from an address that was ``used``."""

    def __init__(self, remoting: Remoting, routes: Routes, tasks: Tasks) -> None:
        self._remoting = remoting
        self._routes = routes
        self._tasks = tasks
        self._timer: asyncio.TimerHandle | None = None
        self._used: set[str] = set()
        """Where members send to, or wait for messages: not name servers, nor what a tool asks once."""
        self._looked_s: dict[str, float] = {}
        """Silent addresses → for how long they were when their route was looked up last."""
        self._is_looking = False
        self.is_armed = False

    def arm(self) -> None:
        """An answer is awaited from now on."""
        self.is_armed = True
        self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def stop(self) -> None:
        self.is_armed = True  # for ever
        if self._timer is not None:
            self._timer.cancel()

    def uses(self, address: str) -> None:
        """A request to this broker follows in this turn of the loop, perhaps after its connection."""
        self._used.add(address)
        if not self.is_armed:
            self.arm()

    def _look(self) -> None:
        remoting = self._remoting
        self._used &= {*remoting.addresses(), *remoting.connecting()}
        quiet = {address: quiet_s for address in self._used if (quiet_s := remoting.quiet_s(address)) > 0}
        if not quiet:
            self.is_armed = False
            self._looked_s.clear()
            return
        self.arm()
        silent = {
            address: silent_s for address in quiet if (silent_s := remoting.silent_s(address)) >= SILENT_S
        }
        self._looked_s = {
            address: looked_s
            for address, looked_s in self._looked_s.items()
            if looked_s <= silent.get(address, 0)
        }
        for address in quiet.keys() - silent.keys():
            if quiet[address] >= QUIET_S and not remoting.silent_s(address):
                self._tasks.spawn(self._knock(address))
        due = [
            address
            for address, silent_s in silent.items()
            if silent_s - self._looked_s.get(address, 0.0) >= silent_s / SPARING
        ]
        if due and not self._is_looking:
            self._is_looking = True
            self._looked_s.update((address, silent[address]) for address in due)
            self._tasks.spawn(self._leave(due))

    async def _knock(self, address: str) -> None:
        """What comes in answer, or does not, is seen at the next look."""
        try:
            await self._routes.knock(address, KNOCK_TIMEOUT_MS)
        except ClientError as error:
            log.debug("a heartbeat to the silent %s failed: %s", address, error)

    async def _leave(self, silent: list[str]) -> None:
        """Leave those whose place another broker has."""
        try:
            for address in silent:
                await self._refresh(address)
                if not self._routes.names(address):
                    log.info("%s is silent, and no route names it any more", address)
                    self._remoting.give_up(address, "it is silent, and no route names it any more")
        finally:
            self._is_looking = False

    async def _refresh(self, address: str) -> None:
        topic = self._routes.topic_at(address)
        if topic is None:
            return
        try:
            await self._routes.route(topic, refresh=True)
        except ClientError as error:
            log.debug("the route of %s is not refreshed: %s", topic, error)
