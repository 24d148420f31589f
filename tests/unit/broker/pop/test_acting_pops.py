"""POP by a slave that acts as master, and a master of another name that keeps its check points; without sockets."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mqspark.broker.pop.acting_pops import RevivePlace
from mqspark.broker.replication.escape import Escapee, OtherMaster
from mqspark.broker.state.writer import StoredPosition, Writer
from mqspark.errors import InvalidMessage
from mqspark.message import decode_properties, encode_properties
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command
from mqspark.protocol.headers.header import to_ext
from mqspark.record.record import Parts, decode_records
from tests.support.invariants import validate
from tests.unit.broker.replication.test_acting import ACTING, HA, Pair, acting_of
from tests.unit.broker.replication.test_follower import make_master
from tests.unit.broker_kit import SEND, Bench, Peer, send_ext
from tests.unit.pop_kit import (
    ACK,
    BATCH_ACK,
    CHANGE,
    POP,
    Popped,
    ack_ext,
    batch_body,
    handed_out,
    pass_time,
    pop,
    pop_ext,
    put,
)

REVIVE = "rmq_sys_REVIVE_LOG_C"
INVISIBLE_MS = 20_000


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    pair = Pair(tmp_path)
    yield pair
    validate(pair.slave.broker)


@pytest.fixture
def other(tmp_path: Path) -> Bench:
    """A master of another name, which has the topic."""
    other = make_master(tmp_path / "o", **{**ACTING, "skip_pre_online": True, "broker_name": "b-b"})
    put(other, "other's own")
    pop(other, other.peer())
    return other


def asks(pair: Pair, peer: Peer, code: int, header: dict[str, str], body: bytes = b"") -> Command | None:
    """The answer, if there is one once other brokers have stored everything."""
    opaque = peer.give(code, header, body)
    pair.slave.broker.turn()
    pair.carry()
    acting_of(pair.slave).progressed()
    found = [answer for answer in peer.heard() if answer.opaque == opaque]
    return found[0] if found else None


def popped_at(pair: Pair, peer: Peer, **more: str) -> list[Popped]:
    answer = asks(pair, peer, POP, pop_ext(pair.slave, invisibleTime=str(INVISIBLE_MS), **more))
    assert answer is not None
    return handed_out(answer)


def committed(bench: Bench) -> int:
    return bench.broker.state.offsets.query("CG", "T", 0)


def records_of(pair: Pair) -> list[tuple[str, dict[str, Any]]]:
    found = []
    for message in pair.arrived:
        assert message.topic == REVIVE
        tag = decode_properties(message.properties.encode())["TAGS"]
        found.append((tag, json.loads(message.body)))
    return found


def test_a_pop_is_answered_when_another_broker_has_its_check_point(pair: Pair) -> None:
    put(pair.master, "a", "b")
    pair.lose_master()
    pair.accepts = False
    peer = pair.slave.peer()
    assert asks(pair, peer, POP, pop_ext(pair.slave)) is None
    assert committed(pair.slave) == 0, "a slave that dies now has handed out nothing"
    assert asks(pair, peer, POP, pop_ext(pair.slave, pollTime="0")) is not None, "the next one finds nothing"
    (message,) = pair.arrived
    acting_of(pair.slave).bridges[-1].stored(message.position, RevivePlace("b-b", 3))
    acting_of(pair.slave).progressed()
    (answer,) = peer.heard()
    assert [each.body for each in handed_out(answer)] == [b"a", b"b"]
    assert committed(pair.slave) == 2
    ((tag, check_point),) = records_of(pair)
    assert (tag, check_point["bn"], check_point["t"], check_point["d"]) == ("ck", "b-a", "T", [0, 1])


def test_an_acknowledgement_goes_where_the_check_point_is(pair: Pair) -> None:
    put(pair.master, "a", "b")
    pair.lose_master()
    pair.accepts = False
    peer = pair.slave.peer()
    asks(pair, peer, POP, pop_ext(pair.slave))
    (message,) = pair.arrived
    acting_of(pair.slave).bridges[-1].stored(message.position, RevivePlace("b-b", 5))
    acting_of(pair.slave).progressed()
    popped = handed_out(peer.heard()[0])
    assert asks(pair, peer, ACK, ack_ext(popped[0])) is None, "not before it is stored there"
    assert pair.arrived[1].place == ("b-b", 5)
    masters = [OtherMaster("b-b", "x:1", 8), OtherMaster("b-c", "y:1", 8)]
    assert pair.arrived[1].among(masters) == masters[:1]
    random = pair.slave.broker.state.random
    assert pair.arrived[1].header(masters[0], random).queue_id == 5
    acting_of(pair.slave).bridges[-1].stored(pair.arrived[1].position, RevivePlace("b-b", 5))
    acting_of(pair.slave).progressed()
    assert [answer.code for answer in peer.heard()] == [0]
    pair.accepts = True
    answer = asks(pair, peer, BATCH_ACK, {}, batch_body(popped[1:]))
    assert answer is not None
    assert answer.code == 0
    assert [record["ao"] for tag, record in records_of(pair) if tag == "ack"] == [0, 1]


def test_the_invisible_time_can_be_changed(pair: Pair) -> None:
    """That of what the dead master handed out, and of what the slave did."""
    put(pair.master, "a", "b")
    of_master = pop(pair.master, pair.master.peer(), maxMsgNums="1", invisibleTime="60000")
    pair.master.flush()
    pair.lose_master()
    peer = pair.slave.peer()
    of_slave = popped_at(pair, peer)
    assert [[each.body for each in one] for one in (of_master, of_slave)] == [[b"a"], [b"b"]]
    for number, one in enumerate((*of_master, *of_slave), start=1):
        answer = asks(pair, peer, CHANGE, ack_ext(one, invisibleTime="30000"))
        assert answer is not None
        assert (answer.code, answer.ext["invisibleTime"]) == (0, "30000")
        assert [tag for tag, _ in records_of(pair)].count("ck") == 1 + number
    assert [tag for tag, _ in records_of(pair)].count("ack") == 1, "the master's check point is in the log"
    pair.run(80_000)
    assert [message.body for message in pair.arrived if message.topic != REVIVE] == []


def test_pops_that_wait_are_answered_when_the_master_comes_back(pair: Pair) -> None:
    put(pair.master, "a")
    pair.lose_master()
    peer = pair.slave.peer()
    assert [each.body for each in popped_at(pair, peer)] == [b"a"]
    assert asks(pair, peer, POP, pop_ext(pair.slave, pollTime="60000")) is None
    assert pair.slave.peer().ask(RequestCode.EXCHANGE_BROKER_HA_INFO, HA).code == 0
    pair.run(500)
    assert [answer.code for answer in peer.heard()] == [ResponseCode.POLLING_TIMEOUT]
    answer = asks(pair, peer, POP, pop_ext(pair.slave))
    assert answer is not None
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE


def test_the_master_hands_out_nothing_that_its_slave_did(pair: Pair) -> None:
    put(pair.master, "a", "b", "c")
    pair.lose_master()
    peer = pair.slave.peer()
    assert [each.body for each in popped_at(pair, peer, maxMsgNums="2")] == [b"a", b"b"]
    master = pair.return_master()
    assert [each.body for each in pop(master, master.peer())] == [b"c"]


def test_what_no_broker_took_was_not_handed_out(pair: Pair) -> None:
    put(pair.master, "a")
    pair.lose_master()
    pair.accepts = False
    assert asks(pair, pair.slave.peer(), POP, pop_ext(pair.slave)) is None
    master = pair.return_master()
    assert [each.body for each in pop(master, master.peer())] == [b"a"]


def test_pops_are_refused_without_remote_escape_and_by_plain_slaves(pair: Pair) -> None:
    put(pair.master, "a")
    answer = pair.slave.peer().ask(POP, pop_ext(pair.slave))
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE, "its master is there"
    pair.lose_master()
    pair.slave.config.enable_remote_escape = False
    pair.run(1_000)
    assert pair.slave.peer().ask(POP, pop_ext(pair.slave)).code == ResponseCode.SERVICE_NOT_AVAILABLE


# --- the other broker -----------------------------------------------------------------------------------------


def deliver(other: Bench, message: Escapee) -> None:
    header = message.header(OtherMaster("b-b", "x:1", 8), other.broker.state.random)
    answer = other.peer().ask(SEND, to_ext(header), message.body)
    assert answer.code == 0, answer.remark
    assert {"msgId", "queueId", "queueOffset"} <= answer.ext.keys()


def live(other: Bench, of: Bench | None, ms: int) -> list[str]:
    """Time passes; ``of`` answers what ``other`` asks. The names of the brokers that it asked."""
    asked = []
    for _ in range(0, ms, 500):
        pass_time(other, 500)
        peers = other.broker.state.peers
        for number, question in peers.due():
            asked.append(question.broker_name)
            assert question.any_replica
            if of is None:
                peers.failed(number, "nobody is there")
                continue
            peer = of.peer()
            opaque = peer.give(question.code, question.ext)
            of.broker.turn()
            (answer,) = (each for each in peer.heard() if each.opaque == opaque)
            peers.answered(number, answer)
        validate(other.broker.pop)
    return asked


def retried(bench: Bench) -> list[bytes]:
    names = [topic.name for topic in bench.broker.state.topics if topic.name.startswith("%RETRY%CG")]
    return [record.body for name in names for record in bench.records(name)]


def test_another_broker_revives_what_was_not_acknowledged(pair: Pair, other: Bench) -> None:
    """It asks for the messages, and only for those."""
    put(pair.master, "a", "b", "c")
    pair.lose_master()
    peer = pair.slave.peer()
    other.clock.wall_ms = pair.slave.clock.wall_ms
    popped = popped_at(pair, peer)
    assert asks(pair, peer, ACK, ack_ext(popped[1])) is not None
    for message in pair.arrived:
        deliver(other, message)
    assert live(other, pair.slave, INVISIBLE_MS - 2_000) == []
    assert live(other, pair.slave, 15_000) == ["b-a", "b-a"]
    assert retried(other) == [b"a", b"c"]
    answer = other.peer().ask(POP, pop_ext(other))
    again = decode_records(bytes(answer.body))
    assert [(each.body, each.reconsume_times) for each in again] == [(b"a", 1), (b"c", 1)]
    assert again[0].properties["1ST_POP_TIME"] == str(popped[0].receipt.pop_time_ms)


def test_messages_of_a_broker_that_is_away_are_asked_for_again(pair: Pair, other: Bench) -> None:
    put(pair.master, "a", "b")
    pair.lose_master(other)
    popped_at(pair, pair.slave.peer())
    for message in pair.arrived:
        deliver(other, message)
    assert live(other, None, INVISIBLE_MS + 8_000) == ["b-a"], "one question shows that it is away"
    assert retried(other) == []
    assert live(other, pair.slave, 30_000) == ["b-a", "b-a"]
    assert retried(other) == [b"a", b"b"]


def test_check_points_of_others_outlive_a_crash(pair: Pair, other: Bench) -> None:
    put(pair.master, "a")
    pair.lose_master(other)
    popped_at(pair, pair.slave.peer())
    for message in pair.arrived:
        deliver(other, message)
    other.flush()
    other.crash()
    live(other, pair.slave, INVISIBLE_MS + 15_000)
    assert retried(other) == [b"a"]


def check_point(bench: Bench, **more: object) -> dict[str, object]:
    """As RocketMQ's acting slave writes it."""
    now_ms = bench.clock.now_ms()
    return {
        "bm": 0, "bn": "b-a", "c": "CG", "d": [0], "it": 10_000, "n": 1, "pt": now_ms, "q": 0,
        "reviveTime": now_ms + 10_000, "ro": 0, "so": 0, "t": "T", **more,
    }  # fmt: skip


