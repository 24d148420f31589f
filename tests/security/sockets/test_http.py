"""HTTP without authentication: pages that a browser shows (DNS rebinding, cross-site requests), peers that are slow or
many, numbers that are none, and tables so large that showing them would hold the broker's loop.
"""

from __future__ import annotations

import json
import logging
import socket
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

import mqspark_server.web.httpguard as httpguard
from mqspark.broker.admin.views import groups_view
from mqspark.protocol.bodies.topic_bodies import SubscriptionGroupConfig, TopicConfig
from mqspark.store.offsets import QueueOffsets
from mqspark.testing import Broker
from mqspark_server.web import api, requestbodies
from mqspark_server.web.metrics import render
from tests.support.pace import ProcessorTime
from tests.support.waiting import eventually

MESSAGES = "/api/v1/topics/attacked/messages"
JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(http=True) as running:
        yield running


@pytest.fixture
def http(broker: Broker) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=broker.http_url or "", timeout=60) as client:
        yield client


def address(broker: Broker) -> tuple[str, int]:
    host, _, port = (broker.http_url or "").removeprefix("http://").rpartition(":")
    return host, int(port)


def raw(broker: Broker, request: bytes) -> bytes:
    """The whole answer."""
    with socket.create_connection(address(broker), timeout=60) as sock:
        sock.sendall(request)
        answer = b""
        while data := sock.recv(1 << 16):
            answer += data
        return answer


def stored(broker: Broker, topic: str) -> bool:
    store = broker.apps[0].store
    assert store is not None
    return bool(broker.call(lambda: topic in store.offsets.queues()))


# --- browsers ---


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:80", "localhost.evil.example", "127.0.0.1.nip.io", "127.0.0.1@evil.example",
     "10.9.8.7", "[::2]", "", "localhost:99999", "localhost/x"],
)  # fmt: skip
def test_a_name_that_somebody_elses_dns_points_here_reads_and_posts_nothing(
    http: httpx.Client, broker: Broker, host: str
) -> None:
    headers = {"host": host}
    for path in ("/metrics", "/api/v1/topics", "/health/ready", "/openapi.json"):
        assert http.get(path, headers=headers).status_code in (400, 403)
    answer = http.post(MESSAGES, content=b'{"body":"x"}', headers=headers | JSON)
    assert answer.status_code in (400, 403)
    assert not stored(broker, "attacked")


def test_a_request_without_a_host_or_with_two_is_refused(broker: Broker) -> None:
    assert b" 403 " in raw(broker, b"GET /metrics HTTP/1.0\r\n\r\n").split(b"\r\n")[0]
    two = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\nConnection: close\r\n\r\n"
    assert raw(broker, two).split(b" ")[1] in (b"400", b"403")


