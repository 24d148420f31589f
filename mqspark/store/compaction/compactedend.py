"""The end of what is compacted: nothing is compacted that the log has lost.

A log loses its end in a power failure, or when it is a copy and differs from its master's.
"""

from __future__ import annotations

from collections.abc import Callable

from mqspark.base.logs import sparing
from mqspark.errors import StoreLocked
from mqspark.store.compaction.compactedqueues import COMPACT_LOCK, CompactedQueues
from mqspark.store.disk.damage import Damage, Outcome
from mqspark.store.storedata import StoreData

_log = sparing(__name__)


class CompactedEnd:
    """Lets the compacted queues of one store end with its log. ``bounds``: the
    offsets of a queue that the log has, shown or not; None for an unknown queue."""

    def __init__(
        self,
        data: StoreData,
        compacted: CompactedQueues,
        bounds: Callable[[str, int], tuple[int, int] | None],
    ) -> None:
        self._lock = data.paths.root / COMPACT_LOCK
        self._files = data.files
        self._compacted = compacted
        self._bounds = bounds
        self._log = data.log
        self._note = data.note
        self._lock_fd = -1

    def heal(self) -> None:
        """Cut what the log of a store that is being opened no longer has. Raises StoreLocked, OSError."""
        if not self._compacted.is_beyond(self._bounds):
            return
        lock_fd = self._files.lock(self._lock, alone=False)
        try:
            self._cut()
        finally:
            self._files.unlock(self._lock, lock_fd)

    def hold(self) -> bool:
        """Let nobody compact until ``cut_held``. Returns whether nobody does now."""
        try:
            self._lock_fd = self._files.lock(self._lock, alone=False)
        except StoreLocked as error:
            _log.warning(
                "the log cannot be taken back now, because its topics are being compacted: %s", error
            )
            return False
        return True

    def cut_held(self) -> None:
        """Cut what the log no longer has, and let others compact again. Raises OSError."""
        self._cut()
        self._files.unlock(self._lock, self._lock_fd)

    def _cut(self) -> None:
        partial = self._compacted.cut(self._bounds, self._log.min_offset)
        if partial:
            named = ", ".join(partial[:20]) + (", ..." if len(partial) > 20 else "")
            self._note(
                Damage(
                    "compaction.cut",
                    Outcome.LOST,
                    "the log has lost its end, which was compacted already: keys whose last value is older than the"
                    f" log may be missing in {named}; a slave gets them from its master",
                )
            )
