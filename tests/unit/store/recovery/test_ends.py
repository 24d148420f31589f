"""The ends of the queues at the checkpoints: what a start after a kill knows about queues that lost files."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from mqspark.store import MessageStore
from mqspark.store.disk.files import OsFiles
from mqspark.store.log.commitlog import CommitLog
from mqspark.store.recovery.queueends import QueueEnds, Range
from mqspark.store.tools.remake import remake
from tests.support.clocks import ManualClock
from tests.support.draws import some
from tests.support.store_tools import (
    RoomyFiles,
    checkpoint,
    crash,
    drain,
    flush,
    leave,
    opened,
    put,
    put_synced,
)
from tests.support.store_tools import (
    clean as remove_expired,
)
from tests.unit.store.disk.test_retention import assert_serves_the_rest, expire, filled, run
from tests.unit.store.queue.test_store_batch import SMALL, fill, put_many, served

FILES = OsFiles()


def lines(path: Path) -> dict[tuple[str, int], Range]:
    ends, problem = QueueEnds.load(path / "mqspark.ends", FILES, 1 << 62, clean=True)
    assert ends is not None, "no ends"
    assert problem is None
    return dict(ends.ranges)


def file_of(root: Path, which: int, queue: str = "consumequeue/E/0") -> Path:
    return sorted((root / queue).iterdir())[which]


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x40
    path.write_bytes(data)


LOSSES: dict[str, Callable[[Path], object]] = {
    "missing": Path.unlink,
    "empty": lambda path: path.write_bytes(b""),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:13]),
    "zeroed": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "random": lambda path: path.write_bytes(random.Random(3).randbytes(path.stat().st_size)),
    "first entry flipped": lambda path: flip(path, 5),
}
KILLS = pytest.mark.parametrize("kill", [False, True], ids=["stop", "kill"])
WHICH = pytest.mark.parametrize("which", [0, 1, -1], ids=["first", "middle", "last"])


@KILLS
@WHICH
@pytest.mark.parametrize("stops", [False, True], ids=["never stopped", "stopped before"])
@pytest.mark.parametrize("loss", some(LOSSES, 3))
def test_a_start_notices_a_damaged_file(
    tmp_path: Path, loss: str, which: int, *, stops: bool, kill: bool
) -> None:
    clock = ManualClock()
    store = opened(tmp_path, clock)
    bodies = [b"%d" % number for number in range(35)]
    for number, body in enumerate(bodies):
        put_synced(store, "E", 0, body)
        if stops and number == 20:
            store.close()
            store.open()
    clock.advance(60_000)
    checkpoint(store)
    crash(store) if kill else store.close()
    LOSSES[loss](file_of(tmp_path, which))

    store = opened(tmp_path)
    assert [message.body for message in drain(store, "E", 0)] == bodies
    assert store.damages.summary()["healed"] == 1
    assert put(store, "E", 0, b"next")[0] == len(bodies)


@KILLS
@WHICH
@pytest.mark.parametrize("loss", some(LOSSES, 3))
def test_a_start_notices_a_damaged_file_of_batches(
    tmp_path: Path, loss: str, which: int, *, kill: bool
) -> None:
    store = opened(tmp_path, **SMALL)
    bodies = fill(store, 30)
    checkpoint(store)
    crash(store) if kill else store.close()
    LOSSES[loss](file_of(tmp_path, which, "batchconsumequeue/B/0"))

    store = opened(tmp_path, **SMALL)
    assert served(store) == bodies
    assert store.damages.summary()["healed"] == 1
    assert put_many(store, [b"x", b"y"]) == len(bodies)


def test_offsets_of_lost_batches_are_never_assigned_again(tmp_path: Path) -> None:
    store = opened(tmp_path, **SMALL)
    bodies = fill(store, 30)
    store.close()
    last = file_of(tmp_path, -1, "commitlog")
    last.unlink()
    for start in range(3):
        store = opened(tmp_path, **SMALL)
        assert store.damages.summary()["lost"] == (2 if start == 0 else 0), store.damages.summary()
        assert store.offsets.max_offset("B", 0) < len(bodies)
        store.close()
    store = opened(tmp_path, **SMALL)
    assert put_many(store, [b"x", b"y"]) == len(bodies)


def test_only_what_is_durable_counts(tmp_path: Path, store: MessageStore) -> None:
    """A power cut may take what was visible and not durable: the queue then ends earlier, and nothing is lost."""
    for number in range(25):
        put(store, "E", 0, b"%d" % number)
        if number < 12:
            flush(store)
        else:
            store.pipeline.commit()
    checkpoint(store)
    assert lines(tmp_path)["E", 0].end == 12
    flush(store)
    store.close()
    assert lines(tmp_path)["E", 0].end == 25


def test_a_block_has_what_changed(tmp_path: Path, clock: ManualClock, store: MessageStore) -> None:
    for topic in ("A", "B"):
        put(store, topic, 0, b"x")
    flush(store)
    checkpoint(store)
    clock.advance(60_000)
    put_synced(store, "B", 0, b"y")
    checkpoint(store)
    blocks = (tmp_path / "mqspark.ends").read_bytes().split(b"mqspark-ends-1 ")[1:]
    assert [b" A\n" in block for block in blocks] == [True, False]
    assert [b" B\n" in block for block in blocks] == [True, True]
    assert {key: each.end for key, each in lines(tmp_path).items()} == {("A", 0): 1, ("B", 0): 2}


def test_a_deleted_topic_does_not_come_back(tmp_path: Path, clock: ManualClock, store: MessageStore) -> None:
    for number in range(35):
        put(store, "E", 0, b"%d" % number)
        put(store, "Gone", 0, b"%d" % number)
        put_synced(store, "Again", 0, b"%d" % number)
    checkpoint(store)
    store.delete_topics(["Gone", "Again"])
    put_synced(store, "Again", 0, b"new")
    clock.advance(60_000)
    checkpoint(store)
    assert {key: each.end for key, each in lines(tmp_path).items()} == {("E", 0): 35, ("Again", 0): 1}
    crash(store)
    file_of(tmp_path, -1).unlink()  # a start that heals restores the ends of every queue

    store = opened(tmp_path)
    assert (store.offsets.max_offset("E", 0), store.offsets.max_offset("Again", 0)) == (35, 1)
    assert not store.offsets.has_queue("Gone", 0)


def test_a_removed_file_is_made_again(tmp_path: Path, clock: ManualClock, store: MessageStore) -> None:
    put_synced(store, "A", 0, b"x")
    checkpoint(store)
    (tmp_path / "mqspark.ends").unlink()
    for _ in range(2):
        put_synced(store, "B", 0, b"x")
        clock.advance(60_000)
        checkpoint(store)
    assert {key: each.end for key, each in lines(tmp_path).items()} == {("A", 0): 1, ("B", 0): 2}


@pytest.mark.parametrize("kill", [False, True], ids=["stop", "kill"])
@pytest.mark.parametrize("kind", ["consumequeue", "batchconsumequeue"])
@pytest.mark.parametrize("remade", [False, True], ids=["by a start", "by fsck"])
def test_offsets_go_on_when_the_rebuild_of_a_lost_queue_is_interrupted(
    tmp_path: Path,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    *,
    remade: bool,
    kill: bool,
) -> None:
    """Retention has deleted the queue's records, so the file of the ends alone says where it ended."""
    files = RoomyFiles(clock)
    store = opened(tmp_path, clock, files, **SMALL)
    is_batch = kind == "batchconsumequeue"
    store.config_file("topics.json").save(
        b'{"topicConfigTable":{"B":{"attributes":{"queue.type":"BatchCQ"}}}}'
    )
    for number in range(11):
        put_many(store, [b"%d" % number] * 2) if is_batch else put(store, "A", 0, b"%d" % number)
    for _ in range(100):
        put(store, "Other", 0, bytes(200))
    flush(store)
    files.expired = {path.name for path in (tmp_path / "commitlog").iterdir()}
    checkpoint(store)
    remove_expired(store, clock)
    leave(store, killed=kill)
    shutil.rmtree(tmp_path / kind)
    for _ in range(2):
        with monkeypatch.context() as patch:
            patch.setattr(CommitLog, "cut", _interrupted)
            with pytest.raises(OSError, match="the power is off"):
                opened(tmp_path, clock, files, **SMALL)
    if remade:
        remake(store.config, clock)
    for _ in range(2):
        store = opened(tmp_path, clock, files, **SMALL)
        crash(store)
    store = opened(tmp_path, clock, files, **SMALL)
    assert (put_many(store, [b"next"]) if is_batch else put(store, "A", 0, b"next")[0]) == (
        22 if is_batch else 11
    )