def escaped(bench: Bench, record: object, tag: str, due_ms: int, queue_id: int = 0, **more: str) -> int:
    properties = {"TAGS": tag, "TIMER_DELIVER_MS": str(due_ms), "WAIT": "false", "UNIQ_KEY": "x"}
    body = record if isinstance(record, bytes) else json.dumps(record).encode()
    header = send_ext(REVIVE, queue_id, encode_properties(properties).decode(), **more)
    return bench.peer().ask(SEND, header, body).code


def test_records_that_cannot_be_are_refused(other: Bench) -> None:
    now_ms, ck = other.clock.now_ms(), check_point(other)
    due_ms = now_ms + 10_000
    end = other.store.log.position
    illegal = ResponseCode.INVALID_PARAMETER
    forever = 1 << 55
    assert escaped(other, check_point(other, bn="b-b"), "ck", due_ms) == ResponseCode.NO_PERMISSION
    assert escaped(other, check_point(other, bn=None), "ck", due_ms) == ResponseCode.NO_PERMISSION
    assert escaped(other, check_point(other, t="Absent"), "ck", due_ms) == ResponseCode.TOPIC_NOT_EXIST
    for record, tag, when_ms, queue_id in (
        (check_point(other, bn="../b\n"), "ck", due_ms, 0),
        (check_point(other, n=0, d=[]), "ck", due_ms, 0),
        (check_point(other, n=65), "ck", due_ms, 0),
        (check_point(other, it=forever), "ck", due_ms, 0),
        (check_point(other, pt=forever), "ck", due_ms, 0),
        (check_point(other, so=-1), "ck", due_ms, 0),
        (check_point(other, t=None), "ck", due_ms, 0),
        (ck, "ck", due_ms, 8),
        (ck, "ck", due_ms, -1),
        (ck, "other", due_ms, 0),
        (b"", "ck", due_ms, 0),
        (b"[" * 15_000, "ck", due_ms, 0),
        ({**ck, "ao": 0}, "ack", forever, 0),
        ({**ck, "ao": 0}, "ack", now_ms - 1, 0),
        ({**ck, "aol": [1] * 100}, "bAck", due_ms, 0),
    ):
        assert escaped(other, record, tag, when_ms, queue_id) == illegal, record
    assert escaped(other, ck, "ck", due_ms, m="true") == ResponseCode.NO_PERMISSION
    assert other.store.log.position == end
    other.broker.state.config.auto_create_subscription_group = False
    unknown = check_point(other, c="Nobody")
    assert escaped(other, unknown, "ck", due_ms) == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


