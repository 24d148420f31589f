"""All clients over TLS, to a name server and a broker behind TLS ends, and what is refused."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from mqspark import (
    AdminClient,
    ConsumeFromWhere,
    LitePullConsumer,
    Message,
    PopConsumer,
    Producer,
    PushConsumer,
    TlsSettings,
    TransactionProducer,
    TransactionState,
)
from mqspark.client.blocking import BlockingClient
from mqspark.errors import ConfigError, ConnectionLost
from mqspark.message import MessageQueue
from mqspark.protocol.codes import RequestCode
from mqspark.protocol.headers.client_headers import pull_header
from mqspark.testing import Broker
from tests.support.inbox import Inbox
from tests.support.waiting import eventually

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
HOST = "127.0.0.1"


@dataclass(frozen=True)
class Secured:
    broker: Broker
    authority: trustme.CA
    ca_file: Path

    @property
    def namesrv(self) -> str:
        return self.broker.namesrv


@pytest.fixture(scope="module", params=["anybody", "certified"])
def secured(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """A cluster that speaks nothing but TLS; ``certified``: to clients with a certificate only."""
    folder = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    authority.issue_cert(HOST).private_key_and_cert_chain_pem.write_to_path(folder / "server.pem")
    settings = {
        "tls.server.mode": "enforcing",
        "tls.server.certPath": folder / "server.pem",
        "useTLS": True,
        "tls.client.certPath": folder / "server.pem",
        "tls.client.trustCertPath": folder / "ca.pem",
    }
    if request.param == "certified":
        settings |= {"tls.server.need.client.auth": "require", "tls.server.trustCertPath": folder / "ca.pem"}
    with Broker(settings={name: str(value) for name, value in settings.items()}) as broker:
        yield Secured(broker, authority, folder / "ca.pem")


@pytest.fixture
def trusting(secured: Secured, request: pytest.FixtureRequest, tmp_path: Path) -> TlsSettings:
    """Trusts the cluster, and shows it a certificate, whose key is encrypted, when it wants one."""
    if "certified" not in request.node.name:
        return TlsSettings(ca_file=secured.ca_file)
    mine = secured.authority.issue_cert("client@example.com")
    mine.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    key = load_pem_private_key(mine.private_key_pem.bytes(), None).private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"canary")
    )
    (tmp_path / "key.pem").write_bytes(key)
    return TlsSettings(
        ca_file=secured.ca_file,
        cert_file=tmp_path / "cert.pem",
        key_file=tmp_path / "key.pem",
        key_password="canary",  # noqa: S106
    )


def test_every_client(secured: Secured, trusting: TlsSettings, mq_topic: str) -> None:
    namesrv, large = secured.namesrv, bytes(range(256)) * 8_000
    with AdminClient(namesrv, tls=trusting) as admin:
        admin.create_topic(mq_topic, queues=1)
        admin.set_consume_mode(mq_topic, f"{mq_topic}-pop", "POP")
    with Producer(namesrv, group="p", tls=trusting, compress_from_bytes=1 << 30) as producer:
        for body in (b"small", large, b"last"):
            producer.send(Message.of(mq_topic, body))
    with TransactionProducer(
        namesrv,
        group="tx",
        execute=lambda _: TransactionState.COMMIT,
        check=lambda _: TransactionState.COMMIT,
        tls=trusting,
    ) as transactions:
        transactions.send_in_transaction(Message.of(mq_topic, b"committed"))
    expected = {b"small", large, b"last", b"committed"}
    for kind, group in ((PushConsumer, "push"), (PopConsumer, "pop")):
        inbox = Inbox()
        consumer: Any = kind(
            namesrv, group=f"{mq_topic}-{group}", listener=inbox, consume_from=FIRST, tls=trusting
        )
        consumer.subscribe(mq_topic)
        with consumer:
            eventually(lambda inbox=inbox: set(inbox.bodies()) == expected, "all messages")
    lite = LitePullConsumer(namesrv, group=f"{mq_topic}-lite", consume_from=FIRST, tls=trusting)
    lite.subscribe(mq_topic)
    got: set[bytes] = set()
    with lite:
        eventually(
            lambda: got.update(each.body for each in lite.poll(500)) or got == expected, "all messages"
        )


def test_the_blocking_client(secured: Secured, trusting: TlsSettings, mq_topic: str) -> None:
    """Many large requests at once, while nobody reads the answers, both ways."""
    client = BlockingClient(secured.namesrv, tls=trusting)
    queue = MessageQueue(mq_topic, secured.broker.apps[0].config.broker_name, 0)
    assert client.publish_route(mq_topic).address(queue.broker_name) == secured.broker.address
    with Producer(secured.namesrv, group="p", tls=trusting, compress_from_bytes=1 << 30) as producer:
        for _ in range(4):
            producer.send(Message.of(mq_topic, bytes(1 << 20)), queue=queue)
    connection = client.connection(secured.broker.address)
    header = pull_header("g", queue, 0, max_messages=32, bulk=True)
    opaques = [connection.send(RequestCode.PULL_MESSAGE, header) for _ in range(8)]
    opaques += [
        connection.send(RequestCode.GET_BROKER_CONFIG, None, memoryview(bytes(2 << 20)), timeout_ms=30_000)
        for _ in range(8)
    ]
    answers = [connection.wait(opaque, 30_000) for opaque in opaques]
    assert [answer.code for answer in answers] == [0] * 16
    assert all(len(answer.body) > 1 << 20 for answer in answers[:8])
    assert client.max_offsets(secured.broker.address, [queue]) == [4]
    client.close()


@pytest.mark.parametrize("made", ["asyncio", "blocking"])
@pytest.mark.parametrize(
    ("tls", "text"),
    [
        (True, "certificate is refused .*(self.signed|unable to get local issuer)"),
        (TlsSettings(verify_host_name=False), "certificate is refused"),
        (False, "cannot connect|was lost"),
    ],
    ids=["nobody's authority", "another authority", "no TLS"],
)
def test_what_is_not_trusted_is_refused(secured: Secured, made: str, tls: Any, text: str) -> None:
    began = time.monotonic()
    with pytest.raises(ConnectionLost, match=text):
        first_words(made, secured.namesrv, tls)
    assert time.monotonic() - began < 20


@pytest.mark.parametrize("made", ["asyncio", "blocking"])
def test_a_name_that_the_certificate_lacks(secured: Secured, trusting: TlsSettings, made: str) -> None:
    namesrv = f"localhost:{secured.namesrv.rpartition(':')[2]}"
    with pytest.raises(ConnectionLost, match=r"[Hh]ostname mismatch.*verify_host_name=False"):
        first_words(made, namesrv, trusting)
    first_words(made, namesrv, replace(trusting, verify_host_name=False))


@pytest.mark.parametrize("made", ["asyncio", "blocking"])
def test_a_server_without_tls(made: str, mq_broker: Broker) -> None:
    with pytest.raises(ConnectionLost, match="does the server speak TLS"):
        first_words(made, mq_broker.namesrv, tls=True)


def first_words(made: str, namesrv: str, tls: Any) -> None:
    if made == "blocking":
        client = BlockingClient(namesrv, tls=tls, retry_ms=0)
        try:
            client.topics()
        finally:
            client.close()
    else:
        with AdminClient(namesrv, tls=tls, request_timeout_ms=5_000) as admin:
            admin.topic_list()


def test_the_environment(
    secured: Secured, trusting: TlsSettings, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setenv("MQSPARK_TLS", "true")
    monkeypatch.setenv("MQSPARK_TLS_CA_FILE", str(trusting.ca_file))
    monkeypatch.setenv("MQSPARK_TLS_CERT_FILE", str(trusting.cert_file or ""))
    monkeypatch.setenv("MQSPARK_TLS_KEY_FILE", str(trusting.key_file or ""))
    monkeypatch.setenv("MQSPARK_TLS_KEY_PASSWORD", trusting.key_password or "")
    assert TlsSettings.from_environment() == TlsSettings(
        **{
            name: str(value) if isinstance(value, Path) else value
            for name, value in (
                ("ca_file", trusting.ca_file),
                ("cert_file", trusting.cert_file),
                ("key_file", trusting.key_file),
                ("key_password", trusting.key_password),
            )
        }
    )
    for made in ("asyncio", "blocking"):
        first_words(made, secured.namesrv, None)


def test_flags_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MQSPARK_TLS", "false")
    assert TlsSettings.from_environment() is None
    monkeypatch.setenv("MQSPARK_TLS", "yes")
    with pytest.raises(ConfigError, match="MQSPARK_TLS='yes' is neither true nor false"):
        TlsSettings.from_environment()


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"ca_file": "/nowhere/ca.pem"}, "ca_file"),
        ({"ca_file": __file__}, "ca_file"),
        ({"cert_file": "/nowhere/cert.pem"}, "cert_file"),
    ],
)
def test_unusable_files_are_named(settings: dict[str, str], key: str) -> None:
    with pytest.raises(ConfigError, match=f"{key} {settings[key]} cannot be used") as caught:
        AdminClient("127.0.0.1:9", tls=TlsSettings(**settings)).start()  # type: ignore[arg-type]
    assert caught.value.key == key


def test_a_key_without_its_certificate() -> None:
    with pytest.raises(ConfigError, match="cert_file, which is missing"):
        TlsSettings(key_file="/etc/key.pem")


def test_an_encrypted_key_asks_no_terminal(tmp_path: Path) -> None:
    mine = trustme.CA().issue_cert("client@example.com")
    mine.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    key = load_pem_private_key(mine.private_key_pem.bytes(), None).private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"canary")
    )
    (tmp_path / "key.pem").write_bytes(key)
    for password in (None, "canary-wrong"):
        settings = TlsSettings(
            cert_file=tmp_path / "cert.pem", key_file=tmp_path / "key.pem", key_password=password
        )
        with pytest.raises(ConfigError, match="cannot be used") as caught:
            AdminClient("127.0.0.1:9", tls=settings).start()
        assert "canary" not in f"{caught.value}{settings}"
