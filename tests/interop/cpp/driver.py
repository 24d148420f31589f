"""The unmodified C++ client through its Python binding, driven from a test as java/Driver.java is.

One JSON request a line on stdin, one JSON reply a line on stdout. Imports nothing of the project. The binding has
text bodies only, and neither transactions nor hooks; a listener that wants a message again returns so.
"""

from __future__ import annotations

import base64
import ctypes
import itertools
import json
import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from rocketmq.client import Message, Producer, PullConsumer, PushConsumer, RecvMessage, SendResult
from rocketmq.exceptions import ffi_check
from rocketmq.ffi import MessageModel, _CConsumeStatus, _CMessageQueue, _CPullStatus, dll

objects: dict[int, Any] = {}
handles = itertools.count(1)
ROUTE_TIMEOUT_S = 10
writing = threading.Lock()
# An output of its own: what the library prints to standard output must not come between.
replies = os.fdopen(os.dup(1), "wb")
os.dup2(2, 1)


def keep(made: Any) -> dict[str, int]:
    handle = next(handles)
    objects[handle] = made
    return {"handle": handle}


def shown(got: RecvMessage) -> dict[str, Any]:
    def text(value: bytes | None) -> str:
        return (value or b"").decode()

    names = ("UNIQ_KEY", "RETRY_TOPIC", "ORIGIN_MESSAGE_ID", "DELAY", "failures", "key")
    return {
        "topic": got.topic,
        "body": base64.b64encode(got.body).decode(),
        "tags": text(got.tags),
        "keys": text(got.keys),
        "msg_id": got.id,
        "queue_id": got.queue_id,
        "queue_offset": got.queue_offset,
        "physical_offset": got.commit_log_offset,
        "reconsume_times": got.reconsume_times,
        "store_size": got.store_size,
        "born_timestamp": got.born_timestamp,
        "store_timestamp": got.store_timestamp,
        "properties": {name: text(got[name]) for name in names if got[name]},
    }


# ---- producing


def producer_start(
    namesrv: str, group: str, compress_over: int | None = None, access_key: str = "", secret_key: str = ""
) -> Any:
    made = Producer(group, timeout=10_000, max_message_size=4 << 20)
    made.set_namesrv_addr(namesrv)
    if access_key:
        made.set_session_credentials(access_key, secret_key, "")
    ffi_check(dll.SetProducerInstanceName(made._handle, f"driver{time.monotonic_ns()}".encode()))
    if compress_over is not None:
        # The binding has no name for this.
        dll.SetProducerCompressMsgBodyOverHowmuch(ctypes.c_void_p(made._handle), compress_over)
    made.start()
    return keep(made)


def message(given: dict[str, Any]) -> Message:
    made = Message(given["topic"])
    made.set_body(base64.b64decode(given["body"]))
    if "tags" in given:
        made.set_tags(given["tags"])
    if "keys" in given:
        made.set_keys(given["keys"])
    if "delay_level" in given:
        made.set_delay_time_level(given["delay_level"])
    for name, value in given.get("properties", {}).items():
        made.set_property(name, value)
    return made


def outcome(sent: SendResult) -> dict[str, Any]:
    return {"status": int(sent.status), "msg_id": sent.msg_id, "queue_offset": sent.offset}


def producer_send(handle: int, given: dict[str, Any], mode: str = "sync", shard: int = 0) -> Any:
    producer: Producer = objects[handle]
    made = message(given)
    if mode == "oneway":
        return producer.send_oneway(made)
    if mode == "oneway_orderly":
        return producer.send_oneway_orderly(made, shard)
    if mode == "orderly":
        return outcome(producer.send_orderly(made, shard))
    if mode == "async":
        answers: queue.Queue[Any] = queue.Queue()
        producer.send_async(made, answers.put, answers.put)
        answer = answers.get(timeout=20)
        if isinstance(answer, Exception):
            raise answer
        return outcome(answer)
    deadline = time.monotonic() + ROUTE_TIMEOUT_S
    while True:
        try:
            return outcome(producer.send_sync(made))
        except Exception as error:
            # The client says so at once when another of its threads is asking for the same route.
            if "No route info" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def producer_send_batch(handle: int, messages: list[dict[str, Any]]) -> Any:
    return outcome(objects[handle].send_batch([message(one) for one in messages]))


# ---- consuming


