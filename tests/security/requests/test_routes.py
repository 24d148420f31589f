"""Routes that cannot be: whoever registers with a name server writes what clients are told, and a count of 2147483647
queues took every client to 5.9 GB. Clients judge them by themselves, for their name server may be RocketMQ's.
"""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from mqspark.aio import AdminClient, Producer
from mqspark.client.blocking import BlockingClient
from mqspark.client.producer.faults import FaultTable, QueueChooser
from mqspark.client.producer.targets import MAX_MADE, PublishTopic, Target
from mqspark.client.remoting.client_options import ClientOptions
from mqspark.client.remoting.topic_routes import TopicRoute
from mqspark.errors import BadRoute, ProtocolError
from mqspark.message import Message, MessageQueue, Queues
from mqspark.protocol.bodies.body import Queue, decode_body, encode_body
from mqspark.protocol.bodies.client_bodies import (
    ConsumerData,
    HeartbeatData,
    QueryAssignmentRequestBody,
    QueryAssignmentResponseBody,
)
from mqspark.protocol.bodies.topic_bodies import (
    MAX_QUEUES,
    BrokerData,
    QueueData,
    TopicConfig,
    TopicRouteData,
)
from mqspark.protocol.codes import RequestCode
from mqspark.protocol.command import Command
from mqspark.protocol.receipts import (
    parse_message_offsets,
    parse_order_counts,
    parse_receipt,
    parse_start_offsets,
)
from tests.support.clocks import ManualClock
from tests.support.pace import ProcessorTime
from tests.support.scripted import Answer, Scripted, broker
from tests.support.waiting import eventually_async
from tests.unit.broker_kit import Bench

HUGE = 2**31 - 1


@contextmanager
def memory_below(bytes_: int) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < bytes_
    finally:
        tracemalloc.stop()


def data(*counts: int, addresses: Sequence[str] = (), order: str | None = None) -> TopicRouteData:
    names = [f"b-{number}" for number in range(len(counts))]
    return TopicRouteData(
        broker_datas=[
            BrokerData("c", name, {0: addresses[n] if addresses else f"h{n}:1"})
            for n, name in enumerate(names)
        ],
        queue_datas=[QueueData(name, count, count, 6) for name, count in zip(names, counts, strict=True)],
        order_topic_conf=order,
    )


@pytest.mark.parametrize("count", [HUGE, MAX_QUEUES + 1, -1, -(2**31)])
def test_a_route_of_impossible_counts_is_an_error_that_says_so(count: int) -> None:
    with memory_below(1 << 20), pytest.raises(BadRoute, match="65536") as caught:
        TopicRoute.of("T", data(count))
    assert caught.value.topic == "T"


def test_a_broker_that_lies_does_not_take_the_others_along() -> None:
    with memory_below(1 << 20):
        route = TopicRoute.of("T", data(4, HUGE, 2))
    assert [queue.broker_name for queue in route.publish_queues] == ["b-0"] * 4 + ["b-2"] * 2
    assert list(route.subscribe_queues) == list(route.publish_queues)


def test_more_queues_than_a_client_takes_in_all() -> None:
    assert len(TopicRoute.of("T", data(*[MAX_QUEUES] * 4)).subscribe_queues) == 4 * MAX_QUEUES
    with memory_below(1 << 20), pytest.raises(BadRoute, match="it has 327680 queues"):
        TopicRoute.of("T", data(*[MAX_QUEUES] * 5))


@pytest.mark.parametrize(
    "order", ["b-0:2147483647", "b-0:999999999999999999", ";".join(f"x{n}:60000" for n in range(9))]
)
def test_an_order_of_queues_that_cannot_be(order: str) -> None:
    with memory_below(1 << 20), pytest.raises(BadRoute):
        TopicRoute.of("T", data(4, order=order))


def test_a_malformed_address_is_left_out_and_the_rest_stays() -> None:
    for odd in ("", "nonsense", "h:0", "h:99999", "a b:1", "h\n:1"):
        route = TopicRoute.of("T", data(2, 2, addresses=[odd, "h1:1"]))
        assert [queue.broker_name for queue in route.publish_queues] == ["b-1"] * 2
        assert route.address("b-0") is None


def test_a_large_topic_costs_what_its_brokers_cost() -> None:
    with memory_below(1 << 20):
        route = TopicRoute.of("T", data(MAX_QUEUES, MAX_QUEUES))
        queues = route.publish_queues
        assert len(queues) == 2 * MAX_QUEUES
        assert queues[MAX_QUEUES] == MessageQueue("T", "b-1", 0)
        assert queues[-1] == MessageQueue("T", "b-1", MAX_QUEUES - 1)
        assert MessageQueue("T", "b-1", MAX_QUEUES) not in queues
        assert route == TopicRoute.of("T", data(MAX_QUEUES, MAX_QUEUES))


def test_queues_are_a_sequence_like_the_list_of_them() -> None:
    queues = Queues("T", [("a", 2), ("none", 0), ("b", 3)])
    plain = [
        MessageQueue("T", "a", 0),
        MessageQueue("T", "a", 1),
        *(MessageQueue("T", "b", n) for n in range(3)),
    ]
    assert list(queues) == plain
    assert queues == plain == queues
    assert queues == tuple(plain)
    assert queues != plain[:-1]
    assert [queues[n] for n in range(-5, 5)] == [plain[n] for n in range(-5, 5)]
    assert list(queues[1:4]) == plain[1:4]
    assert [queues.place_of(queue) for queue in plain] == [0, 1, 2, 3, 4]
    assert [queues.index(queue) for queue in plain] == [0, 1, 2, 3, 4]
    assert MessageQueue("U", "a", 0) not in queues
    with pytest.raises(IndexError):
        queues[5]
    assert not Queues("T")
    assert hash(queues) == hash(Queues("T", [("a", 2), ("b", 3)]))


