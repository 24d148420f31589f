"""POP as a whole: whatever consumers do and whenever the broker dies, no two hold a message at once, an
acknowledged one stays away and everything else comes back."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mqspark.protocol.command import Command
from tests.support.invariants import validate
from tests.unit.broker_kit import Bench, Peer
from tests.unit.pop_kit import (
    ACK,
    BATCH_ACK,
    POP,
    Popped,
    ack_ext,
    batch_body,
    change,
    handed_out,
    pass_time,
    pop,
    pop_ext,
    put,
    settle,
)

REVIVAL_MS = 10_000
TAGS = ("red", "blue")
EXPRESSIONS = st.sampled_from(["*", "*", "*", "red", "red || blue"])


@dataclass
class Life:
    """One message, as its group sees it."""

    tag: str
    holder: Popped | None = None
    """The last who was given it."""
    is_single: bool = True
    """False: it was given away shortly before a crash and may have been given away again since."""
    is_done: bool = False
    is_optional: bool = False
    """It need not come back: a pop with a filter may have passed it over."""
    is_lapsed: bool = False
    """The holder's time was over before the clock went back."""
    old: list[Popped] = field(default_factory=list)
    """Receipts that were replaced."""


class Pops(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.lives: dict[str, Life] = {}
        self.waiting: list[Peer] = []
        """Whose pops are parked."""
        self.started_ms = 0
        self.bench: Bench | None = None

    @initialize(sync=st.booleans(), v2=st.booleans())
    def start(self, sync: bool, v2: bool) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.bench = Bench(self.folder, sync=sync, enable_retry_topic_v2=v2)
        put(self.bench, "first")
        self.lives["first"] = Life("")

    @property
    def it(self) -> Bench:
        assert self.bench is not None
        return self.bench

    @property
    def now_ms(self) -> int:
        return self.it.clock.now_ms()

    def is_held(self, life: Life) -> bool:
        if life.holder is None or life.is_lapsed:
            return False
        return life.holder.receipt.visible_again_ms > self.now_ms

    def held(self) -> list[str]:
        return [body for body, life in self.lives.items() if self.is_held(life) and not life.is_done]

    def teardown(self) -> None:
        if self.bench is None:
            return
        self.everything_comes_back()
        self.it.close()
        shutil.rmtree(self.folder)

    def everything_comes_back(self) -> None:
        peer = self.it.peer()
        for _ in range(2):
            self.let_time_pass(100_000 + REVIVAL_MS)
            while popped := self.given(pop(self.it, peer)):
                for one in popped:
                    assert peer.ask(ACK, ack_ext(one)).code == 0
                    self.lives[one.body.decode()].is_done = True
        missing = [body for body, life in self.lives.items() if not (life.is_done or life.is_optional)]
        assert missing == [], [self.lives[body] for body in missing]

    def given(self, popped: list[Popped]) -> list[Popped]:
        """Nobody else has any of these."""
        seen = set()
        for one in popped:
            body = one.body.decode()
            life = self.lives[body]
            if life.is_single:
                assert not life.is_done, f"{body} was acknowledged"
                assert not self.is_held(life), f"{body} is held by {life.holder}"
                assert body not in seen
            seen.add(body)
            if life.holder is not None:
                life.old.append(life.holder)
            life.holder = one
            life.is_lapsed = False
        return popped

    # --- what happens ---

    @rule(count=st.integers(1, 5), queue_id=st.integers(0, 2), tag=st.sampled_from(TAGS))
    def send(self, count: int, queue_id: int, tag: str) -> None:
        bodies = [f"m{len(self.lives) + number}" for number in range(count)]
        self.lives.update((body, Life(tag)) for body in bodies)
        put(self.it, *bodies, queue_id=queue_id, tag=tag)

    @rule(most=st.integers(1, 8), invisible_ms=st.sampled_from([5_000, 20_000, 60_000]), exp=EXPRESSIONS)
    def pop(self, most: int, invisible_ms: int, exp: str) -> None:
        if exp != "*":
            for life in self.lives.values():
                life.is_optional |= life.tag not in exp or not life.tag
        peer = self.it.peer()
        self.given(pop(self.it, peer, maxMsgNums=str(most), invisibleTime=str(invisible_ms), exp=exp))

    @precondition(lambda self: self.bench is not None and self.held())
    @rule(data=st.data(), times=st.integers(1, 2))
    def acknowledge(self, data: st.DataObject, times: int) -> None:
        body = data.draw(st.sampled_from(self.held()))
        life = self.lives[body]
        assert life.holder is not None
        for _ in range(times):
            assert self.it.peer().ask(ACK, ack_ext(life.holder)).code == 0
        life.is_done = True

    @precondition(lambda self: self.bench is not None and self.held())
    @rule()
    def acknowledge_many(self) -> None:
        lives = [self.lives[body] for body in self.held()]
        popped = [life.holder for life in lives if life.holder is not None]
        assert self.it.peer().ask(BATCH_ACK, {}, batch_body(popped)).code == 0
        for life in lives:
            life.is_done = True

    @precondition(lambda self: self.bench is not None and self.held())
    @rule(data=st.data(), ms=st.sampled_from([100, 3_000, 100_000]))
    def change(self, data: st.DataObject, ms: int) -> None:
        life = self.lives[data.draw(st.sampled_from(self.held()))]
        assert life.holder is not None
        changed = change(self.it.peer(), life.holder, ms)
        assert isinstance(changed, Popped)
        life.old.append(life.holder)
        life.holder = changed

    @precondition(lambda self: any(life.old for life in self.lives.values()))
    @rule(data=st.data())
    def use_an_old_receipt(self, data: st.DataObject) -> None:
        """It does not take the message out of another's hands."""
        candidates = [body for body, life in self.lives.items() if life.old]
        life = self.lives[data.draw(st.sampled_from(candidates))]
        old = life.old[-1]
        if not life.is_lapsed and old.receipt.visible_again_ms <= self.now_ms:
            refusal = change(self.it.peer(), old, 60_000)
            assert isinstance(refusal, Command)
            assert refusal.code == 208
        if life.is_single:
            assert self.it.peer().ask(ACK, ack_ext(old)).code == 0

    @rule(ms=st.sampled_from([100, 4_000, 30_000, 70_000]))
    def let_time_pass(self, ms: int) -> None:
        for _ in range(0, ms, 1_000):
            pass_time(self.it, min(ms, 1_000), min(ms, 1_000))
            self.who_waits_gets_what_there_is()

    @rule(ms=st.sampled_from([-5_000, -300, 1_500, 90_000]))
    def the_clock_is_set(self, ms: int) -> None:
        for life in self.lives.values():
            life.is_lapsed = not self.is_held(life)
        self.it.clock.wall_ms += ms
        self.started_ms = self.now_ms

    @rule(most=st.integers(1, 8), invisible_ms=st.sampled_from([5_000, 20_000, 60_000]))
    def wait(self, most: int, invisible_ms: int) -> None:
        """A pop that is parked when there is nothing."""
        peer = self.it.peer()
        more = {"maxMsgNums": str(most), "invisibleTime": str(invisible_ms), "pollTime": "60000"}
        peer.give(POP, pop_ext(self.it, **more))
        self.it.broker.turn()
        self.it.housekeeping()
        self.waiting.append(peer)

    @invariant()
    def the_broker_agrees_with_itself(self) -> None:
        if self.bench is not None:
            validate(self.bench.broker)

    @invariant()
    def who_waits_gets_what_there_is(self) -> None:
        if self.waiting:
            settle(self.it)
        for peer in list(self.waiting):
            for answer in peer.heard():
                self.waiting.remove(peer)
                self.given(handed_out(answer))
        if self.waiting:
            for body, life in self.lives.items():
                if life.is_single and not (life.is_done or life.is_optional):
                    assert life.holder is not None, f"{body} is there, and nobody who waits gets it"
                    since_ms = max(life.holder.receipt.visible_again_ms, self.started_ms)
                    assert self.now_ms - since_ms <= REVIVAL_MS, f"{body} does not come back"

    @rule()
    def restart(self) -> None:
        self.waiting.clear()
        self.it.reopen()
        self.started_ms = self.now_ms

    @rule(is_saved=st.booleans())
    def die(self, is_saved: bool) -> None:
        """Offsets of the last seconds may be lost: what was handed out then may be handed out again."""
        if is_saved:
            self.it.flush()
            self.it.clock.advance(self.it.config.flush_consumer_offset_interval)
            self.it.run_jobs()
        self.waiting.clear()
        self.it.crash()
        self.started_ms = self.now_ms
        if not is_saved:
            for life in self.lives.values():
                life.is_single &= life.holder is None


Pops.TestCase.settings = settings(
    max_examples=12,
    stateful_step_count=30,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestPops = Pops.TestCase
