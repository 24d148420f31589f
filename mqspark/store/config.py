"""Settings of the store, under RocketMQ's names (MessageStoreConfig) where it has them."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from pathlib import Path

from mqspark.config import camel_case, check_numbers
from mqspark.errors import ConfigError
from mqspark.store.disk.retention import RetentionRules, delete_hours

__all__ = ["FlushDiskType", "StoreConfig", "DEFAULT_DELAY_LEVELS"]

DEFAULT_DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"


class FlushDiskType(enum.StrEnum):
    """When a producer is answered OK: after the write, or after fdatasync."""

    ASYNC_FLUSH = "ASYNC_FLUSH"
    SYNC_FLUSH = "SYNC_FLUSH"


@dataclass(slots=True, kw_only=True)
class StoreConfig:
    """Sizes in bytes, times in milliseconds unless the name says otherwise."""

    store_path_root_dir: str = field(default_factory=lambda: str(Path.home() / "store"))
    store_directory_mode: str = "0700"
    """Mode of new directories, in octal. Not in RocketMQ. Set 0750 and 0640 to let a Spark reader of another
    user, in a common group, map the files."""
    store_file_mode: str = "0600"
    """Mode of new files. Not in RocketMQ."""
    store_path_commit_log: str | None = None
    """None: ``commitlog`` below the root. Several directories are separated by commas and take turns."""
    read_only_commit_log_store_paths: str | None = None
    """Directories, separated by commas, whose segments are read and which get no new ones."""
    mapped_file_size_commit_log: int = 1 << 30
    """For a new log; an existing log keeps the size of its files."""
    mapped_file_size_consume_queue: int = 300_000 * 20
    """Bytes, rounded up to whole entries. For a new store, as above."""
    mapper_file_size_batch_consume_queue: int = 300_000 * 46
    """The same for a BatchConsumeQueue file (RocketMQ's spelling)."""
    enable_consume_queue_ext: bool = False
    """Whether each queue entry also gets a unit of ConsumeQueueExt."""
    mapped_file_size_consume_queue_ext: int = 48 << 20
    compaction_mapped_file_size: int = 100 << 20
    compaction_cq_mapped_file_size: int = 10 << 20
    """Length of the files of RocketMQ's compaction format, which are written for RocketMQ only
    (``compactionfiles``)."""
    enable_compaction: bool = True
    """Whether the broker compacts the topics with cleanup.policy=COMPACTION by itself."""
    compaction_schedule_internal: int = 15 * 60_000
    """Interval of its compactions (RocketMQ's spelling)."""
    max_offset_map_size: int = 100 << 20
    """Bytes of memory for the keys that one pass over a queue finds."""
    enable_lmq: bool = False
    enable_multi_dispatch: bool = False
    """With both settings on, a message that names light message queues (INNER_MULTI_DISPATCH) also enters
    those."""
    enable_lmq_quota: bool = False
    max_lmq_consume_queue_num: int = 20_000
    """With enableLmqQuota the limit of light message queues; a message that would make a further one is refused."""
    enabled_append_prop_crc: bool = field(default=False, metadata={"key": "enabledAppendPropCRC"})
    """Whether records get a CRC over their whole content. Recovery then checks the CRC of records that have
    one."""
    force_verify_prop_crc: bool = field(default=False, metadata={"key": "forceVerifyPropCRC"})
    """Whether recovery checks this CRC although it is no longer written."""
    flush_disk_type: FlushDiskType = FlushDiskType.ASYNC_FLUSH
    flush_interval_commit_log: int = 500
    """Interval of flushes under ASYNC_FLUSH."""
    flush_interval_consume_queue: int = 1000
    """Shortest time between two checkpoints."""
    max_message_size: int = 4 << 20
    """Limit of a body."""
    message_delay_level: str = DEFAULT_DELAY_LEVELS
    timer_wheel_enable: bool = True
    """Whether messages with a deliver time are accepted."""
    timer_precision_ms: int = 1000
    """Tick of the timer wheel. Never change it while timer messages wait."""
    timer_max_delay_sec: int = 3 * 86_400
    timer_roll_window_slot: int = 2 * 86_400
    """Distance in ticks from which on a message passes through the wheel in several steps."""
    timer_congest_num_each_slot: int = 0x7FFFFFFF
    """Messages per tick above which others are refused at random, and above twice which all are refused."""
    append_topic_for_timer_delete_key: bool = False
    """Whether the key of a recalled message is written with its topic, as RocketMQ up to 5.3 expects it."""
    timer_flush_interval_ms: int = 1000
    mapped_file_size_timer_log: int = 100 << 20
    """Bytes; for a new timer log."""
    message_index_enable: bool = True
    """Whether messages can be found by key."""
    max_hash_slot_num: int = 5_000_000
    """Slots of an index file (4 bytes each, reserved at creation). For a new index; an existing one keeps its
    own."""
    max_index_num: int = 20_000_000
    """Entries of an index file (20 bytes each). As above."""
    max_msgs_num_batch: int = 64
    """Most messages that a query by key returns."""
    default_query_max_num: int = 32
    """The same for a query by unique key."""
    young_queue_from_start: bool = True
    """Where a reader goes that asks beyond the end of a queue of a topic that was deleted and made again, while its
    first message is still there: to the start, as in RocketMQ 4; False: to the end, as in RocketMQ 5, which passes over
    what was stored since."""
    max_filter_message_size: int = 16_000
    """Bytes of ConsumeQueue entries that one filtered read examines."""
    max_transfer_bytes_on_message_in_memory: int = 256 << 10
    """Limit of one read of messages that are probably still in the page cache."""
    max_transfer_count_on_message_in_memory: int = 32
    max_transfer_bytes_on_message_in_disk: int = 64 << 10
    """Limit of one read of messages that lie farther behind the end of the log than the ratio below allows."""
    max_transfer_count_on_message_in_disk: int = 8
    max_transfer_bytes_on_bulk_read: int = 2 << 20
    """Limit of one read for a client that asks for bulk, as this project's Spark source does. What is
    probably not in memory has the limit that others have in memory. Never less than the limits above. Not in
    RocketMQ."""
    max_transfer_count_on_bulk_read: int = 16_384
    access_message_in_memory_max_ratio: int = 40
    """Percentage of physical memory that is assumed to cache the end of the log."""
    access_message_in_memory_hot_ratio: int = 26
    """The same for the flow control of reads of cold data: what lies farther behind is cold."""
    cold_data_flow_control_enable: bool = False
    """Whether groups that read more cold data than their share have to wait."""
    cold_data_scan_enable: bool = False
    """Whether the kernel is asked at each such read if the record is in memory after all."""
    data_read_ahead_enable: bool = True
    """Whether the kernel reads the log ahead of those who read it; false spares a disk that is asked for scattered
    records."""
    check_crc_on_recover: bool = field(default=True, metadata={"key": "checkCRCOnRecover"})
    scrub_bytes_per_second: int = 8 << 20
    """Bytes per second of the log that are read in the background, round after round, and compared with the queues; 0
    turns this off. Not in RocketMQ."""
    check_crc_on_read: bool = field(default=True, metadata={"key": "checkCRCOnRead"})
    """Whether bodies that were stored more than some seconds ago, and so may come from the disk, are checked against
    their CRCs when they are read. A damaged one is skipped and reported. Not in RocketMQ."""
    file_reserved_time: int = 72
    """Hours after the last write to a segment of the log until it may be deleted."""
    delete_when: str = "04"
    """Hours of the local day at which expired segments are deleted, separated by semicolons."""
    clean_resource_interval: int = 10_000
    """Interval of the checks of segment age and disk usage."""
    delete_file_batch_max: int = 10
    """Most segments deleted at once."""
    delete_archived_only: bool = False
    """Keep every segment until the job ``archive`` has it in its table. When the disk is full, messages are
    then refused. Not in RocketMQ."""
    delete_compacted_only: bool = True
    """Keep every segment until the messages of compaction topics that it has are compacted. When the disk is
    full, messages are then refused. Not in RocketMQ, which copies these messages when they arrive."""
    disk_max_used_space_ratio: int = 75
    """Disk usage in percent from which on expired segments are deleted at any hour."""
    disk_space_clean_forcibly_ratio: int = 85
    """Disk usage from which on the oldest segments are deleted whatever their age."""
    disk_space_warning_level_ratio: int = 90
    """Disk usage from which on messages are refused, until it is back at the previous mark."""
    clean_file_forcibly_enable: bool = True
    """Whether segments that are not expired may be deleted at all."""
    allocation_step_commit_log: int = 16 << 20
    """How far ahead of the writer blocks are reserved. A segment always has its full length."""
    max_mapped_files: int = 16_384
    """Most ConsumeQueue files mapped at a time, and at most 1,024 CommitLog segments. Each map costs a
    descriptor, so maps take no more than half of the process's limit."""
    max_mapped_bytes: int = 0
    """Address space for maps: one half for the log, the other for queues and index. What does not fit is read
    by copying. 0: a quarter of the address space limit (``ulimit -v``), or no limit without one. Not in
    RocketMQ."""

    max_queue_table_bytes: int = 1 << 30
    """Memory for queues that have had a message, some 600,000. The first message of a further queue is
    refused. Not in RocketMQ."""

    def __post_init__(self) -> None:
        """Raises ConfigError (with ``.key``) for values that are out of range."""
        delete_hours(self.delete_when)
        _mode("storeDirectoryMode", self.store_directory_mode, 0o700)
        _mode("storeFileMode", self.store_file_mode, 0o600)
        for name in (
            "disk_max_used_space_ratio",
            "disk_space_clean_forcibly_ratio",
            "disk_space_warning_level_ratio",
        ):
            if not 1 <= getattr(self, name) <= 100:
                key = camel_case(name)
                raise ConfigError(
                    f"setting {key}={getattr(self, name)} is not a percentage of 1 to 100", key=key
                )
        if not self.store_path_root_dir:
            raise ConfigError("setting storePathRootDir must not be empty", key="storePathRootDir")
        check_numbers(
            self,
            "mapped_file_size_commit_log",
            "mapped_file_size_consume_queue",
            "mapper_file_size_batch_consume_queue",
            "mapped_file_size_timer_log",
            "compaction_mapped_file_size",
            "compaction_schedule_internal",
            "max_offset_map_size",
            "flush_interval_commit_log",
            "flush_interval_consume_queue",
            "max_message_size",
            "timer_precision_ms",
            "timer_max_delay_sec",
            "timer_congest_num_each_slot",
            "timer_flush_interval_ms",
            "max_hash_slot_num",
            "clean_resource_interval",
            "delete_file_batch_max",
            "allocation_step_commit_log",
            "max_mapped_files",
            "max_queue_table_bytes",
        )
        check_numbers(self, "compaction_cq_mapped_file_size", least=3 * 46)  # two entries and the end
        check_numbers(self, "mapped_file_size_consume_queue_ext", least=24)  # a unit and the end
        check_numbers(self, "max_index_num", least=2)  # the first place of an index file stays empty
        check_numbers(self, "file_reserved_time", least=0)
        check_numbers(self, "max_mapped_bytes", least=0, most=1 << 62)

    @property
    def directory_mode(self) -> int:
        return _mode("storeDirectoryMode", self.store_directory_mode, 0o700)

    @property
    def file_mode(self) -> int:
        return _mode("storeFileMode", self.store_file_mode, 0o600)

    @property
    def multi_dispatch(self) -> bool:
        return self.enable_lmq and self.enable_multi_dispatch

    @property
    def retention_rules(self) -> RetentionRules:
        return RetentionRules(
            self.file_reserved_time,
            delete_hours(self.delete_when),
            self.disk_max_used_space_ratio,
            self.disk_space_clean_forcibly_ratio,
            self.disk_space_warning_level_ratio,
            self.clean_file_forcibly_enable,
            self.delete_file_batch_max,
        )


def _mode(key: str, text: str, least: int) -> int:
    try:
        mode = int(text, 8)
    except ValueError:
        raise ConfigError(f"setting {key}={text} is not an octal mode such as {least:04o}", key=key) from None
    if not 0 <= mode <= 0o777 or mode & least != least:
        raise ConfigError(f"setting {key}={text} must be {least:04o} or with more of 0777", key=key)
    return mode
