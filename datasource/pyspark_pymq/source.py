"""What Spark instantiates: a factory of readers and writers. Heavy imports wait until one is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from pyspark_pymq.reader import BatchReader
    from pyspark_pymq.sink import BatchWriter, StreamWriter
    from pyspark_pymq.stream import CheckpointedReader

__all__ = ["DefaultSource"]


class DefaultSource(DataSource):  # type: ignore[misc]
    """``format("pymq")``. Options: ``pyspark_pymq.options``; columns: ``pyspark_pymq.schema``.

    There is no ``pushFilters`` and there will be none: Spark 4.1 to 4.3 return wrong rows with it when one ``load()``
    is used twice (reference spark-datasource §4). ``tags`` is an option.
    """

    @classmethod
    def name(cls) -> str:
        return "pymq"

    def schema(self) -> str:
        from pyspark_pymq.options import ReadOptions
        from pyspark_pymq.schema import default_schema

        include = self.options.get("includeProperties", "false")
        if include.strip().lower() not in ("true", "false"):
            ReadOptions.parse(self.options, streaming=False)
        return default_schema(include.strip().lower() == "true")

    def reader(self, schema: StructType) -> BatchReader:
        from pyspark_pymq.options import ReadOptions
        from pyspark_pymq.reader import BatchReader
        from pyspark_pymq.schema import selected_columns

        return BatchReader(ReadOptions.parse(self.options, streaming=False), selected_columns(schema))

    def streamReader(self, schema: StructType) -> CheckpointedReader:
        from pyspark_pymq.options import ReadOptions
        from pyspark_pymq.schema import selected_columns
        from pyspark_pymq.stream import stream_reader

        return stream_reader(ReadOptions.parse(self.options, streaming=True), selected_columns(schema))

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        from pyspark_pymq.options import WriteOptions
        from pyspark_pymq.sink import BatchWriter

        return BatchWriter(WriteOptions.parse(self.options), schema, overwrite)

    # Spark calls this by position when it plans and by keyword when it commits: the names are part of the interface.
    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        from pyspark_pymq.options import WriteOptions
        from pyspark_pymq.sink import StreamWriter

        return StreamWriter(WriteOptions.parse(self.options), schema, overwrite)
