"""``make demo``: a year of flights through a cluster of our own into a Spark stream, checked against pandas.

Starts ``mqspark dev``, starts a streaming delay board per carrier, sends the flights as the planes left, waits until
the board has them all and compares every number of it. Exit code 0 means that everything held.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Any

from flights import (
    BODY_SCHEMA,
    TOPIC,
    DevCluster,
    expected_board,
    load_airlines,
    load_flights,
    messages,
    spark_session,
)
from rich.console import Console
from rich.live import Live
from rich.table import Table

from mqspark import AdminClient, Producer

GROUP = "delay-board"
BATCH_MESSAGES = 1000
ROWS_A_BATCH = 40_000
YEAR_S = 15.0
LATENESS = "2 days"
"""The watermark: no flight of 2013 left more than 22 hours late, so nothing is dropped and the check is exact."""


CONSOLE = Console()


def say(text: str = "", end: str = "\n") -> None:
    sys.stdout.write(text + end)
    sys.stdout.flush()


class Stages:
    """Times and rates, printed at the end."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def add(self, stage: str, rows: int, seconds: float) -> None:
        self._lines.append(f"  {stage:<34}{rows:>10,} rows {seconds:>7.1f} s {rows / seconds:>12,.0f} rows/s")

    def show(self) -> None:
        say("\nThroughput of each stage (everything shares this machine's cores)")
        for line in self._lines:
            say(line)


class Sending:
    """The flights on their way, in a thread of its own: batches of each queue, in order.

    A year takes YEAR_S at least, so that the board can be seen to follow.
    """

    def __init__(self, nameserver: str, flights: Any) -> None:
        self.total = len(flights)
        self.sent = 0
        self.seconds = 0.0
        """Spent in sends, without the waits between them."""
        self._nameserver = nameserver
        self._flights = flights
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run)

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        """Wait for the end. Raises what stopped it."""
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            self._send()
        except BaseException as error:
            self._failure = error

    def _send(self) -> None:
        with Producer(self._nameserver, group="flights-demo") as producer:
            queues = producer.queues(TOPIC)
            waiting: list[list[Any]] = [[] for _ in queues]
            for number, message in enumerate(messages(self._flights)):
                # One plane, one queue; what has no tail number takes turns.
                index = hash(message.keys) % len(queues) if message.keys else number % len(queues)
                waiting[index].append(message)
                if len(waiting[index]) == BATCH_MESSAGES:
                    self._send_batch(producer, waiting[index], queues[index])
                    waiting[index] = []
            for queue, rest in zip(queues, waiting, strict=True):
                if rest:
                    self._send_batch(producer, rest, queue)

    def _send_batch(self, producer: Producer, batch: list[Any], queue: Any) -> None:
        began = time.monotonic()
        producer.send_batch(batch, queue=queue)
        took = time.monotonic() - began
        self.seconds += took
        self.sent += len(batch)
        time.sleep(max(0.0, YEAR_S * len(batch) / self.total - took))


class Board:
    """The latest values of each (day, carrier) that the stream has written."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str], tuple[int, int, float]] = {}
        self.names: dict[str, str] = {}
        self.batches = 0

    def update(self, frame: Any, batch: int) -> None:
        for row in frame.collect():
            self.rows[row.day, row.carrier] = (row.flights, row.cancelled, row.delay_sum)
            self.names[row.carrier] = row.airline
        self.batches += 1

    def flights(self) -> int:
        return sum(row[0] for row in list(self.rows.values()))

    def last_day(self) -> str:
        return max((day for day, _ in list(self.rows)), default="-")

    def table(self, title: str = "") -> Table:
        totals: dict[str, list[float]] = {}
        for (_, carrier), values in list(self.rows.items()):
            total = totals.setdefault(carrier, [0, 0, 0.0])
            for index, value in enumerate(values):
                total[index] += value
        table = Table("carrier", title=title or None, title_justify="left")
        for name in ("flights", "cancelled", "mean departure delay"):
            table.add_column(name, justify="right")
        for carrier, (count, cancelled, delay) in sorted(totals.items(), key=lambda item: -item[1][0]):
            mean = f"{delay / (count - cancelled):.1f} min" if count > cancelled else "-"
            table.add_row(f"{carrier} {self.names[carrier]}", f"{count:,.0f}", f"{cancelled:,.0f}", mean)
        return table


@contextlib.contextmanager
def shown(board: Board, sending: Sending) -> Iterator[None]:
    """Show the board while the block runs: a table that updates on a terminal, a line a batch elsewhere."""

    def title() -> str:
        on_board = f"on the board {board.flights():>9,}, up to {board.last_day()}"
        return f"sent {sending.sent:>9,} of {sending.total:,}   {on_board}"

    ended = threading.Event()

    def lines() -> None:
        batches = 0
        while not ended.wait(0.1):
            if board.batches > batches:
                batches = board.batches
                say(f"  batch {batches:>3}: {title()}")

    if CONSOLE.is_terminal:
        with Live(get_renderable=lambda: board.table(title()), console=CONSOLE, refresh_per_second=4):
            yield
        return
    thread = threading.Thread(target=lines)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def board_stream(spark: Any, nameserver: str) -> Any:
    """Flights, cancellations and delays per carrier and scheduled day, joined with the airlines' names."""
    from pyspark.sql import functions as f

    airlines = spark.createDataFrame(
        load_airlines().itertuples(index=False), "carrier string, airline string"
    )
    source = spark.readStream.format("pymq").option("nameserver", nameserver).option("topic", TOPIC)
    source = source.option("group", GROUP).option("startingOffsets", "earliest")
    # Only the body is decoded: nothing else is asked for.
    values = source.option("maxOffsetsPerTrigger", ROWS_A_BATCH).schema("value binary").load()
    flight = values.select(f.from_json(f.col("value").cast("string"), BODY_SCHEMA).alias("f")).select("f.*")
    board = (
        flight.withWatermark("scheduled", LATENESS)
        .groupBy(f.window("scheduled", "1 day").alias("w"), "carrier")
        .agg(
            f.count("*").alias("flights"),
            f.count_if(f.col("dep_delay").isNull()).alias("cancelled"),
            f.coalesce(f.sum("dep_delay"), f.lit(0.0)).alias("delay_sum"),
        )
    )
    return board.join(f.broadcast(airlines), "carrier", "left").select(
        f.date_format("w.start", "yyyy-MM-dd").alias("day"),
        "carrier",
        "airline",
        "flights",
        "cancelled",
        "delay_sum",
    )


