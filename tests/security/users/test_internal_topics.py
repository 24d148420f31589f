"""Topics in which a broker believes what it finds, as a target: whoever writes there decides about the transactions of
others, makes POP forget what nobody acknowledged, or has an exactly-once sink skip its batches."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mqspark.broker.state.writer import Draft
from mqspark.message import (
    BENCHMARK_TOPIC,
    SCHEDULE_TOPIC,
    SINK_DECISIONS_TOPIC,
    TIMER_TOPIC,
    TRACE_TOPIC,
    TRANS_HALF_TOPIC,
    TRANS_OP_HALF_TOPIC,
    TRANSACTION_COMMIT_TYPE,
    decode_offset_id,
    encode_recall_handle,
)
from mqspark.protocol.bodies.topic_bodies import SubscriptionGroupConfig
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.record.batchitems import encode_items
from mqspark.record.record import PendingRecord
from tests.support.remoting import topic_fields
from tests.unit.broker_kit import SEND, Bench, pull_ext, send_ext
from tests.unit.pop_kit import ACK, ack_ext, pass_time, pop, put, settle

REVIVE = "rmq_sys_REVIVE_LOG_C"
REVIVE_GROUP = "CID_RMQ_SYS_REVIVE_GROUP"
OWN = (
    REVIVE,
    TIMER_TOPIC,
    SCHEDULE_TOPIC,
    TRANS_HALF_TOPIC,
    TRANS_OP_HALF_TOPIC,
    "TRANS_CHECK_MAX_TIME_TOPIC",
    "rmq_sys_SYNC_BROKER_MEMBER_b-a",
    "rmq_sys_REVIVE_LOG_another",
    "rmq_sys_anything",
)
PREPARED = "TRAN_MSG\x01true\x02PGROUP\x01PG\x02"


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path, sync=True)


def make_decisions(bench: Bench, **more: str) -> None:
    ext = topic_fields(SINK_DECISIONS_TOPIC, **more)
    assert bench.peer().ask(RequestCode.UPDATE_AND_CREATE_TOPIC, ext).code == 0


@pytest.mark.parametrize("topic", OWN)
def test_nothing_that_a_client_sends_gets_into_a_topic_of_the_broker(bench: Bench, topic: str) -> None:
    peer = bench.peer()
    end, topics = bench.store.log.position, set(bench.broker.state.topics.names())
    codes = [
        peer.ask(SEND, send_ext(topic), b"x").code,
        peer.ask(SEND, send_ext(topic, 0, "DELAY\x013\x02"), b"x").code,
        peer.ask(SEND, send_ext(topic, 0, "TIMER_DELAY_MS\x015000\x02"), b"x").code,
        peer.ask(SEND, send_ext(topic, 0, PREPARED, f="4"), b"x").code,
        peer.ask(SEND, send_ext(topic, m="true"), encode_items([(0, b"x", b"")])).code,
        peer.ask(RequestCode.SEND_REPLY_MESSAGE_V2, send_ext(topic), b"x").code,
    ]
    assert codes == [ResponseCode.NO_PERMISSION] * 6
    handle = encode_recall_handle(topic, "b-a", bench.clock.now_ms() + 5_000, "id")
    recalled = peer.ask(RequestCode.RECALL_MESSAGE, {"topic": topic, "recallHandle": handle})
    assert recalled.code in (ResponseCode.NO_PERMISSION, ResponseCode.TOPIC_NOT_EXIST)
    assert bench.store.log.position == end
    assert set(bench.broker.state.topics.names()) == topics


@pytest.mark.parametrize(
    "topic", [TRACE_TOPIC, "rmq_sys_TRACE_DATA_cn", BENCHMARK_TOPIC, "C_REPLY_TOPIC", "%RETRY%CG", "%DLQ%CG"]
)
def test_what_rocketmq_clients_send_to_they_may(bench: Bench, topic: str) -> None:
    bench.broker.state.subscriptions.put(SubscriptionGroupConfig(group_name="CG"))
    assert bench.peer().ask(SEND, send_ext(topic), b"x").code == 0


def test_names_in_properties_lead_no_message_into_a_topic_of_the_broker(bench: Bench) -> None:
    peer = bench.peer()
    for waits in ("DELAY\x011\x02", "TIMER_DELAY_MS\x011500\x02", PREPARED):
        text = f"REAL_TOPIC\x01{REVIVE}\x02REAL_QID\x010\x02{waits}"
        flag = "4" if waits == PREPARED else "0"
        answer = peer.ask(SEND, send_ext("T", 0, text, f=flag), b"x")
        assert answer.code == 0
        if waits == PREPARED:
            end_transaction(bench, answer.ext, "PG")
    pass_time(bench, 5_000)
    assert bench.records(REVIVE) == []
    assert len(bench.records("T")) == 3


def end_transaction(bench: Bench, sent: dict[str, str], group: str) -> int:
    _, _, position = decode_offset_id(sent["msgId"])
    ext = {
        "producerGroup": group,
        "tranStateTableOffset": sent["queueOffset"],
        "commitLogOffset": str(position),
        "commitOrRollback": str(TRANSACTION_COMMIT_TYPE),
        "fromTransactionCheck": "false",
        "msgId": "",
    }
    return bench.peer().ask(RequestCode.END_TRANSACTION, ext).code


def test_the_decision_log_takes_committed_transactions_only(bench: Bench) -> None:
    make_decisions(bench)
    peer, topic = bench.peer(), SINK_DECISIONS_TOPIC
    refused = [
        peer.ask(SEND, send_ext(topic), b"x").code,
        peer.ask(SEND, send_ext(topic, f="8"), b"x").code,
        peer.ask(SEND, send_ext(topic, 0, "PGROUP\x01PG\x02", f="8"), b"x").code,
        peer.ask(SEND, send_ext(topic, 0, "DELAY\x011\x02"), b"x").code,
        peer.ask(SEND, send_ext(topic, 0, f"{PREPARED}DELAY\x011\x02", j="1"), b"x").code,
        peer.ask(SEND, send_ext(topic, 0, f"{PREPARED}DELAY\x011\x02", f="4"), b"x").code,
        peer.ask(SEND, send_ext(topic, 0, f"{PREPARED}TIMER_DELAY_MS\x011000\x02", f="4"), b"x").code,
        peer.ask(SEND, send_ext(topic, m="true"), encode_items([(0, b"x", b"")])).code,
        peer.ask(SEND, send_ext(topic, 0, PREPARED, m="true"), encode_items([(0, b"x", b"")])).code,
        peer.ask(
            SEND,
            send_ext(topic, 0, f"{PREPARED}MQSPARK_BATCH\x011:0\x02", f="4"),
            encode_items([(0, b"x", b"")]),
        ).code,
        peer.ask(RequestCode.SEND_REPLY_MESSAGE_V2, send_ext(topic), b"x").code,
    ]
    assert 0 not in refused
    peer.ask(RequestCode.SEND_REPLY_MESSAGE_V2, send_ext(topic, 0, PREPARED), b"x")
    pass_time(bench, 5_000)
    assert bench.records(topic) == []
    half = peer.ask(SEND, send_ext(topic, 0, PREPARED, f="4"), b"decided")
    assert half.code == 0
    assert end_transaction(bench, half.ext, "another") != 0
    assert bench.records(topic) == []
    assert end_transaction(bench, half.ext, "PG") == 0
    (message,) = bench.records(topic)
    assert (message.body, message.properties["PGROUP"]) == (b"decided", "PG")
    assert message.sys_flag & TRANSACTION_COMMIT_TYPE


def test_that_a_message_was_committed_cannot_be_said_by_its_sender(bench: Bench) -> None:
    bench.peer().ask(SEND, send_ext("T", f="8"), b"x")
    assert [message.sys_flag & TRANSACTION_COMMIT_TYPE for message in bench.records("T")] == [0]


# --- POP ----------------------------------------------------------------------------------------------------


def forge(bench: Bench, body: object, tag: str = "ck", queue_id: int = 0) -> None:
    """What a RocketMQ broker, or ours of before, let a client write."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    now_ms = bench.clock.now_ms()
    bench.store.appender.put(
        PendingRecord(
            topic=REVIVE,
            queue_id=queue_id,
            body=raw,
            properties=f"TAGS\x01{tag}\x02".encode(),
            born_timestamp_ms=now_ms,
            born_host=b"\x7f\0\0\1\0\0\0\1",
        )
    )


