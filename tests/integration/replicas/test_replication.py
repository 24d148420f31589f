"""Slaves on real sockets: the port that a master opens for them."""

from __future__ import annotations

import contextlib
import errno
import random
import select
import socket
import struct
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from mqspark import Message, Producer, SendStatus
from mqspark.store.reads import Reads
from mqspark.testing import Broker
from mqspark_server.net import replicationserver
from tests.support.storefiles import log_bytes
from tests.support.waiting import eventually

TOPIC = "Copied"
TIMEOUT_S = 60.0


def connection_to_port(broker: Broker, source: str = "127.0.0.1") -> socket.socket:
    host, port = broker.call(lambda: broker.apps[0].config.ha_address).rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout=TIMEOUT_S, source_address=(source, 0))


class Slave:
    """What a RocketMQ slave says and takes; ``log`` is what it has from ``start`` on."""

    def __init__(self, broker: Broker, *, position: int = 0, source: str = "127.0.0.1") -> None:
        self.sock = connection_to_port(broker, source)
        self.start = position
        self.log = bytearray()
        self.heartbeats = 0
        self._data = bytearray()
        self.report(position)

    def report(self, position: int | None = None) -> None:
        self.sock.sendall(struct.pack(">q", self.start + len(self.log) if position is None else position))

    def take(self, *, report: bool = True) -> bool:
        """One read; False when the master has closed."""
        try:
            data = self.sock.recv(1 << 20)
        except ConnectionResetError:
            return False
        self._data += data
        while len(self._data) >= 12:
            position, count = struct.unpack_from(">qi", self._data)
            if len(self._data) < 12 + count:
                break
            if not self.log and not self.start:
                self.start = position  # the newest segment
            assert position == self.start + len(self.log)
            self.heartbeats += not count
            self.log += self._data[12 : 12 + count]
            del self._data[: 12 + count]
        if data and report:
            self.report()
        return bool(data)

    def take_until(self, position: int) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while self.start + len(self.log) < position:
            assert self.take(), "the master closed the connection"
            assert time.monotonic() < deadline
        assert self.start + len(self.log) == position

    def close(self) -> None:
        self.sock.close()


def is_refused(broker: Broker) -> bool:
    try:
        with closing(Slave(broker)) as slave:
            return not slave.take()
    except ConnectionError:
        return True


def slaves_of(broker: Broker) -> int:
    parts = broker.apps[0].parts
    assert parts is not None
    return broker.call(lambda: len(parts.core.role.replicas))


def log_of(broker: Broker) -> bytes:
    return log_bytes(broker.store_path, end_of(broker))


def end_of(broker: Broker) -> int:
    store = broker.apps[0].store
    assert store is not None
    return broker.call(lambda: store.log.position)


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_a_slave_follows(tmp_path: Path, flush: str) -> None:
    settings = {"flushDiskType": flush, "mappedFileSizeCommitLog": 1 << 20}
    with (
        Broker(store=tmp_path / "s", settings=settings) as broker,
        Producer(broker.namesrv, group="P") as producer,
    ):
        producer.send(Message(TOPIC, b"first"))
        with closing(Slave(broker)) as slave:
            for size in (10, 100_000, 300_000, 1, 400_000, 400_000):
                producer.send(Message(TOPIC, random.Random(size).randbytes(size)))
                slave.take_until(end_of(broker))
            assert slave.log == log_of(broker)
            assert len(slave.log) > 1 << 20
        begin = len(slave.log) // 2
        producer.send(Message(TOPIC, b"while it was away"))
        with closing(Slave(broker, position=begin)) as again:
            again.take_until(end_of(broker))
            assert again.log == log_of(broker)[begin:]


@pytest.mark.slow("megabytes that nobody reads; one that reports and does not read is the fast twin")
def test_a_slave_that_does_not_read_costs_little(tmp_path: Path) -> None:
    settings = {"mappedFileSizeCommitLog": 1 << 26}
    with (
        Broker(store=tmp_path / "s", settings=settings) as broker,
        Producer(broker.namesrv, group="P") as producer,
    ):
        with closing(Slave(broker)) as slave:
            body = random.Random(1).randbytes(1_000_000)  # nothing to compress
            for _ in range(40):
                producer.send(Message(TOPIC, body))
            waiting = broker.call(lambda: broker.apps[0].parts.slaves.waiting_bytes)
            assert waiting < 4 * replicationserver.CHUNK_BYTES
            slave.take_until(end_of(broker))
            assert slave.log == log_of(broker)


