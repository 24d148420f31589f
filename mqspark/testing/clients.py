"""Clients that end with the test."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable
from dataclasses import replace
from types import TracebackType
from typing import Self, TypeVar, Unpack

from mqspark.base.clock import Clock
from mqspark.client.consumer.consumer_settings import (
    LitePullConsumerKeywords,
    PopConsumerKeywords,
    PushConsumerKeywords,
)
from mqspark.client.delivery.delivery import BatchListener, Listener
from mqspark.client.producer.producer_settings import ProducerKeywords
from mqspark.client.producer.transaction import Check, Execute
from mqspark.client.remoting.client_options import ClientOptions
from mqspark.client.sync import (
    AdminClient,
    LitePullConsumer,
    PopConsumer,
    Producer,
    PushConsumer,
    TransactionProducer,
)
from mqspark.client.sync.facade import Facade
from mqspark.message import CLIENT_TOPIC_QUEUES
from mqspark.protocol.bodies.client_bodies import ConsumeFromWhere

_numbers = itertools.count(1)

OPTIONS = ClientOptions(route_interval_ms=500, heartbeat_interval_ms=1_000, request_timeout_ms=30_000)
"""Shorter intervals than the default 30 s, since a test waits for them; and longer time-outs, since its machine may be
busy."""
REBALANCE_INTERVAL_MS = 500
SEND_TIMEOUT_MS = 30_000
FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET


C = TypeVar("C", bound=Facade)


class Clients:
    """Makes blocking clients of one cluster, started, and stops them all at its end, the last one first.

    Groups are new ones unless they are named. Consumers begin with the first message and look for new topics, queues
    and members twice a second. All settings of their classes may be given as keywords, or as ``options``. A context
    manager.
    """

    def __init__(self, namesrv: str, *, clock: Clock | None = None) -> None:
        """``namesrv``: ``host:port``. ``clock``: the clients', for tests that move time (``FakeClock.running``)."""
        self.namesrv = namesrv
        self._clock = clock
        self._clients: list[Facade] = []
        self._admin: AdminClient | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def topic(self, name: str | None = None, *, queues: int = CLIENT_TOPIC_QUEUES) -> str:
        """Create a topic on every broker, and return its name: a new one unless it is given."""
        name = name or new_name("topic")
        self.admin().create_topic(name, queues=queues)
        return name

    def admin(self) -> AdminClient:
        """An admin, the same at each call."""
        if self._admin is None:
            self._admin = self._started(AdminClient(self.namesrv, options=self._options(None)))
        return self._admin

    def producer(
        self,
        group: str | None = None,
        *,
        options: ClientOptions | None = None,
        **changes: Unpack[ProducerKeywords],
    ) -> Producer:
        """A started producer, with a send timeout of 30 s unless it is given."""
        changes.setdefault("send_timeout_ms", SEND_TIMEOUT_MS)
        return self._started(
            Producer(
                self.namesrv, group=group or new_name("group"), options=self._options(options), **changes
            )
        )

    def transaction_producer(
        self,
        *,
        check: Check,
        execute: Execute | None = None,
        concurrency: int = 4,
        topics: Iterable[str] = (),
        group: str | None = None,
        options: ClientOptions | None = None,
        **changes: Unpack[ProducerKeywords],
    ) -> TransactionProducer:
        """A started transactional producer, with a send timeout of 30 s unless it is given."""
        changes.setdefault("send_timeout_ms", SEND_TIMEOUT_MS)
        return self._started(
            TransactionProducer(
                self.namesrv,
                group=group or new_name("group"),
                check=check,
                execute=execute,
                concurrency=concurrency,
                topics=topics,
                options=self._options(options),
                **changes,
            )
        )

    def push_consumer(
        self,
        topic: str,
        listener: Listener | None = None,
        *,
        batch_listener: BatchListener | None = None,
        tags: str = "*",
        sql: str | None = None,
        group: str | None = None,
        options: ClientOptions | None = None,
        **changes: Unpack[PushConsumerKeywords],
    ) -> PushConsumer:
        """A started push consumer of ``topic``, with ``listener`` or ``batch_listener``."""
        changes.setdefault("consume_from", FIRST)
        changes.setdefault("rebalance_interval_ms", REBALANCE_INTERVAL_MS)
        consumer = PushConsumer(
            self.namesrv,
            group=group or new_name("group"),
            listener=listener,
            batch_listener=batch_listener,
            options=self._options(options),
            **changes,
        )
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
        options: ClientOptions | None = None,
        **changes: Unpack[PopConsumerKeywords],
    ) -> PopConsumer:
        """A started POP consumer of ``topic``, which exists; its group gets POP mode there."""
        group = group or new_name("group")
        self.admin().set_consume_mode(topic, group, "POP")
        changes.setdefault("consume_from", FIRST)
        changes.setdefault("rebalance_interval_ms", REBALANCE_INTERVAL_MS)
        consumer = PopConsumer(
            self.namesrv, group=group, listener=listener, options=self._options(options), **changes
        )
        consumer.subscribe(topic, tags, sql=sql)
        return self._started(consumer)

    def lite_pull_consumer(
        self,
        topic: str | None = None,
        *,
        tags: str = "*",
        sql: str | None = None,
        group: str | None = None,
        options: ClientOptions | None = None,
        **changes: Unpack[LitePullConsumerKeywords],
    ) -> LitePullConsumer:
        """A started lite pull consumer of ``topic``; without one it is for ``assign``, or for ``subscribe``."""
        changes.setdefault("consume_from", FIRST)
        changes.setdefault("rebalance_interval_ms", REBALANCE_INTERVAL_MS)
        consumer = LitePullConsumer(
            self.namesrv, group=group or new_name("group"), options=self._options(options), **changes
        )
        if topic is not None:
            consumer.subscribe(topic, tags, sql=sql)
        return self._started(consumer)

    def close(self) -> None:
        """Stop the clients that are not stopped yet. When all are stopped, raises the first error."""
        failure: BaseException | None = None
        self._admin = None
        while self._clients:
            try:
                self._clients.pop().stop()
            except Exception as error:
                failure = failure or error
        if failure is not None:
            raise failure

    def _options(self, options: ClientOptions | None) -> ClientOptions:
        """With the clock of these clients, unless the options have one."""
        options = options or OPTIONS
        return options if options.clock is not None else replace(options, clock=self._clock)

    def _started(self, client: C) -> C:
        client.start()
        self._clients.append(client)
        return client


def new_name(what: str) -> str:
    """A name that no other test has, in whatever process."""
    return f"{what}-{os.getpid()}-{next(_numbers)}"
