"""Parts of the console that need no cluster: forms, and progress that anybody may have written."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any, ClassVar, Self

import pytest

from mqspark.client.remoting.client_options import ClientOptions
from mqspark.client.remoting.credentials import Credentials
from mqspark.errors import BrokerError
from mqspark.message import MessageExt
from mqspark.protocol.bodies.topic_bodies import BrokerData, ClusterInfo
from mqspark.protocol.codes import ResponseCode
from mqspark_server.console import doors, rendering, visitors
from mqspark_server.console.clusteraccess import Trouble
from mqspark_server.console.doors import ClusterDoor
from mqspark_server.console.sections import jobpages, sparkpages
from mqspark_server.console.sections.sparkpages import latest_of, parsed, readers_of
from mqspark_server.console.visitors import Door, NoForm, Visitor, Visitors, read_form
from mqspark_server.net.webserver import WebServer
from mqspark_server.scheduler.jobrecords import JobOverview
from mqspark_server.web.problems import Problem
from tests.support.clocks import ManualClock

# --- forms ---


class Posted:
    """A request with a form."""

    def __init__(self, content: bytes, kind: str = "application/x-www-form-urlencoded") -> None:
        self.headers = {"content-type": kind, "cookie": ""}
        self.scope = {"server": ("h", 1), "scheme": "http"}
        self._content = content

    async def stream(self) -> Any:
        for begin in range(0, len(self._content), 1_000):
            yield self._content[begin : begin + 1_000]


def read(content: bytes, kind: str = "application/x-www-form-urlencoded") -> visitors.Form:
    request: Any = Posted(content, kind)
    return asyncio.run(read_form(request, Visitor(None, has_users=False)))


def test_a_form() -> None:
    form = read(b"a=1&b=x+y%20z&a=2&c=&csrf=s&sure=yes")
    assert (form.getlist("a"), form.get("b"), form.get("c")) == (["1", "2"], "x y z", "")


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"a=1", "text/plain"),
        (b"a=1", "multipart/form-data; boundary=x"),
        (b"a=%ff", "application/x-www-form-urlencoded"),
        (b"\xff", "application/x-www-form-urlencoded"),
        (b"&".join(b"f%d=" % number for number in range(3_000)), "application/x-www-form-urlencoded"),
    ],
)
def test_forms_that_are_none(content: bytes, kind: str) -> None:
    with pytest.raises(NoForm):
        read(content, kind)


def test_a_form_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(visitors, "STRANGERS_FORM_BYTES", 10_000)
    with pytest.raises(NoForm, match="at most 10000 bytes"):
        read(b"a=" + b"x" * 10_000)


class Registered:
    """Stands in for the client that asks a cluster: its brokers refuse whoever has no keys."""

    brokers: ClassVar[dict[str, BrokerData]] = {}

    def __init__(self, namesrv: str, timeout_ms: int, options: ClientOptions) -> None:
        self._has_keys = bool(options.credentials)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        """Nothing was opened."""

    async def cluster_info(self) -> ClusterInfo:
        return ClusterInfo(broker_addr_table=self.brokers)

    async def broker_runtime_info(self, address: str) -> None:
        if not self._has_keys:
            raise BrokerError(ResponseCode.NO_PERMISSION, "username cannot be null.")


def test_users_stay_while_no_broker_is_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was sampled with the keys of the console is for users alone, and no key is right that nobody has checked."""
    monkeypatch.setattr(doors, "AdminClient", Registered)
    clock = ManualClock()
    door = ClusterDoor("127.0.0.1:9876", ClientOptions(), "token", clock, Credentials("own", "secret"))
    request: Any = SimpleNamespace(client=SimpleNamespace(host="127.0.0.1"))

    def has_users(*names: str, later_ms: int = doors.KNOWN_MS + 1) -> bool:
        clock.advance(later_ms)
        brokers = {name: BrokerData(broker_name=name, broker_addrs={0: "127.0.0.1:1"}) for name in names}
        monkeypatch.setattr(Registered, "brokers", brokers)
        return asyncio.run(door.has_users())

    assert not has_users(), "nobody can say so yet"
    assert has_users("b-a", later_ms=1), "asked again as soon as there is one to ask"
    assert asyncio.run(door.check(request, "alice", "secret")) == Credentials("alice", "secret")
    assert has_users()
    for name, secret in (("alice", "guessed"), ("", "token")):
        with pytest.raises(Problem, match="no broker is registered that could check the keys"):
            asyncio.run(door.check(request, name, secret))


