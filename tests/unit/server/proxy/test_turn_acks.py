"""Calls that acknowledge one message each: those of a turn go to the broker together, and each gets the answer that it
would get alone."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf.message import DecodeError

from mqspark.broker.pop.ackrun import AckRun
from mqspark.protocol.bodies.topic_bodies import TopicConfig
from mqspark_server.proxy import messaging_pb2 as pb
from mqspark_server.proxy.clients.grpccalls import GrpcCall
from mqspark_server.proxy.clients.grpcclients import GrpcClient
from mqspark_server.proxy.content.grpcacks import SingleAck, ack_response, acknowledged, parse_ack
from mqspark_server.proxy.grpcstatus import OK, GrpcRefusal
from mqspark_server.proxy.methods.grpcreceipts import ack_at_once, ack_message
from tests.support.grpcclients import receive_request, resource
from tests.support.invariants import validate
from tests.unit.broker_kit import SEND, Bench, send_ext
from tests.unit.proxy_kit import Context, ProxyBench, settled

MESSAGES = 12


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    bench.broker.state.topics.put(TopicConfig(topic_name="T", read_queue_nums=2, write_queue_nums=2))
    yield bench
    validate(bench.broker)


@pytest.fixture
async def proxy(bench: Bench) -> ProxyBench:
    for number in range(MESSAGES):
        assert bench.peer().ask(SEND, send_ext("T", number % 2, ""), b"m").code == 0
    return ProxyBench(bench)


@pytest.fixture
async def client(proxy: ProxyBench) -> GrpcClient:
    return proxy.client()


def request_of(handle: str, message_id: str = "id", topic: str = "T", group: str = "G") -> bytes:
    made = pb.AckMessageRequest(topic=resource(topic), group=resource(group))
    made.entries.add(message_id=message_id, receipt_handle=handle)
    return made.SerializeToString()


async def handles(proxy: ProxyBench, client: GrpcClient) -> list[str]:
    responses = await proxy.receive(client, receive_request("T", "G"))
    received = [response.message for response in responses if response.HasField("message")]
    return [message.system_properties.receipt_handle for message in received]


async def asked(proxy: ProxyBench, client: GrpcClient, *requests: bytes) -> list[Context]:
    """All in one turn."""
    contexts = []
    for each in requests:
        contexts.append(Context())
        assert ack_at_once(GrpcCall(proxy.shared, client, contexts[-1]), parse_ack(each))
        assert contexts[-1].answers == []
    await settled()
    assert client.acks == {}
    return contexts


def answer_of(context: Context) -> pb.AckMessageResponse:
    (data,) = context.answers
    return pb.AckMessageResponse.FromString(data)


async def test_those_of_a_turn_are_one_run(proxy: ProxyBench, client: GrpcClient) -> None:
    given = await handles(proxy, client)
    contexts = await asked(
        proxy, client, *(request_of(handle, f"{handle}!") for handle in [*given, given[0]])
    )
    assert len(given) == MESSAGES
    assert proxy.backend.links[0].runs == 1
    for handle, context in zip([*given, given[0]], contexts, strict=True):
        answer = answer_of(context)
        assert answer.status == OK
        (entry,) = answer.entries
        assert (entry.message_id, entry.receipt_handle, entry.status) == (f"{handle}!", handle, OK)
    await proxy.pass_time(120_000)
    assert await handles(proxy, client) == []


async def test_each_has_the_answer_that_it_would_have_alone(proxy: ProxyBench, client: GrpcClient) -> None:
    good, other, *_ = await handles(proxy, client)
    parts = other.split(" ")
    beyond = " ".join([*parts[:7], "999", parts[8]])
    odd = [good, beyond, good.replace("b-a", "another"), good.rsplit(" ", 2)[0], "nonsense", "", other]
    requests = [request_of(handle) for handle in odd]
    requests += [request_of(good, topic="no\ttopic"), request_of(good, group="no\tgroup")]
    contexts, refusals = [], []
    for each in requests:
        contexts.append(Context())
        try:
            call = GrpcCall(proxy.shared, client, contexts[-1])
            if not ack_at_once(call, parse_ack(each)):
                call.serve(parse_ack(each))
        except GrpcRefusal as refusal:
            refusals.append(refusal.code)
    await settled()
    assert refusals == [pb.ILLEGAL_TOPIC, pb.ILLEGAL_CONSUMER_GROUP]
    codes = []
    for each, context in zip(requests[:7], contexts, strict=False):
        alone = await ack_message(proxy.call(client), pb.AckMessageRequest.FromString(each))
        if context.answers:
            assert answer_of(context) == alone
            codes.append(alone.status.code)
        else:
            assert context.served == [pb.AckMessageRequest.FromString(each)]
            codes.append(None)
    assert codes == [pb.OK, pb.INTERNAL_SERVER_ERROR, *[None] * 4, pb.OK]


async def test_expired_ones_are_served_alone(proxy: ProxyBench, client: GrpcClient) -> None:
    handle, *_ = await handles(proxy, client)
    await proxy.pass_time(61_000)
    (context,) = await asked(proxy, client, request_of(handle))
    assert len(context.served) == 1


async def test_what_needs_requests_is_served_one_by_one(proxy: ProxyBench, client: GrpcClient) -> None:
    given = await handles(proxy, client)
    proxy.backend.links[0].takes_runs = False
    requests = [request_of(handle) for handle in given]
    contexts = await asked(proxy, client, *requests)
    assert [context.answers for context in contexts] == [[]] * MESSAGES
    served = [each for context in contexts for each in context.served]
    assert served == [pb.AckMessageRequest.FromString(each) for each in requests]


async def test_renewed_messages_take_their_own_way(proxy: ProxyBench, client: GrpcClient) -> None:
    await proxy.receive(client, receive_request("T", "G", auto_renew=True))
    context = Context()
    call = GrpcCall(proxy.shared, client, context)
    assert ack_at_once(call, parse_ack(request_of(f"0 1 60000 0 0 {proxy.bench.config.broker_name} 0 0 1")))
    assert len(context.served) == 1


@pytest.mark.parametrize("amid", [False, True])
async def test_a_broker_that_fails_leaves_no_call_without_an_answer(
    proxy: ProxyBench,
    client: GrpcClient,
    amid: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    given = await handles(proxy, client)

    def acknowledge(broker: str, run: AckRun) -> bool:
        if amid:
            run.asked = len(given)
        raise RuntimeError("broken")

    monkeypatch.setattr(client.link, "acknowledge", acknowledge)
    contexts = await asked(proxy, client, *map(request_of, given))
    assert {answer_of(context).status.code for context in contexts} == {pb.INTERNAL_SERVER_ERROR}
    assert "acknowledgements failed" in caplog.text


def test_a_length_that_is_longer_than_it_must_be_hides_nothing() -> None:
    """A second entry, where the first byte of the group's length says that the group is."""
    group, topic = resource("G").SerializeToString(), resource("T").SerializeToString()
    entry = request_of("1 2 3 4 5 b 7 8 9")[2 + len(group) + 2 + len(topic) :]
    behind_group = b"\x12%c%b" % (len(topic), topic)
    rest = 0x80 + len(group) - 1 - len(group) - len(behind_group)
    hidden = b"\x1a%c\x12%c%b" % (rest - 2, rest - 4, b"i" * (rest - 4))
    data = b"\x0a%c\x00%b%b%b%b%b" % (
        0x80 | len(group), group, behind_group, hidden, behind_group, entry
    )  # fmt: skip
    assert data[2 + data[1]] == 0x12
    whole = pb.AckMessageRequest.FromString(data)
    assert len(whole.entries) == 2
    assert parse_ack(data) == whole


