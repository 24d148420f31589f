"""Snapshots for the HTTP API: topics with their queues, groups with their lag. Plain dicts, ready for JSON."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from mqspark.broker.state.groups import ConsumerGroup, GroupMember
from mqspark.broker.state.state import BrokerState
from mqspark.broker.tables.consumer_offsets import NOT_FOUND
from mqspark.broker.tables.topics import Topic
from mqspark.protocol.codes import Language
from mqspark.protocol.slices import Work

QUEUES_AT_ONCE = 256


View = Iterator[dict[str, Any] | None]
"""Entries; None marks a point where other work may run before the next entry."""


def topics_view(state: BrokerState, only: str | None = None) -> View:
    """One entry per topic: configuration, queues with min and max offset, messages stored since start."""
    store = state.store
    for name in state.topics.names() if only is None else [only]:
        topic = state.topics.get(name)
        if topic is None:
            continue
        config = topic.config
        queues = []
        ids = store.offsets.queue_ids(name) if only is None else range(topic.queue_limit)
        for number, queue_id in enumerate(ids, 1):
            if store.offsets.has_queue(name, queue_id):
                queues.append(
                    {
                        "queueId": queue_id,
                        "minOffset": store.offsets.min_offset(name, queue_id),
                        "maxOffset": store.offsets.max_offset(name, queue_id),
                    }
                )
            if number % QUEUES_AT_ONCE == 0:
                yield None
        yield {
            "topic": name,
            "system": state.topics.is_system(name),
            "perm": config.perm,
            "readQueueNums": config.read_queue_nums,
            "writeQueueNums": config.write_queue_nums,
            "order": config.order,
            "attributes": dict(config.attributes),
            "putTps": state.stats.per_second("TOPIC_PUT_NUMS", name),
            "queues": queues,
        }


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


def group_names(state: BrokerState) -> Work[set[str]]:
    """Groups that have members, offsets or a configuration."""
    names = {group.name for group in state.clients.consumers()}
    for page in state.subscriptions.names().pages():
        names.update(page)
        yield
    for pairs in state.offsets.pairs().pages():
        names.update(group for _, group in pairs)
        yield
    return names


def groups_view(state: BrokerState, only: Collection[str] | None = None) -> View:
    """One entry per group that has members, offsets or a configuration: members, and the offset and lag of each
    queue."""
    topics_of: dict[str, list[str]] = {}
    for page in state.offsets.pairs().pages():
        for topic, group in page:
            if only is None or group in only:
                topics_of.setdefault(group, []).append(topic)
        yield None
    clients = state.clients
    names = yield from group_names(state)
    for name in sorted(names) if only is None else sorted(names.intersection(only)):
        topics = []
        for topic in sorted(topics_of.get(name, ())):
            queues = []
            for number, (queue_id, offset) in enumerate(sorted(state.offsets.queues(name, topic).items()), 1):
                queues.append(_queue_lag(state, name, topic, queue_id, offset))
                if number % QUEUES_AT_ONCE == 0:
                    yield None
            topics.append({"topic": topic, "lag": sum(queue["lag"] for queue in queues), "queues": queues})
            yield None
        yield {
            "group": name,
            **_membership(clients.consumer(name)),
            "lag": sum(topic["lag"] for topic in topics),
            "topics": topics,
        }


def _queue_lag(state: BrokerState, group: str, topic: str, queue_id: int, offset: int) -> dict[str, Any]:
    max_offset = state.store.offsets.max_offset(topic, queue_id)
    pulled = state.offsets.pull_offset(group, topic, queue_id)
    return {
        "queueId": queue_id,
        "offset": offset,
        "pullOffset": None if pulled == NOT_FOUND else pulled,
        "maxOffset": max_offset,
        "lag": max(0, max_offset - offset),
    }


def _membership(group: ConsumerGroup | None) -> dict[str, Any]:
    if group is None:
        return {
            "online": False,
            "consumeType": None,
            "messageModel": None,
            "subscriptions": {},
            "members": [],
        }
    return {
        "online": True,
        "consumeType": group.consume_type,
        "messageModel": group.message_model,
        "subscriptions": {
            topic: subscription.data.sub_string for topic, subscription in group.subscriptions.items()
        },
        "members": [member_view(member) for member in group.members.values()],
    }


def member_view(member: GroupMember) -> dict[str, Any]:
    return {
        "clientId": member.client_id,
        "address": member.session.peer,
        "language": language_name(member.language),
        "version": member.version,
    }


def language_name(number: int) -> str:
    try:
        return Language(number).name
    except ValueError:
        return Language.OTHER.name