def test_a_silent_slave_is_let_go_and_a_quiet_one_hears_where_the_log_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replicationserver, "SCAN_S", 0.02)
    settings = {"haSendHeartbeatInterval": 50, "haHousekeepingInterval": 700}
    with Broker(store=tmp_path / "s", settings=settings) as broker:
        with closing(Slave(broker)) as slave:
            began = time.monotonic()
            while time.monotonic() - began < 1.5:
                assert slave.take()
            assert slave.heartbeats > 5
            began = time.monotonic()
            while slave.take(report=False):
                assert time.monotonic() - began < TIMEOUT_S
            assert time.monotonic() - began > 0.3


@pytest.mark.parametrize("position", [-1, 1 << 40])
def test_a_slave_with_another_log_is_let_go_with_a_reason(
    tmp_path: Path, position: int, caplog: pytest.LogCaptureFixture
) -> None:
    with Broker(store=tmp_path / "s") as broker, closing(Slave(broker, position=position)) as slave:
        assert not slave.take()
    assert f"was disconnected: it asks for the log from {position} on" in caplog.text


def test_a_segment_that_cannot_be_mapped_costs_the_slave_and_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_map(self: Reads, position: int, limit_bytes: int) -> memoryview:
        raise OSError(errno.EMFILE, "Too many open files")

    with Broker(store=tmp_path / "s") as broker, Producer(broker.namesrv, group="P") as producer:
        producer.send(Message(TOPIC, b"first"))
        with closing(Slave(broker)) as slave:
            slave.take_until(end_of(broker))
            monkeypatch.setattr(Reads, "log_from", no_map)
            assert producer.send(Message(TOPIC, b"second")).status is SendStatus.SEND_OK
            assert not slave.take()
        assert "was disconnected: [Errno 24] Too many open files" in caplog.text
        assert producer.send(Message(TOPIC, b"third")).status is SendStatus.SEND_OK


def test_too_many_slaves_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicationserver, "MAX_SLAVES", 1)
    with Broker(store=tmp_path / "s", settings={"haSendHeartbeatInterval": 50}) as broker:
        with closing(Slave(broker)) as first:
            assert first.take()
            assert is_refused(broker)
            assert first.take()


def test_a_sync_master_waits_for_its_slave(tmp_path: Path) -> None:
    settings = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": 2, "slaveTimeout": 300}
    with (
        Broker(store=tmp_path / "s", settings=settings) as broker,
        Producer(broker.namesrv, group="P") as producer,
    ):
        assert producer.send(Message(TOPIC, b"alone")).status is SendStatus.FLUSH_SLAVE_TIMEOUT
        slave = Slave(broker)
        stopped = threading.Event()

        def follow() -> None:
            while not stopped.is_set():
                if select.select([slave.sock], [], [], 0.05)[0] and not slave.take():
                    return

        thread = threading.Thread(target=follow)
        thread.start()
        try:
            for number in range(50):
                assert producer.send(Message(TOPIC, b"%d" % number)).status is SendStatus.SEND_OK
                assert slave.start + len(slave.log) == end_of(broker)
        finally:
            stopped.set()
            thread.join()
        slave.close()
        assert producer.send(Message(TOPIC, b"alone again")).status is SendStatus.FLUSH_SLAVE_TIMEOUT


def test_the_port_behind_the_brokers_is_preferred_and_another_taken_when_it_is_not_free(
    tmp_path: Path,
) -> None:
    with Broker(store=tmp_path / "a") as broker:
        config = broker.apps[0].config
        port = config.listen_port
    with socket.socket() as taken:
        try:
            taken.bind(("127.0.0.1", port + 1))
        except OSError as error:
            pytest.skip(f"port {port + 1} is used by another process: {error}")
        taken.listen()
        with Broker(store=tmp_path / "b", broker_port=port) as broker:
            assert broker.apps[0].config.ha_listen_port not in (None, port + 1)
            Slave(broker).close()
        with (
            pytest.raises(OSError, match=f"replication cannot listen on 127.0.0.1:{port + 1}"),
            Broker(store=tmp_path / "c", broker_port=port, settings={"haListenPort": port + 1}),
        ):
            pass
    with Broker(store=tmp_path / "d", broker_port=port) as broker:
        assert broker.apps[0].config.ha_listen_port == port + 1


