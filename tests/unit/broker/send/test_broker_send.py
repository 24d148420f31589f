"""Sends: checks in RocketMQ's order, what is stored, and when the answer leaves."""

from __future__ import annotations

from pathlib import Path

import pytest

from mqspark.message import Message, encode_properties, java_hash
from mqspark.protocol.bodies.topic_bodies import SubscriptionGroupConfig, TopicConfig
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import encode_request
from mqspark.record.batchitems import encode_batch
from mqspark.record.record import decode_records
from tests.unit.broker_kit import SEND, Bench, Peer, last_registration, send_ext

TRACE = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}


@pytest.fixture
def sync_bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path, sync=True)


def stored(bench: Bench, topic: str = "T", queue_id: int = 0) -> list:
    return decode_records(b"".join(bench.store.reads.get(topic, queue_id, 0, 1000, 1 << 24, None).buffers))


def test_send_stores_and_answers(bench: Bench) -> None:
    answer = bench.peer().ask(
        SEND, send_ext(properties="TAGS\x01A\x02UNIQ_KEY\x01U1\x02KEYS\x01k\x02"), b"hello"
    )
    assert answer.code == 0
    assert answer.ext == {
        "msgId": "7F00000100002A9F0000000000000000",
        "queueId": "0",
        "queueOffset": "0",
        "transactionId": "U1",
        **TRACE,
    }
    (message,) = stored(bench)
    assert message.body == b"hello"
    assert message.properties == {"TAGS": "A", "UNIQ_KEY": "U1", "KEYS": "k", "CLUSTER": "C", **TRACE}
    assert message.born_host == "127.0.0.1:40001"
    assert bench.store.reads.get("T", 0, 0, 1, 1000, frozenset({java_hash("A")})).count == 1


def test_v1_header_stores_the_same(bench: Bench) -> None:
    ext = {
        "producerGroup": "PG",
        "topic": "T",
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "queueId": "1",
        "sysFlag": "0",
        "bornTimestamp": "1700000000000",
        "flag": "9",
        "properties": "TAGS\x01V1",
        "batch": "false",
    }
    answer = bench.peer().ask(RequestCode.SEND_MESSAGE, ext, b"v1")
    assert answer.code == 0
    (message,) = stored(bench, queue_id=1)
    assert (message.tags, message.flag) == ("V1", 9)
    assert message.properties["UNIQ_KEY"] == answer.ext["transactionId"]


def test_properties_of_the_broker_replace_those_that_came(bench: Bench) -> None:
    came = {
        "CLUSTER": "elsewhere",
        "MSG_REGION": "r",
        "TRACE_ON": "false",
        "POP_CK": "x",
        "a": "CLUSTER",
        "DELAY": "0",
    }
    bench.peer().ask(SEND, send_ext(properties=encode_properties(came).decode()), b"x")
    properties = stored(bench)[0].properties
    properties.pop("UNIQ_KEY")
    assert properties == {"a": "CLUSTER", "DELAY": "0", "CLUSTER": "C", **TRACE}


def test_a_legal_property_string_may_be_long_in_json(bench: Bench, peer: Peer) -> None:
    text = "".join(f"{number:x}\x01b\x02" for number in range(0x1000, 0x2000))
    assert len(encode_request(SEND, 1, send_ext(properties=text))) > 64 * 1024
    peer.ask(SEND, send_ext(), b"known from here on")
    assert peer.ask(SEND, send_ext(properties=text), b"x").code == 0
    _, message = stored(bench)
    assert message.properties["1fff"] == "b"


def test_auto_creation_copies_the_template(bench: Bench, peer: Peer) -> None:
    peer.ask(SEND, send_ext("Fresh", d="3"), b"x")
    topic = bench.broker.state.topics.get("Fresh")
    assert topic is not None
    assert (topic.config.read_queue_nums, topic.config.write_queue_nums, topic.config.perm) == (3, 3, 6)
    assert bench.broker.publication.due
    peer.ask(SEND, send_ext("Wide", d="400"), b"x")
    wide = bench.broker.state.topics.get("Wide")
    assert wide is not None
    assert wide.write_queue_nums == 8


