"""The pages about the messages of a topic: found and paged, given to download, and tried on a filter."""

from __future__ import annotations

import asyncio
import csv
import io
import json
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from functools import partial
from itertools import islice
from typing import Annotated, Any, Literal

import msgspec

from mqspark.client.admin import AdminClient
from mqspark.errors import FilterFailed, InvalidMessage
from mqspark.filter.sql import compile_sql
from mqspark.filter.tags import parse_tags
from mqspark.message import MessageExt, MessageQueue, parse_number
from mqspark_server.actions.fields import ChoiceField, Line, LineField, TopicName
from mqspark_server.console.offsetfields import NOWHERE, OffsetsField, offsets_text, places_of
from mqspark_server.console.rendering import MESSAGES, path_of
from mqspark_server.console.site import Asking, Section, StreamedAnswer, View, tried
from mqspark_server.shown.bodies.bodyviews import VIEWS
from mqspark_server.shown.bodies.charsets import charset_of, decoded
from mqspark_server.shown.messagerow import MESSAGE_FIELDS, message_row
from mqspark_server.shown.nouns import WholeNumbers, place_of
from mqspark_server.survey.messagesurvey import Bounds, Places, Walked, Wanted, walk
from mqspark_server.survey.surveying import MAX_ROWS, Row, each_of
from mqspark_server.survey.topicsurvey import bounds_of

MAX_BY_KEY = 64
"""What one look-up by key finds at a broker (maxMsgsNumBatch)."""
MAX_DOWNLOADED = 10_000
MAX_DOWNLOADED_BYTES = 64 << 20
READ_AT_ONCE = 100
"""Messages of a download that are read before they are sent."""
TRIED = 100
"""Newest messages on which a filter is tried."""
NAMES_SHOWN = 6
"""Properties of a filter, with their values."""
MATCHES, NO_MATCH = "match", "no match"
NAMED = 3
"""Queues that a note names; it counts the others."""
_Offsets = Annotated[str, OffsetsField()]


class Search(msgspec.Struct, frozen=True):
    """Which messages of a topic, and from where on. ``before`` and ``after``: a page of an earlier one."""

    topic: TopicName
    by: Literal["latest", "offset", "time", "key"] = "latest"
    value: Line = ""
    queue: Line = ""
    """BROKER:NUMBER; all without it."""
    tag: Line = ""
    sql: Annotated[str, LineField(1_024)] = ""
    body: Line = ""
    """A text in it, whatever its case."""
    before: _Offsets = NOWHERE
    after: _Offsets = NOWHERE

    @property
    def wanted(self) -> Wanted:
        if self.sql and self.tag:
            raise InvalidMessage("an expression excludes a tag", field="sql")
        expression = self.sql or self.tag or "*"
        return Wanted(expression, bool(self.sql), self._has_text if self.body else None)

    @property
    def is_back(self) -> bool:
        """Whether it goes from newer messages to older ones."""
        return (self.by == "latest" and self.after == NOWHERE) or self.before != NOWHERE

    @property
    def newest_first(self) -> bool:
        return self.by in ("latest", "key")

    def query(self, **more: str) -> dict[str, str]:
        """The fields of this search, from elsewhere on, that do not have their defaults."""
        given = {name: getattr(self, name) for name in ("by", "value", "queue", "tag", "sql", "body")} | more
        default = {each.name: each.default for each in msgspec.structs.fields(type(self))}
        return {name: value for name, value in given.items() if value != default.get(name)}

    def address(self, **more: str) -> str:
        return path_of("topics", self.topic, "messages", **self.query(**more))

    def bounds_in(self, bounds: Bounds) -> Bounds:
        """The bounds of the queues that are searched: the chosen one, or the first MAX_ROWS. Raises InvalidMessage."""
        if not self.queue:
            return dict(islice(bounds.items(), MAX_ROWS))
        chosen = {queue: each for queue, each in bounds.items() if place_of(queue) == self.queue}
        if not chosen:
            raise InvalidMessage(f"the topic has no queue {self.queue}", field="queue")
        return chosen

    async def places(self, asked: Asking, bounds: Bounds) -> dict[MessageQueue, int]:
        """Where it begins, of each queue. Raises InvalidMessage, MQError."""
        given = self.before if self.before != NOWHERE else self.after
        if given != NOWHERE:
            return places_of(given, self.topic)
        if self.by == "latest":
            return {queue: high for queue, (_, high) in bounds.items()}
        if self.by == "offset":
            offset = parse_number(self.value)
            if offset is None:
                raise InvalidMessage("give an offset, a whole number", field="value")
            return dict.fromkeys(bounds, offset)
        at_ms = asked.visitor.zone.ms(self.value, "value")
        found = await each_of(bounds, lambda queue: asked.admin.offset_at(queue, at_ms))
        return dict(zip(bounds, found, strict=True))

    async def by_key(self, admin: AdminClient) -> list[MessageExt]:
        """The newest with that key or id, newest first. Raises InvalidMessage, MQError."""
        if self.sql:
            raise InvalidMessage("an expression excludes a key", field="sql")
        if not self.value:
            raise InvalidMessage("give the key to find", field="value")
        ask = partial(admin.messages_by_key, self.topic, self.value, max_messages=MAX_BY_KEY)
        found = await ask() or await ask(unique=True)
        found = [each for each in reversed(found) if self.tag in ("", each.tags)]
        found = [each for each in found if self.queue in ("", place_of(each))]
        if not self.body:
            return found
        return await asyncio.to_thread(lambda: [each for each in found if self._has_text(each)])

    def _has_text(self, message: MessageExt) -> bool:
        """May inflate the body."""
        try:
            body = bytes(message.body)
        except InvalidMessage:
            return False
        return self.body.casefold() in decoded(body, charset_of(body) or "utf-8").casefold()


