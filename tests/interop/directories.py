"""What a store directory holds, as the broker that serves it says: the same questions to a real one and to ours."""

import random
import struct
import time
import zlib
from dataclasses import dataclass, field
from pathlib import Path

from mqspark.message import Message
from mqspark.record.batchitems import encode_batch
from tests.support import storefiles
from tests.support.clusters import Cluster
from tests.support.remoting import (
    GET_MAX_OFFSET,
    GET_MIN_OFFSET,
    QUERY_CONSUMER_OFFSET,
    QUERY_MESSAGE,
    SEARCH_OFFSET_BY_TIMESTAMP,
    UPDATE_CONSUMER_OFFSET,
    RawConnection,
    Reply,
)
from tests.support.storefiles import save_table, topic_config

SETTINGS = {
    "brokerName": "moving",
    "brokerClusterName": "Moving",
    "mappedFileSizeCommitLog": 1 << 20,
    "mappedFileSizeConsumeQueue": 2000,
    "mapperFileSizeBatchConsumeQueue": 460,
    "mappedFileSizeConsumeQueueExt": 4096,
    "maxHashSlotNum": 500,
    "maxIndexNum": 2000,
    "enableLmq": True,
    "enableMultiDispatch": True,
    "enableConsumeQueueExt": True,
    "enabledAppendPropCRC": True,
    "forceVerifyPropCRC": True,
    "transactionCheckInterval": 3_600_000,
    "flushConsumerOffsetInterval": 500,
    "timerWheelEnable": False,
}
"""Settings of both brokers: small files, and everything that changes the format."""

PLAIN, BATCH, LIGHT = "MovePlain", "MoveBatch", "%LMQ%move"
GROUPS = ("movers", "%LMQ%light")
QUEUES = (
    *((PLAIN, queue_id) for queue_id in range(3)),
    (BATCH, 0),
    (LIGHT, 0),
    ("SCHEDULE_TOPIC_XXXX", 17),
    ("RMQ_SYS_TRANS_HALF_TOPIC", 0),
)


def make_directory(folder: Path) -> Path:
    """A store with the topics, and nothing in it."""
    kinds: dict[str, dict[str, str]] = {PLAIN: {}, BATCH: {"queue.type": "BatchCQ"}}
    topics = {name: topic_config(name, 3, attributes=attributes) for name, attributes in kinds.items()}
    groups = {group: {"groupName": group} for group in GROUPS}
    save_table(folder / "store", "topics.json", topicConfigTable=topics)
    save_table(folder / "store", "subscriptionGroup.json", forbiddenTable={}, subscriptionGroupTable=groups)
    return folder / "store"


TAGS = ("red", "blue", "gr\u00fcn")


@dataclass
class View:
    """Everything there is, by queue; ``==`` says whether two brokers serve the same."""

    ends: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    records: dict[tuple[str, int], list[tuple[int, int, bytes]]] = field(default_factory=dict)
    """(offset pulled, physical offset, record) as stored."""
    offsets_by_time: dict[tuple[str, int, int], int] = field(default_factory=dict)
    keys: dict[str, list[int]] = field(default_factory=dict)
    """Physical offsets."""
    tags: dict[str, list[int]] = field(default_factory=dict)
    """Physical offsets, by the index."""
    committed: dict[tuple[str, str], int] = field(default_factory=dict)

    def differences(self, other: "View") -> dict[str, object]:
        """What is not the same in both: name and key -> (here, there)."""
        found: dict[str, object] = {}
        for name in ("ends", "records", "offsets_by_time", "keys", "tags", "committed"):
            here, there = getattr(self, name), getattr(other, name)
            for key in here.keys() | there.keys():
                if here.get(key) != there.get(key):
                    found[f"{name} {key}"] = (here.get(key), there.get(key))
        return found

    @property
    def count(self) -> int:
        return sum(map(len, self.records.values()))


