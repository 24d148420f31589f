"""Messages that the log no longer has: where reads before the first offset of a queue go.

The store asks ``OlderMessages``, if somebody provides them (``MessageStore.serve_older``), and answers as if the log
went on there. They may be far away: then the read raises NotAtHand, and the messages are fetched meanwhile. A read
never skips messages because it cannot reach them. Must not know where they are.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Protocol

from mqspark.errors import StoreUnreadable
from mqspark.store.messages.fetch import GetResult


class NotAtHand(StoreUnreadable):
    """What is asked for is being fetched. ``key`` says what: whoever waits for it is told by that name."""

    def __init__(self, key: Hashable) -> None:
        super().__init__("the messages are being fetched from the archive", BlockingIOError())
        self.key = key


class OlderMessages(Protocol):
    """Asked from the broker's loop; nothing here blocks. Every method may raise NotAtHand, and StoreUnreadable with
    the reason when the archive cannot be read, unless it says otherwise."""

    def begin(self, topic: str, queue_id: int, log_begin: int) -> int:
        """The first offset of the queue; ``log_begin``, the log's own, when nothing older is known. Raises nothing."""

    def sure_begin(self, topic: str, queue_id: int, log_begin: int) -> int:
        """The same for a reader that starts there: raises when it is not known what there is."""

    def get(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        log_begin: int,
        max_offset: int,
        max_messages: int,
        max_bytes: int,
        tag_codes: frozenset[int] | None,
    ) -> GetResult:
        """As ``Fetcher.get``, for an ``offset`` before ``log_begin``."""

    def forget(self, topic: str, position: int) -> None:
        """The topic was deleted: what the log had of it before ``position`` is not served again. Raises nothing."""

    def offset_by_time(self, topic: str, queue_id: int, time_ms: int, log_begin: int) -> int:
        """The first offset before ``log_begin`` whose store time is not before ``time_ms``, else ``log_begin``."""
