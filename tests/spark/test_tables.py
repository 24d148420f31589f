"""Catalog tables and views of topics: what SQL users write."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.support.dev import DevCluster

pytestmark = pytest.mark.spark

_names = itertools.count()


@pytest.fixture
def sql(spark: SparkSession) -> SparkSession:
    """A session with Spark's own catalog: Delta's takes any source but its own for one of Spark 1."""
    session = spark.newSession()
    session.conf.unset("spark.sql.catalog.spark_catalog")
    return session


@pytest.fixture
def table(sql: SparkSession, cluster: DevCluster, topic: str) -> str:
    """A table over ``topic``, which has 20 messages, 10 of them with the tag ``odd``."""
    cluster.send_numbers(topic, range(20))
    name = f"orders{next(_names)}"
    sql.sql(
        f"CREATE TABLE {name} USING pymq OPTIONS (nameserver '{cluster.nameserver}', topic '{topic}', tags 'odd')"
    )
    return name


def test_a_table_is_a_saved_topic(sql: SparkSession, cluster: DevCluster, table: str, tmp_path: Path) -> None:
    odd = [str(n) for n in range(20) if n % 2]
    assert sorted(r.v for r in sql.sql(f"SELECT STRING(value) v FROM {table}").collect()) == sorted(odd)
    assert [field.name for field in sql.table(table).schema.fields][:3] == ["key", "value", "topic"]
    # A query's own options come before the table's.
    assert sql.sql(f"SELECT * FROM {table} WITH (tags = 'even')").count() == 10
    assert sql.read.option("tags", "none").table(table).count() == 0
    # A table is planned anew by every query, unlike a DataFrame or a view.
    stream = sql.readStream.option("startingOffsets", "earliest").table(table)
    query = stream.selectExpr("STRING(value) v").writeStream.format("text").trigger(availableNow=True)
    query = (
        query.option("path", str(tmp_path / "o")).option("checkpointLocation", str(tmp_path / "c")).start()
    )
    assert query.awaitTermination(60)
    assert sorted(r.value for r in sql.read.text(str(tmp_path / "o")).collect()) == sorted(odd)
    cluster.send_numbers(sql.table(table).first().topic, range(20, 30))
    assert sql.sql(f"SELECT * FROM {table}").count() == 15


def test_a_write_names_its_topic(
    sql: SparkSession, cluster: DevCluster, topic: str, table: str, tmp_path: Path
) -> None:
    """A row of one table must not go back into it because it was inserted into another."""
    with pytest.raises(PySparkException, match=r"nameserver: required.*INSERT INTO t WITH"):
        sql.sql(f"INSERT INTO {table} SELECT * FROM {table}")
    target = f"WITH (nameserver = '{cluster.nameserver}', topic = '{topic}')"
    sql.sql(f"INSERT INTO {table} {target} (value, tags) VALUES (X'41', 'odd')")
    rows = sql.range(1).selectExpr("CAST('B' AS BINARY) value", "'odd' tags")
    rows.write.mode("append").format("pymq").options(nameserver=cluster.nameserver, topic=topic).save()
    assert sql.sql(f"SELECT * FROM {table} WHERE value IN (X'41', X'42')").count() == 2


def test_a_table_with_columns_has_its_options_in_the_query(
    sql: SparkSession, cluster: DevCluster, topic: str
) -> None:
    cluster.send_numbers(topic, range(4))
    name = f"plain{next(_names)}"
    options = f"nameserver '{cluster.nameserver}', topic '{topic}'"
    sql.sql(f"CREATE TABLE {name} (value BINARY) USING pymq OPTIONS ({options})")
    with pytest.raises(PySparkException, match=r"nameserver: required.*created without a column list"):
        sql.sql(f"SELECT * FROM {name}").collect()
    sql.sql(
        f"CREATE VIEW v{name} AS SELECT * FROM {name} WITH (nameserver = '{cluster.nameserver}', topic = '{topic}')"
    )
    assert sql.table(f"v{name}").count() == 4


def test_a_table_of_typed_rows(sql: SparkSession, cluster: DevCluster, topic: str) -> None:
    options = {"nameserver": cluster.nameserver, "topic": topic, "payloadFormat": "arrow"}
    rows = sql.range(3).selectExpr("id", "named_struct('a', id) nested")
    rows.write.format("pymq").mode("append").options(**options).save()
    name = f"typed{next(_names)}"
    given = ", ".join(f"{key} '{value}'" for key, value in options.items())
    sql.sql(f"CREATE TABLE {name} USING pymq OPTIONS ({given})")
    assert sorted(row.a for row in sql.sql(f"SELECT nested.a FROM {name}").collect()) == [0, 1, 2]


def test_deltas_catalog_reads_views_and_no_tables(
    delta: SparkSession, sql: SparkSession, cluster: DevCluster, topic: str
) -> None:
    """Spark asks a source for its columns when a table is created, in the same words under each catalog, so the source
    cannot refuse it there; and no query of the table gets as far as the source."""
    cluster.send_numbers(topic, range(4))
    session = delta.newSession()
    name = f"delta{next(_names)}"
    source = f"USING pymq OPTIONS (nameserver '{cluster.nameserver}', topic '{topic}')"
    session.sql(f"CREATE TABLE {name} {source}")
    with pytest.raises(PySparkException, match="pymq is not a valid Spark SQL Data Source"):
        session.sql(f"SELECT * FROM {name}")
    session.sql(f"CREATE TEMPORARY VIEW v{name} {source}")
    assert session.table(f"v{name}").count() == 4
    # The same table, in a session of the same application with Spark's own catalog.
    assert sql.table(name).count() == 4


def test_options_are_checked_when_the_table_is_created(sql: SparkSession, cluster: DevCluster) -> None:
    with pytest.raises(PySparkException, match="startingofsets: not an option"):
        sql.sql(
            f"CREATE TABLE wrong USING pymq OPTIONS (nameserver '{cluster.nameserver}', topic 'T', startingOfsets 'x')"
        )
