"""Messages as consumers receive them, without a broker."""

from __future__ import annotations

from typing import Any

from mqspark.message import MessageExt, PhysicalOffset, QueueOffset


def received(offset: int = 0, **fields: Any) -> MessageExt:
    """The message at this offset of queue 0 of T; ``fields`` of MessageExt have other values."""
    usual: dict[str, Any] = {
        "topic": "T",
        "body": b"x",
        "queue_id": 0,
        "queue_offset": QueueOffset(offset),
        "physical_offset": PhysicalOffset(0),
        "sys_flag": 0,
        "born_timestamp_ms": 0,
        "born_host": "",
        "store_timestamp_ms": 0,
        "store_host": "",
        "reconsume_times": 0,
        "prepared_transaction_offset": PhysicalOffset(0),
        "body_crc": 0,
        "store_size_bytes": 0,
        "offset_message_id": "",
    }
    return MessageExt(**(usual | fields))
