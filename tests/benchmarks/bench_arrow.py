"""``mqspark.arrow.read``: a topic in place and over TCP, beside the decoder alone and a plain scan of the same log.

Run it with ``python -m tests.benchmarks arrow``. The broker is a process of its own, the reader is this one, and
does what a program would: it takes each batch and its columns. Rows and CRC sums of all bodies are checked once for
each way, not while it is measured. Beside the rate by the clock stands the rate by this process's processor time; the
memory is what a new process has of its own, beyond what it had before the read, looked at with each batch. With mvn,
the same rows are read from Kafka, too, as programs with Polars or DuckDB do: by confluent-kafka, to Arrow.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import confluent_kafka
import numpy as np
import pyarrow as pa

import mqspark.arrow
from mqspark.arrow.records.decode import Decoder
from mqspark.arrow.records.records import Records
from mqspark.store.recovery.rebuild import SegmentRecords
from tests.benchmarks.bench_broker import broker
from tests.benchmarks.kafka import PARTITIONS, Kafka
from tests.benchmarks.report import OURS, figure

TOPIC = "Bench"
COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "tags")
_PIECE_ROWS = 8_192
_MANY = 100_000
"""Messages that confluent-kafka is asked for at once: it gives what it has."""
KAFKA = "Kafka, confluent-kafka"


def rows_of(count: int, size: int) -> Iterator[pa.RecordBatch]:
    for first in range(0, count, 50_000):
        numbers = range(first, min(count, first + 50_000))
        keys = [f"k{number:09d}" for number in numbers]
        yield pa.record_batch({"key": keys, "value": [f"{number:0{size}d}".encode() for number in numbers]})


def crcs(batches: Iterator[pa.RecordBatch]) -> tuple[int, int]:
    count = total = 0
    for batch in batches:
        for value in batch.column("value").to_pylist():
            total += zlib.crc32(value)
        count += batch.num_rows
    return count, total


def counted(batches: Iterator[pa.RecordBatch]) -> int:
    return sum(batch.num_rows for batch in batches)


def decoder_alone(log: Path, columns: tuple[str, ...]) -> int:
    """All records of the log's segments by one decoder, positions known: what Spark's workers spend at least."""
    rows = 0
    for path in sorted(log.iterdir()):
        runs = SegmentRecords(path, int(path.name), path.stat().st_size, guarded=True)
        records = Records(runs.view)
        decoder = Decoder(columns, topic=TOPIC, broker="", queue_id=0)
        for run in runs.between(0, 1 << 62):
            for first in range(0, len(run), _PIECE_ROWS):
                for batch in decoder.batches(records, np.ascontiguousarray(run[first : first + _PIECE_ROWS])):
                    rows += batch.num_rows
    return rows


def plain_scan(log: Path, used: int) -> int:
    """Every byte of the log once, by numpy."""
    left, total = used, 0
    for path in sorted(log.iterdir()):
        part = np.memmap(path, np.uint8, "r")[:left]
        left -= len(part)
        total += int(part.max(initial=0))
    return total


def own_mb() -> float:
    """Memory of this process that is of no file."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) / 1024


def grown_mb(nameserver: str, local: bool) -> float:
    batches = mqspark.arrow.read(nameserver, TOPIC, columns=COLUMNS, local=local)
    before = most = own_mb()
    for _ in batches:
        most = max(most, own_mb())
    return most - before


def memory(nameserver: str) -> None:
    for name, local in (("in place", True), ("over TCP", False)):
        with ProcessPoolExecutor(1, get_context("spawn")) as fresh:
            grown = fresh.submit(grown_mb, nameserver, local).result()
        figure(f"{name}, memory", "MB", [grown], side=OURS, less_is_better=True)
        print(f"{name + ', memory':42} {grown:7.0f} MB more than before", flush=True)


def to_kafka(address: str, rows: Iterator[pa.RecordBatch]) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": address, "linger.ms": 50})
    for batch in rows:
        pairs = zip(batch.column("key").to_pylist(), batch.column("value").to_pylist(), strict=True)
        for number, (key, value) in enumerate(pairs):
            while True:
                try:
                    producer.produce(TOPIC, value, key, partition=number % PARTITIONS)
                    break
                except BufferError:
                    producer.poll(0.1)
    if left := producer.flush(60):
        raise SystemExit(f"{left} messages are not at Kafka")


