"""Programs that spark-submit starts: a stream whose packages came by --py-files, and a job by jobs/run.py."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pyspark
import pytest

import mqspark
import pyspark_pymq
from mqspark.base.clock import SystemClock
from mqspark.message import encode_host
from mqspark.record.record import PendingRecord
from mqspark.store import MessageStore, StoreConfig
from tests.support.dev import DevCluster
from tests.support.processes import run_to_end

pytestmark = pytest.mark.slow("spark-submit starts Spark for each test")

STREAM = """
import sys
from pyspark.sql import SparkSession
import pyspark_pymq

nameserver, topic, folder = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
pyspark_pymq.register(spark)
rows = spark.range(1000).selectExpr("cast(id as string) value")
rows.write.format("pymq").option("nameserver", nameserver).option("topic", topic).mode("append").save()
stream = spark.readStream.format("pymq").option("nameserver", nameserver).option("topic", topic)
stream = stream.option("startingOffsets", "earliest").load().writeStream.format("parquet")
query = stream.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True).start(f"{folder}/out")
query.awaitTermination()
values = spark.read.parquet(f"{folder}/out").selectExpr("cast(value as string) value").collect()
print(pyspark_pymq.__file__)
print(sorted(int(row.value) for row in values) == list(range(1000)))
"""


def submit(folder: Path, *arguments: str, environment: dict[str, str] | None = None) -> list[str]:
    """The lines of standard output of a program that runs in ``folder``."""
    return submitted(folder, *arguments, environment=environment).stdout.splitlines()


def submitted(
    folder: Path, *arguments: str, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    done = run_to_end(
        [f"{Path(pyspark.__file__).parent}/bin/spark-submit", "--master", "local[2]", *arguments],
        env={
            **os.environ,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
            **(environment or {}),
        },
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done


def test_a_stream_whose_packages_came_by_py_files(cluster: DevCluster, tmp_path: Path) -> None:
    if sys.prefix == sys.base_prefix:
        pytest.skip("not in a virtual environment: no Python without the installed packages is at hand")
    library = tmp_path / "mqspark.zip"
    with zipfile.ZipFile(library, "w") as packed:
        for package in (mqspark, pyspark_pymq):
            folder = Path(package.__file__ or "").parent
            for path in folder.rglob("*.py"):
                packed.write(path, path.relative_to(folder.parent))
    (tmp_path / "program.py").write_text(STREAM)
    # On PYTHONPATH no .pth file is read, so an editable install is not found.
    plain = {
        "PYSPARK_PYTHON": sys._base_executable,  # type: ignore[attr-defined]
        "PYTHONPATH": sysconfig.get_path("purelib"),
    }
    found = subprocess.run(
        [plain["PYSPARK_PYTHON"], "-c", "import mqspark"], env={**os.environ, **plain}, cwd=tmp_path
    )
    assert found.returncode == 1, "the packages are not to be had but from the zip"
    topic = cluster.create_topic("Submitted")
    program = [str(tmp_path / "program.py"), cluster.nameserver, topic, str(tmp_path)]
    said = submit(tmp_path, "--py-files", str(library), *program, environment=plain)
    assert "mqspark.zip" in said[0]
    assert said[1] == "True"


def test_a_job(tmp_path: Path) -> None:
    store = MessageStore(
        StoreConfig(store_path_root_dir=str(tmp_path / "store")),
        SystemClock(),
        store_host=encode_host("127.0.0.1", 10911),
    )
    store.open()
    for n in range(1000):
        store.appender.put(
            PendingRecord(
                topic="T",
                queue_id=n % 4,
                body=b"%d" % n,
                properties=b"KEYS\x01k%d\x02" % n,
                born_timestamp_ms=1,
                born_host=encode_host("127.0.0.1", 1),
            )
        )
    store.close()
    queues = tmp_path / "store/consumequeue/T"
    before = {path.relative_to(queues): path.read_bytes() for path in queues.rglob("*") if path.is_file()}
    shutil.rmtree(queues / "1")
    run = str(Path(__file__).parents[2] / "jobs/run.py")
    done = submitted(tmp_path, run, "rebuild-index", "--store", str(tmp_path / "store"))
    summary = json.loads(done.stdout.splitlines()[-1])
    assert "rebuild-index: " not in done.stdout, "progress goes to standard error"
    assert "rebuild-index: scanned 1/1 segments" in done.stderr
    assert (summary["ok"], summary["records"], summary["queues"]) == (True, 1000, 4)
    after = {path.relative_to(queues): path.read_bytes() for path in queues.rglob("*") if path.is_file()}
    assert after == before
