"""A look-up by a broker's index: request after request, each for older messages than the one before it.

A broker answers with at most maxMsgsNumBatch messages, the newest (64 by default). A broker of this project goes on
before the position that a request names; one of RocketMQ goes on before a time, in whole seconds.

Must not know connections, nor what was looked up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from mqspark.base.logs import sparing
from mqspark.errors import InvalidMessage, ProtocolError
from mqspark.protocol.headers.client_headers import QueryMessageRequestHeader

if TYPE_CHECKING:
    from mqspark.record.record import Parts

EVER_MS = (1 << 63) - 1
_SECOND_MS = 1000
_PAGE = 64
"""maxMsgsNumBatch of a broker that does not set it."""
MAX_PAGES = 100_000
_log = sparing(__name__)


class IndexWalk:
    def __init__(self, header: QueryMessageRequestHeader, address: str) -> None:
        self.header: QueryMessageRequestHeader | None = header
        """The next request; None when there is no older message."""
        self._address = address
        self._is_between_seconds = False
        self._pages = 0

    def take(self, body: bytes | memoryview) -> bytes:
        """The records of an answer that no answer before it had. Raises InvalidMessage, ProtocolError."""
        asked, view = self.header, memoryview(body)
        if asked is None:
            return b""
        self._pages += 1
        if self._pages > MAX_PAGES:
            raise ProtocolError(f"{self._address} finds no end of the messages with {asked.key[:80]!r}")
        records = _records(view)
        before = asked.mqspark_before
        fresh = [(parts, part) for parts, part in records if before is None or parts.physical_offset < before]
        if fresh:
            oldest = min((parts for parts, _ in fresh), key=lambda parts: parts.physical_offset)
            self._is_between_seconds = False
            self._go_on(asked, oldest.physical_offset, min(asked.end_timestamp, oldest.store_timestamp_ms))
        elif records and not self._is_between_seconds:
            if len(records) >= _PAGE:
                _log.warning(
                    "%s has more messages of one second with %r than it gives", self._address, asked.key[:80]
                )
            self._is_between_seconds = True
            self._go_on(asked, before, asked.end_timestamp - _SECOND_MS)
        else:
            self.header = None
        return b"".join(part for _, part in fresh)

    def _go_on(self, asked: QueryMessageRequestHeader, before: int | None, end_ms: int) -> None:
        self.header = (
            msgspec.structs.replace(asked, mqspark_before=before, end_timestamp=end_ms)
            if end_ms >= asked.begin_timestamp
            else None
        )


def _records(view: memoryview) -> list[tuple[Parts, memoryview]]:
    from mqspark.record.record import parts_at
    from mqspark.record.recordlayout import record_size

    found: list[tuple[Parts, memoryview]] = []
    at = 0
    while at < len(view):
        parts = parts_at(view, at, len(view))
        if parts is None:
            raise InvalidMessage("the answer to a look-up has bytes that are not a record", field="record")
        end = at + record_size(view, at)
        found.append((parts, view[at:end]))
        at = end
    return found
