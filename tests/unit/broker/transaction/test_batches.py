"""Half messages that hold a batch: prepare, commit, roll back, restart, crashes that tear a commit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mqspark.broker.transaction import transactions
from mqspark.broker.transaction.halfbatches import MAX_MEMBERS, still_missing
from mqspark.message import TRANS_CHECK_MAX_TIME_TOPIC, TRANS_HALF_TOPIC, TRANSACTION_COMMIT_TYPE, Message
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.record.batchitems import encode_batch
from mqspark.store.log.commitlog import CommitLog
from tests.support.remoting import topic_fields
from tests.unit.broker.transaction.test_broker_transactions import COMMIT, ROLLBACK, Kit
from tests.unit.broker_kit import SEND, send_ext


@pytest.fixture
def kit(tmp_path: Path) -> Kit:
    running = Kit(tmp_path)
    running.producer.ask(SEND, send_ext(), b"first")
    return running


def prepare(kit: Kit, names: list[str], unique_id: str = "B1", **more: Any) -> dict[str, str]:
    body = encode_batch([Message.of("T", name, tags=name[0], keys=name) for name in names])
    marker = more.pop("marker", f"{len(names)}:0")
    return kit.prepare(unique_id, body=body, properties={"MQSPARK_BATCH": marker}, **more)


def bodies(kit: Kit, topic: str = "T") -> list[str]:
    return [message.body.decode() for message in kit.messages(topic)][1:]


def test_a_large_batch_becomes_what_a_small_one_does(kit: Kit) -> None:
    names = [f"a{number}" for number in range(300)]
    half = prepare(kit, names)
    assert kit.end(half, COMMIT).code == 0
    assert bodies(kit) == names
    messages = kit.messages()[1:]
    (stored,) = kit.messages(TRANS_HALF_TOPIC)
    assert {message.prepared_transaction_offset for message in messages} == {stored.physical_offset}
    assert {message.properties["CLUSTER"] for message in messages} == {"C"}
    assert [message.keys for message in messages] == names


def test_one_of_many_that_is_delayed_refuses_all(kit: Kit) -> None:
    messages = [Message.of("T", "x") for _ in range(100)]
    messages[70] = Message.of("T", "x", properties={"DELAY": "1"})
    properties = "UNIQ_KEY\x01B9\x02TRAN_MSG\x01true\x02PGROUP\x01P\x02MQSPARK_BATCH\x01100:0\x02"
    answer = kit.producer.ask(SEND, send_ext(f="4", properties=properties), encode_batch(messages))
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert kit.messages(TRANS_HALF_TOPIC) == []


def test_a_batch_of_retries_that_have_had_all_their_attempts_becomes_dead_letters(kit: Kit) -> None:
    """So a work queue writes them exactly once, although clients do not write to the topic."""
    letters = [Message.of("T", name, properties={"RETRY_TOPIC": "T"}) for name in ("a", "b")]
    half = kit.prepare(
        "D1",
        body=encode_batch(letters),
        properties={"MQSPARK_BATCH": "2:0"},
        topic="%RETRY%G",
        j="1",
        l="0",
    )
    assert kit.end(half, COMMIT).code == 0
    dead = kit.messages("%DLQ%G")
    assert [(each.body, each.properties["RETRY_TOPIC"]) for each in dead] == [(b"a", "T"), (b"b", "T")]
    assert kit.messages("%RETRY%G") == []


def test_all_of_a_batch_or_nothing(kit: Kit) -> None:
    first = prepare(kit, ["a1", "a2", "b3"])
    second = prepare(kit, ["c4", "c5"], "B2")
    third = prepare(kit, ["x"], "B3")
    assert bodies(kit) == []
    assert len(kit.messages(TRANS_HALF_TOPIC)) == 3
    assert kit.end(second, COMMIT).code == 0
    assert kit.end(third, ROLLBACK).code == 0
    assert kit.end(first, COMMIT).code == 0
    for again in (COMMIT, ROLLBACK):
        assert kit.end(first, again).code == 0
    assert kit.end(third, COMMIT).code == 0
    assert bodies(kit) == ["c4", "c5", "a1", "a2", "b3"]
    message = kit.messages()[3]
    assert (message.keys, message.tags, message.properties["CLUSTER"]) == ("a1", "a", "C")
    assert message.properties.keys().isdisjoint({"REAL_TOPIC", "MQSPARK_BATCH", "UNIQ_KEY", "TRAN_MSG"})
    assert message.sys_flag == TRANSACTION_COMMIT_TYPE
    assert message.prepared_transaction_offset == int(first["commitLogOffset"])
    kit.run(3_500)
    assert kit.ops() == [1, 2, 0]


def test_compressed_members_keep_their_flags(kit: Kit) -> None:
    ext = prepare(kit, ["x"], marker=f"1:{1 | 3 << 8}")
    kit.end(ext, COMMIT)
    result = kit.store.reads.get("T", 0, 1, 1, 1 << 20)
    assert int.from_bytes(result.buffers[0][36:40], "big") == 1 | 3 << 8 | TRANSACTION_COMMIT_TYPE


@pytest.mark.parametrize(
    ("marker", "properties", "words"),
    [
        ("2:0", {}, "holds 1 messages"),
        ("", {}, "count:flags"),
        ("1", {}, "count:flags"),
        ("1:8", {}, "count:flags"),
        (f"{MAX_MEMBERS + 1}:0", {}, "count:flags"),
        ("1:0", {"DELAY": "2"}, "cannot be delayed"),
        ("1:0", {"TIMER_DELAY_SEC": "2"}, "cannot be delayed"),
    ],
)
def test_what_could_not_be_committed_is_refused(
    kit: Kit, marker: str, properties: dict[str, str], words: str
) -> None:
    text = "".join(
        f"{name}\x01{value}\x02"
        for name, value in {"TRAN_MSG": "true", "PGROUP": "PG", "MQSPARK_BATCH": marker, **properties}.items()
    )
    answer = kit.producer.ask(SEND, send_ext(properties=text, f="4"), encode_batch([Message.of("T", "x")]))
    if marker:
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert words in (answer.remark or "")
    else:
        assert answer.code == 0  # no value, no property: an ordinary half message
    assert bodies(kit) == []


@pytest.mark.parametrize(
    "members",
    [
        [Message.of("T", "x", properties={"DELAY": "3"})],
        [Message.of("T", "y"), Message.of("T", "x", properties={"TIMER_DELIVER_MS": "3"})],
        [Message.of("T", "x", properties={"TRAN_MSG": "true"})],
        [Message.of("T", "x", properties={"long": "x" * 32_690})],
    ],
)
def test_members_that_go_elsewhere_are_refused(kit: Kit, members: list[Message]) -> None:
    text = f"TRAN_MSG\x01true\x02PGROUP\x01PG\x02MQSPARK_BATCH\x01{len(members)}:0\x02"
    answer = kit.producer.ask(SEND, send_ext(properties=text, f="4"), encode_batch(members))
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    torn = encode_batch(members)[:-1]
    assert kit.producer.ask(SEND, send_ext(properties=text, f="4"), torn).code == ResponseCode.MESSAGE_ILLEGAL


def test_nobody_is_asked_and_others_are_checked_behind_it(kit: Kit) -> None:
    ext = prepare(kit, ["a", "b"])
    behind = kit.prepare("U2")
    kit.run(31_000)
    assert len(kit.checks()) == 1
    # The batch stays where it is, so do the offsets; the copy of the other one counts now.
    assert len(kit.messages(TRANS_HALF_TOPIC)) == 3
    kit.run(60_000)
    assert len(kit.messages(TRANS_HALF_TOPIC)) == 5
    assert len(kit.checks()) == 2
    assert max(0, kit.saved()) == 0
    kit.crash()
    kit.end(behind, COMMIT)
    kit.end(ext, COMMIT)
    assert sorted(bodies(kit)) == ["a", "b", "hello"]
    kit.run(61_000)
    assert not kit.checks()
    assert kit.saved() == 5


def test_what_is_given_up_behind_an_open_batch_is_given_up_once(tmp_path: Path) -> None:
    kit = Kit(tmp_path, transaction_check_max=1)
    prepare(kit, ["a", "b"])
    kit.prepare("U2")
    kit.run(93_000)
    assert len(kit.messages(TRANS_CHECK_MAX_TIME_TOPIC)) == 1
    kit.crash()
    kit.run(93_000)
    assert len(kit.messages(TRANS_CHECK_MAX_TIME_TOPIC)) == 1


def test_an_open_batch_follows_the_end_of_the_log(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    ext = prepare(kit, ["a", "b"])
    monkeypatch.setattr(transactions, "BATCH_KEEP_BYTES", 5_000)
    kit.run(31_000)
    assert len(kit.messages(TRANS_HALF_TOPIC)) == 1
    kit.producer.ask(SEND, send_ext(e="1"), b"x" * 6_000)
    for _ in range(2):
        kit.run(31_000)
        assert len(kit.messages(TRANS_HALF_TOPIC)) == 2
    kit.crash()
    assert kit.end(ext, COMMIT).code == 0
    kit.crash()
    assert kit.end(ext, COMMIT).code == 0
    kit.run(31_000)
    assert bodies(kit) == ["a", "b"]
    assert kit.saved() == 2


def test_after_the_time_of_the_files_its_end_is_refused(kit: Kit) -> None:
    ext = prepare(kit, ["a"])
    kit.clock.advance(73 * 3_600_000)
    answer = kit.end(ext, COMMIT)
    assert answer.code == ResponseCode.ILLEGAL_OPERATION
    assert "more than 72 hours (fileReservedTime) from now" in (answer.remark or "")
    kit.run(31_000)
    assert len(kit.messages(TRANS_CHECK_MAX_TIME_TOPIC)) == 1
    assert kit.end(ext, COMMIT).code == ResponseCode.ILLEGAL_OPERATION


def test_much_at_once_has_to_wait(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    ext = prepare(kit, ["a"])
    monkeypatch.setattr(CommitLog, "unwritten_bytes", 1 << 30)
    assert kit.end(ext, COMMIT).code == ResponseCode.SYSTEM_BUSY
    monkeypatch.undo()
    assert kit.end(ext, COMMIT).code == 0
    assert bodies(kit) == ["a"]


@pytest.mark.parametrize("how", ["reopen", "crash"])
@pytest.mark.parametrize("wait_ms", [0, 4_000])
def test_a_commit_is_known_after_a_restart(kit: Kit, how: str, wait_ms: int) -> None:
    ext = prepare(kit, ["a", "b", "c"])
    other = prepare(kit, ["d"], "B2")
    kit.end(ext, COMMIT)
    kit.run(wait_ms)
    getattr(kit, how)()
    for decision in (COMMIT, ROLLBACK, COMMIT):
        assert kit.end(ext, decision).code == 0
    kit.end(other, COMMIT)
    kit.run(31_000)
    assert bodies(kit) == ["a", "b", "c", "d"]
    assert kit.saved() == 2


@pytest.mark.parametrize("kept", [1, 2, 3])
@pytest.mark.parametrize("crc", [False, True])
@pytest.mark.parametrize("ended_again", [False, True])
def test_a_torn_commit_is_completed(tmp_path: Path, kept: int, crc: bool, ended_again: bool) -> None:
    """The log has lost all of four messages behind ``kept``."""
    kit = Kit(tmp_path, store_settings={"enabled_append_prop_crc": crc})
    kit.producer.ask(SEND, send_ext(), b"first")
    ext = prepare(kit, ["same", "same", "third", "same"])
    kit.end(ext, COMMIT)
    kit.settle()
    position = kit.messages()[1 + kept].physical_offset
    kit.store.abandon()
    segment = tmp_path / "commitlog" / f"{0:020d}"
    with segment.open("r+b") as file:
        size = file.seek(0, 2)
        file.seek(position)
        file.write(bytes(size - position))
    kit.open()
    kit.producer = kit.live_producer()
    assert len(bodies(kit)) == kept
    if ended_again:
        assert kit.end(ext, COMMIT).code == 0
    kit.run(4_000)
    assert bodies(kit) == ["same", "same", "third", "same"]
    assert kit.end(ext, COMMIT).code == 0
    kit.crash()
    kit.run(4_000)
    assert bodies(kit) == ["same", "same", "third", "same"]


def test_a_batch_queue_takes_it_as_one_record(kit: Kit) -> None:
    ext = topic_fields("BCQ", attributes="+queue.type=BatchCQ")
    kit.producer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, ext)
    body = encode_batch([Message.of("BCQ", name) for name in "abc"])
    ext = kit.prepare("B1", body=body, b="BCQ", properties={"MQSPARK_BATCH": "3:0"})
    assert kit.end(ext, COMMIT).code == 0
    kit.crash()
    assert kit.end(ext, COMMIT).code == 0
    assert kit.store.offsets.max_offset("BCQ", 0) == 3
    assert [message.body for message in kit.messages("BCQ")] == [b"a", b"b", b"c"]


def test_what_is_missing() -> None:
    items = [(0, b"a", b"p\x02"), (0, b"b", b"p\x02"), (0, b"a", b"p\x02")]
    found = [(body, properties) for _, body, properties in items]
    assert still_missing(items, []) == items
    assert still_missing(items, found) == []
    assert still_missing(items, found[1:2]) == [items[0], items[2]]
    assert still_missing(items, found[2:]) == items[1:]
    assert still_missing(items, [(b"a", b"p\x02__CRC32#\x0100\x02"), found[2]]) == [items[1]]
