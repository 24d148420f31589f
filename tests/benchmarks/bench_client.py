"""The Python client: send, send in batches, consume, against one broker of ours in another process.

Client CPU a message is the client process's own. Every message is numbered and checked on arrival. Rounds
alternate between the cases; medians are reported.

    python -m tests.benchmarks client [--count N] [--rounds R] [--size BYTES] [--namesrv HOST:PORT]
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import contextmanager
from pathlib import Path

import mqspark
from mqspark.aio import (
    AdminClient,
    ConsumeFromWhere,
    LitePullConsumer,
    Message,
    MessageExt,
    Producer,
    PushConsumer,
)
from tests.benchmarks.bench_broker import DevProcess

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
QUEUES = 8


class Figures:
    """Messages a second and client microseconds a message, by case."""

    def __init__(self) -> None:
        self._rates: dict[str, list[float]] = {}
        self._cpu_us: dict[str, list[float]] = {}

    @contextmanager
    def measure(self, case: str, count: int):  # type: ignore[no-untyped-def]
        cpu, began = time.process_time(), time.perf_counter()
        yield
        self._rates.setdefault(case, []).append(count / (time.perf_counter() - began))
        self._cpu_us.setdefault(case, []).append((time.process_time() - cpu) / count * 1e6)

    def report(self) -> None:
        for case, rates in self._rates.items():
            rate, cpu_us = statistics.median(rates), statistics.median(self._cpu_us[case])
            print(f"  {case:<44} {rate:>10,.0f} msg/s   {cpu_us:6.1f} us client CPU a message")


def body(number: int, size: int) -> bytes:
    return (b"%d " % number).ljust(size, b"x")


def check(numbers: list[int], count: int) -> None:
    if sorted(numbers) != list(range(count)):
        raise RuntimeError(f"{len(numbers)} messages, {len(set(numbers))} of them different; sent {count}")


async def send_waiting(producer: Producer, topic: str, count: int, size: int, workers: int) -> None:
    """``workers`` coroutines that each send and wait."""
    numbers = iter(range(count))

    async def work() -> None:
        for number in numbers:
            await producer.send(Message(topic=topic, body=body(number, size)))

    await asyncio.gather(*(work() for _ in range(workers)))


async def send_futures(producer: Producer, topic: str, count: int, size: int) -> None:
    """One coroutine that hands over as fast as there is room in flight."""
    futures = [
        await producer.send_async(Message(topic=topic, body=body(number, size))) for number in range(count)
    ]
    for future in futures:
        await future


async def send_batches(
    producer: Producer, topic: str, count: int, size: int, batch: int, workers: int
) -> None:
    starts = iter(range(0, count, batch))

    async def work() -> None:
        for start in starts:
            await producer.send_batch(
                [
                    Message(topic=topic, body=body(number, size))
                    for number in range(start, min(start + batch, count))
                ]
            )

    await asyncio.gather(*(work() for _ in range(workers)))


def send_blocking(namesrv: str, topic: str, count: int, size: int, figures: Figures) -> None:
    with mqspark.Producer(namesrv, group="bench", max_in_flight=256) as producer:
        producer.queues(topic)
        with figures.measure("send_async, blocking client, 256 in flight", count):
            futures = [
                producer.send_async(Message(topic=topic, body=body(number, size))) for number in range(count)
            ]
            for future in futures:
                future.result()
        waited = min(count, 3_000)
        with figures.measure("send, blocking client, 1 in flight", waited):
            for _ in range(waited):
                producer.send(Message(topic=f"{topic}-warm", body=body(0, size)))


async def consume(namesrv: str, topic: str, count: int, figures: Figures, label: str) -> None:
    group = f"bench-{time.monotonic_ns()}"
    seen: list[int] = []
    finished = asyncio.Event()

    async def listen(message: MessageExt) -> None:
        seen.append(int(message.body.split(b" ", 1)[0]))
        if len(seen) == count:
            finished.set()

    push = PushConsumer(namesrv, group=f"{group}-push", listener=listen, consume_from=FIRST)
    push.subscribe(topic)
    with figures.measure(f"push, coroutine listener, {label}", count):
        async with push:
            await finished.wait()
    check(seen, count)

    kept: list[MessageExt] = []
    done, loop = asyncio.Event(), asyncio.get_running_loop()

    def keep(message: MessageExt) -> None:
        kept.append(message)
        if len(kept) >= count:
            loop.call_soon_threadsafe(done.set)

    threads = PushConsumer(namesrv, group=f"{group}-thread", listener=keep, consume_from=FIRST)
    threads.subscribe(topic)
    with figures.measure(f"push, function listener (threads), {label}", count):
        async with threads:
            await done.wait()
    check([int(message.body.split(b" ", 1)[0]) for message in kept], count)

    got: list[MessageExt] = []
    async with LitePullConsumer(namesrv, group=f"{group}-lite", consume_from=FIRST) as lite:
        queues = await lite.fetch_message_queues(topic)
        with figures.measure(f"lite pull, poll, {label}", count):
            await lite.assign(queues)
            while len(got) < count:
                got += await lite.poll()
    check([int(message.body.split(b" ", 1)[0]) for message in got], count)


async def latency(namesrv: str) -> None:
    """Send and arrive, one message at a time, against a parked pull."""
    topic = "BenchLatency"
    async with AdminClient(namesrv) as admin:
        await admin.create_topic(topic, queues=1)
    arrived: asyncio.Queue[float] = asyncio.Queue()

    async def listen(message: MessageExt) -> None:
        arrived.put_nowait(time.perf_counter())

    consumer = PushConsumer(namesrv, group="bench-latency", listener=listen, consume_from=FIRST)
    consumer.subscribe(topic)
    sent_ms, end_ms = [], []
    async with consumer, Producer(namesrv, group="bench") as producer:
        await producer.send(Message(topic=topic, body=b"warm"))
        await arrived.get()
        for _ in range(2_000):
            began = time.perf_counter()
            await producer.send(Message(topic=topic, body=bytes(100)))
            sent_ms.append((time.perf_counter() - began) * 1e3)
            end_ms.append((await arrived.get() - began) * 1e3)
    for what, values in (("send", sent_ms), ("end to end", end_ms)):
        p50, p99 = statistics.median(values), statistics.quantiles(values, n=100)[98]
        print(f"  {what + ', one at a time, 100 B':<44} p50 {p50:.2f} ms, p99 {p99:.2f} ms")


async def round_of(namesrv: str, number: int, count: int, size: int, figures: Figures) -> None:
    label = f"{size} B"
    cases: list[tuple[str, int, Callable[[Producer, str], Awaitable[None]]]] = [
        (
            f"send, 256 coroutines, {label}",
            count,
            lambda producer, topic: send_waiting(producer, topic, count, size, 256),
        ),
        (
            f"send_async, 256 in flight, {label}",
            count,
            lambda producer, topic: send_futures(producer, topic, count, size),
        ),
        (
            f"batches of 32, 8 in flight, {label}",
            4 * count,
            lambda producer, topic: send_batches(producer, topic, 4 * count, size, 32, 8),
        ),
    ]
    async with AdminClient(namesrv) as admin:
        for case in range(len(cases) + 1):
            await admin.create_topic(f"Bench-{size}-{number}-{case}", queues=QUEUES)
    for case, (name, messages, run) in enumerate(cases):
        topic = f"Bench-{size}-{number}-{case}"
        async with Producer(namesrv, group="bench", max_in_flight=256) as producer:
            await producer.queues(topic)
            with figures.measure(name, messages):
                await run(producer, topic)
        await consume(namesrv, topic, messages, figures, label)
    await asyncio.to_thread(send_blocking, namesrv, f"Bench-{size}-{number}-3", count, size, figures)


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks client")
    parser.add_argument("--count", type=int, default=50_000, help="messages a round and case")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--size", type=int, action="append", help="body bytes; may be given more than once")
    parser.add_argument("--namesrv", help="a cluster that runs already, instead of one of ours")
    parser.add_argument("--uvloop", action="store_true", help="run the client on uvloop")
    options = parser.parse_args(arguments)
    factory = None
    if options.uvloop:
        import uvloop

        factory = uvloop.new_event_loop
    store = Path(tempfile.mkdtemp(prefix="bench-client-"))
    broker = None
    try:
        if options.namesrv is None:
            broker = DevProcess(store, "flushDiskType=ASYNC_FLUSH")
        namesrv = options.namesrv or (broker.ready["namesrv"] if broker else "")
        loop = "uvloop" if options.uvloop else "asyncio"
        print(
            f"  {options.count} messages, {options.rounds} rounds, {QUEUES} queues, ASYNC_FLUSH, client on {loop}"
        )
        with asyncio.Runner(loop_factory=factory) as runner:
            for size in options.size or [100, 1024]:
                figures = Figures()
                for number in range(options.rounds):
                    runner.run(round_of(namesrv, number, options.count, size, figures))
                figures.report()
            runner.run(latency(namesrv))
    finally:
        if broker is not None:
            broker.stop()
        shutil.rmtree(store, ignore_errors=True)


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