def test_a_session_ends_when_users_come() -> None:
    has_users = False

    class Open(Door):
        has_keys = False

        async def has_users(self) -> bool:
            return has_users

        async def check(self, request: Any, name: str, secret: str) -> None:
            return

    async def run() -> tuple[bool, bool]:
        nonlocal has_users
        those = Visitors(Open(), ManualClock())
        request: Any = Posted(b"")
        cookie = await those.enter(request, "", "token")
        request.headers["cookie"] = cookie.partition(";")[0]
        before = (await those.of(request)).is_in
        has_users = True
        return before, (await those.of(request)).is_in

    assert asyncio.run(run()) == (True, False)


# --- progress ---


def message(body: bytes, at_ms: int = 1, size: int | None = None, place: int = 0) -> MessageExt:
    stub: Any = SimpleNamespace(
        body=body,
        stored_body_bytes=len(body) if size is None else size,
        store_timestamp_ms=at_ms,
        physical_offset=place,
    )
    found: MessageExt = stub
    return found


def event(**more: Any) -> bytes:
    return json.dumps({"event": "progress", "id": "q", "runId": "r", "name": "n", **more}).encode()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff",
        b"[]",
        b"1",
        b"[" * 100_000,
        b'{"id": 1, "event": "progress"}',
        b'{"id": "q"}',
        b'{"id": "q", "event": "DROP TABLE"}',
    ],
)
def test_what_is_no_event_is_left_out(body: bytes) -> None:
    assert parsed([message(body)]) == []


@pytest.mark.parametrize(
    "progress",
    [
        None,
        7,
        [],
        {"batchId": "x", "numInputRows": True, "inputRowsPerSecond": float("inf"), "durationMs": []},
        {"sources": 1, "sink": 2, "stateOperators": {"a": 1}, "durationMs": {"triggerExecution": "x"}},
        {"sources": [1, None, {"endOffset": "{", "latestOffset": {"q": [1]}}]},
        {"sources": [{"endOffset": {"q": {"T": {"b:0": True, "b:1": "x", "b:2": None}}}}]},
        {"sources": [{"endOffset": "[" * 100_000}]},
    ],
)
def test_progress_of_any_form_is_shown_as_far_as_it_is_one(progress: Any) -> None:
    (row,) = latest_of(parsed([message(event(progress=progress))]), 2)
    assert (row["id"], row["batch"], row["lag"], row["rows"]) == ("q", None, None, None)


def test_the_lag_of_a_query() -> None:
    end, newest = (
        {"q": {"T": {"b:0": 5, "b:1": 7}}, "v": 1},
        {"q": {"T": {"b:0": 9, "b:1": 7, "b:2": 3}}, "v": 1},
    )
    given = {"sources": [{"description": "Python", "endOffset": end, "latestOffset": json.dumps(newest)}]}
    (row,) = latest_of(parsed([message(event(progress=given))]), 2)
    assert (row["lag"], row["sources"][0]["description"]) == (7, "pymq: T")
    assert row["sources"][0]["offsets"] == [("T b:0", 5, 9), ("T b:1", 7, 7)]


def test_a_group_that_spark_reads_is_known_by_its_offsets() -> None:
    def batch(query: str, number: int, *ends: int) -> bytes:
        end = {"q": {"T": {f"b:{queue}": each for queue, each in enumerate(ends)}}}
        progress = {"batchId": number, "sources": [{"endOffset": end, "latestOffset": end}]}
        return event(id=query, name=f"query {query}", progress=progress)

    bodies = [batch("one", 1, 5, 7), batch("other", 1, 5, 8), batch("one", 2, 9, 9), batch("new", 0, 0, 0)]
    events = parsed([message(body, at) for at, body in enumerate(bodies, 1)])

    def readers(*committed: int | None) -> list[tuple[str, int]]:
        offsets = {f"T b:{queue}": each for queue, each in enumerate(committed)} | {"%RETRY%g b:0": 0}
        return [(row["name"], row["batch"]) for row in readers_of(events, offsets, 5)]

    assert readers(5, 7) == [
        ("query one", 2)
    ]  # the offsets of the batch before are published with the next one
    assert readers(9, 9) == [("query one", 2)]
    assert readers(5, 8) == [("query other", 1)]
    assert readers(9, 7) == readers(5) == readers(5, None) == []
    assert readers(0, 0) == []  # any group that has read nothing


