"""The schema registry as a part of its broker: one change after the other, what a failover may take back, copies,
rights, and what a hostile caller may cost."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mqspark.broker.broker import BrokerCore
from mqspark.broker.config import BrokerRole
from mqspark.broker.schemaregistry.schemarecords import (
    SCHEMA,
    KeyedRecord,
    RecordKey,
    SchemaRecord,
    decode_record_of,
)
from mqspark.broker.schemaregistry.schemaregistry import CHANGE_WAITS_MS, MAX_CHANGES, SchemaRegistry
from mqspark.broker.state.acks import Acks
from mqspark.broker.state.writer import Draft
from mqspark.errors import InvalidMessage
from mqspark.message import SCHEMAS_TOPIC
from mqspark.protocol.codes import Reason, RequestCode, ResponseCode
from mqspark.protocol.schemaoperations import OPERATIONS, Right, topic_of
from mqspark.schemas.parsedschema import Reference
from mqspark.store.compaction.compactedqueues import DELETE_RETENTION_MS, LOOK_MS
from mqspark.store.disk.configfile import ConfigFile
from mqspark.store.tools.compactor import Compactor, CompactTask, TopicToCompact
from tests.support.invariants import validate
from tests.support.store_tools import QuickFiles
from tests.unit.auth_kit import ROOT, SignedPeer, allow, authority
from tests.unit.broker.replication.test_follower import STORE, Link, pieces
from tests.unit.broker.replication.test_slave_metadata import one_round
from tests.unit.broker_kit import SEND, Bench, send_ext
from tests.unit.registry_kit import FIRST, SECOND, VALUE, RegistryBench, field, header_of, record, told

CHANGE, READ = RequestCode.CHANGE_SCHEMAS, RequestCode.READ_SCHEMAS


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[RegistryBench]:
    made = RegistryBench(tmp_path / "store")
    yield made
    validate(made.broker)


def body_of(schema: str) -> bytes:
    return json.dumps({"schema": schema}).encode()


def run(bench: Bench) -> None:
    """Until nothing is left to do."""
    for _ in range(200):
        while bench.broker.work():
            pass
        bench.broker.turn()


def test_changes_that_come_together_are_made_one_by_one(bench: RegistryBench) -> None:
    peers = [bench.peer() for _ in range(12)]
    schemas = [record(field("id"), field(f"f{number % 4}", default="")) for number in range(12)]
    bench.told("set_rule", body={"compatibility": "NONE"})
    for peer, schema in zip(peers, schemas, strict=True):
        peer.give(CHANGE, header_of("register", VALUE), body_of(schema))
    run(bench)
    answers = [told(answer).document for peer in peers for answer in peer.heard()]
    assert [(each["id"], each["version"]) for each in answers] == [
        (number % 4 + 1, number % 4 + 1) for number in range(12)
    ]
    assert bench.store.offsets.max_offset(SCHEMAS_TOPIC, 0) == 1 + 4, "a schema that is there makes no record"


def test_a_change_is_answered_and_shown_when_it_is_safe(tmp_path: Path) -> None:
    bench = RegistryBench(tmp_path / "store", sync=True)
    bench.broker.tick()
    bench.caller.give(CHANGE, header_of("register", VALUE), body_of(FIRST))
    run(bench)
    assert bench.caller.heard() == []
    reader = bench.peer()
    reader.give(READ, header_of("list_subjects"))
    run(bench)
    assert told(reader.heard()[0]).document == []
    bench.flush()
    assert told(bench.caller.heard()[0]).document["id"] == 1
    assert bench.told("list_subjects").document == [VALUE]


def test_what_a_crash_leaves_is_what_was_answered(tmp_path: Path) -> None:
    bench = RegistryBench(tmp_path / "store", sync=True)
    bench.registered(FIRST)
    bench.registered(SECOND)
    bench.crash()
    assert bench.told("list_versions", VALUE, peer=bench.peer()).document == [1, 2]


def test_compaction_changes_nothing_that_is_registered(tmp_path: Path) -> None:
    root = tmp_path / "store"
    bench = RegistryBench(root)
    for number in range(6):
        bench.registered(record(field("id"), field(f"f{number}", default="")), f"T{number % 3}-value")
        bench.told("set_subject_rule", "T0-value", {"compatibility": ("FULL", "NONE")[number % 2]})
    bench.told("delete_version", "T2-value", version=2)
    bench.told("delete_version", "T2-value", version=2, options="permanent=true")
    bench.told("delete_subject", "T1-value")
    before = [bench.told("list_schemas", options="deleted=true"), bench.told("get_subject_rule", "T0-value")]
    stored = bench.store.offsets.max_offset(SCHEMAS_TOPIC, 0)
    for _ in range(2):  # the second time tombstones are old
        bench.flush()
        task = CompactTask(
            root=str(root),
            commit_log=None,
            end=1 << 40,
            topics=[TopicToCompact(SCHEMAS_TOPIC)],
            map_bytes=1 << 20,
            now_ms=bench.clock.wall_ms + DELETE_RETENTION_MS * 2,
        )
        assert Compactor(task, QuickFiles()).run().failed == 0
        bench.clock.advance(LOOK_MS + 1)
        bench.reopen()
        assert len(bench.records(SCHEMAS_TOPIC)) < stored, "it reads what compaction has kept"
        found = [
            bench.told("list_schemas", options="deleted=true"),
            bench.told("get_subject_rule", "T0-value"),
        ]
        assert found == before
        bench.registered(FIRST, "New-value")
        assert bench.told("list_id_versions", schema_id=7).document == [
            {"subject": "New-value", "version": 1}
        ]
        before[0] = bench.told("list_schemas", options="deleted=true")
        stored = bench.store.offsets.max_offset(SCHEMAS_TOPIC, 0)


def test_a_slave_answers_what_only_reads(tmp_path: Path) -> None:
    master = RegistryBench(tmp_path / "m", store_settings=STORE)
    slave = RegistryBench(tmp_path / "s", store_settings=STORE, broker_role=BrokerRole.SLAVE, broker_id=1)
    master.registered(FIRST)
    master.registered(SECOND)
    link = Link(master, slave)
    link.carry(pieces(1))
    one_round(master, slave)
    assert slave.told("list_schemas") == master.told("list_schemas")
    assert slave.answer("register", VALUE, {"schema": FIRST}).code == ResponseCode.SERVICE_NOT_AVAILABLE
    checked = slave.told("check_version", VALUE, {"schema": FIRST}, version="latest")
    assert checked.document == {"is_compatible": True}
    link.close()


def test_a_broker_without_the_registry_says_so(tmp_path: Path) -> None:
    bench = RegistryBench(tmp_path / "store", schema_registry_enable=False)
    answer = bench.answer("list_subjects")
    assert (answer.reason, bench.broker.state.topics.get(SCHEMAS_TOPIC)) == (Reason.FEATURE_OFF, None)
    assert "schemaRegistryEnable" in (answer.remark or "")


def test_clients_write_no_records(bench: RegistryBench) -> None:
    answer = bench.peer().ask(SEND, send_ext(SCHEMAS_TOPIC), b"{}")
    assert answer.code == ResponseCode.NO_PERMISSION
    topic = bench.broker.state.topics.get(SCHEMAS_TOPIC)
    assert topic is not None
    assert (topic.needs_key, bench.broker.state.topics.is_system(SCHEMAS_TOPIC)) == (True, True)


# --- rights ---


@pytest.fixture
def guarded(tmp_path: Path) -> RegistryBench:
    def new_authority() -> Any:
        one = authority(tmp_path)
        allow(one, "maker", "Topic:Orders Pub")
        allow(one, "reader", "Topic:Orders Sub")
        allow(one, "keeper", "Topic:Orders Update,Delete,Get")
        allow(one, "stranger", "Topic:Other Pub,Sub,Update,Delete,Get")
        return one

    bench = RegistryBench(tmp_path / "store", new_authority=new_authority)
    bench.broker.tick()
    return bench


def statuses(bench: RegistryBench, user: str, *asked: tuple[str, str | None, Any]) -> list[int]:
    found = []
    for operation, subject, body in asked:
        header = header_of(operation, subject, "latest" if "version" in operation else None)
        secret = {"secret": ROOT[1]} if user == ROOT[0] else {}
        peer = SignedPeer(bench.peer(), user, **secret)
        content = b"" if body is None else json.dumps(body).encode()
        answer = peer.ask(OPERATIONS[operation].code, header, content)
        found.append(403 if answer.code == ResponseCode.NO_PERMISSION else told(answer).status)
    return found


SCHEMA_BODY, NONE_BODY = {"schema": FIRST}, {"compatibility": "NONE"}


@pytest.mark.parametrize(
    ("user", "expected"),
    [
        ("maker", [200, 200, 403, 403, 403]),
        ("reader", [403, 200, 403, 403, 403]),
        ("keeper", [403, 200, 200, 403, 200]),
        ("stranger", [403, 403, 403, 403, 403]),
        (ROOT[0], [200, 200, 200, 200, 200]),
    ],
)
def test_rights_are_those_on_the_topic_of_the_subject(
    guarded: RegistryBench, user: str, expected: list[int]
) -> None:
    statuses(guarded, "maker", ("register", VALUE, SCHEMA_BODY))
    asked = (
        ("register", VALUE, SCHEMA_BODY),
        ("get_version", VALUE, None),
        ("set_subject_rule", VALUE, NONE_BODY),
        ("set_rule", None, NONE_BODY),
        ("delete_subject", VALUE, None),
    )
    assert statuses(guarded, user, *asked) == expected


def test_lists_and_ids_show_what_the_caller_may_read(guarded: RegistryBench) -> None:
    needed = {
        "schema": record(field("to", "Order")),
        "references": [{"name": "Order", "subject": VALUE, "version": 1}],
    }
    statuses(guarded, "maker", ("register", VALUE, SCHEMA_BODY))
    for user, subjects, status in (("reader", [VALUE], 200), ("stranger", [], 404)):
        peer = SignedPeer(guarded.peer(), user)
        assert told(peer.ask(READ, header_of("list_subjects"))).document == subjects
        assert told(peer.ask(READ, header_of("get_schema", schema_id=1))).status == status
    assert statuses(guarded, "stranger", ("register", "Other-value", needed)) == [403]
    assert statuses(guarded, "stranger", ("list_types", None, None), ("get_rule", None, None)) == [200, 200]


def test_an_operation_is_asked_for_by_its_own_request(guarded: RegistryBench) -> None:
    """A right to read must not delete."""
    statuses(guarded, "maker", ("register", VALUE, SCHEMA_BODY))
    peer = SignedPeer(guarded.peer(), "reader")
    assert peer.ask(READ, header_of("delete_subject", VALUE)).code == ResponseCode.NO_PERMISSION
    assert peer.ask(READ, header_of("drop_all", VALUE)).code == ResponseCode.NO_PERMISSION
    root = SignedPeer(guarded.peer(), *ROOT)
    assert told(root.ask(READ, header_of("delete_subject", VALUE))).status == 404


def test_each_operation_says_whose_right_it_needs() -> None:
    for operation in OPERATIONS.values():
        is_of_subject = operation.right in (Right.READ, Right.REGISTER, Right.CHANGE, Right.DELETE)
        assert is_of_subject == ("{subject}" in operation.path), operation.name
        assert (operation.code is READ) == operation.right.startswith("read"), operation.name
    assert [topic_of(each) for each in ("Orders-value", "Orders-key", "com.x.Order", "-key")] == [
        "Orders",
        "Orders",
        "com.x.Order",
        "-key",
    ]


# --- limits ---


def test_a_full_table_refuses_and_goes_on(tmp_path: Path) -> None:
    bench = RegistryBench(tmp_path / "store", max_schema_table_bytes=4_000)
    refused = None
    for number in range(20):
        answer = bench.register(FIRST, f"T{number}-value")
        if answer.status != 200:
            refused = answer
            break
        registered = number + 1
    assert refused is not None
    assert "maxSchemaTableBytes" in refused.document["message"]
    assert len(bench.told("list_subjects").document) == registered
    bench.told("delete_subject", "T0-value")
    bench.told("delete_subject", "T0-value", options="permanent=true")
    assert bench.register(FIRST, "T99-value").status == 200


def test_one_user_fills_no_table(tmp_path: Path) -> None:
    def new_authority() -> Any:
        one = authority(tmp_path)
        allow(one, "maker", "Topic:* Pub,Delete")
        return one

    limits = {"max_schema_table_bytes": 40_000, "max_table_share_per_user": 10}
    bench = RegistryBench(tmp_path / "store", new_authority=new_authority, **limits)
    bench.broker.tick()
    maker, root = SignedPeer(bench.peer(), "maker"), SignedPeer(bench.peer(), *ROOT)

    def registered_by(peer: SignedPeer, number: int) -> int:
        answer = told(peer.ask(CHANGE, header_of("register", f"T{number}-value"), body_of(FIRST)))
        assert answer.status == 200 or "maxTableSharePerUser" in answer.document["message"]
        return answer.status

    found = [registered_by(maker, number) for number in range(9)]
    assert found == sorted(found)
    assert (found[0], found[-1]) == (200, 507)
    assert registered_by(root, 20) == 200
    for options in (None, "permanent=true"):
        told(maker.ask(CHANGE, header_of("delete_subject", "T0-value", options=options)))
        told(maker.ask(CHANGE, header_of("delete_subject", "T1-value", options=options)))
    assert registered_by(maker, 21) == 200
    validate(bench.broker)


def test_so_many_changes_wait_and_no_more(bench: RegistryBench) -> None:
    bench.broker.tick()
    peers = [bench.peer() for _ in range(MAX_CHANGES + 3)]
    for number, peer in enumerate(peers):
        peer.give(CHANGE, header_of("register", f"T{number}-value"), body_of(FIRST))
    bench.broker.turn()
    refused = [answer for peer in peers for answer in peer.heard() if answer.code == ResponseCode.SYSTEM_BUSY]
    assert len(refused) == 2, "one is being made"
    run(bench)
    assert len(bench.told("list_subjects").document) == MAX_CHANGES + 1


class Elsewhere:
    """A thread that does not begin before it is told to."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Callable[[], Any], Callable[[Any, Exception | None], None]]] = []

    def compute(self, work: Callable[[], Any], done: Callable[[Any, Exception | None], None]) -> None:
        self.waiting.append((work, done))

    def run(self) -> None:
        work, done = self.waiting.pop(0)
        try:
            result = work()
        except Exception as error:
            done(None, error)
        else:
            done(result, None)


