"""Requests to clients: whatever happens, each is answered or given up exactly once, and nothing is left over."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from mqspark.broker.state.calls import MAX_CALLS, CallFailed, Calls
from mqspark.protocol.codes import RequestCode
from mqspark.protocol.command import Command
from mqspark.protocol.connection import Connection
from mqspark.protocol.dispatch import Refusal
from mqspark.protocol.session import Session
from mqspark.testing import FakeClock

SESSIONS = st.integers(0, 2)


class CallsLife(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.calls = Calls(self.clock)
        self.ids = 0
        self.sessions = [self._session() for _ in range(3)]
        self.asked: list[tuple[Session, int, int]] = []
        """Session, opaque and deadline of every call."""
        self.outcomes: dict[int, list[Command | CallFailed]] = {}

    def _session(self) -> Session:
        self.ids += 1
        return Session(self.ids, "127.0.0.1", 1, [])

    @rule(number=SESSIONS, timeout_ms=st.sampled_from([5, 10_000]), count=st.sampled_from([1, 2, MAX_CALLS]))
    def ask(self, number: int, timeout_ms: int, count: int) -> None:
        session = self.sessions[number]
        for _ in range(count):
            key = len(self.asked)
            outcomes = self.outcomes.setdefault(key, [])
            is_full = len(self.calls) >= MAX_CALLS
            try:
                self.calls.ask(
                    session, RequestCode.GET_CONSUMER_RUNNING_INFO, None, b"", timeout_ms, outcomes.append
                )
            except Refusal:
                assert is_full
                assert not outcomes
                del self.outcomes[key]
                return
            assert not is_full
            (request,) = Connection().receive_data(b"".join(session.take()))
            self.asked.append((session, request.opaque, self.clock.monotonic_ms() + timeout_ms))

    @rule(key=st.integers(0, 30), is_strange=st.booleans())
    def answer(self, key: int, is_strange: bool) -> None:
        if not self.asked:
            return
        key %= len(self.asked)
        session, opaque, _ = self.asked[key]
        done = bool(self.outcomes[key])
        answer = Command(0, flag=1, opaque=opaque + 10_000 if is_strange else opaque)
        self.calls.answered(session, answer)
        if not is_strange and not done:
            assert self.outcomes[key] == [answer]

    @rule(ms=st.sampled_from([1, 5, 9_000, 20_000]))
    def wait(self, ms: int) -> None:
        self.clock.advance(ms)
        self.calls.expire()
        for key, (_, _, deadline_ms) in enumerate(self.asked):
            if deadline_ms <= self.clock.monotonic_ms():
                assert self.outcomes[key], "its time is over"

    @rule(number=SESSIONS)
    def disconnect(self, number: int) -> None:
        gone, self.sessions[number] = self.sessions[number], self._session()
        gone.open = False
        self.calls.disconnected(gone)
        for key, (session, _, _) in enumerate(self.asked):
            if session is gone:
                assert self.outcomes[key]

    @invariant()
    def each_has_one_outcome_at_most(self) -> None:
        assert all(len(outcomes) <= 1 for outcomes in self.outcomes.values())
        assert len(self.calls) == sum(not outcomes for outcomes in self.outcomes.values()) <= MAX_CALLS

    def teardown(self) -> None:
        self.wait(20_000)
        assert len(self.calls) == 0
        assert all(len(outcomes) == 1 for outcomes in self.outcomes.values())


TestCallsLife = CallsLife.TestCase
TestCallsLife.settings = settings(max_examples=25, stateful_step_count=25)
