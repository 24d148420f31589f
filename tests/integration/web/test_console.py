"""The console of a real broker, page by page: hostile names, bodies and properties; who may change what."""

from __future__ import annotations

import html
import json
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest

from mqspark import AdminClient, Message, MessageExt, Producer, PushConsumer
from mqspark.errors import ConfigError
from mqspark.message import dlq_topic
from mqspark.testing import Broker, FakeClock
from mqspark_server import broker_app
from mqspark_server.commands.clustercommand import connection_of
from mqspark_server.console.consoleapp import ConsoleApp
from mqspark_server.console.history import sampler
from mqspark_server.console.sections import letterpages
from mqspark_server.survey import tracesurvey
from tests.integration.client.client_kit import FIRST
from tests.support.draws import some
from tests.support.processes import mqspark_command, ready_line, run_python, start, stop
from tests.support.users import with_users
from tests.support.visits import browser, change, csrf, log_in, page, set_aside
from tests.support.waiting import eventually
from tests.support.web import get

HOSTILE = "<script>alert(1)</script>\"'&<img src=x onerror=alert(2)>"
BODY_LIMIT = 16 * 1024
ROOT = ("root", "root-canary-secret")
CLERK, TOKEN, WRONG, NOTHING = "clerk-canary-secret", "gateway-token", "wrong", ""


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(http=True, settings={"enablePropertyFilter": True}) as running:
        producer = Producer(running.namesrv, group="console_tests")
        producer.start()
        try:
            producer.send(
                Message.of("Orders", '{"a": [1, 2]}', keys="k1", tags="paid", properties={"n": "1"})
            )
            producer.send(
                Message.of("Orders", b"\xff\x00\x01bin", keys="k2", tags="open", properties={"n": "2"})
            )
            producer.send(Message.of("Hostile", HOSTILE, keys="h", properties={"p": HOSTILE, HOSTILE: "x"}))
            producer.send(Message.of("Large", "L" * (BODY_LIMIT * 3)))
        finally:
            producer.stop()
        yield running


def test_the_overview_shows_the_broker(broker: Broker) -> None:
    text = page(broker, "")
    assert "1 of 1" in text
    assert broker.apps[0].address in text
    assert "<dt>Replicas in sync</dt><dd>none</dd>" in text


def test_groups_that_are_behind(visitor: httpx.Client, broker: Broker) -> None:
    change(visitor, "/groups", {"name": "behind"})
    change(visitor, "/groups/behind/reset", {"topic": "Orders", "to": "earliest"})
    assert re.search(r'/console/groups/behind">behind</a></th><td class="num">2</td>', page(broker, "/lags"))


def test_brokers_their_stores_and_settings(broker: Broker) -> None:
    name = broker.apps[0].config.broker_name
    assert f'href="/console/brokers/{name}"' in page(broker, "/brokers")
    text = page(broker, f"/brokers/{name}")
    assert "No replica is connected" in text
    assert "No damage is known" in text
    assert "<dt>Segments of the log</dt><dd>1 of " in text
    text = page(broker, f"/brokers/{name}/config?q=enablepropertyfilter")
    assert "enablePropertyFilter" in text
    assert "<small>Whether consumers may filter by SQL92.</small>" in text
    assert "at run time" in text
    assert "flushDiskType" not in text
    text = page(broker, f"/brokers/{name}/config?q=haHousekeepingInterval")
    assert "<small>A slave that is silent for longer is disconnected.</small>" in text
    assert "at run time" not in text
    assert "No setting contains this" in page(broker, f"/brokers/{name}/config?q=nothing-like-this")
    page(broker, "/brokers/nowhere", 404)


def test_topics_are_listed_found_and_link_to_their_pages(broker: Broker) -> None:
    text = page(broker, "/topics")
    assert 'href="/console/topics/Orders"' in text
    assert "SCHEDULE_TOPIC_XXXX" not in text
    assert "SCHEDULE_TOPIC_XXXX" in page(broker, "/topics?every=1")
    found = page(broker, "/topics?q=host")
    assert "/console/topics/Hostile" in found
    assert "/console/topics/Orders" not in found


def test_a_topic_shows_its_queues_with_their_spans(broker: Broker) -> None:
    text = page(broker, "/topics/Orders")
    assert "<dt>Messages</dt><dd>2</dd>" in text
    assert len(re.findall(r"<td>20\d\d-[^<]+Z</td><td>20\d\d-[^<]+Z</td>", text)) in (1, 2)


