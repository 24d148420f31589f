"""Queues given out by the broker, request modes and their file, routes of other brokers."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mqspark.broker.pop.assignment import assign, assign_for_pop
from mqspark.broker.pop.cluster_routes import (
    ANSWERED_AT_ONCE,
    FORGET_MS,
    LOOKED_UP_AT_ONCE,
    REFRESH_MS,
    WAIT_MS,
)
from mqspark.message import MessageQueue
from mqspark.protocol.bodies.topic_bodies import QueueData, TopicConfig, TopicRouteData
from mqspark.protocol.codes import RequestCode
from tests.support.remoting import heartbeat_body, subscription
from tests.unit.broker_kit import Bench, Peer

QUERY, SET_MODE, ALL_MODES = (
    RequestCode.QUERY_ASSIGNMENT,
    RequestCode.SET_MESSAGE_REQUEST_MODE,
    RequestCode.GET_ALL_MESSAGE_REQUEST_MODE,
)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    bench = Bench(tmp_path)
    bench.broker.state.topics.put(TopicConfig("T", 3, 3, 6))
    return bench


def join(bench: Bench, client: str) -> Peer:
    peer = bench.peer()
    body = heartbeat_body(client, {"CG": [subscription("T")]})
    assert peer.ask(RequestCode.HEART_BEAT, {}, body).code == 0
    return peer


def question(client: str, **more: str) -> bytes:
    return json.dumps(
        {
            "clientId": client,
            "consumerGroup": "CG",
            "messageModel": "CLUSTERING",
            "strategyName": "AVG",
            "topic": "T",
            **more,
        }
    ).encode()


def assignments(answer: Any) -> list[tuple[str, int, str]] | None:
    assert answer.code == 0
    found = json.loads(bytes(answer.body)).get("messageQueueAssignments")
    if found is None:
        return None
    return sorted(
        (one["messageQueue"]["brokerName"], one["messageQueue"]["queueId"], one["mode"]) for one in found
    )


def mode(name: str = "POP", share: int = 0, topic: str = "T") -> bytes:
    return json.dumps(
        {"consumerGroup": "CG", "mode": name, "popShareQueueNum": share, "topic": topic}
    ).encode()


def test_queues_are_shared_out(bench: Bench) -> None:
    one, two = join(bench, "c1"), join(bench, "c2")
    assert assignments(one.ask(QUERY, {}, question("c1"))) == [("b-a", 0, "PULL"), ("b-a", 1, "PULL")]
    assert assignments(two.ask(QUERY, {}, question("c2"))) == [("b-a", 2, "PULL")]
    circle = two.ask(QUERY, {}, question("c1", strategyName="AVG_BY_CIRCLE"))
    assert assignments(circle) == [("b-a", 0, "PULL"), ("b-a", 2, "PULL")]
    assert assignments(one.ask(QUERY, {}, question("stranger"))) == []


def test_broadcasting_gives_all(bench: Bench) -> None:
    answer = join(bench, "c1").ask(QUERY, {}, question("c1", messageModel="BROADCASTING"))
    assert assignments(answer) == [("b-a", number, "PULL") for number in range(3)]


def test_what_the_client_should_ignore(bench: Bench) -> None:
    peer = join(bench, "c1")
    assert assignments(peer.ask(QUERY, {}, question("c1", topic="Nowhere"))) is None
    assert assignments(peer.ask(QUERY, {}, question("c1", strategyName="CONFIG"))) is None
    assert assignments(peer.ask(QUERY, {}, question("c1", consumerGroup="Nobody"))) is None


def test_pop_is_for_all(bench: Bench) -> None:
    one = join(bench, "c1")
    join(bench, "c2")
    assert one.ask(SET_MODE, {}, mode()).code == 0
    for client in ("c1", "c2"):
        assert assignments(one.ask(QUERY, {}, question(client))) == [("b-a", -1, "POP")]
    assert one.ask(SET_MODE, {}, mode("PULL")).code == 0
    assert len(assignments(one.ask(QUERY, {}, question("c1"))) or ()) == 2


def test_modes_survive_a_restart(bench: Bench) -> None:
    assert bench.peer().ask(SET_MODE, {}, mode(share=2)).code == 0
    saved = json.loads((bench.directory / "config" / "messageRequestMode.json").read_text())
    expected = {"T": {"CG": {"consumerGroup": "CG", "mode": "POP", "popShareQueueNum": 2, "topic": "T"}}}
    assert saved == {"messageRequestModeMap": expected}
    bench.reopen()
    answer = bench.peer().ask(ALL_MODES, {})
    assert json.loads(bytes(answer.body)) == saved


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (mode(topic="%RETRY%CG"), 16),
        (mode(topic="Nowhere"), 17),
        (mode("PUSH"), 29),
        (b'{"topic":"T","mode":"POP"}', 29),
    ],
)
def test_refused_modes(bench: Bench, body: bytes, code: int) -> None:
    assert bench.peer().ask(SET_MODE, {}, body).code == code


def test_the_default_mode(tmp_path: Path) -> None:
    bench = Bench(tmp_path, default_message_request_mode="POP")
    for topic in ("T", "%RETRY%CG"):
        bench.broker.state.topics.put(TopicConfig(topic, 1, 1, 6))
    peer = join(bench, "c1")
    assert assignments(peer.ask(QUERY, {}, question("c1"))) == [("b-a", -1, "POP")]
    assert assignments(peer.ask(QUERY, {}, question("c1", topic="%RETRY%CG"))) == [("b-a", 0, "PULL")]


def test_queues_of_other_brokers(tmp_path: Path) -> None:
    bench = Bench(tmp_path, namesrv_addr="127.0.0.1:9876")
    bench.broker.state.topics.put(TopicConfig("T", 1, 1, 6))
    peer = join(bench, "c1")
    routes = bench.broker.requests.routes
    opaque = peer.give(QUERY, {}, question("c1"))
    bench.broker.turn()
    assert peer.heard() == []
    assert routes.due() == ["T"]
    assert routes.due() == []
    route = TopicRouteData(queue_datas=[QueueData("b-a", 9, 9, 6), QueueData("b-b", 2, 2, 6)])
    routes.learned("T", route)
    (answer,) = peer.heard()
    assert answer.opaque == opaque
    assert assignments(answer) == [("b-a", 0, "PULL"), ("b-b", 0, "PULL"), ("b-b", 1, "PULL")]
    bench.clock.advance(31_000)
    assert routes.due() == ["T"]


def test_without_an_answer_the_broker_says_what_it_knows(tmp_path: Path) -> None:
    bench = Bench(tmp_path, namesrv_addr="127.0.0.1:9876")
    bench.broker.state.topics.put(TopicConfig("T", 1, 1, 6))
    peer = join(bench, "c1")
    peer.give(QUERY, {}, question("c1"))
    bench.later(1_600)
    (answer,) = peer.heard()
    assert assignments(answer) == [("b-a", 0, "PULL")]
    assert bench.broker.requests.routes.due() == ["T"]


def test_many_that_wait_for_a_route_are_answered_in_slices(tmp_path: Path) -> None:
    """All members of a group ask at once. Whoever has gone is not answered."""
    bench = Bench(tmp_path, namesrv_addr="127.0.0.1:9876")
    bench.broker.state.topics.put(TopicConfig("T", 1, 1, 6))
    peer, gone = join(bench, "c1"), bench.peer()
    routes = bench.broker.requests.routes
    for _ in range(3 * ANSWERED_AT_ONCE):
        peer.give(QUERY, {}, question("c1"))
    gone.give(QUERY, {}, question("c1"))
    gone.session.open = False
    bench.broker.turn()
    assert (peer.heard(), routes.due()) == ([], ["T"])
    routes.learned("T", TopicRouteData(queue_datas=[QueueData("b-b", 2, 2, 6)]))
    counts = [len(peer.heard())]
    while bench.broker.work_waits:
        bench.broker.work()
        counts.append(len(peer.heard()))
    assert sum(counts) == 3 * ANSWERED_AT_ONCE
    assert max(counts) == ANSWERED_AT_ONCE
    assert gone.session.take() == []
    assert routes.ledger.bytes < 10_000


def test_many_routes_are_looked_up_by_and_by_and_none_is_left_out(tmp_path: Path) -> None:
    bench = Bench(tmp_path, namesrv_addr="127.0.0.1:9876")
    routes, clock = bench.broker.requests.routes, bench.clock
    session = bench.peer().session
    names = [f"T{number}" for number in range(3 * LOOKED_UP_AT_ONCE + 5)]
    for name in names:
        routes.answer(session, name, lambda: b"", 0)

    def looked_up() -> list[str]:
        found: list[str] = []
        for _ in range(5):
            due = routes.due()
            assert len(due) <= LOOKED_UP_AT_ONCE
            found += due
        return found

    assert looked_up() == names
    for name in names:
        routes.learned(
            name, None if name == "T3" else TopicRouteData(queue_datas=[QueueData("b-b", 2, 2, 6)])
        )
    clock.advance(WAIT_MS)
    assert looked_up() == ["T3"], "it may be created at any time"
    clock.advance(REFRESH_MS)
    for name in names[:300]:
        routes.answer(session, name, lambda: b"", 0)
    assert sorted(looked_up()) == sorted(names)
    clock.advance(FORGET_MS - 1)
    assert sorted(looked_up()) == sorted(names[:300])
    assert len(routes.known) == 300
    clock.advance(FORGET_MS)
    assert looked_up() == []
    assert (len(routes.known), routes.ledger.bytes) == (0, 0)


def test_while_no_name_server_answers_only_those_whose_time_is_up_are_looked_at(tmp_path: Path) -> None:
    bench = Bench(tmp_path, namesrv_addr="127.0.0.1:9876")
    routes, clock = bench.broker.requests.routes, bench.clock
    answered: list[str] = []

    def answer(topic: str) -> bytes:
        answered.append(topic)
        return b""

    session = bench.peer().session
    for number in range(10):
        routes.answer(session, f"T{number}", partial(answer, f"T{number}"), 0)
        clock.advance(100)
    routes.answer(session, "T9", partial(answer, "T9"), 0)
    clock.advance(WAIT_MS - 800)
    routes.expire()
    assert answered == ["T0", "T1", "T2"]
    routes.expire()
    assert len(answered) == 3
    clock.advance(700)
    routes.expire()
    assert answered[3:] == [f"T{number}" for number in range(3, 10)], "T9's second one waits on"
    clock.advance(100)
    routes.expire()
    assert answered[10:] == ["T9"]


def queues(count: int) -> list[MessageQueue]:
    return [MessageQueue("T", "b", number) for number in range(count)]


@pytest.mark.parametrize("strategy", ["AVG", "AVG_BY_CIRCLE"])
@pytest.mark.parametrize("clients", [1, 2, 3, 7])
@pytest.mark.parametrize("count", [0, 1, 5, 8])
def test_every_queue_has_one_reader(strategy: str, clients: int, count: int) -> None:
    names = [f"c{number}" for number in range(clients)]
    given = [assign(strategy, name, queues(count), names) or [] for name in names]
    assert sorted(queue for share in given for queue in share) == queues(count)
    assert max(map(len, given)) - min(map(len, given)) <= 1


def test_neighbours_share() -> None:
    names = ["c0", "c1", "c2", "c3"]
    given = [assign_for_pop("AVG", name, queues(4), names, 1) for name in names]
    assert [[queue.queue_id for queue in share or ()] for share in given] == [[0, 1], [1, 2], [2, 3], [3, 0]]
    assert assign_for_pop("AVG", "c3", queues(3), names, 1) == queues(1)
    assert set(assign_for_pop("AVG", "c3", queues(3), names, 3) or ()) == {MessageQueue("T", "b", -1)}


@pytest.mark.parametrize("share", [-1, 1])
def test_how_many_neighbours_share_by_default(tmp_path: Path, share: int) -> None:
    """defaultPopShareQueueNum."""
    bench = Bench(tmp_path, default_message_request_mode="POP", default_pop_share_queue_num=share)
    bench.broker.state.topics.put(TopicConfig("T", 3, 3, 6))
    peers = [join(bench, client) for client in ("c1", "c2", "c3")]
    found = assignments(peers[0].ask(QUERY, {}, question("c1")))
    assert found == ([("b-a", -1, "POP")] if share < 0 else [("b-a", 0, "POP"), ("b-a", 1, "POP")])
