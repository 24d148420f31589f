"""What tools ask of parts of RocketMQ that are not there; queue entries and attributes as they are shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mqspark.protocol.bodies.body import encode_body
from mqspark.protocol.bodies.topic_bodies import SubscriptionGroupConfig
from mqspark.protocol.codes import RequestCode, ResponseCode
from tests.unit.broker_kit import SEND, Bench, Peer, send_ext


def shown(peer: Peer, code: int, ext: dict[str, str] | None = None) -> Any:
    answer = peer.ask(code, ext)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return json.loads(bytes(answer.body))


@pytest.mark.parametrize(
    ("code", "refusal", "remark"),
    [
        (RequestCode.AUTH_CREATE_USER, 1, "no users yet"),
        (RequestCode.AUTH_LIST_ACL, 1, "no access control yet"),
        (RequestCode.GET_BROKER_EPOCH_CACHE, 1, "this request only for controllerMode"),
        (RequestCode.CHECK_ROCKSDB_CQ_WRITE_PROGRESS, 3, "RocksDB"),
        (RequestCode.ADD_BROKER, 3, "no container"),
    ],
)
def test_what_is_missing_is_named(bench: Bench, code: int, refusal: int, remark: str) -> None:
    answer = bench.peer().ask(code)
    assert answer.code == refusal
    assert remark in (answer.remark or "")


@pytest.mark.parametrize(
    "code",
    [
        RequestCode.RESET_MASTER_FLUSH_OFFSET,
        RequestCode.EXPORT_ROCKSDB_CONFIG_TO_JSON,
        RequestCode.POP_ROLLBACK,
    ],
)
def test_what_has_nothing_to_do_succeeds(bench: Bench, code: int) -> None:
    answer = bench.peer().ask(code)
    assert (answer.code, answer.remark, bytes(answer.body)) == (0, None, b"")


def test_a_master_without_replicas(bench: Bench, peer: Peer) -> None:
    peer.ask(SEND, send_ext(), b"body")
    info = shown(peer, RequestCode.GET_BROKER_HA_STATUS)
    assert info["master"] is True
    assert info["masterCommitLogMaxOffset"] == bench.store.log.position > 0
    assert (info["inSyncSlaveNums"], info["haConnectionInfo"]) == (0, [])


@pytest.mark.parametrize(
    ("ext", "code"), [({"E_T": "F"}, 0), ({"E_T": "R"}, 29), ({"E_T": "X"}, 29), ({}, 29)]
)
def test_the_timer_engine_is_the_wheel(bench: Bench, ext: dict[str, str], code: int) -> None:
    assert bench.peer().ask(RequestCode.SWITCH_TIMER_ENGINE, ext).code == code


def test_without_a_wheel_there_is_no_engine(tmp_path: Path) -> None:
    bench = Bench(tmp_path, store_settings={"timer_wheel_enable": False})
    answer = bench.peer().ask(RequestCode.SWITCH_TIMER_ENGINE, {"E_T": "F"})
    assert (answer.code, answer.remark) == (29, "broker timerWheelEnable is false")


def test_entries_are_shown_as_they_are_in_the_file(bench: Bench, peer: Peer) -> None:
    """Not as their messages are: a delayed one has its deliver time where others have the hash of their tags."""
    peer.ask(SEND, send_ext(properties="TAGS\x01a\x02DELAY\x013\x02"), b"body")
    body = shown(
        peer,
        RequestCode.QUERY_CONSUME_QUEUE,
        {"topic": "SCHEDULE_TOPIC_XXXX", "queueId": "2", "index": "0", "count": "5"},
    )
    (entry,) = body["queueData"]
    assert entry["tagsCode"] == bench.clock.now_ms() + 10_000
    assert entry["physicOffset"] == 0
    assert entry["physicSize"] == bench.store.log.position
    assert (body["minQueueIndex"], body["maxQueueIndex"]) == (0, 1)


@pytest.mark.parametrize(
    ("index", "count", "entries"), [(0, 2, 2), (2, 9, 1), (3, 1, 0), (0, 0, 0), (-5, 6, 1)]
)
def test_entries_from_an_index_on(peer: Peer, index: int, count: int, entries: int) -> None:
    for _ in range(3):
        peer.ask(SEND, send_ext(), b"body")
    ext = {"topic": "T", "queueId": "0", "index": str(index), "count": str(count), "consumerGroup": "Nobody"}
    body = shown(peer, RequestCode.QUERY_CONSUME_QUEUE, ext)
    assert len(body["queueData"]) == entries
    assert body["filterData"] == "Nobody@T is not online!"


def test_groups_take_no_other_attributes(bench: Bench, peer: Peer) -> None:
    name, remark = "+a", "unsupported key: a"
    config = SubscriptionGroupConfig(group_name="CG", attributes={name: "1"})
    answer = peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, encode_body(config))
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, remark)
    assert "CG" not in bench.broker.state.subscriptions
    config.attributes = {f"-{name[1:]}": ""}
    answer = peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, encode_body(config))
    remark = f"only add attribute is supported while creating topic. key: {name[1:]}"
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, remark)
    config.attributes = {}
    assert peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, encode_body(config)).code == 0
    config.attributes = {f"-{name[1:]}": ""}
    answer = peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, encode_body(config))
    assert answer.remark == f"attempt to delete a nonexistent key: {name[1:]}"


def test_sizes_of_what_was_put_since_the_start(bench: Bench, peer: Peer) -> None:
    for _ in range(2):
        peer.ask(SEND, send_ext(), b"body")
    size_bytes = bench.store.log.position
    table = bench.broker.runtime_info()
    assert table["putMessageSizeTotal"] == str(size_bytes)
    assert table["putMessageAverageSize"] == str(size_bytes / 2)
    bench.reopen()
    assert bench.broker.runtime_info()["putMessageSizeTotal"] == "0"
