"""Confluent's clients, as they are, against the schema registry of a cluster: through each broker and the console."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka.schema_registry import (
    AssociationCreateOrUpdateRequest,
    ConfigCompatibilityLevel,
    Schema,
    SchemaReference,
    SchemaRegistryClient,
    ServerConfig,
)
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from mqspark import Message
from mqspark.client.remoting.client_options import ClientOptions
from mqspark.message import SCHEMAS_TOPIC
from mqspark.testing import Clients, Cluster
from mqspark_server.console.consoleapp import ConsoleApp
from tests.support.commands import mqspark
from tests.support.users import add_user, with_users
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


def test_json_messages_name_their_schema(cluster: Cluster, client_at: At) -> None:
    writer, reader = map(client_at, cluster.http_urls)
    context = SerializationContext("Documents", MessageField.VALUE)
    schema = json.dumps(
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "title": "Document",
            "type": "object",
            "properties": {"id": {"type": "string"}, "pages": {"type": "integer"}},
            "required": ["id"],
        }
    )
    document = {"id": "d-1", "pages": 3}
    body = JSONSerializer(schema, writer)(document, context)
    assert JSONDeserializer(None, schema_registry_client=reader)(body, context) == document
    stored = reader.get_latest_version("Documents-value")
    assert (stored.schema.schema_type, stored.version) == ("JSON", 1)
    assert stored.schema_id == int.from_bytes(body[1:5], "big")


def letter_class() -> Any:
    """A class as protoc would make it, with a message of another file in it."""
    pool = descriptor_pool.DescriptorPool()
    address = descriptor_pb2.FileDescriptorProto(name="address.proto", package="post", syntax="proto3")
    message = address.message_type.add(name="Address")
    message.field.add(name="city", number=1, type=9, label=1)
    letter = descriptor_pb2.FileDescriptorProto(
        name="letter.proto", package="post", syntax="proto3", dependency=["address.proto"]
    )
    message = letter.message_type.add(name="Letter")
    message.field.add(name="id", number=1, type=9, label=1)
    message.field.add(name="to", number=2, type=11, label=1, type_name=".post.Address")
    for each in (address, letter):
        pool.Add(each)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("post.Letter"))


def test_protobuf_messages_name_their_schema(cluster: Cluster, client_at: At) -> None:
    writer, reader = map(client_at, cluster.http_urls)
    context = SerializationContext("Post", MessageField.VALUE)
    letter = letter_class()
    sent = letter(id="l-1", to={"city": "Kiel"})
    body = ProtobufSerializer(letter, writer, {"use.deprecated.format": False})(sent, context)
    assert body is not None
    read = ProtobufDeserializer(letter, {"use.deprecated.format": False}, reader)(body, context)
    assert read == sent
    stored = reader.get_latest_version("Post-value")
    assert stored.schema.schema_type == "PROTOBUF"
    assert [each.subject for each in stored.schema.references] == ["address.proto"]


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
            f"{url}/subjects/Large-value/versions", content=b'{"schema":"' + b" " * (10 << 20), timeout=60
        )
        assert (large.status_code, large.json()["error_code"]) == (413, 41301)
        packed = httpx.post(f"{url}/config", content=b"{}", headers={"Content-Encoding": "gzip"}, timeout=60)
        assert (packed.status_code, packed.json()["error_code"]) == (415, 41501)
        bad = httpx.get(f"{url}/subjects/a@b/versions", timeout=60)
        assert (bad.status_code, bad.headers["content-type"]) == (422, MEDIA_TYPE)
        types = httpx.get(f"{url}/schemas/types", timeout=60)
        assert types.json() == ["AVRO", "JSON", "PROTOBUF"]


class Walked:
    """A client whose calls are noted by their names."""

    def __init__(self, client: SchemaRegistryClient) -> None:
        self._client = client
        self.called: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        self.called.add(name)
        return getattr(self._client, name)


def test_each_method_of_confluents_client_has_its_answer(cluster: Cluster, client_at: At) -> None:
    walked = Walked(client_at(cluster.http_urls[0]))
    subject, first, second = "Walk-value", Schema(FIRST, "AVRO"), Schema(SECOND, "AVRO")
    full = walked.register_schema_full_response(subject, first)
    later = walked.register_schema(subject, second, normalize_schemas=True)
    assert later != full.schema_id
    walked.clear_caches()
    walked.clear_latest_caches()
    assert walked.get_schema(full.schema_id, subject).schema_type == "AVRO"
    assert subject in walked.get_subjects_by_schema_id(later)
    assert (subject, 2) in [(each.subject, each.version) for each in walked.get_schema_versions(later)]
    assert sorted(walked.get_schema_types()) == ["AVRO", "JSON", "PROTOBUF"]
    assert subject in walked.get_subjects(subject_prefix="Walk")
    assert walked.lookup_schema(subject, first).version == 1
    assert walked.get_version(subject, 2).schema_id == later
    assert walked.get_latest_version(subject).version == 2
    assert walked.get_versions(subject) == [1, 2]
    assert walked.get_referenced_by(subject, 1) == []
    assert walked.test_compatibility(subject, Schema(SECOND, "AVRO"))
    assert not walked.test_compatibility_all_versions(subject, Schema(BREAKING, "AVRO"))
    assert walked.set_compatibility(subject, "FULL")["compatibility"] == "FULL"
    assert walked.get_compatibility(subject) == "FULL"
    walked.set_config(subject, ServerConfig(compatibility=ConfigCompatibilityLevel.NONE))
    assert walked.get_config(subject).compatibility_level is ConfigCompatibilityLevel.NONE
    walked.delete_config(subject)
    assert walked.get_config().compatibility_level is ConfigCompatibilityLevel.BACKWARD
    assert walked.update_mode(subject, "READONLY") == "READONLY"
    assert walked.get_mode(subject) == "READONLY"
    walked.delete_mode(subject)
    assert walked.update_global_mode("READWRITE") == walked.get_global_mode() == "READWRITE"
    assert walked.get_contexts() == ["."]
    assert walked.delete_version(subject, 1) == 1
    assert walked.delete_subject(subject) == [2]
    # What is not kept has no answer but an error that clients know.
    for call, arguments in (
        (walked.get_schema_by_guid, ("0b5ad0f5-3c5c-4d8f-8f4c-0f1b2a3c4d5e",)),
        (walked.get_latest_with_metadata, (subject, {"owner": "me"})),
        (walked.get_associations_by_resource_name, ("Walk", "-")),
        (walked.delete_associations, ("Walk",)),
        (walked.create_association, (AssociationCreateOrUpdateRequest(),)),
    ):
        status, code = refused(call, *arguments)
        assert (status, code) in ((404, 404), (405, 405))
    others = {"close", "new_client", "config"}
    methods = {name for name in dir(SchemaRegistryClient) if not name.startswith("_")}
    assert methods - walked.called - others == set()


NO_OPERATIONS = [
    ("GET", "/subjects/Doors-value/nothing", 404, 404),
    ("GET", "/schemas/ids/1/nothing", 404, 404),
    ("POST", "/subjects", 405, 405),
    ("DELETE", "/schemas/ids/1", 405, 405),
    ("PATCH", "/config", 405, 405),
    ("GET", "/subjects/a%2Fb/versions", 422, 42208),
    ("GET", "/subjects/..%2f..%2fetc/versions", 422, 42208),
    ("GET", "/subjects/a%00b/versions", 422, 42208),
    ("GET", "/subjects/a@b/versions", 422, 42208),
    ("GET", f"/subjects/{'s' * 256}/versions", 422, 42208),
    ("GET", "/subjects/Absent%20%C3%A9/versions", 404, 40401),
]


def test_what_is_no_operation_is_answered_as_clients_read_it(cluster: Cluster) -> None:
    with console_of(cluster) as console:
        for url in (cluster.http_urls[0], console):
            for method, path, status, code in NO_OPERATIONS:
                answer = httpx.request(method, url + path, timeout=60)
                assert (answer.status_code, answer.json()["error_code"]) == (status, code), answer.text
                assert answer.headers["content-type"] == MEDIA_TYPE
                assert answer.json()["message"]
            slash = httpx.get(f"{url}/schemas/types/", timeout=60, follow_redirects=True)
            assert slash.json() == ["AVRO", "JSON", "PROTOBUF"]


def test_the_command_line_shows_registers_and_compares(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", cluster.namesrv)
    events = tmp_path / "events"
    for name, value in (("TYPE", "file"), ("LOG_FILE_PATH", str(events)), ("APPEND", "true")):
        monkeypatch.setenv(f"OPENLINEAGE__TRANSPORT__{name}", value)
    first, second, breaking = (tmp_path / name for name in ("a.avsc", "b.avsc", "c.avsc"))
    for path, text in ((first, FIRST), (second, SECOND), (breaking, BREAKING)):
        path.write_text(text)
    registered = mqspark("schema", "register", "Lines-value", str(first), "-o", "json").json
    assert registered["version"] == 1
    eventually(lambda: events.exists() and events.read_text().endswith("\n"))
    told = json.loads(events.read_text())["dataset"]
    assert (told["namespace"], told["name"]) == (f"rocketmq://{cluster.namesrv}", "Lines")
    assert [each["name"] for each in told["facets"]["schema"]["fields"]] == ["id"]
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


def test_a_slave_answers_readers_while_its_master_is_down(tmp_path: Path, client_at: At) -> None:
    with Cluster(2, slaves=1, http=True, store=tmp_path) as cluster:
        keeper, other = (client_at(url) for url in cluster.http_urls[:2])
        schema_id = keeper.register_schema("Orders-value", Schema(FIRST, "AVRO"))
        slave = next(app for app in cluster.apps if app.config.broker_id)

        def has_it() -> bool:
            return slave.store is not None and slave.store.offsets.max_offset(SCHEMAS_TOPIC, 0) == 1

        eventually(has_it)
        cluster.kill(0)

        def reads() -> bool:
            try:
                return client_at(cluster.http_urls[1]).get_versions("Orders-value") == [1]
            except SchemaRegistryError:
                return False

        eventually(reads)
        assert other.get_latest_version("Orders-value").schema_id == schema_id
        with pytest.raises(SchemaRegistryError) as raised:
            other.register_schema("Orders-value", Schema(SECOND, "AVRO"))
        assert raised.value.http_status_code in (502, 503)
        cluster.restart(0)
        again = client_at(cluster.http_urls[0])
        eventually(lambda: again.get_versions("Orders-value") == [1])
        assert again.register_schema("Orders-value", Schema(SECOND, "AVRO")) == schema_id + 1


def test_two_registries_answer_nothing() -> None:
    """Each would give the first id to another schema."""
    with Cluster(2, http=True, settings={"schemaRegistryEnable": True}) as cluster:
        for url in cluster.http_urls:
            answer = httpx.post(f"{url}/subjects/Orders-value/versions", json={"schema": FIRST}, timeout=60)
            assert answer.status_code == 503, answer.text
            assert "dev-0, dev-1" in answer.json()["message"]


def test_rights_are_those_of_users(tmp_path: Path, client_at: At) -> None:
    with Cluster(2, http=True, settings=with_users()) as cluster:
        add_user(cluster.http_urls[0], "maker", "Topic:Orders", "Pub")
        add_user(cluster.http_urls[0], "reader", "Topic:Orders", "Sub")
        for url in cluster.http_urls:
            maker = client_at(url, **{"basic.auth.user.info": "maker:maker-secret"})
            reader = client_at(url, **{"basic.auth.user.info": "reader:reader-secret"})
            assert maker.register_schema("Orders-value", Schema(FIRST, "AVRO")) == 1
            assert reader.get_versions("Orders-value") == [1]
            assert refused(reader.register_schema, "Orders-value", Schema(SECOND, "AVRO")) == (403, 40301)
            assert refused(maker.delete_subject, "Orders-value") == (403, 40301)
            assert refused(reader.get_versions, "Other-value") == (403, 40301)
            assert refused(client_at(url).get_versions, "Orders-value") == (401, 40101)
            wrong = client_at(url, **{"basic.auth.user.info": "maker:wrong"})
            assert refused(wrong.get_versions, "Orders-value")[0] in (401, 403)


@pytest.mark.slow("a set of replicas; a slave that answers readers is the fast twin")
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
