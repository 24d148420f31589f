"""What a command leaves out, it says on standard error, with a way to get it."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from mqspark.testing import Cluster
from tests.support.commands import Outcome, mqspark
from tests.support.waiting import eventually

COUNT = 150
"""More than the 64 messages of one answer."""

pytestmark = pytest.mark.usefixtures("environment")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(1, settings={"autoCreateTopicEnable": True}) as running:
        yield running


@pytest.fixture(scope="module")
def many(cluster: Cluster) -> str:
    """A topic with COUNT messages of one key and tag."""
    name, at = "Many", ("-n", cluster.namesrv)
    assert mqspark("topic", "create", name, "--queues", "1", *at).code == 0
    lines = b"".join(b"%d\n" % number for number in range(COUNT))
    assert mqspark("produce", name, "-k", "all", "-t", "red", "--ordered", *at, stdin=lines).code == 0
    eventually(
        lambda: len(mqspark("message", "key", name, "all", "-c", "999", "-o", "jsonl", *at).lines) == COUNT,
        "all messages by the index",
    )
    return name


def numbers(found: Outcome) -> list[int]:
    assert found.code == 0, found.err
    return [int(json.loads(line)["body"]) for line in found.lines]


@pytest.mark.parametrize(("noun", "word"), [("key", "all"), ("tag", "red")])
def test_a_look_up_has_the_newest_and_says_that_there_are_more(many: str, noun: str, word: str) -> None:
    found = mqspark("message", noun, many, word, "-c", "100", "-o", "jsonl")
    assert numbers(found) == list(range(COUNT - 100, COUNT))
    assert "only the newest 100 are shown: --count shows more, --until TIME older ones" in found.err
    found = mqspark("message", noun, many, word, "-c", str(COUNT), "-o", "jsonl")
    assert (numbers(found), found.err) == (list(range(COUNT)), "")
    assert mqspark("message", noun, many, word, "--until", "2020-01-01").code == 3
    assert mqspark("message", noun, many, word, "--from", "now", "--until", "-1h").code == 2


def test_a_span_of_time_says_that_there_are_more(many: str) -> None:
    found = mqspark("message", "time", many, "--from", "-1h", "-o", "jsonl")
    assert numbers(found) == list(range(32))
    assert "only the first 32 are shown" in found.err
    assert mqspark("message", "time", many, "--from", "-1h", "-c", str(COUNT)).err == ""


def test_the_newest_messages_of_all_brokers_are_chosen_by_time(many: str) -> None:
    (row,) = mqspark("message", "key", many, "all", "-c", "1", "-o", "json").json
    assert row["body"] == str(COUNT - 1)


def test_dead_letters_say_that_there_are_more(many: str) -> None:
    lines = b"".join(b"%d\n" % number for number in range(3))
    assert mqspark("produce", "%DLQ%many", "-P", f"RETRY_TOPIC={many}", stdin=lines).code == 0
    found = mqspark("dlq", "show", "many", "-c", "2", "-o", "jsonl")
    assert (len(found.lines), "only the first 2 are shown" in found.err) == (2, True)
    assert "more" not in mqspark("dlq", "show", "many", "-c", "3").err
    found = mqspark("dlq", "resend", "many", "-c", "2", "--dry-run", "--topic", many, "-o", "json")
    assert (len(found.json), "--count takes more" in found.err) == (2, True)


def test_top_says_that_there_are_more(many: str) -> None:
    assert mqspark("topic", "create", "Other").code == 0
    found = mqspark("top", "-i", "0.1", "--limit", "1")
    assert "topics: the first 1 of" in found.out
    found = mqspark("top", "-i", "0.1", "--limit", "1", "-o", "json")
    assert (len(found.json["topics"]), "--limit shows more" in found.err) == (1, True)


def test_a_table_of_messages_says_that_there_are_more(many: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from mqspark_server.commands.messages import consume_cli

    monkeypatch.setattr(consume_cli, "MAX_ROWS", 7)
    found = mqspark("consume", many, "-o", "table")
    assert (len(found.lines), "only the first 7 are shown" in found.err) == (8, True)
