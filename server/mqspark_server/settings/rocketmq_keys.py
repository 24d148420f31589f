"""What each of RocketMQ's settings means in mqspark: honoured, without an effect, or refused.

A ``broker.conf`` written for RocketMQ is accepted as far as its promises can be kept. A key without an effect is logged
once. A value that promises safety, order, a limit or a kind of store that mqspark does not have is an error at the
start. A key that is neither RocketMQ's nor mqspark's is a spelling mistake. ``docs/settings.md`` is generated from this
module.

Names: BrokerConfig, BrokerIdentity, MessageStoreConfig, NettyServerConfig, NettyClientConfig, AuthConfig,
NamesrvConfig, ControllerConfig and the tiered store's MessageStoreConfig of 5.5.1, the removed fields of 4.x and
5.5.0, and the path keys (storePathConsumeQueue, storePathIndex, storeCheckpoint, abortFile) that circulate in example
files.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from mqspark.base.config import rocketmq_key
from mqspark_server.settings.declarations import CLASSES

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
        authenticationStrategy authorizationMetadataProvider authorizationProvider authorizationStrategy
        statefulAuthenticationCacheExpiredSecond statefulAuthenticationCacheMaxNum
        statefulAuthorizationCacheExpiredSecond statefulAuthorizationCacheMaxNum userCacheExpiredSecond
        userCacheMaxNum userCacheRefreshSecond
    """,
    "RocksDB, which stores must not use here": """
        batchDispatchRequestThreadPoolNums=1 bottomMostCompressionTypeForConsumeQueueStore=zstd
        cleanRocksDBDirtyCQIntervalMin=60 combineAssignOffsetCQType=default combineCQEnableCheckSelf=false
        combineCQLoadingCQTypes=default combineCQMaxExtraSearchCommitLogFiles=3 combineCQPreferCQType=default
        dispatchCqCacheNum=4096 dispatchCqThreads=1 enablePopBatchAck=false enableRocksDBLog=false
        iteratorWhenUseRocksdbConsumeQueue=true maxRocksDBIndexQueryDays=7 memTableFlushIntervalMs=3600000
        persistConsumerOffsetIncrementally=false popConsumerFSServiceInit=true popConsumerKVServiceInit=false
        popConsumerKVServiceLog=false popRocksdbBlockCacheSize=268435456 popRocksdbWriteBufferSize=33554432
        realTimePersistRocksDBConfig=false rocksdbCompressionType=lz4
        rocksdbCQSelectiveDoubleWriteEnable=false rocksdbFlushWalFrequency=1024 rocksdbMaxSizeAmplificationPercent=25
        rocksdbWalFileRollingThreshold=1073741824 statRocksDBCQIntervalSec=10
        timerRecallToTimelineEnable=false timerRecallToTimeWheelEnable=true timerRocksDBPrecisionMs=1000
        timerRocksDBRollIntervalHours=1 timerRocksDBRollMaxTps=8000.0 timerRocksDBRollRangeHours=2
        timerRocksDBStopScan=false timerRocksDBTimeExpiredMaxTps=200000.0 transactionCheckRocksdbCoreThreads=1
        transactionCheckRocksdbMaxThreads=1 transactionCheckRocksdbQueueCapacity=2000
        transWriteOriginTransHalfEnable=true useSeparateStorePathForRocksdbCQ=false
    """,
    "RocketMQ's tiered storage; here archiveUrl serves messages that the log no longer has": """
        objectStoreAccessKey objectStoreBucket objectStoreEndpoint objectStoreSecretKey readAheadCacheEnable
        readAheadCacheExpireDuration readAheadCacheSizeThresholdRate readAheadMessageCountThreshold
        readAheadMessageSizeThreshold tieredBackendServiceProvider tieredMetadataServiceProvider
        tieredStoreCommitLogMaxSize tieredStoreConsumeQueueMaxSize tieredStoreCrcCheckEnable
        tieredStoreDeleteFileEnable tieredStoreDeleteFileInterval tieredStoreFilePath tieredStoreFileReservedTime
        tieredStoreGroupCommit tieredStoreGroupCommitCount tieredStoreGroupCommitSize tieredStoreGroupCommitTimeout
        tieredStoreIndexFileMaxHashSlotNum tieredStoreIndexFileMaxIndexNum tieredStoreMaxGroupCommitCount
        tieredStoreMaxPendingLimit
    """,
    "controllers and DLedger, which are not available": """
        controllerRequestThreadPoolQueueCapacity controllerThreadPoolNums controllerType dLegerGroup dLegerPeers
        dLegerSelfId electMasterMaxRetryCount heartbeatBrokerInterval preferredLeaderId storePathBrokerIdentity
        storePathDLedgerCommitLog storePathEpochFile totalReplicas=1
    """,
    "internals of lite topics": """
        enableLiteEventMode enableLitePopLog=false enableLmqStats=false liteEventCapacityCacheTtlMs=0
        liteLagLatencyCollectEnable=false liteLagLatencyTopK=50
    """,
    "thread pools and their queues: one event loop serves all requests": """
        ackMessageThreadPoolNums=1 ackThreadPoolQueueCapacity=100000 adminBrokerThreadPoolNums=1
        adminBrokerThreadPoolQueueCapacity=10000 appendAckAsync=false appendCkAsync=false asyncSendEnable=true
        clientCallbackExecutorThreads=1 clientManagerThreadPoolQueueCapacity=1000000 clientManageThreadPoolNums=1
        clientRequestThreadPoolNums=1 clientRequestThreadPoolQueueCapacity=50000 clientWorkerThreads=1
        compactionThreadNum=1 consumerManagerThreadPoolQueueCapacity=1000000 consumerManageThreadPoolNums=1
        defaultThreadPoolNums=1 defaultThreadPoolQueueCapacity=10000 disableCallbackExecutor=false
        disableNettyWorkerGroup=false dispatchFromSenderThread=false enableAsyncReput=false
        enableBuildConsumeQueueConcurrently=false enableFastChannelEventProcess=false enableReconnectForGoAway=false
        enableScheduleAsyncDeliver=false enableShutdownGracefully=false endTransactionPoolQueueCapacity=100000
        endTransactionThreadPoolNums=1 heartbeatThreadPoolNums=1 heartbeatThreadPoolQueueCapacity=50000
        litePullMessageThreadPoolNums=1 litePullThreadPoolQueueCapacity=100000 loadBalanceProcessorThreadPoolNums=1
        loadBalanceThreadPoolQueueCapacity=100000 maxAsyncPutMessageRequests=5000 popReviveConcurrency=1
        processReadEvent processReplyMessageThreadPoolNums=1 pullMessageThreadPoolNums=1
        putMessageFutureThreadPoolNums=1 putThreadPoolQueueCapacity=10000 queryMessageThreadPoolNums=1
        queryThreadPoolQueueCapacity=20000 recoverConcurrently=false recoverThreadPoolNums=1
        replyThreadPoolQueueCapacity=10000 scheduleAsyncDeliverMaxPendingLimit=2000
        scheduleAsyncDeliverMaxResendNum2Blocked=3 sendMessageThreadPoolNums=1 serverCallbackExecutorThreads=1
        serverSelectorThreads=1 serverWorkerThreads=1 shutdownWaitTimeSeconds=30 timerEnableDisruptor=false
        timerGetMessageThreadNum=1 timerPutMessageThreadNum=1 timerReputServiceCorePoolSize=1
        timerReputServiceMaxPoolSize=1 timerReputServiceQueueCapacity=10000 transactionCheckThreadPoolMaxSize
        transactionCheckThreadPoolMinSize transientStorePoolSize=5 unRegisterBrokerQueueCapacity=3000
        waitTimeMillsInFilterQueue
    """,
    "Netty: sockets belong to asyncio or uvloop": """
        clientAsyncSemaphoreValue=65535 clientChannelMaxIdleTimeSeconds=120 clientCloseSocketIfTimeout=true
        clientOnewaySemaphoreValue=65535 clientPooledByteBufAllocatorEnable=false clientSocketRcvBufSize=0
        clientSocketSndBufSize=0 connectTimeoutMillis=3000 maxReconnectIntervalTimeSeconds=60
        serverAsyncSemaphoreValue=64 serverNettyWorkerGroupEnable=false serverOnewaySemaphoreValue=256
        serverPooledByteBufAllocatorEnable=false serverSocketRcvBufSize=0 serverSocketSndBufSize=0
        sharedByteBufferNum=16 transferMsgByHeap=true useEpollNativeSelector=false writeBufferLowWaterMark=0
    """,
    "locks of RocketMQ's writers: one writer needs none": """
        debugLockEnable=false putMessageMutexEnable putMessageTimeout=8000 sampleCountThreshold=5000 sampleSteps=32
        spinLockCollisionRetreatOptimalDegree=1000 topicQueueLockNum=32 useABSLock=false
        useReentrantLockWhenPutMessage=false
    """,
    "how RocketMQ maps, warms, commits and flushes files: here writes are grouped, and a sync follows the group": """
        cleanSwapedMapInterval=300000 commitCommitLogLeastPages=4 commitCommitLogThoroughInterval=200
        commitIntervalCommitLog=200 commitLogForceSwapMapInterval=43200000 commitLogSwapMapInterval=3600000
        commitLogSwapMapReserveFileNum=100 destroyMapedFileIntervalForcibly=120000 diskFallRecorded=true
        enableRunningFlagsInFlush=false fastFailIfNoBufferInStorePool=false flushCommitLogLeastPages=4
        flushCommitLogThoroughInterval=10000 flushCommitLogTimed=true flushConsumeQueueLeastPages=2
        flushConsumeQueueThoroughInterval=60000 flushLeastPagesWhenWarmMapedFile=4096 highSpeedMode=false
        logicQueueForceSwapMapInterval=43200000 logicQueueSwapMapInterval=3600000 logicQueueSwapMapReserveFileNum=20
        mappedFileSwapEnable=false osPageCacheBusyTimeOutMills=1000 putConsumeQueueDataByFileChannel=false
        recordGetMessageResult redeleteHangedFileInterval=120000 timerWarmEnable=false timerWheelSnapshotFlush=false
        timerWheelSnapshotIntervalMs=10000 transientStorePoolEnable=false wakeCommitWhenPutMessage=true
        wakeFlushWhenPutMessage=false warmMapedFileEnable=false writeWithoutMmap=false
    """,
    "files: their places and sizes follow storePathRootDir, and the names in RocketMQ's MessageStoreConfig": """
        abortFile brokerConfigPath configName configStorePath= mapedFileSizeCommitLog mapedFileSizeConsumeQueue
        mappedFileSize productEnvName=center rocketmqHome= storeCheckpoint storePathConsumeQueue storePathIndex
        storePathMessageIndex
    """,
    "retention and clean-up: their intervals and order are fixed": """
        autoDeleteUnusedStats=true cleanOfflineBrokerInterval=30000 commitLogRollingInterval
        commitLogRollingMinimumSize correctLogicMinOffsetForceInterval=300000 correctLogicMinOffsetSleepInterval=1
        correctMinOffsetMadviseEnable=false
        deleteCommitLogFilesInterval=100 deleteConsumeQueueFilesInterval=100 enableCleanExpiredOffset=false
        logicalDiskSpaceCleanForciblyThreshold=0.8 maxBatchDeleteFilesNum=50 maxStatsIdleTimeInMinutes=-1
        offlineCheckInterval replicasPerDiskPartition=1 subscriptionExpiredTimeout=600000
    """,
    "recovery: a start checks everything that is cheap, and the scrub checks the rest": """
        checkCommitLogOffsetOnRecover=false commitLogRecoverMaxNum=10 enableAcceleratedRecovery=false
        enableLogConsumeQueueRepeatedlyBuildWhenRecover=false maxCheckMessageReuseBufferSize=1048576
        maxChecksumRange=1073741824 maxRecoveryCommitlogFiles=30 messageIndexSafe=false recheckReputOffsetFromCq=false
    """,
    "metrics: they are at /metrics of the HTTP port": """
        accountStatsEnable=true accountStatsPrintZeroValues=true commercialBaseCount=1 commercialSizePerMsg=4096
        enableConnectionMetrics=true enableDetailStat=true enableLagAndDlqMetrics=true enableMessageStoreMetrics=true
        enablePopLog=false enablePopMetrics=true enableRemotingMetrics=true enableRequestMetrics=true
        enableScheduleMessageStats=true enableStatsMetrics=true enableTransactionMetrics=true
        estimateAccumulation=true metricGrpcExporterIntervalInMills=60000 metricGrpcExporterTimeOutInMills=3000
        metricLoggingExporterIntervalInMills=10000 metricsExportBatchMaxConcurrent=4
        metricsExportBatchMaxDataPoints=1000 metricsExportBatchSplitEnabled=true metricsExporterType=DISABLE
        metricsExportOtelMemoryMode=IMMUTABLE_DATA
        metricsGrpcExporterHeader= metricsGrpcExporterTarget= metricsInDelta=false metricsLabel=
        metricsOtelCardinalityLimit=50000 metricsPromExporterHost= metricsPromExporterPort=5557
        printChannelGroups=false printChannelGroupsMinNum=5 timerCheckMetricsWhen=05 timerEnableCheckMetrics=true
        timerMetricSmallThreshold=1000000 timerProgressLogIntervalMs=10000 transactionMetricFlushInterval=10000
    """,
    "POP: check points live in memory and in the revive log, whose reads are bounded by time": """
        enableNotifyAfterPopOrderLockRelease=true enableNotifyBeforePopCalculateLag=true enableOutOfOrder
        enablePopBufferMerge=false enableSkipLongAwaitingAck=false initPopOffsetByCheckMsgInMem=true
        maxMessageFilterNumForNotification=64 popCkMaxBufferSize=200000 popCkOffsetMaxQueueSize=20000
        popCkStayBufferTime=10000 popCkStayBufferTimeOut=3000 popInflightMessageThreshold=10000
        popLongPollingForceNotifyInterval=800 popOrderLockTimerTickMs=100 popOrderLockTimerTicksPerWheel=512
        popPollingMapExpireTimeSeconds=600 popPollingMapSize=100000
        popResponseReturnActualRetryTopic=false popReviveMaxAttemptTimes=16 popReviveMaxReturnSizePerRead=16384
        popReviveSkipIfGroupAbsent=true reviveAckWaitMs=180000 reviveInterval=1000 reviveMaxSlow=3
        reviveScanTime=10000 skipWhenCKRePutReachMaxTimes=false useMessageFilterForNotification=true
    """,
    "message filters are exact and need no Bloom filter": """
        bitMapLengthConsumeQueueExt=112 enableCalcFilterBitMap=false filterServerNums filterSupportRetry=false
    """,
    "each read of cold data asks the kernel which pages are in memory; there is no periodic check": """
        timerColdDataCheckIntervalMs=60000
    """,
    "replication: its pace is not limited, and a slave copies its master's tables at a fixed interval": """
        haSlaveFallbehindMax maxHaTransferByteInSecond=104857600 maxSlaveResendLength=268435456 readUnCommitted=false
    """,
    "name servers: how brokers and name servers find and refresh each other": """
        clusterName compatibleWithOldNameSrv=true compressedRegister=false enableRegisterProducer=true
        enableSingleTopicRegister=false enableSplitMetadata=true fetchNamesrvAddrInterval=10000
        isScanAvailableNameSrv=true loadBalancePollNameServerInterval=30000 pollNameServerInterval
        pollNameServerInteval scanAvailableNameSrv updateNameServerAddrPeriod=120000 waitSecondsForService=45
    """,
    "topics and groups: their defaults and checks are fixed": """
        autoMessageVersionOnTopicLen=true clearRetryTopicWhenDeleteTopic=true defaultReadQueueNums
        defaultWriteQueueNums enableCreateSysGroup=true enableMixedMessageType=false maxTopicLength=127
        validateSystemTopicWhenUpdateTopic=true
    """,
    "a list of topics or groups is deleted between the requests of others, at no fixed rate": """
        batchDeleteSubscriptionGroupMaxRate=0.0 batchDeleteTopicMaxRate=0.0
    """,
    "offsets of broadcasting consumers stay with their clients": """
        broadcastOffsetExpireMaxSecond=300 broadcastOffsetExpireSecond=120 enableBroadcastOffsetStore=false
    """,
    "background threads of RocketMQ: this broker does their work at its own intervals": """
        brokerSuspendMaxTimeMillis channelNotActiveInterval=60000 checkTransactionMessageEnable enableBatchPush=false
        flushConsumerOffsetHistoryInterval=60000 flushDelayOffsetInterval=10000 indexFileReadEnable=true
        indexFileWriteEnable=true isEnableBatchPush maxConsumeQueueScan=20000 persistConsumerOffsetInterval
        pullBatchMaxMessageCount=160 putMsgIndexHightWater=600000 realTimeNotifyConsumerChange=true
        searchBcqByCacheEnable=true timerEnableRetryUntilSuccess=false timerInterceptDelayLevel=false
        timerSkipUnknownError=false transactionCheckRequestHoldMax transactionTimeoutCheckInterval
        travelCqFileNumWhenGetMessage=1
    """,
}
"""Reason -> keys, with the values that RocketMQ's servers show of them."""


