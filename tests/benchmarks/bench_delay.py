"""How late timer messages are: an open load of them with random deliver times, against a broker of its own.

Lateness is the time at which the broker stored a message in its topic less its deliver time, both by the broker's
clock. A tick of the wheel (1 s) is part of it: a message waits for the end of the tick that it is due in. Every message
must be there once and none early, or the figures are void.

    python -m tests.benchmarks delay [--rate N] [--seconds S] [--store DIR]
    python -m tests.benchmarks delay --processor-time

The second form is for a busy machine: the broker's core without sockets, whose clock is the processor time that it
takes, what sockets would take (SOCKETS_US a message) and the time when it has nothing to do.
"""

from __future__ import annotations

import argparse
import math
import random
import socket
import tempfile
import time
from pathlib import Path

from mqspark.protocol.command import encode_request
from mqspark.record.record import decode_records
from tests.benchmarks.bench_broker import DevProcess, broker
from tests.benchmarks.report import OURS, figure
from tests.support.remoting import GET_MAX_OFFSET, SEND_MESSAGE_V2, RawConnection, send_fields
from tests.unit.broker_kit import Bench, send_ext

TOPIC, QUEUES = "BenchDelay", 4
SLICE_S = 0.01
AHEAD_MS = (2_000, 7_000)
SOCKETS_US = 4
"""A message's part of the system calls of a chunk."""


def send(process: DevProcess, rate: int, seconds: float) -> int:
    chance = random.Random(1)
    count = 0
    with socket.create_connection(("127.0.0.1", process.port)) as connection:
        began = time.perf_counter()
        for number in range(int(seconds / SLICE_S)):
            now_ms = time.time_ns() // 1_000_000
            frames = []
            for _ in range(int(rate * SLICE_S)):
                deliver_ms = now_ms + chance.randrange(*AHEAD_MS)
                properties = f"TIMER_DELIVER_MS\x01{deliver_ms}\x02UNIQ_KEY\x01U{count}\x02"
                header = send_fields(TOPIC, count % QUEUES, properties, d=QUEUES, g=now_ms)
                frames.append(encode_request(SEND_MESSAGE_V2, count, header, b"x" * 100, oneway=True))
                count += 1
            connection.sendall(b"".join(frames))
            time.sleep(max(0.0, began + (number + 1) * SLICE_S - time.perf_counter()))
    return count


def ends(connection: RawConnection) -> list[int]:
    return [
        int(connection.request(GET_MAX_OFFSET, topic=TOPIC, queueId=queue_id).ext["offset"])
        for queue_id in range(QUEUES)
    ]


def lateness_ms(connection: RawConnection, queue_id: int, end: int) -> dict[str, int]:
    found: dict[str, int] = {}
    offset = 0
    while offset < end:
        reply = connection.pull(TOPIC, queue_id, offset, group="bench", count=1000)
        if reply.code:
            raise RuntimeError(f"a pull was answered {reply}")
        for record in decode_records(reply.body):
            unique_id = record.unique_id or ""
            if unique_id in found:
                raise RuntimeError(f"{unique_id} came twice: the figures are void")
            found[unique_id] = record.store_timestamp_ms - int(record.properties["TIMER_DELIVER_MS"])
        offset = int(reply.ext["nextBeginOffset"])
    return found


