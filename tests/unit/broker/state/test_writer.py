"""Timed records of the broker's own are stored as their drafts would be."""

from __future__ import annotations

from pathlib import Path

import pytest

from mqspark.broker.state.writer import Draft, StoredPosition
from mqspark.errors import InvalidMessage
from mqspark.message import TIMER_TOPIC
from mqspark.protocol.bodies.topic_bodies import TopicConfig
from mqspark.protocol.dispatch import Refusal
from mqspark.store.timer.timerwheel import SLOTS
from tests.unit.broker_kit import Bench

REVIVE = "rmq_sys_REVIVE_LOG_C"
DAY_MS = 86_400_000


def put_timed(bench: Bench, deliver_ms: int, unique_id: str = "T@1@2@CG@3@b-a@ack") -> StoredPosition:
    now_ms, host = bench.clock.now_ms(), bench.store.store_host
    return bench.broker.state.writer.put_timed(
        REVIVE, 3, b"{}", "ack", unique_id, deliver_ms, now_ms, born_host=host
    )


def put_draft(bench: Bench, deliver_ms: int, unique_id: str = "T@1@2@CG@3@b-a@ack") -> StoredPosition:
    now_ms, host = bench.clock.now_ms(), bench.store.store_host
    properties = {"TAGS": "ack", "UNIQ_KEY": unique_id, "TIMER_DELIVER_MS": str(deliver_ms)}
    return bench.broker.state.writer.put(Draft(REVIVE, 3, b"{}", properties, now_ms, host))


def stored(bench: Bench) -> list[tuple[object, ...]]:
    bench.broker.turn()
    found = []
    for topic, queue_id in ((TIMER_TOPIC, 0), (REVIVE, 3)):
        codes = [code for _, _, code in bench.store.offsets.entries(topic, queue_id, 0, 9)[1]]
        for code, record in zip(codes, bench.records(topic, queue_id), strict=True):
            found.append((topic, code, record.properties, record.body, record.born_host, record.sys_flag))
    return found


def counted(bench: Bench) -> list[object]:
    state = bench.broker.state
    topics = [state.topics.get(name) for name in (TIMER_TOPIC, REVIVE)]
    kinds = [
        (topic.counted, topic.put_bytes, {kind: each.messages for kind, each in topic.kinds.items()})
        for topic in topics
        if topic is not None
    ]
    return [state.stats.put_messages, *kinds]


@pytest.mark.parametrize("ahead_ms", [-5, 0, 1, 999, 60_000, DAY_MS])
@pytest.mark.parametrize("unique_id", ["T@1@2@CG@3@b-a@ack", "T@1@2@Größe@3@b-a@ack", "a\x01b", ""])
def test_a_timed_record_is_what_its_draft_would_be(tmp_path: Path, ahead_ms: int, unique_id: str) -> None:
    made = []
    for number, put in enumerate((put_timed, put_draft)):
        bench = Bench(tmp_path / str(number))
        place = put(bench, bench.clock.now_ms() + ahead_ms, unique_id)
        made.append((place, stored(bench), counted(bench)))
        assert len(made[-1][1]) == 1
        bench.close()
    assert made[0] == made[1]


def test_a_timed_record_needs_no_wheel(bench: Bench) -> None:
    bench.store_config.timer_wheel_enable = False
    for put in (put_timed, put_draft):
        put(bench, bench.clock.now_ms() + 9_000)
    first, second = stored(bench)
    assert first == second
    assert first[0] == REVIVE


def test_what_a_draft_must_not_be_is_refused(bench: Bench) -> None:
    far_ms = bench.clock.now_ms() + bench.store_config.timer_max_delay_sec * 1_000 + 1
    for put in (put_timed, put_draft):
        with pytest.raises(Refusal, match="timer message illegal"):
            put(bench, far_ms)
        with pytest.raises(InvalidMessage, match="0x02"):
            put(bench, bench.clock.now_ms() + 9_000, "a\x02b")
        with pytest.raises(InvalidMessage, match="not valid text"):
            put(bench, bench.clock.now_ms() + 9_000, "\ud800")
    assert stored(bench) == []


def test_a_full_slot_refuses_both(tmp_path: Path) -> None:
    bench = Bench(tmp_path, store_settings={"timer_congest_num_each_slot": 10})
    deliver_ms = bench.clock.now_ms() + 9_000
    tick = -(-deliver_ms // 1_000) - 1
    wheel = bench.broker.timers.files.wheel
    wheel.put(tick, 52, 52, 21)
    assert [wheel.messages(each) for each in (tick, tick + SLOTS, tick + 1)] == [21, 0, 0]
    for put in (put_timed, put_draft):
        with pytest.raises(Refusal, match="flow control"):
            put(bench, deliver_ms)
    wheel.clear(tick)


def test_a_topic_with_a_kind_of_its_own_keeps_it(tmp_path: Path) -> None:
    made = []
    for number, put in enumerate((put_timed, put_draft)):
        bench = Bench(tmp_path / str(number))
        topic = TopicConfig(topic_name=TIMER_TOPIC, topic_filter_type="MULTI_TAG")
        bench.broker.state.topics.put(topic, needed=True)
        put(bench, bench.clock.now_ms() + 9_000)
        made.append(stored(bench))
        bench.close()
    assert made[0] == made[1]
    assert [row[-1] for row in made[0]] == [2]
