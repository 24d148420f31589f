"""The console on a RocketMQ cluster, and the same on ours: every page, and changes.

(slow) RocketMQ's part: a real one starts first.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from mqspark import Message, Producer, PushConsumer
from tests.integration.client.client_kit import FIRST
from tests.support.clusters import Cluster
from tests.support.processes import mqspark_command, ready_line, start, stop
from tests.support.waiting import eventually

TOKEN = "a-token-of-tests"  # noqa: S105 - of no value
Name = Callable[[str], str]


@pytest.fixture
def console(cluster: Cluster, tmp_path: Path) -> Iterator[httpx.Client]:
    """A browser that is logged in."""
    log = tmp_path / "log"
    command = [*mqspark_command(), "console", "-n", cluster.namesrv, "--port", "0"]
    process = start(command, log, stdout=subprocess.PIPE, env={"MQSPARK_HTTP_TOKEN": TOKEN})
    try:
        url = ready_line(process, log)["console"]
        origin = {"origin": url.removesuffix("/console")}
        with httpx.Client(base_url=url, timeout=60, trust_env=False, headers=origin) as client:
            assert client.post("/login", data={"secret": TOKEN}).status_code == 303
            yield client
    finally:
        stop(process)


def page(console: httpx.Client, path: str) -> str:
    answer = console.get(path)
    assert answer.status_code == 200, (path, answer.text)
    return answer.text


def change(console: httpx.Client, path: str, **fields: str) -> str:
    found = re.search(r'name="csrf" value="([^"]+)"', page(console, "/topics"))
    assert found is not None
    done = console.post(path, data={**fields, "csrf": found[1], "sure": "yes"})
    assert done.status_code == 303, (path, done.text)
    return page(console, done.headers["location"].removeprefix("/console"))


@pytest.mark.slow("every page and form; tests/integration/web/test_console.py is the fast twin")
def test_every_page_and_changes(cluster: Cluster, console: httpx.Client, name: Name) -> None:
    topic, group = name("ConsoleTopic"), name("console-group")
    assert "1 of 1" in page(console, "")
    assert f"Topic {topic} was created: 2 queues" in change(console, "/topics", name=topic, read_queues="2")
    text = change(console, f"/topics/{topic}/send", body='{"a": 1}', tag="t", keys="key-1")
    assert "{ &#34;a&#34;: 1 }" in text
    with Producer(cluster.namesrv, group="console-producers") as producer:
        for number in range(3):
            producer.send(Message.of(topic, f"m{number}", tags="u"))
        eventually(lambda: "console-producers" in page(console, "/producers"))
    eventually(lambda: "<dt>Messages</dt><dd>4</dd>" in page(console, f"/topics/{topic}"))
    assert re.search(r"<td>20\d\d-[^<]+Z</td><td>20\d\d-[^<]+Z</td>", page(console, f"/topics/{topic}"))
    assert ">m1</pre>" in page(console, f"/topics/{topic}/messages?tag=u")
    eventually(lambda: "key-1" in page(console, f"/topics/{topic}/messages?by=key&value=key-1"))
    assert ">m0</pre>" not in page(console, f"/topics/{topic}/messages?by=key&value=key-1")
    assert "read only" in change(
        console, f"/topics/{topic}/config", read_queues="2", write_queues="2", perm="read only"
    )

    assert f"Group {group} was created." in change(console, "/groups", name=group, retries="4")
    consumer = PushConsumer(cluster.namesrv, group=group, consume_from=FIRST, listener=lambda message: None)
    consumer.subscribe(topic)
    with consumer:
        eventually(lambda: "<dt>Members</dt><dd>1</dd>" in page(console, f"/groups/{group}"))
        (member,) = re.findall(
            rf'href="/console(/groups/{group}/members/[^"]+)"', page(console, f"/groups/{group}")
        )
        assert "Stacks of its threads" in page(console, member)
        eventually(lambda: "<dt>Lag, messages</dt><dd>0</dd>" in page(console, f"/groups/{group}"))
    assert f"{group} was moved in" in change(console, f"/groups/{group}/reset", topic=topic, to="earliest")
    eventually(lambda: "<dt>Lag, messages</dt><dd>4</dd>" in page(console, f"/groups/{group}"))
    assert ">POP</span>" in change(console, f"/groups/{group}/mode", topic=topic, mode="POP")

    broker = cluster.broker_name
    for path in (
        "/brokers",
        f"/brokers/{broker}",
        "/delayed",
        "/users",
        "/dead-letters",
        "/spark",
        "/groups?every=1",
    ):
        page(console, path)
    assert "flushDiskType" in page(console, f"/brokers/{broker}/config?q=flushDiskType")
    text = change(console, f"/brokers/{broker}/config", key="longPollingEnable", value="true")
    assert f"{broker} has longPollingEnable=true." in text

    assert f"Group {group} was deleted." in change(console, f"/groups/{group}/delete")
    assert f"Topic {topic} was deleted." in change(console, f"/topics/{topic}/delete")
