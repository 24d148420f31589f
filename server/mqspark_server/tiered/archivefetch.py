"""The process that reads an archive for a broker: ``python -m mqspark_server.tiered.archivefetch``.

It reads requests from standard input, one line of JSON each, and answers each with one line, in any order. It writes
fetched messages as chunks into the cache directory. It ends when its standard input ends.
"""

from __future__ import annotations

import bisect
import functools
import heapq
import json
import os
import resource
import sys
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import msgspec

from mqspark.arrow.files.deltafiles import opened_parquet
from mqspark.base.propertystring import ITEM_END, NAME_END, item
from mqspark.errors import MQError, StoreCorrupt
from mqspark.message import (
    COMPRESSED,
    COMPRESSION_MASK,
    COMPRESSION_SHIFT,
    INNER_BATCH,
    MAX_PROPERTIES_BYTES,
    NEED_UNWRAP,
)
from mqspark.record.compression import compress
from mqspark.record.record import encode_record, tags_code
from mqspark_server.tiered.archivecatalog import ArchiveCatalog, ArchivedFile, ArchivedPart, RangeOfLog
from mqspark_server.tiered.archivechunks import ChunkWriter

if TYPE_CHECKING:
    import pyarrow.parquet as pq

THREADS = 2
MAX_FOOTERS = 256
MAX_GROUP_BYTES = 512 << 20
"""Limit of a row group's uncompressed size; the job archive writes 32 MiB."""
MAX_ERROR = 500
_BATCH_ROWS = 1024
_ZLIB = 3 << COMPRESSION_SHIFT
_INT32 = 1 << 31
COLUMNS = (
    "value",
    "partition",
    "offset",
    "timestamp",
    "broker",
    "bornTimestamp",
    "properties",
    "physicalOffset",
    "sysFlag",
)
MORE_COLUMNS = ("flag", "bornHost", "reconsumeTimes")
"""Columns that older archives do not have."""


class _Group(NamedTuple):
    """A row group and its statistics."""

    low: int
    high: int
    """Physical offsets of its first and last row."""
    first: int
    last: int
    """Smallest and largest queue offset of all its queues."""
    file: ArchivedFile
    number: int


