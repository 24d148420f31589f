"""Static topics on two brokers: create, send, read, remap, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mqspark.protocol import fastjson
from mqspark.protocol.bodies.body import decode_body, encode_body
from mqspark.protocol.bodies.topic_bodies import TopicConfigAndQueueMapping
from mqspark.protocol.codes import RequestCode, ResponseCode
from tests.support.invariants import validate
from tests.support.remoting import topic_fields
from tests.unit.broker_kit import last_registration, namesrv_peer, pull_ext, send_ext
from tests.unit.static_kit import TOPIC, Pair, mapping, part

NOT_LEADER = ResponseCode.NOT_LEADER_FOR_QUEUE
ERROR = ResponseCode.SYSTEM_ERROR

QUEUE = {"topic": TOPIC, "queueId": "0"}
PROGRESS = {**QUEUE, "consumerGroup": "CG"}


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return Pair(tmp_path)


@pytest.fixture
def remapped(pair: Pair) -> Pair:
    """Three messages on b-a, then two on b-b, which leads the queue from logic offset 10,000 on."""
    pair.create()
    for number in range(3):
        pair.send("b-a", b"%d" % number)
    pair.remap()
    for number in range(3, 5):
        pair.send("b-b", b"%d" % number)
    return pair


# --- creating ----------------------------------------------------------------------------------------------


def test_a_static_topic_is_created_and_shown(pair: Pair) -> None:
    pair.create()
    ext = {"topic": TOPIC}
    plain = pair.ask("b-a", RequestCode.GET_TOPIC_CONFIG, ext)
    assert "mappingDetail" not in json.loads(plain.body)
    shown = decode_body(
        TopicConfigAndQueueMapping, pair.ask("b-a", RequestCode.GET_TOPIC_CONFIG, {**ext, "lo": "true"}).body
    )
    assert shown.mapping_detail == mapping("b-a", {0: [part("b-a", 0)]})
    table = json.loads(pair.ask("b-a", RequestCode.GET_ALL_TOPIC_CONFIG, {}).body)
    assert list(table["topicQueueMappingDetailMap"]) == [TOPIC]
    assert table["mappingDataVersion"]["counter"] == 1


@pytest.mark.parametrize("crash", [False, True])
def test_a_mapping_survives(pair: Pair, *, crash: bool) -> None:
    pair.create()
    pair.send("b-a", b"x")
    pair.sides["b-a"].bench.flush()
    pair.reopen("b-a", crash=crash)
    assert pair.read_all("b-a") == [(0, b"x")]
    assert pair.send("b-a", b"y", 1).code == NOT_LEADER
    bench = pair.sides["b-a"].bench
    document = fastjson.loads((bench.directory / "config" / "topicQueueMapping.json").read_bytes())
    detail = document["topicQueueMappingInfoMap"][TOPIC]
    assert list(detail) == [
        "bname", "currIdMap", "dirty", "epoch", "hostedQueues", "scope", "topic", "totalQueues",
    ]  # fmt: skip
    assert detail["hostedQueues"]["0"] == [
        {"bname": "b-a", "endOffset": -1, "gen": 0, "logicOffset": 0, "queueId": 0, "startOffset": 0,
         "timeOfEnd": -1, "timeOfStart": -1}
    ]  # fmt: skip


def test_the_mapping_is_saved_before_the_topic(pair: Pair) -> None:
    """Otherwise a static topic would be served as an ordinary one after a crash between the two."""
    bench = pair.sides["b-a"].bench
    pair.sides["b-a"].peer.give(
        RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC,
        topic_fields(TOPIC),
        json.dumps({"topic": TOPIC, "bname": "b-a", "totalQueues": 1, "epoch": 1,
                    "hostedQueues": {0: [{"bname": "b-a"}]}}).encode(),
    )  # fmt: skip
    bench.broker.turn()
    assert bench.broker.jobs_due
    for job in bench.broker.jobs():
        job.run()
    assert TOPIC in (bench.directory / "config" / "topicQueueMapping.json").read_text()
    topics = bench.directory / "config" / "topics.json"
    assert not topics.exists() or f'"{TOPIC}"' not in topics.read_text()


def test_a_deleted_topic_has_no_mapping(pair: Pair) -> None:
    pair.create()
    assert pair.ask("b-a", RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": TOPIC}).code == 0
    bench = pair.sides["b-a"].bench
    assert not bench.broker.state.mappings.table
    validate(bench.broker)
    assert bench.broker.state.mappings.ledger.bytes == 0


# --- refusals -----------------------------------------------------------------------------------------------

GOOD = {0: [part("b-a", 0)]}


@pytest.mark.parametrize(
    ("detail", "remark"),
    [
        (mapping("b-b", GOOD), "The broker name is not equal b-a != b-b "),
        (mapping("b-a", GOOD, dirty=True), "The mapping info is dirty in broker  b-a"),
        (mapping("b-a", GOOD, total=-1), "The total queue number -1 is not between 0 and 65536"),
        (mapping("b-a", GOOD, total=70_000), "The total queue number 70000 is not between 0 and 65536"),
        (mapping("b-a", {1: GOOD[0]}), "The queue number 1 is not below the total of 1"),
        (mapping("b-a", {0: []}), "The queue number 0 has 0 items, not 1 to 1024"),
        (mapping("b-a", {0: [part("b-a", 0, gen=-1)]}), "The field is illegal, should not be negative"),
        (mapping("b-a", {0: [part("b-a", 1 << 62)]}), f"The field is illegal, should not be over {1 << 61}"),
        (
            mapping("b-a", {0: [part("b-a", -1), part("b-a", 5, gen=1)]}),
            "The non-latest item has negative logic offset",
        ),
        (mapping("b-a", {0: [part("b-a", 0), part("b-a", 5)]}), "The gen does not increase monotonically"),
        (
            mapping("b-a", {0: [part("b-a", 9), part("b-a", 5, gen=1)]}),
            "The base logic offset does not increase monotonically",
        ),
        (
            mapping("b-a", {0: [part("b-a", 0, end_offset=9), part("b-a", 5, gen=1)]}),
            "The max logic offset does not increase monotonically",
        ),
        (
            mapping("b-a", {0: [part("b-a", 0, start_offset=3, end_offset=2)]}),
            "The endOffset is smaller than the start offset",
        ),
        (mapping("b-a", {0: [part("b-a", 0, queue_id=1)]}), "The physical queue id is overflow the write queues"),
        (mapping("b-a", {0: [part("b/a", 0)]}), None),
        (mapping("b-a", {0: [part("", 0)]}), "An item has no broker name of 1 to 127 characters"),
    ],
)  # fmt: skip
def test_a_wrong_mapping_is_refused(pair: Pair, detail: object, remark: str | None) -> None:
    answer = pair.put("b-a", detail)  # type: ignore[arg-type]
    assert answer.code == ERROR
    if remark is not None:
        assert answer.remark == remark
    state = pair.sides["b-a"].bench.broker.state
    assert TOPIC not in state.topics
    assert not state.mappings.table


@pytest.mark.parametrize(
    ("detail", "remark"),
    [
        (mapping("b-a", GOOD, epoch=999), "Can't accept data with small epoch 999 < 1000"),
        (mapping("b-a", GOOD, scope="x"), "Can't accept data with unmatched scope x != __global__"),
        (mapping("b-a", {}), "Cannot accept equal epoch with null data"),
        (mapping("b-a", {0: [part("b-a", 0), part("b-b", -1, gen=1)]}), "The new leader is different but epoch equal"),
        (
            mapping("b-a", {0: [part("b-a", 7)]}, epoch=1001),
            "The item of gen 0 is immutable, and it is not the same",
        ),
    ],
)  # fmt: skip
def test_a_mapping_that_does_not_follow_is_refused(pair: Pair, detail: object, remark: str) -> None:
    pair.create()
    answer = pair.put("b-a", detail)  # type: ignore[arg-type]
    assert (answer.code, answer.remark) == (ERROR, remark)
    assert pair.send("b-a", b"x").code == 0


def test_force_takes_an_older_epoch_and_keeps_the_other_queues(pair: Pair) -> None:
    pair.create()
    answer = pair.put(
        "b-a", mapping("b-a", {1: [part("b-a", 0, queue_id=1)]}, epoch=1, total=2), 2, force="true"
    )
    assert answer.code == 0
    assert pair.send("b-a", b"x", 0).code == pair.send("b-a", b"y", 1).code == 0


@pytest.mark.parametrize(
    ("topic", "code"), [("a b", ResponseCode.INVALID_PARAMETER), ("TBW102", ResponseCode.INVALID_PARAMETER)]
)
def test_names_are_checked_as_for_any_topic(pair: Pair, topic: str, code: int) -> None:
    assert pair.put("b-a", mapping("b-a", GOOD), topic=topic).code == code


def test_a_mapping_beyond_the_limit_is_not_read(pair: Pair) -> None:
    answer = pair.put("b-a", mapping("b-a", GOOD), body=b"[" * ((1 << 20) + 1))
    assert (answer.code, answer.remark) == (
        ERROR,
        "the mapping takes 1048577 bytes, at most 1048576 are read",
    )


@pytest.mark.parametrize("body", [b"", b"[]", b'{"topic":"S"', b'{"topic":"S","hostedQueues":{"x":[]}}'])
def test_a_body_that_is_no_mapping_is_refused(pair: Pair, body: bytes) -> None:
    answer = pair.put("b-a", mapping("b-a", GOOD), body=body)
    assert answer.code == ERROR
    assert TOPIC not in pair.sides["b-a"].bench.broker.state.topics


# --- requests -----------------------------------------------------------------------------------------------


def test_a_send_is_answered_in_the_logic_queue(remapped: Pair) -> None:
    answer = remapped.send("b-b", b"5")
    assert (answer.ext["queueId"], answer.ext["queueOffset"]) == ("0", "10002")
    anywhere = remapped.send("b-b", b"6", -1)
    assert (anywhere.code, anywhere.ext["queueOffset"]) == (0, "10003")
    for queue_id in (0, 1):
        refused = remapped.send("b-a", b"7", queue_id)
        assert refused.code == NOT_LEADER
        assert refused.remark == f"S-{queue_id} does not exit in request process of current broker b-a"


def test_a_message_of_a_queue_without_a_logic_offset_yet_has_none(pair: Pair) -> None:
    pair.create()
    undecided = [part("b-a", 0), part("b-b", -1, gen=1)]
    assert pair.put("b-b", mapping("b-b", {0: undecided}, epoch=2000)).code == 0
    answer = pair.send("b-b", b"early")
    assert (answer.code, answer.ext["queueOffset"]) == (0, "-1")
    # Nobody reads it yet: the end of the earlier part is not final.
    assert pair.pull("b-b", 0).code == ResponseCode.PULL_NOT_FOUND
    assert pair.put("b-a", mapping("b-a", {0: undecided}, epoch=2000)).code == 0
    decided = [part("b-a", 0), part("b-b", 5000, gen=1)]
    assert pair.put("b-b", mapping("b-b", {0: decided}, epoch=2000)).code == 0
    assert pair.read_all("b-b") == [(5000, b"early")]


def test_a_reader_goes_from_one_part_to_the_next(remapped: Pair) -> None:
    expected = [(0, b"0"), (1, b"1"), (2, b"2"), (10_000, b"3"), (10_001, b"4")]
    assert remapped.read_all("b-b") == expected
    assert remapped.read_all("b-b", 2) == expected[2:]
    assert remapped.read_all("b-b", 7_000) == expected[3:]
    answer = remapped.pull("b-a", 0)
    assert answer.code == NOT_LEADER
    assert answer.remark == "S-0 cannot find mapping item in request process of current broker b-a"


def test_a_reader_of_another_brokers_part_gets_its_offsets(remapped: Pair) -> None:
    answer = remapped.pull("b-b", 1)
    assert answer.code == 0
    ext = answer.ext
    assert (ext["nextBeginOffset"], ext["minOffset"], ext["maxOffset"], ext["offsetDelta"]) == (
        "3", "0", "10000", "0",
    )  # fmt: skip
    at_end = remapped.pull("b-b", 3)
    assert (at_end.code, at_end.ext["nextBeginOffset"]) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "10000")


def test_a_queue_that_comes_back_has_two_parts_here(remapped: Pair) -> None:
    parts = [part("b-a", 0), part("b-b", 10_000, gen=1), part("b-a", 20_000, gen=2, queue_id=1)]
    assert remapped.put("b-a", mapping("b-a", {0: parts}, epoch=3000), 2).code == 0
    assert remapped.put("b-b", mapping("b-b", {0: parts}, epoch=3000)).code == 0
    assert remapped.send("b-a", b"5").ext["queueOffset"] == "20000"
    assert [body for _, body in remapped.read_all("b-a")] == [b"0", b"1", b"2", b"3", b"4", b"5"]
    # The end of an earlier part of its own does not park the reader.
    suspended = remapped.pull("b-a", 3, sysFlag="6")
    assert (suspended.code, suspended.ext["nextBeginOffset"]) == (
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        "10000",
    )


def test_a_parked_pull_is_woken_and_one_whose_queue_moves_asks_again(pair: Pair) -> None:
    pair.create()
    assert pair.asked_for("b-a", RequestCode.PULL_MESSAGE, parked()) == []
    pair.sides["b-a"].bench.peer().ask(RequestCode.SEND_MESSAGE_V2, sent(), b"x")
    (woken,) = pair.sides["b-a"].peer.heard()
    assert (woken.code, woken.ext["nextBeginOffset"], woken.ext["offsetDelta"]) == (0, "1", "0")
    assert pair.asked_for("b-a", RequestCode.PULL_MESSAGE, parked("1")) == []
    undecided = [part("b-a", 0), part("b-b", -1, gen=1)]
    other = pair.sides["b-a"].bench.peer()
    pair.sides["b-a"].peer, waiting = other, pair.sides["b-a"].peer
    assert pair.put("b-a", mapping("b-a", {0: undecided}, epoch=2000)).code == 0
    (moved,) = waiting.heard()
    assert (moved.code, moved.ext["nextBeginOffset"]) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "1")


def parked(offset: str = "0") -> dict[str, str]:
    return pull_ext(TOPIC, 0, int(offset), sysFlag="6")


def sent() -> dict[str, str]:
    return send_ext(TOPIC, 0)


def test_bounds_of_a_logic_queue(remapped: Pair) -> None:
    assert remapped.ask("b-b", RequestCode.GET_MAX_OFFSET, QUEUE).ext["offset"] == "10002"
    assert remapped.ask("b-b", RequestCode.GET_MIN_OFFSET, QUEUE).ext["offset"] == "0"
    born = remapped.sides["b-a"].bench.clock.now_ms()
    assert remapped.ask("b-b", RequestCode.GET_EARLIEST_MSG_STORETIME, QUEUE).ext["timestamp"] == str(born)
    for code in (
        RequestCode.GET_MAX_OFFSET,
        RequestCode.GET_MIN_OFFSET,
        RequestCode.GET_EARLIEST_MSG_STORETIME,
    ):
        assert remapped.ask("b-a", code, QUEUE).code == NOT_LEADER
        assert remapped.ask("b-a", code, {**QUEUE, "lo": "false"}).code == 0, "the physical queue is there"


def test_searching_by_time_finds_the_first_part_that_reaches_it(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    clocks = [side.bench.clock for side in pair.sides.values()]

    def wait(ms: int) -> None:
        for clock in clocks:
            clock.advance(ms)

    try:
        begin = clocks[0].now_ms()
        pair.create()
        for _ in range(3):
            pair.send("b-a", b"x")
            wait(1000)
        pair.remap()
        for _ in range(2):
            pair.send("b-b", b"y")
            wait(1000)

        def search(ms: int) -> str:
            ext = {**QUEUE, "timestamp": str(begin + ms)}
            return pair.ask("b-b", RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, ext).ext["offset"]

        assert [search(ms) for ms in (-5, 1000, 1500, 2500, 3500, 9999)] == [
            "0", "1", "2", "10000", "10001", "10002",
        ]  # fmt: skip
    finally:
        pair.close()


def test_a_groups_progress_is_kept_where_its_part_is(remapped: Pair) -> None:
    remapped.pull("b-b", 0)  # makes the group
    remapped.pull("b-a", 0, lo="false")
    assert (
        remapped.ask("b-b", RequestCode.QUERY_CONSUMER_OFFSET, PROGRESS).code == ResponseCode.QUERY_NOT_FOUND
    )

    def commit(offset: int) -> int:
        ext = {**PROGRESS, "commitOffset": str(offset)}
        return remapped.ask("b-b", RequestCode.UPDATE_CONSUMER_OFFSET, ext).code

    def progress() -> str:
        return remapped.ask("b-b", RequestCode.QUERY_CONSUMER_OFFSET, PROGRESS).ext["offset"]

    offsets = {name: side.bench.broker.state.offsets for name, side in remapped.sides.items()}
    assert commit(2) == 0
    assert progress() == "2"
    assert offsets["b-a"].query("CG", TOPIC, 0) == 2
    assert offsets["b-b"].query("CG", TOPIC, 0) == -1
    assert commit(10_001) == 0
    assert progress() == "10001"
    assert offsets["b-b"].query("CG", TOPIC, 0) == 1
    answer = remapped.ask("b-a", RequestCode.QUERY_CONSUMER_OFFSET, PROGRESS)
    assert (answer.code, answer.remark) == (
        NOT_LEADER,
        "S-0 does not exit in request process of current broker b-a",
    )


def test_the_offset_that_a_pull_commits_is_one_of_the_logic_queue(remapped: Pair) -> None:
    remapped.pull("b-b", 10_001, sysFlag="5", commitOffset="10001")
    offsets = remapped.sides["b-b"].bench.broker.state.offsets
    assert offsets.query("CG", TOPIC, 0) == 1


def test_requests_fail_while_the_broker_of_a_part_is_away(remapped: Pair) -> None:
    remapped.is_cut = True
    for answer in (
        remapped.pull("b-b", 0),
        remapped.ask("b-b", RequestCode.GET_MIN_OFFSET, QUEUE),
        remapped.ask("b-b", RequestCode.QUERY_CONSUMER_OFFSET, PROGRESS),
    ):
        assert (answer.code, answer.remark) == (ERROR, "broker b-a is cut off")
    assert remapped.pull("b-b", 10_000).code == 0
    assert remapped.ask("b-b", RequestCode.GET_MAX_OFFSET, QUEUE).ext["offset"] == "10002"


def test_a_broker_that_does_not_answer_is_waited_for_and_no_longer(remapped: Pair) -> None:
    side = remapped.sides["b-b"]
    side.peer.give(RequestCode.GET_MIN_OFFSET, QUEUE)
    side.bench.broker.turn()
    ((number, question),) = side.bench.broker.state.peers.due()
    assert question.broker_name == "b-a"
    side.bench.run_for(2_900)
    assert side.peer.heard() == []
    side.bench.run_for(200)
    (answer,) = side.peer.heard()
    assert (answer.code, answer.remark) == (ERROR, "the other broker did not answer in 3000 ms")
    side.bench.broker.state.peers.failed(number, "late")
    validate(side.bench.broker)
    assert side.bench.broker.state.peers.ledger.bytes == 0


def test_a_broker_without_static_topics_asks_nobody(pair: Pair) -> None:
    pair.create()
    for number in range(5):
        pair.send("b-a", b"%d" % number)
    pair.read_all("b-a")
    pair.ask("b-a", RequestCode.GET_MAX_OFFSET, QUEUE)
    assert pair.asked == 0


def test_a_mapping_of_a_renamed_broker_leads_nothing(pair: Pair) -> None:
    pair.create()
    bench = pair.sides["b-a"].bench
    bench.settings = {**bench.settings, "broker_name": "b-c"}
    pair.reopen("b-a")
    assert pair.send("b-a", b"x").code == NOT_LEADER
    assert b'"topicQueueMappingInfoMap":{}' in last_registration(bench.broker).body


# --- the name server ----------------------------------------------------------------------------------------


def test_a_route_names_the_leaders(remapped: Pair) -> None:
    core, _, peer = namesrv_peer()
    for side in remapped.sides.values():
        registration = last_registration(side.bench.broker)
        header = registration.header
        header.broker_addr = f"10.0.0.{len(side.name)}:{10_000 + ord(side.name[-1])}"
        assert peer.ask(RequestCode.REGISTER_BROKER, header, registration.body).code == 0
    route = json.loads(peer.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": TOPIC}).body)
    assert route["topicQueueMappingByBroker"] == {
        name: {"bname": name, "currIdMap": ids, "dirty": False, "epoch": 2000, "scope": "__global__",
               "topic": TOPIC, "totalQueues": 1}
        for name, ids in (("b-a", {}), ("b-b", {"0": 0}))
    }  # fmt: skip
    ordinary = json.loads(peer.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "TBW102"}).body)
    assert "topicQueueMappingByBroker" not in ordinary
    core.routes.delete_topic(TOPIC)
    assert (core.routes.ledger.entries, core.routes.ledger.bytes) == (0, 0)


# --- cleaning -----------------------------------------------------------------------------------------------


def clean(pair: Pair, name: str) -> None:
    """Let the broker's next round of cleaning happen, at its hour."""
    bench = pair.sides[name].bench
    while not bench.store.upkeep.cleaner.is_hour:
        bench.clock.advance(3_600_000)
    bench.later(300_000)
    pair.talk(name)


