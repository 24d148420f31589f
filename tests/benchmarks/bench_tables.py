"""Live tables: how long a message takes from its send until a reader of the Delta table finds it, and whose processor
time that costs.

A process sends messages of about 100 B at a steady rate to four queues of each topic, in batches; the job ``tables``
keeps a table of each topic in a process of its own; Spark's start is before the figures. This process watches the
tables' logs: a commit is visible when it is found there, looked for each 50 ms. The time of a send is the message's
``bornTimestamp``, a column of the table. At the end every message has to be there once. Formats: ``raw`` (bodies as
they are), ``json`` and ``avro`` (three fields). ``--upkeep``: the job ``table-upkeep`` runs meanwhile, again and again.

    python -m tests.benchmarks tables [--rate 15000] [--seconds 60] [--formats raw,json,avro] [--tables 1] [--upkeep]
"""

from __future__ import annotations

import argparse
import io
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.synchronize import Event
from pathlib import Path
from urllib.parse import unquote

import fastavro
import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import pyspark_pymq
from mqspark.client.blocking import BlockingClient
from mqspark.message import Message
from mqspark_jobs.tables.tabledefs import TableDirectory, new_definition
from mqspark_jobs.tables.tablerecord import newest_version
from tests.benchmarks.report import figure
from tests.spark.delta_jars import NO_DELTA, delta_jars
from tests.support.dev import DevCluster
from tests.support.processes import process, tail
from tests.support.waiting import eventually

QUEUES = 4
ROUND_S = 0.05
LOOK_S = 0.05
LAG_S = 0.5
"""Between looks how far the tables are."""
START_S = 300.0
ROW = {"id": 12345, "price": 9.5, "note": "x" * 66}
DDL = "id bigint, price double, note string"
AVRO = {
    "type": "record",
    "name": "Row",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "price", "type": "double"},
        {"name": "note", "type": "string"},
    ],
}
FORMATS = {
    "raw": {},
    "json": {"payloadFormat": "json", "payloadSchema": DDL},
    "avro": {"payloadFormat": "avro", "payloadSchema": msgspec.json.encode(AVRO).decode()},
}
_TICKS = os.sysconf("SC_CLK_TCK")


def body_of(name: str) -> bytes:
    if name != "avro":
        return msgspec.json.encode(ROW)
    sink = io.BytesIO()
    fastavro.schemaless_writer(sink, AVRO, ROW)
    return sink.getvalue()


def send(
    nameserver: str, address: str, topics: list[str], body: bytes, rate: int, seconds: float, begun: Event
) -> None:
    """Batches to each queue in turn, at their times; one that is late is sent at once."""
    cluster = Sender(nameserver, address)
    places = [(topic, queue) for queue in range(QUEUES) for topic in topics]
    count = max(1, round(rate * ROUND_S / QUEUES))
    batches = {topic: [Message.of(topic, body)] * count for topic in topics}
    begun.set()
    began = time.monotonic()
    for number in range(round(rate * seconds / count)):
        due = began + number * count / rate
        if (wait := due - time.monotonic()) > 0:
            time.sleep(wait)
        topic, queue = places[number % len(places)]
        cluster.send(topic, queue, batches[topic])
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

    def files(self) -> list[tuple[float, Path]]:
        """Those that came with new rows, and when each was seen."""
        found = []
        for at_s, path in self.seen:
            for line in path.read_bytes().splitlines():
                added = msgspec.json.decode(line).get("add")
                if added is not None and added["dataChange"]:
                    found.append((at_s, Path(self.url, unquote(added["path"]))))
        return found

    def delays_s(self, since_ms: int) -> list[pa.Array]:
        """The delays of every message that was sent at that time or later."""
        found = []
        for at_s, path in self.files():
            born = pq.read_table(path, columns=["bornTimestamp"]).column(0)
            born_ms = pc.cast(born.cast(pa.timestamp("ms")), pa.int64())
            born_ms = born_ms.filter(pc.greater_equal(born_ms, since_ms))
            found.append(pc.subtract(at_s, pc.divide(born_ms.cast(pa.float64()), 1000.0)))
        return found

    def rows(self) -> int:
        return sum(pq.read_metadata(path).num_rows for _, path in self.files())


@dataclass(frozen=True, slots=True)
class Task:
    """A process as /proc has it."""

    parent: int
    name: str
    own_s: float
    with_ended_children_s: float


