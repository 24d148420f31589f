"""payloadFormat=json, avro and protobuf: the fields of bodies as columns beside those of the messages."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import timestamp_pb2
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import LongType, StructType

from mqspark.message import Message
from pyspark_pymq.source import DefaultSource
from tests.support.dev import DevCluster
from tests.unit.arrow.bodies_kit import avro_body, record

pytestmark = pytest.mark.spark

BAD = b'{"id":"3"}'
WHY = "Expected `int | null`, got `str` - at `$.id`"
ORDER = record(
    id="long",
    lines={
        "type": "array",
        "items": {"type": "record", "name": "Line", "fields": [{"name": "n", "type": "int"}]},
    },
    price=["null", {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}],
    at={"type": "long", "logicalType": "timestamp-millis"},
    tags=({"type": "map", "values": "string"}, {}),
)


def send(cluster: DevCluster, topic: str, *bodies: bytes) -> None:
    cluster.send(topic, 0, [Message.of(topic, body, keys=f"k{at}") for at, body in enumerate(bodies)])


def load(
    spark: SparkSession, cluster: DevCluster, topic: str, schema: str | None = None, **options: str
) -> DataFrame:
    reader = spark.read.format("pymq").option("nameserver", cluster.nameserver).options(**options)
    return (reader.schema(schema) if schema else reader).load(topic)


def rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, frame.collect()), key=str)


def test_json_beside_the_columns_of_the_message(
    spark: SparkSession, cluster: DevCluster, topic: str, tmp_path: Path
) -> None:
    send(cluster, topic, b'{"id":1,"inner":{"a":[1,null]},"m":{"x":true}}', b'{"id":2,"more":1}', BAD)
    ddl = "id bigint, inner struct<a:array<int>>, m map<string,boolean>"
    frame = load(
        spark, cluster, topic, payloadFormat="json", payloadSchema=ddl, columnNameOfCorruptRecord="why"
    )
    assert frame.columns == [
        "key",
        "topic",
        "partition",
        "offset",
        "timestamp",
        "tags",
        "id",
        "inner",
        "m",
        "why",
    ]
    assert rows(frame.select("key", "offset", "id", "inner.a", "m", "why")) == [
        ("k0", 0, 1, [1, None], {"x": True}, None),
        ("k1", 1, 2, None, None, None),
        ("k2", 2, None, None, None, WHY),
    ]
    named = {
        "payloadFormat": "json",
        "columns": "offset,value",
        "messagePrefix": "mq_",
        "mode": "DROPMALFORMED",
    }
    found = load(spark, cluster, topic, "offset string, mq_value binary, mq_offset bigint, id int", **named)
    assert rows(found.select("mq_offset", "id", "offset", "mq_value"))[1] == (
        1,
        2,
        None,
        b'{"id":2,"more":1}',
    )
    assert found.count() == 2
    with pytest.raises(Exception, match=rf"message at offset 2 of queue 0 of {topic}: .*id.*mode=PERMISSIVE"):
        load(spark, cluster, topic, "id int", payloadFormat="json", mode="FAILFAST").collect()
    stream = spark.readStream.format("pymq").options(
        nameserver=cluster.nameserver,
        topic=topic,
        startingOffsets="earliest",
        payloadFormat="json",
        payloadSchema=ddl,
    )
    writer = (
        stream.load()
        .select("offset", "id")
        .writeStream.format("parquet")
        .option("path", str(tmp_path / "out"))
    )
    query = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    assert rows(spark.read.parquet(str(tmp_path / "out"))) == [(0, 1), (1, 2), (2, None)]


def test_bad_bodies_of_a_stream_are_dead_letters_of_its_group(cluster: DevCluster, topic: str) -> None:
    """The reader as Spark calls it; a task that runs again sends its dead letters again."""
    send(cluster, topic, b'{"id":1}', BAD, b'{"id":2}')
    group = f"{topic}-readers"
    options = {"nameserver": cluster.nameserver, "topic": topic, "startingOffsets": "earliest"}
    options |= {"payloadFormat": "json", "mode": "DEADLETTER", "group": group}
    reader = DefaultSource(options).streamReader(StructType().add("offset", LongType()).add("id", LongType()))
    worker = pickle.loads(pickle.dumps(reader))  # noqa: S301 - as Spark hands it to a worker
    start = reader.initialOffset()
    reader.commit(start)  # publishes the group
    end = reader.latestOffset(start, ReadAllAvailable())
    for _ in range(2):
        read = [batch for part in reader.partitions(start, end) for batch in worker.read(part)]
        assert [row for batch in read for row in batch.to_pylist()] == [
            {"offset": 0, "id": 1},
            {"offset": 2, "id": 2},
        ]
    reader.stop()
    assert [body for bodies in cluster.queue_bodies(f"%DLQ%{group}").values() for body in bodies] == [BAD] * 2


def test_avro_by_a_schema_in_a_file(
    spark: SparkSession, cluster: DevCluster, topic: str, tmp_path: Path
) -> None:
    order = {
        "id": 7,
        "lines": [{"n": 1}, {"n": 2}],
        "price": None,
        "at": 1_700_000_000_000,
        "tags": {"a": "b"},
    }
    plain = json.loads(json.dumps(ORDER).replace('"logicalType": "timestamp-millis", ', ""))
    plain["fields"][3]["type"] = "long"
    send(cluster, topic, avro_body(plain, order), b"\xff")
    file = tmp_path / "order.avsc"
    file.write_text(json.dumps(ORDER))
    options = {"payloadFormat": "avro", "payloadSchemaFile": str(file), "columns": "key"}
    frame = load(spark, cluster, topic, columnNameOfCorruptRecord="why", **options)
    assert frame.schema.simpleString() == (
        "struct<key:string,id:bigint,lines:array<struct<n:int>>,price:decimal(10,2),at:timestamp,"
        "tags:map<string,string>,why:string>"
    )
    found = frame.selectExpr("key", "id", "lines.n", "price", "unix_millis(at)", "tags", "why").orderBy("key")
    assert list(map(tuple, found.collect())) == [
        ("k0", 7, [1, 2], None, 1_700_000_000_000, {"a": "b"}, None),
        ("k1", None, None, None, None, None, "id: a number that is cut short or too long"),
    ]
    assert rows(load(spark, cluster, topic, "key string, id bigint", mode="DROPMALFORMED", **options)) == [
        ("k0", 7)
    ]
    with pytest.raises(Exception, match="schema: column 'id' is int64 in the body, not int32; cast it after"):
        load(spark, cluster, topic, "id int", **options).collect()


def test_protobuf_by_descriptors(
    spark: SparkSession, cluster: DevCluster, topic: str, tmp_path: Path
) -> None:
    descriptors = FileDescriptorSet()
    timestamp_pb2.DESCRIPTOR.CopyToProto(descriptors.file.add())
    file = tmp_path / "types.desc"
    file.write_bytes(descriptors.SerializeToString())
    send(cluster, topic, timestamp_pb2.Timestamp(seconds=5, nanos=6).SerializeToString(), b"\xff")
    options = {"payloadFormat": "protobuf", "payloadSchemaFile": str(file), "columns": "offset"}
    frame = load(spark, cluster, topic, payloadMessage="google.protobuf.Timestamp", **options)
    assert rows(frame) == [(0, 5, 6), (1, None, None)]


def test_rows_are_written_and_read_by_schemas_of_the_registry(
    spark: SparkSession, cluster: DevCluster, topic: str
) -> None:
    """Beside Confluent's unmodified serializer."""
    options = {"payloadFormat": "avro", "schemaRegistry": cluster.http}
    frame = spark.range(3).selectExpr(
        "string(id) key",
        "id",
        "cast(id as decimal(10,2)) price",
        "array(id) list",
        "timestamp_seconds(id) at",
    )
    writer = frame.write.format("pymq").options(**options, topic=topic, registerSchema="true")
    writer.option("nameserver", cluster.nameserver).mode("append").save()
    back = load(spark, cluster, topic, columns="key", **options)
    assert rows(back) == rows(frame)
    with SchemaRegistryClient({"url": cluster.http}) as client:
        known = client.get_latest_version(f"{topic}-value").schema.schema_str
        wider = json.loads(known)
        wider["fields"].append({"name": "note", "type": "string", "default": "none"})
        serializer = AvroSerializer(client, json.dumps(wider))
        row = {"id": 7, "price": None, "list": None, "at": None, "note": "new"}
        body = serializer(row, SerializationContext(topic, MessageField.VALUE))
    send(cluster, topic, body)
    pinned = load(spark, cluster, topic, columns="key", schemaVersion="1", **options)
    assert pinned.columns == back.columns
    assert rows(pinned.filter("id = 7").select("id", "price")) == [(7, None)]
    latest = load(spark, cluster, topic, columns="key", **options).select("id", "note")
    assert rows(latest) == [(0, "none"), (1, "none"), (2, "none"), (7, "new")]
    options["payloadFormat"] = "json"
    options["schemaSubject"] = "json-rows"
    frame = frame.withColumn("small", frame.id.cast("int"))
    writer = frame.write.format("pymq").options(**options, topic=f"{topic}-json", registerSchema="true")
    writer.option("nameserver", cluster.nameserver).mode("append").save()
    assert rows(load(spark, cluster, f"{topic}-json", columns="key", **options)) == rows(frame)
    options["payloadFormat"] = "protobuf"
    options["schemaSubject"] = "proto-rows"
    frame = frame.drop("price")
    writer = frame.write.format("pymq").options(**options, topic=f"{topic}-proto", registerSchema="true")
    writer.option("nameserver", cluster.nameserver).mode("append").save()
    assert rows(load(spark, cluster, f"{topic}-proto", columns="key", **options)) == rows(frame)
    options = {"payloadFormat": "avro", "schemaRegistry": cluster.http}
    narrow = spark.sql("SELECT 1 id, 'x' note").coalesce(1).write.format("pymq").mode("append")
    narrow = narrow.options(**options, topic=topic, nameserver=cluster.nameserver)
    with pytest.raises(Exception, match="schemaRegistry: field 'id' is int64, and the column int32: cast it"):
        narrow.save()