def parts_of(pair: Pair, name: str) -> list[str | None]:
    static = pair.sides[name].bench.broker.state.mappings.table[TOPIC]
    return [part.bname for queue in static.queues.values() for part in queue.parts]


def test_a_part_without_messages_is_forgotten(pair: Pair) -> None:
    pair.create()
    pair.remap()
    pair.send("b-b", b"0")
    clean(pair, "b-b")
    assert parts_of(pair, "b-b") == ["b-b"]
    assert pair.read_all("b-b") == [(10_000, b"0")]
    assert pair.ask("b-b", RequestCode.GET_MIN_OFFSET, QUEUE).ext["offset"] == "10000"
    path = pair.sides["b-b"].bench.directory / "config" / "topicQueueMapping.json"
    assert b"b-a" not in path.read_bytes(), "the mapping is saved"


def test_a_part_with_messages_stays(remapped: Pair) -> None:
    clean(remapped, "b-b")
    assert parts_of(remapped, "b-b") == ["b-a", "b-b"]


def test_a_queue_that_is_being_remapped_keeps_its_only_readable_part(pair: Pair) -> None:
    pair.create()
    undecided = [part("b-a", 0), part("b-b", -1, gen=1)]
    assert pair.put("b-b", mapping("b-b", {0: undecided}, epoch=2000)).code == 0
    clean(pair, "b-b")
    assert parts_of(pair, "b-b") == ["b-a", "b-b"]


