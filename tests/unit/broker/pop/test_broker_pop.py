"""POP: handing out, acknowledging, coming back; over restarts and crashes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from mqspark.protocol.bodies.topic_bodies import TopicConfig
from mqspark.protocol.codes import RequestCode
from mqspark.protocol.command import Command
from mqspark.record.record import decode_records
from tests.unit.broker_kit import SEND, Bench, Peer, send_ext
from tests.unit.pop_kit import (
    ACK,
    CHANGE,
    INVISIBLE_MS,
    POP,
    Popped,
    ack_ext,
    change,
    handed_out,
    pass_time,
    pop,
    pop_ext,
    put,
    settle,
)

REVIVE_TOPIC = "rmq_sys_REVIVE_LOG_C"
REVIVAL_MS = 8_000
"""Within this a message that is due is visible again."""


@pytest.fixture(params=[False, True], ids=["async", "sync"])
def bench(tmp_path: Path, request: pytest.FixtureRequest) -> Bench:
    return Bench(tmp_path, sync=request.param)


def bodies(popped: Sequence[Popped]) -> list[str]:
    return sorted(one.body.decode() for one in popped)


def test_each_message_is_handed_out_once(bench: Bench) -> None:
    put(bench, "a", "b", "c")
    put(bench, "d", queue_id=1)
    one, two = bench.peer(), bench.peer()
    first = pop(bench, one, maxMsgNums="2")
    second = pop(bench, two)
    assert len(first) == 2
    assert bodies([*first, *second]) == ["a", "b", "c", "d"]
    nothing = one.ask(POP, pop_ext(bench))
    assert (nothing.code, nothing.remark) == (210, "NO_MESSAGE_IN_QUEUE")
    assert nothing.ext["msgOffsetInfo"] == nothing.ext["startOffsetInfo"] == ""


def test_rest_is_what_is_left(bench: Bench) -> None:
    put(bench, "a", "b", "c")
    put(bench, "d", queue_id=1)
    answer = bench.peer().ask(POP, pop_ext(bench, maxMsgNums="1"))
    assert answer.ext["restNum"] == "3"


def test_one_queue(bench: Bench) -> None:
    put(bench, "a")
    put(bench, "b", queue_id=1)
    assert bodies(pop(bench, bench.peer(), queueId="1")) == ["b"]


def test_groups_do_not_share(bench: Bench) -> None:
    put(bench, "a")
    assert bodies(pop(bench, bench.peer())) == bodies(pop(bench, bench.peer(), group="CG2")) == ["a"]


def test_what_is_acknowledged_stays_away(bench: Bench, peer: Peer) -> None:
    put(bench, "a", "b")
    for one in pop(bench, peer):
        for _ in range(2):  # again changes nothing
            assert peer.ask(ACK, ack_ext(one)).code == 0
    pass_time(bench, INVISIBLE_MS + REVIVAL_MS)
    assert pop(bench, peer) == []


def test_what_is_not_acknowledged_comes_back(bench: Bench, peer: Peer) -> None:
    put(bench, "a", "b", "c", tag="red")
    popped = pop(bench, peer)
    assert peer.ask(ACK, ack_ext(popped[1])).code == 0
    pass_time(bench, INVISIBLE_MS - 1_000)
    assert pop(bench, peer) == []
    pass_time(bench, REVIVAL_MS)
    back = pop(bench, peer)
    assert bodies(back) == ["a", "c"]
    for one in back:
        assert one.topic == "%RETRY%CG_T"
        assert one.message.reconsume_times == 1
        assert one.message.properties["1ST_POP_TIME"] == str(popped[0].receipt.pop_time_ms)
        assert one.message.properties["ORIGIN_GROUP"] == "CG"
        assert one.message.properties["TAGS"] == "red"
        assert peer.ask(ACK, ack_ext(one)).code == 0
    pass_time(bench, INVISIBLE_MS + REVIVAL_MS)
    assert pop(bench, peer) == []


def test_retries_are_retried_in_their_topic(bench: Bench, peer: Peer) -> None:
    put(bench, "a")
    for times in range(3):
        (one,) = pop(bench, peer)
        assert one.message.reconsume_times == times
        pass_time(bench, INVISIBLE_MS + REVIVAL_MS)
    (one,) = pop(bench, peer)
    assert one.topic == "%RETRY%CG_T"
    assert one.receipt.offset == 2


@pytest.mark.parametrize("v1_too", [False, True])
def test_retry_topics_of_the_second_kind(tmp_path: Path, v1_too: bool) -> None:
    bench = Bench(tmp_path, enable_retry_topic_v2=True, retrieve_message_from_pop_retry_topic_v1=v1_too)
    put(bench, "a")
    peer = bench.peer()
    assert pop(bench, peer)
    pass_time(bench, INVISIBLE_MS + REVIVAL_MS)
    bench.reopen()  # the name is an illegal one for everybody else, but stays
    peer = bench.peer()
    assert [one.topic for one in pop(bench, peer)] == ["%RETRY%CG+T"]
    assert pop(bench, peer) == []


def test_tags(bench: Bench, peer: Peer) -> None:
    put(bench, "a", tag="red")
    put(bench, "b", tag="blue")
    put(bench, "c", tag="red")
    assert bodies(pop(bench, peer, exp="red")) == ["a", "c"]
    put(bench, "d", tag="blue")
    assert pop(bench, peer, exp="red") == []
    assert pop(bench, peer, exp="blue") == []  # passed over by the group


def test_sql(bench: Bench, peer: Peer) -> None:
    for number in range(5):
        peer.ask(SEND, send_ext(properties=f"n\x01{number}\x02"), str(number).encode())
    assert bodies(pop(bench, peer, expType="SQL92", exp="n > 2")) == ["3", "4"]
    assert peer.ask(POP, pop_ext(bench, expType="SQL92", exp="n >")).code == 23


def test_a_waiting_pop_is_served_when_something_comes(bench: Bench) -> None:
    put(bench, "a")
    one, two = bench.peer(), bench.peer()
    pop(bench, one)
    for peer in (one, two):
        peer.give(POP, pop_ext(bench, pollTime="15000"))
    bench.broker.turn()
    assert one.heard() == two.heard() == []
    put(bench, "b", queue_id=2)
    settle(bench)
    (answer,) = [*one.heard(), *two.heard()]  # one of them, not both
    assert bodies(handed_out(answer)) == ["b"]
    bench.later(15_100)
    (late,) = [*one.heard(), *two.heard()]
    assert late.code == 210


def test_a_waiting_pop_gets_retries(bench: Bench, peer: Peer) -> None:
    put(bench, "a")
    pop(bench, peer)
    pass_time(bench, INVISIBLE_MS - 1_000)
    peer.give(POP, pop_ext(bench, pollTime="15000"))
    bench.broker.turn()
    pass_time(bench, REVIVAL_MS)
    (answer,) = peer.heard()
    assert bodies(handed_out(answer)) == ["a"]


def test_a_waiting_pop_looks_on_behind_what_it_does_not_want(bench: Bench, peer: Peer) -> None:
    put(bench, "a", tag="blue")
    peer.give(POP, pop_ext(bench, pollTime="15000", exp="red"))
    bench.broker.turn()
    put(bench, "b", tag="blue")
    settle(bench)
    assert peer.heard() == []
    put(bench, "c", tag="red")
    settle(bench)
    (answer,) = peer.heard()
    assert bodies(handed_out(answer)) == ["c"]


def test_too_many_waiting(tmp_path: Path) -> None:
    bench = Bench(tmp_path, pop_polling_size=2)
    put(bench, "a")
    pop(bench, bench.peer())
    for _ in range(2):
        bench.peer().give(POP, pop_ext(bench, pollTime="15000"))
    assert bench.peer().ask(POP, pop_ext(bench, pollTime="15000")).code == 209


def test_those_who_left_do_not_wait(bench: Bench) -> None:
    put(bench, "a")
    gone, peer = bench.peer(), bench.peer()
    pop(bench, gone)
    for one in (gone, peer):
        one.give(POP, pop_ext(bench, pollTime="15000"))
    bench.broker.turn()
    gone.disconnect()
    put(bench, "b")
    settle(bench)
    (answer,) = peer.heard()
    assert bodies(handed_out(answer)) == ["b"]


@pytest.mark.parametrize(
    ("ext", "code"),
    [
        ({"topic": "Nowhere"}, 17),
        ({"queueId": "99"}, 29),
        ({"queueId": "-2"}, 29),
        ({"maxMsgNums": "33"}, 29),
        ({"maxMsgNums": "0"}, 29),
        ({"invisibleTime": "0"}, 29),
        ({"invisibleTime": str(1 << 60)}, 29),
        ({"consumerGroup": "not a group"}, 26),
        ({"expType": "XPATH"}, 23),
    ],
)
def test_refusals(bench: Bench, ext: dict[str, str], code: int) -> None:
    put(bench, "a")
    assert bench.peer().ask(POP, pop_ext(bench) | ext).code == code


@pytest.mark.parametrize(
    ("late_ms", "code"),
    [(0, 0), (-3_600_000, 0), (60_000, 210), (300_000, 210), (300_001, 0), (3_600_000, 0)],
)
def test_a_request_is_late_or_its_clock_is_wrong(bench: Bench, late_ms: int, code: int) -> None:
    put(bench, "a")
    born = {"bornTime": str(bench.clock.now_ms() - late_ms)}
    assert bench.peer().ask(POP, pop_ext(bench) | born).code == code


def test_the_fast_port_knows_no_pop(bench: Bench) -> None:
    put(bench, "a")
    assert bench.peer(fast=True).ask(POP, pop_ext(bench)).code == 3


def test_without_a_timer_there_is_no_pop(tmp_path: Path) -> None:
    bench = Bench(tmp_path, store_settings={"timer_wheel_enable": False})
    put(bench, "a")
    answer = bench.peer().ask(POP, pop_ext(bench))
    assert answer.code == 1
    assert "timerWheelEnable" in (answer.remark or "")


@pytest.mark.parametrize(
    ("ext", "code"),
    [
        ({"topic": "Nowhere"}, 17),
        ({"queueId": "99"}, 13),
        ({"offset": "5"}, 208),
        ({"extraInfo": "1 2 3"}, 1),
        ({"extraInfo": "0 1 1 77 0 b-a 0 0"}, 13),
    ],
)
def test_refused_acknowledgements(bench: Bench, peer: Peer, ext: dict[str, str], code: int) -> None:
    put(bench, "a")
    (one,) = pop(bench, peer)
    assert peer.ask(ACK, ack_ext(one) | ext).code == code
    assert peer.ask(CHANGE, ack_ext(one, invisibleTime="1000") | ext).code == code


def test_a_new_group_begins_where_it_says(bench: Bench, peer: Peer) -> None:
    put(bench, *"abc")
    bench.broker.state.store_config.access_message_in_memory_max_ratio = 0
    assert bodies(pop(bench, peer, initMode="1")) == ["c"]
    assert bodies(pop(bench, peer, group="CG2", initMode="0")) == ["a", "b", "c"]


def test_a_reset_takes_back_what_is_handed_out(bench: Bench, peer: Peer) -> None:
    put(bench, *"abc")
    pop(bench, peer)
    bench.broker.state.offsets.reset(peer.session, "CG", "T", 0, 1)
    assert bodies(pop(bench, peer)) == ["b", "c"]


def test_the_invisible_time_is_changed(bench: Bench, peer: Peer) -> None:
    put(bench, "a", "b")
    first, second = pop(bench, peer)
    again = change(peer, first, 10 * INVISIBLE_MS)
    assert isinstance(again, Popped)
    pass_time(bench, INVISIBLE_MS + REVIVAL_MS)
    assert bodies(pop(bench, peer)) == [second.body.decode()]
    assert peer.ask(ACK, ack_ext(again)).code == 0
    pass_time(bench, 10 * INVISIBLE_MS + REVIVAL_MS, 2_000)
    assert bodies(pop(bench, peer)) == ["b"]


def test_a_changed_message_comes_back_when_it_now_should(bench: Bench, peer: Peer) -> None:
    put(bench, "a")
    (one,) = pop(bench, peer)
    change(peer, one, 5_000)
    pass_time(bench, 5_000 + REVIVAL_MS)
    assert bodies(pop(bench, peer)) == ["a"]
    # The old receipt has had its day.
    assert peer.ask(ACK, ack_ext(one)).code == 0
    pass_time(bench, INVISIBLE_MS + REVIVAL_MS)
    assert bodies(pop(bench, peer)) == ["a"]


def test_a_change_in_the_same_millisecond_is_no_acknowledgement(bench: Bench, peer: Peer) -> None:
    put(bench, "a")
    (one,) = pop(bench, peer)
    change(peer, one, INVISIBLE_MS)
    pass_time(bench, INVISIBLE_MS + REVIVAL_MS)
    assert bodies(pop(bench, peer)) == ["a"]


@pytest.mark.parametrize("later_ms", [0, 10_000])
def test_a_change_to_the_time_at_which_it_is_visible_anyway_loses_nothing(
    bench: Bench, peer: Peer, later_ms: int
) -> None:
    """RocketMQ before 5.5.1 overwrites the old check point with the new one, and deletes it then: their keys are the
    message and that time."""
    put(bench, "a", "b")
    first, second = pop(bench, peer)
    pass_time(bench, later_ms)
    changed = [change(peer, each, INVISIBLE_MS - later_ms) for each in (first, second)]
    assert isinstance(changed[1], Popped)
    assert peer.ask(ACK, ack_ext(changed[1])).code == 0
    pass_time(bench, INVISIBLE_MS - later_ms - 1_000)
    assert pop(bench, peer) == []
    pass_time(bench, 1_000 + REVIVAL_MS)
    assert bodies(pop(bench, peer)) == ["a"]


def test_a_receipt_that_ran_out_changes_nothing(bench: Bench, peer: Peer) -> None:
    put(bench, "a")
    (one,) = pop(bench, peer)
    pass_time(bench, INVISIBLE_MS + REVIVAL_MS)
    refusal = change(peer, one, INVISIBLE_MS)
    assert isinstance(refusal, Command)
    assert refusal.code == 208
    assert bodies(pop(bench, peer)) == ["a"]


def test_over_a_restart(bench: Bench, peer: Peer) -> None:
    put(bench, "a", "b", "c")
    popped = pop(bench, peer, maxMsgNums="2")
    peer.ask(ACK, ack_ext(popped[0]))
    bench.reopen()
    peer = bench.peer()
    assert bodies(pop(bench, peer)) == ["c"]
    pass_time(bench, INVISIBLE_MS + REVIVAL_MS)
    assert bodies(pop(bench, peer)) == ["b", "c"]


def test_a_revival_is_not_repeated_by_a_restart(bench: Bench, peer: Peer) -> None:
    put(bench, "a")
    pop(bench, peer)
    pass_time(bench, INVISIBLE_MS + REVIVAL_MS)
    bench.reopen()
    pass_time(bench, INVISIBLE_MS + REVIVAL_MS)
    assert bodies(pop(bench, bench.peer())) == ["a"]
    assert pop(bench, bench.peer()) == []


def test_under_sync_flush_nothing_is_handed_out_before_its_check_point_is_on_disk(tmp_path: Path) -> None:
    bench = Bench(tmp_path, sync=True)
    put(bench, "a")
    peer = bench.peer()
    peer.give(POP, pop_ext(bench))
    bench.broker.turn()
    assert peer.heard() == []
    assert bench.broker.state.offsets.query("CG", "T", 0) == 0
    bench.peer().give(POP, pop_ext(bench))  # the message is on its way to somebody
    bench.flush()
    (answer,) = peer.heard()
    assert bodies(handed_out(answer)) == ["a"]
    assert bench.broker.state.offsets.query("CG", "T", 0) == 1


def test_the_groups_offset_is_never_ahead_of_the_check_points_on_disk(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    put(bench, "a", "b")
    peer = bench.peer()
    assert bodies(pop(bench, peer, maxMsgNums="1")) == ["a"]
    assert bench.broker.state.offsets.query("CG", "T", 0) == 0
    assert bodies(pop(bench, peer, maxMsgNums="1")) == ["b"]  # goes on all the same
    bench.flush()
    assert bench.broker.state.offsets.query("CG", "T", 0) == 2


def test_a_disk_that_hangs_bounds_what_is_handed_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqspark.broker.pop.popprocessor.MAX_UNSYNCED", 2)
    bench = Bench(tmp_path)
    put(bench, *"abcd")
    peer = bench.peer()
    for _ in range(2):
        assert len(pop(bench, peer, maxMsgNums="1")) == 1
    assert peer.ask(POP, pop_ext(bench)).code == 2
    bench.flush()
    assert len(pop(bench, peer)) == 2


def test_acknowledgements_of_a_turn_are_one_record(bench: Bench, peer: Peer) -> None:
    put(bench, *"abcd")
    popped = pop(bench, peer)
    for one in popped[:3]:
        peer.give(ACK, ack_ext(one))
    bench.broker.turn()
    bench.housekeeping()
    assert [answer.code for answer in peer.heard()] == [0, 0, 0]
    queue = popped[0].receipt.revive_queue
    records = revive_records(bench, queue)
    assert [record["tag"] for record in records] == ["ck", "bAck"]
    assert records[1]["aol"] == [0, 1, 2]


def revive_records(bench: Bench, queue_id: int) -> list[dict[str, object]]:
    """Wherever the timer keeps them."""
    found = []
    for topic in (REVIVE_TOPIC, "rmq_sys_wheel_timer"):
        answer = bench.peer().pull(topic, queue_id if topic == REVIVE_TOPIC else 0)
        for message in decode_records(bytes(answer.body)) if answer.code == 0 else []:
            record = json.loads(message.body)
            record["tag"] = message.properties["TAGS"]
            record["unique"] = message.properties["UNIQ_KEY"]
            record["deliver"] = message.properties["TIMER_DELIVER_MS"]
            found.append(record)
    return found


def test_records_are_rocketmqs(bench: Bench, peer: Peer) -> None:
    put(bench, "a", "b")
    one, _ = pop(bench, peer)
    peer.ask(ACK, ack_ext(one))
    ck, ack = revive_records(bench, one.receipt.revive_queue)
    now = bench.clock.now_ms()
    assert ck == {
        "bm": 0,
        "bn": "b-a",
        "c": "CG",
        "d": [0, 1],
        "it": 60_000,
        "n": 2,
        "pt": now,
        "q": 0,
        "reviveTime": now + 60_000,
        "ro": 0,
        "so": 0,
        "t": "T",
        "tag": "ck",
        "unique": f"T@0@0@CG@{now}@b-a@ck",
        "deliver": str(now + 59_000),
    }
    assert ack == {
        "ao": 0,
        "bn": "b-a",
        "c": "CG",
        "pt": now,
        "q": 0,
        "so": 0,
        "t": "T",
        "tag": "ack",
        "unique": f"T@0@0@CG@{now}@b-a@ack",
        "deliver": str(now + 60_000),
    }


def test_a_deleted_topic_is_not_revived(bench: Bench) -> None:
    put(bench, "a")
    pop(bench, bench.peer())
    bench.broker.state.topics.remove("T")
    pass_time(bench, INVISIBLE_MS + REVIVAL_MS)
    assert bench.broker.state.topics.get("%RETRY%CG_T") is None


def test_retries_go_with_their_topic(bench: Bench, peer: Peer) -> None:
    put(bench, "a")
    pop(bench, peer)
    pass_time(bench, INVISIBLE_MS + REVIVAL_MS)
    assert bench.broker.state.topics.get("%RETRY%CG_T") is not None
    assert peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"}).code == 0
    assert bench.broker.state.topics.get("%RETRY%CG_T") is None
    assert bench.broker.state.offsets.query("CG", "%RETRY%CG_T", 0) == -1


def test_a_topic_without_messages(bench: Bench) -> None:
    bench.broker.state.topics.put(TopicConfig("Empty", 4, 4, 6))
    assert pop(bench, bench.peer(), topic="Empty") == []
