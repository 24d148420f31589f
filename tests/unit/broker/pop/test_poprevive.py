"""Reviving: records of other makes and out of order, damage, a full disk, much at once."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from mqspark.broker.pop import revive
from mqspark.broker.pop.revive import READS_A_TICK, REVIVES_A_TICK, PopRevival
from mqspark.broker.service import READ_MESSAGES
from mqspark.broker.state.writer import StoredPosition
from mqspark.broker.tables.topics import copy_config
from mqspark.broker.timer.timerservice import TimerService
from mqspark.errors import DiskFull, InvalidMessage
from mqspark.message import encode_properties
from mqspark.protocol.bodies.topic_bodies import SubscriptionGroupConfig
from mqspark.protocol.command import Command
from mqspark.record.batchitems import encode_items
from mqspark.record.record import Parts, parts_at
from tests.support.invariants import validate
from tests.support.store_tools import put as put_stored
from tests.unit.broker.test_queues import batch_topic
from tests.unit.broker_kit import SEND, Bench, send_ext
from tests.unit.pop_kit import ACK, CHANGE, INVISIBLE_MS, POP, ack_ext, pass_time, pop, pop_ext, put

REVIVE_TOPIC = "rmq_sys_REVIVE_LOG_C"
REVIVAL_MS = 8_000
HOST = b"\x7f\x00\x00\x01\x00\x00\x00\x01"


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    bench = Bench(tmp_path)
    put(bench, *"abc")
    # The group has consumed all of it, so that only revival brings anything back.
    bench.broker.state.subscriptions.put(SubscriptionGroupConfig(group_name="CG"))
    bench.broker.state.offsets.commit("CG", "T", 0, 3)
    return bench


def put_record(
    bench: Bench,
    tag: str,
    body: dict[str, object] | bytes,
    *,
    deliver_ms: int | None = None,
    queue_id: int = 3,
) -> None:
    """Into the revive topic itself, as the timer does when it is due."""
    due_ms = bench.clock.now_ms() if deliver_ms is None else deliver_ms
    properties = encode_properties(
        {"TAGS": tag, "TIMER_DELIVER_MS": str(due_ms), "TIMER_OUT_MS": str(due_ms)}
    )
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    put_stored(
        bench.store,
        REVIVE_TOPIC,
        queue_id,
        data,
        properties,
        born_timestamp_ms=bench.clock.now_ms(),
        born_host=HOST,
    )
    bench.broker.turn()


def check_point(bench: Bench, **more: object) -> dict[str, object]:
    """A check point of all three messages, popped a minute ago."""
    return {
        "bm": 0,
        "bn": "b-a",
        "c": "CG",
        "d": [0, 1, 2],
        "it": 60_000,
        "n": 3,
        "pt": bench.clock.now_ms() - 59_000,
        "q": 0,
        "reviveTime": bench.clock.now_ms() + 1_000,
        "ro": 0,
        "so": 0,
        "t": "T",
        **more,
    }


def ack(bench: Bench, point: dict[str, object], offset: int, **more: object) -> dict[str, object]:
    return {"ao": offset, **{name: point[name] for name in ("bn", "c", "pt", "q", "so", "t")}, **more}


def revived(bench: Bench) -> str:
    pass_time(bench, REVIVAL_MS)
    return "".join(sorted(one.body.decode() for one in pop(bench, bench.peer())))


def test_a_check_point_of_another_broker_process(bench: Bench) -> None:
    put_record(bench, "ck", check_point(bench))
    assert revived(bench) == "abc"
    assert revived(bench) == ""


def test_a_value_with_the_mark_of_values_is_revived(bench: Bench) -> None:
    bench.peer().ask(SEND, send_ext("T", 0, "odd\x01a\x01b\x02"), b"d")
    (one,) = pop(bench, bench.peer())
    pass_time(bench, INVISIBLE_MS + REVIVAL_MS)
    (again,) = pop(bench, bench.peer())
    assert again.body == one.body == b"d"
    assert again.message.properties["odd"] == one.message.properties["odd"] == "a\x01b"


def test_acknowledged_bits_in_the_check_point_count(bench: Bench) -> None:
    put_record(bench, "ck", check_point(bench, bm=0b101))
    assert revived(bench) == "b"


def test_the_oldest_check_points_name_no_distances(bench: Bench) -> None:
    point = check_point(bench, n=2)
    del point["d"]
    put_record(bench, "ck", point)
    assert revived(bench) == "ab"


def test_acknowledgements_of_all_makes(bench: Bench) -> None:
    point = check_point(bench)
    put_record(bench, "ck", point)
    put_record(bench, "ack", ack(bench, point, 0))
    put_record(
        bench,
        "ack",
        {
            "ackOffset": 2,
            "startOffset": 0,
            "consumerGroup": "CG",
            "topic": "T",
            "queueId": 0,
            "popTime": point["pt"],
        },
    )
    assert revived(bench) == "b"


def test_acknowledgements_without_a_broker_name_are_of_this_one(bench: Bench) -> None:
    point = check_point(bench)
    put_record(bench, "ck", point)
    batch = ack(bench, point, -1, aol=[0, 1])
    del batch["bn"]
    put_record(bench, "bAck", batch)
    assert revived(bench) == "c"


def test_an_acknowledgement_may_come_first(bench: Bench) -> None:
    point = check_point(bench)
    put_record(bench, "ack", ack(bench, point, 1))
    put_record(bench, "ck", point)
    assert revived(bench) == "ac"


@pytest.mark.parametrize("sync", [False, True])
def test_an_acknowledgement_that_is_late_counts(tmp_path: Path, sync: bool) -> None:
    """The broker stood still: what was due before waits in the timer, and what comes now is due at once."""
    bench = Bench(tmp_path, sync=sync, revive_queue_num=1)
    put(bench, *"ab")
    peer = bench.peer()
    (first,) = pop(bench, peer, maxMsgNums="1", invisibleTime="1000")
    (second,) = pop(bench, peer, maxMsgNums="1", invisibleTime="20000")
    assert peer.ask(ACK, ack_ext(first)).code == 0
    bench.clock.advance(90_000)
    assert peer.ask(ACK, ack_ext(second)).code == 0
    assert revived(bench) == ""


def test_acknowledgements_that_are_late_count_when_the_clock_has_gone_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_idle = True
    monkeypatch.setattr(TimerService, "is_idle", lambda timers: is_idle)
    bench = Bench(tmp_path)
    put(bench, *"abc")
    bench.broker.state.subscriptions.put(SubscriptionGroupConfig(group_name="CG"))
    bench.broker.state.offsets.commit("CG", "T", 0, 3)
    pass_time(bench, REVIVAL_MS)
    bench.clock.wall_ms -= 3_600_000
    bench.housekeeping()
    is_idle = False
    point = check_point(bench)
    put_record(bench, "ck", point)
    assert revived(bench) == ""  # nothing says that what was due before has come
    put_record(bench, "ack", ack(bench, point, -1, aol=[0, 2]))
    is_idle = True
    assert revived(bench) == "b"


def test_a_changed_time_begins_now_when_the_clock_has_gone_back(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    put(bench, "a")
    peer = bench.peer()
    (one,) = pop(bench, peer)
    bench.clock.wall_ms -= 3_600_000
    ext = ack_ext(one) | {"invisibleTime": "10000"}
    changed = peer.ask(CHANGE, ext)
    assert changed.code == 0
    assert int(changed.ext["popTime"]) == bench.clock.now_ms()
    pass_time(bench, 10_000 + REVIVAL_MS)
    (again,) = pop(bench, peer)
    assert again.body == b"a"
    assert peer.ask(ACK, ack_ext(again)).code == 0
    pass_time(bench, 3_600_000 + INVISIBLE_MS + REVIVAL_MS, 60_000)
    assert pop(bench, peer) == []


def test_early_acknowledgements_are_forgotten_when_the_clock_has_gone_back(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(revive, "MAX_EARLY_ACKS", 1)
    pass_time(bench, REVIVAL_MS)
    put_record(bench, "ack", ack(bench, check_point(bench), 0))
    pass_time(bench, 500)
    bench.clock.wall_ms -= 3_600_000
    pass_time(bench, REVIVAL_MS)
    point = check_point(bench)
    put_record(bench, "ack", ack(bench, point, 1))
    pass_time(bench, 500)
    put_record(bench, "ck", point)
    assert revived(bench) == "ac"


def test_acknowledgements_of_others_change_nothing(bench: Bench) -> None:
    point = check_point(bench)
    put_record(bench, "ck", point)
    put_record(bench, "ack", ack(bench, point, 1, c="another"))
    put_record(bench, "ack", ack(bench, point, 1, pt=5))
    put_record(bench, "ack", ack(bench, point, 77))
    assert revived(bench) == "abc"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"\xff\xff",
        b"[]",
        b'{"t":"T"}',
        b'{"n":-1,"t":"T","c":"CG"}',
        b'{"n":1000,"t":"T","c":"CG"}',
    ],
)
def test_what_cannot_be_read_is_passed_over(bench: Bench, body: bytes) -> None:
    put_record(bench, "ck", body or b" ")
    put_record(bench, "ack", body or b" ")
    put_record(bench, "ck", check_point(bench))
    assert revived(bench) == "abc"


@pytest.mark.parametrize("count", ["many", "\u00b2", "9" * 5_000])
def test_a_count_of_copies_that_is_none_is_0(bench: Bench, count: str) -> None:
    put_record(bench, "ck", check_point(bench, rp=count))
    assert revived(bench) == "abc"


def test_messages_that_are_gone_are_done_with(bench: Bench) -> None:
    put_record(bench, "ck", check_point(bench, d=[0, 500, 2]))
    assert revived(bench) == "ac"
    bench.flush()
    assert bench.broker.state.offsets.query("CID_RMQ_SYS_REVIVE_GROUP", REVIVE_TOPIC, 3) == 0


def test_a_full_disk_delays_and_doubles_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    relay = bench.broker.state.writer.relay
    is_full = True
    copied = 0

    def stubborn(record: Parts, topic: str, queue_id: int, properties: bytes) -> StoredPosition:
        nonlocal copied
        if topic.startswith("%RETRY%"):
            copied += 1
            if is_full and copied > 2:
                raise DiskFull("no room")
        return relay(record, topic, queue_id, properties)

    monkeypatch.setattr(bench.broker.state.writer, "relay", stubborn)
    put_record(bench, "ck", check_point(bench))
    pass_time(bench, REVIVAL_MS)
    offsets = bench.broker.state.offsets
    assert offsets.query("CID_RMQ_SYS_REVIVE_GROUP", REVIVE_TOPIC, 3) == -1
    is_full = False
    assert revived(bench) == "abc"
    bench.flush()
    assert offsets.query("CID_RMQ_SYS_REVIVE_GROUP", REVIVE_TOPIC, 3) == 0


def test_a_message_that_cannot_be_copied_is_tried_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    relay = bench.broker.state.writer.relay
    fails = 2

    def failing(record: Parts, topic: str, queue_id: int, properties: bytes) -> StoredPosition:
        nonlocal fails
        if topic.startswith("%RETRY%") and bytes(record.body) == b"b" and fails:
            fails -= 1
            raise InvalidMessage("not today", field="body")
        return relay(record, topic, queue_id, properties)

    monkeypatch.setattr(bench.broker.state.writer, "relay", failing)
    put_record(bench, "ck", check_point(bench))
    assert revived(bench) == "ac"
    pass_time(bench, 10_000 + REVIVAL_MS)
    assert fails == 0
    pass_time(bench, 20_000 + REVIVAL_MS)
    assert revived(bench) == "b"


def test_a_count_that_is_full_stays_full(bench: Bench) -> None:
    most = 2**31 - 1
    assert bench.peer().ask(SEND, send_ext(j=str(most)), b"often").code == 0
    pop(bench, bench.peer(), invisibleTime="2000")
    pass_time(bench, 2_000 + REVIVAL_MS)
    (one,) = pop(bench, bench.peer())
    assert (one.body, one.message.reconsume_times) == (b"often", most)


def test_a_restart_in_the_middle(bench: Bench) -> None:
    bench.clock.advance(bench.config.flush_consumer_offset_interval)
    bench.run_jobs()
    point = check_point(bench)
    put_record(bench, "ck", point)
    pass_time(bench, 1_000)
    bench.crash()
    put_record(bench, "ack", ack(bench, point, 1))
    assert revived(bench) == "ac"


def test_much_at_once_is_done_in_steps(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    count = 3 * REVIVES_A_TICK
    put(bench, *(str(number) for number in range(count)))
    peer = bench.peer()
    held = 0
    while popped := pop(bench, peer):
        held += len(popped)
    assert held == count
    pass_time(bench, INVISIBLE_MS + REVIVAL_MS, 1_000)
    back: list[str] = []
    while popped := pop(bench, peer):
        back += [one.body.decode() for one in popped]
        for one in popped:
            peer.give(ACK, ack_ext(one))
        bench.broker.turn()
        peer.heard()
    assert sorted(map(int, back)) == list(range(count))


class BatchRevival:
    """An inner batch that the group popped and does not acknowledge."""

    def __init__(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch, *items: tuple[int, bytes, bytes], start: int = 0
    ) -> None:
        self.bench = bench
        self.ticks: list[int] = []
        """The copies of each tick that made any."""
        self.relays = 0
        tick = PopRevival.tick

        def counted(revival: PopRevival) -> int:
            before = self.relays
            wait_ms = tick(revival)
            if self.relays > before:
                self.ticks.append(self.relays - before)
            return wait_ms

        monkeypatch.setattr(PopRevival, "tick", counted)
        peer = bench.peer()
        batch_topic(peer)
        assert peer.ask(SEND, send_ext("B", m="true"), encode_items(items)).code == 0
        bench.broker.state.offsets.commit("CG", "B", 0, start)
        bench.flush()
        assert self.pop().code == 0
        self.watch()

    def watch(self) -> None:
        """After each start."""
        writer = self.bench.broker.state.writer
        relay = writer.relay

        def counted(record: Parts, topic: str, queue_id: int, properties: bytes) -> StoredPosition:
            stored = relay(record, topic, queue_id, properties)
            self.relays += topic.startswith("%RETRY%")
            return stored

        writer.relay = counted  # type: ignore[method-assign]

    def pop(self) -> Command:
        return self.bench.peer().ask(POP, pop_ext(self.bench, "B"))

    def until_copied(self, most: int) -> None:
        begun = self.relays
        for _ in range(1_000):
            if self.relays >= most:
                return
            self.bench.later(0 if self.relays > begun else 500)
            self.bench.flush()
        raise AssertionError(f"{self.relays} of {most} messages came back")

    def copied(self) -> list[str]:
        self.bench.flush()
        return [record.body.decode() for record in self.bench.records("%RETRY%CG_B")]


def numbered(count: int) -> list[tuple[int, bytes, bytes]]:
    return [(0, b"%d" % number, b"UNIQ_KEY\x01%d\x02" % number) for number in range(count)]


def test_a_large_inner_batch_is_revived_in_steps(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    count = 2 * REVIVES_A_TICK + REVIVES_A_TICK // 2
    revival = BatchRevival(bench, monkeypatch, *numbered(count))
    revival.until_copied(count)
    bench.run_for(5_000, 1_000)
    assert revival.ticks == [REVIVES_A_TICK, REVIVES_A_TICK, REVIVES_A_TICK // 2]
    assert revival.copied() == [str(number) for number in range(count)]
    validate(bench.broker)
    bench.broker.state.offsets.commit("CG", "B", 0, count)
    bench.run_jobs()
    bench.crash()
    pass_time(bench, REVIVAL_MS)
    assert len(bench.records("%RETRY%CG_B")) == count


def test_a_crash_in_an_inner_batch_loses_nothing_and_doubles_what_was_copied(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 2 * REVIVES_A_TICK
    revival = BatchRevival(bench, monkeypatch, *numbered(count))
    bench.run_jobs()
    revival.until_copied(REVIVES_A_TICK)
    assert len(revival.copied()) == REVIVES_A_TICK
    bench.crash()
    revival.watch()
    revival.until_copied(REVIVES_A_TICK + count)
    bench.run_for(5_000, 1_000)
    first = [str(number) for number in range(REVIVES_A_TICK)]
    assert revival.copied() == first + [str(number) for number in range(count)]


def test_a_full_disk_in_an_inner_batch_doubles_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    revival = BatchRevival(bench, monkeypatch, *numbered(300))
    relay, is_full = bench.broker.state.writer.relay, True

    def stubborn(record: Parts, topic: str, queue_id: int, properties: bytes) -> StoredPosition:
        if is_full and revival.relays >= 50:
            raise DiskFull("no room")
        return relay(record, topic, queue_id, properties)

    monkeypatch.setattr(bench.broker.state.writer, "relay", stubborn)
    revival.until_copied(50)
    bench.run_for(2_000)
    is_full = False
    revival.until_copied(300)
    bench.run_for(5_000, 1_000)
    assert revival.copied() == [str(number) for number in range(300)]


@pytest.mark.parametrize("wrong", [0, 2])
def test_a_message_of_an_inner_batch_that_cannot_be_copied_repeats_no_other(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, wrong: int
) -> None:
    """Its properties take all the room that there is, so that no copy can have one more. It is tried again."""
    items = numbered(4)
    items[wrong] = (0, b"full", b"K\x01" + b"v" * (32_767 - 2))
    revival = BatchRevival(bench, monkeypatch, *items)
    pass_time(bench, INVISIBLE_MS + REVIVAL_MS, 1_000)
    for wait_ms in (10_000, 20_000, 30_000):
        pass_time(bench, wait_ms + REVIVAL_MS, 1_000)
    assert revival.copied() == ([] if wrong == 0 else ["0", "1", "3"])


def test_a_message_of_an_inner_batch_that_is_tried_again_comes_alone(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    revival = BatchRevival(bench, monkeypatch, *numbered(4))
    relay, fails = bench.broker.state.writer.relay, 1

    def failing(record: Parts, topic: str, queue_id: int, properties: bytes) -> StoredPosition:
        nonlocal fails
        if fails and bytes(record.body) == b"2":
            fails -= 1
            raise InvalidMessage("not today", field="body")
        return relay(record, topic, queue_id, properties)

    monkeypatch.setattr(bench.broker.state.writer, "relay", failing)
    pass_time(bench, INVISIBLE_MS + REVIVAL_MS, 1_000)
    assert revival.copied() == ["0", "1", "3"]
    pass_time(bench, 10_000 + REVIVAL_MS, 1_000)
    assert revival.copied() == ["0", "1", "3", "2"]


def test_an_inner_batch_that_was_popped_from_within_comes_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client may commit any offset; a read there returns the whole batch."""
    revival = BatchRevival(bench, monkeypatch, *numbered(3), start=2)
    pass_time(bench, INVISIBLE_MS + REVIVAL_MS, 1_000)
    assert revival.copied() == ["0", "1", "2"]


