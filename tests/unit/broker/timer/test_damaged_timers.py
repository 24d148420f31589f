"""Delayed and timed messages whose copies on disk are damaged: the timer log, entries of queues, bodies.

What is right is known from the log: each message comes, in doubt again, and none with other content.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from mqspark.store.timer.timerlog import RECORD_BYTES
from tests.support.draws import some
from tests.support.invariants import validate
from tests.support.storefiles import segments_of
from tests.unit.broker_kit import SEND, Bench, send_ext
from tests.unit.timer_kit import DAY_MS, WHEEL, bodies, send

ENTRY_BYTES = 20


def flip(path: Path, at: int, bit: int = 1) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        (value,) = file.read(1)
        file.seek(at)
        file.write(bytes([value ^ bit]))


def waiting(directory: Path, count: int = 6) -> tuple[Bench, list[bytes]]:
    """Two messages a tick, in the wheel and on disk, and counted."""
    bench = Bench(directory)
    sent = [b"%d" % number for number in range(count)]
    for number, body in enumerate(sent):
        send(bench, body, delay_ms=20_000 + number // 2 * 1_000)
    bench.run_for(1_500)
    bench.run_jobs()
    return bench, sent


@pytest.mark.parametrize("at", some(range(RECORD_BYTES - 8), 5))
@pytest.mark.parametrize("kill", [False, True])
def test_no_flipped_bit_of_the_timer_log_costs_a_message(tmp_path: Path, kill: bool, at: int) -> None:
    for number, bit in ((2, 1), (3, 0x80), (3, 4)):
        directory = tmp_path / f"{number}.{bit}"
        bench, sent = waiting(directory)
        if kill:
            bench.store.abandon()
        else:
            bench.close()
        flip(directory / "timerlog" / f"{0:020d}", number * RECORD_BYTES + at, bit)
        bench.open()
        bench.run_for(30_000, 1_000)
        assert set(bodies(bench)) == set(sent), (number, bit)
        if not kill:
            assert bench.broker.timers.metrics.counts().get("T", 0) == 0, (number, bit)
        bench.close()


def test_a_flipped_bit_of_the_timer_log_is_found_while_the_broker_runs(tmp_path: Path) -> None:
    bench, sent = waiting(tmp_path)
    flip(tmp_path / "timerlog" / f"{0:020d}", 3 * RECORD_BYTES + 34)  # where the message is
    bench.run_for(30_000)
    assert set(bodies(bench)) == set(sent)
    assert [(each.kind, each.outcome.value) for each in bench.store.damages.found] == [
        ("timer.log", "healed")
    ]
    assert bench.broker.timers.metrics.counts().get("T", 0) == 0


def test_messages_of_a_lost_timer_log_are_counted_once(tmp_path: Path) -> None:
    bench, sent = waiting(tmp_path)
    bench.close()
    for path in (tmp_path / "timerlog").iterdir():
        path.unlink()
    bench.open()
    bench.run_for(3_000)
    assert bench.broker.timers.metrics.counts().get("T", 0) == len(sent)
    bench.run_for(30_000)
    assert bench.broker.timers.metrics.counts().get("T", 0) == 0


@pytest.mark.parametrize("kill", [False, True])
@pytest.mark.parametrize("lost", [False, True])
def test_an_end_while_messages_are_read_again_costs_none(
    tmp_path: Path, lost: bool, kill: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was delivered before does not come again; what became due meanwhile may."""
    monkeypatch.setattr("mqspark.broker.timer.timerservice.BATCH_MESSAGES", 8)
    for ticks, saves in ((1, True), (4, False), (4, True), (6, False), (7, True)):
        directory = tmp_path / f"{ticks}{saves}"
        bench = Bench(directory, store_settings={"mapped_file_size_timer_log": 28 * RECORD_BYTES})
        delivered, sent = [b"d%d" % number for number in range(20)], [b"%d" % number for number in range(30)]
        for body in delivered:
            send(bench, body, delay_ms=2_000)
        bench.run_for(6_000, 500)
        for body in sent:
            send(bench, body, delay_ms=40_000)
        bench.run_for(3_000, 500)
        bench.run_jobs()
        if lost:
            bench.close()
            for path in (directory / "timerlog").iterdir():
                path.unlink()
            bench.open()
        else:
            flip(directory / "timerlog" / f"{0:020d}", 25 * RECORD_BYTES + 34)
            bench.clock.advance(38_000)
            while not bench.store.damages.found:
                bench.broker.tick()
                bench.clock.advance(500)
        for _ in range(ticks):
            bench.broker.tick()
            bench.flush()
            if saves:
                bench.clock.advance(1_100)
                bench.run_jobs()
        if kill:
            bench.store.abandon()
        else:
            bench.close()
        bench.open()
        bench.run_for(60_000, 1_000)
        found = Counter(bodies(bench))
        assert set(found) == {*delivered, *sent}, (ticks, saves)
        assert not {body for body, count in found.items() if count > 1}.intersection(
            delivered + sent if lost else delivered
        )
        validate(bench.broker.timers)
        bench.close()


def test_what_was_due_while_the_timer_log_was_lost_is_not_taken_for_delivered(tmp_path: Path) -> None:
    """It is read again over many ticks, with checkpoints in between."""
    bench = Bench(tmp_path)
    sent = [b"%d" % number for number in range(500)]
    for number, body in enumerate(sent):
        send(bench, body, delay_ms=5_000 + number * 10)
    bench.run_for(2_000)
    bench.close()
    for path in (tmp_path / "timerlog").iterdir():
        path.unlink()
    bench.clock.advance(60_000)
    bench.open()
    for _ in range(200):
        bench.broker.tick()
        bench.flush()
        bench.clock.advance(100)
        bench.run_jobs()
    assert Counter(bodies(bench)) == Counter(sent)
    assert bench.broker.timers.metrics.counts().get("T", 0) == 0


