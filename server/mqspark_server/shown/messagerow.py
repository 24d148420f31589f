"""A stored message as a row for programs: what commands print as JSON, and pages give to download.

Must not know who writes it, nor in which format.
"""

from __future__ import annotations

import base64
from typing import Any

from mqspark.errors import InvalidMessage
from mqspark.message import MessageExt

MESSAGE_FIELDS = (
    "topic", "broker", "queue", "offset", "message_id", "offset_id", "tags", "keys", "born_ms", "stored_ms",
    "born_host", "store_host", "reconsume_times", "properties", "size", "body", "body_base64", "body_error",
)  # fmt: skip
"""The names in such a row."""


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
