"""The port that slaves connect to, with users and with TLS: nobody gets a byte of the log without a proof."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from mqspark import Credentials, Message, Producer
from mqspark.auth.authority import Authority
from mqspark.auth.config import AuthConfig
from mqspark.auth.failures import ADDRESS_FAILURES
from mqspark.auth.users import UserStatus
from mqspark.broker.config import BrokerConfig
from mqspark.broker.replication.admission import Admission
from mqspark.errors import ConfigError, ProtocolError
from mqspark.protocol.servers.replicaproof import MAGIC, SlaveProof
from mqspark.protocol.signature import Signer
from mqspark.store.disk.configfile import ConfigFile
from mqspark.testing import Cluster
from mqspark_server.authfiles import AesGcm
from mqspark_server.net import replicationserver
from tests.support.slaves import MASTER, SLAVE, until_copied
from tests.support.users import with_users
from tests.support.waiting import eventually

ROOT = Credentials("root", "root-secret")
SETTINGS = with_users(inner=("inner", "inner-secret"), authorizationEnabled=False)
FROM_THE_FIRST_BYTE = bytes(7) + b"\x01"


def ha_port(cluster: Cluster) -> tuple[str, int]:
    host, _, port = cluster.apps[MASTER].config.ha_address.rpartition(":")
    return host, int(port)


def read_on(peer: socket.socket) -> bytes:
    """What it sends until it closes the connection."""
    got = b""
    try:
        while data := peer.recv(1 << 16):
            got += data
    except ConnectionResetError:
        return got
    return got


def sent_to(cluster: Cluster, words: bytes) -> bytes:
    """What the port answers until it closes the connection."""
    with socket.create_connection(ha_port(cluster), timeout=60) as peer:
        peer.sendall(words)
        return read_on(peer)


def audited(cluster: Cluster) -> list[dict[str, str]]:
    text = (cluster.store_paths[MASTER] / "config" / "auth" / "audit.log").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    return [line for line in lines if line["request"] == "REPLICATE"]


def fill(cluster: Cluster, keys: Credentials | None = ROOT) -> None:
    with Producer(cluster.namesrv, group="p", credentials=keys) as producer:
        for number in range(20):
            producer.send(Message("Copied", b"canary %d" % number))


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(slaves=1, store=tmp_path_factory.mktemp("guarded"), settings=SETTINGS) as cluster:
        fill(cluster)
        until_copied(cluster)
        yield cluster


@pytest.mark.parametrize("words", [bytes(8), FROM_THE_FIRST_BYTE, bytes(20)], ids=["all", "1", "epochs"])
def test_who_proves_nothing_gets_nothing(guarded: Cluster, words: bytes) -> None:
    assert sent_to(guarded, words) == b""


def test_who_has_no_secret_gets_a_challenge_and_no_more(guarded: Cluster) -> None:
    proof = SlaveProof(guarded.apps[MASTER].config.broker_name, "inner", Signer("inner", "guessed"))
    with socket.create_connection(ha_port(guarded), timeout=60) as peer:
        peer.sendall(proof.hello)
        challenge = b""
        while len(challenge) < len(MAGIC) + 32:
            challenge += peer.recv(100)
        assert len(challenge) == len(MAGIC) + 32
        peer.sendall(proof.receive(challenge)[0] + FROM_THE_FIRST_BYTE)
        assert read_on(peer) == b""
    judged = [(line["user"], line["decision"]) for line in audited(guarded)]
    assert ("inner", "allowed") in judged
    assert ("inner", "denied") in judged


def test_who_leaves_without_a_proof_is_audited_once(guarded: Cluster) -> None:
    before = len(audited(guarded))
    with socket.create_connection(ha_port(guarded), timeout=60) as peer:
        source = "{}:{}".format(*peer.getsockname()[:2])
    eventually(lambda: len(audited(guarded)) > before)
    lines = [line for line in audited(guarded) if line["peer"] == source]
    assert [(line["user"], line["decision"], line["reason"]) for line in lines] == [
        ("", "denied", "it ended the connection before its proof")
    ]


def test_who_is_refused_or_silent_is_audited_and_counted(
    guarded: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = guarded.apps[MASTER].parts
    gate = parts.core.gate
    assert gate is not None

    def counted() -> tuple[int, int]:
        return guarded.call(lambda: (parts.slaves.refused_connections, gate.decisions["unauthenticated"]))

    def told(peer: socket.socket) -> list[str]:
        source = "{}:{}".format(*peer.getsockname()[:2])
        return [line["reason"] for line in audited(guarded) if line["peer"] == source]

    before = counted()
    monkeypatch.setattr(replicationserver, "MAX_SLAVES", 1)
    with socket.create_connection(ha_port(guarded), timeout=60) as peer:
        assert read_on(peer) == b""
        assert told(peer) == ["1 slaves are connected"]
    monkeypatch.undo()
    monkeypatch.setattr(parts.core.config, "ha_housekeeping_interval", 100)
    with socket.create_connection(ha_port(guarded), timeout=60) as peer:
        assert read_on(peer) == b""
        assert told(peer) == ["it is silent"]
    eventually(lambda: counted() == (before[0] + 2, before[1] + 2), "both to be counted")


def test_guesses_at_the_secret_of_servers_are_slowed_down(tmp_path: Path) -> None:
    with Cluster(store=tmp_path, settings=SETTINGS) as cluster:
        name = cluster.apps[MASTER].config.broker_name

        def guess() -> str:
            proof = SlaveProof(name, "inner", Signer("inner", "guessed"))
            with socket.create_connection(ha_port(cluster), timeout=60) as peer:
                with contextlib.suppress(ConnectionError):
                    peer.sendall(proof.hello)
                    if challenge := peer.recv(len(MAGIC) + 32):
                        peer.sendall(proof.receive(challenge)[0])
                    assert read_on(peer) == b""
            return audited(cluster)[-1]["reason"]

        wrong = "its proof is wrong, or its user is unknown, disabled or not super"
        reasons = [guess() for _ in range(ADDRESS_FAILURES + 20)]
        assert reasons[: ADDRESS_FAILURES // 2] == [wrong] * (ADDRESS_FAILURES // 2)
        assert "too many failed proofs from its address" in reasons


def test_a_slave_whose_user_is_disabled_is_cut_off(tmp_path: Path) -> None:
    with Cluster(slaves=1, store=tmp_path, settings=SETTINGS) as cluster:
        fill(cluster)
        until_copied(cluster)
        master = cluster.apps[MASTER].parts.core
        authority = master.authority
        assert authority is not None
        cluster.call(lambda: authority.users.change("inner", None, None, UserStatus.DISABLE))
        eventually(lambda: cluster.call(lambda: len(master.role.replicas)) == 0, "the slave to be cut off")
        following = cluster.apps[SLAVE].parts.following
        assert following is not None
        eventually(lambda: "log" in following.problems, "the slave to say that it copies nothing")


def test_a_broker_with_users_and_without_credentials_follows_nobody(tmp_path: Path) -> None:
    path = tmp_path / "users.auth"
    authority = Authority(
        AuthConfig(authentication_enabled=True), AesGcm(bytes(32)), ConfigFile(path), needs_a_user=False
    )
    config = BrokerConfig(ha_unproven_peers="10.1.2.3")
    admission = Admission(config, authority, None)
    with pytest.raises(ProtocolError, match="set innerClientAuthenticationCredentials"):
        admission.of_master("10.1.2.4")
    assert admission.of_master("10.1.2.3") is None
    assert admission.of_slave("::ffff:10.1.2.3") is None
    assert admission.of_slave("10.1.2.4") is not None
    assert Admission(BrokerConfig(), None, None).of_slave("10.1.2.4") is None


def test_listed_addresses_are_addresses() -> None:
    with pytest.raises(ConfigError, match="haUnprovenPeers"):
        BrokerConfig(ha_unproven_peers="10.0.0.0/8, slave-1")


def test_listed_addresses_need_no_proof(tmp_path: Path) -> None:
    settings = {**SETTINGS, "haUnprovenPeers": "10.0.0.0/8, 127.0.0.1"}
    with Cluster(slaves=1, store=tmp_path, settings=settings) as cluster:
        fill(cluster)
        until_copied(cluster)
        with socket.create_connection(ha_port(cluster), timeout=60) as peer:
            peer.sendall(FROM_THE_FIRST_BYTE)
            peer.settimeout(10)
            assert peer.recv(12)[:8] == FROM_THE_FIRST_BYTE


def test_a_proof_to_a_broker_without_users_is_refused_with_a_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Cluster(store=tmp_path) as cluster:
        fill(cluster, None)
        assert sent_to(cluster, SlaveProof("broker-a", "inner", Signer("inner", "x")).hello) == b""
        assert "this broker has no users" in caplog.text


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(folder / "server.pem")
    return folder / "server.pem", folder / "ca.pem"


def test_a_slave_copies_over_tls_and_nobody_in_plain(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    server, trusted = certificate
    settings = {
        **SETTINGS,
        "tls.server.mode": "enforcing",
        "tls.server.certPath": str(server),
        "tls.server.keyPath": str(server),
        "useTLS": True,
        "tls.client.trustCertPath": str(trusted),
    }
    with Cluster(slaves=1, store=tmp_path, settings=settings) as cluster:
        context = ssl.create_default_context(cafile=str(trusted))
        with Producer(cluster.namesrv, group="p", credentials=ROOT, tls=context) as producer:
            for number in range(3000):
                producer.send_oneway(Message("Copied", b"canary %d" % number * 50))
            producer.send(Message("Copied", b"last"))
        until_copied(cluster)
        assert sent_to(cluster, bytes(8)) == b""
        name = cluster.apps[MASTER].config.broker_name
        assert sent_to(cluster, SlaveProof(name, "inner", Signer("inner", "inner-secret")).hello) == b""
        with context.wrap_socket(
            socket.create_connection(ha_port(cluster), timeout=60), server_hostname="127.0.0.1"
        ) as peer:
            peer.sendall(bytes(8))
            try:
                got = peer.recv(100)
            except (ssl.SSLError, ConnectionResetError):
                got = b""
            assert got == b""
