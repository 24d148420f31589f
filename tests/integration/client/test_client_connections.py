"""Connections that break, fall silent or idle; name servers that go away; namespaces on the wire."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from mqspark.aio import (
    AdminClient,
    ClientOptions,
    ConsumeFromWhere,
    LitePullConsumer,
    Message,
    Producer,
    PushConsumer,
    TransactionProducer,
    TransactionState,
)
from mqspark.client.remoting.remoting import Remoting
from mqspark.errors import BrokerError, ConnectionLost, NoSuchTopic, NotANameServer, RequestTimeout
from mqspark.protocol.bodies.body import decode_body, encode_body
from mqspark.protocol.bodies.client_bodies import GetConsumerListByGroupResponseBody, HeartbeatData
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command
from mqspark.protocol.session import Session
from mqspark.protocol.slices import Slices
from mqspark.record.record import encode_record
from mqspark.testing import Broker
from tests.support.scripted import SILENCE, Answer, Scripted, broker, cluster, namesrv
from tests.support.waiting import eventually_async

pytest_plugins = ["mqspark.testing.pytest_plugin"]

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET


def silent_once_told() -> tuple[Scripted, list[bool]]:
    """A broker that answers nothing at all while the list says so."""
    silent = [False]
    plain = broker().script

    def script(command: Command) -> Answer:
        return SILENCE if silent[0] else plain(command)

    return Scripted(script), silent


async def test_a_connection_without_a_word_is_given_up_and_opened_again() -> None:
    a, silent = silent_once_told()
    async with cluster(a=a) as address, Producer(address, group="g", retries=0) as producer:
        await producer.send(Message.of("T", "x"))
        silent[0] = True
        with pytest.raises(RequestTimeout):
            await producer.send(Message.of("T", "x"), timeout_ms=1_200)
        silent[0] = False
        await eventually_async(lambda: not a.writers, "the end of the connection")
        await producer.send(Message.of("T", "x"))
        assert a.accepted == 2


async def test_a_slow_answer_does_not_cost_a_connection_that_lives() -> None:
    """Some requests are answered, one is not."""
    plain = broker().script

    def script(command: Command) -> Answer:
        return SILENCE if bytes(command.body) == b"never" else plain(command)

    a = Scripted(script)
    async with cluster(a=a) as address, Producer(address, group="g", retries=0) as producer:
        await producer.send(Message.of("T", "x"))
        never = asyncio.ensure_future(producer.send(Message.of("T", "never"), timeout_ms=1_500))
        while not never.done():
            await producer.send(Message.of("T", "x"))
            await asyncio.sleep(0.05)
        with pytest.raises(RequestTimeout):
            await never
        assert a.accepted == 1


async def test_a_connection_that_nobody_needs_is_closed() -> None:
    a, b = broker(), broker()
    served = {"a": a}
    names = namesrv(served)
    options = ClientOptions(route_interval_ms=50, heartbeat_interval_ms=50, idle_timeout_ms=200)
    async with (
        names.serving(),
        a.serving(),
        b.serving(),
        Producer(names.address, group="g", options=options) as producer,
    ):
        await producer.send(Message.of("T", "x"))
        served.clear()
        served["b"] = b
        await eventually_async(lambda: not a.writers, "the end of the idle connection")
        result = await producer.send(Message.of("T", "x"))
        assert result.queue.broker_name == "b"
        assert b.accepted == 1


async def test_heartbeats_keep_a_connection_from_idling() -> None:
    a = broker()
    options = ClientOptions(heartbeat_interval_ms=50, idle_timeout_ms=1_000)
    async with cluster(a=a) as address, Producer(address, group="g", options=options) as producer:
        await producer.send(Message.of("T", "x"))
        await eventually_async(lambda: a.codes().count(RequestCode.HEART_BEAT) >= 30, "30 heartbeats")
        assert a.accepted == 1


async def test_when_a_name_server_goes_the_others_serve() -> None:
    a = broker()
    async with a.serving(), namesrv({"a": a}).serving() as second:
        first = namesrv({"a": a})
        async with first.serving():
            producer = Producer([first.address, second.address], group="g")
            await producer.start()
            await producer.send(Message.of("T0", "x"))
        for number in range(1, 4):
            await producer.send(Message.of(f"T{number}", "x"))
        assert {"T1", "T2", "T3"} <= {command.ext["topic"] for command in second.asked}
        await producer.stop()


async def test_name_servers_that_hang_are_passed_over_within_the_time_of_a_send() -> None:
    """However many topics are looked up at once."""
    a = broker()
    hung = [Scripted(lambda _: SILENCE) for _ in range(2)]
    async with a.serving(), namesrv({"a": a}).serving() as lively, hung[0].serving(), hung[1].serving():
        addresses = [hung[0].address, hung[1].address, lively.address]
        for number in range(3):  # client ids begin with any of them
            options = ClientOptions(instance_name=f"i{number}")
            async with Producer(addresses, group="g", options=options) as producer:
                sends = [producer.send(Message.of(f"T{number}-{topic}", "x")) for topic in range(7)]
                await asyncio.gather(*sends)
    assert all(each.asked for each in hung)


@pytest.mark.parametrize("code", [ResponseCode.SYSTEM_ERROR, ResponseCode.SYSTEM_BUSY, 3])
async def test_a_name_server_that_cannot_answer_now_leaves_that_to_the_others(code: int) -> None:
    """Code 3: there is a broker at its address."""
    a = broker()
    refusing = Scripted(lambda _: (code, None, b""))
    async with a.serving(), namesrv({"a": a}).serving() as lively, refusing.serving():
        for number in range(3):
            options = ClientOptions(instance_name=f"i{number}")
            async with Producer([refusing.address, lively.address], group="g", options=options) as producer:
                await producer.send(Message.of(f"T{number}", "x"))
        async with Producer([refusing.address, "127.0.0.1:1"], group="g") as producer:
            with pytest.raises(NotANameServer if code == 3 else BrokerError):
                await producer.send(Message.of("T", "x"))
    assert refusing.asked


async def test_a_name_server_that_no_broker_reaches_hides_nothing_that_others_know() -> None:
    a = broker()
    empty = [Scripted(lambda _: (ResponseCode.TOPIC_NOT_EXIST, None, b"")) for _ in range(2)]
    hung = Scripted(lambda _: SILENCE)
    async with (
        a.serving(),
        namesrv({"a": a}).serving() as lively,
        empty[0].serving(),
        empty[1].serving(),
        hung.serving(),
    ):
        for number in range(3):
            options = ClientOptions(instance_name=f"i{number}")
            async with Producer([empty[0].address, lively.address], group="g", options=options) as producer:
                await producer.send(Message.of(f"T{number}", "x"))
        every = [empty[0].address, hung.address, empty[1].address]
        async with Producer(every, group="g") as producer:
            with pytest.raises(NoSuchTopic):  # within the time of a send, although one does not answer
                await producer.send(Message.of("T", "x"), timeout_ms=3_000)
    assert empty[0].asked


async def test_a_late_answer_of_a_name_server_that_knows_less_hides_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another look-up has found meanwhile that the other one is to be asked."""
    a, ask, moved = broker(), Remoting.invoke, asyncio.Event()
    empty = Scripted(lambda _: (ResponseCode.TOPIC_NOT_EXIST, None, b""))

    async def invoke(self: Remoting, address: str, code: int, header: Any = None, **more: Any) -> Command:
        try:
            return await ask(self, address, code, header, **more)
        finally:
            if address == empty.address and header["topic"] == "Late":
                await moved.wait()

    monkeypatch.setattr(Remoting, "invoke", invoke)
    async with a.serving(), namesrv({"a": a}).serving() as lively, empty.serving():
        for order in ([empty.address, lively.address], [lively.address, empty.address]):
            moved.clear()
            # The same client id begins with the first of both lists, or with the second.
            async with Producer(order, group="g", options=ClientOptions(instance_name="i")) as producer:
                late = asyncio.create_task(producer.send(Message.of("Late", "x")))
                await producer.send(Message.of("Soon", "x"))
                moved.set()
                await late
            assert "Late" in [command.ext["topic"] for command in lively.asked], "not by TBW102 alone"
            lively.asked.clear()
    assert "Late" in [command.ext["topic"] for command in empty.asked]


