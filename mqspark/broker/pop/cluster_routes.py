"""A cache of topic routes in the whole cluster, for topics that requests asked for (TopicRouteInfoManager).

The shell asks a name server for the topics in ``due`` and passes the answers to ``learned``. This broker's own
queues are always read from its topic table.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Collection
from itertools import islice, takewhile
from operator import itemgetter

from mqspark.base.bounded import BoundedMap, Ledger, weigh
from mqspark.base.config import Limit
from mqspark.base.logs import sparing
from mqspark.broker.state.state import BrokerState
from mqspark.message import PERM_READ, Queues
from mqspark.protocol.bodies.topic_bodies import MAX_QUEUES, MAX_ROUTE_QUEUES, QueueData, TopicRouteData
from mqspark.protocol.session import Session
from mqspark.protocol.slices import Work

_log = sparing(__name__)

REFRESH_MS = 30_000
DUE_STEP_MS = 500
"""Interval at which known routes are examined."""
FORGET_MS = 600_000
"""A topic that was not asked for in this time is no longer refreshed."""
MAX_TOPICS = 10_000
_ROUTE_BYTES = 300
_ANSWER_BYTES = 600
WAIT_MS = 1_500
"""How long a request waits for a name server; clients wait for 3 s."""


LOOKED_UP_AT_ONCE = 256
EXPIRED_AT_ONCE = 1_024
ANSWERED_AT_ONCE = 16
"""So many may have waited for one route, or for a name server that is away: all clients of a group."""

_Order = dict[str, None]
_Waiting = tuple[int, Session, Callable[[], bytes], int]
"""Deadline (monotonic), session, the function that builds the answer, and the bytes this takes."""


class _Route:
    __slots__ = ("asked_ms", "data_bytes", "is_known", "order", "queue_datas", "refresh_ms", "waiting")

    def __init__(self, now_ms: int) -> None:
        self.queue_datas: list[QueueData] = []
        self.is_known = False
        self.asked_ms = now_ms
        self.refresh_ms = now_ms
        self.data_bytes = 0
        """Size of ``queue_datas``."""
        self.order: _Order = {}
        """Where it waits for ``refresh_ms``."""
        self.waiting: list[_Waiting] = []

    def size_bytes(self) -> int:
        return self.data_bytes + sum(size_bytes for *_, size_bytes in self.waiting)


class KnownRoutes:
    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self.ledger = Ledger(
            "clusterRoutes",
            Limit(state.config, "max_waiting_bytes"),
            "_Route.waiting",
            "_Route.queue_datas",
            "_Route.order",
            "KnownRoutes._orders",
            "KnownRoutes._deadlines",
            "KnownRoutes._ready",
        )
        self._routes: BoundedMap[str, _Route] = self.ledger.map(_ROUTE_BYTES, _Route.size_bytes)
        self.known: Collection[object] = self._routes
        """Topics that ``due`` may return. To be looked at only: every turn asks whether there are any."""
        self._next_due_ms = 0
        self._orders: dict[int, _Order] = {0: {}, WAIT_MS: {}, REFRESH_MS: {}}
        """Topics by how long they wait for their look-up, each in the order in which it is due."""
        self._deadlines: deque[tuple[int, str]] = deque()
        """Deadline and topic of each request that has begun to wait."""
        self._ready: deque[_Waiting] = deque()
        """Requests that wait only for their turn."""
        self._is_answering = False

    def answer(self, session: Session, topic: str, answer: Callable[[], bytes], question_bytes: int) -> None:
        """Send what ``answer`` returns as soon as ``queues`` knows the topic or the name servers cannot tell; at
        once when there is no room to wait. ``question_bytes`` is the memory that ``answer`` holds."""
        state = self._state
        now_ms = state.clock.monotonic_ms()
        if not state.config.namesrv_addr:
            session.send(answer())
            return
        route = self._routes.get(topic)
        if route is None:
            route = _Route(now_ms)
            if len(self._routes) >= MAX_TOPICS or not self._routes.offer(topic, route):
                session.send(answer())
                return
            self._look_up_in(0, topic, route)
        route.asked_ms = now_ms
        question_bytes += _ANSWER_BYTES
        if route.is_known or not self._routes.has_room_to_grow(topic, question_bytes):
            session.send(answer())
        else:
            self._routes.grow(topic, question_bytes)
            route.waiting.append((now_ms + WAIT_MS, session, answer, question_bytes))
            self._deadlines.append((now_ms + WAIT_MS, topic))

    def queues(self, topic: str) -> Queues | None:
        """The readable queues on all brokers; None if no broker has the topic."""
        state = self._state
        own_name = state.config.broker_name
        own = state.topics.get(topic)
        route = self._routes.get(topic)
        others = [] if route is None else [data for data in route.queue_datas if data.broker_name != own_name]
        if own is None and not others:
            return None
        spans = {data.broker_name: data.read_queue_nums for data in others if data.perm & PERM_READ}
        if own is not None and own.readable and state.config.broker_permission & PERM_READ:
            spans[own_name] = own.read_queue_nums
        return Queues(topic, spans.items())

    # --- for the shell ---

    def due(self) -> list[str]:
        """Topics to look up at a name server now, at most ``LOOKED_UP_AT_ONCE``; they are not returned again for a
        while. No others are looked at."""
        if not self._routes:
            return []
        now_ms = self._state.clock.monotonic_ms()
        if now_ms < self._next_due_ms:
            return []
        due: list[str] = []
        for order in self._orders.values():
            first = islice(order, LOOKED_UP_AT_ONCE - len(due))
            due += takewhile(lambda topic: self._routes[topic].refresh_ms <= now_ms, list(first))
        self._next_due_ms = now_ms if len(due) == LOOKED_UP_AT_ONCE else now_ms + DUE_STEP_MS
        for topic in due:
            route = self._routes[topic]
            if now_ms - route.asked_ms > FORGET_MS:
                self._answer(topic, route, len(route.waiting))
                del route.order[topic]
                del self._routes[topic]
            else:
                self._look_up_in(REFRESH_MS, topic, route)
        return [topic for topic in due if topic in self._routes]

    def _look_up_in(self, wait_ms: int, topic: str, route: _Route) -> None:
        now_ms = self._state.clock.monotonic_ms()
        route.order.pop(topic, None)
        route.order = self._orders[wait_ms]
        route.order[topic] = None
        route.refresh_ms = now_ms + wait_ms
        if not wait_ms:
            self._next_due_ms = now_ms

    def learned(self, topic: str, route_data: TopicRouteData | None) -> None:
        """A name server's data of the topic; None: the topic does not exist."""
        route = self._routes.get(topic)
        if route is None:
            return
        route.queue_datas = [] if route_data is None else _sound(topic, route_data.queue_datas)
        data_bytes = weigh(route.queue_datas)
        more_bytes = data_bytes - route.data_bytes
        if more_bytes > 0 and not self._routes.has_room_to_grow(topic, more_bytes):
            route.queue_datas, data_bytes = [], 0
        self._routes.grow(topic, data_bytes - route.data_bytes)
        route.data_bytes = data_bytes
        route.is_known = True
        if route_data is None:
            self._look_up_in(WAIT_MS, topic, route)  # it may be created at any time
        self._answer(topic, route, len(route.waiting))

    def _answer(self, topic: str, route: _Route, count: int) -> None:
        """The first ``count`` that wait."""
        due, route.waiting = route.waiting[:count], route.waiting[count:]
        self._routes.grow(topic, -sum(size_bytes for *_, size_bytes in due))
        self._ready += due
        if self._ready and not self._is_answering:
            self._is_answering = True
            self._state.long_work.begin(None, self._answering())

    def _answering(self) -> Work[None]:
        answered = 0
        while self._ready:
            _, session, answer, _ = self._ready.popleft()
            try:
                if session.open:
                    session.send(answer())
            except Exception:
                _log.exception("the question of %s for an assignment could not be answered", session.peer)
            answered += 1
            if self._ready and answered % ANSWERED_AT_ONCE == 0:
                yield
        self._is_answering = False

    def expire(self) -> None:
        """Answer the requests that have waited long enough with the routes known here. No others are looked at."""
        now_ms, deadlines = self._state.clock.monotonic_ms(), self._deadlines
        for _ in range(EXPIRED_AT_ONCE):
            if not deadlines or deadlines[0][0] > now_ms:
                return
            topic = deadlines.popleft()[1]
            route = self._routes.get(topic)
            if route is not None and route.waiting and route.waiting[0][0] <= now_ms:  # else it was answered
                self._look_up_in(0, topic, route)
                self._answer(topic, route, bisect_right(route.waiting, now_ms, key=itemgetter(0)))


def _sound(topic: str, queue_datas: list[QueueData]) -> list[QueueData]:
    """Only data that a broker can have: name servers accept any registration."""
    sound: list[QueueData] = []
    room = MAX_ROUTE_QUEUES
    for data in queue_datas:
        if 0 <= data.read_queue_nums <= min(MAX_QUEUES, room):
            sound.append(data)
            room -= data.read_queue_nums
        else:
            _log.warning(
                "topic %s on broker %s is ignored: its registration claims %d queues",
                topic,
                data.broker_name,
                data.read_queue_nums,
            )
    return sound
