"""Replica sets of processes under load: masters die and freeze, brokers are replaced. What is acknowledged is there,
and is consumed; transactions end as they were decided."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from mqspark import Message, MessageExt, Producer, SendStatus, TransactionProducer, TransactionState
from mqspark.errors import MQError
from mqspark.testing import Clients
from tests.support.replicaset import LEASE_MS, ReplicaSet
from tests.support.waiting import eventually

GET_ALL_TOPIC_CONFIG, GET_ALL_MESSAGE_REQUEST_MODE = 21, 402
QUEUES = 2
SOON = {"transactionTimeOut": 1_000, "transactionCheckInterval": 1_000, "transactionOpBatchInterval": 200}
Place = tuple[int, int]
"""A queue id and an offset in it."""


class Load:
    """Threads that send, each one message after the other."""

    def __init__(self) -> None:
        self._ending = threading.Event()
        self._errors: list[BaseException] = []

    @contextmanager
    def running(self, *senders: Sender | Decider) -> Iterator[None]:
        threads = [threading.Thread(target=self._run, args=(each,)) for each in senders]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._ending.set()
            for thread in threads:
                thread.join()
        assert not self._errors, self._errors

    def _run(self, sender: Sender | Decider) -> None:
        number = 0
        try:
            while not self._ending.is_set():
                number += 1
                try:
                    sender.send(number)
                except MQError:
                    time.sleep(0.02)  # not acknowledged: it may be there or not
        except BaseException as error:
            self._errors.append(error)


class Sender:
    def __init__(self, producer: Producer, topic: str) -> None:
        self._producer, self._topic = producer, topic
        self.acked: dict[Place, bytes] = {}
        self.last_ack_s = 0.0

    def send(self, number: int) -> None:
        body = b"%d" % number
        result = self._producer.send(Message(self._topic, body))
        if result.status is SendStatus.SEND_OK:
            place = result.queue.queue_id, result.queue_offset
            assert place not in self.acked, "two messages were acknowledged at one place"
            self.acked[place] = body
            self.last_ack_s = time.monotonic()

    def sends(self, count: int = 50) -> None:
        """Wait until so many more are acknowledged."""
        wanted = len(self.acked) + count
        eventually(lambda: len(self.acked) >= wanted, f"{count} more messages to be acknowledged")

    def gap_s(self, since_s: float) -> float:
        """How long after that moment the first message is acknowledged that was sent later."""
        eventually(lambda: self.last_ack_s > since_s, "an acknowledgement")
        return self.last_ack_s - since_s


class Decider:
    """Commits every other transaction, and leaves every third to the broker's question."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self.producer: TransactionProducer
        self.prepared: set[bytes] = set()

    @staticmethod
    def outcome(body: bytes) -> TransactionState:
        return TransactionState.COMMIT if int(body) % 2 else TransactionState.ROLLBACK

    def check(self, message: MessageExt) -> TransactionState:
        return self.outcome(message.body)

    def send(self, number: int) -> None:
        def execute(message: Message) -> TransactionState:
            self.prepared.add(message.body)
            return TransactionState.UNKNOWN if number % 3 == 0 else self.outcome(message.body)

        self.producer.send_in_transaction(Message(self._topic, b"%d" % number), execute=execute)
        time.sleep(0.02)

    def committed(self) -> set[bytes]:
        return {body for body in self.prepared if self.outcome(body) is TransactionState.COMMIT}


class Reader:
    """What a consumer was given."""

    def __init__(self) -> None:
        self.found: dict[Place, bytes] = {}

    def __call__(self, message: MessageExt) -> None:
        place = message.queue_id, message.queue_offset
        assert self.found.setdefault(place, message.body) == message.body, "another message at one place"

    def until(self, acked: dict[Place, bytes], who: str) -> None:
        eventually(
            lambda: self.found.keys() >= acked.keys(),
            lambda: f"{who}: {len(acked.keys() - self.found.keys())} of {len(acked)} messages are missing",
        )
        assert {place: self.found[place] for place in acked} == acked


def until_logs_are_equal(replicas: ReplicaSet) -> None:
    eventually(lambda: len(set(replicas.logs())) == 1, "equal logs")


@pytest.mark.slow("six brokers start; the rounds of failover are the quick twin")
def test_each_broker_is_replaced_by_an_empty_one_under_load(tmp_path: Path) -> None:
    reader = Reader()
    with ReplicaSet(tmp_path, 3) as replicas, Clients(replicas.namesrv) as clients:
        topic = clients.topic(queues=QUEUES)
        sender = Sender(clients.producer(send_timeout_ms=3_000), topic)
        clients.push_consumer(topic, reader)
        first = replicas.ids
        with Load().running(sender):
            for number in sorted(first):
                sender.sends()
                replicas.drain(number)
                sender.sends()
                replicas.add()
                replicas.until_in_sync()
            sender.sends()
        assert not replicas.ids & first
        assert replicas.known() == replicas.ids
        reader.until(sender.acked, "the push consumer")
        until_logs_are_equal(replicas)


@pytest.mark.slow("a set of processes; test_controller_mode.py is the fast twin")
@pytest.mark.parametrize("rounds", [2, pytest.param(12, marks=pytest.mark.slow("more rounds"))])
def test_masters_die_and_freeze_under_load(tmp_path: Path, rounds: int) -> None:
    draws = random.Random(rounds)
    faults = ["kill", "freeze"] * (rounds // 2)
    draws.shuffle(faults)
    gaps: list[tuple[str, float]] = []
    reader, popped, decided = Reader(), Reader(), set[bytes]()
    with ExitStack() as stack:
        replicas = stack.enter_context(ReplicaSet(tmp_path, 3, **SOON))
        clients = stack.enter_context(Clients(replicas.namesrv))
        topic, transactions = clients.topic(queues=QUEUES), clients.topic(queues=QUEUES)
        clients.push_consumer(topic, reader)
        clients.pop_consumer(topic, popped, group="popping")
        replicas.until_all_say(GET_ALL_MESSAGE_REQUEST_MODE, topic)
        replicas.until_all_say(GET_ALL_TOPIC_CONFIG, transactions)
        clients.push_consumer(transactions, lambda message: decided.add(message.body))
        sender = Sender(clients.producer(send_timeout_ms=3_000), topic)
        decider = Decider(transactions)
        decider.producer = clients.transaction_producer(check=decider.check, send_timeout_ms=3_000)
        with Load().running(sender, decider):
            for fault in faults:
                sender.sends(draws.randrange(1, 100))
                replicas.until_in_sync()
                master = replicas.master()
                assert master is not None
                since_s = time.monotonic()
                if fault == "kill":
                    folder = replicas.kill(master)
                    replicas.until_another_leads(master)
                    gaps.append((fault, round(sender.gap_s(since_s), 2)))
                    sender.sends()
                    replicas.restart(master, folder)
                else:
                    replicas.freeze(master)
                    replicas.until_another_leads(master)
                    gaps.append((fault, round(sender.gap_s(since_s), 2)))
                    sender.sends()
                    replicas.thaw(master)
            replicas.until_in_sync()
            sender.sends()
        print(
            f"{len(sender.acked)} acknowledged; lease {LEASE_MS} ms; seconds without an acknowledgement:",
            gaps,
        )
        reader.until(sender.acked, "the push consumer")
        popped.until(sender.acked, "the POP consumer")
        missing = eventually(lambda: decider.committed() <= decided, lambda: decider.committed() - decided)
        assert missing
        assert all(Decider.outcome(body) is TransactionState.COMMIT for body in decided)
        assert len(decided) > rounds
        until_logs_are_equal(replicas)
