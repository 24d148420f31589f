"""The load of the workload for latency at our broker; KafkaLoad.java is the same at Kafka.

    python -m tests.benchmarks.client_sides.spark_load NAMESRV TOPIC RESULTS RATE WARM_UP_S SECONDS

A message is ``NUMBER DUE``, DUE in microseconds of this process's clock; a result is ``DUE WHAT COUNT``: of WHAT so
many messages are counted so far, the newest of them was due at DUE. A result is late from then. The first message waits
for its result, then the others come at the rate, warm-up included. At the end every message must be counted once.
Prints one line of JSON with the delays of the results whose messages were due after the warm-up.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

import uvloop

from mqspark.aio import ConsumeFromWhere, Message, MessageExt, Producer, PushConsumer
from tests.benchmarks.client_sides.side import quantiles_ms

LISTENED_S = 120.0


class Results:
    def __init__(self, count: int) -> None:
        self.counts: dict[bytes, int] = {}
        self.counted = 0
        self.delays: list[float] = []
        self.measured_from_us = float("inf")
        self.count = count
        self.first, self.finished = asyncio.Event(), asyncio.Event()

    async def heard(self, message: MessageExt) -> None:
        now_us = time.perf_counter() * 1e6
        due, what, text = message.body.split()
        count = int(text)
        self.counted += count - self.counts.get(what, 0)
        self.counts[what] = count
        if int(due) >= self.measured_from_us:
            self.delays.append((now_us - int(due)) / 1e6)
        self.first.set()
        if self.counted >= self.count:
            self.finished.set()


async def main(namesrv: str, topic: str, results: str, rate: float, warm_up: int, count: int) -> None:
    seen = Results(count)
    consumer = PushConsumer(
        namesrv, group=f"load-{time.monotonic_ns()}", listener=seen.heard,
        consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
    )  # fmt: skip
    consumer.subscribe(results)
    waiting: set[Any] = set()
    async with Producer(namesrv, group=f"load-{time.monotonic_ns()}") as producer, consumer:
        began = 0.0
        for number in range(count):
            due = began + number / rate if number else time.perf_counter()
            # The loop's timers are of a millisecond; a message that is less than that early is sent.
            if (wait := due - time.perf_counter()) > 0.0005:
                await asyncio.sleep(wait)
            if number == warm_up:
                seen.measured_from_us = int(due * 1e6)
            future = await producer.send_async(Message(topic=topic, body=b"%08d %d" % (number, due * 1e6)))
            waiting.add(future)
            future.add_done_callback(waiting.discard)
            if not number:
                await asyncio.wait_for(seen.first.wait(), LISTENED_S)
                began = time.perf_counter() + 0.1
        try:
            await asyncio.wait_for(seen.finished.wait(), LISTENED_S)
        except TimeoutError:
            raise SystemExit(f"{seen.counted} of {count} counted") from None
    print(json.dumps({"results": len(seen.delays), **quantiles_ms(seen.delays)}), flush=True)


if __name__ == "__main__":
    texts, numbers = sys.argv[1:4], [float(each) for each in sys.argv[4:7]]
    rate = numbers[0]
    warm_up = int(numbers[1] * rate)
    uvloop.run(main(texts[0], texts[1], texts[2], rate, warm_up, warm_up + int(numbers[2] * rate)))
