"""Answers to changes, held back until the change is on disk and known to a name server.

A change is an operator's, or the topic that a first send creates. Must not know who saves tables and who talks to name
servers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter

from mqspark.base.bounded import BoundedSet, Ledger
from mqspark.base.clock import Clock
from mqspark.base.config import Limit
from mqspark.broker.config import BrokerConfig
from mqspark.broker.state.acks import Receiver
from mqspark.broker.stats.rpctimes import RpcTimes
from mqspark.protocol.codes import ResponseCode
from mqspark.protocol.command import Command, encode_response
from mqspark.protocol.session import Session
from mqspark.protocol.slices import LongWork, Work
from mqspark.store.disk.savedtables import SavedTable
from mqspark.store.recovery.deletions import Deletions

ANNOUNCEMENT_TIMEOUT_MS = 2_000
"""The longest time that the first send to a topic waits for a name server; less than a client's own timeout."""

CHANGE_TIMEOUT_MS = 3_000
"""The longest time that the answer to an operator's change waits for disk and name server."""


ANSWERED_AT_ONCE = 256
"""Changes answered in one slice: a save may complete those of many pipelined requests."""


@dataclass(frozen=True, slots=True, eq=False)
class _Change:
    """An unanswered change."""

    session: Receiver
    done: bytes
    unsaved: bytes
    """The answer if saving takes too long."""
    saved: SavedTable | None
    """None: the answer does not wait for the disk."""
    generation: int
    published: bool
    """Whether a name server must know the change, too."""
    deadline_ms: int
    code: int = -1
    """The request's code, when its answer is counted here."""

    @property
    def size_bytes(self) -> int:
        return 1_000 + len(self.done) + len(self.unsaved)


_Kind = tuple[SavedTable | None, bool]
"""``saved`` and ``published`` of changes."""


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
    """Wait until tables and ``deletions`` are saved and name servers know the topics. ``answer_due`` is called when one
    has advanced, and with time."""

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        deletions: Deletions,
        long_work: LongWork,
        rpc: RpcTimes,
        changed: Callable[[], None],
    ) -> None:
        """``changed`` is called with each change of an operator."""
        self._rpc = rpc
        self._config = config
        self._clock = clock
        self._published = -1
        """The generation of the topics that a name server knows."""
        self._deletions = deletions
        deletions.on_saved = self.answer_due
        self._changed = changed
        self._long_work = long_work
        self._waiting: dict[_Kind, deque[_Change]] = {}
        """By what they wait for: the first of a kind is answered first, so only the first is looked at."""
        self._is_due = self._is_answering = False
        self.ledger = Ledger("changes", Limit(config, "max_waiting_bytes"), "PendingChanges._waiting")
        self._unanswered: BoundedSet[_Change] = self.ledger.set(0, attrgetter("size_bytes"))

    def answer_when_safe(
        self, session: Receiver, command: Command, saved: SavedTable, *, published: bool = False
    ) -> None:
        """Answer once the table is on disk as it is now and, if ``published``, a name server knows the topics."""
        self._changed()
        if command.is_oneway:
            return
        deadline_ms = self._clock.monotonic_ms() + CHANGE_TIMEOUT_MS
        done = encode_response(command.opaque, ResponseCode.SUCCESS)
        remark = "the change is in force, but could not be saved yet"
        unsaved = encode_response(command.opaque, ResponseCode.SYSTEM_ERROR, remark=remark)
        change = _Change(
            session, done, unsaved, saved, saved.generation, published, deadline_ms, command.code
        )
        if not self._wait_for(change):
            session.send(unsaved)

    def once_known(self, session: Session, generation: int) -> Receiver:
        """Holds an answer back until a name server knows the topics of this generation."""
        return _Announcement(self, session, generation) if self._config.namesrv_addr else session

    def announce(self, session: Session, frame: bytes, generation: int) -> None:
        """Send ``frame`` once a name server knows the topics of ``generation``, or after ANNOUNCEMENT_TIMEOUT_MS."""
        if self._published < generation:
            deadline_ms = self._clock.monotonic_ms() + ANNOUNCEMENT_TIMEOUT_MS
            if self._wait_for(_Change(session, frame, frame, None, generation, True, deadline_ms)):
                return
        session.send(frame)

    def _wait_for(self, change: _Change) -> bool:
        """False if too many answers wait already."""
        if self._answer(change):
            return True
        has_room = self._unanswered.offer(change, None)
        if has_room:
            self._waiting.setdefault((change.saved, change.published), deque()).append(change)
        return has_room

    def published(self, generation: int) -> None:
        """A name server knows the topics of this generation."""
        self._published = max(self._published, generation)
        self.answer_due()

    def answer_due(self) -> None:
        self._is_due = True
        if self._waiting and not self._is_answering:
            self._is_answering = True
            self._long_work.begin(None, self._answer_in_slices())

    def _answer_in_slices(self) -> Work[None]:
        answered = 0
        while self._is_due:
            self._is_due = False
            for kind in list(self._waiting):
                waiting = self._waiting[kind]
                while waiting and self._answer(waiting[0]):
                    self._unanswered.discard(waiting.popleft())
                    answered += 1
                    if answered % ANSWERED_AT_ONCE == 0:
                        yield
                if not waiting:
                    del self._waiting[kind]
        self._is_answering = False

    def _answer(self, change: _Change) -> bool:
        """False if it has to wait."""
        is_late = change.deadline_ms <= self._clock.monotonic_ms()
        is_saved = change.saved is None or (
            change.saved.saved_generation >= change.generation and not self._deletions.unsaved
        )
        is_published = not change.published or self._published >= change.generation
        if is_saved and (is_published or is_late):
            self._count(change, ResponseCode.SUCCESS)
            change.session.send(change.done)
        elif is_late:
            self._count(change, ResponseCode.SYSTEM_ERROR)
            change.session.send(change.unsaved)
        else:
            return False
        return True

    def _count(self, change: _Change, code: int) -> None:
        if change.code >= 0:
            took_ms = self._clock.monotonic_ms() - (change.deadline_ms - CHANGE_TIMEOUT_MS)
            self._rpc.record(change.code, code, took_ms)
