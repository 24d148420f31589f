"""Power cuts in a broker that has delayed and timed messages under SYNC_FLUSH: whatever was acknowledged is delivered
when the power is back, at least once and never early; a clean stop in between repeats nothing."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator

import pytest

from mqspark.broker.broker import BrokerCore
from mqspark.broker.config import BrokerConfig
from mqspark.protocol.session import Session
from mqspark.store.disk.files import FileLayer
from tests.crash.disk import DirectorySynced, MemoryFiles, Noted, Power, RecordedFiles, Synced, Tree, digest
from tests.crash.power import ROOT
from tests.support.clocks import ManualClock
from tests.support.draws import some
from tests.support.store_tools import complete, crash, drain, make_store
from tests.unit.broker_kit import SEND, Peer, send_ext

START_MS = 1_700_000_000_000
LONGEST_MS = 9_000
SLOTS = 64


@pytest.fixture(autouse=True)
def small_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    """38 MB of it would be in each of some hundred images."""
    for module in ("mqspark.store.timer.timerwheel", "mqspark.broker.timer.timerservice"):
        monkeypatch.setattr(f"{module}.SLOTS", SLOTS)
    monkeypatch.setattr("mqspark.store.timer.timerwheel.WHEEL_BYTES", SLOTS * 32)
    monkeypatch.setattr("mqspark.broker.timer.timerservice.BLANK_SLOTS", 4)


class Machine:
    """A broker on some disk, and the shell around it."""

    def __init__(self, files: FileLayer, now_ms: int = START_MS) -> None:
        self.files = files
        self.clock = ManualClock(now_ms)
        self.start()

    def start(self) -> None:
        self.store = make_store(
            ROOT,
            self.clock,
            self.files,
            sync=True,
            mapped_file_size_commit_log=16_384,
            message_delay_level="1s 4s",
            mapped_file_size_timer_log=52 * 7 + 16,
            timer_roll_window_slot=5,
            message_index_enable=False,
        )
        self.store.open()
        config = BrokerConfig(broker_name="b", flush_consumer_offset_interval=1_000)
        outbox: list[Session] = []
        self.broker = BrokerCore(config, self.store, self.clock, random=random.Random(1), outbox=outbox)
        self.peer = Peer(self.broker, Session(1, "127.0.0.1", 4_000, outbox))

    def send(self, number: int, properties: str) -> int:
        """The opaque of the request."""
        return self.peer.give(SEND, send_ext("T", 0, properties), b"%d" % number)

    def turn(self) -> list[int]:
        """A tick and the sync that it asks for; the requests that are answered."""
        self.broker.tick()
        job = self.store.pipeline.begin_flush()
        if job is not None:
            job.run()
            self.broker.progress(self.store.pipeline.end_flush(job))
        answers = self.peer.heard()
        assert all(answer.code == 0 for answer in answers)
        return [answer.opaque for answer in answers]

    def save(self) -> None:
        complete(self.broker.jobs())

    def stop(self) -> None:
        self.turn()
        complete(self.broker.shutdown())
        self.store.close()

    def delivered(self) -> list[tuple[int, int]]:
        """Number and store time."""
        return [(int(record.body), record.store_timestamp_ms) for record in drain(self.store, "T", 0)]


class Run:
    """What was done to a broker, with all that its disk was told."""

    def __init__(self, seed: int, rounds: int, *, stops: bool, is_steady: bool = True) -> None:
        """Without a steady clock there are timers only: levels go by one that is."""
        chance = random.Random(seed)
        self.files = RecordedFiles(ROOT)
        self.due_ms: dict[int, int] = {}
        machine = Machine(self.files)
        opaques: dict[int, int] = {}
        self.stepped_back_ms = 0
        for number in range(rounds):
            for _ in range(chance.randrange(3)):
                message = len(self.due_ms)
                delay_ms, properties = self._when(chance, machine.clock.wall_ms, is_steady)
                self.due_ms[message] = machine.clock.wall_ms + delay_ms
                opaques[machine.send(message, properties)] = message
            self.files.note(([opaques[opaque] for opaque in machine.turn()], machine.clock.wall_ms))
            step_ms = chance.randrange(50, 900)
            if not is_steady and chance.random() < 0.25:
                step_ms = -chance.randrange(100, 2_500)
                self.stepped_back_ms -= step_ms
            machine.clock.advance(step_ms)
            self.files.note(([], machine.clock.wall_ms))
            if number % 3 == 1:
                machine.broker.tick()  # what it delivers is saved nowhere yet
                machine.save()
            if number % 7 == 6:
                if stops:
                    machine.stop()
                else:
                    crash(machine.store)
                machine.start()
                opaques.clear()
        self.end_ms = machine.clock.wall_ms
        self.machine = machine

    @staticmethod
    def _when(chance: random.Random, now_ms: int, is_steady: bool) -> tuple[int, str]:
        delay_ms = chance.randrange(1, LONGEST_MS if is_steady else 3_000)
        timers = [
            (delay_ms, f"TIMER_DELAY_MS\x01{delay_ms}\x02"),
            (delay_ms, f"TIMER_DELIVER_MS\x01{now_ms + delay_ms}\x02"),
        ]
        levels = [(1_000, "DELAY\x011\x02"), (4_000, "DELAY\x012\x02")]
        return chance.choice([*levels, *timers] if is_steady else timers)

    def images(self, limit: int) -> Iterator[tuple[Tree, set[int], int]]:
        """Disks after a power cut, what was acknowledged before it, and when that was."""
        power = Power(self.files)
        acked: set[int] = set()
        now_ms = START_MS
        seen = set()
        chance = random.Random(1)
        for event in [*self.files.events, None]:
            is_sync = event is None or isinstance(event, Synced | DirectorySynced)
            for choice in power.choices(limit, chance) if is_sync else ():
                tree = power.image(choice)
                name = (digest(tree), len(acked))
                if name not in seen:
                    seen.add(name)
                    yield tree, set(acked), now_ms
            if event is None:
                return
            power.follow(event)
            if isinstance(event, Noted):
                numbers, now_ms = event.what
                acked.update(numbers)


def deliver_all(machine: Machine, acked: set[int], end_ms: int) -> list[tuple[int, int]]:
    while machine.clock.wall_ms < end_ms:
        machine.turn()
        machine.clock.advance(500)
    machine.turn()
    return machine.delivered()


MORE = pytest.mark.slow("more seeds; one with and one without clean stops are the fast twins")
ONE, OTHER, *REST = (pytest.param(seed, marks=MORE) for seed in range(6))


@pytest.mark.parametrize("seed", [0, OTHER, *REST])
def test_what_was_acknowledged_is_delivered_after_a_power_cut(seed: int) -> None:
    check_images(Run(seed, 16, stops=bool(seed % 2)))


@pytest.mark.slow("many images; fast: that test without the clock, and clean stops with it")
@pytest.mark.parametrize("seed", [1, ONE, *REST])
def test_nor_is_anything_lost_when_the_clock_goes_back(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "mqspark.broker.timer.timerservice.BATCH_MESSAGES", 1
    )  # it finds slots half delivered
    check_images(Run(seed, 16, stops=bool(seed % 2), is_steady=False))


def check_images(run: Run) -> None:
    count = 0
    for tree, acked, now_ms in run.images(3):
        machine = Machine(MemoryFiles(ROOT, tree), now_ms)
        found = deliver_all(machine, acked, now_ms + run.stepped_back_ms + LONGEST_MS + 7_000)
        lost = acked - {number for number, _ in found}
        assert not lost, f"image {count}: {lost} of {len(acked)} lost"
        for number, stored_ms in found:
            assert stored_ms >= run.due_ms[number], f"image {count}: {number} came early"
        crash(machine.store)
        count += 1
    print(f"{count} images")
    assert count > 50, count


@pytest.mark.parametrize("batch", [1, 512])
@pytest.mark.parametrize("seed", some(range(5), 2))
def test_clean_stops_repeat_nothing_when_the_clock_goes_back(
    seed: int, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mqspark.broker.timer.timerservice.BATCH_MESSAGES", batch)
    run = Run(seed, 60, stops=True, is_steady=False)
    found = deliver_all(run.machine, set(run.due_ms), run.end_ms + run.stepped_back_ms + LONGEST_MS + 100_000)
    assert Counter(number for number, _ in found) == Counter(run.due_ms.keys())
    for number, stored_ms in found:
        assert stored_ms >= run.due_ms[number]
    crash(run.machine.store)


@pytest.mark.parametrize("seed", some(range(5), 2))
def test_clean_stops_repeat_nothing(seed: int) -> None:
    run = Run(seed, 60, stops=True)
    found = deliver_all(run.machine, set(run.due_ms), run.end_ms + LONGEST_MS + 7_000)
    assert Counter(number for number, _ in found) == Counter(run.due_ms.keys())
    for number, stored_ms in found:
        assert 0 <= stored_ms - run.due_ms[number] <= 3_000
    crash(run.machine.store)