def test_the_names_of_loopback_and_of_the_broker_are_answered(http: httpx.Client) -> None:
    for host in ("localhost", "LOCALHOST:1234", "127.0.0.1", "[::1]:80", "localhost."):
        assert http.get("/health/live", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://localhost:1"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
def test_pages_of_other_origins_are_refused(
    http: httpx.Client, broker: Broker, headers: dict[str, str]
) -> None:
    assert http.get("/metrics", headers=headers).status_code == 403
    assert http.post(MESSAGES, content=b'{"body":"x"}', headers=headers | JSON).status_code == 403
    assert not stored(broker, "attacked")


def test_the_brokers_own_pages_are_answered(http: httpx.Client, broker: Broker) -> None:
    url = broker.http_url or ""
    headers = {"origin": url, "sec-fetch-site": "same-origin"}
    assert http.get("/health/live", headers=headers).status_code == 200
    assert http.get("/docs", headers={"sec-fetch-site": "none"}).status_code == 200


@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded"])
def test_what_a_page_may_send_without_being_asked_first_is_not_read(
    http: httpx.Client, broker: Broker, kind: str | None
) -> None:
    """A POST with no content type, or with one of those that need no preflight."""
    headers = {} if kind is None else {"content-type": kind}
    assert http.post(MESSAGES, content=b'{"body":"x"}', headers=headers).status_code == 422
    assert not stored(broker, "attacked")


def test_an_operator_allows_other_names() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError

    def passes(hosts: list[str], host: str, server: str = "127.0.0.1") -> bool:
        scope = {"type": "http", "headers": [(b"host", host.encode())], "server": (server, 1)}
        return httpguard.Guarded(app, hosts).problem(scope) is None

    assert passes(["mq.example.org", ""], "MQ.example.org:80")
    assert not passes(["mq.example.org"], "example.org")
    assert passes(["*"], "anything.example")
    assert passes([], "10.0.0.5:10914", server="10.0.0.5")
    assert passes([], "[fe80::1]", server="fe80::1")
    assert not passes([], "10.0.0.6", server="10.0.0.5")


# --- slow and many ---


def ended(sock: socket.socket, within_s: float) -> bool:
    sock.settimeout(within_s)
    try:
        while sock.recv(1 << 16):
            pass
    except TimeoutError:
        return False
    except OSError:
        return True
    return True


@pytest.mark.parametrize(
    "begin",
    [
        b"",
        b"GET /health/live HTTP/1.1\r\nHost: loc",
        b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\nGET /heal",
        b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{"
        % MESSAGES.encode(),
    ],
    ids=["nothing", "a head", "the head of a second request", "a body"],
)
def test_who_sends_slowly_is_not_waited_for(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, begin: bytes
) -> None:
    assert httpguard.HEAD_S <= 10
    assert httpguard.BODY_S <= 30
    monkeypatch.setattr(httpguard, "HEAD_S", 1.0)
    monkeypatch.setattr(httpguard, "BODY_S", 1.0)
    with socket.create_connection(address(broker), timeout=60) as sock:
        sock.sendall(begin)
        stop = threading.Event()

        def drip() -> None:
            while not stop.wait(0.1):
                try:
                    sock.sendall(b"a" if begin else b"\r\n")
                except OSError:
                    return

        dripping = threading.Thread(target=drip)
        dripping.start()
        try:
            assert ended(sock, 30)
        finally:
            stop.set()
            dripping.join()


def test_idle_connections_keep_nobody_out(broker: Broker, http: httpx.Client) -> None:
    limit = broker.apps[0].settings.server.http_max_connections
    held = [socket.create_connection(address(broker), timeout=60) for _ in range(2 * limit)]
    try:
        assert http.get("/health/live").status_code == 200
        open_now = sum(not ended(sock, 0.02) for sock in held)
        assert open_now <= limit
    finally:
        for sock in held:
            sock.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2"], ids=["its own address", "another address"])
def test_bodies_that_never_come_keep_nobody_out(broker: Broker, http: httpx.Client, host: str) -> None:
    """Half a minute each, of as many connections as there may be: the health of the broker could not be asked."""
    limit = broker.apps[0].settings.server.http_max_connections
    begun = (
        b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{"
    )
    held = []
    try:
        for _ in range(limit):
            held.append(socket.create_connection(address(broker), timeout=60, source_address=(host, 0)))
            held[-1].sendall(begun % MESSAGES.encode())
        for _ in range(3):
            with httpx.Client(base_url=broker.http_url or "", timeout=60) as another:
                assert another.get("/health/live").status_code == 200
        assert limit - 4 <= sum(not ended(sock, 0.02) for sock in held) < limit
    finally:
        for sock in held:
            sock.close()


def test_a_body_is_refused_before_it_is_in_memory(broker: Broker) -> None:
    head = b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" % MESSAGES.encode()
    declared = raw(broker, head + b"Connection: close\r\nContent-Length: 99999999999\r\n\r\n")
    assert b" 413 " in declared.split(b"\r\n")[0]


@pytest.mark.parametrize(
    "document",
    [
        {f"field{number}": 1 for number in range(requestbodies.MAX_TEXTS + 1)},
        {"body": [[]] * requestbodies.VALUES_BYTES},
        {
            "body": "x",
            "properties": {
                '\\"': "\\" * 10,
                **{str(each): "" for each in range(requestbodies.MAX_TEXTS // 2)},
            },
        },
    ],
    ids=["fields", "lists", "properties"],
)
def test_a_document_of_many_values_is_refused_before_it_is_parsed(http: httpx.Client, document: Any) -> None:
    answer = http.post(MESSAGES, json=document)
    assert (answer.status_code, "texts, or" in answer.text) == (413, True), answer.text[:200]


def test_no_other_encoding_and_no_name_hides_many_values(http: httpx.Client) -> None:
    values = ",".join(["1"] * requestbodies.VALUES_BYTES)
    hidden = f'{{"body": "\\"", "keys": [{values}]}}'
    for encoding in ("utf-16", "utf-16-le", "utf-32-be"):
        answer = http.post(MESSAGES, content=hidden.encode(encoding), headers=JSON)
        assert (answer.status_code, "UTF-8" in answer.text) == (400, True), answer.text[:200]
    for path in ("/api/v1/topics/ingest", "/api/v1/users/ingest"):
        answer = http.put(path, content=hidden, headers=JSON)
        assert (answer.status_code, "texts, or" in answer.text) == (413, True), answer.text[:200]


def test_a_document_of_long_texts_is_not_refused(http: httpx.Client) -> None:
    properties = {f'{number}"\\': "," for number in range(2_000)}
    answer = http.post(MESSAGES, json={"body": '[{"a\\":1},' * 100_000, "properties": properties})
    assert answer.status_code == 201, answer.text


def test_all_bodies_have_a_limit_together(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    body = json.dumps({"body": "x" * 600_000}).encode()
    monkeypatch.setattr(requestbodies, "HELD_BYTES", 2 * len(body) - 2)
    head = b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
    whole = head % MESSAGES.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body
    small = head % MESSAGES.encode() + b'Content-Length: 12\r\n\r\n{"body":"x"}'
    with socket.create_connection(address(broker), timeout=60) as first:
        first.sendall(whole[:-1])
        eventually(lambda: b" 503 " in raw(broker, whole).split(b"\r\n")[0])
        assert b" 201 " in raw(broker, small).split(b"\r\n")[0]
        first.sendall(whole[-1:])
        assert b" 201 " in first.recv(1 << 16)
    eventually(lambda: b" 201 " in raw(broker, whole).split(b"\r\n")[0])


# --- numbers that are none ---


@pytest.mark.parametrize(
    "number",
    ["NaN", "Infinity", "-Infinity", "1e999", "-1", "2147483648", "1" + "0" * 400, "1" + "0" * 5000, "1.5", "[[]]",
     '"\\ud800"', "null0"],
)  # fmt: skip
def test_a_number_that_is_none_is_the_senders_fault(
    http: httpx.Client, caplog: pytest.LogCaptureFixture, number: str
) -> None:
    with caplog.at_level(logging.WARNING):
        answer = http.post(MESSAGES, content=f'{{"body":"x","queueId":{number}}}', headers=JSON)
    assert answer.status_code in ((400, 422) if len(number) > 4300 else (422,)), answer.text
    assert answer.json()["detail"]
    assert len(answer.content) < 2_000
    assert not [record for record in caplog.records if record.exc_info]


def test_text_that_is_none_is_the_senders_fault(http: httpx.Client, caplog: pytest.LogCaptureFixture) -> None:
    for message in (
        '{"body":"\\ud800"}', '{"body":"x","tags":"\\ud800"}', '{"body":"x","properties":{"\\ud800":"x"}}',
        '{"body":"x","keys":["\\udfff"]}', '{"\\ud800":1}', '{"body":{"\\ud800":1}}', "[" * 100_000, "\x00", "",
    ):  # fmt: skip
        answer = http.post(MESSAGES, content=message, headers=JSON)
        assert answer.status_code in (400, 413, 422), (message[:40], answer.text)
        assert answer.json()["detail"]
    assert not [record for record in caplog.records if record.exc_info]


# --- large tables ---

MANY = 5_000
LIMIT = 1_000


@pytest.fixture(scope="module")
def crowded() -> Iterator[Broker]:
    """With thousands of groups, each with an offset of a topic of its own."""
    with Broker(http=True) as running:
        broker = running.apps[0].parts.core
        assert broker is not None
        state = broker.state

        def fill() -> None:
            for number in range(MANY):
                topic, group = f"topic-{number:05}", f"group-{number:05}"
                state.topics.put(TopicConfig(topic_name=topic, perm=6)).counted = number
                state.subscriptions.put(SubscriptionGroupConfig(group_name=group))
                state.offsets.commit(group, topic, 0, 0)

        running.call(fill)
        yield running


def test_metrics_and_views_of_large_tables_are_made_between_turns(crowded: Broker) -> None:
    app = crowded.apps[0]
    assert app.parts is not None
    state = app.parts.core.state

    def longest(work: Iterator[object]) -> float:
        longest_s = 0.0
        while True:
            with ProcessorTime() as cost:
                ended = next(work, work) is work
            if ended:
                return longest_s
            longest_s = max(longest_s, cost.seconds)

    # A slice is some milliseconds; a collection of garbage may fall into one. In one go it was seconds.
    assert crowded.call(lambda: longest(render(app))) < 0.8
    groups = crowded.call(lambda: list(state.subscriptions.names()))
    assert len(groups) >= MANY
    assert crowded.call(lambda: longest(groups_view(state, groups))) < 0.8


def test_a_family_of_metrics_has_a_bound_and_shows_the_largest(crowded: Broker) -> None:
    with httpx.Client(base_url=crowded.http_url or "", timeout=60) as http:
        lines = http.get("/metrics").text.splitlines()
        names, after = [], ""
        while after is not None:
            page = http.get(f"/api/v1/groups?limit=1000&after={after}").json()
            assert len(page["items"]) <= LIMIT
            names += [entry["group"] for entry in page["items"]]
            after = page["next"]
    shown = [line for line in lines if line.startswith("rocketmq_messages_in_total{")]
    assert len(shown) == LIMIT + 1
    values = {line.partition('topic="')[2].partition('"')[0]: float(line.split()[-1]) for line in shown}
    assert values[f"topic-{MANY - 1:05}"] == MANY - 1
    assert values["_other"] == sum(range(MANY)) - sum(range(MANY - LIMIT, MANY))
    assert len([line for line in lines if line.startswith("rocketmq_consumer_lag_messages{")]) == LIMIT + 1
    assert any(line.startswith("rocketmq_metrics_max_series{") and line.endswith(" 1000.0") for line in lines)
    together = next(line for line in lines if line.startswith("rocketmq_metrics_series_put_together{"))
    assert float(together.split()[-1]) >= 2 * (MANY - LIMIT)
    assert len(names) == len(set(names)) >= MANY
    assert names == sorted(names)


def test_scrapes_at_the_same_time_are_one(crowded: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    monkeypatch.setattr(api, "render", lambda app: made.append(app) or render(app))
    url = crowded.http_url or ""
    httpx.get(f"{url}/health/live", timeout=60)
    answers: list[int] = []
    threads = [
        threading.Thread(target=lambda: answers.append(httpx.get(f"{url}/metrics", timeout=60).status_code))
        for _ in range(12)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert answers == [200] * 12
    assert 1 <= len(made) < 12


def test_one_topic_is_shown_without_a_look_at_all(crowded: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(QueueOffsets, "queues", None)
    with httpx.Client(base_url=crowded.http_url or "", timeout=60) as http:
        assert http.get("/api/v1/topics/topic-00001").json()["topic"] == "topic-00001"
        assert http.get("/api/v1/topics/nobody").status_code == 404
        assert http.get("/api/v1/groups/group-00001").json()["group"] == "group-00001"
        assert json.loads(http.get("/api/v1/groups/nobody").content)["detail"]
