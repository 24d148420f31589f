"""The settings that a process shows beside those of its core, so that it shows all that RocketMQ 5.5.0 shows.

A key without an effect here is shown with RocketMQ's default, unless that would be untrue: unavailable features are
shown as off, and thread pools with one thread. A refused key is shown with the value that is accepted. Secrets are not
shown.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from mqspark.config import to_properties
from mqspark_server.settings.serverconfig import ServerConfig

__all__ = ["more_of_broker", "more_of_namesrv"]

_OF_BROKERS = """
    accountStatsEnable=true accountStatsPrintZeroValues=true
    ackMessageThreadPoolNums=1 ackThreadPoolQueueCapacity=100000 aclEnable=false adminBrokerThreadPoolNums=1
    adminBrokerThreadPoolQueueCapacity=10000 appendAckAsync=false appendCkAsync=false asyncSendEnable=true
    autoDeleteUnusedStats=true autoMessageVersionOnTopicLen=true batchDispatchRequestThreadPoolNums=1
    bitMapLengthConsumeQueueExt=112 bottomMostCompressionTypeForConsumeQueueStore=zstd
    broadcastOffsetExpireMaxSecond=300 broadcastOffsetExpireSecond=120
    channelNotActiveInterval=60000 checkCommitLogOffsetOnRecover=false
    cleanOfflineBrokerInterval=30000 cleanRocksDBDirtyCQIntervalMin=60 cleanSwapedMapInterval=300000
    clearRetryTopicWhenDeleteTopic=true clientAsyncSemaphoreValue=65535 clientCallbackExecutorThreads=1
    clientChannelMaxIdleTimeSeconds=120 clientCloseSocketIfTimeout=true clientManageThreadPoolNums=1
    clientManagerThreadPoolQueueCapacity=1000000 clientOnewaySemaphoreValue=65535
    clientPooledByteBufAllocatorEnable=false clientSocketRcvBufSize=0 clientSocketSndBufSize=0 clientWorkerThreads=1
    combineAssignOffsetCQType=default combineCQEnableCheckSelf=false combineCQLoadingCQTypes=default
    combineCQMaxExtraSearchCommitLogFiles=3 combineCQPreferCQType=default combineCQUseRocksdbForLmq=false
    commercialBaseCount=1 commercialSizePerMsg=4096 commitCommitLogLeastPages=4 commitCommitLogThoroughInterval=200
    commitIntervalCommitLog=200 commitLogForceSwapMapInterval=43200000 commitLogRecoverMaxNum=10
    commitLogSwapMapInterval=3600000 commitLogSwapMapReserveFileNum=100
    compactionThreadNum=1 compatibleWithOldNameSrv=true compressedRegister=false configManagerVersion=v1
    connectTimeoutMillis=3000 consumerManageThreadPoolNums=1
    consumerManagerThreadPoolQueueCapacity=1000000 correctLogicMinOffsetForceInterval=300000
    correctLogicMinOffsetSleepInterval=1 debugLockEnable=false
    deleteCommitLogFilesInterval=100 deleteConsumeQueueFilesInterval=100 destroyMapedFileIntervalForcibly=120000
    disableCallbackExecutor=false disableNettyWorkerGroup=false
    disappearTimeAfterStart=-1 diskFallRecorded=true dispatchCqCacheNum=4096 dispatchCqThreads=1
    dispatchFromSenderThread=false duplicationEnable=false enableAcceleratedRecovery=false enableAsyncReput=false
    enableBatchPush=false enableBroadcastOffsetStore=false enableBuildConsumeQueueConcurrently=false
    enableCalcFilterBitMap=false enableCleanExpiredOffset=false enableConnectionMetrics=true
    enableCreateSysGroup=true enableDLegerCommitLog=false enableDetailStat=true enableFastChannelEventProcess=false
    enableLagAndDlqMetrics=true enableLiteEventMode=false enableLitePopLog=false
    enableLmqStats=false enableLogConsumeQueueRepeatedlyBuildWhenRecover=false enableMessageStoreMetrics=true
    enableMixedMessageType=false enableNetWorkFlowControl=false enableNotifyAfterPopOrderLockRelease=true
    enableNotifyBeforePopCalculateLag=true enablePopBatchAck=false enablePopBufferMerge=false enablePopLog=false
    enablePopMessageThreshold=false enablePopMetrics=true enableReconnectForGoAway=false enableRegisterProducer=true
    enableRemotingMetrics=true enableRequestMetrics=true enableRocksDBLog=false
    enableRunningFlagsInFlush=false enableScheduleAsyncDeliver=false enableScheduleMessageStats=true
    enableShutdownGracefully=false enableSingleTopicRegister=false enableSkipLongAwaitingAck=false
    enableSplitMetadata=true enableStatsMetrics=true enableTransactionMetrics=true
    endTransactionPoolQueueCapacity=100000 endTransactionThreadPoolNums=1 estimateAccumulation=true
    fastFailIfNoBufferInStorePool=false fetchControllerAddrByDnsLookup=false
    fetchNameSrvAddrByDnsLookup=false fetchNamesrvAddrByAddressServer=false fetchNamesrvAddrInterval=10000
    filterSupportRetry=false flushCommitLogLeastPages=4
    flushCommitLogThoroughInterval=10000 flushCommitLogTimed=true flushConsumeQueueLeastPages=2
    flushConsumeQueueThoroughInterval=60000 flushConsumerOffsetHistoryInterval=60000 flushDelayOffsetInterval=10000
    flushLeastPagesWhenWarmMapedFile=4096
    haFlowControlEnable=false heartbeatThreadPoolNums=1 heartbeatThreadPoolQueueCapacity=50000 highSpeedMode=false
    indexFileReadEnable=true indexFileWriteEnable=true indexRocksDBEnable=false initPopOffsetByCheckMsgInMem=true
    isBrokerContainer=false isInBrokerContainer=false isScanAvailableNameSrv=true isolateLogEnable=false
    iteratorWhenUseRocksdbConsumeQueue=true
    liteLagLatencyCollectEnable=false liteLagLatencyTopK=50
    litePullMessageThreadPoolNums=1 litePullThreadPoolQueueCapacity=100000
        loadBalancePollNameServerInterval=30000
    loadBalanceProcessorThreadPoolNums=1 loadBalanceThreadPoolQueueCapacity=100000 lockInStrictMode=false
    logicQueueForceSwapMapInterval=43200000 logicQueueSwapMapInterval=3600000 logicQueueSwapMapReserveFileNum=20
    logicalDiskSpaceCleanForciblyThreshold=0.8 mappedFileSwapEnable=false maxAsyncPutMessageRequests=5000
    maxBatchDeleteFilesNum=50 maxChecksumRange=1073741824 maxConsumeQueueScan=20000
    maxHaTransferByteInSecond=104857600
      maxMessageFilterNumForNotification=64
    maxReconnectIntervalTimeSeconds=60 maxRecoveryCommitlogFiles=30 maxRocksDBIndexQueryDays=7
    maxSlaveResendLength=268435456 maxStatsIdleTimeInMinutes=-1 maxTopicLength=127 memTableFlushIntervalMs=3600000
    messageIndexSafe=false metricGrpcExporterIntervalInMills=60000
    metricGrpcExporterTimeOutInMills=3000 metricLoggingExporterIntervalInMills=10000
    metricsExportBatchMaxDataPoints=1000 metricsExporterType=DISABLE metricsGrpcExporterHeader=
    metricsGrpcExporterTarget= metricsInDelta=false metricsLabel= metricsOtelCardinalityLimit=50000
    metricsPromExporterHost= metricsPromExporterPort=5557 osPageCacheBusyTimeOutMills=1000
    persistConsumerOffsetIncrementally=false popCkMaxBufferSize=200000 popCkOffsetMaxQueueSize=20000
    popCkStayBufferTime=10000 popCkStayBufferTimeOut=3000 popConsumerFSServiceInit=true
    popConsumerKVServiceEnable=false popConsumerKVServiceInit=false popConsumerKVServiceLog=false
    popInflightMessageThreshold=10000 popLongPollingForceNotifyInterval=800
    popPollingMapExpireTimeSeconds=600 popPollingMapSize=100000 popResponseReturnActualRetryTopic=false
    popReviveConcurrency=1 popReviveMaxAttemptTimes=16 popReviveMaxReturnSizePerRead=16384
    popReviveSkipIfGroupAbsent=true printChannelGroups=false printChannelGroupsMinNum=5
    processReplyMessageThreadPoolNums=1 pullBatchMaxMessageCount=160 pullMessageThreadPoolNums=1
    putConsumeQueueDataByFileChannel=false putMessageFutureThreadPoolNums=1 putMessageTimeout=8000
    putMsgIndexHightWater=600000 putThreadPoolQueueCapacity=10000 queryMessageThreadPoolNums=1
    queryThreadPoolQueueCapacity=20000 readUnCommitted=false realTimeNotifyConsumerChange=true
    realTimePersistRocksDBConfig=false recheckReputOffsetFromCq=false recoverConcurrently=false
    recoverThreadPoolNums=1 redeleteHangedFileInterval=120000 rejectPullConsumerEnable=false
    replicasPerDiskPartition=1 replyThreadPoolQueueCapacity=10000 reviveAckWaitMs=180000 reviveInterval=1000
    reviveMaxSlow=3 reviveScanTime=10000 rocketmqHome= rocksdbCQDoubleWriteEnable=false rocksdbCompressionType=lz4
    rocksdbFlushWalFrequency=1024 rocksdbWalFileRollingThreshold=1073741824 sampleCountThreshold=5000 sampleSteps=32
    scheduleAsyncDeliverMaxPendingLimit=2000 scheduleAsyncDeliverMaxResendNum2Blocked=3 searchBcqByCacheEnable=true
    sendMessageThreadPoolNums=1 serverAsyncSemaphoreValue=64 serverCallbackExecutorThreads=1
    serverNettyWorkerGroupEnable=false serverOnewaySemaphoreValue=256 serverPooledByteBufAllocatorEnable=false
    serverSelectorThreads=1 serverSocketRcvBufSize=0 serverSocketSndBufSize=0 serverWorkerThreads=1
    sharedByteBufferNum=16 shutdownWaitTimeSeconds=30 skipWhenCKRePutReachMaxTimes=false
    socksProxyConfig={} spinLockCollisionRetreatOptimalDegree=1000 statRocksDBCQIntervalSec=10 storeType=default
    subscriptionExpiredTimeout=600000 syncMasterFlushOffsetWhenStartup=false
    timerCheckMetricsWhen=05 timerColdDataCheckIntervalMs=60000 timerEnableCheckMetrics=true
    timerEnableDisruptor=false timerEnableRetryUntilSuccess=false timerGetMessageThreadNum=1
    timerInterceptDelayLevel=false timerMetricSmallThreshold=1000000 timerProgressLogIntervalMs=10000
    timerPutMessageThreadNum=1 timerRecallToTimeWheelEnable=true timerRecallToTimelineEnable=false
    timerReputServiceCorePoolSize=1 timerReputServiceMaxPoolSize=1 timerReputServiceQueueCapacity=10000
    timerRocksDBEnable=false timerRocksDBPrecisionMs=1000 timerRocksDBRollIntervalHours=1
    timerRocksDBRollMaxTps=8000.0 timerRocksDBRollRangeHours=2 timerRocksDBStopScan=false
    timerRocksDBTimeExpiredMaxTps=200000.0 timerSkipUnknownError=false timerStopDequeue=false timerStopEnqueue=false
    timerWarmEnable=false timerWheelSnapshotFlush=false timerWheelSnapshotIntervalMs=10000 topicQueueLockNum=32
    totalReplicas=1 transRocksDBEnable=false transWriteOriginTransHalfEnable=true
    transactionCheckRocksdbCoreThreads=1 transactionCheckRocksdbMaxThreads=1
    transactionCheckRocksdbQueueCapacity=2000 transactionMetricFlushInterval=10000 transferMsgByHeap=true
    transientStorePoolEnable=false transientStorePoolSize=5 travelCqFileNumWhenGetMessage=1
    updateNameServerAddrPeriod=120000 useABSLock=false useEpollNativeSelector=false
    useMessageFilterForNotification=true useReentrantLockWhenPutMessage=false
    useSeparateStorePathForRocksdbCQ=false useSingleRocksDBForAllConfigs=false
    useStaticSubscription=false validateSystemTopicWhenUpdateTopic=true wakeCommitWhenPutMessage=true
    wakeFlushWhenPutMessage=false warmMapedFileEnable=false writeBufferLowWaterMark=0 writeWithoutMmap=false
