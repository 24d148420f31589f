"""A listener of gRPC without sockets: transports are lists of bytes, and a client says frames."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from mqspark_server.net.grpc.connectionturns import ConnectionTurns
from mqspark_server.net.grpc.grpcconnection import GrpcConnection
from mqspark_server.net.grpc.grpclistener import GrpcListener
from mqspark_server.net.grpc.messagereader import message_bytes
from mqspark_server.net.grpc.servedcalls import GrpcMethod
from mqspark_server.net.guards import ConnectionLimits
from mqspark_server.net.http2.http2frames import DATA, END_STREAM, GOAWAY, HEADERS, RST_STREAM
from tests.support.wires import Wire
from tests.unit.http2_kit import BEGIN, Sent, data, frames_of, request, request_block

CALLS: dict[str, Any] = {"name": "gRPC", "max_message_bytes": 100_000, "max_calls": 1_000}
LIMITS = ConnectionLimits(high_water_bytes=1 << 20, max_stranger_bytes=1 << 20)


class Text:
    """A message: its text."""

    def __init__(self, text: bytes) -> None:
        self.text = text

    def SerializeToString(self) -> bytes:
        return self.text


def parse(data: bytes) -> Text:
    if data == b"wrong":
        raise ValueError(data)
    return Text(data)


def method(serve: Any, *, takes_stream: bool = False) -> GrpcMethod:
    return GrpcMethod("Method", parse, serve, takes_stream)


class GrpcClientBench:
    """A client that has begun a connection to ``listener``."""

    def __init__(self, listener: GrpcListener, *, begin: bytes = BEGIN) -> None:
        self.wire = Wire()
        self.connection = GrpcConnection(listener)
        self.connection.connection_made(self.wire)
        self._streams = itertools.count(1, 2)
        self._seen = 0
        self.frames: list[Sent] = []
        self.say(begin)

    def say(self, said: bytes) -> None:
        self.connection.data_received(said)

    def call(self, *messages: bytes, ended: bool = True, path: str = "/Method", **fields: str) -> int:
        """Begin a call; returns its stream."""
        stream = next(self._streams)
        block = request_block(**{"content_type": "application/grpc", **fields}).replace(
            b"\x0f/service/Method", bytes((len(path),)) + path.encode()
        )
        said = request(stream, block=block, ended=ended and not messages)
        for number, message in enumerate(messages, 1):
            said += data(stream, message_bytes(message), ended=ended and number == len(messages))
        self.say(said)
        return stream

    async def hear(self) -> list[Sent]:
        """All that the server has said so far, once it is at rest."""
        for _ in range(30):
            await asyncio.sleep(0)
        written = self.wire.written()
        self.frames += frames_of(written[self._seen :])
        self._seen = len(written)
        return self.frames

    async def answers(self, stream: int) -> list[bytes]:
        await self.hear()
        body = b"".join(each.payload for each in self.frames if (each.kind, each.stream) == (DATA, stream))
        found = []
        while body:
            size = int.from_bytes(body[1:5], "big")
            found.append(body[5 : 5 + size])
            body = body[5 + size :]
        return found

    async def status(self, stream: int) -> tuple[int, str] | None:
        """How the call has ended; None: it has not."""
        await self.hear()
        for each in self.frames:
            if each.kind == HEADERS and each.stream == stream and each.flags & END_STREAM:
                fields = each.fields
                return int(fields.get("grpc-status", fields.get(":status", "-1"))), fields.get(
                    "grpc-message", ""
                )
        return None

    def resets(self) -> list[tuple[int, int]]:
        return [(each.stream, each.number) for each in self.frames if each.kind == RST_STREAM]

    def goaways(self) -> list[int]:
        """The last streams that are served."""
        return [int.from_bytes(each.payload[:4], "big") for each in self.frames if each.kind == GOAWAY]

    def hang_up(self) -> None:
        self.wire.close()
        self.connection.connection_lost(None)


class UnhurriedTurns(ConnectionTurns):
    """They have time for all that connections read, however slow the machine is."""

    def may_read(self) -> bool:
        return True


def listener_of(methods: Iterable[tuple[str, GrpcMethod]], **given: Any) -> GrpcListener:
    """``given``: ConnectionLimits, and what a listener takes beside these."""
    limits = {name: given.pop(name) for name in ConnectionLimits.__slots__ if name in given}
    listener = GrpcListener(dict(methods), None, **CALLS | given, limits=replace(LIMITS, **limits))
    listener.turns = UnhurriedTurns(listener.loop)
    return listener
