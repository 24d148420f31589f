"""The port that slaves connect to (haListenPort), around ``mqspark.broker.replication.replicas``.

Each connection gets more of the log whenever it has room and the log has grown; ``turned`` says when to check. With
certificates a slave may speak TLS, with users it has to authenticate. Must not know what a record is.
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Callable
from typing import cast

from mqspark.base.logs import sparing
from mqspark.broker.replication.admission import Admission
from mqspark.broker.replication.replicas import Replica, Replicas
from mqspark.errors import ProtocolError
from mqspark.protocol.servers.replicaproof import MAGIC, MasterProof
from mqspark_server.net.descriptors import PROCESS
from mqspark_server.net.heldbytes import MIN_BYTES_PER_S
from mqspark_server.net.memory_budget import Pace
from mqspark_server.net.servertls import HANDSHAKE_BYTE, Certificates, TlsStream

log = sparing("mqspark.replication", lines=10)

MAX_SLAVES = 64

CHUNK_BYTES = 1024 * 1024
"""Bytes written to a connection at once; other work of the loop runs before the next."""

SCAN_S = 0.5
"""Interval of the checks for silent slaves and of heartbeats."""


UNREAD_S = 60.0
REPORT_S = 5.0
"""The time that a slave has for its first report before its connection may give way to another one."""
LINGER_S = 5.0
"""Time for written data to be sent when the server stops."""


class ReplicationServer:
    """All slaves of one broker. ``confirmed`` is called when one of them reported its position or disconnected."""

    def __init__(
        self,
        replicas: Replicas,
        confirmed: Callable[[], None],
        admission: Admission,
        tls: Certificates | None = None,
    ) -> None:
        self.replicas = replicas
        self.confirmed = confirmed
        self.admission = admission
        self.tls = tls
        self.loop = asyncio.get_running_loop()
        self._server: asyncio.Server | None = None
        self.refused_connections = 0
        """Refused at once, or closed before they had reported a position."""
        self._connections: dict[_SlaveConnection, None] = {}
        """Connections, oldest first."""
        self._scan: asyncio.TimerHandle | None = None

    async def listen(self, sock: socket.socket) -> None:
        self._server = await self.loop.create_server(lambda: _SlaveConnection(self), sock=sock)
        self._scan = self.loop.call_later(SCAN_S, self._check_connections)

    @property
    def waiting_bytes(self) -> int:
        """What is written and not sent yet, over all connections."""
        return sum(connection.waiting_bytes for connection in self._connections)

    def turned(self) -> None:
        """The log may have grown."""
        for connection in self._connections:
            connection.give()

    def _check_connections(self) -> None:
        self._scan = self.loop.call_later(SCAN_S, self._check_connections)
        for connection in list(self._connections):
            connection.replica.measure()
            if connection.is_revoked:
                connection.let_go("its user was changed")
            elif connection.replica.is_silent:
                connection.let_go("it is silent")
            elif connection.does_not_read(self.loop.time()):
                connection.let_go(f"it has not read its data for {UNREAD_S:.0f} s")
            else:
                connection.give()

    def joined(self, connection: _SlaveConnection) -> None:
        self._connections[connection] = None

    def make_room(self, host: str) -> bool:
        """Whether a connection could be closed to make room for one from ``host``.

        The address with the most connections gives way, whether they have reported a position or not, so that nobody
        can displace the slaves of others: its oldest connection that has not reported, or else its newest. Among
        addresses with equally many, those that have not reported give way: at once to their own address, after
        REPORT_S to others. Authenticated connections are never closed for others.
        """
        unproven = [connection for connection in self._connections if not connection.is_proven]
        unreported = [connection for connection in unproven if connection.replica.acked < 0]
        held = Counter(connection.host for connection in unproven)
        largest = max(held, key=held.__getitem__, default=host)
        if held[largest] > held[host] + 1:
            own = [connection for connection in unproven if connection.host == largest]
            victim = next((connection for connection in own if connection in unreported), own[-1])
        else:
            late_s = self.loop.time() - REPORT_S
            own = [connection for connection in unreported if connection.host == host]
            late = [connection for connection in unreported if connection.since_s <= late_s]
            if not own and not late:
                return False
            victim = (own or late)[0]
        victim.let_go("its address has the most connections, and other slaves are waiting")
        self.left(victim)
        return True

    def left(self, connection: _SlaveConnection) -> None:
        if connection in self._connections:  # unless it was refused
            del self._connections[connection]
            self.refused_connections += connection.replica.acked < 0
            PROCESS.give_back()
            self.replicas.disconnect(connection.replica)
            self.confirmed()

    def close(self, *, abruptly: bool = False) -> None:
        """Send what slaves accept at once; they request the rest again. ``abruptly``: send nothing, as when the
        process is killed."""
        if self._scan is not None:
            self._scan.cancel()
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.end(abruptly=abruptly)


class _SlaveConnection(asyncio.Protocol):
    replica: Replica

    def __init__(self, server: ReplicationServer) -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._address = self.host = ""
        self._proof: MasterProof | None = None
        self._is_admitted = self._is_judged = False
        self._tls: TlsStream | None = None
        self._is_first = True
        self._full = False
        self._more_due = False
        self._given_bytes = 0
        self._pace = Pace(MIN_BYTES_PER_S, UNREAD_S)
        self.since_s = server.loop.time()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        host, port = (transport.get_extra_info("peername") or ("", 0))[:2]
        self.host, self._address = host, f"{host}:{port}"
        admission = self._server.admission
        self._proof = admission.of_slave(host)
        self._is_admitted = self._proof is None
        sock = transport.get_extra_info("socket")
        problem = ""
        if self._proof is not None and admission.must_wait(host):
            problem = "too many failed proofs from its address"
        elif len(self._server.replicas) >= MAX_SLAVES and not self._server.make_room(host):
            problem = f"{MAX_SLAVES} slaves are connected"
        elif not PROCESS.take(sock.fileno() if sock is not None else 0):
            problem = "the remaining descriptors are reserved for files"
        if problem:
            log.warning("slave %s was refused: %s", self._address, problem)
            self._server.refused_connections += 1
            self._judge(problem)
            self._transport.abort()
            return
        if sock is not None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._transport.set_write_buffer_limits(high=CHUNK_BYTES)
        self.replica = self._server.replicas.connect(self._address)
        self._server.joined(self)
        log.info("slave %s connected", self._address)

    def data_received(self, data: bytes) -> None:
        if self._transport is None or self._transport.is_closing() or not data:
            return
        begins = self.replica.acked < 0
        try:
            data = self._decrypted(data)
            if not self._is_admitted:
                data = self._proved(data)
            elif begins and data.startswith(MAGIC):
                raise ProtocolError(
                    "it authenticates, but this broker has no users, or lists its address as unproven"
                )
            if not data:
                return
            self.replica.received(data)
        except ProtocolError as error:
            self.let_go(str(error))
            return
        if begins and self.replica.acked >= 0:
            log.info("slave %s has %d bytes of the log", self._address, self.replica.acked)
        self._server.confirmed()
        self.give()

    def _decrypted(self, data: bytes) -> bytes:
        """Raises ProtocolError."""
        tls, transport = self._server.tls, self._transport
        if self._is_first:
            self._is_first = False
            if tls is not None and data[0] == HANDSHAKE_BYTE:
                self._tls = TlsStream(tls.context())
            elif (
                tls is not None and tls.settings.required and not self._server.admission.is_listed(self.host)
            ):
                raise ProtocolError("it does not speak TLS (tls.server.mode=enforcing)")
        stream = self._tls
        if stream is None or transport is None:
            return data
        try:
            stream.receive(data)
            plain = stream.read() if stream.established or stream.shake_hands() else b""
        except EOFError:
            raise ProtocolError("it ended the TLS stream") from None
        finally:
            if reply := stream.to_send():  # send the TLS alert that says what is wrong
                transport.write(reply)
        return plain

    def _proved(self, data: bytes) -> bytes:
        """The bytes after the proof. Raises ProtocolError."""
        proof = self._proof
        if proof is None or not data:
            return b""
        try:
            reply, rest = proof.receive(data)
        except ProtocolError:
            self._server.admission.failed(self.host)
            raise
        self._write([reply])
        if proof.is_complete:
            self._is_admitted = True
            self._judge("")
        return rest

    def _judge(self, problem: str) -> None:
        """Audit, once, whether this slave may copy the log."""
        if self._proof is not None and not self._is_judged:
            self._is_judged = True
            self._server.admission.judged(self._proof.access_key, self._address, problem)

    @property
    def is_proven(self) -> bool:
        return self._proof is not None and self._is_admitted

    @property
    def is_revoked(self) -> bool:
        proof = self._proof
        return proof is not None and self.is_proven and self._server.admission.is_revoked(proof)

    def _write(self, out: list[bytes | memoryview]) -> None:
        transport = self._transport
        if transport is None:
            return
        if self._tls is not None:
            transport.write(self._tls.encrypt(out))
        else:
            transport.writelines(out)

    def connection_lost(self, error: Exception | None) -> None:
        log.info("slave %s disconnected (%s)", self._address, error or "closed")
        self._judge("it ended the connection before its proof")
        self._transport = None
        self._server.left(self)

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        self.give()

    def give(self) -> None:
        """Write the next part of the log, if there is one and the slave has read the previous one."""
        transport = self._transport
        if transport is None or transport.is_closing() or self._full or self._more_due:
            return
        try:
            out = self.replica.data(CHUNK_BYTES)
            if not out:
                return
            self._write(out)
        except (ProtocolError, OSError) as error:  # OSError: a segment cannot be mapped
            self.let_go(str(error))
            return
        size = sum(map(len, out))
        self._given_bytes += size
        if size >= CHUNK_BYTES:  # there may be more
            self._more_due = True
            self._server.loop.call_soon(self._continue_giving)

    def _continue_giving(self) -> None:
        self._more_due = False
        self.give()

    @property
    def waiting_bytes(self) -> int:
        """What is written and not sent yet."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def does_not_read(self, now: float) -> bool:
        """Whether it has read nothing, or almost nothing, for too long."""
        unread = self.waiting_bytes
        if not unread:
            self._pace.rest()
            return False
        return self._pace.is_too_slow(self._given_bytes - unread, now)

    def let_go(self, reason: str) -> None:
        if self._transport is not None and not self._transport.is_closing():
            log.warning("slave %s was disconnected: %s", self._address, reason)
            self._judge(reason)
            self._transport.abort()  # close() would wait for a slave that does not read

    def end(self, *, abruptly: bool) -> None:
        if self._transport is None:
            return
        if abruptly:
            self._transport.abort()
        else:
            self.give()
            self._transport.close()
            self._server.loop.call_later(LINGER_S, self._transport.abort)
