"""One call: whose it is, what all calls share, and what is left of its time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Self, TypeVar

from mqspark.protocol.bodies.topic_bodies import TopicRouteData
from mqspark.protocol.command import Command
from mqspark.protocol.headers.header import Header
from mqspark_server.proxy.backend import ANSWER_TIMEOUT_S, Doors, ProxyBackend
from mqspark_server.proxy.clients.grpcclients import GrpcClient, GrpcClients
from mqspark_server.proxy.clients.grpchalves import GrpcHalves
from mqspark_server.proxy.clients.grpcmetadata import GrpcContext
from mqspark_server.proxy.clients.renewals import Renewals

T = TypeVar("T")
R = TypeVar("R")

AT_ONCE = 100
"""Parts of a request that are looked at in a turn: few milliseconds for messages with many properties."""
_FOR_EVER_S = 12 * 3600.0


class Shared:
    """What all calls of one server share."""

    def __init__(
        self, backend: ProxyBackend, clients: GrpcClients, halves: GrpcHalves, renewals: Renewals, port: int
    ) -> None:
        self.backend = backend
        self.clients = clients
        self.halves = halves
        self.renewals = renewals
        self.port = port
        """The port of the service, in the routes that clients get."""
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something that outlives its call."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class GrpcCall:
    __slots__ = ("_context", "client", "shared")

    def __init__(self, shared: Shared, client: GrpcClient, context: GrpcContext) -> None:
        self.shared = shared
        self.client = client
        self._context = context

    def __enter__(self) -> Self:
        """It is one of its client's calls until the end."""
        self.client.calls += 1
        return self

    def __exit__(self, *error: object) -> None:
        self.client.calls -= 1

    @property
    def backend(self) -> ProxyBackend:
        return self.shared.backend

    @property
    def is_over(self) -> bool:
        return self._context.is_over

    def answer(self, response: bytes) -> None:
        """End a call that is served without a task with this response."""
        self._context.answer(response)

    def serve(self, request: Any) -> None:
        """Serve it in a task nevertheless."""
        self._context.serve(request)

    @property
    def left_s(self) -> float:
        """How long the caller still waits, in seconds."""
        left = self._context.time_remaining()
        return _FOR_EVER_S if left is None else max(left, 0.0)

    @property
    def timeout_s(self) -> float:
        """For a request that a broker answers at once."""
        return min(ANSWER_TIMEOUT_S, max(self.left_s, 0.05))

    async def request(
        self, broker: str, code: int, header: Header | None = None, body: bytes = b""
    ) -> Command:
        """A request that the broker answers at once, as ``Link.request``."""
        return await self.client.link.request(broker, code, header, body, timeout_s=self.timeout_s)

    async def route(self, topic: str) -> TopicRouteData:
        """Raises GrpcRefusal when there is no such topic, or it is none of the caller's."""
        self.client.link.rights.see(topic)
        return await self.backend.route(topic)

    async def whole_route(self, topic: str) -> tuple[TopicRouteData, Doors]:
        """As ``ProxyBackend.whole_route``. Raises as ``route``."""
        self.client.link.rights.see(topic)
        return await self.backend.whole_route(topic)


async def of_each(items: Sequence[T], look: Callable[[T], R]) -> list[R]:
    """What each part of a request gives, found between the turns of others."""
    found = list[R]()
    for number, item in enumerate(items, 1):
        found.append(look(item))
        if number % AT_ONCE == 0:
            await asyncio.sleep(0)
    return found
