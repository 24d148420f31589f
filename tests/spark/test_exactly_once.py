"""The exactly-once sink: failures and kills between all calls, speculation, two drivers; then through a real Spark."""

from __future__ import annotations

import dataclasses
import pickle
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from mqspark.client.blocking import BlockingClient
from mqspark.errors import ConfigError, MQError
from pyspark_pymq.options import WriteOptions
from pyspark_pymq.reading.stream import ADMISSION_CONTROL
from pyspark_pymq.writing import decisionlog, exactlyonce
from pyspark_pymq.writing.exactlyonce import abort, commit, prepare
from pyspark_pymq.writing.reports import Sent
from pyspark_pymq.writing.sink import BatchWriter, StreamWriter
from tests.support.dev import DevCluster
from tests.support.draws import draws
from tests.support.processes import start, stop


class Died(Exception):
    """A driver or a task that is killed."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    root = tmp_path_factory.mktemp("once") / "store"
    with DevCluster(root, "flushDiskType=ASYNC_FLUSH") as running:
        yield running


def options(cluster: DevCluster, topic: str) -> WriteOptions:
    return WriteOptions.parse(
        {"nameserver": cluster.nameserver, "topic": topic, "deliveryGuarantee": "exactly-once"}
    )


def rows(values: Iterable[int]) -> list[pa.RecordBatch]:
    texts = [str(value) for value in values]
    return [pa.record_batch({"value": pa.array(texts), "key": pa.array([text[-1] for text in texts])})]


def bodies(cluster: DevCluster, topic: str) -> dict[int, list[int]]:
    """What consumers see of each queue, in order."""
    return {queue: list(map(int, values)) for queue, values in cluster.queue_bodies(topic).items()}


def everything(cluster: DevCluster, topic: str) -> list[int]:
    return sorted(value for values in bodies(cluster, topic).values() for value in values)


def write(wanted: WriteOptions, identity: str, number: int, partitions: list[list[int]]) -> None:
    """As Spark does it: tasks, then the commit."""
    sent = [
        prepare(wanted, identity, number, rows(values), first_turn=index)
        for index, values in enumerate(partitions)
    ]
    commit(wanted, list(sent))


def test_nothing_is_seen_before_the_commit_and_order_is_kept(broker: DevCluster) -> None:
    topic = broker.create_topic("Order", 4)
    wanted = options(broker, topic)
    sent = [prepare(wanted, topic, 0, rows(range(100)), first_turn=0)]
    assert (sent[0].messages, everything(broker, topic)) == (100, [])
    commit(wanted, sent)
    seen = bodies(broker, topic)
    assert sorted(value for values in seen.values() for value in values) == list(range(100))
    assert all(values == sorted(values) for values in seen.values())
    # Keys choose queues as they do at-least-once.
    assert {value % 10 for value in seen[0]}.isdisjoint({value % 10 for value in seen[1]})


def test_aborted_and_speculative_rows_are_never_seen(broker: DevCluster) -> None:
    topic = broker.create_topic("Spec", 2)
    wanted = options(broker, topic)
    first = prepare(wanted, topic, 0, rows(range(10)), first_turn=0)
    duplicate = prepare(wanted, topic, 0, rows(range(10)), first_turn=1)
    commit(wanted, [first])
    abort(wanted, [duplicate])
    failed = prepare(wanted, topic, 1, rows(range(10, 20)), first_turn=0)
    abort(wanted, [failed])
    write(wanted, topic, 1, [list(range(10, 20))])
    assert everything(broker, topic) == list(range(20))
    # A late answer of Spark: abort after the commit takes nothing back.
    abort(wanted, [first])
    assert everything(broker, topic) == list(range(20))


def test_a_query_that_is_started_again_with_another_group(broker: DevCluster) -> None:
    topic = broker.create_topic("Group", 2)
    wanted = options(broker, topic)
    sent = prepare(wanted, topic, 0, rows(range(10)), first_turn=0)
    commit(dataclasses.replace(wanted, group="another"), [sent])
    assert everything(broker, topic) == list(range(10))


def test_two_drivers_of_one_batch(broker: DevCluster) -> None:
    topic = broker.create_topic("Two", 2)
    wanted = options(broker, topic)
    one = prepare(wanted, topic, 0, rows(range(10)), first_turn=0)
    two = prepare(wanted, topic, 0, rows(range(10)), first_turn=0)
    commit(wanted, [two])
    commit(wanted, [one])
    assert everything(broker, topic) == list(range(10))
    late = prepare(wanted, topic, 0, rows(range(10)), first_turn=0)
    assert (late.messages, late.prepared) == (0, ())
    commit(wanted, [late])
    # A number that is behind the last one was written already.
    write(wanted, topic, 5, [[10]])
    write(wanted, topic, 4, [[4]])
    assert everything(broker, topic) == list(range(11))
    # Another identity is another query.
    write(wanted, "other", 0, [[11]])
    assert everything(broker, topic) == list(range(12))


STRAGGLER = """
import pickle, sys
import pyarrow as pa
from pyspark_pymq.writing.exactlyonce import prepare

