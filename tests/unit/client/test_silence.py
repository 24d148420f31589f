"""Silent brokers, by a clock that the test moves: when they are noticed, knocked at, and left."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mqspark.client.remoting import silence
from mqspark.client.remoting.channel import Channel
from mqspark.client.remoting.silence import QUIET_S, SILENCE_LOOK_S, SILENT_S, SilenceWatch
from mqspark.errors import RequestTimeout
from mqspark.protocol.command import encode_response

A, B, NAMES = "a:1", "b:1", "names:1"


class Clock:
    """Stands in for a loop: its time, and what it is to call later."""

    def __init__(self) -> None:
        self.now = 100.0
        self._later: list[tuple[float, Callable[[], object]]] = []

    def time(self) -> float:
        return self.now

    def call_soon(self, call: Callable[[], object]) -> None:
        call()

    def call_later(self, delay_s: float, call: Callable[[], object]) -> Any:
        return self.call_at(self.now + delay_s, call)

    def call_at(self, when: float, call: Callable[[], object]) -> Any:
        entry = when, call
        self._later.append(entry)
        return SimpleNamespace(cancel=lambda: self._later.remove(entry))

    @property
    def is_idle(self) -> bool:
        return not self._later

    def advance(self, seconds: float) -> None:
        end = self.now + seconds
        while due := [entry for entry in self._later if entry[0] <= end]:
            entry = min(due, key=lambda each: each[0])
            self._later.remove(entry)
            self.now = max(self.now, entry[0])
            entry[1]()
        self.now = end


class World:
    """Stands in for connections and routes."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.polls: dict[str, float] = {}
        """Since when an answer is awaited that may be held back; likewise ``due`` ones."""
        self.due: dict[str, float] = {}
        self.named = {A, B}
        self.answers = True
        self.looked_up: list[float] = []
        self.knocked: list[float] = []
        self.left: list[str] = []
        self.watch = SilenceWatch(cast(Any, self), cast(Any, self), cast(Any, self))

    # connections
    def addresses(self) -> list[str]:
        return [A, B, NAMES]

    def connecting(self) -> list[str]:
        return []

    def silent_s(self, address: str) -> float:
        return self.clock.now - self.due[address] if address in self.due else 0.0

    def quiet_s(self, address: str) -> float:
        since = min((table[address] for table in (self.polls, self.due) if address in table), default=None)
        return 0.0 if since is None else self.clock.now - since

    def give_up(self, address: str, reason: str) -> None:
        self.left.append(address)
        self.polls.pop(address, None)
        self.due.pop(address, None)

    # routes
    def names(self, address: str) -> bool:
        return address in self.named

    def topic_at(self, address: str) -> str | None:
        return "T" if address in self.named else None

    async def route(self, topic: str, *, refresh: bool = False) -> None:
        assert refresh
        self.looked_up.append(self.clock.now)

    async def knock(self, address: str, timeout_ms: int) -> None:
        self.knocked.append(self.clock.now)
        if self.answers:
            self.polls[address] = self.clock.now
        else:
            self.due.setdefault(address, self.clock.now)
            raise RequestTimeout(address, timeout_ms)

    # tasks
    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        with pytest.raises(StopIteration):
            work.send(None)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    clock = Clock()
    monkeypatch.setattr(silence, "asyncio", SimpleNamespace(get_running_loop=lambda: clock))
    return World(clock)


def test_a_broker_that_holds_pulls_back_is_knocked_at_and_kept(world: World) -> None:
    world.polls[A] = world.clock.now
    world.watch.uses(A)
    world.clock.advance(QUIET_S - SILENCE_LOOK_S)
    assert world.knocked == []
    world.clock.advance(60)
    assert len(world.knocked) == pytest.approx(60 / QUIET_S, abs=2), "every time it was quiet for so long"
    assert (world.looked_up, world.left) == ([], [])


def test_a_frozen_broker_is_left_soon_after_another_has_its_place(world: World) -> None:
    world.answers = False
    world.polls[A] = began = world.clock.now
    world.watch.uses(A)
    world.clock.advance(9)
    assert world.left == [], "the route still names it"
    assert world.looked_up[0] - began <= QUIET_S + SILENT_S + 2 * SILENCE_LOOK_S
    assert len(world.knocked) == 1, "the first one is not answered yet"
    world.named.remove(A)
    world.clock.advance(2)
    assert world.left == [A]


def test_a_broker_that_owes_an_answer_is_not_knocked_at(world: World) -> None:
    world.due[A] = world.clock.now
    world.watch.uses(A)
    world.clock.advance(SILENT_S + 2 * SILENCE_LOOK_S)
    assert (len(world.looked_up) > 0, world.knocked) == (True, [])
    world.named.remove(A)
    world.clock.advance(SILENCE_LOOK_S)
    assert world.left == [A]


def test_the_longer_the_silence_the_fewer_are_the_questions(world: World) -> None:
    world.due[A] = began = world.clock.now
    world.watch.uses(A)
    world.clock.advance(100)
    gaps = [after - before for before, after in zip([began, *world.looked_up], world.looked_up, strict=False)]
    assert max(gap for gap, at in zip(gaps, world.looked_up, strict=True) if at - began < 15) <= 2
    assert len(world.looked_up) < 50
    world.due[A] = world.clock.now
    before = len(world.looked_up)
    world.clock.advance(SILENT_S + 2 * SILENCE_LOOK_S)
    assert len(world.looked_up) > before, "it begins anew with each silence"


def test_only_what_members_use_is_watched_and_only_while_they_wait(world: World) -> None:
    world.due[NAMES] = world.due[B] = world.clock.now
    world.named.clear()
    world.watch.uses(A)
    world.clock.advance(10)
    assert world.left == []
    assert world.clock.is_idle
    assert not world.watch.is_armed
    world.polls[A] = world.clock.now
    world.watch.uses(A)
    assert world.watch.is_armed
    world.watch.stop()
    assert world.clock.is_idle
    world.watch.uses(B)
    assert world.clock.is_idle, "not after the end"


def test_a_request_that_may_be_held_back_owes_nothing_before_its_time() -> None:
    clock = Clock()
    channel = Channel(A, cast(asyncio.AbstractEventLoop, clock), lambda *_: None, lambda *_: None)
    assert (channel.silent_s(), channel.quiet_s()) == (0.0, 0.0)
    channel.submit(1, 30_000, lambda _: None, b"poll", poll_ms=15_000)
    clock.advance(10)
    assert (channel.silent_s(), channel.quiet_s()) == (0.0, pytest.approx(10.0))
    channel.submit(2, 20_000, lambda _: None, b"heartbeat")
    clock.advance(2)
    assert (channel.silent_s(), channel.quiet_s()) == (pytest.approx(2.0), pytest.approx(12.0))
    channel.data_received(encode_response(2, 0, None, b""))
    clock.advance(1)
    assert (channel.silent_s(), channel.quiet_s()) == (0.0, pytest.approx(1.0))
    clock.advance(6)
    assert channel.silent_s() == pytest.approx(4.0), "the pull is late"
