"""Delay levels and timers while the clock runs, steps and the broker restarts: nothing early, nothing lost, and nothing
twice unless the broker was killed."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mqspark.broker.timer import timerservice
from mqspark.message import encode_recall_handle
from mqspark.protocol.codes import RequestCode
from tests.support.draws import draws
from tests.support.invariants import validate
from tests.unit.broker_kit import SEND, Bench, send_ext

LEVELS = "1s 3s 10s"
LEVELS_MS = (1_000, 3_000, 10_000)
LONGEST_MS = 20_000
STEP_MS = 6_000


class Delays(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.patches = pytest.MonkeyPatch()
        self.directory = Path(tempfile.mkdtemp(prefix="delays-"))
        self.bench = Bench(
            self.directory,
            recall_message_enable=True,
            flush_consumer_offset_interval=1,
            store_settings={
                "message_delay_level": LEVELS,
                "timer_roll_window_slot": 12,
                "mapped_file_size_timer_log": 52 * 9 + 16,
                "message_index_enable": False,
            },
        )
        self.due_ms: dict[int, int] = {}
        """Timers: by the clock of the wall."""
        self.due_mono_ms: dict[int, int] = {}
        """Levels: by the one that never steps, as long as the other does not step ahead."""
        self.handles: dict[int, str] = {}
        self.gone: set[int] = set()
        self.maybe_gone: set[int] = set()
        """Taken back so late, or across a step of the clock, that either may come first."""
        self.stepped_back_ms = 0
        self.seen = 0
        self.ahead = False
        self.overtaken: set[int] = set()
        """Levels that were under way when the wall's clock was set forward: either clock may say when."""
        self.killed = False

    def teardown(self) -> None:
        try:
            self.check_the_end()
        finally:
            self.patches.undo()
            self.bench.close()
            shutil.rmtree(self.directory)

    def check_the_end(self) -> None:
        # Whatever stepped, all of it is due at the end.
        self.bench.run_for(LONGEST_MS + self.stepped_back_ms + 12_000, 1_000)
        self.check()
        counts = Counter(int(record.body) for record in self.bench.records("T"))
        sent = {*self.due_ms, *self.due_mono_ms} - self.gone
        assert set(counts) - self.maybe_gone == sent - self.maybe_gone
        if not self.killed:
            assert set(counts.values()) <= {1}, counts

    def _send(self, properties: str) -> int:
        number = len(self.due_ms) + len(self.due_mono_ms)
        unique_id = f"U{number}"
        ext = send_ext("T", 0, f"{properties}UNIQ_KEY\x01{unique_id}\x02")
        answer = self.bench.peer().ask(SEND, ext, b"%d" % number)
        assert answer.code == 0, answer.remark
        if "recallHandle" in answer.ext:
            self.handles[number] = answer.ext["recallHandle"]
        return number

    @initialize(messages=st.sampled_from([1, 3, 512]), can_die=st.booleans())
    def begin(self, messages: int, can_die: bool) -> None:
        """With few messages a tick, whatever happens finds slots that are half delivered."""
        self.patches.setattr(timerservice, "BATCH_MESSAGES", messages)
        self.can_die = can_die

    @rule(level=st.integers(1, len(LEVELS_MS)))
    def send_level(self, level: int) -> None:
        clock = self.bench.clock
        self.due_mono_ms[self._send(f"DELAY\x01{level}\x02")] = clock.mono_ms + LEVELS_MS[level - 1]

    @rule(delay_ms=st.integers(1, LONGEST_MS), relative=st.booleans())
    def send_timer(self, delay_ms: int, relative: bool) -> None:
        due_ms = self.bench.clock.wall_ms + delay_ms
        when = f"TIMER_DELAY_MS\x01{delay_ms}\x02" if relative else f"TIMER_DELIVER_MS\x01{due_ms}\x02"
        self.due_ms[self._send(when)] = due_ms

    @rule(delay_ms=st.integers(1, 6_000), count=st.integers(2, 5))
    def send_timers(self, delay_ms: int, count: int) -> None:
        """For one slot, mostly."""
        for number in range(count):
            self.send_timer(delay_ms + 20 * number, False)

    @precondition(lambda self: self.handles)
    @rule(data=st.data())
    def recall(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.handles)))
        handle = self.handles.pop(number)
        answer = self.bench.peer().ask(
            RequestCode.RECALL_MESSAGE, {"producerGroup": "PG", "topic": "T", "recallHandle": handle}
        )
        left_ms = self.due_ms[number] - self.bench.clock.wall_ms
        if answer.code == 0:
            is_sure = left_ms > 2_000 and not (self.ahead or self.stepped_back_ms or self.killed)
            (self.gone if is_sure else self.maybe_gone).add(number)
        self.bench.run_for(0)

    @rule()
    def recall_nobody(self) -> None:
        handle = encode_recall_handle("T", "b-a", self.bench.clock.wall_ms + 5_000, "nobody")
        self.bench.peer().ask(RequestCode.RECALL_MESSAGE, {"topic": "T", "recallHandle": handle})

    @rule(ms=st.integers(0, 6_000), step_ms=st.sampled_from([20, 100, 500]))
    def let_time_pass(self, ms: int, step_ms: int) -> None:
        for start_ms in range(0, ms, step_ms):  # what comes early is seen before it is due
            self.bench.run_for(min(step_ms, ms - start_ms), step_ms)
            self.check()

    @rule(ms=st.integers(0, 1_500))
    def tick(self, ms: int) -> None:
        """What it delivers is not on the disk."""
        self.bench.clock.advance(ms)
        self.bench.broker.tick()

    @rule(ms=st.integers(1, STEP_MS))
    def step_back(self, ms: int) -> None:
        self.bench.clock.wall_ms -= ms
        self.stepped_back_ms += ms

    @rule(ms=st.integers(1, STEP_MS))
    def step_ahead(self, ms: int) -> None:
        self.bench.clock.wall_ms += ms
        self.ahead = True
        self.overtaken.update(self.due_mono_ms)

    @rule()
    def save(self) -> None:
        self.bench.run_jobs()

    @rule()
    def restart(self) -> None:
        self.bench.reopen()

    @precondition(lambda self: self.can_die)
    @rule(flushed=st.booleans())
    def kill(self, flushed: bool) -> None:
        self.killed = True
        if flushed:
            self.bench.flush()
        self.bench.crash()

    @invariant()
    def agrees_with_itself(self) -> None:
        validate(self.bench.broker)

    @invariant()
    def check(self) -> None:
        records = self.bench.records("T", offset=self.seen)
        self.seen += len(records)
        for record in records:
            number = int(record.body)
            if number in self.due_ms:
                assert record.store_timestamp_ms >= self.due_ms[number], f"timer {number} came early"
            elif number not in self.overtaken:
                assert self.bench.clock.mono_ms >= self.due_mono_ms[number], f"{number} came early"


TestDelays = Delays.TestCase
# A failure is not shrunk: that takes minutes, and the calls that are left out by hand are found in seconds.
TestDelays.settings = settings(
    max_examples=draws(40),
    stateful_step_count=30,
    phases=[Phase.reuse, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.slow("500 long examples; 40 are the fast twin")
@pytest.mark.timeout(900)
class TestDelaysAtLength(Delays.TestCase):
    settings = settings(TestDelays.settings, max_examples=draws(500), stateful_step_count=40)
