"""Recorded conversations with a real RocketMQ 5.3.3: the same requests, compared code by code and field by field.

The recorded broker had a past that a fresh one has not (messages, offsets, groups), and parts that ours does not
have yet; ``KNOWN`` says for each file which answers therefore differ.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from mqspark.protocol import fastjson
from mqspark.protocol.bodies.topic_bodies import TopicConfig
from mqspark.protocol.codes import RequestCode
from mqspark.protocol.command import Command
from mqspark.protocol.connection import Connection
from mqspark.protocol.session import Session
from tests.unit.broker_kit import Bench, Peer, last_registration, namesrv_peer

FRAMES = Path(__file__).parents[2] / "golden" / "frames"

KNOWN: dict[str, dict[tuple[int, int, int], int]] = {
    # file → (request code, our answer, recorded answer) → how often
    "errors": {},
    "errors_bin": {},
    "pull_raw": {},
    "send_sync": {(105, 0, 17): 1},  # a topic that the recording creates on the way
    "send_batch": {},
    "send_batch_bin": {(105, 17, 0): 2},  # retry topics of groups that were there
    "send_props": {},
    "send_props_bin": {},
    "send_oneway": {},
    "send_async": {},
    "admin_addWritePerm": {},
    "admin_allocateMQ": {},
    "admin_brokerConsumeStats": {},
    "admin_brokerStatus": {},
    "admin_cleanUnusedTopic": {},
    "admin_clusterList": {},
    "admin_deleteKvConfig": {},
    "admin_deleteSubGroup": {},
    "admin_deleteTopic": {},
    "admin_getBrokerConfig": {},
    "admin_getNamesrvConfig": {},
    "admin_sendMessage": {},
    "admin_topicList": {},
    "admin_topicList_c": {},
    "admin_topicRoute": {},
    "admin_topicRoute_bin": {},
    "admin_topicStatus": {},
    "admin_updateBrokerConfig": {},
    "admin_updateKvConfig": {},
    "admin_updateSubGroup": {},
    "admin_updateTopic": {},
    "admin_updateTopic_attr": {},
    "admin_updateTopic_order": {},
    "admin_wipeWritePerm": {},
    "broker_register_heartbeat": {},
    "tx": {},
    "tx_bin": {},
    "tx_timeout_below_op_interval": {},
    "tx_timeout_below_op_interval_bin": {(105, 17, 0): 2},  # a retry topic that was there
}


def decode(frame_hex: str) -> Command:
    (command,) = Connection().receive_data(bytes.fromhex(frame_hex))
    return command


@pytest.mark.parametrize("name", KNOWN)
def test_the_same_requests_get_the_same_answers(name: str, tmp_path: Path) -> None:
    rows = [json.loads(line) for line in (FRAMES / f"{name}.jsonl").read_text().splitlines()]
    requests = {(row["conn"], row["opaque"]): decode(row["frame_hex"]) for row in rows if row["dir"] == "c2s"}
    bench = Bench(
        tmp_path,
        broker_name="broker-g",
        broker_cluster_name="GoldenCluster",
        trace_topic_enable=True,
        enable_property_filter=True,
    )
    for request in requests.values():
        topic = request.ext.get("topic") or request.ext.get("b") or ""
        if topic.startswith("Fr"):
            bench.broker.state.topics.put(
                TopicConfig(topic_name=topic, read_queue_nums=2, write_queue_nums=2)
            )
    namesrv, _, registrar = namesrv_peer()
    registration = last_registration(bench.broker)
    namesrv.kv.put("ORDER_TOPIC_CONFIG", "AdminOrder", "broker-g:2")
    registrar.ask(RequestCode.REGISTER_BROKER, registration.header, registration.body)

    peers: dict[int, Peer] = {}
    answers: dict[tuple[int, int], Command] = {}
    for row in rows:
        if row["dir"] != "c2s":
            continue
        number = row["conn"]
        if number not in peers:
            to_broker = row["peer"] == "broker"
            session = Session(1_000 + number, "127.0.0.1", 41_000 + number, [])
            peers[number] = bench.peer() if to_broker else Peer(namesrv, session)
        peers[number].give_frame(bytes.fromhex(row["frame_hex"]))
        bench.broker.turn()
        bench.housekeeping()
        while bench.broker.work_waits:
            bench.broker.work()
        for other, peer in peers.items():
            answers.update(((other, heard.opaque), heard) for heard in peer.heard() if heard.is_response)
    bench.close()

    differences: Counter[tuple[int, int, int]] = Counter()
    compared = 0
    for row in rows:
        key = (row["conn"], row["opaque"])
        if (
            row["dir"] != "s2c"
            or key not in requests
            or not (recorded := decode(row["frame_hex"])).is_response
        ):
            continue
        compared += 1
        ours, request = answers[key], requests[key]
        if ours.code != recorded.code:
            differences[(request.code, ours.code, recorded.code)] += 1
            continue
        assert ours.ext.keys() >= recorded.ext.keys(), request
        assert bool(ours.remark) >= (recorded.code != 0), request
        assert bool(len(ours.body)) == bool(len(recorded.body)), request
        is_text = request.code in (RequestCode.GET_BROKER_CONFIG, RequestCode.GET_NAMESRV_CONFIG)
        if bytes(recorded.body[:1]) == b"{" and not is_text:
            assert fastjson.loads(ours.body).keys() == fastjson.loads(recorded.body).keys(), request
    assert compared
    assert dict(differences) == KNOWN[name]
