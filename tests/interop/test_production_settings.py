"""One ``broker.conf`` of an installation in production on our broker and on RocketMQ's: both show the same values and
behave alike, setting by setting.
"""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from mqspark_server.settings.rocketmq_keys import WITHOUT_EFFECT
from tests.interop.differential import Entry, Play, differences
from tests.interop.jars import Jars
from tests.interop.rocketmq import rocketmq_broker, rocketmq_namesrv
from tests.interop.script_groups import consumer_data, heartbeat
from tests.interop.script_messages import (
    MAX_OFFSET,
    create_group,
    create_topic,
    properties,
    pull,
    pull_fields,
    send,
    settled,
)
from tests.support.clusters import mqspark_broker, mqspark_namesrv
from tests.support.waiting import eventually

GET_BROKER_CONFIG, HEART_BEAT, GET_TOPIC_CONFIG, RECALL = 26, 34, 351, 370
HALF = 4
"""The bit of a half message in a system flag."""

PRODUCTION = {
    "brokerClusterName": "Production",
    "brokerName": "broker-a",
    "brokerId": 0,
    "brokerRole": "ASYNC_MASTER",
    "flushDiskType": "ASYNC_FLUSH",
    "deleteWhen": "02",
    "fileReservedTime": 120,
    "autoCreateTopicEnable": False,
    "autoCreateSubscriptionGroup": False,
    "clusterTopicEnable": False,
    "brokerTopicEnable": False,
    "traceTopicEnable": True,
    "defaultTopicQueueNums": 6,
    "maxMessageSize": 8192,
    "maxTransferCountOnMessageInMemory": 4,
    "messageDelayLevel": "1h 2h 3h",
    "timerMaxDelaySec": 60,
    "recallMessageEnable": False,
    "rejectTransactionMessage": True,
    "enablePropertyFilter": False,
    "slaveReadEnable": True,
    "transactionCheckMax": 5,
    "transactionTimeOut": 20_000,
    "transactionCheckInterval": 40_000,
    "longPollingEnable": True,
    "notifyConsumerIdsChangedEnable": False,
    "sendMessageThreadPoolNums": 32,
    "pullMessageThreadPoolNums": 32,
    "useReentrantLockWhenPutMessage": True,
    "waitTimeMillsInSendQueue": 2_000,
    "osPageCacheBusyTimeOutMills": 5_000,
    "transientStorePoolEnable": False,
    "warmMapedFileEnable": False,
}

pytestmark = pytest.mark.slow("a real RocketMQ starts first")


