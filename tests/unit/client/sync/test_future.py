"""The lean future of blocking sends is a future of concurrent.futures in every way that programs use one."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading

import pytest

from mqspark.client.delivery.results import SendResult, SendStatus
from mqspark.client.producer.send_window import ThreadWindow
from mqspark.client.sync.future import SendFuture
from mqspark.errors import ConnectionLost
from mqspark.message import MessageQueue, QueueOffset

WAIT_S = 60.0
RESULT = SendResult(SendStatus.SEND_OK, "id", "offset id", MessageQueue("T", "b", 0), QueueOffset(7))


def future() -> SendFuture:
    window = ThreadWindow(10, 1_000)
    window.take(5)
    return SendFuture(window, 5)


def later(what: concurrent.futures.Future[SendResult], error: Exception | None = None) -> threading.Timer:
    def settle() -> None:
        if error is None:
            what.set_result(RESULT)
        else:
            what.set_exception(error)

    timer = threading.Timer(0.02, settle)
    timer.start()
    return timer


def test_a_result_that_is_there() -> None:
    done = future()
    assert not done.done()
    done.set_result(RESULT)
    assert (done.done(), done.running(), done.cancelled(), done.exception()) == (True, False, False, None)
    assert done.result() is done.result(0) is RESULT


def test_a_thread_waits() -> None:
    waited = future()
    timer = later(waited)
    assert waited.result(WAIT_S) is RESULT
    timer.join()


def test_an_error() -> None:
    error = ConnectionLost("b")
    there, waited = future(), future()
    there.set_exception(error)
    timer = later(waited, error)
    for one in (there, waited):
        with pytest.raises(ConnectionLost) as caught:
            one.result(WAIT_S)
        assert caught.value is error
        assert one.exception() is error
    timer.join()


def test_nothing_in_time() -> None:
    with pytest.raises(concurrent.futures.TimeoutError):
        future().result(0.01)


def test_it_is_settled_once_and_never_taken_back() -> None:
    one = future()
    assert not one.cancel()
    one.set_result(RESULT)
    with pytest.raises(concurrent.futures.InvalidStateError):
        one.set_exception(ConnectionLost("b"))
    assert one.result() is RESULT


def test_callbacks_before_and_after() -> None:
    one = future()
    called: list[object] = []
    one.add_done_callback(lambda done: called.append(done.result()))
    assert called == []
    one.set_result(RESULT)
    assert called == [RESULT]
    one.add_done_callback(called.append)
    assert called == [RESULT, one]


def test_room_is_given_back_before_callbacks_may_need_it() -> None:
    window = ThreadWindow(1, 1_000)
    window.take(5)
    one = SendFuture(window, 5)
    one.add_done_callback(lambda _: window.take(5))
    one.set_result(RESULT)
    assert one.done()


def test_wait_and_as_completed() -> None:
    there, waited = future(), future()
    there.set_result(RESULT)
    timer = later(waited)
    assert concurrent.futures.wait([there, waited], WAIT_S).not_done == set()
    timer.join()
    failed = future()
    timer = later(failed, ConnectionLost("b"))
    futures: list[concurrent.futures.Future[SendResult]] = [there, waited, failed]
    assert set(concurrent.futures.as_completed(futures, WAIT_S)) == set(futures)
    timer.join()


async def test_a_coroutine_waits() -> None:
    one = future()
    timer = later(one)
    async with asyncio.timeout(WAIT_S):
        assert await asyncio.wrap_future(one) is RESULT
    timer.join()


def test_nobody_waits_in_vain() -> None:
    """Two threads meet at the same moment, many times."""
    futures = [future() for _ in range(3_000)]
    barrier = threading.Barrier(2, timeout=WAIT_S)

    def settle() -> None:
        barrier.wait()
        for one in futures:
            one.set_result(RESULT)

    thread = threading.Thread(target=settle)
    thread.start()
    barrier.wait()
    called: list[object] = []
    for one in futures:
        one.add_done_callback(called.append)
        assert one.result(WAIT_S) is RESULT
    thread.join(WAIT_S)
    assert called == futures
