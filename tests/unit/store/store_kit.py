"""What the tests of a whole store share."""

from __future__ import annotations

from mqspark.store import MessageStore
from tests.support.store_tools import drain


def bodies(store: MessageStore, topic: str = "T", queue_id: int = 0) -> list[bytes]:
    return [message.body for message in drain(store, topic, queue_id)]
