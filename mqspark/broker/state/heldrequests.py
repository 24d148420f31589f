"""SQL92 filters: the records of a queue whose properties match.

A get by tags compares hashes in the ConsumeQueue and reads no record; here every candidate's properties are read
from the log. The client chooses the filter, so one get is bounded in examined records (maxFilterMessageSize, as
for tags) and in work. The reader continues where the last get ended.
"""

from __future__ import annotations

from collections.abc import Hashable
from operator import attrgetter
from typing import Generic, Protocol, TypeVar

from mqspark.base.bounded import CODE_BYTES, BoundedMap, BoundedSet, Ledger
from mqspark.errors import InvalidMessage
from mqspark.filter.sql import SqlFilter, filter_bytes
from mqspark.protocol.session import Session
from mqspark.record.record import peek_properties
from mqspark.record.recordlayout import record_size
from mqspark.store.messages.fetch import GetResult, GetStatus
from mqspark.store.oldermessages import NotAtHand
from mqspark.store.queue.consumequeue import ENTRY_BYTES
from mqspark.store.store import MessageStore

Wanted = frozenset[int] | SqlFilter | None
"""What a subscription selects: tags by their hashes, records for which a filter is TRUE, or everything."""

FIRST_WINDOW = 64
"""Records read from the store at first; the number doubles each time it is not enough."""
MAX_WORK = 40_000
"""Operators evaluated in one get, about 5 ms; long properties count more."""
PROPERTIES_STEP_BYTES = 256
MAX_WINDOW_BYTES = 1 << 40
"""No limit: a window's records are slices of the log, not copies."""
_HELD_BYTES = 200


class Held(Hashable, Protocol):
    """A request that waits."""

    session: Session
    wanted: Wanted
    owner: str
    """The user whose share of the requests that wait it takes."""

    size_bytes: int
    """Without the filter."""


R = TypeVar("R", bound=Held)


class _Requests(BoundedSet[R]):
    def share_of(self, key: R, size_bytes: int) -> int:
        """As if nobody else waited with its filter."""
        return super().share_of(key, size_bytes) + wanted_bytes(key.wanted)


class HeldRequests(Generic[R]):
    """Requests that wait, with their filters. A filter that several of them share is weighed once."""

    def __init__(self, ledger: Ledger, share_bytes: int = 0) -> None:
        """``share_bytes``: what each takes of its user's share beside its size."""
        self.requests: BoundedSet[R] = ledger.include(
            _Requests(ledger, 0, attrgetter("size_bytes"), share_bytes=share_bytes)
        )
        """All of them. To be looked at only."""
        self._filters: BoundedMap[int, tuple[Wanted, int]] = ledger.map(0, lambda held: wanted_bytes(held[0]))
        """Filter identity → the filter and how many requests hold it."""

    def size_of(self, request: R) -> int:
        """How much more is held with this request."""
        size_bytes, wanted = self.requests.size_of(request), request.wanted
        is_known = wanted is None or id(wanted) in self._filters
        return size_bytes if is_known else size_bytes + self._filters.size_of(id(wanted), (wanted, 1))

    def has_room_for(self, request: R, more_bytes: int = 0) -> bool:
        """``more_bytes``: what the caller holds with it. False counts as a refusal."""
        return self.requests.has_room_to_grow(request, self.size_of(request) + more_bytes)

    def hold(self, request: R) -> None:
        """Never refuses; its ``owner`` has been admitted."""
        self.requests.keep(request, None, request.owner)
        wanted = request.wanted
        if wanted is not None:
            uses = self._filters.get(id(wanted), (wanted, 0))[1]
            self._filters.keep(id(wanted), (wanted, uses + 1))

    def admit(self, request: R) -> str:
        """Whose share the request takes. Raises TableFull."""
        return self.requests.admit(request, None, request.session)

    def release(self, request: R) -> None:
        del self.requests[request]
        wanted = request.wanted
        if wanted is not None:
            uses = self._filters[id(wanted)][1]
            if uses > 1:
                self._filters.replace(id(wanted), (wanted, uses - 1))
            else:
                del self._filters[id(wanted)]


def wanted_bytes(wanted: Wanted) -> int:
    return 0 if wanted is None else _filter_bytes(wanted)


