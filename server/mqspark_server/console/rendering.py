"""Templates, static files and formats of the console. Everything that is shown is escaped and bounded."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any, get_args
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined, pass_context
from jinja2.runtime import Context

from mqspark.errors import InvalidMessage
from mqspark.message import KEYS, MESSAGE_TYPES, NEW_TOPIC_QUEUES, TAGS, UNIQ_KEY, MessageExt
from mqspark_server.shown import nouns
from mqspark_server.shown.bodies.bodyviews import NO_SCHEMAS, VIEWS, BodyView, KnownSchema, body_view
from mqspark_server.shown.deadletters import origin_of
from mqspark_server.survey.surveying import MAX_ROWS

ROOT = "/console"
HTML = "text/html; charset=utf-8"
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src "
    "'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",  # with no-referrer a browser would send forms with the origin null
    "cross-origin-opener-policy": "same-origin",
}
"""The headers of every answer with a page or a part of one."""
MESSAGES = 20
"""Messages of a page."""
PREVIEW_LENGTH = 80
PROPERTIES = 64
NONE = "\N{EN DASH}"
PROPERTY_LENGTH = 512
_LARGEST = 1 << 100
"""The largest whole number: more than sums of what brokers count."""
_TYPES = {
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "txt": "text/plain; charset=utf-8",
}


def path_of(*names: str, **query: str) -> str:
    """The address of a page, by its parts."""
    path = "/".join((ROOT, *(quote(each, safe="", errors="replace") for each in names)))
    return f"{path}?{urlencode(query)}" if query else path


def inside(where: str) -> str:
    """A path of the console."""
    if where != ROOT and not where.startswith((f"{ROOT}/", f"{ROOT}?")):
        return ROOT
    return quote(where, safe="/?&=%+:@!$'()*,;~-._")


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


def _short(value: object, most: int = PROPERTY_LENGTH) -> str:
    text = "" if value is None else str(value)
    return text if len(text) <= most else text[: most - 1] + "…"


def _value(value: object, key: str) -> str:
    """A cell of a preview."""
    if value is None or isinstance(value, bool):
        return "none" if value is None else "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:+,}" if key == "change" else f"{value:,}"
    return _short(value)


def _figure(form: Callable[[float], str]) -> Callable[[float | None], str]:
    return lambda value: NONE if value is None or not is_number(value) else form(value)


def is_number(value: float) -> bool:
    """Whether a figure of unknown origin can be shown: a whole number may be too large for any arithmetic."""
    return abs(value) <= _LARGEST if isinstance(value, int) else math.isfinite(value)


def _percent(value: float | None) -> str:
    return NONE if value is None or not 0 <= value <= 1 else f"{value:.0%}"


def _moment(form: Callable[[Context, int], str]) -> Callable[[Context, int | None], str]:
    """The text of a time in ms since the epoch."""

    @pass_context
    def shown(context: Context, ms: int | None) -> str:
        return NONE if ms is None or not 0 < ms < 1 << 53 else form(context, ms)

    return shown


def _until_text(left_s: float) -> str:
    return f"in {_span(left_s)}" if left_s > 0 else "now"


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
    made.globals |= {"static": _static_path, "root": ROOT, "views": VIEWS, "most_rows": MAX_ROWS}
    made.globals |= {"nouns": nouns, "topic_types": MESSAGE_TYPES, "new_queues": NEW_TOPIC_QUEUES}
    made.globals["modes_to_choose"] = get_args(nouns.ModeName)
    made.globals |= {"note": "", "mistake": "", "trouble": "", "kept": None, "links": ()}  # of pages without
    made.filters |= {
        "short": _short,
        "number": _figure("{:,.0f}".format),
        "rate": _figure("{:,.1f}".format),
        "percent": _percent,
        "time": _moment(lambda context, ms: context["visitor"].zone.text(ms)),
        "ago": _moment(lambda context, ms: f"{_span((context['now_ms'] - ms) / 1000)} ago"),
        "until": _moment(lambda context, ms: _until_text((ms - context["now_ms"]) / 1000)),
        "seconds": _seconds,
        "bytes": _figure(_bytes),
        "perm": nouns.perm_words,
        "value": _value,
        "sorted_by": lambda page, key, is_number: page.sorted_by(key, down=is_number),
        "path": lambda name: quote(name, safe="", errors="replace"),
    }
    return made


def chart(title: str, labels: Sequence[str], columns: Sequence[Sequence[float | None]]) -> dict[str, Any]:
    """Figures over time for ``chart`` of the templates: the data of its script, and a sentence for readers who cannot
    see it. ``columns``: times in seconds since the epoch, and the values of each label."""
    known = [
        (label, [value for value in values if value is not None])
        for label, values in zip(labels, columns[1:], strict=False)
    ]
    words = "; ".join(
        f"{label}: {values[-1]:,.0f} now, at most {max(values):,.0f}" for label, values in known if values
    )
    return {
        "title": title,
        "count": len(columns[0]) if columns else 0,
        "words": words,
        "data": json.dumps({"labels": list(labels), "columns": [list(each) for each in columns]}),
    }


def _span(seconds: float) -> str:
    """In one unit."""
    seconds = max(0, seconds)
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _seconds(value: float) -> str:
    """A duration: with tenths when it is short."""
    return f"{value:,.1f} s" if value < 60 else _span(value)


def _bytes(value: float) -> str:
    for unit, size in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if value >= size:
            return f"{value / size:,.1f} {unit}"
    return f"{value:,.0f} B"


def render(template: str, values: dict[str, Any]) -> bytes:
    """Runs in any thread, so that a long page does not hold up the loop."""
    found: list[MessageExt] = values.get("found", [])
    schemas = values.get("schemas", NO_SCHEMAS)
    more = {"messages": [message_row(each, values["look"].view, schemas) for each in found]}
    page = _environment().get_template(template).render(**values, **more)
    return page.encode("utf-8", "replace")  # a name may contain lone surrogates


def message_row(
    message: MessageExt, view: str, schemas: Mapping[int, KnownSchema] = NO_SCHEMAS
) -> dict[str, Any]:
    """What is shown of a message: texts and numbers, of a bounded size. ``view``: one of VIEWS; ``schemas``: by the ids
    that bodies name."""
    try:
        body = message.body or b""
    except InvalidMessage as error:
        size, shown = message.stored_body_bytes, BodyView(f"The body cannot be read: {error}", "nothing")
    else:
        size, shown = len(body), body_view(body, view, schemas)
    properties = [
        (_short(name), _short(value))
        for name, value in list(message.properties.items())[:PROPERTIES]
        if name not in (TAGS, KEYS, UNIQ_KEY)
    ]
    return {
        "place": f"{nouns.place_of(message)} @ {message.queue_offset}",
        "id": message.message_id[:PROPERTY_LENGTH],
        "origin": origin_of(message),
        "stored_ms": message.store_timestamp_ms,
        "born_ms": message.born_timestamp_ms,
        "born_host": message.born_host,
        "tags": None if message.tags is None else _short(message.tags),
        "key_text": None if message.keys is None else _short(message.keys),
        "reconsumed": message.reconsume_times,
        "preview": " ".join(shown.text[: PREVIEW_LENGTH * 2].split())[:PREVIEW_LENGTH],
        "properties": properties,
        "size": size,
        "body": shown._asdict(),
    }
