"""The contract of jobs: whatever happens in a worker thread reaches the owner, which can go on."""

from __future__ import annotations

import ast
import errno
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from mqspark.protocol.codes import RequestCode
from mqspark.store import FlushDiskType, Job
from mqspark.store.disk.diskjobs import ReadAheadJob, run_here
from mqspark.store.log.nextsegment import NextSegmentJob
from mqspark.store.log.zeroahead import ZeroAheadJob
from mqspark.store.recovery.deletions import Deletions
from mqspark_server.process.diskwork import Housekeeper, Worker
from tests.support.clocks import ManualClock
from tests.support.store_tools import FaultyFiles, flush, opened, put, put_synced
from tests.support.waiting import eventually_async
from tests.unit.broker.replication.test_slave_divergence import fork, meet
from tests.unit.broker_kit import SEND, Bench, send_ext
from tests.unit.controller_kit import ControllerBench
from tests.unit.timer_kit import send as send_timer

ROOT = Path(__file__).parents[3]


class Case(NamedTuple):
    """A job's owner. ``due`` makes its jobs due and begins them; ``failure`` is what health shows of it."""

    due: Callable[[], list[Job]]
    failure: Callable[[], str | None]
    close: Callable[[], None]


def only_housekeeping() -> str | None:
    return None


def of_store(root: Path, failure: str, **settings: int) -> Case:
    clock = ManualClock()
    files = FaultyFiles()
    store = opened(root, clock, files, **settings)
    for number in range(60):
        put(store, "T", 0, b"%04d" % number * 30, b"KEYS\x01k%d\x02" % number)
    flush(store)
    store.catch_up()
    if failure == "scrub":
        store.close()
        store = opened(root, clock, files, **settings)

    def due() -> list[Job]:
        put_synced(store, "T", 0, b"more" * 30, b"KEYS\x01more\x02")
        store.catch_up()
        clock.advance(100_000)
        store.clean_expired_queues()
        return store.maintenance()

    def found() -> str | None:
        problems = {
            "checkpoint": store.status.checkpoint_problem,
            "index": store.status.index_problem,
            "cleaning": store.status.retention_problem,
            "scrub": store.upkeep.scrub.problem,
        }
        return problems[failure]

    return Case(due, only_housekeeping if failure == "-" else found, store.abandon)


def slots(root: Path) -> Case:
    clock = ManualClock()
    store = opened(root, clock, FaultyFiles())

    def due() -> list[Job]:
        clock.advance(100_000)
        put(store, "T", 0, b"x", b"KEYS\x01k\x02")
        flush(store)
        store.maintenance()
        for _ in store.follow_with_index():
            continue
        return store.maintenance()

    due()  # makes a file
    return Case(due, only_housekeeping, store.abandon)


def read_ahead(root: Path, segment_bytes: int, kind: type[Job]) -> Case:
    files = FaultyFiles()
    store = opened(
        root,
        ManualClock(),
        files,
        mapped_file_size_commit_log=segment_bytes,
        allocation_step_commit_log=4096,
        flush_disk_type=FlushDiskType.SYNC_FLUSH if kind is ZeroAheadJob else FlushDiskType.ASYNC_FLUSH,
    )

    def due() -> list[Job]:
        for _ in range(200):
            jobs = store.maintenance() if store.room_due else []
            if any(isinstance(job, kind) for job in jobs):
                return jobs
            put(store, "T", 0, b"x" * 200)
            if kind is ReadAheadJob:  # of a log that is not synced often
                store.pipeline.commit()
            else:
                flush(store)
        raise AssertionError(f"no {kind.__name__}")

    return Case(due, only_housekeeping, store.abandon)


def deletions(root: Path, job_of: Callable[[Deletions], Job | None], *, saved: bool = True) -> Case:
    store = opened(root)
    put_synced(store, "T", 0, b"x")
    store.delete_topic("T")
    lists = store.deletions

    def due() -> list[Job]:
        if saved and lists.unsaved:
            run_here(lists.save_job())
        job = job_of(lists)
        return [] if job is None else [job]

    return Case(due, only_housekeeping, store.abandon)


def cut_back(root: Path) -> Case:
    found = fork(root)
    meet(found)
    found.slave.flush()

    def close() -> None:
        for bench in (found.master, found.other, found.slave):
            bench.store.abandon()

    return Case(found.slave.store.maintenance, only_housekeeping, close)


def of_broker(root: Path) -> Case:
    bench = Bench(root)
    send_timer(bench, deliver_ms=bench.clock.now_ms() + 60_000)
    bench.peer().give(SEND, send_ext("New"), b"a topic is made")
    bench.run_for(2_000)

    def due() -> list[Job]:
        bench.later(10_000)
        bench.flush()
        return bench.broker.jobs()

    return Case(due, only_housekeeping, bench.store.abandon)


