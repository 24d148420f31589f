"""Transactions over restarts, in the files of a real broker, and the values they are judged by."""

from __future__ import annotations

import gzip
import json
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mqspark.broker.transaction.halfmessages import (
    Decisions,
    Half,
    HalfDecision,
    Rules,
    judge,
    op_body,
    op_offsets,
)
from mqspark.broker.transaction.transactions import SLICE_MESSAGES
from mqspark.errors import DiskFull
from mqspark.message import TRANS_CHECK_MAX_TIME_TOPIC, TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.connection import Connection
from mqspark.record.record import decode_record, encode_record, take_apart
from mqspark.store.messages.append import Appender
from mqspark.store.messages.fetch import GetResult, GetStatus
from mqspark.store.reads import Reads
from tests.unit.broker_kit import SEND, send_ext
from tests.unit.transaction_kit import COMMIT, ROLLBACK, Kit

GOLDEN = Path(__file__).parents[3] / "golden"


@pytest.fixture
def kit(tmp_path: Path) -> Kit:
    kit = Kit(tmp_path)
    kit.producer.ask(SEND, send_ext(queue_id=1), b"so that the topic exists")
    return kit


# --- restart ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["reopen", "crash"])
class TestRestart:
    def test_open(self, kit: Kit, how: str) -> None:
        ext = kit.prepare()
        getattr(kit, how)()
        kit.run(31_000)
        (check,) = kit.checks()
        kit.answer_check(check, COMMIT)
        kit.end(ext, COMMIT)
        kit.run(60_000)
        assert len(kit.messages()) == 1

    @pytest.mark.parametrize("wait_ms", [0, 4_000])
    def test_committed(self, kit: Kit, how: str, wait_ms: int) -> None:
        """Before and after the op message is written."""
        kit.end(kit.prepare("U0"), ROLLBACK)
        ext = kit.prepare()
        kit.prepare("U2")
        kit.end(ext, COMMIT)
        kit.run(wait_ms)
        getattr(kit, how)()
        kit.run(31_000)
        asked = [decode_record(check.body).properties["UNIQ_KEY"] for check in kit.checks()]
        # A rollback leaves nothing behind but its op message.
        assert asked == (["U0", "U2"] if how == "crash" and not wait_ms else ["U2"])
        kit.end(ext, COMMIT)
        kit.run(60_000)
        assert len(kit.messages()) == 1

    def test_committed_with_a_delay(self, kit: Kit, how: str) -> None:
        kit.end(kit.prepare(properties={"DELAY": "2"}), COMMIT)
        getattr(kit, how)()
        kit.run(60_000)
        assert not kit.checks()
        assert len(kit.messages()) == 1

    def test_checked(self, kit: Kit, how: str) -> None:
        ext = kit.prepare()
        kit.run(31_000)
        (check,) = kit.checks()
        getattr(kit, how)()
        kit.run(31_000)
        (later,) = kit.checks()
        assert decode_record(later.body).properties["TRANSACTION_CHECK_TIMES"] == "2"
        for decision in (COMMIT, ROLLBACK):
            kit.end(ext, decision)
            kit.answer_check(check, decision)
            kit.answer_check(later, decision)
        kit.run(60_000)
        assert len(kit.messages()) == 1
        assert not kit.checks()

    def test_committed_by_the_name_of_the_first_copy(self, kit: Kit, how: str) -> None:
        ext = kit.prepare()
        kit.run(31_000)
        (check,) = kit.checks()
        kit.end(ext, COMMIT)
        getattr(kit, how)()
        kit.answer_check(check, COMMIT)
        kit.run(60_000)
        assert not kit.checks()
        assert len(kit.messages()) == 1

    def test_given_up(self, tmp_path: Path, how: str) -> None:
        kit = Kit(tmp_path, transaction_check_max=1)
        ext = kit.prepare()
        kit.run(61_000)
        getattr(kit, how)()
        kit.run(61_000)
        kit.end(ext, COMMIT)
        assert len(kit.messages(TRANS_CHECK_MAX_TIME_TOPIC)) >= 1


