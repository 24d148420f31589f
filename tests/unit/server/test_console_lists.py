"""Lists of the console: sorted by a column, paged for thousands, and asked for no more than is shown or sorted."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from mqspark.errors import ClientError, InvalidMessage
from mqspark_server.console.rendering import render
from mqspark_server.console.site import MAX_SORTED, PAGE_ROWS, Listed, ListView
from mqspark_server.console.visitors import Visitor
from mqspark_server.survey.surveying import ROWS_AT_ONCE, Row, let_go, sorted_in_slices


class Numbers(ListView, frozen=True):
    columns = (("name", "Name"), ("size", "#Size"), ("word", "Word"))


def listed(view: Numbers, count: int) -> tuple[Listed, list[str]]:
    """Names n0000 and so on, whose size falls; every tenth has none. And which were asked for."""
    asked: list[str] = []

    async def ask(row: Row) -> Row:
        asked.append(row["name"])
        number = int(row["name"][1:])
        return {"size": None if number % 10 == 5 else -number, "word": "Bb" if number % 2 else "aa"}

    rows: list[Row] = [{"name": f"n{number:04}"} for number in range(count)]
    page: Listed = asyncio.run(view.listed("name", rows, ask))["page"]
    return page, asked


def names(page: Listed) -> list[str]:
    return [row["name"] for row in page.rows]


def test_without_an_order_only_the_rows_of_the_page_are_asked_for() -> None:
    page, asked = listed(Numbers(page=40), 5_000)
    assert names(page) == asked == [f"n{number:04}" for number in range(39 * PAGE_ROWS, 40 * PAGE_ROWS)]
    assert (page.first, page.last, page.count) == (1_951, 2_000, 5_000)


def test_by_name_thousands_are_sorted_without_being_asked_for() -> None:
    page, asked = listed(Numbers(sort="name", down=True), 5_000)
    assert names(page) == asked == [f"n{number:04}" for number in range(4_999, 4_949, -1)]


@pytest.mark.parametrize("down", [False, True])
def test_a_column_sorts_all_pages_and_what_has_no_figure_is_last(down: bool) -> None:
    seen: list[str] = []
    for number in (1, 2, 3):
        page, asked = listed(Numbers(sort="size", down=down, page=number), 120)
        assert len(asked) == 120
        seen += names(page)
    known = [f"n{each:04}" for each in range(120) if each % 10 != 5]
    assert seen[: len(known)] == (known if down else known[::-1])
    assert seen[len(known) :] == [f"n{each:04}" for each in range(5, 120, 10)]


def test_texts_are_sorted_whatever_their_case_and_equals_keep_their_order() -> None:
    page, _ = listed(Numbers(sort="word"), 6)
    assert names(page) == ["n0000", "n0002", "n0004", "n0001", "n0003", "n0005"]


def test_too_many_are_shown_by_name_and_the_page_says_so() -> None:
    page, asked = listed(Numbers(sort="size"), MAX_SORTED + 1)
    assert page.is_by_name
    assert names(page) == asked == [f"n{number:04}" for number in range(PAGE_ROWS)]
    narrowed, asked = listed(Numbers(sort="size", q="n00"), MAX_SORTED + 1)
    assert not narrowed.is_by_name
    assert len(asked) == 100


def test_links_keep_what_the_page_has_and_turn_the_order_around() -> None:
    page, _ = listed(Numbers(q="n", sort="size", down=True, every=True), 3)
    assert page.query == {"q": "n", "sort": "size", "down": "1", "every": "1"}
    assert page.sorted_by("size", down=True)["down"] == ""
    assert page.sorted_by("size", down=False)["down"] == ""
    assert page.sorted_by("word", down=False) == {**page.query, "sort": "word", "down": ""}


def test_an_order_that_the_list_does_not_have_is_refused() -> None:
    with pytest.raises(InvalidMessage, match="sort: choose one of name, size, word"):
        listed(Numbers(sort="price"), 3)


def test_a_group_that_cannot_be_asked_is_a_row_with_its_error() -> None:
    async def ask(row: Row) -> Row:
        raise ClientError("its broker is <away>")

    settings: Row = {"retries": 16, "ordered": False, "enabled": True}
    shown = asyncio.run(Numbers().listed("group", [{"group": "g", **settings}], ask))
    site: Row = {
        "section": "",
        "visitor": Visitor(None, has_users=False),
        "here": "",
        "place": "",
        "now_ms": 0,
    }
    text = render("groups.html", {**site, **msgspec.structs.asdict(Numbers()), **shown}).decode()
    assert "its broker is &lt;away&gt;</span></td>" in text
    assert '<td class="num">16</td>' in text


@pytest.mark.parametrize("down", [False, True])
def test_long_lists_are_sorted_between_the_turns_of_others(down: bool) -> None:
    items = [(number * 7_919 % 1_009, number) for number in range(5 * ROWS_AT_ONCE + 3)]
    turns = 0

    async def sorted_beside_others() -> list[tuple[int, int]]:
        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(others())
        try:
            return await sorted_in_slices(items, lambda item: item[0], down=down)
        finally:
            task.cancel()

    found = asyncio.run(sorted_beside_others())
    assert found == sorted(items, key=lambda item: item[0], reverse=down), "equals keep their order"
    assert turns >= 10


def test_long_lists_are_let_go_between_the_turns_of_others() -> None:
    rows: list[Row] = [{"name": str(number)} for number in range(5 * ROWS_AT_ONCE + 3)]
    same, most = rows.copy(), 0

    async def main() -> None:
        nonlocal most

        async def others() -> None:
            nonlocal most
            while True:
                before = len(same)
                await asyncio.sleep(0)
                most = max(most, before - len(same))

        task = asyncio.create_task(others())
        await asyncio.sleep(0)
        await let_go(rows, same)
        task.cancel()

    asyncio.run(main())
    assert rows == same == []
    assert 0 < most <= ROWS_AT_ONCE
