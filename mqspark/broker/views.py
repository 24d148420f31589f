"""Snapshots for people: topics with their queues, groups with their lag. Plain dicts, ready for JSON."""

from __future__ import annotations

from typing import Any

from mqspark.broker.groups import ConsumerGroup
from mqspark.broker.offsets import NOT_FOUND
from mqspark.broker.state import BrokerState
from mqspark.protocol.codes import Language

__all__ = ["groups_view", "language_name", "topics_view"]


def topics_view(state: BrokerState) -> list[dict[str, Any]]:
    """One entry a topic: configuration, queues with min and max offset, messages put since start."""
    store = state.store
    existing = store.queues()
    view = []
    for topic in sorted(state.topics, key=lambda topic: topic.name):
        config = topic.config
        view.append(
            {
                "topic": topic.name,
                "system": state.topics.is_system(topic.name),
                "perm": config.perm,
                "readQueueNums": config.read_queue_nums,
                "writeQueueNums": config.write_queue_nums,
                "order": config.order,
                "attributes": dict(config.attributes),
                "putTps": state.stats.per_second("TOPIC_PUT_NUMS", topic.name),
                "queues": [
                    {
                        "queueId": queue_id,
                        "minOffset": store.min_offset(topic.name, queue_id),
                        "maxOffset": store.max_offset(topic.name, queue_id),
                    }
                    for queue_id in sorted(existing.get(topic.name, ()))
                ],
            }
        )
    return view


def groups_view(state: BrokerState) -> list[dict[str, Any]]:
    """One entry a group that has members or offsets, or was configured: members, offsets and lag of each
    queue."""
    topics_of: dict[str, list[str]] = {}
    for topic, group in state.offsets.pairs():
        topics_of.setdefault(group, []).append(topic)
    names = {*state.subscriptions.names(), *topics_of, *(group.name for group in state.clients.consumers())}
    view = []
    for name in sorted(names):
        topics = [_topic_lag(state, name, topic) for topic in sorted(topics_of.get(name, ()))]
        view.append(
            {
                "group": name,
                **_membership(state.clients.consumer(name)),
                "lag": sum(topic["lag"] for topic in topics),
                "topics": topics,
            }
        )
    return view


def _topic_lag(state: BrokerState, group: str, topic: str) -> dict[str, Any]:
    queues = []
    for queue_id, offset in sorted(state.offsets.queues(group, topic).items()):
        max_offset = state.store.max_offset(topic, queue_id)
        pulled = state.offsets.pull_offset(group, topic, queue_id)
        queues.append(
            {
                "queueId": queue_id,
                "offset": offset,
                "pullOffset": None if pulled == NOT_FOUND else pulled,
                "maxOffset": max_offset,
                "lag": max(0, max_offset - offset),
            }
        )
    return {"topic": topic, "lag": sum(queue["lag"] for queue in queues), "queues": queues}


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
        "members": [
            {
                "clientId": member.client_id,
                "address": member.session.peer,
                "language": language_name(member.language),
                "version": member.version,
            }
            for member in group.members.values()
        ],
    }


def language_name(number: int) -> str:
    try:
        return Language(number).name
    except ValueError:
        return Language.OTHER.name
