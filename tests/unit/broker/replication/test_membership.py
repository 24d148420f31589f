"""A replica whose log is not what it has acknowledged: what a start finds, and how it becomes a member again."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from mqspark.broker.replication.follower import CutRefused
from mqspark.broker.replication.loghealing import HEAL_MS, UNHEALED
from mqspark.errors import ProtocolError
from mqspark.protocol.codes import ResponseCode
from mqspark.store.disk.damage import Damage, Outcome
from mqspark.store.disk.files import OsFiles
from mqspark.store.disk.notes.membernote import NOTE_BYTES, MemberNote, Noted
from mqspark.store.recovery.trustedlog import judge_member
from tests.support.store_tools import crash, opened, put_synced
from tests.unit.broker.replication.test_autoswitch import (
    agree_on_set,
    change_part,
    joined,
    log_of,
    make,
    pull,
    send,
)
from tests.unit.broker_kit import Bench


@pytest.fixture
def one(tmp_path: Path) -> Bench:
    return make(tmp_path / "a", 1, 1)


@pytest.fixture
def two(tmp_path: Path, one: Bench) -> Bench:
    """A slave of ``one``, both in the set, with 50 messages that are confirmed."""
    two = make(tmp_path / "b", 2, 1)
    send(one, 50)
    with joined(one, two) as both:
        agree_on_set(one, {1, 2})
        send(one, 5)
        both.carry()
        both.carry()
    return two


def judged(bench: Bench) -> str:
    store = bench.store
    return judge_member(
        store.member,
        store.log.position,
        store.damages.found,
        store.root_file(store.paths.epochs),
        store.files,
    )


def again(bench: Bench, *, broker_id: int, master_id: int, epoch: int) -> str:
    change_part(bench, broker_id, master_id, epoch)
    return judged(bench)


def noted(path: Path) -> Noted:
    found = MemberNote(path, OsFiles(), lambda where, error: None)
    found.open()
    found.close()
    assert not found.problem
    return found.noted


# --- the note ------------------------------------------------------------------------------------------------------


def test_what_is_acknowledged_is_noted_before_it_is_said(one: Bench, two: Bench) -> None:
    for bench in (one, two):
        path = bench.store.paths.member
        assert path.stat().st_size == NOTE_BYTES
        assert noted(path).acknowledged == bench.store.log.position
        assert 0 < noted(path).confirmed <= bench.store.log.position, (
            "a slave hears of it with what comes next"
        )
    assert judged(one) == judged(two) == ""


def test_a_note_outlives_its_process_and_a_flipped_bit_does_not_pass(tmp_path: Path) -> None:
    path = tmp_path / "mqspark.member"
    first = MemberNote(path, OsFiles(), lambda where, error: None)
    first.open()
    first.acknowledge(3, 1_000, 900)
    first.suspect("a" * 500 + "é")
    assert first.job() is not None
    first.close()
    assert noted(path) == first.noted == Noted(3, 1_000, 900, "a" * 200)
    data = bytearray(path.read_bytes())
    data[15] ^= 1
    path.write_bytes(data)
    found = MemberNote(path, OsFiles(), lambda where, error: None)
    found.open()
    assert found.problem == "mqspark.member cannot be read: its CRC is wrong"
    found.close()


# --- what a start finds --------------------------------------------------------------------------------------------


def lose_the_end(bench: Bench) -> None:
    bench.store.member.acknowledge(1, bench.store.log.position + 1, 0)


def skip_bytes(bench: Bench) -> None:
    bench.store.damages.note(Damage("log.damaged", Outcome.LOST, "10 bytes", 100, 10))


def forge_the_epochs(bench: Bench) -> None:
    bench.store.root_file(bench.store.paths.epochs).save(b"1\n0\n1-700\n")


def lose_the_epochs(bench: Bench) -> None:
    for path in bench.store.paths.root.glob("epochFileCheckpoint*"):
        path.unlink()


@pytest.mark.parametrize(
    ("harm", "why"),
    [
        (lose_the_end, "its log ends at"),
        (skip_bytes, "log.damaged: 10 bytes"),
        (forge_the_epochs, "its epochs are not the ones that it has noted"),
        (lose_the_epochs, "its epochs are gone"),
    ],
)
def test_a_start_that_finds_less_is_noted_and_said(
    two: Bench, harm: Callable[[Bench], None], why: str
) -> None:
    harm(two)
    assert judged(two).startswith(why)
    assert noted(two.store.paths.member).damage.startswith(why), (
        "durable, also when the next start finds nothing"
    )


def test_damage_behind_what_was_acknowledged_costs_nothing(two: Bench) -> None:
    """A power cut leaves an incomplete end, which nobody has counted on."""
    end = two.store.log.position
    two.store.damages.note(Damage("log.damaged", Outcome.LOST, "10 bytes", end, 10))
    assert judged(two) == ""


def test_newer_epochs_of_a_rocketmq_broker_that_had_the_directory_are_no_damage(two: Bench) -> None:
    epochs = two.broker.role.epochs
    assert epochs is not None
    file = two.store.root_file(two.store.paths.epochs)
    lines = b"1-0\n9-%d\n" % two.store.log.position
    file.save(b"2\n0\n" + lines)
    assert judged(two) == ""


# --- back into the set ---------------------------------------------------------------------------------------------


def test_a_damaged_replica_compares_all_and_becomes_whole(tmp_path: Path, one: Bench) -> None:
    """The difference lies far before the last megabyte; the end is the same."""
    two = make(tmp_path / "b", 2, 1)
    send(one, 30, size=60_000)
    with joined(one, two):
        agree_on_set(one, {1, 2})
    two.store.member.suspect("a test says so")
    place = 100_000
    flip(two, place)
    change_part(two, 2, 1, 1)
    assert log_of(two) != log_of(one)
    with joined(one, two):
        assert log_of(two) == log_of(one)
        assert two.store.member.damage == ""
    assert two.store.member.noted.acknowledged == one.store.log.position


def flip(bench: Bench, position: int) -> None:
    """One bit of the log on the disk."""
    bench.close()
    flip_file(bench, position)


def flip_file(bench: Bench, position: int) -> None:
    segment = bench.store.log.segment_of(position)
    assert segment is not None
    with open(segment.path, "r+b") as file:
        file.seek(position - segment.start)
        octet = file.read(1)[0]
        file.seek(position - segment.start)
        file.write(bytes([octet ^ 1]))


def test_a_damaged_replica_is_not_counted_in_before(one: Bench, two: Bench) -> None:
    two.store.member.suspect("a test says so")
    change_part(two, 2, 1, 1)
    with joined(one, two) as both:
        assert two.store.member.damage == "", "it has compared everything"
        both.tick()
        assert both.replica.acked == one.store.log.position


def test_a_damaged_replica_without_anything_in_common_starts_over(one: Bench, two: Bench) -> None:
    two.store.member.suspect("a test says so")
    flip(two, 30)
    change_part(two, 2, 1, 1)
    with joined(one, two):
        assert log_of(two) == log_of(one)
        assert two.store.member.damage == ""


def test_a_slave_refuses_a_master_that_ends_before(one: Bench, two: Bench) -> None:
    before = log_of(two)
    change_part(one, 1, 2, 2)
    common = one.store.log.position
    change_part(one, 1, 1, 3)
    assert one.broker.role.epochs is not None
    one.broker.role.epochs.cut_after(0)
    one.broker.role.epochs.append(1, 0)
    one.broker.role.epochs.append(3, record_end(one, common // 2))
    change_part(two, 2, 1, 3)
    with pytest.raises(CutRefused) as refused, joined(one, two):
        pass
    assert "nothing is taken back here" in str(refused.value)
    follower = two.broker.role.follower
    assert follower is not None
    assert log_of(two) == before
    two.clock.advance(10_000)
    assert follower.refused_ms >= 10_000
    assert two.term is not None
    two.term.given_up = 3  # an operator has chosen that master
    with joined(one, two):
        assert log_of(two) == log_of(one)
    assert follower.refused_ms == 0


def record_end(bench: Bench, position: int) -> int:
    found = bench.store.copy.last_whole_record(0, position)
    assert found
    return found


def test_what_is_taken_back_is_not_missed_later(one: Bench, two: Bench) -> None:
    send(one, 10)  # nobody else has these
    one.store.member.acknowledge(1, one.store.log.position, 0)
    change_part(two, 2, 2, 2)
    send(two, 5)
    assert again(one, broker_id=1, master_id=2, epoch=2) == ""
    with joined(two, one):
        assert log_of(one) == log_of(two)
    assert again(one, broker_id=1, master_id=2, epoch=2) == ""


def unmark(bench: Bench, position: int) -> None:
    """One bit of a record's queue id, which no checksum covers."""
    flip(bench, position + 12 + 3)


