"""The figures of a page of the console: those of its tiles and tables, and how many rows its list has."""

from __future__ import annotations

import html
import re
from dataclasses import dataclass

_TABLE = re.compile(
    r'aria-label="([^"]*)"[^>]*>\s*<table><thead><tr>(.*?)</tr></thead><tbody>(.*?)</tbody>', re.DOTALL
)
_PAIR = re.compile(r"<dt>(.*?)</dt><dd[^>]*>(.*?)</dd>", re.DOTALL)


@dataclass(frozen=True)
class ShownTable:
    numbers: tuple[str, ...]
    """The names of the columns of numbers."""
    rows: list[dict[str, str]]

    def figures(self) -> list[tuple[str, ...]]:
        """For each row its first column, and its numbers."""
        return [
            (next(iter(row.values())), *(row.get(name, "") for name in self.numbers)) for row in self.rows
        ]


@dataclass(frozen=True)
class ShownFigures:
    tiles: dict[str, str]
    tables: dict[str, ShownTable]
    """By their labels."""
    pager: str | None
    messages: int
    """How many are shown."""

    def everything(self) -> dict[str, object]:
        """All of them, to be compared as a whole: a figure that nobody expects is one too many."""
        tables = {
            name: [table.numbers, *table.figures()] for name, table in self.tables.items() if table.numbers
        }
        found = {"tiles": self.tiles, "tables": tables, "pager": self.pager, "messages": self.messages}
        return {name: each for name, each in found.items() if each}


def figures_of(page: str) -> ShownFigures:
    tiles = "".join(re.findall(r'<dl class="tiles">(.*?)</dl>', page, re.DOTALL))
    pager = re.search(r'<div class="pager">\s*<span>(.*?)</span>', page)
    tables = {}
    for label, head, body in _TABLE.findall(page):
        columns = re.findall(r'<th scope="col"( class="num")?[^>]*>(.*?)</th>', head)
        names = [_text(name) for _, name in columns]
        rows = [
            dict(zip(names, map(_text, re.findall(r"<t[hd]\b.*?</t[hd]>", row, re.DOTALL)), strict=False))
            for row in re.findall(r"<tr>(.*?)</tr>", body, re.DOTALL)
        ]
        tables[html.unescape(label)] = ShownTable(
            tuple(_text(name) for is_number, name in columns if is_number), rows
        )
    return ShownFigures(
        {_text(name): _text(value) for name, value in _PAIR.findall(tiles)},
        tables,
        None if pager is None else _text(pager[1]),
        page.count('<div class="message">'),
    )


def _text(markup: str) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]*>", "", markup)).split())
