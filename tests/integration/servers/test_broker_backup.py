"""A broker is backed up while it works, and restored: messages, offsets, delays, transactions, dead letters."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mqspark import (
    AdminClient,
    ConsumeFromWhere,
    LitePullConsumer,
    Message,
    MessageExt,
    Producer,
    PushConsumer,
    TransactionProducer,
    TransactionState,
)
from mqspark.errors import MQError
from tests.support import commands
from tests.support.clusters import Cluster, mqspark_broker, mqspark_namesrv
from tests.support.processes import HOST, mqspark_command, process, run_to_end, set_options
from tests.support.waiting import eventually

SETTINGS = {
    "brokerName": "b",
    "brokerClusterName": "C",
    "autoCreateTopicEnable": True,
    "mappedFileSizeCommitLog": 1 << 20,
    "transactionTimeOut": 1_000,
    "transactionCheckInterval": 1_000,
    # However long the backup takes: the answer is "unknown" until the restored broker asks.
    "transactionCheckMax": 10_000,
}


@contextmanager
def sending(namesrv: str) -> Iterator[list[str]]:
    """What was acknowledged, while a thread sends."""
    acknowledged: list[str] = []
    ended = threading.Event()

    def run() -> None:
        with Producer(namesrv, group="busy", retries=0) as producer:
            while not ended.is_set():
                body = f"{len(acknowledged)} " + "x" * 3000
                try:
                    producer.send(Message.of("Busy", body))
                except MQError:
                    time.sleep(0.01)
                else:
                    acknowledged.append(body)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield acknowledged
    finally:
        ended.set()
        thread.join(60)


def read(namesrv: str, topic: str, group: str, until: Callable[[list[str]], bool]) -> list[str]:
    """The bodies that a group gets of a topic."""
    found: list[str] = []
    with LitePullConsumer(
        namesrv, group=group, consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
    ) as consumer:
        consumer.subscribe(topic)

        def has_all() -> bool:
            found.extend(message.body.decode() for message in consumer.poll(500))
            return until(found)

        eventually(has_all, lambda: f"{len(found)} messages of {topic}")
    return found


def fail(message: MessageExt) -> None:
    raise ValueError("this message is poison")


def prepare(namesrv: str, broker: Cluster) -> None:
    """Messages of every kind that waits."""
    with AdminClient(namesrv) as admin:
        for topic in ("Orders", "Busy", "Later", "Paid", "Poison"):
            admin.create_topic(topic, queues=1)
    with Producer(namesrv, group="p") as producer:
        for number in range(10):
            producer.send(Message.of("Orders", f"order {number}"))
        producer.send(Message.of("Poison", "poison"))
    sad = PushConsumer(
        namesrv,
        group="sad",
        listener=fail,
        max_reconsume_times=0,
        consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
    )
    sad.subscribe("Poison")
    with sad:
        letters = broker.store / "consumequeue" / "%DLQ%sad"
        eventually(letters.exists, "a dead letter")
    assert len(read(namesrv, "Orders", "readers", lambda found: len(found) >= 10)) == 10
    offsets = broker.store / "config" / "consumerOffset.json"
    eventually(lambda: offsets.exists() and "Orders@readers" in offsets.read_text(), "saved offsets")
    with Producer(namesrv, group="p") as producer:
        for number in range(10, 15):
            producer.send(Message.of("Orders", f"order {number}"))


def backed_up(broker: Cluster, place: Path) -> dict[str, object]:
    done = commands.mqspark(
        "store", "backup", str(broker.store), "--to", str(place), "-c", str(broker.store.parent / "broker.conf"),
        "-o", "json",
    )  # fmt: skip
    assert done.code == 0, done.err
    found: dict[str, object] = done.json
    return found


@pytest.mark.slow("starts a broker twice and waits for delays; test_store_backup is the fast twin")
def test_a_restored_broker_goes_on_where_the_backup_was_made(tmp_path: Path) -> None:
    place = tmp_path / "backup"
    with mqspark_namesrv(tmp_path) as namesrv:
        with mqspark_broker(tmp_path / "old", namesrv, SETTINGS, stop_signal=signal.SIGKILL) as broker:
            prepare(namesrv, broker)
            due_ms = time.time_ns() // 1_000_000 + 15_000
            with (
                TransactionProducer(
                    namesrv, group="payers", check=lambda message: TransactionState.UNKNOWN
                ) as payer,
                Producer(namesrv, group="p") as producer,
                sending(namesrv) as acknowledged,
            ):
                payer.send_in_transaction(
                    Message.of("Paid", "paid"), execute=lambda message: TransactionState.UNKNOWN
                )
                producer.send(Message.of("Later", "timer", deliver_at_ms=due_ms))
                producer.send(Message.of("Later", "level", delay_level=4))  # 30 s
                eventually(lambda: len(acknowledged) > 400, "messages of a segment")
                first = backed_up(broker, place)
                eventually(lambda: len(acknowledged) > 450, "more messages")
                expected = list(acknowledged)
                second = backed_up(broker, place)
                eventually(lambda: len(acknowledged) > len(expected), "it sends on")
        assert second["backup"] == 2
        assert second["written_bytes"] < first["written_bytes"]  # type: ignore[operator]
        verified = commands.mqspark("store", "verify", str(place))
        assert verified.code == 0, verified.out
        store = tmp_path / "new" / "store"
        done = commands.mqspark("store", "restore", str(place), "--to", str(store))
        assert done.code == 0, done.err
        assert [line.split() for line in done.lines if line.startswith("readers")] == [
            ["readers", "Orders", "10"]
        ]
        with mqspark_broker(tmp_path / "new", namesrv, SETTINGS) as broker:
            found = read(namesrv, "Busy", "audit", lambda found: set(expected) <= set(found))
            assert found[: len(expected)] == expected
            orders = read(namesrv, "Orders", "readers", lambda found: len(found) >= 5)
            assert orders == [f"order {number}" for number in range(10, 15)]
            assert read(namesrv, "%DLQ%sad", "mourners", bool) == ["poison"]
            with TransactionProducer(namesrv, group="payers", check=lambda message: TransactionState.COMMIT):
                assert read(namesrv, "Paid", "cashiers", bool) == ["paid"]
            later = read(namesrv, "Later", "patient", lambda found: len(found) >= 2)
            assert later == ["timer", "level"]
            assert time.time_ns() // 1_000_000 >= due_ms


@pytest.mark.slow("kills two processes; test_store_backup is the fast twin")
def test_processes_of_backup_and_restore_that_are_killed(tmp_path: Path) -> None:
    place, store = tmp_path / "backup", tmp_path / "new" / "store"

    def killed(*arguments: str, when: Callable[[], bool]) -> None:
        with process(
            [*mqspark_command(), "store", *arguments], tmp_path / "tool.err", stop_signal=signal.SIGKILL
        ) as child:
            eventually(lambda: when() or child.poll() is not None, "its work")
            assert child.poll() is None

    with mqspark_namesrv(tmp_path) as namesrv:
        with mqspark_broker(tmp_path / "old", namesrv, SETTINGS) as broker:
            with sending(namesrv) as acknowledged:
                eventually(lambda: len(acknowledged) > 1000, "three segments")
            copy = ["backup", str(broker.store), "--to", str(place)]
            killed(*copy, "--rate", "500K", when=lambda: (place / "log").exists())
            done = commands.mqspark("store", "restore", str(place), "--to", str(store))
            assert done.code == 1
            assert "no complete backup" in done.err
            assert commands.mqspark("store", *copy).code == 0
        back = ["restore", str(place), "--to", str(store)]
        killed(*back, "--rate", "500K", when=lambda: (store / "commitlog").exists())
        refused = run_to_end(
            [
                *mqspark_command(),
                "broker",
                "run",
                *set_options({"storePathRootDir": store, "bindAddress": HOST}),
            ],
            env={**os.environ, "NAMESRV_ADDR": namesrv},
        )
        assert refused.returncode == 1
        assert "a restore did not finish" in refused.stderr
        assert commands.mqspark("store", *back).code == 0
        with mqspark_broker(tmp_path / "new", namesrv, SETTINGS):
            found = read(namesrv, "Busy", "audit", lambda found: len(found) >= len(acknowledged))
            assert sorted(found) == sorted(acknowledged)
