"""Clients of users with policies for addresses that go on at another address."""

from __future__ import annotations

import base64
from typing import Any, cast

import pytest

from mqspark.protocol.session import Session
from mqspark.protocol.signature import Signer
from mqspark_server.proxy import messaging_pb2 as pb
from mqspark_server.proxy.backend import GrpcCaller, ProxyBackend
from mqspark_server.proxy.backends.clusterusers import ClusterUsers
from mqspark_server.proxy.clients import grpcclients
from mqspark_server.proxy.clients.grpcclients import RECONNECTING_S, GrpcClient, GrpcClients, TelemetryStream
from mqspark_server.proxy.clients.grpcmetadata import GrpcMetadata
from mqspark_server.proxy.grpcstatus import GrpcRefusal
from tests.unit.proxy_kit import Context
from tests.unit.server.proxy.test_clusterusers import CONFIG, JavaBroker

pytestmark = pytest.mark.anyio

HERE, THERE, FORBIDDEN = "10.0.0.7", "10.9.9.9", "203.0.113.7"


class UsersLink:
    def __init__(self, users: ClusterUsers, caller: GrpcCaller) -> None:
        self.rights = users.rights(Session(0, *caller.address, []))
        self.is_open = True

    def close(self) -> None:
        self.is_open = False


class UsersBackend:
    def __init__(self, users: ClusterUsers) -> None:
        self._users = users

    def link(self, caller: GrpcCaller, on_request: Any) -> UsersLink:
        return UsersLink(self._users, caller)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(grpcclients, "monotonic", lambda: now[0])
    return now


@pytest.fixture
async def clients() -> GrpcClients:
    broker = JavaBroker()
    for entry in broker.acls[0]["policies"][0]["entries"]:  # type: ignore[index]
        entry["sourceIps"] = ["10.0.0.0/8"]
    users = ClusterUsers(CONFIG, broker.ask, broker.ask_broker)
    await users.refresh()
    return GrpcClients(cast("ProxyBackend", UsersBackend(users)), lambda *_: None, 1 << 20)


def call_from(clients: GrpcClients, address: str, name: str = "reader") -> GrpcClient:
    signature = base64.b64decode(Signer("reader", f"{name}-secret").signature(b"now")).hex()
    signed = f"MQv2-HMAC-SHA1 Credential=reader, SignedHeaders=x-mq-date-time, Signature={signature}"
    context = Context(x_mq_client_id="client", authorization=signed, x_mq_date_time="now")
    context.address = address, 4000
    return clients.of(GrpcMetadata(context))


def is_open(client: GrpcClient) -> bool:
    return cast("UsersLink", client.link).is_open


def connect(clients: GrpcClients, client: GrpcClient) -> None:
    client.streams.append(TelemetryStream(clients.pushes))


async def test_a_client_that_moves_to_another_permitted_address_goes_on_there(
    clients: GrpcClients, clock: list[float]
) -> None:
    """Its connection at the old address is dead, and nobody has told the server."""
    old = call_from(clients, HERE)
    clients.told(old, pb.Settings(client_type=pb.PUSH_CONSUMER))
    old.is_fifo = True
    connect(clients, old)
    clock[0] += RECONNECTING_S - 1
    with pytest.raises(GrpcRefusal, match="has policies for addresses"):
        call_from(clients, THERE)
    clock[0] += 2
    new = call_from(clients, THERE)
    assert call_from(clients, THERE) is new
    assert (is_open(new), is_open(old), len(clients)) == (True, False, 1)
    assert new.settings is not None
    assert (new.settings.client_type, new.is_fifo) == (pb.PUSH_CONSUMER, True)
    new.link.rights.see("open")


async def test_what_a_client_says_at_its_old_address_is_not_kept_for_the_new(
    clients: GrpcClients, clock: list[float]
) -> None:
    old = call_from(clients, HERE)
    new = call_from(clients, THERE)
    clients.told(old, pb.Settings(client_type=pb.PRODUCER))
    assert new.settings is None
    clients.remove(old)
    assert clients.find(new.key) is new
    clients.remove(new)
    assert clients.ledger.bytes == 0


async def test_a_client_that_is_gone_from_its_old_address_moves_at_once(
    clients: GrpcClients, clock: list[float]
) -> None:
    old = call_from(clients, HERE)
    assert call_from(clients, THERE) is not old
    call_from(clients, HERE)


async def test_two_that_call_in_turns_do_not_end_each_others_links(
    clients: GrpcClients, clock: list[float]
) -> None:
    first = call_from(clients, HERE)
    connect(clients, first)
    for _ in range(5):
        clock[0] += RECONNECTING_S - 1
        assert call_from(clients, HERE) is first
        with pytest.raises(GrpcRefusal):
            call_from(clients, THERE)
    assert is_open(first)


@pytest.mark.parametrize(
    ("address", "name"), [(FORBIDDEN, "reader"), (THERE, "another"), (FORBIDDEN, "another")]
)
async def test_nobody_else_takes_the_place_of_a_client(
    clients: GrpcClients, clock: list[float], address: str, name: str
) -> None:
    honest = call_from(clients, HERE)
    clock[0] += 10 * RECONNECTING_S
    with pytest.raises(GrpcRefusal):
        call_from(clients, address, name)
    assert call_from(clients, HERE) is honest
    honest.link.rights.see("open")
