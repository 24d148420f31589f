"""Delay levels: diversion, delivery when due and not before, what survives."""

from __future__ import annotations

import gzip
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from mqspark.broker.timer.delays import BATCH_MESSAGES, FILES_AT_ONCE
from mqspark.protocol.bodies.topic_bodies import TopicConfig
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.store.config import DEFAULT_DELAY_LEVELS
from mqspark.store.queue.delaylevels import DelayLevels
from tests.support.store_tools import put
from tests.unit.broker_kit import SEND, Bench, Peer, send_ext

SCHEDULE = "SCHEDULE_TOPIC_XXXX"
LEVELS_MS = DelayLevels(DEFAULT_DELAY_LEVELS).delays_ms
STORE = Path(__file__).parents[3] / "golden" / "store"


def send(peer: Peer, level: int | str, body: bytes = b"x", *, queue_id: int = 0, more: str = "") -> None:
    answer = peer.ask(SEND, send_ext("T", queue_id, f"DELAY\x01{level}\x02TAGS\x01a\x02{more}"), body)
    assert answer.code == 0, answer.remark


def bodies(bench: Bench, queue_id: int = 0) -> list[bytes]:
    return [record.body for record in bench.records("T", queue_id)]


def test_a_delayed_message_waits_in_the_schedule_topic(bench: Bench, peer: Peer) -> None:
    answer = peer.ask(
        SEND, send_ext("T", 2, "DELAY\x013\x02TAGS\x01a\x02KEYS\x01k\x02UNIQ_KEY\x01U\x02"), b"x"
    )
    assert (answer.code, answer.ext["queueId"], answer.ext["queueOffset"]) == (0, "2", "0")
    assert bench.records("T", 2) == []
    (waiting,) = bench.records(SCHEDULE, 2)
    assert waiting.properties == {
        "DELAY": "3",
        "TAGS": "a",
        "KEYS": "k",
        "UNIQ_KEY": "U",
        "CLUSTER": "C",
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
        "REAL_TOPIC": "T",
        "REAL_QID": "2",
    }
    _, ((_, _, tags_code),) = bench.store.offsets.entries(SCHEDULE, 2, 0, 10)
    assert tags_code == waiting.store_timestamp_ms + 10_000


def test_it_is_delivered_when_due_and_not_before(bench: Bench, peer: Peer) -> None:
    send(peer, 2, b"five", queue_id=3, more="KEYS\x01k\x02")
    (waiting,) = bench.records(SCHEDULE, 1)
    bench.run_for(4_999, 200)
    assert bench.records("T", 3) == []
    bench.later(1)
    (delivered,) = bench.records("T", 3)
    assert delivered.store_timestamp_ms == waiting.store_timestamp_ms + 5_000
    for name in (
        "body",
        "properties",
        "flag",
        "sys_flag",
        "born_timestamp_ms",
        "born_host",
        "reconsume_times",
    ):
        assert getattr(delivered, name) == getattr(waiting, name), name
    assert bench.store.reads.get("T", 3, 0, 1, 1000, frozenset({ord("a")})).count == 1
    bench.run_for(10_000)
    assert len(bench.records("T", 3)) == 1


def test_the_delay_begins_when_a_message_comes_also_while_the_disk_is_busy(bench: Bench, peer: Peer) -> None:
    """Others that wait to be written have the store time of the first."""
    peer.give(SEND, send_ext("T", 0, "DELAY\x011\x02"), b"first")
    bench.clock.advance(700)
    peer.give(SEND, send_ext("T", 0, "DELAY\x011\x02"), b"second")
    bench.broker.turn()
    bench.flush()
    bench.run_for(200)
    assert bodies(bench) == []
    bench.run_for(100)
    assert bodies(bench) == [b"first"]
    bench.run_for(600)
    assert bodies(bench) == [b"first"]
    bench.run_for(100)
    assert bodies(bench) == [b"first", b"second"]


def test_the_tick_asks_to_be_called_exactly_when_the_next_one_is_due(bench: Bench) -> None:
    send(bench.peer(), 1)
    bench.clock.advance(930)
    assert bench.broker.tick() == 70


def test_levels_over_the_highest_count_as_the_highest(bench: Bench) -> None:
    send(bench.peer(), 99)
    (waiting,) = bench.records(SCHEDULE, 17)
    assert waiting.properties["DELAY"] == "18"


@pytest.mark.parametrize("level", ["0", "-1"])
def test_levels_that_are_not_positive_delay_nothing(bench: Bench, level: str) -> None:
    send(bench.peer(), level)
    (record,) = bench.records("T")
    assert record.properties["DELAY"] == level


@pytest.mark.parametrize("level", ["x", "1.5", "1_0", "99999999999"])
def test_a_level_that_is_no_number_is_refused(bench: Bench, level: str) -> None:
    answer = bench.peer().ask(SEND, send_ext("T", 0, f"DELAY\x01{level}\x02"), b"x")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "not a delay level" in (answer.remark or "")
    assert bench.records("T") == []


