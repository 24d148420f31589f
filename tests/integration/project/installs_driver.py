"""Runs the programs of the pages, which are in a file of JSON: (name, language, text). Knows nothing of the tests."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

os.environ["PYSPARK_PYTHON"] = sys.executable


def main(file: Path) -> None:
    from pyspark.sql import SparkSession

    import pyspark_pymq

    settings = {"spark.master": "local[2]", "spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"}
    spark = SparkSession.builder.config(map=settings | pyspark_pymq.tuned_settings()).getOrCreate()
    for name, language, text in json.loads(file.read_text()):
        if language == "sql":
            for statement in re.sub(r"--.*", "", text).split(";"):
                if statement.strip():
                    spark.sql(statement).collect()
        else:
            names: dict[str, Any] = {"spark": spark}
            exec(compile(text, name, "exec"), names)  # noqa: S102 - our own pages
            if "WorkQueue(" in text:
                names["query"].processAllAvailable()
                names["query"].stop()
        print("ran", name)


main(Path(sys.argv[1]))
