"""Reads of messages: by queue offset, by position in the log, and by key.

A read that fails says so with StoreUnreadable. The failure is shown until the same read works again.

Must not write, and must not know who asks.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Generator, Mapping

from mqspark.base.logs import sparing
from mqspark.errors import StoreUnreadable, TooManyAlike
from mqspark.record.record import Parts, parts_at
from mqspark.store.compaction.compactedqueues import CompactedQueues
from mqspark.store.index.keys import Sought
from mqspark.store.messages.commit import CommitPipeline
from mqspark.store.messages.fetch import Fetcher, GetResult, GetStatus
from mqspark.store.offsets import QueueOffsets
from mqspark.store.oldermessages import OlderMessages
from mqspark.store.storedata import StoreData

_log = sparing(__name__)

MAX_COMPARED = 100_000
"""Limit of records that one query compares. Only keys that are made to have one hash come near."""
_COMPARED_AT_ONCE = 64
"""Records compared in one slice: each may have to come from the disk."""


class Reads:
    """The reads of one store."""

    def __init__(
        self,
        data: StoreData,
        fetcher: Fetcher,
        compacted: CompactedQueues,
        offsets: QueueOffsets,
        pipeline: CommitPipeline,
    ) -> None:
        self._config = data.config
        self._log = data.log
        self.fetcher = fetcher
        self.compacted = compacted
        self._log_bounds = offsets.log_bounds
        self._indexer = data.indexer
        self._pipeline = pipeline
        self.older: OlderMessages | None = None
        """What an archive has, if there is one."""
        self.why_unhealed: Callable[[Mapping[int, int]], str] = lambda missed: ""
        """Asked when a read has missed damaged records: why it is not to lead its reader past them yet, or ''. Gets
        their places in the log, and since when reads miss them (monotonic)."""
        self._failed: Callable[[], object] | None = None
        self.problem: str | None = None
        """Why the last failed read failed, or None when it works again."""

    def begin(self) -> None:
        """Forget the failed reads of an earlier opening."""
        self._failed = self.problem = None

    def get(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_messages: int,
        max_bytes: int,
        tag_codes: frozenset[int] | None = None,
        *,
        bulk: bool = False,
    ) -> GetResult:
        """Visible messages from ``offset`` on (``Fetcher.get``). For a compacted queue, what compaction has
        kept. Before the first message of the log, what an archive has. Raises StoreUnreadable, also for a damaged
        record that may still be healed, and NotAtHand."""
        try:
            kept = self.compacted.get(
                topic, queue_id, offset, max_messages, max_bytes, tag_codes, self._log_bounds
            )
            if kept is not None:
                return kept
            fetcher, older = self.fetcher, self.older
            if older is not None:
                fetcher.follow_log(topic, queue_id, offset)
            found = fetcher.get(topic, queue_id, offset, max_messages, max_bytes, tag_codes, bulk=bulk)
            if found.missed and (reason := self.why_unhealed(found.missed)):
                raise StoreUnreadable(reason, BlockingIOError())
            if older is None or not found.min_offset:
                return found
            if found.status is not GetStatus.OFFSET_TOO_SMALL:
                found.min_offset = older.begin(topic, queue_id, found.min_offset)
                return found
            low, high = found.min_offset, found.max_offset
            return older.get(topic, queue_id, offset, low, high, max_messages, max_bytes, tag_codes)
        except (OSError, MemoryError) as error:
            raise self._unreadable(
                f"offset {offset} of queue {queue_id} of topic {topic}",
                lambda: self.get(topic, queue_id, offset, 1, 1, tag_codes),
                error,
            ) from error

    def record_at(self, physical_offset: int) -> memoryview | None:
        """The visible record that begins at this offset, or None. Any number is allowed. Raises
        StoreUnreadable."""
        try:
            return self.fetcher.record_at(physical_offset)
        except (OSError, MemoryError) as error:
            again = functools.partial(self.record_at, physical_offset)
            raise self._unreadable(f"the log at {physical_offset}", again, error) from error

    def parts_at(self, physical_offset: int) -> Parts | None:
        """As ``record_at``, split into parts: body and properties as they are stored."""
        try:
            return self.fetcher.parts_at(physical_offset)
        except (OSError, MemoryError) as error:
            again = functools.partial(self.parts_at, physical_offset)
            raise self._unreadable(f"the log at {physical_offset}", again, error) from error

    def message_of(self, topic: str, queue_id: int, offset: int, position: int) -> Parts | None:
        """The message of a queue at ``offset``, which begins at ``position`` as its entry says, in parts. For those who
        follow a queue by its entries and store its messages elsewhere: the body is checked, and a wrong entry is
        corrected as for a consumer. None when the message is lost. Raises StoreUnreadable, also for a damaged record
        that may still be healed."""
        record = self.record_at(position)
        parts = None if record is None else parts_at(record, 0, len(record))
        if parts is not None and (parts.topic, parts.queue_id, parts.queue_offset) == (
            topic,
            queue_id,
            offset,
        ):
            return parts
        again = functools.partial(self.message_of, topic, queue_id, offset, position)
        try:
            found = self.fetcher.get(topic, queue_id, offset, 1, 1)
        except (OSError, MemoryError) as error:
            what = f"offset {offset} of queue {queue_id} of topic {topic}"
            raise self._unreadable(what, again, error) from error
        if found.missed and (reason := self.why_unhealed(found.missed)):
            raise StoreUnreadable(reason, BlockingIOError())
        whole = (parts_at(buffer, 0, len(buffer)) for buffer in found.buffers)
        return next((parts for parts in whole if parts is not None and parts.queue_offset == offset), None)

    def log_from(self, position: int, limit_bytes: int) -> memoryview:
        """Acknowledged bytes of the log from ``position`` on, confirmed or not, including the padding at segment
        ends: at most ``limit_bytes``, of one segment. Empty when there are none yet. Raises StoreUnreadable."""
        segment = self._log.segment_of(position)
        stored_end = self._pipeline.stored_end
        end = min(position + limit_bytes, stored_end, segment.end if segment is not None else position)
        try:
            return self._log.slice(position, end - position) or memoryview(b"")
        except (OSError, MemoryError) as error:
            again = functools.partial(self.log_from, position, limit_bytes)
            raise self._unreadable(f"the log at {position}", again, error) from error

    def search(
        self,
        sought: Sought,
        max_num: int,
        begin_ms: int,
        end_ms: int,
        *,
        unique_first: bool = False,
        before: int | None = None,
        accepts: Callable[[Parts], bool] = lambda record: True,
    ) -> Generator[None, None, list[memoryview]]:
        """Visible records with a key or tag that ``accepts`` takes, stored between the two times (inclusive, in whole
        seconds), in log order: the newest ``max_num``, but at most max_msgs_num_batch. ``unique_first``: others
        come after those whose unique key it is. ``before``: only records that begin before this position of the log,
        so that the position of the oldest one leads to the next ones. Pauses between slices of work.

        The index finds by hash, and each record is compared, so records of the same hash hide none (unlike in
        DefaultMessageStore.queryMessage). Raises TooManyAlike when more than MAX_COMPARED would have to be
        compared, StoreUnreadable.
        """
        limit = min(max_num, self._config.max_msgs_num_batch)
        if self._indexer is None or limit <= 0:
            return []
        steps = self._indexer.search(
            sought.topic,
            sought.indexed,
            begin_ms,
            end_ms,
            end=self._pipeline.visible_end,
            durable=self._log.durable,
        )
        chosen: list[int] = []
        others: list[int] = []
        compared: set[int] = set()
        for step in steps:
            for number, position in enumerate(step, 1):
                if position in compared or (before is not None and position >= before):
                    continue  # each word of a record is indexed
                if len(compared) == MAX_COMPARED:
                    raise TooManyAlike(sought.topic, MAX_COMPARED)
                compared.add(position)
                parts = self.parts_at(position)
                if parts is not None and sought.is_in(parts) and accepts(parts):
                    is_first = not unique_first or sought.is_unique_key_of(parts)
                    (chosen if is_first else others).append(position)
                    if len(chosen) == limit:
                        break
                if number % _COMPARED_AT_ONCE == 0:
                    yield
            if len(chosen) == limit:
                break
            yield
        chosen += others[: limit - len(chosen)]
        return [record for position in sorted(chosen) if (record := self.record_at(position)) is not None]

    def is_in_cold_area(self, topic: str, queue_id: int, offset: int) -> bool:
        """Whether a message is so old that it is probably not in memory. Raises StoreUnreadable."""
        try:
            return self.fetcher.is_in_cold_area(topic, queue_id, offset)
        except (OSError, MemoryError) as error:
            again = functools.partial(self.is_in_cold_area, topic, queue_id, offset)
            raise self._unreadable(f"queue {queue_id} of topic {topic}", again, error) from error

    def earliest_store_timestamp(self) -> int:
        """Store time of the first record of the log; -1 when the log is empty or cannot be read."""
        log = self._log
        try:
            if self._pipeline.visible_end <= log.min_offset:
                return -1
            return log.store_timestamp_at(log.min_offset)
        except (OSError, MemoryError) as error:
            self._unreadable("the first record of the log", lambda: self.record_at(log.min_offset), error)
            return -1

    def _unreadable(self, what: str, again: Callable[[], object], error: Exception) -> StoreUnreadable:
        """The error to raise for a failed read. ``problem`` shows it until ``again`` succeeds."""
        text = f"{what} cannot be read: {error or type(error).__name__}"
        if isinstance(error, StoreUnreadable):
            return error
        if self._failed is None:
            _log.error("%s", text)
        self._failed, self.problem = again, text
        return StoreUnreadable(text, error)

    def retry_failed(self) -> None:
        """Retry the read that failed last."""
        if self._failed is None:
            return
        with contextlib.suppress(StoreUnreadable):
            self._failed()
            self._failed = self.problem = None
            _log.warning("the last failed read works again")
