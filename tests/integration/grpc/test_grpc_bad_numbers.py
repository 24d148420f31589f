"""Numbers that are no times, streams closed on one side, and names that answers would repeat a thousand times."""

from __future__ import annotations

import time
from collections.abc import Callable

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from mqspark.testing import Broker
from mqspark_server.proxy import messaging_pb2 as pb
from mqspark_server.proxy.content.resources import MAX_NAMESPACE_LENGTH
from mqspark_server.proxy.methods.grpcrouting import MAX_ADDRESSES, MAX_HOST_LENGTH
from tests.support.grpcclients import bare_caller, message, receive_request, resource

FAR_S = 1 << 62
NO_TIMES = [(FAR_S, 0), (-FAR_S, 0), ((1 << 63) - 1, 0), (10**12, 0), (5, 10**9), (5, -1), (5, -(1 << 31))]


@pytest.mark.parametrize(("seconds", "nanos"), NO_TIMES)
def test_what_is_no_time_is_the_callers_fault(
    broker: Broker, topic_of_type: Callable[..., str], seconds: int, nanos: int
) -> None:
    delay, normal = topic_of_type("no-times-DELAY", "DELAY"), topic_of_type("no-times", "NORMAL")
    delayed, born = message(delay, message_type=pb.DELAY), message(normal)
    for stamp in (delayed.system_properties.delivery_timestamp, born.system_properties.born_timestamp):
        stamp.seconds, stamp.nanos = seconds, nanos
    query = pb.QueryOffsetRequest(
        message_queue=pb.MessageQueue(topic=resource(normal), broker=pb.Broker(name="dev")),
        query_offset_policy=pb.TIMESTAMP,
    )
    query.timestamp.seconds, query.timestamp.nanos = seconds, nanos
    with bare_caller(broker.grpc_address) as caller:
        told = caller.SendMessage(pb.SendMessageRequest(messages=[delayed])).status
        assert told.code == pb.ILLEGAL_DELIVERY_TIME, told.message
        told = caller.SendMessage(pb.SendMessageRequest(messages=[born])).status
        assert told.code == pb.BAD_REQUEST, told.message
        assert caller.QueryOffset(query).status.code == pb.BAD_REQUEST


@pytest.mark.parametrize("seconds", [-FAR_S, -1])
def test_a_pull_that_waits_for_less_than_nothing_does_not_wait(
    broker: Broker, topic_of_type: Callable[..., str], seconds: int
) -> None:
    topic = topic_of_type("no-wait", queues=1)
    request = pb.PullMessageRequest(
        group=resource("no-wait"),
        message_queue=pb.MessageQueue(topic=resource(topic), broker=pb.Broker(name="dev")),
        batch_size=-7,
        long_polling_timeout=Duration(seconds=seconds),
    )
    with bare_caller(broker.grpc_address) as caller:
        first, *_ = caller.PullMessage(request)
    assert first.status.code == pb.MESSAGE_NOT_FOUND, first.status.message


def test_answers_do_not_repeat_what_is_long(broker: Broker, topic_of_type: Callable[..., str]) -> None:
    """A request of some megabytes would be answered by as many for each queue of the topic."""
    topic = topic_of_type("wide", queues=64)
    far = pb.Endpoints(addresses=[pb.Address(host="h" * (MAX_HOST_LENGTH + 1), port=1)])
    many = pb.Endpoints(addresses=[pb.Address(host="\U0001f600" * MAX_HOST_LENGTH, port=1)] * MAX_ADDRESSES)
    named = pb.Resource(name=topic, resource_namespace="n" * (MAX_NAMESPACE_LENGTH + 1))
    group = pb.Resource(name="wide", resource_namespace=named.resource_namespace)
    plain = resource(topic)
    with bare_caller(broker.grpc_address) as caller:
        for endpoints, code in (
            (far, pb.ILLEGAL_ACCESS_POINT),
            (many, pb.ILLEGAL_ACCESS_POINT),
            (pb.Endpoints(), pb.OK),
        ):
            route = caller.QueryRoute(pb.QueryRouteRequest(topic=plain, endpoints=endpoints))
            assert route.status.code == code, route.status.message
            asked = pb.QueryAssignmentRequest(topic=plain, group=resource("wide"), endpoints=endpoints)
            assert caller.QueryAssignment(asked).status.code == code
        assert caller.QueryRoute(pb.QueryRouteRequest(topic=named)).status.code == pb.BAD_REQUEST
        asked = pb.QueryAssignmentRequest(topic=plain, group=group)
        assert caller.QueryAssignment(asked).status.code == pb.BAD_REQUEST


@pytest.mark.parametrize("at", [0, 1, 2, 3, 6, 7])
@pytest.mark.parametrize("number", ["1_0", "\t1", "9" * 20, "x", ""])
def test_a_receipt_handle_of_no_numbers_is_none(
    broker: Broker, topic_of_type: Callable[..., str], at: int, number: str
) -> None:
    topic = topic_of_type("handles")
    parts = ["2", str(int(time.time() * 1000)), "60000", "1", "0", "dev", "1", "2", "30"]
    parts[at] = number
    entry = pb.AckMessageEntry(message_id="x", receipt_handle=" ".join(parts))
    with bare_caller(broker.grpc_address) as caller:
        told = caller.AckMessage(
            pb.AckMessageRequest(topic=resource(topic), group=resource("handles"), entries=[entry])
        )
    assert told.status.code == pb.INTERNAL_SERVER_ERROR
    assert "is not a receipt handle" in told.entries[0].status.message


def settings(topic: str, **more: pb.Subscription) -> pb.TelemetryCommand:
    given = more or {"publishing": pb.Publishing(topics=[resource(topic)])}
    return pb.TelemetryCommand(settings=pb.Settings(client_type=pb.PRODUCER, **given))


def test_who_has_said_all_still_gets_the_answers(
    broker: Broker, topic_of_type: Callable[..., str], capfd: pytest.CaptureFixture[str]
) -> None:
    """The client closes its side of the stream; the other one ends with the last answer."""
    topic = topic_of_type("half-closed")
    with bare_caller(broker.grpc_address) as caller:
        told = list(caller.Telemetry(iter([settings(topic)] * 3)))
        assert [each.WhichOneof("command") for each in told] == ["settings"] * 3
        bad = settings(topic, subscription=pb.Subscription())
        with pytest.raises(grpc.RpcError) as refused:
            list(caller.Telemetry(iter([settings(topic), bad])))
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert list(caller.Telemetry(iter(()))) == []
        given = list(caller.ReceiveMessage(receive_request(topic, "half-closed"), timeout=20))
        assert given[0].status.code == pb.MESSAGE_NOT_FOUND
    assert "TOO_MANY_OPERATIONS" not in capfd.readouterr().err
