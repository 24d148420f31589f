"""Lite topics through the service: subscriptions, pops, receipts, and the end of a client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mqspark.protocol.bodies.topic_bodies import SubscriptionGroupConfig, TopicConfig
from mqspark.protocol.codes import RequestCode
from mqspark.protocol.command import Command, encode_request
from mqspark.protocol.connection import Connection
from mqspark_server.proxy import messaging_pb2 as pb
from mqspark_server.proxy.clients.grpcclients import GrpcClient, TelemetryStream
from mqspark_server.proxy.grpcstatus import GrpcRefusal
from mqspark_server.proxy.methods.grpclite import sync_lite_subscription
from mqspark_server.proxy.methods.grpcreceipts import ack_message
from mqspark_server.proxy.methods.telemetry import asked_by_broker, notify_client_termination
from tests.support.invariants import validate
from tests.unit.broker_kit import SEND, Bench, send_ext
from tests.unit.proxy_kit import ProxyBench


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path, store_settings={"enable_lmq": True, "enable_multi_dispatch": True})
    state = bench.broker.state
    state.topics.put(TopicConfig(topic_name="P", perm=6, attributes={"message.type": "LITE"}))
    state.subscriptions.put(SubscriptionGroupConfig(group_name="G", attributes={"lite.bind.topic": "P"}))
    yield bench
    validate(bench.broker)


@pytest.fixture
async def proxy(bench: Bench) -> ProxyBench:
    return ProxyBench(bench)


def settings(client_type: int = pb.LITE_PUSH_CONSUMER) -> pb.Settings:
    made = pb.Settings(client_type=client_type)
    made.subscription.group.name = "G"
    made.subscription.subscriptions.add().topic.name = "P"
    return made


def request(action: int, *names: str, **more: Any) -> pb.SyncLiteSubscriptionRequest:
    made = pb.SyncLiteSubscriptionRequest(action=action, lite_topic_set=names, **more)
    made.topic.name, made.group.name = "P", "G"
    return made


async def sync(proxy: ProxyBench, client: GrpcClient, action: int, *names: str, **more: Any) -> int:
    answer = await sync_lite_subscription(proxy.call(client), request(action, *names, **more))
    return int(answer.status.code)


def put(bench: Bench, lite_topic: str, *bodies: str) -> None:
    for body in bodies:
        ext = send_ext("P", 0, f"__LITE_TOPIC\x01{lite_topic}\x02")
        assert bench.peer().ask(SEND, ext, body.encode()).code == 0


async def received(proxy: ProxyBench, client: GrpcClient, auto_renew: bool = True) -> list[pb.Message]:
    asked = pb.ReceiveMessageRequest(batch_size=32, auto_renew=auto_renew)
    asked.group.name, asked.message_queue.topic.name = "G", "P"
    asked.invisible_duration.seconds, asked.long_polling_timeout.seconds = 30, 5
    responses = await proxy.receive(client, asked)
    assert responses[0].status.code in (pb.OK, pb.MESSAGE_NOT_FOUND), responses[0].status
    return [each.message for each in responses if each.HasField("message")]


async def ack(proxy: ProxyBench, client: GrpcClient, message: pb.Message) -> int:
    system = message.system_properties
    made = pb.AckMessageRequest()
    made.group.name, made.topic.name = "G", "P"
    made.entries.add(receipt_handle=system.receipt_handle, lite_topic=system.lite_topic)
    return int((await ack_message(proxy.call(client), made)).status.code)


@pytest.mark.parametrize("client_type", [pb.LITE_PUSH_CONSUMER, pb.LITE_SIMPLE_CONSUMER])
async def test_a_client_gets_the_lite_topics_that_it_wants(proxy: ProxyBench, client_type: int) -> None:
    client = proxy.client(settings=settings(client_type))
    assert await sync(proxy, client, pb.PARTIAL_ADD, "a", "b", "c") == pb.OK
    assert await sync(proxy, client, pb.PARTIAL_REMOVE, "b") == pb.OK
    for name in "abc":
        put(proxy.bench, name, f"{name}0", f"{name}1")
    messages = await received(proxy, client)
    assert sorted((each.system_properties.lite_topic, each.body) for each in messages) == [
        ("a", b"a0"), ("a", b"a1"), ("c", b"c0"), ("c", b"c1"),
    ]  # fmt: skip
    assert len(proxy.renewals) == 4  # offsets are those of each lite topic
    for message in messages:
        assert await ack(proxy, client, message) == pb.OK
    assert len(proxy.renewals) == 0
    await proxy.pass_time(70_000, step_ms=5_000)
    assert await received(proxy, client) == []
    assert await sync(proxy, client, pb.COMPLETE_ADD, "b") == pb.OK
    put(proxy.bench, "a", "nobody's")
    assert [each.body for each in await received(proxy, client)] == [b"b0", b"b1"]


async def test_a_new_reader_chooses_where_it_begins(proxy: ProxyBench) -> None:
    put(proxy.bench, "a", *"0123")
    client = proxy.client(settings=settings())
    option = pb.OffsetOption(offset=2)
    assert await sync(proxy, client, pb.PARTIAL_ADD, "a", offset_option=option) == pb.OK
    await proxy.pass_time(2_000)
    put(proxy.bench, "a", "4")
    assert [each.body for each in await received(proxy, client)] == [b"2", b"3", b"4"]


@pytest.mark.parametrize("name", ["", "  ", "a b", "a,b", "é", "x" * 65])
async def test_an_illegal_lite_topic_is_refused(proxy: ProxyBench, name: str) -> None:
    client = proxy.client(settings=settings())
    with pytest.raises(GrpcRefusal) as refused:
        await sync(proxy, client, pb.PARTIAL_ADD, "fine", name)
    assert refused.value.code == pb.ILLEGAL_LITE_TOPIC


async def test_a_request_names_so_many_lite_topics_at_most(proxy: ProxyBench) -> None:
    client = proxy.client(settings=settings())
    for asked in (
        request(pb.PARTIAL_ADD, *map(str, range(5_000))),
        request(7, "a"),
        request(pb.PARTIAL_ADD, "a", offset_option=pb.OffsetOption()),
    ):
        with pytest.raises(GrpcRefusal) as refused:
            await sync_lite_subscription(proxy.call(client), asked)
        assert refused.value.code == pb.BAD_REQUEST


async def test_when_a_client_ends_another_gets_its_messages(proxy: ProxyBench) -> None:
    first, second = (proxy.client(name, settings=settings()) for name in ("first", "second"))
    await sync(proxy, first, pb.PARTIAL_ADD, "a")
    put(proxy.bench, "a", "0")
    assert [each.body for each in await received(proxy, first)] == [b"0"]
    await sync(proxy, second, pb.PARTIAL_ADD, "a")
    ended = pb.NotifyClientTerminationRequest()
    ended.group.name = "G"
    assert (await notify_client_termination(proxy.call(first), ended)).status.code == pb.OK
    assert len(proxy.renewals) == 0
    assert [each.body for each in await received(proxy, second)] == [b"0"]  # after a second, not a minute


def command_of(code: int, **ext: str) -> Command:
    (command,) = Connection().receive_data(encode_request(code, 1, ext))
    return command


async def test_a_client_is_told_that_it_has_lost_a_lite_topic(proxy: ProxyBench) -> None:
    client = proxy.client(settings=settings())
    stream = TelemetryStream(proxy.clients.pushes)
    client.streams.append(stream)
    lost = command_of(
        RequestCode.NOTIFY_UNSUBSCRIBE_LITE, liteTopic="a", consumerGroup="G", clientId="client"
    )
    asked_by_broker(proxy.shared, client, "b-a", lost)
    assert stream.commands.get_nowait().notify_unsubscribe_lite_command.lite_topic == "a"
    client.streams.clear()
    asked_by_broker(proxy.shared, client, "b-a", lost)  # nobody can be told
