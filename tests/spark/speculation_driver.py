"""Writes rows with tasks that dawdle, to a topic, while Spark speculates: run by ``test_speculation``."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession

LONGEST_S = 60
SENT_S = 5.0


def main(master: str, nameserver: str, topic: str, guarantee: str, folder: str) -> None:
    builder = SparkSession.builder.master(master).config("spark.driver.host", "127.0.0.1")
    settings = {
        "spark.ui.enabled": "false",
        "spark.executor.cores": "2",
        "spark.executor.memory": "512m",
        "spark.speculation": "true",
        "spark.speculation.interval": "200ms",
        "spark.speculation.minTaskRuntime": "200ms",
        "spark.speculation.task.duration.threshold": "1s",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "20",
    }
    spark = builder.config(map=settings).getOrCreate()

    def dawdle(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The first attempt at each partition gives all its rows, and ends after another has."""
        context = TaskContext.get()
        assert context is not None
        here = Path(folder)
        given, ended = here / f"{context.partitionId()}-given", here / f"{context.partitionId()}-ended"
        (here / f"{context.partitionId()}-{context.attemptNumber()}").touch()
        yield from batches
        own, other = (given, ended) if context.attemptNumber() == 0 else (ended, given)
        own.touch()
        until = time.monotonic() + LONGEST_S
        while not other.exists() and time.monotonic() < until:
            time.sleep(0.05)
        time.sleep(SENT_S)  # what was given is on its way through Spark

    frame = spark.range(0, 400, numPartitions=2).selectExpr("concat(id, repeat('x', 2000)) value")
    writer = frame.mapInArrow(dawdle, "value string").write.format("pymq").mode("append")
    writer = writer.option("nameserver", nameserver).option("topic", topic).option("batchBytes", "8k")
    writer = writer.option("deliveryGuarantee", guarantee)
    if guarantee == "exactly-once":
        writer = writer.option("transactionId", topic)
    writer.save()
    spark.stop()


if __name__ == "__main__":
    os.environ["PYSPARK_PYTHON"] = sys.executable
    main(*sys.argv[1:])
