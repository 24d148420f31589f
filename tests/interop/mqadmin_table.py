"""What mqadmin 5.5.0 prints, command by command; more about many of them in ``test_mqadmin``.

A chain is run in its order, chains side by side. Of a command that answers otherwise on a RocketMQ 5.5.0 both answers
are here, and why they differ.
"""

from typing import NamedTuple


class Row(NamedTuple):
    """``wanted`` is in what the command prints, white space squeezed; ``rocketmq``: what is there on a RocketMQ."""

    command: str
    wanted: str
    rocketmq: str | None = None
    for_ms: int = 0
    """How long a command that does not end by itself is let run."""


# RocketMQ without users says "An system error occurred, please try again later." or shows a NullPointerException.
_USERS = ("CODE: 1 DESC: this broker has no users yet", "CODE: 1 DESC: ")
_ACL = ("CODE: 1 DESC: this broker has no access control yet", "CODE: 1 DESC: ")
_NO_RDB = "CODE: 3 DESC: request type 354 not supported: no queue is kept in RocksDB"

CHAINS: dict[str, list[Row]] = {
    "clusters": [
        Row("clusterList -c {cluster}", "{broker} V5_5_1"),
        Row("clusterList -c NoSuchCluster", "#Cluster Name"),
        Row("clusterRT -a 1 -i 1", "{cluster} {name}", for_ms=2_000),
        Row("topicList -c", "{cluster} {topic} {group}"),
    ],
    "routes": [
        Row("topicRoute -t {topic} -l", "{name} {{0={broker}}} 4 4 6"),
        Row(
            "topicRoute -t NoSuchTopic",
            "CODE: 17 DESC: No topic route info in name server for the topic: NoSuchTopic",
        ),
        Row("topicClusterList -t NoSuchTopic", "CODE: 17 "),
        Row("topicStatus -t {topic} -c {cluster}", "{name} 3 0 2 20"),
        Row("topicStatus -t NoSuchTopic", "CODE: 17 "),
    ],
    "topics": [
        Row("updateTopic -b {broker} -t TableTopic -r 4 -w 4 -p 6", "create topic to {broker} success."),
        Row(
            "updateTopic -c {cluster} -t TableTopic -a +message.type=FIFO",
            "attributes={{+message.type=FIFO}}]",
        ),
        Row("updateTopic -c {cluster} -t TableTopic -a +nonsense=1", "unsupported key: nonsense"),
        Row(
            "updateTopic -c {cluster} -t TBW102",
            "CODE: 29 DESC: The topic[TBW102] is conflict with system topic.",
        ),
        Row("updateTopic -c {cluster} -t TableTopic -a +message.type=MIXED", "CODE: 29 "),
        Row(
            "updateTopicPerm -c {cluster} -t TableTopic -p 6",
            "update topic perm from 6 to 6 in {broker} success.",
        ),
        Row("updateTopicPerm -c {cluster} -t NoSuchTopic -p 6", "CODE: 17 "),
        Row("deleteTopic -c {cluster} -t TableTopic", "delete topic [TableTopic] from NameServer success."),
        Row("deleteTopic -c {cluster} -t NoSuchTopic", "delete topic [NoSuchTopic] from NameServer success."),
    ],
    "new_kinds_of_topics": [
        # They came with 5.4 and 5.5.
        Row(
            "updateTopic -b {broker} -t TablePriority -a +message.type=PRIORITY",
            "attributes={{+message.type=PRIORITY}}]",
        ),
        Row(
            "updateSubGroup -c {cluster} -g TablePriority --attributes +priority.factor=50",
            "create subscription group to {broker} success.",
        ),
        Row(
            "updateSubGroup -c {cluster} -g TablePriority --attributes +priority.factor=101",
            "value is not in range(0, 100)",
        ),
        Row("getConsumerConfig -g TablePriority", "priority.factor=50"),
        Row(
            "updateTopic -b {broker} -t TableLite -a +message.type=LITE",
            "CODE: 29 DESC: message.type=LITE needs a broker with enableLmq=true",
            "create topic to {broker} success.",
        ),
        # RocketMQ creates these, too, but its answer to the tool is an error.
        Row(
            "updateTopic -b {broker} -t TableBatch -a +queue.type=BatchCQ",
            "create topic to {broker} success.",
            "TableBatch",
        ),
        Row(
            "updateTopic -b {broker} -t TableCompacted -a +cleanup.policy=COMPACTION",
            "create topic to {broker} success.",
            "TableCompacted",
        ),
    ],
    "topic_lists": [
        Row(
            "updateTopicList -b {broker} -f {folder}/topics.json",
            "submit batch of topic config to {broker} success",
        ),
        Row(
            "updateTopicList -c {cluster} -f {folder}/topics.json",
            "submit batch of topic config to {broker} success",
        ),
        Row("topicRoute -t ListedTopic -l", "{{0={broker}}} 3 3 6"),
    ],
    "order": [
        Row("updateOrderConf -t TableOrder -m put -v {name}:4", "orderConf=[{name}:4]"),
        Row("updateOrderConf -t TableOrder -m get", "orderConf=[{name}:4]", "TableOrder"),
        Row("updateOrderConf -t TableOrder -m delete", "delete orderConf success. topic=[TableOrder]"),
    ],
    "static_topics": [
        Row("remappingStaticTopic -b {name} -t NoSuchStatic", "No topic route to do the remapping"),
    ],
    "groups": [
        Row(
            "updateSubGroup -c {cluster} -g TableGroup -s false -o true",
            "create subscription group to {broker} success.",
        ),
        Row("updateSubGroup -c {cluster} -g TableGroup --attributes +a=b", "unsupported key: a"),
        Row("getConsumerConfig -g TableGroup", "consumeMessageOrderly = true"),
        Row(
            "setConsumeMode -c {cluster} -t {topic} -g TableGroup -m POP -q 2",
            "consume mode[POP] popShareQueueNum[2]",
        ),
        Row("setConsumeMode -b {broker} -t {topic} -g TableGroup -m PULL", "consume mode[PULL]"),
        Row(
            "deleteSubGroup -c {cluster} -g TableGroup -r true",
            "delete subscription group [TableGroup] from broker [{broker}]",
        ),
        Row(
            "deleteSubGroup -b {broker} -g NoSuchGroup",
            "delete subscription group [NoSuchGroup] from broker [{broker}]",
        ),
    ],
    "group_lists": [
        Row(
            "updateSubGroupList -b {broker} -f {folder}/groups.json",
            "submit batch of group config to {broker} success",
        ),
        Row(
            "updateSubGroupList -c {cluster} -f {folder}/groups.json",
            "submit batch of subscription group config to {broker} success",
        ),
        Row("getConsumerConfig -g ListedGroup", "retryMaxTimes = 7"),
    ],
    "broker_settings": [
        Row("updateBrokerConfig -c {cluster} -k traceOn -v true", "update broker config success, {broker}"),
        Row(
            "updateBrokerConfig -c {cluster} -a true -k traceOn -v true",
            "update broker config success, {broker}",
        ),
        # RocketMQ takes any name and any text.
        Row(
            "updateBrokerConfig -b {broker} -k noSuchKey -v 1",
            "CODE: 1 DESC: unknown setting 'noSuchKey'",
            "update broker config success",
        ),
        Row(
            "updateBrokerConfig -b {broker} -k useEpollNativeSelector -v true",
            "update broker config success, {broker}",
        ),
        Row(
            "updateBrokerConfig -b {broker} -k fileReservedTime -v soon",
            "CODE: 1 DESC: setting fileReservedTime='soon' is not a whole number",
            "update broker config success",
        ),
        Row(
            "updateBrokerConfig -b {broker} -k brokerConfigPath -v x",
            "CODE: 16 DESC: Can not update config in black list.",
        ),
        Row("getBrokerConfig -c {cluster}", "storePathCommitLog ="),
    ],
    "name_server": [
        Row(
            "updateNamesrvConfig -k enableTopicList -v true", "update name server config success![{namesrv}]"
        ),
        Row(
            "updateNamesrvConfig -k useEpollNativeSelector -v true",
            "update name server config success![{namesrv}]",
        ),
        Row(
            "updateNamesrvConfig -k noSuchKey -v true",
            "CODE: 1 DESC: unknown setting 'noSuchKey'",
            "update name server config success",
        ),
        Row(
            "updateNamesrvConfig -k kvConfigPath -v x", "CODE: 16 DESC: Can not update config in black list."
        ),
        Row("deleteKvConfig -s NS -k noSuchKey", "delete kv config from namespace success."),
    ],
    "messages": [
        Row("queryMsgById -i {offset_id} -t {topic} -g {group} -d {client}", "consumeResult=CR_SUCCESS"),
        Row("queryMsgById -i {unique_id} -t {topic}", "OffsetID: {offset_id}"),
        Row("queryMsgById -i 7F00000100002A9F0000000000FFFFFF -t {topic}", "CODE: 208 "),
        Row("queryMsgByKey -t {topic} -k key-3 -m 1 -b {past} -e {future}", "@{topic}@K@key-3@"),
        # RocketMQ 5.5 indexes tags, too.
        Row("queryMsgByKey -t {topic} -k TagA -p T", "@{topic}@T@TagA@"),
        Row("queryMsgByKey -t {topic} -k no-such-tag -p T", "CODE: 208 "),
        Row("queryMsgByKey -t {topic} -k no-such-key", "CODE: 208 "),
        Row("queryMsgByUniqueKey -t {topic} -i {unique_id}", "Keys: [key-5]"),
        Row("queryMsgByUniqueKey -t {topic} -i {unique_id} -a", "Keys: [key-5]"),
        Row(
            "queryMsgByUniqueKey -t {topic} -i {unique_id} -g {group} -d {client}", "consumeResult=CR_SUCCESS"
        ),
        Row("queryMsgByOffset -t {topic} -b {name} -i 1 -o 0 -f UTF-8", "body-1"),
    ],
    "printed_messages": [
        Row("printMsg -t {topic} -d true -s TagA -b {past} -e {future}", "BODY: body-7"),
        Row("printMsgByQueue -t {topic} -a {name} -i 1 -f true", "Tag: TagA Count: 3"),
        Row("queryMsgTraceById -i NoSuchMessage", "QueryMsgTraceByIdSubCommand"),
        Row("consumeMessage -t {topic} -b {name} -i 1 -s {past} -e {now} -g TableReaders", "BODY: body-9"),
    ],
    "sending": [
        Row("updateTopic -b {broker} -t TableSends -r 4 -w 4", "create topic to {broker} success."),
        Row("checkMsgSendRT -t TableSends -a 3 -s 64", "Avg RT: "),
        Row("sendMsgStatus -b {name} -c 2", "sendStatus=SEND_OK"),
        Row("sendMessage -t TableSends -p hello -b {name} -i 2 -m true", "{name} 2 SEND_OK "),
    ],
    "clients": [
        Row("producer -b {broker}", "producer group ({producers}) instance : clientId="),
        Row("producerConnection -g NoSuchProducers -t {topic}", "CODE: 1 "),
        Row("consumerConnection -g {group} -b {broker}", "{client} "),
        Row("consumerStatus -g {group} -i {client}", "#Consumer MQ Detail#"),
        Row("consumerStatus -g NoSuchGroup", "CODE: "),
    ],
    "lags": [
        Row("brokerConsumeStats -b {broker} -o true -t 5000", "Diff Total: "),
        Row("consumerProgress -g {group} -t {topic} -c {cluster} -s true", "Consume Diff Total: "),
        Row("cloneGroupOffset -s {group} -d {clone} -t {topic} -o true", "clone group offset success."),
        Row("resetOffsetByTime -g {clone} -t {topic} -s 0", "{name} 3 0"),
        Row(
            "resetOffsetByTime -g {clone} -t {topic} -s 1700000000000 -b {broker} -q 1 -o 1",
            "reset consumer offset to 1",
        ),
        Row("resetOffsetByTime -g {clone} -t {topic} -s 2024-01-01#00:00:00:000", "{name} 0 0"),
        Row("skipAccumulatedMessage -g {clone} -t {topic} -f true", "{name} 3 2"),
        Row(
            "skipAccumulatedMessage -g NoSuchSkippers -t {topic}",
            "CODE: 26 DESC: Group NoSuchSkippers does not exist",
        ),
        Row("resetOffsetByTime -g {clone} -t NoSuchTopic -s now", "CODE: 17 "),
        Row("statsAll -a", "#Accumulation"),
    ],
    "queues": [
        Row("queryCq -t {topic} -q 1 -i 0 -c 1 -b {broker} -g {group}", '"subString":"TagA || TagB"'),
        Row("queryCq -t {topic} -q 1 -i 1 -g NoSuchGroup", "NoSuchGroup@{topic} is not online!"),
        Row("queryCq -t {topic} -q 77 -i 0 -b {broker}", "77@{topic} is not exist!"),
    ],
    "exports": [
        Row("exportMetadata -c {cluster} -f {folder}/all", "export {folder}/all/metadata.json success"),
        Row("exportMetadata -b {broker} -f {folder}/topics -t", "export {folder}/topics/topic.json success"),
        Row("exportConfigs -c {cluster} -f {folder}/configs", "export {folder}/configs/configs.json success"),
        Row("exportMetrics -c {cluster} -f {folder}/metrics", "export {folder}/metrics/metrics.json success"),
        Row("exportMetadataInRocksDB -p {folder}/none -t topics", "RocksDB path is invalid."),
        Row("exportPopRecord -b {broker} -d true", "Export broker records, brokerName={name}"),
        Row("rocksDBConfigToJson -c {cluster}", "broker export done."),
        Row("checkRocksdbCqWriteProgress -c {cluster} -t {topic}", _NO_RDB, "check doing"),
        Row("dumpCompactionLog -f {folder}/none", "not exist"),
    ],
    "replicas": [
        Row("haStatus -b {broker}", "#SlaveNum 0"),
        Row("resetMasterFlushOffset -b {broker} -o 0", "reset master flush offset to 0 success"),
        Row("getBrokerEpoch -b {name}", "CODE: 1 DESC: this request only for controllerMode"),
        Row("getSyncStateSet -a {namesrv} -b {name}", "CODE: 3 DESC: request type 1005 not supported"),
        Row("getControllerMetaData -a {namesrv}", "CODE: 3 DESC: request type 1005 not supported"),
        Row("getControllerConfig -a {namesrv}", "CODE: 3 DESC: request type 1010 not supported"),
        Row("updateControllerConfig -a {namesrv} -k a -v b", "CODE: 3 DESC: request type 1009 not supported"),
        Row(
            "electMaster -a {namesrv} -b 0 -bn {name} -c {cluster}",
            "CODE: 3 DESC: request type 1005 not supported",
        ),
        Row(
            "cleanBrokerMetadata -a {namesrv} -bn {name} -c {cluster} -l",
            "CODE: 3 DESC: request type 1005 not supported",
        ),
    ],
    "containers": [
        Row("addBroker -b {folder}/broker.conf -c {broker}", "CODE: 3 DESC: request type 902 not supported"),
        Row("removeBroker -b {cluster}:{name}:0 -c {broker}", "CODE: 3 DESC: request type 903 not supported"),
    ],
    "cold_reads": [
        Row("getColdDataFlowCtrInfo -b {broker}", '"globalColdReadThreshold":104857600'),
        Row(
            "updateColdDataFlowCtrGroupConfig -b {broker} -g {group} -v 1024",
            "updateColdDataFlowCtrGroupConfig success, {broker}",
        ),
        Row(
            "removeColdDataFlowCtrGroupConfig -b {broker} -g {group}",
            "remove broker cold read threshold success, {broker}",
        ),
        Row("setCommitLogReadAheadMode -b {broker} -m 0", "readahead mode success, mode: 0"),
    ],
    "rarer_options": [
        Row(
            "updateTopic -b {broker} -t TableUnits -r 2 -w 2 -o true -u true -s true",
            "create topic to {broker} success.",
        ),
        Row("topicRoute -t TableUnits", '"topicSysFlag":3'),
        Row(
            "updateSubGroup -b {broker} -g TableFlags -m false -d false -q 3 -i 0 -w 2 -a false",
            "create subscription group to {broker} success.",
        ),
        Row("getConsumerConfig -g TableFlags", "whichBrokerWhenConsumeSlowly = 2"),
        Row("cleanExpiredCQ -c {cluster}", "success"),
        Row("deleteExpiredCommitLog -c {cluster}", "success"),
        Row("setCommitLogReadAheadMode -c {cluster} -m 1", "readahead mode success, mode: 1"),
        Row("consumerStatus -g {group} -b {broker}", "{client}"),
    ],
    "users": [
        Row("createUser -b {broker} -u u1 -p p1", *_USERS),
        Row("updateUser -b {broker} -u u1 -p p2", *_USERS),
        Row("getUser -b {broker} -u u1", *_USERS),
        Row("listUser -c {cluster}", *_USERS),
        Row("copyUser -f {broker} -t {broker}", *_USERS),
        Row("deleteUser -b {broker} -u u1", *_USERS),
    ],
    "access_control": [
        Row("createAcl -b {broker} -s User:u1 -r Topic:* -a PUB -d ALLOW", *_ACL),
        Row("updateAcl -b {broker} -s User:u1 -r Topic:* -a SUB -d ALLOW", *_ACL),
        Row("getAcl -b {broker} -s User:u1", *_ACL),
        Row("listAcl -b {broker}", *_ACL),
        Row("copyAcl -f {broker} -t {broker}", *_ACL),
        Row("deleteAcl -b {broker} -s User:u1", *_ACL),
    ],
    "timers": [
        Row("switchTimerEngine -b {broker} -e F", "switchTimerEngine to FILE_TIME_WHEEL success, {broker}"),
        Row(
            "switchTimerEngine -b {broker} -e R", "CODE: 29 DESC: timerRocksDBEnable must be configured true"
        ),
    ],
    "lite_topics": [
        Row("getBrokerLiteInfo -b {broker}", "{broker} default"),
        Row("getParentTopicInfo -p {topic}", "Parent Topic Info: [{topic}]"),
        Row("getLiteTopicInfo -p {topic} -l lite", "Lite Topic Info: [{topic}] [lite]"),
        Row("getLiteClientInfo -p {topic} -g {group} -c {client}", "Lite Client Info: [{topic}] [{group}]"),
        Row("getLiteGroupInfo -p {topic} -g {group}", "Lite Group Info: [{group}] [{topic}]"),
        Row("triggerLiteDispatch -p {topic} -g {group} -b {name}", "{name} error"),
    ],
    "monitoring": [
        Row("startMonitoring", "", for_ms=1_000),
    ],
}

# Breaks RocketMQ's own tools: they cannot read its list of topics once there is a static one.
LAST = [
    Row(
        "updateStaticTopic -b {name} -qn 2 -t TableStatic",
        "The new mapping data is written to file",
    ),
]
