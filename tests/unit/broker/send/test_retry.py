"""What consumers send back: retries, their delay, dead letters."""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path
from typing import Any

import pytest

from mqspark.message import MessageExt, encode_host
from mqspark.protocol.bodies.body import encode_body
from mqspark.protocol.bodies.topic_bodies import SubscriptionGroupConfig
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command
from mqspark.record.record import decode_record
from tests.support.remoting import topic_fields
from tests.support.store_tools import put
from tests.unit.broker_kit import SEND, Bench, Peer, send_ext

SCHEDULE = "SCHEDULE_TOPIC_XXXX"
STORE = Path(__file__).parents[3] / "golden" / "store"
TO_DLQ = -1


def stored(bench: Bench, properties: str = "TAGS\x01a\x02KEYS\x01k\x02", queue_id: int = 1) -> MessageExt:
    """A message in T, as its consumer has it."""
    ext = send_ext("T", queue_id, properties, f="1", h="4")
    assert bench.peer().ask(SEND, ext, zlib.compress(b"zipped")).code == 0
    return bench.records("T", queue_id)[-1]


def give_back(
    peer: Peer, message: MessageExt, level: int = 0, limit: int | None = 16, *, group: str = "CG", **more: Any
) -> Command:
    ext = {
        "group": group,
        "offset": str(message.physical_offset),
        "delayLevel": str(level),
        "originMsgId": message.message_id,
        "originTopic": message.topic,
        "unitMode": "false",
    }
    if limit is not None:
        ext["maxReconsumeTimes"] = str(limit)
    return peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, {**ext, **more.pop("ext", {})}, **more)


def configure(peer: Peer, **settings: Any) -> None:
    config = SubscriptionGroupConfig(group_name="CG", **settings)
    assert peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, encode_body(config)).code == 0


def test_the_first_retry_waits_level_three(bench: Bench, peer: Peer) -> None:
    message = stored(bench)
    answer = give_back(peer, message)
    assert (answer.code, answer.remark, answer.ext) == (0, None, {})
    (waiting,) = bench.records(SCHEDULE, 2)
    assert waiting.properties == message.properties | {
        "DELAY": "3",
        "RETRY_TOPIC": "T",
        "REAL_TOPIC": "%RETRY%CG",
        "REAL_QID": "0",
        "WAIT": "false",
        "ORIGIN_MESSAGE_ID": message.offset_message_id,
    }
    bench.run_for(9_999)
    assert bench.records("%RETRY%CG") == []
    bench.run_for(1)
    (again,) = bench.records("%RETRY%CG")
    assert again.properties == waiting.properties
    assert again.reconsume_times == 1
    for name in ("body", "flag", "sys_flag", "born_timestamp_ms", "born_host"):
        assert getattr(again, name) == getattr(message, name), name


def test_a_value_with_the_mark_of_values_is_retried_and_ends_as_a_dead_letter(bench: Bench) -> None:
    peer = bench.peer()
    message = stored(bench, "odd\x01a\x01b\x02")
    assert give_back(peer, message).code == 0
    bench.run_for(10_000)
    (again,) = bench.records("%RETRY%CG")
    assert again.properties["odd"] == message.properties["odd"] == "a\x01b"
    assert give_back(peer, again, TO_DLQ).code == 0
    assert bench.records("%DLQ%CG")[0].properties["odd"] == "a\x01b"
    ext = send_ext("%RETRY%CG", properties="odd\x01a\x01b\x02DELAY\x011\x02", j="1")
    assert peer.ask(SEND, ext, b"as a message of its own").code == 0


