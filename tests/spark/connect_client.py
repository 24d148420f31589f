"""Spark Connect: ``python connect_client.py SETTINGS.json`` starts a local Connect server and uses the source and the
sink through it. A process of its own: one cannot hold a Connect session beside a classic one."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    settings: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_TESTING"] = "0"  # being there, it makes server and client agree on a free port
    from pyspark.sql import SparkSession

    import pyspark_pymq

    builder = SparkSession.builder.remote("local[2]").config(map=pyspark_pymq.tuned_settings())
    builder = builder.config("spark.ui.enabled", "false")
    spark = builder.getOrCreate()
    options = {"nameserver": settings["nameserver"]}
    frame = spark.range(100).selectExpr("string(id) value", "string(id % 7) key")
    frame.write.format("pymq").options(**options, topic=settings["topic"]).mode("append").save()
    rows = spark.read.format("pymq").options(**options).load(settings["topic"])
    batch = sorted(int(row.n) for row in rows.selectExpr("int(string(value)) n").collect())
    stream = spark.readStream.format("pymq").options(**options, topic=settings["topic"], group="connect")
    writer = stream.option("startingOffsets", "earliest").load().select("key", "value").writeStream
    writer = writer.format("pymq").options(**options, topic=settings["target"])
    writer = writer.option("deliveryGuarantee", "exactly-once")
    query = writer.option("checkpointLocation", settings["checkpoint"]).trigger(availableNow=True).start()
    finished = query.awaitTermination(120)
    try:
        spark.read.format("pymq").options(**options, colour="red").load("T").collect()
        error = ""
    except Exception as caught:
        error = str(caught)
    result = {"connect": type(spark).__module__, "batch": batch, "finished": finished, "error": error}
    Path(settings["result"]).write_text(json.dumps(result))
    spark.stop()


if __name__ == "__main__":
    main()
