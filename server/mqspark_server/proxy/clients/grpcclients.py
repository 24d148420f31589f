"""The clients that are connected: their settings, their link to brokers, their telemetry streams.

A client lives while it has a telemetry stream or calls something; then its link is closed, and brokers see it go.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from time import monotonic

from mqspark.base.bounded import BoundedMap, Ledger
from mqspark.base.clock import wall_ms
from mqspark.base.config import Bound
from mqspark.base.logs import sparing
from mqspark.errors import TableFull
from mqspark.protocol.command import Command
from mqspark_server.proxy import messaging_pb2 as pb
from mqspark_server.proxy.backend import GrpcCaller, Link, ProxyBackend
from mqspark_server.proxy.clients.grpcmetadata import GrpcMetadata
from mqspark_server.proxy.clients.turnacks import TurnAcks
from mqspark_server.proxy.grpcstatus import GrpcMoved, GrpcRefusal

log = sparing("mqspark.grpc")

IDLE_S = 120.0
"""How long a client without a call and without a telemetry stream is kept (serverChannelMaxIdleTimeSeconds)."""
RECONNECTING_S = 15.0
"""How long a client that is not connected keeps its messages. It calls every ten seconds."""
SCAN_S = 10.0
MAX_SETTINGS_BYTES = 64 * 1024
"""Limit of the settings of one client."""
MAX_TOPICS = 2_000
"""Topics in these: each heartbeat of a few bytes tells brokers all of them."""
MAX_ASKED = 64
"""Requests of brokers that wait for one client's answer."""
MAX_PUSHES = 256
"""Commands that a telemetry stream may hold back while its client does not read."""
_CLIENT_BYTES = 8_000
"""Memory of a client without its settings: link, session, streams."""
_COMMAND_BYTES = 1_000
"""Memory of a command without what it says."""


class TelemetryStream:
    """What is to be written to one telemetry stream. ``clear`` it at the end."""

    def __init__(self, ledger: Ledger) -> None:
        """``ledger``: of what all streams hold back. A command may have the body of a message."""
        self._ledger = ledger
        self.commands: asyncio.Queue[pb.TelemetryCommand | None] = asyncio.Queue(MAX_PUSHES + 1)
        """None: it ends here."""

    def push(self, command: pb.TelemetryCommand) -> bool:
        """Whether there is room for the command."""
        if self.commands.qsize() >= MAX_PUSHES:
            return False
        try:
            self._ledger.charge(_pushed_bytes(command))
        except TableFull:
            return False
        self.commands.put_nowait(command)
        return True

    async def next(self) -> pb.TelemetryCommand | None:
        """What to write; None: nothing more comes."""
        return self._taken(await self.commands.get())

    async def emptied(self) -> None:
        """All that was pushed has been taken."""
        await self.commands.join()

    def end(self) -> None:
        """What was pushed is the rest. Nothing is pushed from now on."""
        self.commands.put_nowait(None)

    def clear(self) -> None:
        """Nobody takes the rest."""
        while not self.commands.empty():
            self._taken(self.commands.get_nowait())

    def _taken(self, command: pb.TelemetryCommand | None) -> pb.TelemetryCommand | None:
        self.commands.task_done()
        if command is not None:
            self._ledger.free(_pushed_bytes(command))
        return command


def _pushed_bytes(command: pb.TelemetryCommand) -> int:
    size: int = command.ByteSize()
    return _COMMAND_BYTES + size


class GrpcClient:
    """One client: a client id of a user."""

    def __init__(self, caller: GrpcCaller, client_version: str) -> None:
        self.caller = caller
        self.client_version = client_version
        self.link: Link
        self.settings: pb.Settings | None = None
        """What the client has told about itself; None before."""
        self.is_fifo = False
        """Whether its group consumes in order."""
        self.streams: list[TelemetryStream] = []
        """The newest last: it gets what brokers ask."""
        self.used_at = monotonic()
        self.came_at_ms = wall_ms()
        self.calls = 0
        """Calls that are being served."""
        self.acks: dict[str, TurnAcks] = {}
        """Acknowledgements of this turn, by brokers."""
        self._asked: dict[str, asyncio.Future[pb.TelemetryCommand]] = {}
        """Commands that it has to answer, by their nonces."""

    async def ask(
        self, command: pb.TelemetryCommand, nonce: str, timeout_s: float
    ) -> pb.TelemetryCommand | None:
        """What it answers to a command with this nonce. None: it cannot be asked, or does not answer in time."""
        if len(self._asked) >= MAX_ASKED or not self.push(command):
            return None
        answer: asyncio.Future[pb.TelemetryCommand] = asyncio.get_running_loop().create_future()
        self._asked[nonce] = answer
        try:
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError:
            return None
        finally:
            del self._asked[nonce]

    def answered(self, nonce: str, answer: pb.TelemetryCommand) -> None:
        """It answers a command, which may have been given up."""
        waiting = self._asked.get(nonce)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    def push(self, command: pb.TelemetryCommand) -> bool:
        """Send a command over the newest telemetry stream. Whether there is one with room for it."""
        return bool(self.streams) and self.streams[-1].push(command)

    @property
    def is_here(self) -> bool:
        """Whether it is connected, or was so lately that it may be reconnecting."""
        return not self.is_idle or self.used_at > monotonic() - RECONNECTING_S

    @property
    def is_idle(self) -> bool:
        return not self.streams and not self.calls

    @property
    def is_calling(self) -> bool:
        """Whether it is connected, and has called lately: nobody may have told that its connection is dead."""
        return not self.is_idle and self.used_at > monotonic() - RECONNECTING_S

    @property
    def key(self) -> tuple[str, str]:
        return self.caller.client_id, self.caller.user


