"""SIGKILL in the middle of sends, a dozen times on one store: what was acknowledged is there, unchanged.

The broker is the real process with SYNC_FLUSH. Senders and reader speak the wire with code of the test's own
(tests/interop/remoting.py and the record parser below), so that a fault of ours cannot hide itself.
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

from tests.interop.clusters import mqspark_command, process, ready_line, stop
from tests.interop.remoting import (
    GET_MAX_OFFSET,
    GET_MIN_OFFSET,
    PULL_MESSAGE,
    SEND_MESSAGE_V2,
    UPDATE_AND_CREATE_SUBSCRIPTION_GROUP,
    UPDATE_AND_CREATE_TOPIC,
    RawConnection,
    ask,
    request_frame,
)

TOPIC, GROUP = "SigKill", "sigkill-readers"
QUEUES = 4
KILLS = 12
SENDERS = 4
WINDOW = 16  # requests in flight on one connection
ACKS_BEFORE_KILL = 60  # of each sender, so that every kill meets a busy broker
BATCH = 5
SUBSCRIBED = 0x4
SEGMENT_BYTES = 1 << 20  # the log rolls several times a run, also in the middle of a crash
SETTINGS = {"flushDiskType": "SYNC_FLUSH", "mappedFileSizeCommitLog": SEGMENT_BYTES}


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


class Sender(threading.Thread):
    """Keeps WINDOW requests in flight until the connection breaks; every fourth request is a batch."""

    def __init__(self, broker: str, ledger: Ledger, name: str, chance: random.Random) -> None:
        super().__init__(name=name, daemon=True)
        self.acks = 0
        self.busy = threading.Event()
        self.cut: OSError | None = None  # the kill: what was in flight then was never acknowledged
        self.failure: BaseException | None = None
        self._broker, self._ledger, self._chance = broker, ledger, chance
        self._in_flight: dict[int, list[Stored]] = {}

    def run(self) -> None:
        try:
            self._send_until_cut()
        except OSError as error:
            self.cut = error
        except BaseException as error:
            self.failure = error
        finally:
            self.busy.set()

    def _send_until_cut(self) -> None:
        with RawConnection(self._broker) as connection:
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
            self._chance.randrange(1, 2000)
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
    """Queue id, queue offset, content and the raw bytes of each V1 record (remoting-protocol.md §9.1)."""
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


def read_everything(broker: str) -> Iterator[tuple[int, int, Stored, bytes]]:
    with RawConnection(broker) as connection:
        for queue_id in range(QUEUES):
            low, end = (
                int(connection.request(code, topic=TOPIC, queueId=queue_id).ext["offset"])
                for code in (GET_MIN_OFFSET, GET_MAX_OFFSET)
            )
            assert low == 0
            offset = 0
            while offset < end:
                reply = connection.request(
                    PULL_MESSAGE, consumerGroup=GROUP, topic=TOPIC, queueId=queue_id, queueOffset=offset,
                    maxMsgNums=32, sysFlag=SUBSCRIBED, commitOffset=0, suspendTimeoutMillis=0,
                    subscription="*", subVersion=0, expressionType="TAG",
                )  # fmt: skip
                assert reply.code == 0, (
                    f"queue {queue_id} offset {offset} of {end}: {reply.code} {reply.remark}"
                )
                for record in parse_records(reply.body):
                    assert record[:2] == (queue_id, offset), (
                        f"expected {(queue_id, offset)}, got {record[:2]}"
                    )
                    yield record
                    offset += 1
                assert int(reply.ext["nextBeginOffset"]) == offset


def check(broker: str, ledger: Ledger) -> int:
    """Compare all that the broker serves with all that is known. The number of messages."""
    found: dict[tuple[int, int], Stored] = {}
    bodies: set[bytes] = set()
    for queue_id, queue_offset, stored, raw in read_everything(broker):
        place = (queue_id, queue_offset)
        original = ledger.sent.get(stored.body)
        assert original is not None, f"{place} holds a body that nobody sent: {stored.body[:40]!r}"
        assert original.properties <= stored.properties, f"{place}: {original} became {stored}"
        assert stored.body not in bodies, f"{place}: {stored.body[:40]!r} is stored twice"
        digest = hashlib.blake2b(raw, digest_size=16).digest()
        assert ledger.seen.setdefault(place, digest) == digest, f"{place} changed since it was first read"
        bodies.add(stored.body)
        found[place] = stored
    lost_sight = ledger.seen.keys() - found.keys()
    assert not lost_sight, (
        f"{len(lost_sight)} messages were read before and are gone: {sorted(lost_sight)[:5]}"
    )
    for place, message in ledger.acknowledged.items():
        assert place in found, f"acknowledged at {place} and lost: {message.body[:40]!r}"
        assert found[place].body == message.body, (
            f"acknowledged at {place}, replaced by {found[place].body[:40]!r}"
        )
    return len(found)


@contextmanager
def broker(folder: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The real process on the one store directory, and its broker's address."""
    log = folder / "broker.log"
    settings = [part for key, value in SETTINGS.items() for part in ("--set", f"{key}={value}")]
    ports = ["--namesrv-port", "0", "--broker-port", "0", "--http-port", "0"]
    command = [*mqspark_command(), "dev", "--store", str(folder / "store"), *ports, *settings]
    with process(command, log, stdout=subprocess.PIPE) as child:
        yield child, ready_line(child, log)["broker"]


