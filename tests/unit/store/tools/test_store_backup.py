"""Backups of a store that is in use, and what a restore makes of them."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mqspark.base.crc import crc32
from mqspark.errors import ConfigError, NotNow, StoreCorrupt, StoreLocked
from mqspark.message import Message
from mqspark.record.batchitems import encode_batch
from mqspark.store import MessageStore, OsFiles, StoreConfig
from mqspark.store.disk.notes.membernote import MemberNote
from mqspark.store.log.epochs import Epoch, encode_epochs
from mqspark.store.tools.backup import BackedUp, Owner, back_up
from mqspark.store.tools.backupmanifest import (
    MANIFEST,
    damaged_blocks,
    encode_manifest,
    missing_files,
    require_manifest,
)
from mqspark.store.tools.restore import Restored, check_owner, restore
from tests.support.clocks import ManualClock
from tests.support.store_tools import checkpoint, flush, opened, pending, put, query
from tests.unit.store.store_kit import bodies

SEGMENT = 4096


class Site:
    """A store that is in use, its backup, and the directory of a restore."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.store = opened(root / "store")
        self.backup = root / "backup"
        self.target = root / "restored"
        self.count = 0

    def config(self, directory: Path, commit_log: str = "") -> StoreConfig:
        return StoreConfig(
            store_path_root_dir=str(directory),
            store_path_commit_log=commit_log or None,
            mapped_file_size_commit_log=SEGMENT,
            mapped_file_size_consume_queue=200,
            max_hash_slot_num=16,
            max_index_num=32,
        )

    def send(self, count: int, topic: str = "T", queue_id: int = 0) -> None:
        for _ in range(count):
            put(self.store, topic, queue_id, b"message %d" % self.count, b"KEYS\x01k%d\x02" % self.count)
            self.count += 1
        flush(self.store)

    def save(self, path: str, data: bytes) -> None:
        place = self.root / "store" / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)

    def back_up(self, **more: Any) -> BackedUp:
        return back_up(self.config(self.root / "store"), self.backup, ManualClock(), **more)

    def restore(self, **more: Any) -> Restored:
        return restore(self.backup, self.config(self.target), **more)

    def restored(self, **more: Any) -> MessageStore:
        self.restore(**more)
        return opened(self.target)

    def bodies(self) -> list[bytes]:
        """What is in queue 0 of T after a restore."""
        store = self.restored()
        found = bodies(store)
        store.close()
        return found

    def problems(self) -> list[str]:
        manifest = require_manifest(self.backup, OsFiles())
        found = list(missing_files(self.backup, manifest.copies))
        short = {each.place for each in found}
        for file in manifest.copies:
            if file.place not in short:
                found += damaged_blocks(self.backup, file, OsFiles())
        return [str(each) for each in found]

    def expire(self, segments: int) -> None:
        """What retention does."""
        checkpoint(self.store)
        paths = self.store.log.forget_oldest(segments)
        self.store.upkeep.begin_note.save(self.store.log.min_offset)
        for path in paths:
            path.unlink()


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_everything_is_there_after_a_restore(site: Site) -> None:
    site.send(100)
    site.send(7, "Other", 3)
    site.save("config/topics.json", b'{"a":1}')
    site.save("config/auth/users.auth", b"sealed")
    done = site.back_up()
    site.send(5)  # not in it
    store = site.restored()
    assert bodies(store) == [b"message %d" % number for number in range(100)]
    assert [body[:7] for body in bodies(store, "Other", 3)] == [b"message"] * 7
    assert store.damages.found == []
    assert done.manifest.log_end == store.log.position
    assert (site.target / "config/topics.json").read_bytes() == b'{"a":1}'
    assert (site.target / "config/auth/users.auth").read_bytes() == b"sealed"
    modes = {path.stat().st_mode & 0o777 for path in site.backup.rglob("*") if path.is_file()}
    assert modes == {0o600}
    assert {path.stat().st_mode & 0o777 for path in site.backup.rglob("*") if path.is_dir()} == {0o700}


def test_keys_find_messages_after_a_restore(site: Site) -> None:
    site.send(30)
    site.back_up()
    store = site.restored()
    (found,) = query(store, "T", "k17", 10, 0, 1 << 60)
    assert b"message 17" in bytes(found)


def test_a_second_backup_writes_what_is_new(site: Site) -> None:
    site.send(100)
    assert site.back_up().written_bytes > 3 * SEGMENT
    tables = site.back_up().written_bytes
    assert tables < 2 * SEGMENT
    site.send(1)
    assert 0 < site.back_up().written_bytes - tables < 300
    assert site.problems() == []
    assert len(site.bodies()) == 101


