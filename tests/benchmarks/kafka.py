"""Kafka, for comparisons: a broker of one node with its default settings, and the jars of Spark's connector for it.

Where there is no connector of this pyspark yet: ``python -m tests.support.pyspark_versions -m tests.benchmarks ...``
compares with that of pyspark 4.2.
"""

from __future__ import annotations

import socket
import subprocess
import time
from importlib.metadata import version
from pathlib import Path

from tests.spark.delta_jars import ALONE, maven_jars

PARTITIONS = 4
READY_S = 60

CONNECTOR = "4.2.0"
"""The version of Spark's connector for Kafka: the newest there is, and Spark 4.3 runs it."""
JARS = {
    "avro": [("org.apache.spark", "spark-avro_2.13", version("pyspark"), ALONE)],
    "broker": [("org.apache.kafka", "kafka_2.13", "4.1.0", "")],
    # The token provider of 4.2.0 is not in every mirror; its preview serves the connector as well.
    "spark": [
        ("org.apache.spark", "spark-sql-kafka-0-10_2.13", CONNECTOR, ALONE),
        ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.1.0-preview1", ALONE),
        ("org.apache.kafka", "kafka-clients", "3.9.2", ALONE),
        ("org.apache.commons", "commons-pool2", "2.13.1", ALONE),
    ],
}


def kafka_jars(what: str) -> list[Path]:
    return maven_jars(f"kafka-4.1.0-{what}", JARS[what])


class Kafka:
    """A Kafka 4.1 broker of one node (KRaft) with its default settings."""

    def __init__(self, folder: Path) -> None:
        self.port, controller_port = free_port(), free_port()
        self.address = f"127.0.0.1:{self.port}"
        properties = folder / "server.properties"
        properties.write_text(
            "process.roles=broker,controller\nnode.id=1\n"
            f"controller.quorum.bootstrap.servers=127.0.0.1:{controller_port}\n"
            f"listeners=PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{controller_port}\n"
            "controller.listener.names=CONTROLLER\ninter.broker.listener.name=PLAINTEXT\n"
            f"log.dirs={folder}/logs\nnum.partitions={PARTITIONS}\n"
            "offsets.topic.replication.factor=1\ntransaction.state.log.replication.factor=1\n"
            "transaction.state.log.min.isr=1\n"
        )
        classpath = ":".join(str(jar) for jar in kafka_jars("broker"))
        java = ["java", "-Xmx1g", "-Xms1g", "-cp", classpath]
        log = (folder / "kafka.log").open("ab")
        with log:
            format_command = [
                "kafka.tools.StorageTool",
                "format",
                "--standalone",
                "-t",
                "MkU3OEVBNTcwNTJENDM2Qk",
            ]
            subprocess.run(
                [*java, *format_command, "-c", str(properties)], check=True, stdout=log, stderr=log
            )
            self._process = subprocess.Popen([*java, "kafka.Kafka", str(properties)], stdout=log, stderr=log)
        self.pid = self._process.pid
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise RuntimeError((folder / "kafka.log").read_text()[-2000:])
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.2)
        raise RuntimeError("Kafka does not listen")

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(READY_S)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
