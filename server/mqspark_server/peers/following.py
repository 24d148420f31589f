"""The connection of a slave to its master's HA port, around ``mqspark.broker.replication.follower``.

The master is the one that the name servers name, or haMasterAddress. It is asked first where its log begins and
ends; then its bytes are passed on, and positions reported, until the connection ends or is silent. Must not know
what a record is.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Coroutine
from typing import Any, cast

from mqspark.base.config import INT64_MAX
from mqspark.base.logs import Outages, sparing
from mqspark.broker.replication.acting import ActingMaster
from mqspark.broker.replication.admission import Admission
from mqspark.broker.replication.follower import Follower
from mqspark.broker.replication.loghealing import Healing
from mqspark.broker.replication.metadata import Metadata, Request, TableRound, log_bounds
from mqspark.broker.replication.tablenotices import is_table_notice
from mqspark.broker.replication.term import Term
from mqspark.client.remoting.dialing import opened
from mqspark.errors import InvalidMessage, MQError, NotNow, ProtocolError
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command
from mqspark.protocol.headers.cluster_headers import ExchangeHAInfoResponseHeader
from mqspark.protocol.servers.replicaproof import SlaveProof
from mqspark_server.net.outbound import REQUEST_ERRORS, REQUEST_TIMEOUT_S, Outbound
from mqspark_server.peers.registrar import Master, Registrar
from mqspark_server.process.tasks import end_all

log = sparing("mqspark.replication", lines=10)

FOLLOWING_RETRY_S = 1.0
"""Pause before the next attempt to connect. (RocketMQ: 5 s.)"""
CONTROLLED_RETRY_S = 0.2
"""In controller mode, where a new master acknowledges nothing before its slaves are there."""

REFUSED_S = 5.0
"""The longest pause while the master is refused because its log is another one: somebody has to act."""
REFUSED_SHARE = 0.25
"""The pause, in parts of the time for which it has been refused."""

METADATA_S = 3.0
"""Interval of the rounds in which topics, groups and progress are copied. (RocketMQ: 60 s.)"""

NOTICE_S = 0.1
"""The pause between a notice that a table has changed and the round that copies it."""

_MASTER = "master"
"""What is out when the master is away."""
_AWAY = (ConnectionError, TimeoutError)

FINISH_S = 2.0
"""The longest time that a clean stop waits for the master's progress."""
CONTROLLED_FINISH_S = 0.3
"""The same in controller mode, where this broker may stop to become the master because the old one is frozen."""

SCAN_S = 0.5
PROGRESS_S = 10.0
"""Interval of the log lines of a slave that catches up."""

MIN_BEHIND_BYTES = 16 << 20
"""A slave that lacks less writes no such lines."""