class TopicMessages(Search, View, frozen=True):
    view: Annotated[str, ChoiceField(VIEWS)] = "auto"

    async def show(self, asked: Asking) -> Row:
        bounds = await bounds_of(asked.admin, self.topic)
        queues = [place_of(each) for each in islice(bounds, MAX_ROWS)]
        page = await tried(self._page(asked, bounds), found=[], notes=[], ways={}, download={}, looked_at=0)
        return {**page, "queues": queues, "queue_count": len(bounds)}

    async def _page(self, asked: Asking, bounds: Bounds) -> Row:
        if self.by == "key":
            return {"found": await self.by_key(asked.admin), "download": self.query()}
        chosen = self.bounds_in(bounds)
        begin = await self.places(asked, chosen)
        walked = await walk(asked.admin, chosen, begin, MESSAGES, self.wanted, is_back=self.is_back)
        here = offsets_text(begin)
        is_paged = bool(self.before or self.after)
        return {
            "found": walked.messages[:: -1 if self.is_back != self.newest_first else 1],
            "notes": deleted(chosen, begin, is_back=self.is_back) if is_paged else [],
            "ways": self._ways(walked, here, is_paged=is_paged),
            "download": self.query(**{"before" if self.is_back else "after": here}),
            "looked_at": 0 if self.wanted.is_all else walked.looked_at,
        }

    def _ways(self, walked: Walked, here: str, *, is_paged: bool) -> dict[str, str]:
        onward = offsets_text(walked.places)
        view, is_back = self.view, self.is_back
        older, newer = (onward, here) if is_back else (here, onward)
        ways = {
            "Newest" if self.by == "latest" else "From the beginning": is_paged and self.address(view=view),
            "Older": (walked.is_more or not is_back) and self.address(before=older, view=view),
            "Newer": (is_paged if is_back else walked.is_more) and self.address(after=newer, view=view),
        }
        return {label: way for label, way in ways.items() if way}


def deleted(bounds: Bounds, places: Places, *, is_back: bool) -> list[str]:
    """What has gone from the queues since these places were shown."""
    notes = []
    gone = {queue: low - places[queue] for queue, (low, _) in bounds.items() if places.get(queue, low) < low}
    if gone:
        names = ", ".join(
            f"{place_of(queue)} begins at {bounds[queue][0]:,}" for queue in islice(gone, NAMED)
        )
        more = f", and {len(gone) - NAMED:,} more queues" if len(gone) > NAMED else ""
        what = "All older messages" if is_back else f"{sum(gone.values()):,} of the messages that follow"
        notes.append(f"{what} of some queues have been deleted since: {names}{more}.")
    shorter = [queue for queue, (_, high) in bounds.items() if places.get(queue, high) > high]
    if shorter:
        names = ", ".join(place_of(queue) for queue in shorter[:NAMED])
        notes.append(f"Queues end before this place, as of a topic that was made anew: {names}.")
    return notes


# --- downloads ---

