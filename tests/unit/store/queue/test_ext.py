"""ConsumeQueueExt: units for entries, written in order, found by address, cut and deleted with their entries."""

from __future__ import annotations

import errno
import shutil
import struct
import tarfile
from pathlib import Path

import pytest

from mqspark.errors import DiskFull
from mqspark.message import java_hash
from mqspark.record.record import decode_record, decode_records
from mqspark.store import MessageStore, StoreReader
from mqspark.store.queue.queueext import EXT_ADDRESS_BELOW
from tests.support.clocks import ManualClock
from tests.support.store_tools import (
    FaultyFiles,
    RoomyFiles,
    checkpoint,
    clean,
    crash,
    drain,
    finish_deletions,
    flush,
    leave,
    make_store,
    put,
    put_synced,
)

GOLDEN = Path(__file__).parents[3] / "golden/store"
EXT = {"enable_consume_queue_ext": True, "mapped_file_size_consume_queue_ext": 100}


def opened(root: Path, clock: ManualClock | None = None, **settings: object) -> MessageStore:
    store = make_store(root, clock, **{**EXT, **settings})
    store.open()
    return store


def fill(store: MessageStore, count: int) -> None:
    for number in range(count):
        put(store, "T", 0, b"%d" % number, b"TAGS\x01%s\x02" % (b"red" if number % 2 else b"blue"))
        if number % 3 == 0:
            flush(store)
    flush(store)


def units(root: Path) -> list[tuple[int, ...]]:
    """As RocketMQ walks them: size, tags code, store time, bitmap length."""
    found = []
    for path in sorted((root / "consumequeue_ext/T/0").iterdir()):
        data, position = path.read_bytes(), 0
        while position + 20 <= len(data) and struct.unpack_from(">h", data, position)[0] > 0:
            found.append(struct.unpack_from(">hqqh", data, position))
            position += found[-1][0]
    return found


def test_units_follow_one_another(tmp_path: Path, clock: ManualClock) -> None:
    store = opened(tmp_path, clock)
    fill(store, 30)
    codes = [java_hash("red" if number % 2 else "blue") for number in range(30)]
    assert units(tmp_path) == [(20, code, clock.wall_ms, 0) for code in codes]
    # Four units and four spare bytes a file.
    assert len(list((tmp_path / "consumequeue_ext/T/0").iterdir())) == 8
    data = (tmp_path / "consumequeue/T/0/00000000000000000000").read_bytes()
    addresses = [struct.unpack_from(">q", data, 20 * number + 12)[0] for number in range(6)]
    assert addresses == [-(1 << 63) + offset for offset in (0, 20, 40, 60, 100, 120)]
    found = store.reads.get("T", 0, 0, 100, 1 << 20, frozenset({java_hash("red")}))
    assert (found.count, found.next_offset) == (5, 10)
    assert store.offsets.entries("T", 0, 0, 2)[1][1][2] == java_hash("red")
    reader = StoreReader(tmp_path)
    assert reader.entries("T", 0, 0, 30)["tags_code"].tolist() == codes


@pytest.mark.parametrize("kill", [False, True])
def test_recovery(tmp_path: Path, kill: bool) -> None:
    store = opened(tmp_path)
    fill(store, 13)
    checkpoint(store)
    fill(store, 20)
    kept = units(tmp_path)
    leave(store, killed=kill)
    store = opened(tmp_path)
    assert units(tmp_path) == kept
    fill(store, 5)
    assert [unit[1] for unit in units(tmp_path)] == [
        java_hash(message.properties["TAGS"]) for message in drain(store, "T", 0)
    ]
    store.close()
    store = opened(tmp_path, enable_consume_queue_ext=False)
    fill(store, 4)
    # 33 + 5 + 4 messages, the last entries without units.
    found = store.reads.get("T", 0, 36, 100, 1 << 20, frozenset({java_hash("blue")}))
    assert (found.count, found.next_offset) == (2, 40)
    store.close()
    store = opened(tmp_path)
    fill(store, 3)
    codes = [
        entry[2] for offset in range(0, 45, 10) for entry in store.offsets.entries("T", 0, offset, 10)[1]
    ]
    assert codes == [java_hash(message.properties["TAGS"]) for message in drain(store, "T", 0)]


@pytest.mark.parametrize("which", [0, 3, -1], ids=["first", "middle", "last"])
@pytest.mark.parametrize("length", [0, 13, None], ids=["empty", "cut", "missing"])
def test_lost_units_hide_no_message(tmp_path: Path, which: int, length: int | None) -> None:
    store = opened(tmp_path)
    fill(store, 30)
    store.close()
    path = sorted((tmp_path / "consumequeue_ext/T/0").iterdir())[which]
    if length is None:
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:length])
    store = opened(tmp_path)
    reds = {
        each.queue_offset
        for begin in range(0, 30, 10)
        for each in decode_records(
            b"".join(store.reads.get("T", 0, begin, 10, 1 << 20, frozenset({java_hash("red")})).buffers)
        )
        if each.properties["TAGS"] == "red"
    }
    assert reds == set(range(1, 30, 2))
    fill(store, 5)
    assert len(drain(store, "T", 0)) == 35


