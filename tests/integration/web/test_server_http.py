"""HTTP beside a real broker: health, metrics, API."""

from __future__ import annotations

import base64
import errno
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from mqspark.errors import StoreReadOnly
from mqspark.store.disk.retention import DiskUsage
from mqspark.testing import Broker, Clients, FakeClock
from mqspark_server import broker_app
from tests.support.waiting import eventually


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(http=True) as running:
        yield running


@pytest.fixture
def http(broker: Broker) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=broker.http_url or "", timeout=60) as client:
        yield client


def post(http: httpx.Client, topic: str, **message: Any) -> httpx.Response:
    # As ASCII, which can also hold what is no text.
    return http.post(
        f"/api/v1/topics/{topic}/messages",
        content=json.dumps(message),
        headers={"content-type": "application/json"},
    )


def test_the_front_page_leads_everywhere(http: httpx.Client) -> None:
    answer = http.get("/", follow_redirects=True)
    assert answer.url.path == "/console"
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/html")
    links = re.findall(r'href="([^"]+)"', answer.text)
    assert {"/health/ready", "/metrics", "/docs", "/console/topics"} <= set(links)
    for link in set(links) - {"#main"}:
        assert http.get(link).status_code == 200, link


def test_the_front_page_is_for_own_names_and_pages_only(http: httpx.Client) -> None:
    assert http.get("/", headers={"host": "rebound.example"}).status_code == 403
    assert http.get("/", headers={"origin": "http://elsewhere.example"}).status_code == 403


def test_health(http: httpx.Client, broker: Broker) -> None:
    assert http.get("/health/live").json() == {"status": "live"}
    answer = http.get("/health/ready")
    assert answer.status_code == 200
    body = answer.json()
    assert (body["status"], body["state"]) == ("ready", "ready")
    assert body["registeredWith"] == [broker.namesrv]
    assert list(body["reachedMs"]) == ["created", "binding", "recovering", "starting", "registering", "ready"]
    assert body["store"]["readOnly"] is None


def test_a_message_is_stored_and_counted(http: httpx.Client, broker: Broker) -> None:
    answer = post(
        http, "http-topic", body="grüße", tags="a", keys=["k1", "k2"], properties={"p": "v"}, queueId=1
    )
    assert answer.status_code == 201, answer.text
    stored = answer.json()
    assert (stored["topic"], stored["queueId"], stored["queueOffset"]) == ("http-topic", 1, 0)
    binary = base64.b64encode(bytes(range(256))).decode()
    assert post(http, "http-topic", bodyBase64=binary, queueId=1).json()["queueOffset"] == 1

    topic = http.get("/api/v1/topics/http-topic").json()
    assert topic["queues"] == [{"queueId": 1, "minOffset": 0, "maxOffset": 2}]
    assert "http-topic" in [entry["topic"] for entry in http.get("/api/v1/topics").json()["items"]]

    def records() -> list[bytes]:
        store = broker.apps[0].store
        assert store is not None
        got = store.reads.get("http-topic", 1, 0, 32, 1 << 20, None)
        return [bytes(buffer) for buffer in got.buffers]

    data = b"".join(broker.call(records))
    for part in ("grüße".encode(), bytes(range(256)), b"TAGS\x01a\x02", b"KEYS\x01k1 k2\x02", b"p\x01v\x02"):
        assert part in data
    assert stored["msgId"].encode() in data

    metrics = http.get("/metrics").text
    labels = (
        'cluster="DefaultCluster",is_system="false",message_type="normal",node_id="dev",node_type="broker"'
    )
    assert f'rocketmq_messages_in_total{{{labels},topic="http-topic"}} 2.0' in metrics


