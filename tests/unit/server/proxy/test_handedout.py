"""Messages of a real broker core as a gRPC client gets them."""

from __future__ import annotations

import hashlib
import zlib
from pathlib import Path

import pytest

from mqspark.message import MessageQueue
from mqspark.protocol.bodies.body import encode_body
from mqspark.protocol.bodies.lite_bodies import LiteSubscription, LiteSubscriptionCtlRequestBody
from mqspark.protocol.bodies.topic_bodies import SubscriptionGroupConfig, TopicConfig
from mqspark.protocol.codes import RequestCode
from mqspark_server.proxy import messaging_pb2 as pb
from mqspark_server.proxy.content.grpcmessages import type_of
from mqspark_server.proxy.content.handedout import HandedOut, delivered, handed_out, lite_handed_out
from mqspark_server.proxy.content.receipthandles import parse_handle
from tests.unit.broker_kit import SEND, Bench, send_ext
from tests.unit.pop_kit import INVISIBLE_MS, POP, pass_time, pop_ext, settle

ANY = MessageQueue("T", "b-a", -1)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    bench = Bench(tmp_path, store_settings={"enable_lmq": True, "enable_multi_dispatch": True})
    bench.broker.state.topics.put(TopicConfig(topic_name="T", read_queue_nums=1, write_queue_nums=1))
    return bench


def put(bench: Bench, body: bytes, sys_flag: int = 0, **properties: str) -> None:
    text = "".join(f"{key}\x01{value}\x02" for key, value in properties.items())
    answer = bench.peer().ask(SEND, send_ext("T", 0, text, f=str(sys_flag)), body)
    assert answer.code == 0, answer.remark


def received(bench: Bench, **more: str) -> list[pb.Message]:
    answer = bench.peer().ask(POP, pop_ext(bench, **more))
    assert answer.code == 0, answer.remark
    return [as_received(given, bench.clock.now_ms()) for given in handed_out(answer, ANY, "CG")]


def as_received(given: HandedOut, now_ms: int) -> pb.Message:
    return pb.ReceiveMessageResponse.FromString(delivered(given, now_ms)).message


def test_a_message_has_its_fields_and_the_programs_own_properties(bench: Bench) -> None:
    put(
        bench, b"body", TAGS="tag", KEYS="k1 k2", UNIQ_KEY="0A" * 16, color="red", WAIT="true", TRACE_CONTEXT="00-t",
        __SHARDINGKEY="order 1", DLQ_ORIGIN_TOPIC="From", DLQ_ORIGIN_MESSAGE_ID="id",
    )  # fmt: skip
    (message,) = received(bench)
    system = message.system_properties
    assert (message.topic.name, message.body, dict(message.user_properties)) == (
        "T",
        b"body",
        {"color": "red"},
    )
    assert (system.tag, list(system.keys), system.message_id) == ("tag", ["k1", "k2"], "0A" * 16)
    assert (system.message_group, system.trace_context) == ("order 1", "00-t")
    assert (system.queue_id, system.queue_offset, system.delivery_attempt) == (0, 0, 1)
    assert (system.message_type, system.body_encoding) == (pb.FIFO, pb.IDENTITY)
    assert system.body_digest.type == pb.MD5
    assert system.body_digest.checksum == hashlib.md5(b"body", usedforsecurity=False).hexdigest().upper()
    assert system.store_timestamp.ToMilliseconds() == bench.clock.now_ms()
    assert ":" not in system.born_host
    assert system.store_host.rpartition(":")[2].isdigit()
    assert (system.dead_letter_queue.topic, system.dead_letter_queue.message_id) == ("From", "id")
    assert not system.HasField("delivery_timestamp")
    assert not system.HasField("priority")
    handle = parse_handle(system.receipt_handle)
    assert (handle.receipt.broker_name, handle.receipt.offset) == ("b-a", 0)
    assert handle.position >= 0


def test_a_message_without_an_id_of_its_producer_has_that_of_its_place(bench: Bench) -> None:
    put(bench, b"m")
    (message,) = received(bench)
    assert len(message.system_properties.message_id) == 32
    assert not message.system_properties.HasField("tag")


