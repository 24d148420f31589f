"""The pages about Spark: streaming queries that read or write topics, by the progress that a listener publishes
(``pyspark_pymq.observe``).

Each message of the topic is one event of one query, as JSON. Writers of the topic are not trusted: malformed events are
left out.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable
from typing import Any

from fastapi import APIRouter, Request, Response

from mqspark.client.admin import AdminClient
from mqspark.errors import InvalidMessage, NoRoute
from mqspark.message import MessageExt, check_topic
from mqspark_server.console.clusteraccess import Trouble
from mqspark_server.console.data import Row
from mqspark_server.console.rendering import ROOT, chart, is_number
from mqspark_server.console.site import Asking, Site

PROGRESS_TOPIC = "mqspark_spark"
"""The default topic of ``observe``."""
EVENTS_READ = 2_000
"""The newest of each queue."""
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
_READ_AT_ONCE = 128
_SECTION = "Streaming queries"


def add_spark_pages(router: APIRouter, site: Site) -> None:
    @router.get(f"{ROOT}/spark")
    async def queries(request: Request) -> Response:
        async def work(asked: Asking) -> dict[str, Any]:
            topic = _topic(request)
            events = await _events(asked.admin, topic)
            rows = latest_of(events or (), time.time() * 1000)
            return {
                "topic": topic,
                "is_there": events is not None,
                "queries": rows[:MAX_QUERIES],
                "count": len(rows),
            }

        return await site.show(request, "spark.html", _SECTION, work)

    @router.get(f"{ROOT}/spark/{{query}}")
    async def query(query: str, request: Request) -> Response:
        async def work(asked: Asking) -> dict[str, Any]:
            topic = _topic(request)
            events = [each for each in await _events(asked.admin, topic) or () if each["id"] == query]
            if not events:
                raise Trouble(
                    404, "There is no such query", "None of the newest events belongs to this query."
                )
            steps = [each for each in events if each["event"] == "progress"]
            times = [each["at_ms"] / 1000 for each in steps]
            rates = chart(
                "Rows per second",
                ["in", "processed"],
                [times, [each["in_rate"] for each in steps], [each["out_rate"] for each in steps]],
            )
            durations = chart("Batch, ms", ["ms"], [times, [each["duration_ms"] for each in steps]])
            lags = chart("Lag, messages", ["lag"], [times, [each["lag"] for each in steps]])
            return {
                "topic": topic,
                "query": latest_of(events, time.time() * 1000)[0],
                "charts": [rates, durations, lags] if steps else [],
                "batches": steps[:-21:-1],
            }

        return await site.show(request, "query.html", _SECTION, work)


def _topic(request: Request) -> str:
    topic = request.query_params.get("topic", "").strip() or PROGRESS_TOPIC
    check_topic(topic)
    return topic


async def _events(admin: AdminClient, topic: str) -> list[Row] | None:
    """The newest, oldest first; None: there is no such topic."""
    try:
        stats = await admin.topic_stats(topic)
    except NoRoute:
        return None
    read: list[MessageExt] = []
    stored_bytes = 0
    for queue, bounds in list(stats.items())[:MAX_QUEUES]:
        end = bounds.max_offset
        while (
            end > bounds.min_offset and bounds.max_offset - end < EVENTS_READ and stored_bytes < STORED_BYTES
        ):
            begin = place = max(bounds.min_offset, end - _READ_AT_ONCE)
            while place < end:
                answer = await admin.read(queue, place, max_messages=end - place)
                read += [each for each in answer.messages if each.queue_offset < end]
                stored_bytes += sum(each.store_size_bytes for each in answer.messages)
                if answer.next_offset <= place:
                    break
                place = answer.next_offset
            end = begin
    return await asyncio.to_thread(parsed, read)


def parsed(read: list[MessageExt]) -> list[Row]:
    """In a thread, since bodies have to be inflated and parsed; the newest of them that fit."""
    found: list[Row] = []
    left = INFLATED_BYTES
    for message in sorted(read, key=lambda each: each.store_timestamp_ms, reverse=True):
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
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict) or not isinstance(document.get("id"), str):
        return None
    event = document.get("event")
    if event not in ("started", "progress", "idle", "terminated"):
        return None
    progress = document.get("progress")
    progress = progress if isinstance(progress, dict) else {}
    sources = [_source(each) for each in _dicts(progress.get("sources"))]
    lags = [each["lag"] for each in sources if each["lag"] is not None]
    durations = progress.get("durationMs")
    return {
        "id": _text(document["id"], 64),
        "run": _text(document.get("runId"), 64),
        "name": _text(document.get("name"), 200),
        "app": _text(document.get("app"), 200),
        "event": event,
        "error": _text(document.get("error"), 4_000),
        "at_ms": message.store_timestamp_ms,
        "batch": _number(progress.get("batchId")),
        "rows": _number(progress.get("numInputRows")),
        "in_rate": _number(progress.get("inputRowsPerSecond")),
        "out_rate": _number(progress.get("processedRowsPerSecond")),
        "duration_ms": _number(durations.get("triggerExecution")) if isinstance(durations, dict) else None,
        "durations": [
            (_text(name, 60), value)
            for name, value in (durations.items() if isinstance(durations, dict) else ())
            if _number(value) is not None
        ][:20],
        "sources": sources,
        "sink": _text((progress.get("sink") or {}).get("description"), 200)
        if isinstance(progress.get("sink"), dict)
        else "",
        "state_rows": sum(
            _number(each.get("numRowsTotal")) or 0 for each in _dicts(progress.get("stateOperators"))
        ),
        "state_bytes": sum(
            _number(each.get("memoryUsedBytes")) or 0 for each in _dicts(progress.get("stateOperators"))
        ),
        "lag": sum(lags) if lags else None,
    }


def _dicts(value: object) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)][:32] if isinstance(value, list) else []


def _source(source: dict[str, Any]) -> Row:
    end, latest = _queues(source.get("endOffset")), _queues(source.get("latestOffset"))
    lag = None
    if latest:
        lag = sum(max(0, offset - end.get(queue, 0)) for queue, offset in latest.items())
    return {
        "description": _source_name(source, end),
        "rows": _number(source.get("numInputRows")),
        "lag": lag,
        "offsets": [(queue, offset, latest.get(queue)) for queue, offset in sorted(end.items())][:256],
    }


def _source_name(source: dict[str, Any], queues: dict[str, int]) -> str:
    """The topics of a ``pymq`` source, since Spark describes every source in Python by the same words."""
    topics = sorted({queue.partition(" ")[0] for queue in queues if " " in queue})
    return _text(f"pymq: {', '.join(topics)}" if topics else source.get("description"), 200)


def _queues(offset: object) -> dict[str, int]:
    """Queue to offset, of an offset of a ``pymq`` source: ``{"q": {topic: {"broker:0": 7}}}``, perhaps as text. Empty
    for an offset of another source."""
    if isinstance(offset, str):
        try:
            offset = json.loads(offset)
        except (ValueError, RecursionError):
            return {}
    topics = offset.get("q") if isinstance(offset, dict) else None
    found: dict[str, int] = {}
    for topic, queues in topics.items() if isinstance(topics, dict) else ():
        for queue, each in queues.items() if isinstance(queues, dict) else ():
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
        row = rows.setdefault(each["id"], dict(each))
        if each["event"] == "progress":
            row |= each
        row |= {
            "event": each["event"],
            "at_ms": each["at_ms"],
            "name": each["name"] or row["name"],
            "run": each["run"],
        }
        row["error"] = each["error"]
    for row in rows.values():
        silent = now_ms - row["at_ms"] > SILENT_MS
        row["state"] = {"terminated": "failed" if row["error"] else "ended", "idle": "idle"}.get(
            row["event"], "running"
        )
        if silent and row["event"] != "terminated":
            row["state"] = "silent"
    return sorted(rows.values(), key=lambda row: (row["state"] not in ("running", "idle"), -row["at_ms"]))
