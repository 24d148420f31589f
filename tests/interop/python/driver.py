"""The unmodified gRPC client of RocketMQ 5 for Python, driven from a test as java/GrpcDriver.java is. It speaks TLS
with ``tls``, and then trusts the authorities in GRPC_DEFAULT_SSL_ROOTS_FILE_PATH.

One JSON request a line on stdin, one JSON reply a line on stdout. Imports nothing of the project but its neighbour.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

# An output of its own: what libraries print to standard output must not come between.
replies = os.fdopen(os.dup(1), "wb")
os.dup2(2, 1)

from rocketmq import (  # noqa: E402
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    LitePushConsumer,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)
from rocketmq.grpc_protocol import FilterType  # noqa: E402
from starts import started  # noqa: E402

objects: dict[int, Any] = {}
handles = itertools.count(1)
writing = threading.Lock()
heard: dict[int, Heard] = {}
checked: dict[int, Checker] = {}


def keep(made: Any) -> int:
    handle = next(handles)
    objects[handle] = made
    return handle


def running(make: Callable[[], Any]) -> dict[str, int]:
    return {"handle": keep(started(make))}


def configured(endpoints: str) -> ClientConfiguration:
    return ClientConfiguration(endpoints, Credentials(), request_timeout=10)


def filters(subscriptions: dict[str, list[str]]) -> dict[str, Any]:
    return {
        topic: FilterExpression(expression, FilterType.SQL if kind == "SQL92" else FilterType.TAG)
        for topic, (kind, expression) in subscriptions.items()
    }


def message(given: dict[str, Any]) -> Any:
    made = Message()
    made.topic, made.body = given["topic"], base64.b64decode(given["body"])
    for field, name in (
        ("tag", "tag"),
        ("group", "message_group"),
        ("lite_topic", "lite_topic"),
        ("priority", "priority"),
    ):
        if field in given:
            setattr(made, name, given[field])
    if "delay_ms" in given:
        made.delivery_timestamp = int(time.time() + given["delay_ms"] / 1000)
    if "keys" in given:
        Message.keys.fset(made, *given["keys"])
    for name, value in given.get("properties", {}).items():
        made.add_property(name, value)
    return made


def shown(got: Any) -> dict[str, Any]:
    return {
        "id": got.message_id,
        "topic": got.topic,
        "lite_topic": got.lite_topic,
        "body": base64.b64encode(got.body).decode(),
        "tag": got.tag,
        "keys": sorted(got.keys),
        "group": got.message_group,
        "delivery_timestamp": got.delivery_timestamp,
        "properties": got.properties,
        "born_timestamp": got.born_timestamp,
        "attempt": got.delivery_attempt,
    }


class Checker(TransactionChecker):
    def __init__(self, resolution: str) -> None:
        self.resolution, self.bodies = TransactionResolution.Value(resolution), list[str]()

    def check(self, message: Any) -> Any:
        self.bodies.append(base64.b64encode(message.body).decode())
        return self.resolution


class Heard(MessageListener):
    """What a push consumer gets, in the order of delivery; it fails each message so often."""

    def __init__(self, failures: int) -> None:
        self.failures, self.messages = failures, list[Any]()
        self._failed: Counter[str] = Counter()
        self._lock = threading.Lock()

    def consume(self, message: Any) -> Any:
        with self._lock:
            self.messages.append(message)
            self._failed[message.message_id] += 1
            failed = self._failed[message.message_id] <= self.failures
        return ConsumeResult.FAILURE if failed else ConsumeResult.SUCCESS

    def take(self, count: int, timeout_ms: int) -> list[Any]:
        """So many messages, or what has come when the time is over."""
        deadline = time.monotonic() + timeout_ms / 1000
        while len(self.messages) < count and time.monotonic() < deadline:
            time.sleep(0.02)
        with self._lock:
            taken, self.messages = self.messages[:count], self.messages[count:]
        return taken


def producer_start(endpoints: str, topics: list[str], tls: bool = False, checker: str | None = None) -> Any:
    checks = Checker(checker) if checker else None
    made = running(lambda: Producer(configured(endpoints), topics, checks, tls_enable=tls))
    if checks is not None:
        checked[made["handle"]] = checks
    return made


def receipt(sent: Any) -> dict[str, Any]:
    return {"id": sent.message_id, "recall_handle": sent.recall_handle}


def producer_send(handle: int, messages: list[dict[str, Any]], together: bool = False) -> Any:
    """One message after the other, or all at once with ``together``."""
    producer = objects[handle]
    if together:
        return [receipt(each.result()) for each in [producer.send_async(message(one)) for one in messages]]
    return [receipt(producer.send(message(one))) for one in messages]


def producer_recall(handle: int, topic: str, recall_handle: str) -> Any:
    return objects[handle].recall_message(topic, recall_handle)


def producer_transact(handle: int, end: str, **given: Any) -> Any:
    """A message in a transaction that ends with commit, rollback or, for now, not at all."""
    producer = objects[handle]
    transaction = producer.begin_transaction()
    sent = producer.send(message(given["message"]), transaction)
    if end == "commit":
        transaction.commit()
    elif end == "rollback":
        transaction.rollback()
    return receipt(sent)


def producer_checked(handle: int) -> list[str]:
    return checked[handle].bodies


def simple_start(
    endpoints: str, group: str, await_ms: int, subscriptions: dict[str, list[str]], tls: bool = False
) -> Any:
    wait_s = await_ms // 1000
    return running(
        lambda: SimpleConsumer(
            configured(endpoints), group, filters(subscriptions), await_duration=wait_s, tls_enable=tls
        )
    )


def simple_receive(handle: int, max: int, invisible_ms: int) -> list[Any]:
    """An empty list, too, until RocketMQ's proxy has the client's settings, for which this client does not wait."""
    try:
        found = objects[handle].receive(max, invisible_ms // 1000) or []
    except Exception as error:
        if '"settings" is null' not in str(error):
            raise
        time.sleep(0.2)
        return []
    return [{**shown(each), "view": keep(each)} for each in found]


def simple_ack(handle: int, view: int) -> None:
    objects[handle].ack(objects.pop(view))


def simple_change(handle: int, view: int, invisible_ms: int) -> None:
    objects[handle].change_invisible_duration(objects[view], invisible_ms // 1000)


def push_start(endpoints: str, group: str, subscriptions: dict[str, list[str]], failures: int = 0) -> Any:
    listener = Heard(failures)
    made = running(lambda: PushConsumer(configured(endpoints), group, listener, filters(subscriptions)))
    heard[made["handle"]] = listener
    return made


def lite_start(endpoints: str, topic: str, group: str) -> Any:
    listener = Heard(0)
    made = running(lambda: LitePushConsumer(configured(endpoints), group, topic, listener))
    heard[made["handle"]] = listener
    return made


def lite_subscribe(handle: int, topic: str) -> None:
    objects[handle].subscribe_lite(topic)


def push_take(handle: int, count: int, timeout_ms: int) -> list[Any]:
    return [shown(each) for each in heard[handle].take(count, timeout_ms)]


def stop(handle: int) -> None:
    objects.pop(handle).shutdown()


VERBS: dict[str, Callable[..., Any]] = {
    "producer.start": producer_start,
    "producer.send": producer_send,
    "producer.recall": producer_recall,
    "producer.transact": producer_transact,
    "producer.checked": producer_checked,
    "simple.start": simple_start,
    "simple.receive": simple_receive,
    "simple.ack": simple_ack,
    "simple.change": simple_change,
    "push.start": push_start,
    "push.take": push_take,
    "lite.start": lite_start,
    "lite.subscribe": lite_subscribe,
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