def test_rocketmqs_records_are_taken(pair: Pair, other: Bench) -> None:
    put(pair.master, "a", "b")
    pair.lose_master(other)
    ck = check_point(other, n=2, d=[0, 1])
    due_ms = other.clock.now_ms() + 10_000
    ack = {"ao": 0, "bn": "b-a", "c": "CG", "pt": ck["pt"], "q": 0, "so": 0, "t": "T"}
    assert escaped(other, ck, "ck", due_ms - 1_000) == 0
    assert escaped(other, ack, "ack", due_ms) == 0
    live(other, pair.slave, 25_000)
    assert retried(other) == [b"b"]


def test_a_broker_gives_what_was_not_asked_for(pair: Pair, other: Bench) -> None:
    """Or nothing that is a message."""
    put(pair.master, "a", "b")
    pair.lose_master(other)
    assert escaped(other, check_point(other), "ck", other.clock.now_ms() + 9_000) == 0
    peers = other.broker.state.peers
    while not (due := peers.due()):
        pass_time(other, 500)
    ((number, question),) = due
    wrong = pair.slave.peer().ask(question.code, {**question.ext, "queueOffset": "1"})
    assert wrong.code == 0
    peers.answered(number, wrong)
    assert live(other, pair.slave, 30_000) == ["b-a"]
    assert retried(other) == [b"a"]