def in_processor_time(rate: int, seconds: float, parent: Path) -> list[int]:
    """Lateness of each message on a processor that does nothing else."""
    chance = random.Random(1)
    with tempfile.TemporaryDirectory(dir=parent, prefix="bench-") as directory:
        bench = Bench(
            Path(directory),
            store_settings={
                "mapped_file_size_commit_log": 1 << 30,
                "mapped_file_size_consume_queue": 6_000_000,
                "allocation_step_commit_log": 1 << 26,
                "max_hash_slot_num": 5_000_000,
                "max_index_num": 20_000_000,
            },
        )
        peer, clock = bench.peer(), bench.clock
        count, sent = int(rate * seconds), 0
        began_ms = now_ms = clock.now_ms() + 250.0
        next_tick_ms = next_flush_ms = now_ms
        while sum(bench.store.offsets.max_offset(TOPIC, queue) for queue in range(QUEUES)) < count:
            clock.advance(int(now_ms) - clock.now_ms())
            due = min(count, int((now_ms - began_ms) * rate / 1000))
            chunk = [
                send_ext(
                    TOPIC,
                    number % QUEUES,
                    f"TIMER_DELIVER_MS\x01{int(now_ms) + chance.randrange(*AHEAD_MS)}\x02UNIQ_KEY\x01U{number}\x02",
                )
                for number in range(sent, min(due, sent + 256))
            ]
            cpu_s = time.process_time()
            for header in chunk:
                peer.give(SEND_MESSAGE_V2, header, b"x" * 100, oneway=True)
            bench.broker.turn()
            if now_ms >= next_tick_ms:
                next_tick_ms = now_ms + bench.broker.tick()
                bench.broker.turn()
            now_ms += (time.process_time() - cpu_s) * 1e3 + len(chunk) * SOCKETS_US / 1e3
            sent += len(chunk)
            if now_ms >= next_flush_ms:
                bench.flush()  # in another thread
                next_flush_ms = now_ms + 500
            if sent == due:
                next_send_ms = began_ms + (sent + 1) * 1000 / rate if sent < count else math.inf
                now_ms = max(now_ms, min(next_tick_ms, next_send_ms))
        late = [
            record.store_timestamp_ms - int(record.properties["TIMER_DELIVER_MS"])
            for queue in range(QUEUES)
            for record in bench.records(TOPIC, queue)
        ]
        bench.close()
        return late


def show(late: list[int], count: int, side: str = OURS) -> None:
    values = sorted(late)
    if len(values) != count or values[0] < 0:
        raise RuntimeError(
            f"{len(values)} of {count} messages, the earliest {values[0]} ms: the figures are void"
        )
    for name, place in (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999), ("max", 1.0)):
        value = values[min(count - 1, int(count * place))]
        figure(f"timer messages, late, {name}", "ms", [value], side=side, less_is_better=True)
        print(f"  late {name:>5}: {value:5d} ms")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks delay")
    parser.add_argument("--rate", type=int, default=10_000, help="timer messages a second")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--store", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--processor-time", action="store_true")
    options = parser.parse_args(arguments)
    if options.processor_time:
        print(f"{options.rate:,} timers a second, in processor time")
        show(
            in_processor_time(options.rate, options.seconds, options.store),
            int(options.rate * options.seconds),
            f"{OURS}, by processor time",
        )
        return
    with broker(
        options.store,
        "flushDiskType=ASYNC_FLUSH",
        "maxTransferCountOnMessageInMemory=1000",
        "waitTimeMillsInSendQueue=60000",  # what is measured is not whom a busy machine sends away
    ) as process:
        before = process.cpu_s()
        began = time.perf_counter()
        count = send(process, options.rate, options.seconds)
        sent_s = time.perf_counter() - began
        with RawConnection(f"127.0.0.1:{process.port}") as connection:
            deadline = time.monotonic() + 60
            while sum(ends(connection)) < count:
                if time.monotonic() > deadline:
                    raise RuntimeError(f"{sum(ends(connection))} of {count} delivered after a minute")
                time.sleep(0.1)
            cpu_us = (process.cpu_s() - before) * 1e6 / count
            late: dict[str, int] = {}
            for queue_id, end in enumerate(ends(connection)):
                late |= lateness_ms(connection, queue_id, end)
    print(f"{count} timers at {count / sent_s:,.0f}/s, {cpu_us:.0f} us of the broker's CPU each")
    show(list(late.values()), count)


if __name__ == "__main__":
    main()
