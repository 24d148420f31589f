"""What most Spark tests do, once, for an archive of classes: ``python -m tests.spark.typical_session OPTIONS``."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

import pyspark_pymq
from mqspark_jobs.commandline import delta_settings
from tests.spark.conftest import SETTINGS, stop_session
from tests.spark.delta_jars import delta_jars
from tests.support.dev import DevCluster


def main(java_options: str) -> None:
    settings = SETTINGS | pyspark_pymq.tuned_settings()
    jars = delta_jars()
    if jars is not None:
        settings |= delta_settings(",".join(map(str, jars)))
    settings["spark.driver.extraJavaOptions"] += f" {java_options}"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        builder = SparkSession.builder.config(map=settings)
        spark = builder.config("spark.sql.warehouse.dir", str(folder / "warehouse")).getOrCreate()
        spark.sparkContext.setLogLevel("ERROR")
        with DevCluster(folder / "store") as cluster:
            options = {"nameserver": cluster.nameserver, "topic": cluster.create_topic("T")}
            rows = spark.range(100).selectExpr("string(id) value", "string(id % 7) key")
            rows.write.format("pymq").options(**options).mode("append").save()
            read = spark.read.format("pymq").options(**options).load()
            counts = read.groupBy("key").count().orderBy("key")
            assert counts.count() == 7
            formats = ["parquet"] if jars is None else ["parquet", "delta"]
            for form in formats:
                counts.write.format(form).save(str(folder / form))
                assert len(spark.read.format(form).load(str(folder / form)).collect()) == 7
            stream = spark.readStream.format("pymq").options(**options, startingOffsets="earliest").load()
            writer = stream.writeStream.format(formats[-1]).option(
                "checkpointLocation", str(folder / "checkpoint")
            )
            query = writer.trigger(availableNow=True).start(str(folder / "stream"))
            query.awaitTermination(120)
            assert query.exception() is None
        stop_session(spark)


if __name__ == "__main__":
    main(sys.argv[1])