def test_a_producer_in_unit_mode_creates_topics_of_units(bench: Bench, peer: Peer) -> None:
    bench.broker.state.subscriptions.put(SubscriptionGroupConfig(group_name="CG"))
    for name, flag in (("Unit", 1), ("%RETRY%CG", 2)):
        assert peer.ask(SEND, send_ext(name, k="true"), b"x").code == 0
        topic = bench.broker.state.topics.get(name)
        assert topic is not None
        assert topic.config.topic_sys_flag == flag


def test_auto_creation_follows_its_switch_both_ways(peer: Peer) -> None:
    peer.ask(RequestCode.UPDATE_BROKER_CONFIG, None, b"autoCreateTopicEnable=false\n")
    assert peer.ask(SEND, send_ext("A1"), b"x").code == ResponseCode.TOPIC_NOT_EXIST
    peer.ask(RequestCode.UPDATE_BROKER_CONFIG, None, b"autoCreateTopicEnable=true\n")
    assert peer.ask(SEND, send_ext("A1"), b"x").code == 0


def test_a_topic_needs_a_template_with_the_inherit_bit(peer: Peer) -> None:
    assert peer.ask(SEND, send_ext("B1", c="SELF_TEST_TOPIC"), b"x").code == ResponseCode.TOPIC_NOT_EXIST
    assert peer.ask(SEND, send_ext("B1", c="C"), b"x").code == 0  # the cluster's topic is one


@pytest.mark.parametrize(
    ("ext", "body", "code", "words"),
    [
        ({"b": "bad topic!"}, b"x", 29, "illegal characters"),
        ({"b": ""}, b"x", 29, "blank"),
        ({"b": "x" * 128}, b"x", 29, "longer than topic max length"),
        ({"b": "SELF_TEST_TOPIC"}, b"x", 16, "forbidden"),
        ({"b": "SCHEDULE_TOPIC_XXXX"}, b"x", 16, "forbidden"),
        ({"b": "Nope", "c": "none"}, b"x", 17, "not exist"),
        ({"e": "99"}, b"x", 29, "queueId[99] is illegal, TopicConfig [topicName=T"),
        ({}, b"", 1, "no body"),
        ({}, b"x" * (4 << 20) + b"x", 13, "exceeds the limit"),
        ({"i": "a\x01" + "x" * 33_000 + "\x02"}, b"x", 13, "exceeds the limit"),
        ({"i": "a\x01" + "x" * 100_000 + "\x02"}, b"x", 13, "exceeds the limit"),
        ({"f": "4"}, b"x", 13, "the property TRAN_MSG does not"),
        ({"f": "128"}, b"x", 13, "only the broker sets"),
        ({"b": "%RETRY%G", "m": "true"}, b"x", 13, "batch"),
    ],
)
def test_refusals(bench: Bench, peer: Peer, ext: dict[str, str], body: bytes, code: int, words: str) -> None:
    peer.ask(SEND, send_ext(), b"x")
    before = bench.store.log.position
    answer = peer.ask(SEND, {**send_ext(), **ext}, body)
    assert answer.code == code
    assert words in (answer.remark or "")
    assert answer.ext == TRACE
    assert bench.store.log.position == before


def test_a_retry_topic_needs_its_group(tmp_path: Path) -> None:
    bench = Bench(tmp_path, auto_create_subscription_group=False)
    peer = bench.peer()
    assert peer.ask(SEND, send_ext("%RETRY%G"), b"x").code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, b'{"groupName":"G"}')
    assert peer.ask(SEND, send_ext("%RETRY%G"), b"x").code == 0


@pytest.mark.parametrize(
    ("ext", "words"),
    [(None, "mandatory field"), ({"a": "PG"}, "mandatory field"), ({**send_ext(), "e": "x1"}, "'e'")],
)
def test_a_malformed_header_is_an_error_with_a_name(
    bench: Bench, ext: dict[str, str] | None, words: str
) -> None:
    answer = bench.peer().ask(SEND, ext, b"x")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert words in (answer.remark or "")


def test_a_negative_queue_id_lets_the_broker_choose(peer: Peer) -> None:
    queues = {peer.ask(SEND, send_ext(queue_id=-1), b"x").ext["queueId"] for _ in range(50)}
    assert queues == {"0", "1", "2", "3"}


def test_oneway_is_stored_and_not_answered(bench: Bench, peer: Peer) -> None:
    peer.give(SEND, send_ext(), b"x", oneway=True)
    peer.give(SEND, send_ext(queue_id=99), b"x", oneway=True)
    bench.broker.turn()
    assert peer.heard() == []
    assert len(stored(bench)) == 1
    assert len(bench.broker.acks) == 0


