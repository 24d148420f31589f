"""Answers to changes, held back until the change is on disk and known to a name server.

A change is an operator's, or the topic that a first send creates. Must not know who saves tables and who talks to name
servers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from mqspark.bounded import Ledger
from mqspark.broker.config import BrokerConfig
from mqspark.broker.state.acks import Receiver
from mqspark.clock import Clock
from mqspark.protocol.codes import ResponseCode
from mqspark.protocol.command import Command, encode_response
from mqspark.protocol.session import Session
from mqspark.store.disk.saved import SavedTable

__all__ = ["PendingChanges"]

ANNOUNCEMENT_TIMEOUT_MS = 2_000
"""The longest time that the first send to a topic waits for a name server; less than a client's own timeout."""

CHANGE_TIMEOUT_MS = 3_000
"""The longest time that the answer to an operator's change waits for disk and name server."""


class _Change(NamedTuple):
    """An unanswered change."""

    session: Session
    done: bytes
    unsaved: bytes
    """The answer if saving takes too long."""
    saved: SavedTable | None
    """None: the answer does not wait for the disk."""
    generation: int
    published: bool
    """Whether a name server must know the change, too."""
    deadline_ms: int

    @property
    def size_bytes(self) -> int:
        return 1_000 + len(self.done) + len(self.unsaved)


class _Announcement:
    """A session's frame that is held until a name server knows the topics of ``generation``."""

    __slots__ = ("_changes", "_generation", "_session")

    def __init__(self, changes: PendingChanges, session: Session, generation: int) -> None:
        self._changes = changes
        self._session = session
        self._generation = generation

    def send(self, *buffers: bytes | memoryview) -> None:
        self._changes.announce(self._session, b"".join(buffers), self._generation)


class PendingChanges:
    """``published_generation`` tells which generation of the topics a name server knows, ``is_deleted`` whether all
    deletions of topics are on disk. ``answer_due`` is called when one of the two has advanced, and with time."""

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        published_generation: Callable[[], int],
        is_deleted: Callable[[], bool],
    ) -> None:
        self._config = config
        self._clock = clock
        self._published_generation = published_generation
        self._is_deleted = is_deleted
        self._waiting: list[_Change] = []
        self.ledger = Ledger(
            "changes", lambda: config.max_waiting_bytes, "PendingChanges._waiting", setting="maxWaitingBytes"
        )

    def answer_when_safe(
        self, session: Session, command: Command, saved: SavedTable, *, published: bool = False
    ) -> None:
        """Answer once the table is on disk as it is now and, if ``published``, a name server knows the topics."""
        if command.is_oneway:
            return
        deadline_ms = self._clock.monotonic_ms() + CHANGE_TIMEOUT_MS
        done = encode_response(command.opaque, ResponseCode.SUCCESS)
        remark = "the change is in force, but could not be saved yet"
        unsaved = encode_response(command.opaque, ResponseCode.SYSTEM_ERROR, remark=remark)
        change = _Change(session, done, unsaved, saved, saved.generation, published, deadline_ms)
        if not self._wait_for(change):
            session.send(unsaved)

    def once_known(self, session: Session, generation: int) -> Receiver:
        """Holds an answer back until a name server knows the topics of this generation."""
        return _Announcement(self, session, generation) if self._config.namesrv_addr else session

    def announce(self, session: Session, frame: bytes, generation: int) -> None:
        """Send ``frame`` once a name server knows the topics of ``generation``, or after ANNOUNCEMENT_TIMEOUT_MS."""
        if self._published_generation() < generation:
            deadline_ms = self._clock.monotonic_ms() + ANNOUNCEMENT_TIMEOUT_MS
            if self._wait_for(_Change(session, frame, frame, None, generation, True, deadline_ms)):
                return
        session.send(frame)

    def _wait_for(self, change: _Change) -> bool:
        """False if too many answers wait already."""
        if self._answer(change):
            return True
        has_room = self.ledger.has_room(change.size_bytes)
        if has_room:
            self.ledger.note(change.size_bytes)
            self._waiting.append(change)
        return has_room

    def answer_due(self) -> None:
        if not self._waiting:
            return
        waiting = []
        for change in self._waiting:
            if self._answer(change):
                self.ledger.free(change.size_bytes)
            else:
                waiting.append(change)
        self._waiting = waiting

    def _answer(self, change: _Change) -> bool:
        """False if it has to wait."""
        is_late = change.deadline_ms <= self._clock.monotonic_ms()
        is_saved = change.saved is None or (
            change.saved.saved_generation >= change.generation and self._is_deleted()
        )
        is_published = not change.published or self._published_generation() >= change.generation
        if is_saved and (is_published or is_late):
            change.session.send(change.done)
        elif is_late:
            change.session.send(change.unsaved)
        else:
            return False
        return True
