"""archive without Spark: plans, what a Delta table's log says, the seam between history and tail."""

from __future__ import annotations

import json
import os
import re
import shutil
import zlib
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mqspark.arrow.cluster.archives import (
    Archive,
    Manifest,
    first_offsets,
    load_manifests,
    note_gap,
    plan_archive,
    read_archive,
)
from mqspark.arrow.cluster.queueranges import QueueRange
from mqspark.arrow.files.deltafiles import delta_table
from mqspark.arrow.files.locations import names, open_input, write_bytes
from mqspark.arrow.files.logfiles import LogFile, list_log
from mqspark.errors import ConfigError, MQError
from mqspark.message import MessageQueue
from mqspark.store.disk.notes.archivednote import ARCHIVED, decode_archived, encode_archived
from mqspark_jobs import archive as job
from mqspark_jobs.archive import ArchiveOptions, UnitTask, archive_unit, group_units, plan_units
from mqspark_jobs.deltacommit import _add
from mqspark_jobs.logcuts import cuts
from mqspark_jobs.rowfiles import RowFile
from tests.support.archive_tools import archived_mark
from tests.support.clocks import ManualClock
from tests.support.jobs_tools import InProcessSpark, filled_store, quiet
from tests.support.store_tools import RoomyFiles, clean, drain, opened, put_synced


def test_plans_are_functions_of_names_and_numbers() -> None:
    log = [LogFile(start, 100, f"/log/{start}", "1") for start in (100, 200, 300)]
    units = plan_units(log, 150, 320, cut_at=[0, 250])
    assert [(unit.low, unit.high) for unit in units] == [(150, 200), (200, 250), (250, 300), (300, 320)]
    groups = group_units(units, 1000, 250)
    assert [[each.low for each in group] for group in groups] == [[150, 200], [250, 300]]
    assert [len(group) for group in group_units(units, 60, 0)] == [1, 1, 1, 1]


def test_a_survey_counts_what_consumers_see(tmp_path: Path) -> None:
    filled_store(tmp_path, 100).close()
    units = plan_units(list_log(str(tmp_path / "commitlog")), 0, None)
    manifests = [archive_unit(UnitTask(unit, "b", None, None)).manifest for unit in units]
    by_value = [archive_unit(UnitTask(unit, "b", None, None, by_value=True)).manifest for unit in units]
    assert by_value == manifests
    assert sum(manifest.rows for manifest in manifests) == 100
    assert sum(manifest.value_crcs for manifest in manifests) == sum(
        zlib.crc32(b"x" * (number % 90)) & 0x7FFFFFFF for number in range(100)
    )
    ends: dict[str, int] = {}
    for manifest in manifests:
        for topic, queues in manifest.queues.items():
            for queue, (first, end) in queues.items():
                assert first == ends.get(f"{topic}/{queue}", 0)
                ends[f"{topic}/{queue}"] = end
    assert sum(ends.values()) == 100
    delayed = [archive_unit(UnitTask(unit, "b", "SCHEDULE.*", None)).manifest for unit in units]
    assert sum(manifest.rows for manifest in delayed) == 5


def commit(table: Path, version: int, *actions: dict[str, Any]) -> None:
    (table / "_delta_log").mkdir(parents=True, exist_ok=True)
    lines = "\n".join(json.dumps(action) for action in actions)
    (table / f"_delta_log/{version:020d}.json").write_text(lines + "\n")


def add(name: str, topic: str) -> dict[str, Any]:
    stats = json.dumps({"minValues": {"offset": 1}, "maxValues": {"offset": 9}})
    return {"add": {"path": name, "size": 5, "partitionValues": {"topic": topic}, "stats": stats}}


def archived(store: str, table: str) -> list[RowFile]:
    """Everything of a closed store as files of a table, committed without Delta."""
    units = plan_units(list_log(store), 0, None)
    done = [archive_unit(UnitTask(unit, "b", None, table)) for unit in units]
    files = [file for each in done for file in each.files]
    protocol = {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}
    lines = [json.dumps(action) for action in (protocol, *({"add": _add(file, 0)} for file in files))]
    write_bytes(f"{table}/_delta_log/{0:020d}.json", "\n".join(lines).encode())
    return files


