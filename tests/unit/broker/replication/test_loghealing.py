"""Replicas heal each other: damage anywhere in the log of one, the bytes of another, no sockets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mqspark.broker.replication.follower import FollowerDiverged
from mqspark.broker.replication.loghealing import DECIDE_MS, GIVE_UP_MS, HEAL_MS, PAUSE_MS, Healing
from mqspark.errors import InvalidMessage, ProtocolError
from mqspark.protocol.bodies.topic_bodies import TopicConfig
from mqspark.protocol.codes import ResponseCode
from mqspark.protocol.command import Command
from mqspark.store.recovery.trustedlog import judge_member
from tests.support.draws import some
from tests.support.store_tools import query
from tests.support.storefiles import segments_of
from tests.unit.broker.replication.test_follower import (
    SEGMENT,
    assert_equal,
    connected,
    follower_of,
    make_master,
    make_slave,
    pieces,
)
from tests.unit.broker_kit import SEND, Bench, Peer, send_ext
from tests.unit.pop_kit import POP, pop_ext

COUNT = 150


def healing_of(bench: Bench) -> Healing:
    return bench.broker.role.healing


def heal(slave: Bench, master: Bench, rounds: int = 1, peer: Peer | None = None) -> None:
    """Rounds of the slave's questions, with what the shells do between them."""
    asking = peer or master.peer()
    for _ in range(rounds):
        slave.flush()
        master.flush()
        slave.run_jobs()
        master.run_jobs()
        requests = healing_of(slave).round()
        try:
            request = next(requests)
            while True:
                request = requests.send(asking.ask(request.code, request.ext, request.body))
        except StopIteration:
            pass
        slave.clock.advance(1_000)
        master.clock.advance(1_000)


@contextmanager
def followed(master: Bench, slave: Bench) -> Iterator[None]:
    with connected(master, slave) as link:
        link.carry(pieces(1))
        yield


def path_of(bench: Bench, position: int) -> tuple[Path, int]:
    return bench.directory / "commitlog" / f"{position - position % SEGMENT:020d}", position % SEGMENT


def place(bench: Bench, number: int) -> tuple[int, int]:
    entry = bench.store.table.queues["T", 0].entry(number)
    assert entry is not None
    return entry[:2]


def overwrite(bench: Bench, position: int, data: bytes) -> None:
    path, at = path_of(bench, position)
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def flip(bench: Bench, position: int) -> None:
    path, at = path_of(bench, position)
    data = bytes([path.read_bytes()[at] ^ 1])
    overwrite(bench, position, data)


def flip_body(bench: Bench, number: int) -> None:
    flip(bench, place(bench, number)[0] + 100)


def zeros(bench: Bench, number: int) -> None:
    overwrite(bench, place(bench, number)[0] + 10, bytes(9_000))


def remove_segment(bench: Bench, number: int) -> None:
    path_of(bench, place(bench, number)[0])[0].unlink()


def empty_segment(bench: Bench, number: int) -> None:
    path_of(bench, place(bench, number)[0])[0].write_bytes(b"")


