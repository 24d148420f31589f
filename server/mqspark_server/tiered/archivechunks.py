"""Chunks: archived messages in files of a local cache, encoded as records of the log.

    NAME.entries   40 bytes per message (little-endian), sorted by queue and offset: ENTRY
    NAME.records   the records, at the positions in the entries

A chunk has every archived message of each of its queues between the first and the last one in the chunk. The process
that reads the archive writes chunks; the broker maps them. They are not part of the store and may be removed at any
time.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from mqspark.errors import StoreCorrupt
from mqspark.store.messages.fetch import GetResult, GetStatus

ENTRY = np.dtype(
    [
        ("queue_id", "<i4"),
        ("size", "<i4"),
        ("offset", "<i8"),
        ("position", "<i8"),
        ("tags_code", "<i8"),
        ("stored_ms", "<i8"),
    ]
)


class ChunkWriter:
    """Writes one chunk. ``add`` takes messages in any order of queues; those of one queue ascend."""

    def __init__(self, directory: Path, name: str) -> None:
        self._directory = directory
        self._name = name
        self._entries: list[tuple[int, int, int, int, int, int]] = []
        self._records: IO[bytes] = (directory / f"{name}.records").open("xb")
        self.size_bytes = 0

    def add(self, queue_id: int, offset: int, tags_code: int, stored_ms: int, record: bytes) -> None:
        self._entries.append((queue_id, len(record), offset, self.size_bytes, tags_code, stored_ms))
        self._records.write(record)
        self.size_bytes += len(record)

    def finish(self) -> npt.NDArray[Any]:
        """Complete both files; returns the entries. Raises StoreCorrupt when an offset occurs twice."""
        self._records.close()
        entries = np.array(self._entries, ENTRY)
        entries = entries[np.lexsort((entries["offset"], entries["queue_id"]))]
        same_queue = entries["queue_id"][1:] == entries["queue_id"][:-1]
        if bool((same_queue & (entries["offset"][1:] == entries["offset"][:-1])).any()):
            raise StoreCorrupt("an offset of a queue is in the archive twice", path=self._name, offset=0)
        (self._directory / f"{self._name}.entries").write_bytes(entries.tobytes())
        return entries

    def abandon(self) -> None:
        self._records.close()
        for suffix in ("records", "entries"):
            (self._directory / f"{self._name}.{suffix}").unlink(missing_ok=True)


class ArchiveChunk:
    """A complete chunk, mapped. Its files are removed when it leaves the cache; views of it stay valid."""

    def __init__(self, directory: Path, name: str) -> None:
        """Raises OSError, StoreCorrupt."""
        self._paths = tuple(directory / f"{name}.{suffix}" for suffix in ("entries", "records"))
        entries, self._records = (_mapped(path) for path in self._paths)
        self.size_bytes = len(entries) + len(self._records)
        self._entries: npt.NDArray[Any] = np.frombuffer(
            entries[: len(entries) // ENTRY.itemsize * ENTRY.itemsize], ENTRY
        )
        ends = self._entries["position"] + self._entries["size"]
        if (
            not len(self._entries)
            or int(ends.max()) > len(self._records)
            or int(self._entries["size"].min()) <= 0
        ):
            raise StoreCorrupt(f"{self._paths[0]} does not match its records", path=name, offset=0)
        queue_ids, firsts = np.unique(self._entries["queue_id"], return_index=True)
        bounds = [*firsts.tolist(), len(self._entries)]
        self.rows = {
            int(queue_id): (bounds[place], bounds[place + 1])
            for place, queue_id in enumerate(queue_ids.tolist())
        }
        """Queue id → the range of its entries."""

    def offsets(self, queue_id: int) -> tuple[int, int]:
        """The first offset of a queue in this chunk, and the offset after its last."""
        low, high = self.rows[queue_id]
        return int(self._entries["offset"][low]), int(self._entries["offset"][high - 1]) + 1

    def get(
        self,
        queue_id: int,
        offset: int,
        min_offset: int,
        max_offset: int,
        max_messages: int,
        max_bytes: int,
        max_examined: int,
        tag_codes: frozenset[int] | None,
    ) -> tuple[GetResult, float]:
        """The messages from ``offset`` on, and the fraction of the queue's messages in this chunk that were read after
        them."""
        low, high = self.rows[queue_id]
        rows = self._entries[low:high]
        first = int(rows["offset"].searchsorted(offset))
        window = rows[first : first + (max(max_messages, max_examined) if tag_codes else max_messages)]
        chosen = window
        places = np.arange(len(window))
        if tag_codes:
            places = np.flatnonzero(np.isin(window["tags_code"], np.fromiter(tag_codes, np.int64)))
            chosen = window[places][:max_messages]
        sizes = chosen["size"].astype(np.int64)
        count = max(1, int(sizes.cumsum().searchsorted(max_bytes, "right"))) if len(chosen) else 0
        if count < len(chosen):
            next_offset = int(chosen["offset"][count])
        elif len(chosen) < len(places):
            next_offset = int(window["offset"][places[len(chosen)]])
        else:
            next_offset = int(window["offset"][-1]) + 1
        buffers = self._runs(chosen[:count])
        status = GetStatus.FOUND if count else GetStatus.NO_MATCHED_MESSAGE
        size_bytes = sum(map(len, buffers))
        read = (first + len(window)) / len(rows)
        return GetResult(status, next_offset, min_offset, max_offset, buffers, count, size_bytes), read

    def _runs(self, chosen: npt.NDArray[Any]) -> list[memoryview]:
        runs: list[list[int]] = []
        for position, size in zip(chosen["position"].tolist(), chosen["size"].tolist(), strict=True):
            if runs and runs[-1][1] == position:
                runs[-1][1] = position + size
            else:
                runs.append([position, position + size])
        return [self._records[low:high] for low, high in runs]

    def remove(self) -> None:
        for path in self._paths:
            path.unlink(missing_ok=True)


def _mapped(path: Path) -> memoryview:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return memoryview(mmap.mmap(fd, 0, prot=mmap.PROT_READ))
    except ValueError:
        raise StoreCorrupt(f"{path} is empty", path=str(path), offset=0) from None
    finally:
        os.close(fd)
