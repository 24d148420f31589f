"""Notices to brokers, one-way, each over a connection of its own, because they are rare: a controller announces the
master, a name server the smallest broker id.

Must not know the reason for a notice. A broker that misses a notice polls within some seconds.
"""

from __future__ import annotations

import asyncio

from mqspark.base.logs import Outages, sparing
from mqspark.errors import ClientError
from mqspark.protocol.headers.header import Header
from mqspark_server.net.outbound import Dialing
from mqspark_server.process.tasks import end_all

log = sparing("mqspark.notices")

LINGER_S = 1.0
"""How long a connection stays open after its notice: there is no answer that shows that the broker has read it."""
MAX_SENDING = 256
"""Limit of notices that are being sent concurrently."""


class Notifier:
    def __init__(self, code: int, dialing: Dialing) -> None:
        """``code``: the request code of the notices."""
        self._code = code
        self._dialing = dialing
        self._sending: dict[str, asyncio.Task[None]] = {}
        self._outages = Outages(log)

    def send(self, address: str, header: Header, body: bytes = b"") -> None:
        """A newer notice for the same address replaces an older one."""
        older = self._sending.pop(address, None)
        if older is not None:
            older.cancel()
        elif len(self._sending) >= MAX_SENDING:
            log.warning("the notice %s cannot be sent to the broker at %s now", header, address)
            return
        task = asyncio.get_running_loop().create_task(
            self._send(address, header, body), name="mqspark-notice"
        )
        self._sending[address] = task
        task.add_done_callback(lambda done: self._sent(address, done))

    def _sent(self, address: str, task: asyncio.Task[None]) -> None:
        if self._sending.get(address) is task:
            del self._sending[address]

    async def _send(self, address: str, header: Header, body: bytes) -> None:
        try:
            connection = await self._dialing.connect(address)
            try:
                connection.tell(self._code, header, body)
                self._outages.over(address, "notices reach the broker at %s again", address)
                await asyncio.sleep(LINGER_S)
            finally:
                connection.close()
        except (OSError, ValueError, ClientError) as error:
            what = "the notice %s could not be sent to the broker at %s: %s"
            self._outages.failed(address, None, what, header, address, error)

    async def stop(self) -> None:
        await end_all(*self._sending.values())