def test_a_segment_that_was_healed_is_copied_again(site: Site) -> None:
    site.send(100)
    path = site.root / "store/commitlog" / f"{0:020d}"
    sound = path.read_bytes()
    path.write_bytes(sound[:90] + bytes([sound[90] ^ 1]) + sound[91:])
    site.back_up()
    path.write_bytes(sound)
    site.back_up()
    assert len(site.bodies()) == 100
    assert site.problems() == []


def test_a_log_that_was_taken_back_replaces_the_copy(site: Site) -> None:
    site.send(30)
    site.back_up()
    site.store.close()
    shutil.rmtree(site.root / "store/commitlog")
    shutil.rmtree(site.root / "store/consumequeue")
    for name in ("checkpoint", "mqspark.checkpoint", "mqspark.ends"):
        (site.root / "store" / name).unlink()
    site.store, site.count = opened(site.root / "store"), 500
    site.send(10)
    site.back_up()
    assert site.bodies() == [b"message %d" % number for number in range(500, 510)]
    assert len(list((site.backup / "log").iterdir())) == 1


def test_segments_that_retention_deletes_meanwhile_are_left_out(site: Site) -> None:
    site.send(100)
    first = f"{0:020d}"

    def delete_first(count: int) -> None:
        if (site.backup / "log" / first).exists() and (site.root / "store/commitlog" / first).exists():
            site.expire(1)

    done = site.back_up(pace=delete_first)
    assert done.manifest.log_begin == SEGMENT
    assert done.attempts == 2
    store = site.restored()
    assert bodies(store)[-1] == b"message 99"
    assert store.damages.found == []
    assert store.offsets.max_offset("T", 0) == 100


def test_offsets_of_messages_that_have_expired_are_not_assigned_again(site: Site) -> None:
    site.send(12, "Old", 1)
    site.send(100)
    site.expire(1)
    site.back_up()
    site.store.close()
    store = site.restored()
    assert store.offsets.max_offset("Old", 1) == 12
    assert put(store, "Old", 1, b"next")[0] == 12
    assert store.offsets.min_offset("T", 0) > 0
    assert store.damages.found == []
    flush(store)
    assert bodies(store, "Old", 1) == [b"next"]


def test_batch_queues_without_messages_keep_their_offset(site: Site) -> None:
    record = pending("Batches", 0, encode_batch([Message(topic="Batches", body=b"item")] * 3))
    site.store.appender.put_inner_batch(record, 3)
    site.send(100)
    site.expire(1)
    assert [queue.last_entry != "" for queue in site.back_up().manifest.queues] == [False, True]
    site.store.close()
    store = site.restored()
    assert store.offsets.max_offset("Batches", 0) == 3


def test_files_of_a_process_and_derived_ones_stay_behind(site: Site) -> None:
    site.send(3)
    for path in (
        "config/auth/audit.log",
        "config/auth/audit.log.1",
        "config/topics.json.new",
        "mqspark.diverged/x",
    ):
        site.save(path, b"x")
    site.save("mqspark.compacted/T/0/1.log", b"kept")
    checkpoint(site.store)
    names = {file.path for file in site.back_up().manifest.files}
    assert names == {"mqspark.clock", "mqspark.compacted/T/0/1.log", "mqspark.deletions.room", "mqspark.id"}


def test_a_generation_that_is_replaced_meanwhile_is_copied_again(site: Site) -> None:
    site.send(3)
    site.save("mqspark.compacted/T/0/1.log", b"old")
    site.save("mqspark.compacted/T/0/current", b"1")
    copied = site.backup / "files/1/mqspark.compacted/T/0/1.log"

    def compact(count: int) -> None:
        if copied.exists() and not (site.root / "store/mqspark.compacted/T/0/2.log").exists():
            site.save("mqspark.compacted/T/0/2.log", b"new")
            site.save("mqspark.compacted/T/0/current", b"2")

    assert site.back_up(pace=compact).attempts == 2
    site.restore()
    queue = site.target / "mqspark.compacted/T/0"
    assert {path.name: path.read_bytes() for path in queue.iterdir()} == {
        "1.log": b"old", "2.log": b"new", "current": b"2",
    }  # fmt: skip


