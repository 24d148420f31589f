"""Spark: batch reads, micro-batches and writes, beside Kafka's own connector on the same rows in the same session.

Both brokers run on this machine with their defaults; sides alternate A B A B and medians are reported. Every side is
checked for content (row count and the sum of all values' CRCs) before it is timed: a figure with a lost row is void.
Sink of the reads: noop. Without mvn (for Kafka's jars) only our side runs.

    python -m tests.benchmarks spark [--rows N] [--rounds R] [--master local[2]] [--no-kafka] [--sizes 100,1024]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyspark_pymq
from mqspark_jobs.command import delta_settings
from tests.spark.dev import DevCluster
from tests.spark.jars import ALONE, delta_jars, maven_jars

PARTITIONS = 4
MICRO_BATCH_ROWS = 1000
MICRO_BATCHES = 40
EXACTLY_ONCE_ROWS = 100_000
READY_S = 60

JARS = {
    "broker": [("org.apache.kafka", "kafka_2.13", "4.1.0", "")],
    # The token provider of 4.2.0 is not in every mirror; its preview serves the 4.2.0 connector as well.
    "spark": [
        ("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.2.0", ALONE),
        ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.1.0-preview1", ALONE),
        ("org.apache.kafka", "kafka-clients", "3.9.2", ALONE),
        ("org.apache.commons", "commons-pool2", "2.13.1", ALONE),
    ],
}


def kafka_jars(what: str) -> list[Path]:
    return maven_jars(f"kafka-4.1.0-{what}", JARS[what])


class Kafka:
    """A Kafka 4.1 broker of one node (KRaft) with its default settings."""

    def __init__(self, folder: Path) -> None:
        self.port, controller_port = free_port(), free_port()
        self.address = f"127.0.0.1:{self.port}"
        properties = folder / "server.properties"
        properties.write_text(
            "process.roles=broker,controller\nnode.id=1\n"
            f"controller.quorum.bootstrap.servers=127.0.0.1:{controller_port}\n"
            f"listeners=PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{controller_port}\n"
            "controller.listener.names=CONTROLLER\ninter.broker.listener.name=PLAINTEXT\n"
            f"log.dirs={folder}/logs\nnum.partitions={PARTITIONS}\n"
            "offsets.topic.replication.factor=1\ntransaction.state.log.replication.factor=1\n"
            "transaction.state.log.min.isr=1\n"
        )
        classpath = ":".join(str(jar) for jar in kafka_jars("broker"))
        java = ["java", "-Xmx1g", "-Xms1g", "-cp", classpath]
        log = (folder / "kafka.log").open("ab")
        with log:
            format_command = [
                "kafka.tools.StorageTool",
                "format",
                "--standalone",
                "-t",
                "MkU3OEVBNTcwNTJENDM2Qk",
            ]
            subprocess.run(
                [*java, *format_command, "-c", str(properties)], check=True, stdout=log, stderr=log
            )
            self._process = subprocess.Popen([*java, "kafka.Kafka", str(properties)], stdout=log, stderr=log)
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise RuntimeError((folder / "kafka.log").read_text()[-2000:])
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.2)
        raise RuntimeError("Kafka does not listen")

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(READY_S)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def session(master: str, kafka: bool, folder: Path) -> Any:
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master).config(map=pyspark_pymq.tuned_settings())
    builder = builder.config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
    builder = builder.config("spark.log.level", "ERROR").config("spark.driver.memory", "4g")
    builder = builder.config("spark.sql.warehouse.dir", str(folder / "warehouse"))
    jars = delta_jars() or []
    if kafka:
        jars = jars + kafka_jars("spark")
    if jars:
        builder = builder.config(map=delta_settings(",".join(map(str, jars))))
    return builder.getOrCreate()


def timed(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def alternating(sides: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Median seconds of each side, A B A B, after one round to warm up."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds + 1):
        for name, work in sides.items():
            seconds = timed(work)
            if number:
                times[name].append(seconds)
    return {name: statistics.median(values) for name, values in times.items()}


def noop(frame: Any) -> Callable[[], Any]:
    return lambda: frame().write.format("noop").mode("overwrite").save()


def checksum(frame: Any) -> tuple[int, int]:
    row = frame.selectExpr("count(*) n", "sum(crc32(value)) c").first()
    return row.n, row.c


class Bench:
    def __init__(
        self, spark: Any, cluster: DevCluster, kafka: Kafka | None, folder: Path, rounds: int
    ) -> None:
        self.spark, self.cluster, self.kafka = spark, cluster, kafka
        self.folder, self.rounds = folder, rounds
        self.results: dict[str, Any] = {}

    def rows(self, count: int, size: int) -> Any:
        """``count`` values of ``size`` bytes that do not compress, the same on both sides."""
        path = str(self.folder / f"rows-{size}")
        if not Path(path).exists():
            # sha2 gives 64 hex characters: as many of them as the size needs.
            parts = ", ".join(f"sha2(concat(id, '-{part}'), 256)" for part in range(-(-size // 64)))
            frame = self.spark.range(0, count, numPartitions=2).selectExpr(
                f"substr(concat({parts}), 1, {size}) value"
            )
            frame.write.parquet(path)
        return self.spark.read.parquet(path)

    def pymq(self, topic: str, schema: str | None = "value binary", **options: str) -> Any:
        reader = (
            self.spark.read.format("pymq").option("nameserver", self.cluster.nameserver).options(**options)
        )
        return (reader.schema(schema) if schema else reader).load(topic)

    def kafka_frame(self, topic: str, **options: str) -> Any:
        assert self.kafka is not None
        reader = self.spark.read.format("kafka").option("kafka.bootstrap.servers", self.kafka.address)
        return (
            reader.option("subscribe", topic).option("startingOffsets", "earliest").options(**options).load()
        )

    def write(self, count: int, size: int) -> None:
        frame = self.rows(count, size)
        topic = f"Bench{size}"
        self.cluster.create_topic(topic, PARTITIONS)
        own = frame.write.format("pymq").option("nameserver", self.cluster.nameserver).option("topic", topic)
        self.report(f"write {size} B, pymq", count, timed(own.mode("append").save))
        if self.kafka is not None:
            other = frame.write.format("kafka").option("kafka.bootstrap.servers", self.kafka.address)
            self.report(f"write {size} B, Kafka's connector", count, timed(other.option("topic", topic).save))
        expected = checksum(frame)
        sides = {"mapped": self.pymq(topic), "TCP": self.pymq(topic, localRead="false")}
        if self.kafka is not None:
            sides["Kafka"] = self.kafka_frame(topic)
        for name, side in sides.items():
            if (got := checksum(side)) != expected:
                raise SystemExit(
                    f"{name}: expected {expected} (rows, sum of CRCs), got {got}: the figures are void"
                )

    def read(self, count: int, size: int) -> None:
        topic = f"Bench{size}"
        sides = {
            "pymq mapped, value": noop(lambda: self.pymq(topic)),
            "pymq mapped, all columns": noop(lambda: self.pymq(topic, None)),
            "pymq TCP, value": noop(lambda: self.pymq(topic, localRead="false")),
        }
        if self.kafka is not None:
            sides["Kafka's connector, value"] = noop(lambda: self.kafka_frame(topic).select("value"))
            sides["Kafka's connector, all columns"] = noop(lambda: self.kafka_frame(topic))
            tuned = {"kafka.fetch.max.wait.ms": "10"}
            sides["Kafka's connector, fetch.max.wait.ms=10"] = noop(
                lambda: self.kafka_frame(topic, **tuned).select("value")
            )
        medians = alternating(sides, self.rounds)
        for name, seconds in medians.items():
            self.report(f"batch read {size} B, {name}", count, seconds)
        if self.kafka is not None:
            base = medians["Kafka's connector, value"]
            for name in sides:
                if name.startswith("pymq"):
                    kafka_side = (
                        "Kafka's connector, all columns" if "all" in name else "Kafka's connector, value"
                    )
                    base = medians[kafka_side]
                    print(f"    {name}: {base / medians[name]:.1f} x {kafka_side}")
                    self.results[f"ratio {size} B {name}"] = base / medians[name]

    def micro_batches(self) -> None:
        """Back-to-back micro-batches of 1,000 rows, noop sink, in the tuned profile."""
        topic = "Bench100"
        for number in range(2):
            for name in ("pymq", "kafka") if self.kafka is not None else ("pymq",):
                reader = self.spark.readStream.format(name).option("startingOffsets", "earliest")
                reader = reader.option("maxOffsetsPerTrigger", MICRO_BATCH_ROWS)
                if name == "pymq":
                    reader = reader.option("nameserver", self.cluster.nameserver).option("topic", topic)
                else:
                    assert self.kafka is not None
                    reader = reader.option("kafka.bootstrap.servers", self.kafka.address).option(
                        "subscribe", topic
                    )
                checkpoint = str(self.folder / f"checkpoint-{name}-{number}")
                writer = reader.load().writeStream.format("noop").option("checkpointLocation", checkpoint)
                query = writer.start()
                while len(query.recentProgress) < MICRO_BATCHES:
                    time.sleep(0.1)
                query.stop()
                progress = [p for p in query.recentProgress[5:] if p["numInputRows"]]
                # Kafka's share of a limit is rounded down in each partition.
                if any(abs(p["numInputRows"] - MICRO_BATCH_ROWS) > PARTITIONS for p in progress):
                    raise SystemExit(f"{name}: a micro-batch did not have {MICRO_BATCH_ROWS} rows: void")
                parts = {
                    part: round(statistics.median(p["durationMs"].get(part, 0) for p in progress))
                    for part in ("latestOffset", "queryPlanning", "walCommit", "addBatch", "commitOffsets")
                }
                median = statistics.median(p["durationMs"]["triggerExecution"] for p in progress)
                print(
                    f"  micro-batch of {MICRO_BATCH_ROWS} rows, {name}, run {number + 1}: {median:.0f} ms {parts}"
                )
                self.results[f"micro-batch {name} {number}"] = median

    def exactly_once(self, count: int) -> None:
        """Against at-least-once on the same rows: a transaction a row has its price."""
        frame = self.rows(count, 100).limit(min(count, EXACTLY_ONCE_ROWS)).cache()
        rows = frame.count()
        for number in range(self.rounds):
            for guarantee in ("at-least-once", "exactly-once"):
                topic = self.cluster.create_topic(f"Bench-{guarantee}-{number}", PARTITIONS)
                writer = frame.write.format("pymq").option("nameserver", self.cluster.nameserver)
                writer = writer.option("topic", topic).option("deliveryGuarantee", guarantee).mode("append")
                if guarantee == "exactly-once":
                    writer = writer.option("transactionId", topic)
                self.report(f"write {guarantee}, run {number + 1}", rows, timed(writer.save))
                if checksum(self.pymq(topic)) != checksum(frame):
                    raise SystemExit(f"{topic}: other rows came back: the figures are void")

    def jobs(self) -> None:
        """rebuild-index on a copy of the store, archive of the store while it is served."""
        from mqspark_jobs import archive, rebuild_index
        from mqspark_jobs.job import Progress

        copy = self.folder / "copy"
        shutil.copytree(self.cluster.store, copy)
        summary = rebuild_index.run(rebuild_index.RebuildOptions(copy), self.spark, Progress("rebuild-index"))
        self.report("rebuild-index", summary["records"], summary["elapsed_s"])
        if delta_jars() is not None:
            options = archive.ArchiveOptions(
                str(copy), str(self.folder / "archive"), "dev", topics="Bench100"
            )
            summary = archive.run(options, self.spark, Progress("archive"))
            self.report("archive", summary["rows"], summary["elapsed_s"])

    def report(self, name: str, rows: int, seconds: float) -> None:
        print(f"  {name:<52}{rows / seconds / 1e6:>8.3f} M rows/s  ({seconds:.2f} s)", flush=True)
        self.results[name] = rows / seconds


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks spark")
    parser.add_argument("--rows", type=int, default=2_000_000, help="of 100 B; a fifth of it at 1 KiB")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--sizes", default="100,1024")
    parser.add_argument("--no-kafka", action="store_true")
    parser.add_argument("--json", type=Path, help="also write the figures there")
    parser.add_argument("--set", action="append", default=[], help="a setting of our broker, key=value")
    options = parser.parse_args(arguments)
    with_kafka = not options.no_kafka and shutil.which("mvn") is not None
    with tempfile.TemporaryDirectory(prefix="mqspark-bench-") as name:
        folder = Path(name)
        kafka = Kafka(folder) if with_kafka else None
        try:
            with DevCluster(folder / "store", "flushDiskType=ASYNC_FLUSH", *options.set) as cluster:
                spark = session(options.master, with_kafka, folder)
                bench = Bench(spark, cluster, kafka, folder, options.rounds)
                for size in map(int, options.sizes.split(",")):
                    count = options.rows if size < 512 else options.rows // 5
                    bench.write(count, size)
                    bench.read(count, size)
                    if size == 100:
                        bench.micro_batches()
                        bench.exactly_once(count)
                        bench.jobs()
                spark.stop()
        finally:
            if kafka is not None:
                kafka.stop()
        if options.json:
            options.json.write_text(json.dumps(bench.results, indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])
