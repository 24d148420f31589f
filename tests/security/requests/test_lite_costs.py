"""Lite topics with many clients, and clients with many lite topics: no message, request or tick does work for all of
them in one go, and what waits for a client is counted.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mqspark.broker.lite.liteclients import (
    CANDIDATES,
    CLIENTS_AT_ONCE,
    EVENTS_AT_ONCE,
    QUEUES_AT_ONCE,
    LiteClients,
)
from mqspark.protocol.codes import RequestCode as R
from tests.support.invariants import validate
from tests.unit.broker.lite.test_broker_lite import (
    GROUP,
    PARENT,
    ack,
    bodies,
    group,
    pop,
    pop_ext,
    send,
    started,
    subscribe,
)
from tests.unit.broker_kit import Bench, Peer

MANY = 3 * QUEUES_AT_ONCE


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = started(tmp_path)
    yield bench
    validate(bench.broker)
    bench.close()


def names(count: int) -> list[str]:
    return [f"l{number}" for number in range(count)]


def crowd(peer: Peer, count: int, of: str, *lite_topics: str, action: str = "COMPLETE_ADD") -> None:
    """So many clients, in one request."""
    entries = [
        {
            "action": action,
            "clientId": f"c{number}",
            "group": of,
            "topic": PARENT,
            "liteTopicSet": [*lite_topics],
        }
        for number in range(count)
    ]
    answer = peer.ask(R.LITE_SUBSCRIPTION_CTL, {}, json.dumps({"subscriptionSet": entries}).encode())
    assert answer.code == 0, answer.remark


def counted(monkeypatch: pytest.MonkeyPatch, name: str) -> list[str]:
    """A list that grows with each call of the method."""
    calls: list[str] = []
    method = getattr(LiteClients, name)

    def call(clients: LiteClients, *given: Any) -> Any:
        calls.append(name)
        return method(clients, *given)

    monkeypatch.setattr(LiteClients, name, call)
    return calls


def step(bench: Bench, calls: list[str]) -> int:
    """The calls of one slice."""
    before = len(calls)
    bench.broker.work()
    return len(calls) - before


def test_a_message_looks_at_few_of_the_clients_that_have_no_room_for_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer, count = bench.peer(), 3 * CANDIDATES
    bench.config.max_client_event_count = 1
    for number in range(count):
        subscribe(peer, "PARTIAL_ADD", "all", f"own{number}", client=f"c{number}")
    for number in range(count):
        send(peer, f"own{number}")
    looks = counted(monkeypatch, "_may_hold")
    send(peer, "all")
    assert 0 < len(looks) <= CANDIDATES
    validate(bench.broker)


def test_a_second_message_of_a_queue_looks_at_no_client(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    group(bench, "ALL", lite_sub_wildcard="true")
    peer = bench.peer()
    crowd(peer, 200, "ALL")
    send(peer, "a")
    looks = counted(monkeypatch, "_may_hold")
    send(peer, "a")
    assert looks == []


@pytest.mark.parametrize("action", ["PARTIAL_ADD", "COMPLETE_ADD"])
def test_the_names_of_one_subscription_are_taken_and_left_in_slices(bench: Bench, action: str) -> None:
    peer, clients = bench.peer(), bench.broker.services.lite.clients

    def changes(action: str, *lite_topics: str) -> list[int]:
        entry = {
            "action": action,
            "clientId": "c1",
            "group": GROUP,
            "topic": PARENT,
            "liteTopicSet": lite_topics,
        }
        sizes = [clients.active]
        peer.give(R.LITE_SUBSCRIPTION_CTL, {}, json.dumps({"subscriptionSet": [entry]}).encode())
        sizes.append(clients.active)
        while bench.broker.work():
            sizes.append(clients.active)
        sizes.append(clients.active)
        bench.broker.turn()
        assert [answer.code for answer in peer.heard()] == [0]
        return [abs(after - before) for before, after in itertools.pairwise(sizes)]

    leave = {"PARTIAL_ADD": ("PARTIAL_REMOVE", *names(MANY)), "COMPLETE_ADD": ("COMPLETE_ADD",)}[action]
    for steps in (changes(action, *names(MANY)), changes(*leave)):
        assert sum(steps) == MANY
        assert max(steps) <= QUEUES_AT_ONCE
    assert clients.active == 0
    subscribe(peer, action, *names(MANY))
    assert max(changes("COMPLETE_REMOVE")) <= QUEUES_AT_ONCE
    assert clients.ledger.bytes == 0


def test_subscriptions_are_forgotten_in_slices(bench: Bench) -> None:
    peer, clients = bench.peer(), bench.broker.services.lite.clients
    subscribe(peer, "PARTIAL_ADD", *names(MANY), client="wide")
    for number in range(3):
        subscribe(peer, "PARTIAL_ADD", "a", client=f"c{number}")
    bench.clock.advance(400_000)
    before = clients.active
    bench.broker.tick()
    while clients.active:
        assert 0 < before - clients.active <= QUEUES_AT_ONCE
        before = clients.active
        assert bench.broker.work() or not clients.active
    assert (len(clients), clients.ledger.bytes) == (0, 0)


def test_a_client_that_subscribes_again_while_it_is_forgotten_stays(bench: Bench) -> None:
    peer, clients = bench.peer(), bench.broker.services.lite.clients
    subscribe(peer, "COMPLETE_ADD", *names(MANY))
    bench.clock.advance(400_000)
    bench.broker.tick()
    assert 0 < clients.active < MANY
    subscribe(peer, "COMPLETE_ADD", *names(MANY))
    while bench.broker.work():
        pass
    assert clients.active == MANY


def test_full_dispatches_that_are_due_together_come_one_after_another(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    group(bench, "ALL", lite_sub_wildcard="true")
    peer, count = bench.peer(), 3 * CLIENTS_AT_ONCE
    crowd(peer, count, "ALL")
    calls = counted(monkeypatch, "dispatch_all_of")
    bench.clock.advance(10_000)
    bench.broker.tick()
    assert len(calls) == CLIENTS_AT_ONCE
    while more := step(bench, calls):
        assert more <= CLIENTS_AT_ONCE
    assert len(calls) == count


def test_news_of_clients_that_do_not_ask_move_in_slices(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    group(bench, "MUCH", lite_sub_client_max_event_cnt="10000")
    peer = bench.peer()
    subscribe(peer, "COMPLETE_ADD", *names(MANY), of="MUCH")
    for name in names(MANY):
        send(peer, name)
    calls = counted(monkeypatch, "dispatch")
    bench.clock.advance(20_000)
    bench.broker.tick()
    assert len(calls) == QUEUES_AT_ONCE
    while more := step(bench, calls):
        assert more <= QUEUES_AT_ONCE
    assert len(calls) == MANY


def test_a_pop_looks_at_a_bounded_number_of_queues_without_messages_and_then_goes_on(bench: Bench) -> None:
    group(bench, "MUCH", lite_sub_client_max_event_cnt="10000")
    peer, clients, count = bench.peer(), bench.broker.services.lite.clients, 2 * EVENTS_AT_ONCE + 50
    subscribe(peer, "COMPLETE_ADD", *names(count), of="MUCH")
    for name in names(count):
        send(peer, name, name.encode())
    for name in names(count - 1):
        bench.broker.state.offsets.commit("MUCH", f"%LMQ%${PARENT}${name}", 0, 1)
    client = clients.find("c1")
    assert client is not None
    assert pop(bench, peer, of="MUCH").code != 0
    assert len(client.events) == count - EVENTS_AT_ONCE
    peer.give(R.POP_LITE_MESSAGE, pop_ext(bench, poll_ms=15_000, of="MUCH"))
    while bench.broker.work():
        pass
    bench.broker.turn()
    (answer,) = peer.heard()
    assert bodies(answer) == [names(count)[-1].encode()]


def test_what_waits_for_a_client_that_reads_all_lite_topics_is_counted(bench: Bench) -> None:
    group(bench, "ALL", lite_sub_wildcard="true", lite_sub_client_max_event_cnt="10000")
    peer, ledger = bench.peer(), bench.broker.services.lite.clients.ledger
    subscribe(peer, "COMPLETE_ADD", of="ALL")
    alone = ledger.bytes
    for name in names(20):
        send(peer, name)
    assert ledger.bytes - alone > 20 * 200
    bench.config.max_lite_table_bytes = ledger.bytes
    for name in names(30)[20:]:
        send(peer, name)
    assert ledger.bytes == bench.config.max_lite_table_bytes
    popped = pop(bench, peer, of="ALL")
    assert len(bodies(popped)) == 20
    assert ledger.bytes == alone
    for name in names(20):
        ack(bench, peer, popped, name, 0, of="ALL")
    bench.run_for(12_000, 1_000)
    assert len(bodies(pop(bench, peer, of="ALL"))) == 10, "the others after a full dispatch"
    subscribe(peer, "COMPLETE_REMOVE", of="ALL")
    assert ledger.bytes == 0
