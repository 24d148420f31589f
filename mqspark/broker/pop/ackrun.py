"""Acknowledgements that a client in the broker's own process gives at once: they need no requests, and are answered
together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from mqspark.base.shares import NOBODY
from mqspark.protocol.codes import ResponseCode
from mqspark.protocol.command import Command, encode_response
from mqspark.protocol.connection import MAX_ANSWER_HEADER_BYTES, Connection
from mqspark.protocol.receipts import Receipt
from mqspark.protocol.session import Session


class AckedTogether(NamedTuple):
    """Messages of one queue that one pop has handed out."""

    topic: str
    """Where they are stored."""
    group: str
    receipt: Receipt
    """The receipt of any of them: its offset does not count."""
    numbers: list[int]
    """By which the caller knows them."""
    offsets: list[int]
    """The offset of each of them."""


STORED = encode_response(0, ResponseCode.SUCCESS)
"""The frame that waits in ``Acks`` for a run."""


class AckRecord:
    """The acknowledgements of one check point that arrived in this turn."""

    __slots__ = ("answers", "held", "limits", "offsets", "owner", "problem", "room", "runs")

    def __init__(self) -> None:
        self.owner = NOBODY
        """The user who holds it."""
        self.held = 0
        """The records of the log that it becomes."""
        self.room = 0
        """The most offsets that these have."""
        self.limits = 1, 0
        """The first and the last offset that the queue has for sure in this turn; none before somebody has looked."""
        self.offsets: dict[int, None] = {}
        self.answers: list[Answer] = []
        self.runs: list[AckRun] = []
        """Runs of which this is the last record."""
        self.problem: Exception | None = None
        """Why the record could not be stored."""

    def takes(self, offsets: Sequence[int]) -> bool:
        """Take offsets, or none of them where somebody has to look closer."""
        low, high = self.limits
        known = self.offsets
        if low > min(offsets) or max(offsets) > high or len(known) + len(offsets) > self.room:
            return False
        for offset in offsets:
            known[offset] = None
        return True


Answer = tuple[Session, int, int, Sequence[AckRecord]]
"""The session that waits, request code, opaque, and the records it waits for; the last one determines the answer."""


class AckRun:
    """A ``Receiver`` of the one frame that answers all that wait for the store."""

    __slots__ = ("acks", "answers", "asked", "waiting")

    def __init__(self, acks: Iterable[AckedTogether]) -> None:
        self.acks = acks
        self.answers: dict[int, Command | Exception] = {}
        """What the broker says instead of success, by numbers, or why it is not known to have said anything."""
        self.asked = 0
        """Requests without an answer, where the broker is another process."""
        self.waiting: list[tuple[AckRecord, list[int]]] = []
        """The numbers that the store has not answered yet, and what they wait for."""

    def done(self) -> None:
        """All are answered. Not called if they are when the broker has taken the run."""
        raise NotImplementedError

    def refuse(self, numbers: Iterable[int], frame: bytes) -> None:
        (answer,) = Connection(max_header_bytes=MAX_ANSWER_HEADER_BYTES).receive_data(frame)
        self.answers.update(dict.fromkeys(numbers, answer))

    def written(self) -> int:
        """Their records are in the log, or could not be put there. Returns how many wait for the store now."""
        waiting = self.waiting
        if len(waiting) == 1 and waiting[0][0].problem is None:
            return len(waiting[0][1])
        rest, count = [], 0
        for record, numbers in waiting:
            if record.problem is None:
                rest.append((record, numbers))
                count += len(numbers)
            else:
                self.refuse(numbers, not_stored(0, record.problem))
        self.waiting = rest
        return count

    def send(self, buffer: bytes | memoryview, /, *more: bytes | memoryview) -> None:
        if buffer is not STORED:
            for _, numbers in self.waiting:
                self.refuse(numbers, bytes(buffer))
        self.waiting = []
        self.done()


class AckRuns:
    """A ``Receiver`` for runs that wait for the same end of the log."""

    __slots__ = ("runs",)

    def __init__(self) -> None:
        self.runs: list[AckRun] = []

    def send(self, buffer: bytes | memoryview, /, *more: bytes | memoryview) -> None:
        for run in self.runs:
            run.send(buffer)


def not_stored(opaque: int, problem: Exception) -> bytes:
    remark = f"the acknowledgement could not be stored: {problem}"
    return encode_response(opaque, ResponseCode.SYSTEM_ERROR, remark=remark)