def test_messages_are_shown_newest_first(broker: Broker) -> None:
    text = page(broker, "/topics/Orders/messages")
    assert "{\n  &#34;a&#34;: [\n    1,\n    2\n  ]\n}" in text
    assert text.index("000000  ff 00 01 62 69 6e") < text.index("{\n  &#34;a&#34;")
    assert "Shown as JSON. The body has 13 B." in text


@pytest.mark.parametrize(
    ("query", "there", "absent"),
    [
        ("by=key&value=k1", ">k1<", ">k2<"),
        ("tag=open", ">k2<", ">k1<"),
        ("sql=n+%3E+1", ">k2<", ">k1<"),
        ("sql=n+%3E", "parse the consumer", ">k1<"),
        ("sql=n+%3D+1&tag=open", "excludes a tag", ">k1<"),
        ("by=offset&value=0", ">k1<", None),
        ("by=time&value=2001-01-01T00:00", ">k1<", None),
        ("by=time&value=2901-01-01T00:00", "No message matches this search", ">k1<"),
        ("by=key&value=nobody", "No message matches this search", ">k1<"),
        ("view=json&by=key&value=k1", "&#34;a&#34;: [\n    1,", None),
        ("view=hex&by=key&value=k2", "000000  ff 00 01 62 69 6e", None),
        ("by=offset&value=x", "give an offset", ">k1<"),
        ("by=time&value=soon", "give a time", ">k1<"),
        ("by=key", "give the key", ">k1<"),
    ],
)
def test_messages_are_found(broker: Broker, query: str, there: str, absent: str | None) -> None:
    text = page(broker, f"/topics/Orders/messages?{query}")
    assert there in text
    assert absent is None or absent not in text


def test_what_peers_write_is_text(broker: Broker) -> None:
    text = page(broker, "/topics/Hostile/messages")
    assert text.count("&lt;script&gt;alert(1)") >= 3  # the body, a property's name and a property's value
    page(broker, f"/topics/Hostile/messages?by=key&value={quote(HOSTILE)}&tag={quote(HOSTILE)}")
    page(broker, f"/topics/Hostile/live?tag={quote(HOSTILE)}")
    page(broker, f"/topics?q={quote(HOSTILE)}")
    page(broker, f"/trace?id={quote(HOSTILE)}")
    page(broker, f"/login?to={quote(HOSTILE)}")
    page(broker, f"/topics/{quote(HOSTILE.replace('/', ''), safe='')}", 400)
    page(broker, f"/topics/Hostile/messages?by={quote(HOSTILE)}", 400)


def test_a_message_that_nobody_traced_is_no_trouble(broker: Broker) -> None:
    """Whether the trace topic is there already or not; one that somebody names has to be there."""
    assert "Nothing is recorded about this message" in page(broker, "/trace?id=none")
    assert 'role="alert"' in page(broker, "/trace?id=none&topic=Nowhere")


def test_a_large_body_is_cut(broker: Broker) -> None:
    text = page(broker, "/topics/Large/messages")
    assert BODY_LIMIT <= text.count("L") < BODY_LIMIT + 1000
    assert "The body has 49,152 bytes; the first 16,384 are shown." in text


def test_groups_and_one_of_them(broker: Broker) -> None:
    assert "TOOLS_CONSUMER" not in page(broker, "/groups")
    assert "TOOLS_CONSUMER" in page(broker, "/groups?every=1")
    seen = threading.Event()

    def note(message: MessageExt) -> None:
        seen.set()

    consumer = PushConsumer(broker.namesrv, group="readers", listener=note, consume_from=FIRST)
    consumer.subscribe("Orders")
    with consumer:
        assert seen.wait(30)
        assert 'href="/console/groups/readers"' in page(broker, "/groups")
        text = page(broker, "/groups/readers")
        assert "<dt>Members</dt><dd>1</dd>" in text
        (member,) = re.findall(r'href="/console(/groups/readers/members/[^"]+)"', text)
        assert "test_console" in page(broker, member)  # in the stacks of its threads
        assert "/console/groups/readers" in page(broker, "/topics/Orders")


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/topics/Nowhere", 404),
        ("/topics/Nowhere/messages", 404),
        ("/groups/nobody", 404),
        ("/groups/TOOLS_CONSUMER/members/nobody", 404),
        ("/dead-letters/nobody", 404),
        ("/spark/none", 404),
        ("/nowhere", 404),
        ("/topics?page=0", 400),
        ("/topics?page=x", 400),
        (f"/topics?q={'x' * 300}", 400),
        ("/groups/%3Cb%3E", 400),
    ],
)
def test_bad_requests_have_a_page(broker: Broker, path: str, status: int) -> None:
    page(broker, path, status)


