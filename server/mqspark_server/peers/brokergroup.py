"""The brokers of one name, for a broker with enableSlaveActingMaster: every second it sends a heartbeat to all name
servers and asks them which brokers are alive. A master that comes back asks those for their progress.

Must not know who acts as the master, nor what progress is.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial

from mqspark.base.logs import Outages, sparing
from mqspark.broker.broker import BrokerCore
from mqspark.broker.replication.acting import ActingMaster
from mqspark.broker.replication.preonline import PreOnline, Talk
from mqspark.client.remoting.nameservers import NameServers
from mqspark.errors import NotNow, ProtocolError
from mqspark.message import MASTER_ID
from mqspark.protocol.bodies.body import decode_body
from mqspark.protocol.bodies.topic_bodies import GetBrokerMemberGroupResponseBody
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.headers.cluster_headers import (
    BrokerHeartbeatRequestHeader,
    GetBrokerMemberGroupRequestHeader,
)
from mqspark_server.net.outbound import REQUEST_ERRORS, REQUEST_TIMEOUT_S, Outbound
from mqspark_server.peers.registrar import Registrar
from mqspark_server.process.tasks import end_all

log = sparing("mqspark.brokergroup", lines=10)

GROUP_RETRY_S = 1.0
HANDSHAKE_S = 10.0
"""The longest wait for a slave to follow after its master announced itself. The slave first finishes its work."""
PATIENCE_S = 40.0
"""How long a master that comes back tries to copy the progress of its slaves. Then it goes online without it."""
MAX_MEMBERS = 100
GROUP_LOOK_S = 0.05


class BrokerGroup:
    def __init__(self, core: BrokerCore, acting: ActingMaster, registrar: Registrar) -> None:
        self._core = core
        self._acting = acting
        self._registrar = registrar
        self._connections: dict[str, Outbound] = {}
        self._outages = Outages(log)
        self._due = [asyncio.Event() for _ in registrar.addresses]
        self._tasks: list[asyncio.Task[None]] = []
        acting.ask = self._ask_name_servers_soon

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._keep_in_touch(server, due), name=f"mqspark-broker-group-{server}")
            for server, due in zip(self._registrar.addresses, self._due, strict=True)
        ]

    def _ask_name_servers_soon(self) -> None:
        for due in self._due:
            due.set()

    async def _keep_in_touch(self, server: str, due: asyncio.Event) -> None:
        config = self._core.config
        loop = asyncio.get_running_loop()
        beat_s = 0.0
        while True:
            due.clear()
            try:
                if loop.time() >= beat_s and server in self._registrar.known_to:
                    beat_s = loop.time() + config.broker_heartbeat_interval / 1000
                    header = BrokerHeartbeatRequestHeader(
                        cluster_name=config.broker_cluster_name,
                        broker_addr=config.address,
                        broker_name=config.broker_name,
                    )
                    (await self._connected(server)).tell(RequestCode.BROKER_HEARTBEAT, header, b"")
                self._acting.members.heard(server, await self._members(server))
                self._outages.over(server, "name server %s says again which brokers are alive", server)
            except REQUEST_ERRORS as error:
                what = "name server %s does not answer which brokers are alive: %s"
                self._outages.failed(server, None, what, server, error)
            except Exception:  # a bug: without heartbeats the others would consider this broker dead
                log.exception("asking name server %s failed unexpectedly", server)
            with contextlib.suppress(TimeoutError):
                pause_ms = min(config.broker_heartbeat_interval, config.sync_broker_member_group_period)
                async with asyncio.timeout(pause_ms / 1000):
                    await due.wait()

    async def _connected(self, address: str) -> Outbound:
        connection = self._connections.get(address)
        if connection is None or not connection.alive:
            connection = await self._registrar.dialing.connect(address, timeout_s=REQUEST_TIMEOUT_S)
            self._connections[address] = connection
        return connection

    async def _members(self, server: str) -> dict[int, str]:
        """Broker id → address. Raises OSError, ValueError, MQError."""
        config = self._core.config
        header = GetBrokerMemberGroupRequestHeader(
            cluster_name=config.broker_cluster_name, broker_name=config.broker_name
        )
        connection = await self._connected(server)
        answer = await connection.request(
            RequestCode.GET_BROKER_MEMBER_GROUP, header, timeout_s=REQUEST_TIMEOUT_S
        )
        if answer.code != ResponseCode.SUCCESS:
            raise ProtocolError(f"response code {answer.code}: {(answer.remark or '')[:200]}")
        group = decode_body(GetBrokerMemberGroupResponseBody, answer.body).broker_member_group
        members = {} if group is None else group.broker_addrs
        if len(members) > MAX_MEMBERS:
            raise ProtocolError(f"a broker name with {len(members)} brokers")
        return members

    # --- a master that comes back -----------------------------------------------------------------------------

    async def come_back(self, pre_online: PreOnline) -> None:
        """Copy the progress of the slaves, or give up after PATIENCE_S."""
        deadline_s = asyncio.get_running_loop().time() + PATIENCE_S
        while True:
            try:
                await self._copy_progress_of_slaves(pre_online)
                self._outages.over("online", "this master has the progress of its slaves, and goes online")
                return
            except REQUEST_ERRORS as error:
                problem = str(error) or type(error).__name__
            if asyncio.get_running_loop().time() > deadline_s:
                log.error(
                    "this master goes online without the progress of its slaves, and may deliver messages twice: %s",
                    problem,
                )
                return
            self._outages.failed("online", None, "this master is not online yet: %s; trying again", problem)
            await asyncio.sleep(GROUP_RETRY_S)

    async def _copy_progress_of_slaves(self, pre_online: PreOnline) -> None:
        slaves = await self._slaves()
        for number, address in enumerate(slaves, 1):
            await self._send_requests(address, pre_online.announce())
            await _wait_until(
                partial(self._is_followed_by, number),
                f"the slave at {address} does not follow",
            )
            await _wait_until(lambda: not self._core.timers.is_saving, "the timer files are not saved")
            await self._send_requests(address, pre_online.progress())
            log.info("this master has copied the progress of its slave at %s", address)

    def _is_followed_by(self, count: int) -> bool:
        return self._core.role.replicas.following >= count

    async def _slaves(self) -> list[str]:
        """The slaves that any name server knows. Raises if none answers."""
        found: dict[int, str] = {}
        for members in await NameServers(self._registrar.addresses).all_answers(self._members):
            found |= members
        own = self._core.config.address
        return [address for key, address in sorted(found.items()) if key != MASTER_ID and address != own]

    async def _send_requests(self, address: str, talk: Talk) -> None:
        connection = await self._connected(address)
        with contextlib.suppress(StopIteration):
            request = next(talk)
            while True:
                if request is None:
                    await asyncio.sleep(0)
                    request = next(talk)
                else:
                    request = talk.send(
                        await connection.request(request.code, request.header, timeout_s=REQUEST_TIMEOUT_S)
                    )

    async def stop(self) -> None:
        await end_all(*self._tasks)
        for connection in self._connections.values():
            connection.close()


async def _wait_until(is_so: Callable[[], bool], problem: str) -> None:
    """Raises NotNow after HANDSHAKE_S."""
    deadline_s = asyncio.get_running_loop().time() + HANDSHAKE_S
    while not is_so():
        if asyncio.get_running_loop().time() > deadline_s:
            raise NotNow(problem)
        await asyncio.sleep(GROUP_LOOK_S)
