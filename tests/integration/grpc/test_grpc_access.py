"""Who may call the gRPC service: TLS and plain text on one port, users and their rights, bounds."""

from __future__ import annotations

import hashlib
import hmac
import json
import ssl
from collections.abc import Iterator

import grpc
import pytest

from mqspark.client.remoting.credentials import Credentials
from mqspark.client.sync import AdminClient
from mqspark.testing import Broker
from mqspark_server.proxy import messaging_pb2 as pb
from tests.support.grpcclients import BareCaller, bare_caller, message, resource
from tests.unit.auth_kit import allow

ROOT = ("root", "root-secret")
WRITER = ("writer", "writer-secret")
DATE = "20261129T101112Z"


@pytest.fixture(scope="module")
def guarded() -> Iterator[Broker]:
    """A broker with users, whose user WRITER may write to one topic, and a certificate for development."""
    settings = {
        "grpcEnable": True,
        "tls.test.mode.enable": True,
        "authenticationEnabled": True,
        "authorizationEnabled": True,
        "initAuthenticationUser": json.dumps({"username": ROOT[0], "password": ROOT[1]}),
        "innerClientAuthenticationCredentials": json.dumps({"accessKey": ROOT[0], "secretKey": ROOT[1]}),
    }
    with Broker(settings=settings) as broker:
        with AdminClient(broker.namesrv, credentials=Credentials(*ROOT)) as admin:
            for topic in ("open", "closed"):
                admin.create_topic(topic)
        parts = broker.apps[0].parts
        assert parts is not None
        authority = parts.core.authority
        assert authority is not None
        broker.call(lambda: allow(authority, WRITER[0], "Topic:open Pub", secret=WRITER[1]))
        yield broker


def signed(user: str, secret: str) -> dict[str, str]:
    digest = hmac.new(secret.encode(), DATE.encode(), hashlib.sha1).hexdigest()
    return {
        "x_mq_date_time": DATE,
        "authorization": f"MQv2-HMAC-SHA1 Credential={user}, SignedHeaders=x-mq-date-time, Signature={digest}",
    }


def sent(caller: BareCaller, topic: str) -> int:
    return int(caller.SendMessage(pb.SendMessageRequest(messages=[message(topic)])).status.code)


def test_users_are_those_of_remoting(guarded: Broker) -> None:
    with bare_caller(guarded.grpc_address, **signed(*WRITER)) as caller:
        assert sent(caller, "open") == pb.OK
        assert sent(caller, "closed") == pb.FORBIDDEN
        route = caller.QueryRoute(pb.QueryRouteRequest(topic=resource("closed")))
        assert route.status.code == pb.FORBIDDEN
        assert caller.QueryRoute(pb.QueryRouteRequest(topic=resource("open"))).status.code == pb.OK
    for wrong in (
        signed("writer", "guessed"),
        signed("nobody", "guessed"),
        {},
        {"authorization": "Basic abc"},
    ):
        with bare_caller(guarded.grpc_address, **wrong) as caller:
            assert sent(caller, "open") == pb.UNAUTHORIZED, wrong


def test_one_port_speaks_tls_and_plain_text(guarded: Broker) -> None:
    address = str(guarded.grpc_address)
    host, _, port = address.rpartition(":")
    pem = ssl.get_server_certificate((host, int(port)))
    channel = grpc.secure_channel(
        address,
        grpc.ssl_channel_credentials(pem.encode()),
        options=[("grpc.ssl_target_name_override", "localhost")],
    )
    with channel, bare_caller(address, **signed(*WRITER)) as plain:
        assert sent(BareCaller(channel, **signed(*WRITER)), "open") == pb.OK
        assert sent(plain, "open") == pb.OK