def _filter_bytes(wanted: frozenset[int] | SqlFilter) -> int:
    if isinstance(wanted, SqlFilter):
        return _HELD_BYTES + filter_bytes(wanted.expression, wanted.cost)
    return _HELD_BYTES + CODE_BYTES * (2 + len(wanted))


def get_selected(
    store: MessageStore,
    topic: str,
    queue_id: int,
    offset: int,
    max_messages: int,
    max_bytes: int,
    wanted: SqlFilter,
    max_examined: int,
) -> GetResult:
    """``Reads.get`` for the records for which ``wanted`` is TRUE, among at most ``max_examined`` from
    ``offset`` on."""
    selection = _Selection(max(1, max_messages), max_bytes, wanted)
    end = offset + max_examined
    position = offset
    window = FIRST_WINDOW
    cold_bytes = 0
    while True:
        try:
            found = store.reads.get(topic, queue_id, position, min(window, end - position), MAX_WINDOW_BYTES)
        except NotAtHand:
            if position == offset:
                raise
            break  # what was found so far is an answer
        cold_bytes += found.cold_bytes
        if found.status is GetStatus.FOUND:
            if found.count != found.next_offset - position and window > 1:
                # A record in between is missing. One record at a time, the offsets are unambiguous.
                window = 1
                continue
            position = selection.examine(found.buffers, position)
            if position < found.next_offset or selection.full:
                break
            position = found.next_offset
        elif found.status is GetStatus.MESSAGE_WAS_REMOVING and found.next_offset > position:
            position = found.next_offset
        elif position == offset:
            return found
        else:
            break
        if position >= end:
            break
        window *= 2
    found.status = GetStatus.FOUND if selection.count else GetStatus.NO_MATCHED_MESSAGE
    found.next_offset = position
    found.buffers = selection.buffers
    found.count = selection.count
    found.size_bytes = selection.size_bytes
    found.cold_bytes = cold_bytes
    return found


def get_wanted(
    store: MessageStore,
    topic: str,
    queue_id: int,
    offset: int,
    max_messages: int,
    max_bytes: int,
    wanted: Wanted,
) -> GetResult:
    """``Reads.get`` for either kind of ``wanted``."""
    if not isinstance(wanted, SqlFilter):
        return store.reads.get(topic, queue_id, offset, max_messages, max_bytes, wanted)
    max_examined = max(max_messages, store.config.max_filter_message_size // ENTRY_BYTES)
    return get_selected(store, topic, queue_id, offset, max_messages, max_bytes, wanted, max_examined)


class _Selection:
    """The selected records so far; neighbours in the log share one buffer."""

    __slots__ = ("_max_bytes", "_max_messages", "_wanted", "_work", "buffers", "count", "full", "size_bytes")

    def __init__(self, max_messages: int, max_bytes: int, wanted: SqlFilter) -> None:
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._wanted = wanted
        self._work = MAX_WORK
        self.buffers: list[memoryview] = []
        self.count = 0
        self.size_bytes = 0
        self.full = False
        """No more fits, or the work limit is reached."""

    def examine(self, buffers: list[memoryview], offset: int) -> int:
        """Examine records of consecutive offsets from ``offset`` on, until full. Returns the offset at which to
        continue."""
        for buffer in buffers:
            offset = self._examine(buffer, offset)
            if self.full:
                break
        return offset

    def _examine(self, buffer: memoryview, offset: int) -> int:
        wanted = self._wanted
        matches, cost = wanted.matches_encoded, wanted.cost
        limit = len(buffer)
        run_start = position = 0
        while position < limit and not self.full:
            try:
                size, properties = peek_properties(buffer, position)
                taken = matches(properties)
            except InvalidMessage:
                # The store returns whole records with a valid head, but this one's content cannot be parsed.
                size, properties, taken = record_size(buffer, position), b"", False
            if taken:
                if self.count and self.size_bytes + size > self._max_bytes:
                    self.full = True
                    break
                self.count += 1
                self.size_bytes += size
            else:
                self._take(buffer, run_start, position)
                run_start = position + size
            position += size
            offset += 1
            self._work -= cost * (1 + len(properties) // PROPERTIES_STEP_BYTES)
            self.full = self.count >= self._max_messages or self._work <= 0
        self._take(buffer, run_start, position)
        return offset

    def _take(self, buffer: memoryview, start: int, end: int) -> None:
        if start < end:
            self.buffers.append(buffer[start:end])
