"""Live tables: how long a message takes from its send until a reader of the Delta table finds it.

A process sends messages of 100 B at a steady rate to four queues, in batches; the job ``tables`` keeps the table in a
process of its own; Spark's start is before the figures. This process watches the table's log: a commit is visible when
it is found there, looked for each 50 ms. The time of a send is the message's ``bornTimestamp``, a column of the table.
At the end every message has to be there once. Formats: ``raw`` (bodies as they are), ``json`` (three fields).

    python -m tests.benchmarks tables [--rate 15000] [--seconds 60] [--formats raw,json] [--master local[2]]
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
import time
from multiprocessing.synchronize import Event
from pathlib import Path
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import pyspark_pymq
from mqspark.client.blocking import BlockingClient
from mqspark.message import Message
from mqspark_jobs.tables.tabledefs import TableDirectory, new_definition
from mqspark_jobs.tables.tablerecord import newest_version
from tests.benchmarks.machine import own_s
from tests.benchmarks.report import figure
from tests.spark.delta_jars import NO_DELTA, delta_jars
from tests.support.dev import DevCluster
from tests.support.processes import process, tail
from tests.support.waiting import eventually

QUEUES = 4
ROUND_S = 0.05
LOOK_S = 0.05
WARM_UP_S = 20.0
"""Of sends before those that count: Spark compiles, and the first commit makes the table."""
START_S = 300.0
SCHEMA = "id bigint, price double, note string"
FORMATS = {"raw": {}, "json": {"payloadFormat": "json", "payloadSchema": SCHEMA}}


def send(nameserver: str, address: str, topic: str, rate: int, seconds: float, begun: Event) -> None:
    """Batches to each queue in turn, at their times; one that is late is sent at once."""
    cluster = Sender(nameserver, address)
    count = max(1, round(rate * ROUND_S / QUEUES))
    head = Message.of(topic, b'{"id":12345,"price":9.5,"note":"' + b"x" * 66 + b'"}')
    batch = [head] * count
    begun.set()
    began = time.monotonic()
    for number in range(round(rate * seconds / count)):
        due = began + number * count / rate
        if (wait := due - time.monotonic()) > 0:
            time.sleep(wait)
        cluster.send(topic, number % QUEUES, batch)
    cluster.client.close()


class Sender(DevCluster):
    """The connection of a cluster that another process runs."""

    def __init__(self, nameserver: str, address: str) -> None:
        self.nameserver, self.address = nameserver, address
        self.client = BlockingClient(nameserver)


class Watched:
    """A table whose commits are seen as they come."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.seen: list[tuple[float, Path]] = []
        """When each commit was found, in seconds since the epoch."""
        self._next = 0

    def look(self) -> None:
        while True:
            path = Path(self.url, "_delta_log", f"{self._next:020d}.json")
            if not path.exists():
                return
            self.seen.append((time.time(), path))
            self._next += 1

    def delays_s(self, since_ms: int) -> pa.Array:
        """Of every message that was sent at that time or later."""
        found = []
        for at_s, path in self.seen:
            for line in path.read_bytes().splitlines():
                added = msgspec.json.decode(line).get("add")
                if added is None:
                    continue
                born = pq.read_table(
                    Path(self.url, unquote(added["path"])), columns=["bornTimestamp"]
                ).column(0)
                born_ms = pc.cast(born.cast(pa.timestamp("ms")), pa.int64())
                born_ms = born_ms.filter(pc.greater_equal(born_ms, since_ms))
                found.append(pc.subtract(at_s, pc.divide(born_ms.cast(pa.float64()), 1000.0)))
        return pa.chunked_array(found, pa.float64())


def measure(name: str, asked: argparse.Namespace, jars: str, folder: Path) -> None:
    with DevCluster(folder / "store", "flushDiskType=ASYNC_FLUSH") as cluster:
        topic = cluster.create_topic("Fresh", QUEUES)
        directory = TableDirectory(folder / "tables")
        definition = new_definition(
            "fresh", topic, cluster.nameserver, str(folder / "fresh"), starts={}, is_upsert=False, options=FORMATS[name]
        )  # fmt: skip
        directory.add(definition)
        watched = Watched(definition.url)
        command = [sys.executable, "jobs/run.py", "tables", "--tables", str(directory.path)]
        command += ["--delta-jars", jars, "--master", asked.master]
        settings = {**pyspark_pymq.tuned_settings(), "spark.ui.enabled": "false", "spark.driver.memory": "2g"}
        settings |= {"spark.driver.host": "127.0.0.1", "spark.log.level": "ERROR"}
        for key, value in settings.items():
            command += ["--conf", f"{key}={value}"]
        context = multiprocessing.get_context("spawn")
        begun = context.Event()
        total_s = WARM_UP_S + asked.seconds
        sender = context.Process(
            target=send, args=(cluster.nameserver, cluster.address, topic, asked.rate, total_s, begun)
        )
        log = folder / "tables.log"
        with process([command[0], str(Path(command[1]).absolute()), *command[2:]], log):
            eventually(lambda: newest_version(definition.url).number >= 0, lambda: tail(log), START_S)
            sender.start()
            begun.wait(60)
            since_ms = round((time.time() + WARM_UP_S) * 1000)
            began_s = own_s()
            lags = []
            while sender.is_alive():
                watched.look()
                lags.append(behind(cluster, topic, definition.url))
                time.sleep(LOOK_S)
            sent = sum(cluster.max_offsets(topic).values())
            eventually(
                lambda: (watched.look(), behind(cluster, topic, definition.url))[1] == 0,
                lambda: tail(log),
                START_S,
            )
            used_s = own_s() - began_s
    delays = watched.delays_s(since_ms)
    rows = sum(pq.read_metadata(each).num_rows for each in Path(definition.url).rglob("*.parquet"))
    if rows != sent:
        raise SystemExit(f"{name}: {rows} rows of {sent} messages: void")
    p50, p95, most = (float(each) for each in pc.quantile(delays, [0.5, 0.95, 1.0]).to_pylist())
    figure(f"table of {name}, from send to visible, P50", "s", [p50], less_is_better=True)
    figure(f"table of {name}, from send to visible, P95", "s", [p95], less_is_better=True)
    figure(f"table of {name}, most messages behind", "", [max(lags)], less_is_better=True)
    print(
        f"   {name}: {asked.rate:,} messages/s for {asked.seconds:g} s: P50 {p50:.2f} s, P95 {p95:.2f} s, longest"
        f" {most:.2f} s; at most {max(lags):,} behind; {len(watched.seen)} commits; {used_s / sent * 1e6:.1f} µs of"
        f" processor a message, all processes; {rows:,} rows of {sent:,} messages",
        flush=True,
    )


def behind(cluster: DevCluster, topic: str, url: str) -> int:
    record = newest_version(url).record
    return sum(cluster.max_offsets(topic).values()) - (0 if record is None else sum(record.ends.values()))


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks tables", description=__doc__)
    parser.add_argument("--rate", type=int, default=15_000)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--formats", default=",".join(FORMATS))
    parser.add_argument("--master", default="local[2]")
    asked = parser.parse_args(arguments)
    jars = delta_jars()
    if jars is None:
        raise SystemExit(NO_DELTA)
    for name in asked.formats.split(","):
        with tempfile.TemporaryDirectory(prefix="bench-tables-") as folder:
            measure(name, asked, ",".join(map(str, jars)), Path(folder))


if __name__ == "__main__":
    main(sys.argv[1:])
