"""The life of a store: one owner, starts and stops, checkpoints, deleted topics, settings and small files."""

from __future__ import annotations

import errno
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from mqspark.base.config import parse_settings
from mqspark.errors import StoreCorrupt, StoreLocked, StoreReadOnly
from mqspark.store import ConfigFile, FlushDiskType, MessageStore, OsFiles, StoreConfig, StoreReader
from mqspark.store.disk.diskjobs import PreparedJob
from mqspark.store.disk.notes.checkpoint import Checkpoint
from mqspark.store.recovery import recovery
from mqspark.store.upkeep import checkpoints
from tests.support.clocks import ManualClock
from tests.support.processes import run_python
from tests.support.store_tools import (
    checkpoint,
    complete,
    crash,
    drain,
    flush,
    leave,
    make_store,
    opened,
    put,
    put_synced,
)
from tests.unit.store.store_kit import bodies

# --- life ---------------------------------------------------------------------------------------------------


def test_one_owner(tmp_path: Path, store: MessageStore) -> None:
    with pytest.raises(StoreLocked):
        make_store(tmp_path).open()
    script = (
        "import sys; from pathlib import Path; from tests.support.store_tools import make_store\n"
        "try: make_store(Path(sys.argv[1])).open()\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    said = run_python(script, str(tmp_path), check=True)
    assert said.stdout.startswith(f"StoreLocked store directory {tmp_path} is in use")
    put(store, "T", 0, b"x")
    store.pipeline.commit()
    store.close()
    store = opened(tmp_path)
    assert bodies(store) == [b"x"]


def test_the_checkpoint_of_a_store_without_messages_is_no_damage(tmp_path: Path) -> None:
    opened(tmp_path).close()
    store = opened(tmp_path)
    assert store.damages.as_dicts(10) == []


def test_closed_and_unopened_stores_refuse(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    with pytest.raises(StoreReadOnly, match="not open"):
        put(store, "T", 0, b"")
    store.open()
    put(store, "T", 0, b"x")
    store.close()
    with pytest.raises(StoreReadOnly, match="closed"):
        put(store, "T", 0, b"")


def test_one_owner_of_a_log_elsewhere(tmp_path: Path) -> None:
    """Stores with roots of their own may name one directory, also by a link."""
    elsewhere, link = tmp_path / "elsewhere", tmp_path / "link"
    link.symlink_to(elsewhere)
    first = opened(tmp_path / "a", store_path_commit_log=str(elsewhere))
    for path in (str(elsewhere), str(link), f"{tmp_path / 'other'},{elsewhere}"):
        with pytest.raises(StoreLocked, match=r"elsewhere|link"):
            opened(tmp_path / "b", store_path_commit_log=path)
    opened(tmp_path / "b", store_path_commit_log=str(tmp_path / "other")).close()
    first.close()
    opened(tmp_path / "b", store_path_commit_log=str(elsewhere)).close()


def test_a_store_has_one_name_for_ever(tmp_path: Path) -> None:
    def name() -> str:
        store = opened(tmp_path / "store")
        store.close()
        return store.directory.identity

    first = name()
    assert name() == first != ""
    path = tmp_path / "store" / "mqspark.id"
    assert path.read_text().strip() == first
    for damaged in (b"", b"\xff" * 33, first.encode()[:9], b"x" * 32):
        path.write_bytes(damaged)
        other = name()
        assert other not in ("", first)
        assert name() == other


def test_small_files(tmp_path: Path, store: MessageStore) -> None:
    assert (tmp_path / "abort").read_text().split()[0].isdigit()
    assert (tmp_path / "lock").read_text() == "lock"
    assert StoreReader(tmp_path).nonce() == store.directory.nonce
    put_synced(store, "T", 0, b"x")
    checkpoint(store)
    data = (tmp_path / "checkpoint").read_bytes()
    now = ManualClock().wall_ms
    assert len(data) == 4096
    assert struct.unpack_from(">5q", data) == (now, now, 0, 0, store.log.durable)
    assert store.maintenance() == [], "nothing new"
    store.close()
    assert not (tmp_path / "abort").exists()
    assert StoreReader(tmp_path).nonce() is None


def test_checkpoints_are_not_too_frequent(clock: ManualClock, store: MessageStore) -> None:
    put_synced(store, "T", 0, b"x")
    (job,) = store.maintenance()
    assert store.maintenance() == [], "one at a time"
    job.run()
    clock.advance(700)
    job.done()
    put_synced(store, "T", 0, b"x")
    clock.advance(6999)
    assert store.maintenance() == [], "it took 700 ms: seven seconds of rest"
    clock.advance(1)
    checkpoint(store)


def test_a_checkpoint_of_many_queues_comes_in_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "SLICE_QUEUES", 10)
    monkeypatch.setattr(checkpoints, "COUNTED_QUEUES", 20)
    shots: list[object] = []
    clock = ManualClock()
    store = opened(tmp_path, clock)
    file, shot = type(store.upkeep.checkpoints.ends), type(store.upkeep.checkpoints.ends).shot
    monkeypatch.setattr(file, "shot", lambda self, key: shots.append(key) or shot(self, key))
    for number in range(95):
        put(store, f"T{number}", 0, b"x")
    flush(store)
    (job,) = store.maintenance()
    assert isinstance(job, PreparedJob)
    assert shots == [], "nothing in the turn that began it"
    taken = []
    for _ in job.prepare():
        taken.append(len(shots))
        put_synced(store, "Late", len(taken), b"x")  # a turn between two slices
    assert taken == [*range(10, 91, 10), *[95] * 7], "ten looked at in a turn, or twenty counted"
    complete([job])
    late = len(taken)
    mark = Checkpoint.load(tmp_path / "checkpoint", tmp_path / "mqspark.checkpoint", OsFiles())
    assert mark.queue_count == 95, "those whose files are synced"
    assert mark.position < store.log.durable
    clock.advance(60_000)
    checkpoint(store)
    mark = Checkpoint.load(tmp_path / "checkpoint", tmp_path / "mqspark.checkpoint", OsFiles())
    assert mark.queue_count == 95 + late
    assert mark.position == store.log.durable
    crash(store)
    store = opened(tmp_path, clock)
    assert store.offsets.max_offset("Late", late) == 1
    assert store.damages.counts == {}


def test_a_failed_slice_is_a_failed_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    store = opened(tmp_path, clock)
    put_synced(store, "T", 0, b"x")
    ends = type(store.upkeep.checkpoints.ends)
    with monkeypatch.context() as patch:
        patch.setattr(ends, "shot", failing(OSError(errno.EMFILE, "too many")))
        checkpoint(store)
    assert "too many" in (store.status.checkpoint_problem or "")
    clock.advance(60_000)
    checkpoint(store)
    assert store.status.checkpoint_problem is None
    mark = Checkpoint.load(tmp_path / "checkpoint", tmp_path / "mqspark.checkpoint", OsFiles())
    assert (mark.queue_count, mark.position) == (1, store.log.durable)


def failing(error: Exception) -> Callable[..., NoReturn]:
    def fail(*args: object) -> NoReturn:
        raise error

    return fail


def test_a_mark_counts_only_with_its_checkpoint(tmp_path: Path) -> None:
    path, mark, files = tmp_path / "checkpoint", tmp_path / "mqspark.checkpoint", OsFiles()
    Checkpoint(1_000, 2_000, 3_000, 4, 5, position=77).save(path, mark, files)
    loaded = Checkpoint.load(path, mark, files)
    assert loaded == Checkpoint(1_000, 2_000, 3_000, 4, 5, position=77)
    assert Checkpoint(9_000, 8_000).safe_timestamp_ms == 5_000
    path.write_bytes(struct.pack(">5q", 1_001, 2_000, 0, 0, 0) + bytes(4056))
    assert Checkpoint.load(path, mark, files).position == -1
    Checkpoint(1_000, 2_000, position=77).save(path, mark, files)
    mark.write_bytes(mark.read_bytes().replace(b"77 ", b"78 "))
    assert Checkpoint.load(path, mark, files).position == -1
    mark.unlink()
    path.write_bytes(b"short")
    assert Checkpoint.load(path, mark, files) == Checkpoint()


def test_recovery_starts_at_the_mark(tmp_path: Path, store: MessageStore) -> None:
    for n in range(50):
        put(store, "T", n % 3, b"%d" % n)
    flush(store)
    checkpoint(store)
    marked = store.log.durable
    for n in range(7):
        put(store, "T", n % 3, b"%d" % n)
    store.pipeline.commit()
    crash(store)
    store = make_store(tmp_path)
    report = store.open()
    assert (report.clean, report.start_position, report.records, report.entries) == (False, marked, 7, 0 + 7)
    assert sum(store.offsets.max_offset("T", n) for n in range(3)) == 57
    crash(store)
    (tmp_path / "mqspark.checkpoint").unlink()
    store = make_store(tmp_path)
    report = store.open()
    assert report.start_position < marked, "by RocketMQ's timestamps: a whole segment at least"
    assert sum(store.offsets.max_offset("T", n) for n in range(3)) == 57


@pytest.mark.parametrize("kill", [False, True])
def test_removed_queues_are_built_anew(tmp_path: Path, store: MessageStore, kill: bool) -> None:
    for n in range(60):
        put(store, "T", n % 3, b"%d" % n)
    flush(store)
    checkpoint(store)
    leave(store, killed=kill)
    shutil.rmtree(tmp_path / "consumequeue/T/1")
    store = opened(tmp_path)
    for queue_id in range(3):
        assert bodies(store, "T", queue_id) == [b"%d" % n for n in range(queue_id, 60, 3)]


def test_what_came_before_a_topic_was_deleted_is_told(store: MessageStore) -> None:
    put(store, "Stays", 0, b"x")
    put(store, "T", 0, b"x")
    store.delete_topic("T")
    put(store, "Gone", 0, b"x")
    store.delete_topic("Gone")
    assert store.pipeline.commit().arrivals == [("Stays", 0, 1)]
    assert store.pipeline.commit().arrivals == []


@pytest.mark.parametrize("before", [1, 3])
@pytest.mark.parametrize("after", [1, 2])
@pytest.mark.parametrize("settle_records", [1, 2, 1 << 16])
@pytest.mark.parametrize("listed", [True, False])
def test_a_kill_after_a_topic_was_deleted_and_made_again(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    before: int,
    after: int,
    settle_records: int,
    listed: bool,
) -> None:
    """What was put since is what there is, however few, and however recovery divides what it reads; also when RocketMQ
    has deleted it, which keeps no list."""
    monkeypatch.setattr(recovery, "_SETTLE_RECORDS", settle_records)
    store = opened(tmp_path, sync=True)
    put_synced(store, "Other", 0, b"x")
    checkpoint(store)
    for _ in range(before):
        put(store, "T", 0, b"before")
    flush(store)
    store.delete_topic("T")
    for number in range(after):
        put(store, "T", 0, b"%d" % number)
        put(store, "Other", 0, b"x")
    flush(store)
    crash(store)
    if not listed:
        (tmp_path / "mqspark.deletions").unlink()
    store = opened(tmp_path, sync=True)
    assert bodies(store) == [b"%d" % number for number in range(after)]
    assert put(store, "T", 0, b"next")[0] == after


def test_all_topics_deleted_stay_deleted(tmp_path: Path, store: MessageStore) -> None:
    put_synced(store, "T", 0, b"x")
    store.delete_topic("T")
    store.close()
    store = opened(tmp_path)
    assert store.offsets.queues() == {}
    assert put(store, "T", 0, b"x")[:2] == (0, 93)


def test_a_store_keeps_its_file_sizes(tmp_path: Path, store: MessageStore) -> None:
    for n in range(100):
        put(store, "T", 0, b"%d" % n * 30)
    store.pipeline.commit()
    store.close()
    store = opened(tmp_path, mapped_file_size_commit_log=1 << 20, mapped_file_size_consume_queue=6000)
    for n in range(100):
        put(store, "T", 0, b"%d" % n * 30)
    store.pipeline.commit()
    assert len(bodies(store)) == 200
    store.close()
    assert {path.stat().st_size for path in (tmp_path / "commitlog").iterdir()} == {4096}
    assert {path.stat().st_size for path in (tmp_path / "consumequeue/T/0").iterdir()} == {200}


def test_files_that_do_not_belong(tmp_path: Path) -> None:
    opened(tmp_path).close()
    (tmp_path / "commitlog" / f"{5000:020d}").write_bytes(bytes(4096))
    (tmp_path / "commitlog" / "notes.txt").write_text("not a segment")
    with pytest.raises(StoreCorrupt, match="does not belong"):
        make_store(tmp_path).open()
    (tmp_path / "commitlog" / f"{5000:020d}").unlink()
    (tmp_path / "commitlog" / f"{4096:020d}").touch()
    opened(tmp_path)
    assert not (tmp_path / "commitlog" / f"{4096:020d}").exists()


def test_a_short_last_segment_is_made_whole(tmp_path: Path, store: MessageStore) -> None:
    while store.log.position < 5000:
        put(store, "T", 0, b"x" * 100)
        store.pipeline.commit()
    crash(store)
    path = tmp_path / "commitlog" / f"{4096:020d}"
    with path.open("r+b") as file:
        file.truncate(1500)
    store = opened(tmp_path)
    assert path.stat().st_size == 4096
    assert {len(body) for body in bodies(store)} == {100}
    put(store, "T", 0, b"y" * 2000)
    store.pipeline.commit()
    assert bodies(store)[-1] == b"y" * 2000


# --- settings and config files ------------------------------------------------------------------------------


def test_settings_have_rocketmq_names() -> None:
    config, unknown = parse_settings(
        StoreConfig,
        {
            "storePathRootDir": "/x",
            "flushDiskType": "SYNC_FLUSH",
            "mappedFileSizeCommitLog": "1048576",
            "checkCRCOnRecover": "false",
            "maxTransferCountOnMessageInMemory": "64",
            "haListenPort": "1",
        },
    )
    assert config.flush_disk_type is FlushDiskType.SYNC_FLUSH
    assert (config.mapped_file_size_commit_log, config.check_crc_on_recover) == (1048576, False)
    assert config.max_transfer_count_on_message_in_memory == 64
    assert unknown == {"haListenPort": "1"}


def test_config_file_always_has_a_content(tmp_path: Path) -> None:
    class Stop(Exception):
        pass

    class Stopping(OsFiles):
        steps = 0

        def _step(self) -> None:
            self.steps -= 1
            if self.steps == 0:
                raise Stop

        def write(self, fd: int, data: bytes | bytearray | memoryview, offset: int) -> None:
            self._step()
            super().write(fd, data, offset)

        def rename(self, source: object, target: object) -> None:
            self._step()
            super().rename(source, target)  # type: ignore[arg-type]

        def sync(self, fd: int) -> None:
            self._step()

        def sync_directory(self, path: object) -> None:
            self._step()

    path = tmp_path / "config" / "topics.json"
    files = Stopping()
    config = ConfigFile(path, files)
    assert config.load() is None
    config.save(b"0")
    assert [p.name for p in path.parent.iterdir()] == ["topics.json"]
    for stop_at in range(1, 6):
        config.save(b"old")
        files.steps = stop_at
        with pytest.raises(Stop):
            config.save(b"new")
        files.steps = 0
        assert ConfigFile(path).load() in (b"old", b"new")
    config.save(b"1")
    config.save(b"2")
    assert (path.read_bytes(), path.with_name("topics.json.bak").read_bytes()) == (b"2", b"1")
    path.write_bytes(b"")
    assert config.load() == b"1"
    path.write_bytes(b"{broken")
    assert config.load(lambda data: data.isdigit()) == b"1"
    assert not config.is_latest
    files.steps = 4  # between the two renames: only the .bak is there
    with pytest.raises(Stop):
        config.save(b"3")
    files.steps = 0
    assert ConfigFile(path).load(lambda data: data.isdigit()) == b"1"
    config.save(b"3")
    config.save(b"4")
    assert path.with_name("topics.json.damaged").read_bytes() == b"{broken"
    assert path.with_name("topics.json.bak").read_bytes() == b"3"


def test_a_segment_that_takes_the_place_of_a_torn_one_is_the_one_that_is_read(tmp_path: Path) -> None:
    store = opened(tmp_path)
    while store.log.position < 4096:
        put(store, "T", 0, b"x" * 300)
        store.pipeline.commit()
    crash(store)
    first, second = (tmp_path / "commitlog" / f"{start:020d}" for start in (0, 4096))
    data = bytearray(first.read_bytes())
    data[3000:] = bytes(1096)  # with the blank record that ends the segment
    first.write_bytes(data)
    data = bytearray(second.read_bytes())
    data[:100] = bytes(100)
    second.write_bytes(data)
    store = opened(tmp_path)
    assert len(store.log.segments) == 1
    bodies = [message.body for message in drain(store, "T", 0)]
    while store.log.position < 8192:
        bodies.append(b"y%d" % len(bodies) * 60)
        put(store, "T", 0, bodies[-1])
        store.pipeline.commit()
    assert [message.body for message in drain(store, "T", 0)] == bodies
    crash(store)
