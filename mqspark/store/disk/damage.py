"""Damage found in a store directory: one list, which feeds the health, log lines and metrics.

Every kind of damage has a name (``log.gap``), which ``mqspark store fsck`` uses as well. ``docs/damage.md``
lists how start, health, fsck and repair treat each kind. Damage is logged when it is noted.
"""

from __future__ import annotations

import enum
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from mqspark.base.logs import sparing

MAX_KEPT = 1000
"""Damages kept in detail; further ones are only counted."""
_MAX_LOGGED = 100

_log = sparing(__name__, lines=_MAX_LOGGED)


class Outcome(enum.StrEnum):
    HEALED = "healed"
    """Nothing is missing any more: it was restored from the log or from a second copy."""
    LOST = "lost"
    """Messages, or settings and offsets, are permanently lost."""
    WRONG = "wrong"
    """A problem that an operator has to solve."""


@dataclass(slots=True, frozen=True)
class LostOffsets:
    """Offsets [low, high) of a queue."""

    topic: str
    queue_id: int
    low: int
    high: int


@dataclass(slots=True, frozen=True)
class Damage:
    kind: str
    outcome: Outcome
    text: str
    offset: int | None = None
    """Physical offset, for damage of the log."""
    length: int | None = None
    queues: tuple[LostOffsets, ...] = field(default=())
    """The offsets whose messages are lost; the first hundred ranges."""


Note = Callable[[Damage], None]


class Damages:
    """Damage of one store since it was opened. Belongs to the store's thread."""

    def __init__(self) -> None:
        self.found: list[Damage] = []
        """The first thousand."""
        self.counts: Counter[tuple[str, str]] = Counter()
        """All damages by kind and outcome."""

    def clear(self) -> None:
        self.found.clear()
        self.counts.clear()

    def note(self, damage: Damage) -> None:
        if damage in self.found:
            return
        self.counts[damage.kind, damage.outcome.value] += 1
        if len(self.found) < MAX_KEPT:
            self.found.append(damage)
        level = logging.WARNING if damage.outcome is Outcome.HEALED else logging.ERROR
        _log.log(
            level, "%s, %s: %s%s", damage.kind, damage.outcome.value, damage.text, _listed(damage.queues)
        )

    def as_dicts(self, limit: int) -> list[dict[str, Any]]:
        """Damage that was not healed comes first."""
        ordered = sorted(self.found, key=lambda damage: damage.outcome is Outcome.HEALED)
        return [asdict(damage) for damage in ordered[:limit]]

    def summary(self) -> dict[str, int]:
        """Number of damages by outcome."""
        counts = dict.fromkeys((outcome.value for outcome in Outcome), 0)
        for (_, outcome), count in self.counts.items():
            counts[outcome] += count
        return counts


def _listed(queues: tuple[LostOffsets, ...]) -> str:
    if not queues:
        return ""
    listed = ", ".join(f"{each.topic}/{each.queue_id} {each.low}..{each.high - 1}" for each in queues[:20])
    return f" (offsets {listed}{', ...' if len(queues) > 20 else ''})"
