"""Pulls of logic queues: which part a pull reads, and what its answer means in logic offsets
(PullMessageProcessor.rewriteRequestForStaticTopic, rewriteResponseForStaticTopic).

Facts: docs/rocketmq/statictopics.md#pull.
"""

from __future__ import annotations

from typing import NamedTuple

from mqspark.broker.statictopic.logicqueues import LogicQueue, Part, logic_offset, physical_offset
from mqspark.broker.statictopic.mappings import StaticTopic
from mqspark.protocol.codes import ResponseCode


class PullOutcome(NamedTuple):
    """Where a reader is: the outcome of a pull, in offsets of one kind."""

    code: int
    next_offset: int
    min_offset: int
    max_offset: int
    delta: int = 0
    """What a client adds to the offsets of the records (offsetDelta)."""


class LogicRead:
    """A pull of a logic queue, led by this broker, from a logic offset. ``part`` is the part that holds it."""

    __slots__ = ("_queue", "commit_part", "is_local", "offset", "part", "queue_id")

    def __init__(self, topic: StaticTopic, number: int, offset: int, commit_offset: int) -> None:
        """Raises Refusal."""
        queue = topic.leading(number, "cannot find mapping item in request process of current broker")
        part = queue.part_at(offset)
        self._queue: LogicQueue = queue
        self.part: Part = part
        self.queue_id = part.queue_id
        self.offset = physical_offset(part, offset)
        """In the physical queue. Negative when the part begins later."""
        self.is_local = topic.is_local(part)
        commit_part = queue.part_at(commit_offset)
        self.commit_part = commit_part if topic.is_local(commit_part) else None
        """The part whose progress the pull's commit offset is, if this broker keeps it."""

    def limited(self, max_messages: int) -> int:
        """How many messages may be read: not more than a part whose end is decided has."""
        length = self.part.end_offset - self.part.start_offset
        return min(length, max_messages) if length > 0 else max_messages

    def committed(self, offset: int) -> tuple[int, int]:
        """Physical queue and offset of a progress that the pull commits; offset -1 if another broker keeps it."""
        part = self.commit_part
        return (0, -1) if part is None else (part.queue_id, physical_offset(part, offset))

    def is_read(self, offset: int, max_offset: int) -> bool:
        """Whether ``offset`` is the end of a part that has a next one."""
        return offset >= max_offset and self._queue.next_of(self.part) is not None

    def shown(self, offset: int, found: PullOutcome) -> PullOutcome:
        """What the answer of the physical queue to a pull from ``offset`` means for the reader of the logic queue."""
        part = self.part
        if found.code != ResponseCode.SUCCESS:
            part, found = self._moved(offset, found)
        return self._in_logic_offsets(part, found)

    def same(self, found: PullOutcome) -> PullOutcome:
        """``found`` in logic offsets, whatever its code is."""
        return self._in_logic_offsets(self.part, found)

    def _in_logic_offsets(self, part: Part, found: PullOutcome) -> PullOutcome:
        next_offset = found.next_offset
        if part.end_offset > part.start_offset:
            next_offset = min(next_offset, part.end_offset)
        return PullOutcome(
            found.code,
            logic_offset(part, next_offset),
            logic_offset(part, found.min_offset),
            max(logic_offset(part, found.max_offset), self._queue.last_offset),
            part.logic_offset - part.start_offset,
        )

    def _moved(self, offset: int, found: PullOutcome) -> tuple[Part, PullOutcome]:
        """Nothing was found: a reader at the end of an earlier part goes on with the next one, and one before the
        beginning of a part with its first message."""
        part, queue = self.part, self._queue
        code, next_offset, min_offset, max_offset, _ = found
        is_leader, is_earliest = part.gen == queue.leader.gen, part.gen == queue.earliest.gen
        if is_leader:
            if offset > max_offset:
                if code == ResponseCode.PULL_OFFSET_MOVED:
                    next_offset = max_offset
            elif offset < min_offset:
                code, next_offset = ResponseCode.PULL_RETRY_IMMEDIATELY, min_offset
        if is_earliest and offset < min_offset:
            code, next_offset = ResponseCode.PULL_OFFSET_MOVED, min_offset
        elif is_earliest or not is_leader:
            if offset < min_offset:
                code, next_offset = ResponseCode.PULL_RETRY_IMMEDIATELY, min_offset
            elif offset >= max_offset:
                following = queue.next_of(part)
                if following is not None:
                    start = following.start_offset
                    return following, PullOutcome(ResponseCode.PULL_RETRY_IMMEDIATELY, start, start, start)
                code = ResponseCode.PULL_NOT_FOUND  # perhaps the next part has no logic offset yet
        return part, PullOutcome(code, next_offset, min_offset, max_offset)