def _entries(table: Mapping[str, str]) -> dict[str, tuple[str, str | None]]:
    """Key -> the reason, and the value that is shown."""
    found: dict[str, tuple[str, str | None]] = {}
    for reason, words in table.items():
        for key, equals, value in (word.partition("=") for word in words.split()):
            found[key] = reason, value if equals else None
    return found


WITHOUT_EFFECT: Mapping[str, str] = {key: reason for key, (reason, _) in _entries(_WITHOUT_EFFECT).items()}
"""Why a key has no effect."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A key whose values are refused, except those that leave the feature off."""

    harmless: frozenset[str]
    reason: str
    shown: str | None
    """The value that a server of RocketMQ shows when nothing is set; None: it has no such key."""

    def refuses(self, value: object) -> bool:
        text = str(value).strip()
        return text not in self.harmless and text.lower() not in self.harmless


_OFF = frozenset({"false"})

_SWITCHES = {
    "RocketMQ 4's access control is not available (authenticationEnabled is)": "aclEnable=false",
    "DLedger replication is not available": "enableDLegerCommitLog=false",
    "the rate of replication is not limited": "haFlowControlEnable=false",
    "a slave is not truncated to its master's flushed position": "syncMasterFlushOffsetWhenStartup=false",
    "duplication of a log is not available": "duplicationEnable=false",
    "broker containers are not available": """
        inBrokerContainer isBrokerContainer=false isInBrokerContainer=false isolateLogEnable=false
    """,
    "queues, timers, transactions, indexes and tables are files; RocksDB is not available": """
        combineCQUseRocksdbForLmq=false indexRocksDBEnable=false popConsumerKVServiceEnable=false
        rocksdbCQDoubleWriteEnable=false timerRocksDBEnable=false transRocksDBEnable=false
        useSingleRocksDBForAllConfigs=false
    """,
    "pull consumers are not refused": "rejectPullConsumerEnable=false",
    "queue locks do not work across the brokers of a replication group": "lockInStrictMode=false",
    "the number of messages in flight of POP is not limited": "enablePopMessageThreshold=false",
    "subscriptions come from heartbeats alone": "useStaticSubscription=false",
    "name servers are those of namesrvAddr alone": """
        fetchControllerAddrByDnsLookup=false fetchNamesrvAddrByAddressServer=false fetchNameSrvAddrByDnsLookup=false
    """,
    "a name server does not ask another environment": "clusterTest=false",
    "a name server answers as soon as it has started": "needWaitForService=false",
    "timers cannot be stopped": """
        timerStopEnqueue=false timerStopDequeue=false
    """,
    "network flow control is not available": "enableNetWorkFlowControl=false",
}

