"""Clients that end with the test."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from mqspark.client.consumer.consumer import ConsumeFromWhere
from mqspark.client.delivery.delivery import Listener
from mqspark.client.producer.transaction import Check, Execute
from mqspark.client.remoting.identity import ClientOptions
from mqspark.client.sync import (
    AdminClient,
    LitePullConsumer,
    PopConsumer,
    Producer,
    PushConsumer,
    TransactionProducer,
)

__all__ = ["Clients"]

_numbers = itertools.count(1)

OPTIONS = ClientOptions(route_interval_ms=500, heartbeat_interval_ms=1_000, request_timeout_ms=30_000)
"""A test waits for no round of 30 s; and its machine may be busy."""
REBALANCE_INTERVAL_MS = 500
SEND_TIMEOUT_MS = 30_000


class _Client(Protocol):
    def start(self) -> None: ...

    def stop(self) -> None: ...


C = TypeVar("C", bound=_Client)


class Clients:
    """Makes blocking clients of one cluster, started, and stops them all at its end, the last one first.

    Groups are new ones unless they are named. Consumers begin with the first message, look for new topics, queues
    and members twice a second, and take every option of their classes. A context manager.
    """

    def __init__(self, namesrv: str) -> None:
        self.namesrv = namesrv
        self._clients: list[_Client] = []
        self._admin: AdminClient | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def topic(self, name: str | None = None, *, queues: int = 4) -> str:
        """Create a topic on every broker, and give back its name: a new one unless it is given."""
        name = name or new_name("topic")
        self.admin().create_topic(name, queues=queues)
        return name

    def admin(self) -> AdminClient:
        """One for all."""
        if self._admin is None:
            self._admin = self._started(AdminClient(self.namesrv, options=OPTIONS))
        return self._admin

    def producer(self, group: str | None = None, **options: Any) -> Producer:
        options = {"send_timeout_ms": SEND_TIMEOUT_MS, **options}
        return self._make(Producer, group, options)

    def transaction_producer(
        self, *, check: Check, execute: Execute | None = None, group: str | None = None, **options: Any
    ) -> TransactionProducer:
        options = {"send_timeout_ms": SEND_TIMEOUT_MS, "check": check, "execute": execute, **options}
        return self._make(TransactionProducer, group, options)

    def push_consumer(
        self,
        topic: str,
        listener: Listener | None = None,
        *,
        tags: str = "*",
        sql: str | None = None,
        group: str | None = None,
        **options: Any,
    ) -> PushConsumer:
        """With ``listener`` or ``batch_listener``."""
        consumer = self._new(PushConsumer, group, {**_first(), "listener": listener, **options})
        consumer.subscribe(topic, tags, sql=sql)
        return self._started(consumer)

    def pop_consumer(
        self,
        topic: str,
        listener: Listener,
        *,
        tags: str = "*",
        sql: str | None = None,
        group: str | None = None,
        **options: Any,
    ) -> PopConsumer:
        """Of a topic that exists; its group gets POP mode."""
        group = group or new_name("group")
        self.admin().set_consume_mode(topic, group, "POP")
        consumer = self._new(PopConsumer, group, {**_first(), "listener": listener, **options})
        consumer.subscribe(topic, tags, sql=sql)
        return self._started(consumer)

    def lite_pull_consumer(
        self,
        topic: str | None = None,
        *,
        tags: str = "*",
        sql: str | None = None,
        group: str | None = None,
        **options: Any,
    ) -> LitePullConsumer:
        """Without a topic it is for ``assign``, or for ``subscribe``."""
        consumer = self._new(LitePullConsumer, group, {**_first(), **options})
        if topic is not None:
            consumer.subscribe(topic, tags, sql=sql)
        return self._started(consumer)

    def close(self) -> None:
        """Stop what is not stopped yet. Raises what the first of them raised, when all are stopped."""
        failure: BaseException | None = None
        self._admin = None
        while self._clients:
            try:
                self._clients.pop().stop()
            except Exception as error:
                failure = failure or error
        if failure is not None:
            raise failure

    def _make(self, kind: Callable[..., C], group: str | None, options: dict[str, Any]) -> C:
        return self._started(self._new(kind, group, options))

    def _new(self, kind: Callable[..., C], group: str | None, options: dict[str, Any]) -> C:
        return kind(self.namesrv, group=group or new_name("group"), **{"options": OPTIONS, **options})

    def _started(self, client: C) -> C:
        client.start()
        self._clients.append(client)
        return client


def _first() -> dict[str, Any]:
    return {
        "consume_from": ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        "rebalance_interval_ms": REBALANCE_INTERVAL_MS,
    }


def new_name(what: str) -> str:
    """A name that no other test has, in whatever process."""
    return f"{what}-{os.getpid()}-{next(_numbers)}"