def registry_of(bench: Bench, elsewhere: Elsewhere) -> SchemaRegistry:
    unused = ConfigFile(bench.directory / "schemaCopy.json")
    made = SchemaRegistry(bench.broker.state, Acks(bench.clock), unused, elsewhere.compute)
    made.load()
    bench.broker.handlers |= made.handlers
    return made


def test_a_schema_is_parsed_away_from_the_loop(bench: RegistryBench) -> None:
    elsewhere = Elsewhere()
    registry = registry_of(bench, elsewhere)
    slow, quick = bench.peer(), bench.peer()
    slow.give(CHANGE, header_of("register", VALUE), body_of("{"))
    waiting = bench.peer()
    waiting.give(CHANGE, header_of("register", VALUE), body_of(FIRST))
    assert told(quick.ask(READ, header_of("list_subjects"))).document == []
    assert (slow.heard(), len(elsewhere.waiting)) == ([], 1)
    bench.clock.advance(CHANGE_WAITS_MS + 1)
    registry.tick()
    assert waiting.heard()[0].code == ResponseCode.SYSTEM_BUSY, "the one before takes too long"
    elsewhere.run()
    assert told(slow.heard()[0]).code == 42201


def test_who_has_gone_changes_nothing(bench: RegistryBench) -> None:
    elsewhere = Elsewhere()
    registry_of(bench, elsewhere)
    first, second = bench.peer(), bench.peer()
    first.give(CHANGE, header_of("register", VALUE), body_of("{"))
    second.give(CHANGE, header_of("register", VALUE), body_of(FIRST))
    second.disconnect()
    elsewhere.run()
    assert (told(first.heard()[0]).code, elsewhere.waiting) == (42201, [])


