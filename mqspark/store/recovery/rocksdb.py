"""What RocketMQ has put into RocksDB, which nothing here reads: recognised, so that nothing seems to be empty.

RocketMQ can keep queues, tables and other state in RocksDB. A directory may also have what is left of that after
RocketMQ went back to files:

* Queues: files are as good when they have the first records of the log, and so one after which the log has all.
  Without them a log tells the end of a queue, but not of one whose messages have all expired.
* Tables: a JSON file is as good when it is not older than the database.

Facts: docs/rocketmq/store.md#rocksdb.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mqspark.base.names import path_below
from mqspark.errors import StoreCorrupt
from mqspark.record.record import CheckedRecord, Verdict, check_record
from mqspark.store.disk.files import FileLayer
from mqspark.store.disk.layout import StorePaths, file_name, file_start, is_storable_topic
from mqspark.store.queue.consumequeue import ENTRY_BYTES
from mqspark.store.queue.multidispatch import LMQ_QUEUE_ID, dispatched_queues
from mqspark.store.recovery.recovery import is_queued

_QUEUES = ("consumequeue", "consumequeue_rocksdb")
_TABLES = {
    "topics": "topics.json",
    "subscriptionGroups": "subscriptionGroup.json",
    "consumerOffsets": "consumerOffset.json",
}
"""Directories below ``config/``, one for each table, and the file that has the same."""
_ALL_TABLES = ("metadata", "rdb")
"""Those that have all tables: useSingleRocksDBForAllConfigs, and configManagerVersion=v2."""
_FIRST_BYTES, _MAX_CHECKED, _MAX_SEGMENTS = 1 << 20, 1000, 64
"""How much of the log is compared with files: bytes and records of a segment, and segments."""
_PLACE = struct.Struct(">qi")
"""Position and size of a record, at the begin of a queue entry."""
_GUIDE = "docs/migration.md#rocksdb"


@dataclass(slots=True, frozen=True)
class InRocksDB:
    """Something that only a RocksDB has."""

    kind: str
    text: str
    """Where it is, and what would be lost."""
    advice: str
    """How to convert it."""
    rebuilt: bool = False
    """Whether a rebuild of the queues from the log is exact."""


def refuse_rocksdb(paths: StorePaths, files: FileLayer) -> None:
    """Raises StoreCorrupt for a directory of which a part is in RocksDB alone."""
    found = list(found_in_rocksdb(paths, files))
    if found:
        parts = " ".join(f"({number}) {each.text}; {each.advice}." for number, each in enumerate(found, 1))
        raise StoreCorrupt(
            f"a part of the store {paths.root} is in RocksDB, which is not read here. {parts} Details: {_GUIDE}",
            path=str(paths.root),
        )


def refuse_rebuild(paths: StorePaths, files: FileLayer) -> None:
    """Raises StoreCorrupt when queues built from the log would assign offsets again that only RocksDB knows."""
    for each in _queues(paths, files):
        if not each.rebuilt:
            raise StoreCorrupt(f"{each.text}; {each.advice}", path=str(paths.root))


def found_in_rocksdb(paths: StorePaths, files: FileLayer) -> Iterator[InRocksDB]:
    """What is in RocksDB alone. Reads names, times and some queue entries. Raises OSError."""
    yield from _tables(paths, files)
    yield from _queues(paths, files)
    yield from _others(paths, files)


# --- queues ---------------------------------------------------------------------------------------------------


def _queues(paths: StorePaths, files: FileLayer) -> Iterator[InRocksDB]:
    databases = [paths.root / name for name in _QUEUES if _is_database(paths.root / name, files)]
    if not databases:
        return
    segments = _segments(paths, files)
    if not segments:
        return
    begin, first = segments[0]
    head = _head(first, files)
    if not any(head) and len(segments) == 1:
        return
    where = " and ".join(f"{path.name}/" for path in databases)
    advice = (
        "start RocketMQ on it again, and mqspark as its slave (brokerRole=SLAVE) with an empty directory, which copies"
        " log, tables and the ends of queues; go on with that directory"
    )
    if not _in_files(paths, files, begin, head):
        text = f"the queues, or their older part, are in RocksDB ({where}) and in no files"
        repair = f"mqspark store fsck --repair {paths.root}"
    elif not _light_in_files(paths, files, segments):
        text = f"the light queues (LMQ) are in RocksDB ({where}) and in no files"
        repair = f"mqspark store fsck --repair -c BROKER.CONF {paths.root}"
    else:
        return
    if begin == 0:
        advice = f"'{repair}' builds them from the log, which is whole, at the same offsets"
    else:
        text += (
            f", and the log begins at {begin}: built from it, queues would give the offsets of expired messages to new"
            " ones"
        )
    yield InRocksDB("rocksdb.queues", text, advice, rebuilt=begin == 0)


def _segments(paths: StorePaths, files: FileLayer) -> list[tuple[int, Path]]:
    segments = {
        start: directory / name
        for directory in paths.commit_logs.all
        for name in files.names(directory)
        if (start := file_start(name)) is not None
    }
    return sorted(segments.items())


def _head(segment: Path, files: FileLayer) -> bytes:
    fd = files.open_read(segment)
    try:
        return files.read_at(fd, min(files.length(fd), _FIRST_BYTES), 0)
    finally:
        files.close(fd)


def _records(begin: int, head: bytes) -> Iterator[CheckedRecord]:
    """The first records of a segment."""
    at = 0
    for _ in range(_MAX_CHECKED):
        record = check_record(head, at, len(head), verify_crc=False)
        if record.verdict is not Verdict.VALID or record.physical_offset != begin + at:
            return
        yield record
        at += record.size_bytes


def _in_files(paths: StorePaths, files: FileLayer, begin: int, head: bytes) -> bool:
    """Whether a queue has, in files, an entry for one of the first records of the log. Without a record that says it,
    whether there are files."""
    said = False
    for record in _records(begin, head):
        if is_queued(record.sys_flag) and is_storable_topic(record.topic):
            said = True
            if _has_entry(paths, files, record, record.topic, record.queue_id, record.queue_offset):
                return True
    return not said and _any_files(paths, files)


def _light_in_files(paths: StorePaths, files: FileLayer, segments: Sequence[tuple[int, Path]]) -> bool:
    """Whether an LMQ has, in files, an entry for one of the records that belong to one, or there seems to be none.
    Looks at the begin of some segments: the log may be too large to be read."""
    said = False
    for begin, path in segments[:: len(segments) // _MAX_SEGMENTS + 1]:
        for record in _records(begin, _head(path, files)):
            for name, offset in dispatched_queues(record.topic, record.properties):
                if is_storable_topic(name):
                    said = True
                    if _has_entry(paths, files, record, name, LMQ_QUEUE_ID, offset):
                        return True
    return not said


def _has_entry(
    paths: StorePaths, files: FileLayer, record: CheckedRecord, topic: str, queue_id: int, offset: int
) -> bool:
    if files.names(path_below(paths.batch_consume_queue, topic, queue_id)):
        return True  # its entries are of batches
    directory, at = path_below(paths.consume_queue, topic, queue_id), offset * ENTRY_BYTES
    starts = [
        start for name in files.names(directory) if (start := file_start(name)) is not None and start <= at
    ]
    if not starts:
        return False
    fd = files.open_read(directory / file_name(max(starts)))
    try:
        found = files.read_at(fd, _PLACE.size, at - max(starts))
        return found == _PLACE.pack(record.physical_offset, record.size_bytes)
    finally:
        files.close(fd)


def _any_files(paths: StorePaths, files: FileLayer) -> bool:
    return any(
        file_start(name) is not None
        for topic in filter(is_storable_topic, files.names(paths.consume_queue))
        for queue in files.names(path_below(paths.consume_queue, topic))
        if queue.isdigit()
        for name in files.names(path_below(paths.consume_queue, topic, queue))
    )


# --- tables and the rest --------------------------------------------------------------------------------------


def _tables(paths: StorePaths, files: FileLayer) -> Iterator[InRocksDB]:
    config = paths.config
    stale = {name: table for name, table in _TABLES.items() if _stale(config / name, (table,), paths, files)}
    if stale:
        yield InRocksDB(
            "rocksdb.tables",
            f"config/ has {_listed(stale)} newer than {_listed(stale.values())}: they would be missing or old",
            f"'mqadmin rocksDBConfigToJson -p {config} -t NAME -e {config}/FILE' writes each file (NAME and FILE:"
            f" {_listed(f'{name} {table}' for name, table in stale.items())}); move away a database that is older",
        )
    for name in _ALL_TABLES:
        old = _stale(config / name, tuple(_TABLES.values()), paths, files)
        if old:
            yield InRocksDB(
                "rocksdb.tables",
                f"config/{name} is newer than {_listed(old)}: topics, groups and offsets would be missing or old",
                "start RocketMQ on it again, and mqspark as its slave (brokerRole=SLAVE) with an empty directory",
            )


def _listed(words: Iterable[str]) -> str:
    return ", ".join(words)


def _stale(database: Path, tables: tuple[str, ...], paths: StorePaths, files: FileLayer) -> list[str]:
    """The files that are missing, or older than a database."""
    newest_ms = _last_write_ms(database, files)
    if newest_ms is None:
        return []
    present = set(files.names(paths.config))
    return [
        table
        for table in tables
        if table not in present or files.age(paths.config / table).modified_ms < newest_ms
    ]


def _others(paths: StorePaths, files: FileLayer) -> Iterator[InRocksDB]:
    if _last_write_ms(paths.root / "kvStore", files) is not None:
        yield InRocksDB(
            "rocksdb.pop",
            "kvStore/ has the messages that POP consumers have in their hands; these may not come again",
            "'mqadmin exportPopRecord -b ADDRESS' writes them to topics; then stop RocketMQ and move it away",
        )
    if _last_write_ms(paths.root / "rocksdbstore", files) is not None:
        yield InRocksDB(
            "rocksdb.messages",
            "rocksdbstore/ has timed messages, transactions or the index; what waits there would come late, twice or"
            " not at all",
            "with RocketMQ wait until no message is due later and no transaction is open; then stop it and move the"
            " directory away",
        )


def _is_database(directory: Path, files: FileLayer) -> bool:
    return "CURRENT" in files.names(directory)


def _last_write_ms(database: Path, files: FileLayer) -> int | None:
    """When a database was written last; None when there is none, or nothing in it."""
    if not _is_database(database, files):
        return None
    written_ms = []
    for name in files.names(database):
        if name.endswith((".sst", ".log")):
            fd = files.open_read(database / name)
            try:
                used = files.length(fd)
            finally:
                files.close(fd)
            if used:
                written_ms.append(files.age(database / name).modified_ms)
    return max(written_ms, default=None)