@pytest.mark.parametrize(
    "path", ["/producers", "/users", "/delayed", "/trace", "/dead-letters", "/spark", "/login"]
)
def test_pages_without_anything_to_show(broker: Broker, path: str) -> None:
    page(broker, path)


def test_static_files_have_hashes_and_are_kept(broker: Broker) -> None:
    paths = set(re.findall(r'"(/console/static/[^"]+)"', page(broker, "")))
    assert len(paths) == 6
    for path in paths:
        answer = get(f"{broker.http_url}{path}")
        assert answer.status_code == 200
        assert "immutable" in answer.headers["cache-control"]
        assert re.search(r"\.[0-9a-f]{16}\.\w+$", path)
    for name in ("console.css", "..%2fpages.py", "%2e%2e"):
        assert get(f"{broker.http_url}/console/static/{name}").status_code == 404


# --- who may change what ---

CHANGES = (
    "/topics",
    "/topics/Orders/send",
    "/topics/Orders/config",
    "/topics/Orders/delete",
    "/groups",
    "/groups/readers/reset",
    "/groups/readers/config",
    "/groups/readers/mode",
    "/groups/readers/delete",
    "/dead-letters/readers/resend",
    "/brokers/broker-a/config",
    "/brokers/broker-a/set-aside/00000000000000000000-1.log/send",
    "/users",
    "/users/root/delete",
    "/users/root/rules",
    "/users/root/rules/delete",
)


@pytest.mark.parametrize("path", some(CHANGES, 5))
def test_nobody_changes_anything(broker: Broker, visitor: httpx.Client, path: str) -> None:
    with browser(broker) as nobody:
        answer = nobody.post(path, data={"sure": "yes", "csrf": ""})
        assert (answer.status_code, answer.headers["location"]) == (303, "/console/login?to=%2Fconsole")
    for fields in ({}, {"csrf": ""}, {"csrf": "x" * 43}):
        answer = visitor.post(path, data={"sure": "yes", **fields})
        assert answer.status_code == 400
        assert "belongs to another session" in answer.text


def test_other_methods_and_other_sites_change_nothing(broker: Broker, visitor: httpx.Client) -> None:
    for path in ("", "/topics", "/topics/Orders", "/groups/TOOLS_CONSUMER"):
        for method in ("PUT", "DELETE", "PATCH"):
            assert visitor.request(method, path).status_code == 405
    token = csrf(visitor.get("/topics").text)
    fields = {"csrf": token, "sure": "yes", "name": "Forged"}
    for headers in (
        {"host": "evil.example"},
        {"sec-fetch-site": "cross-site"},
        {"origin": "http://evil.example"},
    ):
        assert visitor.post("/topics", data=fields, headers=headers).status_code == 403
    assert visitor.post("/topics", json=fields).status_code == 400
    assert "/console/topics/Forged" not in page(broker, "/topics")


def test_logging_in_and_out(broker: Broker) -> None:
    token = broker.apps[0].loopback_token
    with browser(broker) as client:
        assert log_in(client, secret=WRONG).status_code == 401
        assert log_in(client, secret=NOTHING).status_code == 400
        assert log_in(client, user="someone", secret=token).status_code == 403
        for to, where in (
            ("https://evil.example", "/console"),
            ("/console/topics?q=a", "/console/topics?q=a"),
        ):
            answer = log_in(client, secret=token, to=to)
            assert (answer.status_code, answer.headers["location"]) == (303, where)
        cookie = answer.headers["set-cookie"]
        assert all(word in cookie for word in ("HttpOnly", "SameSite=Strict", "Path=/console"))
        text = client.get("/topics").text
        assert "Create a topic" in text
        assert re.search(r'name="read_queues" [^>]*min="1" max="32767">', text)
        assert client.post("/logout", data={"csrf": "wrong"}).status_code == 303
        assert "Create a topic" in client.get("/topics").text
        assert client.post("/logout", data={"csrf": csrf(text)}).status_code == 303
        assert "Create a topic" not in client.get("/topics").text


