"""What the tasks of a write report to the driver. Plain values: they are pickled. Must not know how a write is done."""

from __future__ import annotations

from dataclasses import dataclass, field

from pyspark.sql.datasource import WriterCommitMessage

Half = tuple[int, int]
"""Offset in the queue of half messages, and physical offset."""


@dataclass(frozen=True, slots=True)
class Halves:
    """Half messages of one topic at one broker, in the order in which they become visible."""

    topic: str
    broker: str
    places: list[Half] = field(hash=False)
    group: str
    """The producer group, which may be another one when the query is started again."""


@dataclass
class Sent(WriterCommitMessage):  # type: ignore[misc]
    """What one task had acknowledged."""

    messages: int
    prepared: tuple[Halves, ...] = ()
    """Exactly once: the half messages of this task."""
    batch: Task | None = None
    """Exactly once: the batch that they belong to."""


@dataclass(frozen=True, slots=True)
class Task:
    """A batch that is written exactly once: ``number`` of ``identity``."""

    identity: str
    number: int
    topic: str
    """One of the topics that it is written to."""
