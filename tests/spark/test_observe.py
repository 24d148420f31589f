"""Streaming queries of a real Spark, as the console of a cluster shows them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import pyspark_pymq
from mqspark import AdminClient, Message, Producer
from tests.spark.test_stream import WAIT_S, stream, to_files
from tests.support.dev import DevCluster
from tests.support.waiting import eventually
from tests.support.web import get

pytestmark = pytest.mark.spark


def published(namesrv: str, topic: str) -> list[dict[str, Any]]:
    with AdminClient(namesrv) as admin:
        if topic not in admin.topic_list():
            return []
        found = []
        for queue, bounds in admin.topic_stats(topic).items():
            found += admin.read(queue, bounds.min_offset, max_messages=32).messages
    return [json.loads(message.body) for message in found]


@pytest.mark.slow("half a minute; tests/unit/datasource/test_observer.py has what it decides")
def test_the_console_shows_queries_of_an_observed_session(
    spark: SparkSession, cluster: DevCluster, tmp_path: Path
) -> None:
    with Producer(cluster.nameserver, group="observed") as producer:
        for number in range(6):
            producer.send(Message.of("Observed", str(number)))
    observer = pyspark_pymq.observe(spark, cluster.nameserver, topic="progress_of_tests")
    try:
        query = to_files(stream(spark, cluster, "Observed", startingOffsets="earliest"), tmp_path)
        assert query.awaitTermination(WAIT_S)
        eventually(
            lambda: (
                "terminated" in [each["event"] for each in published(cluster.nameserver, "progress_of_tests")]
            )
        )
    finally:
        observer.stop()
    events = [each for each in published(cluster.nameserver, "progress_of_tests") if each["id"] == query.id]
    assert (events[0]["event"], events[-1]["event"]) == ("started", "terminated")
    steps = [each["progress"] for each in events if each["event"] == "progress"]
    assert sum(step["numInputRows"] for step in steps) == 6
    assert (observer.published, observer.dropped) == (len(events), 0)
    page = get(f"{cluster.http}/console/spark/{query.id}?topic=progress_of_tests")
    assert page.status_code == 200, page.text
    assert "pymq: Observed" in page.text
    assert re.search(r"Observed \S+:\d", page.text)
    assert f"/console/spark/{query.id}" in get(f"{cluster.http}/console/spark?topic=progress_of_tests").text