class Mover:
    """Writes to and looks at one directory through whatever broker has it now."""

    def __init__(self) -> None:
        self._random = random.Random(5)
        self.sent = 0
        self.keys: list[str] = []
        self.committed: dict[tuple[str, str], int] = {}

    # --- write ------------------------------------------------------------------------------------------------

    def write(self, broker: Cluster, rounds: int, *, commit: bool) -> None:
        """``commit``: group offsets, too, and wait until they are saved, which a real broker begins to do ten seconds
        after its start."""
        with RawConnection(broker.broker) as connection:
            for _ in range(rounds):
                self._write_one_of_each(connection)
            for group, topic in zip(GROUPS, (PLAIN, LIGHT), strict=True) if commit else ():
                reply = connection.request(GET_MAX_OFFSET, topic=topic, queueId=0)
                offset = self.committed[group, topic] = int(reply.ext["offset"])
                reply = connection.request(
                    UPDATE_CONSUMER_OFFSET, consumerGroup=group, topic=topic, queueId=0, commitOffset=offset
                )
                assert reply.code == 0, (group, reply)
        if commit:
            self._wait_until_saved(broker)

    def _write_one_of_each(self, connection: RawConnection) -> None:
        rng = self._random
        for queue_id in range(3):
            tags = rng.choice(TAGS)
            self._send(
                connection, PLAIN, queue_id, rng.randbytes(rng.choice([1, 100, 2000])), f"TAGS\x01{tags}\x02"
            )
        for kind in (0x100, 0x200, 0x300):
            self._send(connection, PLAIN, 0, zlib.compress(rng.randbytes(300)), sys_flag=1 | kind)
        self._send(connection, PLAIN, 1, b"in two queues", f"INNER_MULTI_DISPATCH\x01{LIGHT}\x02")
        self._send(connection, PLAIN, 2, b"in two hours", "DELAY\x0118\x02")
        self._send(connection, PLAIN, 0, b"half", "TRAN_MSG\x01true\x02PGROUP\x01movers\x02", sys_flag=4)
        self._send(connection, BATCH, 0, b"alone")
        for topic in (PLAIN, BATCH):
            messages = [
                Message(topic=topic, body=rng.randbytes(rng.randrange(1, 50)), properties={"TAGS": "red"})
                for _ in range(rng.randrange(1, 6))
            ]
            self._send(connection, topic, 0, encode_batch(messages), batch=True)

    def _send(
        self,
        connection: RawConnection,
        topic: str,
        queue_id: int,
        body: bytes,
        properties: str = "",
        *,
        sys_flag: int = 0,
        batch: bool = False,
    ) -> None:
        self.sent += 1
        key = f"key-{self.sent}"
        if self.sent % 7 == 0 and not batch and sys_flag != 4 and "DELAY" not in properties:
            self.keys.append(f"{topic} {key}")
        properties += f"KEYS\x01{key} common\x02UNIQ_KEY\x01unique-{self.sent}\x02"
        connection.send(topic, body, queue_id, properties, a="movers", f=sys_flag, h=self.sent, m=batch)

    def _wait_until_saved(self, broker: Cluster) -> None:
        """Offsets reach the disk by time, and a killed broker loses what did not."""
        path = broker.store / "config/lmqConsumerOffset.json"
        deadline = time.monotonic() + 60
        wanted = [f":{offset}" for offset in self.committed.values()]
        while not path.exists() or not all(text in path.read_text() for text in wanted):
            assert time.monotonic() < deadline, f"{path} does not say {wanted}"
            time.sleep(0.1)

    # --- look -------------------------------------------------------------------------------------------------

    def view(self, broker: Cluster) -> View:
        view = View()
        with RawConnection(broker.broker) as connection:
            for queue in QUEUES:
                self._look_at(connection, view, queue)
            for pair in self.keys:
                topic, key = pair.split()
                view.keys[pair] = self._find(connection, topic, key)
            for tag in TAGS if self.sent else ():
                view.tags[tag] = self._tagged(connection, view, tag)
            for group, topic in self.committed:
                reply = connection.request(QUERY_CONSUMER_OFFSET, consumerGroup=group, topic=topic, queueId=0)
                view.committed[group, topic] = int(reply.ext["offset"])
        assert view.committed == self.committed
        assert all(len(found) == 1 for found in view.keys.values()), view.keys
        return view

    def _look_at(self, connection: RawConnection, view: View, queue: tuple[str, int]) -> None:
        topic, queue_id = queue
        where = {"topic": topic, "queueId": queue_id}
        low = int(connection.request(GET_MIN_OFFSET, **where).ext["offset"])
        high = int(connection.request(GET_MAX_OFFSET, **where).ext["offset"])
        view.ends[queue] = low, high
        low = max(low, 0)  # -1: a BatchConsumeQueue without messages
        found = view.records[queue] = []
        times: list[int] = []
        while low < high:
            reply = connection.pull(topic, queue_id, low, group="movers", count=1 if topic == BATCH else 32)
            assert reply.code == 0, (queue, low, reply)
            for record in records_of(reply.body):
                found.append((low, *struct.unpack_from(">q", record, 28), record))
                times.append(*struct.unpack_from(">q", record, 56))
            low = int(reply.ext["nextBeginOffset"])
        # RocketMQ gives the last of several records of one millisecond where a file of a BatchCQ queue ends.
        asked = [time_ms for time_ms in sorted(set(times)) if topic != BATCH or times.count(time_ms) == 1]
        for time_ms in asked[:: max(1, len(times) // 10)]:
            reply = connection.request(SEARCH_OFFSET_BY_TIMESTAMP, timestamp=time_ms, **where)
            view.offsets_by_time[*queue, time_ms] = int(reply.ext["offset"])

    def _find(self, connection: RawConnection, topic: str, key: str) -> list[int]:
        """The index follows a little behind."""
        deadline = time.monotonic() + 30
        while True:
            reply = self._query(connection, topic, key)
            if reply.code == 0 or time.monotonic() > deadline:
                records = records_of(reply.body) if reply.code == 0 else []
                return sorted(struct.unpack_from(">q", record, 28)[0] for record in records)
            time.sleep(0.1)

    def _tagged(self, connection: RawConnection, view: View, tag: str) -> list[int]:
        """The newest with this tag, when the index has all of them."""
        of_plain = [
            record for queue, records in view.records.items() if queue[0] == PLAIN for record in records
        ]
        wanted = sorted(place for _, place, record in of_plain if f"TAGS\x01{tag}\x02".encode() in record)[
            -64:
        ]
        deadline = time.monotonic() + 30
        while True:
            reply = self._query(connection, PLAIN, tag, indexType="T")
            records = records_of(reply.body) if reply.code == 0 else []
            found = sorted(struct.unpack_from(">q", record, 28)[0] for record in records)
            if found == wanted:
                return found
            assert time.monotonic() < deadline, (tag, found, wanted)
            time.sleep(0.1)

    def _query(self, connection: RawConnection, topic: str, key: str, **more: object) -> Reply:
        return connection.request(
            QUERY_MESSAGE, topic=topic, key=key, maxNum=64, beginTimestamp=0, endTimestamp=1 << 52, **more
        )


def records_of(body: bytes) -> list[bytes]:
    records, position = [], 0
    while position < len(body):
        (size,) = struct.unpack_from(">i", body, position)
        records.append(body[position : position + size])
        position += size
    return records


def log_bytes(store: Path) -> bytes:
    """The whole log, as far as a broker has written it."""
    return storefiles.log_bytes(store).rstrip(b"\0")
