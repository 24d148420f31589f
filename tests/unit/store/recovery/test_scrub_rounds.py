"""Damage that comes while the broker runs: found by rounds of the scrub and by readers, and never passed on as good."""

from __future__ import annotations

import errno
import struct
from pathlib import Path

import pytest

from mqspark.store import MessageStore
from mqspark.store.disk.damage import Outcome
from mqspark.store.disk.files import StrPath
from mqspark.store.log.opendamage import MAX_RANGES, OpenDamage
from mqspark.store.messages.fetch import VOUCHED_MS
from mqspark.store.recovery.scrub import ROUND_MS, ScrubJob
from tests.support.clocks import ManualClock
from tests.support.store_tools import QuickFiles, complete, drain, flush, opened, put
from tests.support.storefiles import segments_of

COUNT = 300


class Unreadable(QuickFiles):
    """Files of queues that cannot be opened for reading from some time on."""

    error: OSError | None = None

    def open_read(self, path: StrPath) -> int:
        if self.error is not None and "consumequeue" in str(path):
            raise self.error
        return super().open_read(path)


def filled(
    root: Path, clock: ManualClock, files: QuickFiles | None = None, **settings: object
) -> MessageStore:
    settings = {"mapped_file_size_commit_log": 1 << 18, "mapped_file_size_consume_queue": 20_000, **settings}
    store = opened(root, clock, files or QuickFiles(), **settings)
    for number in range(COUNT):
        put(store, "T", 0, b"%04d" % number * 100)
    flush(store)
    return store


def keep(store: MessageStore, clock: ManualClock, seconds: int) -> None:
    """Housekeeping of some seconds."""
    for _ in range(seconds):
        complete(store.maintenance())
        clock.advance(1000)


def overwrite(root: Path, at: int, data: bytes) -> None:
    with open(segments_of(root)[0], "r+b") as file:
        file.seek(at)
        file.write(data)


def place_of(store: MessageStore, offset: int) -> tuple[int, int]:
    entry = store.table.queues["T", 0].entry(offset)
    assert entry is not None
    return entry[:2]


def numbers(store: MessageStore, **limits: int) -> list[int]:
    return [int(message.body[:4]) for message in drain(store, "T", 0, **limits)]