options, identity, number, values = pickle.load(sys.stdin.buffer)

def rows():
    for value in values:
        yield pa.record_batch({"value": pa.array([str(value)]), "key": pa.array([str(value)[-1]])})
        if value == values[0]:
            sys.stdout.buffer.write(b"begun\\n")
            sys.stdout.buffer.flush()
            sys.stdin.buffer.readline()  # until the test lets it go on

pickle.dump(prepare(options, identity, number, rows(), first_turn=1), sys.stdout.buffer)
"""


class Straggler:
    """Another attempt at a partition, in a process of its own like a worker of Spark: it sends a row, then waits."""

    def __init__(
        self, log: Path, wanted: WriteOptions, identity: str, number: int, values: list[int]
    ) -> None:
        command = [sys.executable, "-c", STRAGGLER]
        self._process = start(command, log, stdout=subprocess.PIPE)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin.buffer, self._process.stdout.buffer
        pickle.dump((wanted, identity, number, values), self._stdin)
        self._stdin.flush()
        assert self._stdout.readline() == b"begun\n"

    def finish(self) -> Sent:
        self._stdin.write(b"\n")
        self._stdin.flush()
        sent: Sent = pickle.load(self._stdout)  # noqa: S301 - made here
        stop(self._process)
        return sent

    def kill(self) -> None:
        """As Spark interrupts a task: its worker is killed."""
        stop(self._process, signal.SIGKILL)


@pytest.mark.parametrize(
    "end",
    [
        "late and aborted",
        "replayed",
        pytest.param("killed before", marks=pytest.mark.slow("fast: test_kills_between_all_calls")),
        pytest.param("chosen", marks=pytest.mark.slow("replayed chooses the straggler, too")),
        pytest.param("killed after", marks=pytest.mark.slow("as killed before, a moment later")),
        pytest.param("late", marks=pytest.mark.slow("a part of late and aborted")),
    ],
)
def test_speculation_with_attempts_that_run_at_once(broker: DevCluster, end: str) -> None:
    """Two attempts at partition 1 send the same rows at the same time; Spark commits the message of one."""
    topic = broker.create_topic(f"At-once-{end.replace(' ', '-')}", 3)
    wanted = options(broker, topic)
    ours, theirs = list(range(50)), list(range(50, 100))
    straggler = Straggler(broker.store.parent / "straggler.log", wanted, topic, 0, theirs)
    try:
        first = prepare(wanted, topic, 0, rows(ours), first_turn=0)
        copy = prepare(wanted, topic, 0, rows(theirs), first_turn=1)
        if end == "killed before":
            straggler.kill()
        if end == "chosen":
            commit(wanted, [first, straggler.finish()])  # Spark killed the copy, though it was ready
        else:
            commit(wanted, [first, copy])
        assert everything(broker, topic) == list(range(100))
        if end == "killed after":
            straggler.kill()
        elif end.startswith("late"):
            late = straggler.finish()
            assert late.messages == 50  # it looked before the decision was there
            if end == "late and aborted":
                abort(wanted, [late])
        elif end == "replayed":
            # The driver died before it recorded the batch; the old attempt is still there and is chosen.
            commit(wanted, [prepare(wanted, topic, 0, rows(ours), first_turn=0), straggler.finish()])
        assert everything(broker, topic) == list(range(100))
        write(wanted, topic, 1, [[100]])
        assert everything(broker, topic) == list(range(101))
    finally:
        straggler.kill()


def test_kills_between_all_calls(broker: DevCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = broker.create_topic("Kills", 3)
    wanted = options(broker, topic)
    chance = random.Random(3)
    left = [0]

    def dying(name: str) -> None:
        original = getattr(BlockingClient, name)

        def call(self: BlockingClient, *arguments: Any, **more: Any) -> Any:
            left[0] -= 1
            if left[0] == 0 and chance.random() < 0.5:
                raise Died  # before the call
            answer = original(self, *arguments, **more)
            if left[0] == 0:
                raise Died  # after it
            return answer

        monkeypatch.setattr(BlockingClient, name, call)

    for name in ("request", "request_all", "route", "publish_route", "commit_group_offsets"):
        dying(name)
    monkeypatch.setattr(exactlyonce, "_COMMITTED_AT_ONCE_BYTES", 1)
    monkeypatch.setattr(decisionlog, "_PART_HALVES", 7)
    kills = 0
    expected: list[int] = []
    number = 0
    while kills < max(40, draws(110)):
        values = [number * 100 + index for index in range(25)]
        partitions = [values[:10], values[10:11], values[11:]]
        expected += values
        while True:
            left[0] = chance.randrange(1, 60)
            try:
                write(wanted, "killed", number, partitions)
            except Died:
                kills += 1
            else:
                # The commit is done, but perhaps Spark never hears of it.
                if chance.random() < 0.7:
                    break
        number += 1
    left[0] = 0
    assert everything(broker, topic) == sorted(expected)


@pytest.mark.slow("kills a broker in a loop; test_kills_between_all_calls is the fast twin")
def test_the_broker_is_killed_in_all_of_it(tmp_path: Path) -> None:
    """SIGKILL while tasks prepare and drivers commit; each batch is done again until its commit has returned."""
    chance = random.Random(5)
    with DevCluster(tmp_path / "store", "flushDiskType=ASYNC_FLUSH") as own:
        topic = own.create_topic("Murder", 2)
        wanted = WriteOptions.parse(
            {
                "nameserver": own.nameserver,
                "topic": topic,
                "deliveryGuarantee": "exactly-once",
                "batchBytes": "1k",
            }
        )
        done = [0]
        stop = threading.Event()

        def work() -> None:
            while not stop.is_set():
                number = done[0]
                values = [number * 1000 + index for index in range(900)]
                try:
                    write(wanted, "murder", number, [values[:500], values[500:]])
                except MQError:
                    time.sleep(0.05)
                else:
                    done[0] += 1

        thread = threading.Thread(target=work)
        thread.start()
        try:
            for _ in range(3):
                before, deadline = done[0], time.monotonic() + 60
                while done[0] < before + 2 and time.monotonic() < deadline:
                    time.sleep(0.01)
                time.sleep(chance.random() * 0.1)
                own.stop(signal.SIGKILL)
                own.start()
                own.create_topic(topic, 2)
        finally:
            stop.set()
            thread.join(120)
        assert not thread.is_alive()
        assert done[0] >= 5
        expected = [number * 1000 + index for number in range(done[0]) for index in range(900)]
        # The last one may have been interrupted by the end, after it was decided: all of it then, or nothing.
        rest = [value for value in everything(own, topic) if value >= done[0] * 1000]
        assert everything(own, topic) == expected + rest
        assert len(rest) in (0, 900)


def test_what_does_not_go_together(broker: DevCluster) -> None:
    base = {"nameserver": broker.nameserver, "topic": "T"}
    with pytest.raises(ConfigError, match="transactionId: belongs to deliveryGuarantee"):
        WriteOptions.parse(base | {"transactionId": "x"})
    with pytest.raises(ConfigError, match="deliveryGuarantee: one of at-least-once, exactly-once"):
        WriteOptions.parse(base | {"deliveryGuarantee": "once"})
    assert not WriteOptions.parse(base).exactly_once
    assert Sent(1).prepared == ()
    schema = StructType().add("value", "string")
    once = base | {"deliveryGuarantee": "exactly-once"}
    with pytest.raises(ConfigError, match="transactionId: an exactly-once batch write needs"):
        BatchWriter(WriteOptions.parse(once), schema, False)
    numbered = WriteOptions.parse(once | {"transactionId": "x", "transactionBatch": "1"})
    with pytest.raises(ConfigError, match="transactionBatch: a stream numbers its batches itself"):
        StreamWriter(numbered, schema, False)
    # Each of several writes in one foreachBatch has the number that it is given.
    context = FakeContext({"sql.streaming.queryId": "q", "streaming.sql.batchId": "7"})
    assert BatchWriter(numbered, schema, False).batch_of(context) == ("x", 1)
    unnumbered = WriteOptions.parse(once | {"transactionId": "x"})
    assert BatchWriter(unnumbered, schema, False).batch_of(context) == ("x", 7)
    assert BatchWriter(unnumbered, schema, False).batch_of(FakeContext({})) == ("x", 0)
    assert StreamWriter(WriteOptions.parse(once), schema, False).batch_of(context) == ("q", 7)


class FakeContext:
    """A task's, as far as the sink asks it."""

    def __init__(self, properties: dict[str, str]) -> None:
        self.getLocalProperty = properties.get


