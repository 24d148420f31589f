"""``schemaValidation`` of a topic: what does not fit its schemas is counted or refused before it is stored."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import fastavro
import pytest

from mqspark.base import logs
from mqspark.broker.send import schemaguard
from mqspark.broker.send.schemaguard import SchemaGuard
from mqspark.broker.tables.topics import Topic
from mqspark.message import Message
from mqspark.protocol import command as commands
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command, encode_request
from mqspark.protocol.dispatch import Refusal
from mqspark.protocol.layouts import HeaderLayouts
from mqspark.record.batchitems import encode_batch
from mqspark.record.compression import ZLIB, compress, decompress
from mqspark.schemas.schemaprefix import encode_prefix
from tests.support.remoting import topic_fields
from tests.unit.broker_kit import SEND, Bench, send_ext
from tests.unit.registry_kit import RegistryBench, field, record

ORDER = json.dumps({
    "type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"], "additionalProperties": False,
})  # fmt: skip
AVRO_ORDER = record(field("id"), field("count", "int"))
PROTO_ORDER = (
    'syntax = "proto3"; message Other {} message Order { string id = 1; message Line { int32 n = 1; } }'
)
COMPRESSED = str(1 | ZLIB << 8)


def avro_bytes(**value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(AVRO_ORDER)), value)
    return out.getvalue()


class Guarded:
    def __init__(self, bench: RegistryBench) -> None:
        self.bench = bench
        self.peer = bench.peer()

    def create(self, validation: str, topic: str = "Orders") -> int:
        ext = topic_fields(topic, attributes=f"+schemaValidation={validation}")
        return self.peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, ext).code

    def send(self, body: bytes, topic: str = "Orders", **more: str) -> Command:
        return self.peer.ask(RequestCode.SEND_MESSAGE_V2, send_ext(topic, **more), body)

    def send_batch(self, *bodies: bytes) -> Command:
        body = encode_batch([Message.of("Orders", each) for each in bodies])
        return self.peer.ask(RequestCode.SEND_BATCH_MESSAGE, send_ext("Orders", m="true"), body)

    def stored(self, topic: str = "Orders") -> list[bytes]:
        return [each.body for each in self.bench.records(topic)]

    def refused(self, answer: Command) -> str:
        """The reason."""
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL, answer.remark
        before = "the message does not fit the schemas of topic Orders: "
        assert str(answer.remark).startswith(before)
        return str(answer.remark).removeprefix(before)


@pytest.fixture
def guarded(tmp_path: Path) -> Guarded:
    logs.forget()
    bench = RegistryBench(tmp_path)
    return Guarded(bench)


def test_json_with_and_without_a_prefix(guarded: Guarded) -> None:
    assert guarded.create("reject") == 0
    schema_id, _ = guarded.bench.registered(ORDER, schemaType="JSON")
    head = encode_prefix(schema_id)
    assert guarded.send(b'{"id":1}').code == 0
    assert guarded.send(head + b'{"id":2}').code == 0
    assert guarded.refused(guarded.send(b'{"id":"x"}')) == 'field id: "x" is not of type "integer"'
    assert guarded.refused(guarded.send(head + b"{}")) == '"id" is a required property'
    assert "the payload is no JSON" in guarded.refused(guarded.send(b"not json"))
    assert guarded.stored() == [b'{"id":1}', head + b'{"id":2}']
    assert dict(guarded.bench.broker.state.stats.unfit_messages) == {"Orders": 3}


def test_a_plan_of_before_does_not_pass_by(guarded: Guarded) -> None:
    """A send is cheap because the one before it was like it; the topic's attribute ends that."""
    assert guarded.create("off") == 0
    guarded.bench.registered(ORDER, schemaType="JSON")
    for _ in range(3):
        assert guarded.send(b"anything", i="UNIQ_KEY\x01A\x02").code == 0
    assert guarded.create("reject") == 0
    assert guarded.refused(guarded.send(b"anything", i="UNIQ_KEY\x01A\x02"))
    assert guarded.create("off") == 0
    assert guarded.send(b"anything", i="UNIQ_KEY\x01A\x02").code == 0
    assert len(guarded.stored()) == 4


