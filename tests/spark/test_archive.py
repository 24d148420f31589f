"""archive: every visible record in Delta exactly once, whatever is killed when; history and tail as one topic."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from mqspark.arrow.cluster.archives import load_manifests
from mqspark.arrow.files.logfiles import list_log
from mqspark.errors import ConfigError, StoreCorrupt
from mqspark_jobs import archive as job
from mqspark_jobs.archive import ArchiveOptions
from mqspark_jobs.commandline import main
from tests.support.archive_tools import archived_mark
from tests.support.dev import DevCluster
from tests.support.jobs_tools import Killed, filled_store, quiet
from tests.support.store_tools import drain
from tests.support.waiting import eventually

pytestmark = pytest.mark.spark

VISIBLE = ("Topic0", "Topic1", "Topic2")


def archived(spark: SparkSession, root: Path, **options: Any) -> dict[str, Any]:
    wanted = ArchiveOptions(str(root / "store"), str(root / "table"), "dev", **options)
    return job.run(wanted, spark, quiet("archive"))


def rows(spark: SparkSession, root: Path) -> list[tuple[str, int, int, bytes]]:
    table = spark.read.format("delta").load(str(root / "table"))
    return sorted((row.topic, row.partition, row.offset, bytes(row.value)) for row in table.collect())


def expected(root: Path, count: int) -> list[tuple[str, int, int, bytes]]:
    store = filled_store(root / "store", count, mapped_file_size_commit_log=16384)
    found = [
        (message.topic, message.queue_id, message.queue_offset, message.body)
        for topic, queue_id in store.table.queues
        if topic in VISIBLE
        for message in drain(store, topic, queue_id)
    ]
    store.close()
    return sorted(found)


@pytest.mark.slow("writes and proves Delta tables; history and tail as one topic is the fast twin")
def test_every_visible_record_once_and_again_nothing(delta: SparkSession, tmp_path: Path) -> None:
    messages = expected(tmp_path, 200)
    summary = archived(delta, tmp_path, commit_bytes=20_000)
    assert rows(delta, tmp_path) == messages
    assert summary["rows"] == len(messages) == 200
    assert summary["commits"] > 1
    assert archived_mark(str(tmp_path / "store")) == summary["to_position"]
    again = archived(delta, tmp_path)
    assert (again["rows"], again["commits"], again["from_position"]) == (0, 0, summary["to_position"])
    properties = (
        delta.read.format("delta").load(str(tmp_path / "table")).where("offset = 0 AND topic = 'Topic1'")
    )
    assert {row.properties["KEYS"] for row in properties.collect()} == {"k1 all", "k4 all"}


@pytest.mark.slow("writes and proves Delta tables; history and tail as one topic is the fast twin")
def test_killed_between_commit_proof_and_manifest(
    delta: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = expected(tmp_path, 120)
    calls = {"_commit": 0, "_prove": 0}

    def dying(name: str, at: int, *, after: bool) -> None:
        original = getattr(job, name)

        def call(*arguments: Any) -> Any:
            calls[name] += 1
            if calls[name] == at and not after:
                raise Killed
            result = original(*arguments)
            if calls[name] == at:
                raise Killed
            return result

        monkeypatch.setattr(job, name, call)

    for name, after in (("_commit", False), ("_commit", True), ("_prove", False), ("_prove", True)):
        calls[name] = 0
        dying(name, 1, after=after)
        with pytest.raises(Killed):
            archived(delta, tmp_path, commit_bytes=16384)
        monkeypatch.undo()
    archived(delta, tmp_path, commit_bytes=20_000)
    assert rows(delta, tmp_path) == messages
    manifests = load_manifests(str(tmp_path / "table"), "dev")
    assert sum(manifest.rows for manifest in manifests) == len(messages)


@pytest.mark.slow("writes and proves Delta tables; history and tail as one topic is the fast twin")
def test_what_does_not_agree_is_not_archived(
    delta: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected(tmp_path, 30)
    commit = job._commit

    def twice(*arguments: Any) -> None:
        commit(*arguments)
        table = str(tmp_path / "table")
        delta.read.format("delta").load(table).limit(1).write.format("delta").mode("append").save(table)

    monkeypatch.setattr(job, "_commit", twice)
    with pytest.raises(StoreCorrupt, match="nothing was marked as archived"):
        archived(delta, tmp_path)
    assert load_manifests(str(tmp_path / "table"), "dev") == []


@pytest.mark.slow("writes and proves Delta tables; history and tail as one topic is the fast twin")
def test_a_hole_in_the_log_is_said(delta: SparkSession, tmp_path: Path) -> None:
    expected(tmp_path, 40)
    summary = archived(delta, tmp_path)
    shutil.rmtree(tmp_path / "store")
    expected(tmp_path, 200)
    segments = sorted((tmp_path / "store/commitlog").iterdir())
    for segment in segments:
        if int(segment.name) <= summary["to_position"] + 16384 and segment != segments[-1]:
            segment.unlink()
    with pytest.raises(ConfigError, match="the messages between were deleted"):
        archived(delta, tmp_path)
    assert archived(delta, tmp_path, allow_gap=True)["rows"] > 0


def frame(spark: SparkSession, cluster: DevCluster, topic: str, table: Path, **options: str) -> DataFrame:
    reader = spark.read.format("pymq").option("nameserver", cluster.nameserver)
    return reader.option("archive", str(table)).options(**options).load(topic)


@pytest.mark.slow("writes and proves Delta tables; history and tail as one topic is the fast twin")
@pytest.mark.timeout(600)
def test_retention_waits_for_the_archive_while_sends_go_on(delta: SparkSession, tmp_path: Path) -> None:
    every_hour = "deleteWhen=" + ";".join(f"{hour:02d}" for hour in range(24))
    settings = (
        "flushDiskType=ASYNC_FLUSH",
        "mappedFileSizeCommitLog=262144",
        "fileReservedTime=0",
        every_hour,
    )
    settings = (*settings, "cleanResourceInterval=200", "deleteArchivedOnly=true", "deleteFileBatchMax=1")
    log = tmp_path / "store/commitlog"
    table = tmp_path / "table"
    with DevCluster(tmp_path / "store", *settings) as own:
        own.create_topic("R")
        own.send_numbers("R", range(4000))
        sent = 4000
        over = threading.Event()

        def send() -> None:
            nonlocal sent
            while not over.wait(0.5):
                own.send_numbers("R", range(sent, sent + 40))
                sent += 40

        # Everything is expired, and looked at five times a second; nothing goes before it is archived.
        sender = threading.Thread(target=send)
        sender.start()
        try:
            eventually(lambda: sent >= 4200)
            assert min(path.name for path in log.iterdir()) == f"{0:020d}"
            assert archived(delta, tmp_path)["rows"] > 1000
            eventually(lambda: min(path.name for path in log.iterdir()) > f"{0:020d}")
            for _ in range(2):
                # Segments go and messages come between the planning of a read and its tasks.
                known = sent
                rows = (
                    frame(delta, own, "R", table)
                    .selectExpr("partition", "offset", "string(value) v")
                    .collect()
                )
                for queue in range(4):
                    here = sorted((row.offset, int(row.v)) for row in rows if row.partition == queue)
                    assert here == [(offset, offset * 4 + queue) for offset in range(len(here))]
                    assert len(here) >= known // 4
                archived(delta, tmp_path)
            time_ms = int(min(row.timestamp for row in history(delta, table)).timestamp() * 1000)
            first = (
                frame(delta, own, "R", table, startingTimestamp=str(time_ms))
                .selectExpr("min(offset)")
                .first()
            )
            assert first[0] == 0
        finally:
            over.set()
            sender.join()
        mark = archived_mark(str(tmp_path / "store"))
        oldest = min(int(path.name) for path in log.iterdir())
        assert 0 < oldest <= mark


def history(spark: SparkSession, table: Path) -> list[Any]:
    return spark.read.format("delta").load(str(table)).select("timestamp").collect()


def test_history_and_tail_are_one_topic(
    delta: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ("flushDiskType=ASYNC_FLUSH", "mappedFileSizeCommitLog=524288")
    with DevCluster(tmp_path / "store", *settings) as own:
        own.create_topic("H")
        own.send_numbers("H", range(6000))
        # While the broker serves, sealed segments and what the checkpoint covers are archived.
        options = ArchiveOptions(str(tmp_path / "store"), str(tmp_path / "table"), "dev")
        eventually(
            lambda: (job.safe_end(options, list_log(str(tmp_path / "store/commitlog"))) or 0) > 700_000
        )
        arguments = ["archive", "--store", str(tmp_path / "store"), "--to", str(tmp_path / "table")]
        assert main([*arguments, "--broker", "dev"], spark=delta) == 0
        summary = json.loads(capsys.readouterr().out)
        assert summary["ok"] is True
        assert summary["rows"] > 2000
        own.send_numbers("H", range(6000, 7000))
        assert archived(delta, tmp_path)["from_position"] == summary["to_position"]
        # The oldest segments go, as retention would take them.
        own.stop()
        for segment in sorted((tmp_path / "store/commitlog").iterdir())[:1]:
            segment.unlink()
        own.start()
        own.send_numbers("H", range(7000, 7500))
        earliest = own.client.min_offsets(own.address, list(own.client.route("H").subscribe_queues))
        assert max(earliest) > 0
        everything = frame(
            delta, own, "H", tmp_path / "table", includeProperties="true", includeHeaders="true"
        )
        found = everything.collect()
        assert sorted(int(row.value) for row in found) == list(range(7500))
        assert {row.properties["n"] for row in found} == {str(n) for n in range(7500)}
        assert {bytes(h.value).decode() for row in found for h in row.headers if h.key == "n"} == {
            str(n) for n in range(7500)
        }
        middle = json.dumps({"H": dict.fromkeys("0123", 100)})
        end = json.dumps({"H": dict.fromkeys("0123", 300)})
        part = frame(delta, own, "H", tmp_path / "table", startingOffsets=middle, endingOffsets=end)
        assert sorted(int(row.value) for row in part.collect()) == list(range(400, 1200))
        stream = delta.readStream.format("pymq").option("nameserver", own.nameserver).option("topic", "H")
        stream = stream.option("archive", str(tmp_path / "table")).option("startingOffsets", "earliest")
        stream = stream.option("maxOffsetsPerTrigger", "3000").load().selectExpr("string(value) value")
        writer = stream.writeStream.format("text").option("path", str(tmp_path / "out"))
        query = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()
        assert query.awaitTermination(120)
        read = sorted(int(row.value) for row in delta.read.text(str(tmp_path / "out")).collect())
        assert read == list(range(7500))
