"""Parked pops and notifications that are served: messages have come for them, or their time is up.

One message may concern very many of them. They are served in slices, between the turns of others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Generic

from mqspark.base.config import Limit
from mqspark.base.logs import sparing
from mqspark.broker.pop.parked_pops import ANY_QUEUE, EXAMINED_AT_ONCE, ParkedPops, W
from mqspark.broker.state.state import BrokerState
from mqspark.protocol.slices import Work

_log = sparing(__name__)


class WakingPops(Generic[W]):
    def __init__(self, state: BrokerState, name: str, code: int, at_once: int, later: int) -> None:
        """``name``: of the table; ``code``: of the requests; ``at_once``: the steps of the slice in which they are
        woken, ``later``: those of each further one."""
        self._state = state
        self._code = code
        self._slices = at_once, later
        most = Limit(state.config, "max_pop_polling_size")
        self.parked: ParkedPops[W] = ParkedPops(
            state.clock, name, Limit(state.config, "max_parked_bytes"), most
        )
        self._grown: dict[tuple[str, str, int], None] = {}
        """(topic, group, queue id): queues with new messages, whose waiters are not served yet."""
        self._expired: deque[W] = deque()
        """No longer parked, not answered yet."""
        self._is_serving = False

    def offer(self, waiter: W) -> bool:
        """Park it, unless too many are. Raises TableFull."""
        config, parked = self._state.config, self.parked
        if (
            parked.count + len(self._expired) >= config.max_pop_polling_size
            or parked.waiting(waiter.topic, waiter.group, waiter.queue_id) >= config.pop_polling_size
            or not parked.has_room(waiter)
        ):
            return False
        parked.admit(waiter)
        waiter.grant = self._state.grant(waiter.session, self._code)
        parked.park(waiter)
        return True

    def arrived(self, arrivals: Iterable[tuple[str, int, int]]) -> None:
        """Queues have grown: (topic, queue id, new max offset) each."""
        for topic, queue_id, _ in arrivals:
            for waiting_topic, group, is_retry in self.parked.interested(topic):
                self._grown[waiting_topic, group, ANY_QUEUE if is_retry else queue_id] = None
        self._serve_parked()

    def expire(self) -> None:
        self._more_expired()
        self._serve_parked()

    def _serve_grown(self, topic: str, group: str, queue_id: int) -> Iterator[int]:
        """Serve who would read the queue (ANY_QUEUE: the retries); yields the steps that this has taken."""
        raise NotImplementedError

    def _serve_expired(self, waiter: W) -> int:
        """The steps that this has taken."""
        raise NotImplementedError

    def _waiting_for(self, topic: str, group: str, queue_id: int) -> Iterator[int]:
        """The queue ids under which somebody waits who would read the queue."""
        for each in self.parked.queue_ids(topic, group):
            if ANY_QUEUE in (queue_id, each) or each == queue_id:
                yield each

    def _more_expired(self) -> bool:
        self._expired.extend(self.parked.expired(EXAMINED_AT_ONCE))
        return bool(self._expired)

    def _serve_parked(self) -> None:
        if (self._grown or self._expired) and not self._is_serving:
            self._is_serving = True
            self._state.long_work.begin(None, self._serve_in_slices())

    def _serve_in_slices(self) -> Work[None]:
        left, later = self._slices
        while self._grown or self._expired or self._more_expired():
            try:
                for steps in self._serve_next():
                    left -= steps
                    if left <= 0:
                        left = later
                        yield
            except Exception:
                _log.exception("a parked request of POP could not be served")
        self._is_serving = False

    def _serve_next(self) -> Iterator[int]:
        if self._expired:
            waiter = self._expired.popleft()
            # One of a closed connection is a step, too: there may be very many.
            yield self._serve_expired(waiter) if waiter.session.open else 1
        else:
            key = next(iter(self._grown))
            del self._grown[key]
            yield from self._serve_grown(*key)
