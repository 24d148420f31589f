"""The unmodified mqadmin 5.5.0 against our name server and broker: what it prints, not only that it ends.

(slow) The same against a real RocketMQ, whose output the expectations were taken from.

A command takes up to 3 s, most of which its client waits in its shutdown. So all stories, and all chains of the table
in ``mqadmin_table``, are told side by side, and the tests only look at how they ended.
"""

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.interop.driver import JavaDriver, message
from tests.interop.mqadmin_table import CHAINS, LAST, Row
from tests.interop.topics import QUEUES, create_group, create_topic, max_offset
from tests.support.clusters import Cluster
from tests.support.remoting import QUERY_CONSUMER_OFFSET, ask
from tests.support.waiting import eventually

pytestmark = pytest.mark.parametrize("java", ["JSON"], ids=["json"], indirect=True)

TOPIC, GROUP, PRODUCERS = "AdminTopic", "AdminGroup", "AdminProducers"
CLONE_GROUP = "AdminCloneGroup"
MESSAGES = 10
AT_ONCE = 24
HEARTBEAT_TIMEOUT_S = 90


@dataclass(frozen=True, slots=True)
class Scene:
    """A topic with ten messages, the group that consumed them, both clients still connected."""

    java: JavaDriver
    cluster: Cluster
    sent: list[dict[str, Any]]
    producer_id: str
    consumer_id: str
    folder: Path

    def mqadmin(self, *arguments: str, for_ms: int = 0) -> tuple[str, str]:
        """What the command printed and what it complained of; after ``for_ms`` it is interrupted."""
        words = [*arguments, "-n", self.cluster.namesrv]
        while True:
            result = self.java.call("mqadmin", arguments=words, for_ms=for_ms)
            # Commands name their client after the millisecond: of two that begin in the same one, one does not start.
            if "has created already" not in result["err"]:
                return result["out"], result["err"]

    def admin(self, *arguments: str) -> str:
        printed, complaint = self.mqadmin(*arguments)
        assert "Exception" not in complaint, f"mqadmin {' '.join(arguments)}:\n{complaint}\n{printed}"
        return printed

    def refused(self, *arguments: str) -> str:
        """What the command complained of."""
        printed, complaint = self.mqadmin(*arguments)
        assert "Exception" in complaint, (printed, complaint)
        return complaint

    def rows(self, *arguments: str) -> list[list[str]]:
        """The printed table's rows without its `#` header lines, split at white space."""
        return [
            line.split() for line in self.admin(*arguments).splitlines() if line.strip() and line[0] != "#"
        ]

    def route(self, topic: str) -> dict[str, Any]:
        printed = self.admin("topicRoute", "-t", topic)
        route: dict[str, Any] = json.loads(re.sub(r"([{,]\s*)(\d+):", r'\1"\2":', printed))
        return route


Story = Callable[[Scene], None]
STORIES: dict[str, Story] = {}
Told = Mapping[str, "Future[None]"]


def story(function: Story) -> Story:
    STORIES[function.__name__] = function
    return function


