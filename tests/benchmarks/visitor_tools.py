"""What tools ask a broker that has much, and what it does by itself meanwhile: stories of ``visitors``.

A topic of 1,024 queues, a group with offsets in 2,000 topics, 20,000 producers, many messages with one key, waiting
notifications, half messages, a tick of the timer wheel with very many messages, a full segment that is deleted.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Protocol

from mqspark.protocol.codes import RequestCode
from tests.benchmarks.connection_load import frame

AT_ONCE = 256
WIDE, WIDE_QUEUES = "Wide", 1_024
READER, FOLLOWER, CLONE = "Group-000001", "Group-000002", "Group-000003"
"""Groups: one reads the wide topic, one very many topics, one gets the offsets of the first."""
FOLLOWED_TOPICS = 2_000
PRODUCERS = 20_000
SAME_KEY = 5_000
WAITING = 1_000
LARGE_BYTES = 1 << 20
SEGMENT_BYTES = 1 << 30
OLD_S = 30 * 86_400
SETTINGS = (
    "transactionCheckInterval=2000", "transactionTimeOut=1000", "popPollingSize=4096", "maxPopPollingSize=4096",
)  # fmt: skip


class Talks(Protocol):
    def ask(self, *requests: bytes, may_fail: bool = False) -> None: ...
    def tell(self, *requests: bytes) -> None:
        """Without waiting for answers."""
        ...

    def hear(self, answers: int) -> None:
        """Wait for so many answers."""
        ...


def message(
    topic: str, queue_id: int, properties: str = "", body: bytes = b"x" * 100, flag: int = 0
) -> bytes:
    ext = {
        "a": "bench", "b": topic, "c": "TBW102", "d": "4", "e": str(queue_id), "f": str(flag), "g": "1700000000000",
        "h": "0", "i": properties, "j": "0", "k": "false", "m": "false",
    }  # fmt: skip
    return frame(RequestCode.SEND_MESSAGE_V2, ext, body)


def commit(group: str, topic: str, queue_id: int, offset: int) -> bytes:
    ext = {"consumerGroup": group, "topic": topic, "queueId": str(queue_id), "commitOffset": str(offset)}
    return frame(RequestCode.UPDATE_CONSUMER_OFFSET, ext)


def produce(number: int) -> bytes:
    body = {
        "clientID": f"10.0.0.2@{number}#1",
        "producerDataSet": [{"groupName": "Producers"}],
        "consumerDataSet": [],
    }
    return frame(RequestCode.HEART_BEAT, {}, json.dumps(body).encode())


def create(*names: str, queues: int) -> bytes:
    topics = [
        {"topicName": name, "readQueueNums": queues, "writeQueueNums": queues, "perm": 6} for name in names
    ]
    return frame(
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, {}, json.dumps({"topicConfigList": topics}).encode()
    )


def all_of(wire: Talks, requests: Iterable[bytes]) -> None:
    rest = iter(requests)
    while some := list(islice(rest, AT_ONCE)):
        wire.ask(*some)


class Tools:
    def __init__(self, wire: Talks, store: Path, big: str, halves: int, timers: int) -> None:
        """``big``: a group with many members."""
        self._wire, self._store, self._big = wire, store, big
        self._halves, self._timers = halves, timers
        self._due_s = 0.0

    def asks(self, code: int, body: bytes = b"", **ext: str) -> Callable[[], None]:
        return lambda: self._wire.ask(frame(code, ext, body), may_fail=True)

    def wide(self) -> None:
        all_of(self._wire, (message(WIDE, number) for _ in range(2) for number in range(WIDE_QUEUES)))

    def read_wide(self) -> None:
        all_of(self._wire, (commit(READER, WIDE, number, 1) for number in range(WIDE_QUEUES)))

    def follow(self) -> None:
        topics = [f"Topic-{number:06d}" for number in range(FOLLOWED_TOPICS)]
        all_of(self._wire, (message(topic, queue) for topic in topics for queue in range(2)))
        all_of(self._wire, (commit(FOLLOWER, topic, queue, 1) for topic in topics for queue in range(4)))

    def lock(self) -> None:
        queues = [{"topic": WIDE, "brokerName": "b", "queueId": number} for number in range(WIDE_QUEUES)]
        body = {"consumerGroup": READER, "clientId": "10.0.0.3@1#1", "mqSet": queues}
        self._wire.ask(frame(RequestCode.LOCK_BATCH_MQ, {}, json.dumps(body).encode()))

    def one_key(self) -> None:
        self._wire.ask(create("Keyed", queues=4))
        all_of(self._wire, (message("Keyed", number % 4, "KEYS\x01same\x02") for number in range(SAME_KEY)))
        time.sleep(2.0)  # the index follows

    def wait_for_notices(self) -> None:
        self._wire.ask(create("Noticed", queues=4))
        now = str(int(time.time() * 1e3))
        waits = [
            frame(
                RequestCode.NOTIFICATION,
                {
                    "consumerGroup": f"Group-{number % 100:06d}",
                    "topic": "Noticed",
                    "queueId": "-1",
                    "pollTime": "20000",
                    "bornTime": now,
                    "order": "false",
                },
            )
            for number in range(WAITING)
        ]
        self._wire.tell(*waits)
        time.sleep(1.0)

    def notice(self) -> None:
        self._wire.tell(*(message("Noticed", number) for number in range(4)))
        self._wire.hear(WAITING + 4)

    def prepare_halves(self) -> None:
        properties = "TRAN_MSG\x01true\x02PGROUP\x01Producers\x02UNIQ_KEY\x01U%d\x02"
        all_of(
            self._wire,
            (message(WIDE, number % 8, properties % number, flag=4) for number in range(self._halves)),
        )

    def fill_a_tick(self) -> None:
        due_ms = (int(time.time()) + 20) * 1000
        properties = f"TIMER_DELIVER_MS\x01{due_ms}\x02"
        all_of(self._wire, (message(WIDE, number % 8, properties) for number in range(self._timers)))
        self._due_s = due_ms / 1000

    def await_tick(self) -> None:
        time.sleep(max(0.0, self._due_s - time.time()) + 5.0 + self._timers / 20_000)

    def fill_a_segment(self) -> None:
        body = b"x" * LARGE_BYTES
        for _ in range(SEGMENT_BYTES // LARGE_BYTES + 4):
            self._wire.ask(message(WIDE, 0, "", body))
        time.sleep(2.0)

    def delete_a_segment(self) -> None:
        first = min((self._store / "commitlog").iterdir())
        old_s = time.time() - OLD_S
        os.utime(first, (old_s, old_s))
        self._wire.ask(frame(RequestCode.DELETE_EXPIRED_COMMITLOG, {}))
        end = time.monotonic() + 20.0
        while first.exists() and time.monotonic() < end:
            time.sleep(0.2)
        print(f"      the segment is {'still there' if first.exists() else 'gone'}")

    def make_wide(self) -> None:
        """The topic of most stories."""
        self._wire.ask(create(WIDE, queues=WIDE_QUEUES))

    def stories(self) -> Iterator[tuple[str, Callable[[], object]]]:
        now_ms = int(time.time() * 1e3)
        wire, asks, code = self._wire, self.asks, RequestCode
        yield "first sends to 1,024 queues, second ones", self.wide
        yield "topicStatus, 1,024 queues", asks(code.GET_TOPIC_STATS_INFO, topic=WIDE)
        yield "1,024 commits", self.read_wide
        yield "consumerProgress, 1,024 queues", asks(code.GET_CONSUME_STATS, consumerGroup=READER, topic=WIDE)
        yield "consume time span, 1,024 queues", asks(code.QUERY_CONSUME_TIME_SPAN, topic=WIDE, group=READER)
        to = {"topic": WIDE, "group": READER, "isForce": "true"}
        yield (
            "resetOffsetByTime, 1,024 queues",
            asks(code.INVOKE_BROKER_TO_RESET_OFFSET, timestamp=str(now_ms), **to),
        )
        yield "reset to the end, 1,024 queues", asks(code.INVOKE_BROKER_TO_RESET_OFFSET, timestamp="-1", **to)
        clone = {"srcGroup": READER, "destGroup": CLONE, "topic": WIDE, "offline": "true"}
        yield "cloneGroupOffset, 1,024 queues", asks(code.CLONE_GROUP_OFFSET, **clone)
        yield "1,024 queues are locked", self.lock
        yield "a group's offsets in 2,000 topics", self.follow
        yield "consumerProgress, 2,000 topics", asks(code.GET_CONSUME_STATS, consumerGroup=FOLLOWER)
        yield "topics of a consumer", asks(code.QUERY_TOPICS_BY_CONSUMER, group=FOLLOWER)
        yield "brokerConsumeStats", asks(code.GET_BROKER_CONSUME_STATS, isOrder="false")
        yield "all topics, groups, offsets, settings", lambda: [
            ask()
            for ask in map(
                asks,
                (
                    code.GET_ALL_TOPIC_CONFIG, code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, code.GET_ALL_CONSUMER_OFFSET,
                    code.GET_ALL_DELAY_OFFSET, code.GET_BROKER_CONFIG, code.GET_BROKER_RUNTIME_INFO,
                ),
            )
        ]  # fmt: skip
        yield "20,000 producers join", lambda: all_of(wire, map(produce, range(PRODUCERS)))
        yield "producerConnection", asks(code.GET_PRODUCER_CONNECTION_LIST, producerGroup="Producers")
        yield "all producers", asks(code.GET_ALL_PRODUCER_INFO)
        yield "5,000 messages with a key", self.one_key
        query = {"topic": "Keyed", "key": "same", "beginTimestamp": "0", "endTimestamp": str(now_ms + 10**9)}
        yield "queryMsgByKey, 64", asks(code.QUERY_MESSAGE, maxNum="64", **query)
        yield "queryMsgByKey, all", asks(code.QUERY_MESSAGE, maxNum="10000", **query)
        entries = {"topic": WIDE, "queueId": "0", "index": "0", "count": "1000"}
        yield "queryCq", asks(code.QUERY_CONSUME_QUEUE, **entries)
        yield "1,000 notifications wait", self.wait_for_notices
        yield "a message wakes them", self.notice
        yield f"{self._halves:,} half messages", self.prepare_halves
        yield "they are checked, 15 s", partial(time.sleep, 15.0)
        yield f"{self._timers:,} timer messages for one tick", self.fill_a_tick
        yield "the tick comes", self.await_tick
        yield "1 GiB is stored", self.fill_a_segment
        yield "a segment of 1 GiB is deleted", self.delete_a_segment

    def of_members(self) -> Iterator[tuple[str, Callable[[], object]]]:
        """While the members of the large group are there."""
        code = RequestCode
        yield (
            "consumerConnection, large group",
            self.asks(code.GET_CONSUMER_CONNECTION_LIST, consumerGroup=self._big),
        )
        yield (
            "consumerStatus, large group",
            self.asks(code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, topic="Topic-000001", group=self._big),
        )