def test_every_attempt_waits_longer_until_the_last_becomes_a_dead_letter(bench: Bench, peer: Peer) -> None:
    first = message = stored(bench)
    for times in range(1, 5):
        assert give_back(peer, message, limit=4).code == 0
        assert len(bench.records(SCHEDULE, 1 + times)) == 1  # levels 3, 4, 5, 6
        bench.run_for(120_000, 200)
        message = bench.records("%RETRY%CG")[-1]
        assert message.reconsume_times == times
        assert message.properties["RETRY_TOPIC"] == "T"
        assert message.properties["ORIGIN_MESSAGE_ID"] == first.offset_message_id
    assert give_back(peer, message, limit=4).code == 0
    (dead,) = bench.records("%DLQ%CG")
    assert dead.reconsume_times == 5
    assert dead.properties == message.properties | {"DELAY": "0"}
    topic = bench.broker.state.topics.get("%DLQ%CG")
    assert topic is not None
    assert (topic.write_queue_nums, topic.read_queue_nums, topic.config.perm) == (1, 1, 6)


def test_a_count_that_is_full_stays_full(bench: Bench) -> None:
    most = 2**31 - 1
    assert bench.peer().ask(SEND, send_ext(j=str(most)), b"x").code == 0
    answer = give_back(bench.peer(), bench.records("T")[-1])
    assert (answer.code, answer.remark) == (0, None)
    (dead,) = bench.records("%DLQ%CG")
    assert dead.reconsume_times == most


def test_a_consumer_may_name_the_level_or_give_up_at_once(bench: Bench, peer: Peer) -> None:
    message = stored(bench)
    give_back(peer, message, 7)
    assert len(bench.records(SCHEDULE, 6)) == 1
    give_back(peer, message, TO_DLQ)
    assert [record.body for record in bench.records("%DLQ%CG")] == [b"zipped"]
    assert bench.broker.state.stats.dead == {("T", "CG"): 1}


def test_the_groups_limit_counts_where_the_consumer_has_none(bench: Bench, peer: Peer) -> None:
    configure(peer, retry_max_times=0)
    message = stored(bench)
    give_back(peer, message, limit=None)
    assert len(bench.records("%DLQ%CG")) == 1
    give_back(peer, message, limit=1)
    assert len(bench.records("%DLQ%CG")) == 1
    # So old that it says something else there.
    give_back(peer, message, limit=1, version=120)
    assert len(bench.records("%DLQ%CG")) == 2


def test_retries_spread_over_the_groups_queues(bench: Bench, peer: Peer) -> None:
    configure(peer, retry_queue_nums=4)
    message = stored(bench)
    for _ in range(40):
        give_back(peer, message, 1)
    bench.run_for(1_100)
    assert all(bench.records("%RETRY%CG", queue_id) for queue_id in range(4))


def test_no_retry_goes_to_a_queue_that_its_topic_does_not_have(bench: Bench, peer: Peer) -> None:
    message = stored(bench)
    give_back(peer, message, 1)
    configure(peer, retry_queue_nums=4)
    for _ in range(40):
        give_back(peer, message, 1)
    bench.run_for(1_100)
    assert len(bench.records("%RETRY%CG")) == 41


def test_a_group_without_retry_queues_keeps_nothing(bench: Bench, peer: Peer) -> None:
    configure(peer, retry_queue_nums=0)
    message = stored(bench)
    before = bench.store.log.position
    assert give_back(peer, message).code == 0
    assert bench.store.log.position == before
    assert "%RETRY%CG" not in bench.broker.state.topics


def test_unit_mode_marks_the_retry_topic(bench: Bench) -> None:
    give_back(bench.peer(), stored(bench), ext={"unitMode": "true"})
    topic = bench.broker.state.topics.get("%RETRY%CG")
    assert topic is not None
    assert topic.sys_flag == 2


def test_what_is_refused(tmp_path: Path) -> None:
    bench = Bench(tmp_path, auto_create_subscription_group=False)
    peer = bench.peer()
    message = stored(bench)
    assert give_back(peer, message).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    configure(peer)
    for offset in (-1, message.physical_offset + 1, 1 << 60):
        answer = give_back(peer, message, ext={"offset": str(offset)})
        assert (answer.code, answer.remark) == (1, f"look message by offset failed, {offset}")
    peer.ask(RequestCode.UPDATE_BROKER_CONFIG, None, b"brokerPermission=4\n")
    assert give_back(peer, message).code == ResponseCode.NO_PERMISSION
    peer.ask(RequestCode.UPDATE_BROKER_CONFIG, None, b"brokerPermission=6\n")
    peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields("%RETRY%CG", perm="4"))
    answer = give_back(peer, message)
    assert answer.code == ResponseCode.NO_PERMISSION
    assert answer.remark == "the topic[%RETRY%CG] sending message is forbidden"
    assert give_back(peer, message, ext={"delayLevel": "x"}).code == ResponseCode.SYSTEM_ERROR


