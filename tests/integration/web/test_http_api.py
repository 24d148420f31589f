"""/api/v1 of a real broker, noun by noun."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from mqspark import MessageExt
from mqspark.protocol.schemaoperations import MEDIA_TYPE
from mqspark.testing import Broker, Clients
from mqspark_server.web.schemaapi import is_registry_path
from mqspark_server.web.v1 import ingest

PROBLEM = "application/problem+json"


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(http=True) as running:
        yield running


@pytest.fixture(scope="module")
def clients(broker: Broker) -> Iterator[Clients]:
    with Clients(broker.namesrv) as made:
        yield made


@pytest.fixture
def http(broker: Broker) -> Iterator[httpx.Client]:
    headers = {"authorization": f"Bearer {broker.apps[0].loopback_token}"}
    with httpx.Client(base_url=f"{broker.http_url}/api/v1", timeout=60, headers=headers) as client:
        yield client


def send(http: httpx.Client, topic: str, body: str, **more: Any) -> dict[str, Any]:
    answer = http.post(f"/topics/{topic}/messages", json={"body": body, **more})
    assert answer.status_code == 201, answer.text
    document: dict[str, Any] = answer.json()
    return document


def check_problem(answer: httpx.Response, status: int) -> None:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == PROBLEM
    assert answer.json()["status"] == status
    assert answer.json()["detail"]


def test_every_operation_documents_its_problems(http: httpx.Client, broker: Broker) -> None:
    document = httpx.get(f"{broker.http_url}/openapi.json", timeout=60).json()
    for path, operations in document["paths"].items():
        if not path.startswith("/api/v1"):
            continue
        for method, operation in operations.items():
            statuses = set(operation["responses"])
            assert {"401", "403", "429"} <= statuses, (method, path)
            for status, described in operation["responses"].items():
                if status >= "400" and "content" in described:
                    assert list(described["content"]) == [PROBLEM], (method, path, status)


def test_the_paths_of_the_registry_document_what_its_clients_read(broker: Broker) -> None:
    document = httpx.get(f"{broker.http_url}/openapi.json", timeout=60).json()
    found = 0
    for path, operations in document["paths"].items():
        if is_registry_path(path):
            for method, operation in operations.items():
                for status, described in operation["responses"].items():
                    found += 1
                    assert list(described["content"]) == [MEDIA_TYPE], (method, path, status)
    assert found > 100
    refused = httpx.patch(f"{broker.http_url}/schemas/ids/1", timeout=60)
    assert (refused.status_code, refused.headers["allow"]) == (405, "GET")
    assert refused.headers["content-type"] == MEDIA_TYPE


@pytest.mark.parametrize(
    "settings",
    [
        {"consumeEnable": 0},
        {"consumeEnable": "off"},
        {"retryMaxTimes": "3"},
        {"retryMaxTimes": True},
        {"retryMaxTimes": 3.5},
    ],
    ids=str,
)
def test_a_value_of_another_type_is_refused(http: httpx.Client, settings: dict[str, Any]) -> None:
    check_problem(http.put("/groups/typed/settings", json=settings), 422)


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_a_misspelt_query_parameter_is_refused(http: httpx.Client, method: str) -> None:
    """It would select more than was meant, or be lost."""
    path = {
        "GET": "/topics/T/messages?from=1",
        "POST": "/topics/T/ingest?queue=1",
        "DELETE": "/users/u/policies?resourse=Topic:T",
    }[method]
    answer = http.request(method, path, content=b"line", headers={"content-type": "application/octet-stream"})
    check_problem(answer, 422)
    assert "there is no query parameter" in answer.json()["detail"]


def test_a_compressed_body_is_refused(http: httpx.Client) -> None:
    headers = {"content-type": "application/octet-stream", "content-encoding": "gzip"}
    answer = http.post("/topics/T/ingest", content=b"line", headers=headers)
    check_problem(answer, 415)
    assert answer.headers["accept-encoding"] == "identity"


def test_what_is_not_http_gets_a_problem(broker: Broker) -> None:
    address = httpx.URL(broker.http_url or "")
    with socket.create_connection((address.host, address.port or 0), timeout=60) as sock:
        sock.sendall(b"BLAH\r\n\r\n")
        answer = b"".join(iter(lambda: sock.recv(4096), b""))
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert PROBLEM.encode() in answer


def test_the_page_about_the_api_has_all_of_it_and_loads_nothing_from_elsewhere(broker: Broker) -> None:
    answer = httpx.get(f"{broker.http_url}/docs", timeout=60)
    assert answer.status_code == 200
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    document = httpx.get(f"{broker.http_url}/openapi.json", timeout=60).json()
    for path, operations in document["paths"].items():
        for method in operations:
            assert (
                f'<span class="method">{method.upper()}</span> <span class="mono">{path}</span>'
                in answer.text
            )
    assert re.findall(r"(?:src|href)=\"(?!/[a-z]|#)", answer.text) == []
    assert re.findall(r"<style|\sstyle=|<script(?![^>]*\ssrc=)", answer.text) == []


# --- topics ---


def test_topics_are_made_changed_and_deleted(http: httpx.Client) -> None:
    made = http.put(
        "/topics/Made", json={"readQueueNums": 3, "writeQueueNums": 3}, headers={"if-none-match": "*"}
    )
    assert made.status_code == 201, made.text
    assert (made.json()["readQueueNums"], made.json()["perm"]) == (3, 6)
    check_problem(http.put("/topics/Made", json={}, headers={"if-none-match": "*"}), 412)
    tag = http.get("/topics/Made").headers["etag"]
    assert tag == made.headers["etag"]
    changed = http.put("/topics/Made", json={"perm": 4}, headers={"if-match": tag})
    assert (changed.status_code, changed.json()["perm"], changed.json()["readQueueNums"]) == (200, 4, 3)
    check_problem(http.put("/topics/Made", json={"perm": 6}, headers={"if-match": tag}), 412)
    check_problem(http.delete("/topics/Made", headers={"if-match": tag}), 412)
    assert http.get("/topics/Made").json()["perm"] == 4
    assert http.delete("/topics/Made", headers={"if-match": changed.headers["etag"]}).status_code == 204
    check_problem(http.get("/topics/Made"), 404)
    check_problem(http.delete("/topics/Made"), 404)
    check_problem(http.put("/topics/Made", json={}, headers={"if-match": tag}), 412)


def test_attributes_of_topics(http: httpx.Client) -> None:
    made = http.put("/topics/Kept", json={"attributes": {"message.type": "FIFO"}})
    assert made.json()["attributes"] == {"message.type": "FIFO"}
    check_problem(http.put("/topics/Kept", json={"attributes": {"a": "b,+c=d"}}), 422)
    assert http.put("/topics/Kept", json={"attributes": {"message.type": None}}).json()["attributes"] == {}


@pytest.mark.parametrize("name", ["a b", "x" * 128, "%23", "..", "a/b", "\u00e9"])
def test_names_that_are_none(http: httpx.Client, name: str) -> None:
    answer = http.put(f"/topics/{name}", json={})
    assert answer.status_code in (400, 404, 405)
    assert answer.headers["content-type"] == PROBLEM


def test_changes_need_the_token(broker: Broker) -> None:
    with httpx.Client(base_url=f"{broker.http_url}/api/v1", timeout=60) as http:
        check_problem(http.put("/topics/Unasked", json={}), 401)
        check_problem(http.delete("/topics/Unasked"), 401)
        check_problem(http.put("/groups/unasked/settings", json={}), 401)
        check_problem(http.get("/topics/Unasked"), 404)


def test_pages_of_topics(http: httpx.Client) -> None:
    for number in range(5):
        http.put(f"/topics/Page-{number}", json={"readQueueNums": 1, "writeQueueNums": 1})
    first = http.get("/topics", params={"prefix": "Page-", "limit": 2}).json()
    assert [entry["topic"] for entry in first["items"]] == ["Page-0", "Page-1"]
    http.delete("/topics/Page-0")
    second = http.get("/topics", params={"prefix": "Page-", "limit": 2, "after": first["next"]}).json()
    assert [entry["topic"] for entry in second["items"]] == ["Page-2", "Page-3"]
    last = http.get("/topics", params={"prefix": "Page-", "limit": 2, "after": second["next"]}).json()
    assert ([entry["topic"] for entry in last["items"]], last["next"]) == (["Page-4"], None)
    check_problem(http.get("/topics", params={"limit": 1_001}), 422)
    check_problem(http.get("/topics", params={"after": "!"}), 400)


def test_statistics_of_a_topic(http: httpx.Client) -> None:
    send(http, "Counted", "one")
    send(http, "Counted", "two")
    stats = http.get("/topics/Counted/stats").json()
    assert (stats["messagesStored"], stats["messagesIn"]) == (2, 2)
    assert stats["lastStored"] > 0
    check_problem(http.get("/topics/Nothing/stats"), 404)


# --- groups ---


def test_groups_are_made_changed_and_deleted(http: httpx.Client) -> None:
    path = "/groups/workers/settings"
    made = http.put(path, json={"retryMaxTimes": 3}, headers={"if-none-match": "*"})
    assert (made.status_code, made.json()["retryMaxTimes"], made.json()["consumeEnable"]) == (201, 3, True)
    changed = http.put(path, json={"consumeEnable": False}, headers={"if-match": made.headers["etag"]})
    assert (changed.json()["retryMaxTimes"], changed.json()["consumeEnable"]) == (3, False)
    check_problem(http.put(path, json={}, headers={"if-match": made.headers["etag"]}), 412)
    assert http.get("/groups/workers").json()["online"] is False
    assert "workers" in [
        entry["group"] for entry in http.get("/groups", params={"prefix": "work"}).json()["items"]
    ]
    check_problem(http.delete("/groups/workers", headers={"if-match": made.headers["etag"]}), 412)
    assert http.delete("/groups/workers").status_code == 204
    check_problem(http.get(path), 404)


def test_groups_that_are_not_deleted(http: httpx.Client, clients: Clients) -> None:
    http.put("/topics/Busy", json={"readQueueNums": 1, "writeQueueNums": 1})
    http.put("/groups/busy/settings", json={})
    consumer = clients.lite_pull_consumer("Busy", group="busy")
    consumer.poll(timeout_ms=0)
    answer = http.delete("/groups/busy")
    check_problem(answer, 409)
    assert "stop them first" in answer.json()["detail"]
    assert http.get("/groups/busy/settings").status_code == 200
    consumer.stop()
    assert http.delete("/groups/busy").status_code == 204
    check_problem(http.delete("/groups/TOOLS_CONSUMER"), 400)
    assert http.get("/groups/TOOLS_CONSUMER/settings").status_code == 200


def test_a_group_is_moved_after_a_look(http: httpx.Client) -> None:
    http.put("/topics/Moved", json={"readQueueNums": 1, "writeQueueNums": 1})
    http.put("/groups/movers/settings", json={})
    to_begin = {"topic": "Moved", "to": "earliest", "dryRun": True}
    assert http.post("/groups/movers/reset", json=to_begin).json()["queues"] == [
        {"queueId": 0, "before": None, "after": 0, "minOffset": 0, "maxOffset": 0, "lagAfter": 0}
    ]
    for number in range(4):
        send(http, "Moved", str(number), queueId=0)
    look = http.post("/groups/movers/reset", json={"topic": "Moved", "to": "latest", "dryRun": True}).json()
    assert look["queues"] == [
        {"queueId": 0, "before": None, "after": 4, "minOffset": 0, "maxOffset": 4, "lagAfter": 0}
    ]
    assert http.get("/groups/movers").json()["topics"] == []
    moved = http.post(
        "/groups/movers/reset", json={"topic": "Moved", "to": "offset", "queueId": 0, "offset": 1}
    )
    assert moved.json()["queues"][0]["lagAfter"] == 3
    assert http.get("/groups/movers").json()["lag"] == 3
    for to, lag in (("latest", 0), ("earliest", 4)):
        assert http.post("/groups/movers/reset", json={"topic": "Moved", "to": to}).status_code == 200
        assert http.get("/groups/movers").json()["lag"] == lag
    for wrong, status in (
        ({"to": "offset", "queueId": 0, "offset": 5}, 400),
        ({"to": "offset", "queueId": 9, "offset": 0}, 400),
        ({"to": "offset"}, 422),
        ({"to": "latest", "offset": 1}, 422),
        ({"to": "yesterday"}, 422),
    ):
        check_problem(http.post("/groups/movers/reset", json={"topic": "Moved", **wrong}), status)
    for to, time_ms in (("time", None), ("latest", 1)):
        refused = http.post("/groups/movers/reset", json={"topic": "Moved", "to": to, "timeMs": time_ms})
        assert refused.status_code == 422
        assert refused.json()["detail"] == f"to {to}: give `timeMs` with `time`, and only with it"
    check_problem(http.post("/groups/movers/reset", json={"topic": "Nothing", "to": "latest"}), 404)
    check_problem(http.post("/groups/nobody/reset", json={"topic": "Moved", "to": "latest"}), 404)


def test_one_queue_is_moved_and_the_others_stay(http: httpx.Client) -> None:
    http.put("/topics/Apart", json={"readQueueNums": 2, "writeQueueNums": 2})
    http.put("/groups/parted/settings", json={})
    for queue_id in (0, 1):
        send(http, "Apart", "x", queueId=queue_id)
    moved = http.post("/groups/parted/reset", json={"topic": "Apart", "to": "latest", "queueId": 1}).json()
    assert [each["queueId"] for each in moved["queues"]] == [1]
    (topic,) = http.get("/groups/parted").json()["topics"]
    assert {each["queueId"]: each["offset"] for each in topic["queues"]} == {1: 1}


# --- ingest ---

LINES = {"content-type": "application/x-ndjson"}


def test_lines_become_messages(http: httpx.Client, clients: Clients) -> None:
    http.put("/topics/Lines", json={"readQueueNums": 1, "writeQueueNums": 1})
    lines = [f'{{"n":{number}}}'.encode() for number in range(20_000)]
    answer = http.post("/topics/Lines/ingest?tags=bulk", content=b"\n\n".join(lines), headers=LINES)
    assert (answer.status_code, answer.json()) == (200, {"stored": 20_000})
    got: list[MessageExt] = []
    consumer = clients.lite_pull_consumer("Lines")
    while len(got) < len(lines):
        got += consumer.poll(timeout_ms=30_000)
    got.sort(key=lambda message: message.queue_offset)
    assert [message.body for message in got] == lines
    assert {message.tags for message in got} == {"bulk"}


def test_ingests_that_are_refused(http: httpx.Client, broker: Broker) -> None:
    check_problem(
        http.post("/topics/Lines/ingest", content=b"x", headers={"content-type": "text/plain"}), 415
    )
    check_problem(http.post("/topics/a b/ingest", content=b"x", headers=LINES), 400)
    check_problem(http.post("/topics/Lines/ingest?tags=%01", content=b"x", headers=LINES), 400)
    check_problem(http.post("/topics/Lines/ingest?queueId=77", content=b"x", headers=LINES), 400)
    for number, status in ((0x7FFF, 400), (0x8000, 422)):
        query = f"?queueId={number}"
        check_problem(http.post(f"/topics/Lines/ingest{query}", content=b"x", headers=LINES), status)
        check_problem(http.post("/topics/Lines/messages", json={"body": "x", "queueId": number}), status)
    huge = b"short\n" + b"x" * (broker.apps[0].store_config.max_message_size + 1)
    answer = http.post("/topics/Lines/ingest", content=huge, headers=LINES)
    check_problem(answer, 413)
    assert answer.json()["stored"] in (0, 1)
    assert http.post("/topics/Lines/ingest", content=b"\n\n", headers=LINES).json() == {"stored": 0}


def test_an_ingest_that_becomes_too_long_says_what_is_stored(
    http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingest, "INGEST_BYTES", 8 * ingest.BATCH_BYTES)

    def parts() -> Iterator[bytes]:
        for _ in range(80):
            yield (b"x" * 1_023 + b"\n") * 32

    answer = http.post("/topics/Lines/ingest", content=parts(), headers=LINES)
    check_problem(answer, 413)
    assert 512 <= answer.json()["stored"] <= 2_048
