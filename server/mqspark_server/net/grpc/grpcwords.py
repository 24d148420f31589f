"""How gRPC is written in the fields of HTTP/2 (PROTOCOL-HTTP2 of grpc): codes, timeouts, heads and trailers."""

from __future__ import annotations

from enum import IntEnum
from urllib.parse import quote

from mqspark_server.net.http2.headerblocks import Field, literal_block

CONTENT_TYPE = "application/grpc"
MAX_TEXT = 1_024
"""Letters of the text of a failure."""
_UNITS_S = {"H": 3_600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_MAX_DIGITS = 8
_SAFE = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")


class GrpcCode(IntEnum):
    """How a call ends (statuscodes of grpc)."""

    OK = 0
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


class GrpcAbort(Exception):
    """The call ends with this code and text."""

    def __init__(self, code: GrpcCode, text: str) -> None:
        super().__init__(code, text)  # both, or it could not be pickled
        self.code = code
        self.text = text

    def __str__(self) -> str:
        return f"{self.code.name}: {self.text}"


_HEAD: tuple[Field, ...] = ((":status", "200"), ("content-type", CONTENT_TYPE))
HEAD = literal_block(_HEAD)
"""What an answer begins with."""
GOOD_END = literal_block([("grpc-status", "0")])


def _end(code: GrpcCode, text: str) -> tuple[Field, ...]:
    shown = quote(text[:MAX_TEXT], safe=_SAFE)
    return ("grpc-status", str(int(code))), ("grpc-message", shown), ("grpc-accept-encoding", "identity")


def end_block(code: GrpcCode, text: str) -> bytes:
    """The trailers of an answer that fails."""
    return literal_block(_end(code, text))


def failure_block(code: GrpcCode, text: str) -> bytes:
    """The whole answer to a call that fails before it is answered."""
    return literal_block([*_HEAD, *_end(code, text)])


def no_grpc_block(status: int) -> bytes:
    """The whole answer to a request that is no call."""
    return literal_block([(":status", str(status)), ("content-type", CONTENT_TYPE)])


def timeout_s(text: str) -> float:
    """The value of ``grpc-timeout`` in seconds. Raises ValueError."""
    digits, unit = text[:-1], text[-1:]
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= _MAX_DIGITS and unit in _UNITS_S):
        raise ValueError(f"grpc-timeout: {text[:20]!r}")
    return int(digits) * _UNITS_S[unit]
