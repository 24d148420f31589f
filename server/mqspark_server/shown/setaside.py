"""Parts of the log that a replica has set aside: their messages, and those that send them again.

Must not know who asks, nor how they are sent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from mqspark.errors import InvalidMessage
from mqspark.message import SET_BY_BROKERS, Message, MessageExt, is_system_topic
from mqspark.store.disk.layout import StorePaths
from mqspark.store.tools.diverged import SavedPart, messages_of, saved_parts


def parts_of(root: Path) -> list[SavedPart]:
    """The parts of the store in this directory, the oldest first. Raises OSError."""
    return saved_parts(StorePaths(root).diverged)


def messages_in(parts: Iterable[SavedPart], topic: str | None) -> Iterator[MessageExt]:
    """In the order of the log; ``topic``: None for all. Raises OSError."""
    for part in parts:
        for each in messages_of(part):
            if isinstance(each, MessageExt) and topic in (None, each.topic):
                yield each


@dataclass(slots=True)
class Again:
    """New messages with what others had."""

    messages: list[Message] = field(default_factory=list)
    left_out: int = 0
    """Messages of system topics, as half and delayed ones, of retry topics, or with a body that cannot be read."""
    size_bytes: int = 0
    is_more: bool = False
    """Whether not all are there, for there are too many."""

    @property
    def counts(self) -> dict[str, int]:
        """Messages by topic."""
        return dict(sorted(Counter(each.topic for each in self.messages).items()))


def again(found: Iterable[MessageExt], most: int, most_bytes: int) -> Again:
    """Raises OSError."""
    made = Again()
    for each in found:
        if is_system_topic(each.topic) or each.topic.startswith("%"):
            made.left_out += 1
            continue
        try:
            body = each.body
        except InvalidMessage:
            made.left_out += 1
            continue
        if len(made.messages) == most or made.size_bytes + len(body) > most_bytes:
            made.is_more = True
            break
        properties = {key: value for key, value in each.properties.items() if key not in SET_BY_BROKERS}
        made.messages.append(Message(each.topic, body, properties=properties, flag=each.flag))
        made.size_bytes += len(body)
    return made
