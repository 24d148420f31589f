"""The address of a name server that is wrong: what a program is told, and how soon."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from mqspark import AdminClient, Message, Producer
from mqspark.client import blocking
from mqspark.client.blocking import BlockingClient, meet
from mqspark.errors import BrokerError, ConnectionLost, NotANameServer
from mqspark.protocol.codes import ResponseCode
from mqspark.testing import Broker
from tests.support.scripted import SILENCE, Scripted, namesrv, route_of, served

pytest_plugins = ["mqspark.testing.pytest_plugin"]

PATIENCE_MS = 400
NOBODY = "127.0.0.1:9"


@pytest.fixture
def silent() -> Iterator[str]:
    """Takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def web() -> Iterator[str]:
    """Answers, but in another protocol."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            peer, _ = server.accept()
            with peer:
                peer.recv(65536)
                peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        thread.join(10)


def refusal(nameservers: str) -> str:
    client = BlockingClient(nameservers, first_contact_ms=PATIENCE_MS)
    with pytest.raises(ConnectionLost) as caught:
        client.route("T")
    client.close()
    return str(caught.value)


@pytest.mark.parametrize("code", [socket.EAI_NONAME, socket.EAI_AGAIN])
def test_a_host_name_that_nobody_knows(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(code, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    text = refusal("nobody.invalid:9876")
    assert "no name server answers" in text
    assert "'nobody.invalid' cannot be resolved (Name or service not known)" in text
    assert "the option nameserver says where" in text


def test_a_resolver_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: release.wait(60))
    text = refusal("slow.invalid:9876")
    release.set()
    assert "'slow.invalid' was not resolved within" in text


def test_a_port_where_nobody_listens() -> None:
    text = refusal(NOBODY)
    assert "127.0.0.1:9: no name server answers" in text
    assert "Connection refused" in text
    assert "the option nameserver says where" in text


def test_a_server_that_says_nothing(silent: str) -> None:
    text = refusal(silent)
    assert f"{silent}: no name server answers (no answer from {silent} within" in text


def test_a_server_of_another_protocol(web: str) -> None:
    assert f"{web}: no name server answers" in refusal(web)


def test_several_wrong_ones_share_the_patience(silent: str) -> None:
    begun = time.monotonic()
    refusal(f"{silent};{NOBODY};{silent}")
    assert time.monotonic() - begun < 10  # three silent ones in turn, for 30 s, before


def test_the_silent_one_does_not_hide_the_other(silent: str, mq_broker: Broker) -> None:
    client = BlockingClient(f"{silent};{mq_broker.namesrv}", first_contact_ms=2_000)
    assert client.topics()
    client.close()


def test_the_silent_one_is_asked_at_the_first_contact_alone() -> None:
    hung, lively = Scripted(lambda _: SILENCE), namesrv({})
    with served(hung, lively):
        client = BlockingClient(f"{hung.address};{lively.address}", first_contact_ms=1_000)
        client.route("T")
        client.close()
    assert len(hung.asked) == 1


def test_the_patience_of_planners_is_less_than_five_seconds() -> None:
    assert blocking.FIRST_CONTACT_MS < 5_000


def test_an_outage_after_the_first_answer_gets_the_usual_patience() -> None:
    """What was known to be there may come back."""
    slept: list[float] = []
    broker = Broker().start()
    port = int(broker.namesrv.rpartition(":")[2])
    again: list[Broker] = []

    def heal(seconds: float) -> None:
        slept.append(seconds)
        if sum(slept) > 2 * PATIENCE_MS / 1000 and not again:
            again.append(Broker(namesrv_port=port).start())

    client = BlockingClient(broker.namesrv, first_contact_ms=PATIENCE_MS, retry_ms=30_000, sleep=heal)
    assert client.topics()
    broker.stop()
    assert client.topics()
    assert sum(slept) > PATIENCE_MS / 1000
    client.close()
    again[0].stop()


def test_the_port_of_a_broker(mq_broker: Broker) -> None:
    text = f"{mq_broker.address}: that is a broker, not a name server"
    for first_contact_ms in (None, PATIENCE_MS):
        client = BlockingClient(mq_broker.address, first_contact_ms=first_contact_ms)
        for ask in (client.topics, lambda client=client: client.route("T")):
            with pytest.raises(NotANameServer, match=text):
                ask()
        client.close()
    with pytest.raises(NotANameServer, match=text):
        meet(mq_broker.address)
    with AdminClient(mq_broker.address) as admin:
        for each in (admin.cluster_info, admin.topic_list, lambda: admin.topic_route("T")):
            with pytest.raises(NotANameServer, match=text):
                each()
    with Producer(mq_broker.address, group="g") as producer, pytest.raises(NotANameServer, match=text):
        producer.send(Message("T", b"x"))


def test_look_ups_pass_over_name_servers_that_have_frozen() -> None:
    """Long before the time of a request is over."""
    lively = namesrv({})
    first, second = (Scripted(lambda _: (0, None, route_of({}))) for _ in range(2))
    with served(first, second, lively):
        every = f"{first.address};{second.address};{lively.address}"
        client = BlockingClient(every, timeout_ms=3_600_000)
        client.route("T0")
        first.script = second.script = lambda _: SILENCE
        with client.without_retries():
            for number in range(1, 4):
                client.route(f"T{number}")
        client.close()
    assert [each.ext["topic"] for each in lively.asked] == ["T1", "T2", "T3"]
    assert len(second.asked) == 1


@pytest.mark.parametrize("code", [ResponseCode.SYSTEM_ERROR, ResponseCode.SYSTEM_BUSY, 3])
def test_look_ups_pass_over_name_servers_that_cannot_answer_now(code: int) -> None:
    """Code 3: there is a broker at its address."""
    lively = namesrv({})
    first = Scripted(lambda _: (0, None, route_of({})))
    with served(first, lively):
        client = BlockingClient(f"{first.address};{lively.address}")
        client.route("T0")
        first.script = lambda _: (code, None, b"")
        with client.without_retries():
            client.route("T1")
        client.close()
        client = BlockingClient(f"{lively.address};{NOBODY}")
        client.route("T2")
        lively.script = lambda _: (code, None, b"")
        with client.without_retries(), pytest.raises(NotANameServer if code == 3 else BrokerError):
            client.route("T3")
        client.close()
