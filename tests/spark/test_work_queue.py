"""A topic as a queue of work, through a real Spark and a real broker."""

from __future__ import annotations

import time
import urllib.request
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from mqspark.errors import ConfigError
from mqspark.message import Message
from mqspark_jobs.job import ProgressLine
from mqspark_jobs.redeliver import DlqOptions, redrive
from pyspark_pymq import Discard, RetryAfter, WorkQueue
from pyspark_pymq.reading.stream import ADMISSION_CONTROL
from pyspark_pymq.work.workqueue import WorkQuery
from tests.support.dev import DevCluster
from tests.support.waiting import eventually

pytestmark = [pytest.mark.spark, pytest.mark.skipif(not ADMISSION_CONTROL, reason="needs Spark 4.2")]

Queue = Callable[..., WorkQueue]
WAIT_S = 120


@pytest.fixture
def queue(spark: SparkSession, cluster: DevCluster, topic: str) -> Queue:
    def make(**options: Any) -> WorkQueue:
        options = {"max_attempts": 3, "delays": "1s"} | options
        return WorkQueue(spark, nameserver=cluster.nameserver, topic=topic, group=f"g-{topic}", **options)

    return make


def finish(query: WorkQuery, done: Callable[[], bool]) -> None:
    """Let it run until ``done``; then stop it behind its last batch."""
    try:
        eventually(lambda: done() or not query.isActive, lambda: query.lastProgress, WAIT_S)
        assert query.exception() is None, query.exception()
        query.processAllAvailable()
    finally:
        query.stop()


def calls(folder: Path) -> Counter[str]:
    """The messages that functions noted there."""
    return Counter(path.read_text() for path in folder.iterdir() if path.is_file())


def noting(folder: Path, function: Callable[[str, int], Any]) -> Callable[[Any], Any]:
    """A function that notes each of its calls, in whatever process it is."""

    def call(message: Any) -> Any:
        import uuid

        text = bytes(message.value).decode()
        (folder / uuid.uuid4().hex).write_text(text)
        return function(text, message.attempt)

    return call


def test_failed_messages_come_again_and_die_at_last(
    spark: SparkSession, cluster: DevCluster, topic: str, queue: Queue, tmp_path: Path
) -> None:
    cluster.send_numbers(topic, range(40))
    folder = tmp_path / "calls"
    folder.mkdir()

    def handle(text: str, attempt: int) -> None:
        if text == "7" or (text == "8" and attempt < 3):
            raise ValueError(f"{text} is not \x01 possible")
        if text == "9" and attempt == 1:
            raise RetryAfter("2s", "not yet")
        if text == "10":
            raise Discard

    work = queue(openTelemetry="true")  # without an SDK nothing is any different
    query = work.for_each(noting(folder, handle), checkpoint=str(tmp_path / "c"))
    finish(query, lambda: cluster.max_offsets(f"%DLQ%g-{topic}") == {0: 1})
    assert calls(folder) == Counter({str(n): 1 for n in range(40)} | {"7": 3, "8": 3, "9": 2})
    (dead,) = work.dead_letters().collect()
    assert (dead.topic, dead.key, bytes(dead.value), dead.attempt) == (topic, "k7", b"7", 3)
    assert (dead.errorType, dead.errorText) == ("ValueError", "7 is not ? possible")
    assert dead.query == query.id
    assert dead.properties["n"] == "7"
    total: Counter[str] = Counter()
    for progress in query.recentProgress:
        total.update(progress["work"])
    assert total == Counter(done=38, retry=5, dead=1, discarded=1)
    with urllib.request.urlopen(f"{cluster.http}/metrics", timeout=60) as answer:  # noqa: S310 - loopback
        metrics = answer.read().decode()
    (counted,) = [
        line
        for line in metrics.splitlines()
        if "commit_messages_total{" in line and f"%DLQ%g-{topic}" in line
    ]
    assert counted.endswith(" 1.0")
    # The group's offsets at the broker say that all is done, the retries too.
    assert cluster.group_offsets(f"g-{topic}", topic) == cluster.max_offsets(topic)
    retries = f"%RETRY%g-{topic}"
    assert cluster.group_offsets(f"g-{topic}", retries) == cluster.max_offsets(retries)
    # Sent again, it is as it was at first.
    redrive(
        DlqOptions(cluster.nameserver, f"g-{topic}", str(tmp_path / "state"), to="topic"),
        spark,
        ProgressLine("test"),
    )
    reader = (
        spark.read.format("pymq").option("nameserver", cluster.nameserver).option("includeProperties", "true")
    )
    (again,) = reader.load(topic).where("key = 'k7'").orderBy("timestamp").collect()[1:]
    assert (bytes(again.value), again.properties["n"]) == (b"7", "7")
    assert not [name for name in again.properties if name.startswith("MQSPARK_FAILED")]


