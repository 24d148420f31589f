"""The addresses of a process: listening sockets, bound before anything else starts, and its IP address in records.

A port in use is an error before a store is opened, and no client waits in a backlog meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import Iterator
from dataclasses import dataclass

from mqspark.errors import ConfigError

PORT_PAIR_ATTEMPTS = 64
FAST_PORT_DISTANCE = 2
"""The fast port is listenPort - 2 (NettyRemotingServer of the fast listener)."""


def bind_socket(host: str, port: int) -> socket.socket:
    """A socket that is bound and does not listen yet."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setblocking(False)
        sock.bind((host, port))
    except BaseException:
        sock.close()
        raise
    return sock


def cannot_listen(what: str, host: str, port: int, error: OSError) -> OSError:
    return OSError(error.errno, f"{what} cannot listen on {host}:{port}: {error.strerror}")


@contextlib.contextmanager
def listening(what: str, sock: socket.socket) -> Iterator[None]:
    """Around the call that makes a bound socket listen: its OSError names ``what`` and the address. Two processes may
    bind the same port; only one of them can listen."""
    try:
        yield
    except OSError as error:
        host, port = sock.getsockname()[:2]
        raise cannot_listen(what, host, port, error) from None


def bind(what: str, host: str, port: int) -> socket.socket:
    """``bind_socket`` whose OSError names ``what`` and the address."""
    try:
        return bind_socket(host, port)
    except OSError as error:
        raise cannot_listen(what, host, port, error) from None


def bind_pair(host: str, port: int) -> tuple[socket.socket, socket.socket | None]:
    """The broker's port and its fast port two below.

    Port 0 selects a free pair. With a fixed port, the second socket is None if the fast port is in use: few clients use
    it, and none by default.
    """
    if port:
        main = bind_socket(host, port)
        try:
            return main, bind_socket(host, port - FAST_PORT_DISTANCE)
        except (OSError, OverflowError):
            return main, None
    kept: list[socket.socket] = []  # held until the end, so that the kernel proposes another port each time
    try:
        for _ in range(PORT_PAIR_ATTEMPTS):
            main = bind_socket(host, 0)
            try:
                return main, bind_socket(host, main.getsockname()[1] - FAST_PORT_DISTANCE)
            except OSError:
                kept.append(main)
        return kept.pop(), None
    finally:
        for sock in kept:
            sock.close()


@dataclass(frozen=True, slots=True)
class BrokerSockets:
    """The sockets of one broker for remoting and for slaves."""

    main: socket.socket
    fast: socket.socket | None
    slaves: socket.socket

    @classmethod
    def bind(cls, host: str, port: int, slave_port: int, *, with_fast: bool) -> BrokerSockets:
        """``port`` 0: any. Slaves learn their port from a name server, so with ``slave_port`` 0 it is the next
        one, or any if that is taken. Raises OSError."""
        try:
            main, fast = bind_pair(host, port) if with_fast else (bind_socket(host, port), None)
        except OSError as error:
            raise cannot_listen("broker", host, port, error) from None
        try:
            if slave_port:
                slaves = bind("broker's replication", host, slave_port)
            else:
                try:
                    slaves = bind_socket(host, main.getsockname()[1] + 1)
                except (OSError, OverflowError):
                    slaves = bind_socket(host, 0)
        except BaseException:
            main.close()
            if fast is not None:
                fast.close()
            raise
        return cls(main, fast, slaves)

    @property
    def port(self) -> int:
        port: int = self.main.getsockname()[1]
        return port

    @property
    def slave_port(self) -> int:
        port: int = self.slaves.getsockname()[1]
        return port

    def close(self) -> None:
        for sock in (self.main, self.fast, self.slaves):
            if sock is not None:
                sock.close()


async def resolve_broker_ip(name: str) -> str:
    """The IP address of brokerIP1: records and message ids hold addresses, not names. Raises ConfigError."""
    name = name.strip("[]")
    with contextlib.suppress(ValueError):
        return str(ipaddress.ip_address(name.partition("%")[0]))
    try:
        found = await asyncio.get_running_loop().getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"setting brokerIP1={name} is not the address of a host: {error}", key="brokerIP1"
        ) from None
    found.sort(key=lambda entry: entry[0] != socket.AF_INET)  # IPv4 first
    return str(found[0][4][0])
