"""Client certificates as users, over real connections: the name that a trusted authority wrote, and no other."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import trustme

from mqspark import AdminClient, Credentials, Message, Producer, TlsSettings
from mqspark.errors import BrokerError, ConfigError, MQError
from mqspark.testing import Cluster
from mqspark_server.settings.settings import Layer, broker_settings
from tests.support import users
from tests.unit.auth_kit import allow

ROOT = Credentials(*users.ROOT)


class Certified(NamedTuple):
    cluster: Cluster
    folder: Path

    def tls(self, name: str | None) -> TlsSettings:
        files = {} if name is None else {"cert_file": self.folder / f"{name}.pem"}
        return TlsSettings(ca_file=self.folder / "ca.pem", **files)


def settings(folder: Path) -> dict[str, object]:
    return users.with_users(inner=("inner", "inner-secret"), authenticateByCertificate=True) | {
        "tls.server.mode": "enforcing",
        "tls.server.certPath": str(folder / "server.pem"),
        "tls.server.trustCertPath": str(folder / "ca.pem"),
        "tls.server.need.client.auth": "optional",
        "useTLS": True,
        "tls.client.trustCertPath": str(folder / "ca.pem"),
    }


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Certified]:
    folder = tmp_path_factory.mktemp("certified")
    trusted, foreign = trustme.CA(), trustme.CA()
    trusted.cert_pem.write_to_path(folder / "ca.pem")
    trusted.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(folder / "server.pem")
    for authority, file, common_name in (
        (trusted, "alice", "alice"),
        (trusted, "bob", "bob"),
        (trusted, "nameless", None),
        (foreign, "forged", "root"),
    ):
        issued = authority.issue_cert("client.example", common_name=common_name)
        issued.private_key_and_cert_chain_pem.write_to_path(folder / f"{file}.pem")
    with Cluster(store=folder / "store", settings=settings(folder)) as cluster:
        one = Certified(cluster, folder)
        with AdminClient(cluster.namesrv, credentials=ROOT, tls=one.tls(None)) as admin:
            admin.create_topic("Orders", queues=1)
            admin.create_topic("Other", queues=1)
        authority_of = cluster.apps[0].parts.core.authority
        assert authority_of is not None
        cluster.call(lambda: allow(authority_of, "alice", "Topic:Orders Pub"))
        yield one


def sent(one: Certified, name: str | None, topic: str = "Orders") -> str:
    try:
        with Producer(one.cluster.namesrv, group="p", tls=one.tls(name), send_timeout_ms=5_000) as producer:
            return producer.send(Message(topic, b"x")).status.name
    except BrokerError as error:
        return str(error.remark)
    except MQError as error:
        return type(error).__name__


def test_a_certificate_is_its_names_user_with_its_policies(certified: Certified) -> None:
    assert sent(certified, "alice") == "SEND_OK"
    assert "User:alice has no permission to access Topic:Other" in sent(certified, "alice", "Other")


def test_other_certificates_are_nobody(certified: Certified) -> None:
    assert sent(certified, "bob") == "the certificate names no user."
    assert sent(certified, "nameless") == "username cannot be null."
    assert sent(certified, None) == "username cannot be null."
    assert sent(certified, "forged") == "ConnectionLost"


def test_the_audit_log_has_the_name(certified: Certified) -> None:
    text = (certified.cluster.store_paths[0] / "config" / "auth" / "audit.log").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert {"alice", "bob"} <= {line["user"] for line in lines}


def test_nobody_is_told_by_a_certificate_that_nobody_asks_for(tmp_path: Path) -> None:
    values = {**settings(tmp_path), "tls.server.need.client.auth": "none"}
    with pytest.raises(ConfigError, match="authenticateByCertificate needs"):
        broker_settings({}, Layer("test", values), use_environment=False)
    values = {**settings(tmp_path), "authenticationEnabled": False, "authorizationEnabled": False}
    with pytest.raises(ConfigError, match="authenticateByCertificate needs authenticationEnabled"):
        broker_settings({}, Layer("test", values), use_environment=False)