@pytest.mark.parametrize(
    ("topic", "message", "status", "says"),
    [
        ("t", {}, 400, "exactly one of body and bodyBase64"),
        ("t", {"body": "a", "bodyBase64": "YQ=="}, 400, "exactly one"),
        ("t", {"bodyBase64": "!"}, 400, "not base64"),
        ("t", {"body": "a", "unknown": 1}, 422, "unknown"),
        ("t", {"body": "a", "queueId": -1}, 422, "greater than or equal to 0"),
        ("bad topic!", {"body": "a"}, 400, "topic"),
        ("SCHEDULE_TOPIC_XXXX", {"body": "a"}, 403, "forbidden"),
        ("t", {"body": "a", "queueId": 99}, 400, "illegal"),
        ("t", {"body": "a", "queueId": 1 << 31}, 422, "less than or equal to 32767"),
        ("t", {"body": "a", "properties": {"x\x01": "y"}}, 400, "separator"),
        ("t", {"body": "a", "properties": {"x": "\ud800"}}, 400, "surrogates"),
        ("t", {"body": "a", "properties": {"TRAN_MSG": "true"}}, 400, "TransactionProducer"),
        ("t", {"body": "\ud800"}, 400, "surrogates"),
        ("t", {"bodyBase64": "grüße"}, 400, "not base64"),
        ("t", {"body": ""}, 400, "no body"),
        ("t", {"body": "a", "properties": {"DELAY": "soon"}}, 400, "DELAY=soon is not a delay level"),
        ("t", {"body": "a", "properties": {"DELAY": "9999999999"}}, 400, "is not a delay level"),
        ("t", {"body": "a", "properties": {"TIMER_DELAY_MS": "x"}}, 400, "timer message illegal"),
        ("t", {"body": "a", "properties": {"x": "y" * 400_000}}, 400, "exceeds the limit of 32767"),
        ("t", {"body": "x" * (5 << 20)}, 400, "exceeds the limit of 4194304"),
    ],
)
def test_bad_messages_are_told_why(
    http: httpx.Client, topic: str, message: dict[str, Any], status: int, says: str
) -> None:
    answer = post(http, topic, **message)
    assert (answer.status_code, says in answer.text) == (status, True), answer.text


def test_refusals_have_the_status_of_their_reason() -> None:
    timed = {"TIMER_DELIVER_MS": str(int(time.time()) * 1000 + 60_000_000)}
    for settings, topic, properties, status, says in (
        ({"autoCreateTopicEnable": False}, "nowhere", {}, 404, "topic[nowhere] not exist"),
        ({"autoCreateSubscriptionGroup": False}, "%25RETRY%25nobody", {}, 404, "group not exist, nobody"),
        ({"startAcceptSendRequestTimeStamp": 1 << 43}, "t", {}, 503, "unable to service, until"),
        ({"timerWheelEnable": False}, "t", timed, 501, "timerWheelEnable is false"),
        ({"timerCongestNumEachSlot": 1}, "t", timed, 503, "flow control"),
    ):
        with Broker(http=True, settings=settings) as broker, httpx.Client(timeout=60) as http:
            http.base_url = broker.http_url or ""
            if says == "flow control":
                for _ in range(2):  # twice as many as a slot may hold, in the wheel
                    assert post(http, topic, body="a", properties=properties).status_code == 201
                core = broker.apps[0].parts.core
                assert core is not None
                broker.call(core.tick)
            answer = post(http, topic, body="a", properties=properties)
            assert (answer.status_code, says in answer.text) == (status, True), answer.text


def test_properties_of_the_longest_length_may_come_first() -> None:
    with Broker(http=True) as broker, httpx.Client(base_url=broker.http_url or "", timeout=60) as http:
        # Six bytes each in a header's JSON.
        answer = post(http, "t", body="a", properties={"x": "\x03" * 32_000})
        assert answer.status_code == 201, answer.text


def test_a_request_larger_than_a_message_may_be_is_refused(http: httpx.Client) -> None:
    answer = post(http, "t", body="x" * (7 << 20))
    assert answer.status_code == 413

    def chunks() -> Iterator[bytes]:
        for _ in range(8):
            yield b"x" * (1 << 20)

    headers = {"content-type": "application/json"}
    answer = http.post("/api/v1/topics/t/messages", content=chunks(), headers=headers)
    assert answer.status_code == 413


def test_cluster_groups_and_openapi(http: httpx.Client, broker: Broker) -> None:
    cluster = http.get("/api/v1/cluster").json()
    assert (cluster["address"], cluster["nameServers"]) == (broker.address, [broker.namesrv])
    assert cluster["runtime"]["brokerActive"] == "true"
    assert isinstance(http.get("/api/v1/groups").json()["items"], list)
    assert http.get("/api/v1/groups/nobody").status_code == 404
    assert http.get("/api/v1/topics/nothing").status_code == 404
    paths = http.get("/openapi.json").json()["paths"]
    assert set(paths["/api/v1/topics/{topic}/messages"]) == {"get", "post"}


