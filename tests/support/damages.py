"""Damages of a replica's store directory, as disks, restored backups and operators do them while it is down.

``KINDS`` is the list: what each does to the directory ``store``, given the directories around it. What a record looks
like is written here once more, independent of what is tested.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from mqspark.base.crc import crc32
from tests.support.store_tools import copy_store, flush, make_store, put
from tests.support.storefiles import records, segments_of

FIELDS = {
    "size": 3,
    "magic": 7,
    "queue id": 15,
    "queue offset": 27,
    "physical offset": 35,
}
"""The last byte of each, from the begin of a record on."""
BODY_AT = 88
PLACES = ("last", "middle", "first")
"""Segments of the log."""
EPOCHS = "epochFileCheckpoint"
IDENTITY = "brokerIdentity"


@dataclass(frozen=True, slots=True)
class Around:
    """What else a damage may take: directories of stores that nobody uses."""

    older: Path
    """An earlier copy of this replica's."""
    other: Path
    """Another replica's, as it is now."""
    end: int
    """The end of the log."""


Damage = Callable[[Path, Around], None]
KINDS: dict[str, Damage] = {}


def _pick(store: Path, place: str, end: int) -> tuple[Path, int, int]:
    """A record of this segment: the file, and begin and size in it."""
    used = [path for path in segments_of(store) if int(path.name) < end]
    path = {"last": used[-1], "middle": used[len(used) // 2], "first": used[0]}[place]
    found = list(records(path.read_bytes()[: end - int(path.name)]))
    return path, *found[-1 if place == "last" else len(found) // 2]


def _flip_byte(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        (value,) = file.read(1)
        file.seek(at)
        file.write(bytes([value ^ 1]))


def _flip_in(place: str, offset: Callable[[bytes], int], store: Path, around: Around) -> None:
    path, begin, size = _pick(store, place, around.end)
    _flip_byte(path, begin + offset(path.read_bytes()[begin : begin + size]))


def in_body(record: bytes) -> int:
    return BODY_AT + int.from_bytes(record[84:88], "big") // 2


def in_properties(record: bytes) -> int:
    return len(record) - 2


for _place in PLACES:
    for _field, _at in FIELDS.items():
        KINDS[f"flip {_field}, {_place}"] = partial(_flip_in, _place, lambda record, at=_at: at)  # type: ignore[misc]
    KINDS[f"flip body, {_place}"] = partial(_flip_in, _place, in_body)
    KINDS[f"flip properties, {_place}"] = partial(_flip_in, _place, in_properties)


def _kind(title: str) -> Callable[[Damage], Damage]:
    def add(damage: Damage) -> Damage:
        KINDS[title] = damage
        return damage

    return add


def _half_of_the_last(store: Path, around: Around) -> tuple[Path, int, int]:
    """The last segment, the middle of its used part, and its length."""
    path = [each for each in segments_of(store) if int(each.name) < around.end][-1]
    return path, (around.end - int(path.name)) // 2, path.stat().st_size


@_kind("zeroed")
def _zero(store: Path, around: Around) -> None:
    path, at, size = _half_of_the_last(store, around)
    with path.open("r+b") as file:
        file.seek(at)
        file.write(bytes(size - at))


@_kind("truncated")
def _truncate(store: Path, around: Around) -> None:
    path, at, _ = _half_of_the_last(store, around)
    with path.open("r+b") as file:
        file.truncate(at)


@_kind("truncated and extended")
def _truncate_and_extend(store: Path, around: Around) -> None:
    path, at, size = _half_of_the_last(store, around)
    with path.open("r+b") as file:
        file.truncate(at)
        file.truncate(size)


@_kind("removed")
def _remove(store: Path, around: Around) -> None:
    _half_of_the_last(store, around)[0].unlink()


@_kind("emptied")
def _empty(store: Path, around: Around) -> None:
    for path in segments_of(store):
        path.unlink()


@_kind("wiped")
def _wipe(store: Path, around: Around) -> None:
    shutil.rmtree(store)


@_kind("identity only")
def _keep_identity(store: Path, around: Around) -> None:
    identity = (store / IDENTITY).read_bytes()
    shutil.rmtree(store)
    store.mkdir()
    (store / IDENTITY).write_bytes(identity)


def _put(store: Path, source: Path, *names: str) -> None:
    """Replace these entries of the directory by those of another one."""
    for name in names:
        old, new = store / name, source / name
        if old.is_dir():
            shutil.rmtree(old)
        else:
            old.unlink(missing_ok=True)
        if new.is_dir():
            copy_store(new, old)
        elif new.exists():
            shutil.copy2(new, old)


@_kind("older copy")
def _restore(store: Path, around: Around) -> None:
    shutil.rmtree(store)
    copy_store(around.older, store)


@_kind("older log, newer tables")
def _restore_log(store: Path, around: Around) -> None:
    _put(store, around.older, "commitlog")


@_kind("newer log, older tables")
def _restore_tables(store: Path, around: Around) -> None:
    names = {path.name for path in (*store.iterdir(), *around.older.iterdir())}
    _put(store, around.older, *sorted(names - {"commitlog"}))


def _epoch_files(store: Path) -> list[Path]:
    return [path for path in (store / EPOCHS, store / f"{EPOCHS}.bak") if path.exists()]


@_kind("epochs flipped")
def _flip_epochs(store: Path, around: Around) -> None:
    for path in _epoch_files(store):
        _flip_byte(path, path.stat().st_size - 2)


@_kind("epochs removed")
def _remove_epochs(store: Path, around: Around) -> None:
    for path in _epoch_files(store):
        path.unlink()


@_kind("epochs forged")
def _forge_epochs(store: Path, around: Around) -> None:
    """Far in the future."""
    lines = f"1-0\n900-{around.end // 2}\n".encode()
    (store / EPOCHS).write_bytes(b"2\n%d\n" % (crc32(lines) & 0x7FFFFFFF) + lines)


@_kind("clone of another")
def _clone(store: Path, around: Around) -> None:
    shutil.rmtree(store)
    copy_store(around.other, store)


@_kind("tables missing")
def _remove_tables(store: Path, around: Around) -> None:
    shutil.rmtree(store / "config")


@_kind("store of another set")
def _take_store_of_others(store: Path, around: Around) -> None:
    """A longer log of the same topics, with other messages at the same offsets."""
    shutil.rmtree(store)
    other = make_store(store, mapped_file_size_commit_log=1 << 20, mapped_file_size_consume_queue=20 * 500)
    other.open()
    number = 0
    while other.log.position < 2 * around.end:
        put(other, "Kept", number % 2, b"foreign:%d" % number + bytes(44 << 10))
        flush(other)
        number += 1
    other.close()


@_kind("truncated without a member note")
def _truncate_without_note(store: Path, around: Around) -> None:
    _truncate_and_extend(store, around)
    for path in store.glob("mqspark.member*"):
        path.unlink()


@_kind("truncated without any note")
def _truncate_without_notes(store: Path, around: Around) -> None:
    _truncate_and_extend(store, around)
    for path in [*store.glob("mqspark.*"), store / "checkpoint", *_epoch_files(store)]:
        if path.is_file():
            path.unlink()