def prepare(address: str) -> None:
    topic = ask(
        address, UPDATE_AND_CREATE_TOPIC, topic=TOPIC, defaultTopic="TBW102", readQueueNums=QUEUES,
        writeQueueNums=QUEUES, perm=6, topicFilterType="SINGLE_TAG", topicSysFlag=0, order=False,
    )  # fmt: skip
    group = ask(
        address,
        UPDATE_AND_CREATE_SUBSCRIPTION_GROUP,
        b'{"groupName":"%s","consumeEnable":true,"retryQueueNums":1}' % GROUP.encode(),
    )
    assert (topic.code, group.code) == (0, 0), (topic, group)


def test_nothing_acknowledged_is_lost_or_changed(tmp_path: Path) -> None:
    seed = int(os.environ.get("MQSPARK_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"MQSPARK_SEED={seed}")
    chance = random.Random(seed)
    ledger = Ledger()
    for kill in range(KILLS):
        with broker(tmp_path) as (child, address):
            if kill == 0:
                prepare(address)
            count = check(address, ledger)
            assert count >= len(ledger.acknowledged)
            senders = [
                Sender(address, ledger, f"{kill}-{number}", random.Random(chance.random()))
                for number in range(SENDERS)
            ]
            for sender in senders:
                sender.start()
            for sender in senders:
                assert sender.busy.wait(30), f"{sender.name} got {sender.acks} acknowledgements in 30 s"
            time.sleep(chance.random() * 0.2)  # anywhere in a flush, a dispatch or a roll of the log
            child.send_signal(signal.SIGKILL)
            for sender in senders:
                sender.join(30)
                assert sender.failure is None, repr(sender.failure)
                assert sender.cut is not None, f"{sender.name} still runs"
                assert sender.acks >= ACKS_BEFORE_KILL, f"{sender.name} was cut after {sender.acks}"
            assert child.wait(30) == -signal.SIGKILL
        assert (tmp_path / "store" / "abort").exists()

    with broker(tmp_path) as (child, address):
        final = check(address, ledger)
        assert stop(child) == 0
    assert not (tmp_path / "store" / "abort").exists()
    with broker(tmp_path) as (_, address):
        assert check(address, ledger) == final
    segments = sorted((tmp_path / "store" / "commitlog").iterdir())
    assert len(segments) > 3, "the log was meant to roll"
    print(f"{KILLS} kills, {len(ledger.acknowledged)} acknowledged, {final} stored, {len(segments)} segments")
