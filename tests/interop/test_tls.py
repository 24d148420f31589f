"""TLS between our clients and an unmodified RocketMQ 5.5.0, and between its clients and our servers. That for Python
needs a proxy, RocketMQ's own, which speaks TLS on both sides; the older binding of the C++ client has no TLS."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from mqspark import (
    AdminClient,
    ConsumeFromWhere,
    LitePullConsumer,
    Message,
    Producer,
    PushConsumer,
    TlsSettings,
)
from mqspark.client.blocking import BlockingClient
from mqspark.errors import ConnectionLost
from mqspark.message import MessageQueue
from mqspark.testing import Broker
from tests.interop.driven import message as sent_message
from tests.interop.driver import DriverError, body_of, java_driver, message
from tests.interop.jars import Jars
from tests.interop.other_clients import GRPC_PYTHON
from tests.interop.proxy import fetch_proxy, running_proxy
from tests.interop.rocketmq import rocketmq_broker, rocketmq_namesrv
from tests.support.clusters import Cluster, mqspark_broker, mqspark_namesrv
from tests.support.maven import or_skip
from tests.support.processes import HOST
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow("a RocketMQ of its own takes half a minute to start")

PATIENT_MS = 30_000
"""How long a send waits for a broker to break off a handshake."""
FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET


@dataclass(frozen=True)
class Secured:
    cluster: Cluster
    tls: TlsSettings


def mutual_tls(folder: Path) -> dict[str, object]:
    """Settings of servers with the files of ``certified``: nothing but TLS, by certificates of both sides."""
    return {
        "tls.server.mode": "enforcing",
        "tls.server.certPath": folder / "server.pem",
        "tls.server.keyPath": folder / "server.key",
        "tls.server.need.client.auth": "require",
        "tls.server.trustCertPath": folder / "ca.pem",
        "useTLS": "true",
        "tls.client.certPath": folder / "server.pem",
        "tls.client.keyPath": folder / "server.key",
        "tls.client.trustCertPath": folder / "ca.pem",
    }


def certified(folder: Path) -> Path:
    """The folder, with ca.pem and the certificates and keys of a server and a client."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    for name, holder in (("server", HOST), ("client", "client@example.com")):
        issued = authority.issue_cert(holder)
        issued.cert_chain_pems[0].write_to_path(folder / f"{name}.pem")
        key = load_pem_private_key(issued.private_key_pem.bytes(), None)
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        (folder / f"{name}.key").write_bytes(pem)
    return folder


