"""Connections between servers that something between them has forgotten: neither end is told, and both find others."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from mqspark.protocol.codes import RequestCode
from mqspark.protocol.command import Command
from mqspark_server.broker_app import BrokerApp
from mqspark_server.controlled_app import controlled_or_plain
from mqspark_server.namesrv_app import NameServerApp
from mqspark_server.net import outbound
from mqspark_server.peers.registrar import REGISTRAR_RETRY_S
from mqspark_server.settings.settings import Layer, broker_settings, namesrv_settings
from tests.support.forgetful import Forgetful
from tests.support.remoting import ask, topic_fields
from tests.support.scripted import Answer, Scripted
from tests.support.waiting import eventually_async

HERE = {"bindAddress": "127.0.0.1", "listenPort": "0"}


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    assert outbound.SILENT_S <= 10
    monkeypatch.setattr(outbound, "SILENT_S", 1.0)


def broker(store: Path, **settings: str) -> BrokerApp:
    values = {
        **HERE,
        "brokerIP1": "127.0.0.1",
        "haListenPort": "0",
        "storePathRootDir": str(store),
        "mappedFileSizeCommitLog": str(1 << 22),
        **settings,
    }
    return controlled_or_plain(broker_settings({}, Layer("test", values), use_environment=False))


async def test_a_broker_finds_its_controller_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(command: Command) -> Answer:
        fields = {"controllerLeaderAddress": between.address, "nextBrokerId": "1"}
        return 0, fields, b""

    monkeypatch.setattr("mqspark_server.controlled_app.ROLE_WAIT_S", 0.1)
    monkeypatch.setattr("mqspark_server.controlled_app.REQUEST_TIMEOUT_S", 0.3)
    leader = Scripted(answer)
    between = Forgetful(lambda: leader.address)
    async with leader.serving(), between.serving():
        app = broker(
            tmp_path,
            enableControllerMode="true",
            controllerAddr=between.address,
            brokerHeartbeatInterval="50",
            sendHeartbeatTimeoutMillis="300",
        )
        starting = asyncio.get_running_loop().create_task(app.start())
        try:
            await eventually_async(lambda: leader.codes().count(RequestCode.BROKER_HEARTBEAT) > 2)
            assert between.forget() > 0
            leader.asked.clear()
            await eventually_async(
                lambda: leader.codes().count(RequestCode.BROKER_HEARTBEAT) > 2, "heartbeats again"
            )
            await eventually_async(lambda: between.links == 1, "the forgotten connection to end")
        finally:
            await starting
            await app.kill()


async def test_a_broker_finds_its_name_server_again(tmp_path: Path) -> None:
    names = NameServerApp(namesrv_settings({}, Layer("test", {**HERE, "kvConfigPath": ""})))
    await names.start()
    between = Forgetful(lambda: names.address)
    async with between.serving():
        app = broker(tmp_path, namesrvAddr=between.address, registerBrokerTimeoutMills="300")
        await app.start()
        core = names.core
        assert core is not None
        try:
            await eventually_async(lambda: len(core.routes.live_brokers()) == 1)
            assert between.forget() > 0
            await asyncio.to_thread(create_topic, app.address, "Late")
            await eventually_async(lambda: core.routes.route("Late") is not None, "the new topic")
        finally:
            await app.kill()
            await names.stop()


async def test_a_name_server_whose_connections_do_not_last_is_not_asked_without_end(tmp_path: Path) -> None:
    """A proxy whose server is away takes connections and ends them."""
    names = Scripted(lambda _: None)
    async with names.serving():
        began_s = asyncio.get_running_loop().time()
        app = broker(tmp_path, namesrvAddr=names.address)
        await app.start()
        try:
            await eventually_async(lambda: names.accepted >= 3, "three attempts")
            assert names.accepted <= 2 + (asyncio.get_running_loop().time() - began_s) / REGISTRAR_RETRY_S
        finally:
            await app.kill()


def create_topic(address: str, name: str) -> None:
    reply = ask(address, RequestCode.UPDATE_AND_CREATE_TOPIC, **topic_fields(name))
    assert reply.code == 0, json.dumps(reply.ext)
