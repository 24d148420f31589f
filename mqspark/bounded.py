"""Tables and caches that peers can grow, bounded in bytes.

A ``Ledger`` says what one table weighs, or several that belong together. Their owner charges it for a new key and frees
what leaves; a key that is there already costs nothing. A table that holds what somebody relies on refuses new keys when
it is full; nothing of it is forgotten for the sake of others.

A ``Memo`` keeps the results of a function that is handed what peers wrote. It forgets the older half of them when they
weigh too much.

Both report name, entries, bytes and bound, and name the attributes that they stand for, so that a test can find a
container that nobody thought of. Weights are estimates of what CPython uses, rather too high than too low.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any, Protocol, TypeVar

from mqspark.errors import TableFull

__all__ = ["ENTRY_BYTES", "MEMOS", "Bounded", "Ledger", "Memo", "Tables", "text_bytes", "weigh"]

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

ENTRY_BYTES = 104
"""A dict's own part of an entry, with the free places that it keeps."""
CONTAINER_BYTES = 232
"""A small dict or set."""
NUMBER_BYTES = 32
MEMO_BYTES = 4 << 20
"""Of each memo: each process has a dozen."""
_TEXT_BYTES = 56
_WIDE_BYTES = 5
"""Of a character, as a string and as the UTF-8 that CPython may keep beside it."""


class Bounded(Protocol):
    """What is known of every table and cache."""

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


class Ledger:
    """``holds``: the attributes that it stands for, as ``Class.attribute``. ``setting``: the key of its bound."""

    __slots__ = ("_bound", "bytes", "entries", "holds", "name", "refused", "setting")

    def __init__(self, name: str, bound: Callable[[], int], *holds: str, setting: str = "") -> None:
        self.name = name
        self.holds = holds
        self.setting = setting
        self._bound = bound
        self.entries = 0
        self.bytes = 0
        self.refused = 0
        """Entries that were not taken for want of room."""

    @property
    def bound(self) -> int:
        return self._bound()

    def has_room(self, size_bytes: int) -> bool:
        """False counts as a refusal."""
        if self.bytes + size_bytes <= self._bound():
            return True
        self.refused += 1
        return False

    def admit(self, size_bytes: int) -> None:
        """Raises TableFull when there is no room for so much; changes nothing."""
        if not self.has_room(size_bytes):
            raise TableFull(self.name, self.bytes, self.bound, self.setting)

    def refuse(self, count: int, most: int, setting: str, *, of: str = "") -> TableFull:
        """What to raise for an entry more than ``most``, whatever it weighs."""
        self.refused += 1
        return TableFull(self.name + of, count, most, setting, unit="entries")

    def charge(self, size_bytes: int) -> None:
        """One entry more. Raises TableFull and changes nothing when there is no room."""
        self.admit(size_bytes)
        self.note(size_bytes)

    def note(self, size_bytes: int) -> None:
        """One entry more that is not to be refused: a file's, or the broker's own."""
        self.entries += 1
        self.bytes += size_bytes

    def resize(self, old_bytes: int, new_bytes: int) -> None:
        """An entry has another value. Raises TableFull and changes nothing when it grows and there is no room."""
        if new_bytes > old_bytes:
            self.admit(new_bytes - old_bytes)
        self.bytes += new_bytes - old_bytes

    def free(self, size_bytes: int, entries: int = 1) -> None:
        self.entries -= entries
        self.bytes -= size_bytes

    def clear(self) -> None:
        self.entries = self.bytes = 0


class Memo(dict[K, V]):
    """``memo[key]`` is ``function(key)``, worked out when it is not there. A result that would take an eighth of the
    room is not kept."""

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
        """``weigh(key, value)``: of both, without the entry. ``holds``: the attribute that it is; None for one that
        lives as long as its process."""
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
        size_bytes = self._size(key, value)
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

    def _size(self, key: K, value: V) -> int:
        return ENTRY_BYTES + (weigh(key) + weigh(value) if self._weigh is None else self._weigh(key, value))

    def _forget_half(self) -> None:
        items = list(self.items())
        half = (len(items) + 1) // 2
        for key, _ in items[:half]:
            self.pop(key, None)
        self.bytes = sum(self._size(key, value) for key, value in items[half:])


MEMOS: list[Memo[Any, Any]] = []
"""Of this process, whichever broker or client uses them."""


class Tables:
    """All tables and caches of one broker or name server."""

    def __init__(self, *tables: Bounded) -> None:
        self._tables = tables

    def __iter__(self) -> Iterator[Bounded]:
        """Those of the process, too."""
        return iter((*self._tables, *MEMOS))


def text_bytes(*texts: str | bytes | None) -> int:
    """What strings take, however CPython keeps them."""
    size_bytes = 0
    for text in texts:
        if text is not None:
            narrow = isinstance(text, bytes) or text.isascii()
            size_bytes += _TEXT_BYTES + len(text) * (1 if narrow else _WIDE_BYTES)
    return size_bytes


def weigh(value: Any) -> int:
    """What a value made of strings, numbers, containers and plain objects takes; costs as much as looking at all of
    it."""
    if value is None or isinstance(value, bool):
        return 0
    if isinstance(value, (str, bytes)):
        return text_bytes(value)
    if isinstance(value, (int, float)):
        return 0 if -5 <= value <= 256 else NUMBER_BYTES  # CPython has the small ones once
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
