"""``mqspark`` with an event loop that times what runs on it.

    python -m tests.benchmarks.watched RESULT COMMAND ...       as ``mqspark COMMAND ...``; RESULT is written at the end

Every callback, step of a task, timer and arrival of bytes is timed, by the clock and by the processor time of the
loop's thread. The difference is waiting: for the disk, for another thread that holds the interpreter, for a processor.
The longest are kept with their names; those from LOOK_S on also with where they were after that time. RESULT is JSON.
SIGUSR1 forgets what was seen so far: a start is no stall. SIGUSR2 writes it to RESULT.1, RESULT.2 and so on, and then
forgets it: a story after the other.
"""

from __future__ import annotations

import asyncio
import gc
import heapq
import json
import math
import resource
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import uvloop

from mqspark_server.cli import main as mqspark
from mqspark_server.net.grpc.grpcconnection import GrpcConnection
from mqspark_server.net.remotingconnection import RemotingConnection

LONGEST = 40
LONG_S = 0.002
LOOK_S = 0.0015
BUCKETS_US = 1.25
"""Ratio of two neighbouring buckets of the histogram."""
FRAMES = 3
ARRIVALS = ("data_received", "connection_made", "connection_lost", "eof_received", "resume_writing")


class Longest:
    """The longest of many, by one measure."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, dict[str, Any]]] = []

    def note(self, took: float, number: int, seen: Callable[[], dict[str, Any]]) -> None:
        if len(self._heap) < LONGEST:
            heapq.heappush(self._heap, (took, number, seen()))
        elif took > self._heap[0][0]:
            heapq.heapreplace(self._heap, (took, number, seen()))

    def shown(self) -> list[dict[str, Any]]:
        return [seen for _, _, seen in sorted(self._heap, reverse=True)]


class Turns:
    """What ran, and for how long."""

    def __init__(self) -> None:
        self._began = self._began_cpu = 0.0
        self._gc_began = self._gc = 0.0
        self._where = self._where_cpu = ""
        self._is_disturbed = False
        self._faults = 0
        self._gc_info = ""
        self.forget()
        gc.callbacks.append(self._collected)

    def disturb(self) -> None:
        """What runs now does not count: the watch itself has interrupted it."""
        self._is_disturbed = True

    def forget(self, *ignored: object) -> None:
        self.by_clock, self.by_processor = Longest(), Longest()
        self.counts: Counter[int] = Counter()
        self.long, self.long_cpu = Counter[str](), Counter[str]()
        self.number = 0
        self.since = time.monotonic()

    def timed(self, callback: Callable[..., object]) -> Callable[..., object]:
        def run(*args: object) -> object:
            if self._began:  # within another one
                return callback(*args)
            self._gc, self._where, self._where_cpu = 0.0, "", ""
            self._is_disturbed = False
            self._faults = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
            self._began_cpu = time.thread_time()
            self._began = time.perf_counter()
            try:
                return callback(*args)
            finally:
                took, cpu = time.perf_counter() - self._began, time.thread_time() - self._began_cpu
                self._began = 0.0
                if not self._is_disturbed:
                    self._note(callback, took, cpu)

        return run

    def _note(self, callback: Callable[..., object], took: float, cpu: float) -> None:
        self.number += 1
        faults = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - self._faults
        self.counts[max(0, math.ceil(math.log(max(took * 1e6, 1.0), BUCKETS_US)))] += 1
        if took >= LONG_S:
            self.long[named(callback)] += 1
        if cpu >= LONG_S:
            self.long_cpu[named(callback)] += 1

        def seen() -> dict[str, Any]:
            return {
                "what": named(callback),
                "ms": took * 1e3,
                "cpu_ms": cpu * 1e3,
                "gc_ms": self._gc * 1e3,
                "gc": self._gc_info,
                "faults": faults,
                "at_s": time.monotonic() - self.since,
                "where": self._where_cpu or self._where,
            }

        self.by_clock.note(took, self.number, seen)
        self.by_processor.note(cpu, self.number, seen)

    def _collected(self, phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            self._gc_began = time.perf_counter()
        else:
            self._gc += time.perf_counter() - self._gc_began
            self._gc_info = f"generation {info['generation']}, {info['collected']:,} freed"

    def look(self, number: int, frame: FrameType | None) -> None:
        if not self._began or self._where_cpu:
            return
        if not self._where and time.perf_counter() - self._began >= LOOK_S:
            self._where = described(frame)
        if time.thread_time() - self._began_cpu >= LOOK_S:
            self._where_cpu = described(frame)

    def quantile_ms(self, share: float) -> float:
        left = share * sum(self.counts.values())
        for bucket in sorted(self.counts):
            left -= self.counts[bucket]
            if left <= 0:
                return BUCKETS_US**bucket / 1e3
        return 0.0

    def write(self, path: Path) -> None:
        result = {
            "seconds": time.monotonic() - self.since,
            "turns": sum(self.counts.values()),
            "p99_ms": self.quantile_ms(0.99),
            "p99.9_ms": self.quantile_ms(0.999),
            "long": dict(self.long.most_common()),
            "long_cpu": dict(self.long_cpu.most_common()),
            "by_clock": self.by_clock.shown(),
            "by_processor": self.by_processor.shown(),
        }
        made = path.with_name(path.name + ".made")
        made.write_text(json.dumps(result, indent=1))
        made.rename(path)


def described(frame: FrameType | None) -> str:
    names: list[str] = []
    while frame is not None and len(names) < FRAMES:
        if "/tests/" not in frame.f_code.co_filename:
            path = "/".join(frame.f_code.co_filename.split("/")[-2:])
            names.append(f"{frame.f_code.co_qualname} ({path}:{frame.f_lineno})")
        frame = frame.f_back
    return " < ".join(names)


def named(callback: Any) -> str:
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        return f"task {owner.get_name()}, {getattr(owner.get_coro(), '__qualname__', '')}"
    return str(getattr(callback, "__qualname__", repr(callback)))


def watched_loop(turns: Turns) -> asyncio.AbstractEventLoop:
    class WatchedLoop(uvloop.Loop):
        def call_soon(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:
            return super().call_soon(turns.timed(callback), *args, context=context)

        def call_soon_threadsafe(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:
            return super().call_soon_threadsafe(turns.timed(callback), *args, context=context)

        def call_later(self, delay: float, callback: Any, *args: Any, context: Any = None) -> Any:
            return super().call_later(delay, turns.timed(callback), *args, context=context)

        def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> Any:
            # uvloop's own calls call_later.
            return super().call_at(when, callback, *args, context=context)

        def add_reader(self, fd: Any, callback: Any, *args: Any) -> None:
            super().add_reader(fd, turns.timed(callback), *args)

    return WatchedLoop()


def arriving(turns: Turns, connection: type, name: str) -> Any:
    plain = getattr(connection, name)
    timed = turns.timed(plain)

    def run(self: object, *args: object) -> object:
        return timed(self, *args)

    return run


def main(arguments: list[str]) -> None:
    result, command = Path(arguments[0]), arguments[1:]
    turns = Turns()
    for connection in (RemotingConnection, GrpcConnection):
        for name in ARRIVALS:
            if name in vars(connection):
                setattr(connection, name, arriving(turns, connection, name))
    uvloop.new_event_loop = lambda: watched_loop(turns)
    signal.signal(signal.SIGUSR1, turns.forget)
    stories = count(1)

    def tell(*ignored: object) -> None:
        turns.disturb()
        turns.write(result.with_name(f"{result.name}.{next(stories)}"))
        turns.forget()

    signal.signal(signal.SIGUSR2, tell)
    signal.signal(signal.SIGALRM, turns.look)
    signal.setitimer(signal.ITIMER_REAL, LOOK_S / 2, LOOK_S / 2)
    try:
        mqspark(command)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        turns.write(result)


if __name__ == "__main__":
    main(sys.argv[1:])
