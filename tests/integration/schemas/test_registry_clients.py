"""Confluent's clients, as they are, against the schema registry of a cluster: through each broker and the console."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.serialization import MessageField, SerializationContext

from mqspark import Message
from mqspark.client.remoting.identity import ClientOptions
from mqspark.testing import Clients, Cluster
from mqspark_server.console.gateway import ConsoleApp
from tests.support.commands import mqspark
from tests.support.waiting import eventually
from tests.unit.registry_kit import BREAKING, FIRST, SECOND, field, record

MEDIA_TYPE = "application/vnd.schemaregistry.v1+json"
ORDER = record(field("id"), field("count", "int"))


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(2, http=True) as running:
        yield running


class At:
    """Makes clients, and closes them."""

    def __init__(self) -> None:
        self._open = ExitStack()

    def __call__(self, url: str, **more: str) -> SchemaRegistryClient:
        return self._open.enter_context(SchemaRegistryClient({"url": url, "max.retries": 0, **more}))

    def close(self) -> None:
        self._open.close()


@pytest.fixture
def client_at() -> Iterator[At]:
    made = At()
    yield made
    made.close()


@contextmanager
def console_of(cluster: Cluster) -> Iterator[str]:
    """The base of the URLs of a console of its own process kind, on a loop of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    app = ConsoleApp(cluster.namesrv, ClientOptions(), 0)
    try:
        asyncio.run_coroutine_threadsafe(app.start(), loop).result(60)
        yield app.url.removesuffix("/console")
    finally:
        asyncio.run_coroutine_threadsafe(app.stop(), loop).result(60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)
        loop.close()


def refused(call: object, *arguments: object) -> tuple[int, int]:
    assert callable(call)
    with pytest.raises(SchemaRegistryError) as raised:
        call(*arguments)
    return raised.value.http_status_code, raised.value.error_code


def test_every_door_leads_to_one_registry(cluster: Cluster, client_at: At) -> None:
    first, second = map(client_at, cluster.http_urls)
    assert first.register_schema("Doors-value", Schema(FIRST, "AVRO")) == 1
    with console_of(cluster) as url:
        for other in (second, client_at(url)):
            assert other.register_schema("Doors-value", Schema(FIRST, "AVRO")) == 1
            assert other.get_latest_version("Doors-value").version == 1
            assert other.get_schema(1).schema_str == json.dumps(json.loads(FIRST), separators=(",", ":"))
            assert refused(other.get_version, "Doors-value", 9) == (404, 40402)
        schema_id = client_at(url).register_schema("Doors-value", Schema(SECOND, "AVRO"))
    assert first.get_latest_version("Doors-value").schema_id == schema_id
    assert second.get_versions("Doors-value") == [1, 2]


def test_a_subject_lives_as_clients_expect(cluster: Cluster, client_at: At) -> None:
    client = client_at(cluster.http_urls[1])
    subject = "Life-value"
    assert refused(client.get_versions, subject) == (404, 40401)
    client.register_schema(subject, Schema(FIRST, "AVRO"))
    assert client.lookup_schema(subject, Schema(FIRST, "AVRO")).version == 1
    assert client.test_compatibility(subject, Schema(SECOND, "AVRO"))
    assert not client.test_compatibility(subject, Schema(BREAKING, "AVRO"))
    assert refused(client.register_schema, subject, Schema(BREAKING, "AVRO")) == (409, 409)
    assert refused(client.register_schema, subject, Schema("{", "AVRO")) == (422, 42201)
    assert client.get_compatibility(subject_name=None) == "BACKWARD"
    client.set_compatibility(subject, "NONE")
    assert client.get_compatibility(subject) == "NONE"
    client.register_schema(subject, Schema(BREAKING, "AVRO"))
    assert client.delete_version(subject, 2) == 2
    assert client.get_versions(subject) == [1]
    assert client.delete_subject(subject) == [1]
    assert subject not in client.get_subjects()
    assert subject in client.get_subjects(deleted=True)
    assert client.delete_subject(subject, permanent=True) == [1, 2]
    assert subject not in client.get_subjects(deleted=True)


def test_references_are_found_again(cluster: Cluster, client_at: At) -> None:
    client = client_at(cluster.http_urls[0])
    client.register_schema("Address", Schema(record(field("city"), name="Address"), "AVRO"))
    needs = [SchemaReference("Address", "Address", 1)]
    letter = Schema(record(field("to", "Address"), name="Letter"), "AVRO", needs)
    schema_id = client.register_schema("Letters-value", letter)
    assert client_at(cluster.http_urls[1]).get_schema(schema_id).references == needs
    assert refused(client.delete_subject, "Address") == (422, 42206)
    answer = httpx.get(f"{cluster.http_urls[0]}/subjects/Address/versions/1/referencedby", timeout=60)
    assert (answer.json(), answer.headers["content-type"]) == ([schema_id], MEDIA_TYPE)