def test_the_answer_waits_for_the_disk(tmp_path: Path) -> None:
    bench = Bench(tmp_path, sync=True)
    message = stored(bench)
    peer = bench.peer()
    ext = {"group": "CG", "offset": str(message.physical_offset), "delayLevel": "0"}
    peer.give(RequestCode.CONSUMER_SEND_MSG_BACK, ext)
    bench.broker.turn()
    assert peer.heard() == []
    bench.flush()
    assert [answer.code for answer in peer.heard()] == [0]


@pytest.mark.parametrize("why", ["FLUSH_DISK_TIMEOUT", "SERVICE_NOT_AVAILABLE"])
def test_a_disk_that_fails_afterwards_is_a_system_error(tmp_path: Path, why: str) -> None:
    """Producers learn which by the code, consumers by the remark."""
    bench = Bench(tmp_path, sync=True)
    message = stored(bench)
    peer = bench.peer()
    peer.give(
        RequestCode.CONSUMER_SEND_MSG_BACK,
        {"group": "CG", "offset": str(message.physical_offset), "delayLevel": "0"},
    )
    bench.broker.turn()
    if why == "FLUSH_DISK_TIMEOUT":
        bench.later(bench.config.sync_flush_timeout)
    else:
        bench.broker.acks.fail("the store failed: EIO")
    (answer,) = peer.heard()
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert (answer.remark or "").startswith(f"{why}: the ")


def test_a_store_that_takes_nothing_says_so(bench: Bench) -> None:
    message = stored(bench)
    bench.store.condition.distrust(bench.store.paths.lock, OSError("broken"))
    bench.store.pipeline.commit()
    answer = give_back(bench.peer(), message)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert (answer.remark or "").startswith("SERVICE_NOT_AVAILABLE")
    bench.store.abandon()


def test_a_message_with_ipv6_hosts_comes_back_whole(bench: Bench, peer: Peer) -> None:
    put(
        bench.store,
        "T",
        0,
        b"six",
        b"TAGS\x01a\x02",
        born_timestamp_ms=7,
        born_host=encode_host("::1", 9),
        sys_flag=1,
    )
    bench.broker.turn()
    (message,) = (record for record in bench.store.reads.get("T", 0, 0, 1, 1000).buffers)
    offset = int.from_bytes(message[28:36], "big")
    ext = {"group": "CG", "offset": str(offset), "delayLevel": "-1"}
    assert peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, ext).code == 0
    result = bench.store.reads.get("%DLQ%CG", 0, 0, 1, 1000)
    assert result.count == 1
    dead = decode_record(result.buffers[0], decompress=False)
    assert (dead.born_host, dead.sys_flag, dead.body) == ("[::1]:9", 0x11, b"six")


# --- what a client sends to a retry topic itself ---


def test_a_client_may_send_a_retry_itself(bench: Bench, peer: Peer) -> None:
    properties = "RETRY_TOPIC\x01T\x02RECONSUME_TIME\x011\x02MAX_RECONSUME_TIMES\x0116\x02DELAY\x014\x02"
    assert peer.ask(SEND, send_ext("%RETRY%CG", 0, properties, j="1", l="16"), b"x").code == 0
    bench.run_for(30_000, 200)
    (record,) = bench.records("%RETRY%CG")
    assert record.reconsume_times == 1


