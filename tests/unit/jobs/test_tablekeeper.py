"""Which query keeps which live table, with queries and tables that a test moves."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.types import LongType, StructType

from mqspark.errors import MQError
from mqspark_jobs.tables import tablekeeper
from mqspark_jobs.tables.livetable import table_metrics
from mqspark_jobs.tables.tabledefs import TableDirectory, TableState, new_definition
from mqspark_jobs.tables.tablekeeper import TableKeeper, TablesOptions
from mqspark_jobs.tables.topicqueues import TopicSpan
from pyspark_pymq.lineage import shared_sender
from tests.support.jobs_tools import quiet

SPARK: Any = SimpleNamespace(
    newSession=lambda: SimpleNamespace(conf=SimpleNamespace(set=lambda name, value: None))
)


class Query:
    """Stands for TableQuery and for Spark's query."""

    def __init__(self, spark: Any, tables: Sequence[Any], *, once: bool, interval_ms: int) -> None:
        self.names = [each.definition.name for each in tables]
        self.failed: dict[str, BaseException] = {}
        self.query = self
        self.isActive = True
        self.late: dict[str, BaseException] = {}
        """Tables that are still written."""
        self.lag = 0
        self.has_begun = True
        self.error: BaseException | None = None

    @property
    def lastProgress(self) -> Any:
        if not self.has_begun:
            return None
        queues = {"Orders": {"a:0": 5}}
        latest = {"Orders": {"a:0": 5 + self.lag}}
        return {"sources": [{"endOffset": {"v": 1, "q": queues}, "latestOffset": {"v": 1, "q": latest}}]}

    def exception(self) -> BaseException | None:
        return self.error

    def fail(self, name: str) -> None:
        self.names.remove(name)
        self.failed[name] = MQError("no space")

    def taken_failures(self) -> dict[str, BaseException]:
        found, self.failed = self.failed, {}
        return found

    def leave(self, name: str) -> None:
        if name in self.names:
            self.names.remove(name)

    def stop(self) -> None:
        self.isActive = False
        self.failed |= self.late


class Tables:
    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.directory = TableDirectory(root)
        self.keeper = TableKeeper(TablesOptions(self.directory), SPARK, quiet("tables"))
        self.backlogs: dict[str, int] = {}
        self.queries: list[Query] = []

        def query(*arguments: Any, **options: Any) -> Query:
            self.queries.append(Query(*arguments, **options))
            return self.queries[-1]

        def queues(options: dict[str, str], client: Any) -> Any:
            name = options["group"].removeprefix("mqspark-table-")
            end = self.backlogs.get(name, 0)
            return SimpleNamespace(
                client=SimpleNamespace(close=list), bounds=lambda: TopicSpan({"a:0": 0}, {"a:0": end})
            )

        def writer(session: Any, definition: Any) -> Any:
            columns = StructType().add("id", LongType())
            return SimpleNamespace(definition=definition, ends={}, last=None, close=list, columns=columns)

        monkeypatch.setattr(tablekeeper, "TableQuery", query)
        monkeypatch.setattr(tablekeeper, "TableTopic", queues)
        monkeypatch.setattr(tablekeeper, "TableWriter", writer)

    def add(self, *names: str, backlog: int = 0, **options: str) -> None:
        for name in names:
            self.backlogs[name] = backlog
            url = str(self.root / "places" / name)
            self.directory.add(
                new_definition(
                    name, "Orders", "127.0.0.1:1", url, starts={}, is_upsert=False, options=options
                )
            )

    def at(self, now_s: float) -> list[list[str]]:
        self.keeper.step(now_s)
        return self.keeper.shared

    def of(self, name: str) -> Query:
        return next(each for each in self.queries if each.isActive and name in each.names)


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tables:
    return Tables(tmp_path, monkeypatch)


def test_tables_share_a_query_by_the_options_of_the_source(tables: Tables) -> None:
    tables.add("a", "b")
    tables.add("typed", payloadFormat="json", payloadSchema="id int")
    tables.add("limited", maxBytesPerTrigger="1m")
    assert tables.at(0) == [["a", "b", "typed"], ["limited"]]
    tables.keeper.stop()
    assert tables.keeper.names == []
    assert not any(each.isActive for each in tables.queries)


def test_a_table_that_is_far_behind_joins_when_it_has_caught_up(tables: Tables) -> None:
    tables.add("a", "b")
    tables.add("far", backlog=1_000_000)
    assert tables.at(0) == [["a", "b"], ["far"]]
    tables.of("far").lag = 900_000
    assert tables.at(20) == [["a", "b"], ["far"]]
    tables.of("far").lag = 10
    assert tables.at(21) == [["a", "b", "far"]]
    assert len(tables.queries) == 3


def test_a_new_table_joins_and_the_others_start_again_rarely(tables: Tables) -> None:
    tables.add("a")
    assert tables.at(0) == [["a"]]
    tables.add("b")
    assert tables.at(5) == [["a"], ["b"]]
    tables.add("c")
    assert tables.at(14) == [["a"], ["b"], ["c"]]
    assert tables.at(23) == [["a"], ["b"], ["c"]], "the newest one runs for less than 10 s"
    assert tables.at(24) == [["a", "b", "c"]]