def test_a_slave_that_reports_and_does_not_read_is_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What it is given keeps segments of the log from going."""
    monkeypatch.setattr(replicationserver, "SCAN_S", 0.05)
    monkeypatch.setattr(replicationserver, "UNREAD_S", 0.5)
    with Broker(store=tmp_path / "s") as broker, Producer(broker.namesrv, group="P") as producer:
        producer.send(Message(TOPIC, b"first"))
        with closing(Slave(broker)) as slave:
            slave.take_until(end_of(broker))
            slave.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32 * 1024)
            for _ in range(16):
                producer.send(Message(TOPIC, random.Random(1).randbytes(1 << 20)))
            began = time.monotonic()
            while "has not read its data" not in caplog.text:
                assert time.monotonic() - began < TIMEOUT_S
                with contextlib.suppress(ConnectionError):
                    slave.report()
                time.sleep(0.05)
        with closing(Slave(broker)) as honest:
            honest.take_until(end_of(broker))


def test_those_that_say_nothing_keep_no_slave_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicationserver, "MAX_SLAVES", 2)
    with Broker(store=tmp_path / "s") as broker, Producer(broker.namesrv, group="P") as producer:
        with contextlib.ExitStack() as idle:
            for _ in range(4):
                idle.enter_context(connection_to_port(broker))
            producer.send(Message(TOPIC, b"first"))
            with closing(Slave(broker)) as slave:
                slave.take_until(end_of(broker))


@pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux has all of 127.0.0.0/8 on its loopback interface"
)
def test_an_address_with_many_connections_displaces_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a slave that has not reported its position yet, nor a place for a new one, is lost to another address."""
    monkeypatch.setattr(replicationserver, "MAX_SLAVES", 3)
    settings = {"haSendHeartbeatInterval": 50}
    with (
        Broker(store=tmp_path / "s", settings=settings) as broker,
        Producer(broker.namesrv, group="P") as producer,
        contextlib.ExitStack() as held,
    ):
        producer.send(Message(TOPIC, b"first"))
        honest = held.enter_context(connection_to_port(broker))
        for _ in range(9):
            held.enter_context(connection_to_port(broker, "127.0.0.2"))
        honest.sendall(struct.pack(">q", 0))
        assert len(honest.recv(1 << 20)) > 12
        reporting = [held.enter_context(closing(Slave(broker, source="127.0.0.2"))) for _ in range(2)]
        for slave in reporting:
            slave.take_until(end_of(broker))
        late = held.enter_context(closing(Slave(broker, source="127.0.0.3")))
        late.take_until(end_of(broker))
        assert honest.recv(1 << 20)
        assert not all(reporting[1].take() for _ in range(100))


@pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux has all of 127.0.0.0/8 on its loopback interface"
)
def test_slaves_that_have_reported_displace_none_that_has_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An address with many connections that claim a position does not end the handshakes of other slaves."""
    monkeypatch.setattr(replicationserver, "MAX_SLAVES", 3)
    with (
        Broker(store=tmp_path / "s", settings={"haSendHeartbeatInterval": 50}) as broker,
        Producer(broker.namesrv, group="P") as producer,
        contextlib.ExitStack() as held,
    ):
        producer.send(Message(TOPIC, b"first"))
        for _ in range(2):
            held.enter_context(closing(Slave(broker, source="127.0.0.2"))).take_until(end_of(broker))
        honest = held.enter_context(connection_to_port(broker))
        eventually(lambda: slaves_of(broker) == 3)
        for _ in range(3):
            with contextlib.suppress(ConnectionError):
                held.enter_context(closing(Slave(broker, source="127.0.0.2"))).take()
        honest.sendall(struct.pack(">q", 0))
        assert len(honest.recv(1 << 20)) > 12