def test_an_order_topic_needs_a_writable_broker(tmp_path: Path) -> None:
    bench = Bench(tmp_path, broker_permission=4)
    bench.broker.state.topics.put(TopicConfig(topic_name="O", order=True))
    peer = bench.peer()
    assert peer.ask(SEND, send_ext("O"), b"x").code == ResponseCode.NO_PERMISSION
    assert peer.ask(SEND, send_ext("P"), b"x").code == 0  # only the route hides other topics


def test_service_may_start_later(tmp_path: Path) -> None:
    bench = Bench(tmp_path, start_accept_send_request_time_stamp=1_700_000_000_500)
    peer = bench.peer()
    assert peer.ask(SEND, send_ext(), b"x").code == ResponseCode.SYSTEM_ERROR
    bench.clock.advance(500)
    assert peer.ask(SEND, send_ext(), b"x").code == 0


# --- batches ---


def batch(*bodies: bytes) -> bytes:
    return encode_batch([Message.of("T", body, tags=f"t{number}") for number, body in enumerate(bodies)])


def test_a_batch_is_recognised_by_its_flag(bench: Bench) -> None:
    answer = bench.peer().ask(
        RequestCode.SEND_BATCH_MESSAGE,
        send_ext(m="true", properties="UNIQ_KEY\x01B\x02"),
        batch(b"a", b"b", b"c"),
    )
    assert answer.code == 0
    ids = answer.ext["msgId"].split(",")
    assert len(ids) == 3
    assert answer.ext["queueOffset"] == "0"
    assert answer.ext["transactionId"] == "B"
    messages = stored(bench)
    assert [m.body for m in messages] == [b"a", b"b", b"c"]
    assert [m.offset_message_id for m in messages] == ids
    assert [m.tags for m in messages] == ["t0", "t1", "t2"]
    assert ["UNIQ_KEY" in m.properties for m in messages] == [False] * 3  # it would hide one of their own
    assert bench.store.reads.get("T", 0, 0, 9, 1 << 20, frozenset({java_hash("t1")})).count == 1


@pytest.mark.parametrize(
    ("properties", "unique_id"),
    [
        ("", None),
        ("UNIQ_KEY\x01\x02", None),
        ("WAIT\x01true\x02UNIQ_KEY\x01B", "B"),
        ("UNIQ_KEY\x01A\x02CLUSTER\x01x\x02UNIQ_KEY\x01B\x02", "B"),
        ("no property\x02UNIQ_KEY\x01B\x02", "B"),
    ],
)
def test_a_batch_is_answered_with_the_id_it_has(bench: Bench, properties: str, unique_id: str | None) -> None:
    answer = bench.peer().ask(SEND, send_ext(m="true", properties=properties), batch(b"a", b"b"))
    assert answer.code == 0
    assert answer.ext.get("transactionId") == unique_id


def test_every_member_of_a_large_batch_gets_its_id(bench: Bench) -> None:
    bodies = [b"row %d" % number for number in range(300)]
    answer = bench.peer().ask(RequestCode.SEND_BATCH_MESSAGE, send_ext(m="true"), batch(*bodies))
    assert (answer.code, answer.ext["queueOffset"]) == (0, "0")
    assert [message.body for message in stored(bench)] == bodies
    assert [message.offset_message_id for message in stored(bench)] == answer.ext["msgId"].split(",")
    assert bench.store.reads.get("T", 0, 0, 9, 1 << 20, frozenset({java_hash("t123")})).count == 1


def test_no_member_of_a_large_batch_is_half_a_transaction(bench: Bench) -> None:
    messages = [Message.of("T", b"row") for _ in range(200)]
    messages[150] = Message.of("T", b"row", properties={"TRAN_MSG": "true"})
    answer = bench.peer().ask(SEND, send_ext(m="true"), encode_batch(messages))
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert stored(bench) == []


