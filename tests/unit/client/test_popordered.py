"""Ordered pops in the client: what runs when, what is forgotten, how a queue is kept."""

from __future__ import annotations

import asyncio
import time

from mqspark.base.clock import SystemClock
from mqspark.client.life.timers import Timers
from mqspark.client.pop.popordered import PoppedInOrder, PoppedQueue
from mqspark.client.pop.popped import Popped
from mqspark.message import MessageExt
from mqspark.protocol.receipts import ORDER_REVIVE_QUEUE, Receipt
from tests.support.waiting import eventually_async

WAIT_S = 60.0


def popped(*offsets: int, pop_time_ms: int = 1, queue_id: int = 0, deadline: float = 100.0) -> list[Popped]:
    return [
        Popped(
            MessageExt.__new__(MessageExt),
            "T",
            Receipt(offsets[0], pop_time_ms, 60_000, ORDER_REVIVE_QUEUE, "0", "b", queue_id, offset),
            deadline,
        )
        for offset in offsets
    ]


def test_one_at_a_time() -> None:
    queue = PoppedQueue()
    one, two = popped(1, 2)
    assert queue.replace([one, two]) == []
    assert queue.next(0) is one
    assert queue.next(0) is None
    assert queue.last() is two
    queue.done()
    assert queue.next(0) is two
    assert queue.last() is two
    queue.done()
    assert (queue.next(0), queue.last()) == (None, None)


def test_what_fails_comes_first_when_the_queue_has_rested() -> None:
    queue = PoppedQueue()
    one, two = popped(1, 2)
    queue.replace([one, two])
    queue.next(0)
    assert queue.put_back(5.0)
    assert queue.next(4.9) is None
    assert queue.next(5.0) is one


def test_nothing_runs_of_a_queue_that_is_not_ours_any_more() -> None:
    queue = PoppedQueue()
    works = popped(1, 2)
    queue.replace(works)
    assert queue.next(100.0) is None
    assert queue.drop() == works


def test_a_new_pop_replaces_what_waits_and_waits_for_what_runs() -> None:
    queue = PoppedQueue()
    one, two = popped(1, 2)
    queue.replace([one, two])
    queue.next(0)
    again = popped(1, 2, pop_time_ms=2)
    assert queue.replace(again) == [two]
    assert queue.next(0) is None
    assert not queue.put_back(5.0)
    assert queue.next(0) is again[0]


class Consumer:
    def __init__(self, *, invisible_ms: int = 60_000, is_ours: bool | None = True) -> None:
        self.submitted: list[Popped] = []
        self.forgotten: list[Popped] = []
        self.renewed: list[Popped] = []
        self._is_ours = is_ours
        self.queues = PoppedInOrder(
            timers=Timers(SystemClock()),
            invisible_ms=invisible_ms,
            submit=self.submitted.append,
            forget=self.forgotten.append,
            renew=self._renew,
        )

    async def _renew(self, work: Popped) -> bool | None:
        self.renewed.append(work)
        return self._is_ours


def fresh(*offsets: int, queue_id: int = 0, pop_time_ms: int = 1) -> list[Popped]:
    return popped(*offsets, queue_id=queue_id, pop_time_ms=pop_time_ms, deadline=time.monotonic() + WAIT_S)


async def test_queues_do_not_wait_for_each_other() -> None:
    consumer = Consumer()
    first, second = fresh(1, 2), fresh(7, queue_id=1)
    consumer.queues.add([*first, *second])
    assert consumer.submitted == [first[0], second[0]]
    consumer.queues.rest(first[0], 60_000)
    consumer.queues.done(second[0])
    assert consumer.submitted == [first[0], second[0]]
    consumer.queues.stop()


async def test_a_queue_that_has_rested_goes_on() -> None:
    consumer = Consumer()
    one, two = fresh(1, 2)
    consumer.queues.add([one, two])
    consumer.queues.rest(one, 10)
    await eventually_async(lambda: len(consumer.submitted) == 2)
    consumer.queues.done(one)
    assert consumer.submitted == [one, one, two]


async def test_the_last_message_is_renewed_while_another_runs() -> None:
    consumer = Consumer(invisible_ms=30)
    one, two = fresh(1, 2)
    consumer.queues.add([one, two])
    task = asyncio.create_task(consumer.queues.renew_forever())
    await eventually_async(lambda: len(consumer.renewed) >= 3)
    consumer.queues.stop()
    task.cancel()
    assert set(map(id, consumer.renewed)) == {id(two)}
    assert consumer.submitted == [one]


async def test_what_was_handed_out_to_another_is_forgotten() -> None:
    consumer = Consumer(invisible_ms=30, is_ours=False)
    one, two = fresh(1, 2)
    consumer.queues.add([one, two])
    task = asyncio.create_task(consumer.queues.renew_forever())
    await eventually_async(lambda: bool(consumer.renewed))
    task.cancel()
    assert consumer.forgotten == [two]
    assert not consumer.queues.is_ours(one)
    consumer.queues.done(one)
    assert consumer.submitted == [one]
