"""The console of a real broker, page by page, with hostile names, bodies and properties."""

from __future__ import annotations

import re
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest

from mqspark import Message, MessageExt, Producer, PushConsumer
from mqspark.client.remoting.identity import ClientOptions
from mqspark.errors import ConfigError
from mqspark.testing import Broker
from mqspark_server.console.gateway import ConsoleApp
from tests.integration.client_kit import FIRST
from tests.support.processes import mqspark_command, ready_line, start, stop
from tests.support.web import get

HOSTILE = "<script>alert(1)</script>\"'&<img src=x onerror=alert(2)>"
BODY_LIMIT = 16 * 1024


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(http=True) as running:
        producer = Producer(running.namesrv, group="console_tests")
        producer.start()
        try:
            producer.send(Message.of("Orders", '{"a": [1, 2]}', keys="k1", tags="paid"))
            producer.send(Message.of("Orders", b"\xff\x00\x01bin", keys="k2", tags="open"))
            producer.send(Message.of("Hostile", HOSTILE, keys="h", properties={"p": HOSTILE, HOSTILE: "x"}))
            producer.send(Message.of("Large", "L" * (BODY_LIMIT * 3)))
        finally:
            producer.stop()
        yield running


def page(broker: Broker, path: str, status: int = 200) -> str:
    answer = get(f"{broker.http_url}/console{path}")
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["cache-control"] == "no-store"
    check_safe(answer.text)
    return answer.text


def check_safe(text: str) -> None:
    """No inline script or style, nothing of another origin, nothing of a peer as markup."""
    assert re.findall(r"<script(?![^>]*\ssrc=\"/console/static/)", text) == []
    assert re.findall(r"<style|\sstyle=|\son\w+=\"|javascript:", text) == []
    assert re.findall(r"(?:src|href|action)=\"(?!/console|#)", text) == []
    assert "<img src=x" not in text


def test_the_overview_shows_the_broker(broker: Broker) -> None:
    text = page(broker, "")
    assert "1 of 1" in text
    assert broker.apps[0].address in text


def test_topics_are_listed_found_and_link_to_their_pages(broker: Broker) -> None:
    text = page(broker, "/topics")
    assert 'href="/console/topics/Orders"' in text
    assert "SCHEDULE_TOPIC_XXXX" not in text
    assert "SCHEDULE_TOPIC_XXXX" in page(broker, "/topics?every=1")
    found = page(broker, "/topics?q=host")
    assert "/console/topics/Hostile" in found
    assert "/console/topics/Orders" not in found


def test_a_topic_shows_queues_configuration_and_messages_newest_first(broker: Broker) -> None:
    text = page(broker, "/topics/Orders")
    assert "{&#34;a&#34;: [1, 2]}" in text
    assert text.index("\ufffd") < text.index("{&#34;a&#34;")


@pytest.mark.parametrize(
    ("query", "there", "absent"),
    [
        ("by=key&value=k1", ">k1<", ">k2<"),
        ("tag=open", ">k2<", ">k1<"),
        ("by=offset&value=0", ">k1<", None),
        ("by=time&value=2001-01-01T00:00", ">k1<", None),
        ("by=time&value=2901-01-01T00:00", "No message is there", ">k1<"),
        ("by=key&value=nobody", "No message is there", ">k1<"),
        ("view=json&by=key&value=k1", "&#34;a&#34;: [\n    1,", None),
        ("view=hex&by=key&value=k2", "000000  ff 00 01 62 69 6e", None),
        ("by=offset&value=x", "give an offset", ">k1<"),
        ("by=time&value=soon", "give a time", ">k1<"),
        ("by=key", "give the key", ">k1<"),
    ],
)
def test_messages_are_found(broker: Broker, query: str, there: str, absent: str | None) -> None:
    text = page(broker, f"/topics/Orders?{query}")
    assert there in text
    assert absent is None or absent not in text


def test_what_peers_write_is_text(broker: Broker) -> None:
    text = page(broker, "/topics/Hostile")
    assert text.count("&lt;script&gt;alert(1)") >= 3  # the body, a property's name and a property's value
    page(broker, f"/topics/Hostile?by=key&value={quote(HOSTILE)}&tag={quote(HOSTILE)}")
    page(broker, f"/topics?q={quote(HOSTILE)}")
    page(broker, f"/topics/{quote(HOSTILE.replace('/', ''), safe='')}", 400)
    page(broker, f"/topics/Hostile?by={quote(HOSTILE)}", 400)


def test_a_large_body_is_cut(broker: Broker) -> None:
    text = page(broker, "/topics/Large")
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
        assert "/console/groups/readers" in page(broker, "/topics/Orders")


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/topics/Nowhere", 404),
        ("/groups/nobody", 404),
        ("/topics?page=0", 400),
        ("/topics?page=x", 400),
        (f"/topics?q={'x' * 300}", 400),
        ("/groups/%3Cb%3E", 400),
    ],
)
def test_bad_requests_have_a_page(broker: Broker, path: str, status: int) -> None:
    page(broker, path, status)


def test_static_files_have_hashes_and_are_kept(broker: Broker) -> None:
    paths = set(re.findall(r'"(/console/static/[^"]+)"', page(broker, "")))
    assert len(paths) == 3
    for path in paths:
        answer = get(f"{broker.http_url}{path}")
        assert answer.status_code == 200
        assert "immutable" in answer.headers["cache-control"]
        assert re.search(r"\.[0-9a-f]{16}\.\w+$", path)
    for name in ("console.css", "..%2fpages.py", "%2e%2e"):
        assert get(f"{broker.http_url}/console/static/{name}").status_code == 404


def test_nothing_can_be_changed(broker: Broker) -> None:
    for path in ("", "/topics", "/topics/Orders", "/groups/TOOLS_CONSUMER"):
        for method in ("POST", "PUT", "DELETE", "PATCH"):
            answer = httpx.request(method, f"{broker.http_url}/console{path}", timeout=60, trust_env=False)
            assert answer.status_code == 405


def test_a_page_of_another_site_gets_none(broker: Broker) -> None:
    for headers in ({"host": "evil.example"}, {"sec-fetch-site": "cross-site"}):
        url = f"{broker.http_url}/console"
        assert httpx.get(url, headers=headers, timeout=60, trust_env=False).status_code == 403


def test_credentials_are_refused(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages without a login must not have a user's rights."""
    monkeypatch.setenv("MQSPARK_ACCESS_KEY", "someone")
    monkeypatch.setenv("MQSPARK_SECRET_KEY", "a secret of someone")
    with pytest.raises(ConfigError, match="no login yet"):
        ConsoleApp(broker.namesrv, ClientOptions(), 0)
    assert "no login yet" in page(broker, "/topics", 503)


def test_a_broker_with_users_shows_nothing_yet(tmp_path: Path) -> None:
    user = '{"username": "root", "password": "root-canary-secret"}'
    settings = {
        "authenticationEnabled": True,
        "authConfigPath": str(tmp_path / "users"),
        "initAuthenticationUser": user,
    }
    with Broker(http=True, settings=settings) as running:
        answer = get(f"{running.http_url}/console/topics")
        assert (answer.status_code, "this broker has users" in answer.text) == (503, True)


def test_the_command_shows_a_cluster(broker: Broker, tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = [*mqspark_command(), "console", "-n", broker.namesrv, "--port", "0"]
    process = start(command, log, stdout=subprocess.PIPE)
    try:
        url = ready_line(process, log)["console"]
        assert broker.apps[0].address in get(url).text
        assert get(url.removesuffix("/console")).status_code == 307
    finally:
        stop(process)
