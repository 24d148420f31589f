"""Settings of a session change what texts, types and Arrow batches mean; source, sink, streams, work queues and jobs do
the same under all of them."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType, TimestampNTZType

from mqspark.errors import ConfigError
from mqspark.message import Message, dlq_topic
from pyspark_pymq import WorkQueue
from pyspark_pymq.reading.stream import ADMISSION_CONTROL
from pyspark_pymq.schema import COLUMNS, selected_columns, spark_schema
from pyspark_pymq.work.outcome import MESSAGE, outcome_columns
from tests.support.dev import DevCluster

pytestmark = pytest.mark.spark

STRICT = {
    "spark.sql.ansi.enabled": "true",
    "spark.sql.ansi.doubleQuotedIdentifiers": "true",
    "spark.sql.ansi.enforceReservedKeywords": "true",
    "spark.sql.caseSensitive": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "2",
    "spark.sql.execution.arrow.useLargeVarTypes": "true",
    "spark.sql.execution.pyspark.binaryAsBytes": "false",
    "spark.sql.parquet.binaryAsString": "true",
    "spark.sql.parquet.int96AsTimestamp": "false",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.preserveCharVarcharTypeInfo": "true",
    "spark.sql.session.timeZone": "America/St_Johns",
    "spark.sql.timestampType": "TIMESTAMP_NTZ",
}
LENIENT = {
    "spark.sql.ansi.enabled": "false",
    "spark.sql.execution.pythonUDF.arrow.enabled": "true",
    "spark.sql.legacy.allowHashOnMapType": "true",
    "spark.sql.legacy.castComplexTypesToString.enabled": "true",
    "spark.sql.legacy.charVarcharAsString": "true",
    "spark.sql.legacy.sizeOfNull": "true",
    "spark.sql.legacy.timeParserPolicy": "LEGACY",
    "spark.sql.legacy.literal.pickMinimumPrecision": "false",
    "spark.sql.mapKeyDedupPolicy": "LAST_WIN",
    "spark.sql.parser.escapedStringLiterals": "true",
    "spark.sql.parser.quotedRegexColumnNames": "true",
    "spark.sql.parquet.inferTimestampNTZ.enabled": "false",
    "spark.sql.session.timeZone": "+05:45",
    "spark.sql.storeAssignmentPolicy": "LEGACY",
}


@pytest.fixture
def session(request: pytest.FixtureRequest, spark: SparkSession) -> SparkSession:
    session = spark.newSession()
    for name, value in request.param.items():
        session.conf.set(name, value)
    return session


def everything(frame: DataFrame) -> list[tuple[object, ...]]:
    rows = (
        frame.select("key", "value", "offset", "timestamp", "tags", "properties").orderBy("offset").collect()
    )
    return [
        (
            row.key,
            bytes(row.value),
            row.offset,
            row.timestamp.astimezone(datetime.UTC),
            row.tags,
            row.properties,
        )
        for row in rows
    ]


@pytest.mark.parametrize("session", [STRICT, LENIENT], indirect=True, ids=["strict", "lenient"])
def test_a_read_a_stream_and_a_write(
    session: SparkSession, spark: SparkSession, cluster: DevCluster, topic: str, tmp_path: Path
) -> None:
    target = cluster.create_topic(f"{topic}-out", 1)
    before = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=5)
    cluster.send(topic, 0, [Message.of(topic, b"\xff%d" % n, keys=f"k{n}", tags="t") for n in range(5)])
    options = {"nameserver": cluster.nameserver, "columns": ",".join(COLUMNS)}
    plain = spark.read.format("pymq").options(**options).load(topic)
    batch = session.read.format("pymq").options(**options).load(topic)
    assert batch.schema == plain.schema == spark_schema(COLUMNS)
    expected = everything(plain)
    assert [row[1] for row in expected] == [b"\xff%d" % n for n in range(5)]
    assert everything(batch) == expected
    assert all(isinstance(row[3], datetime.datetime) and row[3] > before for row in expected)
    stream = session.readStream.format("pymq").options(**options, startingOffsets="earliest").load(topic)
    written = stream.drop("topic", "partition").writeStream.format("pymq").trigger(availableNow=True)
    written = written.option("checkpointLocation", str(tmp_path / "checkpoint"))
    written.options(nameserver=cluster.nameserver, topic=target).start().awaitTermination(120)
    again = everything(session.read.format("pymq").options(**options).load(target))
    assert [(row[0], row[1], row[4]) for row in again] == [(row[0], row[1], row[4]) for row in expected]
    is_kept = session.conf.get("spark.sql.preserveCharVarcharTypeInfo") == "true"
    kinds = "key varchar(3), value char(1)" if is_kept else "key string, value string"
    texts = session.createDataFrame([("a", "x")], kinds)
    texts.write.format("pymq").options(nameserver=cluster.nameserver, topic=target).mode("append").save()
    assert everything(session.read.format("pymq").options(**options).load(target))[-1][:2] == ("a", b"x")


@pytest.mark.skipif(not ADMISSION_CONTROL, reason="needs Spark 4.2")
@pytest.mark.parametrize(
    ("session", "form"),
    [(STRICT, "map"), (LENIENT, "transform")],
    indirect=["session"],
    ids=["map", "transform"],
)
def test_a_work_queue(
    session: SparkSession, cluster: DevCluster, topic: str, tmp_path: Path, form: str
) -> None:
    cluster.send(topic, 0, [Message.of(topic, str(n), keys=f"k{n}") for n in range(3)])
    group = f"settings-{topic}"[:60]
    queue = WorkQueue(session, nameserver=cluster.nameserver, topic=topic, group=group, max_attempts=1)
    seen: list[tuple[object, ...]] = []

    def sink(results: DataFrame, batch: int) -> None:
        seen.extend((row.body, row.at.astimezone(datetime.UTC)) for row in results.collect())

    moment = datetime.datetime(2026, 1, 2, 3, 4, 5, 678901, datetime.UTC)

    def called(message: object) -> dict[str, object]:
        body = bytes(message.value).decode()  # type: ignore[attr-defined]
        if body == "1":
            raise ValueError("one")
        return {"body": body, "at": moment}

    def transformed(messages: DataFrame) -> DataFrame:
        from pyspark.sql import functions as f

        body = f.col("value").cast("string")
        return messages.select(
            "message",
            body.alias("body"),
            f.lit(moment).alias("at"),
            f.when(body == "1", "one").alias("error"),
        )

    settings = {"sink": sink, "checkpoint": str(tmp_path / "work"), "trigger": {"availableNow": True}}
    if form == "map":
        query = queue.map(called, "body string, at timestamp_ltz", **settings)  # type: ignore[arg-type]
    else:
        query = queue.transform(transformed, **settings)  # type: ignore[arg-type]
    assert query.awaitTermination(120)
    assert sorted(seen) == [("0", moment), ("2", moment)]
    cluster.send(
        dlq_topic(group),
        0,
        [
            Message.of(
                dlq_topic(group),
                b"forged",
                properties={"MQSPARK_FAILED_ATTEMPT": "many", "MQSPARK_FAILED_AT_MS": "9" * 18},
            )
        ],
    )
    dead, forged = queue.dead_letters().orderBy("offset").collect()
    assert (dead.errorText, dead.attempt, dead.batch, bytes(dead.value)) == ("one", 1, 0, b"1")
    assert dead.failedAt.year > 2000
    assert (forged.attempt, forged.failedAt) == (None, None)


def test_a_column_of_another_type_by_the_session() -> None:
    with pytest.raises(
        ConfigError, match=r"timestamp_ntz; write timestamp_ltz: spark\.sql\.timestampType says"
    ):
        selected_columns(StructType().add("timestamp", TimestampNTZType()))
    assert selected_columns(spark_schema(COLUMNS)) == tuple(COLUMNS)
    assert outcome_columns(None)["message"].dataType == spark_schema(MESSAGE)
