"""Times in milliseconds, as brokers have them, from and to those of Protobuf.

A client may send seconds and nanoseconds that are no time, and a producer of remoting may have stored a time that
Protobuf does not have (its years are 1 to 9999).
"""

from __future__ import annotations

from google.protobuf.timestamp_pb2 import Timestamp

from mqspark_server.proxy import messaging_pb2 as pb
from mqspark_server.proxy.grpcstatus import GrpcRefusal

FIRST_S, LAST_S = -62_135_596_800, 253_402_300_799
_NANOS = 1_000_000_000


def millis_of(given: Timestamp, code: pb.Code = pb.BAD_REQUEST) -> int:
    """Raises GrpcRefusal with the code for what is no time."""
    if not FIRST_S <= given.seconds <= LAST_S or not 0 <= given.nanos < _NANOS:
        raise GrpcRefusal(code, f"{given.seconds} s and {given.nanos} ns are no time")
    return int(given.seconds * 1000 + given.nanos // 1_000_000)


def set_instant(made: Timestamp, millis: int) -> None:
    """To the nearest one that there is."""
    made.seconds, rest_ms = divmod(min(max(millis, FIRST_S * 1000), LAST_S * 1000), 1000)
    made.nanos = rest_ms * 1_000_000