def test_a_table_that_fails_leaves_the_others_alone(tables: Tables) -> None:
    tables.add("a", "b", "bad")
    tables.at(0)
    shared = tables.of("a")
    shared.fail("bad")
    assert tables.at(10) == [["a", "b"]]
    assert tables.keeper.errors == {"bad": "no space"}
    assert tables.directory.state("bad").error == "no space"
    assert not tables.directory.is_running("bad")
    assert tables.at(11) == [["a", "b"], ["bad"]]
    assert tables.of("a") is shared
    tables.of("bad").fail("bad")
    assert tables.at(12) == [["a", "b"]]
    assert tables.at(13) == [["a", "b"]], "the second pause is longer"
    assert tables.at(14) == [["a", "b"], ["bad"]]
    assert tables.keeper.errors == {}
    tables.at(23)
    assert tables.at(24) == [["a", "b", "bad"]]


def test_tables_of_a_query_that_are_all_late_run_alone(tables: Tables) -> None:
    tables.add("a", "b")
    tables.at(0)
    shared = tables.of("a")
    shared.late, shared.names = {name: MQError("took long") for name in shared.names}, []
    assert tables.at(1) == []
    assert tables.keeper.errors == {"a": "took long", "b": "took long"}
    assert tables.at(2) == [["a"], ["b"]]


def test_a_query_that_fails_at_once_starts_again_table_by_table(tables: Tables) -> None:
    tables.add("a", "b", "c", "d", "e", "f")
    tables.at(0)
    broken = tables.queries[0]
    broken.error, broken.isActive = MQError("no topic"), False
    broken.has_begun = False
    assert tables.at(1) == []
    assert tables.at(2) == [["a"], ["b"], ["c"], ["d"]], "a few at a time"
    assert tables.keeper.failures == 6


def test_a_query_that_ran_starts_again_as_one(tables: Tables) -> None:
    tables.add("a", "b")
    tables.at(0)
    tables.queries[0].error, tables.queries[0].isActive = MQError("the brokers are away"), False
    assert tables.at(1) == []
    assert tables.at(2) == [["a", "b"]]


def test_a_paused_table_leaves(tables: Tables) -> None:
    tables.add("a", "b")
    tables.at(0)
    tables.directory.change("a", is_paused=True)
    assert tables.at(1) == [["b"]]
    assert not tables.directory.is_running("a")
    tables.directory.change("a", is_paused=False)
    assert tables.at(2) == [["a"], ["b"]]
    assert tables.at(12) == [["a", "b"]]


def test_figures_of_tables(tables: Tables) -> None:
    tables.add("a", "b")
    tables.at(0)
    tables.directory.save_state("a", TableState(3, 40, 1_700_000_000_500, 1_250, rejected=2))
    tables.of("b").fail("b")
    tables.at(1)
    (tables.root / "broken.json").write_text("{")
    assert table_metrics(tables.keeper) == [
        'mqspark_table_batch_rows{table="a",topic="Orders"} 40',
        'mqspark_table_batch{table="a",topic="Orders"} 3',
        'mqspark_table_delay_seconds{table="a",topic="Orders"} 1.25',
        'mqspark_table_failed{table="a",topic="Orders"} 0',
        'mqspark_table_failed{table="b",topic="Orders"} 1',
        'mqspark_table_kept{table="a",topic="Orders"} 1',
        'mqspark_table_kept{table="b",topic="Orders"} 0',
        'mqspark_table_newest_timestamp_seconds{table="a",topic="Orders"} 1700000000.5',
        'mqspark_table_paused{table="a",topic="Orders"} 0',
        'mqspark_table_paused{table="b",topic="Orders"} 0',
        'mqspark_table_rejected_rows{table="a",topic="Orders"} 2',
    ]


@pytest.mark.parametrize(("error", "last"), [(None, "COMPLETE"), (MQError("gone"), "FAIL")])
def test_a_table_and_its_topic_are_one_edge_of_lineage(
    error: MQError | None, last: str, tables: Tables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "events"
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__TYPE", "file")
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__LOG_FILE_PATH", str(file))
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__APPEND", "true")
    tables.add("orders")
    tables.at(0)
    tables.of("orders").error, tables.queries[0].isActive = error, False
    tables.directory.remove("orders")
    tables.at(1)
    assert shared_sender().flush(30)
    first, end = (json.loads(line) for line in file.read_text().splitlines())
    assert [first["eventType"], end["eventType"]] == ["START", last]
    assert first["run"]["runId"] == end["run"]["runId"]
    assert first["job"]["name"] == "table.orders"
    assert [(each["namespace"], each["name"]) for each in first["inputs"]] == [
        ("rocketmq://127.0.0.1:1", "Orders")
    ]
    place = str(tmp_path / "places" / "orders")
    assert [(each["namespace"], each["name"]) for each in first["outputs"]] == [
        ("file", place),
        ("file", f"{place}__rejected"),
    ]
    assert first["outputs"][0]["facets"]["schema"]["fields"][0]["name"] == "id"
