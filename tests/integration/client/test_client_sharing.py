"""One client identity in a process: one set of connections, one heartbeat, one table of routes."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

import mqspark
from mqspark.aio import (
    AdminClient,
    ClientOptions,
    ConsumeFromWhere,
    LitePullConsumer,
    Message,
    MessageModel,
    MessageQueue,
    Producer,
    PushConsumer,
    TransactionProducer,
    TransactionState,
)
from mqspark.errors import ClientError, ConfigError
from mqspark.message import PRODUCER_GROUP, QueueOffset
from mqspark.protocol.bodies.body import decode_body, encode_body
from mqspark.protocol.bodies.client_bodies import GetConsumerListByGroupResponseBody, HeartbeatData
from mqspark.protocol.codes import RequestCode
from mqspark.protocol.command import Command, encode_request
from mqspark.protocol.headers.client_headers import CheckTransactionStateRequestHeader
from mqspark.record.record import encode_record
from mqspark.testing import Broker
from tests.support.scripted import SILENCE, Answer, Scripted, broker, cluster, namesrv
from tests.support.waiting import eventually_async

pytest_plugins = ["mqspark.testing.pytest_plugin"]

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
SHARED = ClientOptions(instance_name="shared", client_ip="127.0.0.1", heartbeat_interval_ms=60_000)


def group_broker() -> Scripted:
    """A broker whose groups have one member each, and whose queues are empty."""
    plain = broker().script

    def script(command: Command) -> Answer:
        if command.code == RequestCode.GET_CONSUMER_LIST_BY_GROUP:
            body = GetConsumerListByGroupResponseBody(consumer_id_list=["127.0.0.1@shared"])
            return 0, None, encode_body(body)
        if command.code == RequestCode.QUERY_CONSUMER_OFFSET:
            return 0, {"offset": "0"}, b""
        if command.code in (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE):
            return SILENCE
        return plain(command)

    return Scripted(script)


def beats(one: Scripted) -> list[HeartbeatData]:
    return [decode_body(HeartbeatData, c.body) for c in one.asked if c.code == RequestCode.HEART_BEAT]


def farewells(one: Scripted) -> list[dict[str, str]]:
    return [c.ext for c in one.asked if c.code == RequestCode.UNREGISTER_CLIENT]


async def test_members_of_an_identity_share_connections_heartbeats_and_routes() -> None:
    a = group_broker()
    async with namesrv({"a": a}).serving() as names, a.serving():
        first = Producer(names.address, group="p1", options=SHARED)
        second = Producer(names.address, group="p2", options=SHARED)
        push = PushConsumer(names.address, group="c1", listener=print, options=SHARED)
        push.subscribe("T")
        other = PushConsumer(names.address, group="c2", listener=print, options=SHARED)
        other.subscribe("T")
        async with first, second, push, other, AdminClient(names.address, options=SHARED):
            await asyncio.gather(*(each.send(Message.of("T", "x")) for each in (first, second)))
            await eventually_async(
                lambda: len(push.assignment()) == len(other.assignment()) == 2, "all queues"
            )
            assert (a.accepted, names.accepted) == (1, 1)
            beat = beats(a)[-1]
            assert beat.client_id == push.client_id == other.client_id == "127.0.0.1@shared"
            assert {data.group_name for data in beat.producer_data_set} == {"p1", "p2"}
            assert {data.group_name for data in beat.consumer_data_set} == {"c1", "c2"}
            routes = [c.ext["topic"] for c in names.asked if c.code == RequestCode.GET_ROUTEINFO_BY_TOPIC]
            assert routes.count("T") == 1, "the second member knows what the first has learned"
        assert len(farewells(a)) == 4
        await eventually_async(lambda: not a.writers and not names.writers, "closed connections")


async def test_one_heartbeat_tells_of_all_members() -> None:
    a = group_broker()
    options = ClientOptions(instance_name="beating", client_ip="127.0.0.1", heartbeat_interval_ms=100)
    async with cluster(a=a) as address:
        producers = [Producer(address, group=f"p{number}", options=options) for number in range(5)]
        for producer in producers:
            await producer.start()
        await producers[0].send(Message.of("T", "x"))
        await eventually_async(lambda: len(beats(a)) >= 6, "some rounds")
        assert all(len(beat.producer_data_set) == 5 for beat in beats(a))
        assert a.accepted == 1
        for producer in producers:
            await producer.stop()


async def test_who_leaves_says_good_bye_for_its_own_group_only() -> None:
    a = group_broker()
    async with cluster(a=a) as address:
        options = dataclasses.replace(SHARED, heartbeat_interval_ms=50)
        async with Producer(address, group="stays", options=options) as stays:
            async with Producer(address, group="leaves", options=options) as leaves:
                await leaves.send(Message.of("T", "x"))
            assert farewells(a) == [{"clientID": "127.0.0.1@shared", "producerGroup": "leaves"}]
            await stays.send(Message.of("T", "y"))
            assert a.accepted == 1
            await eventually_async(
                lambda: [data.group_name for data in beats(a)[-1].producer_data_set] == ["stays"],
                "a heartbeat without the group that left",
            )
        assert farewells(a)[1:] == [{"clientID": "127.0.0.1@shared", "producerGroup": "stays"}]


async def test_a_member_that_comes_later_is_made_known_on_the_open_connection() -> None:
    a = group_broker()
    async with cluster(a=a) as address, Producer(address, group="early", options=SHARED) as early:
        await early.send(Message.of("T", "x"))
        async with Producer(address, group="late", options=SHARED):
            await eventually_async(lambda: len(beats(a)[-1].producer_data_set) == 2, "a heartbeat with both")


async def test_by_default_each_object_is_a_client_of_its_own() -> None:
    a = group_broker()
    async with (
        cluster(a=a) as address,
        Producer(address, group="one") as one,
        Producer(address, group="one") as other,
    ):
        await one.send(Message.of("T", "x"))
        await other.send(Message.of("T", "x"))
        assert a.accepted == 2
        assert len({beat.client_id for beat in beats(a)}) == 2


@pytest.mark.parametrize("kind", ["producer", "consumer"])
async def test_an_identity_has_one_member_of_a_group_and_kind(kind: str) -> None:
    a = group_broker()
    async with cluster(a=a) as address:

        def make() -> Producer | LitePullConsumer:
            if kind == "producer":
                return Producer(address, group="G", options=SHARED)
            consumer = LitePullConsumer(address, group="G", options=SHARED)
            consumer.subscribe("T")
            return consumer

        async with make():
            with pytest.raises(ConfigError, match=f"the {kind} group G .* already.* instance_name") as caught:
                await make().start()
            assert caught.value.key == "instance_name"
        async with make():
            assert len(a.writers) <= 1


async def test_a_producer_and_a_consumer_of_one_name_go_together() -> None:
    a = group_broker()
    async with cluster(a=a) as address, Producer(address, group="G", options=SHARED) as producer:
        consumer = PushConsumer(address, group="G", listener=print, options=SHARED)
        consumer.subscribe("T")
        async with consumer:
            await producer.send(Message.of("T", "x"))
            assert a.accepted == 1


async def test_who_pulls_by_itself_has_an_identity_of_its_own() -> None:
    """With others of its kind, as with Java clients."""
    a = group_broker()
    options = ClientOptions(instance_name="shared", client_ip="127.0.0.1", heartbeat_interval_ms=500)
    async with cluster(a=a) as address, Producer(address, group="G", options=options) as producer:
        async with (
            LitePullConsumer(address, group="one", options=options) as one,
            LitePullConsumer(address, group="two", options=options) as two,
        ):
            for consumer in (one, two):
                await consumer.assign([MessageQueue("T", "a", 0)])
                assert consumer.client_id == "127.0.0.1@shared@STREAM"
            await producer.send(Message.of("T", "x"))
            await eventually_async(lambda: len(beats(a)[-1].consumer_data_set) == 2, "a heartbeat with both")
            assert a.accepted == 2


async def test_an_identity_has_one_set_of_options_and_name_servers() -> None:
    a = group_broker()
    async with cluster(a=a) as address, Producer(address, group="one", options=SHARED):
        other = ClientOptions(instance_name="shared", client_ip="127.0.0.1", request_timeout_ms=1)
        with pytest.raises(ConfigError, match="with other options"):
            await Producer(address, group="two", options=other).start()
        with pytest.raises(ConfigError, match="with other name servers"):
            await Producer("127.0.0.1:1", group="two", options=SHARED).start()
        in_a_namespace = ClientOptions(
            instance_name="shared", client_ip="127.0.0.1", heartbeat_interval_ms=60_000, namespace="ns"
        )
        async with Producer(address, group="one", options=in_a_namespace) as wrapped:
            assert wrapped.group == "ns%one"


async def test_an_identity_belongs_to_one_event_loop() -> None:
    a = group_broker()
    async with cluster(a=a) as address, Producer(address, group="one", options=SHARED):
        blocking = mqspark.Producer(address, group="two", options=SHARED)
        with pytest.raises(ConfigError, match="on another event loop"):
            await asyncio.to_thread(blocking.start)


async def test_a_unit_is_part_of_the_client_id() -> None:
    options = ClientOptions(instance_name="i", client_ip="127.0.0.1", unit_name="u")
    async with Producer("127.0.0.1:1", group="g", options=options) as producer:
        assert producer.client_id == "127.0.0.1@i@u"


async def test_a_check_goes_to_the_producer_of_the_group() -> None:
    a = group_broker()
    asked: list[tuple[str, str]] = []

    def producer(address: str, group: str) -> TransactionProducer:
        def check(message: Message) -> TransactionState:
            asked.append((group, message.topic))
            return TransactionState.COMMIT

        return TransactionProducer(address, group=group, check=check, options=SHARED)

    async with cluster(a=a) as address, producer(address, "t1"), producer(address, "t2"):
        await eventually_async(lambda: bool(a.writers), "a connection")
        for number, group in enumerate(["t2", "t1", "nobody"]):
            record = encode_record(
                topic="T",
                queue_id=0,
                queue_offset=QueueOffset(0),
                physical_offset=number,
                body=b"x",
                properties={PRODUCER_GROUP: group, "UNIQ_KEY": f"U{number}"},
            )
            header = CheckTransactionStateRequestHeader(
                tran_state_table_offset=0, commit_log_offset=number, msg_id=f"U{number}"
            )
            (writer,) = a.writers
            writer.write(
                encode_request(RequestCode.CHECK_TRANSACTION_STATE, number, header, record, oneway=True)
            )
        await eventually_async(lambda: a.codes().count(RequestCode.END_TRANSACTION) == 2, "two answers")
    assert sorted(asked) == [("t1", "T"), ("t2", "T")]
    ended = [c.ext["producerGroup"] for c in a.asked if c.code == RequestCode.END_TRANSACTION]
    assert sorted(ended) == ["t1", "t2"]


# --- against a broker of ours ---------------------------------------------------------------------------


def connections(broker: Broker) -> int:
    server = broker.apps[0].parts.server
    assert server is not None
    return broker.call(lambda: server.connections)


async def test_groups_of_one_identity_each_get_all_messages(mq_broker: Broker, mq_topic: str) -> None:
    async with AdminClient(mq_broker.namesrv) as admin, AsyncExitStack() as stack:
        await admin.create_topic(mq_topic, queues=4)
        await admin.cluster_info()
        before = connections(mq_broker)
        got: dict[str, list[str]] = {"g1": [], "g2": []}
        consumers = []
        for group, seen in got.items():
            consumer = PushConsumer(
                mq_broker.namesrv,
                group=group,
                listener=lambda message, seen=seen: seen.append(message.body.decode()),
                consume_from=FIRST,
                options=SHARED,
            )
            consumer.subscribe(mq_topic)
            consumers.append(await stack.enter_async_context(consumer))
        producer = await stack.enter_async_context(Producer(mq_broker.namesrv, group="p", options=SHARED))
        wanted = [str(number) for number in range(40)]
        for text in wanted:
            await producer.send(Message.of(mq_topic, text))
        await eventually_async(lambda: all(len(seen) >= 40 for seen in got.values()), "40 messages each")
        assert connections(mq_broker) == before + 1
        for group in got:
            members = await admin.group_members(group)
            assert [member.client_id for member in members.connection_set] == ["127.0.0.1@shared"]
        await consumers[0].stop()
        with pytest.raises(ClientError):
            await admin.group_members("g1")
        assert len((await admin.group_members("g2")).connection_set) == 1, "the other group is still there"
        assert await admin.group_lag("g1", mq_topic) == 0, "it left with all that it had done committed"
    assert {group: sorted(seen, key=int) for group, seen in got.items()} == {"g1": wanted, "g2": wanted}


async def test_broadcasting_consumers_share_by_default(
    mq_broker: Broker, mq_topic: str, tmp_path: Path
) -> None:
    async with AdminClient(mq_broker.namesrv) as admin:
        await admin.create_topic(mq_topic, queues=2)

    def consumer(group: str) -> PushConsumer:
        made = PushConsumer(
            mq_broker.namesrv,
            group=group,
            listener=print,
            message_model=MessageModel.BROADCASTING,
            local_offsets_directory=tmp_path,
        )
        made.subscribe(mq_topic)
        return made

    async with consumer("b1") as one, consumer("b2") as other:
        assert one.client_id == other.client_id
        assert one.client_id.endswith("@DEFAULT")
        with pytest.raises(ConfigError, match="already"):
            await consumer("b1").start()


def test_blocking_clients_share_too(mq_broker: Broker, mq_topic: str) -> None:
    before = connections(mq_broker)
    with (
        mqspark.Producer(mq_broker.namesrv, group="one", options=SHARED) as one,
        mqspark.Producer(mq_broker.namesrv, group="two", options=SHARED) as two,
    ):
        one.send(Message.of(mq_topic, "x"))
        two.send(Message.of(mq_topic, "y"))
        assert connections(mq_broker) == before + 1
        one.stop()
        two.send(Message.of(mq_topic, "z"))
        assert connections(mq_broker) == before + 1
    deadline = time.monotonic() + 60
    while connections(mq_broker) != before:
        assert time.monotonic() < deadline, "the connection is still there"
        time.sleep(0.01)