class ArchiveFetcher:
    """The work of the process, without its pipes."""

    def __init__(
        self, url: str, broker: str, directory: Path, max_chunk_bytes: int, store_host: bytes
    ) -> None:
        self.catalog = ArchiveCatalog(url, broker)
        self._broker = broker
        self._directory = directory
        self._max_chunk_bytes = max_chunk_bytes
        self._store_host = store_host
        self._lock = threading.Lock()
        self._footers: OrderedDict[str, list[_Group]] = OrderedDict()
        self._numbers = 0

    def refresh(self, floors: dict[str, int]) -> dict[str, Any]:
        """Read the catalog of the archive and write the bounds of its queues to ``bounds.json``."""
        with self._lock:
            self.catalog.refresh(floors)
            data = msgspec.json.encode(list(self.catalog.bounds()))
        (self._directory / "bounds.json").write_bytes(data)
        return {"bounds": "bounds.json"}

    def fetch(self, topic: str, queue_id: int, offset: int) -> dict[str, Any]:
        """Write the chunk with the first archived message of the queue at or after ``offset``. ``chunk`` is None if
        there is none."""
        with self._lock:
            parts = self.catalog.parts(topic, queue_id, offset)
        for part in parts:
            for groups in self._groups_of(topic, part.range):
                if max(group.last for group in groups) < offset:
                    continue
                name = self._write(topic, part.range, groups, queue_id, offset)
                if name is not None:
                    return {"chunk": name[0], "first": name[1]}
        return {"chunk": None}

    def since(self, topic: str, queue_id: int, time_ms: int, before: int) -> dict[str, Any]:
        """The first archived offset before ``before`` that was stored at or after ``time_ms``; None if there is no
        such offset."""
        with self._lock:
            parts = self.catalog.parts(topic, queue_id, 0)
        parts = [part for part in parts if part.first < before]
        # Store times ascend with the log, so a binary search over the parts reads only a few of them.
        start = max(
            0, bisect.bisect_left(parts, time_ms, key=lambda part: self._time_of(topic, queue_id, part)) - 1
        )
        for part in parts[start:]:
            for groups in self._groups_of(topic, part.range):
                for row in self._rows(topic, part.range, groups):
                    if row["partition"] == queue_id and row["stored_ms"] >= time_ms:
                        offset: int = row["offset"]
                        return {"offset": offset if offset < before else None}
        return {"offset": None}

    def _time_of(self, topic: str, queue_id: int, part: ArchivedPart) -> int:
        for groups in self._groups_of(topic, part.range):
            for row in self._rows(topic, part.range, groups):
                if row["partition"] == queue_id:
                    stored_ms: int = row["stored_ms"]
                    return stored_ms
        return 0

    def _groups_of(self, topic: str, wanted: RangeOfLog) -> Iterator[list[_Group]]:
        """The row groups with rows of a range, in the order of the log. Overlapping ones come together."""
        with self._lock:
            files = self.catalog.files(topic, wanted)
        found = sorted(
            group
            for file in files
            for group in self._footer(file)
            if group.low < wanted.high and group.high >= wanted.low
        )
        together: list[_Group] = []
        for group in found:
            if together and group.low > max(each.high for each in together):
                yield together
                together = []
            together.append(group)
        if together:
            yield together

    def _footer(self, file: ArchivedFile) -> list[_Group]:
        with self._lock:
            if file.url in self._footers:
                self._footers.move_to_end(file.url)
                return self._footers[file.url]
        with opened_parquet(file.entry) as parquet:
            groups = [_group(file, parquet, number) for number in range(parquet.metadata.num_row_groups)]
        with self._lock:
            self._footers[file.url] = groups
            while len(self._footers) > MAX_FOOTERS:
                self._footers.popitem(last=False)
        return groups

    def _write(
        self, topic: str, wanted: RangeOfLog, groups: list[_Group], queue_id: int, offset: int
    ) -> tuple[str, int] | None:
        """Write a chunk with all rows of the groups. Returns its name and the queue's first offset in it at or after
        ``offset``; None if there is none. If the rows are too large, the chunk has only this queue, from ``offset``
        on."""
        for alone in (False, True):
            with self._lock:
                self._numbers += 1
                name = f"chunk-{self._numbers}"
            writer = ChunkWriter(self._directory, name)
            try:
                for row in self._rows(topic, wanted, groups):
                    if alone and (row["partition"] != queue_id or row["offset"] < offset):
                        continue
                    if writer.size_bytes >= self._max_chunk_bytes:
                        break
                    record, code = self._encoded(topic, row)
                    writer.add(row["partition"], row["offset"], code, row["stored_ms"], record)
                else:
                    alone = True  # the queue is complete
                if not alone:
                    writer.abandon()
                    continue
                entries = writer.finish()
                mine = entries["offset"][entries["queue_id"] == queue_id]
                mine = mine[mine >= offset]
                if len(mine):
                    return name, int(mine[0])
                writer.abandon()
                return None
            except BaseException:
                writer.abandon()
                raise
        return None

    def _rows(self, topic: str, wanted: RangeOfLog, groups: list[_Group]) -> Iterator[dict[str, Any]]:
        """Checked rows of this broker, in the order of the log."""
        ends: dict[int, int] = {}
        part_of = functools.cache(lambda queue_id: self.catalog.part_of(topic, queue_id, wanted))
        sources = [self._rows_of_group(group) for group in groups]
        for row in _merged(sources) if len(sources) > 1 else sources[0]:
            if row["broker"] != self._broker or not wanted.low <= row["physicalOffset"] < wanted.high:
                continue
            queue_id, offset = row["partition"], row["offset"]
            part = part_of(queue_id)
            if part is None:
                continue  # the topic was deleted since
            if not part.first <= offset < part.end or offset < ends.get(queue_id, 0):
                raise StoreCorrupt(
                    f"{groups[0].file.url}: offset {offset} of queue {queue_id} of {topic} is out of its range",
                    path=groups[0].file.url,
                    offset=row["physicalOffset"],
                )
            ends[queue_id] = offset + 1
            yield row

    def _rows_of_group(self, group: _Group) -> Iterator[dict[str, Any]]:
        import pyarrow as pa

        with opened_parquet(group.file.entry) as parquet:
            there = set(parquet.schema_arrow.names)
            columns = [*COLUMNS, *(name for name in MORE_COLUMNS if name in there)]
            if missing := set(COLUMNS) - there:
                raise StoreCorrupt(
                    f"{group.file.url} has no column {min(missing)}", path=group.file.url, offset=0
                )
            batches = parquet.iter_batches(
                _BATCH_ROWS, row_groups=[group.number], columns=columns, use_threads=False
            )
            count = 0
            for batch in batches:
                for name in ("timestamp", "bornTimestamp"):
                    place = batch.schema.get_field_index(name)
                    times = batch.column(place).cast(pa.timestamp("ms", tz="UTC")).cast(pa.int64())
                    batch = batch.set_column(place, name, times)
                for row in batch.to_pylist():
                    row["stored_ms"] = row["timestamp"]
                    if row["value"] is None:  # its body was damaged in the log
                        continue
                    yield row
                count += batch.num_rows
            if count != parquet.metadata.row_group(group.number).num_rows:
                raise StoreCorrupt(f"{group.file.url} lacks rows", path=group.file.url, offset=0)

    def _encoded(self, topic: str, row: dict[str, Any]) -> tuple[bytes, int]:
        """The record as it was in the log, recompressed if it was compressed, and its tags code."""
        sys_flag, body = row["sysFlag"] & ~(INNER_BATCH | NEED_UNWRAP), row["value"]
        if sys_flag & COMPRESSED:
            sys_flag = sys_flag & ~COMPRESSION_MASK | _ZLIB
            body = compress(body)
        properties = _encoded_properties(row["properties"] or ())
        if not 0 <= row["partition"] < _INT32:
            raise StoreCorrupt(
                f"the queue id {row['partition']} is invalid", path=topic, offset=row["physicalOffset"]
            )
        record = encode_record(
            topic=topic,
            body=body,
            properties=properties,
            queue_id=row["partition"],
            queue_offset=row["offset"],
            physical_offset=row["physicalOffset"],
            flag=row.get("flag") or 0,
            sys_flag=sys_flag,
            born_timestamp_ms=row["bornTimestamp"],
            born_host=_host(row.get("bornHost")),
            store_timestamp_ms=row["stored_ms"],
            store_host=self._store_host,
            reconsume_times=row.get("reconsumeTimes") or 0,
        )
        return record, tags_code(properties)


