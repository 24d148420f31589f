"""SIGKILL in the middle of sends and reads, again and again on one store: what was acknowledged is there, unchanged.

The broker is the real process with SYNC_FLUSH, below three producers and a consumer. As in Jepsen's checks: whatever
was acknowledged can be read; nothing can be read that was not sent; an offset means one message for ever, also to the
consumer that read it before a kill; each producer's messages are in its order. Senders and readers speak the wire with
code of the test's own (tests/support/remoting.py and the record parser below): a fault of ours cannot hide itself.
"""

import hashlib
import os
import random
import signal
import struct
import subprocess
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.processes import mqspark_command, process, ready_line, set_options, stop
from tests.support.remoting import (
    GET_MAX_OFFSET,
    GET_MIN_OFFSET,
    SEND_MESSAGE_V2,
    UPDATE_AND_CREATE_SUBSCRIPTION_GROUP,
    UPDATE_AND_CREATE_TOPIC,
    UPDATE_CONSUMER_OFFSET,
    RawConnection,
    Reply,
    ask,
    request_frame,
    topic_fields,
)
from tests.support.storefiles import segments_of

TOPIC, GROUP = "SigKill", "sigkill-readers"
QUEUES = 4
SENDERS = 3
WINDOW = 16  # requests in flight on one connection
ACKS_BEFORE_KILL = 30  # of each sender, so that every kill meets a busy broker
ANSWER_S = 60.0  # the longest wait for an answer, however busy this machine is
READ_AGAIN = 10  # kills after which everything is read anew, not only what came since the last time
BATCH = 5
PULL_NOT_FOUND, PULL_RETRY_IMMEDIATELY = 19, 20
SEGMENT_BYTES = 256 << 10  # the log rolls several times a run, also in the middle of a crash
SETTINGS = {
    "flushDiskType": "SYNC_FLUSH",
    "mappedFileSizeCommitLog": SEGMENT_BYTES,
    "waitTimeMillsInSendQueue": 60_000,  # however busy this machine is, no send is refused
}


@dataclass(frozen=True, slots=True)
class Stored:
    """One message as it was sent, and as it must be read for ever."""

    body: bytes
    properties: frozenset[tuple[str, str]]