@pytest.mark.parametrize("place", ["first", "second", "last"])
def test_two_sound_logs_that_differ_in_a_common_epoch_are_both_left_alone(
    one: Bench, two: Bench, place: str
) -> None:
    first_end = int.from_bytes(log_of(two)[:4], "big")
    begin = {"first": 0, "second": first_end, "last": record_end(two, two.store.log.position - 1)}[place]
    two.store.member.lower(begin)  # it does not know that this is confirmed
    unmark(two, begin)
    change_part(two, 2, 1, 1)
    before = log_of(two)
    with pytest.raises(CutRefused), joined(one, two):
        pass
    assert log_of(two) == before
    assert two.store.member.damage == ""


def test_a_slave_that_differs_because_its_record_is_damaged_says_so(one: Bench, two: Bench) -> None:
    begin = record_end(two, two.store.log.position // 2)
    flip(two, begin + 200)  # in its body
    change_part(two, 2, 1, 1)
    with pytest.raises(ProtocolError, match="all of it is compared next"), joined(one, two):
        pass
    assert two.store.member.damage == f"its record at {begin} is damaged"
    with joined(one, two):
        assert log_of(two) == log_of(one)
    assert two.store.member.damage == ""


@pytest.mark.parametrize("is_healed", [True, False])
def test_no_reader_is_led_past_a_record_that_others_may_have(one: Bench, two: Bench, is_healed: bool) -> None:
    begin = record_end(one, one.store.log.position // 2)
    change_part(one, 1, 1, 1)
    with joined(one, two):
        agree_on_set(one, {1, 2})
        assert pull(one).code == 0
        flip_file(one, begin + 200)
        answer = pull(one)
        assert (answer.code, UNHEALED in (answer.remark or "")) == (ResponseCode.SYSTEM_BUSY, True)
        if is_healed:
            flip_file(one, begin + 200)
        assert one.term is not None
        codes = []
        for _ in range(HEAL_MS // 1_000):
            codes.append(pull(one).code)
            one.clock.advance(1_000)
            one.term.answered(one.clock.monotonic_ms())
        assert set(codes) == ({0} if is_healed else {ResponseCode.SYSTEM_BUSY})
        assert pull(one).code == 0, "not for ever"


@pytest.mark.parametrize("is_noted", [True, False], ids=["the position is noted", "the size is noted"])
def test_a_log_of_one_short_file_has_the_segments_that_it_had(tmp_path: Path, is_noted: bool) -> None:
    """The length of its only file would be taken for that of all segments, and no further record fit."""
    store = opened(tmp_path)
    put_synced(store, "T", 0, b"x" * 100)
    store.member.open()
    size = store.log.segment_bytes
    if is_noted:
        store.member.acknowledge(1, store.log.position, 0)
    else:  # a power cut may take the last second of the note
        store.member.expect_segments(size)
    crash(store)
    (path,) = (tmp_path / "commitlog").iterdir()
    os.truncate(path, 150)
    for name in ("checkpoint", "mqspark.checkpoint"):
        (tmp_path / name).unlink(missing_ok=True)
    again = opened(tmp_path)
    assert (again.log.position, again.log.segment_bytes) == (0, size)
