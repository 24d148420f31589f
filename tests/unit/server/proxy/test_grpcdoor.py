"""The port of gRPC in a broker: nothing is loaded before the first peer comes."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from mqspark_server.process.diskwork import Worker
from mqspark_server.proxy import grpcdoor
from mqspark_server.proxy.grpcdoor import GrpcDoor
from mqspark_server.settings.serverconfig import ServerConfig


class Backend:
    closed = False

    def close(self) -> None:
        self.closed = True


class Served:
    """In the place of a GrpcServer: answers each peer with a word."""

    def __init__(self, backend: Backend, config: ServerConfig, sock: Any, tls: object) -> None:
        self.backend, self.sock = backend, sock
        self.counts = "its own"

    async def start(self) -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"served")
            writer.close()

        self.server = await asyncio.start_server(answer, sock=self.sock)

    async def stop(self, *, abruptly: bool) -> None:
        self.server.close()


@contextlib.contextmanager
def working() -> Iterator[Worker]:
    worker = Worker("test-grpc-door")
    try:
        yield worker
    finally:
        worker.close()


def opened(worker: Worker, load: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> GrpcDoor:
    monkeypatch.setattr(grpcdoor, "_load_server", lambda: Served)
    door = GrpcDoor(ServerConfig(), "127.0.0.1", worker, load)
    door.open(0)
    return door


async def answered(door: GrpcDoor) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", door.port)
    try:
        return await reader.read()
    finally:
        writer.close()


async def test_the_first_peer_is_served_by_what_it_made_load(monkeypatch: pytest.MonkeyPatch) -> None:
    with working() as worker:
        threads: list[threading.Thread] = []
        backend = Backend()

        def load() -> Callable[[], Backend]:
            threads.append(threading.current_thread())
            return lambda: backend

        door = opened(worker, load, monkeypatch)
        assert set(door.counts) == {0}
        await worker.run(lambda: None)
        assert not threads
        assert [await answered(door), await answered(door)] == [b"served", b"served"]
        assert len(threads) == 1
        assert threads[0] is not threading.main_thread()
        assert door.counts == "its own"
        await door.stop()
        assert backend.closed
        with pytest.raises(ConnectionRefusedError):
            await answered(door)


async def test_a_stop_before_the_first_peer_and_one_while_it_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    with working() as worker:
        unused = opened(worker, lambda: Backend, monkeypatch)
        await unused.stop(abruptly=True)
        with pytest.raises(ConnectionRefusedError):
            await answered(unused)

        loads, goes_on = asyncio.Event(), threading.Event()
        loop = asyncio.get_running_loop()

        def load() -> Callable[[], Backend]:
            loop.call_soon_threadsafe(loads.set)
            goes_on.wait(10)
            return Backend

        door = opened(worker, load, monkeypatch)
        peer = asyncio.create_task(answered(door))
        await loads.wait()
        stop = asyncio.create_task(door.stop())
        await asyncio.sleep(0)
        goes_on.set()
        await stop
        with pytest.raises(ConnectionResetError):
            await peer


async def test_what_cannot_be_loaded_closes_the_port(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with working() as worker:

        def load() -> Any:
            raise ImportError("half an install")

        door = opened(worker, load, monkeypatch)
        with pytest.raises(ConnectionResetError):
            await answered(door)
        with pytest.raises(ConnectionRefusedError):
            await answered(door)
        assert "half an install" in caplog.text
        await door.stop()


async def test_a_peer_is_served_once_a_shortage_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpcdoor, "GRPC_RETRY_S", 0.01)
    shortages = [OSError(errno.EMFILE, "too many open files"), MemoryError()]
    with working() as worker:

        def load() -> Callable[[], Backend]:
            if shortages:
                raise shortages.pop()
            return Backend

        door = opened(worker, load, monkeypatch)
        assert await answered(door) == b"served"
        assert not shortages
        await door.stop()