def test_nothing_is_forgotten_while_a_broker_is_away(pair: Pair) -> None:
    pair.create()
    pair.remap()
    pair.is_cut = True
    clean(pair, "b-b")
    assert parts_of(pair, "b-b") == ["b-a", "b-b"]
    pair.is_cut = False
    clean(pair, "b-b")
    assert parts_of(pair, "b-b") == ["b-b"]


def test_a_queue_that_has_moved_on_is_forgotten(tmp_path: Path) -> None:
    pair = Pair(tmp_path, names=("b-a", "b-b", "b-c"))
    try:
        pair.create()
        pair.send("b-a", b"0")
        pair.remap()
        parts = [part("b-a", 0), part("b-b", 10_000, gen=1), part("b-c", 20_000, gen=2)]
        for name in ("b-c", "b-b"):
            assert pair.put(name, mapping(name, {0: parts}, epoch=3000)).code == 0
        clean(pair, "b-a")
        assert parts_of(pair, "b-a") == ["b-a", "b-b"], "its epoch is an older one"
        assert pair.put("b-a", mapping("b-a", {}, epoch=3000)).code == 0
        clean(pair, "b-a")
        assert parts_of(pair, "b-a") == []
        assert parts_of(pair, "b-b") == ["b-a", "b-b", "b-c"], "its next broker is the leader"
        assert pair.read_all("b-c") == [(0, b"0")]
    finally:
        pair.close()


