"""Clients of a simulated cluster: they send, read and commit by the wire, over connections that may break."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random

from mqspark.errors import MQError
from mqspark.protocol.bodies.body import decode_body
from mqspark.protocol.bodies.topic_bodies import ClusterInfo
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command
from mqspark.protocol.headers.client_headers import (
    PullMessageRequestHeader,
    PullMessageResponseHeader,
    SendMessageRequestHeaderV2,
    SendMessageResponseHeader,
    UpdateConsumerOffsetRequestHeader,
)
from mqspark.protocol.headers.header import Header
from mqspark.record.record import decode_records
from mqspark_server.net.outbound import PLAIN, Outbound
from tests.simulation.history import GROUP, ORDERS, QUEUES, Broken, History, Sent
from tests.simulation.scheduler import Process

TIMEOUT_S = 2.0
_PAUSES_S = (0.004, 0.06, 0.3)
QUIET_FACTOR = 3
"""How much longer they are while nothing happens: what breaks promises is what is under way at a fault, an election, or
a change of the SyncStateSet."""
LED_ON = (ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED)
"""Answers without messages that say where to go on."""
_FAILURES = (OSError, ValueError, MQError, TimeoutError)


class Client:
    sends = False
    """Whether it has to get on once faults are over."""

    def __init__(self, process: Process, history: History, addresses: list[str]) -> None:
        self.process = process
        self.history = history
        self.chance = random.Random(f"client {process.chance.random()}")
        self.is_ending = False
        self._addresses = addresses
        self._connections: dict[str, Outbound] = {}
        self._connecting = asyncio.Lock()

    async def ask(self, address: str, code: int, header: Header | None, body: bytes = b"") -> Command:
        async with self._connecting:
            connection = self._connections.get(address)
            if connection is None or not connection.alive:
                connection = await PLAIN.connect(address, timeout_s=TIMEOUT_S)
                self._connections[address] = connection
        try:
            return await connection.request(code, header, body, timeout_s=TIMEOUT_S)
        except MQError:
            if self.chance.random() < 0.5:  # otherwise what is under way may still arrive
                connection.close()
                self._connections.pop(address, None)
            raise


class Producer(Client):
    """Sends some messages at once, then the next ones, each of them once: what is not acknowledged is there or not."""

    sends = True
    window = 1

    async def run(self) -> None:
        place, numbers = 0, itertools.count(1)
        while not self.is_ending:
            address = self._addresses[place % len(self._addresses)]
            count = self.chance.randint(1, self.window)
            sends = [self._send(address, number) for number in itertools.islice(numbers, count)]
            acked = await sends[0] if count == 1 else any(await asyncio.gather(*sends))
            if acked:
                pause_s = self.chance.choice(_PAUSES_S)
                await asyncio.sleep(pause_s if self.history.is_stirred else pause_s * QUIET_FACTOR)
            else:
                place += 1
                await asyncio.sleep(0.1 if place % len(self._addresses) else 0.3)

    async def _send(self, address: str, number: int) -> bool:
        name = self.process.name
        body = b"%s-%d" % (name.encode(), number) + b"." * self.chance.choice((0, 50, 400))
        sent = Sent(name, body, behind=self.history.last_offsets(name))
        self.history.sent += 1
        header = SendMessageRequestHeaderV2.of(
            "senders", ORDERS, self.chance.choice(QUEUES), self.process.clock.now_ms()
        )
        try:
            answer = await self.ask(address, RequestCode.SEND_MESSAGE_V2, header, body)
        except _FAILURES:
            return False
        if answer.code != ResponseCode.SUCCESS:
            return False
        found = answer.header(SendMessageResponseHeader)
        self.history.was_acked(sent, (ORDERS, found.queue_id, found.queue_offset))
        return True


class RouteWatcher(Client):
    """Asks a name server who the master is."""

    async def run(self) -> None:
        while True:
            asked_s = self.process.world.now_s
            try:
                answer = await self.ask(self._addresses[0], RequestCode.GET_BROKER_CLUSTER_INFO, None)
                orders = decode_body(ClusterInfo, bytes(answer.body)).broker_addr_table.get("orders")
            except _FAILURES:
                orders = None
            addresses = {} if orders is None else orders.broker_addrs
            self.history.route = asked_s, addresses.get(0, "")
            await asyncio.sleep(0.5)


class Consumer(Client):
    """Reads all queues from whichever broker answers, and commits where it is."""

    async def run(self) -> None:
        offsets = dict.fromkeys(QUEUES, 0)
        while not self.is_ending:
            queue_id = self.chance.choice(QUEUES)
            address = self.chance.choice(self._addresses)
            try:
                offsets[queue_id] = await self._pull(address, queue_id, offsets[queue_id])
                if self.chance.random() < 0.3:
                    await self._commit(self.chance.choice(self._addresses), queue_id, offsets[queue_id])
            except _FAILURES:
                pass
            await asyncio.sleep(self.chance.choice((0.02, 0.2, 0.5)))

    async def _pull(self, address: str, queue_id: int, offset: int) -> int:
        header = PullMessageRequestHeader(
            consumer_group=GROUP,
            topic=ORDERS,
            queue_id=queue_id,
            queue_offset=offset,
            max_msg_nums=32,
            sys_flag=4,
            commit_offset=0,
            suspend_timeout_millis=0,
            sub_version=0,
            subscription="*",
        )
        answer = await self.ask(address, RequestCode.PULL_MESSAGE, header)
        if answer.code not in (ResponseCode.SUCCESS, *LED_ON) or self.history.may_err(address):
            return offset
        found = answer.header(PullMessageResponseHeader)
        where = f"read from {address} at {self.history.world.now_s:.3f} s"
        messages = decode_records(bytes(answer.body)) if answer.code == ResponseCode.SUCCESS else []
        for message in messages:
            self.history.reads += 1
            self.history.observed((ORDERS, queue_id, message.queue_offset), message.body, where)
        left_out = {*range(offset, found.next_begin_offset)} - {each.queue_offset for each in messages}
        if left_out:
            raise Broken(f"{where}: it leads past {sorted(left_out)} of queue {queue_id}")
        if answer.code != ResponseCode.SUCCESS:
            return offset
        self.history.world.note("read", address, queue_id, offset, found.next_begin_offset)
        return found.next_begin_offset

    async def _commit(self, address: str, queue_id: int, offset: int) -> None:
        committed = self.history.committed
        committed[queue_id] = max(committed.get(queue_id, 0), offset)
        header = UpdateConsumerOffsetRequestHeader(
            consumer_group=GROUP, topic=ORDERS, queue_id=queue_id, commit_offset=offset
        )
        answer = await self.ask(address, RequestCode.UPDATE_CONSUMER_OFFSET, header)
        if answer.code == ResponseCode.SUCCESS:
            self.history.was_committed(address, queue_id, offset)


class Reader(Consumer):
    """Reads again from anywhere."""

    async def run(self) -> None:
        ends = dict.fromkeys(QUEUES, 0)
        while not self.is_ending:
            queue_id, address = self.chance.choice(QUEUES), self.chance.choice(self._addresses)
            begin = self.chance.randint(0, ends[queue_id])
            with contextlib.suppress(*_FAILURES):
                ends[queue_id] = max(ends[queue_id], await self._pull(address, queue_id, begin))
            await asyncio.sleep(self.chance.choice((0.02, 0.1)))