@pytest.mark.slow("several runs of a stream; fast: test_two_drivers_of_one_batch and kills between all calls")
@pytest.mark.spark
@pytest.mark.skipif(not ADMISSION_CONTROL, reason="needs several batches in a run of AvailableNow")
def test_a_stream_restarted_inside_its_batches(
    spark: SparkSession, cluster: DevCluster, topic: str, tmp_path: Path
) -> None:
    target = cluster.create_topic(f"{topic}-once", 3)
    cluster.send_numbers(topic, range(300))

    def run(failing: bool) -> None:
        source = spark.readStream.format("pymq").option("nameserver", cluster.nameserver)
        source = source.option("topic", topic).option("startingOffsets", "earliest")
        frame = source.option("maxOffsetsPerTrigger", "100").load().selectExpr("value", "key")
        if failing:
            frame = frame.selectExpr("IF(value = '250', raise_error('boom'), value) value", "key")
        writer = frame.writeStream.format("pymq").option("nameserver", cluster.nameserver)
        writer = writer.option("topic", target).option("deliveryGuarantee", "exactly-once")
        writer = writer.option("checkpointLocation", str(tmp_path / "c"))
        query = writer.trigger(availableNow=True).start()
        if failing:
            with pytest.raises(Exception, match="boom"):
                query.awaitTermination(120)
        else:
            assert query.awaitTermination(120)

    run(failing=True)
    # As if the driver had died after each commit, before Spark wrote it down.
    for path in (tmp_path / "c/commits").iterdir():
        if int(path.name.strip(".").split(".")[0]) >= 1:
            path.unlink()
    run(failing=False)
    assert everything(cluster, target) == list(range(300))


