"""Plain sends of gRPC clients to the broker in their process, and how their senders are told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from mqspark.protocol.codes import RequestCode
from mqspark_server.net.deadlines import Deadlines
from mqspark_server.proxy.backend import ANSWER_TIMEOUT_S
from mqspark_server.proxy.backends.directlink import DirectLink
from tests.unit.broker_kit import SEND, Bench, send_ext
from tests.unit.server.net.test_deadlines import Loop


class Server:
    def __init__(self) -> None:
        self.loop = self
        self.timers = Loop()
        self.deadlines: Deadlines[Any] = Deadlines(
            cast(asyncio.AbstractEventLoop, self.timers), lambda run: run.expire()
        )
        self.works: list[Callable[[], None]] = []

    def time(self) -> float:
        return 0.0

    def before_turn(self, work: Callable[[], None]) -> None:
        self.works.append(work)

    def turn(self) -> None:
        works, self.works = self.works, []
        for work in works:
            work()


class Sender:
    def __init__(self) -> None:
        self.told: list[object] = []
        self.is_over = False

    def stored(self, queue_offset: int) -> None:
        self.told.append(queue_offset)

    def failed(self, code: int, remark: str) -> None:
        self.told.append(remark)

    def refused(self, error: Exception) -> None:
        self.told.append(str(error))

    def take_long_way(self) -> None:
        self.told.append("long way")


def made(bench: Bench) -> tuple[Server, Callable[[], Sender]]:
    peer = bench.peer()
    assert peer.ask(SEND, send_ext(properties="UNIQ_KEY\x01A\x02"), b"first").code == 0
    bench.flush()
    server = Server()
    link = DirectLink(bench.broker, cast(Any, server), peer.session)

    def send() -> Sender:
        found = link.topic("T")
        assert found is not None
        assert (found.message_type, found.queues) == ("NORMAL", 4)
        sender = Sender()
        assert link.send(found, 2, 1, "UNIQ_KEY\x01B\x02", "", b"body", 0, sender)
        return sender

    return server, send


def test_the_sends_of_a_turn_are_stored_together(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    server, send = made(bench)
    senders = [send(), send()]
    assert len(server.works) == 1
    server.turn()
    assert [each.told for each in senders] == [[], []]
    bench.broker.turn()
    assert [each.told for each in senders] == [[0], [1]]
    server.timers.pass_to(2 * ANSWER_TIMEOUT_S)
    assert [each.told for each in senders] == [[0], [1]]


def test_what_is_left_takes_the_long_way_and_what_waits_too_long_is_late(tmp_path: Path) -> None:
    bench = Bench(tmp_path, sync=True, send_thread_pool_queue_capacity=1)
    server, send = made(bench)
    first, second = send(), send()
    server.turn()
    bench.broker.turn()
    assert (first.told, second.told) == ([], ["long way"])
    server.timers.pass_to(ANSWER_TIMEOUT_S - 1)
    assert first.told == []
    server.timers.pass_to(ANSWER_TIMEOUT_S + 1)
    assert first.told == ["the broker did not answer in time"]
    bench.flush()
    assert first.told == ["the broker did not answer in time"]
    third = send()
    server.turn()
    bench.broker.turn()
    bench.broker.acks.fail("no disk")
    assert third.told == ["no disk"]


def test_what_a_topic_that_is_deleted_meanwhile_was_sent_takes_the_long_way(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    server, send = made(bench)
    sender = send()
    bench.peer().give(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    server.turn()
    bench.broker.turn()
    assert sender.told == ["long way"]
    assert "T" not in bench.broker.store.offsets.queues()


def test_senders_are_told_of_a_put_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tmp_path)
    server, send = made(bench)
    sender = send()

    def fails(*_: object) -> None:
        raise ZeroDivisionError("by chance")

    monkeypatch.setattr(bench.broker.direct, "put", fails)
    with pytest.raises(ZeroDivisionError):
        server.turn()
    assert sender.told == ["by chance"]
