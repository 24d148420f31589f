"""The timer log's and the wheel's bytes, and how they find together again."""

from __future__ import annotations

import errno
import json
import os
import random
import struct
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from mqspark.errors import StoreCorrupt
from mqspark.store.disk.damage import Damage
from mqspark.store.disk.files import OsFiles, zeroed_memory
from mqspark.store.disk.residency import PAGE_BYTES, are_resident
from mqspark.store.timer.timerfiles import TimerCheckpoint, TimerFiles, timer_damage
from mqspark.store.timer.timerlog import NONE, TimerLog
from mqspark.store.timer.timerwheel import SLOTS, WHEEL_BYTES, Seal, TimerWheel, save_pages
from mqspark.store.tools.offlinestore import UnchangingFiles
from tests.support.draws import some
from tests.support.invariants import sound_wheel
from tests.support.store_tools import complete

VECTORS = Path(__file__).parents[3] / "golden" / "vectors" / "timer.jsonl"
# Test vectors, made with RocketMQ's own classes: docs/rocketmq/later.md#timer-log
RECORD = (
    "00000034ffffffffffffffff000000010000018bcfe56800000027100000000000000400000000b38e9876410000000000000000"
)
BLANK = "000000240000000000000000cbd43194"


def made(directory: Path, file_bytes: int = 1024) -> TimerLog:
    log = TimerLog(directory, OsFiles(), file_bytes=file_bytes)
    log.load()
    return log


def add(log: TimerLog, count: int, previous: int = NONE) -> list[int]:
    log.make_room(count)
    positions = [
        log.add(previous, 0, 1_700_000_000_000, 10_000, 1024 + number, 179, -1902610879)
        for number in range(count)
    ]
    log.write()
    return positions


def test_a_record_is_rocketmqs(tmp_path: Path) -> None:
    log = made(tmp_path / "timerlog")
    assert add(log, 1) == [0]
    data = (tmp_path / "timerlog" / f"{0:020d}").read_bytes()
    assert len(data) == 1024
    assert data[:52].hex() == RECORD
    assert not any(data[52:])


def test_a_file_ends_with_a_blank_record(tmp_path: Path) -> None:
    log = made(tmp_path / "timerlog")
    positions = add(log, 21)
    assert positions == [*range(0, 988, 52), 1024, 1076]
    data = (tmp_path / "timerlog" / f"{0:020d}").read_bytes()
    assert data[988:1004].hex() == BLANK
    again = made(tmp_path / "timerlog")
    assert again.find_end(0) == 1128
    assert [again.record(position) is not None for position in positions] == [True] * 21
    assert [len(again.records(start)[1]) for start in again.files_from(0)] == [19, 2]


@pytest.mark.parametrize("file_bytes", [68, 100, 120, 52 * 5 + 16, 52 * 5 + 15, 52 * 5 + 67])
def test_files_of_any_length(tmp_path: Path, file_bytes: int) -> None:
    log = made(tmp_path, file_bytes)
    positions = [add(log, count)[-1] for count in (1, 2, 3, 4, 5)]
    again = made(tmp_path, 1 << 20)
    assert again.file_bytes == file_bytes
    end = again.find_end(0)
    assert end - (end % file_bytes or file_bytes) <= positions[-1] < end
    assert sum(len(again.records(start)[1]) for start in again.files_from(0)) == 15
    assert add(again, 1)[0] >= end


def test_a_torn_record_ends_the_log_and_nothing_behind_it_comes_back(tmp_path: Path) -> None:
    log = made(tmp_path)
    add(log, 30)
    path = tmp_path / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[52 * 7 : 52 * 7 + 4] = b"\0\0\0\1"
    path.write_bytes(data)
    again = made(tmp_path)
    assert again.find_end(0) == 52 * 7
    assert not any(path.read_bytes()[52 * 7 :])
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    assert add(again, 1) == [52 * 7]


@pytest.mark.parametrize("more", [52 * 20, 1 << 36])
def test_a_file_that_is_too_long_is_no_loss(tmp_path: Path, more: int) -> None:
    log = made(tmp_path)
    positions = add(log, 30)  # 19 records a file
    os.truncate(tmp_path / f"{1024:020d}", 1024 + more)
    again = made(tmp_path)
    assert again.file_bytes == 1024
    assert again.find_end(0) == positions[-1] + 52
    assert all(again.record(position) is not None for position in positions)
    (tmp_path / f"{1024:020d}").unlink()
    os.truncate(tmp_path / f"{0:020d}", 1024 + more)
    alone = made(tmp_path)
    alone.find_end(0)
    assert all(alone.record(position) is not None for position in positions[:19])