def test_topics_are_made_changed_and_deleted(visitor: httpx.Client, broker: Broker) -> None:
    text = change(visitor, "/topics", {"name": "Made", "read_queues": "3", "type": "FIFO"})
    assert "Topic Made was created: 3 queues on" in text
    assert "<dt>Queues</dt><dd>3</dd>" in text
    text = visitor.get("/topics/Made/config").text
    assert "message.type=FIFO" in text
    fields = {"read_queues": "5", "write_queues": "4", "perm": "read only"}
    text = change(visitor, "/topics/Made/config", fields)
    assert re.search(r'<td class="num">5</td><td class="num">4</td><td>read only</td>', text)
    assert "Topic Made was deleted." in change(visitor, "/topics/Made/delete", {})
    page(broker, "/topics/Made", 404)
    token = csrf(visitor.get("/topics").text)
    for fields in (
        {"name": "a b"},
        {"name": "X", "read_queues": "0"},
        {"name": "X", "type": "y"},
        {"name": "X", "perm": "all"},
    ):
        assert visitor.post("/topics", data={**fields, "csrf": token}).status_code == 400
    assert visitor.post("/topics", data={"name": "Orders", "csrf": token}).status_code == 409


def test_a_message_is_sent(visitor: httpx.Client) -> None:
    fields = {"body": "one\r\ntwo", "tag": "t", "keys": "a b", "properties": "x=1\ny = 2\n"}
    change(visitor, "/topics", {"name": "Sent", "read_queues": "1"})
    text = change(visitor, "/topics/Sent/send", fields)
    assert "Message stored in queue 0" in text
    assert "one\ntwo</pre>" in text
    assert ">a b<" in text
    text = change(visitor, "/topics/Sent/send", {"body": "/wA=", "encoding": "base64"})
    assert "000000  ff 00 " in text
    text = change(visitor, "/topics/Sent/send", {"body": " ", "keys": "k" * 300})
    assert "> </pre>" in text
    assert "k" * 300 in text
    token = csrf(visitor.get("/topics").text)
    for wrong in (
        {"body": ""},
        {"body": "!", "encoding": "base64"},
        {"body": "x", "properties": "no"},
        {"body": "x", "delay": "-1"},
    ):
        assert visitor.post("/topics/Sent/send", data={**wrong, "csrf": token}).status_code == 400


def test_groups_are_made_moved_changed_and_deleted(visitor: httpx.Client, broker: Broker) -> None:
    change(visitor, "/topics", {"name": "Walked", "read_queues": "1"})
    for number in range(4):
        change(visitor, "/topics/Walked/send", {"body": str(number)})
    assert "Group walkers was created." in change(visitor, "/groups", {"name": "walkers", "retries": "3"})
    token = csrf(visitor.get("/topics").text)
    asked = visitor.post("/groups/walkers/reset", data={"csrf": token, "topic": "Walked", "to": "latest"})
    assert '<td class="num">none</td><td class="num">4</td>' in asked.text
    assert "committed no offset" in page(broker, "/groups/walkers")
    change(visitor, "/groups/walkers/reset", {"topic": "Walked", "to": "latest"})
    assert "<dt>Lag, messages</dt><dd>0</dd>" in page(broker, "/groups/walkers")
    name = broker.apps[0].config.broker_name
    change(
        visitor,
        "/groups/walkers/reset",
        {"topic": "Walked", "to": "offset", "queue": f"{name}:0", "offset": "1"},
    )
    assert "<dt>Lag, messages</dt><dd>3</dd>" in page(broker, "/groups/walkers")
    change(visitor, "/groups/walkers/reset", {"topic": "Walked", "to": "time", "time": "2001-01-01T00:00"})
    assert "<dt>Lag, messages</dt><dd>4</dd>" in page(broker, "/groups/walkers")
    for wrong in (
        {"to": "offset", "queue": f"{name}:0", "offset": "9"},
        {"to": "offset", "queue": "x:0", "offset": "0"},
        {"to": "offset", "queue": f"{name}:0"},
        {"to": "offset", "queue": f"{name}:0", "offset": "9", "sure": "yes"},
        {"to": "time", "time": "soon"},
        {"to": "x"},
    ):
        answer = visitor.post("/groups/walkers/reset", data={"csrf": token, "topic": "Walked", **wrong})
        assert answer.status_code == 400
    fields = {
        "enabled": "1",
        "retries": "7",
        "retry_queues": "1",
        "consume_timeout": "15",
    }
    text = change(visitor, "/groups/walkers/config", {**fields, "broadcast": "1"})
    assert 'value="7"' in text
    again = visitor.post("/groups/walkers/config", data={"csrf": token, **fields, "broadcast": "1"})
    assert again.status_code == 409
    assert ">POP</span>" in change(visitor, "/groups/walkers/mode", {"topic": "Walked", "mode": "POP"})
    assert "Group walkers was deleted." in change(visitor, "/groups/walkers/delete", {})
    page(broker, "/groups/walkers", 404)


