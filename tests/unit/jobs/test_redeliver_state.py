"""redeliver without Spark: which dead letters a run takes, and under which name it sends messages."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mqspark.errors import ConfigError
from mqspark_jobs import redeliver as job
from mqspark_jobs.redeliver import DlqOptions, ParkedOptions, redrive, run_parked
from mqspark_jobs.tables.topicqueues import TopicSpan
from tests.support.jobs_tools import Killed, quiet


class Rows:
    """A DataFrame of dead letters by origin."""

    def __init__(self, origins: dict[str | None, int]) -> None:
        self._origins = origins

    def counts(self) -> dict[str | None, int]:
        return {origin: count for origin, count in self._origins.items() if count}

    def drop(self, column: str) -> Rows:
        return self


class DeadLetters:
    """A dead-letter topic with a queue on each of two brokers, and what was sent of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.end = 0
        """In the queue of ``b``; that of ``a`` has two letters."""
        self.has_two = False
        self.origin: str | None = "T"
        self.sent: list[tuple[str, int]] = []
        self.is_killed = False
        monkeypatch.setattr(job, "queue_bounds", self._bounds)
        monkeypatch.setattr(job, "_dead_letters", self._rows)
        monkeypatch.setattr(job, "_send", self._send)
        monkeypatch.setattr(job, "_counts", lambda rows, column: rows.counts())
        monkeypatch.setattr(job, "_consumed", lambda nameserver, group: {"T", "U"})

    def _bounds(self, options: Mapping[str, str], reached: Mapping[str, int]) -> TopicSpan:
        ends = {"b:0": self.end} | ({"a:0": 2} if self.has_two else {})
        return TopicSpan(dict.fromkeys(ends, 0), ends)

    def _rows(self, spark: Any, options: DlqOptions, topic: str, pending: dict[str, Any]) -> Rows:
        return Rows(
            {self.origin: sum(end - max(pending["start"][queue], 0) for queue, end in pending["end"].items())}
        )

    def _send(self, rows: Rows, nameserver: str, identity: str, batch: int) -> None:
        self.sent.append((identity, batch))
        if self.is_killed:
            raise Killed

    def run(self, state: Path, **more: Any) -> int:
        return int(self.summary(state, **more)["sent"])

    def summary(self, state: Path, **more: Any) -> dict[str, Any]:
        options = DlqOptions("h:1", "g", str(state), **more)
        return redrive(options, None, quiet("redeliver"))  # type: ignore[arg-type, return-value]


@pytest.fixture
def letters(monkeypatch: pytest.MonkeyPatch) -> DeadLetters:
    return DeadLetters(monkeypatch)


def test_another_state_directory_sends_under_another_name(letters: DeadLetters, tmp_path: Path) -> None:
    """The brokers know the first run's batches and would store nothing of the second's."""
    letters.end = 5
    assert letters.run(tmp_path / "one") == 5
    assert letters.run(tmp_path / "two") == 5
    (first, _), (second, _) = letters.sent
    assert first != second


def test_a_killed_run_is_repeated_under_its_name(letters: DeadLetters, tmp_path: Path) -> None:
    letters.end = 5
    letters.is_killed = True
    with pytest.raises(Killed):
        letters.run(tmp_path)
    letters.is_killed, letters.end = False, 9
    assert [letters.run(tmp_path), letters.run(tmp_path)] == [5, 4]
    identity = letters.sent[0][0]
    assert letters.sent == [(identity, 0), (identity, 0), (identity, 1)]


def test_a_state_of_an_earlier_version_keeps_its_name(letters: DeadLetters, tmp_path: Path) -> None:
    name = DlqOptions("h:1", "g", "", to="topic").name
    state = {"batch": 3, "done": {"b:0": 4}, "pending": None}
    (tmp_path / f"{name}.json").write_text(json.dumps(state))
    letters.end = 6
    # Earlier versions sent to the original topics.
    assert letters.run(tmp_path) == 2, "to the group goes what was not sent yet"
    assert letters.run(tmp_path, to="topic") == 2
    (to_group, first), last = letters.sent
    assert (first, last) == (0, (f"redrive:{name}", 3))
    assert to_group != f"redrive:{name}"


