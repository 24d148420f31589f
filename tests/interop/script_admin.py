"""Chapters about administration of brokers, and about name servers."""

import json
from collections.abc import Callable

from mqspark.protocol import fastjson
from tests.interop.differential import Play
from tests.interop.script_consuming import QUERY_OFFSET, UPDATE_OFFSET
from tests.interop.script_groups import HEARTBEAT, consumer_data, heartbeat
from tests.interop.script_messages import (
    CREATE_GROUP,
    CREATE_TOPIC,
    DELETE_TOPIC,
    create_group,
    create_topic,
    pull_fields,
    send,
    settled,
)
from tests.support.remoting import topic_fields
from tests.support.storefiles import topic_config

TOPIC_CONFIG, GROUP_CONFIG = 351, 352


def topics(play: Play) -> None:
    topic = play.name("Topic")
    base: dict[str, object] = {**topic_fields(topic, 2), "writeQueueNums": 3}
    play.ask("config of nothing", TOPIC_CONFIG, topic=topic)
    play.ask("create", CREATE_TOPIC, **base)
    play.ask("config", TOPIC_CONFIG, topic=topic)
    play.ask("create the same again", CREATE_TOPIC, **base)
    changed = {"readQueueNums": 8, "perm": 4, "order": True, "topicSysFlag": 3}
    play.ask("change", CREATE_TOPIC, **(base | changed))
    play.ask("config after it", TOPIC_CONFIG, topic=topic)
    for label, fields in {
        "no queues": {"readQueueNums": 0, "writeQueueNums": 0},
        "negative queues": {"readQueueNums": -1},
        "many queues": {"readQueueNums": 1025, "writeQueueNums": 1025},
        "permission 99": {"perm": 99},
        "permission -1": {"perm": -1},
        "filter type x": {"topicFilterType": "x"},
        "multi tag": {"topicFilterType": "MULTI_TAG"},
        "no system flag": {"topicSysFlag": None},
        "illegal name": {"topic": "a b"},
        "no name": {"topic": None},
        "system topic": {"topic": "SCHEDULE_TOPIC_XXXX"},
        "long name": {"topic": "L" * 128},
        "longest name": {"topic": play.name("M" * (127 - len(play.name(""))))},
        "attribute": {"attributes": "+message.type=FIFO"},
        "wrong attribute": {"attributes": "+no.such=1"},
        "wrong attribute value": {"attributes": "+message.type=X"},
        "attribute of another": {"topic": play.name("Bcq"), "attributes": "+queue.type=BatchCQ"},
        "not a new attribute": {"topic": play.name("Bcq"), "attributes": "queue.type=BatchCQ"},
        "unchangeable attribute": {"topic": play.name("Bcq"), "attributes": "+queue.type=SimpleCQ"},
        "removed attribute": {"attributes": "-message.type"},
        "retry topic": {"topic": play.name("%RETRY%someone")},
    }.items():
        own = {"topic": play.name(f"T-{label}".replace(" ", "-").replace("'", ""))}
        play.ask(f"create: {label}", CREATE_TOPIC, **(base | own | fields))
        if (name := (base | own | fields)["topic"]) is not None:
            play.ask(f"config: {label}", TOPIC_CONFIG, topic=name)
    for label, attributes in {
        "one that it has not": "-message.type",
        "one that it cannot have changed": "-queue.type",
        "the queue type that it has": "+queue.type=SimpleCQ",
        "the policy that it has": "+cleanup.policy=DELETE",
        "below the range": "+reserve.time=-2",
        "a type": "+message.type=NORMAL",
        "a type again": "+message.type=NORMAL",
        "no type": "-message.type",
    }.items():
        play.ask(f"attributes afterwards: {label}", CREATE_TOPIC, **base, attributes=attributes)
    play.ask("config after attributes", TOPIC_CONFIG, topic=topic)
    play.ask("stats of nothing", 202, topic=play.name("Nowhere"))
    play.ask("stats of an empty topic", 202, topic=create_topic(play, "Empty", 2))
    full = create_topic(play, "Full", 1)
    send(play, "a message", full)
    settled(play, full)
    play.ask("stats of a full one", 202, topic=full)
    play.ask("delete", DELETE_TOPIC, topic=full)
    play.ask("delete again", DELETE_TOPIC, topic=full)
    play.ask("delete nothing", DELETE_TOPIC, topic="")
    play.ask("delete a system topic", DELETE_TOPIC, topic="SCHEDULE_TOPIC_XXXX")
    play.ask("config of the deleted", TOPIC_CONFIG, topic=full)
    send(play, "to the deleted", full, defaultTopic="none")
    listed = [
        {"topicName": play.name(f"L{n}"), "readQueueNums": n, "writeQueueNums": n, "perm": 6} for n in (1, 2)
    ]
    play.ask("create a list", 18, json.dumps({"topicConfigList": listed}).encode())
    for number in (1, 2):
        play.ask(f"of the list: {number}", TOPIC_CONFIG, topic=play.name(f"L{number}"))
    play.ask("create an empty list", 18, b'{"topicConfigList":[]}')
    play.ask("create a broken list", 18, b"x")
    reply = play.quietly(21)
    table = fastjson.loads(reply.body)  # numbers are keys in it once there is a static topic
    play.fact("all topics", sorted(name for name in table["topicConfigTable"] if play.suffix in name))
    play.fact("fields of all topics", sorted(table))


