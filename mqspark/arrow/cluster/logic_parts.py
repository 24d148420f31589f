"""The logic queues of static topics: the parts behind each, and the arithmetic between its offsets and theirs.

A query sees a logic queue under RocketMQ's name for it, broker ``__syslo__global__``, with logic offsets: these do not
change when the queue moves to another broker. All requests go to the brokers that have the parts and are about physical
queues (``lo=false``). The data here may be old but not wrong, because parts never change and a remapping adds one. A
part ends where its broker took its last message; the logic offsets up to the next part are a gap.

Runs on the driver. Facts: docs/rocketmq/statictopics.md.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

from mqspark.arrow.cluster.queueranges import LogicPlace, Offsets, QueueRange
from mqspark.base.logs import escaping
from mqspark.client.blocking import BlockingClient
from mqspark.client.remoting.topic_routes import TopicRoute
from mqspark.errors import BadRoute, BrokerError, MQError, NoRoute
from mqspark.message import MessageQueue
from mqspark.protocol.bodies.topic_bodies import LogicQueueMappingItem, TopicQueueMappingDetail
from mqspark.protocol.codes import ResponseCode

log = escaping("mqspark.arrow")

_MAX_MOVES = 4
"""Limit of the brokers that are asked in turn who leads a queue, while the name server's answer is old."""
_MAX_OFFSET = 1 << 61
"""Limit of what a mapping may claim, so that sums stay within 64 bits."""
_PARTS_LIFE_S = 30.0
"""How long the parts of a topic are cached while its route, which has the epoch of the mapping, stays the same."""
T = TypeVar("T")


class Part(NamedTuple):
    """A part of a logic queue: messages of one physical queue."""

    queue: MessageQueue
    """The physical queue."""
    first: int
    """The logic offset of the part's beginning."""
    delta: int
    """Logic offset minus physical offset."""
    limit: int
    """The logic offset of the next part, or a limit that is never reached."""

    @property
    def is_last(self) -> bool:
        """Whether the part may grow, as far as is known here."""
        return self.limit == _MAX_OFFSET


def parts_of(topic: str, number: int, items: Sequence[LogicQueueMappingItem]) -> tuple[Part, ...]:
    """The readable parts of a logic queue, oldest first: those whose logic offset is decided. Raises BadRoute."""
    readable = [item for item in items if item.logic_offset >= 0]
    parts = []
    limits = [item.logic_offset for item in readable[1:]] + [_MAX_OFFSET]
    for item, limit in zip(readable, limits, strict=True):
        if not item.bname or item.queue_id < 0 or item.start_offset < 0 or item.start_offset > _MAX_OFFSET:
            raise BadRoute(topic, f"an item of its logic queue {number} has no broker, or a negative number")
        if item.logic_offset >= limit:
            raise BadRoute(topic, f"the logic offsets of its logic queue {number} do not increase")
        if item.end_offset > item.start_offset:
            limit = min(limit, item.logic_offset + item.end_offset - item.start_offset)
        queue = MessageQueue(topic, item.bname, item.queue_id)
        parts.append(Part(queue, item.logic_offset, item.logic_offset - item.start_offset, limit))
    return tuple(parts)


class _Adopted(NamedTuple):
    route: TopicRoute
    found: dict[MessageQueue, str]
    until: float
    """By the monotonic clock; in the past while a queue is being moved or its broker is away."""


