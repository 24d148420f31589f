"""A proxy before a cluster whose remoting ports speak nothing but TLS, and ask for a certificate."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
import trustme

from mqspark.client.remoting.tls import TlsSettings
from mqspark.client.sync import AdminClient
from mqspark.testing import Broker
from mqspark_server.proxy import messaging_pb2 as pb
from tests.support.grpcclients import BareCaller, bare_caller, message, receive_request, resource
from tests.support.processes import mqspark_command, process, ready_line, set_options

HOST, TOPIC, GROUP = "127.0.0.1", "secret", "secret-readers"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a certificate for everybody, ``both.pem``, and its authority, ``ca.pem``."""
    folder, authority = tmp_path_factory.mktemp("tls"), trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    authority.issue_cert(HOST).private_key_and_cert_chain_pem.write_to_path(str(folder / "both.pem"))
    return folder


def speaking_tls(folder: Path) -> dict[str, object]:
    return {
        "tls.server.mode": "enforcing",
        "tls.server.certPath": folder / "both.pem",
        "useTLS": True,
        "tls.client.certPath": folder / "both.pem",
        "tls.client.trustCertPath": folder / "ca.pem",
    }


@pytest.fixture(scope="module")
def cluster(folder: Path) -> Iterator[Broker]:
    asking = {"tls.server.need.client.auth": "require", "tls.server.trustCertPath": folder / "ca.pem"}
    settings = {name: str(value) for name, value in {**speaking_tls(folder), **asking}.items()}
    with Broker(settings=settings) as broker:
        tls = TlsSettings(ca_file=folder / "ca.pem", cert_file=folder / "both.pem")
        with AdminClient(broker.namesrv, tls=tls) as admin:
            admin.create_topic(TOPIC)
        yield broker


@contextmanager
def proxy_before(cluster: Broker, folder: Path, settings: dict[str, object]) -> Iterator[str]:
    command = [*mqspark_command(), "proxy", "run", "-n", cluster.namesrv]
    command += set_options({"listenPort": 0, "bindAddress": HOST, **settings})
    log = folder / "proxy.log"
    with process(command, log, stdout=subprocess.PIPE) as child:
        yield ready_line(child, log)["grpc"]


def test_a_proxy_speaks_tls_to_its_brokers_and_to_its_clients(cluster: Broker, folder: Path) -> None:
    with proxy_before(cluster, folder, speaking_tls(folder)) as address:
        trust = grpc.ssl_channel_credentials((folder / "ca.pem").read_bytes())
        with grpc.secure_channel(address, trust) as channel:
            caller = BareCaller(channel)
            sent = caller.SendMessage(pb.SendMessageRequest(messages=[message(TOPIC, b"m")]))
            assert sent.status.code == pb.OK
            answers = list(caller.ReceiveMessage(receive_request(TOPIC, GROUP), timeout=30))
            (got,) = [each.message for each in answers if each.HasField("message")]
            assert got.body == b"m"
            entry = pb.AckMessageEntry(receipt_handle=got.system_properties.receipt_handle)
            names = {"topic": resource(TOPIC), "group": resource(GROUP)}
            acked = caller.AckMessage(pb.AckMessageRequest(entries=[entry], **names))
            assert acked.status.code == pb.OK
        with bare_caller(address) as plain, pytest.raises(grpc.RpcError):
            plain.QueryRoute(pb.QueryRouteRequest(topic=resource(TOPIC)))


def test_a_proxy_that_speaks_plain_text_to_such_a_cluster_says_that_it_has_no_answer(
    cluster: Broker, folder: Path
) -> None:
    with proxy_before(cluster, folder, {}) as address, bare_caller(address) as caller:
        answer = caller.QueryRoute(pb.QueryRouteRequest(topic=resource(TOPIC)), timeout=30)
        assert answer.status.code == pb.INTERNAL_SERVER_ERROR
        assert "was lost: the peer closed it" in answer.status.message
