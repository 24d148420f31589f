"""Attributes of topics and groups, and their changes by tools: ``+key=value`` and ``-key`` (TopicAttributes,
SubscriptionGroupAttributes, AttributeUtil)."""

from __future__ import annotations

from collections.abc import Mapping

from mqspark.protocol.codes import ResponseCode
from mqspark.protocol.dispatch import Refusal

__all__ = [
    "PRIORITY_FACTOR",
    "attribute_changes",
    "changed_attributes",
    "check_group_attribute",
    "priority_factor",
]

PRIORITY_FACTOR = "priority.factor"
"""Attribute of a group: how many of a hundred of its pops take the highest priority of a topic first."""
ALL_BY_PRIORITY = 100
MAX_NUMBER = (1 << 63) - 1

_MESSAGE_TYPES = frozenset({"UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "PRIORITY", "LITE"})
MAX_EXPIRY_MINUTES = 30 * 24 * 60
_IMMUTABLE = {"queue.type": ("SimpleCQ", "BatchCQ"), "cleanup.policy": ("DELETE", "COMPACTION")}
"""Attributes that only a new topic may be given, with their values; the first is the default."""


_NEVER_COMPACTED = {"queue.type": "BatchCQ", "cleanup.policy": "COMPACTION"}


def attribute_changes(text: str | None) -> dict[str, str | None]:
    """``+a=1,-b`` (AttributeParser)."""
    changes: dict[str, str | None] = {}
    for item in (text or "").split(","):
        if not item.strip():
            continue
        name, equals, value = item.strip().partition("=")
        if len(name) < 2 or name[0] not in "+-" or (name[0] == "+") != bool(equals):
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"attribute {item!r} is neither +key=value nor -key")
        changes[name] = value if equals else None
    return changes


def changed_attributes(old: dict[str, str] | None, changes: dict[str, str | None]) -> dict[str, str]:
    """``old`` is None for a new topic."""
    attributes = dict(old or {})
    for signed_name, value in changes.items():
        name = signed_name[1:]
        if old is None and value is None:
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"a new topic has no attribute {name} to take away")
        if name in _IMMUTABLE:
            values = _IMMUTABLE[name]
            if value not in values or (old is not None and attributes.get(name, values[0]) != value):
                raise Refusal(ResponseCode.SYSTEM_ERROR, f"attribute {name} of a topic cannot be changed")
        elif name == "message.type":
            if value == "MIXED":  # RocketMQ: unless enableMixedMessageType
                raise Refusal(ResponseCode.INVALID_PARAMETER, "MIXED message type is not supported.")
            if value is not None and value not in _MESSAGE_TYPES:
                raise Refusal(ResponseCode.SYSTEM_ERROR, f"message.type={value} is not allowed")
        elif name == "lite.topic.expiration":
            if value is not None:
                check_range(value, -1, MAX_EXPIRY_MINUTES)
        elif name == "reserve.time":
            if value is not None and not value.removeprefix("-").isdigit():
                raise Refusal(ResponseCode.SYSTEM_ERROR, f"reserve.time={value} is not a number")
        else:
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"unsupported key: {name}")
        if value is None:
            attributes.pop(name, None)
        else:
            attributes[name] = value
    if old is None and attributes.items() >= _NEVER_COMPACTED.items():
        raise Refusal(
            ResponseCode.INVALID_PARAMETER,
            "a topic with queue.type=BatchCQ is not compacted: a record has many messages and one key",
        )
    return attributes


def priority_factor(attributes: Mapping[str, str]) -> int:
    """What is no number counts as the default (SubscriptionGroupConfig.getPriorityFactor)."""
    text = attributes.get(PRIORITY_FACTOR, "")
    return int(text) if len(text) <= 3 and text.isascii() and text.isdigit() else ALL_BY_PRIORITY


def check_group_attribute(name: str, value: str) -> None:
    """Raises Refusal (SubscriptionGroupAttributes)."""
    if name == PRIORITY_FACTOR:
        check_range(value, 0, ALL_BY_PRIORITY)
    elif name == "lite.sub.client.quota":
        check_range(value, -1, MAX_NUMBER)
    elif name == "lite.sub.client.max.event.cnt":
        check_range(value, 10, MAX_NUMBER)
    elif name == "lite.sub.model":
        if value not in ("Shared", "Exclusive"):
            raise Refusal(ResponseCode.SYSTEM_ERROR, "value is not in set: [Exclusive, Shared]")
    elif name in ("lite.sub.reset.offset.exclusive", "lite.sub.reset.offset.unsubscribe"):
        if value.lower() not in ("true", "false"):
            raise Refusal(ResponseCode.SYSTEM_ERROR, "boolean attribute format is wrong.")
    elif name not in ("lite.bind.topic", "lite.sub.wildcard"):
        raise Refusal(ResponseCode.SYSTEM_ERROR, f"unsupported key: {name}")


def check_range(value: str, least: int, most: int) -> None:
    """Raises Refusal (LongRangeAttribute.verify)."""
    digits = value[1:] if value[:1] in ("+", "-") else value
    if not (digits.isascii() and digits.isdigit()) or len(digits.lstrip("0")) > 19:
        raise Refusal(ResponseCode.SYSTEM_ERROR, f'For input string: "{value[:80]}"')
    number = int(digits.lstrip("0") or "0") * (-1 if value[0] == "-" else 1)
    if not least <= number <= most:
        raise Refusal(ResponseCode.SYSTEM_ERROR, f"value is not in range({least}, {most})")