def read_numbers(spark: SparkSession, cluster: DevCluster, topic: str) -> list[tuple[int, int]]:
    """The numbers in a topic, in the order of its queue 0, each with its offset."""
    frame = spark.read.format("pymq").option("nameserver", cluster.nameserver).load(topic)
    return [(int(bytes(row.value)), row.offset) for row in frame.orderBy("partition", "offset").collect()]


@pytest.mark.slow("a dozen batches; the test of this name in test_work_calls.py is the fast twin")
def test_messages_of_a_key_wait_behind_a_failed_one(
    spark: SparkSession, cluster: DevCluster, topic: str, queue: Queue, tmp_path: Path
) -> None:
    results = cluster.create_topic(f"{topic}-results", 1)

    def send(numbers: range) -> None:
        for queue_id in (0, 1):
            texts = [str(n) for n in numbers if n % 2 == queue_id]
            cluster.send(
                topic,
                queue_id,
                [Message.of(topic, text, keys="odd" if queue_id else "even") for text in texts],
            )

    def handle(message: Any) -> dict[str, Any]:
        if message.value == b"4" and message.attempt < 3:
            raise ValueError("not yet")
        return {"value": bytes(message.value).decode()}

    send(range(20))
    query = queue(ordered="key", maxOffsetsPerTrigger="8").map(
        handle, "value string", sink=results, checkpoint=str(tmp_path / "c")
    )
    finish(query, lambda: cluster.max_offsets(results) == {0: 20})
    numbers = [n for n, _ in read_numbers(spark, cluster, results)]
    even, odd = ([n for n in numbers if n % 2 == rest] for rest in (0, 1))
    assert even == list(range(0, 20, 2))
    assert odd == list(range(1, 20, 2))
    assert numbers.index(19) < numbers.index(4), "other keys did not wait"
    assert query.lastProgress is not None
    assert query.lastProgress["work"]["blocked"] == 0


@pytest.mark.slow(
    "a dozen jobs; fast: such functions in test_work_calls.py, such sinks in test_session_settings.py"
)
def test_a_function_of_batches_and_a_sink_of_ones_own(
    spark: SparkSession, cluster: DevCluster, topic: str, queue: Queue, tmp_path: Path
) -> None:
    cluster.send_numbers(topic, range(30))

    def halve(rows: Any) -> Any:
        import pyarrow as pa

        numbers = [int(value) for value in rows.column("value").to_pylist()]
        attempts = rows.column("attempt").to_pylist()
        errors = [
            "odd" if n % 10 == 5 and attempt < 2 else None
            for n, attempt in zip(numbers, attempts, strict=True)
        ]
        return pa.table({"n": numbers, "at": rows.column("timestamp"), "error": errors})

    def sink(results: DataFrame, batch: int) -> None:
        results.write.mode("overwrite").parquet(str(tmp_path / "out" / f"batch={batch}"))

    query = queue().map_arrow(halve, "n bigint, at timestamp", sink=sink, checkpoint=str(tmp_path / "c"))
    retries = f"%RETRY%g-{topic}"
    finish(
        query, lambda: cluster.max_offsets(retries) == {0: 3} == cluster.group_offsets(f"g-{topic}", retries)
    )
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    assert sorted(row.n for row in rows) == list(range(30))
    assert len({row.at for row in rows}) >= 1


@pytest.mark.slow("a dozen jobs; the map of test_session_settings.py is the fast twin")
def test_a_function_of_dataframes(
    spark: SparkSession, cluster: DevCluster, topic: str, queue: Queue, tmp_path: Path
) -> None:
    cluster.send_numbers(topic, range(30))
    results = cluster.create_topic(f"{topic}-results", 1)

    def check(messages: DataFrame) -> DataFrame:
        return messages.selectExpr(
            "message",
            "string(value) value",
            "if(string(value) IN ('5', '6'), concat('not ', string(value)), NULL) error",
        )

    work = queue(max_attempts=2)
    query = work.transform(check, sink=results, checkpoint=str(tmp_path / "c"))
    finish(query, lambda: cluster.max_offsets(f"%DLQ%g-{topic}") == {0: 2})
    assert sorted(n for n, _ in read_numbers(spark, cluster, results)) == [
        n for n in range(30) if n not in (5, 6)
    ]
    dead = work.dead_letters().orderBy("key").collect()
    assert [(row.key, row.errorText, row.attempt) for row in dead] == [("k5", "not 5", 2), ("k6", "not 6", 2)]
    with pytest.raises(ConfigError, match="needs the column error of type string"):
        work.transform(lambda messages: messages, sink=results, checkpoint=str(tmp_path / "c"))