def test_a_delayed_message_may_be_the_first_of_a_batch_topic(bench: Bench, peer: Peer) -> None:
    attributes = {"queue.type": "BatchCQ"}
    bench.broker.state.topics.put(TopicConfig("T", 4, 4, 6, attributes=attributes))
    send(peer, 1)
    bench.run_for(1_000)
    assert peer.ask(SEND, send_ext("T"), b"y").code == 0
    assert bodies(bench) == [b"x", b"y"]
    assert (bench.directory / "batchconsumequeue" / "T").exists()
    assert not (bench.directory / "consumequeue" / "T").exists()


def test_a_batch_cannot_be_delayed(bench: Bench) -> None:
    answer = bench.peer().ask(SEND, send_ext("T", 0, "DELAY\x011\x02", m="true"), b"x")
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert "cannot be delayed" in (answer.remark or "")


def test_order_within_a_level_is_kept_and_each_tick_is_bounded(bench: Bench, peer: Peer) -> None:
    sent = [b"%d" % number for number in range(1000)]
    for body in sent:
        peer.give(SEND, send_ext("T", 0, "DELAY\x011\x02"), body, oneway=True)
    send(peer, 2, b"other")
    bench.broker.turn()
    bench.clock.advance(5_000)
    assert bench.broker.tick() == 0
    first = len(bodies(bench))
    assert 0 < first <= BATCH_MESSAGES
    bench.broker.tick()
    assert b"other" in bodies(bench)  # no level waits for another
    for _ in range(1000 // BATCH_MESSAGES + 2):
        bench.broker.tick()
    assert [body for body in bodies(bench) if body != b"other"] == sent


def test_offsets_are_saved_only_for_what_is_on_the_disk(tmp_path: Path, bench: Bench) -> None:
    send(bench.peer(), 1)
    bench.flush()
    bench.later(1_000)
    assert len(bodies(bench)) == 1
    offsets = bench.broker.services.delays.offsets
    assert offsets.generation == 0
    assert offsets.table == {}
    bench.flush()
    assert offsets.generation == 1
    assert offsets.table == {1: 1}
    bench.close()
    assert (tmp_path / "config" / "delayOffset.json").read_text() == (
        '{\n\t"dataVersion":{\n\t\t"counter":0,\n\t\t"stateVersion":0,\n\t\t"timestamp":1700000000000\n\t},\n'
        '\t"offsetTable":{1:1\n\t}\n}'
    )


@pytest.mark.parametrize("sync", [False, True])
def test_a_restart_delivers_what_waited_and_nothing_twice(tmp_path: Path, sync: bool) -> None:
    bench = Bench(tmp_path, sync=sync)
    peer = bench.peer()
    send(peer, 1, b"one")
    send(peer, 3, b"ten")
    bench.run_for(1_000)
    assert bodies(bench) == [b"one"]
    bench.reopen()
    bench.run_for(8_999)
    assert bodies(bench) == [b"one"]
    bench.run_for(1)
    assert bodies(bench) == [b"one", b"ten"]
    bench.run_for(20_000)
    bench.reopen()
    bench.run_for(20_000)
    assert bodies(bench) == [b"one", b"ten"]


def test_a_crash_loses_nothing(bench: Bench, peer: Peer) -> None:
    send(peer, 1, b"one")
    bench.run_for(2_000)
    bench.run_jobs()
    send(peer, 2, b"five")
    bench.flush()
    bench.crash()
    bench.run_for(6_000)
    assert set(bodies(bench)) == {b"one", b"five"}
    assert bodies(bench).count(b"five") == 1


def test_offsets_outside_the_queue_are_brought_back_into_it(tmp_path: Path, bench: Bench) -> None:
    send(bench.peer(), 1)
    bench.close()
    (tmp_path / "config" / "delayOffset.json").write_text(
        '{"dataVersion":{"counter":7},"offsetTable":{1:9,2:4}}'
    )
    bench.open()
    offsets = bench.broker.services.delays.offsets
    assert offsets.generation == 2
    assert offsets.table == {1: 1, 2: 0}
    send(bench.peer(), 1, b"after")
    bench.run_for(1_000)
    assert bodies(bench) == [b"after"]


def test_a_clock_that_steps_ahead_makes_messages_due(bench: Bench) -> None:
    send(bench.peer(), 18)
    bench.clock.wall_ms += 3 * 3_600_000
    bench.broker.tick()
    assert bodies(bench) == [b"x"]


def test_a_clock_that_steps_back_makes_nothing_early_and_blocks_nothing(bench: Bench, peer: Peer) -> None:
    """They wait a whole delay more, not the hour; what comes after them waits its own delay."""
    send(peer, 3, b"before")
    bench.clock.wall_ms -= 3_600_000
    bench.broker.tick()
    bench.run_for(4_000)
    send(peer, 3, b"after")
    bench.run_for(5_999)
    assert bodies(bench) == []
    bench.run_for(1)
    assert bodies(bench) == [b"before"]
    bench.run_for(3_999)
    assert bodies(bench) == [b"before"]
    bench.run_for(1)
    assert bodies(bench) == [b"before", b"after"]


def test_a_message_whose_way_is_unknown_is_passed_over_with_a_word(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    ways = [
        b"DELAY\x011\x02",
        b"DELAY\x011\x02REAL_TOPIC\x01RMQ_SYS_TRANS_HALF_TOPIC\x02REAL_QID\x010\x02",
        b"DELAY\x011\x02REAL_TOPIC\x01SCHEDULE_TOPIC_XXXX\x02REAL_QID\x010\x02",
        b"DELAY\x01%s\x02REAL_TOPIC\x01T\x02REAL_QID\x01%s\x02" % (b"1" * 5_000, b"1" * 5_000),
    ]
    for properties in ways:
        put(bench.store, SCHEDULE, 0, b"lost", properties)
    send(bench.peer(), 1, b"fine")
    bench.run_for(1_000)
    assert bodies(bench) == [b"fine"]
    assert "cannot be delivered" in caplog.text


def test_a_full_disk_holds_a_level_and_loses_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    send(bench.peer(), 1)
    with monkeypatch.context() as patch:
        patch.setattr(bench.store.condition, "disk_full", "the disk is full")
        bench.store.log.hold()
        bench.clock.advance(1_000)
        assert bench.broker.tick() == 100
        assert bodies(bench) == []
        assert "delay level 1 is blocked at offset 0: the disk is full" in (bench.broker.delay_problem or "")
    bench.run_for(100)
    assert bodies(bench) == [b"x"]
    assert bench.broker.delay_problem is None


def test_the_runtime_info_says_how_far_each_level_is(bench: Bench, peer: Peer) -> None:
    send(peer, 1)
    send(peer, 1)
    send(peer, 5)
    bench.run_for(1_000)
    table = json.loads(bytes(peer.ask(RequestCode.GET_BROKER_RUNTIME_INFO).body))["table"]
    assert table["scheduleMessageOffset_1"] == "2,2"
    assert table["scheduleMessageOffset_5"] == "0,1"
    assert "scheduleMessageOffset_2" not in table


def golden(topic: str) -> dict[str, dict[str, Any]]:
    """Records of a real broker by their first key."""
    with gzip.open(STORE / "kill9.manifest.jsonl.gz", "rt") as lines:
        records = [json.loads(line) for line in lines]
    return {record["keys"]: record for record in records if record["topic"] == topic}


@pytest.mark.parametrize("key", ["delay-0", "delay-1", "delay-2", "delay-3"])
def test_records_are_those_of_a_real_broker(tmp_path: Path, key: str) -> None:
    waiting, delivered = golden(SCHEDULE)[key], golden("GsDelay")[key]
    bench = Bench(tmp_path, broker_cluster_name="GoldenCluster")
    added = ("CLUSTER", "MSG_REGION", "TRACE_ON", "REAL_TOPIC", "REAL_QID")
    sent = "".join(
        f"{name}\x01{value}\x02" for name, value in waiting["properties"].items() if name not in added
    )
    ext = send_ext("GsDelay", int(waiting["properties"]["REAL_QID"]), sent, g=str(waiting["bornTimestamp"]))
    bench.peer().ask(SEND, ext, b"x")
    level = int(waiting["properties"]["DELAY"])
    (ours,) = bench.records(SCHEDULE, level - 1)
    assert ours.properties == waiting["properties"]
    bench.run_for(LEVELS_MS[level - 1], 200)
    (ours,) = bench.records("GsDelay", delivered["queueId"])
    assert ours.properties == delivered["properties"]
    assert (ours.sys_flag, ours.flag, ours.reconsume_times) == (0, 0, 0)
    assert ours.born_timestamp_ms == delivered["bornTimestamp"]


def test_few_queues_get_their_first_file_in_one_tick(bench: Bench) -> None:
    """Directories and files take the kernel a millisecond each."""
    peer, table = bench.peer(), bench.store.table
    for number in range(20):
        peer.give(SEND, send_ext("T", number % 4, "DELAY\x011\x02"), b"x", oneway=True)
        peer.give(SEND, send_ext("U", number % 4, "TIMER_DELAY_MS\x012500\x02"), b"x", oneway=True)
    bench.broker.turn()
    bench.run_for(100, 10)
    bench.clock.advance(3_000)
    made = [table.files_made]
    for _ in range(30):
        bench.broker.tick()
        made.append(table.files_made)
    assert made[-1] - made[0] == 8
    assert max(later - before for before, later in pairwise(made)) == 2 * FILES_AT_ONCE  # levels and timers
