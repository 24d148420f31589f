"""A schema registry that ends its answers early, or never: the next one is asked, and a producer does not hang."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator

import pytest

from mqspark.client.typed.registryclient import RegistryClient
from mqspark.errors import NoSchemaRegistry

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n["
FAILED = b"HTTP/1.1 500 No\r\nContent-Length: 1000\r\n\r\n{"
GOOD = b'HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n["ab"]'


def reset(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def trickle(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while not stopping.wait(0.05):
            sock.sendall(b"1")


stopping = threading.Event()


@contextlib.contextmanager
def registry(
    begin: bytes, then: Callable[[socket.socket], None] = lambda sock: None, times: int = 1
) -> Iterator[str]:
    """The URL of one that answers so many times."""
    stopping.clear()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(60)

        def serve() -> None:
            for _ in range(times):
                sock, _ = listener.accept()
                with sock:
                    sock.recv(1 << 16)
                    sock.sendall(begin)
                    then(sock)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            stopping.set()
            thread.join()


@pytest.mark.parametrize("begin", [OK, FAILED])
@pytest.mark.parametrize("then", [reset, trickle])
def test_the_next_registry_is_asked(begin: bytes, then: Callable[[socket.socket], None]) -> None:
    with registry(begin, then) as hostile, registry(GOOD) as good:
        asked = RegistryClient([hostile, good], credentials=False, timeout_ms=300)
        assert asked.ask("list_subjects") == ["ab"]


def test_an_answer_that_does_not_end_is_told() -> None:
    with registry(OK, trickle) as hostile, pytest.raises(NoSchemaRegistry, match="took too long"):
        RegistryClient(hostile, credentials=False, timeout_ms=300).ask("list_subjects")


def test_a_frozen_registry_is_asked_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as frozen, registry(GOOD, times=3) as good:
        frozen.setblocking(False)
        asked = RegistryClient(
            [f"http://127.0.0.1:{frozen.getsockname()[1]}", good], credentials=False, timeout_ms=300
        )
        for _ in range(3):
            assert asked.ask("list_subjects") == ["ab"]
        frozen.accept()[0].close()
        with pytest.raises(BlockingIOError):
            frozen.accept()
