"""A message as commands print and read it: a row for JSON, format strings like kcat's, text for a terminal.

``mqspark produce --jsonl`` reads what ``mqspark consume -o jsonl`` prints.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

import click

from mqspark.message import SET_BY_BROKERS, Message, MessageExt
from mqspark_server.commands.output import Column, columns, json_text
from mqspark_server.commands.times import parse_duration_ms, parse_time_ms
from mqspark_server.shown.messagerow import MESSAGE_FIELDS, message_row

_BODY_IN_TABLE = 60
MESSAGE_COLUMNS = columns(
    "stored_ms, broker, queue, offset, tags, keys, message_id*, topic*, size BYTES",
    Column("body", "BODY", text=lambda body: "(binary)" if body is None else _shortened(body)),
)
_SENT = (
    "body",
    "body_base64",
    "keys",
    "tags",
    "properties",
    "delay",
    "delay_level",
    "deliver_at",
    "priority",
)
"""Keys of a row that describe a message to be sent."""


def _shortened(text: str) -> str:
    return text if len(text) <= _BODY_IN_TABLE else text[: _BODY_IN_TABLE - 3] + "..."


def parse_row(line: bytes, topic: str, number: int) -> Message:
    """Parse a line of JSON: ``body`` or ``body_base64``, and ``keys``, ``tags``, ``properties``, ``delay`` (``10s``),
    ``delay_level``, ``deliver_at``, ``priority``. Keys that only a stored message has are ignored. Raises
    click.UsageError."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise click.UsageError(f"line {number} is not JSON: {error}") from None
    if not isinstance(row, dict):
        raise click.UsageError(f"line {number} is not a JSON object")
    if unknown := sorted(set(row) - {*_SENT, *MESSAGE_FIELDS}):
        raise click.UsageError(
            f"line {number}: unknown key {unknown[0][:80]!r}; the keys are {', '.join(_SENT)}"
        )
    try:
        body = _body_of(row)
        properties = {str(key): str(value) for key, value in (row.get("properties") or {}).items()}
        keys = row.get("keys")
        return Message.of(
            topic,
            body,
            tags=row.get("tags"),
            keys=keys if isinstance(keys, str) or keys is None else [str(key) for key in keys],
            properties={key: value for key, value in properties.items() if key not in SET_BY_BROKERS},
            delay_ms=parse_duration_ms(str(row["delay"])) if row.get("delay") is not None else None,
            delay_level=int(row["delay_level"]) if row.get("delay_level") is not None else None,
            deliver_at_ms=parse_time_ms(str(row["deliver_at"]))
            if row.get("deliver_at") is not None
            else None,
            priority=int(row["priority"]) if row.get("priority") is not None else None,
        )
    except click.UsageError as error:
        raise click.UsageError(f"line {number}: {error.message}") from None
    except (ValueError, TypeError, AttributeError) as error:
        raise click.UsageError(f"line {number}: {error}") from None


def _body_of(row: Mapping[str, Any]) -> bytes:
    """The body: a text unchanged, any other JSON value as JSON. Raises ValueError."""
    if "body_error" in row:
        raise ValueError(f"the message has no body: {row['body_error']}")
    if "body_base64" in row:
        return base64.b64decode(row["body_base64"], validate=True)
    value = row.get("body")
    if value is None:
        raise ValueError("there is no body")
    return value.encode() if isinstance(value, str) else json.dumps(value, ensure_ascii=False).encode()


_ESCAPES = {"n": b"\n", "r": b"\r", "t": b"\t", "0": b"\0", "\\": b"\\", "e": b"\x1b"}
_FIELDS: Mapping[str, Callable[[MessageExt], bytes]] = {
    "s": lambda message: message.body,
    "S": lambda message: str(len(message.body)).encode(),
    "k": lambda message: (message.keys or "").encode(),
    "K": lambda message: str(len((message.keys or "").encode())).encode(),
    "g": lambda message: (message.tags or "").encode(),
    "t": lambda message: message.topic.encode(),
    "b": lambda message: message.broker_name.encode(),
    "p": lambda message: str(message.queue_id).encode(),
    "o": lambda message: str(message.queue_offset).encode(),
    "T": lambda message: str(message.store_timestamp_ms).encode(),
    "i": lambda message: message.message_id.encode(),
    "I": lambda message: message.offset_message_id.encode(),
    "h": lambda message: ",".join(
        f"{key}={value}" for key, value in sorted(message.properties.items())
    ).encode(),
    "J": lambda message: json_text(message_row(message)).encode(),
    "%": lambda message: b"%",
}


def parse_format(text: str) -> Callable[[MessageExt], bytes]:
    """Parse a format: %s body, %S its size, %k keys, %g tag, %t topic, %b broker, %p queue, %o offset, %T store time
    in ms, %i id, %I offset id, %h properties, %J a JSON object, %%; \\n \\r \\t \\0 \\\\ \\xFF. Raises
    click.UsageError.
    """
    parts: list[bytes | Callable[[MessageExt], bytes]] = []
    place = 0
    while place < len(text):
        mark, after = text[place], text[place + 1 : place + 2]
        if mark == "%":
            if after not in _FIELDS:
                raise click.UsageError(f"format: %{after} is not one of %{' %'.join(_FIELDS)}")
            parts.append(_FIELDS[after])
            place += 2
        elif mark == "\\" and after == "x":
            try:
                parts.append(bytes.fromhex(text[place + 2 : place + 4]))
            except ValueError:
                raise click.UsageError("format: \\x needs two hexadecimal digits") from None
            place += 4
        elif mark == "\\" and after in _ESCAPES:
            parts.append(_ESCAPES[after])
            place += 2
        else:
            parts.append(mark.encode())
            place += 1
    return lambda message: b"".join(part if isinstance(part, bytes) else part(message) for part in parts)


def write_bytes(content: bytes) -> None:
    """Write to standard output: unchanged into a pipe or file, escaped on a terminal because of control codes."""
    if sys.stdout.isatty():
        text = content.decode(errors="backslashreplace")
        shown = (c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)
        sys.stdout.write("".join(shown))
    else:
        sys.stdout.buffer.write(content)
