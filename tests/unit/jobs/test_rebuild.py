"""rebuild-index: the same bytes as the broker's own, whatever is killed when; live and offline; damage."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import fsspec
import pytest

from mqspark.arrow.files.logfiles import LogFile, list_log
from mqspark.errors import StoreCorrupt
from mqspark.message import Message
from mqspark.record.batchitems import encode_batch
from mqspark.store import MessageStore
from mqspark.store.disk.files import OsFiles
from mqspark.store.disk.layout import StorePaths
from mqspark.store.index.indexfile import Shape
from mqspark.store.queue.batchqueue import BATCH_ENTRY
from mqspark.store.recovery import rebuild
from mqspark.store.recovery.rebuild import QueuePart, QueueShape, ScanManifest
from mqspark_jobs.archive import ArchiveOptions, safe_end
from mqspark_jobs.job import write_metrics
from mqspark_jobs.rebuild_index import run
from mqspark_jobs.rebuild_plan import RebuildOptions, index_names, plan_queues, plan_scans
from mqspark_jobs.swap import Swap
from tests.support.draws import some
from tests.support.jobs_tools import InProcessSpark, Killed, filled_store, quiet, tree
from tests.support.store_tools import crash, drain, opened, pending, put, put_synced, query

SMALL = {"queue_file_bytes": 200, "index_shape": Shape(16, 32)}


def rebuilt(root: Path, spark: Any = None, **options: Any) -> dict[str, Any]:
    return run(RebuildOptions(root, **options), spark or InProcessSpark(), quiet("rebuild-index"))


def test_a_store_that_a_restore_has_not_finished_is_refused(tmp_path: Path) -> None:
    filled_store(tmp_path).close()
    (tmp_path / "mqspark.restoring").write_bytes(b"x")
    before = tree(tmp_path)
    with pytest.raises(StoreCorrupt, match="a restore did not finish"):
        rebuilt(tmp_path)
    with pytest.raises(StoreCorrupt, match="a restore did not finish"):
        safe_end(ArchiveOptions(store=str(tmp_path), archive=str(tmp_path / "archive"), broker="b"), [])
    assert tree(tmp_path) == before


def test_the_result_is_the_brokers_own(tmp_path: Path) -> None:
    store = filled_store(tmp_path)
    store.close()
    own = {name: tree(tmp_path / name) for name in ("consumequeue", "index")}
    assert len(own["index"]) > 10
    assert len(own["consumequeue"]) > 20
    summary = rebuilt(tmp_path)
    assert {name: tree(tmp_path / name) for name in own} == own
    assert (summary["mode"], summary["records"], summary["queues"]) == ("offline", 345, 7)
    assert (summary["lost_entries"], summary["damaged"]) == (0, [])
    assert list((tmp_path / "mqspark.rebuild").iterdir()) == [tmp_path / "mqspark.rebuild/lock"]
    # Once more changes nothing.
    rebuilt(tmp_path)
    assert {name: tree(tmp_path / name) for name in own} == own


def fill_batches(root: Path, count: int) -> MessageStore:
    """Queues of batches of 1 to 5 messages, and others."""
    store = opened(root, mapper_file_size_batch_consume_queue=4 * BATCH_ENTRY.size)
    store.appender.use_batch_queues("B")
    for number in range(count):
        bodies = [b"%d" % index for index in range(number % 5 + 1)]
        if len(bodies) == 1:
            put(store, "B", number % 2, bodies[0], b"TAGS\x01one\x02")
        else:
            body = encode_batch([Message(topic="B", body=body) for body in bodies])
            store.appender.put_inner_batch(
                pending("B", number % 2, body, b"UNIQ_KEY\x01u%d\x02" % number), len(bodies)
            )
        put_synced(store, "Plain", 0, b"x" * (number % 50), b"TAGS\x01t\x02")
    return store


@pytest.mark.parametrize("is_known", [True, False])
def test_queues_of_batches(tmp_path: Path, is_known: bool) -> None:
    fill_batches(tmp_path, 200).close()
    names = ("consumequeue", "batchconsumequeue", "index")
    own = {name: tree(tmp_path / name) for name in names}
    assert len(own["batchconsumequeue"]) > 10
    if not is_known:
        # Nothing says it but the batches themselves, and not every segment begins with one.
        shutil.rmtree(tmp_path / "batchconsumequeue")
    size = {"queue_file_bytes": 200}
    summary = rebuilt(tmp_path, **size)
    assert summary["lost_entries"] == 0
    if is_known:
        assert {name: tree(tmp_path / name) for name in names} == own
    else:
        assert tree(tmp_path / "consumequeue") == own["consumequeue"]
        joined = [b"".join(tree(tmp_path / "batchconsumequeue/B" / q).values()) for q in "01"]
        assert [data.rstrip(b"\0") for data in joined] == [
            b"".join(
                data for name, data in own["batchconsumequeue"].items() if name.startswith(f"B/{q}/")
            ).rstrip(b"\0")
            for q in "01"
        ]
    again = opened(tmp_path, mapper_file_size_batch_consume_queue=4 * BATCH_ENTRY.size)
    assert [len(drain(again, "B", queue)) for queue in (0, 1)] == [
        again.offsets.max_offset("B", q) for q in (0, 1)
    ]


def test_units_of_queues_that_have_them(tmp_path: Path) -> None:
    settings = {"enable_consume_queue_ext": True, "mapped_file_size_consume_queue_ext": 400}
    store = filled_store(tmp_path, 200, **settings)
    expected = {queue: drain(store, *queue) for queue in store.table.queues}
    store.close()
    names = ("consumequeue", "consumequeue_ext", "index")
    own = {name: tree(tmp_path / name) for name in names}
    assert len(own["consumequeue_ext"]) > 10
    rebuilt(tmp_path)
    assert {name: tree(tmp_path / name) for name in names} == own
    # While somebody serves the store these stay as they are.
    serving = opened(tmp_path, **settings)
    shutil.rmtree(tmp_path / "mqspark.rebuild")
    summary = rebuilt(tmp_path)
    assert summary["mode"] == "sealed segments of a live broker"
    assert summary["files_replaced"] == 0
    assert {queue: drain(serving, *queue) for queue in serving.table.queues} == expected


def kill_at_rename(monkeypatch: pytest.MonkeyPatch, root: Path, limit: int) -> None:
    """Ends a rebuild after this many renames."""
    rename, done = os.rename, 0

    def renamed(source: Any, target: Any) -> None:
        nonlocal done
        if done == limit:
            raise Killed
        done += 1
        rename(source, target)

    monkeypatch.setattr(os, "rename", renamed)
    with pytest.raises(Killed):
        rebuilt(root)
    monkeypatch.undo()


def test_killed_between_the_renames_of_units(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"enable_consume_queue_ext": True, "mapped_file_size_consume_queue_ext": 400}
    filled_store(tmp_path / "whole", 60, **settings).close()
    names = ("consumequeue", "consumequeue_ext", "index")
    own = {name: tree(tmp_path / "whole" / name) for name in names}
    for renames in range(6):
        root = tmp_path / str(renames)
        shutil.copytree(tmp_path / "whole", root)
        kill_at_rename(monkeypatch, root, renames)
        # Queues are never seen beside the units of others.
        assert renames in (0, 4, 5) or not (root / "consumequeue").exists()
        assert rebuilt(root, InProcessSpark(dies_after=0))["resumed_swap"] is True
        assert {name: tree(root / name) for name in names} == own


def test_each_rename_is_on_the_disk_before_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled_store(tmp_path, 60).close()
    unsynced: set[Path] = set()
    renames, rename, sync = 0, os.rename, OsFiles.sync_directory

    def renamed(source: Path, target: Path) -> None:
        nonlocal renames
        assert not unsynced
        renames += 1
        unsynced.update((source.parent, target.parent))
        rename(source, target)

    def synced(self: OsFiles, path: Path) -> None:
        unsynced.discard(path)
        sync(self, path)

    monkeypatch.setattr(os, "rename", renamed)
    monkeypatch.setattr(OsFiles, "sync_directory", synced)
    rebuilt(tmp_path)
    assert renames >= 4
    assert not unsynced


def test_a_store_that_lost_its_queues_opens_as_it_was(tmp_path: Path) -> None:
    store = filled_store(tmp_path)
    expected = {queue: drain(store, *queue) for queue in store.table.queues}
    end = store.log.position
    store.close()
    shutil.rmtree(tmp_path / "consumequeue")
    shutil.rmtree(tmp_path / "index")
    rebuilt(tmp_path, **SMALL)
    again = opened(tmp_path)
    assert again.log.position == end
    assert {queue: drain(again, *queue) for queue in again.table.queues} == expected
    found = query(again, "Topic1", "k4", 100, 0, 1 << 62)
    assert len(found) > 0


@pytest.mark.parametrize(
    "step", [6, pytest.param(1, marks=pytest.mark.slow("after each task; after some is the fast twin"))]
)
def test_killed_after_tasks_and_run_again(tmp_path: Path, step: int) -> None:
    filled_store(tmp_path / "whole", 120).close()
    own = {name: tree(tmp_path / "whole" / name) for name in ("consumequeue", "index")}
    spark = InProcessSpark()
    shutil.copytree(tmp_path / "whole", tmp_path / "count")
    rebuilt(tmp_path / "count", spark)
    scans = len(list_log(str(tmp_path / "whole/commitlog")))
    for tasks in sorted({*range(0, spark.tasks, step), scans, spark.tasks - 1}):
        root = tmp_path / str(tasks)
        shutil.copytree(tmp_path / "whole", root)
        shutil.rmtree(root / "index")
        with pytest.raises(Killed):
            rebuilt(root, InProcessSpark(dies_after=tasks), **SMALL)
        # What the broker has is untouched until everything is made.
        assert tree(root / "consumequeue") == own["consumequeue"]
        kept = len(list((root / "mqspark.rebuild/scan").glob("*/manifest.json")))
        assert kept == min(tasks, scans)
        rebuilt(root, **SMALL)
        assert tree(root / "consumequeue") == own["consumequeue"]
        assert list(tree(root / "index").values()) == list(own["index"].values())


def test_killed_between_the_renames(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled_store(tmp_path / "whole", 60).close()
    own = {name: tree(tmp_path / "whole" / name) for name in ("consumequeue", "index")}
    for renames in range(4):
        root = tmp_path / str(renames)
        shutil.copytree(tmp_path / "whole", root)
        kill_at_rename(monkeypatch, root, renames)
        summary = rebuilt(root, InProcessSpark(dies_after=0))
        assert summary["resumed_swap"] is True
        assert {name: tree(root / name) for name in own} == own


def test_a_live_broker_keeps_what_it_writes(tmp_path: Path) -> None:
    store = filled_store(tmp_path)
    store.data.indexer.follow(store.log.position, store.log.position, 1 << 30)  # type: ignore[union-attr]
    own = {name: tree(tmp_path / name) for name in ("consumequeue", "index")}
    first = min((tmp_path / "consumequeue/Topic1/0").iterdir())
    damaged = bytearray(first.read_bytes())
    damaged[25:60] = bytes(35)
    first.write_bytes(damaged)
    summary = rebuilt(tmp_path)
    assert summary["mode"] == "sealed segments of a live broker"
    assert summary["files_compared"] > 20
    assert summary["files_replaced"] == 1
    assert {name: tree(tmp_path / name) for name in own} == own


def test_damage_becomes_fillers_as_in_the_brokers_recovery(tmp_path: Path) -> None:
    store = filled_store(tmp_path / "a", 200)
    entry = store.table.queues[("Topic1", 1)].entry(5)
    assert entry is not None
    crash(store)
    segment = tmp_path / "a/commitlog" / f"{entry[0] // 4096 * 4096:020d}"
    data = bytearray(segment.read_bytes())
    data[entry[0] % 4096 + 90] ^= 1
    segment.write_bytes(data)
    for name in ("consumequeue", "index"):
        shutil.rmtree(tmp_path / "a" / name)
    (tmp_path / "a/mqspark.checkpoint").unlink(missing_ok=True)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    recovered = opened(tmp_path / "a")
    recovered.close()
    summary = rebuilt(tmp_path / "b", **SMALL)
    assert len(summary["damaged"]) == 1
    assert tree(tmp_path / "b/consumequeue") == tree(tmp_path / "a/consumequeue")
    opened(tmp_path / "b")
    assert tree(tmp_path / "b/consumequeue") == tree(tmp_path / "a/consumequeue")


@pytest.mark.parametrize(("bodies", "listed"), [(2, False), (30, False), (0, True), (1, True), (30, True)])
@pytest.mark.parametrize("ahead", some([0, 1, 2], 1))
def test_a_topic_that_was_deleted_and_made_again(
    tmp_path: Path, bodies: int, listed: bool, ahead: int
) -> None:
    """Wherever segments end between the messages of its second life; without the list, as when RocketMQ has deleted it,
    its records have to tell."""
    store = opened(tmp_path, mapped_file_size_commit_log=400)
    for _ in range(30):
        put(store, "T", 0, b"before")
    store.delete_topic("T")
    for _ in range(ahead):
        put(store, "Other", 0, b"x")
    for number in range(bodies):
        put(store, "T", 0, b"%d" % number)
    store.close()
    if not listed:
        (tmp_path / "mqspark.deletions").unlink()
    own = tree(tmp_path / "consumequeue")
    rebuilt(tmp_path)
    assert tree(tmp_path / "consumequeue") == own


def test_batches_of_a_deleted_topic_do_not_tell_what_its_queues_are_now(tmp_path: Path) -> None:
    store = opened(tmp_path, mapped_file_size_commit_log=400)
    store.appender.use_batch_queues("T")
    store.appender.put_inner_batch(pending("T", 0, bytes(100)), 2)
    store.delete_topic("T")
    for _ in range(9):
        put(store, "T", 0, b"simple")
    store.close()
    own = tree(tmp_path / "consumequeue")
    rebuilt(tmp_path)
    assert tree(tmp_path / "consumequeue") == own
    assert not (tmp_path / "batchconsumequeue").exists() or not any(
        (tmp_path / "batchconsumequeue").iterdir()
    )


def test_the_log_may_be_anywhere(tmp_path: Path) -> None:
    store = filled_store(tmp_path / "a", 100)
    store.close()
    own = {name: tree(tmp_path / "a" / name) for name in ("consumequeue", "index")}
    memory = fsspec.filesystem("memory")
    memory.put(str(tmp_path / "a/commitlog"), "/rebuild-test-log", recursive=True)
    (tmp_path / "b").mkdir()
    rebuilt(tmp_path / "b", commit_log="memory://rebuild-test-log", **SMALL)
    assert tree(tmp_path / "b/consumequeue") == own["consumequeue"]
    assert list(tree(tmp_path / "b/index").values()) == list(own["index"].values())


def test_a_queue_without_records_in_the_log_keeps_its_end(tmp_path: Path) -> None:
    store = filled_store(tmp_path, 300)
    ends = {key: queue.max_offset for key, queue in store.table.queues.items()}
    store.close()
    segments = list_log(str(tmp_path / "commitlog"))
    for segment in segments[:-1]:
        Path(segment.url).unlink()
    rebuilt(tmp_path)
    again = opened(tmp_path)
    assert {key: queue.max_offset for key, queue in again.table.queues.items()} == ends


def test_plans_are_functions_of_names_and_numbers(tmp_path: Path) -> None:
    log = [LogFile(start, 100, f"/log/{start}", "1") for start in (0, 100, 200)]
    options = RebuildOptions(tmp_path)
    scans = plan_scans(log, tmp_path, options, frozenset(), sealed_only=True)
    assert [(task.file.start, task.is_last) for task in scans] == [(0, False), (100, False)]
    scans = plan_scans(log, tmp_path, options, frozenset(), sealed_only=False)
    assert [task.is_last for task in scans] == [False, False, True]
    manifests = [
        (tmp_path / "0", ScanManifest("", 0, 100, parts=[QueuePart("A", 0, 0, 5), QueuePart("B", 0, 5, 1)])),
        (
            tmp_path / "1",
            ScanManifest("", 100, 200, parts=[QueuePart("B", 0, 0, 2), QueuePart("C", 1, 2, 1)]),
        ),
    ]
    tasks = plan_queues(manifests, QueueShape(tmp_path, 20), tasks=2)
    topics = [[[(path.name, part.topic) for path, part in queue] for queue in task.queues] for task in tasks]
    assert topics == [[[("0", "A")]], [[("0", "B"), ("1", "B")], [("1", "C")]]]
    assert index_names([1_700_000_000_000] * 3, ["20230101000000000"])[0] == "20230101000000000"
    names = index_names([1_700_000_000_000] * 3, [])
    assert names == sorted(set(names))


def test_metrics_are_prometheus_text(tmp_path: Path) -> None:
    write_metrics(tmp_path / "job.prom", {"job": "rebuild-index", "records": 5, "ok": True, "mode": "x"})
    lines = (tmp_path / "job.prom").read_text().splitlines()
    assert lines[0] == 'mqspark_job_records{job="rebuild-index"} 5'
    assert lines[1].startswith('mqspark_job_finished_timestamp_seconds{job="rebuild-index"} ')


def test_a_scan_from_before_a_power_cut_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of a scan is synced."""
    filled_store(tmp_path).close()
    own = tree(tmp_path / "consumequeue")
    with pytest.raises(Killed):
        rebuilt(tmp_path, InProcessSpark(dies_after=3))
    first, second, _ = sorted((tmp_path / "mqspark.rebuild/scan").iterdir())
    (first / "manifest.json").write_bytes(b"")
    (second / "entries").write_bytes(b"")
    other = tmp_path / "boot_id"
    other.write_text("another start\n")
    monkeypatch.setattr(rebuild, "BOOT_ID", other)
    rebuilt(tmp_path)
    assert tree(tmp_path / "consumequeue") == own


def test_queues_that_are_kept_are_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their files hold the next offset of a queue whose messages have all expired."""
    filled_store(tmp_path, 30).close()
    synced = set()
    sync = OsFiles.sync

    def noted(self: OsFiles, fd: int) -> None:
        synced.add(Path(os.readlink(f"/proc/self/fd/{fd}")))
        sync(self, fd)

    monkeypatch.setattr(OsFiles, "sync", noted)
    work = tmp_path / "work"
    Swap(StorePaths(tmp_path), work).keep_silent_queues(set(), has_ext=False)
    copied = {path for path in work.rglob("*") if path.is_file()}
    assert len(copied) == 7
    assert copied <= synced
