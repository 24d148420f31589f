"""Dead letters: where one came from, which are chosen, and the message that sends one again."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Literal, NamedTuple

from mqspark.message import DLQ_ORIGIN_TOPIC, RETRY_TOPIC, SET_BY_BROKERS, Message, MessageExt, retry_topic


def origin_of(message: MessageExt) -> str | None:
    """The topic that a dead letter came from; None: unknown."""
    return message.properties.get(DLQ_ORIGIN_TOPIC) or message.properties.get(RETRY_TOPIC)


class LetterChoice(NamedTuple):
    """Which dead letters are meant; None: all."""

    origin: str | None = None
    """The topic that they came from."""
    tag: str | None = None
    key: str | None = None
    ids: Collection[str] | None = None
    """Ids of messages, or of their places in the log."""

    def takes(self, message: MessageExt) -> bool:
        return (
            self.origin in (None, origin_of(message))
            and self.tag in (None, message.tags)
            and (self.key is None or self.key in (message.keys or "").split())
            and (self.ids is None or message.message_id in self.ids or message.offset_message_id in self.ids)
        )


def foreign_origins(messages: Iterable[MessageExt], consumed: Collection[str]) -> list[str]:
    """The topics that dead letters say to come from although their group consumes none of them: whoever may consume for
    a group can write its dead letters."""
    origins = {origin_of(message) for message in messages}
    return sorted(origin for origin in origins if origin is not None and origin not in consumed)


def resent_copy(message: MessageExt, group: str, to: Literal["group", "topic"]) -> Message | None:
    """The dead letter as a new message: to its ``group`` alone, through the retry topic, or to the ``topic`` that it
    came from; None if that is not known. Raises InvalidMessage when its body cannot be read."""
    origin = origin_of(message)
    if origin is None:
        return None
    properties = {name: value for name, value in message.properties.items() if name not in SET_BY_BROKERS}
    if to == "topic":
        return Message(origin, message.body, properties=properties, flag=message.flag)
    # Its consumers take the topic from the property.
    return Message(
        retry_topic(group), message.body, properties={**properties, RETRY_TOPIC: origin}, flag=message.flag
    )
