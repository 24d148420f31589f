"""The broker's shell with a real store: group commit, registration, shutdown with requests in flight."""

from __future__ import annotations

import socket
import threading
from contextlib import closing
from pathlib import Path

import pytest

from mqspark.base.clock import SystemClock
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command, encode_request
from mqspark.protocol.connection import Connection
from mqspark.store.disk.kernelsync import KernelSync
from mqspark.testing import Broker, Cluster
from mqspark_server import broker_app
from mqspark_server.process.phases import Phase, ProcessLifecycle
from tests.support.remoting import send_fields
from tests.support.store_tools import kernel_sync
from tests.support.waiting import eventually


class Wire:
    """A blocking connection."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.sock = socket.create_connection((host, int(port)), timeout=60)
        self.connection = Connection()
        self.commands: list[Command] = []

    def send(self, *frames: bytes) -> None:
        self.sock.sendall(b"".join(frames))

    def next(self) -> Command:
        while not self.commands:
            data = self.sock.recv(1 << 20)
            if not data:
                raise EOFError
            self.commands += self.connection.receive_data(data)
        return self.commands.pop(0)

    def rest(self) -> list[Command]:
        """Everything until the other side closes."""
        while data := self.sock.recv(1 << 20):
            self.commands += self.connection.receive_data(data)
        return self.commands

    def close(self) -> None:
        self.sock.close()


def message(opaque: int, topic: str = "t", queue_id: int = 0) -> bytes:
    header = send_fields(topic, queue_id)
    return encode_request(RequestCode.SEND_MESSAGE_V2, opaque, header, b"body %d" % opaque)


def ask(address: str, code: int) -> bytes:
    with closing(Wire(address)) as wire:
        wire.send(encode_request(code, 1))
        return bytes(wire.next().body)


@pytest.mark.parametrize("who", ["kernel", "thread"])
def test_one_sync_serves_all_who_wait_and_nobody_is_answered_before_it(
    who: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if who == "thread":
        monkeypatch.setattr(broker_app, "open_kernel_sync", lambda: None)
    else:
        kernel_sync().close()
    with Broker(settings={"flushDiskType": "SYNC_FLUSH"}) as broker:
        store = broker.apps[0].store
        assert store is not None
        with closing(Wire(broker.address)) as wire:
            wire.send(message(0))
            assert wire.next().code == ResponseCode.SUCCESS

            gate, syncs = threading.Event(), [0]
            sync, submit, poll = store.files.sync, KernelSync.submit, KernelSync.poll

            def slow_sync(fd: int) -> None:
                syncs[0] += 1
                assert gate.wait(60)
                sync(fd)

            def counted(self: KernelSync, fd: int) -> None:
                syncs[0] += 1
                submit(self, fd)

            if who == "kernel":
                monkeypatch.setattr(KernelSync, "submit", counted)
                monkeypatch.setattr(KernelSync, "poll", lambda self: poll(self) if gate.is_set() else None)
            else:
                monkeypatch.setattr(store.files, "sync", slow_sync)
            for number in range(1, 101):
                wire.send(message(number))
            eventually(
                lambda: broker.call(
                    lambda: store.offsets.max_offset("t", 0) == 1 and store.appender.put_count == 101
                ),
                "101 puts",
            )
            wire.sock.settimeout(0.1)
            with pytest.raises(TimeoutError):
                wire.next()  # written, not synced: no answer, and no consumer sees it either
            wire.sock.settimeout(60)
            gate.set()
            answers = [wire.next() for _ in range(100)]
        assert [answer.opaque for answer in answers] == list(range(1, 101))
        assert {answer.code for answer in answers} == {ResponseCode.SUCCESS}
        assert 2 <= syncs[0] <= 20, "each send had a sync of its own"


def test_requests_in_flight_are_answered_at_shutdown(tmp_path: Path) -> None:
    broker = Broker(store=tmp_path, settings={"flushDiskType": "SYNC_FLUSH"}).start()
    with closing(Wire(broker.address)) as wire:
        wire.send(*(message(number) for number in range(200)))
        first = wire.next()
        broker.stop()
        answers = [first, *wire.rest()]
    acked = [answer.ext["queueOffset"] for answer in answers if answer.code == ResponseCode.SUCCESS]
    with Broker(store=tmp_path) as again:
        store = again.apps[0].store
        assert store is not None
        assert again.call(lambda: store.offsets.max_offset("t", 0)) >= len(acked)


def test_a_name_server_that_comes_back_learns_of_the_broker_soon(tmp_path: Path) -> None:
    with Cluster(brokers=1) as first, Broker(settings={"brokerName": "second"}) as second:
        port = int(first.namesrv.rpartition(":")[2])
        # One more broker that knows both name servers.
        addresses = f"{first.namesrv};{second.namesrv}"
        third = Broker(settings={"brokerName": "third", "namesrvAddr": addresses})
        with third:
            for namesrv in (first.namesrv, second.namesrv):
                assert b'"third"' in ask(namesrv, RequestCode.GET_BROKER_CLUSTER_INFO)
            first.stop()
            with Cluster(namesrv_port=port) as restarted:
                eventually(
                    lambda: b'"third"' in ask(restarted.namesrv, RequestCode.GET_BROKER_CLUSTER_INFO),
                    "registration",
                    timeout_s=25,  # less than the 30 s between registrations by time
                )
            assert b'"third"' in ask(second.namesrv, RequestCode.GET_BROKER_CLUSTER_INFO)
        assert b'"third"' not in ask(second.namesrv, RequestCode.GET_BROKER_CLUSTER_INFO)


def test_a_topic_made_by_a_send_is_routed_at_once() -> None:
    with Broker() as broker, closing(Wire(broker.address)) as wire, closing(Wire(broker.namesrv)) as names:
        wire.send(message(1, "born-now"))
        assert wire.next().code == ResponseCode.SUCCESS

        def routed() -> bool:
            names.send(encode_request(RequestCode.GET_ROUTEINFO_BY_TOPIC, 1, {"topic": "born-now"}))
            return names.next().code == ResponseCode.SUCCESS

        eventually(routed, "a route", timeout_s=25)


def test_the_fast_port_serves_sends() -> None:
    with Broker() as broker:
        host, _, port = broker.address.rpartition(":")
        with closing(Wire(f"{host}:{int(port) - 2}")) as wire:
            wire.send(message(1))
            assert wire.next().code == ResponseCode.SUCCESS
            wire.send(encode_request(RequestCode.PULL_MESSAGE, 2, {}))
            assert wire.next().code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


def test_garbage_on_one_connection_leaves_a_batch_on_another_alone() -> None:
    with Broker() as broker, closing(Wire(broker.address)) as good, closing(Wire(broker.address)) as bad:
        good.send(*(message(number) for number in range(500)))
        bad.send(b"\xff" * 64)
        assert bad.sock.recv(1) == b""
        answers = [good.next() for _ in range(500)]
        # The first one makes the topic; its answer waits for the name server.
        assert sorted(answer.opaque for answer in answers) == list(range(500))


def test_the_life_cycle_goes_forward_only() -> None:
    life = ProcessLifecycle(SystemClock())
    life.advance(Phase.RECOVERING)
    life.advance(Phase.READY)
    assert life.ready
    for phase in (Phase.READY, Phase.BINDING):
        with pytest.raises(ValueError, match="cannot go from READY"):
            life.advance(phase)
    assert list(life.describe()["reachedMs"]) == ["created", "recovering", "ready"]  # type: ignore[call-overload]
