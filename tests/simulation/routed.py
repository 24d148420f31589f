"""Programs with this project's own client: they find brokers by routes, and decide themselves what to try again."""

from __future__ import annotations

import asyncio
import itertools
import random

from mqspark.aio import PopConsumer, Producer, PushConsumer, TransactionProducer
from mqspark.client.delivery.results import SendStatus, TransactionState
from mqspark.client.remoting.client_options import ClientOptions
from mqspark.errors import MQError
from mqspark.message import Message, MessageExt
from tests.simulation.history import DECIDED, LATER, ORDERS, Delayed, History, Sent, Transaction
from tests.simulation.scheduler import EPOCH_MS, Process
from tests.simulation.shape import DELAYS_S, TICK_MS

FAILURES = (MQError, OSError, TimeoutError)
PAUSES_S = (0.01, 0.1, 0.4)
INVISIBLE_MS = 2_000
POLL_MS = 5_000
"""More than a clock is stepped: as in RocketMQ, a broker refuses a pop whose time for waiting is over by its clock."""


class Program:
    """One program. ``sends``: it has to get on once faults are over. ``is_ending``: it is to send nothing more."""

    sends = False

    def __init__(self, process: Process, history: History, namesrv: str) -> None:
        self.process = process
        self.history = history
        self.namesrv = namesrv
        self.chance = random.Random(f"program {process.chance.random()}")
        self.is_ending = False
        self.options = ClientOptions(
            instance_name=process.name,
            client_ip=process.host,
            clock=process.clock,
            connect_timeout_ms=1_000,
            request_timeout_ms=1_000,
            route_interval_ms=1_000,
            heartbeat_interval_ms=1_000,
            tls=False,
        )

    async def run(self) -> None:
        raise NotImplementedError

    async def start(self, client: Producer | PushConsumer | PopConsumer) -> None:
        """Until it succeeds: a consumer does not start without a name server."""
        while True:
            try:
                await client.start()
                return
            except FAILURES:
                await asyncio.sleep(0.3)

    async def pause(self) -> None:
        await asyncio.sleep(self.chance.choice(PAUSES_S))


class Sender(Program):
    """Sends, and tries again: a message may be there twice, and is there once it is acknowledged."""

    sends = True

    async def run(self) -> None:
        producer = Producer(
            self.namesrv,
            group="routed-senders",
            options=self.options,
            send_timeout_ms=2_500,
            attempt_timeout_ms=800,
        )
        await self.start(producer)
        for number in itertools.count(1):
            if self.is_ending:
                return
            name = self.process.name
            body = b"%s-%d" % (name.encode(), number)
            sent = Sent(name, body, may_repeat=True, behind=self.history.last_offsets(name))
            self.history.sent += 1
            self.history.repeated.add(sent.body)
            try:
                result = await producer.send(Message(ORDERS, sent.body))
            except FAILURES:
                result = None
            if result is not None and result.status is SendStatus.SEND_OK:
                self.history.was_acked(sent, (ORDERS, result.queue.queue_id, result.queue_offset))
            await self.pause()


class Delayer(Program):
    """Sends messages that are to be delivered later."""

    sends = True

    async def run(self) -> None:
        producer = Producer(self.namesrv, group="delayers", options=self.options, retries=0)
        await self.start(producer)
        for number in itertools.count(1):
            if self.is_ending:
                return
            delay, now_s = self.draw_delay(), self.process.world.now_s
            if "delay_level" in delay:
                delay_s: float = DELAYS_S[delay["delay_level"] - 1]
            else:
                delay_s = (delay["delay_ms"] - TICK_MS) / 1000  # RocketMQ's timers may be a tick early
            body = b"%s-%d" % (self.process.name.encode(), number)
            delayed = self.history.delayed[body] = Delayed(
                now_s + delay_s, EPOCH_MS + int((now_s + delay_s) * 1000)
            )
            self.history.sent += 1
            try:
                result = await producer.send(Message.of(LATER, body, **delay))
                if result.status is SendStatus.SEND_OK:
                    delayed.acked = True
                    self.history.progressed(self.process.name)
            except FAILURES:
                pass  # it may be delivered or not
            await self.pause()

    def draw_delay(self) -> dict[str, int]:
        """By a level, or by a timer."""
        if self.chance.random() < 0.5:
            return {"delay_level": self.chance.randint(1, len(DELAYS_S))}
        return {"delay_ms": self.chance.choice((300, 1_000, 2_500))}


