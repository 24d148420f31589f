"""Registers one broker at all its name servers: as soon as it is ready, when its topics change, and every
registerNameServerPeriod.

Each name server has a task and a connection of its own, so that a dead one delays no other; it is retried after
REGISTRAR_RETRY_S. (RocketMQ's broker registers after 10 s.) Must not know how a registration is built.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import time
from collections.abc import Callable
from typing import NamedTuple

from mqspark.base.config import parse_addresses
from mqspark.base.logs import sparing
from mqspark.broker.broker import BrokerCore
from mqspark.broker.registration import Registration
from mqspark.errors import ClientError, ProtocolError
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command
from mqspark.protocol.headers.header import to_ext
from mqspark.protocol.zones import zone_fields
from mqspark_server.net.outbound import PLAIN, Dialing, Outbound
from mqspark_server.process.tasks import end_all

log = sparing("mqspark.registrar")

REGISTRAR_RETRY_S = 1.0
FIRST_TIMEOUT_S = 3.0
UNREGISTER_TIMEOUT_S = 1.0
PAUSE_FACTOR = 9
"""Registering takes at most a tenth of the loop's time, however often topics change."""
MAX_PAUSE_S = 5.0
SHORTEST_PERIOD_MS, LONGEST_PERIOD_MS = 10_000, 60_000
"""As in BrokerController: a broker is taken for dead after two minutes of silence."""

_FAILURES = (OSError, ValueError, ClientError, ProtocolError)


def period_s(asked_ms: int) -> float:
    return max(SHORTEST_PERIOD_MS, min(asked_ms, LONGEST_PERIOD_MS)) / 1000


class _NameServer:
    def __init__(self, address: str, dialing: Dialing) -> None:
        self.address = address
        self._dialing = dialing
        self.connection: Outbound | None = None
        self.known = False
        self.due = asyncio.Event()
        self.failing = False
        self._connected_s = -math.inf
        self.pause_s = 0.0
        """Pause before the next registration, derived from the cost of the last one."""

    async def connected(self) -> Outbound:
        if self.connection is None or not self.connection.alive:
            self._connected_s = asyncio.get_running_loop().time()
            self.connection = await self._dialing.connect(self.address, self._connection_lost)
        return self.connection

    def _connection_lost(self) -> None:
        # A name server forgets the brokers of a closed connection, so register again soon.
        self.known = False
        self.due.set()

    def rest_s(self) -> float:
        """The pause before the next registration. Connections may end as soon as they are made, as behind a proxy whose
        server is away: the next one is made REGISTRAR_RETRY_S after the last."""
        if self.connection is not None and self.connection.alive:
            return self.pause_s
        return max(self.pause_s, self._connected_s + REGISTRAR_RETRY_S - asyncio.get_running_loop().time())


class Master(NamedTuple):
    """The master of this broker's name, as a name server knows it; empty texts if there is none."""

    ha_address: str = ""
    address: str = ""