REFUSED: Mapping[str, Refused] = {
    **{key: Refused(_OFF, reason, value) for key, (reason, value) in _entries(_SWITCHES).items()},
    "storeType": Refused(
        frozenset({"default"}), "queues are ConsumeQueue files; RocksDB is not available", "default"
    ),
    "tieredStorageLevel": Refused(
        frozenset({"DISABLE"}),
        "RocketMQ's tiered storage is not available; archiveUrl serves messages that the log no longer has",
        None,
    ),
    "configManagerVersion": Refused(
        frozenset({"v1"}), "tables are JSON files; RocksDB is not available", "v1"
    ),
    "socksProxyConfig": Refused(frozenset({"", "{}"}), "connections do not go through proxies", "{}"),
    "disappearTimeAfterStart": Refused(
        frozenset({"-1", "0"}), "a broker registers as soon as it serves", "-1"
    ),
}

ROCKETMQ_KEYS = HONOURED | WITHOUT_EFFECT.keys() | REFUSED.keys()

SHOWN: Mapping[str, str] = {
    key: value
    for key, value in (
        *((key, value) for key, (_, value) in _entries(_WITHOUT_EFFECT).items()),
        *((key, refused.shown) for key, refused in REFUSED.items()),
    )
    if value is not None
}
"""What servers of RocketMQ show of these keys when nothing is set, as far as it is true here."""
