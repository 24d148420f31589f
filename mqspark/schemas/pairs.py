"""Comparing two schemas that may contain themselves, pair by pair.

A pair that is being compared counts as one that fits, so that recursive types end. That guess may have been wrong: then
all is compared again, with the pairs known that do not fit, until no more of them are found (a least fixed point).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

from mqspark.schemas.parsedschema import MAX_PROBLEMS

Problem = tuple[str, str, str]
"""Type for programs, path in the reader's schema, sentence."""
MAX_PAIRS = 200_000
"""Comparisons of one call; a union is compared with each branch of another one."""


class Pairs:
    def __init__(self) -> None:
        self._known = dict[Hashable, list[Problem]]()
        self._open = set[Hashable]()
        self._unfit = dict[Hashable, list[Problem]]()
        self._guessed = False
        self._count = 0.0

    def solve(self, compare: Callable[[], list[Problem]]) -> list[Problem]:
        """``compare`` calls ``found``."""
        while True:
            self._known, self._guessed = {}, False
            try:
                found = compare()
            except _TooMany:
                return [
                    ("TOO_MANY_PAIRS", "", f"the two schemas take more than {MAX_PAIRS} comparisons of types")
                ]
            except RecursionError:
                return [("TOO_DEEP", "", "the two schemas have too many types inside each other")]
            finally:
                self._open.clear()
            unfit = {pair: problems for pair, problems in self._known.items() if problems}
            if not self._guessed or unfit.keys() == self._unfit.keys():
                return found
            self._unfit = unfit

    def found(self, pair: Hashable, compare: Callable[[], list[Problem]]) -> list[Problem]:
        """The problems of a pair. Their paths are those of the first time that it is met."""
        if pair in self._known:
            return self._known[pair]
        if pair in self._open:
            self._guessed = True
            return self._unfit.get(pair, [])
        self.spend(1)
        self._open.add(pair)
        problems = self._known[pair] = list(dict.fromkeys(compare()))[:MAX_PROBLEMS]
        self._open.discard(pair)
        return problems

    def spend(self, count: float) -> None:
        """Counts work as so many comparisons. Only below ``solve``."""
        self._count += count
        if self._count > MAX_PAIRS:
            raise _TooMany


class _TooMany(Exception):
    pass
