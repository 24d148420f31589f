"""What is wrong with one message, one argument or one terminal does not end a command without a word."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mqspark.message import DLQ_PREFIX, RETRY_TOPIC
from mqspark.testing import Cluster
from tests.support import processes
from tests.support.commands import mqspark
from tests.support.remoting import SEND_MESSAGE_V2, ask, send_fields
from tests.support.waiting import eventually

COMPRESSED = 1
"""The bit of a message's system flag."""
COMMAND = [sys.executable, "-m", "mqspark_server.cli"]

pytestmark = pytest.mark.usefixtures("environment")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(1, settings={"autoCreateTopicEnable": True}) as running:
        yield running


def topic(name: str) -> str:
    assert mqspark("topic", "create", name, "--queues", "1").code == 0
    return name


def send(address: str, to: str, body: bytes, properties: str = "", sys_flag: int = 0) -> None:
    assert ask(address, SEND_MESSAGE_V2, body, **send_fields(to, 0, properties, f=sys_flag)).code == 0


def broker_address() -> str:
    return str(mqspark("broker", "list", "-o", "json").json[0]["address"])


def test_a_body_that_cannot_be_read_hides_no_other_message() -> None:
    name, address = topic("Poisoned"), broker_address()
    for body, flag in ((b"before", 0), (b"no zlib", COMPRESSED), (b"after", 0)):
        send(address, name, body, sys_flag=flag)
    read = mqspark("consume", name)
    assert (read.lines, read.code) == (["before", "after"], 1)
    assert "offset 1 of queue" in read.err
    assert "1 message could not be shown" in read.err
    rows = [json.loads(line) for line in mqspark("consume", name, "-o", "jsonl").lines]
    assert [row.get("body") for row in rows] == ["before", None, "after"]
    copied = mqspark("produce", topic("Copied"), "--jsonl", stdin=json.dumps(rows[1]).encode())
    assert (copied.code, "line 1: the message has no body" in copied.err) == (2, True)


def test_a_dead_letter_that_cannot_be_read_keeps_no_other_one_back() -> None:
    name, address = topic("Mourned"), broker_address()
    for body, flag in ((b"no zlib", COMPRESSED), (b"alive", 0)):
        send(address, f"{DLQ_PREFIX}readers", body, f"{RETRY_TOPIC}\x01{name}\x02", flag)
    again = mqspark("dlq", "resend", "readers", "--topic", name, "--to", "topic", "--yes")
    assert "dead letters sent again: 1" in again.out
    assert (again.code, "their body cannot be read" in again.err) == (1, True)
    assert mqspark("consume", name).lines == ["alive"]


def test_a_key_before_a_delimiter_is_one_key() -> None:
    name = topic("Keyed")
    refused = mqspark("produce", name, "-K", ":", stdin=b"a:1\nJohn Smith:2\n")
    assert refused.code == 2
    assert "line 2: 'John Smith' would be several keys" in refused.err
    refused = mqspark("produce", name, "-K", ":", stdin=b"\xff:1\n")
    assert (refused.code, "the key is not UTF-8" in refused.err) == (2, True)
    for wrong in ("a b", ""):
        refused = mqspark("produce", name, "-b", "x", "-k", wrong)
        assert (refused.code, "--key" in refused.err) == (2, True)
    lines = b"a\t1\nb\tx\ty\n\t3\nnone\n"
    assert mqspark("produce", name, "-K", "\\t", "-k", "all", "--ordered", stdin=lines).code == 0
    shown = mqspark("consume", name, "--format", "%k|%s\\n").lines
    assert shown == ["a|1", "all a|1", "all b|x\ty", "all|3", "all|none"]


@pytest.mark.parametrize(
    "option",
    [
        ("-k", "a"),
        ("-t", "a"),
        ("-K", ":"),
        ("-P", "a=b"),
        ("--delay", "1s"),
        ("--priority", "1"),
        ("--whole",),
    ],
)
def test_an_option_that_lines_of_json_would_not_heed_is_refused(option: tuple[str, ...]) -> None:
    refused = mqspark("produce", "Heeded", "--jsonl", *option, stdin=b'{"body": "x"}\n')
    assert (refused.code, "each line says this of its message itself" in refused.err) == (2, True), (
        refused.err
    )


@pytest.mark.parametrize("language", [{"LANG": "C"}, {"LC_ALL": "POSIX", "PYTHONIOENCODING": "ascii"}])
def test_every_character_is_shown_or_escaped(language: dict[str, str]) -> None:
    name = topic(f"Umlauts-{len(language)}")
    assert mqspark("produce", name, "-b", "größer", "-t", "größe").code == 0
    run = subprocess.run(
        [*COMMAND, "consume", name, "-o", "table"], env={**os.environ, **language}, capture_output=True
    )
    assert run.returncode == 0, run.stderr
    assert b"gr\xc3\xb6\xc3\x9fer" in run.stdout or b"gr\\xf6\\xdfer" in run.stdout


def test_an_argument_that_is_not_utf_8_is_an_error() -> None:
    run = subprocess.run(
        [os.fsencode(part) for part in COMMAND] + [b"produce", b"T", b"-b", b"\xff\xfe"], capture_output=True
    )
    assert (run.returncode, b"Traceback" in run.stderr) == (2, False), run.stderr
    assert b"is not UTF-8 text" in run.stderr


def test_ctrl_c_answers_a_question(cluster: Cluster, tmp_path: Path) -> None:
    name, log = topic("Asked"), tmp_path / "errors"
    ours, theirs = pty.openpty()
    try:
        child = processes.start([*COMMAND, "topic", "delete", name, "-n", cluster.namesrv], log, stdin=theirs)
        eventually(lambda: "[y/N]" in log.read_text(), "the question")
        time.sleep(0.1)
        assert processes.stop(child, signal.SIGINT) == 1
    finally:
        os.close(ours)
        os.close(theirs)
    assert "cancelled: nothing was changed" in log.read_text()
    assert mqspark("topic", "describe", name).code == 0


def test_an_interrupted_produce_says_how_many_it_sent(cluster: Cluster, tmp_path: Path) -> None:
    name, log = topic("Half"), tmp_path / "errors"
    with processes.process([*COMMAND, "produce", name, "-n", cluster.namesrv], log) as child:
        assert child.stdin is not None
        child.stdin.write("one\ntwo\n")
        child.stdin.flush()
        eventually(lambda: len(mqspark("consume", name).lines) == 2, "both messages")
        child.send_signal(signal.SIGINT)
        child.stdin.close()
        assert child.wait(30) == 130
    assert "interrupted: sent 2 messages" in log.read_text()


def test_a_measurement_creates_its_topic_where_brokers_do(cluster: Cluster) -> None:
    row = mqspark("bench", "send", "Measured", "-c", "20", "-o", "json")
    assert (row.code, row.json["messages"], row.json["failures"]) == (0, 20, 0), row.err
    assert mqspark("bench", "consume", "Measured", "-o", "json").json["messages"] == 20
    assert mqspark("config", "set", "autoCreateTopicEnable=false", "--yes").code == 0
    try:
        refused = mqspark("bench", "send", "Measurd", "-c", "20")
        assert (refused.code, "did you mean 'Measured'" in refused.err) == (3, True), refused.err
        refused = mqspark("bench", "send", "Else", "-c", "20")
        assert (refused.code, "mqspark topic create Else creates it" in refused.err) == (3, True), refused.err
    finally:
        assert mqspark("config", "set", "autoCreateTopicEnable=true", "--yes").code == 0
