"""Whether a master is cut off from all its slaves, while both reach the controller.

Such a master acknowledges nothing, and its heartbeats say that it is well. So both ends of each link say in their
heartbeats for how long they have not heard the other one. A link is broken if one of them hears nothing: bytes that
arrive in one direction only copy no log. A master with one unbroken link to an heir stays, whatever the others say:
a slave that hears nobody deposes no good master.

If all links are broken, the heirs are asked whom else they reach. The leadership moves to one that can lead more than
half of the heirs, itself included, and that has everything; so the majority of the heirs and the controller decide. It
does not move back by itself, and not again before the new master was well for one timeout, or for a while, which is
longer each time.

Must not know connections.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from mqspark.base.clock import Clock
from mqspark.controller.replicasets import ReplicaSet
from mqspark.controller.succession import Standing, choose

ASKS_AT, MOVES_AT, LASTS = 0.25, 0.375, 0.125
"""Shares of the master's timeout: the silence at which heirs are asked whom they reach, the one at which a link is
broken, and for how long all links have to be broken."""
HOLD_TIMEOUTS = 4
"""For how many timeouts the leadership does not move again; doubled each time."""
LONGEST_HOLD_MS = 600_000


class LinkStanding(Standing, Protocol):
    """What a replica says of its links."""

    @property
    def last_seen_ms(self) -> int: ...

    @property
    def timeout_ms(self) -> int: ...

    @property
    def silences_ms(self) -> Mapping[int, int]:
        """For how long it has not heard other replicas: a slave its master, a master its slaves."""

    @property
    def reaches(self) -> frozenset[int]:
        """Who has answered it lately, of those whom it was asked to try."""


@dataclass(slots=True)
class _Hold:
    until_ms: int = 0
    for_ms: int = 0
    well_since_ms: int | None = None
    """Since when the new master has an unbroken link."""


class Severance:
    """``standing(name, id)``: of a replica that is alive."""

    def __init__(self, clock: Clock, standing: Callable[[str, int], LinkStanding | None]) -> None:
        self._clock = clock
        self._standing = standing
        self._since_ms: dict[str, int] = {}
        """Since when all links of a master are broken."""
        self._holds: dict[str, _Hold] = {}

    def forget(self, name: str) -> None:
        """The set is gone."""
        self._since_ms.pop(name, None)
        self._holds.pop(name, None)

    def asks(self, found: ReplicaSet, broker_id: int) -> dict[int, str]:
        """The heirs that this heir should try to reach, and their addresses: its links to the master seem broken."""
        if (
            broker_id == found.master
            or broker_id not in found.heirs
            or self._cut_off_ms(found, ASKS_AT) is None
        ):
            return {}
        others = found.heirs - {broker_id, found.master}
        return {each: found.replicas[each].address for each in sorted(others) if each is not None}

    def successor(self, found: ReplicaSet) -> int | None:
        """Who should lead instead of the master; None if it stays."""
        now_ms, name = self._clock.monotonic_ms(), found.name
        hold = self._holds.get(name)
        said_ms = self._cut_off_ms(found, MOVES_AT)
        if said_ms is None:
            self._since_ms.pop(name, None)
            if hold is not None:
                self._ease(hold, found, now_ms)
            return None
        if hold is not None:
            hold.well_since_ms = None
        since_ms = self._since_ms.setdefault(name, now_ms)
        master = None if found.master is None else self._standing(name, found.master)
        if master is None or said_ms <= since_ms or now_ms - since_ms < LASTS * master.timeout_ms:
            return None  # it may have been one moment at which the master or the slaves stood still
        if hold is not None and now_ms < hold.until_ms:
            return None
        chosen = choose(found, self._leaders(found), None, unclean=False).master
        if chosen is not None:
            del self._since_ms[name]
            self._hold(name, HOLD_TIMEOUTS * master.timeout_ms, now_ms)
        return chosen

    def _ease(self, hold: _Hold, found: ReplicaSet, now_ms: int) -> None:
        master = None if found.master is None else self._fresh(found.name, found.master)
        if master is None or hold.until_ms <= now_ms:
            return
        if hold.well_since_ms is None:
            hold.well_since_ms = now_ms
        elif now_ms - hold.well_since_ms >= master.timeout_ms:
            hold.until_ms = now_ms

    def _hold(self, name: str, least_ms: int, now_ms: int) -> None:
        hold = self._holds.setdefault(name, _Hold())
        was_lately = hold.for_ms and now_ms - hold.until_ms < LONGEST_HOLD_MS
        hold.for_ms = min(2 * hold.for_ms, LONGEST_HOLD_MS) if was_lately else least_ms
        hold.until_ms, hold.well_since_ms = now_ms + hold.for_ms, None

    def _leaders(self, found: ReplicaSet) -> dict[int, LinkStanding]:
        """Heirs that more than half of the heirs can follow."""
        others = {
            each: standing
            for each in found.heirs
            if each != found.master and (standing := self._standing(found.name, each)) is not None
        }
        return {
            each: standing
            for each, standing in others.items()
            if 2 * (1 + sum(each in other.reaches for key, other in others.items() if key != each))
            > len(found.heirs)
        }

    def _cut_off_ms(self, found: ReplicaSet, share: float) -> int | None:
        """If the controller hears the master, and no heir has an unbroken link to it: since when every link was last
        said to be broken. Else None."""
        master, others = found.master, found.heirs - {found.master}
        said = None if master is None else self._fresh(found.name, master)
        if said is None or master is None or not others:
            return None
        limit_ms, least_ms = share * said.timeout_ms, self._clock.monotonic_ms()
        for each in others:
            if each not in said.silences_ms:
                return None
            heir = self._fresh(found.name, each)
            ends = [said, heir] if heir is not None else [said]
            broken_ms = [
                end.last_seen_ms
                for end, other in zip(ends, (each, master), strict=False)
                if end.silences_ms.get(other, 0) >= limit_ms
            ]
            if not broken_ms:
                return None
            least_ms = min(least_ms, max(broken_ms))
        return least_ms

    def _fresh(self, name: str, broker_id: int) -> LinkStanding | None:
        """What a replica has said a moment ago."""
        found = self._standing(name, broker_id)
        if found is None or self._clock.monotonic_ms() - found.last_seen_ms > MOVES_AT * found.timeout_ms:
            return None
        return found