class Push:
    """A consumer and what its listener was given. A message's property `failures` says how often it fails."""

    def __init__(
        self,
        namesrv: str,
        group: str,
        subscriptions: dict[str, str],
        orderly: bool,
        model: str,
        access_key: str,
        secret_key: str,
    ) -> None:
        self.received: queue.Queue[dict[str, Any]] = queue.Queue()
        self._lock = threading.Lock()
        self._seen: dict[str, int] = {}
        self._consumer = PushConsumer(group, orderly=orderly, message_model=MessageModel[model])
        self._consumer.set_namesrv_addr(namesrv)
        self._consumer.set_instance_name(f"driver{time.monotonic_ns()}")
        self._consumer.set_thread_count(4)
        if access_key:
            self._consumer.set_session_credentials(access_key, secret_key, "")
        for topic, expression in subscriptions.items():
            ffi_check(dll.Subscribe(self._consumer._handle, topic.encode(), expression.encode()))
        self._consumer._register_callback(self._listen)
        self._consumer.start()

    def _listen(self, _: Any, given: int) -> int:
        got = shown(RecvMessage(given))
        with self._lock:
            # In order the library does not count how often a message has failed.
            failed = self._seen.get(got["msg_id"], 0)
            self._seen[got["msg_id"]] = failed + 1
        self.received.put(got)
        if failed < int(got["properties"].get("failures", 0)):
            return int(_CConsumeStatus.RECONSUME_LATER)
        return int(_CConsumeStatus.CONSUME_SUCCESS)


def push_start(
    namesrv: str,
    group: str,
    subscriptions: dict[str, str],
    orderly: bool = False,
    model: str = "CLUSTERING",
    access_key: str = "",
    secret_key: str = "",
) -> Any:
    return keep(Push(namesrv, group, subscriptions, orderly, model, access_key, secret_key))


def push_take(handle: int, count: int, timeout_ms: int) -> list[dict[str, Any]]:
    taken: list[dict[str, Any]] = []
    deadline = time.monotonic() + timeout_ms / 1000
    while len(taken) < count:
        try:
            taken.append(objects[handle].received.get(timeout=max(0.0, deadline - time.monotonic())))
        except queue.Empty:
            break
    return taken


def pull_start(namesrv: str, group: str) -> Any:
    made = PullConsumer(group)
    made.set_namesrv_addr(namesrv)
    made.start()
    return keep(made)


def pull_queues(handle: int, topic: str) -> list[list[Any]]:
    places = ctypes.POINTER(_CMessageQueue)()
    count = ctypes.c_int()
    ffi_check(
        dll.FetchSubscriptionMessageQueues(
            objects[handle]._handle, topic.encode(), ctypes.pointer(places), ctypes.pointer(count)
        )
    )
    found = [
        [place.topic.decode(), place.brokerName.decode(), place.queueId] for place in places[: count.value]
    ]
    ffi_check(dll.ReleaseSubscriptionMessageQueue(places))
    return found


def pull_pull(handle: int, queue: list[Any], expression: str, offset: int, count: int) -> dict[str, Any]:
    place = _CMessageQueue(queue[0].encode(), queue[1].encode(), queue[2])
    result = dll.Pull(objects[handle]._handle, ctypes.pointer(place), expression.encode(), offset, count)
    try:
        return {
            "status": _CPullStatus(result.pullStatus).name,
            "next": result.nextBeginOffset,
            "min": result.minOffset,
            "max": result.maxOffset,
            "messages": [shown(RecvMessage(result.msgFoundList[number])) for number in range(result.size)],
        }
    finally:
        dll.ReleasePullResult(result)


def stop(handle: int) -> None:
    objects.pop(handle).shutdown()


VERBS: dict[str, Callable[..., Any]] = {
    "producer.start": producer_start,
    "producer.send": producer_send,
    "producer.send_batch": producer_send_batch,
    "push.start": push_start,
    "push.take": push_take,
    "pull.start": pull_start,
    "pull.queues": pull_queues,
    "pull.pull": pull_pull,
    "stop": stop,
}


def reply(answer: dict[str, Any]) -> None:
    line = json.dumps(answer).encode() + b"\n"
    with writing:
        replies.write(line)
        replies.flush()


def serve(request: dict[str, Any]) -> None:
    arguments = request["with"]
    if "message" in arguments:
        arguments["given"] = arguments.pop("message")
    try:
        reply({"id": request["id"], "result": VERBS[request["do"]](**arguments)})
    except Exception as error:  # whatever it is, the test has to hear of it
        failure = {"type": type(error).__name__, "code": -1, "text": str(error)}
        reply({"id": request["id"], "error": failure})


reply({"id": 0, "result": "ready"})
for line in sys.stdin:
    threading.Thread(target=serve, args=(json.loads(line),), daemon=True).start()
os._exit(0)  # its destructors wait for threads that are at their long poll
