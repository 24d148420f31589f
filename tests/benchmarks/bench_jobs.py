"""The jobs on a store: rebuild-index and archive, in records and rows a second.

A store is filled through the store itself, then each job runs several times in one Spark session. Before a figure
counts its result is compared: rebuilt queues and index files byte by byte with the broker's own, archived rows with
the log (count and CRCs, by Spark). The first archive run of a session pays for Delta's first commit, so it is told
apart. Of every run up to a second is Spark's, however few the records: hence so many. Processor time is that of Spark's
Python workers and JVM together: on a machine that does other work, go by it.

    python -m tests.benchmarks jobs [--records N] [--size BYTES] [--rounds R] [--master local[2]]
                                    [--only rebuild|archive]
"""

from __future__ import annotations

import argparse
import filecmp
import os
import shutil
import statistics
import sys
import tempfile
import time
import zlib
from io import StringIO
from pathlib import Path
from typing import Any

import pyspark_pymq
from mqspark.base.clock import SystemClock
from mqspark.message import encode_host, encode_properties
from mqspark.record.record import PendingRecord
from mqspark.store import FlushDiskType, MessageStore, StoreConfig
from mqspark_jobs import archive, rebuild_index
from mqspark_jobs.commandline import delta_settings
from mqspark_jobs.job import ProgressLine
from tests.benchmarks.machine import own_s
from tests.benchmarks.report import figure
from tests.spark.delta_jars import NO_DELTA, delta_jars

TOPICS, QUEUES = 4, 4
SEGMENT_BYTES = 256 << 20


def fill(root: Path, records: int, size: int) -> int:
    """A store with so many messages, closed; gives back the sum of their bodies' CRCs (31 bits of each)."""
    config = StoreConfig(
        store_path_root_dir=str(root),
        mapped_file_size_commit_log=SEGMENT_BYTES,
        flush_disk_type=FlushDiskType.ASYNC_FLUSH,
    )
    store = MessageStore(config, SystemClock(), store_host=encode_host("127.0.0.1", 10911))
    store.open()
    host = encode_host("10.0.0.1", 50000)
    total = 0
    for number in range(records):
        body = number.to_bytes(8, "big") * (size // 8) + bytes(size % 8)
        total += zlib.crc32(body) & 0x7FFFFFFF
        properties = {"UNIQ_KEY": f"7F0000010001000000000000{number:08X}", "WAIT": "true", "TAGS": "TagA"}
        queue = number // TOPICS % QUEUES
        encoded = encode_properties(properties)
        store.appender.put(
            PendingRecord(
                topic=f"Bench{number % TOPICS}",
                queue_id=queue,
                body=body,
                properties=encoded,
                tags_code=2598919,
                born_timestamp_ms=1_700_000_000_000,
                born_host=host,
            )
        )
        if number % 1024 == 0:
            store.pipeline.commit()
    store.pipeline.commit()
    store.close()
    return total


def session(master: str, folder: Path) -> Any:
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master).config(map=pyspark_pymq.tuned_settings())
    builder = builder.config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
    builder = builder.config("spark.log.level", "ERROR").config("spark.driver.memory", "4g")
    builder = builder.config("spark.sql.warehouse.dir", str(folder / "warehouse"))
    jars = delta_jars()
    if jars:
        builder = builder.config(map=delta_settings(",".join(map(str, jars))))
    return builder.getOrCreate()


def report(what: str, count: int, unit: str, times: list[tuple[float, float]]) -> None:
    seconds = statistics.median(wall for wall, _ in times)
    figure(what, f"{unit}/s", [count / wall for wall, _ in times], round_s=seconds)
    cpu_us = [cpu / count * 1e6 for _, cpu in times]
    figure(f"{what}, CPU each", "µs", cpu_us, less_is_better=True)
    busy = statistics.median(cpu for _, cpu in times)
    print(
        f"{what:<44} {count / seconds:>12,.0f} {unit}/s {busy / count * 1e6:>7.2f} µs of CPU each "
        f"(median of {len(times)}, load {os.getloadavg()[0]:.0f})",
        flush=True,
    )


def measured(function: Any) -> tuple[float, float, Any]:
    busy, started = own_s(), time.perf_counter()
    result = function()
    return time.perf_counter() - started, own_s() - busy, result


def same(left: Path, right: Path) -> None:
    files = [path.relative_to(left) for path in left.rglob("*") if path.is_file()]
    _, differ, missing = filecmp.cmpfiles(left, right, map(str, files), shallow=False)
    if differ or missing or not files:
        raise SystemExit(f"{len(differ)} files differ, {len(missing)} are missing: the figures are void")


def bench_rebuild(spark: Any, store: Path, records: int, rounds: int, *, crc: bool) -> None:
    own = store.with_name("own")
    for name in ("consumequeue", "index"):
        shutil.copytree(store / name, own / name, dirs_exist_ok=True)
    options = rebuild_index.RebuildOptions(store, verify_crc=crc)
    times = []
    for _ in range(rounds):
        wall, busy, summary = measured(
            lambda: rebuild_index.run(options, spark, ProgressLine("rebuild-index", StringIO()))
        )
        if summary["records"] != records or summary["lost_entries"]:
            raise SystemExit(f"{summary}: the figures are void")
        times.append((wall, busy))
    for name in ("consumequeue", "index"):
        same(own / name, store / name)
    shutil.rmtree(own)
    report(f"rebuild-index{'' if crc else ', --no-crc'}", records, "records", times)


def bench_archive(spark: Any, store: Path, records: int, crcs: int, rounds: int) -> None:
    times = []
    for number in range(rounds + 1):
        table = store.with_name(f"table{number}")
        options = archive.ArchiveOptions(str(store), str(table), "bench")
        wall, busy, summary = measured(
            lambda: archive.run(options, spark, ProgressLine("archive", StringIO()))  # noqa: B023
        )
        frame = spark.read.format("delta").load(str(table))
        row = frame.selectExpr("count(*) n", "sum(crc32(value) & 2147483647) crcs").first()
        if summary["rows"] != records or (row.n, row.crcs) != (records, crcs) or summary["damaged"]:
            raise SystemExit(f"{summary}, {row}: the figures are void")
        if number:
            times.append((wall, busy))
        else:
            report("archive, the session's first", records, "rows", [(wall, busy)])
        size = sum(path.stat().st_size for path in table.rglob("*.parquet"))
        shutil.rmtree(table)
        (store / "mqspark.archived").unlink()
    report(f"archive, {size / records:.0f} bytes a row in Parquet", records, "rows", times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=10_000_000)
    parser.add_argument("--size", type=int, default=100, help="of a body")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--only", choices=["rebuild", "archive"])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-jobs-") as folder:
        root = Path(folder)
        store = root / "store"
        crcs = fill(store, options.records, options.size)
        print(f"{options.records:,} messages of {options.size} B in segments of 256 MiB, {options.master}")
        spark = session(options.master, root)
        if options.only != "archive":
            bench_rebuild(spark, store, options.records, options.rounds, crc=True)
            bench_rebuild(spark, store, options.records, options.rounds, crc=False)
        if options.only != "rebuild":
            if spark.conf.get("spark.jars", ""):
                bench_archive(spark, store, options.records, crcs, options.rounds)
            else:
                print(f"archive: {NO_DELTA}")
        spark.stop()


if __name__ == "__main__":
    main()