@pytest.fixture(scope="module")
def scene(java: JavaDriver, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    create_topic(cluster, TOPIC)
    create_group(cluster, CLONE_GROUP)
    producer = java.call("producer.start", namesrv=cluster.namesrv, group=PRODUCERS)
    sent = [
        java.call(
            "producer.send",
            handle=producer["handle"],
            mode="sync",
            queue=[TOPIC, cluster.broker_name, number % QUEUES],
            message=message(TOPIC, b"body-%d" % number, tags="TagA", keys=f"key-{number}"),
        )
        for number in range(MESSAGES)
    ]
    consumer = java.call(
        "push.start", namesrv=cluster.namesrv, topic=TOPIC, group=GROUP, model="CLUSTERING",
        expression="TagA || TagB", **{"from": "CONSUME_FROM_FIRST_OFFSET"},
    )  # fmt: skip
    received = java.call("push.take", handle=consumer["handle"], count=MESSAGES, timeout_ms=20_000)
    assert len(received) == MESSAGES
    folder = tmp_path_factory.mktemp("mqadmin")
    (folder / "topics.json").write_text(
        '[{"topicName": "ListedTopic", "readQueueNums": 3, "writeQueueNums": 3}]'
    )
    (folder / "groups.json").write_text('[{"groupName": "ListedGroup", "retryMaxTimes": 7}]')
    scene = Scene(java, cluster, sent, producer["client_id"], consumer["client_id"], folder)
    scene.admin("clusterList")  # loads the classes that all commands need
    yield scene
    java.call("push.stop", handle=consumer["handle"])
    java.call("producer.stop", handle=producer["handle"])


def commits_are_known(scene: Scene) -> None:
    """Wait until the consumer has told the broker that it consumed everything; it first does after ten seconds."""

    def committed(queue_id: int) -> int:
        reply = ask(
            scene.cluster.broker, QUERY_CONSUMER_OFFSET, consumerGroup=GROUP, topic=TOPIC, queueId=queue_id
        )
        return int(reply.ext["offset"]) if reply.code == 0 else -1

    ends = [max_offset(scene.cluster, TOPIC, queue_id) for queue_id in range(QUEUES)]
    eventually(
        lambda: [committed(queue_id) for queue_id in range(QUEUES)] == ends, "the offsets are committed"
    )


# ---- cluster and broker


@story
def cluster_list(scene: Scene) -> None:
    cluster = scene.cluster
    (row,) = scene.rows("clusterList")
    assert row[:5] == [cluster.cluster_name, cluster.broker_name, "0", cluster.broker, "V5_5_1"]
    assert row[-1] == "true"
    (row,) = scene.rows("clusterList", "-m")
    assert row[:2] == [cluster.cluster_name, cluster.broker_name]
    assert [int(number) for number in row[2:4]] == [0, 0]
    assert int(row[4]) >= MESSAGES


@story
def broker_status(scene: Scene) -> None:
    printed = scene.admin("brokerStatus", "-b", scene.cluster.broker)
    values = dict(re.split(r"\s*: ", line, maxsplit=1) for line in printed.splitlines() if ": " in line)
    assert values["brokerVersionDesc"] == "V5_5_1"
    assert values["brokerActive"] == "true"
    assert int(values["msgPutTotalTodayNow"]) >= MESSAGES
    assert int(values["commitLogMaxOffset"]) > int(values["commitLogMinOffset"]) == 0
    assert 0 <= float(values["commitLogDiskRatio"]) <= 1
    assert int(values["bootTimestamp"]) <= time.time() * 1000
    assert values["dispatchBehindBytes"] == "0"
    by_cluster = scene.admin("brokerStatus", "-c", scene.cluster.cluster_name)
    assert f"{scene.cluster.broker}" in by_cluster
    assert "commitLogMaxOffset" in by_cluster


CHANGED_MEANWHILE = {
    "noSuchKey",
    "traceOn",
    "useEpollNativeSelector",
    "fileReservedTime",
    "timerRocksDBStopScan",
    "dataReadAheadEnable",
}
"""Settings of the broker that the chains of ``mqadmin_table`` change side by side with the stories."""


@story
def broker_config_is_shown_and_changed(scene: Scene) -> None:
    broker = scene.cluster.broker

    def config() -> dict[str, str]:
        printed = scene.admin("getBrokerConfig", "-b", broker)
        return dict(re.split(r"\s*=  ", line, maxsplit=1) for line in printed.splitlines() if "=  " in line)

    before = config()
    assert before["brokerName"] == scene.cluster.broker_name
    assert before["brokerClusterName"] == scene.cluster.cluster_name
    assert before["listenPort"] == broker.rpartition(":")[2]
    assert before["flushDiskType"] == "ASYNC_FLUSH"
    assert before["storeReplyMessageEnable"] == "true"  # no other story replies meanwhile
    update = ["updateBrokerConfig", "-b", broker, "-k", "storeReplyMessageEnable", "-v"]
    assert f"update broker config success, {broker}" in scene.admin(*update, "false")
    assert config()["storeReplyMessageEnable"] == "false"
    scene.admin(*update, "true")
    after = config()
    changed = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
    assert changed <= CHANGED_MEANWHILE
    complaint = scene.refused("updateBrokerConfig", "-b", broker, "-k", "brokerConfigPath", "-v", "elsewhere")
    assert "CODE: 16" in complaint


@story
def housekeeping(scene: Scene) -> None:
    for command in ("cleanUnusedTopic", "cleanExpiredCQ", "deleteExpiredCommitLog"):
        assert scene.admin(command, "-b", scene.cluster.broker).strip() == "success"
    assert max_offset(scene.cluster, TOPIC, 0) > 0


# ---- topics


@story
def topic_list(scene: Scene) -> None:
    topics = scene.admin("topicList").split()
    assert {TOPIC, f"%RETRY%{GROUP}"} <= set(topics)
    rows = scene.rows("topicList", "-c")
    assert [scene.cluster.cluster_name, TOPIC, GROUP] in rows


@story
def topic_route(scene: Scene) -> None:
    route = scene.route(TOPIC)
    name, broker = scene.cluster.broker_name, scene.cluster.broker
    (broker_data,) = route["brokerDatas"]
    assert broker_data["brokerAddrs"] == {"0": broker}
    assert (broker_data["brokerName"], broker_data["cluster"]) == (name, scene.cluster.cluster_name)
    (queue_data,) = route["queueDatas"]
    assert queue_data == {
        "brokerName": name, "perm": 6, "readQueueNums": QUEUES, "topicSysFlag": 0, "writeQueueNums": QUEUES,
    }  # fmt: skip
    assert scene.rows("topicClusterList", "-t", TOPIC) == [[scene.cluster.cluster_name]]


@story
def topic_status(scene: Scene) -> None:
    rows = [row for row in scene.rows("topicStatus", "-t", TOPIC) if row[0] == scene.cluster.broker_name]
    assert [(int(row[1]), int(row[2]), int(row[3])) for row in rows] == [
        (queue_id, 0, max_offset(scene.cluster, TOPIC, queue_id)) for queue_id in range(QUEUES)
    ]
    assert all(row[4].startswith("20") for row in rows), rows


def until_routed(scene: Scene, topic: str, **wanted: int) -> None:
    """Wait until the name server knows the change: RocketMQ's broker tells it after it has answered."""

    def routed() -> dict[str, Any]:
        (queue_data,) = scene.route(topic)["queueDatas"]
        return {name: queue_data[name] for name in wanted}

    eventually(lambda: routed() == wanted, lambda: f"{routed()} to become {wanted}")


@story
def a_topic_is_created_changed_and_deleted(scene: Scene) -> None:
    cluster, topic = scene.cluster, "AdminCreated"
    printed = scene.admin("updateTopic", "-c", cluster.cluster_name, "-t", topic, "-r", "6", "-w", "5")
    assert f"create topic to {cluster.broker} success." in printed
    until_routed(scene, topic, readQueueNums=6, writeQueueNums=5, perm=6)

    printed = scene.admin("updateTopicPerm", "-b", cluster.broker, "-t", topic, "-p", "4")
    assert f"update topic perm from 6 to 4 in {cluster.broker} success." in printed
    until_routed(scene, topic, readQueueNums=6, perm=4)

    printed = scene.admin("updateTopic", "-b", cluster.broker, "-t", topic, "-r", "2", "-w", "2")
    assert f"create topic to {cluster.broker} success." in printed
    until_routed(scene, topic, readQueueNums=2, perm=6)

    printed = scene.admin("deleteTopic", "-c", cluster.cluster_name, "-t", topic)
    assert f"delete topic [{topic}] from cluster [{cluster.cluster_name}] success." in printed
    assert f"delete topic [{topic}] from NameServer success." in printed
    assert "CODE: 17" in scene.refused("topicRoute", "-t", topic)
    assert topic not in scene.admin("topicList").split()


@story
def an_order_topic_is_written_to_the_kv_table(scene: Scene) -> None:
    topic, name = "AdminOrdered", scene.cluster.broker_name
    # It complains of the missing old entry before it writes the new one.
    command = ["updateTopic", "-b", scene.cluster.broker, "-t", topic, "-r", "2", "-w", "2", "-o", "true"]
    scene.mqadmin(*command)
    printed = scene.admin("updateOrderConf", "-t", topic, "-m", "get")
    assert f"orderConf=[{name}:2]" in printed


@story
def allocation_preview(scene: Scene) -> None:
    result = json.loads(scene.admin("allocateMQ", "-t", TOPIC, "-i", "ip1,ip2"))["result"]
    assert {address: len(queues) for address, queues in result.items()} == {"ip1": 2, "ip2": 2}


# ---- groups and clients


@story
def a_group_is_created_shown_and_deleted(scene: Scene) -> None:
    broker, group = scene.cluster.broker, "AdminMadeGroup"
    printed = scene.admin("updateSubGroup", "-b", broker, "-g", group, "-r", "5", "-q", "2")
    assert f"create subscription group to {broker} success." in printed

    def shown() -> dict[str, str]:
        table = scene.admin("getConsumerConfig", "-g", group)
        return dict(re.split(r"\s*=  ", line, maxsplit=1) for line in table.splitlines() if "=  " in line)

    config = shown()
    assert (config["groupName"], config["retryMaxTimes"], config["retryQueueNums"]) == (group, "5", "2")
    assert (config["consumeEnable"], config["consumeTimeoutMinute"]) == ("true", "15")
    scene.mqadmin("deleteSubGroup", "-c", scene.cluster.cluster_name, "-g", group)
    # A real broker makes it anew when asked for it, with the defaults; ours says that there is none.
    assert shown().get("retryMaxTimes") in {None, "16"}


@story
def consumer_progress(scene: Scene) -> None:
    def mine() -> list[list[str]]:
        return [row for row in scene.rows("consumerProgress", "-g", GROUP) if row[0] == TOPIC]

    commits_are_known(scene)
    rows = mine()
    assert [row[5] for row in rows] == ["0"] * QUEUES
    assert [row[1] for row in rows] == [scene.cluster.broker_name] * QUEUES
    assert [(int(row[2]), int(row[3])) for row in rows] == [
        (queue_id, max_offset(scene.cluster, TOPIC, queue_id)) for queue_id in range(QUEUES)
    ]
    assert [row[4] for row in rows] == [row[3] for row in rows]
    printed = scene.admin("consumerProgress", "-g", GROUP)
    assert "Consume Diff Total: 0" in printed
    (row,) = [row for row in scene.rows("consumerProgress") if row[0] == GROUP]
    assert row[1:5] == ["1", "V5_5_0", "PUSH", "CLUSTERING"]
    assert row[6] == "0"


@story
def lag_by_broker_and_offset_reset(scene: Scene) -> None:
    topic, group = create_topic(scene.cluster, "AdminReset"), create_group(scene.cluster, "AdminResetGroup")
    producer = scene.java.call("producer.start", namesrv=scene.cluster.namesrv, group="AdminResetProducers")
    queue = [topic, scene.cluster.broker_name, 0]
    for number in range(5):
        scene.java.call(
            "producer.send",
            handle=producer["handle"],
            mode="sync",
            queue=queue,
            message=message(topic, b"%d" % number),
        )
    puller = scene.java.call("pull.start", namesrv=scene.cluster.namesrv, group=group)["handle"]
    scene.java.call("pull.do", handle=puller, verb="update_offset", queue=queue, offset=2)

    def lag() -> list[str]:
        rows = scene.rows("brokerConsumeStats", "-b", scene.cluster.broker)
        return next((row[4:7] for row in rows if row[:2] == [topic, group] and row[3] == "0"), [])

    eventually(lambda: lag() == ["5", "2", "3"], "three messages behind")
    reset = ["resetOffsetByTime", "-g", group, "-t", topic, "-s"]
    rows = scene.rows(*reset, "-1")
    assert [scene.cluster.broker_name, "0", "5"] in rows
    assert scene.java.call("pull.do", handle=puller, verb="fetch_offset", queue=queue) == 5
    scene.java.call("pull.stop", handle=puller)
    scene.java.call("producer.stop", handle=producer["handle"])


@story
def consumer_connection(scene: Scene) -> None:
    eventually(lambda: scene.consumer_id in "".join(scene.mqadmin("consumerConnection", "-g", GROUP)))
    printed = scene.admin("consumerConnection", "-g", GROUP)
    rows = [line.split() for line in printed.splitlines()]
    (client,) = [row for row in rows if row and row[0] == scene.consumer_id]
    assert client[2:] == ["JAVA", "V5_5_0"]
    assert client[1].startswith("127.0.0.1:")
    assert [TOPIC, "TagA", "||", "TagB"] in rows
    assert [f"%RETRY%{GROUP}", "*"] in rows
    assert "ConsumeType: CONSUME_PASSIVELY" in printed
    assert "MessageModel: CLUSTERING" in printed
    assert "ConsumeFromWhere: CONSUME_FROM_FIRST_OFFSET" in printed
    assert "No topic route info" in scene.refused("consumerConnection", "-g", "NobodyKnowsIt")


@story
def producer_connection(scene: Scene) -> None:
    (row,) = scene.rows("producerConnection", "-g", PRODUCERS, "-t", TOPIC)
    assert row[1] == scene.producer_id
    assert row[2].startswith("127.0.0.1:")
    assert row[3:] == ["JAVA", "V5_5_0"]


# ---- messages


@story
def a_message_is_sent_and_consumed(scene: Scene) -> None:
    cluster, topic = scene.cluster, create_topic(scene.cluster, "AdminMessages")
    group = create_group(cluster, "AdminReaders")
    (row,) = scene.rows("sendMessage", "-t", topic, "-p", "hello", "-k", "K1", "-c", "TagX", "-b",
                        cluster.broker_name, "-i", "2")  # fmt: skip
    assert row[:3] == [cluster.broker_name, "2", "SEND_OK"]
    printed = scene.admin("consumeMessage", "-t", topic, "-b", cluster.broker_name, "-i", "2", "-o", "0",
                          "-c", "1", "-g", group)  # fmt: skip
    assert f"MSGID: {row[3]}" in printed
    assert "BODY: hello" in printed


@story
def a_message_is_found_by_its_place_and_by_its_id(scene: Scene) -> None:
    commits_are_known(scene)
    sent = scene.sent[5]
    queue_id, offset = sent["queue"][2], sent["queue_offset"]
    for arguments in [
        ["queryMsgByOffset", "-b", scene.cluster.broker_name, "-i", str(queue_id), "-o", str(offset)],
        ["queryMsgById", "-i", sent["offset_msg_id"]],
    ]:
        printed = scene.admin(*arguments, "-t", TOPIC)
        shown = dict(
            re.split(r":\s+", line, maxsplit=1) for line in printed.splitlines() if re.search(r":\s", line)
        )
        assert shown["OffsetID"] == sent["offset_msg_id"]
        assert (shown["Tags"], shown["Keys"]) == ("[TagA]", "[key-5]")
        assert (shown["Queue ID"], shown["Queue Offset"]) == (str(queue_id), str(offset))
        assert shown["Store Host"] == scene.cluster.broker
        assert f"UNIQ_KEY={sent['msg_id']}" in shown["Properties"]
        assert f"MessageTrack [consumerGroup={GROUP}, trackType=CONSUMED" in printed


@story
def queue_entries_are_shown(scene: Scene) -> None:
    printed = scene.admin("queryCq", "-t", TOPIC, "-q", "1", "-i", "0", "-c", "2", "-b", scene.cluster.broker)
    assert f"max: {max_offset(scene.cluster, TOPIC, 1)}, min: 0" in printed
    entries = re.findall(r"physicOffset=(\d+), physicSize=(\d+), tagsCode=(-?\d+)", printed)
    # CommitLog offsets are in the broker's ids of the messages; 2598919 is the hash code of "TagA".
    offsets = [int(sent["offset_msg_id"][-16:], 16) for sent in scene.sent if sent["queue"][2] == 1][:2]
    assert [(int(offset), tags) for offset, _, tags in entries] == [(offset, "2598919") for offset in offsets]


@story
def messages_are_printed_from_a_queue(scene: Scene) -> None:
    printed = scene.admin("printMsgByQueue", "-t", TOPIC, "-a", scene.cluster.broker_name, "-i", "1", "-p",
                          "true", "-d", "true")  # fmt: skip
    bodies = re.findall(r"BODY: (\S+)", printed)
    assert bodies == [f"body-{number}" for number in range(MESSAGES) if number % QUEUES == 1]


# ---- name server


@story
def kv_config(scene: Scene) -> None:
    printed = scene.admin("updateKvConfig", "-s", "NS", "-k", "key-1", "-v", "value-1")
    assert "create or update kv config to namespace success." in printed
    assert "delete kv config from namespace success." in scene.admin(
        "deleteKvConfig", "-s", "NS", "-k", "key-1"
    )


@story
def name_server_config(scene: Scene) -> None:
    printed = scene.admin("getNamesrvConfig")
    assert scene.cluster.namesrv in printed
    values = dict(re.split(r"\s*=  ", line, maxsplit=1) for line in printed.splitlines() if "=  " in line)
    assert values["scanNotActiveBrokerInterval"] == "5000"


# ---- statistics (last, since the counters are sampled every ten seconds)


@story
def stats(scene: Scene) -> None:
    def mine() -> list[str]:
        (row,) = [row for row in scene.rows("statsAll", "-t", TOPIC) if row[:2] == [TOPIC, GROUP]]
        return row

    def all_counted() -> bool:
        row = mine()
        return row[2] == "0" and min(int(row[5]), int(row[6])) >= MESSAGES

    eventually(all_counted, "nothing accumulated, all counted")


# ---- all of them, and the table


@pytest.fixture(scope="module")
def told(scene: Scene) -> Iterator[Told]:
    """Every story and chain by its name, under way or ended."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield {
            **{name: pool.submit(tell, scene) for name, tell in STORIES.items()},
            **{name: pool.submit(run_chain, scene, rows) for name, rows in CHAINS.items()},
        }


def run_chain(scene: Scene, rows: list[Row]) -> None:
    cluster, sent = scene.cluster, scene.sent[5]
    now_ms = int(time.time() * 1000)
    places = {
        "topic": TOPIC, "group": GROUP, "clone": CLONE_GROUP, "producers": PRODUCERS, "client": scene.consumer_id,
        "broker": cluster.broker, "name": cluster.broker_name, "cluster": cluster.cluster_name,
        "namesrv": cluster.namesrv, "folder": scene.folder, "offset_id": sent["offset_msg_id"],
        "unique_id": sent["msg_id"], "past": now_ms - 3_600_000, "now": now_ms, "future": now_ms + 3_600_000,
    }  # fmt: skip
    for row in rows:
        wanted = row.wanted if cluster.kind == "mqspark" else row.rocketmq
        words = [word.format(**places) for word in row.command.split()]
        # A request that takes too long on a busy machine makes a Java client close its connection; the broker knows the
        # new one with the next heartbeat, which comes every thirty seconds.
        deadline = time.monotonic() + (HEARTBEAT_TIMEOUT_S if "{client}" in row.command else 0)
        while True:
            answer = "\n".join(scene.mqadmin(*words, for_ms=row.for_ms))
            if wanted.format(**places) in re.sub(r"[ \t]+", " ", answer):
                break
            assert time.monotonic() < deadline, f"mqadmin {row.command}: {wanted!r} is not in\n{answer}"


@pytest.mark.parametrize("name", [*STORIES, *CHAINS])
def test_story(told: Told, name: str) -> None:
    told[name].result()


def test_no_command_is_forgotten(java: JavaDriver) -> None:
    told = set(re.findall(r'"(\w+)"', Path(__file__).read_text()))
    told |= {row.command.split()[0] for rows in [*CHAINS.values(), LAST] for row in rows}
    assert set(java.call("mqadmin.commands")) - told == set()


def test_write_permission_is_taken_and_given_back(scene: Scene, told: Told) -> None:
    """After all others: meanwhile nobody can send."""
    wait(told.values())
    name = scene.cluster.broker_name
    assert f"wipe write perm of broker[{name}]" in scene.admin("wipeWritePerm", "-b", name)
    assert [data["perm"] for data in scene.route(TOPIC)["queueDatas"]] == [4]
    printed = scene.admin("addWritePerm", "-b", name)
    assert re.search(rf"add write perm of broker\[{name}\] .* OK, [1-9]", printed), printed
    assert [data["perm"] for data in scene.route(TOPIC)["queueDatas"]] == [6]


def test_last(scene: Scene, told: Told) -> None:
    wait(told.values())
    run_chain(scene, LAST)