def test_files_and_fields_of_a_newer_version_are_ignored(site: Site) -> None:
    """What the version before does with the store of this one."""
    site.send(3)
    site.store.close()
    site.save("mqspark.future", b"unknown")
    site.save("mqspark.future.d/file", b"unknown")
    site.save("config/future.json", b"{}")
    text = b'{"acknowledged":0,"future":[1]}'
    site.save("mqspark.member", b"%08x %s\n" % (crc32(text), text))
    site.store = opened(site.root / "store")
    site.store.member.open()
    assert site.store.member.problem == ""
    assert site.store.damages.found == []
    assert len(bodies(site.store)) == 3
    names = {file.path for file in site.back_up().manifest.files}
    assert {"mqspark.future", "mqspark.future.d/file", "config/future.json"} <= names


def test_a_log_that_is_taken_back_meanwhile_is_copied_again(site: Site) -> None:
    site.send(20)
    segment = site.root / "store/commitlog" / f"{0:020d}"
    end = site.store.log.position
    is_whole = True

    def take_back(count: int) -> None:
        nonlocal is_whole
        if is_whole and (site.backup / "log" / segment.name).exists():
            content = bytearray(segment.read_bytes())
            content[end - 30 : end] = bytes(30)
            segment.write_bytes(content)
            is_whole = False

    done = site.back_up(pace=take_back)
    assert done.attempts == 2
    assert done.manifest.log_end < end
    assert len(site.bodies()) == 19


@pytest.mark.parametrize("times", [1, 9])
def test_a_copy_across_an_epoch_is_begun_again(site: Site, times: int) -> None:
    site.send(20)
    epochs = [Epoch(1, 0)]
    site.save("epochFileCheckpoint", encode_epochs(epochs))

    def begin_epoch(count: int) -> None:
        if count == site.store.log.position and len(epochs) <= times:  # the log is being copied
            epochs.append(Epoch(len(epochs) + 1, count))
            site.save("epochFileCheckpoint", encode_epochs(epochs))
            (site.backup / "log" / f"{0:020d}").unlink()  # so that it is copied again

    if times == 1:
        assert site.back_up(pace=begin_epoch).attempts == 2
        site.restore()
        assert (site.target / "epochFileCheckpoint").read_bytes() == encode_epochs(epochs)
    else:
        with pytest.raises(NotNow, match="another epoch has begun"):
            site.back_up(pace=begin_epoch)


class Killed(BaseException):
    """The process ends here."""


def killed_after(calls: int) -> Callable[[int], None]:
    left = calls

    def pace(count: int) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise Killed

    return pace


@pytest.mark.parametrize("calls", [1, 3, 4])
def test_a_killed_backup_leaves_the_one_before(site: Site, calls: int) -> None:
    site.send(60)
    site.back_up()
    site.send(60)
    with pytest.raises(Killed):
        site.back_up(pace=killed_after(calls))
    assert site.problems() == []
    assert len(site.bodies()) == 60
    site.back_up()
    shutil.rmtree(site.target)
    assert len(site.bodies()) == 120


def test_the_first_backup_that_was_killed_is_none(site: Site) -> None:
    site.send(60)
    with pytest.raises(Killed):
        site.back_up(pace=killed_after(2))
    with pytest.raises(StoreCorrupt, match="no complete backup"):
        site.restore()
    assert not site.target.exists()
    site.back_up()
    assert len(site.bodies()) == 60


@pytest.mark.parametrize("calls", [1, 5])
def test_a_killed_restore_is_refused_by_a_broker_and_goes_on(site: Site, calls: int) -> None:
    site.send(100)
    site.save("config/topics.json", b"{}")
    site.back_up()
    with pytest.raises(Killed):
        site.restore(pace=killed_after(calls))
    with pytest.raises(StoreCorrupt, match="a restore did not finish"):
        opened(site.target)
    assert len(site.bodies()) == 100


def test_a_restore_that_began_as_another_one_does_not_go_on(site: Site) -> None:
    site.send(100)
    site.back_up()
    with pytest.raises(Killed):
        site.restore(pace=killed_after(2))
    with pytest.raises(ConfigError, match="empty it"):
        site.restore(is_replica=True)


@pytest.mark.parametrize("kind", ["log", "files", MANIFEST])
@pytest.mark.parametrize("harm", ["flip", "cut", "remove"])
def test_damage_to_a_backup_is_refused(site: Site, kind: str, harm: str) -> None:
    site.send(100)
    site.save("config/topics.json", b'{"dataVersion":{}}')
    site.back_up()
    place = site.backup / kind
    path = sorted(each for each in place.rglob("*") if each.is_file())[-1] if place.is_dir() else place
    content = path.read_bytes()
    if harm == "remove":
        path.unlink()
    else:
        middle = len(content) // 2
        path.write_bytes(
            content[:middle]
            if harm == "cut"
            else content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
        )
    name = MANIFEST if kind == MANIFEST else path.name
    with pytest.raises(StoreCorrupt, match=name) as caught:
        site.restore()
    if kind != MANIFEST:
        assert caught.value.offset is not None
        assert len(site.problems()) == 1
    if (site.target / "commitlog").exists():
        with pytest.raises(StoreCorrupt, match="a restore did not finish"):
            opened(site.target)


