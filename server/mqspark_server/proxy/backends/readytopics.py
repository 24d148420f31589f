"""Topics that can be written to without asking anybody: what routes and types of the last seconds say of them."""

from __future__ import annotations

from time import monotonic
from typing import NamedTuple

from mqspark.message import PERM_WRITE
from mqspark.protocol.bodies.topic_bodies import TopicRouteData
from mqspark_server.proxy.backends.clusterroutes import MAX_KNOWN, Recent


class ReadyTopic(NamedTuple):
    name: str
    message_type: str
    queues: int
    """How many it may be written to."""
    brokers: tuple[tuple[str, int], ...]
    """Brokers by their names, with how many of the queues each has."""

    def queue(self, number: int) -> tuple[str, int]:
        """Broker and queue id of one of them."""
        for broker, count in self.brokers:
            if number < count:
                return broker, number
            number -= count
        raise IndexError(number)


class ReadyTopics:
    def __init__(self, routes: Recent[TopicRouteData], types: Recent[str]) -> None:
        self._routes, self._types = routes, types
        self._ready: dict[str, tuple[float, ReadyTopic]] = {}
        """When each has to be asked for again; the oldest one first."""

    def find(self, name: str) -> ReadyTopic | None:
        """None: it has to be asked for."""
        found = self._ready.get(name)
        if found is not None and monotonic() < found[0]:
            return found[1]
        return self._made(name)

    def _made(self, name: str) -> ReadyTopic | None:
        self._ready.pop(name, None)
        route, kind = self._routes.known(name), self._types.known(name)
        if route is None or kind is None:
            return None
        brokers = tuple(
            sorted(
                (each.broker_name, each.write_queue_nums)
                for each in route[1].queue_datas
                if each.perm & PERM_WRITE and each.write_queue_nums > 0
            )
        )
        ready = ReadyTopic(name, kind[1], sum(count for _, count in brokers), brokers)
        if len(self._ready) >= MAX_KNOWN:
            del self._ready[next(iter(self._ready))]
        self._ready[name] = min(route[0], kind[0]), ready
        return ready
