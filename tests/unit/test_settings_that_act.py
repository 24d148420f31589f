"""Settings of RocketMQ that no other test is about: each changes what a broker or a name server does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mqspark.broker.send.fastfail import FastFail
from mqspark.message import PERM_READ, PERM_WRITE, encode_properties
from mqspark.namesrv.config import NamesrvConfig
from mqspark.protocol.bodies.body import decode_body, encode_body
from mqspark.protocol.bodies.client_bodies import (
    HeartbeatData,
    ProducerData,
    QueryAssignmentRequestBody,
    QueryAssignmentResponseBody,
)
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command
from tests.unit.broker_kit import SEND, Bench, namesrv_peer, pull_ext, send_ext


def filled(directory: Path, count: int = 10, **settings: Any) -> Bench:
    bench = Bench(directory, **settings)
    peer = bench.peer()
    for number in range(count):
        assert peer.ask(SEND, send_ext(), b"%d" % number).code == 0
    return bench


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize(
    ("setting", "topic"), [("cluster_topic_enable", "C"), ("broker_topic_enable", "b-a")]
)
def test_the_topics_of_cluster_and_broker(tmp_path: Path, setting: str, topic: str, enabled: bool) -> None:
    """clusterTopicEnable, brokerTopicEnable: whether their routes say that clients may read and write."""
    bench = Bench(tmp_path, **{setting: enabled})
    found = bench.broker.state.topics.get(topic)
    assert found is not None
    assert found.config.perm & (PERM_READ | PERM_WRITE) == (PERM_READ | PERM_WRITE if enabled else 0)
    bench.close()


def test_the_topic_of_traces(tmp_path: Path) -> None:
    """msgTraceTopicName."""
    bench = Bench(tmp_path, trace_topic_enable=True, msg_trace_topic_name="My_Traces")
    assert bench.peer().ask(SEND, send_ext("My_Traces"), b"x").code == 0
    assert "My_Traces" in bench.broker.state.topics
    assert "RMQ_SYS_TRACE_TOPIC" not in bench.broker.state.topics
    bench.close()


@pytest.mark.parametrize("enabled", [True, False])
def test_lite_pulls(tmp_path: Path, enabled: bool) -> None:
    """litePullMessageEnable."""
    bench = filled(tmp_path, lite_pull_message_enable=enabled)
    answer = bench.peer().ask(RequestCode.LITE_PULL_MESSAGE, pull_ext())
    assert answer.code == (0 if enabled else ResponseCode.NO_PERMISSION)
    bench.close()


def test_short_polling(tmp_path: Path) -> None:
    """shortPollingTimeMills."""
    bench = filled(tmp_path, long_polling_enable=False, short_polling_time_mills=3_000)
    peer = bench.peer()
    peer.give(RequestCode.PULL_MESSAGE, pull_ext(offset=10, sysFlag="6", suspendTimeoutMillis="15000"))
    bench.run_for(2_500)
    assert peer.heard() == []
    bench.run_for(1_500)
    assert [answer.code for answer in peer.heard()] == [ResponseCode.PULL_NOT_FOUND]
    bench.close()


@pytest.mark.parametrize("balanced", [True, False])
def test_queues_are_shared_by_the_broker(tmp_path: Path, balanced: bool) -> None:
    """serverLoadBalancerEnable: without it everybody gets all queues."""
    bench = filled(tmp_path, 1, server_load_balancer_enable=balanced)
    question = QueryAssignmentRequestBody(
        topic="T", consumer_group="Nobody", client_id="c", strategy_name="AVG", message_model="CLUSTERING"
    )
    answer = bench.peer().ask(RequestCode.QUERY_ASSIGNMENT, body=encode_body(question))
    assert answer.code == 0
    assigned = decode_body(QueryAssignmentResponseBody, answer.body).message_queue_assignments
    assert bool(assigned) is not balanced
    bench.close()


def test_silent_clients_are_forgotten(tmp_path: Path) -> None:
    """channelExpiredTimeout."""
    bench = Bench(tmp_path, channel_expired_timeout=30_000)
    heartbeat = HeartbeatData(client_id="c1", producer_data_set=[ProducerData("PG")])
    assert bench.peer().ask(RequestCode.HEART_BEAT, body=encode_body(heartbeat)).code == 0
    bench.run_for(25_000)
    assert len(bench.broker.state.clients.producer_members("PG")) == 1
    bench.run_for(20_000)
    assert len(bench.broker.state.clients.producer_members("PG")) == 0
    bench.close()


@pytest.mark.parametrize("allowed", [True, False])
def test_recalls_where_nobody_may_write(tmp_path: Path, allowed: bool) -> None:
    """allowRecallWhenBrokerNotWriteable."""
    bench = Bench(tmp_path, recall_message_enable=True, allow_recall_when_broker_not_writeable=allowed)
    timed = encode_properties({"TIMER_DELAY_SEC": "100", "UNIQ_KEY": "U1"}).decode()
    sent = bench.peer().ask(SEND, send_ext(properties=timed), b"later")
    bench.config.broker_permission = 4
    recall = {"topic": "T", "recallHandle": sent.ext["recallHandle"], "producerGroup": "PG"}
    answer = bench.peer().ask(RequestCode.RECALL_MESSAGE, recall)
    assert answer.code == (0 if allowed else ResponseCode.SERVICE_NOT_AVAILABLE)
    bench.close()


def test_reads_of_what_is_not_in_memory_are_short(tmp_path: Path) -> None:
    """maxTransferCountOnMessageInDisk."""
    settings = {"access_message_in_memory_max_ratio": 0, "max_transfer_count_on_message_in_disk": 3}
    bench = filled(tmp_path, store_settings=settings)
    answer = bench.peer().ask(RequestCode.PULL_MESSAGE, pull_ext(maxMsgNums="8"))
    assert answer.ext["nextBeginOffset"] == "3"
    bench.close()


@pytest.mark.parametrize(
    ("setting", "code"),
    [
        ("wait_time_mills_in_lite_pull_queue", RequestCode.LITE_PULL_MESSAGE),
        ("wait_time_mills_in_heartbeat_queue", RequestCode.HEART_BEAT),
        ("wait_time_mills_in_transaction_queue", RequestCode.END_TRANSACTION),
        ("wait_time_mills_in_ack_queue", RequestCode.ACK_MESSAGE),
        ("wait_time_mills_in_admin_broker_queue", RequestCode.GET_BROKER_CONFIG),
    ],
)
def test_requests_that_waited_too_long_are_refused(tmp_path: Path, setting: str, code: int) -> None:
    """waitTimeMillsInLitePullQueue, …HeartbeatQueue, …TransactionQueue, …AckQueue, …AdminBrokerQueue."""
    bench = Bench(tmp_path, **{setting: 50})
    fast_fail = FastFail(bench.config, [RequestCode.GET_BROKER_CONFIG])
    session = bench.peer().session
    commands = [Command(code)]
    assert fast_fail.sift(session, commands, 49) == commands
    assert fast_fail.sift(session, commands, 50) == []
    bench.close()


@pytest.mark.parametrize("returned", [True, False])
def test_a_registration_is_answered_with_the_ordered_topics(returned: bool) -> None:
    """returnOrderTopicConfigToBroker."""
    _, _, peer = namesrv_peer(NamesrvConfig(return_order_topic_config_to_broker=returned))
    ordered = {"namespace": "ORDER_TOPIC_CONFIG", "key": "T", "value": "b-a:4"}
    assert peer.ask(RequestCode.PUT_KV_CONFIG, ordered).code == 0
    registration = {
        "brokerName": "b-a",
        "brokerAddr": "127.0.0.1:10911",
        "clusterName": "C",
        "haServerAddr": "127.0.0.1:10912",
        "brokerId": "0",
        "compressed": "false",
        "bodyCrc32": "0",
    }
    answer = peer.ask(RequestCode.REGISTER_BROKER, registration)
    assert answer.code == 0
    assert (b"b-a:4" in bytes(answer.body)) is returned