def test_an_error_of_ours_ends_one_request(bench: RegistryBench, caplog: pytest.LogCaptureFixture) -> None:
    elsewhere = Elsewhere()
    registry_of(bench, elsewhere)
    peer = bench.peer()
    for _ in range(2):
        peer.give(CHANGE, header_of("register", VALUE), body_of(FIRST))
        _, done = elsewhere.waiting.pop()
        done(None, RuntimeError("ours"))
        assert peer.heard()[0].code == ResponseCode.SYSTEM_ERROR
    assert "ours" in caplog.text


# --- records ---


def test_a_record_reads_as_it_was_written() -> None:
    content = SchemaRecord(7, "AVRO", FIRST, b"\0\xff", (Reference("a", "b", 1),), True)
    written = KeyedRecord(RecordKey(SCHEMA, "Orders 1-value", 3), content)
    assert decode_record_of(written.key.encode(), written.body) == written
    assert decode_record_of(written.key.encode(), b"") == written._replace(content=None)


@pytest.mark.parametrize(
    ("key", "body"),
    [
        ("", b""),
        ("X/a", b"{}"),
        ("SCHEMA/0/a", b""),
        ("SCHEMA/x/a", b"{}"),
        ("CONFIG/a", b"{"),
        ("IDS", b"[1]"),
    ],
)
def test_a_record_that_is_none_is_left_out(
    bench: RegistryBench, key: str, body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(InvalidMessage):
        decode_record_of(key, body)
    broker: BrokerCore = bench.broker
    draft = Draft(SCHEMAS_TOPIC, 0, body, {"KEYS": key} if key else {}, 0, bench.store.store_host)
    broker.state.writer.put(draft)
    broker.turn()
    assert bench.registered(FIRST) == (1, 1)
    assert "rmq_sys_mqspark_schemas" in caplog.text
