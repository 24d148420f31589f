"""What HTTP shows of topics and groups: each noun is declared here with its fields, and read from a broker's state."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from mqspark.base.document import Document
from mqspark.broker.state.groups import GroupMember
from mqspark.broker.state.state import BrokerState
from mqspark.broker.tables.consumer_offsets import NOT_FOUND
from mqspark.broker.tables.topics import Topic
from mqspark.protocol.codes import Language
from mqspark.protocol.slices import Work

QUEUES_AT_ONCE = 256

T = TypeVar("T")
View = Iterator[T | None]
"""Entries; None marks a point where other work may run before the next entry."""


@dataclass(slots=True)
class QueueBounds(Document):
    queue_id: int
    min_offset: int
    max_offset: int = field(metadata={"description": "of the next message"})


@dataclass(slots=True)
class QueueLag(Document):
    queue_id: int
    offset: int
    pull_offset: int | None
    max_offset: int
    lag: int


@dataclass(slots=True)
class TopicLag(Document):
    topic: str
    lag: int
    queues: list[QueueLag]


@dataclass(slots=True)
class Member(Document):
    client_id: str
    address: str
    language: str
    version: int


@dataclass(slots=True)
class GroupView(Document):
    group: str
    online: bool
    consume_type: str | None
    message_model: str | None
    subscriptions: dict[str, str]
    members: list[Member]
    lag: int
    topics: list[TopicLag]


def queues_of(state: BrokerState, topic: Topic) -> Work[list[QueueBounds]]:
    offsets, found = state.store.offsets, []
    for number, queue_id in enumerate(range(topic.queue_limit), 1):
        if offsets.has_queue(topic.name, queue_id):
            low, high = offsets.bounds(topic.name, queue_id)
            found.append(QueueBounds(queue_id, low, high))
        if number % QUEUES_AT_ONCE == 0:
            yield
    return found


def extent_of(state: BrokerState, topic: Topic) -> Work[tuple[int, int | None]]:
    """How many messages a topic has, and when the newest was stored, in ms since the epoch."""
    offsets, count, newest = state.store.offsets, 0, 0
    for queue_id in range(topic.queue_limit):
        if offsets.has_queue(topic.name, queue_id):
            low, high = offsets.bounds(topic.name, queue_id)
            if high > low:
                count += high - max(low, 0)
                newest = max(newest, offsets.store_timestamp_at(topic.name, queue_id, high - 1))
        yield
    return count, newest if newest > 0 else None


def group_names(state: BrokerState) -> Iterator[Iterable[str]]:
    """Groups that have members, offsets or a configuration, some at a time. One may come more than once."""
    yield {group.name for group in state.clients.consumers()}
    yield from state.subscriptions.names().pages()
    for pairs in state.offsets.pairs().pages():
        yield {group for _, group in pairs}


def groups_view(state: BrokerState, names: Collection[str]) -> View[GroupView]:
    """An entry for each of these groups that has members, offsets or a configuration, in the order of their names."""
    wanted, topics_of = frozenset(names), dict[str, list[str]]()
    for page in state.offsets.pairs().pages():
        for topic, name in page:
            if name in wanted:
                topics_of.setdefault(name, []).append(topic)
        yield None
    for name in sorted(wanted):
        group = state.clients.consumer(name)
        if group is None and name not in topics_of and state.subscriptions.configured(name) is None:
            continue
        topics = []
        for topic in sorted(topics_of.get(name, ())):
            queues = []
            for number, (queue_id, offset) in enumerate(sorted(state.offsets.queues(name, topic).items()), 1):
                queues.append(_queue_lag(state, name, topic, queue_id, offset))
                if number % QUEUES_AT_ONCE == 0:
                    yield None
            topics.append(TopicLag(topic, sum(queue.lag for queue in queues), queues))
            yield None
        subscriptions = {} if group is None else group.subscriptions
        yield GroupView(
            name,
            online=group is not None,
            consume_type=None if group is None else group.consume_type,
            message_model=None if group is None else group.message_model,
            subscriptions={topic: each.data.sub_string for topic, each in subscriptions.items()},
            members=[] if group is None else [member_view(each) for each in group.members.values()],
            lag=sum(topic.lag for topic in topics),
            topics=topics,
        )


def _queue_lag(state: BrokerState, group: str, topic: str, queue_id: int, offset: int) -> QueueLag:
    end = state.store.offsets.max_offset(topic, queue_id)
    pulled = state.offsets.pull_offset(group, topic, queue_id)
    return QueueLag(queue_id, offset, None if pulled == NOT_FOUND else pulled, end, max(0, end - offset))


def member_view(member: GroupMember) -> Member:
    return Member(
        member.client_id, member.session.peer, language_name(member.language), version=member.version
    )


def language_name(number: int) -> str:
    try:
        return Language(number).name
    except ValueError:
        return Language.OTHER.name
