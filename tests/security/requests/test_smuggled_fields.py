"""What a sender hides in a message: flags, properties and times of which only the broker is the master. A message may
harm itself, but neither the topics of others nor the next start.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mqspark.message import (
    SCHEDULE_TOPIC,
    TRANS_CHECK_MAX_TIME_TOPIC,
    TRANS_HALF_TOPIC,
    Message,
    encode_host,
    encode_stored_properties,
)
from mqspark.protocol.bodies.topic_bodies import SubscriptionGroupConfig
from mqspark.protocol.codes import RequestCode as R
from mqspark.protocol.codes import ResponseCode
from mqspark.protocol.command import Command
from mqspark.record.batchitems import encode_batch, encode_items
from mqspark.record.record import PendingRecord
from mqspark.store.queue.multidispatch import MAX_DISPATCHED
from tests.support.pace import ProcessorTime
from tests.unit import timer_kit
from tests.unit.auth_kit import ROOT, SignedPeer, allow, authority
from tests.unit.broker.send.test_retry import give_back
from tests.unit.broker.test_queues import LMQ, batch_topic
from tests.unit.broker_kit import PULL, SEND, Bench, Peer, pull_ext, send_ext
from tests.unit.pop_kit import INVISIBLE_MS, pass_time, pop, pop_ext
from tests.unit.transaction_kit import COMMIT, Kit

ILLEGAL, DENIED = ResponseCode.MESSAGE_ILLEGAL, ResponseCode.NO_PERMISSION
MANY_DIGITS = "1" * 5_000
DAY_MS = 86_400_000
INNER = 0xC0
"""The system flags of an inner batch."""


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path, store_settings=LMQ, recall_message_enable=True)


@pytest.fixture
def kit(tmp_path: Path) -> Kit:
    kit = Kit(tmp_path, transaction_check_max=3, transaction_time_out=1_000, transaction_check_interval=1_000)
    assert kit.producer.ask(SEND, send_ext(), b"first").code == 0
    return kit


# --- half messages ---


@pytest.mark.parametrize("level", [MANY_DIGITS, "0" * 5_000 + "1", "³"])
def test_a_half_message_without_a_possible_delay_is_refused(kit: Kit, level: str) -> None:
    properties = encode_stored_properties({"TRAN_MSG": "true", "PGROUP": "PG", "DELAY": level}).decode()
    answer = kit.producer.ask(SEND, send_ext(properties=properties, f="4"), b"x")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "is not a delay level" in (answer.remark or "")
    assert kit.messages(TRANS_HALF_TOPIC) == []


@pytest.mark.parametrize(
    "odd",
    [{"DELAY": MANY_DIGITS}, {"DELAY": "+" + MANY_DIGITS, "REAL_QID": "2147483648"}],
    ids=["digits", "queue"],
)
def test_a_broker_starts_whatever_its_half_messages_say(kit: Kit, odd: dict[str, str]) -> None:
    """As stored by an earlier version, or by a RocketMQ."""
    properties = {
        "REAL_TOPIC": "T",
        "REAL_QID": "0",
        "TRAN_MSG": "true",
        "PGROUP": "PG",
        "UNIQ_KEY": "U",
        **odd,
    }
    kit.store.appender.put(
        PendingRecord(
            topic=TRANS_HALF_TOPIC,
            queue_id=0,
            body=b"poison",
            properties=encode_stored_properties(properties),
            born_timestamp_ms=kit.clock.now_ms(),
            born_host=encode_host("127.0.0.1", 1),
        )
    )
    kit.settle()
    kit.crash()
    good = kit.prepare("U2", b"good")
    assert kit.end(good, COMMIT).code == 0
    kit.run(20_000, step_ms=1_000)
    assert [message.body for message in kit.messages()] == [b"first", b"good"]
    kit.crash()
    assert [message.body for message in kit.messages()] == [b"first", b"good"]


@pytest.mark.parametrize(
    "forged",
    [
        {"CHECK_IMMUNITY_TIME_IN_SECONDS": "60"},
        {"TRANSACTION_CHECK_TIMES": "-1" + "0" * 17},
        {"TRAN_PREPARED_QUEUE_OFFSET": "7", "TRANSACTION_CHECK_TIMES": "-5"},
    ],
    ids=lambda each: min(each),
)
def test_a_half_message_of_the_future_is_given_up(kit: Kit, forged: dict[str, str]) -> None:
    """Born in a century, it would be immune, and stored again, until then."""
    answer = kit.producer.ask(
        SEND,
        send_ext(
            properties=encode_stored_properties(
                {"TRAN_MSG": "true", "PGROUP": "PG", "UNIQ_KEY": "U", **forged}
            ).decode(),
            f="4",
            g=str(kit.clock.now_ms() + 36_500 * DAY_MS),
        ),
        b"x",
    )
    assert answer.code == 0, answer.remark
    kit.run(10_000, step_ms=1_000)
    (given_up,) = kit.messages(TRANS_CHECK_MAX_TIME_TOPIC)
    assert given_up.body == b"x"
    stored = len(kit.messages(TRANS_HALF_TOPIC))
    assert stored <= 4, "once, and once for each check"
    kit.run(5_000, step_ms=1_000)
    assert len(kit.messages(TRANS_HALF_TOPIC)) == stored


# --- replies ---


def reply(bench: Bench, flags: int, properties: str) -> None:
    """It is stored, though nobody waits for it."""
    answer = bench.peer().ask(
        R.SEND_REPLY_MESSAGE_V2, send_ext(properties=properties, f=str(flags)), b"reply"
    )
    assert "REPLY_TO_CLIENT" in (answer.remark or "")


def test_a_reply_cannot_change_the_kind_of_a_topic(bench: Bench) -> None:
    for body in (b"one", b"two"):
        assert bench.peer().ask(SEND, send_ext(), body).code == 0
    reply(bench, INNER, "INNER_NUM\x011000\x02")
    bench.flush()
    bench.crash()
    assert not bench.store.table.batch_topics
    assert [record.body for record in bench.records("T")] == [b"one", b"two", b"reply"]
    assert bench.peer().ask(SEND, send_ext(), b"four").ext["queueOffset"] == "3"


def test_a_reply_enters_no_light_queue_and_has_no_receipt(bench: Bench) -> None:
    reply(bench, 0, "INNER_MULTI_DISPATCH\x01%LMQ%other\x02POP_CK\x010 1 2\x02K\x01v\x02")
    (stored,) = bench.records("T")
    assert stored.properties["K"] == "v"
    assert stored.properties.keys().isdisjoint({"INNER_MULTI_DISPATCH", "POP_CK"})
    assert not bench.store.offsets.has_queue("%LMQ%other", 0)


# --- batches ---


def inner_batch(peer: Peer, *names: str) -> int:
    """Store one of messages whose bodies and ids have these names; its position."""
    batch_topic(peer)
    body = encode_batch(
        [Message("B", name.encode(), properties={"UNIQ_KEY": f"id-{name}", "K": name}) for name in names]
    )
    answer = peer.ask(SEND, send_ext("B", m="true"), body)
    assert answer.code == 0, answer.remark
    return int(answer.ext["msgId"][16:], 16)


def test_one_message_of_an_inner_batch_is_sent_back(bench: Bench) -> None:
    """The batch as a whole, in the schedule topic, would turn all delays into a BatchCQ at the next start."""
    peer = bench.peer()
    position = inner_batch(peer, "a", "b", "c")

    def back(message_id: str, level: int) -> Command:
        ext = {"offset": str(position), "group": "CG", "delayLevel": str(level), "originMsgId": message_id}
        return peer.ask(R.CONSUMER_SEND_MSG_BACK, ext)

    for unknown in ("", "id-", "id-x"):
        refused = back(unknown, 1)
        assert (refused.code, "inner batch" in (refused.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)
    assert back("id-b", 1).code == back("id-c", -1).code == 0
    bench.run_for(2_000)
    bench.flush()
    bench.crash()
    assert bench.store.table.batch_topics == {"B"}
    (again,), (dead,) = bench.records("%RETRY%CG"), bench.records("%DLQ%CG")
    assert [(each.body, each.properties["K"], each.sys_flag & INNER) for each in (again, dead)] == [
        (b"b", "b", 0),
        (b"c", "c", 0),
    ]
    assert again.properties["RETRY_TOPIC"] == "B"
    assert again.reconsume_times == 1
    assert len(bench.records(SCHEDULE_TOPIC)) == 1


def test_a_message_is_found_in_the_largest_inner_batch_in_a_moment(bench: Bench) -> None:
    """Sending back one of 32,767 messages must not hold the loop."""
    peer, most = bench.peer(), 0x7FFF
    batch_topic(peer)
    items = [(0, b"", f"UNIQ_KEY\x01{number}\x02OF\x01last\x02".encode()) for number in range(most - 1)]
    assert (
        peer.ask(
            SEND, send_ext("B", m="true"), encode_items([*items, (0, b"it", b"UNIQ_KEY\x01last\x02")])
        ).code
        == 0
    )
    ext = {"offset": "0", "group": "CG", "delayLevel": "-1", "originMsgId": "last"}
    with ProcessorTime() as cost:
        answer = peer.ask(R.CONSUMER_SEND_MSG_BACK, ext)
    assert answer.code == 0, answer.remark
    (dead,) = bench.records("%DLQ%CG")
    assert dead.body == b"it"
    assert cost.seconds < 0.25


def test_messages_of_a_popped_inner_batch_come_again_one_by_one(bench: Bench) -> None:
    bench.broker.state.subscriptions.put(SubscriptionGroupConfig(group_name="CG"))
    inner_batch(bench.peer(), "a", "b")
    bench.broker.state.offsets.commit("CG", "B", 0, 0)
    assert bench.peer().ask(R.POP_MESSAGE, pop_ext(bench, "B")).code == 0
    pass_time(bench, INVISIBLE_MS + 8_000)
    again = pop(bench, bench.peer(), "B")
    assert [(one.body, one.message.reconsume_times) for one in again] == [(b"a", 1), (b"b", 1)]
    bench.flush()
    bench.crash()
    assert bench.store.table.batch_topics == {"B"}


@pytest.mark.parametrize("count", [2, 600])
def test_a_message_of_a_batch_names_no_places_in_light_queues(bench: Bench, count: int) -> None:
    """A start and slaves would believe them, and fill the queue up to there."""
    peer = bench.peer()
    assert peer.ask(SEND, send_ext(properties="INNER_MULTI_DISPATCH\x01%LMQ%mine\x02"), b"mine").code == 0
    forged = {"INNER_MULTI_DISPATCH": "%LMQ%mine", "INNER_MULTI_QUEUE_OFFSET": "3"}
    messages = [Message("T", b"x", properties={"K": "v", **forged})] * count
    answer = peer.ask(SEND, send_ext(m="true"), encode_batch(messages))
    assert (answer.code, "no light queue" in (answer.remark or "")) == (ILLEGAL, True)
    half = {"TRAN_MSG": "true", "PGROUP": "PG", "UNIQ_KEY": "U", "MQSPARK_BATCH": f"{count}:0"}
    text = encode_stored_properties(half).decode()
    answer = peer.ask(SEND, send_ext(properties=text, f="4"), encode_batch(messages))
    assert (answer.code, "no light queue" in (answer.remark or "")) == (ILLEGAL, True)
    harmless = [
        Message("T", b"INNER_MULTI_QUEUE_OFFSET", properties={"K": "INNER_MULTI_QUEUE_OFFSET"})
    ] * count
    assert peer.ask(SEND, send_ext(m="true"), encode_batch(harmless)).code == 0
    bench.flush()
    bench.crash()
    assert bench.store.offsets.max_offset("%LMQ%mine", 0) == 1


@pytest.mark.parametrize(("count", "is_stored"), [(MAX_DISPATCHED, True), (MAX_DISPATCHED + 1, False)])
def test_a_message_creates_a_bounded_number_of_light_queues(
    bench: Bench, count: int, is_stored: bool
) -> None:
    names = ",".join(f"%LMQ%{number}" for number in range(count))
    answer = bench.peer().ask(SEND, send_ext(properties=f"INNER_MULTI_DISPATCH\x01{names}\x02"), b"x")
    assert (answer.code == 0) is is_stored
    assert len(bench.store.table.light) == (count if is_stored else 0)


# --- delays ---


def test_a_timer_message_is_deleted_from_its_own_topic_only(bench: Bench) -> None:
    timer_kit.send(bench, b"theirs", topic="T", delay_ms=5_300, more="UNIQ_KEY\x01U\x02")
    timer_kit.send(bench, b"mine", topic="M", delay_ms=5_300, more="UNIQ_KEY\x01U\x02")
    for key in ("U", "T+U"):
        timer_kit.send(bench, topic="M", delay_ms=5_300, more=f"TIMER_DEL_UNIQKEY\x01{key}\x02")
    bench.run_for(8_000)
    assert [record.body for record in bench.records("T")] == [b"theirs"]
    assert bench.records("M") == []


@pytest.mark.parametrize("times", ["-1", "-100", "-2147483648"])
def test_a_negative_number_of_deliveries_is_none(bench: Bench, times: str) -> None:
    """Its retries would have no delay, and no end."""
    assert bench.peer().ask(SEND, send_ext(j=times), b"x").code == 0
    assert give_back(bench.peer(), bench.records("T")[-1]).code == 0
    (waiting,) = bench.records(SCHEDULE_TOPIC, 2)
    assert (waiting.properties["DELAY"], waiting.reconsume_times) == ("3", 1)


@pytest.mark.parametrize("times", ["-1", "-100", "-2147483648"])
def test_a_popped_message_that_comes_again_was_delivered_once(bench: Bench, times: str) -> None:
    """Whatever number its sender gave; the group's limit of deliveries would never be reached."""
    bench.broker.state.subscriptions.put(SubscriptionGroupConfig(group_name="CG"))
    assert bench.peer().ask(SEND, send_ext(j=times), b"x").code == 0
    for expected in (int(times), 1, 2):
        (one,) = pop(bench, bench.peer())
        assert (one.body, one.message.reconsume_times) == (b"x", expected)
        pass_time(bench, INVISIBLE_MS + 8_000)


