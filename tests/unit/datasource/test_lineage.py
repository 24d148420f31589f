"""Events of OpenLineage, as its own client writes them to a file and sends them over HTTP."""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import LongType, StructType

from mqspark.errors import ConfigError
from pyspark_pymq.lineage import (
    COMPLETE,
    MAX_WAITING,
    RUNNING,
    START,
    Dataset,
    LineageRun,
    LineageSender,
    is_configured,
    lineage_of,
    shared_sender,
    table_dataset,
    tell_of_schema,
    tell_of_task,
    topic_dataset,
)
from pyspark_pymq.options import ReadOptions, WriteOptions

NAMESERVERS = "10.0.0.2:9876;10.0.0.1:9876"
ORDERS = {"namespace": "rocketmq://10.0.0.1:9876", "name": "Orders"}
LONG_S = 30.0


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    found = tmp_path / "events"
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__TYPE", "file")
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__LOG_FILE_PATH", str(found))
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__APPEND", "true")
    return found


def events(file: Path) -> list[dict[str, Any]]:
    assert shared_sender().flush(LONG_S)
    return [json.loads(line) for line in file.read_text().splitlines()]


def names(datasets: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: each[key] for key in ("namespace", "name")} for each in datasets]


def test_a_run_begins_and_ends_with_its_topics_and_tables(file: Path) -> None:
    topic = topic_dataset(NAMESERVERS, "Orders", StructType().add("id", LongType()))
    with lineage_of("park", [topic], [table_dataset("s3a://lake/orders/")]):
        pass
    with pytest.raises(ValueError, match="no"), lineage_of("park", [], [table_dataset("file:///t/o")]):
        raise ValueError("no")
    begun, ended, again, failed = events(file)
    assert [each["eventType"] for each in (begun, ended, again, failed)] == [
        "START",
        "COMPLETE",
        "START",
        "FAIL",
    ]
    assert begun["run"]["runId"] == ended["run"]["runId"] != failed["run"]["runId"] == again["run"]["runId"]
    assert begun["job"]["namespace"] == "mqspark"
    assert begun["job"]["name"] == "park"
    assert names(begun["inputs"]) == [ORDERS]
    [field] = begun["inputs"][0]["facets"]["schema"]["fields"]
    assert (field["name"], field["type"]) == ("id", "bigint")
    assert names(begun["outputs"]) == [{"namespace": "s3://lake", "name": "orders"}]
    assert names(failed["outputs"]) == [{"namespace": "file", "name": "/t/o"}]
    assert failed["run"]["facets"]["errorMessage"]["message"] == "ValueError: no"


def test_source_and_sink_of_an_application_speak_of_one_run(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", "/tmp/blockmgr-1")
    for _ in range(2):  # of the same process
        tell_of_task("report", NAMESERVERS, reads=["Orders", "Refunds"])
        tell_of_task("report", NAMESERVERS, writes=["Totals"])
    monkeypatch.setenv("SPARK_LOCAL_DIRS", "/tmp/blockmgr-2")
    tell_of_task("other", NAMESERVERS, reads=["Orders"])
    read, write, other = events(file)
    assert {each["eventType"] for each in (read, write, other)} == {RUNNING}
    assert read["run"]["runId"] == write["run"]["runId"] != other["run"]["runId"]
    assert names(read["inputs"]) == [ORDERS, ORDERS | {"name": "Refunds"}]
    assert names(write["outputs"]) == [ORDERS | {"name": "Totals"}]
    assert not read["outputs"]
    assert not write["inputs"]


AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}]},
        {"name": "lines", "type": {"type": "array", "items": "string"}},
    ],
}
JSON = {"properties": {"id": {"type": "integer"}, "note": {"type": ["string", "null"]}, "more": True}}
PROTO = 'syntax = "proto3"; message Order { int64 id = 1; repeated Line lines = 2; message Line {} }'


