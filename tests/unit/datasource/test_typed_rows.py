"""Typed columns without a cluster: what becomes of bodies, with a schema from the options or a registry over HTTP."""

from __future__ import annotations

import json
import pickle
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import IntegerType, LongType, StringType, StructType, TimestampType

from mqspark.arrow.writing import sendrows
from mqspark.arrow.writing.sendchoice import SendChoice
from mqspark.errors import ConfigError, InvalidMessage
from mqspark.schemas.schemaprefix import encode_prefix
from pyspark_pymq.options import ReadOptions
from pyspark_pymq.optiontexts import OptionTexts
from pyspark_pymq.payloadoptions import PayloadOptions
from pyspark_pymq.typed.typedcolumns import TypedRows, columns_of_source
from pyspark_pymq.work.deadbodies import DeadBodies
from tests.unit.arrow.bodies_kit import avro_body, record

OLD, NEW = record(id="int"), record(id="long", name=("string", "nobody"))
OTHER = record(x="int")
JSON_ROW = {
    "type": "object",
    "properties": {"id": {"type": "integer"}, "at": {"type": ["string", "null"], "format": "date-time"}},
}
PROTO = """syntax = "proto3"; package p;
message A { int32 id = 1; message In { int64 n = 1; } } message B { string s = 1; }"""