@pytest.mark.parametrize("mode", ["reject", "warn"])
def test_sends_that_come_together_are_checked_together(
    guarded: Guarded, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "layouts", HeaderLayouts(learning_cost=0))
    assert guarded.create(mode) == 0
    guarded.bench.registered(ORDER, schemaType="JSON")
    sent: list[bytes] = []

    def together(*bodies: bytes) -> tuple[int, list[int]]:
        """How many took the short way, and the codes of all answers."""
        frames = []
        for body in bodies:
            sent.append(body)
            ext = send_ext("Orders", i=f"UNIQ_KEY\x01{len(sent):032}\x02WAIT\x01true\x02")
            frames.append(encode_request(SEND, 100 + len(sent), ext, body))
        taken = guarded.peer.give_bytes(b"".join(frames))
        guarded.bench.broker.turn()
        answers = sorted(guarded.peer.heard(), key=lambda each: each.opaque)
        return taken, [each.code for each in answers]

    good = [b'{"id":%d}' % number for number in range(8)]
    together(*good)
    assert together(*good) == (8, [0] * 8)
    wrong, passes = b'{"id":"x"}', 0 if mode == "warn" else ResponseCode.MESSAGE_ILLEGAL
    taken, codes = together(*good[:5], wrong, *good[5:])
    assert taken == 8
    assert codes == [0] * 5 + [passes] + [0] * 3
    while together(*good) != (8, [0] * 8):  # the connection is asked again after a while
        assert len(sent) < 800
    assert together(wrong)[1] == [passes]
    assert guarded.stored() == [each for each in sent if mode == "warn" or each != wrong]
    assert dict(guarded.bench.broker.state.stats.unfit_messages) == {"Orders": 2}


