"""Timer messages: never early, at most a tick late, and what survives."""

from __future__ import annotations

import base64
import itertools
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mqspark.broker.state.writer import Draft
from mqspark.broker.timer.timerservice import BATCH_MESSAGES, INTERRUPTED_AT_ONCE
from mqspark.errors import DiskFull
from mqspark.message import TIMER_TOPIC, MessageExt
from mqspark.protocol.codes import ResponseCode
from mqspark.store.timer.timerlog import RECORD_BYTES
from tests.unit.broker_kit import SEND, Bench, Peer, send_ext
from tests.unit.timer_kit import DAY_MS, WHEEL, bodies, recall, send


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path, recall_message_enable=True)


def deliver_time_ms(record: MessageExt) -> int:
    return int(record.properties["TIMER_DELIVER_MS"])


def test_a_timer_message_waits_in_the_wheels_topic(bench: Bench) -> None:
    answer = send(bench, delay_ms=1_500, queue_id=2, more="UNIQ_KEY\x01U\x02KEYS\x01k\x02")
    assert (answer.ext["queueId"], answer.ext["queueOffset"], answer.ext["transactionId"]) == ("2", "0", "U")
    handle = base64.urlsafe_b64decode(answer.ext["recallHandle"]).decode()
    assert handle == "v1 T b-a 1700000001001 U"
    (waiting,) = bench.records(WHEEL)
    assert waiting.properties == {
        "TIMER_DELAY_MS": "1500",
        "TAGS": "a",
        "UNIQ_KEY": "U",
        "KEYS": "k",
        "CLUSTER": "C",
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
        "TIMER_OUT_MS": "1700000001000",
        "REAL_TOPIC": "T",
        "REAL_QID": "2",
    }
    bench.run_for(1_999)
    assert bench.records("T", 2) == []
    bench.run_for(1)
    (delivered,) = bench.records("T", 2)
    assert delivered.properties == waiting.properties | {
        "TIMER_ENQUEUE_MS": "1700000000000",
        "TIMER_DEQUEUE_MS": "1700000002000",
    }
    for name in ("body", "flag", "sys_flag", "born_timestamp_ms", "born_host", "reconsume_times"):
        assert getattr(delivered, name) == getattr(waiting, name), name
    assert bench.store.reads.get("T", 2, 0, 1, 1000, frozenset({ord("a")})).count == 1


@pytest.mark.parametrize(
    ("when", "out_ms"),
    [
        ({"deliver_ms": 1_700_000_010_500}, 1_700_000_010_000),
        ({"deliver_ms": 1_700_000_010_000}, 1_700_000_009_000),
        ({"delay_sec": 3}, 1_700_000_002_000),
        ({"delay_ms": 1}, 1_700_000_000_000),
    ],
)
def test_which_slot_is_whose(bench: Bench, when: dict[str, int], out_ms: int) -> None:
    send(bench, **when)
    (waiting,) = bench.records(WHEEL)
    assert waiting.properties["TIMER_OUT_MS"] == str(out_ms)


def test_seconds_go_before_milliseconds_before_the_time(bench: Bench) -> None:
    send(bench, delay_sec=9, more="TIMER_DELAY_MS\x015000\x02TIMER_DELIVER_MS\x011700000002000\x02")
    send(bench, delay_ms=5_000, more="TIMER_DELIVER_MS\x011700000002000\x02")
    times = [record.properties["TIMER_OUT_MS"] for record in bench.records(WHEEL)]
    assert times == ["1700000008000", "1700000004000"]


def test_a_level_goes_before_timer_properties(bench: Bench) -> None:
    properties = "DELAY\x011\x02TIMER_DELAY_MS\x0177\x02TIMER_DELIVER_MS\x0178\x02TIMER_DELAY_SEC\x0179\x02"
    assert bench.peer().ask(SEND, send_ext("T", 0, properties), b"x").code == 0
    (waiting,) = bench.records("SCHEDULE_TOPIC_XXXX", 0)
    assert not [name for name in waiting.properties if name.startswith("TIMER")]


@pytest.mark.parametrize("when", [{"deliver_ms": 1_700_000_000_000}, {"delay_ms": 0}, {"delay_sec": -5}])
def test_what_is_due_already_goes_its_way_at_once(bench: Bench, when: dict[str, int]) -> None:
    answer = send(bench, **when)
    assert "recallHandle" not in answer.ext
    (record,) = bench.records("T")
    assert "TIMER_OUT_MS" not in record.properties


