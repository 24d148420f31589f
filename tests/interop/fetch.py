"""Fetches and builds what the interop tests and Spark's Delta use, ahead of them: ``python -m tests.interop.fetch``.

Part of ``make test``'s set-up. What cannot be had on this machine is said, and its tests will be skipped or fail.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial

from tests.interop import jars
from tests.interop.class_archives import rocketmq_classes, spark_classes
from tests.interop.other_clients import CPP, GO, GO_TLS, GRPC_GO, GRPC_JS, GRPC_PYTHON, JS, agent_programs
from tests.interop.proxy import fetch_grpc_client, fetch_proxy
from tests.spark.delta_jars import fetch_delta_jars
from tests.support.maven import ToolMissing
from tests.support.pyspark_versions import WITH_DELTA, spark_of_delta

WANTED: dict[str, Callable[[], object]] = {
    "RocketMQ": jars.fetch,
    **{f"RocketMQ's client {each}": partial(jars.fetch_client, each) for each in jars.OLD_CLIENTS},
    f"RocketMQ's broker {jars.OLD_SERVER}": partial(jars.fetch_server, jars.OLD_SERVER),
    "RocketMQ's newest broker": jars.fetch_newest,
    "RocketMQ's proxy": fetch_proxy,
    "the gRPC client": fetch_grpc_client,
    "the Go client": GO.build,
    "the Go client with TLS": GO_TLS.build,
    "the Go client of gRPC": GRPC_GO.build,
    "the JavaScript client of gRPC": GRPC_JS.build,
    "rocketmq-a2a": agent_programs,
    "the C++ client": CPP.build,
    "the JavaScript client": JS.build,
    "the Python client": GRPC_PYTHON.build,
    "Delta for Spark": fetch_delta_jars,
    f"Spark {WITH_DELTA}, for Delta": spark_of_delta,
    "archives of RocketMQ's classes": rocketmq_classes,
    "an archive of Spark's classes": spark_classes,
}


def main() -> None:
    for name, fetch in WANTED.items():
        began = time.monotonic()
        try:
            found = fetch() is not None
        except (ToolMissing, RuntimeError, subprocess.SubprocessError) as error:
            print(f"{name}: {error}", file=sys.stderr)
        else:
            print(f"{name}: {f'{time.monotonic() - began:.0f} s' if found else 'not to be had'}")


if __name__ == "__main__":
    main()
