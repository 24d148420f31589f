"""What the client puts on the wire, beside what a Java client was recorded to put there. No sockets."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from mqspark import Credentials
from mqspark.aio import ClientOptions, ConsumeFromWhere, Message, MessageQueue, Producer, PushConsumer
from mqspark.client.consumer.offset_stores import LocalOffsets
from mqspark.client.delivery.results import SendResult, SendStatus
from mqspark.client.producer.send_window import ThreadWindow
from mqspark.client.producer.targets import Target
from mqspark.client.remoting.channel import Channel
from mqspark.client.remoting.client_options import client_id_of, resolve_namesrv
from mqspark.client.remoting.credentials import signer_of
from mqspark.client.remoting.heartbeats import Heartbeats
from mqspark.client.remoting.remoting import split_address
from mqspark.client.remoting.topic_routes import TopicRoute
from mqspark.errors import ClientError, ConfigError, ConnectionLost, RequestTimeout
from mqspark.protocol.binding import BINDING, Binder, description_of
from mqspark.protocol.bodies.body import encode_body
from mqspark.protocol.bodies.client_bodies import CheckClientRequestBody
from mqspark.protocol.bodies.topic_bodies import BrokerData, QueueData, TopicRouteData
from mqspark.protocol.codes import RequestCode
from mqspark.protocol.command import Command, encode_response
from mqspark.protocol.connection import Connection
from mqspark.protocol.signature import Signer
from tests.support.wires import Wire

FRAMES = Path(__file__).parents[2] / "golden" / "frames"


def recorded(name: str, code: int, direction: str = "c2s") -> Iterator[Command]:
    for line in (FRAMES / f"{name}.jsonl").read_text().splitlines():
        frame = json.loads(line)
        if frame["code"] == code and frame["dir"] == direction:
            yield Connection().receive_data(bytes.fromhex(frame["frame_hex"]))[0]


def connected(
    requests: list[Command] | None = None,
    lost: list[Channel] | None = None,
    signer: Signer | None = None,
) -> tuple[Channel, Wire]:
    wire = Wire()
    channel = Channel(
        "broker:1",
        asyncio.get_running_loop(),
        lambda _, request: requests.append(request) if requests is not None else None,
        lambda gone: lost.append(gone) if lost is not None else None,
        signer=signer,
    )
    channel.connection_made(wire)
    return channel, wire


async def started(
    topic: str = "FrTopic", group: str = "PG_sync", credentials: Credentials | None = None
) -> tuple[Producer, Channel, Wire]:
    """A producer that knows one queue and has a connection to it."""
    options = ClientOptions(client_ip="127.0.0.1", credentials=credentials)
    producer = Producer("127.0.0.1:1", group=group, options=options)
    await producer.start()
    channel, wire = connected(signer=signer_of(credentials or False))
    route = TopicRoute(topic, {"broker-g": {0: "broker:1"}}, (MessageQueue(topic, "broker-g", 1),), ())
    producer._instance._routes[topic] = route
    known = await producer._targets.find(topic)
    known.targets[0].channel = channel
    return producer, channel, wire


# --- sends --------------------------------------------------------------------------------------------


async def test_a_send_has_the_fields_of_a_java_clients() -> None:
    java = next(c for c in recorded("send_sync", RequestCode.SEND_MESSAGE_V2) if c.body == b"hello keys")
    producer, channel, wire = await started()
    sending = asyncio.ensure_future(
        producer.send(Message.of("FrTopic", "hello keys", tags="TagB", keys=["key1", "key2"]))
    )
    await asyncio.sleep(0.01)
    (ours,) = wire.commands()
    assert (ours.code, ours.flag, bytes(ours.body)) == (java.code, java.flag, java.body)
    assert ours.ext.keys() == java.ext.keys()
    assert {k: v for k, v in ours.ext.items() if k not in "gi"} == {
        k: v for k, v in java.ext.items() if k not in "gi"
    }
    assert "KEYS\x01key1 key2\x02" in ours.ext["i"]
    assert len(ours.ext["g"]) == len(java.ext["g"])
    answer = next(iter(recorded("send_sync", 0, "s2c")))
    while "msgId" not in answer.ext:
        answer = next(c for c in recorded("send_sync", 0, "s2c") if "msgId" in c.ext)
    channel.data_received(encode_response(ours.opaque, 0, answer.ext))
    result = await sending
    assert isinstance(result, SendResult)
    assert (result.status, result.offset_message_id) == (SendStatus.SEND_OK, answer.ext["msgId"])
    assert result.queue == MessageQueue("FrTopic", "broker-g", int(answer.ext["queueId"]))
    await producer.stop()


async def test_a_batch_has_the_fields_of_a_java_clients() -> None:
    java = next(recorded("send_batch", RequestCode.SEND_BATCH_MESSAGE))
    producer, channel, wire = await started(group="PG_batch")
    messages = [Message.of("FrTopic", f"batch item {n}") for n in range(5)]
    sending = asyncio.ensure_future(producer.send_batch(messages))
    await asyncio.sleep(0.01)
    (ours,) = wire.commands()
    assert ours.code == java.code
    assert ours.ext.keys() == java.ext.keys()
    assert {k: ours.ext[k] for k in "abcdfhjkmn"} == {k: java.ext[k] for k in "abcdfhjkmn"}
    channel.data_received(
        encode_response(ours.opaque, 0, {"msgId": "A,B,C,D,E", "queueId": "1", "queueOffset": "6"})
    )
    result = await sending
    assert (result.queue_offset, len(result.message_ids)) == (6, 5)
    await producer.stop()


@pytest.mark.parametrize("token", [None, "t"])
@pytest.mark.parametrize("kind", ["one", "batch", "oneway"])
async def test_a_send_is_signed_for_one_request_to_one_broker(kind: str, token: str | None) -> None:
    """The hot path encodes and signs by itself what ``Binder.signed`` would."""
    credentials = Credentials("user", "secret", token)
    producer, channel, wire = await started("T", credentials=credentials)
    message = Message.of("T", "bödy", keys=['k"ä'])
    if kind == "oneway":
        await producer.send_oneway(message)
    sending = asyncio.ensure_future(
        producer.send_batch([message, message]) if kind == "batch" else producer.send(message)
    )
    await asyncio.sleep(0.01)
    ours = wire.commands()[-1]
    described = description_of(ours.ext[BINDING])
    assert described is not None
    signer = Signer("user", "secret", token)
    again = Binder(signer, "broker:1", ("10.0.0.5", 1), described.connection, lambda: described.time_ms)
    for _ in range(described.number - 1):
        again.description(0, 0, 0, "")
    rest = {name: value for name, value in ours.ext.items() if name not in (BINDING, "Signature")}
    assert again.signed(ours.code, rest, bytes(ours.body)) == ours.ext
    assert described.number == (2 if kind == "oneway" else 1)
    channel.data_received(
        encode_response(ours.opaque, 0, {"msgId": "A,B", "queueId": "1", "queueOffset": "6"})
    )
    await sending
    await producer.stop()


async def test_names_are_escaped_in_the_prepared_header() -> None:
    queue = MessageQueue('T"\\', "bröker", 3)
    target = Target(queue, queue, queue.broker_name, 'g"', 4)
    for head in target.heads:
        fields = json.loads(head + b'1","i":""},"opaque":1}')["extFields"]
        assert (fields["a"], fields["b"], fields["n"], fields["e"]) == ('g"', 'T"\\', "bröker", "3")


async def test_all_sends_of_a_turn_go_out_in_one_write() -> None:
    producer, channel, wire = await started()
    futures = [await producer.send_async(Message.of("FrTopic", str(n))) for n in range(100)]
    await asyncio.sleep(0)
    assert len(wire.writes) == 1
    commands = wire.commands()
    assert [bytes(command.body) for command in commands] == [b"%d" % n for n in range(100)]
    answers = [
        encode_response(command.opaque, 0, {"msgId": "M", "queueId": "1", "queueOffset": str(n)})
        for n, command in enumerate(commands)
    ]
    channel.data_received(b"".join(answers))
    assert [(await future).queue_offset for future in futures] == list(range(100))
    await producer.stop()


async def test_oneway_sends_are_flagged_so() -> None:
    producer, _, wire = await started()
    await producer.send_oneway(Message.of("FrTopic", "x"))
    await asyncio.sleep(0)
    (command,) = wire.commands()
    assert command.is_oneway
    assert command.code == RequestCode.SEND_MESSAGE_V2
    await producer.stop()


# --- heartbeats ---------------------------------------------------------------------------------------


async def test_a_heartbeat_says_what_a_java_consumers_says() -> None:
    (java, *_) = recorded("push_concurrent", RequestCode.HEART_BEAT)
    consumer = PushConsumer(
        "127.0.0.1:1",
        group="CG_conc",
        listener=print,
        consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
    )
    consumer.subscribe("FrPush", ["TagA", "TagB"])
    consumer.subscribe("%RETRY%CG_conc")
    group = consumer._group
    group.rebalancing = True
    options = ClientOptions(instance_name="I_CG_conc", client_ip="127.0.0.1")
    client_id = client_id_of(["127.0.0.1:1"], options)
    body, _ = Heartbeats(client_id, with_fingerprint=False).next("broker:1", [group])
    theirs, ours = json.loads(java.body), json.loads(body)
    theirs["producerDataSet"] = []  # the internal producer of a Java client, which we have not
    for body in (theirs, ours):
        for data in body["consumerDataSet"][0]["subscriptionDataSet"]:
            assert data.pop("subVersion") > 1_700_000_000_000
    assert ours == theirs


async def test_a_filter_is_announced_as_by_a_java_consumer() -> None:
    (check,) = recorded("push_sql", RequestCode.CHECK_CLIENT_CONFIG)
    (beat, *_) = recorded("push_sql", RequestCode.HEART_BEAT)
    consumer = PushConsumer("127.0.0.1:1", group="CG_sql", listener=print)
    consumer.subscribe("FrPush", sql="a > 2 AND TAGS IS NOT NULL")
    subscription = consumer._group.subscriptions["FrPush"]
    body = CheckClientRequestBody(
        client_id="127.0.0.1@I_CG_sql", group="CG_sql", subscription_data=subscription
    )
    theirs, ours = json.loads(check.body), json.loads(encode_body(body))
    in_heartbeat = json.loads(beat.body)["consumerDataSet"][0]["subscriptionDataSet"][0]
    for data in (theirs["subscriptionData"], ours["subscriptionData"], in_heartbeat):
        assert data.pop("subVersion") > 1_700_000_000_000
    assert ours == theirs
    assert ours["subscriptionData"] == in_heartbeat


# --- channel ------------------------------------------------------------------------------------------


async def test_each_request_gets_its_own_answer_or_timeout() -> None:
    channel, wire = connected()
    slow = asyncio.ensure_future(channel.request(28, None, b"", 60_000))
    quick = asyncio.ensure_future(channel.request(28, None, b"", 20))
    other = asyncio.ensure_future(channel.request(106, None, b"", 60_000))
    await asyncio.sleep(0)
    first, _, third = await wait_for(wire, 3)
    channel.data_received(encode_response(third.opaque, 0, None, b"third"))
    assert (await other).body == b"third"
    with pytest.raises(RequestTimeout) as late:
        await quick
    assert (late.value.address, late.value.timeout_ms) == ("broker:1", 20)
    channel.data_received(encode_response(first.opaque, 0, None, b"first") + encode_response(99, 0))
    assert (await slow).body == b"first"


async def wait_for(wire: Wire, count: int) -> list[Command]:
    for _ in range(10):
        await asyncio.sleep(0)
    commands = wire.commands()
    assert len(commands) == count
    return commands


async def test_a_cancelled_request_is_forgotten() -> None:
    channel, wire = connected()
    request = asyncio.ensure_future(channel.request(28, None, b"", 60_000))
    (sent,) = await wait_for(wire, 1)
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    assert channel.idle_s() > 0, "no answer is awaited"
    channel.data_received(encode_response(sent.opaque, 0))


async def test_a_lost_connection_fails_its_requests_and_refuses_more() -> None:
    lost: list[Channel] = []
    channel, wire = connected(lost=lost)
    request = asyncio.ensure_future(channel.request(28, None, b"", 60_000))
    await wait_for(wire, 1)
    channel.connection_lost(OSError("reset"))
    with pytest.raises(ConnectionLost, match="reset"):
        await request
    assert lost == [channel]
    with pytest.raises(ConnectionLost):
        await channel.request(28, None, b"", 60_000)
    with pytest.raises(ConnectionLost):
        channel.oneway(28, None)


async def test_a_retired_channel_answers_what_it_has_then_closes() -> None:
    lost: list[Channel] = []
    channel, wire = connected(lost=lost)
    request = asyncio.ensure_future(channel.request(28, None, b"", 60_000))
    (sent,) = await wait_for(wire, 1)
    channel.retire()
    assert (lost, channel.open, wire.closed) == ([channel], False, False)
    channel.data_received(encode_response(sent.opaque, 0, None, b"late"))
    assert (await request).body == b"late"
    assert wire.closed


@pytest.mark.parametrize("how", ["late", "cancelled"])
async def test_a_retired_channel_closes_when_nobody_waits_any_more(how: str) -> None:
    """What a server that is about to stop never answers keeps no connection open."""
    channel, wire = connected()
    request = asyncio.ensure_future(channel.request(28, None, b"", 20 if how == "late" else 60_000))
    await wait_for(wire, 1)
    channel.retire()
    assert not wire.closed
    if how == "cancelled":
        request.cancel()
    with pytest.raises((RequestTimeout, asyncio.CancelledError)):
        await request
    assert wire.closed


async def test_a_peer_that_does_not_read_holds_the_writer() -> None:
    channel, _ = connected()
    channel.pause_writing()
    waiting = asyncio.ensure_future(channel.drain())
    await asyncio.sleep(0)
    assert not waiting.done()
    channel.resume_writing()
    await waiting
    channel.pause_writing()
    waiting = asyncio.ensure_future(channel.drain())
    await asyncio.sleep(0)
    channel.connection_lost(None)
    with pytest.raises(ConnectionLost):
        await waiting


async def test_requests_of_the_server_are_handed_on() -> None:
    requests: list[Command] = []
    channel, wire = connected(requests)
    notify = next(recorded("push_concurrent", RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, "s2c"))
    channel.data_received(bytes.fromhex(hex_of("push_concurrent", RequestCode.NOTIFY_CONSUMER_IDS_CHANGED)))
    assert [request.code for request in requests] == [notify.code]
    channel.respond(notify, 0)  # one-way: nothing to answer
    await asyncio.sleep(0)
    assert wire.writes == []


def hex_of(name: str, code: int) -> str:
    frames = (json.loads(line) for line in (FRAMES / f"{name}.jsonl").read_text().splitlines())
    return next(str(frame["frame_hex"]) for frame in frames if frame["code"] == code)


# --- addresses, routes, offsets, room -----------------------------------------------------------------


def test_addresses() -> None:
    assert split_address("10.0.0.1:9876") == ("10.0.0.1", 9876)
    assert split_address("[::1]:9876") == ("::1", 9876)
    for bad in ("nowhere", ":1", "a:x", "a:\u00b2", "a:65536", "a:" + "9" * 5_000):
        with pytest.raises(ConnectionLost):
            split_address(bad)
    assert resolve_namesrv("a:1;b:2, c:3;") == ["a:1", "b:2", "c:3"]
    assert resolve_namesrv(["a:1"]) == ["a:1"]
    for bad in ("a", ":1", "a:x", []):
        with pytest.raises(ConfigError):
            resolve_namesrv(bad)


def broker(name: str, **addresses: str) -> BrokerData:
    ids = {int(number.removeprefix("id")): address for number, address in addresses.items()}
    return BrokerData(cluster="c", broker_name=name, broker_addrs=ids)


def queues(name: str, perm: int = 6, read: int = 2, write: int = 2) -> QueueData:
    return QueueData(broker_name=name, read_queue_nums=read, write_queue_nums=write, perm=perm)


def test_a_route_says_who_may_write_and_read_where() -> None:
    data = TopicRouteData(
        broker_datas=[broker("b", id0="b0:1", id1="b1:1"), broker("a", id1="a1:1"), broker("c", id0="c0:1")],
        queue_datas=[queues("b", read=3), queues("a"), queues("c", perm=4), queues("gone")],
    )
    route = TopicRoute.of("T", data)
    assert route.publish_queues == (MessageQueue("T", "b", 0), MessageQueue("T", "b", 1))
    assert [(q.broker_name, q.queue_id) for q in route.subscribe_queues] == [
        ("a", 0), ("a", 1), ("b", 0), ("b", 1), ("b", 2), ("c", 0), ("c", 1),
    ]  # fmt: skip
    assert (route.address("b"), route.address("b", 1), route.address("b", 7)) == ("b0:1", "b1:1", "b0:1")
    assert (route.address("a"), route.master("a"), route.address("none")) == ("a1:1", None, None)


def test_a_template_route_is_cut_to_what_a_new_topic_gets() -> None:
    data = TopicRouteData(broker_datas=[broker("b", id0="b:1")], queue_datas=[queues("b", 7, 8, 8)])
    assert len(TopicRoute.of("T", data, max_queues=4).publish_queues) == 4


def test_an_order_topic_has_the_configured_queues() -> None:
    data = TopicRouteData(
        broker_datas=[broker("b", id0="b:1")], queue_datas=[queues("b")], order_topic_conf="b:1;a:2"
    )
    assert [(q.broker_name, q.queue_id) for q in TopicRoute.of("T", data).publish_queues] == [
        ("b", 0),
        ("a", 0),
        ("a", 1),
    ]


async def test_local_offsets_survive_and_fall_back_to_the_one_before(tmp_path: Path) -> None:
    queue, other = MessageQueue("T", "b", 0), MessageQueue("T", "b", 1)
    offsets = LocalOffsets(tmp_path, "10.0.0.1@x", "g")
    assert await offsets.read(queue) is None
    await offsets.write({queue: 5})
    await offsets.write({queue: 6, other: 7})
    again = LocalOffsets(tmp_path, "10.0.0.1@x", "g")
    assert (await again.read(queue), await again.read(other)) == (6, 7)
    path = tmp_path / "10.0.0.1@x" / "g" / "offsets.json"
    path.write_text("")
    assert await LocalOffsets(tmp_path, "10.0.0.1@x", "g").read(queue) == 5
    path.with_suffix(".json.bak").write_text("{")
    with pytest.raises(ClientError, match=r"nor its \.bak"):
        await LocalOffsets(tmp_path, "10.0.0.1@x", "g").read(queue)


async def test_local_offsets_that_could_not_be_saved_are_saved_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a damaged file never replaces the good copy."""
    queue = MessageQueue("T", "b", 0)
    offsets = LocalOffsets(tmp_path, "c", "g")
    await offsets.write({queue: 5})
    await offsets.write({queue: 6})
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", lambda fd: (_ for _ in ()).throw(OSError("input/output error")))
        for _ in range(2):
            with pytest.raises(OSError, match="input/output"):
                await offsets.write({queue: 7})
    assert await offsets.read(queue) == 6
    await offsets.write({queue: 7})
    assert await LocalOffsets(tmp_path, "c", "g").read(queue) == 7
    path = tmp_path / "c" / "g" / "offsets.json"
    path.write_text("")
    await LocalOffsets(tmp_path, "c", "g").write({queue: 8})
    path.unlink()  # as if the process had been killed before its last step
    assert await LocalOffsets(tmp_path, "c", "g").read(queue) == 6


async def test_local_offsets_of_a_java_client_are_read(tmp_path: Path) -> None:
    path = tmp_path / "c" / "g" / "offsets.json"
    path.parent.mkdir(parents=True)
    path.write_text(
        '{\n\t"offsetTable":{{\n\t\t"brokerName":"b",\n\t\t"queueId":3,\n\t\t"topic":"T"\n\t}:42\n\t}\n}'
    )
    assert await LocalOffsets(tmp_path, "c", "g").read(MessageQueue("T", "b", 3)) == 42


def test_room_is_given_back_by_halves() -> None:
    import threading

    room = ThreadWindow(4, 1_000)
    for _ in range(4):
        room.take(10)
    passed = threading.Event()
    waiter = threading.Thread(target=lambda: (room.take(10), passed.set()))
    waiter.start()
    room.give(10)
    assert not passed.wait(0.05)
    room.give(10)
    assert passed.wait(60)
    waiter.join()
