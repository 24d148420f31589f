"""Writes messages as Parquet files of a Delta table, one file per topic and day, in the task that decodes the
log.

A worker decodes records to Arrow and writes them directly: no row passes through Python or the JVM. Only
positions are kept until a topic has enough records for a row group. The driver names the files to Delta
(``mqspark_jobs.deltacommit``); a file without a commit is not part of the table, so a failed attempt has no
effect. Must not know Spark.
"""

from __future__ import annotations

import contextlib
import os
import urllib.parse
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from mqspark.arrow.files.locations import filesystem_of, is_remote, join, local_path, make_parent
from mqspark.arrow.records.decode import Decoder
from mqspark.arrow.records.records import Ints, Records
from mqspark.base.clock import DAY_MS
from mqspark.base.wholefile import sync
from mqspark.message import BORN_HOST_V6
from mqspark.record.compression import InflateLimits
from mqspark.record.recordlayout import AT

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

COLUMNS = (
    "key",
    "value",
    "partition",
    "offset",
    "timestamp",
    "tags",
    "broker",
    "bornTimestamp",
    "msgId",
    "properties",
    "physicalOffset",
    "sysFlag",
    "reconsumeTimes",
)
"""Columns that are decoded; ``topic`` and ``date`` are the table's partitions."""
_FLAG_AT, _SYS_FLAG_AT, _BORN_HOST_AT = AT["flag"], AT["sys_flag"], AT["born_host"]
DATE = "date"
_GROUP_BYTES = 32 << 20
"""Approximate bytes of log for one row group."""
_GROUP_ROWS = 1 << 17
SPAN_BYTES = 8 << 20
_TABLE_BYTES = 128 << 20
"""Bytes of decoded rows written at once; larger than a row group unless bodies were compressed."""
ANY_RATIO = InflateLimits(max_ratio=0)
"""No ratio limit: archived bodies may be much larger than their stored size."""
_FEW_VALUES = [
    "partition",
    "timestamp",
    "bornTimestamp",
    "tags",
    "broker",
    "sysFlag",
    "properties.key_value.key",
]
_COUNTED = ["partition", "offset", "timestamp", "physicalOffset"]


@dataclass(frozen=True, slots=True)
class RowFile:
    """A complete file, with the metadata for Delta."""

    path: str
    """The path within the table, as on disk."""
    size_bytes: int
    rows: int
    topic: str
    date: str
    lowest: dict[str, int] = field(hash=False)
    highest: dict[str, int] = field(hash=False)
    """Statistics of partition, offset, physicalOffset, and of timestamp in milliseconds."""


class _Open:
    """One file being written, and the records still to be written to it."""

    __slots__ = ("bytes", "file", "highest", "lowest", "path", "positions", "rows", "writer")

    def __init__(self, path: str) -> None:
        self.path = path
        self.positions: list[Ints] = []
        self.bytes = 0
        self.rows = 0
        self.file: Any = None
        self.writer: pq.ParquetWriter | None = None
        self.lowest: dict[str, int] = {}
        self.highest: dict[str, int] = {}


