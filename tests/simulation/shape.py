"""What kind of cluster a seed plays, and who uses it.

A part of the runs has a name server, and programs with this project's own client, which find the brokers by their
routes; the others ask the brokers directly. That is cheaper, and finds what a client that retries would hide.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

DELAYS_S = (1, 2)
"""The delay levels of the brokers."""

TICK_MS = 100
"""The tick of timers."""
TIMER_SLOTS = 4_096
"""Slots of the timer wheel, which is 37 MB otherwise."""

USERS = ("producer", "delays", "transactions", "push", "pop")
"""Programs that go by routes."""


STORIES = ("majority", "return", "grown", "grown lost", "torn copy", "tables")
"""Runs whose faults are not drawn one by one: they lead to a moment at which a mistake would show."""
HALTS = ("unknown", "heard")
"""Stories in which something would stand still: the bounds are below."""


LEADS = ("alone", "shrunk", "severed", "taken back")
"""Stories in which the one who leads is damaged, or cut off, when nobody else is in the SyncStateSet, or leads again
soon after the end of its log was taken back."""
SHARES = ((0.15, STORIES), (0.04, HALTS), (0.08, ("spoilt",)), (0.06, ("changed",)), (0.04, LEADS))
"""The shares of all seeds which have one of these stories: "spoilt" is that a replica comes back damaged, "changed"
that the cluster changes as a whole."""


@dataclass(frozen=True, slots=True)
class Shape:
    flush: str
    """flushDiskType. With ASYNC_FLUSH no power is cut: a message is acknowledged before it is synced."""
    min_in_sync: int
    users: frozenset[str]
    """Some of USERS."""
    window: int
    """Messages that a producer without routes sends at once."""
    tables_s: float
    """How often slaves copy tables."""
    story: str = ""
    """One of those in SHARES."""

    @property
    def lag_s(self) -> float:
        """How much longer the bytes of some connections take than those of others between the same hosts."""
        return {"grown": 0.04, "grown lost": 0.04, "tables": 0.4}.get(self.story, 0.0)

    @property
    def most_gap_s(self) -> float | None:
        """How long there may be no acknowledgement: a slave that is silent is waited for, and a controller that comes
        back. None: it depends on the faults."""
        return {"unknown": 6.0, "severed": 5.0}.get(self.story)

    @property
    def most_route_s(self) -> float | None:
        """How long a name server may name another master than the controller. None: it depends on the faults."""
        return 3.0 if self.story == "heard" else None

    @property
    def is_reread(self) -> bool:
        """Whether somebody reads the whole log again and again."""
        return self.story in ("spoilt", "alone", "shrunk")

    @property
    def check_bytes(self) -> int:
        """What a slave compares of the end of a log before it copies more. What is before is left to its healing."""
        return 4_000 if self.story == "spoilt" else 1 << 20

    @property
    def may_be_spoilt(self) -> bool:
        """Whether a broker may come back damaged: what is acknowledged is synced, and on two."""
        return self.flush == "SYNC_FLUSH" and self.min_in_sync > 1

    @property
    def has_routes(self) -> bool:
        return bool(self.users)

    @property
    def has_timers(self) -> bool:
        """POP needs them."""
        return not self.users.isdisjoint(("pop", "delays"))

    @property
    def broker_settings(self) -> dict[str, Any]:
        settings = {"flushDiskType": self.flush, "minInSyncReplicas": self.min_in_sync}
        if self.story == "torn copy":
            settings["haTransferBatchSize"] = 1_500
        if self.has_timers:
            settings |= {
                "timerWheelEnable": True,
                "timerPrecisionMs": TICK_MS,
                "timerMaxDelaySec": 60,
                "timerRollWindowSlot": TIMER_SLOTS // 3,
                "timerFlushIntervalMs": 300,
                "mappedFileSizeTimerLog": 32 << 10,
            }
        return settings

    def __str__(self) -> str:
        users = ", ".join(sorted(self.users)) or "no routes"
        story = f", {self.story}" if self.story else ""
        return (
            f"{self.flush}, minInSyncReplicas={self.min_in_sync}, {self.window} sent at once, {users}{story}"
        )


def draw_shape(seed: int) -> Shape:
    chance = random.Random(f"shape {seed}")
    users: frozenset[str] = frozenset()
    if chance.random() < 0.25:
        users = frozenset(user for user in USERS if chance.random() < 0.4) or frozenset({"producer"})
    shape = Shape(
        "ASYNC_FLUSH" if chance.random() < 0.1 else "SYNC_FLUSH",
        1 if chance.random() < 0.15 else 2,
        users,
        chance.choice((1, 1, 8)),
        chance.choice((1.0, 3.0)),
    )
    return _with_story(seed, shape)


def _with_story(seed: int, shape: Shape) -> Shape:
    chance = random.Random(f"story {seed}")
    share = chance.random()
    for part, stories in SHARES:
        if share < part:
            return _told(shape, chance.choice(stories))
        share -= part
    return shape


def _told(shape: Shape, story: str) -> Shape:
    users = {"tables": frozenset({"delays"}), "heard": frozenset({"producer"})}.get(story, frozenset())
    flush = "ASYNC_FLUSH" if story == "torn copy" else "SYNC_FLUSH"
    tables_s = 3.0 if story in ("grown", "grown lost", "tables") else shape.tables_s
    if story in ("spoilt", "changed", *LEADS):
        users = shape.users
    window = 8 if story == "taken back" else shape.window
    return Shape(flush, 1 if story == "alone" else 2, users, window, tables_s, story)
