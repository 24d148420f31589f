"""The names of lite topics, and what topics and groups say about them in their attributes (LiteUtil,
LiteMetadataUtil).

The queue of lite topic ``x`` of the parent ``T`` is the light message queue ``%LMQ%$T$x``.
"""

from __future__ import annotations

from mqspark.broker.state.state import BrokerState
from mqspark.protocol.bodies.topic_bodies import SubscriptionGroupConfig, TopicConfig
from mqspark.store.disk.layout import is_storable_topic

LITE_PREFIX = "%LMQ%$"
_SEPARATOR = "$"


def lite_queue(parent: str, lite_topic: str) -> str:
    return f"{LITE_PREFIX}{parent}{_SEPARATOR}{lite_topic}"


def checked_lite_queue(parent: str, lite_topic: str) -> str | None:
    """The same; None if ``lite_topic`` is no name. A comma is refused, because it would name another queue as well."""
    queue = lite_queue(parent, lite_topic)
    return queue if is_storable_topic(queue) and parent_and_lite(queue) == (parent, lite_topic) else None


def parent_and_lite(queue: str) -> tuple[str, str] | None:
    """None for a queue that is not of a lite topic."""
    if not queue.startswith(LITE_PREFIX):
        return None
    parent, _, lite_topic = queue[len(LITE_PREFIX) :].partition(_SEPARATOR)
    if not parent or not lite_topic or _SEPARATOR in lite_topic:
        return None
    return parent, lite_topic


def is_lite_type(config: TopicConfig) -> bool:
    return config.attributes.get("message.type") == "LITE"


def expiry_minutes(config: TopicConfig) -> int:
    """How long a lite topic lives after its last message; -1: forever."""
    text = config.attributes.get("lite.topic.expiration", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else -1


def bound_topic(group: SubscriptionGroupConfig) -> str | None:
    """The only parent topic whose lite topics the group reads."""
    return group.attributes.get("lite.bind.topic")


def is_exclusive(group: SubscriptionGroupConfig) -> bool:
    """A lite topic has at most one client of the group."""
    return group.attributes.get("lite.sub.model") == "Exclusive"


def is_wildcard(group: SubscriptionGroupConfig) -> bool:
    """Its clients read all lite topics of the parent."""
    return "lite.sub.wildcard" in group.attributes


def flag(group: SubscriptionGroupConfig, name: str) -> bool:
    return group.attributes.get(name, "").lower() == "true"


def most_events(state: BrokerState, group: SubscriptionGroupConfig | None) -> int:
    """Limit of lite topics with new messages that wait for one client."""
    text = "" if group is None else group.attributes.get("lite.sub.client.max.event.cnt", "")
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
    return number or state.config.max_client_event_count
