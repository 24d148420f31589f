"""Settings of the store, under RocketMQ's names (MessageStoreConfig) where RocketMQ has them."""

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
    """When a producer may be told OK: after the write, or after fdatasync."""

    ASYNC_FLUSH = "ASYNC_FLUSH"
    SYNC_FLUSH = "SYNC_FLUSH"


@dataclass(slots=True, kw_only=True)
class StoreConfig:
    """Sizes in bytes, times in milliseconds unless the name says otherwise."""

    store_path_root_dir: str = field(default_factory=lambda: str(Path.home() / "store"))
    store_directory_mode: str = "0700"
    """Ours: of directories that are made, in octal. Whoever lets a Spark reader of another user map the files, in a
    group of both, sets 0750 and 0640."""
    store_file_mode: str = "0600"
    """Ours: of files that are made."""
    store_path_commit_log: str | None = None
    """None: ``commitlog`` under the root. Several directories are separated by commas and take turns."""
    read_only_commit_log_store_paths: str | None = None
    """Directories, separated by commas, whose segments are read and which get no new ones."""
    mapped_file_size_commit_log: int = 1 << 30
    """For a new log; an existing one keeps the size of its files."""
    mapped_file_size_consume_queue: int = 300_000 * 20
    """Bytes, rounded up to whole entries; for a new store, as above."""
    mapper_file_size_batch_consume_queue: int = 300_000 * 46
    """The same of a BatchConsumeQueue file (RocketMQ spells it so)."""
    enable_consume_queue_ext: bool = False
    """Whether each queue entry also gets a unit of ConsumeQueueExt."""
    mapped_file_size_consume_queue_ext: int = 48 << 20
    compaction_mapped_file_size: int = 100 << 20
    compaction_cq_mapped_file_size: int = 10 << 20
    """Of RocketMQ's compaction files, which are written for it only (``compactionfiles``)."""
    enable_lmq: bool = False
    enable_multi_dispatch: bool = False
    """Both: a message that names light message queues (INNER_MULTI_DISPATCH) enters those, too."""
    enabled_append_prop_crc: bool = field(default=False, metadata={"key": "enabledAppendPropCRC"})
    """Whether records get a CRC over everything in them; recovery then checks it where there is one."""
    force_verify_prop_crc: bool = field(default=False, metadata={"key": "forceVerifyPropCRC"})
    """Whether recovery checks it although it is not written any more."""
    flush_disk_type: FlushDiskType = FlushDiskType.ASYNC_FLUSH
    flush_interval_commit_log: int = 500
    """How often the shell asks for a flush under ASYNC_FLUSH."""
    flush_interval_consume_queue: int = 1000
    """The least time between two checkpoints."""
    max_message_size: int = 4 << 20
    """Of a body."""
    message_delay_level: str = DEFAULT_DELAY_LEVELS
    timer_wheel_enable: bool = True
    """Whether messages with a deliver time are accepted."""
    timer_precision_ms: int = 1000
    """The tick of the timer wheel; never change it while timer messages wait."""
    timer_max_delay_sec: int = 3 * 86_400
    timer_roll_window_slot: int = 2 * 86_400
    """Ticks ahead from which on a message goes into the wheel in more than one step."""
    timer_congest_num_each_slot: int = 0x7FFFFFFF
    """Messages of one tick from which on others are refused at random; all from twice as many."""
    append_topic_for_timer_delete_key: bool = False
    """Whether the key of a recalled message is written with its topic, as RocketMQ up to 5.3 expects it."""
    timer_flush_interval_ms: int = 1000
    mapped_file_size_timer_log: int = 100 << 20
    """Bytes; for a new timer log."""
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
    """Of one read of messages that are probably still in the page cache."""
    max_transfer_count_on_message_in_memory: int = 32
    max_transfer_bytes_on_message_in_disk: int = 64 << 10
    """Of one read of messages that are farther behind the end of the log than the ratio below allows."""
    max_transfer_count_on_message_in_disk: int = 8
    max_transfer_bytes_on_bulk_read: int = 2 << 20
    """Ours: of one read for a client that asks for bulk, as our Spark source does; of what is probably not in memory as
    much as others get from memory. Never less than the limits above."""
    max_transfer_count_on_bulk_read: int = 16_384
    access_message_in_memory_max_ratio: int = 40
    """Percent of the machine's memory that is taken for a cache of the log's end."""
    check_crc_on_recover: bool = field(default=True, metadata={"key": "checkCRCOnRecover"})
    scrub_bytes_per_second: int = 8 << 20
    """Ours: so many bytes a second of the log that was there at the start are read in the background and compared with
    the queues; 0 turns that off."""
    check_crc_on_read: bool = field(default=True, metadata={"key": "checkCRCOnRead"})
    """Whether bodies that were stored before this start are compared with their CRCs when they are read; a damaged
    one is passed over and reported. Ours."""
    file_reserved_time: int = 72
    """Hours since a segment of the log was last written; then it may be deleted."""
    delete_when: str = "04"
    """Hours of the local day at which that is done, separated by semicolons."""
    clean_resource_interval: int = 10_000
    """Between two looks at the age of segments and at the disk."""
    delete_file_batch_max: int = 10
    """Segments that are deleted at once."""
    delete_archived_only: bool = False
    """Ours: a segment stays until the job ``archive`` has it in its table, however full the disk is (then no message is
    accepted)."""
    disk_max_used_space_ratio: int = 75
    """Percent of the disk in use from which on expired segments are deleted at any hour."""
    disk_space_clean_forcibly_ratio: int = 85
    """From which on the oldest segments are deleted whatever their age."""
    disk_space_warning_level_ratio: int = 90
    """From which on no message is accepted, until the disk is at the mark before this one."""
    clean_file_forcibly_enable: bool = True
    """Whether segments that are not expired may be deleted at all."""
    allocation_step_commit_log: int = 16 << 20
    """Blocks are reserved this far ahead of the writer (a segment's length is always full)."""
    max_mapped_files: int = 16_384
    """ConsumeQueue files kept mapped at a time, and at most 1,024 CommitLog segments; each costs a descriptor, so no
    more than half of what the process may have."""
    max_mapped_bytes: int = 0
    """Ours: of address space that maps take at a time, one half those of the log, the other those of queues and index;
    what finds no room there is read by copying. 0: a quarter of the limit of address space (``ulimit -v``), and no
    bound without one."""

    max_queue_table_bytes: int = 1 << 30
    """Ours: of memory for queues that have had a message, some 600,000; the first message of one more is refused."""

    def __post_init__(self) -> None:
        """Raises ConfigError (with ``.key``) for values that no disk or clock has."""
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
        raise ConfigError(f"setting {key}={text} is no mode in octal, such as {least:04o}", key=key) from None
    if not 0 <= mode <= 0o777 or mode & least != least:
        raise ConfigError(f"setting {key}={text} must be {least:04o} or with more of 0777", key=key)
    return mode
