"""Live tables: every message once, whatever is killed when; upserts; what a comparison with the log finds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import msgspec
import polars
import pytest
from pyspark.errors import IllegalArgumentException
from pyspark.sql import SparkSession

from mqspark.errors import ConfigError, MQError, StoreCorrupt
from mqspark.message import Message
from mqspark_jobs.deltacommit import append_rows, make_table
from mqspark_jobs.tables import livetable
from mqspark_jobs.tables.tabledefs import TableDefinition, TableDirectory, new_definition
from mqspark_jobs.tables.tablekeeper import TableKeeper, TablesOptions
from mqspark_jobs.tables.tableproof import verify
from mqspark_jobs.tables.tablerows import ROW_COLUMNS, TableWriter
from mqspark_jobs.tables.tableupkeep import UpkeepOptions, upkeep
from tests.support.dev import DevCluster
from tests.support.jobs_tools import Killed, quiet
from tests.support.waiting import eventually

pytestmark = [pytest.mark.spark, pytest.mark.delta]


READ = {"columns": ",".join(ROW_COLUMNS)}


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


def dying(method: str, monkeypatch: pytest.MonkeyPatch, *, first: bool = False) -> None:
    """The writer dies after this step, or before it."""
    step = getattr(TableWriter, method)

    def die(writer: TableWriter, *arguments: Any) -> None:
        if not first:
            step(writer, *arguments)
        raise Killed(method)

    monkeypatch.setattr(TableWriter, method, die)


@pytest.mark.slow("a dozen jobs of Delta; fast: test_tablerecord.py, and the tables of one query")
def test_rows_come_once_and_a_compaction_changes_none(
    delta: SparkSession, cluster: DevCluster, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.send_numbers(topic, range(100))
    table = Table(delta, cluster, topic, tmp_path)
    with pytest.raises(ConfigError, match="no complete batch"):
        table.verify()

    with monkeypatch.context() as patch:
        dying("append", patch)
        with pytest.raises(MQError, match=r"orders: .*append"):
            table.follow()
    table.follow()
    assert table.bodies() == numbers(range(100)), "the batch whose end was not seen came once"
    assert table.verify()["rows"] == 100

    cluster.send_numbers(topic, range(100, 130))
    table.follow()
    assert table.bodies() == numbers(range(130))
    assert (table.verify()["rows"], table.directory.state("orders").rows) == (130, 30)

    summary = upkeep(UpkeepOptions(table.directory), delta, quiet("table-upkeep"))
    assert summary["files_after"] < summary["files_before"]
    assert table.verify()["rows"] == 130
    cluster.send_numbers(topic, range(130, 140))
    table.follow()
    assert table.verify()["rows"] == 140

    rows = delta.read.format("delta").load(table.definition.url)
    rows.limit(2).write.format("delta").mode("append").save(table.definition.url)
    with pytest.raises(StoreCorrupt, match="2 doubled"):
        table.verify()


@pytest.mark.slow("jobs of Delta; fast: test_tablerecord.py")
def test_of_two_writers_of_a_batch_one_fails(delta: SparkSession, tmp_path: Path) -> None:
    rows = delta.range(3).selectExpr("id", "'today' day")
    url = str(tmp_path / "table")
    make_table(delta, url, rows.schema, partitions=("day",))
    counts: list[int | None] = []

    def append(is_new: bool, written: Callable[[int | None], None] = counts.append) -> None:
        append_rows(rows, url, "chain", 1, "{}", is_new=lambda _: is_new, written=written)

    with pytest.raises(Exception, match=r"(?i)concurrent.?transaction"):
        append(True, lambda _: append(True))
    append(False)
    assert counts == [3]
    assert delta.read.format("delta").load(url).count() == 3


@pytest.mark.slow("a dozen jobs of Delta; fast: test_tablerecord.py, and the tables of one query")
def test_an_upsert_table_has_the_newest_row_of_each_key(
    delta: SparkSession, cluster: DevCluster, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def send(*messages: tuple[str | None, str]) -> None:
        cluster.send(topic, 1, [Message.of(topic, body, keys=key or "") for key, body in messages])

    send(("a", "a1"), ("b", "b1"), (None, "nobody"), ("a", "a2"), ("c", "c1"))
    table = Table(delta, cluster, topic, tmp_path, is_upsert=True)
    for step in ("reject", "merge"):
        with monkeypatch.context() as patch:
            dying(step, patch)
            with pytest.raises(MQError, match=f"orders: .*{step}"):
                table.follow()
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


@pytest.mark.slow("a dozen jobs of Delta; fast: test_tablerecord.py, and the tables of one query")
def test_upkeep_is_not_noticed_by_who_reads(
    delta: SparkSession, cluster: DevCluster, topic: str, tmp_path: Path
) -> None:
    """Readers that have begun before: one with a file open, one with a version."""
    table = Table(delta, cluster, topic, tmp_path)
    for first in range(0, 40, 10):
        cluster.send_numbers(topic, range(first, first + 10))
        table.follow()
    place = table.definition.url
    pinned = deltalake.DeltaTable(place)
    begun = pinned.to_pyarrow_dataset().to_batches(columns=["value"], batch_size=1)
    read = next(begun)["value"].to_pylist()

    summary = upkeep(UpkeepOptions(table.directory), delta, quiet("table-upkeep"))
    assert summary["files_after"] < summary["files_before"]
    with pytest.raises(IllegalArgumentException, match="retention"):
        upkeep(UpkeepOptions(table.directory, retention_hours=1.0), delta, quiet("table-upkeep"))
    cluster.send_numbers(topic, range(40, 50))
    table.follow()

    read += [body for batch in begun for body in batch["value"].to_pylist()]
    assert sorted(body.decode() for body in read) == numbers(range(40))
    arrow = pinned.to_pyarrow_dataset()
    (rows,) = duckdb.from_arrow(arrow).aggregate("count(DISTINCT decode(value))").fetchall()
    assert rows == (40,), "the version that the reader has chosen, without the rows that came later"
    pinned.update_incremental()
    assert pinned.to_pyarrow_table(columns=["value"]).num_rows == 50


@pytest.mark.slow("a dozen jobs of Delta; the tables of one query are the fast twin")
def test_fields_are_columns_and_bad_bodies_stand_beside(
    delta: SparkSession, cluster: DevCluster, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
    with monkeypatch.context() as patch:
        dying("append", patch, first=True)
        with pytest.raises(MQError, match=r"orders: .*append"):
            table.follow()
    send('{"id":5}')
    table.follow()
    place = table.definition.url
    rows = delta.read.format("delta").load(place).orderBy("id").collect()
    assert [(row.id, row.offset, row.mq_offset, row.mq_key) for row in rows] == [
        (1, "north", 0, "k0"),
        (3, None, 3, "k3"),
        (5, None, 4, "k0"),
    ]
    rejected = delta.read.format("delta").load(table.definition.rejected_url).orderBy("mq_offset").collect()
    assert [(row.mq_offset, bytes(row.mq_value)) for row in rejected] == [(1, b'{"id":"two"}'), (2, b"")]
    assert all(row.reason for row in rejected)
    assert table.verify()["rows"] == 5

    wider = {**options, "payloadSchema": "id bigint, `offset` string, price double"}
    table.directory.change("orders", options=wider)
    send('{"id":4,"price":1.5}')
    table.follow()
    rows = delta.read.format("delta").load(place).orderBy("id").collect()
    assert [(row.id, row.price) for row in rows] == [(1, None), (3, None), (4, 1.5), (5, None)]
    assert table.verify()["rows"] == 6


def offsets_of_readers(url: str) -> list[list[int]]:
    """What readers without Spark find in the column ``offset``: Polars, delta-rs, and DuckDB by it."""
    arrow = deltalake.DeltaTable(url).to_pyarrow_dataset()
    found = duckdb.from_arrow(arrow).project('"offset"').fetchall()
    return [
        polars.scan_delta(url).select("offset").collect().to_series().to_list(),
        arrow.to_table(["offset"]).column(0).to_pylist(),
        [row[0] for row in found],
    ]


def test_one_query_keeps_tables_of_several_topics_and_a_bad_one_stops_no_other(
    delta: SparkSession, cluster: DevCluster, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = cluster.create_topic(f"{topic[:60]}-b", 1)
    cluster.send_numbers(topic, range(20))
    cluster.send(other, 0, [Message.of(other, '{"id":7}')])
    typed = {"payloadFormat": "json", "payloadSchema": "id bigint"}
    directory = TableDirectory(tmp_path / "tables")
    for name, of_topic, options in (("bad", topic, {}), ("plain", topic, {}), ("typed", other, typed)):
        url = str(tmp_path / name)
        made = new_definition(
            name,
            of_topic,
            cluster.nameserver,
            url,
            starts={},
            is_upsert=False,
            options=options,
            catalog_name="live_plain" if name == "plain" else "",
        )
        directory.add(made)
    append = TableWriter.append

    def failing(writer: TableWriter, *arguments: Any) -> None:
        if writer.definition.name == "bad":
            raise Killed("the place is full")
        append(writer, *arguments)

    monkeypatch.setattr(TableWriter, "append", failing)
    keeper = TableKeeper(TablesOptions(directory, once=True), delta, quiet("tables"))
    keeper.step(0.0)
    assert keeper.shared == [["bad", "plain", "typed"]]
    eventually(lambda: keeper.step(1.0) or not keeper.names, "the end of the query", 300)
    keeper.stop()
    assert keeper.errors == {"bad": "the place is full"}
    rows = {name: delta.read.format("delta").load(str(tmp_path / name)) for name in ("plain", "typed")}
    assert sorted(int(bytes(row.value)) for row in rows["plain"].collect()) == list(range(20))
    assert [(row.id, row.offset) for row in rows["typed"].collect()] == [(7, 0)]
    assert directory.state("bad").error == "the place is full"
    assert directory.state("plain").rows == 20
    assert {sum(each) for each in offsets_of_readers(str(tmp_path / "plain"))} == {4 * sum(range(5))}
    assert delta.table("live_plain").count() == 20
    other_place = msgspec.structs.replace(directory.load("typed"), catalog_name="live_plain")
    writer = TableWriter(delta, other_place)
    with pytest.raises(MQError, match="the catalog has another table live_plain"):
        writer.make(
            delta.read.format("pymq").options(**READ, topic=other, nameserver=cluster.nameserver).load()
        )
    delta.sql("DROP TABLE live_plain")
    assert rows["plain"].count() == 20, "the files stay"
