"""Spark's workload for latency: a topic → Spark → another topic, 1,000 records a second, 5 partitions.

    python -m tests.benchmarks spark-latency [--rate N] [--seconds S] [--rounds R] [--query stateless windowed]
        [--side pymq Kafka "Kafka, real time" "nothing in Python" "nothing in Java"] [--warm-up S]

The delay is from when a message was due to its result at a listener, by one clock, in the process of the load
(client_sides/spark_load.py, KafkaLoad.java). ``stateless`` takes a text apart and puts it together again; ``windowed``
counts messages by window of ten seconds and one of a hundred keys, and writes the counts that have changed.
``pymq`` and ``Kafka`` are micro-batches one after the other with the same settings of Spark; ``Kafka, real time`` is
Spark's Real-Time Mode with its connector for Kafka, which has no micro-batches. Every message must be counted once.
``nothing in Python`` has no broker (python_floor.py): what Spark takes for any source and sink in Python. Of ``nothing
in Java``, Spark's own rows to its sink that drops them, only the parts of a micro-batch are known.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.benchmarks import machine
from tests.benchmarks.bench_spark import rotated, session
from tests.benchmarks.client_sides.side import quantiles_ms
from tests.benchmarks.kafka import Kafka, kafka_jars
from tests.benchmarks.python_floor import PythonFloor
from tests.benchmarks.report import figure, peer, ratio
from tests.spark.conftest import stop_session
from tests.support.dev import DevCluster

PARTITIONS = 5
SLOTS = 2 * PARTITIONS
"""A query in Real-Time Mode runs the tasks of both its stages all the time."""
COMPARED = ("pymq", "Kafka", "Kafka, real time")
FLOOR, FLOOR_IN_JAVA = "nothing in Python", "nothing in Java"
SIDES = (*COMPARED, FLOOR, FLOOR_IN_JAVA)
QUERIES = ("stateless", "windowed")
WARM_UP_S = 10.0
LOAD_TIMEOUT_S = 240
PARTS = ("triggerExecution", "latestOffset", "queryPlanning", "walCommit", "addBatch", "commitOffsets")
PROGRESS = 50
"""The parts of so many micro-batches are shown."""
KAFKA_LOAD = Path(__file__).parent / "client_sides" / "KafkaLoad.java"


def changed(query: str, frame: Any) -> Any:
    """The query: from ``value`` and ``timestamp`` to ``value``."""
    words = frame.selectExpr("split(string(value), ' ') words", "timestamp")
    if query == "stateless":
        return words.selectExpr("concat_ws(' ', words[1], words[0], '1') value")
    from pyspark.sql import functions as f

    rows = words.selectExpr("int(words[0]) % 100 key", "bigint(words[1]) due", "timestamp")
    windows = rows.withWatermark("timestamp", "20 seconds").groupBy(
        f.window("timestamp", "10 seconds"), "key"
    )
    counted = windows.agg(f.count("*").alias("n"), f.max("due").alias("due"))
    return counted.selectExpr("concat_ws(' ', due, concat(unix_micros(window.start), '-', key), n) value")


def batches_of(query: Any) -> int:
    last = query.lastProgress
    return 0 if last is None else int(last["batchId"])


class Bench:
    def __init__(
        self, spark: Any, cluster: DevCluster, kafka: Kafka | None, folder: Path, warm_up_s: float
    ) -> None:
        self.spark, self.cluster, self.folder, self.warm_up_s = spark, cluster, folder, warm_up_s
        self.kafka_address = "" if kafka is None else kafka.address
        spark.dataSource.register(PythonFloor)
        self.brokers = [cluster.pid, *([kafka.pid] if kafka is not None else [])]
        self._number = 0

    @contextlib.contextmanager
    def running(self, side: str, query: str, topic: str, results: str, checkpoint: str) -> Iterator[Any]:
        start = self.spark.readStream
        if side == "pymq":
            reader = start.format("pymq").option("nameserver", self.cluster.nameserver).option("topic", topic)
        else:
            reader = start.format("kafka").option("kafka.bootstrap.servers", self.kafka_address)
            reader = reader.option("subscribe", topic)
        frame = changed(query, reader.option("startingOffsets", "earliest").load())
        writer = frame.writeStream.option("checkpointLocation", checkpoint)
        real_time = side.endswith("real time")
        # Real-Time Mode takes update only, which of rows that are not aggregated is the same as append.
        writer = writer.outputMode("append" if query == "stateless" and not real_time else "update")
        if side != "pymq":
            writer = writer.format("kafka").option("kafka.bootstrap.servers", self.kafka_address)
            writer = writer.option("topic", results)
            writer = writer.trigger(realTime="5 minutes") if real_time else writer
        elif query == "stateless":
            writer = writer.format("pymq").option("nameserver", self.cluster.nameserver)
            writer = writer.option("topic", results)
        else:
            # Spark lets no data source in Python take updates of a stream; a batch of each micro-batch is.
            writer = writer.foreachBatch(self.written_to(results))
        running = writer.start()
        try:
            yield running
        finally:
            running.stop()

    def written_to(self, results: str) -> Callable[[Any, int], None]:
        def write(frame: Any, batch: int) -> None:
            writer = frame.write.format("pymq").option("nameserver", self.cluster.nameserver)
            writer.option("topic", results).mode("append").save()

        return write

    def load(self, side: str) -> list[str]:
        if side == "pymq":
            return [sys.executable, "-m", "tests.benchmarks.client_sides.spark_load", self.cluster.nameserver]
        classpath = ":".join(map(str, kafka_jars("broker")))
        return ["java", "-Xmx512m", "-cp", classpath, str(KAFKA_LOAD), self.kafka_address]

    def topics(self, side: str, *topics: str) -> None:
        if side == "pymq":
            for topic in topics:
                self.cluster.create_topic(topic, PARTITIONS)
            return
        jvm = self.spark._jvm
        properties, made = jvm.java.util.Properties(), jvm.java.util.ArrayList()
        properties.put("bootstrap.servers", self.kafka_address)
        for topic in topics:
            made.append(
                jvm.org.apache.kafka.clients.admin.NewTopic(
                    topic, jvm.java.util.Optional.of(PARTITIONS), jvm.java.util.Optional.empty()
                )
            )
        admin = jvm.org.apache.kafka.clients.admin.Admin.create(properties)
        try:
            admin.createTopics(made).all().get()
        finally:
            admin.close()

    def delays(self, side: str, query: str, rate: int, seconds: float) -> dict[str, float]:
        self._number += 1
        topic, results = f"In-{self._number}", f"Out-{self._number}"
        self.topics(side, topic, results)
        words = [*self.load(side), topic, results, str(rate), str(self.warm_up_s), str(seconds)]
        with self.running(side, query, topic, results, self.checkpoint()) as running:
            with self.told(f"{query}, {side}", running):
                done = subprocess.run(
                    words, capture_output=True, text=True, timeout=LOAD_TIMEOUT_S, check=False
                )
            failure = running.exception()
        if done.returncode or failure is not None:
            raise SystemExit(f"{side}, {query}: the figures are void: {done.stderr[-2000:]} {failure}")
        said: dict[str, float] = json.loads(done.stdout)
        return said

    def floor(self, side: str, rate: int, seconds: float) -> dict[str, float]:
        """No delays of Java's own rows."""
        self._number += 1
        delays = self.folder / f"delays-{self._number}"
        began = time.perf_counter()
        if side == FLOOR:
            reader = self.spark.readStream.format("floor").option("rate", rate).option("began", began)
            frame, sink = changed("stateless", reader.load()), "floor"
        else:
            reader = self.spark.readStream.format("rate-micro-batch").option("numPartitions", 1)
            rows = reader.option("rowsPerBatch", rate // 10).load()
            frame, sink = rows.selectExpr("concat_ws(' ', value, timestamp, '1') value"), "noop"
        writer = frame.writeStream.format(sink).option("delays", str(delays))
        running = writer.option("checkpointLocation", self.checkpoint()).start()
        try:
            while running.lastProgress is None:
                time.sleep(0.1)
            time.sleep(self.warm_up_s)
            measured_from_us = time.perf_counter() * 1e6
            with self.told(f"stateless, {side}", running):
                time.sleep(seconds)
        finally:
            running.stop()
        if not delays.exists():
            return {}
        rows = itertools.chain.from_iterable(map(json.loads, delays.read_text().splitlines()))
        late = [delay for due, delay in rows if due >= measured_from_us]
        return {"results": len(late), **quantiles_ms(late)}

    def checkpoint(self) -> str:
        return str(self.folder / f"checkpoint-{self._number}")

    @contextlib.contextmanager
    def told(self, what: str, running: Any) -> Iterator[None]:
        """Says the parts of a micro-batch, and its processor time in Spark's JVM and Python."""
        used_s, first = self.spark_s(), batches_of(running)
        yield
        used_s, count = self.spark_s() - used_s, batches_of(running) - first
        took = [each["durationMs"] for each in running.recentProgress[-PROGRESS:]]
        if took:  # Real-Time Mode has no micro-batch to tell of meanwhile
            parts = {part: round(statistics.median(each.get(part, 0) for each in took)) for part in PARTS}
            cpu = f", {used_s / count * 1e3:.0f} ms of processor time" if count else ""
            print(f"    {what}: a micro-batch takes {parts} ms{cpu}", flush=True)

    def spark_s(self) -> float:
        """Processor time of Spark, without brokers and the loads that have ended."""
        loads = resource.getrusage(resource.RUSAGE_CHILDREN)
        others = sum(machine.own_s(pid=pid) for pid in self.brokers)
        return machine.own_s() - others - loads.ru_utime - loads.ru_stime


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks spark-latency")
    parser.add_argument("--rate", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--warm-up", type=float, default=WARM_UP_S)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--query", nargs="+", choices=QUERIES, default=QUERIES)
    parser.add_argument("--side", nargs="+", choices=SIDES, default=COMPARED)
    options = parser.parse_args(arguments)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mqspark-bench-")))
        kafka = None
        if any(side.startswith("Kafka") for side in options.side):
            kafka = Kafka(folder)
            stack.callback(kafka.stop)
            peer("Kafka", broker="4.1.0, KRaft, its defaults", heap="1 GiB", partitions=PARTITIONS)
        cluster = stack.enter_context(DevCluster(folder / "store", "flushDiskType=ASYNC_FLUSH"))
        more = {
            "spark.sql.shuffle.partitions": str(PARTITIONS),
            # What Real-Time Mode asks for.
            "spark.sql.streaming.stateStore.providerClass":
                "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
            "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",
        }  # fmt: skip
        spark = session(f"local[{SLOTS}]", "tuned", ("spark",), folder, more)
        stack.callback(stop_session, spark)
        bench = Bench(spark, cluster, kafka, folder, options.warm_up)
        for query in options.query:
            floors = (FLOOR, FLOOR_IN_JAVA)
            sides = [side for side in options.side if query == "stateless" or side not in floors]
            found: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
            for number in range(options.rounds):
                for side in rotated(sides, number):
                    if side in floors:
                        found[side].append(bench.floor(side, options.rate, options.seconds))
                    else:
                        found[side].append(bench.delays(side, query, options.rate, options.seconds))
            show(
                f"{query}, {options.rate:,} a second",
                {side: each for side, each in found.items() if all(each)},
            )
        print(f"  [load {os.getloadavg()[0]:.0f}]")


def show(name: str, found: dict[str, list[dict[str, float]]]) -> None:
    for side, rounds in found.items():
        middle = {what: statistics.median(each[what] for each in rounds) for what in ("p50", "p99", "p99.9")}
        for what in middle:
            values = [each[what] for each in rounds]
            figure(f"Spark's latency, {name}, {what}", "ms", values, side=side, less_is_better=True)
        compared = ""
        if side != "pymq" and "pymq" in found:
            ours = statistics.median(each["p50"] for each in found["pymq"])
            compared = f"; p50 of pymq is {ratio(ours / middle['p50'])} of it"
        said = ", ".join(f"{what} {value:.1f} ms" for what, value in middle.items())
        print(f"  {name}, {side}: {said}, {rounds[0]['results']:,.0f} results{compared}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