@pytest.fixture
def registry() -> Iterator[str]:
    """Answers like Confluent's: Orders-value has ids 1 and 2, Other-value id 3."""

    def schema(number: int) -> dict[str, Any]:
        return {"id": number, "schema": json.dumps([OLD, NEW, OTHER][number - 1])}

    nested = {"type": "record", "name": "Whole", "fields": [{"name": "row", "type": "Row"}]}
    whole = {"id": 4, "schema": json.dumps(nested)}
    whole["references"] = [{"name": "Row", "subject": "Orders-value", "version": 1}]
    proto = {"id": 6, "schema": PROTO, "schemaType": "PROTOBUF"}
    later = {
        8: PROTO.replace("int32 id", "sint32 id"),
        9: PROTO.replace("int32 id", "int64 id"),
        10: PROTO.replace("int32 id = 1;", "int32 number = 1; int32 more = 2;"),
    }
    circle = whole | {"references": [{"name": name, "subject": "Circle", "version": 1} for name in "ab"]}
    answers = {
        "/subjects/Orders-value/versions/latest": schema(2),
        "/subjects/Orders-value/versions/1": schema(1),
        "/subjects/Whole/versions/latest": whole,
        "/subjects/Circle/versions/latest": circle,
        "/subjects/Circle/versions/1": circle,
        "/subjects/Proto/versions/latest": proto,
        "/subjects/Proto/versions/1": proto,
        "/schemas/ids/6": proto,
        **{f"/schemas/ids/{each}": proto | {"schema": text} for each, text in later.items()},
        **{f"/schemas/ids/{each}/versions": [{"subject": "Proto", "version": 1}] for each in (6, *later)},
        "/subjects/Text/versions/latest": {"id": 5, "schema": json.dumps(JSON_ROW), "schemaType": "JSON"},
        "/subjects/Any/versions/latest": {"id": 7, "schema": "{}", "schemaType": "JSON"},
        "/schemas/ids/5/versions": [{"subject": "Text", "version": 1}],
        **{f"/schemas/ids/{each}": schema(each) for each in (1, 2, 3)},
        "/schemas/ids/4": whole,
        "/schemas/ids/1/versions": [{"subject": "Orders-value", "version": 1}],
        "/schemas/ids/2/versions": [{"subject": "Orders-value", "version": 2}],
        "/schemas/ids/3/versions": [{"subject": "Other-value", "version": 1}],
        "/schemas/ids/4/versions": [{"subject": "Whole", "version": 1}],
    }

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = answers.get(self.path.removesuffix("?deleted=true"))
            body = json.dumps(
                found if found is not None else {"error_code": 40403, "message": "Schema not found."}
            ).encode()
            self.send_response(200 if found is not None else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def options(**texts: str) -> PayloadOptions:
    found = PayloadOptions.parse(OptionTexts(texts))
    assert found is not None
    return found


def read(
    texts: Mapping[str, str], schema: StructType, bodies: list[bytes | None], *columns: str
) -> list[dict[str, Any]]:
    made = TypedRows.planned(options(**texts), columns or ("offset",), schema, "Orders")
    rows: TypedRows = pickle.loads(pickle.dumps(made))  # noqa: S301 - as Spark hands it to a worker
    count = len(bodies)
    values = {
        "offset": pa.array(range(count), pa.int64()),
        "topic": pa.array(["Orders"] * count),
        "partition": pa.array([3] * count, pa.int32()),
        "value": pa.array(bodies, pa.binary()),
    }
    batch = pa.RecordBatch.from_pydict({name: values[name] for name in rows.columns})
    found = list(rows.rows([batch]))
    assert all(each.schema == rows.schema for each in found)
    return [row for each in found for row in each.to_pylist()]


ID = StructType().add("offset", LongType()).add("id", LongType())
ID_N = StructType().add("offset", LongType()).add("n", LongType())
JSON = {"payloadFormat": "json"}
BODIES: list[bytes | None] = [b'{"id":1}', b"", b'{"id":"x"}', None, b'{"id":5}']


def test_modes() -> None:
    null = [{"offset": at, "id": value} for at, value in enumerate([1, None, None, None, 5])]
    assert read(JSON, ID, BODIES) == null
    assert read(JSON | {"mode": "dropMalformed"}, ID, BODIES) == [null[0], null[4]]
    with pytest.raises(InvalidMessage, match="message at offset 1 of queue 3 of Orders: the body is empty"):
        read(JSON | {"mode": "FAILFAST"}, ID, BODIES)
    assert read(JSON | {"mode": "FAILFAST"}, ID, [b'{"id":1}']) == null[:1]
    why = StructType().add("id", LongType()).add("why", StringType())
    reasons = [row["why"] for row in read(JSON | {"columnNameOfCorruptRecord": "why"}, why, BODIES)]
    assert reasons == [
        None,
        "the body is empty",
        "Expected `int | null`, got `str` - at `$.id`",
        "the message has no body",
        None,
    ]


def test_bad_bodies_become_dead_letters_before_a_task_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[dict[str, Any]] = []

    def send_rows(choice: SendChoice, batches: list[pa.RecordBatch], *, first_turn: int) -> None:
        assert (choice.topic, choice.as_dead_letters) == ("%RETRY%readers", True)
        assert sum(each.num_rows for each in batches) <= 1_000
        sent.extend(row for each in batches for row in each.to_pylist())

    monkeypatch.setattr(sendrows, "send_rows", send_rows)
    texts = {"nameserver": "127.0.0.1:1", "topic": "Orders", **JSON, "mode": "deadletter"}
    given = ReadOptions.parse(texts | {"group": "readers"}, streaming=True)
    assert given.payload is not None
    made = TypedRows.planned(given.payload, ("offset",), ID, "Orders", DeadBodies.of(given, "readers"))
    rows: TypedRows = pickle.loads(pickle.dumps(made))  # noqa: S301 - as Spark hands it to a worker
    assert {"offset", "value", "properties", "msgId"} <= {*rows.columns}
    count = 2_500
    columns = {
        "offset": pa.array(range(count), pa.int64()),
        "value": pa.array([b'{"id":1}', *[b"{"] * (count - 1)], pa.binary()),
        "key": pa.array(["k"] * count),
        "tags": pa.nulls(count, pa.string()),
        "topic": pa.array(["Orders"] * count),
        "msgId": pa.array(map(str, range(count))),
        "properties": pa.array([[("a", "b")]] * count, pa.map_(pa.string(), pa.string())),
    }
    batch = pa.RecordBatch.from_pydict({name: columns[name] for name in rows.columns})
    assert [row for each in rows.rows([batch]) for row in each.to_pylist()] == [{"offset": 0, "id": 1}]
    assert len(sent) == count - 1
    properties = dict(sent[0]["properties"])
    assert (sent[0]["value"], sent[0]["key"]) == (b"{", "k")
    assert {name: properties[name] for name in ("a", "RETRY_TOPIC", "UNIQ_KEY", "MQSPARK_FAILED_TYPE")} == {
        "a": "b",
        "RETRY_TOPIC": "Orders",
        "UNIQ_KEY": "1",
        "MQSPARK_FAILED_TYPE": "MalformedBody",
    }
    assert "truncated" in properties["MQSPARK_FAILED_TEXT"]
    with pytest.raises(ConfigError, match=r"^mode: DEADLETTER needs the option group"):
        ReadOptions.parse(texts, streaming=True)
    with pytest.raises(ConfigError, match=r"^mode: DEADLETTER is of streams"):
        ReadOptions.parse(texts | {"group": "readers"}, streaming=False)


def test_a_large_read_is_made_in_parts_that_keep_their_places() -> None:
    count = 70_000
    found = read(
        JSON | {"mode": "DROPMALFORMED"}, ID, [b'{"id":%d}' % at if at % 7 else b"{" for at in range(count)]
    )
    assert [(row["offset"], row["id"]) for row in found] == [(at, at) for at in range(count) if at % 7]


def test_names_that_message_and_body_share() -> None:
    body = [b'{"offset":"mine","Topic":"x"}']
    twice = StructType().add("offset", LongType()).add("offset", StringType())
    with pytest.raises(ConfigError, match=r"'offset' is there twice, .*messagePrefix"):
        read(JSON, twice, body)
    with pytest.raises(ConfigError, match="column 'offset' is bigint, not string"):
        read(JSON, StructType().add("offset", StringType()), body)
    both = StructType().add("offset", StringType()).add("mq_offset", LongType())
    assert read(JSON | {"messagePrefix": "mq_"}, both, body) == [{"offset": "mine", "mq_offset": 0}]
    mine = StructType().add("topic", StringType()).add("offset", StringType())
    assert read(JSON, mine, body, "topic") == [{"topic": "Orders", "offset": "mine"}]
    assert read(JSON, StructType().add("broker", StringType()), [b'{"broker":"b"}']) == [{"broker": "b"}]


def test_columns_that_may_not_be_null_are_refused() -> None:
    with pytest.raises(ConfigError, match="'id' may be null"):
        read(JSON, StructType().add("id", LongType(), nullable=False), [])


def test_columns_without_a_schema_of_the_user() -> None:
    ddl = options(**JSON, payloadSchema=" id bigint, ", messagePrefix="m_", columnNameOfCorruptRecord="why")
    assert columns_of_source(ddl, ("offset", "timestamp"), None) == (
        "`m_offset` bigint, `m_timestamp` timestamp_ltz, id bigint, `why` string"
    )
    avro = options(payloadFormat="avro", payloadSchema=json.dumps(NEW))
    expected = StructType().add("timestamp", TimestampType()).add("id", LongType()).add("name", StringType())
    assert columns_of_source(avro, ("timestamp",), None) == expected
    with pytest.raises(ConfigError, match=r"^payloadSchema: required with payloadFormat=json"):
        columns_of_source(options(**JSON), ("offset",), None)


@pytest.mark.parametrize(
    ("texts", "says"),
    [
        ({"payloadFormat": "avro", "payloadSchema": "{"}, r"^payloadSchema: Invalid schema of type AVRO"),
        ({"payloadFormat": "avro", "payloadSchema": '"int"'}, "columns come from a record"),
        ({"payloadFormat": "avro", "payloadSchemaFile": "/no/such"}, r"^payloadSchemaFile: .*No such file"),
        (
            {"payloadFormat": "protobuf", "payloadSchemaFile": "/dev/null"},
            r"^payloadMessage: required with a set",
        ),
        (
            {"payloadFormat": "protobuf", "payloadSchema": "message {"},
            r"^payloadSchema: Invalid schema of type PROTOBUF",
        ),
        (
            {"payloadFormat": "protobuf", "payloadSchemaFile": "/dev/null", "payloadMessage": "a.B"},
            r"^payloadMessage: the schema has no message 'a.B'",
        ),
    ],
)
def test_schemas_that_give_no_columns_name_their_option(texts: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        columns_of_source(options(**texts), ("offset",), None)


def test_each_body_is_read_by_the_schema_of_its_id(registry: str) -> None:
    texts = {"payloadFormat": "avro", "schemaRegistry": registry, "columnNameOfCorruptRecord": "why"}
    bodies: list[bytes | None] = [
        encode_prefix(1) + avro_body(OLD, {"id": 1}),
        encode_prefix(2) + avro_body(NEW, {"id": 1 << 40, "name": "x"}),
        encode_prefix(3) + avro_body(OTHER, {"x": 1}),
        encode_prefix(99) + b"\2",
        avro_body(OLD, {"id": 1}),
    ]
    latest = columns_of_source(options(**texts), ("offset",), "Orders")
    assert isinstance(latest, StructType)
    assert latest.names == ["offset", "id", "name", "why"]
    assert [(row["id"], row["name"], row["why"]) for row in read(texts, latest, bodies)] == [
        (1, "nobody", None),
        (1 << 40, "x", None),
        (None, None, "schema 3: it is none of subject Orders-value"),
        (None, None, "schema 99: it is not registered"),
        (None, None, "the body does not begin with the id of a schema"),
    ]
    pinned = texts | {"schemaVersion": "1"}
    older = columns_of_source(options(**pinned), ("offset",), "Orders")
    assert isinstance(older, StructType)
    assert older == StructType().add("offset", LongType()).add("id", IntegerType()).add("why", StringType())
    assert [(row["id"], row["why"]) for row in read(pinned, older, bodies[:2])] == [
        (1, None),
        (None, "schema 2: id is long where it was written, not int"),
    ]


def test_json_by_a_json_schema(registry: str) -> None:
    """The schema is the registry's, where bodies may have an id, or the option's."""
    named = {**JSON, "schemaRegistry": registry, "schemaSubject": "Text"}
    given = {**JSON, "payloadSchema": json.dumps(JSON_ROW)}
    expected = StructType().add("offset", LongType()).add("id", LongType()).add("at", TimestampType())
    for texts in (named, given):
        assert columns_of_source(options(**texts), ("offset",), "Orders") == expected
        with pytest.raises(ConfigError, match=r"^schema: the body has no column 'x'; it has id, at"):
            read(texts, StructType().add("x", LongType()), [])
        with pytest.raises(ConfigError, match=r"^schema: column 'id' is int64 in the body, not int32"):
            read(texts, StructType().add("id", IntegerType()), [])
    whole = b'{"id":1,"at":"2024-02-29T00:00:00Z","more":[]}'
    bodies: list[bytes | None] = [encode_prefix(5) + whole, whole, encode_prefix(1) + whole, b"\0\0", None]
    why = StructType().add("id", LongType()).add("why", StringType())
    found = read(named | {"columnNameOfCorruptRecord": "why"}, why, bodies)
    assert [row["id"] for row in found] == [1, 1, None, None, None]
    assert [row["why"] for row in found][2] == "schema 1: it is none of subject Text"
    with pytest.raises(ConfigError, match=r"^schemaRegistry: .*it has no type"):
        columns_of_source(options(**named | {"schemaSubject": "Any"}), ("offset",), "Orders")


def test_a_schema_that_needs_others(registry: str) -> None:
    texts = {"payloadFormat": "avro", "schemaRegistry": registry, "schemaSubject": "Whole"}
    inner = StructType().add("id", IntegerType())
    found = read(texts, StructType().add("row", inner), [encode_prefix(4) + avro_body(OLD, {"id": 9})])
    assert found == [{"row": {"id": 9}}]


def test_protobuf_by_a_text(tmp_path: Path) -> None:
    file = tmp_path / "rows.proto"
    file.write_text(PROTO)
    for texts in ({"payloadSchema": PROTO}, {"payloadSchemaFile": str(file)}):
        found = options(payloadFormat="protobuf", payloadMessage="p.A.In", **texts)
        assert columns_of_source(found, ("offset",), None) == ID_N
        first = read(
            {"payloadFormat": "protobuf", **texts}, StructType().add("id", IntegerType()), [b"\x08\x07"]
        )
        assert first == [{"id": 7}]


def test_protobuf_of_a_registry_says_which_message_a_body_is(registry: str) -> None:
    texts = {"payloadFormat": "protobuf", "schemaRegistry": registry, "schemaSubject": "Proto"}
    texts["columnNameOfCorruptRecord"] = "why"
    head = encode_prefix(6, (0,))
    bodies: list[bytes | None] = [
        head + b"\x08\x07",
        encode_prefix(6, (1,)) + b"\x0a\x01x",
        encode_prefix(6, (5,)),
        head[:-1],
        head,
        None,
    ]
    found = read(texts, StructType().add("id", IntegerType()).add("why", StringType()), bodies)
    whys = [str(row["why"]) for row in found]
    assert [row["id"] for row in found] == [7, None, None, None, 0, None]
    assert whys[1] == "the body is no p.A (it is a p.B)"
    assert "the file has no such message" in whys[2]
    assert "the path to the message is cut short" in whys[3]
    nested = texts | {"payloadMessage": "p.A.In"}
    wide = StructType().add("n", LongType())
    assert read(nested, wide, [encode_prefix(6, (0, 0)) + b"\x08\x09", head]) == [{"n": 9}, {"n": None}]


def test_protobuf_fields_keep_their_values_or_say_why_not(registry: str) -> None:
    """Ids 8 to 10 are later versions of the message that the reader has pinned."""
    texts = {"payloadFormat": "protobuf", "schemaRegistry": registry, "schemaSubject": "Proto"}
    texts |= {"schemaVersion": "1", "columnNameOfCorruptRecord": "why"}
    bodies: list[bytes | None] = [
        encode_prefix(number, (0,)) + body
        for number, body in ((6, b"\x08\x01"), (8, b"\x08\x01"), (9, b"\x08\x01"), (10, b"\x08\x03\x10\x04"))
    ]
    found = read(texts, StructType().add("id", IntegerType()).add("why", StringType()), bodies)
    assert [(row["id"], row["why"]) for row in found] == [
        (1, None),
        (None, "schema 8: field 1 of p.A is sint32 where it was written, not int32"),
        (None, "schema 9: field 1 of p.A is int64 where it was written, not int32"),
        (3, None),
    ]


@pytest.mark.parametrize(
    ("subject", "version", "says"),
    [
        ("None-value", "latest", r"None-value: the schema registry refuses \(40403\)"),
        ("Orders-value", "7", r"Orders-value: the schema registry refuses \(40403\)"),
        ("Circle", "latest", "Circle: references are more than 100 deep"),
        ("Text", "latest", "Text: it is a schema of type JSON"),
    ],
)
def test_what_a_registry_does_not_have(registry: str, subject: str, version: str, says: str) -> None:
    texts = {"schemaRegistry": registry, "schemaSubject": subject, "schemaVersion": version}
    with pytest.raises(ConfigError, match=f"^schemaRegistry: {says}"):
        columns_of_source(options(payloadFormat="avro", **texts), ("offset",), "Orders")


def test_a_registry_that_is_away_or_none() -> None:
    texts = {"payloadFormat": "avro", "schemaRegistry": "http://127.0.0.1:9"}
    with pytest.raises(
        ConfigError,
        match=r"^schemaRegistry: Orders-value: http://127.0.0.1:9/subjects/Orders-value/versions/latest:",
    ):
        columns_of_source(options(**texts), ("offset",), "Orders")
    with pytest.raises(ConfigError, match=r"^schemaSubject: required unless one topic is read"):
        columns_of_source(options(**texts), ("offset",), None)
