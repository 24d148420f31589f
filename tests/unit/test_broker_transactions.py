"""Transactions in a broker without sockets: prepare, commit, roll back, check, restart."""

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
from mqspark.errors import DiskFull
from mqspark.message import (
    TRANS_CHECK_MAX_TIME_TOPIC,
    TRANS_HALF_TOPIC,
    TRANS_OP_HALF_TOPIC,
    Message,
    MessageExt,
    encode_properties,
)
from mqspark.protocol.bodies import HeartbeatData, ProducerData, SubscriptionGroupConfig, encode_body
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command
from mqspark.protocol.connection import Connection
from mqspark.protocol.headers import CheckTransactionStateRequestHeader
from mqspark.record import decode_record, decode_records, encode_batch, encode_record, take_apart
from mqspark.store.store import GetResult, GetStatus
from tests.unit.broker_kit import SEND, Bench, Peer, send_ext

GOLDEN = Path(__file__).parent.parent / "golden"
COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0
GROUP = "CID_RMQ_SYS_TRANS"


class Kit(Bench):
    """A broker and one producer of the group PG."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        super().__init__(directory, **settings)
        self.alive: list[tuple[str, str, Peer]] = []
        self.producer = self.live_producer()

    def live_producer(self, client_id: str = "c1", group: str = "PG") -> Peer:
        peer = self.peer()
        peer.ask(
            RequestCode.HEART_BEAT,
            body=encode_body(HeartbeatData(client_id=client_id, producer_data_set=[ProducerData(group)])),
        )
        self.alive.append((group, client_id, peer))
        return peer

    def beat(self) -> None:
        """Everybody's heartbeat."""
        for group, client_id, peer in self.alive:
            if peer.session.open:
                self.broker.state.clients.produce(group, client_id, peer.session, 0, 479)

    def prepare(self, unique_id: str = "U1", body: bytes = b"hello", **more: Any) -> dict[str, str]:
        """The END_TRANSACTION header that a client makes of the answer, without the decision."""
        properties = {
            "TRAN_MSG": "true",
            "PGROUP": "PG",
            "UNIQ_KEY": unique_id,
            "TAGS": "A",
            **more.pop("properties", {}),
        }
        ext = send_ext(
            properties=encode_properties(properties).decode(), f="4", g=str(self.clock.now_ms()), **more
        )
        answer = self.producer.ask(SEND, ext, body)
        assert answer.code == 0, answer.remark
        return self.end_ext(int(answer.ext["msgId"][16:], 16), int(answer.ext["queueOffset"]), unique_id)

    @staticmethod
    def end_ext(position: int, offset: int, unique_id: str) -> dict[str, str]:
        return {
            "producerGroup": "PG",
            "commitLogOffset": str(position),
            "tranStateTableOffset": str(offset),
            "msgId": unique_id,
            "transactionId": unique_id,
            "fromTransactionCheck": "false",
        }

    def end(self, ext: dict[str, str], decision: int, **more: str) -> Command:
        return self.producer.ask(
            RequestCode.END_TRANSACTION, {**ext, "commitOrRollback": str(decision), **more}
        )

    def settle(self) -> None:
        """Everything put is written, synced and told."""
        self.broker.turn()
        self.housekeeping()
        self.flush()

    def run(self, ms: int, step_ms: int = 500) -> None:
        """Let time pass."""
        for _ in range(ms // step_ms):
            self.clock.advance(step_ms)
            self.beat()
            while self.broker.tick() == 0:
                self.settle()
            self.settle()

    def checks(self, peer: Peer | None = None) -> list[Command]:
        return [
            command
            for command in (peer or self.producer).heard()
            if command.code == RequestCode.CHECK_TRANSACTION_STATE and not command.is_response
        ]

    def answer_check(self, check: Command, decision: int) -> Command:
        header = check.header(CheckTransactionStateRequestHeader)
        ext = self.end_ext(header.commit_log_offset, header.tran_state_table_offset, header.msg_id or "")
        return self.end(ext, decision, fromTransactionCheck="true")

    def messages(self, topic: str = "T", queue_id: int = 0) -> list[MessageExt]:
        result = self.store.get(
            topic, queue_id, max(0, self.store.min_offset(topic, queue_id)), 1000, 1 << 24
        )
        return decode_records(b"".join(result.buffers))

    def ops(self) -> list[int]:
        return [offset for op in self.messages(TRANS_OP_HALF_TOPIC) for offset in op_offsets(op.body)]

    def saved(self, topic: str = TRANS_HALF_TOPIC) -> int:
        return self.broker.state.offsets.query(GROUP, topic, 0)

    def crash(self) -> None:
        """The process is killed: what was written stays, what was in memory is gone; another starts."""
        self.store._release()
        self.open()
        self.producer = self.live_producer()

    def reopen(self) -> None:
        super().reopen()
        self.producer = self.live_producer()


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[Kit]:
    kit = Kit(tmp_path)
    kit.producer.ask(SEND, send_ext(queue_id=1), b"so that the topic exists")
    yield kit
    kit.close()


def test_a_half_message_is_not_visible_and_its_answer_names_the_half_record(kit: Kit) -> None:
    ext = kit.prepare(e="2")
    assert not kit.messages(queue_id=2)
    (half,) = kit.messages(TRANS_HALF_TOPIC)
    assert (half.queue_offset, half.physical_offset) == (
        int(ext["tranStateTableOffset"]),
        int(ext["commitLogOffset"]),
    )
    assert half.properties | {"born": ""} == {
        "TRAN_MSG": "true",
        "PGROUP": "PG",
        "UNIQ_KEY": "U1",
        "TAGS": "A",
        "MSG_REGION": "DefaultRegion",
        "CLUSTER": "C",
        "TRACE_ON": "true",
        "__transactionId__": "U1",
        "REAL_TOPIC": "T",
        "REAL_QID": "2",
        "born": "",
    }
    assert half.sys_flag == 0


def test_the_answer_to_a_prepared_send_names_the_real_queue(kit: Kit) -> None:
    properties = "TRAN_MSG\x01true\x02UNIQ_KEY\x01U\x02"
    answer = kit.producer.ask(SEND, send_ext(queue_id=3, properties=properties, f="4"), b"x")
    assert (answer.ext["queueId"], answer.ext["transactionId"]) == ("3", "U")


def test_commit_makes_one_copy_and_then_an_op_message(kit: Kit) -> None:
    ext = kit.prepare(e="2", h="5")
    assert kit.end(ext, COMMIT).code == 0
    (message,) = kit.messages(queue_id=2)
    (half,) = kit.messages(TRANS_HALF_TOPIC)
    assert (message.body, message.flag, message.sys_flag) == (b"hello", 5, 8)
    assert message.properties == {
        name: value for name, value in half.properties.items() if name not in ("REAL_TOPIC", "REAL_QID")
    }
    assert message.prepared_transaction_offset == half.physical_offset
    assert (message.born_timestamp_ms, message.born_host) == (half.born_timestamp_ms, half.born_host)
    assert kit.ops() == []
    kit.run(3_500)
    (op,) = kit.messages(TRANS_OP_HALF_TOPIC)
    assert (op.body, op.properties, op.born_host) == (b"0,", {"TAGS": "d", "WAIT": "true"}, op.store_host)
    assert op.physical_offset > message.physical_offset


def test_rollback_writes_only_the_op_message(kit: Kit) -> None:
    assert kit.end(kit.prepare(), ROLLBACK).code == 0
    kit.run(60_000)
    assert kit.ops() == [0]
    assert not kit.messages()
    assert not kit.checks()
    assert kit.saved() == 1
    assert kit.saved(TRANS_OP_HALF_TOPIC) == 1


def test_open_transactions_are_counted(kit: Kit) -> None:
    first = kit.prepare("U1")
    kit.prepare("U2")
    assert kit.broker.open_transactions == 2
    kit.end(first, COMMIT)
    assert kit.broker.open_transactions == 1
    kit.run(61_000)
    assert kit.broker.open_transactions == 1
    kit.answer_check(kit.checks()[-1], ROLLBACK)
    assert kit.broker.open_transactions == 0
    kit.crash()
    assert kit.broker.open_transactions <= 1  # the rollback was only in memory


def test_unknown_gets_no_answer(kit: Kit) -> None:
    kit.producer.give(RequestCode.END_TRANSACTION, {**kit.prepare(), "commitOrRollback": "0"})
    kit.settle()
    assert not kit.producer.heard()


@pytest.mark.parametrize(
    ("change", "code", "remark"),
    [
        ({"producerGroup": "OTHER"}, 1, "producer group"),
        ({"tranStateTableOffset": "7"}, 1, "state table offset"),
        ({"commitLogOffset": "12345"}, 1, "Find prepared transaction message failed"),
        ({"commitLogOffset": "-1"}, 1, "Find prepared transaction message failed"),
        ({"commitLogOffset": "0", "tranStateTableOffset": "0"}, 1, "Find prepared"),  # an ordinary message
        ({"commitOrRollback": "4"}, 1, "commitOrRollback"),
    ],
)
def test_a_foreign_end_changes_nothing(kit: Kit, change: dict[str, str], code: int, remark: str) -> None:
    ext = kit.prepare()
    answer = kit.end(ext, COMMIT, **change)
    assert answer.code == code
    assert remark in (answer.remark or "")
    assert not kit.messages()
    assert kit.end(ext, COMMIT).code == 0
    assert len(kit.messages()) == 1


@pytest.mark.parametrize("first", [COMMIT, ROLLBACK])
@pytest.mark.parametrize("second", [COMMIT, ROLLBACK])
@pytest.mark.parametrize("later_ms", [0, 5_000, 120_000])
def test_a_second_end_changes_nothing(kit: Kit, first: int, second: int, later_ms: int) -> None:
    ext = kit.prepare()
    kit.end(ext, first)
    kit.run(later_ms)
    assert kit.end(ext, second).code == 0
    kit.run(60_000)
    assert len(kit.messages()) == (first == COMMIT)
    assert kit.ops() == [0]


def test_an_open_transaction_is_checked_until_it_is_decided(kit: Kit) -> None:
    kit.prepare(h="9")
    kit.run(29_000)
    assert not kit.checks()
    kit.run(1_500)
    (check,) = kit.checks()
    header = check.header(CheckTransactionStateRequestHeader)
    message = decode_record(check.body)
    copy = kit.messages(TRANS_HALF_TOPIC)[-1]
    assert (header.topic, header.bname) == (TRANS_HALF_TOPIC, "b-a")
    assert header.msg_id == header.transaction_id == "U1"
    assert header.tran_state_table_offset == copy.queue_offset == message.queue_offset == 1
    assert header.commit_log_offset == copy.physical_offset == message.physical_offset
    assert header.offset_msg_id == copy.offset_message_id
    assert (message.topic, message.queue_id, message.body, message.flag) == ("T", 0, b"hello", 9)
    assert message.properties["TRANSACTION_CHECK_TIMES"] == "1"
    assert check.is_oneway
    kit.run(30_000)
    (check,) = kit.checks()
    assert decode_record(check.body).properties["TRANSACTION_CHECK_TIMES"] == "2"
    assert kit.answer_check(check, COMMIT).code == 0
    kit.run(90_000)
    assert not kit.checks()
    assert [message.flag for message in kit.messages()] == [9]
    assert kit.ops() == [2]
    assert kit.saved() == 3


def test_a_young_transaction_is_left_alone(kit: Kit) -> None:
    kit.run(26_000)
    kit.prepare()
    kit.run(4_500)
    assert len(kit.messages(TRANS_HALF_TOPIC)) == 1
    kit.run(30_000)
    assert len(kit.checks()) == 1


def test_what_is_decided_is_not_checked_before_its_op_message_is_written(tmp_path: Path) -> None:
    kit = Kit(tmp_path, transaction_time_out=100, transaction_check_interval=100)
    ext = kit.prepare()
    kit.end(ext, COMMIT)
    kit.run(2_000, 100)
    assert kit.ops() == []
    assert not kit.checks()
    assert len(kit.messages()) == 1
    kit.close()


def test_a_late_decision_by_the_name_of_the_first_copy_counts(kit: Kit) -> None:
    ext = kit.prepare()
    kit.run(31_000)
    (check,) = kit.checks()
    assert kit.end(ext, COMMIT).code == 0
    kit.answer_check(check, COMMIT)
    kit.run(60_000)
    assert len(kit.messages()) == 1
    assert not kit.checks()
    assert kit.ops() == [1]


def test_checks_go_to_live_producers_in_turn(kit: Kit) -> None:
    other = kit.live_producer("c2")
    gone = kit.live_producer("c3")
    gone.disconnect()
    kit.live_producer("c4", "PG2")
    for number in range(4):
        kit.prepare(f"U{number}")
    kit.run(31_000)
    assert [len(kit.checks(peer)) for peer in (kit.producer, other)] == [2, 2]


def test_without_a_producer_the_message_is_kept_and_counted(
    kit: Kit, caplog: pytest.LogCaptureFixture
) -> None:
    kit.prepare("U0")
    kit.prepare()
    kit.producer.disconnect()
    kit.run(31_000)
    assert caplog.text.count("producer group PG has no live member") == 1, "once a round"
    assert kit.messages(TRANS_HALF_TOPIC)[-1].properties["TRANSACTION_CHECK_TIMES"] == "1"
    kit.run(30_000)
    assert caplog.text.count("producer group PG has no live member") == 2
    kit.producer = kit.live_producer()
    kit.run(30_000)
    assert len(kit.checks()) == 2


def test_what_nobody_decides_is_given_up(kit: Kit) -> None:
    ext = kit.prepare(h="3")
    kit.run(30_500)
    last = kit.checks()
    for _ in range(16):
        kit.run(30_000)
        last += kit.checks()
    assert len(last) == 15
    (parked,) = kit.messages(TRANS_CHECK_MAX_TIME_TOPIC)
    assert (parked.body, parked.flag, parked.properties["TRANSACTION_CHECK_TIMES"]) == (b"hello", 3, "15")
    kit.end(ext, COMMIT)
    kit.answer_check(last[-1], COMMIT)
    assert not kit.messages()
    answer = kit.producer.ask(
        RequestCode.RESUME_CHECK_HALF_MESSAGE, {"topic": "T", "msgId": parked.offset_message_id}
    )
    assert answer.code == 0
    kit.run(31_000)
    (check,) = kit.checks()
    kit.answer_check(check, COMMIT)
    assert len(kit.messages()) == 1


@pytest.mark.parametrize("is_killed", [False, True])
def test_what_was_resumed_is_open_after_a_restart(tmp_path: Path, is_killed: bool) -> None:
    """Also behind an open batch, where an op message says that it was given up."""
    kit = Kit(tmp_path, transaction_check_max=1)
    batch = encode_batch([Message.of("T", "of a batch", properties={"UNIQ_KEY": "B.0"})])
    kit.prepare("B", body=batch, properties={"MQSPARK_BATCH": "1:0"})
    ext = kit.prepare("U1")
    kit.run(65_000)
    (parked,) = kit.messages(TRANS_CHECK_MAX_TIME_TOPIC)
    assert kit.ops() == [2]
    answer = kit.producer.ask(
        RequestCode.RESUME_CHECK_HALF_MESSAGE, {"topic": "T", "msgId": parked.offset_message_id}
    )
    assert answer.code == 0
    kit.settle()
    if is_killed:
        kit.crash()
    else:
        kit.reopen()
    kit.run(31_000)
    assert [decode_record(check.body).properties["UNIQ_KEY"] for check in kit.checks()] == ["U1"]
    assert kit.end(ext, COMMIT).code == 0
    assert len(kit.messages()) == 1
    kit.close()


def test_only_what_was_given_up_can_be_resumed(kit: Kit) -> None:
    kit.prepare()
    (half,) = kit.messages(TRANS_HALF_TOPIC)
    for message_id in (half.offset_message_id, "zz", ""):
        answer = kit.producer.ask(RequestCode.RESUME_CHECK_HALF_MESSAGE, {"msgId": message_id})
        assert answer.code == ResponseCode.SYSTEM_ERROR


def test_one_that_is_older_than_files_are_kept_is_given_up(kit: Kit) -> None:
    kit.prepare()
    kit.clock.advance(73 * 3_600_000)
    kit.run(30_500)
    assert len(kit.messages(TRANS_CHECK_MAX_TIME_TOPIC)) == 1
    assert not kit.checks()


def test_an_immunity_of_its_own(kit: Kit) -> None:
    ext = kit.prepare(properties={"CHECK_IMMUNITY_TIME_IN_SECONDS": "100"})
    behind = kit.prepare("U2")
    kit.run(31_000)
    assert [decode_record(check.body).properties["UNIQ_KEY"] for check in kit.checks()] == ["U2"]
    copy = kit.messages(TRANS_HALF_TOPIC)[2]
    assert copy.properties["UNIQ_KEY"] == "U1"
    assert copy.properties["TRAN_PREPARED_QUEUE_OFFSET"] == "0"
    kit.run(30_000)
    again = kit.messages(TRANS_HALF_TOPIC)[-2]
    assert (again.properties["UNIQ_KEY"], again.properties["TRAN_PREPARED_QUEUE_OFFSET"]) == ("U1", "0")
    kit.checks()
    kit.end(behind, ROLLBACK)
    assert kit.end(ext, COMMIT).code == 0
    kit.run(90_000)
    assert not kit.checks()
    assert len(kit.messages()) == 1


def test_after_its_immunity_only_a_check_decides(kit: Kit) -> None:
    ext = kit.prepare(properties={"CHECK_IMMUNITY_TIME_IN_SECONDS": "10"})
    kit.run(11_000)
    for decision in (COMMIT, ROLLBACK):
        assert kit.end(ext, decision).code == ResponseCode.ILLEGAL_OPERATION
    kit.run(20_000)
    (check,) = kit.checks()
    assert kit.answer_check(check, COMMIT).code == 0
    assert len(kit.messages()) == 1


def test_a_delay_begins_at_the_commit(kit: Kit) -> None:
    ext = kit.prepare(properties={"DELAY": "1"})
    kit.run(2_000)
    kit.end(ext, COMMIT)
    assert not kit.messages()
    assert len(kit.messages("SCHEDULE_TOPIC_XXXX")) == 1
    kit.run(2_000)
    (message,) = kit.messages()
    assert (message.body, "TRAN_MSG" in message.properties) == (b"hello", False)


def test_transactions_can_be_forbidden(tmp_path: Path) -> None:
    kit = Kit(tmp_path, reject_transaction_message=True)
    answer = kit.producer.ask(SEND, send_ext(properties="TRAN_MSG\x01true\x02", f="4"), b"x")
    assert (answer.code, answer.remark) == (
        ResponseCode.NO_PERMISSION,
        "the broker[127.0.0.1] sending transaction message is forbidden",
    )
    kit.close()


@pytest.mark.parametrize(
    "ext",
    [
        send_ext(f="4"),
        send_ext(f="4", properties="TRAN_MSG\x01no\x02"),
        send_ext(f="4", m="true"),
        send_ext(m="true", properties="TRAN_MSG\x01true\x02"),
    ],
)
def test_what_is_half_a_transaction_is_refused(kit: Kit, ext: dict[str, str]) -> None:
    answer = kit.producer.ask(SEND, ext, b"\0\0\0\x19" + bytes(12) + b"\0\0\0\x03abc\0\0")
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL


def test_a_retry_of_a_committed_message_by_an_old_client_is_no_transaction(kit: Kit) -> None:
    properties = "TRAN_MSG\x01true\x02DELAY\x013\x02"
    kit.broker.state.subscriptions.put(SubscriptionGroupConfig(group_name="CG"))
    answer = kit.producer.ask(SEND, send_ext(properties=properties, f="4", j="1"), b"x")
    assert answer.code == 0
    assert not kit.messages(TRANS_HALF_TOPIC)


def test_op_messages_are_written_early_when_there_are_many(tmp_path: Path) -> None:
    kit = Kit(tmp_path, transaction_op_msg_max_size=20)
    for number in range(13):
        kit.end(kit.prepare(f"U{number}"), ROLLBACK)
    kit.settle()
    (op,) = kit.messages(TRANS_OP_HALF_TOPIC)
    assert op.body == b"0,1,2,3,4,5,6,7,8,9,"
    kit.run(3_500)
    assert kit.ops() == list(range(13))
    kit.close()


def test_answers_wait_for_the_disk(tmp_path: Path) -> None:
    kit = Kit(tmp_path, sync=True)
    ext = kit.prepare()
    kit.producer.give(RequestCode.END_TRANSACTION, {**ext, "commitOrRollback": "8"})
    kit.broker.turn()
    assert not kit.producer.heard()
    kit.flush()
    assert [command.code for command in kit.producer.heard()] == [0]
    kit.prepare("U2")
    kit.clock.advance(31_000)
    kit.broker.tick()
    assert not kit.checks()
    kit.flush()
    assert len(kit.checks()) == 1
    kit.close()


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
        kit.close()


def test_offsets_are_saved_when_the_copies_before_them_are_on_the_disk(kit: Kit) -> None:
    kit.prepare()
    kit.clock.advance(31_000)
    kit.broker.tick()
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
        record = kit.store.record_at(row["preparedTransactionOffset"])
        stored = kit.store.record_at(row["commitLogOffset"])
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
    kit.close()


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
    kit.close()


def test_a_full_disk_loses_no_decision(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, third = kit.prepare("U1"), kit.prepare("U2"), kit.prepare("U3")

    def full(*arguments: object) -> tuple[int, int, int]:
        raise DiskFull("no room")

    with monkeypatch.context() as patch:
        patch.setattr(kit.store, "put", full)
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


def test_many_open_transactions_are_checked_a_slice_at_a_time(kit: Kit) -> None:
    for number in range(300):
        kit.prepare(f"U{number}", body=b"x" * 8_000)
    kit.clock.advance(31_000)
    kit.beat()
    before = kit.store.put_count
    rounds = []
    while not rounds or rounds[-1]:
        assert kit.broker.tick() <= 5 or rounds
        kit.settle()
        rounds.append(kit.store.put_count - before - sum(rounds))
    assert 100 < rounds[0] < 200  # about a mebibyte
    assert len(kit.checks()) == sum(rounds) == 300
    assert kit.saved() == 300


def test_what_was_deleted_from_the_log_is_passed_over(kit: Kit) -> None:
    kit.prepare("U1")
    kit.prepare("U2")
    decisions = kit.broker._transactions._decisions
    monkey = kit.store.get

    def gone(topic: str, queue_id: int, offset: int, *more: Any) -> GetResult:
        if topic == TRANS_HALF_TOPIC and offset == 0:
            return GetResult(GetStatus.OFFSET_TOO_SMALL, 1, 1, 2)
        return monkey(topic, queue_id, offset, *more)

    kit.store.get = gone  # type: ignore[method-assign]
    kit.run(31_000)
    assert [decode_record(check.body).properties["UNIQ_KEY"] for check in kit.checks()] == ["U2"]
    assert decisions.base == 2
