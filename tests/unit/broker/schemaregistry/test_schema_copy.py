"""Checks of messages at a broker that keeps no registry: by the records of the broker that keeps it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from mqspark.broker.schemaregistry.schemacopy import MISSED_MS, SchemaCopy
from mqspark.errors import ProtocolError, TableFull
from mqspark.message import SCHEMAS_TOPIC
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command
from mqspark.schemas.schemaprefix import encode_prefix
from tests.support.invariants import validate
from tests.support.remoting import topic_fields
from tests.unit.broker_kit import Bench, send_ext
from tests.unit.registry_kit import RegistryBench

ORDER = json.dumps({
    "type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"], "additionalProperties": False,
})  # fmt: skip


class Pair:
    """A keeper, and a broker that follows it."""

    def __init__(self, root: Path, **settings: object) -> None:
        self.keeper = RegistryBench(root / "keeper")
        self.bench = Bench(root / "other", namesrv_addr="127.0.0.1:9", **settings)
        self.peer = self.bench.peer()
        copy = self.bench.broker.services.schemas.copy
        assert copy is not None
        self.copy: SchemaCopy = copy

    def create(self, validation: str) -> None:
        ext = topic_fields("Orders", attributes=f"+schemaValidation={validation}")
        self.peer.give(RequestCode.UPDATE_AND_CREATE_TOPIC, ext)  # it waits for the name servers
        while self.bench.broker.work():
            pass
        topic = self.bench.broker.state.topics.get("Orders")
        assert topic is not None
        assert topic.validation == (None if validation == "off" else validation)

    def send(self, body: bytes) -> Command:
        return self.peer.ask(RequestCode.SEND_MESSAGE_V2, send_ext("Orders"), body)

    def read(self) -> None:
        """As the shell does."""
        begun_ms = self.bench.clock.monotonic_ms()
        records = self.keeper.records(SCHEMAS_TOPIC)
        for each in records[self.copy.next_offset :]:
            stored = self.keeper.store.reads.get(SCHEMAS_TOPIC, 0, each.queue_offset, 1, 1 << 20)
            self.copy.take(memoryview(bytes(stored.buffers[0])), stored.next_offset)
        self.copy.came_to_end(begun_ms)

    def restart(self) -> None:
        """Restart the broker that follows."""
        self.bench.reopen()
        self.peer = self.bench.peer()
        copy = self.bench.broker.services.schemas.copy
        assert copy is not None
        self.copy = copy

    def close(self) -> None:
        validate(self.bench.broker)
        self.keeper.close()
        self.bench.close()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path)
    yield made
    made.close()


def test_nothing_is_judged_before_the_registry_is_known(pair: Pair) -> None:
    assert not pair.copy.is_wanted
    pair.create("reject")
    assert pair.copy.is_wanted
    pair.copy.problem = "it is on fire"
    answer = pair.send(b'{"id":1}')
    assert answer.code == ResponseCode.SYSTEM_BUSY
    assert answer.remark == (
        "the schema registry of the cluster is not known here yet (it is on fire); retry later"
    )
    assert pair.copy.is_asked
    schema_id, _ = pair.keeper.registered(ORDER, schemaType="JSON")
    pair.read()
    assert pair.send(b'{"id":1}').code == 0
    assert pair.send(encode_prefix(schema_id) + b'{"id":1}').code == 0
    for body in (b"{}", encode_prefix(schema_id) + b"{}"):
        assert pair.send(body).code == ResponseCode.MESSAGE_ILLEGAL
    pair.create("off")
    assert not pair.copy.is_wanted


def test_what_is_not_there_is_refused_when_it_is_certain(pair: Pair) -> None:
    pair.create("reject")
    pair.keeper.registered(ORDER, schemaType="JSON")
    pair.read()
    body = encode_prefix(2) + b'{"id":1}'
    for _ in range(2):
        answer = pair.send(body)
        assert answer.code == ResponseCode.SYSTEM_BUSY
        assert "schema 2 of subject Orders-value is not known here yet" in str(answer.remark)
    pair.bench.clock.advance(1)
    pair.read()
    answer = pair.send(body)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert "schema 2 is none of subject Orders-value" in str(answer.remark)
    pair.bench.clock.advance(MISSED_MS + 1)
    pair.copy.is_asked = False
    assert pair.send(body).code == ResponseCode.SYSTEM_BUSY
    assert pair.copy.is_asked
    wider = json.loads(ORDER)
    wider["properties"]["note"] = {"type": "string"}
    pair.keeper.registered(json.dumps(wider), schemaType="JSON")
    pair.read()
    assert pair.send(body).code == 0
    pair.copy.problem = "nobody answers"  # what is known goes on without the keeper
    assert pair.send(body).code == 0
    assert pair.send(b"{}").code == ResponseCode.MESSAGE_ILLEGAL
    assert "(nobody answers)" in str(pair.send(encode_prefix(3) + b"{}").remark)


def test_a_warning_stores_what_cannot_be_checked(pair: Pair) -> None:
    pair.create("warn")
    assert pair.send(b"{}").code == 0
    assert pair.copy.is_asked
    assert not pair.bench.broker.state.stats.unfit_messages


def test_another_keeper_is_read_from_the_beginning(pair: Pair) -> None:
    pair.create("reject")
    pair.copy.follow("keeper")
    pair.keeper.registered(ORDER, schemaType="JSON")
    pair.read()
    assert pair.send(b'{"id":1}').code == 0
    pair.copy.follow("keeper")
    assert pair.send(b'{"id":1}').code == 0
    pair.copy.follow("other")
    assert pair.copy.next_offset == 0
    assert pair.send(b'{"id":1}').code == ResponseCode.SYSTEM_BUSY


def test_wrong_records_and_too_many_are_not_taken(tmp_path: Path) -> None:
    pair = Pair(tmp_path, max_schema_table_bytes=2_000)
    pair.keeper.registered(ORDER, schemaType="JSON")
    found = pair.keeper.store.reads.get(SCHEMAS_TOPIC, 0, 0, 1, 1 << 20)
    good = bytes(found.buffers[0])
    for at in (len(good) // 2, 100):
        wrong = bytearray(good)
        wrong[at] ^= 1
        with pytest.raises(ProtocolError, match="sent a wrong record"):
            pair.copy.take(memoryview(bytes(wrong)), 1)
    assert pair.copy.next_offset == 0
    pair.read()
    large = json.loads(ORDER)
    large["description"] = "x" * 2_000
    pair.keeper.registered(json.dumps(large), schemaType="JSON")
    with pytest.raises(TableFull):
        pair.read()


def test_what_was_read_is_known_after_a_restart_without_the_keeper(pair: Pair) -> None:
    pair.create("reject")
    pair.copy.follow("keeper")
    schema_id, _ = pair.keeper.registered(ORDER, schemaType="JSON")
    pair.read()
    assert pair.send(b'{"id":1}').code == 0
    pair.restart()
    # There may be a newer version: the keeper is asked first.
    assert pair.send(b'{"id":1}').code == ResponseCode.SYSTEM_BUSY
    assert pair.copy.is_asked
    pair.copy.problem = "nobody answers"
    for head in (b"", encode_prefix(schema_id)):
        assert pair.send(head + b'{"id":1}').code == 0
        assert pair.send(head + b"{}").code == ResponseCode.MESSAGE_ILLEGAL
    unknown = pair.send(encode_prefix(schema_id + 1) + b'{"id":1}')
    assert (unknown.code, "not known here yet (nobody answers)" in str(unknown.remark)) == (
        ResponseCode.SYSTEM_BUSY,
        True,
    )
    # Reading goes on behind what was saved, with the same keeper.
    pair.copy.follow("keeper")
    assert pair.copy.next_offset == 1
    wider = json.loads(ORDER)
    wider["properties"]["note"] = {"type": "string"}
    newer, _ = pair.keeper.registered(json.dumps(wider), schemaType="JSON")
    pair.read()
    assert pair.send(encode_prefix(newer) + b'{"id":1,"note":""}').code == 0
    pair.restart()
    pair.copy.follow("another keeper")
    pair.copy.problem = "nobody answers"
    assert pair.send(b'{"id":1}').code == ResponseCode.SYSTEM_BUSY


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b'{"keeper":"k","nextOffset":3}\n{"key":"SCHEMA/x","record":{}}',
        b'{"keeper":"k","nextOffset":3}\n[1]',
        b"\xff",
    ],
)
def test_a_damaged_copy_is_read_again(content: bytes, pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    pair.create("reject")
    pair.copy.follow("keeper")
    pair.keeper.registered(ORDER, schemaType="JSON")
    pair.read()
    config = pair.bench.directory / "config"
    pair.restart()
    for each in ("schemaCopy.json", "schemaCopy.json.bak"):
        (config / each).write_bytes(content)
    pair.restart()
    assert "the copy of the schema registry is read again" in caplog.text
    assert pair.copy.next_offset == 0
    pair.copy.problem = "nobody answers"
    assert pair.send(b'{"id":1}').code == ResponseCode.SYSTEM_BUSY
    pair.read()
    assert pair.send(b'{"id":1}').code == 0
