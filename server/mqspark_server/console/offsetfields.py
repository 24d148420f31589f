"""A place in all queues of a topic as one field of an address: an offset of each."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec

from mqspark.base.config import INT64_MAX
from mqspark.errors import InvalidMessage
from mqspark.message import MessageQueue

NOWHERE = ""
MAX_LENGTH = 32_768
"""For some 1,000 queues."""

_Offset = Annotated[int, msgspec.Meta(ge=0, le=INT64_MAX)]
_Offsets = dict[str, dict[Annotated[int, msgspec.Meta(ge=0, le=0x7FFFFFFF)], _Offset]]
"""By the names of brokers and the numbers of queues."""


def offsets_text(places: Mapping[MessageQueue, int]) -> str:
    by_broker: dict[str, dict[int, int]] = {}
    for queue, offset in places.items():
        by_broker.setdefault(queue.broker_name, {})[queue.queue_id] = offset
    return base64.urlsafe_b64encode(msgspec.json.encode(by_broker)).decode().rstrip("=")


@dataclass(frozen=True, slots=True)
class OffsetsField:
    def read(self, name: str, values: Sequence[str]) -> str:
        text = values[0].strip()
        _decoded(text, name)
        return text


def places_of(text: str, topic: str) -> dict[MessageQueue, int]:
    """Raises InvalidMessage."""
    return {
        MessageQueue(topic, broker, queue_id): offset
        for broker, offsets in _decoded(text, "before").items()
        for queue_id, offset in offsets.items()
    }


def _decoded(text: str, name: str) -> _Offsets:
    try:
        if len(text) > MAX_LENGTH:
            raise ValueError
        content = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        return msgspec.json.decode(content, type=_Offsets)
    except (binascii.Error, ValueError):  # also msgspec's
        problem = "this is no place of a page: follow its links, or leave it out"
        raise InvalidMessage(f"{name}: {problem}", field=name) from None