def test_code_320_without_the_flag_is_one_message(bench: Bench) -> None:
    body = batch(b"a", b"b")
    bench.peer().ask(RequestCode.SEND_BATCH_MESSAGE, send_ext(), body)
    assert [m.body for m in stored(bench)] == [body]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", 1),
        (b"\x00\x00", 13),
        (batch(b"ok")[:-1], 13),
        (batch(b"x" * (4 << 20) + b"x"), 1),
        (batch(b"x" * (2 << 20), b"x" * (2 << 20)), 1),
    ],
)
def test_a_bad_batch_stores_nothing(bench: Bench, body: bytes, code: int) -> None:
    answer = bench.peer().ask(SEND, send_ext(m="true"), body)
    assert answer.code == code
    assert stored(bench) == []


@pytest.mark.parametrize(
    "delay", [{"DELAY": "1"}, {"TIMER_DELIVER_MS": "1700000060000"}, {"TIMER_DELAY_SEC": "9"}]
)
def test_the_delay_of_a_member_is_kept_and_not_heeded(bench: Bench, delay: dict[str, str]) -> None:
    body = encode_batch([Message.of("T", b"a"), Message.of("T", b"b", properties=delay)])
    assert bench.peer().ask(SEND, send_ext(m="true"), body).code == ResponseCode.SUCCESS
    _, second = stored(bench)
    assert delay.items() <= second.properties.items()


@pytest.mark.parametrize("delay", ["DELAY\x011\x02", "TIMER_DELIVER_MS\x011700000060000\x02"])
def test_a_batch_that_is_delayed_as_a_whole_is_refused(bench: Bench, delay: str) -> None:
    body = encode_batch([Message.of("T", b"a")])
    assert (
        bench.peer().ask(SEND, send_ext(properties=delay, m="true"), body).code
        == ResponseCode.MESSAGE_ILLEGAL
    )
    assert stored(bench) == []


@pytest.mark.parametrize("m", ["true", "false"])
def test_a_sender_does_not_say_how_long_the_hosts_are(bench: Bench, m: str) -> None:
    """Bits 0x10 and 0x20 without the longer hosts would make a record that nobody can read."""
    body = batch(b"a") if m == "true" else b"a"
    answer = bench.peer().ask(SEND, send_ext(f="48", m=m), body)
    assert answer.code == 0
    (message,) = stored(bench)
    assert (message.body, message.sys_flag, message.born_host.split(":")[0]) == (b"a", 0, "127.0.0.1")


def test_that_a_message_is_committed_is_for_the_broker_to_say(bench: Bench) -> None:
    answers = [bench.peer().ask(SEND, send_ext(f=str(flag)), b"a").code for flag in (0x8, 0x4, 0xC)]
    assert answers == [0, ResponseCode.MESSAGE_ILLEGAL, ResponseCode.MESSAGE_ILLEGAL]
    assert [m.sys_flag for m in stored(bench)] == [0]


# --- answers and the disk ---


def test_sync_flush_answers_after_the_sync(sync_bench: Bench) -> None:
    bench, peer = sync_bench, sync_bench.peer()
    first = peer.give(SEND, send_ext(), b"a")
    bench.broker.turn()
    assert peer.heard() == []
    job = bench.store.pipeline.begin_flush()
    assert job is not None
    second = peer.give(SEND, send_ext(), b"b")  # while the sync runs: the next group
    bench.broker.turn()
    job.run()
    bench.broker.progress(bench.store.pipeline.end_flush(job))
    assert [answer.opaque for answer in peer.heard()] == [first]
    bench.flush()
    assert [answer.opaque for answer in peer.heard()] == [second]
    assert len(bench.broker.acks) == 0


def test_a_failed_sync_acknowledges_nothing_ever_again(tmp_path: Path) -> None:
    bench = Bench(tmp_path, sync=True)
    peer = bench.peer()
    peer.give(SEND, send_ext(properties="UNIQ_KEY\x01U\x02"), b"a")
    bench.broker.turn()
    job = bench.store.pipeline.begin_flush()
    assert job is not None
    job.error = OSError(5, "Input/output error")
    bench.broker.progress(bench.store.pipeline.end_flush(job))
    (answer,) = peer.heard()
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "Input/output error" in (answer.remark or "")
    assert answer.ext["transactionId"] == "U"
    again = peer.ask(SEND, send_ext(), b"b")
    assert again.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert peer.pull().code == ResponseCode.PULL_NOT_FOUND  # reads go on, and show nothing unsynced


