"""The C++ client through its Python binding: PyPI's ``rocketmq`` 0.4.4, which brings librocketmq.so with it.

Imports nothing of the project but ``side``, which lies beside it.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from rocketmq.client import Message, Producer, PullConsumer, PushConsumer
from rocketmq.exceptions import ProducerSendSyncFailed
from rocketmq.ffi import dll
from side import BATCH, WARM_UP, Clock, Seen, arguments, at_rate, body, in_threads, quantiles_ms, report_drain

with arguments() as asked:
    pass


def message(topic: str, content: bytes) -> Message:
    made = Message(topic)
    made.set_body(content)
    return made


class Window:
    """At most ``width`` sends without an answer; the first error ends the run."""

    def __init__(self, width: int) -> None:
        self._room = threading.Semaphore(width)
        self._width = width
        self.errors: list[Exception] = []

    def send(self, topic: str, content: bytes) -> None:
        self._room.acquire()
        producer.send_async(message(topic, content), self._sent, self._failed)

    def _sent(self, result: object) -> None:
        self._room.release()

    def _failed(self, error: Exception) -> None:
        self.errors.append(error)
        self._room.release()

    def finish(self) -> None:
        for _ in range(self._width):
            self._room.acquire()
        if self.errors:
            raise self.errors[0]


def again(send: Callable[[Any], object], what: Any) -> None:
    """On a busy machine its threads give up waiting for each other before anything is sent."""
    for _ in range(4):
        try:
            send(what)
            return
        except ProducerSendSyncFailed:
            time.sleep(0.01)
    send(what)


def send(case: str, topic: str, count: int) -> None:
    size = asked.size
    if case == "sync":
        in_threads(
            asked.width, count, 1, lambda part: again(producer.send_sync, message(topic, body(part[0], size)))
        )
    elif case == "async":
        window = Window(asked.width)
        for number in range(count):
            window.send(topic, body(number, size))
        window.finish()
    elif case == "oneway":
        for number in range(count):
            producer.send_oneway(message(topic, body(number, size)))
    elif case == "batch":
        in_threads(
            asked.width,
            count,
            BATCH,
            lambda part: again(producer.send_batch, [message(topic, body(number, size)) for number in part]),
        )
    else:
        raise SystemExit(f"the C++ client has no {case}")


def push(seen: Seen) -> PushConsumer:
    consumer = PushConsumer(f"cpp-{time.monotonic_ns()}")
    consumer.set_namesrv_addr(asked.namesrv)
    consumer.set_thread_count(20)
    consumer.subscribe(asked.topic, lambda message: seen.mark(message.body))
    return consumer


def pull(seen: Seen) -> None:
    consumer = PullConsumer(f"cpp-{time.monotonic_ns()}")
    consumer.set_namesrv_addr(asked.namesrv)
    consumer.start()
    for each in consumer.pull(asked.topic):
        seen.mark(each.body)
    seen.wait(0)


producer = Producer(f"cpp-{time.monotonic_ns()}", timeout=10_000)
producer.set_namesrv_addr(asked.namesrv)
# It compresses a batch as a whole from 4 KiB on, which no broker can take apart; the binding has no name for this.
dll.SetProducerCompressMsgBodyOverHowmuch(ctypes.c_void_p(producer._handle), 1 << 22)

if asked.case in ("push", "lite"):
    seen = Seen(asked.count)
    clock = Clock()
    if asked.case == "push":
        consumer = push(seen)
        consumer.start()
        seen.wait(300)
    else:
        pull(seen)
    report_drain(clock, seen)
elif asked.case == "rate":
    producer.start()
    due: list[float] = [0.0] * asked.count
    sent: list[float] = []
    arrived: list[float] = []
    finished = threading.Event()

    def listen(arrival: Message) -> None:
        number = int(arrival.body[:8])
        if due[number]:
            arrived.append(time.perf_counter() - due[number])
        if len(arrived) == asked.count:
            finished.set()

    consumer = PushConsumer(f"cpp-{time.monotonic_ns()}")
    consumer.set_namesrv_addr(asked.namesrv)
    consumer.subscribe(asked.topic, listen)
    consumer.start()
    producer.send_sync(message(asked.topic, body(0, asked.size)))
    time.sleep(12)  # it asks for its queues every ten seconds
    clock = Clock()
    for number, when in at_rate(asked.count, asked.rate):
        due[number] = when
        producer.send_async(
            message(asked.topic, body(number, asked.size)),
            lambda result, when=when: sent.append(time.perf_counter() - when),
            lambda error: print(error, file=sys.stderr),
        )
    if not finished.wait(60):
        raise SystemExit(f"{len(arrived)} of {asked.count} arrived")
    clock.report(sent=quantiles_ms(sent), arrived=quantiles_ms(arrived))
else:
    producer.start()
    # It finds no route when several threads are the first to ask for one.
    for topic in (f"{asked.topic}-warm", asked.topic):
        producer.send_sync(message(topic, body(asked.count, asked.size)))
    send(asked.case, f"{asked.topic}-warm", WARM_UP)
    clock = Clock()
    send(asked.case, asked.topic, asked.count)
    clock.report()
sys.stdin.read()
os._exit(0)  # its destructors wait for threads that are at their long poll
