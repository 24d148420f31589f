"""A cache of topic routes in the whole cluster, for topics that requests asked for (TopicRouteInfoManager).

The shell asks a name server for the topics in ``due`` and passes the answers to ``learned``. This broker's own
queues are always read from its topic table.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from mqspark.base.bounded import BoundedMap, Ledger, weigh
from mqspark.base.config import Limit
from mqspark.base.logs import sparing
from mqspark.broker.state.state import BrokerState
from mqspark.message import PERM_READ, Queues
from mqspark.protocol.bodies.topic_bodies import MAX_QUEUES, MAX_ROUTE_QUEUES, QueueData, TopicRouteData
from mqspark.protocol.session import Session

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


class _Route:
    __slots__ = ("asked_ms", "data_bytes", "is_known", "queue_datas", "refresh_ms", "waiting")

    def __init__(self, now_ms: int) -> None:
        self.queue_datas: list[QueueData] = []
        self.is_known = False
        self.asked_ms = now_ms
        self.refresh_ms = now_ms
        self.data_bytes = 0
        """Size of ``queue_datas``."""
        self.waiting: list[tuple[int, Session, Callable[[], bytes], int]] = []
        """Deadline (monotonic), session, the function that builds the answer, and the bytes this takes."""

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
        )
        self._routes: BoundedMap[str, _Route] = self.ledger.map(_ROUTE_BYTES, _Route.size_bytes)
        self.known: Collection[object] = self._routes
        """Topics that ``due`` may return. To be looked at only: every turn asks whether there are any."""
        self._next_due_ms = 0

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
            self._next_due_ms = now_ms
        route.asked_ms = now_ms
        question_bytes += _ANSWER_BYTES
        if route.is_known or not self._routes.has_room_to_grow(topic, question_bytes):
            session.send(answer())
        else:
            self._routes.grow(topic, question_bytes)
            route.waiting.append((now_ms + WAIT_MS, session, answer, question_bytes))

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
        """Topics to look up at a name server now; they are not returned again for a while."""
        if not self._routes:
            return []
        now_ms = self._state.clock.monotonic_ms()
        if now_ms < self._next_due_ms:
            return []
        for topic in [name for name, route in self._routes.items() if now_ms - route.asked_ms > FORGET_MS]:
            self._send(self._routes.pop(topic).waiting)
        due = [topic for topic, route in self._routes.items() if route.refresh_ms <= now_ms]
        for topic in due:
            self._routes[topic].refresh_ms = now_ms + REFRESH_MS
        self._next_due_ms = now_ms + DUE_STEP_MS
        return due

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
            route.refresh_ms = self._state.clock.monotonic_ms() + WAIT_MS  # it may be created at any time
        self._answer(topic, route, len(route.waiting))

    def _send(self, waiting: list[tuple[int, Session, Callable[[], bytes], int]]) -> None:
        for _, session, answer, _ in waiting:
            session.send(answer())

    def _answer(self, topic: str, route: _Route, count: int) -> None:
        """The first ``count`` that wait."""
        due, route.waiting = route.waiting[:count], route.waiting[count:]
        self._routes.grow(topic, -sum(size_bytes for *_, size_bytes in due))
        self._send(due)

    def expire(self) -> None:
        """Answer the requests that have waited long enough with the routes known here."""
        now_ms = self._state.clock.monotonic_ms()
        for topic, route in self._routes.items():
            if not route.waiting or route.waiting[0][0] > now_ms:
                continue
            route.refresh_ms = min(route.refresh_ms, now_ms)  # no answer: ask again
            self._answer(topic, route, sum(entry[0] <= now_ms for entry in route.waiting))


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
