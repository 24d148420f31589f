"""mqspark.testing: a broker in a test, and nothing left of it afterwards."""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import threading
from collections import Counter
from pathlib import Path

import pytest

from mqspark.errors import ConfigError, StoreLocked
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command, encode_request
from mqspark.protocol.connection import Connection
from mqspark.testing import Broker, Cluster, FakeClock

pytest_plugins = ["mqspark.testing.pytest_plugin"]


def request(address: str, code: int, header: dict[str, str] | None = None, body: bytes = b"") -> Command:
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=5) as sock:
        sock.sendall(encode_request(code, 1, header, body))
        connection = Connection()
        while True:
            commands = connection.receive_data(sock.recv(1 << 20))
            if commands:
                return commands[0]


def send(broker: Broker, topic: str, body: bytes) -> Command:
    header = {
        "a": "g",
        "b": topic,
        "c": "TBW102",
        "d": "4",
        "e": "0",
        "f": "0",
        "g": "1",
        "h": "0",
        "i": "",
        "j": "0",
    }
    return request(broker.address, RequestCode.SEND_MESSAGE_V2, header, body)


def test_a_broker_serves_and_is_known_at_once(mq_broker: Broker, mq_topic: str) -> None:
    assert send(mq_broker, mq_topic, b"hello").code == ResponseCode.SUCCESS
    cluster = request(mq_broker.namesrv, RequestCode.GET_BROKER_CLUSTER_INFO)
    assert mq_broker.address.encode() in bytes(cluster.body)


def open_files() -> Counter[str]:
    """What this process has open, by kind: numbers of descriptors are reused, and listing them takes one."""
    kinds: Counter[str] = Counter()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            target = os.readlink(f"/proc/self/fd/{number}")
            kinds[target.partition(":[")[0] if ":[" in target else target] += 1
    return kinds


def test_nothing_is_left() -> None:
    with Broker(http=True) as first:  # what is loaded once stays
        store = first.store_path
    gc.collect()
    threads = set(threading.enumerate())
    files = open_files()
    for _ in range(3):
        with Broker(http=True) as broker:
            assert send(broker, "t", b"x").code == ResponseCode.SUCCESS
            assert broker.store_path.exists()
            store = broker.store_path
        assert not store.exists()
    gc.collect()
    assert set(threading.enumerate()) == threads
    assert open_files() - files == Counter()


def test_a_given_store_is_kept_and_reopened(tmp_path: Path) -> None:
    with Broker(store=tmp_path) as broker:
        assert send(broker, "kept", b"x").ext["queueOffset"] == "0"
    assert not (tmp_path / "abort").exists()
    with Broker(store=tmp_path) as broker:
        assert send(broker, "kept", b"y").ext["queueOffset"] == "1"


def test_what_keeps_it_from_starting_is_raised(tmp_path: Path) -> None:
    with Broker(store=tmp_path):
        threads = threading.active_count()
        with pytest.raises(StoreLocked):
            Broker(store=tmp_path).start()
        assert threading.active_count() == threads
    with pytest.raises(ConfigError, match="unknown setting"):
        Broker(settings={"noSuchKey": 1})


def test_a_taken_port_is_named() -> None:
    with Broker() as broker:
        port = int(broker.address.rpartition(":")[2])
        with pytest.raises(
            OSError, match=f"broker cannot listen on 127.0.0.1:{port}: Address already in use"
        ):
            Broker(broker_port=port).start()


def test_a_cluster_has_brokers_with_stores_of_their_own() -> None:
    with Cluster(brokers=2) as cluster:
        info = bytes(request(cluster.namesrv, RequestCode.GET_BROKER_CLUSTER_INFO).body)
        assert all(address.encode() in info for address in cluster.addresses)
        assert len(set(cluster.store_paths)) == 2
        assert cluster.call(lambda: [app.lifecycle.ready for app in cluster.apps]) == [True, True]


def test_a_fake_clock_stands_still() -> None:
    clock = FakeClock(now_ms=5_000)
    with Broker(clock=clock) as broker:
        assert send(broker, "t", b"x").code == ResponseCode.SUCCESS
        stored = broker.call(lambda: broker.apps[0].store.store_timestamp_at("t", 0, 0))
        assert stored == 5_000
        clock.advance(1_000)
        send(broker, "t", b"y")
        assert broker.call(lambda: broker.apps[0].store.store_timestamp_at("t", 0, 1)) == 6_000
    with pytest.raises(ValueError, match="does not go back"):
        clock.advance(-1)