def wait_for(query: Any, rows: int, timeout_s: float) -> float:
    """Until the stream has taken in ``rows``; the seconds it was busy."""
    deadline = time.monotonic() + timeout_s
    while True:
        if query.exception() is not None:
            raise SystemExit(f"the stream failed: {query.exception()}")
        taken = sum(progress["numInputRows"] for progress in query.recentProgress)
        if taken >= rows:
            return (
                sum(p["durationMs"]["triggerExecution"] for p in query.recentProgress if p["numInputRows"])
                / 1000
            )
        if time.monotonic() > deadline:
            raise SystemExit(f"the stream has only {taken:,} of {rows:,} rows after {timeout_s:.0f} s")
        time.sleep(0.1)


def group_lag(nameserver: str, timeout_s: float = 30) -> int:
    """The group's lag as the broker shows it; it reaches 0 once the last batch is published as finished."""
    with AdminClient(nameserver) as admin:
        deadline = time.monotonic() + timeout_s
        while (lag := admin.group_lag(GROUP, TOPIC)) > 0 and time.monotonic() < deadline:
            time.sleep(0.1)
        return lag


def batch_read(spark: Any, nameserver: str) -> tuple[int, float]:
    """Count the topic with a plain batch read; rows and seconds."""
    reader = spark.read.format("pymq").option("nameserver", nameserver).option("topic", TOPIC)
    began = time.monotonic()
    rows = reader.schema("value binary").load().count()
    return rows, time.monotonic() - began


def main() -> int:
    began = time.monotonic()
    stages = Stages()
    board = Board()
    with tempfile.TemporaryDirectory(prefix="mqspark-demo-") as folder, DevCluster() as cluster:
        say(f"Cluster: name server {cluster.nameserver}, broker {cluster.broker}, HTTP {cluster.http}")
        say("Starting Spark and loading the flights ...")
        loaded: list[Any] = []
        loading = threading.Thread(target=lambda: loaded.append(load_flights()))
        loading.start()  # while the JVM starts
        spark = spark_session("mqspark demo")
        loading.join()
        (flights,) = loaded
        total = len(flights)
        say(f"Flights: {total:,}, each a JSON message; key = tail number, tag = carrier, property = origin")
        with AdminClient(cluster.nameserver) as admin:
            admin.create_topic(TOPIC)
        query = (
            board_stream(spark, cluster.nameserver)
            .writeStream.outputMode("update")
            .foreachBatch(board.update)
            .option("checkpointLocation", folder)
            .start()
        )
        say(
            f"Stream: a delay board per carrier and day, watermark {LATENESS}, at most {ROWS_A_BATCH:,} rows a batch"
        )
        sending = Sending(cluster.nameserver, flights)
        with shown(board, sending):
            sending.start()
            sending.join()
            busy_seconds = wait_for(query, total, 150)
        stages.add("send (Python client, batches, paced)", total, sending.seconds)
        stages.add("stream (while sending, then alone)", total, busy_seconds)
        lag = group_lag(cluster.nameserver)
        state = query.lastProgress["stateOperators"][0]
        query.stop()
        rows, seconds = batch_read(spark, cluster.nameserver)
        stages.add("batch read (count)", rows, seconds)
        if not CONSOLE.is_terminal:
            CONSOLE.print(board.table())
        stages.show()
        expected = expected_board(flights)
        wrong = [
            key for key in expected.keys() | board.rows.keys() if expected.get(key) != board.rows.get(key)
        ]
        checks = {
            f"the board equals pandas in all {len(expected):,} (day, carrier) cells": not wrong,
            f"the stream read {total:,} flights, a batch read {rows:,}": rows == total,
            f"lag of consumer group {GROUP}: {lag}": lag == 0,
            f"rows dropped as too late: {state['numRowsDroppedByWatermark']}": state[
                "numRowsDroppedByWatermark"
            ]
            == 0,
        }
        say()
        for text, held in checks.items():
            say(f"  {'ok    ' if held else 'FAILED'}  {text}")
        for key in sorted(wrong)[:5]:
            say(f"          {key}: expected {expected.get(key)}, got {board.rows.get(key)}")
        spark.stop()
    say(f"\nDone in {time.monotonic() - began:.0f} s.")
    return 0 if all(checks.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
