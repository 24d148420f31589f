"""Tables and caches that peers can grow, bounded in bytes.

A ``Ledger`` accounts for the memory of one table, or of several that belong together. The owner charges it
for a new key and frees what is removed; an existing key costs nothing. A full table refuses new keys; it
never evicts an entry to admit another, because its content is relied on.

A ``TableBudget`` bounds all tables of one broker together.

A ``Memo`` caches the results of a function of text from peers. It drops the older half when it exceeds its
limit.

Both report name, entries, bytes and limit, and name the attributes they account for, so that a test can find
an unbounded container. Sizes are estimates of what CPython uses, rather too high than too low.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Any, Protocol, TypeVar

from mqspark.errors import TableFull
from mqspark.shares import Holders, Shares

__all__ = [
    "ENTRY_BYTES",
    "MEMOS",
    "Bounded",
    "Ledger",
    "Memo",
    "TableBudget",
    "Tables",
    "require",
    "text_bytes",
    "weigh",
]

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

ENTRY_BYTES = 104
"""Size of an entry in a dict, including its share of free slots."""
CONTAINER_BYTES = 232
"""Size of a small dict or set."""
NUMBER_BYTES = 32
RESERVED_BYTES = 1 << 20
"""Of each table, whatever the others have; a broker has some twenty tables."""
MEMO_BYTES = 4 << 20
"""Limit of each memo; a process has a dozen of them."""
_TEXT_BYTES = 56
_WIDE_BYTES = 5
"""Bytes per character: the string, and the UTF-8 that CPython may cache beside it."""


class Bounded(Protocol):
    """The figures of a table or cache."""

    @property
    def name(self) -> str: ...
    @property
    def holds(self) -> tuple[str, ...]: ...
    @property
    def entries(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def bound(self) -> int: ...
    @property
    def refused(self) -> int: ...


class TableBudget:
    """The memory of all tables of one broker. A table may grow as long as it is not larger than the room that is left
    for all, so that one that fills its share leaves room for others (the dynamic thresholds of shared-memory
    switches). RESERVED_BYTES of each table are never refused: deleting a topic needs a little room, too."""

    __slots__ = ("_bound", "bytes", "refused", "setting")

    def __init__(self, bound: Callable[[], int], setting: str) -> None:
        self._bound = bound
        self.setting = setting
        self.bytes = 0
        self.refused = 0
        """Number of entries refused for this reason."""

    @property
    def bound(self) -> int:
        return self._bound()

    def allows(self, table_bytes: int, more_bytes: int) -> bool:
        """Whether a table that has this size may have ``more_bytes``."""
        wanted_bytes = table_bytes + more_bytes
        return wanted_bytes <= RESERVED_BYTES or wanted_bytes <= self._bound() - self.bytes


class Ledger:
    """``holds``: the attributes it accounts for, as ``Class.attribute``. ``setting``: the configuration key
    of its limit. ``shares``: what each user holds of it; the owner reports that separately."""

    __slots__ = ("_bound", "_budget", "bytes", "entries", "holds", "name", "refused", "setting", "shares")

    def __init__(self, name: str, bound: Callable[[], int], *holds: str, setting: str = "") -> None:
        self.name = name
        self.holds = holds
        self.setting = setting
        self._bound = bound
        self._budget = TableBudget(lambda: sys.maxsize, "")
        self.entries = 0
        self.bytes = 0
        self.refused = 0
        """Number of refused entries."""
        self.shares = Shares(name, bound)

    @property
    def bound(self) -> int:
        return self._bound()

    def share(self, budget: TableBudget) -> None:
        """Belong to the tables of ``budget``, which counts from now on what is here."""
        self._budget = budget
        budget.bytes += self.bytes

    def has_room(self, size_bytes: int) -> bool:
        """Whether ``size_bytes`` fit. False counts as a refusal."""
        if self.bytes + size_bytes > self._bound():
            self.refused += 1
            return False
        if not self._budget.allows(self.bytes, size_bytes):
            self.refused += 1
            self._budget.refused += 1
            return False
        return True

    def admit(self, size_bytes: int) -> None:
        """Raise TableFull when there is no room for ``size_bytes``. Changes nothing."""
        if not self.has_room(size_bytes):
            if self.bytes + size_bytes > self.bound:
                raise TableFull(self.name, self.bytes, self.bound, self.setting)
            budget = self._budget
            raise TableFull(self.name, self.bytes, budget.bound, budget.setting, of_all=budget.bytes)

    def refuse(self, count: int, most: int, setting: str, *, of: str = "") -> TableFull:
        """The error to raise for more than ``most`` entries, whatever their size."""
        self.refused += 1
        return TableFull(self.name + of, count, most, setting, unit="entries")

    def charge(self, size_bytes: int) -> None:
        """Account for a new entry. Raises TableFull and changes nothing when there is no room."""
        self.admit(size_bytes)
        self.note(size_bytes)

    def note(self, size_bytes: int) -> None:
        """Account for an entry that must not be refused, from a file or of the broker itself."""
        self.entries += 1
        self.bytes += size_bytes
        self._budget.bytes += size_bytes

    def resize(self, old_bytes: int, new_bytes: int) -> None:
        """Account for a new value of an entry. Raises TableFull and changes nothing when it grows and there
        is no room."""
        if new_bytes > old_bytes:
            self.admit(new_bytes - old_bytes)
        self.bytes += new_bytes - old_bytes
        self._budget.bytes += new_bytes - old_bytes

    def free(self, size_bytes: int, entries: int = 1) -> None:
        self.entries -= entries
        self.bytes -= size_bytes
        self._budget.bytes -= size_bytes

    def clear(self) -> None:
        self._budget.bytes -= self.bytes
        self.entries = self.bytes = 0

    def validate(self, sizes: Iterable[int]) -> None:
        """Compare with the sizes of what is in the table. Raises AssertionError; for tests, like every ``validate``."""
        entries = list(sizes)
        require(
            (self.entries, self.bytes) == (len(entries), sum(entries)),
            f"{self.name}: {self.entries} entries of {self.bytes} bytes, there are {len(entries)} of {sum(entries)}",
        )


class Memo(dict[K, V]):
    """Cache of ``function``: ``memo[key]`` computes and keeps ``function(key)``. A result larger than an
    eighth of the limit is not kept."""

    __slots__ = ("_function", "_weigh", "bound", "bytes", "holds", "name", "refused")

    def __init__(
        self,
        name: str,
        function: Callable[[K], V],
        *,
        max_bytes: int = MEMO_BYTES,
        weigh: Callable[[K, V], int] | None = None,
        holds: tuple[str, ...] | None = None,
    ) -> None:
        """``weigh(key, value)``: bytes of both, without the entry. ``holds``: the attribute of the memo; None
        when it lives as long as the process."""
        self._function = function
        self._weigh = weigh
        self.name = name
        self.holds = holds or ()
        self.bound = max_bytes
        self.bytes = 0
        self.refused = 0
        if holds is None:
            MEMOS.append(self)

    @property
    def entries(self) -> int:
        return len(self)

    def __missing__(self, key: K) -> V:
        value = self._function(key)
        size_bytes = self.size_of(key, value)
        if size_bytes > self.bound // 8:
            self.refused += 1
            return value
        if self.bytes + size_bytes > self.bound:
            self._forget_half()
        self[key] = value
        self.bytes += size_bytes
        return value

    def clear(self) -> None:
        super().clear()
        self.bytes = 0

    def size_of(self, key: K, value: V) -> int:
        return ENTRY_BYTES + (weigh(key) + weigh(value) if self._weigh is None else self._weigh(key, value))

    def _forget_half(self) -> None:
        items = list(self.items())
        half = (len(items) + 1) // 2
        for key, _ in items[:half]:
            self.pop(key, None)
        self.bytes = sum(self.size_of(key, value) for key, value in items[half:])


MEMOS: list[Memo[Any, Any]] = []
"""All memos of this process, shared by its brokers and clients."""


class Tables:
    """All tables and caches of one broker or name server. The tables share ``budget``, if there is one, and ``holders``
    are limited in each of them."""

    def __init__(
        self, *tables: Bounded, budget: TableBudget | None = None, holders: Holders | None = None
    ) -> None:
        self._tables = tables
        for table in tables:
            if isinstance(table, Ledger):
                table.shares.holders = holders
                if budget is not None:
                    table.share(budget)

    def __iter__(self) -> Iterator[Bounded]:
        """Includes the memos of the process."""
        return iter((*self._tables, *MEMOS))


def require(holds: bool, what: str) -> None:
    """Raise AssertionError unless an invariant holds: for the ``validate`` methods of state machines."""
    if not holds:
        raise AssertionError(what)


def text_bytes(*texts: str | bytes | None) -> int:
    """Upper estimate of the bytes of strings, whatever their representation in CPython."""
    size_bytes = 0
    for text in texts:
        if text is not None:
            narrow = isinstance(text, bytes) or text.isascii()
            size_bytes += _TEXT_BYTES + len(text) * (1 if narrow else _WIDE_BYTES)
    return size_bytes


def weigh(value: Any) -> int:
    """Estimate of the bytes of a value made of strings, numbers, containers and plain objects. Visits the
    whole value."""
    if value is None or isinstance(value, bool):
        return 0
    if isinstance(value, (str, bytes)):
        return text_bytes(value)
    if isinstance(value, (int, float)):
        return 0 if -5 <= value <= 256 else NUMBER_BYTES  # CPython shares small integers
    if isinstance(value, Mapping):
        return CONTAINER_BYTES + sum(
            ENTRY_BYTES + weigh(key) + weigh(element) for key, element in value.items()
        )
    if isinstance(value, (set, frozenset)):
        return CONTAINER_BYTES + sum(ENTRY_BYTES + weigh(element) for element in value)
    if isinstance(value, (list, tuple)):
        return _TEXT_BYTES + sum(16 + weigh(element) for element in value)
    names = getattr(value, "__struct_fields__", None)
    if names is None and dataclasses.is_dataclass(value):
        names = tuple(field.name for field in dataclasses.fields(value))
    return _TEXT_BYTES + sum(8 + weigh(getattr(value, name)) for name in names or ())
