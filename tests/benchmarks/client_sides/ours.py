"""Our client: ``ours`` is the blocking one, ``aio`` the one for programs with an event loop (on uvloop).

python -m tests.benchmarks.client_sides.ours [--aio] CASE NAMESRV TOPIC COUNT SIZE WIDTH RATE
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections import deque
from typing import Any

import mqspark
from mqspark import aio
from mqspark.aio import AutoBatch, ConsumeFromWhere, Message, MessageExt
from tests.benchmarks.client_sides.side import (
    BATCH,
    WARM_UP,
    Clock,
    Seen,
    arguments,
    at_rate,
    body,
    in_threads,
    quantiles_ms,
    report_drain,
)

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET


def group() -> str:
    return f"ours-{time.monotonic_ns()}"


def in_flight(asked: Any) -> int:
    return int(asked.width) if asked.case == "async" else 4096


# --- blocking -----------------------------------------------------------------------------------------------


def send(producer: mqspark.Producer, case: str, topic: str, count: int, size: int, width: int) -> None:
    if case == "sync":
        in_threads(
            width,
            count,
            1,
            lambda part: producer.send(Message(topic=topic, body=body(part[0], size))) and None,
        )
    elif case in ("async", "autobatch"):
        waiting: deque[Any] = deque()
        for number in range(count):
            waiting.append(producer.send_async(Message(topic=topic, body=body(number, size))))
            if len(waiting) > 2 * width:
                waiting.popleft().result()
        for future in waiting:
            future.result()
    elif case == "oneway":
        for number in range(count):
            producer.send_oneway(Message(topic=topic, body=body(number, size)))
    elif case == "batch":
        in_threads(
            width,
            count,
            BATCH,
            lambda part: (
                producer.send_batch([Message(topic=topic, body=body(number, size)) for number in part])
                and None
            ),
        )
    else:
        raise SystemExit(f"no case {case}")


def blocking(asked: Any) -> None:
    if asked.case == "push":
        seen = Seen(asked.count)

        def listen(message: MessageExt) -> None:
            seen.mark(message.body)

        clock = Clock()
        consumer = mqspark.PushConsumer(asked.namesrv, group=group(), listener=listen, consume_from=FIRST)
        consumer.subscribe(asked.topic)
        with consumer:
            seen.wait(300)
            report_drain(clock, seen)
    elif asked.case == "lite":
        seen = Seen(asked.count)
        clock = Clock()
        with mqspark.LitePullConsumer(asked.namesrv, group=group(), consume_from=FIRST) as lite:
            lite.assign(lite.fetch_message_queues(asked.topic))
            while not seen.finished.is_set():
                for message in lite.poll():
                    seen.mark(message.body)
            report_drain(clock, seen)
    elif asked.case == "rate":
        paced(asked)
    else:
        batching = AutoBatch() if asked.case == "autobatch" else None
        with mqspark.Producer(
            asked.namesrv, group=group(), max_in_flight=in_flight(asked), auto_batch=batching
        ) as producer:
            send(producer, asked.case, f"{asked.topic}-warm", WARM_UP, asked.size, asked.width)
            clock = Clock()
            send(producer, asked.case, asked.topic, asked.count, asked.size, asked.width)
            clock.report()


def paced(asked: Any) -> None:
    due: list[float] = [0.0] * asked.count
    sent: list[float] = []
    arrived: list[float] = []
    finished, warm = threading.Event(), threading.Event()

    def listen(message: MessageExt) -> None:
        number = int(message.body[:8])
        warm.set()
        if due[number]:
            arrived.append(time.perf_counter() - due[number])
            if len(arrived) == asked.count:
                finished.set()

    consumer = mqspark.PushConsumer(asked.namesrv, group=group(), listener=listen, consume_from=FIRST)
    consumer.subscribe(asked.topic)
    with mqspark.Producer(asked.namesrv, group=group()) as producer, consumer:
        producer.send(Message(topic=asked.topic, body=body(0, asked.size)))
        warm.wait(30)
        clock = Clock()
        for number, when in at_rate(asked.count, asked.rate):
            due[number] = when
            producer.send_async(Message(topic=asked.topic, body=body(number, asked.size))).add_done_callback(
                lambda done, when=when: sent.append(time.perf_counter() - when)
            )  # type: ignore[misc]
        if not finished.wait(60):
            raise SystemExit(f"{len(arrived)} of {asked.count} arrived")
        clock.report(sent=quantiles_ms(sent), arrived=quantiles_ms(arrived))


# --- with an event loop -------------------------------------------------------------------------------------


async def send_aio(producer: aio.Producer, case: str, topic: str, count: int, size: int, width: int) -> None:
    if case == "sync":
        numbers = iter(range(count))

        async def one_by_one() -> None:
            for number in numbers:
                await producer.send(Message(topic=topic, body=body(number, size)))

        await asyncio.gather(*(one_by_one() for _ in range(width)))
    elif case in ("async", "autobatch"):
        waiting: deque[Any] = deque()
        for number in range(count):
            waiting.append(await producer.send_async(Message(topic=topic, body=body(number, size))))
            if len(waiting) > 2 * width:
                await waiting.popleft()
        for future in waiting:
            await future
    elif case == "oneway":
        for number in range(count):
            await producer.send_oneway(Message(topic=topic, body=body(number, size)))
    elif case == "batch":
        starts = iter(range(0, count, BATCH))

        async def batches() -> None:
            for start in starts:
                part = range(start, min(start + BATCH, count))
                await producer.send_batch([Message(topic=topic, body=body(number, size)) for number in part])

        await asyncio.gather(*(batches() for _ in range(width)))
    else:
        raise SystemExit(f"no case {case}")


async def looped(asked: Any) -> None:
    if asked.case == "push":
        seen = Seen(asked.count)

        async def listen(message: MessageExt) -> None:
            seen.mark(message.body)

        clock = Clock()
        consumer = aio.PushConsumer(asked.namesrv, group=group(), listener=listen, consume_from=FIRST)
        consumer.subscribe(asked.topic)
        async with consumer:
            await asyncio.to_thread(seen.wait, 300)
            report_drain(clock, seen)
    elif asked.case == "lite":
        seen = Seen(asked.count)
        clock = Clock()
        async with aio.LitePullConsumer(asked.namesrv, group=group(), consume_from=FIRST) as lite:
            await lite.assign(await lite.fetch_message_queues(asked.topic))
            while not seen.finished.is_set():
                for message in await lite.poll():
                    seen.mark(message.body)
            report_drain(clock, seen)
    elif asked.case == "rate":
        await paced_aio(asked)
    else:
        batching = AutoBatch() if asked.case == "autobatch" else None
        async with aio.Producer(
            asked.namesrv, group=group(), max_in_flight=in_flight(asked), auto_batch=batching
        ) as producer:
            await send_aio(producer, asked.case, f"{asked.topic}-warm", WARM_UP, asked.size, asked.width)
            clock = Clock()
            await send_aio(producer, asked.case, asked.topic, asked.count, asked.size, asked.width)
            clock.report()


async def paced_aio(asked: Any) -> None:
    due: list[float] = [0.0] * asked.count
    sent: list[float] = []
    arrived: list[float] = []
    finished, warm = asyncio.Event(), asyncio.Event()

    async def listen(message: MessageExt) -> None:
        number = int(message.body[:8])
        warm.set()
        if due[number]:
            arrived.append(time.perf_counter() - due[number])
            if len(arrived) == asked.count:
                finished.set()

    consumer = aio.PushConsumer(asked.namesrv, group=group(), listener=listen, consume_from=FIRST)
    consumer.subscribe(asked.topic)
    async with aio.Producer(asked.namesrv, group=group()) as producer, consumer:
        await producer.send(Message(topic=asked.topic, body=body(0, asked.size)))
        await warm.wait()
        clock = Clock()
        loop = asyncio.get_running_loop()

        def send(number: int, when: float) -> None:
            due[number] = when
            future = loop.create_future()
            future.add_done_callback(lambda done: sent.append(time.perf_counter() - when))
            producer.begin(Message(topic=asked.topic, body=body(number, asked.size)), future)

        def pace() -> None:
            """Timers of a loop are a millisecond wide: that much would be measured of them."""
            for number, when in at_rate(asked.count, asked.rate):
                loop.call_soon_threadsafe(send, number, when)

        await asyncio.to_thread(pace)
        async with asyncio.timeout(60):
            await finished.wait()
        clock.report(sent=quantiles_ms(sent), arrived=quantiles_ms(arrived))


def main() -> None:
    on_loop = "--aio" in sys.argv
    if on_loop:
        sys.argv.remove("--aio")
    with arguments() as asked:
        if on_loop:
            import uvloop

            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(looped(asked))
        else:
            blocking(asked)
    sys.stdin.read()


if __name__ == "__main__":
    main()