@pytest.mark.spark
def test_a_batch_write_done_twice(spark: SparkSession, cluster: DevCluster, topic: str) -> None:
    def run(number: int, **more: str) -> None:
        frame = spark.range(20).selectExpr(f"string(id + {number * 20}) value")
        writer = frame.write.format("pymq").option("nameserver", cluster.nameserver).option("topic", topic)
        writer = writer.option("deliveryGuarantee", "exactly-once").options(**more).mode("append")
        writer.option("transactionBatch", str(number)).save()

    with pytest.raises(Exception, match="transactionId: an exactly-once batch write needs"):
        run(0)
    for number in (0, 1, 1, 0, 1):
        run(number, transactionId=f"nightly-{topic}")
    assert everything(cluster, topic) == list(range(40))


@pytest.mark.spark
def test_rows_for_later(spark: SparkSession, cluster: DevCluster, topic: str) -> None:
    now = time.time()
    frame = spark.sql(
        "SELECT 'soon' value, current_timestamp() + INTERVAL 3 SECONDS deliverAt UNION ALL SELECT 'now', NULL"
    )
    frame.write.format("pymq").option("nameserver", cluster.nameserver).option("topic", topic).mode(
        "append"
    ).save()
    reader = spark.read.format("pymq").option("nameserver", cluster.nameserver)
    deadline = time.monotonic() + 60
    while True:
        found = {bytes(row.value).decode(): row.timestamp for row in reader.load(topic).collect()}
        if len(found) == 2:
            break
        assert set(found) <= {"now"}
        assert time.monotonic() < deadline
        time.sleep(0.5)
    assert found["soon"].timestamp() > now + 2
