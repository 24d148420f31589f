"""Settings of RocketMQ that no other test is about: each changes what a broker or a name server does."""

from __future__ import annotations

import asyncio
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
from mqspark_server.peers.registrar import Master, Registrar
from mqspark_server.process.diskwork import Flusher, Worker
from tests.support.scripted import SILENCE, Answer, Scripted
from tests.support.waiting import eventually_async
from tests.unit.broker_kit import SEND, Bench, last_registration, namesrv_peer, pull_ext, send_ext
from tests.unit.pop_kit import INVISIBLE_MS, pass_time, pop, put

REVIVAL_MS = 8_000


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


def test_the_topic_of_traces(tmp_path: Path) -> None:
    """msgTraceTopicName."""
    bench = Bench(tmp_path, trace_topic_enable=True, msg_trace_topic_name="My_Traces")
    assert bench.peer().ask(SEND, send_ext("My_Traces"), b"x").code == 0
    assert "My_Traces" in bench.broker.state.topics
    assert "RMQ_SYS_TRACE_TOPIC" not in bench.broker.state.topics


@pytest.mark.parametrize("enabled", [True, False])
def test_lite_pulls(tmp_path: Path, enabled: bool) -> None:
    """litePullMessageEnable."""
    bench = filled(tmp_path, lite_pull_message_enable=enabled)
    answer = bench.peer().ask(RequestCode.LITE_PULL_MESSAGE, pull_ext())
    assert answer.code == (0 if enabled else ResponseCode.NO_PERMISSION)


def test_short_polling(tmp_path: Path) -> None:
    """shortPollingTimeMills."""
    bench = filled(tmp_path, long_polling_enable=False, short_polling_time_mills=3_000)
    peer = bench.peer()
    peer.give_pull(offset=10, sysFlag="6", suspendTimeoutMillis="15000")
    bench.run_for(2_500)
    assert peer.heard() == []
    bench.run_for(1_500)
    assert [answer.code for answer in peer.heard()] == [ResponseCode.PULL_NOT_FOUND]


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


def test_silent_clients_are_forgotten(tmp_path: Path) -> None:
    """channelExpiredTimeout."""
    bench = Bench(tmp_path, channel_expired_timeout=30_000)
    heartbeat = HeartbeatData(client_id="c1", producer_data_set=[ProducerData("PG")])
    assert bench.peer().ask(RequestCode.HEART_BEAT, body=encode_body(heartbeat)).code == 0
    bench.run_for(25_000)
    assert len(bench.broker.state.clients.producer_members("PG")) == 1
    bench.run_for(20_000)
    assert len(bench.broker.state.clients.producer_members("PG")) == 0


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


def test_reads_of_what_is_not_in_memory_are_short(tmp_path: Path) -> None:
    """maxTransferCountOnMessageInDisk."""
    settings = {"access_message_in_memory_max_ratio": 0, "max_transfer_count_on_message_in_disk": 3}
    bench = filled(tmp_path, store_settings=settings)
    answer = bench.peer().pull(maxMsgNums="8")
    assert answer.ext["nextBeginOffset"] == "3"


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
    fast_fail = FastFail(bench.config)
    session = bench.peer().session
    commands = [Command(code)]
    assert fast_fail.sift(session, commands, 49) == commands
    assert fast_fail.sift(session, commands, 50) == []


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


@pytest.mark.parametrize(("percent", "expected"), [(100, ["again", "new"]), (0, ["new", "again"])])
def test_whether_retries_come_first(tmp_path: Path, percent: int, expected: list[str]) -> None:
    """popFromRetryProbability."""
    bench = Bench(tmp_path, pop_from_retry_probability=percent)
    put(bench, "again")
    peer = bench.peer()
    assert pop(bench, peer)
    pass_time(bench, INVISIBLE_MS + REVIVAL_MS)
    put(bench, "new")
    assert [one.body.decode() for one in pop(bench, peer)] == expected


@pytest.mark.parametrize(("step", "versions"), [(1, 6), (1_000, 0)])
def test_the_version_of_the_delay_offsets_steps_with_deliveries(
    tmp_path: Path, step: int, versions: int
) -> None:
    """delayOffsetUpdateVersionStep."""
    bench = Bench(tmp_path, delay_offset_update_version_step=step)
    peer = bench.peer()
    for _ in range(5):
        assert peer.ask(SEND, send_ext(properties="DELAY\x011\x02"), b"later").code == 0
        bench.run_for(1_500)
        bench.flush()
        bench.run_jobs()
        assert peer.ask(RequestCode.GET_ALL_DELAY_OFFSET).code == 0  # notes what is durable
    assert len(bench.records("T")) == 5
    assert bench.broker.services.delays.offsets.data_version.counter == versions


def test_how_often_queues_are_synced(tmp_path: Path) -> None:
    """flushIntervalConsumeQueue."""
    bench = filled(tmp_path, store_settings={"flush_interval_consume_queue": 60_000})
    positions = []
    for ms in (55_000, 10_000):
        bench.clock.advance(ms)
        assert bench.peer().ask(SEND, send_ext(), b"x").code == 0
        bench.flush()
        bench.run_jobs()
        positions.append(bench.store.upkeep.checkpoints.current.position == bench.store.log.position)
    assert positions == [False, True]


