"""Pages of very many names, and of long items, are made in slices."""

from __future__ import annotations

import json
from dataclasses import dataclass

import anyio
import anyio.lowlevel
import pytest
from pydantic import TypeAdapter

from mqspark_server.web import turns
from mqspark_server.web.v1.asking import Paging, page_of
from tests.support.slices import sliced


@dataclass
class Item:
    name: str
    numbers: list[int]


@pytest.mark.parametrize("prefix", ["", "g-1", "nothing"])
def test_pages_of_names_that_come_in_any_order_are_those_of_sorted_ones(prefix: str) -> None:
    names = [f"g-{number * 7919 % 10_007}" for number in range(10_007)]
    given = [names[first : first + 100] for first in range(0, len(names), 100)] * 2
    wanted = sorted(name for name in names if name.startswith(prefix))
    seen, after, slices = list[str](), None, 0
    while True:
        (page, after), pauses = sliced(Paging(1_000, after).of_pages(given, prefix))
        slices += pauses
        assert page == wanted[len(seen) : len(seen) + 1_000]
        seen += page
        if after is None:
            break
    assert seen == wanted
    assert slices == max(1, -(-len(wanted) // 1_000)) * len(given)


@pytest.mark.parametrize("count", [0, 1, 30])
def test_a_page_is_written_item_by_item(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "SLICE_S", 0.0)  # each slice leaves the loop to others
    items, others = [Item(f"n{number}", [*range(number)]) for number in range(count)], 0

    async def beside() -> bytes:
        nonlocal others
        async with anyio.create_task_group() as group:

            async def count_turns() -> None:
                nonlocal others
                while True:
                    others += 1
                    await anyio.lowlevel.checkpoint()

            group.start_soon(count_turns)
            answer = await page_of(TypeAdapter(Item), items, "more" if count else None)
            group.cancel_scope.cancel()
        assert answer.media_type == "application/json"
        return bytes(answer.body)

    page = json.loads(anyio.run(beside))
    assert page == {
        "items": [{"name": each.name, "numbers": each.numbers} for each in items],
        "next": "more" if count else None,
    }
    assert others >= count
