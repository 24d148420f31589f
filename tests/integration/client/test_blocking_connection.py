"""The blocking connection against a peer that does not read on while its answers are left."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from mqspark.client.remoting import blockingconnection
from mqspark.client.remoting.blockingconnection import BlockingConnection
from mqspark.errors import ConnectionLost, RequestTimeout
from mqspark.protocol.codes import RequestCode
from mqspark.protocol.command import encode_response
from mqspark.protocol.connection import Connection

REQUESTS = 6
BODY = bytes(4 << 20)


@pytest.fixture
def listener() -> socket.socket:
    made = socket.create_server(("127.0.0.1", 0))
    made.settimeout(60)
    return made


def test_both_sides_have_much_to_say(listener: socket.socket) -> None:
    """Each answer is as large as its request, and the peer reads the next request only when it is written."""
    failures: list[BaseException] = []

    def serve() -> None:
        try:
            peer, _ = listener.accept()
            with peer:
                peer.settimeout(60)
                receiver = Connection()
                answered = 0
                while answered < REQUESTS:
                    for command in receiver.receive_data(peer.recv(1 << 20)):
                        assert bytes(command.body) == BODY
                        peer.sendall(encode_response(command.opaque, 0, None, BODY))
                        answered += 1
        except BaseException as error:
            failures.append(error)

    server = threading.Thread(target=serve)
    server.start()
    with listener:
        connection = BlockingConnection(f"127.0.0.1:{listener.getsockname()[1]}")
        opaques = [
            connection.send(RequestCode.SEND_BATCH_MESSAGE, None, memoryview(BODY), timeout_ms=60_000)
            for _ in range(REQUESTS)
        ]
        for opaque in opaques:
            assert bytes(connection.wait(opaque, 60_000).body) == BODY
        server.join(60)
        connection.close()
    assert failures == []


def test_a_peer_that_never_reads(listener: socket.socket) -> None:
    with listener:
        connection = BlockingConnection(f"127.0.0.1:{listener.getsockname()[1]}")
        peer, _ = listener.accept()
        with peer, pytest.raises(ConnectionLost, match="timed out"):
            connection.send(RequestCode.SEND_BATCH_MESSAGE, None, bytes(64 << 20), timeout_ms=200)
        assert connection.fileno() < 0


@pytest.fixture
def flooded(listener: socket.socket, monkeypatch: pytest.MonkeyPatch) -> Iterator[BlockingConnection]:
    """Its peer sends answers that nobody has asked for, faster than they are read, and reads nothing."""
    monkeypatch.setattr(blockingconnection, "_RECEIVE_BYTES", 16)
    unasked = encode_response(1 << 20, 0, None, b"") * 10_000
    connection = BlockingConnection(f"127.0.0.1:{listener.getsockname()[1]}")
    peer, _ = listener.accept()

    def flood() -> None:
        with contextlib.suppress(OSError):
            while True:
                peer.sendall(unasked)

    sender = threading.Thread(target=flood)
    sender.start()
    yield connection
    connection.close()
    sender.join(60)
    peer.close()
    listener.close()


def test_a_peer_that_sends_faster_than_it_is_read_keeps_nobody(flooded: BlockingConnection) -> None:
    opaque = flooded.send(RequestCode.GET_MAX_OFFSET)
    with pytest.raises(RequestTimeout):
        flooded.wait(opaque, 100)
    assert flooded.poll([opaque], 0.1) == {}
    assert flooded.receive_ready()
    with pytest.raises(ConnectionLost, match="timed out"):
        flooded.send(RequestCode.SEND_BATCH_MESSAGE, None, bytes(64 << 20), timeout_ms=100)