@pytest.mark.parametrize("days", [1, 3, 4.5])
def test_what_goes_round_comes_once_after_the_timer_log_was_lost(tmp_path: Path, days: float) -> None:
    bench = Bench(tmp_path, store_settings={"timer_max_delay_sec": 20 * 86_400})
    start_ms = bench.clock.now_ms()

    def run_until(day: float) -> None:
        while bench.clock.now_ms() < start_ms + day * DAY_MS:
            bench.clock.advance(900_000)
            bench.run_for(0)

    send(bench, b"near", deliver_ms=start_ms + 2 * DAY_MS + 3_600_500)
    send(bench, b"far", deliver_ms=start_ms + 5 * DAY_MS + 500)
    run_until(days)
    bench.close()
    for path in (tmp_path / "timerlog").iterdir():
        path.unlink()
    bench.open()
    run_until(6)
    assert bodies(bench) == [b"near", b"far"]
    assert not any("TIMER_ROLLED_FROM" in record.properties for record in bench.records("T"))
    assert bench.broker.timers.metrics.counts().get("T", 0) == 0


@pytest.mark.parametrize(("queue", "properties"), [("SCHEDULE_TOPIC_XXXX/2", "DELAY\x013\x02"),
                                                   (f"{WHEEL}/0", "TIMER_DELAY_MS\x0110000\x02")])  # fmt: skip
@pytest.mark.parametrize("at", [3, 6, 7])
def test_a_flipped_queue_entry_costs_no_message(
    tmp_path: Path, bench: Bench, queue: str, properties: str, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mqspark.store.recovery.scrub.Scrub.job", lambda scrub: None)
    sent = [b"%d" % number for number in range(60)]
    for body in sent:
        assert bench.peer().ask(SEND, send_ext("T", 0, properties), body).code == 0
    bench.close()
    (path,) = (tmp_path / "consumequeue" / queue).iterdir()
    flip(path, 30 * ENTRY_BYTES + at, 8)
    bench.open()
    bench.run_for(15_000)
    assert bodies(bench) == sent


@pytest.mark.parametrize("bit", [1 << 12, 1 << 40, 1 << 62], ids=hex)
@pytest.mark.parametrize("at", [0, 1, 4, 5])
def test_a_flipped_delivery_time_of_a_queue_entry_is_not_believed(
    tmp_path: Path, bench: Bench, bit: int, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mqspark.store.recovery.scrub.Scrub.job", lambda scrub: None)
    sent = [b"%d" % number for number in range(6)]
    for body in sent:
        assert bench.peer().ask(SEND, send_ext("T", 0, "DELAY\x013\x02"), body).code == 0
    bench.close()
    (path,) = (tmp_path / "consumequeue/SCHEDULE_TOPIC_XXXX/2").iterdir()
    with path.open("r+b") as file:
        file.seek(at * ENTRY_BYTES + 12)
        due_ms = int.from_bytes(file.read(8), "big")
        file.seek(-8, os.SEEK_CUR)
        file.write((due_ms ^ bit).to_bytes(8, "big"))
    bench.open()
    bench.run_for(9_000)
    assert bodies(bench) == []
    bench.run_for(2_000)
    assert bodies(bench) == sent


def test_messages_wait_as_long_as_their_level_was_when_they_came(bench: Bench) -> None:
    """An entry has another time than its record and the setting say: so have those beside it."""
    for body in (b"0", b"1"):
        assert bench.peer().ask(SEND, send_ext("T", 0, "DELAY\x013\x02"), body).code == 0
    bench.close()
    bench.store_settings["message_delay_level"] = "1s 5s 30s"
    bench.open()
    bench.run_for(9_000)
    assert bodies(bench) == []
    bench.run_for(2_000)
    assert bodies(bench) == [b"0", b"1"]


@pytest.mark.parametrize("properties", ["DELAY\x013\x02", "TIMER_DELAY_MS\x0110000\x02"])
def test_a_body_that_was_changed_on_disk_gets_no_crc_of_its_own(tmp_path: Path, properties: str) -> None:
    bench = Bench(tmp_path)
    for body in (b"first", b"changed", b"last"):
        assert bench.peer().ask(SEND, send_ext("T", 0, properties), body).code == 0
    bench.run_for(2_000)
    bench.close()
    (path,) = segments_of(tmp_path)
    flip(path, path.read_bytes().index(b"changed"))
    bench.open()
    bench.run_for(15_000)
    assert bodies(bench) == [b"first", b"last"]


@pytest.mark.parametrize("properties", ["DELAY\x013\x02", "TIMER_DELAY_MS\x0110000\x02"])
def test_a_damaged_message_waits_as_long_as_another_replica_may_heal_it(
    tmp_path: Path, bench: Bench, properties: str
) -> None:
    sent = [b"first", b"changed", b"last"]
    for body in sent:
        assert bench.peer().ask(SEND, send_ext("T", 0, properties), body).code == 0
    bench.run_for(2_000)
    bench.close()
    (path,) = segments_of(tmp_path)
    at = path.read_bytes().index(b"changed")
    flip(path, at)
    bench.open()
    bench.store.reads.why_unhealed = lambda missed: "it may still be healed"
    bench.run_for(15_000)
    assert bodies(bench) == [b"first"]
    flip(path, at)
    bench.run_for(2_000)
    assert bodies(bench) == sent
