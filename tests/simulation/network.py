"""The network between simulated processes: TCP as programs see it.

Bytes of one direction of a connection arrive in order; everything else may take any time. A link (from one host to
another) can be cut: what is sent meanwhile arrives after the cut, as if it had been sent again. A killed process's
connections end after what it had sent; those of a machine that lost its power stay open until the other side sends
something and the machine is there again, which knows nothing of them.
"""

from __future__ import annotations

import asyncio
import errno
import os
import random
from collections import deque
from collections.abc import Callable
from typing import Any

from tests.simulation.scheduler import Process, World, here

KERNEL_BYTES = 256 * 1024
"""What a connection takes before a program's own buffer fills."""
SYN_S = 1.0
END = None


class FakeSocket:
    def __init__(self, network: Network, host: str, port: int) -> None:
        self._network, self._name = network, (host, port)

    def getsockname(self) -> tuple[str, int]:
        return self._name

    def close(self) -> None:
        self._network.unbind(self._name, self)


class _Server:
    def __init__(self, network: Network, sock: FakeSocket) -> None:
        self._network, self._sock = network, sock

    def close(self) -> None:
        self._network.stop_listening(self._sock)


class Network:
    def __init__(self, world: World) -> None:
        self.world = world
        self._cut: dict[tuple[str, str], int] = {}
        """From host to host, and how often it is cut."""
        self.slow: dict[str, float] = {}
        """Hosts whose bytes take so much longer, in seconds."""
        self._bound: dict[tuple[str, int], FakeSocket] = {}
        self._listening: dict[tuple[str, int], tuple[Process, Callable[[], asyncio.Protocol]]] = {}
        self._transports: list[Transport] = []
        self._connections = 0
        self.without_power: set[str] = set()
        self.lag_s = 0.0
        """How much longer the bytes of some connections take."""
        self.piece_bytes = 0
        """What is longer arrives in pieces of this length; 0: at once."""
        self.lag_port: int | None = None
        """Those to this port are meant; None: each second one."""
        self.tap: Callable[[Transport, bytes], None] | None = None
        """Called with everything that is written."""

    # --- links ---

    def cut(self, source: str, target: str) -> None:
        self._cut[source, target] = self._cut.get((source, target), 0) + 1

    def mend(self, source: str, target: str) -> None:
        left = self._cut.pop((source, target)) - 1
        if left:
            self._cut[source, target] = left
            return
        for transport in list(self._transports):
            if transport.host == source and transport.peer_host == target:
                transport.drain()

    def is_open(self, source: str, target: str) -> bool:
        return (source, target) not in self._cut

    def delay_s(self, chance: random.Random, source: str, target: str) -> float:
        delay_s = 0.0001 + 0.0019 * chance.random()
        if chance.random() < 0.01:
            delay_s += chance.uniform(0.01, 0.1)
        slow = self.slow
        return delay_s + slow.get(source, 0.0) + slow.get(target, 0.0) if slow else delay_s

    # --- listening ---

    def bind(self, host: str, port: int) -> FakeSocket:
        process = here()
        host = process.host
        if not port:
            port = next(port for port in range(20_000, 60_000) if (host, port) not in self._bound)
        if (host, port) in self._bound:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        sock = self._bound[host, port] = FakeSocket(self, host, port)
        return sock

    def unbind(self, name: tuple[str, int], sock: FakeSocket) -> None:
        if self._bound.get(name) is sock:
            del self._bound[name]
            self._listening.pop(name, None)

    def listen(self, process: Process, factory: Callable[[], asyncio.Protocol], sock: FakeSocket) -> _Server:
        self._listening[sock.getsockname()] = process, factory
        return _Server(self, sock)

    def stop_listening(self, sock: FakeSocket) -> None:
        sock.close()

    # --- connecting ---

    async def connect(
        self, process: Process, factory: Callable[[], asyncio.Protocol], host: str, port: int
    ) -> tuple[Transport, asyncio.Protocol]:
        self._connections += 1
        chance = random.Random(f"connection {self.world.seed} {self._connections}")
        number = self._connections
        done: asyncio.Future[int] = process.loop.create_future()
        self._knock(process, done, chance, number, host, port)
        await done
        protocol = factory()
        ours = Transport(self, process, protocol, host, (host, port), number, chance)
        self._transports.append(ours)
        found = self._listening.get((host, port))
        protocol.connection_made(ours)
        if found is None:  # it ended in this moment
            ours._lost(ConnectionResetError(errno.ECONNRESET, "reset"))
            return ours, protocol
        server, make = found
        other = make()
        name = (process.host, 30_000 + number % 30_000)
        theirs = Transport(self, server, other, process.host, name, number, chance)
        self._transports.append(theirs)
        ours.other, theirs.other = theirs, ours
        if number % 2 if self.lag_port is None else port == self.lag_port:
            ours.lag_s = theirs.lag_s = self.lag_s
        server.loop.call_soon(other.connection_made, theirs)
        return ours, protocol

    def _knock(
        self,
        process: Process,
        done: asyncio.Future[int],
        chance: random.Random,
        number: int,
        host: str,
        port: int,
    ) -> None:
        """One SYN, and the answer."""
        world = self.world

        def arrives() -> None:
            if done.done() or not process.alive:
                return
            open_both = self.is_open(process.host, host) and self.is_open(host, process.host)
            if not open_both or host in self.without_power:
                world.at(world.now_s + SYN_S, lambda: self._knock(process, done, chance, number, host, port))
                return

            def answered() -> None:
                if done.done():
                    return
                if (host, port) in self._listening:
                    done.set_result(number)
                else:
                    done.set_exception(ConnectionRefusedError(errno.ECONNREFUSED, "refused"))

            process.loop.call_later(self.delay_s(chance, host, process.host), answered)

        world.at(world.now_s + self.delay_s(chance, process.host, host), arrives)

    # --- the end of processes ---

    def killed(self, process: Process, *, power: bool) -> None:
        """``power``: the machine goes with it, and tells nobody."""
        for name, sock in list(self._bound.items()):
            if name[0] == process.host:
                self.unbind(name, sock)
        for transport in list(self._transports):
            if transport.process is process:
                if power:
                    transport.forget()
                else:
                    transport.send(END)
                transport.closed = True
                self._transports.remove(transport)

    def reset(self, a: str, b: str) -> None:
        """All connections between two hosts break."""
        for transport in list(self._transports):
            if {transport.host, transport.peer_host} == {a, b}:
                transport.reset()

    def gone(self, transport: Transport) -> None:
        if transport in self._transports:
            self._transports.remove(transport)


