"""A minimal remoting client over a blocking socket, deliberately independent of mqspark.protocol.

It sends simple requests to a name server or broker while a test starts it, gives the crash test acknowledgements that
do not depend on the code under test, and sends the frames of a script: headers in JSON or in RocketMQ's binary form,
requests answered in any order, requests that come from the server.
"""

import json
import socket
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.support.waiting import eventually

UPDATE_AND_CREATE_TOPIC = 17
GET_BROKER_CLUSTER_INFO = 106
SEND_MESSAGE_V2 = 310
PULL_MESSAGE = 11
QUERY_MESSAGE = 12
SEARCH_OFFSET_BY_TIMESTAMP = 29
QUERY_CONSUMER_OFFSET = 14
GET_MAX_OFFSET = 30
GET_MIN_OFFSET = 31
GET_BROKER_RUNTIME_INFO = 28
UPDATE_CONSUMER_OFFSET = 15
UPDATE_AND_CREATE_SUBSCRIPTION_GROUP = 200


RESPONSE, ONEWAY = 1, 2
"""Bits of a command's flag."""
VERSION = 479
SUSPEND, SUBSCRIPTION = 2, 4
"""Bits of a pull's flag (PullSysFlag)."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A frame from a server: an answer, or (``flag`` without RESPONSE) a request."""

    opaque: int
    code: int
    remark: str | None
    ext: dict[str, str]
    body: bytes
    flag: int = RESPONSE
    serialize: str = "JSON"


def request_frame(
    code: int,
    opaque: int,
    ext: Mapping[str, object],
    body: bytes = b"",
    *,
    serialize: str = "JSON",
    flag: int = 0,
    remark: str | None = None,
) -> bytes:
    texts = {name: _text(value) for name, value in ext.items() if value is not None}
    if serialize == "ROCKETMQ":
        header, kind = _binary_header(code, opaque, flag, remark, texts), 1 << 24
    else:
        header, kind = _json_header(code, opaque, flag, remark, texts), 0
    return struct.pack(">II", 4 + len(header) + len(body), kind | len(header)) + header + body


def _json_header(code: int, opaque: int, flag: int, remark: str | None, ext: dict[str, str]) -> bytes:
    fields = {
        "code": code,
        "extFields": ext,
        "flag": flag,
        "language": "JAVA",
        "opaque": opaque,
        "serializeTypeCurrentRPC": "JSON",
        "version": VERSION,
    }
    if remark is not None:
        fields["remark"] = remark
    return json.dumps(fields).encode()


def _binary_header(code: int, opaque: int, flag: int, remark: str | None, ext: dict[str, str]) -> bytes:
    text = (remark or "").encode()
    fields = b"".join(
        struct.pack(">H", len(name.encode()))
        + name.encode()
        + struct.pack(">I", len(value.encode()))
        + value.encode()
        for name, value in ext.items()
    )
    return (
        struct.pack(">HBHiiI", code & 0xFFFF, 0, VERSION, opaque, flag, len(text))
        + text
        + struct.pack(">I", len(fields))
        + fields
    )


def _parse_binary_header(header: bytes) -> dict[str, Any]:
    code, _, _, opaque, flag, size = struct.unpack_from(">hbhiii", header)
    at = 17 + size
    remark = header[17:at].decode() or None
    (size,) = struct.unpack_from(">i", header, at)
    at += 4
    end = at + size
    ext = {}
    while at < end:
        (size,) = struct.unpack_from(">h", header, at)
        name = header[at + 2 : at + 2 + size].decode()
        at += 2 + size
        (size,) = struct.unpack_from(">i", header, at)
        ext[name] = header[at + 4 : at + 4 + size].decode()
        at += 4 + size
    return {"code": code, "opaque": opaque, "flag": flag, "remark": remark, "extFields": ext}


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