def groups_of(play: Play) -> None:
    topic, group = create_topic(play, "Consumed", 2), play.name("group")

    def create(label: str, **fields: object) -> None:
        play.ask(f"create: {label}", CREATE_GROUP, json.dumps({"groupName": group} | fields).encode())

    play.ask("config of nothing", GROUP_CONFIG, group=group)
    create("defaults")
    play.ask("config", GROUP_CONFIG, group=group)
    create(
        "all fields", consumeEnable=False, consumeBroadcastEnable=False, consumeMessageOrderly=True, retryMaxTimes=3,
        retryQueueNums=2, brokerId=1, whichBrokerWhenConsumeSlowly=2, notifyConsumerIdsChangedEnable=False,
        groupSysFlag=1, consumeTimeoutMinute=5,
    )  # fmt: skip
    play.ask("config after it", GROUP_CONFIG, group=group)
    create("illegal name", groupName="a b")
    create("no name", groupName=None)
    create("empty name", groupName="")
    create("long name", groupName=play.name("g" * 260))
    create("name of 200", groupName=play.name("g" * 190))
    create("attribute", groupName=play.name("attributed"), attributes={"+priority": "1"})
    create("negative retries", groupName=play.name("negative"), retryMaxTimes=-1, retryQueueNums=-1)
    play.ask("config of negative retries", GROUP_CONFIG, group=play.name("negative"))
    for label, body in {"nothing": b"", "no json": b"x", "a list": b"[]", "empty object": b"{}"}.items():
        play.ask(f"create: {label}", CREATE_GROUP, body)
    listed = [{"groupName": play.name(name)} for name in ("g1", "g2")]
    play.ask("list of groups", 225, json.dumps({"groupConfigList": listed}).encode())
    play.ask("of the list", GROUP_CONFIG, group=play.name("g2"))
    group = create_group(play, "eaters")
    for number in range(3):
        send(play, f"message {number}", topic, b"%d" % number)
    settled(play, topic)
    progress = play.asking(QUERY_OFFSET, consumerGroup=group, topic=topic, queueId=0)
    play.ask("stats of no progress", 208, consumerGroup=group, topic=topic)
    play.quietly(UPDATE_OFFSET, consumerGroup=group, topic=topic, queueId=0, commitOffset=2)
    for label, fields in {
        "of a topic": {"topic": topic},
        "of all": {},
        "of an unknown topic": {"topic": play.name("Nowhere")},
        "of a stranger": {"consumerGroup": play.name("noone")},
    }.items():
        play.ask(f"stats {label}", 208, **({"consumerGroup": group} | fields))
    play.ask("time span", 303, topic=topic, group=group)
    play.ask("time span of a stranger", 303, topic=topic, group=play.name("noone"))
    play.ask("time span of nothing", 303, topic=play.name("Nowhere"), group=group)
    play.ask("who consumes", 300, topic=topic)
    play.ask("who consumes nothing", 300, topic=play.name("Nowhere"))
    play.ask("topics of the group", 343, group=group)
    play.ask("correction", 308, compareGroup=group, topic=topic, filterGroups="")
    play.ask("queue entries", 321, topic=topic, queueId=0, index=0, count=2, consumerGroup=group)
    play.ask("queue entries of nothing", 321, topic=play.name("Nowhere"), queueId=0, index=0, count=2)
    play.ask("queue entries beyond", 321, topic=topic, queueId=0, index=99, count=2)
    other = create_group(play, "copycats")
    play.ask("clone offsets", 314, srcGroup=group, destGroup=other, topic=topic, offline=False)
    progress("offset of the clone", consumerGroup=other)
    for label, fields in {
        "of a queue": {"queueId": 0, "offset": 1},
        "of the same queue by time": {"queueId": 0, "timestamp": 0},
        "of all queues": {"queueId": -1},
        "beyond the end": {"queueId": 0, "offset": 99},
        "unknown topic": {"topic": play.name("Nowhere")},
        "unknown group": {"group": play.name("noone")},
        "negative": {"queueId": 0, "offset": -5},
        "queue 9": {"queueId": 9, "offset": 0},
    }.items():
        ext = {"topic": topic, "group": group, "queueId": -1, "timestamp": -1, "isForce": True} | fields
        play.ask(f"reset {label}", 222, **ext)
        progress(f"offset after reset {label}")
    play.ask("reset takes force with the next pull", 11, **pull_fields(group, topic, queueOffset=2))
    play.ask("status without consumers", 223, topic=topic, group=group)
    play.ask("status, unknown topic", 223, topic=play.name("Nowhere"), group=group)
    play.ask("direct consumption without consumers", 309, consumerGroup=group, clientId="c", msgId="x" * 32)
    play.ask("forbid", 353, group=group, topic=topic, readable=False)
    play.ask("a forbidden pull", 11, **pull_fields(group, topic))
    play.ask("allow", 353, group=group, topic=topic, readable=True)
    play.ask("an allowed pull", 11, **pull_fields(group, topic, maxMsgNums=1))
    play.ask("forbid unknown topic", 353, group=group, topic=play.name("Nowhere"), readable=False)
    broadcast = create_group(play, "nobroadcast", consumeBroadcastEnable=False)
    consumer = consumer_data(broadcast, topic, messageModel="BROADCASTING")
    play.ask("broadcaster", HEARTBEAT, heartbeat("b1", consumers=[consumer]), on="b")
    play.ask("forbidden broadcast", 11, on="b", **pull_fields(broadcast, topic, sysFlag=0, subVersion=1))
    play.ask("delete", 207, groupName=group, cleanOffset=True)
    play.ask("delete again", 207, groupName=group, cleanOffset=True)
    play.ask("config of the deleted", GROUP_CONFIG, group=group)
    progress("offset of the deleted", setZeroIfNotFound=False)
    broker = {"brokerName": "diff", "brokerAddr": "a", "clusterName": "c", "brokerId": 0}
    for code in (26, 28, 43, 201, 305, 311, 312, 313, 315, 317, 328, 402, 45, 60, 61, 907, 322):
        reply = play.quietly(code, statsName="TOPIC_PUT_NUMS", statsKey="none", isOrder="false", **broker)
        play.fact(f"code {code}", (reply.code, bool(reply.body)))
    for label, body in {
        "": b"defaultTopicQueueNums=8\n",
        "nothing": b"",
        "no number": b"defaultTopicQueueNums=x\n",
        "unknown key": b"noSuchKey=1\n",
        "blacklisted": b"brokerConfigPath=/tmp/x\n",
    }.items():
        play.ask(f"change settings {label}", 25, body)