# --- messages that wait -------------------------------------------------------------------------------------


def test_a_delayed_message_goes_to_a_queue_that_is_written_to_when_it_is_due(pair: Pair) -> None:
    """Readers may have left its queue behind, which has moved meanwhile."""
    both = {0: [part("b-a", 0)], 1: [part("b-a", 0, queue_id=1)]}
    assert pair.put("b-a", mapping("b-a", both, total=2), 2).code == 0
    delayed = pair.send("b-a", b"late", 0, i="DELAY\x011\x02")
    assert (delayed.code, delayed.ext["queueId"]) == (0, "0")
    moved = {**both, 0: [part("b-a", 0), part("b-b", 10_000, gen=1)]}
    assert pair.put("b-a", mapping("b-a", moved, total=2, epoch=2000), 2).code == 0
    bench = pair.sides["b-a"].bench
    bench.run_for(3_000)
    assert [len(bench.records(TOPIC, queue_id)) for queue_id in range(2)] == [0, 1]
    answer = pair.pull("b-a", 0, queueId="1")
    assert (answer.code, answer.ext["nextBeginOffset"]) == (0, "1")


# --- what a remapping relies on -----------------------------------------------------------------------------


def test_a_change_is_answered_when_every_stored_message_is_readable(tmp_path: Path) -> None:
    """The tool asks next where the old queue ends, and readers leave it there."""
    pair = Pair(tmp_path, sync=True)
    try:
        pair.create()
        side = pair.sides["b-a"]
        bench, peer = side.bench, side.peer
        peer.give(RequestCode.SEND_MESSAGE_V2, sent(), b"x")
        undecided = [part("b-a", 0), part("b-b", -1, gen=1)]
        body = encode_body(mapping("b-a", {0: undecided}, epoch=2000))
        peer.give(RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC, topic_fields(TOPIC), body)
        for _ in range(3):
            bench.broker.turn()
            if bench.broker.jobs_due:
                bench.run_jobs()
            while bench.broker.work():
                pass
        assert bench.store.offsets.max_offset(TOPIC, 0) == 0, "the message is not synced"
        assert peer.heard() == []
        bench.flush()
        bench.broker.turn()
        assert [answer.code for answer in peer.heard()] == [0, 0]
        assert bench.store.offsets.max_offset(TOPIC, 0) == 1
    finally:
        pair.close()


