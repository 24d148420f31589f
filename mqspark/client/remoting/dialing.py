"""Connecting to a name that has several addresses: all get a share of the time. Facts: RFC 8305 (happy eyeballs).

An attempt begins when the one before has failed, or a moment after it began; the first that succeeds counts. An address
of a family that this machine does not have (``::1`` without IPv6) is one that fails.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import ipaddress
import os
import select
import socket
import ssl
import time
from asyncio.staggered import staggered_race
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

STAGGER_S = 0.25
"""Between the beginnings of two attempts (Connection Attempt Delay)."""

P = TypeVar("P", bound=asyncio.BaseProtocol)
_Address = tuple[Any, ...]
"""An item of ``socket.getaddrinfo``."""


def connected(addresses: Iterable[_Address], deadline_s: float) -> socket.socket:
    """A socket without an event loop, until ``deadline_s`` of the monotonic clock. Raises OSError: the last failure."""
    waiting = deque(addresses)
    trying: dict[int, socket.socket] = {}
    poll = select.poll()
    failure: OSError = TimeoutError("timed out")
    next_s = 0.0
    try:
        while (waiting or trying) and (now_s := time.monotonic()) < deadline_s:
            if waiting and (not trying or now_s >= next_s):
                try:
                    sock = _begun(waiting.popleft())
                except OSError as error:
                    failure = error
                    continue
                trying[sock.fileno()] = sock
                poll.register(sock, select.POLLOUT)
                next_s = now_s + STAGGER_S
            until_s = min(deadline_s, next_s) if waiting else deadline_s
            for number, _ in poll.poll(max(0.0, until_s - now_s) * 1000):
                sock = trying[number]
                poll.unregister(number)
                code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                del trying[number]
                if not code:
                    return sock
                sock.close()
                failure, next_s = OSError(code, os.strerror(code)), 0.0
        raise failure
    finally:
        for sock in trying.values():
            sock.close()


def _begun(address: _Address) -> socket.socket:
    """Raises OSError, also for a family that the kernel does not have."""
    family, kind, protocol, _, target = address
    sock = socket.socket(family, kind, protocol)
    sock.setblocking(False)
    code = sock.connect_ex(target)
    if code not in (0, errno.EINPROGRESS):
        sock.close()
        raise OSError(code, os.strerror(code))
    return sock


async def opened(factory: Callable[[], P], host: str, port: int, tls: ssl.SSLContext | None) -> P:
    """The protocol of a connection of the running loop. Raises OSError: the last failure; the caller limits the
    time."""
    loop = asyncio.get_running_loop()
    server = host if tls is not None else None
    if _is_address(host):  # there is nothing to choose
        return (await loop.create_connection(factory, host, port, ssl=tls, server_hostname=server))[1]
    sock = await first_of(await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM))
    try:
        return (await loop.create_connection(factory, sock=sock, ssl=tls, server_hostname=server))[1]
    except BaseException:
        sock.close()
        raise


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


async def first_of(addresses: Iterable[_Address]) -> socket.socket:
    """As ``connected``, for the running loop."""
    loop = asyncio.get_running_loop()
    attempts = [functools.partial(_attempt, loop, address) for address in addresses]
    sock: socket.socket | None
    sock, _, failures = await staggered_race(attempts, STAGGER_S)
    if sock is not None:
        return sock
    raise next(
        (failure for failure in reversed(failures) if isinstance(failure, OSError)), OSError("no address")
    )


async def _attempt(loop: asyncio.AbstractEventLoop, address: _Address) -> socket.socket:
    family, kind, protocol, _, target = address
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setblocking(False)
        await loop.sock_connect(sock, target)
    except BaseException:
        sock.close()
        raise
    return sock