def test_a_producer_of_a_large_topic_keeps_few_targets() -> None:
    clock = ManualClock()
    faults = FaultTable(clock)
    topic = PublishTopic(QueueChooser(faults))
    queues = Queues("T", [("a", MAX_QUEUES), ("b", 4)])
    with memory_below(16 << 20):
        topic.adopt(queues, lambda queue: Target(queue, queue, queue.broker_name, "g", 4), 0.0)
        chosen = [topic.chooser.choose(topic.candidates()).queue for _ in range(5_000)]
        assert topic.target_of(queues[-1]) is not None
        assert topic.target_of(MessageQueue("T", "b", 4)) is None
    assert len(set(chosen)) == 2_500 + 4
    assert {topic.chooser.choose(topic.candidates(), "a").broker_name for _ in range(9)} == {"b"}
    faults.record("b", 0, isolate=True)
    assert {topic.chooser.choose(topic.candidates()).broker_name for _ in range(9)} == {"a"}
    assert MAX_MADE < MAX_QUEUES


# --- with sockets ---


def name_server(route: TopicRouteData) -> Scripted:
    def script(command: Command) -> Answer:
        return 0, None, encode_body(route)

    return Scripted(script)


async def test_clients_say_what_is_wrong_and_live_on() -> None:
    route = data(HUGE)
    async with name_server(route).serving() as names:
        with memory_below(16 << 20):
            async with Producer(names.address, group="g") as producer:
                with pytest.raises(BadRoute, match="2147483647"):
                    await producer.send(Message.of("T", "x"))
            async with AdminClient(names.address) as admin:
                with pytest.raises(BadRoute, match="2147483647"):
                    await admin.topic_route("T")

            def ask() -> None:
                client = BlockingClient(names.address)
                with pytest.raises(BadRoute, match="2147483647"):
                    client.route("T")
                client.close()

            await asyncio.to_thread(ask)


async def test_a_producer_sends_to_a_topic_of_65536_queues() -> None:
    one = broker()
    async with one.serving():
        route = data(MAX_QUEUES, addresses=[one.address])
        async with name_server(route).serving() as names, Producer(names.address, group="g") as producer:
            with memory_below(24 << 20):
                for _ in range(20):
                    await producer.send(Message.of("T", "x"))
            await producer.send(Message.of("T", "x"), queue=MessageQueue("T", "b-0", MAX_QUEUES - 1))


async def test_nonsense_from_a_name_server_does_not_end_the_refreshing_of_routes() -> None:
    one = broker()
    async with one.serving():
        answers: list[Answer] = []
        good: Answer = (0, None, encode_body(data(1, addresses=[one.address])))

        def script(command: Command) -> Answer:
            return answers.pop(0) if answers else good

        names = Scripted(script)
        async with names.serving():
            options = ClientOptions(route_interval_ms=20)
            async with Producer(names.address, group="g", options=options) as producer:
                await producer.send(Message.of("T", "x"))
                answers += [
                    (0, None, b"nonsense"),
                    (0, None, b'{"brokerDatas":[{"brokerName":"b","brokerAddrs":{"x":1}}]}'),
                    (0, None, encode_body(data(HUGE))),
                    (0, None, encode_body(data(1, addresses=["no address"]))),
                    (0, None, b"[" * 1_000),
                ]
                await eventually_async(lambda: not answers, "all of the nonsense asked for")
                before = len(names.asked)
                await eventually_async(lambda: len(names.asked) > before + 2, "routes refreshed further on")
                await producer.send(Message.of("T", "x"))


# --- a broker that asks for routes ---


def test_a_broker_leaves_out_of_a_route_what_cannot_be(tmp_path: Path) -> None:
    bench = Bench(tmp_path, namesrv_addr="127.0.0.1:1")
    routes = bench.broker.requests.routes
    session = bench.peer().session
    routes.answer(session, "T", lambda: b"", 0)
    with memory_below(4 << 20):
        routes.learned("T", data(HUGE, 3, -1))
        found = routes.queues("T")
    assert found == [MessageQueue("T", "b-1", n) for n in range(3)]


# --- what pops say ---


def test_numbers_of_pops_are_numbers_that_can_be() -> None:
    huge = "9" * 400
    for place in (0, 1, 2, 3, 6, 7):
        parts = ["1", "2", "3", "4", "0", "b", "5", "6"]
        parts[place] = huge
        with pytest.raises(ProtocolError):
            parse_receipt(" ".join(parts))
    for parse in (parse_start_offsets, parse_message_offsets, parse_order_counts):
        for text in (f"0 {huge} 1", f"0 1 {huge}"):
            with pytest.raises(ProtocolError):
                parse(text)


def test_a_broker_gives_out_the_queues_of_a_large_topic_in_no_time(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    peer = bench.peer()
    topic = TopicConfig(topic_name="T", read_queue_nums=MAX_QUEUES, write_queue_nums=MAX_QUEUES)
    bench.broker.state.topics.put(topic)
    heartbeat = HeartbeatData(client_id="c", consumer_data_set=[ConsumerData("g")])
    assert peer.ask(RequestCode.HEART_BEAT, {}, encode_body(heartbeat)).code == 0
    question = QueryAssignmentRequestBody("T", "g", "c", "AVG", "CLUSTERING")
    with ProcessorTime() as cost:
        answer = peer.ask(RequestCode.QUERY_ASSIGNMENT, {}, encode_body(question))
    assert cost.seconds < 2
    given = decode_body(QueryAssignmentResponseBody, answer.body).message_queue_assignments
    assert given is not None
    assert [each.message_queue for each in given] == [Queue("T", "b-a", n) for n in range(MAX_QUEUES)]
