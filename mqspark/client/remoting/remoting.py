"""Connections to servers: a ``Channel`` for each address, opened again when it is needed.

Must not know what a request means.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import weakref
from collections.abc import Awaitable, Callable, Mapping

from mqspark.base.config import MAX_PORT
from mqspark.base.logs import Outages, escaping
from mqspark.client.remoting.channel import Channel
from mqspark.client.remoting.dialing import opened
from mqspark.client.remoting.tls import refusal_of
from mqspark.errors import BrokerError, ConnectionLost, NoRoute, RequestTimeout
from mqspark.protocol.codes import ResponseCode
from mqspark.protocol.command import Command, Fields
from mqspark.protocol.signature import Signer

log = escaping(__name__)


def level_of(error: BaseException) -> int:
    """The level of a line about a failed request. ``Remoting`` reports a server that does not answer, once; what that
    means for each queue and each round, and that name servers forget its topics, is for who looks closer."""
    return logging.DEBUG if isinstance(error, (ConnectionLost, RequestTimeout, NoRoute)) else logging.WARNING


def split_address(address: str) -> tuple[str, int]:
    """``host:port``, IPv6 hosts in brackets. Raises ConnectionLost: an address that cannot be reached."""
    host, _, port = address.rpartition(":")
    if not host or not (port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= MAX_PORT):
        raise ConnectionLost(address, "not an address of the form host:port", made=False)
    return host.strip("[]"), int(port)


class Remoting:
    """One channel per address. ``greet`` runs first on each new channel. ``on_request`` gets requests by servers, and
    ``on_lost`` the address of an open channel that has ended."""

    def __init__(
        self,
        *,
        connect_timeout_ms: int,
        on_request: Callable[[Channel, Command], None],
        on_lost: Callable[[str], None] = lambda address: None,
        greet: Callable[[Channel], Awaitable[None]] | None = None,
        fields: Mapping[str, str] | None = None,
        signer: Signer | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._connect_timeout_ms = connect_timeout_ms
        self._on_request = on_request
        self._on_lost = on_lost
        self._greet = greet
        self._fields = fields
        self._signer = signer
        self._tls = tls
        self._channels: dict[str, Channel] = {}
        self._retired: set[Channel] = set()
        """Channels that take no more requests, but still wait for answers."""
        self._connecting: dict[str, asyncio.Task[Channel]] = {}
        self._connecting_since: dict[str, float] = {}
        self._given_up: weakref.WeakSet[asyncio.Task[Channel]] = weakref.WeakSet()
        """Attempts to connect that were ended here; the end of an event loop cancels them as well."""
        self._closed = False
        self._silent = Outages(log)
        """Addresses that did not answer the last request."""

    def _away(self, address: str, error: ConnectionLost | RequestTimeout) -> ConnectionLost | RequestTimeout:
        """Log the error, if the last request was answered: one line for a server that goes, however many requests it
        leaves without an answer."""
        if not self._closed:
            self._silent.failed(address, None, "%s; trying again, the log says when it answers", error)
        return error

    def answered(self, address: str) -> None:
        """A request was answered."""
        self._silent.over(address, "%s answers again", address)

    def channel(self, address: str) -> Channel | None:
        """The open channel to ``address``, if there is one."""
        return self._channels.get(address)

    def addresses(self) -> list[str]:
        """The addresses with an open channel."""
        return list(self._channels)

    def connecting(self) -> list[str]:
        """The addresses to which a channel is being opened."""
        return list(self._connecting)

    def silent_s(self, address: str) -> float:
        """For how long nothing has come from there although something is due, an answer or a connection; else 0."""
        since = self._connecting_since.get(address)
        if since is not None:
            return asyncio.get_running_loop().time() - since
        channel = self._channels.get(address)
        return 0.0 if channel is None else channel.silent_s()

    def quiet_s(self, address: str) -> float:
        """As ``silent_s``, also while the server may still hold its answer back; 0 if nothing is awaited."""
        channel = self._channels.get(address)
        return self.silent_s(address) if channel is None else channel.quiet_s()

    def give_up(self, address: str, reason: str) -> None:
        """End the channel to ``address``, or its opening: all requests to it fail with ConnectionLost."""
        channel = self._channels.get(address)
        if channel is not None:
            channel.abort(reason)
        task = self._connecting.get(address)
        if task is not None:
            self._given_up.add(task)
            task.cancel()

    async def connect(self, address: str) -> Channel:
        """The channel to ``address``, opened if need be. Raises ConnectionLost."""
        channel = self._channels.get(address)
        if channel is not None:
            return channel
        if self._closed:
            raise ConnectionLost(address, "this client is stopped")
        task = self._connecting.get(address)
        if task is None or (task.cancelled() and task not in self._given_up):
            task = asyncio.get_running_loop().create_task(self._open(address))
            self._connecting[address] = task
            self._connecting_since[address] = asyncio.get_running_loop().time()
            task.add_done_callback(lambda done: self._opened(address, done))
        try:
            # Shielded: the timeout of one caller must not cancel the connection of the others.
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled() and (self._closed or task in self._given_up):
                why = "this client is stopped" if self._closed else "it is given up: the server says nothing"
                raise ConnectionLost(address, why, made=False) from None
            raise

    async def invoke(
        self,
        address: str,
        code: int,
        header: Fields = None,
        body: bytes = b"",
        *,
        timeout_ms: int,
        accept: tuple[int, ...] = (ResponseCode.SUCCESS,),
        poll_ms: int = 0,
    ) -> Command:
        """A request and its response; connecting counts against the time. ``poll_ms``: for so long the server may wait
        before it answers.

        Raises BrokerError for a response code that is not in ``accept``, RequestTimeout, ConnectionLost. A
        server that answers GO_AWAY (it is about to stop) gets the request once more on a new connection.
        """
        try:
            response = await self._ask(address, code, header, body, timeout_ms, poll_ms)
            if response.code == ResponseCode.GO_AWAY:
                channel = self._channels.get(address)
                if channel is not None:
                    channel.retire()
                response = await self._ask(address, code, header, body, timeout_ms, poll_ms)
        except (ConnectionLost, RequestTimeout) as error:
            self._away(address, error)
            raise
        self.answered(address)
        if response.code not in accept:
            raise BrokerError(response.code, response.remark, address=address, reason=response.reason)
        return response

    async def _ask(
        self, address: str, code: int, header: Fields, body: bytes, timeout_ms: int, poll_ms: int
    ) -> Command:
        channel = self._channels.get(address)
        if channel is not None:
            return await channel.request(code, header, body, timeout_ms, poll_ms=poll_ms)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                channel = await self.connect(address)
                return await channel.request(code, header, body, timeout_ms, poll_ms=poll_ms)
        except TimeoutError as error:
            if isinstance(error, RequestTimeout):
                raise
            raise RequestTimeout(address, timeout_ms) from None

    def close_idle(self, idle_timeout_ms: int) -> None:
        """Close connections that were idle for this time."""
        for address, channel in list(self._channels.items()):
            if channel.idle_s() * 1000 >= idle_timeout_ms:
                del self._channels[address]
                channel.close("nobody needed it")

    async def close(self) -> None:
        self._closed = True
        opening = list(self._connecting.values())
        for task in opening:
            task.cancel()
        # A connection that is made in this turn is closed too: the loop may end next.
        await asyncio.gather(*opening, return_exceptions=True)
        channels = [*self._channels.values(), *self._retired]
        self._channels.clear()
        for channel in channels:
            channel.close()
        # One turn for the transports to report their end. With TLS the peer has to answer the farewell first.
        await asyncio.sleep(0)
        if self._tls is not None:
            await asyncio.gather(*(channel.ended() for channel in channels))

    async def _open(self, address: str) -> Channel:
        host, port = split_address(address)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_timeout_ms / 1000):
                channel = await opened(lambda: self._channel(address, loop), host, port, self._tls)
        except TimeoutError:
            reason = f"no connection within {self._connect_timeout_ms} ms"
            raise self._away(address, ConnectionLost(address, reason, made=False)) from None
        except OSError as error:
            reason = refusal_of(error, tls=self._tls is not None)
            raise self._away(address, ConnectionLost(address, reason, made=False)) from None
        except ValueError as error:  # not a host name: a label that is empty or too long, or a null character
            raise self._away(address, ConnectionLost(address, str(error), made=False)) from None
        if self._greet is not None:
            try:
                await self._greet(channel)
            except asyncio.CancelledError:
                channel.abort("nobody waits for it any more")
                raise
        if not channel.open:
            raise ConnectionLost(address)
        self._channels[address] = channel
        return channel

    def _channel(self, address: str, loop: asyncio.AbstractEventLoop) -> Channel:
        return Channel(address, loop, self._on_request, self._connection_lost, self._fields, self._signer)

    def _opened(self, address: str, task: asyncio.Task[Channel]) -> None:
        if self._connecting.get(address) is task:
            del self._connecting[address], self._connecting_since[address]
        if not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not log it

    def _forget(self, channel: Channel) -> None:
        if self._channels.get(channel.address) is channel:
            del self._channels[channel.address]

    def _connection_lost(self, channel: Channel) -> None:
        known = self._channels.get(channel.address) is channel
        self._forget(channel)
        if channel.has_ended:
            self._retired.discard(channel)
        else:
            self._retired.add(channel)
        if known:
            self._on_lost(channel.address)
