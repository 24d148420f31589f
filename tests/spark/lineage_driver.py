"""``python lineage_driver.py NAMESERVER FOLDER``: copies the good bodies of Orders to Totals, in one application."""

from __future__ import annotations

import os
import sys


def main() -> None:
    nameserver, folder = sys.argv[1:]
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    from tests.support.jvm import spark_options

    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.driver.extraJavaOptions", spark_options()).getOrCreate()
    both = {"nameserver": nameserver, "lineageJob": "totals"}
    source = {"topic": "Orders", "startingOffsets": "earliest", "columns": "key", "group": "readers"}
    typed = {"payloadFormat": "json", "payloadSchema": "id bigint", "mode": "DEADLETTER"}
    rows = spark.readStream.format("pymq").options(**both, **source, **typed).load()
    writer = rows.selectExpr("key", "string(id * 2) value").writeStream.format("pymq")
    writer = writer.options(**both, topic="Totals", checkpointLocation=f"{folder}/checkpoint")
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(180)
    spark.stop()


if __name__ == "__main__":
    main()
