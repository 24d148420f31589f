"""Our slaves behind our masters, on real sockets and in processes that are killed."""

from __future__ import annotations

import json
import logging
import random
import signal
import time
import urllib.request
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from mqspark import LitePullConsumer, Message, Producer, SendStatus
from mqspark.errors import MQError
from mqspark.testing import Cluster
from tests.support.clusters import Cluster as Process
from tests.support.clusters import brokers_known_to, mqspark_broker, mqspark_namesrv
from tests.support.draws import some
from tests.support.remoting import log_end
from tests.support.slaves import MASTER, SLAVE, end_of, log_of, until_copied
from tests.support.waiting import eventually

TOPIC = "Copied"


def send(producer: Producer, count: int) -> None:
    for number in range(count):
        body = random.Random(number).randbytes(1_000)
        assert producer.send(Message(TOPIC, body)).status is SendStatus.SEND_OK


@pytest.mark.parametrize("flush", some(["ASYNC_FLUSH", "SYNC_FLUSH"], 1))
def test_a_slave_has_its_masters_log_whoever_is_killed(tmp_path: Path, flush: str) -> None:
    settings = {"flushDiskType": flush, "mappedFileSizeCommitLog": 1 << 20}
    with Cluster(slaves=1, store=tmp_path, settings=settings) as cluster:
        with Producer(cluster.namesrv, group="P") as producer:
            send(producer, 1_500)
            until_copied(cluster)
            cluster.kill(SLAVE)
            send(producer, 500)
            cluster.restart(SLAVE)
            until_copied(cluster)
            cluster.kill(MASTER)
            cluster.restart(MASTER)
            send(producer, 500)
            until_copied(cluster)
        assert log_of(cluster, SLAVE) == log_of(cluster, MASTER)
        master, slave = (app.store for app in cluster.apps)
        assert master is not None
        assert slave is not None
        for queue_id in range(4):
            ends = cluster.call(
                lambda q=queue_id: (slave.offsets.max_offset(TOPIC, q), master.offsets.max_offset(TOPIC, q))
            )
            assert ends[0] == ends[1] > 0


def test_a_sync_master_answers_once_our_slave_has_the_message(tmp_path: Path) -> None:
    settings = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": 2, "slaveTimeout": 500}
    with (
        Cluster(slaves=1, store=tmp_path, settings=settings) as cluster,
        Producer(cluster.namesrv, group="P") as producer,
    ):
        eventually(
            lambda: producer.send(Message(TOPIC, b"first")).status is SendStatus.SEND_OK,
            "the slave to connect",
        )
        for number in range(50):
            assert producer.send(Message(TOPIC, b"%d" % number)).status is SendStatus.SEND_OK
            assert end_of(cluster, SLAVE) == end_of(cluster, MASTER)
        cluster.kill(SLAVE)
        assert producer.send(Message(TOPIC, b"alone")).status is SendStatus.FLUSH_SLAVE_TIMEOUT


def test_a_promoted_slave_continues_where_its_master_was(tmp_path: Path) -> None:
    with Cluster(slaves=1, store=tmp_path) as cluster, Producer(cluster.namesrv, group="P") as producer:
        send(producer, 40)
        until_copied(cluster)
        ends = [cluster.apps[MASTER].store.offsets.max_offset(TOPIC, q) for q in range(4)]  # type: ignore[union-attr]
        path = cluster.store_paths[SLAVE]
    with Cluster(store=path) as cluster, Producer(cluster.namesrv, group="P") as producer:
        found = [cluster.apps[0].store.offsets.max_offset(TOPIC, q) for q in range(4)]  # type: ignore[union-attr]
        assert found == ends
        send(producer, 8)


def test_a_slave_says_why_it_does_not_follow(tmp_path: Path) -> None:
    with Cluster(slaves=1, store=tmp_path) as cluster, Producer(cluster.namesrv, group="P") as producer:
        send(producer, 8)
        until_copied(cluster)
        following = cluster.apps[SLAVE].parts.following
        assert following is not None
        assert not following.problems
        cluster.shut_down(MASTER)
        eventually(lambda: "log" in following.problems, "the slave to notice")


