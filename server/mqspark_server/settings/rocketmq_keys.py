"""What each of RocketMQ's settings means in mqspark: honoured, without an effect, or refused.

A ``broker.conf`` written for RocketMQ is accepted as far as its promises can be kept. A key without an effect is logged
once. A value that promises safety, order, a limit or a kind of store that mqspark does not have is an error at the
start. A key that is neither RocketMQ's nor mqspark's is a spelling mistake. ``docs/settings.md`` is generated from this
module.

Names: BrokerConfig, BrokerIdentity, MessageStoreConfig, NettyServerConfig, NettyClientConfig, AuthConfig,
NamesrvConfig, ControllerConfig and the tiered store's MessageStoreConfig of 5.5.0, the removed fields of 4.x, and the
path keys (storePathConsumeQueue, storePathIndex, storeCheckpoint, abortFile) that circulate in example files.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from mqspark.config import rocketmq_key
from mqspark_server.settings.declarations import CLASSES

__all__ = ["HONOURED", "REFUSED", "ROCKETMQ_KEYS", "WITHOUT_EFFECT", "Refused"]

HONOURED = frozenset(
    rocketmq_key(field)
    for cls in CLASSES
    for field in dataclasses.fields(cls)
    if not field.metadata.get("ours")
)
"""The settings of a process or its core that RocketMQ has, too."""

_WITHOUT_EFFECT = {
    "client certificates are always verified when they are requested": "tls.server.authClient",
    "users and policies are one table in memory": """
        aclCacheExpiredSecond aclCacheMaxNum aclCacheRefreshSecond authenticationMetadataProvider
        authenticationStrategy authorizationMetadataProvider authorizationProvider
        authorizationStrategy statefulAuthenticationCacheExpiredSecond statefulAuthenticationCacheMaxNum
        statefulAuthorizationCacheExpiredSecond statefulAuthorizationCacheMaxNum userCacheExpiredSecond
        userCacheMaxNum userCacheRefreshSecond
    """,
    "RocksDB, which stores must not use here": """
        batchDispatchRequestThreadPoolNums bottomMostCompressionTypeForConsumeQueueStore
        cleanRocksDBDirtyCQIntervalMin combineAssignOffsetCQType combineCQEnableCheckSelf
        combineCQLoadingCQTypes combineCQMaxExtraSearchCommitLogFiles combineCQPreferCQType dispatchCqCacheNum
        dispatchCqThreads enablePopBatchAck enableRocksDBLog iteratorWhenUseRocksdbConsumeQueue
        maxRocksDBIndexQueryDays memTableFlushIntervalMs persistConsumerOffsetIncrementally
        popConsumerFSServiceInit popConsumerKVServiceInit popConsumerKVServiceLog realTimePersistRocksDBConfig
        rocksdbCompressionType rocksdbFlushWalFrequency rocksdbWalFileRollingThreshold
        statRocksDBCQIntervalSec timerRecallToTimelineEnable timerRecallToTimeWheelEnable
        timerRocksDBPrecisionMs timerRocksDBRollIntervalHours timerRocksDBRollMaxTps
        timerRocksDBRollRangeHours timerRocksDBStopScan timerRocksDBTimeExpiredMaxTps
        transactionCheckRocksdbCoreThreads transactionCheckRocksdbMaxThreads
        transactionCheckRocksdbQueueCapacity transWriteOriginTransHalfEnable useSeparateStorePathForRocksdbCQ
    """,
    "RocketMQ's tiered storage; here archiveUrl serves messages that the log no longer has": """
        objectStoreAccessKey objectStoreBucket objectStoreEndpoint objectStoreSecretKey readAheadCacheEnable
        readAheadCacheExpireDuration readAheadCacheSizeThresholdRate readAheadMessageCountThreshold
        readAheadMessageSizeThreshold tieredBackendServiceProvider tieredMetadataServiceProvider
        tieredStoreCommitLogMaxSize tieredStoreConsumeQueueMaxSize tieredStoreCrcCheckEnable
        tieredStoreDeleteFileEnable tieredStoreDeleteFileInterval tieredStoreFilePath
        tieredStoreFileReservedTime tieredStoreGroupCommit tieredStoreGroupCommitCount
        tieredStoreGroupCommitSize tieredStoreGroupCommitTimeout tieredStoreIndexFileMaxHashSlotNum
        tieredStoreIndexFileMaxIndexNum tieredStoreMaxGroupCommitCount tieredStoreMaxPendingLimit
    """,
    "controllers and DLedger, which are not available": """
        controllerRequestThreadPoolQueueCapacity controllerThreadPoolNums
        controllerType dLegerGroup dLegerPeers dLegerSelfId electMasterMaxRetryCount heartbeatBrokerInterval
        preferredLeaderId storePathBrokerIdentity
        storePathDLedgerCommitLog storePathEpochFile totalReplicas
    """,
    "internals of lite topics": """
        enableLiteEventMode enableLitePopLog enableLmqStats liteLagLatencyCollectEnable liteLagLatencyTopK
    """,
    "thread pools and their queues: one event loop serves all requests": """
        ackMessageThreadPoolNums ackThreadPoolQueueCapacity adminBrokerThreadPoolNums
        adminBrokerThreadPoolQueueCapacity appendAckAsync appendCkAsync asyncSendEnable
        clientCallbackExecutorThreads clientManagerThreadPoolQueueCapacity clientManageThreadPoolNums
        clientRequestThreadPoolNums clientRequestThreadPoolQueueCapacity clientWorkerThreads
        compactionThreadNum consumerManagerThreadPoolQueueCapacity consumerManageThreadPoolNums
        defaultThreadPoolNums defaultThreadPoolQueueCapacity disableCallbackExecutor disableNettyWorkerGroup
        dispatchFromSenderThread enableAsyncReput enableBuildConsumeQueueConcurrently
        enableFastChannelEventProcess enableReconnectForGoAway enableScheduleAsyncDeliver
        enableShutdownGracefully endTransactionPoolQueueCapacity endTransactionThreadPoolNums
        heartbeatThreadPoolNums heartbeatThreadPoolQueueCapacity litePullMessageThreadPoolNums
        litePullThreadPoolQueueCapacity loadBalanceProcessorThreadPoolNums loadBalanceThreadPoolQueueCapacity
        maxAsyncPutMessageRequests popReviveConcurrency processReadEvent processReplyMessageThreadPoolNums
        pullMessageThreadPoolNums putMessageFutureThreadPoolNums putThreadPoolQueueCapacity
        queryMessageThreadPoolNums queryThreadPoolQueueCapacity recoverConcurrently recoverThreadPoolNums
        replyThreadPoolQueueCapacity scheduleAsyncDeliverMaxPendingLimit
        scheduleAsyncDeliverMaxResendNum2Blocked sendMessageThreadPoolNums serverCallbackExecutorThreads
        serverSelectorThreads serverWorkerThreads shutdownWaitTimeSeconds timerEnableDisruptor
        timerGetMessageThreadNum timerPutMessageThreadNum timerReputServiceCorePoolSize
        timerReputServiceMaxPoolSize timerReputServiceQueueCapacity transactionCheckThreadPoolMaxSize
        transactionCheckThreadPoolMinSize transientStorePoolSize unRegisterBrokerQueueCapacity
        waitTimeMillsInFilterQueue
    """,
    "Netty: sockets belong to asyncio or uvloop": """
        clientAsyncSemaphoreValue clientChannelMaxIdleTimeSeconds clientCloseSocketIfTimeout
        clientOnewaySemaphoreValue clientPooledByteBufAllocatorEnable clientSocketRcvBufSize
        clientSocketSndBufSize connectTimeoutMillis maxReconnectIntervalTimeSeconds
        serverAsyncSemaphoreValue serverNettyWorkerGroupEnable serverOnewaySemaphoreValue
        serverPooledByteBufAllocatorEnable serverSocketRcvBufSize serverSocketSndBufSize sharedByteBufferNum
        transferMsgByHeap useEpollNativeSelector writeBufferLowWaterMark
    """,
    "locks of RocketMQ's writers: one writer needs none": """
        debugLockEnable putMessageMutexEnable putMessageTimeout sampleCountThreshold sampleSteps
        spinLockCollisionRetreatOptimalDegree topicQueueLockNum useABSLock useReentrantLockWhenPutMessage
    """,
    "how RocketMQ maps, warms, commits and flushes files: here writes are grouped, and a sync follows the group": """
        cleanSwapedMapInterval commitCommitLogLeastPages
        commitCommitLogThoroughInterval commitIntervalCommitLog commitLogForceSwapMapInterval
        commitLogSwapMapInterval commitLogSwapMapReserveFileNum
        destroyMapedFileIntervalForcibly diskFallRecorded enableRunningFlagsInFlush
        fastFailIfNoBufferInStorePool flushCommitLogLeastPages flushCommitLogThoroughInterval
        flushCommitLogTimed flushConsumeQueueLeastPages flushConsumeQueueThoroughInterval
        flushLeastPagesWhenWarmMapedFile highSpeedMode logicQueueForceSwapMapInterval
        logicQueueSwapMapInterval logicQueueSwapMapReserveFileNum mappedFileSwapEnable
        osPageCacheBusyTimeOutMills putConsumeQueueDataByFileChannel recordGetMessageResult
        redeleteHangedFileInterval timerWarmEnable timerWheelSnapshotFlush timerWheelSnapshotIntervalMs
        transientStorePoolEnable wakeCommitWhenPutMessage wakeFlushWhenPutMessage warmMapedFileEnable
        writeWithoutMmap
    """,
    "files: their places and sizes follow storePathRootDir, and the names in RocketMQ's MessageStoreConfig": """
        abortFile brokerConfigPath configName configStorePath mapedFileSizeCommitLog mapedFileSizeConsumeQueue
        mappedFileSize productEnvName rocketmqHome storeCheckpoint storePathConsumeQueue storePathIndex
        storePathMessageIndex
    """,
    "retention and clean-up: their intervals and order are fixed": """
        autoDeleteUnusedStats cleanOfflineBrokerInterval commitLogRollingInterval commitLogRollingMinimumSize
        correctLogicMinOffsetForceInterval correctLogicMinOffsetSleepInterval deleteCommitLogFilesInterval
        deleteConsumeQueueFilesInterval enableCleanExpiredOffset logicalDiskSpaceCleanForciblyThreshold
        maxBatchDeleteFilesNum maxStatsIdleTimeInMinutes offlineCheckInterval replicasPerDiskPartition
        subscriptionExpiredTimeout
    """,
    "recovery: a start checks everything that is cheap, and the scrub checks the rest": """
        checkCommitLogOffsetOnRecover commitLogRecoverMaxNum enableAcceleratedRecovery
        enableLogConsumeQueueRepeatedlyBuildWhenRecover maxChecksumRange maxRecoveryCommitlogFiles
        messageIndexSafe recheckReputOffsetFromCq
    """,
    "metrics: they are at /metrics of the HTTP port": """
        accountStatsEnable accountStatsPrintZeroValues commercialBaseCount commercialSizePerMsg
        enableConnectionMetrics enableDetailStat enableLagAndDlqMetrics enableMessageStoreMetrics enablePopLog
        enablePopMetrics enableRemotingMetrics enableRequestMetrics enableScheduleMessageStats
        enableStatsMetrics enableTransactionMetrics estimateAccumulation metricGrpcExporterIntervalInMills
        metricGrpcExporterTimeOutInMills metricLoggingExporterIntervalInMills metricsExportBatchMaxDataPoints
        metricsExporterType metricsGrpcExporterHeader metricsGrpcExporterTarget metricsInDelta metricsLabel
        metricsOtelCardinalityLimit metricsPromExporterHost metricsPromExporterPort printChannelGroups
        printChannelGroupsMinNum timerCheckMetricsWhen timerEnableCheckMetrics timerMetricSmallThreshold
        timerProgressLogIntervalMs transactionMetricFlushInterval
    """,
    "POP: check points live in memory and in the revive log, whose reads are bounded by time": """
        enableNotifyAfterPopOrderLockRelease enableNotifyBeforePopCalculateLag enableOutOfOrder
        enablePopBufferMerge enableSkipLongAwaitingAck initPopOffsetByCheckMsgInMem
        maxMessageFilterNumForNotification popCkMaxBufferSize popCkOffsetMaxQueueSize popCkStayBufferTime
        popCkStayBufferTimeOut popInflightMessageThreshold popLongPollingForceNotifyInterval
        popPollingMapExpireTimeSeconds popPollingMapSize popResponseReturnActualRetryTopic
        popReviveMaxAttemptTimes popReviveMaxReturnSizePerRead popReviveSkipIfGroupAbsent reviveAckWaitMs
        reviveInterval reviveMaxSlow reviveScanTime skipWhenCKRePutReachMaxTimes
        useMessageFilterForNotification
    """,
    "message filters are exact and need no Bloom filter": """
        bitMapLengthConsumeQueueExt enableCalcFilterBitMap
        filterServerNums filterSupportRetry
    """,
    "each read of cold data asks the kernel which pages are in memory; there is no periodic check": (
        "timerColdDataCheckIntervalMs"
    ),
    "replication: its pace is not limited, and a slave copies its master's tables at a fixed interval": """
        haSlaveFallbehindMax maxHaTransferByteInSecond maxSlaveResendLength readUnCommitted
    """,
    "name servers: how brokers and name servers find and refresh each other": """
        clusterName compatibleWithOldNameSrv compressedRegister enableRegisterProducer
        enableSingleTopicRegister enableSplitMetadata fetchNamesrvAddrInterval isScanAvailableNameSrv
        loadBalancePollNameServerInterval pollNameServerInterval pollNameServerInteval scanAvailableNameSrv
        updateNameServerAddrPeriod waitSecondsForService
    """,
    "topics and groups: their defaults and checks are fixed": """
        autoMessageVersionOnTopicLen clearRetryTopicWhenDeleteTopic defaultReadQueueNums defaultWriteQueueNums
        enableCreateSysGroup enableMixedMessageType maxTopicLength validateSystemTopicWhenUpdateTopic
    """,
    "offsets of broadcasting consumers stay with their clients": """
        broadcastOffsetExpireMaxSecond broadcastOffsetExpireSecond enableBroadcastOffsetStore
    """,
    "background threads of RocketMQ: this broker does their work at its own intervals": """
        brokerSuspendMaxTimeMillis channelNotActiveInterval checkTransactionMessageEnable enableBatchPush
        flushConsumerOffsetHistoryInterval flushDelayOffsetInterval indexFileReadEnable indexFileWriteEnable
        isEnableBatchPush maxConsumeQueueScan persistConsumerOffsetInterval pullBatchMaxMessageCount
        putMsgIndexHightWater realTimeNotifyConsumerChange searchBcqByCacheEnable timerEnableRetryUntilSuccess
        timerInterceptDelayLevel timerSkipUnknownError transactionCheckRequestHoldMax
        transactionTimeoutCheckInterval travelCqFileNumWhenGetMessage
    """,
}

WITHOUT_EFFECT: Mapping[str, str] = {
    key: reason for reason, names in _WITHOUT_EFFECT.items() for key in names.split()
}
"""Why a key has no effect."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A key whose values are refused, except those that leave the feature off."""

    harmless: frozenset[str]
    reason: str

    def refuses(self, value: object) -> bool:
        text = str(value).strip()
        return text not in self.harmless and text.lower() not in self.harmless


