"""Settings of the store, under RocketMQ's names (MessageStoreConfig) where RocketMQ has them."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["FlushDiskType", "StoreConfig", "DEFAULT_DELAY_LEVELS"]

DEFAULT_DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"


class FlushDiskType(enum.StrEnum):
    """When a producer may be told OK: after the write, or after fdatasync."""

    ASYNC_FLUSH = "ASYNC_FLUSH"
    SYNC_FLUSH = "SYNC_FLUSH"


@dataclass(slots=True, kw_only=True)
class StoreConfig:
    """Sizes in bytes, times in milliseconds unless the name says otherwise."""

    store_path_root_dir: str = field(default_factory=lambda: str(Path.home() / "store"))
    store_path_commit_log: str | None = None
    """None: ``commitlog`` under the root."""
    mapped_file_size_commit_log: int = 1 << 30
    """For a new log; an existing one keeps the size of its files."""
    mapped_file_size_consume_queue: int = 300_000 * 20
    """Bytes, rounded up to whole entries; for a new store, as above."""
    flush_disk_type: FlushDiskType = FlushDiskType.ASYNC_FLUSH
    flush_interval_commit_log: int = 500
    """How often the shell asks for a flush under ASYNC_FLUSH."""
    flush_interval_consume_queue: int = 1000
    """The least time between two checkpoints."""
    max_message_size: int = 4 << 20
    """Of a body."""
    message_delay_level: str = DEFAULT_DELAY_LEVELS
    message_index_enable: bool = True
    """Whether messages can be found by key."""
    max_hash_slot_num: int = 5_000_000
    """Of an index file (4 bytes each, reserved when it is made); for a new index, an existing one keeps its own."""
    max_index_num: int = 20_000_000
    """Entries of an index file (20 bytes each); as above."""
    max_msgs_num_batch: int = 64
    """Messages that one query by key gives back."""
    default_query_max_num: int = 32
    """The same for a query by unique key."""
    max_filter_message_size: int = 16_000
    """Bytes of ConsumeQueue entries that one filtered read examines."""
    max_transfer_bytes_on_message_in_memory: int = 256 << 10
    max_transfer_count_on_message_in_memory: int = 32
    max_transfer_bytes_on_message_in_disk: int = 64 << 10
    max_transfer_count_on_message_in_disk: int = 8
    check_crc_on_recover: bool = field(default=True, metadata={"key": "checkCRCOnRecover"})
    allocation_step_commit_log: int = 16 << 20
    """Blocks are reserved this far ahead of the writer (a segment's length is always full)."""
    max_mapped_files: int = 1024
    """ConsumeQueue files, and as many CommitLog segments, kept mapped at a time; each costs a descriptor."""