class Following:
    """``appended`` is called after bytes of the master's log were appended: they have to be written."""

    def __init__(
        self,
        follower: Follower,
        metadata: Metadata,
        registrar: Registrar,
        appended: Callable[[], None],
        admission: Admission,
        healing: Healing,
        term: Term | None = None,
        acting: ActingMaster | None = None,
    ) -> None:
        """``term``: in controller mode, who the master is. ``acting``: with enableSlaveActingMaster."""
        self._admission = admission
        self._term = term
        self._acting = acting
        self.follower = follower
        self._healing = healing
        self._heal_now = asyncio.Event()
        self._metadata = metadata
        self._registrar = registrar
        self._appended = appended
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        """Set when another broker has become the master."""
        self._remoting: Outbound | None = None
        self._connecting = asyncio.Lock()
        self._tables_wanted = asyncio.Event()
        """Set when the tables have to be copied at once."""
        self._notice: asyncio.TimerHandle | None = None
        """Set while a notice of the master waits."""
        self._connection: _MasterConnection | None = None
        self.problems = {"log": "no master is known yet"}
        """Why the log or the metadata of the master are not being copied."""
        self._outages = Outages(log)

    def start(self) -> None:
        self._healing.begin()
        self._task = asyncio.get_running_loop().create_task(self._run(), name="mqspark-following")

    def master_changed(self) -> None:
        """The controller has named another master. What is being asked of the old one, which may be silent, is asked of
        the new one."""
        self._changed.set()

    async def _run(self) -> None:
        while True:
            self._changed.clear()
            tasks = self._tasks()
            try:
                await self._changed.wait()
            finally:
                await end_all(*tasks)

    def _tasks(self) -> list[asyncio.Task[None]]:
        loop = asyncio.get_running_loop()
        retry_s = FOLLOWING_RETRY_S if self._term is None else CONTROLLED_RETRY_S

        def metadata_s() -> float:
            # In controller mode nobody counts this slave in before it has the tables.
            return METADATA_S if self._term is None or self._metadata.is_fresh else retry_s

        began_s = loop.time()

        def log_s() -> float:
            refused_s = min(self.follower.refused_ms / 1000, loop.time() - began_s)  # with this master
            return max(retry_s, min(REFUSED_S, refused_s * REFUSED_SHARE))

        return [
            loop.create_task(
                self._keep("log", self._follow, log_s, self._registrar.master_moved),
                name="mqspark-following-log",
            ),
            loop.create_task(
                self._keep("metadata", self.copy_metadata, metadata_s, self._tables_wanted),
                name="mqspark-following-metadata",
            ),
            loop.create_task(
                self._keep("damage", self._heal, lambda: self._healing.pause_s, self._heal_now),
                name="mqspark-following-damage",
            ),
        ]

    def turned(self) -> None:
        """The log may have been written or synced further."""
        if self._connection is not None:
            self._connection.turned()

    async def _keep(
        self,
        what: str,
        work: Callable[[], Coroutine[Any, Any, None]],
        pause_s: Callable[[], float],
        wanted: asyncio.Event,
    ) -> None:
        """Do the work again and again, with pauses, which ``wanted`` ends."""
        while True:
            wanted.clear()
            try:
                await work()
                self.problems.pop(what, None)
                self._outages.over(what, "the master's %s is copied again", what)
            except REQUEST_ERRORS as error:
                self._failed(what, str(error) or type(error).__name__, is_away=isinstance(error, _AWAY))
            except Exception as error:  # a bug: without retries the slave would silently fall behind
                log.exception("following the master failed unexpectedly")
                self._failed(what, repr(error))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s()):
                    await wanted.wait()

    def _failed(self, what: str, problem: str, *, is_away: bool = False) -> None:
        """A master that is away costs one line, whatever is asked of it."""
        outage, reason = (_MASTER, None) if is_away else (what, problem)
        text = "the master's %s is not being copied: %s; it is tried again"
        self._outages.failed(outage, reason, text, what, problem)
        self.problems[what] = problem
        if what == "log" and self._term is None:
            self._registrar.seek_master()

    async def copy_metadata(self) -> None:
        """Copy the master's tables once, or the progress of a slave that acts as the master."""
        acting = None if self._acting is None else self._acting.stand_in
        if acting is not None:
            await self._run_round(self._metadata.progress(), acting)
        elif self._master().address:  # else ``_follow`` says so
            await self._run_round(self._metadata.read(), self._master().address)

    async def _heal(self) -> None:
        """Compare the log with the master's once, and heal what is damaged here or there."""
        address = self._master().address
        if not address or (self._connection is None and not self._healing.has_work):
            return
        try:
            await self._run_round(self._healing.round(), address)
        except REQUEST_ERRORS:
            self._healing.failed()
            raise

    async def _run_round(self, requests: TableRound[None], address: str) -> None:
        with contextlib.suppress(StopIteration):
            request = next(requests)
            while True:
                if request is None:
                    await asyncio.sleep(0)
                    request = next(requests)
                else:
                    request = requests.send(await self._ask(request, address))
        self.turned()

    async def _ask(self, request: Request, address: str) -> Command:
        async with self._connecting:
            connection = self._remoting
            if connection is None or not connection.alive or connection.address != address:
                if connection is not None:
                    connection.close()
                connection = self._remoting = await self._registrar.dialing.connect(
                    address, timeout_s=REQUEST_TIMEOUT_S, on_request=self._noticed
                )
        try:
            return await connection.request(
                request.code, request.ext, request.body, timeout_s=REQUEST_TIMEOUT_S
            )
        except MQError:
            connection.close()
            raise

    async def connect(self) -> Outbound | None:
        """A connection of one's own to the master; None while its log or its tables are not being copied. Raises
        OSError, ValueError, MQError."""
        address = self._master().address
        if self.problems or not address or not self._metadata.is_fresh or self._connection is None:
            return None
        return await self._registrar.dialing.connect(address)

    def _noticed(self, command: Command) -> None:
        """The master has changed a table: copy soon, with whatever else it changes meanwhile."""
        if is_table_notice(command) and self._notice is None:
            self._notice = asyncio.get_running_loop().call_later(NOTICE_S, self._copy_soon)

    def _copy_soon(self) -> None:
        self._notice = None
        self._tables_wanted.set()

    def _master(self) -> Master:
        """Where the master is; in controller mode as the controller says, and then without its HA address."""
        term = self._term
        if term is not None:
            return Master("", term.master_address)
        announced = None if self._acting is None else self._acting.announced
        return self._registrar.master if announced is None else Master(*announced)

    async def _controlled_master(self, address: str) -> Master:
        answer = await self._ask(Request(RequestCode.EXCHANGE_BROKER_HA_INFO, {}), address)
        if answer.code != ResponseCode.SUCCESS:
            raise ProtocolError(f"{address} does not say where its log is: code {answer.code}")
        return Master(answer.header(ExchangeHAInfoResponseHeader).master_ha_address or "", address)

    async def _follow(self) -> None:
        """Copy from one connection until it ends."""
        if self._acting is not None and not self._acting.may_follow:
            raise NotNow("this slave acts as the master")
        master = self._master()
        if self._term is not None and master.address:
            master = await self._controlled_master(master.address)
        address = self.follower.ha_master_address or master.ha_address
        if not address:
            raise ConnectionError(
                "the name servers know no master of this broker"
                if self._term is None
                else "there is no master now, as far as the controller has said"
            )
        begin, end = 0, INT64_MAX
        if master.address:
            answer = await self._ask(Request(RequestCode.GET_BROKER_RUNTIME_INFO, {}), master.address)
            begin, end = log_bounds(answer)
        name, _, port = address.rpartition(":")
        host = name.strip("[]")
        proof = self._admission.of_master(host)
        tls = None if self._admission.is_listed(host) else self._registrar.dialing.tls
        first = self.follower.connect(address, begin, end)
        self._metadata.begin()
        if not self._metadata.is_fresh:
            self._tables_wanted.set()
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                connection = await opened(lambda: _MasterConnection(self, first, proof), host, int(port), tls)
        except TimeoutError:
            self.follower.disconnected()
            raise ConnectionError(f"{address} does not answer") from None
        except BaseException:
            self.follower.disconnected()
            raise
        self._connection = connection
        log.info("copying the log of %s from %d on", address, self.follower.begin)
        self.problems.pop("log", None)
        try:
            await self._watch(connection, master)
        finally:
            self._connection = None
            connection.abort()
            self.follower.disconnected()
        raise (ConnectionError if connection.is_away else ProtocolError)(f"{address}: {connection.reason}")

    def followed(self) -> None:
        """The master has sent something that could be taken."""
        self._outages.over(_MASTER, "the master is there again")
        self._outages.over("log", "the master's log is copied again")

    async def _watch(self, connection: _MasterConnection, master: Master) -> None:
        told_s = asyncio.get_running_loop().time()
        while not connection.ended.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SCAN_S):
                    await connection.ended.wait()
            follower, now_s = self.follower, asyncio.get_running_loop().time()
            follower.measure()
            if follower.is_silent:
                connection.end("it is silent", is_away=True)
            connection.retry()
            connection.turned()
            if self._term is not None and self._term.master_address != master.address:
                connection.end("another broker is the master now")
            if follower.behind_bytes > MIN_BEHIND_BYTES and now_s - told_s > PROGRESS_S:
                told_s = now_s
                log.info(
                    "%d bytes of the master's log are still to be copied, at %d bytes/s",
                    follower.behind_bytes,
                    follower.bytes_per_s,
                )

    def appended(self) -> None:
        self._appended()

    def doubts(self) -> None:
        """What the master sends next is no valid record: it is asked to look there."""
        self._healing.doubt(self.follower.next_position)
        self._heal_now.set()

    def apply_tables(self) -> None:
        """Take over the progress that was read, if the log has come far enough."""
        self._metadata.apply()

    def as_dict(self) -> dict[str, object]:
        """The state for the health report."""
        follower = self.follower
        return {
            "master": follower.address,
            "behindBytes": follower.behind_bytes,
            "bytesPerSecond": follower.bytes_per_s,
            "problems": dict(self.problems),
            "damage": self._healing.as_dict(),
            **({} if self._acting is None else self._acting.as_dict()),
        }

    async def finish(self) -> None:
        """Copy the master's progress a last time, if it is there, and stop."""
        finish_s = FINISH_S if self._term is None else CONTROLLED_FINISH_S
        if not self.problems:
            with contextlib.suppress(*REQUEST_ERRORS):
                # It is no worse than 3 s ago.
                async with asyncio.timeout(finish_s):
                    await self.copy_metadata()
        await self.stop()

    async def stop(self) -> None:
        if self._notice is not None:
            self._notice.cancel()
        await end_all(self._task)
        if self._remoting is not None:
            self._remoting.close()


