"""Brokers that refuse the same thing again and again: a line when it begins and one when it is over, not one a second.
Scripted servers over real sockets."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from mqspark.aio import ClientOptions, LitePullConsumer, MessageQueue
from mqspark.client.consumer import queuecalls
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command
from tests.support.scripted import Answer, Scripted, cluster
from tests.support.waiting import eventually_async

FOUND = {"nextBeginOffset": "0", "minOffset": "0", "maxOffset": "0", "suggestWhichBrokerId": "0"}
QUICK = ClientOptions(heartbeat_interval_ms=20, route_interval_ms=20)


class Moody:
    """A broker that refuses requests of these codes while it is told to."""

    def __init__(self, *codes: int) -> None:
        self.codes = codes
        self.refuses = True
        self.refused = 0

    def __call__(self, command: Command) -> Answer:
        if self.refuses and command.code in self.codes:
            self.refused += 1
            return ResponseCode.NO_PERMISSION, None, b""
        if command.code in (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE):
            return ResponseCode.PULL_NOT_FOUND, FOUND, b""
        if command.code == RequestCode.GET_CONSUMER_LIST_BY_GROUP:
            return ResponseCode.NO_PERMISSION, None, b""
        return 0, {"offset": "0"}, b"{}"


async def told(
    caplog: pytest.LogCaptureFixture, moody: Moody, open_consumer: Callable[[str], Any]
) -> list[str]:
    """The lines of a client whose broker refuses 20 times, and then no more."""
    async with cluster(a=Scripted(moody)) as address:
        consumer = open_consumer(address)
        async with consumer:
            if isinstance(consumer, LitePullConsumer):
                await consumer.assign([MessageQueue("T", "a", 0)])
            await eventually_async(lambda: moody.refused >= 20)
            moody.refuses = False
            await eventually_async(lambda: "again" in caplog.text)
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


async def test_refused_pulls(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queuecalls, "_ERROR_PAUSE_S", 0.01)
    moody = Moody(RequestCode.LITE_PULL_MESSAGE)
    lines = await told(caplog, moody, lambda address: LitePullConsumer(address, group="g"))
    assert [line.partition(" ")[0] for line in lines] == ["cannot", "MessageQueue(topic='T',"]
    assert "is pulled again for g" in lines[1]


async def test_refused_heartbeats(caplog: pytest.LogCaptureFixture) -> None:
    moody = Moody(RequestCode.HEART_BEAT)
    lines = await told(caplog, moody, lambda address: LitePullConsumer(address, group="g", options=QUICK))
    assert len(lines) == 2
    assert lines[0].startswith("heartbeat to ")
    assert "are taken again" in lines[1]
