"""A work queue in a driver process of its own, for tests that kill it: ``python work_driver.py SETTINGS.json``."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any


def invoice(message: Any) -> dict[str, Any]:
    """Some fail once, some always."""
    n = int(message.value)
    if n % 50 == 11 or (n % 10 == 3 and message.attempt == 1):
        raise ValueError(f"{n} in attempt {message.attempt}")
    return {"value": str(n), "key": f"k{n}"}


def main() -> None:
    settings: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    import pyspark_pymq

    builder = SparkSession.builder.master(settings["master"]).config(map=pyspark_pymq.tuned_settings())
    builder = builder.config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
    builder = builder.config("spark.driver.extraJavaOptions", settings["java_options"])
    builder = builder.config("spark.sql.shuffle.partitions", "2").config("spark.log.level", "ERROR")
    spark = builder.getOrCreate()
    queue = pyspark_pymq.WorkQueue(
        spark,
        nameserver=settings["nameserver"],
        topic=settings["topic"],
        group=settings["group"],
        max_attempts=2,
        delays="1s",
        maxOffsetsPerTrigger="200",
    )
    query = queue.map(
        invoice, "value string, key string", sink=settings["results"], checkpoint=settings["checkpoint"]
    )
    print("STARTED", os.getpid(), flush=True)
    while query.isActive and not Path(settings["stop"]).exists():
        time.sleep(0.05)
    query.stop()
    failure = query.exception()
    if failure is not None:
        sys.exit(str(failure))
    print("FINISHED", flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
