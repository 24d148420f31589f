"""Requests of brokers to gRPC clients that do not answer, answer late, or cannot be asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mqspark.errors import InvalidMessage
from mqspark.message import PhysicalOffset
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command
from mqspark.protocol.connection import Connection
from mqspark_server.proxy import messaging_pb2 as pb
from mqspark_server.proxy.backend import Rights
from mqspark_server.proxy.clients.grpcclients import MAX_ASKED, GrpcClient, TelemetryStream
from mqspark_server.proxy.content.subscribed import MAX_FILTER_LENGTH
from mqspark_server.proxy.grpcstatus import GrpcRefusal
from mqspark_server.proxy.methods import grpcrelays
from mqspark_server.proxy.methods.telemetry import asked_by_broker, telemetry
from tests.unit.broker_kit import SEND, Bench, send_ext
from tests.unit.proxy_kit import ProxyBench, settled

STACKS = {"consumerGroup": "g", "clientId": "client", "jstackEnable": "true"}


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture
async def proxy(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> ProxyBench:
    monkeypatch.setattr(grpcrelays, "RELAY_S", 0.01)
    return ProxyBench(bench)


@pytest.fixture
async def client(proxy: ProxyBench) -> GrpcClient:
    return proxy.client(settings=pb.Settings(client_type=pb.SIMPLE_CONSUMER))


def asked(code: int = RequestCode.GET_CONSUMER_RUNNING_INFO, opaque: int = 7, body: bytes = b"") -> Command:
    return Command(code=code, opaque=opaque, ext_texts=dict(STACKS), body=body)


async def answer_to(proxy: ProxyBench, client: GrpcClient, command: Command) -> Command:
    asked_by_broker(proxy.shared, client, "broker", command)
    (link,) = proxy.backend.links
    for _ in range(200):
        if link.answers:
            break
        await asyncio.sleep(0.01)
    (answer,) = Connection().receive_data(link.answers.pop())
    assert answer.opaque == command.opaque
    return answer


async def test_a_client_without_a_stream_cannot_be_asked(proxy: ProxyBench, client: GrpcClient) -> None:
    answer = await answer_to(proxy, client, asked())
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_BUSY, "call remote timeout")


async def test_a_check_shows_its_message_to_who_may_write_the_topic_alone(
    bench: Bench, proxy: ProxyBench, client: GrpcClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker knows only the proxy, which asks it for all clients."""
    assert bench.peer().ask(SEND, send_ext("decided"), b"of writers").code == 0
    record = bench.store.reads.record_at(PhysicalOffset(0))
    assert record is not None
    ext = {"tranStateTableOffset": "0", "commitLogOffset": "0", "transactionId": "t"}
    check = Command(code=RequestCode.CHECK_TRANSACTION_STATE, ext_texts=ext, body=bytes(record))
    stream = TelemetryStream(proxy.clients.pushes)
    client.streams.append(stream)
    asked_by_broker(proxy.shared, client, "broker", check)
    told = stream.commands.get_nowait()
    assert told is not None
    assert told.recover_orphaned_transaction_command.message.body == b"of writers"

    def refuse(rights: Rights, topic: str) -> None:
        raise GrpcRefusal(pb.FORBIDDEN, f"not {topic}")

    monkeypatch.setattr(Rights, "write", refuse)
    asked_by_broker(proxy.shared, client, "broker", check)
    assert stream.commands.empty()


async def test_an_answer_that_comes_too_late_is_dropped(proxy: ProxyBench, client: GrpcClient) -> None:
    stream = TelemetryStream(proxy.clients.pushes)
    client.streams.append(stream)
    answer = await answer_to(proxy, client, asked())
    assert answer.code == ResponseCode.SYSTEM_BUSY
    nonce = stream.commands.get_nowait().print_thread_stack_trace_command.nonce
    client.answered(nonce, pb.TelemetryCommand(thread_stack_trace=pb.ThreadStackTrace(nonce=nonce)))
    await settled()
    assert proxy.backend.links[0].answers == []


