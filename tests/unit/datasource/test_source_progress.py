"""What Spark's progress says of a pymq source."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from mqspark.message import MessageQueue
from pyspark_pymq import source_progress


def offset(**topics: dict[str, int]) -> dict[str, Any]:
    return {"v": 1, "q": topics}


SOURCE = {
    "description": "PythonMicroBatchStream@1",
    "startOffset": offset(B={"a:0": 10, "a:1": 0}),
    "endOffset": offset(B={"a:0": 15, "a:1": 3}, A={"a:0": 7}) | {"from": {"A": {"a:0": 5}}},
    "latestOffset": offset(B={"a:0": 40, "a:1": 3}, A={"a:0": 9}),
    "numInputRows": 9,
    "processedRowsPerSecond": 2.7,
}


@pytest.mark.parametrize("form", ["mapping", "json", "object"])
def test_lag_and_messages(form: str) -> None:
    # Spark has the offsets as objects or, in its own classes, as text.
    document: Any = {"sources": [SOURCE, {"description": "Kafka", "endOffset": {"t": {"0": 1}}}]}
    if form != "mapping":
        document["sources"][0] = SOURCE | {"endOffset": json.dumps(SOURCE["endOffset"])}
        document = json.dumps(document)
    (found,) = source_progress(SimpleNamespace(json=document) if form == "object" else document)
    assert found.topics == ("A", "B")
    assert (found.messages, found.rows, found.lag_messages) == (5 + 3 + 2, 9, 25 + 0 + 2)
    assert found.catch_up_s == pytest.approx(10)
    assert found.ends[MessageQueue("B", "a", 0)] == 15
    assert str(found) == "pymq[A, B]: 10 messages, 27 behind"


def test_what_is_not_known() -> None:
    (first,) = source_progress({"sources": [{"startOffset": None, "endOffset": offset(T={"a:0": 4})}]})
    assert (first.messages, first.lag_messages, first.catch_up_s) == (0, None, None)
    assert str(first) == "pymq[T]: 0 messages"
    many = {"endOffset": offset(**{f"T{n}": {"a:0": 1} for n in range(8)})}
    assert str(source_progress({"sources": [many]})[0]).startswith("pymq[T0, T1, T2, T3, T4 and 3 more]")


@pytest.mark.parametrize(
    "progress",
    [
        None,
        {},
        {"sources": [{"endOffset": None}]},
        {"sources": [{"endOffset": "no json"}]},
        '{"sources": [{"endOffset": 5}]}',
    ],
)
def test_sources_of_others(progress: Any) -> None:
    assert source_progress(progress) == []
