"""Transactions in a broker without sockets: prepare, commit, roll back, check, restart."""

from __future__ import annotations

from pathlib import Path

import pytest

from mqspark.message import TRANS_CHECK_MAX_TIME_TOPIC, TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC, Message
from mqspark.protocol.bodies.topic_bodies import SubscriptionGroupConfig
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.headers.client_headers import CheckTransactionStateRequestHeader
from mqspark.record.batchitems import encode_batch
from mqspark.record.record import decode_record
from tests.unit.broker_kit import SEND, send_ext
from tests.unit.transaction_kit import COMMIT, ROLLBACK, Kit


@pytest.fixture
def kit(tmp_path: Path) -> Kit:
    kit = Kit(tmp_path)
    kit.producer.ask(SEND, send_ext(queue_id=1), b"so that the topic exists")
    return kit


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
    assert kit.broker.transactions.open_count == 2
    kit.end(first, COMMIT)
    assert kit.broker.transactions.open_count == 1
    kit.run(61_000)
    assert kit.broker.transactions.open_count == 1
    kit.answer_check(kit.checks()[-1], ROLLBACK)
    assert kit.broker.transactions.open_count == 0
    kit.crash()
    assert kit.broker.transactions.open_count <= 1  # the rollback was only in memory


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


def test_a_value_with_the_mark_of_values_passes_check_and_commit(kit: Kit) -> None:
    kit.prepare(properties={"odd": "a\x01b"})
    kit.run(30_500)
    (check,) = kit.checks()
    assert decode_record(check.body).properties["odd"] == "a\x01b"
    assert kit.answer_check(check, COMMIT).code == 0
    (message,) = kit.messages()
    assert message.properties["odd"] == "a\x01b"


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


def test_only_what_was_given_up_is_stored_again(kit: Kit) -> None:
    """What is open is checked anyway, and what is decided must not be delivered twice."""
    ext = kit.prepare()
    (half,) = kit.messages(TRANS_HALF_TOPIC)

    def resumed(message_id: str) -> int:
        return kit.producer.ask(RequestCode.RESUME_CHECK_HALF_MESSAGE, {"msgId": message_id}).code

    assert resumed(half.offset_message_id) == ResponseCode.SUCCESS
    assert len(kit.messages(TRANS_HALF_TOPIC)) == 1
    kit.end(ext, COMMIT)
    (committed,) = kit.messages()
    for message_id in (half.offset_message_id, committed.offset_message_id, "zz", ""):
        assert resumed(message_id) == ResponseCode.SYSTEM_ERROR
    assert len(kit.messages(TRANS_HALF_TOPIC)) == 1


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


def test_answers_wait_for_the_disk(tmp_path: Path) -> None:
    kit = Kit(tmp_path, sync=True)
    ext = kit.prepare()
    kit.producer.give(RequestCode.END_TRANSACTION, {**ext, "commitOrRollback": "8"})
    kit.broker.turn()
    assert not kit.producer.heard()
    kit.flush()
    assert [command.code for command in kit.producer.heard()] == [0]
    kit.prepare("U2")
    kit.later(31_000)
    assert not kit.checks()
    kit.flush()
    assert len(kit.checks()) == 1
