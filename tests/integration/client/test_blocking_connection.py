"""The blocking connection against a peer that does not read on while its answers are left."""

from __future__ import annotations

import socket
import threading

import pytest

from mqspark.client.remoting.blockingconnection import BlockingConnection
from mqspark.errors import ConnectionLost
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
