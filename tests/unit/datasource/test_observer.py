"""The progress of streaming queries as messages: what is published, how large, and that nothing waits for it."""

from __future__ import annotations

import json
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from mqspark import Message
from mqspark.errors import ConnectionLost
from mqspark_server.console.sections import sparkpages
from pyspark_pymq import observer
from pyspark_pymq.observer import MAX_MESSAGE_BYTES, ProgressPublisher, document_of
from tests.support.waiting import eventually

PROGRESS = {
    "batchId": 7,
    "numInputRows": 3,
    "durationMs": {"triggerExecution": 12},
    "sources": [{"description": "s", "endOffset": {"q": {"T": {"b:0": 5}}, "v": 1}}],
}


def event(kind: str) -> dict[str, Any]:
    ids = SimpleNamespace(id="i", runId="r", name="n", json=json.dumps(PROGRESS))
    given = {
        "progress": SimpleNamespace(progress=ids),
        "terminated": SimpleNamespace(id="i", runId="r", exception="boom"),
        "started": SimpleNamespace(id="i", runId="r", name="n"),
        "idle": SimpleNamespace(id="i", runId="r"),
    }
    return document_of(kind, given[kind], "app")


def test_what_is_published() -> None:
    assert event("progress") == {
        "event": "progress",
        "id": "i",
        "runId": "r",
        "name": "n",
        "app": "app",
        "progress": PROGRESS,
    }
    assert event("terminated")["error"] == "boom"
    assert event("started")["name"] == "n"
    assert event("idle")["name"] is None


class Sink:
    """Keeps what is sent; holds it up, or fails, as it is told."""

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.failing = False
        self.may_go = threading.Event()
        self.may_go.set()
        self.prepared = 0

    def send(self, message: Message) -> None:
        assert self.may_go.wait(30)
        if self.failing:
            raise ConnectionLost("nobody", "away")
        self.sent.append(message)

    def prepare(self) -> None:
        self.prepared += 1


def test_a_message_an_event_in_order() -> None:
    sink = Sink()
    publisher = ProgressPublisher(sink.send, sink.prepare, "P")
    for number in range(3):
        publisher.publish("i", {"event": "progress", "number": number})
    publisher.stop()
    assert [json.loads(message.body)["number"] for message in sink.sent] == [0, 1, 2]
    assert {(message.topic, message.keys) for message in sink.sent} == {("P", "i")}
    assert (publisher.published, publisher.dropped, sink.prepared) == (3, 0, 1)


def test_nothing_waits_for_a_slow_or_a_lost_cluster(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(observer, "MAX_WAITING", 4)
    sink = Sink()
    sink.may_go.clear()
    publisher = ProgressPublisher(sink.send, sink.prepare, "P")
    for _ in range(20):
        publisher.publish("i", {})
    assert publisher.dropped >= 15
    sink.may_go.set()
    eventually(lambda: publisher.published + publisher.dropped == 20)
    for sink.failing in (True, False):
        before = publisher.published + publisher.dropped
        for wanted in range(before + 1, before + 4):
            publisher.publish("i", {})
            eventually(lambda wanted=wanted: publisher.published + publisher.dropped == wanted)  # type: ignore[misc]
    publisher.stop()
    full, over, away, over_again = (record.getMessage() for record in caplog.records)
    assert "4 events wait already" in full
    assert "away" in away
    assert over.startswith("progress is published again; ")
    assert over_again == f"progress is published again; {publisher.dropped} events are lost in all"


@pytest.mark.parametrize(
    "large",
    [
        {"progress": {**PROGRESS, "sources": [{"description": "s", "endOffset": "x" * MAX_MESSAGE_BYTES}]}},
        {"progress": {**PROGRESS, "sources": [{"description": "d" * MAX_MESSAGE_BYTES}]}},
        {
            "progress": {**PROGRESS, "durationMs": "x" * 2 * MAX_MESSAGE_BYTES},
            "name": "n" * MAX_MESSAGE_BYTES,
        },
    ],
)
def test_a_message_has_a_limit(large: dict[str, Any]) -> None:
    sink = Sink()
    publisher = ProgressPublisher(sink.send, sink.prepare, "P")
    publisher.publish("i", {"event": "progress", "id": "i", **large})
    publisher.stop()
    (message,) = sink.sent
    assert len(message.body) <= MAX_MESSAGE_BYTES
    assert json.loads(message.body)["id"] == "i"


def test_both_sides_mean_the_same_topic() -> None:
    import inspect

    import pyspark_pymq

    assert inspect.signature(pyspark_pymq.observe).parameters["topic"].default == sparkpages.PROGRESS_TOPIC
