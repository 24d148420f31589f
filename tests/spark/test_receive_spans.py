"""One trace from a producer through the broker to the rows of a DataFrame, by OpenTelemetry's in-memory exporter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from mqspark import Message, OpenTelemetry, Producer
from mqspark.errors import ConfigError
from mqspark.testing import Broker
from pyspark_pymq.options import ReadOptions
from pyspark_pymq.reading.batch import BatchReader
from pyspark_pymq.reading.receivespans import MAX_LINKS, ReceiveSpans
from tests.support.jvm import spark_options
from tests.support.waiting import eventually

COLUMNS = ("value", "properties")


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """Of all spans of this process."""
    made = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(made))
    get_tracer = trace.get_tracer
    monkeypatch.setattr(trace, "get_tracer", lambda name, **_: get_tracer(name, tracer_provider=provider))
    return made


def spans_of(exporter: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in exporter.get_finished_spans() if span.name == name]


def send(broker: Broker) -> None:
    """A message with a trace, and one without."""
    with Producer(broker.namesrv, group="p", interceptors=[OpenTelemetry()]) as producer:
        producer.send(Message.of("Traced", "with"))
    with Producer(broker.namesrv, group="q") as producer:
        producer.send(Message.of("Traced", "without"))


def traces(found: list[pa.RecordBatch]) -> list[str]:
    """The trace ids of rows."""
    rows = pa.Table.from_batches(found).to_pylist()
    return [dict(row["properties"])["traceparent"].split("-")[1] for row in rows if row["value"] == b"with"]


def test_a_row_is_in_the_trace_of_its_sender(exporter: InMemorySpanExporter) -> None:
    """Read as Spark does it: planned by the driver, each partition read by a task."""
    with Broker(settings={"openTelemetryEnable": True}) as broker:
        send(broker)
        (stored,) = eventually(lambda: spans_of(exporter, "store Traced"))
        given = {"nameserver": broker.namesrv, "topic": "Traced", "group": "report", "openTelemetry": "true"}
        reader = BatchReader(ReadOptions.parse(given, streaming=False), COLUMNS)
        found = [batch for each in reader.partitions() for batch in reader.read(each)]
    (sent,) = spans_of(exporter, "send Traced")
    (received,) = spans_of(exporter, "receive Traced")
    assert sent.context is not None
    assert stored.parent is not None
    assert stored.parent.span_id == sent.context.span_id
    assert [(link.context.trace_id, link.context.span_id) for link in received.links] == [
        (sent.context.trace_id, sent.context.span_id)
    ]
    assert traces(found) == [f"{sent.context.trace_id:032x}"]
    assert received.kind is SpanKind.CONSUMER
    attributes = dict(received.attributes or {})
    assert attributes["messaging.batch.message_count"] == 2
    assert attributes["messaging.operation.type"] == "receive"
    assert attributes["messaging.consumer.group.name"] == "report"


def rows(*parents: str) -> pa.RecordBatch:
    properties = [[("a", "b"), ("traceparent", parent)] for parent in parents]
    column = pa.array(properties, pa.map_(pa.string(), pa.string()))
    return pa.record_batch([column], names=["properties"])


def parent(number: int) -> str:
    return f"00-{number:032x}-{number:016x}-01"


def test_links_are_bounded_and_each_trace_has_one(exporter: InMemorySpanExporter) -> None:
    batches = [
        rows(parent(1), parent(1), "no trace", ""),
        rows(*[parent(number) for number in range(1, MAX_LINKS * 2)]),
        pa.record_batch([pa.array([1])], names=["offset"]),
    ]
    assert list(ReceiveSpans().of_task(iter(batches), ["A", "B"], "g")) == batches
    (span,) = spans_of(exporter, "receive A")
    assert [link.context.trace_id for link in span.links] == list(range(1, MAX_LINKS + 1))
    assert dict(span.attributes or {})["messaging.batch.message_count"] == 4 + MAX_LINKS * 2 - 1 + 1


def test_a_task_that_fails_or_is_left(exporter: InMemorySpanExporter) -> None:
    def failing() -> Iterator[pa.RecordBatch]:
        yield rows(parent(1))
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        list(ReceiveSpans().of_task(failing(), ["A"], "g"))
    left = ReceiveSpans().of_task(iter([rows(parent(1))] * 3), ["A"], "g")
    next(left)
    left.close()  # type: ignore[attr-defined]
    failed, ended = spans_of(exporter, "receive A")
    assert dict(failed.attributes or {})["error.type"] == "OSError"
    assert ended.status.is_ok
    assert dict(ended.attributes or {})["messaging.batch.message_count"] == 1


def test_without_the_api_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(ConfigError, match=r"^openTelemetry: needs .*mqspark\[otel\]"):
        ReceiveSpans()


EXPORTING = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor
provider = TracerProvider()
out = open({path!r}, "a", buffering=1)
exporter = ConsoleSpanExporter(out=out, formatter=lambda span: span.to_json(None) + "\\n")
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
"""
DRIVER = """
import json, os, sys
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = builder.config("spark.driver.extraJavaOptions", sys.argv[2]).getOrCreate()
frame = spark.read.format("pymq").options(**json.loads(sys.argv[1])).schema("properties map<string,string>").load()
print(json.dumps([row.parent for row in frame.selectExpr("properties['traceparent'] parent").collect()]))
"""


@pytest.mark.slow("starts Spark; test_a_row_is_in_the_trace_of_its_sender is the fast twin")
@pytest.mark.usefixtures("exporter")
def test_spans_of_sparks_workers(tmp_path: Path) -> None:
    """With an SDK in the processes of the workers, as ``opentelemetry-instrument`` would start them."""
    out = tmp_path / "spans"
    (tmp_path / "sitecustomize.py").write_text(EXPORTING.format(path=str(out)))
    with Broker() as broker:
        send(broker)
        options = {"nameserver": broker.namesrv, "topic": "Traced", "openTelemetry": "true"}
        path = os.pathsep.join([str(tmp_path), *sys.path])
        ran = subprocess.run(
            [sys.executable, "-c", DRIVER, json.dumps(options), spark_options()],
            env={
                **os.environ,
                "PYTHONPATH": path,
                "PYSPARK_PYTHON": sys.executable,
                "SPARK_LOCAL_IP": "127.0.0.1",
            },
            capture_output=True,
            text=True,
            check=True,
            timeout=300,
        )
    (row,) = [each for each in json.loads(ran.stdout.splitlines()[-1]) if each]
    (span,) = [json.loads(line) for line in out.read_text().splitlines()]
    assert span["name"] == "receive Traced"
    assert [link["context"]["trace_id"] for link in span["links"]] == ["0x" + row.split("-")[1]]