def test_requests_are_read_as_objects_are() -> None:
    """Whatever they are; the usual form as bytes."""
    chance, singles = random.Random(7), 0
    for _ in range(3_000):
        made = pb.AckMessageRequest()
        if chance.random() < 0.9:
            made.group.name = "g" * chance.choice((0, 1, 20, 120, 300))
        if chance.random() < 0.9:
            made.topic.name, made.topic.resource_namespace = "t" * chance.choice((1, 100, 130)), ""
        for _ in range(chance.choice((0, 1, 1, 1, 1, 1, 2))):
            handle = chance.choice(("1 2 3 4 5 b 7 8 9", "é", "h" * 60, "h" * 127, "h" * 128))
            made.entries.add(message_id="i" * chance.choice((0, 1, 32, 127, 200)), receipt_handle=handle)
            if chance.random() < 0.1:
                made.entries[-1].lite_topic = chance.choice(("", "l"))
        data = made.SerializeToString()
        read = parse_ack(data)
        if isinstance(read, SingleAck):
            singles += 1
            assert read.whole == made
            (entry,) = made.entries
            assert not entry.HasField("lite_topic")
            assert read.handle.decode() == entry.receipt_handle
            expected = ack_response(made.entries, [OK])
            assert acknowledged(read.entry) == expected.SerializeToString()
        else:
            assert read == made
    assert singles > 200


def test_damaged_requests_are_read_as_objects_are() -> None:
    chance = random.Random(11)
    good = request_of("1 2 3 4 5 b 7 8 9", "i" * 33)
    for _ in range(5_000):
        data = bytearray(good)
        for _ in range(chance.randrange(1, 3)):
            data[chance.randrange(len(data))] = chance.choice(
                (0, 1, 2, 9, 0x0A, 0x12, 0x1A, 0x80, chance.randrange(256))
            )
        if chance.random() < 0.3:
            del data[chance.randrange(len(data)) :]
        try:
            expected = pb.AckMessageRequest.FromString(bytes(data))
        except DecodeError:
            with pytest.raises(DecodeError):
                parse_ack(bytes(data))
            continue
        read = parse_ack(bytes(data))
        if isinstance(read, SingleAck):
            (entry,) = expected.entries
            assert read.whole == expected
            assert read.handle.decode() == entry.receipt_handle
            assert acknowledged(read.entry) == ack_response(expected.entries, [OK]).SerializeToString()
        else:
            assert read == expected
