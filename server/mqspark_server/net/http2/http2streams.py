"""Requests of HTTP/2, their streams, and what a connection reports of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from mqspark_server.net.http2.headerblocks import ReadField


class Malformed(ValueError):
    """A request that is none: its stream is reset (RFC 9113, 8.1.1)."""


class Fields(dict[str, str]):
    """By their names. Requests of one connection whose heads are the same share them."""

    __slots__ = ("meaning",)

    def __init__(self) -> None:
        self.meaning: Any = None
        """What those above make of them, to be made once."""


class RequestHead:
    """The fields of a request, checked (RFC 9113, 8.2 and 8.3). Raises Malformed."""

    __slots__ = ("content_length", "fields", "meaning", "method", "path", "scheme", "size")

    def __init__(self, given: Sequence[ReadField]) -> None:
        pseudo: dict[str, str] = {}
        fields = Fields()
        """A name that is there more than once has all values, with commas between them (RFC 9110, 5.3)."""
        size = 0
        for name, value, counts, is_sound in given:
            size += counts
            if not is_sound:
                raise Malformed(f"{name!r}: {value!r}")
            if name[0] != ":":
                fields[name] = f"{fields[name]},{value}" if name in fields else value
            elif fields or name in pseudo:
                raise Malformed(f"{name} twice, or behind other fields")
            else:
                pseudo[name] = value
        try:
            self.method, self.scheme, self.path = pseudo[":method"], pseudo[":scheme"], pseudo[":path"]
        except KeyError as missing:
            raise Malformed(f"no {missing}") from None
        known = 4 if ":authority" in pseudo else 3
        if not self.path or len(pseudo) != known:
            raise Malformed("no path, or a pseudo-field that no request has")
        length = fields.get("content-length", "")
        if length and not (length.isascii() and length.isdecimal() and len(length) < 16):
            raise Malformed("a content-length that is no number")
        self.content_length = int(length) if length else -1
        """-1: not said."""
        self.fields = fields
        self.size = size
        self.meaning: Any = None
        """What the layer above makes of it, to be made once: clients repeat their requests' heads."""


class Http2Stream(Struct, eq=False):
    """One request and its answer."""

    id: int
    left: int
    """Bytes of DATA that have to come; below 0: any."""
    send_window: int
    receive_window: int
    remote_ended: bool
    local_ended: bool = False
    owed: int = 0
    """Bytes that have been used, and are not in the window again yet."""
    unsent: deque[memoryview] | None = None
    """What waits for the peer to open windows; None: nothing does."""
    unsent_bytes: int = 0
    last_block: bytes | None = None
    """The trailers behind ``unsent``."""
    call: Any = None
    """What the layer above makes of it."""


class RequestBegun(Struct, gc=False):
    stream: Http2Stream
    head: RequestHead | None
    """None: its fields are too long."""
    ended: bool
    data: bytes = b""
    """All of the request, if it has ended in the same read."""


class DataCame(Struct, gc=False):
    stream: Http2Stream
    data: bytes
    ended: bool


class RequestEnded(Struct, gc=False):
    """The stream is gone: reset by the peer, or because of what it sent."""

    stream: Http2Stream
    code: int


class WindowOpened(Struct, gc=False):
    """All of a stream's answers that waited for windows are on their way."""

    stream: Http2Stream


class PingAnswered(Struct, gc=False):
    payload: bytes


Event = RequestBegun | DataCame | RequestEnded | WindowOpened | PingAnswered
