"""One trace from a producer through the broker to the rows of a DataFrame, and on to what Spark writes and calls, by
OpenTelemetry's in-memory exporter."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind
from pyspark.sql.types import BinaryType, MapType, StringType, StructField, StructType

from mqspark import AdminClient, Message, OpenTelemetry, Producer
from mqspark.errors import ConfigError
from mqspark.testing import Broker
from pyspark_pymq.options import ReadOptions, WriteOptions
from pyspark_pymq.reading.batch import BatchReader
from pyspark_pymq.taskspans import MAX_LINKS, TaskSpans, with_properties
from pyspark_pymq.work.evaluate import Evaluation
from pyspark_pymq.work.functions import ArrowFunction, RowFunction
from pyspark_pymq.work.outcome import MESSAGE, ORDER
from pyspark_pymq.work.verdicts import Policy
from pyspark_pymq.writing.sink import BatchWriter
from tests.support.jvm import spark_options
from tests.support.processes import run_python
from tests.support.waiting import eventually

COLUMNS = ("value", "properties")
COLUMN = pa.map_(pa.string(), pa.string())


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """The exporter of all spans of this process."""
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


def test_rows_that_are_written_have_the_trace_of_their_task_or_their_own(
    exporter: InMemorySpanExporter,
) -> None:
    """As a task writes them; read again they are linked to both traces."""
    values = pa.array([b"own", b"none", b"null"])
    properties = pa.array([[("a", "b"), ("traceparent", parent(7))], [("a", "b")], None], COLUMN)
    written = pa.record_batch([values, properties], names=["value", "properties"])
    texts = MapType(StringType(), StringType())
    schema = StructType([StructField("value", BinaryType()), StructField("properties", texts)])
    with Broker() as broker:
        with AdminClient(broker.namesrv) as admin:
            admin.create_topic("Written", queues=1)
        for delivery in (
            {},
            {"deliveryGuarantee": "exactly-once", "transactionId": "t", "transactionBatch": "1"},
        ):
            given = {"nameserver": broker.namesrv, "topic": "Written", "openTelemetry": "true", **delivery}
            writer = BatchWriter(WriteOptions.parse(given), schema, overwrite=False)
            writer.commit([writer.write(iter([written]))])
        given = {"nameserver": broker.namesrv, "topic": "Written", "openTelemetry": "true"}
        reader = BatchReader(ReadOptions.parse(given, streaming=False), COLUMNS)
        found = [
            row for each in reader.partitions() for batch in reader.read(each) for row in batch.to_pylist()
        ]
    sent = spans_of(exporter, "send Written")
    assert [dict(span.attributes or {})["messaging.batch.message_count"] for span in sent] == [3, 3]
    assert [[link.context.trace_id for link in span.links] for span in sent] == [[7], [7]]
    assert {span.kind for span in sent} == {SpanKind.PRODUCER}
    own = [f"{span.context.trace_id:032x}" for span in sent if span.context is not None]
    seen = [(row["value"], dict(row["properties"])["traceparent"].split("-")[1]) for row in found]
    assert sorted(seen) == sorted(
        (value, trace_id if value != b"own" else f"{7:032x}")
        for trace_id in own
        for value in (b"own", b"none", b"null")
    )
    assert all(dict(row["properties"])["a"] == "b" for row in found if row["value"] != b"null")
    (received,) = spans_of(exporter, "receive Written")
    assert {f"{link.context.trace_id:032x}" for link in received.links} == {f"{7:032x}", *own}


def test_a_write_that_fails_is_a_span_that_failed(exporter: InMemorySpanExporter) -> None:
    def write() -> None:
        with TaskSpans().sending("T", "g") as traced:
            list(traced(iter([rows(parent(1))])))
            raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        write()
    (span,) = spans_of(exporter, "send T")
    assert not span.status.is_ok
    assert dict(span.attributes or {})["error.type"] == "OSError"


@pytest.mark.parametrize("first", [0, 1, 2])
def test_properties_are_added_to_a_slice(first: int) -> None:
    maps = [[("a", "1")], None, [("t", "x"), ("b", "2")], [], [("c", "3"), ("d", "4")]]
    batch = pa.record_batch({"properties": pa.array(maps, COLUMN), "n": range(5)}).slice(first, 3)
    more = {"t": "new", "s": "2"}
    found = with_properties(batch, more, unless="t").to_pylist()
    expected = [
        each if each is not None and "t" in dict(each) else [*(each or ()), *more.items()]
        for each in maps[first : first + 3]
    ]
    assert [row["properties"] for row in found] == expected
    assert [row["n"] for row in found] == list(range(first, first + 3))
    assert with_properties(batch.select(["n"]), more, unless="t").to_pylist()[0]["properties"] == [
        *more.items()
    ]
    assert with_properties(batch.slice(0, 0), more, unless="t").num_rows == 0


def messages(*parents: str | None) -> pa.RecordBatch:
    """As a work queue's function gets them: values 0, 1 and so on."""
    kinds = {"binary": pa.binary(), "int": pa.int32(), "bigint": pa.int64(), "map<string,string>": COLUMN}
    kinds |= {"timestamp": pa.timestamp("us", "UTC")}
    count = len(parents)
    columns = {
        name: pa.nulls(count, kinds.get(kind, pa.string())) for name, kind in {**MESSAGE, **ORDER}.items()
    }
    columns["value"] = pa.array([str(number).encode() for number in range(count)])
    columns["topic"] = pa.array(["Work"] * count)
    columns["attempt"] = pa.array([1] * count, pa.int32())
    columns["place"] = pa.array([f"b:Work:0:{number}" for number in range(count)])
    maps = [[] if each is None else [("traceparent", each)] for each in parents]
    columns["properties"] = pa.array(maps, COLUMN)
    return pa.record_batch(columns)


