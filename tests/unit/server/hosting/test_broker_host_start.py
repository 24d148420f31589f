"""What a supervisor does before it starts its brokers: it locks their directory, and waits for those of a supervisor
that was killed. The brokers are scripted, not processes."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mqspark.errors import ConfigError, StoreLocked
from mqspark_server.hosting import brokerhost
from mqspark_server.hosting.brokerhost import BrokerHost
from mqspark_server.hosting.childserver import PartFailed
from mqspark_server.hosting.hostplan import HostPlan
from mqspark_server.settings.settings import Layer
from tests.support.waiting import eventually_async
from tests.unit.server.hosting.test_supervisor import Scripted

PROFILE = {"brokerName": "a", "bindAddress": "127.0.0.1", "listenPort": 0, "httpEnable": False}


def host_at(store: Path, *brokers: Scripted) -> BrokerHost:
    plan = HostPlan(len(brokers), PROFILE, [Layer("test", {})], store=str(store))
    made = BrokerHost(plan, config=None, assignments=())
    for each in brokers:
        each.fields["http"] = "-"
    made.brokers[:] = brokers
    return made


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """As a broker does that is still stopping."""
    directory.mkdir(parents=True)
    fd = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


async def test_it_waits_for_brokers_that_are_still_stopping(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "mqspark.host")
    broker = Scripted("a-0")
    host = host_at(tmp_path, broker)
    with locked(tmp_path / "broker-0"):
        starting = asyncio.get_running_loop().create_task(host.start())
        await eventually_async(lambda: "waiting for the process" in caplog.text)
        assert broker.events == []
    await starting
    assert broker.events == ["spawn"]
    assert host.ready_line == f"READY namesrv=- broker=127.0.0.1:1 http=- store={tmp_path}"
    await host.stop()
    assert broker.events == ["spawn", "end"]


async def test_it_does_not_wait_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(brokerhost, "FREE_S", 0.0)
    brokers = Scripted("a-0"), Scripted("a-1")
    with locked(tmp_path / "broker-1"), pytest.raises(StoreLocked, match="broker-1"):
        await host_at(tmp_path, *brokers).start()
    assert not any("spawn" in each.events for each in brokers)


async def test_a_directory_has_one_supervisor(tmp_path: Path) -> None:
    first, second = host_at(tmp_path, Scripted("a-0")), host_at(tmp_path, Scripted("a-0"))
    await first.start()
    with pytest.raises(StoreLocked):
        await second.start()
    await first.stop()
    await second.start()
    await second.stop()


async def test_a_failing_start_leaves_nothing(tmp_path: Path) -> None:
    """Neither the other broker nor the lock; the reason of the failure is what is raised."""
    fine, broken = Scripted("a-0", end="a-0 (exit code 1)"), Scripted("a-1", broken=True)
    with pytest.raises(PartFailed, match="a-1 is broken"):
        await host_at(tmp_path, fine, broken).start()
    assert fine.events == ["spawn", "end"]
    again = host_at(tmp_path, Scripted("a-0"))
    await again.start()
    await again.stop()


async def test_a_store_of_one_broker_starts_nothing(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    broker = Scripted("a-0")
    with pytest.raises(ConfigError, match="store of one broker"):
        await host_at(tmp_path, broker).start()
    assert "spawn" not in broker.events
