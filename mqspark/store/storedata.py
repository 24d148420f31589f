"""What a store holds: its log, and what follows from the log, as files that are open and mapped.

Must not know who puts, reads or deletes.
"""

from __future__ import annotations

from collections.abc import Iterator

from mqspark.base.bounded import Ledger
from mqspark.base.clock import Clock
from mqspark.base.config import Limit
from mqspark.store.config import FlushDiskType, StoreConfig
from mqspark.store.disk.damage import Note
from mqspark.store.disk.diskjobs import UnmapJob
from mqspark.store.disk.files import FileLayer, descriptor_limit
from mqspark.store.disk.mapping import MapBudget
from mqspark.store.index.index import MessageIndex
from mqspark.store.index.indexer import Indexer
from mqspark.store.index.indexfile import Shape
from mqspark.store.log.commitlog import CommitLog
from mqspark.store.log.opendamage import OpenDamage
from mqspark.store.queue.batchqueue import BatchTable
from mqspark.store.queue.delaylevels import DelayLevels
from mqspark.store.queue.queuetable import QueueTable

MAX_MAPPED_SEGMENTS = 1024

OTHER_DESCRIPTORS = 48
"""Descriptors beside the maps of log and queues: those of the index, of timers, and of files being written."""


class StoreData:
    """Log, queues and index of one store. Two of them never have one directory."""

    def __init__(self, config: StoreConfig, clock: Clock, files: FileLayer, note: Note) -> None:
        self.config = config
        self.clock = clock
        self.files = files
        self.note = note
        """Called with damage of which operators learn."""
        self.paths = paths = config.paths
        log_budget, budget = self._budgets = MapBudget(config.max_mapped_bytes).halves()
        # A map keeps one descriptor. Half of the descriptors are for maps; the rest is more than a checkpoint
        # needs.
        share = descriptor_limit() // 2
        max_segments = max(1, min(config.max_mapped_files, MAX_MAPPED_SEGMENTS, share // 4))
        max_mapped = max(1, min(config.max_mapped_files, share // 2))
        max_batch_mapped = max(1, min(config.max_mapped_files, share // 8))
        self.descriptors = max_segments + max_mapped + max_batch_mapped + OTHER_DESCRIPTORS
        """The most descriptors that the files of this store use."""
        self.log = CommitLog(
            paths.commit_logs,
            files,
            segment_bytes=config.mapped_file_size_commit_log,
            allocation_step=config.allocation_step_commit_log,
            max_mapped=max_segments,
            budget=log_budget,
            syncs_often=config.flush_disk_type is FlushDiskType.SYNC_FLUSH,
        )
        self.log.set_read_ahead(config.data_read_ahead_enable)
        self.damage = OpenDamage()
        """What of the log holds no valid record now."""
        queues = Ledger(
            "queues",
            Limit(config, "max_queue_table_bytes"),
            "QueueTable.queues",
            "BatchTable.queues",
            "BatchTable.batch_queues",
        )
        self.table = QueueTable(
            paths.consume_queue,
            files,
            file_bytes=config.mapped_file_size_consume_queue,
            max_mapped=max_mapped,
            budget=budget,
            ledger=queues,
            ext_directory=paths.consume_queue_ext,
            ext_file_bytes=config.mapped_file_size_consume_queue_ext,
            ext_enabled=config.enable_consume_queue_ext,
        )
        self.batch_table = BatchTable(
            paths.batch_consume_queue,
            files,
            file_bytes=config.mapper_file_size_batch_consume_queue,
            max_mapped=max_batch_mapped,
            budget=budget,
            ledger=queues,
        )
        self.levels = DelayLevels(config.message_delay_level)
        self.deleted: dict[str, int] = {}
        """Records of these topics before these physical offsets belong to no queue. ``Deletions`` alone writes it."""
        self.index = MessageIndex(
            paths.index,
            paths.index_mark,
            files,
            clock.now_ms,
            shape=Shape(config.max_hash_slot_num, config.max_index_num),
            budget=budget,
            note=note,
        )
        self.indexer = (
            Indexer(self.log, self.index, clock.monotonic_ms) if config.message_index_enable else None
        )

    @property
    def tables(self) -> tuple[QueueTable, BatchTable]:
        return self.table, self.batch_table

    def unmap_job(self, *, idle: bool) -> UnmapJob | None:
        """Frees what is used no more. ``idle``: also the maps of files that were not read since the last such job."""
        unmapped = [each.unmapped for each in self._budgets]
        if idle or any(unmapped):
            return UnmapJob(unmapped, self._drop_idle() if idle else ())
        return None

    def _drop_idle(self) -> Iterator[None]:
        self.log.drop_idle()
        for table in self.tables:
            yield from table.drop_idle()

    def close(self) -> None:
        """Close and unmap all files."""
        self.log.close()
        for each in (*self.tables, self.index):
            each.maps.clear()
        for budget in self._budgets:
            budget.unmapped.clear()  # no job will free them
