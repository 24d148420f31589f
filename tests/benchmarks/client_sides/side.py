"""What the sides of the client benchmark have in common: the command line, bodies, what was seen, the figures.

A side is one client library in a process of its own. Every side takes the same arguments,

    CASE NAMESRV TOPIC COUNT SIZE WIDTH RATE

prints one line of JSON and goes on until its input ends. Standard library only: the process of the C++ client imports
nothing of the project.
"""

from __future__ import annotations

import argparse
import json
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

BATCH = 32
WARM_UP = 3_000
DIGITS = 8


def body(number: int, size: int) -> bytes:
    return b"%0*d" % (DIGITS, number) + b"x" * (size - DIGITS)


class Seen:
    """Which of ``count`` numbers arrived, marked from any thread."""

    def __init__(self, count: int) -> None:
        self.times = bytearray(count)
        self.left = count
        self.first_s = 0.0
        self.finished = threading.Event()
        self._lock = threading.Lock()

    def mark(self, content: bytes) -> None:
        number = int(content[:DIGITS])
        with self._lock:
            if not self.first_s:
                self.first_s = time.perf_counter()
            self.times[number] += 1
            if self.times[number] == 1:
                self.left -= 1
                if not self.left:
                    self.finished.set()

    def wait(self, timeout_s: float) -> None:
        if not self.finished.wait(timeout_s):
            raise SystemExit(f"{self.left} of {len(self.times)} messages did not arrive")

    @property
    def doubled(self) -> int:
        return sum(self.times) - len(self.times)


class Clock:
    """Seconds by the clock and of this process's processor time."""

    def __init__(self) -> None:
        self._began, self._cpu = time.perf_counter(), time.process_time()

    def report(self, **more: Any) -> None:
        said = {
            "seconds": time.perf_counter() - self._began,
            "cpu_s": time.process_time() - self._cpu,
            **more,
        }
        print(json.dumps(said), flush=True)


def report_drain(clock: Clock, seen: Seen) -> None:
    """From the first message to the last, so that how long a group takes to come together does not count."""
    clock.report(seconds=time.perf_counter() - seen.first_s, doubled=seen.doubled)


def at_rate(count: int, rate: float) -> Iterator[tuple[int, float]]:
    """Numbers, each no earlier than it is due and with the time at which it was: an open loop."""
    began = time.perf_counter() + 0.1
    for number in range(count):
        due = began + number / rate
        while (wait := due - time.perf_counter()) > 0:
            time.sleep(wait)
        yield number, due


def quantiles_ms(values: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(values, n=1000)
    return {
        "p50": cuts[499] * 1e3,
        "p99": cuts[989] * 1e3,
        "p99.9": cuts[998] * 1e3,
        "max": max(values) * 1e3,
    }


def in_threads(width: int, count: int, step: int, work: Callable[[range], None]) -> None:
    """``work`` gets the numbers below ``count`` in pieces of ``step``, ``width`` pieces at a time."""
    starts = iter(range(0, count, step))
    failures: list[BaseException] = []

    def run() -> None:
        try:
            for start in starts:
                work(range(start, min(start + step, count)))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run) for _ in range(width)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


@contextmanager
def arguments() -> Iterator[argparse.Namespace]:
    parser = argparse.ArgumentParser()
    parser.add_argument("case")
    parser.add_argument("namesrv")
    parser.add_argument("topic")
    parser.add_argument("count", type=int)
    parser.add_argument("size", type=int)
    parser.add_argument("width", type=int)
    parser.add_argument("rate", type=float)
    yield parser.parse_args()
