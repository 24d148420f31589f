"""Answers to changes of the name server's tables, held back until the change is on disk."""

from __future__ import annotations

from typing import NamedTuple

from mqspark.base.bounded import Ledger
from mqspark.base.clock import Clock
from mqspark.protocol.codes import ResponseCode
from mqspark.protocol.command import Command, encode_response
from mqspark.protocol.dispatch import ok
from mqspark.protocol.session import Session
from mqspark.store.disk.diskjobs import Job
from mqspark.store.disk.savedtables import MAX_WAITING_BYTES, WAITING_BYTES, SavedTable

SAVE_TIMEOUT_MS = 3_000
"""The longest time that an answer waits for the disk."""
_UNSAVED = "the change is in force, but could not be saved yet"


class _HeldAnswer(NamedTuple):
    session: Session
    opaque: int
    saved: SavedTable
    generation: int
    deadline_ms: int


class Saves:
    """Tables with their files. ``answer_due`` is called after each save, and regularly."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._tables: list[SavedTable] = []
        self._waiting: list[_HeldAnswer] = []
        self.ledger = Ledger("changes", MAX_WAITING_BYTES, "Saves._waiting")

    def add(self, table: SavedTable) -> None:
        self._tables.append(table)

    def answer(self, session: Session, command: Command, saved: SavedTable | None) -> bytes | None:
        """The answer; None if it follows once the table's current state is on disk. ``saved`` None: the table is in
        memory only."""
        if saved is None or not saved.behind or command.is_oneway:
            return ok(command)
        if not self.ledger.has_room(WAITING_BYTES):
            return encode_response(command.opaque, ResponseCode.SYSTEM_ERROR, remark=_UNSAVED)
        self.ledger.note(WAITING_BYTES)
        deadline_ms = self._clock.monotonic_ms() + SAVE_TIMEOUT_MS
        self._waiting.append(_HeldAnswer(session, command.opaque, saved, saved.generation, deadline_ms))
        return None

    def answer_due(self) -> None:
        now_ms, waiting = self._clock.monotonic_ms(), self._waiting
        self._waiting = []
        for each in waiting:
            if each.saved.saved_generation >= each.generation:
                each.session.send(encode_response(each.opaque, ResponseCode.SUCCESS))
            elif each.deadline_ms <= now_ms:
                each.session.send(encode_response(each.opaque, ResponseCode.SYSTEM_ERROR, remark=_UNSAVED))
            else:
                self._waiting.append(each)
                continue
            self.ledger.free(WAITING_BYTES)

    @property
    def behind(self) -> bool:
        return any(table.behind for table in self._tables)

    def jobs(self) -> list[Job]:
        return [table.job() for table in self._tables if table.behind]
