"""Tables and caches that peers can grow, bounded in bytes.

A ``BoundedMap`` and a ``BoundedSet`` weigh what is put into them: an entry is charged when it comes, counts for the
user whose request made it, and is freed when it goes. A full one raises TableFull; it never evicts an entry to admit
another, because its content is relied on.

A ``Ledger`` accounts for the memory of one of them, or of several that belong together.

A ``TableBudget`` bounds all tables of one broker together.

A ``Memo`` caches the results of a function of text from peers. It drops the older half when it exceeds its
limit.

Ledgers and memos report name, entries, bytes and limit, and name the other attributes they account for, so that a test
can find an unbounded container. Sizes are estimates of what CPython uses, rather too high than too low.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Hashable, Iterator, Mapping, MutableMapping
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from mqspark.base.config import Bound, key_of, reader
from mqspark.base.keyorder import KeyOrder
from mqspark.base.shares import NOBODY, Holders, Shares
from mqspark.errors import TableFull

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
M = TypeVar("M", bound="BoundedMap[Any, Any]")

ENTRY_BYTES = 104
"""Size of an entry in a dict, including its share of free slots."""
CONTAINER_BYTES = 232
"""Size of a small dict or set."""
NUMBER_BYTES = 32
CODE_BYTES = 100
"""Size of the code of a tag in a set, with a copy of the number."""
RESERVED_BYTES = 1 << 20
"""What each table has, whatever the others have; a broker has some twenty tables."""
FORGOTTEN_AT_ONCE = 64
"""Entries that leave a full memo together."""
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

    def __init__(self, bound: Bound, setting: str = "") -> None:
        self._bound = reader(bound)
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
    """``holds``: the attributes it accounts for beside its bounded maps and sets, as ``Class.attribute``. ``setting``:
    the key of its limit, if ``bound`` does not say it. ``most``: how many entries there are for all users; None: as
    many as have room. ``shares``: what each user holds of it."""

    __slots__ = (
        "_bound", "_budget", "_maps", "bytes", "entries", "holds", "name", "refused", "setting", "shares",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        bound: Bound,
        *holds: str,
        setting: str = "",
        most: Bound | None = None,
    ) -> None:
        self.name = name
        self.holds = holds
        self.setting = setting or key_of(bound)
        self._bound = reader(bound)
        self._budget = TableBudget(sys.maxsize)
        self.entries = 0
        self.bytes = 0
        self.refused = 0
        """Number of refused entries."""
        self.shares = Shares(name, bound, most)
        self._maps: list[BoundedMap[Any, Any]] = []

    def map(
        self,
        entry_bytes: int = 0,
        value_bytes: Callable[[V], int] | None = None,
        *,
        most: Bound | None = None,
        in_order: bool = False,
    ) -> BoundedMap[Any, V]:
        """A new map of this table: see there."""
        return self.include(BoundedMap(self, entry_bytes, value_bytes, most=most, in_order=in_order))

    def set(self, entry_bytes: int = 0, key_bytes: Callable[[K], int] | None = None) -> BoundedSet[K]:
        """A new set of this table: see there."""
        return self.include(BoundedSet(self, entry_bytes, key_bytes))

    def include(self, made: M) -> M:
        """``validate`` looks at it from now on; at those within others it does anyway."""
        self._maps.append(made)
        return made

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

    def refuse(
        self, count: int, most: int, setting: str = "", *, of: str = "", unit: str = "entries"
    ) -> TableFull:
        """The error to raise for more than ``most`` entries, whatever their size, or of another unit."""
        self.refused += 1
        return TableFull(self.name + of, count, most, setting, unit=unit)

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


class BoundedMap(dict[K, V]):
    """``table[key] = value`` weighs, and raises TableFull and changes nothing when there is no room; ``del`` frees. A
    value is replaced, by ``replace`` if its size stays; what is modified in place is told to ``grow``. A value that is
    a bounded map, or has some as ``bounded``, is weighed without what is in these: it weighs itself.
    """

    __slots__ = (
        "_entry_bytes", "_ledger", "_most", "_order", "_owners", "_setting", "_value_bytes", "share_bytes",
    )  # fmt: skip

    def __init__(
        self,
        ledger: Ledger,
        entry_bytes: int = 0,
        value_bytes: Callable[[V], int] | None = None,
        *,
        share_bytes: int = 0,
        most: Bound | None = None,
        in_order: bool = False,
    ) -> None:
        """``entry_bytes``: of an entry, without that of a dict, the texts of its key and ``value_bytes(value)``.
        ``share_bytes``: how much more an entry takes of its user's share. ``most``: how many entries there may be, of
        which one user makes a share. ``in_order``: it has ``in_order``, at the cost of some 8 bytes a key."""
        super().__init__()
        self._ledger = ledger
        self._entry_bytes = ENTRY_BYTES + entry_bytes
        self._value_bytes = value_bytes
        self.share_bytes = share_bytes
        self._most = None if most is None else reader(most)
        self._setting = key_of(most)
        if most is not None:
            ledger.shares.limit_entries(most)
        self._owners: dict[K, str] | None = None
        """The owners of the entries that are somebody's: mostly there is none."""
        self._order: KeyOrder[K] | None = KeyOrder() if in_order else None

    @property
    def in_order(self) -> KeyOrder[K]:
        """The keys in ascending order, for walks that do not copy the table."""
        if self._order is None:
            raise ValueError("this table does not keep its keys in order")
        return self._order

    def size_of(self, key: K, value: V) -> int:
        size_bytes = self._entry_bytes + _key_bytes(key)
        return size_bytes if self._value_bytes is None else size_bytes + self._value_bytes(value)

    def share_of(self, key: K, size_bytes: int) -> int:
        """What an entry of this size takes of its user's share."""
        return size_bytes + self.share_bytes

    def owner_of(self, key: K) -> str:
        return NOBODY if self._owners is None else self._owners.get(key, NOBODY)

    def admit(self, key: K, value: V, session: object = None) -> str:
        """The user to whom the entry would belong. Changes nothing. Raises TableFull when it has no room."""
        ledger, old_bytes, is_new = self._ledger, 0, key not in self
        if not is_new:
            old_bytes = self.size_of(key, self[key])
        elif self._most is not None and len(self) >= self._most():
            raise ledger.refuse(len(self), self._most(), self._setting)
        more_bytes = self.size_of(key, value) - old_bytes
        owner = self.owner_of(key)
        if session is not None:
            share_bytes = self.share_of(key, more_bytes) if is_new else max(0, more_bytes)
            owner = ledger.shares.admit(session, share_bytes, int(is_new))
        if more_bytes > 0:
            ledger.admit(more_bytes)
        return owner

    def inner_map(
        self, entry_bytes: int = 0, value_bytes: Callable[[Any], int] | None = None, *, share_bytes: int = 0
    ) -> BoundedMap[Any, Any]:
        """A map for a value of this one, of the same table."""
        return BoundedMap(self._ledger, entry_bytes, value_bytes, share_bytes=share_bytes)

    def inner_set(self) -> BoundedSet[Any]:
        return BoundedSet(self._ledger)

    def has_room_for(self, key: K, value: V, owner: str = NOBODY) -> bool:
        """Whether a new entry has room that no request makes, but that counts for ``owner``. False counts as a
        refusal."""
        size_bytes, ledger = self.size_of(key, value), self._ledger
        has_share = ledger.shares.has_room_for(owner, self.share_of(key, size_bytes))
        return has_share and ledger.has_room(size_bytes)

    def has_room_to_grow(self, key: K, more_bytes: int) -> bool:
        """The same of an entry that may ``grow``."""
        ledger, owner = self._ledger, self.owner_of(key)
        return ledger.has_room(more_bytes) and ledger.shares.has_room_for(owner, more_bytes, entries=0)

    def put(self, key: K, value: V, session: object = None) -> None:
        """``session``: to whose user the entry belongs from now on; without, it stays whose it is, and a new one is
        nobody's. Raises TableFull."""
        self.keep(key, value, self.admit(key, value, session))

    __setitem__ = put

    replace = dict.__setitem__
    """Give an entry a value of the same size."""

    def offer(self, key: K, value: V) -> bool:
        """Whether there is room: otherwise nothing is put, which counts as a refusal."""
        try:
            self.put(key, value)
        except TableFull:
            return False
        return True

    def get_or_make(self, key: K, make: Callable[[], V]) -> V | None:
        """The value that is there, or a new one; None if there is no room for it, which counts as a refusal."""
        found = self.get(key)
        if found is None:
            found = make()
            if not self.offer(key, found):
                return None
        return found

    def keep(self, key: K, value: V, owner: str = NOBODY) -> None:
        """Put what must not be refused: from a file, of the broker itself, or what ``admit`` has allowed ``owner``."""
        size_bytes = self.size_of(key, value)  # before anything changes: a value may have no size
        if key in self:
            owner = owner or self.owner_of(key)
            self._free(key, self[key])
        elif self._order is not None:
            self._order.add(key)
        self._ledger.note(size_bytes)
        if owner:
            if self._owners is None:
                self._owners = {}
            self._owners[key] = owner
            self._ledger.shares.hold(owner, self.share_of(key, size_bytes))
        dict.__setitem__(self, key, value)

    def hold(self, key: K, value: V, session: object) -> None:
        """Put what ``admit`` has allowed: a new entry belongs to the user of ``session``, if there is one."""
        is_new = session is not None and key not in self
        self.keep(key, value, self._ledger.shares.user_of(session) if is_new else NOBODY)

    def admit_more(self, more_bytes: int, session: object) -> None:
        """Raise TableFull when an entry may not ``grow`` as much."""
        self._ledger.shares.admit(session, more_bytes, 0)
        self._ledger.admit(more_bytes)

    def grow(self, key: K, more_bytes: int) -> None:
        """The value of an entry was modified after all, and takes ``more_bytes``, or below 0 fewer."""
        self._ledger.free(-more_bytes, 0)
        if owner := self.owner_of(key):
            self._ledger.shares.hold(owner, more_bytes, 0)

    def refill(self, entries: Mapping[K, V]) -> None:
        """Have these entries, which must not be refused, and no others."""
        self.clear()
        order, self._order = self._order, None
        try:
            for key, value in entries.items():
                self.keep(key, value)
        finally:
            if order is not None:
                order.refill(self)
                self._order = order

    def _free(self, key: K, value: V) -> None:
        size_bytes = self.size_of(key, value)
        self._ledger.free(size_bytes)
        if self._owners is not None and (owner := self._owners.pop(key, NOBODY)):
            self._ledger.shares.release(owner, self.share_of(key, size_bytes))

    def __delitem__(self, key: K) -> None:
        self._free(key, self[key])
        if self._order is not None:
            self._order.remove(key)
        dict.__delitem__(self, key)

    if not TYPE_CHECKING:  # their types are those of a dict

        def pop(self, key, *default):
            if key in self:
                self._free(key, self[key])
                if self._order is not None:
                    self._order.remove(key)
            return super().pop(key, *default)

        # These use __setitem__ and __delitem__.
        popitem = MutableMapping.popitem
        setdefault = MutableMapping.setdefault
        update = MutableMapping.update

    def clear(self) -> None:
        for key, value in self.items():
            self._free(key, value)
        if self._order is not None:
            self._order.clear()
        super().clear()

    def __ior__(self, other: Any) -> BoundedMap[K, V]:  # type: ignore[override, misc]
        self.update(other)
        return self