class RawConnection:
    """One blocking connection. Requests may be pipelined: write any number, then read as many replies."""

    def __init__(self, address: str, timeout_s: float = 60.0) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._unread = bytearray()
        self._opaque = 0

    def __enter__(self) -> "RawConnection":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def write(self, frames: bytes) -> None:
        self._socket.sendall(frames)

    def read(self) -> Reply:
        """The next frame. Raises ConnectionError when the peer has closed, TimeoutError when nothing arrives."""
        while len(self._unread) < 4:
            self._receive()
        (length,) = struct.unpack_from(">I", self._unread)
        while len(self._unread) < 4 + length:
            self._receive()
        frame = bytes(self._unread[4 : 4 + length])
        del self._unread[: 4 + length]
        kind, header_length = frame[0], struct.unpack(">I", frame[:4])[0] & 0xFFFFFF
        raw = frame[4 : 4 + header_length]
        header = _parse_binary_header(raw) if kind == 1 else json.loads(raw)
        return Reply(
            header["opaque"],
            header["code"],
            header.get("remark"),
            header.get("extFields") or {},
            frame[4 + header_length :],
            header.get("flag", 0),
            "ROCKETMQ" if kind == 1 else "JSON",
        )

    def _receive(self) -> None:
        got = self._socket.recv(1 << 18)
        if not got:
            raise ConnectionResetError("the peer closed the connection")
        self._unread += got

    @property
    def local_address(self) -> str:
        host, port = self._socket.getsockname()[:2]
        return f"{host}:{port}"

    def wait_at_most(self, timeout_s: float) -> None:
        """Set the timeout of reads from now on."""
        self._socket.settimeout(timeout_s)

    def request(self, code: int, body: bytes = b"", /, **ext: object) -> Reply:
        self._opaque += 1
        self.write(request_frame(code, self._opaque, ext, body))
        reply = self.read()
        assert reply.opaque == self._opaque, f"expected reply {self._opaque}, got {reply.opaque}"
        return reply

    def send(self, topic: str, body: bytes, queue_id: int = 0, properties: str = "", **more: object) -> Reply:
        """A message that has to be taken. ``more``: other fields, by their letters."""
        reply = self.request(SEND_MESSAGE_V2, body, **send_fields(topic, queue_id, properties, **more))
        assert reply.code == 0, (topic, properties, reply)
        return reply

    def pull(
        self, topic: str, queue_id: int, offset: int, *, group: str = "readers", count: int = 32
    ) -> Reply:
        return self.request(PULL_MESSAGE, **pull_fields(topic, queue_id, offset, group=group, count=count))


def pull_fields(
    topic: str, queue_id: int, offset: int, *, group: str = "readers", count: int = 32, **more: object
) -> dict[str, object]:
    """A pull of all tags, which is answered at once."""
    return {
        "consumerGroup": group,
        "topic": topic,
        "queueId": queue_id,
        "queueOffset": offset,
        "maxMsgNums": count,
        "sysFlag": SUBSCRIPTION,
        "commitOffset": 0,
        "suspendTimeoutMillis": 0,
        "subscription": "*",
        "subVersion": 0,
        "expressionType": "TAG",
        **more,
    }


def send_fields(topic: str = "T", queue_id: int = 0, properties: str = "", **more: object) -> dict[str, str]:
    """A header of SEND_MESSAGE_V2, which has letters for names."""
    fields = {
        "a": "PG",
        "b": topic,
        "c": "TBW102",
        "d": 4,
        "e": queue_id,
        "f": 0,
        "g": 1_700_000_000_000,
        "h": 0,
    }
    fields |= {"i": properties, "j": 0, "k": False, "m": False, **more}
    return {name: _text(value) for name, value in fields.items()}


def topic_fields(topic: str, queues: int = 1, **more: str) -> dict[str, str]:
    """A header that makes a topic (CreateTopicRequestHeader)."""
    return {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": str(queues),
        "writeQueueNums": str(queues),
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
        **more,
    }


def subscription(topic: str, expression: str = "*", version: int = 1, **more: object) -> dict[str, object]:
    return {"topic": topic, "subString": expression, "subVersion": version, **more}


def heartbeat_body(
    client: str,
    groups: Mapping[str, Sequence[Mapping[str, object]]] | None = None,
    *,
    producers: Iterable[str] = (),
    model: str = "CLUSTERING",
    **more: object,
) -> bytes:
    """What a client says of itself. ``groups``: what its consumers subscribe to."""
    consumers = [
        {
            "groupName": name,
            "consumeType": "CONSUME_PASSIVELY",
            "messageModel": model,
            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
            "unitMode": False,
            "subscriptionDataSet": subscriptions,
        }
        for name, subscriptions in (groups or {}).items()
    ]
    members = {"consumerDataSet": consumers, "producerDataSet": [{"groupName": name} for name in producers]}
    return json.dumps({"clientID": client, **members, **more}).encode()


def ask(address: str, code: int, body: bytes = b"", /, **ext: object) -> Reply:
    """Send one request on a new connection."""
    with RawConnection(address) as connection:
        return connection.request(code, body, **ext)


def runtime_info(broker: str) -> dict[str, str]:
    """What a broker reports of itself, by RocketMQ's names. RocketMQ's has nothing before its first sample."""
    reply = eventually(lambda: answer if (answer := ask(broker, GET_BROKER_RUNTIME_INFO)).code == 0 else None)
    table: dict[str, str] = json.loads(reply.body)["table"]
    return table


def log_end(broker: str) -> int:
    """The end of a broker's commit log, in bytes."""
    return int(runtime_info(broker)["commitLogMaxOffset"])
