"""What every process has in common: a life from start to end, a list of what has been started, and remoting by the
settings.

Must not know which parts a process has.
"""

from __future__ import annotations

import inspect
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from mqspark.auth.config import AuthConfig
from mqspark.base.clock import Clock
from mqspark.protocol.extending import Extensions, TappedSession
from mqspark.protocol.session import Core, Session, Take
from mqspark_server.net.lateness import Overload
from mqspark_server.net.outbound import Dialing
from mqspark_server.net.remotingserver import RemotingServer
from mqspark_server.net.servertls import Certificates, client_context
from mqspark_server.process.diskwork import Worker
from mqspark_server.process.phases import Phase, ProcessLifecycle
from mqspark_server.settings.serverconfig import ServerConfig

if TYPE_CHECKING:  # imported where users have to log in
    from mqspark.auth.authority import Authority

log = logging.getLogger("mqspark.app")

End = Callable[[], Awaitable[None] | None]


class Ends:
    """How each started part ends: when the process is stopped, and when it is killed. They run in reverse order, and
    all of them run even if some fail."""

    def __init__(self) -> None:
        self._stop = AsyncExitStack()
        self._kill = AsyncExitStack()

    def on_stop(self, end: End) -> None:
        self._stop.push_async_callback(_run, end)

    def on_kill(self, end: End) -> None:
        """An end that frees threads, ports and files, and answers, saves and syncs nothing."""
        self._kill.push_async_callback(_run, end)

    def always(self, end: End) -> None:
        self.on_stop(end)
        self.on_kill(end)

    async def stop(self) -> None:
        """Raises what the last failing end raised."""
        self._kill.pop_all()
        await self._stop.aclose()

    async def kill(self) -> None:
        self._stop.pop_all()
        await self._kill.aclose()


async def _run(end: End) -> None:
    result = end()
    if inspect.isawaitable(result):
        await result


class ProcessApp(ABC):
    """A process from its start to its end. A kind of process starts its parts in ``_start`` and notes in ``_ends`` how
    each of them ends."""

    def __init__(self, clock: Clock, unused: Sequence[str]) -> None:
        """``unused``: the settings that change nothing here."""
        self.clock = clock
        self.lifecycle = ProcessLifecycle(clock)
        self.address = ""
        """``host:port`` for clients, once started."""
        self._unused = unused
        self._ends = Ends()

    async def start(self) -> None:
        """Raises OSError, StoreError or ConfigError; nothing is left behind then."""
        if self._unused:
            log.info("settings without an effect here: %s", ", ".join(self._unused))
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise

    @abstractmethod
    async def _start(self) -> None: ...

    async def _open_authority(
        self, config: AuthConfig, store: Path | None, worker: Worker, extensions: Extensions | None
    ) -> Authority | None:
        """Who may do what; None if everybody may do everything. ``store``: as of ``auth_directory``. Raises
        ConfigError, StoreCorrupt, OSError."""
        if not config.authentication_enabled:
            return None
        from mqspark_server.authfiles import auth_directory, open_authority

        directory = auth_directory(config, store)
        authority, close = await worker.run(partial(open_authority, config, directory, self.clock))
        self._ends.always(close)
        if extensions is not None:
            authority.provider = extensions.provider
        return authority

    async def stop(self) -> None:
        """May be called at any time and more than once.

        Raises StoreReadOnly at the end if a store had failed: its ``abort`` file stays, and the next start
        recovers.
        """
        await self._end(self._ends.stop)

    async def _end(self, end: Callable[[], Awaitable[None]]) -> None:
        if self.lifecycle.phase >= Phase.STOPPING:
            return
        self.lifecycle.advance(Phase.STOPPING)
        try:
            await end()
        finally:
            self.lifecycle.advance(Phase.STOPPED)


def dialing(server: ServerConfig, auth: AuthConfig) -> Dialing:
    """Raises ConfigError when a file of the certificate cannot be used."""
    tls = server.client_tls
    return Dialing(None if tls is None else client_context(tls), auth.inner_signer)


def remoting_server(
    name: str,
    core: Core,
    outbox: list[Session],
    config: ServerConfig,
    after_turn: Callable[[], None],
    overload: Overload | None = None,
    extensions: Extensions | None = None,
    take: Take | None = None,
    turn_taken: Callable[[], None] | None = None,
    after_taken: Callable[[], None] | None = None,
) -> RemotingServer:
    return RemotingServer(
        core,
        outbox,
        name=name,
        limits=config.connection_limits,
        after_turn=after_turn,
        turn_taken=turn_taken,
        after_taken=after_taken,
        overload=overload,
        tls=None if config.server_tls is None else Certificates(config.server_tls),
        session_type=Session if extensions is None else TappedSession,
        take=take,
    )
