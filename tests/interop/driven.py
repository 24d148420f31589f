"""gRPC clients of any language by their drivers, which understand the same requests: see java/GrpcDriver.java."""

import base64
import time
from collections import Counter
from typing import Any

from tests.interop.driver import Driver, body_of
from tests.interop.proxy import Proxy

INVISIBLE_MS = 60_000


class Client:
    """gRPC clients by the driver's handles, stopped with the test."""

    def __init__(self, driver: Driver, proxy: Proxy) -> None:
        self.driver, self.proxy = driver, proxy
        self._handles: list[int] = []

    def start(self, verb: str, **options: Any) -> int:
        handle = int(self.driver.call(verb, endpoints=self.proxy.grpc, **options)["handle"])
        self._handles.append(handle)
        return handle

    def producer(self, *topics: str, **options: Any) -> int:
        return self.start("producer.start", topics=list(topics), **options)

    def send(self, producer: int, *messages: dict[str, Any], **options: Any) -> list[dict[str, Any]]:
        sent: list[dict[str, Any]] = self.driver.call(
            "producer.send", handle=producer, messages=list(messages), **options
        )
        return sent

    def simple(self, topic: str, group: str, expression: str = "*", kind: str = "TAG") -> int:
        return self.start(
            "simple.start", group=group, await_ms=5_000, subscriptions={topic: [kind, expression]}
        )

    def push(self, topic: str, group: str, expression: str = "*", kind: str = "TAG", **options: Any) -> int:
        return self.start("push.start", group=group, subscriptions={topic: [kind, expression]}, **options)

    def receive(
        self, consumer: int, count: int, invisible_ms: int = INVISIBLE_MS, wait_s: float = 45
    ) -> list[dict[str, Any]]:
        """So many messages, if they come in time."""
        received: list[dict[str, Any]] = []
        deadline = time.monotonic() + wait_s
        while len(received) < count and time.monotonic() < deadline:
            received += self.driver.call("simple.receive", handle=consumer, max=32, invisible_ms=invisible_ms)
        return received

    def ack(self, consumer: int, *received: dict[str, Any]) -> None:
        for message in received:
            self.driver.call("simple.ack", handle=consumer, view=message["view"])

    def take(self, consumer: int, count: int, wait_s: float = 45) -> list[dict[str, Any]]:
        taken: list[dict[str, Any]] = self.driver.call(
            "push.take", handle=consumer, count=count, timeout_ms=int(wait_s * 1000)
        )
        return taken

    def stop(self) -> None:
        """Nobody waits for it: a push consumer stops when its long polls are over."""
        for handle in self._handles:
            self.driver.submit("stop", handle=handle)


def message(topic: str, body: bytes, **fields: Any) -> dict[str, Any]:
    """A message in the driver's JSON form: tag, keys, group, delay_ms, properties."""
    return {"topic": topic, "body": base64.b64encode(body).decode(), **fields}


def bodies(received: list[dict[str, Any]]) -> Counter[bytes]:
    return Counter(map(body_of, received))
