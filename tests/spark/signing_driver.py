"""``python signing_driver.py SETTINGS.json``: writes, reads and streams with keys as options, the event log on."""

from __future__ import annotations

import json
import os
import sys
import urllib.request
from pathlib import Path
from typing import Any


def main() -> None:
    settings: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    folder = Path(settings["folder"])
    (folder / "events").mkdir()
    builder = SparkSession.builder.master("local[1]").config("spark.eventLog.enabled", "true")
    builder = builder.config("spark.eventLog.compress", "false").config("spark.ui.port", "0")
    builder = builder.config("spark.eventLog.dir", (folder / "events").as_uri())
    builder = builder.config("spark.sql.warehouse.dir", str(folder / "tables"))
    builder = builder.config("spark.driver.extraJavaOptions", settings["java_options"])
    spark = builder.getOrCreate()
    keys, options = settings["keys"], {"nameserver": settings["nameserver"], "topic": "Orders"}
    shown: list[str] = []

    def rows(more: dict[str, str]) -> int:
        frame = spark.read.format("pymq").options(**options, **more, localRead="false").load()
        count = len(frame.collect())
        frame.explain("extended")
        shown.extend((repr(frame), frame._jdf.queryExecution().toString()))
        return count

    two = spark.createDataFrame([("1",), ("2",)], "value string")
    two.write.format("pymq").options(**options, **keys).mode("append").save()
    counts = [rows(keys), rows({"credentialsFile": settings["file"]})]
    typed = {
        "nameserver": settings["nameserver"],
        "topic": "Typed",
        "schemaRegistry": settings["registry"],
        **keys,
    }
    typed["payloadFormat"] = "avro"
    bodies = two.selectExpr("value text").write.format("pymq")
    bodies.options(**typed, registerSchema="true").mode("append").save()
    back = spark.read.format("pymq").options(**typed, mode="FAILFAST").load()
    counts.append(len({row.text for row in back.collect()}))
    stream = spark.readStream.format("pymq").options(**options, **keys, startingOffsets="earliest").load()
    writer = stream.selectExpr("value").writeStream.format("pymq").options(**options, **keys)
    checkpoint = str(folder / "checkpoint")
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination(180)
    query.explain(True)
    shown.extend((repr(query), str(query.lastProgress)))
    errors = []
    for more in ({**keys, "secretKey": "wrong-" + keys["secretKey"]}, {**keys, "accessKey": ""}):
        try:
            rows(more)
        except Exception as error:
            errors.append(str(error))
    try:
        given = ", ".join(f"{name} '{value}'" for name, value in (options | keys).items())
        spark.sql(f"CREATE TABLE t USING pymq OPTIONS ({given})")
    except Exception as error:
        errors.append(str(error))
    with urllib.request.urlopen(f"{spark.sparkContext.uiWebUrl}/SQL/execution/?id=0") as answer:  # noqa: S310
        shown.append(answer.read().decode())
    spark.stop()
    (folder / "result.json").write_text(json.dumps({"counts": counts, "errors": errors, "shown": shown}))


if __name__ == "__main__":
    main()
