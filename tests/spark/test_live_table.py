"""Live tables: every message once, whatever is killed when; upserts; what a comparison with the log finds."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession

from mqspark.errors import ConfigError, StoreCorrupt
from mqspark.message import Message
from mqspark_jobs import livetable
from mqspark_jobs.livetable import TablesOptions
from mqspark_jobs.tabledefs import TableDefinition, TableDirectory, new_definition
from mqspark_jobs.tableproof import verify
from mqspark_jobs.tableupkeep import UpkeepOptions, upkeep
from tests.support.dev import DevCluster
from tests.support.jobs_tools import Killed, quiet

pytestmark = [pytest.mark.spark, pytest.mark.delta]


class Table:
    def __init__(
        self, spark: SparkSession, cluster: DevCluster, topic: str, root: Path, **given: Any
    ) -> None:
        self.spark = spark
        self.directory = TableDirectory(root / "tables")
        arguments: dict[str, Any] = {"starts": {}, "is_upsert": False, "options": {}, **given}
        self.definition: TableDefinition = new_definition(
            "orders", topic, cluster.nameserver, str(root / "Orders"), **arguments
        )
        self.directory.add(self.definition)

    def follow(self) -> dict[str, Any]:
        return livetable.run(TablesOptions(self.directory, once=True), self.spark, quiet("tables"))

    def verify(self) -> dict[str, Any]:
        return verify(self.directory, "orders", self.spark, quiet("table-verify"))

    def bodies(self) -> list[str]:
        rows = self.spark.read.format("delta").load(self.definition.url).collect()
        return sorted(bytes(row.value).decode() for row in rows)


def numbers(*ranges: range) -> list[str]:
    return sorted(str(n) for each in ranges for n in each)


@pytest.mark.slow("a dozen jobs of Delta; the upsert table is the fast twin")
def test_rows_come_once_and_again_behind_a_lost_checkpoint(
    delta: SparkSession, cluster: DevCluster, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.send_numbers(topic, range(100))
    table = Table(delta, cluster, topic, tmp_path)
    with pytest.raises(ConfigError, match="no complete batch"):
        table.verify()

    append = livetable.TableBatches.append

    def dying(batches: Any, *arguments: Any) -> None:
        append(batches, *arguments)
        raise Killed

    monkeypatch.setattr(livetable.TableBatches, "append", dying)
    with pytest.raises(Exception, match="orders"):
        table.follow()
    monkeypatch.undo()
    table.follow()
    assert table.bodies() == numbers(range(100)), "the batch whose end was not recorded came once"
    assert table.verify()["rows"] == 100

    shutil.rmtree(table.definition.checkpoint)
    cluster.send_numbers(topic, range(100, 130))
    table.follow()
    assert table.bodies() == numbers(range(130))
    assert (table.verify()["rows"], table.directory.state("orders").rows) == (130, 30)

    summary = upkeep(UpkeepOptions(table.directory), delta, quiet("table-upkeep"))
    assert summary["files_after"] < summary["files_before"]
    assert table.verify()["rows"] == 130

    rows = delta.read.format("delta").load(table.definition.url)
    rows.limit(2).write.format("delta").mode("append").save(table.definition.url)
    with pytest.raises(StoreCorrupt, match="2 doubled"):
        table.verify()


def test_an_upsert_table_has_the_newest_row_of_each_key(
    delta: SparkSession, cluster: DevCluster, topic: str, tmp_path: Path
) -> None:
    def send(*messages: tuple[str | None, str]) -> None:
        cluster.send(topic, 1, [Message.of(topic, body, keys=key or "") for key, body in messages])

    send(("a", "a1"), ("b", "b1"), (None, "nobody"), ("a", "a2"), ("c", "c1"))
    table = Table(delta, cluster, topic, tmp_path, is_upsert=True)
    table.follow()
    assert table.bodies() == ["a2", "b1", "c1"]
    rejected = delta.read.format("delta").load(table.definition.rejected_url).collect()
    assert [(bytes(row.value), row.reason) for row in rejected] == [(b"nobody", "the message has no key")]
    send(("b", ""), ("d", "d1"), ("c", "c2"))
    table.follow()
    assert table.bodies() == ["a2", "c2", "d1"]
    assert table.verify()["rows"] == 3
    from delta.tables import DeltaTable

    DeltaTable.forPath(delta, table.definition.url).update("key = 'a'", {"value": "binary('a1')"})
    with pytest.raises(StoreCorrupt, match="1 changed"):
        table.verify()


@pytest.mark.slow("a dozen jobs of Delta; the upsert table is the fast twin")
def test_fields_are_columns_and_bad_bodies_stand_beside(
    delta: SparkSession, cluster: DevCluster, topic: str, tmp_path: Path
) -> None:
    def send(*bodies: str) -> None:
        cluster.send(topic, 2, [Message.of(topic, body, keys=f"k{n}") for n, body in enumerate(bodies)])

    send('{"id":1,"offset":"north"}', '{"id":"two"}', "", '{"id":3,"price":9.5}')
    options = {
        "payloadFormat": "json",
        "payloadSchema": "id bigint, `offset` string",
        "messagePrefix": "mq_",
    }
    table = Table(delta, cluster, topic, tmp_path, options=options)
    table.follow()
    place = table.definition.url
    rows = delta.read.format("delta").load(place).orderBy("id").collect()
    assert [(row.id, row.offset, row.mq_offset, row.mq_key) for row in rows] == [
        (1, "north", 0, "k0"),
        (3, None, 3, "k3"),
    ]
    rejected = delta.read.format("delta").load(table.definition.rejected_url).orderBy("mq_offset").collect()
    assert [(row.mq_offset, bytes(row.mq_value)) for row in rejected] == [(1, b'{"id":"two"}'), (2, b"")]
    assert all(row.reason for row in rejected)
    assert table.verify()["rows"] == 4

    shutil.rmtree(table.definition.checkpoint)
    wider = {**options, "payloadSchema": "id bigint, `offset` string, price double"}
    table.directory.change("orders", lambda each: msgspec.structs.replace(each, options=wider))
    send('{"id":4,"price":1.5}')
    table.follow()
    rows = delta.read.format("delta").load(place).orderBy("id").collect()
    assert [(row.id, row.price) for row in rows] == [(1, None), (3, None), (4, 1.5)]
    assert table.verify()["rows"] == 5
