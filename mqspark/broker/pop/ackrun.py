"""Acknowledgements that a client in the broker's own process gives at once: they need no requests, and are answered
together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from mqspark.base.shares import NOBODY
from mqspark.protocol.codes import ResponseCode
from mqspark.protocol.command import Command, encode_response
from mqspark.protocol.connection import MAX_ANSWER_HEADER_BYTES, Connection
from mqspark.protocol.receipts import Receipt
from mqspark.protocol.session import Session


class Acknowledged(NamedTuple):
    """A message that was handed out."""

    topic: str
    """Where it is stored."""
    group: str
    receipt: Receipt


STORED = encode_response(0, ResponseCode.SUCCESS)
"""The frame that waits in ``Acks`` for a run."""


class AckRecord:
    """The acknowledgements of one check point that arrived in this turn."""

    __slots__ = ("answers", "held", "offsets", "owner", "problem", "runs")

    def __init__(self) -> None:
        self.owner = NOBODY
        """The user who holds it."""
        self.held = 0
        """The records of the log that it becomes."""
        self.offsets: dict[int, None] = {}
        self.answers: list[Answer] = []
        self.runs: list[AckRun] = []
        """Runs of which this is the last record."""
        self.problem: Exception | None = None
        """Why the record could not be stored."""


Answer = tuple[Session, int, int, Sequence[AckRecord]]
"""The session that waits, request code, opaque, and the records it waits for; the last one determines the answer."""


class AckRun:
    """A ``Receiver`` of the one frame that answers all that wait for the store."""

    __slots__ = ("acks", "answers", "done", "records", "waiting")

    def __init__(self, acks: Sequence[Acknowledged], done: Callable[[], None]) -> None:
        """``done()`` is called when all are answered: not before the end of the turn."""
        self.acks = acks
        self.done = done
        self.answers: list[Command | None] = [None] * len(acks)
        """What the broker says to each instead of success."""
        self.waiting: list[int] = []
        """The numbers of those that the store has not answered yet."""
        self.records: list[AckRecord] = []
        """What each of them waits for."""

    def refuse(self, number: int, frame: bytes | memoryview) -> None:
        (self.answers[number],) = Connection(max_header_bytes=MAX_ANSWER_HEADER_BYTES).receive_data(
            bytes(frame)
        )

    def written(self) -> int:
        """Their records are in the log, or could not be put there. Returns how many wait for the store now."""
        rest = []
        for number, record in zip(self.waiting, self.records, strict=True):
            if record.problem is None:
                rest.append(number)
            else:
                self.refuse(number, not_stored(0, record.problem))
        self.waiting, self.records = rest, []
        return len(rest)

    def send(self, buffer: bytes | memoryview, /, *more: bytes | memoryview) -> None:
        if buffer is not STORED:
            for number in self.waiting:
                self.refuse(number, buffer)
        self.waiting = []
        self.done()


def not_stored(opaque: int, problem: Exception) -> bytes:
    remark = f"the acknowledgement could not be stored: {problem}"
    return encode_response(opaque, ResponseCode.SYSTEM_ERROR, remark=remark)
