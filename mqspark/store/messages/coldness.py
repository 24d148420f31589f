"""How much of what is read has to come from the disk, for the flow control of such reads
(CommitLog.ColdDataCheckService).

What lies farther behind the end of the log than the hot part of memory reaches is cold. With coldDataScanEnable the
kernel is asked whether a record is in memory after all, at each read. (RocketMQ looks at a sample of all pages once a
minute.)
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from mqspark.store.config import StoreConfig
from mqspark.store.disk.residency import are_resident
from mqspark.store.log.commitlog import MAX_COPY_BYTES, CommitLog

Int64s = npt.NDArray[np.int64]
Entries = npt.NDArray[Any]
"""Entries of a queue of either kind: position and size of each record."""


class Coldness:
    def __init__(self, config: StoreConfig, log: CommitLog, memory_bytes: int) -> None:
        self._config = config
        self._log = log
        self._memory_bytes = memory_bytes

    def _before(self) -> int:
        """The log position before which records are cold."""
        return (
            self._log.position - self._memory_bytes * self._config.access_message_in_memory_hot_ratio // 100
        )

    def has(self, entries: Entries) -> bool:
        """Whether the first of the entries is of a cold record, whatever the kernel says."""
        return len(entries) > 0 and int(entries["position"][0]) < self._before()

    def sizes(self, entries: Entries) -> Int64s | None:
        """For each record its size if it is cold, else 0; None if none is, or nobody wants to know. To be asked before
        the records are read."""
        if not self._config.cold_data_flow_control_enable or not self.has(entries):
            return None
        positions = entries["position"].astype(np.int64)
        sizes: Int64s = np.clip(entries["size"].astype(np.int64), 0, MAX_COPY_BYTES)
        sizes[(positions >= self._before()) | (positions < self._log.min_offset)] = 0
        if self._config.cold_data_scan_enable:
            self._ask(positions, sizes)
        return sizes

    def _ask(self, positions: Int64s, sizes: Int64s) -> None:
        """Set the sizes of records in memory to 0. What cannot be asked counts as in memory."""
        left = np.flatnonzero(sizes)
        left = left[np.argsort(positions[left], kind="stable")]
        while len(left):
            segment = self._log.segment_of(int(positions[left[0]]))
            count = 0
            if segment is not None:
                count = int(positions[left].searchsorted(segment.start + segment.length))
            inside, left = left[: max(1, count)], left[max(1, count) :]
            view = self._log.mapped(segment) if segment is not None and count else None
            if segment is None or view is None:
                sizes[inside] = 0
            else:
                sizes[inside[are_resident(view, positions[inside] - segment.start)]] = 0
