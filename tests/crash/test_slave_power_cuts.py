"""Power cuts of a slave under SYNC_FLUSH: what it has reported stays, and the rest becomes its master's log again."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from mqspark.store.disk.files import FileLayer
from mqspark.store.disk.layout import file_name
from mqspark.store.disk.logpaths import LogPaths
from mqspark.store.log.commitlog import CommitLog
from mqspark.store.store import MessageStore
from tests.crash.disk import DirectorySynced, MemoryFiles, Noted, Power, RecordedFiles, Synced, Tree
from tests.crash.power import ROOT, SETTINGS
from tests.support.clocks import ManualClock
from tests.support.store_tools import complete, drain, make_store, put

QUEUES = [("Orders", 0), ("Orders", 1), ("Other", 0)]


@dataclass(frozen=True, slots=True)
class Reported:
    position: int


@dataclass(frozen=True, slots=True)
class Diverges:
    """From now on only what lies before ``position`` is the new master's."""

    position: int


def open_store(files: FileLayer) -> MessageStore:
    store = make_store(ROOT, ManualClock(), files, sync=True, **SETTINGS)
    store.open()
    return store


def sync(store: MessageStore) -> None:
    store.pipeline.commit()
    while (job := store.pipeline.begin_flush()) is not None:
        job.run()
        store.pipeline.end_flush(job)
    store.catch_up()


