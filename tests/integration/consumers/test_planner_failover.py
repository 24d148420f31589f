"""The client of Spark's planners and tasks when a broker is no longer the master that its route said."""

from __future__ import annotations

import time

import pytest

from mqspark.client.blocking import BlockingClient
from mqspark.client.remoting.blockingconnection import BlockingConnection
from mqspark.errors import RequestTimeout
from mqspark.message import MessageQueue
from mqspark.protocol.bodies.body import encode_body
from mqspark.protocol.bodies.topic_bodies import BrokerData, ClusterInfo
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command
from tests.support.scripted import SILENCE, Answer, Scripted, route_of, served

QUEUE = MessageQueue("T", "b", 0)


def replaced(old: Scripted, new: Scripted, looked: list[float]) -> Scripted:
    """A name server that knows the old master's route, and the new master once it was asked twice."""

    def names(command: Command) -> Answer:
        if command.code != RequestCode.GET_BROKER_CLUSTER_INFO:
            return 0, None, route_of({"b": old.address})
        looked.append(time.monotonic())
        master = new if len(looked) > 1 else old
        broker = BrokerData(cluster="c", broker_name="b", broker_addrs={0: master.address, 1: old.address})
        return 0, None, encode_body(ClusterInfo(broker_addr_table={"b": broker}))

    return Scripted(names)


@pytest.mark.parametrize(
    "answer", [(ResponseCode.SYSTEM_BUSY, None, b""), SILENCE], ids=["a slave now", "frozen"]
)
def test_requests_go_on_at_the_new_master(answer: Answer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old one refuses, or says nothing: then nobody waits until the time of the request is over."""
    monkeypatch.setattr("mqspark.client.remoting.blockingconnection.SILENT_S", 0.05)
    old, new = Scripted(lambda command: answer), Scripted(lambda command: (0, {"offset": "7"}, b""))
    namesrv = replaced(old, new, [])
    with served(old, new, namesrv):
        client = BlockingClient(namesrv.address, timeout_ms=60_000, retry_ms=5_000)
        assert client.route("T").address("b") == old.address
        began = time.monotonic()
        assert [int(offset) for offset in client.max_offsets(old.address, [QUEUE])] == [7]
        assert time.monotonic() - began < 20
        assert client.master_of("b", "T") == new.address
        assert client.master_of("unknown", "T") is None
        client.close()


def test_an_answer_that_arrives_during_the_look_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when the time of the request is over by then, as a silent name server takes long."""
    monkeypatch.setattr("mqspark.client.remoting.blockingconnection.SILENT_S", 0.05)

    def late(command: Command) -> Answer:
        time.sleep(0.3)
        return 0, None, b""

    server = Scripted(late)
    looked: list[str] = []

    def look(address: str) -> None:
        looked.append(address)
        time.sleep(1.0)

    with served(server):
        connection = BlockingConnection(server.address)
        opaque = connection.send(RequestCode.GET_MAX_OFFSET)
        assert connection.wait(opaque, 600, if_silent=look).code == 0
        assert looked == [server.address]
        server.script = lambda command: SILENCE
        with pytest.raises(RequestTimeout):
            connection.wait(connection.send(RequestCode.GET_MAX_OFFSET), 30, if_silent=look)
        assert looked == [server.address], "the time is over before it would help"
        connection.close()


def test_what_has_arrived_is_read_without_waiting() -> None:
    """As the sends of a task to several brokers do, which wait for all of them at once."""
    server = Scripted(lambda command: (0, None, b""))
    with served(server):
        connection = BlockingConnection(server.address)
        opaque = connection.send(RequestCode.GET_MAX_OFFSET)
        deadline = time.monotonic() + 10
        while not (answers := connection.poll([opaque], 0.0)):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert list(answers) == [opaque]
        assert connection.poll([opaque], 0.0) == {}
        connection.close()