def test_a_reader_at_an_end_that_is_not_final_is_answered_late(pair: Pair) -> None:
    """RocketMQ's broker answers at once, and its clients ask again at once."""
    pair.create()
    pair.send("b-a", b"x")
    undecided = [part("b-a", 0), part("b-b", -1, gen=1)]
    assert pair.put("b-b", mapping("b-b", {0: undecided}, epoch=2000)).code == 0
    assert pair.asked_for("b-b", RequestCode.PULL_MESSAGE, parked("1")) == []
    side = pair.sides["b-b"]
    side.bench.run_for(400)
    assert side.peer.heard() == []
    side.bench.run_for(200)
    (answer,) = side.peer.heard()
    assert (answer.code, answer.ext["nextBeginOffset"]) == (ResponseCode.PULL_NOT_FOUND, "1")


@pytest.mark.parametrize("where", [{"timestamp": "0"}, {"timestamp": "0", "queueId": "0", "offset": "1"}])
def test_a_group_is_not_reset_to_a_wrong_place(remapped: Pair, where: dict[str, str]) -> None:
    """Progress in a later part would hide that in an earlier one."""
    remapped.pull("b-b", 10_000)
    ext = {"topic": TOPIC, "group": "CG", "isForce": "true", **where}
    answer = remapped.ask("b-b", RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ext)
    assert answer.code == ERROR
    assert "have moved" in (answer.remark or "")
    end = {"topic": TOPIC, "group": "CG", "isForce": "true", "timestamp": "-1"}
    assert remapped.ask("b-b", RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, end).code == 0
    moved = remapped.pull("b-b", 10_000)
    assert (moved.code, moved.ext["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "10002")


def test_a_group_of_queues_that_have_not_moved_is_reset(pair: Pair) -> None:
    pair.create()
    pair.send("b-a", b"x")
    pair.pull("b-a", 1)
    ext = {"topic": TOPIC, "group": "CG", "isForce": "true", "timestamp": "0"}
    assert pair.ask("b-a", RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ext).code == 0
    moved = pair.pull("b-a", 1)
    assert (moved.code, moved.ext["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "0")