@pytest.mark.parametrize("which", [0, 3, -1], ids=["first", "middle", "last"])
@pytest.mark.parametrize("more", [-60, 1, 20, 1000])
def test_a_file_of_another_length_gets_its_own_again(tmp_path: Path, which: int, more: int) -> None:
    """RocketMQ does not start with it. By the length of one that is too long units would be looked for elsewhere."""
    store = opened(tmp_path)
    fill(store, 30)
    store.close()
    paths = sorted((tmp_path / "consumequeue_ext/T/0").iterdir())
    data = paths[which].read_bytes()
    paths[which].write_bytes((data + b"\x7f" * 1000)[: len(data) + more])
    store = opened(tmp_path)
    assert {path.stat().st_size for path in paths} == {100}
    found = [
        message.queue_offset
        for begin in range(0, 30, 10)
        for message in decode_records(
            b"".join(store.reads.get("T", 0, begin, 10, 1 << 20, frozenset({java_hash("red")})).buffers)
        )
    ]
    assert set(found) >= set(range(1, 30, 2))
    assert more < 0 or len(found) == 15


def test_units_go_with_their_entries(tmp_path: Path, clock: ManualClock) -> None:
    files = RoomyFiles(clock)
    store = make_store(tmp_path, clock, files, **EXT)
    store.open()
    fill(store, 150)
    segments = sorted(path.name for path in (tmp_path / "commitlog").iterdir())
    files.expired = set(segments[:2])
    checkpoint(store)
    clean(store, clock)
    low = store.offsets.min_offset("T", 0)
    assert low > 20
    first = sorted((tmp_path / "consumequeue_ext/T/0").iterdir())[0]
    assert int(first.name) > 0
    assert store.reads.get("T", 0, low, 10, 1 << 20, frozenset({java_hash("red")})).count > 0
    store.delete_topic("T")
    finish_deletions(store)
    assert not (tmp_path / "consumequeue_ext/T").exists()


def test_a_full_disk_refuses_before_anything_is_accepted(tmp_path: Path, files: FaultyFiles) -> None:
    store = make_store(tmp_path, None, files, **EXT)
    store.open()
    fill(store, 3)
    end = store.log.position
    files.fail("allocate", errno.ENOSPC)
    with pytest.raises(DiskFull):
        fill(store, 300)
    files.heal()
    flush(store)
    assert store.condition.read_only is None
    assert store.log.position >= end
    fill(store, 3)
    assert len(units(tmp_path)) == len(drain(store, "T", 0))
    store.close()


def test_light_queues_have_none(tmp_path: Path) -> None:
    store = opened(tmp_path)
    put_synced(store, "%LMQ%a", 0, b"x")
    assert not (tmp_path / "consumequeue_ext").exists()


def test_units_of_a_real_broker(tmp_path: Path) -> None:
    with tarfile.open(GOLDEN / "variant.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    store = make_store(tmp_path / "store", enabled_append_prop_crc=True)
    store.open()
    everything = [message.properties.get("TAGS") for message in drain(store, "GsPlain", 0)]
    for tags in sorted({tags for tags in everything if tags}):
        offset, count = 0, 0
        while offset < store.offsets.max_offset("GsPlain", 0):
            found = store.reads.get("GsPlain", 0, offset, 32, 1 << 20, frozenset({java_hash(tags)}))
            for record in found.buffers:
                position = 0
                while position < len(record):
                    message = decode_record(record, position)
                    assert message.properties["TAGS"] == tags
                    position += message.store_size_bytes
                    count += 1
            offset = found.next_offset
        assert count == everything.count(tags)
    _, entries = store.offsets.entries("GsPlain", 0, 0, 100)
    assert all(code >= EXT_ADDRESS_BELOW for _, _, code in entries)


@pytest.mark.parametrize("count", [28, 29])
def test_units_of_many_files_are_made_at_once_when_they_are_lost(tmp_path: Path, count: int) -> None:
    store = opened(tmp_path)
    fill(store, count)
    expected = units(tmp_path)
    crash(store)
    shutil.rmtree(tmp_path / "consumequeue")
    shutil.rmtree(tmp_path / "consumequeue_ext")
    store = opened(tmp_path)
    assert units(tmp_path) == expected
    fill(store, 1)
    assert len(drain(store, "T", 0)) == count + 1
