"""Messages of many queues as one sequence, from given offsets on, forth or back, in bounded steps.

Where a walk ends is said by an offset of each queue, which stays the same place whatever arrives and whatever is
deleted; the next walk begins there.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mqspark.message import MessageExt, MessageQueue
from mqspark_server.survey.surveying import each_of
from mqspark_server.survey.topicsurvey import ReadFilter, read_between

if TYPE_CHECKING:
    from mqspark.client.admin import AdminClient

Bounds = Mapping[MessageQueue, tuple[int, int]]
Places = Mapping[MessageQueue, int]
MAX_LOOKED_AT = 10_000
"""Offsets of one walk with a condition."""
MAX_READ_BYTES = 64 << 20
"""Bytes of the records that are read for one walk."""
STEP = 32
"""Offsets of one read; RocketMQ's brokers return no more messages."""
FILTERED_STEP = 256
"""Where the broker leaves out what is not wanted."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which messages. ``expression``: for the broker; ``accepts``: what no broker knows, and may inflate a body."""

    expression: str = "*"
    is_sql: bool = False
    accepts: Callable[[MessageExt], bool] | None = None
    most_bytes: int = MAX_READ_BYTES

    @property
    def is_all(self) -> bool:
        return not self.chosen and self.accepts is None

    @property
    def chosen(self) -> ReadFilter:
        if self.expression == "*":
            return {}
        return {"expression": self.expression, "expression_type": "SQL92" if self.is_sql else "TAG"}


@dataclass(slots=True)
class Walked:
    """``messages``: in the order of the walk. ``places``: where it goes on, of each queue: back with the offset before,
    forth with this one."""

    messages: list[MessageExt] = field(default_factory=list)
    places: dict[MessageQueue, int] = field(default_factory=dict)
    looked_at: int = 0
    read_bytes: int = 0
    is_more: bool = False

    def is_enough(self, wanted: Wanted) -> bool:
        return self.looked_at >= MAX_LOOKED_AT or self.read_bytes >= wanted.most_bytes


@dataclass(slots=True)
class _QueueWalk:
    """A queue. ``place``: up to where it is read; ``waiting``: what is read and not taken."""

    queue: MessageQueue
    place: int
    end: int
    is_back: bool
    waiting: deque[MessageExt] = field(default_factory=deque)

    @property
    def is_at_end(self) -> bool:
        return self.place <= self.end if self.is_back else self.place >= self.end

    @property
    def taken_to(self) -> int:
        return int(self.waiting[0].queue_offset) + self.is_back if self.waiting else self.place

    @property
    def newest_first(self) -> tuple[int, int, int]:
        each = self.waiting[0]
        return each.store_timestamp_ms, each.physical_offset, each.queue_offset

    def next_span(self, step: int) -> tuple[int, int]:
        if self.is_back:
            return max(self.end, self.place - step), self.place
        return self.place, min(self.end, self.place + step)


async def walk(
    admin: AdminClient, bounds: Bounds, places: Places | None, most: int, wanted: Wanted, *, is_back: bool
) -> Walked:
    """At most ``most`` messages by the times of their storing, and by offset within a queue: the newest first before
    ``places`` if it goes back, otherwise the oldest first from them on. It may end with fewer, and not be at the end,
    after MAX_LOOKED_AT offsets. A queue without a place has begun since: all in it is newer. No places: the ends.
    Raises MQError."""
    places = {queue: high for queue, (_, high) in bounds.items()} if places is None else places
    lanes = []
    for queue, (low, high) in bounds.items():
        place = min(max(places.get(queue, low), low), high)
        lanes.append(_QueueWalk(queue, place, low if is_back else high, is_back))
    found = Walked()
    step = _step(wanted, most, max(1, len(lanes)))

    async def refill(lane: _QueueWalk) -> None:
        if found.is_enough(wanted):
            return
        begin, end = lane.next_span(step)
        some = await read_between(admin, lane.queue, begin, end, **wanted.chosen)
        found.looked_at += end - begin
        found.read_bytes += sum(each.store_size_bytes for each in some)
        if wanted.accepts is not None:
            accepts = wanted.accepts
            some = await asyncio.to_thread(lambda: [each for each in some if accepts(each)])
        lane.waiting.extend(reversed(some) if is_back else some)
        lane.place = begin if is_back else end

    while len(found.messages) < most:
        empty = [lane for lane in lanes if not lane.waiting and not lane.is_at_end]
        if empty and not found.is_enough(wanted):
            await each_of(empty, refill)
            continue
        ready = [lane for lane in lanes if lane.waiting]
        if not ready:
            break
        choose = max if is_back else min
        found.messages.append(choose(ready, key=lambda lane: lane.newest_first).waiting.popleft())
    found.places = {lane.queue: lane.taken_to for lane in lanes}
    found.is_more = any(lane.waiting or not lane.is_at_end for lane in lanes)
    return found


def _step(wanted: Wanted, most: int, lanes: int) -> int:
    """Offsets of one read: few where many queues have more than enough together."""
    if wanted.is_all:
        return min(STEP, max(4, 2 * most // lanes))
    return min(FILTERED_STEP if wanted.chosen else STEP, max(4, MAX_LOOKED_AT // lanes))
