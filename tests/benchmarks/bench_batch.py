"""What a batch send, or a single one, costs the broker, without sockets: processor time a message from
received bytes to the answer.

    python -m tests.benchmarks batch [--against CLONE] [--rounds N] [--shape NAME ...]

Frames as Java's BatchProducer sends them, cut in pieces as the event loop reads them, go through connection, broker and
store; every piece is followed by a turn. What the index costs to follow is measured apart. With a second clone of the
repository the two alternate A B A B, each in a process of its own; what both have stored has to be the same byte for
byte. Medians of the rounds' best passes, and of the rounds' ratios.
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
"""After so much the event loop ends a turn (``mqspark_server.net.tcp.TURN_BYTES``)."""
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


SHAPES = {
    "1": Shape(1, 1024),
    "1-json": Shape(1, 1024, serialize_type=JSON),
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


def stream(shape: Shape) -> tuple[bytes, int]:
    """A pass: frames one behind the other, and how many."""
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
            properties = f"UNIQ_KEY\x01{unique_id}\x02WAIT\x01true\x02".encode()
            members.append(
                struct.pack(">iiiii", 22 + len(body) + len(properties), 0, 0, 0, len(body))
                + body
                + struct.pack(">h", len(properties))
                + properties
            )
        is_batch = shape.members > 1
        if not is_batch:
            members = [body]
        header = SendMessageRequestHeaderV2(
            producer_group="benchmark_batch_producer",
            topic="BenchmarkTest",
            default_topic="TBW102",
            default_topic_queue_nums=QUEUES,
            queue_id=batch % QUEUES,
            sys_flag=0,
            born_timestamp=NOW_MS,
            flag=0,
            properties="WAIT\x01true\x02" if is_batch else properties.decode(),
            reconsume_times=0,
            unit_mode=False,
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
    return b"".join(frames), batches


def measure(shape: Shape, parent: Path) -> dict[str, float | str]:
    """µs a message of the best pass, from bytes to answers and for the index; a digest of what was stored."""
    received, batches = stream(shape)
    pieces = [received[at : at + PIECE_BYTES] for at in range(0, len(received), PIECE_BYTES)]
    sends, follows = [], []
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
            BrokerConfig(listen_port=10911), config, store, clock, random=random.Random(0), outbox=outbox
        )
        session = Session(1, "127.0.0.1", 50_000, outbox)
        broker.connected(session)
        answers = hashlib.sha256()
        for number in range(PASSES + 1):
            connection, answered = Connection(), []
            seconds = 0.0
            for piece in pieces:
                data = bytes(memoryview(piece))  # as from a socket: at hand in the processor's cache
                started = time.process_time()
                broker.received(session, connection.receive_data(data))
                broker.turn()
                outbox.clear()
                answered += session.take()
                seconds += time.process_time() - started
            sends.append(seconds)
            found = Connection(max_header_bytes=1 << 24).receive_data(b"".join(answered))
            if number and ([c.opaque for c in found] != list(range(batches)) or any(c.code for c in found)):
                raise SystemExit(f"{len(found)} answers to {batches} batches: the figures are void")
            for frame in answered:
                answers.update(frame)
            started = time.process_time()
            while store.status.index_behind_bytes:
                clock.mono_ms += 1_000
                store.maintenance()
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
    print("processor time a message, µs: send, index" + (", here / there, ratio" if len(trees) > 1 else ""))
    for name in asked.shape:
        rounds = [[_measured(tree, name, asked.store) for tree in trees] for _ in range(asked.rounds)]
        if len({str(figures["digest"]) for row in rounds for figures in row}) > 1:
            raise SystemExit(f"{name}: not the same was stored, the figures are void")
        texts = []
        for what in ("send", "index"):
            columns = [[float(row[tree][what]) for row in rounds] for tree in range(len(trees))]
            text = " / ".join(f"{statistics.median(column):.2f}" for column in columns)
            for tree, column in zip(trees, columns, strict=True):
                side = OURS if tree == here else f"B: {tree.name}"
                figure(f"{name}, {what}, CPU a message", "µs", column, side=side, less_is_better=True)
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
