"""Processes of Spark's whose driver was killed: they end soon, also while they wait for a cluster that is away.

Otherwise they publish offsets, send rows or call functions beside the next run of the same query.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mqspark.message import Message
from mqspark.testing import Broker, Clients
from tests.support.draws import some
from tests.support.processes import is_gone, start
from tests.support.waiting import eventually

END_S = 10.0
"""A second or two, on a busy machine."""

_DRIVER = """
    import json, os, socket, subprocess, sys
    from pyspark.serializers import CPickleSerializer, read_int, write_int, write_with_length
    from pyspark.sql.streaming import python_streaming_source_runner as runner
    from pyspark.sql.types import BinaryType, StructField, StructType
    from pyspark_pymq import DefaultSource

    nameserver, path = sys.argv[1:]
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    environment = {**os.environ, "PYTHON_WORKER_FACTORY_SOCK_PATH": path}
    environment.pop("PYTHON_WORKER_FACTORY_SECRET", None)
    child = subprocess.Popen([sys.executable, "-m", runner.__name__], env=environment)
    stream = listener.accept()[0].makefile("rwb")
    assert read_int(stream) == child.pid

    def text(what):
        write_with_length(what.encode(), stream)

    source = DefaultSource({"nameserver": nameserver, "topic": "T", "startingOffsets": "earliest"})
    text("%d.%d" % sys.version_info[:2])
    text(os.path.dirname(path))
    write_int(0, stream)
    CPickleSerializer()._write_with_length(source, stream)
    text(StructType([StructField("value", BinaryType())]).json())
    write_int(1000, stream)
    stream.flush()
    assert read_int(stream) == 0
    write_int(runner.INITIAL_OFFSET_FUNC_ID, stream)
    stream.flush()
    offset = stream.read(read_int(stream)).decode()
    print(child.pid, flush=True)
    sys.stdin.readline()
    write_int(runner.LATEST_OFFSET_ADMISSION_CONTROL_FUNC_ID, stream)
    text(offset)
    text(json.dumps({"_type": "ReadAllAvailable"}))
    stream.flush()
    print("asked", flush=True)
    read_int(stream)
    print("answered", flush=True)
"""


def script(text: str, errors: Path, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", textwrap.dedent(text), *map(str, arguments)]
    return start(command, errors, stdout=subprocess.PIPE)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("idle", some([False, True], 1))
def test_the_runner_of_a_killed_driver_ends_quietly(tmp_path: Path, idle: bool) -> None:
    """Also while the cluster is away."""
    errors = tmp_path / "errors"
    with Broker() as broker:
        with Clients(broker.namesrv) as clients:
            clients.producer().send(Message("T", b"1"))
        driver = script(_DRIVER, errors, broker.namesrv, tmp_path / "socket")
        assert driver.stdin is not None
        assert driver.stdout is not None
        runner = int(driver.stdout.readline())
    if not idle:
        driver.stdin.write("\n")
        driver.stdin.flush()
        assert driver.stdout.readline() == "asked\n"
        time.sleep(0.5)
    assert not is_gone(runner)
    assert driver.poll() is None
    driver.kill()
    try:
        eventually(lambda: is_gone(runner), "the end of the orphan", timeout_s=END_S)
        assert driver.stdout.read() == ""
        assert "Traceback" not in errors.read_text(), errors.read_text()
    finally:
        driver.wait()
        driver.stdin.close()
        driver.stdout.close()
        if not is_gone(runner):
            os.kill(runner, signal.SIGKILL)


_WORKER = """
    import socket, sys, time
    import pyarrow as pa
    from pyspark.sql.pandas.serializers import ArrowStreamSerializer
    import pyspark_pymq

    def main(infile, outfile):
        pyspark_pymq.DefaultSource({})
        ours, theirs = socket.socketpair()
        theirs.close()
        begun = time.monotonic()
        try:
            ours.send(b"to another one")
        except BrokenPipeError:
            print("heard", time.monotonic() - begun < 0.5, file=sys.stderr, flush=True)
        assert infile.read() == b""
        outfile.write(b"x")
        if KIND == "arrow":
            batch = pa.record_batch({"a": range(100_000)})
            ArrowStreamSerializer().dump_stream(iter([batch, batch]), outfile)
"""


@pytest.fixture
def sockets() -> Iterator[Path]:
    """The path of a socket has at most 107 bytes, and that of ``tmp_path`` may be longer."""
    with tempfile.TemporaryDirectory() as directory:
        yield Path(directory)


@pytest.mark.parametrize("kind", some(["bytes", "arrow"], 1))
def test_a_worker_whose_socket_is_closed_ends_quietly(tmp_path: Path, sockets: Path, kind: str) -> None:
    """Spark's own daemon and its worker, with the test in the place of the JVM, which closes the socket of a worker
    that it needs no longer. The worker hears of the sockets that others have closed."""
    (tmp_path / "pyspark_worker_of_the_test.py").write_text(
        textwrap.dedent(_WORKER).replace("KIND", repr(kind))
    )
    environment = {
        **os.environ,
        "PYTHONPATH": str(tmp_path),
        "PYTHON_UNIX_DOMAIN_ENABLED": "true",
        "PYTHON_WORKER_FACTORY_SOCK_DIR": str(sockets),
        "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "1",  # as Spark sets it
        "SPARK_REUSE_WORKER": "1",
    }
    errors = tmp_path / "errors"
    command = [sys.executable, "-m", "pyspark.daemon", "pyspark_worker_of_the_test"]
    daemon = start(command, errors, stdout=subprocess.PIPE, env=environment)
    assert daemon.stdin is not None
    assert daemon.stdout is not None
    path = daemon.stdout.buffer.read(int.from_bytes(daemon.stdout.buffer.read(4))).decode()
    with socket.socket(socket.AF_UNIX) as jvm:
        jvm.connect(path)
        worker = int.from_bytes(jvm.recv(4))
        eventually(lambda: "heard True" in errors.read_text(), lambda: errors.read_text())
    eventually(lambda: is_gone(worker), "the end of the worker")
    daemon.stdin.close()
    daemon.wait(END_S)
    daemon.stdout.close()
    assert errors.read_text() == "heard True\n"


def test_a_program_that_uses_spark_may_outlive_who_started_it(tmp_path: Path) -> None:
    """Only what Spark starts for itself ends: ``nohup`` and job servers end before their programs."""
    program = """
        import os, sys, time
        from pyspark_pymq.watching import end_with_parent, end_with_spark
        (end_with_parent if sys.argv[1] == "child" else end_with_spark)()
        print(f"{os.getpid()}\\n", end="", flush=True)  # one write: two programs share the pipe
        time.sleep(60)
    """
    shell = """
        import subprocess, sys
        children = [subprocess.Popen([sys.executable, "-c", sys.argv[1], kind]) for kind in ("child", "program")]
        sys.stdin.readline()
    """
    parent = script(shell, tmp_path / "errors", textwrap.dedent(program))
    assert parent.stdin is not None
    assert parent.stdout is not None
    pids = [int(parent.stdout.readline()) for _ in range(2)]
    commands = {pid: Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[-2] for pid in pids}
    (child,) = (pid for pid in pids if commands[pid] == b"child")
    (program_pid,) = (pid for pid in pids if commands[pid] == b"program")
    parent.kill()
    parent.wait()
    try:
        eventually(lambda: is_gone(child), "the end of the child", timeout_s=END_S)
        assert not is_gone(program_pid)
    finally:
        os.kill(program_pid, signal.SIGKILL)
        parent.stdin.close()
        parent.stdout.close()
