"""The keys of a long table stay in order, in blocks that are replaced: to note them all is no walk over the table."""

from __future__ import annotations

import random

import pytest

from mqspark.base.bounded import BoundedMap, Ledger
from mqspark.base.keyorder import BLOCK_KEYS, KeyOrder
from tests.support.invariants import validate


@pytest.mark.parametrize("how", ["ascending", "descending", "shuffled"])
def test_keys_stay_in_order_and_blocks_small(how: str) -> None:
    keys = [f"T{number:05d}" for number in range(3_000)]
    if how != "ascending":
        keys.reverse()
    chance = random.Random(5)
    if how == "shuffled":
        chance.shuffle(keys)
    order = KeyOrder[str]()
    for key in keys:
        order.add(key)
    assert list(order) == sorted(keys)
    assert max(map(len, order.pages())) <= BLOCK_KEYS
    assert len(order.pages()) <= 2 * len(keys) // BLOCK_KEYS + 1
    kept = set(keys)
    for key in chance.sample(keys, 2_900):
        order.remove(key)
        kept.remove(key)
    assert list(order) == sorted(kept)
    assert len(order) == 100
    assert all(order.pages())
    for key in [*kept]:
        order.remove(key)
    assert order.pages() == []
    order.add("again")
    assert list(order) == ["again"]


def test_a_change_replaces_one_block_and_what_was_noted_stays() -> None:
    order = KeyOrder(range(0, 20_000, 2))
    noted = order.pages()
    order.add(9_001)
    order.remove(9_000)
    replaced = [page for page, now in zip(noted, order.pages(), strict=True) if page is not now]
    assert len(replaced) == 1
    assert [key for page in noted for key in page] == [*range(0, 20_000, 2)]
    walk = iter(order)
    order.clear()
    assert 9_001 in walk


def test_parts_of_the_keys_are_found_by_place_and_by_key() -> None:
    keys = [*range(0, 4_000, 2)]
    order = KeyOrder(keys)
    for first, end in ((0, 0), (0, 3), (100, 900), (1_990, 3_000), (5_000, 6_000)):
        assert order.page(first, end) == keys[first:end]
    for key in (-1, 0, 1, 1_999, 2_000, 3_998, 3_999):
        assert list(order.since(key)) == [each for each in keys if each >= key]
    assert list(KeyOrder[int]().since(1)) == []


def test_a_key_that_is_not_there_takes_no_other_with_it() -> None:
    order = KeyOrder(range(0, 2_000, 2))
    for key in (-1, 1, 777, 1_999, 5_000):
        with pytest.raises(KeyError):
            order.remove(key)
    assert list(order) == [*range(0, 2_000, 2)]
    with pytest.raises(KeyError):
        KeyOrder[int]().remove(0)


def test_a_table_keeps_its_keys_in_order_whatever_is_done_to_it() -> None:
    ledger = Ledger("t", lambda: 1 << 20)
    table: BoundedMap[str, int] = ledger.map(in_order=True)

    def keys() -> list[str]:
        validate(ledger)
        return list(table.in_order)

    table["b"] = 1
    table.put("a", 2)
    table.keep("c", 3)
    table["b"] = 4
    assert keys() == ["a", "b", "c"]
    del table["b"]
    assert table.pop("d", 0) == 0
    assert table.pop("a") == 2
    assert keys() == ["c"]
    table.update(e=5, d=4)
    assert keys() == ["c", "d", "e"]
    table.refill({"z": 1, "y": 2})
    assert keys() == ["y", "z"]
    table.clear()
    assert keys() == []
    with pytest.raises(ValueError, match="does not keep its keys in order"):
        assert BoundedMap[str, int](ledger).in_order


def test_a_value_without_a_size_changes_neither_the_table_nor_its_order() -> None:
    ledger = Ledger("t", 1 << 20)
    table: BoundedMap[str, str | None] = ledger.map(0, len, in_order=True)
    table["b"] = "x"
    with pytest.raises(TypeError):
        table.keep("a", None)
    with pytest.raises(TypeError):
        table.keep("b", None)
    validate(ledger)
    assert list(table.in_order) == ["b"]
    with pytest.raises(TypeError):
        table.refill({"d": "x", "c": "y", "e": None})
    validate(ledger)
    assert list(table.in_order) == ["c", "d"]
