"""What consumers send back, while the clock runs and the broker restarts or dies: every failure brings the message
again once more, counted up and never early, or makes it a dead letter when it has failed often enough; and nothing
else does.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter, defaultdict
from pathlib import Path
from typing import NamedTuple

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mqspark.message import MessageExt
from tests.support.invariants import validate
from tests.unit.broker.send.test_retry import configure, give_back
from tests.unit.broker_kit import SEND, Bench, send_ext

LEVELS = "1s 2s 3s 5s 8s 13s"
LEVELS_MS = (1_000, 2_000, 3_000, 5_000, 8_000, 13_000)
FIRST_LEVEL = 3
RETRY, DEAD = "%RETRY%CG", "%DLQ%CG"
RETRY_QUEUES = 2


class Copy(NamedTuple):
    body: bytes
    reconsume_times: int
    topic: str


class Retries(RuleBasedStateMachine):
    @initialize(sync=st.booleans(), limit=st.integers(0, 4))
    def start(self, sync: bool, limit: int) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="retries-"))
        store_settings = {"message_delay_level": LEVELS, "message_index_enable": False}
        self.bench = Bench(self.folder, sync=sync, store_settings=store_settings)
        self.limit = limit
        configure(self.bench.peer(), retry_max_times=limit, retry_queue_nums=RETRY_QUEUES)
        self.seen: defaultdict[tuple[str, int], int] = defaultdict(int)
        self.unconsumed: list[MessageExt] = []
        self.sent = 0
        self.due_ms: defaultdict[Copy, list[int]] = defaultdict(list)
        """By the monotonic clock: one for each failure that brings such a copy."""
        self.came: Counter[Copy] = Counter()
        self.killed = False

    def teardown(self) -> None:
        if not hasattr(self, "bench"):
            return
        try:
            self.let_time_pass(LEVELS_MS[-1] + 2_000, 500)
            wanted = Counter({copy: len(due) for copy, due in self.due_ms.items()})
            assert self.came >= wanted if self.killed else self.came == wanted
            assert set(self.came) == set(wanted)
        finally:
            self.bench.close()
            shutil.rmtree(self.folder)

    @rule(count=st.integers(1, 3))
    def send(self, count: int) -> None:
        for _ in range(count):
            self.sent += 1
            assert self.bench.peer().ask(SEND, send_ext("T"), b"%d" % self.sent).code == 0

    @precondition(lambda self: self.unconsumed)
    @rule(
        number=st.integers(0, 50),
        level=st.sampled_from([0, 0, 0, 1, 5, 99, -1]),
        limit=st.sampled_from([None, None, 1, 3]),
        times=st.sampled_from([1, 1, 1, 2]),
    )
    def fail(self, number: int, level: int, limit: int | None, times: int) -> None:
        """``times`` 2: the answer was lost, so the consumer says it again, and the broker cannot know."""
        message = self.unconsumed.pop(number % len(self.unconsumed))
        most = self.limit if limit is None else limit
        for _ in range(times):
            answer = give_back(self.bench.peer(), message, level, limit)
            assert answer.code == 0, answer.remark
            is_dead = level < 0 or message.reconsume_times >= most
            copy = Copy(message.body, message.reconsume_times + 1, DEAD if is_dead else RETRY)
            delay_ms = 0
            if not is_dead:
                number = level or FIRST_LEVEL + message.reconsume_times
                delay_ms = LEVELS_MS[min(number, len(LEVELS_MS)) - 1]
            self.due_ms[copy].append(self.bench.clock.mono_ms + delay_ms)

    @precondition(lambda self: self.unconsumed)
    @rule(rounds=st.integers(1, 4))
    def keep_failing(self, rounds: int) -> None:
        for _ in range(rounds):
            for _ in range(len(self.unconsumed)):
                self.fail(0, 0, None, 1)
            self.let_time_pass(LEVELS_MS[-1], 500)

    @precondition(lambda self: self.unconsumed)
    @rule(number=st.integers(0, 50))
    def succeed(self, number: int) -> None:
        self.unconsumed.pop(number % len(self.unconsumed))

    @rule(ms=st.sampled_from([999, 3_000, 9_000]), step_ms=st.sampled_from([50, 400]))
    def let_time_pass(self, ms: int, step_ms: int) -> None:
        for start_ms in range(0, ms, step_ms):
            self.bench.run_for(min(step_ms, ms - start_ms), step_ms)
            self.nothing_comes_early_or_unasked()

    @rule(ms=st.integers(1, 5_000))
    def the_wall_clock_goes_back(self, ms: int) -> None:
        self.bench.clock.wall_ms -= ms

    @rule()
    def restart(self) -> None:
        self.bench.reopen()

    @rule()
    def die(self) -> None:
        """How far delays were delivered is saved every few seconds: what came since may come again."""
        self.killed = True
        self.bench.crash()

    @invariant()
    def the_broker_agrees_with_itself(self) -> None:
        if hasattr(self, "bench"):
            validate(self.bench.broker)

    @invariant()
    def nothing_comes_early_or_unasked(self) -> None:
        if not hasattr(self, "bench"):
            return
        for topic, queues in (("T", 1), (RETRY, RETRY_QUEUES), (DEAD, 1)):
            for queue_id in range(queues):
                records = self.bench.records(topic, queue_id, self.seen[topic, queue_id])
                self.seen[topic, queue_id] += len(records)
                for record in records:
                    self._came(record)

    def _came(self, record: MessageExt) -> None:
        if record.topic != DEAD:
            self.unconsumed.append(record)
        if record.topic == "T":
            assert record.reconsume_times == 0
            return
        assert record.properties["RETRY_TOPIC"] == "T"
        copy = Copy(record.body, record.reconsume_times, record.topic)
        self.came[copy] += 1
        due = sorted(self.due_ms[copy])
        assert due, f"{copy} came, and nobody had failed"
        now_ms = self.bench.clock.mono_ms
        if self.killed:
            assert now_ms >= due[0], f"{copy} came early"
        else:
            assert self.came[copy] <= len(due), f"{copy} came too often"
            assert now_ms >= due[self.came[copy] - 1], f"{copy} came early"


Retries.TestCase.settings = settings(
    max_examples=20,
    stateful_step_count=20,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestRetries = Retries.TestCase