class RowFiles:
    """The files of one range of the log. Call ``add`` with its records, then ``finish``."""

    def __init__(self, url: str, broker: str, name: str) -> None:
        """``url``: that of the table. ``name``: the prefix of the files' names, unique to each attempt."""
        self._url = url
        self._broker = broker
        self._name = f"{name}-{uuid.uuid4().hex}.parquet"
        self._open: dict[tuple[str, int], _Open] = {}
        self._decoders: dict[str, Decoder] = {}

    def add(
        self, records: Records, positions: Ints, topics: pa.Array, times_ms: Ints, *, decode_now: bool
    ) -> None:
        """Add the records at these positions, ascending, with their topics and store times.

        ``decode_now``: ``records`` will not be available later.
        """
        coded = topics.dictionary_encode()
        days = times_ms // DAY_MS
        codes = coded.indices.to_numpy().astype(np.int64) << 32 | days
        order = np.argsort(codes, kind="stable")
        bounds = np.flatnonzero(np.diff(codes[order])) + 1
        names = coded.dictionary.to_pylist()
        sizes = records.ints(positions)
        for rows in np.split(order, bounds):
            code = int(codes[rows[0]])
            key = (names[code >> 32], code & 0xFFFFFFFF)
            chosen = self._open.get(key)
            if chosen is None:
                chosen = self._open[key] = _Open(self._path(*key))
            chosen.positions.append(positions[rows])
            chosen.bytes += int(sizes[rows].sum())
            waiting = sum(map(len, chosen.positions))
            if decode_now or chosen.bytes >= _GROUP_BYTES or waiting >= _GROUP_ROWS:
                self._write(records, key[0], chosen)

    def flush(self, records: Records) -> None:
        """All waiting positions refer to these records: write them."""
        for (topic, _), chosen in self._open.items():
            self._write(records, topic, chosen)

    def finish(self) -> list[RowFile]:
        """The files, complete and synced. No position may be waiting."""
        done = []
        for (topic, day), chosen in self._open.items():
            if chosen.writer is None or chosen.positions:
                raise ValueError("rows are waiting to be written: flush first")
            chosen.writer.close()
            size_bytes = chosen.file.tell()
            self._close(chosen)
            done.append(
                RowFile(
                    chosen.path, size_bytes, chosen.rows, topic, _date(day), chosen.lowest, chosen.highest
                )
            )
        self._open.clear()
        return done

    def abandon(self) -> None:
        """Write nothing more. Files that exist already are not part of a table."""
        for chosen in self._open.values():
            if chosen.writer is not None:
                chosen.writer.is_open = False
            if chosen.file is None:
                continue
            if is_remote(self._url):
                # Cancels a multipart upload; otherwise the object would be created when the file is garbage-collected.
                with contextlib.suppress(Exception):
                    chosen.file.discard()
                chosen.file.closed = True
            else:
                chosen.file.close()
        self._open.clear()

    def _path(self, topic: str, day: int) -> str:
        folder = f"topic={urllib.parse.quote(topic, safe='')}/{DATE}={_date(day)}"
        return f"{folder}/{self._name}"

    def _write(self, records: Records, topic: str, chosen: _Open) -> None:
        import pyarrow as pa

        if not chosen.positions:
            return
        positions = np.concatenate(chosen.positions)
        chosen.positions, chosen.bytes = [], 0
        decoder = self._decoders.get(topic)
        if decoder is None:
            decoder = self._decoders[topic] = Decoder(
                COLUMNS, topic=topic, broker=self._broker, queue_id=None, strict=False, limits=ANY_RATIO
            )
        waiting: list[pa.RecordBatch] = []
        waiting_bytes = 0
        for piece in _adjacent_groups(positions):
            row = 0
            for batch in decoder.batches(records, piece):
                batch = _with_heads(batch, records, piece[row : row + batch.num_rows])
                row += batch.num_rows
                waiting.append(batch)
                waiting_bytes += batch.nbytes
                if waiting_bytes >= _TABLE_BYTES:
                    self._write_table(chosen, pa.Table.from_batches(waiting))
                    waiting, waiting_bytes = [], 0
        if waiting:
            self._write_table(chosen, pa.Table.from_batches(waiting))

    def _write_table(self, chosen: _Open, table: pa.Table) -> None:
        import pyarrow as pa

        writer = chosen.writer or self._create(chosen, table.schema)
        writer.write_table(table)
        chosen.rows += table.num_rows
        for name in _COUNTED:
            values = table.column(name).cast(pa.int64()).to_numpy()
            low, high = int(values.min()), int(values.max())
            if name == "timestamp":
                low, high = low // 1000, -(-high // 1000)
            chosen.lowest[name] = min(chosen.lowest.get(name, low), low)
            chosen.highest[name] = max(chosen.highest.get(name, high), high)

    def _create(self, chosen: _Open, schema: pa.Schema) -> pq.ParquetWriter:
        import pyarrow.parquet as pq

        url = join(self._url, chosen.path)
        if is_remote(url):
            filesystem, path = filesystem_of(url)
            make_parent(filesystem, path)
            chosen.file = filesystem.open(path, "wb")
        else:
            target = local_path(url)
            target.parent.mkdir(parents=True, exist_ok=True)
            chosen.file = target.open("wb")
        chosen.writer = pq.ParquetWriter(
            chosen.file,
            schema,
            compression="snappy",
            use_dictionary=_FEW_VALUES,
            write_statistics=_COUNTED,
            write_page_checksum=True,
        )
        return chosen.writer

    def _close(self, chosen: _Open) -> None:
        if is_remote(self._url):
            chosen.file.close()
            return
        chosen.file.flush()
        os.fsync(chosen.file.fileno())
        chosen.file.close()
        # Sync the directory, too: retention relies on this job's result and deletes the log.
        folder = (local_path(self._url) / chosen.path).parent
        sync(folder, folder.parent, folder.parent.parent)


def _with_heads(batch: pa.RecordBatch, records: Records, positions: Ints) -> pa.RecordBatch:
    """The batch with two more columns from the records: the flag and the producer's host, as stored."""
    import pyarrow as pa

    flags = records.ints(positions + _FLAG_AT).astype(np.int32)
    is_v6 = records.ints(positions + _SYS_FLAG_AT) & BORN_HOST_V6 != 0
    lengths = np.where(is_v6, 20, 8).astype(np.int32)
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    # Every byte of every host, in order.
    places = np.repeat(positions + _BORN_HOST_AT - offsets[:-1], lengths) + np.arange(offsets[-1])
    hosts = records.bytes[places]
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(hosts)]
    batch = batch.append_column("flag", pa.array(flags))
    return batch.append_column("bornHost", pa.Array.from_buffers(pa.binary(), len(positions), buffers))


def _adjacent_groups(positions: Ints) -> Iterator[Ints]:
    """Groups of adjacent records, because Arrow reserves memory for the whole range that a gather spans."""
    first = 0
    while first < len(positions):
        last = max(first + 1, int(positions.searchsorted(positions[first] + SPAN_BYTES)))
        yield positions[first:last]
        first = last


def _date(day: int) -> str:
    return str(np.datetime64(day, "D"))
