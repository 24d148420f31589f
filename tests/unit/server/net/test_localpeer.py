"""Requests of clients in the server's process are those that could come out of a socket."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from mqspark.errors import FrameTooLarge
from mqspark.protocol.codes import RequestCode
from mqspark.protocol.connection import MAX_HEADER_BYTES
from mqspark.protocol.headers.admin_headers import GetTopicConfigRequestHeader
from mqspark.protocol.session import Session
from mqspark_server.net.deadlines import Deadlines
from mqspark_server.net.localpeer import LocalPeer


class Server:
    """Its core notes what comes."""

    def __init__(self) -> None:
        self.core = self
        self.loop = asyncio.get_running_loop()
        self.deadlines: Deadlines[Any] = Deadlines(self.loop, lambda waiting: waiting.expire())
        self.came: list[int] = []

    def received(self, session: Session, commands: Any) -> None:
        self.came += [each.code for each in commands]

    def schedule(self) -> None: ...

    def close_session(self, session: Session) -> None: ...


@pytest.mark.parametrize("is_typed", [True, False])
async def test_a_header_is_no_longer_than_that_of_a_frame(*, is_typed: bool) -> None:
    server = Server()
    peer = LocalPeer(cast(Any, server))
    peer.session = Session(1, "127.0.0.1", 0, [])
    header = GetTopicConfigRequestHeader(topic="T" * MAX_HEADER_BYTES)
    with pytest.raises(FrameTooLarge):
        await peer.request(RequestCode.GET_TOPIC_CONFIG, header if is_typed else {"topic": header.topic})
    assert server.came == []
    with pytest.raises(TimeoutError):
        await peer.request(RequestCode.GET_TOPIC_CONFIG, {"topic": "T"}, timeout_s=0.01)
    assert server.came == [RequestCode.GET_TOPIC_CONFIG]
