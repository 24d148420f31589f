"""Maps and sets that weigh themselves: every way in is charged, every way out frees, and a refusal changes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from mqspark.base.bounded import BoundedMap, Ledger, Tables, weigh
from mqspark.base.config import Limit
from mqspark.base.shares import Holders
from mqspark.errors import TableFull
from tests.support.invariants import sizes, validate


@dataclass
class Settings:
    max_rows: int = 3


class Room:
    """A table of ``room`` bytes, with users who may hold half of it."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.refused: list[str] = []
        self.ledger = Ledger("t", lambda: self.room, setting="maxT")
        Tables(
            self.ledger,
            holders=Holders(
                str, lambda who, kind, why: self.refused.append(why), lambda: 50, lambda: 1 << 40
            ),
        )

    @property
    def figures(self) -> tuple[int, int]:
        validate(self.ledger)
        return self.ledger.entries, self.ledger.bytes

    def held(self, user: str) -> tuple[int, int]:
        return self.ledger.shares.held(user)


def test_every_way_in_is_charged_and_every_way_out_frees() -> None:
    room = Room(1 << 20)
    table: BoundedMap[str, str] = room.ledger.map(100, weigh)
    table["a"] = "x"
    one = room.figures
    table.update({"b": "y", "c": "z"})
    table.setdefault("d", "w")
    table |= {"e": "v"}
    assert room.figures == (5 * one[0], 5 * one[1])
    table["a"] = "x" * 1000
    assert room.figures == (5, 5 * one[1] + 999)
    assert (table.pop("a"), table.pop("a", None)) == ("x" * 1000, None)
    with pytest.raises(KeyError):
        table.pop("a")
    del table["b"]
    assert table.popitem() == ("c", "z")
    assert room.figures == (2, 2 * one[1])
    table.refill({"f": "u"})
    assert (dict(table), room.figures) == ({"f": "u"}, one)
    table.clear()
    assert room.figures == (0, 0)


def test_a_refusal_changes_nothing() -> None:
    room = Room(700)
    settings = Settings()
    table: BoundedMap[str, str] = room.ledger.map(0, weigh, most=Limit(settings, "max_rows"))
    table["a"] = "x" * 100
    before = room.figures
    for key, value in (("a", "x" * 900), ("b", "x" * 900)):
        with pytest.raises(TableFull, match=r"t is full: 317 of 700 bytes; maxT sets that"):
            table[key] = value
        assert not table.offer(key, value)
    assert (table, room.figures, room.ledger.refused) == ({"a": "x" * 100}, before, 4)
    table.keep("b", "x" * 900)
    table.keep("c", "")
    room.room = 1 << 20
    with pytest.raises(TableFull, match=r"t is full: 3 of 3 entries; maxRows sets that"):
        table["d"] = ""
    settings.max_rows = 4
    table["d"] = ""
    with pytest.raises(KeyError):
        Limit(settings, "max_columns")
    assert room.figures[0] == 4


def test_an_entry_counts_for_the_user_who_made_it_until_it_goes() -> None:
    room = Room(2_000)
    table: BoundedMap[tuple[str, int], bytes] = room.ledger.map(0, weigh)
    table.share_bytes = 50
    table.put(("a", 1), b"", "eve")
    size = room.figures[1]
    assert (table.owner_of(("a", 1)), room.held("eve")) == ("eve", (1, size + 50))
    table[("a", 1)] = b"x" * 100
    assert room.held("eve") == (1, size + 150)
    with pytest.raises(TableFull, match=r"t of User:eve is full"):
        table.put(("b", 1), b"x" * 900, "eve")
    assert len(room.refused) == 1
    table.put(("b", 1), b"x" * 900)
    table.put(("a", 1), b"", "bob")
    assert (room.held("eve"), room.held("bob")) == ((0, 0), (1, size + 50))
    table.clear()
    assert (room.held("bob"), room.figures) == ((0, 0), (0, 0))


def test_maps_in_maps_weigh_themselves() -> None:
    room = Room(1 << 20)
    outer: BoundedMap[str, BoundedMap[str, str]] = room.ledger.map(500)
    inner = outer["g"] = BoundedMap(room.ledger, 10, weigh)
    alone = room.figures
    inner["a"] = "x" * 100
    assert room.figures[0] == 2
    inner.replace("a", "y" * 100)
    assert room.figures[0] == 2
    room.ledger.free(1, 0)
    with pytest.raises(AssertionError):
        validate(room.ledger)
    room.ledger.free(-1, 0)
    inner.clear()
    assert room.figures == alone
    del outer["g"]
    assert room.figures == (0, 0)


def test_sets_weigh_their_keys() -> None:
    room = Room(1 << 20)
    names: Any = room.ledger.set(10)
    names.add("b", "eve")
    names.add("b" * 100)
    assert (list(names), room.held("eve")[0]) == (["b", "b" * 100], 1)
    small, large = sizes(names)
    assert large - small == 99
    names.discard("b")
    names.discard("b")
    assert (room.held("eve"), room.figures[0]) == ((0, 0), 1)
    things = room.ledger.set(0, lambda thing: 1_000)
    things.add(object())
    assert room.figures[1] > 1_000