class BoundedSet(BoundedMap[K, None]):
    """The same of keys alone, in their order."""

    __slots__ = ("_of_key",)

    def __init__(
        self,
        ledger: Ledger,
        entry_bytes: int = 0,
        key_bytes: Callable[[K], int] | None = None,
        *,
        share_bytes: int = 0,
    ) -> None:
        """``key_bytes(key)``: its bytes, by default those of its texts."""
        super().__init__(ledger, entry_bytes, share_bytes=share_bytes)
        self._of_key = key_bytes or _key_bytes

    def size_of(self, key: K, value: None = None) -> int:
        return self._entry_bytes + self._of_key(key)

    def add(self, key: K, session: object = None) -> None:
        """Raises TableFull."""
        self.put(key, None, session)

    def discard(self, key: K) -> None:
        self.pop(key, None)


def _key_bytes(key: object) -> int:
    """What the texts of a key weigh."""
    size_bytes = 0
    for each in key if isinstance(key, tuple) else (key,):
        if isinstance(each, str):
            size_bytes += _TEXT_BYTES + len(each) * (1 if each.isascii() else _WIDE_BYTES)
    return size_bytes


class Memo(dict[K, V]):
    """Cache of ``function``: ``memo[key]`` computes and keeps ``function(key)``. A result larger than a part of the
    limit is not kept, an eighth unless ``parts`` says otherwise."""

    __slots__ = ("_function", "_parts", "_weigh", "bound", "bytes", "holds", "name", "refused")

    def __init__(
        self,
        name: str,
        function: Callable[[K], V],
        *,
        max_bytes: int = MEMO_BYTES,
        weigh: Callable[[K, V], int] | None = None,
        parts: int = 8,
        holds: tuple[str, ...] | None = None,
    ) -> None:
        """``weigh(key, value)``: bytes of both, without the entry. ``holds``: the attribute of the memo; None
        when it lives as long as the process."""
        self._function = function
        self._weigh = weigh
        self._parts = parts
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
        if size_bytes > self.bound // self._parts:
            self.refused += 1
            return value
        while self.bytes + size_bytes > self.bound:
            self._forget_oldest()
        self[key] = value
        self.bytes += size_bytes
        return value

    def clear(self) -> None:
        super().clear()
        self.bytes = 0

    def size_of(self, key: K, value: V) -> int:
        return ENTRY_BYTES + (weigh(key) + weigh(value) if self._weigh is None else self._weigh(key, value))

    def _forget_oldest(self) -> None:
        """Those that were kept first, only some: to forget thousands at once takes milliseconds."""
        for key, value in list(islice(self.items(), FORGOTTEN_AT_ONCE)):
            if self.pop(key, self) is not self:  # else another thread has forgotten it
                self.bytes -= self.size_of(key, value)
        if not self:
            self.bytes = 0


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
