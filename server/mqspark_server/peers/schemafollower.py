"""Follows the schema registry at the broker that keeps it, for a broker that keeps none and checks messages of topics.

One pull of its topic waits there for the next record; another one is made at once when a sender waits. Must not know
schemas.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from mqspark.base.logs import Outages, sparing
from mqspark.broker.broker import BrokerCore
from mqspark.broker.schemaregistry.schemacopy import SchemaCopy
from mqspark.errors import NoSchemaRegistry, ProtocolError
from mqspark.message import MASTER_ID, SCHEMAS_TOPIC, TOOLS_GROUP, MessageQueue
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command
from mqspark.protocol.headers.client_headers import PullMessageResponseHeader, pull_header
from mqspark_server.net.outbound import PLAIN, REQUEST_ERRORS, Dialing, Outbound
from mqspark_server.peers.routefinder import RouteFinder
from mqspark_server.process.tasks import end_all

log = sparing("mqspark.schemas")

FOLLOWER_LOOK_S = 1.0
"""Interval of looks whether there is something to follow, and pause after a failure."""
PAUSE_S = 0.1
"""Between two reads that senders wait for."""
WAIT_MS = 15_000
"""How long a pull waits for a record, and how old a route may be."""
FOLLOWER_TIMEOUT_S = 5.0
MAX_MESSAGES = 64
_EMPTY = (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY)


class SchemaFollower:
    def __init__(
        self,
        broker: BrokerCore,
        copy: SchemaCopy,
        routes: RouteFinder,
        progressed: Callable[[], None],
        dialing: Dialing = PLAIN,
    ) -> None:
        """``progressed``: called when something was read."""
        self._clock = broker.state.clock
        self._copy = copy
        self._routes = routes
        self._progressed = progressed
        self._dialing = dialing
        self._outages = Outages(log)
        self._asked = asyncio.Event()
        self._address = ""
        self._is_master = False
        self._connection: Outbound | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._work(), name="mqspark-schema-copy")

    def after_turn(self) -> None:
        if self._copy.is_asked:
            self._copy.is_asked = False
            self._asked.set()

    async def stop(self) -> None:
        await end_all(self._task)
        self._disconnect()

    async def _work(self) -> None:
        while True:
            try:
                if self._copy.is_wanted:
                    await self._follow()
            except REQUEST_ERRORS as error:
                self._copy.problem = f"the schema registry cannot be read: {error}"
                self._outages.failed("", None, "the schema registry cannot be read: %s", error)
            except Exception:
                log.exception("following the schema registry failed")
                self._copy.problem = "the schema registry cannot be read: see the broker's log"
            self._disconnect()
            await self._wait(FOLLOWER_LOOK_S)

    async def _wait(self, seconds: float) -> None:
        """For a sender that waits, but not shorter than PAUSE_S."""
        await asyncio.sleep(PAUSE_S)
        with suppress(TimeoutError):
            await asyncio.wait_for(self._asked.wait(), seconds - PAUSE_S)
        self._asked.clear()

    async def _follow(self) -> None:
        """Until there is nothing to follow, or the keeper moves. Raises REQUEST_ERRORS."""
        parked: asyncio.Task[Command] | None = None
        try:
            while self._copy.is_wanted and await self._find():
                await self._read()
                self._outages.over("", "the schema registry is read again")
                self._progressed()
                if parked is None:
                    parked = asyncio.create_task(self._pull(WAIT_MS))
                waiting = asyncio.create_task(self._asked.wait())
                await asyncio.wait((parked, waiting), return_when=asyncio.FIRST_COMPLETED)
                waiting.cancel()
                if parked.done():
                    parked.result()  # that there is something new; the next read gets it
                    parked = None
                else:
                    self._asked.clear()
                    await asyncio.sleep(PAUSE_S)
        finally:
            await end_all(parked)

    async def _find(self) -> bool:
        """Connect to the keeper; False when the one that is connected is not the best any more."""
        route = await self._routes.route_of(SCHEMAS_TOPIC)
        brokers = [] if route is None else [each for each in route.broker_datas if each.broker_addrs]
        if not brokers:
            raise NoSchemaRegistry("no broker keeps a schema registry (schemaRegistryEnable)")
        if len(brokers) > 1:
            names = ", ".join(sorted(each.broker_name for each in brokers))
            raise NoSchemaRegistry(f"several brokers keep a schema registry: {names}")
        (keeper,) = brokers
        number = min(keeper.broker_addrs)
        address = keeper.broker_addrs[number]
        if self._connection is not None and self._connection.alive:
            return address == self._address
        self._address, self._is_master = address, number == MASTER_ID
        self._connection = await self._dialing.connect(address)
        self._copy.follow(keeper.broker_name)
        return True

    async def _read(self) -> None:
        """All that is new. Raises REQUEST_ERRORS."""
        copy = self._copy
        begun_ms = self._clock.monotonic_ms()
        while True:
            offset = copy.next_offset
            answer = await self._pull(0)
            following = answer.header(PullMessageResponseHeader).next_begin_offset
            if answer.code == ResponseCode.SUCCESS:
                if following <= offset:
                    raise ProtocolError(f"the broker at {self._address} repeats offset {following}")
                copy.take(memoryview(answer.body), following)
            elif answer.code == ResponseCode.PULL_OFFSET_MOVED and following < offset:
                if not self._is_master:
                    raise NoSchemaRegistry("the slave that answers has not copied all that its master had")
                copy.restart()
            elif following > offset:
                copy.next_offset = following
            else:
                copy.came_to_end(begun_ms)
                return

    async def _pull(self, wait_ms: int) -> Command:
        """Raises REQUEST_ERRORS."""
        queue = MessageQueue(SCHEMAS_TOPIC, "", 0)
        offset = self._copy.next_offset
        header = pull_header(TOOLS_GROUP, queue, offset, max_messages=MAX_MESSAGES, suspend_ms=wait_ms)
        connection = self._connection
        if connection is None:
            raise ProtocolError("there is no connection")
        answer = await connection.request(
            RequestCode.PULL_MESSAGE, header, timeout_s=FOLLOWER_TIMEOUT_S + wait_ms / 1000
        )
        if answer.code not in (ResponseCode.SUCCESS, ResponseCode.PULL_OFFSET_MOVED, *_EMPTY):
            remark = (answer.remark or "")[:200]
            raise ProtocolError(f"the broker at {self._address} answers {answer.code}: {remark}")
        return answer

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