@dataclass(slots=True)
class Ledger:
    """What the senders know. Shared by their threads; each writes under the lock."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    sent: dict[bytes, Stored] = field(default_factory=dict)
    acknowledged: dict[tuple[int, int], Stored] = field(default_factory=dict)
    seen: dict[tuple[int, int], bytes] = field(default_factory=dict)  # digest of every record ever read
    stored: dict[bytes, tuple[int, int]] = field(default_factory=dict)  # where each body was read
    last_of: dict[tuple[str, int], tuple[int, int, int]] = field(default_factory=dict)
    """For a sender and a queue: the newest offset that was read, and which of its messages that is."""

    def send(self, messages: list[Stored]) -> None:
        with self.lock:
            for message in messages:
                assert message.body not in self.sent
                self.sent[message.body] = message

    def acknowledge(self, queue_id: int, first_offset: int, messages: list[Stored]) -> None:
        with self.lock:
            for number, message in enumerate(messages):
                place = (queue_id, first_offset + number)
                assert place not in self.acknowledged, f"{place} acknowledged twice"
                self.acknowledged[place] = message

    def read(self, queue_id: int, queue_offset: int, found: Stored, raw: bytes) -> None:
        """Somebody read this. Raises AssertionError when it cannot be."""
        place = (queue_id, queue_offset)
        digest = hashlib.blake2b(raw, digest_size=16).digest()
        with self.lock:
            original = self.sent.get(found.body)
            assert original is not None, f"{place} holds a body that nobody sent: {found.body[:40]!r}"
            assert original.properties <= found.properties, f"{place}: {original} became {found}"
            assert self.stored.setdefault(found.body, place) == place, f"{found.body[:40]!r} is stored twice"
            assert self.seen.setdefault(place, digest) == digest, f"{place} changed since it was first read"
            acknowledged = self.acknowledged.get(place)
            assert acknowledged is None or acknowledged.body == found.body, f"{place} was replaced"
            sender, opaque, part = found.body.split(b"/")[:3]
            key = (sender.decode(), queue_id)
            offset, *number = self.last_of.get(key, (-1, -1, -1))
            if queue_offset > offset:
                assert (int(opaque), int(part)) > tuple(number), f"{place} is before what {key} sent earlier"
                self.last_of[key] = (queue_offset, int(opaque), int(part))


class Consumer(threading.Thread):
    """Reads on in all queues, from where it was before the kill, until the connection breaks."""

    def __init__(self, broker: str, ledger: Ledger, offsets: list[int]) -> None:
        super().__init__(name="consumer", daemon=True)
        self.failure: BaseException | None = None
        self._broker, self._ledger, self._offsets = broker, ledger, offsets

    def run(self) -> None:
        try:
            with RawConnection(self._broker, ANSWER_S) as connection:
                while True:
                    for queue_id in range(QUEUES):
                        self._read(connection, queue_id)
        except ConnectionError:
            return  # the kill; no answer in time is a failure
        except BaseException as error:
            self.failure = error

    def _read(self, connection: RawConnection, queue_id: int) -> None:
        offset = self._offsets[queue_id]
        reply = pull(connection, queue_id, offset)
        if reply.code in (PULL_NOT_FOUND, PULL_RETRY_IMMEDIATELY):
            return
        assert reply.code == 0, f"queue {queue_id} offset {offset}: {reply.code} {reply.remark}"
        for record in parse_records(reply.body):
            assert record[:2] == (queue_id, offset), f"expected {(queue_id, offset)}, got {record[:2]}"
            self._ledger.read(*record)
            offset += 1
        self._offsets[queue_id] = offset
        connection.request(
            UPDATE_CONSUMER_OFFSET, consumerGroup=GROUP, topic=TOPIC, queueId=queue_id, commitOffset=offset
        )


def pull(connection: RawConnection, queue_id: int, offset: int) -> Reply:
    return connection.pull(TOPIC, queue_id, offset, group=GROUP)


class Sender(threading.Thread):
    """Keeps WINDOW requests in flight until the connection breaks; every fourth request is a batch."""

    def __init__(
        self, broker: str, ledger: Ledger, name: str, chance: random.Random, max_body_bytes: int
    ) -> None:
        super().__init__(name=name, daemon=True)
        self._max_body_bytes = max_body_bytes
        self.acks = 0
        self.busy = threading.Event()
        self.cut: ConnectionError | None = None  # the kill: what was in flight then was never acknowledged
        self.failure: BaseException | None = None
        self._broker, self._ledger, self._chance = broker, ledger, chance
        self._in_flight: dict[int, list[Stored]] = {}

    def run(self) -> None:
        try:
            self._send_until_cut()
        except ConnectionError as error:
            self.cut = error
        except BaseException as error:
            self.failure = error
        finally:
            self.busy.set()

    def _send_until_cut(self) -> None:
        with RawConnection(self._broker, ANSWER_S) as connection:
            opaque = 0
            while True:
                frames = []
                while len(self._in_flight) < WINDOW:
                    opaque += 1
                    messages = [
                        self._message(opaque, part) for part in range(BATCH if opaque % 4 == 0 else 1)
                    ]
                    self._in_flight[opaque] = messages
                    self._ledger.send(messages)
                    frames.append(send_frame(opaque, self._chance.randrange(QUEUES), messages))
                connection.write(b"".join(frames))
                reply = connection.read()
                messages = self._in_flight.pop(reply.opaque)
                assert reply.code == 0, f"send answered {reply.code}: {reply.remark}"
                self._ledger.acknowledge(int(reply.ext["queueId"]), int(reply.ext["queueOffset"]), messages)
                self.acks += 1
                if self.acks >= ACKS_BEFORE_KILL:
                    self.busy.set()

    def _message(self, opaque: int, part: int) -> Stored:
        body = f"{self.name}/{opaque}/{part}/".encode() + self._chance.randbytes(
            self._chance.randrange(1, self._max_body_bytes)
        )
        return Stored(
            body, frozenset({("KEYS", f"{self.name}-{opaque}-{part}"), ("sender", self.name), ("ä", "ö ü")})
        )


def send_frame(opaque: int, queue_id: int, messages: list[Stored]) -> bytes:
    batch = len(messages) > 1
    header = {
        "a": "sigkill-producers", "b": TOPIC, "c": "TBW102", "d": QUEUES, "e": queue_id, "f": 0,
        "g": int(time.time() * 1000), "h": 0, "j": 0, "k": False, "l": 0, "m": batch,
        "i": "" if batch else property_text(messages[0]),
    }  # fmt: skip
    body = b"".join(map(batch_item, messages)) if batch else messages[0].body
    return request_frame(SEND_MESSAGE_V2, opaque, header, body)


def property_text(message: Stored) -> str:
    return "".join(f"{name}\x01{value}\x02" for name, value in sorted(message.properties))


def batch_item(message: Stored) -> bytes:
    properties = property_text(message).encode()
    total = 4 + 4 + 4 + 4 + 4 + len(message.body) + 2 + len(properties)
    return (
        struct.pack(">iiiii", total, 0, 0, 0, len(message.body))
        + message.body
        + struct.pack(">h", len(properties))
        + properties
    )


def parse_records(body: bytes) -> Iterator[tuple[int, int, Stored, bytes]]:
    """Queue id, queue offset, content and the raw bytes of each V1 record (docs/rocketmq/messages.md#record)."""
    position = 0
    while position < len(body):
        size, magic, crc, queue_id, _, queue_offset = struct.unpack_from(">iiIiiq", body, position)
        assert (magic & 0xFFFFFFFF) == 0xDAA320A7, hex(magic)
        at = position + 4 * 5 + 8 + 8 + 4 + 8 + 8 + 8 + 8 + 4 + 8  # to the body's length, past IPv4 hosts
        (length,) = struct.unpack_from(">i", body, at)
        content = body[at + 4 : at + 4 + length]
        assert zlib.crc32(content) & 0x7FFFFFFF == crc, "the stored CRC is not the body's"
        at += 4 + length
        topic = body[at + 1 : at + 1 + body[at]].decode()
        assert topic == TOPIC
        at += 1 + body[at]
        (length,) = struct.unpack_from(">h", body, at)
        text = body[at + 2 : at + 2 + length].decode()
        assert at + 2 + length == position + size, "the fields do not add up to the record's size"
        pairs = frozenset(
            (name, value)
            for name, _, value in (item.partition("\x01") for item in text.split("\x02") if item)
        )
        yield queue_id, queue_offset, Stored(content, pairs), body[position : position + size]
        position += size


def check(broker: str, ledger: Ledger, begin: list[int]) -> list[int]:
    """Read what the broker serves from ``begin`` on, compare it with all that is known, give back the max offsets."""
    ends = []
    with RawConnection(broker, ANSWER_S) as connection:
        for queue_id in range(QUEUES):
            low, end = (
                int(connection.request(code, topic=TOPIC, queueId=queue_id).ext["offset"])
                for code in (GET_MIN_OFFSET, GET_MAX_OFFSET)
            )
            assert low == 0
            offset = begin[queue_id]
            while offset < end:
                reply = pull(connection, queue_id, offset)
                assert reply.code == 0, (
                    f"queue {queue_id} offset {offset} of {end}: {reply.code} {reply.remark}"
                )
                for record in parse_records(reply.body):
                    assert record[:2] == (queue_id, offset), (
                        f"expected {(queue_id, offset)}, got {record[:2]}"
                    )
                    ledger.read(*record)
                    offset += 1
                assert int(reply.ext["nextBeginOffset"]) == offset
            ends.append(end)
    for queue_id, offset in ledger.seen:
        assert offset < ends[queue_id], f"{(queue_id, offset)} was read before and is gone"
    lost = ledger.acknowledged.keys() - ledger.seen.keys()
    assert not lost, f"{len(lost)} acknowledged and lost: {sorted(lost)[:5]}"
    return ends


@contextmanager
def broker(folder: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The real process on the one store directory, and its broker's address."""
    log = folder / "broker.log"
    settings = set_options(SETTINGS)
    ports = ["--namesrv-port", "0", "--broker-port", "0", "--http-port", "0"]
    command = [*mqspark_command(), "dev", "--store", str(folder / "store"), *ports, *settings]
    with process(command, log, stdout=subprocess.PIPE) as child:
        yield child, ready_line(child, log)["broker"]


def prepare(address: str) -> None:
    topic = ask(address, UPDATE_AND_CREATE_TOPIC, **topic_fields(TOPIC, QUEUES))
    group = ask(
        address,
        UPDATE_AND_CREATE_SUBSCRIPTION_GROUP,
        b'{"groupName":"%s","consumeEnable":true,"retryQueueNums":1}' % GROUP.encode(),
    )
    assert (topic.code, group.code) == (0, 0), (topic, group)


def kill_again_and_again(folder: Path, kills: int, max_body_bytes: int) -> None:
    seed = int(os.environ.get("MQSPARK_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"MQSPARK_SEED={seed}")
    chance = random.Random(seed)
    ledger = Ledger()
    checked = [0] * QUEUES
    consumed = [0] * QUEUES
    for kill in range(kills):
        with broker(folder) as (child, address):
            if kill == 0:
                prepare(address)
            checked = check(address, ledger, checked if kill % READ_AGAIN else [0] * QUEUES)
            senders = [
                Sender(address, ledger, f"{kill}-{number}", random.Random(chance.random()), max_body_bytes)
                for number in range(SENDERS)
            ]
            consumer = Consumer(address, ledger, consumed)
            for thread in (*senders, consumer):
                thread.start()
            for sender in senders:
                assert sender.busy.wait(ANSWER_S), f"{sender.name} got only {sender.acks} acknowledgements"
            time.sleep(chance.random() * 0.1)  # anywhere in a flush, a dispatch or a roll of the log
            child.send_signal(signal.SIGKILL)
            for thread in (*senders, consumer):
                thread.join(60)
                assert thread.failure is None, repr(thread.failure)
            for sender in senders:
                assert sender.cut is not None, f"{sender.name} still runs"
                assert sender.acks >= ACKS_BEFORE_KILL, f"{sender.name} was cut after {sender.acks}"
            assert child.wait(60) == -signal.SIGKILL
        assert (folder / "store" / "abort").exists()
        if kill % 50 == 49:
            print(
                f"{kill + 1} kills, {len(ledger.acknowledged)} acknowledged, {len(ledger.seen)} read",
                flush=True,
            )

    with broker(folder) as (child, address):
        final = check(address, ledger, [0] * QUEUES)
        assert stop(child) == 0
    assert not (folder / "store" / "abort").exists()
    with broker(folder) as (_, address):
        assert check(address, ledger, [0] * QUEUES) == final
    segments = segments_of(folder / "store")
    assert len(segments) > 3, "the log was meant to roll"
    assert sum(consumed) > 0
    print(
        f"{kills} kills, {len(ledger.acknowledged)} acknowledged, {sum(final)} stored, {len(segments)} segments"
    )


@pytest.mark.timeout(600)
def test_five_kills(tmp_path: Path) -> None:
    kill_again_and_again(tmp_path, 5, 4000)


@pytest.mark.night("a thousand kills; five are the fast twin")
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("store", range(4))
def test_a_thousand_kills(tmp_path: Path, store: int) -> None:
    """Four stores, so that they can be shared out and gone on with where a run was interrupted."""
    kill_again_and_again(tmp_path, 250, 200)
