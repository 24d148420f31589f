"""``option("key", ...)``: the messages of a topic with certain keys, found by the brokers' index."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from mqspark.arrow.cluster.cluster_queues import ClusterQueues
from mqspark.arrow.reading.keyfetch import KeyLookup, plan_lookups, read_lookup
from pyspark_pymq.options import ReadOptions

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass
class LookupPartition(InputPartition):  # type: ignore[misc]
    lookup: KeyLookup


class KeyReader(DataSourceReader):  # type: ignore[misc]
    def __init__(self, options: ReadOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns

    def partitions(self) -> list[LookupPartition]:
        cluster = ClusterQueues(self._options)
        try:
            return [LookupPartition(each) for each in plan_lookups(cluster, self._options)]
        finally:
            cluster.client.close()

    def read(self, partition: LookupPartition | None) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, LookupPartition):
            return iter(())
        return read_lookup(partition.lookup, self._options, self._columns)