COLUMNS = (*MESSAGE_FIELDS, "problem")
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "'", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""A spreadsheet takes a cell that begins with one of these for a formula, or for an escaped text."""


class MessageFile(Search, StreamedAnswer, frozen=True):
    """Messages from the place of a page on, in the order in which it goes on."""

    most_open, are_open = 4, "downloads are being sent"
    format: Literal["jsonl", "csv"] = "jsonl"
    most: Annotated[int, WholeNumbers(1, MAX_DOWNLOADED)] = MESSAGES

    def kind(self) -> tuple[str, str]:
        types = {"jsonl": "application/x-ndjson", "csv": "text/csv"}
        return f"{types[self.format]}; charset=utf-8", f"{self.topic}.{self.format}"

    async def content(self, asked: Asking) -> AsyncGenerator[bytes, None]:
        size = 0
        async for some in self._some(asked):
            if not size:
                size += 1
                yield b"" if self.format == "jsonl" else _csv_line(COLUMNS)
            for line in await asyncio.to_thread(self._lines, some):
                if size > MAX_DOWNLOADED_BYTES:
                    yield self.broken(f"a file has at most {MAX_DOWNLOADED_BYTES >> 20} MiB: there is more")
                    return
                size += len(line)
                yield line

    async def _some(self, asked: Asking) -> AsyncGenerator[list[MessageExt], None]:
        if self.by == "key":
            yield (await self.by_key(asked.admin))[: self.most]
            return
        bounds = self.bounds_in(await bounds_of(asked.admin, self.topic))
        places: Mapping[MessageQueue, int] = await self.places(asked, bounds)
        wanted, left = self.wanted, self.most
        while left:
            count = min(READ_AT_ONCE, left)
            walked = await walk(asked.admin, bounds, places, count, wanted, is_back=self.is_back)
            yield walked.messages
            left -= len(walked.messages)
            places = walked.places
            if not walked.is_more:
                return

    def _lines(self, messages: Iterable[MessageExt]) -> list[bytes]:
        return [self._line(message_row(each)) for each in messages]

    def _line(self, row: Mapping[str, Any]) -> bytes:
        if self.format == "jsonl":
            return json.dumps(row, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
        return _csv_line(_cell(row.get(name)) for name in COLUMNS)

    def broken(self, problem: str) -> bytes:
        return self._line({"problem": problem})


def _csv_line(cells: Iterable[object]) -> bytes:
    out = io.StringIO()
    csv.writer(out).writerow(cells)
    return out.getvalue().encode("utf-8", "replace")


def _cell(value: object) -> object:
    """A text that begins like a formula has an apostrophe before it; properties are JSON."""
    if isinstance(value, str) and value.lstrip(" ").startswith(_FORMULA):
        return f"'{value}"
    if isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False)
    return "" if value is None else value


# --- filters ---


class FilterTrial(View, frozen=True):
    """A filter on the newest messages: what a consumer with it would get. Nobody consumes, and no group moves."""

    topic: TopicName
    kind: Literal["tags", "SQL92"] = "tags"
    expression: Annotated[str, LineField(1_024)] = ""

    async def show(self, asked: Asking) -> Row:
        bounds = await bounds_of(asked.admin, self.topic)
        return await tried(self._verdicts(asked, bounds), rows=[], names=[])

    async def _verdicts(self, asked: Asking, bounds: Bounds) -> Row:
        if not self.expression:
            return {}
        names, judge = self._judge()
        searched = dict(islice(bounds.items(), MAX_ROWS))
        walked = await walk(asked.admin, searched, None, TRIED, Wanted(), is_back=True)
        return {"names": names, "rows": await asyncio.to_thread(self._rows, walked.messages, names, judge)}

    def _judge(self) -> tuple[list[str], Callable[[MessageExt], str]]:
        """The properties that the filter uses, and what it says of a message. Raises InvalidMessage, InvalidFilter."""
        if self.kind == "tags":
            tags = parse_tags(self.expression)
            return [], lambda message: MATCHES if tags.matches(message.tags) else NO_MATCH
        compiled = compile_sql(self.expression)

        def judge(message: MessageExt) -> str:
            try:
                found = compiled.evaluate(message.properties)
            except FilterFailed as error:
                return f"no match: {error}"
            if found is None:
                return "no match: a property is missing or of another kind"
            return MATCHES if found else NO_MATCH

        return sorted(compiled.names)[:NAMES_SHOWN], judge

    def _rows(
        self, messages: Iterable[MessageExt], names: Iterable[str], judge: Callable[[MessageExt], str]
    ) -> list[Row]:
        return [
            {
                "message": each,
                "verdict": judge(each),
                "place": f"{place_of(each)} @ {each.queue_offset}",
                "path": Search(self.topic, "offset", str(each.queue_offset), place_of(each)).address(),
                "values": [each.properties.get(name) for name in names],
            }
            for each in messages
        ]


MESSAGE_PAGES = Section(
    "Topics",
    views={
        "/topics/{topic}/messages": (TopicMessages, "messages.html"),
        "/topics/{topic}/filter": (FilterTrial, "filter.html"),
    },
    streams={"/topics/{topic}/messages/download": MessageFile},
)
