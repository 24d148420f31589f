"""The class that Spark instantiates: a factory of readers and writers. Heavy imports are deferred until one is
needed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from mqspark.errors import ConfigError
from pyspark_pymq.watching import end_with_spark

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from pyspark_pymq.options import ReadOptions
    from pyspark_pymq.reading.batch import BatchReader
    from pyspark_pymq.reading.keyread import KeyReader
    from pyspark_pymq.reading.storeread import StoreBatchReader
    from pyspark_pymq.reading.stream import CheckpointedStreamReader, RefusedStreamReader
    from pyspark_pymq.typed.arrowrows import ArrowRows
    from pyspark_pymq.typed.typedcolumns import TypedRows
    from pyspark_pymq.work.deadbodies import DeadBodies
    from pyspark_pymq.writing.sink import BatchWriter, StreamWriter

# Here, because Spark has processes that only look up or make a source, keeps them for more, and ends them like others.
end_with_spark()


class DefaultSource(DataSource):  # type: ignore[misc]
    """``format("pymq")``. Options: ``pyspark_pymq.options``; columns: ``pyspark_pymq.schema``.

    There is no ``pushFilters``, because with it Spark 4.1 to 4.3 return wrong rows when one ``load()`` is used
    twice. ``tags`` and ``sqlFilter`` are options.
    """

    @classmethod
    def name(cls) -> str:
        return "pymq"

    def schema(self) -> StructType | str:
        from mqspark.arrow.messagecolumns import COLUMNS
        from pyspark_pymq.catalog import options_of_created, with_options
        from pyspark_pymq.options import ReadOptions, StoreOptions, columns_of
        from pyspark_pymq.optiontexts import OptionTexts
        from pyspark_pymq.payloadoptions import ARROW, PayloadOptions, payload_format
        from pyspark_pymq.schema import spark_schema

        saved = options_of_created(self.options)
        options = self.options if saved is None else saved
        if saved is not None:
            # Refused now instead of by the table's first query.
            (StoreOptions if "store" in saved else ReadOptions).parse(saved, streaming=False)
        payload = None if "store" in options else PayloadOptions.parse(OptionTexts(options))
        if payload is not None:
            from pyspark_pymq.typed.typedcolumns import columns_of_source

            if saved is not None:
                raise ConfigError.of(
                    "payloadFormat", "a table has the columns of messages; make a view of a read"
                )
            return columns_of_source(payload, columns_of(options), _one_topic(options))
        if "store" not in options and payload_format(OptionTexts(options)) == ARROW:
            columns = _payload_columns(options)
        else:
            columns = spark_schema(COLUMNS, columns_of(options))
        return columns if saved is None else with_options(columns, saved)

    def reader(self, schema: StructType) -> BatchReader | StoreBatchReader | KeyReader:
        from pyspark_pymq.catalog import options_of_read
        from pyspark_pymq.options import ReadOptions, StoreOptions
        from pyspark_pymq.optiontexts import OptionTexts
        from pyspark_pymq.payloadoptions import RAW, payload_format

        given = options_of_read(self.options, schema)
        if "store" in given:
            from pyspark_pymq.reading.storeread import StoreBatchReader

            store = StoreOptions.parse(given, streaming=False)
            return StoreBatchReader(store, _selected(given, schema))
        if payload_format(OptionTexts(given)) != RAW:
            from pyspark_pymq.reading.batch import BatchReader

            options = ReadOptions.parse(given, streaming=False)
            payload = _payload(given, options, schema)
            return BatchReader(options, payload.columns, payload)
        columns = _selected(given, schema)
        options = ReadOptions.parse(given, streaming=False)
        if options.keys:
            from pyspark_pymq.reading.keyread import KeyReader

            return KeyReader(options, columns)
        from pyspark_pymq.reading.batch import BatchReader

        return BatchReader(options, columns)

    def streamReader(self, schema: StructType) -> CheckpointedStreamReader | RefusedStreamReader:
        """Never raises: Spark would show an error of its own (``RefusedStreamReader``)."""
        try:
            return self._stream_reader(schema)
        except Exception as error:
            from pyspark_pymq.reading.stream import RefusedStreamReader

            return RefusedStreamReader(error)

    def _stream_reader(self, schema: StructType) -> CheckpointedStreamReader:
        from pyspark_pymq.catalog import options_of_read
        from pyspark_pymq.options import ReadOptions, StoreOptions
        from pyspark_pymq.reading.stream import stream_reader

        given = options_of_read(self.options, schema)
        if "store" in given:
            StoreOptions.parse(given, streaming=True)
        options = ReadOptions.parse(given, streaming=True)
        if options.payload_is_arrow or options.payload is not None:
            payload = _payload(given, options, schema)
            return stream_reader(options, payload.columns, payload)
        return stream_reader(options, _selected(given, schema))

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        from pyspark_pymq.options import WriteOptions
        from pyspark_pymq.writing.sink import BatchWriter

        return BatchWriter(WriteOptions.parse(self.options), schema, overwrite)

    # Spark passes this by position when planning and by keyword when committing: the names are part of the
    # interface.
    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        from pyspark_pymq.options import WriteOptions
        from pyspark_pymq.writing.sink import StreamWriter

        return StreamWriter(WriteOptions.parse(self.options), schema, overwrite)


def _selected(options: Mapping[str, str], schema: StructType) -> tuple[str, ...]:
    """The columns to read. Raises ConfigError if ``.schema(...)``, or a table, contradicts the option."""
    from pyspark_pymq.options import columns_of
    from pyspark_pymq.schema import selected_columns

    columns = selected_columns(schema)
    if "columns" in options and columns != (chosen := columns_of(options)):
        raise ConfigError.of(
            "columns",
            f"selects {', '.join(chosen)}, but .schema(...) or the table has {', '.join(columns)}; give one "
            "of them",
        )
    return columns


def _payload(given: Mapping[str, str], options: ReadOptions, schema: StructType) -> ArrowRows | TypedRows:
    """What makes rows of messages. Raises ConfigError."""
    from pyspark_pymq.options import columns_of
    from pyspark_pymq.payloadoptions import DEADLETTER

    if options.payload is not None:
        from pyspark_pymq.typed.typedcolumns import TypedRows

        dead = _dead_bodies(options) if options.payload.mode == DEADLETTER else None
        return TypedRows.planned(options.payload, columns_of(given), schema, _one_topic(given), dead)
    from pyspark_pymq.typed.arrowrows import ArrowRows, arrow_schema_of

    return ArrowRows(arrow_schema_of(schema), options.fail_on_data_loss, options.limits)


def _dead_bodies(options: ReadOptions) -> DeadBodies | None:
    from pyspark_pymq.work.deadbodies import DeadBodies

    return None if options.group is None else DeadBodies.of(options, options.group)


def _one_topic(options: Mapping[str, str]) -> str | None:
    """The topic, if one is read."""
    from pyspark_pymq.optiontexts import OptionTexts

    names = OptionTexts(options).topics().names
    return names[0] if len(names) == 1 else None


def _payload_columns(options: Mapping[str, str]) -> StructType:
    """The columns of the newest message. Asks the cluster before Spark says whether this is a batch or a stream."""
    from pyspark_pymq.options import ReadOptions
    from pyspark_pymq.optiontexts import OptionTexts
    from pyspark_pymq.typed.arrowrows import newest_schema, spark_schema_of

    names = (
        "nameserver",
        "topic",
        "topics",
        "subscribe",
        "topicPattern",
        "subscribePattern",
        "assign",
        "path",
        "accessKey",
        "secretKey",
        "securityToken",
        "credentialsFile",
    )
    texts = OptionTexts(options)
    texts.nameserver()
    texts.topics()  # what is missing is said with all options in view
    selection = {name: options[name] for name in names if name in options}
    found = spark_schema_of(newest_schema(ReadOptions.parse(selection, streaming=False)))
    # A column that is never null in the newest message may be missing in an older one.
    nullable: StructType = found.toNullable()
    return nullable
