"""Parked pops and notifications: requests that found no message and wait (PopLongPollingService).

They wait under (topic, group) and queue id; -1 means any queue. An arrival wakes one request of a group, not all.
Requests of closed connections are dropped when they are next examined.

Facts: docs/rocketmq/pop.md#waiting.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable
from itertools import chain, islice
from typing import Generic, TypeVar

from mqspark.base.bounded import BoundedMap, Ledger, text_bytes
from mqspark.base.clock import Clock
from mqspark.base.config import Bound
from mqspark.base.shares import NOBODY
from mqspark.broker.state.heldrequests import HeldRequests, Wanted
from mqspark.broker.state.slots import LongPoll, Slots
from mqspark.protocol.receipts import retry_topic_v1, retry_topic_v2
from mqspark.protocol.session import Session
from mqspark.protocol.slices import Work

ANY_QUEUE = -1

_WAITER_BYTES = 300
_QUEUE_BYTES = 800
EXAMINED_AT_ONCE = 64
"""Waiters that are examined in one turn because of their time; more are examined between other turns."""
REFUSED_AT_ONCE = 64
"""Waiters of a deleted topic that are answered in one slice."""
_PAIR_BYTES = 2_000
"""With the names of its retry topics."""


class Waiter(LongPoll):
    """A pop or a notification."""

    __slots__ = ("attempt_id", "owner", "queue_id", "slot", "wanted")

    def __init__(
        self,
        session: Session,
        opaque: int,
        topic: str,
        group: str,
        queue_id: int,
        deadline_ms: int,
        *,
        attempt_id: str | None,
        wanted: Wanted = None,
    ) -> None:
        size_bytes = _WAITER_BYTES + text_bytes(topic, group, attempt_id)
        super().__init__(session, opaque, topic, group, deadline_ms, size_bytes)
        self.queue_id = queue_id
        self.slot = 0
        self.attempt_id = attempt_id
        self.wanted = wanted
        self.owner = NOBODY
        """The user whose share of the parked requests it takes."""


W = TypeVar("W", bound=Waiter)


class ParkedPops(Generic[W]):
    def __init__(self, clock: Clock, name: str, max_bytes: Bound, most: Bound) -> None:
        """``most``: how many there may be, of which one user parks a share; the caller refuses more."""
        self.ledger = Ledger(
            name,
            max_bytes,
            "ParkedPops._groups",
            "ParkedPops._retries",
            "Slots._slots",
            most=most,
        )
        self._requests: HeldRequests[W] = HeldRequests(self.ledger, _PAIR_BYTES)
        self.requests = self._requests.requests
        """All of them. To be looked at only: every turn asks whether there are any."""
        self._clock = clock
        self._waiting: BoundedMap[tuple[str, str], dict[int, OrderedDict[W, None]]] = self.ledger.map(
            _PAIR_BYTES, lambda queues: _QUEUE_BYTES * len(queues)
        )
        """(topic, group) → queue id → waiters, oldest first. Each leaves at the same cost, wherever it is."""
        self._groups: dict[str, set[str]] = {}
        """topic → the groups that wait for it."""
        self._retries: dict[str, tuple[str, str]] = {}
        """retry topic → the (topic, group) that waits for it too."""
        self._slots: Slots[W] = Slots()

    @property
    def count(self) -> int:
        return len(self.requests)

    def __contains__(self, pair: tuple[str, str]) -> bool:
        """Whether anybody waits for this topic and group."""
        return pair in self._waiting

    def waiting(self, topic: str, group: str, queue_id: int) -> int:
        return len(self._waiting.get((topic, group), {}).get(queue_id, ()))

    def has_room(self, waiter: W) -> bool:
        return self._requests.has_room_for(waiter, _PAIR_BYTES + _QUEUE_BYTES)

    def admit(self, waiter: W) -> None:
        """Raises TableFull when its user has their share."""
        waiter.owner = self._requests.admit(waiter)

    def park(self, waiter: W, *, first: bool = False) -> None:
        """``first``: it was woken in vain and goes back to the front. Never refuses: see ``has_room`` and ``admit``."""
        self._requests.hold(waiter)
        key = (waiter.topic, waiter.group)
        queues = self._waiting.get(key)
        if queues is None:
            queues = {waiter.queue_id: OrderedDict()}
            self._waiting.keep(key, queues)
            self._groups.setdefault(waiter.topic, set()).add(waiter.group)
            for name in (retry_topic_v1(*key), retry_topic_v2(*key)):
                self._retries[name] = key
        waiters = queues.get(waiter.queue_id)
        if waiters is None:
            waiters = queues[waiter.queue_id] = OrderedDict()
            self._waiting.grow(key, _QUEUE_BYTES)
        waiters[waiter] = None
        if first:
            waiters.move_to_end(waiter, last=False)
        self._slots.enter(waiter, self._clock.monotonic_ms())

    def interested(self, topic: str) -> list[tuple[str, str, bool]]:
        """The waiters that a message in ``topic`` may concern: (topic, group, whether the topic is their retry
        topic)."""
        found = [(topic, group, False) for group in self._groups.get(topic, ())]
        retried = self._retries.get(topic)
        if retried is not None:
            found.append((*retried, True))
        return found

    def queue_ids(self, topic: str, group: str) -> list[int]:
        """Queue ids with waiters, "any queue" first."""
        return sorted(self._waiting.get((topic, group), ()))

    def take(self, topic: str, group: str, queue_id: int) -> W | None:
        """Remove and return the oldest waiter for exactly this queue id."""
        waiters = self._waiting.get((topic, group), {}).get(queue_id)
        taken = None
        while waiters and taken is None:
            waiter, _ = waiters.popitem(last=False)
            self._slots.leave(waiter)
            self._requests.release(waiter)
            if waiter.session.open:
                taken = waiter
        if waiters is not None and not waiters:
            self._forget(topic, group, queue_id)
        return taken

    def expired(self, most: int = sys.maxsize) -> list[W]:
        """Remove and return the waiters whose time is up or whose connection is closed; at most so many are
        examined."""
        over = list(self._slots.over(self._clock.monotonic_ms(), most))
        for waiter in over:
            self._leave(waiter)
        return over

    def _leave(self, waiter: W) -> None:
        """It is in no slot any more."""
        waiters = self._waiting[waiter.topic, waiter.group][waiter.queue_id]
        del waiters[waiter]
        self._requests.release(waiter)
        if not waiters:
            self._forget(waiter.topic, waiter.group, waiter.queue_id)

    def refused(self, topic: str, refuse: Callable[[W], None]) -> Work[None]:
        """Remove and refuse all waiters of a topic, slice by slice. Those that are parked meanwhile stay."""
        queues = [self._waiting[topic, group].values() for group in sorted(self._groups.get(topic, ()))]
        parked = iter(list(chain.from_iterable(chain.from_iterable(queues))))
        while some := list(islice(parked, REFUSED_AT_ONCE)):
            for waiter in some:
                if waiter in self.requests:
                    self._slots.leave(waiter)
                    self._leave(waiter)
                    if waiter.session.open:
                        refuse(waiter)
            yield

    def take_all(self) -> list[W]:
        """Remove and return all waiters."""
        found = [
            waiter for queues in self._waiting.values() for waiters in queues.values() for waiter in waiters
        ]
        for waiter in found:
            self._requests.release(waiter)
        for key, queues in list(self._waiting.items()):
            for queue_id in list(queues):
                self._forget(*key, queue_id)
        self._slots.clear()
        return [waiter for waiter in found if waiter.session.open]

    def _forget(self, topic: str, group: str, queue_id: int) -> None:
        queues = self._waiting[topic, group]
        if len(queues) > 1:
            del queues[queue_id]
            self._waiting.grow((topic, group), -_QUEUE_BYTES)
            return
        del self._waiting[topic, group]
        groups = self._groups[topic]
        groups.discard(group)
        if not groups:
            del self._groups[topic]
        for name in (retry_topic_v1(topic, group), retry_topic_v2(topic, group)):
            if self._retries.get(name) == (topic, group):
                del self._retries[name]
