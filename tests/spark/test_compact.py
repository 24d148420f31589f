"""compact: the last value of each key at its offset, while a broker serves; tombstones; killed and run again."""

from __future__ import annotations

import json
import random
import threading
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from mqspark.errors import ConfigError
from mqspark.message import Message
from mqspark.store.compaction.compactedqueues import COMPACT_LOCK, adopt, compaction_topics
from mqspark.store.disk.files import OsFiles
from mqspark.store.disk.layout import StorePaths
from mqspark.store.disk.notes.durable import DurableNote
from mqspark.store.tools.compactor import Compactor, CompactTask, TopicToCompact
from mqspark.store.tools.reader import StoreReader
from mqspark_jobs import compact as job
from mqspark_jobs.compact import CompactOptions, plan_queue
from tests.support.dev import DevCluster
from tests.support.jobs_tools import Killed, quiet
from tests.support.waiting import eventually

pytestmark = pytest.mark.spark


def wait_until_synced(cluster: DevCluster, topic: str) -> None:
    """A job leaves out what a power cut may take back."""

    def is_synced() -> bool:
        synced = DurableNote(StorePaths(cluster.store).abort, OsFiles()).load()
        reader = StoreReader(cluster.store)
        ends = [(queue_id, *reader.bounds(topic, queue_id)) for queue_id in reader.queue_ids(topic)]
        return all(
            reader.end_before(topic, queue_id, low, high, synced) == high for queue_id, low, high in ends
        )

    eventually(is_synced)


def compacted(spark: SparkSession, cluster: DevCluster, **options: Any) -> dict[str, Any]:
    return job.run(CompactOptions(cluster.store, **options), spark, quiet("compact"))


def read(
    spark: SparkSession, cluster: DevCluster, topic: str, **options: str
) -> list[tuple[int, int, str, str]]:
    reader = spark.read.format("pymq").option("nameserver", cluster.nameserver).options(**options)
    rows = reader.load(topic).selectExpr("partition", "offset", "key", "string(value) value").collect()
    return sorted((row.partition, row.offset, row.key, row.value) for row in rows)


@pytest.mark.slow(
    "a job beside a busy broker; the job that takes turns with the broker's own is the fast twin"
)
def test_the_last_value_of_each_key_while_the_broker_serves(
    spark: SparkSession, cluster: DevCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(5)
    sent: list[list[tuple[int, int, str, str]]] = [[], [], [], []]

    def send(count: int) -> None:
        for queue in range(2):
            messages = []
            for _ in range(count):
                key, value = (
                    f"k{chance.randrange(40)}",
                    "" if chance.random() < 0.1 else f"v{chance.random()}",
                )
                sent[queue].append((queue, len(sent[queue]), key, value))
                messages.append(Message.of(topic, value.encode(), keys=key, tags="T"))
            cluster.send(topic, queue, messages)
        wait_until_synced(cluster, topic)

    def last(end: int, *, tombstones: bool) -> list[tuple[int, int, str, str]]:
        kept = []
        for queue in sent:
            newest = {row[2]: row for row in queue[:end]}
            kept += [row for row in newest.values() if row[3] or tombstones] + queue[end:]
        return sorted(kept)

    send(500)
    summary = compacted(spark, cluster, topics=(topic,))
    assert (summary["queues"], summary["records_read"]) == (2, 1000)
    expected = last(500, tombstones=True)
    eventually(lambda: len(read(spark, cluster, topic)) == len(expected))
    assert read(spark, cluster, topic) == expected
    # What comes later is read as ever; offsets stay what they were.
    send(100)
    assert read(spark, cluster, topic) == last(500, tombstones=True)
    assert read(spark, cluster, topic, tags="T") == last(500, tombstones=True)
    assert read(spark, cluster, topic, tags="other") == []
    # Killed before the new generation counts, readers see the old one.
    monkeypatch.setattr(job, "adopt", lambda *arguments: (_ for _ in ()).throw(Killed))
    with pytest.raises(Killed):
        compacted(spark, cluster, topics=(topic,))
    monkeypatch.setattr(job, "adopt", adopt)
    assert read(spark, cluster, topic) == last(500, tombstones=True)
    # Old tombstones go with their keys.
    summary = compacted(spark, cluster, topics=(topic,), delete_retention_ms=0)
    expected = last(600, tombstones=False)
    eventually(lambda: len(read(spark, cluster, topic)) == len(expected))
    assert read(spark, cluster, topic) == expected
    assert summary["records_kept"] == len(expected)
    assert compacted(spark, cluster, topics=(topic,))["queues"] == 0
    directory = cluster.store / "mqspark.compacted" / topic / "0"
    assert sorted(path.name for path in directory.iterdir()) == [
        "1.log",
        "1.queue",
        "2.log",
        "2.queue",
        "current",
    ]
    cluster.delete_topic(topic)
    eventually(lambda: not directory.exists())  # in parts, once the deletion is on the disk


def test_the_brokers_own_compaction_and_the_job_take_turns(
    spark: SparkSession, cluster: DevCluster, topic: str
) -> None:
    """Each goes on where the other has ended, in the same files; the job waits for the lock."""

    def send(first: int) -> None:
        messages = [
            Message.of(topic, b"%d" % number, keys=f"k{number % 7}") for number in range(first, first + 50)
        ]
        cluster.send(topic, 0, messages)

    def own() -> int:
        task = CompactTask(str(cluster.store), None, 1 << 60, [TopicToCompact(topic)], 1, 0)
        return Compactor(task, OsFiles()).run().queues

    send(0)
    assert own() == 1
    assert compacted(spark, cluster, topics=(topic,))["queues"] == 0
    send(50)
    files = OsFiles()
    lock = files.lock(cluster.store / COMPACT_LOCK, alone=False)
    later = threading.Timer(1.0, lambda: files.unlock(cluster.store / COMPACT_LOCK, lock))
    later.start()
    assert compacted(spark, cluster, topics=(topic,))["records_kept"] == 7
    later.join()
    assert own() == 0
    send(100)
    assert own() == 1
    expected = [(0, number, f"k{number % 7}", str(number)) for number in range(143, 150)]
    eventually(lambda: read(spark, cluster, topic) == expected)


def test_topics_say_it_by_their_attribute(tmp_path: Path) -> None:
    config = {"A": {"attributes": {"cleanup.policy": "COMPACTION"}}, "B": {"attributes": {}}, "C": {}}
    with pytest.raises(ConfigError, match="does not exist"):
        compaction_topics(tmp_path)
    (tmp_path / "config").mkdir()
    table = tmp_path / "config" / "topics.json"
    table.write_text("garbage")
    with pytest.raises(ConfigError, match=r"topics\.json is not a table of topics"):
        compaction_topics(tmp_path)
    table.write_text(json.dumps({"topicConfigTable": config}))
    assert compaction_topics(tmp_path) == ["A"]
    assert plan_queue("T", 0, None, 5, 5, 0.0) is None
    plan = plan_queue("T", 0, None, 3 << 20, 5 << 20, 0.0)
    assert plan is not None
    assert plan.pieces == [(3 << 20, 4 << 20), (4 << 20, 5 << 20)]