def note(root: Path) -> Case:
    store = opened(root)
    store.member.open()
    store.member.acknowledge(1, 10, 10)
    return Case(store.maintenance, only_housekeeping, store.abandon)


def of_controller(root: Path) -> Case:
    bench = ControllerBench(root)
    header = {
        "clusterName": "C",
        "brokerName": "b",
        "appliedBrokerId": "1",
        "registerCheckCode": "10.0.0.1:1;1",
    }
    bench.operator.give(RequestCode.CONTROLLER_APPLY_BROKER_ID, header)
    return Case(bench.core.jobs, only_housekeeping, lambda: None)


CASES: dict[str, Callable[[Path], Case]] = {
    "CheckpointJob": lambda root: of_store(root, "checkpoint"),
    "CleaningJob": lambda root: of_store(root, "cleaning"),
    "CutBackJob": cut_back,
    "IndexJob": lambda root: of_store(root, "index"),
    "NextSegmentJob": lambda root: read_ahead(root, 1 << 15, NextSegmentJob),
    "ReadAheadJob": lambda root: read_ahead(root, 1 << 24, ReadAheadJob),
    "ReadSlotsJob": slots,
    "ScrubJob": lambda root: of_store(root, "scrub", scrub_bytes_per_second=512),
    "SyncNoteJob": note,
    "TableNotesJob": of_broker,
    "TimerFlush": of_broker,
    "UnmapJob": lambda root: of_store(root, "-"),
    "ZeroAheadJob": lambda root: read_ahead(root, 1 << 24, ZeroAheadJob),
    "_KeepRoomJob": lambda root: deletions(root, Deletions.room_job),
    "_RemoveFilesJob": lambda root: deletions(root, Deletions.removal_job),
    "_SaveDeletionsJob": lambda root: deletions(
        root, lambda lists: lists.save_job() if lists.unsaved else None, saved=False
    ),
    "_SaveStateJob": of_controller,
    "_SaveTableJob": of_broker,
}


def job_classes() -> Iterator[tuple[str, ast.FunctionDef]]:
    """Every class with ``run`` and ``done``, and its ``done``."""
    for package in ("mqspark", "server/mqspark_server"):
        for path in sorted((ROOT / package).rglob("*.py")):
            text = path.read_text()
            if "def done(" not in text:
                continue
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.ClassDef) and node.name != "Job":
                    methods = {each.name: each for each in node.body if isinstance(each, ast.FunctionDef)}
                    if {"run", "done"} <= methods.keys():
                        yield node.name, methods["done"]


def test_every_job_takes_its_error_and_has_a_test_here() -> None:
    found = dict(job_classes())
    assert sorted(found) == sorted(CASES)
    for name, done in found.items():
        assert [each.arg for each in done.args.args] == ["self", "error"], name


class Rounds:
    """A core with one round of jobs."""

    jobs_due = True

    def __init__(self, jobs: list[Job]) -> None:
        self._jobs = [jobs]

    def jobs(self) -> list[Job]:
        return self._jobs.pop() if self._jobs else []


def of(name: str, jobs: list[Job]) -> Job | None:
    return next((job for job in jobs if type(job).__name__ == name), None)


@pytest.mark.parametrize("name", sorted(CASES))
@pytest.mark.parametrize(
    "broken", [RuntimeError("a fault in the job"), MemoryError(), OSError(errno.EMFILE, "no descriptor")]
)
async def test_after_an_error_the_owner_begins_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, broken: Exception
) -> None:
    case = CASES[name](tmp_path)
    first = of(name, case.due())
    assert first is not None, "the job is not due"

    def run(job: Job) -> None:
        raise broken

    worker = Worker("jobs-test")
    with monkeypatch.context() as patch:
        patch.setattr(type(first), "run", run)
        housekeeper = Housekeeper(Rounds([]), worker)
        await housekeeper.run([first])
    assert housekeeper.error in (repr(broken), str(broken))
    failure = case.failure
    if failure is not only_housekeeping:
        assert (str(broken) or repr(broken)) in (failure() or "")
    second = of(name, case.due())
    assert second is not None, "the owner waits for the failed job"
    assert second is not first
    await housekeeper.run([second])
    assert housekeeper.error is None
    worker.close()
    case.close()


async def test_stopping_waits_for_the_round_and_ends_its_jobs() -> None:
    ended: list[BaseException | None] = []

    class Last:
        def run(self) -> None:
            stopping.append("runs")

        def done(self, error: BaseException | None = None) -> None:
            ended.append(error)

    stopping: list[str] = []
    worker = Worker("jobs-test")
    housekeeper = Housekeeper(Rounds([Last(), Last()]), worker)
    housekeeper.start()
    housekeeper.after_turn()
    await eventually_async(lambda: bool(stopping), "the first job")
    await housekeeper.stop()
    worker.close()
    assert ended == [None, None]