def _interrupted(log: CommitLog, position: int) -> int:
    raise OSError("the power is off")


def test_ends_are_forgotten_before_the_log_is_taken_back(tmp_path: Path, clock: ManualClock) -> None:
    """What is taken back is not lost: the master has other messages in its place."""
    store = opened(tmp_path, clock)
    for number in range(25):
        put_synced(store, "A", 0, b"%d" % number)
    checkpoint(store)
    store.upkeep.checkpoints.begin_cut()
    assert not store.paths.ends.exists()
    assert store.upkeep.checkpoints.load().is_distrusted


@pytest.mark.parametrize("loss", [False, True])
def test_retention_moves_the_beginning(tmp_path: Path, *, loss: bool) -> None:
    store, written, files = filled(tmp_path)
    expire(store, files, 8)
    run(store, files)
    files.clock.advance(60_000)
    checkpoint(store)
    crash(store)
    assert store.offsets.min_offset("T", 0) > 20
    if loss:
        file_of(tmp_path, 0, "consumequeue/T/0").unlink()
    store = opened(tmp_path, files.clock, files)
    assert store.damages.summary() == {"healed": int(loss), "lost": 0, "wrong": 0}
    assert_serves_the_rest(store, written)


# --- the file ------------------------------------------------------------------------------------------------


