"""The table of GET_BROKER_RUNTIME_INFO (28), which clusterList and brokerStatus of mqadmin print.

Rows about parts that this broker does not have (most thread pool queues, transient store) hold the value of an
idle one, because RocketMQ's tools fail on a missing row. Rows that begin with ``mqspark`` are this project's.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Mapping

from mqspark.broker.state.acks import Acks
from mqspark.broker.state.state import BrokerState
from mqspark.protocol.codes import CURRENT_VERSION
from mqspark.store.disk.trusted import MAX_CHALLENGE, prove

VERSION_TEXT = "V5_5_1"
"""The name of CURRENT_VERSION in MQVersion."""

STORE_PATH_KEY = "mqsparkStorePath"
COMMIT_LOG_PATH_KEY = "mqsparkCommitLogPath"
STORE_NONCE_KEY = "mqsparkStoreNonce"
"""Always empty. Readers recognise an mqspark broker by this row; earlier versions put the store's secret here."""
STORE_ID_KEY = "mqsparkStoreId"
"""Names the store, also after a restart and in its copies."""
STORE_PROOF_KEY = "mqsparkStoreProof"
"""Proof that the broker knows the secret in the store's directory: ``mqspark.store.disk.trusted``."""


def runtime_table(state: BrokerState, acks: Acks) -> dict[str, str]:
    config, store, stats = state.config, state.store, state.stats
    root = os.path.abspath(state.store_config.store_path_root_dir)
    log_directories = [os.path.abspath(path) for path in store.paths.commit_logs.all]
    usage = shutil.disk_usage(_existing(log_directories[0]))
    disk_ratio = _ratio(log_directories[0])
    gib = 1 << 30
    unflushed_bytes = max(0, store.log.position - store.log.durable)
    put_bytes = store.log.position - stats.first_position
    table = {
        "brokerActive": "true" if store.condition.read_only is None else "false",
        "brokerVersion": str(CURRENT_VERSION),
        "brokerVersionDesc": VERSION_TEXT,
        "bootTimestamp": str(stats.started_ms),
        "runtime": _duration(state.clock.now_ms() - stats.started_ms),
        "startAcceptSendRequestTimeStamp": str(config.start_accept_send_request_time_stamp),
        "putMessageTimesTotal": str(stats.put_messages),
        "putMessageFailedTimes": str(stats.put_failures),
        "putMessageSizeTotal": str(put_bytes),
        "putMessageAverageSize": str(put_bytes / max(1, stats.put_messages)),
        "putMessageEntireTimeMax": str(acks.times.longest_ms),
        "putMessageDistributeTime": acks.times.classes(),
        "putLatency99": f"{acks.times.below(0.99):.2f}",
        "putLatency999": f"{acks.times.below(0.999):.2f}",
        "getMessageEntireTimeMax": str(stats.get_longest_ms),
        "putTps": stats.rates("put"),
        "getFoundTps": stats.rates("found"),
        "getMissTps": stats.rates("missed"),
        "getTotalTps": stats.rates("pulls"),
        "getTransferredTps": stats.rates("transferred"),
        "getTransferedTps": stats.rates("transferred"),  # RocketMQ 4's spelling; its clusterList needs it
        **stats.day_counters(),
        "commitLogMinOffset": str(store.log.min_offset),
        "commitLogMaxOffset": str(store.log.position),
        "commitLogDiskRatio": disk_ratio,
        **{f"commitLogDiskRatio_{path}": _ratio(path) for path in log_directories},
        "commitLogDirCapacity": f"Total : {usage.total / gib:.1f} GiB, Free : {usage.free / gib:.1f} GiB.",
        "consumeQueueDiskRatio": disk_ratio,
        "earliestMessageTimeStamp": str(store.reads.earliest_store_timestamp()),
        "dispatchBehindBytes": "0",
        "dispatchMaxBuffer": "0",
        "pageCacheLockTimeMills": "0",
        "remainHowManyDataToFlush": f"{unflushed_bytes} B",
        "remainTransientStoreBufferNumbs": str((1 << 31) - 1),
        "timerReadBehind": "0",
        "timerOffsetBehind": "0",
        "timerCongestNum": "0",
        "timerEnqueueTps": "0.0",
        "timerDequeueTps": "0.0",
        "EndTransactionQueueSize": "0",
        "EndTransactionThreadPoolQueueCapacity": "100000",
    }
    for pool, size, capacity in (
        ("send", len(acks), config.send_thread_pool_queue_capacity),
        ("pull", 0, config.pull_thread_pool_queue_capacity),
        ("litePull", 0, config.pull_thread_pool_queue_capacity),
        ("query", 0, 20_000),
        ("ack", 0, 100_000),
    ):
        table[f"{pool}ThreadPoolQueueSize"] = str(size)
        table[f"{pool}ThreadPoolQueueCapacity"] = str(capacity)
        table[f"{pool}ThreadPoolQueueHeadWaitTimeMills"] = "0"
    table[STORE_PATH_KEY] = root
    table[COMMIT_LOG_PATH_KEY] = ",".join(log_directories)
    table[STORE_NONCE_KEY] = ""
    table[STORE_ID_KEY] = store.directory.identity
    return table


def store_proof(table: Mapping[str, str], nonce: str, challenge: str) -> dict[str, str]:
    """The row that answers a challenge; no row if the challenge is malformed. ``table`` is that of
    ``runtime_table``."""
    if not challenge or len(challenge) > MAX_CHALLENGE:
        return {}
    return {STORE_PROOF_KEY: prove(nonce, challenge, table[STORE_PATH_KEY], table[COMMIT_LOG_PATH_KEY])}


def _existing(path: str) -> str:
    return path if os.path.isdir(path) else "/"


def _ratio(path: str) -> str:
    """The used share of the space available to users, rounded up as df and RocketMQ do; blocks reserved for root
    do not count."""
    usage = shutil.disk_usage(_existing(path))
    return f"{math.ceil(usage.used * 100 / (usage.used + usage.free)) / 100:.2f}"


def _duration(milliseconds: int) -> str:
    seconds = milliseconds // 1000
    days, hours = seconds // 86400, seconds // 3600 % 24
    return f"[ {days} days, {hours} hours, {seconds // 60 % 60} minutes, {seconds % 60} seconds ]"
