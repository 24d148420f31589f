"""Spark: reads, micro-batches, latency and writes, beside Kafka's own connector on the same rows in the same session.

Both brokers run on this machine with their defaults; sides take turns, another one first in each round, after a round
of all of them to warm up; medians are reported, as are ratios.
Every side is checked for content: rows and the sum of all values' CRCs before reads are timed, rows and their order of
magnitude in every micro-batch, every single message of the latency runs. A figure with a lost row is void. Sink of the
reads: noop. Without mvn (for Kafka's jars) only our side runs. Beside the rate stands the processor time of a row, of
the brokers (both of them: the one not asked is idle) and of Spark (driver, JVM and Python workers), children that ended
included: on a busy machine it says more than the clock.

    python -m tests.benchmarks spark [--parts write,read,typed,drain,micro,latency,exactly-once]
        [--profiles tuned,default] [--rows N] [--rounds R] [--sizes 100,1024] [--master local[2]] [--no-kafka]
        [--set key=value]

Parts ``micro`` and ``latency`` run once in each profile (``tuned``: pyspark_pymq.tuned_settings(); ``default``: Spark's
own settings), the others in the first one.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pyspark_pymq
from mqspark.arrow.messagecolumns import COLUMNS, default_columns
from mqspark.base.clock import wall_ms
from mqspark.client.blocking import BlockingClient
from mqspark.protocol.codes import RequestCode
from mqspark.protocol.headers.client_headers import SendMessageRequestHeaderV2
from pyspark_pymq.options import columns_of
from pyspark_pymq.schema import spark_schema
from tests.benchmarks import machine
from tests.benchmarks.kafka import PARTITIONS, Kafka, kafka_jars
from tests.benchmarks.nothing import Nothing
from tests.benchmarks.report import SHORT_S, figure, peer, ratio
from tests.spark.conftest import stop_session
from tests.support.dev import DevCluster

PARTS = ("write", "read", "typed", "drain", "micro", "latency", "exactly-once")
EACH_PROFILE = frozenset({"micro", "latency"})
ONE_SIZE = EACH_PROFILE | {"typed"}
DRAIN_TIMES = 5
"""A drain is of so many times the rows: it takes seconds then, of which the start of a query is about one."""
NOTHING = "a source that reads nothing"
"""In Python: what Spark itself takes for the rows of any of them."""
ALL_COLUMNS = "*, broker, bornTimestamp, msgId"
MICRO_BATCH_ROWS = 1000
MICRO_BATCHES = 40
AVRO_FIELDS = [
    {"name": "id", "type": "long"},
    {"name": "name", "type": "string"},
    {"name": "price", "type": "double"},
    {"name": "ok", "type": "boolean"},
    {"name": "note", "type": ["null", "string"]},
]
LATENCY_RATES = (10, 100)
LATENCY_S = 20
LATENCY_WARM_UP_S = 5
WARM_UP_MESSAGES = 20
SETTINGS_OF_KAFKA: dict[str, dict[str, str]] = {
    "Kafka": {},
    "Kafka, fetch.max.wait.ms=10": {"kafka.fetch.max.wait.ms": "10"},
}


def session(
    master: str, profile: str, with_jars: Sequence[str], folder: Path, more: Mapping[str, str] | None = None
) -> Any:
    """``with_jars``: names in ``kafka.JARS``. ``more`` settings."""
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master)
    if profile == "tuned":
        builder = builder.config(map=pyspark_pymq.tuned_settings())
    builder = builder.config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
    builder = builder.config("spark.log.level", "ERROR").config("spark.driver.memory", "4g")
    builder = builder.config("spark.sql.warehouse.dir", str(folder / "warehouse"))
    for key, value in (more or {}).items():
        builder = builder.config(key, value)
    if with_jars:
        jars = [jar for name in with_jars for jar in kafka_jars(name)]
        builder = builder.config("spark.jars", ",".join(map(str, jars)))
    return builder.getOrCreate()


class Round(NamedTuple):
    """What one run of one side took: by the clock, and processor time of Spark and of the brokers."""

    seconds: float
    spark_s: float
    brokers_s: float


def timed(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def rotated(sides: list[str], number: int) -> list[str]:
    """Each round begins with another side: the first finds the JVM and the disk as the round before left them."""
    first = number % len(sides)
    return sides[first:] + sides[:first]


def noop(frame: Callable[[], Any]) -> Callable[[], Any]:
    return lambda: frame().write.format("noop").mode("overwrite").save()


def checksum(frame: Any) -> tuple[int, int]:
    row = frame.selectExpr("count(*) n", "sum(crc32(value)) c").first()
    return row.n, row.c


class Bench:
    def __init__(
        self, spark: Any, cluster: DevCluster, kafka: Kafka | None, folder: Path, rounds: int, profile: str
    ) -> None:
        self.spark, self.cluster, self.kafka = spark, cluster, kafka
        spark.dataSource.register(Nothing)
        self.folder, self.rounds, self.profile = folder, rounds, profile
        self._numbers = itertools.count()

    # --- both sides ---

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

    def reader(self, side: str, topic: str, *, streaming: bool = False, **options: str) -> Any:
        """``side``: ``pymq`` or a name in SETTINGS_OF_KAFKA."""
        start = self.spark.readStream if streaming else self.spark.read
        if side == "pymq":
            reader = start.format("pymq").option("nameserver", self.cluster.nameserver).option("topic", topic)
            return reader.option("startingOffsets", "earliest").options(**options)
        assert self.kafka is not None
        reader = start.format("kafka").option("kafka.bootstrap.servers", self.kafka.address)
        reader = reader.option("subscribe", topic).option("startingOffsets", "earliest")
        return reader.options(**SETTINGS_OF_KAFKA[side]).options(**options)

    def sides(self) -> list[str]:
        return ["pymq", *(SETTINGS_OF_KAFKA if self.kafka is not None else ())]

    def writer(self, side: str, frame: Any, topic: str, **options: str) -> Any:
        if side == "pymq":
            writer = frame.write.format("pymq").option("nameserver", self.cluster.nameserver)
        else:
            assert self.kafka is not None
            writer = frame.write.format("kafka").option("kafka.bootstrap.servers", self.kafka.address)
        return writer.option("topic", topic).options(**options).mode("append")

    def measured(self, work: Callable[[], Any]) -> Round:
        brokers = [self.cluster.pid, *([self.kafka.pid] if self.kafka is not None else [])]

        def used() -> tuple[float, float]:
            of_brokers = sum(machine.own_s(pid=pid) for pid in brokers)
            return machine.own_s() - of_brokers, of_brokers

        spark_0, brokers_0 = used()
        seconds = timed(work)
        spark_s, brokers_s = used()
        return Round(seconds, spark_s - spark_0, brokers_s - brokers_0)

    def alternating(self, sides: dict[str, Callable[[], Any]]) -> dict[str, list[Round]]:
        """Each side and round, after one round to warm up."""
        rounds: dict[str, list[Round]] = {name: [] for name in sides}
        for number in range(self.rounds + 1):
            for name in rotated(list(sides), number):
                took = self.measured(sides[name])
                if number:
                    rounds[name].append(took)
        return rounds

    def checkpoint(self) -> str:
        return str(self.folder / f"checkpoint-{next(self._numbers)}-{self.profile}")

    def check(self, name: str, frame: Any, expected: tuple[int, int]) -> None:
        if (got := checksum(frame)) != expected:
            raise SystemExit(
                f"{name}: {expected} (rows, sum of CRCs) expected, {got} found: the figures are void"
            )

    def report(self, name: str, side: str, rows: int, rounds: list[Round]) -> None:
        seconds = statistics.median(each.seconds for each in rounds)
        figure(name, "rows/s", [rows / each.seconds for each in rounds], side=side, round_s=seconds)
        micros = {}
        for of in ("spark", "brokers"):
            each_us = [getattr(each, f"{of}_s") * 1e6 / rows for each in rounds]
            micros[of] = statistics.median(each_us)
            figure(f"{name}, processor time of {of}", "µs a row", each_us, side=side, less_is_better=True)
        short = ", short: fixed costs decide" if seconds < SHORT_S else ""
        print(
            f"  {f'{name}, {side}':<60}{rows / seconds / 1e6:>8.3f} M rows/s  ({seconds:.2f} s{short}), "
            f"processor time {micros['spark']:.2f} + {micros['brokers']:.2f} µs a row",
            flush=True,
        )

    def ratio(self, what: str, ours: str, theirs: str, rounds: dict[str, list[Round]]) -> None:
        """By the clock, and the processor time of theirs as a multiple of ours."""
        sides = [rounds[theirs], rounds[ours]]
        clock, used = (
            first / second
            for first, second in (
                [statistics.median(each.seconds for each in side) for side in sides],
                [statistics.median(each.spark_s + each.brokers_s for each in side) for side in sides],
            )
        )
        print(f"      {what}: {ratio(clock)} x {theirs}; processor time {ratio(used)}", flush=True)

    # --- parts ---

    def write(self, count: int, size: int) -> None:
        """Each round into topics of its own; those of the last are what the reads are of."""
        frame = self.rows(count, size).cache()
        expected = checksum(frame)
        rounds: dict[str, list[Round]] = {}
        for number in range(self.rounds + 1):
            last = number == self.rounds
            topic = f"Bench{size}" if last else f"Write{size}-{number}"
            self.cluster.create_topic(topic, PARTITIONS)
            for side in rotated(self.sides()[:2], number):
                took = self.measured(self.writer(side, frame, topic).save)
                if number:
                    rounds.setdefault(side, []).append(took)
                self.check(f"write {side}", self.reader(side, topic).load().select("value"), expected)
        for side, times in rounds.items():
            self.report(f"write {size} B", side, count, times)
        if self.kafka is not None:
            self.ratio(f"write {size} B", "pymq", "Kafka", rounds)
        frame.unpersist()

    def read(self, count: int, size: int) -> None:
        topic = self.written(count, size)
        expected = checksum(self.rows(count, size))
        ours = {"pymq mapped": {}, "pymq TCP": {"localRead": "false"}}

        def value(options: dict[str, str]) -> Any:
            return self.reader("pymq", topic, **options).schema("value binary").load()

        frames: dict[str, Callable[[], Any]] = {}
        for name, options in ours.items():
            frames[f"{name}, value"] = lambda options=options: value(options)
            # What everyone writes first: the default columns travel.
            frames[f"{name}, plain"] = lambda options=options: (
                self.reader("pymq", topic, **options).load().select("value")
            )
            frames[f"{name}, all columns"] = lambda options=options: self.reader(
                "pymq", topic, columns=ALL_COLUMNS, **options
            ).load()
        for side in self.sides()[1:]:
            frames[f"{side}, value"] = lambda side=side: self.reader(side, topic).load().select("value")
            frames[f"{side}, all columns"] = lambda side=side: self.reader(side, topic).load()
        for name, frame in frames.items():
            self.check(f"read {name}", frame(), expected)
        nothing = self.spark.read.format("nothing").options(rows=str(count), size=str(size))
        frames[f"{NOTHING}, value"] = lambda: nothing.schema("value binary").load()
        frames[f"{NOTHING}, all columns"] = lambda: nothing.schema(
            spark_schema(COLUMNS, columns_of({"columns": ALL_COLUMNS}))
        ).load()
        frames[f"{NOTHING}, plain"] = lambda: (
            nothing.schema(spark_schema(COLUMNS, default_columns())).load().select("value")
        )
        times = self.alternating({name: noop(frame) for name, frame in frames.items()})
        for columns in ("value", "plain", "all columns"):
            for name in (each for each in times if each.endswith(f", {columns}")):
                side = name.removesuffix(f", {columns}")
                self.report(f"batch read {size} B, {columns}", side, count, times[name])
        for side in self.sides()[1:]:
            for name in ours:
                for columns, theirs in (
                    ("value", "value"),
                    ("plain", "value"),
                    ("all columns", "all columns"),
                ):
                    self.ratio(
                        f"{size} B, {name}, {columns}", f"{name}, {columns}", f"{side}, {theirs}", times
                    )

    def typed(self, count: int, size: int) -> None:
        """Five fields in bodies of about 100 B, of whatever size the rows of other parts are: JSON and Avro to columns
        by the source, and by Spark's from_json and from_avro."""
        frame = self.spark.range(0, count, numPartitions=2).selectExpr(
            "id",
            "concat('a name that is not short, ', id) name",
            "id * 1.5D price",
            "id % 2 = 0 ok",
            "if(id % 3 = 0, concat('note ', id), null) note",
        )
        fields = "id bigint, name string, price double, ok boolean, note string"
        schema = {"type": "record", "name": "Row", "fields": AVRO_FIELDS}
        avro = {"payloadFormat": "avro", "payloadSchema": json.dumps(schema)}
        patient = {"sendTimeoutMs": "120000"}  # a send that is repeated may be there twice
        for topic in ("TypedJson", "TypedAvro"):
            self.cluster.create_topic(topic, PARTITIONS)
        self.writer("pymq", frame, "TypedAvro", **avro, **patient).save()
        bodies = {
            "TypedJson": frame.selectExpr("to_json(struct(*)) value"),
            "TypedAvro": self.reader("pymq", "TypedAvro", columns="value").load(),
        }
        self.writer("pymq", bodies["TypedJson"], "TypedJson", **patient).save()
        for topic in bodies if self.kafka is not None else ():
            self.writer("Kafka", bodies[topic], topic).save()
        parse = {"TypedJson": f"from_json(string(value), '{fields}')"}
        if self.kafka is not None:
            parse["TypedAvro"] = f"from_avro(value, '{json.dumps(schema)}')"

        def parsed(side: str, topic: str) -> Any:
            value = self.reader(side, topic, **({"columns": "value"} if side == "pymq" else {})).load()
            return value.selectExpr(f"{parse[topic]} row").select("row.*")

        def columns(topic: str, **options: str) -> Any:
            return self.reader("pymq", topic, **options).schema(fields).load()

        frames: dict[str, Callable[[], Any]] = {
            "pymq, payloadFormat=json": lambda: columns("TypedJson", payloadFormat="json"),
            "pymq, payloadFormat=avro": lambda: columns("TypedAvro", **avro),
            **{
                f"{side}, {parse[topic].partition('(')[0]}": lambda side=side, topic=topic: parsed(
                    side, topic
                )
                for side in self.sides()
                for topic in parse
            },
        }
        says = (
            "count(*) n",
            "sum(id) i",
            "sum(crc32(name)) c",
            "sum(price) p",
            "count_if(ok) o",
            "sum(crc32(note)) t",
        )
        expected = frame.selectExpr(*says).first()
        for name, made in frames.items():
            if (got := made().selectExpr(*says).first()) != expected:
                raise SystemExit(f"typed {name}: {expected} expected, {got} found: the figures are void")
        times = self.alternating({name: noop(made) for name, made in frames.items()})
        for name, rounds in times.items():
            self.report("typed columns", name, count, rounds)
        for ours, theirs in itertools.product(list(frames)[:2], list(frames)[2:]):
            if ours[-4:] == theirs[-4:]:  # json, avro
                self.ratio(ours, ours, theirs, times)

    def drain(self, count: int, size: int) -> None:
        """AvailableNow from the first message to the last, the start of the query in the time. So many rows that the
        start is not most of it."""
        topic = self.written(count, size, times=DRAIN_TIMES)
        count *= DRAIN_TIMES

        def drained(side: str) -> None:
            if side == NOTHING:
                reader = self.spark.readStream.format("nothing").options(rows=str(count), size=str(size))
            else:
                reader = self.reader(side, topic, streaming=True)
            frame = (reader.schema("value binary") if side in ("pymq", NOTHING) else reader).load()
            frame = frame.select("value")
            writer = frame.writeStream.format("noop").option("checkpointLocation", self.checkpoint())
            query = writer.trigger(availableNow=True).start()
            query.awaitTermination()
            rows = sum(progress["numInputRows"] for progress in query.recentProgress)
            if rows != count:
                raise SystemExit(f"drain {side}: {rows} rows instead of {count}: the figures are void")

        sides = [*self.sides(), NOTHING]
        times = self.alternating({side: lambda side=side: drained(side) for side in sides})
        for side, seconds in times.items():
            self.report(f"AvailableNow drain {size} B", side, count, seconds)
        for side in self.sides()[1:]:
            self.ratio(f"drain {size} B", "pymq", side, times)

    def micro(self, count: int, size: int) -> None:
        """Back-to-back micro-batches of 1,000 rows, noop sink."""
        topic = self.written(count, size)
        medians: dict[str, list[float]] = {}
        for number in range(self.rounds + 1):
            for side in rotated(self.sides(), number):
                median = self.micro_batch_ms(side, topic, "" if number else " (warm-up)")
                if number:
                    medians.setdefault(side, []).append(median)
        self.milliseconds(f"micro-batch of {MICRO_BATCH_ROWS} rows", medians)

    def micro_batch_ms(self, side: str, topic: str, remark: str) -> float:
        reader = self.reader(side, topic, streaming=True, maxOffsetsPerTrigger=str(MICRO_BATCH_ROWS))
        writer = reader.load().writeStream.format("noop")
        query = writer.option("checkpointLocation", self.checkpoint()).start()
        while len(query.recentProgress) < MICRO_BATCHES and query.isActive:
            time.sleep(0.1)
        failure = query.exception()
        query.stop()
        if failure is not None:
            raise SystemExit(f"{side}: {failure}")
        progress = [each for each in query.recentProgress[5:] if each["numInputRows"]]
        # Kafka's share of a limit is rounded down in each partition.
        if any(abs(each["numInputRows"] - MICRO_BATCH_ROWS) > PARTITIONS for each in progress):
            raise SystemExit(f"{side}: a micro-batch did not have {MICRO_BATCH_ROWS} rows: void")
        parts = {
            part: round(statistics.median(each["durationMs"].get(part, 0) for each in progress))
            for part in ("latestOffset", "queryPlanning", "walCommit", "addBatch", "commitOffsets")
        }
        median = statistics.median(each["durationMs"]["triggerExecution"] for each in progress)
        print(
            f"  {self.profile}: {MICRO_BATCH_ROWS} rows, {side}: {median:.0f} ms {parts}{remark}", flush=True
        )
        return median

    def latency(self, count: int, size: int) -> None:
        """From a message's send to the driver having its row (foreachBatch), at rates that leave the query idle now and
        then."""
        for side in self.sides():
            self.median_latency_ms(side, LATENCY_RATES[-1], LATENCY_WARM_UP_S, " (warm-up)")
        for rate in LATENCY_RATES:
            medians: dict[str, list[float]] = {}
            for number in range(max(1, self.rounds - 1)):
                for side in rotated(self.sides(), number):
                    medians.setdefault(side, []).append(self.median_latency_ms(side, rate))
            self.milliseconds(f"end to end at {rate} msg/s, p50", medians)

    def median_latency_ms(self, side: str, rate: int, seconds: int = LATENCY_S, remark: str = "") -> float:
        topic = self.cluster.create_topic(f"Latency-{next(self._numbers)}-{self.profile}", PARTITIONS)
        arrived: dict[int, float] = {}

        def arrive(frame: Any, batch: int) -> None:
            numbers = [int(row.value) for row in frame.select("value").collect()]
            now = time.time()
            for number in numbers:
                if arrived.setdefault(number, now) != now:
                    raise SystemExit(f"{side}: message {number} came twice: the figures are void")

        wanted = rate * seconds + WARM_UP_MESSAGES
        with ExitStack() as stack:
            send = self.sender(side, topic, stack)
            send(0)  # Kafka makes the topic now
            writer = self.reader(side, topic, streaming=True).load().writeStream.foreachBatch(arrive)
            query = writer.option("checkpointLocation", self.checkpoint()).start()
            stack.callback(query.stop)
            sent: dict[int, float] = {}
            wait_until(lambda: 0 in arrived, query)
            began = time.time()
            for number in range(1, wanted):
                # Warmed up by a few slow ones, then at the rate.
                due = began + (
                    number / 10 if number <= WARM_UP_MESSAGES else 2 + (number - WARM_UP_MESSAGES) / rate
                )
                time.sleep(max(0.0, due - time.time()))
                sent[number] = time.time()
                send(number)
            wait_until(lambda: len(arrived) >= wanted, query)
        delays = [arrived[number] - at for number, at in sent.items() if number > WARM_UP_MESSAGES]
        print(
            f"  {self.profile}: {rate} msg/s, {side}: p50 {statistics.median(delays) * 1000:.0f} ms, "
            f"p90 {sorted(delays)[int(0.9 * len(delays))] * 1000:.0f} ms{remark}",
            flush=True,
        )
        return statistics.median(delays) * 1000

    def sender(self, side: str, topic: str, stack: ExitStack) -> Callable[[int], Any]:
        """Sends a number and returns when it is acknowledged (Kafka: when it is on its way)."""
        if side != "pymq":
            assert self.kafka is not None
            jvm = self.spark._jvm
            properties = jvm.java.util.Properties()
            properties.put("bootstrap.servers", self.kafka.address)
            for what in ("key", "value"):
                properties.put(f"{what}.serializer", "org.apache.kafka.common.serialization.StringSerializer")
            clients = jvm.org.apache.kafka.clients.producer
            producer = clients.KafkaProducer(properties)
            stack.callback(producer.close)
            return lambda number: producer.send(clients.ProducerRecord(topic, str(number)))
        client = BlockingClient(self.cluster.nameserver)
        stack.callback(client.close)
        lock = threading.Lock()

        def send(number: int) -> None:
            header = SendMessageRequestHeaderV2.of("bench", topic, number % PARTITIONS, wall_ms())
            with lock:
                client.request(
                    self.cluster.address, RequestCode.SEND_MESSAGE_V2, header, str(number).encode()
                )

        return send

    def exactly_once(self, count: int, size: int) -> None:
        """Against at-least-once on the same rows."""
        frame = self.rows(count, size).cache()
        expected = checksum(frame)
        rounds: dict[str, list[Round]] = {}
        for number in range(self.rounds + 1):
            for guarantee in rotated(["at-least-once", "exactly-once"], number):
                topic = self.cluster.create_topic(f"Once{size}-{guarantee}-{number}", PARTITIONS)
                options = {"transactionId": topic} if guarantee == "exactly-once" else {}
                writer = self.writer("pymq", frame, topic, deliveryGuarantee=guarantee, **options)
                took = self.measured(writer.save)
                if number:
                    rounds.setdefault(guarantee, []).append(took)
                self.check(f"write {guarantee}", self.reader("pymq", topic).load(), expected)
        for name, times in rounds.items():
            self.report(f"write {size} B by guarantee", f"pymq, {name}", count, times)
        self.ratio(f"exactly-once {size} B", "exactly-once", "at-least-once", rounds)
        frame.unpersist()

    def written(self, count: int, size: int, *, times: int = 1) -> str:
        """The topic with the rows of that size, ``times`` over; made when the part ``write`` did not run."""
        topic = f"Bench{size}" if times == 1 else f"Bench{size}-{times}"
        if topic not in self.cluster.client.topics():
            self.cluster.create_topic(topic, PARTITIONS)
            for side in self.sides()[:2]:
                for _ in range(times):
                    self.writer(side, self.rows(count, size), topic).save()
                rows, crcs = checksum(self.rows(count, size))
                self.check(
                    f"write {side}",
                    self.reader(side, topic).load().select("value"),
                    (times * rows, times * crcs),
                )
        return topic

    def milliseconds(self, name: str, medians: dict[str, list[float]]) -> None:
        ours = statistics.median(medians["pymq"])
        for side, values in medians.items():
            value = statistics.median(values)
            figure(f"{name}, {self.profile}", "ms", values, side=side, less_is_better=True)
            print(f"  {self.profile}: {name}, {side}: {value:.0f} ms", flush=True)
            if side != "pymq":
                print(f"      pymq takes {ratio(ours / value)} x the time of {side}", flush=True)