@pytest.mark.parametrize("length", [1, 5, 67, 100, 999])
def test_a_last_file_that_is_cut_gets_its_length_again(tmp_path: Path, length: int) -> None:
    log = made(tmp_path)
    add(log, 30)
    (tmp_path / f"{0:020d}").unlink()  # retention has removed it
    os.truncate(tmp_path / f"{1024:020d}", length)
    again = made(tmp_path)
    assert again.file_bytes == 1024
    end = 1024 + min(-(-length // 52), 11) * 52  # the reserved end of a record is 0
    assert again.find_end(0) in (end, end - 52)
    assert add(again, 1) == [again.position - 52]


def test_a_directory_that_is_no_timer_log(tmp_path: Path) -> None:
    (tmp_path / f"{1000:020d}").write_bytes(b"short")
    with pytest.raises(StoreCorrupt, match="timer log"):
        made(tmp_path)


def test_old_files_go_when_their_last_message_has(tmp_path: Path) -> None:
    log = made(tmp_path)
    add(log, 50)  # messages at 1024 and behind; 19 records a file
    assert log.drop_before(1024 + 18) == []
    assert [path.name for path in log.drop_before(1024 + 19)] == [f"{0:020d}"]
    assert [path.name for path in log.drop_before(1 << 40)] == [f"{1024:020d}"]
    assert log.record(0) is None
    assert log.record(2048) is not None


def test_a_file_stays_as_long_as_one_of_its_messages(tmp_path: Path) -> None:
    log = made(tmp_path)
    add(log, 18)
    log.make_room(3)
    for position in (90, 91, 92):  # 19 records a file
        log.add(NONE, 0, 1_700_000_000_000, 10_000, position, 179, 0)
    log.write()
    assert log.drop_before(1024 + 17) == []
    assert [path.name for path in log.drop_before(1024 + 18)] == [f"{0:020d}"]


def test_a_lost_wheel_is_made_from_the_whole_log(tmp_path: Path) -> None:
    files = TimerFiles(tmp_path, OsFiles(), precision_ms=1000, log_file_bytes=1024)
    files.load()
    files.log.make_room(60)  # 19 records a file
    for number in range(60):
        files.log.add(NONE, 0, 1_700_000_000_000, 1_000 * number, number, 179, 0)
    files.log.write()
    files.flush(TimerCheckpoint(1_700_000_002_000, files.log.position), 0).run()
    again = TimerFiles(tmp_path, OsFiles(), precision_ms=1000, log_file_bytes=1024)
    again.load()
    found = [number for number in range(60) if again.wheel.get(1_700_000_000 + number) is not None]
    assert found == list(range(2, 60))


def checked(root: Path, *, clean: bool = True) -> list[str]:
    """What fsck says. It changes nothing."""
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*") if path.is_file()}
    found = timer_damage(
        root,
        UnchangingFiles(),
        1_700_000_000_000,
        9,
        precision_ms=1000,
        log_file_bytes=1024,
        clean=clean,
    )
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*") if path.is_file()} == before
    return [each.kind for each in found]


def saved(root: Path) -> TimerFiles:
    """The files of a process that has ended, with 30 messages that wait."""
    files = TimerFiles(root, OsFiles(), precision_ms=1000, log_file_bytes=1024)
    files.load()
    files.log.make_room(30)
    for number in range(30):
        at = files.log.add(NONE, 0, 1_700_000_000_000, 1_000 * number, number, 179, 0)
        files.wheel.put(1_700_000_000 + number, at, at, 1)
    files.log.write()
    job = files.flush(TimerCheckpoint(1_700_000_000_000, files.log.position, 5, 5), 0)
    complete([job])
    files.log.close()
    return files


def flip(path: Path, at: int, bits: int = 1) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= bits
    path.write_bytes(data)


def cut(path: Path, length: int) -> None:
    os.truncate(path, length)


def zero(path: Path) -> None:
    path.write_bytes(bytes(4096))


SLOT = 1_700_000_010 % SLOTS * 32
CHECK, WHEEL, LOG = "config/timercheck", "timerwheel", f"timerlog/{0:020d}"
DAMAGES: dict[str, tuple[str, Callable[[Path], None], str]] = {
    **{
        f"bit of checkpoint byte {at}": (CHECK, partial(flip, at=at), "timer.checkpoint")
        for at in (14, 23, 63, 73)
    },
    "byte of the checkpoint": (CHECK, partial(flip, at=23, bits=0x6A), "timer.checkpoint"),
    "checkpoint cut": (CHECK, partial(cut, length=40), "timer.checkpoint"),
    "checkpoint zeroed": (CHECK, zero, "timer.checkpoint"),
    "tick of a slot": (WHEEL, partial(flip, at=SLOT + 7), "timer.wheel"),
    "chain of a slot": (WHEEL, partial(flip, at=SLOT + 23, bits=4), "timer.wheel"),
    "slot emptied": (WHEEL, partial(flip, at=SLOT + 4, bits=0x65), "timer.wheel"),
    "wheel cut": (WHEEL, partial(cut, length=SLOT), "timer.wheel"),
    "wheel emptied": (WHEEL, partial(cut, length=0), "timer.wheel"),
    "wheel gone": (WHEEL, Path.unlink, "timer.wheel"),
    "record of the log": (LOG, partial(flip, at=3), "timer.log"),
    "log gone": (f"timerlog/{1024:020d}", Path.unlink, "timer.log"),
}


@pytest.mark.parametrize("name", some(DAMAGES, 5))
@pytest.mark.parametrize("clean", [True, False])
def test_fsck_says_what_a_start_finds(tmp_path: Path, name: str, clean: bool) -> None:
    """And both say it of every damage that costs a message."""
    saved(tmp_path)
    assert checked(tmp_path, clean=clean) == []
    path, damage, kind = DAMAGES[name]
    damage(tmp_path / path)
    found = checked(tmp_path, clean=clean)
    said: list[Damage] = []
    files = TimerFiles(tmp_path, OsFiles(), precision_ms=1000, log_file_bytes=1024, note=said.append)
    files.load(1_700_000_000_000, 9, clean=clean)
    assert found == [each.kind for each in said]
    if clean or name not in ("slot emptied", "wheel emptied"):
        assert kind in found
    if kind != "timer.log":
        ticks = [number for number in range(30) if files.wheel.get(1_700_000_000 + number) is not None]
        assert ticks == list(range(30)) or name == "slot emptied"
        assert files.is_reset or files.checkpoint.queue_offset == 5


def test_a_checkpoint_of_rocketmq_is_not_damaged(tmp_path: Path) -> None:
    """It leaves what follows its own bytes as it was."""
    saved(tmp_path)
    path = tmp_path / CHECK
    newer = TimerCheckpoint(1_700_000_003_000, 30 * 52 + 36, 6, 6, version_counter=4)
    path.write_bytes(newer.encode() + path.read_bytes()[56:])
    assert "timer.checkpoint" not in checked(tmp_path)


@pytest.mark.parametrize("clean", [True, False])
def test_an_older_wheel_is_told_from_the_one_that_was_saved(tmp_path: Path, clean: bool) -> None:
    def loaded(*, clean: bool) -> tuple[TimerFiles, list[str]]:
        said: list[Damage] = []
        files = TimerFiles(tmp_path, OsFiles(), precision_ms=1000, log_file_bytes=1024, note=said.append)
        files.load(1_700_000_000_000, clean=clean)
        return files, [damage.kind for damage in said]

    def due(files: TimerFiles, seconds: int) -> None:
        tick, written_ms = 1_700_000_000 + seconds, 1_700_000_000_000
        files.log.make_room(1)
        at = files.log.add(NONE, 0, written_ms, 1_000 * seconds, seconds, 179, 0)
        files.log.write()
        files.wheel.put(tick, at, at, 1)
        job = files.flush(TimerCheckpoint(written_ms, files.log.position), 0)
        complete([job])

    files, _ = loaded(clean=True)
    due(files, 10)
    older = (tmp_path / "timerwheel").read_bytes()
    files.wheel.clear(1_700_000_010)  # delivered
    due(files, 20)  # as many slots are used as before
    again, said = loaded(clean=clean)
    assert (again.wheel.used_count, said) == (1, [])
    (tmp_path / "timerwheel").write_bytes(older)
    assert checked(tmp_path, clean=clean) == ["timer.wheel"]
    again, said = loaded(clean=clean)
    assert said == ["timer.wheel"]
    assert again.wheel.get(1_700_000_020) == (1_700_000_020, 52, 52, 1, 0)
    sound_wheel(again.wheel, again.log.position)


def test_a_wheel_that_is_newer_than_its_checkpoint_stays(tmp_path: Path) -> None:
    """A kill came between the two."""
    said: list[Damage] = []
    files = TimerFiles(tmp_path, OsFiles(), precision_ms=1000, log_file_bytes=1024)
    files.load()
    files.log.make_room(2)
    for seconds in (10, 40):
        at = files.log.add(NONE, 0, 1_700_000_000_000, 1_000 * seconds, seconds, 179, 0)
        files.wheel.put(1_700_000_000 + seconds, at, at, 1)
    files.log.write()
    job = files.flush(TimerCheckpoint(1_700_000_000_000, files.log.position), 0)
    complete([job])
    files.wheel.clear(1_700_000_010)
    save_pages(tmp_path / "timerwheel", files.wheel.take_dirty(), OsFiles())
    again = TimerFiles(tmp_path, OsFiles(), precision_ms=1000, log_file_bytes=1024, note=said.append)
    again.load(1_700_000_011_000, clean=False)
    assert (again.wheel.used_count, said) == (1, [])


def test_slots_are_rocketmqs() -> None:
    (vector,) = (json.loads(line) for line in VECTORS.read_text().splitlines())
    for expected in vector["nonzero"]:
        tick, first, last, count, magic = struct.unpack(">qqqii", bytes.fromhex(expected["hex"]))
        if magic:  # which nobody writes
            continue
        wheel = TimerWheel()
        wheel.put(tick, first, last, count)
        at = tick % SLOTS * 32
        ((page, content),) = wheel.take_dirty()
        assert content[at - page : at - page + 32].hex() == expected["hex"]
    assert WHEEL_BYTES == 38_707_200
    assert 1_700_000_010 % SLOTS == 512_010


def test_a_wheel_is_saved_sparsely_and_read_again(tmp_path: Path) -> None:
    wheel = TimerWheel()
    ticks = [1, SLOTS - 1, SLOTS + 5, 1_700_000_010]
    for tick in ticks:
        wheel.put(tick, tick * 2, tick * 3, 4)
    save_pages(tmp_path / "timerwheel", wheel.take_dirty(), OsFiles())
    found = (tmp_path / "timerwheel").stat()
    assert found.st_size == WHEEL_BYTES
    assert found.st_blocks * 512 < 1 << 20
    again = TimerWheel()
    again.load(tmp_path / "timerwheel", OsFiles())
    for tick in ticks:
        slot = again.get(tick)
        assert slot is not None
        assert slot[:4] == (tick, tick * 2, tick * 3, 4)
    assert again.get(2) is None
    assert again.get(1 + SLOTS) is None  # another tick has that slot
    assert again.next_used(2, 1_700_000_011) == SLOTS - 1
    assert again.next_used(1_700_000_000, 1_700_000_010) is None
    assert again.next_used(1_700_000_000, 1_700_000_011) == 1_700_000_010
    assert again.waiting == 16
    assert again.count(SLOTS - 1, SLOTS + 6) == 8, "across the end of the file"
    assert again.count(SLOTS - 1, SLOTS + 5) == again.count(0, 5) == 4
    assert again.count(0, 2 * SLOTS) == 12, "all slots, but for a tick that is later"
    sound_wheel(again, 1 << 62)


def test_what_an_empty_slot_counts_is_counted_nowhere(tmp_path: Path) -> None:
    path, content = tmp_path / "timerwheel", bytearray(WHEEL_BYTES)
    content[7 * 32 + 24 : 7 * 32 + 28] = (5).to_bytes(4, "big")
    path.write_bytes(content)
    wheel = TimerWheel()
    wheel.load(path, OsFiles())
    assert wheel.waiting == 0
    wheel.revise(np.array([SLOTS + 7]), np.array([52]))
    assert wheel.waiting == 1
    sound_wheel(wheel, 1 << 62)


def test_a_page_that_changes_is_copied_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqspark.store.timer.timerwheel.COPIED_AT_ONCE", 2)
    wheel, slots_a_page = TimerWheel(), 128
    ticks = [SLOTS + number * slots_a_page for number in range(7)]
    for tick in ticks:
        wheel.put(tick, 0, 1, 5)
    snapshot, seal = wheel.take_dirty(), wheel.seal
    copying = snapshot.copied()
    next(copying)
    assert len(snapshot.left) == 5
    wheel.put(ticks[0], 0, 2, 6)  # copied already
    wheel.put(ticks[3], 0, 2, 6)
    wheel.clear(ticks[4])
    wheel.put(ticks[-1] + slots_a_page, 0, 9, 9)
    wheel.revise(np.array([ticks[5]]), np.array([3]))
    assert len(snapshot.left) == 2
    assert sum(1 for _ in copying) == 3
    wheel.clear_all()
    path = tmp_path / "timerwheel"
    save_pages(path, snapshot, OsFiles())
    again = TimerWheel()
    again.load(path, OsFiles())
    assert (again.seal, again.waiting) == (seal, 35)
    assert wheel.is_dirty
    save_pages(path, wheel.take_dirty(), OsFiles())
    again.load(path, OsFiles())
    assert again.used_count == 0


def test_a_wheel_counts_its_slots_in_the_parts_of_its_file_that_have_data(tmp_path: Path) -> None:
    class Odd(OsFiles):
        """Ranges that begin and end within a slot."""

        def data_ranges(self, fd: int, start: int, end: int) -> Iterator[tuple[int, int]]:
            yield from ((0, 40), (40, 100), (100, 32 * 50), (32 * 1_000, 32 * 1_001))

    wheel = TimerWheel()
    for tick in (1, 2, 3, 49, 1_000):
        wheel.put(SLOTS + tick, 0, 0, 1)
    path = tmp_path / "timerwheel"
    save_pages(path, wheel.take_dirty(), OsFiles())
    for files in (OsFiles(), Odd()):
        again = TimerWheel()
        assert again.load(path, files)
        assert again.used_count == 5


def test_an_empty_wheel_is_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = TimerWheel()
    wheel.put(5, 0, 52, 1)
    wheel.clear(5)
    none = wheel._slots[:0]

    class Unread:
        def __getitem__(self, part: slice) -> object:
            assert isinstance(part, slice), "the wheel is searched"
            return none

    monkeypatch.setattr(wheel, "_slots", Unread())
    assert wheel.next_used(0, 10 * SLOTS) is None
    assert wheel.first_behind(0) is None
    assert wheel.waiting == wheel.count(0, 10 * SLOTS) == 0
    assert not len(wheel.used(0))
    for clear in (wheel.clear_before, wheel.clear_behind):
        clear(1 << 60)
    assert wheel.used_count == 0


def test_a_wheel_of_another_length_is_refused(tmp_path: Path) -> None:
    (tmp_path / "timerwheel").write_bytes(bytes(100))
    with pytest.raises(StoreCorrupt, match="timer wheel"):
        TimerWheel().load(tmp_path / "timerwheel", OsFiles())


def test_revising_at_once_is_revising_one_by_one() -> None:
    chance = random.Random(3)
    for _ in range(30):
        ours, model = TimerWheel(), TimerWheel()
        ticks = [chance.choice([7, 8, 9, 7 + SLOTS, 8 + SLOTS]) for _ in range(chance.randrange(1, 20))]
        for wheel in (ours, model):
            wheel.put(8, 3, 4, 2)
        positions = [52 * number for number in range(len(ticks))]
        ours.revise(np.array(ticks), np.array(positions))
        for tick, position in zip(ticks, positions, strict=True):  # TimerWheel.reviseSlot
            slot = model.get(tick)
            model.put(tick, slot.first if slot is not None else position, position, 0)
        for tick in set(ticks) | {8}:
            mine, theirs = ours.get(tick), model.get(tick)
            assert (mine is None) == (theirs is None), tick
            if mine is not None and theirs is not None and mine.last != 4:
                assert mine.last == theirs.last, tick
                assert mine.first <= theirs.first, tick  # it only says where to begin to look


def test_the_checkpoint_is_rocketmqs(tmp_path: Path) -> None:
    checkpoint = TimerCheckpoint(1_700_000_000_000, 52, 3, 3, 0, 1_700_000_000_500, 9)
    checkpoint.save(tmp_path / "config" / "timercheck", OsFiles(), Seal(0, 0))
    data = (tmp_path / "config" / "timercheck").read_bytes()
    assert len(data) == 4096
    assert struct.unpack_from(">7q", data) == (1_700_000_000_000, 52, 3, 3, 0, 1_700_000_000_500, 9)
    assert TimerCheckpoint.load(tmp_path / "config" / "timercheck", OsFiles()) == checkpoint
    assert TimerCheckpoint.load(tmp_path / "nothing", OsFiles()) is None


def test_what_a_killed_process_did_not_sync_is_synced(tmp_path: Path) -> None:
    killed = TimerFiles(tmp_path, OsFiles(), precision_ms=1000, log_file_bytes=1024)
    killed.load()
    add(killed.log, 30)  # 19 records a file
    files = TimerFiles(tmp_path, OsFiles(), precision_ms=1000, log_file_bytes=1024)
    files.load()
    job = files.flush(TimerCheckpoint(log_position=files.log.position), 0)
    assert [path.name for path in job.log_paths] == [f"{0:020d}", f"{1024:020d}"]
    assert job.directory == tmp_path / "timerlog"


def test_a_flush_that_failed_is_made_up_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = TimerFiles(tmp_path, OsFiles(), precision_ms=1000, log_file_bytes=1024)
    files.load()
    add(files.log, 3)
    files.wheel.put(1_700_000_010, 0, 104, 3)
    job = files.flush(TimerCheckpoint(log_position=156), 0)
    with monkeypatch.context() as patch:
        patch.setattr(OsFiles, "sync", lambda *_: (_ for _ in ()).throw(OSError("no")))
        with pytest.raises(OSError, match="no"):
            job.run()
    assert files.checkpoint.log_position == 0
    second = files.flush(TimerCheckpoint(log_position=156), 0)
    assert second.log_paths == job.log_paths
    assert list(second.pages) == list(job.pages)
    complete([second])
    again = TimerFiles(tmp_path, OsFiles(), precision_ms=1000, log_file_bytes=1024)
    again.load()
    assert (again.log.position, again.checkpoint.log_position) == (156, 156)
    slot = again.wheel.get(1_700_000_010)
    assert slot is not None
    assert slot.last == 104


def test_slots_take_the_memory_of_their_pages_alone() -> None:
    """As slots of the wheel lie: a huge page for each would take the kernel a hundred times as long."""
    memory = zeroed_memory(WHEEL_BYTES)
    for at in range(0, WHEEL_BYTES, 2 << 20):
        memory[at + 64] = 1
    pages = np.arange(0, WHEEL_BYTES, PAGE_BYTES)
    assert np.count_nonzero(are_resident(memoryview(memory), pages)) == -(-WHEEL_BYTES // (2 << 20))


def test_the_next_file_of_the_log_is_made_before_it_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = TimerFiles(tmp_path, OsFiles(), precision_ms=1000, log_file_bytes=1024)
    files.load()
    log, first, second = (
        files.log,
        tmp_path / "timerlog" / f"{0:020d}",
        tmp_path / "timerlog" / f"{1024:020d}",
    )
    add(log, 14)  # 19 records a file
    complete([files.flush(TimerCheckpoint(1_700_000_000_000, log.position, 14, 14), 0)])
    assert not second.exists()
    add(log, 1)
    complete([files.flush(TimerCheckpoint(1_700_000_000_000, log.position, 15, 15), 0)])
    assert second.stat().st_size == 1024
    assert log.files_from(0) == [0]
    assert log.next_start() is None  # it is made once

    def refuse(self: OsFiles, fd: int, length: int) -> None:
        raise AssertionError("the log has made it again")

    monkeypatch.setattr(OsFiles, "set_length", refuse)
    add(log, 5)
    assert log.files_from(0) == [0, 1024]
    assert log.take_unsynced() == ([first, second], tmp_path / "timerlog")


def test_an_unused_file_of_the_log_goes_at_a_start(tmp_path: Path) -> None:
    files = TimerFiles(tmp_path, OsFiles(), precision_ms=1000, log_file_bytes=1024)
    files.load()
    positions = add(files.log, 18)
    complete([files.flush(TimerCheckpoint(1_700_000_000_000, files.log.position, 18, 18), 0)])
    second = tmp_path / "timerlog" / f"{1024:020d}"
    assert second.exists()
    again = TimerFiles(tmp_path, OsFiles(), precision_ms=1000, log_file_bytes=1024)
    again.load()
    assert not second.exists()
    assert again.log.position == positions[-1] + 52
    add(again.log, 3)
    assert second.exists()


def test_a_next_file_that_cannot_be_made_fails_no_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = TimerFiles(tmp_path, OsFiles(), precision_ms=1000, log_file_bytes=1024)
    files.load()
    add(files.log, 18)

    def refuse(start: int) -> None:
        raise OSError(errno.ENOSPC, "the disk is full")

    monkeypatch.setattr(files.log, "make_ahead", refuse)
    complete([files.flush(TimerCheckpoint(1_700_000_000_000, files.log.position, 18, 18), 0)])
    assert files.checkpoint.queue_offset == 18
    assert files.log.next_start() == 1024
    add(files.log, 3)
    assert files.log.files_from(0) == [0, 1024]
