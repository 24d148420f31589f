"""Logic queues: which physical queue holds which part, and the arithmetic between the two kinds of offsets
(LogicQueueMappingItem, TopicQueueMappingUtils).

A part whose logic offset is not known yet (-1) is being written already, but nobody can read it: the queue is being
remapped.

Facts: docs/rocketmq/statictopics.md#offsets.
"""

from __future__ import annotations

from collections.abc import Sequence

from mqspark.protocol.bodies.topic_bodies import LogicQueueMappingItem
from mqspark.protocol.codes import ResponseCode
from mqspark.protocol.dispatch import Refusal

Part = LogicQueueMappingItem

UNDECIDED = -1

MAX_LOGIC_OFFSET = 1 << 61
"""Limit of what a mapping may claim, so that sums stay within 64 bits."""


def logic_offset(part: Part, offset: int) -> int:
    """The logic offset of an offset of the part's physical queue (computeStaticQueueOffsetStrictly)."""
    return part.logic_offset + max(0, offset - part.start_offset)


def physical_offset(part: Part, offset: int) -> int:
    """The reverse of ``logic_offset`` (computePhysicalQueueOffset)."""
    return offset - part.logic_offset + part.start_offset


def sent_offset(part: Part, offset: int) -> int:
    """The logic offset of a message that was stored, or of the first message; -1 while that of the part is not known
    (computeStaticQueueOffsetLoosely)."""
    if part.logic_offset < 0:
        return UNDECIDED
    if part.end_offset >= part.start_offset:
        offset = min(offset, part.end_offset)
    return logic_offset(part, offset)


def _last_offset(part: Part) -> int:
    """The logic offset of the part's decided end, or of its beginning (computeMaxStaticQueueOffset)."""
    length = part.end_offset - part.start_offset
    return part.logic_offset + length if length >= 0 else part.logic_offset


class LogicQueue:
    """One logic queue: its parts, oldest first, at least one."""

    __slots__ = ("leader", "number", "parts", "readable")

    def __init__(self, number: int, parts: Sequence[Part]) -> None:
        self.number = number
        self.parts = parts
        self.leader = parts[-1]
        """The part that is written to."""
        self.readable = [part for part in parts if part.logic_offset >= 0]

    @property
    def is_one(self) -> bool:
        """Whether logic and physical offsets are the same (checkIfAsPhysical)."""
        return len(self.parts) == 1 and self.leader.logic_offset == 0

    @property
    def earliest(self) -> Part:
        """The first part that can be read. Raises Refusal."""
        if not self.readable:
            raise Refusal(
                ResponseCode.SYSTEM_ERROR, f"no part of the logic queue {self.number} has a logic offset yet"
            )
        return self.readable[0]

    @property
    def latest(self) -> Part:
        """The last part that can be read. Raises Refusal."""
        return self.readable[-1] if self.readable else self.earliest

    @property
    def last_offset(self) -> int:
        """What is known of the logic end without asking a broker (computeMaxOffsetFromMapping)."""
        return _last_offset(self.leader)

    def part_at(self, offset: int) -> Part:
        """The part with this logic offset, the first one if it is before all (findLogicQueueMappingItem). Raises
        Refusal."""
        for part in reversed(self.readable):
            if offset >= part.logic_offset:
                return part
        return self.earliest

    def next_of(self, part: Part) -> Part | None:
        """The next part that can be read (findNext)."""
        return next((each for each in self.readable if each.gen > part.gen), None)


# --- checks -----------------------------------------------------------------------------------------------


def check_parts(parts: Sequence[Part]) -> None:
    """What one logic queue of a mapping must fulfil (checkLogicQueueMappingItemOffset). Raises Refusal."""
    gen = offset = -1
    for part in reversed(parts):
        if part.start_offset < 0 or part.gen < 0 or part.queue_id < 0:
            raise _illegal("The field is illegal, should not be negative")
        if max(part.start_offset, part.end_offset, part.logic_offset) > MAX_LOGIC_OFFSET:
            raise _illegal(f"The field is illegal, should not be over {MAX_LOGIC_OFFSET}")
        if part is not parts[-1] and part.logic_offset < 0:
            raise _illegal("The non-latest item has negative logic offset")
        if gen >= 0 and part.gen >= gen:
            raise _illegal("The gen does not increase monotonically")
        if part.end_offset != -1 and part.end_offset < part.start_offset:
            raise _illegal("The endOffset is smaller than the start offset")
        if offset != -1 and part.logic_offset != -1:
            if part.logic_offset >= offset:
                raise _illegal("The base logic offset does not increase monotonically")
            if _last_offset(part) >= offset:
                raise _illegal("The max logic offset does not increase monotonically")
        gen, offset = part.gen, part.logic_offset


def check_succession(old: Sequence[Part], new: Sequence[Part], *, epoch_equal: bool) -> None:
    """Whether ``new`` may take the place of ``old``: parts that both have are the same, but for a logic offset that
    was not known (makeSureLogicQueueMappingItemImmutable; RocketMQ checks this only with Java's assertions). Raises
    Refusal."""
    if not new:
        raise _illegal("The new item list is null or empty")
    known = {part.gen: part for part in old}
    for part in new:
        before = known.get(part.gen)
        if before is None:
            continue
        same = (part.bname, part.queue_id, part.start_offset) == (
            before.bname,
            before.queue_id,
            before.start_offset,
        )
        if not same or before.logic_offset not in (UNDECIDED, part.logic_offset):
            raise _illegal(f"The item of gen {part.gen} is immutable, and it is not the same")
    before, part = old[-1], new[-1]
    if epoch_equal and (part.gen, part.bname, part.queue_id, part.start_offset) != (
        before.gen,
        before.bname,
        before.queue_id,
        before.start_offset,
    ):
        raise _illegal("The new leader is different but epoch equal")


def _illegal(remark: str) -> Refusal:
    return Refusal(ResponseCode.SYSTEM_ERROR, remark)