def performed(play: Play) -> list[Entry]:
    """Each label begins with the setting that it is about."""
    shown = dict(
        line.split("=", 1)
        for line in play.quietly(GET_BROKER_CONFIG).body.decode().splitlines()
        if "=" in line
    )
    for key in PRODUCTION:
        play.fact(f"{key}: shown", shown.get(key))
    send(play, "autoCreateTopicEnable: a send to an unknown topic", play.name("Unknown"))
    for label, topic in {
        "autoCreateTopicEnable: the default topic": "TBW102",
        "clusterTopicEnable: the cluster's topic": "Production",
        "brokerTopicEnable: the broker's topic": "broker-a",
        "traceTopicEnable: the topic of traces": "RMQ_SYS_TRACE_TOPIC",
    }.items():
        answer = play.quietly(GET_TOPIC_CONFIG, topic=topic)
        config = json.loads(answer.body) if answer.body else {}
        play.fact(
            label, (answer.code, *(config.get(key) for key in ("readQueueNums", "writeQueueNums", "perm")))
        )
    topic, group = create_topic(play, "Orders", 1), create_group(play, "billing")
    pull(play, "autoCreateSubscriptionGroup: a pull of an unknown group", play.name("strangers"), topic)
    data = consumer_data(play.name("newcomers"), topic)
    play.ask("autoCreateSubscriptionGroup: a heartbeat", HEART_BEAT, heartbeat("client", consumers=[data]))
    retries = f"%RETRY%{play.name('newcomers')}"
    play.fact(
        "autoCreateSubscriptionGroup: its retry topic", play.quietly(GET_TOPIC_CONFIG, topic=retries).code
    )
    send(play, "maxMessageSize: as large as it may be", topic, bytes(8192))
    send(play, "maxMessageSize: one byte more", topic, bytes(8193))
    for number in range(9):
        send(play, f"maxTransferCountOnMessageInMemory: message {number}", topic, b"%d" % number)
    settled(play, topic)
    got = play.records(play.quietly(11, **pull_fields(group, topic)))
    play.fact("maxTransferCountOnMessageInMemory: of one pull", len(got))
    send(play, "messageDelayLevel: a level that is not there", topic, props=properties(DELAY=18))
    ends: list[str | None] = []

    def is_parked() -> bool:
        ends[:] = [
            play.quietly(MAX_OFFSET, topic="SCHEDULE_TOPIC_XXXX", queueId=each).ext.get("offset")
            for each in range(4)
        ]
        return any(end not in (None, "0") for end in ends)

    eventually(is_parked, lambda: f"the delayed message in a queue: {ends}")
    play.fact("messageDelayLevel: it waits in the queue of the last one", ends)
    send(play, "timerMaxDelaySec: longer", topic, props=properties(TIMER_DELAY_SEC=61))
    send(
        play,
        "rejectTransactionMessage: a half message",
        topic,
        props=properties(TRAN_MSG="true", PGROUP="p", UNIQ_KEY="H"),
        sysFlag=HALF,
    )
    play.ask("recallMessageEnable: a recall", RECALL, topic=topic, recallHandle="eA==", producerGroup="p")
    pull(play, "enablePropertyFilter: by SQL92", group, topic, expressionType="SQL92", subscription="a > 1")
    return play.transcript


@pytest.fixture(scope="module")
def transcripts(
    jars: Jars, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[list[Entry], list[Entry]]]:
    folder = tmp_path_factory.mktemp("production")
    with (
        rocketmq_namesrv(jars, folder / "their-namesrv") as their_namesrv,
        rocketmq_broker(
            jars, folder / "theirs", their_namesrv, settings=PRODUCTION, registered=False
        ) as theirs,
        mqspark_namesrv(folder / "our-namesrv") as our_namesrv,
        mqspark_broker(folder / "ours", our_namesrv, PRODUCTION) as ours,
        ThreadPoolExecutor(2) as both,
    ):
        plays = [Play(cluster, "JSON", "prod") for cluster in (ours, theirs)]
        try:
            mine, other = both.map(performed, plays)
        finally:
            for play in plays:
                play.close()
        yield mine, other


def test_both_behave_alike(transcripts: tuple[list[Entry], list[Entry]]) -> None:
    """What has no effect here is shown with what holds (docs/settings.md)."""
    shown = {f"{key}: shown" for key in PRODUCTION if key in WITHOUT_EFFECT}
    found = [each for each in differences(*transcripts) if each.label not in shown]
    assert not found, f"{len(found)} differences\n" + "\n".join(map(str, found))


def test_the_settings_act(transcripts: tuple[list[Entry], list[Entry]]) -> None:
    """With the defaults most of these answers are others."""
    ours = {entry.label: entry.fields for entry in transcripts[0]}
    assert ours["autoCreateTopicEnable: a send to an unknown topic"]["code"] == 17
    assert ours["autoCreateSubscriptionGroup: a pull of an unknown group"]["code"] == 26
    assert ours["maxMessageSize: as large as it may be"]["code"] == 0
    assert ours["maxMessageSize: one byte more"]["code"] == 13
    assert ours["maxTransferCountOnMessageInMemory: of one pull"]["fact"] == 4
    assert ours["messageDelayLevel: it waits in the queue of the last one"]["fact"][2] == "1"
    assert ours["timerMaxDelaySec: longer"]["code"] == 13
    assert ours["rejectTransactionMessage: a half message"]["code"] == 16
    assert ours["recallMessageEnable: a recall"]["code"] != 0
    assert ours["enablePropertyFilter: by SQL92"]["code"] != 0
    assert ours["brokerTopicEnable: the broker's topic"]["fact"][3] == 1