def test_a_check_point_that_names_a_message_twice_brings_it_back_once(bench: Bench) -> None:
    put_record(bench, "ck", check_point(bench, d=[0, 0, 1], n=3))
    assert revived(bench) == "ab"


def test_one_tick_reads_and_revives_no_more_when_more_queues_have_something_and_none_starves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path)
    put(bench, "a")
    point = json.dumps({**check_point(bench), "d": [0], "n": 1}).encode()
    queues, records = range(bench.config.revive_queue_num), 2 * READS_A_TICK * READ_MESSAGES
    for queue_id in queues:
        for _ in range(records):
            put_stored(
                bench.store,
                REVIVE_TOPIC,
                queue_id,
                point,
                b"TAGS\x01ck\x02",
                born_timestamp_ms=bench.clock.now_ms(),
                born_host=HOST,
            )
    bench.broker.turn()
    read: Counter[int] = Counter()

    def count(stored: memoryview, begin: int, end: int) -> Parts | None:
        record = parts_at(stored, begin, end)
        if record is not None and record.topic == REVIVE_TOPIC:
            read[record.queue_id] += 1
        return record

    monkeypatch.setattr(revive, "parts_at", count)
    for tick in range(1, len(queues) + 1):
        before = read.total()
        assert bench.broker.tick() == 0
        assert 0 < read.total() - before <= READS_A_TICK * READ_MESSAGES
        assert len(read) == tick
    while bench.broker.tick() == 0:
        pass
    assert read == dict.fromkeys(queues, records)


