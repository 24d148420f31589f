"""ReceiveMessage and what clients say of their messages, before a real broker core whose time stands still."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mqspark.protocol.bodies.topic_bodies import SubscriptionGroupConfig, TopicConfig
from mqspark_server.proxy import messaging_pb2 as pb
from mqspark_server.proxy.clients.grpccalls import GrpcCall
from mqspark_server.proxy.clients.grpcclients import GrpcClient
from mqspark_server.proxy.clients.renewals import GIVEN_BACK_MS, INVISIBLE_MS
from mqspark_server.proxy.content.receipthandles import parse_handle
from mqspark_server.proxy.content.subscribed import MAX_FILTER_LENGTH
from mqspark_server.proxy.grpcstatus import GrpcRefusal
from mqspark_server.proxy.methods.grpcreceipts import (
    ack_at_once,
    ack_message,
    change_invisible_duration,
    forward_to_dead_letters,
)
from mqspark_server.proxy.methods.grpcreceiving import receive_message
from tests.support.invariants import validate
from tests.unit.broker_kit import SEND, Bench, send_ext
from tests.unit.proxy_kit import Context, ProxyBench, as_response, settled


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    for name in ("T", "Other"):
        bench.broker.state.topics.put(TopicConfig(topic_name=name, read_queue_nums=1, write_queue_nums=1))
    yield bench
    validate(bench.broker)


@pytest.fixture
async def proxy(bench: Bench) -> ProxyBench:
    return ProxyBench(bench)


@pytest.fixture
async def client(proxy: ProxyBench) -> GrpcClient:
    return proxy.client()


def put(bench: Bench, *bodies: str, topic: str = "T", **properties: str) -> None:
    text = "".join(f"{key}\x01{value}\x02" for key, value in properties.items())
    for body in bodies:
        assert bench.peer().ask(SEND, send_ext(topic, 0, text), body.encode()).code == 0


def group(bench: Bench, name: str = "G", **config: Any) -> None:
    bench.broker.state.subscriptions.put(SubscriptionGroupConfig(group_name=name, **config))


def request(
    topic: str = "T",
    of: str = "G",
    invisible_ms: int = 30_000,
    poll_ms: int = 5_000,
    batch: int = 32,
    expression: str = "*",
    **more: Any,
) -> pb.ReceiveMessageRequest:
    made = pb.ReceiveMessageRequest(batch_size=batch, **more)
    made.group.name, made.message_queue.topic.name = of, topic
    if "filter_expression" not in more:
        made.filter_expression.type, made.filter_expression.expression = pb.TAG, expression
    made.invisible_duration.FromMilliseconds(invisible_ms)
    made.long_polling_timeout.FromMilliseconds(poll_ms)
    return made


def code_of(responses: list[pb.ReceiveMessageResponse]) -> int:
    """The status, which is first; the time of delivery is last."""
    kinds = [response.WhichOneof("content") for response in responses]
    assert kinds == ["status", *["message"] * (len(kinds) - 2), "delivery_timestamp"]
    return int(responses[0].status.code)


def messages(responses: list[pb.ReceiveMessageResponse]) -> list[pb.Message]:
    assert code_of(responses) == pb.OK
    return [response.message for response in responses[1:-1]]


def bodies(responses: list[pb.ReceiveMessageResponse]) -> list[str]:
    return [message.body.decode() for message in messages(responses)]


def acks(*received: pb.Message, topic: str = "T") -> pb.AckMessageRequest:
    made = pb.AckMessageRequest()
    made.group.name, made.topic.name = "G", topic
    for message in received:
        system = message.system_properties
        made.entries.add(message_id=system.message_id, receipt_handle=system.receipt_handle)
    return made


async def ack(
    proxy: ProxyBench, client: GrpcClient, *received: pb.Message, topic: str = "T"
) -> pb.AckMessageResponse:
    return await ack_message(proxy.call(client), acks(*received, topic=topic))


def change_request(message: pb.Message, invisible_ms: int) -> pb.ChangeInvisibleDurationRequest:
    made = pb.ChangeInvisibleDurationRequest(receipt_handle=message.system_properties.receipt_handle)
    made.group.name, made.topic.name = "G", "T"
    made.invisible_duration.FromMilliseconds(invisible_ms)
    return made


async def test_messages_come_between_a_status_and_the_time(proxy: ProxyBench, client: GrpcClient) -> None:
    put(proxy.bench, "a", "b")
    responses = await proxy.receive(client, request())
    assert bodies(responses) == ["a", "b"]
    assert responses[-1].delivery_timestamp.ToMilliseconds() == proxy.bench.clock.now_ms()
    answer = await ack(proxy, client, *messages(responses))
    assert [entry.status.code for entry in answer.entries] == [pb.OK, pb.OK]
    assert answer.status.code == pb.OK
    await proxy.pass_time(60_000)
    assert code_of(await proxy.receive(client, request())) == pb.MESSAGE_NOT_FOUND


async def test_a_call_waits_for_a_message(proxy: ProxyBench, client: GrpcClient) -> None:
    waiting = proxy.receiving(client, request(poll_ms=20_000))
    await settled()
    assert not waiting.done()
    put(proxy.bench, "late")
    proxy.hear()
    assert bodies(await waiting) == ["late"]


@pytest.mark.parametrize(
    ("asked_ms", "left_s", "waits_ms"),
    [
        (100, 60.0, 5_000),
        (7_000, 60.0, 7_000),
        (90_000, 60.0, 20_000),
        (20_000, 6.0, 6_000),
        (9_000, None, 9_000),
    ],
)
async def test_a_poll_waits_as_long_as_the_proxy_says(
    proxy: ProxyBench, client: GrpcClient, asked_ms: int, left_s: float | None, waits_ms: int
) -> None:
    waiting = proxy.receiving(client, request(poll_ms=asked_ms), left_s)
    await settled()
    await proxy.pass_time(waits_ms - 500)
    assert not waiting.done()
    await proxy.pass_time(1_000)
    await settled()
    assert waiting.done()
    assert code_of(await waiting) == pb.MESSAGE_NOT_FOUND


@pytest.mark.parametrize(("version", "code"), [("5.0.2", pb.BAD_REQUEST), ("5.0.7", pb.ILLEGAL_POLLING_TIME)])
async def test_a_deadline_that_is_too_near_is_refused(proxy: ProxyBench, version: str, code: int) -> None:
    client = proxy.client("of a version", version=version)
    assert code_of(await proxy.receive(client, request(), left_s=4.9)) == code


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (request(invisible_ms=9_999), pb.ILLEGAL_INVISIBLE_TIME),
        (request(invisible_ms=12 * 3_600_000 + 1), pb.ILLEGAL_INVISIBLE_TIME),
        (request(topic="Missing"), pb.TOPIC_NOT_FOUND),
        (request(topic="a b"), pb.ILLEGAL_TOPIC),
        (request(topic="rmq_sys_wheel_timer"), pb.ILLEGAL_TOPIC),
        (request(of=""), pb.ILLEGAL_CONSUMER_GROUP),
        (request(expression="||"), pb.ILLEGAL_FILTER_EXPRESSION),
        (request(expression="t||" * MAX_FILTER_LENGTH), pb.ILLEGAL_FILTER_EXPRESSION),
        (request(filter_expression=pb.FilterExpression(type=pb.SQL)), pb.ILLEGAL_FILTER_EXPRESSION),
        (
            request(filter_expression=pb.FilterExpression(type=pb.SQL, expression="a >")),
            pb.INTERNAL_SERVER_ERROR,
        ),
    ],
    ids=["short", "long", "missing", "illegal", "system", "group", "tags", "many tags", "no sql", "bad sql"],
)
async def test_what_cannot_be_received_is_refused(
    proxy: ProxyBench, client: GrpcClient, asked: pb.ReceiveMessageRequest, code: int
) -> None:
    assert code_of(await proxy.receive(client, asked)) == code


async def test_tags_and_sql_choose(proxy: ProxyBench, client: GrpcClient) -> None:
    for number in range(4):
        put(proxy.bench, str(number), TAGS=f"t{number % 2}", n=str(number))
    assert bodies(await proxy.receive(client, request(expression="t1", of="tags"))) == ["1", "3"]
    sql = pb.FilterExpression(type=pb.SQL, expression="n > 1 AND TAGS = 't0'")
    assert bodies(await proxy.receive(client, request(of="sql", filter_expression=sql))) == ["2"]


async def test_a_tag_that_has_but_the_hash_of_a_wanted_one_is_consumed(
    proxy: ProxyBench, client: GrpcClient
) -> None:
    put(proxy.bench, "not this", TAGS="BB")  # Java's hash of "BB" is that of "Aa"
    put(proxy.bench, "this", TAGS="Aa")
    assert bodies(await proxy.receive(client, request(expression="Aa"))) == ["this"]
    put(proxy.bench, "not this", TAGS="BB")
    assert code_of(await proxy.receive(client, request(expression="Aa"))) == pb.MESSAGE_NOT_FOUND
    await proxy.pass_time(40_000)
    assert bodies(await proxy.receive(client, request(expression="Aa || BB"))) == ["this"]


async def test_what_a_gone_call_was_to_get_comes_again_soon(proxy: ProxyBench, client: GrpcClient) -> None:
    waiting = proxy.receiving(client, request(poll_ms=20_000, invisible_ms=600_000))
    await settled()
    waiting.cancel()
    await asyncio.wait([waiting])
    put(proxy.bench, "m")
    proxy.hear()
    await settled()
    await proxy.pass_time(GIVEN_BACK_MS + 4_000)
    assert bodies(await proxy.receive(client, request())) == ["m"]


@pytest.mark.parametrize("auto_renew", [False, True])
async def test_what_could_not_be_written_comes_again_soon(
    proxy: ProxyBench, client: GrpcClient, auto_renew: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mqspark_server.proxy.methods.grpcreceiving.WRITTEN_AT_ONCE_BYTES", 1)
    put(proxy.bench, "0", "1", "2")
    written: list[pb.ReceiveMessageResponse] = []

    async def write(*responses: pb.ReceiveMessageResponse | bytes) -> None:
        if written:
            raise asyncio.CancelledError
        written.extend(map(as_response, responses))

    with pytest.raises(asyncio.CancelledError):
        await receive_message(proxy.call(client), request(auto_renew=auto_renew, invisible_ms=600_000), write)
    assert [each.message.body for each in written[1:]] == [b"0"]
    await settled()
    assert len(proxy.renewals) == int(auto_renew)
    await proxy.pass_time(GIVEN_BACK_MS + 4_000)
    assert bodies(await proxy.receive(client, request())) == ["1", "2"]


async def test_renewed_messages_stay_away_until_they_are_acknowledged(
    proxy: ProxyBench, client: GrpcClient
) -> None:
    put(proxy.bench, "m")
    (message,) = messages(await proxy.receive(client, request(auto_renew=True, invisible_ms=0)))
    assert parse_handle(message.system_properties.receipt_handle).receipt.invisible_time_ms == INVISIBLE_MS
    for _ in range(5):
        await proxy.pass_time(INVISIBLE_MS, step_ms=5_000)
        assert bodies_or_none(await proxy.receive(client, request())) == []
    answer = await ack(proxy, client, message)
    assert answer.status.code == pb.OK
    assert len(proxy.renewals) == 0
    await proxy.pass_time(2 * INVISIBLE_MS, step_ms=5_000)
    assert bodies_or_none(await proxy.receive(client, request())) == []


def bodies_or_none(responses: list[pb.ReceiveMessageResponse]) -> list[str]:
    return [] if code_of(responses) == pb.MESSAGE_NOT_FOUND else bodies(responses)


@pytest.mark.parametrize("takes_runs", [False, True])
async def test_handles_that_name_nothing_have_their_own_outcome(
    proxy: ProxyBench, client: GrpcClient, takes_runs: bool
) -> None:
    proxy.backend.links[0].takes_runs = takes_runs
    put(proxy.bench, "m")
    (message,) = messages(await proxy.receive(client, request()))
    good = message.system_properties.receipt_handle
    made = pb.AckMessageRequest()
    made.group.name, made.topic.name = "G", "T"
    for handle in (good, "", "nonsense", good.replace("b-a", "another"), good.rsplit(" ", 2)[0], "9" * 5_000):
        made.entries.add(message_id="id", receipt_handle=handle)
    answer = await ack_message(proxy.call(client), made)
    assert answer.status.code == pb.MULTIPLE_RESULTS
    broken = pb.INTERNAL_SERVER_ERROR
    codes = [pb.OK, broken, broken, pb.BAD_REQUEST, broken, broken]
    assert [entry.status.code for entry in answer.entries] == codes
    assert [entry.receipt_handle for entry in answer.entries] == [
        entry.receipt_handle for entry in made.entries
    ]
    nothing = await ack_message(proxy.call(client), pb.AckMessageRequest(group=made.group, topic=made.topic))
    assert nothing.status.code == pb.INTERNAL_SERVER_ERROR


async def test_messages_of_the_broker_here_are_acknowledged_without_a_task(
    proxy: ProxyBench, client: GrpcClient
) -> None:
    put(proxy.bench, "0", "1")
    received = messages(await proxy.receive(client, request()))
    made = acks(*received)
    made.entries.add(receipt_handle="nonsense")
    context = Context()
    call = GrpcCall(proxy.shared, client, context)
    assert ack_at_once(call, made)
    assert context.answers == []
    await settled()
    (answer,) = map(pb.AckMessageResponse.FromString, context.answers)
    assert [entry.status.code for entry in answer.entries] == [pb.OK, pb.OK, pb.INTERNAL_SERVER_ERROR]
    assert [entry.receipt_handle for entry in answer.entries] == [
        entry.receipt_handle for entry in made.entries
    ]
    assert answer.status.code == pb.MULTIPLE_RESULTS
    await proxy.pass_time(60_000)
    assert bodies_or_none(await proxy.receive(client, request())) == []


async def test_what_has_to_be_awaited_is_not_acknowledged_at_once(
    proxy: ProxyBench, client: GrpcClient
) -> None:
    put(proxy.bench, "0", "1")
    call = proxy.call(client)
    received = messages(await proxy.receive(client, request(batch=1)))
    lite = acks(*received)
    lite.entries[0].lite_topic = "a"
    two = acks(*received, *received)
    two.entries[1].receipt_handle = two.entries[0].receipt_handle.replace("b-a", "another")
    for made in (acks(), lite, two):
        assert not ack_at_once(call, made)
    proxy.backend.links[0].takes_runs = False
    assert not ack_at_once(call, acks(*received))
    proxy.backend.links[0].takes_runs = True
    renewed = messages(await proxy.receive(client, request(auto_renew=True)))
    assert not ack_at_once(call, acks(*renewed))
    assert (await ack(proxy, client, *received, *renewed)).status.code == pb.OK


async def test_an_expired_handle_is_refused(proxy: ProxyBench, client: GrpcClient) -> None:
    put(proxy.bench, "m")
    (message,) = messages(await proxy.receive(client, request()))
    await proxy.pass_time(31_000)
    answer = await ack(proxy, client, message)
    assert answer.status.code == pb.INVALID_RECEIPT_HANDLE
    with pytest.raises(GrpcRefusal) as refused:
        await change_invisible_duration(proxy.call(client), change_request(message, 1_000))
    assert refused.value.code == pb.INVALID_RECEIPT_HANDLE


async def test_a_changed_time_gives_a_new_handle(proxy: ProxyBench, client: GrpcClient) -> None:
    put(proxy.bench, "m")
    (message,) = messages(await proxy.receive(client, request()))
    changed = await change_invisible_duration(proxy.call(client), change_request(message, 100_000))
    assert changed.status.code == pb.OK
    receipt = parse_handle(changed.receipt_handle).receipt
    assert (receipt.invisible_time_ms, receipt.offset) == (100_000, 0)
    assert changed.receipt_handle.split()[-1] == message.system_properties.receipt_handle.split()[-1]
    await proxy.pass_time(90_000)
    assert bodies_or_none(await proxy.receive(client, request())) == []
    message.system_properties.receipt_handle = changed.receipt_handle
    assert (await ack(proxy, client, message)).status.code == pb.OK
    await proxy.pass_time(60_000)
    assert bodies_or_none(await proxy.receive(client, request())) == []


@pytest.mark.parametrize("invisible_ms", [-1, 12 * 3_600_000 + 1])
async def test_an_invisible_time_out_of_bounds_is_refused(
    proxy: ProxyBench, client: GrpcClient, invisible_ms: int
) -> None:
    put(proxy.bench, "m")
    (message,) = messages(await proxy.receive(client, request()))
    with pytest.raises(GrpcRefusal) as refused:
        await change_invisible_duration(proxy.call(client), change_request(message, invisible_ms))
    assert refused.value.code == pb.ILLEGAL_INVISIBLE_TIME


async def test_in_order_a_message_is_tried_again_before_the_next(
    proxy: ProxyBench, client: GrpcClient
) -> None:
    group(proxy.bench, consume_message_orderly=True)
    put(proxy.bench, "0", "1")
    (first,) = messages(await proxy.receive(client, request(batch=1)))
    assert bodies_or_none(await proxy.receive(client, request())) == []
    await change_invisible_duration(proxy.call(client), change_request(first, 0))
    again = messages(await proxy.receive(client, request(batch=1)))
    assert [(each.body, each.system_properties.delivery_attempt) for each in again] == [(b"0", 2)]
    await ack(proxy, client, *again)
    assert bodies(await proxy.receive(client, request(batch=1))) == ["1"]


async def test_an_attempt_gets_its_messages_again(proxy: ProxyBench, client: GrpcClient) -> None:
    group(proxy.bench, consume_message_orderly=True)
    put(proxy.bench, "0", "1")
    for _ in range(2):
        assert bodies(await proxy.receive(client, request(attempt_id="the same"))) == ["0", "1"]


@pytest.mark.parametrize("orderly", [False, True])
async def test_after_the_last_attempt_a_message_is_a_dead_letter(
    proxy: ProxyBench, client: GrpcClient, orderly: bool
) -> None:
    group(proxy.bench, consume_message_orderly=orderly, retry_max_times=1)
    put(proxy.bench, "m", TAGS="t", p="v")
    for attempt in (1, 2):
        (message,) = messages(await proxy.receive(client, request()))
        assert message.system_properties.delivery_attempt == attempt
        await proxy.pass_time(32_000)
    assert bodies_or_none(await proxy.receive(client, request())) == []
    (dead,) = proxy.bench.records("%DLQ%G")
    assert (dead.body, dead.properties["TAGS"], dead.properties["p"]) == (b"m", "t", "v")
    assert dead.message_id == message.system_properties.message_id
    await proxy.pass_time(60_000)
    assert bodies_or_none(await proxy.receive(client, request())) == []


async def test_a_client_makes_a_message_a_dead_letter(proxy: ProxyBench, client: GrpcClient) -> None:
    put(proxy.bench, "m", "next")
    (message,) = messages(await proxy.receive(client, request(batch=1, auto_renew=True)))
    made = pb.ForwardMessageToDeadLetterQueueRequest(receipt_handle=message.system_properties.receipt_handle)
    made.group.name, made.topic.name = "G", "T"
    answer = await forward_to_dead_letters(proxy.call(client), made)
    assert answer.status.code == pb.OK
    assert [record.body for record in proxy.bench.records("%DLQ%G")] == [b"m"]
    assert len(proxy.renewals) == 0
    made.receipt_handle = made.receipt_handle.rsplit(" ", 1)[0]
    with pytest.raises(GrpcRefusal) as refused:
        await forward_to_dead_letters(proxy.call(client), made)
    assert refused.value.code == pb.INVALID_RECEIPT_HANDLE


async def test_acknowledgements_name_the_retry_topic(proxy: ProxyBench, client: GrpcClient) -> None:
    put(proxy.bench, "m")
    await proxy.receive(client, request())
    await proxy.pass_time(32_000)
    (again,) = messages(await proxy.receive(client, request()))
    assert again.topic.name == "T"
    await ack(proxy, client, again)
    await proxy.pass_time(60_000)
    assert bodies_or_none(await proxy.receive(client, request())) == []
    assert proxy.backend.links[0].runs == 1
