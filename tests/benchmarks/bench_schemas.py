"""What the check of JSON messages costs a broker, with ``schemaValidation`` off and reject in turn: without sockets,
processor time a message from received bytes to the answer, in one process; then over loopback, the rate of one
connection and the processor time of the broker's process a message.

    python -m tests.benchmarks schemas [--rounds N] [--batch N ...] [--parts core,sockets]

Sends of one message, and batches as Java's BatchProducer sends them, of bodies of 90 bytes with five fields: ``alike``
ones have one length, of ``unlike`` ones each has another, so that they are decoded. Medians of the rounds, and of the
rounds' ratios.
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import random
import socket
import statistics
import struct
import tempfile
import time
from pathlib import Path

import msgspec

from mqspark import AdminClient
from mqspark.broker.broker import BrokerCore
from mqspark.broker.config import BrokerConfig
from mqspark.broker.schemaregistry.schemarecords import SCHEMA, KeyedRecord, RecordKey, SchemaRecord
from mqspark.protocol.codes import RequestCode
from mqspark.protocol.command import BINARY, encode_request
from mqspark.protocol.connection import Connection
from mqspark.protocol.headers.client_headers import SendMessageRequestHeaderV2
from mqspark.protocol.session import Session
from mqspark.schemas.parsing import parse
from mqspark.store import FlushDiskType, MessageStore, StoreConfig
from tests.benchmarks.bench_batch import HOST, MEMORY, NOW_MS, PASS_MESSAGES, PIECE_BYTES, receive
from tests.benchmarks.bench_broker import DevProcess, broker
from tests.benchmarks.report import OURS, figure, ratio
from tests.support.clocks import ManualClock

TOPIC = "BenchmarkTest"
ORDER = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "name": {"type": "string"},
        "price": {"type": "number"},
        "paid": {"type": "boolean"},
        "city": {"type": "string"},
    },
    "required": ["id", "name"],
}
MODES = ("off", "reject")
SOCKET_PASSES = 20


def body_of(number: int, alike: bool) -> bytes:
    name = f"customer-{number:05}" if alike else "customer" + "-" * (number % 11)
    order = {"id": 100_000 + number, "name": name, "price": 1_000.5 + number % 1_000, "paid": True}
    return json.dumps(order | {"city": "Hamburg-Altona"}, separators=(",", ":")).encode()


def pieces_of(size: int, alike: bool) -> tuple[list[bytes], int]:
    """What is read one after the other, and how many frames that is."""
    frames = frames_of(TOPIC, size, alike)
    joined = b"".join(frames)
    return [joined[at : at + PIECE_BYTES] for at in range(0, len(joined), PIECE_BYTES)], len(frames)


def frames_of(topic: str, size: int, alike: bool) -> list[bytes]:
    """Sends of ``size`` messages; of 1: sends that are no batch."""
    frames = []
    code = RequestCode.SEND_BATCH_MESSAGE if size > 1 else RequestCode.SEND_MESSAGE_V2
    for batch in range(PASS_MESSAGES // size):
        members = []
        for number in range(batch * size, batch * size + size):
            body = body_of(number, alike)
            properties = f"UNIQ_KEY\x017F0000010BAD18B4AAC2{number:012X}\x02WAIT\x01true\x02".encode()
            members.append(
                struct.pack(">iiiii", 22 + len(body) + len(properties), 0, 0, 0, len(body))
                + body
                + struct.pack(">h", len(properties))
                + properties
            )
        header = SendMessageRequestHeaderV2.of(
            "benchmark",
            topic,
            batch % 8,
            NOW_MS,
            "WAIT\x01true\x02" if size > 1 else properties.decode(),
            default_queues=8,
            batch=size > 1,
            bname="broker-a",
        )
        if size > 1:
            body = b"".join(members)
        frames.append(encode_request(code, batch, header, body, serialize_type=BINARY))
    return frames


class Side:
    """A broker with a schema of the topic."""

    def __init__(self, root: str) -> None:
        self.clock, self.outbox = ManualClock(NOW_MS), list[Session]()
        config = StoreConfig(
            store_path_root_dir=root,
            flush_disk_type=FlushDiskType.ASYNC_FLUSH,
            max_index_num=2_000_000,
            disk_max_used_space_ratio=100,
            disk_space_clean_forcibly_ratio=100,
            disk_space_warning_level_ratio=100,
        )
        self.store = MessageStore(config, self.clock, store_host=HOST)
        self.store.open()
        settings = BrokerConfig(listen_port=10911, schema_registry_enable=True)
        self.broker = BrokerCore(
            settings, self.store, self.clock, random=random.Random(0), outbox=self.outbox
        )
        schema = parse("JSON", json.dumps(ORDER))
        record = SchemaRecord(1, schema.kind, schema.text, schema.fingerprint)
        subjects = self.broker.services.schemas.subjects
        subjects.apply(KeyedRecord(RecordKey(SCHEMA, f"{TOPIC}-value", 1), record))
        self.session = Session(1, "127.0.0.1", 50_000, self.outbox)
        self.broker.connected(self.session)
        self.broker.tick()

    def sent(self, mode: str, pieces: list[bytes], batches: int) -> float:
        """µs a message."""
        topics = self.broker.state.topics
        topic = topics.get(TOPIC)
        if topic is None:
            raise SystemExit(f"there is no topic {TOPIC}")
        attributes = {**topic.config.attributes, "schemaValidation": mode}
        topics.put(msgspec.structs.replace(topic.config, attributes=attributes))
        connection, answered, seconds = Connection(), list[bytes](), 0.0
        for piece in pieces:
            data = bytes(memoryview(piece))
            started = time.process_time()
            receive(self.broker, self.session, connection, data)
            self.broker.turn()
            self.outbox.clear()
            answered += self.session.take()
            seconds += time.process_time() - started
        found = Connection(max_header_bytes=1 << 24).receive_data(b"".join(answered))
        if [each.opaque for each in found] != list(range(batches)) or any(each.code for each in found):
            raise SystemExit(f"{len(found)} answers to {batches} batches: the figures are void")
        while self.store.status.index_behind_bytes:
            self.clock.mono_ms += 1_000
            self.store.maintenance()
            for _ in self.store.follow_with_index():
                pass
        return seconds / PASS_MESSAGES * 1e6


class Sockets:
    """``mqspark dev`` with a topic for each mode, and one connection to it."""

    def __init__(self, process: DevProcess) -> None:
        self._process = process
        with AdminClient(process.ready["namesrv"]) as admin:
            for mode in MODES:
                admin.create_topic(f"{TOPIC}-{mode}", queues=8, attributes={"schemaValidation": mode})
        asked = json.dumps({"schemaType": "JSON", "schema": json.dumps(ORDER)}).encode()
        host, _, port = process.ready["http"].removeprefix("http://").rpartition(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=60)
        path, kind = f"/subjects/{TOPIC}-{MODES[1]}-value/versions", {"Content-Type": "application/json"}
        connection.request("POST", path, asked, kind)
        if (answer := connection.getresponse()).status != http.HTTPStatus.OK:
            raise SystemExit(f"the schema is not registered: {answer.read()!r}")
        connection.close()
        self._socket = socket.create_connection(("127.0.0.1", process.port))

    def sent(self, frames: list[bytes], repeats: int, count: int) -> tuple[float, float]:
        """Messages a second, and µs of the broker's process a message. ``count``: messages in all."""
        together = max(1, PIECE_BYTES // len(frames[0]))
        groups = [frames[at : at + together] for at in range(0, len(frames), together)]
        answers = Connection(max_header_bytes=1 << 24)
        before, started, waiting = self._process.cpu_s(), time.perf_counter(), 0
        for _ in range(repeats):
            for group in groups:
                self._socket.sendall(b"".join(group))
                waiting += len(group)
                waiting -= self._answered(answers, waiting - together)
        waiting -= self._answered(answers, waiting)
        took = time.perf_counter() - started
        return count / took, (self._process.cpu_s() - before) / count * 1e6

    def _answered(self, answers: Connection, least: int) -> int:
        """Waits for so many answers."""
        found = 0
        while found < least:
            commands = answers.receive_data(self._socket.recv(1 << 20))
            if any(each.code for each in commands):
                raise SystemExit(f"{commands[0].remark}: the figures are void")
            found += len(commands)
        return found

    def check(self, counts: dict[str, int]) -> None:
        """Whether so many messages of each mode are there."""
        with AdminClient(self._process.ready["namesrv"]) as admin:
            for mode, count in counts.items():
                stored = sum(each.max_offset for each in admin.topic_stats(f"{TOPIC}-{mode}").values())
                if stored != count:
                    raise SystemExit(f"{mode}: {stored} messages of {count}: the figures are void")


def over_sockets(sizes: list[int], rounds: int, store: Path) -> None:
    print("over loopback, broker CPU a message, µs, and messages a second: off, reject; the rate with reject")
    with broker(store, "flushDiskType=ASYNC_FLUSH") as process:
        side = Sockets(process)
        counts = dict.fromkeys(MODES, 0)
        for size, (name, alike) in itertools.product(sizes, (("alike", True), ("unlike", False))):
            frames = {mode: frames_of(f"{TOPIC}-{mode}", size, alike) for mode in MODES}
            took: dict[str, list[tuple[float, float]]] = {mode: [] for mode in MODES}
            for number in range(rounds + 1):
                repeats = SOCKET_PASSES if number else 1
                for mode in MODES if number % 2 else MODES[::-1]:
                    count = repeats * len(frames[mode]) * size
                    found = side.sent(frames[mode], repeats, count)
                    counts[mode] += count
                    if number:
                        took[mode].append(found)
            what = f"{size} {name} over loopback"
            for mode in MODES:
                figure(f"{what}, {mode}", "messages/s", [rate for rate, _ in took[mode]], side=OURS)
                micros = [each for _, each in took[mode]]
                figure(f"{what}, {mode}, broker CPU a message", "µs", micros, side=OURS, less_is_better=True)
            texts = " / ".join(f"{statistics.median(us for _, us in took[mode]):.2f}" for mode in MODES)
            rates = " / ".join(f"{statistics.median(rate for rate, _ in took[mode]):,.0f}" for mode in MODES)
            ratios = [reject / off for (off, _), (reject, _) in zip(*took.values(), strict=True)]
            print(f"{size:4} {name:8} {texts}  {rates}  {ratio(statistics.median(ratios))}", flush=True)
        side.check(counts)


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks schemas")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 32, 200], help="1: no batch")
    parser.add_argument("--store", type=Path, default=MEMORY, help="a directory in memory: no disk counts")
    parser.add_argument("--parts", default="core,sockets")
    asked = parser.parse_args(arguments)
    if "core" in asked.parts:
        core(asked.batch, asked.rounds, asked.store)
    if "sockets" in asked.parts:
        over_sockets(asked.batch, max(3, asked.rounds // 4), asked.store)


def core(sizes: list[int], rounds: int, store: Path) -> None:
    print("processor time a message, µs: off, reject; the rate with reject instead of off")
    for size in sizes:
        for name, alike in (("alike", True), ("unlike", False)):
            pieces, batches = pieces_of(size, alike)
            took: dict[str, list[float]] = {mode: [] for mode in MODES}
            with tempfile.TemporaryDirectory(dir=store, prefix="bench-schemas-") as root:
                side = Side(root)
                for number in range(rounds + 1):
                    for mode in MODES if number % 2 else MODES[::-1]:
                        found = side.sent(mode, pieces, batches)
                        if number:
                            took[mode].append(found)
                if side.broker.state.stats.unfit_messages:
                    raise SystemExit("messages did not fit: the figures are void")
                side.store.close()
            for mode in MODES:
                figure(
                    f"{size} {name}, {mode}, CPU a message", "µs", took[mode], side=OURS, less_is_better=True
                )
            rates = [off / reject for off, reject in zip(took["off"], took["reject"], strict=True)]
            texts = " / ".join(f"{statistics.median(took[mode]):.2f}" for mode in MODES)
            print(f"{size:4} {name:8} {texts}  {ratio(statistics.median(rates))}", flush=True)


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
