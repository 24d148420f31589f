"""The command line on a RocketMQ cluster, and the same on ours: topics, messages, groups, settings.

(slow) RocketMQ's part: a real one starts first.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.support.clusters import Cluster
from tests.support.commands import Outcome, mqspark
from tests.support.waiting import eventually

Name = Callable[[str], str]


def at(cluster: Cluster) -> Callable[..., Outcome]:
    def run(*arguments: str, stdin: bytes = b"") -> Outcome:
        done = mqspark(*arguments, "-n", cluster.namesrv, "--timeout", "20", stdin=stdin)
        assert done.code == 0, (arguments, done)
        return done

    return run


def test_topics_and_messages(cluster: Cluster, name: Name) -> None:
    run, topic = at(cluster), name("CommandTopic")
    run("topic", "create", topic, "--queues", "2")
    run("topic", "update", topic, "--queues", "3")
    shown = run("topic", "describe", topic, "-o", "json").json
    assert shown["brokers"][cluster.broker_name]["read_queues"] == 3
    assert topic in run("topic", "list").out
    sent = run("produce", topic, "-k", "key-1", "-t", "t", "-P", "n=1", "-o", "jsonl", stdin=b"one").json
    run("produce", topic, "-t", "u", stdin=b"two\nthree\n")
    eventually(lambda: sorted(run("consume", topic).lines) == ["one", "three", "two"])
    assert run("consume", topic, "--tag", "t", "-F", r"%k %g %s\n").lines == ["key-1 t one"]
    queue = f"{sent['broker']}:{sent['queue']}"
    eventually(lambda: mqspark("message", "key", topic, "key-1", "-n", cluster.namesrv).code == 0)
    for arguments in (
        ("key", topic, "key-1"),
        ("id", sent["message_id"], "--topic", topic),
        ("id", sent["offset_id"]),
        ("offset", topic, queue, str(sent["offset"])),
    ):
        found = run("message", *arguments, "-o", "json").json
        assert (
            [row["body"] for row in found] == ["one"] if isinstance(found, list) else found["body"] == "one"
        )
    run("topic", "delete", topic, "--yes")
    assert topic not in run("topic", "list").lines


def test_groups(cluster: Cluster, name: Name) -> None:
    run, topic, group = at(cluster), name("CommandGroupTopic"), name("command-group")
    run("topic", "create", topic, "--queues", "1")
    run("produce", topic, "--ordered", stdin=b"a\nb\nc\n")
    run("group", "create", group, "--retries", "4")
    eventually(lambda: run("topic", "describe", topic, "-o", "json").json["queues"][0]["max_offset"] == 3)

    def lag() -> int:
        return sum(row["lag"] for row in run("group", "lag", group, "--topic", topic, "-o", "json").json)

    run("group", "reset", group, topic, "--earliest", "--yes")
    eventually(lambda: lag() == 3)
    run("group", "reset", group, topic, "--to-offset", "2", "--yes")
    eventually(lambda: lag() == 1)
    run("group", "reset", group, topic, "--latest", "--yes")
    eventually(lambda: lag() == 0)
    assert run("group", "describe", group, "-o", "json").json["retries"] == 4
    run("group", "mode", group, topic, "POP")
    run("group", "delete", group, "--yes")
    missing = mqspark("group", "describe", group, "-n", cluster.namesrv)
    assert missing.code == 3, missing


def test_the_cluster_and_its_settings(cluster: Cluster, name: Name) -> None:
    run = at(cluster)
    (row,) = run("cluster", "list", "-o", "json").json
    assert (row["broker"], row["address"]) == (cluster.broker_name, cluster.broker)
    assert row["version"].startswith("V5_")
    assert "error" not in row
    assert run("namesrv", "list", "-o", "json").json[0]["answers"] is True
    (setting,) = run("config", "get", "flushDiskType", "-o", "json").json
    assert setting["value"] in ("ASYNC_FLUSH", "SYNC_FLUSH")
    run("config", "set", "maxMessageSize=4194305", "--yes")
    assert run("config", "get", "maxMessageSize", "-o", "json").json[0]["value"] == "4194305"
    run("broker", "describe", cluster.broker)
    found = mqspark("doctor", "-n", cluster.namesrv)
    assert f"ok   broker {cluster.broker_name}/0: {cluster.broker} answers" in found.out
    assert "clock" not in found.out, "both have this machine's"
    topic = name("CommandBench")
    run("topic", "create", topic)
    assert run("bench", "send", topic, "-c", "20", "-o", "json").json["messages"] == 20
    run("top", "-i", "0.1")
