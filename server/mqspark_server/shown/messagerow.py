"""A stored message for programs: the document of HTTP, and the row that commands print and pages give to download.

Must not know who writes it, nor in which format.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Self

from mqspark.base.document import Document, camel_case
from mqspark.errors import InvalidMessage
from mqspark.message import MessageExt

_OTHER_NAMES = {
    "queue": "queueId",
    "offset": "queueOffset",
    "message_id": "msgId",
    "offset_id": "offsetMsgId",
    "born_ms": "bornTime",
    "stored_ms": "storeTime",
    "body_error": "bodyProblem",
}
"""Names in rows → in documents, where that is another word."""


@dataclass(slots=True)
class MessageView(Document):
    """A stored message. Its body is text in ``body``, or other bytes in ``bodyBase64``."""

    __pydantic_config__: ClassVar[dict[str, Any]] = Document.__pydantic_config__ | {
        "alias_generator": lambda name: _OTHER_NAMES.get(name) or camel_case(name)
    }

    topic: str
    broker: str | None = field(metadata={"exclude": True})
    queue: int
    offset: int
    message_id: str = field(
        metadata={"description": "the producer's unique id, or the broker's id if there is none"}
    )
    offset_id: str = field(metadata={"description": "the broker's id: where the message is"})
    tags: str | None
    keys: list[str]
    born_ms: int = field(metadata={"description": "ms since 1970, by the producer's clock"})
    stored_ms: int
    born_host: str
    store_host: str
    reconsume_times: int
    properties: dict[str, str]
    size: int = field(metadata={"description": "of the body, in bytes"})
    body: str | None = None
    body_base64: str | None = None
    body_error: str | None = field(default=None, metadata={"description": "why the body cannot be shown"})

    @classmethod
    def of(cls, message: MessageExt, **more: Any) -> Self:
        """``more``: further fields of a subclass."""
        return cls(**message_row(message) | {"keys": (message.keys or "").split()}, **more)


MESSAGE_FIELDS = tuple(each.name for each in fields(MessageView))
"""The names in a row."""


def message_row(message: MessageExt) -> dict[str, Any]:
    """``body`` is text; bytes that are not UTF-8 are in ``body_base64``. ``body_error``: why there is none."""
    row: dict[str, Any] = {
        "topic": message.topic,
        "broker": message.broker_name or None,
        "queue": message.queue_id,
        "offset": int(message.queue_offset),
        "message_id": message.message_id,
        "offset_id": message.offset_message_id,
        "tags": message.tags,
        "keys": message.keys,
        "born_ms": message.born_timestamp_ms,
        "stored_ms": message.store_timestamp_ms,
        "born_host": message.born_host,
        "store_host": message.store_host,
        "reconsume_times": message.reconsume_times,
        "properties": dict(message.properties),
    }
    try:
        body = message.body
    except InvalidMessage as error:
        return {**row, "size": message.stored_body_bytes, "body_error": str(error)}
    row["size"] = len(body)
    try:
        row["body"] = body.decode()
    except UnicodeDecodeError:
        row["body_base64"] = base64.b64encode(body).decode()
    return row
