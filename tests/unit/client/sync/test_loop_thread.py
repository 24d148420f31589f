"""The thread of blocking clients, and the window of their sends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from mqspark.client.producer.send_window import ThreadWindow
from mqspark.client.sync.loop import LoopCall, LoopThread
from mqspark.errors import ClientError

WAIT_S = 60.0


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    thread = LoopThread.acquire("test")
    yield thread

    async def leave() -> None:
        thread.release("test")

    thread.call(leave())
    thread.join()


async def answer(what: str) -> str:
    await asyncio.sleep(0)
    return what


def test_what_is_there_at_once_needs_no_task(thread: LoopThread) -> None:
    assert thread.call(answer("later"), lambda: "at once") == "at once"
    assert thread.call(answer("later"), lambda: None) == "later"
    with pytest.raises(ZeroDivisionError):
        thread.call(answer("later"), lambda: str(1 // 0))


def test_several_threads_wait_for_one_call(thread: LoopThread) -> None:
    go_on = asyncio.Event()
    call = LoopCall(go_on.wait())
    thread.post(call.begin)
    with pytest.raises(TimeoutError):
        call.wait(0.01)
    outcomes: list[bool] = []
    waiters = [threading.Thread(target=lambda: outcomes.append(call.wait(WAIT_S))) for _ in range(5)]
    for waiter in waiters:
        waiter.start()
    thread.post(go_on.set)
    for waiter in waiters:
        waiter.join(WAIT_S)
    assert outcomes == [True] * 5
    assert call.wait(0) is True


def test_what_comes_with_the_end_or_after_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    late, later, unwoken = (LoopCall(answer("late")) for _ in range(3))
    others = [unwoken.begin]

    class Ending(asyncio.SelectorEventLoop):
        """Somebody posts when it has made its last turn, and somebody while another one wakes it."""

        def close(self) -> None:
            thread.post(late.begin)
            super().close()

        def call_soon_threadsafe(self, *arguments: Any, **options: Any) -> Any:
            if self.is_closed() and others:
                thread.post(others.pop())
            return super().call_soon_threadsafe(*arguments, **options)

    monkeypatch.setattr("mqspark.client.sync.loop._new_loop", Ending)
    thread = LoopThread.acquire("ends")
    is_begun = threading.Event()

    async def for_ever() -> None:
        is_begun.set()
        await asyncio.Event().wait()

    running = LoopCall(for_ever())
    thread.post(running.begin)
    assert is_begun.wait(WAIT_S)

    async def leave() -> None:
        thread.release("ends")

    thread.call(leave())
    for call in (late, running):
        with pytest.raises(ClientError, match="stopped"):
            call.wait(WAIT_S)
    thread.join()
    with pytest.raises(ClientError, match="stopped"):
        thread.post(later.begin)
    for call in (unwoken, later):
        with pytest.raises(ClientError, match="stopped"):
            call.wait(0)
    called: list[str] = []
    thread.take_back(lambda: called.append("here"))
    assert called == ["here"]


@pytest.mark.parametrize("limit", [1, 2, 7])
def test_no_thread_waits_for_room_for_ever(limit: int) -> None:
    """Threads that take meet the one that gives at every moment."""
    window = ThreadWindow(limit, 1_000)
    taken: list[int] = []
    some = threading.Semaphore(0)

    def take() -> None:
        for _ in range(500):
            window.take(10)
            taken.append(10)
            some.release()

    takers = [threading.Thread(target=take, daemon=True) for _ in range(4)]
    for taker in takers:
        taker.start()
    for number in range(2_000):
        assert some.acquire(timeout=WAIT_S), f"nobody got room after {number}"
        assert len(taken) - number <= limit
        window.give(10)
    for taker in takers:
        taker.join(WAIT_S)
    assert len(taken) == 2_000