def test_metrics_have_rocketmq_names(http: httpx.Client) -> None:
    text = http.get("/metrics").text
    for name in (
        "rocketmq_messages_in_total",
        "rocketmq_messages_out_total",
        "rocketmq_throughput_in_total",
        "rocketmq_throughput_out_total",
        "rocketmq_consumer_lag_messages",
        "rocketmq_consumer_connections",
        "rocketmq_producer_connections",
        "rocketmq_storage_size_bytes",
        "rocketmq_remoting_requests_refused_total",
        "rocketmq_storage_flush_behind_bytes",
        "rocketmq_storage_dispatch_behind_bytes",
        "rocketmq_storage_message_reserve_time_milliseconds",
        "rocketmq_broker_permission",
        "rocketmq_send_to_dlq_messages_total",
        "mqspark_fsync_duration_seconds",
        "mqspark_loop_lag_seconds",
    ):
        assert f"# TYPE {name} " in text, name


def test_metrics_of_an_idle_broker_have_the_labels_of_rocketmq(http: httpx.Client) -> None:
    recorded: dict[str, list[str]] = json.loads(Path("tests/golden/vectors/metric_names.json").read_text())
    shown: dict[str, list[str]] = {}
    for found in re.finditer(r"^(rocketmq_\w+)\{(.*)\} ", http.get("/metrics").text, re.MULTILINE):
        name = re.sub(r"_(bucket|sum|count)$", "", found[1])
        name = name if name in recorded else found[1]
        shown[name] = sorted(set(re.findall(r'(\w+)="', found[2])) - {"le"})
    unasked = recorded.keys() - shown.keys()
    assert unasked <= {"rocketmq_rpc_latency_milliseconds"}  # there are no times before the first request
    assert {name: shown[name] for name in recorded.keys() - unasked} == {
        name: labels for name, labels in recorded.items() if name not in unasked
    }


def test_metrics_of_timers_and_pop() -> None:
    clock = FakeClock()
    with (
        Broker(http=True, clock=clock) as broker,
        Clients(broker.namesrv) as clients,
        httpx.Client(base_url=broker.http_url or "", timeout=60) as http,
    ):

        def metric(name: str, **labels: str) -> float | None:
            """None when it is not there."""
            labels = {"cluster": "DefaultCluster", "node_id": "dev", "node_type": "broker", **labels}
            inside = ",".join(f'{label}="{value}"' for label, value in sorted(labels.items()))
            start = f"rocketmq_{name}{{{inside}}} "
            lines = http.get("/metrics").text.splitlines()
            return next((float(line[len(start) :]) for line in lines if line.startswith(start)), None)

        storage = {"storage_type": "local", "storage_medium": "disk"}
        names = metric("topic_number"), metric("consumer_group_number")
        assert metric("storage_size_bytes", **storage) == 0
        assert metric("timer_enqueue_lag", **storage) == metric("timer_dequeue_lag", **storage) == 0
        assert metric("timing_messages", **storage, topic="timed") is None

        due = str(clock.now_ms() + 60_000)
        assert post(http, "timed", body="a", properties={"TIMER_DELIVER_MS": due}).status_code == 201
        clock.advance(2_000)
        assert metric("timing_messages", **storage, topic="timed") == 1
        assert metric("timer_enqueue_total", **storage, topic="timed") == 1
        assert metric("timer_dequeue_total", **storage, topic="timed") is None
        assert metric("timer_dequeue_lag", **storage) == 1
        assert metric("timer_enqueue_lag", **storage) == 0
        assert metric("timer_dequeue_latency_milliseconds", **storage) in (0, 1_000, 2_000)
        clock.advance(60_000)
        assert metric("timing_messages", **storage, topic="timed") == 0
        assert metric("timer_dequeue_total", **storage, topic="timed") == 1
        assert metric("timer_dequeue_lag", **storage) == 0

        assert post(http, "popped", body="a", queueId=0).status_code == 201
        seen: list[bytes] = []
        consumer = clients.pop_consumer("popped", lambda message: seen.append(message.body))
        who = {"consumer_group": consumer.group, "topic": "popped"}
        deadline = time.monotonic() + 60
        for kind in ("CK", "ACK"):
            put = {"revive_message_type": kind, "put_status": "PUT_OK"}
            while metric("pop_revive_in_message_total", **who, **put) != 1:
                assert time.monotonic() < deadline, seen
                time.sleep(0.05)
        for queue_id in range(8):
            assert metric("pop_revive_lag_milliseconds", queue_id=str(queue_id)) == 0
            assert metric("pop_revive_latency_milliseconds", queue_id=str(queue_id)) == 0
        for _ in range(90):
            clock.advance(1_000)
        read = [
            metric("pop_revive_out_message_total", **who, queue_id=str(queue_id), revive_message_type="CK")
            for queue_id in range(8)
        ]
        assert sorted(number for number in read if number is not None) == [1]
        assert metric("pop_revive_retry_messages_total", **who, put_status="PUT_OK") is None
        topics, groups = names
        assert topics is not None
        assert groups is not None
        assert (metric("topic_number") or 0) >= topics + 2
        assert (metric("consumer_group_number") or 0) >= groups + 1


