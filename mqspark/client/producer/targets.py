"""The queues a producer may send to, each with the constant parts of its requests. Facts: RocketMQ's
TopicPublishInfo, SendMessageRequestHeaderV2."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from typing import overload

import msgspec

from mqspark.client.producer.faults import FaultTable, QueueChooser
from mqspark.client.remoting.channel import Channel
from mqspark.client.remoting.instance import ClientInstance
from mqspark.client.remoting.namespaces import Namespace
from mqspark.client.remoting.topic_routes import TopicRoute
from mqspark.errors import ClientError, NoRoute
from mqspark.message import DEFAULT_TOPIC, MessageQueue, Queues
from mqspark.protocol.codes import CURRENT_VERSION, RequestCode
from mqspark.protocol.command import ONEWAY_FLAG
from mqspark.protocol.signature import content_of, signed_names

PLAIN, BATCH, REPLY = range(3)
CODES = (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2)
"""Indexed by kind."""

FAILOVER_S = 10.0
"""How long the route of a topic is looked up again after the topic has lost its last writable queue."""

MAX_MADE = 1_024
"""Targets kept per topic, of 2 KB each."""

_encode_json = msgspec.json.encode


class Target:
    """One queue, prepared for the hot path."""

    __slots__ = ("broker_name", "channel", "contents", "heads", "queue", "shapes", "shown")

    def __init__(
        self,
        queue: MessageQueue,
        shown: MessageQueue,
        broker_name: str,
        group: str,
        default_queue_count: int,
        more: Mapping[str, str] | None = None,
    ) -> None:
        self.queue = queue
        self.shown = shown
        """The queue under the program's name of the topic."""
        self.broker_name = broker_name
        """For a logic queue, the broker that led it when the route was looked up."""
        self.channel: Channel | None = None
        fields = [self._fields(group, default_queue_count, code, more or {}) for code in CODES]
        self.heads = tuple(
            _head(code, constant, oneway=oneway)
            for code, constant in zip(CODES, fields, strict=True)
            for oneway in (False, True)
        )
        """At index ``2 * kind + oneway``."""
        self.contents = tuple(_content(constant) for constant in fields)
        """By kind: what a signature covers before and after the fields that differ between messages."""
        self.shapes = tuple(_shape(constant) for constant in fields)
        """By kind: the same of the description of its fields."""

    def _fields(
        self, group: str, default_queue_count: int, code: RequestCode, more: Mapping[str, str]
    ) -> dict[str, str]:
        """The constant part of SendMessageRequestHeaderV2, with ``more``, which every request of the client has."""
        return {
            **more,
            "a": group,
            "b": self.queue.topic,
            "c": DEFAULT_TOPIC,
            "d": str(default_queue_count),
            "e": str(self.queue.queue_id),
            "j": "0",
            "k": "false",
            "m": "true" if code == RequestCode.SEND_BATCH_MESSAGE else "false",
            "n": self.broker_name,
        }


def _head(code: RequestCode, fields: Mapping[str, str], *, oneway: bool) -> bytes:
    """A request up to the born timestamp (``g``), whose quote is open."""
    return (
        f'{{"code":{int(code)},"flag":{ONEWAY_FLAG if oneway else 0},"language":"PYTHON",'
        f'"version":{CURRENT_VERSION},"serializeTypeCurrentRPC":"JSON",'
        f'"extFields":{_encode_json(fields).decode()[:-1]},"g":"'
    ).encode()


def _content(fields: Mapping[str, str]) -> tuple[bytes, bytes]:
    """The values of the fields before ``f`` to ``i``, and of those after them, in the order of a signature."""
    before = {name: value for name, value in fields.items() if name < "f"}
    after = {name: value for name, value in fields.items() if name > "i"}
    return content_of(before), content_of(after)


def _shape(fields: Mapping[str, str]) -> tuple[str, str]:
    """The description of all fields, without the lengths of ``f`` to ``i``, which belong between the two parts."""
    names = signed_names[(*fields, *"fghi")].order
    lengths = [str(len(fields[name])) if name in fields else "" for name in names]
    place = names.index("f")
    before, after = (",".join(part) for part in (lengths[:place], lengths[place + 4 :]))
    return f"{','.join(names)}={before},", f",{after}"


class _Made(Sequence[Target]):
    """Targets of a topic with many queues, created on first use."""

    def __init__(self, queues: Sequence[MessageQueue], make: Callable[[MessageQueue], Target]) -> None:
        self._queues = queues
        self._make = make
        self._made: dict[int, Target] = {}

    def __len__(self) -> int:
        return len(self._queues)

    @overload
    def __getitem__(self, index: int) -> Target: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Target]: ...
    def __getitem__(self, index: int | slice) -> Target | Sequence[Target]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        target = self._made.get(index)
        if target is None:
            if len(self._made) >= MAX_MADE:
                self._made.clear()
            target = self._made[index] = self._make(self._queues[index])
        return target


