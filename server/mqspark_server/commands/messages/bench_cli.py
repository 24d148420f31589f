"""``mqspark bench``: measures from here how fast a cluster stores and returns messages."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Annotated, Any, TypeVar

import click

from mqspark.errors import MQError
from mqspark.message import Message
from mqspark_server.commands.administration.group_cli import chosen_queues
from mqspark_server.commands.clustercommand import ClusterShell, noun
from mqspark_server.commands.completing import TopicName
from mqspark_server.commands.messages.reading import WHERE, Span, Where, spans
from mqspark_server.commands.parameters import Option
from mqspark_server.commands.refusals import CommandFailed, describe
from mqspark_server.commands.times import DURATION

bench = noun("bench", "Measure a cluster from here: rates and percentiles.")
GROUP = "mqspark_bench"
_MAX_SAMPLES = 1_000_000
T = TypeVar("T")
_Duration = Annotated[int, DURATION, Option("Maximum duration.", "-d", default="10s")]
_Count = Annotated[int | None, click.IntRange(min=1), Option("Maximum number of messages.", "-c")]


class _BenchRun:
    """Counts messages, and prints one line per second to a terminal."""

    def __init__(self, duration_ms: int, count: int | None) -> None:
        self._end = time.monotonic() + duration_ms / 1000
        self._limit = count
        self.began = time.monotonic()
        self.begun = 0
        self.messages = 0
        self.size_bytes = 0
        self.failures = 0
        self.samples: list[float] = []
        """Milliseconds."""
        self._shown = self.began

    def take(self, count: int) -> int:
        """How many of ``count`` messages may still be started."""
        if time.monotonic() >= self._end:
            return 0
        allowed = count if self._limit is None else min(count, self._limit - self.begun)
        self.begun += max(0, allowed)
        return max(0, allowed)

    def done(self, messages: int, size_bytes: int, began: float) -> None:
        """``began``: by ``time.perf_counter``."""
        self.messages += messages
        self.size_bytes += size_bytes
        if len(self.samples) < _MAX_SAMPLES:
            self.samples.append((time.perf_counter() - began) * 1000)
        now = time.monotonic()
        if now - self._shown >= 1 and sys.stderr.isatty():
            self._shown = now
            rate = self.messages / (now - self.began)
            click.echo(
                f"\r{self.messages:,} messages, {rate:,.0f}/s, {self.failures} failures   ",
                err=True,
                nl=False,
            )

    def row(self, **more: Any) -> dict[str, Any]:
        elapsed_s = max(1e-9, time.monotonic() - self.began)
        if sys.stderr.isatty():
            click.echo("\r" + " " * 70 + "\r", err=True, nl=False)
        ordered = sorted(self.samples)
        figures = {
            f"p{name}": round(ordered[min(len(ordered) - 1, int(len(ordered) * share))], 3)
            if ordered
            else None
            for name, share in (("50", 0.5), ("90", 0.9), ("99", 0.99), ("999", 0.999))
        }
        return {
            "messages": self.messages,
            "seconds": round(elapsed_s, 3),
            "messages_per_second": round(self.messages / elapsed_s, 1),
            "mb_per_second": round(self.size_bytes / elapsed_s / 1e6, 3),
            "failures": self.failures,
            **{f"request_{name}_millis": value for name, value in figures.items()},
            "request_max_millis": round(ordered[-1], 3) if ordered else None,
            **more,
        }


@bench.command("send")
async def bench_send(
    shell: ClusterShell,
    *,
    topic: TopicName,
    size: Annotated[int, click.IntRange(1, 4 << 20), Option("Bytes per body.", "-s")] = 128,
    batch: Annotated[int, click.IntRange(1, 1000), Option("Messages per request.")] = 1,
    in_flight: Annotated[int, click.IntRange(1, 4096), Option("Concurrent requests.")] = 64,
    duration: _Duration,
    count: _Count,
) -> None:
    """Send messages to TOPIC as fast as possible. Brokers that create topics by themselves create it."""
    from mqspark.client.producer.producer import Producer

    is_new = topic not in await shell.known_topics()
    body = os.urandom(size)
    run = _BenchRun(duration, count)
    first: list[MQError] = []

    async def worker(producer: Producer) -> None:
        while number := run.take(batch):
            began = time.perf_counter()
            try:
                if batch == 1:
                    await producer.send(Message(topic, body))
                else:
                    await producer.send_batch([Message(topic, body) for _ in range(number)])
            except MQError as error:
                run.failures += 1
                first.append(error)
                if run.failures >= in_flight and not run.messages:
                    return
                continue
            run.done(number, number * size, began)

    async with Producer(
        shell.namesrv,
        group=GROUP,
        send_timeout_ms=shell.timeout_ms,
        options=shell.options,
        max_in_flight=in_flight,
        compress_from_bytes=8 << 20,
    ) as producer:
        if is_new and run.take(1):
            # One message creates the topic, or the command ends with one error.
            began = time.perf_counter()
            await producer.send(Message(topic, body))
            run.done(1, size, began)
        await _until_interrupted(
            (worker(producer) for _ in range(in_flight)),
            lambda: shell.output.record(run.row(body_size=size, batch=batch, in_flight=in_flight)),
        )
    if first:
        raise CommandFailed(f"{run.failures} sends failed: {describe(first[0])}")


@bench.command("consume")
async def bench_consume(
    shell: ClusterShell,
    topic: TopicName,
    begin: Annotated[Where, WHERE, Option("As for mqspark consume.", "--from", default="earliest")],
    duration: _Duration,
    count: _Count,
) -> None:
    """Read the messages of TOPIC as fast as possible, all queues concurrently, without a group."""
    wanted = await spans(shell, await chosen_queues(shell, topic, ()), begin)
    if count is not None:
        wanted = _cut(wanted, count)
    run = _BenchRun(duration, count)

    async def worker(queue: Any, place: int, end: int) -> None:
        while place < end and (room := run.take(min(32, end - place))):
            began = time.perf_counter()
            found = await shell.admin.read(queue, place, max_messages=room)
            number = len(found.messages)
            run.begun -= room - number
            run.done(number, sum(len(message.body) for message in found.messages), began)
            if found.next_offset <= place:
                return
            place = found.next_offset

    await _until_interrupted(
        (worker(queue, span.first, span.end) for queue, span in wanted.items()),
        lambda: shell.output.record(run.row(queues=len(wanted))),
    )


def _cut(wanted: Mapping[T, Span], count: int) -> dict[T, Span]:
    """Spans with ``count`` offsets in all, evenly from all queues as far as they have them."""
    cut: dict[T, Span] = {}
    shortest_first = sorted(wanted, key=lambda queue: wanted[queue].end - wanted[queue].first)
    for place, queue in enumerate(shortest_first):
        first, end = wanted[queue]
        share = -(-count // (len(shortest_first) - place))
        cut[queue] = Span(first, min(end, first + share))
        count -= max(0, cut[queue].end - first)
    return cut


async def _until_interrupted(workers: Iterable[Awaitable[None]], show: Callable[[], None]) -> None:
    """Run the workers, and show the figures, also of a run that Ctrl-C ends."""
    try:
        await asyncio.gather(*workers)
    finally:
        show()
