"""Servers that do as they are told: brokers and name servers that misbehave, over real sockets, in one process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager

from mqspark.protocol.bodies.body import encode_body
from mqspark.protocol.bodies.topic_bodies import BrokerData, QueueData, TopicRouteData
from mqspark.protocol.codes import CURRENT_VERSION, RequestCode
from mqspark.protocol.command import Command, encode_response
from mqspark.protocol.connection import Connection

Answer = tuple[int, dict[str, str] | None, bytes] | None
"""Code, fields, body; None closes the connection; ``SILENCE`` answers nothing."""
SILENCE: Answer = (-1, None, b"")
STORED: Answer = (0, {"msgId": "7F00000100002A9F0000000000000007", "queueId": "0", "queueOffset": "7"}, b"")


class Scripted:
    """A server that answers each request by ``script`` and records the requests."""

    def __init__(self, script: Callable[[Command], Answer], version: int = CURRENT_VERSION) -> None:
        self.script = script
        self.version = version
        self.remark: str | None = None
        """What all answers say."""
        self.asked: list[Command] = []
        self.writers: set[asyncio.StreamWriter] = set()
        """The writer of each open connection."""
        self.accepted = 0
        """Total number of accepted connections."""
        self.address = ""

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Scripted]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()
            for writer in set(self.writers):
                writer.close()
            await asyncio.sleep(0.01)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.add(writer)
        self.accepted += 1
        connection = Connection()
        try:
            while data := await reader.read(65_536):
                for command in connection.receive_data(data):
                    self.asked.append(command)
                    answer = self.script(command)
                    if answer is None:
                        return
                    if answer is not SILENCE and not command.is_oneway:
                        code, fields, body = answer
                        writer.write(
                            encode_response(
                                command.opaque, code, fields, body, self.remark, version=self.version
                            )
                        )
        except ConnectionError:
            return
        finally:
            self.writers.discard(writer)
            writer.close()

    def codes(self) -> list[int]:
        return [command.code for command in self.asked]


def route_of(addresses: dict[str, str], queues: int = 1, perm: int = 6) -> bytes:
    """The route of a topic with queues at these brokers."""
    route = TopicRouteData(
        broker_datas=[
            BrokerData(cluster="c", broker_name=name, broker_addrs={0: address})
            for name, address in addresses.items()
        ],
        queue_datas=[
            QueueData(broker_name=name, read_queue_nums=queues, write_queue_nums=queues, perm=perm)
            for name in addresses
        ],
    )
    return encode_body(route)


def namesrv(brokers: dict[str, Scripted], queues: int = 1) -> Scripted:
    """A name server that knows these brokers for every topic."""

    def script(command: Command) -> Answer:
        return 0, None, route_of({name: broker.address for name, broker in brokers.items()}, queues)

    return Scripted(script)


def broker(*sends: Answer, then: Answer = STORED) -> Scripted:
    """A broker that answers its sends with these, and all further ones with ``then``."""
    left = list(sends)

    def script(command: Command) -> Answer:
        if command.code in (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE):
            return left.pop(0) if left else then
        return 0, {}, b""

    return Scripted(script)


def refusal(code: int) -> Answer:
    return code, None, b""


@asynccontextmanager
async def cluster(**brokers: Scripted) -> AsyncIterator[str]:
    async with namesrv(brokers).serving() as names:
        stack = [one.serving() for one in brokers.values()]
        for one in stack:
            await one.__aenter__()
        try:
            yield names.address
        finally:
            for one in stack:
                await one.__aexit__(None, None, None)


@contextmanager
def served(*servers: Scripted) -> Iterator[None]:
    """Serve in a thread, for tests without an event loop."""
    ready, over = threading.Event(), threading.Event()

    async def serve() -> None:
        async with AsyncExitStack() as stack:
            for each in servers:
                await stack.enter_async_context(each.serving())
            ready.set()
            await asyncio.to_thread(over.wait)

    server = threading.Thread(target=asyncio.run, args=(serve(),))
    server.start()
    try:
        assert ready.wait(60)
        yield
    finally:
        over.set()
        server.join()


def sends(one: Scripted) -> int:
    return one.codes().count(RequestCode.SEND_MESSAGE_V2)
