"""Traces: what a trace topic has about one message."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mqspark_server.shown.traces import trace_rows
from mqspark_server.survey.surveying import Row

if TYPE_CHECKING:
    from mqspark.client.admin import AdminClient

MAX_RECORDS = 256
"""Each has up to 128 KiB, about many messages."""


async def traced(admin: AdminClient, topic: str, message_id: str) -> tuple[list[Row], bool]:
    """What the newest records say about a message, in the order of time, and whether there are older ones. Raises
    NoRoute."""
    records = await admin.messages_by_key(topic, message_id, max_messages=MAX_RECORDS + 1)
    return trace_rows(records[-MAX_RECORDS:], message_id), len(records) > MAX_RECORDS
