"""Detects brokers that fell silent and were replaced, while members wait for their answers.

A broker whose machine died, or that is frozen or cut off, closes no connection. A send to it, or a pull that waits
there for messages, would wait for its whole timeout, and so would the next ones. Therefore the route is looked up
whenever a broker has owed an answer for a while. Once no route contains its address any more, its connection is
abandoned, and its members ask again elsewhere. A broker that only holds pulls back owes nothing yet: after a longer
while it gets a heartbeat, which it has to answer. (RocketMQ's clients continue until routes are refreshed, every 30 s,
and its consumers until their pulls have timed out.) Must not know what is sent or asked.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from mqspark.base.logs import escaping
from mqspark.client.life.lifecycle import Tasks
from mqspark.client.remoting.remoting import Remoting
from mqspark.client.remoting.topic_routes import TopicRoute
from mqspark.errors import ClientError

log = escaping(__name__)

SILENCE_LOOK_S = 0.5
"""Interval of checks for silent brokers while answers are awaited."""
SILENT_S = 0.5
"""A broker that sends nothing for this long although an answer is due is silent. The cause may also be a slow disk or a
replica that is waited for; then the route still contains its address, and nothing happens."""
QUIET_S = 5.0
"""A broker that is silent for this long, perhaps because it waits for messages itself, gets a heartbeat."""
KNOCK_TIMEOUT_MS = 30_000
"""Timeout of that heartbeat: longer than a broker stalls, because a missing answer ends its connection."""
SPARING = 8
"""The next look-up of a route waits for this part of the silence, if that is later, because many clients ask the same
name servers about one broker."""


class Routes(Protocol):
    """The known addresses of brokers, as in ``ClientInstance``."""

    def names(self, address: str) -> bool: ...

    def topic_at(self, address: str) -> str | None: ...

    async def route(self, topic: str, *, refresh: bool = False) -> TopicRoute: ...

    async def knock(self, address: str, timeout_ms: int) -> None: ...


class SilenceWatch:
    """The checks of one client identity, made only while an address that was ``used`` owes an answer."""

    def __init__(self, remoting: Remoting, routes: Routes, tasks: Tasks) -> None:
        self._remoting = remoting
        self._routes = routes
        self._tasks = tasks
        self._timer: asyncio.TimerHandle | None = None
        self._used: set[str] = set()
        """Addresses that members send to or wait for messages at; not name servers, nor single requests of tools."""
        self._looked_s: dict[str, float] = {}
        """Silent addresses → the length of their silence at the last look-up of their route."""
        self._is_looking = False
        self.is_armed = False

    def arm(self) -> None:
        """An answer is awaited from now on."""
        self.is_armed = True
        self._timer = asyncio.get_running_loop().call_later(SILENCE_LOOK_S, self._look)

    def stop(self) -> None:
        self.is_armed = True  # nothing arms it again
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
        """Abandon the connections to those brokers whose address no route contains any more."""
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
