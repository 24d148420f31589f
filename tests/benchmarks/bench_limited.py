"""A broker in a control group with a limit of memory, under load: whether it lives, and what it holds.

Three processes: a name server, ``mqspark broker run`` in a memory control group of its own (of either version; needs
root), and this one, which sends 1 KiB messages with keys and tags at a rate, one of ten delayed, and consumes them.
The group counts the page cache of the log, too, which the kernel takes back; ``anonymous`` is what the broker itself
holds. After the load every message has to be counted at its queue and to have been consumed.

    python -m tests.benchmarks limited [--minutes M] [--limit-mb MB] [--rate MESSAGES_PER_S]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from mqspark import AdminClient, Message, MessageExt, Producer, PushConsumer
from tests.benchmarks.report import figure
from tests.support.processes import mqspark_command, process, ready_line, set_options

TOPIC = "Limited"
BODY = b"x" * 1024
DELAYED_EVERY = 10
SEND_TIMEOUT_MS = 30_000
SAMPLE_S = 1.0
REPORT_S = 60.0


class MemoryGroup:
    """A control group of this process's own. ``enter``: what a shell runs to be in it."""

    def __init__(self, limit_bytes: int) -> None:
        root = Path("/sys/fs/cgroup")
        self.is_v1 = (root / "memory").is_dir()
        self.path = (root / "memory" if self.is_v1 else root) / f"mqspark-limited-{os.getpid()}"
        self.path.mkdir()
        limit = "memory.limit_in_bytes" if self.is_v1 else "memory.max"
        (self.path / limit).write_text(str(limit_bytes))
        self.enter = f"echo $$ > {self.path / 'cgroup.procs'}"

    def used_bytes(self) -> int:
        name = "memory.usage_in_bytes" if self.is_v1 else "memory.current"
        return int((self.path / name).read_text())

    def anonymous_bytes(self) -> int:
        return self._numbers("memory.stat")["rss" if self.is_v1 else "anon"]

    def killed(self) -> int:
        """Processes that the kernel has killed for want of memory."""
        return self._numbers("memory.oom_control" if self.is_v1 else "memory.events")["oom_kill"]

    def _numbers(self, name: str) -> dict[str, int]:
        lines = (line.split() for line in (self.path / name).read_text().splitlines())
        return {words[0]: int(words[1]) for words in lines}

    def remove(self) -> None:
        self.path.rmdir()


@contextlib.contextmanager
def limited_broker(folder: Path, limit_bytes: int) -> Iterator[tuple[str, MemoryGroup]]:
    """The name server's address, and the broker's group."""
    names_log, log = folder / "namesrv.log", folder / "broker.log"
    names = [
        *mqspark_command(),
        "namesrv",
        "run",
        *set_options({"listenPort": 0, "bindAddress": "127.0.0.1"}),
    ]
    group = MemoryGroup(limit_bytes)
    try:
        with process(names, names_log, stdout=subprocess.PIPE) as name_server:
            namesrv = ready_line(name_server, names_log)["namesrv"]
            settings = {
                "listenPort": 0,
                "bindAddress": "127.0.0.1",
                "brokerIP1": "127.0.0.1",
                "httpPort": 0,
                "namesrvAddr": namesrv,
                "storePathRootDir": folder / "store",
                "diskSpaceWarningLevelRatio": 100,
                "autoCreateTopicEnable": True,
            }
            command = [*mqspark_command(), "broker", "run", *set_options(settings)]
            within = ["sh", "-c", f'{group.enter}; exec "$@"', "sh", *command]
            with process(within, log, stdout=subprocess.PIPE) as broker:
                ready_line(broker, log)
                yield namesrv, group
                assert broker.poll() is None, (
                    f"the broker ended with {broker.returncode}: {log.read_text()[-2_000:]}"
                )
    finally:
        group.remove()


class Samples:
    """Samples of the group, every SAMPLE_S."""

    def __init__(self, group: MemoryGroup) -> None:
        self._group = group
        self.used: list[int] = []
        self.anonymous: list[int] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._take)

    def _take(self) -> None:
        while not self._ended.wait(SAMPLE_S):
            self.used.append(self._group.used_bytes())
            self.anonymous.append(self._group.anonymous_bytes())

    def __enter__(self) -> Samples:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()


def send(namesrv: str, seconds: float, rate: float, samples: Samples) -> tuple[int, list[float]]:
    """How many were sent, and how long each took in seconds, ascending."""
    times: list[float] = []
    with Producer(namesrv, group="limited") as producer:
        began = reported = time.monotonic()
        while (now := time.monotonic()) - began < seconds:
            if len(times) >= (now - began) * rate:
                time.sleep(0.001)
                continue
            number = len(times)
            delay_level = 1 + number // DELAYED_EVERY % 3 if number % DELAYED_EVERY == 0 else None
            message = Message.of(
                TOPIC, BODY, keys=f"k{number}", tags=f"t{number % 7}", delay_level=delay_level
            )
            asked = time.perf_counter()
            producer.send(message, timeout_ms=SEND_TIMEOUT_MS)
            times.append(time.perf_counter() - asked)
            if now - reported >= REPORT_S:
                reported = now
                held = samples.anonymous[-1] >> 20
                print(f"   {now - began:,.0f} s: {len(times):,} sent, anonymous {held} MiB", flush=True)
    return len(times), sorted(times)


def count_stored(namesrv: str) -> int:
    with AdminClient(namesrv) as admin:
        return sum(each.max_offset for each in admin.topic_stats(TOPIC).values())


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks limited")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--limit-mb", type=int, default=256)
    parser.add_argument("--rate", type=float, default=1_000.0, help="messages per second, at most")
    asked = parser.parse_args(arguments)
    seen: set[str] = set()

    def listen(message: MessageExt) -> None:
        seen.add(message.keys)

    with tempfile.TemporaryDirectory(prefix="bench-limited-") as name:
        with limited_broker(Path(name), asked.limit_mb << 20) as (namesrv, group), Samples(group) as samples:
            consumer = PushConsumer(
                namesrv, group="readers", listener=listen, consume_from="CONSUME_FROM_FIRST_OFFSET"
            )
            consumer.subscribe(TOPIC)
            with consumer:
                sent, times = send(namesrv, asked.minutes * 60, asked.rate, samples)
                deadline = time.monotonic() + 120
                while len(seen) < sent and time.monotonic() < deadline:
                    time.sleep(0.1)
            stored = count_stored(namesrv)
            killed = group.killed()
    assert killed == 0, f"the kernel has killed {killed} processes of the group"
    assert len(seen) == sent, f"{sent:,} sent, {len(seen):,} consumed"
    assert stored >= sent, f"{sent:,} sent, {stored:,} stored"
    p50, p99 = (times[int(len(times) * share)] for share in (0.5, 0.99))
    print(
        f"limit {asked.limit_mb} MiB, {asked.minutes:g} min: {sent:,} sent, stored and consumed;"
        f" anonymous at most {max(samples.anonymous) >> 20} MiB, the group at most {max(samples.used) >> 20} MiB;"
        f" a send took {p50 * 1000:.1f} ms, p99 {p99 * 1000:.1f} ms, at most {times[-1] * 1000:.0f} ms"
    )
    figure("anonymous memory under a limit", "MiB", [max(samples.anonymous) / (1 << 20)], less_is_better=True)
    figure("sends under a limit of memory", "/s", [sent / (asked.minutes * 60)])


if __name__ == "__main__":
    main(sys.argv[1:])
