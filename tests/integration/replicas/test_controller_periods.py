"""How often a broker asks who leads the controllers, and how long it waits for the answer to a heartbeat."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import pytest

from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command
from mqspark_server.controlled_app import controlled_or_plain
from mqspark_server.settings.settings import broker_settings
from tests.support.scripted import SILENCE, Answer, Scripted
from tests.support.waiting import eventually_async


@pytest.mark.parametrize(
    ("setting", "is_silent", "least_s"),
    [("syncControllerMetadataPeriod", False, 10), ("sendHeartbeatTimeoutMillis", True, 1)],
)
async def test_the_leader_is_asked_for_again(
    tmp_path: Path, setting: str, is_silent: bool, least_s: float
) -> None:
    """By default every ten seconds, and one second after a heartbeat that was not answered (``least_s``)."""
    asked_s: list[float] = []

    def answer(command: Command) -> Answer:
        if command.code == RequestCode.CONTROLLER_GET_METADATA_INFO:
            asked_s.append(asyncio.get_running_loop().time())
            return 0, {"controllerLeaderAddress": server.address, "isLeader": "true"}, b""
        if command.code == RequestCode.CONTROLLER_GET_NEXT_BROKER_ID:
            return 0, {"clusterName": "C", "brokerName": "b", "nextBrokerId": "1"}, b""
        if command.code in (RequestCode.CONTROLLER_APPLY_BROKER_ID, RequestCode.CONTROLLER_REGISTER_BROKER):
            return 0, {}, b""
        if command.code == RequestCode.BROKER_HEARTBEAT:
            return SILENCE if is_silent else (0, {}, b"")
        return ResponseCode.SYSTEM_ERROR, {}, b""

    server = Scripted(answer)
    async with server.serving():
        values = {
            "brokerName": "b", "brokerClusterName": "C", "enableControllerMode": True, "listenPort": 0,
            "controllerAddr": server.address, "storePathRootDir": str(tmp_path), "httpEnable": False,
            "bindAddress": "127.0.0.1", "mappedFileSizeCommitLog": 1 << 20, "brokerHeartbeatInterval": 10,
            setting: 50,
        }  # fmt: skip
        app = controlled_or_plain(broker_settings(values, use_environment=False))
        starting = asyncio.create_task(app.start())
        try:
            await eventually_async(lambda: len(asked_s) >= 6, "more questions for the leader")
        finally:
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            await app.kill()
    assert min(after - before for before, after in itertools.pairwise(asked_s)) < least_s
