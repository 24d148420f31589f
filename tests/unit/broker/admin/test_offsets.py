"""Offsets and statistics as tools ask for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mqspark.broker.admin.inspection import QUEUES_AT_ONCE
from mqspark.broker.admin.views import QueueBounds, QueueLag, TopicLag, groups_view, queues_of
from mqspark.protocol.bodies.admin_bodies import (
    MAX_QUEUES_ASKED,
    OffsetsOfQueues,
    QueuesOfTopic,
    QueuesOfTopics,
)
from mqspark.protocol.bodies.body import decode_body, encode_body, queue_of
from mqspark.protocol.bodies.topic_bodies import TopicConfig
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command
from mqspark.protocol.slices import finished
from mqspark.record.record import decode_record
from mqspark.store.offsets import QueueOffsets
from tests.unit.broker.admin.admin_kit import body_of, commit, group
from tests.unit.broker_kit import SEND, Bench, Peer, send_ext

GOLDEN = Path(__file__).parents[3] / "golden"


# --- offsets ---


def query(peer: Peer, topic: str = "T", queue_id: int = 0, **more: str) -> tuple[int, str | None]:
    ext = {"consumerGroup": "CG", "topic": topic, "queueId": str(queue_id), **more}
    answer = peer.ask(RequestCode.QUERY_CONSUMER_OFFSET, ext)
    return answer.code, answer.ext.get("offset")


def test_offsets(peer: Peer) -> None:
    assert query(peer, "NoSuch") == (22, None)
    peer.ask(SEND, send_ext(), b"a")
    assert query(peer) == (0, "0")  # young: message 0 is in memory
    assert query(peer, setZeroIfNotFound="false") == (22, None)
    assert query(peer, queue_id=1) == (22, None)
    queue = {"consumerGroup": "CG", "topic": "T", "queueId": "1"}
    remarks = [
        peer.ask(RequestCode.QUERY_CONSUMER_OFFSET, {**queue, **more}).remark
        for more in ({"setZeroIfNotFound": "false"}, {})
    ]
    assert ["set to zero" in str(remark) for remark in remarks] == [True, False]
    assert commit(peer, "CG", "T", 0, 1) == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    group(peer, "CG")
    assert commit(peer, "CG", "NoSuch", 0, 1) == ResponseCode.TOPIC_NOT_EXIST
    assert commit(peer, "CG", "T", -1, 1) == ResponseCode.INVALID_PARAMETER
    assert commit(peer, "CG", "T", 0, 1) == 0
    assert query(peer) == (0, "1")
    assert commit(peer, "CG", "T", 0, 0) == 0  # back is allowed
    assert query(peer) == (0, "0")


def test_offsets_of_many_queues(peer: Peer) -> None:
    for body in (b"a", b"b"):
        peer.ask(SEND, send_ext(), body)
    first = {"topic": "T", "queueId": "0", "mqsparkQueues": "true"}

    def ask(code: int, *topics: tuple[str, list[int]]) -> Command:
        body = QueuesOfTopics([QueuesOfTopic(topic, queue_ids) for topic, queue_ids in topics])
        return peer.ask(code, first, encode_body(body))

    answer = ask(RequestCode.GET_MAX_OFFSET, ("T", [1, 0]), ("NoSuch", [0]), ("T", [0, -1, 1 << 30]))
    assert (answer.code, answer.ext["offset"]) == (0, "0")
    assert decode_body(OffsetsOfQueues, answer.body).offsets == [0, 2, 0, 2, 0, 0]
    answer = ask(RequestCode.GET_MIN_OFFSET, ("T", [0, 1]), ("NoSuch", [0]))
    assert decode_body(OffsetsOfQueues, answer.body).offsets == [0, 0, 0]
    most = list(range(MAX_QUEUES_ASKED))
    assert len(
        decode_body(OffsetsOfQueues, ask(RequestCode.GET_MAX_OFFSET, ("T", most)).body).offsets
    ) == len(most)
    for wrong in ([("T", [*most, 0])], [("T", most), ("U", [0])], [("T", [])], []):
        assert ask(RequestCode.GET_MAX_OFFSET, *wrong).code == ResponseCode.INVALID_PARAMETER
    assert ask(RequestCode.GET_MAX_OFFSET, ("../T", [0])).code != 0
    for body in (b"", b"{}", b"[", b'{"topics":[{"topic":"T","queueIds":[9999999999]}]}'):
        assert peer.ask(RequestCode.GET_MIN_OFFSET, first, body).code != 0


def test_an_old_queue_is_not_consumed_from_its_start(tmp_path: Path) -> None:
    bench = Bench(tmp_path, store_settings={"access_message_in_memory_max_ratio": 0})
    peer = bench.peer()
    peer.ask(SEND, send_ext(), b"a")
    assert query(peer) == (22, None)


def test_queue_ends_and_times(bench: Bench, peer: Peer) -> None:
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


def test_view_a_message_by_its_id(peer: Peer) -> None:
    for body in (b"first", b"second"):
        sent = peer.ask(SEND, send_ext(), body)
    offset = int(sent.ext["msgId"][16:], 16)
    answer = peer.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(offset)})
    assert decode_record(answer.body).body == b"second"
    for wrong in (offset + 1, 10**15, -1):
        assert (
            peer.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(wrong)}).code == ResponseCode.SYSTEM_ERROR
        )


@pytest.mark.parametrize(
    ("properties", "named", "other"),
    [
        ("", "T", "U"),
        ("TRAN_MSG\x01true\x02PGROUP\x01PG\x02", "T", "RMQ_SYS_TRANS_HALF_TOPIC"),
        ("DELAY\x013\x02", "T", "SCHEDULE_TOPIC_XXXX"),
        ("TIMER_DELAY_SEC\x0160\x02", "T", "rmq_sys_wheel_timer"),
        ("INNER_MULTI_DISPATCH\x01%LMQ%a,%LMQ%b\x02", "%LMQ%b", "%LMQ%c"),
    ],
    ids=["plain", "half", "delayed", "timed", "light queue"],
)
def test_a_message_is_viewed_by_the_topic_that_it_is_for(
    tmp_path: Path, properties: str, named: str, other: str
) -> None:
    """Since 5.5.1; without a topic, or with a blank one, any message."""
    bench = Bench(tmp_path, store_settings={"enable_lmq": True, "enable_multi_dispatch": True})
    peer = bench.peer()
    ext = send_ext("T", properties=properties)
    if "TRAN_MSG" in properties:
        ext["f"] = "4"
    sent = peer.ask(SEND, ext, b"a")
    assert sent.code == 0, sent.remark
    offset = str(int(sent.ext["msgId"][16:], 16))

    def view(**more: str) -> Command:
        return peer.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": offset, **more})

    assert [view(**more).code for more in ({}, {"topic": ""}, {"topic": " "}, {"topic": named})] == [0] * 4
    for topic in (other, named + "x", named.lower()):
        answer = view(topic=topic)
        assert (answer.code, answer.body) == (ResponseCode.NO_PERMISSION, b""), topic


def test_clone_offsets(bench: Bench, peer: Peer) -> None:
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


def test_what_a_group_commits_before_it_hears_of_a_reset_does_not_count(bench: Bench, peer: Peer) -> None:
    """ConsumerManageProcessor answers so until a pull or a pop has taken the reset."""
    for _ in range(3):
        peer.ask(SEND, send_ext(), b"a")
    group(peer, "CG")
    offset = {"consumerGroup": "CG", "topic": "T", "queueId": "0", "commitOffset": "3"}
    reset = {"group": "CG", "topic": "T", "timestamp": "-1", "isForce": "true", "queueId": "0", "offset": "1"}
    assert peer.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset).code == 0
    answers = [peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, offset)]
    assert bench.broker.state.offsets.query("CG", "T", 0) == 1
    assert peer.pull(offset=3).ext["nextBeginOffset"] == "1"
    answers.append(peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, offset))
    assert bench.broker.state.offsets.query("CG", "T", 0) == 3
    assert [(answer.code, answer.remark) for answer in answers] == [
        (0, "Offset has been previously reset"),
        (0, None),
    ]


def test_reset_offsets(bench: Bench, peer: Peer) -> None:
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


@pytest.mark.parametrize(
    ("code", "ext"),
    [
        (RequestCode.GET_CONSUME_STATS, {"consumerGroup": "CG"}),
        (RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "false"}),
    ],
)
def test_progress_in_many_topics_of_few_queues_is_told_in_slices(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, code: int, ext: dict[str, str]
) -> None:
    peer, queues, topics = bench.peer(), 8, 60
    group(peer, "CG")
    for number in range(topics):
        bench.broker.state.topics.put(
            TopicConfig(topic_name=f"Few-{number}", read_queue_nums=queues, write_queue_nums=queues)
        )
        commit(peer, "CG", f"Few-{number}", 0, 0)
    examined, most = 0, 0
    plain = QueueOffsets.max_offset

    def counted(*place: Any) -> int:
        nonlocal examined
        examined += 1
        return plain(*place)

    monkeypatch.setattr(QueueOffsets, "max_offset", counted)
    peer.give(code, ext)
    before = 0
    while True:
        most, before = max(most, examined - before), examined
        if not bench.broker.work():
            break
    assert examined == topics * queues
    assert most <= QUEUES_AT_ONCE + queues


@pytest.mark.parametrize("is_order", ["false", "true"])
def test_groups_without_offsets_are_told_in_slices(bench: Bench, is_order: str) -> None:
    peer, groups, turns = bench.peer(), 10 * QUEUES_AT_ONCE, 0
    for number in range(groups):
        group(peer, f"CG-{number}")
    peer.give(RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": is_order})
    while bench.broker.work():
        turns += 1
    assert turns >= groups // QUEUES_AT_ONCE - 1  # the first slice is done at once


def test_topic_and_consumer_statistics(bench: Bench, peer: Peer) -> None:
    for _ in range(5):
        peer.ask(SEND, send_ext(), b"a")
    sent_ms = bench.clock.now_ms()
    group(peer, "CG")
    peer.pull(maxMsgNums="4")
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
    spans = body_of(peer, RequestCode.QUERY_CONSUME_TIME_SPAN, {"topic": "T", "group": "beginners"})
    times = {
        span["messageQueue"]["queueId"]: span["consumeTimeStamp"] for span in spans["consumeTimeSpanSet"]
    }
    assert (times[0], times[3]) == (sent_ms, -1)
    for code in (RequestCode.GET_TOPIC_STATS_INFO,):
        assert peer.ask(code, {"topic": "none"}).code == ResponseCode.TOPIC_NOT_EXIST


def test_rates(bench: Bench, peer: Peer) -> None:
    bench.broker.tick()
    for _ in range(60):
        for _ in range(2):
            peer.ask(SEND, send_ext(), b"a")
        bench.later(1_000)
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


def test_consume_queue_entries(peer: Peer) -> None:
    for tag in ("TagA", "TagB", ""):
        peer.ask(SEND, send_ext(properties=f"TAGS\x01{tag}\x02" if tag else ""), b"a")
    ext = {"topic": "T", "queueId": "0", "index": "1", "count": "5"}
    shown = body_of(peer, RequestCode.QUERY_CONSUME_QUEUE, ext)
    assert [entry["tagsCode"] for entry in shown["queueData"]] == [2598920, 0]
    assert (shown["minQueueIndex"], shown["maxQueueIndex"]) == (0, 3)
    assert (
        peer.ask(RequestCode.QUERY_CONSUME_QUEUE, {**ext, "queueId": "9"}).code == ResponseCode.SYSTEM_ERROR
    )


def test_views(bench: Bench, peer: Peer) -> None:
    for _ in range(5):
        peer.ask(SEND, send_ext(), b"a")
    group(peer, "CG")
    commit(peer, "CG", "T", 0, 2)
    state = bench.broker.state
    topic = state.topics.get("T")
    assert topic is not None
    assert finished(queues_of(state, topic)) == [QueueBounds(0, 0, 5)]
    (shown,) = filter(None, groups_view(state, ["CG", "nobody"]))
    assert (shown.group, shown.online, shown.members, shown.lag) == ("CG", False, [], 3)
    assert shown.topics == [TopicLag("T", 3, [QueueLag(0, 2, None, 5, 3)])]


def test_what_does_not_exist(peer: Peer) -> None:
    unknown = peer.ask(9999)
    assert (unknown.code, unknown.remark) == (3, " request type 9999 not supported")