def test_an_earlier_run_that_was_killed_ends_as_it_began(letters: DeadLetters, tmp_path: Path) -> None:
    letters.end, letters.is_killed = 5, True
    with pytest.raises(Killed):
        letters.run(tmp_path, to="topic")
    letters.is_killed = False
    with pytest.raises(ConfigError, match="repeat it with --to topic"):
        letters.run(tmp_path)
    assert letters.run(tmp_path, to="topic") == 5


@pytest.mark.parametrize("to", ["group", "topic"])
def test_letters_of_topics_that_the_group_does_not_consume_are_sent_where_named(
    letters: DeadLetters, tmp_path: Path, to: str
) -> None:
    """Whoever may consume for a group has a say in where its letters say to come from."""
    letters.end, letters.origin = 5, "Secret"
    with pytest.raises(ConfigError, match="topics that g does not consume: Secret; --origin"):
        letters.run(tmp_path, to=to)
    assert letters.sent == []
    shown = letters.summary(tmp_path, to=to, dry_run=True)
    assert (shown["would_send"], shown["foreign"]) == ({}, {"Secret": 5})
    assert letters.run(tmp_path, to=to, origin="Secret") == 5
    letters.origin = None
    with pytest.raises(ConfigError, match="do not name their original topic"):
        letters.run(tmp_path, to=to)
    assert letters.run(tmp_path, target="Chosen") == 5


def test_dead_letters_of_a_topic_that_was_created_again_are_sent(
    letters: DeadLetters, tmp_path: Path
) -> None:
    letters.end = 5
    assert letters.run(tmp_path) == 5
    letters.end = 2
    assert [letters.run(tmp_path), letters.run(tmp_path)] == [2, 0]


def test_dead_letters_of_a_broker_that_was_away_are_not_sent_again(
    letters: DeadLetters, tmp_path: Path
) -> None:
    letters.end, letters.has_two = 5, True
    assert letters.run(tmp_path) == 7
    letters.end, letters.has_two = 6, False
    assert letters.run(tmp_path) == 1
    letters.has_two = True
    assert letters.run(tmp_path) == 0


class ParkedTable:
    """A Delta table in which an earlier run has claimed batch 3."""

    def __init__(self, number: str) -> None:
        self._id = number
        self.batches = [SimpleNamespace(batch=3)]

    def detail(self) -> ParkedTable:
        return self

    def collect(self) -> list[Any]:
        return [{"id": self._id}]

    def delete(self, condition: str) -> None:
        self.batches.clear()


class ParkedRows:
    def __init__(self, table: ParkedTable) -> None:
        self._table = table

    def where(self, *conditions: str) -> ParkedRows:
        return self

    select = selectExpr = where

    def distinct(self) -> ParkedRows:
        return self

    def collect(self) -> list[Any]:
        return list(self._table.batches)

    def take(self, count: int) -> list[Any]:
        return []

    def count(self) -> int:
        return 1


def test_a_table_that_was_created_again_sends_under_another_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first batches have the numbers of those that were sent, and their rows would be deleted unsent."""
    sent: list[tuple[str, int]] = []
    monkeypatch.setattr(job, "_make_table", lambda spark, url: None)
    monkeypatch.setattr(job, "_send", lambda rows, nameserver, name, batch: sent.append((name, batch)))
    for number in ("one", "two"):
        table = ParkedTable(number)
        monkeypatch.setattr(job, "_table", lambda spark, options, table=table: table)
        monkeypatch.setattr(job, "_rows", lambda spark, options, table=table: ParkedRows(table))
        summary = run_parked(ParkedOptions("h:1", "/parked"), None, quiet("redeliver"))  # type: ignore[arg-type]
        assert summary["delivered"] == 1
    assert sent == [("redeliver:one", 3), ("redeliver:two", 3)]
