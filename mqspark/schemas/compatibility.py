"""Whether a new version of a schema keeps the promise of its subject (Confluent's compatibility levels).

BACKWARD: readers with the new schema understand what was written by the version before; FORWARD: readers with the
version before understand what is written by the new one; FULL: both. ``_TRANSITIVE``: all versions before, not only the
last one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mqspark.schemas.parsedschema import MAX_PROBLEMS, Schema

NONE, BACKWARD, FORWARD, FULL = "NONE", "BACKWARD", "FORWARD", "FULL"
TRANSITIVE = "_TRANSITIVE"
RULES = (
    NONE,
    BACKWARD,
    f"{BACKWARD}{TRANSITIVE}",
    FORWARD,
    f"{FORWARD}{TRANSITIVE}",
    FULL,
    f"{FULL}{TRANSITIVE}",
)


class Incompatibility(NamedTuple):
    type: str
    """For programs: READER_FIELD_MISSING_DEFAULT_VALUE, TYPE_CHANGED, FIELD_KIND_CHANGED ..."""
    where: str
    """Path in the reader's schema."""
    message: str
    """Says which of the two schemas lacks what."""
    version: int
    """Place of the earlier version in what was given."""
    new_reads: bool
    """Whether the reader has the new schema."""

    def __str__(self) -> str:
        return f"{self.type} at {self.where or '/'}: {self.message}"


def incompatibilities(rule: str, new: Schema, earlier: Sequence[Schema]) -> list[Incompatibility]:
    """``earlier``: the versions before, the oldest first. No reasons: the new version may be registered.

    Raises ValueError for a rule that is none."""
    if rule not in RULES:
        raise ValueError(f"{rule!r} is none of the compatibility levels {', '.join(RULES)}")
    found: list[Incompatibility] = []
    if rule == NONE or not earlier:
        return found
    last = len(earlier) - 1
    chosen = range(last, -1, -1) if rule.endswith(TRANSITIVE) else (last,)
    base = rule.removesuffix(TRANSITIVE)
    for index in chosen:
        old = earlier[index]
        if old == new:
            continue
        if old.kind != new.kind:
            message = f"the new schema is of type {new.kind}, the old one of type {old.kind}"
            found.append(Incompatibility("SCHEMA_TYPE_CHANGED", "", message, index, base != FORWARD))
            continue
        if base in (BACKWARD, FULL):
            found += _reasons(new, old, "new", "old", index)
        if base in (FORWARD, FULL):
            found += _reasons(old, new, "old", "new", index)
        if len(found) >= MAX_PROBLEMS:
            break
    return list(dict.fromkeys(found))[:MAX_PROBLEMS]


def _reasons(
    reader: Schema, writer: Schema, read_by: str, written_by: str, index: int
) -> list[Incompatibility]:
    return [
        Incompatibility(kind, where, message, index, read_by == "new")
        for kind, where, message in reader.incompatibilities_of(writer, read_by, written_by)
    ]
