"""A broker compacts by itself before its log expires: nobody has to schedule a job to keep the last value of a key."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mqspark import AdminClient, LitePullConsumer, Message, Producer
from mqspark.message import MessageQueue
from mqspark.record.record import decode_records
from mqspark.store.compaction import compactedqueues
from mqspark.store.compaction.compactedqueues import COMPACT_LOCK
from mqspark.store.disk.files import OsFiles
from mqspark.store.tools.compactor import CompactTask
from mqspark.store.upkeep import compactduty
from mqspark.store.upkeep.compactduty import CompactDuty
from mqspark.testing import Broker, Cluster
from mqspark_server.compacting import compactrunner
from tests.support import web
from tests.support.processes import start, stop
from tests.support.waiting import eventually

TOPIC = "Compacted"
SETTINGS = {
    "mappedFileSizeCommitLog": 65_536,
    "fileReservedTime": 0,
    "deleteWhen": ";".join(f"{hour:02d}" for hour in range(24)),
    "cleanResourceInterval": 100,
}
OLD = 20
"""Keys with one value, at the begin of the log."""


def create_compacted(broker: Cluster) -> None:
    with AdminClient(broker.namesrv) as admin:
        admin.create_topic(TOPIC, queues=1, attributes={"cleanup.policy": "COMPACTION"})


def fill(broker: Cluster, count: int = 300) -> dict[str, bytes]:
    """The last value of each key."""
    values: dict[str, bytes] = {}
    with Producer(broker.namesrv, group="fill", compress_from_bytes=1 << 20) as producer:
        for number in range(count):
            key = f"old{number}" if number < OLD else f"k{number % 7}"
            values[key] = str(number).encode().ljust(1_200, b".")
            producer.send(Message.of(TOPIC, values[key], keys=key), queue=MessageQueue(TOPIC, "dev", 0))
    return values


def log_begin(broker: Cluster, number: int = 0) -> int:
    store = broker.apps[number].store
    assert store is not None
    return broker.call(lambda: store.offsets.log_bounds(TOPIC, 0)[0])


def duty(broker: Broker) -> CompactDuty:
    store = broker.apps[0].store
    assert store is not None
    return store.upkeep.compact_duty


def read_all(broker: Broker) -> dict[str, bytes]:
    """What a consumer finds from offset 0 on: of each key the last value that it saw."""
    queue, found = MessageQueue(TOPIC, "dev", 0), {}
    store = broker.apps[0].store
    assert store is not None
    end = broker.call(lambda: store.offsets.max_offset(TOPIC, 0))
    with LitePullConsumer(broker.namesrv, group="reader") as consumer:
        consumer.assign([queue])
        consumer.seek(queue, 0)
        last = -1
        while last < end - 1:
            for message in eventually(lambda: consumer.poll(1_000)):
                assert message.queue_offset > last
                last = message.queue_offset
                found[message.keys or ""] = message.body
    return found


def values_of(cluster: Cluster, number: int) -> dict[str, bytes]:
    """What the store of a broker serves from offset 0 on."""
    store = cluster.apps[number].store
    assert store is not None
    found: dict[str, bytes] = {}
    offset, end = 0, cluster.call(lambda: store.offsets.max_offset(TOPIC, 0))
    while offset < end:
        got = cluster.call(lambda at=offset: store.reads.get(TOPIC, 0, at, 32, 1 << 20))
        for message in (each for buffer in got.buffers for each in decode_records(bytes(buffer))):
            found[message.keys or ""] = message.body
        assert got.next_offset > offset
        offset = got.next_offset
    return found


def expired(broker: Cluster) -> None:
    eventually(lambda: log_begin(broker) > 2 * OLD, "the log expired")


def test_a_log_that_expires_keeps_the_last_value_of_each_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The broker knows what was published without looking, and before it deletes the log.
    monkeypatch.setattr(compactedqueues, "LOOK_MS", 3_600_000)
    with Broker(store=tmp_path, settings=SETTINGS, http=True) as broker:
        create_compacted(broker)
        assert read_all(broker) == {}, "there is no generation yet"
        values = fill(broker)
        expired(broker)
        assert read_all(broker) == values
        text = web.get(f"{broker.http_url}/metrics").text
        for name in ("runs_total", "queues_total", "written_bytes_total", "last_success_timestamp_seconds"):
            (line,) = [line for line in text.splitlines() if line.startswith(f"mqspark_compaction_{name}{{")]
            assert float(line.rpartition(" ")[2]) > 0, line


@pytest.mark.slow(
    "three processes compact, one after the other; tests/crash/test_compaction_power_cuts.py has its parts"
)
def test_a_killed_compaction_is_made_up_for_and_nothing_is_deleted_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compactduty, "COMPACT_RETRY_MS", 100)
    killed: list[int] = []

    class Killed(subprocess.Popen[bytes]):
        def __init__(self, *arguments: Any, **more: Any) -> None:
            super().__init__(*arguments, **more)
            if len(killed) < 2:
                assert not list((broker.store_path / "mqspark.compacted").glob("*"))
                killed.append(self.pid)
                self.kill()

    monkeypatch.setattr(compactrunner, "Popen", Killed)
    with Broker(store=tmp_path, settings=SETTINGS) as broker:
        create_compacted(broker)
        values = fill(broker)
        expired(broker)
        assert len(killed) == 2
        assert (duty(broker).failures, duty(broker).problem) == (2, None)
        assert read_all(broker) == values
        # A kill of the broker costs nothing, and what comes later is compacted with what was kept.
        broker.kill()
        broker.restart()
        assert read_all(broker) == values
        begin = log_begin(broker)
        values |= fill(broker)
        eventually(lambda: log_begin(broker) > begin + 100, "the log expired once more")
        assert read_all(broker) == values


@pytest.mark.slow(
    "a run comes to nothing first; tests/unit/store/tools/test_compactor.py has the lock, test_compact_duty.py the wait"
)
def test_while_another_compacts_the_log_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compactduty, "BUSY_MS", 100)
    files = OsFiles()
    with Broker(store=tmp_path, settings=SETTINGS) as broker:
        path = broker.store_path / COMPACT_LOCK
        lock = files.lock(path, alone=False)
        try:
            create_compacted(broker)
            values = fill(broker)
            eventually(lambda: duty(broker).runs >= 1, "a run came to nothing")
            assert duty(broker).held_segments > 0
            assert log_begin(broker) == 0
        finally:
            files.unlock(path, lock)
        expired(broker)
        assert duty(broker).failures == 0
        assert read_all(broker) == values


@pytest.mark.slow("several runs; tests/unit/store/tools/test_compactor.py shows the same without a broker")
def test_a_wrong_entry_of_a_queue_costs_no_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run stops before it, the broker corrects it, the next run takes its record. Until then the log stays: first
    because compaction is off."""
    monkeypatch.setattr(compactduty, "BUSY_MS", 100)
    with Broker(store=tmp_path, settings=SETTINGS | {"enableCompaction": False}) as broker:
        create_compacted(broker)
        values = fill(broker)
        eventually(lambda: duty(broker).runs >= 1, "a run has measured")
        assert (duty(broker).queues, log_begin(broker)) == (0, 0)
        with next((broker.store_path / "consumequeue" / TOPIC / "0").iterdir()).open("r+b") as file:
            file.seek(OLD // 2 * 20)
            file.write(b"\x00\x00\x00\x00\x00\x00\x7f\x01")
        with AdminClient(broker.namesrv) as admin:
            admin.update_broker_config(broker.address, {"enableCompaction": "true"})
        expired(broker)
        assert read_all(broker) == values
        store = broker.apps[0].store
        assert store is not None
        assert [found["kind"] for found in store.damages.as_dicts(9)] == ["queue.differs"]


@pytest.mark.slow(
    "two brokers compact; a slave differs from a master in nothing but where its log comes from"
)
def test_a_slave_compacts_its_own_copy(tmp_path: Path) -> None:
    with Cluster(slaves=1, store=tmp_path, settings=SETTINGS) as cluster:
        create_compacted(cluster)
        values = fill(cluster)
        eventually(lambda: log_begin(cluster, 1) > 2 * OLD, "the slave's log expired")
        store = cluster.apps[1].store
        assert store is not None
        eventually(
            lambda: cluster.call(lambda: store.offsets.max_offset(TOPIC, 0)) == 300,
            "the slave to have everything",
        )
        assert values_of(cluster, 1) == values


@pytest.mark.slow("a slave copies a log twice; tests/unit/server/test_master_copy.py has the parts")
def test_a_new_slave_gets_from_its_master_what_the_log_has_no_longer(tmp_path: Path) -> None:
    with Cluster(slaves=1, store=tmp_path, settings=SETTINGS) as cluster:
        cluster.shut_down(1)
        shutil.rmtree(cluster.store_paths[1])
        create_compacted(cluster)
        values = fill(cluster)
        expired(cluster)
        cluster.restart(1)
        eventually(lambda: values_of(cluster, 1) == values, "the slave has the older values")
        assert log_begin(cluster, 1) > 0
        copy = cluster.apps[1].parts.master_copy
        assert copy is not None
        assert copy.copied == 1
        # With its own compaction going on from there.
        values |= fill(cluster)
        begin = log_begin(cluster, 1)
        eventually(lambda: log_begin(cluster, 1) > begin, "the slave's log expired")
        eventually(lambda: values_of(cluster, 1) == values, "the slave has everything")
        assert copy.copied == 1


SLOW_CHILD = """
import time
from mqspark_server.compacting import compactchild
class Slow:
    def __init__(self, *arguments): pass
    def run(self): print(flush=True); time.sleep(600)
compactchild.Compactor = Slow
compactchild.main()
"""


def test_the_process_ends_with_its_broker(tmp_path: Path) -> None:
    task = CompactTask(str(tmp_path), None, 0, [], 1, 1)
    child = start([sys.executable, "-c", SLOW_CHILD], tmp_path / "log", stdout=subprocess.PIPE)
    try:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(msgspec.json.encode(task).decode() + "\n")
        child.stdin.flush()
        assert child.stdout.readline() == "\n"
        child.stdin.close()
        assert child.wait(60) == 1
    finally:
        stop(child)