def _encoded_properties(pairs: Iterable[tuple[str, str | None]]) -> bytes:
    """The properties that fit into a record. Those in the log did fit, but text that was not UTF-8 may have grown when
    it was archived. Then the last ones are left out, and the message is still served."""
    found: list[bytes] = []
    room = MAX_PROPERTIES_BYTES
    for name, value in pairs:
        pair = item(name, value or "").encode(errors="replace")
        if pair.count(NAME_END.encode()) == pair.count(ITEM_END.encode()) == 1 and len(pair) <= room:
            found.append(pair)
            room -= len(pair)
    return b"".join(found)


def _host(host: bytes | None) -> bytes:
    return host if host is not None and len(host) in (8, 20) else bytes(8)


def _merged(sources: list[Iterator[dict[str, Any]]]) -> Iterator[dict[str, Any]]:
    return heapq.merge(*sources, key=lambda row: row["physicalOffset"])


def _group(file: ArchivedFile, parquet: pq.ParquetFile, number: int) -> _Group:
    metadata = parquet.metadata.row_group(number)
    if metadata.total_byte_size > MAX_GROUP_BYTES:
        raise StoreCorrupt(
            f"{file.url} has a row group of {metadata.total_byte_size} bytes, more than {MAX_GROUP_BYTES}",
            path=file.url,
            offset=0,
        )
    found: dict[str, tuple[int, int]] = {}
    for place in range(metadata.num_columns):
        column = metadata.column(place)
        if column.path_in_schema in ("physicalOffset", "offset") and column.is_stats_set:
            found[column.path_in_schema] = (column.statistics.min, column.statistics.max)
    low, high = found.get("physicalOffset", (file.low, file.high))
    first, last = found.get("offset", (0, 1 << 62))
    return _Group(low, high, first, last, file, number)


# --- the process ------------------------------------------------------------------------------------------------


def main() -> NoReturn:
    """Serve requests until the standard input ends."""
    hello = json.loads(sys.stdin.readline())
    limit_memory(hello["memory"])
    fetcher = ArchiveFetcher(
        hello["url"], hello["broker"], Path(hello["directory"]), hello["chunk"], bytes.fromhex(hello["host"])
    )
    output, lock = os.fdopen(os.dup(1), "w"), threading.Lock()
    os.dup2(2, 1)  # output of libraries must not reach the answers

    def answer(request: dict[str, Any]) -> None:
        reply: dict[str, Any]
        try:
            match request["do"]:
                case "refresh":
                    reply = fetcher.refresh(request["floors"])
                case "fetch":
                    reply = fetcher.fetch(request["topic"], request["queue"], request["offset"])
                case _:
                    reply = fetcher.since(
                        request["topic"], request["queue"], request["time"], request["before"]
                    )
        except Exception as error:
            # fsspec's file systems raise errors of any type.
            kind = "" if isinstance(error, MQError | OSError) else f"{type(error).__name__}: "
            reply = {"error": f"{kind}{error}"[:MAX_ERROR] or type(error).__name__}
        with lock:
            output.write(json.dumps({"id": request["id"], **reply}) + "\n")
            output.flush()

    with ThreadPoolExecutor(THREADS) as pool:
        for line in sys.stdin:
            pool.submit(answer, json.loads(line))
        os._exit(0)  # a request that hangs in the storage must not keep the process


def limit_memory(most_bytes: int) -> None:
    """Limit the data segment to ``most_bytes`` more than now: a Parquet file may claim any size."""
    used = resource.getpagesize() * int(Path("/proc/self/statm").read_text().split()[5])
    resource.setrlimit(resource.RLIMIT_DATA, (used + most_bytes, used + most_bytes))


if __name__ == "__main__":
    main()
