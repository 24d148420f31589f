"""Pulls: checks in RocketMQ's order, long polling, tag filters, bounds."""

from __future__ import annotations

from pathlib import Path

import pytest

from mqspark.broker.pull import pull as pull_module
from mqspark.message import java_hash
from mqspark.protocol.bodies.topic_bodies import TopicConfig
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.record.record import decode_records
from tests.support.remoting import heartbeat_body, subscription
from tests.unit.broker_kit import PULL, SEND, Bench, Peer, pull_ext, send_ext

SUSPEND = "6"  # expression in the request, may wait


def put(bench: Bench, *tags: str, topic: str = "T", queue_id: int = 0) -> None:
    peer = bench.peer()
    for tag in tags:
        peer.ask(SEND, send_ext(topic, queue_id, f"TAGS\x01{tag}\x02" if tag else ""), tag.encode() or b"-")


def heartbeat(
    peer: Peer,
    expression: str = "*",
    *,
    group: str = "CG",
    topic: str = "T",
    version: int = 5,
    model: str = "CLUSTERING",
    expression_type: str = "TAG",
    client: str = "c1",
) -> None:
    tags = [] if expression == "*" else [tag.strip() for tag in expression.split("||")]
    more = {"tagsSet": tags, "codeSet": [java_hash(tag) for tag in tags], "expressionType": expression_type}
    body = heartbeat_body(client, {group: [subscription(topic, expression, version, **more)]}, model=model)
    assert peer.ask(RequestCode.HEART_BEAT, {}, body).code == 0


def test_offsets_and_statuses(bench: Bench, peer: Peer) -> None:
    put(bench, "A", "B", "C")

    def pull(offset: int) -> tuple[int, str | None, str]:
        answer = peer.pull(offset=offset)
        assert (answer.ext["minOffset"], answer.ext["maxOffset"]) == ("0", "3")
        assert answer.ext["suggestWhichBrokerId"] == "0"
        return answer.code, answer.remark, answer.ext["nextBeginOffset"]

    assert pull(0) == (0, "FOUND", "3")
    assert pull(2) == (0, "FOUND", "3")
    assert pull(3) == (19, "OFFSET_OVERFLOW_ONE", "3")
    assert pull(4) == (21, "OFFSET_OVERFLOW_BADLY", "3")
    bench.store.deletions.positions["T"] = 0
    assert pull(4) == (21, "OFFSET_OVERFLOW_BADLY", "0"), "a queue of an old name begins anew"
    bench.broker.store.config.young_queue_from_start = False
    assert pull(4) == (21, "OFFSET_OVERFLOW_BADLY", "3")
    assert pull(-1) == (21, "OFFSET_TOO_SMALL", "0")


def test_an_empty_queue(bench: Bench, peer: Peer) -> None:
    put(bench, "A")
    never_sent_to = peer.pull(queue_id=1)
    assert (never_sent_to.code, never_sent_to.remark) == (19, "NO_MESSAGE_IN_QUEUE")
    moved = peer.pull(queue_id=1, offset=7)
    assert (moved.code, moved.ext["nextBeginOffset"], moved.ext["minOffset"]) == (21, "0", "0")


def test_bodies_are_the_records(bench: Bench) -> None:
    put(bench, "A", "B")
    answer = bench.peer().pull(maxMsgNums="1")
    assert [m.body for m in decode_records(answer.body)] == [b"A"]
    assert answer.ext["nextBeginOffset"] == "1"


def test_expression_in_the_request(bench: Bench, peer: Peer) -> None:
    put(bench, "A", "B", "A")
    answer = peer.pull(subscription=" A || C ")
    assert [m.body for m in decode_records(answer.body)] == [b"A", b"A"]
    none = peer.pull(subscription="Z")
    assert (none.code, none.remark, none.ext["nextBeginOffset"]) == (20, "NO_MATCHED_MESSAGE", "3")


def test_expression_of_the_heartbeat(bench: Bench, peer: Peer) -> None:
    put(bench, "A", "B")
    heartbeat(peer, "B")
    answer = peer.pull(sysFlag="0", subscription="ignored", subVersion="5")
    assert [m.body for m in decode_records(answer.body)] == [b"B"]


@pytest.mark.parametrize(
    ("ext", "code"),
    [
        ({"topic": "Nope"}, 17),
        ({"queueId": "4"}, 29),
        ({"queueId": "-1"}, 29),
        ({"consumerGroup": "bad group!"}, 26),
        ({"sysFlag": "0"}, 24),
        ({"expressionType": "SQL92", "subscription": "a > 1"}, 1),
        ({"topic": "WriteOnly"}, 16),
    ],
)
def test_refusals(bench: Bench, ext: dict[str, str], code: int) -> None:
    put(bench, "A")
    bench.broker.state.topics.put(TopicConfig(topic_name="WriteOnly", perm=2))
    answer = bench.peer().ask(PULL, {**pull_ext(), **ext})
    assert answer.code == code
    assert answer.remark


