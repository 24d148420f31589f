"""What mqadmin 5.5.0 prints, command by command; more about many of them in ``test_mqadmin``.

A chain is run in its order, chains side by side. What stands behind ``->`` is in what the command prints, white space
squeezed; a RocketMQ that answers otherwise has its answer behind ``|``, and a comment says why. A command that does not
end by itself is let run for the time in parentheses.
"""

import re
from typing import NamedTuple

from tests.support.tables import rows


class Row(NamedTuple):
    command: str
    wanted: str
    rocketmq: str
    for_ms: int


_LINE = re.compile(r"(.*?)(?: \((\d+) ms\))?\s+-> ?(.*?)(?: \| (.*))?")


def _chains(text: str) -> dict[str, list[Row]]:
    chains: dict[str, list[Row]] = {}
    chain: list[Row] = []
    for line in rows(text):
        if line.startswith("["):
            chain = chains[line.strip("[]")] = []
            continue
        parts = _LINE.fullmatch(line)
        assert parts, line
        command, for_ms, wanted, rocketmq = parts.groups()
        chain.append(Row(command, wanted, wanted if rocketmq is None else rocketmq, int(for_ms or 0)))
    return chains


# RocketMQ without users says "An system error occurred, please try again later." or shows a NullPointerException.
CHAINS = _chains("""
[clusters]
clusterList -c {cluster} -> {broker} V5_5_1
clusterList -c NoSuchCluster -> #Cluster Name
clusterRT -a 1 -i 1 (2000 ms) -> {cluster} {name}
topicList -c -> {cluster} {topic} {group}
[routes]
topicRoute -t {topic} -l -> {name} {{0={broker}}} 4 4 6
topicRoute -t NoSuchTopic -> CODE: 17 DESC: No topic route info in name server for the topic: NoSuchTopic
topicClusterList -t NoSuchTopic -> CODE: 17 DESC:
topicStatus -t {topic} -c {cluster} -> {name} 3 0 2 20
topicStatus -t NoSuchTopic -> CODE: 17 DESC:
[topics]
updateTopic -b {broker} -t TableTopic -r 4 -w 4 -p 6 -> create topic to {broker} success.
updateTopic -c {cluster} -t TableTopic -a +message.type=FIFO -> attributes={{+message.type=FIFO}}]
updateTopic -c {cluster} -t TableTopic -a +nonsense=1 -> unsupported key: nonsense
updateTopic -c {cluster} -t TBW102 -> CODE: 29 DESC: The topic[TBW102] is conflict with system topic.
updateTopic -c {cluster} -t TableTopic -a +message.type=MIXED -> CODE: 29 DESC:
updateTopicPerm -c {cluster} -t TableTopic -p 6 -> update topic perm from 6 to 6 in {broker} success.
updateTopicPerm -c {cluster} -t NoSuchTopic -p 6 -> CODE: 17 DESC:
deleteTopic -c {cluster} -t TableTopic -> delete topic [TableTopic] from NameServer success.
deleteTopic -c {cluster} -t NoSuchTopic -> delete topic [NoSuchTopic] from NameServer success.
[new_kinds_of_topics]
# They came with 5.4 and 5.5.
updateTopic -b {broker} -t TablePriority -a +message.type=PRIORITY -> attributes={{+message.type=PRIORITY}}]
updateSubGroup -c {cluster} -g TablePriority --attributes +priority.factor=50
    -> create subscription group to {broker} success.
updateSubGroup -c {cluster} -g TablePriority --attributes +priority.factor=101 -> value is not in range(0, 100)
getConsumerConfig -g TablePriority -> priority.factor=50
updateTopic -b {broker} -t TableLite -a +message.type=LITE
    -> CODE: 29 DESC: message.type=LITE needs a broker with enableLmq=true | create topic to {broker} success.
# RocketMQ creates these, too, but its answer to the tool is an error.
updateTopic -b {broker} -t TableBatch -a +queue.type=BatchCQ -> create topic to {broker} success. | TableBatch
updateTopic -b {broker} -t TableCompacted -a +cleanup.policy=COMPACTION
    -> create topic to {broker} success. | TableCompacted
[topic_lists]
updateTopicList -b {broker} -f {folder}/topics.json -> submit batch of topic config to {broker} success
updateTopicList -c {cluster} -f {folder}/topics.json -> submit batch of topic config to {broker} success
topicRoute -t ListedTopic -l -> {{0={broker}}} 3 3 6
[order]
updateOrderConf -t TableOrder -m put -v {name}:4 -> orderConf=[{name}:4]
updateOrderConf -t TableOrder -m get -> orderConf=[{name}:4] | TableOrder
updateOrderConf -t TableOrder -m delete -> delete orderConf success. topic=[TableOrder]
[static_topics]
remappingStaticTopic -b {name} -t NoSuchStatic -> No topic route to do the remapping
[groups]
updateSubGroup -c {cluster} -g TableGroup -s false -o true -> create subscription group to {broker} success.
updateSubGroup -c {cluster} -g TableGroup --attributes +a=b -> unsupported key: a
getConsumerConfig -g TableGroup -> consumeMessageOrderly = true
setConsumeMode -c {cluster} -t {topic} -g TableGroup -m POP -q 2 -> consume mode[POP] popShareQueueNum[2]
setConsumeMode -b {broker} -t {topic} -g TableGroup -m PULL -> consume mode[PULL]
deleteSubGroup -c {cluster} -g TableGroup -r true -> delete subscription group [TableGroup] from broker [{broker}]
deleteSubGroup -b {broker} -g NoSuchGroup -> delete subscription group [NoSuchGroup] from broker [{broker}]
[group_lists]
updateSubGroupList -b {broker} -f {folder}/groups.json -> submit batch of group config to {broker} success
updateSubGroupList -c {cluster} -f {folder}/groups.json
    -> submit batch of subscription group config to {broker} success
getConsumerConfig -g ListedGroup -> retryMaxTimes = 7
[broker_settings]
updateBrokerConfig -c {cluster} -k traceOn -v true -> update broker config success, {broker}
updateBrokerConfig -c {cluster} -a true -k traceOn -v true -> update broker config success, {broker}
# RocketMQ takes any name and any text.
updateBrokerConfig -b {broker} -k noSuchKey -v 1
    -> CODE: 1 DESC: unknown setting 'noSuchKey' | update broker config success
updateBrokerConfig -b {broker} -k useEpollNativeSelector -v true -> update broker config success, {broker}
updateBrokerConfig -b {broker} -k fileReservedTime -v soon
    -> CODE: 1 DESC: setting fileReservedTime='soon' is not a whole number | update broker config success
updateBrokerConfig -b {broker} -k brokerConfigPath -v x -> CODE: 16 DESC: Can not update config in black list.
getBrokerConfig -c {cluster} -> storePathCommitLog =
[name_server]
updateNamesrvConfig -k enableTopicList -v true -> update name server config success![{namesrv}]
updateNamesrvConfig -k useEpollNativeSelector -v true -> update name server config success![{namesrv}]
updateNamesrvConfig -k noSuchKey -v true
    -> CODE: 1 DESC: unknown setting 'noSuchKey' | update name server config success
updateNamesrvConfig -k kvConfigPath -v x -> CODE: 16 DESC: Can not update config in black list.
deleteKvConfig -s NS -k noSuchKey -> delete kv config from namespace success.
[messages]
queryMsgById -i {offset_id} -t {topic} -g {group} -d {client} -> consumeResult=CR_SUCCESS
queryMsgById -i {unique_id} -t {topic} -> OffsetID: {offset_id}
queryMsgById -i 7F00000100002A9F0000000000FFFFFF -t {topic} -> CODE: 208 DESC:
queryMsgByKey -t {topic} -k key-3 -m 1 -b {past} -e {future} -> @{topic}@K@key-3@
# RocketMQ 5.5 indexes tags, too.
queryMsgByKey -t {topic} -k TagA -p T -> @{topic}@T@TagA@
queryMsgByKey -t {topic} -k no-such-tag -p T -> CODE: 208 DESC:
queryMsgByKey -t {topic} -k no-such-key -> CODE: 208 DESC:
queryMsgByUniqueKey -t {topic} -i {unique_id} -> Keys: [key-5]
queryMsgByUniqueKey -t {topic} -i {unique_id} -a -> Keys: [key-5]
queryMsgByUniqueKey -t {topic} -i {unique_id} -g {group} -d {client} -> consumeResult=CR_SUCCESS
queryMsgByOffset -t {topic} -b {name} -i 1 -o 0 -f UTF-8 -> body-1
[printed_messages]
printMsg -t {topic} -d true -s TagA -b {past} -e {future} -> BODY: body-7
printMsgByQueue -t {topic} -a {name} -i 1 -f true -> Tag: TagA Count: 3
queryMsgTraceById -i NoSuchMessage -> QueryMsgTraceByIdSubCommand
consumeMessage -t {topic} -b {name} -i 1 -s {past} -e {now} -g TableReaders -> BODY: body-9
[sending]
updateTopic -b {broker} -t TableSends -r 4 -w 4 -> create topic to {broker} success.
checkMsgSendRT -t TableSends -a 3 -s 64 -> Avg RT:
sendMsgStatus -b {name} -c 2 -> sendStatus=SEND_OK
sendMessage -t TableSends -p hello -b {name} -i 2 -m true -> {name} 2 SEND_OK
[clients]
producer -b {broker} -> producer group ({producers}) instance : clientId=
producerConnection -g NoSuchProducers -t {topic} -> CODE: 1 DESC:
consumerConnection -g {group} -b {broker} -> {client}
consumerStatus -g {group} -i {client} -> #Consumer MQ Detail#
consumerStatus -g NoSuchGroup -> CODE:
[lags]
brokerConsumeStats -b {broker} -o true -t 5000 -> Diff Total:
consumerProgress -g {group} -t {topic} -c {cluster} -s true -> Consume Diff Total:
cloneGroupOffset -s {group} -d {clone} -t {topic} -o true -> clone group offset success.
resetOffsetByTime -g {clone} -t {topic} -s 0 -> {name} 3 0
resetOffsetByTime -g {clone} -t {topic} -s 1700000000000 -b {broker} -q 1 -o 1 -> reset consumer offset to 1
resetOffsetByTime -g {clone} -t {topic} -s 2024-01-01#00:00:00:000 -> {name} 0 0
skipAccumulatedMessage -g {clone} -t {topic} -f true -> {name} 3 2
skipAccumulatedMessage -g NoSuchSkippers -t {topic} -> CODE: 26 DESC: Group NoSuchSkippers does not exist
resetOffsetByTime -g {clone} -t NoSuchTopic -s now -> CODE: 17 DESC:
statsAll -a -> #Accumulation
[queues]
queryCq -t {topic} -q 1 -i 0 -c 1 -b {broker} -g {group} -> "subString":"TagA || TagB"
queryCq -t {topic} -q 1 -i 1 -g NoSuchGroup -> NoSuchGroup@{topic} is not online!
queryCq -t {topic} -q 77 -i 0 -b {broker} -> 77@{topic} is not exist!
[exports]
exportMetadata -c {cluster} -f {folder}/all -> export {folder}/all/metadata.json success
exportMetadata -b {broker} -f {folder}/topics -t -> export {folder}/topics/topic.json success
exportConfigs -c {cluster} -f {folder}/configs -> export {folder}/configs/configs.json success
exportMetrics -c {cluster} -f {folder}/metrics -> export {folder}/metrics/metrics.json success
exportMetadataInRocksDB -p {folder}/none -t topics -> RocksDB path is invalid.
exportPopRecord -b {broker} -d true -> Export broker records, brokerName={name}
rocksDBConfigToJson -c {cluster} -> broker export done.
checkRocksdbCqWriteProgress -c {cluster} -t {topic}
    -> CODE: 3 DESC: request type 354 not supported: no queue is kept in RocksDB | check doing
dumpCompactionLog -f {folder}/none -> not exist
[replicas]
haStatus -b {broker} -> #SlaveNum 0
resetMasterFlushOffset -b {broker} -o 0 -> reset master flush offset to 0 success
getBrokerEpoch -b {name} -> CODE: 1 DESC: this request only for controllerMode
getSyncStateSet -a {namesrv} -b {name} -> CODE: 3 DESC: request type 1005 not supported
getControllerMetaData -a {namesrv} -> CODE: 3 DESC: request type 1005 not supported
getControllerConfig -a {namesrv} -> CODE: 3 DESC: request type 1010 not supported
updateControllerConfig -a {namesrv} -k a -v b -> CODE: 3 DESC: request type 1009 not supported
electMaster -a {namesrv} -b 0 -bn {name} -c {cluster} -> CODE: 3 DESC: request type 1005 not supported
cleanBrokerMetadata -a {namesrv} -bn {name} -c {cluster} -l -> CODE: 3 DESC: request type 1005 not supported
[containers]
addBroker -b {folder}/broker.conf -c {broker} -> CODE: 3 DESC: request type 902 not supported
removeBroker -b {cluster}:{name}:0 -c {broker} -> CODE: 3 DESC: request type 903 not supported
[cold_reads]
getColdDataFlowCtrInfo -b {broker} -> "globalColdReadThreshold":104857600
updateColdDataFlowCtrGroupConfig -b {broker} -g {group} -v 1024 -> updateColdDataFlowCtrGroupConfig success, {broker}
removeColdDataFlowCtrGroupConfig -b {broker} -g {group} -> remove broker cold read threshold success, {broker}
setCommitLogReadAheadMode -b {broker} -m 0 -> readahead mode success, mode: 0
[rarer_options]
updateTopic -b {broker} -t TableUnits -r 2 -w 2 -o true -u true -s true -> create topic to {broker} success.
topicRoute -t TableUnits -> "topicSysFlag":3
updateSubGroup -b {broker} -g TableFlags -m false -d false -q 3 -i 0 -w 2 -a false
    -> create subscription group to {broker} success.
getConsumerConfig -g TableFlags -> whichBrokerWhenConsumeSlowly = 2
cleanExpiredCQ -c {cluster} -> success
deleteExpiredCommitLog -c {cluster} -> success
setCommitLogReadAheadMode -c {cluster} -m 1 -> readahead mode success, mode: 1
consumerStatus -g {group} -b {broker} -> {client}
[users]
createUser -b {broker} -u u1 -p p1 -> CODE: 1 DESC: this broker has no users yet | CODE: 1 DESC:
updateUser -b {broker} -u u1 -p p2 -> CODE: 1 DESC: this broker has no users yet | CODE: 1 DESC:
getUser -b {broker} -u u1 -> CODE: 1 DESC: this broker has no users yet | CODE: 1 DESC:
listUser -c {cluster} -> CODE: 1 DESC: this broker has no users yet | CODE: 1 DESC:
copyUser -f {broker} -t {broker} -> CODE: 1 DESC: this broker has no users yet | CODE: 1 DESC:
deleteUser -b {broker} -u u1 -> CODE: 1 DESC: this broker has no users yet | CODE: 1 DESC:
[access_control]
createAcl -b {broker} -s User:u1 -r Topic:* -a PUB -d ALLOW
    -> CODE: 1 DESC: this broker has no access control yet | CODE: 1 DESC:
updateAcl -b {broker} -s User:u1 -r Topic:* -a SUB -d ALLOW
    -> CODE: 1 DESC: this broker has no access control yet | CODE: 1 DESC:
getAcl -b {broker} -s User:u1 -> CODE: 1 DESC: this broker has no access control yet | CODE: 1 DESC:
listAcl -b {broker} -> CODE: 1 DESC: this broker has no access control yet | CODE: 1 DESC:
copyAcl -f {broker} -t {broker} -> CODE: 1 DESC: this broker has no access control yet | CODE: 1 DESC:
deleteAcl -b {broker} -s User:u1 -> CODE: 1 DESC: this broker has no access control yet | CODE: 1 DESC:
[timers]
switchTimerEngine -b {broker} -e F -> switchTimerEngine to FILE_TIME_WHEEL success, {broker}
switchTimerEngine -b {broker} -e R -> CODE: 29 DESC: timerRocksDBEnable must be configured true
[lite_topics]
getBrokerLiteInfo -b {broker} -> {broker} default
getParentTopicInfo -p {topic} -> Parent Topic Info: [{topic}]
getLiteTopicInfo -p {topic} -l lite -> Lite Topic Info: [{topic}] [lite]
getLiteClientInfo -p {topic} -g {group} -c {client} -> Lite Client Info: [{topic}] [{group}]
getLiteGroupInfo -p {topic} -g {group} -> Lite Group Info: [{group}] [{topic}]
triggerLiteDispatch -p {topic} -g {group} -b {name} -> {name} error
[monitoring]
startMonitoring (1000 ms) ->
""")

# Breaks RocketMQ's own tools: they cannot read its list of topics once there is a static one.
(LAST,) = _chains("""
[last]
updateStaticTopic -b {name} -qn 2 -t TableStatic -> The new mapping data is written to file
""").values()
