"""Settings of the store, under RocketMQ's names (MessageStoreConfig) where it has them."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from pathlib import Path

from mqspark.base.config import Declared, check_settings, percentage, setting
from mqspark.errors import ConfigError
from mqspark.store.disk.layout import StorePaths
from mqspark.store.disk.retention import RetentionRules, delete_hours

DEFAULT_DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"


class FlushDiskType(enum.StrEnum):
    """When a producer is answered OK: after the write, or after fdatasync."""

    ASYNC_FLUSH = "ASYNC_FLUSH"
    SYNC_FLUSH = "SYNC_FLUSH"


@dataclass(slots=True, kw_only=True)
class StoreConfig:
    """Sizes in bytes, times in milliseconds unless the name says otherwise."""

    store_path_root_dir: str = field(
        default_factory=lambda: str(Path.home() / "store"), metadata=Declared(least=1, section="store")
    )
    """A directory for this broker alone."""
    store_directory_mode: str = setting("0700", ours=True)
    """Mode of new directories, in octal. Set 0750 and 0640 to let a Spark reader of another user, in a common group,
    map the files."""
    store_file_mode: str = setting("0600", ours=True)
    """Mode of new files."""
    store_path_commit_log: str | None = setting(None, sample="~/store/commitlog")
    """By default ``commitlog`` below the root. Several directories are separated by commas and take turns."""
    read_only_commit_log_store_paths: str | None = None
    """Directories, separated by commas, whose segments are read and which get no new ones."""
    mapped_file_size_commit_log: int = setting(1 << 30, unit="bytes", least=1)
    """For a new log; an existing log keeps the size of its files."""
    mapped_file_size_consume_queue: int = setting(300_000 * 20, unit="bytes", least=1)
    """For a new store, as above; rounded up to whole entries."""
    mapper_file_size_batch_consume_queue: int = setting(300_000 * 46, unit="bytes", least=1)
    """The same for a BatchConsumeQueue file (RocketMQ's spelling)."""
    enable_consume_queue_ext: bool = False
    """Whether each queue entry also gets a unit of ConsumeQueueExt."""
    mapped_file_size_consume_queue_ext: int = setting(48 << 20, unit="bytes", least=24)
    """Bytes of a file of such units."""
    compaction_mapped_file_size: int = setting(100 << 20, unit="bytes", least=1)
    """Bytes of RocketMQ's compaction files, for `mqspark store to-rocketmq`."""
    compaction_cq_mapped_file_size: int = setting(10 << 20, unit="bytes", least=3 * 46)
    """Length of the files of RocketMQ's compaction format, which are written for RocketMQ only
    (``compactionfiles``)."""
    enable_compaction: bool = setting(True, live=True)
    """Whether the broker compacts the topics with cleanup.policy=COMPACTION by itself."""
    compaction_schedule_internal: int = setting(15 * 60_000, unit="ms", least=1, live=True)
    """Interval of its compactions (RocketMQ's spelling)."""
    max_offset_map_size: int = setting(100 << 20, unit="bytes", least=1, live=True)
    """Bytes of memory for the keys that one pass over a queue finds."""
    enable_lmq: bool = False
    """Whether light message queues (%LMQ%) exist by their names."""
    enable_multi_dispatch: bool = False
    """With enableLmq, a message that names light message queues (INNER_MULTI_DISPATCH) also enters those."""
    enable_lmq_quota: bool = False
    """Whether maxLmqConsumeQueueNum holds."""
    max_lmq_consume_queue_num: int = 20_000
    """With enableLmqQuota the limit of light message queues; a message that would make a further one is refused."""
    enabled_append_prop_crc: bool = setting(False, key="enabledAppendPropCRC")
    """Whether records get a CRC over their whole content. Recovery then checks the CRC of records that have one."""
    force_verify_prop_crc: bool = setting(False, key="forceVerifyPropCRC")
    """Whether recovery checks this CRC although it is no longer written."""
    flush_disk_type: FlushDiskType = FlushDiskType.ASYNC_FLUSH
    """SYNC_FLUSH: acknowledged messages survive a power cut. ASYNC_FLUSH: they survive a killed process."""
    flush_interval_commit_log: int = setting(500, unit="ms", least=1, live=True)
    """Interval of flushes under ASYNC_FLUSH."""
    flush_interval_consume_queue: int = setting(1000, unit="ms", least=1, live=True)
    """Shortest time between two checkpoints."""
    max_message_size: int = setting(4 << 20, unit="bytes", least=1, live=True)
    """Limit of a body."""
    message_delay_level: str = DEFAULT_DELAY_LEVELS
    """The delays of levels 1, 2, and so on."""
    timer_wheel_enable: bool = setting(True, live=True)
    """Whether messages with a deliver time are accepted."""
    timer_precision_ms: int = setting(1000, unit="ms", least=1)
    """Tick of the timer wheel. Never change it while timer messages wait."""
    timer_max_delay_sec: int = setting(3 * 86_400, unit="s", least=1, live=True)
    """How far ahead a deliver time may be."""
    timer_roll_window_slot: int = 2 * 86_400
    """Distance in ticks from which on a message passes through the wheel in several steps."""
    timer_congest_num_each_slot: int = setting(0x7FFFFFFF, least=1, live=True)
    """Messages per tick above which others are refused at random, and above twice which all are refused."""
    append_topic_for_timer_delete_key: bool = setting(False, live=True)
    """Whether the key of a recalled message is written with its topic, as RocketMQ up to 5.3 expects it."""
    timer_flush_interval_ms: int = setting(1000, unit="ms", least=1, live=True)
    """ms between two saves of the wheel."""
    mapped_file_size_timer_log: int = setting(100 << 20, unit="bytes", least=1)
    """For a new timer log."""
    message_index_enable: bool = True
    """Whether messages can be found by key."""
    max_hash_slot_num: int = setting(5_000_000, least=1)
    """Slots of an index file (4 bytes each, reserved at creation). For a new index; an existing one keeps its own."""
    max_index_num: int = setting(20_000_000, least=2)
    """Entries of an index file (20 bytes each). As above."""
    max_msgs_num_batch: int = setting(64, live=True)
    """Most messages that a query by key returns."""
    default_query_max_num: int = setting(32, live=True)
    """The same for a query by unique key."""
    young_queue_from_start: bool = setting(True, live=True, ours=True)
    """Where a reader goes that asks beyond the end of a queue of a topic that was deleted and made again, while its
    first message is still there: to the start, as in RocketMQ 4; False: to the end, as in RocketMQ 5, which passes over
    what was stored since."""
    max_filter_message_size: int = setting(16_000, unit="bytes", live=True)
    """Bytes of ConsumeQueue entries that one filtered read examines."""
    max_transfer_bytes_on_message_in_memory: int = setting(256 << 10, unit="bytes", live=True)
    """Limit of one read of messages that are probably still in the page cache."""
    max_transfer_count_on_message_in_memory: int = setting(32, live=True)
    """Messages of one pull from the page cache."""
    max_transfer_bytes_on_message_in_disk: int = setting(64 << 10, unit="bytes", live=True)
    """Limit of one read of messages that lie farther behind the end of the log than the ratio below allows."""
    max_transfer_count_on_message_in_disk: int = setting(8, live=True)
    """Messages of one pull from the disk."""
    max_transfer_bytes_on_bulk_read: int = setting(2 << 20, unit="bytes", live=True, ours=True)
    """Limit of one read for a client that asks for bulk, as this project's Spark source does. What is probably not in
    memory has the limit that others have in memory. Never less than the limits above."""
    max_transfer_count_on_bulk_read: int = setting(16_384, live=True, ours=True)
    """Messages of one pull by a bulk reader."""
    access_message_in_memory_max_ratio: int = setting(40, unit="percent", live=True)
    """Percentage of physical memory that is assumed to cache the end of the log."""
    check_crc_on_recover: bool = setting(True, key="checkCRCOnRecover")
    """Whether message bodies of the tail are verified after an unclean stop."""
    scrub_bytes_per_second: int = setting(8 << 20, unit="bytes/s", ours=True)
    """Bytes per second of the log that are read in the background, round after round, and compared with the queues; 0
    turns this off."""
    check_crc_on_read: bool = setting(True, key="checkCRCOnRead", live=True, ours=True)
    """Whether bodies that were stored more than some seconds ago, and so may come from the disk, are checked against
    their CRCs when they are read. A damaged one is skipped and reported."""
    file_reserved_time: int = setting(72, unit="hours", least=0, live=True)
    """Hours after the last write to a segment of the log until it may be deleted."""
    delete_when: str = setting("04", live=True)
    """Hours of the local day at which expired segments are deleted, separated by semicolons."""
    clean_resource_interval: int = setting(10_000, unit="ms", least=1, live=True)
    """Interval of the checks of segment age and disk usage."""
    delete_file_batch_max: int = setting(10, least=1, live=True)
    """Most segments deleted at once."""
    delete_archived_only: bool = setting(False, live=True, ours=True)
    """Keep every segment until the job ``archive`` has it in its table. When the disk is full, messages are then
    refused."""
    delete_compacted_only: bool = setting(True, live=True, ours=True)
    """Keep every segment until the messages of compaction topics that it has are compacted. When the disk is full,
    messages are then refused. Not in RocketMQ, which copies these messages when they arrive."""
    disk_max_used_space_ratio: int = percentage(75, live=True)
    """Disk usage in percent from which on expired segments are deleted at any hour."""
    disk_space_clean_forcibly_ratio: int = percentage(85, live=True)
    """Disk usage from which on the oldest segments are deleted whatever their age."""
    disk_space_warning_level_ratio: int = percentage(90, live=True)
    """Disk usage from which on messages are refused, until it is back at the previous mark."""
    clean_file_forcibly_enable: bool = setting(True, live=True)
    """Whether segments that are not expired may be deleted at all."""
    allocation_step_commit_log: int = setting(16 << 20, unit="bytes", least=1, ours=True)
    """How far ahead of the writer blocks are reserved. A segment always has its full length."""
    max_mapped_files: int = setting(16_384, least=1, ours=True)
    """Most ConsumeQueue files mapped at a time, and at most 1,024 CommitLog segments. Each map costs a descriptor, so
    maps take no more than half of the process's limit."""
    max_mapped_bytes: int = setting(0, unit="bytes", least=0, most=1 << 62, ours=True)
    """Address space for maps: one half for the log, the other for queues and index. What does not fit is read by
    copying. 0: a quarter of the address space limit (``ulimit -v``), or no limit without one."""
    max_queue_table_bytes: int = setting(1 << 30, unit="bytes", least=1, ours=True)
    """Memory for queues that have had a message, some 600,000. The first message of a further queue is refused."""

    access_message_in_memory_hot_ratio: int = setting(26, unit="percent", live=True, section="consumers")
    """The same for the flow control of reads of cold data: what lies farther behind is cold."""
    cold_data_flow_control_enable: bool = setting(False, live=True)
    """Whether groups that read more cold data than their share have to wait."""
    cold_data_scan_enable: bool = setting(False, live=True)
    """Whether the kernel is asked at each such read if the record is in memory after all."""
    data_read_ahead_enable: bool = setting(True, live=True)
    """Whether the kernel reads the log ahead of those who read it; false spares a disk that is asked for scattered
    records."""

    def __post_init__(self) -> None:
        """Raises ConfigError (with ``.key``) for values that are out of range."""
        delete_hours(self.delete_when)
        _mode("storeDirectoryMode", self.store_directory_mode, 0o700)
        _mode("storeFileMode", self.store_file_mode, 0o600)
        check_settings(self)

    @property
    def directory_mode(self) -> int:
        return _mode("storeDirectoryMode", self.store_directory_mode, 0o700)

    @property
    def file_mode(self) -> int:
        return _mode("storeFileMode", self.store_file_mode, 0o600)

    @property
    def paths(self) -> StorePaths:
        return StorePaths(
            Path(self.store_path_root_dir),
            self.store_path_commit_log or None,
            self.read_only_commit_log_store_paths,
        )

    @property
    def multi_dispatch(self) -> bool:
        return self.enable_lmq and self.enable_multi_dispatch

    @property
    def verify_property_crc(self) -> bool:
        """Whether records have a CRC of everything, which is checked."""
        return self.enabled_append_prop_crc or self.force_verify_prop_crc

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