def from_kafka(address: str, count: int) -> Iterator[pa.RecordBatch]:
    """The values of all messages. Raises SystemExit when some do not come."""
    settings = {"bootstrap.servers": address, "group.id": "bench", "enable.auto.commit": False}
    consumer = confluent_kafka.Consumer({**settings, "queued.max.messages.kbytes": 1 << 18})
    first = confluent_kafka.OFFSET_BEGINNING
    consumer.assign([confluent_kafka.TopicPartition(TOPIC, each, first) for each in range(PARTITIONS)])
    left = count
    while left:
        messages = consumer.consume(min(left, _MANY), timeout=1)
        if not messages:
            raise SystemExit(f"Kafka: {left} messages do not come: the figures are void")
        left -= len(messages)
        yield pa.record_batch({"value": pa.array([each.value() for each in messages], pa.binary())})
    consumer.close()


def beside(count: int, size: int, rounds: int, expected: tuple[int, int]) -> None:
    with tempfile.TemporaryDirectory(prefix="bench-arrow-") as folder:
        kafka = Kafka(Path(folder))
        try:
            to_kafka(kafka.address, rows_of(count, size))
            assert crcs(from_kafka(kafka.address, count)) == expected
            measured(
                f"{KAFKA}, value alone",
                count,
                rounds,
                lambda: counted(from_kafka(kafka.address, count)),
                count,
            )
        finally:
            kafka.stop()


def measured(name: str, count: int, rounds: int, read: Callable[[], int], expected: int | None) -> None:
    clock, processor = [], []
    for _ in range(rounds):
        started, used = time.perf_counter(), time.process_time()
        found = read()
        clock.append(count / (time.perf_counter() - started) / 1e6)
        processor.append(count / (time.process_time() - used) / 1e6)
        assert expected is None or found == expected, f"{name}: {found} rows, not {expected}"
    side = KAFKA if name.startswith(KAFKA) else OURS
    figure(name, "M rows/s", clock, side=side)
    figure(f"{name}, by processor time", "M rows/s", processor, side=side)
    by_clock, by_processor = sorted(clock)[rounds // 2], sorted(processor)[rounds // 2]
    print(f"{name:42} {by_clock:7.2f} M rows/s, {by_processor:7.2f} by processor time", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-arrow-") as root:
        with broker(Path(root), "flushDiskType=ASYNC_FLUSH") as process:
            nameserver = process.ready["namesrv"]
            sent = pa.RecordBatchReader.from_batches(
                pa.schema({"key": pa.string(), "value": pa.binary()}), rows_of(given.rows, given.size)
            )
            assert mqspark.arrow.write(nameserver, TOPIC, sent) == given.rows
            expected = crcs(rows_of(given.rows, given.size))
            for local in (True, False):
                assert crcs(mqspark.arrow.read(nameserver, TOPIC, local=local)) == expected
            (log,) = Path(root).glob("*/commitlog")
            used = given.rows * (given.size + 200)
            for columns in (COLUMNS, ("value",)):
                names = "all seven columns" if columns is COLUMNS else "value alone"

                def read(local: bool, columns: tuple[str, ...] = columns) -> int:
                    return counted(mqspark.arrow.read(nameserver, TOPIC, columns=columns, local=local))

                for what, way in (
                    (f"in place, {names}", lambda read=read: read(True)),
                    (f"over TCP, {names}", lambda read=read: read(False)),
                    (f"decoder alone, {names}", lambda columns=columns: decoder_alone(log, columns)),
                ):
                    is_alone = what.startswith("decoder")
                    measured(what, given.rows, given.rounds, way, None if is_alone else given.rows)
            memory(nameserver)
            measured("plain scan of the log", given.rows, given.rounds, lambda: plain_scan(log, used), None)
        if shutil.which("mvn") is not None:
            beside(given.rows, given.size, given.rounds, expected)


if __name__ == "__main__":
    main()