def test_settings_of_a_broker_are_changed(visitor: httpx.Client, broker: Broker) -> None:
    name = broker.apps[0].config.broker_name
    path = f"/brokers/{name}/config"
    text = change(visitor, path, {"key": "autoCreateTopicEnable", "value": "false"})
    assert f"{name} has autoCreateTopicEnable=false." in text
    change(visitor, path, {"key": "autoCreateTopicEnable", "value": "true"})
    token = csrf(visitor.get("/topics").text)
    assert (
        "did you mean"
        in visitor.post(path, data={"csrf": token, "key": "autoCreateTopicEnabl", "value": "x"}).text
    )
    fixed = {"csrf": token, "sure": "yes", "key": "listenPort", "value": "1"}
    assert visitor.post(path, data=fixed).status_code == 403
    assert visitor.post(path, data={**fixed, "value": "1\nflushDiskType=x"}).status_code == 400


def test_dead_letters_are_shown_and_sent_again(visitor: httpx.Client, broker: Broker) -> None:
    well = threading.Event()
    got: list[bytes] = []

    def listen(message: MessageExt) -> None:
        if not well.is_set():
            raise ValueError("no")
        got.append(message.body)

    change(visitor, "/groups", {"name": "mourners", "retries": "0"})
    with Producer(broker.namesrv, group="console_tests") as producer:
        for number in range(4):
            tags = ("even", "odd")[number % 2]
            producer.send(Message.of("Deadly", f"m{number}", keys=f"k{number}", tags=tags))
    consumer = PushConsumer(broker.namesrv, group="mourners", listener=listen, consume_from=FIRST)
    consumer.subscribe("Deadly")
    with consumer, AdminClient(broker.namesrv) as admin:
        eventually(lambda: _count(admin, dlq_topic("mourners")) == 4)
        assert 'href="/console/dead-letters/mourners"' in page(broker, "/dead-letters")
        text = page(broker, "/dead-letters/mourners?tag=even")
        assert [f"m{number}" for number in range(4) if f">m{number}</pre>" in text] == ["m0", "m2"]
        well.set()
        path = "/dead-letters/mourners/resend"
        text = visitor.get("/dead-letters/mourners?key=k1").text
        (one,) = re.findall(r'name="id" value="([^"]+)"', text)
        assert "Dead letters sent again: 1." in change(visitor, path, {"which": "chosen", "id": [one]})
        eventually(lambda: got == [b"m1"])
        text = change(visitor, path, {"which": "all", "tag": "even", "to": "topic"})
        assert "Dead letters sent again: 2." in text
        eventually(lambda: sorted(got) == [b"m0", b"m1", b"m2"])
    token = csrf(visitor.get("/topics").text)
    assert visitor.post(path, data={"csrf": token, "which": "chosen"}).status_code == 400
    assert visitor.post(path, data={"csrf": token, "which": "all", "tag": "none"}).status_code == 404


def _count(admin: AdminClient, topic: str) -> int:
    if topic not in admin.topic_list():
        return 0
    return sum(each.max_offset - each.min_offset for each in admin.topic_stats(topic).values())


