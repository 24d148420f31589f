"""Serializers against the registry of a broker: what they ask, how often, and what they refuse."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from mqspark.client.typed.registeredschemas import MAX_REFUSED_S, RegisteredSchemas
from mqspark.client.typed.registryclient import RegistryClient
from mqspark.client.typed.serializer import Serializer
from mqspark.client.typed.typedlistener import TypedMessages
from mqspark.errors import ConfigError, InvalidMessage, NoSchemaRegistry, SchemaRefused
from mqspark.message import Message, MessageExt
from mqspark.schemas.parsedschema import MAX_SCHEMA_DEPTH
from mqspark.schemas.parsing import parse
from tests.support.receivedmessages import received
from tests.unit.registry_kit import FIRST, SECOND, RegistryBench, field, record

ORDERS = "Orders"


class Asked(RegistryClient):
    """Asks the broker of a bench, and counts."""

    def __init__(self, bench: RegistryBench) -> None:
        super().__init__("http://127.0.0.1:1", credentials=False)
        self.counts = Counter[str]()
        self.is_away = False
        self._bench = bench

    def ask(
        self,
        operation: str,
        *,
        subject: str | None = None,
        version: int | str | None = None,
        schema_id: int | None = None,
        options: Mapping[str, str] | None = None,
        document: object = None,
    ) -> Any:
        self.counts[operation] += 1
        if self.is_away:
            raise NoSchemaRegistry("it is away")
        text = "&".join(f"{name}={value}" for name, value in (options or {}).items())
        told = self._bench.told(
            operation, subject, document, version=version, schema_id=schema_id, options=text or None
        )
        if told.status >= 300:
            raise SchemaRefused(told.document["message"], told.status, told.code)
        return told.document


@pytest.fixture
def bench(tmp_path: Path) -> RegistryBench:
    return RegistryBench(tmp_path / "store")


@pytest.fixture
def registry(bench: RegistryBench) -> Asked:
    return Asked(bench)


def test_a_schema_is_asked_for_once(registry: Asked) -> None:
    writer = Serializer(registry, parse("AVRO", SECOND))
    assert not writer.can_write(ORDERS)
    bodies = [writer.write(ORDERS, {"id": str(each)}) for each in range(100)]
    assert writer.can_write(ORDERS)
    assert registry.counts == {"register": 1, "get_schema": 1}
    reader = Serializer(registry)
    assert not reader.can_read(ORDERS, bodies[0])
    assert [reader.read(ORDERS, body)["id"] for body in bodies] == [str(each) for each in range(100)]
    assert reader.can_read(ORDERS, bodies[0])
    assert registry.counts == {"register": 1, "get_schema": 2, "list_id_versions": 1}


def test_ids_that_are_not_known_are_asked_for_once_in_a_while(registry: Asked) -> None:
    now_s = [0.0]
    schemas = RegisteredSchemas(registry, lambda: now_s[0])
    for _ in range(5):
        with pytest.raises(InvalidMessage, match="schema 99: it is not registered"):
            schemas.by_id(99)
        with pytest.raises(InvalidMessage, match="schema 99: it is not registered"):
            schemas.check_is_of(99, "Orders-value")
    assert registry.counts == {"get_schema": 1, "list_id_versions": 1}
    now_s[0] += MAX_REFUSED_S
    with pytest.raises(InvalidMessage):
        schemas.by_id(99)
    assert registry.counts["get_schema"] == 2


def test_a_body_is_of_a_schema_of_its_topic(registry: Asked) -> None:
    body = Serializer(registry, parse("AVRO", FIRST)).write(ORDERS, {"id": "1"})
    reader = Serializer(registry)
    with pytest.raises(InvalidMessage, match="it is none of subject Others-value"):
        reader.read("Others", body)
    for bad, reason in (
        (b"", "does not begin with the id"),
        (b"\x01" + body[1:], "does not begin with the id"),
        (body[:-1], "does not fit its schema"),
        (body + b"\x00", "does not fit its schema"),
        (b"\0\0\0\x30\x39\x00", "schema 12345"),
    ):
        with pytest.raises(InvalidMessage, match=reason) as raised:
            reader.read(ORDERS, bad)
        assert raised.value.field == "value"


def test_a_value_that_does_not_fit_is_refused_before_it_is_sent(registry: Asked) -> None:
    writer = Serializer(registry, parse("AVRO", record(field("id"), field("count", "int"))))
    for bad in (
        {"id": "1"},
        {"id": 1, "count": 1},
        {"id": "1", "count": 1 << 31},
        {"id": "1", "count": 1, "more": 2},
        None,
        [],
        "text",
    ):
        with pytest.raises(InvalidMessage, match="value does not fit its schema"):
            writer.write(ORDERS, bad)


def test_a_schema_with_references_is_registered_and_read(bench: RegistryBench, registry: Asked) -> None:
    bench.register(record(field("city"), name="Address"), "Address")
    text = record(field("to", "Address"), name="Letter")
    bench.register(
        text, "Letters-value", references=[{"name": "Address", "subject": "Address", "version": 1}]
    )
    latest = Serializer(registry)
    body = latest.write("Letters", {"to": {"city": "Bonn"}})
    assert Serializer(registry).read("Letters", body) == {"to": {"city": "Bonn"}}


def test_references_in_a_circle_end(registry: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    circle = {
        "schema": record(field("x", "A"), name="A"),
        "references": [{"name": "A", "subject": "A", "version": 1}],
    }
    monkeypatch.setattr(registry, "ask", lambda operation, **_: circle)
    with pytest.raises(InvalidMessage, match=f"references are more than {MAX_SCHEMA_DEPTH} deep"):
        RegisteredSchemas(registry).by_id(1)


def test_answers_that_are_none_of_a_registry_are_told(
    registry: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: tuple[Any, ...] = ([], {}, {"schema": 3}, None, "x", {"id": True})
    for answer in answers:
        monkeypatch.setattr(registry, "ask", lambda operation, answer=answer, **_: answer)
        with pytest.raises((NoSchemaRegistry, InvalidMessage)):
            Serializer(registry).read(ORDERS, b"\0\0\0\0\x01x")
        with pytest.raises(NoSchemaRegistry):
            Serializer(registry, parse("AVRO", FIRST)).write(ORDERS, {"id": "1"})


@pytest.mark.parametrize(
    "urls",
    [
        "",
        [],
        "ftp://host",
        "host:80",
        "http://",
        "http://user:secret@host:80",
        "http://h/?q",
        "http://h h",
        "http://h:x",
    ],
)
def test_urls_are_checked(urls: Any) -> None:
    with pytest.raises(ConfigError) as raised:
        Serializer(urls)
    assert raised.value.key == "registry"
    assert "secret" not in str(raised.value)


def test_a_schema_is_a_schema() -> None:
    with pytest.raises(ConfigError) as raised:
        Serializer("http://127.0.0.1:1", FIRST)  # type: ignore[arg-type] # what a program may give
    assert raised.value.key == "schema"


def stored(body: bytes) -> MessageExt:
    return received(topic=ORDERS, body=body)


def test_a_listener_gets_values_and_a_registry_that_is_away_is_its_failure(registry: Asked) -> None:
    body = Serializer(registry, parse("AVRO", FIRST)).write(ORDERS, {"id": "1"})
    heard: list[Any] = []
    typed = TypedMessages(Serializer(registry), lambda topic: topic)
    listener = typed.heard(lambda messages: heard.append([each.value for each in messages]))
    registry.is_away = True
    counts = registry.counts.copy()
    with pytest.raises(NoSchemaRegistry, match="it is away"):
        listener([stored(body), stored(body), stored(body)])
    assert registry.counts.total() == counts.total() + 1
    registry.is_away = False
    listener([stored(body), stored(body)])
    assert heard == [[{"id": "1"}, {"id": "1"}]]


def test_a_message_takes_its_value_along_to_another_process(registry: Asked) -> None:
    body = Serializer(registry, parse("AVRO", FIRST)).write(ORDERS, {"id": "1"})
    read, unread = stored(body), stored(body)
    TypedMessages(Serializer(registry), lambda topic: topic).heard(lambda messages: messages[0].value)(
        [
            read,
            unread,
        ]
    )
    assert pickle.loads(pickle.dumps(read)).value == {"id": "1"}  # noqa: S301 - its own bytes
    there = pickle.loads(pickle.dumps(unread))  # noqa: S301 - its own bytes
    assert there == unread
    with pytest.raises(ConfigError, match="serializer"):
        _ = there.value


def test_names_of_topics_are_those_of_the_cluster(registry: Asked) -> None:
    typed = TypedMessages(Serializer(registry, parse("AVRO", FIRST)), lambda topic: f"NS%{topic}")
    written = typed.written_here(Message.of(ORDERS, value={"id": "1"}, keys="k", flag=3))
    assert (written.topic, written.keys, written.flag) == (ORDERS, "k", 3)
    assert registry.ask("list_subjects") == ["NS%Orders-value"]


def test_a_message_has_a_body_or_a_value() -> None:
    with pytest.raises(InvalidMessage, match="not both"):
        Message.of(ORDERS, b"x", value=1)
    plain = Message.of(ORDERS, b"x")
    typed = TypedMessages(Serializer("http://127.0.0.1:1", credentials=False), lambda topic: topic)
    assert typed.written_here(plain) is plain