@pytest.mark.parametrize(
    "properties",
    [
        f"TIMER_DELAY_MS\x01{3 * DAY_MS + 1}\x02",
        "TIMER_DELAY_SEC\x01259201\x02",
        "TIMER_DELIVER_MS\x01soon\x02",
        "TIMER_DELAY_MS\x01\u0663\x02",
        "TIMER_DELAY_MS\x01+-5\x02",
        "TIMER_DELAY_MS\x019999999999999999999\x02",
        "TIMER_DELIVER_MS\x011\x02TIMER_DEL_UNIQKEY\x01U\x02",
    ],
)
def test_what_is_refused(bench: Bench, properties: str) -> None:
    answer = bench.peer().ask(SEND, send_ext("T", 0, properties), b"x")
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert "should not be bigger than the max delay 259200000ms" in (answer.remark or "")
    assert bench.store.log.position == 0


@pytest.mark.parametrize(
    "change",
    [
        {"REAL_TOPIC": WHEEL},
        {"REAL_TOPIC": "SCHEDULE_TOPIC_XXXX"},
        {"REAL_TOPIC": "RMQ_SYS_TRANS_HALF_TOPIC"},
        {"REAL_TOPIC": "RMQ_SYS_TRANS_OP_HALF_TOPIC"},
        {"REAL_QID": "9" * 5_000},
        {"TIMER_DELAY_MS": "9" * 5_000, "REAL_QID": "1"},
        {"TIMER_ROLL_TIMES": "\u00b2", "TIMER_OUT_MS": "1700864000000", "REAL_QID": "1"},
    ],
)
def test_what_rocketmq_let_anyone_put_into_the_wheels_topic_holds_up_nobody(
    bench: Bench, change: dict[str, str]
) -> None:
    properties = {"TIMER_OUT_MS": "1700000001000", "REAL_TOPIC": "T", "REAL_QID": "0", **change}
    now_ms, host = bench.clock.now_ms(), bench.store.store_host
    bench.broker.state.writer.put(Draft(WHEEL, 0, b"strange", properties, now_ms, host))
    bench.broker.turn()
    bench.run_for(5_000)
    send(bench, b"fine", delay_ms=1_000)
    bench.run_for(3_000)
    bench.reopen()
    for _ in range(50):  # hours, until what is far goes round again
        bench.clock.advance(DAY_MS // 24)
        bench.run_for(0)
    assert bodies(bench) == [b"fine"]
    assert bench.records("RMQ_SYS_TRANS_OP_HALF_TOPIC") == []
    assert bench.store.appender.put_count < 10, "something goes round"


def test_a_wheel_that_is_off_refuses(bench: Bench) -> None:
    bench.store_config.timer_wheel_enable = False
    answer = bench.peer().ask(SEND, send_ext("T", 0, "TIMER_DELAY_MS\x0199\x02"), b"x")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "timerWheelEnable is false" in (answer.remark or "")


def test_a_wheel_that_is_off_lets_system_messages_pass(bench: Bench) -> None:
    bench.store_config.timer_wheel_enable = False
    topic = "rmq_sys_REVIVE_LOG_C"
    properties = {"TIMER_DELIVER_MS": "1700000009000"}
    now_ms, host = bench.clock.now_ms(), bench.store.store_host
    bench.broker.state.writer.put(Draft(topic, 0, b"x", properties, now_ms, host))
    bench.broker.turn()
    assert len(bench.records(topic)) == 1


def test_a_broker_that_is_stopping_delivers_nothing(bench: Bench) -> None:
    send(bench, delay_ms=1_000)
    bench.broker.quiesce()
    bench.run_for(5_000)
    assert bodies(bench) == []
    bench.reopen()
    bench.run_for(0)
    assert bodies(bench) == [b"x"]


def test_a_batch_cannot_be_timed(bench: Bench) -> None:
    answer = bench.peer().ask(SEND, send_ext("T", 0, "TIMER_DELAY_MS\x0199\x02", m="true"), b"x")
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL


def test_a_full_slot_refuses_more_and_more(bench: Bench, peer: Peer) -> None:
    bench.store_config.timer_congest_num_each_slot = 10
    codes = []
    for _ in range(60):
        codes.append(peer.ask(SEND, send_ext("T", 0, "TIMER_DELAY_MS\x015500\x02"), b"x").code)
        bench.broker.tick()
    taken = codes.count(0)
    assert 11 <= taken <= 20
    assert set(codes) == {0, ResponseCode.SYSTEM_ERROR}
    assert codes[:11] == [0] * 11


def test_random_times_are_never_early_and_less_than_a_tick_late(bench: Bench) -> None:
    chance = random.Random(5)
    for number in range(300):
        send(bench, b"%d" % number, deliver_ms=bench.clock.now_ms() + chance.randrange(1, 20_000))
        bench.run_for(chance.randrange(30))
    bench.run_for(22_000, 7)
    records = bench.records("T")
    assert len(records) == 300
    for record in records:
        late_ms = record.store_timestamp_ms - deliver_time_ms(record)
        assert 0 <= late_ms <= 1_000 + 7, late_ms


def test_the_date_that_a_message_gets_is_not_before_its_time(tmp_path: Path) -> None:
    """While a sync is under way all that is put gets the date of the first."""
    bench = Bench(tmp_path, sync=True)
    send(bench, deliver_ms=1_700_000_001_000)
    peer = bench.peer()
    peer.give(SEND, send_ext(), b"first")
    bench.broker.turn()
    job = bench.store.pipeline.begin_flush()
    assert job is not None
    bench.clock.advance(990)
    peer.give(SEND, send_ext("T", 1), b"waits for the sync")
    bench.later(15)
    job.run()
    bench.broker.progress(bench.store.pipeline.end_flush(job))
    bench.flush()
    bench.broker.tick()
    bench.flush()
    (record,) = (record for record in bench.records("T") if record.body == b"x")
    assert record.store_timestamp_ms >= 1_700_000_001_000


def test_messages_of_one_slot_come_in_the_order_of_their_arrival_a_bounded_number_a_tick(
    bench: Bench, peer: Peer
) -> None:
    sent = [b"%d" % number for number in range(400)]
    for body in sent:
        peer.give(SEND, send_ext("T", 0, "TIMER_DELAY_MS\x012500\x02"), body, oneway=True)
    bench.broker.turn()
    assert bench.broker.tick() == 0
    for _ in range(400 // BATCH_MESSAGES + 1):
        bench.broker.tick()
    assert bench.store.offsets.max_offset(TIMER_TOPIC, 0) == 400
    assert bench.broker.runtime_info()["timerOffsetBehind"] == "0"
    bench.clock.advance(3_000)
    came = [0]
    for _ in range(2 * 400 // BATCH_MESSAGES + 1):
        bench.broker.tick()
        came.append(len(bodies(bench)))
    assert max(later - before for before, later in itertools.pairwise(came)) <= BATCH_MESSAGES
    assert bodies(bench) == sent


def test_the_first_due_of_a_slot_comes_first(bench: Bench, peer: Peer) -> None:
    start_ms = bench.clock.now_ms()
    after_ms = [2_900, 2_100, 2_500, 2_100, 2_999]
    for number, delay_ms in enumerate(after_ms):
        name = ("TIMER_DELAY_MS", "TIMER_DELIVER_MS")[number % 2]
        value = delay_ms + start_ms * (number % 2)
        peer.give(SEND, send_ext("T", 0, f"{name}\x01{value}\x02"), b"%d" % number, oneway=True)
    peer.give(SEND, send_ext("T", 0, "TIMER_DELAY_SEC\x013\x02"), b"5", oneway=True)
    bench.run_for(4_000)
    assert bodies(bench) == [b"1", b"3", b"2", b"0", b"4", b"5"]


def test_a_slot_that_was_read_ahead_may_still_grow(bench: Bench) -> None:
    start_ms = bench.clock.now_ms()
    for number in range(0, 600, 2):
        send(bench, b"%d" % number, deliver_ms=start_ms + 2_500)
    gone = send(bench, b"gone", deliver_ms=start_ms + 2_100, more="UNIQ_KEY\x01U\x02").ext["recallHandle"]
    bench.run_for(2_000)
    assert bodies(bench) == []
    for number in range(1, 600, 2):
        send(bench, b"%d" % number, deliver_ms=start_ms + 2_400)
    assert recall(bench.peer(), gone).code == 0
    bench.run_for(500)
    send(bench, b"last", deliver_ms=start_ms + 2_999)
    bench.run_for(3_000)
    late, early = range(0, 600, 2), range(1, 600, 2)
    assert bodies(bench) == [*(b"%d" % number for number in (*early, *late)), b"last"]


def test_the_clock_goes_back_when_a_slot_was_read_ahead(bench: Bench) -> None:
    start_ms = bench.clock.now_ms()
    send(bench, b"first", deliver_ms=start_ms + 2_500)
    bench.run_for(2_200)
    bench.clock.wall_ms -= 1_500
    bench.run_for(100)
    send(bench, b"second", deliver_ms=start_ms + 2_600)
    bench.run_for(1_500)
    assert bodies(bench) == []
    bench.run_for(3_000)
    assert bodies(bench) == [b"first", b"second"]


def test_far_times_go_round_the_wheel_more_than_once(bench: Bench) -> None:
    bench.store_config.timer_max_delay_sec = 20 * 86_400
    start_ms = bench.clock.now_ms()
    send(bench, b"near", deliver_ms=start_ms + 2 * DAY_MS + 3_600_500)
    send(bench, b"far", deliver_ms=start_ms + 5 * DAY_MS + 500)
    step_ms = 900_000
    while len(bodies(bench)) < 2 and bench.clock.now_ms() < start_ms + 6 * DAY_MS:
        bench.clock.advance(step_ms)
        bench.run_for(0)
    near, far = bench.records("T")
    for record, rounds in ((near, 1), (far, 2)):
        assert 0 <= record.store_timestamp_ms - deliver_time_ms(record) <= step_ms
        assert int(record.properties["TIMER_ROLL_TIMES"]) == rounds
        assert int(record.properties["TIMER_OUT_MS"]) == deliver_time_ms(record) - 500
    assert len(bench.records(WHEEL)) == 5


@pytest.mark.parametrize("sync", [False, True])
def test_a_restart_loses_nothing_and_repeats_nothing(tmp_path: Path, sync: bool) -> None:
    bench = Bench(tmp_path, sync=sync)
    send(bench, b"one", delay_ms=1_000)
    send(bench, b"ten", delay_ms=10_000)
    bench.run_for(2_000)
    assert bodies(bench) == [b"one"]
    send(bench, b"not yet enqueued", delay_ms=5_000)
    bench.reopen()
    bench.run_for(6_000)
    assert bodies(bench) == [b"one", b"not yet enqueued"]
    bench.reopen()
    bench.clock.advance(3_600_000)
    bench.run_for(1_000)
    bench.reopen()
    bench.run_for(2_000)
    assert bodies(bench) == [b"one", b"not yet enqueued", b"ten"]


@pytest.mark.parametrize("lost", [(), ("timerwheel",), ("timerlog",), ("timerwheel", "timerlog")])
def test_a_crash_loses_nothing(tmp_path: Path, bench: Bench, lost: tuple[str, ...]) -> None:
    """Nor does losing files of ours, as long as the checkpoint is there: the queue knows all."""
    send(bench, b"early", delay_ms=1_000)
    bench.run_for(3_000)
    bench.run_jobs()
    send(bench, b"saved", delay_ms=20_000)
    bench.run_for(1_500)
    bench.run_jobs()
    send(bench, b"enqueued", delay_ms=20_000)
    bench.run_for(100)
    send(bench, b"only stored", delay_ms=20_000)
    bench.flush()
    bench.store.abandon()
    for name in lost:
        for path in [tmp_path / name, *(tmp_path / name).glob("*")]:
            if path.is_file():
                path.unlink()
    bench.open()
    bench.run_for(25_000)
    assert bodies(bench) == [b"early", b"saved", b"enqueued", b"only stored"]


@pytest.mark.parametrize("kill", [False, True])
def test_an_older_wheel_loses_nothing(tmp_path: Path, bench: Bench, kill: bool) -> None:
    """The file system has given back an older state of one file."""
    send(bench, b"early", delay_ms=4_000)
    bench.run_for(1_500)
    bench.run_jobs()
    older = (tmp_path / "timerwheel").read_bytes()
    bench.run_for(5_000)
    send(bench, b"waits", delay_ms=20_000)
    bench.run_for(1_500)
    bench.run_jobs()
    if kill:
        bench.store.abandon()
    else:
        bench.close()
    (tmp_path / "timerwheel").write_bytes(older)
    bench.open()
    bench.run_for(25_000)
    assert bodies(bench) == [b"early", b"waits"]
    assert [damage.kind for damage in bench.store.damages.found] == ["timer.wheel"]


def test_without_any_timer_file_everything_comes_that_did_not_come_before(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    send(bench, b"waits", delay_ms=20_000)
    bench.run_for(2_000)
    bench.close()
    (tmp_path / "config" / "timercheck").unlink()
    (tmp_path / "timerwheel").unlink()
    for path in (tmp_path / "timerlog").iterdir():
        path.unlink()
    bench.open()
    bench.run_for(20_000)
    assert bodies(bench) == [b"waits"]


def test_a_delivery_counts_when_it_is_on_the_disk(bench: Bench) -> None:
    send(bench, delay_ms=1_000)
    bench.run_for(500)
    bench.run_jobs()
    bench.later(2_000)
    assert len(bodies(bench)) == 1
    bench.run_jobs()  # before any flush
    checkpoint = bench.broker.timers.files.checkpoint
    assert checkpoint.read_time_ms <= 1_700_000_000_000
    bench.flush()
    bench.clock.advance(1_000)
    bench.run_jobs()
    assert bench.broker.timers.files.checkpoint.read_time_ms > 1_700_000_000_000


@pytest.mark.slow("thousands of steps; the clock that goes back by ticks is the fast twin")
def test_clock_steps(bench: Bench) -> None:
    """Ahead: what is due comes. Back: nothing comes early, new times count by the new clock, nothing twice."""
    send(bench, b"a", delay_ms=3_600_000)
    bench.run_for(1_000)
    bench.clock.wall_ms += 2 * 3_600_000
    bench.run_for(0)
    assert bodies(bench) == [b"a"]
    bench.clock.wall_ms -= 2 * 3_600_000 - 500
    send(bench, b"b", delay_ms=5_000)
    send(bench, b"c", delay_ms=3_600_000)
    bench.run_for(4_900)
    assert bodies(bench) == [b"a"]
    bench.run_for(1_200)
    assert bodies(bench) == [b"a", b"b"]
    bench.run_for(3_600_000, 5_000)
    assert bodies(bench) == [b"a", b"b", b"c"]


def tick_until_some(bench: Bench) -> None:
    """The first ticks read the chain of a slot."""
    while not bodies(bench):
        bench.broker.tick()


END_OF_BROKER = pytest.mark.parametrize(
    "end", [Bench.reopen, Bench.crash, None], ids=["stop", "kill", "none"]
)


@END_OF_BROKER
def test_what_was_delivered_does_not_come_again_when_the_clock_has_gone_back(
    bench: Bench, end: Callable[[Bench], None] | None
) -> None:
    send(bench, b"before", delay_ms=900)
    bench.run_for(2_350, 20)
    bench.run_jobs()
    bench.clock.wall_ms -= 1_500
    send(bench, b"after", delay_ms=1_200)
    bench.run_for(0)
    bench.run_jobs()
    if end is not None:
        end(bench)
    bench.run_for(5_000)
    # What has been delivered when a checkpoint was saved does not come again after a kill either.
    assert bodies(bench) == [b"before", b"after"]


@pytest.mark.parametrize("down_ms", [0, 10_000])
@pytest.mark.parametrize("saved", [False, True])
def test_what_came_when_the_clock_had_gone_back_outlives_a_kill(
    bench: Bench, saved: bool, down_ms: int
) -> None:
    send(bench, b"waits", delay_ms=30_000)
    bench.run_for(5_200)
    bench.run_jobs()
    assert bench.broker.timers.files.checkpoint.read_time_ms >= 1_700_000_004_000
    bench.clock.wall_ms -= 2_500
    send(bench, b"back", delay_ms=1_000)
    bench.run_for(100)
    if saved:
        bench.clock.advance(1_000)
        bench.run_jobs()
    bench.crash()
    bench.clock.advance(down_ms)
    bench.run_for(4_000)
    assert bodies(bench) == [b"back"]
    bench.run_for(30_000)
    assert bodies(bench) == [b"back", b"waits"]


def half_deliver(bench: Bench, count: int = 150) -> list[bytes]:
    """A slot of so many messages, due in 2.5 s, whose delivery has begun 0.05 s after it is over; all of them."""
    peer = bench.peer()
    sent = [b"%d" % number for number in range(count)]
    for body in sent:
        peer.give(SEND, send_ext("T", 0, "TIMER_DELAY_MS\x012500\x02"), body, oneway=True)
    bench.run_for(50, 10)
    bench.clock.advance(3_000)
    tick_until_some(bench)
    assert 0 < len(bodies(bench)) < count
    return sent


def test_a_stop_in_the_middle_of_a_slot_repeats_nothing(bench: Bench) -> None:
    sent = half_deliver(bench)
    gone = send(bench, b"next", delay_ms=5_000)
    assert gone.code == 0
    for _ in range(3):
        before = len(bodies(bench))
        bench.reopen()
        assert len(bodies(bench)) == before
        while len(bodies(bench)) == before:
            bench.broker.tick()
    bench.run_for(10_000)
    assert bodies(bench) == [*sent, b"next"]
    assert bench.broker.timers.metrics.counts().get("T", 0) == 0


@END_OF_BROKER
def test_the_clock_goes_back_by_ticks_while_a_slot_is_delivered(
    bench: Bench, end: Callable[[Bench], None] | None
) -> None:
    sent = half_deliver(bench)
    begun = len(bodies(bench))
    start_ms = bench.clock.wall_ms = 1_700_000_000_500
    send(bench, b"same slot", delay_ms=2_200)
    send(bench, b"earlier slot", delay_ms=900)
    bench.run_for(100)
    if end is not None:
        end(bench)
    bench.run_for(start_ms + 1_490 - bench.clock.wall_ms, 10)
    assert len(bodies(bench)) == begun
    bench.run_for(100)
    assert bodies(bench)[begun:] == [b"earlier slot"]
    bench.run_for(3_000)
    counts = Counter(bodies(bench))
    assert set(counts) == {*sent, b"same slot", b"earlier slot"}
    if end is not Bench.crash:
        assert set(counts.values()) == {1}
        assert [body for body in bodies(bench) if body.isdigit()] == sent
        assert bench.broker.timers.metrics.counts().get("T", 0) == 0


@END_OF_BROKER
@pytest.mark.parametrize("ahead_again", [False, True])
def test_a_slot_that_is_interrupted_is_put_back_in_steps(
    bench: Bench, end: Callable[[Bench], None] | None, ahead_again: bool
) -> None:
    sent = half_deliver(bench)
    begun = len(bodies(bench))
    log, now_ms = bench.broker.timers.files.log, bench.clock.wall_ms
    bench.clock.wall_ms = 1_700_000_000_500
    for _ in range(2):
        before = log.position
        assert bench.broker.timers.tick() == 0
        assert log.position - before == INTERRUPTED_AT_ONCE * RECORD_BYTES
    assert bench.broker.timers.jobs() == []  # nothing is saved in the middle of it
    if ahead_again:
        bench.clock.wall_ms = now_ms
    else:
        bench.run_for(100)
        assert len(bodies(bench)) == begun
    if end is not None:
        end(bench)
    bench.run_for(10_000)
    counts = Counter(bodies(bench))
    assert set(counts) == set(sent)
    if end is not Bench.crash:
        assert bodies(bench) == sent
        assert bench.broker.timers.metrics.counts().get("T", 0) == 0


@END_OF_BROKER
@pytest.mark.parametrize("flushed", [False, True])
def test_a_slot_gets_more_while_its_delivery_is_not_on_the_disk(
    bench: Bench, flushed: bool, end: Callable[[Bench], None] | None
) -> None:
    send(bench, b"a", deliver_ms=1_700_000_001_700)
    bench.run_for(1_000)
    bench.later(1_000)
    assert bodies(bench) == [b"a"]
    assert bench.store.log.durable < bench.store.log.position
    bench.clock.wall_ms -= 500
    send(bench, b"b", deliver_ms=1_700_000_001_800)
    bench.broker.tick()
    if flushed:
        bench.flush()
        bench.broker.tick()
    send(bench, b"c", deliver_ms=1_700_000_001_900)
    bench.broker.tick()
    bench.run_jobs()
    if end is not None:
        end(bench)
    bench.run_for(3_000)
    counts = Counter(bodies(bench))
    assert set(counts) == {b"a", b"b", b"c"}
    if end is not Bench.crash:
        assert set(counts.values()) == {1}
    bench.run_for(3_000)
    assert bench.broker.timers.files.wheel.next_used(1, 1_700_001_000) is None


def test_a_power_cut_while_a_slot_gets_more_loses_nothing(tmp_path: Path, bench: Bench) -> None:
    """The checkpoint and the wheel are saved, the delivery is not."""
    send(bench, b"a", deliver_ms=1_700_000_001_700)
    bench.run_for(1_000)
    written = bench.store.log.position
    bench.later(1_000)
    assert bodies(bench) == [b"a"]
    bench.clock.wall_ms -= 500
    end = bench.store.log.position
    send(bench, b"b", deliver_ms=1_700_000_001_800)
    bench.broker.tick()
    bench.run_jobs()
    bench.store.abandon()
    (log,) = (path for path in (tmp_path / "commitlog").iterdir())
    with log.open("r+b") as file:
        file.seek(written)
        file.write(bytes(end - written))
    bench.open()
    bench.run_for(3_000)
    assert b"a" in bodies(bench)


def test_what_is_taken_back_while_the_slot_waits_again_is_not_delivered(bench: Bench) -> None:
    start_ms = bench.clock.wall_ms
    handles = [
        send(bench, b"%d" % number, deliver_ms=start_ms + 2_500, more=f"UNIQ_KEY\x01U{number}\x02").ext[
            "recallHandle"
        ]
        for number in range(150)
    ]
    assert recall(bench.peer(), handles[137]).code == 0
    bench.run_for(100, 10)
    bench.clock.advance(3_000)
    tick_until_some(bench)
    begun = len(bodies(bench))
    assert 0 < begun < 125
    bench.clock.wall_ms -= 2_000
    bench.run_for(0)
    for number in (0, 143):  # one is gone already
        assert recall(bench.peer(), handles[number]).code == 0
    bench.run_for(100)
    bench.reopen()
    bench.run_for(4_000)
    assert [int(body) for body in bodies(bench)] == [
        number for number in range(150) if number not in (137, 143)
    ]
    assert bench.broker.timers.metrics.counts().get("T", 0) == 0


def test_a_full_disk_and_a_stop_repeat_nothing(bench: Bench) -> None:
    send(bench, b"a", delay_ms=1_500)
    bench.run_for(500)
    send(bench, b"late", delay_ms=100)
    send(bench, b"b", delay_ms=1_300)
    bench.clock.advance(2_000)
    put, count = bench.broker.state.writer.relay, itertools.count()

    def full(*args: Any) -> Any:
        if next(count):
            raise DiskFull("the disk is full")
        return put(*args)

    bench.broker.state.writer.relay = full  # type: ignore[method-assign]
    bench.broker.tick()
    assert len(bodies(bench)) == 1
    bench.reopen()
    bench.run_for(1_000)
    assert sorted(bodies(bench)) == [b"a", b"b", b"late"]


def test_a_full_disk_holds_timers_and_loses_none(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    send(bench, b"a", delay_ms=1_000)
    send(bench, b"b", delay_ms=1_000)
    with monkeypatch.context() as patch:
        bench.run_for(500)
        patch.setattr(bench.store.condition, "disk_full", "the disk is full")
        bench.store.log.hold()
        bench.run_for(2_000)
        assert bodies(bench) == []
        assert bench.broker.delay_problem == "timer messages are blocked: the disk is full"
    bench.run_for(100)
    assert bodies(bench) == [b"a", b"b"]
    assert bench.broker.delay_problem is None


def test_a_timer_log_that_cannot_be_written_waits_for_a_restart(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(
            bench.broker.timers.files.log,
            "write",
            lambda: (_ for _ in ()).throw(OSError("input/output error")),
        )
        send(bench, delay_ms=1_000)
        bench.run_for(3_000)
        assert bodies(bench) == []
        assert "wait for a restart" in (bench.broker.delay_problem or "")
        refused = bench.peer().ask(SEND, send_ext("T", 0, "TIMER_DELAY_MS\x011000\x02"), b"after")
        assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
    bench.crash()
    bench.run_for(3_000)
    assert bodies(bench) == [b"x"]