class _MasterConnection(asyncio.Protocol):
    def __init__(self, owner: Following, first_report: bytes, proof: SlaveProof | None) -> None:
        """``proof``: what comes before the first report, or None."""
        self._owner = owner
        self._follower = owner.follower
        self._first_report = first_report
        self._proof = proof
        self._transport: asyncio.Transport | None = None
        self._paused = False
        self._waits = False
        self.ended = asyncio.Event()
        self.reason = "the master closed the connection"
        self.is_away = proof is None
        """Whether this is the reason, and no refusal of either side."""
        if proof is not None:
            self.reason += " before it proved who it is (haUnprovenPeers lists masters of RocketMQ)"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._transport.write(self._first_report if self._proof is None else self._proof.hello)

    def data_received(self, data: bytes) -> None:
        if self.ended.is_set():
            return
        if self._proof is not None:
            data = self._proved(self._proof, data)
        if data:
            self._take(lambda: self._follower.received(data))

    def _proved(self, proof: SlaveProof, data: bytes) -> bytes:
        """What lies behind the proof."""
        transport = self._transport
        if transport is None:
            return b""
        try:
            reply, rest = proof.receive(data)
        except ProtocolError as error:
            self.end(str(error))
            return b""
        if reply:
            transport.write(reply + self._first_report)
        if proof.is_complete:
            self._proof = None
            self.reason, self.is_away = "the master closed the connection", True
        return rest

    def _take(self, work: Callable[[], None]) -> None:
        try:
            work()
            self._waits = False
        except NotNow as error:
            if not self._waits:
                log.warning("copying the master's log waits: %s", error)
            self._waits = True
        except (MQError, OSError) as error:
            if isinstance(error, InvalidMessage):
                self._owner.doubts()
            self.end(str(error))
            return
        self._owner.followed()
        self._owner.appended()
        self._pause_or_resume()

    def turned(self) -> None:
        transport = self._transport
        if transport is None or self.ended.is_set():
            return
        self._owner.apply_tables()
        if self._proof is None and (report := self._follower.report()):
            transport.write(report)
        self._pause_or_resume()

    def retry(self) -> None:
        """Try again to append what had to wait."""
        if self._waits and not self.ended.is_set():
            self._take(self._follower.take_rest)

    def _pause_or_resume(self) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        pause = self._waits or not self._follower.has_room
        if pause and not self._paused:
            transport.pause_reading()
        elif self._paused and not pause:
            transport.resume_reading()
        self._paused = pause

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if error is not None and not self.ended.is_set():
            self.reason = str(error)
        self.ended.set()

    def end(self, reason: str, *, is_away: bool = False) -> None:
        if not self.ended.is_set():
            self.reason, self.is_away = reason, is_away
            self.ended.set()
            self.abort()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