def fill(store: MessageStore, count: int, seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(count):
        topic, queue_id = chance.choice(QUEUES)
        body = chance.randbytes(chance.choice((5, 60, 300, 700)))
        put(store, topic, queue_id, body, b"TAGS\x01T\x02KEYS\x01k\x02")
    sync(store)


def master_log(store: MessageStore, end: int | None = None) -> bytes:
    parts, position = [], 0
    while part := store.copy.log_bytes(position, 1 << 20):
        parts.append(part)
        position += len(part)
    return b"".join(parts)[:end]


def follow(store: MessageStore, log: bytes, note: Callable[[object], None], step: int = 1500) -> None:
    """Copy the rest of a master's log in pieces, some of which end inside a record."""
    store.copy.follow()
    at = store.log.position
    while at < len(log):
        end = min(max(at, store.log.position) + step, len(log))
        before = store.log.position
        store.copy.append(log[before:end])
        sync(store)
        note(Reported(store.pipeline.stored_end))
        if store.log.position == before:
            step *= 2
        at = end if end == len(log) else store.log.position


def upkeep(store: MessageStore) -> None:
    complete(store.maintenance())


def states(files: RecordedFiles, limit: int) -> Iterator[tuple[Tree, int, int | None]]:
    """What a power cut may leave at each sync, the last position reported before, and where the logs differ."""
    power, chance = Power(files), random.Random(1)
    reported, differs = 0, None
    for event in [*files.events, None]:
        is_sync = event is None or isinstance(event, Synced | DirectorySynced)
        for choice in power.choices(limit, chance) if is_sync else ():
            yield power.image(choice), reported, differs
        if event is None:
            return
        power.follow(event)
        if isinstance(event, Noted) and isinstance(event.what, Reported):
            reported = max(reported, event.what.position) if differs is None else reported
        if isinstance(event, Noted) and isinstance(event.what, Diverges):
            differs = event.what.position


def assert_copy(tree: Tree, reported: int, logs: list[bytes], final: bytes, master: MessageStore) -> None:
    store = open_store(MemoryFiles(ROOT, tree))
    found = master_log(store, store.pipeline.stored_end)
    assert len(found) >= reported, f"{len(found)} is left of {reported} reported"
    assert any(log[:reported] == found[:reported] for log in logs), "what is left is in no master's log"
    store.copy.follow()
    converge(store, found, final)
    follow(store, final, lambda _: None)
    assert master_log(store) == master_log(master)
    for queue in QUEUES:
        assert [one.body for one in drain(store, *queue)] == [one.body for one in drain(master, *queue)]
    store.close()


def converge(store: MessageStore, found: bytes, final: bytes) -> None:
    """As a slave does when it connects. Recovery keeps what is valid behind a hole that the power cut left."""
    same = next((at for at, octet in enumerate(found) if at >= len(final) or octet != final[at]), len(found))
    if same == len(found):
        return
    assert (
        same >= store.status.sure_position
        or final[: store.status.sure_position] != found[: store.status.sure_position]
    )
    common = store.copy.last_whole_record(0, same)
    store.copy.cut_back(common or 0)
    upkeep(store)
    assert store.log.position == (common or 0)


@pytest.mark.slow("many images; the power cut while a log is taken back is the fast twin")
@pytest.mark.parametrize(
    "limit",
    [3, pytest.param(12, marks=pytest.mark.slow("more images; the same with fewer is the fast twin"))],
)
def test_a_power_cut_while_a_slave_copies(limit: int) -> None:
    master = open_store(MemoryFiles(ROOT))
    fill(master, 40, seed=1)
    log = master_log(master)
    files = RecordedFiles(ROOT)
    slave = open_store(files)
    follow(slave, log[: len(log) // 2], files.note)
    upkeep(slave)
    follow(slave, log, files.note)
    slave.close()
    count = 0
    for tree, reported, _ in states(files, limit):
        assert_copy(tree, reported, [log], log, master)
        count += 1
    assert count > 50


def test_a_power_cut_while_a_log_is_taken_back() -> None:
    files = MemoryFiles(ROOT)
    old = open_store(files)
    fill(old, 15, seed=1)
    common = old.log.position
    shared = files.tree()
    fill(old, 20, seed=2)
    theirs = master_log(old)
    new = open_store(MemoryFiles(ROOT, shared))
    assert new.log.position == common
    fill(new, 25, seed=3)
    ours = master_log(new)
    recorded = RecordedFiles(ROOT)
    slave = open_store(recorded)
    follow(slave, theirs, recorded.note)
    upkeep(slave)
    recorded.note(Diverges(common))
    slave.copy.cut_back(common)
    upkeep(slave)
    assert slave.log.position == common
    follow(slave, ours, recorded.note)
    slave.close()
    count = 0
    for tree, _, differs in states(recorded, 3):
        if differs is not None:
            assert_copy(tree, common, [theirs, ours], ours, new)
            count += 1
    assert count > 20


@pytest.mark.parametrize("act", ["cut", "cut_back", "restart_at"])
@pytest.mark.parametrize("directories", [1, 2])
def test_a_power_cut_while_segments_are_removed_leaves_no_gap_in_the_log(act: str, directories: int) -> None:
    """A gap counts as lost messages, and what lies behind it as messages of the log."""
    places = [f"log{number}" for number in range(directories)]
    tree: Tree = {
        place: {file_name(start): bytes(4096) for start in range(4096 * number, 5 * 4096, 4096 * directories)}
        for number, place in enumerate(places)
    }
    files = RecordedFiles(ROOT, tree)
    log = CommitLog(
        LogPaths(tuple(ROOT / place for place in places)),
        files,
        segment_bytes=4096,
        allocation_step=4096,
        max_mapped=4,
    )
    log.load()
    if act != "cut":
        log.start_at(4 * 4096)
    getattr(log, act)(8 * 4096 if act == "restart_at" else 100)
    power, counts = Power(files), set()
    for event in files.events:
        power.follow(event)
        for choice in power.choices(100, random.Random(1)):
            image = power.image(choice)
            names = sorted(name for place in places for name in image[place])
            starts = [int(name) for name in names]
            assert [start - starts[0] for start in starts] == [4096 * number for number in range(len(starts))]
            counts.add(len(starts))
    assert counts == ({0, 1, 2, 3, 4, 5} if act == "restart_at" else {1, 2, 3, 4, 5})
