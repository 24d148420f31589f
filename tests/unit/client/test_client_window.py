"""How much may be under way."""

from __future__ import annotations

import asyncio

import pytest

from mqspark.client.producer.send_window import Window
from mqspark.errors import ConfigError


def enter(window: Window, size_bytes: int) -> None:
    window.count += 1
    window.size_bytes += size_bytes


async def turns(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.parametrize(("size_bytes", "fits"), [(1, 3), (40, 3), (60, 2), (100, 1), (1_000, 1)])
async def test_count_and_bytes_are_bounded(size_bytes: int, fits: int) -> None:
    window = Window(3, 100)
    entered = 0
    while not window.full:
        enter(window, size_bytes)
        entered += 1
    assert entered == fits
    await_room = asyncio.ensure_future(window.room())
    await turns()
    assert not await_room.done()
    for _ in range(entered):
        window.leave(size_bytes)
    await await_room
    assert (window.count, window.size_bytes) == (0, 0)


async def test_room_is_given_in_turn() -> None:
    window = Window(1, 100)
    enter(window, 1)
    order: list[int] = []

    async def one(number: int) -> None:
        await window.room()
        order.append(number)
        enter(window, 1)
        await turns()
        window.leave(1)

    waiting = [asyncio.ensure_future(one(number)) for number in range(5)]
    await turns()
    window.leave(1)
    await asyncio.gather(*waiting)
    assert order == list(range(5))


async def test_a_large_one_makes_room_for_several() -> None:
    window = Window(4, 100)
    enter(window, 100)
    order: list[int] = []

    async def one(number: int) -> None:
        await window.room()
        enter(window, 40)
        order.append(number)

    waiting = [asyncio.ensure_future(one(number)) for number in range(5)]
    await turns()
    window.leave(100)
    await turns(10)
    assert order == [0, 1, 2], "the fourth finds more than 100 bytes"
    window.leave(40)
    await turns(10)
    assert order == [0, 1, 2, 3]
    for _ in range(3):
        window.leave(40)
    await asyncio.gather(*waiting)
    assert order == [0, 1, 2, 3, 4]


async def test_who_is_cancelled_or_declines_passes_the_room_on() -> None:
    window = Window(1, 100)
    enter(window, 1)
    first, second, third = (asyncio.ensure_future(window.room()) for _ in range(3))
    await turns()
    window.leave(1)
    first.cancel()
    await turns()
    assert (second.done(), third.done()) == (True, False)
    window.decline()
    await turns()
    assert third.done()
    await asyncio.gather(first, return_exceptions=True)


async def test_empty_waits_for_the_last() -> None:
    window = Window(5, 100)
    await window.empty()
    enter(window, 1)
    enter(window, 1)
    empty = asyncio.ensure_future(window.empty())
    window.leave(1)
    await turns()
    assert not empty.done()
    window.leave(1)
    await empty


@pytest.mark.parametrize("limits", [(0, 1), (1, 0)])
async def test_limits_are_positive(limits: tuple[int, int]) -> None:
    with pytest.raises(ConfigError):
        Window(*limits)
