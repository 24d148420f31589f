"""A minimal remoting client: JSON headers over a blocking socket, on purpose not made of mqspark.protocol.

It asks a name server or broker simple questions while a test starts it, and gives the crash test
acknowledgements that do not depend on the code under test.
"""

import json
import socket
import struct
from dataclasses import dataclass
from types import TracebackType

UPDATE_AND_CREATE_TOPIC = 17
GET_BROKER_CLUSTER_INFO = 106
SEND_MESSAGE_V2 = 310
PULL_MESSAGE = 11
QUERY_MESSAGE = 12
SEARCH_OFFSET_BY_TIMESTAMP = 29
QUERY_CONSUMER_OFFSET = 14
GET_MAX_OFFSET = 30
GET_MIN_OFFSET = 31
UPDATE_CONSUMER_OFFSET = 15
UPDATE_AND_CREATE_SUBSCRIPTION_GROUP = 200


@dataclass(frozen=True, slots=True)
class Reply:
    opaque: int
    code: int
    remark: str | None
    ext: dict[str, str]
    body: bytes


def request_frame(code: int, opaque: int, ext: dict[str, object], body: bytes = b"") -> bytes:
    header = json.dumps(
        {
            "code": code,
            "extFields": {name: _text(value) for name, value in ext.items()},
            "flag": 0,
            "language": "JAVA",
            "opaque": opaque,
            "serializeTypeCurrentRPC": "JSON",
            "version": 479,
        }
    ).encode()
    return struct.pack(">II", 4 + len(header) + len(body), len(header)) + header + body


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


class RawConnection:
    """One blocking connection. Requests may be pipelined: write any number, then read as many replies."""

    def __init__(self, address: str, timeout_s: float = 10.0) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._stream = self._socket.makefile("rb")
        self._opaque = 0

    def __enter__(self) -> "RawConnection":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._stream.close()
        self._socket.close()

    def write(self, frames: bytes) -> None:
        self._socket.sendall(frames)

    def read(self) -> Reply:
        """The next reply. Raises ConnectionError when the peer is gone."""
        length = struct.unpack(">I", self._exactly(4))[0]
        frame = self._exactly(length)
        header_length = struct.unpack(">I", frame[:4])[0] & 0xFFFFFF
        header = json.loads(frame[4 : 4 + header_length])
        return Reply(
            header["opaque"],
            header["code"],
            header.get("remark"),
            header.get("extFields") or {},
            frame[4 + header_length :],
        )

    def _exactly(self, count: int) -> bytes:
        got = self._stream.read(count)
        if got is None or len(got) < count:
            raise ConnectionResetError("the peer closed the connection")
        return got

    def request(self, code: int, body: bytes = b"", /, **ext: object) -> Reply:
        self._opaque += 1
        self.write(request_frame(code, self._opaque, ext, body))
        reply = self.read()
        assert reply.opaque == self._opaque, f"expected reply {self._opaque}, got {reply.opaque}"
        return reply


def ask(address: str, code: int, body: bytes = b"", /, **ext: object) -> Reply:
    """One request on a connection of its own."""
    with RawConnection(address) as connection:
        return connection.request(code, body, **ext)
