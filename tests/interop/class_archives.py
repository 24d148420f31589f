"""Makes the archives of classes with which JVMs of the tests start in half of the processor time."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from tests.interop.driver import java_driver
from tests.interop.jars import HERE, Jars, fetch, fetch_newest
from tests.interop.rocketmq import BROKER, NAMESRV, rocketmq_broker, rocketmq_namesrv
from tests.support.jvm import make_archive, spark_class_archive

SPARK_TIMEOUT_S = 300


def rocketmq_classes() -> Path:
    """Classes of a name server, a broker, and the program that runs their clients and tools, and of the newest broker;
    the folder of all."""
    newest = fetch_newest()
    make_archive(newest.class_archive(BROKER), lambda options: _live(newest, options))
    jars = fetch()

    def run(namesrv_options: list[str], broker_options: list[str], driver_options: list[str]) -> None:
        with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
            folder = Path(name)
            namesrv = stack.enter_context(rocketmq_namesrv(jars, folder / "namesrv", namesrv_options))
            # Told to stop it writes its archive.
            stop = signal.SIGTERM
            stack.enter_context(
                rocketmq_broker(jars, folder / "broker", namesrv, options=broker_options, stop_signal=stop)
            )
            driver = stack.enter_context(java_driver(jars, folder / "driver", "JSON", driver_options))
            driver.mqadmin("topicList", "-n", namesrv)
            driver.mqadmin("clusterList", "-n", namesrv)

    namesrv, broker, driver = (jars.class_archive(each) for each in (NAMESRV, BROKER, "Driver"))
    make_archive(
        namesrv,
        lambda first: make_archive(
            broker, lambda second: make_archive(driver, lambda third: run(first, second, third))
        ),
    )
    return driver.parent


def _live(jars: Jars, broker_options: list[str]) -> None:
    """A broker starts, and stops when its name server knows it."""
    with tempfile.TemporaryDirectory() as name, rocketmq_namesrv(jars, Path(name) / "namesrv") as namesrv:
        folder, stop = Path(name) / "broker", signal.SIGTERM
        with rocketmq_broker(jars, folder, namesrv, options=broker_options, stop_signal=stop):
            pass


def spark_classes() -> Path:
    """Classes of a Spark session."""

    def run(options: list[str]) -> None:
        command = [sys.executable, "-m", "tests.spark.typical_session", " ".join(options)]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=SPARK_TIMEOUT_S, cwd=HERE.parents[1], check=False
        )
        if done.returncode:
            raise RuntimeError(f"a Spark session failed:\n{done.stderr[-3000:]}")

    return make_archive(spark_class_archive(), run)
