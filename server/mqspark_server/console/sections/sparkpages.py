"""The pages about Spark: streaming queries that read or write topics, by the progress that a listener publishes
(``pyspark_pymq.observe``).

Each message of the topic is one event of one query, as JSON. Writers of the topic are not trusted: malformed events are
left out.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from mqspark.client.admin import AdminClient
from mqspark.errors import InvalidMessage, NoRoute
from mqspark.message import MessageExt
from mqspark_server.actions.fields import GroupName, Id, TopicName
from mqspark_server.console.clusteraccess import Trouble
from mqspark_server.console.rendering import chart, is_number
from mqspark_server.console.site import Asking, Section, View
from mqspark_server.survey.groupsurvey import offset_rows
from mqspark_server.survey.messagesurvey import Wanted, walk
from mqspark_server.survey.surveying import Row
from mqspark_server.survey.topicsurvey import bounds_of

PROGRESS_TOPIC = "mqspark_spark"
"""The default topic of ``observe``."""
EVENTS_READ = 2_000
"""The newest of each queue."""
EVENTS_OF_GROUP = 64
"""The same, for the page of a group."""
MAX_QUEUES = 8
STORED_BYTES = 16 << 20
INFLATED_BYTES = 64 << 20
"""Limit of all events of a page; writers of the topic choose their size."""
EVENT_BYTES = 256 * 1024
"""The most of one event; ``observe`` writes at most a quarter of it."""
MAX_QUERIES = 200
MAX_OFFSETS = 4_096
SILENT_MS = 120_000
"""A query without events for this time is shown as silent."""
_CHARTS = {
    "Rows per second": {"in": "in_rate", "processed": "out_rate"},
    "Batch, ms": {"ms": "duration_ms"},
    "Lag, messages": {"lag": "lag"},
}
"""By their titles the figures of an event, by their labels."""


class QueryTable(View, frozen=True):
    topic: TopicName = PROGRESS_TOPIC

    async def show(self, asked: Asking) -> Row:
        events = await _events(asked.admin, self.topic)
        return {"queries": latest_of(events, asked.now_ms), "most": MAX_QUERIES}


class OneQuery(View, frozen=True):
    query: Id
    topic: TopicName = PROGRESS_TOPIC

    async def show(self, asked: Asking) -> Row:
        events = [each for each in await _events(asked.admin, self.topic) if each["id"] == self.query]
        if not events:
            raise Trouble(404, "There is no such query", "None of the newest events belongs to this query.")
        steps = [each for each in events if each["event"] == "progress"]
        times = [each["at_ms"] / 1000 for each in steps]
        charts = [
            chart(title, [*series], [times, *([each[key] for each in steps] for key in series.values())])
            for title, series in _CHARTS.items()
            if steps
        ]
        return {"query": latest_of(events, asked.now_ms)[0], "charts": charts, "batches": steps[:-21:-1]}


class SparkReaders(View, frozen=True):
    """A part of the page of a group, which requests it once: the queries that read as this group. A query without its
    group's name in any event is known by the offsets: it publishes as the group's what its batches have reached."""

    group: GroupName

    async def show(self, asked: Asking) -> Row:
        offsets = await offset_rows(asked.admin, self.group)
        committed = {
            f"{each['topic']} {each['broker']}:{each['queue']}": each["committed"] for each in offsets
        }
        events = await _events(asked.admin, PROGRESS_TOPIC, EVENTS_OF_GROUP)
        return {"readers": readers_of(events, committed, asked.now_ms)[:MAX_QUERIES]}


def readers_of(events: Sequence[Row], committed: Mapping[str, int | None], now_ms: int) -> list[Row]:
    """The queries one of whose batches ended where the group is in every queue, as rows of ``latest_of``."""
    found: set[str] = set()
    for event in events:
        for source in event["sources"]:
            ends = {queue: end for queue, end, _ in source["offsets"]}
            if any(ends.values()) and all(committed.get(queue) == end for queue, end in ends.items()):
                found.add(event["id"])
    return latest_of([each for each in events if each["id"] in found], now_ms)


SPARK_PAGES = Section(
    "Streaming queries",
    views={"/spark": (QueryTable, "spark.html"), "/spark/{query}": (OneQuery, "query.html")},
)


async def _events(admin: AdminClient, topic: str, most: int = EVENTS_READ) -> list[Row]:
    """The newest, oldest first; none of a topic that is not there. ``most``: of each queue."""
    try:
        bounds = await bounds_of(admin, topic)
    except NoRoute:
        return []
    queues = islice(bounds.items(), MAX_QUEUES)
    bounds = {queue: (max(low, high - most), high) for queue, (low, high) in queues}
    wanted = Wanted(most_bytes=STORED_BYTES)
    read = await walk(admin, bounds, None, len(bounds) * most, wanted, is_back=True)
    return await asyncio.to_thread(parsed, read.messages)


def parsed(read: list[MessageExt]) -> list[Row]:
    """In a thread, since bodies have to be inflated and parsed; the newest of them that fit."""
    found: list[Row] = []
    left = INFLATED_BYTES
    # Events of one millisecond may be in several queues: the log of a broker has them in their order.
    read = sorted(read, key=lambda each: (each.store_timestamp_ms, each.physical_offset), reverse=True)
    for message in read:
        if left <= 0:
            break
        try:
            body = message.body if message.stored_body_bytes <= EVENT_BYTES else b""
        except InvalidMessage:
            continue
        left -= len(body)
        event = _event(message, body) if len(body) <= EVENT_BYTES else None
        if event is not None:
            found.append(event)
    return found[::-1]


def _event(message: MessageExt, body: bytes) -> Row | None:
    document = _parsed(body)
    event = document.get("event")
    if not isinstance(document.get("id"), str) or event not in ("started", "progress", "idle", "terminated"):
        return None
    progress = _dict(document.get("progress"))
    durations, operators = _dict(progress.get("durationMs")), _dicts(progress.get("stateOperators"))
    sources = [_source(each) for each in _dicts(progress.get("sources"))]
    lags = [each["lag"] for each in sources if each["lag"] is not None]
    return {
        "id": _text(document["id"], 64),
        "name": _text(document.get("name"), 200),
        "app": _text(document.get("app"), 200),
        "event": event,
        "error": _text(document.get("error"), 4_000),
        "at_ms": message.store_timestamp_ms,
        "batch": _number(progress.get("batchId")),
        "rows": _number(progress.get("numInputRows")),
        "in_rate": _number(progress.get("inputRowsPerSecond")),
        "out_rate": _number(progress.get("processedRowsPerSecond")),
        "duration_ms": _number(durations.get("triggerExecution")),
        "sources": sources,
        "sink": _text(_dict(progress.get("sink")).get("description"), 200),
        "state_rows": sum(_number(each.get("numRowsTotal")) or 0 for each in operators),
        "state_bytes": sum(_number(each.get("memoryUsedBytes")) or 0 for each in operators),
        "lag": sum(lags) if lags else None,
    }


def _parsed(text: str | bytes) -> dict[str, Any]:
    try:
        return _dict(json.loads(text))
    except (ValueError, RecursionError):
        return {}


def _dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _dicts(value: object) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)][:32] if isinstance(value, list) else []


def _source(source: dict[str, Any]) -> Row:
    end, latest = _queues(source.get("endOffset")), _queues(source.get("latestOffset"))
    # Spark describes every source in Python by the same words: those of pymq are called by their topics.
    topics = sorted({queue.partition(" ")[0] for queue in end if " " in queue})
    lag = sum(max(0, offset - end.get(queue, 0)) for queue, offset in latest.items())
    return {
        "description": _text(f"pymq: {', '.join(topics)}" if topics else source.get("description"), 200),
        "rows": _number(source.get("numInputRows")),
        "lag": lag if latest else None,
        "offsets": [(queue, offset, latest.get(queue)) for queue, offset in sorted(end.items())][:256],
    }


def _queues(offset: object) -> dict[str, int]:
    """Queue to offset, of an offset of a ``pymq`` source: ``{"q": {topic: {"broker:0": 7}}}``, perhaps as text. Empty
    for an offset of another source."""
    found: dict[str, int] = {}
    document = _parsed(offset) if isinstance(offset, str) else _dict(offset)
    for topic, queues in _dict(document.get("q")).items():
        for queue, each in _dict(queues).items():
            if isinstance(each, int) and _number(each) is not None and len(found) < MAX_OFFSETS:
                found[f"{_text(topic, 255)} {_text(queue, 255)}"] = each
    return found


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if is_number(value) else None


def _text(value: object, length: int) -> str:
    """Text of an event. JSON may have unpaired surrogates, which no path and no page can have."""
    return str(value or "")[:length].encode("utf-8", "replace").decode()


def latest_of(events: Iterable[Row], now_ms: float) -> list[Row]:
    """One row a query: its last progress, and its state now."""
    rows: dict[str, Row] = {}
    for each in events:
        before = rows.get(each["id"], each)
        figures = each if each["event"] == "progress" else before
        now = {key: each[key] for key in ("event", "at_ms", "error")}
        rows[each["id"]] = {**figures, **now, "name": each["name"] or before["name"]}
    for row in rows.values():
        row["state"] = _state(row, now_ms)
    return sorted(rows.values(), key=lambda row: (row["state"] not in ("running", "idle"), -row["at_ms"]))


def _state(last: Row, now_ms: float) -> str:
    if last["event"] == "terminated":
        return "failed" if last["error"] else "ended"
    if now_ms - last["at_ms"] > SILENT_MS:
        return "silent"
    return "idle" if last["event"] == "idle" else "running"