def check_point(bench: Bench, **more: object) -> dict[str, object]:
    usual = {"t": "T", "c": "CG", "q": 0, "so": 0, "bn": "b-a", "n": 1, "d": [0], "bm": 0, "it": 60_000}
    return usual | {"pt": bench.clock.now_ms()} | more


def test_forged_check_points_stop_no_redelivery(bench: Bench) -> None:
    put(bench, "a", "b")
    forever = 1 << 55
    junk: list[object] = [
        *(check_point(bench, pt=time_ms) for time_ms in (forever, 10**30)),
        *(check_point(bench, it=time_ms) for time_ms in (forever, -5)),
        *(check_point(bench, q=queue_id) for queue_id in (-1, 1 << 40)),
        *(check_point(bench, so=start) for start in (-1, 1 << 62)),
        *(check_point(bench, n=count) for count in (-1, 1 << 30)),
        *(check_point(bench, d=offsets, n=1) for offsets in ([1 << 62], [-3], "x")),
        *(check_point(bench, t=topic) for topic in (None, "T" * 60_000)),
        *(b"", b"\xff\xfe", b"[" * 15_000, b"9" * 10_000),
    ]
    for queue_id in range(bench.broker.state.config.revive_queue_num):
        for body in junk:
            forge(bench, body, queue_id=queue_id)
        for body in (*junk, {**check_point(bench), "aol": [7] * 1_000}, {**check_point(bench), "ao": -5}):
            forge(bench, body, tag="bAck", queue_id=queue_id)
            forge(bench, body, tag="ack", queue_id=queue_id)
    assert [one.body for one in pop(bench, bench.peer())] == [b"a", b"b"]
    settle(bench)
    pass_time(bench, 75_000)
    assert sorted(one.body for one in pop(bench, bench.peer())) == [b"a", b"b"]
    done = bench.broker.state.offsets.queues(REVIVE_GROUP, REVIVE)
    ends = {queue_id: bench.store.offsets.max_offset(REVIVE, queue_id) for queue_id in done}
    assert done == {queue_id: end - 1 for queue_id, end in ends.items()}, "nothing forged holds the offset"
    assert bench.broker.state.stats.junk["revive"] > 100
    assert len(bench.broker.state.stats.revivals) <= 2