def block(position: int, **ends: int) -> bytes:
    return QueueEnds.encode(
        position, [((topic, 0), Range(position, 0, -1, end)) for topic, end in ends.items()]
    )


def test_the_last_line_of_a_queue_counts() -> None:
    ends = QueueEnds.decode(block(10, A=1, B=2) + block(20, A=3) + block(30, B=0))
    assert ends is not None
    assert ends.position == 30
    assert dict(ends.ranges) == {("A", 0): Range(20, 0, -1, 3)}


def test_a_block_beyond_the_checkpoint_does_not_count() -> None:
    data = block(10, A=1)
    ends = QueueEnds.decode(data + block(20, A=3), 19)
    assert ends is not None
    assert (ends.position, ends.ranges["A", 0].end, ends.sound_bytes) == (10, 1, len(data))


@pytest.mark.parametrize("length", range(0, 40, 3))
def test_a_torn_block_does_not_count(length: int, tmp_path: Path) -> None:
    whole, torn = block(10, A=1), block(20, A=3)[: -length or None]
    path = tmp_path / "ends"
    path.write_bytes(whole + torn)
    for clean in (False, True):
        ends, problem = QueueEnds.load(path, FILES, 100, clean=clean)
        assert ends is not None
        assert ends.position == (20 if length == 0 else 10)
        assert (problem is not None) == (clean and length > 0)


@pytest.mark.parametrize("at", [5, 20, 45, 50])
def test_damage_is_no_torn_end(at: int, tmp_path: Path) -> None:
    data = bytearray(block(10, A=1) + block(20, A=3) + block(30, A=4))
    data[at + len(block(10, A=1))] ^= 0x01
    path = tmp_path / "ends"
    path.write_bytes(data)
    ends, problem = QueueEnds.load(path, FILES, 100, clean=False)
    assert ends is not None
    assert ends.position == 10
    assert "up to position 10" in (problem or "")


def test_a_line_keeps_all_fields() -> None:
    ranges = {
        ("A", 3): Range(7, 5, 900, 80),
        ("%RETRY%g", 0): Range(7, 0, -1, 4),
        ("B", 1): Range(7, 1, 0, 4, 9),
    }
    ends = QueueEnds.decode(QueueEnds.encode(7, ranges.items()))
    assert ends is not None
    assert dict(ends.ranges) == ranges
    again = QueueEnds.decode(ends.merged())
    assert again is not None
    assert dict(again.ranges) == ranges


def test_merging_keeps_what_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqspark.store.recovery.queueends._MERGE_BYTES", 100)
    clock = ManualClock()
    store = opened(tmp_path, clock)
    put(store, "Idle", 0, b"x")
    longest = 0
    for number in range(50):
        put_synced(store, f"T{number % 3}", 0, b"x")
        clock.advance(60_000)
        checkpoint(store)
        longest = max(longest, (tmp_path / "mqspark.ends").stat().st_size)
    crash(store)
    assert longest < 700
    assert {key[0]: each.end for key, each in lines(tmp_path).items()} == {
        "Idle": 1,
        "T0": 17,
        "T1": 17,
        "T2": 16,
    }
    store = opened(tmp_path)
    assert store.damages.summary() == {"healed": 0, "lost": 0, "wrong": 0}
