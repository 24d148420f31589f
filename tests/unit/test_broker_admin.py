"""Topics, groups, settings, offsets and statistics as tools ask for them; files under ``config/``."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mqspark.errors import StoreCorrupt
from mqspark.protocol import fastjson
from mqspark.protocol.bodies import queue_of
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.record import decode_record
from mqspark.store.retention import DiskUsage
from tests.unit.broker_kit import PULL, SEND, Bench, Peer, namesrv_peer, pull_ext, send_ext

GOLDEN = Path(__file__).parent.parent / "golden"


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.close()


def topic_ext(topic: str, **more: str) -> dict[str, str]:
    return {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": "3",
        "writeQueueNums": "3",
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
        **more,
    }


def create(peer: Peer, topic: str, **more: str) -> int:
    return peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_ext(topic, **more)).code


def body_of(peer: Peer, code: int, ext: dict[str, str] | None = None, body: bytes = b"") -> Any:
    answer = peer.ask(code, ext, body)
    assert answer.code == 0, answer.remark
    return fastjson.loads(answer.body)


def commit(peer: Peer, group: str, topic: str, queue_id: int, offset: int) -> int:
    ext = {"consumerGroup": group, "topic": topic, "queueId": str(queue_id), "commitOffset": str(offset)}
    return peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, ext).code


def group(peer: Peer, name: str) -> None:
    body = json.dumps({"groupName": name}).encode()
    assert peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, body).code == 0


# --- topics ---


def test_create_change_and_delete_a_topic(bench: Bench) -> None:
    peer = bench.peer()
    assert create(peer, "New") == 0
    config = body_of(peer, RequestCode.GET_TOPIC_CONFIG, {"topic": "New", "lo": "true"})
    assert config == {
        "attributes": {},
        "order": False,
        "perm": 6,
        "readQueueNums": 3,
        "topicFilterType": "SINGLE_TAG",
        "topicName": "New",
        "topicSysFlag": 0,
        "writeQueueNums": 3,
    }
    version = bench.broker.state.topics.data_version
    assert create(peer, "New") == 0  # equal: no change
    assert bench.broker.state.topics.data_version == version
    assert create(peer, "New", writeQueueNums="5") == 0
    assert bench.broker.state.topics.data_version.counter == version.counter + 1
    assert peer.ask(SEND, send_ext("New", 4), b"x").code == 0
    assert commit(peer, "CG", "New", 4, 1) == 26
    assert peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "New"}).code == 0
    assert "New" not in bench.broker.state.topics
    assert bench.store.max_offset("New", 4) == 0
    gone = peer.ask(RequestCode.GET_TOPIC_CONFIG, {"topic": "New"})
    assert gone.code == ResponseCode.TOPIC_NOT_EXIST


@pytest.mark.parametrize(
    ("topic", "more", "code"),
    [
        ("bad name!", {}, 29),
        ("TBW102", {}, 29),
        ("C", {}, 29),  # the cluster's own
        ("rmq_sys_x", {}, 29),
        ("X", {"readQueueNums": "-1"}, 29),
        ("X", {"writeQueueNums": "1000000"}, 29),
        ("X", {"perm": "99"}, 29),
        ("X", {"topicFilterType": "NONE"}, 1),
        ("X", {"attributes": "+queue.type=TripleCQ"}, 1),
        ("X", {"attributes": "+cleanup.policy=COMPACT"}, 1),
        ("X", {"attributes": "+message.type=MIXED"}, 29),
        ("X", {"attributes": "+unknown=1"}, 1),
        ("X", {"attributes": "nonsense"}, 1),
        ("X", {"readQueueNums": "x"}, 1),
    ],
)
def test_topics_that_are_refused(bench: Bench, topic: str, more: dict[str, str], code: int) -> None:
    answer = bench.peer().ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_ext(topic, **more))
    assert answer.code == code
    assert answer.remark
    assert "X" not in bench.broker.state.topics


def test_attributes(bench: Bench) -> None:
    peer = bench.peer()
    assert create(peer, "F", attributes="+message.type=FIFO,+reserve.time=5") == 0
    topic = bench.broker.state.topics.get("F")
    assert topic is not None
    assert topic.config.attributes == {"message.type": "FIFO", "reserve.time": "5"}
    assert create(peer, "F", attributes="-reserve.time") == 0
    assert topic.config.attributes == {"message.type": "FIFO"}
    assert create(peer, "F", writeQueueNums="4") == 0  # attributes stay
    assert topic.config.attributes == {"message.type": "FIFO"}


def test_a_list_of_topics(bench: Bench) -> None:
    body = {
        "topicConfigList": [
            {"topicName": "L1", "attributes": {"+message.type": "DELAY"}},
            {"topicName": "L2"},
        ]
    }
    peer = bench.peer()
    assert peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, None, json.dumps(body).encode()).code == 0
    topic = bench.broker.state.topics.get("L1")
    assert topic is not None
    assert topic.config.attributes == {"message.type": "DELAY"}
    assert "L2" in bench.broker.state.topics


def test_system_topics_are_there_from_the_start(bench: Bench) -> None:
    expected = {
        "SELF_TEST_TOPIC": (1, 6),
        "TBW102": (8, 7),
        "BenchmarkTest": (1024, 6),
        "C": (16, 7),
        "b-a": (1, 7),
        "OFFSET_MOVED_EVENT": (1, 6),
        "SCHEDULE_TOPIC_XXXX": (18, 6),
        "C_REPLY_TOPIC": (1, 6),
        "rmq_sys_REVIVE_LOG_C": (8, 6),
        "rmq_sys_SYNC_BROKER_MEMBER_b-a": (1, 1),
        "RMQ_SYS_TRANS_HALF_TOPIC": (1, 6),
        "RMQ_SYS_TRANS_OP_HALF_TOPIC": (1, 6),
        "rmq_sys_wheel_timer": (1, 6),
    }
    configs = {
        topic.name: (topic.config.write_queue_nums, topic.config.perm) for topic in bench.broker.state.topics
    }
    assert configs == expected
    listed = body_of(bench.peer(), RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)["topicList"]
    assert set(listed) == set(expected)
    peer = bench.peer()
    for topic in ("TBW102", "C", "b-a"):
        assert peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic}).code == 29


def test_pages_of_topics(bench: Bench) -> None:
    peer = bench.peer()
    for number in range(10):
        create(peer, f"P{number}")
    whole = peer.ask(RequestCode.GET_ALL_TOPIC_CONFIG)
    table = json.loads(whole.body)
    names = sorted(table["topicConfigTable"])
    assert whole.ext["totalTopicNum"] == str(len(names))
    version = json.dumps(table["dataVersion"])
    seen: list[str] = []
    while len(seen) < len(names):
        ext = {"topicSeq": str(len(seen)), "maxTopicNum": "7", "dataVersion": version}
        page = peer.ask(RequestCode.GET_ALL_TOPIC_CONFIG, ext)
        seen += json.loads(page.body)["topicConfigTable"]
    assert seen == names
    stale = {
        "topicSeq": "5",
        "maxTopicNum": "2",
        "dataVersion": '{"counter":1,"stateVersion":0,"timestamp":1}',
    }
    page = peer.ask(RequestCode.GET_ALL_TOPIC_CONFIG, stale)
    assert list(json.loads(page.body)["topicConfigTable"]) == names[:2]
    bad = peer.ask(RequestCode.GET_ALL_TOPIC_CONFIG, {"topicSeq": "x"})
    assert bad.code == ResponseCode.SYSTEM_ERROR


def test_unused_queues_are_cleaned(bench: Bench) -> None:
    peer = bench.peer()
    peer.ask(SEND, send_ext("Gone"), b"x")
    bench.broker.state.topics.remove("Gone")
    peer.ask(RequestCode.CLEAN_UNUSED_TOPIC)
    assert "Gone" not in bench.store.queues()


# --- when a change is answered ---


def test_a_change_is_answered_when_it_is_saved_and_published(tmp_path: Path) -> None:
    bench = Bench(tmp_path, namesrv_addr="127.0.0.1:9876")
    peer = bench.peer()
    peer.give(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_ext("New"))
    bench.broker.turn()
    assert bench.broker.registration_due
    assert bench.broker.jobs_due
    registration = bench.broker.registration()
    bench.broker.registered(registration)
    assert peer.heard() == []
    bench.run_jobs()
    assert [answer.code for answer in peer.heard()] == [0]
    # A name server that is down delays the answer, no more.
    peer.give(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_ext("Newer"))
    bench.broker.turn()
    bench.run_jobs()
    assert peer.heard() == []
    bench.clock.advance(3_000)
    bench.broker.tick()
    assert [answer.code for answer in peer.heard()] == [0]
    # A disk that is full makes it an error.
    peer.give(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_ext("Newest"))
    bench.broker.turn()
    bench.broker.registered(bench.broker.registration())
    bench.clock.advance(3_000)
    bench.broker.tick()
    assert [answer.code for answer in peer.heard()] == [ResponseCode.SYSTEM_ERROR]
    bench.close()


def test_registration_carries_the_broker_permission(tmp_path: Path) -> None:
    bench = Bench(tmp_path, broker_permission=4)
    table = json.loads(bench.broker.registration().body)["topicConfigSerializeWrapper"]["topicConfigTable"]
    assert table["BenchmarkTest"]["perm"] == 4
    bench.broker.turn()
    bench.broker.registration_due = False
    peer = bench.peer()
    assert peer.ask(RequestCode.UPDATE_BROKER_CONFIG, None, b"brokerPermission=6\n").code == 0
    assert bench.broker.registration_due
    table = json.loads(bench.broker.registration().body)["topicConfigSerializeWrapper"]["topicConfigTable"]
    assert table["BenchmarkTest"]["perm"] == 6
    bench.close()


def test_ordered_topics_come_with_the_answer_to_a_registration(bench: Bench) -> None:
    create(bench.peer(), "O")
    bench.broker.registered(bench.broker.registration(), b'{"table":{"O":"b-a:3","Unknown":"x:1"}}')
    topic = bench.broker.state.topics.get("O")
    assert topic is not None
    assert topic.order


# --- groups ---


def test_groups(bench: Bench) -> None:
    peer = bench.peer()
    group(peer, "G1")
    config = body_of(peer, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "G1"})
    assert (config["groupName"], config["retryMaxTimes"], config["consumeEnable"]) == ("G1", 16, True)
    body = json.dumps(
        {"groupConfigList": [{"groupName": "G2"}, {"groupName": "G3", "retryMaxTimes": 3}]}
    ).encode()
    assert peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, None, body).code == 0
    table = body_of(peer, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    assert {"G1", "G2", "G3", "TOOLS_CONSUMER"} <= table["subscriptionGroupTable"].keys()
    page = peer.ask(
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        {"groupSeq": "0", "maxGroupNum": "1", "dataVersion": json.dumps(table["dataVersion"])},
    )
    assert page.ext["totalGroupNum"] == str(len(table["subscriptionGroupTable"]))
    assert len(json.loads(page.body)["subscriptionGroupTable"]) == 1
    peer.ask(SEND, send_ext(), b"x")
    commit(peer, "G1", "T", 0, 1)
    delete = {"groupName": "G1", "cleanOffset": "true"}
    assert peer.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, delete).code == 0
    assert bench.broker.state.offsets.topics_of("G1") == []
    bad = b'{"groupName":"no spaces"}'
    assert peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, bad).code == 29


def test_an_unknown_group_may_not_be_creatable(tmp_path: Path) -> None:
    bench = Bench(tmp_path, auto_create_subscription_group=False)
    answer = bench.peer().ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "none"})
    assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert bench.peer().ask(PULL, pull_ext()).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    bench.close()


# --- settings ---


def test_settings(bench: Bench) -> None:
    peer = bench.peer()
    answer = peer.ask(RequestCode.GET_BROKER_CONFIG)
    text = bytes(answer.body).decode()
    assert "brokerName=b-a\n" in text
    assert "flushDiskType=ASYNC_FLUSH\n" in text
    assert json.loads(answer.ext["version"])["counter"] == 0
    change = b"defaultTopicQueueNums=4\nmaxMessageSize=100\n"
    assert peer.ask(RequestCode.UPDATE_BROKER_CONFIG, None, change).code == 0
    assert bench.config.default_topic_queue_nums == 4
    answer = peer.ask(RequestCode.GET_BROKER_CONFIG)
    assert "defaultTopicQueueNums=4\n" in bytes(answer.body).decode()
    assert json.loads(answer.ext["version"])["counter"] == 1
    assert peer.ask(SEND, send_ext(), b"x" * 101).code == ResponseCode.MESSAGE_ILLEGAL
    assert peer.ask(SEND, send_ext(), b"x" * 100).code == 0


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (b"brokerName=x\n", 16),
        (b"storePathRootDir=/tmp/x\n", 16),
        (b"brokerConfigPath=/x\n", 16),
        (b"rocketmqHome=/x\n", 16),
        (b"noSuchThing=1\n", 1),
        (b"defaultTopicQueueNums=many\n", 1),
        (b"defaultTopicQueueNums=0\n", 1),
        (b"\xff\xfe=1\n", 1),
    ],
)
def test_settings_that_may_not_be_changed(bench: Bench, change: bytes, code: int) -> None:
    before = bench.config.default_topic_queue_nums
    answer = bench.peer().ask(RequestCode.UPDATE_BROKER_CONFIG, None, b"defaultTopicQueueNums=5\n" + change)
    assert answer.code == code
    assert answer.remark
    assert bench.config.default_topic_queue_nums == before


def test_runtime_info_has_every_row_that_the_tools_read(bench: Bench) -> None:
    table = body_of(bench.peer(), RequestCode.GET_BROKER_RUNTIME_INFO)["table"]
    line = (GOLDEN / "frames" / "admin_brokerStatus.jsonl").read_text().splitlines()[1]
    frame = bytes.fromhex(json.loads(line)["frame_hex"])
    recorded = json.loads(frame[frame.index(b'{"table"') :])["table"]
    missing = {key for key in recorded if "/" not in key and not key.startswith("scheduleMessageOffset_")}
    assert missing - table.keys() == set()
    assert all(isinstance(value, str) for value in table.values())
    assert table["mqsparkStorePath"] == str(bench.directory)
    assert table["mqsparkStoreNonce"] == bench.store.nonce
    for rate in (
        "putTps",
        "getFoundTps",
        "getMissTps",
        "getTotalTps",
        "getTransferredTps",
        "getTransferedTps",
    ):
        assert [float(number) for number in table[rate].split(" ")] == [0.0, 0.0, 0.0]


# --- offsets ---


def query(peer: Peer, topic: str = "T", queue_id: int = 0, **more: str) -> tuple[int, str | None]:
    ext = {"consumerGroup": "CG", "topic": topic, "queueId": str(queue_id), **more}
    answer = peer.ask(RequestCode.QUERY_CONSUMER_OFFSET, ext)
    return answer.code, answer.ext.get("offset")


def test_offsets(bench: Bench) -> None:
    peer = bench.peer()
    assert query(peer, "NoSuch") == (22, None)
    peer.ask(SEND, send_ext(), b"a")
    assert query(peer) == (0, "0")  # young: message 0 is in memory
    assert query(peer, setZeroIfNotFound="false") == (22, None)
    assert query(peer, queue_id=1) == (22, None)
    assert commit(peer, "CG", "T", 0, 1) == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    group(peer, "CG")
    assert commit(peer, "CG", "NoSuch", 0, 1) == ResponseCode.TOPIC_NOT_EXIST
    assert commit(peer, "CG", "T", -1, 1) == ResponseCode.INVALID_PARAMETER
    assert commit(peer, "CG", "T", 0, 1) == 0
    assert query(peer) == (0, "1")
    assert commit(peer, "CG", "T", 0, 0) == 0  # back is allowed
    assert query(peer) == (0, "0")


def test_an_old_queue_is_not_consumed_from_its_start(tmp_path: Path) -> None:
    bench = Bench(tmp_path, store_settings={"access_message_in_memory_max_ratio": 0})
    peer = bench.peer()
    peer.ask(SEND, send_ext(), b"a")
    assert query(peer) == (22, None)
    bench.close()


def test_queue_ends_and_times(bench: Bench) -> None:
    peer = bench.peer()
    queue = {"topic": "T", "queueId": "0"}

    def ask(code: int, **more: str) -> str:
        answer = peer.ask(code, {**queue, **more})
        assert answer.code == 0
        return next(iter(answer.ext.values()))

    assert ask(RequestCode.GET_MAX_OFFSET) == "0"
    assert ask(RequestCode.GET_MIN_OFFSET) == "0"
    assert ask(RequestCode.GET_EARLIEST_MSG_STORETIME) == "-1"
    assert ask(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, timestamp="0") == "0"
    start = bench.clock.now_ms()
    for _ in range(3):
        peer.ask(SEND, send_ext(), b"a")
        bench.clock.advance(1_000)
    assert ask(RequestCode.GET_MAX_OFFSET) == "3"
    assert ask(RequestCode.GET_EARLIEST_MSG_STORETIME) == str(start)
    assert ask(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, timestamp=str(start + 1)) == "1"
    assert ask(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, timestamp=str(start + 1), boundaryType="UPPER") == "0"
    assert ask(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, timestamp=str(start + 9_999)) == "3"


def test_view_a_message_by_its_id(bench: Bench) -> None:
    peer = bench.peer()
    for body in (b"first", b"second"):
        sent = peer.ask(SEND, send_ext(), body)
    offset = int(sent.ext["msgId"][16:], 16)
    answer = peer.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(offset)})
    assert decode_record(answer.body).body == b"second"
    for wrong in (offset + 1, 10**15, -1):
        assert (
            peer.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(wrong)}).code == ResponseCode.SYSTEM_ERROR
        )


def test_clone_offsets(bench: Bench) -> None:
    peer = bench.peer()
    for topic in ("T", "U"):
        peer.ask(SEND, send_ext(topic), b"a")
    group(peer, "CG")
    commit(peer, "CG", "T", 0, 1)
    commit(peer, "CG", "U", 0, 1)
    one = {"srcGroup": "CG", "destGroup": "D", "topic": "T", "offline": "true"}
    assert peer.ask(RequestCode.CLONE_GROUP_OFFSET, one).code == 0
    assert bench.broker.state.offsets.queues("D", "T") == {0: 1}
    assert bench.broker.state.offsets.queues("D", "U") == {}
    assert peer.ask(RequestCode.CLONE_GROUP_OFFSET, {**one, "topic": ""}).code == 0
    assert bench.broker.state.offsets.queues("D", "U") == {0: 1}


def test_reset_offsets(bench: Bench) -> None:
    peer = bench.peer()
    for _ in range(3):
        peer.ask(SEND, send_ext(), b"a")
        bench.clock.advance(1_000)
    group(peer, "CG")
    ext = {"group": "CG", "topic": "T", "timestamp": "-1", "isForce": "true"}
    table = body_of(peer, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ext)["offsetTable"]
    assert {queue_of(key).queue_id: offset for key, offset in table.items()} == {0: 3, 1: 0, 2: 0, 3: 0}
    one = {**ext, "queueId": "0", "offset": "2"}
    assert list(body_of(peer, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, one)["offsetTable"].values()) == [2]
    for more, code in (
        ({"offset": "9"}, ResponseCode.SYSTEM_ERROR),
        ({"queueId": "77"}, ResponseCode.INVALID_PARAMETER),
        ({"topic": "none"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"group": "none"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
    ):
        assert peer.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, {**one, **more}).code == code


# --- statistics ---


def test_topic_and_consumer_statistics(bench: Bench) -> None:
    peer = bench.peer()
    for _ in range(5):
        peer.ask(SEND, send_ext(), b"a")
    sent_ms = bench.clock.now_ms()
    group(peer, "CG")
    peer.ask(PULL, pull_ext(maxMsgNums="4"))
    commit(peer, "CG", "T", 0, 2)
    stats = body_of(peer, RequestCode.GET_TOPIC_STATS_INFO, {"topic": "T"})
    queues = {queue_of(key).queue_id: value for key, value in stats["offsetTable"].items()}
    assert queues[0] == {"lastUpdateTimestamp": sent_ms, "maxOffset": 5, "minOffset": 0}
    assert queues[3] == {"lastUpdateTimestamp": 0, "maxOffset": 0, "minOffset": 0}
    stats = body_of(peer, RequestCode.GET_CONSUME_STATS, {"consumerGroup": "CG"})
    queues = {queue_of(key).queue_id: value for key, value in stats["offsetTable"].items()}
    assert queues[0] == {"brokerOffset": 5, "consumerOffset": 2, "lastTimestamp": sent_ms, "pullOffset": 4}
    broker_stats = body_of(peer, RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "false"})
    assert (broker_stats["totalDiff"], broker_stats["totalInflightDiff"]) == (3, 2)
    by_who = body_of(peer, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": "T"})
    assert by_who == {"groupList": ["CG"]}
    topics = body_of(peer, RequestCode.QUERY_TOPICS_BY_CONSUMER, {"group": "CG"})
    assert topics["topicList"] == ["T"]
    bench.clock.advance(500)
    spans = body_of(peer, RequestCode.QUERY_CONSUME_TIME_SPAN, {"topic": "T", "group": "CG"})[
        "consumeTimeSpanSet"
    ]
    span = next(span for span in spans if span["messageQueue"]["queueId"] == 0)
    assert (span["minTimeStamp"], span["consumeTimeStamp"], span["delayTime"]) == (sent_ms, sent_ms, 500)
    for code in (RequestCode.GET_TOPIC_STATS_INFO,):
        assert peer.ask(code, {"topic": "none"}).code == ResponseCode.TOPIC_NOT_EXIST


def test_rates(bench: Bench) -> None:
    peer = bench.peer()
    bench.broker.tick()
    for _ in range(60):
        for _ in range(2):
            peer.ask(SEND, send_ext(), b"a")
        bench.clock.advance(1_000)
        bench.broker.tick()
    assert body_of(peer, RequestCode.GET_TOPIC_STATS_INFO, {"topic": "T"})["topicPutTps"] == pytest.approx(
        2.0
    )
    table = bench.broker.runtime_info()
    assert [float(rate) for rate in table["putTps"].split()] == pytest.approx([2.0, 2.0, 2.0])
    assert table["msgPutTotalTodayNow"] == "120"
    data = body_of(peer, RequestCode.VIEW_BROKER_STATS_DATA, {"statsName": "TOPIC_PUT_NUMS", "statsKey": "T"})
    assert data["statsMinute"]["tps"] == pytest.approx(2.0)
    unknown = {"statsName": "TOPIC_PUT_NUMS", "statsKey": "none"}
    assert peer.ask(RequestCode.VIEW_BROKER_STATS_DATA, unknown).code == ResponseCode.SYSTEM_ERROR


def test_consume_queue_entries(bench: Bench) -> None:
    peer = bench.peer()
    for tag in ("TagA", "TagB", ""):
        peer.ask(SEND, send_ext(properties=f"TAGS\x01{tag}\x02" if tag else ""), b"a")
    ext = {"topic": "T", "queueId": "0", "index": "1", "count": "5"}
    shown = body_of(peer, RequestCode.QUERY_CONSUME_QUEUE, ext)
    assert [entry["tagsCode"] for entry in shown["queueData"]] == [2598920, 0]
    assert (shown["minQueueIndex"], shown["maxQueueIndex"]) == (0, 3)
    assert (
        peer.ask(RequestCode.QUERY_CONSUME_QUEUE, {**ext, "queueId": "9"}).code == ResponseCode.SYSTEM_ERROR
    )


def test_views(bench: Bench) -> None:
    peer = bench.peer()
    for _ in range(5):
        peer.ask(SEND, send_ext(), b"a")
    group(peer, "CG")
    commit(peer, "CG", "T", 0, 2)
    topic = next(topic for topic in bench.broker.topics_view() if topic["topic"] == "T")
    assert topic["queues"] == [{"queueId": 0, "minOffset": 0, "maxOffset": 5}]
    assert not topic["system"]
    shown = next(group for group in bench.broker.groups_view() if group["group"] == "CG")
    assert (shown["online"], shown["lag"]) == (False, 3)
    assert shown["topics"][0]["queues"] == [
        {"queueId": 0, "offset": 2, "pullOffset": None, "maxOffset": 5, "lag": 3}
    ]
    json.dumps([bench.broker.topics_view(), bench.broker.groups_view()])


def test_what_does_not_exist(bench: Bench) -> None:
    peer = bench.peer()
    unknown = peer.ask(9999)
    assert (unknown.code, unknown.remark) == (3, " request type 9999 not supported")


# --- files ---


def test_everything_is_there_after_a_restart(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    peer = bench.peer()
    create(peer, "Kept", attributes="+message.type=FIFO")
    group(peer, "CG")
    peer.ask(SEND, send_ext("Kept"), b"a")
    commit(peer, "CG", "Kept", 0, 1)
    peer.ask(
        RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, {"group": "CG", "topic": "Kept", "readable": "false"}
    )
    version = bench.broker.state.topics.data_version
    bench.reopen()
    state = bench.broker.state
    topic = state.topics.get("Kept")
    assert topic is not None
    assert topic.config.attributes == {"message.type": "FIFO"}
    assert state.topics.data_version == version
    assert "CG" in state.subscriptions
    assert state.subscriptions.is_read_forbidden("CG", "Kept")
    assert state.offsets.queues("CG", "Kept") == {0: 1}
    assert not bench.broker.jobs_due
    bench.close()


def test_offsets_are_saved_every_five_seconds(bench: Bench) -> None:
    peer = bench.peer()
    peer.ask(SEND, send_ext(), b"a")
    group(peer, "CG")
    commit(peer, "CG", "T", 0, 1)
    path = bench.directory / "config" / "consumerOffset.json"
    bench.run_jobs()
    assert not path.exists()
    bench.clock.advance(5_000)
    bench.run_jobs()
    text = path.read_text()
    assert '"offsetTable":{\n\t\t"T@CG":{0:1\n\t\t}\n\t}' in text or '"T@CG":{' in text
    assert fastjson.loads(text.encode())["offsetTable"] == {"T@CG": {"0": 1}}


def test_the_version_of_the_offsets_steps_with_the_commits(tmp_path: Path) -> None:
    bench = Bench(tmp_path, consumer_offset_update_version_step=10)
    offsets = bench.broker.state.offsets
    for offset in range(25):
        offsets.commit("CG", "T", 0, offset)
    assert offsets.data_version.counter == 2
    bench.close()


@pytest.mark.parametrize("name", ["topics.json", "subscriptionGroup.json", "consumerOffset.json"])
def test_a_file_that_cannot_be_read_stops_the_start(tmp_path: Path, name: str) -> None:
    bench = Bench(tmp_path)
    bench.close()
    path = tmp_path / "config" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text('{"dataVersion":7')
    path.with_name(name + ".bak").unlink(missing_ok=True)
    with pytest.raises(StoreCorrupt, match=name):
        bench.open()
    bench.store.close()
    path.with_name(name + ".bak").write_text('{"dataVersion":{"counter":3,"stateVersion":0,"timestamp":1}}')
    bench.open()  # the .bak is good
    bench.close()


def test_a_store_of_the_real_broker(tmp_path: Path) -> None:
    """config/*.json as RocketMQ 5.3.3 left them."""
    import tarfile

    with tarfile.open(GOLDEN / "store" / "clean.tar.gz") as archive:
        members = [member for member in archive.getmembers() if "/config/" in member.name]
        for member in members:
            if member.isfile() and member.name.endswith(".json"):
                target = tmp_path / "config" / Path(member.name).name
                target.parent.mkdir(exist_ok=True)
                content = archive.extractfile(member)
                assert content is not None
                target.write_bytes(content.read())
    assert (tmp_path / "config" / "topics.json").exists()
    bench = Bench(tmp_path)
    recorded = fastjson.loads((tmp_path / "config" / "topics.json").read_bytes())
    topics = bench.broker.state.topics
    assert {"GsPlain", "GsBcq", "GsTx"} <= recorded["topicConfigTable"].keys() & set(topics.names())
    assert topics.data_version.counter == recorded["dataVersion"]["counter"]
    inner = topics.get("GsBcq")
    assert inner is not None
    assert inner.inner_batch
    assert bench.peer().ask(SEND, send_ext("GsBcq"), b"x").code == 0
    offsets = fastjson.loads((tmp_path / "config" / "consumerOffset.json").read_bytes())["offsetTable"]
    assert offsets
    wrapper = bench.broker.state.offsets.wrapper()
    assert wrapper.offset_table == {
        key: {int(queue_id): offset for queue_id, offset in queues.items()} for key, queues in offsets.items()
    }
    bench.close()


def test_a_name_server_that_is_current_need_not_be_told(bench: Bench) -> None:
    namesrv, _, registrar = namesrv_peer()
    registration = bench.broker.registration()
    registrar.ask(RequestCode.REGISTER_BROKER, registration.header, registration.body)
    assert registrar.ask(RequestCode.QUERY_DATA_VERSION, *bench.broker.version_query()).ext == {
        "changed": "false"
    }
    create(bench.peer(), "New")
    assert registrar.ask(RequestCode.QUERY_DATA_VERSION, *bench.broker.version_query()).ext == {
        "changed": "true"
    }
    namesrv.routes.unregister(namesrv.routes.live_brokers()[0].identity)
    assert registrar.ask(RequestCode.QUERY_DATA_VERSION, *bench.broker.version_query()).ext == {
        "changed": "true"
    }


@pytest.mark.parametrize(("perm", "enabled", "after"), [(6, True, 7), (7, False, None), (7, True, 7)])
def test_a_template_from_a_file_follows_the_setting(
    tmp_path: Path, perm: int, enabled: bool, after: int | None
) -> None:
    path = tmp_path / "config" / "topics.json"
    path.parent.mkdir()
    config = {"topicName": "TBW102", "readQueueNums": 3, "writeQueueNums": 3, "perm": perm}
    version = {"counter": 9, "stateVersion": 0, "timestamp": 1}
    path.write_text(json.dumps({"dataVersion": version, "topicConfigTable": {"TBW102": config}}))
    bench = Bench(tmp_path, auto_create_topic_enable=enabled)
    topic = bench.broker.state.topics.get("TBW102")
    assert (topic and topic.config.perm) == after
    if topic is not None:
        assert topic.config.write_queue_nums == 3
    bench.close()


def test_expired_messages_are_deleted_when_an_operator_asks(bench: Bench) -> None:
    peer = bench.peer()
    for _ in range(4):
        assert peer.ask(SEND, send_ext(), b"x" * (3 << 20)).code == 0
    first = sorted((bench.directory / "commitlog").iterdir())[0]
    long_ago = bench.clock.now_ms() / 1000 - 4 * 3600
    os.utime(first, (long_ago, long_ago))
    assert peer.ask(RequestCode.UPDATE_BROKER_CONFIG, None, b"fileReservedTime=3\n").code == 0
    assert peer.ask(RequestCode.DELETE_EXPIRED_COMMITLOG).code == 0
    bench.flush()
    bench.run_jobs()
    bench.clock.advance(10_000)
    bench.run_jobs()
    assert not first.exists()
    ext = {"topic": "T", "queueId": "0"}
    assert peer.ask(RequestCode.GET_MIN_OFFSET, ext).ext["offset"] == "1"
    assert peer.ask(RequestCode.GET_MAX_OFFSET, ext).ext["offset"] == "4"
    behind = peer.ask(PULL, pull_ext(offset=0))
    assert behind.code == ResponseCode.PULL_OFFSET_MOVED
    assert behind.ext["nextBeginOffset"] == "1"
    assert peer.ask(PULL, pull_ext(offset=1)).code == 0
    assert bench.broker.runtime_info()["commitLogMinOffset"] == str(1 << 22)
    assert peer.ask(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE).code == 0
    bench.run_jobs()
    assert peer.ask(RequestCode.GET_MAX_OFFSET, ext).ext["offset"] == "4"


def test_a_disk_over_the_mark_is_service_not_available(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    peer = bench.peer()
    assert peer.ask(SEND, send_ext(), b"before").code == 0
    settings = b"diskSpaceWarningLevelRatio=90\ndiskSpaceCleanForciblyRatio=85\n"
    assert peer.ask(RequestCode.UPDATE_BROKER_CONFIG, None, settings).code == 0
    used = 91
    monkeypatch.setattr(bench.store._files, "disk", lambda path: (1, DiskUsage(used, 100 - used)))
    bench.clock.advance(10_000)
    bench.run_jobs()
    answer = peer.ask(SEND, send_ext(), b"refused")
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "91.0% full" in (answer.remark or "")
    assert peer.ask(PULL, pull_ext()).code == 0
    assert create(peer, "StillMade") == 0
    assert peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "StillMade"}).code == 0
    used = 50
    bench.clock.advance(10_000)
    bench.run_jobs()
    assert peer.ask(SEND, send_ext(), b"after").code == 0


def test_retention_settings_are_checked_when_they_are_changed(bench: Bench) -> None:
    peer = bench.peer()
    answer = peer.ask(RequestCode.UPDATE_BROKER_CONFIG, None, b"fileReservedTime=9\ndeleteWhen=25\n")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "deleteWhen" in (answer.remark or "")
    assert (bench.store_config.file_reserved_time, bench.store_config.delete_when) == (72, "04")