def test_each_call_of_a_work_queues_function_goes_on_with_the_trace_of_its_message(
    exporter: InMemorySpanExporter,
) -> None:
    current: list[int] = []

    def work(message: Any) -> None:
        current.append(trace.get_current_span().get_span_context().trace_id)
        if message.value == b"1":
            raise ValueError("refused")

    evaluation = Evaluation(RowFunction(work, None), Policy.parse(3, None), False, None, "billing", True)
    outcome = list(evaluation(iter([messages(parent(1), parent(2), None)])))
    assert sum(batch.num_rows for batch in outcome) > 0
    spans = spans_of(exporter, "process Work")
    assert current[:2] == [1, 2]
    assert [span.context.trace_id for span in spans if span.context is not None] == current
    assert [dict(span.attributes or {}).get("error.type") for span in spans] == [None, "ValueError", None]
    assert {dict(span.attributes or {})["messaging.consumer.group.name"] for span in spans} == {"billing"}


def test_a_call_with_a_batch_has_links(exporter: InMemorySpanExporter) -> None:
    form = ArrowFunction(lambda batch: None, None)
    list(
        Evaluation(form, Policy.parse(3, None), False, None, "g", True)(
            iter([messages(parent(1), parent(2))])
        )
    )
    (span,) = spans_of(exporter, "process Work")
    assert [link.context.trace_id for link in span.links] == [1, 2]
    assert dict(span.attributes or {})["messaging.batch.message_count"] == 2


def rows(*parents: str) -> pa.RecordBatch:
    properties = [[("a", "b"), ("traceparent", parent)] for parent in parents]
    column = pa.array(properties, pa.map_(pa.string(), pa.string()))
    return pa.record_batch([column], names=["properties"])


def parent(number: int) -> str:
    return f"00-{number:032x}-{number:016x}-01"


def test_a_link_has_the_attributes_of_its_message(exporter: InMemorySpanExporter) -> None:
    known = [("traceparent", parent(1)), ("UNIQ_KEY", "ID1"), ("TAGS", "paid"), ("KEYS", "a b")]
    properties = pa.array([None, [("traceparent", "none")], known, [("traceparent", parent(2))]], COLUMN)
    values, queues = pa.array([b"", b"", b"abc", None]), pa.array([0, 0, 3, 0], pa.int32())
    batch = pa.record_batch([properties, values, queues], names=["properties", "value", "partition"])
    assert list(TaskSpans().received(iter([batch.slice(1)]), ["A"], "g")) == [batch.slice(1)]
    (span,) = spans_of(exporter, "receive A")
    assert [dict(link.attributes or {}) for link in span.links] == [
        {
            "messaging.message.id": "ID1",
            "messaging.message.body.size": 3,
            "messaging.rocketmq.message.tag": "paid",
            "messaging.rocketmq.message.keys": ("a", "b"),
            "messaging.destination.partition.id": "3",
        },
        {"messaging.destination.partition.id": "0"},
    ]


def test_links_are_bounded_and_each_trace_has_one(exporter: InMemorySpanExporter) -> None:
    batches = [
        rows(parent(1), parent(1), "no trace", ""),
        rows(*[parent(number) for number in range(1, MAX_LINKS * 2)]),
        pa.record_batch([pa.array([1])], names=["offset"]),
    ]
    assert list(TaskSpans().received(iter(batches), ["A", "B"], "g")) == batches
    (span,) = spans_of(exporter, "receive A")
    assert [link.context.trace_id for link in span.links] == list(range(1, MAX_LINKS + 1))
    assert dict(span.attributes or {})["messaging.batch.message_count"] == 4 + MAX_LINKS * 2 - 1 + 1


def test_a_task_that_fails_or_is_left(exporter: InMemorySpanExporter) -> None:
    def failing() -> Iterator[pa.RecordBatch]:
        yield rows(parent(1))
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        list(TaskSpans().received(failing(), ["A"], "g"))
    left = TaskSpans().received(iter([rows(parent(1))] * 3), ["A"], "g")
    next(left)
    left.close()  # type: ignore[attr-defined]
    failed, ended = spans_of(exporter, "receive A")
    assert dict(failed.attributes or {})["error.type"] == "OSError"
    assert ended.status.is_ok
    assert dict(ended.attributes or {})["messaging.batch.message_count"] == 1


def test_without_the_api_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(ConfigError, match=r"^openTelemetry: needs .*mqspark\[otel\]"):
        TaskSpans()


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
        ran = run_python(
            DRIVER,
            json.dumps(options),
            spark_options(),
            env={
                **os.environ,
                "PYTHONPATH": path,
                "PYSPARK_PYTHON": sys.executable,
                "SPARK_LOCAL_IP": "127.0.0.1",
            },
            check=True,
        )
    (row,) = [each for each in json.loads(ran.stdout.splitlines()[-1]) if each]
    (span,) = [json.loads(line) for line in out.read_text().splitlines()]
    assert span["name"] == "receive Traced"
    assert [link["context"]["trace_id"] for link in span["links"]] == ["0x" + row.split("-")[1]]