def test_offsets_are_saved_when_the_copies_before_them_are_on_the_disk(kit: Kit) -> None:
    kit.prepare()
    kit.later(31_000)
    assert kit.saved() == -1
    kit.settle()
    kit.broker.tick()
    assert kit.saved() == 1


def test_a_broker_without_transactions_keeps_no_offsets(kit: Kit) -> None:
    kit.run(90_000)
    assert kit.saved() == kit.saved(TRANS_OP_HALF_TOPIC) == -1


# --- values -------------------------------------------------------------------------------------------------


def golden_halves() -> Iterator[dict[str, Any]]:
    with gzip.open(GOLDEN / "store" / "clean.manifest.jsonl.gz") as rows:
        yield from (row for row in map(json.loads, rows) if row["topic"] in (TRANS_HALF_TOPIC, "GsTx"))


def test_golden_directory(tmp_path: Path) -> None:
    """A directory of a real RocketMQ with three committed, three rolled back and three open transactions: commits
    of the same half messages are the same bytes, and the open ones are checked."""
    with tarfile.open(GOLDEN / "store" / "clean.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    kit = Kit(tmp_path / "store", transaction_check_max=15)
    rows = list(golden_halves())
    halves = {row["commitLogOffset"]: row for row in rows if row["topic"] == TRANS_HALF_TOPIC}
    committed = [row for row in rows if row["topic"] == "GsTx"]
    assert len(committed) == 3
    for row in committed:
        record = kit.store.reads.record_at(row["preparedTransactionOffset"])
        stored = kit.store.reads.record_at(row["commitLogOffset"])
        assert record is not None
        assert stored is not None
        draft = Half(take_apart(record)).committed()
        assert draft is not None
        ours = encode_record(
            topic=draft.topic,
            body=bytes(draft.body),
            # The broker of the directory, 5.3.3, leaves these two in.
            properties={
                name: value
                for name, value in Half(take_apart(record)).properties.items()
                if name in draft.properties or name in ("REAL_TOPIC", "REAL_QID")
            },
            queue_id=draft.queue_id,
            queue_offset=row["queueOffset"],
            physical_offset=row["commitLogOffset"],
            flag=draft.flag,
            sys_flag=draft.sys_flag,
            born_timestamp_ms=draft.born_timestamp_ms,
            born_host=draft.born_host,
            store_timestamp_ms=row["storeTimestamp"],
            store_host=take_apart(stored).store_host,
            reconsume_times=draft.reconsume_times,
            prepared_transaction_offset=draft.prepared_offset,
        )
        assert zlib.crc32(ours) == row["recordCrc32"]
    decided = {1, 0, 4, 3, 7, 6}
    kit.clock.wall_ms = max(row["storeTimestamp"] for row in halves.values()) + 10_000
    producer = kit.live_producer("golden", "GsTxProducer")
    kit.run(31_000)
    asked = {decode_record(check.body).properties["UNIQ_KEY"] for check in kit.checks(producer)}
    assert asked == {row["msgId"] for row in halves.values() if row["queueOffset"] not in decided}
    assert kit.saved() == 9
    assert kit.saved(TRANS_OP_HALF_TOPIC) == 1


def test_golden_half_and_op_records(kit: Kit) -> None:
    """Fields and properties of what we store are those of a real broker."""
    row = next(row for row in golden_halves() if row["topic"] == TRANS_HALF_TOPIC)
    kit.prepare(properties={"KEYS": "k", "WAIT": "true"})
    (half,) = kit.messages(TRANS_HALF_TOPIC)
    assert half.properties.keys() == row["properties"].keys()
    assert (half.sys_flag, half.prepared_transaction_offset, half.reconsume_times) == (
        row["sysFlag"],
        row["preparedTransactionOffset"],
        row["reconsumeTimes"],
    )


@pytest.mark.parametrize("recording", ["tx", "tx_bin", "tx_timeout_below_op_interval"])
def test_golden_check(kit: Kit, recording: str) -> None:
    """A check has the fields, and the message in it the properties, of a recorded one."""
    rows = [json.loads(line) for line in (GOLDEN / "frames" / f"{recording}.jsonl").read_text().splitlines()]
    frames = [Connection().receive_data(bytes.fromhex(row["frame_hex"]))[0] for row in rows]
    recorded = next(frame for frame in frames if frame.code == RequestCode.CHECK_TRANSACTION_STATE)
    kit.prepare(properties={"KEYS": "k", "WAIT": "true"})
    kit.run(31_000)
    (check,) = kit.checks()
    assert check.ext.keys() == recorded.ext.keys()
    assert check.flag == recorded.flag
    theirs, ours = decode_record(recorded.body), decode_record(check.body)
    assert ours.properties.keys() == theirs.properties.keys()
    for name in ("commitLogOffset", "tranStateTableOffset"):
        found, known = int(check.ext[name]), int(recorded.ext[name])
        field = "physical_offset" if name == "commitLogOffset" else "queue_offset"
        assert (getattr(ours, field), getattr(theirs, field)) == (found, known)
    assert (ours.sys_flag, ours.prepared_transaction_offset) == (
        theirs.sys_flag,
        theirs.prepared_transaction_offset,
    )
    assert ours.topic == ours.properties["REAL_TOPIC"]
    assert theirs.topic == theirs.properties["REAL_TOPIC"]


def half_of(born_ms: int, **properties: str) -> Half:
    record = encode_record(
        topic=TRANS_HALF_TOPIC,
        body=b"x",
        properties={"UNIQ_KEY": "U", "PGROUP": "PG", "REAL_TOPIC": "T", "REAL_QID": "0", **properties},
        born_timestamp_ms=born_ms,
    )
    return Half(take_apart(memoryview(record)))


@pytest.mark.parametrize(
    ("age_ms", "properties", "verdict"),
    [
        (0, {}, HalfDecision.WAIT),
        (6_000, {}, HalfDecision.WAIT),
        (6_001, {}, HalfDecision.CHECK),
        (-1, {}, HalfDecision.CHECK),  # born in the future: its time is worth nothing
        (3_600_001, {}, HalfDecision.GIVE_UP),
        (6_001, {"TRANSACTION_CHECK_TIMES": "14"}, HalfDecision.CHECK),
        (6_001, {"TRANSACTION_CHECK_TIMES": "15"}, HalfDecision.GIVE_UP),
        (6_001, {"TRANSACTION_CHECK_TIMES": "many"}, HalfDecision.CHECK),
        (1, {"CHECK_IMMUNITY_TIME_IN_SECONDS": "2"}, HalfDecision.RENEW),
        (2_000, {"CHECK_IMMUNITY_TIME_IN_SECONDS": "2"}, HalfDecision.RENEW),
        (2_001, {"CHECK_IMMUNITY_TIME_IN_SECONDS": "2"}, HalfDecision.CHECK),
        (6_000, {"CHECK_IMMUNITY_TIME_IN_SECONDS": "soon"}, HalfDecision.RENEW),
        (6_001, {"CHECK_IMMUNITY_TIME_IN_SECONDS": "-1"}, HalfDecision.CHECK),
    ],
)
def test_judge(age_ms: int, properties: dict[str, str], verdict: HalfDecision) -> None:
    now_ms = 1_700_000_000_000
    half = half_of(now_ms - age_ms, **properties)
    assert judge(half, now_ms, Rules(6_000, 15, 3_600_000)) is verdict


def test_op_texts() -> None:
    assert op_body([1, 22, 333, 4], 5) == (b"1,22,", [1, 22])
    assert op_body([333, 4], 1) == (b"333,", [333])
    assert op_body([4], 100) == (b"4,", [4])
    assert op_offsets(b"1,22,") == [1, 22]
    assert op_offsets(b"7") == [7]
    assert op_offsets(b"x,-3,,99999999999999999999,5") == [5]


def test_decisions() -> None:
    decisions = Decisions(10, 3)
    assert decisions.is_decided(9)
    assert not decisions.decide(9)
    assert decisions.decide(12)
    assert not decisions.decide(12)
    assert [decisions.is_decided(offset) for offset in (10, 11, 12, 13)] == [False, False, True, False]
    assert [decisions.next_open(offset) for offset in (3, 10, 11, 12, 13, 20)] == [10, 10, 11, 13, 13, 20]
    decisions.note_op(3, [9])
    assert decisions.op_base == 4
    decisions.note_op(4, [12, 11])
    decisions.note_op(5, [])
    decisions.pass_to(12)
    assert (decisions.base, decisions.op_base, len(decisions)) == (12, 4, 1)
    decisions.pass_to(13)
    assert (decisions.op_base, len(decisions)) == (6, 0)


def test_settings_may_change_at_run_time(tmp_path: Path) -> None:
    kit = Kit(tmp_path, transaction_check_interval=3_600_000, transaction_op_batch_interval=3_600_000)
    kit.prepare("U1")
    kit.end(kit.prepare("U2"), ROLLBACK)
    kit.run(60_000)
    assert not kit.checks()
    assert kit.ops() == []
    kit.config.transaction_check_interval = kit.config.transaction_op_batch_interval = 1_000
    kit.run(1_000)
    assert len(kit.checks()) == 1
    assert kit.ops() == [1]


def test_a_full_disk_loses_no_decision(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, third = kit.prepare("U1"), kit.prepare("U2"), kit.prepare("U3")

    def full(*arguments: object) -> tuple[int, int, int]:
        raise DiskFull("no room")

    with monkeypatch.context() as patch:
        patch.setattr(Appender, "put", full)
        assert kit.end(first, COMMIT).code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert kit.end(second, ROLLBACK).code == 0
        kit.run(31_000)
        assert not kit.checks()
    kit.run(31_000)
    assert {decode_record(check.body).properties["UNIQ_KEY"] for check in kit.checks()} == {"U1", "U3"}
    assert kit.ops() == [1]
    assert kit.end(first, COMMIT).code == kit.end(third, COMMIT).code == 0
    assert len(kit.messages()) == 2


def test_a_timed_message_waits_from_its_commit_on(kit: Kit) -> None:
    ext = kit.prepare(properties={"TIMER_DELAY_MS": "3000"})
    kit.run(6_000)
    assert not kit.messages()
    kit.end(ext, COMMIT)
    kit.run(2_000)
    assert not kit.messages()
    kit.run(3_000)
    assert [message.body for message in kit.messages()] == [b"hello"]
    kit.run(60_000)
    assert not kit.checks()


@pytest.mark.parametrize("size", [10, 40_000])
def test_many_open_transactions_are_checked_a_slice_at_a_time(kit: Kit, size: int) -> None:
    for number in range(300):
        kit.prepare(f"U{number}", body=b"x" * size)
    kit.clock.advance(31_000)
    kit.beat()
    before = kit.store.appender.put_count
    rounds = []
    while not rounds or rounds[-1]:
        assert kit.broker.tick() <= 5 or rounds
        kit.settle()
        rounds.append(kit.store.appender.put_count - before - sum(rounds))
    # About half a mebibyte, or so many messages.
    assert rounds[0] == SLICE_MESSAGES if size == 10 else 10 <= rounds[0] < SLICE_MESSAGES
    assert len(kit.checks()) == sum(rounds) == 300
    assert kit.saved() == 300


def test_what_was_deleted_from_the_log_is_passed_over(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    kit.prepare("U1")
    kit.prepare("U2")
    decisions = kit.broker.transactions.decisions
    found = kit.store.reads.get

    def gone(_: Reads, topic: str, queue_id: int, offset: int, *more: Any) -> GetResult:
        if topic == TRANS_HALF_TOPIC and offset == 0:
            return GetResult(GetStatus.OFFSET_TOO_SMALL, 1, 1, 2)
        return found(topic, queue_id, offset, *more)

    monkeypatch.setattr(Reads, "get", gone)
    kit.run(31_000)
    assert [decode_record(check.body).properties["UNIQ_KEY"] for check in kit.checks()] == ["U2"]
    assert decisions.base == 2
