"""The output of commands: tables for people; JSON, JSON lines and YAML for programs.

Text from a cluster is escaped, so that a name cannot move a terminal's cursor. Programs get the same rows in every
format: keys in snake case, times in ms since the epoch.
"""

from __future__ import annotations

import os
import re
import sys
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, NamedTuple, Self, TypeVar

import click

from mqspark.base.logs import printable
from mqspark_server.commands.parameters import Option
from mqspark_server.shown.nouns import MAX_NAME

FORMATS = ("table", "wide", "json", "jsonl", "yaml")
OutputFormat = Annotated[str | None, click.Choice(FORMATS), Option("Output format.  [default: table]", "-o")]
Row = Mapping[str, Any]
T = TypeVar("T")
_MAX_CELL = MAX_NAME
"""A name is shown whole."""
MAX_LINE = 2_000
MAX_TEXT_LINE = 64 * 1024
"""The length of a text that is shown whole."""
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./@%-]*")
_WORDS = frozenset(["true", "false", "null", "yes", "no", "on", "off", "y", "n"])
_UNPRINTABLE = re.compile("[\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


class Column(NamedTuple):
    key: str
    title: str
    wide: bool = False
    """Whether the column is shown only in the wide table."""
    text: Callable[[Any], str] | None = None
    """Formats a value for the table."""


def columns(*fields: str | Column) -> tuple[Column, ...]:
    """Columns of fields by their keys, with commas between. ``key*`` is shown only in the wide table; ``key HEADING``
    has a heading of its own."""
    found: list[Column] = []
    for each in fields:
        found += [each] if isinstance(each, Column) else map(_column, each.split(", "))
    return tuple(found)


def row_of(columns: Sequence[Column], *values: Any) -> dict[str, Any]:
    """The values of all columns, in their order."""
    return {column.key: value for column, value in zip(columns, values, strict=True)}


def _column(text: str) -> Column:
    name, _, heading = text.partition(" ")
    key = name.removesuffix("*")
    return Column(
        key, heading or _HEADINGS.get(key, key.replace("_", " ").upper()), name != key, _TEXTS.get(key)
    )


class Output:
    """Prints in one of FORMATS. ``asked`` is None when the user did not choose one: then a table is printed."""

    def __init__(self, asked: str | None = None) -> None:
        self.asked = asked
        self.format = asked or "table"

    @property
    def is_table(self) -> bool:
        return self.format in ("table", "wide")

    @property
    def is_wide(self) -> bool:
        return self.format == "wide"

    def rows(self, columns: Sequence[Column], rows: Iterable[Row], *, empty: str = "nothing") -> None:
        """Print a list. ``empty`` is printed to standard error when a table has no row."""
        if not self.is_table:
            with self.listing() as listing:
                for row in rows:
                    listing.add(row)
        elif all_rows := list(rows):
            for line in self.table(columns, all_rows):
                click.echo(line)
        else:
            click.echo(f"({empty})", err=True)

    def record(self, row: Row) -> None:
        """Print one object, one line per value."""
        if self.format in ("json", "jsonl"):
            click.echo(json_text(row, indent=2 if self.format == "json" else None))
        elif self.format == "yaml":
            for line in yaml_lines(row):
                click.echo(line)
        else:
            width = max((len(key) for key in row), default=0)
            for key, value in row.items():
                for number, text in enumerate(_texts(key, value)):
                    click.echo(f"{_bold(key.ljust(width)) if not number else ' ' * width}  {text}")

    def done(self, text: str, row: Row) -> None:
        """Report a change: a sentence for people, a row for programs. For several changes use ``listing``."""
        if self.is_table:
            click.echo(printable(text, MAX_LINE))
        else:
            self.record(row)

    def listing(self) -> Listing:
        """A context manager for a list whose rows are printed as they become known, as one document."""
        return Listing(self)

    def heading(self, text: str) -> None:
        """Print a line above another table; nothing for programs."""
        if self.is_table:
            click.echo(f"\n{_bold(printable(text, MAX_LINE))}")

    def lines(self, lines: Iterable[str]) -> None:
        """Print a text of several lines, which keep their spaces; nothing for programs."""
        if self.is_table:
            for line in lines:
                click.echo(printable(line, MAX_TEXT_LINE))

    def table(self, columns: Sequence[Column], rows: Sequence[Row]) -> list[str]:
        shown = [column for column in columns if self.is_wide or not column.wide]
        cells = [[_cell(column, row.get(column.key)) for column in shown] for row in rows]
        titles = [column.title for column in shown]
        widths = [max(map(_width, texts)) for texts in zip(titles, *cells, strict=True)]
        numeric = [
            column.text is None
            and all(isinstance(row.get(column.key), (int, float, type(None))) for row in rows)
            for column in shown
        ]
        return [
            _bold(_joined(titles, widths, numeric)),
            *(_joined(line, widths, numeric) for line in cells),
        ]


class Listing:
    """Rows that are printed one after the other, so that a later failure does not lose them. Programs get the list that
    ``Output.rows`` prints; people get the sentences."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._output.format == "json":
            click.echo("\n]" if self._count else "[]")
        elif self._output.format == "yaml" and not self._count:
            click.echo("[]")

    def add(self, row: Row, text: str | None = None) -> None:
        """``text``: the sentence for people; None prints nothing."""
        shape = self._output.format
        if shape == "json":
            click.echo(",\n" if self._count else "[\n", nl=False)
            click.echo("\n".join("  " + line for line in json_text(row, indent=2).split("\n")), nl=False)
        elif shape == "jsonl":
            click.echo(json_text(row))
        elif shape == "yaml":
            for line in yaml_lines([row]):
                click.echo(line)
        elif text is not None:
            click.echo(printable(text, MAX_LINE))
        self._count += 1


def remark(text: str) -> None:
    """Print one line to standard error."""
    click.echo(printable(text, MAX_LINE), err=True)


def cut(rows: Sequence[T], count: int, advice: str, *, newest: bool = False) -> Sequence[T]:
    """The first ``count`` rows, or the newest, which are the last; with a line on standard error when there are more.
    ``advice``: how to get the others."""
    if len(rows) <= count:
        return rows
    which = f"{'newest' if newest else 'first'} {count:,} {'is' if count == 1 else 'are'} shown"
    click.echo(f"mqspark: there are more, only the {which}: {advice}", err=True)
    return rows[-count:] if newest else rows[:count]


def counted(number: int, noun: str) -> str:
    """``1 message``, ``2 messages``: a noun with a regular plural."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def as_time(ms: Any) -> str:
    """A time in ms since the epoch in the local zone; "-" for none."""
    if not isinstance(ms, int) or not 0 < ms < 1 << 53:
        return "-"
    try:
        return datetime.fromtimestamp(ms / 1000).astimezone().isoformat(sep=" ", timespec="milliseconds")
    except (OverflowError, ValueError, OSError):
        return str(ms)


def _offset(value: int | None) -> str:
    return "-" if value is None or value < 0 else str(value)


_HEADINGS = {
    "client_id": "CLIENT",
    "disk_ratio": "DISK",
    "error": "",
    "from_offset": "FROM",
    "in_day": "IN TODAY",
    "in_minute": "IN/MIN",
    "in_tps": "IN/S",
    "lag_change": "CHANGE/S",
    "last_ms": "LAST MESSAGE",
    "message_id": "ID",
    "min_offset": "FIRST",
    "origin_topic": "FROM TOPIC",
    "out_day": "OUT TODAY",
    "out_minute": "OUT/MIN",
    "out_tps": "OUT/S",
    "read_today": "OUT TODAY",
    "stored_ms": "STORED",
    "stored_today": "IN TODAY",
    "time_ms": "TIME",
    "to_offset": "TO",
}
"""The names of fields that are not called as their keys."""

_TEXTS: dict[str, Callable[[Any], str]] = {
    **dict.fromkeys(("at_ms", "last_ms", "next_ms", "saved_ms", "stored_ms", "time_ms"), as_time),
    **dict.fromkeys(("started_ms", "last_finished_ms"), as_time),
    "change": lambda value: f"{value:+d}",
    "committed": _offset,
    "disk_ratio": lambda value: "-" if value is None else f"{value:.0%}",
    "error": lambda value: value or "",
    "from_offset": _offset,
}
"""How people read fields, where that differs from their values."""


def json_text(value: Any, indent: int | None = None) -> str:
    """JSON for a terminal: readable, and without control characters."""
    import json

    text = json.dumps(value, ensure_ascii=False, indent=indent, default=str)
    return _UNPRINTABLE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def yaml_lines(value: Any, indent: str = "") -> list[str]:
    """YAML of a JSON value: blocks for lists and tables, text quoted as in JSON where it needs quotes."""
    if isinstance(value, Mapping) and value:
        lines = []
        for key, item in value.items():
            if isinstance(item, (Mapping, list, tuple)) and item:
                lines.append(f"{indent}{_scalar(str(key))}:")
                lines += yaml_lines(item, indent + "  ")
            else:
                lines.append(f"{indent}{_scalar(str(key))}: {_scalar(item)}")
        return lines
    if isinstance(value, (list, tuple)) and value:
        lines = []
        for item in value:
            block = yaml_lines(item, indent + "  ")
            lines += [f"{indent}- {block[0].lstrip()}", *block[1:]]
        return lines
    return [f"{indent}{_scalar(value)}"]


def _scalar(value: Any) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    return json_text(value)


def _cell(column: Column, value: Any) -> str:
    if column.text is not None:
        return printable(column.text(value), _MAX_CELL)
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.1f}"
    if isinstance(value, (list, tuple)):
        value = ", ".join(map(str, value))
    return printable(str(value), _MAX_CELL)


def _texts(key: str, value: Any) -> list[str]:
    if isinstance(value, Mapping):
        return [printable(f"{name}={item}", 2_000) for name, item in value.items()] or ["-"]
    if key.endswith("_ms") and isinstance(value, int):
        return [as_time(value) if value > 10**11 else str(value)]
    if isinstance(value, (list, tuple)):
        return [printable(str(item), 2_000) for item in value] or ["-"]
    if isinstance(value, str) and "\n" in value:
        return [printable(line, 100_000) for line in value.split("\n")]
    if isinstance(value, bool) or value is None:
        return ["-" if value is None else "yes" if value else "no"]
    return [printable(str(value), 100_000)]


def _width(text: str) -> int:
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text
    )


def _joined(cells: Sequence[str], widths: Sequence[int], numeric: Sequence[bool]) -> str:
    padded = []
    for cell, width, is_number in zip(cells, widths, numeric, strict=True):
        gap = " " * (width - _width(cell))
        padded.append(gap + cell if is_number else cell + gap)
    return "  ".join(padded).rstrip()


def _bold(text: str) -> str:
    if os.environ.get("NO_COLOR") or not sys.stdout.isatty():
        return text
    return click.style(text, bold=True)
