"""The keys of a long table in ascending order, so that a walk over all of them takes no longer at a time than a page.

A copy of a table of a hundred thousand entries takes a millisecond or more, and a dict that changes cannot be walked
without one. Here the keys are in blocks that are replaced, never modified: a copy of all has only to note the blocks,
and another thread may read it while the table changes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from operator import itemgetter
from typing import Generic, TypeVar

K = TypeVar("K")

BLOCK_KEYS = 512
"""Most keys of a block. A new key costs a copy of its block: a microsecond."""
_place: Callable[..., int] = bisect_left
_last = itemgetter(-1)


class KeyOrder(Generic[K]):
    """Keys that can be compared, each once. Iterates over the keys of now, whatever happens meanwhile."""

    __slots__ = ("_blocks",)

    def __init__(self, keys: Iterable[K] = ()) -> None:
        self._blocks: list[tuple[K, ...]] = []
        self.refill(keys)

    def refill(self, keys: Iterable[K]) -> None:
        """Have these keys and no others."""
        ordered = sorted(keys)  # type: ignore[type-var]
        half = BLOCK_KEYS // 2
        self._blocks = [tuple(ordered[at : at + half]) for at in range(0, len(ordered), half)]

    def add(self, key: K) -> None:
        """It must not be there."""
        blocks = self._blocks
        if not blocks:
            blocks.append((key,))
            return
        at = min(self._block_of(key), len(blocks) - 1)
        block = blocks[at]
        place = _place(block, key)
        block = (*block[:place], key, *block[place:])
        if len(block) > BLOCK_KEYS:
            # Keys that come in ascending order leave full blocks behind.
            half = BLOCK_KEYS if place == BLOCK_KEYS else BLOCK_KEYS // 2
            blocks[at : at + 1] = block[:half], block[half:]
        else:
            blocks[at] = block

    def remove(self, key: K) -> None:
        """Raises KeyError when it is not there."""
        blocks, at = self._blocks, self._block_of(key)
        block = blocks[at] if at < len(blocks) else ()
        place = _place(block, key)
        if not block or block[place] != key:
            raise KeyError(key)
        if block := block[:place] + block[place + 1 :]:
            blocks[at] = block
        else:
            del blocks[at]

    def clear(self) -> None:
        self._blocks = []

    def _block_of(self, key: K) -> int:
        return _place(self._blocks, key, key=_last)

    def pages(self) -> list[tuple[K, ...]]:
        """All keys of now, at most BLOCK_KEYS in each page."""
        return self._blocks.copy()

    def page(self, first: int, end: int) -> list[K]:
        """The keys from one place to another one."""
        found: list[K] = []
        for block in self._blocks:
            if end <= 0:
                break
            found += block[max(first, 0) : end]
            first -= len(block)
            end -= len(block)
        return found

    def since(self, key: K) -> Iterator[K]:
        """The keys of now that are ``key`` or greater."""
        blocks = self._blocks[self._block_of(key) :]
        if blocks:
            blocks[0] = blocks[0][_place(blocks[0], key) :]
        return chain.from_iterable(blocks)

    def __iter__(self) -> Iterator[K]:
        return chain.from_iterable(self.pages())

    def __len__(self) -> int:
        return sum(map(len, self._blocks))
