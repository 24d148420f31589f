"""The records of a trace topic, as rows. Facts: RocketMQ's TraceDataEncoder."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mqspark.message import MessageExt, parse_number

_FIELD, _RECORD = "\x01", "\x02"
_FIELDS = {
    "Pub": "what time region group topic id tags keys host size cost kind offset_id success client",
    "Recall": "what time region group topic id success",
    "SubBefore": "what time region group request id retries keys",
    "SubAfter": "what request id cost success keys code time group",
    "EndTransaction": "what time region group topic id tags keys host kind transaction state checked",
}
"""The names of the fields by the first one; older clients leave the last ones out."""
_WORDS = {
    "Pub": "sent",
    "Recall": "recalled",
    "SubBefore": "handed out",
    "SubAfter": "consumed",
    "EndTransaction": "decided",
}
_OUTCOMES = {"0": "success", "1": "time out", "2": "exception", "3": "returned null", "4": "failed"}
"""What a listener returned (ConsumeReturnType)."""


def trace_rows(messages: Iterable[MessageExt], message_id: str) -> list[dict[str, Any]]:
    """What the records say about one message, in the order of time."""
    rows = []
    for message in messages:
        for record in message.body.decode(errors="replace").split(_RECORD):
            values = record.strip().split(_FIELD)
            names = _FIELDS.get(values[0], "").split()
            fields = dict(zip(names, values, strict=False))
            if message_id in (fields.get("id"), fields.get("offset_id")):
                rows.append(_row(fields))
    groups = {row["request"]: row["group"] for row in rows if row["request"] and row["group"]}
    for row in rows:
        row["group"] = row["group"] or groups.get(row["request"])
    unique = {tuple(sorted((key, str(value)) for key, value in row.items())): row for row in rows}
    return sorted(unique.values(), key=lambda row: row["time_ms"] or 0)


def _row(fields: dict[str, str]) -> dict[str, Any]:
    success = fields.get("success")
    return {
        "time_ms": parse_number(fields.get("time")),
        "what": _WORDS[fields["what"]],
        "group": fields.get("group"),
        "topic": fields.get("topic"),
        "host": fields.get("host"),
        "success": None if success is None else success == "true",
        "cost_ms": parse_number(fields.get("cost")),
        "retries": parse_number(fields.get("retries")),
        "result": fields.get("state") or _OUTCOMES.get(fields.get("code", "")),
        "request": fields.get("request"),
        "offset_id": fields.get("offset_id"),
    }