async def test_a_name_server_that_is_away_keeps_no_other_from_a_change() -> None:
    def script(_: Command) -> Answer:
        broker_data = {"brokerName": "a", "cluster": "c", "brokerAddrs": {"0": lively.address}}
        return (
            0,
            {},
            json.dumps({"brokerAddrTable": {"a": broker_data}, "clusterAddrTable": {"c": ["a"]}}).encode(),
        )

    lively = Scripted(script)
    async with lively.serving(), AdminClient(["127.0.0.1:1", lively.address]) as admin:
        with pytest.raises(ConnectionLost):
            await admin.set_writable("a", writable=False)
        with pytest.raises(ConnectionLost):
            await admin.delete_topic("T")
    changes = {RequestCode.WIPE_WRITE_PERM_OF_BROKER, RequestCode.DELETE_TOPIC_IN_NAMESRV}
    assert changes <= set(lively.codes())


async def test_without_a_name_server_the_error_names_the_last_one_asked() -> None:
    async with Producer(["127.0.0.1:1", "127.0.0.1:2"], group="g") as producer:
        with pytest.raises(ConnectionLost, match=r"127\.0\.0\.1:[12]"):
            await producer.send(Message.of("T", "x"))


async def test_every_request_names_the_namespace() -> None:
    a = broker()
    options = ClientOptions(namespace_v2="shop")
    async with namesrv({"a": a}).serving() as names, a.serving():
        async with (
            Producer(names.address, group="p", options=options) as producer,
            TransactionProducer(
                names.address, group="t", check=lambda _: None, options=options
            ) as transactions,
        ):
            await producer.send(Message.of("T", "x"))
            await producer.send_batch([Message.of("T", "x")] * 2)
            await producer.send_oneway(Message.of("T", "x"))
            await transactions.prepare(Message.of("T", "x"))
        consumer = PushConsumer(names.address, group="c", listener=print, options=options)
        consumer.subscribe("T")
        async with consumer:
            await eventually_async(lambda: RequestCode.GET_CONSUMER_LIST_BY_GROUP in a.codes(), "a rebalance")
        for command in (*names.asked, *a.asked):
            assert (command.ext["nsd"], command.ext["ns"]) == ("true", "shop"), command.code
        topics = {command.ext["b"] for command in a.asked if command.code == RequestCode.SEND_MESSAGE_V2}
        assert topics == {"T"}, "names stay as they are"