class Transport(asyncio.Transport):
    """One end. What it has sent and has not arrived is here."""

    def __init__(
        self,
        network: Network,
        process: Process,
        protocol: asyncio.Protocol,
        peer_host: str,
        peer: tuple[str, int],
        number: int,
        chance: random.Random,
    ) -> None:
        super().__init__()
        self.network = network
        self.process = process
        self.host = process.host
        self.peer_host = peer_host
        self.number = number
        self._peer = peer
        self._protocol = protocol
        self._chance = random.Random(chance.random())
        self.lag_s = 0.0
        self.other: Transport | None = None
        self._sent: deque[bytes | None] = deque()
        self._sent_bytes = 0
        self._received: deque[bytes | None] = deque()
        """Arrived while reading was paused."""
        self._arrival_s = 0.0
        self._due = 0
        """Arrivals that are scheduled, or were blocked by a cut."""
        self._reading = True
        self._high = 64 * 1024
        self._writing_paused = False
        self.closed = False
        self._is_lost = False

    # --- asyncio.Transport ---

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._peer if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = 64 * 1024 if high is None else high

    def get_write_buffer_size(self) -> int:
        return max(0, self._sent_bytes - KERNEL_BYTES)

    def write(self, data: Any) -> None:
        if self.closed or not self.process.alive or not data:
            return
        sent = bytes(data)
        if self.network.tap is not None:
            self.network.tap(self, sent)
        step = self.network.piece_bytes or len(sent)
        for at in range(0, len(sent), step):
            self.send(sent[at : at + step])
        if self.get_write_buffer_size() > self._high and not self._writing_paused:
            self._writing_paused = True
            self._protocol.pause_writing()

    def writelines(self, parts: Any) -> None:
        self.write(b"".join(parts))

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        if not self.closed and self.process.alive:
            self.closed = True
            self.send(END)
            self.process.loop.call_soon(self._lost, None)

    def abort(self) -> None:
        if not self.process.alive:
            return
        if not self.closed or not self._is_lost:
            self.closed = True
            self._sent.clear()
            self._sent_bytes = 0
            self.send(END)
            self.process.loop.call_soon(self._lost, None)

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        if not self._reading:
            self._reading = True
            self.process.loop.call_soon(self._read)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    # --- the wire ---

    def send(self, data: bytes | None) -> None:
        world, network = self.network.world, self.network
        self._sent.append(data)
        self._sent_bytes += len(data or b"")
        delay_s = network.delay_s(self._chance, self.host, self.peer_host) + self.lag_s
        self._arrival_s = max(self._arrival_s + 1e-6, world.now_s + delay_s)
        world.at(self._arrival_s, self._arrive)

    def _arrive(self) -> None:
        if self._sent and self.network.is_open(self.host, self.peer_host):
            self._pass_on()

    def drain(self) -> None:
        """The link is open again."""
        world = self.network.world
        for _ in range(len(self._sent)):
            delay_s = self.network.delay_s(self._chance, self.host, self.peer_host)
            self._arrival_s = max(self._arrival_s + 1e-6, world.now_s + delay_s)
            world.at(self._arrival_s, self._arrive)

    def _pass_on(self) -> None:
        data = self._sent.popleft()
        self._sent_bytes -= len(data or b"")
        other = self.other
        if other is None or other.closed or not other.process.alive:
            if self.peer_host not in self.network.without_power and not self.closed:
                self._reset_soon()
            return
        if self._writing_paused and not self.closed and self.get_write_buffer_size() <= self._high // 4:
            self.process.loop.call_soon(self._resume_writing)
        other.process.loop.run_now(other._take, data)

    def _resume_writing(self) -> None:
        if self._writing_paused and not self._is_lost:
            self._writing_paused = False
            self._protocol.resume_writing()

    def _take(self, data: bytes | None) -> None:
        self._received.append(data)
        if self._reading:
            self._read()

    def _read(self) -> None:
        while self._received and self._reading and not self.closed:
            data = self._received.popleft()
            if data is END:
                self.closed = True
                self._lost(None)
            else:
                self._protocol.data_received(data)

    def reset(self) -> None:
        """A reset arrives."""
        self.forget()
        if not self.closed and self.process.alive:
            self.closed = True
            error = ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
            self.process.loop.call_soon(self._lost, error)

    def _reset_soon(self) -> None:
        network = self.network
        if network.is_open(self.peer_host, self.host):
            delay_s = network.delay_s(self._chance, self.peer_host, self.host)
            network.world.at(network.world.now_s + delay_s, self.reset)

    def forget(self) -> None:
        self._sent.clear()
        self._sent_bytes = 0

    def _lost(self, error: Exception | None) -> None:
        if self._is_lost or not self.process.alive:
            return
        self._is_lost = self.closed = True
        if self.other is None or not self._sent:
            self.network.gone(self)
        self._protocol.connection_lost(error)