def tasks() -> dict[int, Task]:
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = path.read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended meanwhile
        words = text.rpartition(")")[2].split()
        ticks = [int(each) / _TICKS for each in words[11:15]]
        name = text[text.index("(") + 1 : text.rindex(")")]
        found[int(path.parent.name)] = Task(int(words[1]), name, sum(ticks[:2]), sum(ticks))
    return found


class Spent:
    """Processor seconds by part since it was made. ``roots``: the first process of each part."""

    def __init__(self, **roots: int) -> None:
        self._roots = roots
        self._before = self._now()

    def _now(self) -> dict[str, float]:
        there, found = tasks(), defaultdict[str, float](float)
        for part, root in self._roots.items():
            family, jvms = {root}, set()
            while more := {each for each, task in there.items() if task.parent in family} - family:
                family |= more
            for pid in family & there.keys():
                if there[pid].name != "java":
                    continue
                jvms.add(pid)
                found[f"{part}, JIT"] += compiling_s(pid)
                found[f"{part}, JVM"] += there[pid].own_s
            for pid in (family & there.keys()) - jvms:
                if jvms and there[pid].parent in family - {root}:
                    found[f"{part}, Python workers"] += there[pid].with_ended_children_s
                else:
                    found[part] += there[pid].own_s
        found["reader"] = there[os.getpid()].own_s
        return found

    def add(self, part: str, root: int) -> None:
        """A process that began later; it replaces one of the same part, which has ended."""
        self._roots[part] = root

    def since(self) -> dict[str, float]:
        now = self._now()
        return {part: max(0.0, now[part] - self._before.get(part, 0.0)) for part in sorted(now)}


def compiling_s(pid: int) -> float:
    """The time of a JVM's compiler threads that are there."""
    used = 0.0
    for path in Path("/proc", str(pid), "task").glob("*/stat"):
        try:
            text = path.read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if "(C1 Compiler" in text or "(C2 Compiler" in text:
            used += sum(map(int, text.rpartition(")")[2].split()[11:13])) / _TICKS
    return used


def measure(name: str, asked: argparse.Namespace, jars: str, folder: Path) -> None:
    with DevCluster(folder / "store", "flushDiskType=ASYNC_FLUSH") as cluster:
        directory, watched = TableDirectory(folder / "tables"), {}
        for number in range(asked.tables):
            topic = cluster.create_topic(f"Fresh{number}", QUEUES)
            definition = new_definition(
                f"fresh{number}", topic, cluster.nameserver, str(folder / topic),
                starts={}, is_upsert=False, options=FORMATS[name],
            )  # fmt: skip
            directory.add(definition)
            watched[topic] = Watched(definition.url)
        command = [sys.executable, str(Path("jobs/run.py").absolute())]
        options = ["--tables", str(directory.path), "--delta-jars", jars, "--master", asked.master]
        settings = {**pyspark_pymq.tuned_settings(), "spark.ui.enabled": "false", "spark.driver.memory": "2g"}
        settings |= {"spark.driver.host": "127.0.0.1", "spark.log.level": "ERROR"}
        for setting in [*(f"{key}={value}" for key, value in settings.items()), *asked.conf]:
            options += ["--conf", setting]
        context = multiprocessing.get_context("spawn")
        begun = context.Event()
        arguments = [cluster.nameserver, cluster.address, list(watched), body_of(name), asked.rate]
        sender = context.Process(target=send, args=(*arguments, asked.warm_up + asked.seconds, begun))
        log, lags = folder / "tables.log", []
        with ExitStack() as stack:
            interval = ["--interval-ms", str(asked.interval_ms)]
            job = stack.enter_context(process([*command, "tables", *options, *interval], log))
            eventually(lambda: all(map(is_made, watched.values())), lambda: tail(log), START_S)
            sender.start()
            begun.wait(60)
            since_ms, spent, looked = round((time.time() + asked.warm_up) * 1000), None, 0.0
            upkeeps: list[subprocess.Popen[str]] = []
            used: dict[str, float] = {}
            while sender.is_alive():
                for each in watched.values():
                    each.look()
                if time.monotonic() - looked >= LAG_S:
                    looked = time.monotonic()
                    lags.append(behind(cluster, watched))
                    used = {} if spent is None else spent.since()
                if time.time() * 1000 >= since_ms:
                    if spent is None:
                        spent = Spent(load=sender.pid or 0, broker=cluster.pid, tables=job.pid)
                    if asked.upkeep and (not upkeeps or upkeeps[-1].poll() is not None):
                        started = process([*command, "table-upkeep", *options], folder / "upkeep.log")
                        upkeeps.append(stack.enter_context(started))
                        spent.add("upkeep", upkeeps[-1].pid)
                time.sleep(LOOK_S)
            sent = sum(sum(cluster.max_offsets(topic).values()) for topic in watched)
            eventually(lambda: caught_up(cluster, watched), lambda: tail(log), START_S)
    show(name, asked, watched, since_ms, sent, used, max(lags))


