"""A Spark work queue and a Java push consumer in one group: the same messages, attempts and dead letters."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.interop.driver import JSON_FIRST, JavaDriver, body_of, message
from tests.interop.rocketmq import EITHER, either_cluster
from tests.interop.topics import create_group, create_topic
from tests.support.clusters import Cluster
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow("Spark and a JVM for Java; tests/spark/test_work_queue.py is the fast twin"),
    pytest.mark.parametrize("java", JSON_FIRST, ids=["json", "binary"], indirect=True),
]

SETTINGS = {"messageDelayLevel": "1s 2s 1s 10s 10s 1h", "timerWheelEnable": "true"}
WAIT_S = 120


@pytest.fixture(params=EITHER, scope="module")
def quick(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster whose first levels are short."""
    with either_cluster(request, tmp_path_factory.mktemp("work"), SETTINGS) as running:
        yield running


def test_one_group_in_two_languages(
    java: JavaDriver, quick: Cluster, spark: "SparkSession", name: Callable[[str], str], tmp_path: Path
) -> None:
    from pyspark_pymq import WorkQueue

    topic, group = create_topic(quick, name("Shared"), 2), name("shared")
    create_group(quick, group)
    producer = java.call("producer.start", namesrv=quick.namesrv, group=name("producer"))["handle"]
    for number in range(6):
        java.call(
            "producer.send", handle=producer, mode="sync", message=message(topic, f"m{number}".encode())
        )
    java.call("producer.stop", handle=producer)
    seen = tmp_path / "seen"
    seen.mkdir()

    def handle(each: Any) -> None:
        (seen / f"{bytes(each.value).decode()}-{each.attempt}").touch()
        if each.value == b"m3":
            raise ValueError("not in Spark")

    def spark_until(done: Callable[[dict[str, Any]], bool], delays: str, checkpoint: str) -> None:
        work = WorkQueue(
            spark, nameserver=quick.namesrv, topic=topic, group=group, max_attempts=3, delays=delays
        )
        query = work.for_each(handle, checkpoint=str(tmp_path / checkpoint))
        eventually(
            lambda: query.exception() or any(done(each) for each in query.recentProgress if each["work"]),
            lambda: query.lastProgress,
            WAIT_S,
        )
        assert query.exception() is None, query.exception()
        # The next look of the source publishes what is finished.
        query.processAllAvailable()
        query.stop()

    # First Spark fails a message; its retry comes to the Java consumer of the group, which fails it as well.
    spark_until(lambda each: each["work"]["retry"] == 1, "5s", "first")
    assert {path.name for path in seen.iterdir()} == {f"m{number}-1" for number in range(6)}
    consumer = java.push(quick.namesrv, topic, group, failures=2)
    (one,) = java.take(consumer, 1, timeout_ms=50_000)
    assert (body_of(one), one["reconsume_times"], one["topic"]) == (b"m3", 1, topic)
    assert one["properties"]["MQSPARK_FAILED_TEXT"] == "not in Spark"
    java.call("push.stop", handle=consumer)
    # Then it comes back to Spark, in its third and last attempt: with a new checkpoint, from where the group is.
    spark_until(lambda each: each["work"]["dead"] == 1, "1s", "second")
    dead = WorkQueue(spark, nameserver=quick.namesrv, topic=topic, group=group).dead_letters().collect()
    # At least once: two consumers of one group may both have handled the attempt before.
    assert {(bytes(row.value), row.topic, row.attempt, row.errorText) for row in dead} == {
        (b"m3", topic, 3, "not in Spark")
    }
    assert (seen / "m3-3").exists()
    # A Java consumer of the dead letters reads the same.
    undertaker = java.push(quick.namesrv, f"%DLQ%{group}", name("undertaker"))
    letter, *_ = java.take(undertaker, 1, timeout_ms=50_000)
    assert (body_of(letter), letter["properties"]["MQSPARK_FAILED_TYPE"]) == (b"m3", "ValueError")
    assert letter["msg_id"] == one["msg_id"]
    java.call("push.stop", handle=undertaker)
