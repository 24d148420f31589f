"""Unmodified Java 5.5.0 (both header types), Go and C++ clients that sign their requests, in the format of ACL 1.0 that
ACL 2.0 keeps, on a name server and a broker with the accounts of a `plain_acl.yml`; Java and Go also over TLS.

The released Go client, 2.1.2, has no TLS; the branch after it has, without certificates. The binding of the C++ client
has none.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from mqspark import AdminClient, Credentials, TlsSettings
from tests.interop.driver import Driver, DriverError, JavaDriver, Program, java_driver, message
from tests.interop.handles import FIRST, SEND_OK, bodies, counted, start, take
from tests.interop.jars import Jars
from tests.interop.other_clients import CPP, GO, GO_TLS
from tests.interop.test_tls import certified, mutual_tls
from tests.support.clusters import Cluster, mqspark_broker, mqspark_namesrv
from tests.support.maven import or_skip

Name = Callable[[str], str]

INNER = {"accessKey": "inner", "secretKey": "inner-canary-secret"}
ROOT = Credentials("root-canary", "root-canary-secret")
ALICE = {"access_key": "alice-canary", "secret_key": "alice canary secret: Grüße"}
BOB = {"access_key": "bob", "secret_key": "bob-canary-secret"}
WRONG = {**BOB, "secret_key": "guessed-secret"}
"""Keys of a user of its own, who then has to wait."""
READER = {"access_key": "reader", "secret_key": "reader-canary-secret"}
ACCOUNTS = f"""
accounts:
  - accessKey: {ROOT.access_key}
    secretKey: {ROOT.secret_key}
    admin: true
  - accessKey: {ALICE["access_key"]}
    secretKey: "{ALICE["secret_key"]}"
    defaultTopicPerm: DENY
    defaultGroupPerm: DENY
    topicPerms:
      - Signed*=PUB|SUB
    groupPerms:
      - signed*=SUB
  - accessKey: {BOB["access_key"]}
    secretKey: {BOB["secret_key"]}
    defaultTopicPerm: PUB|SUB
  - accessKey: {READER["access_key"]}
    secretKey: {READER["secret_key"]}
    topicPerms:
      - Signed*=SUB
    groupPerms:
      - signed*=SUB