@pytest.fixture(scope="module")
def secured(jars: Jars, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """A broker that takes nothing but TLS, and wants certificates. (Its name server takes both, since the broker itself
    registers without.)"""
    folder = certified(tmp_path_factory.mktemp("tls"))
    with rocketmq_namesrv(jars, folder / "namesrv", java_options(folder, "permissive")) as namesrv:
        options = java_options(folder, "enforcing")
        with rocketmq_broker(jars, folder / "broker", namesrv, options=options) as cluster:
            yield Secured(
                cluster,
                TlsSettings(
                    ca_file=folder / "ca.pem", cert_file=folder / "client.pem", key_file=folder / "client.key"
                ),
            )


def java_options(folder: Path, mode: str) -> list[str]:
    settings = {
        "tls.test.mode.enable": "false",
        "tls.server.need.client.auth": "require" if mode == "enforcing" else "none",
        "tls.server.keyPath": folder / "server.key",
        "tls.server.certPath": folder / "server.pem",
        "tls.server.authClient": "true" if mode == "enforcing" else "false",
        "tls.server.trustCertPath": folder / "ca.pem",
    }
    path = folder / f"{mode}.properties"
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    return [f"-Dtls.server.mode={mode}", f"-Dtls.config.file={path}"]


def test_a_message_there_and_back(secured: Secured, name: Callable[[str], str]) -> None:
    cluster, tls, topic = secured.cluster, secured.tls, name("Secured")
    got: set[bytes] = set()
    large = bytes(range(256)) * 4_000
    with AdminClient(cluster.namesrv, tls=tls) as admin:
        admin.create_topic(topic, queues=1)
    with Producer(cluster.namesrv, group=name("p"), tls=tls, compress_from_bytes=1 << 30) as producer:
        for body in (b"small", large):
            producer.send(Message.of(topic, body))
    push = PushConsumer(
        cluster.namesrv,
        group=name("push"),
        listener=lambda message: got.add(message.body),
        consume_from=FIRST,
        tls=tls,
    )
    push.subscribe(topic)
    with push:
        eventually(lambda: got == {b"small", large}, "both messages")
    lite = LitePullConsumer(cluster.namesrv, group=name("lite"), consume_from=FIRST, tls=tls)
    lite.subscribe(topic)
    pulled: set[bytes] = set()
    with lite:
        eventually(lambda: pulled.update(m.body for m in lite.poll(500)) or pulled == got, "both messages")
    client = BlockingClient(cluster.namesrv, tls=tls)
    assert client.max_offsets(cluster.broker, [MessageQueue(topic, cluster.broker_name, 0)]) == [2]
    client.close()


def test_without_a_certificate(secured: Secured, name: Callable[[str], str]) -> None:
    trusting = TlsSettings(ca_file=secured.tls.ca_file)
    with Producer(
        secured.cluster.namesrv, group=name("p"), tls=trusting, send_timeout_ms=PATIENT_MS
    ) as producer:
        with pytest.raises(ConnectionLost):
            producer.send(Message.of(name("Secured"), b"x"))


def test_without_tls(secured: Secured, name: Callable[[str], str]) -> None:
    with Producer(secured.cluster.namesrv, group=name("p"), send_timeout_ms=PATIENT_MS) as producer:
        with pytest.raises(ConnectionLost):
            producer.send(Message.of(name("Secured"), b"x"))


def test_javas_client_on_our_servers(jars: Jars, tmp_path: Path, name: Callable[[str], str]) -> None:
    """Name server and broker take nothing but TLS, and want certificates."""
    folder, topic = certified(tmp_path), name("Secured")
    server = mutual_tls(folder)
    client = {
        "tls.enable": "true",
        "tls.test.mode.enable": "false",
        "tls.client.authServer": "true",
        "tls.client.certPath": folder / "client.pem",
        "tls.client.keyPath": folder / "client.key",
        "tls.client.trustCertPath": folder / "ca.pem",
    }
    path = folder / "client.properties"
    path.write_text("".join(f"{key}={value}\n" for key, value in client.items()))
    options = ["-Dtls.enable=true", f"-Dtls.config.file={path}"]
    with (
        Broker(settings={key: str(value) for key, value in server.items()}) as broker,
        java_driver(jars, folder / "driver", "JSON", options) as java,
    ):
        assert broker.address in java.mqadmin("clusterList", "-n", broker.namesrv)
        producer = java.call("producer.start", namesrv=broker.namesrv, group=name("p"))
        for number in range(20):
            body = bytes([number]) * 10_000
            java.call("producer.send", handle=producer["handle"], mode="sync", message=message(topic, body))
        java.call("producer.stop", handle=producer["handle"])
        got: set[bytes] = set()
        tls = TlsSettings(
            ca_file=folder / "ca.pem", cert_file=folder / "client.pem", key_file=folder / "client.key"
        )
        lite = LitePullConsumer(broker.namesrv, group=name("lite"), consume_from=FIRST, tls=tls)
        lite.subscribe(topic)
        with lite:
            eventually(
                lambda: got.update(m.body for m in lite.poll(500)) or len(got) == 20, "Java's messages"
            )
        assert got == {bytes([number]) * 10_000 for number in range(20)}


def test_pythons_client_through_a_proxy_to_our_servers(
    jars: Jars, tmp_path: Path, name: Callable[[str], str]
) -> None:
    """TLS all the way: the proxy takes nothing else, and neither do name server and broker, which want certificates."""
    or_skip(GRPC_PYTHON.build)
    proxy_jars = or_skip(fetch_proxy)
    folder, topic, group = certified(tmp_path), name("Secured"), name("python")
    values = {
        "tls.enable": "true",
        "tls.test.mode.enable": "false",
        "tls.client.authServer": "true",
        "tls.client.certPath": folder / "client.pem",
        "tls.client.keyPath": folder / "client.key",
        "tls.client.trustCertPath": folder / "ca.pem",
        "tls.server.certPath": folder / "server.pem",
        "tls.server.keyPath": folder / "server.key",
    }
    path = folder / "proxy.properties"
    path.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
    options = ["-Dtls.enable=true", "-Dtls.server.mode=enforcing", f"-Dtls.config.file={path}"]
    settings = {
        "tlsTestModeEnable": False,
        "tlsCertPath": str(folder / "server.pem"),
        "tlsKeyPath": str(folder / "server.key"),
    }
    server = {
        "tls.server.mode": "enforcing",
        "tls.server.certPath": folder / "server.pem",
        "tls.server.keyPath": folder / "server.key",
        "tls.server.need.client.auth": "require",
        "tls.server.trustCertPath": folder / "ca.pem",
    }
    own = {
        "useTLS": "true",
        "tls.client.certPath": folder / "server.pem",
        "tls.client.keyPath": folder / "server.key",
        "tls.client.trustCertPath": folder / "ca.pem",
    }
    tls = TlsSettings(
        ca_file=folder / "ca.pem", cert_file=folder / "client.pem", key_file=folder / "client.key"
    )
    trusting = {"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(folder / "ca.pem")}
    sent = {bytes([number]) * 10_000 for number in range(20)}
    with (
        mqspark_namesrv(folder, server) as namesrv,
        mqspark_broker(
            folder, namesrv, {"brokerName": "b", "brokerClusterName": "C", **server, **own}
        ) as cluster,
    ):
        with AdminClient(cluster.namesrv, tls=tls) as admin:
            admin.create_topic(topic, queues=1)
            admin.create_group(group)
        with (
            running_proxy(proxy_jars, folder / "proxy", cluster, settings, options) as proxy,
            GRPC_PYTHON.running(folder / "driver", trusting) as python,
        ):
            plain = python.call("producer.start", endpoints=proxy.grpc, topics=[topic])["handle"]
            with pytest.raises(DriverError):
                python.call("producer.send", handle=plain, messages=[sent_message(topic, b"x")])
            producer = python.call("producer.start", endpoints=proxy.grpc, topics=[topic], tls=True)["handle"]
            messages = [sent_message(topic, body, tag="größe") for body in sorted(sent)]
            python.call("producer.send", handle=producer, messages=messages)
            reading = {"group": group, "await_ms": 5_000, "subscriptions": {topic: ["TAG", "*"]}, "tls": True}
            consumer = python.call("simple.start", endpoints=proxy.grpc, **reading)["handle"]
            got: set[bytes] = set()

            def received() -> bool:
                try:
                    views = python.call("simple.receive", handle=consumer, max=32, invisible_ms=60_000)
                except DriverError:  # it does not wait until the proxy has its settings
                    return False
                for view in views:
                    python.call("simple.ack", handle=consumer, view=view["view"])
                    assert view["tag"] == "größe"
                    got.add(body_of(view))
                return got == sent

            eventually(received, "Python's messages", 60)