def flipped(store: MessageStore, root: Path, what: str) -> list[int]:
    """Damage the log at message 100; the messages that are lost."""
    place, size = place_of(store, 100)
    if what == "zeros":
        overwrite(root, place + 10, bytes(1 << 14))
        return list(range(100, 100 + -(-((1 << 14) + 10) // size)))
    at = {"body": 120, "size": 2, "magic": 4, "place in the log": 35, "queue offset": 27}[what]
    with open(segments_of(root)[0], "rb") as file:
        file.seek(place + at)
        (old,) = file.read(1)
    overwrite(root, place + at, bytes([old ^ 1]))
    return [100]


WHAT = ["body", "size", "magic", "place in the log", "zeros"]


@pytest.mark.parametrize("what", WHAT)
@pytest.mark.parametrize("at_once", [10, 200])
def test_what_the_page_cache_no_longer_vouches_for_is_checked_by_reads(
    tmp_path: Path, clock: ManualClock, what: str, at_once: int
) -> None:
    store = filled(tmp_path, clock, scrub_bytes_per_second=0)
    assert numbers(store) == list(range(COUNT))
    keep(store, clock, 2 * VOUCHED_MS // 1000 + 2)
    lost = flipped(store, tmp_path, what)
    assert numbers(store, max_messages=at_once) == [each for each in range(COUNT) if each not in lost]
    assert store.status.damaged_offsets[0] == place_of(store, 100)[0]
    keep(store, clock, 2)
    assert store.status.damage_problem is not None
    (found,) = [each for each in store.damages.found if each.kind == "log.damaged"]
    assert [(each.low, each.high) for each in found.queues] == [(100, 100 + len(lost))]


@pytest.mark.parametrize("what", WHAT)
def test_rounds_find_what_is_damaged_after_the_start(tmp_path: Path, clock: ManualClock, what: str) -> None:
    store = filled(tmp_path, clock, scrub_bytes_per_second=1 << 20)
    keep(store, clock, 15)
    assert store.upkeep.scrub.rounds > 0
    assert (store.upkeep.scrub.end, store.status.damage_problem) == (store.log.position, None)
    lost = flipped(store, tmp_path, what)
    keep(store, clock, ROUND_MS // 1000 + 5)
    (found,) = store.log_damage
    assert found.low == place_of(store, 100)[0]
    assert found.high == place_of(store, 100 + len(lost))[0]
    assert found.is_led_into
    keep(store, clock, 2 * ROUND_MS // 1000)  # once is enough
    assert [each.kind for each in store.damages.found] == ["log.damaged"]


def record_of(store: MessageStore, offset: int) -> tuple[int, bytes]:
    """Its place, and its bytes as they are now."""
    place, size = place_of(store, offset)
    return place, store.mender.read(place, size)[:size]


def test_what_is_healed_while_the_scrub_reads_is_no_damage(tmp_path: Path, clock: ManualClock) -> None:
    """What the other thread has read is old then; the place is read again."""
    store = filled(tmp_path, clock, scrub_bytes_per_second=1 << 20)
    place, sound = record_of(store, 100)
    flipped(store, tmp_path, "body")
    clock.advance(ROUND_MS)
    jobs = [job for job in store.maintenance() if isinstance(job, ScrubJob)]
    assert len(jobs) == 1
    for job in jobs:
        job.run()
    assert store.mender.heal(place, sound) == len(sound)
    for job in jobs:
        job.done()
    keep(store, clock, 5)
    assert list(store.log_damage) == []
    assert [(each.kind, each.outcome) for each in store.damages.found] == [("log.damaged", Outcome.HEALED)]
    flipped(store, tmp_path, "body")
    keep(store, clock, ROUND_MS // 1000 + 5)
    assert [each.low for each in store.log_damage] == [place]


def test_a_range_that_is_sound_already_is_no_damage_any_more(tmp_path: Path, clock: ManualClock) -> None:
    store = filled(tmp_path, clock, scrub_bytes_per_second=0)
    place, sound = record_of(store, 100)
    store.log_damage.add(place, place + len(sound), is_led_into=True)
    assert store.mender.heal(place, sound) == len(sound)
    assert list(store.log_damage) == []
    assert (store.mender.healed_bytes, len(numbers(store))) == (0, COUNT)


@pytest.mark.parametrize("error", [OSError(errno.EIO, "disk"), FileNotFoundError(errno.ENOENT, "gone")])
def test_a_queue_that_cannot_be_read_is_reported(tmp_path: Path, error: OSError) -> None:
    """One that is not there any more is none to compare."""
    clock, files = ManualClock(), Unreadable()
    store = filled(tmp_path, clock, files, scrub_bytes_per_second=1 << 20)
    files.error = error
    keep(store, clock, 15)
    problem = store.upkeep.scrub.problem or ""
    assert ("disk" in problem) == (error.errno == errno.EIO)
    store.close()


def test_a_wrong_entry_is_no_damage_of_the_log(tmp_path: Path, clock: ManualClock) -> None:
    store = filled(tmp_path, clock, scrub_bytes_per_second=0)
    keep(store, clock, 15)
    place, _ = place_of(store, 100)
    store.upkeep.scrub.look_at(place + 5)
    keep(store, clock, 2)
    assert (list(store.log_damage), store.damages.found) == ([], [])


def test_a_hole_longer_than_a_look_is_measured(tmp_path: Path, clock: ManualClock) -> None:
    store = filled(tmp_path, clock, scrub_bytes_per_second=0, mapped_file_size_commit_log=1 << 23)
    for number in range(COUNT, 2 * COUNT):
        put(store, "T", 0, b"%04d" % number * 3000)
    flush(store)
    keep(store, clock, 15)
    low, high = place_of(store, 310)[0], place_of(store, 500)[0]
    overwrite(tmp_path, low, bytes(high - low))
    assert len(numbers(store)) == 2 * COUNT - 190
    keep(store, clock, 10)
    assert [(each.low, each.high) for each in store.log_damage] == [(low, high)]


def test_damage_at_the_end_of_what_is_readable_is_found(tmp_path: Path, clock: ManualClock) -> None:
    store = filled(tmp_path, clock, scrub_bytes_per_second=1 << 20)
    place, size = place_of(store, COUNT - 1)
    overwrite(tmp_path, place + 120, b"?")
    keep(store, clock, 15)
    assert [(each.low, each.high) for each in store.log_damage] == [(place, place + size)]


def test_ranges_join_and_are_bounded() -> None:
    damage = OpenDamage()
    damage.add(100, 200, is_led_into=False)
    damage.add(300, 400, is_led_into=True)
    assert (damage.covers(120, 180), damage.covers(120, 220)) == (True, False)
    damage.add(200, 300, is_led_into=False)
    assert [tuple(each) for each in damage] == [(100, 400, True)]
    damage.remove(150, 160)
    assert [tuple(each) for each in damage] == [(100, 150, True), (160, 400, True)]
    assert damage.damaged_bytes == 290
    damage.remove(0, 1000)
    assert (len(damage), damage.problem) == (0, None)
    for number in range(MAX_RANGES + 50):
        damage.add(10 * number, 10 * number + 5, is_led_into=False)
    assert len(damage) == MAX_RANGES
    assert all(damage.covers(10 * number, 10 * number + 5) for number in range(MAX_RANGES + 50))


def test_a_flip_that_no_crc_covers_is_not_handed_out_for_another_message(tmp_path: Path) -> None:
    clock = ManualClock()
    store = filled(tmp_path, clock, scrub_bytes_per_second=0)
    keep(store, clock, 2 * VOUCHED_MS // 1000 + 2)
    flipped(store, tmp_path, "queue offset")
    assert numbers(store) == [each for each in range(COUNT) if each != 100]
    (offset,) = struct.unpack(">q", bytes(store.log.slice(place_of(store, 100)[0] + 20, 8) or b""))
    assert offset == 101
