"""Sends requests to other brokers on behalf of clients (BrokerOuterAPI's RpcClient).

Keeps one working connection to each of a bounded number of brokers. Must not know the requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from mqspark.base.logs import Outages, sparing
from mqspark.broker.broker import BrokerCore
from mqspark.broker.statictopic.peers import Question
from mqspark.errors import ClientError, ProtocolError
from mqspark_server.net.outbound import PLAIN, Dialing, Outbound
from mqspark_server.peers.routefinder import RouteFinder

log = sparing("mqspark.peers")

MAX_PEERS = 64
"""Limit of open connections."""


class PeerLink:
    """``progressed`` is called when an answer has arrived: the broker may have answers to write."""

    def __init__(
        self,
        broker: BrokerCore,
        routes: RouteFinder,
        progressed: Callable[[], None],
        dialing: Dialing = PLAIN,
    ) -> None:
        self._peers = broker.state.peers
        self._config = broker.config
        self._routes = routes
        self._progressed = progressed
        self._dialing = dialing
        self._outages = Outages(log)
        self._connections: dict[tuple[str, bool], asyncio.Task[Outbound]] = {}
        """(broker name, whether it may be a slave) → connection, oldest first."""
        self._tasks: set[asyncio.Task[None]] = set()

    def after_turn(self) -> None:
        for number, question in self._peers.due():
            task = asyncio.get_running_loop().create_task(self._ask(number, question))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _ask(self, number: int, question: Question) -> None:
        name = question.broker_name
        try:
            connection = await self._connection(name, question.any_replica)
            answer = await connection.request(
                question.code, question.ext, timeout_s=self._config.forward_timeout / 1000
            )
        except (OSError, ValueError, ClientError, ProtocolError) as error:
            self._outages.failed(
                name, None, "broker %s does not answer request %d: %s", name, question.code, error
            )
            self._peers.failed(number, f"broker {name} does not answer: {error}")
        else:
            self._outages.over(name, "broker %s answers again", name)
            self._peers.answered(number, answer)
        self.after_turn()  # the answer may have led to another request
        self._progressed()

    async def _connection(self, broker_name: str, any_replica: bool) -> Outbound:
        """Raises OSError, ValueError, ClientError, ProtocolError."""
        key = broker_name, any_replica
        task = self._connections.get(key)
        if task is not None and task.done() and (task.exception() is not None or not task.result().alive):
            del self._connections[key]
            task = None
        if task is None:
            if len(self._connections) >= MAX_PEERS:
                self._close(self._connections.pop(next(iter(self._connections))))
            task = asyncio.get_running_loop().create_task(self._connect(broker_name, any_replica))
            self._connections[key] = task
        return await asyncio.shield(task)

    async def _connect(self, broker_name: str, any_replica: bool) -> Outbound:
        address = await self._routes.master_of(broker_name, or_slave=any_replica)
        if address is None:
            kind = "replica" if any_replica else "master"
            raise OSError(f"no name server knows a {kind} of broker {broker_name}")
        return await self._dialing.connect(address)

    @staticmethod
    def _close(task: asyncio.Task[Outbound]) -> None:
        if not task.done():
            task.cancel()
        elif not task.cancelled() and task.exception() is None:
            task.result().close()

    async def stop(self) -> None:
        tasks = [*self._tasks, *self._connections.values()]
        for task in self._connections.values():
            self._close(task)
        self._connections.clear()
        for each in self._tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
