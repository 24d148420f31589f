"""The unmodified gRPC client of RocketMQ 5 for Python, driven from a test as java/Driver.java is. It speaks TLS with
``tls``, and then trusts the authorities in GRPC_DEFAULT_SSL_ROOTS_FILE_PATH.

One JSON request a line on stdin, one JSON reply a line on stdout. Imports nothing of the project.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

# Of its own: what libraries print to standard output must not come between.
replies = os.fdopen(os.dup(1), "wb")
os.dup2(2, 1)

from rocketmq import ClientConfiguration, Credentials, FilterExpression, Message, Producer, SimpleConsumer  # noqa: E402

objects: dict[int, Any] = {}
handles = itertools.count(1)
writing = threading.Lock()


def keep(made: Any) -> dict[str, int]:
    made.startup()
    handle = next(handles)
    objects[handle] = made
    return {"handle": handle}


def configured(endpoints: str) -> ClientConfiguration:
    return ClientConfiguration(endpoints, Credentials(), request_timeout=10)


def producer_start(endpoints: str, topics: list[str], tls: bool = False) -> Any:
    return keep(Producer(configured(endpoints), topics, tls_enable=tls))


def producer_send(handle: int, topic: str, body: str, tag: str) -> Any:
    made = Message()
    made.topic, made.body, made.tag = topic, base64.b64decode(body), tag
    return {"message_id": objects[handle].send(made).message_id}


def simple_start(endpoints: str, group: str, topic: str, tls: bool = False) -> Any:
    return keep(
        SimpleConsumer(
            configured(endpoints), group, {topic: FilterExpression()}, await_duration=5, tls_enable=tls
        )
    )


def simple_receive(handle: int, most: int) -> Any:
    """Receive and acknowledge."""
    found = objects[handle].receive(most, 60) or []
    for each in found:
        objects[handle].ack(each)
    return [
        {"body": base64.b64encode(each.body).decode(), "tag": each.tag, "message_id": each.message_id}
        for each in found
    ]


def stop(handle: int) -> None:
    objects.pop(handle).shutdown()


VERBS: dict[str, Callable[..., Any]] = {
    "producer.start": producer_start,
    "producer.send": producer_send,
    "simple.start": simple_start,
    "simple.receive": simple_receive,
    "stop": stop,
}


def reply(answer: dict[str, Any]) -> None:
    line = json.dumps(answer).encode() + b"\n"
    with writing:
        replies.write(line)
        replies.flush()


def serve(request: dict[str, Any]) -> None:
    try:
        reply({"id": request["id"], "result": VERBS[request["do"]](**request["with"])})
    except Exception as error:  # whatever it is, the test has to hear of it
        failure = {"type": type(error).__name__, "code": -1, "text": str(error)}
        reply({"id": request["id"], "error": failure})


reply({"id": 0, "result": "ready"})
for line in sys.stdin:
    threading.Thread(target=serve, args=(json.loads(line),), daemon=True).start()
os._exit(0)  # its threads are at their long polls
