"""One Spark session and one dev cluster for all Spark tests of a process; a topic for each test."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterator
from importlib.metadata import version
from typing import TYPE_CHECKING

import pytest

import pyspark_pymq
from mqspark_jobs.commandline import delta_settings
from tests.spark.delta_jars import NO_DELTA, delta_jars
from tests.support.dev import DevCluster
from tests.support.jvm import spark_options
from tests.support.warm_python import warm_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
os.environ["PYSPARK_PYTHON"] = sys.executable

SETTINGS = {
    "spark.master": "local[2]",
    "spark.app.name": "mqspark tests",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    # Not the default: jobs and work queues may not depend on it.
    "spark.sql.retainGroupColumns": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": spark_options(),
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if {"delta", "delta_settings"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.delta)
    if version("pyspark").startswith("4.1."):
        # It leaves its own Unix sockets to the garbage collector.
        for item in items:
            item.add_marker(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    # Small files: the tests make many queues, and want segments to end.
    with DevCluster(
        tmp_path_factory.mktemp("cluster") / "store",
        "mappedFileSizeCommitLog=16777216",
        "mappedFileSizeConsumeQueue=20000",
        "flushDiskType=ASYNC_FLUSH",
    ) as running:
        yield running


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.config(map=SETTINGS | pyspark_pymq.tuned_settings())
    jars = delta_jars()
    if jars is not None:
        builder = builder.config(map=delta_settings(",".join(map(str, jars))))
        # Else Delta runs 50 tasks for the state of each version of a table.
        builder = builder.config("spark.databricks.delta.snapshotPartitions", "1")
    builder = builder.config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
    with warm_python(tmp_path_factory.mktemp("python")) as environment:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value)
            session = builder.getOrCreate()
        session.sparkContext.setLogLevel("ERROR")
        yield session
        stop_session(session)


def stop_session(session: SparkSession) -> None:
    """Stop Spark and end the JVM too, which pyspark would leave running until the process ends."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    session.stop()
    if gateway is not None:
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(60)
        SparkContext._gateway = SparkContext._jvm = None


@pytest.fixture(scope="session")
def delta(spark: SparkSession) -> SparkSession:
    """The session, when it knows Delta."""
    if not spark.conf.get("spark.jars", ""):
        pytest.skip(NO_DELTA)
    return spark


_numbers = itertools.count()


@pytest.fixture
def topic(request: pytest.FixtureRequest, cluster: DevCluster) -> str:
    """A topic of four queues that no other test has."""
    return cluster.create_topic(f"T{next(_numbers)}-{request.function.__name__[-40:]}")
