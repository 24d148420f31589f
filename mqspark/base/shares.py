"""What each user holds of what is for all, so that none of them uses up what others need.

Tables that peers can grow count by user as well as in all (``bounded.Ledger.shares``). An entry belongs to the user
whose request made it, until it is gone: the table keeps the name that ``Shares.admit`` returns, and gives it to
``hold`` and ``release``. Super users, and everybody where there are no users, are the empty name, which is not counted.

``TimedShares`` are for what ends at a known time, such as a delayed message: nobody has to report its end.

Counts are kept in memory. What a start finds belongs to nobody: only an operator starts a broker, so each start gives a
user room for one share more.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

from mqspark.base.clock import MINUTE_MS
from mqspark.base.config import Bound, Limit, reader
from mqspark.errors import TableFull

NOBODY = ""
SETTING = "maxTableSharePerUser"


class Holders:
    """The users of one broker whom limits are for."""

    def __init__(
        self,
        user_of: Callable[[Any], str],
        refused: Callable[[Any, str, str], None],
        percent: Bound,
        bound: Bound,
    ) -> None:
        """``user_of(session)``: whose entries a session makes, or NOBODY. ``refused(session, kind, remark)`` is called
        for each refusal. ``percent``: the part that one user may hold of each table, and of the ``bound`` in bytes of
        all tables together; 0: no limit."""
        self.user_of = user_of
        self.refused = refused
        self._percent = reader(percent)
        self._bound = reader(bound)
        self.bytes: Counter[str] = Counter()
        """By user, in all tables."""

    def part(self, whole: int) -> int:
        percent = self._percent()
        return max(1, whole * percent // 100) if 0 < percent < 100 else sys.maxsize

    @property
    def bound(self) -> int:
        """The bytes that one user may hold in all tables."""
        return self.part(self._bound())

    def count(self, user: str, size_bytes: int) -> None:
        self.bytes[user] += size_bytes
        if not self.bytes[user]:
            del self.bytes[user]


class _Held:
    __slots__ = ("bytes", "entries")

    def __init__(self) -> None:
        self.entries = 0
        self.bytes = 0


class Shares:
    """What each user holds of one kind of entries."""

    __slots__ = ("_bound", "_held", "_most", "holders", "kind", "refused")

    def __init__(self, kind: str, bound: Bound | None = None, most: Bound | None = None) -> None:
        """``bound``: the bytes, and ``most`` the entries, of all users together; None: no limit."""
        self.kind = kind
        self.holders: Holders | None = None
        """None: nobody is counted."""
        self._bound = None if bound is None else reader(bound)
        self._most = None if most is None else reader(most)
        self._held: dict[str, _Held] = {}
        self.refused = 0
        """Number of refused entries."""

    def limit_entries(self, most: Bound) -> None:
        self._most = reader(most)

    def admit(self, session: object, size_bytes: int = 0, entries: int = 1) -> str:
        """The user to whom the new entry belongs. Changes nothing. Raises TableFull when the user holds their share."""
        holders = self.holders
        if holders is None:
            return NOBODY
        user = holders.user_of(session)
        if user and (problem := self._problem(holders, user, size_bytes, entries)) is not None:
            self.refused += 1
            holders.refused(session, self.kind, str(problem))
            raise problem
        return user

    def user_of(self, session: object) -> str:
        """Whose entries a session makes, for what must not be refused."""
        return NOBODY if self.holders is None else self.holders.user_of(session)

    def has_room(self, session: object, size_bytes: int = 0, entries: int = 1) -> str | None:
        """Like ``admit``; None instead of an error."""
        try:
            return self.admit(session, size_bytes, entries)
        except TableFull:
            return None

    def has_room_for(self, user: str, size_bytes: int = 0, entries: int = 1) -> bool:
        """Whether ``user`` may hold a new entry that no request makes. False counts as a refusal."""
        holders = self.holders
        if holders is None or not user or self._problem(holders, user, size_bytes, entries) is None:
            return True
        self.refused += 1
        return False

    def _problem(self, holders: Holders, user: str, size_bytes: int, entries: int) -> TableFull | None:
        held = self._held.get(user)
        name = f"{self.kind} of User:{user}"
        held_entries, held_bytes = (0, 0) if held is None else (held.entries, held.bytes)
        if self._most is not None and held_entries + entries > (most := holders.part(self._most())):
            return TableFull(name, held_entries, most, SETTING, unit="entries")
        if self._bound is not None:
            if held_bytes + size_bytes > (bound := holders.part(self._bound())):
                return TableFull(name, held_bytes, bound, SETTING)
            if (in_all := holders.bytes.get(user, 0)) + size_bytes > holders.bound:
                name = f"{self.kind}, with all other tables, of User:{user}"
                return TableFull(name, in_all, holders.bound, SETTING)
        return None

    def hold(self, user: str, size_bytes: int = 0, entries: int = 1) -> None:
        """Count an entry that ``admit`` has allowed, or that must not be refused."""
        if user:
            held = self._held.get(user)
            if held is None:
                held = self._held[user] = _Held()
            held.entries += entries
            held.bytes += size_bytes
            if size_bytes and self.holders is not None:
                self.holders.count(user, size_bytes)

    def release(self, user: str, size_bytes: int = 0, entries: int = 1) -> None:
        """An entry is gone."""
        if user:
            held = self._held[user]
            held.entries -= entries
            held.bytes -= size_bytes
            if not held.entries and not held.bytes:
                del self._held[user]
            if size_bytes and self.holders is not None:
                self.holders.count(user, -size_bytes)

    def held(self, user: str) -> tuple[int, int]:
        """(entries, bytes) of a user."""
        held = self._held.get(user)
        return (0, 0) if held is None else (held.entries, held.bytes)


class TimedShares(Shares):
    """What each user holds until a time, to the minute."""

    __slots__ = ("_ends", "_now_ms", "_per_user")

    def __init__(self, kind: str, per_user: Limit, now_ms: Callable[[], int]) -> None:
        """``per_user``: the entries of one user; 0: no limit. ``now_ms``: wall time."""
        super().__init__(kind)
        self._per_user = per_user
        self._now_ms = now_ms
        self._ends: dict[str, dict[int, int]] = {}
        """user → minute → entries that end before it."""

    def _problem(self, holders: Holders, user: str, size_bytes: int, entries: int) -> TableFull | None:
        most = self._per_user.read()
        if most and self.held(user)[0] + entries > most:
            self._end(user)
            if self.held(user)[0] + entries > most:
                name = f"{self.kind} of User:{user}"
                return TableFull(name, self.held(user)[0], most, self._per_user.key, unit="entries")
        return None

    def hold_until(self, user: str, end_ms: int) -> None:
        """Count an entry, as ``hold``. ``end_ms``: wall time."""
        if user:
            self.hold(user)
            minute = end_ms // MINUTE_MS + 1
            ends = self._ends.setdefault(user, {})
            if minute not in ends:
                self._end(user)
            ends[minute] = ends.get(minute, 0) + 1

    def _end(self, user: str) -> None:
        """Release what is over."""
        ends = self._ends.get(user, {})
        this_minute = self._now_ms() // MINUTE_MS
        for minute in [minute for minute in ends if minute <= this_minute]:
            self.release(user, 0, ends.pop(minute))
