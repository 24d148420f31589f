"""Peers of a server that do not answer, or answer what nobody of their kind would: they keep it from no other peer, and
no task of it ends for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from typing import Any, cast

import httpcore
import pytest

from mqspark.controller.config import ControllerConfig
from mqspark.testing import FakeClock
from mqspark_server.etcd import election as election_module
from mqspark_server.etcd import etcdclient as client_module
from mqspark_server.etcd.election import Election
from mqspark_server.etcd.etcdclient import Etcd, EtcdUnavailable, Found, compare
from mqspark_server.net.outbound import PLAIN, Dialing, Outbound
from mqspark_server.peers import escaping as escaping_module
from mqspark_server.peers.escaping import Escaping
from tests.support.waiting import eventually_async


class Connected:
    alive = True

    def __init__(self, address: str) -> None:
        self.address = address

    def close(self) -> None:
        self.alive = False


class NoPeers:
    dialing = PLAIN
    addresses: tuple[str, ...] = ()


async def test_a_broker_that_does_not_answer_keeps_nobody_from_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One connection was made at a time, and a broker without an answer held its place for three seconds."""
    attempts: list[str] = []

    async def connect(dialing: Dialing, address: str, *more: Any, **options: Any) -> Outbound:
        attempts.append(address)
        if address == "dead:1":
            await asyncio.sleep(60)
        if address == "refuses:1":
            raise ConnectionRefusedError
        return cast(Outbound, Connected(address))

    monkeypatch.setattr(Dialing, "connect", connect)
    monkeypatch.setattr(escaping_module, "MAX_CONNECTIONS", 2)
    escaping = Escaping(cast(Any, None), (), cast(Any, NoPeers()), lambda: None)
    waiting = [asyncio.ensure_future(escaping.connected("dead:1")) for _ in range(3)]
    await asyncio.sleep(0)
    async with asyncio.timeout(30):
        first, same = await asyncio.gather(escaping.connected("a:1"), escaping.connected("a:1"))
        assert first is same
        with pytest.raises(ConnectionRefusedError):
            await escaping.connected("refuses:1")
        assert await escaping.connected("a:1") is first
        for other in ("b:1", "c:1"):
            await escaping.connected(other)
        assert not first.alive, "the oldest gives way"
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await escaping.stop()
    assert attempts == ["dead:1", "a:1", "refuses:1", "b:1", "c:1"]


class OddEtcd:
    """Knows another leader, fails in ways that nobody thought of, and then works again."""

    def __init__(self) -> None:
        self.asked = 0

    def get(self, key: str) -> Found:
        self.asked += 1
        if self.asked == 2:
            raise AttributeError("no such thing")
        if self.asked == 3:
            raise RecursionError
        return Found(b"{}", 1, 1, 0)


class NoCandidate:
    leads = False

    def follow(self, leader_address: str) -> None: ...


async def test_an_election_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(election_module, "CAMPAIGN_S", 0.01)
    etcd = OddEtcd()
    election = Election(
        cast(Etcd, etcd), ControllerConfig(), FakeClock(), "c:1", cast(Any, NoCandidate()), lambda: None
    )
    await election.start()
    await eventually_async(lambda: etcd.asked > 5)
    await election.stop()


@pytest.mark.parametrize(
    "answer",
    [
        b'{"kvs": [{"value": "%%%"}]}',
        b'{"kvs": [{"value": "YQ=", "mod_revision": "1"}]}',
        b'{"kvs": {"a": 1}}',
        b'{"kvs": [1]}',
        b'{"kvs": [{"value": "YQ==", "mod_revision": "x"}]}',
        b'{"kvs": ' + b"[" * 100_000,
        b"[]",
        b"\xff",
    ],
)
def test_what_no_etcd_answers_is_no_answer(answer: bytes) -> None:
    with pytest.raises(EtcdUnavailable):
        answering(answer).get("k")


def test_parts_of_an_answer_that_are_none_are_passed_over() -> None:
    found = b'{"succeeded": true, "responses": [{"response_range": ["x"]}, 7, {"response_range": {}}]}'
    etcd = answering(found)
    assert etcd.transact([compare("k", "mod_revision", 0)], [], []) == (True, 0, [None])


def answering(content: bytes) -> Etcd:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(content)
    return Etcd(["http://etcd.example:2379"], None, httpcore.MockBackend([head, content]))


@pytest.mark.parametrize("dripped", ["head", "body"])
def test_an_etcd_that_answers_byte_by_byte_is_given_up(dripped: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte every now and then ends no wait for the next one, but the request has an end."""
    monkeypatch.setattr(client_module, "REQUEST_S", 0.5)
    ended = threading.Event()

    def drip(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection, contextlib.suppress(OSError):
            connection.recv(1 << 16)
            connection.sendall(b"HTTP/1.1 200 OK\r\n")
            if dripped == "body":
                connection.sendall(b"Content-Length: 100000\r\n\r\n")
            while not ended.wait(0.05):
                connection.sendall(b"x")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=drip, args=(listener,))
        server.start()
        etcd = Etcd([f"http://127.0.0.1:{listener.getsockname()[1]}"], None)
        begun_s = time.monotonic()
        try:
            with pytest.raises(EtcdUnavailable, match="etcd does not answer"):
                etcd.get("k")
            assert time.monotonic() - begun_s < 10
        finally:
            ended.set()
            etcd.close()
            server.join(10)