"""


class Client(NamedTuple):
    language: str
    driver: Driver

    def producer(self, cluster: Cluster, keys: Mapping[str, Any], group: str = "signed-p") -> int:
        return start(self.driver, "producer", cluster, group, **keys)

    def push(self, cluster: Cluster, keys: Mapping[str, Any], topic: str, group: str) -> int:
        topics: dict[str, Any] = {"topic": topic}
        if self.language == "go":
            topics = {"topics": [topic]}
        elif self.language == "cpp":
            return start(self.driver, "push", cluster, group, subscriptions={topic: "*"}, **keys)
        more = {"expression": "*", "from": FIRST, "model": "CLUSTERING", **topics, **keys}
        return start(self.driver, "push", cluster, group, **more)

    def send(self, producer: int, topic: str, body: bytes) -> None:
        given = message(topic, body, tags="größe")
        sent = self.driver.call("producer.send", handle=producer, mode="sync", message=given)
        assert sent["status"] in (SEND_OK, "SEND_OK"), sent

    def stop(self, what: str, handle: int) -> None:
        if self.language == "java":
            self.driver.call(f"{what}.stop", handle=handle)
        elif (self.language, what) != ("cpp", "push"):  # its consumers wait for their long polls
            self.driver.call("stop", handle=handle)


def settings(folder: Path, place: str, more: Mapping[str, object]) -> dict[str, object]:
    return {
        "authenticationEnabled": True,
        "authorizationEnabled": True,
        "authConfigPath": folder / place,
        "migrateAuthFromV1Enabled": True,
        "plainAclPath": folder / "plain_acl.yml",
        "innerClientAuthenticationCredentials": json.dumps(INNER),
        **more,
    }


def serving(stack: ExitStack, folder: Path, more: Mapping[str, object]) -> Cluster:
    (folder / "plain_acl.yml").write_text(ACCOUNTS)
    of_names = {key: value for key, value in more.items() if key.startswith("tls.server")}
    namesrv = stack.enter_context(mqspark_namesrv(folder, settings(folder, "names", of_names)))
    names = {"brokerName": "b", "brokerClusterName": "C", **settings(folder, "users", more)}
    return stack.enter_context(mqspark_broker(folder, namesrv, names))


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with ExitStack() as stack:
        yield serving(stack, tmp_path_factory.mktemp("signed"), {})


OWN_JVM = pytest.mark.slow("a JVM of its own for each header; Go is the fast twin")
JAVA = [pytest.param(f"java-{header}", marks=OWN_JVM) for header in ("JSON", "ROCKETMQ")]
SPINNING = pytest.mark.slow("the C++ client's threads spin; Go is the fast twin")


@pytest.fixture(scope="module", params=[*JAVA, "go", pytest.param("cpp", marks=SPINNING)])
def client(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    drivers: Callable[[Program], Driver],
) -> Iterator[Client]:
    language, _, header = request.param.partition("-")
    folder = tmp_path_factory.mktemp(language)
    with ExitStack() as stack:
        if language == "java":
            jars = request.getfixturevalue("jars")
            yield Client(language, stack.enter_context(java_driver(jars, folder, header)))
            return
        yield Client(language, drivers({"go": GO, "cpp": CPP}[language]))


def make(cluster: Cluster, topic: str, *groups: str, tls: TlsSettings | None = None) -> None:
    with AdminClient(cluster.namesrv, credentials=ROOT, tls=tls or False) as admin:
        admin.create_topic(topic, queues=1)
        for group in groups:
            admin.create_group(group)


def end_of(cluster: Cluster, topic: str) -> int:
    with AdminClient(cluster.namesrv, credentials=ROOT) as admin:
        return sum(offsets.max_offset for offsets in admin.topic_stats(topic).values())


def test_a_signed_send_and_a_signed_consumer(client: Client, guarded: Cluster, name: Name) -> None:
    topic, group = name("Signed"), name("signed")
    make(guarded, topic, group)
    sent = bodies("signed", 20)
    producer = client.producer(guarded, ALICE)
    for body in sent:
        client.send(producer, topic, body)
    consumer = client.push(guarded, READER, topic, group)
    assert counted(take(client.driver, consumer, len(sent))).keys() == set(sent)
    client.stop("producer", producer)
    client.stop("push", consumer)


@pytest.mark.parametrize("keys", [{}, WRONG, READER], ids=["unsigned", "a wrong secret", "without the right"])
def test_who_may_not_send_stores_nothing(
    client: Client, guarded: Cluster, name: Name, keys: Mapping[str, str]
) -> None:
    topic = name("Signed")
    make(guarded, topic)
    producer = client.producer(guarded, keys)
    with pytest.raises((DriverError, AssertionError)):
        client.send(producer, topic, b"never")
    assert end_of(guarded, topic) == 0
    client.stop("producer", producer)


def test_who_may_not_read_is_given_nothing(client: Client, guarded: Cluster, name: Name) -> None:
    topic, foreign = name("Foreign"), name("signed")
    make(guarded, topic, foreign)
    try:
        consumer = client.push(guarded, ALICE, topic, foreign)
    except DriverError:
        return  # refused at its start
    assert take(client.driver, consumer, 1, timeout_ms=3_000) == []


@pytest.mark.slow("servers and a JVM of its own; the clients above sign without TLS")
def test_java_over_tls_with_a_certificate_and_signatures(jars: Jars, tmp_path: Path, name: Name) -> None:
    """Producer, push consumer and mqadmin; name server and broker take nothing but TLS, and want certificates."""
    folder, topic, group = certified(tmp_path), name("Signed"), name("signed")
    server = mutual_tls(folder)
    with ExitStack() as stack:
        cluster = serving(stack, tmp_path, server)
        options = java_tls(folder)
        java: JavaDriver = stack.enter_context(java_driver(jars, folder / "driver", "JSON", options))
        ours = TlsSettings(
            ca_file=folder / "ca.pem", cert_file=folder / "client.pem", key_file=folder / "client.key"
        )
        make(cluster, topic, group, tls=ours)
        client = Client("java", java)
        sent = bodies("over tls", 20)
        producer = client.producer(cluster, ALICE)
        for body in sent:
            client.send(producer, topic, body)
        consumer = client.push(cluster, READER, topic, group)
        assert counted(take(java, consumer, len(sent))).keys() == set(sent)
        listed = java.call(
            "mqadmin", arguments=["listUser", "-b", cluster.broker, "-n", cluster.namesrv],
            access_key=ROOT.access_key, secret_key=ROOT.secret_key,
        )  # fmt: skip
        assert "alice-canary" in listed["out"]
        assert "secret" not in listed["out"]
        refused = java.call(
            "mqadmin", arguments=["listUser", "-b", cluster.broker, "-n", cluster.namesrv], **READER
        )
        assert "alice-canary" not in refused["out"]


@pytest.mark.slow("servers of its own, and a build of another Go client; those above sign without TLS")
def test_go_over_tls_and_signatures(tmp_path: Path, name: Name) -> None:
    """Producer and push consumer; name server and broker take nothing but TLS."""
    or_skip(GO_TLS.build)
    folder, topic, group = certified(tmp_path), name("Signed"), name("signed")
    server = {
        "tls.server.mode": "enforcing",
        "tls.server.certPath": folder / "server.pem",
        "tls.server.keyPath": folder / "server.key",
        "useTLS": "true",
        "tls.client.trustCertPath": folder / "ca.pem",
    }
    secured = {**ALICE, "tls": True}
    with ExitStack() as stack:
        cluster = serving(stack, tmp_path, server)
        make(cluster, topic, group, tls=TlsSettings(ca_file=folder / "ca.pem"))
        client = Client("go", stack.enter_context(GO_TLS.running(folder / "driver")))
        with pytest.raises(DriverError):
            client.send(client.producer(cluster, ALICE, "plain"), topic, b"never")
        sent = bodies("over tls", 20)
        producer = client.producer(cluster, secured)
        for body in sent:
            client.send(producer, topic, body)
        consumer = client.push(cluster, {**READER, "tls": True}, topic, group)
        assert counted(take(client.driver, consumer, len(sent))).keys() == set(sent)
        foreign = client.producer(cluster, {**WRONG, "tls": True}, "wrong")
        with pytest.raises(DriverError):
            client.send(foreign, topic, b"never")
        client.stop("producer", producer)
        client.stop("push", consumer)


def java_tls(folder: Path) -> list[str]:
    values = {
        "tls.enable": "true",
        "tls.test.mode.enable": "false",
        "tls.client.authServer": "true",
        "tls.client.certPath": folder / "client.pem",
        "tls.client.keyPath": folder / "client.key",
        "tls.client.trustCertPath": folder / "ca.pem",
    }
    path = folder / "client.properties"
    path.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
    return ["-Dtls.enable=true", f"-Dtls.config.file={path}"]