class LogicQueues:
    """The parts of all logic queues of a query, by logic queue. ``adopt`` keeps them up to date."""

    def __init__(self, client: BlockingClient) -> None:
        self._client = client
        self._parts: dict[MessageQueue, tuple[Part, ...]] = {}
        self._logic: dict[MessageQueue, tuple[MessageQueue, Part]] = {}
        """Physical queue to logic queue and part."""
        self._addresses: dict[tuple[str, str], str] = {}
        """Topic and broker to its last known address."""
        self._masters: dict[tuple[str, str], str] = {}
        """Topic and broker to the last known address of its master."""
        self._adopted: dict[str, _Adopted] = {}
        """The last answer of ``adopt`` for each topic."""
        self._ends: dict[MessageQueue, int] = {}
        """The physical ends of parts that have a next one: they are final."""

    # --- parts ------------------------------------------------------------------------------------------------

    def adopt(self, topic: str, route: TopicRoute, begun: Iterable[MessageQueue]) -> dict[MessageQueue, str]:
        """The readable logic queues of the topic, to the address of their last part. Raises NoRoute for a queue that
        cannot be read now, unless it was read before (``begun``): then it is left out. Raises BadRoute."""
        adopted = self._adopted.get(topic)
        if adopted is not None and adopted.route is route and time.monotonic() < adopted.until:
            return adopted.found
        known = set(begun)
        self._note_addresses(topic, route)
        mappings: dict[str, TopicQueueMappingDetail | None] = {}
        found: dict[MessageQueue, str] = {}
        is_settled = True
        for queue in route.subscribe_queues:
            try:
                items = self._items(queue, route, mappings)
                parts = parts_of(topic, queue.queue_id, items)
                if not parts:
                    raise NoRoute(topic, f"logic queue {queue.queue_id} has no part that can be read yet")
                found[queue] = self._listed(queue, route, parts[-1].queue.broker_name)
            except NoRoute as error:
                if queue not in known:
                    raise
                log.info("%s; its queue is read when it is back", error)
                is_settled = False
                continue
            is_settled = is_settled and items[-1].logic_offset >= 0
            self._parts[queue] = parts
        self._index(topic)
        self._adopted[topic] = _Adopted(route, found, time.monotonic() + (_PARTS_LIFE_S if is_settled else 0))
        return found

    def _index(self, topic: str) -> None:
        """Raises BadRoute if two parts are in one physical queue, because its messages could belong to either."""
        logic = {queue: place for queue, place in self._logic.items() if queue.topic != topic}
        for queue, parts in self._parts.items():
            if queue.topic != topic:
                continue
            for part in parts:
                if part.queue in logic:
                    raise BadRoute(
                        topic, f"queue {part.queue.queue_id} of {part.queue.broker_name} is in two parts"
                    )
                logic[part.queue] = queue, part
        self._logic = logic

    def _items(
        self, queue: MessageQueue, route: TopicRoute, mappings: dict[str, TopicQueueMappingDetail | None]
    ) -> Sequence[LogicQueueMappingItem]:
        """The mapping of the queue, from the broker that claims to lead it. ``mappings``: of the brokers asked so far.
        Raises NoRoute."""
        name = route.broker_of(queue)
        for _ in range(_MAX_MOVES):
            address = self._listed(queue, route, name)
            if name not in mappings:
                mappings[name] = self._mapping(address, queue.topic)
            detail = mappings[name]
            items = detail.hosted_queues.get(queue.queue_id) if detail is not None else None
            if not items:
                break
            leader = items[-1].bname or ""
            if leader == name:
                return items
            name = leader
        raise NoRoute(queue.topic, f"no broker says that it leads its logic queue {queue.queue_id}")

    @staticmethod
    def _listed(queue: MessageQueue, route: TopicRoute, name: str) -> str:
        """The address of a broker that is registered now. Raises NoRoute."""
        address = route.address(name)
        if address is None:
            raise NoRoute(queue.topic, f"broker {name}, which has its logic queue {queue.queue_id}, is away")
        return address

    def _mapping(self, address: str, topic: str) -> TopicQueueMappingDetail | None:
        try:
            return self._client.topic_mapping(address, topic)
        except BrokerError as error:
            if error.code == ResponseCode.NO_PERMISSION:
                error.add_note(f"Topic {topic} is static: its readers need the permission GET on it, too.")
            raise

    def _address(self, part: Part, *, is_masters: bool = False) -> str:
        """The address of any broker of the part's name, or of its master. Waits for one that is away. Raises
        NoRoute after ``retryTimeout``."""
        known = self._masters if is_masters else self._addresses
        key = part.queue.topic, part.queue.broker_name
        if key not in known:
            self._client.bridged(lambda: self._look_up(known, *key))
        return known[key]

    def _look_up(self, known: Mapping[tuple[str, str], str], topic: str, name: str) -> None:
        """Raises NoRoute."""
        self._note_addresses(topic, self._client.route(topic))
        if (topic, name) not in known:
            who = f"the master of broker {name}" if known is self._masters else f"broker {name}"
            raise NoRoute(topic, f"{who}, which has a part of its messages, is away")

    def _note_addresses(self, topic: str, route: TopicRoute) -> None:
        for name in route.brokers:
            address, master = route.address(name), route.master(name)
            if address is not None:
                self._addresses[topic, name] = address
            if master is not None:
                self._masters[topic, name] = master

    def _part_at(self, queue: MessageQueue, offset: int) -> Part:
        """The part with this logic offset, or the first one."""
        parts = self._parts[queue]
        return next((part for part in reversed(parts) if offset >= part.first), parts[0])

    def place_of(self, queue: MessageQueue) -> LogicPlace | None:
        """What a physical queue is a part of; None for a queue of another topic."""
        found = self._logic.get(queue)
        return None if found is None else LogicPlace(found[0], found[1].delta)

    def broker_of(self, queue: MessageQueue) -> str:
        """The name of the broker that has the last part of a logic queue, and so its end."""
        return self._parts[queue][-1].queue.broker_name

    def address_of(self, queue: MessageQueue) -> str:
        """The address of a physical queue. Raises NoRoute."""
        return self._address(self._logic[queue][1])

    def located(self, queue: MessageQueue, offset: int) -> tuple[MessageQueue, str, int]:
        """Where the message of a logic offset is: physical queue, address and offset. For an offset behind a part, its
        last message."""
        part = self._part_at(queue, offset)
        if not part.is_last and offset >= self._end(part) > part.first:
            offset = self._end(part) - 1
        return part.queue, self._address(part), max(offset, part.first) - part.delta

    # --- bounds -----------------------------------------------------------------------------------------------

    def _end(self, part: Part) -> int:
        """The logic offset behind the last message of the part. If a next one follows, the master alone is asked: what
        a slave has not copied yet would be taken for the gap. Raises NoRoute."""
        end = self._ends.get(part.queue)
        if end is None:
            address = self._address(part, is_masters=not part.is_last)
            (answer,) = self._client.max_offsets(address, [part.queue], lo=False)
            end = int(answer)
            if not part.is_last:
                self._ends[part.queue] = end
        return min(max(part.first, end + part.delta), part.limit)

    def _begin(self, part: Part) -> int:
        """The logic offset of the first message that the part still has."""
        return min(max(part.first, self.lowest(part.queue) + part.delta), part.limit)

    def latest(self, queues: Iterable[MessageQueue]) -> Offsets:
        last = {queue: self._parts[queue][-1] for queue in queues}
        ends = self._of_each(
            last.values(), lambda address, of: self._client.max_offsets(address, of, lo=False)
        )
        return {
            queue: min(max(part.first, ends[part.queue] + part.delta), part.limit)
            for queue, part in last.items()
        }

    def lowest(self, queue: MessageQueue) -> int:
        """The first offset that a physical queue still has."""
        (answer,) = self._client.min_offsets(self.address_of(queue), [queue], lo=False)
        return int(answer)

    def earliest(self, queues: Iterable[MessageQueue]) -> Offsets:
        return {queue: self._begin(self._parts[queue][0]) for queue in queues}

    def _of_each(
        self, parts: Iterable[Part], question: Callable[[str, list[MessageQueue]], Sequence[T]]
    ) -> dict[MessageQueue, T]:
        """The answers for the physical queues of these parts, by one request per broker."""
        by_address: dict[str, list[MessageQueue]] = {}
        for part in parts:
            by_address.setdefault(self._address(part), []).append(part.queue)
        answers: dict[MessageQueue, T] = {}
        for address, asked in by_address.items():
            answers |= zip(asked, question(address, asked), strict=True)
        return answers

    def by_timestamp(self, times_ms: Mapping[MessageQueue, int]) -> Offsets:
        """The offset of the first message that is not older; in the first part that has one."""
        found: Offsets = {}
        for queue, time_ms in times_ms.items():
            for part in self._parts[queue]:
                (answer,) = self._client.offsets_by_timestamp(
                    self._address(part), [part.queue], [time_ms], lo=False
                )
                end = self._end(part)
                found[queue] = min(max(part.first, int(answer) + part.delta), end)
                if found[queue] < end:
                    break
        return found

    # --- ranges -----------------------------------------------------------------------------------------------

    def pieces(self, wanted: QueueRange) -> Iterator[QueueRange]:
        """A range of a logic queue as ranges of physical queues. What is before the first part is left out."""
        for part in self._parts[wanted.queue]:
            start, end = max(wanted.start, part.first), min(wanted.end, part.limit)
            if start < end and not part.is_last:
                end = min(end, self._end(part))
            if start < end:
                yield QueueRange(part.queue, start - part.delta, end - part.delta)

    def __contains__(self, queue: MessageQueue) -> bool:
        """Whether the parts of the logic queue are known."""
        return queue in self._parts

    def first_offset(self, queue: MessageQueue) -> int:
        """The start of the first part that the brokers still know."""
        return self._parts[queue][0].first

    def _readable(self, queue: MessageQueue, start: int, end: int) -> list[tuple[int, int]]:
        """The ranges of logic offsets within [start, end) that have messages."""
        found = []
        for part in self._parts[queue]:
            if start >= part.limit or end <= part.first:
                continue
            is_inside = part.first <= start and part.is_last
            low = start if is_inside else max(start, self._begin(part))
            high = min(end, part.limit) if part.is_last else min(end, self._end(part))
            if low < high:
                found.append((low, high))
        return found

    def count(self, queue: MessageQueue, start: int, end: int) -> int:
        """The number of messages between two logic offsets."""
        return sum(high - low for low, high in self._readable(queue, start, end))

    def advanced(self, queue: MessageQueue, start: int, end: int, count: int) -> int:
        """The logic offset behind ``count`` messages after ``start``; ``end`` if there are fewer. At the end of a part,
        that is the beginning of the next one."""
        offset = start
        for low, high in self._readable(queue, start, end):
            if count < high - low:
                return low + count if count else max(offset, self._part_at(queue, low).first)
            count -= high - low
            offset = high
        return end

    # --- progress of groups -----------------------------------------------------------------------------------

    def group_offsets(self, group: str, queues: Iterable[MessageQueue]) -> Offsets:
        """The group's progress: that of the latest part that has one, as the broker that leads the queue determines
        it."""
        found: Offsets = {}
        for queue in queues:
            for part in reversed(self._parts[queue]):
                (answer,) = self._client.group_offsets(self._address(part), group, [part.queue], lo=False)
                if answer is not None:
                    found[queue] = min(max(part.first, int(answer) + part.delta), part.limit)
                    break
        return found

    def commit(self, group: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Store the group's progress where the leader would: in the part that has the offset."""
        by_address: dict[str, Offsets] = {}
        for queue, offset in offsets.items():
            part = self._part_at(queue, offset)
            by_address.setdefault(self._address(part), {})[part.queue] = max(offset, part.first) - part.delta
        for address, physical in by_address.items():
            self._client.commit_group_offsets(address, group, physical, lo=False)


def check_kind(topic: str, *, is_static: bool, begun: Iterable[bool]) -> None:
    """Raises MQError if a query has read a topic that was, or was not, static (``begun``)."""
    if any(before is not is_static for before in begun):
        now = "became a static topic" if is_static else "is no longer a static topic"
        raise MQError(
            f"topic {topic} {now} since this query began, and its queues have other offsets: start a query with a new "
            "checkpointLocation"
        )