def test_refusals_that_depend_on_the_group(bench: Bench, peer: Peer) -> None:
    put(bench, "A")
    heartbeat(peer, "A")
    assert peer.pull("T", sysFlag="0", subVersion="6").code == 25
    put(bench, "A", topic="Other")
    assert peer.pull("Other", sysFlag="0").code == 24
    forbid = {"group": "CG", "topic": "T", "readable": "false"}
    peer.ask(RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, forbid)
    answer = peer.pull(sysFlag="0")
    assert (answer.code, answer.ext["forbiddenType"]) == (16, "5")
    config = b'{"groupName":"CG","consumeBroadcastEnable":false}'
    peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, config)
    heartbeat(peer, "A", model="BROADCASTING", version=7)
    assert peer.pull(sysFlag="0").ext["forbiddenType"] == "4"
    peer.ask(
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, b'{"groupName":"CG","consumeEnable":false}'
    )
    assert peer.pull().ext["forbiddenType"] == "2"


def test_a_sql_subscription_is_refused_in_words(bench: Bench, peer: Peer) -> None:
    put(bench, "A")
    heartbeat(peer, "a > 1", expression_type="SQL92")
    answer = peer.pull(sysFlag="0")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "SQL92" in (answer.remark or "")


def test_a_broker_that_may_not_be_read(tmp_path: Path) -> None:
    bench = Bench(tmp_path, broker_permission=2)
    put(bench, "A")
    answer = bench.peer().pull()
    assert (answer.code, answer.ext["forbiddenType"]) == (16, "1")


def test_the_fast_port_serves_no_pulls(bench: Bench) -> None:
    put(bench, "A")
    fast = bench.peer(fast=True)
    assert fast.pull().code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert fast.ask(SEND, send_ext(), b"x").code == 0


def test_the_commit_bit_commits(bench: Bench, peer: Peer) -> None:
    put(bench, "A", "B")
    peer.pull(commitOffset="1")
    ext = {"consumerGroup": "CG", "topic": "T", "queueId": "0", "setZeroIfNotFound": "false"}
    assert peer.ask(RequestCode.QUERY_CONSUMER_OFFSET, ext).code == 22
    peer.pull(sysFlag="5", commitOffset="1")
    assert peer.ask(RequestCode.QUERY_CONSUMER_OFFSET, ext).ext == {"offset": "1"}


# --- long polling ---


def test_a_parked_pull_is_woken_by_a_message(bench: Bench, peer: Peer) -> None:
    put(bench, "A")
    opaque = peer.give_pull(offset=1, sysFlag=SUSPEND)
    bench.broker.turn()
    assert peer.heard() == []
    put(bench, "B", queue_id=1)  # another queue
    assert peer.heard() == []
    put(bench, "B")
    (answer,) = peer.heard()
    assert (answer.opaque, answer.code) == (opaque, 0)
    assert [m.body for m in decode_records(answer.body)] == [b"B"]
    assert bench.broker.pulls.parked.count == 0


def test_under_sync_flush_a_pull_sees_only_what_is_synced(tmp_path: Path) -> None:
    bench = Bench(tmp_path, sync=True)
    put(bench, "A")
    peer = bench.peer()
    peer.give_pull(offset=1, sysFlag=SUSPEND)
    bench.broker.turn()
    bench.peer().give(SEND, send_ext(), b"B")
    bench.broker.turn()
    assert peer.heard() == []
    bench.flush()
    assert [answer.code for answer in peer.heard()] == [0]


def test_a_suspension_ends(bench: Bench, peer: Peer) -> None:
    put(bench, "A")
    peer.give_pull(offset=1, sysFlag=SUSPEND, suspendTimeoutMillis="1000")
    peer.give_pull(offset=1, sysFlag=SUSPEND, suspendTimeoutMillis="5000")
    bench.broker.turn()
    bench.later(999)
    assert peer.heard() == []
    bench.later(1)
    (answer,) = peer.heard()
    assert (answer.code, answer.remark, answer.ext["nextBeginOffset"]) == (19, "OFFSET_OVERFLOW_ONE", "1")
    bench.later(4_000)
    assert [answer.code for answer in peer.heard()] == [19]
    assert bench.broker.pulls.parked.count == 0


def test_an_unwanted_message_leaves_the_pull_parked_and_is_not_looked_at_again(bench: Bench) -> None:
    put(bench, "A")
    peer = bench.peer()
    opaque = peer.give_pull(offset=1, sysFlag=SUSPEND, subscription="W")
    bench.broker.turn()
    put(bench, "A", "B")
    assert peer.heard() == []
    assert bench.broker.pulls.parked.count == 1
    put(bench, "W")
    (answer,) = peer.heard()
    assert (answer.opaque, answer.ext["nextBeginOffset"]) == (opaque, "4")
    assert [m.body for m in decode_records(answer.body)] == [b"W"]


