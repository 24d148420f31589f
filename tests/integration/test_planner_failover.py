"""The client of Spark's planners when a broker is no longer the master that its route said."""

from __future__ import annotations

import asyncio
import threading
from contextlib import AsyncExitStack

from mqspark.client.blocking import BlockingClient
from mqspark.message import MessageQueue
from mqspark.protocol.bodies.body import encode_body
from mqspark.protocol.bodies.topic_bodies import BrokerData, ClusterInfo
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command
from tests.support.scripted import Answer, Scripted, route_of

QUEUE = MessageQueue("T", "b", 0)


def test_requests_go_on_at_the_new_master() -> None:
    """The old one is a slave now, and refuses."""
    old = Scripted(lambda command: (ResponseCode.SYSTEM_BUSY, None, b""))
    new = Scripted(lambda command: (0, {"offset": "7"}, b""))

    def names(command: Command) -> Answer:
        if command.code != RequestCode.GET_BROKER_CLUSTER_INFO:
            return 0, None, route_of({"b": old.address})
        broker = BrokerData(cluster="c", broker_name="b", broker_addrs={0: new.address, 1: old.address})
        return 0, None, encode_body(ClusterInfo(broker_addr_table={"b": broker}))

    namesrv = Scripted(names)
    ready, over = threading.Event(), threading.Event()

    async def serve() -> None:
        async with AsyncExitStack() as stack:
            for each in (old, new, namesrv):
                await stack.enter_async_context(each.serving())
            ready.set()
            await asyncio.to_thread(over.wait)

    server = threading.Thread(target=asyncio.run, args=(serve(),))
    server.start()
    try:
        assert ready.wait(10)
        client = BlockingClient(namesrv.address, retry_ms=5_000)
        assert client.route("T").address("b") == old.address
        assert [int(offset) for offset in client.max_offsets(old.address, [QUEUE])] == [7]
        assert client.master_of("b") == new.address
        assert client.master_of("unknown") is None
        client.close()
    finally:
        over.set()
        server.join()