def test_a_slow_sync_is_answered_flush_disk_timeout(sync_bench: Bench) -> None:
    bench, peer = sync_bench, sync_bench.peer()
    peer.give(SEND, send_ext(properties="UNIQ_KEY\x01U1\x02"), b"a")
    bench.broker.turn()
    bench.clock.advance(3_000)
    late = peer.give(SEND, send_ext(), b"b")
    bench.broker.turn()
    bench.broker.tick()
    assert peer.heard() == []
    bench.later(2_000)
    (answer,) = peer.heard()
    assert answer.code == ResponseCode.FLUSH_DISK_TIMEOUT
    assert {"msgId", "queueId", "queueOffset"} <= answer.ext.keys()  # a Java client insists on them
    bench.flush()
    assert [(a.opaque, a.code) for a in peer.heard()] == [(late, 0)]


def test_waiting_sends_are_bounded(tmp_path: Path) -> None:
    bench = Bench(tmp_path, sync=True, send_thread_pool_queue_capacity=3)
    peer = bench.peer()
    for _ in range(5):
        peer.give(SEND, send_ext(), b"x")
    bench.broker.turn()
    assert [a.code for a in peer.heard()] == [ResponseCode.SYSTEM_BUSY] * 2
    bench.flush()
    assert [a.code for a in peer.heard()] == [0] * 3


def test_a_lost_connection_loses_only_its_answer(sync_bench: Bench) -> None:
    bench, peer = sync_bench, sync_bench.peer()
    peer.give(SEND, send_ext(), b"x")
    bench.broker.turn()
    peer.disconnect()
    bench.flush()
    assert peer.session.out == []
    assert len(stored(bench)) == 1


def test_the_first_send_to_a_topic_is_answered_when_a_name_server_knows_it(tmp_path: Path) -> None:
    bench = Bench(tmp_path, namesrv_addr="127.0.0.1:9876")
    bench.broker.publication.accepted(last_registration(bench.broker))
    first, second = bench.peer(), bench.peer()
    first.give(SEND, send_ext("New"), b"1")
    second.give(SEND, send_ext("BenchmarkTest"), b"2")
    bench.broker.turn()
    assert first.heard() == []
    assert [answer.code for answer in second.heard()] == [0]
    bench.broker.publication.accepted(last_registration(bench.broker))
    (answer,) = first.heard()
    assert (answer.code, answer.ext["queueOffset"]) == (0, "0")
    assert first.ask(SEND, send_ext("New"), b"3").ext["queueOffset"] == "1"
    # A name server that is down delays it, no more.
    first.give(SEND, send_ext("Newer"), b"4")
    bench.broker.turn()
    assert first.heard() == []
    bench.later(2_000)
    assert [answer.code for answer in first.heard()] == [0]


def test_what_is_refused_for_its_body_creates_no_topic(bench: Bench) -> None:
    answer = bench.peer().ask(SEND, send_ext("Fresh"))
    assert (answer.code, "no body" in (answer.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)
    assert "Fresh" not in bench.broker.state.topics


@pytest.mark.parametrize("more", ["", "WAIT\x01true\x02DELAY\x010\x02"])
def test_an_empty_property_does_not_hide_the_one_before_it(bench: Bench, peer: Peer, more: str) -> None:
    """MessageDecoder drops items without a value."""
    text = f"UNIQ_KEY\x01U1\x02TAGS\x01red\x02{more}UNIQ_KEY\x01\x02TAGS\x01\x02TAGS\x01\x02"
    answer = peer.ask(SEND, send_ext(properties=text), b"a")
    assert (answer.code, answer.ext["transactionId"]) == (0, "U1")
    (message,) = bench.records("T")
    assert (message.properties["UNIQ_KEY"], message.properties["TAGS"]) == ("U1", "red")
    assert peer.pull(subscription="red").code == 0
    assert peer.pull(subscription="blue").code != 0
    bench.crash()  # queues are made from what is stored
    (bench.directory / "consumequeue" / "T" / "0" / f"{0:020d}").unlink()
    bench.crash()
    assert bench.peer().pull(subscription="red").code == 0


def test_empty_properties_alone_are_none(bench: Bench) -> None:
    answer = bench.peer().ask(SEND, send_ext(properties="UNIQ_KEY\x01\x02TAGS\x01\x02"), b"a")
    assert len(answer.ext["transactionId"]) == 32
    (message,) = bench.records("T")
    assert message.properties["UNIQ_KEY"] == answer.ext["transactionId"]
    assert "TAGS" not in message.properties