def test_how_long_an_acting_master_is_waited_for(tmp_path: Path) -> None:
    """brokerNotActiveTimeoutMillis: name servers are told."""
    told = []
    for number, acts in enumerate((True, False)):
        bench = Bench(
            tmp_path / str(number), enable_slave_acting_master=acts, broker_not_active_timeout_millis=7_000
        )
        told.append(last_registration(bench.broker).header.heartbeat_timeout_millis)
        bench.close()
    assert told == [7_000, None]


@pytest.mark.parametrize("verified", [False, True])
def test_checks_of_properties_by_their_crc(tmp_path: Path, verified: bool) -> None:
    """forceVerifyPropCRC: also by a broker that itself writes none."""
    bench = filled(tmp_path, 3, store_settings={"enabled_append_prop_crc": True})
    peer = bench.peer()
    assert peer.ask(SEND, send_ext(properties="KEYS\x01original\x02"), b"x").code == 0
    bench.flush()
    bench.store.abandon()
    segment = tmp_path / "commitlog" / f"{0:020d}"
    data = bytearray(segment.read_bytes())
    data[data.index(b"original")] ^= 1
    segment.write_bytes(data)
    bench.store_settings = {"force_verify_prop_crc": verified}
    bench.open()
    assert len(bench.records("T")) == (3 if verified else 4)


@pytest.mark.parametrize("forced", [True, False])
async def test_whether_a_broker_registers_what_a_name_server_has(tmp_path: Path, forced: bool) -> None:
    """forceRegister."""
    known: Answer = (0, {"changed": "false"}, b"")
    async with Scripted(lambda command: known).serving() as server:
        bench = Bench(tmp_path, namesrv_addr=server.address, force_register=forced)
        registrar = Registrar(bench.broker, lambda: None)
        await registrar.start()
        first = server.codes()
        bench.broker.publication.due = True
        registrar.after_turn()
        await eventually_async(lambda: len(server.codes()) > len(first), "a second registration")
        await registrar.stop()
        bench.close()
    assert set(first) == {RequestCode.REGISTER_BROKER}
    expected = RequestCode.REGISTER_BROKER if forced else RequestCode.QUERY_DATA_VERSION
    assert server.codes()[len(first)] == expected


@pytest.mark.parametrize("forced", [True, False])
async def test_a_slave_without_a_master_registers_again_at_once(tmp_path: Path, forced: bool) -> None:
    """Only the answer to a registration names the master, and the next one would be registerNameServerPeriod away."""
    fields: dict[str, str] = {"changed": "false"}
    async with Scripted(lambda command: (0, fields, b"")).serving() as server:
        bench = Bench(tmp_path, namesrv_addr=server.address, force_register=forced)
        registrar = Registrar(bench.broker, lambda: None)
        await registrar.start()
        registrar.seek_master()
        await eventually_async(lambda: len(server.codes()) > 1, "a second registration")
        assert registrar.master == Master()
        fields |= {"haServerAddr": "10.0.0.1:10912", "masterAddr": "10.0.0.1:10911"}
        registrar.seek_master()
        await eventually_async(registrar.master_moved.is_set, "the master to be known")
        assert registrar.master == Master("10.0.0.1:10912", "10.0.0.1:10911")
        registrar.master_moved.clear()
        fields |= {"haServerAddr": "10.0.0.1:20912", "masterAddr": "10.0.0.1:20911"}
        registrar.seek_master()
        await eventually_async(registrar.master_moved.is_set, "the address that it has now")
        assert registrar.master == Master("10.0.0.1:20912", "10.0.0.1:20911")
        await registrar.stop()
        bench.close()
    assert RequestCode.QUERY_DATA_VERSION not in server.codes()


async def test_how_long_a_name_server_is_waited_for(tmp_path: Path) -> None:
    """registerBrokerTimeoutMills."""
    answers: list[Answer] = [(0, {}, b""), SILENCE]
    async with Scripted(lambda command: answers[min(len(server.asked) - 1, 1)]).serving() as server:
        bench = Bench(tmp_path, namesrv_addr=server.address, register_broker_timeout_mills=50)
        registrar = Registrar(bench.broker, lambda: None)
        await registrar.start()
        assert registrar.known_to == [server.address]
        bench.broker.publication.due = True
        registrar.after_turn()
        await eventually_async(lambda: not registrar.known_to, "the end of the wait")
        await registrar.stop()
        bench.close()


@pytest.mark.parametrize("interval_ms", [3_600_000, 1])
async def test_how_often_the_log_is_synced(tmp_path: Path, interval_ms: int) -> None:
    """flushIntervalCommitLog."""
    bench = Bench(tmp_path, store_settings={"flush_interval_commit_log": interval_ms})
    worker = Worker("flush-test")
    flusher = Flusher(bench.broker, bench.store, worker, lambda: None, None)
    flusher.start()
    bench.peer().give(SEND, send_ext(), b"x")
    bench.broker.turn()
    if interval_ms == 1:
        await eventually_async(lambda: flusher.sync_times.count > 0, "a sync")
    else:
        await asyncio.sleep(0.6)  # RocketMQ's interval and more
        assert flusher.sync_times.count == 0
    await flusher.stop()
    worker.close()