def test_a_log_that_lost_its_end_loses_no_new_check_point(bench: Bench) -> None:
    """The group's offset was saved, what it speaks of was not: new check points have offsets before it."""
    bench.broker.state.offsets.commit("CID_RMQ_SYS_REVIVE_GROUP", REVIVE_TOPIC, 3, 40)
    bench.reopen()
    put_record(bench, "ck", check_point(bench))
    assert revived(bench) == "abc"


def test_what_is_put_read_and_revived_is_counted(bench: Bench) -> None:
    bench.broker.state.offsets.commit("CG", "T", 0, 0)
    popped = pop(bench, bench.peer())
    assert len(popped) == 3
    assert bench.peer().ask(ACK, ack_ext(popped[0])).code == 0
    bench.run_for(1_000)
    counts = bench.broker.state.stats.revivals["T", "CG"]
    assert (counts.put, counts.read, counts.revived) == ({"ck": 1, "ack": 1}, {}, 0)
    assert bench.broker.pop.revive_behind() == [(0, 0)] * 8
    pass_time(bench, INVISIBLE_MS)
    queue_id = popped[0].receipt.revive_queue
    assert bench.broker.pop.revive_behind()[queue_id][0] == 2
    assert 0 < bench.broker.pop.revive_behind()[queue_id][1] <= 2_000
    pass_time(bench, REVIVAL_MS)
    assert counts.read == {(queue_id, "ck"): 1, (queue_id, "ack"): 1}
    assert counts.revived == 2
    bench.flush()
    assert bench.broker.pop.revive_behind() == [(0, 0)] * 8


@pytest.mark.parametrize(
    ("claimed", "stored", "kept"), [(32_768, 3, 256), (32_768, 300, 301), (2, 3, 4), (9, 3, 9)]
)
def test_the_queues_of_a_wrong_table_are_not_all_visited(
    bench: Bench, claimed: int, stored: int, kept: int
) -> None:
    """A damaged ``topics.json`` can name any number of queues, or fewer than have records."""
    topic = bench.broker.state.topics.get(REVIVE_TOPIC)
    assert topic is not None
    config = copy_config(topic.config)
    config.read_queue_nums = config.write_queue_nums = claimed
    bench.broker.state.topics.put(config)
    put_record(bench, "ck", check_point(bench), queue_id=stored)
    bench.reopen()
    healed = bench.broker.state.topics.get(REVIVE_TOPIC)
    assert healed is not None
    assert (healed.read_queue_nums, healed.write_queue_nums) == (kept, kept)
    assert len(bench.broker.pop.revive_behind()) == kept
    assert revived(bench) == "abc"