class Decider(Program):
    """Sends half messages; the outcome of each is known, and not always told at once."""

    sends = True

    async def run(self) -> None:
        producer = TransactionProducer(
            self.namesrv,
            group="deciders",
            check=self.outcome,
            execute=self.execute,
            options=self.options,
            topics=[DECIDED],
            retries=0,
        )
        await self.start(producer)
        for number in itertools.count(1):
            if self.is_ending:
                break
            body = b"%s-%d" % (self.process.name.encode(), number)
            transaction = self.history.transactions[body] = Transaction(self.chance.random() < 0.6)
            self.history.sent += 1
            try:
                result = await producer.send_in_transaction(Message(DECIDED, body))
                if result.status is SendStatus.SEND_OK:
                    transaction.prepared = True
                    self.history.progressed(self.process.name)
            except FAILURES:
                pass  # checks may find it
            await self.pause()
        await asyncio.get_running_loop().create_future()  # and answer checks

    async def execute(self, message: Message) -> TransactionState:
        if self.chance.random() < 0.3:
            return TransactionState.UNKNOWN
        return self.state(message.body)

    async def outcome(self, message: MessageExt) -> TransactionState:
        return self.state(message.body)

    def state(self, body: bytes) -> TransactionState:
        transaction = self.history.transactions.get(body)
        commits = transaction is not None and transaction.commits
        return TransactionState.COMMIT if commits else TransactionState.ROLLBACK


class Pusher(Program):
    """Gets all of ORDERS, at least once."""

    async def run(self) -> None:
        consumed = self.history.consumed["pushers"]

        async def take(message: MessageExt) -> None:
            self.history.reads += 1
            consumed.add(message.body)
            place = ORDERS, message.queue_id, message.queue_offset
            self.history.observed(place, message.body, f"pushed at {self.process.world.now_s:.3f} s")

        consumer = PushConsumer(
            self.namesrv,
            group="pushers",
            listener=take,
            options=self.options,
            consume_from="CONSUME_FROM_FIRST_OFFSET",
            rebalance_interval_ms=1_000,
            persist_interval_ms=500,
            suspend_ms=1_000,
        )
        consumer.subscribe(ORDERS)
        await self.start(consumer)
        await asyncio.get_running_loop().create_future()


class Popper(Program):
    """Gets all of ORDERS by POP, at least once; now and then it is too slow, and gets a message again."""

    async def run(self) -> None:
        consumed = self.history.consumed["poppers"]

        async def take(message: MessageExt) -> None:
            self.history.reads += 1
            if message.reconsume_times < 2 and self.chance.random() < 0.1:
                await asyncio.sleep(INVISIBLE_MS / 1000 + 0.5)  # what it did is not counted
            else:
                consumed.add(message.body)

        consumer = PopConsumer(
            self.namesrv,
            group="poppers",
            listener=take,
            options=self.options,
            consume_from="CONSUME_FROM_FIRST_OFFSET",
            rebalance_interval_ms=1_000,
            invisible_ms=INVISIBLE_MS,
            poll_ms=POLL_MS,
        )
        consumer.subscribe(ORDERS)
        await self.start(consumer)
        await asyncio.get_running_loop().create_future()


PROGRAMS: dict[str, type[Program]] = {
    "producer": Sender,
    "delays": Delayer,
    "transactions": Decider,
    "push": Pusher,
    "pop": Popper,
}
"""By their names in a shape."""