class PublishTopic:
    """A topic's queues and the round-robin position."""

    __slots__ = ("_by_queue", "_turn", "chooser", "emptied_s", "has_one_broker", "many", "queues", "targets")

    def __init__(self, chooser: QueueChooser) -> None:
        self.chooser = chooser
        self.queues: Sequence[MessageQueue] = ()
        self.targets: Sequence[Target] = []
        self.many = False
        """Whether to choose from ``candidates`` instead of ``targets``."""
        self.emptied_s: float | None = None
        """When its last writable queue disappeared: no broker of it has a master now, or writing was forbidden."""
        self.has_one_broker = True
        self._by_queue: dict[MessageQueue, Target] = {}
        self._turn = 0

    def adopt(
        self, queues: Sequence[MessageQueue], make: Callable[[MessageQueue], Target], now_s: float
    ) -> None:
        if queues:
            self.emptied_s = None
        elif self.targets:
            self.emptied_s = now_s
        self.queues = queues
        brokers = queues.spans if isinstance(queues, Queues) else {queue.broker_name for queue in queues}
        self.has_one_broker = len(brokers) < 2
        self.many = len(queues) > MAX_MADE
        self.targets = _Made(queues, make) if self.many else [make(queue) for queue in queues]
        self._by_queue = {} if self.many else {target.queue: target for target in self.targets}

    def is_failing_over(self, now_s: float) -> bool:
        """Whether it had writable queues a moment ago, and may soon have them again."""
        return self.emptied_s is not None and now_s < self.emptied_s + FAILOVER_S

    def target_of(self, queue: MessageQueue) -> Target | None:
        if not self.many or not isinstance(self.queues, Queues):
            return self._by_queue.get(queue)
        place = self.queues.place_of(queue)
        return None if place is None else self.targets[place]

    def candidates(self) -> list[Target]:
        """The next queue of each broker; the chooser selects the broker."""
        spans = self.queues.spans if isinstance(self.queues, Queues) else ()
        start, candidates = 0, []
        turn = self._turn // max(1, len(spans))
        self._turn += 1
        for _, count in spans:
            candidates.append(self.targets[start + turn % count])
            start += count
        return candidates


class Targets:
    """All topics of one producer, under the cluster's names."""

    def __init__(
        self,
        instance: ClientInstance,
        namespace: Namespace,
        group: str,
        faults: FaultTable,
        *,
        default_topic_queues: int,
    ) -> None:
        self.topics: dict[str, PublishTopic] = {}
        self._instance = instance
        self._namespace = namespace
        self._group = group
        self._faults = faults
        self._default_topic_queues = default_topic_queues
        self._more = instance.options.fields
        if instance.signer is not None:
            self._more = {**self._more, **instance.signer.fields}

    async def find(self, name: str, *, refresh: bool = False) -> PublishTopic:
        """A topic with writable queues; a topic that does not exist yet has the queues with which it would be
        created. Raises NoRoute, and what ``ClientInstance.route`` raises when no route is known yet."""
        topic = self.topics.get(name)
        if topic is not None and topic.targets and not refresh:
            return topic
        known = self._instance.cached_route(name)
        try:
            route = await self._instance.route(
                name, refresh=refresh or (known is not None and not known.publish_queues)
            )
        except NoRoute:
            if topic is not None and topic.targets:
                return topic
            if topic is not None and topic.is_failing_over(asyncio.get_running_loop().time()):
                raise  # a new master has not registered it yet, and the template has other queues
            route = await self._instance.template_route(name, self._default_topic_queues)
        except ClientError:
            if topic is not None and topic.targets:
                return topic  # the name servers are unreachable; the known route may still work
            raise
        topic = self.topics.get(name)
        if topic is None:
            topic = PublishTopic(QueueChooser(self._faults, start=int.from_bytes(os.urandom(2), "big")))
            self.topics[name] = topic
        if topic.queues != route.publish_queues:
            self._adopt(topic, route)
        if not topic.targets:
            raise NoRoute(name, "none of its queues is writable")
        return topic

    def changed(self, route: TopicRoute) -> None:
        """A route has changed."""
        topic = self.topics.get(route.topic)
        if topic is not None:
            self._adopt(topic, route)

    def _adopt(self, topic: PublishTopic, route: TopicRoute) -> None:
        topic.adopt(route.publish_queues, self._target, asyncio.get_running_loop().time())

    def _target(self, queue: MessageQueue) -> Target:
        return Target(
            queue,
            self._namespace.unwrap_queue(queue),
            self._instance.broker_of(queue),
            self._group,
            self._default_topic_queues,
            self._more,
        )
