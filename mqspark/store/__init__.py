"""The disk: CommitLog, ConsumeQueues, checkpoint, flush, recovery, in RocketMQ's files."""

from mqspark.store.config import FlushDiskType, StoreConfig
from mqspark.store.configfile import ConfigFile
from mqspark.store.files import FileLayer, OsFiles
from mqspark.store.flush import FlushJob, Job, Progress
from mqspark.store.reader import StoreReader
from mqspark.store.recovery import RecoveryReport
from mqspark.store.store import GetResult, GetStatus, MessageStore

__all__ = [
    "ConfigFile",
    "FileLayer",
    "FlushDiskType",
    "FlushJob",
    "GetResult",
    "GetStatus",
    "Job",
    "MessageStore",
    "OsFiles",
    "Progress",
    "RecoveryReport",
    "StoreConfig",
    "StoreReader",
]
