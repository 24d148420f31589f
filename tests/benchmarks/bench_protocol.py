"""What framing, headers and answers cost a frame: best of several rounds, content checked in each.

python -m tests.benchmarks protocol [rounds]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

from msgspec.structs import replace

from mqspark.protocol.bodies.body import decode_body, encode_body
from mqspark.protocol.bodies.client_bodies import (
    ConsumerData,
    HeartbeatData,
    ProducerData,
    build_subscription,
)
from mqspark.protocol.command import (
    BINARY,
    JSON,
    Command,
    encode_request,
    encode_response_head,
    send_response_frame,
)
from mqspark.protocol.connection import Connection
from mqspark.protocol.headers.client_headers import (
    PullMessageRequestHeader,
    PullMessageResponseHeader,
    SendMessageRequestHeaderV2,
    SendMessageResponseHeader,
)
from tests.benchmarks.report import figure

FRAMES = 200
MSG_ID = "0A00000100002A9F0000000000000400"
UNIQ_KEY = "C0000202ABCD18B4AAC200000001002A"
SEND = SendMessageRequestHeaderV2(
    producer_group="please_rename_unique_group_name",
    topic="BenchmarkTest",
    default_topic="TBW102",
    default_topic_queue_nums=4,
    queue_id=2,
    sys_flag=0,
    born_timestamp=1700000000000,
    flag=0,
    properties=f"UNIQ_KEY\x01{UNIQ_KEY}\x02WAIT\x01true\x02TAGS\x01TagA\x02",
    reconsume_times=0,
    unit_mode=False,
    batch=False,
    bname="broker-a",
)
PULL = PullMessageRequestHeader(
    consumer_group="CG",
    topic="BenchmarkTest",
    queue_id=0,
    queue_offset=12,
    max_msg_nums=32,
    sys_flag=3,
    commit_offset=12,
    suspend_timeout_millis=15000,
    sub_version=1700000000001,
    expression_type="TAG",
    max_msg_bytes=262144,
)
FOUND = PullMessageResponseHeader(
    suggest_which_broker_id=0, next_begin_offset=44, min_offset=0, max_offset=99
)


def send_frames(body_bytes: int, serialize_type: int = JSON) -> bytes:
    body = b"x" * body_bytes
    return b"".join(encode_request(310, n, SEND, body, serialize_type=serialize_type) for n in range(FRAMES))


def unlike_frames() -> bytes:
    """Headers of which each has a constant of its own, so that no layout of one serves the next."""
    return b"".join(
        encode_request(310, n, replace(SEND, producer_group=f"group-{n:05}"), b"x" * 100)
        for n in range(FRAMES)
    )


def measure(name: str, rounds: int, operations: int, run: Callable[[], object]) -> None:
    times = []
    for _ in range(rounds):
        start = time.perf_counter_ns()
        run()
        times.append(time.perf_counter_ns() - start)
    best = min(times)
    # The best of each tenth of the rounds: noise only adds, and a report wants few rounds.
    tenths = [min(times[n :: min(10, rounds)]) / operations / 1000 for n in range(min(10, rounds))]
    figure(name, "µs", tenths, less_is_better=True)
    print(f"{name:<58} {best / operations / 1000:8.3f} us   {operations * 1_000_000_000 / best:12,.0f} /s")


def receive(stream: bytes) -> list[Command]:
    commands = Connection().receive_data(stream)
    if len(commands) != FRAMES or commands[-1].opaque != FRAMES - 1:
        raise AssertionError(f"{len(commands)} commands of {FRAMES}")
    return commands


def receive_typed(stream: bytes) -> None:
    for command in receive(stream):
        if command.header(SendMessageRequestHeaderV2).topic != "BenchmarkTest":
            raise AssertionError(command)


def receive_pieces(stream: bytes, piece_bytes: int) -> None:
    connection, count = Connection(), 0
    for start in range(0, len(stream), piece_bytes):
        count += len(connection.receive_data(stream[start : start + piece_bytes]))
    if count != FRAMES:
        raise AssertionError(f"{count} commands of {FRAMES}")


def answer() -> None:
    for n in range(FRAMES):
        frame = send_response_frame(n, MSG_ID, 2, n, UNIQ_KEY)
    (command,) = Connection().receive_data(frame)
    header = command.header(SendMessageResponseHeader)
    if (header.queue_offset, header.transaction_id) != (FRAMES - 1, UNIQ_KEY):
        raise AssertionError(command)


def found() -> None:
    for n in range(FRAMES):
        head = encode_response_head(n, 0, FOUND, 3, "FOUND")
    (command,) = Connection().receive_data(head + b"abc")
    if command.header(PullMessageResponseHeader) != FOUND or command.body != b"abc":
        raise AssertionError(command)


def ask() -> None:
    for n in range(FRAMES):
        frame = encode_request(310, n, SEND, b"hi")
    (command,) = Connection().receive_data(frame)
    if command.header(SendMessageRequestHeaderV2) != SEND:
        raise AssertionError(command)


def pull() -> None:
    stream = b"".join([encode_request(11, n, PULL) for n in range(FRAMES)])
    for command in receive(stream):
        if command.header(PullMessageRequestHeader).queue_offset != PULL.queue_offset:
            raise AssertionError(command)


def heartbeat() -> None:
    subscription = build_subscription("T", "TagA || TagB", version=1)
    consumer = ConsumerData(group_name="CG", subscription_data_set=[subscription])
    data = HeartbeatData(client_id="c", producer_data_set=[ProducerData("PG")], consumer_data_set=[consumer])
    for _ in range(FRAMES):
        if decode_body(HeartbeatData, encode_body(data)) != data:
            raise AssertionError(data)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rounds", nargs="?", type=int, default=200)
    rounds = parser.parse_args().rounds
    small, large = send_frames(100), send_frames(1024)
    binary, unlike = send_frames(100, BINARY), unlike_frames()
    measure("SEND 100 B: framing + JSON header", rounds, FRAMES, lambda: receive(small))
    measure("SEND 100 B: framing + JSON header + typed header", rounds, FRAMES, lambda: receive_typed(small))
    measure("SEND 1 KB: framing + JSON header + typed header", rounds, FRAMES, lambda: receive_typed(large))
    measure("SEND 1 KB in pieces of 4000 bytes", rounds, FRAMES, lambda: receive_pieces(large, 4000))
    measure("SEND 100 B: framing + binary header", rounds, FRAMES, lambda: receive(binary))
    measure("SEND 100 B: framing + binary + typed header", rounds, FRAMES, lambda: receive_typed(binary))
    measure(
        "SEND 100 B: JSON headers of no known layout + typed", rounds, FRAMES, lambda: receive_typed(unlike)
    )
    measure("send_response_frame", rounds, FRAMES, answer)
    measure("encode_response_head of a pull", rounds, FRAMES, found)
    measure("encode_request of a send", rounds, FRAMES, ask)
    measure("pull request: encode, receive, typed header", rounds, FRAMES, pull)
    measure("heartbeat body: encode, decode, compare", max(rounds // 10, 1), FRAMES, heartbeat)
    dribbled = encode_request(310, 0, SEND, b"x" * 100_000)
    pieces = [dribbled[n : n + 1] for n in range(len(dribbled))]
    connection = Connection()
    measure(
        "one byte at a time (per byte)", 3, len(pieces), lambda: list(map(connection.receive_data, pieces))
    )


if __name__ == "__main__":
    main()