def test_delayed_messages_transactions_and_traces(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    with Producer(broker.namesrv, group="console_tests", trace=True) as producer:
        producer.send(Message.of("Later", "x", delay_level=18))
        producer.send(Message.of("Later", "x", delay_ms=3_600_000))
        sent = producer.send(Message.of("Traced", "x"))
    text = page(broker, "/delayed")
    assert re.search(r"<dt>Waiting for a level</dt><dd>1</dd>", text)
    eventually(lambda: "<dt>Waiting for a time</dt><dd>1</dd>" in page(broker, "/delayed"))
    eventually(lambda: "sent</td>" in page(broker, f"/trace?id={sent.message_id}"))
    monkeypatch.setattr(tracesurvey, "MAX_RECORDS", 0)
    text = page(broker, f"/trace?id={sent.message_id}")
    assert "sent</td>" in text
    assert "There are more: these are of the newest" in text


def test_the_live_tail(broker: Broker, visitor: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    change(visitor, "/topics", {"name": "Followed", "read_queues": "2"})
    change(visitor, "/topics/Followed/send", {"body": "before"})
    got: list[str] = []
    open_now = threading.Event()

    def follow() -> None:
        with httpx.stream("GET", f"{broker.http_url}/console/topics/Followed/tail", timeout=60) as answer:
            for line in answer.iter_lines():
                if line.startswith("data: "):
                    got.append(json.loads(line[6:])["body"]["text"])
                elif line == ": still here":
                    open_now.set()
                if len(got) == 3:
                    return

    reader = threading.Thread(target=follow)
    reader.start()
    try:
        assert open_now.wait(30)
        with Producer(broker.namesrv, group="console_tests") as producer:
            for number in range(3):
                producer.send(Message.of("Followed", f"m{number}"))
    finally:
        reader.join(60)
    assert got == ["m0", "m1", "m2"]
    monkeypatch.setattr(letterpages.TopicTail, "most_open", 0)
    assert get(f"{broker.http_url}/console/topics/Followed/tail").status_code == 503


# --- users ---


def test_a_tail_ends_with_the_session(guarded: Broker) -> None:
    ended = threading.Event()
    begun = threading.Event()
    with browser(guarded) as root:
        log_in(root, user=ROOT[0], secret=ROOT[1])

        def follow() -> None:
            with root.stream("GET", "/topics/TBW102/tail") as answer:
                for line in answer.iter_lines():
                    begun.set()
                    if "the session has ended" in line:
                        ended.set()

        reader = threading.Thread(target=follow)
        reader.start()
        try:
            assert begun.wait(30)
            with browser(guarded) as other:
                other.cookies = root.cookies
                assert (
                    other.post("/logout", data={"csrf": csrf(other.get("/topics").text)}).status_code == 303
                )
            assert ended.wait(30)
        finally:
            reader.join(60)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    folder = tmp_path_factory.mktemp("console-users")
    settings = with_users(ROOT, ROOT, authConfigPath=str(folder / "users"))
    with Broker(http=True, settings=settings) as running:
        yield running


def test_with_users_nobody_sees_anything(guarded: Broker) -> None:
    with browser(guarded) as nobody:
        for path in (
            "",
            "/topics",
            "/topics/Orders/messages",
            "/topics/Orders/tail",
            "/users",
            "/spark",
            "/jobs",
        ):
            answer = nobody.get(path)
            assert answer.status_code == 303
            assert answer.headers["location"].startswith("/console/login?to=%2Fconsole")
        assert log_in(nobody, user="root", secret=WRONG).status_code == 401
        assert log_in(nobody, secret=guarded.apps[0].loopback_token).status_code == 401


def test_keys_of_a_brokers_environment_are_not_used_for_pages(
    guarded: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MQSPARK_ACCESS_KEY", ROOT[0])
    monkeypatch.setenv("MQSPARK_SECRET_KEY", ROOT[1])
    with browser(guarded) as nobody:
        assert nobody.get("/topics").status_code == 303


def test_users_ask_in_their_own_name(guarded: Broker) -> None:
    with browser(guarded) as root, browser(guarded) as clerk:
        assert log_in(root, user=ROOT[0], secret=ROOT[1]).status_code == 303
        assert ROOT[0] in root.get("").text
        fields = {"name": "clerk", "password": CLERK}
        text = change(root, "/users", fields, "/users")
        assert "User clerk was created." in text
        assert "canary" not in text
        rule: dict[str, str | list[str]] = {
            "resource": "Topic:Orders",
            "decision": "Allow",
            "actions": ["Get", "Sub"],
            "sources": ", ".join(["127.0.0.1", *(f"10.0.0.{number}" for number in range(100))]),
        }
        assert "Topic:Orders" in change(root, "/users/clerk/rules", rule, "/users")
        change(root, "/topics", {"name": "Orders", "read_queues": "1"}, "/users")
        change(root, "/topics/Orders/send", {"body": "x"}, "/users")
        assert log_in(clerk, user="clerk", secret=CLERK).status_code == 303
        assert clerk.get("/topics/Orders/messages?by=key&value=x").status_code == 200
        assert "has no permission" in clerk.get("").text
        assert clerk.get("/jobs").status_code == clerk.get("/tables").status_code == 403
        assert "started without a job server" in root.get("/jobs").text
        assert clerk.get("/users").status_code == 403
        path = f"/brokers/{guarded.apps[0].config.broker_name}/set-aside/{set_aside(guarded)}"
        assert clerk.get(path).status_code == 403
        assert root.get(path).status_code == 200
        token = csrf(clerk.get("/topics/Orders/send").text)
        refused = clerk.post("/topics/Orders/send", data={"csrf": token, "sure": "yes", "body": "y"})
        assert refused.status_code in (403, 502)
        assert "no permission" in refused.text
        assert clerk.post("/topics/Orders/delete", data={"csrf": token, "sure": "yes"}).status_code == 403
        assert clerk.post(f"{path}/send", data={"csrf": token, "sure": "yes"}).status_code == 403
        change(root, "/users", {"name": "clerk", "status": "disable"}, "/users")
        assert clerk.get("/topics/Orders/messages?by=key&value=x").status_code == 403
        kind: dict[str, str | list[str]] = {"resource": "Topic:Orders", "kind": "Custom"}
        assert "No rule: may do nothing" in change(root, "/users/clerk/rules/delete", kind, "/users")
        assert "User clerk was deleted." in change(root, "/users/clerk/delete", {}, "/users")


def test_a_broker_has_a_past_before_its_first_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples are taken while nobody has asked it anything over HTTP."""
    monkeypatch.setattr(broker_app, "SAMPLES_AFTER_S", 0.01)
    monkeypatch.setattr(sampler, "SAMPLE_PERIOD_S", 0.05)
    monkeypatch.setattr(sampler, "UNWATCHED_S", 0.0)
    clock = FakeClock()
    with Broker(http=True, clock=clock) as running:
        end_s = time.monotonic() + 1.0
        while time.monotonic() < end_s:  # real time for rounds; a step of the charts is ten seconds
            time.sleep(0.1)
            clock.advance(10_000)
        drawn = [
            json.loads(html.unescape(each)) for each in re.findall(r'data-chart="([^"]+)"', page(running, ""))
        ]
    rates = next(each["columns"] for each in drawn if each["labels"] == ["in", "out"])
    assert len(rates[0]) >= 2  # the page itself notes one


SAMPLING = """
import sys, time
from mqspark.testing import Broker
from mqspark_server import broker_app
from mqspark_server.console.history.sampler import Sampler

broker_app.SAMPLES_AFTER_S = 0.01
taken, take = [], Sampler.take

async def taking(self, admin):
    await take(self, admin)
    taken.append(self)

Sampler.take = taking
with Broker(http=True):
    while not taken:
        time.sleep(0.02)
print({"fastapi", "uvicorn", "jinja2", "prometheus_client"} & set(sys.modules))
"""


def test_samples_load_nothing_that_serves_pages() -> None:
    """To load it takes a second, in which a broker would do nothing else."""
    done = run_python(SAMPLING)
    assert (done.returncode, done.stdout) == (0, "set()\n"), done.stderr


# --- of any cluster ---


def test_the_command_shows_a_cluster(broker: Broker, tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = [*mqspark_command(), "console", "-n", broker.namesrv, "--port", "0"]
    process = start(command, log, stdout=subprocess.PIPE, env={"MQSPARK_HTTP_TOKEN": TOKEN})
    try:
        url = ready_line(process, log)["console"]
        assert broker.apps[0].address in get(url).text
        origin = url.removesuffix("/console")
        assert get(origin).status_code == 307
        with httpx.Client(base_url=url, timeout=60, trust_env=False, headers={"origin": origin}) as client:
            assert log_in(client, secret=WRONG).status_code == 401
            assert log_in(client, user="someone", secret=TOKEN).status_code == 401
            assert log_in(client, secret=TOKEN).status_code == 303
            assert "Topic FromGateway was created: " in change(client, "/topics", {"name": "FromGateway"})
    finally:
        stop(process)


@contextmanager
def gateway(
    broker: Broker, folder: Path, *arguments: str, **environment: str
) -> Iterator[Callable[[], httpx.Client]]:
    """``mqspark console``, and what makes a browser at it."""
    log = folder / "log"
    process = start(
        [*mqspark_command(), "console", "-n", broker.namesrv, "--port", "0", *arguments],
        log,
        stdout=subprocess.PIPE,
        env={"MQSPARK_HTTP_TOKEN": TOKEN, **environment},
    )
    try:
        url = ready_line(process, log)["console"]
        headers = {"origin": url.removesuffix("/console")}
        yield lambda: httpx.Client(base_url=url, timeout=60, trust_env=False, headers=headers)
    finally:
        stop(process)


def test_the_command_asks_for_keys_where_there_are_users(guarded: Broker, tmp_path: Path) -> None:
    with gateway(guarded, tmp_path) as visit, visit() as client:
        assert client.get("/topics").status_code == 303
        assert log_in(client, user=ROOT[0], secret=WRONG).status_code == 401
        assert "access key is required, too" in log_in(client, secret=TOKEN).text
        assert log_in(client, user=ROOT[0], secret=ROOT[1]).status_code == 303
        assert client.get("/topics").status_code == 200


def test_keys_of_the_command_are_for_who_has_its_token(guarded: Broker, tmp_path: Path) -> None:
    """Nobody else sees what they may see; who has the token sees and changes what their policies allow, no more; other
    users still come with their own keys."""
    with browser(guarded) as root:
        log_in(root, user=ROOT[0], secret=ROOT[1])
        change(root, "/users", {"name": "viewer", "password": CLERK}, "/users")
        for resource in ("Topic:Seen", "Cluster:*"):
            rule: dict[str, str | list[str]] = {
                "resource": resource,
                "decision": "Allow",
                "actions": ["Get", "List"],
            }
            change(root, "/users/viewer/rules", rule, "/users")
        for topic in ("Seen", "Hidden"):
            change(root, "/topics", {"name": topic}, "/users")
    keys = tmp_path / "keys"
    keys.write_text(f"accessKey: viewer\nsecretKey: {CLERK}\n")
    keys.chmod(0o600)
    with (
        gateway(guarded, tmp_path, "--credentials", str(keys)) as visit,
        visit() as nobody,
        visit() as client,
    ):
        assert nobody.get("/topics").status_code == 303
        assert "token that" in nobody.get("/login").text
        assert log_in(nobody, secret=WRONG).status_code == 401
        assert log_in(nobody, user="viewer", secret=TOKEN).status_code == 401
        assert nobody.get("/brokers").status_code == 303
        assert log_in(client, secret=TOKEN).status_code == 303
        assert '<span class="pill on">viewer</span>' in client.get("/brokers").text
        assert "no permission" not in client.get("/topics/Seen/config").text
        assert "no permission" in client.get("/topics/Hidden/config").text
        token = csrf(client.get("/topics/Seen/send").text)
        refused = client.post("/topics/Seen/delete", data={"csrf": token, "sure": "yes"})
        assert refused.status_code == 403
        assert log_in(nobody, user=ROOT[0], secret=ROOT[1]).status_code == 303
        assert "no permission" not in nobody.get("/topics/Hidden/config").text


def test_keys_of_the_command_from_environment_and_context(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"accessKey: {ROOT[0]}\nsecretKey: {ROOT[1]}\n")
    keys.chmod(0o600)
    contexts = tmp_path / "contexts.toml"
    contexts.write_text(f'[contexts.here]\nnameserver = "127.0.0.1:1"\ncredentials_file = "{keys}"\n')

    def has_keys(**given: str) -> bool:
        namesrv, options, _, _ = connection_of(given)
        return ConsoleApp(namesrv, options, 0).has_keys

    assert not has_keys(nameserver="127.0.0.1:1")
    assert has_keys(nameserver="127.0.0.1:1", credentials_file=str(keys))
    monkeypatch.setenv("MQSPARK_CONTEXTS", str(contexts))
    assert has_keys(context_name="here")
    monkeypatch.setenv("MQSPARK_CREDENTIALS_FILE", str(keys))
    assert has_keys(nameserver="127.0.0.1:1")
    monkeypatch.setenv("MQSPARK_ACCESS_KEY", ROOT[0])
    with pytest.raises(ConfigError, match="lacks MQSPARK_SECRET_KEY"):
        has_keys(nameserver="127.0.0.1:1")
    monkeypatch.setenv("MQSPARK_SECRET_KEY", ROOT[1])
    assert has_keys(nameserver="127.0.0.1:1")