@pytest.mark.parametrize(
    ("kind", "text", "fields"),
    [
        ("AVRO", json.dumps(AVRO), [("id", "long"), ("at", "null | timestamp-millis"), ("lines", "array")]),
        ("AVRO", '"string"', []),
        ("AVRO", '{"type":"record","name":"R","fields":[{"name":"a","type":"OfAnotherSubject"}]}', []),
        ("JSON", json.dumps(JSON), [("id", "integer"), ("note", "string | null"), ("more", "any")]),
        ("JSON", "true", []),
        ("PROTOBUF", PROTO, [("id", "int64"), ("lines", "repeated Order.Line")]),
        ("PROTOBUF", 'syntax = "proto3"; enum E { A = 0; }', []),
    ],
)
def test_a_schema_says_which_fields_a_topic_has(
    file: Path, kind: str, text: str, fields: list[tuple[str, str]]
) -> None:
    tell_of_schema(NAMESERVERS, "Orders", kind, text)
    (event,) = events(file)
    dataset = event["dataset"]
    assert names([dataset]) == [ORDERS]
    told = dataset["facets"].get("schema", {"fields": []})["fields"]
    assert [(each["name"], each["type"]) for each in told] == fields
    assert "run" not in event


def test_options_of_source_and_sink() -> None:
    given = {"nameserver": "127.0.0.1:1", "topic": "T", "lineageJob": "report"}
    assert ReadOptions.parse(given, streaming=False).lineage_job == "report"
    assert WriteOptions.parse(given).lineage_job == "report"
    with pytest.raises(ConfigError, match=r"^lineageJob: needs the option topic"):
        WriteOptions.parse({"nameserver": "127.0.0.1:1", "lineageJob": "x"})
    with pytest.raises(ConfigError, match=r"^lineageJob: a name of 1 to 200 letters"):
        ReadOptions.parse(given | {"lineageJob": "x" * 201}, streaming=True)


def test_it_is_off_unless_the_environment_says_where_to() -> None:
    assert not is_configured({"PATH": "/bin"})
    assert is_configured({"OPENLINEAGE_URL": "http://h"})
    assert is_configured({"OPENLINEAGE__TRANSPORT__TYPE": "file"})
    assert not is_configured({"OPENLINEAGE_URL": "http://h", "OPENLINEAGE_DISABLED": "True"})
    before = threading.active_count()
    with lineage_of("park", [], []):
        tell_of_task("report", NAMESERVERS, reads=["Orders"])
    assert threading.active_count() == before


class Collector(ThreadingHTTPServer):
    """Takes events; while ``may_answer`` is not set it answers none."""

    def __init__(self) -> None:
        self.taken: list[tuple[str, dict[str, Any]]] = []
        self.may_answer = threading.Event()
        self.may_answer.set()
        super().__init__(("127.0.0.1", 0), _Handler)


class _Handler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.may_answer.wait(LONG_S)
        self.server.taken.append((self.path, json.loads(body)))
        self.send_response(201)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with Collector() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setenv("OPENLINEAGE_URL", f"http://127.0.0.1:{server.server_port}")
        yield server
        server.may_answer.set()
        server.shutdown()
        thread.join()


def test_over_http_in_order(collector: Collector) -> None:
    sender = LineageSender()
    run = LineageRun(
        "table.orders", [topic_dataset(NAMESERVERS, "Orders")], [Dataset("file", "/o")], sender=sender
    )
    for event in (START, RUNNING, COMPLETE):
        run.tell(event)
    assert sender.flush(LONG_S)
    assert {path for path, _ in collector.taken} == {"/api/v1/lineage"}
    assert [event["eventType"] for _, event in collector.taken] == [START, RUNNING, COMPLETE]
    assert names(collector.taken[0][1]["inputs"]) == [ORDERS]


def test_a_collector_that_hangs_holds_nobody_up(
    collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    collector.may_answer.clear()
    sender = LineageSender()
    run = LineageRun("job", [], [], sender=sender)
    with caplog.at_level(logging.WARNING, "pyspark_pymq.lineage"):
        for _ in range(MAX_WAITING + 100):
            run.tell(RUNNING)
    said = [each for each in caplog.records if each.name == "pyspark_pymq.lineage"]
    assert [each.getMessage() for each in said] == [
        f"events of OpenLineage are dropped (more than {MAX_WAITING} wait); this is said once"
    ]
    assert not sender.flush(0.01)
    assert not collector.taken


def test_without_the_package_one_warning_says_so(
    file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "openlineage.client", None)
    sender = LineageSender()
    run = LineageRun("job", [], [], sender=sender)
    with caplog.at_level(logging.WARNING, "pyspark_pymq.lineage"):
        run.tell(START)
        run.tell(COMPLETE)
        assert sender.flush(LONG_S)
    [said] = [each for each in caplog.records if each.name == "pyspark_pymq.lineage"]
    assert "ModuleNotFoundError" in said.getMessage() or "ImportError" in said.getMessage()
    assert not file.exists()