def check_size(settings: pb.Settings) -> None:
    """Raises GrpcRefusal."""
    if settings.ByteSize() > MAX_SETTINGS_BYTES:
        text = f"settings of more than {MAX_SETTINGS_BYTES} bytes"
        raise GrpcRefusal(pb.INVALID_CLIENT_PROPERTIES, text)
    if max(len(settings.publishing.topics), len(settings.subscription.subscriptions)) > MAX_TOPICS:
        raise GrpcRefusal(pb.INVALID_CLIENT_PROPERTIES, f"settings with more than {MAX_TOPICS} topics")


Pushed = Callable[[GrpcClient, str, Command], None]
"""Called with a request of a broker to a client."""


def _bytes(settings: pb.Settings) -> int:
    size: int = settings.ByteSize()
    return 3 * size


class GrpcClients:
    """All clients of one server, by client id and user."""

    def __init__(self, backend: ProxyBackend, pushed: Pushed, max_bytes: Bound) -> None:
        self._backend = backend
        self._pushed = pushed
        self.ledger = Ledger("grpcClients", max_bytes)
        self._clients: BoundedMap[tuple[str, str], GrpcClient] = self.ledger.map(_CLIENT_BYTES)
        self._settings: BoundedMap[tuple[str, str], pb.Settings] = self.ledger.map(0, _bytes)
        self.pushes = Ledger("grpcPushes", max_bytes)
        """What telemetry streams hold back."""
        self._scan: asyncio.TimerHandle | None = None

    def __iter__(self) -> Iterator[GrpcClient]:
        return iter(list(self._clients.values()))

    def __len__(self) -> int:
        return len(self._clients)

    def start(self) -> None:
        self._scan = asyncio.get_running_loop().call_later(SCAN_S, self._close_idle)

    def find(self, key: tuple[str, str]) -> GrpcClient | None:
        return self._clients.get(key)

    def of(self, metadata: GrpcMetadata) -> GrpcClient:
        """The client of a call. Raises GrpcRefusal when it is not who it says, or when there are too many."""
        identity = metadata.identity
        client = self._clients.get(identity.key)
        if client is None:
            client = self._new(metadata)
        else:
            try:
                client.link.rights.sign_in(identity.proof, metadata.address[0])
            except GrpcMoved:
                if client.is_calling:  # two that take turns would end each other's links
                    raise
                client = self._moved(client, metadata)
        client.used_at = monotonic()
        return client

    def _new(self, metadata: GrpcMetadata) -> GrpcClient:
        identity, caller = metadata.identity, metadata.caller
        client = GrpcClient(caller, identity.version_text)
        client.link = self._backend.link(caller, self._receiver(client))
        try:
            client.link.rights.sign_in(identity.proof, metadata.address[0])
            self._clients[client.key] = client
        except TableFull as error:
            client.link.close()
            raise GrpcRefusal(pb.TOO_MANY_REQUESTS, str(error)) from None
        except BaseException:
            client.link.close()
            raise
        return client

    def _moved(self, old: GrpcClient, metadata: GrpcMetadata) -> GrpcClient:
        """The client at another address, with a link of its own. Calls from the old address have the old link, which is
        closed: they are never judged by the new address."""
        self.remove(old)
        client = self._new(metadata)
        client.is_fifo = old.is_fifo
        if old.settings is not None:
            self.told(client, old.settings)
        return client

    def _receiver(self, client: GrpcClient) -> Callable[[str, Command], None]:
        return lambda broker, command: self._pushed(client, broker, command)

    def told(self, client: GrpcClient, settings: pb.Settings) -> None:
        """Keep what a client says about itself, which is sound. Raises GrpcRefusal."""
        if self._clients.get(client.key) is client:  # otherwise it has left, or is at another address
            try:
                self._settings[client.key] = settings
            except TableFull as error:
                raise GrpcRefusal(pb.TOO_MANY_REQUESTS, str(error)) from None
        client.settings = settings

    def remove(self, client: GrpcClient) -> None:
        """End a client: brokers see its connection close."""
        if self._clients.get(client.key) is client:
            del self._clients[client.key]
            self._settings.pop(client.key, None)
            client.link.close()

    def _close_idle(self) -> None:
        self._scan = asyncio.get_running_loop().call_later(SCAN_S, self._close_idle)
        oldest = monotonic() - IDLE_S
        for client in self:
            if client.is_idle and client.used_at < oldest:
                self.remove(client)

    def close(self) -> None:
        if self._scan is not None:
            self._scan.cancel()
        for client in self:
            self.remove(client)
