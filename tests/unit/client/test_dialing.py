"""A name with several addresses: one that is silent or impossible keeps nobody from the next."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from mqspark.client.remoting.blockingconnection import BlockingConnection
from mqspark.client.remoting.dialing import connected, first_of
from mqspark.client.remoting.remoting import Remoting
from mqspark_server.net.outbound import PLAIN

WAIT_S = 30.0
NO_FAMILY = 99
"""As IPv6 on a kernel without it."""


@contextlib.contextmanager
def listening() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@contextlib.contextmanager
def silent() -> Iterator[int]:
    """A port that answers no SYN: its backlog is full."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server, contextlib.ExitStack() as stack:
        port = server.getsockname()[1]
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", port))
        yield port


def address(port: int, family: int = socket.AF_INET) -> tuple[Any, ...]:
    return family, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port)


@pytest.fixture
def resolved(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[tuple[Any, ...]]], None]:
    """What every name stands for."""

    def set_addresses(addresses: list[tuple[Any, ...]]) -> None:
        def look_up(host: str, port: int, *_: object, flags: int = 0, **__: object) -> list[tuple[Any, ...]]:
            if flags & socket.AI_NUMERICHOST:
                raise socket.gaierror
            return addresses

        monkeypatch.setattr(socket, "getaddrinfo", look_up)

    return set_addresses


def test_a_silent_address_leaves_time_for_the_next() -> None:
    with silent() as nobody, listening() as port:
        began = time.monotonic()
        with connected([address(nobody), address(port)], began + WAIT_S) as sock:
            assert sock.getpeername()[1] == port
        assert time.monotonic() - began < WAIT_S / 2


def test_an_impossible_address_is_skipped() -> None:
    with listening() as port:
        for bad in (address(port, NO_FAMILY), address(1)):
            with connected([bad, address(port)], time.monotonic() + WAIT_S) as sock:
                assert sock.getpeername()[1] == port


def test_the_last_failure_is_reported() -> None:
    with pytest.raises(ConnectionRefusedError):
        connected([address(1, NO_FAMILY), address(1)], time.monotonic() + WAIT_S)
    with silent() as nobody, pytest.raises(TimeoutError):
        connected([address(nobody)], time.monotonic() + 0.1)
    with pytest.raises(OSError, match="not supported"):
        connected([address(1, NO_FAMILY)], time.monotonic() + WAIT_S)


def test_a_first_contact_goes_on_to_the_next_address(
    resolved: Callable[[list[tuple[Any, ...]]], None],
) -> None:
    with silent() as nobody, listening() as port:
        resolved([address(port, NO_FAMILY), address(nobody), address(port)])
        BlockingConnection("mq.example:9876", connect_timeout_ms=10_000).close()


@pytest.mark.parametrize("kind", ["asyncio", "uvloop"])
def test_the_first_of_several_on_a_loop(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    async def connect() -> None:
        with silent() as nobody, listening() as port:
            with await first_of([address(port, NO_FAMILY), address(nobody), address(port)]) as sock:
                assert sock.getpeername()[1] == port
        with pytest.raises(ConnectionRefusedError):
            await first_of([address(1, NO_FAMILY), address(1)])

    with asyncio.Runner(loop_factory=importlib.import_module(kind).new_event_loop) as runner:
        runner.run(asyncio.wait_for(connect(), WAIT_S))
    gc.collect()
    assert "never retrieved" not in caplog.text


def test_a_client_goes_on_to_the_next_address(resolved: Callable[[list[tuple[Any, ...]]], None]) -> None:
    async def connect() -> None:
        with silent() as nobody, listening() as port:
            resolved([address(port, NO_FAMILY), address(nobody), address(port)])
            remoting = Remoting(connect_timeout_ms=10_000, on_request=lambda channel, command: None)
            channel = await remoting.connect("mq.example:9876")
            assert channel.open
            await remoting.close()

    asyncio.run(asyncio.wait_for(connect(), WAIT_S))


def test_a_server_goes_on_to_the_next_address(resolved: Callable[[list[tuple[Any, ...]]], None]) -> None:
    """As a broker whose name servers or controllers share a name."""

    async def connect() -> None:
        with silent() as nobody, listening() as port:
            resolved([address(port, NO_FAMILY), address(nobody), address(port)])
            connection = await PLAIN.connect("mq.example:9876", timeout_s=10.0)
            assert connection.alive
            connection.close()

    asyncio.run(asyncio.wait_for(connect(), WAIT_S))
