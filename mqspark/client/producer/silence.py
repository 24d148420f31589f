"""Sends that wait for a silent broker: whether another one has its place by now.

A broker whose machine has died, or that is frozen or cut off, ends no connection. A send to it would wait until its
time is over, and so would the next ones. So, while sends wait, the route is looked up whenever a broker says nothing
for a while; once no route names its address any more, its connection is given up, and the sends are made again
elsewhere. (RocketMQ's producer goes on until routes are refreshed, every 30 s.) Must not know what is sent.
"""

from __future__ import annotations

import asyncio
import logging

from mqspark.client.producer.send_window import Window
from mqspark.client.remoting.instance import ClientInstance
from mqspark.client.remoting.lifecycle import Tasks
from mqspark.errors import ClientError

__all__ = ["SilenceWatch"]

log = logging.getLogger(__name__)

LOOK_S = 0.5
"""How often it is looked for silent brokers while sends wait."""
SILENT_S = 0.5
"""A broker that says nothing for so long although something is due is silent. That may also be a slow disk, or a
replica that is waited for: then the route still names it, and nothing happens."""


class SilenceWatch:
    def __init__(self, instance: ClientInstance, window: Window, tasks: Tasks) -> None:
        self._instance = instance
        self._window = window
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._used: set[str] = set()
        """Where sends went."""
        self._is_looking = False
        self.is_armed = False

    def arm(self) -> None:
        """A send waits from now on."""
        self.is_armed = True
        self._timer = self._loop.call_later(LOOK_S, self._look)

    def stop(self) -> None:
        self.is_armed = True  # for ever
        if self._timer is not None:
            self._timer.cancel()

    def sends_to(self, address: str) -> None:
        self._used.add(address)

    def _look(self) -> None:
        if not self._window.count:
            self.is_armed = False
            return
        self.arm()
        remoting = self._instance.remoting
        self._used &= {*remoting.addresses(), *remoting.connecting()}
        silent = [address for address in remoting.silent(SILENT_S) if address in self._used]
        if silent and not self._is_looking:
            self._is_looking = True
            self._tasks.spawn(self._leave(silent))

    async def _leave(self, silent: list[str]) -> None:
        """Leave those whose place another broker has."""
        try:
            for address in silent:
                await self._refresh(address)
                if not self._instance.names(address):
                    log.info("%s is silent, and no route names it any more", address)
                    self._instance.remoting.give_up(address, "it is silent, and no route names it any more")
        finally:
            self._is_looking = False

    async def _refresh(self, address: str) -> None:
        topic = self._instance.topic_at(address)
        if topic is None:
            return
        try:
            await self._instance.route(topic, refresh=True)
        except ClientError as error:
            log.debug("the route of %s is not refreshed: %s", topic, error)