def test_a_message_that_fits_nowhere_is_in_no_others_way(
    pair: Pair, other: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(pair.master, "a", "b")
    pair.lose_master(other)
    relay = Writer.relay

    def refusing(writer: Writer, record: Parts, *where: Any) -> StoredPosition:
        if record.body == b"a":
            raise InvalidMessage("too many properties", field="properties")
        return relay(writer, record, *where)

    monkeypatch.setattr(Writer, "relay", refusing)
    assert escaped(other, check_point(other, n=2, d=[0, 1]), "ck", other.clock.now_ms() + 9_000) == 0
    assert live(other, pair.slave, 15_000) == ["b-a", "b-a"], "not again and again"
    assert retried(other) == [b"b"]
    monkeypatch.undo()
    live(other, pair.slave, 40_000)
    assert retried(other) == [b"b", b"a"]


def answer_for(pair: Pair, third: Bench | None, ms: int) -> list[str]:
    """The slave acts for so long; ``third`` answers what it asks. The names of the brokers that it asked."""
    asked = []
    peers = pair.slave.broker.state.peers
    for _ in range(0, ms, 500):
        pair.run(500)
        for number, question in peers.due():
            asked.append(question.broker_name)
            if third is None:
                peers.failed(number, "nobody is there")
            else:
                peers.answered(number, third.peer().ask(question.code, question.ext))
    return asked


@pytest.mark.parametrize("is_due", [True, False], ids=["due", "not due"])
@pytest.mark.parametrize("is_there", [True, False], ids=["third broker there", "third broker away"])
def test_what_the_dead_master_held_for_a_third_broker_is_revived(
    tmp_path: Path, pair: Pair, other: Bench, is_due: bool, is_there: bool
) -> None:
    """Its acting slave gave its check point to the master, which then died; it was due by then, or not yet."""
    third = make_master(tmp_path / "t", broker_name="b-c")
    put(third, "third's")
    put(pair.master, "own")
    third.clock.wall_ms = pair.master.clock.wall_ms
    held = check_point(pair.master, bn="b-c")
    assert escaped(pair.master, held, "ck", pair.master.clock.now_ms() + 9_000) == 0
    if is_due:
        pass_time(pair.master, 9_500)
    pair.lose_master()
    asked = answer_for(pair, third if is_there else None, 25_000)
    assert asked == ["b-c"], "once: it is not asked again and again"
    (message,) = pair.arrived
    done = pair.slave.broker.state.offsets.query("CID_RMQ_SYS_REVIVE_GROUP", REVIVE, 0)
    assert done == (0 if is_due else -1), "nothing is left to do for it here"
    assert not acting_of(pair.slave).bridges[1].ledger.bytes
    other.clock.wall_ms = pair.slave.clock.wall_ms
    if is_there:
        assert (message.topic, message.body) == ("%RETRY%CG_T", b"third's")
    else:
        ((tag, again),) = records_of(pair)
        assert (tag, again["bn"], again["so"], again["rp"]) == ("ck", "b-c", held["so"], "1")
        deliver(other, message)
        assert live(other, third, 30_000) == ["b-c"]
        assert retried(other).count(b"third's") == 1


def test_a_deleted_group_gets_nothing_from_elsewhere(pair: Pair, other: Bench) -> None:
    put(pair.master, "a")
    pair.lose_master(other)
    assert escaped(other, check_point(other, c="Gone"), "ck", other.clock.now_ms() + 9_000) == 0
    other.broker.state.subscriptions.remove("Gone")
    assert live(other, pair.slave, 20_000) == []
    assert other.broker.state.topics.get("%RETRY%Gone_T") is None


def test_a_message_that_is_there_no_longer_is_given_up(other: Bench) -> None:
    elsewhere = make_master(Path(other.directory).parent / "e", broker_name="b-a")
    put(elsewhere, "a")
    assert escaped(other, check_point(other, so=7), "ck", other.clock.now_ms() + 9_000) == 0
    assert live(other, elsewhere, 40_000) == ["b-a"]
    assert retried(other) == []