def test_a_compressed_body_is_inflated_and_a_damaged_one_is_left_to_the_client(bench: Bench) -> None:
    put(bench, zlib.compress(b"long" * 100), sys_flag=0x1)
    put(bench, b"not zlib at all", sys_flag=0x1)
    whole, damaged = received(bench)
    assert (whole.body, whole.system_properties.body_encoding) == (b"long" * 100, pb.IDENTITY)
    assert (damaged.body, damaged.system_properties.body_encoding) == (b"not zlib at all", pb.GZIP)
    for message in (whole, damaged):
        digest = hashlib.md5(message.body, usedforsecurity=False).hexdigest().upper()
        assert message.system_properties.body_digest.checksum == digest


@pytest.mark.parametrize("order", ["false", "true"])
def test_a_message_that_comes_again_has_its_topic_and_its_count(bench: Bench, order: str) -> None:
    put(bench, b"m", color="red")
    (first,) = received(bench, order=order)
    settle(bench)
    pass_time(bench, INVISIBLE_MS + 5_000)
    (again,) = received(bench, order=order)
    assert (again.topic.name, again.body) == ("T", b"m")
    assert again.system_properties.message_id == first.system_properties.message_id
    assert (first.system_properties.delivery_attempt, again.system_properties.delivery_attempt) == (1, 2)
    assert dict(again.user_properties) == {"color": "red"}
    was, now = (parse_handle(each.system_properties.receipt_handle).receipt for each in (first, again))
    assert now.pop_time_ms > was.pop_time_ms
    assert (now.retry != "0") == (order == "false")


def test_a_message_of_a_lite_topic_is_named_by_its_place_there(bench: Bench) -> None:
    state = bench.broker.state
    state.topics.put(TopicConfig(topic_name="P", perm=6, attributes={"message.type": "LITE"}))
    state.subscriptions.put(SubscriptionGroupConfig(group_name="LG", attributes={"lite.bind.topic": "P"}))
    wanted = LiteSubscription(
        action="PARTIAL_ADD", client_id="c", group="LG", topic="P", lite_topic_set=["a"]
    )
    body = encode_body(LiteSubscriptionCtlRequestBody(lite_subscription_set=[wanted]))
    peer = bench.peer()
    assert peer.ask(RequestCode.LITE_SUBSCRIPTION_CTL, {}, body).code == 0
    for name in "bbaa":
        peer.ask(SEND, send_ext("P", 0, f"__LITE_TOPIC\x01{name}\x02"), b"m")
    ext = {
        "clientId": "c", "consumerGroup": "LG", "topic": "P", "maxMsgNum": "32", "invisibleTime": "30000",
        "pollTime": "0", "bornTime": str(bench.clock.now_ms()),
    }  # fmt: skip
    peer.ask(RequestCode.POP_LITE_MESSAGE, ext)
    bench.run_for(31_000)
    answer = peer.ask(RequestCode.POP_LITE_MESSAGE, {**ext, "bornTime": str(bench.clock.now_ms())})
    messages = [as_received(given, 0) for given in lite_handed_out(answer, "P", "b-a")]
    assert [message.system_properties.queue_offset for message in messages] == [0, 1]
    for message in messages:
        system = message.system_properties
        assert (message.topic.name, system.lite_topic, system.message_type) == ("P", "a", pb.LITE)
        assert system.delivery_attempt == 2
        assert dict(message.user_properties) == {}
        assert parse_handle(system.receipt_handle).receipt.is_order


@pytest.mark.parametrize(
    ("properties", "kind"),
    [
        ({}, pb.NORMAL),
        ({"TRAN_MSG": "true", "__SHARDINGKEY": "g"}, pb.TRANSACTION),
        ({"TRAN_MSG": "false"}, pb.NORMAL),
        ({"DELAY": "3"}, pb.DELAY),
        ({"TIMER_DELAY_MS": "3", "__SHARDINGKEY": "g"}, pb.DELAY),
        ({"__SHARDINGKEY": "g", "_SYS_MSG_PRIORITY_": "1"}, pb.FIFO),
        ({"_SYS_MSG_PRIORITY_": "1", "__LITE_TOPIC": "a"}, pb.PRIORITY),
        ({"__LITE_TOPIC": "a"}, pb.LITE),
    ],
)
def test_properties_say_the_type(properties: dict[str, str], kind: int) -> None:
    assert type_of(properties) == kind


def test_a_time_of_delivery_is_told(bench: Bench) -> None:
    put(bench, b"m", TIMER_DELIVER_MS="1700000001234", TIMER_OUT_MS="1700000001000")
    (message,) = received(bench)
    assert message.system_properties.delivery_timestamp.ToMilliseconds() == 1_700_000_001_234
