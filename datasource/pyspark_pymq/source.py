"""The class that Spark instantiates: a factory of readers and writers. Heavy imports are deferred until one is
needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from pyspark_pymq.options import ReadOptions
    from pyspark_pymq.reading.batch import BatchReader
    from pyspark_pymq.reading.keyread import KeyReader
    from pyspark_pymq.reading.storeread import StoreBatchReader
    from pyspark_pymq.reading.stream import CheckpointedReader
    from pyspark_pymq.writing.sink import BatchWriter, StreamWriter

__all__ = ["DefaultSource"]

PAYLOAD_COLUMNS = ("offset", "value")
"""The columns to read of messages whose bodies contain the rows."""


class DefaultSource(DataSource):  # type: ignore[misc]
    """``format("pymq")``. Options: ``pyspark_pymq.options``; columns: ``pyspark_pymq.schema``.

    There is no ``pushFilters``, because with it Spark 4.1 to 4.3 return wrong rows when one ``load()`` is used
    twice. ``tags`` and ``sqlFilter`` are options.
    """

    @classmethod
    def name(cls) -> str:
        return "pymq"

    def schema(self) -> str | StructType:
        from pyspark_pymq.options import asked_columns
        from pyspark_pymq.schema import default_schema

        if self._payload_is_arrow() and "store" not in self.options:
            from pyspark_pymq.cluster.payload import newest_schema, spark_schema_of

            found = spark_schema_of(newest_schema(self._read_options()))
            # A column that is never null in the newest message may be missing in an older one.
            nullable: StructType = found.toNullable()
            return nullable
        return default_schema(*asked_columns(self.options))

    def reader(self, schema: StructType) -> BatchReader | StoreBatchReader | KeyReader:
        from pyspark_pymq.options import ReadOptions, StoreOptions
        from pyspark_pymq.schema import selected_columns

        if "store" in self.options:
            from pyspark_pymq.reading.storeread import StoreBatchReader

            store = StoreOptions.parse(self.options, streaming=False)
            return StoreBatchReader(store, selected_columns(schema))
        if self._payload_is_arrow():
            from pyspark_pymq.cluster.payload import arrow_schema_of
            from pyspark_pymq.reading.batch import BatchReader

            options = ReadOptions.parse(self.options, streaming=False)
            return BatchReader(options, PAYLOAD_COLUMNS, arrow_schema_of(schema))
        columns = selected_columns(schema)
        options = ReadOptions.parse(self.options, streaming=False)
        if options.keys:
            from pyspark_pymq.reading.keyread import KeyReader

            return KeyReader(options, columns)
        from pyspark_pymq.reading.batch import BatchReader

        return BatchReader(options, columns)

    def streamReader(self, schema: StructType) -> CheckpointedReader:
        from pyspark_pymq.options import ReadOptions, StoreOptions
        from pyspark_pymq.reading.stream import stream_reader
        from pyspark_pymq.schema import selected_columns

        if "store" in self.options:
            StoreOptions.parse(self.options, streaming=True)
        options = ReadOptions.parse(self.options, streaming=True)
        if options.payload_is_arrow:
            from pyspark_pymq.cluster.payload import arrow_schema_of

            return stream_reader(options, PAYLOAD_COLUMNS, arrow_schema_of(schema))
        return stream_reader(options, selected_columns(schema))

    def _payload_is_arrow(self) -> bool:
        return str(self.options.get("payloadFormat", "")).strip().lower() == "arrow"

    def _read_options(self) -> ReadOptions:
        """Used to query the cluster before Spark says whether this is a batch or a stream."""
        from pyspark_pymq.options import ReadOptions

        names = (
            "nameserver",
            "topic",
            "topics",
            "subscribe",
            "topicPattern",
            "subscribePattern",
            "assign",
            "path",
        )
        wanted = {name: self.options[name] for name in names if name in self.options}
        return ReadOptions.parse(wanted, streaming=False)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        from mqspark.client.blocking import meet
        from pyspark_pymq.options import WriteOptions
        from pyspark_pymq.writing.sink import BatchWriter

        options = WriteOptions.parse(self.options)
        writer = BatchWriter(options, schema, overwrite)
        meet(options.nameserver)
        return writer

    # Spark passes this by position when planning and by keyword when committing: the names are part of the
    # interface.
    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        from pyspark_pymq.options import WriteOptions
        from pyspark_pymq.writing.sink import StreamWriter

        return StreamWriter(WriteOptions.parse(self.options), schema, overwrite)
