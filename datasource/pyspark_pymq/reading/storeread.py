"""``option("store", directory)``: a CommitLog as a DataFrame, without a broker. One segment is one task."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from mqspark.arrow.reading.segmentread import SegmentRange, read_segment, segments_of
from pyspark_pymq.options import StoreOptions

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass
class SegmentPartition(InputPartition):  # type: ignore[misc]
    segment: SegmentRange


class StoreBatchReader(DataSourceReader):  # type: ignore[misc]
    def __init__(self, options: StoreOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns

    def partitions(self) -> list[SegmentPartition]:
        return [SegmentPartition(each) for each in segments_of(self._options)]

    def read(self, partition: SegmentPartition | None) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, SegmentPartition):
            return iter(())
        return read_segment(partition.segment, self._options, self._columns)
