"""Ordered pops as their consumer sees them: one message of a queue at a time, in the order of the queue.

``PoppedQueue`` decides what may run; ``PoppedInOrder`` gives it to the listener and keeps the queues. The broker
hands out more of a queue only when everything handed out before is acknowledged or visible again, so the consumer
keeps a queue as long as it holds one of its messages: it renews the last one while the others are processed.
Facts: RocketMQ's ConsumerOrderInfoManager, PopMessageProcessor.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterable

from mqspark.base.logs import escaping
from mqspark.client.life.timers import Timer, Timers
from mqspark.client.pop.popped import Popped
from mqspark.message import MessageQueue

log = escaping(__name__)

RENEWALS = 3
"""In one invisible time."""


class PoppedQueue:
    """The popped messages of one queue: waiting and running ones, and until when they are held. Times are monotonic
    seconds."""

    __slots__ = ("deadline", "resume", "running", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[Popped] = deque()
        self.running: Popped | None = None
        self.deadline = 0.0
        """Until then no other member is handed messages of the queue."""
        self.resume = 0.0
        """The queue pauses until then."""

    def replace(self, popped: Iterable[Popped]) -> list[Popped]:
        """The broker has handed out the queue again, so waiting messages of an earlier pop are no longer held;
        they are returned. A running message is waited for."""
        forgotten = list(self.waiting)
        self.waiting = deque(popped)
        self.deadline = min(work.deadline for work in self.waiting)
        self.resume = 0.0
        return forgotten

    def next(self, now: float) -> Popped | None:
        """The next message for the listener; None while one is running, while the queue pauses, or if its time
        has expired."""
        if self.running is not None or not self.waiting or now < self.resume or now >= self.deadline:
            return None
        self.running = self.waiting.popleft()
        return self.running

    def done(self) -> None:
        """The running message is consumed, or no longer held."""
        self.running = None

    def put_back(self, resume: float) -> bool:
        """The running message failed and is first in line after the pause. False if its pop was replaced
        meanwhile; it is then delivered again anyway."""
        work, self.running = self.running, None
        if work is None:
            raise AssertionError("nothing of the queue runs")
        if self.waiting and self.waiting[0].receipt.pop_time_ms != work.receipt.pop_time_ms:
            return False
        self.waiting.appendleft(work)
        self.resume = resume
        return True

    def drop(self) -> list[Popped]:
        """The queue is no longer held; returns its waiting messages."""
        forgotten = list(self.waiting)
        self.waiting.clear()
        return forgotten

    def last(self) -> Popped | None:
        """The message to renew in order to keep the queue."""
        return self.waiting[-1] if self.waiting else self.running


class PoppedInOrder:
    """The ordered queues of one consumer. Belongs to the running loop.

    ``submit`` is called with what the listener gets, ``forget`` with what it will never get. ``renew`` keeps a
    message invisible for another interval; it returns False if the message is no longer held, None if unknown.
    """

    def __init__(
        self,
        *,
        timers: Timers,
        invisible_ms: int,
        submit: Callable[[Popped], None],
        forget: Callable[[Popped], None],
        renew: Callable[[Popped], Awaitable[bool | None]],
    ) -> None:
        self._timing = timers
        self._now_s = timers.now_s
        self._invisible_s = invisible_ms / 1000
        self._submit = submit
        self._forget = forget
        self._renew = renew
        self._queues: dict[MessageQueue, PoppedQueue] = {}
        self._timers: set[Timer] = set()
        self._stopping = False

    def add(self, popped: Iterable[Popped]) -> None:
        """Add the messages of one pop."""
        places: dict[MessageQueue, list[Popped]] = {}
        for work in popped:
            places.setdefault(_place(work), []).append(work)
        for place, works in places.items():
            queue = self._queues.setdefault(place, PoppedQueue())
            self._forget_all(queue.replace(works))
            self._advance(place, queue)

    def is_ours(self, work: Popped) -> bool:
        """Whether its acknowledgement will count."""
        return self._now_s() < self._queues[_place(work)].deadline

    def done(self, work: Popped) -> None:
        """``work`` ran and is consumed; or its time expired, and it is delivered again with the messages after
        it."""
        place = _place(work)
        queue = self._queues[place]
        queue.done()
        self._advance(place, queue)

    def rest(self, work: Popped, pause_ms: int) -> None:
        """``work`` ran and failed: it is delivered again before later messages of its queue."""
        place = _place(work)
        queue = self._queues[place]
        if not queue.put_back(self._now_s() + pause_ms / 1000):
            self._forget(work)
        self._advance(place, queue)

    def stop(self) -> None:
        """Start nothing more."""
        self._stopping = True
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()

    async def renew_forever(self) -> None:
        while True:
            await self._timing.sleep(self._invisible_s / RENEWALS)
            for place, queue in list(self._queues.items()):
                await self._keep(place, queue)

    async def _keep(self, place: MessageQueue, queue: PoppedQueue) -> None:
        work = queue.last()
        if work is None:
            return
        asked = self._now_s()
        is_ours = await self._renew(work)
        last = queue.last()
        if last is None or last.receipt.pop_time_ms != work.receipt.pop_time_ms:
            return  # everything is done or was popped again meanwhile
        if is_ours:
            queue.deadline = asked + self._invisible_s
        elif is_ours is False:
            log.warning("%s was handed out again before what was popped of it was consumed", place)
            queue.deadline = 0.0
            self._advance(place, queue)

    def _advance(self, place: MessageQueue, queue: PoppedQueue) -> None:
        if self._stopping:
            return
        now = self._now_s()
        if now >= queue.deadline:
            self._forget_all(queue.drop())
        work = queue.next(now)
        if work is not None:
            self._submit(work)
        elif queue.running is None:
            if queue.waiting:
                self._call_later(queue.resume - now, place, queue)
            elif self._queues.get(place) is queue:
                del self._queues[place]

    def _call_later(self, pause_s: float, place: MessageQueue, queue: PoppedQueue) -> None:
        def rested() -> None:
            self._timers.discard(timer)
            self._advance(place, queue)

        timer = self._timing.call_later(pause_s, rested)
        self._timers.add(timer)

    def _forget_all(self, works: Iterable[Popped]) -> None:
        for work in works:
            self._forget(work)


def _place(work: Popped) -> MessageQueue:
    return MessageQueue(work.topic, work.receipt.broker_name, work.receipt.queue_id)
