"""Producers and push consumers of either kind, ours and Java's, behind one face: what a scenario does with them."""

import threading
import time
from collections import Counter
from typing import Any, Protocol

from mqspark import ClientOptions, ConsumeFromWhere, Message, MessageExt, Producer, PushConsumer
from mqspark.client.consumer.consumer_settings import AVERAGELY
from mqspark.client.hooks.hooks import ConsumeContext, Interceptor, SendContext
from tests.interop.driver import JavaDriver, body_of, message
from tests.support.clusters import Cluster

WAIT_S = 60.0
POLL_S = 0.05


class Member(Protocol):
    """A push consumer of either kind."""

    client_id: str

    def take(self, count: int, wait_s: float = WAIT_S) -> Counter[bytes]:
        """So many messages, if they come in time, and what came besides."""

    def queues(self, topic: str) -> list[int]: ...
    def do(self, what: str, *arguments: str) -> None: ...
    def hooked(self) -> list[str]: ...


class JavaMember:
    def __init__(self, java: JavaDriver, namesrv: str, topic: str, group: str, **options: Any) -> None:
        self._java, self._group = java, group
        settings = {"from": "CONSUME_FROM_FIRST_OFFSET", "expression": "*", **options}
        started = java.call(
            "push.start", namesrv=namesrv, topic=topic, group=group, model="CLUSTERING", **settings
        )
        self._handle, self.client_id = started["handle"], started["client_id"]

    def take(self, count: int, wait_s: float = WAIT_S) -> Counter[bytes]:
        arguments = {"handle": self._handle, "count": count, "timeout_ms": int(wait_s * 1000)}
        return Counter(map(body_of, self._java.submit("push.take", **arguments).result(wait_s + 30)))

    def queues(self, topic: str) -> list[int]:
        return [queue[2] for queue in self._java.call("push.queues", handle=self._handle, topic=topic)]

    def do(self, what: str, *arguments: str) -> None:
        names = dict(zip(("topic", "expression"), arguments, strict=False))
        self._java.call(f"push.{what}", handle=self._handle, **names)

    def hooked(self) -> list[str]:
        return list(self._java.call("hooked", group=self._group))


class Noted(Interceptor):
    def __init__(self) -> None:
        self.calls: list[str] = []

    def before_send(self, context: SendContext) -> None:
        self.calls.append("before")

    def after_send(self, context: SendContext) -> None:
        assert context.result is not None
        self.calls.append(f"after {context.result.status.name}")

    def before_consume(self, context: ConsumeContext) -> None:
        self.calls.append("before")

    def after_consume(self, context: ConsumeContext) -> None:
        self.calls.append("after CONSUME_SUCCESS")


class OurMember:
    def __init__(self, java: JavaDriver, namesrv: str, topic: str, group: str, **options: Any) -> None:
        self._received: list[bytes] = []
        self._lock = threading.Lock()
        self._gate = threading.Event()
        self._waits = options.pop("waits", False)
        self._noted = Noted()
        instance = options.pop("instance", None)
        start = ConsumeFromWhere[options.pop("from", "CONSUME_FROM_FIRST_OFFSET")]
        expression = options.pop("expression", "*")
        settings: dict[str, Any] = {
            "rebalance_interval_ms": 1_000,
            "max_cached_messages": options.pop("cached", 1_000),
            "pull_batch_size": options.pop("pull_batch", 32),
            "consume_timestamp_ms": options.pop("timestamp", None),
            "allocation": options.pop("allocation", AVERAGELY),
            "interceptors": [self._noted] if options.pop("hooks", False) else [],
            "options": ClientOptions(instance_name=instance) if instance else None,
            "concurrency": 4,
        }
        assert not options, options
        self._consumer = PushConsumer(
            namesrv, group=group, listener=self._listen, consume_from=start, **settings
        )
        self._consumer.subscribe(topic, expression)
        self._consumer.start()
        self.client_id = self._consumer.client_id

    def _listen(self, got: MessageExt) -> None:
        with self._lock:
            self._received.append(got.body)
        if self._waits:
            self._gate.wait(WAIT_S)

    def take(self, count: int, wait_s: float = WAIT_S) -> Counter[bytes]:
        deadline = time.monotonic() + wait_s
        while len(self._received) < count and time.monotonic() < deadline:
            time.sleep(POLL_S)
        with self._lock:
            taken, self._received = self._received, []
        return Counter(taken)

    def queues(self, topic: str) -> list[int]:
        return [queue.queue_id for queue in self._consumer.assignment() if queue.topic == topic]

    def do(self, what: str, *arguments: str) -> None:
        if what == "let_go":
            self._gate.set()
        else:
            getattr(self._consumer, what)(*arguments)

    def stop(self) -> None:
        self._gate.set()
        self._consumer.stop()

    def hooked(self) -> list[str]:
        return list(self._noted.calls)


class Side:
    """The client under test: ours or Java's. Everything that it started ends with the test."""

    def __init__(self, java: JavaDriver, cluster: Cluster, is_ours: bool) -> None:
        self.java, self.cluster, self.is_ours = java, cluster, is_ours
        self._members: list[OurMember | JavaMember] = []
        self._producers: list[Producer] = []

    def member(self, topic: str, group: str, *, namesrv: str | None = None, **options: Any) -> Member:
        kind = OurMember if self.is_ours else JavaMember
        started = kind(self.java, namesrv or self.cluster.namesrv, topic, group, **options)
        self._members.append(started)
        return started

    def send(
        self, topic: str, bodies: list[bytes], *, namesrv: str | None = None, tags: str = "T", **options: Any
    ) -> None:
        """All at once, without waiting for one before the next."""
        namesrv = namesrv or self.cluster.namesrv
        group = f"features-{topic}"
        if self.is_ours:
            producer = Producer(namesrv, group=group, send_timeout_ms=30_000, **options)
            producer.start()
            self._producers.append(producer)
            for future in [producer.send_async(Message.of(topic, body, tags=tags)) for body in bodies]:
                future.result(WAIT_S)
            return
        handle = self.java.call("producer.start", namesrv=namesrv, group=group, timeout_ms=30_000, **options)
        calls = [
            self.java.submit(
                "producer.send", handle=handle["handle"], mode="sync", message=message(topic, body, tags=tags)
            )
            for body in bodies
        ]
        assert {call.result(WAIT_S)["status"] for call in calls} <= {"SEND_OK"}

    def stop(self) -> None:
        for member in self._members:
            if isinstance(member, OurMember):
                member.stop()
            else:
                member.do("let_go")
                member.do("stop")
        for producer in self._producers:
            producer.stop()