def test_a_failed_store_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        broker_app, "open_kernel_sync", lambda: None
    )  # a thread syncs, by way of the store's files
    broker = Broker(store=tmp_path, http=True, settings={"flushDiskType": "SYNC_FLUSH"}).start()
    with httpx.Client(base_url=broker.http_url or "", timeout=60) as http:
        assert post(http, "t", body="kept", queueId=0).status_code == 201

        def no_sync(fd: int) -> None:
            raise OSError(errno.EIO, "Input/output error")

        store = broker.apps[0].store
        assert store is not None
        broker.call(lambda: setattr(store.files, "sync", no_sync))
        refused = post(http, "t", body="lost", queueId=0)
        assert refused.status_code == 503
        assert "Input/output error" in refused.text
        ready = http.get("/health/ready")
        assert ready.status_code == 503
        assert "Input/output error" in ready.json()["store"]["readOnly"]
        assert (
            'rocketmq_storage_read_only{cluster="DefaultCluster",node_id="dev",node_type="broker"} 1.0'
            in http.get("/metrics").text
        )
        # Reading goes on, and only what was promised is there.
        (queue,) = http.get("/api/v1/topics/t").json()["queues"]
        assert queue["maxOffset"] == 1
    with pytest.raises(StoreReadOnly, match="Input/output error"):
        broker.stop()
    assert (tmp_path / "abort").exists()


def test_a_full_disk_is_seen_and_got_over(tmp_path: Path) -> None:
    settings = {"diskSpaceWarningLevelRatio": "90", "cleanResourceInterval": "1"}
    free = [50]
    with Broker(store=tmp_path, http=True, settings=settings) as broker, httpx.Client(timeout=60) as http:
        http.base_url = broker.http_url or ""
        assert post(http, "t", body="first", queueId=0).status_code == 201
        store = broker.apps[0].store
        assert store is not None
        broker.call(lambda: setattr(store.files, "disk", lambda path: (1, DiskUsage(100 - free[0], free[0]))))

        def readiness(status: int) -> dict[str, Any]:
            def asked() -> dict[str, Any] | None:
                answer = http.get("/health/ready")
                return dict(answer.json()) if answer.status_code == status else None

            return eventually(asked) or {}

        free[0] = 5
        assert "95.0% full" in readiness(503)["sendsRefused"]
        assert "95.0% full" in readiness(503)["store"]["diskFull"]
        refused = post(http, "t", body="second", queueId=0)
        assert refused.status_code == 503
        assert "diskSpaceWarningLevelRatio" in refused.text
        text = http.get("/metrics").text
        node = '{cluster="DefaultCluster",node_id="dev",node_type="broker"}'
        assert f"rocketmq_storage_disk_full{node} 1.0" in text
        assert f"rocketmq_storage_disk_used_percent{node} 95.0" in text
        assert f"rocketmq_storage_deleted_segments{node} 0.0" in text
        (queue,) = http.get("/api/v1/topics/t").json()["queues"]
        assert queue["maxOffset"] == 1, "reading goes on"
        free[0] = 50
        assert readiness(200)["store"]["diskFull"] is None
        assert post(http, "t", body="third", queueId=0).status_code == 201

        # The marks say nothing, but queues cannot grow.
        allocate = store.files.allocate

        def no_space(fd: int, offset: int, length: int) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        broker.call(lambda: setattr(store.files, "allocate", no_space))
        assert post(http, "new", body="fourth", queueId=0).status_code == 503
        assert "No space left" in readiness(503)["sendsRefused"]
        assert f"rocketmq_sends_refused{node} 1.0" in http.get("/metrics").text
        broker.call(lambda: setattr(store.files, "allocate", allocate))
        free[0] = 50 << 20  # nobody sends
        assert readiness(200)["sendsRefused"] is None
        assert post(http, "new", body="fifth", queueId=0).status_code == 201


def test_metrics_of_all_tables_together(http: httpx.Client, broker: Broker) -> None:
    figures = {
        name: float(value)
        for line in http.get("/metrics").text.splitlines()
        if line.startswith("mqspark_tables_")
        for name, value in [(line.partition("{")[0], line.rpartition(" ")[2])]
    }
    budget = broker.apps[0].parts.core.bounds.budget
    assert 0 < figures["mqspark_tables_bytes"] < figures["mqspark_tables_bound_bytes"] == budget.bound
    assert figures["mqspark_tables_refused_total"] == 0