def show(
    name: str, asked: argparse.Namespace, watched: dict[str, Watched], since_ms: int, sent: int,
    used: dict[str, float], lag: int,
) -> None:  # fmt: skip
    rows = sum(each.rows() for each in watched.values())
    if rows != sent:
        raise SystemExit(f"{name}: {rows} rows of {sent} messages: void")
    delays = pa.chunked_array(
        [delays for each in watched.values() for delays in each.delays_s(since_ms)], pa.float64()
    )
    p50, p95, most = (float(each) for each in pc.quantile(delays, [0.5, 0.95, 1.0]).to_pylist())
    figure(f"table of {name}, from send to visible, P50", "s", [p50], less_is_better=True)
    figure(f"table of {name}, from send to visible, P95", "s", [p95], less_is_better=True)
    figure(f"table of {name}, most messages behind", "", [lag], less_is_better=True)
    commits = sum(at_s * 1000 >= since_ms for each in watched.values() for at_s, _ in each.seen)
    print(
        f"   {name}: {asked.tables} table(s), {asked.rate:,} messages/s for {asked.seconds:g} s: P50 {p50:.2f} s, P95"
        f" {p95:.2f} s, longest {most:.2f} s; at most {lag:,} behind; {commits} commits; {rows:,} rows of {sent:,}"
        " messages\n   processor time a message in µs: "
        + ", ".join(
            f"{part} {used_s / (asked.rate * asked.seconds) * 1e6:.1f}" for part, used_s in used.items()
        ),
        flush=True,
    )
    if asked.upkeep:
        optimized = sum(
            b'"operation":"OPTIMIZE"' in path.read_bytes()
            for each in watched.values()
            for _, path in each.seen
        )
        print(f"   {name}: {optimized} commits were compactions", flush=True)
    if asked.commits:
        for each in watched.values():
            before_s = since_ms / 1000 - asked.warm_up
            for at_s, path in each.seen:
                print(f"      {path.stem[-4:]} after {at_s - before_s:.2f} s")
                before_s = at_s


def is_made(table: Watched) -> bool:
    return newest_version(table.url).number >= 0


def behind(cluster: DevCluster, watched: dict[str, Watched]) -> int:
    missing = 0
    for topic, each in watched.items():
        record = newest_version(each.url).record
        missing += sum(cluster.max_offsets(topic).values())
        missing -= 0 if record is None else sum(record.ends.values())
    return missing


def caught_up(cluster: DevCluster, watched: dict[str, Watched]) -> bool:
    for each in watched.values():
        each.look()
    return behind(cluster, watched) == 0


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks tables", description=__doc__)
    parser.add_argument("--rate", type=int, default=15_000, help="messages a second of all tables")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument(
        "--warm-up", type=float, default=20.0, help="seconds of sends before those that count: Spark compiles"
    )
    parser.add_argument("--formats", default=",".join(FORMATS))
    parser.add_argument("--tables", type=int, default=1, help="kept by one query, a topic each")
    parser.add_argument("--upkeep", action="store_true")
    parser.add_argument("--interval-ms", type=int, default=1_000)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--conf", action="append", default=[], help="more settings of the session, KEY=VALUE")
    parser.add_argument("--commits", action="store_true", help="show when each was seen")
    asked = parser.parse_args(arguments)
    jars = delta_jars()
    if jars is None:
        raise SystemExit(NO_DELTA)
    for name in asked.formats.split(","):
        with tempfile.TemporaryDirectory(prefix="bench-tables-") as folder:
            measure(name, asked, ",".join(map(str, jars)), Path(folder))


if __name__ == "__main__":
    main(sys.argv[1:])