_OFF = frozenset({"false"})

_SWITCHES = {
    "self-signed certificates are not made: give tls.server.certPath": "tls.test.mode.enable",
    "RocketMQ 4's access control is not available (authenticationEnabled is)": "aclEnable",
    "DLedger replication is not available": "enableDLegerCommitLog",
    "the rate of replication is not limited": "haFlowControlEnable",
    "a slave is not truncated to its master's flushed position": "syncMasterFlushOffsetWhenStartup",
    "duplication of a log is not available": "duplicationEnable",
    "broker containers are not available": """
        inBrokerContainer isBrokerContainer isInBrokerContainer isolateLogEnable
    """,
    "queues, timers, transactions, indexes and tables are files; RocksDB is not available": """
        combineCQUseRocksdbForLmq indexRocksDBEnable popConsumerKVServiceEnable rocksdbCQDoubleWriteEnable
        timerRocksDBEnable transRocksDBEnable useSingleRocksDBForAllConfigs
    """,
    "pull consumers are not refused": "rejectPullConsumerEnable",
    "queue locks do not work across the brokers of a replication group": "lockInStrictMode",
    "the number of messages in flight of POP is not limited": "enablePopMessageThreshold",
    "subscriptions come from heartbeats alone": "useStaticSubscription",
    "name servers are those of namesrvAddr alone": """
        fetchControllerAddrByDnsLookup fetchNamesrvAddrByAddressServer fetchNameSrvAddrByDnsLookup
    """,
    "a name server does not ask another environment": "clusterTest",
    "a name server answers as soon as it has started": "needWaitForService",
    "timers cannot be stopped": "timerStopEnqueue timerStopDequeue",
    "network flow control is not available": "enableNetWorkFlowControl",
}

REFUSED: Mapping[str, Refused] = {
    **{key: Refused(_OFF, reason) for reason, names in _SWITCHES.items() for key in names.split()},
    "storeType": Refused(frozenset({"default"}), "queues are ConsumeQueue files; RocksDB is not available"),
    "tieredStorageLevel": Refused(
        frozenset({"DISABLE"}),
        "RocketMQ's tiered storage is not available; archiveUrl serves messages that the log no longer has",
    ),
    "configManagerVersion": Refused(frozenset({"v1"}), "tables are JSON files; RocksDB is not available"),
    "socksProxyConfig": Refused(frozenset({"", "{}"}), "connections do not go through proxies"),
    "disappearTimeAfterStart": Refused(frozenset({"-1", "0"}), "a broker registers as soon as it serves"),
}

ROCKETMQ_KEYS = HONOURED | WITHOUT_EFFECT.keys() | REFUSED.keys()