def test_a_suspension_that_saw_only_unwanted_messages_reports_the_way_it_came(bench: Bench) -> None:
    put(bench, "A")
    peer = bench.peer()
    peer.give_pull(offset=1, sysFlag=SUSPEND, subscription="W")
    bench.broker.turn()
    put(bench, "A", "B")
    bench.later(15_000)
    (answer,) = peer.heard()
    assert (answer.code, answer.remark, answer.ext["nextBeginOffset"]) == (20, "NO_MATCHED_MESSAGE", "3")


def test_a_pull_may_wait_for_a_queue_that_does_not_exist_yet(bench: Bench, peer: Peer) -> None:
    put(bench, "A")
    peer.give_pull(queue_id=2, sysFlag=SUSPEND)
    bench.broker.turn()
    put(bench, "B", queue_id=2)
    assert [answer.code for answer in peer.heard()] == [0]


def test_parked_pulls_are_bounded(tmp_path: Path) -> None:
    bench = Bench(tmp_path, pull_thread_pool_queue_capacity=2)
    put(bench, "A")
    peer = bench.peer()
    for _ in range(3):
        peer.give_pull(offset=1, sysFlag=SUSPEND)
    bench.broker.turn()
    assert [answer.code for answer in peer.heard()] == [ResponseCode.SYSTEM_BUSY]


def test_pulls_of_a_lost_connection_are_dropped(bench: Bench, peer: Peer) -> None:
    put(bench, "A")
    peer.give_pull(offset=1, sysFlag=SUSPEND)
    bench.broker.turn()
    peer.disconnect()
    put(bench, "B")
    assert peer.session.out == []
    assert bench.broker.pulls.parked.count == 0


def test_one_connection_cannot_take_everything_in_a_turn(tmp_path: Path) -> None:
    bench = Bench(tmp_path, pull_bytes_per_turn=1_000)
    bench.peer().ask(SEND, send_ext(), b"x" * 900)
    peer, other = bench.peer(), bench.peer()
    for _ in range(3):
        peer.give_pull()
    other.give_pull()
    bench.broker.turn()
    assert [answer.code for answer in peer.heard()] == [0, ResponseCode.SYSTEM_BUSY, ResponseCode.SYSTEM_BUSY]
    assert [answer.code for answer in other.heard()] == [0]
    assert peer.pull().code == 0  # the next turn


def test_a_server_side_reset_moves_the_next_pull(bench: Bench, peer: Peer) -> None:
    put(bench, "A", "B", "C")
    peer.pull(sysFlag="5", commitOffset="3", offset=3)
    reset = {"group": "CG", "topic": "T", "timestamp": "0", "isForce": "true"}
    answer = peer.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset)
    assert answer.code == 0
    commit = {"consumerGroup": "CG", "topic": "T", "queueId": "0", "commitOffset": "3"}
    assert peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, commit).code == 0  # overtaken by the reset
    moved = peer.pull(offset=3, sysFlag="5", commitOffset="3")
    assert bench.broker.state.offsets.queues("CG", "T")[0] == 0
    assert (moved.code, moved.remark, moved.ext["nextBeginOffset"]) == (21, "OFFSET_RESET", "0")
    assert peer.pull(offset=3).code == 19


def test_a_bulk_reader_is_given_more(bench: Bench, peer: Peer) -> None:
    """Others are not, and a count that the reader asks for holds."""
    put(bench, *["A", "B"] * 50)
    assert peer.pull(maxMsgNums="1000").ext["nextBeginOffset"] == "32"
    for name in ("mqsparkbulk", "bulk"):
        assert peer.pull(maxMsgNums="1000", **{name: "true"}).ext["nextBeginOffset"] == "32"
    assert peer.pull(maxMsgNums="1000", mqsparkBulk="false").ext["nextBeginOffset"] == "32"
    answer = peer.pull(maxMsgNums="1000", mqsparkBulk="true")
    assert [message.queue_offset for message in decode_records(answer.body)] == list(range(100))
    assert answer.ext["nextBeginOffset"] == "100"
    assert peer.pull(maxMsgNums="40", mqsparkBulk="true").ext["nextBeginOffset"] == "40"
    tagged = peer.pull(maxMsgNums="1000", mqsparkBulk="true", subscription="B")
    assert [message.queue_offset for message in decode_records(tagged.body)] == list(range(1, 100, 2))


def test_bulk_has_limits_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {"max_transfer_count_on_bulk_read": 50, "max_transfer_bytes_on_bulk_read": 1}
    bench = Bench(tmp_path, store_settings=limits)
    put(bench, *["A"] * 100)
    peer, other = bench.peer(), bench.peer()
    bulk = pull_ext(maxMsgNums="1000", mqsparkBulk="true")
    assert peer.ask(PULL, bulk).ext["nextBeginOffset"] == "50", "never fewer bytes than others get"
    monkeypatch.setattr(pull_module, "BULK_BYTES_PER_TURN", 1)
    for _ in range(2):
        peer.give(PULL, bulk)
    other.give(PULL, bulk)
    bench.broker.turn()
    assert [answer.ext["nextBeginOffset"] for answer in peer.heard()] == ["50", "32"]
    assert [answer.ext["nextBeginOffset"] for answer in other.heard()] == ["50"]
