"""One batch, one stream and one sink of each guarantee: ``python versions_client.py SETTINGS.json``, with the pyspark
that comes first on PYTHONPATH."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession


def used(spark: SparkSession, settings: dict[str, Any]) -> dict[str, Any]:
    """What came of it. ``settings``: name server, topics, and the path of the checkpoint."""
    source = {"nameserver": settings["nameserver"], "topic": settings["topic"]}
    target = {"nameserver": settings["nameserver"], "topic": settings["target"]}
    frame = spark.range(100).selectExpr("string(id) value", "string(id % 7) key")
    frame.write.format("pymq").options(**source).mode("append").save()
    rows = spark.read.format("pymq").options(**source).load()
    batch = sorted(int(row.n) for row in rows.selectExpr("int(string(value)) n").collect())
    stream = spark.readStream.format("pymq").options(
        **source, startingOffsets="earliest", maxOffsetsPerTrigger="30", group="versions"
    )
    writer = stream.load().select("key", "value").writeStream.format("pymq").options(**target)
    writer = writer.option("deliveryGuarantee", "exactly-once").option(
        "checkpointLocation", settings["checkpoint"]
    )
    query = writer.trigger(availableNow=True).start()
    finished = query.awaitTermination(120)
    spark.sql(
        f"CREATE TABLE t USING pymq OPTIONS (nameserver '{target['nameserver']}', topic '{target['topic']}')"
    )
    return {
        "version": spark.version,
        "batch": batch,
        "finished": finished,
        "rows of batches": [progress.numInputRows for progress in query.recentProgress],
        "table": sorted(int(row.n) for row in spark.sql("SELECT int(string(value)) n FROM t").collect()),
    }


def main() -> None:
    settings: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    import pyspark_pymq

    builder = SparkSession.builder.master("local[2]").config(map=pyspark_pymq.tuned_settings())
    builder = builder.config("spark.ui.enabled", "false").config("spark.driver.memory", "1g")
    builder = builder.config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    builder = builder.config("spark.sql.shuffle.partitions", "2")
    spark = builder.config("spark.sql.warehouse.dir", settings["warehouse"]).getOrCreate()
    result = used(spark, settings)
    # Programs end with queries that still run, and with rows that nobody has taken.
    source = {"nameserver": settings["nameserver"], "topic": settings["topic"]}
    left = spark.readStream.format("pymq").options(**source, startingOffsets="earliest").load().writeStream
    left.format("noop").option("checkpointLocation", settings["left"]).start().processAllAvailable()
    next(spark.read.format("pymq").options(**source).load().repartition(4).toLocalIterator())
    Path(settings["result"]).write_text(json.dumps(result))
    spark.stop()


if __name__ == "__main__":
    main()