def wait_until(condition: Callable[[], bool], query: Any, timeout_s: float = 120) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if not query.isActive or time.monotonic() > deadline:
            raise SystemExit(f"messages are missing: the figures are void ({query.exception()})")
        time.sleep(0.02)


def runs(parts: list[str], profiles: list[str]) -> Iterator[tuple[str, list[str]]]:
    """What to run in which session."""
    for index, profile in enumerate(profiles):
        here = [part for part in PARTS if part in parts and (index == 0 or part in EACH_PROFILE)]
        if here:
            yield profile, here


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks spark")
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--profiles", default="tuned,default")
    parser.add_argument(
        "--rows",
        type=int,
        default=2_000_000,
        help="of 100 B; a fifth of it at 1 KiB; five times as many in drains",
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--sizes", default="100,1024")
    parser.add_argument("--no-kafka", action="store_true")
    parser.add_argument("--set", action="append", default=[], help="a setting of our broker, key=value")
    options = parser.parse_args(arguments)
    parts, profiles = options.parts.split(","), options.profiles.split(",")
    if unknown := set(parts) - set(PARTS) | set(profiles) - {"tuned", "default"}:
        parser.error(f"no part or profile {', '.join(sorted(unknown))}")
    with_kafka = not options.no_kafka and shutil.which("mvn") is not None
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mqspark-bench-")))
        kafka = Kafka(folder) if with_kafka else None
        if kafka is not None:
            stack.callback(kafka.stop)
            peer("Kafka", broker="4.1.0, KRaft, its defaults", heap="1 GiB", partitions=PARTITIONS)
            for side, changed in SETTINGS_OF_KAFKA.items():
                peer(side, **changed)
        peer("pymq", flushDiskType="ASYNC_FLUSH", queues=PARTITIONS, settings=" ".join(options.set))
        cluster = stack.enter_context(DevCluster(folder / "store", "flushDiskType=ASYNC_FLUSH", *options.set))
        for profile, here in runs(parts, profiles):
            spark = session(options.master, profile, ("spark", "avro") if with_kafka else (), folder)
            bench = Bench(spark, cluster, kafka, folder, options.rounds, profile)
            sizes = [int(size) for size in options.sizes.split(",")]
            for part in here:
                # What is not about bytes runs with the smallest rows only.
                for size in sizes[:1] if part in ONE_SIZE else sizes:
                    count = options.rows if size < 512 else options.rows // 5
                    seconds = timed(lambda: getattr(bench, part.replace("-", "_"))(count, size))  # noqa: B023
                    print(
                        f"  [{part} {size} B took {seconds:.0f} s, load {os.getloadavg()[0]:.0f}]", flush=True
                    )
            stop_session(spark)


if __name__ == "__main__":
    main(sys.argv[1:])