def heartbeats_without_subscriptions(served: Broker) -> list[HeartbeatData]:
    """Those of consumers that the broker gets from now on."""
    assert served.apps[0].parts is not None
    handlers, short = served.apps[0].parts.core.handlers, list[HeartbeatData]()
    handle = handlers[RequestCode.HEART_BEAT]

    def note_and_handle(session: Session, command: Command) -> bytes | Slices | None:
        beat = decode_body(HeartbeatData, command.body)
        if beat.without_sub and beat.consumer_data_set:
            short.append(beat)
        return handle(session, command)

    handlers[RequestCode.HEART_BEAT] = note_and_handle
    return short


async def test_a_broker_of_ours_serves_clients_with_namespace_and_short_heartbeats(
    mq_broker: Broker, mq_topic: str
) -> None:
    options = ClientOptions(namespace_v2="shop", heartbeat_v2=True, heartbeat_interval_ms=50)
    consumer = LitePullConsumer(mq_broker.namesrv, group="ns-c", consume_from=FIRST, options=options)
    consumer.subscribe(mq_topic, "A")
    async with (
        AdminClient(mq_broker.namesrv) as admin,
        Producer(mq_broker.namesrv, group="ns-p", options=options) as producer,
    ):
        await admin.create_topic(mq_topic)
        async with consumer:
            short = heartbeats_without_subscriptions(mq_broker)
            await eventually_async(lambda: bool(short), "a broker that has everything")
            assert short[0].consumer_data_set[0].subscription_data_set == []
            await producer.send(Message.of(mq_topic, "x", tags="A"))
            await producer.send(Message.of(mq_topic, "x", tags="B"))
            got = []
            while not got:
                got += await consumer.poll(1_000)
            assert [message.tags for message in got] == ["A"]
            members = await admin.group_members("ns-c")
            (subscription,) = members.subscription_table.values()
            assert (subscription.topic, subscription.sub_string) == (mq_topic, "A")
            consumer.subscribe(mq_topic, "B")

            said = ""
            while said != "B":
                (now,) = (await admin.group_members("ns-c")).subscription_table.values()
                said = now.sub_string


