"""Replica sets of processes under load: brokers are replaced. What is acknowledged is there, and is consumed."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mqspark import Message, MessageExt, Producer, SendStatus
from mqspark.errors import MQError
from mqspark.testing import Clients
from tests.support.replicaset import ReplicaSet
from tests.support.waiting import eventually

QUEUES = 2
Place = tuple[int, int]
"""A queue id and an offset in it."""


class Load:
    """Threads that send, each one message after the other."""

    def __init__(self) -> None:
        self._ending = threading.Event()
        self._errors: list[BaseException] = []

    @contextmanager
    def running(self, *senders: Sender) -> Iterator[None]:
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

    def _run(self, sender: Sender) -> None:
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

    def send(self, number: int) -> None:
        body = b"%d" % number
        result = self._producer.send(Message(self._topic, body))
        if result.status is SendStatus.SEND_OK:
            place = result.queue.queue_id, result.queue_offset
            assert place not in self.acked, "two messages were acknowledged at one place"
            self.acked[place] = body

    def sends(self, count: int = 50) -> None:
        """Wait until so many more are acknowledged."""
        wanted = len(self.acked) + count
        eventually(lambda: len(self.acked) >= wanted, f"{count} more messages to be acknowledged")


class Reader:
    """What a consumer was given."""

    def __init__(self) -> None:
        self.found: dict[Place, bytes] = {}

    def __call__(self, message: MessageExt) -> None:
        place = message.queue_id, message.queue_offset
        assert self.found.setdefault(place, message.body) == message.body, "another message at one place"

    def until(self, acked: dict[Place, bytes]) -> None:
        eventually(
            lambda: self.found.keys() >= acked.keys(),
            lambda: f"{len(acked.keys() - self.found.keys())} of {len(acked)} messages are missing",
        )
        assert {place: self.found[place] for place in acked} == acked


def until_logs_are_equal(replicas: ReplicaSet) -> None:
    eventually(lambda: len(set(replicas.logs())) == 1, "equal logs")


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
        reader.until(sender.acked)
        until_logs_are_equal(replicas)
