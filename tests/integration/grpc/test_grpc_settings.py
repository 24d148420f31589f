"""Telemetry: the settings that clients get for their own, by bare calls."""

from __future__ import annotations

import queue
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import pytest

from mqspark.client.sync import AdminClient
from mqspark.protocol.bodies.topic_bodies import SubscriptionGroupConfig
from mqspark.testing import Broker
from mqspark_server.proxy import messaging_pb2 as pb
from mqspark_server.proxy.grpcservice import SERVICE
from mqspark_server.proxy.methods import grpcrelays
from tests.support.grpcclients import BareCaller, bare_caller, resource
from tests.support.visits import page


@contextmanager
def telemetry(caller: BareCaller, settings: pb.Settings) -> Iterator[Any]:
    """A stream on which these settings were sent; an iterator of commands."""
    commands: queue.Queue[pb.TelemetryCommand | None] = queue.Queue()
    commands.put(pb.TelemetryCommand(settings=settings))
    stream = caller.Telemetry(iter(commands.get, None), timeout=30)
    try:
        yield stream
    finally:
        commands.put(None)
        stream.cancel()


def agreed(caller: BareCaller, settings: pb.Settings) -> pb.Settings:
    with telemetry(caller, settings) as stream:
        answer = next(stream)
        assert answer.status.code == pb.OK
        found: pb.Settings = answer.settings
        return found


def consumer(group: str) -> pb.Settings:
    return pb.Settings(
        client_type=pb.PUSH_CONSUMER,
        subscription=pb.Subscription(
            group=resource(group), subscriptions=[pb.SubscriptionEntry(topic=resource("any"))]
        ),
    )


def test_a_producer_learns_its_attempts_and_the_largest_body(broker: Broker) -> None:
    given = pb.Settings(
        client_type=pb.PRODUCER,
        publishing=pb.Publishing(topics=[resource("any")]),
        access_point=pb.Endpoints(),
    )
    with bare_caller(broker.grpc_address) as caller:
        found = agreed(caller, given)
    assert found.backoff_policy.max_attempts == 3
    backoff = found.backoff_policy.exponential_backoff
    assert (backoff.initial.ToMilliseconds(), backoff.max.ToMilliseconds(), backoff.multiplier) == (
        10,
        1000,
        2,
    )
    assert found.publishing.max_body_size == 4 << 20
    assert found.publishing.validate_message_type
    assert [each.name for each in found.publishing.topics] == ["any"]


def test_a_consumer_learns_the_settings_of_its_group(broker: Broker) -> None:
    with AdminClient(broker.namesrv) as admin:
        config = SubscriptionGroupConfig(retry_max_times=2, consume_message_orderly=True)
        admin.create_group("in-order", config=config)
    with bare_caller(broker.grpc_address) as caller:
        found = agreed(caller, consumer("in-order"))
        assert (found.backoff_policy.max_attempts, found.subscription.fifo) == (3, True)
        assert found.subscription.receive_batch_size == 32
        assert found.subscription.long_polling_timeout.ToMilliseconds() == 20_000
        caller.metadata["x-mq-client-id"] += "-2"
        unknown = agreed(caller, consumer("nobody-has-made-it"))
    assert (unknown.backoff_policy.max_attempts, unknown.subscription.fifo) == (17, False)
    seconds = [each.seconds for each in unknown.backoff_policy.customized_backoff.next]
    assert (len(seconds), seconds[:5], seconds[-1]) == (18, [1, 5, 10, 30, 60], 7200)


def test_settings_of_neither_kind_end_the_stream(broker: Broker) -> None:
    with bare_caller(broker.grpc_address) as caller:
        with telemetry(caller, pb.Settings(client_type=pb.PRODUCER)) as stream:
            with pytest.raises(grpc.RpcError) as refused:
                for _ in stream:
                    pass
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT


def test_a_message_of_the_stream_that_cannot_be_read_ends_it_with_the_reason(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    with grpc.insecure_channel(str(broker.grpc_address)) as channel:
        call = channel.stream_stream(f"/{SERVICE}/Telemetry")
        with pytest.raises(grpc.RpcError) as refused:
            list(call(iter([b"\xff"]), timeout=20, metadata=(("x-mq-client-id", "c"),)))
    assert refused.value.code() == grpc.StatusCode.INTERNAL
    assert "a request that cannot be read" in refused.value.details()
    assert "Telemetry failed" not in caplog.text


def test_a_client_is_known_from_its_settings_to_its_end(broker: Broker) -> None:
    beat = pb.HeartbeatRequest(group=resource("members"), client_type=pb.PUSH_CONSUMER)
    with bare_caller(broker.grpc_address) as caller, AdminClient(broker.namesrv) as admin:
        assert caller.Heartbeat(beat).status.code == pb.UNRECOGNIZED_CLIENT_TYPE
        with telemetry(caller, consumer("members")) as stream:
            next(stream)
            assert caller.Heartbeat(beat).status.code == pb.OK
            members = [each.client_id for each in admin.group_members("members").connection_set]
            assert members == [caller.metadata["x-mq-client-id"]]
            end = caller.NotifyClientTermination(pb.NotifyClientTerminationRequest(group=resource("members")))
            assert end.status.code == pb.OK
        assert caller.Heartbeat(beat).status.code == pb.UNRECOGNIZED_CLIENT_TYPE


def test_the_console_lists_a_producer_with_language_and_version(broker: Broker) -> None:
    given = pb.Settings(client_type=pb.PRODUCER, publishing=pb.Publishing(topics=[resource("any")]))
    with (
        bare_caller(broker.grpc_address, x_mq_language="GOLANG") as caller,
        telemetry(caller, given) as stream,
    ):
        next(stream)
        assert caller.Heartbeat(pb.HeartbeatRequest(client_type=pb.PRODUCER)).status.code == pb.OK
        (row,) = [
            row
            for row in page(broker, "/producers").split("<tr>")
            if caller.metadata["x-mq-client-id"] in row
        ]
        assert ("<td>GO</td>" in row, "<td>V5_1_2</td>" in row) == (True, True), row


def test_the_console_shows_the_settings_of_a_client_that_shows_no_threads(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RocketMQ's client for Python leaves the question for its threads unanswered."""
    monkeypatch.setattr(grpcrelays, "RELAY_S", 0.2)
    settings = consumer("shown")
    settings.request_timeout.FromMilliseconds(7_000)
    settings.user_agent.CopyFrom(pb.UA(language=pb.PYTHON, version="5.1.2", hostname="a host"))
    said = {"x_mq_language": "PYTHON", "x_mq_client_version": "5.1.2"}
    with bare_caller(broker.grpc_address, **said) as caller, telemetry(caller, settings) as stream:
        next(stream)
        group = page(broker, "/groups/shown")
        assert ("PYTHON" in group, "V5_1_2" in group) == (True, True)
        (member,) = re.findall(r'href="/console(/groups/shown/members/[^"]+)"', group)
        text = page(broker, member)
        assert "The consumer sent no stacks" in text
        shown = dict(re.findall(r"<dt>([^<]+)</dt><dd class=\"mono\">([^<]*)</dd>", text))
        names = ("clientType", "language", "PROP_CLIENT_VERSION", "requestTimeout", "hostname")
        assert [shown[name] for name in names] == ["PUSH_CONSUMER", "PYTHON", "5.1.2", "7 s", "a host"]