async def test_what_a_transaction_came_to_is_told_with_the_namespace() -> None:
    a = broker()
    a.script = lambda command: (
        0,
        {"msgId": "7F00000100002A9F0000000000000000", "queueId": "0", "queueOffset": "7"},
        b"",
    )
    options = ClientOptions(namespace_v2="shop")
    async with (
        cluster(a=a) as address,
        TransactionProducer(address, group="t", check=lambda _: None, options=options) as producer,
    ):
        await producer.send_in_transaction(Message.of("T", "x"), execute=lambda _: TransactionState.COMMIT)
        await eventually_async(lambda: RequestCode.END_TRANSACTION in a.codes(), "the end")
        (end,) = [command for command in a.asked if command.code == RequestCode.END_TRANSACTION]
        assert (end.ext["nsd"], end.ext["ns"], end.ext["commitOrRollback"]) == ("true", "shop", "8")


# --- leaving without losing an offset -------------------------------------------------------------------


def consuming_broker(kind: str, commits: Callable[[Command], Answer]) -> Scripted:
    """Its queues have two messages each, and it answers commits as it is told. It knows one consumer, ``LEAVER``."""
    member = "127.0.0.1@leaver" + ("@STREAM" if kind == "lite" else "")
    plain = broker().script

    def script(command: Command) -> Answer:
        code, ext = command.code, command.ext
        if code == RequestCode.GET_CONSUMER_LIST_BY_GROUP:
            body = GetConsumerListByGroupResponseBody(consumer_id_list=[member])
            return 0, None, encode_body(body)
        if code == RequestCode.QUERY_CONSUMER_OFFSET:
            return 0, {"offset": "0"}, b""
        if code in (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE):
            if ext["queueOffset"] != "0" or ext["topic"] != "T":
                return SILENCE
            records = [
                encode_record(topic="T", body=b"x", queue_id=int(ext["queueId"]), queue_offset=offset)
                for offset in range(2)
            ]
            fields = {"nextBeginOffset": "2", "minOffset": "0", "maxOffset": "2", "suggestWhichBrokerId": "0"}
            return 0, fields, b"".join(records)
        if code == RequestCode.UPDATE_CONSUMER_OFFSET:
            return commits(command)
        return plain(command)

    return Scripted(script)


def committed(one: Scripted) -> dict[int, int]:
    return {
        int(command.ext["queueId"]): int(command.ext["commitOffset"])
        for command in one.asked
        if command.code == RequestCode.UPDATE_CONSUMER_OFFSET and command.ext["topic"] == "T"
    }


LEAVER = ClientOptions(instance_name="leaver", client_ip="127.0.0.1")


async def consume_all(address: str, kind: str, messages: int) -> None:
    """... and leave."""
    if kind == "push":
        seen: list[object] = []
        push = PushConsumer(address, group="c", listener=seen.append, options=LEAVER)
        push.subscribe("T")
        async with push:
            await eventually_async(lambda: len(seen) == messages, "all messages")
        return
    lite = LitePullConsumer(address, group="c", options=LEAVER)
    lite.subscribe("T")
    async with lite:
        got = 0
        while got < messages:
            got += len(await lite.poll(30_000))


@pytest.mark.parametrize("kind", ["push", "lite"])
async def test_who_leaves_commits_where_it_can(kind: str) -> None:
    """One broker refuses; the queues of the other are committed all the same, each of them."""
    a = consuming_broker(kind, lambda _: (ResponseCode.SYSTEM_ERROR, None, b""))
    b = consuming_broker(kind, lambda _: (0, {}, b""))
    async with a.serving(), b.serving(), namesrv({"a": a, "b": b}, queues=3).serving() as names:
        await consume_all(names.address, kind, 12)
    assert committed(b) == {0: 2, 1: 2, 2: 2}


@pytest.mark.parametrize("kind", ["push", "lite"])
async def test_who_leaves_commits_on_a_new_connection_when_the_old_one_breaks(kind: str) -> None:
    refusals = [None]

    def commit(_: Command) -> Answer:
        return refusals.pop() if refusals else (0, {}, b"")

    a = consuming_broker(kind, commit)
    async with a.serving(), namesrv({"a": a}, queues=1).serving() as names:
        await consume_all(names.address, kind, 2)
    assert committed(a) == {0: 2}
    assert a.codes().count(RequestCode.UPDATE_CONSUMER_OFFSET) >= 2
    assert a.accepted == 2