def test_events_of_one_millisecond_are_in_the_order_of_the_log() -> None:
    events = [message(event(progress={"batchId": number}), place=number) for number in (1, 3, 0, 2)]
    assert [each["batch"] for each in parsed(events)] == [0, 1, 2, 3]
    (row,) = latest_of(parsed(events), 2)
    assert row["batch"] == 3


def test_the_state_of_a_query() -> None:
    def state(now_ms: int, *bodies: bytes) -> str:
        (row,) = latest_of(parsed([message(body, at) for at, body in enumerate(bodies, 1)]), now_ms)
        return str(row["state"])

    assert state(3, event(event="started"), event()) == "running"
    assert state(3, event(), event(event="idle")) == "idle"
    assert state(3, event(), event(event="terminated")) == "ended"
    assert state(3, event(), event(event="terminated", error="boom")) == "failed"
    assert state(sparkpages.SILENT_MS + 3, event()) == "silent"
    assert state(3, event(event="terminated", error="boom"), event(event="started")) == "running"


def test_events_of_a_page_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparkpages, "INFLATED_BYTES", 3 * len(event()))
    assert len(parsed([message(event(), at) for at in range(10)])) == 3
    assert parsed([message(event(), size=sparkpages.EVENT_BYTES + 1)]) == []
    assert parsed([message(event(name="n" * sparkpages.EVENT_BYTES), size=10)]) == []


# --- what a job server says ---


@pytest.mark.parametrize(
    "said",
    [
        b"[]",
        b'{"ready": true, "jobs": [{"name": "\xff"}]}',
        b'{"ready": true, "runs": [{"summary": %s' % (b'{"x":' * 100_000),
        b'{"ready": true, "jobs": [{"name": "a", "run": "b", "schedule": "c", "failures": 1%s}]}'
        % (b"0" * 400),
    ],
)
def test_what_no_job_server_says_is_no_fault_of_the_console(
    said: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def get(server: WebServer, target: str) -> bytes:
        return said

    monkeypatch.setattr(WebServer, "get", get)
    with pytest.raises(Trouble, match="not that of a job server of this version"):
        asyncio.run(jobpages.answer_of(WebServer("jobs", 80), "/", JobOverview))


@pytest.mark.parametrize(
    "change",
    [
        {"numInputRows": 10**400},
        {"numInputRows": -(10**400)},
        {"batchId": 10**400, "inputRowsPerSecond": 10**400, "durationMs": {"triggerExecution": 10**400}},
        {"stateOperators": [{"numRowsTotal": 10**400, "memoryUsedBytes": 10**400}]},
        {
            "sources": [
                {"endOffset": {"q": {"T": {"a:0": 10**400}}}, "latestOffset": {"q": {"T": {"a:0": 1}}}}
            ]
        },
        {"sources": [{"description": "\ud800", "endOffset": {"q": {"\ud800": {"\udfff:0": 1}}}}]},
        {"durationMs": {"\ud800": 1, "triggerExecution": 5}, "sink": {"description": "\ud800"}},
    ],
)
def test_no_figure_and_no_text_of_an_event_keeps_the_page_from_others(change: dict[str, Any]) -> None:
    bad = event(progress=change, **dict.fromkeys(("name", "runId", "app", "error"), "\ud800"), id="bad\ud800")
    good = event(progress={"batchId": 7, "numInputRows": 3}, id="good")
    rows = latest_of(parsed([message(bad, 1), message(good, 2)]), 3)
    site = {"section": "s", "visitor": visitors.Visitor(None, False), "here": "/", "place": "p", "now_ms": 3}
    listed = {"topic": "t", "queries": rows, "most": 9}
    assert b"/console/spark/good" in rendering.render("spark.html", {**site, **listed})
    found = next(row for row in rows if row["id"] != "good")
    one = {"topic": "t", "query": found, "charts": [], "batches": parsed([message(bad, 1)])}
    assert b"</html>" in rendering.render("query.html", {**site, **one})