"""

_OF_NAME_SERVERS = """
    clientRequestThreadPoolNums=1 clientRequestThreadPoolQueueCapacity=50000 clusterTest=false configStorePath=
    defaultThreadPoolNums=1 defaultThreadPoolQueueCapacity=10000 enableShutdownGracefully=false
    needWaitForService=false productEnvName=center rocketmqHome=
    serverAsyncSemaphoreValue=64 serverCallbackExecutorThreads=1 serverNettyWorkerGroupEnable=false
    serverOnewaySemaphoreValue=256 serverPooledByteBufAllocatorEnable=false serverSelectorThreads=1
    serverSocketRcvBufSize=0 serverSocketSndBufSize=0 serverWorkerThreads=1 shutdownWaitTimeSeconds=30
    unRegisterBrokerQueueCapacity=3000 useEpollNativeSelector=false
    waitSecondsForService=45 writeBufferLowWaterMark=0
"""

_OF_SHELLS = (
    "bindAddress",
    "listenPort",
    "serverChannelMaxIdleTimeSeconds",
    "serverSocketBacklog",
    "writeBufferHighWaterMark",
)


def more_of_broker(server: ServerConfig, http_address: tuple[str, int] | None) -> dict[str, str]:
    """``http_address``: where the metrics are."""
    shown = _table(_OF_BROKERS) | _shell_values(server)
    shown["useTLS"] = str(server.use_tls).lower()
    if http_address is not None:
        shown["metricsExporterType"] = "PROM"
        shown["metricsPromExporterHost"], shown["metricsPromExporterPort"] = map(str, http_address)
    return shown


def more_of_namesrv(server: ServerConfig, port: int, file: Path | None) -> dict[str, str]:
    """``port``: the one that is bound. ``file``: where the settings come from."""
    shown = _table(_OF_NAME_SERVERS) | _shell_values(dataclasses.replace(server, listen_port=port))
    shown["configStorePath"] = "" if file is None else str(file)
    return shown


def _shell_values(server: ServerConfig) -> dict[str, str]:
    values = to_properties(server)
    return {key: values[key] for key in _OF_SHELLS}


def _table(text: str) -> dict[str, str]:
    pairs = (word.partition("=") for word in text.split())
    return {key: value for key, _, value in pairs}