# --- what is asked besides the topic that is checked ---


def test_further_topics_of_a_request_are_checked(tmp_path: Path) -> None:
    bench = Bench(tmp_path, new_authority=lambda: authority(tmp_path / "auth"))
    try:
        root = SignedPeer(bench.peer(), *ROOT)
        for topic in ("Mine", "Secret"):
            assert root.ask(SEND, send_ext(topic), b"x").code == 0
        assert bench.broker.authority is not None
        allow(bench.broker.authority, "mallory", "Topic:Mine Sub,Get", "Group:mine All")
        mallory = SignedPeer(bench.peer(), "mallory")
        assert mallory.ask(PULL, pull_ext("Mine", consumerGroup="mine")).code == 0

        def ends(code: int, *topics: str) -> int:
            body = json.dumps({"topics": [{"topic": topic, "queueIds": [0]} for topic in topics]}).encode()
            return mallory.ask(code, {"topic": "Mine", "queueId": "0", "mqsparkQueues": "true"}, body).code

        for code in (R.GET_MAX_OFFSET, R.GET_MIN_OFFSET):
            assert ends(code, "Mine", "Secret") == ends(code, "Secret") == DENIED
            assert ends(code, "Mine") == 0
        stats = {"consumerGroup": "mine", "topicList": "Mine;Secret"}
        assert mallory.ask(R.GET_CONSUME_STATS, stats).code == DENIED
        assert mallory.ask(R.GET_CONSUME_STATS, stats | {"topicList": "Mine"}).code == 0
    finally:
        bench.close()
