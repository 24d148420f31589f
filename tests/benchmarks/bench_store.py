"""The store alone, no sockets: put and commit, group commit, get, restart, rebuild.

Run it with ``python -m tests.benchmarks.bench_store``. Every figure comes with a check of the content.
Medians of several rounds; settings are printed with the figures.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shutil
import statistics
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from mqspark.base.clock import SystemClock
from mqspark.message import encode_host, encode_properties
from mqspark.record.record import PendingRecord, decode_records
from mqspark.store import FlushDiskType, FlushJob, GetStatus, MessageStore, StoreConfig
from tests.benchmarks.report import figure
from tests.support.store_tools import complete, flush, maintain

BORN_HOST = encode_host("10.0.0.1", 50000)
PROPERTIES = encode_properties(
    {
        "UNIQ_KEY": "7F0000010001000000000000000000A1",
        "WAIT": "true",
        "TAGS": "TagA",
        "CLUSTER": "Bench",
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
    }
)
TAG_CODE = 2598919


def message(topic: str, queue_id: int, body: bytes) -> PendingRecord:
    return PendingRecord(
        topic=topic,
        queue_id=queue_id,
        born_timestamp_ms=1_700_000_000_000,
        born_host=BORN_HOST,
        body=body,
        properties=PROPERTIES,
        tags_code=TAG_CODE,
    )


@contextmanager
def scratch() -> Iterator[Path]:
    root = Path(tempfile.mkdtemp(prefix="bench-store-"))
    try:
        yield root
    finally:
        shutil.rmtree(root)


def make(root: Path, *, sync: bool = False, index: bool = True) -> MessageStore:
    config = StoreConfig(
        store_path_root_dir=str(root),
        message_index_enable=index,
        flush_disk_type=FlushDiskType.SYNC_FLUSH if sync else FlushDiskType.ASYNC_FLUSH,
    )
    return MessageStore(config, SystemClock(), store_host=encode_host("127.0.0.1", 10911))


@contextmanager
def opened(**how: bool) -> Iterator[tuple[MessageStore, Path]]:
    """An empty store, and where it is."""
    with scratch() as root:
        store = make(root, **how)
        store.open()
        yield store, root


def fill(store: MessageStore, count: int, body: bytes, queues: int, per_turn: int) -> float:
    """Seconds for ``count`` puts with a commit every ``per_turn``."""
    topics = [(f"Bench{n // 4}", n % 4) for n in range(queues)]
    targets = itertools.cycle(topics)
    put, commit = store.appender.put, store.pipeline.commit
    started = time.perf_counter()
    for _ in range(count // per_turn):
        for topic, queue_id in itertools.islice(targets, per_turn):
            put(message(topic, queue_id, body))
        commit()
    return time.perf_counter() - started


def fill_sync(
    store: MessageStore, count: int, body: bytes, per_turn: int, worker: ThreadPoolExecutor
) -> float:
    """The same under group commit: one sync in flight while the next group fills, at most 256 unacked."""
    started = time.perf_counter()
    done = acked = 0
    ends: list[int] = []
    flushing: tuple[FlushJob, Future[None]] | None = None
    while acked < count:
        if done < count and done - acked < 256:
            for _ in range(per_turn):
                ends.append(store.appender.put(message("Bench0", done & 3, body))[2])
                done += 1
            store.pipeline.commit()
        elif flushing is not None:
            flushing[1].result()
        if flushing is not None and flushing[1].done():
            progress = store.pipeline.end_flush(flushing[0])
            while acked < done and ends[acked] <= progress.acked:
                acked += 1
            flushing = None
        if flushing is None:
            job = store.pipeline.begin_flush()
            if job is not None:
                flushing = (job, worker.submit(job.run))
    return time.perf_counter() - started


def drain(store: MessageStore, topic: str, queue_id: int, per_pull: int, codes: frozenset[int] | None) -> int:
    offset = found = 0
    while True:
        result = store.reads.get(topic, queue_id, offset, per_pull, 1 << 20, codes)
        if result.status is not GetStatus.FOUND:
            return found
        found += result.count
        offset = result.next_offset


def verify(store: MessageStore, body: bytes, queues: int, count: int) -> None:
    expected = zlib.crc32(body)
    seen = 0
    for n in range(queues):
        topic, queue_id = f"Bench{n // 4}", n % 4
        offset = 0
        while True:
            result = store.reads.get(topic, queue_id, offset, 500, 1 << 22)
            if result.status is not GetStatus.FOUND:
                break
            for message in decode_records(b"".join(result.buffers)):
                if message.queue_offset != offset or zlib.crc32(message.body) != expected:
                    raise SystemExit(f"wrong message at {topic}/{queue_id}/{offset}: the figures are void")
                offset += 1
                seen += 1
    if seen != count:
        raise SystemExit(f"{seen} of {count} messages: the figures are void")


def repeated(rounds: int, measure: Callable[[], float]) -> list[float]:
    return [measure() for _ in range(rounds)]


def say(what: str, count: int, times: list[float]) -> None:
    seconds = statistics.median(times)
    figure(what, "/s", [count / each for each in times])
    print(f"{what:<66} {count / seconds:>12,.0f} /s {seconds / count * 1e6:>9.2f} µs")


def say_ms(what: str, elapsed_ms: float, more: str = "") -> None:
    figure(what, "ms", [elapsed_ms], less_is_better=True)
    print(f"{what:<66} {elapsed_ms:>12.1f} ms{more}")


def say_cpu(what: str, costs_s: list[float], side: str, more: str = "") -> None:
    """Processor time each."""
    figure(f"{what}, processor time", "µs", [cost * 1e6 for cost in costs_s], side=side, less_is_better=True)
    print(f"{f'{what}, {side}, processor time':<66} {statistics.median(costs_s) * 1e6:>12.2f} µs{more}")


def puts(count: int, rounds: int) -> None:
    for size, queues, per_turn in ((1000, 4, 64), (100, 4, 64), (1000, 4, 1), (1000, 1000, 64)):
        body = bytes(range(256)) * 4
        body = body[:size]

        def measure(body: bytes = body, queues: int = queues, per_turn: int = per_turn) -> float:
            with opened() as (store, _):
                fill(store, queues * 2, body, queues, 1)  # the files are made once
                seconds = fill(store, count, body, queues, per_turn)
                verify(store, body, queues, count // per_turn * per_turn + queues * 2)
                store.close()
            return seconds

        say(f"put + commit, {size} B, {queues} queues, {per_turn} a commit", count, repeated(rounds, measure))


def group_commits(count: int, rounds: int) -> None:
    body = bytes(1000)

    def measure() -> float:
        with opened(sync=True) as (store, _), ThreadPoolExecutor(1) as worker:
            seconds = fill_sync(store, count, body, 64, worker)
            verify(store, body, 4, count)
            store.close()
        return seconds

    say("put + commit + fdatasync before the ack, 1000 B, 256 in flight", count, repeated(rounds, measure))


def gets(count: int, rounds: int) -> None:
    body = bytes(1000)
    with opened() as (store, _):
        fill(store, count, body, 1, 64)
        for per_pull in (1, 32, 160):
            for codes in (None, frozenset([TAG_CODE])):

                def measure(per_pull: int = per_pull, codes: frozenset[int] | None = codes) -> float:
                    started = time.perf_counter()
                    if drain(store, "Bench0", 0, per_pull, codes) != count // 64 * 64:
                        raise SystemExit("messages are missing: the figures are void")
                    return time.perf_counter() - started

                label = f"get, 1000 B, {per_pull} a pull{', by tag' if codes else ''}"
                say(label, count, repeated(rounds, measure))
        store.close()
    with opened() as (store, _):
        fill(store, count, body, 4, 64)

        def measure_mixed() -> float:
            started = time.perf_counter()
            if sum(drain(store, "Bench0", n, 160, None) for n in range(4)) != count // 64 * 64:
                raise SystemExit("messages are missing: the figures are void")
            return time.perf_counter() - started

        say(
            "get, 1000 B, 160 a pull, records of 4 queues interleaved", count, repeated(rounds, measure_mixed)
        )
        store.close()


def restarts(count: int, queues: int) -> None:
    with opened() as (store, root):
        fill(store, count, bytes(1000), 4, 64)
        store.close()
        store = make(root)
        report = store.open()
        label = f"restart after a clean stop, {count:,} messages"
        say_ms(label, report.elapsed_ms)
        store.abandon()
        (root / "mqspark.checkpoint").unlink()
        store = make(root)
        report = store.open()
        rate = f"   {report.records / report.elapsed_ms * 1000:,.0f} records/s"
        say_ms("restart after a kill, everything read again", report.elapsed_ms, rate)
        store.close()
        shutil.rmtree(root / "consumequeue")
        store = make(root)
        report = store.open()
        rate = f"   {report.entries / report.elapsed_ms * 1000:,.0f} records/s"
        say_ms("all queues rebuilt", report.elapsed_ms, rate)
        verify(store, bytes(1000), 4, count // 64 * 64)
        store.close()
    with opened() as (store, root):
        fill(store, queues * 3, bytes(100), queues, 64)
        store.close()
        for label, clean in (("clean stop", True), ("kill", False)):
            store = make(root)
            started = time.perf_counter()
            store.open()
            elapsed_ms = (time.perf_counter() - started) * 1000
            say_ms(f"open with {queues:,} queues after a {label}", elapsed_ms)
            if clean:
                store.abandon()
            else:
                store.close()


def after_a_kill(gib: float) -> None:
    """A log of 1 KB messages in segments of 1 GiB, checkpointed about every second, as a killed process leaves it;
    then the same with all queues gone."""
    count = int(gib * (1 << 30) / 1200) // 64 * 64
    body = bytes(range(250)) * 4
    with opened() as (store, root):
        for _ in range(20):
            fill(store, count // 20, body, 4, 64)
            flush(store)
            complete(store.maintenance())
        done = sum(store.offsets.max_offset("Bench0", n) for n in range(4))
        fill(store, 20_000, body, 4, 64)
        done += 20_000 // 64 * 64
        store.abandon()
        size = sum(path.stat().st_size for path in (root / "commitlog").iterdir()) / (1 << 30)
        for label in ("restart after a kill", "restart after a kill, queues gone"):
            store = make(root)
            started, busy = time.perf_counter(), time.process_time()
            report = store.open()
            elapsed_ms, busy = (time.perf_counter() - started) * 1000, time.process_time() - busy
            if sum(store.offsets.max_offset("Bench0", n) for n in range(4)) != done:
                raise SystemExit("messages are missing: the figures are void")
            rate = report.records / elapsed_ms * 1000
            say_ms(
                f"{label}, segments of {size:.0f} GiB, {done:,} messages",
                elapsed_ms,
                f"   {report.records:,} read, {rate:,.0f}/s, {report.records / busy:,.0f} a processor second",
            )
            store.abandon()
            shutil.rmtree(root / "consumequeue")
        shutil.rmtree(root / "index")
        (root / "mqspark.index").unlink(missing_ok=True)
        store = make(root)
        store.open()
        started = time.perf_counter()
        while store.status.index_behind_bytes:
            complete(maintain(store))
        say("index built from the log", done, [time.perf_counter() - started])
        store.abandon()


def many_topics(topics: int, count: int) -> None:
    """Processor time of the store's part of a send, one topic against many; descriptors, memory and disk."""
    body = bytes(1000)
    costs = []
    for number in (1, topics):
        with opened() as (store, root):
            targets = itertools.cycle([f"Bench{n}" for n in range(number)])

            def put_all(count: int, targets: Iterator[str] = targets, store: MessageStore = store) -> None:
                for _ in range(count // 64):
                    for topic in itertools.islice(targets, 64):
                        store.appender.put(message(topic, 0, body))
                    store.pipeline.commit()

            put_all(max(number + 64, 6400))
            rounds = [_processor_time(lambda: put_all(count)) / (count // 64 * 64) for _ in range(3)]
            costs.append(min(rounds))
            pages = [int(word) for word in Path("/proc/self/statm").read_text().split()]
            disk = sum(p.stat().st_blocks for p in (root / "consumequeue").rglob("*") if p.is_file()) * 512
            more = (
                f"   {len(os.listdir('/proc/self/fd')):,} descriptors, {pages[1] >> 8:,} MiB resident,"
                f" queue files {disk >> 20} MiB"
            )
            say_cpu("put + commit, 1000 B, by topics", rounds, f"mqspark, {number:,} topics", more)
            store.abandon()
    print(f"{'the same, more than one topic costs':<66} {(costs[1] - costs[0]) * 1e6:>12.2f} µs")


def index_cost(count: int, rounds: int) -> None:
    """Processor time with and without the index, in turn."""
    body = bytes(1000)
    costs: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(rounds):
        for index in (True, False):
            with opened(index=index) as (store, _):
                fill(store, 6400, body, 4, 64)
                costs[index].append(
                    _processor_time(lambda store=store: fill(store, count, body, 4, 64)) / count
                )
                store.abandon()
    say_cpu("put + commit, 1000 B, by index", costs[True], "mqspark, with index")
    say_cpu("put + commit, 1000 B, by index", costs[False], "mqspark, without")


def _processor_time(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--queues", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--topics", type=int, default=10_000)
    parser.add_argument("--gib", type=float, default=4, help="of log for the restarts after a kill")
    parser.add_argument("--only", choices=["kill", "topics", "index"], help="one part")
    options = parser.parse_args()
    if options.only in (None, "index"):
        index_cost(options.messages, options.rounds)
    if options.only in (None, "topics"):
        many_topics(options.topics, options.messages // 4)
    if options.only in (None, "kill"):
        after_a_kill(options.gib)
    if options.only is not None:
        return
    puts(options.messages, options.rounds)
    group_commits(options.messages // 128 * 64, options.rounds)
    gets(options.messages, options.rounds)
    restarts(options.messages, options.queues)


if __name__ == "__main__":
    main()