def test_nobody_takes_a_check_point_back(bench: Bench) -> None:
    """A deletion names any timer message of its slot, and check points are timer messages."""
    put(bench, "a")
    (popped,) = pop(bench, bench.peer())
    receipt = popped.receipt
    key = f"T@{receipt.queue_id}@{receipt.start_offset}@CG@{receipt.pop_time_ms}@b-a@ck"
    peer = bench.peer()
    for deliver_ms in range(receipt.visible_again_ms - 3_000, receipt.visible_again_ms + 2_000, 500):
        for deleted in (key, f"{REVIVE}+{key}"):
            text = f"TIMER_DEL_UNIQKEY\x01{deleted}\x02TIMER_DELIVER_MS\x01{deliver_ms}\x02"
            peer.ask(SEND, send_ext("T", 1, text), b"x")
            handle = encode_recall_handle("T", "b-a", deliver_ms, deleted)
            peer.ask(RequestCode.RECALL_MESSAGE, {"topic": "T", "recallHandle": handle})
    settle(bench)
    pass_time(bench, 75_000)
    assert [one.body for one in pop(bench, bench.peer())] == [b"a"]


def test_how_far_the_broker_is_only_it_says(bench: Bench) -> None:
    put(bench, "a")
    assert len(pop(bench, bench.peer())) == 1
    offsets, peer = bench.broker.state.offsets, bench.peer()
    bench.broker.state.subscriptions.put(SubscriptionGroupConfig(group_name=REVIVE_GROUP))
    update = {"consumerGroup": REVIVE_GROUP, "topic": REVIVE, "commitOffset": "1000000"}
    for queue_id in range(8):
        answer = peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, {**update, "queueId": str(queue_id)})
        assert answer.code == ResponseCode.NO_PERMISSION
        pulled = pull_ext(
            REVIVE, queue_id, consumerGroup=REVIVE_GROUP, maxMsgNums="1", sysFlag="5", commitOffset="1000000"
        )
        peer.ask(RequestCode.PULL_MESSAGE, pulled)
    clone = {"srcGroup": "evil", "destGroup": REVIVE_GROUP, "topic": REVIVE, "offline": "false"}
    for queue_id in range(8):
        offsets.commit("evil", REVIVE, queue_id, 1_000_000)
    peer.ask(RequestCode.CLONE_GROUP_OFFSET, clone)
    assert max(offsets.queues(REVIVE_GROUP, REVIVE).values(), default=-1) < 1_000
    settle(bench)
    bench.reopen()
    pass_time(bench, 75_000)
    assert [one.body for one in pop(bench, bench.peer())] == [b"a"]


def test_a_forged_receipt_fails_no_acknowledgement_of_others(bench: Bench) -> None:
    put(bench, "a")
    (popped,) = pop(bench, bench.peer())
    evil, honest = bench.peer(), bench.peer()
    forged = popped._replace(receipt=popped.receipt._replace(invisible_time_ms=1 << 50))
    evil.give(ACK, ack_ext(forged))
    asked = honest.give(ACK, ack_ext(popped))
    bench.broker.turn()
    bench.housekeeping()
    assert [(answer.opaque, answer.code) for answer in honest.heard()] == [(asked, 0)]
    assert [answer.code for answer in evil.heard()] == [ResponseCode.SYSTEM_ERROR]
    settle(bench)
    pass_time(bench, 75_000)
    assert pop(bench, bench.peer()) == []


def test_drafts_of_the_broker_itself_reach_its_topics(bench: Bench) -> None:
    now_ms = bench.clock.now_ms()
    bench.broker.state.writer.put(Draft(REVIVE, 0, b"{}", {}, now_ms, bench.store.store_host))
    settle(bench)
    assert len(bench.records(REVIVE)) == 1