@pytest.mark.parametrize("with_its_parent", [False, True])
@pytest.mark.slow("ends many jobs; test_work_calls.py has the fast twin, without Spark")
def test_messages_that_kill_their_process(
    cluster: DevCluster, topic: str, queue: Queue, tmp_path: Path, with_its_parent: bool
) -> None:
    """With its parent, as when memory runs out and takes the whole executor along."""
    cluster.send_numbers(topic, range(8))
    folder = tmp_path / "calls"
    folder.mkdir()

    def handle(text: str, attempt: int) -> None:
        import os
        import signal

        if text == "3":
            with open(f"/proc/{os.getppid()}/stat") as file:
                grandparent = int(file.read().rpartition(")")[2].split()[1])
            with open(f"/proc/{grandparent}/cmdline", "rb") as file:
                is_in_child = b"pyspark.daemon" in file.read()
            if with_its_parent and is_in_child:
                os.kill(os.getppid(), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGSEGV)

    work = queue()
    query = work.for_each(noting(folder, handle), checkpoint=str(tmp_path / "c"))
    finish(query, lambda: cluster.max_offsets(f"%DLQ%g-{topic}") == {0: 1})
    (dead,) = work.dead_letters().collect()
    assert (dead.key, dead.errorType, dead.attempt) == ("k3", "WorkerDied", 1)
    counted = calls(folder)
    assert set(counted) == {str(n) for n in range(8)}
    if not with_its_parent:
        # The first crash repeats what ran in its process; the search for the culprit repeats nothing.
        assert all(count <= 2 for text, count in counted.items() if text != "3"), counted


@pytest.mark.slow(
    "several streams; test_the_journal and the test after it in test_work_calls.py are the fast twins"
)
def test_a_batch_that_runs_again_calls_nothing_and_sends_nothing_twice(
    cluster: DevCluster, topic: str, queue: Queue, tmp_path: Path
) -> None:
    cluster.send_numbers(topic, range(12))
    folder, seen = tmp_path / "calls", tmp_path / "seen"
    folder.mkdir()
    seen.mkdir()

    def handle(message: Any) -> dict[str, Any]:
        noting(folder, lambda text, attempt: None)(message)
        if int(message.value) % 4 == 1 and message.attempt < (9 if message.value == b"1" else 2):
            raise ValueError("not yet")
        return {"n": int(message.value)}

    def sink(results: DataFrame, batch: int) -> None:
        # A driver dies here, after everything was sent, again and again.
        (seen / f"{batch}").write_text(" ".join(str(row.n) for row in results.orderBy("n").collect()))
        tries = seen / f"tries-{batch}"
        tries.write_text(tries.read_text() + "x" if tries.exists() else "x")
        if len(tries.read_text()) < 2:
            raise RuntimeError("the sink is broken")

    work = queue(max_attempts=2)

    def start() -> WorkQuery:
        return work.map(handle, "n bigint", sink=sink, checkpoint=str(tmp_path / "c"))

    deadline = time.monotonic() + WAIT_S
    query = start()
    while cluster.group_offsets(f"g-{topic}", f"%RETRY%g-{topic}") != {0: 6}:
        assert time.monotonic() < deadline, cluster.group_offsets(f"g-{topic}", f"%RETRY%g-{topic}")
        if not query.isActive:
            assert "the sink is broken" in str(query.exception())
            query = start()
        time.sleep(0.1)
    query.stop()
    # Three messages failed; each retry was sent twice, and taken once.
    assert calls(folder) == Counter({str(n): 2 if n % 4 == 1 else 1 for n in range(12)})
    numbers = [
        int(text) for path in seen.iterdir() if path.name.isdigit() for text in path.read_text().split()
    ]
    assert sorted(numbers) == [n for n in range(12) if n != 1]
    assert [row.key for row in work.dead_letters().collect()] == ["k1"]


def test_what_does_not_go_together(spark: SparkSession, queue: Queue) -> None:
    with pytest.raises(ConfigError, match="ordered: 'key', 'queue' or None"):
        queue(ordered="topic")
    with pytest.raises(ConfigError, match="payloadFormat: not an option"):
        queue(payloadFormat="arrow")
    with pytest.raises(ConfigError, match="max_attempts"):
        queue(max_attempts=0)
    with pytest.raises(ConfigError, match="ordered: goes with for_each and map"):
        queue(ordered="key").map_arrow(lambda rows: rows, "n int", sink="T", checkpoint="/nowhere")
    with pytest.raises(ConfigError, match="ordered: goes with for_each and map"):
        queue(ordered="key").transform(lambda frame: frame, sink="T", checkpoint="/nowhere")