def halve_segment(bench: Bench, number: int) -> None:
    path = path_of(bench, place(bench, number)[0])[0]
    path.write_bytes(path.read_bytes()[: SEGMENT // 2])


DAMAGE: dict[str, Callable[[Bench, int], None]] = {
    "a body": flip_body,
    "a size": lambda bench, number: flip(bench, place(bench, number)[0] + 2),
    "a magic": lambda bench, number: flip(bench, place(bench, number)[0] + 5),
    "a place": lambda bench, number: flip(bench, place(bench, number)[0] + 34),
    "a queue id": lambda bench, number: flip(bench, place(bench, number)[0] + 15),
    "a queue offset": lambda bench, number: flip(bench, place(bench, number)[0] + 27),
    "zeros": zeros,
    "no segment": remove_segment,
    "an empty segment": empty_segment,
    "half a segment": halve_segment,
}


def fill_queue(master: Bench, count: int = COUNT) -> None:
    peer = master.peer()
    for number in range(count):
        header = send_ext(topic="T", properties=f"KEYS\x01k{number}\x02")
        assert peer.ask(SEND, header, b"%05d" % number * 300).code == 0


@pytest.fixture(autouse=True)
def short_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a slave compares of the end of its log whenever it connects."""
    monkeypatch.setattr("mqspark.broker.replication.follower.CHECK_BYTES", 2_000)


@pytest.fixture
def master(master: Bench) -> Bench:
    fill_queue(master)
    return master


@pytest.fixture
def slave(master: Bench, slave: Bench) -> Bench:
    """It has what its master has."""
    with followed(master, slave):
        assert_equal(master, slave)
    return slave


@pytest.fixture
def other(master: Bench, tmp_path: Path) -> Bench:
    """A second slave, that has nothing yet."""
    return make_slave(tmp_path / "o", broker_id=2)


def numbers(bench: Bench) -> list[int]:
    return [int(message.body[:5]) for message in bench.records("T")]


def keyed(bench: Bench, number: int) -> int:
    """How many messages a key leads to."""
    bench.store.catch_up()
    return len(query(bench.store, "T", f"k{number}", 10, 0, 1 << 60))


@pytest.mark.parametrize("number", some([60, 100, COUNT - 1], 1))
@pytest.mark.parametrize("what", DAMAGE)
def test_a_slave_that_comes_back_is_healed_before_it_counts(
    master: Bench, slave: Bench, what: str, number: int
) -> None:
    """Only the last message is compared by the connection that copies the log."""
    slave.close()
    DAMAGE[what](slave, number)
    slave.open()
    healing_of(slave).begin()
    for attempt in range(20):
        try:
            with connected(master, slave) as link:
                link.carry(pieces(attempt))
                slave.housekeeping()
                if not healing_of(slave).is_whole:
                    heal(slave, master)
                    link.carry(pieces(attempt))
                if healing_of(slave).is_whole and slave.store.log.position == master.store.log.position:
                    break
        except (FollowerDiverged, ProtocolError):
            heal(slave, master)
            slave.flush()
            slave.run_jobs()
    assert healing_of(slave).is_whole
    assert_equal(master, slave)
    assert numbers(slave) == list(range(COUNT))
    assert (len(slave.store.log_damage), slave.store.status.damage_problem) == (0, None)
    assert {keyed(slave, each) for each in (number, 0, COUNT - 1)} == {1}


@pytest.mark.parametrize("what", some(DAMAGE, 4))
def test_a_master_is_healed_by_its_slave(master: Bench, slave: Bench, what: str) -> None:
    if "segment" in what:
        master.close()
        DAMAGE[what](master, 60)
        master.open()
    with followed(master, slave):
        healing_of(slave).begin()
        heal(slave, master)
        if "segment" not in what:
            DAMAGE[what](master, 60)
        heal(slave, master, PAUSE_MS // 1000 + 5)
    assert_equal(master, slave)
    assert numbers(master) == list(range(COUNT))
    assert master.store.status.damage_problem is None


def test_what_the_log_lost_in_both_is_said_and_does_not_stop_a_slave(master: Bench, slave: Bench) -> None:
    slave.close()
    for bench in (master, slave):
        path, at = path_of(bench, place(master, 60)[0])
        with path.open("r+b") as file:
            file.seek(at + 100)
            file.write(b"???")
    slave.open()
    healing_of(slave).begin()
    with followed(master, slave):
        heal(slave, master, 3)
    assert healing_of(slave).is_whole
    assert numbers(slave) == [each for each in range(COUNT) if each != 60]


def test_two_replicas_that_differ_where_no_queue_tells_are_reported(master: Bench, slave: Bench) -> None:
    low = place(slave, 60)[0]
    flip(slave, low + 43)  # the time of birth: no CRC covers it, and no queue knows it
    with followed(master, slave):
        healing_of(slave).begin()
        heal(slave, master, 3)
    for bench in (master, slave):
        found = [(each.kind, each.outcome.value, each.offset) for each in bench.store.damages.found]
        assert found == [("log.differs", "wrong", low)]
    flip(slave, low + 43)


@pytest.mark.parametrize("damaged", ["master", "slave", "other"])
def test_three_replicas_decide_by_majority(master: Bench, slave: Bench, other: Bench, damaged: str) -> None:
    everyone = {"master": master, "slave": slave, "other": other}
    with followed(master, slave), followed(master, other):
        flip(everyone[damaged], place(master, 60)[0] + 43)
        for each in (slave, other):
            healing_of(each).begin()
        for _ in range(2 * PAUSE_MS // 1000 + 5):
            for each in (slave, other):
                heal(each, master)
        assert_equal(master, slave)
        assert_equal(master, other)
    sound = next(bench for name, bench in everyone.items() if name != damaged)
    assert bytes(sound.store.log.slice(place(master, 60)[0] + 40, 8) or b"") == bytes(
        everyone[damaged].store.log.slice(place(master, 60)[0] + 40, 8) or b""
    )


@pytest.mark.parametrize("with_third", [True, False])
def test_a_slave_that_differs_waits_for_a_majority_and_not_for_ever(
    master: Bench, slave: Bench, other: Bench, with_third: bool
) -> None:
    with followed(master, slave), followed(master, other):
        low = place(master, 60)[0]
        flip(slave, low + 43)
        healing_of(slave).begin()
        heal(slave, master, 2)
        assert not healing_of(slave).is_whole
        if with_third:
            heal(other, master, 2)
            heal(slave, master)
            assert bytes_at(slave, low) == bytes_at(master, low)
        else:
            heal(slave, master, DECIDE_MS // 1000)
        assert healing_of(slave).is_whole


def bytes_at(bench: Bench, position: int) -> bytes:
    return bench.store.copy.log_bytes(position, 100)


@pytest.mark.parametrize("damaged", ["master", "slave"])
def test_a_refused_master_is_heard_by_three_replicas(
    master: Bench, slave: Bench, other: Bench, damaged: str
) -> None:
    """A slave that refuses its master copies nothing, and says all the same what it has."""
    with followed(master, slave), followed(master, other):
        pass
    low = place(master, 60)[0]
    flip({"master": master, "slave": slave}[damaged], low + 43)
    healing_of(slave).dispute(low)
    assert healing_of(slave).has_work
    if damaged == "master":
        healing_of(other).dispute(low)
    heal(slave, master)
    assert bytes_at(slave, low) != bytes_at(master, low), "two do not decide"
    for _ in range(4):
        for each in (slave, other):
            heal(each, master)
    assert bytes_at(slave, low) == bytes_at(master, low) == bytes_at(other, low)
    assert not healing_of(slave).has_work


def test_a_master_that_is_doubted_is_healed_or_gives_up(
    master: Bench, slave: Bench, other: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    flip_body(master, 60)
    low = place(master, 60)[0]
    given_up: list[str] = []
    monkeypatch.setattr(healing_of(master), "_give_up", given_up.append)
    healing_of(other).begin()
    with pytest.raises(InvalidMessage), followed(master, other):
        pass
    assert follower_of(other).next_position == low
    healing_of(other).doubt(low)
    heal(other, master, GIVE_UP_MS // 1000 - 2)
    assert given_up == []
    heal(other, master, 5)
    assert len(given_up) == 1
    assert str(low) in given_up[0]
    with followed(master, slave):
        healing_of(slave).begin()
        heal(slave, master, 2)
    other.broker.turn()
    with followed(master, other):
        assert_equal(master, other)


def test_nothing_is_taken_that_is_no_record_of_its_place(master: Bench) -> None:
    low, size = place(master, 60)
    good = master.store.mender.read(low, size)
    flip_body(master, 60)
    peer = master.peer()

    def give(at: int, data: bytes) -> Command:
        fields = {"mqsparkWant": "give", "mqsparkLow": str(at), "mqsparkReplica": "1"}
        return peer.ask(906, fields, data)

    for at, data in ((low, good[:-1]), (low, b""), (low, b"x" * size), (low + 1, good), (low + size, good)):
        assert give(at, data).code == 1
    end = master.store.log.position
    assert give(end, good).code == 1
    assert len(numbers(master)) == COUNT  # written a moment ago: not checked yet
    assert master.store.mender.whole(low, master.store.mender.read(low, size)).size_bytes == 0
    assert give(low, good).code == 0
    assert master.store.mender.read(low, size) == good
    for fields in ({"mqsparkLow": "-5"}, {"mqsparkSize": "-1"}, {"mqsparkSize": str(1 << 30)}):
        asked: dict[str, Any] = {"mqsparkWant": "bytes", "mqsparkLow": "0", "mqsparkSize": "100", **fields}
        assert len(peer.ask(906, asked).body) <= 1 << 20


def test_a_master_of_rocketmq_is_followed_as_before(
    master: Bench, slave: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    flip_body(slave, 60)
    healing = healing_of(slave)
    healing.begin()
    with followed(master, slave):
        requests = healing.round()
        next(requests)
        with pytest.raises(StopIteration):
            requests.send(master.peer().ask(906, {}))
        assert healing.is_whole
    assert "is not compared with the master's" in caplog.text
    assert healing.as_dict()["isCompared"] is False


@pytest.mark.parametrize("count", [1, 2])
def test_a_replica_gets_lost_first_segments_from_its_master(master: Bench, slave: Bench, count: int) -> None:
    """A start notes durably that it is no member, before anything else; the queues show all again."""
    slave.close()
    slave.store.member.open()  # as a start does where there are controllers
    slave.store.member.close()
    gone = segments_of(slave.directory)[:count]
    for path in gone:
        path.unlink()
    slave.open()
    store = slave.store
    assert ("log.begin", "lost") in store.damages.counts
    store.member.open()
    epochs = store.root_file(store.paths.epochs)
    why = judge_member(store.member, store.log.position, store.damages.found, epochs, store.files)
    assert why.startswith("log.begin: the first")
    healing_of(slave).begin()
    with followed(master, slave):
        heal(slave, master, 20)
    assert healing_of(slave).is_whole
    assert_equal(master, slave)
    assert numbers(slave) == list(range(COUNT))
    assert keyed(slave, 0) == 1
    for path in gone:
        assert path.read_bytes() == (master.directory / "commitlog" / path.name).read_bytes()
    slave.close()
    slave.open()
    assert not slave.store.damages.counts


def pulled(bench: Bench, number: int) -> int:
    return bench.peer().pull("T", 0, number).code


def popped(bench: Bench, number: int) -> int:
    peer = bench.peer()
    peer.give(POP, pop_ext(bench, initMode="0"))
    bench.broker.turn()
    (answer,) = peer.heard()
    return answer.code


@pytest.mark.parametrize("read", [pulled, popped])
def test_a_reader_waits_for_a_record_that_a_slave_has(
    master: Bench, slave: Bench, read: Callable[[Bench, int], int]
) -> None:
    """Without controllers, too; a broker that nobody can heal leads its readers past it."""
    number = 1 if read is popped else 60
    DAMAGE["a size"](master, number)
    with followed(master, slave):
        assert read(master, number) == ResponseCode.SYSTEM_BUSY
        healing_of(slave).begin()
        heal(slave, master, PAUSE_MS // 1000 + 5)
        assert read(master, number) == ResponseCode.SUCCESS
    assert numbers(master) == list(range(COUNT))


def test_each_record_has_a_wait_of_its_own(master: Bench, slave: Bench) -> None:
    """Somebody who reads an unhealed record again and again takes nothing from another one."""
    with followed(master, slave):
        DAMAGE["a size"](master, 60)
        for _ in range(HEAL_MS // 1_000):
            assert pulled(master, 60) == ResponseCode.SYSTEM_BUSY
            master.clock.advance(1_000)
        assert pulled(master, 60) == ResponseCode.SUCCESS
        DAMAGE["a size"](master, 20)
        assert pulled(master, 20) == ResponseCode.SYSTEM_BUSY
        assert pulled(master, 60) == ResponseCode.SUCCESS
        master.clock.advance(HEAL_MS)
        assert pulled(master, 20) == ResponseCode.SUCCESS


def test_a_reader_of_a_slave_waits_until_it_is_healed(tmp_path: Path) -> None:
    master = make_master(tmp_path / "m")
    slave = make_slave(tmp_path / "s", slave_read_enable=True)
    fill_queue(master, 10)
    slave.broker.state.topics.put(TopicConfig(topic_name="T", read_queue_nums=1, write_queue_nums=1, perm=6))
    with followed(master, slave):
        DAMAGE["a size"](slave, 6)
        assert pulled(slave, 6) == ResponseCode.SYSTEM_BUSY
        healing_of(slave).begin()
        heal(slave, master, 3)
        assert pulled(slave, 6) == ResponseCode.SUCCESS


@pytest.mark.parametrize("read", [pulled, popped])
def test_a_broker_alone_leads_its_readers_past_what_is_lost(
    master: Bench, read: Callable[[Bench, int], int]
) -> None:
    number = 1 if read is popped else 60
    DAMAGE["a size"](master, number)
    assert read(master, number) == ResponseCode.SUCCESS