@pytest.mark.parametrize("where", ["local", "memory"])
def test_rows_are_written_where_they_are_decoded(tmp_path: Path, where: str) -> None:
    store = filled_store(tmp_path, 200, mapped_file_size_commit_log=16384)
    expected = sorted(
        (message.topic, message.queue_id, message.queue_offset, message.body, message.store_timestamp_ms)
        for topic, queue_id in store.table.queues
        if topic.startswith("Topic")
        for message in drain(store, topic, queue_id)
    )
    store.close()
    log, table = str(tmp_path / "commitlog"), str(tmp_path / "table")
    if where == "memory":
        fsspec.filesystem("memory").put(log, "/archive-test-log", recursive=True)
        log, table = "memory://archive-test-log", "memory://archive-test-table"
    files = archived(log, table)
    assert sum(file.rows for file in files) == 200
    found = []
    for file in delta_table(table).files:
        with open_input(file.url) as source:
            for row in pq.read_table(source).to_pylist():
                time_ms = round(row["timestamp"].timestamp() * 1000)
                found.append(
                    (file.partition["topic"], row["partition"], row["offset"], row["value"], time_ms)
                )
                assert (
                    file.lowest["physicalOffset"] <= row["physicalOffset"] <= file.highest["physicalOffset"]
                )
                assert file.partition["date"] == row["timestamp"].date().isoformat()
    assert sorted(found) == expected
    # Searched by time: the first message of each queue that is not older.
    queues = {(topic, queue_id) for topic, queue_id, *_ in expected}
    times = sorted({row[4] for row in expected})
    for time_ms in (times[0] - 1, times[len(times) // 2], times[1] + 1, times[-1], times[-1] + 1):
        wanted = {MessageQueue(topic, "b", queue_id): time_ms for topic, queue_id in queues}
        offsets = {
            queue: min(
                row[2] for row in expected if row[:2] == (queue.topic, queue.queue_id) and row[4] >= time_ms
            )
            for queue in wanted
            if any(row[:2] == (queue.topic, queue.queue_id) and row[4] >= time_ms for row in expected)
        }
        assert first_offsets(delta_table(table), wanted) == offsets


def test_a_segment_is_cut_where_records_begin(tmp_path: Path) -> None:
    store = filled_store(tmp_path, 400, mapped_file_size_commit_log=65536)
    starts = {
        entry[0]
        for queue in store.table.queues.values()
        for n in range(queue.max_offset)
        if (entry := queue.entry(n))
    }
    store.close()
    log = list_log(str(tmp_path / "commitlog"))
    found = cuts(tmp_path / "consumequeue", log, 5000)
    assert len(found) > 8
    assert found == sorted(found)
    assert set(found) <= starts
    whole = archive_unit(UnitTask(plan_units(log, 0, None)[0], "b", None, None)).manifest
    parts = [
        archive_unit(UnitTask(u, "b", None, None)).manifest for u in plan_units(log, 0, None, cut_at=found)
    ]
    assert sum(part.rows for part in parts if part.high <= whole.high) == whole.rows
    assert cuts(tmp_path / "nothing", log, 5000) == []


def test_a_tables_log_with_and_without_a_checkpoint(tmp_path: Path) -> None:
    assert delta_table(str(tmp_path)).files == []
    protocol = {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}
    commit(tmp_path, 0, protocol, add("topic=A%20B/1", "A B"), {"txn": {"appId": "x", "version": 7}})
    commit(tmp_path, 1, {"remove": {"path": "topic=A%20B/1"}}, add("2", "C"))
    commit(tmp_path, 2, add("3", "C"), {"txn": {"appId": "x", "version": 9}})
    table = delta_table(str(tmp_path))
    assert [file.url.rpartition("/")[2] for file in table.files] == ["2", "3"]
    assert table.transactions == {"x": 9}
    assert (table.files[0].lowest, table.files[0].highest) == ({"offset": 1}, {"offset": 9})
    # The same, said by a checkpoint of version 1; the commits before it are gone.
    rows = [protocol | {"add": None, "txn": None}, {"protocol": None, "txn": None} | add("2", "C")]
    rows[1]["add"]["partitionValues"] = [("topic", "C")]
    rows.append({"protocol": None, "add": None, "txn": {"appId": "x", "version": 7}})
    kinds = pa.schema(
        [
            ("protocol", pa.struct([("minReaderVersion", pa.int32()), ("minWriterVersion", pa.int32())])),
            (
                "add",
                pa.struct(
                    [
                        ("path", pa.string()),
                        ("size", pa.int64()),
                        ("partitionValues", pa.map_(pa.string(), pa.string())),
                        ("stats", pa.string()),
                    ]
                ),
            ),
            ("txn", pa.struct([("appId", pa.string()), ("version", pa.int64())])),
        ]
    )
    pq.write_table(pa.Table.from_pylist(rows, kinds), tmp_path / f"_delta_log/{1:020d}.checkpoint.parquet")
    for version in (0, 1):
        (tmp_path / f"_delta_log/{version:020d}.json").unlink()
    assert delta_table(str(tmp_path)) == table
    (tmp_path / f"_delta_log/{1:020d}.checkpoint.parquet").unlink()
    with pytest.raises(MQError, match="has no version 0"):
        delta_table(str(tmp_path))


def test_a_tables_log_that_lacks_a_commit_is_refused(tmp_path: Path) -> None:
    for version in range(3):
        commit(tmp_path, version, add(f"topic=A/{version}", "A"), {"txn": {"appId": "x", "version": version}})
    assert delta_table(str(tmp_path)).version == 2
    (tmp_path / f"_delta_log/{1:020d}.json").unlink()
    with pytest.raises(MQError, match="has no version 1"):
        delta_table(str(tmp_path))


def test_a_table_of_a_later_kind_is_refused(tmp_path: Path) -> None:
    commit(tmp_path, 0, {"protocol": {"minReaderVersion": 3, "readerFeatures": ["deletionVectors"]}})
    with pytest.raises(MQError, match="needs a newer Delta reader"):
        delta_table(str(tmp_path))


def test_the_seam_has_neither_gap_nor_overlap(tmp_path: Path) -> None:
    url = str(tmp_path)
    Manifest("b", 0, 50, 0, 0, 0, 0, {"T": {"0": [3, 10]}}).save(url)
    Manifest("b", 50, 90, 0, 0, 0, 0, {"T": {"0": [10, 20], "1": [0, 4]}}).save(url)
    # Behind a range that is not proved nothing counts.
    Manifest("b", 95, 99, 0, 0, 0, 0, {"T": {"0": [20, 30]}}).save(url)
    assert [manifest.low for manifest in load_manifests(url, "b")] == [0, 50]
    q0, q1, q2 = (MessageQueue("T", "b", number) for number in range(3))
    archive = Archive(url)
    assert archive.ranges() == {q0: (3, 20), q1: (0, 4)}
    wanted = [QueueRange(q0, 5, 25), QueueRange(q1, 4, 9), QueueRange(q1, 1, 2), QueueRange(q2, 0, 5)]
    assert archive.split(wanted) == (
        [QueueRange(q0, 5, 20), QueueRange(q1, 1, 2)],
        [QueueRange(q0, 20, 25), QueueRange(q1, 4, 9), QueueRange(q2, 0, 5)],
    )


def test_retention_waits_for_the_archive(tmp_path: Path, clock: ManualClock) -> None:
    files = RoomyFiles(clock)
    store = opened(tmp_path, clock, files, delete_archived_only=True, delete_when="", file_reserved_time=1)
    for _ in range(100):
        put_synced(store, "T", 0, b"x" * 300)
    files.expired = {segment.path.name for segment in store.log.segments}

    def cleaned() -> int:
        return clean(store, clock)

    assert cleaned() == 0
    write_bytes(str(tmp_path / ARCHIVED), encode_archived(2 * 4096 + 100))
    assert cleaned() == 2 * 4096
    write_bytes(str(tmp_path / ARCHIVED), b"something else")
    assert cleaned() == 2 * 4096
    assert archived_mark(str(tmp_path)) == decode_archived(b"") == 0


QUEUE = MessageQueue("T", "b", 0)


def written(table: Path, name: str, low: int, values: list[bytes], first_ms: int) -> dict[str, Any]:
    """A file of the queue from offset 0 on, one message a millisecond, each with ten bytes of log from ``low`` on."""
    count = len(values)
    columns = {
        "broker": pa.array(["b"] * count),
        "partition": pa.array([0] * count, pa.int32()),
        "offset": pa.array(range(count), pa.int64()),
        "timestamp": pa.array([1000 * (first_ms + n) for n in range(count)], pa.timestamp("us", "UTC")),
        "physicalOffset": pa.array([low + 10 * n for n in range(count)], pa.int64()),
        "value": pa.array(values, pa.binary()),
    }
    pq.write_table(pa.table(columns), table / name)
    size = (table / name).stat().st_size
    return {"add": {"path": name, "size": size, "partitionValues": {"topic": "T"}}}


def test_a_topic_that_was_created_again_has_no_rows_of_the_old_one(tmp_path: Path) -> None:
    protocol = {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}
    old = written(tmp_path, "old", 0, [b"old"] * 10, 100)
    new = written(tmp_path, "new", 1000, [b"new"] * 4, 200)
    commit(tmp_path, 0, protocol, old, new)
    url = str(tmp_path)
    Manifest("b", 0, 1000, 10, 0, 0, 0, {"T": {"0": [0, 10]}}).save(url)
    Manifest("b", 1000, 2000, 4, 0, 0, 0, {"T": {"0": [0, 4]}}).save(url)
    archive = Archive(url)
    assert archive.ranges() == {QUEUE: (0, 4)}
    wanted, live = archive.split([QueueRange(QUEUE, 0, 6)])
    assert (wanted, live) == ([QueueRange(QUEUE, 0, 4)], [QueueRange(QUEUE, 4, 6)])
    tasks = plan_archive(archive, wanted, ("offset", "value"))
    found = [row for task in tasks for batch in read_archive(task) for row in batch.to_pylist()]
    assert found == [{"offset": offset, "value": b"new"} for offset in range(4)]
    assert first_offsets(archive.table(), {QUEUE: 105}, archive.floors()) == {QUEUE: 0}
    assert first_offsets(archive.table(), {QUEUE: 202}, archive.floors()) == {QUEUE: 2}


def run_without_delta(
    monkeypatch: pytest.MonkeyPatch, store: Path, table: Path, **more: Any
) -> dict[str, Any]:
    """The job, with the commits of Delta written by hand."""

    def commit_files(spark: Any, options: ArchiveOptions, end: int, files: list[RowFile]) -> None:
        version = len(names(f"{table}/_delta_log"))
        protocol = {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}
        done = {"txn": {"appId": "mqspark-archive:b", "version": end}}
        commit(table, version, protocol, done, *({"add": _add(file, 0)} for file in files))

    monkeypatch.setattr(job, "make_table", lambda *arguments, **named: None)
    monkeypatch.setattr(job, "_commit", commit_files)
    monkeypatch.setattr(job, "_prove", lambda *arguments: {})
    options = ArchiveOptions(str(store), str(table), "b", **more)
    return job.run(options, InProcessSpark(), quiet("archive"))  # type: ignore[arg-type]


def test_some_topics_are_not_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, table = tmp_path / "store", tmp_path / "table"
    filled_store(store, 60).close()
    summary = run_without_delta(monkeypatch, store, table, topics="Topic1")
    assert (summary["rows"], summary["marked"]) == (20, False)
    assert archived_mark(str(store)) == 0, "deleteArchivedOnly would delete the other topics"
    summary = run_without_delta(monkeypatch, store, tmp_path / "all")
    assert (summary["rows"], summary["marked"]) == (60, True)
    assert archived_mark(str(store)) == summary["to_position"]


def test_readers_begin_behind_a_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, table = tmp_path / "store", tmp_path / "table"
    filled_store(store, 60, mapped_file_size_commit_log=16384).close()
    end = run_without_delta(monkeypatch, store, table)["to_position"]
    shutil.rmtree(store)
    filled_store(store, 400, mapped_file_size_commit_log=16384).close()
    for segment in list_log(str(store / "commitlog")):
        if segment.start <= end:
            Path(segment.url).unlink()
    begin = list_log(str(store / "commitlog"))[0].start
    with pytest.raises(ConfigError, match="--allow-gap"):
        run_without_delta(monkeypatch, store, table)
    run_without_delta(monkeypatch, store, table, allow_gap=True)
    # The gap is known from then on.
    assert run_without_delta(monkeypatch, store, table)["rows"] == 0
    chain = load_manifests(str(table), "b")
    assert [(each.low, each.high) for each in chain if each.is_gap] == [(end, begin)]
    behind = [each for each in chain if each.low >= begin]
    archive = Archive(str(table))
    assert len(archive.ranges()) == 6
    for queue, (first, _) in archive.ranges().items():
        firsts = [
            each.queues[queue.topic][str(queue.queue_id)][0] for each in behind if queue.topic in each.queues
        ]
        assert 0 < first == min(firsts)
        assert archive.floors()[queue] >= begin


def test_a_gap_ends_where_an_earlier_run_went_on(tmp_path: Path) -> None:
    url = str(tmp_path)
    Manifest("b", 0, 50, 0, 0, 0, 0, {"T": {"0": [0, 5]}}).save(url)
    Manifest("b", 80, 90, 0, 0, 0, 0, {"T": {"0": [7, 9]}}).save(url)
    note_gap(url, "b", 95)
    chain = [(each.low, each.high, each.is_gap) for each in load_manifests(url, "b")]
    assert chain == [(0, 50, False), (50, 80, True), (80, 90, False), (90, 95, True)]
    assert "is_gap" not in json.loads((tmp_path / "_mqspark/b" / f"{80:020d}.json").read_bytes())


def test_a_small_file_outlives_a_power_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Manifests and states: the log is deleted because of them, and dead letters are passed over."""
    steps: list[str] = []
    fsync, replace = os.fsync, os.replace

    def noted_fsync(fd: int) -> None:
        path = os.path.relpath(os.readlink(f"/proc/self/fd/{fd}"), tmp_path)
        steps.append(re.sub(r"\.[0-9a-f]{8}\.tmp", ".tmp", path))
        fsync(fd)

    def noted_replace(source: Path, target: Path) -> None:
        steps.append("rename")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "replace", noted_replace)
    for _ in range(2):
        write_bytes(f"{tmp_path}/a/b/file", b"x")
    assert steps == ["a/b/file.tmp", "rename", "a/b", "a", ".", "a/b/file.tmp", "rename", "a/b"]
