"""Requests that wait for events of a client with lite subscriptions (PopLiteLongPollingService).

They wait under the client's id, oldest first. Requests of closed connections are dropped when they are next examined.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from operator import attrgetter
from typing import Generic, TypeVar

from mqspark.base.bounded import BoundedSet, Ledger, weigh
from mqspark.base.config import Limit
from mqspark.broker.lite.liteclients import LiteClients
from mqspark.broker.state.slots import LongPoll
from mqspark.broker.state.state import BrokerState
from mqspark.protocol.session import Session

_WAITER_BYTES = 600
FEW_DEADLINES = 64
"""With so many deadlines more than twice the requests that wait, those of answered ones are forgotten."""


class LiteWaiter(LongPoll):
    __slots__ = ("client_id",)

    def __init__(
        self,
        session: Session,
        opaque: int,
        client_id: str,
        group: str,
        topic: str,
        deadline_ms: int,
        attempt_id: str | None = None,
    ) -> None:
        size_bytes = _WAITER_BYTES + weigh((client_id, group, topic, attempt_id))
        super().__init__(session, opaque, topic, group, deadline_ms, size_bytes)
        self.client_id = client_id

    def __lt__(self, other: LiteWaiter) -> bool:
        return self.deadline_ms < other.deadline_ms


W = TypeVar("W", bound=LiteWaiter)


class LiteParked(Generic[W]):
    def __init__(self, state: BrokerState, clients: LiteClients, name: str, code: int, *holds: str) -> None:
        """``name``: of the table; ``code``: of the requests; ``holds``: what else grows with them."""
        self._state = state
        self._clients = clients
        self._code = code
        self.ledger = Ledger(
            name,
            Limit(state.config, "max_parked_bytes"),
            "LiteParked._waiting",
            "LiteParked._deadlines",
            *holds,
            most=Limit(state.config, "max_pop_polling_size"),
        )
        self._all: BoundedSet[W] = self.ledger.set(0, attrgetter("size_bytes"))
        self._waiting: dict[str, deque[W]] = {}
        """By client id, oldest first."""
        self._deadlines: list[W] = []
        """A heap."""

    def __len__(self) -> int:
        return len(self._all)

    def __contains__(self, client_id: str) -> bool:
        return client_id in self._waiting

    def offer(self, waiter: W) -> bool:
        """Park it, unless too many are. Raises TableFull."""
        config, waiting = self._state.config, self._waiting.get(waiter.client_id, ())
        if (
            len(self) >= config.max_pop_polling_size
            or len(waiting) > config.pop_polling_size
            or not self._all.has_room_for(waiter, None)
        ):
            return False
        waiter.grant = self._state.grant(waiter.session, self._code)
        self._all.add(waiter, waiter.session)
        self._waiting.setdefault(waiter.client_id, deque()).append(waiter)
        heapq.heappush(self._deadlines, waiter)
        if len(self._deadlines) > 2 * len(self._all) + FEW_DEADLINES:
            self._deadlines = [each for each in self._deadlines if each in self._all]
            heapq.heapify(self._deadlines)
        return True

    def first(self, client_id: str) -> W | None:
        """The oldest of the client whose connection is open. One of another group, from before the client id was taken,
        is left alone."""
        waiting = self._waiting.get(client_id)
        while waiting and not waiting[0].session.open:
            self.remove(waiting[0])
        return next(
            (
                waiter
                for waiter in waiting or ()
                if waiter.session.open and self._clients.subscribes(client_id, waiter.group, waiter.topic)
            ),
            None,
        )

    def remove(self, waiter: W) -> None:
        del self._all[waiter]
        waiting = self._waiting[waiter.client_id]
        waiting.remove(waiter)
        if not waiting:
            del self._waiting[waiter.client_id]

    def expired(self) -> Iterator[W]:
        """Remove those whose time is up; those of them that may still be answered."""
        now_ms = self._state.clock.monotonic_ms()
        while self._deadlines and (
            self._deadlines[0] not in self._all or self._deadlines[0].deadline_ms <= now_ms
        ):
            waiter = heapq.heappop(self._deadlines)
            if waiter in self._all:
                self.remove(waiter)
                if not waiter.is_refused():
                    yield waiter
