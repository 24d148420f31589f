"""Commands for static topics: made, grown and moved between two brokers; what fails half-way is finished."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from mqspark import ConsumeFromWhere, LitePullConsumer, Message, Producer
from mqspark.testing import Cluster
from mqspark_server.commands.administration import staticplans
from tests.support.commands import mqspark

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(2) as running:
        yield running


@pytest.fixture(autouse=True)
def temporary(environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def names(cluster: Cluster) -> tuple[str, str]:
    first, second = (app.config.broker_name for app in cluster.apps)
    return first, second


def send(topic: str, *texts: str) -> None:
    with Producer(group="p") as producer:
        for text in texts:
            producer.send(Message.of(topic, text))


def read(topic: str, count: int) -> list[str]:
    with LitePullConsumer(group=f"of-{topic}", consume_from=FIRST) as consumer:
        consumer.subscribe(topic)
        found: list[str] = []
        while len(found) < count:
            found += [message.body.decode() for message in consumer.poll(timeout_ms=10_000)]
        return found


def test_a_static_topic_by_rocketmqs_verbs(cluster: Cluster, tmp_path: Path) -> None:
    first, second = names(cluster)
    made = mqspark("mqadmin", "updateStaticTopic", "-b", first, "-t", "Verbs", "-qn", "1")
    assert made.code == 0, made.err
    assert made.lines[-1].split() == ["Verbs", "0", first]
    send("Verbs", "1", "2")
    moved = mqspark("mqadmin", "remappingStaticTopic", "-b", second, "-t", "Verbs")
    assert moved.code == 0, moved.err
    assert moved.lines[-1].split() == ["Verbs", "0", second]
    send("Verbs", "3")
    assert read("Verbs", 3) == ["1", "2", "3"]
    grown = mqspark("topic", "create-static", "Verbs", "--queues", "3", "--broker", first, "-o", "json")
    assert [row["broker"] for row in grown.json] == [second, first, first]
    shrunk = mqspark("topic", "create-static", "Verbs", "--queues", "2")
    assert (shrunk.code, "Cannot decrease the queue num" in shrunk.err) == (1, True)
    whole = mqspark("topic", "repair-static", "Verbs", "-o", "json")
    assert [row["broker"] for row in whole.json] == [second, first, first]
    assert mqspark("mqadmin", "remappingStaticTopic", "-t", "Verbs").code == 2  # neither -b nor -c
    assert "there is no topic" in mqspark("topic", "remap", "Nowhere").err
    assert not list(tmp_path.glob("mqspark-plan-*"))


@pytest.mark.parametrize(
    "with_plan",
    [True, pytest.param(False, marks=pytest.mark.slow("it takes as long again; plan_rest has a unit test"))],
)
def test_what_failed_half_way_is_finished(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, with_plan: bool
) -> None:
    first, second = names(cluster)
    topic = f"Half-{with_plan}"
    assert mqspark("topic", "create-static", topic, "--queues", "1", "--broker", first).code == 0
    send(topic, "1")
    write, writes = staticplans.KeptPlan.write, list[staticplans.KeptPlan]()

    def torn(kept: staticplans.KeptPlan) -> None:
        """Once the offsets are decided, both brokers were told something, and not yet everything."""
        write(kept)
        writes.append(kept)
        if len(writes) == 2:
            raise ConnectionResetError("the network is gone")

    monkeypatch.setattr(staticplans.KeptPlan, "write", torn)
    failed = mqspark("topic", "remap", topic, "--broker", second)
    monkeypatch.setattr(staticplans.KeptPlan, "write", write)
    assert failed.code != 0
    found = re.search(r"complete it with --plan (\S+)", failed.err)
    assert found is not None, failed.err
    wrong = mqspark("topic", "remap", "Verbs", "--plan", found[1])
    assert f"is a plan for '{topic}', not for Verbs" in wrong.err
    more = ["-mf", found[1]] if with_plan else []
    done = mqspark("mqadmin", "remappingStaticTopic", "-b", second, "-t", topic, *more)
    assert done.code == 0, done.err
    send(topic, "2")
    assert read(topic, 2) == ["1", "2"]
