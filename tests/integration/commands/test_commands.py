"""The operator's commands on a cluster: topics, groups, brokers, settings, contexts, completion."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from mqspark import Message, MessageQueue, Producer, PushConsumer
from mqspark.testing import Cluster
from tests.support.commands import Outcome, mqspark
from tests.support.processes import run_python, run_to_end
from tests.support.waiting import eventually

NOWHERE = "127.0.0.1:9"

pytestmark = pytest.mark.usefixtures("environment")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(2, settings={"autoCreateTopicEnable": True}) as running:
        yield running


def filled(topic: str, count: int) -> str:
    """A topic of two queues a broker with ``count`` messages in the first queue of the first broker."""
    assert mqspark("topic", "create", topic, "--queues", "2").code == 0
    first = mqspark("topic", "describe", topic, "-o", "json").json["queues"][0]
    with Producer(group="fill") as producer:
        for number in range(count):
            producer.send(
                Message.of(topic, f"m{number}"), queue=MessageQueue(topic, first["broker"], first["queue"])
            )
    return str(first["broker"])


LISTING = """
import contextlib, sys
from mqspark_server.cli import main

with contextlib.suppress(SystemExit):
    main(["topic", "list"])
unused = {
    "difflib", "fastapi", "hmac", "json", "numpy", "pyarrow", "tempfile", "tomllib",
    "click.shell_completion", "mqspark.broker", "mqspark.record.record", "mqspark.store",
}
print(unused & set(sys.modules))
"""


def test_a_simple_command_loads_what_it_needs() -> None:
    """It takes 0.15 s of CPU, most of it for click and asyncio."""
    done = run_python(LISTING)
    assert done.stdout.splitlines()[-1] == "set()", done.stderr


# --- topics -----------------------------------------------------------------------------------------------------


def test_a_topic_from_its_creation_to_its_end() -> None:
    made = mqspark("topic", "create", "Life", "--queues", "3", "--type", "FIFO")
    assert (made.code, made.err) == (0, ""), made
    assert "3 queues" in made.out
    again = mqspark("topic", "create", "Life")
    assert again.code == 1
    assert "mqspark topic update Life" in again.err
    shown = mqspark("topic", "describe", "Life", "-o", "json").json
    assert len(shown["queues"]) == 6
    assert {each["attributes"]["message.type"] for each in shown["brokers"].values()} == {"FIFO"}
    assert mqspark("topic", "update", "Life", "--queues", "5", "--perm", "r").code == 0
    shown = mqspark("topic", "describe", "Life", "-o", "json").json
    assert {(each["read_queues"], each["perm"]) for each in shown["brokers"].values()} == {(5, "r")}
    asked = mqspark("topic", "update", "Life", "--queues", "1")
    assert asked.code == 2
    assert "--yes" in asked.err
    refused = mqspark("topic", "delete", "Life")
    assert (refused.code, "--yes" in refused.err) == (2, True)
    assert "Life" in mqspark("topic", "list").out
    assert mqspark("topic", "delete", "Life", "--yes").out == "topic Life was deleted\n"
    assert "Life" not in mqspark("topic", "list").out
    assert mqspark("topic", "delete", "Life", "--yes").code == 3


def test_topics_are_listed_by_pattern_and_system_topics_on_demand() -> None:
    filled("ListedOne", 3)
    plain = mqspark("topic", "list", "Listed*").lines
    assert plain[0].split() == ["TOPIC", "KIND"]
    assert plain[1].split() == ["ListedOne", "normal"]
    assert "TBW102" not in mqspark("topic", "list").out
    assert "TBW102" in mqspark("topic", "list", "--all").out
    (wide,) = mqspark("topic", "list", "Listed*", "-o", "json").json
    assert (wide["queues"], wide["messages"], wide["brokers"]) == (4, 3, 2)


def test_a_misspelt_name_gets_the_right_one() -> None:
    filled("Invoices", 0)
    missing = mqspark("topic", "describe", "Invoicse")
    assert missing.code == 3
    assert missing.err == "mqspark: error: there is no topic 'Invoicse'; did you mean 'Invoices'?\n"
    assert "did you mean 'describe'?" in mqspark("topic", "descrbe", "Invoices").err
    assert "did you mean 'topic'?" in mqspark("topik", "list").err
    assert "did you mean 'flushDiskType'?" in mqspark("config", "get", "flushDiskTyp").err
    assert "did you mean 'listenPort'?" in mqspark("namesrv", "set", "lisenPort=1", "--yes").err
    assert "did you mean 'fsck'?" in mqspark("store", "fsk").err


def test_rates_of_a_topic_are_the_brokers() -> None:
    filled("Rated", 2)
    rows = mqspark("topic", "stats", "Rated", "-o", "json").json
    assert {row["broker"] for row in rows} == set(brokers())
    assert all("in_tps" in row for row in rows)
    every = {row["topic"] for row in mqspark("topic", "stats", "-o", "json").json}
    assert "Rated" in every
    assert not every & {"DefaultCluster", *brokers()}, "what the brokers keep for themselves"


def test_a_topic_that_is_there_already_is_said_to_be_left_alone() -> None:
    filled("Kept", 0)
    kept = mqspark("topic", "create", "Kept", "--exist-ok", "--attribute", "+message.type=FIFO")
    assert (kept.code, kept.out) == (0, "topic Kept exists already and is unchanged\n")
    assert mqspark("topic", "create", "Kept", "--exist-ok", "-o", "json").json["brokers"] == []
    assert mqspark("topic", "create", "no name").code == 2
    no_static = mqspark("topic", "remap", "Kept")
    assert (no_static.code, "Kept is no static topic" in no_static.err) == (1, True)
    assert mqspark("topic", "remap", "Kepd").code == 3


# --- groups -----------------------------------------------------------------------------------------------------


def lag(group: str, *more: str) -> int:
    rows = mqspark("group", "lag", group, *more, "-o", "json").json
    return sum(row["lag"] for row in rows)


def test_a_group_is_moved_while_nobody_is_online() -> None:
    broker = filled("Moved", 10)
    assert mqspark("group", "create", "movers", "--retries", "3").code == 0
    preview = mqspark("group", "reset", "movers", "Moved", "--latest", "--dry-run", "-o", "json").json
    assert sum(row["to_offset"] for row in preview) == 10
    assert lag("movers", "--topic", "Moved") == 10, "a dry run changes nothing"
    assert mqspark("group", "reset", "movers", "Moved", "--latest").code == 2
    moved = mqspark("group", "reset", "movers", "Moved", "--latest", "--yes")
    assert (moved.code, moved.lines[-1]) == (0, "group movers was moved in 4 queues of Moved"), moved
    assert lag("movers") == 0
    to_offset = ["--to-offset", "4", "--queue", f"{broker}:0", "--yes"]
    assert mqspark("group", "reset", "movers", "Moved", *to_offset).code == 0
    assert lag("movers") == 6
    assert mqspark("group", "reset", "movers", "Moved", "--to-time", "-1h", "--yes").code == 0
    assert lag("movers") == 10
    beyond = mqspark(
        "group", "reset", "movers", "Moved", "--to-offset", "11", "--queue", f"{broker}:0", "--yes"
    )
    assert (beyond.code, "offsets 0 to 10" in beyond.err) == (2, True)
    nowhere = mqspark("group", "reset", "movers", "Moved", "--earliest", "--queue", f"{broker}:9")
    assert nowhere.code == 3
    assert mqspark("group", "reset", "movers", "Moved").code == 2
    assert "did you mean 'movers'" in mqspark("group", "reset", "mover", "Moved", "--earliest").err
    totals = mqspark("group", "lag", "movers", "--total", "-o", "jsonl").lines
    assert [json.loads(line) for line in totals] == [
        {"group": "movers", "topic": "Moved", "queues": 4, "lag": 10}
    ]
    assert mqspark("group", "clone", "movers", "others", "Moved", "--yes").code == 0
    assert mqspark("group", "delete", "movers", "--yes").code == 0
    assert mqspark("group", "describe", "movers").code == 3


def test_members_are_seen_and_moved(cluster: Cluster) -> None:
    filled("Watched", 5)
    bodies: list[bytes] = []
    consumer = PushConsumer(
        cluster.namesrv,
        group="watchers",
        consume_from="CONSUME_FROM_FIRST_OFFSET",
        listener=lambda message: bodies.append(message.body),
    )
    consumer.subscribe("Watched")
    with consumer:
        eventually(lambda: len(bodies) == 5)
        (member,) = mqspark("group", "members", "watchers", "-o", "json").json
        assert member["queues"] >= 4
        refused = mqspark("group", "delete", "watchers", "--yes")
        assert (refused.code, "members online" in refused.err) == (1, True)
        moved = mqspark("group", "reset", "watchers", "Watched", "--earliest", "--yes")
        assert moved.code == 0, moved
        eventually(lambda: len(bodies) == 10)
        assert "Watched" in mqspark("group", "describe", "watchers").out
    (row,) = [row for row in mqspark("group", "list", "-o", "json").json if row["group"] == "watchers"]
    assert row["retries"] == 16


def test_a_groups_mode_is_set() -> None:
    filled("Popped", 0)
    assert (
        mqspark("group", "mode", "poppers", "Popped", "pop").out == "group poppers consumes Popped by POP\n"
    )
    assert mqspark("group", "mode", "poppers", "Poped", "pop").code == 3


# --- brokers, name servers, settings ----------------------------------------------------------------------------


def brokers() -> list[str]:
    return [row["broker"] for row in mqspark("broker", "list", "-o", "json").json]


def test_the_cluster_at_a_glance(cluster: Cluster) -> None:
    elsewhere = mqspark("topic", "list", "--cluster", "nowhere")
    assert (elsewhere.code, "there is no cluster 'nowhere'" in elsewhere.err) == (3, True)
    here = mqspark("topic", "list", "--all", "--cluster", "DefaultCluster")
    assert sorted(here.lines) == sorted(mqspark("topic", "list", "--all").lines)
    rows = mqspark("cluster", "list", "-o", "json").json
    assert len(rows) == 2
    assert all(row["version"] == "V5_5_1" and row["active"] and "error" not in row for row in rows)
    shown = mqspark("cluster", "describe", "-o", "json").json
    assert (shown["brokers"], shown["nameservers"]) == (2, [cluster.namesrv])
    (server,) = mqspark("namesrv", "list", "-o", "json").json
    assert server["answers"] is True
    name = rows[0]["broker"]
    assert mqspark("broker", "describe", name, "-o", "json").json["brokerVersionDesc"] == "V5_5_1"
    assert mqspark("broker", "describe", rows[0]["address"]).code == 0
    assert mqspark("broker", "replicas", name).err == "(no slave is connected)\n"
    assert mqspark("broker", "clean", "queues", "--yes").out.count("cleaned") == 2
    assert mqspark("broker", "describe", "nobody").code == 3


def test_a_broker_is_drained_and_undrained() -> None:
    filled("Drained", 0)
    name = brokers()[1]
    assert mqspark("broker", "drain", name).code == 2
    drained = mqspark("broker", "drain", name, "--yes", "-o", "json").json
    assert drained["topics"] > 0
    assert mqspark("broker", "undrain", name, "--yes").code == 0


def test_settings_are_shown_and_changed() -> None:
    name = brokers()[0]
    (row,) = mqspark("config", "get", "maxMessageSize", "--broker", name, "-o", "json").json
    assert int(row["value"]) > 0
    changed = str(int(row["value"]) - 1)
    assert mqspark("config", "set", f"maxMessageSize={changed}", "--broker", name).code == 2
    assert mqspark("config", "set", f"maxMessageSize={changed}", "--broker", name, "--yes").code == 0
    difference = {row["key"]: row for row in mqspark("config", "diff", "--broker", name, "-o", "json").json}
    assert difference["maxMessageSize"]["value"] == changed
    misspelt = mqspark("config", "set", "maxMesageSize=1", "--yes")
    assert (misspelt.code, "did you mean 'maxMessageSize'" in misspelt.err) == (2, True)
    assert mqspark("config", "set", "maxMessageSize").code == 2
    fixed = mqspark("config", "set", "brokerName=x", "--yes")
    assert (fixed.code, "cannot change while" in fixed.err, "credentials" in fixed.err) == (1, True, False)
    nobody = mqspark("user", "list")
    assert (nobody.code, "has users: authenticationEnabled" in nobody.err) == (1, True)
    assert mqspark("config", "set", "a=1\nb=2", "--yes").code == 2


def test_a_producer_is_seen_at_its_broker() -> None:
    filled("Produced", 0)
    with Producer(group="seen") as producer:
        producer.send(Message.of("Produced", "x"))
        groups = {
            row["group"]
            for name in brokers()
            for row in json.loads(mqspark("broker", "producers", name, "-o", "json").out)
        }
    assert "seen" in groups


# --- where the cluster is ---------------------------------------------------------------------------------------


def test_contexts_name_clusters(
    cluster: Cluster, environment: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("NAMESRV_ADDR")
    keys = tmp_path / "keys"
    keys.write_text("accessKey: me\nsecretKey: secret\n")
    assert mqspark("context", "list").err.startswith("(no context")
    added = mqspark("context", "add", "here", "-n", cluster.namesrv, "--credentials", str(keys))
    assert added.code == 0
    assert oct(environment.stat().st_mode)[-3:] == "600"
    assert "secret" not in environment.read_text().replace("secretKey", "")
    assert mqspark("context", "add", "away", "-n", NOWHERE, "--cluster", "c", "--tls-any-name").code == 0
    assert mqspark("topic", "list").code == 0, "the first context is the current one"
    assert mqspark("context", "use", "away").code == 0
    assert mqspark("context", "show", "-o", "json").json["nameserver"] == NOWHERE
    assert mqspark("topic", "list").code == 1
    assert mqspark("topic", "list", "--context", "here").code == 0
    monkeypatch.setenv("MQSPARK_CONTEXT", "here")
    assert mqspark("topic", "list").code == 0
    assert "did you mean 'here'?" in mqspark("topic", "list", "--context", "her").err
    assert mqspark("context", "remove", "here", "--yes").code == 0
    assert mqspark("context", "use", "here").code == 2
    assert mqspark("context", "add", "a b", "-n", NOWHERE).code == 2
    environment.write_text("contexts = 5\n")
    assert mqspark("context", "list").code == 2


def test_a_name_server_that_is_none(cluster: Cluster) -> None:
    gone = mqspark("topic", "list", "-n", NOWHERE)
    assert (gone.code, "mqspark doctor" in gone.err) == (1, True)
    (address, *_) = [row["address"] for row in mqspark("cluster", "list", "-o", "json").json]
    confused = mqspark("topic", "list", "--nameserver", address)
    assert (confused.code, "that is a broker, not a name server" in confused.err) == (1, True)
    assert mqspark("topic", "list", "-n", "nonsense").code == 2
    empty = mqspark("topic", "list", "-n", "")
    assert (empty.code, "the name server is empty" in empty.err) == (2, True), "not another cluster instead"
    assert "Connect call" not in gone.err


# --- what comes out ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", ["table", "wide", "json", "jsonl", "yaml"])
def test_every_format_has_every_row(shape: str) -> None:
    out = mqspark("cluster", "list", "-o", shape).out
    assert all(out.count(name) == 1 for name in brokers())
    if shape == "yaml":
        assert out.startswith("- cluster: DefaultCluster\n  broker: ")


def process(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mqspark", *arguments]
    return run_to_end(command, env={**os.environ, **environment})


def test_what_is_done_at_several_brokers_is_one_document() -> None:
    """For each format, of reads and of changes."""
    for arguments in (
        ("config", "get", "maxMessageSize"),
        ("config", "set", "maxMessageSize=4194304", "--yes"),
        ("broker", "clean", "queues", "--yes"),
    ):
        rows = mqspark(*arguments, "-o", "json").json
        assert len(rows) == 2, arguments
        assert yaml.safe_load(mqspark(*arguments, "-o", "yaml").out) == rows
        assert [json.loads(line) for line in mqspark(*arguments, "-o", "jsonl").lines] == rows
    filled("Lost", 0)
    filled("Forgotten", 0)
    assert [
        row["topic"] for row in mqspark("topic", "delete", "Lost", "Forgotten", "-y", "-o", "json").json
    ] == [
        "Lost",
        "Forgotten",
    ]


def test_a_simple_command_imports_no_framework() -> None:
    """What makes it fast: a quarter of a second of CPU, most of it Python's own start and msgspec."""
    found = process("topic", "list", PYTHONPROFILEIMPORTTIME="1")
    assert found.returncode == 0, found.stderr
    modules = {
        line.rpartition("|")[2].strip() for line in found.stderr.splitlines() if "import time:" in line
    }
    assert "mqspark.client.admin" in modules
    heavy = {"fastapi", "uvicorn", "pydantic", "pyspark", "pyarrow", "numpy", "prometheus_client"}
    assert {name.partition(".")[0] for name in modules} & heavy == set()
    assert not {
        name for name in modules if name.startswith(("mqspark.broker", "mqspark.store", "mqspark.namesrv"))
    }


def test_a_reader_that_has_enough_is_no_error() -> None:
    shell = f"{sys.executable} -m mqspark config get | head -1"
    done = run_to_end(["bash", "-c", f"set -o pipefail; {shell}"])
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == ["SERVER", "KEY", "VALUE"]


def test_topics_and_groups_are_completed() -> None:
    filled("Completed", 0)

    def completed(words: str, at: int) -> Outcome:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("_MQSPARK_COMPLETE", "bash_complete")
            patch.setenv("COMP_WORDS", words)
            patch.setenv("COMP_CWORD", str(at))
            return mqspark()

    assert completed("mqspark topic describe Compl", 3).lines == ["plain,Completed"]
    assert completed("mqspark topi", 1).lines == ["plain,topic"]
    assert "plain,TOOLS_CONSUMER" in completed("mqspark group members TOOLS", 3).lines
    assert completed(f"mqspark topic describe -n {NOWHERE} Compl", 5).out.strip() == "", "errors are silent"
    for shell in ("bash", "zsh", "fish"):
        assert "_MQSPARK_COMPLETE" in mqspark("completion", shell).out
