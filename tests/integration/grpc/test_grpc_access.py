"""Who may call the gRPC service: TLS and plain text on one port, users and their rights, bounds."""

from __future__ import annotations

import functools
import json
import logging
import ssl
import subprocess
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from mqspark.base.clock import wall_ms
from mqspark.client.remoting.credentials import Credentials
from mqspark.client.sync import AdminClient, Producer
from mqspark.message import Message, decode_offset_id
from mqspark.testing import Broker
from mqspark_server.proxy import messaging_pb2 as pb
from mqspark_server.proxy.grpcservice import CHANGE_LOG_LEVEL
from tests.support.grpcclients import BareCaller, bare_caller, message, receive_request, resource, signed
from tests.support.processes import mqspark_command, process, ready_line, set_options
from tests.support.users import ROOT, with_users
from tests.unit.auth_kit import allow

WRITER = ("writer", "writer-secret")
READER = ("reader", "reader-secret")
STRANGER = ("stranger", "stranger-secret")
INNER = json.dumps({"accessKey": ROOT[0], "secretKey": ROOT[1]})


@pytest.fixture(scope="module")
def guarded() -> Iterator[Broker]:
    """A broker with users, whose users WRITER and READER may write to one topic, and read it for one group, and a
    certificate for development."""
    settings = {"grpcEnable": True, "tls.test.mode.enable": True}
    with Broker(settings=with_users() | settings) as broker:
        with AdminClient(broker.namesrv, credentials=Credentials(*ROOT)) as admin:
            for topic in ("open", "closed"):
                admin.create_topic(topic)
            admin.create_topic("decided", attributes={"message.type": "TRANSACTION"})
            admin.create_group("readers")
        parts = broker.apps[0].parts
        assert parts is not None
        authority = parts.core.authority
        assert authority is not None
        rules = {
            WRITER: ("Topic:open Pub", "Topic:decided Pub"),
            READER: ("Topic:open Sub", "Group:readers Sub"),
            STRANGER: (),
        }
        for (name, secret), given in rules.items():
            broker.call(functools.partial(allow, authority, name, *given, secret=secret))
        yield broker


def sent(caller: BareCaller, topic: str) -> int:
    return int(caller.SendMessage(pb.SendMessageRequest(messages=[message(topic)])).status.code)


