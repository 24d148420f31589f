"""The service before a broker without sockets: methods are called as its engine calls them, and time stands still."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from mqspark.base.clock import Clock
from mqspark.broker.pop.ackrun import AckRun
from mqspark.message import PERM_READ_WRITE
from mqspark.protocol.bodies.topic_bodies import (
    BrokerData,
    QueueData,
    SubscriptionGroupConfig,
    TopicRouteData,
)
from mqspark.protocol.command import Command
from mqspark.protocol.headers.header import Header
from mqspark_server.proxy import messaging_pb2 as pb
from mqspark_server.proxy.backend import GrpcCaller, OnRequest, Rights
from mqspark_server.proxy.clients.grpccalls import GrpcCall, Shared
from mqspark_server.proxy.clients.grpcclients import GrpcClient, GrpcClients
from mqspark_server.proxy.clients.grpchalves import GrpcHalves
from mqspark_server.proxy.clients.grpcmetadata import GrpcMetadata
from mqspark_server.proxy.clients.renewals import Renewals
from mqspark_server.proxy.grpcstatus import GrpcRefusal
from mqspark_server.proxy.methods.grpcreceipts import renewals_for
from mqspark_server.proxy.methods.grpcreceiving import receive_message
from tests.unit.broker_kit import Bench


class BenchLink:
    """A client's connection to the broker of a bench."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.peer = bench.peer()
        self.rights = Rights(None, self.peer.session)
        self.takes_runs = True
        self.runs = 0
        self.codes: list[int] = []
        self.answers: list[bytes] = []
        """Responses to requests of the broker."""
        self._pending: dict[int, asyncio.Future[Command]] = {}

    async def request(
        self,
        broker: str,
        code: int,
        header: Header | Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        timeout_s: float,
    ) -> Command:
        if broker != self.bench.config.broker_name:
            raise GrpcRefusal(pb.BAD_REQUEST, f"no broker {broker}")
        self.codes.append(code)
        answer: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
        self._pending[self.peer.give(code, header, body)] = answer
        self.hear()
        return await answer

    def acknowledge(self, broker: str, run: AckRun) -> bool:
        if not self.takes_runs or broker != self.bench.config.broker_name:
            return False
        self.runs += 1
        taken = self.bench.broker.acknowledge(self.peer.session, run)
        asyncio.get_running_loop().call_soon(self.hear)
        return taken

    def at_turn_end(self, work: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(work)

    def hear(self) -> None:
        """End the broker's turn, and pass on what it says."""
        broker = self.bench.broker
        while broker.work():
            pass
        broker.turn()
        self.bench.housekeeping()
        for command in self.peer.heard():
            waiting = self._pending.pop(command.opaque, None)
            if waiting is not None and not waiting.done():
                waiting.set_result(command)

    def answer(self, broker: str, frame: bytes) -> None:
        self.answers.append(frame)

    async def announce(self, topics: Iterable[str], heartbeat: bytes) -> None: ...

    def close(self) -> None:
        self.peer.disconnect()


class BenchBackend:
    max_message_bytes = 1 << 22

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.links: list[BenchLink] = []

    @property
    def clock(self) -> Clock:
        return self.bench.clock

    def link(self, caller: GrpcCaller, on_request: OnRequest) -> BenchLink:
        self.links.append(BenchLink(self.bench))
        return self.links[-1]

    async def route(self, topic: str) -> TopicRouteData:
        known = self.bench.broker.state.topics.get(topic)
        if known is None:
            raise GrpcRefusal(pb.TOPIC_NOT_FOUND, topic)
        name = self.bench.config.broker_name
        count = known.config.read_queue_nums
        return TopicRouteData(
            broker_datas=[BrokerData(broker_name=name, broker_addrs={0: "h:1"})],
            queue_datas=[
                QueueData(
                    broker_name=name, read_queue_nums=count, write_queue_nums=count, perm=PERM_READ_WRITE
                )
            ],
        )

    async def message_type(self, topic: str) -> str:
        return "NORMAL"

    async def group(self, name: str) -> SubscriptionGroupConfig | None:
        return self.bench.broker.state.subscriptions.configured(name)


class Context:
    """What a method is told about its call."""

    address = "127.0.0.1", 40_000

    def __init__(self, left_s: float | None = 60.0, **metadata: str) -> None:
        self._left_s = left_s
        self.answers: list[bytes] = []
        self.served: list[Any] = []
        self.metadata = {name.replace("_", "-"): value for name, value in metadata.items()}

    def time_remaining(self) -> float | None:
        return self._left_s

    def answer(self, response: bytes) -> None:
        self.answers.append(response)

    def serve(self, request: Any) -> None:
        self.served.append(request)


class ProxyBench:
    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.backend = BenchBackend(bench)
        self.clients = GrpcClients(self.backend, lambda *_: None, 1 << 24)
        self.renewals: Renewals = renewals_for(self.backend, self.clients)
        self.shared = Shared(self.backend, self.clients, GrpcHalves(1 << 20), self.renewals, 8081)

    def client(
        self, client_id: str = "client", settings: pb.Settings | None = None, version: str = "5.1.0"
    ) -> GrpcClient:
        context = Context(x_mq_client_id=client_id, x_mq_language="JAVA", x_mq_client_version=version)
        client = self.clients.of(GrpcMetadata(context))
        client.settings = settings
        return client

    def call(self, client: GrpcClient, left_s: float | None = 60.0) -> GrpcCall:
        return GrpcCall(self.shared, client, Context(left_s))

    def hear(self) -> None:
        for link in self.backend.links:
            link.hear()

    async def pass_time(self, ms: int, step_ms: int = 500) -> None:
        """Let broker and proxy live through it."""
        for _ in range(0, ms, step_ms):
            self.bench.later(step_ms)
            self.hear()
            await asyncio.sleep(0)
            await self.renewals.renew_due()
            self.hear()

    async def receive(
        self, client: GrpcClient, request: pb.ReceiveMessageRequest, left_s: float | None = 60.0
    ) -> list[pb.ReceiveMessageResponse]:
        """The responses of a call. While it waits, time passes."""
        task = self.receiving(client, request, left_s)
        await settled()
        for _ in range(60):
            if task.done():
                break
            await self.pass_time(500)
            await settled()
        assert task.done(), "the call waits for longer than it may"
        return await task

    def receiving(
        self, client: GrpcClient, request: pb.ReceiveMessageRequest, left_s: float | None = 60.0
    ) -> asyncio.Task[list[pb.ReceiveMessageResponse]]:
        """A call that is under way."""
        written: list[pb.ReceiveMessageResponse] = []

        async def write(*responses: pb.ReceiveMessageResponse | bytes) -> None:
            written.extend(map(as_response, responses))

        async def serve() -> list[pb.ReceiveMessageResponse]:
            await receive_message(self.call(client, left_s), request, write)
            return written

        return asyncio.ensure_future(serve())


def as_response(response: pb.ReceiveMessageResponse | bytes) -> pb.ReceiveMessageResponse:
    return pb.ReceiveMessageResponse.FromString(response) if isinstance(response, bytes) else response


async def settled() -> None:
    """Let what is ready run."""
    for _ in range(20):
        await asyncio.sleep(0)
