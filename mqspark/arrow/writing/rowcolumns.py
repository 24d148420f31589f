"""The columns of rows to send: which there are, of which types, and which go together."""

from __future__ import annotations

from collections.abc import Iterable

from mqspark.arrow.writing.sendchoice import SendChoice
from mqspark.errors import ConfigError

COLUMN_TYPES = {
    "value": ("binary", "string"),
    "key": ("string", "binary"),
    "tags": ("string",),
    "topic": ("string",),
    "properties": ("map<string,string>",),
    "headers": ("array<struct<key:string,value:binary>>",),
    "partition": ("int", "bigint"),
    "queueId": ("int", "bigint"),
    "shardingKey": ("string",),
    "priority": ("int",),
    "delayLevel": ("int",),
    "deliverAt": ("timestamp", "bigint"),
}
_NOT_WITH_PRIORITY = frozenset({"shardingKey", "partition", "queueId", "delayLevel", "deliverAt"})
"""Columns that choose the queue themselves, or with which brokers drop a message's priority."""
_IGNORED = frozenset(
    {
        "offset",
        "timestamp",
        "broker",
        "bornTimestamp",
        "msgId",
        "physicalOffset",
        "sysFlag",
        "reconsumeTimes",
    }
)


def sent_columns(columns: Iterable[tuple[str, str]], choice: SendChoice) -> list[str]:
    """The columns to send, of those with these names and types, in Spark's words. Raises ConfigError."""
    names = []
    for name, found in columns:
        allowed = COLUMN_TYPES.get(name)
        if allowed is None:
            if name in _IGNORED:
                continue
            raise ConfigError.of(name, f"not a column of the pymq sink; it takes {', '.join(COLUMN_TYPES)}")
        if found not in allowed:
            raise ConfigError.of(name, f"must be {' or '.join(allowed)}, not {found}")
        names.append(name)
    if "value" not in names:
        raise ConfigError.of("value", "the column is required; it becomes the message body")
    if "topic" not in names and choice.topic is None:
        raise ConfigError.of("topic", "required, as an option or as a column")
    if "partition" in names and "queueId" in names:
        raise ConfigError.of("queueId", "means the same as the column partition; give one of them")
    if "priority" in names and (other := _NOT_WITH_PRIORITY & set(names)):
        raise ConfigError.of("priority", f"such a row has no {min(other)}; drop one of the columns")
    if "priority" in names and choice.exactly_once:
        raise ConfigError.of("priority", "a transaction has none; write such rows at-least-once")
    if choice.exactly_once and (late := {"delayLevel", "deliverAt"} & set(names)):
        raise ConfigError.of(min(late), "a transaction is not delayed; write such rows at-least-once")
    return names
