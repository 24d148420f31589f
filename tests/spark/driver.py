"""A streaming query in a driver process of its own, for tests that kill it: ``python driver.py SETTINGS.json``."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any


def main() -> None:
    settings: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    import pyspark_pymq

    builder = SparkSession.builder.master("local[2]").config(map=pyspark_pymq.tuned_settings())
    builder = builder.config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
    # Made to start fast: most of these processes live for a few seconds.
    builder = builder.config("spark.driver.extraJavaOptions", settings["java_options"])
    spark = builder.config(map=settings["spark"]).getOrCreate()
    reader = spark.readStream.format("pymq").options(**settings["source"])
    frame = reader.load().selectExpr("cast(value as string) value", "partition", "offset")
    writer = frame.writeStream.format(settings["sink"]).option("checkpointLocation", settings["checkpoint"])
    query = writer.option("path", settings["out"]).trigger(processingTime="0 seconds").start()
    print("STARTED", os.getpid(), flush=True)
    while query.isActive:
        if Path(settings["stop"]).exists():
            query.processAllAvailable()
            query.stop()
            break
        time.sleep(0.05)
    failure = query.exception()
    if failure is not None:
        sys.exit(str(failure))
    print("FINISHED", flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