def test_a_log_in_several_directories_comes_back_to_others(site: Site) -> None:
    site.store.close()
    disks = ",".join(str(site.root / f"disk-{number}") for number in range(2))
    site.store = opened(site.root / "other", store_path_commit_log=disks)
    site.send(100)
    back_up(site.config(site.root / "other", disks), site.backup, ManualClock())
    elsewhere = ",".join(str(site.root / f"new-{number}") for number in range(3))
    restore(site.backup, site.config(site.target, elsewhere))
    assert len(list(site.root.glob("new-*/*"))) == 3
    store = opened(site.target, store_path_commit_log=elsewhere)
    assert len(bodies(store)) == 100
    store.close()
    shutil.rmtree(site.target)
    with pytest.raises(ConfigError, match="new-0 is not empty"):
        restore(site.backup, site.config(site.target, elsewhere))


def test_a_backup_of_a_newer_format_is_refused(site: Site) -> None:
    site.send(1)
    site.back_up()
    manifest = require_manifest(site.backup, OsFiles())
    data = encode_manifest(manifest).replace(b'"format":1', b'"format":2')
    text = data.split(b"\n")[0]
    (site.backup / MANIFEST).write_bytes(b"%s\n%s\n" % (text, hashlib.sha256(text).hexdigest().encode()))
    with pytest.raises(StoreCorrupt, match="has format 2"):
        site.restore()


def test_a_directory_with_a_store_is_refused(site: Site) -> None:
    site.send(1)
    site.back_up()
    with pytest.raises(ConfigError, match="not empty"):
        restore(site.backup, site.config(site.root / "store"))
    site.target.mkdir()
    lock = OsFiles().lock(site.target / "lock")
    with pytest.raises(StoreLocked):
        site.restore()
    OsFiles().unlock(site.target / "lock", lock)


def test_a_place_with_other_files_is_refused(site: Site) -> None:
    site.send(1)
    site.backup.mkdir()
    (site.backup / "thesis.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"thesis\.txt"):
        site.back_up()
    for inside in (site.root / "store/backup", site.root):
        site.backup = inside
        with pytest.raises(ConfigError, match="cannot be in"):
            site.back_up()


def test_each_store_has_a_place_of_its_own(site: Site, tmp_path: Path) -> None:
    site.send(1)
    site.back_up()
    other = Site(tmp_path / "other")
    other.send(1)
    other.backup = site.backup
    with pytest.raises(ConfigError, match="of another store"):
        other.back_up()


def test_a_backup_of_another_broker_is_refused(site: Site) -> None:
    site.send(1)
    manifest = site.back_up(owner=Owner("c1", "orders", 0)).manifest
    check_owner(manifest, Owner("c1", "orders", 1))
    check_owner(manifest, Owner())
    with pytest.raises(ConfigError, match="brokerName=orders"):
        check_owner(manifest, Owner("c1", "payments"))
    with pytest.raises(ConfigError, match="brokerClusterName=c1"):
        check_owner(manifest, Owner("c2", "orders"))


def test_a_replica_is_no_member_before_it_was_compared(site: Site) -> None:
    site.send(3)
    site.save("brokerIdentity", b"c1#orders#2")
    assert site.back_up().manifest.broker_id == 2
    site.target.mkdir()
    (site.target / "brokerIdentity").write_bytes(b"c1#orders#3")
    site.restore(is_replica=True)
    note = MemberNote(site.target / "mqspark.member", OsFiles(), lambda path, error: None)
    assert note.look()
    assert note.damage.startswith("it was restored")
    assert (site.target / "brokerIdentity").read_bytes() == b"c1#orders#3"


def test_paths_of_a_manifest_stay_below_the_directory(site: Site) -> None:
    site.send(1)
    site.save("config/topics.json", b"{}")
    manifest = site.back_up().manifest
    data = encode_manifest(manifest).split(b"\n")[0].replace(b'"config/topics.json"', b'"../../topics.json"')
    (site.backup / MANIFEST).write_bytes(b"%s\n%s\n" % (data, hashlib.sha256(data).hexdigest().encode()))
    with pytest.raises(StoreCorrupt, match="manifest names"):
        site.restore()
    assert not (site.root.parent / "topics.json").exists()
