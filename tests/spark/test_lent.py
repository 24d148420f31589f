"""What a task does to the process that Spark lent it."""

from __future__ import annotations

import pickle
import socket
import subprocess
import sys

import pytest

from pyspark_pymq.options import ReadOptions, WriteOptions
from pyspark_pymq.reading.batch import BatchReader
from pyspark_pymq.reading.stream import stream_reader
from pyspark_pymq.writing.sink import BatchWriter

READ = {"nameserver": "h:1", "topic": "T"}


def test_a_collection_between_tasks_goes_over_nothing_that_stays() -> None:
    script = """
import gc
from pyspark_pymq.worker_tuning import begin_task
counts = []
for task in range(4):
    begin_task()
    counts.append(gc.get_freeze_count())
    gc.collect()  # as Spark's daemon does
assert counts[0] == 0, counts
assert counts[1] > 1000, counts
assert counts[1:] == counts[1:2] * 3, counts  # later garbage is collected as ever
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


@pytest.mark.skipif(not hasattr(socket, "TCP_QUICKACK"), reason="Linux alone has it")
@pytest.mark.parametrize("kind", ["batch", "stream", "sink"])
def test_a_task_that_is_unpickled_does_not_hold_back_acknowledgements(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyspark_pymq.writing.sink.meet", lambda nameserver, credentials: None)
    from pyspark.sql.types import StructType

    made = {
        "batch": lambda: BatchReader(ReadOptions.parse(READ, streaming=False), ("value",)),
        "stream": lambda: stream_reader(ReadOptions.parse(READ, streaming=True), ("value",)),
        "sink": lambda: BatchWriter(WriteOptions.parse(READ), StructType().add("value", "string"), False),
    }[kind]()
    command = pickle.dumps(made)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        with socket.create_connection(listener.getsockname()) as lent:
            assert lent.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 0
            task = pickle.loads(command)  # noqa: S301 - made here
            assert lent.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0
            assert lent.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK) != 0
            lent.sendall(b"x")  # still open
    assert task.__dict__.keys() == made.__dict__.keys()
