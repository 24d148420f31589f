"""redeliver: parked messages when they are due, dead letters by choice; killed between all steps, nothing twice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from mqspark import AdminClient
from mqspark.message import Message
from mqspark_jobs import redeliver as job
from mqspark_jobs.commandline import main
from mqspark_jobs.redeliver import DELIVER_AT, TARGET, DlqOptions, ParkedOptions, redrive, run_parked
from tests.support.dev import DevCluster
from tests.support.jobs_tools import Killed, quiet

pytestmark = pytest.mark.spark


def read(spark: SparkSession, cluster: DevCluster, topic: str) -> list[tuple[str, str, str]]:
    reader = spark.read.format("pymq").option("nameserver", cluster.nameserver)
    rows = reader.option("includeProperties", "true").load(topic).collect()
    return sorted((bytes(row.value).decode(), row.key, row.properties.get("n", "")) for row in rows)


def dying(monkeypatch: pytest.MonkeyPatch, name: str, *, after: bool) -> None:
    original = getattr(job, name)

    def call(*arguments: Any) -> Any:
        if after:
            original(*arguments)
        raise Killed

    monkeypatch.setattr(job, name, call)


@pytest.mark.slow("writes and reads Delta tables")
def test_parked_for_years(
    delta: SparkSession,
    cluster: DevCluster,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    parking = cluster.create_topic(f"{topic}-parking", 2)
    year_ms = 365 * 86_400_000
    now_ms = 1_900_000_000_000

    def park(numbers: range) -> None:
        messages = [
            Message.of(
                parking,
                f"m{n}",
                keys=f"k{n}",
                properties={"n": str(n), TARGET: topic, DELIVER_AT: str(now_ms + n % 3 * year_ms)},
            )
            for n in numbers
        ]
        cluster.send(parking, 0, messages)

    def expected(numbers: range, years: int) -> list[tuple[str, str, str]]:
        return sorted((f"m{n}", f"k{n}", str(n)) for n in numbers if n % 3 <= years)

    table = str(tmp_path / "table")
    options = ParkedOptions(cluster.nameserver, table, parking, now_ms - 1)
    park(range(30))
    summary = run_parked(options, delta, quiet("redeliver"))
    assert (summary["parked"], summary["delivered"], summary["waiting"]) == (30, 0, 30)
    due = ParkedOptions(cluster.nameserver, table, parking, now_ms)
    for name, after in (("_send", False), ("_send", True)):
        dying(monkeypatch, name, after=after)
        with pytest.raises(Killed):
            run_parked(due, delta, quiet("redeliver"))
        monkeypatch.undo()
    park(range(30, 36))
    arguments = ["redeliver", "--nameserver", cluster.nameserver, "--table", table, "--topic", parking]
    assert main([*arguments, "--now-ms", str(now_ms + year_ms), "--dry-run"], spark=delta) == 0
    assert json.loads(capsys.readouterr().out)["due"] == {topic: 10}
    assert main([*arguments, "--now-ms", str(now_ms)], spark=delta) == 0
    assert json.loads(capsys.readouterr().out)["delivered"] == 12
    assert read(delta, cluster, topic) == expected(range(36), 0)
    run_parked(
        ParkedOptions(cluster.nameserver, table, None, now_ms + 9 * year_ms), delta, quiet("redeliver")
    )
    assert read(delta, cluster, topic) == expected(range(36), 2)


@pytest.mark.slow("several jobs; fast: the choice in tests/unit/server/shown/test_dead_letters.py")
def test_dead_letters_by_choice(
    spark: SparkSession,
    cluster: DevCluster,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    group = f"g-{topic}"[:60]
    dead = cluster.create_topic(f"%DLQ%{group}", 1)

    def die(numbers: range) -> None:
        cluster.send(
            dead,
            0,
            [
                Message.of(
                    dead,
                    f"m{n}",
                    keys=f"k{n % 5}",
                    tags="odd" if n % 2 else "even",
                    properties={"n": str(n), "RETRY_TOPIC": topic},
                )
                for n in numbers
            ],
        )

    def options(**more: Any) -> DlqOptions:
        return DlqOptions(cluster.nameserver, group, str(tmp_path), **{"to": "topic", **more})

    def numbers() -> list[int]:
        return sorted(int(n) for _, _, n in read(spark, cluster, topic))

    die(range(20))
    arguments = ["redeliver", "--nameserver", cluster.nameserver, "--dlq", group, "--state", str(tmp_path)]
    arguments += ["--filter", "TAGS = 'odd'", "--dry-run"]
    assert main(arguments, spark=spark) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["would_send"], shown["foreign"]) == ({}, {topic: 10}), "the group consumes nothing yet"
    with AdminClient(cluster.nameserver) as admin:
        admin.create_group(group)
        admin.update_offset(group, min(admin.topic_stats(topic)), 0)
    assert main(arguments, spark=spark) == 0
    assert json.loads(capsys.readouterr().out)["would_send"] == {topic: 10}
    assert numbers() == []
    chosen = options(sql_filter="TAGS = 'odd'", key="k3")
    dying(monkeypatch, "_send", after=True)
    with pytest.raises(Killed):
        redrive(chosen, spark, quiet("redeliver"))
    monkeypatch.undo()
    # More die before the run is repeated: it sends what it had chosen, and the next run the rest.
    die(range(20, 30))
    assert redrive(chosen, spark, quiet("redeliver"))["sent"] == 2
    assert numbers() == [3, 13]
    assert redrive(chosen, spark, quiet("redeliver"))["sent"] == 1
    assert numbers() == [3, 13, 23]
    assert redrive(options(key="k0"), spark, quiet("redeliver"))["sent"] == 6
    assert numbers() == [0, 3, 5, 10, 13, 15, 20, 23, 25]
    assert redrive(options(to_ms=1), spark, quiet("redeliver"))["sent"] == 0
    # To the group alone, which takes the topic from the property.
    assert redrive(options(key="k1", to="group"), spark, quiet("redeliver"))["sent"] == 6
    reader = (
        spark.read.format("pymq").option("nameserver", cluster.nameserver).option("includeProperties", "true")
    )
    again = reader.load(f"%RETRY%{group}").collect()
    assert sorted(int(row.properties["n"]) for row in again) == [1, 6, 11, 16, 21, 26]
    assert {row.properties["RETRY_TOPIC"] for row in again} == {topic}
    assert numbers() == [0, 3, 5, 10, 13, 15, 20, 23, 25]
    assert main(["redeliver", "--nameserver", "h:1"], spark=spark) == 2
