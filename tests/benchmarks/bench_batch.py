"""What a batch send, or a single one, costs the broker, without sockets: processor time a message from
received bytes to the answer.

    python -m tests.benchmarks batch [--against CLONE] [--rounds N] [--shape NAME ...]

Frames as Java's BatchProducer sends them, cut in pieces as the event loop reads them, go through connection, broker and
store; every piece is followed by a turn. ``1-json-16`` has 16 sends a read, ``turn`` is that of one send, and sends of
``unlike`` shapes have keys, so that no layout of a header serves the next. What the index costs to follow is measured
apart. With a second clone of the repository the two alternate A B A B, each in a process of its own; what both have
stored has to be the same byte for byte. Medians of the rounds' best passes, and of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from mqspark.broker.broker import BrokerCore
from mqspark.broker.config import BrokerConfig
from mqspark.protocol.codes import RequestCode
from mqspark.protocol.command import BINARY, JSON, encode_request
from mqspark.protocol.connection import Connection
from mqspark.protocol.headers.client_headers import SendMessageRequestHeaderV2
from mqspark.protocol.session import Session
from mqspark.store import FlushDiskType, MessageStore, StoreConfig
from tests.support.clocks import ManualClock

QUEUES = 8
PIECE_BYTES = 64 * 1024
"""After so much the event loop ends a turn (``mqspark_server.net.remotingserver.TURN_BYTES``)."""
MEMORY = Path("/dev/shm" if Path("/dev/shm").is_dir() else tempfile.gettempdir())
PASS_MESSAGES = 16_384
PASSES = 6
NOW_MS = 1_700_000_000_000
HOST = b"\x7f\0\0\x01\0\0\x2a\x9f"


class Shape(NamedTuple):
    members: int
    body_bytes: int
    alike: bool = True
    serialize_type: int = BINARY
    per_read: int = 0
    """Frames; 0: PIECE_BYTES."""


SHAPES = {
    "1": Shape(1, 1024),
    "1-json": Shape(1, 1024, serialize_type=JSON),
    **{f"1-{per_read}": Shape(1, 1024, per_read=per_read) for per_read in (1, 4, 16)},
    **{f"1-json-{per_read}": Shape(1, 1024, True, JSON, per_read) for per_read in (1, 4, 16)},
    "1-unlike": Shape(1, 1024, alike=False),
    "1-json-unlike": Shape(1, 1024, False, JSON),
    "1-json-unlike-1": Shape(1, 1024, False, JSON, 1),
    "32": Shape(32, 1024),
    "32-json": Shape(32, 1024, serialize_type=JSON),
    "32-small": Shape(32, 100),
    "32-unlike": Shape(32, 1024, alike=False),
    "4": Shape(4, 1024),
    "8": Shape(8, 1024),
    "16": Shape(16, 1024),
    "64": Shape(64, 1024),
    "64-unlike": Shape(64, 1024, alike=False),
    "512-small": Shape(512, 100),
    "512-unlike": Shape(512, 100, alike=False),
    "4096-small": Shape(4096, 100),
}


def pass_of(shape: Shape) -> tuple[list[bytes], int]:
    """What is read one after the other, and how many frames that is."""
    chance = random.Random(shape.members)
    batches = PASS_MESSAGES // shape.members
    frames = []
    for batch in range(batches):
        members = []
        for member in range(shape.members):
            size = (
                shape.body_bytes
                if shape.alike
                else shape.body_bytes - chance.randrange(shape.body_bytes // 2)
            )
            body = chance.randbytes(size)
            unique_id = f"7F0000010BAD18B4AAC2{batch * shape.members + member:012X}"
            key = "" if shape.alike or shape.members > 1 else f"KEYS\x01{chance.getrandbits(32):08x}\x02"
            properties = f"{key}UNIQ_KEY\x01{unique_id}\x02WAIT\x01true\x02".encode()
            members.append(
                struct.pack(">iiiii", 22 + len(body) + len(properties), 0, 0, 0, len(body))
                + body
                + struct.pack(">h", len(properties))
                + properties
            )
        is_batch = shape.members > 1
        if not is_batch:
            members = [body]
        header = SendMessageRequestHeaderV2.of(
            "benchmark_batch_producer",
            "BenchmarkTest",
            batch % QUEUES,
            NOW_MS,
            "WAIT\x01true\x02" if is_batch else properties.decode(),
            default_queues=QUEUES,
            batch=is_batch,
            bname="broker-a",
        )
        frames.append(
            encode_request(
                RequestCode.SEND_BATCH_MESSAGE if is_batch else RequestCode.SEND_MESSAGE_V2,
                batch,
                header,
                b"".join(members),
                serialize_type=shape.serialize_type,
            )
        )
    if shape.per_read:
        starts = range(0, batches, shape.per_read)
        return [b"".join(frames[at : at + shape.per_read]) for at in starts], batches
    received = b"".join(frames)
    return [received[at : at + PIECE_BYTES] for at in range(0, len(received), PIECE_BYTES)], batches


def receive(broker: BrokerCore, session: Session, connection: Connection, data: bytes) -> None:
    """As a server does it."""
    if not hasattr(connection, "taken"):  # another clone, from before there were runs of sends
        broker.received(session, connection.receive_data(data))
        return
    whole = connection.joined(data)
    if whole is None:
        broker.received(session, connection.receive_data(data))
        return
    at, size = 0, len(whole)
    while (at := connection.taken(broker.take, session, whole, at)) < size:
        end = connection.left(whole, at)
        broker.received(session, connection.receive_data(whole[at:end]))
        if end == size:
            break
        at = end


def measure(shape: Shape, parent: Path) -> dict[str, float | str]:
    """µs a message of the best pass, from bytes to answers and for the index; a digest of what was stored."""
    pieces, batches = pass_of(shape)
    sends, follows, turns = [], [], []
    with tempfile.TemporaryDirectory(dir=parent, prefix="bench-batch-") as root:
        clock, outbox = ManualClock(NOW_MS), list[Session]()
        config = StoreConfig(
            store_path_root_dir=root,
            flush_disk_type=FlushDiskType.ASYNC_FLUSH,
            max_index_num=2_000_000,
            disk_max_used_space_ratio=100,
            disk_space_clean_forcibly_ratio=100,
            disk_space_warning_level_ratio=100,
        )
        store = MessageStore(config, clock, store_host=HOST)
        store.open()
        broker = BrokerCore(
            BrokerConfig(listen_port=10911), store, clock, random=random.Random(0), outbox=outbox
        )
        session = Session(1, "127.0.0.1", 50_000, outbox)
        broker.connected(session)
        answers = hashlib.sha256()
        for number in range(PASSES + 1):
            connection, answered = Connection(), []
            seconds = in_turns = 0.0
            for piece in pieces:
                data = bytes(memoryview(piece))  # as from a socket: at hand in the processor's cache
                started = time.process_time()
                receive(broker, session, connection, data)
                is_read = time.process_time()
                broker.turn()
                outbox.clear()
                answered += session.take()
                ended = time.process_time()
                seconds += ended - started
                in_turns += ended - is_read
            sends.append(seconds)
            turns.append(in_turns)
            found = Connection(max_header_bytes=1 << 24).receive_data(b"".join(answered))
            if number and ([c.opaque for c in found] != list(range(batches)) or any(c.code for c in found)):
                raise SystemExit(f"{len(found)} answers to {batches} batches: the figures are void")
            for frame in answered:
                answers.update(frame)
            started = time.process_time()
            while store.status.index_behind_bytes:
                clock.mono_ms += 1_000
                store.maintenance()
                for _ in store.follow_with_index():
                    pass
            follows.append(time.process_time() - started)
        if sum(store.offsets.max_offset("BenchmarkTest", n) for n in range(QUEUES)) < PASSES * PASS_MESSAGES:
            raise SystemExit("messages are missing: the figures are void")
        store.close()
        digest = hashlib.sha256(answers.digest())
        for name in ("commitlog", "consumequeue"):
            for path in sorted((Path(root) / name).rglob("*")):
                if path.is_file():
                    with path.open("rb") as file:
                        digest.update(file.read(256 << 20).rstrip(b"\0"))
        for path in sorted((Path(root) / "index").iterdir()):
            digest.update(path.read_bytes())
    return {
        "send": min(sends[1:]) / PASS_MESSAGES * 1e6,
        "turn": min(turns[1:]) / len(pieces) * 1e6,
        "index": min(follows[1:]) / PASS_MESSAGES * 1e6,
        "digest": digest.hexdigest(),
    }


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks batch")
    parser.add_argument("--against", type=Path, help="another clone of the repository: B")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--shape", nargs="+", choices=list(SHAPES), default=list(SHAPES))
    parser.add_argument("--store", type=Path, default=MEMORY, help="a directory in memory: no disk counts")
    parser.add_argument("--once", action="store_true", help="one measurement, as JSON")
    asked = parser.parse_args(arguments)
    if asked.once:
        print(json.dumps(measure(SHAPES[asked.shape[0]], asked.store)))
        return
    from tests.benchmarks.report import OURS, figure, ratio  # another clone may not have it

    here = Path(__file__).resolve().parents[2]
    trees = [here] if asked.against is None else [here, asked.against.resolve()]
    print(
        "processor time a message, µs: send, index; a turn"
        + (", here / there, ratio" if len(trees) > 1 else "")
    )
    for name in asked.shape:
        rounds = [[_measured(tree, name, asked.store) for tree in trees] for _ in range(asked.rounds)]
        if len({str(figures["digest"]) for row in rounds for figures in row}) > 1:
            raise SystemExit(f"{name}: not the same was stored, the figures are void")
        texts = []
        for what in ("send", "index", "turn") if SHAPES[name].per_read == 1 else ("send", "index"):
            columns = [[float(row[tree][what]) for row in rounds] for tree in range(len(trees))]
            text = " / ".join(f"{statistics.median(column):.2f}" for column in columns)
            for tree, column in zip(trees, columns, strict=True):
                side = OURS if tree == here else f"B: {tree.name}"
                figure(
                    f"{name}, {what}, CPU a {'turn' if what == 'turn' else 'message'}",
                    "µs",
                    column,
                    side=side,
                    less_is_better=True,
                )
            if len(trees) > 1:
                text += f"  {ratio(statistics.median(a / b for a, b in zip(*columns, strict=True)))}"
            texts.append(text)
        print(f"{name:12} {'    '.join(texts)}", flush=True)


def _measured(tree: Path, shape: str, store: Path) -> dict[str, float | str]:
    command = [sys.executable, __file__, "--once", "--shape", shape, "--store", str(store)]
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, float | str] = json.loads(done.stdout)
    return result


if __name__ == "__main__":
    main(sys.argv[1:])