@pytest.fixture(scope="module")
def proxied(guarded: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a proxy before that broker."""
    log = tmp_path_factory.mktemp("proxy") / "log"
    command = [*mqspark_command(), "proxy", "run", "-n", guarded.namesrv]
    settings = {
        "listenPort": 0,
        "bindAddress": "127.0.0.1",
        "authenticationEnabled": True,
        "authorizationEnabled": True,
        "innerClientAuthenticationCredentials": INNER,
    }
    with process([*command, *set_options(settings)], log, stdout=subprocess.PIPE) as child:
        yield ready_line(child, log)["grpc"]


@pytest.fixture(params=["broker", "proxy"])
def door(request: pytest.FixtureRequest, guarded: Broker) -> str:
    """The two ways to run: an address of each."""
    if request.param == "proxy":
        return str(request.getfixturevalue("proxied"))
    return str(guarded.grpc_address)


def popped(caller: BareCaller) -> pb.SystemProperties:
    """One of the messages of the topic that READER may read."""
    answers = caller.ReceiveMessage(receive_request("open", "readers"))
    return next(each.message.system_properties for each in list(answers) if each.HasField("message"))


def test_users_are_those_of_remoting(door: str) -> None:
    with bare_caller(door, **signed(*WRITER)) as caller:
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
        with bare_caller(door, **wrong) as caller:
            assert sent(caller, "open") == pb.UNAUTHORIZED, wrong


def test_who_may_not_read_can_do_nothing_with_what_others_have(door: str) -> None:
    where: dict[str, Any] = {"topic": resource("open"), "group": resource("readers")}
    with bare_caller(door, **signed(*WRITER)) as writer, bare_caller(door, **signed(*READER)) as reader:
        assert sent(writer, "open") == pb.OK
        given = popped(reader)
        entry = pb.AckMessageEntry(message_id=given.message_id, receipt_handle=given.receipt_handle)
        where["receipt_handle"] = given.receipt_handle
        acknowledge = pb.AckMessageRequest(topic=where["topic"], group=where["group"], entries=[entry])
        with bare_caller(door, **signed(*STRANGER)) as stranger:
            for topic in ("open", "decided", "nowhere"):  # nor learn which there are, and what they take
                assert sent(stranger, topic) == pb.FORBIDDEN
            assert stranger.AckMessage(acknowledge).entries[0].status.code == pb.FORBIDDEN
            change = pb.ChangeInvisibleDurationRequest(**where)
            assert stranger.ChangeInvisibleDuration(change).status.code == pb.FORBIDDEN
            forward = pb.ForwardMessageToDeadLetterQueueRequest(**where)
            assert stranger.ForwardMessageToDeadLetterQueue(forward).status.code == pb.FORBIDDEN
        assert reader.AckMessage(acknowledge).status.code == pb.OK


def test_who_may_not_consume_does_not_learn_the_settings_of_a_group(door: str) -> None:
    subscription = pb.Subscription(group=resource("readers"))
    member = pb.Settings(client_type=pb.SIMPLE_CONSUMER, subscription=subscription)
    said = pb.TelemetryCommand(settings=member)
    with bare_caller(door, **signed(*READER)) as reader:
        (told,) = reader.Telemetry(iter([said]))
        assert told.settings.subscription.group.name == "readers"
    with bare_caller(door, **signed(*STRANGER)) as stranger:
        told = next(stranger.Telemetry(iter([said])))
        assert (told.status.code, told.WhichOneof("command")) == (pb.FORBIDDEN, None)


def test_who_may_not_write_is_no_producer_that_is_asked_for_transactions(door: str) -> None:
    """The question of a broker has the message."""
    publishing = pb.Publishing(topics=[resource("decided")])
    said = pb.TelemetryCommand(settings=pb.Settings(client_type=pb.PRODUCER, publishing=publishing))
    with bare_caller(door, **signed(*WRITER)) as writer:
        (told,) = writer.Telemetry(iter([said]))
        assert told.settings.publishing.topics[0].name == "decided"
    for user in (READER, STRANGER):
        with bare_caller(door, **signed(*user)) as other:
            told = next(other.Telemetry(iter([said])))
            assert (told.status.code, told.WhichOneof("command")) == (pb.FORBIDDEN, None)


def test_a_message_of_another_topic_is_no_dead_letter_of_a_group(door: str, guarded: Broker) -> None:
    with AdminClient(guarded.namesrv, credentials=Credentials(*ROOT)) as admin:
        with Producer(guarded.namesrv, group="writers", credentials=Credentials(*ROOT)) as producer:
            stored = producer.send(Message("closed", b"secret"))
        position = decode_offset_id(stored.offset_message_id)[2]
        forged = f"0 {wall_ms()} 60000 0 0 {stored.queue.broker_name} 0 0 {position}"
        with bare_caller(door, **signed(*READER)) as reader:
            forward = pb.ForwardMessageToDeadLetterQueueRequest(
                topic=resource("open"), group=resource("readers"), receipt_handle=forged
            )
            assert reader.ForwardMessageToDeadLetterQueue(forward).status.code == pb.FORBIDDEN
        assert "%DLQ%readers" not in admin.topic_list()


def test_a_transaction_ends_by_who_may_write(door: str) -> None:
    half = message("decided", message_type=pb.TRANSACTION)
    with bare_caller(door, **signed(*WRITER)) as writer, bare_caller(door, **signed(*READER)) as reader:
        (entry,) = writer.SendMessage(pb.SendMessageRequest(messages=[half])).entries
        end = pb.EndTransactionRequest(
            topic=resource("decided"),
            message_id=entry.message_id,
            transaction_id=entry.transaction_id,
            resolution=pb.COMMIT,
        )
        assert reader.EndTransaction(end).status.code == pb.FORBIDDEN
        assert writer.EndTransaction(end).status.code == pb.OK


def change_log_level(address: str, level: int, user: tuple[str, str]) -> str:
    """The remark."""
    with grpc.insecure_channel(address) as channel:
        change = channel.unary_unary(
            CHANGE_LOG_LEVEL,
            request_serializer=pb.ChangeLogLevelRequest.SerializeToString,
            response_deserializer=pb.ChangeLogLevelResponse.FromString,
        )
        metadata = tuple(BareCaller(channel, **signed(*user)).metadata.items())
        request = pb.ChangeLogLevelRequest(level=level)  # type: ignore[arg-type] - numbers that are none, too
        return str(change(request, timeout=10, metadata=metadata).remark)


def test_who_may_change_the_cluster_changes_the_log_level(door: str, guarded: Broker) -> None:
    root = logging.getLogger()
    before = root.level
    try:
        for user, level, code in (
            (WRITER, pb.ChangeLogLevelRequest.DEBUG, grpc.StatusCode.PERMISSION_DENIED),
            (("nobody", "secret"), pb.ChangeLogLevelRequest.DEBUG, grpc.StatusCode.PERMISSION_DENIED),
            (ROOT, 9, grpc.StatusCode.INVALID_ARGUMENT),
        ):
            with pytest.raises(grpc.RpcError) as refused:
                change_log_level(door, level, user)
            assert (refused.value.code(), root.level) == (code, before)
        assert (
            change_log_level(door, pb.ChangeLogLevelRequest.ERROR, ROOT) == "this server logs from ERROR on"
        )
        in_this_process = door == guarded.grpc_address
        assert root.level == (logging.ERROR if in_this_process else before)
    finally:
        root.setLevel(before)


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
