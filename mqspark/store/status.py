"""The status of an open store, as health, metrics and tools show it.

Must not know who shows it.
"""

from __future__ import annotations

from mqspark.store.maintenance import Maintenance
from mqspark.store.messages.commit import CommitPipeline
from mqspark.store.messages.condition import Condition
from mqspark.store.reads import Reads
from mqspark.store.storedata import StoreData


class StoreStatus:
    """What is known about one store. A problem is one of an otherwise healthy store, or None."""

    def __init__(
        self,
        data: StoreData,
        condition: Condition,
        pipeline: CommitPipeline,
        reads: Reads,
        upkeep: Maintenance,
    ) -> None:
        self._index = data.index
        self._indexer = data.indexer
        self._damage = data.damage
        self._condition = condition
        self._pipeline = pipeline
        self._reads = reads
        self._checkpoints = upkeep.checkpoints
        self._cleaner = upkeep.cleaner
        self._wall_time = upkeep.wall_time
        self.was_clean = True
        """Whether the previous process that had the store stopped cleanly."""
        self.sure_position = 0
        """End of what was known to be synced when the store was opened. A power cut may have left holes behind it."""

    def begin(self, *, was_clean: bool, sure_position: int) -> None:
        """What opening the store has found."""
        self.was_clean = was_clean
        self.sure_position = sure_position

    # --- problems -------------------------------------------------------------------------------------------

    @property
    def read_problem(self) -> str | None:
        """Why the last failed read failed, or None when it works again."""
        return self._reads.problem

    @property
    def damage_problem(self) -> str | None:
        """Why consumers miss messages that the log has lost, until it is healed or the queues have fillers for them."""
        return self._damage.problem

    @property
    def checkpoint_problem(self) -> str | None:
        """Why the last checkpoint failed."""
        return self._checkpoints.problem

    @property
    def index_problem(self) -> str | None:
        """Why the index does not follow the log."""
        return self._indexer.problem if self._indexer is not None else None

    @property
    def retention_problem(self) -> str | None:
        """Why old files could not be deleted the last time, or are not deleted by their age."""
        return self._cleaner.problem or self._wall_time.problem

    @property
    def disk_full(self) -> str | None:
        """Why messages are refused for want of disk space."""
        return self._condition.full

    # --- figures --------------------------------------------------------------------------------------------

    @property
    def disk_used_percent(self) -> float:
        """Usage of the fullest disk of this store at the last measurement; 0 before the first."""
        return self._cleaner.used_percent

    @property
    def deleted_segments(self) -> int:
        """Number of log segments deleted since the store was opened."""
        return self._cleaner.deleted_segments

    @property
    def damaged_reads(self) -> int:
        """Number of records that reads skipped because they do not match their queue entry or their CRC."""
        return self._reads.fetcher.damaged_reads

    @property
    def damaged_offsets(self) -> list[int]:
        """Log positions at which recovery, the scrub or a read found damage that is not healed: the first thousand of
        each."""
        return sorted({*self._reads.fetcher.damaged, *(each.low for each in self._damage)})

    @property
    def index_last_update(self) -> tuple[int, int]:
        """Store time and physical offset of the newest record that can be found by key; zeros when there is
        none."""
        return self._index.last_update

    @property
    def index_behind_bytes(self) -> int:
        """Bytes of the log that cannot be queried by key yet."""
        return self._indexer.behind_bytes(self._pipeline.visible_end) if self._indexer is not None else 0
