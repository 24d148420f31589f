"""Attributes of topics and groups, and their changes by tools: ``+key=value`` and ``-key`` (TopicAttributes,
SubscriptionGroupAttributes, AttributeUtil)."""

from __future__ import annotations

from collections.abc import Mapping

from mqspark.message import MESSAGE_TYPES
from mqspark.protocol.codes import ResponseCode
from mqspark.protocol.dispatch import Refusal

PRIORITY_FACTOR = "priority.factor"
"""Attribute of a group: how many of a hundred of its pops take the highest priority of a topic first."""
ALL_BY_PRIORITY = 100
MAX_NUMBER = (1 << 63) - 1

MAX_EXPIRY_MINUTES = 30 * 24 * 60
_IMMUTABLE = {"queue.type": ("SimpleCQ", "BatchCQ"), "cleanup.policy": ("DELETE", "COMPACTION")}
"""Attributes that only a new topic may be given, with their values."""
SCHEMA_VALIDATION = "schemaValidation"
"""Attribute of ours: what becomes of a message that does not fit the schemas of its topic."""
_CHANGEABLE = frozenset({"message.type", "lite.topic.expiration", "reserve.time", SCHEMA_VALIDATION})
VALIDATION_OFF, VALIDATION_WARN, VALIDATION_REJECT = VALIDATIONS = ("off", "warn", "reject")


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
    """``old`` is None for a new topic. Raises Refusal, with RocketMQ's remarks in its order."""
    attributes = dict(old or {})
    names = set[str]()
    for signed_name, value in changes.items():
        name = signed_name[1:]
        if not name or "+" in name or "-" in name:
            raise Refusal(ResponseCode.SYSTEM_ERROR, "kv string format wrong.")
        if name in names:
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"alter duplication key. key: {name}")
        names.add(name)
        if value is None and old is None:
            remark = f"only add attribute is supported while creating topic. key: {name}"
            raise Refusal(ResponseCode.SYSTEM_ERROR, remark)
        if value is None and name not in attributes:
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"attempt to delete a nonexistent key: {name}")
    for signed_name, value in changes.items():
        name = signed_name[1:]
        if old is not None and name in _IMMUTABLE:
            remark = f"attempt to update an unchangeable attribute. key: {name}"
            raise Refusal(ResponseCode.SYSTEM_ERROR, remark)
        _check_topic_attribute(name, value)
        if value is None:
            attributes.pop(name)
        else:
            attributes[name] = value
    if old is None and attributes.items() >= _NEVER_COMPACTED.items():
        raise Refusal(
            ResponseCode.INVALID_PARAMETER,
            "a topic with queue.type=BatchCQ is not compacted: a record has many messages and one key",
        )
    return attributes


def _check_topic_attribute(name: str, value: str | None) -> None:
    """``value``: None takes the attribute away. Raises Refusal (Attribute.verify)."""
    if name not in _IMMUTABLE and name not in _CHANGEABLE:
        raise Refusal(ResponseCode.SYSTEM_ERROR, f"unsupported key: {name}")
    if value is None:
        return
    if name in _IMMUTABLE:
        if value not in _IMMUTABLE[name]:
            listed = ", ".join(_IMMUTABLE[name])
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"value is not in set: [{listed}]")
    elif name == "message.type":
        if value == "MIXED":  # RocketMQ: unless enableMixedMessageType
            raise Refusal(ResponseCode.INVALID_PARAMETER, "MIXED message type is not supported.")
        if value not in MESSAGE_TYPES:
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"message.type={value[:80]} is not allowed")
    elif name == SCHEMA_VALIDATION:
        if value not in VALIDATIONS:
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"value is not in set: [{', '.join(VALIDATIONS)}]")
    elif name == "lite.topic.expiration":
        check_range(value, -1, MAX_EXPIRY_MINUTES)
    else:
        check_range(value, -1, MAX_NUMBER)


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