def test_avro_messages_name_their_schema(cluster: Cluster, client_at: At) -> None:
    writer, reader = map(client_at, cluster.http_urls)
    context = SerializationContext("Typed", MessageField.VALUE)
    order = {"id": "o-1", "count": 3}
    body = AvroSerializer(writer, ORDER)(order, context)
    assert body is not None
    with Clients(cluster.namesrv) as clients:
        clients.admin().create_topic("Typed", queues=1)
        with clients.producer() as producer:
            producer.send(Message.of("Typed", body))
        consumer = clients.lite_pull_consumer("Typed")
        found = [*consumer.poll(timeout_ms=30_000)]
        stored = found[0].body
    assert AvroDeserializer(reader)(stored, context) == order
    assert reader.get_subjects(subject_prefix="Typed") == ["Typed-value"]


def test_many_who_register_the_same_get_the_same(cluster: Cluster, client_at: At) -> None:
    clients = [client_at(url) for url in cluster.http_urls * 4]

    def register(number: int) -> list[int]:
        schemas = [Schema(record(field(f"f{each}"), name="Race"), "AVRO") for each in range(5)]
        return [
            clients[number].register_schema(f"Race{each}-value", schema)
            for each, schema in enumerate(schemas)
        ]

    with ThreadPoolExecutor(len(clients)) as pool:
        found = list(pool.map(register, range(len(clients))))
    assert all(each == found[0] for each in found)
    assert len(set(found[0])) == 5


def test_errors_have_the_form_of_the_registry(cluster: Cluster) -> None:
    for url in cluster.http_urls:
        large = httpx.post(
            f"{url}/subjects/Large-value/versions", content=b'{"schema":"' + b" " * (5 << 20), timeout=60
        )
        assert (large.status_code, large.json()["error_code"]) == (413, 41301)
        bad = httpx.get(f"{url}/subjects/a@b/versions", timeout=60)
        assert (bad.status_code, bad.headers["content-type"]) == (422, MEDIA_TYPE)
        types = httpx.get(f"{url}/schemas/types", timeout=60)
        assert types.json() == ["AVRO", "JSON", "PROTOBUF"]


def test_the_command_line_shows_registers_and_compares(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", cluster.namesrv)
    first, second, breaking = (tmp_path / name for name in ("a.avsc", "b.avsc", "c.avsc"))
    for path, text in ((first, FIRST), (second, SECOND), (breaking, BREAKING)):
        path.write_text(text)
    registered = mqspark("schema", "register", "Lines-value", str(first), "-o", "json").json
    assert registered["version"] == 1
    assert mqspark("schema", "check", "Lines-value", str(second)).code == 0
    failed = mqspark("schema", "check", "Lines-value", str(breaking))
    assert (failed.code, "count" in failed.out) == (3, True)
    assert mqspark("schema", "register", "Lines-value", str(breaking)).code == 1
    assert mqspark("schema", "register", "Lines-value", str(second)).code == 0
    assert "Lines-value" in mqspark("schema", "list", "Lines*").out
    described = mqspark("schema", "describe", "Lines-value", "-o", "json").json
    assert (described["version"], described["level"], described["versions"]) == (2, "BACKWARD", [2, 1])
    assert "+" in mqspark("schema", "diff", "Lines-value").out
    missing = mqspark("schema", "describe", "Line-value")
    assert (missing.code, "Lines-value" in missing.err) == (3, True)


def test_a_failover_and_a_restart_keep_ids(tmp_path: Path, client_at: At) -> None:
    with Cluster(3, replication="controller", http=True, store=tmp_path) as replicas:
        old = replicas.master
        assert old is not None
        client = client_at(replicas.http_urls[old])
        assert client.register_schema("Orders-value", Schema(FIRST, "AVRO")) == 1
        assert client.register_schema("Orders-value", Schema(SECOND, "AVRO")) == 2
        client.delete_version("Orders-value", 2)
        client.delete_subject("Orders-value", permanent=False)
        replicas.kill(old)
        eventually(lambda: replicas.master not in (None, old))
        others = [url for number, url in enumerate(replicas.http_urls) if number != old]

        def registered() -> bool:
            return [
                client_at(url).register_schema("Other-value", Schema(SECOND, "AVRO")) for url in others
            ] == [2, 2]

        def answers() -> bool:
            try:
                return registered()
            except SchemaRegistryError:
                return False

        eventually(answers)
        assert client_at(others[0]).get_subjects(deleted=True) == ["Orders-value", "Other-value"]
        assert client_at(others[1]).register_schema("Orders-value", Schema(ORDER, "AVRO")) == 3