def test_the_time_is_looked_at_after_bodies_that_took_all_of_theirs(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One read brings some hundreds: the next ones would have as much time again, in the same turn."""
    monkeypatch.setattr(commands, "layouts", HeaderLayouts(learning_cost=0))
    monkeypatch.setattr(schemaguard, "_MAX_INFLATED", 20)
    assert guarded.create("reject") == 0
    guarded.bench.registered(ORDER, schemaType="JSON")
    looks: list[tuple[int, int | None]] = []
    first_unfit = SchemaGuard.first_unfit

    def looked(guard: SchemaGuard, topic: Topic, sys_flag: int, bodies: Sequence[bytes]) -> int | None:
        looks.append((len(bodies), first_unfit(guard, topic, sys_flag, bodies)))
        return looks[-1][1]

    monkeypatch.setattr(SchemaGuard, "first_unfit", looked)
    body = compress(b'{"id":1}')
    for each in range(3):
        ids = range(100 * each, 100 * each + 30)
        frames = [
            encode_request(SEND, 1 + n, send_ext("Orders", f=COMPRESSED, i=f"UNIQ_KEY\x01{n:032}\x02"), body)
            for n in ids
        ]
        guarded.peer.give_bytes(b"".join(frames))
        guarded.bench.broker.turn()
        assert [answer.code for answer in guarded.peer.heard()] == [0] * 30
    assert len(guarded.stored()) == 90
    assert len([unfit for _, unfit in looks if unfit]) > 3
    for (_, unfit), (count, _) in pairwise(looks):
        assert unfit is None or count == 1  # it takes the long way


def test_avro_needs_its_prefix(guarded: Guarded) -> None:
    assert guarded.create("reject") == 0
    schema_id, _ = guarded.bench.registered(AVRO_ORDER)
    good = encode_prefix(schema_id) + avro_bytes(id="a", count=3)
    assert guarded.send(good).code == 0
    assert guarded.refused(guarded.send(good[:-1])) == "field count: the payload ends early"
    assert (
        guarded.refused(guarded.send(avro_bytes(id="a", count=3)))
        == "the body has no id of a schema in front"
    )
    assert guarded.stored() == [good]


def test_protobuf_by_its_indexes(guarded: Guarded) -> None:
    assert guarded.create("reject") == 0
    schema_id, _ = guarded.bench.registered(PROTO_ORDER, schemaType="PROTOBUF")
    assert guarded.send(encode_prefix(schema_id, [1]) + b"\x0a\x01x").code == 0
    assert guarded.send(encode_prefix(schema_id, [1, 0]) + b"\x08\x01").code == 0
    wrong = guarded.refused(guarded.send(encode_prefix(schema_id, [1]) + b"\x08\x01"))
    assert wrong == "field id: it is a varint, not bytes with a length"
    assert "no such message" in guarded.refused(guarded.send(encode_prefix(schema_id, [9]) + b"x"))
    assert "cut short" in guarded.refused(guarded.send(encode_prefix(schema_id, [1])[:6]))
    assert len(guarded.stored()) == 2


def test_ids_of_others_and_of_nobody(guarded: Guarded) -> None:
    assert guarded.create("reject") == 0
    assert guarded.refused(guarded.send(b"{}")) == "subject Orders-value has no schema"
    guarded.bench.registered(ORDER, schemaType="JSON")
    other, _ = guarded.bench.registered(AVRO_ORDER, "Lines-value")
    assert (
        guarded.refused(guarded.send(encode_prefix(other) + b"{}"))
        == f"schema {other} is none of subject Orders-value"
    )
    assert (
        guarded.refused(guarded.send(encode_prefix(999) + b"{}"))
        == "schema 999 is none of subject Orders-value"
    )


def test_what_is_registered_later_counts_at_once(guarded: Guarded) -> None:
    assert guarded.create("reject") == 0
    guarded.bench.registered(ORDER, schemaType="JSON")
    assert guarded.refused(guarded.send(b'{"id":1,"note":"x"}'))
    wider = json.loads(ORDER)
    wider["properties"]["note"] = {"type": "string"}
    guarded.bench.registered(json.dumps(wider), schemaType="JSON")
    assert guarded.send(b'{"id":1,"note":"x"}').code == 0
    guarded.bench.reopen()
    guarded.peer = guarded.bench.peer()
    guarded.bench.broker.tick()
    assert guarded.send(b'{"id":1,"note":"x"}').code == 0
    assert guarded.refused(guarded.send(b'{"id":1,"note":2}'))


def test_a_batch_is_refused_for_one_of_its_messages(guarded: Guarded) -> None:
    assert guarded.create("reject") == 0
    schema_id, _ = guarded.bench.registered(ORDER, schemaType="JSON")
    head = encode_prefix(schema_id)
    for heads in ((b"", b"", b""), (head, head, head), (head, b"", head)):
        good = [each + b'{"id":1}' for each in heads]
        assert guarded.send_batch(*good).code == 0
        bad = guarded.refused(guarded.send_batch(*good[:2], heads[2] + b'{"id":null}', good[0]))
        assert bad == 'message 2 of the batch: field id: null is not of type "integer"'
    assert len(guarded.stored()) == 9


def test_messages_do_not_hide_in_each_other(guarded: Guarded) -> None:
    """A batch is checked in one go; no message may end what another one begins."""
    assert guarded.create("reject") == 0
    guarded.bench.registered(ORDER, schemaType="JSON")
    for bodies in (
        (b'{"id":1},{"id":2}', b'{"id":1', b"}"),
        (b'{"id":1}\n{"id":2}', b'{"id":3}', b" "),
        (b'{"id":1}\n', b'{"id":2}\n{"id":3}'),
        (b'{"id":', b'1}\n{"id":2}'),
    ):
        assert "of the batch: the payload is no JSON" in guarded.refused(guarded.send_batch(*bodies))
    assert guarded.send_batch(b'{\n"id":1}', b'\n{"id":2}\n').code == 0


def test_compressed_bodies_are_looked_into(guarded: Guarded) -> None:
    assert guarded.create("reject") == 0
    guarded.bench.registered(ORDER, schemaType="JSON")
    assert guarded.send(compress(b'{"id":1}'), f=COMPRESSED).code == 0
    assert (
        guarded.refused(guarded.send(compress(b'{"id":""}'), f=COMPRESSED))
        == 'field id: "" is not of type "integer"'
    )
    assert "does not decompress" in guarded.refused(guarded.send(b"junk", f=COMPRESSED))
    assert "inflates past" in guarded.refused(guarded.send(compress(b" " * (8 << 20)), f=COMPRESSED))


def test_compressed_bodies_take_as_long_together_as_one_may(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of a few kilobytes may become four megabytes."""
    assert guarded.create("reject") == 0
    guarded.bench.registered(ORDER, schemaType="JSON")
    sizes: list[int] = []

    def counted(body: bytes, kind: int, limit: int) -> bytes:
        sizes.append(limit)
        return decompress(body, kind, limit)

    monkeypatch.setattr(schemaguard, "decompress", counted)
    broker = guarded.bench.broker
    guard = SchemaGuard(broker.state.stats, broker.state.store_config)
    guard.schemas = broker.services.schemas.parsed
    topic = broker.state.topics.get("Orders")
    assert topic is not None
    large = compress(b'{"id":1}' + b" " * (4_000_000))
    for bodies, fitting in (
        ([large] * 20, 2),
        ([b"junk"] + [large] * 20, 0),
        ([compress(b'{"id":1}')] * 20, None),
    ):
        sizes.clear()
        assert guard.first_unfit(topic, int(COMPRESSED), bodies) == fitting
        assert len(sizes) == (20 if fitting is None else 3 if fitting else 1)
        sizes.clear()
        with suppress(Refusal):
            guard.check_members(topic, int(COMPRESSED), bodies)
        assert len(sizes) == (20 if fitting is None else 3)
    for _ in range(4):  # one by one all fit
        guard.check(topic, int(COMPRESSED), large)


def test_half_messages_and_delayed_ones_are_checked_when_they_come(guarded: Guarded) -> None:
    assert guarded.create("reject") == 0
    guarded.bench.registered(ORDER, schemaType="JSON")
    half = "TRAN_MSG\x01true\x02PGROUP\x01PG\x02UNIQ_KEY\x01A\x02"
    for properties, flag in ((half, "4"), ("DELAY\x013\x02", "0")):
        assert guarded.refused(guarded.send(b'{"id":""}', i=properties, f=flag))
        assert guarded.send(b'{"id":1}', i=properties, f=flag).code == 0
    bodies = encode_batch([Message.of("Orders", each) for each in (b'{"id":1}', b'{"id":""}')])
    batch = f"{half}MQSPARK_BATCH\x012:0\x02"
    assert "message 1 of the batch" in guarded.refused(guarded.send(bodies, i=batch, f="4"))


def test_a_warning_stores_counts_and_logs(guarded: Guarded, caplog: pytest.LogCaptureFixture) -> None:
    assert guarded.create("warn") == 0
    guarded.bench.registered(ORDER, schemaType="JSON")
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            assert guarded.send(b'{"id":"x"}').code == 0
        assert guarded.send_batch(b'{"id":1}', b"{}", b"[]").code == 0
    assert len(guarded.stored()) == 8
    assert dict(guarded.bench.broker.state.stats.unfit_messages) == {"Orders": 7}
    lines = [each.getMessage() for each in caplog.records]
    assert lines == [
        'a message does not fit the schemas of topic Orders: field id: "x" is not of type "integer"'
    ]


def test_a_large_schema_is_parsed_elsewhere(guarded: Guarded) -> None:
    assert guarded.create("reject") == 0
    large = json.loads(ORDER)
    large["description"] = "x" * 100_000
    guarded.bench.registered(json.dumps(large), schemaType="JSON")
    first = guarded.peer.give(RequestCode.SEND_MESSAGE_V2, send_ext("Orders"), b'{"id":1}')
    guarded.bench.broker.turn()
    (answer,) = guarded.peer.heard()
    assert answer.opaque == first
    assert (answer.code, "is being parsed" in str(answer.remark)) == (ResponseCode.SYSTEM_BUSY, True)
    while guarded.bench.broker.work():
        pass
    assert guarded.send(b'{"id":1}').code == 0
    assert guarded.refused(guarded.send(b"{}"))


@pytest.mark.parametrize("value", ["yes", "", "REJECT"])
def test_no_such_value(guarded: Guarded, value: str) -> None:
    assert guarded.create(value) == ResponseCode.SYSTEM_ERROR


def test_what_would_be_too_large_in_memory_is_refused_before_it_is_parsed(guarded: Guarded) -> None:
    """A schema takes some sixty times its text, and a pattern kilobytes; what is kept is not parsed again."""
    assert guarded.create("reject") == 0
    huge = {
        "properties": {f"f{at}": {"pattern": f"^{at}$"} for at in range(2_000)},
        "description": "x" * 900_000,
    }
    schema_id, _ = guarded.bench.registered(json.dumps(huge), "Huge-value", schemaType="JSON")
    assert guarded.create("reject", "Huge") == 0
    answer = guarded.send(b"{}", "Huge")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert f"schema {schema_id} cannot be used: Invalid schema of type JSON: it would take" in str(
        answer.remark
    )
    kept = guarded.bench.broker.services.schemas.parsed.bounded
    large = json.loads(ORDER)
    large["description"] = "x" * 900_000
    guarded.bench.registered(json.dumps(large), schemaType="JSON")
    assert guarded.send(b"{}").code == ResponseCode.SYSTEM_BUSY
    while guarded.bench.broker.work():
        pass
    for _ in range(3):
        assert guarded.refused(guarded.send(b"{}"))
    assert kept.refused == 0
    assert kept.bytes <= kept.bound
    assert kept.entries == 2


def test_a_broker_alone_without_a_registry_promises_nothing(tmp_path: Path, bench: Bench) -> None:
    guarded = Guarded.__new__(Guarded)
    guarded.peer = bench.peer()
    assert guarded.create("reject") == ResponseCode.INVALID_PARAMETER
    assert guarded.create("off") == 0
    bench.close()
    with_one = RegistryBench(tmp_path)
    there = Guarded(with_one)
    assert there.create("reject") == 0
    with_one.close()
    bench.open()
    guarded.peer = bench.peer()
    assert "keeps no schema registry" in guarded.refused(guarded.send(b"{}"))
