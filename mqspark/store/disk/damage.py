"""What was found to be damaged in a store directory: one list, from the start that finds it to health, log and metric.

Every kind of damage has a name (``log.gap``) that ``mqspark store fsck`` uses, too; ``docs/damage.md`` lists what a
start, the health, fsck and repair say to each. What was found is logged where it is noted, so nothing stays silent.
"""

from __future__ import annotations

import enum
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from mqspark.logs import sparing

__all__ = ["Damage", "Damages", "LostOffsets", "Note", "Outcome"]

MAX_KEPT = 1000
"""Beyond, what was found is counted."""
_MAX_LOGGED = 100

_log = sparing(__name__, lines=_MAX_LOGGED)


class Outcome(enum.StrEnum):
    HEALED = "healed"
    """Nothing is missing any more: the log, or a second copy, had it."""
    LOST = "lost"
    """Messages, or what an operator or a group had said, are gone for good."""
    WRONG = "wrong"
    """Something stands in the way that a person has to look at."""


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
    """Physical, where the log is meant."""
    length: int | None = None
    queues: tuple[LostOffsets, ...] = field(default=())
    """Whose messages are gone; the first hundred."""


Note = Callable[[Damage], None]


class Damages:
    """Of one store, since it was opened. Belongs to its thread."""

    __slots__ = ("counts", "found")

    def __init__(self) -> None:
        self.found: list[Damage] = []
        """The first thousand."""
        self.counts: Counter[tuple[str, str]] = Counter()
        """By kind and outcome, all."""

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
        """What nothing has healed comes first."""
        ordered = sorted(self.found, key=lambda damage: damage.outcome is Outcome.HEALED)
        return [asdict(damage) for damage in ordered[:limit]]

    def summary(self) -> dict[str, int]:
        """How many, by outcome."""
        counts = dict.fromkeys((outcome.value for outcome in Outcome), 0)
        for (_, outcome), count in self.counts.items():
            counts[outcome] += count
        return counts


def _listed(queues: tuple[LostOffsets, ...]) -> str:
    if not queues:
        return ""
    listed = ", ".join(f"{each.topic}/{each.queue_id} {each.low}..{each.high - 1}" for each in queues[:20])
    return f" (offsets {listed}{', ...' if len(queues) > 20 else ''})"
