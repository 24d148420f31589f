"""The disk: CommitLog, ConsumeQueues, checkpoint, flush and recovery, in RocketMQ's file formats."""

from mqspark.store.config import FlushDiskType, StoreConfig
from mqspark.store.disk.configfile import ConfigFile
from mqspark.store.disk.diskjobs import FlushJob, Job, StoreProgress
from mqspark.store.disk.files import FileLayer, OsFiles
from mqspark.store.messages.fetch import GetResult, GetStatus
from mqspark.store.recovery.recoveryreport import RecoveryReport
from mqspark.store.store import MessageStore
from mqspark.store.tools.reader import StoreReader

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
    "RecoveryReport",
    "StoreConfig",
    "StoreProgress",
    "StoreReader",
]