def namesrv(play: Play) -> None:
    def ask(label: str, code: int, body: bytes = b"", **ext: object) -> None:
        play.connection("ns", play.cluster.namesrv)
        play.ask(label, code, body, on="ns", **ext)

    name, cluster = play.name("fake"), play.name("fakes")
    routed, version = play.name("Routed"), {"counter": 1, "timestamp": 1_690_000_000_000, "stateVersion": 0}
    config = topic_config(routed, 2, writeQueueNums=3)
    topics = {"dataVersion": version, "topicConfigTable": {routed: config}}
    wrapper = json.dumps({"topicConfigSerializeWrapper": topics, "filterServerList": []}).encode()
    identity = {"brokerName": name, "brokerAddr": "10.0.0.1:1000", "clusterName": cluster, "brokerId": 0}
    slave = identity | {"brokerId": 1, "brokerAddr": "10.0.0.2:1000"}

    def register(label: str, body: bytes = wrapper, **fields: object) -> None:
        usual = {"haServerAddr": "", "compressed": False, "bodyCrc32": 0, **identity}
        ask(label, 103, body, **(usual | fields))

    ask("route of nothing", 105, topic=routed)
    register("register", haServerAddr="10.0.0.1:1001")
    ask("route", 105, topic=routed)
    ask("route, standard json", 105, topic=routed, acceptStandardJsonOnly=True)
    register("register a slave", haServerAddr="10.0.0.2:1001", **slave)
    ask("route with a slave", 105, topic=routed)
    for label, counter in {"the same": 1, "another": 2}.items():
        ask(f"data version, {label}", 322, json.dumps(version | {"counter": counter}).encode(), **identity)
    ask("members", 901, brokerName=name, clusterName=cluster)
    ask("members of nobody", 901, brokerName=play.name("x"), clusterName=cluster)
    ask("topics of the cluster", 224, cluster=cluster)
    ask("topics of no cluster", 224, cluster=play.name("x"))
    ask("wipe the write permission", 205, brokerName=name)
    ask("route without it", 105, topic=routed)
    ask("give it back", 327, brokerName=name)
    ask("wipe of nobody", 205, brokerName=play.name("x"))
    ask("put", 100, namespace=play.name("space"), key="k", value="v")
    ask("get", 101, namespace=play.name("space"), key="k")
    ask("get what is not there", 101, namespace=play.name("space"), key="x")
    ask("list", 219, namespace=play.name("space"))
    ask("list of nothing", 219, namespace=play.name("nothing"))
    ask("delete", 102, namespace=play.name("space"), key="k")
    ask("delete again", 102, namespace=play.name("space"), key="k")
    ask("get the deleted", 101, namespace=play.name("space"), key="k")
    register("register with a wrong sum", bodyCrc32=5)
    register("register without a name", brokerName=None, brokerAddr="a:1")
    register("register a broken body", b"x")
    queues = {"brokerName": name, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6, "topicSysFlag": 0}
    ask("register a topic", 217, json.dumps({"queueDatas": [queues]}).encode(), topic=play.name("Later"))
    ask("route of it", 105, topic=play.name("Later"))
    ask("delete a topic", 216, topic=play.name("Later"))
    ask("route of the deleted", 105, topic=play.name("Later"))
    ask("delete in a cluster", 216, topic=routed, clusterName=cluster)
    ask("delete what is not there", 216, topic=play.name("x"))
    ask("unregister the slave", 104, **slave)
    ask("unregister", 104, **identity)
    ask("unregister again", 104, **identity)
    ask("an unknown code", 9999)
    ask("a broker's code", 310)
    ask("route without a topic", 105)
    ask("route of an empty topic", 105, topic="")
    ask("settings", 318, b"noSuchKey=1\n")


CHAPTERS: dict[str, Callable[[Play], None]] = {
    "topics": topics,
    "consumer groups": groups_of,
    "name server": namesrv,
}
