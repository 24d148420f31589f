"""Templates, static files and formats of the console. Everything that is shown is escaped and bounded."""

from __future__ import annotations

import hashlib
import json
import math
from datetime import datetime
from functools import cache
from importlib import resources
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined

from mqspark.errors import InvalidMessage
from mqspark.message import MessageExt

__all__ = ["HEADERS", "HTML", "ROOT", "render", "static_file"]

ROOT = "/console"
HTML = "text/html; charset=utf-8"
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src "
    "'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
}
"""Of every answer with a page or a part of one."""
BODY_BYTES = 16 * 1024
"""Of each message on a page."""
PREVIEW_LENGTH = 80
PROPERTIES = 64
NONE = "\N{EN DASH}"
PROPERTY_LENGTH = 512
_TYPES = {
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "txt": "text/plain; charset=utf-8",
}


@cache
def _static() -> tuple[dict[str, str], dict[str, tuple[bytes, str]]]:
    """Name → path with a hash; the last part of that path → content and media type."""
    paths: dict[str, str] = {}
    files: dict[str, tuple[bytes, str]] = {}
    for file in (resources.files(__package__) / "static").iterdir():
        content = file.read_bytes()
        stem, _, kind = file.name.rpartition(".")
        hashed = f"{stem}.{hashlib.sha256(content).hexdigest()[:16]}.{kind}"
        paths[file.name] = f"{ROOT}/static/{hashed}"
        files[hashed] = content, _TYPES[kind]
    return paths, files


def static_file(name: str) -> tuple[bytes, str] | None:
    return _static()[1].get(name)


def _static_path(name: str) -> str:
    return _static()[0][name]


def _short(value: object) -> str:
    text = "" if value is None else str(value)
    return text if len(text) <= PROPERTY_LENGTH else text[: PROPERTY_LENGTH - 1] + "…"


def _count(value: float | None) -> str:
    return NONE if value is None or not math.isfinite(value) else f"{value:,.0f}"


def _rate(value: float | None) -> str:
    return NONE if value is None or not math.isfinite(value) else f"{value:,.1f}"


def _percent(value: float | None) -> str:
    return NONE if value is None or not 0 <= value <= 1 else f"{value:.0%}"


def _time(ms: int | None) -> str:
    if ms is None or not 0 < ms < 1 << 53:
        return NONE
    try:
        return datetime.fromtimestamp(ms / 1000).astimezone().isoformat(sep=" ", timespec="milliseconds")
    except (OverflowError, ValueError, OSError):
        return str(ms)


@cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader(__package__ or "", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.globals |= {"static": _static_path, "root": ROOT}
    made.filters |= {
        "short": _short,
        "number": _count,
        "rate": _rate,
        "percent": _percent,
        "time": _time,
        "path": lambda name: quote(name, safe=""),
    }
    return made


def render(template: str, values: dict[str, Any]) -> bytes:
    """Runs in any thread, so that a long page does not hold up the loop."""
    found: list[MessageExt] = values.get("found", [])
    more = {"messages": [_message(each, values["look"].view) for each in found]}
    page = _environment().get_template(template).render(**values, **more)
    return page.encode("utf-8", "replace")  # a name may hold what is no text


def _message(message: MessageExt, view: str) -> dict[str, Any]:
    shown = 0
    cut = False
    try:
        body = message.body or b""
    except InvalidMessage as error:
        text, size = f"The body cannot be read: {error}", message.stored_body_bytes
    else:
        size, shown = len(body), min(len(body), BODY_BYTES)
        cut = shown < size
        text = _body(bytes(body[:BODY_BYTES]), view, is_whole=not cut)
    properties = [
        (_short(name), _short(value)) for name, value in list(message.properties.items())[:PROPERTIES]
    ]
    return {
        "place": f"{message.broker_name}:{message.queue_id} @ {message.queue_offset}",
        "stored_ms": message.store_timestamp_ms,
        "tags": message.tags,
        "preview": " ".join(text[: PREVIEW_LENGTH * 2].split())[:PREVIEW_LENGTH],
        "properties": properties,
        "body": text,
        "size": size,
        "shown": shown,
        "cut": cut,
    }


def _body(body: bytes, view: str, *, is_whole: bool) -> str:
    if view == "json" and is_whole:
        try:
            return json.dumps(json.loads(body), indent=2, ensure_ascii=False)[: 4 * BODY_BYTES]
        except (ValueError, RecursionError):
            return "The body is no JSON. As text:\n" + body.decode("utf-8", "replace")
    if view == "hex":
        lines = []
        for begin in range(0, len(body), 16):
            part = body[begin : begin + 16]
            letters = "".join(chr(each) if 32 <= each < 127 else "." for each in part)
            lines.append(f"{begin:06x}  {part.hex(' '):<47}  {letters}")
        return "\n".join(lines)
    return body.decode("utf-8", "replace")
