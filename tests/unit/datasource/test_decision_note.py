"""The note of a decision log counts only in the cluster that it is about."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from mqspark.errors import BrokerError, ConnectionLost
from mqspark.message import SINK_DECISIONS_TOPIC
from pyspark_pymq.writing.decisionnote import NAMESPACE, LogNote

_numbers = iter(range(1 << 30))


class Cluster:
    """A name server with notes, and brokers with stores."""

    def __init__(self, *names: str) -> None:
        self.table: set[str] = set()
        self.ids = {name: f"{name}-{next(_numbers)}" for name in names}
        self.away: set[str] = set()
        self.puts = 0
        self.is_full = False

    def masters(self) -> dict[str, str]:
        return {name: name for name in self.ids if name not in self.away}

    def runtime_info(self, address: str) -> dict[str, str]:
        if address in self.away:
            raise ConnectionLost(address, "away")
        return {"mqsparkStoreId": self.ids[address]} if self.ids[address] else {}

    @contextmanager
    def without_retries(self) -> Iterator[None]:
        yield

    def notes(self, namespace: str, key: str) -> set[str]:
        assert (namespace, key) == (NAMESPACE, SINK_DECISIONS_TOPIC)
        return self.table

    def note(self, namespace: str, key: str, value: str) -> None:
        assert (namespace, key) == (NAMESPACE, SINK_DECISIONS_TOPIC)
        if self.is_full:
            raise BrokerError(1, "the table is full")
        self.puts += 1
        self.table = {value}

    @property
    def own(self) -> LogNote:
        return LogNote(self)  # type: ignore[arg-type]


def test_a_log_whose_broker_is_away_is_found_by_the_others() -> None:
    cluster = Cluster("a", "b")
    assert cluster.own.find() is None
    cluster.own.keep("a", "a")
    cluster.away = {"a"}
    assert cluster.own.find() == "a"
    cluster.away = {"a", "b"}
    assert cluster.own.find() == "a", "nobody says that it is another cluster's"


def test_the_note_of_another_cluster_does_not_count(caplog: pytest.LogCaptureFixture) -> None:
    """Its brokers have the same names."""
    other, cluster = Cluster("a", "b"), Cluster("a", "b")
    other.own.keep("a", "a")
    cluster.table = other.table
    with caplog.at_level(logging.WARNING):
        assert cluster.own.find() is None
    assert "another cluster's decision log" in caplog.text
    cluster.own.keep("b", "b")
    assert cluster.own.find() == "b"
    assert other.ids["a"] not in "".join(cluster.table)


@pytest.mark.parametrize("text", ["dev", "", "{}", '{"broker": 1, "stores": []}', "[" * 100_000])
def test_a_note_that_names_no_stores_does_not_count(text: str) -> None:
    cluster = Cluster("a")
    cluster.table = {text}
    assert cluster.own.find() is None
    cluster.own.keep("a", "a")
    assert cluster.own.find() == "a"


def test_a_store_that_is_made_anew_has_no_log(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster("a")
    cluster.own.keep("a", "a")
    cluster.ids["a"] = "another"
    assert cluster.own.find() is None


def test_what_is_wrong_with_a_note_costs_a_line_and_one_when_it_is_over(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each batch looks again."""
    now = 0.0
    monkeypatch.setattr("pyspark_pymq.writing.decisionnote.time.monotonic", lambda: now)
    other, cluster = Cluster("a"), Cluster("a")
    other.own.keep("a", "a")
    cluster.table = other.table | {"no note"}
    for _ in range(5):
        assert cluster.own.find() is None
    cluster.own.keep("a", "a")
    for _ in range(5):
        assert cluster.own.find() == "a"
    cluster.is_full = True
    for name in "bcdef":
        now += 61.0
        cluster.ids[name] = f"{name} is new"
        cluster.own.keep("a", "a")
    cluster.is_full = False
    for _ in range(5):
        now += 61.0
        cluster.own.keep("a", "a")
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "a note of a decision log names no stores",
        "a note at the name servers is about another cluster's decision log",
        "the notes of decision logs name stores",
        "the note at the name servers is about this cluster's decision log",
        "the note of the decision log is not renewed",
        "the note of the decision log is renewed again",
    ]


def test_the_note_is_renewed_when_brokers_change(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("pyspark_pymq.writing.decisionnote.time.monotonic", lambda: now)
    cluster = Cluster("a", "b")
    for _ in range(3):
        cluster.own.keep("a", "a")
    assert cluster.puts == 1
    cluster.ids["b"] = "b after a failover"
    cluster.ids["c"] = "c"
    before = set(json.loads(next(iter(cluster.table)))["stores"])
    now = 61.0
    cluster.own.keep("a", "a")
    assert set(json.loads(next(iter(cluster.table)))["stores"]) == before | {"b after a failover", "c"}
    now = 122.0
    cluster.own.keep("a", "a")
    assert cluster.puts == 2, "nothing has changed"
    cluster.away = {"a", "b"}
    assert cluster.own.find() == "a"


def test_the_note_stays_small() -> None:
    cluster = Cluster(*(f"broker-{number}" for number in range(500)))
    cluster.own.keep("broker-0", "broker-0")
    noted = json.loads(next(iter(cluster.table)))
    assert len(noted["stores"]) <= 64
    assert cluster.ids["broker-0"] in noted["stores"]