@pytest.mark.parametrize(
    ("ext", "dead"),
    [
        ({"j": "16"}, False),
        ({"j": "17"}, True),
        ({"j": "2", "l": "2"}, False),
        ({"j": "3", "l": "2"}, True),
        ({"j": "17", "l": "20"}, False),
    ],
)
def test_a_retry_over_the_limit_is_a_dead_letter(bench: Bench, ext: dict[str, str], dead: bool) -> None:
    peer = bench.peer()
    answer = peer.ask(SEND, send_ext("%RETRY%CG", 0, "DELAY\x012\x02", **ext), b"x")
    assert (answer.code, answer.ext["queueId"]) == (0, "0")
    if dead:
        (record,) = bench.records("%DLQ%CG")
        assert record.properties["DELAY"] == "-1"
        assert "REAL_TOPIC" not in record.properties
        assert bench.broker.state.stats.dead == {("%RETRY%CG", "CG"): 1}
    else:
        assert not bench.broker.state.stats.dead
        assert "%DLQ%CG" not in bench.broker.state.topics
        assert len(bench.records(SCHEDULE, 1)) == 1


def test_what_an_ordered_group_sends_is_dead_at_once(bench: Bench, peer: Peer) -> None:
    """It retries in place; the RebalanceLockManager's view of who consumes in order."""
    body = {
        "consumerGroup": "CG",
        "clientId": "c",
        "mqSet": [{"topic": "T", "brokerName": "b-a", "queueId": 0}],
    }
    peer.ask(RequestCode.LOCK_BATCH_MQ, None, json.dumps(body).encode())
    peer.ask(SEND, send_ext("%RETRY%CG", 0, "DELAY\x014\x02", j="1"), b"x")
    assert len(bench.records("%DLQ%CG")) == 1
    bench.clock.advance(60_001)
    peer.ask(SEND, send_ext("%RETRY%CG", 0, "", j="1"), b"y")
    assert [record.body for record in bench.records("%RETRY%CG")] == [b"y"]


# --- against records of a real broker ---


def golden(topic: str) -> dict[str, dict[str, Any]]:
    with gzip.open(STORE / "kill9.manifest.jsonl.gz", "rt") as lines:
        records = [json.loads(line) for line in lines]
    return {record["keys"]: record for record in records if record["topic"] == topic}


@pytest.mark.parametrize("key", ["retry-0", "retry-2"])
def test_records_are_those_of_a_real_broker(tmp_path: Path, key: str) -> None:
    original = golden("GsRetry")[key]
    again = golden("%RETRY%GsRetryGroup")[key]
    dead = golden("%DLQ%GsRetryGroup")[key]
    bench = Bench(tmp_path, broker_cluster_name="GoldenCluster")
    peer = bench.peer()
    sent = "".join(
        f"{name}\x01{value}\x02" for name, value in original["properties"].items() if name != "CLUSTER"
    )
    peer.ask(SEND, send_ext("GsRetry", original["queueId"], sent), b"x")
    (message,) = bench.records("GsRetry", original["queueId"])
    give_back(peer, message, 1, 1, group="GsRetryGroup")
    bench.run_for(1_000)
    (ours,) = bench.records("%RETRY%GsRetryGroup")
    origin = {"ORIGIN_MESSAGE_ID": message.offset_message_id}
    assert ours.properties == again["properties"] | origin
    assert ours.reconsume_times == again["reconsumeTimes"] == 1
    give_back(peer, ours, 1, 1, group="GsRetryGroup")
    (last,) = bench.records("%DLQ%GsRetryGroup")
    assert last.properties == dead["properties"] | origin
    assert last.reconsume_times == dead["reconsumeTimes"] == 2


def test_a_producer_does_not_say_where_a_dead_letter_comes_from(bench: Bench, peer: Peer) -> None:
    forged = "RETRY_TOPIC\x01Secret\x02DLQ_ORIGIN_TOPIC\x01Secret\x02"
    assert peer.ask(SEND, send_ext("T", properties=forged), b"x").code == 0
    assert give_back(peer, bench.records("T")[-1], level=-1).code == 0
    (dead,) = bench.records("%DLQ%CG")
    assert dead.properties["RETRY_TOPIC"] == "T"
    assert "DLQ_ORIGIN_TOPIC" not in dead.properties
