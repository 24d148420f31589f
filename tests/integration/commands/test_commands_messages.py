"""Sending, reading and finding messages on the command line."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from mqspark import Message, Producer, PushConsumer
from mqspark.client.remoting import remoting
from mqspark.message import RETRY_PREFIX
from mqspark.testing import Cluster
from tests.support import processes
from tests.support.commands import Outcome, mqspark
from tests.support.waiting import eventually

pytestmark = pytest.mark.usefixtures("environment")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(1, settings={"autoCreateTopicEnable": True, "messageDelayLevel": "1s"}) as running:
        yield running


def topic(name: str, queues: int = 3) -> str:
    assert mqspark("topic", "create", name, "--queues", str(queues)).code == 0
    return name


def bodies(*arguments: str) -> list[str]:
    read = mqspark("consume", *arguments)
    assert read.code == 0, read
    return read.lines


def ok(outcome: Outcome) -> Outcome:
    assert outcome.code == 0, outcome
    return outcome


# --- produce and consume ----------------------------------------------------------------------------------------


def test_lines_go_in_and_come_out() -> None:
    name = topic("Lines")
    sent = ok(mqspark("produce", name, "-t", "t", "-P", "n=1", stdin=b"one\ntwo\n\nthree"))
    assert (sent.out, sent.err) == ("", "sent 3 messages\n")
    assert sorted(bodies(name)) == ["one", "three", "two"]
    assert len(bodies(name, "--count", "2")) == 2
    assert bodies(name, "--from", "latest") == []
    assert sorted(bodies(name, "--from", "-1h")) == ["one", "three", "two"]
    assert bodies(name, "--until", "-1h") == []
    assert bodies(name, "--tag", "other") == []
    assert len(bodies(name, "--tag", "t || u")) == 3
    assert len(bodies(name, "--sql", "n = '1'")) == 3
    assert bodies(name, "--sql", "n = '2'") == []
    rows = [json.loads(line) for line in bodies(name, "-o", "jsonl")]
    assert {row["body"] for row in rows} == {"one", "two", "three"}
    assert all(row["tags"] == "t" and row["properties"]["n"] == "1" for row in rows)
    assert mqspark("consume", name, "-o", "table").lines[0].split()[:3] == ["STORED", "BROKER", "QUEUE"]


def test_a_queue_is_read_in_its_order_and_formats_are_kcats() -> None:
    name = topic("Ordered", 1)
    lines = b"".join(b"k%d:m%d\n" % (n, n) for n in range(100))
    broker = mqspark("broker", "list", "-o", "json").json[0]["broker"]
    ok(mqspark("produce", name, "-K", ":", "--ordered", "--queue", f"{broker}:0", stdin=lines))
    assert bodies(name) == [f"m{n}" for n in range(100)]
    assert bodies(name, "--from", "-2", "-F", r"%t/%p/%o %k %S %% %s\x21\n") == [
        "Ordered/0/98 k98 3 % m98!",
        "Ordered/0/99 k99 3 % m99!",
    ]
    assert bodies(name, "--from", "10", "--until", "12") == ["m10", "m11"]
    assert bodies(name, "--queue", f"{broker}:0", "--from", "99") == ["m99"]
    assert mqspark("consume", name, "-F", "%q").code == 2
    assert mqspark("consume", name, "--from", "yesterday").code == 2
    assert "did you mean 'Ordered'?" in mqspark("consume", "Orderd").err


def test_json_lines_are_what_both_understand() -> None:
    one, other = topic("JsonOne"), topic("JsonOther")
    rows = [
        {"body": "text", "keys": ["a", "b"], "tags": "t", "properties": {"p": "1"}},
        {"body": {"amount": 5}},
        {"body_base64": "AP8="},
    ]
    ok(mqspark("produce", one, "--jsonl", stdin="\n".join(map(json.dumps, rows)).encode()))
    copied = ok(mqspark("consume", one, "-o", "jsonl"))
    ok(mqspark("produce", other, "--jsonl", stdin=copied.out.encode()))
    found = [json.loads(line) for line in bodies(other, "-o", "jsonl")]
    assert {row.get("body", row.get("body_base64")) for row in found} == {"text", '{"amount": 5}', "AP8="}
    (text,) = [row for row in found if row.get("body") == "text"]
    assert (text["keys"], text["tags"], text["properties"]["p"]) == ("a b", "t", "1")
    for line, reason in (
        (b"{", "not JSON"),
        (b"[]", "not a JSON object"),
        (b'{"body":"x","kyes":"a"}', "kyes"),
        (b"{}", "no body"),
    ):
        refused = mqspark("produce", other, "--jsonl", stdin=line)
        assert (refused.code, reason in refused.err) == (2, True), refused


def test_what_is_sent_is_said(tmp_path: Path) -> None:
    name = topic("Said")
    rows = [
        json.loads(line) for line in ok(mqspark("produce", name, "-b", "x", "-c", "3", "-o", "jsonl")).lines
    ]
    assert [row["status"] for row in rows] == ["SEND_OK"] * 3
    (row,) = ok(mqspark("produce", name, "-b", "x", "-o", "json")).json
    assert row.keys() == rows[0].keys()
    (row,) = yaml.safe_load(ok(mqspark("produce", name, "-b", "x", "-o", "yaml")).out)
    assert row.keys() == rows[0].keys()
    assert ok(mqspark("produce", name, "-b", "x", "-o", "table")).err == "sent 1 message\n"
    file = tmp_path / "file"
    file.write_bytes(b"a;b;c")
    ok(mqspark("produce", name, str(file), "-D", ";", "--count", "2"))
    ok(mqspark("produce", name, str(file), "--whole"))
    assert sorted(bodies(name)) == ["a", "a;b;c", "b", *["x"] * 6]
    began = time.monotonic()
    ok(mqspark("produce", name, "-b", "y", "-c", "4", "--rate", "20"))
    assert time.monotonic() - began >= 3 / 20
    assert mqspark("produce", "No Topic", "-b", "x").code == 2
    assert mqspark("produce", name, "-b", "x", "--delay", "soon").code == 2


def test_a_delayed_message_comes_later() -> None:
    name = topic("Later")
    ok(mqspark("produce", name, "-b", "now"))
    ok(mqspark("produce", name, "-b", "later", "--delay-level", "1"))
    assert bodies(name) == ["now"]
    eventually(lambda: bodies(name) == ["now", "later"])


def test_following_goes_on_until_it_is_interrupted(cluster: Cluster, tmp_path: Path) -> None:
    name = topic("Followed")
    ok(mqspark("produce", name, "-b", "before"))
    command = [
        *processes.mqspark_command(),
        "consume",
        name,
        "-f",
        "--from",
        "earliest",
        "-n",
        cluster.namesrv,
    ]
    log = tmp_path / "errors"
    with processes.process(command, log, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "before\n"
        ok(mqspark("produce", name, "-b", "after"))
        assert child.stdout.readline() == "after\n"
        assert (processes.stop(child, signal.SIGINT), log.read_text()) == (0, "")
    everything = ("consume", name, "-f", "--from", "earliest", "-c", "2")
    assert mqspark(*everything).lines == ["before", "after"]
    for shape in ("json", "yaml"):
        rows = yaml.safe_load(mqspark(*everything, "-o", shape).out)
        assert [row["body"] for row in rows] == ["before", "after"], "one document"


# --- finding ----------------------------------------------------------------------------------------------------


def test_a_message_is_found_by_everything_that_names_it() -> None:
    name = topic("Found")
    sent = ok(mqspark("produce", name, "-b", "it", "-k", "key-1", "-t", "t", "-o", "jsonl")).json
    queue = f"{sent['broker']}:{sent['queue']}"
    eventually(lambda: mqspark("message", "key", name, "key-1").code == 0)
    for arguments in (
        ("key", name, "key-1"),
        ("id", sent["message_id"], "--topic", name),
        ("id", sent["offset_id"]),
        ("offset", name, queue, str(sent["offset"])),
        ("time", name, "--from", "-1h"),
        ("time", name, "--from", "1h ago", "--until", "now", "--tag", "t"),
    ):
        found = ok(mqspark("message", *arguments, "-o", "json")).json
        (row,) = found if isinstance(found, list) else [found]
        assert (row["body"], row["message_id"]) == ("it", sent["message_id"]), arguments
        assert row["broker"] == sent["broker"], arguments
    assert "it" in ok(mqspark("message", "key", name, "key-1")).out
    for arguments in (
        ("key", name, "key-2"),
        ("id", sent["message_id"]),
        ("id", "7F0000010000000100000000000000000000"),
        ("offset", name, queue, "99"),
    ):
        assert mqspark("message", *arguments).code == 3, arguments
    assert mqspark("message", "time", name, "--from", "-2h", "--until", "-1h").err == "(no message)\n"
    assert mqspark("message", "time", name, "--from", "-1h", "--until", "-2h").code == 2


def test_an_id_makes_the_command_ask_no_stranger(monkeypatch: pytest.MonkeyPatch) -> None:
    """The id says 203.0.113.7:9: nothing is sent there."""
    stranger = bytes([203, 0, 113, 7]).hex() + (9).to_bytes(4, "big").hex() + "00" * 8
    asked, opened = set[str](), remoting.opened

    async def noted(factory: Any, host: str, *more: Any) -> Any:
        asked.add(host)
        return await opened(factory, host, *more)

    monkeypatch.setattr(remoting, "opened", noted)
    assert mqspark("message", "id", stranger).code == 3
    assert asked == {"127.0.0.1"}


def test_a_trace_is_told(cluster: Cluster) -> None:
    name = topic("Traced")
    got: list[str] = []
    consumer = PushConsumer(
        cluster.namesrv,
        group="traced",
        consume_from="CONSUME_FROM_FIRST_OFFSET",
        listener=lambda message: got.append(message.message_id),
        trace=True,
    )
    consumer.subscribe(name)
    with consumer:
        sent = ok(mqspark("produce", name, "-b", "x", "--trace", "-o", "jsonl")).json
        eventually(lambda: got == [sent["message_id"]])

    def told() -> dict[str, Any] | None:
        rows = json.loads(mqspark("message", "trace", sent["message_id"], "-o", "json").out or "[]")
        found = {row["what"]: row for row in rows}
        return found if len(found) == 3 else None

    steps = eventually(told)
    assert steps is not None
    assert steps["sent"]["topic"] == name
    assert steps["consumed"]["group"] == steps["handed out"]["group"] == "traced"
    assert steps["consumed"]["success"] is True
    assert mqspark("message", "trace", "unknown").code == 3


# --- dead letters -----------------------------------------------------------------------------------------------


def test_dead_letters_are_shown_and_sent_again(cluster: Cluster) -> None:
    name = topic("Deadly")
    well = False
    got: list[tuple[str, bytes]] = []

    def listen(message: Message) -> None:
        if not well:
            raise ValueError("no")
        got.append((message.topic, message.body))

    ok(mqspark("group", "create", "mourners", "--retries", "0"))
    consumer = PushConsumer(
        cluster.namesrv, group="mourners", consume_from="CONSUME_FROM_FIRST_OFFSET", listener=listen
    )
    consumer.subscribe(name)
    with consumer:
        with Producer(group="p") as producer:
            for number in range(3):
                producer.send(
                    Message.of(name, f"m{number}", keys=f"k{number}", tags=("even", "odd")[number % 2])
                )
        eventually(lambda: [r for r in mqspark("dlq", "list", "-o", "json").json if r["messages"] == 3])
        shown = mqspark("dlq", "show", "mourners", "-o", "json").json
        assert {row["origin_topic"] for row in shown} == {name}
        assert len(mqspark("dlq", "show", "mourners", "--tag", "even", "-o", "json").json) == 2
        assert mqspark("dlq", "show", "mourners", "--key", "k9").err == "(no dead letter)\n"
        assert mqspark("dlq", "show", "mourner").code == 3
        well = True
        preview = mqspark("dlq", "resend", "mourners", "--key", "k1", "--dry-run", "-o", "json").json
        assert [row["to"] for row in preview] == [RETRY_PREFIX + "mourners"]
        assert mqspark("dlq", "resend", "mourners", "--key", "k1").code == 2
        assert got == []
        with Producer(group="p") as producer:
            forged = {"RETRY_TOPIC": "Foreign"}
            producer.send(Message.of("%DLQ%mourners", "forged", keys="f1", properties=forged))
        preview = ok(mqspark("dlq", "resend", "mourners", "--dry-run", "-o", "json")).json
        assert [row["origin_topic"] for row in preview if row["is_foreign"]] == ["Foreign"]
        refused = mqspark("dlq", "resend", "mourners", "--key", "f1", "--yes")
        assert (refused.code, "the group does not consume it" in refused.err) == (1, True)
        assert got == []
        again = ok(mqspark("dlq", "resend", "mourners", "--key", "k1", "--yes"))
        assert again.lines[-1] == "dead letters sent again: 1"
        eventually(lambda: got == [(name, b"m1")])
        ok(mqspark("dlq", "resend", "mourners", "--topic", name, "--tag", "even", "--to", "topic", "--yes"))
        eventually(lambda: sorted(body for _, body in got) == [b"m0", b"m1", b"m2"])


# --- how fast ---------------------------------------------------------------------------------------------------


def test_a_cluster_is_measured() -> None:
    name = topic("Measured")
    row = ok(mqspark("bench", "send", name, "-c", "500", "--size", "10", "-o", "json")).json
    assert (row["messages"], row["failures"]) == (500, 0)
    assert 0 < row["request_p50_millis"] <= row["request_p99_millis"] <= row["request_max_millis"]
    row = ok(mqspark("bench", "send", name, "-c", "300", "--batch", "100", "-o", "json")).json
    assert row["messages"] == 300
    row = ok(mqspark("bench", "consume", name, "-o", "json")).json
    assert (row["messages"], row["queues"]) == (800, 3)
    assert ok(mqspark("bench", "consume", name, "-c", "100", "-o", "json")).json["messages"] == 100