def test_a_master_that_is_away_costs_its_slave_two_lines(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The slave asks for its log, its tables and about damage."""

    def lines(level: int = logging.WARNING) -> list[str]:
        own = [record for record in caplog.records if record.name.startswith("mqspark.replication")]
        return [record.getMessage() for record in own if record.levelno >= level]

    with (
        caplog.at_level(logging.DEBUG, "mqspark.replication"),
        Cluster(slaves=1, store=tmp_path) as cluster,
        Producer(cluster.namesrv, group="P") as producer,
    ):
        send(producer, 8)
        until_copied(cluster)
        caplog.clear()
        cluster.kill(MASTER)
        for what in ("log", "metadata"):
            asked = f"the master's {what} is not being copied"
            eventually(lambda asked=asked: sum(asked in line for line in lines(logging.DEBUG)) >= 2)  # type: ignore[misc]
        assert [line.partition(":")[0] for line in lines()] == ["the master's log is not being copied"]
        cluster.restart(MASTER)
        eventually(lambda: len(lines()) > 1)
        send(producer, 8)
        until_copied(cluster)
        assert lines()[1:] == ["the master is there again"]


@pytest.mark.parametrize("stops", ["shut_down", "kill"])
def test_a_slave_that_starts_before_its_master_finds_it_at_once(tmp_path: Path, stops: str) -> None:
    """No name server knows the master then, and the slave registers every 30 s."""
    settings = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": 2}
    with Cluster(slaves=1, store=tmp_path, settings=settings) as cluster:
        for number in (SLAVE, MASTER):
            getattr(cluster, stops)(number)
        for number in (SLAVE, MASTER):
            cluster.restart(number)
        with Producer(cluster.namesrv, group="P") as producer:
            began_s = time.monotonic()
            eventually(
                lambda: producer.send(Message(TOPIC, b"first")).status is SendStatus.SEND_OK,
                "the slave to connect",
            )
            assert time.monotonic() - began_s < 25


def test_a_slave_has_an_id_of_its_own() -> None:
    with pytest.raises(MQError, match="setting brokerId=0 is a master's: a slave"):
        Cluster(settings={"brokerRole": "SLAVE"})


def test_a_slave_knows_topics_and_groups_and_where_they_are(tmp_path: Path) -> None:
    with Cluster(slaves=1, store=tmp_path) as cluster, Producer(cluster.namesrv, group="P") as producer:
        send(producer, 40)
        with LitePullConsumer(cluster.namesrv, group="G", auto_commit=False) as consumer:
            consumer.subscribe(TOPIC)
            read = 0
            while read < 40:
                read += len(consumer.poll(1_000))
            consumer.commit()
        state = cluster.apps[SLAVE].parts.core.state

        def consumed() -> int:
            return sum(max(0, state.offsets.query("G", TOPIC, queue_id)) for queue_id in range(4))

        eventually(lambda: cluster.call(consumed) == 40, "the offsets of the group")
        assert cluster.call(lambda: TOPIC in {topic.name for topic in state.topics})
        assert cluster.call(lambda: "G" in state.subscriptions)


PAIR = {
    "brokerName": "pair",
    "brokerClusterName": "Pair",
    "mappedFileSizeCommitLog": 1 << 20,
    "autoCreateTopicEnable": True,
}
AS_SLAVE = {"brokerRole": "SLAVE", "brokerId": 1, "slaveReadEnable": True}


def test_an_old_master_gives_back_what_its_successor_never_had(tmp_path: Path) -> None:
    """Four processes, each killed: the old master has messages that its slave did not get in time."""

    def broker(name: str, **more: object) -> AbstractContextManager[Process]:
        return mqspark_broker(tmp_path / name, namesrv, {**PAIR, **more}, stop_signal=signal.SIGKILL)

    with mqspark_namesrv(tmp_path / "namesrv") as namesrv:
        with broker("a") as first, Producer(namesrv, group="P") as producer:
            send(producer, 50)
            with broker("b", **AS_SLAVE) as second:
                eventually(lambda: log_end(second.broker) == log_end(first.broker), "the copy")
                common = log_end(second.broker)
            send(producer, 50)  # only the first has them
        with broker("b") as second, Producer(namesrv, group="P") as producer:
            eventually(lambda: brokers_known_to(namesrv)["pair"] == {"0": second.broker}, "the new master")
            send(producer, 100)
            with broker("a", **AS_SLAVE) as first:
                eventually(
                    lambda: log_end(first.broker) == log_end(second.broker), "the copy of the new master"
                )
                ours, theirs = (each.store / "commitlog" for each in (first, second))
                end = log_end(second.broker)
                logs = [
                    b"".join(path.read_bytes() for path in sorted(folder.iterdir()))[:end]
                    for folder in (ours, theirs)
                ]
                assert logs[0] == logs[1]
                (lost,) = (first.store / "mqspark.diverged").iterdir()
                assert int(lost.name.partition("-")[0]) == common
                assert lost.stat().st_size > 50_000


def test_the_health_says_how_far_a_slave_is(tmp_path: Path) -> None:
    with (
        Cluster(slaves=1, store=tmp_path, http=True) as cluster,
        Producer(cluster.namesrv, group="P") as producer,
    ):
        send(producer, 8)
        until_copied(cluster)

        def health() -> dict[str, Any]:
            url = f"{cluster.http_urls[SLAVE]}/health/ready"
            with urllib.request.urlopen(url, timeout=60) as answer:  # noqa: S310 - our own URL
                found: dict[str, Any] = json.load(answer)["following"]
            return found

        assert (health()["behindBytes"], health()["problems"]) == (0, {})
        cluster.kill(MASTER)
        eventually(lambda: "log" in health()["problems"], health)
        assert health()["master"] is None


def test_a_clean_stop_takes_the_last_progress_along(tmp_path: Path) -> None:
    with Cluster(slaves=1, store=tmp_path) as cluster, Producer(cluster.namesrv, group="P") as producer:
        send(producer, 8)
        until_copied(cluster)
        cluster.run(cluster.apps[SLAVE].parts.following.copy_metadata())
        state = cluster.apps[MASTER].parts.core.state
        cluster.call(lambda: state.offsets.commit("G", TOPIC, 0, 2))
        cluster.shut_down(SLAVE)
        saved = (cluster.store_paths[SLAVE] / "config" / "consumerOffset.json").read_text()
        assert f'"{TOPIC}@G":{{0:2' in saved
