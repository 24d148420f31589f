"""Topics whose queues are not ordinary: BatchCQ (``queue.type``) and light message queues (LMQ)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mqspark.message import Message, MessageExt
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.record.batchitems import encode_batch
from mqspark.record.record import decode_record, decode_records
from tests.support.remoting import topic_fields
from tests.unit.broker_kit import PULL, SEND, Bench, Peer, pull_ext, send_ext

LMQ = {"enable_lmq": True, "enable_multi_dispatch": True}


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path, store_settings=LMQ)


def batch_topic(peer: Peer, name: str = "B") -> None:
    ext = topic_fields(name, attributes="+queue.type=BatchCQ,+message.type=NORMAL")
    assert peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, ext).code == 0
    changed = {**ext, "attributes": "+queue.type=SimpleCQ"}
    assert peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, changed).code == ResponseCode.SYSTEM_ERROR


def test_a_batch_of_a_batch_topic_stays_one_record(bench: Bench, peer: Peer) -> None:
    batch_topic(peer)
    ends = {"topic": "B", "queueId": "0"}
    assert peer.ask(RequestCode.GET_MIN_OFFSET, ends).ext["offset"] == "-1"
    assert peer.ask(RequestCode.GET_MAX_OFFSET, ends).ext["offset"] == "0"
    body = encode_batch([Message(topic="B", body=b"%d" % number) for number in range(3)])
    answer = peer.ask(SEND, send_ext("B", properties="UNIQ_KEY\x01U1\x02", m="true"), body)
    assert (answer.code, answer.ext["queueOffset"], answer.ext["batchUniqId"]) == (0, "0", "U1")
    assert peer.ask(SEND, send_ext("B", m="true"), body).ext["queueOffset"] == "3"
    assert peer.ask(SEND, send_ext("B"), b"single").ext["queueOffset"] == "6"
    first, _, single = stored_records(bench)
    assert first.properties["INNER_NUM"] == "3"
    assert first.properties["INNER_BASE"] == "0"
    assert first.sys_flag & 0xC0 == 0xC0
    assert (single.queue_offset, single.sys_flag & 0xC0, single.body) == (6, 0, b"single")

    bench.reopen()
    peer = bench.peer()
    answer = peer.pull("B", offset=0)
    messages = decode_records(answer.body)
    assert [message.queue_offset for message in messages] == list(range(7))
    assert [message.body for message in messages] == [b"0", b"1", b"2"] * 2 + [b"single"]
    assert (answer.ext["nextBeginOffset"], answer.ext["maxOffset"]) == ("7", "7")
    assert peer.ask(RequestCode.GET_MIN_OFFSET, ends).ext["offset"] == "0"
    assert peer.ask(RequestCode.GET_MAX_OFFSET, ends).ext["offset"] == "7"


def stored_records(bench: Bench) -> list[MessageExt]:
    """The records of queue 0 of topic B, batches as one."""
    records: list[MessageExt] = []
    offset = 0
    while (found := bench.store.reads.get("B", 0, offset, 1, 1)).count:
        records.append(decode_record(b"".join(found.buffers)))
        offset = found.next_offset
    return records


def test_producers_may_not_say_inner_batch(bench: Bench) -> None:
    assert bench.peer().ask(SEND, send_ext("T", f=str(0x80)), b"x").code == ResponseCode.MESSAGE_ILLEGAL


def test_a_message_enters_the_light_queues_it_names(bench: Bench, peer: Peer) -> None:
    names = "INNER_MULTI_DISPATCH\x01%LMQ%a,%LMQ%b\x02"
    for number in range(3):
        assert peer.ask(SEND, send_ext(properties=names), b"both %d" % number).code == 0
    assert peer.ask(SEND, send_ext(properties="INNER_MULTI_DISPATCH\x01%LMQ%b\x02"), b"b only").code == 0
    assert peer.ask(SEND, send_ext(properties=""), b"none").code == 0
    for _ in range(2):
        assert len(bench.records("T")) == 5
        assert [message.body for message in bench.records("%LMQ%a")] == [b"both %d" % n for n in range(3)]
        records = bench.records("%LMQ%b")
        assert [message.properties["INNER_MULTI_QUEUE_OFFSET"] for message in records] == [
            "0,0",
            "1,1",
            "2,2",
            "3",
        ]
        answer = peer.pull("%LMQ%b", offset=2)
        assert [message.body for message in decode_records(answer.body)] == [b"both 2", b"b only"]
        assert answer.ext["nextBeginOffset"] == "4"
        bench.crash()
        peer = bench.peer()
    peer.ask(RequestCode.CLEAN_UNUSED_TOPIC)
    assert bench.store.offsets.max_offset("%LMQ%b", 0) == 4
    refused = peer.ask(SEND, send_ext(properties="INNER_MULTI_DISPATCH\x01plain\x02"), b"x")
    assert refused.code == ResponseCode.MESSAGE_ILLEGAL
    assert "plain" in (refused.remark or "")


def test_a_parked_pull_of_a_light_queue_is_woken(bench: Bench) -> None:
    consumer, producer = bench.peer(), bench.peer()
    consumer.give_pull("%LMQ%a", offset=0, sysFlag="6", suspendTimeoutMillis="30000")
    bench.broker.turn()
    assert consumer.heard() == []
    producer.ask(SEND, send_ext(properties="INNER_MULTI_DISPATCH\x01%LMQ%a\x02"), b"x")
    (answer,) = consumer.heard()
    assert [message.body for message in decode_records(answer.body)] == [b"x"]


def test_light_offsets_have_their_own_file(bench: Bench) -> None:
    bench.broker.state.offsets.commit("%LMQ%g", "%LMQ%a", 0, 7)
    bench.broker.state.offsets.commit("g", "T", 1, 5)
    bench.reopen()
    saved = json.loads(
        (bench.directory / "config/lmqConsumerOffset.json").read_text().replace("{1:", '{"1":')
    )
    assert saved["lmqOffsetTable"] == {"%LMQ%a@%LMQ%g": 7}
    assert bench.broker.state.offsets.query("%LMQ%g", "%LMQ%a", 0) == 7
    assert bench.broker.state.offsets.query("g", "T", 1) == 5


def test_groups_of_light_queues_need_not_be_made_and_are_not_kept(peer: Peer) -> None:
    assert peer.ask(SEND, send_ext(properties="INNER_MULTI_DISPATCH\x01%LMQ%a\x02"), b"x").code == 0
    place = {"consumerGroup": "%LMQ%g", "topic": "%LMQ%a", "queueId": "0"}
    assert peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, {**place, "commitOffset": "1"}).code == 0
    assert peer.ask(RequestCode.QUERY_CONSUMER_OFFSET, place).ext["offset"] == "1"
    pull = pull_ext("%LMQ%a", offset=0, consumerGroup="%LMQ%g")
    assert [message.body for message in decode_records(peer.ask(PULL, pull).body)] == [b"x"]
    groups = peer.ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG).body
    assert b"CID_RMQ_SYS_TRANS" in groups
    assert b"%LMQ%" not in groups
    answer = peer.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "%LMQ%g"})
    assert json.loads(answer.body)["groupName"] == "%LMQ%g"


def test_without_the_settings_a_group_of_light_queues_has_to_be_made(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    place = {"consumerGroup": "%LMQ%g", "topic": "T", "queueId": "0", "commitOffset": "1"}
    answer = bench.peer().ask(RequestCode.UPDATE_CONSUMER_OFFSET, place)
    assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


def test_without_the_settings_a_light_queue_is_an_unknown_topic(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    peer = bench.peer()
    assert peer.ask(SEND, send_ext(properties="INNER_MULTI_DISPATCH\x01%LMQ%a\x02"), b"x").code == 0
    assert peer.pull("%LMQ%a", offset=0).code == ResponseCode.TOPIC_NOT_EXIST


@pytest.fixture(params=[True, False], ids=["with multi-dispatch", "without"])
def light(request: pytest.FixtureRequest, tmp_path: Path) -> Bench:
    """A broker of light queues; whether it dispatches to more than one makes no difference to those it is sent."""
    bench = Bench(tmp_path, store_settings={"enable_lmq": True, "enable_multi_dispatch": request.param})
    return bench


def test_a_light_queue_is_a_topic_of_one_queue_by_its_name(light: Bench) -> None:
    peer = light.peer()
    name = "%LMQ%a"
    empty = peer.pull(name, offset=0)
    assert (empty.code, empty.ext["nextBeginOffset"]) == (ResponseCode.PULL_NOT_FOUND, "0")
    assert peer.pull(name, 1, offset=0).code == ResponseCode.INVALID_PARAMETER
    assert peer.ask(SEND, send_ext(name, 0), b"x").code == 0
    refused = peer.ask(SEND, send_ext(name, 1), b"y")
    assert refused.code == ResponseCode.INVALID_PARAMETER
    assert "readQueueNums=1" in (refused.remark or "")
    assert [message.body for message in light.records(name)] == [b"x"]
    config = json.loads(peer.ask(RequestCode.GET_TOPIC_CONFIG, {"topic": name}).body)
    assert (config["readQueueNums"], config["writeQueueNums"], config["perm"]) == (1, 1, 6)
    assert b'"maxOffset":1' in peer.ask(RequestCode.GET_TOPIC_STATS_INFO, {"topic": name}).body


def test_light_queues_are_not_in_the_table_of_topics(light: Bench) -> None:
    peer = light.peer()
    before = peer.ask(RequestCode.GET_ALL_TOPIC_CONFIG).body
    assert peer.ask(SEND, send_ext("%LMQ%a", 0), b"x").code == 0
    assert peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields("%LMQ%b", 3)).code == 0
    after = peer.ask(RequestCode.GET_ALL_TOPIC_CONFIG).body
    assert after == before
    config = json.loads(peer.ask(RequestCode.GET_TOPIC_CONFIG, {"topic": "%LMQ%b"}).body)
    assert config["readQueueNums"] == 1


def test_a_group_of_light_queues_has_one_offset_a_topic(light: Bench) -> None:
    peer = light.peer()
    assert peer.ask(SEND, send_ext("T", 1), b"x").code == 0
    place = {"consumerGroup": "%LMQ%g", "topic": "T"}
    commit = {**place, "queueId": "1", "commitOffset": "5"}
    assert peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, commit).code == 0
    light.reopen()
    peer = light.peer()
    for queue_id in "01":
        answer = peer.ask(RequestCode.QUERY_CONSUMER_OFFSET, {**place, "queueId": queue_id})
        assert (answer.code, answer.ext["offset"]) == (0, "5")
