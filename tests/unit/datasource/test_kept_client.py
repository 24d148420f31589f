from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

from mqspark.arrow.writing.sendchoice import SendChoice
from mqspark.client.blocking import BlockingClient
from pyspark_pymq.writing.keptclient import MAX_CLIENTS, KeptClients
from tests.support.waiting import eventually


@pytest.fixture
def server() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


@pytest.fixture
def kept() -> Iterator[KeptClients]:
    """As in a worker of Spark's."""
    with closing(KeptClients(lambda: True)) as clients:
        yield clients


def choice(nameserver: str = "127.0.0.1:9876") -> SendChoice:
    return SendChoice(
        nameserver=nameserver, topic="T", group="g", batch_bytes=1024, compression=None, send_timeout_ms=3000,
        retry_timeout_ms=1000, keep_broker_properties=False, as_dead_letters=False, exactly_once=False,
    )  # fmt: skip


def test_the_next_write_of_a_worker_has_the_same_client(kept: KeptClients) -> None:
    with kept.lent(choice()) as first:
        with kept.lent(choice()) as meanwhile:
            assert meanwhile is not first
    with kept.lent(choice()) as second:
        assert second is first
    with kept.lent(choice("127.0.0.1:9877")) as other:
        assert other is not first


def test_a_program_keeps_no_client(server: str) -> None:
    clients = KeptClients()
    with clients.lent(choice()) as client:
        connection = client.connection(server)
    assert connection.fileno() < 0
    assert not clients.waiting


def test_the_client_of_a_write_that_failed_is_closed(kept: KeptClients, server: str) -> None:
    connections = []

    def write() -> None:
        with kept.lent(choice()) as client:
            connections.append(client.connection(server))
            raise ValueError("a row")

    with pytest.raises(ValueError, match="a row"):
        write()
    assert connections[0].fileno() < 0
    assert not kept.waiting


def test_clients_that_nobody_uses_are_bounded(kept: KeptClients, server: str) -> None:
    with kept.lent(choice()) as client:
        connection = client.connection(server)
    for port in range(2 * MAX_CLIENTS):
        with kept.lent(choice(f"127.0.0.1:{10_000 + port}")):
            pass
    assert len(kept.waiting) == MAX_CLIENTS
    assert connection.fileno() < 0


def test_a_client_that_nobody_used_for_long_is_closed(server: str) -> None:
    with closing(KeptClients(lambda: True, idle_s=-1.0)) as clients:
        with clients.lent(choice()) as client:
            connection = client.connection(server)
        with clients.lent(choice()) as fresh:
            assert fresh is not client
    assert connection.fileno() < 0


def test_a_connection_that_its_server_has_closed_is_made_anew(kept: KeptClients) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        with kept.lent(choice()) as client:
            lost = client.connection(address)
            closing_one, _ = listening.accept()
        closing_one.close()

        def made_anew() -> bool:
            with kept.lent(choice()) as same:
                assert same is client
                return same.connection(address) is not lost

        eventually(made_anew)
        assert lost.fileno() < 0


def test_a_connection_that_is_open_stays(server: str) -> None:
    with closing(BlockingClient("127.0.0.1:9876")) as client:
        connection = client.connection(server)
        client.forget_closed()
        assert client.connection(server) is connection
