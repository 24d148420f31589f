"""Speculative execution, which Spark does only between hosts: two workers with a loopback address each."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pyspark
import pytest

from tests.support.dev import DevCluster, read_queue
from tests.support.processes import free_port, run_to_end, start, stop

DRIVER = Path(__file__).with_name("speculation_driver.py")
HOME = Path(pyspark.__file__).parent
START_S = 180


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("standalone")
    port = free_port()
    url = f"spark://127.0.0.1:{port}"
    with ExitStack() as stack:
        log = folder / "log"

        def run(name: str, *arguments: str) -> None:
            environment = {
                "SPARK_HOME": str(HOME),
                "SPARK_WORKER_DIR": str(folder),
                "SPARK_LOCAL_IP": arguments[1],
            }
            command = [str(HOME / "bin/spark-class"), f"org.apache.spark.deploy.{name}", *arguments]
            stack.callback(stop, start(command, log, env=environment))

        run("master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0")
        for host in ("127.0.0.1", "127.0.0.2"):
            run("worker.Worker", "--host", host, "--webui-port", "0", "--cores", "2", "--memory", "600m", url)
        until = time.monotonic() + START_S
        while log.read_bytes().count(b"Successfully registered with master") < 2:
            assert time.monotonic() < until, log.read_text()[-2000:]
            time.sleep(0.2)
        yield url


def written(cluster: DevCluster, topic: str) -> Counter[int]:
    """How often each number is there for consumers."""
    client = cluster.client
    found: Counter[int] = Counter()
    for queue in client.route(topic).subscribe_queues:
        found.update(int(message.body.rstrip(b"x")) for message in read_queue(client, cluster.address, queue))
    return found


@pytest.mark.slow("starts a Spark cluster of two workers and two drivers")
@pytest.mark.skipif(sys.platform != "linux", reason="needs every address of 127/8")
@pytest.mark.parametrize("guarantee", ["at-least-once", "exactly-once"])
def test_speculative_attempts(
    master: str, cluster: DevCluster, topic: str, tmp_path: Path, guarantee: str
) -> None:
    """Both attempts at a partition send all its rows; exactly-once shows those of one."""
    command = [sys.executable, str(DRIVER), master, cluster.nameserver, topic, guarantee, str(tmp_path)]
    done = run_to_end(command)
    assert done.returncode == 0, done.stderr[-3000:]
    attempts = {path.name for path in tmp_path.iterdir()}
    assert {"0-0", "0-1", "1-0", "1-1"} <= attempts  # Spark did speculate
    counts = written(cluster, topic)
    assert set(counts) == set(range(400))
    if guarantee == "exactly-once":
        assert set(counts.values()) == {1}
    else:
        assert max(counts.values()) == 2  # so this test would find a row that is sent twice