class Registrar:
    """``progressed`` is called after a successful registration: the broker may have answers to write."""

    def __init__(self, broker: BrokerCore, progressed: Callable[[], None], dialing: Dialing = PLAIN) -> None:
        self.dialing = dialing
        self._broker = broker
        self._progressed = progressed
        self._servers = [
            _NameServer(address, dialing)
            for address in parse_addresses(broker.config.namesrv_addr or "", key="namesrvAddr")
        ]
        self._tasks: list[asyncio.Task[None]] = []
        self._zone = zone_fields(os.environ)
        self.master = Master()
        """The last master that a name server reported."""
        self.master_moved = asyncio.Event()
        """Set when that is another one than before."""
        self._seeks_master = False

    async def start(self, timeout_s: float = FIRST_TIMEOUT_S) -> None:
        """Register everywhere once, waiting for a bounded time; servers that do not answer are retried in the
        background."""
        if not self._servers:
            log.warning("no name server is configured (namesrvAddr): clients cannot find this broker")
            return
        self._broker.publication.due = False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await asyncio.gather(*(self._register(server, timeout_s) for server in self._servers))
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._keep_registered(server), name=f"mqspark-registrar-{server.address}")
            for server in self._servers
        ]

    def after_turn(self) -> None:
        """Called once a turn: topics may have changed."""
        if self._broker.publication.due:
            self._broker.publication.due = False
            for server in self._servers:
                server.due.set()

    def seek_master(self) -> None:
        """This slave has no connection to a master. A name server says where it is in its answer to a registration, and
        the next one may be a minute away: register again now."""
        self._seeks_master = True
        for server in self._servers:
            server.due.set()

    @property
    def addresses(self) -> list[str]:
        return [server.address for server in self._servers]

    @property
    def known_to(self) -> list[str]:
        return [server.address for server in self._servers if server.known]

    async def _keep_registered(self, server: _NameServer) -> None:
        while True:
            pause_s = period_s(self._broker.config.register_name_server_period)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s if server.known else REGISTRAR_RETRY_S):
                    await server.due.wait()
            await asyncio.sleep(server.rest_s())
            server.due.clear()
            try:
                await self._register(server, self._broker.config.register_broker_timeout_mills / 1000)
            except Exception as error:  # a bug: without retries clients could never find the broker
                if not server.failing:
                    log.exception("registering with name server %s", server.address)
                self._failed(server, repr(error))

    async def _register(self, server: _NameServer, timeout_s: float) -> None:
        try:
            connection = await server.connected()
            if await self._is_current(server, connection, timeout_s):
                return
            began, cost_s = time.perf_counter(), 0.0
            for registration in self._broker.publication.requests():
                cost_s += time.perf_counter() - began
                if registration is None:
                    await asyncio.sleep(0)
                else:
                    answer = await connection.request(
                        RequestCode.REGISTER_BROKER,
                        {**to_ext(registration.header), **self._zone},
                        registration.body,
                        timeout_s=timeout_s,
                    )
                    if answer.code != ResponseCode.SUCCESS:
                        self._failed(server, f"response code {answer.code}: {answer.remark}")
                        return
                    self._registered(server, registration, answer)
                began = time.perf_counter()
        except _FAILURES as error:
            self._failed(server, str(error))
            return
        server.pause_s = min(MAX_PAUSE_S, cost_s * PAUSE_FACTOR)
        self._progressed()

    def _registered(self, server: _NameServer, registration: Registration, answer: Command) -> None:
        if answer.ext.get("masterAddr") and answer.ext.get("haServerAddr"):
            found = Master(answer.ext["haServerAddr"], answer.ext["masterAddr"])
            if found != self.master:
                self.master_moved.set()
            self.master, self._seeks_master = found, False
        if registration.is_last:
            if not server.known:
                log.info("registered with name server %s", server.address)
            server.known, server.failing = True, False
        try:
            self._broker.publication.accepted(registration, answer.body)
        except ProtocolError as error:
            log.warning("name server %s sent a malformed table of ordered topics: %s", server.address, error)

    async def _is_current(self, server: _NameServer, connection: Outbound, timeout_s: float) -> bool:
        """Whether this name server has the current table; asked only when forceRegister is off, and not while a master
        is sought: the answer to that question does not name it."""
        if self._broker.config.force_register or not server.known or self._seeks_master:
            return False
        header, body = self._broker.publication.version_query()
        answer = await connection.request(RequestCode.QUERY_DATA_VERSION, header, body, timeout_s=timeout_s)
        return answer.code == ResponseCode.SUCCESS and answer.ext.get("changed") == "false"

    def _failed(self, server: _NameServer, reason: str) -> None:
        server.known = False
        if not server.failing:  # once per outage
            log.warning(
                "name server %s: %s; trying again every %.0f s", server.address, reason, REGISTRAR_RETRY_S
            )
        server.failing = True

    async def abandon(self) -> None:
        """Stop without unregistering; name servers notice the closed connection."""
        await end_all(*self._tasks)
        for server in self._servers:
            if server.connection is not None:
                server.connection.close()

    async def stop(self, timeout_s: float = UNREGISTER_TIMEOUT_S) -> None:
        """Unregister at the servers that know the broker, waiting for each only briefly."""
        await end_all(*self._tasks)
        await asyncio.gather(*(self._unregister(server, timeout_s) for server in self._servers))

    async def _unregister(self, server: _NameServer, timeout_s: float) -> None:
        connection = server.connection
        if connection is None:
            return
        if connection.alive and server.known:
            try:
                await connection.request(
                    RequestCode.UNREGISTER_BROKER,
                    self._broker.publication.withdrawal(),
                    timeout_s=timeout_s,
                )
            except _FAILURES as error:
                log.warning("could not unregister from %s: %s", server.address, error)
        connection.close()