async def test_nobody_answers_for_another_client(proxy: ProxyBench, client: GrpcClient) -> None:
    stream = TelemetryStream(proxy.clients.pushes)
    client.streams.append(stream)
    other = proxy.client("other")
    waiting = asyncio.ensure_future(grpcrelays.relay(client, "broker", asked()))
    await settled()
    nonce = stream.commands.get_nowait().print_thread_stack_trace_command.nonce
    other.answered(nonce, pb.TelemetryCommand(thread_stack_trace=pb.ThreadStackTrace(nonce=nonce)))
    await waiting
    (answer,) = Connection().receive_data(proxy.backend.links[0].answers.pop())
    assert answer.code == ResponseCode.SYSTEM_BUSY


async def test_unanswered_requests_of_a_client_are_bounded(
    proxy: ProxyBench, client: GrpcClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grpcrelays, "RELAY_S", 60)
    stream = TelemetryStream(proxy.clients.pushes)
    client.streams.append(stream)
    waiting = [
        asyncio.ensure_future(grpcrelays.relay(client, "broker", asked(opaque=number)))
        for number in range(MAX_ASKED + 1)
    ]
    await settled()
    (answer,) = Connection().receive_data(proxy.backend.links[0].answers.pop())
    assert (answer.opaque, answer.code) == (MAX_ASKED, ResponseCode.SYSTEM_BUSY)
    for each in waiting:
        each.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (RequestCode.CONSUME_MESSAGE_DIRECTLY, ResponseCode.SYSTEM_ERROR),  # of a body that is no message
        (RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, ResponseCode.REQUEST_CODE_NOT_SUPPORTED),
    ],
)
async def test_what_cannot_be_relayed_is_refused_at_once(
    proxy: ProxyBench, client: GrpcClient, code: int, expected: int
) -> None:
    answer = await answer_to(proxy, client, asked(code, body=b"no message"))
    assert answer.code == expected


async def test_what_a_client_does_not_read_is_bounded(proxy: ProxyBench, client: GrpcClient) -> None:
    read = 0

    async def commands() -> AsyncIterator[pb.TelemetryCommand]:
        nonlocal read
        while True:
            read += 1
            yield pb.TelemetryCommand(
                settings=pb.Settings(client_type=pb.PRODUCER, publishing=pb.Publishing())
            )

    async def write(command: pb.TelemetryCommand) -> None:
        await asyncio.Event().wait()

    serving = asyncio.ensure_future(telemetry(proxy.call(client), commands(), write))
    await settled()
    assert read == 3, "one is being written, one waits for that, and the third for the second"
    told = pb.TelemetryCommand(
        verify_message_command=pb.VerifyMessageCommand(message=pb.Message(body=bytes(1 << 20)))
    )
    assert [client.push(told) for _ in range(17)] == [True] * 15 + [False] * 2
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
    assert proxy.clients.pushes.bytes == 0


@pytest.mark.parametrize("expression", ["||", "t||" * MAX_FILTER_LENGTH])
async def test_what_a_client_says_of_itself_is_sound_when_it_is_kept(
    proxy: ProxyBench, expression: str
) -> None:
    async def commands() -> AsyncIterator[pb.TelemetryCommand]:
        entry = pb.SubscriptionEntry(topic=pb.Resource(name="T"))
        entry.expression.type, entry.expression.expression = pb.TAG, expression
        subscription = pb.Subscription(group=pb.Resource(name="G"), subscriptions=[entry])
        said = pb.Settings(client_type=pb.SIMPLE_CONSUMER, subscription=subscription)
        yield pb.TelemetryCommand(settings=said)

    async def write(command: pb.TelemetryCommand) -> None: ...

    client = proxy.client("new")
    with pytest.raises((GrpcRefusal, InvalidMessage)):
        await telemetry(proxy.call(client), commands(), write)
    assert client.settings is None
